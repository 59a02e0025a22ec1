"""Shapes of chunks and blocks: how they are chosen, and the forms in which a user may give them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from operator import index as as_int
from operator import mul
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from b2array.config import MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.grid.layout import MAX_NDIM, grid_shape

__all__ = ["Access", "automatic", "check_access"]

Access = Literal["balanced", "planes", "series", "boxes"]
"""How an array is mostly read. "balanced" serves every direction."""

BLOCK_NBYTES = 64 * 2**10
CHUNK_NBYTES = 8 * 2**20
LEAST_CHUNK_NBYTES = 2 * 2**20
FEW_CHUNKS = 32
"""An array that grows along its first axis is cut into so many chunks, others into half as many."""
FEW_PARTS = 16
FEW_BLOCKS = 4
STRETCH = 4
KEPT_WHOLE = 16
GROWING = 1024
SHORT = 4
"""Automatic blocks take trailing axes of at most this many items whole: colours, vectors."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_Partial = tuple[int | None, ...]


def automatic(
    shape: Sequence[int],
    itemsize: int,
    *,
    chunks: Any = None,
    blocks: Any = None,
    inner: Sequence[int] = (),
    access: Access | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the shapes of chunks and blocks, the same on every machine.

    Chunks have about a 16th of the array, or a 32nd for planes, 2 to 8 MiB: a small change writes a whole chunk. They
    consist of whole blocks except where they span the axis. An axis of extent 0 is one that will grow.

    Parameters
    ----------
    shape : sequence of int
        Shape of the array.
    itemsize : int
        Bytes of an item.
    chunks, blocks : optional
        What the user has chosen. One entry an axis, or one for all axes, or a mapping of axes to entries; axes that it
        does not name stay whole. An entry is an extent in items, -1 or None for the whole axis, "auto", or the size of
        a part, such as "8MB"; or the lengths of all parts, as dask has them.
    inner : sequence of int, optional
        Axes of the items themselves, which chunks and blocks take whole.
    access : {"balanced", "planes", "series", "boxes"}, optional
        What extents that are not given serve. "balanced": every direction, with blocks of 128 to 256 KiB; an axis is
        cut into the more blocks the longer it is. "planes": one index, or a few, of the first axis, with blocks of
        64 KiB that are thin there. "series": the first axis at one place, with blocks that are long there. "boxes":
        boxes anywhere, with blocks of 64 KiB that are equally long along all axes. By default "balanced", but "planes"
        if an axis has the extent 0: a growing array is written step by step.

    Returns
    -------
    chunks, blocks : tuple of int
        Extents in items, at least 1, inner axes included.

    Raises
    ------
    ValueError
        The given shapes do not fit the array or each other, or exceed the limits of the format: 16 dimensions,
        2147483615 bytes a chunk (with its padding to whole blocks), 536866816 bytes a block. Or `access` is not one of
        these words.

    Examples
    --------
    >>> automatic((365, 720, 1440), 4)
    ((38, 160, 336), (19, 32, 56))
    >>> automatic((0, 720, 1440), 4)
    ((2, 720, 1440), (1, 45, 360))
    >>> automatic((365, 720, 1440), 4, access="series")
    ((365, 360, 12), (365, 8, 12))
    >>> automatic((365, 720, 1440), 4, chunks=(1, -1, -1))
    ((1, 720, 1440), (1, 144, 240))
    """
    outer = tuple(as_int(n) for n in shape)
    extents = outer + tuple(inner)
    if len(extents) > MAX_NDIM:
        raise ValueError(f"at most {MAX_NDIM} dimensions are possible, found {len(extents)}")
    if any(n < 0 for n in extents):
        raise ValueError("negative dimensions are not allowed")
    size = max(itemsize, 1)
    word = check_access(access) or ("planes" if 0 in outer else "balanced")

    nitems = math.prod(n or GROWING for n in extents)
    nchunks = FEW_CHUNKS if word == "planes" else FEW_CHUNKS // 2
    share = nitems * size // nchunks
    usual = min(max(share, LEAST_CHUNK_NBYTES), CHUNK_NBYTES)
    chunk, chunk_nbytes = _resolve("chunks", chunks, outer, usual)
    chunk += tuple(inner)
    # Blocks are cut out of chunks, or of the whole axis where the chunk is still open.
    within = tuple(n if c is None else c for c, n in zip(chunk, extents, strict=True))
    block, block_nbytes = _resolve("blocks", blocks, within[: len(outer)], 0)
    block += tuple(inner)
    exact = tuple(c is not None for c in chunk)

    if word == "planes":
        target = min(block_nbytes or BLOCK_NBYTES, chunk_nbytes)
        chosen = _thin_block(within, target / size, block, exact)
    else:
        wanted = _Size.of(block_nbytes) if block_nbytes else _usual_size(word, size)
        wanted = wanted.at_most(chunk_nbytes).of_items(size)
        room = chunk_nbytes / size / _known_product(chunk)
        chosen = _block(within, wanted, block, exact, word, max(1.0, room))

    # Chunks consist of whole blocks, so they are chosen on the grid of blocks.
    grid = grid_shape(within, chosen)
    spanned = tuple(g if fixed else None for g, fixed in zip(grid, exact, strict=True))
    nblocks = chunk_nbytes / (math.prod(chosen) * size)
    if word == "planes":
        counts = _divide(grid, nblocks, spanned)
    else:
        counts = _counts(grid, nblocks, spanned, word)
    whole = []
    for length, count, extent, fixed in zip(chosen, counts, extents, chunk, strict=True):
        if fixed is not None:
            whole.append(fixed)
            continue
        # The last chunk need not be longer than the axis, unless the axis is shorter than one block.
        multiple = length * count
        whole.append(max(length, min(multiple, extent or multiple)))
    _check(tuple(whole), chosen, size)
    return tuple(whole), chosen


def check_access(word: Any) -> Access | None:
    """Return the word, or None; ValueError if it is another one."""
    if word is not None and word not in get_args(Access):
        raise ValueError(f"access must be one of {', '.join(map(repr, get_args(Access)))}, not {word!r}")
    chosen: Access | None = word
    return chosen


def _resolve(name: str, wanted: Any, extents: tuple[int, ...], nbytes: int) -> tuple[_Partial, int]:
    """Return the extents that the user chose, None elsewhere, and the size of a part in bytes."""
    ndim = len(extents)
    if isinstance(wanted, Mapping):
        if any(not -ndim <= as_int(axis) < ndim for axis in wanted):
            raise ValueError(f"{name} names the axes {sorted(wanted)}, the array has {ndim}")
        by_axis = {as_int(axis) % ndim: entry for axis, entry in wanted.items()}
        entries = [by_axis.get(axis) for axis in range(ndim)]
    elif wanted is True:
        entries = ["auto"] * ndim
    elif isinstance(wanted, str | None):
        entries = [wanted or "auto"] * ndim
    elif isinstance(wanted, Sequence) or np.ndim(wanted):
        entries = list(wanted)
    else:
        entries = [wanted] * ndim
    if len(entries) != ndim:
        raise ValueError(f"{name} must have {ndim} extents, as the shape has, not {len(entries)}: {wanted}")
    sizes = {entry for entry in entries if isinstance(entry, str) and entry != "auto"}
    if len(sizes) > 1:
        raise ValueError(f"{name} can have one size, not {len(sizes)}: {wanted}")
    fixed = tuple(_entry(name, entry, n) for entry, n in zip(entries, extents, strict=True))
    if sizes:
        nbytes = _nbytes(name, sizes.pop())
    return fixed, nbytes


def _entry(name: str, entry: Any, extent: int) -> int | None:
    if isinstance(entry, str) or entry is True:  # as h5py says that it may choose
        return None
    if entry is False:
        raise ValueError(f"{name} cannot be False: every array has {name}; -1 takes a whole axis")
    is_list = isinstance(entry, Sequence)
    if entry is None or (not is_list and as_int(entry) == -1):
        return extent or None  # an axis that will grow is not cut at its present end
    if is_list:
        entry = _common_length(name, entry, extent)
    length = as_int(entry)
    if length < 1:
        raise ValueError(f"the extents of {name} must be at least 1, or -1 for a whole axis, found {entry}")
    return length


def _common_length(name: str, entry: Sequence[Any], extent: int) -> int:
    """Return the length of parts that dask lists one by one; ValueError if they do not form a regular grid."""
    lengths = [as_int(n) for n in entry]
    is_regular = (
        bool(lengths) and sum(lengths) == extent and not set(lengths[:-1]) - {lengths[0]} and lengths[-1] <= lengths[0]
    )
    if not is_regular:
        raise ValueError(
            f"{name} along an axis of {extent} must be equal, except the last, which may be shorter: {tuple(lengths)}"
        )
    return lengths[0] or 1


def _nbytes(name: str, size: str) -> int:
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise ValueError(f'{name} takes "auto" or a size such as "8MB" or "512 KiB", found {size!r}')
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    power = " kmgt".index(prefix.lower() or " ")
    return max(1, int(float(number) * base**power))


def _check(chunks: tuple[int, ...], blocks: tuple[int, ...], itemsize: int) -> None:
    if any(b > c for b, c in zip(blocks, chunks, strict=True)):
        raise ValueError(f"blocks {blocks} must not exceed chunks {chunks}")
    block_nbytes = math.prod(blocks) * itemsize
    if block_nbytes > MAX_BLOCKSIZE:
        raise ValueError(f"blocks {blocks} have {block_nbytes} bytes each, more than {MAX_BLOCKSIZE}")
    padded = map(mul, grid_shape(chunks, blocks), blocks)
    chunk_nbytes = math.prod(padded) * itemsize
    if chunk_nbytes > MAX_CHUNK_NBYTES:
        raise ValueError(
            f"chunks {chunks} have {chunk_nbytes} bytes each when padded to whole blocks {blocks}, "
            f"more than {MAX_CHUNK_NBYTES}"
        )


class _Size(NamedTuple):
    """How large a part is to be, and may be; in bytes or in items."""

    least: float
    target: float
    most: float

    @classmethod
    def of(cls, target: float) -> _Size:
        return cls(target * 3 / 4, target, target * 4 / 3)

    def at_most(self, most: float) -> _Size:
        """Return the size, but not more than this."""
        return _Size(*(min(each, most) for each in self))

    def without(self, nitems: int) -> _Size:
        """Return the size that remains for the other axes if some take `nitems` items."""
        return _Size(*(max(1.0, each / nitems) for each in self))

    def of_items(self, itemsize: int) -> _Size:
        """Return the size in items."""
        return self.without(itemsize)


# Zstd looks for shorter matches in blocks of more than 128 KiB, up to 256 KiB: decimals, which no filter helps, become
# a tenth to a quarter smaller, and everything is written faster. The least such blocks serve small reads best, but
# items of eight bytes have to see further. With the larger tables that it has above 256 KiB, zstd takes half as long
# again to write those that are noise.
_BALANCED = {1: _Size(2**17 + 1, 138 * 2**10, 192 * 2**10), 8: _Size(192 * 2**10, 230 * 2**10, 2**18)}
_LONGER = 1.1
"""An array of three and more axes is a stack of pictures, and a few of them are read more often than columns of all.
So of two equal axes blocks are longer along the later one by this, where runs of memory are longer anyway."""
_FIRST = 2
"""A chunk has a share of the first axis that is smaller by this. Along it most arrays are written step by step, and
appended to; and each chunk that a step touches is written again."""
_SERIES = 16
"""A block for series has at least this many places."""
_REACH = 3
_OCTET = 8
"""C-Blosc shuffles bits of eight items together. It leaves the bits of blocks of other numbers of items alone, so that
NumPy has to shuffle them, which takes three times as long; to undo bytedelta takes twice as long."""
_NO_OCTETS = 1.5
"""A shape that makes such blocks has to be closer to the ideal one by this."""
_MOST_TRIED = 14**2
"""With few axes, all combinations of lengths are tried; with more, one axis after the other."""


def _usual_size(word: Access, itemsize: int) -> _Size:
    if word == "boxes":
        return _Size.of(BLOCK_NBYTES)
    return _BALANCED[8 if itemsize >= 8 else 1]


def _known_product(fixed: _Partial) -> int:
    """Return the product of the extents that are known."""
    return math.prod(n for n in fixed if n is not None)


def _block(
    extents: tuple[int, ...],
    wanted: _Size,
    fixed: _Partial,
    exact: tuple[bool, ...],
    word: Access,
    room: float,
) -> tuple[int, ...]:
    """Choose a shape of blocks that is bad for no key.

    A plane decodes as many layers as the block is thick, a series as many blocks as the axis is cut into. Along each
    axis, one gains what the other loses. So a block takes n ** (5 / 8) of an axis of n, in between of the same number
    of items and of the same share. `room` is how many items a chunk may have along the axes that the user left open.
    """
    lengths = list(fixed)
    nitems = _known_product(fixed)
    free = [axis for axis, n in enumerate(fixed) if n is None]
    while free:
        last = extents[free[-1]]
        is_short = 0 < last <= SHORT
        if not is_short or last * nitems > wanted.target:
            break
        lengths[free.pop()] = last
        nitems *= last

    rest: list[float] = [extents[axis] or GROWING for axis in free]
    weights = _weights(rest, word)
    tops = [math.inf] * len(free)
    if any(exact):
        # The extents that the user chose limit how many items a chunk has along the other axes.
        cut = [place for place, axis in enumerate(free) if not exact[axis]]
        extents_cut = [rest[place] for place in cut]
        weights_cut = [weights[place] for place in cut]
        caps = _spread(extents_cut, room, weights_cut)
        for place, cap in zip(cut, caps, strict=True):
            rest[place] = cap
            tops[place] = cap

    left = max(1.0, wanted.target / nitems)
    if word == "series":
        ideals = _along_first(rest, left, weights, _SERIES)
    else:
        ideals = _spread(rest, left, weights)
    axes = []
    for axis, ideal, top in zip(free, ideals, tops, strict=True):
        axes.append(_Axis(extents[axis], ideal, top, exact[axis], of_block=True))
    chosen = _fit(tuple(axes), wanted.without(nitems), nitems)
    for axis, length in zip(free, chosen, strict=True):
        lengths[axis] = length
    return tuple(n or 1 for n in lengths)


def _weights(extents: Sequence[float], word: Access) -> list[float]:
    """Return to what the lengths of a block are proportional, as far as the extents allow."""
    if word == "boxes":
        return [1.0] * len(extents)
    weights = [_between(extent) for extent in extents]
    if word == "balanced" and len(extents) > 2:
        return [weight * _LONGER**place for place, weight in enumerate(weights)]
    return weights


def _counts(grid: tuple[int, ...], target: float, fixed: _Partial, word: Access) -> tuple[int, ...]:
    """Choose how many blocks a chunk has along each axis: equally many chunks along all, but more along the first."""
    free = [axis for axis, n in enumerate(fixed) if n is None]
    cells = [float(grid[axis] or GROWING) for axis in free]
    left = max(1.0, target / _known_product(fixed))
    if word == "series":
        ideals = _along_first(cells, left, cells, 1)
    else:
        shares = [cell if place else cell / _FIRST for place, cell in enumerate(cells)]
        ideals = _spread(cells, left, shares)
    axes = tuple(_Axis(grid[axis], ideal) for axis, ideal in zip(free, ideals, strict=True))
    limits = _Size(left / 2, left, left * 4 / 3)
    chosen = iter(_fit(axes, limits))
    return tuple(next(chosen) if n is None else n for n in fixed)


def _between(extent: float) -> float:
    """Return the extent to the power of 5 / 8. Square roots are the same on all machines, powers are not."""
    return math.sqrt(extent * math.sqrt(math.sqrt(extent)))


def _spread(extents: Sequence[float], nitems: float, weights: Sequence[float]) -> list[float]:
    """Return lengths whose product is `nitems`: proportional to the weights, but at least 1, and within the extents."""
    lengths = [1.0] * len(extents)
    free = list(range(len(extents)))
    left = nitems
    while free:
        total = math.prod(weights[axis] for axis in free)
        # Rounded, so that the last digit of a machine's `pow` cannot matter.
        factor = _round_off((left / total) ** (1 / len(free)))
        long = [axis for axis in free if factor * weights[axis] >= extents[axis]]
        short = [axis for axis in free if factor * weights[axis] <= 1]
        if not long and not short:
            for axis in free:
                lengths[axis] = factor * weights[axis]
            break
        # Fix the axes that cannot follow their weights, and share the rest among the others.
        for axis in long:
            lengths[axis] = float(extents[axis])
        bound = long or short
        taken = math.prod(lengths[axis] for axis in bound)
        left = max(1.0, left / taken)
        free = [axis for axis in free if axis not in bound]
    return [_round_off(length) for length in lengths]


def _round_off(number: float) -> float:
    return float(f"{number:.9g}")


def _along_first(
    extents: Sequence[float],
    nitems: float,
    weights: Sequence[float],
    room: int,
) -> list[float]:
    """Return lengths like `_spread`, but long along the first axis, with at least `room` items across if possible."""
    first = next((axis for axis, n in enumerate(extents) if n != 1), 0)
    others = [axis for axis in range(len(extents)) if axis != first]
    extents_across = [extents[axis] for axis in others]
    weights_across = [weights[axis] for axis in others]
    across = max(1.0, min(room, math.prod(extents_across)))
    # A list, because an array without dimensions has no first axis.
    along = [max(1.0, min(n, nitems / across)) for n in extents[first : first + 1]]
    rest = nitems / math.prod(along)
    lengths = _spread(extents_across, rest, weights_across)
    return lengths[:first] + along + lengths[first:]


class _Axis(NamedTuple):
    """An axis, its ideal length, and the most that is possible. `exact`: no part of it may have much padding.

    `of_block`: the lengths are in items, not in blocks.
    """

    extent: int
    ideal: float
    most: float = math.inf
    exact: bool = False
    of_block: bool = False

    def lengths(self) -> list[int]:
        """Return lengths near the ideal one, the nearest first."""
        steps = sorted(range(-_REACH, _REACH + 1), key=abs)
        extent = self.extent
        count = max(1, int(extent / self.ideal + 0.5))
        near: Iterable[int]
        if extent and (self.exact or count <= FEW_PARTS):
            counts = (max(1, min(extent, count + step)) for step in steps)
            near = (-(-extent // n) for n in counts)
        else:
            # Of many parts only the last is padded: a round length matters more there.
            unit = max(8, int(self.ideal / 80) * 8) if self.ideal >= 24 else 1
            near = (max(1, round(self.ideal / unit) + step) * unit for step in steps)
        distinct = dict.fromkeys(min(length, extent or length) for length in near)
        if self.of_block:
            longer = (-(-length // _OCTET) * _OCTET for length in [*distinct])
            distinct |= dict.fromkeys(length for length in longer if not extent or length <= extent)
        return [length for length in distinct if length <= self.most] or [1]

    def badness(self, length: int) -> float:
        """Return 1 for the ideal length without padding, and more for others."""
        padding = 1.0
        if self.extent:
            count = -(-self.extent // length)
            padding = count * length / self.extent
        distance = max(length / self.ideal, self.ideal / length)
        return distance * padding**2


@lru_cache(maxsize=1024)
def _fit(axes: tuple[_Axis, ...], limits: _Size, across: int = 1) -> tuple[int, ...]:
    """Choose whole lengths near the ideal ones, with little padding, whose product is within limits if possible.

    Of a block, `across` is the product of the lengths along the other axes.
    """

    def badness(lengths: Sequence[int]) -> tuple[float, float]:
        return _badness(axes, lengths, limits, across)

    options = [axis.lengths() for axis in axes]
    if math.prod(map(len, options)) <= _MOST_TRIED:
        return min(product(*options), key=badness)
    chosen = [lengths[0] for lengths in options]
    for place in [*range(len(axes))] * 2:
        tried = [(*chosen[:place], length, *chosen[place + 1 :]) for length in options[place]]
        chosen = [*min(tried, key=badness)]
    return tuple(chosen)


def _badness(axes: Sequence[_Axis], lengths: Sequence[int], limits: _Size, across: int) -> tuple[float, float]:
    nitems = math.prod(lengths)
    outside = max(limits.least / nitems, nitems / limits.most, 1.0)
    bad = math.prod(map(_Axis.badness, axes, lengths))
    if any(axis.of_block for axis in axes) and nitems * across % _OCTET:
        bad *= _NO_OCTETS
    return _round_off(outside), _round_off(bad)


def _thin_block(
    extents: tuple[int, ...],
    target: float,
    fixed: _Partial,
    exact: Sequence[bool],
) -> tuple[int, ...]:
    """Choose a shape of about `target` items, thin along the first axis and long along the last one.

    One index of the first axis takes one layer of blocks, or a few blocks if that is more. Each further axis has up to
    `STRETCH` times the share of the one before: what is long along the last axis lies together in memory, and is copied
    faster.
    """
    free = [axis for axis, n in enumerate(fixed) if n is None]
    block = [f if f is not None else n or GROWING for n, f in zip(extents, fixed, strict=True)]
    if not free:
        return tuple(block)
    first = next((axis for axis in free if extents[axis] != 1), free[0])
    block[first] = 1
    cut = []
    kept = _known_product(fixed)
    others = set(free) - {first}
    for axis in sorted(others, key=lambda axis: (block[axis], -axis)):
        if block[axis] <= KEPT_WHOLE and kept * block[axis] <= target:
            kept *= block[axis]
        else:
            cut.append(axis)
    cut.sort()

    slab = math.prod(block)
    of_cut = math.prod(block[axis] for axis in cut)
    left = max(1.0, target * of_cut / slab)
    even = left ** (1 / (len(cut) + 1))
    thin = max(1.0, min(FEW_BLOCKS * target / slab, even, extents[first] or even))
    while cut:
        room = left / thin
        part = min(1.0, room / math.prod(block[axis] for axis in cut))
        axis = cut.pop(0)
        stretched = part ** (1 / (len(cut) + 1)) / STRETCH ** (len(cut) / 2)
        share = max(part, stretched)
        # Rounded, so that the last digit of a machine's `pow` cannot matter.
        ideal = max(1.0, round(min(block[axis] * share, room), 6))
        block[axis] = _near(extents[axis], ideal, exact=exact[axis])
        left = max(1.0, left / block[axis])
    block[first] = _near(extents[first], left, exact=exact[first])
    return tuple(block)


def _divide(extents: tuple[int, ...], target: float, fixed: _Partial) -> tuple[int, ...]:
    """Choose a shape of about `target` items, as equal along all free axes as the short ones allow."""
    divided = [1 if n is None else n for n in fixed]
    target = max(1.0, target / math.prod(divided))
    free = [axis for axis, n in enumerate(fixed) if n is None]
    # Short axes first: the longer ones share what they cannot take. Axes that will grow come last.
    order = sorted(free, key=lambda axis: (extents[axis] == 0, extents[axis], -axis))
    nsized = sum(extents[axis] > 0 for axis in order)
    for place, axis in enumerate(order):
        stop = nsized if place < nsized else len(order)
        ideal = round(target ** (1 / (stop - place)), 6)
        divided[axis] = _near(extents[axis], ideal, exact=False)
        target = max(1.0, target / divided[axis])
    return tuple(divided)


def _near(extent: int, ideal: float, *, exact: bool) -> int:
    """Choose a length near `ideal` that cuts `extent` with little padding."""
    count = max(1, int(extent / ideal + 0.5))
    if not extent or (not exact and count > FEW_PARTS):
        # Of many parts only the last is padded: a round length matters more there.
        return round(ideal / 8) * 8 if ideal >= 12 else max(1, round(ideal))
    fewer = min(count // 5, FEW_PARTS)
    more = min(count // 4, FEW_PARTS)
    counts = range(count - fewer, count + more + 1)
    # The fewest parts of a length stay, because they come last.
    distances = {-(-extent // n): abs(n - count) for n in reversed(counts)}
    return min(distances, key=lambda length: (_waste(extent, length), distances[length]))


def _waste(extent: int, length: int) -> tuple[bool, int]:
    """Rate the padding in steps of three percent of the extent. No padding is better than a little."""
    padding = -extent % length
    return padding > 0, padding * 32 // extent
