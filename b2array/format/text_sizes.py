"""The average size of text of any length, by which chunks are chosen."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from b2array.codec.text import estimate_nbytes
from b2array.grid.text_chunks import average_nbytes

__all__ = ["average_text"]


def average_text(*samples: npt.NDArray[Any], known: tuple[int, int] = (0, 0)) -> int:
    """Return the average size in bytes of items of text, from samples of them; 0 if there is nothing to measure.

    All routes that make arrays of text, or let them grow, choose chunks by this size.

    Parameters
    ----------
    *samples : numpy.ndarray
        Some of the items, as text of any length, text of one width, or objects; arrays of other types do not count.
    known : tuple of int, optional
        The bytes and the number of further items, whose size is known.

    Examples
    --------
    >>> import numpy as np
    >>> average_text(np.full(9000, "four", "T")), average_text(np.ones(3))
    (4, 0)
    >>> average_text(np.full(3, "x" * 50, "T"), known=(90, 1))
    60
    """
    nbytes, nitems = known
    for items in samples:
        if items.dtype.kind in "TUO":
            nbytes += estimate_nbytes(items)
            nitems += items.size
    return average_nbytes(nbytes, nitems) if nitems else 0
