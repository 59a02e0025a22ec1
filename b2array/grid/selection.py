"""NumPy's indexing: converts a key to a selection that storage can follow.

`select` understands every key that NumPy accepts, and refuses other keys with NumPy's exceptions. It
returns a `Selection`: a product of factors, which `b2array.grid.partition` cuts, and the way from the box (one
dimension for each factor, steps positive) to the shape of NumPy's result.

Source: the NumPy user guide, section "Indexing on ndarrays".
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType, NoneType
from typing import Any, Literal, NamedTuple, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from b2array.grid.index_arrays import IndexArray, Slot, as_arrays, broadcast, wrap
from b2array.grid.partition import Axes, Positions

__all__ = ["Selection", "check_entries", "fields", "item", "orthogonal", "select", "vectorised"]

MAX_RESULT_NDIM = 64

Kind = Literal["scalar", "basic", "advanced", "mask"]
_Entry = int | slice | EllipsisType | NDArray[Any] | None

_INVALID = (
    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays "
    "are valid indices"
)
_PLAIN = frozenset({EllipsisType, NoneType, int, slice})
_FLIP = slice(None, None, -1)
_KEEP = slice(None)

Shape = tuple[int, ...]
Names = str | list[str] | None


@dataclass(frozen=True, slots=True)
class Selection:
    """The items that a key selects from an array of a certain shape.

    Attributes
    ----------
    positions : tuple of Positions
        The positions of each factor; see `b2array.grid.partition.parts`.
    axes : tuple of tuple of int or None
        The axes that each factor covers, or None if each factor covers one axis, in order.
    box : tuple of int
        Length of each factor.
    shape : tuple of int
        Shape of NumPy's result.
    kind : {"scalar", "basic", "advanced", "mask"}
        "scalar": NumPy returns a scalar; "mask": one boolean array of the array's own shape.
    order : tuple of int or None
        The position of each factor in the result, or None if the factors are in order.
    """

    positions: tuple[Positions, ...]
    axes: Axes | None
    box: Shape
    shape: Shape
    kind: Kind
    # From result to box: reshape to `merged`, transpose by `order`, flip. `runs` are the result's dimensions that
    # each merged one consists of, given where one of them merges several.
    merged: Shape
    order: tuple[int, ...] | None = None
    flips: tuple[slice, ...] | None = None
    runs: tuple[tuple[int, int], ...] | None = None

    def view(self, result: NDArray[Any]) -> NDArray[Any]:
        """View a C-contiguous result in the shape of the box; writing to the view changes the result.

        Examples
        --------
        >>> result = np.zeros((3, 1), int)
        >>> select((slice(None, None, -1), None, 2), (3, 4)).view(result)[:, 0] = [1, 2, 3]
        >>> result.ravel()
        array([3, 2, 1])
        """
        if not result.flags.c_contiguous:
            raise ValueError("the result must be C-contiguous")
        boxed = result.reshape(self.merged)
        if self.order is None and self.flips is None:
            return boxed
        return self.arrange(boxed)

    def arrange(self, merged: NDArray[Any]) -> NDArray[Any]:
        """Transpose and flip a result whose dimensions are merged into one for each factor."""
        boxed = merged if self.order is None else merged.transpose(self.order)
        return boxed if self.flips is None else boxed[self.flips]


def item(key: object, shape: Shape) -> list[int] | None:
    """Return the position of the item that a key of plain integers selects, or None for all other keys.

    Examples
    --------
    >>> item((1, -1), (4, 5)), item((1, 9), (4, 5)), item(-1, (4,))
    ([1, 4], None, [3])
    """
    # `type` and not `isinstance`: True is an int, but as a key it is a mask.
    if type(key) is int:
        key = (key,)
    if type(key) is not tuple or len(key) != len(shape):
        return None
    where = []
    for i, n in zip(key, shape, strict=True):
        if type(i) is not int or not -n <= i < n:
            return None
        where.append(i if i >= 0 else i + n)
    return where


def select(key: Any, shape: Sequence[int]) -> Selection:
    """Resolve any key as NumPy does, with NumPy's exceptions.

    Examples
    --------
    >>> selection = select((slice(1, None), 0), (4, 5))
    >>> selection.positions, selection.box, selection.shape
    ((slice(1, 4, 1), slice(0, 1, 1)), (3, 1), (3,))
    >>> select((slice(None), [0, 2, 2]), (4, 5)).shape
    (4, 3)
    """
    parsed = _parse(key, shape)
    if parsed.has_arrays:
        return _select_advanced(parsed, shape, in_place=True)
    return _basic(parsed, shape)


def check_entries(key: Any, shape: Sequence[int]) -> None:
    """Check the parts of a key that NumPy checks before it converts the value of an assignment.

    NumPy compares index arrays with each other and with the shape only after that.
    """
    axis = 0
    for entry in _parse(key, shape).entries:
        if isinstance(entry, int):
            _wrap_one(entry, axis, shape[axis])
        axis += _naxes(entry)


def vectorised(key: Any, shape: Sequence[int]) -> Selection:
    """Resolve a key like `select`, but with the dimensions of the index arrays always first.

    Examples
    --------
    >>> vectorised((slice(None), [0, 2, 2]), (4, 5)).shape
    (3, 4)
    """
    parsed = _parse(key, shape)
    if parsed.has_arrays:
        return _select_advanced(parsed, shape, in_place=False)
    return _basic(parsed, shape)


def orthogonal(key: Any, shape: Sequence[int]) -> Selection:
    """Resolve a key in which each index array, of one dimension, selects along its own axis.

    Examples
    --------
    >>> orthogonal(([0, 2], [True, False, True]), (4, 3)).shape
    (2, 2)
    """
    parsed = _parse(key, shape)
    if not parsed.has_arrays:
        return _basic(parsed, shape)
    slots: list[Slot] = []
    axis = 0
    for entry in parsed.entries:
        if entry is Ellipsis:
            continue
        if entry is None:
            slots.extend(_NEW_AXIS)
            continue
        if isinstance(entry, np.ndarray):
            if entry.ndim != 1:
                raise IndexError(
                    f"orthogonal indexing takes one-dimensional index arrays, found {entry.ndim} dimensions"
                )
            if entry.dtype == bool:
                points = entry.nonzero()[0]
            else:
                points = wrap(entry, axis, shape[axis])
            rows = points[None].astype(np.int64, copy=False)
            slots.append(Slot((axis,), rows, points.shape))
        else:
            slots.append(_single(entry, axis, shape[axis]))
        axis += 1
    return _assemble(slots, "advanced")


def fields(key: Any, dtype: np.dtype[Any]) -> tuple[Any, Names]:
    """Separate field names from a key, which has only names, or names anywhere among the indices.

    Returns the remaining key for `select`, and the name of one field, a list of names, or None. Raises NumPy's errors
    for a field that the dtype does not have, and for a repeated name.

    Examples
    --------
    >>> fields("x", np.dtype([("x", "f4"), ("y", "f4")]))
    (Ellipsis, 'x')
    >>> fields((0, "x", slice(3)), np.dtype([("x", "f4"), ("y", "f4")]))
    ((0, slice(None, 3, None)), 'x')
    >>> fields(0, np.dtype("f4"))
    (0, None)
    """
    if dtype.names is None:
        return key, None
    rest: Any = Ellipsis
    if isinstance(key, tuple):
        # Among other indices, text that names no field is an error, as in NumPy.
        field_names = set(dtype.names)
        named: list[Any] = []
        others: list[Any] = []
        for entry in key:
            is_name = _are_names(entry) and not field_names.isdisjoint(_names_in(entry))
            if is_name:
                named.append(entry)
            else:
                others.append(entry)
        rest = tuple(others) or Ellipsis
    else:
        named = [key] if _are_names(key) else []
    if not named:
        return key, None
    first = named[0]
    if len(named) == 1 and isinstance(first, str):
        if first not in dtype.names:
            raise ValueError(f"no field of name {first}")
        return rest, first
    names = [name for entry in named for name in _names_in(entry)]
    for n, name in enumerate(names):
        if name not in dtype.names:
            raise KeyError(name)
        if name in names[:n]:
            raise ValueError(f"duplicate field of name {name!r}")
    return rest, names


def _names_in(entry: str | list[str]) -> list[str]:
    return [entry] if isinstance(entry, str) else entry


def _are_names(entry: Any) -> bool:
    if isinstance(entry, list):
        # An empty list is an index that selects nothing.
        return bool(entry) and all(isinstance(name, str) for name in entry)
    return isinstance(entry, str)


class _Key(NamedTuple):
    """A key as integers, slices, arrays and new axes; it has an Ellipsis only if that stands for no axis."""

    entries: list[_Entry]
    has_arrays: bool
    has_ellipsis: bool
    is_mask: bool  # one boolean array of the array's own shape


def _parse(key: Any, shape: Sequence[int]) -> _Key:
    """Convert the entries of a key as NumPy does, and replace the Ellipsis with slices."""
    ndim = len(shape)
    items = key if isinstance(key, tuple) else (key,)
    # Most keys are plain. `type` and not `isinstance`, because True is an int, but as a key it is a mask.
    entries: list[_Entry] = [item if type(item) in _PLAIN else _convert(item) for item in items]
    kinds = list(map(type, entries))
    has_arrays = np.ndarray in kinds
    ellipses = kinds.count(EllipsisType)
    if ellipses > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    used = kinds.count(slice) + kinds.count(int)
    if has_arrays:
        arrays = [entry for entry in entries if isinstance(entry, np.ndarray)]
        used += sum(map(_naxes, arrays))
    if used > ndim:
        raise IndexError(f"too many indices for array: array is {ndim}-dimensional, but {used} were indexed")
    first = entries[0] if len(entries) == 1 else None
    is_mask = _is_mask(first) and first.shape == tuple(shape)
    if used < ndim:
        # Without an Ellipsis, the remaining axes follow at the end.
        place = kinds.index(EllipsisType) if ellipses else len(entries)
        missing = [slice(None)] * (ndim - used)
        entries[place : place + 1] = missing
    if has_arrays:
        _check_masks(entries, shape)
    return _Key(entries, has_arrays, bool(ellipses), is_mask)


def _convert(item: Any) -> int | NDArray[Any]:
    is_array = isinstance(item, np.ndarray)
    if not is_array and not isinstance(item, bool):
        try:
            return operator.index(item)
        except TypeError:
            pass
    array = np.asarray(item)
    if array.dtype == bool:
        return array
    if array.size == 0 and not is_array:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        if is_array:
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
        raise IndexError(_INVALID)
    if array.ndim == 0:
        return int(array)
    return array.astype(np.int64, casting="same_kind", copy=False)


def _is_mask(entry: _Entry) -> TypeGuard[NDArray[np.bool_]]:
    return isinstance(entry, np.ndarray) and entry.dtype == bool


def _naxes(entry: _Entry) -> int:
    """Count the axes that an entry of a key selects from."""
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if _is_mask(entry) else 1


def _check_masks(entries: list[_Entry], shape: Sequence[int]) -> None:
    axis = 0
    for entry in entries:
        if _is_mask(entry):
            for n, size in enumerate(entry.shape, axis):
                if size in (0, shape[n]):  # NumPy accepts an empty mask anywhere
                    continue
                raise IndexError(
                    f"boolean index did not match indexed array along axis {n}; size of axis is {shape[n]} "
                    f"but size of corresponding boolean axis is {size}"
                )
        axis += _naxes(entry)


def _basic(key: _Key, shape: Sequence[int]) -> Selection:
    """Resolve keys of integers and slices, the most frequent keys, quickly."""
    factors: list[Positions] = []
    box: list[int] = []
    result: list[int] = []
    flips: list[slice] | None = None
    axis = 0
    for entry in key.entries:
        if type(entry) is slice:
            positions, count, flipped = _forward(entry, shape[axis])
            if flipped:
                flips = flips or [_KEEP] * len(shape)
                flips[axis] = _FLIP
            result.append(count)
        elif type(entry) is int:
            position = _wrap_one(entry, axis, shape[axis])
            positions = slice(position, position + 1, 1)
            count = 1
        else:
            if entry is None:
                result.append(1)
            continue
        factors.append(positions)
        box.append(count)
        axis += 1
    if len(result) > MAX_RESULT_NDIM:
        raise _too_many(len(result))
    kind: Kind = "basic" if result or key.has_ellipsis else "scalar"
    boxed = tuple(box)
    turned = None if flips is None else tuple(flips)
    shape_of_result = tuple(result)
    return Selection(tuple(factors), None, boxed, shape_of_result, kind, boxed, None, turned)


_NEW_AXIS = (Slot((), None, (1,)),)


def _single(entry: int | slice, axis: int, extent: int) -> Slot:
    if isinstance(entry, int):
        position = _wrap_one(entry, axis, extent)
        single = slice(position, position + 1, 1)
        return Slot((axis,), single, ())
    positions, count, flipped = _forward(entry, extent)
    return Slot((axis,), positions, (count,), flipped)


def _select_advanced(key: _Key, shape: Sequence[int], *, in_place: bool) -> Selection:
    slots: list[Slot] = []
    arrays: list[IndexArray] = []
    places: list[int] = []  # the positions of arrays and integers among the entries
    place = 0
    axis = 0
    for number, entry in enumerate(key.entries):
        if isinstance(entry, np.ndarray | int):
            if not places:
                place = len(slots)
            places.append(number)
            values = entry
            # Next to an index array, NumPy treats an integer as an index array without dimensions.
            if isinstance(entry, int):
                values = np.array(_wrap_one(entry, axis, shape[axis]))
            arrays.extend(as_arrays(cast(NDArray[Any], values), axis))
        elif isinstance(entry, slice):
            slots.append(_single(entry, axis, shape[axis]))
        elif entry is None:
            slots.extend(_NEW_AXIS)
        axis += _naxes(entry)
    # NumPy puts the dimensions of index arrays first, unless the arrays are adjacent.
    adjacent = places[-1] - places[0] == len(places) - 1
    if not (in_place and adjacent):
        place = 0
    slots[place:place] = broadcast(arrays, shape)
    return _assemble(slots, "mask" if key.is_mask else "advanced")


def _npositions(positions: Positions) -> int:
    if isinstance(positions, slice):
        return len(range(positions.start, positions.stop, positions.step))
    length: int = positions.shape[1]
    return length


def _assemble(slots: list[Slot], kind: Kind) -> Selection:
    shape: list[int] = []
    factors: list[tuple[Slot, Positions]] = []
    runs: list[tuple[int, int]] = []
    for slot in slots:
        first = len(shape)
        shape.extend(slot.dims)
        if slot.positions is not None:
            factors.append((slot, slot.positions))
            runs.append((first, len(shape)))
    if len(shape) > MAX_RESULT_NDIM:
        raise _too_many(len(shape))
    merged = tuple(_npositions(positions) for _, positions in factors)
    # `partition` cuts factors in the order of their axes.
    covered_axes = [slot.axes for slot, _ in factors]
    numbers = sorted(range(len(factors)), key=covered_axes.__getitem__)
    order = tuple(numbers)
    axes = tuple(covered_axes[n] for n in order)
    flipped = [factors[n][0].flipped for n in order]
    has_points = any(len(covered) != 1 for covered in axes)
    has_merged = any(stop - start > 1 for start, stop in runs)
    flips = None
    if any(flipped):
        flips = tuple(_FLIP if turn else _KEEP for turn in flipped)
    return Selection(
        positions=tuple(factors[n][1] for n in order),
        axes=axes if has_points else None,
        box=tuple(merged[n] for n in order),
        shape=tuple(shape),
        kind=kind,
        merged=merged,
        order=order,
        flips=flips,
        runs=tuple(runs) if has_merged else None,
    )


def _forward(entry: slice, extent: int) -> tuple[slice, int, bool]:
    """Return a slice with the same positions and a positive step, its length, and whether it was reversed."""
    start, stop, step = entry.indices(extent)
    count = len(range(start, stop, step))
    if not count:
        return slice(0, 0, 1), 0, False
    if step > 0:
        return slice(start, stop, step), count, False
    # The last position of a negative step is the first position of the reversed slice.
    last = start + (count - 1) * step
    return slice(last, start + 1, -step), count, True


def _wrap_one(position: int, axis: int, extent: int) -> int:
    if not -extent <= position < extent:
        raise IndexError(f"index {position} is out of bounds for axis {axis} with size {extent}")
    return position + extent if position < 0 else position


def _too_many(ndim: int) -> IndexError:
    return IndexError(f"number of dimensions must be within [0, {MAX_RESULT_NDIM}], indexing result would have {ndim}")
