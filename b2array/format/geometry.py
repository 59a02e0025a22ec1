"""The array that a frame holds: its layout from the metalayers, and the change of its shape.

Source: "Blosc2 NDim Array Format", section Metalayer.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import SupportsIndex

import numpy as np

from b2array import config
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.format import b2nd, dtypes
from b2array.format.frame import Frame
from b2array.format.notes import extras_of
from b2array.grid import chunking
from b2array.grid.layout import MAX_NDIM, Layout

__all__ = ["GEOMETRIES", "NOT_DATA", "check_count", "extents", "inner_ndim", "layout_of", "reshaped"]

NOT_DATA = ("b2o", "LazyArray", "proxy-source")
"""Metalayers of python-blosc2 that say that the chunks do not hold the array's values."""

GEOMETRIES = ("b2nd", "caterva")
"""Metalayers that describe an array."""


def layout_of(frame: Frame) -> Layout:
    """Return the layout of the array in a frame; items that are arrays are further dimensions, as in NumPy.

    Raises
    ------
    FormatError
        There is no array, or its metalayer does not fit the frame.
    UnsupportedError
        The chunks do not hold the array's values, or there would be too many dimensions.
    """
    layout = _named(_declared(frame), frame)
    if layout.nchunks != frame.nchunks:
        raise FormatError(f"expected {layout.nchunks} chunks for the shape {layout.shape}, found {frame.nchunks}")
    if frame.nchunks and frame.chunksize != layout.chunk_nbytes:
        raise FormatError(f"expected chunks of {layout.chunk_nbytes} bytes, found {frame.chunksize}")
    if layout.dtype.subdtype is None:
        return layout
    base, inner = layout.dtype.subdtype
    if layout.ndim + len(inner) > MAX_NDIM:
        raise UnsupportedError(f"{layout.ndim} dimensions of items of shape {inner}: at most {MAX_NDIM} are possible")
    shape, chunks, blocks = (extents + inner for extents in (layout.shape, layout.chunks, layout.blocks))
    return replace(layout, shape=shape, chunks=chunks, blocks=blocks, dtype=base)


def extents(shape: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Return a shape, given as one integer or several, as a tuple."""
    # A NumPy array without dimensions is one integer.
    if isinstance(shape, Sequence) or (isinstance(shape, np.ndarray) and shape.ndim):
        return tuple(map(operator.index, shape))
    return (operator.index(shape),)


def inner_ndim(frame: Frame) -> int:
    """Return how many of the last dimensions of the array are those of its items."""
    return len(_declared(frame).dtype.shape)


def _declared(frame: Frame) -> Layout:
    for name in NOT_DATA:
        if frame.metalayer(name) is not None:
            raise UnsupportedError(f"the metalayer {name!r} says that the stored values are not the array's data")
    raw = frame.metalayer("b2nd")
    if raw is not None:
        return b2nd.unpack(raw, chunksize=frame.chunksize)
    raw = frame.metalayer("caterva")
    if raw is None:
        raise FormatError(
            "expected a metalayer 'b2nd' or 'caterva' of an array, found a plain super-chunk (see b2array.open_schunk)"
        )
    return b2nd.unpack_caterva(raw, frame.typesize)


def _named(layout: Layout, frame: Frame) -> Layout:
    """Put the type in the place of raw items of which b2array has noted the name."""
    if layout.dtype.kind != "V" or layout.dtype.names is not None or layout.dtype.subdtype is not None:
        return layout
    name = extras_of(frame).dtype
    dtype = None if name is None else dtypes.extension_dtype(name)
    return layout if dtype is None or dtype.itemsize != layout.itemsize else replace(layout, dtype=dtype)


def check_count(layout: Layout) -> None:
    """Refuse more chunks than an index can hold.

    Raises
    ------
    LimitError
        The message has the count and the limit.
    """
    most = config.limits.index_nbytes // 8
    if layout.nchunks > most:
        raise LimitError(
            f"a shape of {layout.shape} in chunks of {layout.chunks} makes {layout.nchunks} chunks, "
            f"an index holds {most}"
        )


def reshaped(frame: Frame, layout: Layout, shape: tuple[int, ...]) -> tuple[Frame, Layout]:
    """Return a frame whose metalayer has another shape, and the layout that this makes.

    The index and the size of the data are still those of the old shape. Only where chunks have no extent along some
    axis, as python-blosc2 writes them for arrays without items, are chunks and blocks chosen anew.

    Raises
    ------
    ValueError
        The shape has another number of dimensions, other extents of the items, or is larger than the format allows.
    LimitError
        There would be more chunks than an index can hold.
    """
    if len(shape) != layout.ndim:
        raise ValueError(f"the new shape must have {layout.ndim} dimensions, not {len(shape)}: {shape}")
    if any(extent < 0 for extent in shape):
        raise ValueError(f"negative dimensions are not allowed: {shape}")
    outer = layout.ndim - inner_ndim(frame)
    if shape[outer:] != layout.shape[outer:]:
        raise ValueError(f"the last {layout.ndim - outer} dimensions are those of the items, which cannot be resized")
    chunks, blocks = layout.chunks, layout.blocks
    if any(n and not (c and b) for n, c, b in zip(shape, chunks, blocks, strict=True)):
        inner = shape[outer:]
        cut = chunking.automatic(shape[:outer], layout.itemsize * math.prod(inner))
        chunks, blocks = (part + inner for part in cut)
    new = replace(layout, shape=shape, chunks=chunks, blocks=blocks)
    if (chunks, blocks) != (layout.chunks, layout.blocks):
        frame = replace(frame, chunksize=new.chunk_nbytes, blocksize=new.block_nbytes)
    check_count(new)
    outers = tuple(part[:outer] for part in (shape, chunks, blocks))
    layers = tuple(
        (name, b2nd.with_extents(raw, *outers) if name in GEOMETRIES else raw) for name, raw in frame.metalayers
    )
    return replace(frame, metalayers=layers), new
