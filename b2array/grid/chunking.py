"""Shapes of chunks and blocks: the automatic choice, and the forms in which a user may specify them."""

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

__all__ = ["Access", "automatic", "check_access", "commit_length", "is_automatic", "usual_access"]

Access = Literal["balanced", "planes", "series", "boxes", "samples"]
"""The most common way of reading an array. "balanced" serves every direction."""

BLOCK_NBYTES = 64 * 2**10
CHUNK_NBYTES = 8 * 2**20
LEAST_CHUNK_NBYTES = 2 * 2**20
LEAST_COMMIT_NBYTES = 2**18
"""Smaller regular commits share a chunk, which each of them writes again. Larger ones do not share any."""
FEW_CHUNKS = 32
"""The number of chunks of an array that grows along its first axis; other arrays have half as many."""
FEW_PARTS = 16
"""Up to this many parts are chosen for little padding; with more parts, a round length matters more."""
FEW_BLOCKS = 4
"""Blocks may be thicker than one plane if a plane needs at most this many blocks."""
STRETCH = 4
KEPT_WHOLE = 16
GROWING = 1024
"""The extent that an empty axis is expected to reach."""
SAMPLE_NBYTES = 2**9, 2**20
"""The size of an item of the first axis, such as a picture or a text, if the array is a set of samples."""
SMALL_BLOCK_NBYTES = 2**14
"""Blocks of very small samples have this size: a random sample decodes the whole block."""
SAMPLES_IN_BLOCK = 4
WHOLE_SAMPLE_NBYTES = 2**18
"""Larger samples are cut into several blocks."""
MANY_SAMPLES = 64
"""An array is a set of samples if its first axis is this many times as long as all others, or if it has colours."""
SHORT = 4
"""Automatic blocks span trailing axes of at most this many items, such as colours or vectors."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_Shape = tuple[int, ...]
_Partial = tuple[int | None, ...]


def is_automatic(extents: Any) -> bool:
    """Return whether extents of chunks or blocks leave the choice open."""
    return extents is None or (isinstance(extents, str) and extents == "auto")


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

    A chunk is about a 16th of the array, or a 32nd for planes, but 2 to 8 MiB, because a small change writes a whole
    chunk. Chunks consist of whole blocks except where they span the axis. An axis of extent 0 is expected to grow.

    Parameters
    ----------
    shape : sequence of int
        Shape of the array.
    itemsize : int
        Size of an item in bytes.
    chunks, blocks : optional
        The user's choice: one entry per axis, one entry for all axes, or a mapping from axes to entries, which leaves
        other axes whole. An entry is an extent in items, -1 or None for the whole axis, "auto", the size of a part,
        such as "8MB", or the lengths of all parts, as in dask.
    inner : sequence of int, optional
        Extents of the axes within an item, which chunks and blocks always span.
    access : {"balanced", "planes", "series", "boxes", "samples"}, optional
        The reads for which unspecified extents are chosen. "balanced": reads in every direction, with blocks of 128 to
        256 KiB; longer axes are cut into more blocks. "planes": one index, or a few, of the first axis, with blocks of
        64 KiB that are thin along this axis. "series": the whole first axis at one position, with blocks that are long
        along this axis. "boxes": boxes anywhere, with blocks of 64 KiB that are equally long along all axes.
        "samples": a random index of the first axis, with blocks of a few whole samples. By default "balanced", but
        "planes" if an axis has the extent 0, because a growing array is written step by step, and "samples" for
        pictures: items of one byte, a first axis that is much longer than the others or an axis of colours, and 512
        bytes to 1 MiB for each index of the first axis.

    Returns
    -------
    chunks, blocks : tuple of int
        Extents in items, at least 1, inner axes included.

    Raises
    ------
    ValueError
        The given shapes do not fit the array or each other, or exceed the limits of the format: 16 dimensions,
        2147483615 bytes per chunk (with its padding to whole blocks), 536866816 bytes per block. Or `access` is an
        unknown word.

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
    >>> automatic((24000, 3, 64, 64), 1)
    ((672, 3, 64, 64), (4, 3, 64, 64))
    """
    outer = tuple(as_int(n) for n in shape)
    extents = outer + tuple(inner)
    if len(extents) > MAX_NDIM:
        raise ValueError(f"at most {MAX_NDIM} dimensions are possible, found {len(extents)}")
    if any(n < 0 for n in extents):
        raise ValueError("negative dimensions are not allowed")
    size = max(itemsize, 1)  # empty text items have a size of 0 bytes
    word = check_access(access) or usual_access(extents, size)
    by_first = word in ("planes", "samples")

    nitems = math.prod(n or GROWING for n in extents)
    nchunks = FEW_CHUNKS if by_first else FEW_CHUNKS // 2
    share = nitems * size // nchunks
    usual = min(max(share, LEAST_CHUNK_NBYTES), CHUNK_NBYTES)
    chunk, chunk_nbytes = _resolve("chunks", chunks, outer, usual)
    chunk += tuple(inner)
    # Blocks are cut from chunks, or from the whole axis if the extent of the chunk is not yet chosen.
    within = _fill(chunk, extents)
    block, block_nbytes = _resolve("blocks", blocks, within[: len(outer)], 0)
    block += tuple(inner)
    exact = tuple(length is not None for length in chunk)

    if word == "samples":
        chosen = _sample_block(within, size, block_nbytes or None, chunk_nbytes, block, exact)
    elif word == "planes":
        target = min(block_nbytes or BLOCK_NBYTES, chunk_nbytes)
        chosen = _thin_block(within, target / size, block, exact)
    else:
        size_in_bytes = _Size.of(block_nbytes) if block_nbytes else _usual_size(word, size)
        wanted = size_in_bytes.at_most(chunk_nbytes).of_items(size)
        room = chunk_nbytes / size / _known_product(chunk)
        chosen = _block(within, wanted, block, exact, word, max(1.0, room))

    # Chunks consist of whole blocks, so choose them on the grid of blocks.
    grid = grid_shape(within, chosen)
    spanned = tuple(grid[axis] if is_exact else None for axis, is_exact in enumerate(exact))
    block_size = math.prod(chosen) * size
    nblocks = chunk_nbytes / block_size
    if by_first:
        counts = _divide(grid, nblocks, spanned)
    else:
        counts = _counts(grid, nblocks, spanned, word)
    whole = _whole_chunk(chosen, counts, extents, chunk)
    _check(whole, chosen, size)
    return whole, chosen


def commit_length(every: int, step_nbytes: int, usual: int) -> int:
    """Return how many steps a chunk has if `every` steps are committed together, so that commits end where chunks end.

    Large commits are cut into equal chunks, and chunks are made of several small commits. `usual` is the number of
    steps in a chunk without regular commits, `step_nbytes` the size of a step in bytes.

    Examples
    --------
    >>> commit_length(3000, 768, 2688), commit_length(10, 768, 2688), commit_length(10**5, 768, 2688)
    (3000, 2690, 2500)
    """
    if every * step_nbytes < LEAST_COMMIT_NBYTES:
        return every * max(1, round(usual / every))
    least = max(1, round(every / usual))
    # Without such a divisor, the last chunk of a commit is shorter, and the next commit writes it again.
    counts = (count for count in range(least, 2 * least + 1) if every % count == 0)
    return -(-every // next(counts, least))


def _fill(fixed: _Partial, extents: _Shape) -> _Shape:
    """Return the extents that the user chose, and elsewhere the extents of the array."""
    pairs = zip(fixed, extents, strict=True)
    return tuple(extent if length is None else length for length, extent in pairs)


def _whole_chunk(block: _Shape, counts: _Shape, extents: _Shape, fixed: _Partial) -> _Shape:
    """Return the shape of a chunk with these numbers of blocks, except for extents that the user chose."""
    chunk = []
    for length, count, extent, chosen in zip(block, counts, extents, fixed, strict=True):
        if chosen is not None:
            chunk.append(chosen)
            continue
        # A chunk need not be longer than the axis, unless the axis is shorter than one block.
        multiple = length * count
        end = min(multiple, extent or multiple)
        chunk.append(max(length, end))
    return tuple(chunk)


def usual_access(shape: Sequence[int], itemsize: int) -> Access:
    """Return the kind of access that an array serves by default.

    Examples
    --------
    >>> usual_access((24000, 3, 64, 64), 1), usual_access((24000, 3, 64, 64), 4), usual_access((0, 500), 4)
    ('samples', 'balanced', 'planes')
    """
    if _has_pictures(shape, itemsize):
        return "samples"
    return "planes" if 0 in shape else "balanced"


def check_access(word: Any) -> Access | None:
    """Return a valid access word or None; otherwise raise ValueError."""
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
    if isinstance(entry, str) or entry is True:  # the way to request automatic chunks in h5py
        return None
    if entry is False:
        raise ValueError(f"{name} cannot be False: every array has {name}; -1 takes a whole axis")
    is_list = isinstance(entry, Sequence)
    if entry is None or (not is_list and as_int(entry) == -1):
        return extent or None  # a growing axis is not cut at its current end
    if is_list:
        entry = _common_length(name, entry, extent)
    length = as_int(entry)
    if length < 1:
        raise ValueError(f"the extents of {name} must be at least 1, or -1 for a whole axis, found {entry}")
    return length


def _common_length(name: str, entry: Sequence[Any], extent: int) -> int:
    """Return the common length of parts that are listed as in dask; ValueError if they do not form a regular grid."""
    lengths = [as_int(n) for n in entry]
    if not _is_regular(lengths, extent):
        raise ValueError(
            f"{name} along an axis of {extent} must be equal, except the last, which may be shorter: {tuple(lengths)}"
        )
    return lengths[0] or 1


def _is_regular(lengths: list[int], extent: int) -> bool:
    """Return whether all parts of an axis have the same length, except for a shorter last part."""
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
    """The target and limits for the size of a part, in bytes or in items."""

    least: float
    target: float
    most: float

    @classmethod
    def of(cls, target: float) -> _Size:
        return cls(target * 3 / 4, target, target * 4 / 3)

    def at_most(self, most: float) -> _Size:
        """Return the size, limited to a maximum."""
        limited = [min(each, most) for each in self]
        return _Size(*limited)

    def without(self, nitems: int) -> _Size:
        """Return the size that remains for the other axes if some axes account for `nitems` items."""
        rest = [max(1.0, each / nitems) for each in self]
        return _Size(*rest)

    def of_items(self, itemsize: int) -> _Size:
        """Return the size in items."""
        return self.without(itemsize)


# Zstd compresses larger blocks better, above all where whole items repeat, as decimals do. It gains most just above
# 128 KiB, where it begins to look for shorter matches. Above 256 KiB it uses larger tables, and takes half as long
# again to write noise; noise of items of one or two bytes takes as long from 200 KiB on.
_BALANCED = _Size(2**17 + 1, 138 * 2**10, 192 * 2**10)
_BALANCED_WIDE = _Size(192 * 2**10, 230 * 2**10, 2**18)
_LONGER = 1.1
"""The ratio of block lengths along two consecutive axes of equal extent, if the array has three or more axes. Such an
array is a stack of pictures, and reads of a few pictures are more common than reads of columns through all pictures.
Blocks are longer along the later axis, where contiguous runs of memory are longer anyway."""
_FIRST = 2
"""The factor by which a chunk's share of the first axis is smaller. Most arrays are written and extended step by step
along this axis, and each step rewrites every chunk that it touches."""
_SERIES = 16
"""The minimum number of positions across the first axis in a block for series."""
_REACH = 3
_OCTET = 8
"""The number of items whose bits C-Blosc shuffles together. If the number of items in a block is not a multiple, NumPy
must shuffle the bits, which takes three times as long, and undoing bytedelta takes twice as long."""
_NO_OCTETS = 1.5
"""The factor by which the shape of a block without whole octets must be closer to the ideal."""
_MOST_TRIED = 14**2
"""The maximum number of combinations of lengths to try; with more combinations, one axis is fitted after the other."""


def _usual_size(word: Access, itemsize: int) -> _Size:
    if word == "boxes":
        return _Size.of(BLOCK_NBYTES)
    return _BALANCED_WIDE if itemsize >= 4 else _BALANCED


def _known_product(fixed: _Partial) -> int:
    """Return the product of the known extents."""
    return math.prod(n for n in fixed if n is not None)


def _block(
    extents: _Shape,
    wanted: _Size,
    fixed: _Partial,
    exact: tuple[bool, ...],
    word: Access,
    room: float,
) -> _Shape:
    """Choose a shape of blocks that serves no key badly.

    A plane decodes as many layers as the block is thick, a series as many blocks as the axis is cut into. Along each
    axis, one gains what the other loses. So a block takes n ** (5 / 8) items of an axis with n items, a compromise
    between the same number of items and the same share of every axis. `room` is the maximum number of items in a chunk
    along the axes that the user left open.
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
        # The extents that the user chose limit the number of items in a chunk along the other axes.
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
    """Return the weights to which the lengths of a block are proportional, as far as the extents allow."""
    if word == "boxes":
        return [1.0] * len(extents)
    weights = [_between(extent) for extent in extents]
    if word == "balanced" and len(extents) > 2:
        return [weight * _LONGER**place for place, weight in enumerate(weights)]
    return weights


def _counts(grid: _Shape, target: float, fixed: _Partial, word: Access) -> _Shape:
    """Choose the number of blocks in a chunk along each axis. The first axis is cut into more chunks than others."""
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
    """Return the extent to the power of 5 / 8, by square roots, which, unlike powers, are the same on all machines."""
    return math.sqrt(extent * math.sqrt(math.sqrt(extent)))


def _spread(extents: Sequence[float], nitems: float, weights: Sequence[float]) -> list[float]:
    """Return lengths with the product `nitems`, proportional to the weights, but at least 1 and within the extents."""
    lengths = [1.0] * len(extents)
    free = list(range(len(extents)))
    left = nitems
    while free:
        total = math.prod(weights[axis] for axis in free)
        # Round, so that differences between machines in the last digit of `pow` do not matter.
        factor = _round_off((left / total) ** (1 / len(free)))
        proportional = {axis: factor * weights[axis] for axis in free}
        long = [axis for axis in free if proportional[axis] >= extents[axis]]
        short = [axis for axis in free if proportional[axis] <= 1]
        if not long and not short:
            for axis in free:
                lengths[axis] = proportional[axis]
            break
        # Fix the axes that cannot follow their weights, and distribute the rest over the other axes.
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
    # Use a slice, because an array without dimensions has no first axis.
    along = [max(1.0, min(extent, most_along)) for extent in extents[first : first + 1]]
    rest = nitems / math.prod(along)
    lengths = _spread(extents_across, rest, weights_across)
    return lengths[:first] + along + lengths[first:]


class _Axis(NamedTuple):
    """An axis with the ideal and maximum lengths of its parts. `exact`: no part may have much padding.

    `of_block`: the parts are blocks, with lengths in items; otherwise chunks, with lengths in blocks.
    """

    extent: int
    ideal: float
    most: float = math.inf
    exact: bool = False
    of_block: bool = False

    def lengths(self) -> list[int]:
        """Return lengths near the ideal length, nearest first."""
        steps = sorted(range(-_REACH, _REACH + 1), key=abs)
        extent = self.extent
        count = max(1, int(extent / self.ideal + 0.5))
        near: Iterable[int]
        if extent and (self.exact or count <= FEW_PARTS):
            counts = (max(1, min(extent, count + step)) for step in steps)
            near = (-(-extent // n) for n in counts)
        else:
            # Of many parts only the last is padded, so a round length matters more.
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
        """Return the unit of round lengths: about a tenth of the ideal length, in octets."""
        if self.ideal < 24:
            return 1
        return max(8, int(self.ideal / 80) * 8)

    def badness(self, length: int) -> float:
        """Return 1 for the ideal length without padding, and larger numbers for other lengths."""
        padding = 1.0
        if self.extent:
            count = -(-self.extent // length)
            padding = count * length / self.extent
        distance = max(length / self.ideal, self.ideal / length)
        return distance * padding**2


_Badness = tuple[float, float]


@lru_cache(maxsize=1024)
def _fit(axes: tuple[_Axis, ...], limits: _Size, across: int = 1) -> _Shape:
    """Choose integer lengths near the ideal lengths, with little padding, and with a product within limits if possible.

    For a block, `across` is the product of the lengths along the other axes.
    """

    def badness(lengths: Iterable[int]) -> _Badness:
        return _badness(axes, tuple(lengths), limits, across)

    options = [axis.lengths() for axis in axes]
    if math.prod(map(len, options)) <= _MOST_TRIED:
        return min(product(*options), key=badness)
    chosen = [lengths[0] for lengths in options]
    # Go through the axes twice, because the best length along one axis depends on the lengths along later axes.
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
    # Round, so that equally bad lengths compare equal on every machine.
    return _round_off(outside), _round_off(bad)


def _thin_block(
    extents: _Shape,
    target: float,
    fixed: _Partial,
    exact: Sequence[bool],
) -> _Shape:
    """Choose a shape of about `target` items, thin along the first axis and long along the last axis.

    One index of the first axis takes one layer of blocks, or a few blocks if that is more. The share of each further
    axis is up to `STRETCH` times the share of the preceding axis: a block that is long along the last axis is
    contiguous in memory, and is copied faster.
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
    # Begin with the shortest axes, so that as many axes as possible stay whole.
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
        # An equal share, but smaller by a factor of `STRETCH` for each step from the middle of the remaining axes.
        equal = part ** (1 / (len(cut) + 1))
        stretched = equal / STRETCH ** (len(cut) / 2)
        share = max(part, stretched)
        length = min(block[axis] * share, room)
        # Round, so that differences between machines in the last digit of `pow` do not matter.
        ideal = max(1.0, round(length, 6))
        block[axis] = _near(extents[axis], ideal, exact=exact[axis])
        left = max(1.0, left / block[axis])
    block[first] = _near(extents[first], left, exact=exact[first])
    return tuple(block)


def _has_pictures(extents: Sequence[int], itemsize: int) -> bool:
    """Return whether an array is probably a set of pictures, whose first axis counts them.

    Time series of maps have the same form, but items of several bytes. Reading them along time would suffer.
    """
    if itemsize != 1 or len(extents) < 3:
        return False
    count, *sides = extents
    least, most = SAMPLE_NBYTES
    if not least <= math.prod(sides) <= most:
        return False
    has_colours = any(1 < n <= SHORT for n in sides)
    longest = max(sides)
    return (count or GROWING) >= (longest if has_colours else MANY_SAMPLES * longest)


def _sample_block(
    extents: _Shape,
    itemsize: int,
    nbytes: int | None,
    chunk_nbytes: int,
    fixed: _Partial,
    exact: Sequence[bool],
) -> _Shape:
    """Choose a shape of blocks with a few whole samples, which are the indices of the first axis.

    Samples that are too large for a block are cut. `nbytes` is the size of a block that the user chose.
    """
    if not extents or fixed[0] is not None:
        target = min(nbytes or BLOCK_NBYTES, chunk_nbytes)
        return _thin_block(extents, target / itemsize, fixed, exact)
    expected = tuple(n or GROWING for n in extents)
    sample = _fill(fixed[1:], expected[1:])
    sample_nbytes = math.prod(sample) * itemsize
    several = max(SMALL_BLOCK_NBYTES, min(SAMPLES_IN_BLOCK * sample_nbytes, BLOCK_NBYTES))
    target = min(nbytes or several, chunk_nbytes)
    if sample_nbytes > max(target, WHOLE_SAMPLE_NBYTES):
        return _thin_block(extents, target / itemsize, (1, *fixed[1:]), exact)
    count = max(1.0, target // sample_nbytes)
    return _near(extents[0], count, exact=exact[0]), *sample


def _divide(extents: _Shape, target: float, fixed: _Partial) -> _Shape:
    """Choose a shape of about `target` items, as equal along all free axes as the short axes allow."""
    divided = [1 if n is None else n for n in fixed]
    target = max(1.0, target / math.prod(divided))
    free = [axis for axis, n in enumerate(fixed) if n is None]
    # Short axes come first, so that longer axes share the remaining items. Growing axes come last.
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
        # Of many parts only the last is padded, so a round length matters more.
        if ideal >= 12:
            return round(ideal / 8) * 8
        return max(1, round(ideal))
    fewer = min(count // 5, FEW_PARTS)
    more = min(count // 4, FEW_PARTS)
    counts = range(count - fewer, count + more + 1)
    # Several counts may have the same length; the smallest count comes last, and stays in the dict.
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
