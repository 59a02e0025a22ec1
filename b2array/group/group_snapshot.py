"""`SnapshotHome`, a group at a snapshot; and retired frames, which keep the states of deleted members.

A snapshot of a local group stores the packed states of the members; the chunks remain in the members' frames. Before a
transaction deletes or replaces a member, it copies the states that snapshots need to a retired frame, which is not a
member. The manifest lists the retired frames, and the states in each. In an object store, a snapshot names revisions,
which never move.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from b2array.catalog import intact, owners
from b2array.catalog.ledgers import MemberState, group_ledger, load_members
from b2array.catalog.manifest import RETIRED, Manifest, retired_path
from b2array.catalog.names_of_members import Members
from b2array.commit.copied_states import KeptState
from b2array.commit.handle import Handle, Mode
from b2array.errors import ConflictError, FormatError, ReadOnlyError
from b2array.format.ledger import KEPT, Kept, name_for_group, object_name
from b2array.frame.kept_states import ledger_in, unknown_name
from b2array.frame.revision import Revision
from b2array.group.homes import GroupHome
from b2array.store.base import MISSING, Store

__all__ = [
    "SnapshotHome",
    "dropped_meanwhile",
    "entry_for_state",
    "find_snapshot",
    "find_unneeded",
    "is_same_file",
    "load_earlier_states",
    "load_snapshot",
]

_OURS = re.compile(rf"[0-9a-fA-F]{{16}}{re.escape(KEPT)}\Z|{re.escape(RETIRED)}/[0-9a-f]{{16}}/")
"""The paths of lists of members and of retired frames. Files with other names may belong to someone else."""


def load_earlier_states(
    snapshots: Sequence[SnapshotHome],
    name: str,
    group: bytes,
    now: Revision,
) -> list[KeptState]:
    """Load the states of a member at snapshots of its group, which a copy of the member in another group keeps.

    `now` is the present state of the member, and `group` the identity of the other group, for the ledger's entries. A
    copy can keep only states whose chunks are still in the same places in the member's frame.
    """
    states: dict[bytes, KeptState] = {}
    for then in snapshots:
        state = then.states.get(name)
        if state is None or then.is_retired(state.path) or state.generation in states:
            continue
        source = then.state_of(state.path)
        is_same = source.state.annotations.identity == now.state.annotations.identity
        # Another revision of a contiguous member, or a repacked file, has its chunks in other places.
        is_comparable = source.sparse or (source.store.can.local and is_same_file(source, now))
        # A file without chunks has no room for the chunks of other states.
        has_room = now.frame.nchunks or not source.frame.nchunks
        if is_same and is_comparable and has_room:
            entry = entry_for_state(then, state, group)
            named = replace(entry, name=name_for_group(state.generation))
            states[state.generation] = KeptState(named, source)
    return [*states.values()]


def is_same_file(one: Revision, other: Revision) -> bool:
    """Return whether two states were read from one file, where equal offsets mean the same chunks; False if unknown."""
    if one.version is None or other.version is None:
        return False
    return one.version.tag == other.version.tag


def entry_for_state(then: SnapshotHome, state: MemberState, group: bytes) -> Kept:
    """Return the entry with which a frame keeps the state of a member for a snapshot of a group.

    The entry has the name, time and message of the snapshot `then`, and the identity `group` of the frame's group.
    """
    entry = then.entry
    return Kept(
        entry.name,
        entry.time,
        entry.message,
        generation=state.generation,
        group=group,
    )


def find_unneeded(group: GroupHome, manifest: Manifest) -> list[str]:
    """List the files of a group, and return the lists of members and the retired frames that no snapshot needs.

    These paths are leftovers of dropped snapshots and of killed writers.
    """
    ledger = group_ledger(group.url, manifest)
    needed = {object_name(entry.place) for entry in ledger.entries}
    needed |= {retired_path(token) for token in manifest.retired}
    leftovers = set()
    for path in group.store.walk():
        match = _OURS.match(path)
        if match is not None:
            leftovers.add(match[0].rstrip("/"))
    return sorted(leftovers - needed)


# The group at a snapshot.


def find_snapshot(group: GroupHome, name: str, manifest: Manifest | None = None) -> SnapshotHome:
    """Load a group at a snapshot; raise KeyError if no snapshot has this name.

    This reads the list of members, and no member. A caller that has read the `manifest` passes it, to save a request.
    If another writer has dropped the snapshot since, this looks again in the latest manifest.
    """
    if manifest is None:
        manifest = group.load_manifest()
    ledger = group_ledger(group.url, manifest)
    entry = ledger.find(name)
    if entry is None:
        raise unknown_name(group.url, name, ledger.names)
    try:
        return load_snapshot(group, entry, manifest)
    except ConflictError:
        # Another writer may have dropped the snapshot meanwhile, or made a new one under this name.
        return find_snapshot(group, name)


def load_snapshot(group: GroupHome, entry: Kept, manifest: Manifest) -> SnapshotHome:
    """Load a group at a snapshot that the ledger of a manifest lists; this reads the list of members, and no member.

    ConflictError: another writer has dropped the snapshot since the manifest was read. FormatError: the list is missing
    or damaged.
    """
    try:
        members = load_members(group.store, group.url, entry)
    except FileNotFoundError:
        now = group_ledger(group.url, group.load_manifest()).find(entry.name)
        if now == entry:
            raise FormatError(f"{group.url}: expected the members of the snapshot {entry.name!r}, found none") from None
        raise dropped_meanwhile(group.url, entry.name) from None
    return SnapshotHome(group, manifest, entry, members)


def dropped_meanwhile(url: str, name: str) -> ConflictError:
    """Return the error for a reader who has listed or opened a snapshot before it was dropped."""
    return ConflictError(f"{url}: the snapshot {name!r} was dropped since it was opened")


class SnapshotHome:
    """The members of a group at a snapshot, read-only.

    Parameters
    ----------
    group : GroupHome
        The group.
    manifest : Manifest
        A manifest that lists the snapshot, and the retired frames that may keep its states.
    entry : Kept
        The entry of the snapshot in the group's ledger.
    states : mapping of str to MemberState
        The states of the members at the snapshot, by name.
    """

    def __init__(
        self,
        group: GroupHome,
        manifest: Manifest,
        entry: Kept,
        states: Mapping[str, MemberState],
    ) -> None:
        self.group = group
        self._manifest = manifest
        self.entry = entry
        self.states = states
        self._members = Members({name: state.path for name, state in states.items()})
        self._states = {state.path: state for state in states.values()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the list of members, so that the copy need not read it."""
        return type(self), (self.group, self._manifest, self.entry, self.states)

    @property
    def url(self) -> str:
        """The URL of the group, without secrets."""
        return self.group.url

    @property
    def store(self) -> Store:
        """The store of the group."""
        return self.group.store

    @property
    def identity(self) -> str:
        """The identity of the group."""
        return self._manifest.identity

    @property
    def name(self) -> str:
        """The name of the snapshot."""
        return self.entry.name

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""
        return self._members

    def refresh(self) -> None:
        """Do nothing: a snapshot never changes."""

    def open(
        self,
        path: str,
        mode: Mode,
        *,
        lazy: bool = False,  # noqa: ARG002
    ) -> Handle:
        """Open a member at the snapshot; raise ReadOnlyError for any mode but "r".

        ConflictError says that the snapshot was dropped, FormatError that the state is lost.
        """
        if mode != "r":
            raise ReadOnlyError(f"{self.url}: a snapshot can only be read; restore() goes back to it")
        return Handle(self.state_of(path, cached=True), "r")

    def state_of(self, path: str, *, deep: bool = False, cached: bool = False) -> Revision:
        """Load the state of a member at the snapshot. Raises the errors of `open`.

        If the state is not where the manifest says, this reads the manifest again, and looks once more: another
        transaction may have deleted the member, and copied the state to a retired frame. In a local group, a
        `SnapshotMember` then owns the revision, and finds the state again if a writer replaces the file.

        If other software has changed the member's file, this checks that the chunks of the state are intact; with
        `deep`, it compares the whole of each chunk. With `cached`, the index may come from the cache on disk.
        """
        for is_last in (False, True):
            try:
                state = self._find_state(path, deep=deep, cached=cached)
            except ConflictError:
                if is_last:
                    raise
                state = None
            if state is not None:
                state = replace(state, title=self.name)
            if state is not None and not self.group.is_local:
                return state
            if state is not None:
                # If a local file is replaced while the state is read, look for the state again.
                return replace(state, owner=SnapshotMember(self.group, self.entry, path))
            # Another transaction may have retired the member meanwhile, as a newer manifest says.
            if not is_last:
                self._manifest = self.group.load_manifest()
        now = group_ledger(self.url, self._manifest).find(self.name)
        if now is None or now.digest != self.entry.digest:
            raise dropped_meanwhile(self.url, self.name)
        raise FormatError(
            f"{self.url}: expected the state {self.name!r} of {path}, found none: the member was removed or replaced"
            " without the group"
        )

    def is_retired(self, path: str) -> bool:
        """Return whether a retired frame keeps the state of the member that had this path."""
        return self._find_token(path) is not None

    def _find_token(self, path: str) -> str | None:
        """Return the name of the retired frame that keeps a member's state, for `retired_path`; None without one."""
        wanted = self.name, self._states[path].generation
        for token, states in self._manifest.retired.items():
            if wanted in states:
                return token
        return None

    def _find_state(self, path: str, *, deep: bool, cached: bool) -> Revision | None:
        """Load the state of a member from a retired frame, or else from the member; None if it is not there.

        If other software has changed the member's file, this checks that the chunks of the state are intact; with
        `deep`, that they are intact as a whole.
        """
        token = self._find_token(path)
        state = self._states[path]
        if token is not None:
            # Another transaction may have removed the frame meanwhile.
            with suppress(*MISSING):
                frame = owners.load(self.group.store_of(retired_path(token)))
                return _state_in_retired(frame, self.name, state)
            return None
        return self.group.state_at(self._manifest, self.name, state, deep=deep, cached=cached)


def _state_in_retired(frame: Revision, name: str, state: MemberState) -> Revision | None:
    """Load the state that a retired frame keeps for a snapshot; None if the frame keeps another state."""
    entry = ledger_in(frame).find(name)
    if entry is None or entry.generation != state.generation:
        return None
    return intact.load_intact_state(frame, name)


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotMember:
    """The owner of a local member's state at a snapshot of its group: it finds the state in its present place.

    Parameters
    ----------
    group : GroupHome
        The group.
    entry : Kept
        The snapshot.
    path : str
        The path of the member at the snapshot.
    """

    group: GroupHome
    entry: Kept
    path: str

    may_move: ClassVar[bool] = True
    lists_revisions: ClassVar[bool] = False

    def load(self, last: Revision, *, even_new: bool = False) -> Revision:  # noqa: ARG002 - a snapshot has one state
        """Load the state again, from its present place; ConflictError if the snapshot was dropped."""
        try:
            then = find_snapshot(self.group, self.entry.name)
        except KeyError:
            then = None
        if then is None or then.entry.digest != self.entry.digest:
            raise dropped_meanwhile(self.group.url, self.entry.name)
        return then.state_of(self.path)
