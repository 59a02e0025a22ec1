"""`commit_group`: one commit of several members of a group, in any kind of storage.

The route is the same everywhere. The writer first completes what takes long. Then it takes what excludes other writers,
reads the manifest, and checks that the changes fit on top of it. It stages the new states where no reader of the group
looks, and writes the manifest once: that write is the commit. From then on, readers of the group see all changes. At
the end, the writer publishes them: it gives each member its new state in its usual place, for readers that do not know
the group.

What the kinds of storage do differently is a `Medium`: `b2array.commit.on_disk` and `b2array.commit.in_bucket`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from typing import Protocol, TypeAlias

from b2array.catalog.known_manifests import another_group
from b2array.catalog.ledgers import MemberState, state_in
from b2array.catalog.manifest import EMBEDDED, MANIFEST, Manifest, PendingStep, RetiredFrame, Row
from b2array.catalog.names_of_members import Members, check_new
from b2array.commit.changes import Keep
from b2array.commit.draft import Draft
from b2array.commit.snapshot_changes import SnapshotChanges, pack_ledger_after, retired_after_commit
from b2array.errors import ConflictError
from b2array.format import summary
from b2array.format.annotations import GroupCommit
from b2array.format.state import State
from b2array.format.summary import Record
from b2array.frame.revision import Revision
from b2array.store.base import Store, Version, attempts, too_many_conflicts

__all__ = [
    "Attempt",
    "Committed",
    "GroupChange",
    "Locks",
    "Medium",
    "MemberChange",
    "Overtaken",
    "PresentMembers",
    "StagedCommit",
    "commit_group",
]

_MOST_DESCRIBED = 1000
"""In a larger local group only `Group.consolidate` writes summaries."""


# The changes.


@dataclass(slots=True)
class MemberChange:
    """The change or creation of one member by a transaction.

    Parameters
    ----------
    name : str
        The name of the member.
    draft : Draft
        The changes that wait for the commit. The draft of a new member has no base.
    token : str
        On a local disk, a new member first waits next to its path, in a place that this token names.
    opened : str
        The generation of an existing member when the transaction opened it.
    earlier : sequence of Keep
        In an object store, for a copy from another group: the earlier states that snapshots of the group name.
    made : Revision, optional
        The frame of a new member that waits in that place.
    """

    name: str
    draft: Draft
    token: str = ""
    opened: str = ""
    earlier: Sequence[Keep] = ()
    made: Revision | None = None

    @property
    def is_new(self) -> bool:
        """Whether the transaction makes the member."""
        return self.draft.base is None


@dataclass(slots=True)
class GroupChange:
    """The changes of a transaction of a group. Keys are paths of members unless stated otherwise.

    Parameters
    ----------
    url : str
        The URL of the group, for messages.
    begun : Manifest
        The manifest on which the transaction builds.
    version : Version, optional
        The version of that manifest.
    listed : Members
        The members that the transaction began with.
    identity : str
        The identity of the group, or the one that it gets with its first commit.
    explicit : bool
        Whether the user reads and writes through the transaction. Then the commit is refused if another writer has
        changed a member that the transaction has only read. Other transactions serve a single call such as
        ``group["x"] = 1``.
    members : dict of str to MemberChange
        The members that the transaction makes or may change.
    removed : dict of str to str
        The paths of deleted members, by name. A new member may have the same name.
    read : dict of str to str
        The generations of members when the transaction opened them to read or change them.
    moved : dict of str to str
        The generations of moved members, which were copied to a new name and will be deleted.
    unadopted : dict of str to Revision
        In an object store, the states of members that do not note their group yet: the commit adopts them.
    unlisted : dict of str to int
        In an object store, the first numbers that were never given to a chunk, for paths at which only snapshots have
        chunks.
    snapshots : SnapshotChanges
        The snapshots to make, drop and copy.
    written : mapping of str to MemberChange
        The members that the commit writes, in the order of their paths: new ones, and changed ones. `note_written`
        notes them after the last change.
    new : mapping of str to str
        The names of the new ones among them, by path.
    committed : Manifest, optional
        The manifest after the commit, once the commit has happened.
    is_unknown : bool
        Whether nobody knows if the commit has happened: then no file is removed, as the manifest may refer to it.
    """

    url: str
    begun: Manifest
    version: Version | None
    listed: Members
    identity: str
    explicit: bool
    snapshots: SnapshotChanges
    members: dict[str, MemberChange] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    unadopted: dict[str, Revision] = field(default_factory=dict)
    unlisted: dict[str, int] = field(default_factory=dict)
    written: Mapping[str, MemberChange] = field(default_factory=dict)
    new: Mapping[str, str] = field(default_factory=dict)
    committed: Manifest | None = None
    is_unknown: bool = False

    def note_unknown(self) -> None:
        """Note that nobody knows if the commit has happened, so that its files stay: the manifest may refer to them."""
        self.is_unknown = True

    def note_written(self) -> None:
        """Note which members the commit writes, and which of them are new: set `written` and `new`."""
        members = sorted(self.members.items())
        self.written = {path: member for path, member in members if member.draft.changed}
        self.new = {path: member.name for path, member in members if member.draft.base is None}

    def new_names(self) -> set[str]:
        """Return the names of new members, except names that the transaction has freed by deleting a member."""
        return {*self.new.values()} - self.removed.keys()

    def must_be_unchanged(self) -> set[str]:
        """Return the paths of members that no other writer may have changed, although the commit does not write them.

        In an explicit transaction, these are the members that it has read. In any transaction, they are the members
        that were copied to another name and will be deleted.
        """
        changed = self.written.keys() - self.new.keys()
        read = {*self.read} if self.explicit else set[str]()
        return (read | {*self.moved}) - changed

    def require_fit(self, before: Manifest, facts: PresentMembers) -> None:
        """Raise ConflictError if the changes do not fit on top of the commits of other writers.

        Parameters
        ----------
        before : Manifest
            The manifest before the commit.
        facts : PresentMembers
            What the medium has read to answer this.
        """
        if self.begun.identity and before.identity != self.begun.identity:
            raise another_group(self.url)
        # What was copied for snapshots notes the group by its identity.
        is_other = before.identity not in ("", self.identity)
        if is_other and (self.snapshots.new or self.snapshots.copies):
            raise ConflictError(f"{self.url}: another writer has made the first commit meanwhile")
        self._require_unchanged(facts)
        self.snapshots.require_fit(before)
        self._require_names_free(facts.near)
        if facts.members is not None and {**facts.members} != {**self.listed}:
            # A snapshot would have members that its user has never seen, and they would survive `restore`.
            names = sorted({*facts.members.items()} ^ {*self.listed.items()})
            raise ConflictError(
                f"{self.url}: another writer has made or deleted {names[0][0]!r} since the transaction began"
            )

    def _require_unchanged(self, facts: PresentMembers) -> None:
        """Raise ConflictError if another writer has changed or deleted a member that was only read or copied."""
        for path in sorted(self.must_be_unchanged()):
            copied = self.moved.get(path)
            state = self.read[path] if copied is None else copied
            if facts.states.get(path) == state:
                continue
            url = f"{self.url}/{path}"
            if copied is None:
                raise ConflictError(f"{url} was changed by another writer since the transaction has read it")
            raise ConflictError(f"{url} was changed by another writer before it was moved; move it again")

    def _require_names_free(self, near: Members) -> None:
        """Raise ConflictError if another writer has made a member with a new name, or with a name that excludes it."""
        if not self.new:
            return
        names = self.new_names()
        if clash := sorted(name for name in names if name in near):
            raise ConflictError(f"{self.url}: another writer has made {clash} as well")
        for name in sorted(names):
            try:
                check_new(name, near, self.url)
            except (FileExistsError, ValueError) as error:
                raise ConflictError(f"another writer was faster: {error}") from None

    def manifest_after(self, before: Manifest, staged: StagedCommit) -> tuple[Manifest, dict[str, bytes]]:
        """Return the manifest that the commit writes on top of `before`, and the objects that it refers to, by name.

        The objects are lists of the members in a snapshot that are too long for the manifest. ConflictError: another
        writer has made a snapshot with the name of a new one.
        """
        after = replace(before, number=before.number + 1, identity=before.identity or self.identity)
        if before.rows is None:
            after = replace(after, pending=dict(staged.pending))
        else:
            after = self._with_rows(after, staged)
        after = self._with_summaries(after, staged)
        states = staged.snapshot
        rows = after.rows
        if rows is not None:
            # A token, by which the writer recognizes its commit below the commits of others.
            after = after.with_commit(os.urandom(8).hex())
            states = {name: state_in(row) for name, row in rows.items()}
        if not (self.snapshots or staged.retired):
            return after, {}
        kept, lists = pack_ledger_after(self.snapshots, before, states)
        retired = retired_after_commit(before.retired, self.snapshots.removed, staged.retired)
        return replace(after, kept=kept, retired=retired), lists

    def _with_rows(self, after: Manifest, staged: StagedCommit) -> Manifest:
        """Return a manifest with the rows of the new revisions, and without the rows of deleted members.

        Its `gone` gets the chunk numbers of deleted members, and of paths at which only snapshots have chunks.
        """
        rows = dict(after.rows or {})
        gone = dict(after.gone)
        for name in self.removed:
            row = rows.pop(name, None)
            if row is not None:
                # Another process may still be deleting chunks here, so a later member must not reuse their numbers.
                gone[row.path] = max(row.next, gone.get(row.path, 0))
        rows |= staged.rows
        paths = {row.path for row in rows.values()}
        gone |= {path: number for path, number in self.unlisted.items() if path not in paths}
        for row in staged.rows.values():
            gone.pop(row.path, None)
        return replace(after, rows=dict(sorted(rows.items())), gone=gone)

    def _with_summaries(self, after: Manifest, staged: StagedCommit) -> Manifest:
        """Return a manifest with summaries of the new states, and without summaries of deleted members.

        In a local group without summaries, it gets some only if the transaction is explicit and the group is small.
        """
        if after.rows is not None:
            records: dict[str, Record | None] = {
                path: summary.pack(state, header) for path, (state, header) in staged.states.items()
            }
            removed = {path for path in self.removed.values() if path not in staged.states}
            return after.with_summaries(records, removed, members=after.members)
        # Summaries of very many members would make each commit in a local group slow.
        count = len(self.listed) + len(self.new) - len(self.removed)
        if not (after.summaries or (self.explicit and count <= _MOST_DESCRIBED)):
            return after
        # A program that makes a member usually changes it next, so a summary would soon be out of date.
        soon: Mapping[str, str] = {} if self.explicit else self.new
        records = dict.fromkeys([path for path in after.pending if path != EMBEDDED])
        for path, (state, header) in staged.states.items():
            if path not in soon and path != EMBEDDED:
                records[path] = summary.pack(state, header)
        removed = {path for path, step in after.pending.items() if step.kind == "delete"}
        return after.with_summaries(records, removed, self.listed_after())

    def listed_after(self) -> Members:
        """Return the members after the commit, given the list that the transaction began with."""
        members = self.listed.copy()
        self.apply_to(members)
        return members

    def apply_to(self, members: Members) -> None:
        """Remove the deleted members from a list of the group's members, and add the new ones, in place."""
        for name in self.removed:
            members.remove(name)
        for path, name in self.new.items():
            members.add(name, path)

    def next_note(self, path: str) -> GroupCommit:
        """Return the note for the member at a path, if this is the first commit since the transaction began."""
        return GroupCommit(self.identity, self.begun.number + 1, path)


# The commit.

Locks: TypeAlias = list[AbstractContextManager[object]]
"""Locks of members that an attempt holds."""


@dataclass(frozen=True, slots=True)
class PresentMembers:
    """What a medium reads before a commit, so that `GroupChange.require_fit` can check the changes.

    Parameters
    ----------
    states : mapping of str to str
        The present generations of the members that `GroupChange.must_be_unchanged` returns, by path.
    near : Members
        The members that have the names of new members, or are around or below them: a new name must not be there.
    members : mapping of str to str, optional
        The present members, for a new snapshot and for `restore`.
    """

    states: Mapping[str, str]
    near: Members
    members: Mapping[str, str] | None = None


@dataclass(slots=True)
class StagedCommit:
    """What a commit has written where no reader of the group looks.

    Parameters
    ----------
    states : dict of str to (State, bytes)
        The new states of members and their headers, by path.
    rows : dict of str to Row
        In an object store, the rows of new revisions, by the names of members.
    pending : dict of str to PendingStep
        On a local disk, the steps that give members their new states, by path; also steps of earlier commits that
        cannot be taken now.
    snapshot : mapping of str to MemberState
        On a local disk, the states of the members in a new snapshot, by name.
    retired : list of RetiredFrame
        Frames with states of deleted members that snapshots need.
    """

    states: dict[str, tuple[State, bytes]] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    pending: dict[str, PendingStep] = field(default_factory=dict)
    snapshot: Mapping[str, MemberState] = field(default_factory=dict)
    retired: list[RetiredFrame] = field(default_factory=list)


@dataclass(slots=True)
class Attempt:
    """One attempt at a commit of a group, which another attempt follows if another writer is faster.

    Parameters
    ----------
    before : Manifest
        The manifest before the commit.
    version : Version, optional
        The version of that manifest.
    facts : PresentMembers
        What was read for the checks.
    locks : Locks
        The locks of members that the attempt holds, besides the lock of the manifest.
    staged : StagedCommit
        What was written for the commit; `Medium.stage` fills it.
    """

    before: Manifest
    version: Version | None
    facts: PresentMembers
    locks: Locks
    staged: StagedCommit = field(default_factory=StagedCommit)


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit.

    Parameters
    ----------
    manifest : Manifest
        The manifest to show: with this commit, and perhaps with later ones.
    version : Version, optional
        The version of the manifest, if it is known.
    states : mapping of str to Revision
        The new states of members, by path, as far as they are known.
    """

    manifest: Manifest
    version: Version | None = None
    states: Mapping[str, Revision] = field(default_factory=dict)


class Overtaken(Exception):  # noqa: N818 - no error: the next attempt follows
    """Another writer was faster; the commit is tried again on top of that writer's commit."""


class Medium(Protocol):
    """What a commit of a group does differently in each kind of storage. An object serves one commit."""

    @property
    def store(self) -> Store:
        """The store of the group."""

    def complete(self, change: GroupChange) -> None:
        """Do what takes long and needs no lock: encode open chunks; on a local disk, write new members as well.

        ConflictError: a member to change is gone. RuntimeError: this thread holds the lock of a member on a disk.
        """

    def begin_attempt(self, change: GroupChange, locks: Locks) -> Attempt:
        """Begin an attempt: read the manifest, and read what `GroupChange.require_fit` needs.

        On a local disk, first take the pending steps of earlier commits, and lock the members; append the locks to
        `locks`, which the caller releases. In an object store, first write a manifest with rows if the group lacks one.
        Overtaken: another writer has just written one. ConflictError: the group, or a member to change, is gone.
        """

    def stage(self, change: GroupChange, attempt: Attempt) -> None:
        """Adopt the members that the change names; write their next states where no reader of the group looks.

        This enters the new states in `attempt.staged`. ConflictError: another writer has changed the same chunks, or a
        member is gone. FileExistsError: a frame that is not a member occupies the place of a new member.
        """

    def unstage(self, attempt: Attempt) -> None:
        """Remove what `stage` has written, as far as possible, because the attempt has failed."""

    def forget(self, path: str, member: MemberChange) -> None:
        """Remove the files in which the new member at a path waits, as far as possible, because it was given up."""

    def discard(self, change: GroupChange) -> None:
        """Remove what `complete` has written for snapshots, as far as possible, because the commit was given up."""

    def write(self, change: GroupChange, attempt: Attempt, after: Manifest, objects: Mapping[str, bytes]) -> None:
        """Commit: write the `objects` that the manifest `after` names, and then the manifest; set `change.committed`.

        Overtaken: another writer was faster.
        """

    def publish(self, change: GroupChange, attempt: Attempt) -> Committed:
        """Give each member its new state in its usual place, and return the result of the commit.

        This also removes what only deleted members or dropped snapshots needed. It ignores errors of the store: the
        commit stands.
        """


def commit_group(medium: Medium, change: GroupChange) -> Committed:
    """Commit the changes of a transaction: all of them become visible at once, or none.

    If another writer was faster, this tries again on top of that writer's commit. Once the commit has happened,
    `change.committed` has the manifest, even if an error follows.

    Raises
    ------
    ConflictError
        Another writer has changed a member, a name or a snapshot on which these changes depend, or too many other
        writers were faster.
    FileExistsError
        A frame that is not a member of the group occupies the place of a new member.
    RuntimeError
        On a local disk, this thread holds the lock of a member.
    """
    medium.complete(change)
    for _ in attempts(medium.store):
        locks: Locks = []
        # One call of C code, which Ctrl-C does not interrupt. A lock left behind would make this process wait.
        exits = map(methodcaller("__exit__", None, None, None), locks)
        unlock: Callable[[], object] = partial(deque, exits, 0)
        with medium.store.lock(MANIFEST):
            try:
                return _try_commit(medium, change, locks)
            except Overtaken:
                continue
            finally:
                unlock()
    raise too_many_conflicts(medium.store)


def _try_commit(medium: Medium, change: GroupChange, locks: Locks) -> Committed:
    """Try once to commit, and publish the members; Overtaken: try again on top of another writer's commit.

    The caller holds the lock of the manifest, if there is one, and releases the locks that this adds to `locks`.
    """
    attempt = medium.begin_attempt(change, locks)
    change.require_fit(attempt.before, attempt.facts)
    # The first commit of another writer may have given the group its identity meanwhile.
    change.identity = attempt.before.identity or change.identity
    try:
        medium.stage(change, attempt)
        after, objects = change.manifest_after(attempt.before, attempt.staged)
        medium.write(change, attempt, after, objects)
    except BaseException:
        if change.committed is None and not change.is_unknown:
            medium.unstage(attempt)
        raise
    # Before the locks are free: another writer could change a member, and this writer would then undo that change.
    return medium.publish(change, attempt)
