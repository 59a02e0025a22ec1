"""`Mapping`: what a view shows of an array, as arithmetic of positions.

A position along an axis of the array is where the view begins plus, for each digit that belongs to the axis, the digit
times its step. An axis of the view counts through its digits, the last one fastest. Slicing changes steps, splitting an
axis splits a digit, joining axes puts their digits together.
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
        """Return how far to count to cover about one part of the array with these extents."""
        return max(1, min(self.length, extents[self.axis] // abs(self.step))) if self.step else 1


Digits = tuple[Digit, ...]

_MOST_AROUND = 4
"""We read at most this many times the items that are wanted."""


class _Dimension(NamedTuple):
    """A dimension of a selection: how far it goes along axes of the array. `step` is a digit's step, else 0."""

    length: int
    moves: dict[int, range | npt.NDArray[np.int64]]
    step: int = 0


@dataclass(frozen=True, slots=True)
class Mapping:
    """The part of an array that a view shows: its first item, and the digits of its axes (none at length 1).

    Examples
    --------
    >>> turned = Mapping.of((4, 6)).transpose(1, 0)
    >>> turned.lengths, turned.slice_by((slice(None, None, -2), 3)).starts, turned.reshape((3, 8)).lengths
    ((6, 4), (3, 5), (3, 8))
    """

    shape: tuple[int, ...]
    starts: tuple[int, ...]
    axes: tuple[Digits, ...]
    numbers: tuple[int | None, ...]
    """For each axis, the axis of the array that it is, or is a part of; None for one that is split, joined or new."""

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Mapping:
        """Return the mapping of a view of all items as they are."""
        axes = tuple((Digit(axis, n, 1),) for axis, n in enumerate(shape))
        return cls(shape, (0,) * len(shape), axes, tuple(range(len(shape))))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Shape of the view."""
        return tuple(math.prod(digit.length for digit in digits) for digits in self.axes)

    @property
    def digits(self) -> Digits:
        """The digits of all axes in order."""
        return tuple(digit for digits in self.axes for digit in digits)

    @property
    def model(self) -> Array:
        """A NumPy array of the view's shape with one item in memory, to find out what NumPy accepts."""
        return np.broadcast_to(np.int8(0), self.lengths)

    def transpose(self, *axes: Any) -> Mapping:
        """Reorder the axes, as `numpy.ndarray.transpose`."""
        numbered = np.broadcast_to(np.int8(0), range(len(self.axes)))  # the length of an axis is its number
        order = numbered.transpose(*axes).shape
        moved = tuple(self.axes[axis] for axis in order)
        numbers = tuple(self.numbers[axis] for axis in order)
        return replace(self, axes=moved, numbers=numbers)

    def squeeze(self, axis: Any) -> Mapping:
        """Leave out axes of length 1, as `numpy.squeeze`."""
        shape = self.model.squeeze(axis).shape
        ndim = len(self.axes)
        if axis is None:
            chosen = tuple(range(ndim))
        else:
            chosen = axis if isinstance(axis, tuple) else (axis,)
        gone = {number % ndim for number in chosen if self.lengths[number] == 1}
        kept = tuple(number for n, number in enumerate(self.numbers) if n not in gone)
        return replace(self.reshape(shape), numbers=kept)

    def reshape(self, shape: tuple[int, ...]) -> Mapping:
        """Split and join axes; raise ValueError where a split is not even. The number of items stays."""
        numbers = self._numbers_in(shape)
        if not math.prod(shape):
            nothing = tuple((Digit(0, n, 0),) for n in shape)
            return replace(self, axes=nothing, numbers=numbers)
        # Take the digits from the last one of a list; where an axis needs only a part of one, the rest goes back.
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

    def _numbers_in(self, shape: tuple[int, ...]) -> tuple[int | None, ...]:
        """Return `numbers` in another shape: an axis stays if as many items as before lie on both of its sides."""
        if shape == self.lengths:
            return self.numbers
        if not math.prod(shape):
            return (None,) * len(shape)
        before = {}
        outer = 1
        for length, number in zip(self.lengths, self.numbers, strict=True):
            if length > 1:
                before[outer, length] = number
            outer *= length
        numbers, outer = [], 1
        for length in shape:
            numbers.append(before.get((outer, length)))
            outer *= length
        return tuple(numbers)

    def slice_by(self, key: Any) -> Mapping:
        """Take what a key of integers, slices, Ellipsis and None selects; on joined axes, part of a row or rows."""
        selection = select(key, self.lengths)
        if selection.kind not in ("basic", "scalar"):
            raise IndexError(
                f"a view takes integers, slices, ellipsis (`...`) and None, found {key!r}; a[key] reads the rest"
            )
        starts = list(self.starts)
        flips = selection.flips or (slice(None),) * len(self.axes)
        slices = cast(tuple[slice, ...], selection.positions)
        axes = []
        for axis, (n, part, flip) in enumerate(zip(self.lengths, slices, flips, strict=True)):
            along = range(n)[part][flip]
            axes.append(self._take(axis, along, starts))
        taken = Mapping(self.shape, tuple(starts), tuple(axes), (None,) * len(axes))
        # Integers have left axes of length 1.
        return replace(taken.reshape(selection.shape), numbers=self._numbers_after(key))

    def _numbers_after(self, key: Any) -> tuple[int | None, ...]:
        """Return `numbers` of what a key of integers, slices, Ellipsis and None selects."""
        entries = key if isinstance(key, tuple) else (key,)
        taking = sum(entry is not None and entry is not Ellipsis for entry in entries)
        rest = [slice(None)] * (len(self.numbers) - taking)
        ellipses = (n for n, entry in enumerate(entries) if entry is Ellipsis)
        at = next(ellipses, len(entries))
        left = iter(self.numbers)
        numbers: list[int | None] = []
        for entry in (*entries[:at], *rest, *entries[at + 1 :]):
            number = None if entry is None else next(left)
            # Integers drop their axis.
            if entry is None or isinstance(entry, slice):
                numbers.append(number)
        return tuple(numbers)

    def _take(self, number: int, positions: range, starts: list[int]) -> Digits:
        """Restrict the digits of an axis to positions along it, and move `starts` to the first one."""
        if not positions:
            return (Digit(0, 0, 0),)
        digits = _varying(self.axes[number], positions)
        inner = math.prod(digit.length for digit in digits[1:])
        first, step, count = positions.start, positions.step, len(positions)
        takes_rows = abs(step) == 1 and count % inner == 0 and min(positions) % inner == 0
        result: Digits = ()
        if count > 1 and len(digits) == 1:
            (only,) = digits
            result = (Digit(only.axis, count, only.step * step),)
        elif count > 1 and takes_rows:
            outer, *rest = (digit._replace(step=digit.step * step) for digit in digits)
            result = (outer._replace(length=count // inner), *rest)
        elif count > 1:
            raise ValueError(
                f"axis {number} joins axes of the array: a view takes positions in one row, or whole rows of {inner}, "
                f"not {positions}; v[key] reads the items"
            )
        for digit in reversed(self.axes[number]):
            first, position = divmod(first, digit.length)
            starts[digit.axis] += digit.step * position
        return result

    def covering(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Return extents of the view that cover about one part of the array with these extents."""
        covered = []
        for digits in self.axes:
            outer = [digit.covering(extents) for digit in digits[:1]]
            inner = [digit.length for digit in digits[1:]]
            covered.append(math.prod([*outer, *inner]))
        return tuple(covered)

    def locate(self, selection: Selection) -> tuple[tuple[Any, ...], Callable[[Array], Array]]:
        """Return where the items of a selection of the view are, and a function that arranges them.

        The first is a key of the array for `vectorised`, which takes the items in the order of storage. The function
        makes the selection's result of them, and copies only where it joins axes or repeats items.
        """
        if 0 in selection.box:
            nothing = (slice(0) for _ in self.shape)
            return (*nothing, ...), lambda items: np.empty(selection.shape, items.dtype)
        starts = list(self.starts)
        factors = selection.axes or [(axis,) for axis in range(len(self.axes))]
        trims: list[Any] = []
        each = []
        for positions, of_factor in zip(selection.positions, factors, strict=True):
            covered, trim = self._widen(positions, of_factor)
            trims.append(trim)
            each.append(self._dimensions(covered, of_factor, starts))
        dims = list(chain.from_iterable(each))
        # A run of digits that has an axis to itself becomes a slice. All others become index arrays.
        key: list[Any] = []
        straight: list[int] = []
        for axis, start in enumerate(starts):
            along = [n for n, dim in enumerate(dims) if axis in dim.moves]
            along.sort(key=lambda n: -abs(dims[n].step))
            moving = (Digit(axis, dims[n].length, dims[n].step) for n in along)
            digits = _merge(moving) or (Digit(axis, 1, 1),)
            if len(digits) > 1 or not all(dims[n].step for n in along):
                key.append(None)
                continue
            straight += along
            ((_, count, step),) = digits
            stop = start + count * step
            key.append(slice(start, stop if stop >= 0 else None, step))
        joint = [n for n in range(len(dims)) if n not in straight]
        for axis, start in enumerate(starts):
            if key[axis] is None:
                moves = [dims[n].moves.get(axis, (0,)) for n in joint]
                key[axis] = sum(np.ix_(*moves), start)

        def arrange(items: Array) -> Array:
            order = [*joint, *straight]
            lengths = [dims[n].length if dims[n].moves else 1 for n in order]
            box = items.reshape(lengths).transpose(np.argsort(order))
            for n, dim in enumerate(dims):
                if not dim.moves:
                    box = box.repeat(dim.length, n)
            joined = [math.prod(dim.length for dim in of_factor) for of_factor in each]
            box = box.reshape(joined)[(*trims, ...)]
            box = box[selection.flips or ...]
            ordered: Array = box.transpose(np.argsort(selection.order or range(box.ndim)))
            return ordered.reshape(selection.shape)

        return (*key, ...), arrange  # with an ellipsis, even a single item is an array

    def _widen(self, positions: Positions, axes: Sequence[int]) -> tuple[Positions, slice]:
        """Widen a part of joined axes to whole rows, and say where in them the part is; not if they are far longer.

        Rows are slices of the array, which need no index arrays.
        """
        digits = self.axes[axes[0]]
        if not isinstance(positions, slice) or len(digits) == 1:
            return positions, slice(None)
        along = range(positions.start, positions.stop, positions.step)
        inner = math.prod(digit.length for digit in _varying(digits, along)[1:])
        first, last = along[0], along[-1]
        low = first // inner * inner
        high = (last // inner + 1) * inner
        if high - low > _MOST_AROUND * len(along):
            return positions, slice(None)
        return slice(low, high, 1), slice(first - low, last + 1 - low, along.step)

    def _dimensions(
        self,
        positions: Positions,
        axes: Sequence[int],
        starts: list[int],
    ) -> list[_Dimension]:
        """Return the dimensions of one factor of a selection, and move `starts` to its first item."""
        if isinstance(positions, slice):
            along = range(positions.start, positions.stop, positions.step)
            try:
                digits = self._take(axes[0], along, starts)
            except ValueError:  # a part of joined axes that is not a box
                positions = np.asarray(along)[None]
            else:
                return [_Dimension(n, {axis: range(0, n * step, step)}, step) for axis, n, step in digits]
        moves: dict[int, Any] = {}
        for rest, number in zip(positions, axes, strict=True):
            for axis, length, step in reversed(self.axes[number]):
                rest, moved = np.divmod(rest, length)  # noqa: PLW2901
                moves[axis] = moves.get(axis, 0) + moved * step
        return [_Dimension(positions.shape[1], moves)]


def _varying(digits: Digits, positions: range) -> Digits:
    """Return the last digits of an axis that differ along the positions, at least one."""
    while len(digits) > 1:
        inner = math.prod(digit.length for digit in digits[1:])
        if positions[0] // inner != positions[-1] // inner:
            break
        digits = digits[1:]
    return digits


def _merge(digits: Iterable[Digit]) -> Digits:
    """Merge digits that continue along the same axis, and drop digits of length 1."""
    merged: list[Digit] = []
    for axis, length, step in digits:
        if merged and merged[-1].axis == axis and merged[-1].step == step * length != 0:
            merged[-1] = Digit(axis, merged[-1].length * length, step)
        elif length != 1:
            merged.append(Digit(axis, length, step))
    return tuple(merged)
