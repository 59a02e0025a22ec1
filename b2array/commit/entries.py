"""One commit of several members of a group on a local disk: `commit_entries`.

Everything but the last step of each member goes to places that no reader looks at. Then one write replaces the
manifest, and that write is the commit: the log in it has an `Entry` for each member that was changed, made or deleted.
From then on readers of the group see all of it. The writer applies the entries (`b2array.commit.apply`), and takes them
out of the log.

A writer that is killed before the commit leaves files that no reader finds, and `b2array.vacuum` removes. One that is
killed later leaves the log, and the next writer applies it before it does anything else. Other writers wait for the
locks: a commit first locks the manifest, and then the members that it changes or has read.

A change of one member alone needs no log: the one step that applies it is the commit.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from types import MappingProxyType
from typing import Literal, Protocol

from b2array.buffers import Buffer
from b2array.commit import apply
from b2array.commit.apply import Applied
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle
from b2array.commit.leftovers import discard
from b2array.commit.one import Prepared, commit, stage
from b2array.errors import B2ArrayError, ConflictError
from b2array.format import summary
from b2array.format.annotations import GroupCommit
from b2array.format.frame import Frame
from b2array.format.summary import Record
from b2array.frame.log import inspect_place
from b2array.frame.manifest import MANIFEST, Entry, Kind, Manifest, is_embedded, staged_path
from b2array.frame.snapshot import Snapshot
from b2array.store.base import MISSING, Store, Version, attempts, create_under_own_name, too_many_conflicts
from b2array.store.forces import together
from b2array.store.locks import locks_below

__all__ = ["GroupChange", "GroupOnDisk", "MemberChange", "commit_entries"]

_MOST_DESCRIBED = 1000
"""In a larger local group only `Group.consolidate` writes summaries."""


Edit = Callable[[Manifest, Manifest, Mapping[str, Frame], Callable[[str, str], None]], Manifest]
"""How a commit changes the manifest besides its log: see `commit_entries`."""


class GroupOnDisk(Protocol):
    """What a commit needs of a group in a local directory."""

    store: Store

    def store_of(self, path: str) -> Store:
        """Return the store of a path in the group."""

    def read(self) -> tuple[Manifest, Version | None]:
        """Read the manifest and its version."""

    def write(self, manifest: Manifest, version: Version | None) -> Version | None:
        """Replace the manifest of that version, or raise ConflictError; return the new version."""

    def holds(self, manifest: Manifest) -> bool:
        """Whether the stored manifest is this one."""

    def apply_log(
        self,
        manifest: Manifest,
        *,
        locked: Collection[str] = (),
        states: Mapping[str, Snapshot] = MappingProxyType({}),
    ) -> Applied:
        """Apply the log to members that have these states, as far as the caller knows."""

    def paths_of(self, names: Collection[str], manifest: Manifest) -> dict[str, str]:
        """Return the names of members by all paths that there are for these names."""

    def current(self, path: str) -> Snapshot:
        """Return the state of a member that belongs to the members that are shown."""

    def remember(self, path: str, committed: Snapshot) -> None:
        """Remember the state that the commit has given a member."""

    def name_embedded_state(self, path: str) -> str:
        """Name the state of a member in the embedding frame."""

    def remove_embedded(self, path: str, entry: Entry) -> None:
        """Remove a member from the embedding frame, unless that is done."""


@dataclass(slots=True)
class MemberChange:
    """How a transaction changes or makes one member.

    Parameters
    ----------
    handle : Handle
        The handle that the transaction gives to its user.
    draft : Draft, optional
        The changes that wait for the commit; a new member's draft has no base. None once a new member was committed in
        a place next to its path: the commit of the group begins with that.
    token : str
        Names that place.
    opened : str
        The state that a member had when the transaction opened it.
    """

    handle: Handle
    draft: Draft | None = None
    token: str = ""
    opened: str = ""

    @property
    def is_new(self) -> bool:
        """Whether the transaction makes the member."""
        return self.draft is None or self.draft.base is None


@dataclass(slots=True)
class GroupChange:
    """What a transaction of a local group changes, by the paths of members unless something else is said.

    Parameters
    ----------
    identity : str
        Names the group, if its manifest does not yet.
    marked : bool
        Whether members note the commit, so that readers do not open them together with members of an earlier state.
    members : dict of str to MemberChange
        What changes, and what is made.
    names : dict of str to str
        The names of new members.
    removed : dict of str to str
        The paths of members that go, by their names.
    moved : dict of str to str
        The states of members that go which were copied to a new name.
    read : dict of str to str
        The states of members that were opened to read or change them.
    same : list of str
        The paths of members that a new snapshot names, and that the commit does not write.
    outcome : {"open", "committed", "unknown"}
        Whether the commit has happened. If nobody can tell, everything stays where it is.
    """

    identity: str
    marked: bool
    members: dict[str, MemberChange] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    same: list[str] = field(default_factory=list)
    outcome: Literal["open", "committed", "unknown"] = "open"

    def find_written(self) -> dict[str, MemberChange]:
        """Return the members that the commit writes: those that are new, or really changed."""
        return {
            path: member
            for path, member in sorted(self.members.items())
            if member.draft is None or member.draft.changed
        }

    def only_read(self, changed: Collection[str]) -> list[str]:
        """Return the members that were read, and that are not among the `changed` ones, even if they go."""
        if not self.marked:
            return []
        copied = {path for path, state in self.moved.items() if state}
        return sorted(self.read.keys() - changed - copied)


@dataclass(slots=True)
class _Attempt:
    """One attempt at a commit, under the manifest's lock: what it found, and what it has staged.

    `only_read` are the paths of members that the transaction has read. `prepared` are the new states of members, `log`
    their entries, `left` the entries of earlier commits that could not be applied. `tried` is the manifest that was
    written, or may have been; `stored` is its version, if it is known.
    """

    before: Manifest
    version: Version | None
    written: Mapping[str, MemberChange]
    only_read: list[str]
    left: Mapping[str, Entry]
    locked: list[str] = field(default_factory=list)
    log: dict[str, Entry] = field(default_factory=dict)
    prepared: dict[str, Prepared] = field(default_factory=dict)
    tried: Manifest | None = None
    stored: Version | None = None

    @property
    def number(self) -> int:
        return self.before.number + 1


def commit_entries(
    group: GroupOnDisk,
    change: GroupChange,
    written: Mapping[str, MemberChange],
    *,
    require: Callable[[Manifest], None],
    edit: Edit,
    members: Callable[[], Mapping[str, str]],
    show: Callable[[Manifest], object],
) -> tuple[Manifest, Manifest | None]:
    """Commit changes of members, new members and deletions.

    Return the manifest before the commit, and the one after it; None for the latter if one step was all.

    Parameters
    ----------
    group : GroupOnDisk
        The group.
    change : GroupChange
        What changes. Its handles show the committed states at the end.
    written : dict of str to MemberChange
        What `GroupChange.find_written` returned when all changes were made.
    require : callable
        Called with the manifest before each attempt; raises ConflictError if the changes do not fit any more.
    edit : callable
        Called with the manifest before, the manifest to come, the new states of members by their paths, and a function
        that locks another member for the rest of the attempt. Returns the second manifest, changed in what else it
        says, for example about snapshots.
    members : callable
        Returns the paths of the members by their names, as the commit leaves them.
    show : callable
        Makes the handle of the group show what a manifest lists.

    Raises
    ------
    ConflictError
        Another writer has changed what these changes build on.
    RuntimeError
        The thread holds the lock of a member.
    """
    _require_no_locks(group)
    _complete_new(group, written)
    for _ in attempts(group.store):
        locks: list[AbstractContextManager[object]] = []
        # One call of C code, which Ctrl-C does not interrupt. A lock left behind would make this process wait.
        exits = map(methodcaller("__exit__", None, None, None), locks)
        unlock: Callable[[], object] = partial(deque, exits, 0)
        with group.store.lock(MANIFEST):
            try:
                attempt = _begin(group, change, written, locks)
                if _commit(group, change, attempt, locks, require, edit, members):
                    _finish(group, attempt, show)
                    return attempt.before, attempt.tried
            finally:
                unlock()
    raise too_many_conflicts(group.store)


def _require_no_locks(group: GroupOnDisk) -> None:
    """Raise RuntimeError if this thread holds the lock of a member: a commit that waits for it holds the manifest's."""
    if paths := locks_below(group.store.url):
        raise RuntimeError(
            f"{group.store.url}: expected a thread that holds no lock in the group, found one that holds {paths[0]};"
            " commits of the group and this lock would wait for each other, so change the group outside of lock()"
        )


def _complete_new(group: GroupOnDisk, written: Mapping[str, MemberChange]) -> None:
    """Encode open chunks, and commit new members in places next to their paths: before the locks, as it takes long."""
    with together():
        for path, member in written.items():
            draft = member.draft
            if draft is None:
                continue
            try:
                draft.flush()
                if member.token:
                    with member.handle.mutex.held:
                        member.handle.leave(commit(draft))
                        member.draft = None
                    _force_new(group, path, member)
            except MISSING:
                raise _missing_member(draft.store) from None


def _begin(
    group: GroupOnDisk,
    change: GroupChange,
    written: Mapping[str, MemberChange],
    locks: list[AbstractContextManager[object]],
) -> _Attempt:
    """Read the manifest, apply its log, and lock the members, adding to `locks`."""
    before, version = group.read()
    # The first transactions of a group may have begun before it had an identity.
    change.identity = before.identity or change.identity
    left = group.apply_log(before).left if before.log else {}
    old = {path for path, member in written.items() if not member.is_new}
    attempt = _Attempt(before, version, written, change.only_read(old), left)
    read = {path for path in attempt.only_read if not is_embedded(path)}
    # All writers take locks in one order, so that none of them waits for another in a circle.
    attempt.locked += sorted(old | read | {*change.moved})
    for path in attempt.locked:
        _lock(group, change, path, locks)
    return attempt


def _lock(group: GroupOnDisk, change: GroupChange, path: str, locks: list[AbstractContextManager[object]]) -> None:
    lock = _lock_of(group, path, change.members.get(path))
    locks.append(lock)
    lock.__enter__()


def _lock_of(group: GroupOnDisk, path: str, member: MemberChange | None) -> AbstractContextManager[object]:
    if member is None or member.draft is None:
        store = group.store_of(path)
        name = inspect_place(store).name
    else:
        store, name = member.draft.store, member.draft.name
    try:
        return store.lock(name or "")
    except MISSING:
        raise _missing_member(store) from None


def _commit(
    group: GroupOnDisk,
    change: GroupChange,
    attempt: _Attempt,
    locks: list[AbstractContextManager[object]],
    require: Callable[[Manifest], None],
    edit: Edit,
    members: Callable[[], Mapping[str, str]],
) -> bool:
    """Stage everything, and take the step that commits it; return False if another writer was faster."""

    def lock(path: str, name: str) -> None:
        if path not in attempt.locked:
            store = group.store_of(path)
            try:
                locks.append(store.lock(name))
            except MISSING:
                raise _missing_member(store) from None
            locks[-1].__enter__()

    try:
        _check_copied(group, change)
        _check_read(group, change, attempt.only_read)
        require(attempt.before)
        with together():
            for path in attempt.written:
                _stage(group, change, attempt, path)
        _stage_deletions(group, change, attempt)
        after = _manifest_after(change, attempt, members)
        frames = {path: prepared.state.frame for path, prepared in attempt.prepared.items()}
        edited = edit(attempt.before, after, frames, lock)
        # The one step that applies a single change is atomic by itself, if the manifest says nothing else.
        is_single = not change.marked and len(attempt.log) == 1
        if is_single and edited is after and not attempt.before.summaries:
            _take_only_step(group, attempt)
        else:
            attempt.tried = edited
            attempt.stored = group.write(edited, attempt.version)
    except BaseException as error:
        if attempt.tried is None or not _has_committed(group, change, attempt, error):
            _unstage(group, attempt)
            overtaken = attempt.tried is not None and group.read()[1] != attempt.version
            if isinstance(error, ConflictError) and overtaken:
                return False
            raise
    change.outcome = "committed"
    return True


def _check_copied(group: GroupOnDisk, change: GroupChange) -> None:
    """Raise ConflictError if another writer has changed a member since it was copied to its new name."""
    for path, state in change.moved.items():
        store = group.store_of(path)
        if inspect_place(store).state != state:
            raise ConflictError(f"{store.url} was changed by another writer before it was moved; move it again")


def _check_read(group: GroupOnDisk, change: GroupChange, paths: Iterable[str]) -> None:
    """Raise ConflictError if another writer has changed or deleted a member that was only read."""
    for path in paths:
        store = group.store_of(path)
        if is_embedded(path):
            state = group.name_embedded_state(path)
        else:
            state = inspect_place(store).state
        if state != change.read[path]:
            raise ConflictError(f"{store.url} was changed by another writer since the transaction has read it")


# Staging.


def _stage(group: GroupOnDisk, change: GroupChange, attempt: _Attempt, path: str) -> None:
    """Write everything of a member but its last step, which gets an entry in the log."""
    member = attempt.written[path]
    note = GroupCommit(change.identity, attempt.number, path) if change.marked else None
    if member.draft is None:
        attempt.log[path] = _entry_of_new(group, path, member, note)
        return
    draft, token = member.draft, os.urandom(8).hex()

    def put(pieces: Iterable[Buffer]) -> None:
        aside = group.store_of(staged_path(path, token, sparse=draft.sparse))
        create_under_own_name(aside, "", pieces)
        aside.force()

    if draft.base is None:
        before = inspect_place(group.store_of(path)).lasting
        prepared = stage(draft, put, note)
    else:
        try:
            prepared = stage(draft, put, note)
        except MISSING:
            raise _missing_member(draft.store) from None
        before = draft.base.generation
        if not draft.base.frame.is_ours:
            # The state of a frame by other software is also the time of its file, which was appended to.
            before = inspect_place(group.store_of(path)).state
    after = prepared.state.frame.fingerprint.hex()
    attempt.prepared[path] = prepared
    if prepared.is_patch:
        attempt.log[path] = Entry("patch", before, after, prepared.header)
    else:
        kind: Kind = "index" if draft.sparse else "frame"
        attempt.log[path] = Entry(kind, before, after, token)


def _entry_of_new(group: GroupOnDisk, path: str, member: MemberChange, note: GroupCommit | None) -> Entry:
    """Return the entry of a new member, whose frame is complete in a place next to its path."""
    if note is not None and member.handle.snapshot.state.annotations.group_commit != note:
        for attempt in member.handle.attempts():
            with attempt as noting:
                noting.annotate(group_commit=note)
        _force_new(group, path, member)
    state, place = member.handle.snapshot.generation, group.store_of(path)
    aside = group.store_of(staged_path(path, member.token, sparse=False))
    if inspect_place(aside).state != state:
        raise ConflictError(f"{place.url}: somebody removed its new frame before the commit that needs it")
    before = inspect_place(place).lasting
    return Entry("frame", before, state, member.token)


def _force_new(group: GroupOnDisk, path: str, member: MemberChange) -> None:
    """Wait until the frame of a new member, in its place next to the path, and its name are on the disk."""
    group.store_of(staged_path(path, member.token, sparse=False)).force()
    group.store_of(path.rpartition("/")[0]).force()


def _stage_deletions(group: GroupOnDisk, change: GroupChange, attempt: _Attempt) -> None:
    """Add entries for the members that go. A member that goes where a new one appears is replaced by it."""
    if not change.removed:
        return
    for path in group.paths_of(change.removed.keys(), attempt.before):
        if path not in attempt.log:
            if is_embedded(path):
                before = group.name_embedded_state(path)
            else:
                before = inspect_place(group.store_of(path)).lasting
            attempt.log[path] = Entry("delete", before, "", os.urandom(8).hex())


def _manifest_after(
    change: GroupChange,
    attempt: _Attempt,
    members: Callable[[], Mapping[str, str]],
) -> Manifest:
    """Return the manifest that the commit writes, with summaries of the states that its log brings."""
    after = replace(
        attempt.before,
        number=attempt.number,
        log={**attempt.left, **attempt.log},
        identity=change.identity,
    )
    # Summaries of very many members would make each commit in a local group slow.
    is_described = attempt.before.summaries or (change.marked and len(members()) <= _MOST_DESCRIBED)
    if not is_described:
        return after
    # A program that makes a member usually goes on to change it: a summary would soon be out of date.
    soon = set() if change.marked else {*change.names}
    records = {path: None if path in soon else _describe(attempt, path) for path in after.log}
    gone = [path for path, entry in after.log.items() if entry.kind == "delete"]
    return after.with_summaries(records, gone, members())


def _describe(attempt: _Attempt, path: str) -> Record | None:
    """Return the summary of the state that the log brings to a member, or None if nobody knows that state."""
    prepared, member = attempt.prepared.get(path), attempt.written.get(path)
    if prepared is not None:
        return summary.pack(prepared.state, prepared.header)
    if member is None:  # its entry is left from an earlier commit, or deletes it
        return None
    complete = member.handle.snapshot
    return summary.pack(complete.state, complete.header)


def _take_only_step(group: GroupOnDisk, attempt: _Attempt) -> None:
    ((path, entry),) = attempt.log.items()
    if is_embedded(path):
        group.remove_embedded(path, entry)
    else:
        apply.apply_entry(group.store_of, path, entry, locked=path in attempt.locked)


def _unstage(group: GroupOnDisk, attempt: _Attempt) -> None:
    """Remove what an attempt has staged; another attempt stages it again."""
    # `vacuum` removes what stays.
    with suppress(OSError, B2ArrayError):
        for path, entry in attempt.log.items():
            member = attempt.written.get(path)
            if entry.token and member is not None and member.draft is not None:
                discard(group.store_of(entry.aside(path)))


def _has_committed(
    group: GroupOnDisk,
    change: GroupChange,
    attempt: _Attempt,
    error: BaseException,
) -> bool:
    """Whether the manifest was replaced despite an error, for example of forcing it to the disk.

    Raises `error` if that is unknown. Everything then stays where it is, because the manifest may refer to it.
    """
    # The disk may be out of reach: then the outcome is unknown.
    with suppress(OSError, B2ArrayError):
        if attempt.tried is not None and group.holds(attempt.tried):
            return True
        if isinstance(error, ConflictError) or group.read()[1] == attempt.version:
            return False
    change.outcome = "unknown"
    for member in change.members.values():
        if member.draft is not None:
            member.handle.leave(None)
    raise error


# After the commit.


def _finish(
    group: GroupOnDisk,
    attempt: _Attempt,
    show: Callable[[Manifest], object],
) -> None:
    """Show the changes, and apply the log. The next writer does what fails now."""
    after, applied = attempt.tried, Applied()
    show(after or attempt.before)
    # The commit has happened: whoever looks at the log sees it, and finishes what is missing here.
    with suppress(OSError, B2ArrayError):
        try:
            if after is not None:
                states = {}
                for path, member in attempt.written.items():
                    if member.draft is not None and member.draft.base is not None:
                        states[path] = member.draft.base
                applied = group.apply_log(after, locked=attempt.locked, states=states)
        finally:
            _move_on(group, attempt, applied)
        if after is not None:
            show(_clear_log(group, after, attempt.stored, applied.left))


def _move_on(group: GroupOnDisk, attempt: _Attempt, applied: Applied) -> None:
    """Make the handles show the committed states."""
    for path, member in attempt.written.items():
        state = None
        # Without a state the handle looks for it when it is used.
        with suppress(OSError, B2ArrayError):
            state = _committed_state(attempt, applied, path) or group.current(path)
            group.remember(path, state)
        member.handle.leave(state)
        if member.draft is not None:
            member.draft.settle(attempt.prepared[path].state.frame)


def _committed_state(attempt: _Attempt, applied: Applied, path: str) -> Snapshot | None:
    """Return the state of a member whose header this process has written; None if a look at it must tell."""
    version, draft = applied.patched.get(path), attempt.written[path].draft
    if version is None or draft is None:
        return None
    state, header, _ = attempt.prepared[path]
    return Snapshot(draft.store, state, 0, version, state.frame.fingerprint.hex(), header=header)


def _clear_log(
    group: GroupOnDisk,
    after: Manifest,
    version: Version | None,
    left: Mapping[str, Entry],
) -> Manifest:
    """Take the log out of the manifest that the commit wrote; return what it says then."""
    if version is None:  # writing it raised an error after it had happened
        now, version = group.read()
        if now.commit != after.commit:
            return after
    cleared = replace(after, log=left)
    group.write(cleared, version)
    return cleared


def _missing_member(store: Store) -> ConflictError:
    """Return the error of a transaction that is about to change a missing member."""
    return ConflictError(f"{store.url} was deleted or moved since it was opened")
