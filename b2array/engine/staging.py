"""Where the new chunks of a commit are until an index refers to them.

In a sparse frame a new chunk goes into a file of its own at once. In a contiguous one it waits in a spool, until the
commit appends it or, for a new file, gives the spool's file its name. Every chunk is followed by a record of its
checksums.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec import chunk, encode
from b2array.codec.chunk import ChunkHead
from b2array.codec.header import ChunkHeader, Special
from b2array.config import HEADER_LEN
from b2array.errors import ConflictError, located
from b2array.format import index
from b2array.format.annotations import Sizes, sizes_row
from b2array.format.checksums import pack_record, record_crc
from b2array.store.base import Mutex, Stamp, Store
from b2array.store.spool import Spool

__all__ = ["CHECKED_AFTER", "LOWEST_CODE", "Noted", "Staging"]

Int64Array = npt.NDArray[np.int64]

CHECKED_AFTER = 3600.0
"""Seconds after which a commit makes sure that the files it made are still there."""

_TOMBSTONE = b"\xff" * HEADER_LEN
LOWEST_CODE = -(2**32)
"""Smaller entries of an index stand for special values."""


FilterSlots = tuple[tuple[int, ...], tuple[int, ...]]
"""The six filters of a chunk, and their parameters."""


class Noted(NamedTuple):
    """A new chunk's row in the tables of the index: the sizes of it and its blocks, and its record's checksum."""

    sizes: Sizes
    record: int


class Staging:
    """New chunks, each known by a code that stands for it in a transaction's index.

    The code of a chunk in a file of its own is the file's number, from `first` on. The code of a spooled chunk is
    negative. Without a spool, all chunks go into files of their own. Threads may put chunks at the same time.
    """

    def __init__(self, store: Store, spool: Spool | None, first: int) -> None:
        self.next = first
        self.noted: dict[int, Noted] = {}
        self.filters: dict[int, FilterSlots] = {}
        self._store = store
        self._spool = spool
        self._extents: list[tuple[int, int, int]] = []  # start, stop, stop of the record
        self._made: dict[int, Stamp] = {}
        self._digest = blake2b(digest_size=16)
        self._closed = False
        self._since = time.monotonic()
        self._owner = os.getpid()
        self._mutex = Mutex()

    def put(self, buf: bytes, nblocks: int, head: ChunkHead | None = None) -> int:
        """Put a chunk into its file, or into the spool, and return its code.

        The table of sizes has a column for each of `nblocks`. A chunk of zeros or NaN gets blocks or a repeated
        value, so that other readers can read it in parts.
        """
        self.require_open()
        head = head or chunk.unpack_head(buf)
        if head.header.special not in (Special.NONE, Special.VALUE):
            buf = encode.stored_special(buf)
            head = chunk.unpack_head(buf)
        row = sizes_row(head, nblocks)
        if self._spool is None:
            code, record = self._file(buf, head)
        else:
            record = pack_record(buf, head)
            code = self._enqueue(self._spool, buf, record)
        with self._mutex.held_once("new chunks that wait for a commit"):
            self._digest.update(record)
            self.noted[code] = Noted(row, record_crc(record))
            if head.header.special == Special.NONE:
                self.filters[code] = head.header.filters, head.header.filters_meta
        return code

    @property
    def ours(self) -> bool:
        """Whether this is the process that the staging area was made in, and not one forked from it."""
        return self._owner == os.getpid()

    def require_open(self) -> None:
        """Raise ConflictError if the transaction has ended, or belongs to another process."""
        if self._closed:
            raise ConflictError("expected a transaction under way, found that it has ended")
        if not self.ours:
            raise ConflictError("expected a transaction of this process, found one of the process it was forked from")

    def _enqueue(self, spool: Spool, buf: bytes, record: bytes = b"") -> int:
        with self._mutex.held_once("new chunks that wait for a commit"):
            start, count = spool.length, len(self._extents)
            stop = start + len(buf)
            try:
                self._extents.append((start, stop, stop + len(record)))
                spool.write(buf, record)
            except BaseException:
                if spool.length == start:  # Ctrl-C can come after the writing, too
                    del self._extents[count:]
                raise
            return -1 - count

    def _file(self, buf: bytes, head: ChunkHead) -> tuple[int, bytes]:
        while True:
            number = self.reserve(1)
            record = pack_record(buf, head, number=number)
            try:
                stamp = self._store.create(index.chunk_name(number), (buf, record))
            except FileExistsError:
                continue
            with self._mutex.held_once("new chunks that wait for a commit"):
                self._made[number] = stamp
            return number, record

    def reserve(self, count: int) -> int:
        """Set numbers aside; returns the first."""
        with self._mutex.held_once("new chunks that wait for a commit"):
            first = self.next
            self.next += count
            return first

    def adopt(self, code: int, sizes: Sizes, record: bytes) -> None:
        """Note a chunk that another process has put. If the commit fails, its file stays."""
        with self._mutex.held_once("new chunks that wait for a commit"):
            self._digest.update(record)
            self.noted[code] = Noted(sizes, record_crc(record))
            self.next = max(self.next, code + 1)

    def tombstone(self) -> int:
        """Return a code for a chunk that is lost, where no software will read anything: no file, or no chunk."""
        if self._spool is None:
            return self.reserve(1)
        with self._mutex.held_once("new chunks that wait for a commit"):
            self._digest.update(_TOMBSTONE)
        return self._enqueue(self._spool, _TOMBSTONE)

    def missing(self, offsets: Int64Array) -> list[str]:
        """Return the names of the files made here that an index refers to and that are gone.

        Only a commit that took long looks for them: `vacuum` leaves younger files alone.
        """
        if time.monotonic() - self._since < CHECKED_AFTER:
            return []
        numbers = [code for code in self.noted if code >= 0 and code in offsets]
        names = [index.chunk_name(number) for number in numbers]
        heads = self._store.head(names, 1) if names else []
        return [name for name, head in zip(names, heads, strict=True) if isinstance(head, FileNotFoundError)]

    @property
    def digest(self) -> bytes:
        """A digest of all chunks that were put here."""
        return self._digest.digest()

    def extent(self, code: int) -> tuple[int, int] | None:
        """Return where a spooled chunk starts and stops in the spool, in bytes; None for other codes."""
        return self._extents[-1 - code][:2] if LOWEST_CODE <= code < 0 else None

    def read(self, start: int, stop: int) -> memoryview:
        """Return bytes of a spooled chunk."""
        return self._require_spool().read(start, stop)

    def _require_spool(self) -> Spool:
        if self._spool is None:
            raise ValueError("chunks in files of their own are not spooled")
        return self._spool

    def is_complete(self, header_len: int) -> bool:
        """Whether the spool is a file that lacks only its tail and a header of this many bytes."""
        return self._spool is not None and self._spool.on_disk and self._spool.reserved == header_len

    def _kept(self, offsets: Int64Array, data_start: int) -> npt.NDArray[np.bool_]:
        # If the spool becomes the new file, everything stays where it is.
        complete = not data_start and self._spool is not None and self._spool.on_disk and self._spool.reserved > 0
        kept = np.full(len(self._extents), complete)
        kept[-1 - offsets[(offsets < 0) & (offsets >= LOWEST_CODE)]] = True
        return kept

    def placed(self, offsets: Int64Array, data_start: int) -> tuple[Int64Array, int]:
        """Return an index in which spooled chunks have places, and where the data end.

        The first of `pieces` will be at `data_start`, in bytes from the end of the header; it is 0 in a new file.
        """
        offsets = np.array(offsets, np.int64)
        if not self._extents:
            return offsets, data_start
        lengths = np.array([stop - start for start, _, stop in self._extents], np.int64)
        lengths *= self._kept(offsets, data_start)
        stops = data_start + np.cumsum(lengths)
        new = (offsets < 0) & (offsets >= LOWEST_CODE)
        which = -1 - offsets[new]
        offsets[new] = stops[which] - lengths[which]
        return offsets, int(stops[-1])

    def pieces(self, offsets: Int64Array, data_start: int = 0) -> Iterator[Buffer]:
        """Yield the spooled chunks that an index with codes refers to, in the order that `placed` counts on."""
        for kept, (start, _, stop) in zip(self._kept(offsets, data_start).tolist(), self._extents, strict=True):
            if kept:
                yield from self._require_spool().pieces(start, stop)

    def finish(self, header: Buffer, tail: Buffer, *, durable: bool) -> str | None:
        """Complete the spool's file and return its path, or None if the spool has none to give away."""
        if not self.is_complete(len(header)):
            return None
        spool = self._require_spool()
        spool.finish(header, tail, durable=durable)
        return spool.path

    def unused(self, offsets: Int64Array) -> dict[str, Stamp]:
        """Return the files made here that an index does not refer to, by their names."""
        if not self._made:  # to look for nothing in a long index takes time, too
            return {}
        numbers = np.array([*self._made], np.int64)
        return {index.chunk_name(n): self._made[n] for n in numbers[~np.isin(numbers, offsets)].tolist()}

    def nbytes(self, offsets: Int64Array, known: Mapping[int, int]) -> int:
        """Return how many bytes chunks in files take together; a missing file has none.

        `known` has the sizes of older chunks. For chunks that are neither new nor known, this asks the store.
        """
        numbers = offsets[offsets >= 0].tolist()
        sizes = {code: int(noted.sizes[0]) for code in numbers if (noted := self.noted.get(code)) is not None}
        sizes |= {code: size for code, size in known.items() if size}
        total = sum(sizes.get(number, 0) for number in numbers)
        unknown = [index.chunk_name(number) for number in numbers if number not in sizes]
        for name, head in zip(unknown, self._store.head(unknown, HEADER_LEN) if unknown else (), strict=True):
            if not isinstance(head, Exception):
                header = located(f"{self._store.url}: {name}", partial(ChunkHeader.unpack, head.data))
                total += header.cbytes
            elif not isinstance(head, FileNotFoundError):
                raise head
        return total

    def close(self) -> None:
        """Take no more chunks, and let go of the spool."""
        self._closed = True
        if self._spool is not None:
            self._spool.close()
