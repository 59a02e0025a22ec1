"""`downsample`: reduces blocks of items to one item each, as for the levels of a pyramid of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Literal, Unpack, get_args

import numpy as np
import numpy.typing as npt

from b2array.array import array_copying
from b2array.array.array import NDArray, View
from b2array.array.chunkwise import Factors, Work, factors_of, map_chunks, plain
from b2array.array.drafts import ArrayOptions, NewKeywords, Url, takes
from b2array.format import dtypes

__all__ = ["downsample"]

Array = npt.NDArray[Any]
Reduce = Literal["mean", "min", "max", "sum", "first"]
Verb = Callable[[Array, tuple[int, ...]], Array]
"""A function that reduces blocks of one size."""
Boundary = Literal["pad", "trim", "exact"]


@takes(NewKeywords)
def downsample(
    a: Any,
    factors: Factors,
    reduce: Reduce | Callable[..., Any] = "mean",
    *,
    boundary: Boundary = "pad",
    url: Url | None = None,
    dtype: npt.DTypeLike | None = None,
    executor: Executor | None = None,
    progress: bool = False,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Reduce each block of items to one item, and store the smaller array in one commit.

    The array may be larger than memory: only a few pieces are in memory at a time. Values that mark missing items are
    not skipped.

    Parameters
    ----------
    a : array-like
        The array. An array that is not in memory is read in pieces.
    factors : int, sequence or mapping
        The extents of a block in items: one number for all axes, one entry per axis, or a mapping of axes or dimension
        names to numbers, as for xarray's ``coarsen``; other axes do not change.
    reduce : {"mean", "min", "max", "sum", "first"} or callable, default "mean"
        The reduction of a block to one item. The type of the items does not change, except for "sum", which has the
        same type as in NumPy. The mean of integers is rounded to the nearest integer, or to the even one of two.
        "first" is useful for numbers with a meaning, such as labels. A function has the parameters array and tuple of
        axes, like `numpy.median`.
    boundary : {"pad", "trim", "exact"}, default "pad"
        The treatment of items after the last whole block. "pad": they form a smaller block; "trim": they are dropped;
        "exact": they raise an error.
    url : str or os.PathLike, optional
        The place of the new array; in memory by default.
    dtype : dtype-like, optional
        The type of the result.
    executor, progress
        As for `map`.
    chunks, ..., fs
        As for `create`. The smaller copy of a b2array array has the same chunks, blocks, compression, dims, attributes
        and fill value.

    Raises
    ------
    ValueError
        The factors do not fit the array; or, with "exact", the extents are not multiples of the factors.
    TypeError, OverflowError
        Items of this type have no mean or sum; or the results have masked items, or do not fit `dtype`, as for `map`.

    See Also
    --------
    map : Calls any function piece by piece.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.asarray(np.arange(24).reshape(2, 3, 4), dims=("channel", "y", "x"))
    >>> b2array.downsample(a, {"y": 2, "x": 2})[...].tolist()
    [[[2, 4], [8, 10]], [[14, 16], [20, 22]]]
    >>> b2array.downsample(a, (1, 2, 2), "max", boundary="trim")[...].tolist()
    [[[5, 7]], [[17, 19]]]
    """
    if boundary not in get_args(Boundary):
        raise ValueError(f"expected boundary 'pad', 'trim' or 'exact', found {boundary!r}")
    source = a if hasattr(a, "shape") and hasattr(a, "dtype") else plain(a)
    blocks = factors_of(factors, len(source.shape), getattr(a, "dims", None))
    has_rest = any(n % block for n, block in zip(source.shape, blocks, strict=True))
    if boundary == "exact" and has_rest:
        raise ValueError(
            f"expected extents that are multiples of {blocks}, found {tuple(source.shape)}; boundary='trim' leaves the "
            "rest out, boundary='pad' makes smaller blocks of it"
        )
    function = _function(reduce, blocks, None if dtype is None else np.dtype(dtype))
    work = Work.of(function, (source,), (), (), blocks, trim=boundary == "trim")
    wanted = ArrayOptions(**options)
    if isinstance(a, NDArray | View):
        keeps_type = dtype is None and reduce in ("mean", "min", "max", "first")
        wanted = _complete(wanted, a, work.counts, same_type=keeps_type)
    return NDArray._make(
        url,
        wanted,
        lambda place, final: map_chunks(work, place, dtype, final, executor, progress=progress),
    )


def _complete(
    wanted: ArrayOptions,
    model: NDArray | View,
    shape: tuple[int, ...],
    *,
    same_type: bool,
) -> ArrayOptions:
    """Complete the options from the array. The levels of a pyramid keep the block size."""
    array = model if isinstance(model, NDArray) else NDArray(model._handle)
    if wanted.chunks is None and wanted.blocks is None and 0 not in shape:
        chunks = tuple(map(min, model.chunks, shape))
        wanted = replace(wanted, chunks=chunks, blocks=tuple(map(min, model.blocks, chunks)))
    cparams = wanted.cparams
    if cparams is None:
        cparams = array_copying.cparams_for(array.cparams, array.dtype, interop=wanted.interop)
        if not same_type:
            # Error bounds apply only to floats.
            cparams = cparams.without_bounds()
    attrs = dict(array.attrs) if wanted.attrs is None else wanted.attrs
    return replace(wanted, cparams=cparams, attrs=attrs)


# These functions must be importable, so that other processes can unpickle them.


def _function(
    reduce: Reduce | Callable[..., Any],
    blocks: tuple[int, ...],
    dtype: np.dtype[Any] | None,
) -> Callable[[Array], Array]:
    """Return a function that reduces the blocks of a piece."""
    if callable(reduce):
        return partial(_each_box, partial(_call, reduce), blocks)
    if reduce not in get_args(Reduce):
        names = ", ".join(map(repr, get_args(Reduce)))
        raise ValueError(f"expected one of {names} or a function such as numpy.median, found {reduce!r}")
    verbs: dict[str, Verb] = {
        "mean": partial(_mean, dtype),
        "min": partial(_fold, np.minimum),
        "max": partial(_fold, np.maximum),
        "sum": _sum,
        "first": _first,
    }
    return partial(_each_box, verbs[reduce], blocks)


def _each_box(verb: Verb, blocks: tuple[int, ...], items: Array) -> Array:
    """Reduce boxes of equal blocks: a box with all whole blocks, and boxes with the smaller blocks at the edges."""
    parts = []
    extents_of_first = []
    for n, block in zip(items.shape, blocks, strict=True):
        along = list(_parts(n, block))
        parts.append(along)
        _, extent, _ = along[0]
        extents_of_first.append(extent)
    if all(len(along) == 1 for along in parts):
        return verb(items, tuple(extents_of_first))
    result: Array | None = None
    for box in product(*parts):
        source, extents, target = zip(*box, strict=True)
        values = verb(items[source], extents)
        if result is None:
            # The type of the results is known only after the first call of the verb.
            shape = []
            for along in parts:
                _, _, last = along[-1]
                shape.append(last.stop)
            result = np.empty(shape, values.dtype)
        result[target] = values
    if result is None:
        return np.empty(items.shape, items.dtype)
    return result


def _parts(n: int, block: int) -> Iterator[tuple[slice, int, slice]]:
    """Divide an axis into whole blocks and a remainder; return positions, block extents, and places of the results."""
    count, rest = divmod(n, block)
    if count or not rest:
        yield slice(0, n - rest), block, slice(0, count)
    if rest:
        yield slice(n - rest, n), rest, slice(count, count + 1)


def _call(function: Callable[..., Any], items: Array, blocks: tuple[int, ...]) -> Array:
    """Call a function that takes an array and a tuple of axes."""
    shape = []
    for n, block in zip(items.shape, blocks, strict=True):
        shape += [n // block, block]
    # Every second axis is inside a block.
    inside = tuple(range(1, 2 * items.ndim, 2))
    return plain(function(items.reshape(shape), axis=inside))


def _first(items: Array, blocks: tuple[int, ...]) -> Array:
    every_block = tuple(slice(None, None, block) for block in blocks)
    return items[every_block]


def _fold(
    ufunc: np.ufunc,
    items: Array,
    blocks: tuple[int, ...],
    wide: npt.DTypeLike | None = None,
) -> Array:
    """Reduce blocks by a ufunc, axis by axis."""
    if items.dtype.names is not None:
        raise TypeError(f"records have no {ufunc.__name__}: downsample one field, or with reduce='first'")
    values = items
    kind = items.dtype if wide is None else np.dtype(wide)
    for axis, block in enumerate(blocks):
        if block == 1:
            continue
        # NumPy reduces short axes item by item, but adds whole rows at once.
        before = (slice(None),) * axis
        result = values[(*before, slice(0, None, block))].astype(kind)
        for offset in range(1, block):
            ufunc(result, values[(*before, slice(offset, None, block))], out=result)
        values = result
    return values.astype(kind, copy=False)


def _sum(items: Array, blocks: tuple[int, ...]) -> Array:
    _require_numbers(items.dtype, "sum")
    # NumPy adds small integers as integers of the platform's size.
    kind = np.add.reduce(np.zeros(1, items.dtype)).dtype
    return _fold(np.add, items, blocks, _wide(kind)).astype(kind, copy=False)


def _mean(dtype: np.dtype[Any] | None, items: Array, blocks: tuple[int, ...]) -> Array:
    """Return the means of blocks. Means of integers are rounded, unless the result has a float type."""
    _require_numbers(items.dtype, "mean")
    count = math.prod(blocks)
    kind = items.dtype if dtype is None else dtype
    if items.dtype.kind not in "biu":
        quotients = _fold(np.add, items, blocks, _wide(items.dtype)) / count
        if _holds_integers(items.dtype):
            quotients = np.rint(quotients)
        return quotients.astype(items.dtype, copy=False)
    if kind.kind not in "biu":
        return _fold(np.add, items, blocks, float) / count
    wide: type[np.integer[Any]] = np.int64
    if items.dtype == np.uint64:
        wide = np.uint64
    elif items.itemsize <= 2 and count < 2**15:
        # The sum of fewer than 2**15 items of 2 bytes fits into it.
        wide = np.int32
    if items.itemsize < 8:
        total = _fold(np.add, items, blocks, wide)
        whole_part, rest = _divide(total, wide(count))
    else:
        # Sums of such items may be too large for any integer type, so add quotients and remainders.
        parts, rests = _divide(items, wide(count))
        carried, rest = _divide(_fold(np.add, rests, blocks), wide(count))
        whole_part = _fold(np.add, parts, blocks) + carried
    # Compute with integers, because floats have only 53 bits.
    # Round a half to the even neighbour: for an odd whole part, one more counts as above the half.
    is_odd = whole_part & wide(1)
    upwards = rest > wide(count) - rest - is_odd
    means: Array = whole_part + upwards
    return means.astype(items.dtype)


def _holds_integers(dtype: np.dtype[Any]) -> bool:
    """Return whether a type of another package cannot represent 0.5, such as an integer of four bits."""
    if dtype.kind != "V":
        return False
    half = np.asarray(0.5).astype(dtype)
    return bool(half.astype(float) != 0.5)


def _divide(items: Array, count: Any) -> tuple[Array, Array]:
    """Return the same result as `numpy.divmod`, but faster."""
    quotients = items // count
    return quotients, items - quotients * count


def _wide(dtype: np.dtype[Any]) -> npt.DTypeLike:
    """Return the type for sums of floats, with at least double precision."""
    if dtype.kind == "V":
        return np.dtype(np.float64)
    return np.result_type(dtype, np.float64) if dtype.kind in "fc" else dtype


def _require_numbers(dtype: np.dtype[Any], verb: str) -> None:
    if dtype.kind in "biufc" or (dtype.kind == "V" and dtypes.extension_name(dtype) is not None):
        return
    raise TypeError(f"items of type {dtype} have no {verb}; reduce='first', 'min' and 'max' choose one of a block")
