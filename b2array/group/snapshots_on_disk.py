"""`SnapshotsOnDisk`: writes the data of a local group's snapshots, for a transaction of the group.

A snapshot does not change members. It has a list with the header, metalayers and index of each member, in its state
after the commit. Members that the commit does not change are not locked: this module reads all of them, and then checks
that none has changed.

Before a member is deleted, the chunks that snapshots need are copied to a retired frame; see `b2array.group.kept`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from b2array import config
from b2array.array.snapshots import lacks_checksums
from b2array.commit.entries import GroupChange
from b2array.commit.outcomes import create_under_own_name
from b2array.commit.pins import Pin, pins_in
from b2array.errors import (
    B2ArrayError,
    ConflictError,
    FormatError,
    SnapshotLostError,
    prefix_error,
)
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
from b2array.store.base import MISSING

__all__ = ["SnapshotsOnDisk", "is_pinned"]

Lock = Callable[[str, str], None]
"""Locks the member at a path, whose file has a given name, for the rest of an attempt at the commit."""


@dataclass(slots=True)
class SnapshotsOnDisk:
    """The data for snapshots that a transaction of a local group has prepared.

    Parameters
    ----------
    view : LocalGroup
        The group as it was when the transaction began.
    change : GroupChange
        The changes of members.
    changes : SnapshotChanges
        The snapshots to make and to drop.
    members : mapping of str to str
        The paths of the members in a new snapshot, by name.
    bases : dict of str to Snapshot
        The states, read before the commit, of members that it does not write, by path.
    copied : list of RetiredFrame
        Frames with the states that copied snapshots of another group need.
    """

    view: LocalGroup
    change: GroupChange
    changes: SnapshotChanges
    members: Mapping[str, str] = field(default_factory=dict)
    bases: dict[str, Snapshot] = field(default_factory=dict)
    copied: list[RetiredFrame] = field(default_factory=list)
    _retired: dict[str, RetiredFrame] = field(default_factory=dict)  # by the path of the deleted member
    _lists: list[str] = field(default_factory=list)  # objects that this attempt has written

    def copy_early(self) -> None:
        """Copy the states of deleted members that snapshots need. This takes long, so it precedes the commit's locks.

        Other writers may change the members meanwhile. Under the locks, `edit` copies the states that are still
        missing. Errors are ignored: `edit` raises them again.
        """
        with suppress(OSError, B2ArrayError):  # `edit` raises the same error again if it persists
            self._retire_removed(self.view.manifest)

    def require_fit(self, before: Manifest) -> None:
        """Raise ConflictError if the snapshots do not fit on top of other writers' commits.

        For a new snapshot, this lists the members of the group again.
        """
        changes, url = self.changes, self.view.url
        changes.require_fit(before)
        # Retired frames note the group by its identity, so from then on it must not change.
        is_other = before.identity not in ("", self.change.identity)
        if is_other and (changes.new or changes.copies):
            raise ConflictError(f"{url}: another writer has made the first commit meanwhile")
        if not changes.new:
            return
        begun, latest = self.view.members(), self.view.members_of(before)
        if {**begun} != {**latest}:
            raise ConflictError(f"{url}: another writer has made or deleted members meanwhile")

    def edit(
        self,
        before: Manifest,
        after: Manifest,
        frames: Mapping[str, Frame],
        lock: Lock,
    ) -> Manifest:
        """Write the lists and copies that snapshots need, and return the manifest that refers to them.

        This first deletes the lists of an earlier attempt. Without changes to snapshots, and without states to copy, it
        returns `after` itself. `commit_entries` calls this, and describes the parameters.
        """
        self._delete_lists()  # another attempt may have written some
        retired = self._retire_removed(before)
        if not (retired or self.changes):
            return after
        states: dict[str, MemberState] = {}
        if self.changes.new:
            states = self._pack_states(before, after, frames, lock)
        kept = self.changes.write_lists(before, states, self._put_list)
        new = [*retired.values(), *self.copied]
        frames_after = _list_retired(before.retired, self.changes.gone, new)
        return replace(after, kept=kept, retired=frames_after)

    def discard(self) -> None:
        """Remove all written lists and copies, as far as possible; ignore errors."""
        with suppress(OSError, B2ArrayError):  # `vacuum` removes the rest
            self._delete_lists()
        for frame in [*self._retired.values(), *self.copied]:
            _remove_retired(self.view, frame.token)
        self._retired.clear()

    def remove_unneeded(self, before: Manifest, after: Manifest) -> None:
        """Remove files that only dropped snapshots needed, given the manifests before and after the commit.

        Errors are ignored, because the commit stands.
        """
        view = self.view
        with suppress(OSError, B2ArrayError):  # the commit stands, and `vacuum` removes the rest
            remaining = {*group_ledger(view.url, after).entries}
            gone = {*group_ledger(view.url, before).entries} - remaining
            places = [entry.place for entry in gone if not entry.packed]
            view.store.delete([*map(object_name, places)])
            for token in before.retired.keys() - after.retired.keys():
                _remove_retired(view, token)

    # Lists of members.

    def _put_list(self, name: str, packed: bytes) -> None:
        """Write a packed list of members to a new object, and force it to the disk; `_delete_lists` can delete it."""
        self._lists.append(name)
        create_under_own_name(self.view.store, name, packed)
        # The list must reach the disk before the manifest that names it.
        self.view.store_of(name).force()

    def _delete_lists(self) -> None:
        """Delete the lists that this attempt has written, and forget their names."""
        names, self._lists = self._lists, []
        self.view.store.delete(names)

    def _pack_states(
        self,
        before: Manifest,
        after: Manifest,
        frames: Mapping[str, Frame],
        lock: Lock,
    ) -> dict[str, MemberState]:
        """Read and pack the states of all members after the commit; return them by name.

        This may lock members that the commit does not write; see `_read_unchanged`.
        """
        unchanged = self._read_unchanged(before, after, lock)
        states = {}
        for name, path in self.members.items():
            change = self.change.members.get(path)
            if path in unchanged:
                state = unchanged[path].state
            elif path in frames or change is None:
                state = parse(frames[path])
            else:
                # A new member, which is already committed in the place next to its path.
                state = change.handle.snapshot.state
            states[name] = _pack_member(path, state)
        return states

    def _read_unchanged(
        self,
        before: Manifest,
        after: Manifest,
        lock: Lock,
    ) -> dict[str, Snapshot]:
        """Read the members that the commit does not write; return their states, all from one moment, by path.

        The caller has the manifest's lock. This reads the members repeatedly until no state has changed since the last
        round. The last round locks the members. The first snapshot of a group always does so, because a writer that has
        seen no snapshot may be about to rewrite a file. Raises ConflictError if a commit of one of the members is not
        applied yet, or if another writer has deleted a member.
        """
        paths = self.change.same
        if waiting := sorted({*paths} & after.log.keys()):
            raise ConflictError(f"{self.view.url}: a commit of {waiting[0]} waits to be applied")
        states = {path: self.bases[path] for path in paths if path in self.bases}
        for _ in range(config.retries if before.kept else 0):
            changed = [path for path in paths if _update_state(self.view, path, before, states)]
            if not changed:
                return states
        for path in paths:
            if path not in states:
                _update_state(self.view, path, before, states)
        # Each lock keeps a file descriptor, and descriptors may run out, so open no other file between the locks.
        for path in sorted(paths):
            lock(path, states[path].name)
        for path in paths:
            _update_state(self.view, path, before, states)
        return states

    # Deleted members.

    def _retire_removed(self, manifest: Manifest) -> dict[str, RetiredFrame]:
        """Copy the states of deleted members that snapshots need; return the retired frames by the members' paths.

        Copies of an earlier call are used again if they still suffice. Raises the errors of `_copy_states`.
        """
        removed = self.change.removed
        if not removed or not manifest.kept:
            return {}
        ledger = group_ledger(self.view.url, manifest)
        names = {*ledger.names} - self.changes.gone
        if not names:
            return {}
        retired = {}
        for path in self.view.paths_of(removed.keys(), manifest):
            if is_embedded(path):  # snapshots give embedded members frames before they name their states
                continue
            frame = self._retire_member(path, manifest, names)
            if frame is not None:
                retired[path] = frame
        return retired

    def _retire_member(
        self,
        path: str,
        manifest: Manifest,
        names: Collection[str],
    ) -> RetiredFrame | None:
        """Copy the states of a member that these snapshots need, unless an earlier copy has them; return the copy.

        A copy that lacks some of them is removed. Return None if there is no such member, or nothing to copy.
        """
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
    """Return the packed state of a member, as the list of a snapshot names it."""
    is_sparse = state.frame.frame_type == FrameType.SPARSE
    packed = pack_state(state, pack_header(state.frame))
    return MemberState(path, state.frame.fingerprint, is_sparse, packed)


def _update_state(
    view: LocalGroup,
    path: str,
    before: Manifest,
    states: dict[str, Snapshot],
) -> bool:
    """Read a member, put its state into `states`, and return whether this has changed `states`.

    Raises ConflictError if the member does not exist any more, or cannot be in a snapshot any more.
    """
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
    """Copy the states of a member that snapshots need to a retired frame; None if snapshots need no state.

    An error names the snapshots that the user can drop to delete the member.
    """
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
    """Remove the retired frame with this token, as far as possible."""
    remove_frame(view.store_of(retired_path(token)))


def _list_retired(
    before: Retired,
    gone: Collection[str],
    new: Iterable[RetiredFrame],
) -> Retired:
    """Return the states in retired frames, with the `new` frames and without the dropped snapshots `gone`."""
    after = {}
    for token, states in before.items():
        remaining = tuple(state for state in states if state[0] not in gone)
        if remaining:
            after[token] = remaining
    for frame in new:
        after[frame.token] = frame.states
    return after


def is_pinned(view: LocalGroup, path: str) -> bool:
    """Return whether snapshots of the group need chunks of a member, and no snapshot of the member alone needs any.

    This reads the member and the indexes of its states.
    """
    latest = view.current(path)
    own = [entry for entry in ledger_in(latest).entries if not (entry.packed or entry.group)]
    if own:
        return False
    pins = pins_in(view.store, view.load_manifest(), path)
    states = [find_state(latest, pin.state, pin.group) for pin in pins]
    return any(state is not None and state.frame.nchunks for state in states)
