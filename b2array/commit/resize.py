"""Changes to the shape of an array: resize, append, insert, delete.

Each function changes a draft, so that the whole change is part of one commit. Chunks whose items stay together move as
they are. The other chunks are encoded again, a few at a time, from the values in the transaction before the change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.codec import encode
from b2array.codec.chunk_header import NAN_BYTES, Special
from b2array.commit.draft import Draft
from b2array.commit.edits import set_special
from b2array.commit.write import rewrite, write
from b2array.errors import ConflictError
from b2array.format import index
from b2array.format.state import State, choose_layout, known_text, reshape, with_layout
from b2array.format.strings import LENGTHS, item_of, pack_lengths
from b2array.format.text_sizes import average_text
from b2array.frame.read import read
from b2array.frame.source import Source
from b2array.grid import selection
from b2array.grid.chunking import check_access, commit_length
from b2array.grid.layout import Layout
from b2array.grid.lossless import lossless

__all__ = [
    "Joint",
    "append",
    "check_extents",
    "choose_chunks",
    "delete",
    "fill_chunks",
    "growing_layout",
    "insert",
    "make_joint",
    "read_box",
    "require_still_fits",
    "resize",
    "select_positions",
]

Array = npt.NDArray[Any]
Positions = slice | npt.NDArray[np.int64]
Box = tuple[slice, ...]


def resize(draft: Draft, shape: tuple[int, ...]) -> None:
    """Change the shape of the array; new items have the fill value.

    This encodes open chunks first, and writes the chunks in which old and new items meet. ValueError: the draft is a
    fork.
    """
    draft.flush()
    shape_before = draft.state.require_layout().shape
    if shape == shape_before:
        return
    state = reshape(draft.state, shape)
    axes = zip(shape_before, shape, strict=True)
    growing = [axis for axis, (was, now) in enumerate(axes) if now > was]
    if choose_chunks(draft, growing):
        state = reshape(draft.state, shape)
    # This reader shares the chunks with the draft, but still has the old index.
    before = draft.reader()
    old = draft.state.require_layout()
    new = state.require_layout()
    rows = [np.arange(n) for n in _smaller_of_each(old.grid_shape, new.grid_shape)]
    _reindex(draft, state, rows)
    item = _fill_item(draft, new)
    extents = _smaller_of_each(old.shape, new.shape)

    def read_and_fill(box: Box) -> Array:
        """Read the old items of a box, and return the box with the fill value for all other items."""
        fill = item_of(item, new.dtype)
        values = np.full(_shape_of_box(box), fill, new.dtype)
        stops = _smaller_of_each([i.stop for i in box], extents)
        sides = zip(box, stops, strict=True)
        old_box = tuple(slice(i.start, stop, 1) for i, stop in sides)
        inside = [slice(0, length) for length in _shape_of_box(old_box)]
        target: Any = (*inside, ...)
        values[target] = read_box(before, old, old_box)
        return values

    mixed = _find_cut_chunks(old, new) if new.is_text else _find_mixed_chunks(draft, old, new, item)
    rewrite(draft, new, mixed, read_and_fill)


def growing_layout(
    state: State,
    axes: Sequence[int],
    every: int | None = None,
    sample: Array | None = None,
) -> Layout | None:
    """Return the layout with which an array begins to grow along some axes; None if it keeps the layout that it has.

    The chunks of an array with few items are as small as the array if nobody chose them. `every` says how many steps
    along the only axis are committed together, so that commits can end where chunks end. `sample` has some of the new
    items, whose text is measured.
    """
    word = state.annotations.auto
    if word is None or not axes:
        return None
    layout = state.require_layout()
    # An extent of 0 is expected to grow.
    expected = [0 if axis in axes else extent for axis, extent in enumerate(layout.shape)]
    access = check_access(word or None)
    text_nbytes = 0
    if layout.is_text and sample is not None:
        text_nbytes = average_text(sample, known=known_text(state))
    chosen = choose_layout(state, tuple(expected), access, text_nbytes=text_nbytes)
    if every is not None:
        (axis,) = axes
        lengths = dict(enumerate(chosen.chunks))
        usual = lengths.pop(axis)
        itemsize = text_nbytes or layout.itemsize
        step_nbytes = math.prod(lengths.values()) * itemsize
        lengths[axis] = commit_length(every, step_nbytes, usual)
        chosen = choose_layout(state, tuple(expected), access, lengths, text_nbytes)
    return replace(chosen, shape=layout.shape)


def choose_chunks(
    draft: Draft,
    axes: Sequence[int],
    every: int | None = None,
    sample: Array | None = None,
) -> bool:
    """Choose the chunks of an array with few items anew before it grows along some axes, unless a user chose them.

    This encodes open chunks first, and rewrites the items that there are. Returns whether chunks or blocks changed.
    `growing_layout` describes the parameters.
    """
    new = growing_layout(draft.state, axes, every, sample)
    if new is None:
        return False
    draft.refuse_in_fork("change the shape, or the order of the chunks: resize before you fork")
    old = draft.state.require_layout()
    # What has begun to grow has the chunks that it needs.
    draft.annotate(auto=None)
    if (new.chunks, new.blocks) == (old.chunks, old.blocks):
        return False
    draft.flush()
    before = draft.reader()
    special = special_of(_fill_item(draft, old), old.dtype)
    is_filled = special is not None and bool((draft.frame.offsets == index.special_offset(special)).all())
    rows = [np.full(n, -1) for n in new.grid_shape]
    _reindex(draft, with_layout(draft.state, new), rows, fill=is_filled)
    if not is_filled:
        # Values that may be rounded already are not rounded again.
        rewrite(draft, new, range(new.nchunks), lambda box: read_box(before, old, box), exact=True)
    return True


def _find_cut_chunks(old: Layout, new: Layout) -> list[int]:
    """Return the numbers, in the `new` layout, of chunks of text that get other extents: they have no padding."""
    numbers = np.arange(new.nchunks).reshape(new.grid_shape)
    common = tuple(slice(0, n) for n in _smaller_of_each(old.grid_shape, new.grid_shape))
    changed = np.zeros(new.grid_shape, bool)
    for axis, (before, after, chunk) in enumerate(zip(old.shape, new.shape, new.chunks, strict=True)):
        row = min(before, after) // chunk if chunk else 0
        # The last row of the shorter array is cut off there, unless it ends with a whole chunk.
        if before != after and chunk and min(before, after) % chunk:
            changed[(slice(None),) * axis + (row,)] = True
    return [int(n) for n in numbers[common][changed[common]]]


def _find_mixed_chunks(draft: Draft, old: Layout, new: Layout, item: bytes) -> Iterator[int]:
    """Yield the numbers, in the `new` layout, of the chunks in which old and new items meet.

    Skip chunks that repeat the fill value `item`. The draft has the new index already.
    """
    grid = np.arange(new.nchunks).reshape(new.grid_shape)
    common = [slice(0, n) for n in _smaller_of_each(old.grid_shape, new.grid_shape)]
    special = special_of(item, new.dtype)
    offsets = draft.frame.offsets
    axes = zip(old.shape, new.shape, old.chunks, strict=True)
    for axis, (old_extent, new_extent, chunk) in enumerate(axes):
        grows = new_extent > old_extent
        if not grows or not chunk or old_extent % chunk == 0:
            continue
        row = old_extent // chunk
        place = [*common]
        place[axis] = slice(row, row + 1)
        numbers = grid[tuple(place)].reshape(-1)
        if special is not None:
            numbers = numbers[offsets[numbers] != index.special_offset(special)]
        yield from numbers.tolist()
        # The chunks of that row are done, and no later axis needs to touch them again.
        common[axis] = slice(0, row)


def append(draft: Draft, values: Array, axis: int) -> None:
    """Put values of the array's type after the last items along an axis; ValueError in a fork.

    Like `write`, this keeps chunks open in a transaction.
    """
    choose_chunks(draft, [axis], sample=values)
    old = draft.state.require_layout()
    length = old.shape[axis]
    extent = length + values.shape[axis]
    shape = _with_extent(old.shape, axis, extent)
    state = reshape(draft.state, shape)
    new = state.require_layout()
    rows = [np.arange(n) for n in old.grid_shape]
    # The write covers all new items, so new chunks need no fill value.
    _reindex(draft, state, rows, fill=False)
    key = [slice(0, extent, 1) for extent in shape]
    key[axis] = slice(length, shape[axis], 1)
    write(draft, new, tuple(key), None, values, before=old)


class _Piece(NamedTuple):
    """Positions along an axis: in the array before the change or, if `is_new`, in the new values."""

    positions: Positions
    is_new: bool = False

    @property
    def length(self) -> int:
        """The number of positions."""
        positions = self.positions
        if isinstance(positions, slice):
            covered = range(positions.start, positions.stop, positions.step or 1)
            return len(covered)
        return len(positions)


def insert(draft: Draft, values: Array, position: int, axis: int) -> None:
    """Put values of the array's type before a position along an axis; ValueError in a fork.

    This encodes open chunks first, and rewrites the chunks that do not move as a whole.
    """
    choose_chunks(draft, [axis], sample=values)
    length = draft.state.require_layout().shape[axis]
    before = slice(0, position, 1)
    added = slice(0, values.shape[axis], 1)
    after = slice(position, length, 1)
    pieces = (_Piece(before), _Piece(added, is_new=True), _Piece(after))
    _splice(draft, pieces, axis, values)


def delete(
    draft: Draft,
    positions: slice | npt.NDArray[np.int64],
    axis: int,
) -> None:
    """Remove positions along an axis: a slice of step 1 within bounds, or sorted positions without repeats.

    This encodes open chunks first, and rewrites the chunks that do not move as a whole. ValueError: the draft is a
    fork.
    """
    length = draft.state.require_layout().shape[axis]
    if isinstance(positions, slice):
        before = slice(0, positions.start, 1)
        after = slice(positions.stop, length, 1)
        pieces = [_Piece(before), _Piece(after)]
    else:
        rest = np.delete(np.arange(length), positions)
        pieces = [_Piece(rest)]
    _splice(draft, pieces, axis, None)


def _splice(
    draft: Draft,
    pieces: Iterable[_Piece],
    axis: int,
    values: Array | None,
) -> None:
    """Recompose the array along an axis from pieces of the old array and of the new `values`, in this order.

    This encodes open chunks first. Chunks that move as a whole keep their bytes; the others are read and written.
    ValueError: the draft is a fork.
    """
    draft.flush()
    before = draft.reader()
    old = draft.state.require_layout()
    parts = [piece for piece in pieces if piece.length]
    edges = [0, *accumulate(piece.length for piece in parts)]
    shape = _with_extent(old.shape, axis, edges[-1])
    state = reshape(draft.state, shape)
    new = state.require_layout()
    rows = [np.arange(n) for n in old.grid_shape]
    rows[axis] = np.full(new.grid_shape[axis], -1)
    placed = [*zip(parts, pairwise(edges), strict=True)]
    end = edges[-1]
    step = old.chunks[axis]
    for piece, (start, stop) in placed:
        if not piece.is_new:
            _enter_moved_rows(rows[axis], piece.positions, start, stop, end, step)
    if new.is_text:
        _drop_cut_rows(rows[axis], length=old.shape[axis], end=end, step=step)
    _reindex(draft, state, rows, fill=False)
    # Compose only the chunks that did not move as a whole.
    grid = np.arange(new.nchunks).reshape(new.grid_shape)
    unfilled = np.flatnonzero(rows[axis] < 0)
    numbers = np.take(grid, unfilled, axis).reshape(-1)

    def compose(box: Box) -> Array:
        """Return the items of a box, from new values and from reads of the old array."""
        result = np.empty(_shape_of_box(box), new.dtype)
        wanted = box[axis]
        for piece, (start, stop) in placed:
            low = max(start, wanted.start)
            high = min(stop, wanted.stop)
            if low >= high:
                continue
            along: list[Any] = [slice(None)] * axis
            along.append(slice(low - wanted.start, high - wanted.start))
            target = result[tuple(along)]
            inside = _slice_positions(piece.positions, low - start, high - start)
            key: list[Any] = [*box]
            if piece.is_new and values is not None:
                key[axis] = inside
                target[...] = values[(*key, ...)]
            else:
                # A read takes index arrays as factors, which have another dimension in front.
                key[axis] = inside if isinstance(inside, slice) else inside[None]
                read(before, old, tuple(key), None, target)
        return result

    rewrite(draft, new, numbers.tolist(), compose)


def _enter_moved_rows(
    rows: npt.NDArray[np.int64],
    positions: Positions,
    start: int,
    stop: int,
    end: int,
    step: int,
) -> None:
    """Find rows of chunks that move as a whole when old positions move to [start, stop) along an axis.

    This enters the old number of each in `rows`, at its new number. `end` is the new length of the axis, and `step` the
    length of a chunk.
    """
    # An axis of length 0 has no rows of chunks.
    if not step:
        return
    first = -(-start // step)
    # The last row of the array may be short.
    last = len(rows) if stop == end else stop // step
    for row in range(first, last):
        low = row * step
        high = min(low + step, end)
        inside = _slice_positions(positions, low - start, high - start)
        if isinstance(inside, slice):
            origin = inside.start
            is_contiguous = True
        else:
            origin = int(inside[0])
            is_contiguous = int(inside[-1]) - origin == high - low - 1
        if is_contiguous and origin % step == 0:
            rows[row] = origin // step


def _drop_cut_rows(rows: npt.NDArray[np.int64], *, length: int, end: int, step: int) -> None:
    """Take back the moves of rows whose extents change, in `rows`: chunks of text have no padding.

    `length` and `end` are the old and the new length of the axis, and `step` is the length of a chunk.
    """
    for row, origin in enumerate(rows.tolist()):
        before = min(step, length - origin * step)
        after = min(step, end - row * step)
        if origin >= 0 and before != after:
            rows[row] = -1


def _slice_positions(positions: Positions, low: int, high: int) -> Positions:
    """Return the part from index `low` to index `high` of a sequence of positions."""
    if isinstance(positions, slice):
        return slice(positions.start + low, positions.start + high, 1)
    return positions[low:high]


def _reindex(
    draft: Draft,
    state: State,
    rows: Sequence[npt.NDArray[np.int64]],
    *,
    fill: bool = True,
) -> None:
    """Change the shape of the array, and move its chunks.

    Parameters
    ----------
    draft : Draft
        The array.
    state : State
        Its state with the new shape.
    rows : sequence of array of int64
        For each axis, and each new row of chunks along it, the number of the old row; -1 for a new row. Rows past the
        end of an array are new as well.
    fill : bool
        Whether new chunks repeat the fill value. Otherwise they are zeros, because the caller will write them.
    """
    old = draft.state.require_layout()
    new = state.require_layout()
    order = np.full(new.grid_shape, -1, np.int64)
    if order.size and old.nchunks:
        numbers = np.arange(old.nchunks).reshape(old.grid_shape)
        targets = [np.flatnonzero(row >= 0) for row in rows]
        moves = zip(rows, targets, strict=True)
        origins = [row[target] for row, target in moves]
        order[np.ix_(*targets)] = numbers[np.ix_(*origins)]
    order = order.reshape(-1)
    draft.reindex(order, state, nbytes=new.nbytes)
    if new.is_text:
        draft.set_attr(LENGTHS, pack_lengths(new))
    if fill:
        new_chunks = np.flatnonzero(order < 0)
        fill_chunks(draft, new, _fill_item(draft, new), new_chunks)


def fill_chunks(
    draft: Draft,
    layout: Layout,
    item: bytes,
    numbers: npt.NDArray[np.int64],
) -> None:
    """Fill chunks with an item: by special values in the index if possible, else by small chunks that repeat it.

    The small chunks are staged.
    """
    # The index of a transaction says of a chunk of text only that nobody has written it yet.
    special = Special.ZEROS if layout.is_text else special_of(item, layout.dtype)
    if special is not None:
        # Leave equal entries alone, so that the commit does not count them as changed.
        is_other = draft.frame.offsets[numbers] != index.special_offset(special)
        set_special(draft, numbers[is_other], special)
        return
    chunk = encode.special_chunk(
        item,
        layout.chunk_nbytes,
        typesize=len(item),
        blocksize=layout.block_nbytes,
    )
    for n in numbers.tolist():
        draft.put(n, chunk)


def special_of(item: bytes, dtype: np.dtype[Any]) -> Special | None:
    """Return the special value for chunks that repeat the bytes of an item; None if the index has no such value."""
    if not any(item):
        return Special.ZEROS
    # Other NaNs, and NaNs of other types, would not be read back with the same bytes.
    is_float = dtype in (np.dtype("<f4"), np.dtype("<f8"))
    if is_float and item == NAN_BYTES[dtype.itemsize]:
        return Special.NAN
    return None


def _fill_item(draft: Draft, layout: Layout) -> bytes:
    """Return the bytes of the array's fill value; zeros without one, or if it does not fit the type of the layout."""
    item = draft.state.annotations.fill
    if layout.is_text:
        return item or b""
    if item is None or len(item) != layout.itemsize:
        return bytes(layout.itemsize)
    return item


def read_box(source: Source, layout: Layout, box: Box) -> Array:
    """Read a box of the array into new memory: one slice for each axis, all with step 1."""
    result = np.empty(_shape_of_box(box), layout.dtype)
    read(source, layout, box, None, result)
    return result


class Joint(NamedTuple):
    """Values to append or insert along an axis: along all other axes they have the extents of the array.

    The axis is not negative.
    """

    values: Array
    axis: int


def make_joint(
    values: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    axis: int,
) -> Joint:
    """Convert values to be appended or inserted along an axis, and check that they fit an array of this shape and type.

    TypeError, ValueError, OverflowError: the values have other extents, or the type of the array cannot hold them; see
    `b2array.grid.lossless`.
    """
    array = lossless(values, dtype)
    return Joint(array, check_extents(array.shape, shape, axis))


def check_extents(added: tuple[int, ...], shape: tuple[int, ...], axis: int) -> int:
    """Return the axis along which values of the shape `added` are added to an array of this shape, not negative.

    ValueError: the extents do not fit. AxisError: the array has no such axis.
    """
    axis = np.lib.array_utils.normalize_axis_index(axis, len(shape))
    if len(added) != len(shape):
        raise ValueError(f"the values must have {len(shape)} dimensions, as the array has, not {len(added)}")
    fits = _with_extent(added, axis, 0) == _with_extent(shape, axis, 0)
    if not fits:
        raise ValueError(
            f"the values must have the array's extents along all axes but {axis}: "
            f"found shape {added} for an array of shape {shape}"
        )
    return axis


def require_still_fits(url: str, before: Layout, now: Layout, axis: int) -> None:
    """Raise ConflictError if another writer has changed the array so that the values to append do not fit any more.

    `before` is the layout that the values were checked against, and `now` the present layout. The extent along `axis`
    may have changed; the other extents and the type may not.
    """
    fits = _with_extent(now.shape, axis, 0) == _with_extent(before.shape, axis, 0)
    if not fits or now.dtype != before.dtype:
        raise ConflictError(f"{url} has become an array of shape {now.shape} and type {now.dtype}")


def select_positions(
    key: Any,
    shape: tuple[int, ...],
    axis: int,
) -> slice | npt.NDArray[np.int64]:
    """Return the positions that an integer, slice, index array or mask selects along an axis, as `delete` takes them.

    IndexError: the key addresses several axes, or is out of bounds.

    Examples
    --------
    >>> select_positions(slice(None, None, -2), (5, 4), 0), select_positions([-1, 0, 3], (5, 4), 1)
    (array([0, 2, 4]), array([0, 3]))
    """
    # Such keys address several axes, or make new ones.
    if key is None or key is Ellipsis or isinstance(key, tuple):
        raise IndexError("only an integer, a slice, an index array or a mask selects along one axis")
    axis = np.lib.array_utils.normalize_axis_index(axis, len(shape))
    whole_key = (*[slice(None)] * axis, key)
    selected = selection.orthogonal(whole_key, shape).positions[axis]
    if isinstance(selected, np.ndarray):
        # An empty mask or index array deletes nothing.
        if not selected.size:
            return slice(0, 0, 1)
        return np.unique(selected[0])
    if selected.step == 1:
        return selected
    return np.arange(selected.start, selected.stop, selected.step)


def _smaller_of_each(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the smaller one of each pair of numbers: the extents of the part that two shapes share."""
    return [min(n, m) for n, m in zip(one, other, strict=True)]


def _with_extent(
    extents: tuple[int, ...],
    axis: int,
    extent: int,
) -> tuple[int, ...]:
    """Return extents with another one along an axis."""
    return (*extents[:axis], extent, *extents[axis + 1 :])


def _shape_of_box(box: Box) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(i.stop - i.start for i in box)
