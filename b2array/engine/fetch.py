"""How chunks, or some of their blocks, get from a store into memory, and are compared with their checksums.

Any set of chunks and blocks takes one wave of requests where the sizes of the blocks are noted in the frame or whole
chunks are wanted, else two: for the heads of the chunks, and for the blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import cast

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.buffers import Buffer
from b2array.codec import cblosc, chunk, decode, encode
from b2array.codec.chunk import ChunkHead, Stored
from b2array.codec.header import MAX_DICT_NBYTES, FilterId, Special
from b2array.config import HEADER_LEN
from b2array.engine.source import Known, Place, Source, Want
from b2array.errors import B2ArrayError, ChunkMissingError, FormatError, UnsupportedError, located_error
from b2array.format import checksums
from b2array.format.annotations import Sizes, block_bounds
from b2array.store.base import join_views, stale_reader, too_short, where
from b2array.store.spans import Span, plan_packed_read, plan_scatter_read

__all__ = ["chunk_number", "fetch", "fetch_block"]

_CHUNK_NAME = re.compile("([0-9A-F]{8})[.]chunk")
_FREE = 4096
"""So many bytes more are never worth a request of their own."""
_WHOLE_SHARE = 2 / 3
"""A chunk of a near source is read whole when at least this share of its blocks is wanted."""
_MAX_APART = 512
"""So many blocks at most get places of their own."""
_MAX_HEADS = 4096
_MAX_WAVES = 6
"""What is noted, a head, a dictionary of unknown size, the blocks and a record: each may turn out to need the next."""

Int64Array = npt.NDArray[np.int64]
Range = tuple[int, int]


def fetch(source: Source, wants: Sequence[Want], *, reuse: bool = False) -> list[Stored]:
    """Read chunks, or some of their blocks, and compare what was read with its checksums.

    Parameters
    ----------
    source : Source
        Where the chunks are.
    wants : sequence of Want
        Chunk numbers and blocks.
    reuse : bool, default False
        The bytes are needed only until this thread fetches again, so that their memory can be used again.

    Returns
    -------
    list of Stored
        One item a want, with at least the wanted blocks at hand.

    Raises
    ------
    ChunkMissingError
        The store does not have a chunk that the index names.
    ChecksumError
        Bytes are not those that were written; the message has the chunk's number, and the block's.
    FormatError
        A chunk is not what the frame says it is; the message has its number.
    ConflictError
        The same, because another writer has changed the store since it was opened.
    """
    try:
        return _fetch(source, wants, reuse=reuse)
    except FormatError as error:
        if source.is_stale:
            raise stale_reader(source.url) from error
        raise


def fetch_block(source: Source, n: int, block: int) -> Stored:
    """Read one block of chunk `n` by the shortest way; its bytes are this thread's until it fetches again.

    Raises what `fetch` raises.
    """
    known = source.heads.get(n) if source.is_local else None
    if known is not None and block < len(known.head.starts) and FilterId.DELTA not in known.head.header.filters:
        head, sums = known
        name, first, limit = cast(Place, source.place(n))
        start, stop = int(head.starts[block]), int(head.stops[block])
        due = config.verify != "never" and source.has_checksums(n)
        if (limit < 0 or first + stop <= limit) and not (due and sums is None):
            lead, room = decode.scratch_margins(head, 1)
            end = lead + stop - start
            with suppress(FileNotFoundError, FormatError):
                region = source.gather((Span(name, first + start, first + stop),), (lead,), end + room)
                # What differs, or is not there, is read again below, which says what it is.
                if not due or sums is None or checksums.crc32(region[lead:end]) == sums[block]:
                    shift = lead - start
                    return Stored(head, region, head.starts + shift, head.stops + shift, room)
    (stored,) = fetch(source, (Want(n, (block,)),), reuse=True)
    return stored


def _fetch(source: Source, wants: Sequence[Want], *, reuse: bool) -> list[Stored]:
    reuse = reuse and len(wants) == 1
    pending = [_Pending(source, want, apart=reuse and source.is_local) for want in wants]
    for _ in range(_MAX_WAVES):
        waiting = [each for each in pending if each.stored is None]
        if not waiting:
            break
        _read_wave(source, waiting, reuse=reuse)
    for each in pending:
        if each.stored is None:
            raise each.located(FormatError("expected a head with the starts of all blocks, found less"))
    return [each.stored for each in pending if each.stored is not None]


def _read_wave(source: Source, waiting: Sequence[_Pending], *, reuse: bool) -> None:
    try:
        if reuse and waiting[0].plain:
            waiting[0].take_gathered()
            return
        # One batch for all: what may be shorter, because its length is not known, and what may not.
        views = iter(source.read([span for each in waiting for span in each.spans], clip=True))
        for each in waiting:
            each.take_views([next(views) for _ in each.spans])
    except FileNotFoundError as error:
        missing = next((each for each in waiting if str(error.filename or "").endswith(each.name or "\0")), waiting[0])
        if not missing.name:
            raise  # the whole frame is gone
        raise ChunkMissingError(
            f"chunk {missing.want.chunk} of {source.url}: expected its file {missing.name}, found none"
        ) from error


class _Pending:
    """A want on its way: which spans it asks for next, until it is stored."""

    __slots__ = (
        "_apart", "_bounds", "_due", "_half", "_head", "_head_bytes", "_hinted", "_known", "_numbers", "_places",
        "_positions", "_room", "_take", "clip", "name", "place", "source", "spans", "stored", "want",
    )  # fmt: skip

    def __init__(self, source: Source, want: Want, *, apart: bool) -> None:
        self.source = source
        self.want = want
        self._apart = apart
        self._places: tuple[list[int], int] | None = None
        self._room = 0
        self.stored: Stored | None = None
        self.spans: list[Span] = []
        self.clip = False
        self.name = ""
        self._hinted = False
        self._half: Stored | None = None
        # Not a method of this very object: a circle would keep the bytes until the garbage collector comes.
        self._take: Callable[[_Pending, memoryview], None] = _Pending._take_whole
        place = source.place(want.chunk)
        if isinstance(place, Special):
            try:
                self.stored = Stored.whole(memoryview(self._special(place)))
            except (FormatError, UnsupportedError) as error:
                raise self.located(error) from error
            return
        self.place = place
        self.name = place.name
        self._due = config.verify != "never" and source.has_checksums(want.chunk)
        self._known = source.heads.get(want.chunk)
        if self._known is not None and self._due and self._known.sums is None:
            self._known = None  # read while checksums were not compared
        if self._known is not None and want.blocks is not None:
            self._ask_for(self._known.head, None)
        elif source.is_local or not self._ask_noted():
            self._ask_unknown()

    def _ask_unknown(self) -> None:
        """Ask for a chunk whose head may be anything: whole if all blocks are wanted, else for the head."""
        self._hinted = False
        nblocks = self._nblocks()
        # Where nothing is far, what is read in vain costs less than one more call.
        enough = nblocks * _WHOLE_SHARE if self.source.is_local else nblocks
        most = nblocks and self.want.blocks is not None and len(self.want.blocks) >= enough
        # One more call for the head is nothing beside blocks without room, whose runs cost a copy of all of them.
        if self.want.blocks is None or (most and not (self._apart and nblocks <= _MAX_APART)):
            self._ask_whole()
            return
        nbytes = HEADER_LEN + 4 * nblocks
        if self.source.frame.use_dict:
            nbytes += 4 + MAX_DICT_NBYTES
        self._take = _Pending._take_head
        self._ask(0, nbytes if most else max(nbytes, _FREE))

    @property
    def plain(self) -> bool:
        """Whether all bytes that are asked for have to be there, and none that were read before are still needed."""
        return not self.clip and not self._hinted and self._half is None

    @property
    def _record_due(self) -> bool:
        return self._due and self._known is None

    def _special(self, special: Special) -> bytes:
        frame = self.source.frame
        nbytes = frame.chunk_nbytes(self.want.chunk)
        if nbytes is None:
            found = special.name.lower()
            raise FormatError(f"expected a stored chunk where chunks have sizes of their own, found {found}")
        return encode.special_chunk(special, nbytes, typesize=frame.typesize, blocksize=frame.blocksize)

    def _nblocks(self) -> int:
        frame = self.source.frame
        nbytes = frame.chunk_nbytes(self.want.chunk)
        return -(-nbytes // frame.blocksize) if nbytes and frame.blocksize else 0

    def _ask(self, start: int, stop: int) -> None:
        """Ask for bytes of the chunk, counted from its start."""
        place = self.place
        self.clip = place.stop < 0
        end = place.start + stop if self.clip else min(place.start + stop, place.stop)
        self.spans = [Span(place.name, place.start + start, end)]

    def _ask_whole(self, cbytes: int | None = None, nblocks: int | None = None) -> None:
        """Ask for all of a chunk of `cbytes` bytes (None: unknown), and the record of its checksums."""
        self._take = _Pending._take_whole
        if cbytes is None:
            nbytes = self.source.frame.chunk_nbytes(self.want.chunk)
            # Larger than its data by more than this only instrumented chunks are; what follows it is not looked at.
            cbytes = (nbytes if nbytes is not None else 2**31) + HEADER_LEN
        if nblocks is None:
            nblocks = self._nblocks() or cbytes // 4
        self._ask(0, cbytes + checksums.record_nbytes(nblocks) * self._record_due)

    def take_gathered(self) -> None:
        """Read what is asked for into memory that is used again, and go on."""
        places, self._places = self._places, None
        if places is None:
            ends = [0, *accumulate(span.stop - span.start for span in self.spans)]
            places = ends[:-1], ends[-1]
        try:
            view = self.source.gather(self.spans, *places)
        except FormatError as error:
            raise self.located(error) from error
        self.take(view)

    def take_views(self, views: Sequence[memoryview]) -> None:
        """Go on with the bytes of each span that was asked for."""
        short = next((n for n, view in enumerate(views) if len(view) < self.spans[n].stop - self.spans[n].start), None)
        if short is None or self.clip:
            self.take(join_views(views))
        elif self._hinted:
            self._ask_unknown()
        else:
            name, start, stop = self.spans[short]
            raise self.located(too_short(where(self.source.url, name), start, stop, len(views[short])))

    def take(self, view: memoryview) -> None:
        """Go on with the bytes that were asked for, one span behind the other."""
        try:
            self._take(self, view)
        except (FormatError, UnsupportedError) as error:
            if not self._hinted:
                raise self.located(error) from error
            self._half = None
            self._ask_unknown()

    def located(self, error: B2ArrayError) -> B2ArrayError:
        """Return the error with number and file of the chunk."""
        found_in = f"chunk {self.want.chunk} of {self.source.url}"
        return located_error(f"{found_in}, {self.name}" if chunk_number(self.name) is not None else found_in, error)

    def _take_whole(self, view: memoryview) -> None:
        head = self._known.head if self._known is not None else self._unpacked(view)
        if len(view) < head.header.cbytes and self._is_larger(head.header.cbytes, len(view)):
            self._ask_whole(head.header.cbytes, len(head.starts))
            return
        stored = Stored.whole(view, head)
        size = head.header.cbytes, head.header.cbytes + checksums.record_nbytes(len(head.starts))
        if self._record_due and len(view) < size[1]:
            self._half, self._take = stored, _Pending._take_record
            self._ask(*size)
        else:
            self._finish(stored, view[size[0] :])

    def _is_larger(self, cbytes: int, found: int) -> bool:
        """Whether a chunk has room for more bytes than its data justify, as instrumented ones need."""
        if found < self.spans[0].stop - self.spans[0].start:
            return False
        return self.place.stop < 0 or self.place.start + cbytes <= self.place.stop

    def _take_record(self, view: memoryview) -> None:
        if self._half is not None:
            self._finish(self._half, view)

    def _finish(self, stored: Stored, behind: memoryview) -> None:
        """Hand out a whole chunk, after comparing it with its checksums."""
        self._remember(stored.head, stored.region, behind)
        # Blocks that nobody wants may be damaged.
        wanted = None if self.want.blocks is None else chunk.needed_blocks(stored.head, self.want.blocks)
        nblocks = len(stored.starts)
        if wanted is None or wanted[-1] >= nblocks:  # or with other blocks than the frame's
            self._check(range(nblocks), stored)
        else:
            self._check(np.asarray(wanted, np.int64), stored)
        self.stored = stored

    def _take_head(self, view: memoryview) -> None:
        needed = chunk.head_nbytes(view)
        if needed > len(view):
            self._ask(0, needed)
            return
        head = self._unpacked(view)
        if self._due:
            self._head_bytes = bytes(view[:needed])
        else:
            self._remember(head, view, view)
        self._ask_for(head, view)

    def _unpacked(self, view: memoryview) -> ChunkHead:
        """Read a head that has to be what the frame says."""
        head = chunk.unpack_head(view)
        expected = self.source.frame.chunk_nbytes(self.want.chunk)
        if expected is not None and head.header.nbytes != expected:
            raise FormatError(f"expected {expected} uncompressed bytes, found {head.header.nbytes}")
        return head

    def _remember(self, head: ChunkHead, head_bytes: Buffer, behind: Buffer) -> None:
        """Compare a head with its checksum, if there has to be one, and keep both."""
        if self._known is not None:
            return
        sums = None
        if self._due:
            number = chunk_number(self.name)
            number = -1 if number is None else number
            sums = checksums.verified_sums(behind, head, head_bytes, number=number)
        heads = self.source.heads
        if len(heads) >= _MAX_HEADS:
            heads.clear()
        self._known = heads[self.want.chunk] = Known(head, sums)

    def _check(self, numbers: range | Int64Array, stored: Stored) -> None:
        if not self._due or self._known is None or self._known.sums is None or not len(stored.starts):
            return
        starts, stops = stored.starts, stored.stops
        if isinstance(numbers, range):
            checksums.check_blocks(self._known.sums, numbers, stored.region, starts.tolist(), stops.tolist())
            return
        starts, stops = starts[numbers], stops[numbers]
        checksums.check_blocks(self._known.sums, numbers.tolist(), stored.region, starts.tolist(), stops.tolist())

    def _ask_for(self, head: ChunkHead, view: memoryview | None) -> None:
        """Ask for the wanted blocks of a chunk with this head, or for all of it if that is not much more."""
        if view is not None and len(view) >= head.header.cbytes:
            self._take_whole(view)
        elif len(head.starts):
            self._ask_blocks(head, chunk.needed_blocks(head, () if self.want.blocks is None else self.want.blocks))
        elif self._record_due:
            self._ask_whole(head.header.cbytes, 0)
        else:
            self.stored = Stored(head, memoryview(b""), head.starts, head.stops)

    def _ask_blocks(self, head: ChunkHead, blocks: Sequence[int] | Int64Array) -> None:
        """Ask for the wanted blocks, near ones together and with room for a header in front."""
        if blocks[-1] >= head.header.nblocks:  # other blocks than the frame's: none of the numbers means anything
            self._ask_whole(head.header.cbytes)
            return
        numbers = np.asarray(blocks, np.int64)
        starts, stops = head.starts[numbers].tolist(), head.stops[numbers].tolist()
        if self._apart and len(numbers) <= _MAX_APART and sum(stops) - sum(starts) <= head.header.cbytes:
            asked: list[Range] | None = self._set_apart(head, starts, stops)
        else:
            asked = self._close_up(starts, stops, head.header.cbytes, len(head.starts))
        if asked is None:
            self._ask_whole(head.header.cbytes, len(head.starts))
            return
        place = self.place
        if place.stop >= 0 and place.start + asked[-1][1] > place.stop:
            space = place.stop - place.start
            raise self.located(FormatError(f"expected blocks within {space} bytes, found one up to {asked[-1][1]}"))
        self._ask_ranges(numbers, asked)
        self._head, self._take = head, _Pending._take_blocks

    def _set_apart(self, head: ChunkHead, starts: list[int], stops: list[int]) -> list[Range]:
        """Find places for blocks, with the record of checksums, where the engine has all the room it needs."""
        lead, self._room = decode.scratch_margins(head, len(starts))
        starts, stops = self._with_record(starts, stops, head.header.cbytes, len(head.starts))
        ranges, places, self._positions, nbytes = plan_scatter_read(
            starts, stops, gap=_FREE, lead=lead, room=self._room
        )
        self._places = places, nbytes
        return ranges

    def _with_record(
        self, starts: list[int], stops: list[int], cbytes: int, nblocks: int
    ) -> tuple[list[int], list[int]]:
        if not self._record_due:
            return starts, stops
        return [*starts, cbytes], [*stops, cbytes + checksums.record_nbytes(nblocks)]

    def _close_up(self, starts: list[int], stops: list[int], cbytes: int, nblocks: int) -> list[Range] | None:
        """Put blocks and the record of checksums together, with room for the engine's header in front.

        Returns None where all of the chunk is not much more.
        """
        lead = cblosc.margin_in_front(len(starts))
        starts, stops = self._with_record(starts, stops, cbytes, nblocks)
        ranges, self._positions, nbytes = plan_packed_read(starts, stops, gap=_FREE, lead=lead)
        return None if cbytes - nbytes <= max(nbytes // 2, _FREE) else ranges

    def _ask_ranges(self, numbers: Int64Array, asked: list[Range]) -> None:
        name, base, _ = self.place
        self.spans = [Span(name, base + start, base + stop) for start, stop in asked]
        self._numbers, self.clip = numbers, False

    def _ask_noted(self) -> bool:
        """Ask for head and blocks at once, where what is noted says where they are; tells whether it does."""
        row, place = self.source.known_sizes(self.want.chunk), self.place
        if row is None:
            return False
        cbytes = int(row[0])
        if place.stop >= 0 and place.start + cbytes > place.stop:
            return False
        numbers = np.array(self._noted_blocks(), np.int64)
        bounds = self._noted_bounds(row)
        if self.want.blocks is None or cbytes <= _FREE:
            self._ask_whole(cbytes)
        elif bounds is None or numbers[-1] >= len(bounds) - 1:
            return False
        else:
            self._ask_bounded(numbers, bounds)
        self._hinted = True
        return True

    def _noted_blocks(self) -> Sequence[int] | Int64Array:
        blocks: Sequence[int] | Int64Array = () if self.want.blocks is None else self.want.blocks
        delta = FilterId.DELTA in self.source.frame.filters
        return (0, *blocks) if delta and 0 not in blocks else blocks

    def _noted_bounds(self, row: Sizes) -> Int64Array | None:
        nbytes = self.source.frame.chunk_nbytes(self.want.chunk)
        if nbytes is not None and row[0] == nbytes + HEADER_LEN and not row[1:].any():  # stored raw
            return HEADER_LEN + np.minimum(np.arange(self._nblocks() + 1) * self.source.frame.blocksize, nbytes)
        return block_bounds(row)

    def _ask_bounded(self, numbers: Int64Array, bounds: Int64Array) -> None:
        """Ask for the head, which ends where the first block begins, and for blocks."""
        starts, stops = bounds[numbers].tolist(), bounds[numbers + 1].tolist()
        asked = self._close_up(starts, stops, int(bounds[-1]), len(bounds) - 1)
        if asked is None:
            self._ask_whole(int(bounds[-1]), len(bounds) - 1)
            return
        self._ask_ranges(numbers, [(0, int(bounds[0])), *asked])
        self._bounds = bounds
        self._take = _Pending._take_bounded

    def _take_bounded(self, view: memoryview) -> None:
        """Take head and blocks, if the head says that these are the blocks."""
        bounds, numbers = self._bounds, self._numbers
        head = self._unpacked(view[: int(bounds[0])])
        self._head_bytes = bytes(view[: int(bounds[0])])
        found = len(head.starts) == len(bounds) - 1 and len(chunk.needed_blocks(head, numbers.tolist())) == len(numbers)
        if (
            found
            and np.array_equal(head.starts[numbers], bounds[numbers])
            and np.array_equal(head.stops[numbers], bounds[numbers + 1])
        ):
            self._head = head
            self._take_blocks(view[int(bounds[0]) :])
        else:
            self._ask_for(head, None)

    def _take_blocks(self, region: memoryview) -> None:
        head, numbers, positions = self._head, self._numbers, self._positions
        if self._known is None and self._record_due:
            self._remember(head, self._head_bytes, region[positions[-1] :])
        elif self._known is None:
            self._remember(head, region, region)
        starts = np.full(len(head.starts), -1, np.int64)
        starts[numbers] = positions[: len(numbers)]
        stored = Stored(head, region, starts, starts + (head.stops - head.starts), self._room)
        self._check(numbers, stored)
        self.stored = stored


def chunk_number(name: str) -> int | None:
    """Return the number of the chunk's file with this name, or None if chunks' files are not called so.

    Examples
    --------
    >>> chunk_number("0000000A.chunk"), chunk_number("chunks.b2frame")
    (10, None)
    """
    found = _CHUNK_NAME.fullmatch(name)
    return int(found[1], 16) if found else None
