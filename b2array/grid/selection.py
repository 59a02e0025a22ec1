"""NumPy's indexing: from a key to a selection that storage can follow.

`select` understands everything that NumPy takes between brackets, and refuses the rest with NumPy's exceptions. What
it returns, a `Selection`, is a product of groups as `b2array.grid.partition` cuts it, together with the way from the
product's own shape (the box: one dimension a group, steps positive) to the shape of NumPy's result.

Source: the NumPy user guide, section "Indexing on ndarrays".
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import EllipsisType, NoneType
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from b2array.grid.partition import Axes, Index

__all__ = ["Selection", "check_entries", "fields", "item", "orthogonal", "select", "vectorised"]

MAX_RESULT_NDIM = 64

Kind = Literal["scalar", "basic", "advanced", "mask"]
_Entry = int | slice | EllipsisType | NDArray[Any] | None

_INVALID = (
    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays "
    "are valid indices"
)
_FLIP = slice(None, None, -1)
_PLAIN = frozenset({EllipsisType, NoneType, int, slice})


@dataclass(frozen=True, slots=True)
class Selection:
    """What a key selects from an array of a certain shape.

    Attributes
    ----------
    index : tuple of Index
        The positions of each group; see `b2array.grid.partition.parts`.
    axes : tuple of tuple of int or None
        The axes that each group covers, or None: one axis a group, in order.
    box : tuple of int
        Length of each group.
    shape : tuple of int
        Shape of NumPy's result.
    kind : {"scalar", "basic", "advanced", "mask"}
        "scalar": NumPy returns a scalar; "mask": one boolean array of the array's own shape.
    """

    index: tuple[Index, ...]
    axes: Axes | None
    box: tuple[int, ...]
    shape: tuple[int, ...]
    kind: Kind
    # From result to box: reshape to `_merged`, transpose by `_order`, flip. `_runs` are the result's dimensions that
    # each merged one consists of, given where one of them merges several.
    _merged: tuple[int, ...]
    _order: tuple[int, ...] | None = None
    _flips: tuple[slice, ...] | None = None
    _runs: tuple[tuple[int, int], ...] | None = None

    @property
    def is_scalar(self) -> bool:
        """Whether NumPy returns a scalar instead of an array."""
        return self.kind == "scalar"

    def view(self, result: NDArray[Any]) -> NDArray[Any]:
        """See the result in the layout of the box.

        Parameters
        ----------
        result : ndarray
            C-contiguous, of shape `shape`.

        Returns
        -------
        ndarray
            A view of shape `box`: writing into it fills the result.

        Examples
        --------
        >>> result = np.zeros((3, 1), int)
        >>> select((slice(None, None, -1), None, 2), (3, 4)).view(result)[:, 0] = [1, 2, 3]
        >>> result.ravel()
        array([3, 2, 1])
        """
        if not result.flags.c_contiguous:
            raise ValueError("the result must be C-contiguous")
        boxed = result.reshape(self._merged)
        if self._order is None and self._flips is None:
            return boxed
        return self._arrange(boxed)

    def _arrange(self, merged: NDArray[Any]) -> NDArray[Any]:
        boxed = merged if self._order is None else merged.transpose(self._order)
        return boxed if self._flips is None else boxed[self._flips]

    def spread(self, value: NDArray[Any]) -> NDArray[Any]:
        """Broadcast a value as NumPy's assignment does, in the layout of the box.

        Parameters
        ----------
        value : ndarray
            What is assigned.

        Returns
        -------
        ndarray
            Read-only, of shape `box`; the value is not copied for each place where it goes.

        Raises
        ------
        ValueError, TypeError
            The value does not fit, with NumPy's words.

        Examples
        --------
        >>> select((slice(None), [0, 3]), (2, 4)).spread(np.array([7, 8]))
        array([[7, 8],
               [7, 8]])
        """
        self._check_value(value)
        given = value.shape
        while value.ndim > len(self.shape) and value.shape[0] == 1:
            value = value[0, ...]
        try:
            full = np.broadcast_to(value, self.shape)
        except ValueError:
            raise ValueError(self._mismatch(given if self.kind == "advanced" else value.shape)) from None
        if self._runs is None:
            return self._arrange(full.reshape(self._merged))
        # Merging dimensions of a broadcast array copies it: take back what the value does not vary along.
        sizes = (1,) * (len(self.shape) - value.ndim) + value.shape
        key = [slice(None)] * full.ndim
        for start, stop in self._runs:
            if math.prod(sizes[start:stop]) == 1:
                key[start:stop] = [slice(0, 1)] * (stop - start)
        narrow = full[tuple(key)]
        merged = narrow.reshape([math.prod(narrow.shape[start:stop]) for start, stop in self._runs])
        return np.broadcast_to(self._arrange(merged), self.box)

    def _check_value(self, value: NDArray[Any]) -> None:
        if self.kind == "scalar" and value.ndim:
            raise ValueError("setting an array element with a sequence.")
        if self.kind != "mask":
            return
        if value.ndim > 1:
            raise TypeError(
                "NumPy boolean array indexing assignment requires a 0 or 1-dimensional input, "
                f"input has {value.ndim} dimensions"
            )
        if value.size not in (1, *self.shape):
            raise ValueError(
                f"NumPy boolean array indexing assignment cannot assign {value.size} input values to "
                f"the {self.shape[0]} output values where the mask is true"
            )

    def _mismatch(self, found: tuple[int, ...]) -> str:
        if self.kind == "basic":
            return f"could not broadcast input array from shape {_text(found)} into shape {_text(self.shape)}"
        return (
            f"shape mismatch: value array of shape {_text(found)} could not be broadcast "
            f"to indexing result of shape {_text(self.shape)}"
        )


def item(key: object, shape: tuple[int, ...]) -> list[int] | None:
    """Return the position of the one item that a key of plain integers names, None for all other keys.

    Examples
    --------
    >>> item((1, -1), (4, 5)), item((1, 9), (4, 5)), item(-1, (4,))
    ([1, 4], None, [3])
    """
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
    """Resolve a key as NumPy does.

    Parameters
    ----------
    key : object
        Whatever stands between the brackets: integers, slices, Ellipsis, None, integer and boolean arrays (or
        sequences that become such), or a tuple of these.
    shape : sequence of int
        Shape of the array.

    Raises
    ------
    IndexError, TypeError, ValueError
        Where NumPy raises them, with its words.

    Examples
    --------
    >>> selection = select((slice(1, None), 0), (4, 5))
    >>> selection.index, selection.box, selection.shape
    ((slice(1, 4, 1), slice(0, 1, 1)), (3, 1), (3,))
    >>> select((slice(None), [0, 2, 2]), (4, 5)).shape
    (4, 3)
    """
    parsed = _parse(key, shape)
    return _advanced(parsed, shape, in_place=True) if parsed.has_arrays else _basic(parsed, shape)


def check_entries(key: Any, shape: Sequence[int]) -> None:
    """Raise what NumPy raises of a key before it converts the value of an assignment.

    NumPy compares index arrays with each other, and with the shape, only after that.

    Raises
    ------
    IndexError, TypeError, ValueError
        As for `select`.
    """
    axis = 0
    for entry in _parse(key, shape).entries:
        if isinstance(entry, int):
            _wrap_int(entry, axis, shape[axis])
        if entry is not None and entry is not Ellipsis:
            axis += entry.ndim if isinstance(entry, np.ndarray) and entry.dtype == bool else 1


def vectorised(key: Any, shape: Sequence[int]) -> Selection:
    """Resolve a key like `select`, but with the dimensions of the index arrays always first.

    Examples
    --------
    >>> vectorised((slice(None), [0, 2, 2]), (4, 5)).shape
    (3, 4)
    """
    parsed = _parse(key, shape)
    return _advanced(parsed, shape, in_place=False) if parsed.has_arrays else _basic(parsed, shape)


def orthogonal(key: Any, shape: Sequence[int]) -> Selection:
    """Resolve a key in which each index array, of one dimension, selects along its own axis.

    Raises
    ------
    IndexError
        Beside NumPy's reasons: an index array has not exactly one dimension.

    Examples
    --------
    >>> orthogonal(([0, 2], [True, False, True]), (4, 3)).shape
    (2, 2)
    """
    parsed = _parse(key, shape)
    if not parsed.has_arrays:
        return _basic(parsed, shape)
    slots: list[_Slot] = []
    axis = 0
    for entry in parsed.entries:
        if entry is None or entry is Ellipsis:
            slots.extend(_NEW_AXIS if entry is None else ())
            continue
        if isinstance(entry, np.ndarray):
            if entry.ndim != 1:
                raise IndexError(
                    f"orthogonal indexing takes one-dimensional index arrays, found {entry.ndim} dimensions"
                )
            points = _nonzero(entry)[0] if entry.dtype == bool else _wrap(entry, axis, shape[axis])
            slots.append(_Slot((axis,), points[None], points.shape))
        else:
            slots.append(_single(entry, axis, shape[axis]))
        axis += 1
    return _assemble(slots, "advanced")


def fields(key: Any, dtype: np.dtype[Any]) -> tuple[Any, str | list[str] | None]:
    """Separate the field names from a key, in which they stand alone or, anywhere, among the indices of the axes.

    Returns
    -------
    rest : object
        The key that remains for `select`.
    names : str, list of str or None
        One field, or several, or None if the key names none.

    Raises
    ------
    ValueError, KeyError
        The dtype has no such field, or a name stands twice.

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
    if isinstance(key, tuple):
        # Among other indices, text that names no field is no index, as in NumPy.
        known = set(dtype.names)
        are_names = [_are_names(entry) and not known.isdisjoint(_listed(entry)) for entry in key]
        named = [entry for entry, is_name in zip(key, are_names, strict=True) if is_name]
        rest: Any = tuple(entry for entry, is_name in zip(key, are_names, strict=True) if not is_name) or Ellipsis
    else:
        named, rest = [key] if _are_names(key) else [], Ellipsis
    if not named:
        return key, None
    if len(named) == 1 and isinstance(named[0], str):
        if named[0] not in dtype.names:
            raise ValueError(f"no field of name {named[0]}")
        return rest, named[0]
    names = [name for entry in named for name in _listed(entry)]
    for n, name in enumerate(names):
        if name not in dtype.names:
            raise KeyError(name)
        if name in names[:n]:
            raise ValueError(f"duplicate field of name {name!r}")
    return rest, names


def _listed(entry: str | list[str]) -> list[str]:
    return [entry] if isinstance(entry, str) else entry


def _are_names(entry: Any) -> bool:
    several = isinstance(entry, list) and len(entry) > 0 and all(isinstance(name, str) for name in entry)
    return several or isinstance(entry, str)


class _Parsed(NamedTuple):
    entries: list[_Entry]  # an Ellipsis is left only if it stands for no axis at all
    has_arrays: bool
    has_ellipsis: bool
    is_mask: bool


def _parse(key: Any, shape: Sequence[int]) -> _Parsed:
    """Bring the entries of a key to few types, and write out the Ellipsis."""
    ndim = len(shape)
    items = key if isinstance(key, tuple) else (key,)
    entries: list[_Entry] = [item if type(item) in _PLAIN else _convert(item) for item in items]
    kinds = list(map(type, entries))
    has_arrays = np.ndarray in kinds
    ellipses = kinds.count(EllipsisType)
    if ellipses > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    used = kinds.count(slice) + kinds.count(int)
    if has_arrays:
        used += sum(entry.ndim if entry.dtype == bool else 1 for entry in entries if isinstance(entry, np.ndarray))
    if used > ndim:
        raise IndexError(f"too many indices for array: array is {ndim}-dimensional, but {used} were indexed")
    first = entries[0] if len(entries) == 1 else None
    is_mask = isinstance(first, np.ndarray) and first.dtype == bool and first.shape == tuple(shape)
    if used < ndim:
        place = kinds.index(EllipsisType) if ellipses else len(entries)
        entries[place : place + 1] = [slice(None)] * (ndim - used)
    if has_arrays:
        _check_masks(entries, shape)
    return _Parsed(entries, has_arrays, bool(ellipses), is_mask)


def _convert(item: Any) -> int | NDArray[Any]:
    given = isinstance(item, np.ndarray)
    if not given and not isinstance(item, bool):
        try:
            return operator.index(item)
        except TypeError:
            pass
    array = np.asarray(item)
    if array.dtype == bool:
        return array
    if array.size == 0 and not given:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type" if given else _INVALID)
    if array.ndim == 0:
        return int(array)
    return array.astype(np.int64, casting="same_kind", copy=False)


def _check_masks(entries: list[_Entry], shape: Sequence[int]) -> None:
    axis = 0
    for entry in entries:
        if isinstance(entry, np.ndarray) and entry.dtype == bool:
            for size in entry.shape:
                # NumPy lets an empty mask pass anywhere.
                if size not in (0, shape[axis]):
                    raise IndexError(
                        f"boolean index did not match indexed array along axis {axis}; size of axis is {shape[axis]} "
                        f"but size of corresponding boolean axis is {size}"
                    )
                axis += 1
        else:
            axis += entry is not None and entry is not Ellipsis


def _basic(parsed: _Parsed, shape: Sequence[int]) -> Selection:
    """Resolve integers and slices; this is the road that must be short."""
    index: list[Index] = []
    box: list[int] = []
    result: list[int] = []
    flips: list[slice] | None = None
    axis = 0
    for entry in parsed.entries:
        if type(entry) is slice:
            positions, count, flipped = _forward(entry, shape[axis])
            if flipped:
                flips = flips or [slice(None)] * len(shape)
                flips[axis] = _FLIP
            result.append(count)
        elif type(entry) is int:
            position = _wrap_int(entry, axis, shape[axis])
            positions, count = slice(position, position + 1, 1), 1
        else:
            result.extend((1,) if entry is None else ())
            continue
        index.append(positions)
        box.append(count)
        axis += 1
    if len(result) > MAX_RESULT_NDIM:
        _refuse_ndim(len(result))
    kind: Kind = "basic" if result or parsed.has_ellipsis else "scalar"
    boxed = tuple(box)
    return Selection(
        tuple(index), None, boxed, tuple(result), kind, boxed, None, None if flips is None else tuple(flips)
    )


class _Slot(NamedTuple):
    """A group, in the place of its dimensions in the result; without positions the dimensions are new ones."""

    axes: tuple[int, ...]
    positions: Index | None
    dims: tuple[int, ...]
    flipped: bool = False


_NEW_AXIS = (_Slot((), None, (1,)),)


def _single(entry: int | slice, axis: int, extent: int) -> _Slot:
    if isinstance(entry, int):
        position = _wrap_int(entry, axis, extent)
        return _Slot((axis,), slice(position, position + 1, 1), ())
    positions, count, flipped = _forward(entry, extent)
    return _Slot((axis,), positions, (count,), flipped)


def _advanced(parsed: _Parsed, shape: Sequence[int], *, in_place: bool) -> Selection:
    slots: list[_Slot] = []
    arrays: list[_Array] = []
    found: list[int] = []  # the places of arrays and integers among the entries
    place = axis = 0
    for number, entry in enumerate(parsed.entries):
        if isinstance(entry, np.ndarray | int):
            place = place if found else len(slots)
            found.append(number)
            arrays.extend(_arrays(entry, axis, shape))
            axis += entry.ndim if isinstance(entry, np.ndarray) and entry.dtype == bool else 1
        elif isinstance(entry, slice):
            slots.append(_single(entry, axis, shape[axis]))
            axis += 1
        elif entry is None:
            slots.extend(_NEW_AXIS)
    adjacent = found[-1] - found[0] == len(found) - 1
    if not (in_place and adjacent):
        place = 0
    slots[place:place] = _broadcast(arrays, shape)
    return _assemble(slots, "mask" if parsed.is_mask else "advanced")


class _Array(NamedTuple):
    """An index array; a boolean scalar belongs to no axis, its values are not used."""

    axis: int | None
    values: NDArray[np.int64]


def _arrays(entry: int | NDArray[Any], axis: int, shape: Sequence[int]) -> list[_Array]:
    if isinstance(entry, int):
        return [_Array(axis, np.array(_wrap_int(entry, axis, shape[axis]), np.int64))]
    if entry.dtype != bool:
        return [_Array(axis, entry)]
    if entry.ndim == 0:
        return [_Array(None, np.zeros(int(entry), np.int64))]
    return [_Array(axis + n, values) for n, values in enumerate(_nonzero(entry))]


def _nonzero(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], ...]:
    return tuple(values.astype(np.int64, copy=False) for values in mask.nonzero())


def _broadcast(arrays: list[_Array], shape: Sequence[int]) -> list[_Slot]:
    """Make groups of index arrays: those that vary along the same dimensions are points, others are independent."""
    shapes = [array.values.shape for array in arrays]
    try:
        whole = np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " ".join(map(_text, shapes))
        raise IndexError(
            f"shape mismatch: indexing arrays could not be broadcast together with shapes {listed} "
        ) from None
    is_empty = 0 in whole
    slots: list[_Slot] = []
    for start, stop in _segments(shapes, len(whole)):
        dims = whole[start:stop]
        members = []
        for axis, values in arrays:
            local = ((1,) * (len(whole) - values.ndim) + values.shape)[start:stop]
            if math.prod(local) != 1:
                # NumPy, too, does not look at the values of arrays that select nothing.
                inside = values if is_empty or axis is None else _wrap(values, axis, shape[axis])
                members.append(_Array(axis, np.broadcast_to(inside.reshape(local), dims).reshape(-1)))
        slots.append(_group(members, dims) if members else _Slot((), None, dims))
    for axis, values in arrays:
        if values.size == 1 and axis is not None:
            slots.append(_constant(values, axis, shape[axis], is_empty=is_empty))
    return slots


def _segments(shapes: list[tuple[int, ...]], ndim: int) -> list[tuple[int, int]]:
    """Cut `ndim` broadcast dimensions wherever no array varies on both sides."""
    joined: set[int] = set()
    for shape in shapes:
        varying = [n for n, size in enumerate(shape, ndim - len(shape)) if size != 1]
        joined.update(range(varying[0] + 1, varying[-1] + 1) if varying else ())
    return list(pairwise([0, *(n for n in range(1, ndim) if n not in joined), ndim]))


def _group(members: list[_Array], dims: tuple[int, ...]) -> _Slot:
    located = [(axis, values) for axis, values in members if axis is not None]
    if len(located) == 1:
        points = located[0][1][None]
    else:
        points = np.array([values for _, values in located], np.int64).reshape(len(located), math.prod(dims))
    return _Slot(tuple(axis for axis, _ in located), points, dims)


def _constant(values: NDArray[np.int64], axis: int, extent: int, *, is_empty: bool) -> _Slot:
    if is_empty:
        return _Slot((axis,), slice(0, 0, 1), ())
    return _single(int(values.reshape(())), axis, extent)


def _assemble(slots: list[_Slot], kind: Kind) -> Selection:
    shape: list[int] = []
    groups: list[tuple[_Slot, Index]] = []
    runs: list[tuple[int, int]] = []
    for slot in slots:
        if slot.positions is not None:
            groups.append((slot, slot.positions))
            runs.append((len(shape), len(shape) + len(slot.dims)))
        shape.extend(slot.dims)
    if len(shape) > MAX_RESULT_NDIM:
        _refuse_ndim(len(shape))
    merged = tuple(_length(positions) for _, positions in groups)
    order = tuple(sorted(range(len(groups)), key=lambda n: groups[n][0].axes))
    axes = tuple(groups[n][0].axes for n in order)
    flipped = [groups[n][0].flipped for n in order]
    return Selection(
        index=tuple(groups[n][1] for n in order),
        axes=axes if any(len(covered) != 1 for covered in axes) else None,
        box=tuple(merged[n] for n in order),
        shape=tuple(shape),
        kind=kind,
        _merged=merged,
        _order=order,
        _flips=tuple(_FLIP if turn else slice(None) for turn in flipped) if any(flipped) else None,
        _runs=tuple(runs) if any(stop - start > 1 for start, stop in runs) else None,
    )


def _length(positions: Index) -> int:
    if isinstance(positions, slice):
        return len(range(positions.start, positions.stop, positions.step))
    return int(positions.shape[1])


def _forward(entry: slice, extent: int) -> tuple[slice, int, bool]:
    """Turn a slice into one of positive step: also its length, and whether it was turned round."""
    start, stop, step = entry.indices(extent)
    count = len(range(start, stop, step))
    if not count:
        return slice(0, 0, 1), 0, False
    if step > 0:
        return slice(start, stop, step), count, False
    return slice(start + (count - 1) * step, start + 1, -step), count, True


def _wrap_int(position: int, axis: int, extent: int) -> int:
    if not -extent <= position < extent:
        raise IndexError(f"index {position} is out of bounds for axis {axis} with size {extent}")
    return position + extent if position < 0 else position


def _wrap(values: NDArray[np.int64], axis: int, extent: int) -> NDArray[np.int64]:
    if not values.size:
        return values
    low, high = int(values.min()), int(values.max())
    if low < -extent or high >= extent:
        wrong = values[(values < -extent) | (values >= extent)].flat[0]
        raise IndexError(f"index {wrong} is out of bounds for axis {axis} with size {extent}")
    return np.where(values < 0, values + extent, values) if low < 0 else values


def _refuse_ndim(ndim: int) -> NoReturn:
    raise IndexError(f"number of dimensions must be within [0, {MAX_RESULT_NDIM}], indexing result would have {ndim}")


def _text(shape: tuple[int, ...]) -> str:
    """Write a shape as NumPy's messages do."""
    return f"({shape[0]},)" if len(shape) == 1 else f"({','.join(map(str, shape))})"
