"""The ledger of a group's snapshots, and the list of members in each snapshot.

The manifest contains the ledger. A short list of members is part of the ledger's entry; a long one is an object next to
the manifest. For each member, the list has its path and names its state. In an object store, the list names a revision.
On a local disk, it contains the packed state itself: header, metalayers and index, which refer to chunks in the
member's frame. A commit only appends to the frame, so these chunks stay in place. A writer that replaces the whole file
keeps the state in the new frame, under the name of its generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgpack

from b2array.buffers import Buffer
from b2array.catalog.manifest import MANIFEST, Manifest, Row, is_embedded, is_member_name, members_among
from b2array.errors import FormatError, UnsupportedError, prefix_errors
from b2array.format.attributes import UNREADABLE
from b2array.format.ledger import Kept, Ledger, object_name, seal, unseal
from b2array.store.base import Store
from b2array.store.spans import Span

__all__ = [
    "MemberState",
    "group_ledger",
    "load_members",
    "names_same_state",
    "pack_members",
    "state_in",
    "unpack_members",
]

_VERSION = 1


class MemberState(NamedTuple):
    """The state of a member in a snapshot.

    Attributes
    ----------
    path : str
        The path of the member's frame in the group.
    generation : bytes
        The generation of the state.
    sparse : bool
        Whether the frame was sparse.
    packed : bytes
        On a local disk, the state as `pack_state` packs it; empty if the frame keeps the state itself.
    """

    path: str
    generation: bytes
    sparse: bool = False
    packed: bytes = b""


def state_in(row: Row) -> MemberState:
    """Return the state of a member that a row names, in the form in which a snapshot names it."""
    return MemberState(row.path, bytes.fromhex(row.generation), row.sparse)


def names_same_state(row: Row | None, state: MemberState) -> bool:
    """Return whether a row names the state that a snapshot names; False without a row."""
    if row is None:
        return False
    return (row.path, row.generation) == (state.path, state.generation.hex())


def group_ledger(url: str, manifest: Manifest) -> Ledger:
    """Return the ledger of the snapshots of a group; FormatError or UnsupportedError if it cannot be read."""
    where = f"{url}/{MANIFEST}"
    return prefix_errors(where, lambda: Ledger.unpack(manifest.kept))


def pack_members(members: Mapping[str, MemberState]) -> bytes:
    """Return the members of a snapshot as bytes, with a digest at the end.

    Examples
    --------
    >>> packed = pack_members({"x": MemberState("x.b2nd", b"1")})
    >>> unpack_members(packed, packed[-16:])
    {'x': MemberState(path='x.b2nd', generation=b'1', sparse=False, packed=b'')}
    """
    states = {name: [*state] for name, state in members.items()}
    packed: bytes = msgpack.packb({"v": _VERSION, "members": states})
    return seal(packed)


def unpack_members(buf: Buffer, digest: bytes) -> dict[str, MemberState]:
    """Return the states of the members of a snapshot by name, from bytes that `pack_members` returned.

    `digest` is the digest in the snapshot's entry. FormatError: these are other bytes. UnsupportedError: a later
    version wrote them.
    """
    packed = unseal(buf, digest, "the members of a snapshot")
    content: Any = None
    # Bytes that msgpack cannot unpack fail the check below.
    with suppress(*UNREADABLE):
        content = msgpack.unpackb(packed)
    if not isinstance(content, dict) or content.get("v") != _VERSION:
        raise UnsupportedError(f"expected the members of a snapshot of version {_VERSION}, found others")
    members = content.get("members")
    if not isinstance(members, dict):
        raise FormatError(f"expected the members of a snapshot by name, found {members!r}")
    for name, state in members.items():
        is_name = isinstance(name, str) and is_member_name(name)
        if not is_name or not _is_state(state):
            raise FormatError(f"expected a member's name, path and generation, found {name!r} and {state!r}")
    return {name: MemberState(*state) for name, state in members.items()}


def _is_state(content: Any) -> bool:
    """Whether these are the fields of a `MemberState`."""
    types = [*map(type, content)] if isinstance(content, list) else []
    if types != [str, bytes, bool, bytes]:
        return False
    path = content[0]
    return bool(members_among([path])) or is_embedded(path)


def load_members(group: Store, url: str, entry: Kept) -> dict[str, MemberState]:
    """Read the members of a snapshot, by name, given its entry in the ledger of the group at a URL.

    FileNotFoundError: the object with a long list is missing. Raises the errors of `unpack_members`.
    """
    view: Buffer = entry.packed
    if not view:
        # A long list is a separate object, so that commits need not write it again with the manifest.
        span = Span(object_name(entry.place), 0, entry.nbytes)
        (view,) = group.read([span])
    where = f"{url}: snapshot {entry.name!r}"
    return prefix_errors(where, lambda: unpack_members(view, entry.digest))
