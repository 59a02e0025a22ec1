"""Items from memory into chunks: the values of a selection -> blocks -> chunks that are encoded and staged.

Nothing here knows keys: selections are products of groups, as `b2array.grid.partition` cuts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.codec import decode, encode
from b2array.codec.chunk import Context
from b2array.codec.cparams import CParams
from b2array.engine.fetch import fetch
from b2array.engine.source import ChunkRequest, Target
from b2array.errors import FormatError, UnsupportedError, located_error
from b2array.grid.layout import Layout
from b2array.grid.partition import Axes, Part, PartGrid, Positions, part_grids, put, take
from b2array.grid.tiling import parts_of_blocks, parts_of_chunks

__all__ = ["chunk_box", "rewrite", "write"]

Array = npt.NDArray[Any]
Slices = tuple[slice, ...]


def write(
    target: Target, layout: Layout, positions: tuple[Positions, ...], axes: Axes | None, values: Array, *,
    cparams: CParams, fields: str | list[str] | None = None,
) -> None:  # fmt: skip
    """Put the selected items into new chunks.

    Parameters
    ----------
    target : Target
        Takes the chunks.
    layout, positions, axes
        As in `b2array.engine.read.read`.
    values : ndarray
        One dimension a group of the selection; converted to the array's dtype block by block.
    cparams : CParams
        How to encode.
    fields : str or list of str, optional
        The fields to change; whole items by default.
    """
    writer = _Writer(target, layout, axes, values, cparams, fields)
    for _ in _set_codes(target, threads.spread(writer.make, parts_of_chunks(layout, positions, axes))):
        pass


def rewrite(
    target: Target, layout: Layout, numbers: Iterable[int], produce: Callable[[Slices], Array], *, cparams: CParams
) -> Iterator[int]:
    """Make whole chunks from scratch, a few at a time.

    Parameters
    ----------
    target : Target
        Takes the chunks, when the last one is made.
    layout : Layout
        How they make up the array.
    numbers : iterable of int
        The chunks, in C order of the grid.
    produce : callable
        Called in the workers with a box of the array, one slice an axis, for the items in it.
    cparams : CParams
        How to encode.

    Yields
    ------
    int
        The number of each chunk that is made.
    """

    def make(number: int) -> CompressedChunk:
        coords = tuple(int(coord) for coord in np.unravel_index(number, layout.grid_shape))
        box = chunk_box(layout, coords)
        whole = tuple(slice(0, i.stop - i.start, 1) for i in box)
        values = np.asarray(produce(box))
        return _Writer(target, layout, None, values, cparams, None).make((number, Part(coords, whole, whole)))

    yield from _set_codes(target, threads.spread(make, numbers))


def chunk_box(layout: Layout, coords: Sequence[int]) -> Slices:
    """Return the box of the array that a chunk covers, one slice an axis."""
    return tuple(
        slice(coord * c, min(coord * c + c, n), 1)
        for coord, c, n in zip(coords, layout.chunks, layout.shape, strict=True)
    )


class CompressedChunk(NamedTuple):
    """A chunk that was encoded: its number, its bytes, and its code if it is stored already."""

    number: int
    buf: bytes
    code: int | None


def _set_codes(target: Target, made: Iterable[CompressedChunk]) -> Iterator[int]:
    """Store chunks, and refer to them when all are stored: a transaction may go on without a write that failed."""
    codes = []
    for number, buf, code in made:
        codes.append((number, target.store_chunk(buf) if code is None else code))
        yield number
    for number, code in codes:
        target.set_code(number, code)


@dataclass(frozen=True, slots=True, eq=False)
class _Writer:
    """What the chunks of one write share."""

    target: Target
    layout: Layout
    axes: Axes | None
    values: Array
    cparams: CParams
    fields: str | list[str] | None

    def make(self, chunk: tuple[int, Part]) -> CompressedChunk:
        """Encode a chunk, and store it at once if it gets a file of its own."""
        number, part = chunk
        blocks = self._empty() if self._covers(part) else self._decoded(number)
        self._put(blocks if self.fields is None else blocks[self.fields], part)
        buf = self._encoded(blocks)
        return CompressedChunk(number, buf, self.target.store_chunk(buf) if self.target.sparse else None)

    def _covers(self, part: Part) -> bool:
        """Whether the selection takes every item of the chunk that lies in the array."""
        if self.axes is not None or self.fields is not None:
            return False
        for i, coord, n, c in zip(part.inside, part.coords, self.layout.shape, self.layout.chunks, strict=True):
            stop = min(c, n - coord * c)
            if not isinstance(i, slice) or i.start > 0 or i.step != 1 or i.stop < stop:
                return False
        return True

    def _empty(self) -> Array:
        """Return memory for all blocks of a chunk, with zeros where nothing will be put."""
        layout = self.layout
        padded = layout.extended_chunks != layout.chunks or any(
            n % c for n, c in zip(layout.shape, layout.chunks, strict=True)
        )
        # No value has the bytes between fields and behind an extended float: write zeros, not what the memory held.
        gaps = layout.dtype.names is not None or layout.dtype.char in "gG"
        make = np.zeros if padded or gaps else np.empty
        return make((layout.nblocks, *layout.blocks), layout.dtype)

    def _decoded(self, number: int) -> Array:
        """Return all blocks of a chunk as they are now."""
        target, layout = self.target, self.layout
        (stored,) = fetch(target, [ChunkRequest(number, None)])
        out = np.empty(layout.chunk_nbytes, np.uint8)
        context = Context(target.frame.codec, target.frame.codec_meta, layout.blocks)
        try:
            decode.decode(stored.region, out=out, context=context)
        except (FormatError, UnsupportedError) as error:
            raise located_error(f"chunk {number} of {target.url}", error) from error
        return out.view(layout.dtype).reshape(layout.nblocks, *layout.blocks)

    def _put(self, blocks: Array, part: Part) -> None:
        """Copy the values that belong into a chunk."""
        layout = self.layout
        if self.axes is None and np.ndarray not in map(type, part.inside):
            grid = blocks.reshape(layout.block_grid + layout.blocks)
            for piece in part_grids(cast(Slices, part.inside), layout.blocks, cast(Slices, part.outside)):
                _put_grid(grid, piece, self.values)
        else:
            for number, of_block in parts_of_blocks(layout, part, self.axes):
                put(blocks[number, ...], of_block.inside, take(self.values, of_block.outside), self.axes)

    def _encoded(self, blocks: Array) -> bytes:
        layout, typesize = self.layout, self.target.frame.typesize
        if layout.block_nbytes % typesize:
            typesize = layout.itemsize  # items that are arrays are further dimensions here, but one item in the frame
        return encode.encode(
            blocks, typesize=typesize, blocksize=layout.block_nbytes, cparams=self.cparams, blockshape=layout.blocks
        )


def _put_grid(grid: Array, piece: PartGrid, values: Array) -> None:
    """Copy values into blocks, given with the dimensions of the grid first and then those of a block."""
    ndim = len(piece.coords)
    region = values[cast(Any, (*piece.outside, ...))]
    sizes = [
        n for along, size in zip(piece.coords, region.shape, strict=True) for n in (len(along), size // len(along))
    ]
    order = [*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2)]
    key = (*(slice(along.start, along.stop) for along in piece.coords), *piece.inside)
    grid[key] = region.reshape(sizes).transpose(order)
