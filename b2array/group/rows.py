"""The transaction of a group in an object store: it collects changes of several members for one commit.

At the end `b2array.commit.many.commit_rows` writes a revision of each member that has changed, and then the manifest.
That write is the commit. A snapshot of the group is a copy of the manifest's rows, and touches no member.

An aborted transaction deletes nothing, because its requests may still be under way, and a chunk never gets a name that
another chunk had. `b2array.vacuum` removes the objects of the transaction.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from b2array.array.drafts import FreePlace
from b2array.commit.draft import Draft
from b2array.commit.fork import make_fork_point
from b2array.commit.fork_point import ForkPoint
from b2array.commit.handle import Handle, Mode
from b2array.commit.many import commit_rows, map_concurrently
from b2array.commit.outcomes import create_under_own_name
from b2array.frame.listing import MemberState
from b2array.frame.manifest import ARRAY, OTHER, Manifest, is_embedded
from b2array.group.fork import NOTHING, open_draft
from b2array.group.listed import ListedGroup, name_of
from b2array.group.local import NewFrame
from b2array.group.members import Members
from b2array.group.row_change import (
    RowChange,
    RowMember,
    StateRead,
    first_number,
    note_moved,
    require_same_members,
    require_unchanged_reads,
)
from b2array.group.snapshot_changes import SnapshotChanges
from b2array.group.transaction import Transaction, next_note, open_new, require_names_free
from b2array.store.base import Head

__all__ = ["RowTransaction", "free_place"]


class RowTransaction(Transaction):
    """Changes to members of a group in an object store that wait for `commit`.

    The commit of a `marked` transaction is refused if another writer has changed a member that the transaction has only
    read.
    """

    view: ListedGroup
    change: RowChange
    _group: ListedGroup

    def __init__(self, group: ListedGroup, *, marked: bool = True) -> None:
        """Begin a transaction on the members that the group shows, and make the group show the same manifest.

        This reads the manifest if it was not read yet.
        """
        # Pinned, because commits through other handles must not change the states on which the transaction builds.
        group.confirm()
        group.require_same()
        view = group.copy(pinned=True)
        group.show(*view.versioned_manifest())
        identity = view.manifest.identity or os.urandom(8).hex()
        super().__init__(group, view, RowChange(identity, marked))

    def _prepare_forks(self, paths: Sequence[str]) -> Iterable[ForkPoint]:
        """Prepare members for forks, several at a time, and return the point from which each fork starts.

        This begins drafts of the members, and encodes their open chunks.
        """
        return map_concurrently(lambda path: make_fork_point(open_draft(self, path)), paths)

    def note_read(self, path: str) -> None:
        """Note that a member was read, so that the commit is refused if another writer changes it first.

        Only the first reading counts. New members are not noted, and an unmarked transaction notes nothing. If the
        manifest lists no revision of the member, this opens it for writing, to note its present state.
        """
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
        """Open a member without noting that it was read.

        Opening for writing begins a draft, with which the member joins the transaction. Embedded members are opened
        read-only. ConflictError says that the transaction has ended.
        """
        self._require_open()
        member = self.change.members.get(path)
        if member is not None:
            return member.handle
        handle = self.view.open(path, mode)  # without the mutex, so that threads wait for their requests together
        if mode == "r" or is_embedded(path):  # embedded members can only be read
            return handle
        with self._mutex.held:
            member = self.change.members.get(path)
            if member is not None:  # another thread was faster
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
        """Begin a new member at a free place; return its path, and a handle with its draft.

        The path may have the other suffix; see `_begin_new`. The commit writes the states that snapshots of the group
        need as revisions, so they leave the member's own ledger.
        """
        path, draft = _begin_new(self, name, suffix, new)
        # Snapshots of a group in an object store name revisions. A member's ledger has only snapshots of the member.
        group, keeps = self.change.identity.encode(), draft.delta.keeps
        earlier = [keep for keep in keeps if keep.entry.group == group]
        draft.delta.keeps = tuple(keep for keep in keeps if keep.entry.group != group)
        handle = open_new(draft)
        self.change.members[path] = RowMember(name, handle, draft, earlier)
        return path, handle

    def remove(
        self,
        members: Mapping[str, str],
        states: Mapping[str, str] = NOTHING,
    ) -> None:
        """Delete members in the commit, given as paths by name; give up changes to them at once.

        `states` are the generations of members that were copied, by path. Raises ConflictError if another writer has
        changed one of them already; if a writer does so later, the commit is refused. Raises ValueError for a member of
        an inner group.
        """
        self._require_open()
        change = self.change
        for name, path in members.items():
            member = change.members.pop(path, None)
            if member is not None:
                member.discard()
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
        """Give up the changes to all members. Their objects in the store remain for `vacuum`."""
        for member in self.change.members.values():
            member.discard()

    def _commit(self) -> list[Draft]:
        """Commit the changed members, deletions and snapshots; give up drafts without changes. Return the other drafts.

        New snapshots first adopt members without a revision. Without any change, nothing is written.
        """
        _adopt_for_snapshots(self)
        change = self.change
        written = change.written()
        if written or change.removed or self._snapshots:
            self._commit_rows(written)
        self._ended = True
        for path in change.members.keys() - written.keys():
            change.members[path].discard()
        return [member.draft for member in written.values()]

    def _commit_rows(self, written: Mapping[str, RowMember]) -> None:
        """Commit the written members, deletions and snapshots, and show the result in both handles of the group.

        After the commit, the handles of members show their new states, and files that no index names are removed.
        """
        change, view = self.change, self.view
        drafts = {member.name: member.draft for member in written.values()}
        paths = {member.name: path for path, member in written.items() if member.is_new}
        unadopted = {}
        for name, state in change.read.items():
            if state.unadopted is not None and (name not in drafts or name in change.removed):
                unadopted[name] = state.unadopted
        committed = commit_rows(
            view.catalog,
            drafts,
            paths=paths,
            removed=change.removed.keys(),
            identity=change.identity,
            unadopted=unadopted,
            require=partial(_require_fit, self, drafts.keys()),
            edit=partial(_write_snapshots, self._snapshots, view, change.unlisted),
            start=view.versioned_manifest(),
        )
        self._ended = True  # an error from now on must not abort the committed changes
        for member in written.values():
            member.handle.leave(committed.snapshots[member.name])
            # The revisions of copied snapshots refer to chunks of earlier states, so keep the files of these chunks.
            delta = member.draft.delta
            delta.keeps = (*delta.keeps, *member.earlier)
        frames = {name: snapshot.frame for name, snapshot in committed.snapshots.items()}
        map_concurrently(lambda name: drafts[name].settle(frames[name]), drafts)
        latest = view.catalog.last_seen()
        view.show(*latest)
        self._group.show(*latest)


def _require_fit(changes: RowTransaction, written: AbstractSet[str], manifest: Manifest) -> None:
    """Raise ConflictError if the changes do not fit on top of other writers' commits."""
    change, view = changes.change, changes.view
    changes.snapshots.require_fit(manifest)
    rows = manifest.rows or {}
    require_unchanged_reads(change, view, rows, written - change.removed.keys())
    if change.marked and changes.snapshots.new:
        require_same_members(view, manifest)
    names = change.new_names()
    if names:
        remaining = rows.keys() - change.removed.keys()
        paths = {name: rows[name].path for name in remaining}
        require_names_free(view.url, names, Members(paths))


# New members.


def _begin_new(
    changes: RowTransaction,
    name: str,
    suffix: str,
    new: NewFrame,
) -> tuple[str, Draft]:
    """Begin a new member; return its path and its draft.

    In memory, an object excludes objects below its name. A sparse member that replaces a contiguous one therefore gets
    a path with the other suffix.
    """
    path = name + suffix
    other = name + (OTHER if suffix == ARRAY else ARRAY)
    place = free_place(changes, path)
    if changes.view.store.in_process:
        (head,) = place.store.head([""], 1)
        if isinstance(head, Head):
            place = replace(place, sparse=free_place(changes, other))
    draft = new(place, overwrite=False)
    is_there = draft.destination.place is place.store
    return (path if is_there else other), draft


def free_place(changes: RowTransaction, path: str) -> FreePlace:
    """Return the place for a new member at a path that no row has, with the first number for its chunks."""
    first = first_number(changes.change, changes.view, path)
    return FreePlace(changes.view.store_of(path), first)


# Snapshots.


def _adopt_for_snapshots(changes: RowTransaction) -> None:
    """If there is a new snapshot, change members without a revision, so that the snapshot can name one.

    This opens these members for writing, counts them as read, and adds a note of the commit to their drafts.
    """
    if not changes.snapshots.new:
        return
    for name, row in changes.view.rows.items():
        path = row.path
        if row.revision or name in changes.change.removed or is_embedded(path):
            continue
        changes.open(path, "r+")
        draft = open_draft(changes, path)
        draft.annotate(group_commit=next_note(changes, path))


def _write_snapshots(
    snapshots: SnapshotChanges, view: ListedGroup, unlisted: Mapping[str, int], after: Manifest
) -> Manifest:
    """Write the lists of new snapshots, and return the manifest with the ledger that the commit leaves.

    Long lists become objects in the store. Without changes to snapshots, this returns `after` itself. `unlisted` are
    the first free numbers of chunks at paths where only snapshots have chunks; the manifest notes them. Raises
    ConflictError if another writer has made a snapshot of the same name.
    """
    if not snapshots:
        return after
    rows = after.rows or {}
    paths = {row.path for row in rows.values()}
    reserved = {path: number for path, number in unlisted.items() if path not in paths}
    states = {}
    for name, row in rows.items():
        revision = bytes.fromhex(row.revision)
        states[name] = MemberState(row.path, revision, row.sparse)
    put = partial(create_under_own_name, view.store)
    kept = snapshots.write_lists(after, states, put)
    return replace(after, gone={**after.gone, **reserved}, kept=kept)
