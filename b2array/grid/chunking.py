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
"""Up to this many parts divide an axis with little padding. With more parts, a round length matters more."""
FEW_BLOCKS = 4
"""Blocks may be thicker than one plane as long as a plane takes at most this many of them."""
STRETCH = 4
KEPT_WHOLE = 16
GROWING = 1024
"""The extent that an axis is expected to reach if it has none today."""
SHORT = 4
"""Automatic blocks take trailing axes of at most this many items whole: colours, vectors."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_Shape = tuple[int, ...]
_Partial = tuple[int | None, ...]


def automatic(
    shape: Sequence[int],
    itemsize: int,
    *,
    chunks: Any = None,
    blocks: Any = None,
    inner: Sequence[int] = (),
    access: Access | None = None,
) -> tuple[_Shape, _Shape]:
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
    ((46, 160, 320), (23, 40, 64))
    >>> automatic((0, 720, 1440), 4)
    ((2, 720, 1440), (1, 45, 360))
    >>> automatic((365, 720, 1440), 4, access="series")
    ((365, 360, 16), (365, 10, 16))
    >>> automatic((365, 720, 1440), 4, chunks=(1, -1, -1))
    ((1, 720, 1440), (1, 180, 288))
    """
    outer = tuple(as_int(n) for n in shape)
    extents = outer + tuple(inner)
    if len(extents) > MAX_NDIM:
        raise ValueError(f"at most {MAX_NDIM} dimensions are possible, found {len(extents)}")
    if any(n < 0 for n in extents):
        raise ValueError("negative dimensions are not allowed")
    size = max(itemsize, 1)  # items of text without characters have no bytes
    grows = 0 in outer
    word = check_access(access) or ("planes" if grows else "balanced")

    nitems = math.prod(n or GROWING for n in extents)
    nchunks = FEW_CHUNKS if word == "planes" else FEW_CHUNKS // 2
    share = nitems * size // nchunks
    usual = min(max(share, LEAST_CHUNK_NBYTES), CHUNK_NBYTES)
    chunk, chunk_nbytes = _resolve("chunks", chunks, outer, usual)
    chunk += tuple(inner)
    # Blocks are cut out of chunks, or of the whole axis where the chunk is still open.
    within = _fill(chunk, extents)
    block, block_nbytes = _resolve("blocks", blocks, within[: len(outer)], 0)
    block += tuple(inner)
    exact = tuple(length is not None for length in chunk)

    if word == "planes":
        target = min(block_nbytes or BLOCK_NBYTES, chunk_nbytes)
        chosen = _thin_block(within, target / size, block, exact)
    else:
        size_in_bytes = _Size.of(block_nbytes) if block_nbytes else _usual_size(word, size)
        wanted = size_in_bytes.at_most(chunk_nbytes).of_items(size)
        room = chunk_nbytes / size / _known_product(chunk)
        chosen = _block(within, wanted, block, exact, word, max(1.0, room))

    # Chunks consist of whole blocks, so they are chosen on the grid of blocks.
    grid = grid_shape(within, chosen)
    spanned = tuple(grid[axis] if is_exact else None for axis, is_exact in enumerate(exact))
    block_size = math.prod(chosen) * size
    nblocks = chunk_nbytes / block_size
    if word == "planes":
        counts = _divide(grid, nblocks, spanned)
    else:
        counts = _counts(grid, nblocks, spanned, word)
    whole = _whole_chunk(chosen, counts, extents, chunk)
    _check(whole, chosen, size)
    return whole, chosen


def _fill(fixed: _Partial, extents: _Shape) -> _Shape:
    """Return the extents that the user chose, and those of the array elsewhere."""
    pairs = zip(fixed, extents, strict=True)
    return tuple(extent if length is None else length for length, extent in pairs)


def _whole_chunk(block: _Shape, counts: _Shape, extents: _Shape, fixed: _Partial) -> _Shape:
    """Return the shape of a chunk of so many blocks along each axis, except where the user chose it."""
    chunk = []
    for length, count, extent, chosen in zip(block, counts, extents, fixed, strict=True):
        if chosen is not None:
            chunk.append(chosen)
            continue
        # The last chunk need not be longer than the axis, unless the axis is shorter than one block.
        multiple = length * count
        end = min(multiple, extent or multiple)
        chunk.append(max(length, end))
    return tuple(chunk)


def check_access(word: Any) -> Access | None:
    """Return the word, or None; ValueError if it is another one."""
    words = get_args(Access)
    if word is not None and word not in words:
        raise ValueError(f"access must be one of {', '.join(map(repr, words))}, not {word!r}")
    chosen: Access | None = word
    return chosen


def _resolve(name: str, wanted: Any, extents: _Shape, nbytes: int) -> tuple[_Partial, int]:
    """Return the extents that the user chose, None elsewhere, and the size of a part in bytes."""
    ndim = len(extents)
    if isinstance(wanted, Mapping):
        entries: list[Any] = [None] * ndim
        for axis, entry in wanted.items():
            if not -ndim <= as_int(axis) < ndim:
                raise ValueError(f"{name} names the axes {sorted(wanted)}, the array has {ndim}")
            entries[as_int(axis)] = entry
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
    pairs = zip(entries, extents, strict=True)
    fixed = tuple(_entry(name, entry, extent) for entry, extent in pairs)
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
    if not _is_regular(lengths, extent):
        raise ValueError(
            f"{name} along an axis of {extent} must be equal, except the last, which may be shorter: {tuple(lengths)}"
        )
    return lengths[0] or 1


def _is_regular(lengths: list[int], extent: int) -> bool:
    """Return whether an axis is cut into parts of one length, of which only the last may be shorter."""
    if not lengths or sum(lengths) != extent:
        return False
    first = lengths[0]
    equal = lengths[:-1]
    return equal == [first] * len(equal) and lengths[-1] <= first


def _nbytes(name: str, size: str) -> int:
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise ValueError(f'{name} takes "auto" or a size such as "8MB" or "512 KiB", found {size!r}')
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    power = " kmgt".index(prefix.lower() or " ")
    nbytes = float(number) * base**power
    return max(1, int(nbytes))


def _check(chunks: _Shape, blocks: _Shape, itemsize: int) -> None:
    if any(block > chunk for block, chunk in zip(blocks, chunks, strict=True)):
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
    """How large a part should be, and may be; in bytes or in items."""

    least: float
    target: float
    most: float

    @classmethod
    def of(cls, target: float) -> _Size:
        return cls(target * 3 / 4, target, target * 4 / 3)

    def at_most(self, most: float) -> _Size:
        """Return the size, but not more than this."""
        limited = [min(each, most) for each in self]
        return _Size(*limited)

    def without(self, nitems: int) -> _Size:
        """Return the size that remains for the other axes if some take `nitems` items."""
        rest = [max(1.0, each / nitems) for each in self]
        return _Size(*rest)

    def of_items(self, itemsize: int) -> _Size:
        """Return the size in items."""
        return self.without(itemsize)


# Zstd finds more in larger blocks, above all where whole items repeat, as decimals do. It finds most for their size
# above 128 KiB, where it looks for shorter matches. Above 256 KiB it has larger tables, with which it takes half as
# long again to write noise; noise of items of one or two bytes takes as long from 200 KiB on.
_BALANCED = _Size(2**17 + 1, 138 * 2**10, 192 * 2**10)
_BALANCED_WIDE = _Size(192 * 2**10, 230 * 2**10, 2**18)
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
    return _BALANCED_WIDE if itemsize >= 4 else _BALANCED


def _known_product(fixed: _Partial) -> int:
    """Return the product of the extents that are known."""
    return math.prod(n for n in fixed if n is not None)


def _block(
    extents: _Shape,
    wanted: _Size,
    fixed: _Partial,
    exact: tuple[bool, ...],
    word: Access,
    room: float,
) -> _Shape:
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
        of_axis = _Axis(extents[axis], ideal, top, exact[axis], of_block=True)
        axes.append(of_axis)
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


def _counts(grid: _Shape, target: float, fixed: _Partial, word: Access) -> _Shape:
    """Choose how many blocks a chunk has along each axis: equally many chunks along all, but more along the first."""
    free = [axis for axis, n in enumerate(fixed) if n is None]
    cells = [float(grid[axis] or GROWING) for axis in free]
    left = max(1.0, target / _known_product(fixed))
    if word == "series":
        ideals = _along_first(cells, left, cells, 1)
    else:
        shares = list(cells)
        if shares:
            shares[0] /= _FIRST
        ideals = _spread(cells, left, shares)
    extents = [grid[axis] for axis in free]
    axes = map(_Axis, extents, ideals)
    limits = _Size(left / 2, left, left * 4 / 3)
    chosen = iter(_fit(tuple(axes), limits))
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
        proportional = {axis: factor * weights[axis] for axis in free}
        long = [axis for axis in free if proportional[axis] >= extents[axis]]
        short = [axis for axis in free if proportional[axis] <= 1]
        if not long and not short:
            for axis in free:
                lengths[axis] = proportional[axis]
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
    # An axis of one item cannot be long.
    varying = [axis for axis, n in enumerate(extents) if n != 1]
    first = varying[0] if varying else 0
    others = [axis for axis in range(len(extents)) if axis != first]
    extents_across = [extents[axis] for axis in others]
    weights_across = [weights[axis] for axis in others]
    across = max(1.0, min(room, math.prod(extents_across)))
    most_along = nitems / across
    # A slice, because an array without dimensions has no first axis.
    along = [max(1.0, min(extent, most_along)) for extent in extents[first : first + 1]]
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
            unit = self._unit()
            multiple = round(self.ideal / unit)
            near = (max(1, multiple + step) * unit for step in steps)
        distinct = dict.fromkeys(min(length, extent or length) for length in near)
        if self.of_block:
            for length in list(distinct):
                longer = -(-length // _OCTET) * _OCTET
                if not extent or longer <= extent:
                    distinct.setdefault(longer)
        return [length for length in distinct if length <= self.most] or [1]

    def _unit(self) -> int:
        """Return what round lengths are multiples of: about a tenth of the ideal one, in octets."""
        if self.ideal < 24:
            return 1
        return max(8, int(self.ideal / 80) * 8)

    def badness(self, length: int) -> float:
        """Return 1 for the ideal length without padding, and more for others."""
        padding = 1.0
        if self.extent:
            count = -(-self.extent // length)
            padding = count * length / self.extent
        distance = max(length / self.ideal, self.ideal / length)
        return distance * padding**2


_Badness = tuple[float, float]


@lru_cache(maxsize=1024)
def _fit(axes: tuple[_Axis, ...], limits: _Size, across: int = 1) -> _Shape:
    """Choose whole lengths near the ideal ones, with little padding, whose product is within limits if possible.

    For a block, `across` is the product of the lengths along the other axes.
    """

    def badness(lengths: Iterable[int]) -> _Badness:
        return _badness(axes, tuple(lengths), limits, across)

    options = [axis.lengths() for axis in axes]
    if math.prod(map(len, options)) <= _MOST_TRIED:
        return min(product(*options), key=badness)
    chosen = [lengths[0] for lengths in options]
    # Twice, because the best length along one axis depends on what the later ones take.
    for place in [*range(len(axes))] * 2:
        before = chosen[:place]
        after = chosen[place + 1 :]
        candidates = [(*before, length, *after) for length in options[place]]
        chosen = list(min(candidates, key=badness))
    return tuple(chosen)


def _badness(axes: Sequence[_Axis], lengths: Sequence[int], limits: _Size, across: int) -> _Badness:
    nitems = math.prod(lengths)
    outside = max(limits.least / nitems, nitems / limits.most, 1.0)
    bad = math.prod(map(_Axis.badness, axes, lengths))
    is_block = any(axis.of_block for axis in axes)
    if is_block and nitems * across % _OCTET:
        bad *= _NO_OCTETS
    # Rounded, so that equally bad lengths are equal on every machine.
    return _round_off(outside), _round_off(bad)


def _thin_block(
    extents: _Shape,
    target: float,
    fixed: _Partial,
    exact: Sequence[bool],
) -> _Shape:
    """Choose a shape of about `target` items, thin along the first axis and long along the last one.

    One index of the first axis takes one layer of blocks, or a few blocks if that is more. Each further axis has up to
    `STRETCH` times the share of the one before: what is long along the last axis lies together in memory, and is copied
    faster.
    """
    free = [axis for axis, n in enumerate(fixed) if n is None]
    expected = tuple(n or GROWING for n in extents)
    block = list(_fill(fixed, expected))
    if not free:
        return tuple(block)
    varying = [axis for axis in free if extents[axis] != 1]
    first = varying[0] if varying else free[0]
    block[first] = 1
    cut = []
    kept = _known_product(fixed)
    others = [axis for axis in reversed(free) if axis != first]
    # The shortest first, so that as many axes as possible stay whole.
    others.sort(key=block.__getitem__)
    for axis in others:
        with_axis = kept * block[axis]
        if block[axis] <= KEPT_WHOLE and with_axis <= target:
            kept = with_axis
        else:
            cut.append(axis)
    cut.sort()

    slab = math.prod(block)
    of_cut = math.prod(block[axis] for axis in cut)
    left = max(1.0, target * of_cut / slab)
    even = left ** (1 / (len(cut) + 1))
    few_blocks = FEW_BLOCKS * target / slab
    thin = max(1.0, min(few_blocks, even, extents[first] or even))
    while cut:
        room = left / thin
        part = min(1.0, room / math.prod(block[axis] for axis in cut))
        axis = cut.pop(0)
        # An equal share, but smaller by `STRETCH` for each step from the middle of the axes that are left.
        equal = part ** (1 / (len(cut) + 1))
        stretched = equal / STRETCH ** (len(cut) / 2)
        share = max(part, stretched)
        length = min(block[axis] * share, room)
        # Rounded, so that the last digit of a machine's `pow` cannot matter.
        ideal = max(1.0, round(length, 6))
        block[axis] = _near(extents[axis], ideal, exact=exact[axis])
        left = max(1.0, left / block[axis])
    block[first] = _near(extents[first], left, exact=exact[first])
    return tuple(block)


def _divide(extents: _Shape, target: float, fixed: _Partial) -> _Shape:
    """Choose a shape of about `target` items, as equal along all free axes as the short ones allow."""
    divided = [1 if n is None else n for n in fixed]
    target = max(1.0, target / math.prod(divided))
    free = [axis for axis, n in enumerate(fixed) if n is None]
    # Short axes first: the longer ones share what they cannot take. Axes that will grow come last.
    sized = [axis for axis in free if extents[axis]]
    sized.sort(key=lambda axis: (extents[axis], -axis))
    growing = [axis for axis in reversed(free) if not extents[axis]]
    nsized = len(sized)
    order = sized + growing
    for place, axis in enumerate(order):
        stop = nsized if place < nsized else len(order)
        share = target ** (1 / (stop - place))
        ideal = round(share, 6)
        divided[axis] = _near(extents[axis], ideal, exact=False)
        target = max(1.0, target / divided[axis])
    return tuple(divided)


def _near(extent: int, ideal: float, *, exact: bool) -> int:
    """Choose a length near `ideal` that cuts `extent` with little padding."""
    count = max(1, int(extent / ideal + 0.5))
    if not extent or (not exact and count > FEW_PARTS):
        # Of many parts only the last is padded: a round length matters more there.
        if ideal >= 12:
            return round(ideal / 8) * 8
        return max(1, round(ideal))
    fewer = min(count // 5, FEW_PARTS)
    more = min(count // 4, FEW_PARTS)
    counts = range(count - fewer, count + more + 1)
    # The fewest parts of a length stay, because they come last.
    distances = {}
    for n in reversed(counts):
        length = -(-extent // n)
        distances[length] = abs(n - count)

    def badness(length: int) -> Any:
        return _waste(extent, length), distances[length]

    return min(distances, key=badness)


def _waste(extent: int, length: int) -> tuple[bool, int]:
    """Rate the padding in steps of three percent of the extent. No padding is better than a little."""
    padding = -extent % length
    return padding > 0, padding * 32 // extent
