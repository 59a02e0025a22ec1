"""Chooses the filters of a chunk by its own data.

The choice depends only on the bytes of the chunk and on how they are to be encoded: equal data give equal chunks,
whichever process or computer encodes them. A few pieces of the chunk are compressed with each candidate. The first
candidate is shuffle; another one is taken if it is clearly smaller. ``asv_bench/compression.py`` measures whether the
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
from b2array.codec.cparams import CParams
from b2array.codec.header import CODEC_FORMATS, ChunkHeader, FilterId

__all__ = ["choose", "exact_filters", "params_of"]

Bytes = npt.NDArray[np.uint8]

_PIECE = 32 * 2**10
"""Bytes of a piece. Much shorter ones say little: codecs know nothing yet when they begin, nor do they see far."""
_SHORTEST = 2**10
_SHARE = 120
"""All pieces together are about this part of a chunk, if that is more than the least."""
_LEAST = 2
_MOST = 8
_MANY = 10
"""How many pieces, spread over the chunk; the last one where pieces differ so much that a few are chance."""
_HOPELESS = 1.04
"""Candidates that need this many times the bytes of the best one for the first piece are dropped."""
_FEW = 16
_UNEVEN = 4
"""If some pieces repeat one item, pieces with 16 times fewer changes than others are ignored, and at least 4 others are
examined, because they may differ much as well."""
_HIGH_RATIO = 64
"""Pieces that become this much smaller differ much from each other, and take next to no time."""
_CANDIDATES = {
    ("shuffle",): 1.0,
    (): 1.01,
    ("bitshuffle",): 0.96,
    ("shuffle", "bytedelta"): 0.8,
}
"""The filters to choose from, and how small they have to make the pieces, compared with the first.

Bitshuffle takes more time for some data and less for other. Without a filter codecs find whole items again, and more of
them in a block than in a piece. To undo bytedelta takes about as long as to decode: it has to save a fifth.
"""
_SMALL_ITEMS = {1: 1.02, 2: 1.0}
"""The share of bitshuffle by the size of an item in bytes. If they are mostly noise, zstd takes half or a third of the
time that it takes without bitshuffle."""
_RECORDS: dict[Any, float] = {("bitshuffle",): 0.94, (): 0.97}
"""The shares for items that are not numbers. A whole block of records gains more by shuffle than a piece shows."""
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
    # Before its version 3.3.2 the C library lost bytes after the last item of a block.
    whole = blocksize % typesize == 0 and len(data) % typesize == 0
    tried = _fitting(cparams, typesize, whole)
    if cparams.codec_id in CODEC_FORMATS:
        costs = _costs_of_pieces(data, typesize, blocksize, tried)
    else:  # a codec of the user's may know nothing but whole blocks
        block = data[:blocksize]
        costs = []
        for each in tried:
            nbytes = _nbytes_by_registered(block, typesize, each.cparams, blockshape)
            costs.append(nbytes / each.share)
    best = costs.index(min(costs))
    return tried[best].cparams


def params_of(cparams: CParams, header: ChunkHeader) -> CParams | None:
    """Return the parameters that a chunk was encoded with, if its filters are a candidate's; None otherwise."""
    pairs = exact_filters(header.filters, header.filters_meta)
    for each in _candidates(cparams):
        metas = each.cparams.metas_for(header.typesize)
        if pairs == exact_filters(each.cparams.filter_slots, metas):
            return each.cparams
    return None


def exact_filters(ids: Sequence[int], metas: Sequence[int]) -> list[tuple[int, int]]:
    """Return filters with their metas, without empty slots and without TRUNC_PREC, which only notes bits."""
    slots = zip(ids, metas, strict=True)
    return [pair for pair in slots if pair[0] not in (FilterId.NOFILTER, FilterId.TRUNC_PREC)]


class _Candidate(NamedTuple):
    cparams: CParams
    share: float

    def suits(self, typesize: int, whole_items: bool) -> bool:
        names = self.cparams.filters
        if typesize == 1 and not names:
            return False  # with bytes as items, shuffle changes nothing: no filter would be the same
        return whole_items or "bytedelta" not in names

    def at(self, typesize: int) -> _Candidate:
        """Return the candidate with its share for items of this size."""
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
    """Return the candidates for items of this size, which fill the blocks or not."""
    candidates = [each for each in _candidates(cparams) if each.suits(typesize, whole_items)]
    return tuple([each.at(typesize) for each in candidates])


def _costs_of_pieces(
    data: Bytes,
    typesize: int,
    blocksize: int,
    tried: Sequence[_Candidate],
) -> list[float]:
    """Return how many bytes pieces of a chunk take with each candidate, over the share that they may take."""
    nbytes = len(data)
    length = min(_PIECE, max(nbytes // 16, _SHORTEST), blocksize)
    length -= length % (8 * typesize)  # bitshuffle takes eight items together
    length = length or min(typesize, nbytes)
    share = nbytes // (_SHARE * length)
    count = min(max(share, _LEAST), _MOST, nbytes // length)
    first, rest = _pieces(data, typesize, length, count)
    is_even = _all_change(first, typesize, length) and _all_change(rest, typesize, length)
    if not is_even:
        # With any filter next to nothing is left of a piece that repeats one item. Others fill the chunk.
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
    """Return whether no piece repeats one item."""
    rows = pieces.reshape(-1, length)
    return bool(_changes(rows, typesize).all())


def _changing_pieces(data: Bytes, typesize: int, length: int) -> Bytes:
    """Return the pieces of a chunk in which items change, one after the other, without those where few do."""
    npieces = len(data) // length
    pieces = data[: npieces * length].reshape(-1, length)
    changes = _changes(pieces, typesize)
    is_varied = _FEW * changes >= changes.max(initial=0)
    varied: Bytes = pieces[is_varied].reshape(-1)
    return varied


def _changes(pieces: Bytes, typesize: int) -> npt.NDArray[np.int64]:
    """Return for pieces, one a row, how many items differ from the one before; items of some bytes are seen together.

    Pieces that are not longer than that count as changed.
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
    """Return one piece of a chunk, and the others one after the other."""
    room = len(data) - length
    pieces = []
    for i in range(count):
        # Each piece is in the middle of its share of the chunk, and begins with an item.
        start = room * (2 * i + 1) // (2 * count)
        start -= start % typesize
        pieces.append(data[start : start + length])
    first = pieces.pop(count // 2)
    rest = np.concatenate(pieces) if pieces else data[:0]
    return first, rest


def _nbytes(pieces: Bytes, typesize: int, length: int, cparams: CParams) -> int:
    """Return how many bytes pieces take, each compressed by itself where the codec allows that."""
    shuffle = _IN_C.get(cparams.filter_slots[-1])
    width = cparams.meta_slots[-1] or typesize
    if shuffle is None:
        # C-Blosc 1 has no bytedelta: filter here, and let it compress bytes.
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
    """Return what shuffle and bytedelta make of pieces, with fewer steps than the filters."""
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
    """Return how many bytes a block takes with a registered codec."""
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
