"""`Mapping`: what a view shows of an array, as arithmetic of positions.

A position along an axis of the array is where the view begins plus, for each digit that belongs to the axis, the digit
times its step. An axis of the view counts through its digits, the last one fastest. Slicing changes steps, splitting an
axis splits a digit, joining axes puts their digits together.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from b2array.grid import selection

__all__ = ["Digit", "Mapping"]


class Digit(NamedTuple):
    """A count of 0 to `length` - 1, each of which moves on by `step` positions along an axis of the array."""

    axis: int
    length: int
    step: int


Digits = tuple[Digit, ...]

_NONE = (Digit(0, 0, 0),)
"""The digits of an axis without positions."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """What a view shows of an array.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    starts : tuple of int
        Where the view begins along each axis of the array.
    axes : tuple of tuple of Digit
        The digits of each axis of the view; none where its length is 1.

    Examples
    --------
    >>> turned = Mapping.of((4, 6)).transposed((1, 0))
    >>> turned.lengths, turned.sliced((slice(None, None, -2), 3)).starts, turned.reshaped((3, 8)).lengths
    ((6, 4), (3, 5), (3, 8))
    """

    shape: tuple[int, ...]
    starts: tuple[int, ...]
    axes: tuple[Digits, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Mapping:
        """Return the mapping of a view of all items as they are."""
        return cls(shape, (0,) * len(shape), tuple((Digit(axis, n, 1),) for axis, n in enumerate(shape)))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Shape of the view."""
        return tuple(math.prod(digit.length for digit in digits) for digits in self.axes)

    @property
    def digits(self) -> Digits:
        """The digits of all axes in order."""
        return tuple(digit for digits in self.axes for digit in digits)

    def _with(self, axes: Sequence[Digits], starts: Sequence[int] | None = None) -> Mapping:
        return Mapping(self.shape, self.starts if starts is None else tuple(starts), tuple(map(_merged, axes)))

    def transposed(self, order: Sequence[int]) -> Mapping:
        """Reorder the axes."""
        return self._with([self.axes[axis] for axis in order])

    def reshaped(self, shape: tuple[int, ...]) -> Mapping:
        """Split and join axes.

        Raises
        ------
        ValueError
            Another number of items, or a split that is not even.
        """
        size = math.prod(self.lengths)
        if math.prod(shape) != size:
            raise ValueError(f"cannot reshape array of size {size} into shape {shape}")
        if not size:
            return self._with([(Digit(0, n, 0),) for n in shape])
        left = [digit for digit in self.digits if digit.length > 1][::-1]
        axes: list[Digits] = []
        for wanted in shape:
            n, taken = wanted, []
            while n > 1:
                axis, length, step = left.pop()
                part = math.gcd(n, length)
                if part < length:
                    if part < n:
                        raise ValueError(
                            f"a view of shape {self.lengths} splits and joins whole axes only, which shape {shape} "
                            "does not; a[...].reshape() reads the items"
                        )
                    left.append(Digit(axis, length // part, step))
                taken.append(Digit(axis, part, step * (length // part)))
                n //= part
            axes.append(tuple(taken))
        return self._with(axes)

    def sliced(self, key: Any) -> Mapping:
        """Take what a key of integers, slices, Ellipsis and None selects.

        Raises
        ------
        IndexError
            Where NumPy raises it, and for index arrays.
        ValueError
            A part of joined axes that is no box of the array.
        """
        lengths, starts = self.lengths, list(self.starts)
        entries: list[Any] = [_entry(entry) for entry in (key if isinstance(key, tuple) else (key,))]
        selection.select(tuple(entries), lengths)
        missing = len(lengths) - sum(isinstance(entry, int | slice) for entry in entries)
        place = entries.index(...) if ... in entries else len(entries)
        entries[place : place + 1] = [slice(None)] * missing
        axes: list[Digits] = []
        axis = 0
        for entry in entries:
            if entry is None:
                axes.append(())
                continue
            positions = range(lengths[axis])
            if isinstance(entry, slice):
                axes.append(_taken(self.axes[axis], positions[entry], starts, axis))
            else:
                # Not a slice: positions[i:i+1] would miss the last one for -1.
                first = positions[entry]
                _taken(self.axes[axis], range(first, first + 1), starts, axis)
            axis += 1
        return self._with(axes, starts)

    def parts(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Return how far to go along each digit to cover about one part of the array with these extents."""
        return tuple(max(1, min(n, extents[axis] // abs(step))) if step else 1 for axis, n, step in self.digits)

    def covering(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Return the same for the axes of the view."""
        parts = iter(self.parts(extents))
        found = []
        for digits in self.axes:
            first, *_ = [next(parts) for _ in digits] or [1]
            found.append(first * math.prod(digit.length for digit in digits[1:]))
        return tuple(found)


def _entry(entry: Any) -> int | slice | EllipsisType | None:
    if entry is None or isinstance(entry, slice | EllipsisType):
        return entry
    if isinstance(entry, SupportsIndex) and not isinstance(entry, bool | np.bool_ | np.ndarray):
        return operator.index(entry)
    raise IndexError(
        f"a view takes integers, slices, ellipsis (`...`) and None, found {entry!r}; a[key] reads the rest"
    )


def _taken(digits: Digits, positions: range, starts: list[int], axis: int) -> Digits:
    """Restrict the digits of an axis to positions along it, and move `starts` to the first one."""
    if not positions:
        return _NONE
    inner = math.prod(digit.length for digit in digits[1:])
    first, step, count = positions.start, positions.step, len(positions)
    found: list[Digit] = []
    if count > 1 and len(digits) == 1:
        found = [Digit(digits[0].axis, count, digits[0].step * step)]
    elif count > 1 and abs(step) == 1 and count % inner == 0 and min(positions) % inner == 0:
        found = [digit._replace(step=digit.step * step) for digit in digits]
        found[0] = found[0]._replace(length=count // inner)
    elif count > 1:
        raise ValueError(
            f"axis {axis} joins axes of the array: a view takes single positions, or whole rows of {inner}, not "
            f"{positions}; v[key] reads the items"
        )
    for digit in reversed(digits):
        first, position = divmod(first, digit.length)
        starts[digit.axis] += digit.step * position
    return tuple(found)


def _merged(digits: Digits) -> Digits:
    """Put digits together that count on along the same axis, and leave out those that do not count."""
    found: list[Digit] = []
    for axis, length, step in digits:
        last = found[-1] if found else None
        if last is not None and last.axis == axis and last.step == step * length != 0:
            found[-1] = Digit(axis, last.length * length, step)
        elif length != 1:
            found.append(Digit(axis, length, step))
    return tuple(found)
