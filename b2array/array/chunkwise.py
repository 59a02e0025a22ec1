"""`map`: calls a function with pieces of arrays, and stores its results as an array in one commit."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.array import copying
from b2array.array.array import NDArray, View
from b2array.array.drafts import ArrayOptions, NewKeywords, Url, aborting, known_dtype, new_draft, put, takes
from b2array.grid.assignment import check_unmasked
from b2array.grid.partition import boxes
from b2array.progress import track

__all__ = ["map"]

Box = tuple[slice, ...]

_SMALL_NBYTES = 2**16
"""Results in chunks of fewer bytes get chunks of their own."""


@takes(NewKeywords)
def map(
    function: Callable[..., Any],
    /,
    *arrays: Any,
    url: Url | None = None,
    dtype: npt.DTypeLike | None = None,
    drop_axis: int | Sequence[int] = (),
    new_axis: int | Sequence[int] = (),
    executor: Executor | None = None,
    progress: bool = False,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Call a function with pieces of arrays, and store its results as an array, in one commit.

    The pieces consist of whole chunks of the result, and a few are in memory at a time: arrays and result may be larger
    than memory. Threads call the function, so it runs in parallel where it releases the interpreter's lock, as most of
    NumPy does. The words for axes are those of `dask.array.map_blocks`.

    Parameters
    ----------
    function : callable
        Takes NumPy arrays, one for each of `arrays`, and returns one. It must not depend on the cut into pieces.
    *arrays : array-like
        They are broadcast to one shape. Arrays that are not in memory are read a piece at a time.
    url : str or os.PathLike, optional
        Where to; in memory if left out.
    dtype : dtype-like, optional
        Type of the result. If it is left out, or there are new axes, the function is called with one chunk first.
    drop_axis : int or sequence of int
        Axes of the arrays that the result of the function does not have. Pieces are not cut along them.
    new_axis : int or sequence of int
        Axes of the result that the arrays do not have. Their lengths are those of the function's results.
    executor : concurrent.futures.Executor, optional
        Calls the function, in other processes perhaps; reading and writing stay here.
    progress : bool, default False
        Show on stderr how many items are done.
    chunks, ..., fs
        As for `create`. Chunks and dims are those of the first array, by default, where they fit.

    Raises
    ------
    ValueError
        The arrays cannot be broadcast, or a result has another shape than its piece.
    TypeError
        The type of a result cannot be cast ("same_kind") to `dtype`.

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
    """
    work = _Work.of(function, arrays, drop_axis, new_axis)
    wanted = ArrayOptions(**options)
    kind = None if dtype is None else np.empty(0, known_dtype(dtype)).dtype
    lengths: tuple[int, ...] = ()
    if kind is None or work.added:
        corner = tuple(slice(0, min(n, c)) for n, c in zip(work.shape, work.unit, strict=True))
        found = np.asarray(function(*work.pieces(corner)))
        work.check(corner, found, None)
        kind = kind or found.dtype
        lengths = tuple(found.shape[axis] for axis in work.added)
    shape = work.result_of(work.shape, lengths)
    draft = new_draft(url, shape, kind, work.options(wanted, kind, lengths))
    with aborting(draft), track(math.prod(work.shape), "mapping", progress, unit="items") as shown:
        layout = draft.state.require_layout()
        for box, values in work.results(layout.chunks, executor):
            target = work.place(box, lengths)
            work.check(box, values, lengths)
            if not np.can_cast(values.dtype, layout.dtype, "same_kind"):
                raise TypeError(f"Cannot cast results of type {values.dtype} to {layout.dtype} ('same_kind')")
            if values.size:
                put(draft, target, values.astype(layout.dtype, copy=False))
            shown.advance(math.prod(part.stop - part.start for part in box))
    return NDArray._committed(draft)


@dataclass(frozen=True)
class _Work:
    """A function, its arrays, their common shape, and how the axes of its results belong to that."""

    function: Callable[..., Any]
    arrays: tuple[Any, ...]
    shape: tuple[int, ...]
    unit: tuple[int, ...]
    """Extents of a piece before the chunks of the result are known; the whole axis where it is dropped."""
    kept: tuple[int, ...]
    """Axes of the arrays that the result has."""
    added: tuple[int, ...]
    """Axes of the result that the arrays do not have."""

    @classmethod
    def of(
        cls, function: Callable[..., Any], arrays: tuple[Any, ...], drop_axis: int | Sequence[int],
        new_axis: int | Sequence[int],
    ) -> _Work:  # fmt: skip
        if not arrays:
            raise TypeError("map() needs at least one array")
        for each in arrays:
            check_unmasked(each)
        held = tuple(each if copying.is_sliceable(each) else np.asarray(each) for each in arrays)
        shape = np.broadcast_shapes(*(each.shape for each in held))
        dropped = np.lib.array_utils.normalize_axis_tuple(drop_axis, len(shape), "drop_axis")
        kept = tuple(axis for axis in range(len(shape)) if axis not in dropped)
        count = 1 if isinstance(new_axis, int) else len(new_axis)
        added = np.lib.array_utils.normalize_axis_tuple(new_axis, len(kept) + count, "new_axis")
        model = next((each for each in held if isinstance(each, NDArray | View) and each.shape == shape), None)
        chunks = shape if model is None else model.chunks
        unit = tuple(n if axis in dropped else max(1, c) for axis, (n, c) in enumerate(zip(shape, chunks, strict=True)))
        return cls(function, held, shape, unit, kept, tuple(sorted(added)))

    def result_of(self, extents: Sequence[Any], lengths: Sequence[Any]) -> tuple[Any, ...]:
        """Return what belongs to the axes of the result, of what belongs to those of the arrays and to the new ones."""
        found = [extents[axis] for axis in self.kept]
        for axis, length in zip(self.added, lengths, strict=True):
            found.insert(axis, length)
        return tuple(found)

    def options(self, wanted: ArrayOptions, dtype: np.dtype[Any], lengths: tuple[int, ...]) -> ArrayOptions:
        """Take chunks and names of dimensions from the arrays where no others are wanted."""
        model = next((each for each in self.arrays if isinstance(each, NDArray | View)), None)
        if model is None or model.shape != self.shape:
            return wanted
        if wanted.dims is None and model.dims is not None:
            wanted = replace(wanted, dims=self.result_of(model.dims, (None,) * len(lengths)))
        chunks = self.result_of(self.unit, lengths)
        if wanted.chunks is None and wanted.blocks is None and math.prod(chunks) * dtype.itemsize >= _SMALL_NBYTES:
            wanted = replace(wanted, chunks=chunks)
        return wanted

    def pieces(self, box: Box) -> list[Any]:
        """Read a piece of each array."""
        return [_piece(each, box) for each in self.arrays]

    def results(self, chunks: Sequence[int], executor: Executor | None) -> Iterator[tuple[Box, npt.NDArray[Any]]]:
        """Call the function with all pieces, and yield the results in order."""
        of_kept = [c for axis, c in enumerate(chunks) if axis not in self.added]
        unit = list(self.shape)
        for axis, extent in zip(self.kept, of_kept, strict=True):
            unit[axis] = extent
        nbytes = max(1, sum(each.dtype.itemsize for each in self.arrays))
        cut = boxes(self.shape, copying.PIECE_NBYTES // nbytes, unit)
        if executor is not None:
            return self._in_executor(cut, executor)
        return threads.spread(lambda box: (box, np.asarray(self.function(*self.pieces(box)))), cut, ahead=1)

    def _in_executor(self, cut: Iterable[Box], executor: Executor) -> Iterator[tuple[Box, npt.NDArray[Any]]]:
        def begin(box: Box) -> tuple[Box, Future[Any]]:
            return box, executor.submit(self.function, *self.pieces(box))

        left = iter(cut)
        running = deque(begin(box) for box in islice(left, 2 * config.threads))
        try:
            while running:
                box, answer = running.popleft()
                values = np.asarray(answer.result())
                running.extend(begin(each) for each in islice(left, 1))
                yield box, values
        finally:
            for _, answer in running:
                answer.cancel()

    def place(self, box: Box, lengths: tuple[int, ...]) -> Box:
        """Return where in the result the values of a piece go."""
        return self.result_of(box, [slice(0, length) for length in lengths])

    def check(self, box: Box, values: npt.NDArray[Any], lengths: tuple[int, ...] | None) -> None:
        """Raise ValueError for values of another shape; the lengths of new axes may be unknown."""
        check_unmasked(values)
        extents = [part.stop - part.start for part in box]
        expected = self.result_of(extents, ("any",) * len(self.added) if lengths is None else lengths)
        fits = len(expected) == values.ndim and all(
            wanted in ("any", found) for wanted, found in zip(expected, values.shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"expected a result of shape {expected} for a piece of {tuple(extents)}, found {values.shape}"
            )


def _piece(array: Any, box: Box) -> npt.NDArray[Any]:
    """Read the part of an array that is broadcast to a box of the common shape."""
    own = box[len(box) - len(array.shape) :]
    parts = (slice(0, 1) if n == 1 else part for n, part in zip(array.shape, own, strict=True))
    return copying.piece(array, tuple(parts))
