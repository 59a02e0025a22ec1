"""`concatenate`, `stack`: joins arrays, and copies chunks without decoding if the grids match."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from b2array.array import array_copying
from b2array.array.array import NDArray, View
from b2array.array.drafts import (
    UNSET,
    AnyPlace,
    ArrayOptions,
    Casting,
    NewKeywords,
    Url,
    aborting,
    new_draft,
    require_dtype,
    takes,
)
from b2array.array.wide_text import warn_of_stored_waste
from b2array.codec.chunk_header import Special
from b2array.commit import edits
from b2array.commit.draft import Draft
from b2array.commit.write import rewrite
from b2array.errors import ConflictError
from b2array.format.strings import is_text
from b2array.format.text_sizes import average_text
from b2array.frame.fetch import read_chunks
from b2array.frame.source import Location, Source
from b2array.grid.assignment import check_plain
from b2array.grid.chunking import is_automatic
from b2array.grid.layout import Layout
from b2array.grid.lossless import require_same_order
from b2array.grid.text_chunks import SAMPLED
from b2array.progress import Progress, track

__all__ = ["concatenate", "stack"]

Box = tuple[slice, ...]
_Entry = TypeVar("_Entry")


@takes(NewKeywords)
def concatenate(
    arrays: Iterable[Any],
    axis: int = 0,
    *,
    url: Url | None = None,
    dtype: npt.DTypeLike | None = None,
    casting: Casting = "same_kind",
    progress: bool = False,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Join arrays along an axis, like `numpy.concatenate`, and store the result in one commit.

    Arrays and result may be larger than memory. Chunks of b2array arrays are copied without decoding if they become
    whole chunks of the result, with the same chunks, blocks and type, and without new compression options. If an array
    does not begin at the border of a chunk in the result, its chunks and the last chunk before them are encoded again.

    Parameters
    ----------
    arrays : iterable of array-like
        Arrays with the same extents except along `axis`. Arrays that are not in memory are read in pieces.
    axis : int, default 0
        The axis along which the arrays are joined.
    url : str or os.PathLike, optional
        The place of the new array; in memory by default.
    dtype : dtype-like, optional
        The type of the result; by default the type to which NumPy promotes all types.
    casting : {"no", "equiv", "safe", "same_kind", "unsafe"}, default "same_kind"
        Which conversions are allowed; see `numpy.can_cast`.
    progress : bool, default False
        Whether to show on stderr the number of finished chunks.
    chunks, ..., fs
        As for `create`. By default, the result has the chunks, blocks, compression, fill value, dims and attributes of
        the first b2array array. Snapshots are not copied.

    Raises
    ------
    ValueError
        There are no arrays, or their extents do not match.
    TypeError
        A conversion is not allowed.

    See Also
    --------
    NDArray.append : Appends values to an array.
    from_blocks : Stores a sequence of blocks.

    Examples
    --------
    >>> import b2array
    >>> days = [b2array.full((2, 3), n, "i4", url=f"memory://day{n}.b2nd") for n in range(3)]
    >>> b2array.concatenate(days, url="memory://days.b2nd")[:, 0]
    array([0, 0, 1, 1, 2, 2], dtype=int32)
    """
    sources = _list_sources(arrays, "concatenate")
    ndim = len(sources[0].shape)
    if not ndim:
        raise ValueError("zero-dimensional arrays cannot be concatenated; b2array.stack gives them an axis")
    along = np.lib.array_utils.normalize_axis_index(axis, ndim)
    expected = _drop_axis(sources[0].shape, along)
    for number, each in enumerate(sources):
        if len(each.shape) != ndim or _drop_axis(each.shape, along) != expected:
            raise ValueError(
                f"expected arrays with the extents of {tuple(sources[0].shape)}, except along axis {along}: array "
                f"{number} has the shape {tuple(each.shape)}"
            )
    return NDArray._make(
        url,
        ArrayOptions(**options),
        lambda place, final: _join(sources, along, place, dtype, casting, final, progress=progress),
    )


@takes(NewKeywords)
def stack(
    arrays: Iterable[Any],
    axis: int = 0,
    *,
    url: Url | None = None,
    dtype: npt.DTypeLike | None = None,
    casting: Casting = "same_kind",
    progress: bool = False,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Join arrays of one shape along a new axis, like `numpy.stack`, and store the result in one commit.

    By default, chunks have an extent of 1 along the new axis, and are copied without decoding under the conditions of
    `concatenate`.

    Parameters
    ----------
    arrays : iterable of array-like
        Arrays of the same shape.
    axis : int, default 0
        The position of the new axis in the result.
    url, dtype, casting, progress, chunks, ..., fs
        As for `concatenate`. The new dimension has no name unless `dims` gives it one.

    Raises
    ------
    ValueError, TypeError
        As for `concatenate`.

    Examples
    --------
    >>> import b2array
    >>> frames = [b2array.full((2, 3), n, "i4") for n in range(3)]
    >>> b2array.stack(frames, axis=-1, dims=("y", "x", "t"))[0, 0]
    array([0, 1, 2], dtype=int32)
    """
    sources = _list_sources(arrays, "stack")
    for number, each in enumerate(sources):
        if tuple(each.shape) != tuple(sources[0].shape):
            raise ValueError(
                f"expected arrays of shape {tuple(sources[0].shape)}, found {tuple(each.shape)}: array {number}"
            )
    along = np.lib.array_utils.normalize_axis_index(axis, len(sources[0].shape) + 1)
    return NDArray._make(
        url,
        ArrayOptions(**options),
        lambda place, final: _join(sources, along, place, dtype, casting, final, progress=progress, is_new=True),
    )


def _list_sources(arrays: Iterable[Any], verb: str) -> list[Any]:
    """List the arrays. Convert arrays that cannot be read in parts to arrays in memory."""
    if isinstance(arrays, NDArray | View | np.ndarray) or not isinstance(arrays, Iterable):
        raise TypeError(f"{verb}() takes a sequence of arrays, found {type(arrays).__name__}")
    sources = []
    for each in arrays:
        check_plain(each)
        sources.append(each if array_copying.is_sliceable(each) else np.asarray(each))
    if not sources:
        raise ValueError(f"need at least one array to {verb}")
    return sources


def _drop_axis(entries: Sequence[_Entry], axis: int) -> tuple[_Entry, ...]:
    return (*entries[:axis], *entries[axis + 1 :])


@dataclass(frozen=True, slots=True)
class _Operand:
    """An array, and its positions along the axis of the result; `is_new` says that the array lacks this axis."""

    array: Any
    axis: int
    start: int
    stop: int
    is_new: bool

    def read(self, box: Box) -> npt.NDArray[Any]:
        """Read the items of this array in a box of the result."""
        axis = self.axis
        if self.is_new:
            items = array_copying.piece(self.array, _drop_axis(box, axis))
            return np.expand_dims(items, axis)
        low = max(box[axis].start, self.start)
        high = min(box[axis].stop, self.stop)
        inside = slice(low - self.start, high - self.start)
        return array_copying.piece(self.array, (*box[:axis], inside, *box[axis + 1 :]))

    def rows(self, layout: Layout) -> range:
        """Return the range of rows of chunks in the result that consist only of items of this array.

        If a row begins at the start of the array, these rows are also rows of chunks of the array.
        """
        length = layout.chunks[self.axis]
        if not length or self.start % length:
            return range(0)
        end = self.stop // length
        if self.stop == layout.shape[self.axis]:
            # No other array follows in the last row of chunks, even if the row is not full.
            end = -(-self.stop // length)
        return range(self.start // length, end)

    def fits(self, source: Source, draft: Draft) -> bool:
        """Return whether chunks of the array can be copied to the result without decoding."""
        old = source.state.require_layout()
        new = draft.state.require_layout()
        chunks = old.chunks
        blocks = old.blocks
        if self.is_new:
            chunks = _insert_extent(chunks, self.axis, 1)
            blocks = _insert_extent(blocks, self.axis, 1)
        if (chunks, blocks, old.dtype) != (new.chunks, new.blocks, new.dtype):
            return False
        # Other software may have written other sizes to the frame than its array needs.
        before, after = source.frame, draft.frame
        old_sizes = (before.typesize, before.chunksize, before.blocksize)
        new_sizes = (after.typesize, after.chunksize, after.blocksize)
        return old_sizes == new_sizes and not before.variable_chunks and not before.vl_blocks


def _insert_extent(extents: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*extents[:axis], extent, *extents[axis:])


def _join(
    sources: Sequence[Any],
    axis: int,
    url: AnyPlace,
    dtype: npt.DTypeLike | None,
    casting: Casting,
    wanted: ArrayOptions,
    *,
    progress: bool,
    is_new: bool = False,
) -> Draft:
    """Return the transaction of an array that joins other arrays along an axis."""
    required = require_dtype(dtype)
    if required is None:
        kind = np.result_type(*(each.dtype for each in sources))
    else:
        kind = np.empty(0, required).dtype
    for each in sources:
        if not np.can_cast(each.dtype, kind, casting):
            raise TypeError(f"Cannot cast array data from {each.dtype!r} to {kind!r} according to the rule {casting!r}")
        require_same_order(each.dtype, kind)
    ends = list(accumulate(1 if is_new else each.shape[axis] for each in sources))
    starts = [0, *ends[:-1]]
    places = zip(sources, starts, ends, strict=True)
    parts = [_Operand(each, axis, start, stop, is_new) for each, start, stop in places]
    outer = sources[0].shape if is_new else _drop_axis(sources[0].shape, axis)
    shape = _insert_extent(tuple(outer), axis, ends[-1])
    # Only a b2array array has chunks and attributes for the result.
    model = next((each for each in sources if isinstance(each, NDArray)), None)
    options = wanted
    if model is not None:
        options = _complete(wanted, model, kind, axis, is_new=is_new)
    draft = new_draft(url, shape, kind, options, _measure_text(sources, kind, options))
    layout = draft.state.require_layout()
    with aborting(draft), track(layout.nchunks, "chunks joined", progress, unit="items") as bar:
        before = (slice(None),) * axis
        grid = np.arange(layout.nchunks).reshape(layout.grid_shape)
        is_missing = np.ones(layout.grid_shape, bool)
        for part in parts:
            rows = part.rows(layout)
            if wanted.cparams is None and rows and isinstance(part.array, NDArray):
                place = (*before, slice(rows.start, rows.stop))
                if _copy_chunks(draft, part, grid[place], bar):
                    is_missing[place] = False

        def read(box: Box) -> npt.NDArray[Any]:
            along = box[axis]
            values = np.empty([part.stop - part.start for part in box], layout.dtype)
            first = bisect_right(ends, along.start)
            for part in parts[first:]:
                if part.start >= along.stop:
                    break
                low = max(part.start, along.start)
                high = min(part.stop, along.stop)
                inside = slice(low - along.start, high - along.start)
                values[(*before, inside)] = part.read(box)
            return values

        # Do not round values again that may be rounded already.
        rewrite(draft, layout, grid[is_missing].tolist(), read, bar.advance, exact=wanted.cparams is None)
        warn_of_stored_waste(draft)
    return draft


def _measure_text(sources: Sequence[Any], dtype: np.dtype[Any], options: ArrayOptions) -> int:
    """Return the average size of text of any length, in bytes; 0 for other types.

    Arrays that are not in memory are read until there are enough items.
    """
    is_chosen = not (is_automatic(options.chunks) or is_automatic(options.blocks))
    if is_chosen or not is_text(dtype):
        return 0
    samples = []
    count = 0
    for each in sources:
        if not array_copying.is_sliceable(each) or count < SAMPLED:
            sample = array_copying.sample_text(each)
            samples.append(sample)
            count += sample.size
    return average_text(*samples)


def _complete(
    wanted: ArrayOptions,
    model: NDArray,
    dtype: np.dtype[Any],
    axis: int,
    *,
    is_new: bool,
) -> ArrayOptions:
    """Complete the options from an array."""
    chunks = model.chunks
    blocks = model.blocks
    dims = model.dims
    if is_new:
        chunks = _insert_extent(chunks, axis, 1)
        blocks = _insert_extent(blocks, axis, 1)
        dims = None if dims is None else (*dims[:axis], None, *dims[axis:])
    # With items of more than twice the size, the chunks would become too large.
    suits = 0 not in chunks and dtype.itemsize <= 2 * model.itemsize and is_text(dtype) == is_text(model.dtype)
    if wanted.chunks is None and wanted.blocks is None and suits:
        wanted = replace(wanted, chunks=chunks, blocks=blocks)
    if wanted.fill_value is UNSET:
        wanted = replace(wanted, fill_value=array_copying.convert_fill(model.fill_value, dtype))
    if wanted.cparams is None:
        wanted = replace(wanted, cparams=array_copying.cparams_for(model.cparams, dtype, interop=wanted.interop))
    if wanted.dims is None:
        wanted = replace(wanted, dims=dims)
    if wanted.attrs is None:
        wanted = replace(wanted, attrs=dict(model.attrs))
    return wanted


def _copy_chunks(
    draft: Draft,
    part: _Operand,
    places: npt.NDArray[np.int64],
    bar: Progress,
) -> bool:
    """Copy the chunks of an array to these rows if their bytes fit; return whether they fit."""
    array: NDArray = part.array
    shape = array.shape

    def attempt(source: Source) -> bool:
        layout = source.state.require_layout()
        if layout.shape != shape:
            raise ConflictError(f"{array.url} has become an array of shape {layout.shape}, while it was joined")
        if isinstance(source, Draft):
            # Until a flush, the index has the code of an open chunk's earlier content.
            source.flush()
        # A repair could not save all chunks of this array: reading the array raises the error for this.
        if source.state.annotations.lost or not part.fits(source, draft):
            return False
        own = np.arange(layout.nchunks).reshape(layout.grid_shape)
        if part.is_new:
            own = np.expand_dims(own, part.axis)
        whole_rows = tuple(slice(0, n) for n in places.shape)
        numbers = own[whole_rows].reshape(-1).tolist()
        stored_numbers = []
        targets = []
        for number, place in zip(numbers, places.reshape(-1).tolist(), strict=True):
            location = source.locate(number)
            if isinstance(location, Location):
                stored_numbers.append(number)
                targets.append(place)
            elif location != Special.ZEROS:
                # The chunks of a new array are already zeros.
                edits.set_special(draft, np.array([place]), location)
        for place, stored in zip(targets, read_chunks(source, stored_numbers), strict=True):
            draft.put(place, bytes(stored.region))
        bar.advance(len(numbers))
        return True

    return array._handle.reading(attempt)
