"""What an assignment stores: the value as NumPy would convert and broadcast it, before any chunk is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.grid.selection import Selection

__all__ = ["arrange", "check_unmasked"]

Array = npt.NDArray[Any]


def arrange(
    value: Any, selection: Selection, dtype: np.dtype[Any], names: str | list[str] | None = None
) -> tuple[Array, str | list[str] | None]:
    """Lay out a value for the items that it is assigned to.

    Parameters
    ----------
    value : object
        What stands right of the ``=``.
    selection : Selection
        The items.
    dtype : numpy.dtype
        Their type.
    names : str, list of str or None
        The field or fields that are assigned to; None: the whole items.

    Returns
    -------
    box : ndarray
        Read-only, of shape ``selection.box``. Its type may still have to be converted; that is possible.
    names : str, list of str or None
        The fields that it is meant for.

    Raises
    ------
    ValueError, TypeError, OverflowError
        Where NumPy's assignment raises them. Also for arrays with masked items, which have no value.

    Examples
    --------
    >>> from b2array.grid.selection import select
    >>> arrange([7, 8], select(slice(0, 2), (3,)), np.dtype("f4"))
    (array([7., 8.], dtype=float32), None)
    """
    check_unmasked(value)
    if names is None:
        return selection.spread(_converted(value, selection, dtype)), None
    if isinstance(names, list) or dtype[names].subdtype is None:
        return selection.spread(_converted(value, selection, dtype[names])), names
    # Such a field has more dimensions than the selection: they go into the items.
    whole = np.empty(selection.shape, [(names, dtype[names])])
    whole[names] = value
    return selection.spread(whole), [names]


def check_unmasked(value: Any) -> None:
    """Refuse masked items: they have no value, and what lies below the mask would be stored."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise TypeError("masked items have no value that could be stored: choose one with filled()")


def _converted(value: Any, selection: Selection, dtype: np.dtype[Any]) -> Array:
    # NumPy checks the range of what becomes a single item, and wraps what it casts as an array.
    if selection.is_scalar or (isinstance(value, np.generic) and selection.kind == "basic"):
        item = np.zeros((), dtype)
        item[()] = value
        return item
    if isinstance(value, np.ndarray):
        array = np.asarray(value)
        if not np.can_cast(array.dtype, dtype, "unsafe"):
            np.empty(0, dtype)[...] = np.empty(0, array.dtype)  # raises
        return array
    nested = selection.kind == "basic" and isinstance(value, list | tuple)
    try:
        array = np.asarray(value, dtype=dtype)
    except (ValueError, TypeError, OverflowError):
        if nested:  # NumPy looks how deep the lists are before it looks at what is in them
            np.empty((1,) * len(selection.shape), dtype)[...] = value
        raise
    if nested and array.ndim > len(selection.shape):
        raise ValueError(
            "setting an array element with a sequence. "
            f"The requested array would exceed the maximum number of dimension of {len(selection.shape)}."
        )
    return array
