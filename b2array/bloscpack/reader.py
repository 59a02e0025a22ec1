"""Reading Bloscpack files, as a whole or any part of them.

Source: "RFC for the new Bloscpack Header", sections Description of the header entries and Description of the offsets
entries, and the files that Bloscpack 0.16 writes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.bloscpack import undo
from b2array.bloscpack.header import (
    META_HEADER_LEN,
    Description,
    Header,
    MetaHeader,
    compare,
    description,
    digest_size,
    unpack_metadata,
)
from b2array.bloscpack.walk import Part, Walk, located_at
from b2array.buffers import Buffer
from b2array.codec import decode
from b2array.codec.chunk import extents
from b2array.codec.codecs import MAX_RATIO
from b2array.codec.header import BLOSC1_HEADER_LEN, ChunkHeader
from b2array.config import HEADER_LEN
from b2array.errors import B2ArrayError, FormatError, UnsupportedError, located
from b2array.grid import selection as indexing
from b2array.grid.partition import Index, take
from b2array.store.base import Store
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store
from b2array.store.spans import Span

__all__ = ["Reader", "Url", "open", "reader_of", "store_of"]

Url = str | os.PathLike[str]
Bytes = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]

_BEGINNING = 64 * 2**10
_STRIDE = 64 * 2**10
"""Bytes that are read at once while walking from chunk to chunk."""

_WINDOW_NBYTES = 32 * 2**20
_UNKNOWN = 2**63


def store_of(url: Url | Buffer, storage_options: Mapping[str, Any] | None) -> Store:
    """Make the store for a URL, or for the bytes of a file."""
    if isinstance(url, bytes | bytearray | memoryview):
        return MemoryStore({"": url})
    return open_store(url, storage_options=storage_options)


def open(url: Url | Buffer, *, storage_options: Mapping[str, Any] | None = None) -> Reader:
    """Open a Bloscpack file; parts of it are read when they are asked for.

    Parameters
    ----------
    url : str, os.PathLike or bytes-like
        A file, what fsspec understands, or the bytes of a file.
    storage_options : mapping, optional
        For fsspec.

    Raises
    ------
    FormatError
        It is not a Bloscpack file.
    UnsupportedError
        It is of another version, or its items are pickled Python objects.

    Examples
    --------
    >>> import numpy as np
    >>> from b2array import bloscpack
    >>> packed = bloscpack.pack(np.arange(12).reshape(6, 2))
    >>> with bloscpack.open(packed) as f:
    ...     f.shape, f[4:].tolist()
    ((6, 2), [[8, 9], [10, 11]])
    """
    store = store_of(url, storage_options)
    undo.recover(store)
    return reader_of(store)


def reader_of(store: Store) -> Reader:
    """Open the file in a store as it is; what is wrong with it is said with its URL."""
    return located(store.url, lambda: Reader(store))


class Reader:
    """A Bloscpack file that is open for reading; made by `open`.

    Of an array, a key is what NumPy takes, and the chunks are read that hold the rows it names: along the first axis,
    with order "F" along the last one. Of bytes, ``f[start:stop]`` are bytes and ``f[n]`` is a number.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.url = store.url
        """Where the file is, without secrets."""
        (head,) = store.head([""], _BEGINNING)
        if isinstance(head, Exception):
            raise head
        stamp = head.stamp or store.stamp("")
        if stamp.size < 0:
            raise UnsupportedError(f"{self.url}: the server does not tell how large the file is")
        self._size, self._version = stamp.size, stamp.version
        self._known = head.data
        self.header: Header = Header.unpack(head.data)
        """What the file says about itself."""
        self.metadata: Any = None
        """The metadata, None if there are none."""
        position = self.header.length
        self.meta_head: MetaHeader | None = None
        if self.header.metadata:
            meta = self.meta_head = MetaHeader.unpack(self._bytes(position, position + META_HEADER_LEN))
            section = self._bytes(position, position + meta.section_nbytes)
            self.metadata = unpack_metadata(meta, section)
            position += meta.section_nbytes
        self._about = description(self.metadata)
        self.table_start = position
        """Where the offsets are in the file, if there are any."""
        self.nslots = self._count_slots()
        """Chunks for which there is room in the table of offsets."""
        offsets = self._read_offsets()
        self._has_offsets = offsets is not None
        self._offsets = np.empty(0, np.int64) if offsets is None else offsets
        self._stops = extents(self._offsets, self._size)
        self._walk = Walk(self.url, self.header, self._size, self.first_chunk, offsets, self._bytes)
        self._last: tuple[int, Bytes] | None = None
        self._known = memoryview(b"")

    def _bytes(self, start: int, stop: int) -> memoryview:
        if stop <= len(self._known):
            return self._known[start:stop]
        if stop > self._size:
            raise FormatError(f"{self.url}: expected {stop - start} bytes at {start}, found {self._size - start}")
        return self._store.read([Span("", start, stop)], expected=self._version)[0]

    def _count_slots(self) -> int:
        header = self.header
        if not header.offsets:
            return 0
        if header.nchunks >= 0:
            nslots = header.nchunks + header.max_app_chunks
            if self.table_start + 8 * nslots > self._size:
                raise FormatError(f"{self.url}: expected {nslots} offsets, found a file of {self._size} bytes")
            return nslots
        return self._count_unknown_slots()

    def _count_unknown_slots(self) -> int:
        """Count the offsets of a file that was never finished: all are -1, and no chunk begins like that."""
        count, position = 0, self.table_start
        while position + 8 <= self._size:
            stop = min(self._size, position + _STRIDE)
            entries = np.frombuffer(self._bytes(position, stop - (stop - position) % 8), "<i8")
            other = np.flatnonzero(entries != -1)
            if len(other):
                first = int(entries[other[0]])
                # An offset that is filled in can only be that of the first chunk, right behind the table.
                if not count and not other[0] and 0 < first - position < self._size and (first - position) % 8 == 0:
                    return (first - position) // 8
                return count + int(other[0])
            count += len(entries)
            position += 8 * len(entries)
        return count

    def _read_offsets(self) -> Int64Array | None:
        """Return the offsets, None if they are not known."""
        nchunks = self.header.nchunks
        if not self.header.offsets or nchunks < 0:
            return None
        raw = self._bytes(self.table_start, self.table_start + 8 * nchunks)
        offsets = np.frombuffer(raw, "<i8").astype(np.int64)
        if (offsets == -1).any():
            return None
        low, high = self.first_chunk, self._size - BLOSC1_HEADER_LEN
        if nchunks and not low <= int(offsets.min()) <= int(offsets.max()) <= high:
            bad = int(offsets[(offsets < low) | (offsets > high)][0])
            # The chunks of a file that was cut short are found by walking, as far as they go.
            if bad > high:
                return None
            raise FormatError(f"{self.url}: expected offsets of {low} to {high}, found {bad}")
        return offsets

    @property
    def first_chunk(self) -> int:
        """Where the first chunk is in the file."""
        return self.table_start + 8 * self.nslots

    def head_bytes(self) -> bytes:
        """Return all that stands in front of the first chunk."""
        return bytes(self._bytes(0, self.first_chunk))

    @property
    def checksum_nbytes(self) -> int:
        """Bytes of the checksum behind each chunk."""
        return digest_size(self.header.checksum)

    @property
    def is_array(self) -> bool:
        """Whether the file holds an array rather than bytes."""
        return self._about is not None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the items; uint8 if the file holds bytes."""
        return np.dtype(np.uint8) if self._about is None else self._about.dtype

    @property
    def order(self) -> str:
        """Order in which the items stand in the file, "C" or "F"."""
        return "C" if self._about is None else self._about.order

    @property
    def description(self) -> Description:
        """Type, shape and order, with all extents."""
        about = self._about
        if about is None:
            return Description(np.dtype(np.uint8), (self.nbytes,), "C")
        if -1 not in about.shape:
            return about
        rows = self.nbytes // about.row_nbytes if about.row_nbytes else 0
        return about._replace(shape=tuple(rows if n == -1 else n for n in about.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in items; the number of bytes if the file holds bytes."""
        return self.description.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.description.shape)

    @property
    def size(self) -> int:
        """Number of items."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Uncompressed size in bytes; the headers of all chunks are read if the file does not say it."""
        if self._is_uniform:
            return self.header.nbytes
        return self._walk.upto(_UNKNOWN).total

    @property
    def cbytes(self) -> int:
        """Size of the file in bytes."""
        return self._size

    @property
    def nchunks(self) -> int:
        """Number of chunks; the headers of all chunks are read if the file does not say it."""
        return self.header.nchunks if self.header.nchunks >= 0 else len(self._walk.upto(_UNKNOWN).starts)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __repr__(self) -> str:
        what = f"shape={self.shape} dtype={self.dtype}" if self.is_array else f"{self.nbytes} bytes"
        return f"<b2array.bloscpack.Reader {self.url} {what}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file. It can be used again."""
        self._store.close()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a compressed array cannot be seen as a NumPy array without a copy")
        data = self.read()
        result = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        return result if dtype is None else result.astype(dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        about = self.description
        if not about.shape:
            return self.read()[key]
        selection = indexing.select(key, about.shape)
        self._check_size(about)
        result = np.empty(selection.shape, about.dtype)
        if result.size:
            index, axes = list(selection.index), selection.axes
            group, row = _place_of(about.axis, axes)
            if isinstance(index[group], slice):
                loaded = self._rows(about, cast(slice, index[group]))
                index[group] = slice(0, loaded.shape[about.axis], 1)
            else:
                points = np.array(index[group])
                wanted, points[row] = np.unique(points[row], return_inverse=True)
                loaded = self._picked(about, wanted.tolist())
                index[group] = points
            selection.view(result)[...] = take(loaded, cast(tuple[Index, ...], tuple(index)), axes)
        if self._about is None:
            return int(result[()]) if selection.is_scalar else result.tobytes()
        return result[()] if selection.is_scalar else result

    def _rows(self, about: Description, rows: slice) -> npt.NDArray[Any]:
        """Read neighbouring rows, or every so-manieth."""
        numbers = range(rows.start, rows.stop, rows.step)
        if rows.step == 1 or rows.step * about.row_nbytes <= max(self.header.chunk_size, about.row_nbytes):
            found = self._between(about, numbers[0], numbers[-1] + 1)
            return found[(slice(None),) * about.axis + (slice(None, None, rows.step),)]
        return self._picked(about, numbers)

    def _picked(self, about: Description, rows: Sequence[int]) -> npt.NDArray[Any]:
        parts = [self._between(about, row, row + 1) for row in rows]
        return np.concatenate(parts, axis=about.axis)

    def _between(self, about: Description, start: int, stop: int) -> npt.NDArray[Any]:
        self._check_size(about)
        flat = self.read_bytes(start * about.row_nbytes, stop * about.row_nbytes)
        shape = _with_rows(about, stop - start)
        return flat.view(about.dtype).reshape(shape, order=about.order)

    def _check_size(self, about: Description) -> None:
        known = self.header.nbytes
        if known not in (-1, about.nbytes):
            raise FormatError(f"{self.url}: expected {about.nbytes} bytes for shape {about.shape}, found {known}")
        self._check_justified(about.nbytes)

    def _check_justified(self, nbytes: int) -> None:
        """Make sure that memory is only taken for what the file can hold at the utmost."""
        most = max(MAX_RATIO.values()) * self._size
        if nbytes > most:
            raise FormatError(f"{self.url}: expected at most {most} bytes in {self._size}, found {nbytes}")

    def read(self) -> npt.NDArray[Any] | bytes:
        """Read everything: an array, or bytes.

        Raises
        ------
        ChecksumError, FormatError
            A chunk is damaged or missing; the message says which.
        """
        nbytes = self.nbytes
        about = self.description
        if nbytes != about.nbytes:
            raise FormatError(f"{self.url}: expected {about.nbytes} bytes for shape {about.shape}, found {nbytes}")
        for n in range(0 if nbytes else self.nchunks):
            self.decode(n)  # nothing is in it, but it may be damaged
        flat = self.read_bytes(0, nbytes)
        return flat.tobytes() if self._about is None else shaped(flat, about)

    def read_intact(self) -> tuple[npt.NDArray[Any] | bytes, B2ArrayError | None]:
        """Read what lies before the first damage, of an array whole rows; and say what the damage is."""
        pieces: list[Bytes] = []
        error: B2ArrayError | None = None
        parts = iter(self._parts(0, _UNKNOWN))
        try:
            pieces.extend(self._decode(part, self._fetch([part])[0]) for part in parts)
        except B2ArrayError as found:
            error = found
        flat = np.concatenate([np.empty(0, np.uint8), *pieces])
        about = self._about
        if about is None:
            return flat.tobytes(), error
        rows = len(flat) // about.row_nbytes if about.row_nbytes else max(about.shape[about.axis], 0)
        if not about.shape:
            if error is not None:
                raise error
            return shaped(flat, about), None
        shape = _with_rows(about, rows)
        if error is None and shape != self.shape:
            error = FormatError(f"{self.url}: expected {self.shape[about.axis]} rows, found {rows}")
        return shaped(flat[: rows * about.row_nbytes], about._replace(shape=shape)), error

    def read_bytes(self, start: int, stop: int) -> Bytes:
        """Return uncompressed bytes, in the order of the file.

        Parameters
        ----------
        start, stop : int
            Positions in bytes.
        """
        parts = list(self._parts(start, stop))
        ends = parts[-1].first + parts[-1].nbytes if parts else start
        if ends < stop:
            raise FormatError(f"{self.url}: expected {stop} bytes of data, found {ends}")
        self._check_justified(stop - start)
        out = np.empty(stop - start, np.uint8)
        last = self._last
        if len(parts) == 1 and last is not None and last[0] == parts[0].number:
            first = parts[0].first
            out[:] = last[1][start - first : stop - first]
            return out
        for part, data in self._decoded(parts):
            low, high = max(start, part.first), min(stop, part.first + part.nbytes)
            out[low - start : high - start] = data[low - part.first : high - part.first]
            if part is parts[-1] and low - part.first + high - low < part.nbytes:
                # Reading on from here will begin in this chunk.
                self._last = part.number, data
        return out

    def iter_chunks(self) -> Iterator[bytes]:
        """Yield the uncompressed bytes of one chunk after the other."""
        for _, data in self._decoded(self._parts(0, _UNKNOWN)):
            yield data.tobytes()

    def get_chunk(self, n: int) -> bytes:
        """Return chunk `n` as it is stored, without its checksum, which is compared."""
        part = self.place(n)
        return bytes(self._checked(part, self._fetch([part])[0]))

    def decode(self, n: int) -> bytes:
        """Return the uncompressed bytes of chunk `n`."""
        part = self.place(n)
        return self._decode(part, self._fetch([part])[0]).tobytes()

    def place(self, n: int) -> Part:
        """Find chunk `n`."""
        if not 0 <= n < self.nchunks:
            raise IndexError(f"chunk {n} is out of bounds for {self.nchunks} chunks")
        return self._uniform_part(n) if self._is_uniform else self._walk.part(n)

    # Finding chunks.

    @property
    def _is_uniform(self) -> bool:
        return self.header.nbytes >= 0 and (self._has_offsets or self.header.nchunks == 0)

    def _parts(self, start: int, stop: int) -> Iterator[Part]:
        """Yield the chunks that hold uncompressed bytes from `start` to `stop`."""
        return self._uniform_parts(start, stop) if self._is_uniform else self._walk.parts(start, stop)

    def _uniform_parts(self, start: int, stop: int) -> Iterator[Part]:
        size = self.header.chunk_size
        stop = min(stop, self.header.nbytes)
        if start < stop:
            yield from map(self._uniform_part, range(start // size, min(self.header.nchunks, -(-stop // size))))

    def _uniform_part(self, n: int) -> Part:
        header = self.header
        nbytes = header.last_chunk if n == header.nchunks - 1 else header.chunk_size
        start, stop = int(self._offsets[n]), int(self._stops[n])
        # A chunk is never larger than what it holds, but for its header.
        longest = nbytes + HEADER_LEN + digest_size(header.checksum)
        return Part(n, start, min(stop, start + longest), n * header.chunk_size, nbytes)

    # Decoding them.

    def _fetch(self, parts: Sequence[Part]) -> list[memoryview]:
        return self._store.read([Span("", part.start, part.stop) for part in parts], expected=self._version)

    def _decoded(self, parts: Iterator[Part] | Sequence[Part]) -> Iterator[tuple[Part, Bytes]]:
        """Read and decode chunks, many at a time but not more than a bounded number of bytes."""
        largest = max(self.header.chunk_size, 2**20)
        source = iter(parts)
        while window := tuple(islice(source, max(1, _WINDOW_NBYTES // largest))):
            jobs = zip(window, self._fetch(window), strict=True)
            yield from zip(window, threads.spread(lambda job: self._decode(*job), jobs), strict=True)

    def _decode(self, part: Part, view: memoryview) -> Bytes:
        try:
            stored = self._checked(part, view)
            header = ChunkHeader.unpack(stored)
            if header.nbytes != part.nbytes:
                raise FormatError(f"expected {part.nbytes} uncompressed bytes, found {header.nbytes}")
            return decode.decode(stored)
        except B2ArrayError as error:
            if str(error).startswith("chunk "):
                raise
            raise located_at(part.number, self.url, error) from error

    def _checked(self, part: Part, view: memoryview) -> memoryview:
        """Return the bytes of a chunk after comparing their checksum."""
        try:
            cbytes = ChunkHeader.unpack(view).cbytes
            size = digest_size(self.header.checksum)
            if cbytes + size > len(view):
                raise FormatError(f"expected {cbytes + size} bytes, found {len(view)}")
            if config.verify != "never":
                compare("its checksum", self.header.checksum, view[:cbytes], view[cbytes : cbytes + size])
        except B2ArrayError as error:
            raise located_at(part.number, self.url, error) from error
        return view[:cbytes]


def shaped(flat: Bytes, about: Description) -> npt.NDArray[Any]:
    """See bytes as the array that they are."""
    return flat.view(about.dtype).reshape(about.shape, order=about.order)


def _with_rows(about: Description, rows: int) -> tuple[int, ...]:
    """Return the shape with another extent along the axis of the rows."""
    return (*about.shape[: about.axis], rows, *about.shape[about.axis + 1 :])


def _place_of(axis: int, axes: Sequence[Sequence[int]] | None) -> tuple[int, int]:
    """Find an axis among groups of axes: which group, and which place in it."""
    if axes is None:
        return axis, 0
    return next((g, group.index(axis)) for g, group in enumerate(axes) if axis in group)
