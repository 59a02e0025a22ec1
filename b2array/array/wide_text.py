"""Warns of text whose items all have the size of the longest one, where text of any length would be much smaller."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.commit.resize import read_box
from b2array.display.text_tables import size
from b2array.errors import PerformanceWarning, warn
from b2array.frame.source import Source
from b2array.grid.layout import Layout

__all__ = ["is_wide", "warn_of_stored_waste", "warn_of_waste"]

_LEAST_NBYTES = 64 * 2**20
_RATIO = 10
"""Warn if items have this many bytes in all, and this many times the bytes of their text."""
_SAMPLE = 2**16
"""The number of items whose text is measured."""
_CHUNKS = 8
"""The number of chunks of a stored array in which text is measured."""


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


def warn_of_stored_waste(source: Source) -> None:
    """Do the same for a new array, after its items were stored: measure the first blocks of some chunks."""
    layout = source.state.require_layout()
    if not is_wide(layout.shape, layout.dtype):
        return
    count = min(layout.nchunks, _CHUNKS)
    numbers = np.linspace(0, layout.nchunks - 1, count).astype(int)
    samples = [read_box(source, layout, _first_block(layout, number)).reshape(-1) for number in numbers]
    warn_of_waste(np.concatenate(samples), layout.shape, layout.dtype)


def _first_block(layout: Layout, chunk: int) -> tuple[slice, ...]:
    """Return the box of the first block of a chunk."""
    coords = np.unravel_index(chunk, layout.grid_shape)
    starts = [int(coord) * length for coord, length in zip(coords, layout.chunks, strict=True)]
    axes = zip(starts, layout.blocks, layout.shape, strict=True)
    return tuple(slice(start, min(start + length, extent), 1) for start, length, extent in axes)
