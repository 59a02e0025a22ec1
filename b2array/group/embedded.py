"""Small members that python-blosc2 embeds in one frame, whose data are the members' frames one after another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from b2array import config
from b2array.array.schunk import SChunk, create_schunk
from b2array.catalog import owners
from b2array.catalog.census import EMBEDDED_MAP, EMBEDDED_NOTES, OBJECTS, TABLE, embedded_extents, find_objects
from b2array.catalog.manifest import EMBEDDED
from b2array.catalog.names_of_members import Members
from b2array.commit.handle import Handle, Mode
from b2array.errors import FormatError, LimitError, ReadOnlyError, UnsupportedError
from b2array.format.frame import Frame
from b2array.store.base import Store
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store

__all__ = [
    "EMBED_SUFFIX",
    "EmbedFile",
    "holds_members",
    "is_embed_file",
    "lists_objects",
    "members",
    "open_member",
    "pack_empty_frame",
    "put_back",
    "remove",
    "update_tables",
]

EMBED_SUFFIX = ".b2e"
_MARK = "b2embed"


class EmbedFile:
    """The members of a file ``.b2e`` of python-blosc2 (`blosc2.EmbedStore`), for reading."""

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self._options = dict(storage_options)
        self.store: Store = open_store(url, storage_options=self._options)
        self._frame: SChunk | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the URL and the options: the copy reads the file again."""
        return type(self), (self.store.url, self._options)

    @property
    def url(self) -> str:
        """The URL of the file, without secrets."""
        return self.store.url

    def _open_frame(self) -> SChunk:
        """Open the embedding frame at the first use, and keep it."""
        if self._frame is None:
            source = owners.load(self.store, cached=True)
            self._frame = SChunk(Handle(source, "r"))
        return self._frame

    def members(self) -> Members:
        """Return a path for each member by its name, as the function `members` does; the first use reads the frame."""
        return Members(members(self._open_frame()))

    def open(
        self,
        path: str,
        mode: Mode,
        *,
        lazy: bool = False,  # noqa: ARG002
    ) -> Handle:
        """Read a member into memory, and open it there; raise ReadOnlyError for any mode but "r"."""
        if mode != "r":
            raise ReadOnlyError(f"{self.url} is an embedding store of python-blosc2, which can only be read")
        return open_member(self._open_frame(), path)

    def refresh(self) -> None:
        """Forget the frame; the next use reads the file again."""
        self._frame = None


def holds_members(frame: Frame) -> bool:
    """Return whether a frame is an embedding store of python-blosc2 on its own, not one inside a group."""
    return frame.metalayer(_MARK) is not None


def is_embed_file(url: str, storage_options: Mapping[str, Any]) -> bool:
    """Read the frame in a file, and return whether it is an embedding store of python-blosc2; False without a frame."""
    try:
        published = owners.load_published(open_store(url, storage_options=storage_options))
    except (FileNotFoundError, FormatError, UnsupportedError):
        return False
    return holds_members(published.frame)


def pack_empty_frame() -> bytes:
    """Return the bytes of a frame without members. python-blosc2 opens no group without an embedding frame."""
    empty = create_schunk(chunksize=2**13, meta={"b2tree": {"version": 1}})
    empty.vlmeta[EMBEDDED_NOTES] = {EMBEDDED_MAP: {}, "current_offset": 0}
    return empty.to_bytes()


class EmbeddedStore(MemoryStore):
    """The bytes of an embedded member. Messages name the member by its URL."""

    advice = f"python-blosc2 keeps it in {EMBEDDED}, so it can only be read: group[name] = group[name] gives it a file"

    def __init__(self, url: str, content: bytes) -> None:
        super().__init__({"": content})
        self.url = url

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the URL and the bytes."""
        return _unpickle_embedded_store, (self.url, self.__getstate__())


def _unpickle_embedded_store(url: str, state: Any) -> EmbeddedStore:
    """Make an `EmbeddedStore` from its pickle. `state` has its bytes, as `MemoryStore.__getstate__` returned them."""
    store = EmbeddedStore(url, b"")
    store.__setstate__(state)
    return store


def members(schunk: SChunk) -> dict[str, str]:
    """Return a path for each member of an embedding frame by its name, such as ``embed.b2e/air`` for ``air``.

    Raises FormatError if the frame's list of members is damaged.
    """
    return {name: f"{EMBEDDED}/{name}" for name in _find_extents(schunk)}


def _find_extents(schunk: SChunk) -> dict[str, range | None]:
    """Return the range of each embedded member in the frame's bytes, by name; None for a reference to a server."""
    return embedded_extents(schunk._handle.source.state, schunk.url)


def open_member(schunk: SChunk, path: str) -> Handle:
    """Read an embedded member into memory, and open it for reading.

    Raises FormatError for a missing member, UnsupportedError for a reference to a server, and LimitError for a member
    that is too large.
    """
    name = path.removeprefix(EMBEDDED + "/")
    extents = _find_extents(schunk)
    if name not in extents:
        raise FormatError(f"{schunk.url}: expected the embedded member {name!r}, found none")
    extent = extents[name]
    if extent is None:
        raise UnsupportedError(
            f"{schunk.url}: the member {name!r} is a reference to an array or a group on a server; let python-blosc2"
            " open it"
        )
    if len(extent) > config.limits.chunk_nbytes:
        raise LimitError(f"{schunk.url}: the embedded member {name!r} takes {len(extent)} bytes")
    content = schunk.get_slice(extent.start, extent.stop)
    store = EmbeddedStore(schunk.url.removesuffix(EMBEDDED) + name, content)
    return Handle(owners.load(store), "r")


def remove(schunk: SChunk, names: Collection[str]) -> None:
    """Remove embedded members from the two lists in the attributes of the frame: the map, and the list of objects.

    `schunk` is the embedding frame, in a transaction. The bytes of the members stay in it.
    """
    objects = _objects(schunk)
    others = {key: entry for key, entry in objects.items() if key[1:] not in names}
    if others != objects:
        schunk.vlmeta[OBJECTS] = others
    if any(name in names for name in _find_extents(schunk)):
        entries = schunk.vlmeta[EMBEDDED_NOTES][EMBEDDED_MAP]
        _replace_map(schunk, {key: entry for key, entry in entries.items() if key[1:] not in names})


def put_back(schunk: SChunk, names: Collection[str]) -> None:
    """Undo `remove` in the transaction of the frame: list these members as the committed frame does."""
    committed = SChunk(Handle(schunk._handle.revision, "r"))
    objects = {key: entry for key, entry in _objects(committed).items() if key[1:] in names}
    if objects:
        schunk.vlmeta[OBJECTS] = {**_objects(schunk), **objects}
    if any(name in names for name in _find_extents(committed)):
        before = committed.vlmeta[EMBEDDED_NOTES][EMBEDDED_MAP]
        entries = schunk.vlmeta[EMBEDDED_NOTES][EMBEDDED_MAP]
        _replace_map(schunk, entries | {key: entry for key, entry in before.items() if key[1:] in names})


def _replace_map(schunk: SChunk, entries: Mapping[str, Any]) -> None:
    """Replace the map of embedded members in the notes of python-blosc2, an attribute of the frame.

    Raises FormatError if the frame has other notes.
    """
    notes = schunk.vlmeta[EMBEDDED_NOTES]
    try:
        schunk.vlmeta[EMBEDDED_NOTES] = {**notes, EMBEDDED_MAP: dict(entries)}
    except TypeError as error:
        raise FormatError(f"{schunk.url}: expected notes of embedded members, found other notes ({error})") from None


def update_tables(schunk: SChunk, tables: Mapping[str, bool]) -> bool:
    """Bring some tables in the frame's list of objects up to date; return whether this has changed the list.

    `tables` says by name whether the table exists. python-blosc2 shows the columns of a table as members unless the
    list has the table, or has nothing at all.
    """
    objects = _objects(schunk)
    others = {key: entry for key, entry in objects.items() if key[1:] not in tables}
    for name, exists in tables.items():
        if exists:
            others[f"/{name}"] = {"kind": TABLE, "version": 1, "layout": "inline-tree-subtree"}
    if others == objects:
        return False
    schunk.vlmeta[OBJECTS] = others
    return True


def lists_objects(schunk: SChunk) -> bool:
    """Return whether the list of objects in the frame has any entry."""
    return bool(_objects(schunk))


def _objects(schunk: SChunk) -> Mapping[str, Any]:
    """Return the list of tables and of references to remote groups in the frame, by name with a slash in front."""
    return find_objects(schunk._handle.source.state, schunk.url)
