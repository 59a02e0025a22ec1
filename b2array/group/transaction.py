"""The transaction of a local group: it collects changes of several members, which `commit_entries` commits at once.

A new member is made in a place next to its path. What a transaction has only read belongs to its commit as well: the
members have the same states then, or the commit is refused.

A snapshot of the group is a transaction as well. It writes to no member: the list of the snapshot has header,
metalayers and index of each, in the state that the commit leaves. Members that do not change are not locked. They are
read, and compared again when all are read. Before a member goes, the transaction copies what snapshots need of it; see
`b2array.group.kept`. A transaction that copies a whole group copies its snapshots as well.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from b2array import config
from b2array.array.snapshots import give_checksums, lacks_checksums
from b2array.commit.draft import Draft, warn_of_forgotten
from b2array.commit.entries import GroupChange, MemberChange, commit_entries
from b2array.commit.fork import make_fork_point
from b2array.commit.handle import Handle, Mode
from b2array.commit.leftovers import discard, is_abandoned
from b2array.commit.pins import Pin, pins_in
from b2array.errors import B2ArrayError, ConflictError, FormatError, SnapshotLostError, prefix_error, warn
from b2array.format.annotations import GroupCommit
from b2array.format.frame import Frame, pack_header
from b2array.format.header import FIRST_BYTES, FrameType
from b2array.format.kept import Kept, Ledger, object_name, pack_state
from b2array.format.state import parse
from b2array.frame.kept import find_state
from b2array.frame.listing import MemberState, group_ledger
from b2array.frame.log import inspect_place
from b2array.frame.manifest import (
    ARRAY,
    OTHER,
    Manifest,
    Retired,
    is_embedded,
    retired_path,
    staged_path,
)
from b2array.frame.snapshot import Snapshot, ledger_in, reload
from b2array.frame.source import FRAME_NAME
from b2array.group.fork import Changes
from b2array.group.kept import (
    Moment,
    RetiredFrame,
    entry_of,
    moment,
    remove_frame,
    retire,
    states_needed,
)
from b2array.group.local import LocalGroup, NewFrame, copy_of
from b2array.group.members import Members, check_new
from b2array.group.snapshot_changes import SnapshotChanges
from b2array.store.atomic import require_free
from b2array.store.base import MISSING, attempts, create_under_own_name

__all__ = ["Transaction"]


class Transaction(Changes):
    """Changes to members of a group that wait for `commit`. They do not show what others commit meanwhile.

    `replacing` begins the names of members to delete first. Members of a `marked` transaction note its number, so that
    readers do not open them together with members of an earlier state.
    """

    _view: LocalGroup

    def __init__(self, directory: LocalGroup, replacing: str | None = None, *, marked: bool = True) -> None:
        if marked:
            directory.refresh()
        directory.recover()
        super().__init__(directory.copy())
        self._directory = directory
        self._shown: Members | None = None
        self._change = GroupChange(self._view.manifest.identity or os.urandom(8).hex(), marked)
        self._ended = False
        self._owner = os.getpid()
        self._snapshots = SnapshotChanges(self.url)
        self._needed: list[Kept] = []  # snapshots of which the changes take chunks
        self._bases: dict[str, Snapshot] = {}  # what a new snapshot has of members that do not change, by path
        self._lists: list[str] = []  # objects that this attempt has made for snapshots
        self._retiring: dict[str, RetiredFrame] = {}  # by the path of the member that goes
        self._copied_frames: list[RetiredFrame] = []  # what snapshots of another group need
        if replacing is not None:
            self.remove({name: path for name, path in self.members().items() if name.startswith(replacing)})

    def __reduce__(self) -> tuple[Any, ...]:
        raise ValueError("a group with a transaction under way cannot be pickled")

    @property
    def identity(self) -> str:
        """Names the group."""
        return self._change.identity

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options for fsspec."""
        return self._view.storage_options

    def members(self) -> Members:
        """Return the path of each member by its name, as the transaction leaves them."""
        return self._view.members() if self._shown is None else self._shown

    def _change_shown(self, removed: Iterable[str] = (), added: Mapping[str, str] | None = None) -> None:
        if not self._change.marked:  # nobody looks at the members before the commit, and a copy of many takes time
            return
        if self._shown is None:
            self._shown = self._view.members().copy()
        for name in removed:
            self._shown.remove(name)
        for name, path in (added or {}).items():
            self._shown.add(name, path)

    def _require_open(self) -> None:
        if self._ended:
            raise ConflictError("expected a transaction under way, found that it has ended")
        if self._owner != os.getpid():
            raise ConflictError("expected a transaction of this process, found one of the process it was forked from")

    # Changes.

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member; what you write to it is part of the commit.

        The commit is refused if the member has another state by then. With mode "r" it may have.
        """
        handle = self._peek(path, mode)
        if mode != "r":
            self._see(path, handle)
        return handle

    def note_read(self, path: str) -> None:
        """Let the commit be refused if a member does not have the state any more that is shown here."""
        if self._change.marked:
            self._see(path, self._peek(path, "r+"))

    def _see(self, path: str, handle: Handle) -> None:
        with self._mutex.held:
            known = self._change.members.get(path)
            if known is not None and known.is_new:
                return
            if is_embedded(path):
                self._change.read.setdefault(path, self._view.state_of_embedded(path))
            else:
                self._change.read.setdefault(path, handle.snapshot.generation if known is None else known.opened)

    def _peek(self, path: str, mode: Mode) -> Handle:
        self._require_open()
        with self._mutex.held:
            known = self._change.members.get(path)
            if known is not None:
                return known.handle
            if mode == "r" or is_embedded(path):
                return self._view.open(path, mode)
            self._view.require_own(path)
            self._view.apply_entry(path)
            handle = Handle(self._view.current(path), mode)
            opened = handle.snapshot.generation
            draft = handle.begin()
            handle.enter(draft)
            self._change.members[path] = MemberChange(handle, draft, opened=opened)
            return handle

    def create(self, name: str, suffix: str, new: NewFrame, *, overwrite: bool) -> Handle:
        """Make a member, which appears with the commit. It may replace one that was deleted."""
        self._require_open()
        goes = self._change.removed.get(name, "")
        if not goes or self._change.marked:
            if name in self.members():
                raise ValueError(
                    f"a transaction cannot replace the member {name!r}; delete it first, or change it instead"
                )
            check_new(name, self.members(), self.url)
        overwrite = overwrite or bool(goes)
        path = name + suffix
        self._view.require_own(path)
        member = self._staged(path, new, overwrite=overwrite)
        self._change.members[path], self._change.names[path] = member, name
        if self._fork_id and member.draft is not None and not member.draft.destination.aside:
            # The transaction may last long, and only what has a journal is left alone by `vacuum` then.
            make_fork_point(member.draft)
        self._change_shown(added={name: path})
        return member.handle

    def _staged(self, path: str, new: NewFrame, *, overwrite: bool) -> MemberChange:
        """Begin a new member, in a place next to its path."""
        if not overwrite or path not in self._change.removed.values():
            self._require_free(path, overwrite=overwrite)
        token = os.urandom(8).hex()
        draft = new(self._view.address(staged_path(path, token, sparse=False)), overwrite=False)
        self._mark(draft, path, self._view.manifest.number + 1)
        promised = Snapshot(draft.store, draft.state, 0, None, "")
        handle = Handle(promised, "r+")
        handle.enter(draft)
        return MemberChange(handle, draft, token)

    def _require_free(self, path: str, *, overwrite: bool) -> None:
        """Raise FileExistsError if something in a local directory excludes a new member at a path."""
        store = self._view.store_of(path)
        tries = attempts(store)
        while True:
            try:
                require_free(store, {"": FIRST_BYTES, FRAME_NAME: FIRST_BYTES}, "a frame", overwrite=overwrite)
            except (FileExistsError, *MISSING) as error:
                if is_abandoned(store):
                    return
                # The view shows no member there, so that this one is later.
                if self._change.marked and inspect_place(store).frame is not None:
                    raise ConflictError(f"another writer was faster: {error}") from None
                if next(tries, None) is None:
                    raise
                # Perhaps another writer has just deleted it.
            else:
                return

    def _mark(self, draft: Draft, path: str, number: int) -> None:
        if self._change.marked:
            draft.annotate(group_commit=GroupCommit(self._change.identity, number, path))

    def remove(self, members: Mapping[str, str], states: Mapping[str, str] = MappingProxyType({})) -> None:
        """Let the commit delete members; forget new ones at once.

        `states` has those that were copied, by path. If another writer changes such a member, the commit is refused.
        """
        self._require_open()
        for path in members.values():
            self._view.require_own(path)
        self._change.moved.update(states)
        for name, path in members.items():
            if path in self._change.members:
                member = self._change.members.pop(path)
                if path in states and member.draft is not None and member.draft.base is not None:
                    self._change.moved[path] = member.draft.base.generation
                self._leave(path, member)
            if self._change.names.pop(path, None) is None:
                self._change.removed[name] = path
            else:
                self._change.moved.pop(path, None)
        self._change_shown(removed=members)

    def restore(self, members: Mapping[str, str]) -> None:
        """Keep members after all that `remove` took away, and that the transaction has not changed before."""
        for name in members:
            self._change.removed.pop(name, None)
        self._change_shown(added=members)

    # Snapshots of the group.

    def snapshot(self, entry: Kept, *, replace: bool) -> None:
        """Let the commit keep the state that it makes of all members, under a name."""
        self._require_open()
        self._view.require_ledger()
        self._snapshots.make(entry, self._ledger(), replace=replace)
        others = self.members().keys() - self._own_members().keys()
        if others:
            warn(
                f"{self.url}: the snapshot {entry.name!r} does not have {min(others)!r} and other members of groups"
                " inside this one that have their own manifests; make snapshots of those groups as well"
            )

    def drop_snapshots(self, names: Collection[str]) -> None:
        """Let the commit forget snapshots of the group; KeyError if there is none of a name."""
        self._require_open()
        self._snapshots.drop(names, self._ledger())

    def snapshots(self) -> tuple[Kept, ...]:
        """Return the snapshots that the group had when the transaction began, the oldest first."""
        return self._ledger().entries

    def _ledger(self) -> Ledger:
        return group_ledger(self.url, self._view.manifest)

    def copy_snapshots(self, moments: Sequence[Moment]) -> None:
        """Let the commit keep snapshots of another group. They replace snapshots of the same names.

        The members of that group are copied already, with the states that they keep. All other states come to retired
        frames.
        """
        self._require_open()
        self._view.require_ledger()
        there, missing = self._states_of_new(), defaultdict[Any, list[Snapshot]](list)
        for then in moments:
            states = {}
            for member, state in then.states.items():
                at = member, state.generation
                if at not in there:
                    held = then.held(state.path)
                    entry = entry_of(then, state, self._change.identity.encode())
                    missing[held.url, held.version].append(replace(held, at=entry, member=None))
                states[member] = there.get(at) or MemberState(state.path, state.generation)
            self._snapshots.copy(then.entry, states, self._ledger())
        for states_of_one in missing.values():
            self._copied_frames.append(retire(self._view, states_of_one))

    def _states_of_new(self) -> dict[tuple[str, bytes], MemberState]:
        """Return the states that new members keep for the group, by member and generation."""
        group, found = self._change.identity.encode(), {}
        for path, name in self._change.names.items():
            draft = self._change.members[path].draft
            if draft is None:
                continue
            for entry in (keep.entry for keep in draft.delta.keeps):
                if entry.group == group:
                    found[name, entry.generation] = MemberState(path, entry.generation, draft.sparse)
        return found

    def is_pinned(self, path: str) -> bool:
        """Whether snapshots of the group need chunks of a member that no snapshot of the member alone needs."""
        now = self._view.current(path)
        own = [entry for entry in ledger_in(now).entries if not (entry.packed or entry.group)]
        pins = [] if own else pins_in(self._view.store, self._view.stored(), path)
        states = [find_state(now, pin.state, pin.group) for pin in pins]
        return any(state is not None and state.frame.nchunks for state in states)

    def moment(self, name: str) -> Moment:
        """Return the group as it was at a snapshot, which must still be there at the commit."""
        then = moment(self._view, name)
        self._needed.append(then.entry)
        return then

    def _prepare_members(self) -> None:
        """Let each member have checksums, and note the states of those that do not change, if there are new snapshots.

        A snapshot writes to no member that b2array wrote. Other software writes no checksums, without which nobody sees
        if it writes over a chunk later.
        """
        if not self._snapshots.new:
            return
        self._embedded_out()
        for path in [*self._own_members().values()]:
            member = self._change.members.get(path)
            if member is None:
                now = self._view.current(path)
                if not lacks_checksums(now):
                    self._bases[path] = now
                    continue
                self._note_commit(path)
                member = self._change.members[path]
            if member.draft is not None:
                for attempt in member.handle.attempts():
                    with attempt as draft:
                        give_checksums(draft)

    def _note_commit(self, path: str) -> None:
        """Let the commit change a member, which notes that."""
        note = GroupCommit(self._change.identity, self._view.manifest.number + 1, path)
        for attempt in self._peek(path, "r+").attempts():
            with attempt as draft:
                draft.annotate(group_commit=note)

    def _own_members(self) -> dict[str, str]:
        """Return the members except those of groups inside this one, which have their own snapshots."""
        return {name: path for name, path in self.members().items() if self._view.mount_of(path) is None}

    def _embedded_out(self) -> None:
        """Give embedded members frames of their own, which can keep states."""
        inner = (
            {name: path for name, path in self.members().items() if is_embedded(path)} if self._snapshots.new else {}
        )
        for name, path in inner.items():
            held = self._view.open(path, "r")
            suffix = OTHER if held.frame.metalayer("b2nd") is None else ARRAY
            self.remove({name: path})
            self.create(name, suffix, copy_of(held, self.storage_options), overwrite=True)

    def _check_moment(self, before: Manifest) -> None:
        """Raise ConflictError if a snapshot would not have the members that there are now, or be of another group.

        Nor may one go that another writer has made under the name of one to drop.
        """
        changes, ledger = self._snapshots, group_ledger(self.url, before)
        changes.require_known(ledger)
        for entry in self._needed:
            there = ledger.find(entry.name)
            if there is None or there.digest != entry.digest:
                raise ConflictError(f"{self.url}: another writer has dropped the snapshot {entry.name!r} meanwhile")
        if (changes.new or changes.copies) and before.identity not in ("", self._change.identity):
            raise ConflictError(f"{self.url}: another writer has made the first commit meanwhile")
        if changes.new and {**self._view.members_of(before)} != {**self._view.members()}:
            raise ConflictError(f"{self.url}: another writer has made or deleted members meanwhile")

    def _retire(self, manifest: Manifest) -> dict[str, RetiredFrame]:
        """Copy what snapshots need of the members that go; return the retired frames by the members' paths."""
        names = {*group_ledger(self.url, manifest).names} - self._snapshots.gone
        if not names or not self._change.removed:
            return {}
        found = {}
        for path in self._view.paths_of(self._change.removed.keys(), manifest):
            held = None if is_embedded(path) else inspect_place(self._view.store_of(path)).frame
            pins = [] if held is None else pins_in(self._view.store, manifest, path, names)
            if held is None or not pins:
                continue
            known = self._retiring.get(path)
            needed = {(entry.name, pin.state.generation) for pin in pins for entry in pin.entries}
            if known is None or not needed <= {*known.states}:
                self._discard_retired([path])
                retired = self._retired(held, pins)
                if retired is None:
                    continue
                known = self._retiring[path] = retired
            found[path] = known
        return found

    def _retired(self, held: Snapshot, pins: Sequence[Pin]) -> RetiredFrame | None:
        try:
            states = states_needed(held, pins)
            return retire(self._view, states) if states else None
        except (FormatError, SnapshotLostError) as error:
            names = ", ".join(pin.title for pin in pins)
            raise prefix_error(
                f"{held.url} cannot go: snapshots of the group need it, and cannot be copied; drop them first: {names}",
                error,
            ) from error

    def _discard_retired(self, paths: Iterable[str]) -> None:
        for path in paths:
            if (known := self._retiring.pop(path, None)) is not None:
                self._remove_retired(known.token)

    def _remove_retired(self, token: str) -> None:
        remove_frame(self._view.store_of(retired_path(token)))

    def _kept(
        self, before: Manifest, after: Manifest, frames: Mapping[str, Frame], lock: Callable[[str, str], None]
    ) -> bytes:
        """Write the lists of members of new snapshots; return the ledger of the group after the transaction."""
        states: dict[str, MemberState] = {}
        if self._snapshots.new:
            same = self._states_now(before, after, lock)
            for member, path in self._own_members().items():
                change = self._change.members.get(path)
                if path in same:
                    state = same[path].state
                elif path in frames or change is None:
                    state = parse(frames[path])
                else:
                    state = change.handle.snapshot.state
                packed = pack_state(state, pack_header(state.frame))
                is_sparse = state.frame.frame_type == FrameType.SPARSE
                states[member] = MemberState(path, state.frame.fingerprint, is_sparse, packed)
        ledger = group_ledger(self.url, before)
        return self._snapshots.apply(ledger, lambda _: states, self._put_list).pack() or b""

    def _states_now(self, before: Manifest, after: Manifest, lock: Callable[[str, str], None]) -> dict[str, Snapshot]:
        """Return the states at one moment of the members that do not change. The caller has the manifest's lock.

        They are compared until nobody has changed one since all were read. The last time, other writers wait; so they
        do for the first snapshot, because a writer that saw no manifest may be about to write a file anew.
        """
        paths = self._change.same
        if waiting := sorted({*paths} & after.log.keys()):
            raise ConflictError(f"{self.url}: a commit of {waiting[0]} waits to be applied")
        states = {path: held for path, held in self._bases.items() if path in {*paths}}
        for _ in range(config.retries if before.kept else 0):
            if not [path for path in paths if self._read_again(path, before, states)]:
                return states
        for path in paths:
            if path not in states:
                self._read_again(path, before, states)
        # A lock needs a descriptor, and no file is opened in between: there may be no other descriptor left.
        for path in sorted(paths):
            lock(path, states[path].name)
        for path in paths:
            self._read_again(path, before, states)
        return states

    def _read_again(self, path: str, before: Manifest, states: dict[str, Snapshot]) -> bool:
        """Read the state of a member; return whether it is another one."""
        last = states.get(path)
        try:
            now = self._view.state_of(path, before) if last is None else reload(last)
        except MISSING:
            raise ConflictError(f"{self.url}: another writer has deleted or moved {path} meanwhile") from None
        if lacks_checksums(now):
            raise ConflictError(f"{now.url} was changed by other software while the snapshot was taken")
        states[path] = now
        return last is None or last.generation != now.generation

    def _put_list(self, name: str, packed: bytes) -> None:
        self._lists.append(name)
        create_under_own_name(self._view.store, name, packed)
        self._view.store_of(name).force()

    def _forget(self, before: Manifest, after: Manifest) -> None:
        """Remove what only dropped snapshots needed. What stays behind, `b2array.vacuum` removes."""
        view = self._view
        with suppress(OSError, B2ArrayError):
            gone = {*group_ledger(self.url, before).entries} - {*group_ledger(self.url, after).entries}
            view.store.delete([object_name(entry.place) for entry in gone if not entry.packed])
            for token in before.retired.keys() - after.retired.keys():
                self._remove_retired(token)

    # The end.

    def _leave(self, path: str, member: MemberChange) -> None:
        """Forget the changes to a member."""
        if member.draft is not None:
            if member.is_new:
                member.handle.abandon()
            else:
                member.handle.leave(None)
            member.draft.abort()
        if not member.token:
            return
        with suppress(OSError, B2ArrayError):
            discard(self._view.store_of(staged_path(path, member.token, sparse=False)))

    def abort(self) -> None:
        """Forget all changes."""
        self._ended = True
        if self._owner != os.getpid():  # everything belongs to the process that this one was forked from
            for member in self._change.members.values():
                member.handle.leave(None)
            return
        for path, member in self._change.members.items():
            self._leave(path, member)
        with suppress(OSError, B2ArrayError):  # `vacuum` removes what stays
            self._delete_lists()
        self._discard_retired([*self._retiring])
        for frame in self._copied_frames:
            self._remove_retired(frame.token)

    def commit(self) -> None:
        """Make all changes visible at once, or none: ConflictError if another writer changed what they build on."""
        self._require_open()
        drafts = [member.draft for member in self._change.members.values() if member.draft is not None]
        try:
            self._prepare_members()
            written = self._change.written()
            if self._snapshots.new:
                self._change.same = [path for path in self._own_members().values() if path not in written]
            if written or self._change.removed or self._snapshots:
                self._commit()
        except BaseException:
            if self._change.outcome == "open":
                self.abort()
            self._ended = True
            self._directory.refresh()
            raise
        self._ended = True
        for path in self._change.members.keys() - written.keys():
            self._leave(path, self._change.members[path])
        for draft in drafts:
            warn_of_forgotten(draft)
        self._roster.warn_of_forgotten(self.url)

    def _commit(self) -> None:
        # Copies take long, so they are made before there are locks. What other writers do meanwhile may be in the way:
        # under the locks, what is missing is copied once more, and an error then counts.
        with suppress(OSError, B2ArrayError):
            self._retire(self._view.manifest)
        before, after = commit_entries(
            self._view,
            self._change,
            require=self._require_fit,
            edit=self._edit,
            show=self._show,
        )
        if after is not None:
            self._forget(before, after)

    def _require_fit(self, before: Manifest) -> None:
        """Raise ConflictError if the changes do not fit on top of what others have committed."""
        self._check_names(before)
        self._check_moment(before)

    def _edit(
        self, before: Manifest, after: Manifest, frames: Mapping[str, Frame], lock: Callable[[str, str], None]
    ) -> Manifest:
        """Return the manifest with the snapshots that the commit leaves, and what they need."""
        self._delete_lists()  # of the attempt before
        retired = self._retire(before)
        if not (retired or self._snapshots):
            return after
        kept = self._kept(before, after, frames, lock)
        frames_kept = self._all_retired(before, [*retired.values(), *self._copied_frames])
        return replace(after, kept=kept, retired=frames_kept)

    def _delete_lists(self) -> None:
        lists, self._lists = self._lists, []
        self._view.store.delete(lists)

    def _check_names(self, before: Manifest) -> None:
        """Raise ConflictError if other writers have made members of the new names, or of names that exclude them."""
        if not self._change.names:
            return
        view = self._view
        new = set(self._change.names.values())
        there = view.paths_of(new, before)
        goes = {*self._change.removed.values()} | {path for path in there if there[path] in self._change.removed}
        if clash := sorted({name for path, name in there.items() if path not in goes}):
            raise ConflictError(f"{self.url}: another writer has made {clash} as well")
        now = view.around(new, before)
        for name in self._change.removed:
            now.remove(name)
        for name in sorted(new - self._change.removed.keys()):
            try:
                check_new(name, now, self.url)
            except (FileExistsError, ValueError) as error:
                raise ConflictError(f"another writer was faster: {error}") from None

    def _all_retired(self, before: Manifest, new: Iterable[RetiredFrame]) -> Retired:
        """Return which states retired frames keep after the transaction."""
        left = {
            token: tuple(state for state in states if state[0] not in self._snapshots.gone)
            for token, states in before.retired.items()
        }
        return {token: states for token, states in left.items() if states} | {each.token: each.states for each in new}

    def _show(self, after: Manifest) -> Members:
        """Let the group show what was committed, and return its members."""
        members = self.members()
        if not self._change.marked:
            for name in self._change.removed:
                if name in members:
                    members.remove(name)
            for path, name in self._change.names.items():
                members.add(name, path)
        self._view.show(after, members)
        self._directory.show(after, members)
        return members
