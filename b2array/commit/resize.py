"""How an array grows, shrinks and changes: resize, append, insert, delete.

Each function changes a draft, so that it is part of one commit. Chunks whose items stay together are kept as they
are. The others are encoded again, a few at a time, from what the transaction held before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from b2array.codec import encode
from b2array.codec.header import NAN_BYTES, Special
from b2array.commit.draft import Draft
from b2array.commit.edits import set_special
from b2array.commit.write import rewrite, write
from b2array.errors import ConflictError
from b2array.format import index
from b2array.format.state import State, reshape
from b2array.frame.read import read
from b2array.frame.source import Source
from b2array.grid import assignment, selection
from b2array.grid.layout import Layout

__all__ = [
    "Joint",
    "append",
    "check_joint",
    "delete",
    "fill_chunks",
    "insert",
    "make_joint",
    "read_box",
    "resize",
    "select_positions",
]

Array = npt.NDArray[Any]
Positions = slice | npt.NDArray[np.int64]
Box = tuple[slice, ...]


def resize(draft: Draft, shape: tuple[int, ...]) -> None:
    """Give the array another shape; new items are the fill value."""
    draft.flush()
    before = draft.reader()  # shares the chunks, and keeps the old index
    old = draft.state.require_layout()
    if shape == old.shape:
        return
    state = reshape(draft.state, shape)
    new = state.require_layout()
    rows = [np.arange(min(n, m)) for n, m in zip(old.grid_shape, new.grid_shape, strict=True)]
    _reindex(draft, state, rows)
    item = _fill_item(draft, new)
    kept = tuple(slice(0, min(n, m), 1) for n, m in zip(old.shape, new.shape, strict=True))
    torn = _mixed_chunks(draft, old, new, item)

    def filled(box: Box) -> Array:
        values = np.full(_lengths(box), np.frombuffer(item, new.dtype)[0], new.dtype)
        common = tuple(slice(i.start, min(i.stop, k.stop), 1) for i, k in zip(box, kept, strict=True))
        inside = tuple(slice(0, i.stop - i.start) for i in common)
        values[cast(Any, (*inside, ...))] = read_box(before, old, common)
        return values

    rewrite(draft, new, torn, filled)


def _mixed_chunks(draft: Draft, old: Layout, new: Layout, item: bytes) -> Iterator[int]:
    """List the chunks in which old items and new ones meet, unless they repeat the fill value anyway."""
    grid = np.arange(new.nchunks).reshape(new.grid_shape)
    kept = [slice(0, min(n, m)) for n, m in zip(old.grid_shape, new.grid_shape, strict=True)]
    special = special_of(item, new.dtype)
    uniform = None if special is None else index.special_offset(special)
    offsets = draft.frame.offsets
    for axis, (n, m, c) in enumerate(zip(old.shape, new.shape, old.chunks, strict=True)):
        if m <= n or not c or n % c == 0:
            continue
        row = n // c
        place = (*kept[:axis], slice(row, row + 1), *kept[axis + 1 :])
        slab = grid[cast(Any, place)].reshape(-1)
        yield from slab[offsets[slab] != uniform].tolist() if uniform is not None else slab.tolist()
        # The chunks of that row are done, and no later axis needs to touch them again.
        kept[axis] = slice(0, row)


def append(draft: Draft, values: Array, axis: int) -> None:
    """Put values of the array's type after the last items along an axis."""
    old = draft.state.require_layout()
    length = old.shape[axis]
    shape = _with_extent(old.shape, axis, length + values.shape[axis])
    state = reshape(draft.state, shape)
    new = state.require_layout()
    _reindex(draft, state, [np.arange(n) for n in old.grid_shape], fill=False)
    key = tuple(slice(length if n == axis else 0, extent, 1) for n, extent in enumerate(shape))
    write(draft, new, key, None, values)


class _Piece(NamedTuple):
    """Positions along an axis: of the array as it was, or (`given`) of the values that come in."""

    positions: Positions
    given: bool = False

    @property
    def length(self) -> int:
        i = self.positions
        return len(range(i.start, i.stop, i.step or 1)) if isinstance(i, slice) else len(i)


def insert(draft: Draft, values: Array, position: int, axis: int) -> None:
    """Put values before a position along an axis; other parameters as for `append`."""
    length = draft.state.require_layout().shape[axis]
    pieces = (
        _Piece(slice(0, position, 1)),
        _Piece(slice(0, values.shape[axis], 1), given=True),
        _Piece(slice(position, length, 1)),
    )
    _splice(draft, pieces, axis, values)


def delete(draft: Draft, positions: slice | npt.NDArray[np.int64], axis: int) -> None:
    """Remove positions along an axis: a slice of step 1 within bounds, or sorted positions without repeats."""
    length = draft.state.require_layout().shape[axis]
    if isinstance(positions, slice):
        pieces = [_Piece(slice(0, positions.start, 1)), _Piece(slice(positions.stop, length, 1))]
    else:
        pieces = [_Piece(np.delete(np.arange(length), positions))]
    _splice(draft, pieces, axis, None)


def _splice(draft: Draft, pieces: Iterable[_Piece], axis: int, values: Array | None) -> None:
    """Put the array together along an axis from pieces of what it was, and of values."""
    draft.flush()
    before = draft.reader()
    old = draft.state.require_layout()
    parts = [piece for piece in pieces if piece.length]
    edges = [0, *accumulate(piece.length for piece in parts)]
    rows = [np.arange(n) for n in old.grid_shape]
    shape = _with_extent(old.shape, axis, edges[-1])
    state = reshape(draft.state, shape)
    new = state.require_layout()
    rows[axis] = np.full(new.grid_shape[axis], -1)
    step = old.chunks[axis]
    for piece, (start, stop) in zip(parts, pairwise(edges), strict=True):
        if not piece.given:
            _find_rows(rows[axis], piece.positions, start, stop, edges[-1], step)
    _reindex(draft, state, rows, fill=False)
    moved = np.flatnonzero(rows[axis] < 0)
    numbers = np.take(np.arange(new.nchunks).reshape(new.grid_shape), moved, axis).reshape(-1)

    def joined(box: Box) -> Array:
        result = np.empty(_lengths(box), new.dtype)
        wanted = box[axis]
        for piece, (start, stop) in zip(parts, pairwise(edges), strict=True):
            low, high = max(start, wanted.start), min(stop, wanted.stop)
            if low >= high:
                continue
            target = result[(*(slice(None),) * axis, slice(low - wanted.start, high - wanted.start))]
            inside = _slice_positions(piece.positions, low - start, high - start)
            if piece.given and values is not None:
                target[...] = values[(*box[:axis], inside, *box[axis + 1 :], ...)]
            else:
                wanted_here = inside if isinstance(inside, slice) else inside[None]
                read(before, old, (*box[:axis], wanted_here, *box[axis + 1 :]), None, target)
        return result

    rewrite(draft, new, numbers.tolist(), joined)


def _find_rows(rows: npt.NDArray[np.int64], positions: Positions, start: int, stop: int, end: int, step: int) -> None:
    """Note which rows of chunks move as a whole when these positions move to [start, stop)."""
    if not step:
        return
    first = -(-start // step)
    # The last row may be short.
    last = len(rows) if stop == end else stop // step
    for row in range(first, last):
        low, high = row * step, min(row * step + step, end)
        inside = _slice_positions(positions, low - start, high - start)
        if isinstance(inside, slice):
            origin, together = inside.start, True
        else:
            origin, together = int(inside[0]), int(inside[-1]) - int(inside[0]) == high - low - 1
        if together and origin % step == 0:
            rows[row] = origin // step


def _slice_positions(positions: Positions, low: int, high: int) -> Positions:
    if isinstance(positions, slice):
        return slice(positions.start + low, positions.start + high, 1)
    return positions[low:high]


def _reindex(draft: Draft, state: State, rows: Sequence[npt.NDArray[np.int64]], *, fill: bool = True) -> None:
    """Give the array a new shape. `rows` says for each axis which old row of chunks comes to each new row.

    Rows with -1, and rows past the last one, are new: they repeat the fill value, or are zeros if they will be written.
    """
    old, new = draft.state.require_layout(), state.require_layout()
    order = np.full(new.grid_shape, -1, np.int64)
    if order.size and old.nchunks:
        found = [np.flatnonzero(row >= 0) for row in rows]
        numbers = np.arange(old.nchunks).reshape(old.grid_shape)
        kept = tuple(row[places] for row, places in zip(rows, found, strict=True))
        order[np.ix_(*found)] = numbers[np.ix_(*kept)]
    draft.reindex(order.reshape(-1), state, nbytes=new.nbytes)
    if fill:
        fill_chunks(draft, new, _fill_item(draft, new), np.flatnonzero(order.reshape(-1) < 0))


def fill_chunks(draft: Draft, layout: Layout, item: bytes, numbers: npt.NDArray[np.int64]) -> None:
    """Put one small chunk that repeats an item at each position, unless a special value stands for it."""
    special = special_of(item, layout.dtype)
    if special is not None:
        is_other = draft.frame.offsets[numbers] != index.special_offset(special)
        set_special(draft, numbers[is_other], special)
        return
    chunk = encode.special_chunk(item, layout.chunk_nbytes, typesize=len(item), blocksize=layout.block_nbytes)
    for n in numbers.tolist():
        draft.put(n, chunk)


def special_of(item: bytes, dtype: np.dtype[Any]) -> Special | None:
    """Return the special value that stands for an item in the index, or None if it takes a chunk."""
    if not any(item):
        return Special.ZEROS
    if dtype in (np.dtype("<f4"), np.dtype("<f8")) and item == NAN_BYTES[dtype.itemsize]:
        return Special.NAN
    return None


def _fill_item(draft: Draft, layout: Layout) -> bytes:
    item = draft.state.annotations.fill
    return item if item is not None and len(item) == layout.itemsize else bytes(layout.itemsize)


def read_box(source: Source, layout: Layout, box: Box) -> Array:
    """Read a box of the array, one slice of step 1 an axis."""
    result = np.empty(_lengths(box), layout.dtype)
    read(source, layout, box, None, result)
    return result


class Joint(NamedTuple):
    """An axis, not negative, and what goes along it: values that fit the array everywhere else."""

    values: Array
    axis: int


def make_joint(values: Any, shape: tuple[int, ...], dtype: np.dtype[Any], axis: int) -> Joint:
    """Check that values can be put after or between the items of an array, as `numpy.concatenate` does.

    Their type must be one that NumPy casts as "same_kind".
    """
    axis = np.lib.array_utils.normalize_axis_index(axis, len(shape))
    array = assignment.of_same_kind(values, dtype)
    if array.ndim != len(shape):
        raise ValueError(f"the values must have {len(shape)} dimensions, as the array has, not {array.ndim}")
    if _with_extent(array.shape, axis, 0) != _with_extent(shape, axis, 0):
        raise ValueError(
            f"the values must have the array's extents along all axes but {axis}: "
            f"found shape {array.shape} for an array of shape {shape}"
        )
    return Joint(array, axis)


def check_joint(url: str, before: Layout, now: Layout, axis: int) -> None:
    """Raise ConflictError if another writer has changed the array so that the values do not fit it any more."""
    if now.dtype != before.dtype or _with_extent(now.shape, axis, 0) != _with_extent(before.shape, axis, 0):
        raise ConflictError(f"{url} has become an array of shape {now.shape} and type {now.dtype}")


def select_positions(key: Any, shape: tuple[int, ...], axis: int) -> slice | npt.NDArray[np.int64]:
    """Return the positions that an integer, slice, index array or mask selects along an axis, as `delete` takes them.

    Examples
    --------
    >>> positions(slice(None, None, -2), (5, 4), 0), positions([-1, 0, 3], (5, 4), 1)
    (array([0, 2, 4]), array([0, 3]))
    """
    if key is None or key is Ellipsis or isinstance(key, tuple):
        raise IndexError("only an integer, a slice, an index array or a mask selects along one axis")
    axis = np.lib.array_utils.normalize_axis_index(axis, len(shape))
    found = selection.orthogonal((*[slice(None)] * axis, key), shape).positions[axis]
    if isinstance(found, np.ndarray):
        return np.unique(found[0]) if found.size else slice(0, 0, 1)
    return found if found.step == 1 else np.arange(found.start, found.stop, found.step)


def _with_extent(extents: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*extents[:axis], extent, *extents[axis + 1 :])


def _lengths(box: Box) -> tuple[int, ...]:
    return tuple(i.stop - i.start for i in box)
