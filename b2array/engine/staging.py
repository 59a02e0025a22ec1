"""Where the new chunks of a commit are until an index refers to them.

In a sparse frame a new chunk goes into a file of its own at once. In a contiguous one it waits in a spool, until the
commit appends it or, for a new file, gives the spool's file its name. Every chunk is followed by a record of its
checksums.

The chunks that the forks of a transaction have spooled wait in segments of their own. The addresses of segment k begin
at ``k * SEGMENT``; the spool is a segment like the others.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec import chunk, encode
from b2array.codec.chunk import ChunkHead
from b2array.codec.header import Special
from b2array.config import HEADER_LEN
from b2array.engine.changes import DIGEST_NBYTES, LOWEST_CODE, SEGMENT
from b2array.engine.source import Staged
from b2array.errors import ConflictError
from b2array.format import index
from b2array.format.annotations import sizes_row
from b2array.format.checksums import pack_record, record_crc
from b2array.store.base import Head, Mutex, Store
from b2array.store.spool import Segment, Spool

__all__ = ["CHECKED_AFTER", "Staging", "digest_of"]

Int64Array = npt.NDArray[np.int64]

CHECKED_AFTER = 3600.0
"""Seconds after which a commit makes sure that the files it made are still there."""

_TOMBSTONE = b"\xff" * HEADER_LEN


class Staging:
    """New chunks, each known by a code that stands for it in a transaction's index.

    The code of a chunk in a file of its own is the file's number, from `first` on. The code of a spooled chunk is
    negative. Without a spool, all chunks go into files of their own. Threads may put chunks at the same time.

    With a `stride`, other processes put chunks from `first` on, too. Chunk n gets the number ``first + n``, or one that
    is some strides higher; equal chunks of two processes share a file.
    """

    def __init__(self, store: Store, spool: Spool | None, first: int, *, stride: int = 0) -> None:
        self.next = first
        self._store = store
        self._spool = spool
        self._stride = stride
        self._segments: list[Segment] = [] if spool is None else [spool]
        self._own = 0
        # For each spooled chunk: where it starts and stops, and where its record stops.
        self._extents = array("q")
        self._inherited = 0
        # For each file made here: its number, and the hash of its stamp. A stamp takes twenty times that memory.
        self._made = array("q")
        self._adopted: list[int] = []
        self._unreserved: list[int] = []
        self._closed = False
        self._since = time.monotonic()
        self._owner = os.getpid()
        self._mutex = Mutex()

    @property
    def ours(self) -> bool:
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
        if not self.ours:
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
            buf = encode.stored_special(buf)
            head = chunk.unpack_head(buf)
        row = sizes_row(head, nblocks)
        if self._spool is None:
            code, record = self._shared_file(n, buf, head) if self._stride else self._file(buf, head)
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
        with self._mutex.held_once("new chunks that wait for a commit"):
            first = self.next
            self.next += count
            return first

    def adopt(self, number: int, *, is_reserved: bool) -> None:
        """Note that a fork has put a chunk into a file, with a number that is reserved for forks or not."""
        with self._mutex.held_once("new chunks that wait for a commit"):
            (self._adopted if is_reserved else self._unreserved).append(number)
            if not self._stride:
                self.next = max(self.next, number + 1)

    def _enqueue(self, spool: Spool, buf: bytes, record: bytes = b"") -> int:
        with self._mutex.held_once("new chunks that wait for a commit"):
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

    def _file(self, buf: bytes, head: ChunkHead) -> tuple[int, bytes]:
        while True:
            number = self.reserve(1)
            record = pack_record(buf, head, number=number)
            try:
                stamp = self._store.create(index.chunk_name(number), (buf, record))
            except FileExistsError:
                continue
            with self._mutex.held_once("new chunks that wait for a commit"):
                self._made.extend((number, hash(stamp)))
            return number, record

    def _shared_file(self, n: int, buf: bytes, head: ChunkHead) -> tuple[int, bytes]:
        number = self.next + n
        while True:
            name, record = index.chunk_name(number), pack_record(buf, head, number=number)
            try:
                self._store.create(name, (buf, record))
            except FileExistsError:
                (found,) = self._store.head([name], len(buf) + len(record) + 1)
                if not isinstance(found, Head) or found.data != buf + record:
                    number += self._stride
                    continue
            return number, record

    # Segments of forks.

    @property
    def is_shared(self) -> bool:
        """Whether this is for a fork, whose chunks are compared with those of other forks."""
        return bool(self._stride)

    def inherit(self, segments: Sequence[Segment], extents: Int64Array) -> None:
        """Begin with the segments of the transaction that was forked, under the same codes."""
        self._segments = [*segments, *self._segments]
        self._own = len(segments)
        self._extents = array("q", extents.reshape(-1).tolist())
        self._inherited = len(extents)

    def attach(self, segments: Sequence[Segment], extents: Int64Array) -> int:
        """Take over the segments of a fork; return the number that its codes are lower by than its rows here."""
        with self._mutex.held_once("new chunks that wait for a commit"):
            rows, base = len(self._extents) // 3, len(self._segments) * SEGMENT
            self._segments += segments
            self._extents.extend((extents + base).reshape(-1).tolist())
        return rows

    def own(self) -> tuple[list[Segment], Int64Array]:
        """Return the segments and extents that were not inherited, with addresses from 0 on."""
        with self._mutex.held_once("new chunks that wait for a commit"):
            extents = np.array(self._extents[3 * self._inherited :], np.int64).reshape(-1, 3)
            return self._segments[self._own :], extents - self._own * SEGMENT

    def all(self) -> tuple[list[Segment], Int64Array]:
        """Return all segments and extents."""
        with self._mutex.held_once("new chunks that wait for a commit"):
            return list(self._segments), np.array(self._extents, np.int64).reshape(-1, 3)

    @property
    def inherited(self) -> int:
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
        self._since -= max(0.0, seconds)

    def missing(self, offsets: Int64Array) -> list[str]:
        """Return the names of the files made here that an index refers to and that are gone.

        Only a commit that took long looks for all of them: `vacuum` leaves younger files alone. Another transaction may
        have reserved the numbers of the `_unreserved` ones for its forks, and removes these files if it fails.
        """
        took_long = time.monotonic() - self._since >= CHECKED_AFTER
        made = np.array([*self._unreserved, *((*self._made[::2], *self._adopted) if took_long else ())], np.int64)
        if not made.size:
            return []
        names = [index.chunk_name(number) for number in made[_are_among(made, offsets)].tolist()]
        heads = self._store.head(names, 1) if names else []
        return [name for name, head in zip(names, heads, strict=True) if isinstance(head, FileNotFoundError)]

    def unused(self, offsets: Int64Array) -> dict[str, int]:
        """Return the files made here that an index does not refer to: their names, and the hashes of their stamps."""
        if not self._made:  # to look for nothing in a long index takes time, too
            return {}
        made = np.array(self._made, np.int64).reshape(-1, 2)
        unused = made[~_are_among(made[:, 0], offsets)]
        return {index.chunk_name(number): stamp for number, stamp in unused.tolist()}

    @property
    def spools(self) -> bool:
        """Whether chunks wait in a spool, and not in files of their own."""
        return self._spool is not None

    @property
    def made_files(self) -> bool:
        """Whether chunks have got files of their own."""
        return bool(self._made)

    def close(self) -> None:
        """Take no more chunks, and let go of the spool."""
        self._closed = True
        # A forked process must not remove the files that the other one needs.
        own = self._segments[self._own :] if self.ours else [self._spool] if self._spool is not None else []
        for segment in own:
            segment.close()


def _are_among(numbers: Int64Array, offsets: Int64Array) -> npt.NDArray[np.bool_]:
    """Which numbers are in an index. NumPy would sort the long index to look for a few."""
    found: npt.NDArray[np.bool_] = np.isin(numbers, offsets[np.isin(offsets, numbers)])
    return found


def digest_of(buf: Buffer) -> bytes:
    """Return a digest of a chunk, which tells chunks of two forks apart."""
    return blake2b(buf, digest_size=DIGEST_NBYTES).digest()
