"""Changes to the sequence of chunks: insert, update, delete, reorder, compact, go back.

Each function changes a draft. If the chunks of a frame have different sizes, the index cannot say that a chunk is
all zeros. So the change that first makes sizes differ stores the chunks of zeros, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec.chunk import Stored
from b2array.codec.header import ChunkHeader, Special
from b2array.commit.draft import Draft
from b2array.config import HEADER_LEN
from b2array.errors import FormatError
from b2array.format import index
from b2array.format.header import FrameType
from b2array.format.state import State
from b2array.frame.fetch import read_chunks
from b2array.frame.source import Location, Source
from b2array.progress import Progress
from b2array.store.spans import Span

__all__ = [
    "check_chunk",
    "chunk_sizes",
    "compact",
    "delete",
    "go_back",
    "insert",
    "reorder",
    "reserve_up_to",
    "set_special",
    "update",
]


def check_chunk(buf: Buffer) -> ChunkHeader:
    """Return the header of a chunk that can be put into a frame: one that is neither lazy nor without data."""
    buf = memoryview(buf).cast("B")
    header = ChunkHeader.unpack(buf)
    header.require_known_version()
    if header.lazy:
        raise ValueError("a lazy chunk lacks its blocks")
    Stored.whole(buf)
    if header.cbytes != len(buf):
        raise ValueError(f"the chunk has {header.cbytes} bytes, {len(buf)} were given")
    if not header.nbytes:
        raise ValueError("a chunk needs at least one byte of data")
    if header.cbytes < HEADER_LEN:
        raise ValueError(f"the chunks of a frame have {HEADER_LEN} bytes or more, not {header.cbytes}")
    return header


def insert(draft: Draft, n: int, buf: bytes, added: ChunkHeader) -> None:
    """Insert a chunk before chunk `n`; raises ValueError if it has blocks of another kind than the others."""
    now = draft.frame
    if now.nchunks:
        _check_kind(draft, added)
    chunksize = added.nbytes if now.chunksize < 0 else now.chunksize
    fixed = chunksize > 0 and _fits(n, now.nchunks, now.nbytes % chunksize > 0, added.nbytes, chunksize)
    order = np.insert(np.arange(now.nchunks), n, -1)
    _reindex(draft, order, now.nbytes + added.nbytes, chunksize if fixed else 0, vl_blocks=added.vl_blocks)
    draft.put(n, buf)


def _fits(n: int, nchunks: int, short: bool, nbytes: int, chunksize: int) -> bool:
    """Whether all chunks except the last still have the same size when one of `nbytes` becomes chunk `n`."""
    last = n == nchunks
    return nbytes <= chunksize and not short if last else nbytes == chunksize


def update(draft: Draft, n: int, buf: bytes, new: ChunkHeader) -> None:
    """Let a chunk take the place of chunk `n`; raises ValueError if it has blocks of another kind than the others."""
    _check_kind(draft, new)
    now = draft.frame
    (old_nbytes,) = chunk_sizes(draft, [n])
    if new.nbytes != old_nbytes:
        fixed = n == now.nchunks - 1 and new.nbytes <= now.chunksize
        nbytes = now.nbytes - old_nbytes + new.nbytes
        _reindex(draft, np.arange(now.nchunks), nbytes, now.chunksize if fixed else 0)
    draft.put(n, buf)


def delete(draft: Draft, n: int) -> None:
    """Remove chunk `n`."""
    (nbytes,) = chunk_sizes(draft, [n])
    draft.reindex(np.delete(np.arange(draft.frame.nchunks), n), nbytes=draft.frame.nbytes - nbytes)


def reorder(draft: Draft, order: Sequence[int]) -> None:
    """Let new chunk i be what chunk ``order[i]`` was; raises ValueError if not every chunk is named once."""
    now = draft.frame
    wanted = np.asarray(order)
    if (wanted.size and wanted.dtype.kind not in "iu") or wanted.ndim != 1:
        raise TypeError("the order must be a sequence of integers")
    wanted = wanted.astype(np.int64)
    if not np.array_equal(np.sort(wanted), np.arange(now.nchunks)):
        raise ValueError(f"the order must name each of {now.nchunks} chunks once")
    short = now.chunksize > 0 and now.nbytes % now.chunksize > 0
    torn = short and wanted[-1] != now.nchunks - 1
    _reindex(draft, wanted, now.nbytes, 0 if torn else now.chunksize)


def set_special(draft: Draft, numbers: npt.NDArray[np.int64], special: Special) -> None:
    """Let chunks consist of zeros or NaN."""
    draft.changeable_state().frame.offsets[numbers] = index.special_offset(special)
    draft.delta.touched[numbers] = True


def compact(draft: Draft, progress: Progress | None = None) -> None:
    """Let the commit write the whole frame again, without dead space; `progress` counts the chunks."""
    draft.refuse_in_fork("write the frame again: the transaction can")
    draft.delta.compacts = progress or Progress(None)


def reserve_up_to(draft: Draft, number: int) -> None:
    """Let the commit say that no new file may have this number or a lower one, not even of a draft under way."""
    draft.restructure(np.arange(draft.frame.nchunks), draft.frame)
    draft.staging.reserve_up_to(number)
    draft.annotate(floor=draft.staging.next)


def go_back(draft: Draft, state: State) -> None:
    """Give a draft all that a kept state of its base says, except the names under which states are kept.

    A state may have other blocks: a frame gets chunks and blocks with its first items if other software made it.
    """
    if draft.buffer is not None:
        draft.buffer.replace({})
    now = draft.state
    draft.restructure(np.full(state.frame.nchunks, -1), state.frame)
    new = draft.state
    new.frame.offsets[:] = state.frame.offsets
    new.sizes[:] = state.sizes
    new.records[:] = state.records
    _take_sizes(new, now)
    draft.delta.touched[:] = True
    for name in {*draft.state.attr_names} | {*state.attr_names}:
        draft.set_attr(name, state.attr(name))
    then = state.annotations
    draft.annotate(fill=then.fill, dims=then.dims, dtype=then.dtype, lost=then.lost)


def _take_sizes(state: State, other: State) -> None:
    """Note the sizes of blocks, which a kept state does not have, for the chunks that another state has as well."""
    offsets, others = state.frame.offsets, other.frame.offsets
    if state.sizes.shape[1:] != other.sizes.shape[1:] or not others.size:
        return
    order = np.argsort(others, kind="stable")
    rows = order[np.searchsorted(others[order], offsets).clip(max=others.size - 1)]
    same = (offsets >= 0) & (others[rows] == offsets) & (other.records[rows] == state.records)
    state.sizes[same] = other.sizes[rows[same]]


def _check_kind(draft: Draft, header: ChunkHeader) -> None:
    if header.vl_blocks != draft.frame.vl_blocks:
        kinds = ("blocks of one length", "blocks of variable length")
        raise ValueError(f"chunks of this frame have {kinds[draft.frame.vl_blocks]}, not {kinds[header.vl_blocks]}")


def _reindex(draft: Draft, order: npt.NDArray[np.int64], nbytes: int, chunksize: int, **fields: Any) -> None:
    if chunksize == 0 and not draft.frame.variable_chunks:
        special = np.flatnonzero(draft.frame.offsets < 0).tolist()
        numbers = [n for n in special if not isinstance(draft.locate(n), Location)]
        for n, stored in zip(numbers, read_chunks(draft, numbers), strict=True):
            draft.set_chunk(n, draft.store_stored(n, bytes(stored.region), stored.head))
    draft.reindex(order, nbytes=nbytes, chunksize=chunksize, **fields)


def chunk_sizes(source: Source, numbers: Sequence[int]) -> list[int]:
    """Return uncompressed sizes of chunks in bytes, which are read from the chunks only where the frame has none."""
    if not source.frame.variable_chunks:
        return [source.frame.chunk_nbytes(n) or 0 for n in numbers]
    locations = [location for n in numbers if isinstance(location := source.locate(n), Location)]
    if len(locations) < len(numbers):
        raise FormatError(f"{source.url}: expected stored chunks where chunks have sizes of their own, found others")
    if source.frame.frame_type == FrameType.SPARSE:
        views = []
        for head in source.store.head([location.name for location in locations], HEADER_LEN):
            if isinstance(head, Exception):
                raise head
            views.append(head.data)
    else:
        views = source.read([Span(name, start, min(start + HEADER_LEN, stop)) for name, start, stop in locations])
    return [ChunkHeader.unpack(view).nbytes for view in views]
