"""Where the new chunks of a commit are until an index refers to them.

In a sparse frame a new chunk goes into a file of its own at once. In a contiguous one it waits in a spool, until the
commit appends it or, for a new file, gives the spool's file its name. Every chunk is followed by a record of its
checksums.

The chunks that the forks of a transaction have spooled wait in segments of their own. The addresses of segment k begin
at ``k * SEGMENT``; the spool is a segment like the others.
"""

from __future__ import annotations

import os
import secrets
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import count

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec import chunk, encode
from b2array.codec.chunk import ChunkHead
from b2array.codec.header import Special
from b2array.commit.changes import DIGEST_NBYTES, LOWEST_CODE, SEGMENT
from b2array.config import HEADER_LEN
from b2array.errors import B2ArrayError, ConflictError
from b2array.format import index
from b2array.format.annotations import sizes_row
from b2array.format.checksums import pack_record, record_crc
from b2array.frame.fetch import chunk_number
from b2array.frame.source import Staged
from b2array.store.base import Mutex, Store
from b2array.store.spool import Segment, Spool

__all__ = ["CHECKED_AFTER", "CreatedFiles", "Staging", "digest_of"]

Int64Array = npt.NDArray[np.int64]

CHECKED_AFTER = 3600.0
"""Seconds after which a commit makes sure that the files it made are still there."""

_TOMBSTONE = b"\xff" * HEADER_LEN
_ONE_BY_ONE = 8
"""How many numbers a writer tries in turn before it looks for the numbers of other writers."""
_WINDOW = 256
"""From how many numbers a fork first chooses one at random."""
_MUTEX_OF = "new chunks that wait for a commit"


class CreatedFiles:
    """The files that a transaction and its forks have made, as far as this process knows.

    Only these may the transaction remove. Those that a fork makes belong to the transaction as well, its `outer`.
    """

    def __init__(self, outer: CreatedFiles | None = None) -> None:
        # For each file: its number, and a digest of its stamp. A stamp takes twenty times that memory.
        self._rows = array("q")
        self._outer = outer
        self._ended = False
        self._owner = os.getpid()
        self._mutex = Mutex()
        self.is_needed = False
        """Whether a commit may need them that has failed, as far as anybody knows."""

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that these files are made in, and not one forked from it."""
        return self._owner == os.getpid()

    @property
    def is_ended(self) -> bool:
        """Whether the transaction has ended, and notes no more files."""
        return self._ended

    def add(self, rows: Iterable[int]) -> None:
        """Note files, given by numbers and digests in turn."""
        rows = array("q", rows)
        with self._mutex.held_once(_MUTEX_OF):
            if not self._ended:
                self._rows += rows
        if self._outer is not None:
            self._outer.add(rows)

    def rows(self) -> Int64Array:
        """Return a row for each file: its number, and the digest of its stamp."""
        with self._mutex.held_once(_MUTEX_OF):
            return np.array(self._rows, np.int64).reshape(-1, 2)

    def end(self) -> None:
        """Take no more files."""
        with self._mutex.held_once(_MUTEX_OF):
            self._ended = True

    def find_unused(self, offsets: Int64Array) -> dict[str, int]:
        """Return the files that an index does not refer to: their names, and the digests of their stamps.

        A forked process must not remove the files that the other one needs.
        """
        if not (self._rows and self.is_ours):  # to look for nothing in a long index takes time
            return {}
        made = self.rows()
        unused = made[~_are_among(made[:, 0], offsets)]
        return {index.chunk_name(number): digest for number, digest in unused.tolist()}


class Staging:
    """New chunks, each known by a code that stands for it in a transaction's index.

    The code of a chunk in its own file is the file's number, counted from `first`. The code of a spooled chunk is
    negative. Without a spool, all chunks go into files of their own. Threads may put chunks at the same time.

    Other writers take numbers from `first` on as well. Nobody writes to a file that is there: the next number is tried.
    The staging area of a fork gets the files of its transaction. Many forks begin with the same number, so each takes
    another one at random, or the one that `slots` gives for a chunk, from 0 up to `nslots`.
    """

    def __init__(
        self,
        store: Store,
        spool: Spool | None,
        first: int,
        *,
        transaction: CreatedFiles | None = None,
        slots: Callable[[int], int] | None = None,
        nslots: int = 0,
    ) -> None:
        self.next = first
        self.files = CreatedFiles(transaction)
        self._store = store
        self._spool = spool
        self._is_shared = transaction is not None
        self._slots = slots
        self._first = first
        self._start = first + nslots
        self._window = _WINDOW
        self._has_leapt = False
        self._segments: list[Segment] = [] if spool is None else [spool]
        self._own = 0
        # For each spooled chunk: where it starts and stops, and where its record stops.
        self._extents = array("q")
        self._inherited = 0
        # The numbers of the files that the index is to refer to.
        self._numbers = array("q")
        self._closed = False
        self._since = time.monotonic(), time.time()
        self._owner = os.getpid()
        self._mutex = Mutex()

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that the staging area was made in, and not one forked from it."""
        return self._owner == os.getpid()

    @property
    def is_closed(self) -> bool:
        """Whether the transaction has ended."""
        return self._closed

    def require_open(self) -> None:
        """Raise ConflictError if the transaction has ended, or belongs to another process."""
        if self._closed:
            raise ConflictError("expected a transaction under way, found that it has ended")
        if not self.is_ours:
            raise ConflictError("expected a transaction of this process, found one of the process it was forked from")

    # Taking chunks.

    def put(self, n: int, buf: bytes, nblocks: int, head: ChunkHead | None = None) -> Staged:
        """Put a chunk, which will be chunk `n`, into its file, or into the spool.

        The row of sizes has a column for each of `nblocks`. A chunk of zeros or NaN gets blocks or a repeated value, so
        that other readers can read it in parts.
        """
        self.require_open()
        head = head or chunk.unpack_head(buf)
        if head.header.special not in (Special.NONE, Special.VALUE):
            buf = encode.make_storable(buf)
            head = chunk.unpack_head(buf)
        row = sizes_row(head, nblocks)
        if self._spool is None:
            code, record = self._file(n, buf, head)
        else:
            record = pack_record(buf, head)
            code = self._enqueue(self._spool, buf, record)
        has_data = head.header.special == Special.NONE
        filters = (head.header.filters, head.header.filters_meta) if has_data else None
        return Staged(code, row, record_crc(record), filters, digest_of(buf) if self.is_shared else b"")

    def tombstone(self) -> int:
        """Return a code for a chunk that is lost, where no software will read anything: no file, or no chunk."""
        return self.reserve(1) if self._spool is None else self._enqueue(self._spool, _TOMBSTONE)

    def reserve(self, count: int) -> int:
        """Set numbers aside; returns the first."""
        with self._mutex.held_once(_MUTEX_OF):
            first = self.next
            self.next += count
            return first

    def take_over_files(self, rows: Int64Array) -> None:
        """Take over the files that a fork has made, as rows of `CreatedFiles.rows`."""
        if not rows.size:
            return
        self.files.add(rows.reshape(-1).tolist())
        if not self._is_shared:
            self.reserve_up_to(int(rows[:, 0].max()))

    def expect_file(self, number: int) -> None:
        """Note that the index is to refer to a file that a fork has made."""
        with self._mutex.held_once(_MUTEX_OF):
            self._numbers.append(number)
        if not self._is_shared:
            self.reserve_up_to(number)

    def reserve_up_to(self, number: int) -> None:
        """Give no new file this number or a lower one."""
        with self._mutex.held_once(_MUTEX_OF):
            self.next = max(self.next, number + 1)

    def _enqueue(self, spool: Spool, buf: bytes, record: bytes = b"") -> int:
        with self._mutex.held_once(_MUTEX_OF):
            start, count = spool.length, len(self._extents)
            stop = start + len(buf)
            base = self._own * SEGMENT
            try:
                self._extents.extend((base + start, base + stop, base + stop + len(record)))
                spool.write(buf, record)
            except BaseException:
                if spool.length == start:  # Ctrl-C can come after the writing, too
                    del self._extents[count:]
                raise
            return -1 - count // 3

    def _file(self, n: int, buf: bytes, head: ChunkHead) -> tuple[int, bytes]:
        for number in self._candidates(n):
            name, record = index.chunk_name(number), pack_record(buf, head, number=number)
            try:
                digest = self._store.create(name, (buf, record)).digest
            except FileExistsError:
                continue
            self.files.add((number, digest))
            with self._mutex.held_once(_MUTEX_OF):
                self._numbers.append(number)
            return number, record
        raise AssertionError  # for the type checker: there is always another number

    def _candidates(self, n: int) -> Iterator[int]:
        """Yield numbers to try for the file of chunk `n`."""
        if self._slots is not None:
            yield self._first + self._slots(n)
        if not self._is_shared:
            for attempt in count(1):
                yield self.reserve(1)
                if attempt % _ONE_BY_ONE == 0:
                    self._pass_others()
        if self._has_leapt:
            yield self.reserve(1)
        while True:
            with self._mutex.held_once(_MUTEX_OF):
                number = self._start + secrets.randbelow(self._window)
                self.next, self._has_leapt = number + 1, True
            yield number
            self._window *= 2  # this one is taken as well: there are many other writers

    def _pass_others(self) -> None:
        """Go on after the files of other writers. Where they cannot be listed, each number is tried."""
        with suppress(OSError, B2ArrayError):
            numbers = [chunk_number(name) for name in self._store.listing()]
            self.reserve_up_to(max((number for number in numbers if number is not None), default=-1))

    # Segments of forks.

    @property
    def is_shared(self) -> bool:
        """Whether this is for a fork, whose chunks are compared with those of other forks."""
        return self._is_shared

    def inherit(self, segments: Sequence[Segment], extents: Int64Array) -> None:
        """Begin with the segments of the transaction that was forked, under the same codes."""
        self._segments = [*segments, *self._segments]
        self._own = len(segments)
        self._extents = array("q", extents.reshape(-1).tolist())
        self._inherited = len(extents)

    def take_over_segments(self, segments: Sequence[Segment], extents: Int64Array) -> int:
        """Take over the segments of a fork; return the number that its codes are lower by than its rows here."""
        with self._mutex.held_once(_MUTEX_OF):
            rows, base = len(self._extents) // 3, len(self._segments) * SEGMENT
            self._segments += segments
            self._extents.extend((extents + base).reshape(-1).tolist())
        return rows

    def own_segments(self) -> tuple[list[Segment], Int64Array]:
        """Return the segments and extents that were not inherited, with addresses counted from 0."""
        with self._mutex.held_once(_MUTEX_OF):
            extents = np.array(self._extents[3 * self._inherited :], np.int64).reshape(-1, 3)
            return self._segments[self._own :], extents - self._own * SEGMENT

    def all_segments(self) -> tuple[list[Segment], Int64Array]:
        """Return all segments and extents."""
        with self._mutex.held_once(_MUTEX_OF):
            return list(self._segments), np.array(self._extents, np.int64).reshape(-1, 3)

    @property
    def inherited_count(self) -> int:
        """How many spooled chunks are those of the transaction that was forked."""
        return self._inherited

    # Reading them again.

    def extent(self, code: int) -> tuple[int, int] | None:
        """Return where a spooled chunk starts and stops in the spool, in bytes; None for other codes."""
        if not LOWEST_CODE <= code < 0:
            return None
        at = 3 * (-1 - code)
        return self._extents[at], self._extents[at + 1]

    def read(self, start: int, stop: int) -> memoryview:
        """Return bytes of a spooled chunk."""
        segment, base = self._segment_at(start)
        return segment.read(start - base, stop - base)

    def pieces(self, ranges: Int64Array) -> Iterator[Buffer]:
        """Yield the bytes of ranges of spooled chunks."""
        for start, stop in ranges.tolist():
            segment, base = self._segment_at(start)
            yield from segment.pieces(start - base, stop - base)

    def _segment_at(self, address: int) -> tuple[Segment, int]:
        k = address // SEGMENT
        if k >= len(self._segments):
            raise ValueError("chunks in files of their own are not spooled")
        return self._segments[k], k * SEGMENT

    # The end.

    @property
    def header_room(self) -> int | None:
        """How many bytes the spool's file has for a header, in front of the chunks; None if it cannot be a frame."""
        spool = self._spool
        is_file = spool is not None and spool.on_disk and spool.path is not None and len(self._segments) == 1
        return spool.reserved if spool is not None and is_file else None

    def finish(self, header: Buffer, tail: Buffer, *, durable: bool) -> str:
        """Complete the spool's file, and return its path."""
        spool = self._spool
        if spool is None or spool.path is None:
            raise ValueError("the spool has no file to give away")
        spool.finish(header, tail, durable=durable)
        return spool.path

    def began_before(self, seconds: float) -> None:
        """Note that the first chunks were put this long ago, by forks."""
        monotonic, wall = self._since
        self._since = monotonic - max(0.0, seconds), wall - max(0.0, seconds)

    @property
    def is_old(self) -> bool:
        """Whether this has taken so long that `vacuum` may have removed what was made here."""
        monotonic, wall = self._since
        # The monotonic clock stands still while a computer sleeps, and the other one may be set back.
        return max(time.monotonic() - monotonic, time.time() - wall) >= CHECKED_AFTER

    def find_missing(self, offsets: Int64Array) -> list[str]:
        """Return the names of the files made here that an index refers to and that are gone.

        Only a commit that took long looks for them: `vacuum` leaves younger files alone.
        """
        if not (self.is_old and self._numbers):
            return []
        made = np.array(self._numbers, np.int64)
        names = [index.chunk_name(number) for number in made[_are_among(made, offsets)].tolist()]
        heads = self._store.head(names, 1) if names else []
        return [name for name, head in zip(names, heads, strict=True) if isinstance(head, FileNotFoundError)]

    @property
    def has_spool(self) -> bool:
        """Whether chunks wait in a spool, and not in files of their own."""
        return self._spool is not None

    def close(self) -> None:
        """Take no more chunks, and let go of the spool."""
        self._closed = True
        self.files.end()
        # A forked process must not remove the files that the other one needs.
        own = self._segments[self._own :] if self.is_ours else [self._spool] if self._spool is not None else []
        for segment in own:
            segment.close()


def _are_among(numbers: Int64Array, offsets: Int64Array) -> npt.NDArray[np.bool_]:
    """Which numbers are in an index. NumPy would sort the long index to look for a few."""
    found: npt.NDArray[np.bool_] = np.isin(numbers, offsets[np.isin(offsets, numbers)])
    return found


def digest_of(buf: Buffer) -> bytes:
    """Return a digest of a chunk, which tells chunks of two forks apart."""
    return blake2b(buf, digest_size=DIGEST_NBYTES).digest()
