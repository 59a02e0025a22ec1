"""Reads Bloscpack files, whole or in parts.

Source: "RFC for the new Bloscpack Header", sections Description of the header entries and Description of the offsets
entries, and the files that Bloscpack 0.16 writes.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.bloscpack import blp_header as head
from b2array.bloscpack.blp_header import Description, FileHeader, MetaHeader
from b2array.bloscpack.chunks import ChunkRange, Chunks
from b2array.buffers import Buffer
from b2array.codec import decode
from b2array.codec.chunk_header import BLOSC1_HEADER_LEN, ChunkHeader
from b2array.codec.codecs import MAX_RATIO
from b2array.errors import B2ArrayError, FormatError, UnsupportedError, prefix_errors
from b2array.grid.partition import Positions, parts, put, take
from b2array.grid.selection import Selection, select
from b2array.printable import printable
from b2array.store.base import Stamp, Store, too_short
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store
from b2array.store.spans import Span

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Reader", "Url", "store_of"]

Url = str | os.PathLike[str]
Bytes = npt.NDArray[np.uint8]

_BEGINNING = 64 * 2**10
_STRIDE = 64 * 2**10
"""The number of bytes to read at a time if the file does not state the size of its chunks."""

_WINDOW_NBYTES = 32 * 2**20
"""The maximum number of uncompressed bytes in memory in addition to the result."""

_ALL = 2**63


def store_of(
    url: Url | Buffer,
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None = None,
) -> Store:
    """Return the store for a URL, or for the bytes of a file."""
    if isinstance(url, Buffer):
        return MemoryStore({"": url})
    return open_store(url, storage_options=storage_options, fs=fs)


class Reader:
    """An open Bloscpack file; made by `open`.

    An array accepts the same keys as NumPy, and only the chunks with the selected rows are read. Rows are along the
    first axis, with order "F" along the last axis. For a file of bytes, ``f[start:stop]`` returns bytes and ``f[n]`` a
    number. Threads may share a reader. Its pickle has its URL and options, and reads the same state of the file.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.url = store.url
        """The URL of the file, without secrets."""
        self._last: tuple[int, Bytes] | None = None
        prefix_errors(store.url, self._read_head)

    def _read_head(self) -> None:
        (beginning,) = self._store.head([""], _BEGINNING)
        if isinstance(beginning, Exception):
            raise beginning
        self.stamp = beginning.stamp or self._store.stamp("")
        """The state of the file: its size, and a version that a change replaces."""
        if self.stamp.size < 0:
            raise UnsupportedError(f"{self.url}: expected the size of the file, found a server that does not tell it")
        self._beginning: Buffer = beginning.data
        self.header: FileHeader = FileHeader.unpack(beginning.data)
        """The header of the file."""
        self.metadata: Any = None
        """The metadata, or None."""
        self.meta_head: MetaHeader | None = None
        self.table_start = self.header.length
        """The position of the table of offsets, if there is one."""
        if self.header.metadata:
            start = self.table_start
            meta = MetaHeader.unpack(self._bytes(start, start + head.META_HEADER_LEN))
            self.meta_head = meta
            self.table_start = start + meta.section_nbytes
            section = self._bytes(start, self.table_start)
            self.metadata = head.unpack_metadata(meta, section)
        about = head.description(self.metadata)
        self._is_array = about is not None
        self._about = about or Description(np.dtype(np.uint8), (-1,), "C")
        self.nslots = self._count_slots()
        """The number of slots in the table of offsets, used and free."""
        self.first_chunk = self.table_start + 8 * self.nslots
        """The position of the first chunk in the file."""
        read = partial(_part, self._store, self.stamp)  # a bound method would refer to this reader, and create a cycle
        offsets = self._read_offsets()
        self._chunks = Chunks(self.url, self.header, self.stamp.size, self.first_chunk, offsets, read)
        self._beginning = b""  # from here on, only chunks are read

    def __getstate__(self) -> dict[str, Any]:
        # The chunk that was decoded last can be decoded again.
        return vars(self) | {"_last": None}

    def _bytes(self, start: int, stop: int) -> memoryview:
        if stop <= len(self._beginning):
            return memoryview(self._beginning)[start:stop]
        return _part(self._store, self.stamp, start, stop)

    def _count_slots(self) -> int:
        header = self.header
        start = self.table_start
        size = self.stamp.size
        if not header.offsets:
            return 0
        if header.nchunks >= 0:
            nslots = header.nchunks + header.max_app_chunks
            if start + 8 * nslots > size:
                raise FormatError(f"{self.url}: expected {nslots} offsets, found a file of {size} bytes")
            return nslots
        # The slots of an unfinished file hold -1, whose bytes never begin a chunk.
        end = size - (size - start) % 8
        for position in range(start, end, _STRIDE):
            stop = min(end, position + _STRIDE)
            entries = np.frombuffer(self._bytes(position, stop), "<i8")
            used = np.flatnonzero(entries != -1)
            if not len(used):
                continue
            count = (position - start) // 8 + int(used[0])
            # The first slot may already be filled: the first chunk follows the table directly.
            length = int(entries[0]) - start
            is_first_offset = 0 < length < size and length % 8 == 0
            return length // 8 if count == 0 and is_first_offset else count
        return (end - start) // 8

    def _read_offsets(self) -> npt.NDArray[np.int64] | None:
        """Return the offsets, or None if they are unknown."""
        nchunks = self.header.nchunks
        if not self.header.offsets or nchunks < 0:
            return None
        table = self._bytes(self.table_start, self.table_start + 8 * nchunks)
        offsets = np.frombuffer(table, "<i8").astype(np.int64)
        low = self.first_chunk
        high = self.stamp.size - BLOSC1_HEADER_LEN
        # If the file is truncated, find the remaining chunks one after the other.
        if (offsets == -1).any() or (offsets > high).any():
            return None
        if (offsets < low).any():
            raise FormatError(f"{self.url}: expected offsets of {low} to {high}, found {offsets.min()}")
        return offsets

    def head_bytes(self) -> bytes:
        """Return all bytes before the first chunk."""
        return bytes(self._bytes(0, self.first_chunk))

    @property
    def is_array(self) -> bool:
        """Whether the file holds an array rather than bytes."""
        return self._is_array

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the items; uint8 if the file holds bytes."""
        return self._about.dtype

    @property
    def order(self) -> str:
        """Order of the items in the file, "C" or "F"."""
        return self._about.order

    @property
    def description(self) -> Description:
        """Type, shape and order, with all extents."""
        about = self._about
        if -1 not in about.shape:
            return about
        rows = self.nbytes // about.row_nbytes if about.row_nbytes else 0
        return about.with_rows(rows)

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
        """Uncompressed size in bytes. If the file does not state it, the headers of all chunks are read."""
        return self._chunks.find(_ALL).nbytes

    @property
    def cbytes(self) -> int:
        """Size of the file in bytes."""
        return self.stamp.size

    @property
    def nchunks(self) -> int:
        """Number of chunks. If the file does not state it, the headers of all chunks are read."""
        if self.header.nchunks >= 0:
            return self.header.nchunks
        return len(self._chunks.find(_ALL))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __repr__(self) -> str:
        what = f"shape={self.shape} dtype={self.dtype}" if self.is_array else f"{self.nbytes} bytes"
        return f"<b2array.bloscpack.Reader {printable(self.url)} {what}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file. The reader can be used again."""
        self._store.close()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a compressed array cannot be seen as a NumPy array without a copy")
        data = self.read()
        items = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        return np.asarray(items, dtype)

    def __getitem__(self, key: Any) -> Any:
        about = self.description
        if not about.shape:
            return self.read()[key]
        selection = select(key, about.shape)
        self._check_size(about, self.header.nbytes)
        result = np.empty(selection.shape, about.dtype)
        if result.size:
            self._read_selection(selection, about, selection.view(result))
        if not self.is_array:
            return int(result[()]) if selection.kind == "scalar" else result.tobytes()
        return result[()] if selection.kind == "scalar" else result

    def _read_selection(self, selection: Selection, about: Description, box: npt.NDArray[Any]) -> None:
        axes = selection.axes or tuple((axis,) for axis in range(len(about.shape)))
        (group,) = (number for number, covered in enumerate(axes) if about.axis in covered)
        line = axes[group].index(about.axis)
        rows = selection.positions[group]
        # Read neighbouring rows in large steps, scattered rows chunk by chunk.
        nbytes = self.header.chunk_size if self.header.chunk_size > 0 else _STRIDE
        if isinstance(rows, slice) and (rows.step == 1 or rows.step * about.row_nbytes <= nbytes):
            nbytes = _WINDOW_NBYTES
        step = max(1, nbytes // about.row_nbytes)
        part_shape = about.with_rows(step).shape
        for part in parts(selection.positions, part_shape, selection.axes):
            first, stop, inside = _trim_rows(part.inside, group, line)
            origin = part.coords[about.axis] * step
            low = (origin + first) * about.row_nbytes
            high = (origin + stop) * about.row_nbytes
            flat = self.read_bytes(low, high)
            loaded = _shape_items(flat, about.with_rows(stop - first))
            items = take(loaded, inside, selection.axes)
            put(box, part.outside, items)

    def _check_size(self, about: Description, nbytes: int) -> None:
        if nbytes not in (-1, about.nbytes):
            raise FormatError(f"{self.url}: expected {about.nbytes} bytes for shape {about.shape}, found {nbytes}")
        self._check_plausible(about.nbytes)

    def _check_plausible(self, nbytes: int) -> None:
        """Refuse to allocate more memory than the file can hold with the best compression."""
        most = max(MAX_RATIO.values()) * self.stamp.size
        if nbytes > most:
            raise FormatError(f"{self.url}: expected at most {most} bytes in {self.stamp.size}, found {nbytes}")

    def read(self) -> npt.NDArray[Any] | bytes:
        """Read the whole array, or all bytes. Errors name the damaged or missing chunk."""
        nbytes = self.nbytes
        about = self.description
        self._check_size(about, nbytes)
        if not nbytes:
            # Empty chunks may also be damaged, which no byte of the result would reveal.
            every = map(self.place, range(self.nchunks))
            for _ in self.decode_chunks(every):
                pass
        return self._content(self.read_bytes(0, nbytes), about)

    def read_intact(self) -> tuple[npt.NDArray[Any] | bytes, B2ArrayError | None]:
        """Read the data before the first damage, whole rows of an array; also return the error about the damage."""
        about = self._about
        if not about.shape:
            return self.read(), None
        pieces = [np.empty(0, np.uint8)]
        error: B2ArrayError | None = None
        try:
            for chunk in self._chunks.between(0, _ALL):
                (view,) = self._fetch([chunk])
                pieces.append(self._decode(chunk, view))
        except B2ArrayError as damage:
            error = damage
        flat = np.concatenate(pieces)
        # The number of rows of zero bytes cannot be determined from the number of bytes.
        rows = len(flat) // about.row_nbytes if about.row_nbytes else max(about.shape[about.axis], 0)
        intact = about.with_rows(rows)
        if error is None and intact.shape != self.shape:
            expected = self.shape[about.axis]
            error = FormatError(f"{self.url}: expected {expected} rows, found {rows}")
        return self._content(flat[: intact.nbytes], intact), error

    def _content(self, flat: Bytes, about: Description) -> npt.NDArray[Any] | bytes:
        return _shape_items(flat, about) if self.is_array else flat.tobytes()

    def read_bytes(self, start: int, stop: int) -> Bytes:
        """Return uncompressed bytes in the order of the file; ValueError unless ``0 <= start <= stop <= nbytes``."""
        start = operator.index(start)
        stop = operator.index(stop)
        chunks = list(self._chunks.between(max(0, start), stop))
        end = chunks[-1].first + chunks[-1].nbytes if chunks else start
        # The total size may require reading all headers: compute it only if the chunks found so far do not suffice.
        is_beyond = end < stop and stop > self.description.nbytes
        if is_beyond or not 0 <= start <= stop:
            raise ValueError(f"expected 0 <= start <= stop <= {self.description.nbytes} bytes, got {start} and {stop}")
        if end < stop:
            raise FormatError(f"{self.url}: expected {stop} bytes of data, found {end}")
        self._check_plausible(stop - start)
        last = self._last
        if len(chunks) == 1 and last is not None:
            (chunk,) = chunks
            number, data = last
            if number == chunk.number:
                return data[start - chunk.first : stop - chunk.first].copy()
        out = np.empty(stop - start, np.uint8)
        for chunk, data in self.decode_chunks(chunks):
            low = max(start, chunk.first)
            high = min(stop, chunk.first + chunk.nbytes)
            part = data[low - chunk.first : high - chunk.first]
            out[low - start : high - start] = part
            if chunk is chunks[-1] and high - chunk.first < chunk.nbytes:
                # The next read will probably continue in this chunk.
                self._last = chunk.number, data
        return out

    def iter_chunks(self) -> Iterator[bytes]:
        """Yield the uncompressed bytes of each chunk in order."""
        for _, data in self.decode_chunks(self._chunks.between(0, _ALL)):
            yield data.tobytes()

    def get_chunk(self, n: int) -> bytes:
        """Verify the checksum of chunk `n`, and return the chunk without the checksum."""
        chunk = self.place(n)
        (view,) = self._fetch([chunk])
        return bytes(prefix_errors(f"chunk {n} of {self.url}", lambda: self._verify(view)))

    def place(self, n: int) -> ChunkRange:
        """Find chunk `n`."""
        if not 0 <= n < self.nchunks:
            raise IndexError(f"chunk {n} is out of bounds for {self.nchunks} chunks")
        return self._chunks[n]

    def pieces(self, stop: int) -> Iterator[memoryview]:
        """Yield the bytes of the file from the first chunk to `stop`, in pieces of limited size."""
        for start in range(self.first_chunk, stop, _WINDOW_NBYTES):
            end = min(start + _WINDOW_NBYTES, stop)
            yield self._bytes(start, end)

    def _fetch(self, chunks: Sequence[ChunkRange]) -> list[memoryview]:
        spans = [Span("", chunk.start, chunk.stop) for chunk in chunks]
        return self._store.read(spans, expected=self.stamp.version)

    def decode_chunks(self, chunks: Iterable[ChunkRange]) -> Iterator[tuple[ChunkRange, Bytes]]:
        """Fetch and decode chunks, many at a time, up to a limited number of bytes."""
        chunk_size = max(self.header.chunk_size, 2**20)
        most = max(1, _WINDOW_NBYTES // chunk_size)
        source = iter(chunks)
        while window := tuple(islice(source, most)):
            jobs = zip(window, self._fetch(window), strict=True)
            data = threads.spread(lambda job: self._decode(*job), jobs)
            yield from zip(window, data, strict=True)

    def _decode(self, chunk: ChunkRange, view: memoryview) -> Bytes:
        def decode_stored() -> Bytes:
            stored = self._verify(view)
            nbytes = ChunkHeader.unpack(stored).nbytes
            if nbytes != chunk.nbytes:
                raise FormatError(f"expected {chunk.nbytes} uncompressed bytes, found {nbytes}")
            return decode.decode(stored)

        return prefix_errors(f"chunk {chunk.number} of {self.url}", decode_stored)

    def _verify(self, view: memoryview) -> memoryview:
        """Verify the checksum after a chunk, and return the bytes of the chunk."""
        cbytes = ChunkHeader.unpack(view).cbytes
        stop = cbytes + head.digest_size(self.header.checksum)
        if stop > len(view):
            raise FormatError(f"expected {stop} bytes, found {len(view)}")
        if config.verify != "never":
            head.compare("its checksum", self.header.checksum, view[:cbytes], view[cbytes:stop])
        return view[:cbytes]


def _part(store: Store, stamp: Stamp, start: int, stop: int) -> memoryview:
    """Read a part of a file; raise an error if the file has changed since `stamp`."""
    if stop > stamp.size:
        raise too_short(store.url, start, stop, stamp.size - start)
    (view,) = store.read([Span("", start, stop)], expected=stamp.version)
    return view


def _shape_items(flat: Bytes, about: Description) -> npt.NDArray[Any]:
    return flat.view(about.dtype).reshape(about.shape, order=about.order)


def _trim_rows(
    inside: tuple[Positions, ...],
    group: int,
    line: int,
) -> tuple[int, int, tuple[Positions, ...]]:
    """Return the first selected row, the end of the selected rows, and the selection relative to the first row."""
    rows = inside[group]
    if isinstance(rows, slice):
        first = rows.start
        stop = range(rows.start, rows.stop, rows.step)[-1] + 1
        trimmed: Positions = slice(0, stop - first, rows.step)
    else:
        first = int(rows[line].min())
        stop = int(rows[line].max()) + 1
        trimmed = rows.copy()
        trimmed[line] -= first
    relative = list(inside)
    relative[group] = trimmed
    return first, stop, tuple(relative)
