"""Text and bytes of any length: finds a type of fixed size for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["find_dtype", "is_unsized"]

_MISSING = ("None", "nan", "NaT", "<NA>")
"""The printed forms of items that mark missing values, including the marks of pandas."""


def is_unsized(dtype: np.dtype[Any]) -> bool:
    """Return whether the items may be text of any length: items of NumPy's StringDType, or objects.

    Examples
    --------
    >>> is_unsized(np.dtypes.StringDType()), is_unsized(np.dtype("U3"))
    (True, False)
    """
    return dtype.kind in "OT"


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
