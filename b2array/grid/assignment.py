"""The value of an assignment, before any chunk is touched: checked and broadcast as NumPy does it.

This module converts other objects to arrays; arrays are converted block by block when they are written.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from b2array.grid.index_arrays import shape_text
from b2array.grid.selection import Selection

__all__ = ["Sliceable", "arrange", "broadcast", "check_plain"]

Array = npt.NDArray[Any]


@runtime_checkable
class Sliceable(Protocol):
    """An array whose items can be read by slices, such as a dataset of h5py or zarr."""

    shape: tuple[int, ...]
    dtype: Any

    def __getitem__(self, key: Any, /) -> Any: ...


def arrange(
    value: Any,
    selection: Selection,
    dtype: np.dtype[Any],
    names: str | list[str] | None = None,
) -> tuple[Array, str | list[str] | None]:
    """Broadcast a value to the assigned items, with the errors of NumPy's assignment.

    Arrays with masked items, which have no value, are also refused. `names` are the assigned field or fields, None for
    whole items.

    Returns
    -------
    box : ndarray
        Read-only, of shape ``selection.box``. Its type may differ from `dtype`, but can be converted.
    names : str, list of str or None
        The assigned fields, or None for whole items.

    Examples
    --------
    >>> from b2array.grid.selection import select
    >>> arrange([7, 8], select(slice(0, 2), (3,)), np.dtype("f4"))
    (array([7., 8.], dtype=float32), None)
    """
    check_plain(value)
    if names is None:
        converted = _convert(value, selection, dtype)
        return broadcast(converted, selection), None
    if isinstance(names, list) or dtype[names].subdtype is None:
        converted = _convert(value, selection, dtype[names])
        return broadcast(converted, selection), names
    # A field of arrays has more dimensions than the selection; the additional dimensions belong to its items.
    field = (names, dtype[names])
    whole = np.empty(selection.shape, [field])
    whole[names] = value
    return broadcast(whole, selection), [names]


def check_plain(value: Any) -> None:
    """Refuse masked items, because the values below the mask would be stored. Refuse sparse arrays.

    Masked arrays may be in lists.
    """
    if isinstance(value, list | tuple):
        # Look at each type once, because a list may have millions of numbers.
        kinds = set(map(type, value))
        if any(issubclass(kind, list | tuple | np.ma.MaskedArray) for kind in kinds):
            for each in value:
                check_plain(each)
    if isinstance(value, np.ma.MaskedArray):
        mask = np.ascontiguousarray(np.ma.getmask(value))
        # Check bytes, because `np.ma.is_masked` fails for records, whose masks have fields.
        if mask.view(np.uint8).any():
            raise TypeError("masked items have no value that could be stored: choose one with filled()")
    # NumPy treats a sparse array of SciPy as a single object.
    if hasattr(value, "todense") and hasattr(value, "nnz"):
        raise TypeError(
            f"{type(value).__name__} is a sparse array, which cannot be stored: store it dense, with todense();"
            " chunks of zeros take hardly any bytes"
        )


def _convert(value: Any, selection: Selection, dtype: np.dtype[Any]) -> Array:
    # NumPy checks the range of a value that becomes a single item, and wraps values that it casts as an array.
    is_item = isinstance(value, np.generic) and selection.kind == "basic"
    if is_item or selection.kind == "scalar":
        item = np.zeros((), dtype)
        item[()] = value
        return item
    if isinstance(value, np.ndarray):
        array = np.asarray(value)
        if not np.can_cast(array.dtype, dtype, "unsafe"):
            nothing = np.empty(0, array.dtype)
            np.empty(0, dtype)[...] = nothing  # raises
        return array
    nested = selection.kind == "basic" and isinstance(value, list | tuple)
    try:
        array = np.asarray(value, dtype=dtype)
    except (ValueError, TypeError, OverflowError):
        if nested:  # NumPy checks the depth of nested lists before their contents
            one = (1,) * len(selection.shape)
            np.empty(one, dtype)[...] = value
        raise
    if nested and array.ndim > len(selection.shape):
        raise ValueError(
            "setting an array element with a sequence. "
            f"The requested array would exceed the maximum number of dimension of {len(selection.shape)}."
        )
    return array


def broadcast(value: Array, selection: Selection) -> Array:
    """Broadcast a value as NumPy's assignment does, with NumPy's exceptions.

    The result is read-only, of shape ``selection.box``, and repeats the value without copying it.

    Examples
    --------
    >>> from b2array.grid.selection import select
    >>> broadcast(np.array([7, 8]), select((slice(None), [0, 3]), (2, 4)))
    array([[7, 8],
           [7, 8]])
    """
    _check_dimensions(value, selection)
    shape = selection.shape
    value_shape = value.shape
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = value[0, ...]
    try:
        full = np.broadcast_to(value, shape)
    except ValueError:
        # For index arrays, NumPy's message shows the shape with its leading axes of length 1.
        reported = value_shape if selection.kind == "advanced" else value.shape
        raise ValueError(_mismatch(reported, selection)) from None
    if selection.runs is None:
        return selection.arrange(full.reshape(selection.merged))
    # Merging broadcast dimensions would copy the value, so first undo the broadcast where the value does not vary.
    missing = len(shape) - value.ndim
    sizes = (1,) * missing + value.shape
    key = [slice(None)] * full.ndim
    for start, stop in selection.runs:
        if math.prod(sizes[start:stop]) == 1:
            key[start:stop] = [slice(0, 1)] * (stop - start)
    narrow = full[tuple(key)]
    lengths = []
    for start, stop in selection.runs:
        merged_extents = narrow.shape[start:stop]
        lengths.append(math.prod(merged_extents))
    merged = selection.arrange(narrow.reshape(lengths))
    return np.broadcast_to(merged, selection.box)


def _check_dimensions(value: Array, selection: Selection) -> None:
    if selection.kind == "scalar" and value.ndim:
        raise ValueError("setting an array element with a sequence.")
    if selection.kind != "mask":
        return
    if value.ndim > 1:
        raise TypeError(
            "NumPy boolean array indexing assignment requires a 0 or 1-dimensional input, "
            f"input has {value.ndim} dimensions"
        )
    if value.size not in (1, *selection.shape):
        raise ValueError(
            f"NumPy boolean array indexing assignment cannot assign {value.size} input values to "
            f"the {selection.shape[0]} output values where the mask is true"
        )


def _mismatch(value_shape: tuple[int, ...], selection: Selection) -> str:
    there = shape_text(value_shape)
    here = shape_text(selection.shape)
    if selection.kind == "basic":
        return f"could not broadcast input array from shape {there} into shape {here}"
    return f"shape mismatch: value array of shape {there} could not be broadcast to indexing result of shape {here}"
