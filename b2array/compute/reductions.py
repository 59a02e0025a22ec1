"""Reductions in bounded memory: a state of each piece, states combined pair by pair, and a result of the last one.

Pairs are combined as in NumPy's pairwise sum, so that the error of a sum grows with the logarithm of the number of
items. Sums of short floats are kept in double precision. A part of the result is finished as soon as all its pieces are
there, so that only a few pieces are in memory beside it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array import progress
from b2array.compute.mapping import Mapping
from b2array.compute.pieces import Box, pieces
from b2array.engine.source import Source
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.grid.layout import Layout

__all__ = ["Axis", "reduce"]

Array = npt.NDArray[Any]
Axis = int | tuple[int, ...] | None
State = tuple[Any, ...]
"""Arrays with an extent of 1 along the axes that are reduced, or numbers."""


@dataclass(frozen=True, slots=True)
class _Task:
    """A reduction as it was asked for; axes are digits (see `b2array.compute.mapping`).

    `dtype` is the result's and `wide` that of sums; `valid` says which items count, None: all; `given` has the initial
    value, if there is one. With `skipna`, NaN does not count.
    """

    lengths: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: np.dtype[Any]
    wide: Any
    valid: npt.NDArray[np.bool_] | None
    given: dict[str, Any]
    ddof: float
    skipna: bool

    def where(self, box: Box, items: Array) -> Any:
        """Return which items count, True for all."""
        valid: Any = True if self.valid is None else self.valid[box]
        known = ~np.isnan(items) if self.skipna else np.True_
        return valid if known.all() else valid & known

    def count(self, items: Array, valid: Any) -> Any:
        """Count the items that count."""
        if valid is True:
            return math.prod(items.shape[axis] for axis in self.axes)
        return np.add.reduce(np.broadcast_to(valid, items.shape), self.axes, np.int64, keepdims=True)

    def over(self, total: Array, number: Any) -> Any:
        """Divide, as NumPy's nan-variants do without a warning."""
        with np.errstate(**dict.fromkeys(["divide", "invalid"] * self.skipna, "ignore")):  # type: ignore[arg-type]
            return np.true_divide(total, number)


@dataclass(frozen=True, slots=True)
class _Verb:
    """A reduction: a state of the items in a box, one state of two, the result, and the state of `n` equal items."""

    piece: Callable[[_Task, Box, Array], State]
    combine: Callable[[_Task, State, State], State]
    finish: Callable[[_Task, State], Any] = lambda _, state: state[0]
    repeat: Callable[[State, int], State] = lambda state, _: state


def reduce(
    a: Any, name: str, axis: Any = None, dtype: Any = None, out: object = None, keepdims: bool = False, *,
    skipna: bool = False, progress: bool = False, **given: Any,
) -> Any:  # fmt: skip
    """Reduce an array or a view as NumPy's function `name` does; with `skipna`, as that function's nan-variant.

    Parameters
    ----------
    a : Readable
    name : str
    axis, dtype, out, keepdims
        As in NumPy; `out` must be None.
    skipna : bool
        Whether to leave out NaN.
    progress : bool
        Whether to show progress on stderr.
    **given
        What else the function takes: where, initial, ddof.
    """
    if out is not None:
        raise TypeError("reductions return new results: out must be None")
    if dtype is not None:
        given["dtype"] = dtype
    function = getattr(np, f"nan{name}" if skipna else name)
    if not a.size:
        return function(np.empty(a.shape, a.dtype), axis=axis, keepdims=keepdims, **given)
    valid = None
    if given.get("where", True) is not True:
        valid = np.broadcast_to(given["where"], a.shape)
        given["where"] = np.ones((), valid.dtype)
    # What NumPy makes of one item: the type of the result, or an error.
    options = given | ({"ddof": 0} if "ddof" in given else {})
    with np.errstate(all="ignore"):
        model = np.asarray(function(np.zeros((1,) * a.ndim, a.dtype), axis=axis, keepdims=True, **options))
    # NumPy reduces an array without dimensions along axis 0, too.
    everything = axis is None or not a.ndim
    reduced = range(a.ndim) if everything else np.lib.array_utils.normalize_axis_tuple(axis, a.ndim)
    skipna = skipna and a.dtype.kind in ("fcmM" if name in ("min", "max") else "fc")
    source = a._handle.source
    while True:
        try:
            layout = source.state.require_layout()
            task, mapping = _task(a._mapping(layout.shape), reduced, model.dtype, valid, given, skipna=skipna)
            found = _reduced(source, layout, mapping, task, _VERBS[name], show=name if progress else "")
            break
        except (FormatError, UnsupportedError, ConflictError) as error:
            source = a._handle.recover(source, error)
    shape = [1 if k in reduced else n for k, n in enumerate(a.shape) if keepdims or k not in reduced]
    return found.reshape(shape)[() if not shape else ...]


def _task(
    mapping: Mapping, reduced: Iterable[int], dtype: np.dtype[Any], valid: Any, given: dict[str, Any], *, skipna: bool
) -> tuple[_Task, Mapping]:
    lengths = tuple(digit.length for digit in mapping.digits)
    of_digits = [axis for axis, digits in enumerate(mapping.axes) for _ in digits]
    axes = tuple(n for n, axis in enumerate(of_digits) if axis in set(reduced))
    wide = {"f2": "f8", "f4": "f8", "c8": "c16"}.get(dtype.str[1:], dtype if dtype.kind in "biufc" else None)
    # Splitting dimensions of a broadcast array does not copy it.
    valid = None if valid is None else valid.reshape(lengths)
    initial = {"initial": given["initial"]} if given.get("initial") is not None else {}
    return _Task(lengths, axes, dtype, wide, valid, initial, given.get("ddof", 0), skipna), mapping


def _reduced(source: Source, layout: Layout, mapping: Mapping, task: _Task, verb: _Verb, *, show: str) -> Array:
    """Return the result with an extent of 1 along the digits that are reduced."""
    kept = [axis for axis in range(len(task.lengths)) if axis not in task.axes]
    error = np.geterr()  # threads have settings of their own

    def state(box: Box, items: Array) -> tuple[Box, State]:
        with np.errstate(**error):
            if items.size == 1 or any(items.strides):
                return box, verb.piece(task, box, items)
            one = verb.piece(task, box, items[(slice(0, 1),) * items.ndim])
            return box, verb.repeat(one, math.prod(items.shape[axis] for axis in task.axes))

    def place(found: tuple[Box, State]) -> Box:
        return tuple(slice(0, 1) if axis in task.axes else i for axis, i in enumerate(found[0]))

    result = np.empty([1 if axis in task.axes else n for axis, n in enumerate(task.lengths)], task.dtype)
    nbytes = math.prod(task.lengths) * layout.itemsize
    with progress.track(nbytes, f"{show} of {source.url}", bool(show)) as shown:

        def counted() -> Iterator[tuple[Box, State]]:
            for box, found in pieces(source, layout, mapping, kept, state, merge=task.valid is None):
                yield box, found
                shown.advance(math.prod(i.stop - i.start for i in box) * layout.itemsize)

        for where, column in groupby(counted(), place):
            result[where] = verb.finish(task, _folded(task, verb, (found for _, found in column)))
    return result


def _folded(task: _Task, verb: _Verb, states: Iterable[State]) -> State:
    """Combine states pair by pair, pairs of pairs, and so on, with few of them in memory."""
    stack: list[State] = []
    for number, state in enumerate(states, 1):
        stack.append(state)
        for _ in range((number & -number).bit_length() - 1):
            stack[-2:] = [verb.combine(task, *stack[-2:])]
    while len(stack) > 1:
        stack[-2:] = [verb.combine(task, *stack[-2:])]
    return stack[0]


# Sums and products.


def _sum(task: _Task, box: Box, items: Array) -> State:
    valid = task.where(box, items)
    return np.add.reduce(items, task.axes, task.wide, keepdims=True, where=valid), task.count(items, valid)


def _add(_: _Task, a: State, b: State) -> State:
    return tuple(map(np.add, a, b))


def _begun(ufunc: np.ufunc) -> Callable[[_Task, State], Any]:
    """Return what takes the initial value into account, which NumPy converts."""
    return lambda task, state: ufunc.reduce(state[0], task.axes, task.wide, keepdims=True, **task.given)


def _repeat_sum(state: State, n: int) -> State:
    total, number = state
    # In complex arithmetic, infinity times a number would be NaN.
    flat = total.view(total.real.dtype) if total.dtype.kind == "c" else total
    factor = np.asarray(n).astype(flat.dtype) if flat.dtype.kind in "iu" else n
    return np.multiply(flat, factor).view(total.dtype), number * n


def _prod(task: _Task, box: Box, items: Array) -> State:
    return (np.multiply.reduce(items, task.axes, task.wide, keepdims=True, where=task.where(box, items)),)


def _repeat_prod(state: State, n: int) -> State:
    (product,) = state
    if product.dtype.kind not in "iu":
        return (np.power(product, n),)
    # Integers wrap around.
    return (np.full(product.shape, pow(int(product.item()), n, 2**64), np.uint64).astype(product.dtype),)


def _mean(task: _Task, state: State) -> Any:
    total, number = state
    if not np.all(number):
        warnings.warn("Mean of empty slice", RuntimeWarning, stacklevel=2)
    return task.over(total, number)


# Variance: the number of items, their mean, and the sum of squares around it.


def _moments(task: _Task, box: Box, items: Array) -> State:
    valid = task.where(box, items)
    number = task.count(items, valid)
    wide = np.result_type(task.wide, items.dtype) if items.dtype.kind == "c" else task.wide
    mean = np.add.reduce(items, task.axes, wide, keepdims=True, where=valid) / np.maximum(number, 1)
    return number, mean, np.add.reduce(_squared(items - mean), task.axes, keepdims=True, where=valid)


def _squared(x: Any) -> Any:
    return np.square(x.real) + np.square(x.imag) if np.iscomplexobj(x) else np.square(x)


def _combine_moments(_: _Task, a: State, b: State) -> State:
    # Source: Chan, Golub, LeVeque: "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances".
    number, apart = a[0] + b[0], b[1] - a[1]
    share = b[0] / np.maximum(number, 1)
    return number, a[1] + apart * share, a[2] + b[2] + _squared(apart) * (a[0] * share)


def _var(task: _Task, state: State) -> Any:
    number, _, squares = state
    few = number <= task.ddof
    if np.any(few):
        warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=2)
    found = task.over(squares, np.maximum(number - task.ddof, 0))
    return np.where(few, np.nan, found) if task.skipna else found


# Others.


def _extreme(ufunc: np.ufunc, of_known: np.ufunc) -> _Verb:
    """Return the minimum or the maximum; the second function ignores NaN."""

    def piece(task: _Task, box: Box, items: Array) -> State:
        valid: Any = True if task.valid is None else task.valid[box]
        chosen = of_known if task.skipna else ufunc
        return (chosen.reduce(items, task.axes, keepdims=True, where=valid, **task.given),)

    def combine(task: _Task, a: State, b: State) -> State:
        return ((of_known if task.skipna else ufunc)(a[0], b[0]),)

    def finish(task: _Task, state: State) -> Any:
        if task.skipna and np.isnan(state[0]).any():
            warnings.warn("All-NaN slice encountered", RuntimeWarning, stacklevel=2)
        return state[0]

    return _Verb(piece, combine, finish)


def _logical(function: Callable[..., Any], ufunc: np.ufunc) -> _Verb:
    def piece(task: _Task, box: Box, items: Array) -> State:
        return (function(items, axis=task.axes, keepdims=True, where=task.where(box, items)),)

    return _Verb(piece, lambda _, a, b: (ufunc(a[0], b[0]),))


def _count(task: _Task, _: Box, items: Array) -> State:
    return (np.add.reduce(items.astype(bool), task.axes, np.int64, keepdims=True),)


def _position(function: Callable[..., Any], last: float) -> _Verb:
    """Return where the first of the extreme items is, which NumPy's function finds; `last` replaces NaN.

    A state has the item, its position among all that are reduced, and whether not all are NaN.
    """

    def piece(task: _Task, box: Box, items: Array) -> State:
        known: Any = np.True_
        if task.skipna:
            isnan = np.isnan(items)
            items, known = np.where(isnan, items.dtype.type(last), items), ~isnan.all(task.axes, keepdims=True)
        rows = items.transpose([*(axis for axis in range(items.ndim) if axis not in task.axes), *task.axes])
        rows = rows.reshape(*rows.shape[: items.ndim - len(task.axes)], -1)
        rest = np.expand_dims(function(rows, axis=-1), -1)
        value = np.take_along_axis(rows, rest, -1)
        position, stride = np.zeros_like(rest), 1
        for axis in reversed(task.axes):
            rest, inside = np.divmod(rest, items.shape[axis])
            position += (inside + box[axis].start) * stride
            stride *= task.lengths[axis]
        shape = [1 if axis in task.axes else n for axis, n in enumerate(items.shape)]
        return value.reshape(shape), position.reshape(shape), known

    def combine(_: _Task, a: State, b: State) -> State:
        first = a[1] < b[1]
        low, high = np.where(first, a[0], b[0]), np.where(first, b[0], a[0])
        later = function(np.stack([low, high]), axis=0)
        positions = np.where(later, np.maximum(a[1], b[1]), np.minimum(a[1], b[1]))
        return np.where(later, high, low), positions, a[2] | b[2]

    def finish(_: _Task, state: State) -> Any:
        if not np.all(state[2]):
            raise ValueError("All-NaN slice encountered")
        return state[1]

    return _Verb(piece, combine, finish)


_VERBS = {
    "sum": _Verb(_sum, _add, _begun(np.add), _repeat_sum),
    "prod": _Verb(_prod, lambda _, a, b: (a[0] * b[0],), _begun(np.multiply), _repeat_prod),
    "mean": _Verb(_sum, _add, _mean, _repeat_sum),
    "var": _Verb(_moments, _combine_moments, _var, lambda state, n: (state[0] * n, state[1], state[2] * n)),
    "std": _Verb(
        _moments, _combine_moments, lambda task, state: np.sqrt(_var(task, state)),
        lambda state, n: (state[0] * n, state[1], state[2] * n),
    ),
    "min": _extreme(np.minimum, np.fmin),
    "max": _extreme(np.maximum, np.fmax),
    "any": _logical(np.any, np.logical_or),
    "all": _logical(np.all, np.logical_and),
    "count_nonzero": _Verb(_count, _add, repeat=lambda state, n: (state[0] * n,)),
    "argmin": _position(np.argmin, np.inf),
    "argmax": _position(np.argmax, -np.inf),
}  # fmt: skip
