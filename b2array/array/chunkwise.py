"""`map`: calls a function with pieces of arrays, and stores its results as an array in one commit."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, SupportsIndex, Unpack

import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.array import array_copying
from b2array.array.array import NDArray, View
from b2array.array.drafts import (
    AnyPlace,
    ArrayOptions,
    NewKeywords,
    Url,
    aborting,
    new_draft,
    put,
    require_dtype,
    takes,
)
from b2array.array.wide_text import warn_of_stored_waste
from b2array.commit.draft import Draft
from b2array.format.strings import is_text
from b2array.format.text_sizes import average_text
from b2array.grid.assignment import check_plain
from b2array.grid.lossless import lossless
from b2array.grid.partition import boxes
from b2array.grid.text_chunks import SAMPLED
from b2array.progress import track

__all__ = ["Factors", "factors_of", "map", "map_chunks", "plain"]

Box = tuple[slice, ...]
Result = tuple[Box, npt.NDArray[Any]]
"""A box of the result, and the values in it."""
Factors = SupportsIndex | Sequence[SupportsIndex] | Mapping[Any, SupportsIndex]
"""The number of items that become one: a number, one entry per axis, or a mapping of axes or dimension names."""

_SMALL_NBYTES = 2**16
"""The minimum size of a chunk in the result, in bytes; for smaller ones, new chunks are chosen."""
_ADVICE = (
    'choose a type for all results, such as dtype="{wider}", or convert them in the function, with astype("{dtype}")'
)
"""What to do about results that do not fit the type."""


@takes(NewKeywords)
def map(
    function: Callable[..., Any],
    /,
    *arrays: Any,
    url: Url | None = None,
    dtype: npt.DTypeLike | None = None,
    drop_axis: int | Sequence[int] = (),
    new_axis: int | Sequence[int] = (),
    factors: Factors = 1,
    executor: Executor | None = None,
    progress: bool = False,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Call a function with pieces of arrays, and store its results as an array, in one commit.

    The pieces consist of whole chunks of the result. Only a few pieces are in memory at a time, so arrays and result
    may be larger than memory. Several threads call the function, so it runs in parallel if it releases the
    interpreter's lock, as most NumPy functions do. The parameters for axes have the same names as in
    `dask.array.map_blocks`.

    Parameters
    ----------
    function : callable
        A function of NumPy arrays, one for each of `arrays`, which returns an array. Its results must not depend on the
        division into pieces.
    *arrays : array-like
        The arrays, which are broadcast to one shape. Arrays that are not in memory are read in pieces.
    url : str or os.PathLike, optional
        The place of the new array; in memory by default.
    dtype : dtype-like, optional
        The type of the result. Without it, or with new axes, the function is first called with one chunk, and this
        first result determines the type. With a type for text of any length, the function is first called with a few
        items, whose size determines the chunks.
    drop_axis : int or sequence of int
        Axes of the arrays that the result of the function does not have. Pieces are not cut along them.
    new_axis : int or sequence of int
        Axes of the result that the arrays do not have. The function's results set their lengths.
    factors : int, sequence or mapping, default 1
        The number of items of the arrays, along each axis, that become one item of the result: one number for all axes,
        one entry per axis, or a mapping of axes or dimension names to numbers. Pieces begin at multiples of the
        factors; at the end of an axis, a remainder becomes one item. `downsample` does this for common functions.
    executor : concurrent.futures.Executor, optional
        An executor that calls the function, possibly in other processes. Reading and writing remain in this process.
    progress : bool, default False
        Whether to show on stderr the number of finished items.
    chunks, ..., fs
        As for `create`. By default, the result has the chunks and dims of the first array, if they fit.

    Raises
    ------
    ValueError
        The arrays cannot be broadcast, or a result has another shape than its piece, or a text that is too long.
    TypeError, OverflowError
        The type of a result cannot be cast ("same_kind") to `dtype`, or a result has masked items, or values that
        `dtype` cannot hold. Floats are rounded.

    See Also
    --------
    downsample : Reduces blocks of items to one item each, as for the levels of a pyramid.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.asarray(np.arange(12).reshape(3, 4), chunks=(1, 4))
    >>> b2array.map(lambda x, y: x * y, a, [1, 0, 1, 0])[1]
    array([4, 0, 6, 0])
    >>> b2array.map(lambda x: x.max(axis=1), a, drop_axis=1)[...]
    array([ 3,  7, 11])
    >>> b2array.map(lambda x: np.stack([x, -x], axis=-1), a, new_axis=2).shape
    (3, 4, 2)
    >>> b2array.map(lambda x: x[:, ::2] + x[:, 1::2], a, factors=(1, 2))[...].tolist()
    [[1, 5], [9, 13], [17, 21]]
    """
    work = Work.of(function, arrays, drop_axis, new_axis, factors)
    return NDArray._make(
        url,
        ArrayOptions(**options),
        lambda place, final: map_chunks(work, place, dtype, final, executor, progress=progress),
    )


def map_chunks(
    work: Work,
    url: AnyPlace,
    dtype: npt.DTypeLike | None,
    wanted: ArrayOptions,
    executor: Executor | None,
    *,
    progress: bool,
) -> Draft:
    """Return the transaction of an array with the results of a function; see `map`."""
    kind = None if dtype is None else np.empty(0, require_dtype(dtype)).dtype
    lengths: tuple[int, ...] = ()
    text_nbytes = 0
    if kind is None or work.added:
        # Call the function to learn the type and the lengths of new axes.
        corner = work.corner
        sample = plain(work.function(*work.pieces(corner)))
        work.check(corner, sample, None)
        kind = kind or sample.dtype
        lengths = tuple(sample.shape[axis] for axis in work.added)
        text_nbytes = average_text(sample)
    elif is_text(kind) and 0 not in work.counts:
        # Call it with a few items to learn the size of the text.
        text_nbytes = average_text(plain(work.function(*work.pieces(work.few))))
    shape = work.result_of(work.counts, lengths)
    draft = new_draft(url, shape, kind, work.options(wanted, kind, lengths), text_nbytes)
    with aborting(draft), track(math.prod(work.counts), "mapping", progress, unit="items") as bar:
        layout = draft.state.require_layout()
        if work.cuts_chunks(layout.chunks):
            # A chunk with several pieces is encoded once, when all of them are there.
            draft.keep_open()
        for box, values in work.results(layout.chunks, executor):
            # Check every result, because the function may return a wrong shape for a smaller piece at an edge.
            target = work.place(box, lengths)
            work.check(box, values, lengths)
            if values.size:
                put(draft, target, lossless(values, layout.dtype, _ADVICE))
            bar.advance(math.prod(part.stop - part.start for part in box))
        warn_of_stored_waste(draft)
    return draft


@dataclass(frozen=True, slots=True)
class Work:
    """A function, its arrays, their common shape, and the relation of its axes to the axes of the results.

    Along the axes that arrays and results share, a box counts items of the result. One such item stands for `factors`
    items of the arrays.
    """

    function: Callable[..., Any]
    arrays: tuple[Any, ...]
    shape: tuple[int, ...]
    unit: tuple[int, ...]
    """The extents of a box before the chunks of the result are known; for a dropped axis, its whole extent."""
    kept: tuple[int, ...]
    """The axes of the arrays that the result also has."""
    added: tuple[int, ...]
    """The axes of the result that the arrays do not have."""
    factors: tuple[int, ...]
    """The number of items along each axis of the arrays that become one item."""

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        arrays: tuple[Any, ...],
        drop_axis: int | Sequence[int],
        new_axis: int | Sequence[int],
        factors: Factors = 1,
        *,
        trim: bool = False,
    ) -> Work:
        """Check the arguments of `map`; with `trim`, drop the items after the last whole block."""
        if not arrays:
            raise TypeError("map() needs at least one array")
        for each in arrays:
            check_plain(each)
        sources = tuple(each if array_copying.is_sliceable(each) else np.asarray(each) for each in arrays)
        shape = np.broadcast_shapes(*(each.shape for each in sources))
        ndim = len(shape)
        dropped = np.lib.array_utils.normalize_axis_tuple(drop_axis, ndim, "drop_axis")
        kept = tuple(axis for axis in range(ndim) if axis not in dropped)
        count = 1 if isinstance(new_axis, int) else len(new_axis)
        added = np.lib.array_utils.normalize_axis_tuple(new_axis, len(kept) + count, "new_axis")
        # The result gets dimensions and chunks from the first stored array of the whole shape.
        model = None
        for each in sources:
            if isinstance(each, NDArray | View) and each.shape == shape:
                model = each
                break
        dims = None if model is None else model.dims
        own_factors = list(factors_of(factors, ndim, dims))
        for axis in dropped:
            # Pieces are not divided along a dropped axis.
            own_factors[axis] = 1
        if trim:
            shape = tuple(n // factor * factor for n, factor in zip(shape, own_factors, strict=True))
        chunks = shape if model is None else model.chunks
        unit = list(shape)
        for axis in kept:
            unit[axis] = max(1, chunks[axis])
        return cls(function, sources, shape, tuple(unit), kept, tuple(sorted(added)), tuple(own_factors))

    @property
    def counts(self) -> tuple[int, ...]:
        """The extent of the result along each axis of the arrays; for a dropped axis, the extent of the axis itself."""
        # Round up, because a remainder becomes one item.
        return tuple(-(-n // factor) for n, factor in zip(self.shape, self.factors, strict=True))

    @property
    def corner(self) -> Box:
        """The box for the first call of the function, which covers about one chunk of the arrays."""
        corner = []
        for count, extent, factor in zip(self.counts, self.unit, self.factors, strict=True):
            items = max(1, extent // factor)
            corner.append(slice(0, min(count, items)))
        return tuple(corner)

    @property
    def few(self) -> Box:
        """A box of the first items, which covers dropped axes as a whole."""
        units = [1 if axis in self.kept else count for axis, count in enumerate(self.counts)]
        return next(boxes(self.counts, SAMPLED, units))

    def result_of(self, extents: Sequence[Any], lengths: Sequence[Any]) -> tuple[Any, ...]:
        """Return one value for each axis of the result, given values for the axes of the arrays and for new axes."""
        values = [extents[axis] for axis in self.kept]
        # Insert in ascending order, so that later insertions do not move an axis.
        for axis, length in zip(self.added, lengths, strict=True):
            values.insert(axis, length)
        return tuple(values)

    def options(
        self,
        wanted: ArrayOptions,
        dtype: np.dtype[Any],
        lengths: tuple[int, ...],
    ) -> ArrayOptions:
        """Complete the options with the chunks and the dimension names of the arrays."""
        models = (each for each in self.arrays if isinstance(each, NDArray | View))
        model = next(models, None)
        if model is None or not self._has_shape_of(model):
            return wanted
        if wanted.dims is None and model.dims is not None:
            dims = self.result_of(model.dims, (None,) * len(lengths))
            wanted = replace(wanted, dims=dims)
        if wanted.chunks is None and wanted.blocks is None:
            chunks = self.result_of(self.unit, lengths)
            nbytes = math.prod(chunks) * dtype.itemsize
            # If an axis is dropped, or with a smaller type, chunks may be very small.
            if nbytes >= _SMALL_NBYTES:
                wanted = replace(wanted, chunks=chunks)
        return wanted

    def _has_shape_of(self, model: NDArray | View) -> bool:
        """Return whether an array has the common shape, apart from a trimmed remainder."""
        if model.ndim != len(self.shape):
            return False
        extents = zip(model.shape, self.shape, self.factors, strict=True)
        return all(0 <= n - trimmed < factor for n, trimmed, factor in extents)

    def pieces(self, box: Box) -> list[Any]:
        """Read a piece of each array."""
        source = []
        for part, n, factor in zip(box, self.shape, self.factors, strict=True):
            # The last block may be shorter than the others.
            stop = min(part.stop * factor, n)
            source.append(slice(part.start * factor, stop))
        return [_piece(each, tuple(source)) for each in self.arrays]

    @property
    def _most(self) -> int:
        """The number of items of the result to compute at a time."""
        nbytes = sum(array_copying.nbytes_in_memory(each) for each in self.arrays) * math.prod(self.factors)
        return max(1, array_copying.PIECE_NBYTES // max(1, nbytes))

    def _units(self, chunks: Sequence[int]) -> tuple[int, ...]:
        """Return the extents of a box with one chunk of the result; for a dropped axis, its whole extent."""
        of_kept = [c for axis, c in enumerate(chunks) if axis not in self.added]
        unit = list(self.counts)
        for axis, extent in zip(self.kept, of_kept, strict=True):
            unit[axis] = min(unit[axis], extent)
        return tuple(unit)

    def cuts_chunks(self, chunks: Sequence[int]) -> bool:
        """Return whether one chunk of the result needs too many items of the arrays to read at a time."""
        joins_items = math.prod(self.factors) > 1
        return joins_items and math.prod(self._units(chunks)) > self._most

    def _cut(self, chunks: Sequence[int]) -> Iterator[Box]:
        """Divide the result into boxes of whole chunks, or into consecutive boxes inside a chunk."""
        for box in boxes(self.counts, self._most, self._units(chunks)):
            if not self.cuts_chunks(chunks):
                yield box
                continue
            extents = [part.stop - part.start for part in box]
            unit = [1 if axis in self.kept else extent for axis, extent in enumerate(extents)]
            for inner in boxes(extents, self._most, unit):
                moved = []
                for outer_part, part in zip(box, inner, strict=True):
                    first = outer_part.start
                    moved.append(slice(first + part.start, first + part.stop))
                yield tuple(moved)

    def results(self, chunks: Sequence[int], executor: Executor | None) -> Iterator[Result]:
        """Call the function with all pieces, and yield the results in order."""
        if executor is not None:
            return self._in_executor(self._cut(chunks), executor)

        def call(box: Box) -> Result:
            return box, plain(self.function(*self.pieces(box)))

        return threads.spread(call, self._cut(chunks), ahead=1)

    def _in_executor(self, cut: Iterable[Box], executor: Executor) -> Iterator[Result]:
        def begin(box: Box) -> tuple[Box, Future[Any]]:
            return box, executor.submit(self.function, *self.pieces(box))

        left = iter(cut)
        # Compute twice as many pieces as there are threads, so that threads work while results are stored. More pieces
        # would need too much memory.
        running = deque(begin(box) for box in islice(left, 2 * config.threads))
        try:
            while running:
                box, answer = running.popleft()
                values = plain(answer.result())
                running.extend(begin(each) for each in islice(left, 1))
                yield box, values
        finally:
            # The executor belongs to the caller, and would continue to compute unneeded results.
            for _, answer in running:
                answer.cancel()

    def place(self, box: Box, lengths: tuple[int, ...]) -> Box:
        """Return the box of the result for the values of a piece."""
        return self.result_of(box, [slice(0, length) for length in lengths])

    def check(
        self,
        box: Box,
        values: npt.NDArray[Any],
        lengths: tuple[int, ...] | None,
    ) -> None:
        """Raise ValueError for values of another shape; the lengths of new axes may be unknown."""
        extents = [part.stop - part.start for part in box]
        new_lengths: Sequence[Any] = lengths if lengths is not None else ["any"] * len(self.added)
        expected = self.result_of(extents, new_lengths)
        fits = len(expected) == values.ndim
        if fits:
            pairs = zip(expected, values.shape, strict=True)
            fits = all(wanted in ("any", actual) for wanted, actual in pairs)
        if not fits:
            raise ValueError(
                f"expected a result of shape {expected} for a piece of {tuple(extents)}, found {values.shape}"
            )


def plain(result: Any) -> npt.NDArray[Any]:
    """Return what a function returned as an array; TypeError for masked items, which `numpy.asarray` would unmask."""
    check_plain(result)
    return np.asarray(result)


def _piece(array: Any, box: Box) -> npt.NDArray[Any]:
    """Read the part of an array that belongs to a box of the common shape."""
    # As in NumPy, align the last axes, and repeat the item of an axis of length 1.
    own = box[len(box) - len(array.shape) :]
    parts = []
    for n, part in zip(array.shape, own, strict=True):
        parts.append(slice(0, 1) if n == 1 else part)
    return array_copying.piece(array, tuple(parts))


def factors_of(factors: Factors, ndim: int, dims: Sequence[str | None] | None) -> tuple[int, ...]:
    """Return the factor of each axis; ValueError or TypeError if the factors are not positive integers.

    Examples
    --------
    >>> factors_of(2, 2, None), factors_of({"x": 3}, 2, ("y", "x")), factors_of({0: 2}, 2, None)
    ((2, 2), (1, 3), (2, 1))
    """
    if isinstance(factors, Mapping):
        wanted = [1] * ndim
        for name, factor in factors.items():
            wanted[_axis(name, ndim, dims)] = operator.index(factor)
    elif isinstance(factors, Iterable):
        wanted = [operator.index(factor) for factor in factors]
    else:
        wanted = [operator.index(factors)] * ndim
    if len(wanted) != ndim:
        raise ValueError(f"expected factors for {ndim} axes, found {len(wanted)}: {factors!r}")
    if any(factor < 1 for factor in wanted):
        raise ValueError(f"expected factors of 1 or more, found {factors!r}")
    return tuple(wanted)


def _axis(name: Any, ndim: int, dims: Sequence[str | None] | None) -> int:
    if isinstance(name, str):
        if dims is None or name not in dims:
            raise ValueError(f"expected the name of a dimension, one of {dims}, found {name!r}")
        return dims.index(name)
    axis: int = np.lib.array_utils.normalize_axis_index(operator.index(name), ndim)
    return axis
