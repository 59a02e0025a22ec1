"""Makes arrays of numbers by a rule or from an iterable; the arrays may be larger than memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, SupportsIndex, Unpack

import numpy as np
import numpy.typing as npt

from b2array.array import array_copying
from b2array.array.array import NDArray
from b2array.array.drafts import ArrayOptions, NewKeywords, Shape, Url, require_dtype, takes
from b2array.format import dtypes
from b2array.grid.lossless import lossless

__all__ = ["arange", "eye", "fromiter", "linspace"]

_ITEMS = 2**16
"""The number of items to collect before a write."""


@takes(NewKeywords)
def arange(
    start: Any,
    stop: Any = None,
    step: Any = None,
    dtype: npt.DTypeLike | None = None,
    *,
    url: Url | None = None,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Make an array of numbers or dates at equal distances, as `numpy.arange`.

    The array is stored at `url`, or by default in memory. The other options are the same as for `b2array.create`.

    Examples
    --------
    >>> arange(10, 0, -3)[...]
    array([10,  7,  4,  1])
    """
    wanted = ArrayOptions(**options)
    ends = np.empty(0, dtype), *map(np.asarray, (start, stop, step))
    if not {"m", "M"}.isdisjoint(each.dtype.kind for each in ends):
        # Compute in one piece, because NumPy has special rules for units.
        dates: Any = np.arange
        values = dates(start, stop, step, dtype)
        return NDArray._make(url, wanted, lambda place, final: array_copying.holding(values, place, None, final))
    start, stop = (0, start) if stop is None else (start, stop)
    step = 1 if step is None else step
    # As in NumPy, the first two items determine the others.
    length = max(0, math.ceil((stop - start) / step))
    kind = np.dtype(np.result_type(np.intp, start, stop, step) if dtype is None else dtype)  # at least, as in NumPy
    # NumPy also computes half-precision floats in single precision.
    wide = np.dtype("f4") if kind == "f2" else kind
    first, second = np.asarray([start, start + step], kind).astype(wide)
    delta = second - first

    def compute(box: tuple[slice, ...]) -> Any:
        (part,) = box
        steps = np.arange(part.start, part.stop).astype(first.dtype)
        return first + steps * delta

    return _make_by_box(url, wanted, (length,), kind, compute)


@takes(NewKeywords)
def linspace(
    start: Any,
    stop: Any,
    num: SupportsIndex = 50,
    *,
    endpoint: bool = True,
    dtype: npt.DTypeLike | None = None,
    url: Url | None = None,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Make an array of `num` numbers at equal distances from `start` to `stop`, as `numpy.linspace`.

    The last number is `stop`, unless `endpoint` is False. Other options as for `arange`.

    Examples
    --------
    >>> linspace(0, 1, 5)[...]
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    # NumPy checks the arguments, and determines the type of the result.
    model = np.linspace(start, stop, min(operator.index(num), 1), endpoint=endpoint, dtype=dtype)
    length = operator.index(num)
    wide = np.result_type(start, stop, float(num))
    parts = max(1, length - endpoint)
    delta = np.subtract(stop, start, dtype=wide)
    step = delta / parts

    def compute(box: tuple[slice, ...]) -> Any:
        (part,) = box
        numbers = np.arange(part.start, part.stop).astype(wide)
        # As in NumPy: a step that is too small for a float has become 0.
        distances = numbers * step if step else numbers / parts * delta
        values = distances + start
        if endpoint and part.stop == length > 1:
            # The sum may differ from `stop` by a rounding error.
            values[-1] = stop
        return np.floor(values) if model.dtype.kind in "iu" else values

    wanted = ArrayOptions(**options)
    return _make_by_box(url, wanted, (length,), model.dtype, compute)


@takes(NewKeywords)
def eye(
    N: SupportsIndex,  # noqa: N803 - as in NumPy
    M: SupportsIndex | None = None,  # noqa: N803 - as in NumPy
    k: SupportsIndex = 0,
    dtype: npt.DTypeLike = float,
    *,
    url: Url | None = None,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Make an array of zeros with ones on the diagonal `k`, as `numpy.eye`; other options as for `arange`.

    Examples
    --------
    >>> eye(2, 3, k=1, dtype="i4")[...].tolist()
    [[0, 1, 0], [0, 0, 1]]
    """

    def compute(box: tuple[slice, ...]) -> Any:
        rows, columns = box
        offset = operator.index(k) + rows.start - columns.start
        n = rows.stop - rows.start
        m = columns.stop - columns.start
        # Do not write items away from the diagonal: they have the fill value.
        is_on_diagonal = -n < offset < m
        return np.eye(n, m, offset, dtype) if is_on_diagonal else None

    shape = operator.index(N), operator.index(N if M is None else M)
    return _make_by_box(url, ArrayOptions(**options), shape, dtype, compute)


@takes(NewKeywords)
def fromiter(
    iter: Iterable[Any],
    dtype: npt.DTypeLike,
    count: SupportsIndex = -1,
    *,
    url: Url | None = None,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Make a one-dimensional array of the items of an iterable, like `numpy.fromiter`, in one commit.

    At most one chunk is in memory at a time. Options as for `arange`. Unlike NumPy, this raises an error for an item
    that the type cannot hold, such as a longer text or a fraction among integers.

    Examples
    --------
    >>> fromiter((n * n for n in range(5)), "i4")[...]
    array([ 0,  1,  4,  9, 16], dtype=int32)
    """
    wanted = operator.index(count)
    items = islice(iter, wanted if wanted >= 0 else None)
    kind = np.dtype(require_dtype(dtype))

    def blocks() -> Iterator[npt.NDArray[Any]]:
        size = 0
        is_full = True
        while is_full:
            block = _to_block(islice(items, _ITEMS), kind)
            yield block
            size += len(block)
            is_full = len(block) == _ITEMS
        if size < wanted:
            raise ValueError(f"iterator too short: Expected {wanted} but iterator had only {size} items.")

    return NDArray._make(
        url,
        ArrayOptions(**options),
        lambda place, final: array_copying.join_blocks(blocks(), place, 0, None, final),
    )


def _to_block(items: Iterable[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return items as an array of one dimension, with their values unchanged, or raise an error."""
    if dtype.subdtype is not None or not dtypes.has_size(dtype):
        # Each item is an array. Types without a size are errors for NumPy as well.
        return np.fromiter(items, dtype)
    block = lossless(list(items), dtype)
    if block.ndim != 1:
        raise ValueError("setting an array element with a sequence.")
    return block.astype(dtype, copy=False)


def _make_by_box(
    url: Url | None,
    options: ArrayOptions,
    shape: Shape,
    dtype: npt.DTypeLike,
    compute: Callable[[tuple[slice, ...]], Any],
) -> NDArray:
    return NDArray._make(
        url, options, lambda place, final: array_copying.from_computed(shape, dtype, compute, place, final)
    )
