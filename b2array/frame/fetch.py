"""Chunks, or some of their blocks, from the store into memory, compared with their checksums.

Whole chunks take one wave of requests. Blocks take one, too, if their chunk's head was read before, or if the frame
notes their sizes; else one for the heads of their chunks, and one for the blocks. `steps_of`, a generator, asks for the
bytes of one chunk, step by step; `fetch` puts what the generators of many chunks ask for into one wave. Local files
have no waves: each chunk is read by itself, mostly in one step, and noted sizes are not used.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.codec import cblosc, chunk, decode, encode
from b2array.codec.chunk import ChunkHead, Stored
from b2array.codec.header import MAX_DICT_NBYTES, ChunkHeader, FilterId
from b2array.config import HEADER_LEN
from b2array.errors import B2ArrayError, ChunkMissingError, FormatError, UnsupportedError, prefix_error
from b2array.format import checksums
from b2array.format.annotations import Sizes, block_bounds
from b2array.frame.source import SPOOL, CachedHead, ChunkRequest, Location, Source
from b2array.store.base import MISSING, join_views, stale_reader, too_short, where
from b2array.store.endings import TEMPORARY
from b2array.store.spans import Span, plan_packed_read, plan_scatter_read

__all__ = ["Ask", "chunk_number", "fetch", "fetch_from", "read_chunks", "steps_of"]

_CHUNK_NAME = re.compile("([0-9A-F]{8})[.]chunk")
_FREE = 4096
"""Reading this many bytes more costs less than another request."""
_MAX_SCATTERED = 512
"""At most this many blocks get margins around them."""
_MAX_HEADS = 4096
_WINDOW_NBYTES = 32 * 2**20
_WINDOW_CHUNKS = 256
_WINDOWS_UNDER_WAY = 3
_SOURCES_AT_ONCE = 16

Int64Array = npt.NDArray[np.int64]
Numbers = Sequence[int] | Int64Array


class Ask(NamedTuple):
    """Bytes to read into one buffer of `nbytes` bytes, each span to its place.

    With `clip` there is one span, and it may be cut off where the object ends. `leads`: the bytes decide what to ask
    for next; `NDArray.explain` reads no others.
    """

    spans: list[Span]
    places: list[int]
    nbytes: int
    clip: bool = False
    leads: bool = False


class _Planned(NamedTuple):
    """Blocks to read: where each will begin in the buffer of `ask`, and the margin after each."""

    head: ChunkHead
    numbers: Numbers
    ask: Ask
    positions: list[int]
    margin: int = 0


Steps = Generator[Ask, memoryview, Stored]


def fetch(source: Source, requests: Sequence[ChunkRequest]) -> list[Stored]:
    """Read chunks, or at least their wanted blocks, and compare the bytes with their checksums.

    Raises
    ------
    ChunkMissingError
        The store does not have a chunk that the index names.
    ChecksumError Bytes differ from the written ones; the message names the chunk and the block. FormatError
        A chunk is not what the frame says it is; the message has its number.
    ConflictError
        The same, because another writer has changed the store since it was opened.
    """
    try:
        if source.is_local:
            return list(map(_read_alone, repeat(source), requests))
        return _read_together(source, requests)
    except FormatError as error:
        stale = source.staleness()
        if stale is not None:
            raise stale from error
        raise


def read_chunks(source: Source, numbers: Sequence[int]) -> Iterator[Stored]:
    """Read whole chunks, many at a time, but never more than a bounded number of bytes."""
    step = min(max(1, _WINDOW_NBYTES // max(1, source.frame.chunksize)), _WINDOW_CHUNKS)
    windows = ([ChunkRequest(n, None) for n in numbers[first : first + step]] for first in range(0, len(numbers), step))
    under_way = 1 if source.is_local else _WINDOWS_UNDER_WAY
    for window in threads.ahead(lambda requests: fetch(source, requests), windows, under_way):
        yield from window


def _read_alone(source: Source, request: ChunkRequest) -> Stored:
    """Read one chunk, with a call of the store for each step."""
    location = source.locate_unchecked(request.chunk)
    if isinstance(location, Location):
        wanted = _Chunk(source, request, location, is_local=True)
        if wanted.cached is not None and request.blocks is not None:
            # The usual case is one step. If that fails, the steps below find out why.
            with suppress(*MISSING, FormatError):
                planned = wanted.plan_blocks(wanted.cached.head)
                if planned is not None:
                    return wanted.take_blocks(planned, source.gather(*planned.ask[:3]))
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
    except ChunkMissingError:  # says where already
        raise
    except (FormatError, UnsupportedError) as error:
        raise _add_location(source, request.chunk, error) from error


def _read_together(source: Source, requests: Sequence[ChunkRequest]) -> list[Stored]:
    """Read many chunks, with one wave of requests for each step."""
    found: list[Stored | None] = [None] * len(requests)
    waiting: list[tuple[int, Steps, Ask]] = []

    def go_on(i: int, steps: Steps, outcome: memoryview | FormatError | None) -> None:
        try:
            step = _advance(steps, outcome)
            if isinstance(step, Ask):
                waiting.append((i, steps, step))
            else:
                found[i] = step
        except (FormatError, UnsupportedError) as error:
            raise _add_location(source, requests[i].chunk, error) from error

    for i, request in enumerate(requests):
        go_on(i, steps_of(source, request), None)
    while waiting:
        asked, waiting = waiting, []
        try:
            views = iter(source.read([span for _, _, ask in asked for span in ask.spans], clip=True))
        except MISSING as error:
            _refuse_missing(source, [(requests[i].chunk, ask) for i, _, ask in asked], error)
            raise
        for i, steps, ask in asked:
            go_on(i, steps, _join_views(source, ask, [next(views) for _ in ask.spans]))
    return [stored for stored in found if stored is not None]


def fetch_from(requests: Sequence[tuple[Source, ChunkRequest]]) -> list[Stored | Exception]:
    """Read chunks of several frames, with one wave of requests for each step. A chunk that fails gives its error."""
    found: list[Stored | Exception] = [FormatError("not read")] * len(requests)
    waiting: list[_Waiting] = []

    def go_on(i: int, source: Source, steps: Steps, outcome: memoryview | FormatError | None) -> None:
        try:
            step = _advance(steps, outcome)
        except (FormatError, UnsupportedError) as error:
            found[i] = error
            return
        if isinstance(step, Ask):
            waiting.append(_Waiting(i, source, steps, step))
        else:
            found[i] = step

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
                if isinstance(view, Exception) and not isinstance(view, FormatError):
                    found[each.number] = view
                else:
                    go_on(each.number, each.source, each.steps, view)
    return found


class _Waiting(NamedTuple):
    """A chunk whose steps wait for bytes."""

    number: int
    source: Source
    steps: Steps
    ask: Ask


def _read_wave(group: list[_Waiting]) -> Sequence[memoryview | Exception]:
    """Read what the chunks of one frame wait for: the bytes for each, or the error."""
    source = group[0].source
    try:
        views = iter(source.read([span for each in group for span in each.ask.spans], clip=True))
    except Exception as error:  # noqa: BLE001 - it is of the chunks of this frame only
        # The steps of a chunk would take a FormatError for the end of its object.
        return [B2ArrayError(str(error)) if isinstance(error, FormatError) else error] * len(group)
    return [_join_views(source, each.ask, [next(views) for _ in each.ask.spans]) for each in group]


def _advance(steps: Steps, outcome: memoryview | FormatError | None) -> Ask | Stored:
    """Send a chunk's steps the bytes, or the error, that they wait for; return their next request, or the chunk."""
    try:
        if isinstance(outcome, FormatError):
            return steps.throw(outcome)
        return next(steps) if outcome is None else steps.send(outcome)
    except StopIteration as end:
        stored: Stored = end.value
        return stored


def _join_views(source: Source, ask: Ask, views: list[memoryview]) -> memoryview | FormatError:
    for (name, start, stop), view in zip(ask.spans, views, strict=True):
        if len(view) < stop - start and not ask.clip:
            return too_short(where(source.url, name), start, stop, len(view))
    return join_views(views)


def _refuse_missing(source: Source, asked: list[tuple[int, Ask]], error: OSError) -> None:
    """Raise the error of a chunk whose file does not exist, unless the whole frame is gone."""
    names = [(n, ask.spans[0].name) for n, ask in asked]
    n, name = next((each for each in names if str(error.filename or "").endswith(each[1] or "\0")), names[0])
    source.locate(n)  # a lost chunk has no file
    if source.url.endswith(TEMPORARY):  # its writer, or the next one, has moved the new frame to its own place
        raise stale_reader(source.url) from error
    if name:
        raise ChunkMissingError(f"chunk {n} of {source.url}: expected its file {name}, found none") from error


def _add_location(source: Source, n: int, error: B2ArrayError) -> B2ArrayError:
    location, found_in = source.locate(n), f"chunk {n} of {source.url}"
    in_file = isinstance(location, Location) and chunk_number(location.name) is not None
    return prefix_error(f"{found_in}, {location.name}" if in_file else found_in, error)


def steps_of(source: Source, request: ChunkRequest) -> Steps:
    """Yield what to read next of a chunk, receive it, and return the chunk."""
    location = source.locate(request.chunk)
    if not isinstance(location, Location):
        frame, nbytes = source.frame, source.frame.chunk_nbytes(request.chunk)
        if nbytes is None:
            found = location.name.lower()
            raise FormatError(f"expected a stored chunk where chunks have sizes of their own, found {found}")
        made = encode.special_chunk(location, nbytes, typesize=frame.typesize, blocksize=frame.blocksize)
        return Stored.whole(memoryview(made))
    sizes = None if source.is_local else source.known_sizes(request.chunk)
    return (yield from _Chunk(source, request, location, is_local=source.is_local).steps(sizes))


class _Chunk:
    """A stored chunk, and the blocks of it to read."""

    __slots__ = ("blocks", "cached", "is_local", "location", "number", "record_due", "source")

    def __init__(self, source: Source, request: ChunkRequest, location: Location, *, is_local: bool) -> None:
        self.source, self.is_local = source, is_local
        self.number, self.blocks = request
        self.location = location
        self.cached = source.heads.get(request.chunk)
        self.record_due = False
        if self.cached is None or self.cached.sums is None:
            stored = config.verify != "never" and location.name != SPOOL
            self.record_due = stored and source.state.has_checksums(request.chunk)
        if self.record_due:
            self.cached = None  # it was read while checksums were not compared

    def steps(self, sizes: Sizes | None = None) -> Steps:
        """Yield what to read next, receive it, and return the chunk; `sizes` are the noted ones."""
        if self.cached is not None:
            head = self.cached.head
            if self.blocks is None:
                return (yield from self.whole(head.header.cbytes))
            return (yield from self.some_blocks(head, b""))
        if sizes is not None:
            # Sizes that turn out to be wrong were only a hint.
            with suppress(FormatError, UnsupportedError):
                stored = yield from self.by_sizes(sizes)
                if stored is not None:
                    return stored
            self.cached = None
        nblocks, frame = self.expected_nblocks(), self.source.frame
        if self.blocks is None or (nblocks == len(self.blocks) and not self.is_local):
            nbytes = frame.chunk_nbytes(self.number)
            # Only instrumented chunks are larger. Bytes after the chunk are ignored.
            return (yield from self.whole((nbytes if nbytes is not None else 2**31) + HEADER_LEN))
        head_nbytes = HEADER_LEN + 4 * nblocks + (4 + MAX_DICT_NBYTES) * frame.use_dict
        view = yield self.ask(0, max(head_nbytes, _FREE), leads=True)
        header = ChunkHeader.unpack(view)
        head_nbytes = chunk.head_nbytes(view, header)
        if head_nbytes > len(view):
            view = yield self.ask(0, head_nbytes, leads=True)
        head = self.unpack_head(view, header)
        if len(view) >= head.header.cbytes:
            return (yield from self.take_whole(head, view))
        head_bytes = bytes(view[:head_nbytes])
        del view  # so that the blocks can be read into the same memory
        return (yield from self.some_blocks(head, head_bytes))

    def expected_nblocks(self) -> int:
        frame = self.source.frame
        nbytes = frame.chunk_nbytes(self.number)
        return -(-nbytes // frame.blocksize) if nbytes and frame.blocksize else 0

    def ask(self, start: int, stop: int, *, leads: bool = False) -> Ask:
        """Ask for bytes of the chunk, counted from its start; for fewer if it has to end before."""
        name, base, end = self.location
        stop = base + stop if end < 0 else min(base + stop, end)
        return Ask([Span(name, base + start, stop)], [0], stop - base - start, end < 0, leads)

    def unpack_head(self, view: memoryview, header: ChunkHeader | None = None) -> ChunkHead:
        """Unpack a head, which must be what the frame says."""
        head = chunk.unpack_head(view, header)
        expected = self.source.frame.chunk_nbytes(self.number)
        if expected is not None and head.header.nbytes != expected:
            raise FormatError(f"expected {expected} uncompressed bytes, found {head.header.nbytes}")
        return head

    # All of a chunk.

    def whole(self, cbytes: int, nblocks: int | None = None) -> Steps:
        """Read a chunk of `cbytes` bytes, as far as is known, with the record of its checksums."""
        record = checksums.record_nbytes((self.expected_nblocks() or cbytes // 4) if nblocks is None else nblocks)
        ask = self.ask(0, cbytes + record * self.record_due)
        view = yield ask
        head = self.cached.head if self.cached is not None else self.unpack_head(view)
        found, (_, start, stop) = head.header.cbytes, self.location
        # The chunk is longer than we asked for. Ask again, unless its object ends here.
        if len(view) == ask.nbytes < found and (stop < 0 or start + found <= stop):
            view = yield self.ask(0, found + checksums.record_nbytes(len(head.starts)) * self.record_due)
        return (yield from self.take_whole(head, view))

    def take_whole(self, head: ChunkHead, view: memoryview) -> Steps:
        """Compare a whole chunk with its checksums; `view` may have the record after it."""
        stored = Stored.whole(view, head)
        cbytes, nblocks = head.header.cbytes, len(head.starts)
        behind = view[cbytes:]
        if self.record_due and len(behind) < checksums.record_nbytes(nblocks):
            behind = yield self.ask(cbytes, cbytes + checksums.record_nbytes(nblocks))
        self._remember(head, stored.region, behind)
        # Blocks that are not wanted may be damaged.
        wanted = None if self.blocks is None else chunk.blocks_to_decode(head, self.blocks)
        if wanted is None or wanted[-1] >= nblocks:  # other blocks than those of the frame
            wanted = range(nblocks)
        if self.cached is not None and self.cached.sums is not None:
            self._check(self.cached.sums, wanted, stored)
        return stored

    # Some blocks of a chunk.

    def some_blocks(self, head: ChunkHead, head_bytes: bytes) -> Steps:
        """Read the wanted blocks of a chunk with this head, or all of it if that is not much more."""
        planned = self.plan_blocks(head)
        if planned is not None:
            return self.take_blocks(planned, (yield planned.ask), head_bytes)
        if len(head.starts) or self.record_due:
            return (yield from self.whole(head.header.cbytes, len(head.starts)))
        self._remember(head, head_bytes, b"")
        return Stored(head, memoryview(b""), head.starts, head.stops)

    def plan_blocks(self, head: ChunkHead) -> _Planned | None:
        """Plan to read the wanted blocks and the record of checksums; None if all of the chunk is to be read.

        There is room for a header in front. Blocks of local files also get margins, which save decoding a copy.
        """
        blocks = () if self.blocks is None else self.blocks
        if FilterId.DELTA in head.header.filters:
            blocks = chunk.blocks_to_decode(head, blocks)
        if not len(blocks) or blocks[-1] >= len(head.starts):  # other blocks than those of the frame
            return None
        if len(blocks) == 1 and self.is_local:  # a point
            start, stop = int(head.starts[blocks[0]]), int(head.stops[blocks[0]])
            lead, margin = decode.scratch_margins(head, 1)
            ranges, places, nbytes = [(start, stop)], [lead], lead + stop - start + margin
            if self.record_due:
                cbytes, record = head.header.cbytes, checksums.record_nbytes(len(head.starts))
                ranges, places, nbytes = [*ranges, (cbytes, cbytes + record)], [lead, nbytes], nbytes + record
            return _Planned(head, blocks, self._ask_ranges(ranges, places, nbytes), places, margin)
        numbers = np.asarray(blocks, np.int64)
        starts, stops, cbytes = head.starts[numbers].tolist(), head.stops[numbers].tolist(), head.header.cbytes
        lead, margin = decode.scratch_margins(head, len(starts))
        if not (margin and self.is_local) or len(starts) > _MAX_SCATTERED or sum(stops) - sum(starts) > cbytes:
            packed = self._plan_packed(starts, stops, cbytes, len(head.starts))
            return None if packed is None else _Planned(head, numbers, *packed)
        if self.record_due:
            starts, stops = [*starts, cbytes], [*stops, cbytes + checksums.record_nbytes(len(head.starts))]
        ranges, places, positions, nbytes = plan_scatter_read(starts, stops, gap=_FREE, lead=lead, room=margin)
        return _Planned(head, numbers, self._ask_ranges(ranges, places, nbytes), positions, margin)

    def _plan_packed(
        self, starts: list[int], stops: list[int], cbytes: int, nblocks: int
    ) -> tuple[Ask, list[int]] | None:
        lead = cblosc.margin_in_front(len(starts))
        if self.record_due:
            starts, stops = [*starts, cbytes], [*stops, cbytes + checksums.record_nbytes(nblocks)]
        ranges, positions, nbytes = plan_packed_read(starts, stops, gap=_FREE, lead=lead)
        if cbytes - nbytes <= max(nbytes // 2, _FREE):
            return None
        places = [0, *accumulate(stop - start for start, stop in ranges)]
        return self._ask_ranges(ranges, places[:-1], nbytes), positions

    def _ask_ranges(self, ranges: list[tuple[int, int]], places: list[int], nbytes: int) -> Ask:
        name, base, end = self.location
        last = base + ranges[-1][1]
        if 0 <= end < last:
            raise FormatError(f"expected blocks within {end - base} bytes, found one up to {last - base}")
        spans = []
        for start, stop in ranges:
            spans.append(Span(name, base + start, base + stop))
        return Ask(spans, places, nbytes)

    def take_blocks(self, planned: _Planned, region: memoryview, head_bytes: bytes = b"") -> Stored:
        """Compare blocks with their checksums."""
        head, numbers, _, positions, margin = planned
        if self.cached is None:
            self._remember(head, head_bytes, region[positions[-1] :])
        if len(numbers) == 1:
            shift = positions[0] - int(head.starts[numbers[0]])
            stored = Stored(head, region, head.starts + shift, head.stops + shift, margin)
        else:
            starts = np.full(len(head.starts), -1, np.int64)
            starts[numbers] = positions[: len(numbers)]
            stored = Stored(head, region, starts, starts + (head.stops - head.starts), margin)
        if self.cached is not None and self.cached.sums is not None:
            self._check(self.cached.sums, numbers, stored)
        return stored

    # A chunk whose sizes are noted.

    def by_sizes(self, sizes: Sizes) -> Generator[Ask, memoryview, Stored | None]:
        """Read head and wanted blocks at once, from where the noted sizes put them; None if the sizes do not tell."""
        cbytes = int(sizes[0])
        if self.location.stop >= 0 and self.location.start + cbytes > self.location.stop:
            return None
        if self.blocks is None or cbytes <= _FREE:
            return (yield from self.whole(cbytes))
        blocks = self.blocks
        if FilterId.DELTA in self.source.frame.filters and 0 not in blocks:
            blocks = (0, *blocks)
        numbers, bounds = np.asarray(blocks, np.int64), self._bounds(sizes)
        if bounds is None or numbers[-1] >= len(bounds) - 1:
            return None
        starts, stops, front = bounds[numbers], bounds[numbers + 1], int(bounds[0])
        planned = self._plan_packed(starts.tolist(), stops.tolist(), cbytes, len(bounds) - 1)
        if planned is None:
            return (yield from self.whole(cbytes, len(bounds) - 1))
        ask, positions = planned
        name, base, _ = self.location
        view = yield Ask([Span(name, base, base + front), *ask.spans], [], front + ask.nbytes)
        head_bytes = bytes(view[:front])
        head = self.unpack_head(view[:front])
        needed = chunk.blocks_to_decode(head, numbers.tolist())
        if (
            len(head.starts) == len(bounds) - 1
            and len(needed) == len(numbers)
            and np.array_equal(head.starts[numbers], starts)
            and np.array_equal(head.stops[numbers], stops)
        ):
            return self.take_blocks(_Planned(head, numbers, ask, positions), view[front:], head_bytes)
        return (yield from self.some_blocks(head, head_bytes))

    def _bounds(self, sizes: Sizes) -> Int64Array | None:
        nbytes = self.source.frame.chunk_nbytes(self.number)
        if nbytes is not None and sizes[0] == nbytes + HEADER_LEN and not sizes[1:].any():  # stored raw
            return HEADER_LEN + np.minimum(np.arange(self.expected_nblocks() + 1) * self.source.frame.blocksize, nbytes)
        return block_bounds(sizes)

    # Checksums.

    def _remember(self, head: ChunkHead, head_bytes: bytes | memoryview, behind: bytes | memoryview) -> None:
        """Compare a head with its checksum, if there has to be one, and keep both for the next time."""
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

    def _check(self, sums: npt.NDArray[np.uint32], numbers: Numbers, stored: Stored) -> None:
        """Compare blocks with their checksums."""
        if config.verify != "never" and len(stored.starts):
            pick = np.asarray(numbers, np.int64)
            starts, stops = stored.starts[pick].tolist(), stored.stops[pick].tolist()
            checksums.check_blocks(sums, pick.tolist(), stored.region, starts, stops)


def chunk_number(name: str) -> int | None:
    """Return the number of the chunk file with this name, or None if chunk files have other names.

    Examples
    --------
    >>> chunk_number("0000000A.chunk"), chunk_number("chunks.b2frame")
    (10, None)
    """
    found = _CHUNK_NAME.fullmatch(name)
    return int(found[1], 16) if found else None
