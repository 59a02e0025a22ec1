"""One commit of several members of a group on a local disk: `commit_entries`.

Before the last step of each member, the writer writes only where no reader looks. Then one write replaces the manifest,
and that write is the commit: the log in the manifest has an `Entry` for each member that was changed, made or deleted.
From then on, readers of the group see all changes. The writer applies the entries (`b2array.commit.apply`), and removes
them from the log.

A writer that is killed before the commit leaves files that no reader sees, and `b2array.vacuum` removes them. A writer
that is killed later leaves the log, and the next writer applies it first. Locks make other writers wait: a commit locks
first the manifest, and then the members that it changes or has read.

A change of a single member needs no log if one step applies it: that step is the commit. Where the system cannot
exchange two names, replacing a frame by one of the other layout takes two steps, and needs the log.
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
from b2array.commit.outcomes import create_under_own_name
from b2array.commit.unwritten import complete
from b2array.errors import B2ArrayError, ConflictError
from b2array.format import summary
from b2array.format.annotations import GroupCommit
from b2array.format.frame import Frame
from b2array.format.summary import Record
from b2array.frame.log import inspect_place
from b2array.frame.manifest import MANIFEST, Entry, Kind, Manifest, is_embedded, staged_path
from b2array.frame.snapshot import Snapshot
from b2array.store.base import MISSING, Store, Version, attempts, too_many_conflicts
from b2array.store.forces import together
from b2array.store.locks import locks_below

__all__ = ["GroupChange", "GroupOnDisk", "MemberChange", "commit_entries"]

_MOST_DESCRIBED = 1000
"""In a larger local group only `Group.consolidate` writes summaries."""


Edit = Callable[[Manifest, Manifest, Mapping[str, Frame], Callable[[str, str], None]], Manifest]
"""How a commit changes the manifest besides its log: see `commit_entries`."""


class GroupOnDisk(Protocol):
    """The parts of a local group that a commit needs."""

    store: Store

    def store_of(self, path: str) -> Store:
        """Return the store of a path in the group."""

    def read(self) -> tuple[Manifest, Version | None]:
        """Read the manifest and its version."""

    def require_same(self, manifest: Manifest) -> None:
        """Raise ConflictError if a manifest belongs to another group than the one that the transaction began with."""

    def write(
        self,
        manifest: Manifest,
        version: Version | None,
        *,
        keep: Callable[[], object] = lambda: None,
    ) -> Version | None:
        """Replace the manifest if it has this version, and return the new version; otherwise raise ConflictError.

        `keep` is called before an error if the manifest may have been replaced.
        """

    def apply_log(
        self,
        manifest: Manifest,
        *,
        locked: Collection[str] = (),
        states: Mapping[str, Snapshot] = MappingProxyType({}),
    ) -> Applied:
        """Give members the states that the log specifies; `states` has the old states that the caller knows."""

    def paths_of(self, names: Collection[str], manifest: Manifest) -> dict[str, str]:
        """Find all paths of members with these names, and return the names by path; one name may have several paths."""

    def current(self, path: str) -> Snapshot:
        """Load the state of a member in the manifest that the group shows."""

    def remember(self, path: str, committed: Snapshot) -> None:
        """Remember the state that the commit has given a member."""

    def name_embedded_state(self, path: str) -> str:
        """Read the embedding frame, and return the name of an embedded member's state."""

    def remove_embedded(self, path: str, entry: Entry) -> None:
        """Remove a member from the embedding frame, and commit that, unless it was already removed."""


@dataclass(slots=True)
class MemberChange:
    """The change or creation of one member by a transaction.

    Parameters
    ----------
    handle : Handle
        The handle that the transaction gives to its user.
    draft : Draft, optional
        The changes that wait for the commit; the draft of a new member has no base. The commit of the group first
        commits each new member in a place next to its path, and then sets this to None.
    token : str
        The token in the name of that place; "" for an existing member.
    opened : str
        The state of an existing member when the transaction opened it.
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
    """The changes of a transaction of a local group. Keys are paths of members unless stated otherwise.

    Parameters
    ----------
    identity : str
        The identity for a group whose manifest has none yet.
    marked : bool
        Whether members note the commit, so that readers do not combine them with earlier states of other members.
    members : dict of str to MemberChange
        The members that the transaction makes or may change.
    names : dict of str to str
        The names of new members.
    removed : dict of str to str
        The paths of deleted members, by name.
    moved : dict of str to str
        The states of moved members, which were copied to a new name and will be deleted.
    read : dict of str to str
        The states of members when the transaction opened them to read or change them.
    same : list of str
        The paths of members that a new snapshot names, and that the commit does not write.
    outcome : {"open", "committed", "unknown"}
        Whether the commit has happened. If that is unknown, no file is removed.
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
        """Return the members that the commit writes, in the order of their paths: new ones, and changed ones."""
        return {
            path: member
            for path, member in sorted(self.members.items())
            if member.draft is None or member.draft.changed
        }

    def note_unknown(self) -> None:
        """Note that the manifest may refer to the files of this commit."""
        self.outcome = "unknown"

    def only_read(self, changed: Collection[str]) -> list[str]:
        """Return the paths of members that were read but not `changed`, if the commit is `marked`; otherwise none.

        Deleted members count, moved ones do not.
        """
        if not self.marked:
            return []
        copied = {path for path, state in self.moved.items() if state}
        return sorted(self.read.keys() - changed - copied)


@dataclass(slots=True)
class _Attempt:
    """The state of one attempt at a commit, under the manifest's lock.

    `before` is the manifest before the commit. `only_read` has the paths of members that the transaction has only read,
    `prepared` the new states of members, `log` their entries, and `left` the entries of earlier commits that could not
    be applied. `tried` is the manifest that was, or may have been, written, and `stored` its version.
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
        """The number that the manifest gets with this commit."""
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

    This first encodes open chunks, and commits new members next to their paths. Each attempt takes the locks of the
    manifest and of the changed members, applies the log of earlier commits, rebases the drafts, and writes the
    manifest. Then this applies the new log, and ends the transactions of the handles.

    Return the manifest before the commit, and the manifest after it; None for the latter if a single step was the
    commit.

    Parameters
    ----------
    group : GroupOnDisk
        The group.
    change : GroupChange
        The changes. After the commit, its handles show the committed states.
    written : dict of str to MemberChange
        The result of `GroupChange.find_written` after the last change.
    require : callable
        Called with the manifest before each attempt; raises ConflictError if the changes do not fit any more.
    edit : callable
        Called with the old manifest, the new manifest, the new states of members by path, and a function that locks
        another member for the rest of the attempt. Returns the new manifest with further changes, for example to
        snapshots.
    members : callable
        Returns the paths of the members after the commit, by name.
    show : callable
        Makes the handle of the group show the members of a manifest.

    Raises
    ------
    ConflictError
        Another writer has changed a member or a snapshot on which these changes depend.
    RuntimeError
        This thread holds the lock of a member.
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
    """Raise RuntimeError if this thread locks a member: another commit may hold the manifest's lock and wait for it."""
    if paths := locks_below(group.store.url):
        raise RuntimeError(
            f"{group.store.url}: expected a thread that holds no lock in the group, found one that holds {paths[0]};"
            " commits of the group and this lock would wait for each other, so change the group outside of lock()"
        )


def _complete_new(group: GroupOnDisk, written: Mapping[str, MemberChange]) -> None:
    """Encode open chunks, commit new members next to their paths, and force them to the disk.

    This precedes the locks because it takes long. It ends the transactions of the new members. ConflictError: a member
    to change is gone.
    """
    with together():
        for path, member in written.items():
            draft = member.draft
            if draft is None:
                continue
            try:
                complete(draft)
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
    """Read the manifest, apply its log, lock the members, and add their locks to `locks`; return the new attempt.

    The `change` gets the identity of the group, if there is one. ConflictError: a member is gone.
    """
    before, version = group.read()
    group.require_same(before)
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
    """Take the lock of a member, and add it to `locks`; ConflictError if the member is gone."""
    lock = _lock_of(group, path, change.members.get(path))
    locks.append(lock)
    lock.__enter__()


def _lock_of(group: GroupOnDisk, path: str, member: MemberChange | None) -> AbstractContextManager[object]:
    """Take the lock of a member's frame, and return it; ConflictError if the member is gone."""
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
    """Check and stage all changes, and commit them in one step; return False if another writer was faster.

    This notes the outcome in `change`. Unless the commit may have succeeded, an error removes the staged files.
    """

    def lock(path: str, name: str) -> None:
        """Take the lock of another member, and add it to `locks`; ConflictError if the member is gone."""
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
        # Applying a single change usually takes one atomic step. It is the commit if nothing else in the manifest
        # changes.
        is_single = not change.marked and len(attempt.log) == 1
        is_alone = is_single and edited is after and not attempt.before.summaries
        if not (is_alone and _take_only_step(group, attempt)):
            attempt.tried = edited
            attempt.stored = group.write(edited, attempt.version, keep=change.note_unknown)
    except BaseException as error:
        if attempt.tried is not None and not isinstance(error, Exception):
            # Ctrl-C may have arrived right after the write.
            change.note_unknown()
        if change.outcome == "unknown":
            _leave_all(change)
            raise
        _unstage(group, attempt)
        overtaken = attempt.tried is not None and group.read()[1] != attempt.version
        if isinstance(error, ConflictError) and overtaken:
            return False
        raise
    change.outcome = "committed"
    return True


def _check_copied(group: GroupOnDisk, change: GroupChange) -> None:
    """Read the states of moved members; ConflictError if another writer has changed one since it was copied."""
    for path, state in change.moved.items():
        store = group.store_of(path)
        if inspect_place(store).state != state:
            raise ConflictError(f"{store.url} was changed by another writer before it was moved; move it again")


def _check_read(group: GroupOnDisk, change: GroupChange, paths: Iterable[str]) -> None:
    """Read the states of members that were only read; ConflictError if another writer has changed or deleted one."""
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
    """Rebase the draft of a member, write everything except its last step, and add the entry for that step to the log.

    What is written is forced to the disk. ConflictError: another writer has changed the same chunks, or the member is
    gone.
    """
    member = attempt.written[path]
    note = GroupCommit(change.identity, attempt.number, path) if change.marked else None
    if member.draft is None:
        attempt.log[path] = _entry_of_new(group, path, member, note)
        return
    draft, token = member.draft, os.urandom(8).hex()

    def put(pieces: Iterable[Buffer]) -> None:
        """Write pieces to a new file next to the member, and force it to the disk."""
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
            # The state of a frame by other software includes the time of its file, and staging has just appended to the
            # file.
            before = inspect_place(group.store_of(path)).state
    after = prepared.state.frame.fingerprint.hex()
    attempt.prepared[path] = prepared
    if prepared.is_patch:
        attempt.log[path] = Entry("patch", before, after, prepared.header)
    else:
        kind: Kind = "index" if draft.sparse else "frame"
        attempt.log[path] = Entry(kind, before, after, token)


def _entry_of_new(group: GroupOnDisk, path: str, member: MemberChange, note: GroupCommit | None) -> Entry:
    """Commit the `note`, if any, to the frame of a new member, in its place next to the path; return its entry.

    ConflictError: somebody has removed that frame.
    """
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
    """Force the frame of a new member, in its place next to the path, and the name of the frame to the disk."""
    group.store_of(staged_path(path, member.token, sparse=False)).force()
    group.store_of(path.rpartition("/")[0]).force()


def _stage_deletions(group: GroupOnDisk, change: GroupChange, attempt: _Attempt) -> None:
    """Read the states of deleted members, and add entries to the log, except where a new member has the same path."""
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
    """Return the manifest that the commit writes, with summaries of the new states."""
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
    # A program that makes a member usually changes it next, so a summary would soon be out of date.
    soon = set() if change.marked else {*change.names}
    records = {path: None if path in soon else _describe(attempt, path) for path in after.log}
    gone = [path for path, entry in after.log.items() if entry.kind == "delete"]
    return after.with_summaries(records, gone, members())


def _describe(attempt: _Attempt, path: str) -> Record | None:
    """Return the summary of a member's new state; None if this commit does not write the member."""
    prepared, member = attempt.prepared.get(path), attempt.written.get(path)
    if prepared is not None:
        return summary.pack(prepared.state, prepared.header)
    if member is None:  # its entry remains from an earlier commit, or deletes the member
        return None
    complete = member.handle.snapshot
    return summary.pack(complete.state, complete.header)


def _take_only_step(group: GroupOnDisk, attempt: _Attempt) -> bool:
    """Apply the only entry of an attempt, which is the commit; return False if that takes more than one step."""
    ((path, entry),) = attempt.log.items()
    if is_embedded(path):
        group.remove_embedded(path, entry)
        return True
    try:
        apply.apply_entry(group.store_of, path, entry, locked=path in attempt.locked, listed=False)
    except apply.SeveralStepsError:
        return False
    return True


def _unstage(group: GroupOnDisk, attempt: _Attempt) -> None:
    """Remove the staged files of an attempt; another attempt stages them again."""
    # `vacuum` removes the rest.
    with suppress(OSError, B2ArrayError):
        for path, entry in attempt.log.items():
            member = attempt.written.get(path)
            if entry.token and member is not None and member.draft is not None:
                discard(group.store_of(entry.aside(path)))


def _leave_all(change: GroupChange) -> None:
    """End the transactions of the members. It may wait for other threads that use the members.

    No file is removed, because the manifest may refer to it.
    """
    for member in change.members.values():
        if member.draft is not None:
            member.handle.leave(None)


# After the commit.


def _finish(
    group: GroupOnDisk,
    attempt: _Attempt,
    show: Callable[[Manifest], object],
) -> None:
    """Show the changes, apply the log, end the transactions of members, and remove the log from the manifest.

    Errors of the store are ignored, because the next writer completes failed steps.
    """
    after, applied = attempt.tried, Applied()
    show(after or attempt.before)
    # The commit has happened: the log shows it to readers, and the next writer completes failed steps.
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
    """Make the handles show the committed states, end their transactions, and clean up their drafts.

    A state that is not known is read from the store.
    """
    for path, member in attempt.written.items():
        state = None
        # If the state cannot be read now, the handle reads it at its next use.
        with suppress(OSError, B2ArrayError):
            state = _committed_state(attempt, applied, path) or group.current(path)
            group.remember(path, state)
        member.handle.leave(state)
        if member.draft is not None:
            member.draft.settle(attempt.prepared[path].state.frame)


def _committed_state(attempt: _Attempt, applied: Applied, path: str) -> Snapshot | None:
    """Return the state of a member whose header this process has written; None if the member must be read."""
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
    """Remove the log from the manifest that the commit has written, and return the manifest; entries in `left` stay."""
    cleared = replace(after, log=left)
    group.write(cleared, version)
    return cleared


def _missing_member(store: Store) -> ConflictError:
    """Return the error for a transaction that cannot find a member to change."""
    return ConflictError(f"{store.url} was deleted or moved since it was opened")
