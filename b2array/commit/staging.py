"""Stores the new chunks of a commit until an index refers to them.

In a sparse frame, a new chunk is written to a separate file at once. In a contiguous frame it waits in a spool, until
the commit appends the spool or, for a new frame, renames the spool's file. A record of its checksums follows every
chunk.

Each fork of a transaction spools its chunks into another segment. The addresses of segment k begin at ``k * SEGMENT``;
the spool itself is one of the segments.
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
from b2array.codec.chunk_header import Special
from b2array.commit.changes import DIGEST_NBYTES, LOWEST_CODE, SEGMENT
from b2array.config import HEADER_LEN
from b2array.errors import B2ArrayError, make_ended_error, make_forked_error
from b2array.format import index
from b2array.format.annotations import sizes_row
from b2array.format.checksums import pack_record, record_crc
from b2array.frame.source import Staged
from b2array.store.base import HiddenError, Mutex, Store
from b2array.store.spool import Segment, Spool

__all__ = ["CHECKED_AFTER", "CreatedFiles", "Staging", "digest_of"]

Int64Array = npt.NDArray[np.int64]

CHECKED_AFTER = 3600.0
"""Seconds after which a commit makes sure that its new files still exist."""

_TOMBSTONE = b"\xff" * HEADER_LEN
"""Bytes that no software takes for a chunk."""
_ONE_BY_ONE = 8
"""How many numbers a writer tries in turn before it looks for the numbers of other writers."""
_WINDOW = 256
"""From how many numbers a fork first chooses one at random."""
_MUTEX_OF = "new chunks that wait for a commit"
"""The mutex's name in errors."""


class CreatedFiles:
    """The files that a transaction and its forks have created, as far as this process knows.

    The transaction may remove only these files. A fork has another such list, and enters its files into the list of
    the transaction as well, which is its `outer` one.
    """

    def __init__(self, outer: CreatedFiles | None = None) -> None:
        # For each file: its number, and a digest of its stamp. A stamp takes twenty times that memory.
        self._rows = array("q")
        self._outer = outer
        self._ended = False
        self._owner = os.getpid()
        self._mutex = Mutex()
        self.is_needed = False
        """Whether a commit that seems to have failed may have succeeded, and need the files."""

    @property
    def is_ours(self) -> bool:
        """Whether this process creates these files, and not the process from which it was forked."""
        return self._owner == os.getpid()

    @property
    def is_ended(self) -> bool:
        """Whether the transaction has ended, so that it notes no more files."""
        return self._ended

    def add(self, rows: Iterable[int]) -> None:
        """Add files: for each file its number, and then the digest of its stamp; once the list has ended, ignore them.

        The outer list, of the transaction, gets them in any case.
        """
        rows = array("q", rows)
        with self._mutex.held_once(_MUTEX_OF):
            if not self._ended:
                self._rows += rows
        if self._outer is not None:
            self._outer.add(rows)

    def rows(self) -> Int64Array:
        """Return an array with a row for each file: its number, and the digest of its stamp."""
        with self._mutex.held_once(_MUTEX_OF):
            return np.array(self._rows, np.int64).reshape(-1, 2)

    def end(self) -> None:
        """End the list: `add` ignores later files."""
        with self._mutex.held_once(_MUTEX_OF):
            self._ended = True

    def find_unused(self, offsets: Int64Array) -> dict[str, int]:
        """Return the files to which an index, with the entries `offsets`, does not refer: digests of stamps, by name.

        In a process forked from this one, the result is empty, because that process must not remove the files.
        """
        # A search in a long index takes time, even for no files.
        if not (self._rows and self.is_ours):
            return {}
        rows = self.rows()
        unused = rows[~_are_among(rows[:, 0], offsets)]
        return {index.chunk_name(number): digest for number, digest in unused.tolist()}


class Staging:
    """New chunks, each with a code that stands for it in a transaction's index.

    The code of a chunk in a separate file is the number of the file. The code of a spooled chunk is negative. Threads
    may put chunks at the same time.

    Concurrent writers use numbers from `first` on as well. No writer overwrites an existing file: it tries the next
    number. Many forks begin with the same number, so each of them chooses numbers at random, or by `slots`.

    Parameters
    ----------
    store : Store
        The directory or prefix of the frame.
    spool : Spool, optional
        The spool for the chunks of a contiguous frame; without a spool, each chunk gets a file.
    first : int
        The first number for a file.
    transaction : CreatedFiles, optional
        For a fork, the files of its transaction.
    slots : callable, optional
        For a fork, returns a number from 0 to `nslots` - 1 for each chunk. The chunk's file gets this number, counted
        from `first`, unless another writer uses it.
    nslots : int
        The number of slots.

    Attributes
    ----------
    next : int
        The next number for a file: above all numbers that the transaction has used, has reserved, or has seen in use;
        in a fork, above the number that it tried last.
    files : CreatedFiles
        The files that were created here, or taken over from forks.
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
        self._is_of_fork = transaction is not None
        self._slots = slots
        self._first = first
        self._start = first + nslots
        self._window = _WINDOW
        self._has_leapt = False
        self._segments: list[Segment] = [] if spool is None else [spool]
        self._own = 0
        # For each spooled chunk: its start, its stop, and the stop of its record.
        self._extents = array("q")
        self._inherited = 0
        # The numbers of the files that the index will refer to.
        self._numbers = array("q")
        self._closed = False
        self._since = time.monotonic(), time.time()
        self._owner = os.getpid()
        self._mutex = Mutex()

    @property
    def is_ours(self) -> bool:
        """Whether the transaction belongs to this process, and not to the process from which it was forked."""
        return self._owner == os.getpid()

    @property
    def is_closed(self) -> bool:
        """Whether the transaction has ended."""
        return self._closed

    def require_open(self) -> None:
        """Raise ConflictError if the transaction has ended, or belongs to another process."""
        if self._closed:
            raise make_ended_error()
        if not self.is_ours:
            raise make_forked_error()

    # Staging chunks.

    def put(
        self,
        n: int,
        buf: bytes,
        width: int,
        head: ChunkHead | None = None,
    ) -> Staged:
        """Stage the chunk `buf`, which will be chunk `n`: write it to a new file, or to the spool; return its code.

        The result also has the chunk's row of sizes, with `width` columns, its checksum, its filters and, in a fork, a
        digest. `head` is the parsed beginning of the chunk, if the caller knows it. A chunk of zeros or NaN is encoded
        again, so that its bytes are stored. ConflictError: the transaction has ended, or belongs to another process.
        """
        self.require_open()
        head = head or chunk.unpack_head(buf)
        header = head.header
        if header.special not in (Special.NONE, Special.VALUE):
            # Other software cannot read parts of a stored chunk of zeros or NaN: store blocks or a repeated value.
            buf = encode.make_storable(buf)
            head = chunk.unpack_head(buf)
            header = head.header
        row = sizes_row(head, width)
        if self._spool is None:
            code, record = self._create_file(n, buf, head)
        else:
            record = pack_record(buf, head)
            code = self._append(self._spool, buf, record)
        filters = None
        if header.special == Special.NONE:
            filters = header.filters, header.filters_meta
        digest = digest_of(buf) if self.is_of_fork else b""
        return Staged(code, row, record_crc(record), filters, digest)

    def tombstone(self) -> int:
        """Return a new code for a lost chunk.

        It is the number of a file that does not exist; with a spool, it stands for appended bytes that are not a chunk.
        """
        if self._spool is None:
            return self.reserve(1)
        return self._append(self._spool, _TOMBSTONE)

    def reserve(self, count: int) -> int:
        """Reserve `count` consecutive numbers of files, which no later file here gets, and return the first."""
        with self._mutex.held_once(_MUTEX_OF):
            first = self.next
            self.next += count
            return first

    def take_over_files(self, rows: Int64Array) -> None:
        """List the files that a fork has created, as `CreatedFiles.rows` returns them, here; reserve their numbers.

        If the transaction fails, it removes them. A fork reserves no numbers, because it chooses its own at random.
        """
        if not rows.size:
            return
        self.files.add(rows.reshape(-1).tolist())
        if not self._is_of_fork:
            self.reserve_up_to(int(rows[:, 0].max()))

    def expect_file(self, number: int) -> None:
        """Note that the index will refer to a file that a fork has created, so that `find_missing` looks for it.

        This reserves its number, except in a fork.
        """
        with self._mutex.held_once(_MUTEX_OF):
            self._numbers.append(number)
        if not self._is_of_fork:
            self.reserve_up_to(number)

    def reserve_up_to(self, number: int) -> None:
        """Reserve all numbers up to this one: new files get only numbers above it."""
        with self._mutex.held_once(_MUTEX_OF):
            self.next = max(self.next, number + 1)

    def _append(self, spool: Spool, buf: bytes, record: bytes = b"") -> int:
        """Append a chunk and its record of checksums to the spool, enter its extent, and return the chunk's code."""
        with self._mutex.held_once(_MUTEX_OF):
            count = len(self._extents)
            start = spool.length
            address = self._own * SEGMENT + start
            stop = address + len(buf)
            try:
                self._extents.extend((address, stop, stop + len(record)))
                spool.write(buf, record)
            except BaseException:
                # Ctrl-C may arrive after the write: then the spool has the chunk, and the list must have its extent.
                if spool.length == start:
                    del self._extents[count:]
                raise
            return -1 - count // 3

    def _create_file(self, n: int, buf: bytes, head: ChunkHead) -> tuple[int, bytes]:
        """Write chunk `n` to a new file, and list the file; return its number, and the chunk's record of checksums.

        If another writer has the number, this tries the next one.
        """
        for number in self._numbers_to_try(n):
            name = index.chunk_name(number)
            record = pack_record(buf, head, number=number)
            try:
                digest = self._store.create(name, (buf, record)).digest
            except FileExistsError:
                # Another writer has this number, even if its chunk has the same bytes.
                continue
            self.files.add((number, digest))
            with self._mutex.held_once(_MUTEX_OF):
                self._numbers.append(number)
            return number, record
        # For the type checker: the candidates never end.
        raise AssertionError

    def _numbers_to_try(self, n: int) -> Iterator[int]:
        """Yield numbers to try for the file of chunk `n`, without end.

        After every eighth attempt, this lists the files in the store, to skip the numbers of other writers. A fork
        tries the chunk's slot, the number after its last one, and then numbers at random.
        """
        if self._slots is not None:
            yield self._first + self._slots(n)
        if not self._is_of_fork:
            for attempt in count(1):
                yield self.reserve(1)
                if attempt % _ONE_BY_ONE == 0:
                    self._skip_used_numbers()
        if self._has_leapt:
            yield self.reserve(1)
        while True:
            with self._mutex.held_once(_MUTEX_OF):
                number = self._start + secrets.randbelow(self._window)
                self.next, self._has_leapt = number + 1, True
            yield number
            # If this number is also in use, there are many other writers.
            self._window *= 2

    def _skip_used_numbers(self) -> None:
        """List the files in the store, and reserve all numbers up to the highest one in use; ignore errors."""
        # If the store cannot list files, the writer tries one number after the other.
        with suppress(OSError, B2ArrayError):
            numbers = [index.chunk_number(name) for name in self._store.listing()]
            highest = max((number for number in numbers if number is not None), default=-1)
            self.reserve_up_to(highest)

    # Segments of forks.

    @property
    def is_of_fork(self) -> bool:
        """Whether these are chunks of a fork: a merge compares them by digests with the chunks of other forks."""
        return self._is_of_fork

    def inherit(self, segments: Sequence[Segment], extents: Int64Array) -> None:
        """Put the spooled chunks of the forked transaction first; they have the same codes here.

        Call this before the first `put`. `extents` has a row for each of these chunks: its start, its stop, and the
        stop of its record, as addresses in `segments`.
        """
        self._segments = [*segments, *self._segments]
        self._own = len(segments)
        self._extents = array("q", extents.reshape(-1).tolist())
        self._inherited = len(extents)

    def take_over_segments(self, segments: Sequence[Segment], extents: Int64Array) -> int:
        """Add the segments and extents of a fork; return the number to subtract from its codes of spooled chunks."""
        with self._mutex.held_once(_MUTEX_OF):
            count = len(self._extents) // 3
            base = len(self._segments) * SEGMENT
            self._segments += segments
            addresses = (extents + base).reshape(-1)
            self._extents.extend(addresses.tolist())
        return count

    def own_segments(self) -> tuple[list[Segment], Int64Array]:
        """Return the segments and extents that were not inherited; the addresses count from the first of them."""
        with self._mutex.held_once(_MUTEX_OF):
            addresses = self._extents[3 * self._inherited :]
            extents = np.array(addresses, np.int64).reshape(-1, 3)
            return self._segments[self._own :], extents - self._own * SEGMENT

    def all_segments(self) -> tuple[list[Segment], Int64Array]:
        """Return all segments, and the extents of all chunks in them; the inherited ones come first."""
        with self._mutex.held_once(_MUTEX_OF):
            addresses = np.array(self._extents, np.int64)
            return list(self._segments), addresses.reshape(-1, 3)

    @property
    def inherited_count(self) -> int:
        """The number of spooled chunks that belong to the forked transaction."""
        return self._inherited

    # Reading staged chunks.

    def extent(self, code: int) -> tuple[int, int] | None:
        """Return the addresses where the spooled chunk with a code starts and stops; None for other codes."""
        if not LOWEST_CODE <= code < 0:
            return None
        at = 3 * (-1 - code)
        return self._extents[at], self._extents[at + 1]

    def read(self, start: int, stop: int) -> memoryview:
        """Return the bytes of a spooled chunk between two addresses; ValueError if there is no such segment."""
        segment, base = self._segment_at(start)
        return segment.read(start - base, stop - base)

    def pieces(self, ranges: Int64Array) -> Iterator[Buffer]:
        """Yield the bytes of ranges of spooled chunks. Each row of `ranges` is a start and a stop, as addresses."""
        for start, stop in ranges.tolist():
            segment, base = self._segment_at(start)
            yield from segment.pieces(start - base, stop - base)

    def _segment_at(self, address: int) -> tuple[Segment, int]:
        """Return the segment with an address, and the address of its first byte; ValueError without such a segment."""
        k = address // SEGMENT
        if k >= len(self._segments):
            raise ValueError("expected a chunk in the spool, found one in a separate file")
        return self._segments[k], k * SEGMENT

    # The end.

    @property
    def header_room(self) -> int | None:
        """The number of bytes that the spool's file reserves for a header; None if the file cannot become a frame."""
        spool = self._spool
        if spool is None or spool.path is None or not spool.on_disk:
            return None
        # Segments of forks are in other files.
        return spool.reserved if len(self._segments) == 1 else None

    def complete_spool_file(self, header: Buffer, tail: Buffer, *, durable: bool) -> str:
        """Write header and tail into the spool's file, which then is a complete frame, and return its path.

        If `durable`, the file is forced to the disk. ValueError: the spool has no file, or the header has another
        length than the reserved one.
        """
        spool = self._spool
        if spool is None or spool.path is None:
            raise ValueError("expected a spool with a file, found one in memory")
        spool.finish(header, tail, durable=durable)
        return spool.path

    def backdate(self, seconds: float) -> None:
        """Count the age of the transaction from this many seconds ago, because its forks may have put chunks since."""
        monotonic, wall = self._since
        # The clock of another computer may be ahead.
        seconds = max(0.0, seconds)
        self._since = monotonic - seconds, wall - seconds

    @property
    def is_old(self) -> bool:
        """Whether the transaction has taken so long that `vacuum` may have removed its files."""
        monotonic, wall = self._since
        # The monotonic clock stops while a computer sleeps, and the wall clock may be set back.
        elapsed = max(time.monotonic() - monotonic, time.time() - wall)
        return elapsed >= CHECKED_AFTER

    def find_missing(self, offsets: Int64Array) -> list[str]:
        """Look for new files that an index, with the entries `offsets`, refers to; return the names of missing ones.

        If the transaction is not old, none can be missing, and this does not read the store.
        """
        # `vacuum` does not remove newer files.
        if not (self.is_old and self._numbers):
            return []
        numbers = np.array(self._numbers, np.int64)
        needed = numbers[_are_among(numbers, offsets)]
        names = [index.chunk_name(number) for number in needed.tolist()]
        heads = self._store.head(names, 1) if names else []
        for head in heads:
            if isinstance(head, HiddenError):
                raise head
        answers = zip(names, heads, strict=True)
        return [name for name, head in answers if isinstance(head, FileNotFoundError)]

    @property
    def has_spool(self) -> bool:
        """Whether chunks wait in a spool, and not in separate files."""
        return self._spool is not None

    def close(self) -> None:
        """End the transaction: refuse further chunks, note no more files, and close the spool and segments of forks.

        Segments that a fork has inherited stay open, because the transaction needs them.
        """
        self._closed = True
        self.files.end()
        segments: list[Segment] = []
        if self.is_ours:
            segments = self._segments[self._own :]
        elif self._spool is not None:
            # The process that this one was forked from still needs the segments of forks.
            segments = [self._spool]
        for segment in segments:
            segment.close()


def _are_among(numbers: Int64Array, offsets: Int64Array) -> npt.NDArray[np.bool_]:
    """Return for each number whether it is in an index with the entries `offsets`."""
    # With the long index as its second argument, NumPy would sort all of it.
    common = offsets[np.isin(offsets, numbers)]
    among: npt.NDArray[np.bool_] = np.isin(numbers, common)
    return among


def digest_of(buf: Buffer) -> bytes:
    """Return a digest by which a merge compares the chunks of two forks."""
    return blake2b(buf, digest_size=DIGEST_NBYTES).digest()
