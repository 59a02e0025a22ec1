"""How an array is cut: chunks on a grid, and in each chunk blocks on a grid.

Source: "Blosc2 NDim Array Format", sections Metalayer and Storage order: partial chunks and blocks are padded to full
size at their high end, and all grids are in C order.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, SupportsIndex

import numpy as np

from b2array import config
from b2array.config import MAX_BLOCKSIZE, MAX_CHUNK_NBYTES

__all__ = ["MAX_NDIM", "Layout", "extents", "grid_shape"]

Shape = tuple[int, ...]

MAX_NDIM = 16
"""Source: "Blosc2 NDim Array Format", section Metalayer: C-Blosc2 has B2ND_MAX_DIM = 16."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How an array is cut: into chunks on a grid, and each chunk into blocks on a grid.

    Every chunk is stored in full, with padding where the array ends inside a chunk, or the chunk inside a block. The
    order of chunks on their grid, blocks within a chunk, and items within a block is C order.

    Parameters
    ----------
    shape, chunks, blocks : tuple of int
        Extents in items of the array, of a chunk, and of a block; at most 16 dimensions. An extent of `chunks` or
        `blocks` may be 0 only where the extent of `shape` is 0.
    dtype : numpy.dtype
        Type of the items; a void type if the file states only their size.
    dtype_text : str
        The type as spelled in the file (see the function `dtype_text`), or "" if the file does not state it.
    version : int, default 0
        Version of the metalayer, which is preserved.

    Raises
    ------
    ValueError
        The extents do not fit each other, or a chunk, a block or the whole is larger than the format allows.

    Examples
    --------
    >>> layout = Layout((10, 7), (4, 4), (3, 2), np.dtype("<f8"), "<f8")
    >>> layout.grid_shape, layout.extended_chunks, layout.block_grid
    ((3, 2), (6, 4), (2, 2))
    """

    shape: Shape
    chunks: Shape
    blocks: Shape
    dtype: np.dtype[Any]
    dtype_text: str
    version: int = 0

    ndim: int = field(init=False, repr=False, compare=False)
    """Number of dimensions."""
    itemsize: int = field(init=False, repr=False, compare=False)
    """Size of an item in bytes."""
    grid_shape: Shape = field(init=False, repr=False, compare=False)
    """Number of chunks along every dimension."""
    is_text: bool = field(init=False, repr=False, compare=False)
    """Whether the items are text of any length. Then chunks have no padding, and sizes in bytes do not count text."""
    nchunks: int = field(init=False, repr=False, compare=False)
    """Number of chunks: 1 for an array without dimensions, 0 if an extent of the shape is 0."""
    block_grid: Shape = field(init=False, repr=False, compare=False)
    """Number of blocks along every dimension of a chunk."""
    nblocks: int = field(init=False, repr=False, compare=False)
    """Number of blocks in a chunk."""
    extended_chunks: Shape = field(init=False, repr=False, compare=False)
    """Extents in items of a chunk with its padding: a whole number of blocks in every dimension."""
    grid_strides: Shape = field(init=False, repr=False, compare=False)
    """Distance in C order between neighbouring chunks along every dimension."""
    block_strides: Shape = field(init=False, repr=False, compare=False)
    """Distance in C order between neighbouring blocks of a chunk along every dimension."""
    block_nbytes: int = field(init=False, repr=False, compare=False)
    """Size of a block in bytes."""
    chunk_nbytes: int = field(init=False, repr=False, compare=False)
    """Size of a chunk in bytes, padding included."""
    nbytes: int = field(init=False, repr=False, compare=False)
    """Size of all chunks in bytes, padding included. The frame calls this its uncompressed size."""

    def __post_init__(self) -> None:
        derive = object.__setattr__
        derive(self, "ndim", len(self.shape))
        self._check_extents()
        derive(self, "itemsize", self.dtype.itemsize)
        derive(self, "is_text", self.dtype.kind == "T")
        derive(self, "grid_shape", grid_shape(self.shape, self.chunks))
        derive(self, "nchunks", prod(self.grid_shape))
        derive(self, "block_grid", grid_shape(self.chunks, self.blocks))
        derive(self, "nblocks", prod(self.block_grid))
        derive(self, "grid_strides", _strides(self.grid_shape))
        derive(self, "block_strides", _strides(self.block_grid))
        extended = map(operator.mul, self.block_grid, self.blocks)
        derive(self, "extended_chunks", tuple(extended))
        derive(self, "block_nbytes", prod(self.blocks) * self.itemsize)
        derive(self, "chunk_nbytes", self.nblocks * self.block_nbytes)
        derive(self, "nbytes", self.nchunks * self.chunk_nbytes)
        self._check_sizes()

    def _check_extents(self) -> None:
        if self.ndim > MAX_NDIM:
            raise ValueError(f"expected at most {MAX_NDIM} dimensions, found {self.ndim}")
        if not len(self.chunks) == len(self.blocks) == self.ndim:
            raise ValueError(
                f"expected {self.ndim} extents in chunks and blocks, found {len(self.chunks)} and {len(self.blocks)}"
            )
        # Source: "Blosc2 NDim Array Format", section Metalayer: extents of the shape have 8 bytes, others 4, signed.
        bits = {"shape": 63, "chunks": 31, "blocks": 31}
        for name, nbits in bits.items():
            extents = getattr(self, name)
            if any(not 0 <= extent < 2**nbits for extent in extents):
                raise ValueError(f"expected extents of 0 to 2**{nbits} - 1 in {name}, found {extents}")
        axes = zip(self.shape, self.chunks, self.blocks, strict=True)
        for extent, chunk, block in axes:
            if extent and not (chunk and block):
                raise ValueError(
                    f"expected chunks and blocks of 1 item or more along {extent} items, found {(chunk, block)}"
                )

    def _check_sizes(self) -> None:
        most_in_chunk = min(MAX_CHUNK_NBYTES, config.limits.chunk_nbytes)
        bounds = (
            ("an item", self.itemsize, 1, MAX_CHUNK_NBYTES),
            ("a block", self.block_nbytes, 0, MAX_BLOCKSIZE),
            ("a chunk", self.chunk_nbytes, 0, most_in_chunk),
            ("the array with its padding", self.nbytes, 0, 2**63 - 1),
        )
        for name, nbytes, low, high in bounds:
            if not low <= nbytes <= high:
                raise ValueError(f"expected {low} to {high} bytes in {name}, found {nbytes}")


def _strides(grid: Sequence[int]) -> Shape:
    """Return the difference between the numbers of neighbours along each axis of a grid, in C order."""
    strides = []
    stride = 1
    for count in reversed(grid):
        strides.append(stride)
        stride *= count
    return tuple(reversed(strides))


def extents(shape: SupportsIndex | Sequence[SupportsIndex]) -> Shape:
    """Return a shape, given as one integer or several, as a tuple."""
    # A NumPy array without dimensions is one integer.
    if isinstance(shape, Sequence) or (isinstance(shape, np.ndarray) and shape.ndim):
        return tuple(map(operator.index, shape))
    return (operator.index(shape),)


def grid_shape(shape: Sequence[int], part: Sequence[int]) -> Shape:
    """Count the parts along each axis.

    Examples
    --------
    >>> grid_shape((10, 20), (4, 5))
    (3, 4)
    """
    pairs = zip(shape, part, strict=True)
    # A list, because a tuple from a generator takes longer, and each handle and view calls this function.
    return tuple([-(-extent // length) if length else 0 for extent, length in pairs])
