"""Chunks that are being changed: decoded blocks, on top of the old chunk unless all of it is replaced.

A write puts its values into open chunks. Where it can, it decodes only the blocks that it changes in part, and
`encode` copies the streams of blocks that it does not touch. Inside ``with a.transaction()``, chunks that are written
in part, or are the only one of their write, stay open in a `WriteBuffer` until the commit, or until it is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.codec import decode, encode, rounding
from b2array.codec.chunk import Context, Stored
from b2array.codec.cparams import CParams
from b2array.codec.decode import Tile
from b2array.codec.header import FilterId
from b2array.codec.splice import splice
from b2array.errors import FormatError
from b2array.format.state import State
from b2array.frame.cache import CacheEntry
from b2array.grid.layout import Layout
from b2array.grid.partition import Axes, Part, Run, put, take
from b2array.grid.tiling import Patch, parts_of_blocks
from b2array.store.base import Mutex

__all__ = ["Form", "OpenChunk", "Undo", "WriteBuffer"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Undo = list[Callable[[], object]]


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """How the chunks of an array are cut and encoded. Items with the bytes of `fill` are never rounded."""

    layout: Layout
    cparams: CParams
    typesize: int
    context: Context
    fill: bytes | None = None

    @classmethod
    def of(cls, state: State, layout: Layout) -> Form:
        """Return the form of the chunks of an array."""
        frame = state.frame
        # An item that is an array adds dimensions to a layout; the frame counts it as one item.
        typesize = layout.itemsize if layout.block_nbytes % frame.typesize else frame.typesize
        context = Context(frame.codec, frame.codec_meta, layout.blocks)
        return cls(layout, state.cparams, typesize, context, state.annotations.fill)

    def blank(self, count: int) -> Bytes:
        """Return memory for blocks that values will fill: zeros, if some bytes get no value."""
        layout = self.layout
        padded = layout.extended_chunks != layout.chunks or any(
            n % c for n, c in zip(layout.shape, layout.chunks, strict=True)
        )
        # Values have no bytes for the gaps between fields and after an extended float.
        gaps = layout.dtype.names is not None or layout.dtype.char in "gG"
        return (np.zeros if padded or gaps else np.empty)((count, layout.block_nbytes), np.uint8)


class OpenChunk:
    """A chunk that is being changed. `stored` is the old chunk, with all its bytes; None if all of it is replaced."""

    __slots__ = ("_blocks", "_stored", "form")

    def __init__(self, form: Form, stored: Stored | None) -> None:
        self.form = form
        self._stored = stored
        self._blocks: dict[int, CacheEntry] = {}
        if stored is None:
            return
        header, layout = stored.head.header, form.layout
        header.require_known_version()
        if header.nbytes != layout.chunk_nbytes:
            raise FormatError(f"expected {layout.chunk_nbytes} uncompressed bytes, found {header.nbytes}")
        regular = header.block_nbytes == header.last_block_nbytes == layout.block_nbytes and not header.vl_blocks
        if not regular or FilterId.DELTA in header.filters:
            data = decode.decode(stored.region, context=form.context)
            self._add(range(layout.nblocks), data.reshape(layout.nblocks, -1))
            self._stored = None

    def _add(self, numbers: Iterable[int], data: Bytes) -> None:
        tile = Tile(data)
        self._blocks.update((n, CacheEntry(tile, row)) for row, n in enumerate(numbers))

    @property
    def nbytes(self) -> int:
        """How much memory the chunk takes."""
        stored = 0 if self._stored is None else len(self._stored.region)
        return stored + len(self._blocks) * self.form.layout.block_nbytes

    def entries(self, numbers: Sequence[int]) -> dict[int, CacheEntry]:
        """Return blocks. Those that no write has touched are decoded, but not kept."""
        missing = [n for n in numbers if n not in self._blocks]
        if not missing:
            return self._blocks
        tile = Tile(self._decode(missing))
        return {**self._blocks, **{n: CacheEntry(tile, row) for row, n in enumerate(missing)}}

    def _decode(self, numbers: list[int]) -> Bytes:
        data = np.empty((len(numbers), self.form.layout.block_nbytes), np.uint8)
        if self._stored is None or not numbers:
            return data
        decode.check_plausible_size(self._stored, numbers, context=self.form.context)
        step = decode.step_length(self.form.layout.block_nbytes)
        for first in range(0, len(numbers), step):
            pick = slice(first, first + step)
            decode.decode_blocks(self._stored, numbers[pick], data[pick].reshape(-1), context=self.form.context)
        return data

    def _load(self, numbers: Sequence[int], filled: Sequence[bool] | None = None, undo: Undo | None = None) -> None:
        """Decode blocks that are not in memory yet; those that values will fill are blank instead."""
        missing = [i for i, n in enumerate(numbers) if n not in self._blocks]
        if not missing:
            return
        needed = missing if filled is None else [i for i in missing if not filled[i]]
        data = self._decode([numbers[i] for i in needed])
        if len(needed) < len(missing):
            rows = np.isin(missing, needed)
            decoded, data = data, self.form.blank(len(missing))
            data[rows] = decoded
        if undo is not None:
            undo.append(partial(setattr, self, "_blocks", self._blocks))
            self._blocks = self._blocks.copy()
        self._add([numbers[i] for i in missing], data)

    # Changing.

    def put(
        self, part: Part, patch: Patch | None, axes: Axes | None, values: Array, fields: Any, undo: Undo | None
    ) -> None:
        """Copy values into the blocks of a `part` of the chunk; `patch` is the same part, if slices select it.

        `undo` gets functions that put the old values back.
        """
        if patch is not None:
            self._load(patch.numbers, patch.filled if fields is None else None, undo)
            joined, layout = self._neighbours(patch.numbers), self.form.layout
            if joined is not None:
                grid = joined.view(layout.dtype).reshape(patch.counts + layout.blocks)
                grid = grid if fields is None else grid[fields]
                for runs in product(*patch.runs):
                    _put_runs(grid, runs, values, undo)
                return
        found = parts_of_blocks(self.form.layout, part, axes)
        self._load([n for n, _ in found], undo=undo)
        for n, of_block in found:
            tile, row, _ = self._blocks[n]
            block = tile.data[row].view(self.form.layout.dtype).reshape(self.form.layout.blocks)
            block = block if fields is None else block[fields]
            if undo is not None:
                undo.append(partial(put, block, of_block.inside, take(block, of_block.inside, axes).copy(), axes))
            put(block, of_block.inside, take(values, of_block.outside), axes)

    def _neighbours(self, numbers: Sequence[int]) -> Bytes | None:
        """Return blocks as one array, or None if they are not neighbours in memory."""
        tile, first, _ = self._blocks[numbers[0]]
        for row, n in enumerate(numbers, first):
            entry = self._blocks[n]
            if entry.tile is not tile or entry.row != row:
                return None
        return tile.data[first : first + len(numbers)]

    def encode(self) -> bytes:
        """Encode the chunk with everything that was put into it."""
        layout, cparams, typesize = self.form.layout, self.form.cparams, self.form.typesize
        numbers = sorted(self._blocks)
        if len(numbers) < layout.nblocks and self._stored is not None:
            data, bits = self._round(numbers)
            buf = splice(
                self._stored,
                numbers,
                data,
                typesize=typesize,
                cparams=cparams,
                blockshape=layout.blocks,
                kept_bits=bits,
            )
            if buf is not None:
                return buf
            numbers = list(range(layout.nblocks))
            self._load(numbers)
        data, bits = self._round(numbers)
        return encode.encode(
            data,
            typesize=typesize,
            blocksize=layout.block_nbytes,
            cparams=cparams,
            blockshape=layout.blocks,
            kept_bits=bits,
        )

    def _round(self, numbers: list[int]) -> tuple[Bytes, int]:
        """Return blocks, rounded if the user allows errors, and how many bits of the mantissa are in use then."""
        form, data = self.form, self._join(numbers)
        if not form.cparams.is_lossy:
            return data, 0
        items = rounding.round_items(data.view(form.layout.dtype), form.cparams, form.fill)
        bits = rounding.count_kept_bits(items) if form.typesize == form.layout.itemsize else 0
        return items.view(np.uint8), bits

    def _join(self, numbers: list[int]) -> Bytes:
        joined = self._neighbours(numbers)
        if joined is None:
            joined = np.stack([tile.data[row] for tile, row, _ in (self._blocks[n] for n in numbers)])
        return joined


def _put_runs(grid: Array, runs: tuple[Run, ...], values: Array, undo: Undo | None) -> None:
    """Copy values into blocks, given with the dimensions of their grid first and then those of a block."""
    ndim = len(runs)
    region = values[cast(Any, (*(run.outside for run in runs), ...))]
    sizes = [
        n for run, size in zip(runs, region.shape, strict=True) for n in (len(run.coords), size // len(run.coords))
    ]
    order = [*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2)]
    key = (*(slice(run.coords.start, run.coords.stop) for run in runs), *(run.inside for run in runs))
    if undo is not None:
        undo.append(partial(grid.__setitem__, key, grid[key].copy()))
    grid[key] = region.reshape(sizes).transpose(order)


class WriteBuffer:
    """The open chunks of a transaction, the least recently written one first.

    Attributes
    ----------
    chunks : dict of int to OpenChunk
        By number; for reading only.
    nbytes : int
        How much memory they take.
    mutex : Mutex
        Held while chunks are opened, changed, read or encoded.
    """

    def __init__(self) -> None:
        self.chunks: dict[int, OpenChunk] = {}
        self._sizes: dict[int, int] = {}
        self.nbytes = 0
        self.mutex = Mutex()

    def keep(self, n: int, chunk: OpenChunk) -> None:
        """Keep a chunk, now the most recently written one."""
        self.drop(n)
        self.chunks[n] = chunk
        self._sizes[n] = chunk.nbytes
        self.nbytes += chunk.nbytes

    def drop(self, n: int) -> None:
        """Do not keep a chunk any more."""
        self.chunks.pop(n, None)
        self.nbytes -= self._sizes.pop(n, 0)

    def replace(self, chunks: Mapping[int, OpenChunk]) -> None:
        """Keep these chunks instead of those that are here."""
        self.chunks = dict(chunks)
        self._sizes = {n: chunk.nbytes for n, chunk in chunks.items()}
        self.nbytes = sum(self._sizes.values())

    def excess(self) -> list[int]:
        """If all take too much memory, return those to encode, oldest first, until the rest takes half of that."""
        if self.nbytes <= config.write_buffer_bytes:
            return []
        rest = self.nbytes
        chosen = []
        for n, nbytes in self._sizes.items():
            if rest <= config.write_buffer_bytes // 2:
                break
            chosen.append(n)
            rest -= nbytes
        return chosen
