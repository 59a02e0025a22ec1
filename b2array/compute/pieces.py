"""Reads what a mapping shows of an array piece by piece, in workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.buffers import scratch
from b2array.compute.mapping import Mapping
from b2array.engine.read import read, read_item
from b2array.engine.snapshot import Snapshot
from b2array.engine.source import Source
from b2array.format.index import SPECIALS
from b2array.grid.layout import Layout
from b2array.grid.selection import select, vectorised

__all__ = ["Box", "pieces"]

R = TypeVar("R")
Array = npt.NDArray[Any]
Box = tuple[slice, ...]

_LEAST_NBYTES, _LEAST_NBYTES_AFAR = 2**20, 8 * 2**20
"""Pieces up to this size are not cut, on local disks and elsewhere."""
_MOST_NBYTES = 32 * 2**20
"""Larger chunks are cut at the borders of blocks."""
_AFAR = 8
"""Number of pieces to request at the same time if that takes long."""


def pieces(
    source: Source, layout: Layout, mapping: Mapping, kept: Sequence[int], use: Callable[[Box, Array], R], *,
    merge: bool,
) -> Iterator[R]:  # fmt: skip
    """Call a function in workers with pieces of what a mapping shows, all of them, and yield the results.

    It takes a box of digits and its items, in memory that is used again. Pieces with the same box of the digits `kept`
    follow each other. With `merge`, many chunks of one value may be one piece, whose items have the stride 0.
    """
    of_digits = Mapping(mapping.shape, mapping.starts, tuple((digit,) for digit in mapping.digits))
    nbytes = math.prod(of_digits.lengths) * layout.itemsize

    def piece(found: tuple[Box, bool]) -> R:
        box, is_one = found
        if is_one:
            where = of_digits.sliced(tuple(i.start for i in box)).starts
            item = np.asarray(read_item(source, layout, where), layout.dtype)
            return use(box, np.broadcast_to(item, [i.stop - i.start for i in box]))
        key, arranged = of_digits.located(select((*box, ...), of_digits.lengths))
        wanted = vectorised(key, layout.shape)
        memory = scratch("pieces", math.prod(wanted.shape) * layout.itemsize, 2 * _MOST_NBYTES)
        items = memory.view(layout.dtype).reshape(wanted.shape)
        read(source, layout, wanted.positions, wanted.axes, wanted.view(items), nbytes)
        return use(box, arranged(items))

    found = _boxes(source, layout, mapping, kept, merge=merge)
    return threads.spread(piece, found) if source.is_local else threads.ahead(piece, found, _AFAR)


def _boxes(
    source: Source, layout: Layout, mapping: Mapping, kept: Sequence[int], *, merge: bool
) -> Iterator[tuple[Box, bool]]:
    """Cut digits in halves, those of `kept` first, until boxes are small; tell which have one value by the index."""
    digits, frame = mapping.digits, source.state.frame
    units = layout.blocks if layout.chunk_nbytes > _MOST_NBYTES else layout.chunks
    # A transaction must note which chunks are read, and its index does not tell which chunks it keeps open.
    merge = merge and isinstance(source, Snapshot) and not source.state.annotations.lost
    merge = merge and layout.itemsize == frame.typesize and layout.dtype.kind != "V"
    codes = frame.offsets.reshape(layout.grid_shape) if merge and frame.offsets.min() < 0 else None

    def is_one(box: Box) -> bool:
        low, high = list(mapping.starts), list(mapping.starts)
        for (axis, _, step), i in zip(digits, box, strict=True):
            first, last = sorted((step * i.start, step * (i.stop - 1)))
            low[axis], high[axis] = low[axis] + first, high[axis] + last
        touched = (slice(a // c, b // c + 1) for a, b, c in zip(low, high, layout.chunks, strict=True))
        found = np.asarray(codes)[tuple(touched)]
        return found.flat[0] in SPECIALS and bool((found == found.flat[0]).all())

    most = _LEAST_NBYTES if source.is_local else _LEAST_NBYTES_AFAR
    order, cells = sorted(range(len(digits)), key=lambda n: n not in kept), [digit.covering(units) for digit in digits]
    stack = [tuple(slice(0, digit.length) for digit in digits)]
    while stack:
        box = stack.pop()
        if codes is not None and is_one(box):
            yield box, True
            continue
        lengths = [i.stop - i.start for i in box]
        nbytes = math.prod(map(min, lengths, cells)) * layout.itemsize
        for n in order:
            # As if all following digits were cut as far as possible.
            nbytes = nbytes // min(lengths[n], cells[n]) * lengths[n]
            if lengths[n] > cells[n] and nbytes > most:
                axis, _, step = digits[n]
                middle = _middle(box[n], mapping.starts[axis], step, units[axis])
                halves = slice(middle, box[n].stop), slice(box[n].start, middle)
                stack += [(*box[:n], half, *box[n + 1 :]) for half in halves]
                break
        else:
            yield box, False


def _middle(i: slice, base: int, step: int, unit: int) -> int:
    """Return where to cut a range of a digit: near its middle, at a border between units if one is inside."""
    middle: int = (i.start + i.stop) // 2
    base, step = (base, step) if step > 0 else (-1 - base, -step)
    border = (base + middle * step) // unit * unit
    cuts = (-((base - position) // step) for position in (border, border + unit))
    return next((cut for cut in cuts if i.start < cut < i.stop), middle)
