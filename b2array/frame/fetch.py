"""Reads chunks, or some of their blocks, from a store, and compares the bytes with their checksums.

Whole chunks take one wave of requests. Blocks also take one wave if the head of their chunk was read before, or if the
frame notes their sizes. Otherwise, blocks take two waves: one for the heads of their chunks, and one for the blocks.
`steps_of`, a generator, asks for the bytes of one chunk, step by step; `fetch` joins the requests of many such
generators into one wave. Local files need no waves: each chunk is read separately, usually in one step, and noted sizes
are not used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.codec import cblosc, chunk, decode, encode
from b2array.codec.chunk import ChunkHead, Stored
from b2array.codec.chunk_header import MAX_DICT_NBYTES, ChunkHeader, FilterId
from b2array.config import HEADER_LEN
from b2array.errors import B2ArrayError, ChunkMissingError, FormatError, UnsupportedError, prefix_error
from b2array.format import checksums
from b2array.format.annotations import Sizes, block_bounds
from b2array.format.b2nd import TEXT
from b2array.format.index import chunk_number
from b2array.frame.source import SPOOL, CachedHead, ChunkRequest, Location, Source
from b2array.store.base import MISSING, HiddenError, join_views, stale_reader, too_short, where
from b2array.store.endings import TEMPORARY
from b2array.store.spans import Span, plan_packed_read, plan_scatter_read

__all__ = ["Ask", "fetch", "fetch_from", "read_chunks", "steps_of"]

_FREE = 4096
"""Reading this many bytes more costs less than another request."""
_MAX_SCATTERED = 512
"""At most this many blocks get margins around them."""
_MAX_HEADS = 4096
"""At most this many heads of a snapshot's chunks stay in memory."""
_WINDOW_NBYTES = 32 * 2**20
_WINDOW_CHUNKS = 256
"""`read_chunks` reads chunks of at most so many bytes, and at most so many chunks, in one wave of requests."""
_WINDOWS_UNDER_WAY = 3
_SOURCES_AT_ONCE = 16

Int64Array = npt.NDArray[np.int64]
Numbers = Sequence[int] | Int64Array


class Ask(NamedTuple):
    """A request for bytes to read into one buffer.

    Attributes
    ----------
    spans : list of Span
        The bytes.
    places : list of int
        The position of each span in the buffer.
    nbytes : int
        The size of the buffer.
    clip : bool
        Whether the object may end before the span does; then there is only one span.
    leads : bool
        Whether these bytes determine the next request. `NDArray.explain` reads only such bytes.
    """

    spans: list[Span]
    places: list[int]
    nbytes: int
    clip: bool = False
    leads: bool = False


class _Planned(NamedTuple):
    """Blocks to read.

    Attributes
    ----------
    head : ChunkHead
        The head of their chunk.
    numbers : sequence or array of int
        The blocks.
    ask : Ask
        The bytes to read.
    positions : list of int
        The start of each block in the buffer, followed by the start of the record of checksums, if it is read.
    margin : int
        The number of bytes after each block that the decoder may use.
    """

    head: ChunkHead
    numbers: Numbers
    ask: Ask
    positions: list[int]
    margin: int = 0


Steps = Generator[Ask, memoryview, Stored]


def fetch(source: Source, requests: Sequence[ChunkRequest]) -> list[Stored]:
    """Read chunks, or at least their wanted blocks, compare them with their checksums, and return them in order.

    Raises
    ------
    ChunkMissingError
        The store does not have a chunk that the index names.
    ChecksumError
        Bytes do not match their checksum; the message names the chunk and the block.
    FormatError
        A chunk contradicts the frame; the message has the number of the chunk.
    ConflictError
        One of these errors occurred because another writer has changed the store since it was opened.
    """
    try:
        if source.is_local:
            return list(map(_read_alone, repeat(source), requests))
        if len(requests) == 1 and config.disk_cache is not None:
            stored = _read_from_disk(source, requests[0])
            if stored is not None:
                return [stored]
        try:
            return _read_together(source, requests)
        except FormatError:
            # The cache on disk may have kept bytes that were damaged on their way: read them from the server.
            if not source.forget([request.chunk for request in requests]):
                raise
        return _read_together(source, requests)
    except FormatError as error:
        # Bytes of a later state look like damage. Requests that tell the difference are worth their cost only after an
        # error.
        stale = source.staleness()
        if stale is not None:
            raise stale from error
        raise


def read_chunks(source: Source, numbers: Sequence[int]) -> Iterator[Stored]:
    """Read and yield the whole chunks `numbers` in order, many at a time, up to a limit in bytes.

    Raises the errors of `fetch`.
    """
    in_window = _WINDOW_NBYTES // max(1, source.frame.chunksize)
    step = min(max(1, in_window), _WINDOW_CHUNKS)

    def windows() -> Iterator[list[ChunkRequest]]:
        """Yield the requests that `fetch` gets together."""
        for first in range(0, len(numbers), step):
            yield [ChunkRequest(n, None) for n in numbers[first : first + step]]

    under_way = 1 if source.is_local else _WINDOWS_UNDER_WAY
    for window in threads.ahead(lambda requests: fetch(source, requests), windows(), under_way):
        yield from window


def _read_alone(source: Source, request: ChunkRequest) -> Stored:
    """Read and return one chunk, with a call of the store for each step; raise the errors of `fetch`."""
    location = source.locate_unchecked(request.chunk)
    if isinstance(location, Location):
        wanted = _Chunk(source, request, location, is_local=True)
        if wanted.cached is not None and request.blocks is not None:
            # Usually, one step is enough. If it fails, the steps below determine the reason.
            with suppress(*MISSING, FormatError):
                planned = wanted.plan_blocks(wanted.cached.head)
                if planned is not None:
                    region = source.gather(*planned.ask[:3])
                    return wanted.check_blocks(planned, region)
        steps = wanted.steps()
    else:
        steps = steps_of(source, request)
    try:
        ask = next(steps)
        while True:
            try:
                view = source.read(ask.spans, clip=True)[0] if ask.clip else source.gather(*ask[:3])
            except MISSING as error:
                _refuse_missing(source, [(request.chunk, ask)], error)
                raise
            except FormatError as error:
                ask = steps.throw(error)
            else:
                ask = steps.send(view)
                del view  # its memory is free for the next step, unless `steps` keeps it
    except StopIteration as end:
        stored: Stored = end.value
        return stored
    except ChunkMissingError:
        # The message already names the chunk.
        raise
    except (FormatError, UnsupportedError) as error:
        raise _add_location(source, request.chunk, error) from error


def _read_from_disk(source: Source, request: ChunkRequest) -> Stored | None:
    """Read blocks of one chunk from the cache on disk, as from a local file; None if that does not have all of them.

    This is only a faster way for small reads: if anything is wrong, the usual way finds out what.
    """
    location = source.locate_unchecked(request.chunk)
    if not isinstance(location, Location) or request.blocks is None:
        return None
    wanted = _Chunk(source, request, location, is_local=True)
    if wanted.cached is None:
        return None
    with suppress(FormatError, UnsupportedError):
        planned = wanted.plan_blocks(wanted.cached.head)
        if planned is not None:
            region = source.gather_from_disk(request.chunk, *planned.ask[:3])
            if region is not None:
                return wanted.check_blocks(planned, region)
    return None


def _read_together(source: Source, requests: Sequence[ChunkRequest]) -> list[Stored]:
    """Read and return many chunks, with one wave of requests for each step; raise the errors of `fetch`."""
    chunks: list[Stored | None] = [None] * len(requests)
    waiting: list[tuple[int, Steps, Ask]] = []

    def go_on(i: int, steps: Steps, outcome: memoryview | FormatError | None) -> None:
        """Advance the steps of request `i`: enter its chunk in `chunks`, or let it wait for more bytes."""
        try:
            step = _advance(steps, outcome)
            if isinstance(step, Ask):
                waiting.append((i, steps, step))
            else:
                chunks[i] = step
        except (FormatError, UnsupportedError) as error:
            raise _add_location(source, requests[i].chunk, error) from error

    for i, request in enumerate(requests):
        go_on(i, steps_of(source, request), None)
    while waiting:
        asked, waiting = waiting, []
        spans = [span for _, _, ask in asked for span in ask.spans]
        try:
            views = iter(source.read(spans, clip=True))
        except MISSING as error:
            _refuse_missing(source, [(requests[i].chunk, ask) for i, _, ask in asked], error)
            raise
        for i, steps, ask in asked:
            own_views = [next(views) for _ in ask.spans]
            go_on(i, steps, _join_views(source, ask, own_views))
    return [stored for stored in chunks if stored is not None]


def fetch_from(requests: Sequence[tuple[Source, ChunkRequest]]) -> list[Stored | Exception]:
    """Read chunks of several frames, with one wave of requests for each step; return an error for each failed chunk."""
    outcomes = _fetch_from(requests)
    again = [
        i
        for i, (source, request) in enumerate(requests)
        if isinstance(outcomes[i], FormatError) and source.forget([request.chunk])
    ]
    if again:
        # As in `fetch`.
        for i, outcome in zip(again, _fetch_from([requests[i] for i in again]), strict=True):
            outcomes[i] = outcome
    return outcomes


def _fetch_from(requests: Sequence[tuple[Source, ChunkRequest]]) -> list[Stored | Exception]:
    """Do the same as `fetch_from`, but trust the cache on disk."""
    outcomes: list[Stored | Exception] = [FormatError("not read")] * len(requests)
    waiting: list[_Waiting] = []

    def go_on(
        i: int,
        source: Source,
        steps: Steps,
        outcome: memoryview | FormatError | None,
    ) -> None:
        """Advance the steps of request `i`: enter its chunk or error in `outcomes`, or let it wait for more bytes."""
        try:
            step = _advance(steps, outcome)
        except (FormatError, UnsupportedError) as error:
            outcomes[i] = error
            return
        if isinstance(step, Ask):
            waiting.append(_Waiting(i, source, steps, step))
        else:
            outcomes[i] = step

    for i, (source, request) in enumerate(requests):
        go_on(i, source, steps_of(source, request), None)
    while waiting:
        by_source: dict[int, list[_Waiting]] = {}
        for each in waiting:
            by_source.setdefault(id(each.source), []).append(each)
        groups, waiting = [*by_source.values()], []
        answers = threads.ahead(_read_wave, groups, min(len(groups), _SOURCES_AT_ONCE))
        for group, views in zip(groups, answers, strict=True):
            for each, view in zip(group, views, strict=True):
                # The steps of a chunk handle a FormatError: its object may end early.
                if isinstance(view, Exception) and not isinstance(view, FormatError):
                    outcomes[each.number] = view
                else:
                    go_on(each.number, each.source, each.steps, view)
    return outcomes


class _Waiting(NamedTuple):
    """A chunk whose steps wait for bytes; `number` is its position among the requests."""

    number: int
    source: Source
    steps: Steps
    ask: Ask


def _read_wave(group: list[_Waiting]) -> Sequence[memoryview | Exception]:
    """Read the bytes for which the chunks of one frame wait; return them, or an error, for each chunk."""
    source = group[0].source
    spans = [span for each in group for span in each.ask.spans]
    try:
        views = iter(source.read(spans, clip=True))
    except Exception as error:  # noqa: BLE001 - only the chunks of this frame fail
        # The steps of a chunk would take a FormatError for the end of its object.
        failure = B2ArrayError(str(error)) if isinstance(error, FormatError) else error
        return [failure] * len(group)
    return [_join_views(source, each.ask, [next(views) for _ in each.ask.spans]) for each in group]


def _advance(steps: Steps, outcome: memoryview | FormatError | None) -> Ask | Stored:
    """Resume the steps of a chunk with the result or error of the last request; return the next request, or the chunk.

    Without an `outcome`, start the steps.
    """
    try:
        if isinstance(outcome, FormatError):
            return steps.throw(outcome)
        return next(steps) if outcome is None else steps.send(outcome)
    except StopIteration as end:
        stored: Stored = end.value
        return stored


def _join_views(source: Source, ask: Ask, views: list[memoryview]) -> memoryview | FormatError:
    """Return the requested bytes in one buffer, or an error if the object has fewer bytes."""
    for (name, start, stop), view in zip(ask.spans, views, strict=True):
        if len(view) < stop - start and not ask.clip:
            return too_short(where(source.url, name), start, stop, len(view))
    return join_views(views)


def _refuse_missing(
    source: Source,
    asked: list[tuple[int, Ask]],
    error: OSError,
) -> None:
    """Raise the error of a chunk whose file does not exist; return if the chunks have no separate files."""
    missing = str(error.filename or "")
    names = [(n, ask.spans[0].name) for n, ask in asked]
    n, name = next((each for each in names if each[1] and missing.endswith(each[1])), names[0])
    # A chunk that a repair has marked as lost has no file, and raises another error.
    source.locate(n)
    if source.url.endswith(TEMPORARY):
        # A writer has moved the new frame from this temporary place to its final one.
        raise stale_reader(source.url) from error
    if name:
        found = "found none"
        if isinstance(error, HiddenError):
            found += ", or none that may be read"
        raise ChunkMissingError(f"chunk {n} of {source.url}: expected its file {name}, {found}") from error


def _add_location(source: Source, n: int, error: B2ArrayError) -> B2ArrayError:
    """Return an error with chunk `n` and its file in front of the message."""
    location = source.locate(n)
    where_read = f"chunk {n} of {source.url}"
    if isinstance(location, Location) and chunk_number(location.name) is not None:
        where_read += f", {location.name}"
    return prefix_error(where_read, error)


def steps_of(source: Source, request: ChunkRequest) -> Steps:
    """Yield requests for bytes of a chunk, receive the bytes, and return the chunk.

    A special chunk needs no request. If the generator gets a FormatError instead of bytes, an object has ended early.
    """
    location = source.locate(request.chunk)
    if not isinstance(location, Location):
        frame = source.frame
        nbytes = frame.chunk_nbytes(request.chunk)
        if nbytes is None and frame.metalayer(TEXT) is not None:
            # Nobody has written this chunk of text yet; only a transaction has such chunks.
            return Stored.whole(memoryview(encode.special_chunk(location, 1, typesize=1)))
        if nbytes is None:
            special = location.name.lower()
            raise FormatError(f"expected a stored chunk where chunks have different sizes, found {special}")
        chunk_bytes = encode.special_chunk(
            location,
            nbytes,
            typesize=frame.typesize,
            blocksize=frame.blocksize,
        )
        return Stored.whole(memoryview(chunk_bytes))
    sizes = None if source.is_local else source.known_sizes(request.chunk)
    wanted = _Chunk(source, request, location, is_local=source.is_local)
    return (yield from wanted.steps(sizes))


class _Chunk:
    """A stored chunk, and the blocks to read from it."""

    __slots__ = ("blocks", "cached", "frame", "is_local", "location", "number", "record_due", "source")

    def __init__(
        self,
        source: Source,
        request: ChunkRequest,
        location: Location,
        *,
        is_local: bool,
    ) -> None:
        self.source, self.is_local = source, is_local
        self.frame = source.state.frame
        self.number, self.blocks = request
        self.location = location
        self.cached = source.heads.get(request.chunk)
        self.record_due = False
        if self.cached is None or self.cached.sums is None:
            stored = config.verify != "never" and location.name != SPOOL
            self.record_due = stored and source.state.has_checksums(request.chunk)
        if self.record_due:
            # An earlier read with `config.verify` off did not compare this head with its checksum.
            self.cached = None

    def steps(self, sizes: Sizes | None = None) -> Steps:
        """Yield requests for bytes, receive the bytes, and return the chunk; `sizes` are the sizes in the frame."""
        if self.cached is not None:
            head = self.cached.head
            if self.blocks is None:
                return (yield from self.read_whole(head.header.cbytes))
            return (yield from self.read_blocks(head, b""))
        if sizes is not None:
            # Noted sizes are a hint. If they are wrong, read the chunk without them.
            with suppress(FormatError, UnsupportedError):
                stored = yield from self.read_by_sizes(sizes)
                if stored is not None:
                    return stored
            self.cached = None
        frame = self.frame
        nblocks = self.expected_nblocks()
        if self.blocks is None or (nblocks == len(self.blocks) and not self.is_local):
            nbytes = frame.chunk_nbytes(self.number)
            # Only chunks with measurements or with small blocks of variable length are larger. Bytes after the chunk
            # are ignored.
            most = (nbytes if nbytes is not None else 2**31) + HEADER_LEN
            return (yield from self.read_whole(most, nblocks or most // 4))
        head_nbytes = HEADER_LEN + 4 * nblocks + (4 + MAX_DICT_NBYTES) * frame.use_dict
        view = yield self.ask(0, max(head_nbytes, _FREE), leads=True)
        header = ChunkHeader.unpack(view)
        head_nbytes = chunk.head_nbytes(view, header)
        if head_nbytes > len(view):
            view = yield self.ask(0, head_nbytes, leads=True)
        head = self.unpack_head(view, header)
        if len(view) >= head.header.cbytes:
            return (yield from self.check_whole(head, view))
        head_bytes = bytes(view[:head_nbytes])
        # The blocks can then be read into the same memory.
        del view
        return (yield from self.read_blocks(head, head_bytes))

    def expected_nblocks(self) -> int:
        """Return the number of blocks according to the frame; 0 if it does not say."""
        frame = self.frame
        nbytes = frame.chunk_nbytes(self.number)
        if not nbytes or not frame.blocksize:
            return 0
        return -(-nbytes // frame.blocksize)

    def ask(self, start: int, stop: int, *, leads: bool = False) -> Ask:
        """Return a request for bytes of the chunk, counted from its start, up to the last place where it can end."""
        name, base, end = self.location
        first = base + start
        stop += base
        if end >= 0:
            stop = min(stop, end)
        return Ask([Span(name, first, stop)], [0], stop - first, end < 0, leads)

    def unpack_head(self, view: memoryview, header: ChunkHeader | None = None) -> ChunkHead:
        """Unpack a head; raise FormatError if its sizes contradict the frame."""
        head = chunk.unpack_head(view, header)
        expected = self.frame.chunk_nbytes(self.number)
        if expected is not None and head.header.nbytes != expected:
            raise FormatError(f"expected {expected} uncompressed bytes, found {head.header.nbytes}")
        return head

    # All of a chunk.

    def read_whole(self, cbytes: int, nblocks: int | None = None) -> Steps:
        """Read a whole chunk, with the record of its checksums.

        `cbytes` and `nblocks` are the expected number of bytes and blocks.
        """
        if nblocks is None:
            nblocks = self.expected_nblocks() or cbytes // 4
        nbytes = cbytes
        if self.record_due:
            nbytes += checksums.record_nbytes(nblocks)
        ask = self.ask(0, nbytes)
        view = yield ask
        head = None if self.cached is None else self.cached.head
        header = ChunkHeader.unpack(view) if head is None else head.header
        cbytes = header.cbytes
        # Small blocks of variable length take more bytes than their data: even the block starts may be longer.
        if head is None and not header.vl_blocks:
            head = self.unpack_head(view, header)
        _, start, stop = self.location
        fits = stop < 0 or start + cbytes <= stop
        # If the chunk is longer than expected, ask again, unless its object ends here.
        if len(view) == ask.nbytes < cbytes and fits:
            record = checksums.record_nbytes(header.nblocks) if self.record_due else 0
            view = yield self.ask(0, cbytes + record)
        if head is None:
            head = self.unpack_head(view, header)
        return (yield from self.check_whole(head, view))

    def check_whole(self, head: ChunkHead, view: memoryview) -> Steps:
        """Compare a whole chunk with its checksums, and return it.

        The record of checksums follows the chunk; this reads the record if `view` ends before it.
        """
        stored = Stored.whole(view, head)
        cbytes = head.header.cbytes
        nblocks = len(head.starts)
        behind = view[cbytes:]
        if self.record_due:
            record = checksums.record_nbytes(nblocks)
            if len(behind) < record:
                behind = yield self.ask(cbytes, cbytes + record)
        self._remember(head, stored.region, behind)
        # Damage to other blocks must not fail this read.
        wanted = None if self.blocks is None else chunk.blocks_to_decode(head, self.blocks)
        # The chunk may have other blocks than the frame expects; then all of it is decoded.
        if wanted is None or wanted[-1] >= nblocks:
            wanted = range(nblocks)
        if self.cached is not None and self.cached.sums is not None:
            self._check(self.cached.sums, wanted, stored)
        return stored

    # Some blocks of a chunk.

    def read_blocks(self, head: ChunkHead, head_bytes: bytes) -> Steps:
        """Read the wanted blocks of a chunk with this head, or the whole chunk if it is not much larger."""
        planned = self.plan_blocks(head)
        if planned is not None:
            region = yield planned.ask
            return self.check_blocks(planned, region, head_bytes)
        if len(head.starts) or self.record_due:
            return (yield from self.read_whole(head.header.cbytes, len(head.starts)))
        # A special chunk has no blocks: its head contains all information.
        self._remember(head, head_bytes, b"")
        return Stored(head, memoryview(b""), head.starts, head.stops)

    def plan_blocks(self, head: ChunkHead) -> _Planned | None:
        """Plan to read the wanted blocks and the record of checksums; None if the whole chunk should be read.

        The buffer has room for a header before the blocks. Blocks of local files also get margins, so that the decoder
        needs no copy of them.
        """
        blocks = () if self.blocks is None else self.blocks
        if FilterId.DELTA in head.header.filters:
            blocks = chunk.blocks_to_decode(head, blocks)
        # The chunk may have other blocks than the frame expects.
        if not len(blocks) or blocks[-1] >= len(head.starts):
            return None
        if len(blocks) == 1 and self.is_local:
            return self._plan_block(head, blocks)
        numbers = np.asarray(blocks, np.int64)
        cbytes = head.header.cbytes
        starts = head.starts[numbers].tolist()
        stops = head.stops[numbers].tolist()
        lead, margin = decode.scratch_margins(head, len(starts))
        is_scattered = margin and self.is_local and len(starts) <= _MAX_SCATTERED
        # Blocks that share bytes would be read several times.
        if not is_scattered or sum(stops) - sum(starts) > cbytes:
            packed = self._plan_packed(starts, stops, cbytes, len(head.starts))
            return None if packed is None else _Planned(head, numbers, *packed)
        if self.record_due:
            record = checksums.record_nbytes(len(head.starts))
            starts, stops = [*starts, cbytes], [*stops, cbytes + record]
        ranges, places, positions, nbytes = plan_scatter_read(
            starts,
            stops,
            gap=_FREE,
            lead=lead,
            room=margin,
        )
        ask = self._ask_ranges(ranges, places, nbytes)
        return _Planned(head, numbers, ask, positions, margin)

    def _plan_block(self, head: ChunkHead, blocks: Numbers) -> _Planned:
        """Plan to read one block of a local file."""
        # The read of a single item takes this route, and should not pay for NumPy arrays.
        block = blocks[0]
        start = int(head.starts[block])
        stop = int(head.stops[block])
        lead, margin = decode.scratch_margins(head, 1)
        ranges = [(start, stop)]
        places = [lead]
        nbytes = lead + stop - start + margin
        if self.record_due:
            cbytes = head.header.cbytes
            record = checksums.record_nbytes(len(head.starts))
            ranges.append((cbytes, cbytes + record))
            places.append(nbytes)
            nbytes += record
        ask = self._ask_ranges(ranges, places, nbytes)
        return _Planned(head, blocks, ask, places, margin)

    def _plan_packed(
        self,
        starts: list[int],
        stops: list[int],
        cbytes: int,
        nblocks: int,
    ) -> tuple[Ask, list[int]] | None:
        """Plan to read blocks without margins; None if the whole chunk is not much larger."""
        lead = cblosc.margin_in_front(len(starts))
        if self.record_due:
            record = checksums.record_nbytes(nblocks)
            starts, stops = [*starts, cbytes], [*stops, cbytes + record]
        ranges, positions, nbytes = plan_packed_read(starts, stops, gap=_FREE, lead=lead)
        if cbytes - nbytes <= max(nbytes // 2, _FREE):
            return None
        places = [0, *accumulate(stop - start for start, stop in ranges)]
        ask = self._ask_ranges(ranges, places[:-1], nbytes)
        return ask, positions

    def _ask_ranges(
        self,
        ranges: list[tuple[int, int]],
        places: list[int],
        nbytes: int,
    ) -> Ask:
        """Return a request for ranges of bytes, counted from the start of the chunk."""
        name, base, end = self.location
        last = base + ranges[-1][1]
        if 0 <= end < last:
            raise FormatError(f"expected blocks within {end - base} bytes, found one up to {last - base}")
        spans = []
        for start, stop in ranges:
            spans.append(Span(name, base + start, base + stop))
        return Ask(spans, places, nbytes)

    def check_blocks(self, planned: _Planned, region: memoryview, head_bytes: bytes = b"") -> Stored:
        """Compare blocks with their checksums, and return the chunk with these blocks."""
        head, numbers, _, positions, margin = planned
        if self.cached is None:
            self._remember(head, head_bytes, region[positions[-1] :])
        if len(numbers) == 1:
            # Shifting the starts of all blocks is cheaper than a new array, and the other blocks are never used.
            shift = positions[0] - int(head.starts[numbers[0]])
            starts = head.starts + shift
            stops = head.stops + shift
        else:
            starts = np.full(len(head.starts), -1, np.int64)
            starts[numbers] = positions[: len(numbers)]
            stops = starts + (head.stops - head.starts)
        stored = Stored(head, region, starts, stops, margin)
        if self.cached is not None and self.cached.sums is not None:
            self._check(self.cached.sums, numbers, stored)
        return stored

    # A chunk whose sizes are noted.

    def read_by_sizes(self, sizes: Sizes) -> Generator[Ask, memoryview, Stored | None]:
        """Read head and wanted blocks in one step, at places given by the noted sizes; None if sizes are missing."""
        cbytes = int(sizes[0])
        if self.location.stop >= 0 and self.location.start + cbytes > self.location.stop:
            return None
        if self.blocks is None or cbytes <= _FREE:
            return (yield from self.read_whole(cbytes))
        blocks = self.blocks
        # Delta decodes each block by the first one.
        if FilterId.DELTA in self.source.frame.filters and 0 not in blocks:
            blocks = (0, *blocks)
        numbers = np.asarray(blocks, np.int64)
        bounds = self._bounds(sizes)
        if bounds is None or numbers[-1] >= len(bounds) - 1:
            return None
        nblocks = len(bounds) - 1
        starts = bounds[numbers]
        stops = bounds[numbers + 1]
        planned = self._plan_packed(starts.tolist(), stops.tolist(), cbytes, nblocks)
        if planned is None:
            return (yield from self.read_whole(cbytes, nblocks))
        ask, positions = planned
        name, base, _ = self.location
        head_nbytes = int(bounds[0])
        head_span = Span(name, base, base + head_nbytes)
        view = yield Ask([head_span, *ask.spans], [], head_nbytes + ask.nbytes)
        head_bytes = bytes(view[:head_nbytes])
        head = self.unpack_head(view[:head_nbytes])
        needed = chunk.blocks_to_decode(head, numbers.tolist())
        # If the head contradicts the noted sizes, the bytes that were read are not the wanted blocks.
        if (
            len(head.starts) == nblocks
            and len(needed) == len(numbers)
            and np.array_equal(head.starts[numbers], starts)
            and np.array_equal(head.stops[numbers], stops)
        ):
            blocks_planned = _Planned(head, numbers, ask, positions)
            return self.check_blocks(blocks_planned, view[head_nbytes:], head_bytes)
        return (yield from self.read_blocks(head, head_bytes))

    def _bounds(self, sizes: Sizes) -> Int64Array | None:
        """Return the starts and stops of blocks in the chunk, from the noted sizes; None if sizes are missing."""
        frame = self.source.frame
        nbytes = frame.chunk_nbytes(self.number)
        if nbytes is not None and sizes[0] == nbytes + HEADER_LEN and not sizes[1:].any():
            # The chunk is stored raw: its blocks follow the header, uncompressed.
            stops = np.arange(self.expected_nblocks() + 1) * frame.blocksize
            return HEADER_LEN + np.minimum(stops, nbytes)
        # A frame that notes no blocks' sizes notes only the size of the chunk.
        notes_nbytes = frame.vl_blocks and len(sizes) > 1
        return block_bounds(sizes[:-1] if notes_nbytes else sizes)

    # Checksums.

    def _remember(self, head: ChunkHead, head_bytes: bytes | memoryview, behind: bytes | memoryview) -> None:
        """Compare a head with its checksum, if the chunk must have one, and keep head and checksums for later reads."""
        if self.cached is not None:
            return
        sums = None
        if self.record_due:
            number = chunk_number(self.location.name)
            sums = checksums.verify_sums(
                behind,
                head,
                head_bytes,
                number=-1 if number is None else number,
                crc=int(self.source.state.records[self.number]),
            )
        heads = self.source.heads
        if len(heads) >= _MAX_HEADS:
            heads.clear()
        self.cached = heads[self.number] = CachedHead(head, sums)

    def _check(
        self,
        sums: npt.NDArray[np.uint32],
        numbers: Numbers,
        stored: Stored,
    ) -> None:
        """Compare blocks with their checksums."""
        if config.verify != "never" and len(stored.starts):
            pick = np.asarray(numbers, np.int64)
            starts = stored.starts[pick].tolist()
            stops = stored.stops[pick].tolist()
            checksums.check_blocks(sums, pick.tolist(), stored.region, starts, stops)
