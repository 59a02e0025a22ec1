"""Opening and making arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from b2array.array.array import NDArray
from b2array.array.opening import encoded_metalayers, named, place_new
from b2array.buffers import Buffer
from b2array.codec import filters
from b2array.codec.cparams import CParams, given_or_default
from b2array.codec.header import CodecId, FilterId, Special
from b2array.engine import resize, snapshot
from b2array.engine.handle import Handle, Mode
from b2array.engine.transaction import Transaction
from b2array.engine.write import write
from b2array.errors import ReadOnlyError, UnsupportedError
from b2array.format import b2nd, dtypes, frame
from b2array.format.annotations import Annotations
from b2array.format.attributes import encode_attr
from b2array.format.index import special_offset
from b2array.format.state import check_count, parse
from b2array.grid import assignment, chunking
from b2array.grid import selection as indexing
from b2array.grid.layout import Layout
from b2array.grid.layout import extents as layout_extents
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store

__all__ = [
    "asarray", "create", "empty", "empty_like", "from_bytes", "full", "full_like", "load", "ones", "ones_like", "open",
    "save", "zeros", "zeros_like",
]  # fmt: skip

Shape = SupportsIndex | Sequence[SupportsIndex]
Url = str | os.PathLike[str]
Kind = Literal["auto", "contiguous", "sparse"]


def open(url: Url, mode: Mode = "r", *, offset: int = 0, storage_options: Mapping[str, Any] | None = None) -> NDArray:
    """Open an array.

    Parameters
    ----------
    url : str or os.PathLike
        A file, a directory with a sparse frame, or what fsspec understands.
    mode : {"r", "r+"}
        For reading, or for reading and changing.
    offset : int, default 0
        Where the frame begins in the file, in bytes.
    storage_options : mapping, optional
        For fsspec.

    Raises
    ------
    FileNotFoundError
        There is nothing.
    FormatError
        It is not a frame, or one without an array.
    UnsupportedError
        The frame is of a kind that is not known here, or its chunks do not hold the array's values.
    """
    if offset and mode != "r":
        raise ReadOnlyError("a frame inside a larger file can only be read")
    held = Handle(snapshot.load(open_store(url, storage_options=storage_options), start=offset), mode)
    return NDArray(held)


def from_bytes(buf: Buffer) -> NDArray:
    """Open an array that is a contiguous frame in memory; `bytes` are not copied. It can be read only.

    Raises
    ------
    FormatError, UnsupportedError
        As for `open`.
    """
    content = buf if isinstance(buf, bytes) else memoryview(buf).tobytes()
    return NDArray(Handle(snapshot.load(MemoryStore({"": content})), "r"))


def create(
    url: Url | None,
    shape: Shape,
    dtype: npt.DTypeLike = float,
    *,
    chunks: Shape | Literal["auto"] = "auto",
    blocks: Shape | Literal["auto"] = "auto",
    fill_value: Any = 0,
    cparams: CParams | None = None,
    layout: Kind = "auto",
    dims: Sequence[str | None] | None = None,
    attrs: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    interop: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> NDArray:
    """Make an array whose items are all `fill_value`, and return a handle that can change it.

    Parameters
    ----------
    url : str, os.PathLike or None
        Where to; None: in memory.
    shape : int or sequence of int
        Extents in items, at most 16.
    dtype : dtype-like
        Any type of NumPy's but object. One of items that are arrays adds their dimensions, as in NumPy.
    chunks, blocks : sequence of int or "auto"
        Extents in items of the chunks, which are read and written at once, and of the blocks in them, which can be read
        alone.
    fill_value : scalar, default 0
        What items are that are never written; a tuple for a type with fields.
    cparams : CParams, optional
        How chunks are compressed.
    layout : {"auto", "contiguous", "sparse"}
        One file, or a directory with a file a chunk; "auto": one file on local paths, else a directory.
    dims : sequence of str or None, optional
        Names of the dimensions.
    attrs : mapping, optional
        First attributes.
    meta : mapping, optional
        Metalayers, which can never change: what msgpack takes, or bytes, which are stored as they are.
    overwrite : bool, default False
        Whether an array that is there may be replaced.
    interop : bool, default True
        Refuse parameters with which stock Blosc2 reads arrays wrongly, or not at all.
    storage_options : mapping, optional
        For fsspec.

    Raises
    ------
    FileExistsError
        There is something already.
    TypeError, ValueError
        The shapes, the type, the fill value or an attribute cannot be stored.
    LimitError
        There would be more chunks, metalayers or longer names than fit. Whatever is refused, nothing has been written.
    UnsupportedError
        Stock Blosc2 would read the array wrongly (see `interop`), or a codec or filter cannot write.
    """
    draft = filled(
        url, shape, dtype, chunks=chunks, blocks=blocks, fill_value=fill_value, cparams=cparams, layout=layout,
        dims=dims, attrs=attrs, meta=meta, overwrite=overwrite, interop=interop, storage_options=storage_options,
    )  # fmt: skip
    return NDArray(Handle(draft.commit(), "r+"))


def filled(url: Url | None, shape: Shape, dtype: npt.DTypeLike, *, fill_value: Any = 0, **options: Any) -> Transaction:
    """Do what `create` does, but for the commit."""
    draft, plan = new_draft(url, shape, dtype, fill_value=fill_value, **options)
    with _filling(draft):
        resize.fill_chunks(draft, plan, _fill_bytes(fill_value, plan.dtype), np.arange(plan.nchunks))
    return draft


def new_draft(
    url: Url | None, shape: Shape, dtype: npt.DTypeLike, *, chunks: Any = "auto", blocks: Any = "auto",
    fill_value: Any = 0, cparams: CParams | None = None, layout: Kind = "auto",
    dims: Sequence[str | None] | None = None, attrs: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None, overwrite: bool = False, interop: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Transaction, Layout]:  # fmt: skip
    """Check everything that can be wrong, and only then look at the place where the array will be."""
    plan = _plan(shape, dtype, chunks, blocks)
    params = _checked_params(given_or_default(cparams), plan, interop=interop)
    fill = _fill_bytes(fill_value, plan.dtype)
    names = _checked_dims(dims, plan.ndim)
    noted = encoded_metalayers(meta)
    if wrong := [name for name, _ in noted if name in b2nd.NOT_DATA]:
        raise ValueError(f"a metalayer {wrong[0]!r} would say that the chunks do not hold the array's values")
    encoded = [(name, encode_attr(value)) for name, value in named(attrs)]
    store, frame_type = place_new(url, layout, storage_options, overwrite=overwrite)
    new = frame.create(
        params, frame_type=frame_type, typesize=plan.itemsize, chunksize=plan.chunk_nbytes,
        blocksize=plan.block_nbytes, metalayers=[("b2nd", b2nd.pack(plan)), *noted],
    )  # fmt: skip
    zeros = np.broadcast_to(np.int64(special_offset(Special.ZEROS)), (plan.nchunks,))
    extension = dtypes.extension_name(plan.dtype)
    annotations = Annotations(fill=fill if any(fill) else None, dims=names, dtype=extension)
    state = parse(replace(new, nbytes=plan.nbytes, offsets=zeros), annotations)
    draft = Transaction(store, None, state, overwrite=overwrite)
    for name, content in encoded:
        draft.set_attr(name, content)
    return draft, plan


def _plan(shape: Shape, dtype: npt.DTypeLike, chunks: Any, blocks: Any) -> Layout:
    # NumPy itself gives types without a size one, and makes dimensions of items that are arrays.
    model = np.empty(0, known_dtype(dtype))
    inner = model.shape[1:]
    extents = layout_extents(shape) + inner
    # Other readers see items of ml_dtypes as so many bytes: their names mean nothing to NumPy alone.
    raw = np.dtype((np.void, model.itemsize)) if dtypes.extension_name(model.dtype) else model.dtype
    text = dtypes.dtype_text(raw)
    given = [
        None if isinstance(part, str) and part == "auto" else layout_extents(part) + inner for part in (chunks, blocks)
    ]
    cut = chunking.automatic(extents, model.itemsize, chunks=given[0], blocks=given[1])
    plan = Layout(extents, *cut, model.dtype, text)
    check_count(plan)
    return plan


def known_dtype(dtype: npt.DTypeLike | None) -> npt.DTypeLike | None:
    """Return a type for a name of the package ml_dtypes, whether or not that is imported already."""
    return (dtypes.extension_dtype(dtype) or dtype) if isinstance(dtype, str) else dtype


def _checked_dims(dims: Sequence[str | None] | None, ndim: int) -> tuple[str | None, ...] | None:
    if dims is None:
        return None
    if isinstance(dims, str) or not all(name is None or isinstance(name, str) for name in dims):
        raise TypeError(f"dims must be a sequence of str or None, not {dims!r}")
    if len(dims) != ndim:
        raise ValueError(f"dims must name {ndim} dimensions, not {len(dims)}")
    return tuple(dims)


def _checked_params(params: CParams, plan: Layout, *, interop: bool) -> CParams:
    width = plan.itemsize if plan.itemsize <= 255 else 1
    filters.check(filters.Pipeline(params.filter_slots, params.meta_slots, width, blockshape=plan.blocks), encode=True)
    if interop:
        _check_interop(params, plan)
    return params


def _check_interop(params: CParams, layout: Layout) -> None:
    if FilterId.DELTA in params.filter_slots and layout.nblocks > 1:
        raise UnsupportedError(
            "stock Blosc2 reads parts of arrays with the delta filter wrongly when a chunk has several blocks; "
            "interop=False writes them all the same"
        )
    if params.use_dict and params.codec_id in (CodecId.LZ4, CodecId.LZ4HC):
        raise UnsupportedError(
            "stock Blosc2 reads parts of arrays with LZ4 dictionaries wrongly; interop=False writes them all the same"
        )
    if max(params.meta_slots) > 127:
        raise UnsupportedError(
            "python-blosc2 does not open frames with filters_meta beyond 0 to 127 (for the truncating filters: say how "
            "many bits to keep, not how many to drop); interop=False writes them all the same"
        )


def _fill_bytes(value: Any, dtype: np.dtype[Any]) -> bytes:
    item = np.zeros((), dtype)
    # The number 0 stands for zero bytes in any type, for text and records too.
    if not (isinstance(value, int) and value == 0):
        item[()] = value
    return item.tobytes()


def empty(shape: Shape, dtype: npt.DTypeLike = float, *, url: Url | None = None, **options: Any) -> NDArray:
    """Make an array of zeros, as `zeros` does: nothing is ever stored that was not written."""
    return create(url, shape, dtype, **options)


def zeros(shape: Shape, dtype: npt.DTypeLike = float, *, url: Url | None = None, **options: Any) -> NDArray:
    """Make an array of zeros, which takes no room and no time.

    Parameters
    ----------
    shape, dtype
        As for `create`.
    url : str or os.PathLike, optional
        Where to; in memory if left out.
    **options
        What else `create` takes.

    Examples
    --------
    >>> zeros((3, 2), "i4")[...].tolist()
    [[0, 0], [0, 0], [0, 0]]
    """
    return create(url, shape, dtype, **options)


def ones(shape: Shape, dtype: npt.DTypeLike = float, *, url: Url | None = None, **options: Any) -> NDArray:
    """Make an array of ones; parameters as for `zeros`."""
    return create(url, shape, dtype, fill_value=1, **options)


def full(
    shape: Shape, fill_value: Any, dtype: npt.DTypeLike | None = None, *, url: Url | None = None, **options: Any
) -> NDArray:
    """Make an array of one value, one small chunk at each position; parameters as for `zeros`.

    Parameters
    ----------
    shape : int or sequence of int
        Extents in items.
    fill_value : scalar
        The value of all items.
    dtype : dtype-like, optional
        By default the value's own.
    url, **options
        As for `zeros`.
    """
    item = np.asarray(fill_value) if dtype is None else np.full((), fill_value, np.empty(0, known_dtype(dtype)).dtype)
    return create(url, shape, item.dtype if dtype is None else dtype, fill_value=item[()], **options)


def empty_like(x: Any, **options: Any) -> NDArray:
    """Make an array of zeros with shape and type of another; parameters as for `zeros`."""
    return zeros_like(x, **options)


def zeros_like(x: Any, **options: Any) -> NDArray:
    """Make an array of zeros with shape and type of another (and its chunks and blocks); parameters as for `zeros`."""
    return zeros(**_like(x, options))


def ones_like(x: Any, **options: Any) -> NDArray:
    """Make an array of ones with shape and type of another; parameters as for `zeros`."""
    return ones(**_like(x, options))


def full_like(x: Any, fill_value: Any, **options: Any) -> NDArray:
    """Make an array of one value with shape and type of another; parameters as for `full`."""
    return full(fill_value=fill_value, **_like(x, options))


def _like(x: Any, options: dict[str, Any]) -> dict[str, Any]:
    model = x if isinstance(x, NDArray | np.ndarray) else np.asarray(x)
    given = {name: value for name, value in options.items() if value is not None}
    chosen: dict[str, Any] = {"shape": model.shape, "dtype": model.dtype} | given
    if not isinstance(x, NDArray):
        return chosen
    if "cparams" not in given:
        chosen["cparams"] = x.cparams
    same = (
        layout_extents(chosen["shape"]) == x.shape
        and np.dtype(known_dtype(chosen["dtype"])) == x.dtype
        and 0 not in x.chunks
    )
    return (
        {"chunks": x.chunks, "blocks": x.blocks} | chosen
        if same and not given.keys() & {"chunks", "blocks"}
        else chosen
    )


def asarray(x: Any, *, url: Url | None = None, dtype: npt.DTypeLike | None = None, **options: Any) -> NDArray:
    """Store an array.

    Parameters
    ----------
    x : array-like
        What NumPy makes an array of. An `NDArray` is returned as it is if nothing else is asked for.
    url : str or os.PathLike, optional
        Where to; in memory if left out.
    dtype : dtype-like, optional
        Type to convert to.
    **options
        What else `create` takes.

    Examples
    --------
    >>> a = asarray(np.arange(12).reshape(3, 4))
    >>> a[1:, ::2].tolist()
    [[4, 6], [8, 10]]
    """
    if isinstance(x, NDArray) and url is None and not options and dtype in (None, x.dtype):
        return x
    return NDArray(Handle(holding(x, url=url, dtype=dtype, **options).commit(), "r+"))


def holding(x: Any, *, url: Url | None, dtype: npt.DTypeLike | None = None, **options: Any) -> Transaction:
    """Do what `asarray` does, but for the commit."""
    assignment.check_unmasked(x)
    values = np.asarray(x, dtype=known_dtype(dtype))
    draft, layout = new_draft(url, values.shape, values.dtype, **options)
    with _filling(draft):
        if values.size:
            _put(draft, layout, (...,), values)
    return draft


def _put(draft: Transaction, layout: Layout, key: Any, values: npt.NDArray[Any]) -> None:
    selection = indexing.select(key, layout.shape)
    box = selection.spread(values)
    write(draft, layout, selection.index, selection.axes, box, cparams=draft.frame.cparams)


@contextmanager
def _filling(draft: Transaction) -> Iterator[None]:
    """Abort a draft that cannot be filled."""
    try:
        yield
    except BaseException:
        draft.abort()
        raise


def write_regions(
    url: Url | None, shape: Shape, dtype: npt.DTypeLike, regions: Iterable[tuple[Any, npt.NDArray[Any]]], **options: Any
) -> NDArray:
    """Store an array that comes in parts, in one commit; what no part covers is the fill value.

    Parameters
    ----------
    url, shape, dtype
        As for `create`.
    regions : iterable of (key, ndarray)
        Where in the array, by slices, and what. Fastest where each covers whole chunks.
    **options
        What else `create` takes.
    """
    draft, layout = new_draft(url, shape, dtype, **options)
    with _filling(draft):
        fill = _fill_bytes(options.get("fill_value", 0), layout.dtype)
        resize.fill_chunks(draft, layout, fill, np.arange(layout.nchunks))
        for key, values in regions:
            _put(draft, layout, key, values)
    return NDArray(Handle(draft.commit(), "r+"))


def save(url: Url, x: Any, **options: Any) -> None:
    """Store an array as `asarray` does, replacing an array that is there."""
    asarray(x, url=url, **{"overwrite": True, **options}).close()


def load(url: Url, *, storage_options: Mapping[str, Any] | None = None) -> npt.NDArray[Any]:
    """Read a whole array into memory."""
    with open(url, storage_options=storage_options) as stored:
        return np.asarray(stored)
