"""Several members of a local group changed in one commit.

Each changed and each new member gets its chunks and its frame in places that no reader looks at. Then one write
replaces the manifest, and that write is the commit: the manifest gets a log, with an entry for each member that
was changed, made or deleted. From then on readers who open the group see all of it; see `b2array.frame.log`. The
writer applies the log, so that readers who open members directly see the changes, and removes what goes.

A writer who dies before the commit leaves files that no reader finds; one who dies later leaves a log. The next
writer applies that before it does anything else. Other writers wait for the locks of the files.

A change of one member alone needs no log: the one step that applies it is the commit.

What a transaction has only read belongs to its commit as well: the members have the same states then, or the commit is
refused. They are locked, or held, as if they were changed.

A snapshot of the group is a transaction, too: each member keeps the state that the commit gives it. Before a member
goes, the transaction copies what snapshots need of it; see `b2array.group.kept`. A transaction that copies a whole
group copies its snapshots, too.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from types import MappingProxyType
from typing import Any

from b2array.array import snapshots
from b2array.buffers import Buffer
from b2array.commit import apply
from b2array.commit.draft import Draft, warn_of_forgotten
from b2array.commit.fork import fork_point
from b2array.commit.handle import Handle, Mode
from b2array.commit.leftovers import discard, is_abandoned
from b2array.commit.locks import apply_entries_of_others, waits_for_others
from b2array.commit.one import commit, stage
from b2array.errors import (
    B2ArrayError,
    ConflictError,
    FormatError,
    SnapshotLostError,
    UnsupportedError,
    prefix_error,
)
from b2array.format.annotations import GroupCommit
from b2array.format.frame import Frame
from b2array.format.header import FIRST_BYTES, FrameType
from b2array.format.kept import Kept, Ledger, ledger_of, object_name
from b2array.format.state import parse
from b2array.frame.log import look
from b2array.frame.manifest import (
    ARRAY,
    MANIFEST,
    OTHER,
    Entry,
    Manifest,
    Retired,
    is_embedded,
    retired_path,
    staged_path,
)  # fmt: skip
from b2array.frame.snapshot import Snapshot, kept_states, ledger_in
from b2array.frame.source import FRAME_NAME
from b2array.group.directory import Directory, NewFrame, copy_of, record_of
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
from b2array.group.listing import State, group_ledger
from b2array.group.members import Members, check_new
from b2array.group.snapshot_changes import SnapshotChanges
from b2array.store.atomic import require_free
from b2array.store.base import MISSING, Store, Version, attempts, create_under_own_name, too_many_conflicts
from b2array.store.forces import together

__all__ = ["Transaction"]


_MOST_DESCRIBED = 1000
"""In a larger local group only `Group.consolidate` writes summaries."""


@dataclass(slots=True)
class _Member:
    """A member that the transaction changes or makes.

    Its `draft` waits for the commit. That of a new member has no base; another one had the state `opened` when the
    transaction opened it. A new member in a local directory has a place of its own, which `token` names. The commit of
    the group begins with a commit of it there; then it has no draft.
    """

    handle: Handle
    draft: Draft | None = None
    token: str = ""
    opened: str = ""

    @property
    def is_new(self) -> bool:
        """Whether the transaction makes it."""
        return self.draft is None or self.draft.base is None

    def complete(self) -> bool:
        """Commit a new member in its private place, if it has one that is still empty; return whether it has."""
        if not self.token or self.draft is None:
            return False
        with self.handle.mutex.held:
            self.handle.leave(commit(self.draft))
            self.draft = None
        return True


@dataclass(slots=True)
class _Staged:
    """What an attempt at the commit has staged: the entries of the log by path, and the frames that they give.

    The manifest will have them besides the entries of other commits that are `left`, and what `retired` frames keep.
    """

    log: dict[str, Entry] = field(default_factory=dict)
    frames: dict[str, Frame] = field(default_factory=dict)
    left: Mapping[str, Entry] = field(default_factory=dict)
    retired: Retired = field(default_factory=dict)


class Transaction(Changes):
    """Changes to members of a group that wait for `commit`. They do not show what others commit meanwhile.

    `replacing` begins the names of members to delete first. Members of a `marked` transaction note its number, so that
    readers do not open them together with members of an earlier state.
    """

    _view: Directory

    def __init__(self, directory: Directory, replacing: str | None = None, *, marked: bool = True) -> None:
        if marked:
            directory.refresh()
        directory.recover()
        super().__init__(directory.copy())
        self._directory = directory
        self._shown: Members | None = None
        self._marked = marked
        self._touched: dict[str, _Member] = {}  # by path
        self._names: dict[str, str] = {}  # of new members, by path
        self._removed: dict[str, str] = {}  # paths by names, from before the transaction
        self._moved: dict[str, str] = {}  # the states that were copied, by the paths of members to be removed
        self._seen: dict[str, str] = {}  # the states of the members that were opened to read or change them, by path
        self._ended = False
        self._owner = os.getpid()
        self._snapshots = SnapshotChanges(self.url)
        self._lists: list[str] = []  # objects that this attempt has made for snapshots
        self._retiring: dict[str, RetiredFrame] = {}  # by the path of the member that goes
        self._copied_frames: list[RetiredFrame] = []  # what snapshots of another group need
        self._tried: tuple[Manifest, Version | None] | None = None  # the manifest to come, and the version that goes
        self._identity = self._view.manifest.identity or os.urandom(8).hex()
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
        return self._view.members() if self._shown is None else self._shown

    def _change_shown(self, removed: Iterable[str] = (), added: Mapping[str, str] | None = None) -> None:
        if not self._marked:  # nobody looks at the members before the commit, and a copy of many takes time
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
        if self._marked:
            self._see(path, self._peek(path, "r+"))

    def _see(self, path: str, handle: Handle) -> None:
        with self._mutex.held:
            known = self._touched.get(path)
            if known is not None and known.is_new:
                return
            if is_embedded(path):
                self._seen.setdefault(path, self._view.state_of_embedded(path))
            else:
                self._seen.setdefault(path, handle.snapshot.generation if known is None else known.opened)

    def _peek(self, path: str, mode: Mode) -> Handle:
        self._require_open()
        with self._mutex.held:
            known = self._touched.get(path)
            if known is not None:
                return known.handle
            if mode == "r" or is_embedded(path):
                return self._view.open(path, mode)
            self._view.apply_entry(path)
            apply_entries_of_others(self._view.store_of(path), self._view.store)
            handle = Handle(self._view.current(path), mode)
            opened = handle.snapshot.generation
            draft = handle.begin()
            handle.enter(draft)
            self._touched[path] = _Member(handle, draft, opened=opened)
            return handle

    def create(self, name: str, suffix: str, new: NewFrame, *, overwrite: bool) -> Handle:
        """Make a member, which appears with the commit. It may replace one that was deleted."""
        self._require_open()
        goes = self._removed.get(name, "")
        if not goes or self._marked:
            if name in self.members():
                raise ValueError(
                    f"a transaction cannot replace the member {name!r}; delete it first, or change it instead"
                )
            check_new(name, self.members(), self.url)
        overwrite = overwrite or bool(goes)
        path = name + suffix
        member = self._staged(path, new, overwrite=overwrite)
        self._touched[path], self._names[path] = member, name
        if self._fork_id and member.draft is not None and not member.draft.destination.aside:
            # The transaction may last long, and only what has a journal is left alone by `vacuum` then.
            fork_point(member.draft)
        self._change_shown(added={name: path})
        return member.handle

    def _staged(self, path: str, new: NewFrame, *, overwrite: bool) -> _Member:
        """Begin a new member, in a place next to its path."""
        if not overwrite or path not in self._removed.values():
            self._require_free(path, overwrite=overwrite)
        token = os.urandom(8).hex()
        draft = new(self._view.address(staged_path(path, token, sparse=False)), overwrite=False)
        self._mark(draft, path, self._view.manifest.number + 1)
        promised = Snapshot(draft.store, draft.state, 0, None, "")
        handle = Handle(promised, "r+")
        handle.enter(draft)
        return _Member(handle, draft, token)

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
                if self._marked and look(store).frame is not None:
                    raise ConflictError(f"another writer was faster: {error}") from None
                if next(tries, None) is None:
                    raise
                # Perhaps another writer has just deleted it.
            else:
                return

    def _mark(self, draft: Draft, path: str, number: int) -> None:
        if self._marked:
            draft.annotate(group_commit=GroupCommit(self._identity, number, path))

    def remove(self, members: Mapping[str, str], states: Mapping[str, str] = MappingProxyType({})) -> None:
        """Let the commit delete members; forget new ones at once.

        `states` has those that were copied, by path. If another writer changes such a member, the commit is refused.
        """
        self._require_open()
        self._moved.update(states)
        for name, path in members.items():
            if path in self._touched:
                member = self._touched.pop(path)
                if path in states and member.draft is not None and member.draft.base is not None:
                    self._moved[path] = member.draft.base.generation
                self._leave(path, member)
            if self._names.pop(path, None) is None:
                self._removed[name] = path
            else:
                self._moved.pop(path, None)
        self._change_shown(removed=members)

    def restore(self, members: Mapping[str, str]) -> None:
        """Keep members after all that `remove` took away, and that the transaction has not changed before."""
        for name in members:
            self._removed.pop(name, None)
        self._change_shown(added=members)

    # Snapshots of the group.

    def snapshot(self, entry: Kept, *, replace: bool) -> None:
        """Let the commit keep the state that it makes of all members, under a name."""
        self._require_open()
        self._view.require_ledger()
        self._snapshots.make(entry, self._ledger(), replace=replace)

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
                at = then.name, member, state.generation
                if at not in there:
                    held = then.held(state.path)
                    entry = entry_of(then, state, self._identity.encode())
                    missing[held.url, held.version].append(replace(held, at=entry, member=None))
                states[member] = there.get(at) or state._replace(sparse=not self._view.is_local)
            self._snapshots.copy(then.entry, states, self._ledger())
        for states_of_one in missing.values():
            self._copied_frames.append(retire(self._view, states_of_one))

    def _states_of_new(self) -> dict[tuple[str, str, bytes], State]:
        """Return the states that new members keep for the group, by snapshot, member and generation."""
        group, found = self._identity.encode(), {}
        for path, name in self._names.items():
            draft = self._touched[path].draft
            if draft is None:
                continue
            for entry in (keep.entry for keep in draft.delta.keeps):
                if entry.group == group:
                    found[entry.name, name, entry.generation] = State(path, entry.generation, draft.sparse)
        return found

    def moment(self, name: str) -> Moment:
        """Return the group as it was at a snapshot."""
        return moment(self._view, name)

    def _change_ledgers(self) -> None:
        """Let the members keep and drop states."""
        if not (self._snapshots.new or self._snapshots.gone):
            return
        self._embedded_out()
        goes = {*self._removed.values()} - self._names.keys()
        for path in [*self.members().values()]:
            if not is_embedded(path) and path not in goes:
                self._change_ledger(path)

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

    def _change_ledger(self, path: str) -> None:
        handle, group = self._peek(path, "r+"), self._identity.encode()
        new, gone = self._snapshots.new, self._snapshots.gone
        draft = self._touched[path].draft
        dropped = () if draft is None else draft.delta.drops
        for entry in ledger_in(handle.snapshot).without(tuple(dropped)).entries:
            if entry.name in new and not entry.group:
                raise FileExistsError(
                    f"{handle.url} has a snapshot {entry.name!r} of its own; choose another name for that of the group"
                )
            # A file that somebody has taken from another group does not need the states that it had there.
            if entry.name in new or (entry.name in gone and entry.group == group):
                snapshots.drop(handle, entry.name, group=entry.group)
        for name, entry in new.items():
            snapshots.keep(handle, name, entry.message, None, replace=False, group=group, when=entry.time)

    def _check_moment(self, before: Manifest) -> None:
        """Raise ConflictError if a snapshot would not have the members that there are now, or be of another group.

        Nor may one go that another writer has made under the name of one to drop.
        """
        changes = self._snapshots
        changes.require_known(group_ledger(self.url, before))
        if (changes.new or changes.copies) and before.identity not in ("", self._identity):
            raise ConflictError(f"{self.url}: another writer has made the first commit meanwhile")
        if changes.new and {**self._view.members_of(before)} != {**self._view.members()}:
            raise ConflictError(f"{self.url}: another writer has made or deleted members meanwhile")

    def _retire(self, manifest: Manifest) -> dict[str, RetiredFrame]:
        """Copy what snapshots need of the members that go; return the retired frames by the members' paths."""
        names = {*group_ledger(self.url, manifest).names} - self._snapshots.gone
        if not names or not self._removed:
            return {}
        found = {}
        for path in self._view.paths_of(self._removed.keys(), manifest):
            held = None if is_embedded(path) else look(self._view.store_of(path)).frame
            needed = [] if held is None else states_needed(held, manifest.identity, names)
            if held is None or not needed:
                continue
            known = self._retiring.get(path)
            if known is None or not {(entry.name, entry.generation) for entry in needed} <= {*known.states}:
                self._discard_retired([path])
                known = self._retiring[path] = self._retired(held, needed)
            found[path] = known
        return found

    def _retired(self, held: Snapshot, needed: list[Kept]) -> RetiredFrame:
        try:
            return retire(self._view, kept_states(held, needed))
        except (FormatError, SnapshotLostError) as error:
            names = ", ".join(repr(entry.name) for entry in needed)
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

    def _kept(self, before: Manifest, touched: Mapping[str, _Member], frames: Mapping[str, Frame]) -> bytes:
        """Write the lists of members of new snapshots; return the ledger of the group after the transaction."""

        def states(entry: Kept) -> dict[str, State]:
            return {
                member: self._state_of(entry.name, path, touched[path], frames)
                for member, path in self.members().items()
            }

        return self._snapshots.apply(group_ledger(self.url, before), states, self._put_list).pack() or b""

    def _state_of(self, name: str, path: str, member: _Member, frames: Mapping[str, Frame]) -> State:
        state = member.handle.snapshot.state if member.draft is None else parse(frames[path])
        entry = ledger_of(state).find(name)
        if entry is None:
            raise UnsupportedError(f"{member.handle.url} has no place for snapshots: its metalayers are too many")
        return State(path, entry.generation, state.frame.frame_type == FrameType.SPARSE)

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

    def _leave(self, path: str, member: _Member) -> None:
        """Forget the changes to a member."""
        if member.draft is not None:
            if member.is_new:
                member.handle.abandon(member.draft)
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
            for member in self._touched.values():
                member.handle.leave(None)
            return
        for path, member in self._touched.items():
            self._leave(path, member)
        self._discard_retired([*self._retiring])
        for frame in self._copied_frames:
            self._remove_retired(frame.token)

    def commit(self) -> None:
        """Make all changes visible at once, or none: ConflictError if another writer changed what they build on."""
        self._require_open()
        drafts = [member.draft for member in self._touched.values() if member.draft is not None]
        try:
            self._change_ledgers()
            unchanged = {
                path: member for path, member in self._touched.items()
                if not member.is_new and member.draft is not None and not member.draft.changed
            }  # fmt: skip
            touched = {path: member for path, member in sorted(self._touched.items()) if path not in unchanged}
            if touched or self._removed or self._snapshots:
                self._commit(touched)
        except BaseException:
            if not self._ended:
                self.abort()
            self._directory.refresh()
            raise
        self._ended = True
        for path, member in unchanged.items():
            self._leave(path, member)
        for draft in drafts:
            warn_of_forgotten(draft)
        self._roster.warn_of_forgotten(self.url)

    def _commit(self, touched: Mapping[str, _Member]) -> None:
        view = self._view
        with together():
            for path, member in touched.items():
                if member.draft is not None:
                    with told_if_gone(member.draft.store):
                        member.draft.flush()  # before taking the locks, because it takes long
                        if member.complete():
                            self._force(path, member)
        self._retire(view.manifest)
        for _ in attempts(view.store):
            for path in {*touched, *self._moved, *self._removed.values()}:
                apply_entries_of_others(view.store_of(path), view.store)
            locks: list[AbstractContextManager[object]] = []
            # One call of C code, which Ctrl-C does not interrupt. A lock left behind would make this process wait.
            unlock: Callable[[], object] = partial(deque, map(methodcaller("__exit__", None, None, None), locks), 0)
            self._tried = None
            with view.store.lock(MANIFEST):
                try:
                    if self._attempt(touched, locks):
                        return
                finally:
                    unlock()
        raise too_many_conflicts(view.store)

    def _attempt(self, touched: Mapping[str, _Member], locks: list[AbstractContextManager[object]]) -> bool:
        """Commit on top of what the manifest says now, and return True; or False if another writer was faster.

        The caller holds the lock of the manifest, and releases those that are added to `locks`.
        """
        view = self._view
        before, version = view.read()
        # The first transactions of a group may have begun before it had an identity.
        self._identity = before.identity or self._identity
        staged = _Staged(left=view.apply_log(before))
        changed = [path for path, member in touched.items() if not member.is_new]
        read = self._read(changed)
        locked = self._locked([*changed, *(path for path in read if not is_embedded(path))], locks)
        if any(waits_for_others(view.store_of(path), view.store) for path in locked):
            return False
        try:
            self._check_names(before)
            self._check_moved()
            self._check_read(read)
            self._check_moment(before)
            with together():
                for path in touched:
                    self._stage(path, before, staged)
            for path in self._goes(before, staged):
                staged.log[path] = self._deletion(path)
            retired = self._retire(before)
            if self._is_one_step(before, staged) and not (retired or self._snapshots):
                self._take_step(*staged.log.items(), locked=locked)
            else:
                staged.retired = self._all_retired(before, [*retired.values(), *self._copied_frames])
                self._publish(before, version, touched, staged)
        except BaseException as error:
            tried = self._tried
            if tried is None or not self._happened(*tried, error):
                self._unstage(touched, staged)
                if isinstance(error, ConflictError) and tried is not None and view.read()[1] != tried[1]:
                    return False
                raise
        self._complete(before, touched, staged.frames, locked)
        return True

    def _complete(
        self, before: Manifest, touched: Mapping[str, _Member], frames: Mapping[str, Frame], locked: Sequence[str]
    ) -> None:
        """Show the changes, which are committed, and apply the log. The next writer does what fails now."""
        after = None if self._tried is None else self._tried[0]
        left: Mapping[str, Entry] = {}
        self._ended = True
        self._show(after or before)
        with suppress(OSError, B2ArrayError):
            try:
                if after is not None:
                    left = self._view.apply_log(after, locked=locked)
            finally:
                states = self._move_on(touched, frames)
            if after is not None:
                self._clear_log(after, left, states)
                self._forget(before, after)

    def _publish(
        self, before: Manifest, version: Version | None, touched: Mapping[str, _Member], staged: _Staged
    ) -> None:
        """Replace the manifest by one with all that is staged: this is the commit."""
        view = self._view
        view.store.delete(self._lists)  # the lists of the attempt before
        self._lists = []
        kept = self._kept(before, touched, staged.frames)
        after = self._after(before, {**staged.left, **staged.log})
        self._tried = replace(after, kept=kept, retired=staged.retired), version
        view.write(*self._tried)

    def _read(self, changed: Sequence[str]) -> list[str]:
        """Return the paths of the members that were only read, also if they go."""
        if not self._marked:
            return []
        return sorted(self._seen.keys() - {*changed} - {path for path, state in self._moved.items() if state})

    def _check_read(self, read: Sequence[str]) -> None:
        """Raise ConflictError if another writer has changed or deleted a member that was only read."""
        for path in read:
            if is_embedded(path):
                state = self._view.state_of_embedded(path)
            else:
                held = look(self._view.store_of(path)).frame
                state = "" if held is None else held.generation
            if state != self._seen[path]:
                raise ConflictError(
                    f"{self._view.store_of(path).url} was changed by another writer since the transaction has read it"
                )

    def _locked(self, changed: Sequence[str], locks: list[AbstractContextManager[object]]) -> list[str]:
        """Lock the local members that the transaction changes or moves, and return them."""
        locked = sorted({*changed, *self._moved})
        for path in locked:
            locks.append(self._lock_of(path, self._touched.get(path)))
            locks[-1].__enter__()
        return locked

    def _check_names(self, before: Manifest) -> None:
        """Raise ConflictError if other writers have made members of the new names, or of names that exclude them."""
        if not self._names:
            return
        view = self._view
        new = set(self._names.values())
        there = view.paths_of(new, before)
        goes = {*self._removed.values()} | {path for path in there if there[path] in self._removed}
        if clash := sorted({name for path, name in there.items() if path not in goes}):
            raise ConflictError(f"{self.url}: another writer has made {clash} as well")
        now = view.around(new, before)
        for name in self._removed:
            now.remove(name)
        for name in sorted(new - self._removed.keys()):
            try:
                check_new(name, now, self.url)
            except (FileExistsError, ValueError) as error:
                raise ConflictError(f"another writer was faster: {error}") from None

    def _lock_of(self, path: str, member: _Member | None) -> AbstractContextManager[object]:
        """Take the lock of a member that the transaction changes or moves."""
        store = self._view.store_of(path)
        name = look(store).name if member is None or member.draft is None else member.draft.name
        with told_if_gone(store):
            return store.lock(name or "")
        raise AssertionError  # for the type checker

    def _check_moved(self) -> None:
        """Raise ConflictError if another writer has changed a member since it was copied to its new name."""
        for path, state in self._moved.items():
            store = self._view.store_of(path)
            held = look(store).frame
            if held is None or held.generation != state:
                raise ConflictError(f"{store.url} was changed by another writer before it was moved; move it again")

    def _stage(self, path: str, before: Manifest, staged: _Staged) -> None:
        """Write everything of a member except the step that publishes it, which gets an entry in the log."""
        view, member, number = self._view, self._touched[path], before.number + 1
        draft = member.draft
        if draft is None:  # it is complete in its own place
            noted = member.handle.snapshot.state.annotations.group_commit
            if self._marked and noted != (self._identity, number, path):
                for attempt in member.handle.attempts():
                    with attempt as noting:
                        self._mark(noting, path, number)
                self._force(path, member)
            held = member.handle.snapshot
            aside = view.store_of(staged_path(path, member.token, sparse=False))
            if look(aside).state != held.generation:
                raise ConflictError(f"{self.url}: somebody removed {path} before the commit that needs it")
            goes = look(view.store_of(path)).lasting
            staged.log[path] = Entry("frame", goes, held.generation, member.token)
            return
        token = os.urandom(8).hex()
        aside = view.store_of(staged_path(path, token, sparse=draft.sparse))

        def put(pieces: Iterable[Buffer]) -> None:
            create_under_own_name(aside, "", pieces)
            aside.force()

        note = GroupCommit(self._identity, number, path) if self._marked else None
        if draft.base is None:
            goes = look(view.store_of(path)).lasting
            frame, header = stage(draft, put, note)
        else:
            with told_if_gone(draft.store):
                frame, header = stage(draft, put, note)
            # Where other software wrote the frame, its state is also the time of its file.
            is_ours = draft.base.frame.is_ours
            goes = draft.base.generation if is_ours else look(view.store_of(path)).state
        after = frame.fingerprint.hex()
        staged.frames[path] = frame
        if header:
            staged.log[path] = Entry("patch", goes, after, header)
        else:
            staged.log[path] = Entry("index" if draft.sparse else "frame", goes, after, token)

    def _force(self, path: str, member: _Member) -> None:
        """Wait until the frame of a new member, in the place of its own, and its name are on the disk."""
        self._view.store_of(staged_path(path, member.token, sparse=False)).force()
        self._view.store_of(path.rpartition("/")[0]).force()

    def _goes(self, before: Manifest, staged: _Staged) -> list[str]:
        """Return the paths of members to delete; those at which new ones appear are replaced by them."""
        if not self._removed:
            return []
        there = self._view.paths_of(self._removed.keys(), before)
        return [path for path in there if path not in staged.log]

    def _deletion(self, path: str) -> Entry:
        view = self._view
        before = view.state_of_embedded(path) if is_embedded(path) else look(view.store_of(path)).lasting
        return Entry("delete", before, "", os.urandom(8).hex())

    def _is_one_step(self, before: Manifest, staged: _Staged) -> bool:
        """Whether the one step that applies the change is atomic by itself, so that no log is needed."""
        return not self._marked and len(staged.log) == 1 and not before.summaries

    def _take_step(self, step: tuple[str, Entry], *, locked: Collection[str]) -> None:
        path, entry = step
        if is_embedded(path):
            self._view.remove_embedded(path, entry)
        else:
            apply.apply_entry(self._view.store_of, path, entry, locked=path in locked)

    def _after(self, before: Manifest, log: Mapping[str, Entry]) -> Manifest:
        """Return the manifest after the transaction."""
        identity = before.identity or self._identity
        after = replace(before, number=before.number + 1, log=log, identity=identity)
        return after.with_summaries({}, log.keys())  # the members are not as these describe them any more

    def _all_retired(self, before: Manifest, new: Iterable[RetiredFrame]) -> Retired:
        """Return which states retired frames keep after the transaction."""
        left = {
            token: tuple(state for state in states if state[0] not in self._snapshots.gone)
            for token, states in before.retired.items()
        }
        return {token: states for token, states in left.items() if states} | {each.token: each.states for each in new}

    def _show(self, after: Manifest) -> None:
        """Let the group show what was committed."""
        members = self.members()
        if not self._marked:
            for name in self._removed:
                members.remove(name)
            for path, name in self._names.items():
                members.add(name, path)
        self._view.show(after, members)
        self._directory.show(after, members)

    def _unstage(self, touched: Mapping[str, _Member], staged: _Staged) -> None:
        """Remove what this attempt has staged; another one stages it again."""
        with suppress(OSError, B2ArrayError):
            for path, entry in staged.log.items():
                member = touched.get(path)
                if entry.token and member is not None and member.draft is not None:
                    discard(self._view.store_of(entry.aside(path)))
            lists, self._lists = self._lists, []
            self._view.store.delete(lists)

    def _happened(self, after: Manifest, version: Version | None, error: BaseException) -> bool:
        """Whether the manifest was replaced despite an error, for example of forcing it to the disk.

        Raises `error` if that is unknown. Everything then stays where it is, as the manifest may refer to it.
        """
        with suppress(OSError, B2ArrayError):
            if self._view.holds(after):
                return True
            if isinstance(error, ConflictError) or self._view.read()[1] == version:
                return False
        self._ended = True
        for member in self._touched.values():
            if member.draft is not None:
                member.handle.leave(None)
        raise error

    def _move_on(self, touched: Mapping[str, _Member], frames: Mapping[str, Frame]) -> dict[str, Snapshot]:
        """Make the handles show the committed states, and return these."""
        states = {}
        for path, member in touched.items():
            with suppress(OSError, B2ArrayError):
                states[path] = self._view.current(path)
            member.handle.leave(states.get(path))
            if member.draft is not None:
                member.draft.settle(frames[path])
        return states

    def _clear_log(self, after: Manifest, left: Mapping[str, Entry], states: Mapping[str, Snapshot]) -> None:
        """Take the log out of the manifest, and put summaries of what was changed there.

        Summaries of very many members would make each commit in a local group slow.
        """
        view = self._view
        is_described = bool(after.summaries) or (self._marked and len(self.members()) <= _MOST_DESCRIBED)
        now, version = view.read()
        if now.commit == after.commit:
            # A program that makes a member usually goes on to change it: a summary would soon be out of date.
            soon = set() if self._marked else {*self._names}
            records = {path: None if path in soon else record_of(held) for path, held in states.items()}
            cleared = replace(now, log=left)
            if is_described:
                cleared = cleared.with_summaries(records, members=self.members())
            view.write(cleared, version)
            self._directory.show(cleared, self.members())


@contextmanager
def told_if_gone(store: Store) -> Iterator[None]:
    """Raise ConflictError if a member is missing that a transaction is about to change."""
    try:
        yield
    except MISSING:
        raise ConflictError(f"{store.url} was deleted or moved since it was opened") from None
