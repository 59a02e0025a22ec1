"""Several members of a group in an object store changed in one commit.

The transaction collects changes: drafts of members, new members, deletions, snapshots. At the end
`b2array.commit.many.commit_rows` prepares a revision for each member that changed, and writes the manifest once. That
write is the commit. A snapshot of the group is a copy of the rows of the manifest, and touches no member.

A transaction that is given up deletes nothing: a request of it may still be under way, and chunks never get a name that
another one had. `b2array.vacuum` removes what it has put.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from b2array.array.drafts import FreePlace
from b2array.commit.draft import Draft
from b2array.commit.fork import make_fork_point
from b2array.commit.fork_point import ForkPoint
from b2array.commit.handle import Handle, Mode
from b2array.commit.many import commit_rows, map_concurrently
from b2array.errors import ConflictError
from b2array.frame.listing import MemberState
from b2array.frame.manifest import ARRAY, OTHER, Manifest, is_embedded
from b2array.group.fork import draft_of
from b2array.group.listed import ListedGroup, name_of
from b2array.group.local import NewFrame
from b2array.group.members import Members
from b2array.group.row_change import (
    RowChange,
    RowMember,
    StateRead,
    first_number,
    note_moved,
    require_reads_fit,
    require_same_members,
)
from b2array.group.snapshot_changes import SnapshotChanges
from b2array.group.transaction import Transaction, handle_new, next_note, require_names_free
from b2array.store.base import Head, create_under_own_name

__all__ = ["RowTransaction", "free_place"]


class RowTransaction(Transaction):
    """Changes to members of a group in an object store that wait for `commit`.

    A `marked` transaction begins with the manifest of now, and ends with ConflictError if another writer has changed a
    member that it has only read.
    """

    view: ListedGroup
    change: RowChange
    _group: ListedGroup

    def __init__(self, group: ListedGroup, *, marked: bool = True) -> None:
        if marked:
            group.refresh()
        # Pinned: a commit through another handle of the group must not change what the transaction builds on.
        view = group.copy(pinned=True)
        group.show(*view.versioned_manifest())
        identity = view.manifest.identity or os.urandom(8).hex()
        super().__init__(group, view, RowChange(identity, marked))

    def _prepare_forks(self, paths: Sequence[str]) -> Iterable[ForkPoint]:
        return map_concurrently(lambda path: make_fork_point(draft_of(self, path)), paths)

    def note_read(self, path: str) -> None:
        """Note that a member was read here: the commit is refused if it has another state by then."""
        change, name = self.change, name_of(path)
        row = self.view.rows.get(name)
        if row is None or row.path != path or name in change.read or not change.marked:
            return
        member = change.members.get(path)
        if member is not None and member.is_new:
            return
        unadopted = None
        if not row.revision and not is_embedded(path):
            unadopted = self.open_unnoted(path, "r+").snapshot
        change.read[name] = StateRead(row.revision, unadopted)

    def open_unnoted(self, path: str, mode: Mode) -> Handle:
        """Open a member, which does not count as read."""
        self._require_open()
        member = self.change.members.get(path)
        if member is not None:
            return member.handle
        handle = self.view.open(path, mode)  # outside of the mutex: several threads may wait here
        if mode == "r" or is_embedded(path):
            return handle
        with self._mutex.held:
            member = self.change.members.get(path)
            if member is not None:
                return member.handle
            draft = handle.begin()
            handle.enter(draft)
            self.change.members[path] = RowMember(name_of(path), handle, draft)
            return handle

    def _stage_new(
        self,
        name: str,
        suffix: str,
        new: NewFrame,
        *,
        overwrite: bool,  # noqa: ARG002
    ) -> tuple[str, Handle]:
        path, draft = _begin_new(self, name, suffix, new)
        # States that snapshots of the group name are revisions, and do not stand in the member's own ledger.
        group, keeps = self.change.identity.encode(), draft.delta.keeps
        earlier = [keep for keep in keeps if keep.entry.group == group]
        draft.delta.keeps = tuple(keep for keep in keeps if keep.entry.group != group)
        handle = handle_new(draft)
        self.change.members[path] = RowMember(name, handle, draft, earlier)
        return path, handle

    def remove(self, members: Mapping[str, str], states: Mapping[str, str] = MappingProxyType({})) -> None:
        """Let the commit delete members; forget new ones at once.

        `states` has the copied ones, by path. If another writer changes such a member, the commit is refused.
        """
        self._require_open()
        change = self.change
        for name, path in members.items():
            member = change.members.pop(path, None)
            if member is not None:
                member.leave()
            if member is None or not member.is_new:
                row = self.view.rows.get(name)
                if row is None:
                    raise ValueError(f"{self.url}/{path} belongs to a separate group inside this one: delete it there")
                change.removed[name] = row
                if path in states:
                    note_moved(change, self.view, path, states[path])
        self._update_members(removed=members)

    # The end.

    def _discard(self) -> None:
        for member in self.change.members.values():
            member.leave()

    def _commit(self) -> list[Draft]:
        _adopt_for_snapshots(self)
        change = self.change
        written = change.written()
        if written or change.removed or self._snapshots:
            self._commit_rows(written)
        self._ended = True
        for path in change.members.keys() - written.keys():
            change.members[path].leave()
        return [member.draft for member in written.values()]

    def _commit_rows(self, written: Mapping[str, RowMember]) -> None:
        change, view = self.change, self.view
        drafts = {member.name: member.draft for member in written.values()}
        committed = commit_rows(
            view.catalog,
            drafts,
            paths={member.name: path for path, member in written.items() if member.is_new},
            removed=[*change.removed],
            identity=change.identity,
            unadopted={
                name: state.unadopted
                for name, state in change.read.items()
                if state.unadopted is not None and name not in drafts
            },
            require=partial(_require_fit, self, drafts),
            edit=partial(_list_snapshots, self._snapshots, view, change.unlisted),
            start=view.versioned_manifest(),
        )
        self._ended = True  # whatever happens now, there is nothing to abort
        for member in written.values():
            member.handle.leave(committed.snapshots[member.name])
            # Revisions of snapshots refer to the chunks of earlier states, so that these stay with the member's.
            member.draft.delta.keeps = (*member.draft.delta.keeps, *member.earlier)
        map_concurrently(lambda name: drafts[name].settle(committed.snapshots[name].frame), drafts)
        seen = view.catalog.last_seen()
        view.show(*seen)
        self._group.show(*seen)


def _require_fit(changes: RowTransaction, written: Collection[str], manifest: Manifest) -> None:
    """Raise ConflictError if the changes do not fit on top of other writers' commits."""
    change, view = changes.change, changes.view
    if manifest.identity != change.identity and view.manifest.identity:
        raise ConflictError(f"{view.url}: another group was made in the place of this one; open it again")
    changes.snapshots.require_fit(manifest)
    rows = manifest.rows or {}
    require_reads_fit(change, view, rows, written)
    if change.marked and changes.snapshots.new:
        require_same_members(view, manifest)
    names = change.new_names()
    if names:
        remaining = {name: row.path for name, row in rows.items() if name not in change.removed}
        require_names_free(view.url, names, Members(remaining))


# New members.


def _begin_new(changes: RowTransaction, name: str, suffix: str, new: NewFrame) -> tuple[str, Draft]:
    """Begin a new member; return its path and its draft.

    In memory, no object can be below the name of another one. There a sparse member that replaces a contiguous one gets
    the other ending.
    """
    path, other = name + suffix, name + (OTHER if suffix == ARRAY else ARRAY)
    place = free_place(changes, path)
    if changes.view.store.in_process and isinstance(place.store.head([""], 1)[0], Head):
        place = replace(place, sparse=free_place(changes, other))
    draft = new(place, overwrite=False)
    return (path if draft.destination.place is place.store else other), draft


def free_place(changes: RowTransaction, path: str) -> FreePlace:
    """Return the place of a new member: the rows say that it is free."""
    return FreePlace(changes.view.store_of(path), first_number(changes.change, changes.view, path))


# Snapshots.


def _adopt_for_snapshots(changes: RowTransaction) -> None:
    """Change members whose state has no revision yet: a snapshot names revisions."""
    if not changes.snapshots.new:
        return
    for name, row in changes.view.rows.items():
        if not row.revision and name not in changes.change.removed and not is_embedded(row.path):
            changes.open(row.path, "r+")
            draft_of(changes, row.path).annotate(group_commit=next_note(changes, row.path))


def _list_snapshots(
    snapshots: SnapshotChanges, view: ListedGroup, unlisted: Mapping[str, int], after: Manifest
) -> Manifest:
    """Return the manifest with the ledger of snapshots that the commit leaves.

    `unlisted` has the numbers after those of chunks that only snapshots have, by the paths of members.
    """
    if not snapshots:
        return after
    paths = {*(after.members or {}).values()}
    gone = dict(after.gone)
    gone |= {path: number for path, number in unlisted.items() if path not in paths}
    states = {}
    for name, row in (after.rows or {}).items():
        states[name] = MemberState(row.path, bytes.fromhex(row.revision), row.sparse)
    put = partial(create_under_own_name, view.store)
    return replace(after, gone=gone, kept=snapshots.apply(after, states, put))
