"""New arrays before their first commit: options, places, and drafts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, SupportsIndex, TypedDict

import numpy as np
import numpy.typing as npt

from b2array.catalog.owners import find_frame
from b2array.codec import codecs, filters, zfp
from b2array.codec.chunk_header import CodecId, FilterId, Special
from b2array.codec.cparams import AUTO, AnyCParams, CParams, resolve_cparams
from b2array.codec.interop import require_readable
from b2array.codec.rounding import check_dtype
from b2array.commit import resize
from b2array.commit.draft import Draft
from b2array.commit.leftovers import belongs
from b2array.commit.write import write
from b2array.errors import UnsupportedError
from b2array.format import b2nd, dtypes, frame
from b2array.format.annotations import Annotations
from b2array.format.attributes import encode_attr
from b2array.format.foreign import check_ending
from b2array.format.frame import Frame
from b2array.format.frame_header import FIRST_BYTES, FrameType
from b2array.format.index import special_offset
from b2array.format.state import check_count, cparams_to_note, parse
from b2array.format.strings import BATCHES, LENGTHS, is_text, pack_batches, pack_item, pack_lengths
from b2array.frame.source import EMBEDDED, FRAME_NAME
from b2array.grid import chunking
from b2array.grid.assignment import broadcast, check_plain
from b2array.grid.chunking import Access, is_automatic
from b2array.grid.layout import Layout, extents
from b2array.grid.selection import select
from b2array.grid.text_chunks import automatic_text, item_nbytes
from b2array.keywords import F, spell_out
from b2array.store.atomic import require_free
from b2array.store.base import Store
from b2array.store.memory import MemoryStore
from b2array.store.open import cut, open_store

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = [
    "UNSET",
    "Access",
    "AnyPlace",
    "ArrayOptions",
    "Casting",
    "CopyKeywords",
    "Extents",
    "FilledKeywords",
    "FreePlace",
    "Kind",
    "MemberKeywords",
    "NewKeywords",
    "NewPlace",
    "SavedKeywords",
    "Shape",
    "Url",
    "VariableKeywords",
    "aborting",
    "check_dims",
    "choose_layout",
    "draft_filled",
    "encode_metalayers",
    "name_pairs",
    "new_draft",
    "place_new",
    "put",
    "require_dtype",
    "takes",
    "text_params",
]

Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
Kind = Literal["auto", "contiguous", "sparse"]
Shape = SupportsIndex | Sequence[SupportsIndex]
Extents = SupportsIndex | str | Sequence[Any] | Mapping[int, Any] | None
"""Extents of chunks or blocks, in the forms that `b2array.grid.chunking.automatic` accepts."""

Url = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class FreePlace:
    """A place for a new frame that is known to be free, and needs no check.

    `first` is the lowest number that the file of a chunk may have there. If `sparse` is set, it is the place for a
    sparse frame.
    """

    store: Store
    first: int = 0
    sparse: FreePlace | None = None


_PLAIN_CODECS = frozenset(CodecId)
_FOR_ALL_BLOCKS = frozenset(FilterId) - filters.CELL_FILTERS - {FilterId.DELTA}
"""Codecs and filters that suit blocks of every shape."""

AnyPlace = Url | FreePlace | None
"""The place of a new frame; None for memory."""


class NewPlace(NamedTuple):
    """The store for a new frame, its kind, and the lowest number for the file of a chunk."""

    store: Store
    kind: FrameType
    first: int = 0


class _Unset:
    def __repr__(self) -> str:
        return "0"  # the text in signatures


UNSET: Final = _Unset()
"""Marks a missing fill value: None cannot, because as a fill value it means NaN in arrays of floats."""


@dataclass(frozen=True, slots=True)
class ArrayOptions:
    """The options of `b2array.create`, except place, shape and type.

    A copy has the values of its source for missing options. Other new arrays have the defaults of `create`.
    """

    chunks: Extents = None
    blocks: Extents = None
    access: Access | None = None
    fill_value: Any = UNSET
    cparams: AnyCParams = None
    layout: Kind = "auto"
    dims: Sequence[str | None] | None = None
    attrs: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None
    overwrite: bool = False
    interop: bool = True
    storage_options: Mapping[str, Any] | None = None
    fs: AbstractFileSystem | None = None

    def __post_init__(self) -> None:
        if self.cparams is not None:
            object.__setattr__(self, "cparams", resolve_cparams(self.cparams))
        chunking.check_access(self.access)


# The names and types of these options, for functions that pass them on. Each class is for functions whose signatures
# have the other options.


class VariableKeywords(TypedDict, total=False):
    """Options of arrays, if place, dimensions and attributes are known."""

    chunks: Extents
    blocks: Extents
    access: Access | None
    cparams: AnyCParams
    layout: Kind
    interop: bool
    fill_value: Any
    meta: Mapping[str, Any] | None


class MemberKeywords(VariableKeywords, total=False):
    """Options of members of a group, whose place is known."""

    dims: Sequence[str | None] | None
    attrs: Mapping[str, Any] | None


class SavedKeywords(MemberKeywords, total=False):
    """Options of arrays that may be replaced."""

    storage_options: Mapping[str, Any] | None
    fs: AbstractFileSystem | None


class NewKeywords(SavedKeywords, total=False):
    """All options of new arrays."""

    overwrite: bool


class CopyKeywords(TypedDict, total=False):
    """Options of copies, which have the attributes, dimensions, metalayers and fill value of the source."""

    chunks: Extents
    blocks: Extents
    access: Access | None
    cparams: AnyCParams
    layout: Kind
    overwrite: bool
    interop: bool
    storage_options: Mapping[str, Any] | None
    fs: AbstractFileSystem | None


class FilledKeywords(CopyKeywords, total=False):
    """Options of arrays with a known fill value."""

    dims: Sequence[str | None] | None
    attrs: Mapping[str, Any] | None
    meta: Mapping[str, Any] | None


def takes(kind: type) -> Callable[[F], F]:
    """Decorate a function whose ``**options`` are options of new arrays, so that its signature lists them.

    Examples
    --------
    >>> @takes(NewKeywords)
    ... def make(**options): ...
    >>> make(path="a.b2nd")
    Traceback (most recent call last):
    TypeError: make() got an unexpected keyword argument 'path'
    """
    return spell_out(kind, {each.name: each.default for each in fields(ArrayOptions)})


# The draft.


def new_draft(
    url: AnyPlace,
    shape: Shape,
    dtype: npt.DTypeLike,
    options: ArrayOptions,
    text_nbytes: int = 0,
) -> Draft:
    """Begin the draft of an array of zeros. Check all arguments before the place is read.

    `text_nbytes` is the average size of an item of text of any length, in bytes; 0 if it is unknown.
    """
    layout = choose_layout(shape, dtype, options, text_nbytes)
    params = resolve_cparams(options.cparams)
    if params.filters == AUTO and layout.dtype.kind == "U":
        # Shuffle the bytes of characters, which have 4 bytes in NumPy, and not the bytes of whole items.
        params = replace(params, filters_meta=(4,))
    check_dtype(params, layout.dtype)
    if layout.is_text:
        params = text_params(params)
    _check_params(params, layout, interop=options.interop)
    fill = _fill_bytes(options.fill_value, layout.dtype)
    names = check_dims(options.dims, layout.ndim)
    metalayers = encode_metalayers(options.meta)
    wrong = [name for name, _ in metalayers if name in b2nd.NOT_DATA]
    if wrong:
        raise ValueError(f"a metalayer {wrong[0]!r} would say that the chunks do not hold the array's values")
    attrs = [(name, encode_attr(value, name)) for name, value in name_pairs(options.attrs)]
    place = place_new(url, options.layout, options.storage_options, fs=options.fs, overwrite=options.overwrite)
    new = _new_frame(layout, params, place.kind, metalayers)
    # Use a view of one item, because the array may have billions of chunks.
    zeros = np.broadcast_to(np.int64(special_offset(Special.ZEROS)), (layout.nchunks,))
    annotations = Annotations(
        fill=fill if any(fill) else None,
        dims=names,
        dtype=dtypes.extension_name(layout.dtype),
        cparams=cparams_to_note(params),
        auto=_note_choice(layout, options, params, text_nbytes),
    )
    state = parse(replace(new, nbytes=layout.nbytes, offsets=zeros), annotations)
    draft = Draft(place.store, None, state, overwrite=options.overwrite, first=place.first)
    for name, content in attrs:
        draft.set_attr(name, content)
    if layout.is_text:
        draft.set_attr(LENGTHS, pack_lengths(layout))
    return draft


def _new_frame(layout: Layout, params: CParams, kind: FrameType, metalayers: list[tuple[str, bytes]]) -> Frame:
    """Return the frame of a new array, without chunks."""
    if layout.is_text:
        own = [(BATCHES, pack_batches(layout)), (b2nd.TEXT, b2nd.pack(layout))]
        return frame.create(
            params, frame_type=kind, typesize=1, chunksize=0, metalayers=[*own, *metalayers], vl_blocks=True
        )
    return frame.create(
        params,
        frame_type=kind,
        typesize=layout.itemsize,
        chunksize=layout.chunk_nbytes,
        blocksize=layout.block_nbytes,
        metalayers=[("b2nd", b2nd.pack(layout)), *metalayers],
    )


def text_params(params: CParams) -> CParams:
    """Return the parameters for text, without filters.

    TypeError: the parameters name filters, or a codec for numbers.
    """
    if params.filters not in (AUTO, ()):
        names = ", ".join(map(str, params.filters))
        raise TypeError(f"filters rearrange the bytes of numbers, and text has none: leave out filters ({names})")
    if params.is_zfp:
        raise TypeError(f"the codec {params.codec!r} is for arrays of floats, not for text")
    if params.use_dict:
        raise TypeError("text is compressed without dictionaries: leave out use_dict")
    return replace(params, filters=(), filters_meta=(), splitmode="auto")


def draft_filled(
    url: AnyPlace,
    shape: Shape,
    dtype: npt.DTypeLike,
    options: ArrayOptions,
    parts: Iterable[tuple[Any, npt.NDArray[Any]]] = (),
) -> Draft:
    """Return the draft of an array of the fill value, except in some parts, which are pairs of slices and items.

    This is fastest if each part covers whole chunks.
    """
    draft = new_draft(url, shape, dtype, options)
    with aborting(draft):
        layout = draft.state.require_layout()
        fill = _fill_bytes(options.fill_value, layout.dtype)
        resize.fill_chunks(draft, layout, fill, np.arange(layout.nchunks))
        for key, values in parts:
            put(draft, key, values)
    return draft


def put(draft: Draft, key: Any, values: npt.NDArray[Any]) -> None:
    """Write values to the items that a key selects."""
    layout = draft.state.require_layout()
    selection = select(key, layout.shape)
    write(draft, layout, selection.positions, selection.axes, broadcast(values, selection))


@contextmanager
def aborting(draft: Draft) -> Iterator[None]:
    """Abort the draft if the block raises an error."""
    try:
        yield
    except BaseException:
        draft.abort()
        raise


def choose_layout(
    shape: Shape,
    dtype: npt.DTypeLike,
    options: ArrayOptions,
    text_nbytes: int = 0,
) -> Layout:
    """Choose chunks and blocks of a new array, and check shape and type; `text_nbytes` as in `new_draft`."""
    if isinstance(shape, str | os.PathLike):
        raise TypeError(f"expected a shape, found {os.fspath(shape)!r}; write url={os.fspath(shape)!r}")
    # NumPy converts items that are arrays to dimensions.
    kind = require_dtype(dtype)
    dtypes.require_size(kind)
    model = np.empty(0, kind)
    outer = extents(shape)
    inner = model.shape[1:]
    known_to_numpy = model.dtype
    if dtypes.extension_name(model.dtype):
        # Other readers see items of ml_dtypes as raw bytes, because NumPy alone does not know these types.
        known_to_numpy = np.dtype((np.void, model.itemsize))
    text = dtypes.dtype_text(known_to_numpy)
    if is_text(model.dtype):
        nbytes = item_nbytes(model.dtype, text_nbytes)
        cut = automatic_text(outer, nbytes, chunks=options.chunks, blocks=options.blocks, access=options.access)
    else:
        cut = chunking.automatic(
            outer, model.itemsize, chunks=options.chunks, blocks=options.blocks, inner=inner, access=options.access
        )
    layout = Layout(outer + inner, *cut, model.dtype, text)
    check_count(layout)
    return layout


def _note_choice(layout: Layout, options: ArrayOptions, params: CParams, text_nbytes: int) -> str | None:
    """Return the note that an array with few items may get other chunks when it grows (see `Annotations.auto`)."""
    is_chosen = not (is_automatic(options.chunks) and is_automatic(options.blocks))
    nbytes = layout.nbytes
    if layout.is_text:
        nbytes = math.prod(layout.shape) * item_nbytes(layout.dtype, text_nbytes)
    if is_chosen or not layout.shape or nbytes >= chunking.LEAST_CHUNK_NBYTES:
        return None
    # Other codecs and filters, which users may have registered, may fit only the present blocks.
    fits_all_blocks = params.codec_id in _PLAIN_CODECS and _FOR_ALL_BLOCKS.issuperset(params.filter_slots)
    return options.access or "" if fits_all_blocks else None


def require_dtype(dtype: npt.DTypeLike | None) -> npt.DTypeLike | None:
    """Return a type, which may be a name of the package ml_dtypes, even if the package is not imported yet."""
    if not isinstance(dtype, str):
        return dtype
    dtypes.require_extension(dtype)
    return dtypes.extension_dtype(dtype) or dtype


def check_dims(dims: Sequence[str | None] | None, ndim: int) -> tuple[str | None, ...] | None:
    """Check names of dimensions, and return them as a tuple."""
    if dims is None:
        return None
    # A string is a sequence of strings, but is surely a mistake here.
    if isinstance(dims, str) or not all(name is None or isinstance(name, str) for name in dims):
        raise TypeError(f"dims must be a sequence of str or None, not {dims!r}")
    if len(dims) != ndim:
        raise ValueError(f"dims must name {ndim} dimensions, not {len(dims)}")
    return tuple(dims)


def _check_params(params: CParams, layout: Layout, *, interop: bool) -> None:
    # The header of a chunk has one byte for the size of an item; larger items are stored as single bytes.
    width = layout.itemsize if layout.itemsize <= 255 else 1
    pipeline = filters.Pipeline(params.filter_slots, params.meta_slots, width, blockshape=layout.blocks)
    filters.check(pipeline, encode=True)
    if FilterId.NDMEAN in params.filter_slots and layout.dtype.str not in ("<f4", "<f8"):
        raise TypeError(f"ndmean takes the means of floats of 4 or 8 bytes in little endian, not of {layout.dtype.str}")
    if not codecs.is_writable(params.codec_id):
        raise UnsupportedError(f"{params.codec} can be read but not written")
    if params.is_zfp:
        zfp.check_layout(params.codec_id, params.codec_meta, layout.blocks, layout.dtype)
    if interop:
        require_readable(params, layout.itemsize, delta=layout.nblocks <= 1)


def _fill_bytes(value: Any, dtype: np.dtype[Any]) -> bytes:
    check_plain(value)
    if is_text(dtype):
        is_zero = value is UNSET or (isinstance(value, int) and value == 0)
        return b"" if is_zero else pack_item(value, dtype)
    item = np.zeros((), dtype)
    # The number 0 means zero bytes for every type, including text and records.
    if value is not UNSET and not (isinstance(value, int) and value == 0):
        item[()] = value
    if dtype.char in "gG" and np.finfo(dtype).nmant == 63:
        # Extended floats of x86 have 10 bytes; the other bytes in NumPy's items are undefined.
        size = np.dtype("g").itemsize
        unused = slice(10, None) if dtype.isnative else slice(size - 10)
        # A complex number consists of two floats.
        rows = item.reshape(-1).view(np.uint8).reshape(-1, size)
        rows[:, unused] = 0
    return item.tobytes()


# The place and the encoded metalayers.


def encode_metalayers(meta: Mapping[str, Any] | None) -> list[tuple[str, bytes]]:
    r"""Encode metalayers: bytes are unchanged, other values become msgpack; TypeError for unsupported values.

    Examples
    --------
    >>> encode_metalayers({"as it is": b"1", "packed": 1})
    [('as it is', b'1'), ('packed', b'\x01')]
    """
    layers = []
    for name, value in name_pairs(meta):
        content = value if isinstance(value, bytes) else encode_attr(value)
        layers.append((name, content))
    return layers


def name_pairs(layers: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """Return pairs of names and values; TypeError if the argument is not a mapping with str keys."""
    if layers is None:
        return []
    if not isinstance(layers, Mapping):
        raise TypeError(f"attributes and metalayers are given as a mapping, not as {type(layers).__name__}")
    for name in layers:
        if not isinstance(name, str):
            raise TypeError(f"names of attributes and metalayers are str, not {type(name).__name__}")
    return list(layers.items())


def place_new(
    url: AnyPlace,
    layout: str,
    storage_options: Mapping[str, Any] | None,
    *,
    fs: AbstractFileSystem | None = None,
    overwrite: bool,
) -> NewPlace:
    """Find the store for a new frame, and choose its kind. A new frame replaces only a frame or an empty file."""
    if layout not in ("auto", "contiguous", "sparse"):
        raise ValueError(f"layout must be 'auto', 'contiguous' or 'sparse', not {layout!r}")
    if url is None:
        return NewPlace(MemoryStore(), FrameType.SPARSE if layout == "sparse" else FrameType.CONTIGUOUS)
    if isinstance(url, FreePlace):
        check_ending(cut(url.store.url)[1], url.store.url)
        if layout == "contiguous" or (layout == "auto" and url.store.can.local):
            return NewPlace(url.store, FrameType.CONTIGUOUS, url.first)
        url = url.sparse or url
        return NewPlace(url.store, FrameType.SPARSE, url.first)
    store = open_store(url, storage_options=storage_options, fs=fs)
    check_ending(cut(store.url)[1], store.url)
    if layout == "auto":
        # If files cannot grow, each commit would rewrite the whole contiguous frame.
        layout = "contiguous" if store.can.append and not store.is_prefix else "sparse"
    if layout == "contiguous" and store.is_prefix:
        raise ValueError(f"a contiguous frame is one file, but {store.url} ends with a slash")
    frame_type = FrameType.SPARSE if layout == "sparse" else FrameType.CONTIGUOUS
    _make_room(store, frame_type, overwrite=overwrite)
    return NewPlace(store, frame_type)


def _make_room(store: Store, frame_type: FrameType, *, overwrite: bool) -> None:
    name = FRAME_NAME if frame_type == FrameType.SPARSE else ""
    kinds = {"": FIRST_BYTES, FRAME_NAME: FIRST_BYTES}
    existing = require_free(store, kinds, "a frame", overwrite=overwrite, name=name, never=(EMBEDDED,))
    if existing in (None, name):
        return
    if find_frame(store) is None:
        old, new = ("sparse", "contiguous") if existing else ("contiguous", "sparse")
        raise FileExistsError(f"{store.url} is a {old} frame that cannot be read, which a {new} one cannot replace")
    # To replace a sparse frame removes its directory, and would also remove other files there. Files of killed writers
    # may go.
    if existing and store.beside(directory=False) is not None:
        others = [name for name in store.walk() if "/" in name or not belongs(name)]
        if others:
            raise FileExistsError(f"{store.url} is a directory with more than a frame in it: {others[0]}")
