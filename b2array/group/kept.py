"""`Moment`, a group as it was at a snapshot; and what a snapshot of a local group needs of members that go.

A snapshot of a local group has the packed states of its members, whose chunks lie in the members' frames. A member may
be deleted or replaced. Before that, the transaction copies the states that snapshots need to a retired frame, which is
no member. The manifest names these frames, and which states they keep. In an object store a snapshot names revisions,
which stay where they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from b2array.commit.copied_states import KeptState
from b2array.commit.draft import is_part
from b2array.commit.handle import Handle, Mode
from b2array.commit.one import commit
from b2array.commit.pins import Pin
from b2array.commit.prepare import copied
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
    "earlier_states",
    "entry_of",
    "is_same_file",
    "moment",
    "remove_frame",
    "retire",
    "states_needed",
    "unneeded",
]

_OURS = re.compile(rf"[0-9a-fA-F]{{16}}{re.escape(KEPT)}\Z|{re.escape(RETIRED)}/[0-9a-f]{{16}}/")
"""Lists of members, and retired frames. Files with other names may be somebody's."""


# Members that go.


class RetiredFrame(NamedTuple):
    """A retired frame, and the names and generations of the states that it keeps."""

    token: str
    states: tuple[tuple[str, bytes], ...]


def states_needed(held: Snapshot, pins: Sequence[Pin]) -> list[Snapshot]:
    """Return the states in a member's frame that the group's snapshots need, once for each of these, the oldest first.

    A state of another frame, which somebody has replaced by this one, is lost already. Raises what `find_state` raises.
    """
    states = []
    for pin in pins:
        state = find_state(held, pin.state, pin.group, pin.title)
        if state is not None and state.at is not None:
            states += [replace(state, at=_entry(entry, state.at)) for entry in pin.entries]
    return sorted(states, key=lambda each: each.at.time if each.at is not None else 0.0)


def _entry(entry: Kept, at: Kept) -> Kept:
    """Return the entry under which a retired frame keeps a state for a snapshot."""
    return replace(at, name=entry.name, time=entry.time, message=entry.message)


def retire(view: LocalGroup, states: Sequence[Snapshot]) -> RetiredFrame:
    """Copy kept states of one member to a retired frame, which the next manifest names.

    It is a sparse frame, which python-blosc2 does not take for a member. FormatError: a state is damaged.
    """
    token = os.urandom(8).hex()
    store = view.store_of(retired_path(token))
    entries = [held.at for held in states if held.at is not None]
    keeps = [KeptState(*each) for each in zip(entries, states, strict=True)]
    commit(copied(states[-1], store, FrameType.SPARSE, kept=keeps))
    for path in (retired_path(token), RETIRED, ""):
        view.store_of(path).force()
    return RetiredFrame(token, tuple((entry.name, entry.generation) for entry in entries))


def earlier_states(moments: Sequence[Moment], name: str, group: bytes, now: Snapshot) -> list[KeptState]:
    """Return the states that a member had at snapshots of its group, for its copy in a group of another identity.

    Only states count whose chunks lie where the member's chunks lie now.
    """
    states: dict[bytes, KeptState] = {}
    for then in moments:
        state = then.states.get(name)
        if state is None or then.is_retired(state.path) or state.generation in states:
            continue
        held = then.held(state.path)
        is_same = held.state.annotations.identity == now.state.annotations.identity
        # A revision of a contiguous member is an object with chunks in other places, and so is a file that was packed.
        is_comparable = held.sparse or (held.store.can.local and is_same_file(held, now))
        # A file without chunks has no room for the chunks of other states.
        has_room = now.frame.nchunks or not held.frame.nchunks
        if is_same and is_comparable and has_room:
            entry = replace(entry_of(then, state, group), name=name_for_group(state.generation))
            states[state.generation] = KeptState(entry, held)
    return [*states.values()]


def is_same_file(one: Snapshot, other: Snapshot) -> bool:
    """Whether two states were read from one file, so that equal places mean the same chunks."""
    return one.version is not None and other.version is not None and one.version.tag == other.version.tag


def entry_of(then: Moment, state: MemberState, group: bytes) -> Kept:
    """Return the entry of a retired frame's ledger for the state that a member had at a snapshot of its group."""
    entry = then.entry
    return Kept(entry.name, entry.time, entry.message, generation=state.generation, group=group)


def remove_frame(store: Store) -> None:
    """Remove a retired frame, as far as possible."""
    with suppress(OSError, B2ArrayError):
        store.remove(FRAME_NAME, is_part)


def unneeded(group: AnyGroup, manifest: Manifest) -> list[str]:
    """Return the paths in a group that no snapshot needs: leftovers of dropped snapshots and of killed writers."""
    needed = {object_name(entry.place) for entry in group_ledger(group.url, manifest).entries}
    needed |= {retired_path(token) for token in manifest.retired}
    found = set()
    for path in group.store.walk():
        if (match := _OURS.match(path)) is not None:
            found.add(match[0].rstrip("/"))
    return sorted(found - needed)


# The group as it was.


def moment(group: AnyGroup, name: str, manifest: Manifest | None = None) -> Moment:
    """Return a group as it was at a snapshot; KeyError if no snapshot has this name.

    The caller may have read the `manifest` already.
    """
    manifest, members = manifest or group.stored(), None
    entry = group_ledger(group.url, manifest).find(name)
    if entry is not None:
        try:
            members = load_members(group.store, group.url, entry)
        except FileNotFoundError:  # it may have been dropped meanwhile
            if group.stored() == manifest:
                raise FormatError(f"{group.url}: expected the members of the snapshot {name!r}, found none") from None
            return moment(group, name)
    if entry is None or members is None:
        raise unknown_name(group.url, name, group_ledger(group.url, manifest).names)
    return Moment(group, manifest, entry, members)


class Moment:
    """The members of a group as they were at a snapshot. For reading."""

    def __init__(self, group: AnyGroup, manifest: Manifest, entry: Kept, states: Mapping[str, MemberState]) -> None:
        self.group = group
        self._manifest = manifest
        self.entry = entry
        self.states = states
        self._shown = Members({name: state.path for name, state in states.items()})
        self._states = {state.path: state for state in states.values()}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.group, self._manifest, self.entry, self.states)

    @property
    def url(self) -> str:
        """Where the group is, without secrets."""
        return self.group.url

    @property
    def store(self) -> Store:
        """Where the group is."""
        return self.group.store

    @property
    def identity(self) -> str:
        """Names the group."""
        return self._manifest.identity

    @property
    def name(self) -> str:
        """The name of the snapshot."""
        return self.entry.name

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""
        return self._shown

    def refresh(self) -> None:
        """Do nothing: a snapshot never changes."""

    def close(self) -> None:
        """Close files."""
        self.group.close()

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member as it was; ConflictError if the snapshot was dropped, FormatError if the state is gone."""
        if mode != "r":
            raise ReadOnlyError(f"{self.url}: a snapshot can only be read; restore() goes back to it")
        return Handle(self.held(path), "r")

    def held(self, path: str, *, deep: bool = False) -> Snapshot:
        """Return the state of a member. Raises what `open` raises.

        With `deep`, for callers that trust the places of the chunks, it is made sure that they are there.
        """
        for is_last in (False, True):
            try:
                found = self._found(path, deep=deep)
            except ConflictError:
                if is_last:
                    raise
                found = None
            if found is not None:
                return found if isinstance(self.group, ListedGroup) else replace(found, again=self._again(path))
            if not is_last:  # the member may have been retired meanwhile
                self._manifest = self.group.stored()
        now = group_ledger(self.url, self._manifest).find(self.name)
        if now is None or now.digest != self.entry.digest:
            raise ConflictError(f"{self.url}: the snapshot {self.name!r} was dropped since it was opened")
        raise FormatError(
            f"{self.url}: expected the state {self.name!r} of {path}, found none: somebody has removed or replaced the"
            " member without the group"
        )

    def _again(self, path: str) -> Callable[..., Snapshot]:
        return partial(_held_again, self.group, self.entry, path)

    def is_retired(self, path: str) -> bool:
        """Whether a retired frame keeps the state of a member that had this path."""
        return self._token(path) is not None

    def _token(self, path: str) -> str | None:
        wanted = self.name, self._states[path].generation
        return next((token for token, states in self._manifest.retired.items() if wanted in states), None)

    def _found(self, path: str, *, deep: bool = False) -> Snapshot | None:
        if isinstance(self.group, ListedGroup) and self._token(path) is None:
            return self.group.state_at(self._manifest, self.name, self._states[path])
        token, state = self._token(path), self._states[path]
        try:
            if token is not None:
                return _retired_state(snapshot.load(self.group.store_of(retired_path(token))), self.name, state)
            if isinstance(self.group, ListedGroup):
                return None
            held = self.group.state_of(path, self._manifest)
        except MISSING:
            return None
        return kept.find_intact_state(held, state, self.identity.encode(), repr(self.name), deep=deep)


def _retired_state(held: Snapshot, name: str, state: MemberState) -> Snapshot | None:
    """Return the state that a retired frame keeps for a snapshot."""
    entry = ledger_in(held).find(name)
    if entry is None or entry.generation != state.generation:
        return None
    return kept.load_intact_state(held, name)


def _held_again(group: AnyGroup, entry: Kept, path: str, *, carries_out: bool = False) -> Snapshot:  # noqa: ARG001
    """Return the state of a member at a snapshot, from where it is now; ConflictError if the snapshot was dropped."""
    try:
        then = moment(group, entry.name)
    except KeyError:
        then = None
    if then is None or then.entry.digest != entry.digest:
        raise ConflictError(f"{group.url}: the snapshot {entry.name!r} was dropped since it was opened")
    return then.held(path)
