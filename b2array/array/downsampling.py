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

from b2array.array import copying
from b2array.array.array import NDArray, View
from b2array.array.chunkwise import Factors, Work, factors_of, map_chunks
from b2array.array.drafts import ArrayOptions, NewKeywords, Url, takes
from b2array.format import dtypes

__all__ = ["downsample"]

Array = npt.NDArray[Any]
Reduce = Literal["mean", "min", "max", "sum", "first"]
Verb = Callable[[Array, tuple[int, ...]], Array]
"""Reduces blocks of one size."""
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

    The array may be larger than memory: a few pieces are in memory at a time. Stored values count as they are: values
    that mark missing items are not skipped.

    Parameters
    ----------
    a : array-like
        The array. One that is not in memory is read a piece at a time.
    factors : int, sequence or mapping
        Extents of a block in items: one number for all axes, one entry an axis, or a mapping of axes or names of
        dimensions to numbers, as xarray's ``coarsen`` takes it; other axes stay as they are.
    reduce : {"mean", "min", "max", "sum", "first"} or callable, default "mean"
        How to make one item of a block. The type of the items stays, except for "sum", which has NumPy's type: the mean
        of integers is rounded to the nearest one, to the even one of two. "first" suits numbers that stand for
        something, such as labels. A function takes an array and a tuple of axes, as `numpy.median` does.
    boundary : {"pad", "trim", "exact"}, default "pad"
        What becomes of items after the last whole block. "pad": they form a smaller block, "trim": they are dropped,
        "exact": they are an error.
    url : str or os.PathLike, optional
        Where to store it; in memory by default.
    dtype : dtype-like, optional
        Type of the result.
    executor, progress
        As for `map`.
    chunks, ..., fs
        As for `create`. An array of b2array gives its smaller copy its chunks, blocks, compression, dims, attributes
        and fill value.

    Raises
    ------
    ValueError
        The factors do not fit the array; or, with "exact", the extents are not multiples of them.
    TypeError
        Items of this type have no mean or sum, or the results cannot be cast ("same_kind") to `dtype`.

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
    source = a if hasattr(a, "shape") and hasattr(a, "dtype") else np.asarray(a)
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
    """Complete the options from the array; the levels of a pyramid keep the block size."""
    array = model if isinstance(model, NDArray) else NDArray(model._handle)
    if wanted.chunks is None and wanted.blocks is None and 0 not in shape:
        chunks = tuple(map(min, model.chunks, shape))
        wanted = replace(wanted, chunks=chunks, blocks=tuple(map(min, model.blocks, chunks)))
    cparams = wanted.cparams
    if cparams is None:
        cparams = copying.cparams_for(array.cparams, array.dtype, interop=wanted.interop)
        if not same_type:
            # Bounds of errors are for floats only.
            cparams = cparams.without_bounds()
    attrs = dict(array.attrs) if wanted.attrs is None else wanted.attrs
    return replace(wanted, cparams=cparams, attrs=attrs)


# Functions that other processes can unpickle.


def _function(
    reduce: Reduce | Callable[..., Any],
    blocks: tuple[int, ...],
    dtype: np.dtype[Any] | None,
) -> Callable[[Array], Array]:
    """Return the function of a piece that reduces its blocks."""
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
    """Reduce the boxes of items whose blocks have one size: all whole blocks, and the smaller ones at the edges."""
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
            # Only the verb knows the type of the results.
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
    """Cut an axis into whole blocks and a rest: the positions, the extent of a block, and where the results go."""
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
    # Every other axis runs inside a block.
    inside = tuple(range(1, 2 * items.ndim, 2))
    return np.asarray(function(items.reshape(shape), axis=inside))


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
        # NumPy reduces short axes item by item, but whole rows at a time.
        before = (slice(None),) * axis
        result = values[(*before, slice(0, None, block))].astype(kind)
        for offset in range(1, block):
            ufunc(result, values[(*before, slice(offset, None, block))], out=result)
        values = result
    return values.astype(kind, copy=False)


def _sum(items: Array, blocks: tuple[int, ...]) -> Array:
    _require_numbers(items.dtype, "sum")
    # NumPy adds small integers up in the integer of the platform.
    kind = np.add.reduce(np.zeros(1, items.dtype)).dtype
    return _fold(np.add, items, blocks, _wide(kind)).astype(kind, copy=False)


def _mean(dtype: np.dtype[Any] | None, items: Array, blocks: tuple[int, ...]) -> Array:
    """Return means of blocks; means of integers are rounded, unless the result should be of a float type."""
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
        # Sums of such items may be too large for any integer: add up quotients and rests.
        parts, rests = _divide(items, wide(count))
        carried, rest = _divide(_fold(np.add, rests, blocks), wide(count))
        whole_part = _fold(np.add, parts, blocks) + carried
    # In integers, because floats know only 53 bits of a mean.
    # A half goes to the even neighbour: with an odd whole part, one more is as good as above the half.
    is_odd = whole_part & wide(1)
    upwards = rest > wide(count) - rest - is_odd
    means: Array = whole_part + upwards
    return means.astype(items.dtype)


def _holds_integers(dtype: np.dtype[Any]) -> bool:
    """Whether a type of another package, such as an integer of four bits, cannot hold a half."""
    if dtype.kind != "V":
        return False
    half = np.asarray(0.5).astype(dtype)
    return bool(half.astype(float) != 0.5)


def _divide(items: Array, count: Any) -> tuple[Array, Array]:
    """Return what `numpy.divmod` returns, faster."""
    quotients = items // count
    return quotients, items - quotients * count


def _wide(dtype: np.dtype[Any]) -> npt.DTypeLike:
    """Return the type in which floats are added up: at least double precision."""
    if dtype.kind == "V":
        return np.dtype(np.float64)
    return np.result_type(dtype, np.float64) if dtype.kind in "fc" else dtype


def _require_numbers(dtype: np.dtype[Any], verb: str) -> None:
    if dtype.kind in "biufc" or (dtype.kind == "V" and dtypes.extension_name(dtype) is not None):
        return
    raise TypeError(f"items of type {dtype} have no {verb}; reduce='first', 'min' and 'max' choose one of a block")
