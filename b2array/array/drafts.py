"""New arrays before their first commit: checks the options, and begins a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.array.options import UNSET, ArrayOptions, Shape, Url
from b2array.array.placing import encoded_metalayers, named, place_new
from b2array.codec import filters
from b2array.codec.cparams import CParams, given_or_default
from b2array.codec.header import CodecId, FilterId, Special
from b2array.engine import resize
from b2array.engine.transaction import Transaction
from b2array.engine.write import write
from b2array.errors import UnsupportedError
from b2array.format import b2nd, dtypes, frame
from b2array.format.annotations import Annotations
from b2array.format.attributes import encode_attr
from b2array.format.index import special_offset
from b2array.format.state import check_count, parse
from b2array.grid import chunking
from b2array.grid.assignment import spread
from b2array.grid.layout import Layout, extents
from b2array.grid.selection import select

__all__ = ["Draft", "aborting", "filled", "known_dtype", "new_draft", "put", "regions"]


class Draft(NamedTuple):
    """The transaction of an array that is not committed yet, and the geometry of the array."""

    transaction: Transaction
    layout: Layout


def new_draft(url: Url | None, shape: Shape, dtype: npt.DTypeLike, options: ArrayOptions) -> Draft:
    """Begin an array of zeros. Check everything that can be wrong before looking at the place."""
    layout = _layout(shape, dtype, options.chunks, options.blocks)
    params = given_or_default(options.cparams)
    if options.cparams is None and layout.dtype.kind == "U":
        params = replace(params, filters_meta=(4,))  # shuffle the bytes of characters, not of whole items
    _check_params(params, layout, interop=options.interop)
    fill = _fill_bytes(options.fill_value, layout.dtype)
    names = _checked_dims(options.dims, layout.ndim)
    metalayers = encoded_metalayers(options.meta)
    if wrong := [name for name, _ in metalayers if name in b2nd.NOT_DATA]:
        raise ValueError(f"a metalayer {wrong[0]!r} would say that the chunks do not hold the array's values")
    attrs = [(name, encode_attr(value)) for name, value in named(options.attrs)]
    store, frame_type = place_new(url, options.layout, options.storage_options, overwrite=options.overwrite)
    new = frame.create(
        params, frame_type=frame_type, typesize=layout.itemsize, chunksize=layout.chunk_nbytes,
        blocksize=layout.block_nbytes, metalayers=[("b2nd", b2nd.pack(layout)), *metalayers],
    )  # fmt: skip
    zeros = np.broadcast_to(np.int64(special_offset(Special.ZEROS)), (layout.nchunks,))
    extension = dtypes.extension_name(layout.dtype)
    annotations = Annotations(fill=fill if any(fill) else None, dims=names, dtype=extension)
    state = parse(replace(new, nbytes=layout.nbytes, offsets=zeros), annotations)
    transaction = Transaction(store, None, state, overwrite=options.overwrite)
    for name, content in attrs:
        transaction.set_attr(name, content)
    return Draft(transaction, layout)


def filled(url: Url | None, shape: Shape, dtype: npt.DTypeLike, options: ArrayOptions) -> Transaction:
    """Return the transaction of an array whose items are all the fill value."""
    return regions(url, shape, dtype, (), options)


def regions(
    url: Url | None, shape: Shape, dtype: npt.DTypeLike, parts: Iterable[tuple[Any, npt.NDArray[Any]]],
    options: ArrayOptions,
) -> Transaction:  # fmt: skip
    """Return the transaction of an array that comes in parts; items outside all parts are the fill value."""
    transaction, layout = new_draft(url, shape, dtype, options)
    with aborting(transaction):
        fill = _fill_bytes(options.fill_value, layout.dtype)
        resize.fill_chunks(transaction, layout, fill, np.arange(layout.nchunks))
        for key, values in parts:
            put(transaction, layout, key, values)
    return transaction


def put(transaction: Transaction, layout: Layout, key: Any, values: npt.NDArray[Any]) -> None:
    """Write values where a key selects."""
    selection = select(key, layout.shape)
    write(transaction, layout, selection.positions, selection.axes, spread(values, selection))


@contextmanager
def aborting(transaction: Transaction) -> Iterator[None]:
    """Abort the transaction if the block raises."""
    try:
        yield
    except BaseException:
        transaction.abort()
        raise


def _layout(shape: Shape, dtype: npt.DTypeLike, chunks: Any, blocks: Any) -> Layout:
    # NumPy itself gives a size to types without one, and turns items that are arrays into dimensions.
    model = np.empty(0, known_dtype(dtype))
    outer, inner = extents(shape), model.shape[1:]
    # Other readers see items of ml_dtypes as bytes without meaning: NumPy alone does not know their names.
    raw = np.dtype((np.void, model.itemsize)) if dtypes.extension_name(model.dtype) else model.dtype
    text = dtypes.dtype_text(raw)
    cut = chunking.automatic(outer, model.itemsize, chunks=chunks, blocks=blocks, inner=inner)
    layout = Layout(outer + inner, *cut, model.dtype, text)
    check_count(layout)
    return layout


def known_dtype(dtype: npt.DTypeLike | None) -> npt.DTypeLike | None:
    """Return the type for a name of the package ml_dtypes, even if that is not imported yet."""
    if not isinstance(dtype, str):
        return dtype
    dtypes.require_extension(dtype)
    return dtypes.extension_dtype(dtype) or dtype


def _checked_dims(dims: Sequence[str | None] | None, ndim: int) -> tuple[str | None, ...] | None:
    if dims is None:
        return None
    if isinstance(dims, str) or not all(name is None or isinstance(name, str) for name in dims):
        raise TypeError(f"dims must be a sequence of str or None, not {dims!r}")
    if len(dims) != ndim:
        raise ValueError(f"dims must name {ndim} dimensions, not {len(dims)}")
    return tuple(dims)


def _check_params(params: CParams, layout: Layout, *, interop: bool) -> None:
    width = layout.itemsize if layout.itemsize <= 255 else 1
    filters.check(
        filters.Pipeline(params.filter_slots, params.meta_slots, width, blockshape=layout.blocks), encode=True
    )
    if interop:
        _check_interop(params, layout)


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
    if value is not UNSET and not (isinstance(value, int) and value == 0):
        item[()] = value
    return item.tobytes()
