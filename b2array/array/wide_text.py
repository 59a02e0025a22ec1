"""Warns of text whose items all have the size of the longest one, where text of any length would be much smaller."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.display.text_tables import size
from b2array.errors import PerformanceWarning, warn

__all__ = ["is_wide", "warn_of_waste"]

_LEAST_NBYTES = 64 * 2**20
_RATIO = 10
"""Warn if items have this many bytes in all, and this many times the bytes of their text."""
_SAMPLE = 2**16
"""The number of items whose text is measured."""


def is_wide(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether an array of text has so many bytes that its text is worth measuring."""
    return dtype.kind == "U" and math.prod(shape) * dtype.itemsize >= _LEAST_NBYTES


def warn_of_waste(values: npt.NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Warn if an array of this shape and type has many times the bytes of its text; `values` are some of its items."""
    if not is_wide(shape, dtype) or not values.size:
        return
    flat = values.reshape(-1)
    sample = flat[:: -(-flat.size // _SAMPLE)].astype(object).tolist()
    measured = sum(len(str(item).encode(errors="surrogatepass")) for item in sample)
    count = math.prod(shape)
    nbytes, text = count * dtype.itemsize, measured * count // len(sample)
    if nbytes >= _RATIO * text:
        warn(
            f"{count} items of type {dtype} take {size(nbytes)} in memory, and their text about {size(text)}: store "
            "text of any length, with dtype=numpy.dtypes.StringDType()",
            PerformanceWarning,
        )
