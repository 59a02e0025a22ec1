"""`Format`, the interface of a file format for `convert`; and the formats that need no other package.

Source: "The N-dimensional array format" of NumPy's documentation (``.npy``), through NumPy.
"""

from __future__ import annotations

import importlib
import json
import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from b2array import bloscpack
from b2array.array import array_copying, drafts
from b2array.array.array import NDArray
from b2array.array.drafts import ArrayOptions
from b2array.array.schunk import SChunk
from b2array.array.tensors import face
from b2array.bloscpack.blp_header import MAGIC, Description, describe
from b2array.catalog.owners import load
from b2array.codec.cparams import CParams
from b2array.codec.text import has_missing
from b2array.commit.frame_commit import commit
from b2array.commit.handle import Handle
from b2array.errors import FormatError, UnsupportedError
from b2array.format import foreign
from b2array.format.b2nd import GEOMETRIES
from b2array.format.frame import Frame
from b2array.format.ledger import ledger_of
from b2array.format.text_sizes import average_text
from b2array.grid.chunking import Access
from b2array.grid.partition import boxes, first_box
from b2array.grid.text_chunks import SAMPLED
from b2array.grid.text_items import find_dtype, is_unsized, refuse_missing
from b2array.group.addressing import split_member
from b2array.group.group_snapshot import SnapshotHome
from b2array.group.new_members import copier_of
from b2array.store import disk
from b2array.store.atomic import AtomicFile, require_free
from b2array.store.open import open_store
from b2array.store.secrets import redact_url

__all__ = [
    "B2ND",
    "BLP",
    "BLP_BYTES",
    "BYTES",
    "KEPT_BY_FRAMES",
    "NPY",
    "PACKING",
    "UNLIMITED",
    "WITH_TEXT",
    "ArraySource",
    "Box",
    "Build",
    "Building",
    "Format",
    "Hierarchy",
    "Options",
    "Piece",
    "Put",
    "Storage",
    "array_options",
    "dims_of",
    "first_bytes",
    "holds_array",
    "json_attrs",
    "local_copy",
    "lone",
    "refuse_objects",
    "require",
    "source_of",
    "storable",
    "with_booleans",
    "without_booleans",
]

UNLIMITED = "_unlimited"
"""The attribute in which an array keeps the unlimited axes of the HDF5 dataset that it was copied from."""
_TEXT = np.dtypes.StringDType()
_TEXTS = 2**18
"""The number of variable-length texts to read together."""

PACKING = frozenset(
    {"_FillValue", "missing_value", "scale_factor", "add_offset", "valid_min", "valid_max", "valid_range"}
)
"""Attributes whose types matter: xarray decodes packed numbers into the type of their scale."""

_TYPE = "dtype"
"""The attribute in which xarray notes, in netCDF files, that 8-bit integers stand for booleans."""

Box = tuple[slice, ...]
Piece = tuple[Box, npt.NDArray[Any]]
Storage = Mapping[str, Any] | None


@dataclass(frozen=True)
class ArraySource:
    """An array to read box by box.

    `chunks` and `blocks` are None for a format without them. With `is_sharded`, the blocks are the chunks of shards.
    `unlimited` lists the axes along which the array can grow, for a format that also has fixed axes. `stored` returns
    the number of stored bytes; None if it is unknown. `handle` is set for a Blosc2 frame; the items of a super-chunk
    are its bytes. `text_nbytes` is the average size of text of any length.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[Box], npt.NDArray[Any]]
    chunks: tuple[int, ...] | None = None
    blocks: tuple[int, ...] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dims: tuple[str | None, ...] | None = None
    fill_value: Any = 0
    stored: Callable[[], int | None] = lambda: None
    handle: Handle | None = None
    is_sharded: bool = False
    unlimited: tuple[int, ...] = ()
    text_nbytes: int = 0

    @property
    def item_nbytes(self) -> int:
        """The size of an item in bytes; for text of any length, about the average size in memory."""
        return self.dtype.itemsize + self.text_nbytes

    @property
    def fill(self) -> Any:
        """The fill value as an item of the type."""
        item = np.zeros((), self.dtype)
        if not (isinstance(self.fill_value, int) and self.fill_value == 0):
            item[()] = self.fill_value
        return item[()]

    @property
    def is_filled(self) -> bool:
        """Whether the fill value is not zero."""
        item = np.asarray(self.fill)
        if self.dtype.kind == "T":
            return not isinstance(self.fill, str) or self.fill != ""
        # Compare extended floats by value, because some of their bytes are unused.
        return bool(item != 0) if self.dtype.char in "gG" else any(item.tobytes())

    @property
    def is_bytes(self) -> bool:
        """Whether the source is a super-chunk, whose items are bytes."""
        return self.handle is not None and not holds_array(self.handle.frame)

    @property
    def is_array(self) -> bool:
        """Whether the source is an array in a Blosc2 frame."""
        return self.handle is not None and holds_array(self.handle.frame)

    @property
    def has_snapshots(self) -> bool:
        """Whether the array itself has snapshots, apart from snapshots of its group."""
        if self.handle is None:
            return False
        # If the list of snapshots cannot be read, there are no snapshots to copy.
        with suppress(FormatError, UnsupportedError):
            return any(not entry.group for entry in ledger_of(self.handle.revision.state).entries)
        return False

    @property
    def nbytes(self) -> int:
        """The size of all items in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Hierarchy:
    """Arrays by name, to open one at a time, and the attributes of groups.

    A single array and the outermost group have the name "". `error` says why the list may be incomplete. `snapshots`
    has a function for each snapshot of the whole group, which opens it. `check` returns an error if the list differs
    from what the members themselves say; it opens each of them.
    """

    names: tuple[str, ...]
    open: Callable[[str], ArraySource]
    attrs: Mapping[str, Callable[[], Mapping[str, Any]]] = field(default_factory=dict)
    error: Exception | None = None
    snapshots: Mapping[str, Callable[[], SnapshotHome]] = field(default_factory=dict)
    check: Callable[[], Exception | None] = lambda: None

    def only(self, url: str) -> ArraySource:
        """Open the single array; raise ValueError if there are several arrays, or none."""
        if self.error is not None:
            raise self.error
        if len(self.names) != 1:
            names = ", ".join(self.names) or "none"
            raise ValueError(f"{redact_url(url)} holds several arrays, or none: name one of {names}")
        return self.open(self.names[0])


class Options(NamedTuple):
    """Options for writing an array. `given` has the chunks and blocks that the user requests, if any.

    With `snapshots`, a frame that is copied to another frame keeps its own snapshots. `of_group` are the snapshots of
    the whole group, if the destination keeps them. With `progress`, copying a frame shows its progress.
    """

    chunks: tuple[int, ...]
    blocks: tuple[int, ...] | None
    cparams: CParams | None
    layout: Any
    overwrite: bool
    storage_options: Storage
    options: Mapping[str, Any]
    given: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None)
    snapshots: bool = True
    of_group: tuple[SnapshotHome, ...] = ()
    progress: bool = False
    access: Access | None = None


Put = Callable[[str, ArraySource, Iterable[Piece], Options], None]


class Building(NamedTuple):
    """A destination under construction: functions that add an array, or the attributes of a group, under a name."""

    put: Put
    group: Callable[[str, Mapping[str, Any]], None]


Build = Callable[[str, Options], AbstractContextManager[Building]]


def with_booleans(source: ArraySource) -> ArraySource:
    """Return a source of booleans for one of 8-bit integers in which xarray has stored booleans.

    netCDF has no booleans. With a fill value or a scale, the integers are not only booleans, and stay what they are.
    """
    attrs = dict(source.attrs)
    is_plain = source.dtype == np.int8 and PACKING.isdisjoint(attrs)
    if not is_plain or attrs.pop(_TYPE, None) != "bool":
        return source
    # The fill value of netCDF stands for no item, and is no boolean.
    fill = source.fill_value == 1
    return replace(source, dtype=np.dtype(bool), read=lambda box: source.read(box) != 0, attrs=attrs, fill_value=fill)


def without_booleans(source: ArraySource, pieces: Iterable[Piece]) -> tuple[ArraySource, Iterable[Piece]]:
    """Return what a netCDF file stores for booleans, as xarray writes them; return all else unchanged."""
    if source.dtype.kind != "b" or _TYPE in source.attrs:
        return source, pieces
    attrs = {**source.attrs, _TYPE: "bool"}
    integers = replace(source, dtype=np.dtype(np.int8), attrs=attrs, fill_value=int(source.fill))
    return integers, ((box, values.view(np.int8)) for box, values in pieces)


def lone(build: Build) -> Put:
    """Turn a function that builds many arrays into a function that writes one, by default under the name ``data``."""

    def write(
        url: str,
        source: ArraySource,
        pieces: Iterable[Piece],
        settings: Options,
    ) -> None:
        with build(url, settings) as building:
            building.put("" if split_member(url)[1] else "data", source, pieces, settings)

    return write


class Format(NamedTuple):
    """A file format.

    `tree` opens a source. `check` raises an error for an array that the format does not support, before anything is
    written. `write` writes a destination from pieces; with `sequential`, the pieces must be in C order. `keeps` names
    the properties that the format stores besides the items. `building` writes many arrays; it is None for a format of
    single arrays. A file of the format begins with one of `magics`. Progress bars show `verb`.
    """

    name: str
    suffixes: tuple[str, ...]
    tree: Callable[[str, Storage], AbstractContextManager[Hierarchy]]
    check: Callable[[ArraySource, Options], None]
    write: Put
    sequential: bool = False
    keeps: frozenset[str] = frozenset({"attrs", "dims", "fill value"})
    building: Build | None = None
    magics: tuple[bytes, ...] = ()
    verb: str = "converting"

    @contextmanager
    def open(self, url: str, storage_options: Storage) -> Iterator[ArraySource]:
        """Open a source with a single array; raise ValueError for several arrays, or none."""
        with self.tree(url, storage_options) as tree:
            yield tree.only(url)


def require(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional package; raise UnsupportedError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UnsupportedError(f"{what} needs the package {package}: pip install 'b2array[{extra}]'") from None


def refuse_objects(source: ArraySource, _: Options) -> None:
    """Raise UnsupportedError for items that are Python objects."""
    if source.dtype.hasobject and source.dtype.kind != "T":
        raise UnsupportedError(f"items of type {source.dtype} are Python objects, which cannot be stored as bytes")


def storable(source: ArraySource, keeps: Collection[str]) -> ArraySource:
    """Return a source of text of any length in a form that a format can store; return other sources unchanged.

    `keeps` lists what the format stores: without "text", text gets a type for its longest item, and without "missing
    text", a missing item is an error. To find the longest item, or the type of objects, this reads all of the text.
    """
    if not is_unsized(source.dtype):
        return source
    if source.dtype.kind == "T" and "text" in keeps:
        dtype = source.dtype if "missing text" in keeps else _TEXT
        return _as_text(source, dtype)
    dtype = _find_type(source)
    if dtype.kind == "U" and "text" in keeps:
        return _as_text(source, _TEXT)
    fill = source.fill_value if isinstance(source.fill_value, str | bytes) else ""
    return replace(
        source,
        dtype=dtype,
        fill_value=fill or 0,
        read=lambda box: np.asarray(source.read(box), object).astype(dtype),
    )


def _find_type(source: ArraySource) -> np.dtype[Any]:
    """Return the type of fixed size for the longest item of a source of text or bytes."""
    fill = source.fill_value if isinstance(source.fill_value, str | bytes) else ""
    kinds: set[np.dtype[Any]] = set()
    try:
        for box in boxes(source.shape, _TEXTS, source.chunks):
            values = np.asarray(source.read(box), object)
            if values.size:
                kinds.add(find_dtype(values, max(1, len(fill))))
    except TypeError as error:
        raise UnsupportedError(f"items of any length can only be text or bytes: {error}") from None
    if len({each.kind for each in kinds}) > 1:
        raise UnsupportedError("items of any length can only be text or bytes, found both")
    return max(kinds, key=lambda each: each.itemsize, default=np.dtype("U1"))


def _as_text(source: ArraySource, dtype: np.dtype[Any]) -> ArraySource:
    """Return a source whose items are text of this type; a sample of them tells how many bytes they have."""

    def read(box: Box) -> npt.NDArray[Any]:
        values = np.asarray(source.read(box))
        try:
            refuse_missing(values, dtype)
        except TypeError:
            mark = source.dtype.na_object  # type: ignore[attr-defined]
            raise UnsupportedError(
                f"the destination's format has no missing text, found missing items ({mark!r}): replace them"
            ) from None
        return values.astype(dtype)

    first = first_box(source.shape, SAMPLED)
    nbytes = 0 if first is None else average_text(read(first))
    is_mark = source.fill_value is None or not isinstance(source.fill_value, str)
    fill = 0 if is_mark and not has_missing(dtype) else source.fill_value
    return replace(source, dtype=dtype, fill_value=fill, read=read, text_nbytes=nbytes)


@contextmanager
def local_copy(url: str, storage_options: Storage) -> Iterator[str]:
    """Yield the path of a local file, or of a temporary copy of a remote file."""
    store = open_store(url, storage_options=storage_options)
    if store.temporary("") is not None:
        # Raises FileNotFoundError for a missing file.
        store.stamp("")
        yield store.url
        return
    with tempfile.TemporaryDirectory(prefix="b2array-") as directory:
        path = Path(directory, "file")
        with path.open("wb") as file:
            file.writelines(store.pieces())
        yield str(path)


def first_bytes(path: str) -> bytes:
    """Return the first bytes of a local file, from which its format can be determined."""
    with Path(path).open("rb") as file:
        return file.read(64)


def json_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert attributes to the types of JSON: numbers of Python instead of NumPy, lists instead of tuples."""
    plain = {}
    for name, value in attrs.items():
        try:
            plain[name] = json.loads(json.dumps(value, default=_plain))
        except (TypeError, ValueError) as error:
            raise TypeError(f"the attribute {name!r} cannot be written as JSON: {error}") from None
    return plain


def dims_of(names: Any, ndim: int) -> tuple[str | None, ...] | None:
    """Return names of dimensions from JSON; None if other software has stored something else in their place."""
    fits = isinstance(names, list) and len(names) == ndim and all(isinstance(name, str | None) for name in names)
    return tuple(names) if fits else None


def _plain(value: object) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufU":
        return (value.astype("f8") if value.dtype.char == "g" else value).tolist()
    raise TypeError(f"JSON has no type for {type(value).__name__}")


# Blosc2 frames.


def holds_array(frame: Frame) -> bool:
    """Return whether a frame is an array, and not another super-chunk."""
    return any(frame.metalayer(name) is not None for name in GEOMETRIES)


def source_of(handle: Handle) -> ArraySource:
    """Return the array of a frame, or the bytes of a super-chunk."""
    if not holds_array(handle.frame):
        schunk = SChunk(handle)

        def read(key: Any) -> npt.NDArray[Any]:
            part = key[0] if isinstance(key, tuple) and len(key) == 1 else key
            if not isinstance(part, slice) or part.step not in (None, 1):
                return np.asarray(np.frombuffer(schunk.get_slice(), np.uint8)[key])
            start, stop, _ = part.indices(schunk.nbytes)
            return np.frombuffer(schunk.get_slice(start, max(start, stop)), np.uint8)

        shape, attrs = (schunk.nbytes,), dict(schunk.vlmeta)
        return ArraySource(
            shape,
            np.dtype("u1"),
            read,
            attrs=attrs,
            stored=lambda: schunk.cbytes,
            handle=handle,
        )
    a = NDArray(handle)
    attrs = dict(a.attrs)
    noted = attrs.pop(UNLIMITED, ())
    return ArraySource(
        a.shape,
        a.dtype,
        a.__getitem__,
        a.chunks,
        a.blocks,
        attrs,
        a.dims,
        a.fill_value,
        lambda: a.cbytes,
        handle,
        unlimited=tuple(noted) if isinstance(noted, list) else (),
    )


@contextmanager
def _tree_b2nd(url: str, storage_options: Storage) -> Iterator[Hierarchy]:
    with face(Handle(load(open_store(url, storage_options=storage_options), cached=True), "r")) as opened:
        source = source_of(opened._handle)
        yield Hierarchy(("",), lambda _: source)


def _write_b2nd(
    url: str,
    source: ArraySource,
    pieces: Iterable[Piece],
    settings: Options,
) -> None:
    if source.handle is not None and source.is_bytes and url.endswith(".b2frame"):
        new = copier_of(source.handle, settings.storage_options or {}, snapshots=settings.snapshots)
        commit(new(url, overwrite=settings.overwrite, layout=settings.layout))
        return
    if source.handle is not None and source.is_array:
        options = ArrayOptions(
            chunks=_chunks(settings),
            blocks=settings.blocks,
            cparams=settings.cparams,
            layout=settings.layout,
            overwrite=settings.overwrite,
            storage_options=settings.storage_options,
        )
        commit(
            array_copying.copy_array(
                source.handle, url, options, snapshots=settings.snapshots, progress=settings.progress
            )
        )
        return
    commit(drafts.draft_filled(url, source.shape, source.dtype, array_options(source, settings), pieces))


def _chunks(settings: Options) -> tuple[int, ...] | None:
    return None if 0 in settings.chunks else settings.chunks


def array_options(source: ArraySource, settings: Options) -> ArrayOptions:
    """Return the options for a new array with the properties of a source."""
    return ArrayOptions(
        chunks=_chunks(settings),
        blocks=settings.blocks,
        fill_value=source.fill,
        dims=source.dims,
        attrs={**source.attrs, UNLIMITED: list(source.unlimited)} if source.unlimited else source.attrs,
        cparams=settings.cparams,
        layout=settings.layout,
        overwrite=settings.overwrite,
        storage_options=settings.storage_options,
    )


KEPT_BY_FRAMES = frozenset({"attrs", "dims", "fill value", "snapshots", "text", "missing text"})
WITH_TEXT = frozenset({"attrs", "dims", "fill value", "text"})
"""What a format of another library keeps if it has text of any length, but no missing items."""

B2ND = Format(
    "b2nd",
    (".b2nd", ".b2frame"),
    _tree_b2nd,
    refuse_objects,
    _write_b2nd,
    keeps=KEPT_BY_FRAMES,
)


# NumPy.

_NPY_MAGIC = b"\x93NUMPY"


@contextmanager
def _map_tree(
    mapped: Callable[[str, str], npt.NDArray[Any]],
    url: str,
    storage_options: Storage,
) -> Iterator[Hierarchy]:
    with local_copy(url, storage_options) as path:
        data = mapped(path, redact_url(url))
        source = ArraySource(
            data.shape,
            data.dtype,
            lambda box: np.asarray(data[box]),
            stored=lambda: data.nbytes,
        )
        yield Hierarchy(("",), lambda _: source)


def _map_npy(path: str, url: str) -> npt.NDArray[Any]:
    start = first_bytes(path)
    # NumPy would treat any other file as a pickle.
    if start[: len(_NPY_MAGIC)] != _NPY_MAGIC:
        raise FormatError(f"{url}: expected a .npy file, found {foreign.describe(start)}")
    try:
        data: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        if "Python objects" in str(error) or "Object arrays" in str(error):
            raise UnsupportedError(f"{url} holds pickled Python objects, which are not safe to read") from None
        raise FormatError(f"{url}: expected an intact .npy file: {error}") from None
    return data


def _write_npy(
    url: str,
    source: ArraySource,
    pieces: Iterable[Piece],
    settings: Options,
) -> None:
    store = open_store(url, storage_options=settings.storage_options)
    require_free(store, {"": _NPY_MAGIC}, "a .npy file", overwrite=settings.overwrite)
    with AtomicFile(store, overwrite=settings.overwrite) as path:
        out = np.lib.format.open_memmap(path, "w+", source.dtype, source.shape)
        # Without allocated room, a write through the memory map would end the process on a full disk.
        disk.allocate(path, out.offset)
        for box, values in pieces:
            out[box] = values
        out.flush()
        del out


NPY = Format(
    "npy",
    (".npy",),
    partial(_map_tree, _map_npy),
    refuse_objects,
    _write_npy,
    keeps=frozenset(),
    magics=(_NPY_MAGIC,),
)


# Bytes without a format.


def _map_bytes(path: str, _: str) -> npt.NDArray[Any]:
    # A memory map cannot be empty.
    return np.memmap(path, np.uint8, "r") if Path(path).stat().st_size else np.empty(0, np.uint8)


def _write_bytes(
    url: str,
    _: ArraySource,
    pieces: Iterable[Piece],
    settings: Options,
) -> None:
    store = open_store(url, storage_options=settings.storage_options)
    require_free(store, {"": b""}, "a file", overwrite=settings.overwrite)
    write = store.replace if settings.overwrite else store.create
    write("", (values.data for _, values in pieces))


BYTES = Format(
    "bytes",
    (),
    partial(_map_tree, _map_bytes),
    refuse_objects,
    _write_bytes,
    sequential=True,
    keeps=frozenset(),
    verb="unpacking",
)


# Bloscpack.


@contextmanager
def _tree_blp(url: str, storage_options: Storage) -> Iterator[Hierarchy]:
    with bloscpack.open(url, storage_options=storage_options) as f:
        source = _source_of_blp(f)
        yield Hierarchy(("",), lambda _: source)


def _source_of_blp(f: bloscpack.Reader) -> ArraySource:
    """Return a Bloscpack file as a source, with the properties that `_write_blp` stores in its metadata."""
    meta = f.metadata if isinstance(f.metadata, dict) else {}
    about = f.description
    fill, attrs = meta.get("fill_value"), meta.get("attrs")
    item: Any = 0
    if isinstance(fill, str) and len(fill) == 2 * about.dtype.itemsize:
        # Other software may have stored something else in this place.
        with suppress(ValueError):
            item = np.frombuffer(bytes.fromhex(fill), about.dtype)[0]

    def read(box: Box) -> npt.NDArray[Any]:
        items = f[box]
        return np.frombuffer(items, np.uint8) if isinstance(items, bytes) else np.asarray(items)

    return ArraySource(
        about.shape,
        about.dtype,
        read,
        attrs=attrs if isinstance(attrs, dict) else {},
        dims=dims_of(meta.get("dims"), len(about.shape)),
        fill_value=item,
        stored=lambda: f.cbytes,
    )


def _check_blp(source: ArraySource, settings: Options) -> None:
    refuse_objects(source, settings)
    describe(Description(source.dtype, source.shape, "C"))
    json_attrs(source.attrs)


def _write_blp(
    url: str,
    source: ArraySource,
    pieces: Iterable[Piece],
    settings: Options,
) -> None:
    metadata: dict[str, Any] = {}
    if source.attrs:
        metadata["attrs"] = json_attrs(source.attrs)
    if source.dims is not None:
        metadata["dims"] = list(source.dims)
    raw = np.asarray(source.fill, source.dtype).tobytes()
    if any(raw):
        metadata["fill_value"] = raw.hex()
    _pack(url, pieces, settings, shape=source.shape, dtype=source.dtype, metadata=metadata)


def _pack(url: str, pieces: Iterable[Piece], settings: Options, **array: Any) -> None:
    """Write a Bloscpack file of bytes, or of an array with the shape, dtype and metadata in `array`."""
    with bloscpack.create(
        url,
        cparams=settings.cparams,
        overwrite=settings.overwrite,
        storage_options=settings.storage_options,
        **array,
        **settings.options,
    ) as writer:
        for _, values in pieces:
            writer.write(np.ascontiguousarray(values))


BLP = Format("blp", (".blp",), _tree_blp, _check_blp, _write_blp, sequential=True, magics=(MAGIC,))
BLP_BYTES = BLP._replace(write=lambda url, _, pieces, settings: _pack(url, pieces, settings), verb="packing")
"""Bloscpack files of plain bytes."""
