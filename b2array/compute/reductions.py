"""Reductions in bounded memory: compute a state of each piece, combine states in pairs, and finish the last state.

Pairs are combined as in NumPy's pairwise sum, so that the error of a sum grows with the logarithm of the number of
items. Sums of short floats are kept in double precision. A part of the result is finished as soon as all of its pieces
are complete, so only a few pieces are in memory in addition to the result.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array import progress as bars
from b2array import threads
from b2array.buffers import scratch
from b2array.compute.mapping import Mapping
from b2array.compute.operators import Operators
from b2array.format.index import SPECIALS
from b2array.frame.read import read, read_item
from b2array.frame.revision import Revision
from b2array.frame.source import Source
from b2array.grid.layout import Layout
from b2array.grid.selection import select, vectorised

__all__ = [
    "nanargmax",
    "nanargmin",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "reduction",
]

Array = npt.NDArray[Any]
Box = tuple[slice, ...]
Axes = tuple[int, ...]
DType = np.dtype[Any]
Mask = npt.NDArray[np.bool_]
State = tuple[Any, ...]
"""Arrays with an extent of 1 along the reduced axes, or numbers."""

_LEAST_NBYTES = 2**20
_LEAST_NBYTES_AFAR = 8 * 2**20
"""Pieces up to this size are not cut, on local disks and elsewhere."""
_MOST_NBYTES = 32 * 2**20
"""Larger chunks are cut at the borders of blocks."""
_AFAR = 8
"""Number of pieces to request at the same time if that takes long."""
_WIDE = {"f2": "f8", "f4": "f8", "c8": "c16"}
"""Types in which sums of short floats are kept."""


@dataclass(frozen=True, slots=True)
class _Reduction:
    """The arguments of a reduction; axes are digits (see `b2array.compute.mapping`).

    `dtype` is the type of the result, and `wide` the type of sums. `valid` is the mask of the items to reduce, None for
    all items. `initial` holds the initial value, if there is one. With `skipna`, NaN is ignored.
    """

    lengths: tuple[int, ...]
    axes: Axes
    dtype: DType
    wide: Any
    valid: Mask | None
    initial: dict[str, Any]
    ddof: float
    skipna: bool

    def where(self, box: Box, items: Array) -> tuple[Any, Any]:
        """Return the mask of the items to reduce, True for all items, and the number of these items."""
        valid: Any = True if self.valid is None else self.valid[box]
        numbers = ~np.isnan(items) if self.skipna else np.True_
        if valid is True and numbers.all():
            # A ufunc is faster without a mask.
            lengths = [items.shape[axis] for axis in self.axes]
            return True, math.prod(lengths)
        mask = np.broadcast_to(valid & numbers, items.shape)
        number = np.add.reduce(mask, self.axes, np.int64, keepdims=True)
        return mask, number


@dataclass(frozen=True, slots=True)
class _Verb:
    """The functions of a reduction: compute the state of the items in a box, combine two states, finish the result."""

    piece: Callable[[_Reduction, Box, Array], State]
    combine: Callable[[_Reduction, State, State], State]
    finish: Callable[[_Reduction, State], Any]


_DOC = """Reduce the items as `numpy.{name}` does and with its arguments, chunk by chunk in bounded memory.

    NumPy's functions call the methods of an array or a view: ``np.sum(a)`` is ``a.sum()``. Results are new arrays:
    `out` must be None. With ``progress=True``, show the progress on stderr.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.asarray([[1.0, 2.0], [3.0, 6.0]])
    >>> np.asarray({call}axis=0)).tolist()
    {example}
    """


def reduction(name: str) -> Callable[..., Any]:
    """Return the method with this name, or the function if the name begins with nan."""
    function = getattr(np, name)
    plain = name.removeprefix("nan")
    skipna = plain != name

    def reduce(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, **options: Any) -> Any:
        # Not all NumPy functions accept these arguments, so pass them on only if the caller did.
        if dtype is not None:
            options["dtype"] = dtype
        if not isinstance(a, Operators):
            if out is not None:
                options["out"] = out
            return function(a, axis=axis, **options)
        if out is not None:
            raise TypeError("reductions return new results: out must be None")
        return _reduce(a, function, plain, axis, skipna=skipna, **options)

    call = f"b2array.{name}(a, " if skipna else f"a.{name}("
    items = np.array([[1.0, 2.0], [3.0, 6.0]])
    example = function(items, axis=0).tolist()
    reduce.__name__ = name
    reduce.__qualname__ = name
    reduce.__doc__ = _DOC.format(name=name, call=call, example=example)
    return reduce


def _reduce(
    a: Any,
    function: Callable[..., Any],
    name: str,
    axis: Any,
    keepdims: bool = False,
    *,
    skipna: bool,
    progress: bool = False,
    **arguments: Any,
) -> Any:
    def attempt(source: Source) -> Any:
        layout = source.state.require_layout()
        if layout.is_text:
            raise TypeError(f"{function.__name__} reduces numbers, and the items are of {layout.dtype}: use a[...]")
        mapping = a._mapping(layout.shape)
        view_shape = mapping.lengths  # `a` may change in the meantime
        ndim = len(view_shape)
        if 0 in view_shape:
            # For an empty array, NumPy's function returns the right result, or raises the right error.
            nothing = np.empty(view_shape, layout.dtype)
            return function(nothing, axis=axis, keepdims=keepdims, **arguments)
        kind = _result_dtype(
            function,
            name,
            layout.dtype,
            ndim,
            axis,
            arguments,
            keepdims=keepdims,
        )
        reduced = _reduced_axes(axis, ndim)
        ignores_nan = skipna and _may_have_nan(name, layout.dtype)
        task = _task(mapping, reduced, kind, arguments, skipna=ignores_nan)
        label = name if progress else ""
        result = _reduce_chunks(source, layout, mapping, task, _VERBS[name], show=label)
        shape = []
        for k, n in enumerate(view_shape):
            if k not in reduced:
                shape.append(n)
            elif keepdims:
                shape.append(1)
        result = result.reshape(shape)
        return result if shape else result[()]  # a scalar, as in NumPy

    return a._handle.reading(attempt)


def _reduced_axes(axis: Any, ndim: int) -> Axes:
    # NumPy reduces even an array without dimensions along axis 0.
    if axis is None or not ndim:
        return tuple(range(ndim))
    return np.lib.array_utils.normalize_axis_tuple(axis, ndim)


def _may_have_nan(name: str, dtype: DType) -> bool:
    """Return whether items may be NaN; NaT counts as NaN for `nanmin` and `nanmax`, but not for sums."""
    kinds = "fcmM" if name in ("min", "max") else "fc"
    return dtype.kind in kinds


def _task(
    mapping: Mapping,
    reduced: Axes,
    kind: DType,
    arguments: dict[str, Any],
    *,
    skipna: bool,
) -> _Reduction:
    """Express the arguments of a reduction along axes of a view in terms of the view's digits."""
    lengths = tuple(digit.length for digit in mapping.digits)
    of_digits = [axis for axis, digits in enumerate(mapping.axes) for _ in digits]
    axes = tuple(n for n, axis in enumerate(of_digits) if axis in reduced)
    valid = None
    if arguments.get("where", True) is not True:
        # Splitting dimensions of a broadcast array does not copy it.
        mask = np.broadcast_to(arguments["where"], mapping.lengths)
        valid = mask.reshape(lengths)
    numeric = kind if kind.kind in "biufcO" else None
    wide = _WIDE.get(kind.str[1:], numeric)
    initial = {}
    if arguments.get("initial") is not None:
        initial["initial"] = arguments["initial"]
    ddof = arguments.get("ddof", 0)
    return _Reduction(lengths, axes, kind, wide, valid, initial, ddof, skipna)


def _result_dtype(
    function: Callable[..., Any],
    name: str,
    dtype: DType,
    ndim: int,
    axis: Any,
    arguments: dict[str, Any],
    *,
    keepdims: bool,
) -> DType:
    """Return the type of NumPy's result, or raise NumPy's error for these arguments."""
    options = dict(arguments)
    if options.get("where", True) is not True:
        mask_dtype = np.asarray(options["where"]).dtype
        options["where"] = np.ones((), mask_dtype)
    if "ddof" in options:
        options["ddof"] = 0  # one item has no degree of freedom to lose
    # Text may have to be a number.
    fill = np.ones if dtype.kind in "SU" else np.zeros
    one = fill((1,) * ndim, dtype)
    # Without an axis, NumPy computes roots of objects and counts records, but returns no arrays of these results.
    kept = keepdims or name not in ("std", "count_nonzero")
    with np.errstate(all="ignore"):
        result = function(one, axis=axis, keepdims=kept, **options)
    kind: DType = np.asarray(result).dtype
    adds = name in ("sum", "prod", "mean") and dtype.kind in "biufc"
    if adds and np.dtype(arguments.get("dtype")) == object:
        return np.dtype(object)  # NumPy's result may be a Python number, which has no limits
    return kind


def _reduce_chunks(
    source: Source,
    layout: Layout,
    mapping: Mapping,
    task: _Reduction,
    verb: _Verb,
    *,
    show: str,
) -> Array:
    """Return the result with an extent of 1 along reduced digits."""
    axes = range(len(task.lengths))
    kept = [axis for axis in axes if axis not in task.axes]
    error = np.geterr()  # each thread has its own settings
    shape = [1 if axis in task.axes else task.lengths[axis] for axis in axes]
    result = np.empty(shape, task.dtype)
    nbytes = math.prod(task.lengths) * layout.itemsize
    quiet: dict[str, Any] = {}
    if task.skipna:
        # NumPy's nan-variants divide without a warning.
        quiet = {"divide": "ignore", "invalid": "ignore"}
    with bars.track(nbytes, f"{show} of {source.url}", bool(show)) as bar:

        def state(box: Box, items: Array) -> tuple[Box, State]:
            bar.advance(items.nbytes)
            place = list(box)
            for axis in task.axes:
                place[axis] = slice(0, 1)
            with np.errstate(**error):
                of_box = _state_of(task, verb, box, items)
            return tuple(place), of_box

        # A mask may exclude different items in chunks with equal items.
        merge = task.valid is None
        pieces = _pieces(source, layout, mapping, kept, state, merge=merge)
        for where, column in groupby(pieces, itemgetter(0)):
            last = _fold(task, verb, (of_piece for _, of_piece in column))
            with np.errstate(**quiet):
                result[where] = verb.finish(task, last)
    return result


def _state_of(task: _Reduction, verb: _Verb, box: Box, items: Array) -> State:
    if items.size == 1 or any(items.strides):
        return verb.piece(task, box, items)
    # All items are the same: reduce one item, and repeat the state.
    first = items[(slice(0, 1),) * items.ndim]
    one = verb.piece(task, box, first)
    lengths = [items.shape[axis] for axis in task.axes]
    count = math.prod(lengths)
    return _repeat(task, verb, one, count)


def _fold(task: _Reduction, verb: _Verb, states: Iterable[State]) -> State:
    """Combine states in pairs, pairs of pairs, and so on, with only a few states in memory."""
    stack: list[State] = []

    def combine_last_two() -> None:
        b = stack.pop()
        a = stack.pop()
        stack.append(verb.combine(task, a, b))

    for number, state in enumerate(states, 1):
        stack.append(state)
        # As in a binary counter: each zero at the end of the number is a carry, two states of the same size.
        carries = (number & -number).bit_length() - 1
        for _ in range(carries):
            combine_last_two()
    while len(stack) > 1:
        combine_last_two()
    return stack[0]


def _repeat(task: _Reduction, verb: _Verb, state: State, n: int) -> State:
    """Combine a state with itself until it represents `n` boxes with the same items."""
    if n == 1:
        return state
    half = _repeat(task, verb, state, n // 2)
    even = verb.combine(task, half, half)
    return verb.combine(task, even, state) if n % 2 else even


# Pieces.


def _pieces(
    source: Source,
    layout: Layout,
    mapping: Mapping,
    kept: Sequence[int],
    use: Callable[[Box, Array], tuple[Box, State]],
    *,
    merge: bool,
) -> Iterator[tuple[Box, State]]:
    """Call a function in workers for all pieces of a mapping, and yield the results.

    The function takes a box of digits and the items in the box, whose memory is reused. Pieces with the same box of the
    digits `kept` are consecutive. With `merge`, many chunks of one value may be a single piece, whose items have the
    stride 0.
    """
    digits = tuple((digit,) for digit in mapping.digits)
    unnumbered = (None,) * len(digits)
    of_digits = Mapping(mapping.shape, mapping.starts, digits, unnumbered)
    nbytes = math.prod(of_digits.lengths) * layout.itemsize

    def piece(job: tuple[Box, bool]) -> tuple[Box, State]:
        box, is_one = job
        if is_one:
            first = tuple(i.start for i in box)
            where = of_digits.slice_by(first).starts
            item = np.asarray(read_item(source, layout, where), layout.dtype)
            lengths = [i.stop - i.start for i in box]
            return use(box, np.broadcast_to(item, lengths))
        selection = select((*box, ...), of_digits.lengths)
        key, arranged = of_digits.locate(selection)
        wanted = vectorised(key, layout.shape)
        piece_nbytes = math.prod(wanted.shape) * layout.itemsize
        memory = scratch("pieces", piece_nbytes, 2 * _MOST_NBYTES)
        items = memory.view(layout.dtype).reshape(wanted.shape)
        target = wanted.view(items)
        read(source, layout, wanted.positions, wanted.axes, target, nbytes)
        return use(box, arranged(items))

    boxes = _boxes(source, layout, mapping, kept, merge=merge)
    if source.is_local:
        return threads.spread(piece, boxes)
    return threads.ahead(piece, boxes, _AFAR)


def _boxes(
    source: Source,
    layout: Layout,
    mapping: Mapping,
    kept: Sequence[int],
    *,
    merge: bool,
) -> Iterator[tuple[Box, bool]]:
    """Halve digits, the digits of `kept` first, until boxes are small; yield each box, and whether it has one value."""
    digits = mapping.digits
    units = layout.blocks if layout.chunk_nbytes > _MOST_NBYTES else layout.chunks
    codes = _special_codes(source, layout) if merge else None

    def is_one(box: Box) -> bool:
        low = list(mapping.starts)
        high = list(mapping.starts)
        for (axis, _, step), i in zip(digits, box, strict=True):
            ends = step * i.start, step * (i.stop - 1)
            low[axis] += min(ends)
            high[axis] += max(ends)
        touched = []
        for first, last, chunk in zip(low, high, layout.chunks, strict=True):
            touched.append(slice(first // chunk, last // chunk + 1))
        values = np.asarray(codes)[tuple(touched)]
        value = values.flat[0]
        return value in SPECIALS and bool((values == value).all())

    most = _LEAST_NBYTES if source.is_local else _LEAST_NBYTES_AFAR
    order = sorted(range(len(digits)), key=lambda n: n not in kept)
    cells = [digit.covering(units) for digit in digits]
    stack = [tuple(slice(0, digit.length) for digit in digits)]
    while stack:
        box = stack.pop()
        if codes is not None and is_one(box):
            yield box, True
            continue
        lengths = [i.stop - i.start for i in box]
        nbytes = math.prod(map(min, lengths, cells)) * layout.itemsize
        for n in order:
            # The size of the box if all following digits were cut as far as possible.
            smallest = min(lengths[n], cells[n])
            nbytes = nbytes // smallest * lengths[n]
            if lengths[n] <= cells[n] or nbytes <= most:
                continue
            axis, _, step = digits[n]
            whole = box[n]
            middle = _middle(whole, mapping.starts[axis], step, units[axis])
            # The stack pops the last half first, so the halves are processed in the order of the array.
            halves = [slice(middle, whole.stop), slice(whole.start, middle)]
            before = box[:n]
            after = box[n + 1 :]
            stack += [(*before, half, *after) for half in halves]
            break
        else:
            yield box, False


def _special_codes(source: Source, layout: Layout) -> Array | None:
    """Return the offsets of all chunks on their grid, if some reliably state that a chunk has one value."""
    # A transaction must record which chunks are read, and its index does not include open chunks.
    if not isinstance(source, Revision) or source.state.annotations.lost:
        return None
    frame = source.state.frame
    if layout.itemsize != frame.typesize or layout.dtype.kind == "V":
        return None
    if frame.offsets.min() >= 0:
        return None
    return frame.offsets.reshape(layout.grid_shape)


def _middle(i: slice, base: int, step: int, unit: int) -> int:
    """Return the position to cut a range of a digit: near its middle, at a border between units if possible."""
    middle: int = (i.start + i.stop) // 2
    if step < 0:
        # Count from the other end of the axis, where the digit ascends.
        base = -1 - base
        step = -step
    border = (base + middle * step) // unit * unit
    for position in (border, border + unit):
        cut = -((base - position) // step)
        if i.start < cut < i.stop:
            return cut
    return middle


# Sums, products and means.


def _by(ufunc: np.ufunc, convert: Callable[[Array], Array] = np.asarray) -> _Verb:
    """Return the reduction by a ufunc; the state also has the number of reduced items."""

    def piece(task: _Reduction, box: Box, items: Array) -> State:
        valid, number = task.where(box, items)
        options: dict[str, Any] = {"keepdims": True, "where": valid}
        if task.dtype == object:
            # NumPy does not define the identity for objects.
            options["initial"] = ufunc.identity
        total = ufunc.reduce(convert(items), task.axes, task.wide, **options)
        return total, number

    def finish(task: _Reduction, state: State) -> Any:
        total, _ = state
        return ufunc.reduce(total, task.axes, task.wide, keepdims=True, **task.initial)

    def combine(_: _Reduction, a: State, b: State) -> State:
        items, number = a
        other_items, other_number = b
        return ufunc(items, other_items), number + other_number

    return _Verb(piece, combine, finish)


def _nonzero(items: Array) -> Mask:
    if items.dtype.kind != "V":
        return items.astype(bool)
    mask = np.zeros(items.shape, bool)  # NumPy counts records but does not convert them
    mask.flat[np.flatnonzero(items)] = True
    return mask


def _mean(_: _Reduction, state: State) -> Any:
    total, number = state
    if not np.all(number):
        warnings.warn("Mean of empty slice", RuntimeWarning, stacklevel=2)
    return np.true_divide(total, number)


# Variance: the number of items, their mean, and the sum of squared deviations from the mean.


def _moments(task: _Reduction, box: Box, items: Array) -> State:
    valid, number = task.where(box, items)
    own = items.dtype if items.dtype.kind == "c" else np.float64
    wide = np.result_type(task.wide, own)
    options: dict[str, Any] = {"keepdims": True, "where": valid}
    total = np.add.reduce(items, task.axes, wide, **options)
    mean = total / np.maximum(number, 1)
    squares = _square(items - mean)
    deviation = np.add.reduce(squares, task.axes, **options)
    return number, mean, deviation


def _square(x: Any) -> Any:
    if x.dtype.kind in "cO":
        return (x * np.conjugate(x)).real
    return np.square(x)


def _combine_moments(_: _Reduction, a: State, b: State) -> State:
    # Source: Chan, Golub, LeVeque: "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances".
    number_a, mean_a, squares_a = a
    number_b, mean_b, squares_b = b
    number = number_a + number_b
    apart = mean_b - mean_a
    share = number_b / np.maximum(number, 1)
    between = _square(apart) * (number_a * share)
    mean = mean_a + apart * share
    squares = squares_a + squares_b + between
    return number, mean, squares


def _var(task: _Reduction, state: State) -> Any:
    number, mean, squares = state
    if task.dtype.kind in "iu":
        # For an integer result type, NumPy sums squared deviations from the integer part of the mean.
        mean = np.rint(mean * number) / np.maximum(number, 1)
        fraction = mean - np.trunc(mean)
        squares = np.rint(squares + number * np.square(fraction))
    few = number <= task.ddof
    if np.any(few):
        warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=2)
    freedom = np.maximum(number - task.ddof, 0)
    variance = np.true_divide(squares, freedom)
    return np.where(few, np.nan, variance) if task.skipna else variance


def _std(task: _Reduction, state: State) -> Any:
    return np.sqrt(_var(task, state))


# Others.


def _extreme(ufunc: np.ufunc, without_nan: np.ufunc) -> _Verb:
    """Return the minimum or maximum; the second function ignores NaN."""

    def choose(task: _Reduction) -> np.ufunc:
        return without_nan if task.skipna else ufunc

    def piece(task: _Reduction, box: Box, items: Array) -> State:
        valid: Any = True if task.valid is None else task.valid[box]
        reduce = choose(task).reduce
        value = reduce(items, task.axes, keepdims=True, where=valid, **task.initial)
        return (value,)

    def finish(task: _Reduction, state: State) -> Any:
        (value,) = state
        if task.skipna and np.isnan(value).any():
            warnings.warn("All-NaN slice encountered", RuntimeWarning, stacklevel=2)
        return value

    def combine(task: _Reduction, a: State, b: State) -> State:
        return (choose(task)(a[0], b[0]),)

    return _Verb(piece, combine, finish)


def _position(function: Callable[..., Any], last: float) -> _Verb:
    """Return the position of the first extreme item, which a NumPy function finds; `last` replaces NaN.

    A state has the item, its position among all reduced items, and whether any item is not NaN.
    """

    def piece(task: _Reduction, box: Box, items: Array) -> State:
        valid: Any = np.True_
        if task.skipna:
            isnan = np.isnan(items)
            items = np.where(isnan, items.dtype.type(last), items)
            valid = ~isnan.all(task.axes, keepdims=True)
        others = [axis for axis in range(items.ndim) if axis not in task.axes]
        # One row for each item of the result.
        turned = items.transpose([*others, *task.axes])
        outer = turned.shape[: len(others)]
        rows = turned.reshape(*outer, -1)
        best = function(rows, axis=-1)
        values = np.take_along_axis(rows, best[..., None], -1)
        value = values[..., 0]
        position = np.zeros_like(best)
        # `unravel_index` does not accept a shape without dimensions.
        lengths = [items.shape[axis] for axis in task.axes]
        inside = np.unravel_index(best, [1, *lengths])[1:]
        for axis, along in zip(task.axes, inside, strict=True):
            before = position * task.lengths[axis]
            position = before + box[axis].start + along
        value = np.expand_dims(value, task.axes)
        position = np.expand_dims(position, task.axes)
        return value, position, valid

    def combine(_: _Reduction, a: State, b: State) -> State:
        item_a, position_a, valid_a = a
        item_b, position_b, valid_b = b
        # Order the items by position, so that the first of equal items wins.
        is_ordered = position_a < position_b
        items = np.where(is_ordered, [item_a, item_b], [item_b, item_a])
        positions = np.sort([position_a, position_b], axis=0)
        later = function(items, axis=0)
        item = np.choose(later, items)
        position = np.choose(later, positions)
        return item, position, valid_a | valid_b

    def finish(_: _Reduction, state: State) -> Any:
        _, position, valid = state
        if not np.all(valid):
            raise ValueError("All-NaN slice encountered")
        return position

    return _Verb(piece, combine, finish)


_VERBS = {
    "sum": _by(np.add),
    "prod": _by(np.multiply),
    "any": _by(np.logical_or),
    "all": _by(np.logical_and),
    "count_nonzero": _by(np.add, _nonzero),
    "mean": replace(_by(np.add), finish=_mean),
    "var": _Verb(_moments, _combine_moments, _var),
    "std": _Verb(_moments, _combine_moments, _std),
    "min": _extreme(np.minimum, np.fmin),
    "max": _extreme(np.maximum, np.fmax),
    "argmin": _position(np.argmin, np.inf),
    "argmax": _position(np.argmax, -np.inf),
}
nanargmax = reduction("nanargmax")
nanargmin = reduction("nanargmin")
nanmax = reduction("nanmax")
nanmin = reduction("nanmin")
nanmean = reduction("nanmean")
nanprod = reduction("nanprod")
nanstd = reduction("nanstd")
nansum = reduction("nansum")
nanvar = reduction("nanvar")
