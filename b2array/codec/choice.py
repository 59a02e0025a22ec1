"""Chooses the filters of a chunk by its data.

The choice depends only on the bytes of the chunk and the other parameters, so equal data give equal chunks in every
process and on every computer. A few pieces of the chunk are compressed with each candidate. The first candidate is
shuffle; another candidate is chosen if its result is clearly smaller. ``asv_bench/compression.py`` measures whether the
choice is right, and what it costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.codec import cblosc, codecs, filters
from b2array.codec.chunk_header import CODEC_FORMATS, ChunkHeader, FilterId
from b2array.codec.cparams import CParams

__all__ = ["choose", "exact_filters", "params_of"]

Bytes = npt.NDArray[np.uint8]

_PIECE = 32 * 2**10
"""The size of a piece, in bytes. Much shorter pieces are not representative: codecs need data to find matches."""
_SHORTEST = 2**10
_SHARE = 120
"""The inverse of the share of a chunk that all pieces together make up, unless the minimum is larger."""
_LEAST = 2
_MOST = 8
_MANY = 10
"""The minimum and maximum number of pieces, spread over the chunk; `_MANY` is for pieces that differ strongly."""
_HOPELESS = 1.04
"""Candidates that need more than this multiple of the best size for the first piece are dropped."""
_FEW = 16
_UNEVEN = 4
"""If some pieces repeat one item, pieces with 16 times fewer changes than others are ignored, and at least 4 other
pieces are examined, because they may also differ strongly."""
_HIGH_RATIO = 64
"""The compression ratio from which pieces differ strongly, and take hardly any time."""
_CANDIDATES = {
    ("shuffle",): 1.0,
    (): 1.01,
    ("bitshuffle",): 0.96,
    ("shuffle", "bytedelta"): 0.8,
}
"""The candidate filters, and the maximum size of the pieces relative to the first candidate.

Bitshuffle takes more time for some data and less for other data. Without a filter, codecs find repeated items, and more
of them in a block than in a piece. Undoing bytedelta takes about as long as decoding, so it must save a fifth.
"""
_SMALL_ITEMS = {1: 1.02, 2: 1.0}
"""The relative size for bitshuffle, by the size of an item in bytes. If the items are mostly noise, zstd takes half or
a third of the time with bitshuffle."""
_RECORDS: dict[Any, float] = {("bitshuffle",): 0.94, (): 0.97}
"""The relative sizes for items that are not numbers. A block of records gains more by shuffle than a piece shows."""
_NUMBERS = (1, 2, 4, 8, 16)
_IN_C = {
    0: cblosc.NOSHUFFLE,
    FilterId.SHUFFLE: cblosc.SHUFFLE,
    FilterId.BITSHUFFLE: cblosc.BITSHUFFLE,
}


def choose(
    data: Bytes,
    typesize: int,
    blocksize: int,
    cparams: CParams,
    blockshape: tuple[int, ...] | None = None,
) -> CParams:
    """Return parameters with the filters that suit the data of a chunk, or of some of its blocks.

    The sizes of an item and of a block are in bytes; `blockshape` is for codecs that know dimensions.
    """
    # Before version 3.3.2, the C library lost bytes after the last item of a block.
    whole = blocksize % typesize == 0 and len(data) % typesize == 0
    tried = _fitting(cparams, typesize, whole)
    if cparams.codec_id in CODEC_FORMATS:
        costs = _costs_of_pieces(data, typesize, blocksize, tried)
    else:  # a user's codec may support only whole blocks
        block = data[:blocksize]
        costs = []
        for each in tried:
            nbytes = _nbytes_by_registered(block, typesize, each.cparams, blockshape)
            costs.append(nbytes / each.share)
    best = costs.index(min(costs))
    return tried[best].cparams


def params_of(cparams: CParams, header: ChunkHeader) -> CParams | None:
    """Return the parameters with which a chunk was encoded if its filters are a candidate; otherwise None."""
    pairs = exact_filters(header.filters, header.filters_meta)
    for each in _candidates(cparams):
        metas = each.cparams.metas_for(header.typesize)
        if pairs == exact_filters(each.cparams.filter_slots, metas):
            return each.cparams
    return None


def exact_filters(ids: Sequence[int], metas: Sequence[int]) -> list[tuple[int, int]]:
    """Return filters with their metas, without empty slots and without TRUNC_PREC, which only records kept bits."""
    slots = zip(ids, metas, strict=True)
    return [pair for pair in slots if pair[0] not in (FilterId.NOFILTER, FilterId.TRUNC_PREC)]


class _Candidate(NamedTuple):
    cparams: CParams
    share: float

    def suits(self, typesize: int, whole_items: bool) -> bool:
        names = self.cparams.filters
        if typesize == 1 and not names:
            return False  # shuffle does not change items of one byte, so it equals no filter
        return whole_items or "bytedelta" not in names

    def at(self, typesize: int) -> _Candidate:
        """Return the candidate with the relative size for items of this size."""
        names = self.cparams.filters
        if typesize not in _NUMBERS:
            return self._replace(share=_RECORDS.get(names, self.share))
        if names == ("bitshuffle",):
            return self._replace(share=_SMALL_ITEMS.get(typesize, self.share))
        return self


@lru_cache(maxsize=64)
def _candidates(cparams: CParams) -> tuple[_Candidate, ...]:
    width = cparams.filters_meta
    metas = {("shuffle",): width, ("shuffle", "bytedelta"): 2 * width}
    candidates = []
    for names, share in _CANDIDATES.items():
        params = replace(cparams, filters=names, filters_meta=metas.get(names, ()))
        candidates.append(_Candidate(params, share))
    return tuple(candidates)


@lru_cache(maxsize=64)
def _fitting(cparams: CParams, typesize: int, whole_items: bool) -> tuple[_Candidate, ...]:
    """Return the candidates for items of this size, whether or not whole items fill the blocks."""
    candidates = [each for each in _candidates(cparams) if each.suits(typesize, whole_items)]
    return tuple([each.at(typesize) for each in candidates])


def _costs_of_pieces(
    data: Bytes,
    typesize: int,
    blocksize: int,
    tried: Sequence[_Candidate],
) -> list[float]:
    """Return the size of pieces of a chunk with each candidate, divided by the candidate's relative size."""
    nbytes = len(data)
    length = min(_PIECE, max(nbytes // 16, _SHORTEST), blocksize)
    length -= length % (8 * typesize)  # bitshuffle processes eight items together
    length = length or min(typesize, nbytes)
    share = nbytes // (_SHARE * length)
    count = min(max(share, _LEAST), _MOST, nbytes // length)
    first, rest = _pieces(data, typesize, length, count)
    is_even = _all_change(first, typesize, length) and _all_change(rest, typesize, length)
    if not is_even:
        # With any filter, a piece that repeats one item takes hardly any space. Other pieces fill the chunk.
        data = _changing_pieces(data, typesize, length)
        count = min(max(count, _UNEVEN), len(data) // length)
        first, rest = _pieces(data, typesize, length, count)
    costs = [_nbytes(first, typesize, length, each.cparams) / each.share for each in tried]
    hopeless = math.inf
    is_large = len(data) > 4 * _MANY * length
    if is_large and min(costs) * _HIGH_RATIO < length:
        first, rest = _pieces(data, typesize, length, _MANY)
    elif is_even:
        hopeless = _HOPELESS * min(costs)
    left = [number for number, cost in enumerate(costs) if cost <= hopeless]
    if len(left) == 1 or not len(rest):
        return costs
    # Candidates that dropped out must not win by having fewer pieces counted.
    totals = [math.inf] * len(costs)
    for number in left:
        each = tried[number]
        of_rest = _nbytes(rest, typesize, length, each.cparams)
        totals[number] = costs[number] + of_rest / each.share
    return totals


def _all_change(pieces: Bytes, typesize: int, length: int) -> bool:
    """Return whether all pieces have more than one distinct item."""
    rows = pieces.reshape(-1, length)
    return bool(_changes(rows, typesize).all())


def _changing_pieces(data: Bytes, typesize: int, length: int) -> Bytes:
    """Return the pieces of a chunk in which items change, in sequence, without pieces with few changes."""
    npieces = len(data) // length
    pieces = data[: npieces * length].reshape(-1, length)
    changes = _changes(pieces, typesize)
    is_varied = _FEW * changes >= changes.max(initial=0)
    varied: Bytes = pieces[is_varied].reshape(-1)
    return varied


def _changes(pieces: Bytes, typesize: int) -> npt.NDArray[np.int64]:
    """Count the changes from one group of bytes to the next in each piece, a row.

    Pieces that are not longer than a group count as changed.
    """
    width = math.lcm(8, typesize)
    npieces, length = pieces.shape
    if length % width or length == width:
        return np.ones(npieces, np.int64)
    words = pieces.view(np.uint64).reshape(npieces, length // width, width // 8)
    differs = words[:, 1:] != words[:, :-1]
    counts: npt.NDArray[np.int64] = np.count_nonzero(differs, axis=(1, 2))
    return counts


def _pieces(data: Bytes, typesize: int, length: int, count: int) -> tuple[Bytes, Bytes]:
    """Return one piece of a chunk, and the other pieces in sequence."""
    room = len(data) - length
    pieces = []
    for i in range(count):
        # Each piece is in the middle of its section of the chunk, and begins with an item.
        start = room * (2 * i + 1) // (2 * count)
        start -= start % typesize
        pieces.append(data[start : start + length])
    first = pieces.pop(count // 2)
    rest = np.concatenate(pieces) if pieces else data[:0]
    return first, rest


def _nbytes(pieces: Bytes, typesize: int, length: int, cparams: CParams) -> int:
    """Return the compressed size of pieces, compressed separately if the codec allows it."""
    shuffle = _IN_C.get(cparams.filter_slots[-1])
    width = cparams.meta_slots[-1] or typesize
    if shuffle is None:
        # C-Blosc 1 has no bytedelta, so filter here and compress the result as bytes.
        pieces = _differences(pieces, length, width)
        shuffle = cblosc.NOSHUFFLE
        width = 1
    chunk = cblosc.compress_blocks(
        cparams.codec_id,
        pieces,
        clevel=max(cparams.clevel, 1),
        shuffle=shuffle,
        typesize=width,
        blocksize=length,
    )
    return len(pieces) if chunk is None else len(chunk.buf)


def _differences(pieces: Bytes, length: int, width: int) -> Bytes:
    """Apply shuffle and bytedelta to pieces, in fewer steps than the filters."""
    items = pieces.reshape(-1, length // width, width)
    planes = np.ascontiguousarray(items.swapaxes(1, 2))
    differences = planes.copy()
    differences[:, :, 1:] -= planes[:, :, :-1]
    return differences.reshape(-1)


def _apply_filters(
    blocks: Bytes,
    length: int,
    typesize: int,
    cparams: CParams,
    blockshape: tuple[int, ...] | None = None,
) -> Bytes:
    metas = cparams.metas_for(typesize)
    pipeline = filters.Pipeline(cparams.filter_slots, metas, typesize, blockshape=blockshape)
    rows = blocks.reshape(-1, length)
    return filters.forward(pipeline, rows, first=True).reshape(-1)


def _nbytes_by_registered(
    block: Bytes,
    typesize: int,
    cparams: CParams,
    blockshape: tuple[int, ...] | None,
) -> int:
    """Return the compressed size of a block with a registered codec."""
    filtered = _apply_filters(block, len(block), typesize, cparams, blockshape)
    payload = codecs.encode(
        cparams.codec_id,
        filtered.data,
        clevel=cparams.clevel,
        meta=cparams.codec_meta,
        typesize=typesize,
        blockshape=blockshape,
        dictionary=None,
    )
    return len(block) if payload is None else len(payload)
