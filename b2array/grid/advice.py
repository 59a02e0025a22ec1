"""Finds keys that the chunks and blocks of an array serve badly, and better shapes, by geometry alone.

A read decodes whole blocks, which is most of its cost. So a key is served badly if other automatic shapes would decode
much less for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import get_args

from b2array.grid.chunking import Access, automatic, usual_access
from b2array.grid.layout import Layout

__all__ = ["advice", "count_decoded_nbytes"]

_MUCH = 8
"""The factor by which another kind of access must decode less, for a key to be served badly."""
_UNBALANCED = 4
"""The same factor for the usual keys of an array, compared with the shapes of new arrays."""
_LEAST_NBYTES = 2 * 2**20
"""The minimum number of decoded bytes for advice: smaller reads take only a few milliseconds."""


def count_decoded_nbytes(layout: Layout, positions: Sequence[slice]) -> int:
    """Return the total size in bytes of the blocks that slices with positive steps touch."""
    nblocks = 1
    axes = zip(layout.shape, layout.chunks, layout.blocks, positions, strict=True)
    for extent, chunk, block, position in axes:
        nblocks *= _count_touched(extent, chunk, block, position)
    return nblocks * layout.block_nbytes


def _count_touched(extent: int, chunk: int, block: int, position: slice) -> int:
    """Count the blocks along an axis that a slice touches."""
    part = range(*position.indices(extent))
    if not part:
        return 0
    per_chunk = -(-chunk // block)

    def number(item: int) -> int:
        in_chunk = item % chunk
        return item // chunk * per_chunk + in_chunk // block

    spanned = number(part[-1]) - number(part[0]) + 1
    return min(len(part), spanned)


def advice(layout: Layout, positions: Sequence[slice]) -> str:
    """Return advice on the access to choose for a key, or for the usual keys if the key is the whole array, or "".

    Examples
    --------
    >>> import numpy as np
    >>> layout = Layout((1000, 500, 500), (10, 500, 500), (1, 100, 500), np.dtype("f4"), "<f4")
    >>> advice(layout, (slice(0, 1000), slice(7, 8), slice(7, 8)))
    'access="series" would decode 781 times less'
    >>> advice(layout, (slice(0, 1), slice(0, 500), slice(0, 500)))
    ''
    """
    if not math.prod(layout.shape):
        return ""
    pairs = zip(positions, layout.shape, strict=True)
    if all(_is_whole(position, extent) for position, extent in pairs):
        return _of_array(layout)
    own = count_decoded_nbytes(layout, positions)
    if own < _LEAST_NBYTES:
        return ""
    others = {}
    for word in get_args(Access):
        other = _other(layout, word)
        others[word] = count_decoded_nbytes(other, positions)
    best = min(others, key=others.__getitem__)
    ratio = own / others[best]
    if ratio < _MUCH:
        return ""
    return f'access="{best}" would decode {ratio:.0f} times less'


def _is_whole(position: slice, extent: int) -> bool:
    taken = range(*position.indices(extent))
    return len(taken) == extent


def _other(layout: Layout, access: Access) -> Layout:
    """Return the layout that the array would have for a kind of access."""
    chunks, blocks = automatic(layout.shape, layout.itemsize, access=access)
    return Layout(layout.shape, chunks, blocks, layout.dtype, layout.dtype_text)


def _of_array(layout: Layout) -> str:
    word = usual_access(layout.shape, layout.itemsize)
    usual = _other(layout, word)
    listed = []
    for name, positions in _usual_keys(layout.shape):
        own = count_decoded_nbytes(layout, positions)
        ratio = own / count_decoded_nbytes(usual, positions)
        if own >= _LEAST_NBYTES and ratio >= _UNBALANCED:
            listed.append(f"{name} ({ratio:.0f} times)")
    if not listed:
        return ""
    return f'access="{word}" would decode less for {", ".join(listed)}'


def _usual_keys(shape: Sequence[int]) -> Iterator[tuple[str, list[slice]]]:
    """Yield a plane and a series along each axis, as text and as slices."""
    ndim = len(shape)
    middle = [slice(n // 2, n // 2 + 1) for n in shape]
    whole = [slice(0, n) for n in shape]
    for axis in range(ndim):
        plane = list(whole)
        plane[axis] = middle[axis]
        name = [":"] * ndim
        name[axis] = "i"
        yield _text(name), plane
    if ndim <= 2:  # in a matrix, series and planes are the same
        return
    for axis in range(ndim):
        series = list(middle)
        series[axis] = whole[axis]
        name = ["i"] * ndim
        name[axis] = ":"
        yield _text(name), series


def _text(parts: Sequence[str]) -> str:
    return f"a[{', '.join(parts)}]"
