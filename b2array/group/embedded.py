"""Small members inside one frame, as python-blosc2's stores keep them: its data are their frames in a row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any

from b2array import config
from b2array.array.schunk import SChunk, create_schunk
from b2array.commit.census import EMBEDDED_MAP, EMBEDDED_NOTES, embedded_extents
from b2array.commit.handle import Handle, Mode
from b2array.errors import FormatError, LimitError, ReadOnlyError, UnsupportedError
from b2array.format.frame import Frame
from b2array.frame import snapshot
from b2array.frame.manifest import EMBEDDED
from b2array.group.members import Members
from b2array.store.base import Store
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store

__all__ = [
    "EMBED_SUFFIX",
    "EmbedFile",
    "holds_members",
    "is_store",
    "members",
    "nothing",
    "open_embedded",
    "remove",
    "state",
]

EMBED_SUFFIX = ".b2e"
_MARK = "b2embed"


class EmbedFile:
    """The members of a file ``.b2e`` of python-blosc2 (`blosc2.EmbedStore`), for reading."""

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self._options = dict(storage_options)
        self.store: Store = open_store(url, storage_options=self._options)
        self._held: SChunk | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store.url, self._options)

    @property
    def url(self) -> str:
        """Where the file is, without secrets."""
        return self.store.url

    def _frame(self) -> SChunk:
        if self._held is None:
            self._held = SChunk(Handle(snapshot.load(self.store), "r"))
        return self._held

    def members(self) -> Members:
        """Return what stands for the path of each member by its name."""
        return Members(members(self._frame()))

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member, which is read into memory."""
        if mode != "r":
            raise ReadOnlyError(f"{self.url} is an embedding store of python-blosc2, which can only be read")
        return open_embedded(self._frame(), path)

    def refresh(self) -> None:
        """Read the file again when it is next needed."""
        self._held = None

    def close(self) -> None:
        """Close the file."""
        self.store.close()


def holds_members(frame: Frame) -> bool:
    """Whether a frame by itself is an embedding store of python-blosc2."""
    return frame.metalayer(_MARK) is not None


def is_store(url: str, storage_options: Mapping[str, Any]) -> bool:
    """Whether a file is an embedding store of python-blosc2."""
    held = snapshot.find_frame(open_store(url, storage_options=storage_options))
    return held is not None and holds_members(held.frame)


def nothing() -> bytes:
    """Return a frame without members. python-blosc2 does not open a group without such a frame."""
    empty = create_schunk(chunksize=2**13, meta={"b2tree": {"version": 1}})
    empty.vlmeta[EMBEDDED_NOTES] = {EMBEDDED_MAP: {}, "current_offset": 0}
    return empty.to_bytes()


class EmbeddedStore(MemoryStore):
    """The bytes of an embedded member, by the URL of the member."""

    advice = f"python-blosc2 keeps it in {EMBEDDED}, so it can only be read: group[name] = group[name] gives it a file"

    def __init__(self, url: str, content: bytes) -> None:
        super().__init__({"": content})
        self.url = url

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.url, self.__getstate__())


def _restored(url: str, objects: Any) -> EmbeddedStore:
    store = EmbeddedStore(url, b"")
    store.__setstate__(objects)
    return store


def members(held: SChunk) -> dict[str, str]:
    """Return what stands for the paths of the embedded members, by their names."""
    return {name: f"{EMBEDDED}/{name}" for name in _extents(held)}


def _extents(held: SChunk) -> dict[str, range | None]:
    return embedded_extents(held._handle.source.state, held.url)


def open_embedded(held: SChunk, path: str) -> Handle:
    """Open an embedded member for reading; a reference to an array on a server is not supported."""
    name = path.removeprefix(EMBEDDED + "/")
    extents = _extents(held)
    if name not in extents:
        raise FormatError(f"{held.url}: expected the embedded member {name!r}, found none")
    extent = extents[name]
    if extent is None:
        raise UnsupportedError(f"{held.url}: the member {name!r} is a reference to an array on a server")
    if len(extent) > config.limits.chunk_nbytes:
        raise LimitError(f"{held.url}: the embedded member {name!r} takes {len(extent)} bytes")
    content = held.get_slice(extent.start, extent.stop)
    store = EmbeddedStore(held.url.removesuffix(EMBEDDED) + name, content)
    return Handle(snapshot.load(store), "r")


def state(held: SChunk, path: str) -> str:
    """Name the state of an embedded member; empty if there is none."""
    name = path.removeprefix(EMBEDDED + "/")
    extents = _extents(held)
    if name not in extents:
        return ""
    extent = extents[name]
    content = b"a reference to an array on a server" if extent is None else held.get_slice(extent.start, extent.stop)
    return blake2b(content, digest_size=16).hexdigest()


def remove(held: SChunk, names: Collection[str]) -> None:
    """Remove embedded members from the list. Their bytes stay."""
    notes = held.vlmeta[EMBEDDED_NOTES]
    kept = {key: entry for key, entry in notes[EMBEDDED_MAP].items() if key[1:] not in names}
    try:
        held.vlmeta[EMBEDDED_NOTES] = {**notes, EMBEDDED_MAP: kept}
    except TypeError as error:
        raise FormatError(f"{held.url}: expected notes of embedded members, found others ({error})") from None
