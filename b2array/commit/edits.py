"""Changes to the sequence of chunks: insert, update, delete, reorder, compact, restore.

Each function changes a draft. If the chunks of a frame have different sizes, its index cannot contain special values
such as zeros. So the first change that makes the sizes differ also stores the chunks of special values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec.chunk import Stored
from b2array.codec.chunk_header import ChunkHeader, Special
from b2array.commit.draft import Draft
from b2array.config import HEADER_LEN
from b2array.errors import FormatError
from b2array.format import index
from b2array.format.frame_header import FrameType
from b2array.format.state import State
from b2array.format.strings import LENGTHS, pack_lengths
from b2array.frame.fetch import read_chunks
from b2array.frame.source import Location, Source
from b2array.progress import Progress
from b2array.store.spans import Span

__all__ = [
    "check_chunk",
    "chunk_sizes",
    "compact",
    "delete",
    "insert",
    "reorder",
    "reserve_up_to",
    "restore_state",
    "set_special",
    "update",
]


def check_chunk(buf: Buffer) -> ChunkHeader:
    """Check the chunk `buf`, and return its header. ValueError: it is lazy, empty, short or cut; no frame can store it.

    FormatError: the header or the places of the blocks are damaged. UnsupportedError: the chunk has a later version.
    """
    buf = memoryview(buf).cast("B")
    header = ChunkHeader.unpack(buf)
    header.require_known_version()
    if header.lazy:
        raise ValueError("a lazy chunk lacks its blocks")
    # Raises FormatError unless all blocks are within the chunk.
    Stored.whole(buf)
    if header.cbytes != len(buf):
        raise ValueError(f"the chunk has {header.cbytes} bytes according to its header, but {len(buf)} were given")
    if not header.nbytes:
        raise ValueError("a chunk needs at least one byte of data")
    if header.cbytes < HEADER_LEN:
        raise ValueError(f"the chunks of a frame have {HEADER_LEN} bytes or more, not {header.cbytes}")
    return header


def insert(draft: Draft, n: int, buf: bytes, added: ChunkHeader) -> None:
    """Insert the chunk `buf`, with the header `added`, before chunk `n`.

    If the sizes of the chunks begin to differ, this stores chunks of special values as well. ValueError: the blocks are
    of another kind than the frame's, or the draft is a fork.
    """
    now = draft.frame
    if now.nchunks:
        _check_kind(draft, added)
    chunksize = added.nbytes if now.chunksize < 0 else now.chunksize
    fixed = False
    if chunksize > 0:
        is_last = n == now.nchunks
        if is_last:
            # The format allows a short chunk only at the end, so no chunk may follow it.
            last_is_whole = now.nbytes % chunksize == 0
            fixed = last_is_whole and added.nbytes <= chunksize
        else:
            fixed = added.nbytes == chunksize
    numbers = np.arange(now.nchunks)
    order = np.insert(numbers, n, -1)
    nbytes = now.nbytes + added.nbytes
    _reindex(draft, order, nbytes, chunksize if fixed else 0, vl_blocks=added.vl_blocks)
    draft.put(n, buf)


def update(draft: Draft, n: int, buf: bytes, new: ChunkHeader) -> None:
    """Replace chunk `n` by `buf`, with the header `new`; its size may differ.

    This reads the size of the old chunk. If the sizes of the chunks begin to differ, it stores chunks of special values
    as well. ValueError: the blocks are of another kind than the frame's, or a fork changes the size.
    """
    _check_kind(draft, new)
    now = draft.frame
    (old_nbytes,) = chunk_sizes(draft, [n])
    if new.nbytes != old_nbytes:
        is_last = n == now.nchunks - 1
        fixed = is_last and new.nbytes <= now.chunksize
        nbytes = now.nbytes - old_nbytes + new.nbytes
        order = np.arange(now.nchunks)
        _reindex(draft, order, nbytes, now.chunksize if fixed else 0)
    draft.put(n, buf)


def delete(draft: Draft, n: int) -> None:
    """Remove chunk `n`, after reading its size; the later chunks move up. ValueError in a fork."""
    frame = draft.frame
    (nbytes,) = chunk_sizes(draft, [n])
    numbers = np.arange(frame.nchunks)
    order = np.delete(numbers, n)
    draft.reindex(order, nbytes=frame.nbytes - nbytes)


def reorder(draft: Draft, order: Sequence[int]) -> None:
    """Move chunk ``order[i]`` to position i, for each i; raise ValueError unless `order` names every chunk once.

    If a short chunk leaves the end, this stores chunks of special values as well. TypeError: the order is not a
    sequence of integers. ValueError: the draft is a fork.
    """
    now = draft.frame
    wanted = np.asarray(order)
    is_integer = not wanted.size or wanted.dtype.kind in "iu"
    if not is_integer or wanted.ndim != 1:
        raise TypeError("the order must be a sequence of integers")
    wanted = wanted.astype(np.int64)
    # A permutation, sorted, is the sequence of all numbers.
    numbers = np.arange(now.nchunks)
    if not np.array_equal(np.sort(wanted), numbers):
        raise ValueError(f"the order must name each of {now.nchunks} chunks once")
    # Only the last chunk may be short in a frame whose chunks have one size.
    has_short = now.chunksize > 0 and now.nbytes % now.chunksize > 0
    moves_short = has_short and wanted[-1] != now.nchunks - 1
    _reindex(draft, wanted, now.nbytes, 0 if moves_short else now.chunksize)


def set_special(draft: Draft, numbers: npt.NDArray[np.int64], special: Special) -> None:
    """Replace chunks by a special value, zeros or NaN, in the index; they count as changed from now on.

    Open chunks with these numbers stay open.
    """
    state = draft.changeable_state()
    state.frame.offsets[numbers] = index.special_offset(special)
    draft.delta.touched[numbers] = True


def compact(draft: Draft, progress: Progress | None = None) -> None:
    """Make the commit rewrite the whole frame without dead space; raise ValueError in a fork.

    `progress` counts the chunks.
    """
    draft.refuse_in_fork("write the frame again: the transaction can")
    draft.delta.compacts = progress or Progress(None)


def reserve_up_to(draft: Draft, number: int) -> None:
    """Make the commit reserve the numbers of chunk files up to `number`, so that no unfinished draft uses one.

    The change then fits only its base. ValueError: the draft is a fork.
    """
    # A structural change, even to the same order, fits only its base: the commit fails if another writer was faster.
    same_order = np.arange(draft.frame.nchunks)
    draft.restructure(same_order, draft.frame)
    draft.staging.reserve_up_to(number)
    draft.annotate(floor=draft.staging.next)


def restore_state(draft: Draft, state: State) -> None:
    """Replace chunks, shape, attributes and annotations by a kept state of the base, but not the list of kept states.

    This drops open chunks, and marks all chunks as changed. The blocks of the kept state may differ: other software
    chooses chunks and blocks when it writes the first items. ValueError: the draft is a fork.
    """
    # Open chunks belong to the state that this replaces.
    if draft.buffer is not None:
        draft.buffer.replace({})
    now = draft.state
    # Do not move old chunks: the code below copies each entry from the kept state.
    no_order = np.full(state.frame.nchunks, -1)
    draft.restructure(no_order, state.frame)
    new = draft.state
    new.frame.offsets[:] = state.frame.offsets
    new.sizes[:] = state.sizes
    new.records[:] = state.records
    _copy_sizes(new, now)
    draft.delta.touched[:] = True
    names = {*draft.state.attr_names} | {*state.attr_names}
    for name in names:
        draft.set_attr(name, state.attr(name))
    if state.layout is not None and state.layout.is_text:
        draft.set_attr(LENGTHS, pack_lengths(state.layout))
    then = state.annotations
    draft.annotate(
        fill=then.fill,
        dims=then.dims,
        dtype=then.dtype,
        lost=then.lost,
    )


def _copy_sizes(state: State, other: State) -> None:
    """Copy sizes of blocks from `other` into a state, in place, for chunks in both: a kept state has no such sizes."""
    offsets = state.frame.offsets
    others = other.frame.offsets
    same_width = state.sizes.shape[1:] == other.sizes.shape[1:]
    if not same_width or not others.size:
        return
    order = np.argsort(others, kind="stable")
    places = np.searchsorted(others[order], offsets)
    rows = order[places.clip(max=others.size - 1)]
    # A place does not identify a chunk: other software may have written another chunk there.
    same_place = (offsets >= 0) & (others[rows] == offsets)
    same = same_place & (other.records[rows] == state.records)
    state.sizes[same] = other.sizes[rows[same]]


def _check_kind(draft: Draft, header: ChunkHeader) -> None:
    """Raise ValueError if the blocks of a chunk are of another kind than the frame's: of one length, or of several."""
    if header.vl_blocks != draft.frame.vl_blocks:
        kinds = ("blocks of one length", "blocks of variable length")
        raise ValueError(f"chunks of this frame have {kinds[draft.frame.vl_blocks]}, not {kinds[header.vl_blocks]}")


def _reindex(
    draft: Draft,
    order: npt.NDArray[np.int64],
    nbytes: int,
    chunksize: int,
    **fields: Any,
) -> None:
    """Reindex a draft like `Draft.reindex`; a `chunksize` of 0 means that the sizes of the chunks differ.

    If the sizes begin to differ, store the chunks of special values first, because the index cannot contain them.
    """
    if chunksize == 0 and not draft.frame.variable_chunks:
        negative = np.flatnonzero(draft.frame.offsets < 0).tolist()
        # New chunks have negative codes as well, but they have a location.
        numbers = [n for n in negative if not isinstance(draft.locate(n), Location)]
        chunks = read_chunks(draft, numbers)
        for n, stored in zip(numbers, chunks, strict=True):
            content = bytes(stored.region)
            staged = draft.stage_chunk(n, content, stored.head)
            draft.set_chunk(n, staged)
    draft.reindex(order, nbytes=nbytes, chunksize=chunksize, **fields)


def chunk_sizes(source: Source, numbers: Sequence[int]) -> list[int]:
    """Return the uncompressed sizes of the chunks `numbers`, in bytes.

    If the chunks of a frame have different sizes, the index does not list the sizes, and this reads them from the
    headers of the chunks. A draft encodes open chunks first, and the chunks count as read. FormatError: such a chunk is
    not stored.
    """
    frame = source.frame
    if not frame.variable_chunks:
        return [frame.chunk_nbytes(n) or 0 for n in numbers]
    places = [source.locate(n) for n in numbers]
    locations = [place for place in places if isinstance(place, Location)]
    if len(locations) < len(numbers):
        raise FormatError(f"{source.url}: expected stored chunks where chunks have different sizes, found others")
    if frame.frame_type != FrameType.SPARSE:
        spans = []
        for name, start, stop in locations:
            end = min(start + HEADER_LEN, stop)
            spans.append(Span(name, start, end))
        return [ChunkHeader.unpack(view).nbytes for view in source.read(spans)]
    names = [location.name for location in locations]
    sizes = []
    for head in source.store.head(names, HEADER_LEN):
        if isinstance(head, Exception):
            raise head
        sizes.append(ChunkHeader.unpack(head.data).nbytes)
    return sizes
