"""`commit`: makes the changes of a draft visible, all at once, on top of the commits of other writers.

A commit puts the changes on top of the newest state, asks `plan` for the next state, and carries out the plan; if
another writer was faster, it starts again. `carry_out` carries out a whole plan. `stage` stops before the last write,
which a group makes for several members together. `outcomes.write_once` finds out whether a write has happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

from b2array import threads
from b2array.buffers import Buffer
from b2array.catalog.needs import identities_of_groups, needed_states, needs_of_all_groups, unneeded_names
from b2array.catalog.owners import ALONE, find_frame
from b2array.commit.draft import Draft, discard_quietly
from b2array.commit.frame_locks import makers_lock, manifests_lock, try_manifests_lock, writers_lock
from b2array.commit.in_bucket import commit_member
from b2array.commit.outcomes import look_at_frame, write_once
from b2array.commit.plan import CommitStep, Plan
from b2array.commit.prepare import bytes_of_plan, copy_whole, make_objects, make_plan, read_behind_header, require_files
from b2array.commit.unwritten import stage_all_chunks
from b2array.errors import (
    B2ArrayError,
    ConflictError,
    FormatError,
    LimitError,
    SnapshotLostError,
    UnsupportedError,
    warn,
)
from b2array.format import index
from b2array.format.annotations import GroupCommit
from b2array.format.ledger import Kept
from b2array.format.state import State
from b2array.frame.revision import Revision, head_if_unchanged
from b2array.store.base import MISSING, HiddenError, Stamp, Version, attempts, durability, pause, too_many_conflicts
from b2array.store.locks import holds_locks

__all__ = ["Prepared", "commit", "frame_lock", "stage"]


def commit(draft: Draft) -> Revision:
    """Encode open chunks, make all changes of a draft visible, and return the new state; abort the draft on failure.

    A draft without changes makes no commit: then this returns its base. ConflictError: another writer has changed
    chunks or values on which these changes depend. The store keeps the state of that writer. FileExistsError: the place
    of a new frame is occupied. RuntimeError: the interpreter is ending.
    """
    if threads.is_ending():
        raise threads.make_ending_error()
    try:
        stage_all_chunks(draft)
        if draft.base is not None and not draft.changed:
            committed = draft.base
        else:
            draft.staging.require_open()
            committed = _commit_draft(draft)
    except BaseException:
        draft.abort()
        raise
    draft.finish(committed.frame)
    return committed


def _commit_draft(draft: Draft) -> Revision:
    """Commit the changes of a draft, through its group or alone, and return the new state."""
    last = draft.destination.old if draft.base is None else draft.base
    # In an object store, only the group may replace a member.
    if last is not None and last.owner.lists_revisions:
        return commit_member(draft)
    return _commit_new(draft) if draft.base is None else _commit_existing(draft)


def _commit_new(draft: Draft) -> Revision:
    """Commit a new frame, which may replace an old one, and return its first state.

    This takes the lock of the manifest around the place, if there is one, and the lock of the old frame, unless
    `draft.locked`. It removes the old frame. FileExistsError: there is a frame that may not be replaced. ConflictError:
    another writer was faster.
    """
    place, old, aside, _ = draft.destination
    with nullcontext() if draft.locked else makers_lock(place):
        # Lock out the writers of the old frame while it is replaced: they might write into the new one.
        name = draft.name if old is None else old.name
        with place.lock(name) if _has_other_writers(draft, name) else nullcontext():
            if _may_be_adopted(draft):
                return _overwrite(draft)
            intended = make_plan(draft, None)
            committed = carry_out(intended, draft, None)
            if not aside:
                _remove_old(draft, committed)
                return committed
            place.exchange(committed.store)
            # The old frame is now in the temporary place.
            discard_quietly(committed.store)
            return replace(committed, store=place)


def _has_other_writers(draft: Draft, name: str) -> bool:
    """Whether to lock the frame to replace, because it may have other writers; this asks for the size of `name`."""
    if draft.locked or draft.new is None or not draft.new.overwrite or not draft.destination.place.can.lock:
        return False
    try:
        return draft.destination.place.stamp(name).size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def _may_be_adopted(draft: Draft) -> bool:
    """Whether a group may have adopted the frame to replace, or may adopt it before it is replaced.

    That happens only in object stores, and matters only if any frame may be replaced.
    """
    place, new = draft.destination.place, draft.new
    overwrites = new is not None and new.overwrite and new.replaces is None
    if not overwrites or draft.destination.aside or place.can.local:
        return False
    return place.can.compare or place.can.lock


def _overwrite(draft: Draft) -> Revision:
    """Replace the old frame, or a newer one in its place, and return the first state of the new one.

    If a group has adopted the old frame, this commits through the group. If another writer was faster, this enters the
    newer frame in `draft.destination`, and tries again.
    """
    place, new = draft.destination.place, draft.new
    if new is None:
        raise ValueError(f"{draft.url}: expected the draft of a new frame")
    for _ in attempts(place):
        old = draft.destination.old
        if old is not None and old.owner.lists_revisions:
            draft.new = new
            return commit_member(draft)
        is_in_place = old is not None and old.name == draft.name
        version = old.version if old is not None and is_in_place else _version_there(draft)
        draft.new = replace(new, overwrite=version is not None, replaces=version)
        intended = make_plan(draft, None)
        try:
            committed = carry_out(intended, draft, None)
        except (ConflictError, FileExistsError):  # another writer was faster
            draft.destination = draft.destination._replace(old=find_frame(place))
            continue
        try:
            has_old_changed = _has_old_changed(old, committed)
        except HiddenError:
            # Another writer may be able to read the old frame, and may have changed it.
            place.delete([committed.name])
            raise
        if not has_old_changed:
            _remove_old(draft, committed)
            return committed
        # A group has adopted the frame of the other layout meanwhile, so remove the new frame and try again.
        place.delete([committed.name])
        draft.destination = draft.destination._replace(old=find_frame(place))
    raise too_many_conflicts(place)


def _has_old_changed(old: Revision | None, committed: Revision) -> bool:
    """Ask the store whether another writer has changed the old frame, of the other layout, since it was read.

    False if `committed` has replaced the old frame, or without an old frame.
    """
    if old is None or old.name == committed.name:
        return False
    try:
        return old.store.stamp(old.name).version != old.version
    except HiddenError:
        raise
    except MISSING:
        return False


def _version_there(draft: Draft) -> Version | None:
    """Read the version of the file or object that the new frame of a draft would replace; None if it does not exist."""
    try:
        return draft.destination.place.stamp(draft.name).version
    except MISSING:
        return None


def _remove_old(draft: Draft, committed: Revision) -> None:
    """Remove the old frame of the other layout after a new frame has replaced it in the same place.

    If the new frame has the same layout, it has overwritten the old one, and this does nothing.
    """
    old = draft.destination.old
    if old is None or old.name == committed.name:
        return
    if committed.name:
        # Readers find the old frame until it is removed.
        draft.destination.place.delete([old.name])
        return
    offsets = old.frame.offsets
    chunks = map(index.chunk_name, offsets[offsets >= 0].tolist())
    # No reader sees leftover files.
    with suppress(OSError, B2ArrayError):
        draft.destination.place.delete([old.name, *chunks])


def _commit_existing(draft: Draft) -> Revision:
    """Rebase a draft on the newest state, carry out the plan of the result, and return the new state.

    If another writer was faster, this tries again. Each attempt takes the lock of the frame. If a group has adopted the
    frame, this commits through the group. ConflictError: another writer has changed the same chunks or values.
    """
    waits = False
    for attempt in attempts(draft.store):
        # The holder of the manifest's lock may be waiting for a lock of this thread.
        may_wait = waits and not holds_locks()
        if waits and not may_wait:
            time.sleep(pause(attempt))
        with manifests_lock(draft.store) if may_wait else nullcontext(), frame_lock(draft):
            current = _rebase_on_newest(draft)
            # A group may have adopted the frame since it was opened.
            if current.owner.lists_revisions:
                return commit_member(draft)
            intended = make_plan(draft, current)
            if intended.step == CommitStep.COMPACT and not draft.store.can.append:
                warn(f"{draft.url}: one file in this store is rewritten with every change")
            try:
                with _make_safe(intended, draft, current) as safe:
                    if safe is not None:
                        return _carry_out_safe(safe, draft, current)
                waits = True
            except ConflictError:
                # A store without locks compares versions as it writes; without a newer state, no retry can help.
                if current.owner.load(current).generation == current.generation:
                    raise
    raise too_many_conflicts(draft.store)


def frame_lock(draft: Draft) -> AbstractContextManager[object]:
    """Take and return the lock of a draft's frame, after taking the step that may be pending for it.

    If `draft.locked`, the caller has the lock, and the result does nothing. ConflictError: the directory of the frame
    was deleted, or replaced by a file.
    """
    if draft.locked:
        return nullcontext()
    try:
        return writers_lock(draft.store, draft.name)
    except MISSING as error:
        if (stale := draft.staleness()) is not None:
            raise stale from error
        raise


class _SafePlan(NamedTuple):
    """A plan that loses no data of snapshots of groups, if a copy of the file keeps the right states.

    `needed` has the states that a copy of the file must keep as well, with entries for its ledger. `unneeded` has the
    names of kept states that it may drop.
    """

    plan: Plan
    needed: Sequence[tuple[Kept, Revision]] = ()
    unneeded: tuple[str, ...] = ()


@contextmanager
def _make_safe(intended: Plan, draft: Draft, current: Revision) -> Iterator[_SafePlan | None]:
    """Change a plan so that no snapshot of a group loses data. During the block, no writer can make a snapshot.

    If the plan destroys bytes, this takes the free locks of the groups around the frame, and reads their manifests. It
    warns if dead space must stay. Yield None if the plan destroys bytes while another writer holds such a lock.
    FormatError, LimitError or UnsupportedError: a manifest, or a list of members, cannot be read.
    """
    if not (intended.destroys and draft.store.can.local):
        yield _SafePlan(intended)
        return
    with try_manifests_lock(draft.store) as is_alone:
        needs, unreadable = [], None
        try:
            needs = needs_of_all_groups(draft.store) if is_alone else []
        except (FormatError, LimitError, UnsupportedError) as error:
            unreadable = error
        if is_alone and not (needs or unreadable):
            yield _SafePlan(intended, (), unneeded_names(current, (), identities_of_groups(draft.store)))
            return
        other = make_plan(draft, current, keep_file=True)
        if not other.destroys:
            if intended.step == CommitStep.COMPACT and needs:
                _warn_of_dead_space(draft.url)
            yield _SafePlan(other)
        elif unreadable is not None:
            raise unreadable
        elif not is_alone:
            yield None
        else:
            stale = unneeded_names(current, needs, identities_of_groups(draft.store))
            yield _SafePlan(other, needed_states(current, needs), stale)


@lru_cache(maxsize=1024)
def _warn_of_dead_space(url: str) -> None:
    """Warn, once for each file, that dead space remains in it."""
    warn(
        f"{url}: more than half of the file is dead space, and stays because the group has snapshots: b2array.repack"
        " removes what they do not need"
    )


def _carry_out_safe(safe: _SafePlan, draft: Draft, current: Revision) -> Revision:
    """Carry out a plan, or compact the frame if the plan says so; return the new state."""
    if safe.plan.step == CommitStep.COMPACT:
        return _compact(safe, draft, current)
    return carry_out(safe.plan, draft, current)


class Prepared(NamedTuple):
    """A frame whose next state is written, except for the last step.

    `header` has the first bytes of the new `state`. If `is_patch`, the last step writes them over the beginning of the
    file. Otherwise it replaces the old index or file by the staged one.
    """

    state: State
    header: bytes
    is_patch: bool


def stage(
    draft: Draft,
    put: Callable[[Iterable[Buffer]], object],
    group_commit: GroupCommit | None = None,
) -> Prepared:
    """Rebase a draft on the newest state, write all but the last step of its commit, and return the new state.

    A commit of a group uses this; the caller holds the lock of the frame. This encodes open chunks first. `put` writes
    the bytes of a new index or file, which will replace the old one. The draft gets the note `group_commit`, if any.
    ConflictError: another writer has changed the same chunks, or files of new chunks were removed.
    """
    stage_all_chunks(draft)
    for _ in attempts(draft.store):
        current = None if draft.base is None else _rebase_on_newest(draft)
        if group_commit is not None:
            draft.annotate(group_commit=group_commit)
        intended = make_plan(draft, current)
        require_files(intended, draft)
        try:
            if current is None or not intended.destroys:
                return _stage(_SafePlan(intended), draft, current, put)
            with _make_safe(intended, draft, current) as safe:
                if safe is not None:
                    return _stage(safe, draft, current, put)
        except ConflictError:
            if current is None or current.owner.load(current).generation == current.generation:
                raise
    raise too_many_conflicts(draft.store)


def _stage(
    safe: _SafePlan,
    draft: Draft,
    current: Revision | None,
    put: Callable[[Iterable[Buffer]], object],
) -> Prepared:
    """Write all but the last step of a plan, and return the new state: append to the file, or `put` a new object.

    The objects to which the new state refers are made first.
    """
    intended = safe.plan
    if intended.step == CommitStep.COMPACT and current is not None:
        return _stage_compacted(safe, draft, current, put)
    make_objects(intended, draft)
    if intended.step == CommitStep.APPEND and current is not None:
        _append(intended, draft, current)
        return Prepared(intended.require_state(), intended.header, is_patch=True)
    put(bytes_of_plan(intended, draft))
    return Prepared(intended.require_state(), intended.header, is_patch=False)


# Plans.


def _rebase_on_newest(draft: Draft) -> Revision:
    """Load the newest state of a draft's frame, put the changes of the draft on top of it, and return that state.

    ConflictError: another writer has changed a chunk or a value on which these changes depend. Raises the errors of
    `Owner.load` as well, such as FileNotFoundError if the frame was deleted.
    """
    if draft.base is None:
        raise ValueError("a new frame has no earlier state")
    current = draft.base.owner.load(draft.base)
    draft.rebase(current)
    return current


# Carrying them out.


def carry_out(intended: Plan, draft: Draft, current: Revision | None) -> Revision:
    """Write the objects, the chunks and the state of a plan to the store, and return the new state.

    `current` is the state on which the plan builds; None for a new frame. Chunk files are forced to the disk first. If
    the outcome stays unknown, the draft keeps its files. ConflictError: another writer was faster, or files of new
    chunks were removed. FileExistsError: the place of a new frame is occupied. Raises the other errors of `write_once`.
    """
    state = intended.require_state()
    require_files(intended, draft)
    make_objects(intended, draft)
    if draft.sparse:
        draft.store.force()

    generation = state.frame.fingerprint.hex()
    if current is not None and intended.step == CommitStep.APPEND and draft.store.can.append:
        version = _append_and_patch(intended, draft, current)
        return Revision(draft.store, state, 0, version, generation, ALONE, header=intended.header)

    def keep() -> None:
        """Make the draft keep its files. Where locks exclude other writers, `Draft.abort` finds out what to keep."""
        draft.staging.files.is_needed |= not draft.store.can.lock

    write = _make_write(intended, draft, current)
    look = partial(look_at_frame, draft.store, state, _version_to_replace(draft, current), sparse=draft.sparse)
    written = write_once(draft.store, write, look, keep=keep)
    if written.content is not None:
        return written.content
    return Revision(draft.store, state, 0, written.version, generation, ALONE, header=intended.header)


def _version_to_replace(draft: Draft, current: Revision | None) -> Version | None:
    """Return the version of the only file or object that a commit may replace; None without such a condition."""
    if current is not None:
        return current.version
    return None if draft.new is None else draft.new.replaces


def _make_write(intended: Plan, draft: Draft, current: Revision | None) -> Callable[[], Stamp]:
    """Return a function that writes a file or object with header, chunks and tail.

    If the spool's file becomes the frame, this completes it, and the function moves it to its place. The function
    raises ConflictError if another writer was faster, and FileExistsError if the place of a new frame is occupied.
    """
    store, name, new = draft.store, draft.name, draft.new
    expected = _version_to_replace(draft, current)
    exclusive = current is None and new is not None and not new.overwrite
    if current is not None and intended.step == CommitStep.APPEND:
        # A store that cannot append gets a whole new object.
        content = bytes_of_plan(intended, draft, read_behind_header(current))
        return partial(store.replace, "", content, expected=expected)
    if intended.finishes_spool:
        path = draft.staging.complete_spool_file(intended.header, intended.tail, durable=durability() != "off")
        return partial(store.move_in, path, "", exclusive=exclusive, expected=expected)
    if exclusive:
        return partial(store.create, name, bytes_of_plan(intended, draft))
    return partial(store.replace, name, bytes_of_plan(intended, draft), expected=expected)


def _append_and_patch(intended: Plan, draft: Draft, current: Revision) -> Version | None:
    """Append the new chunks and the tail to the file, then change its header, and return the file's new version.

    After a failure, this restores the old header and the old length. After Ctrl-C, a new header that is complete stays,
    because readers may have seen the new state.
    """
    store = draft.store
    _append(intended, draft, current)
    try:
        return store.patch("", 0, intended.header).version
    except BaseException as error:
        # Restore the old header, which may be half overwritten. If that fails as well, the first error is more helpful.
        with suppress(OSError):
            is_interrupted = not isinstance(error, Exception)
            new = intended.require_state().frame
            if is_interrupted and head_if_unchanged(store, new, intended.header) is not None:
                raise
            store.patch("", 0, current.header)
            store.append("", current.frame.frame_len, ())
        raise


def _append(intended: Plan, draft: Draft, current: Revision) -> None:
    """Append the new chunks and the tail of a plan behind the present frame, in its file, cutting off what is there."""
    chunks = draft.staging.pieces(intended.pieces)
    draft.store.append("", current.frame.frame_len, chain(chunks, (intended.tail,)))


# Copying chunks.


def _compact(safe: _SafePlan, draft: Draft, current: Revision) -> Revision:
    """Copy all chunks to a new file without dead space, replace the old file by it, and return the new state.

    If a chunk is damaged, this carries out the other plan instead, which keeps the old file; without one, it raises
    FormatError or SnapshotLostError. If the outcome stays unknown, the draft keeps its files.
    """
    try:
        copy = copy_whole(draft, current, safe.needed, safe.unneeded)
    except (FormatError, SnapshotLostError):
        if safe.plan.otherwise is None:
            raise
        # A chunk that cannot be read must not prevent changes of the other chunks.
        return carry_out(safe.plan.otherwise, draft, current)
    try:
        intended = make_plan(copy, None)
        return carry_out(intended, copy, None)
    finally:
        draft.staging.files.is_needed |= copy.staging.files.is_needed
        copy.abort()


def _stage_compacted(
    safe: _SafePlan,
    draft: Draft,
    current: Revision,
    put: Callable[[Iterable[Buffer]], object],
) -> Prepared:
    """Copy all chunks of a frame, `put` them as a new file without dead space, and return the new state.

    FormatError or SnapshotLostError: a chunk or a kept state cannot be read.
    """
    copy = copy_whole(draft, current, safe.needed, safe.unneeded)
    try:
        intended = make_plan(copy, None)
        put(bytes_of_plan(intended, copy))
        return Prepared(intended.require_state(), intended.header, is_patch=False)
    finally:
        copy.abort()
