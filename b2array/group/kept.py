"""`Moment`, a group at a snapshot; and retired frames, which keep the states of deleted members.

A snapshot of a local group stores the packed states of the members; the chunks remain in the members' frames. Before a
transaction deletes or replaces a member, it copies the states that snapshots need to a retired frame, which is not a
member. The manifest lists the retired frames, and the states in each. In an object store, a snapshot names revisions,
which never move.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from b2array.commit.copied_states import KeptState
from b2array.commit.handle import Handle, Mode
from b2array.commit.leftovers import belongs
from b2array.commit.one import commit
from b2array.commit.pins import Pin
from b2array.commit.prepare import copy_frame
from b2array.errors import B2ArrayError, ConflictError, FormatError, ReadOnlyError
from b2array.format.header import FrameType
from b2array.format.kept import KEPT, Kept, name_for_group, object_name
from b2array.frame import kept, snapshot
from b2array.frame.kept import find_state
from b2array.frame.listing import MemberState, group_ledger, load_members
from b2array.frame.manifest import RETIRED, Manifest, retired_path
from b2array.frame.snapshot import Snapshot, ledger_in, unknown_name
from b2array.frame.source import FRAME_NAME
from b2array.group.listed import AnyGroup, ListedGroup
from b2array.group.local import LocalGroup
from b2array.group.members import Members
from b2array.store.base import MISSING, Store

__all__ = [
    "Moment",
    "RetiredFrame",
    "dropped_meanwhile",
    "earlier_states",
    "entry_of",
    "find_needed_states",
    "find_unneeded",
    "is_same_file",
    "moment",
    "moment_of",
    "remove_frame",
    "retire",
]

_OURS = re.compile(rf"[0-9a-fA-F]{{16}}{re.escape(KEPT)}\Z|{re.escape(RETIRED)}/[0-9a-f]{{16}}/")
"""The paths of lists of members and of retired frames. Files with other names may belong to someone else."""


# Retired frames.


class RetiredFrame(NamedTuple):
    """The token of a retired frame, and the name and generation of each state in it."""

    token: str
    states: tuple[tuple[str, bytes], ...]


def find_needed_states(source: Snapshot, pins: Sequence[Pin]) -> list[Snapshot]:
    """Read the states in a member's frame that snapshots of the group need, and return them, the oldest first.

    A state that several snapshots need appears once for each. A state of another frame, which this one has replaced, is
    already lost. Raises the errors of `find_state`.
    """
    entries: list[tuple[Kept, Snapshot]] = []
    for pin in pins:
        state = find_state(source, pin.state, pin.group, pin.title)
        if state is not None and state.at is not None:
            at = state.at
            new = [_entry_of_snapshot(entry, at) for entry in pin.entries]
            entries += [(entry, replace(state, at=entry)) for entry in new]
    entries.sort(key=lambda pair: pair[0].time)
    return [state for _, state in entries]


def _entry_of_snapshot(entry: Kept, at: Kept) -> Kept:
    """Return an entry for a state in a retired frame, with the name, time and message of the snapshot's `entry`."""
    return replace(at, name=entry.name, time=entry.time, message=entry.message)


def retire(view: LocalGroup, states: Sequence[Snapshot]) -> RetiredFrame:
    """Copy kept states of one member to a new retired frame; the caller lists it in the next manifest.

    The frame reaches the disk before this returns. It is sparse, so that python-blosc2 does not take it for a member.
    FormatError says that a state is damaged.
    """
    token = os.urandom(8).hex()
    path = retired_path(token)
    entries = [state.at for state in states if state.at is not None]
    keeps = [KeptState(*each) for each in zip(entries, states, strict=True)]
    draft = copy_frame(states[-1], view.store_of(path), FrameType.SPARSE, kept=keeps)
    commit(draft)
    # The frame, and its name in the directories around it, must be on the disk before the member disappears.
    for each in (path, RETIRED, ""):
        view.store_of(each).force()
    names = tuple((entry.name, entry.generation) for entry in entries)
    return RetiredFrame(token, names)


def earlier_states(
    moments: Sequence[Moment],
    name: str,
    group: bytes,
    now: Snapshot,
) -> list[KeptState]:
    """Read and return the states of a member at snapshots of its group, for a copy of the member in another group.

    A copy can keep only states whose chunks are still in the same places in the member's frame.
    """
    states: dict[bytes, KeptState] = {}
    for then in moments:
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
            entry = entry_of(then, state, group)
            named = replace(entry, name=name_for_group(state.generation))
            states[state.generation] = KeptState(named, source)
    return [*states.values()]


def is_same_file(one: Snapshot, other: Snapshot) -> bool:
    """Return whether two states were read from one file, where equal offsets mean the same chunks."""
    if one.version is None or other.version is None:
        return False
    return one.version.tag == other.version.tag


def entry_of(then: Moment, state: MemberState, group: bytes) -> Kept:
    """Return a ledger entry for the state of a member at a snapshot of its group."""
    entry = then.entry
    return Kept(
        entry.name,
        entry.time,
        entry.message,
        generation=state.generation,
        group=group,
    )


def remove_frame(store: Store) -> None:
    """Remove a retired frame. If a part of it cannot be removed, `vacuum` tries again."""
    # No snapshot needs the frame any more, so a leftover file does no harm.
    with suppress(OSError, B2ArrayError):
        store.remove(FRAME_NAME, belongs)


def find_unneeded(group: AnyGroup, manifest: Manifest) -> list[str]:
    """List the files of a group, and return the paths that no snapshot needs.

    They are leftovers of dropped snapshots and of killed writers.
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


def moment(group: AnyGroup, name: str, manifest: Manifest | None = None) -> Moment:
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
        return moment_of(group, entry, manifest)
    except ConflictError:
        # Another writer may have dropped the snapshot meanwhile, or made a new one under this name.
        return moment(group, name)


def moment_of(group: AnyGroup, entry: Kept, manifest: Manifest) -> Moment:
    """Load a group at a snapshot that the ledger of a manifest lists; this reads the list of members, and no member.

    ConflictError: another writer has dropped the snapshot since the manifest was read.
    """
    try:
        members = load_members(group.store, group.url, entry)
    except FileNotFoundError:
        now = group_ledger(group.url, group.load_manifest()).find(entry.name)
        if now == entry:
            raise FormatError(f"{group.url}: expected the members of the snapshot {entry.name!r}, found none") from None
        raise dropped_meanwhile(group.url, entry.name) from None
    return Moment(group, manifest, entry, members)


def dropped_meanwhile(url: str, name: str) -> ConflictError:
    """Return the error for a reader who has listed or opened a snapshot before it was dropped."""
    return ConflictError(f"{url}: the snapshot {name!r} was dropped since it was opened")


class Moment:
    """The members of a group at a snapshot, read-only."""

    def __init__(
        self,
        group: AnyGroup,
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

    def close(self) -> None:
        """Close files of the group."""
        self.group.close()

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
        return Handle(self.state_of(path), "r")

    def state_of(self, path: str, *, deep: bool = False) -> Snapshot:
        """Load the state of a member at the snapshot. Raises the errors of `open`.

        If the state is not in the expected place, this reads the manifest again, and looks once more. With `deep`, also
        check that the chunks are in the places in the index, for callers that rely on it.
        """
        for is_last in (False, True):
            try:
                state = self._find_state(path, deep=deep)
            except ConflictError:
                if is_last:
                    raise
                state = None
            if state is not None:
                state = replace(state, title=self.name)
            if state is not None and isinstance(self.group, ListedGroup):
                return state
            if state is not None:
                # If a local file is replaced while the state is read, look for the state again.
                again = partial(_reload_state, self.group, self.entry, path)
                return replace(state, again=again)
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
        return self._token(path) is not None

    def _token(self, path: str) -> str | None:
        """Return the token of the retired frame that keeps the state of a member; None if no frame does."""
        wanted = self.name, self._states[path].generation
        for token, states in self._manifest.retired.items():
            if wanted in states:
                return token
        return None

    def _find_state(self, path: str, *, deep: bool = False) -> Snapshot | None:
        """Load the state of a member from the place in the manifest; None if it is not there.

        If other software has changed the member's file, this checks that the chunks of the state are intact; with
        `deep`, that they are intact as a whole.
        """
        token = self._token(path)
        state = self._states[path]
        if token is not None:
            # Another transaction may have removed the frame meanwhile.
            with suppress(*MISSING):
                frame = snapshot.load(self.group.store_of(retired_path(token)))
                return _state_in_retired(frame, self.name, state)
            return None
        if isinstance(self.group, ListedGroup):
            return self.group.state_at(self._manifest, self.name, state)
        try:
            source = self.group.state_of(path, self._manifest)
        except MISSING:
            return None
        return kept.find_intact_state(
            source,
            state,
            self.identity.encode(),
            repr(self.name),
            deep=deep,
        )


def _state_in_retired(frame: Snapshot, name: str, state: MemberState) -> Snapshot | None:
    """Load the state that a retired frame keeps for a snapshot; None if the frame keeps another state."""
    entry = ledger_in(frame).find(name)
    if entry is None or entry.generation != state.generation:
        return None
    return kept.load_intact_state(frame, name)


def _reload_state(
    group: AnyGroup,
    entry: Kept,
    path: str,
    *,
    carries_out: bool = False,  # noqa: ARG001
) -> Snapshot:
    """Find and load the state of a member at a snapshot again; ConflictError if the snapshot was dropped."""
    try:
        then = moment(group, entry.name)
    except KeyError:
        then = None
    if then is None or then.entry.digest != entry.digest:
        raise dropped_meanwhile(group.url, entry.name)
    return then.state_of(path)
