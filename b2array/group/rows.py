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
from typing import Any

from b2array.array.drafts import FreePlace
from b2array.commit.changes import Keep
from b2array.commit.copied_states import states_to_copy
from b2array.commit.draft import Draft, warn_of_forgotten
from b2array.commit.edits import go_back
from b2array.commit.fork import make_fork_point
from b2array.commit.fork_point import ForkPoint
from b2array.commit.handle import Handle, Mode
from b2array.commit.many import commit_rows, map_concurrently, write_revision
from b2array.commit.prepare import copied
from b2array.errors import ConflictError
from b2array.format.annotations import GroupCommit
from b2array.format.header import FrameType
from b2array.format.kept import Kept, Ledger
from b2array.format.state import State as FrameState
from b2array.frame.listing import MemberState, group_ledger
from b2array.frame.manifest import ARRAY, OTHER, Manifest, Row, is_embedded
from b2array.frame.snapshot import Snapshot
from b2array.group.fork import Changes
from b2array.group.kept import Moment, moment
from b2array.group.listed import ListedGroup, name_of
from b2array.group.local import NewFrame, copy_of
from b2array.group.members import Members, check_new
from b2array.group.snapshot_changes import SnapshotChanges
from b2array.store.base import Head, create_under_own_name

__all__ = ["RowTransaction"]


class RowTransaction(Changes):
    """Changes to members of a group that wait for `commit`. They do not show what others commit meanwhile.

    `replacing` begins the names of members to delete first. A `marked` transaction begins with the manifest of now, and
    ends with ConflictError if another writer has changed a member that it has only read.
    """

    _view: ListedGroup

    def __init__(self, group: ListedGroup, replacing: str | None = None, *, marked: bool = True) -> None:
        if marked:
            group.refresh()
        view = group.copy(pinned=True)
        super().__init__(view)
        self._group = group
        self._start = view.seen()
        group.show(*self._start)
        self._marked = marked
        self._identity = view.manifest.identity or os.urandom(8).hex()
        self._shown = view.members() if not marked else view.members().copy()
        self._handles: dict[str, Handle] = {}  # of members that may change, by path
        self._drafts: dict[str, Draft] = {}  # the same; drafts of new members have no base
        self._new: dict[str, str] = {}  # names of new members, by path
        self._removed: dict[str, Row | None] = {}  # rows from before the transaction, by name
        self._read: dict[str, str] = {}  # revisions of members that were read or copied, by name
        self._unadopted: dict[str, Snapshot] = {}  # the states of those that have no revision yet
        self._snapshots = SnapshotChanges(self.url)
        self._restored: list[Kept] = []  # snapshots that members go back to
        self._earlier: dict[str, list[Keep]] = {}  # states of new members that these name, by path
        self._used: dict[str, int] = {}  # numbers that chunks of members got which are not listed, by path
        self._ended = False
        self._owner = os.getpid()
        if replacing is not None:
            self.remove({name: path for name, path in self.members().items() if name.startswith(replacing)})

    def __reduce__(self) -> tuple[Any, ...]:
        raise ValueError("a group with a transaction under way cannot be pickled")

    @property
    def identity(self) -> str:
        """Names the group."""
        return self._identity

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options for fsspec."""
        return self._view.storage_options

    def members(self) -> Members:
        """Return the path of each member by its name, as the transaction leaves them."""
        return self._shown

    def _require_open(self) -> None:
        if self._ended:
            raise ConflictError("expected a transaction under way, found that it has ended")
        if self._owner != os.getpid():
            raise ConflictError("expected a transaction of this process, found one of the process it was forked from")

    def _prepared(self, paths: Sequence[str]) -> Iterable[ForkPoint]:
        return map_concurrently(lambda path: make_fork_point(self._draft(path)), paths)

    # Changes.

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member; what you write to it is part of the commit.

        A member that is opened to be changed counts as read.
        """
        handle = self._peek(path, mode)
        if mode != "r":
            self.note_read(path)
        return handle

    def note_read(self, path: str) -> None:
        """Let the commit be refused if a member does not have the state any more that is shown here."""
        name = name_of(path)
        row = self._view.rows.get(name)
        if not self._marked or row is None or row.path != path or path in self._new or name in self._read:
            return
        self._read[name] = row.revision
        if not row.revision and not is_embedded(path):
            self._unadopted[name] = self._peek(path, "r+").snapshot

    def _peek(self, path: str, mode: Mode) -> Handle:
        self._require_open()
        known = self._handles.get(path)
        if known is not None:
            return known
        handle = self._view.open(path, mode)  # several threads may wait here
        if mode == "r" or is_embedded(path):
            return handle
        with self._mutex.held:
            known = self._handles.get(path)
            if known is not None:
                return known
            draft = handle.begin()
            handle.enter(draft)
            self._handles[path], self._drafts[path] = handle, draft
            return handle

    def create(self, name: str, suffix: str, new: NewFrame, *, overwrite: bool) -> Handle:  # noqa: ARG002
        """Make a member, which appears with the commit. It may replace one that was deleted."""
        self._require_open()
        if name not in self._removed or self._marked:
            if name in self.members():
                raise ValueError(
                    f"a transaction cannot replace the member {name!r}; delete it first, or change it instead"
                )
            check_new(name, self.members(), self.url)
        path, draft = self._begun(name, suffix, new)
        # States that snapshots of the group name are revisions, and do not stand in the member's own ledger.
        group = self._identity.encode()
        self._earlier[path] = [keep for keep in draft.delta.keeps if keep.entry.group == group]
        draft.delta.keeps = tuple(keep for keep in draft.delta.keeps if keep.entry.group != group)
        handle = Handle(Snapshot(draft.store, draft.state, 0, None, ""), "r+")
        handle.enter(draft)
        self._handles[path], self._drafts[path], self._new[path] = handle, draft, name
        if self._fork_id:
            # The transaction may last long, and then `vacuum` spares only files that a journal names.
            make_fork_point(draft)
        if self._marked:
            self._shown.add(name, path)
        return handle

    def _begun(self, name: str, suffix: str, new: NewFrame) -> tuple[str, Draft]:
        """Begin a new member; return its path with it.

        In memory, no object can be below the name of another one. There a sparse member that replaces a contiguous one
        gets the other ending.
        """
        path, other = name + suffix, name + (OTHER if suffix == ARRAY else ARRAY)
        place = self._free(path)
        if self._view.store.in_process and isinstance(place.store.head([""], 1)[0], Head):
            place = replace(place, sparse=self._free(other))
        draft = new(place, overwrite=False)
        return (path if draft.destination.place is place.store else other), draft

    def _free(self, path: str) -> FreePlace:
        return FreePlace(self._view.store_of(path), self._first_number(path))

    def _first_number(self, path: str) -> int:
        """Return the first number that was never given to the file of a chunk at a path."""
        manifest = self._view.manifest
        used = [row.next for row in self._removed.values() if row is not None and row.path == path]
        row = self._view.rows.get(name_of(path))
        if row is not None and row.path == path:
            used.append(row.next)
        return max([manifest.gone.get(path, 0), *used])

    def remove(self, members: Mapping[str, str], states: Mapping[str, str] = MappingProxyType({})) -> None:
        """Let the commit delete members; forget new ones at once.

        `states` has the copied ones, by path. If another writer changes such a member, the commit is refused.
        """
        self._require_open()
        for name, path in members.items():
            handle, draft = self._handles.pop(path, None), self._drafts.pop(path, None)
            if handle is not None and draft is not None:
                _leave(handle, draft)
            if self._new.pop(path, None) is None:
                self._removed[name] = self._view.rows.get(name)
                if path in states:
                    self._note_copied(name, path, states[path])
            if self._marked:
                self._shown.remove(name)

    def _note_copied(self, name: str, path: str, generation: str) -> None:
        """Note the state of a member that goes, and was copied."""
        revision = self._view.rows[name].revision
        held = None if revision else self._view.current(path)
        if generation != (revision if held is None else held.generation):
            raise ConflictError(f"{self.url}/{path} was changed by another writer before it was moved; move it again")
        self._read[name] = revision
        if held is not None:
            self._unadopted[name] = held

    def restore(self, members: Mapping[str, str]) -> None:
        """Keep members that `remove` took away, provided that the transaction had not changed them."""
        for name, path in members.items():
            self._removed.pop(name, None)
            if self._marked:
                self._shown.add(name, path)

    # Snapshots of the group.

    def snapshot(self, entry: Kept, *, replace: bool) -> None:
        """Let the commit keep the state that it makes of all members, under a name."""
        self._require_open()
        self._view.require_ledger()
        self._snapshots.make(entry, self._ledger(), replace=replace)

    def drop_snapshots(self, names: Collection[str]) -> None:
        """Drop snapshots of the group in this commit; KeyError if no snapshot has one of these names."""
        self._require_open()
        self._snapshots.drop(names, self._ledger())

    def snapshots(self) -> tuple[Kept, ...]:
        """Return the snapshots that the group had when the transaction began, the oldest first."""
        return self._ledger().entries

    def _ledger(self) -> Ledger:
        return group_ledger(self.url, self._view.manifest)

    def moment(self, name: str) -> Moment:
        """Return the group as it was at a snapshot."""
        return moment(self._view, name, self._view.manifest)

    def go_back(self, then: Moment) -> None:
        """Let the commit give all members the states that they had at a snapshot, and delete later ones."""
        self._require_open()
        self._restored.append(then.entry)
        self.remove({name: path for name, path in self.members().items() if name not in then.states})
        rows = self._view.rows
        differing = [
            name
            for name, state in then.states.items()
            if self.members().get(name) != state.path or not _is_state(rows.get(name), state)
        ]
        earlier = dict(
            zip(differing, map_concurrently(lambda name: then.held(then.states[name].path), differing), strict=True)
        )
        for name, held in earlier.items():
            self._go_back(name, then.states[name], held)

    def _go_back(self, name: str, state: MemberState, held: Snapshot) -> None:
        path = self.members().get(name)
        if path == state.path and not is_embedded(path):
            handle = self.open(path, "r+")
            draft = self._drafts[path]
            same = handle.snapshot.state.annotations.identity == held.state.annotations.identity
            if same and draft.sparse and held.sparse:
                go_back(draft, held.state)
                return
        if path is not None:
            self.remove({name: path})
        store, first = self._view.store_of(state.path), self._first_number(state.path)
        if held.sparse:
            # Its chunks are still there, under numbers that no later member of the name has got.
            draft = Draft(store, None, held.state, is_same=True, first=first)
        else:
            draft = copied(held, store, FrameType.CONTIGUOUS, is_same=True, kept=states_to_copy(held))
        handle = Handle(Snapshot(store, draft.state, 0, None, ""), "r+")
        handle.enter(draft)
        self._handles[state.path], self._drafts[state.path], self._new[state.path] = handle, draft, name
        self._shown.add(name, state.path)

    def copy_snapshots(self, moments: Sequence[Moment]) -> None:
        """Let the commit keep snapshots of another group. They replace snapshots of the same names.

        The members of that group are copied already, with their earlier states. Members that it has deleted since are
        copied now, without being listed.
        """
        self._require_open()
        self._view.require_ledger()
        there = dict[tuple[str, bytes], MemberState]()
        for path, keeps in self._earlier.items():
            for keep in keeps:
                if keep.state is not None and (path, keep.entry.generation) not in there:
                    revision = self._put_earlier(self._drafts[path], path, keep.state)
                    there[path, keep.entry.generation] = revision
        for then in moments:
            states = {}
            for name, state in then.states.items():
                path = next((path for path, new in self._new.items() if new == name), state.path)
                at = path, state.generation
                if at not in there:
                    there[at] = self._copied_state(path, then.held(state.path))
                states[name] = there[at]
            self._snapshots.copy(then.entry, states, self._ledger())

    def _copied_state(self, path: str, held: Snapshot) -> MemberState:
        """Copy a state of a member that the group does not list."""
        draft = copy_of(Handle(held, "r"), self.storage_options, snapshots=False)(self._free(path), overwrite=False)
        state = self._put_earlier(draft, path, draft.state)
        self._used[path] = max(self._used.get(path, 0), draft.staging.next)
        draft.staging.close()
        return state

    def _put_earlier(self, draft: Draft, path: str, state: FrameState) -> MemberState:
        """Write the revision of a state whose chunks a draft has copied."""
        row = write_revision(self._view.catalog, draft, path, state, self._next_note(path))
        return MemberState(path, bytes.fromhex(row.revision), row.sparse)

    # The end.

    def abort(self) -> None:
        """Forget all changes."""
        self._ended = True
        for path, handle in self._handles.items():
            if self._owner == os.getpid():
                _leave(handle, self._drafts[path])
            else:  # everything belongs to the process that this one was forked from
                handle.leave(None)

    def commit(self) -> None:
        """Make all changes visible at once, or none of them: ConflictError if another writer changed their base."""
        self._require_open()
        try:
            self._adopt_for_snapshots()
            drafts = {path: draft for path, draft in sorted(self._drafts.items()) if draft.changed}
            if drafts or self._removed or self._snapshots:
                self._commit(drafts)
        except BaseException:
            if not self._ended:
                self.abort()
            self._group.refresh()
            raise
        self._ended = True
        for path in self._drafts.keys() - drafts.keys():
            _leave(self._handles[path], self._drafts[path])
        for draft in drafts.values():
            warn_of_forgotten(draft)
        self._roster.warn_of_forgotten(self.url)

    def _commit(self, drafts: Mapping[str, Draft]) -> None:
        names = {path: self._new.get(path) or name_of(path) for path in drafts}
        committed = commit_rows(
            self._view.catalog,
            {names[path]: draft for path, draft in drafts.items()},
            paths={name: path for path, name in self._new.items()},
            removed=[*self._removed],
            identity=self._identity,
            unadopted={name: held for name, held in self._unadopted.items() if name not in names.values()},
            require=self._require_fit,
            edit=self._with_snapshots,
            start=self._start,
        )
        self._ended = True
        for path, draft in drafts.items():
            snapshot = committed.snapshots[names[path]]
            self._handles[path].leave(snapshot)
            draft.delta.keeps = (*draft.delta.keeps, *self._earlier.get(path, ()))  # their chunks stay, too
        map_concurrently(lambda path: drafts[path].settle(committed.snapshots[names[path]].frame), drafts)
        seen = self._view.catalog.last_seen()
        self._view.show(*seen)
        self._group.show(*seen)

    def _require_fit(self, manifest: Manifest) -> None:
        """Raise ConflictError if the changes do not fit on top of other writers' commits."""
        if manifest.identity != self._identity and self._view.manifest.identity:
            raise ConflictError(f"{self.url}: another group was made in the place of this one; open it again")
        self._require_restored(manifest)
        rows = manifest.rows or {}
        written = {self._new.get(path) or name_of(path) for path, draft in self._drafts.items() if draft.changed}
        for name, revision in self._read.items():
            row = rows.get(name)
            if name not in written and (row is None or row.revision != revision):
                path = self._view.members().get(name, name)
                raise ConflictError(f"{self.url}/{path} was changed by another writer after the transaction read it")
        if self._marked and self._snapshots.new:
            self._require_same_members(rows)
        new = set(self._new.values())
        if clash := sorted(new & (rows.keys() - self._removed.keys())):
            raise ConflictError(f"{self.url}: another writer has made {clash} as well")
        if not new - self._removed.keys():
            return
        there = Members({name: row.path for name, row in rows.items() if name not in self._removed})
        for name in sorted(new - self._removed.keys()):
            try:
                check_new(name, there, self.url)
            except (FileExistsError, ValueError) as error:
                raise ConflictError(f"another writer was faster: {error}") from None

    def _require_restored(self, manifest: Manifest) -> None:
        """Raise ConflictError if `vacuum` may have removed what members go back to."""
        known = group_ledger(self.url, manifest)
        for entry in self._restored:
            if known.find(entry.name) != entry:
                raise ConflictError(f"{self.url}: the snapshot {entry.name!r} was dropped since it was to be restored")

    def _require_same_members(self, rows: Mapping[str, Row]) -> None:
        """Raise ConflictError if a snapshot would have other members than the transaction shows."""
        begun = {name: row.path for name, row in self._view.rows.items()}
        found = {name: row.path for name, row in rows.items()}
        if differing := sorted(name for name in begun.keys() | found.keys() if begun.get(name) != found.get(name)):
            raise ConflictError(f"{self.url}: another writer has made or deleted {differing} since the snapshot began")

    def _adopt_for_snapshots(self) -> None:
        """Change members whose state has no revision yet: a snapshot names revisions."""
        if not self._snapshots.new:
            return
        for name, row in self._view.rows.items():
            if not row.revision and name not in self._removed and not is_embedded(row.path):
                self.open(row.path, "r+")
                self._drafts[row.path].annotate(group_commit=self._next_note(row.path))

    def _next_note(self, path: str) -> GroupCommit:
        return GroupCommit(self._identity, self._view.manifest.number + 1, path)

    def _with_snapshots(self, after: Manifest) -> Manifest:
        """Return the manifest with the ledger of snapshots that the commit leaves."""
        changes = self._snapshots
        if not changes:
            return after
        used = {path: number for path, number in self._used.items() if path not in (after.members or {}).values()}
        after = replace(after, gone={**after.gone, **used})
        now = group_ledger(self.url, after)
        changes.require_known(now)
        rows = after.rows or {}
        states = {name: MemberState(row.path, bytes.fromhex(row.revision), row.sparse) for name, row in rows.items()}
        put = partial(create_under_own_name, self._view.store)
        return replace(after, kept=changes.apply(now, lambda _: states, put).pack() or b"")


def _is_state(row: Row | None, state: MemberState) -> bool:
    """Whether a row lists the state that a snapshot names."""
    return row is not None and (row.path, row.revision) == (state.path, state.generation.hex())


def _leave(handle: Handle, draft: Draft) -> None:
    """Forget the changes to a member."""
    if draft.base is None:
        handle.abandon()
    else:
        handle.leave(None)
    draft.abort()
