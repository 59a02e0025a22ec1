"""Chooses the filters of a chunk by its own data.

The choice depends on nothing but the bytes of the chunk and how they are to be encoded: equal data give equal chunks,
whichever process or computer encodes them. A few pieces of the chunk are compressed with each candidate. The first
candidate is shuffle; another one is taken if it is clearly smaller. ``asv_bench/compression.py`` measures whether the
choice is right, and what it costs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from b2array.codec import cblosc, codecs, filters
from b2array.codec.cparams import CParams
from b2array.codec.header import CODEC_FORMATS, ChunkHeader, FilterId

__all__ = ["chosen", "kept"]

Bytes = npt.NDArray[np.uint8]

_PIECE = 2**13
"""Bytes of a piece. Much shorter ones say little: codecs know nothing yet when they begin, nor do they see far."""
_SHORTEST = 2**10
_SHARE = 80
"""All pieces together are about this part of a chunk."""
_LEAST, _MOST, _MANY = 2, 8, 16
"""How many pieces, spread over the chunk; the last one where pieces differ so much that a few are chance."""
_HIGH_RATIO = 64
"""Pieces that become this much smaller differ much from each other, and take next to no time."""
_WORTH = 0.98
"""What another candidate may take, as a share of what the first takes."""
_CANDIDATES = (("shuffle",), (), ("bitshuffle",))
_IN_C = {0: cblosc.NOSHUFFLE, FilterId.SHUFFLE: cblosc.SHUFFLE, FilterId.BITSHUFFLE: cblosc.BITSHUFFLE}


def chosen(
    data: Bytes, typesize: int, blocksize: int, cparams: CParams, blockshape: tuple[int, ...] | None = None
) -> CParams:
    """Return parameters with the filters that suit the data of a chunk, or of some of its blocks.

    The sizes of an item and of a block are in bytes; `blockshape` is for codecs that know dimensions.
    """
    tried = _candidates(cparams, typesize > 1)
    if cparams.codec_id in CODEC_FORMATS:
        found = _sizes_of_pieces(data, typesize, blocksize, tried)
    else:  # a codec of the user's may know nothing but whole blocks
        block = data[:blocksize]
        found = [_nbytes_by_registered(block, typesize, each, blockshape) for each in tried]
    best = min(range(len(found)), key=found.__getitem__)
    return tried[best] if found[best] < _WORTH * found[0] else tried[0]


def kept(cparams: CParams, header: ChunkHeader) -> CParams | None:
    """Return the parameters that a chunk was encoded with, if its filters are a candidate's; None otherwise."""
    slots = zip(header.filters, header.filters_meta, strict=True)
    found = [pair for pair in slots if pair[0] not in (FilterId.NOFILTER, FilterId.TRUNC_PREC)]
    for each in _candidates(cparams, has_planes=True):
        own = zip(each.filter_slots, each.meta_slots, strict=True)
        if found == [pair for pair in own if pair[0]]:
            return each
    return None


@lru_cache(maxsize=64)
def _candidates(cparams: CParams, has_planes: bool) -> tuple[CParams, ...]:
    """Return the parameters to choose from."""
    # With bytes as items, shuffle changes nothing: no filter would be the same.
    tried = [names for names in _CANDIDATES if names or has_planes]
    metas = [cparams.filters_meta if "shuffle" in names else () for names in tried]
    return tuple([replace(cparams, filters=n, filters_meta=m) for n, m in zip(tried, metas, strict=True)])


def _sizes_of_pieces(data: Bytes, typesize: int, blocksize: int, tried: tuple[CParams, ...]) -> list[int]:
    """Return how many bytes pieces of a chunk take with each candidate."""
    length = min(_PIECE, max(len(data) // 16, _SHORTEST), blocksize)
    count = min(max(len(data) // (_SHARE * length), _LEAST), _MOST)
    pieces, length = _pieces(data, typesize, length, count)
    found = [_nbytes(pieces, typesize, length, each) for each in tried]
    if min(found) * _HIGH_RATIO < len(pieces) and len(data) > 4 * _MANY * length:
        pieces, length = _pieces(data, typesize, length, _MANY)
        found = [_nbytes(pieces, typesize, length, each) for each in tried]
    return found


def _pieces(data: Bytes, typesize: int, length: int, count: int) -> tuple[Bytes, int]:
    """Return pieces one behind the other, and their length: whole items, eight of them together if possible."""
    length = length - length % (8 * typesize) or min(typesize, len(data))
    count = min(count, len(data) // length)
    # Each piece is in the middle of its share of the chunk.
    starts = [(len(data) - length) * (2 * i + 1) // (2 * count) // typesize * typesize for i in range(count)]
    return np.concatenate([data[start : start + length] for start in starts]), length


def _nbytes(pieces: Bytes, typesize: int, length: int, cparams: CParams) -> int:
    """Return how many bytes pieces take, each compressed by itself where the codec allows that."""
    fid, meta = cparams.filter_slots[-1], cparams.meta_slots[-1]
    made = cblosc.compress_blocks(
        cparams.codec_id, pieces, clevel=max(cparams.clevel, 1), shuffle=_IN_C[fid], typesize=meta or typesize,
        blocksize=length,
    )  # fmt: skip
    return len(pieces) if made is None else len(made.buf)


def _nbytes_by_registered(
    block: Bytes, typesize: int, cparams: CParams, blockshape: tuple[int, ...] | None
) -> int:  # fmt: skip
    """Return how many bytes a block takes with a registered codec."""
    pipeline = filters.Pipeline(cparams.filter_slots, cparams.metas_for(typesize), typesize, blockshape=blockshape)
    filtered = filters.forward(pipeline, block.reshape(1, -1), first=True)[0]
    payload = codecs.encode(
        cparams.codec_id, filtered.data, clevel=cparams.clevel, meta=cparams.codec_meta, typesize=typesize,
        blockshape=blockshape, dictionary=None,
    )  # fmt: skip
    return len(block) if payload is None else len(payload)
