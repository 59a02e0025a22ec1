"""`Mapping`: maps the positions of a view to positions in its array, by arithmetic.

A position along an axis of the array is the start of the view plus, for each digit of the axis, the value of the digit
times its step. An axis of the view counts through its digits, the last digit fastest. Slicing changes steps, splitting
an axis splits a digit, and joining axes concatenates their digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from b2array.grid.partition import Positions
from b2array.grid.selection import Selection, select

__all__ = ["Digit", "Mapping"]

Array = npt.NDArray[Any]


class Digit(NamedTuple):
    """A count from 0 to `length` - 1. Each count moves `step` positions along an axis of the array."""

    axis: int
    length: int
    step: int

    def covering(self, extents: Sequence[int]) -> int:
        """Return the count that covers about one part of the array with these extents."""
        if not self.step:
            return 1
        counts = extents[self.axis] // abs(self.step)
        return max(1, min(self.length, counts))

    def turn(self, step: int) -> Digit:
        """Return the digit with its step multiplied by `step`; it counts backwards if `step` is negative."""
        return self._replace(step=self.step * step)


Digits = tuple[Digit, ...]
Dims = Sequence["_Dimension"]
Shape = tuple[int, ...]
Numbers = tuple[int | None, ...]
Key = tuple[Any, ...]
Arrangement = Callable[[Array], Array]

_MOST_AROUND = 4
"""The maximum ratio of read items to selected items, if more items are read to use slices instead of index arrays."""


class _Dimension(NamedTuple):
    """A dimension of a selection: `moves` along axes of the array, and the `step` of a single digit, otherwise 0."""

    length: int
    moves: dict[int, range | npt.NDArray[np.int64]]
    step: int = 0

    @property
    def extent(self) -> int:
        """The number of items of the array that are read; a repeated item is read once."""
        return self.length if self.moves else 1


@dataclass(frozen=True, slots=True)
class Mapping:
    """The part of an array that a view shows: its first item, and the digits of its axes (empty for length 1).

    Examples
    --------
    >>> turned = Mapping.of((4, 6)).transpose(1, 0)
    >>> turned.lengths, turned.slice_by((slice(None, None, -2), 3)).starts, turned.reshape((3, 8)).lengths
    ((6, 4), (3, 5), (3, 8))
    """

    shape: Shape
    starts: Shape
    axes: tuple[Digits, ...]
    numbers: Numbers
    """For each axis, the axis of the array to which it belongs, or None if the axis is split, joined or new."""

    @classmethod
    def of(cls, shape: Shape) -> Mapping:
        """Return the mapping of a view of the whole array."""
        ndim = len(shape)
        starts = (0,) * ndim
        digits = [Digit(axis, length, 1) for axis, length in enumerate(shape)]
        axes = tuple((digit,) for digit in digits)
        return cls(shape, starts, axes, tuple(range(ndim)))

    @property
    def lengths(self) -> Shape:
        """Shape of the view."""
        return tuple(_count(digits) for digits in self.axes)

    @property
    def digits(self) -> Digits:
        """The digits of all axes in order."""
        return tuple(digit for digits in self.axes for digit in digits)

    @property
    def model(self) -> Array:
        """A NumPy array of the view's shape with one item in memory, to test which arguments NumPy accepts."""
        return np.broadcast_to(np.int8(0), self.lengths)

    def transpose(self, *axes: Any) -> Mapping:
        """Reorder the axes, like `numpy.ndarray.transpose`."""
        # NumPy transposes an array in which the length of each axis is its number, so NumPy's rules and errors apply.
        ndim = len(self.axes)
        numbered = np.broadcast_to(np.int8(0), range(ndim))
        order = numbered.transpose(*axes).shape
        moved = tuple(self.axes[axis] for axis in order)
        numbers = tuple(self.numbers[axis] for axis in order)
        return replace(self, axes=moved, numbers=numbers)

    def squeeze(self, axis: Any) -> Mapping:
        """Remove axes of length 1, like `numpy.squeeze`."""
        shape = self.model.squeeze(axis).shape
        ndim = len(self.axes)
        if axis is None:
            chosen = tuple(range(ndim))
        elif isinstance(axis, tuple):
            chosen = axis
        else:
            chosen = (axis,)
        lengths = self.lengths
        gone = {number % ndim for number in chosen if lengths[number] == 1}
        numbers = [self.numbers[n] for n in range(ndim) if n not in gone]
        return replace(self.reshape(shape), numbers=tuple(numbers))

    def reshape(self, shape: Shape) -> Mapping:
        """Split and join axes, with the same number of items; raise ValueError if a split is not even."""
        numbers = self._numbers_in(shape)
        if not math.prod(shape):
            nothing = tuple((Digit(0, n, 0),) for n in shape)
            return replace(self, axes=nothing, numbers=numbers)
        # Pop the digits from the end of a list; if an axis needs only part of a digit, push the rest back.
        left = [digit for digit in self.digits if digit.length > 1]
        left.reverse()
        axes: list[Digits] = []
        for wanted in shape:
            n = wanted
            digits = []
            while n > 1:
                axis, length, step = left.pop()
                part = math.gcd(n, length)
                if part < min(length, n):
                    raise ValueError(
                        f"a view of shape {self.lengths} splits and joins whole axes only, which shape {shape} "
                        "does not; a[...].reshape() reads the items"
                    )
                rest = length // part
                if rest > 1:
                    left.append(Digit(axis, rest, step))
                digits.append(Digit(axis, part, step * rest))
                n //= part
            axes.append(_merge(digits))
        return replace(self, axes=tuple(axes), numbers=numbers)

    def _numbers_in(self, shape: Shape) -> Numbers:
        """Return `numbers` for another shape: an axis is the same if the number of items on each side is unchanged."""
        if shape == self.lengths:
            return self.numbers
        if not math.prod(shape):
            return (None,) * len(shape)
        # The number of items on the outer side of an axis and its length determine the number on the inner side.
        before = {}
        outer = 1
        for length, number in zip(self.lengths, self.numbers, strict=True):
            if length > 1:
                before[outer, length] = number
            outer *= length
        numbers = []
        outer = 1
        for length in shape:
            number = before.get((outer, length))
            numbers.append(number)
            outer *= length
        return tuple(numbers)

    def slice_by(self, key: Any) -> Mapping:
        """Select by a key of integers, slices, Ellipsis and None; on joined axes, a part of one row or whole rows."""
        selection = select(key, self.lengths)
        if selection.kind not in ("basic", "scalar"):
            raise IndexError(
                f"a view takes integers, slices, ellipsis (`...`) and None, found {key!r}; a[key] reads the rest"
            )
        starts = list(self.starts)
        ndim = len(self.axes)
        slices = cast(tuple[slice, ...], selection.positions)
        # A selection has ascending slices; flips reverse the slices whose step is negative in the key.
        flips = selection.flips or (slice(None),) * ndim
        axes = []
        for axis, length in enumerate(self.lengths):
            ascending = range(length)[slices[axis]]
            along = ascending[flips[axis]]
            axes.append(self._take(axis, along, starts))
        unnumbered = (None,) * ndim
        taken = Mapping(self.shape, tuple(starts), tuple(axes), unnumbered)
        # Integers leave axes of length 1, which are not in the selection's shape.
        reshaped = taken.reshape(selection.shape)
        return replace(reshaped, numbers=self._numbers_after(key))

    def _numbers_after(self, key: Any) -> Numbers:
        """Return `numbers` for the selection by a key of integers, slices, Ellipsis and None."""
        entries = key if isinstance(key, tuple) else (key,)
        taking = [entry for entry in entries if entry is not None and entry is not Ellipsis]
        absent = len(self.numbers) - len(taking)
        # Remaining axes are whole; they replace the ellipsis, or follow at the end.
        ellipses = [n for n, entry in enumerate(entries) if entry is Ellipsis]
        at = ellipses[0] if ellipses else len(entries)
        before = entries[:at]
        after = entries[at + 1 :]
        whole = [slice(None)] * absent
        left = iter(self.numbers)
        numbers: list[int | None] = []
        for entry in (*before, *whole, *after):
            number = None if entry is None else next(left)
            # Integers drop their axis.
            if entry is None or isinstance(entry, slice):
                numbers.append(number)
        return tuple(numbers)

    def _take(self, number: int, positions: range, starts: list[int]) -> Digits:
        """Restrict the digits of an axis to positions along it, and move `starts` to the first position."""
        if not positions:
            return (Digit(0, 0, 0),)
        digits = _varying(self.axes[number], positions)
        row = _count(digits[1:])
        count = len(positions)
        is_contiguous = abs(positions.step) == 1
        takes_rows = is_contiguous and count % row == 0 and min(positions) % row == 0
        result: Digits = ()
        if count > 1 and len(digits) == 1:
            (only,) = digits
            stepped = only.turn(positions.step)
            result = (stepped._replace(length=count),)
        elif count > 1 and takes_rows:
            turned = [digit.turn(positions.step) for digit in digits]
            outer = turned[0]._replace(length=count // row)
            result = (outer, *turned[1:])
        elif count > 1:
            raise ValueError(
                f"axis {number} joins axes of the array: a view takes positions in one row, or whole rows of {row}, "
                f"not {positions}; v[key] reads the items"
            )
        first = positions.start
        for digit in reversed(self.axes[number]):
            first, position = divmod(first, digit.length)
            starts[digit.axis] += digit.step * position
        return result

    def covering(self, extents: Sequence[int]) -> Shape:
        """Return extents of the view that cover about one part of the array with these extents."""
        covered = []
        for digits in self.axes:
            # A part cuts only the outermost digit, so that a view of the part consists of whole rows.
            rows = digits[0].covering(extents) if digits else 1
            row = _count(digits[1:])
            covered.append(rows * row)
        return tuple(covered)

    def locate(self, selection: Selection) -> tuple[Key, Arrangement]:
        """Return the key of a selection of the view in the array, and a function that arranges the items.

        The key is for `vectorised`, and reads the items in the order of storage. The function turns these items into
        the result of the selection, and copies only if it joins axes or repeats items.
        """
        if 0 in selection.box:

            def empty(items: Array) -> Array:
                return np.empty(selection.shape, items.dtype)

            nothing = [slice(0)] * len(self.shape)
            return (*nothing, ...), empty
        starts = list(self.starts)
        axes = range(len(self.axes))
        factors = selection.axes or [(axis,) for axis in axes]
        trims: list[Any] = []
        each = []
        for positions, of_factor in zip(selection.positions, factors, strict=True):
            covered, trim = self._widen(positions, of_factor)
            trims.append(trim)
            each.append(self._dimensions(covered, of_factor, starts))
        dims = list(chain.from_iterable(each))
        # A run of digits that alone moves along an axis becomes a slice. All other digits become index arrays.
        key: list[Any] = []
        straight: list[int] = []
        for axis, start in enumerate(starts):
            along = _moving(dims, axis)
            run = _run(dims, axis, along)
            if run is None:
                key.append(None)
                continue
            straight += along
            key.append(_slice_of(run, start))
        joint = [n for n in range(len(dims)) if n not in straight]
        for axis, start in enumerate(starts):
            if key[axis] is None:
                moves = [dims[n].moves.get(axis, (0,)) for n in joint]
                key[axis] = sum(np.ix_(*moves), start)

        def arrange(items: Array) -> Array:
            # `vectorised` puts the dimensions of index arrays first.
            order = [*joint, *straight]
            extents = [dims[n].extent for n in order]
            box = items.reshape(extents).transpose(np.argsort(order))
            for n, dim in enumerate(dims):
                if not dim.moves:
                    box = box.repeat(dim.length, n)
            lengths = [math.prod(dim.length for dim in of_factor) for of_factor in each]
            joined = box.reshape(lengths)
            trimmed = joined[(*trims, ...)]
            box = trimmed[selection.flips or ...]
            wanted = selection.order or range(box.ndim)
            ordered: Array = box.transpose(np.argsort(wanted))
            return ordered.reshape(selection.shape)

        return (*key, ...), arrange  # with an ellipsis, even a single item is an array

    def _widen(self, positions: Positions, axes: Sequence[int]) -> tuple[Positions, slice]:
        """Widen a part of joined axes to whole rows unless these are far longer; also return the slice of the part.

        Whole rows are slices of the array, which are read faster than index arrays.
        """
        digits = self.axes[axes[0]]
        if not isinstance(positions, slice) or len(digits) == 1:
            return positions, slice(None)
        along = range(positions.start, positions.stop, positions.step)
        inner = _count(_varying(digits, along)[1:])
        first = along[0]
        last = along[-1]
        low = first // inner * inner
        high = (last // inner + 1) * inner
        if high - low > _MOST_AROUND * len(along):
            return positions, slice(None)
        rows = slice(low, high, 1)
        part = slice(first - low, last + 1 - low, along.step)
        return rows, part

    def _dimensions(
        self,
        positions: Positions,
        axes: Sequence[int],
        starts: list[int],
    ) -> list[_Dimension]:
        """Return the dimensions of a factor of a selection, and move `starts` to the first item of the factor."""
        if isinstance(positions, slice):
            along = range(positions.start, positions.stop, positions.step)
            try:
                digits = self._take(axes[0], along, starts)
            except ValueError:  # the positions on joined axes do not form a box
                positions = np.asarray(along)[None]
            else:
                return [_straight(digit) for digit in digits]
        moves: dict[int, Any] = {}
        for rest, number in zip(positions, axes, strict=True):
            for axis, length, step in reversed(self.axes[number]):
                rest, counted = np.divmod(rest, length)  # noqa: PLW2901
                move = counted * step
                moves[axis] = moves.get(axis, 0) + move
        return [_Dimension(positions.shape[1], moves)]


def _count(digits: Digits) -> int:
    """Return the number of positions that digits count through together."""
    return math.prod(digit.length for digit in digits)


def _straight(digit: Digit) -> _Dimension:
    """Return the dimension of a single digit."""
    axis, length, step = digit
    moves = range(0, length * step, step)
    return _Dimension(length, {axis: moves}, step)


def _moving(dims: Dims, axis: int) -> list[int]:
    """Return the numbers of the dimensions that move along an axis of the array, longest steps first."""
    moving = [n for n, dim in enumerate(dims) if axis in dim.moves]
    return sorted(moving, key=lambda n: abs(dims[n].step), reverse=True)


def _run(dims: Dims, axis: int, along: Sequence[int]) -> Digit | None:
    """Merge the dimensions along an axis into a single digit; return None if they need index arrays."""
    digits = []
    for n in along:
        dim = dims[n]
        if not dim.step:
            return None
        digits.append(Digit(axis, dim.length, dim.step))
    merged = _merge(digits) or (Digit(axis, 1, 1),)
    return merged[0] if len(merged) == 1 else None


def _slice_of(run: Digit, start: int) -> slice:
    stop = start + run.length * run.step
    # As the stop of a slice, a negative number would count from the end of the axis.
    return slice(start, stop if stop >= 0 else None, run.step)


def _varying(digits: Digits, positions: range) -> Digits:
    """Return the last digits of an axis, at least one, that vary along the positions."""
    while len(digits) > 1:
        inner = _count(digits[1:])
        if positions[0] // inner != positions[-1] // inner:
            break
        digits = digits[1:]
    return digits


def _merge(digits: Iterable[Digit]) -> Digits:
    """Merge digits that continue along the same axis, and drop digits of length 1."""
    merged: list[Digit] = []
    for digit in digits:
        if merged and _continues(merged[-1], digit):
            outer = merged[-1]
            merged[-1] = digit._replace(length=outer.length * digit.length)
        elif digit.length != 1:
            merged.append(digit)
    return tuple(merged)


def _continues(outer: Digit, inner: Digit) -> bool:
    """Return whether the outer digit continues at the end of the inner digit."""
    if outer.axis != inner.axis or not outer.step:
        return False
    return outer.step == inner.step * inner.length
