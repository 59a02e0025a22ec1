"""States of a whole group under names: where they lie, and `Moment`, the group as it was.

The manifest has a ledger of the group's snapshots. For each there is a list of members: the path of each member, and
the generation of the state that the member's own frame keeps. Short lists lie in the ledger, each other one in an
object beside the manifest. Those states have the name of the snapshot in the ledgers of the members, and note the group
that they are part of.

A member may be deleted or replaced. Before that, the transaction copies the states that snapshots need to a retired
frame, which is no member. The manifest names these frames, and which states they keep.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgpack

from b2array.buffers import Buffer
from b2array.engine import kept, snapshot
from b2array.engine.commit import commit, copied
from b2array.engine.draft import is_part
from b2array.engine.handle import Handle, Mode
from b2array.engine.manifest import MANIFEST, RETIRED, Manifest, is_member_name, members_among, retired_path
from b2array.engine.snapshot import Snapshot, ledger_in, unknown_name
from b2array.engine.source import FRAME_NAME
from b2array.errors import B2ArrayError, ConflictError, FormatError, ReadOnlyError, UnsupportedError, located
from b2array.format.attributes import UNREADABLE
from b2array.format.header import FrameType
from b2array.format.kept import KEPT, Kept, Ledger, object_name, sealed, unsealed
from b2array.group.directory import Directory
from b2array.group.members import Members
from b2array.store.base import MISSING, Store
from b2array.store.spans import Span

__all__ = [
    "Moment", "RetiredFrame", "State", "group_ledger", "moment", "pack_members", "remove_frame", "retire",
    "states_needed", "unneeded", "unpack_members",
]  # fmt: skip

_VERSION = 1
_OURS = re.compile(rf"[0-9a-fA-F]{{16}}{re.escape(KEPT)}\Z|{re.escape(RETIRED)}/[0-9a-f]{{16}}/")
"""Lists of members, and retired frames. Files with other names may be somebody's."""


class State(NamedTuple):
    """Where a member of a snapshot was, the generation of its state, and whether its frame was sparse."""

    path: str
    generation: bytes
    sparse: bool = False


def group_ledger(url: str, manifest: Manifest) -> Ledger:
    """Return the ledger of the snapshots of a group; FormatError or UnsupportedError if it cannot be read."""
    return located(f"{url}/{MANIFEST}", lambda: Ledger.unpack(manifest.kept))


def pack_members(members: Mapping[str, State]) -> bytes:
    """Return the members of a snapshot as bytes, with a digest at the end.

    Examples
    --------
    >>> packed = pack_members({"x": State("x.b2nd", b"1")})
    >>> unpack_members(packed, packed[-16:])
    {'x': State(path='x.b2nd', generation=b'1', sparse=False)}
    """
    packed: bytes = msgpack.packb({"v": _VERSION, "members": {name: [*state] for name, state in members.items()}})
    return sealed(packed)


def unpack_members(buf: Buffer, digest: bytes) -> dict[str, State]:
    """Read what `pack_members` packed.

    FormatError: it is something else. UnsupportedError: a later version wrote it.
    """
    packed = unsealed(buf, digest, "the members of a snapshot")
    content: Any = None
    with suppress(*UNREADABLE):
        content = msgpack.unpackb(packed)
    if not isinstance(content, dict) or content.get("v") != _VERSION:
        raise UnsupportedError(f"expected the members of a snapshot of version {_VERSION}, found others")
    members = content.get("members")
    if not isinstance(members, dict):
        raise FormatError(f"expected the members of a snapshot by name, found {members!r}")
    for name, state in members.items():
        is_state = isinstance(state, list) and [*map(type, state)] == [str, bytes, bool]
        if not (isinstance(name, str) and is_member_name(name) and is_state and members_among(state[:1])):
            raise FormatError(f"expected a member's name, path and generation, found {name!r} and {state!r}")
    return {name: State(*state) for name, state in members.items()}


# Members that go.


class RetiredFrame(NamedTuple):
    """A retired frame, and the names and generations of the states that it keeps."""

    token: str
    states: tuple[tuple[str, bytes], ...]


def states_needed(held: Snapshot, group: str, names: Collection[str]) -> list[Kept]:
    """Return the states in a member's frame that the group's snapshots of these names may need."""
    identity = group.encode()
    return [entry for entry in ledger_in(held).entries if entry.group == identity and entry.name in names]


def retire(view: Directory, states: Sequence[Snapshot]) -> RetiredFrame:
    """Copy kept states of one member to a retired frame, which the next manifest names.

    It is a sparse frame, which python-blosc2 does not take for a member. FormatError: a state is damaged.
    """
    token = os.urandom(8).hex()
    store = view.store_of(retired_path(token))
    entries = [held.at for held in states if held.at is not None]
    keeps = [kept.KeptState(*each) for each in zip(entries, states, strict=True)]
    commit(copied(states[-1], store, FrameType.SPARSE, kept=keeps))
    for path in (retired_path(token), RETIRED, ""):
        view.store_of(path).force()
    return RetiredFrame(token, tuple((entry.name, entry.generation) for entry in entries))


def remove_frame(store: Store) -> None:
    """Remove a retired frame, as far as possible."""
    with suppress(OSError, B2ArrayError):
        store.remove(FRAME_NAME, is_part)


def unneeded(group: Directory, manifest: Manifest) -> list[str]:
    """Return the paths in a group of what no snapshot needs: of dropped ones, and of writers that were killed."""
    needed = {object_name(entry.place) for entry in group_ledger(group.url, manifest).entries}
    needed |= {retired_path(token) for token in manifest.retired}
    found = set()
    for path in group.store.walk():
        if (match := _OURS.match(path)) is not None:
            found.add(match[0].rstrip("/"))
    return sorted(found - needed)


# The group as it was.


def moment(group: Directory, name: str, manifest: Manifest | None = None) -> Moment:
    """Return a group as it was at a snapshot; KeyError if there is none of this name.

    The caller may have read the `manifest` already.
    """
    manifest, members = manifest or group.stored(), None
    entry = group_ledger(group.url, manifest).find(name)
    if entry is not None:
        try:
            members = _members(group, entry)
        except FileNotFoundError:  # it may have been dropped meanwhile
            if group.stored() == manifest:
                raise FormatError(f"{group.url}: expected the members of the snapshot {name!r}, found none") from None
            return moment(group, name)
    if entry is None or members is None:
        raise unknown_name(group.url, name, group_ledger(group.url, manifest).names)
    return Moment(group, manifest, entry, members)


def _members(group: Directory, entry: Kept) -> dict[str, State]:
    view: Buffer = entry.packed
    if not view:
        (view,) = group.store.read([Span(object_name(entry.place), 0, entry.nbytes)])
    return located(f"{group.url}: snapshot {entry.name!r}", lambda: unpack_members(view, entry.digest))


class Moment:
    """The members of a group as they were at a snapshot. For reading."""

    def __init__(self, group: Directory, manifest: Manifest, entry: Kept, states: Mapping[str, State]) -> None:
        self.group = group
        self._manifest = manifest
        self.entry = entry
        self.states = states
        self._shown = Members({name: state.path for name, state in states.items()})
        self._generations = {state.path: state.generation for state in states.values()}

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

    def held(self, path: str) -> Snapshot:
        """Return the state of a member. Raises what `open` raises."""
        for is_last in (False, True):
            try:
                found = self._found(path)
            except ConflictError:
                if is_last:
                    raise
                found = None
            if found is not None:
                return found
            if not is_last:  # the member may have been retired meanwhile
                self._manifest = self.group.stored()
        now = group_ledger(self.url, self._manifest).find(self.name)
        if now is None or now.digest != self.entry.digest:
            raise ConflictError(f"{self.url}: the snapshot {self.name!r} was dropped since it was opened")
        raise FormatError(
            f"{self.url}: expected the state {self.name!r} of {path}, found none: somebody has removed or replaced the"
            " member without the group"
        )

    def is_retired(self, path: str) -> bool:
        """Whether a retired frame keeps the state of a member that had this path."""
        return self._token(path) is not None

    def _token(self, path: str) -> str | None:
        wanted = self.name, self._generations[path]
        return next((token for token, states in self._manifest.retired.items() if wanted in states), None)

    def _found(self, path: str) -> Snapshot | None:
        group, token, generation = self.group, self._token(path), self._generations[path]
        try:
            if token is not None:
                held = snapshot.load(group.store_of(retired_path(token)))
            else:
                held = group.state_of(path, self._manifest)
        except (*MISSING, ConflictError):
            return None
        entry = ledger_in(held).find(self.name)
        if entry is None or entry.generation != generation:
            return None
        return kept.opened(held, self.name)
