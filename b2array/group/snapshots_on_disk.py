"""What a commit of a local group writes for the group's snapshots.

A snapshot writes to no member. Its list of members has header, metalayers and index of each, in the state that the
commit leaves. Members that do not change are not locked: they are read, and compared again when all are read.

Before a member goes, its chunks that snapshots need are copied to a retired frame; see `b2array.group.kept`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from b2array import config
from b2array.array.snapshots import lacks_checksums
from b2array.commit.entries import GroupChange
from b2array.commit.pins import Pin, pins_in
from b2array.errors import B2ArrayError, ConflictError, FormatError, SnapshotLostError, prefix_error
from b2array.format.frame import Frame, pack_header
from b2array.format.header import FrameType
from b2array.format.kept import object_name, pack_state
from b2array.format.state import State, parse
from b2array.frame.kept import find_state
from b2array.frame.listing import MemberState, group_ledger
from b2array.frame.log import inspect_place
from b2array.frame.manifest import Manifest, Retired, is_embedded, retired_path
from b2array.frame.snapshot import Snapshot, ledger_in, reload
from b2array.group.kept import RetiredFrame, find_needed_states, remove_frame, retire
from b2array.group.local import LocalGroup
from b2array.group.snapshot_changes import SnapshotChanges
from b2array.store.base import MISSING, create_under_own_name

__all__ = ["SnapshotsOnDisk", "is_pinned"]

Lock = Callable[[str, str], None]
"""Locks the member at a path, whose file has this name, for the rest of an attempt at the commit."""


@dataclass(slots=True)
class SnapshotsOnDisk:
    """What a transaction of a local group prepares for snapshots.

    Parameters
    ----------
    view : LocalGroup
        The group as the transaction began with it.
    change : GroupChange
        What else the transaction changes.
    changes : SnapshotChanges
        Which snapshots it makes and drops.
    members : mapping of str to str
        The paths of the members that a new snapshot has, by name.
    bases : dict of str to Snapshot
        The states of members that the commit does not write, read before it, by path.
    copied : list of RetiredFrame
        Frames with the states that copied snapshots of another group need.
    """

    view: LocalGroup
    change: GroupChange
    changes: SnapshotChanges
    members: Mapping[str, str] = field(default_factory=dict)
    bases: dict[str, Snapshot] = field(default_factory=dict)
    copied: list[RetiredFrame] = field(default_factory=list)
    _retired: dict[str, RetiredFrame] = field(default_factory=dict)  # by the path of the member that goes
    _lists: list[str] = field(default_factory=list)  # objects that this attempt has written

    def copy_early(self) -> None:
        """Copy the states of members that go, because that takes long, before there are locks.

        What other writers do meanwhile may be in the way. Under the locks, what is missing is copied once more.
        """
        with suppress(OSError, B2ArrayError):  # the error counts when it comes again under the locks
            self._retire_removed(self.view.manifest)

    def require_fit(self, before: Manifest) -> None:
        """Raise ConflictError if the snapshots do not fit on top of other writers' commits.

        A new snapshot has the members that the transaction shows, and its states belong to the group by its identity.
        """
        changes, url = self.changes, self.view.url
        changes.require_fit(before)
        if (changes.new or changes.copies) and before.identity not in ("", self.change.identity):
            raise ConflictError(f"{url}: another writer has made the first commit meanwhile")
        if changes.new and {**self.view.members_of(before)} != {**self.view.members()}:
            raise ConflictError(f"{url}: another writer has made or deleted members meanwhile")

    def edit(self, before: Manifest, after: Manifest, frames: Mapping[str, Frame], lock: Lock) -> Manifest:
        """Write what snapshots need, and return the manifest that names it; `commit_entries` has the parameters."""
        self._delete_lists()  # of the attempt before
        retired = self._retire_removed(before)
        if not (retired or self.changes):
            return after
        states: dict[str, MemberState] = {}
        if self.changes.new:
            states = self._pack_states(before, after, frames, lock)
        kept = self.changes.apply(before, states, self._put_list)
        new = [*retired.values(), *self.copied]
        return replace(after, kept=kept, retired=_list_retired(before.retired, self.changes.gone, new))

    def discard(self) -> None:
        """Remove everything that was written, as far as possible."""
        with suppress(OSError, B2ArrayError):  # `vacuum` removes what stays
            self._delete_lists()
        for frame in [*self._retired.values(), *self.copied]:
            _remove_retired(self.view, frame.token)
        self._retired.clear()

    def forget(self, before: Manifest, after: Manifest) -> None:
        """Remove what only dropped snapshots needed, given the manifests around the commit."""
        view = self.view
        with suppress(OSError, B2ArrayError):  # the commit has happened; `vacuum` removes what stays
            remaining = {*group_ledger(view.url, after).entries}
            gone = {*group_ledger(view.url, before).entries} - remaining
            view.store.delete([object_name(entry.place) for entry in gone if not entry.packed])
            for token in before.retired.keys() - after.retired.keys():
                _remove_retired(view, token)

    # Lists of members.

    def _put_list(self, name: str, packed: bytes) -> None:
        self._lists.append(name)
        create_under_own_name(self.view.store, name, packed)
        self.view.store_of(name).force()

    def _delete_lists(self) -> None:
        lists, self._lists = self._lists, []
        self.view.store.delete(lists)

    def _pack_states(
        self, before: Manifest, after: Manifest, frames: Mapping[str, Frame], lock: Lock
    ) -> dict[str, MemberState]:
        """Return the packed states of all members after the commit, by name."""
        same = self._read_same(before, after, lock)
        states = {}
        for name, path in self.members.items():
            change = self.change.members.get(path)
            if path in same:
                state = same[path].state
            elif path in frames or change is None:
                state = parse(frames[path])
            else:
                # A new member has been committed in the place next to its path.
                state = change.handle.snapshot.state
            states[name] = _pack_member(path, state)
        return states

    def _read_same(self, before: Manifest, after: Manifest, lock: Lock) -> dict[str, Snapshot]:
        """Return the states at one moment of the members that do not change. The caller has the manifest's lock.

        They are compared until nobody has changed one since all were read. The last time, other writers wait. So they
        do for the first snapshot, because a writer that saw no manifest may be about to write a file anew.
        """
        paths = self.change.same
        if waiting := sorted({*paths} & after.log.keys()):
            raise ConflictError(f"{self.view.url}: a commit of {waiting[0]} waits to be applied")
        states = {path: self.bases[path] for path in paths if path in self.bases}
        for _ in range(config.retries if before.kept else 0):
            changed = [path for path in paths if _read_again(self.view, path, before, states)]
            if not changed:
                return states
        for path in paths:
            if path not in states:
                _read_again(self.view, path, before, states)
        # A lock needs a descriptor, and no file is opened in between: there may be no other descriptor left.
        for path in sorted(paths):
            lock(path, states[path].name)
        for path in paths:
            _read_again(self.view, path, before, states)
        return states

    # Members that go.

    def _retire_removed(self, manifest: Manifest) -> dict[str, RetiredFrame]:
        """Copy what snapshots need of the members that go; return the retired frames by the members' paths."""
        removed = self.change.removed
        if not removed or not manifest.kept:
            return {}
        names = {*group_ledger(self.view.url, manifest).names} - self.changes.gone
        if not names:
            return {}
        retired = {}
        for path in self.view.paths_of(removed.keys(), manifest):
            frame = None if is_embedded(path) else self._retire_member(path, manifest, names)
            if frame is not None:
                retired[path] = frame
        return retired

    def _retire_member(self, path: str, manifest: Manifest, names: Collection[str]) -> RetiredFrame | None:
        """Copy what snapshots of these names need of a member, unless a copy made earlier has all of it."""
        revision = inspect_place(self.view.store_of(path)).frame
        if revision is None:
            return None
        pins = pins_in(self.view.store, manifest, path, names)
        if not pins:
            return None
        frame = self._retired.get(path)
        needed = {(entry.name, pin.state.generation) for pin in pins for entry in pin.entries}
        if frame is not None and needed <= {*frame.states}:
            return frame
        if frame is not None:
            del self._retired[path]
            _remove_retired(self.view, frame.token)
        frame = _copy_states(self.view, revision, pins)
        if frame is not None:
            self._retired[path] = frame
        return frame


def _pack_member(path: str, state: State) -> MemberState:
    is_sparse = state.frame.frame_type == FrameType.SPARSE
    packed = pack_state(state, pack_header(state.frame))
    return MemberState(path, state.frame.fingerprint, is_sparse, packed)


def _read_again(view: LocalGroup, path: str, before: Manifest, states: dict[str, Snapshot]) -> bool:
    """Put the present state of a member into `states`; return whether another one was there."""
    last = states.get(path)
    try:
        latest = view.state_of(path, before) if last is None else reload(last)
    except MISSING:
        raise ConflictError(f"{view.url}: another writer has deleted or moved {path} meanwhile") from None
    if lacks_checksums(latest):
        raise ConflictError(f"{latest.url} was changed by other software while the snapshot was taken")
    states[path] = latest
    return last is None or last.generation != latest.generation


def _copy_states(view: LocalGroup, revision: Snapshot, pins: Sequence[Pin]) -> RetiredFrame | None:
    """Copy the states that snapshots need of a member to a retired frame; None if there is nothing to copy."""
    try:
        states = find_needed_states(revision, pins)
        return retire(view, states) if states else None
    except (FormatError, SnapshotLostError) as error:
        names = ", ".join(pin.title for pin in pins)
        raise prefix_error(
            f"{revision.url} cannot go: snapshots of the group need it, and cannot be copied; drop them first: {names}",
            error,
        ) from error


def _remove_retired(view: LocalGroup, token: str) -> None:
    remove_frame(view.store_of(retired_path(token)))


def _list_retired(before: Retired, gone: Collection[str], new: Iterable[RetiredFrame]) -> Retired:
    """Return which states retired frames keep once the snapshots with the names `gone` are dropped."""
    after = {}
    for token, states in before.items():
        remaining = tuple(state for state in states if state[0] not in gone)
        if remaining:
            after[token] = remaining
    for frame in new:
        after[frame.token] = frame.states
    return after


def is_pinned(view: LocalGroup, path: str) -> bool:
    """Whether snapshots of the group need chunks of a member that no snapshot of the member alone needs."""
    latest = view.current(path)
    own = [entry for entry in ledger_in(latest).entries if not (entry.packed or entry.group)]
    if own:
        return False
    pins = pins_in(view.store, view.load_manifest(), path)
    states = [find_state(latest, pin.state, pin.group) for pin in pins]
    return any(state is not None and state.frame.nchunks for state in states)
