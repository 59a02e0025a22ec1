"""Advice on values for which NumPy has no type, such as times with time zones.

pandas is not imported: its types are known by their names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["advise", "explain_ragged", "refuse_objects"]

_INSTEAD = {
    "CategoricalDtype": (
        "store text with {values}.astype(object), or {index}.codes, with the categories as an attribute"
    ),
    "DatetimeTZDtype": ("store times in UTC, {index}.tz_convert(None), with the name of the time zone as an attribute"),
    "IntervalDtype": "store {index}.left and .right, or .mid alone",
    "PeriodDtype": "store {index}.to_timestamp()",
}
_ROWS = "b2array.Rows.create(group, x) stores rows of different lengths"
_TABLES = {
    "DataFrame": "store to_records(index=False), with column_dtypes= for text, or each column as an array of a group",
    "MultiIndex": "store each level, get_level_values(n), as an array",
}


def advise(dtype: object, values: str, index: str) -> str:
    """Return advice on which values to store instead of items of a pandas type.

    Parameters
    ----------
    dtype : pandas.api.extensions.ExtensionDtype
        The type of the items.
    values, index : str
        Expressions for the values, and for them as an index of pandas.
    """
    hint = _INSTEAD.get(type(dtype).__name__, "astype() converts them to a type of NumPy")
    return hint.format(values=values, index=index)


def explain_ragged(x: object, error: ValueError) -> None:
    """Add to an error of NumPy or Awkward Array what to do with rows of different lengths."""
    library, _, _ = type(x).__module__.partition(".")
    if library == "awkward" or "inhomogeneous" in str(error):
        error.add_note(f"{_ROWS}, and awkward.fill_none replaces missing items" if library == "awkward" else _ROWS)


def refuse_objects(x: object, values: npt.NDArray[Any]) -> None:
    """Raise an error for pandas objects, lists, or times with time zones, that NumPy converts to an array of objects.

    Parameters
    ----------
    x : array-like
        The argument of the user.
    values : numpy.ndarray
        The result of `numpy.asarray` for `x`. Items that may be text are the responsibility of the caller.
    """
    name, dtype = type(x).__name__, getattr(x, "dtype", None)
    are_text = [isinstance(item, str | bytes) for item in values.flat]
    if name in _TABLES and not all(are_text):
        raise TypeError(f"the items of a {name} are of several types: {_TABLES[name]}")
    if any(are_text):
        return
    if dtype is not None and not isinstance(dtype, np.dtype):
        advice = advise(dtype, "x", "pandas.Index(x)")
        raise TypeError(f"items of pandas type {dtype} cannot be stored: {advice}")
    first = next(values.flat, None)
    if isinstance(first, np.ndarray | list):
        raise TypeError(
            f"items that are lists cannot be stored in one array, found {getattr(x, 'type', name)}: {_ROWS},"
            " numpy.stack makes one array of lists of one length"
        )
    if isinstance(first, dict):
        raise TypeError(
            f"items with fields cannot be stored as objects, found {getattr(x, 'type', name)}: store each field as an"
            " array of a group"
        )
    if getattr(first, "tzinfo", None) is not None:
        raise TypeError(f"times with a time zone cannot be stored, found {first!r:.80}: store them in UTC, without it")
