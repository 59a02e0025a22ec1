"""The frame in which python-blosc2's stores keep small members: their frames, one behind the other, as its data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from b2array import config
from b2array.array.schunk import SChunk, create_schunk
from b2array.engine import snapshot
from b2array.engine.handle import Handle
from b2array.errors import FormatError, LimitError, UnsupportedError, located
from b2array.group.manifest import EMBEDDED, is_member_name
from b2array.store.memory import MemoryStore

__all__ = ["Extent", "extents", "nothing", "open_embedded", "path_of", "remove"]

_NOTES = "estore_metadata"
_MAP = "embed_map"


class Extent(NamedTuple):
    """Where a member's frame is among the data, in bytes; -1 if there is only a reference to a server."""

    start: int
    nbytes: int


def nothing() -> bytes:
    """Return a frame without members. python-blosc2 does not open a group without such a frame."""
    empty = create_schunk(chunksize=2**13, meta={"b2tree": {"version": 1}})
    empty.vlmeta[_NOTES] = {_MAP: {}, "current_offset": 0}
    return empty.to_bytes()


def path_of(name: str) -> str:
    """Return what stands for the path of an embedded member."""
    return f"{EMBEDDED}/{name}"


def extents(held: SChunk) -> dict[str, Extent]:
    """Return the embedded members by name; raise FormatError if they do not lie within the data."""
    notes = held.vlmeta.get(_NOTES, {})
    members = notes.get(_MAP, {}) if isinstance(notes, Mapping) else None
    if not isinstance(members, Mapping):
        raise FormatError(f"{held.url}: expected a map of embedded members, found another value")
    return {_name(held, key): _extent(held, key, entry) for key, entry in members.items()}


def _name(held: SChunk, key: Any) -> str:
    name = key[1:] if isinstance(key, str) and key.startswith("/") else ""
    if not is_member_name(name):
        raise FormatError(f"{held.url}: expected names of embedded members, found {key!r}")
    return name


def _extent(held: SChunk, key: str, entry: Any) -> Extent:
    if isinstance(entry, Mapping) and "urlbase" in entry:
        return Extent(-1, 0)
    start, nbytes = (entry.get("offset"), entry.get("length")) if isinstance(entry, Mapping) else (None, None)
    if type(start) is not int or type(nbytes) is not int or not 0 <= start <= start + nbytes <= held.nbytes:
        raise FormatError(f"{held.url}: expected {key!r} within {held.nbytes} bytes of data, found {entry!r}")
    return Extent(start, nbytes)


def open_embedded(held: SChunk, path: str) -> Handle:
    """Open an embedded member for reading; a reference to an array on a server is not supported."""
    name = path.removeprefix(EMBEDDED + "/")
    extent = extents(held).get(name)
    if extent is None:
        raise FormatError(f"{held.url}: expected the embedded member {name!r}, found none")
    if extent.start < 0:
        raise UnsupportedError(f"{held.url}: the member {name!r} is a reference to an array on a server")
    if extent.nbytes > config.limits.chunk_nbytes:
        raise LimitError(f"{held.url}: the embedded member {name!r} takes {extent.nbytes} bytes")
    content = held.get_slice(extent.start, extent.start + extent.nbytes)
    return located(f"{held.url}: {name}", lambda: Handle(snapshot.load(MemoryStore({"": content})), "r"))


def remove(held: SChunk, names: Collection[str]) -> None:
    """Remove embedded members from the list. Their bytes stay."""
    notes = held.vlmeta[_NOTES]
    kept = {key: entry for key, entry in notes[_MAP].items() if key[1:] not in names}
    try:
        held.vlmeta[_NOTES] = {**notes, _MAP: kept}
    except TypeError as error:
        raise FormatError(f"{held.url}: expected notes of embedded members, found others ({error})") from None
