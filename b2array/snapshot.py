"""One committed state of a frame in a store, and how its chunks are fetched.

A snapshot never changes. Reading it needs at most two waves of requests for any set of chunks and blocks, one where
whole chunks are wanted or the sizes of the blocks are noted in the frame.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from b2array import chunk, encoder, extras, frame, notes
from b2array.chunk import Head, Stored
from b2array.errors import B2ArrayError, ChunkMissingError, FormatError, UnsupportedError
from b2array.frame import Frame, FrameType
from b2array.spans import Span
from b2array.spec import BLOSC1_HEADER_LEN, HEADER_LEN, MAX_DICT_NBYTES, Buffer, FilterId, Special
from b2array.storage import Mark, Store, gathered, marked, too_short, where

__all__ = [
    "FRAME_NAME",
    "Place",
    "Snapshot",
    "Source",
    "Want",
    "fetch",
    "fetch_block",
    "load",
    "located",
    "located_error",
    "restore",
]

FRAME_NAME = "chunks.b2frame"
"""The file of a sparse frame that holds header, index and trailer (Blosc2 Sparse Frame Format)."""

_FIRST_READ = 64 * 2**10
_FREE = 4096
"""So many bytes more are never worth a request of their own."""
_WHOLE_SHARE = 2 / 3
"""A chunk of a near source is read whole when at least this share of its blocks is wanted."""
_MAX_HEADS = 4096
_MAX_WAVES = 5
"""What is noted, a head, a dictionary of unknown size and the blocks: each may turn out to need the next."""

T = TypeVar("T")
Int64Array = npt.NDArray[np.int64]


class Want(NamedTuple):
    """A chunk, and which of its blocks are wanted: None for all."""

    chunk: int
    blocks: Sequence[int] | Int64Array | None


class Place(NamedTuple):
    """Where a stored chunk is: bytes [start, stop) of an object; `stop` may lie behind the chunk's end, -1 unknown."""

    name: str
    start: int
    stop: int


class Source(Protocol):
    """What chunks are fetched from: a snapshot, or a transaction on top of one."""

    @property
    def frame(self) -> Frame:
        """What the frame says about its chunks."""
        ...

    @property
    def url(self) -> str:
        """The store, for messages."""
        ...

    def place(self, n: int) -> Place | Special:
        """Return where chunk `n` is."""
        ...

    def read(self, spans: Sequence[Span], *, clip: bool = False) -> list[memoryview]:
        """Read bytes of objects; `clip`: fewer where an object ends before."""
        ...

    def gather(self, spans: Sequence[Span]) -> memoryview:
        """Read bytes of objects into one buffer, which this thread uses again for the next call."""
        ...

    def read_heads(self, names: Sequence[str], nbytes: int) -> list[memoryview]:
        """Read the first bytes of objects, fewer of those that are shorter."""
        ...

    @property
    def near(self) -> bool:
        """Whether reading is so fast that every worker may do it for itself."""
        ...

    @property
    def heads(self) -> MutableMapping[int, Head]:
        """The heads of chunks, by number, that were read before."""
        ...

    def noted(self, n: int) -> notes.Sizes | None:
        """Return the sizes of chunk `n` and its blocks, as in `b2array.notes.sizes_of`, or None if not known."""
        ...


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A frame as it was when it was read.

    Parameters
    ----------
    store : Store
        Where it is.
    frame : Frame
        Header, index and trailer.
    start : int
        Where the frame begins in its file, in bytes.
    version : str or None
        The store's version of the file.
    generation : str
        Changes with every commit.
    """

    store: Store
    frame: Frame
    start: int
    version: str | None
    generation: str

    @property
    def url(self) -> str:
        """The store, for messages."""
        return self.store.url

    @property
    def name(self) -> str:
        """The object that holds header, index and trailer."""
        return FRAME_NAME if self.frame.frame_type == FrameType.SPARSE else ""

    @property
    def near(self) -> bool:
        """Whether reading is so fast that every worker may do it for itself."""
        return self.store.appendable

    @property
    def superseded(self) -> bool:
        """Whether the store holds another state by now."""
        try:
            return load(self.store, start=self.start).generation != self.generation
        except (OSError, B2ArrayError):
            return False

    @cached_property
    def heads(self) -> MutableMapping[int, Head]:
        """The heads of chunks, by number, that were read before."""
        return {}

    def noted(self, n: int) -> notes.Sizes | None:
        """Return the sizes of chunk `n` and its blocks, or None if they are not known."""
        row: notes.Sizes = self._sizes[n]
        return row if row[0] else None

    @cached_property
    def _sizes(self) -> notes.Sizes:
        return notes.sizes_of(self.frame, notes.extras_of(self.frame))

    @cached_property
    def _ordered(self) -> Int64Array:
        offsets = self.frame.offsets
        return np.append(np.sort(offsets[offsets >= 0]), self.frame.cbytes)

    def place(self, n: int) -> Place | Special:
        """Return where chunk `n` is; in a contiguous frame it may end before the place does."""
        where = self.frame.locate(n)
        return where if isinstance(where, Special) else self.place_of(where)

    def place_of(self, where: int) -> Place:
        """Return the place that an index entry of a stored chunk stands for."""
        if self.frame.frame_type == FrameType.SPARSE:
            return Place(frame.chunk_name(where), 0, -1)
        base = self.start + self.frame.header_len
        following = int(self._ordered[np.searchsorted(self._ordered, where, side="right")])
        return Place("", base + where, base + following)

    def read(self, spans: Sequence[Span], *, clip: bool = False) -> list[memoryview]:
        """Read bytes of the store's objects; `clip`: fewer where an object ends before."""
        return self.store.read(spans, expected=self._expected, clip=clip)

    def gather(self, spans: Sequence[Span]) -> memoryview:
        """Read bytes of the store's objects into one buffer, which this thread uses again for the next call."""
        return self.store.gather(spans, expected=self._expected)

    @cached_property
    def _expected(self) -> str | None:
        described = self.frame
        if self.version is None or self.name:
            return None
        mark = Mark(self.start + described.frame_len, described.fingerprint)  # its last bytes, and no other's
        ours = self.store.appendable and described.fingerprint_type == frame.FINGERPRINT_128
        return marked(self.version, mark) if ours else self.version

    def read_heads(self, names: Sequence[str], nbytes: int) -> list[memoryview]:
        """Read the first bytes of objects, fewer of those that are shorter."""
        found = []
        for head in self.store.head(names, nbytes):
            if isinstance(head, Exception):
                raise head
            found.append(head.data)
        return found


def load(store: Store, *, start: int = 0) -> Snapshot:
    """Read the frame that a store holds now.

    One wave of requests finds out whether the store is one file or a directory, a second one is needed only where
    header, index and trailer take more than 64 KiB.

    Raises
    ------
    FileNotFoundError
        There is neither a frame of its own nor one with chunks beside it.
    FormatError, UnsupportedError
        What is there is not a frame, or one of a kind that is not known.
    """
    names = (FRAME_NAME,) if store.is_prefix else ("",) if start else ("", FRAME_NAME)
    heads = store.head(names, _FIRST_READ, offset=start)
    found = [(name, head) for name, head in zip(names, heads, strict=True) if not isinstance(head, Exception)]
    if not found:
        raise _refusal(store, heads)
    # On object stores an empty object may stand for the directory.
    name, head = next((each for each in found if len(each[1].data)), found[0])
    version = head.stamp.version if head.stamp else None
    return located(store.url, partial(_parse, store, name, start, head.data, version))


def restore(store: Store, data: Buffer, version: str | None) -> Snapshot:
    """Read a frame of which `data` has the header at least, and the store the rest. Raises what `load` raises."""
    sparse = frame.unpack_header(data).frame_type == FrameType.SPARSE
    return located(store.url, lambda: _parse(store, FRAME_NAME * sparse, 0, memoryview(data), version))


def _refusal(store: Store, errors: Sequence[object]) -> Exception:
    absent = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
    other = next((error for error in errors if isinstance(error, Exception) and not isinstance(error, absent)), None)
    if other is not None:
        return other
    if any(isinstance(error, IsADirectoryError) for error in errors):
        return FileNotFoundError(f"{store.url} is a directory without {FRAME_NAME}: no sparse frame")
    if store.is_prefix:
        return FileNotFoundError(f"{where(store.url, FRAME_NAME)} does not exist: no sparse frame")
    return FileNotFoundError(f"{store.url} does not exist")


def _parse(store: Store, name: str, start: int, data: memoryview, version: str | None) -> Snapshot:
    header_len = frame.header_nbytes(data)
    if header_len > len(data):
        (data,) = store.read([Span(name, start, start + header_len)], expected=version)
    header = frame.unpack_header(data)
    expected = FrameType.SPARSE if name else FrameType.CONTIGUOUS
    if header.frame_type != expected:
        raise FormatError(f"expected a {expected.name.lower()} frame, found a {header.frame_type.name.lower()} one")
    if header.tail_stop <= len(data):
        tail = data[header.tail_start : header.tail_stop]
    else:
        (tail,) = store.read([Span(name, start + header.tail_start, start + header.tail_stop)], expected=version)
    found = frame.unpack(data, tail)
    if found.fingerprint_type == frame.FINGERPRINT_128:
        generation = found.fingerprint.hex()
    else:
        digest = blake2b(data[:header_len], digest_size=16)
        digest.update(tail)
        digest.update((version or "").encode())
        generation = digest.hexdigest()
    return Snapshot(store, found, start, version, generation)


def located(where: str, verb: Callable[[], T]) -> T:
    """Call `verb` and put `where` in front of what it says about bad bytes."""
    try:
        return verb()
    except (FormatError, UnsupportedError) as error:
        raise located_error(where, error) from error


def located_error(where: str, error: B2ArrayError) -> B2ArrayError:
    """Return the error with `where` in front of what it says."""
    text = str(error)
    return error if text.startswith(where) else type(error)(f"{where}: {text}")


def fetch(source: Source, wants: Sequence[Want], *, reuse: bool = False) -> list[Stored]:
    """Read chunks, or some of their blocks.

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
    FormatError
        A chunk is not what the frame says it is; the message has its number.
    """
    pending = [_Pending(source, want) for want in wants]
    for _ in range(_MAX_WAVES):
        waiting = [each for each in pending if each.stored is None]
        if not waiting:
            break
        _read_wave(source, waiting, reuse=reuse and len(wants) == 1)
    for each in pending:
        if each.stored is None:
            raise FormatError(f"{each.where}: expected a head with the starts of all blocks, found less")
    return [each.stored for each in pending if each.stored is not None]


def fetch_block(source: Source, n: int, block: int) -> Stored:
    """Read one block of chunk `n` by the shortest way; its bytes are this thread's until it fetches again.

    Raises what `fetch` raises.
    """
    head = source.heads.get(n) if source.near else None
    if head is not None and block < len(head.starts) and FilterId.DELTA not in head.header.filters:
        name, first, limit = cast(Place, source.place(n))
        start, stop = int(head.starts[block]), int(head.stops[block])
        if limit < 0 or first + stop <= limit:
            shift = min(start, _LEAD) - start
            with suppress(FileNotFoundError):
                region = source.gather((Span(name, first - shift, first + stop),))
                return Stored(head, region, head.starts + shift, head.stops + shift)
    (stored,) = fetch(source, (Want(n, (block,)),), reuse=True)
    return stored


_LEAD = BLOSC1_HEADER_LEN + 4
"""Room for the header that the engine puts in front of one block."""


def _read_wave(source: Source, waiting: Sequence[_Pending], *, reuse: bool) -> None:
    try:
        if reuse and not waiting[0].clip:
            waiting[0].take(source.gather(waiting[0].spans))
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
        "_asked",
        "_bounds",
        "_head",
        "_hinted",
        "_numbers",
        "_take",
        "clip",
        "name",
        "place",
        "source",
        "spans",
        "stored",
        "want",
    )

    def __init__(self, source: Source, want: Want) -> None:
        self.source = source
        self.want = want
        self.stored: Stored | None = None
        self.spans: list[Span] = []
        self.clip = False
        self.name = ""
        self._hinted = False
        self._take: Callable[[memoryview], None] = self._take_whole
        place = source.place(want.chunk)
        if isinstance(place, Special):
            self._take_whole(memoryview(self._special(place)))
            return
        self.place = place
        self.name = place.name
        head = source.heads.get(want.chunk) if want.blocks is not None else None
        if head is not None:
            self._ask_for(head, None)
        elif source.near or not self._ask_noted():
            self._ask_unknown()

    def _ask_unknown(self) -> None:
        """Ask for a chunk whose head may be anything: whole if all blocks are wanted, else for the head."""
        self._hinted = False
        nblocks = self._nblocks()
        # Where nothing is far, what is read in vain costs less than one more call.
        enough = nblocks * _WHOLE_SHARE if self.source.near else nblocks
        if self.want.blocks is None or (nblocks and len(self.want.blocks) >= enough):
            self._ask_whole()
            return
        nbytes = HEADER_LEN + 4 * nblocks
        if self.source.frame.cparams.use_dict:
            nbytes += 4 + MAX_DICT_NBYTES
        self._take = self._take_head
        self._ask(0, max(nbytes, _FREE))

    def _special(self, special: Special) -> bytes:
        header = self.source.frame
        nbytes = header.chunk_nbytes(self.want.chunk)
        if nbytes is None:
            raise FormatError(
                f"chunk {self.want.chunk} of {self.source.url}: expected a stored chunk where chunks have sizes of "
                f"their own, found {special.name.lower()}"
            )
        return encoder.special_chunk(special, nbytes, typesize=header.typesize, blocksize=header.blocksize)

    def _nblocks(self) -> int:
        header = self.source.frame
        nbytes = header.chunk_nbytes(self.want.chunk)
        return -(-nbytes // header.blocksize) if nbytes and header.blocksize else 0

    def _ask(self, start: int, stop: int) -> None:
        """Ask for bytes of the chunk, counted from its start."""
        place = self.place
        self.clip = place.stop < 0
        end = place.start + stop if place.stop < 0 else min(place.start + stop, place.stop)
        self.spans = [Span(place.name, place.start + start, end)]

    def _ask_whole(self, nbytes: int | None = None) -> None:
        self._take, self.clip = self._take_whole, False
        if nbytes is not None:
            self.spans = [Span(self.place.name, self.place.start, self.place.start + nbytes)]
            return
        nbytes = self.source.frame.chunk_nbytes(self.want.chunk)
        # Larger than its data by more than this only instrumented chunks are; what follows it is not looked at.
        self._ask(0, (nbytes if nbytes is not None else 2**31) + HEADER_LEN)

    def take_views(self, views: Sequence[memoryview]) -> None:
        """Go on with the bytes of each span that was asked for."""
        short = next((n for n, view in enumerate(views) if len(view) < self.spans[n].stop - self.spans[n].start), None)
        if short is None or self.clip:
            self.take(gathered(views))
        elif self._hinted:
            self._ask_unknown()
        else:
            name, start, stop = self.spans[short]
            raise too_short(where(self.source.url, name), start, stop, len(views[short]))

    def take(self, view: memoryview) -> None:
        """Go on with the bytes that were asked for, one span behind the other."""
        try:
            self._take(view)
        except (FormatError, UnsupportedError) as error:
            if not self._hinted:
                raise located_error(self.where, error) from error
            self._ask_unknown()

    @property
    def where(self) -> str:
        return f"chunk {self.want.chunk} of {self.source.url}"

    def _take_whole(self, view: memoryview) -> None:
        head = self.source.heads.get(self.want.chunk)
        if head is None:
            head = self._checked(view)
        if len(view) < head.header.cbytes and self._is_larger(head.header.cbytes, len(view)):
            self._ask_whole(head.header.cbytes)
            return
        self.stored = Stored.whole(view, head)

    def _is_larger(self, cbytes: int, found: int) -> bool:
        """Whether a chunk has room for more bytes than its data justify, as instrumented ones need."""
        if found < self.spans[0].stop - self.spans[0].start:
            return False
        return self.place.stop < 0 or self.place.start + cbytes <= self.place.stop

    def _take_head(self, view: memoryview) -> None:
        needed = chunk.head_nbytes(view)
        if needed > len(view):
            self._ask(0, needed)
            return
        self._ask_for(self._checked(view), view)

    def _checked(self, view: memoryview) -> Head:
        """Read a head, and keep it if it is what the frame says."""
        head = chunk.unpack_head(view)
        expected = self.source.frame.chunk_nbytes(self.want.chunk)
        if expected is not None and head.header.nbytes != expected:
            raise FormatError(f"expected {expected} uncompressed bytes, found {head.header.nbytes}")
        heads = self.source.heads
        if len(heads) >= _MAX_HEADS:
            heads.clear()
        heads[self.want.chunk] = head
        return head

    def _ask_for(self, head: Head, view: memoryview | None) -> None:
        """Ask for the wanted blocks of a chunk with this head, or for all of it if that is not much more."""
        if view is not None and len(view) >= head.header.cbytes:
            self.stored = Stored.whole(view, head)
        elif len(head.starts):
            self._ask_blocks(head, chunk.needed_blocks(head, () if self.want.blocks is None else self.want.blocks))
        else:
            self.stored = Stored(head, memoryview(b""), head.starts, head.stops)

    def _ask_blocks(self, head: Head, blocks: Sequence[int] | Int64Array) -> None:
        """Ask for the wanted blocks, near ones together and with room for a header in front."""
        if blocks[-1] >= head.header.nblocks:  # other blocks than the frame's: none of the numbers means anything
            self._ask_whole(head.header.cbytes)
            return
        numbers = np.asarray(blocks, np.int64)
        starts, stops = head.starts[numbers], head.stops[numbers]
        asked = _runs(starts, stops)
        if _is_most(asked, head.header.cbytes):
            self._ask_whole(head.header.cbytes)
            return
        place = self.place
        if place.stop >= 0 and place.start + asked[-1][1] > place.stop:
            raise FormatError(
                f"expected blocks within {place.stop - place.start} bytes, found one up to {asked[-1][1]}"
            )
        self._ask_runs(numbers, _with_lead(asked, len(numbers)))
        self._head, self._take = head, self._take_blocks

    def _ask_runs(self, numbers: Int64Array, asked: list[tuple[int, int]]) -> None:
        place = self.place
        self.spans = [Span(place.name, place.start + start, place.start + stop) for start, stop in asked]
        self._numbers, self._asked, self.clip = numbers, asked, False

    def _ask_noted(self) -> bool:
        """Ask for head and blocks at once, where what is noted says where they are; tells whether it does."""
        row, place = self.source.noted(self.want.chunk), self.place
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
        delta = FilterId.DELTA in self.source.frame.cparams.filter_slots
        return (0, *blocks) if delta and 0 not in blocks else blocks

    def _noted_bounds(self, row: notes.Sizes) -> Int64Array | None:
        nbytes = self.source.frame.chunk_nbytes(self.want.chunk)
        if nbytes is not None and row[0] == nbytes + HEADER_LEN and not row[1:].any():  # stored raw
            return HEADER_LEN + np.minimum(np.arange(self._nblocks() + 1) * self.source.frame.blocksize, nbytes)
        return extras.block_bounds(row)

    def _ask_bounded(self, numbers: Int64Array, bounds: Int64Array) -> None:
        """Ask for the head, which ends where the first block begins, and for blocks."""
        asked = _runs(bounds[numbers], bounds[numbers + 1])
        if _is_most(asked, int(bounds[-1])):
            self._ask_whole(int(bounds[-1]))
            return
        self._ask_runs(numbers, [(0, int(bounds[0])), *_with_lead(asked, len(numbers))])
        self._bounds = bounds
        self._take = self._take_bounded

    def _take_bounded(self, view: memoryview) -> None:
        """Take head and blocks, if the head says that these are the blocks."""
        bounds, numbers = self._bounds, self._numbers
        head = self._checked(view[: int(bounds[0])])
        found = len(head.starts) == len(bounds) - 1 and len(chunk.needed_blocks(head, numbers.tolist())) == len(numbers)
        if (
            found
            and np.array_equal(head.starts[numbers], bounds[numbers])
            and np.array_equal(head.stops[numbers], bounds[numbers + 1])
        ):
            self._head, self._asked = head, self._asked[1:]
            self._take_blocks(view[int(bounds[0]) :])
        else:
            self._ask_for(head, None)

    def _take_blocks(self, region: memoryview) -> None:
        head, numbers, asked = self._head, self._numbers, self._asked
        if len(asked) == 1:
            shift = -asked[0][0]
            self.stored = Stored(head, region, head.starts + shift, head.stops + shift)
            return
        starts = np.full(len(head.starts), -1, np.int64)
        stops = starts.copy()
        run_starts = np.array([start for start, _ in asked], np.int64)
        bases = np.cumsum([0, *(stop - start for start, stop in asked[:-1])])
        shifts = (bases - run_starts)[np.searchsorted(run_starts, head.starts[numbers], side="right") - 1]
        starts[numbers] = head.starts[numbers] + shifts
        stops[numbers] = head.stops[numbers] + shifts
        self.stored = Stored(head, region, starts, stops)


def _with_lead(asked: list[tuple[int, int]], nblocks: int) -> list[tuple[int, int]]:
    """Let the first range begin so early that there is room for a header in front of its blocks."""
    start, stop = asked[0]
    return [(max(0, start - BLOSC1_HEADER_LEN - 4 * nblocks), stop), *asked[1:]]


def _is_most(asked: list[tuple[int, int]], cbytes: int) -> bool:
    """Whether all of a chunk is not much more than these ranges of it."""
    wanted = sum(stop - start for start, stop in asked)
    return cbytes - wanted <= max(wanted // 2, _FREE)


def _runs(starts: Int64Array, stops: Int64Array) -> list[tuple[int, int]]:
    """Merge ranges that touch or nearly touch; returns them in order."""
    if len(starts) == 1:
        return [(int(starts[0]), int(stops[0]))]
    if (starts[1:] == stops[:-1]).all():
        return [(int(starts[0]), int(stops[-1]))]
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts)
        starts, stops = starts[order], stops[order]
    # The ends of blocks are the starts of others, so that in this order they never decrease.
    breaks = np.flatnonzero(starts[1:] > stops[:-1] + _FREE)
    first = [0, *(breaks + 1).tolist()]
    last = [*breaks.tolist(), len(starts) - 1]
    return list(zip(starts[first].tolist(), stops[last].tolist(), strict=True))
