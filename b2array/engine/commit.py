"""`commit`: makes the changes of a draft visible, all at once, on top of what other writers committed meanwhile.

A commit puts the changes on top of the newest state, asks `plan` for the next one, and carries that out; where another
writer was faster, it does so again. `publish` carries a plan out to its end. `stage` stops before the last write, which
a group then makes for several members together. An attempt has one of three outcomes: done, refused, or unknown, where
the answer of a server is lost; then nothing is cleaned up, because the store may refer to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec.header import ChunkHeader, Special
from b2array.config import HEADER_LEN
from b2array.engine.changes import LOWEST_CODE, ChangeSet, Keep, changeable, is_spooled
from b2array.engine.draft import Draft, discard, removed
from b2array.engine.fetch import each_chunk
from b2array.engine.kept import KeptState, require_intact
from b2array.engine.plan import Facts, Plan, Step, plan, unnoted
from b2array.engine.single import makers_lock, may_replace
from b2array.engine.snapshot import Snapshot, kept_states, load, reload
from b2array.engine.source import Location, Source
from b2array.engine.tables import refuse_columns
from b2array.errors import B2ArrayError, ConflictError, FormatError, located, located_error, warn
from b2array.format import index
from b2array.format.annotations import LAYER, Annotations, GroupCommit
from b2array.format.foreign_indexes import with_stale_indexes
from b2array.format.frame import Frame
from b2array.format.header import FrameType
from b2array.format.kept import ledger_of
from b2array.format.state import State
from b2array.progress import Progress
from b2array.store.base import (
    Store,
    Version,
    attempts,
    create_under_own_name,
    durability,
    may_still_happen,
    too_many_conflicts,
)
from b2array.store.spans import Span

__all__ = ["commit", "copied", "renew", "stage"]

_SALT_NBYTES = 16
_COPIED_AT_ONCE = 2**24


def commit(draft: Draft) -> Snapshot:
    """Make the changes visible, and return the new state.

    ConflictError: another writer has changed what these changes build on, and the store is as that writer left it.
    """
    try:
        draft.flush()
        if draft.base is not None and not draft.changed:
            snapshot = draft.base
        else:
            draft.staging.require_open()
            snapshot = _make(draft) if draft.base is None else _change(draft)
    except BaseException:
        draft.abort()
        raise
    draft.settle(snapshot.frame)
    return snapshot


def _make(draft: Draft) -> Snapshot:
    """Write the first state of a new frame, which may replace an old one."""
    with nullcontext() if draft.locked else makers_lock(draft.place):
        # A writer of the frame that goes must not come in between: it would write into the new one.
        name = draft.name if draft.old is None else draft.old.name
        with draft.place.lock(name) if _has_other_writers(draft, name) else nullcontext():
            made = publish(_planned(draft, None), draft, None)
            if not draft.aside:
                _remove_old(draft, made)
                return made
            draft.place.exchange(made.store)
            discard(made.store)
            return replace(made, store=draft.place)


def _has_other_writers(draft: Draft, name: str) -> bool:
    """Whether there may be writers of the frame that a new one replaces, and a lock that they respect."""
    if draft.locked or draft.new is None or not draft.new.overwrite or not draft.place.can.lock:
        return False
    try:
        return draft.place.stamp(name).size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def _remove_old(draft: Draft, made: Snapshot) -> None:
    """Remove a frame of the other layout, which a new one has replaced in the same place."""
    old = draft.old
    if old is None or old.name == made.name:
        return
    if made.name:
        draft.place.delete([old.name])  # until then readers find the old one
        return
    with suppress(OSError, B2ArrayError):  # what stays behind disturbs no reader
        offsets = old.frame.offsets
        draft.place.delete([old.name, *map(index.chunk_name, offsets[offsets >= 0].tolist())])


def _change(draft: Draft) -> Snapshot:
    """Put the changes on top of the newest state, and publish that; again if others were faster."""
    for _ in attempts(draft.store):
        with draft.lock():
            current = _newest(draft)
            made = _planned(draft, current)
            if not may_replace(current):
                continue
            if made.step == Step.COMPACT and not draft.store.can.append:
                warn(f"{draft.url}: one file in this store is rewritten with every change")
            try:
                return _carry_out(made, draft, current)
            except ConflictError:  # a store without locks compares while it writes
                if reload(current).generation == current.generation:
                    raise
    raise too_many_conflicts(draft.store)


def _carry_out(made: Plan, draft: Draft, current: Snapshot) -> Snapshot:
    return _compact(made, draft, current) if made.step == Step.COMPACT else publish(made, draft, current)


def renew(held: Snapshot, group_commit: GroupCommit) -> Snapshot | None:
    """Replace a state by an equal one, which notes a commit of a group: nobody can replace the old one then.

    The caller holds the member in the manifest since he has read the state. All chunks stay in their places, because
    the caller's draft may know these. None: there is another state now.
    """
    draft = Draft(held.store, held)
    try:
        draft.annotate(group_commit=group_commit)
        change = draft.freeze()
        made = plan(change, held, replace(observe(change, held, draft), appendable=True))
        renewed = _carry_out(made.otherwise or made, draft, held)
    except BaseException as error:
        draft.abort()
        if isinstance(error, ConflictError):
            return None
        raise
    draft.settle(renewed.frame)
    return renewed


def stage(
    draft: Draft, put: Callable[[Iterable[Buffer]], object], group_commit: GroupCommit | None = None
) -> tuple[Frame, bytes]:
    """Write everything but the last step, for a commit of several frames. The caller holds the lock.

    Return the new frame, and the bytes that publish it when the caller writes them over the beginning of the object.
    They are empty if a new object replaces the old one: then `put` got its pieces. `group_commit` names the commit in
    the annotations.
    """
    draft.flush()
    for _ in attempts(draft.store):
        current = None if draft.base is None else _newest(draft)
        if group_commit is not None:
            draft.annotate(group_commit=group_commit)
        made = _planned(draft, current)
        _require_files(made, draft)
        try:
            if made.step == Step.COMPACT and current is not None:
                return _stage_compacted(draft, current, put)
            _make_objects(made, draft)
            if made.step == Step.APPEND and current is not None:
                _append(made, draft, current)
                return made.require_state().frame, made.header
            put(_pieces(made, draft))
            return made.require_state().frame, b""
        except ConflictError:
            if current is None or reload(current).generation == current.generation:
                raise
    raise too_many_conflicts(draft.store)


# Plans.


def _newest(draft: Draft) -> Snapshot:
    """Return the newest state, and put the changes on top of it."""
    if draft.base is None:
        raise ValueError("a new frame has no earlier state")
    current = reload(draft.base)
    draft.rebase(current)
    return current


def _planned(draft: Draft, current: Snapshot | None) -> Plan:
    change = draft.freeze()
    if change.changes_values:
        refuse_columns(draft.place)
    return plan(change, current, observe(change, current, draft))


def observe(change: ChangeSet, current: Snapshot | None, draft: Draft) -> Facts:
    """Find out what only the store and the staging area know."""
    store = draft.store
    return Facts(
        url=draft.url, appendable=store.can.append, locks=store.can.lock, aside=draft.aside,
        header_room=draft.staging.header_room, unnoted=_file_sizes(store, unnoted(change, current)),
        kept=_staying(change, current), salt=os.urandom(_SALT_NBYTES),
    )  # fmt: skip


def _staying(change: ChangeSet, current: Snapshot | None) -> tuple[State, ...] | None:
    """Return the kept states of a contiguous frame that stay when a change lets others go; None if one is lost."""
    if current is None or current.sparse or not change.drops:
        return ()
    stay = ledger_of(current.state).without(change.drops).entries
    try:
        return tuple(each.state for each in kept_states(current, stay))
    except FormatError:
        return None


def _file_sizes(store: Store, numbers: list[int]) -> dict[int, int]:
    """Read the sizes of chunks in files; missing files are left out."""
    sizes = {}
    names = [index.chunk_name(number) for number in numbers]
    for number, name, head in zip(numbers, names, store.head(names, HEADER_LEN) if names else (), strict=True):
        if not isinstance(head, Exception):
            sizes[number] = located(f"{store.url}: {name}", partial(ChunkHeader.unpack, head.data)).cbytes
        elif not isinstance(head, FileNotFoundError):
            raise head
    return sizes


# Carrying them out.


def publish(made: Plan, draft: Draft, current: Snapshot | None) -> Snapshot:
    """Carry out a plan, and return the new state.

    An error is ignored if the new state is there all the same, as when an answer was lost.
    """
    state = made.require_state()
    _require_files(made, draft)
    generation = state.frame.fingerprint.hex()
    _make_objects(made, draft)
    if draft.sparse:
        draft.store.force()
    try:
        version = (
            _extend(made, draft, current) if current and made.step == Step.APPEND else _write(made, draft, current)
        )
    except BaseException as error:
        draft.is_unknown |= may_still_happen(draft.store, error)
        if not isinstance(error, Exception):
            raise
        exclusive = isinstance(error, FileExistsError) and draft.store.can.lock
        if exclusive or (durability() == "full" and draft.store.can.local):
            raise
        with suppress(OSError, B2ArrayError):
            found = load(draft.store, marks=True)
            if found.generation == generation or found.state.annotations.lists(state.annotations):
                return found
        raise
    return Snapshot(draft.store, state, 0, version, generation, header=made.header)


def _require_files(made: Plan, draft: Draft) -> None:
    """Raise ConflictError if `vacuum` has removed files that the new state refers to."""
    gone = [] if made.state is None else draft.staging.missing(made.state.frame.offsets)
    if gone:
        raise removed(draft.url, gone)


def _make_objects(made: Plan, draft: Draft) -> None:
    """Make the objects that the new state refers to. If the commit fails, `vacuum` removes them."""
    for name, content in made.objects.items():
        create_under_own_name(draft.store, name, content)


def _write(made: Plan, draft: Draft, current: Snapshot | None) -> Version | None:
    """Write a file or an object with header and tail, and what lies between them. Return its version."""
    store, name, new = draft.store, draft.name, draft.new
    expected = current.version if current else new.replaces if new else None
    exclusive = current is None and new is not None and not new.overwrite
    if made.finishes_spool:
        path = draft.staging.finish(made.header, made.tail, durable=durability() != "off")
        return store.adopt(path, "", exclusive=exclusive, expected=expected).version
    if exclusive:
        return store.create(name, _pieces(made, draft)).version
    return store.replace(name, _pieces(made, draft), expected=expected).version


def _pieces(made: Plan, draft: Draft, old: Iterable[Buffer] = ()) -> Iterator[Buffer]:
    """Return the bytes of a file; `old` ones between the header and the new chunks stay."""
    return chain((made.header,), old, draft.staging.pieces(made.pieces), (made.tail,))


def _extend(made: Plan, draft: Draft, current: Snapshot) -> Version | None:
    """Append to the file, and let its header refer to the new index."""
    store = draft.store
    if not store.can.append:
        whole = _pieces(made, draft, _behind_header(current))
        return store.replace("", whole, expected=current.version).version
    _append(made, draft, current)
    try:
        return store.patch("", 0, made.header).version
    except BaseException:
        with suppress(OSError):  # half a header must not stay
            store.patch("", 0, current.header)
            store.append("", current.frame.frame_len, ())
        raise


def _behind_header(current: Snapshot) -> Iterator[Buffer]:
    start, stop = len(current.header), current.frame.frame_len
    for first in range(start, stop, _COPIED_AT_ONCE):
        span = Span("", first, min(first + _COPIED_AT_ONCE, stop))
        yield from current.store.read([span], expected=current.version)


def _append(made: Plan, draft: Draft, current: Snapshot) -> None:
    draft.store.append("", current.frame.frame_len, chain(draft.staging.pieces(made.pieces), (made.tail,)))


# Copying chunks.


def _compact(made: Plan, draft: Draft, current: Snapshot) -> Snapshot:
    """Replace the old file by one with every chunk, and without dead space."""
    try:
        whole = _whole(draft, current)
    except FormatError:
        if made.otherwise is None:
            raise
        # A chunk that cannot be read is no reason to refuse the others.
        return publish(made.otherwise, draft, current)
    try:
        return publish(_planned(whole, None), whole, None)
    finally:
        draft.is_unknown |= whole.is_unknown
        whole.abort()


def _stage_compacted(draft: Draft, current: Snapshot, put: Callable[[Iterable[Buffer]], object]) -> tuple[Frame, bytes]:
    whole = _whole(draft, current)
    try:
        made = _planned(whole, None)
        put(_pieces(made, whole))
        return made.require_state().frame, b""
    finally:
        whole.abort()


def _whole(draft: Draft, current: Snapshot) -> Draft:
    """Copy all chunks for a new file in the place of the old one; it is the same frame."""
    stay = ledger_of(current.state).without(draft.drops).entries
    whole = copied(
        draft.as_source(), draft.store, FrameType.CONTIGUOUS, progress=draft.progress, replaces=current.version,
        is_same=True, kept=[KeptState(*each) for each in zip(stay, kept_states(current, stay), strict=True)],
    )  # fmt: skip
    for keep in draft.keeps:
        whole.keep(keep)
    return whole


def copied(
    source: Source, store: Store, frame_type: FrameType, *, overwrite: bool = False,
    progress: Progress | None = None, lost: Collection[int] = (),
    locked: bool = False, replaces: Version | None = None, is_same: bool = False, kept: Sequence[KeptState] = (),
) -> Draft:  # fmt: skip
    """Return a draft of a new frame with the chunks of `source`, as they are stored, but for the `lost` ones.

    With `is_same`, it is the same frame in another file. It keeps the `kept` states of the old one.
    """
    old = source.state
    if isinstance(source, Draft):
        source.flush()  # an open chunk would keep the code of its earlier content until then
        old = changeable(source.state)  # the source goes on changing its own tables
    annotations = (
        Annotations()
        if old.annotations.foreign
        else replace(old.annotations, next=None, sizes=None, records=None, kept=None)
    )
    layers = tuple(layer for layer in old.frame.vlmetalayers if layer[0] != LAYER)
    state = (
        old.with_frame(frame_type=frame_type, vlmetalayers=layers).with_annotations(annotations).with_tables(None, None)
    )
    if isinstance(source, Draft) and source.freeze().changes_values:
        state = with_stale_indexes(state)
    new = Draft(store, None, state, overwrite=overwrite, locked=locked, replaces=replaces, is_same=is_same)
    lost = {*lost, *annotations.lost}
    try:
        # A draft notes all that is read; elsewhere only chunks that the index refers to are looked at.
        present = (
            range(old.frame.nchunks) if source.buffer else np.flatnonzero(old.frame.offsets >= LOWEST_CODE).tolist()
        )
        stored = [n for n in present if n not in lost and isinstance(source.locate(n), Location)]
        shown = progress or Progress(None)
        shown.advance(old.frame.nchunks - len(stored))
        for n, each in zip(stored, each_chunk(source, stored), strict=True):
            new.put(n, bytes(each.region))
            shown.advance()
        for n in lost:
            new.mark_lost(n)
        _copy_kept(new, old.frame, kept)
    except BaseException:
        new.abort()
        raise
    return new


def _copy_kept(new: Draft, old: Frame, kept: Sequence[KeptState]) -> None:
    """Let a copy of a frame keep states, too. Chunks that are in several states are copied once.

    Where other software may have written over a chunk of a state, it is compared with the checksums that the state has.
    """
    old_index, index_now, records_now = old.offsets, new.state.frame.offsets, new.state.records
    stored = np.flatnonzero(_is_stored(old_index)).tolist()
    copies = {int(old_index[n]): (int(index_now[n]), int(records_now[n])) for n in stored}
    for entry, held in kept:
        if held is None:
            new.keep(Keep(entry))
            continue
        offsets, records = np.array(held.frame.offsets, np.int64), held.state.records.copy()
        lost = held.state.annotations.lost
        offsets[list(lost)] = index.special_offset(Special.ZEROS)  # nobody reads them
        wanted = np.flatnonzero(_is_stored(offsets)).tolist()
        if entry.suspect or not old.is_ours:
            try:
                require_intact(held, deep=True)
            except FormatError as error:
                raise located_error(f"{held.url}: the snapshot {entry.name!r} is damaged; drop it", error) from error
        missing = [n for n in wanted if int(offsets[n]) not in copies]
        for n, each in zip(missing, each_chunk(held, missing), strict=True):
            staged = new.store_stored(n, bytes(each.region))
            copies[int(offsets[n])] = staged.code, staged.record
        for n in wanted:
            offsets[n], records[n] = copies[int(offsets[n])]
        state = held.state.with_frame(offsets=offsets, frame_type=new.state.frame.frame_type)
        new.keep(Keep(entry, state.with_tables(held.state.sizes, records)))


def _is_stored(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return (codes >= 0) | is_spooled(codes)
