"""`Mapping`: what a view shows of an array, as arithmetic of positions.

A position along an axis of the array is where the view begins plus, for each digit that belongs to the axis, the digit
times its step. An axis of the view counts through its digits, the last one fastest. Slicing changes steps, splitting an
axis splits a digit, joining axes puts their digits together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from b2array.grid.selection import select

__all__ = ["Digit", "Mapping", "taken"]


class Digit(NamedTuple):
    """A count from 0 to `length` - 1. Each count moves `step` positions along an axis of the array."""

    axis: int
    length: int
    step: int


Digits = tuple[Digit, ...]


@dataclass(frozen=True, slots=True)
class Mapping:
    """What a view shows of an array: where it begins, and the digits of its axes (none: a length of 1).

    Examples
    --------
    >>> turned = Mapping.of((4, 6)).transposed(1, 0)
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

    @property
    def model(self) -> npt.NDArray[Any]:
        """A NumPy array of the view's shape with one item in memory, to find out what NumPy accepts."""
        return np.broadcast_to(np.int8(0), self.lengths)

    def transposed(self, *axes: Any) -> Mapping:
        """Reorder the axes, as `numpy.ndarray.transpose`."""
        numbered = np.broadcast_to(np.int8(0), range(len(self.axes)))  # the length of an axis is its number
        return replace(self, axes=tuple(self.axes[axis] for axis in numbered.transpose(*axes).shape))

    def reshaped(self, shape: tuple[int, ...]) -> Mapping:
        """Split and join axes; raise ValueError where a split is not even. The number of items stays."""
        if not math.prod(shape):
            return replace(self, axes=tuple((Digit(0, n, 0),) for n in shape))
        left = [digit for digit in self.digits if digit.length > 1][::-1]
        axes: list[Digits] = []
        for wanted in shape:
            n, digits = wanted, []
            while n > 1:
                axis, length, step = left.pop()
                part = math.gcd(n, length)
                if part < min(length, n):
                    raise ValueError(
                        f"a view of shape {self.lengths} splits and joins whole axes only, which shape {shape} "
                        "does not; a[...].reshape() reads the items"
                    )
                if part < length:
                    left.append(Digit(axis, length // part, step))
                digits.append(Digit(axis, part, step * (length // part)))
                n //= part
            axes.append(_merged(digits))
        return replace(self, axes=tuple(axes))

    def sliced(self, key: Any) -> Mapping:
        """Take what a key of integers, slices, Ellipsis and None selects; of joined axes, boxes of the array only."""
        found = select(key, self.lengths)
        if found.kind not in ("basic", "scalar"):
            raise IndexError(
                f"a view takes integers, slices, ellipsis (`...`) and None, found {key!r}; a[key] reads the rest"
            )
        starts, axes = list(self.starts), []
        for axis, (part, flip) in enumerate(zip_longest(found.positions, found.flips or (), fillvalue=slice(None))):
            along = range(self.lengths[axis])[cast(slice, part)][flip]
            axes.append(_merged(taken(self.axes[axis], along, starts, axis)))
        # Integers have left axes of length 1.
        return Mapping(self.shape, tuple(starts), tuple(axes)).reshaped(found.shape)

    def parts(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Return how far to go along each digit to cover about one part of the array with these extents."""
        return tuple(max(1, min(n, extents[axis] // abs(step))) if step else 1 for axis, n, step in self.digits)

    def covering(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Return the same for the axes of the view."""
        parts = iter(self.parts(extents))
        first = [[next(parts) for _ in digits][:1] for digits in self.axes]
        rest = [[digit.length for digit in digits[1:]] for digits in self.axes]
        return tuple(math.prod(part + lengths) for part, lengths in zip(first, rest, strict=True))


def taken(digits: Digits, positions: range, starts: list[int], axis: int) -> Digits:
    """Restrict the digits of axis number `axis` to positions along it, and move `starts` to the first one."""
    if not positions:
        return (Digit(0, 0, 0),)
    inner = math.prod(digit.length for digit in digits[1:])
    first, step, count = positions.start, positions.step, len(positions)
    found: Digits = ()
    if count > 1 and len(digits) == 1:
        found = (Digit(digits[0].axis, count, digits[0].step * step),)
    elif count > 1 and abs(step) == 1 and count % inner == 0 and min(positions) % inner == 0:
        outer, *rest = (digit._replace(step=digit.step * step) for digit in digits)
        found = (outer._replace(length=count // inner), *rest)
    elif count > 1:
        raise ValueError(
            f"axis {axis} joins axes of the array: a view takes single positions, or whole rows of {inner}, not "
            f"{positions}; v[key] reads the items"
        )
    for digit in reversed(digits):
        first, position = divmod(first, digit.length)
        starts[digit.axis] += digit.step * position
    return found


def _merged(digits: Iterable[Digit]) -> Digits:
    """Put digits together that count on along the same axis, and leave out those that do not count."""
    found: list[Digit] = []
    for axis, length, step in digits:
        if found and found[-1].axis == axis and found[-1].step == step * length != 0:
            found[-1] = Digit(axis, found[-1].length * length, step)
        elif length != 1:
            found.append(Digit(axis, length, step))
    return tuple(found)
