"""Text and bytes in arrays of Python objects: finds the type that stores them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_text", "find_dtype", "is_unsized", "refuse_missing"]

_MISSING = ("None", "nan", "NaT", "<NA>")
"""The printed forms of items that mark missing values, including the marks of pandas."""

_STORABLE = ("None", "nan", "<NA>")
"""The marks that a StringDType can have in a file."""


def is_unsized(dtype: np.dtype[Any]) -> bool:
    """Return whether the items may be text of any length: items of NumPy's StringDType, or objects.

    Examples
    --------
    >>> is_unsized(np.dtypes.StringDType()), is_unsized(np.dtype("U3"))
    (True, False)
    """
    return dtype.kind in "OT"


def as_text(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of objects as an array of StringDType, or of bytes of one size if the first item is bytes.

    If items are missing, the mark of a missing item (None, NaN or `pandas.NA`) becomes the `na_object` of the type.

    Raises
    ------
    TypeError
        The items are of several types, or missing items have several marks.
    ValueError
        Bytes end with NUL, which would be lost.

    Examples
    --------
    >>> as_text(np.array(["a", "longer"], object))
    array(['a', 'longer'], dtype=StringDType())
    >>> as_text(np.array(["a", None], object)).dtype
    StringDType(na_object=None)
    """
    items = values.reshape(-1).tolist()
    if items and isinstance(items[0], bytes):
        return values.astype(find_dtype(values))
    marks: list[Any] = []
    for item in items:
        if isinstance(item, str):
            continue
        if str(item) not in _STORABLE:
            raise TypeError(_refusal(item, str))
        if not any(_is_same(item, mark) for mark in marks):
            marks.append(item)
    if len(marks) > 1:
        found = " and ".join(map(repr, marks))
        raise TypeError(f"expected one mark for missing items, found {found}: replace one of them, with fillna()")
    dtype = np.dtypes.StringDType(na_object=marks[0]) if marks else np.dtypes.StringDType()
    return np.array(items, dtype).reshape(values.shape)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two marks of missing items are the same; each NaN is."""
    is_nan = isinstance(one, float) and isinstance(other, float)
    return one is other or is_nan


def refuse_missing(values: npt.NDArray[Any], dtype: Any) -> None:
    """Raise TypeError if items of StringDType are missing, and `dtype` has no missing items."""
    if values.dtype.kind != "T" or hasattr(dtype, "na_object") or not hasattr(values.dtype, "na_object"):
        return
    missing = values.dtype.na_object
    if isinstance(missing, str):
        return
    if not all(isinstance(item, str) for item in values.reshape(-1).tolist()):
        raise TypeError(
            f"expected text, found missing items ({missing!r}): the array is of {dtype}, and has none; replace them, "
            f"or make the array with dtype={values.dtype}"
        )


def find_dtype(values: npt.NDArray[Any], least: int = 1) -> np.dtype[Any]:
    """Return a type of fixed size for all items of an array of text or bytes of any length.

    Parameters
    ----------
    values : numpy.ndarray
        Of StringDType, or of objects that are all `str` or all `bytes`.
    least : int
        The minimum size, in characters.

    Raises
    ------
    TypeError
        An item is neither text nor bytes.
    ValueError
        An item ends with NUL, which would be lost.

    Examples
    --------
    >>> find_dtype(np.array(["a", "é", "three"], object))
    dtype('<U5')
    >>> find_dtype(np.array([None], object))
    Traceback (most recent call last):
    TypeError: expected text, found None: text has no missing items, so store "" or another mark in its place
    """
    # An array without items becomes text.
    kind: type[str | bytes] = str
    for position, item in enumerate(values.astype(object).flat):
        if position == 0 and isinstance(item, bytes):
            kind = bytes
        if not isinstance(item, kind):
            raise TypeError(_refusal(item, kind))
        if item[-1:] in ("\0", b"\0"):
            raise ValueError(f"expected text without NUL at its end, found {item!r:.80}: text of one size loses it")
        least = max(least, len(item))
    return np.dtype((np.str_ if kind is str else np.bytes_, least))


def _refusal(item: object, kind: type) -> str:
    wanted = "text" if kind is str else "bytes"
    if str(item) in _MISSING:
        return f'expected {wanted}, found {item!r}: text has no missing items, so store "" or another mark in its place'
    return f"expected {wanted}, found {type(item).__name__} {item!r:.80}"
