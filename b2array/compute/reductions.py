"""Reductions in bounded memory: a state of each piece, states combined pair by pair, and a result of the last one.

Pairs are combined as in NumPy's pairwise sum, so that the error of a sum grows with the logarithm of the number of
items. Sums of short floats are kept in double precision. A part of the result is finished as soon as all of its pieces
have arrived. So only a few pieces are in memory besides it.
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
from b2array.frame.snapshot import Snapshot
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
State = tuple[Any, ...]
"""Arrays with an extent of 1 along the reduced axes, or numbers."""

_LEAST_NBYTES, _LEAST_NBYTES_AFAR = 2**20, 8 * 2**20
"""Pieces up to this size are not cut, on local disks and elsewhere."""
_MOST_NBYTES = 32 * 2**20
"""Larger chunks are cut at the borders of blocks."""
_AFAR = 8
"""Number of pieces to request at the same time if that takes long."""


@dataclass(frozen=True, slots=True)
class _Reduction:
    """The arguments of a reduction; axes are digits (see `b2array.compute.mapping`).

    `dtype` is the type of the result, and `wide` the type of sums. `valid` marks the items that count, None marks all.
    `initial` holds the initial value, if there is one. With `skipna`, NaN does not count.
    """

    lengths: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: np.dtype[Any]
    wide: Any
    valid: npt.NDArray[np.bool_] | None
    initial: dict[str, Any]
    ddof: float
    skipna: bool

    def where(self, box: Box, items: Array) -> tuple[Any, Any]:
        """Return which items count, True for all, and how many do."""
        valid: Any = True if self.valid is None else self.valid[box]
        numbers = ~np.isnan(items) if self.skipna else np.True_
        if valid is True and numbers.all():
            return True, math.prod(items.shape[axis] for axis in self.axes)
        counted = np.broadcast_to(valid & numbers, items.shape)
        return counted, np.add.reduce(counted, self.axes, np.int64, keepdims=True)


@dataclass(frozen=True, slots=True)
class _Verb:
    """A reduction: a state of the items in a box, one state of two, and the result."""

    piece: Callable[[_Reduction, Box, Array], State]
    combine: Callable[[_Reduction, State, State], State]
    finish: Callable[[_Reduction, State], Any] = lambda _, state: state[0]


_DOC = """Reduce the items as `numpy.{name}` does and with its arguments, chunk by chunk in bounded memory.

    NumPy's functions call the methods of an array or a view: ``np.sum(a)`` is ``a.sum()``. Results are new arrays:
    `out` must be None. With ``progress=True``, show on stderr how far it has come.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.asarray([[1.0, 2.0], [3.0, 6.0]])
    >>> np.asarray({call}axis=0)).tolist()
    {example}
    """


def reduction(name: str) -> Callable[..., Any]:
    """Return the method of this name, or the function for a name that begins with nan."""
    function = getattr(np, name)
    plain = name.removeprefix("nan")

    def reduce(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, **options: Any) -> Any:
        # NumPy's functions do not all take these arguments, so pass them on only if the caller did.
        if dtype is not None:
            options["dtype"] = dtype
        if not isinstance(a, Operators):
            if out is not None:
                options["out"] = out
            return function(a, axis=axis, **options)
        if out is not None:
            raise TypeError("reductions return new results: out must be None")
        return _reduce(a, function, plain, axis, skipna=plain != name, **options)

    call = f"b2array.{name}(a, " if plain != name else f"a.{name}("
    example = function(np.array([[1.0, 2.0], [3.0, 6.0]]), axis=0).tolist()
    reduce.__name__ = reduce.__qualname__ = name
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
        mapping = a._mapping(layout.shape)
        view_shape = mapping.lengths  # `a` may change meanwhile
        ndim = len(view_shape)
        dtype = layout.dtype
        if 0 in view_shape:
            return function(np.empty(view_shape, dtype), axis=axis, keepdims=keepdims, **arguments)
        valid = None
        if arguments.get("where", True) is not True:
            valid = np.broadcast_to(arguments["where"], view_shape)
        kind = _result_dtype(function, name, dtype, ndim, axis, arguments, keepdims=keepdims)
        # NumPy reduces even an array without dimensions along axis 0.
        if axis is None or not view_shape:
            reduced = tuple(range(ndim))
        else:
            reduced = np.lib.array_utils.normalize_axis_tuple(axis, ndim)
        numeric = kind if kind.kind in "biufcO" else None
        wide = {"f2": "f8", "f4": "f8", "c8": "c16"}.get(kind.str[1:], numeric)
        initial = {}
        if arguments.get("initial") is not None:
            initial["initial"] = arguments["initial"]
        lengths = tuple(digit.length for digit in mapping.digits)
        of_digits = [axis for axis, digits in enumerate(mapping.axes) for _ in digits]
        axes = tuple(n for n, axis in enumerate(of_digits) if axis in reduced)
        # Splitting dimensions of a broadcast array does not copy it.
        counted = None if valid is None else valid.reshape(lengths)
        with_nan = "fcmM" if name in ("min", "max") else "fc"
        ignores = skipna and dtype.kind in with_nan
        ddof = arguments.get("ddof", 0)
        task = _Reduction(lengths, axes, kind, wide, counted, initial, ddof, ignores)
        label = name if progress else ""
        result = _reduce_chunks(source, layout, mapping, task, _VERBS[name], show=label)
        shape = []
        for k, n in enumerate(view_shape):
            if k not in reduced:
                shape.append(n)
            elif keepdims:
                shape.append(1)
        result = result.reshape(shape)
        return result if shape else result[()]  # a scalar, as NumPy returns

    return a._handle.reading(attempt)


def _result_dtype(
    function: Callable[..., Any],
    name: str,
    dtype: np.dtype[Any],
    ndim: int,
    axis: Any,
    arguments: dict[str, Any],
    *,
    keepdims: bool,
) -> np.dtype[Any]:
    """Return the type that NumPy gives the result, or raise the error that NumPy raises for these arguments."""
    options = dict(arguments)
    if options.get("where", True) is not True:
        options["where"] = np.ones((), np.asarray(options["where"]).dtype)
    if "ddof" in options:
        options["ddof"] = 0  # one item has no degree of freedom to lose
    # Text may have to be a number.
    fill = np.ones if dtype.kind in "SU" else np.zeros
    one = fill((1,) * ndim, dtype)
    # Without an axis, NumPy has roots of objects and counts records, but makes no arrays of these results.
    kept = keepdims or name not in ("std", "count_nonzero")
    with np.errstate(all="ignore"):
        kind: np.dtype[Any] = np.asarray(function(one, axis=axis, keepdims=kept, **options)).dtype
    adds = name in ("sum", "prod", "mean") and dtype.kind in "biufc"
    if adds and np.dtype(arguments.get("dtype")) == object:
        return np.dtype(object)  # NumPy's result may be a number of Python, which has no limits
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
    """Return the result with an extent of 1 along the digits that are reduced."""
    kept = [axis for axis in range(len(task.lengths)) if axis not in task.axes]
    error = np.geterr()  # each thread has its own settings
    shape = [1 if axis in task.axes else n for axis, n in enumerate(task.lengths)]
    result = np.empty(shape, task.dtype)
    nbytes = math.prod(task.lengths) * layout.itemsize
    # NumPy's nan-variants divide without a warning.
    quiet: dict[str, Any] = {"divide": "ignore", "invalid": "ignore"} if task.skipna else {}
    with bars.track(nbytes, f"{show} of {source.url}", bool(show)) as bar:

        def state(box: Box, items: Array) -> tuple[Box, State]:
            bar.advance(items.nbytes)
            place = tuple(slice(0, 1) if axis in task.axes else i for axis, i in enumerate(box))
            with np.errstate(**error):
                if items.size == 1 or any(items.strides):
                    return place, verb.piece(task, box, items)
                # All items are one: reduce it once, and repeat the state.
                first = items[(slice(0, 1),) * items.ndim]
                one = verb.piece(task, box, first)
                count = math.prod(items.shape[axis] for axis in task.axes)
                return place, _repeat(task, verb, one, count)

        pieces = _pieces(source, layout, mapping, kept, state, merge=task.valid is None)
        for where, column in groupby(pieces, itemgetter(0)):
            last = _fold(task, verb, (of_piece for _, of_piece in column))
            with np.errstate(**quiet):
                result[where] = verb.finish(task, last)
    return result


def _fold(task: _Reduction, verb: _Verb, states: Iterable[State]) -> State:
    """Combine states pair by pair, pairs of pairs, and so on, with few of them in memory."""
    stack: list[State] = []
    for number, state in enumerate(states, 1):
        stack.append(state)
        for _ in range((number & -number).bit_length() - 1):
            stack[-2:] = [verb.combine(task, *stack[-2:])]
    while len(stack) > 1:
        stack[-2:] = [verb.combine(task, *stack[-2:])]
    return stack[0]


def _repeat(task: _Reduction, verb: _Verb, state: State, n: int) -> State:
    """Combine a state with itself until it stands for `n` boxes with the same items."""
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
    """Call a function in workers with pieces of what a mapping shows, all of them, and yield the results.

    It takes a box of digits and its items, in memory that is used again. Pieces with the same box of the digits `kept`
    follow each other. With `merge`, many chunks of one value may be one piece, whose items have the stride 0.
    """
    digits = tuple((digit,) for digit in mapping.digits)
    of_digits = Mapping(mapping.shape, mapping.starts, digits, (None,) * len(digits))
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
        read(source, layout, wanted.positions, wanted.axes, wanted.view(items), nbytes)
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
    """Halve digits, the digits of `kept` first, until boxes are small; the index tells which boxes have one value."""
    digits = mapping.digits
    units = layout.blocks if layout.chunk_nbytes > _MOST_NBYTES else layout.chunks
    codes = _special_codes(source, layout) if merge else None

    def is_one(box: Box) -> bool:
        low = list(mapping.starts)
        high = list(mapping.starts)
        for (axis, _, step), i in zip(digits, box, strict=True):
            first, last = sorted((step * i.start, step * (i.stop - 1)))
            low[axis] += first
            high[axis] += last
        ranges = zip(low, high, layout.chunks, strict=True)
        touched = tuple(slice(first // chunk, last // chunk + 1) for first, last, chunk in ranges)
        values = np.asarray(codes)[touched]
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
            # As if all following digits were cut as far as possible.
            nbytes = nbytes // min(lengths[n], cells[n]) * lengths[n]
            if lengths[n] <= cells[n] or nbytes <= most:
                continue
            axis, _, step = digits[n]
            middle = _middle(box[n], mapping.starts[axis], step, units[axis])
            # The stack gives the last one first, so the halves follow each other in the order of the array.
            halves = slice(middle, box[n].stop), slice(box[n].start, middle)
            stack.extend((*box[:n], half, *box[n + 1 :]) for half in halves)
            break
        else:
            yield box, False


def _special_codes(source: Source, layout: Layout) -> npt.NDArray[Any] | None:
    """Return the offsets of all chunks on their grid, if some tell that a chunk has one value and can be trusted."""
    # A transaction must note which chunks are read, and its index does not tell which chunks it keeps open.
    if not isinstance(source, Snapshot) or source.state.annotations.lost:
        return None
    frame = source.state.frame
    if layout.itemsize != frame.typesize or layout.dtype.kind == "V":
        return None
    if frame.offsets.min() >= 0:
        return None
    return frame.offsets.reshape(layout.grid_shape)


def _middle(i: slice, base: int, step: int, unit: int) -> int:
    """Return where to cut a range of a digit: near its middle, at a border between units if one is inside."""
    middle: int = (i.start + i.stop) // 2
    if step < 0:
        # Count from the other end of the axis, where the digit ascends.
        base, step = -1 - base, -step
    border = (base + middle * step) // unit * unit
    cuts = (-((base - position) // step) for position in (border, border + unit))
    return next((cut for cut in cuts if i.start < cut < i.stop), middle)


# Sums, products and means.


def _by(ufunc: np.ufunc, converted: Callable[[Array], Array] = np.asarray) -> _Verb:
    """Return the reduction by a ufunc of the items that count; the state also has their number."""

    def piece(task: _Reduction, box: Box, items: Array) -> State:
        valid, number = task.where(box, items)
        # NumPy does not know the identity for objects.
        first = {"initial": ufunc.identity} if task.dtype == object else {}
        total = ufunc.reduce(converted(items), task.axes, task.wide, keepdims=True, where=valid, **first)
        return total, number

    def finish(task: _Reduction, state: State) -> Any:
        return ufunc.reduce(state[0], task.axes, task.wide, keepdims=True, **task.initial)

    def combine(_: _Reduction, a: State, b: State) -> State:
        items, number = a
        other_items, other_number = b
        return ufunc(items, other_items), number + other_number

    return _Verb(piece, combine, finish)


def _nonzero(items: Array) -> npt.NDArray[np.bool_]:
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


# Variance: the number of items, their mean, and the sum of squares around it.


def _moments(task: _Reduction, box: Box, items: Array) -> State:
    valid, number = task.where(box, items)
    own = items.dtype if items.dtype.kind == "c" else np.float64
    wide = np.result_type(task.wide, own)
    total = np.add.reduce(items, task.axes, wide, keepdims=True, where=valid)
    mean = total / np.maximum(number, 1)
    squares = _square(items - mean)
    return number, mean, np.add.reduce(squares, task.axes, keepdims=True, where=valid)


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
    squares = squares_a + squares_b + between
    return number, mean_a + apart * share, squares


def _var(task: _Reduction, state: State) -> Any:
    number, mean, squares = state
    if task.dtype.kind in "iu":  # NumPy takes the squares around the whole part of the mean, which are whole numbers
        mean = np.rint(mean * number) / np.maximum(number, 1)
        fraction = mean - np.trunc(mean)
        squares = np.rint(squares + number * np.square(fraction))
    few = number <= task.ddof
    if np.any(few):
        warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=2)
    freedom = np.maximum(number - task.ddof, 0)
    variance = np.true_divide(squares, freedom)
    return np.where(few, np.nan, variance) if task.skipna else variance


# Others.


def _extreme(ufunc: np.ufunc, of_known: np.ufunc) -> _Verb:
    """Return the minimum or the maximum; the second function ignores NaN."""

    def piece(task: _Reduction, box: Box, items: Array) -> State:
        valid: Any = True if task.valid is None else task.valid[box]
        chosen = of_known if task.skipna else ufunc
        return (chosen.reduce(items, task.axes, keepdims=True, where=valid, **task.initial),)

    def finish(task: _Reduction, state: State) -> Any:
        if task.skipna and np.isnan(state[0]).any():
            warnings.warn("All-NaN slice encountered", RuntimeWarning, stacklevel=2)
        return state[0]

    def combine(task: _Reduction, a: State, b: State) -> State:
        chosen = of_known if task.skipna else ufunc
        return (chosen(a[0], b[0]),)

    return _Verb(piece, combine, finish)


def _position(function: Callable[..., Any], last: float) -> _Verb:
    """Return where the first of the extreme items is, which NumPy's function finds; `last` replaces NaN.

    A state has the item, its position among all that are reduced, and whether not all are NaN.
    """

    def piece(task: _Reduction, box: Box, items: Array) -> State:
        valid: Any = np.True_
        if task.skipna:
            isnan = np.isnan(items)
            items = np.where(isnan, items.dtype.type(last), items)
            valid = ~isnan.all(task.axes, keepdims=True)
        others = [axis for axis in range(items.ndim) if axis not in task.axes]
        # One row for each item of the result.
        rows = items.transpose([*others, *task.axes])
        rows = rows.reshape(*rows.shape[: len(others)], -1)
        best = function(rows, axis=-1)
        value = np.take_along_axis(rows, best[..., None], -1)[..., 0]
        position = np.zeros_like(best)
        # NumPy splits no positions for a shape without dimensions.
        lengths = [items.shape[axis] for axis in task.axes]
        inside = np.unravel_index(best, [1, *lengths])[1:]
        for axis, along in zip(task.axes, inside, strict=True):
            position = position * task.lengths[axis] + box[axis].start + along
        return np.expand_dims(value, task.axes), np.expand_dims(position, task.axes), valid

    def combine(_: _Reduction, a: State, b: State) -> State:
        item_a, position_a, valid_a = a
        item_b, position_b, valid_b = b
        # In the order of their positions, so that the first of equal items wins.
        items = np.where(position_a < position_b, [item_a, item_b], [item_b, item_a])
        positions = np.sort([position_a, position_b], axis=0)
        later = function(items, axis=0)
        return np.choose(later, items), np.choose(later, positions), valid_a | valid_b

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
    "std": _Verb(_moments, _combine_moments, lambda task, state: np.sqrt(_var(task, state))),
    "min": _extreme(np.minimum, np.fmin),
    "max": _extreme(np.maximum, np.fmax),
    "argmin": _position(np.argmin, np.inf),
    "argmax": _position(np.argmax, -np.inf),
}
nanargmax, nanargmin, nanmax, nanmin = map(reduction, ("nanargmax", "nanargmin", "nanmax", "nanmin"))
nanmean, nanprod, nanstd, nansum, nanvar = map(reduction, ("nanmean", "nanprod", "nanstd", "nansum", "nanvar"))
