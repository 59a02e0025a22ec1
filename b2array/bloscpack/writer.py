"""Writes Bloscpack files: new files chunk by chunk, and longer copies of existing files.

Source: "RFC for the new Bloscpack Header", section Description of the offsets entries, and the files of Bloscpack
0.16.
"""

from __future__ import annotations

import io
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.bloscpack import blp_header as head
from b2array.bloscpack.blp_header import Description, FileHeader, Order
from b2array.bloscpack.reader import Reader, Url
from b2array.buffers import Buffer
from b2array.codec import cblosc
from b2array.codec.chunk_header import CODEC_FORMATS, FilterId
from b2array.codec.codecs import codec_name
from b2array.codec.cparams import AnyCParams, CParams, resolve_cparams
from b2array.codec.rounding import check_dtype
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.grid.assignment import Sliceable, check_plain
from b2array.grid.lossless import lossless, require_same_kind
from b2array.grid.partition import boxes
from b2array.store.atomic import AtomicFile, require_free
from b2array.store.base import Store
from b2array.store.open import open_store
from b2array.store.spool import Spool

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Writer", "content", "extend"]

Bytes = npt.NDArray[np.uint8]

_CHUNK_SIZE = 2**20
_MAX_CHUNK_SIZE = 2**31 - 1 - 16
"""The maximum number of bytes that C-Blosc 1 compresses at a time."""

_MAX_ITEMSIZE = 255
_APPENDABLE = 10
"""The number of free slots in a table for chunks to append later, as a multiple of the used slots."""

_FIRST_SLOTS = 1024
"""The number of slots in the table of offsets while the number of chunks is unknown."""

_STEP = 8 * 2**20
_WINDOW_NBYTES = 32 * 2**20
"""The number of bytes of an array to read at a time."""

_SHUFFLES: dict[tuple[int, ...], int] = {
    (): cblosc.NOSHUFFLE,
    (FilterId.SHUFFLE,): cblosc.SHUFFLE,
    (FilterId.BITSHUFFLE,): cblosc.BITSHUFFLE,
}


def blosc1_options(cparams: CParams) -> tuple[bytes, int, int]:
    """Convert parameters to the codec, level and shuffle of Blosc 1; UnsupportedError if Blosc 1 lacks them."""
    codec = cparams.codec_id
    shuffles = tuple(fid for fid in cparams.filter_slots if fid)
    if codec not in CODEC_FORMATS or cparams.use_dict:
        dictionary = " with a dictionary" if cparams.use_dict else ""
        raise UnsupportedError(f"Blosc 1 has no codec {cparams.codec!r}{dictionary}")
    if shuffles not in _SHUFFLES or any(cparams.meta_slots):
        raise UnsupportedError(f"Blosc 1 has no filters but shuffle or bitshuffle, not {cparams.filters}")
    return codec_name(codec).encode(), cparams.clevel, _SHUFFLES[shuffles]


# Chunks.


class _ChunkEncoder:
    """Cuts bytes into chunks of `size` bytes, compresses them with C-Blosc 1, and writes each chunk with its checksum.

    ``put(chunk, checksum)`` writes both, and returns their position. `offsets` begins with existing chunks.
    """

    def __init__(
        self,
        cparams: AnyCParams,
        itemsize: int,
        size: int,
        checksum: int,
        put: Callable[..., int],
        offsets: Iterable[int] = (),
    ) -> None:
        cparams = resolve_cparams(cparams)
        check_dtype(cparams, np.dtype(np.void))
        self._how = *blosc1_options(cparams), 0
        self.typesize = itemsize if itemsize <= _MAX_ITEMSIZE else 1
        self.size = size
        self.checksum = checksum
        self._put = put
        self.offsets = list(offsets)
        self.nbytes = 0
        """Number of bytes added so far."""
        self._pending: list[Bytes] = []

    def write(self, flat: Bytes) -> None:
        """Add bytes."""
        npending = self.nbytes % self.size
        self.nbytes += len(flat)
        if npending + len(flat) < self.size:
            # The caller may change its buffer before the chunk is full.
            self._pending.append(flat.copy())
            return
        joined = np.concatenate((*self._pending, flat)) if npending else flat
        border = len(joined) - len(joined) % self.size
        pieces = (joined[first : first + self.size] for first in range(0, border, self.size))
        self._encode(pieces)
        self._pending = [joined[border:].copy()]

    def finish(self) -> None:
        """Write the remaining bytes as the last chunk. A file without data has one empty chunk."""
        if self.nbytes % self.size or not self.offsets:
            rest = np.concatenate([np.empty(0, np.uint8), *self._pending])
            self._encode([rest])

    def _encode(self, pieces: Iterable[Bytes]) -> None:
        def compress(data: Bytes) -> bytes:
            return cblosc.compress(data, *self._how, self.typesize)

        for chunk in threads.spread(compress, pieces):
            checksum = head.digest(self.checksum, chunk)
            self.offsets.append(self._put(chunk, checksum))


def _chunk_size(size: int | None, itemsize: int) -> int:
    """Return the chosen or default size of a chunk in bytes, rounded down to whole items."""
    size = max(_CHUNK_SIZE, itemsize) if size is None else operator.index(size)
    if not itemsize <= size <= _MAX_CHUNK_SIZE:
        raise ValueError(f"chunk_size must be {itemsize} (one item) to {_MAX_CHUNK_SIZE} bytes, not {size}")
    return size - size % itemsize


# The bytes before the chunks.


def _metadata(about: Description | None, extra: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the metadata of a file: the description of its array, and the caller's metadata."""
    metadata = {} if about is None else head.describe(about)
    clash = sorted(metadata.keys() & set(extra or {}))
    if clash:
        raise ValueError(f"metadata must not have the key {clash[0]!r}: arrays fill it in themselves")
    metadata |= extra or {}
    try:
        # JSON represents some objects as different objects.
        as_read = json.loads(json.dumps(metadata))
        head.description(as_read)
    except FormatError as error:
        raise ValueError(f"the metadata cannot be read back from JSON: {error}") from None
    return None if about is None and extra is None else metadata


def _with_size(header: FileHeader, nbytes: int, size: int) -> FileHeader:
    """Return the header for `nbytes` bytes of data in chunks of `size` bytes."""
    nchunks = max(1, -(-nbytes // size))
    last = nbytes - (nchunks - 1) * size
    # In a file of one chunk, Bloscpack stores the size of the chunk twice.
    usual = last if nchunks == 1 else size
    return replace(header, chunk_size=usual, last_chunk=last, nchunks=nchunks)


def _first_slots(header: FileHeader, more: int | None) -> int:
    """Return the number of slots in the table of a new file, including `more` free slots."""
    if not header.offsets:
        return 0
    if more is not None and more < 0:
        raise ValueError(f"max_app_chunks must be 0 or more, not {more}")
    if header.nchunks < 0:
        return _FIRST_SLOTS
    if header.version == 2:
        return header.nchunks
    nfree = _APPENDABLE * header.nchunks if more is None else operator.index(more)
    return header.nchunks + nfree


def _pack_head(header: FileHeader, section: bytes, offsets: Sequence[int], nslots: int) -> bytes:
    """Return all bytes before the first chunk. Free slots hold -1."""
    if header.version == 3 and header.nchunks >= 0:
        header = replace(header, max_app_chunks=max(0, nslots - header.nchunks))
    table = np.full(nslots, -1, "<i8")
    table[: len(offsets)] = offsets if header.offsets else ()
    return b"".join((header.pack(), section, table.tobytes()))


# New files.


class Writer:
    """An unfinished Bloscpack file; made by `create`.

    Use the writer as a context manager. The file is complete when the block ends. If the block raises, no file is left.
    """

    def __init__(
        self,
        url: Url | None,
        about: Description | None,
        nbytes: int | None,
        *,
        checksum: str | None,
        offsets: bool,
        chunk_size: int | None,
        metadata: Mapping[str, Any] | None,
        cparams: AnyCParams,
        version: int,
        max_app_chunks: int | None,
        overwrite: bool,
        storage_options: Mapping[str, Any] | None,
        fs: AbstractFileSystem | None = None,
    ) -> None:
        if version not in (2, 3):
            raise ValueError(f"version must be 2 or 3, not {version}")
        self._about = about
        self._nbytes = nbytes
        self._overwrite = overwrite
        self._metadata = _metadata(about, metadata)
        self._section = b"" if self._metadata is None else head.pack_metadata(self._metadata)
        if self._section and version == 2:
            raise ValueError("version 2 has neither arrays nor metadata: expected bytes")
        itemsize = 1 if about is None else about.dtype.itemsize
        size = _chunk_size(chunk_size, itemsize)
        kind = head.checksum_id(checksum)
        self._encoder = _ChunkEncoder(cparams, itemsize, size, kind, self._put)
        self._header = FileHeader(version, offsets, bool(self._section), kind, self._encoder.typesize, size)
        if nbytes is not None:
            self._header = _with_size(self._header, nbytes, size)
        self._nslots = _first_slots(self._header, max_app_chunks)
        self.packed: bytes | None = None
        """The bytes of the complete file, if it was created without a URL."""
        self._store = self._place = None
        self._file: IO[bytes] = io.BytesIO()
        self._failed = False
        if url is not None:
            self._store = open_store(url, storage_options=storage_options, fs=fs)
            require_free(self._store, {"": head.MAGIC}, "a Bloscpack file", overwrite=overwrite)
            self._place = AtomicFile(self._store, overwrite=overwrite)
        self._attempt(self._begin)

    def _begin(self) -> None:
        if self._place is not None:
            self._file = self._place.path.open("x+b")
        self._put(_pack_head(self._header, self._section, (), self._nslots))
        self._first_chunk = self._file.tell()

    def _put(self, *pieces: Buffer) -> int:
        start = self._file.tell()
        self._file.writelines(pieces)
        return start

    def _attempt(self, write: Callable[..., None], *args: Any) -> None:
        """Call a function that writes. After a failure, such as a full disk, the file may contain part of a chunk."""
        if self._failed:
            raise ValueError("an earlier write failed, so the file was removed: begin a new one")
        if self._file.closed:
            raise ValueError("the file is closed: nothing can be written to it")
        try:
            write(*args)
        except BaseException:
            self._failed = True
            self.abort()
            raise

    def write(self, data: Buffer | npt.ArrayLike) -> None:
        """Add any number of bytes, or of items with the type and order of the file."""
        self.write_bytes(_flat(data, self._about))

    def write_bytes(self, flat: Bytes) -> None:
        """Add bytes in the file's order, as an array of uint8."""
        nbytes = self._encoder.nbytes + len(flat)
        if self._nbytes is not None and nbytes > self._nbytes:
            raise ValueError(f"expected {self._nbytes} bytes in all, got {nbytes}")
        self._attempt(self._encoder.write, flat)

    def close(self) -> None:
        """Complete the file under its final name; ValueError if a write has failed."""
        if self._failed or not self._file.closed:
            self._attempt(self._finish)

    def _finish(self) -> None:
        encoder = self._encoder
        about = self._about
        nbytes = encoder.nbytes
        if self._nbytes not in (None, nbytes):
            raise ValueError(f"expected {self._nbytes} bytes in all, got {nbytes}")
        if about is not None and -1 in about.shape:
            rows, rest = divmod(nbytes, about.row_nbytes or nbytes + 1)
            if rest:
                raise ValueError(f"expected whole rows of {about.row_nbytes} bytes, got {nbytes} bytes")
            metadata = (self._metadata or {}) | {"shape": about.with_rows(rows).shape}
            self._section = head.repack_metadata(self._section, metadata)
        encoder.finish()
        header = _with_size(self._header, nbytes, encoder.size)
        nslots = self._nslots
        if header.version == 2 and nslots:
            nslots = header.nchunks  # version 2 has no free slots
        while 0 < nslots < header.nchunks:
            nslots *= 2
        moved = 8 * (nslots - self._nslots)
        offsets = [start + moved for start in encoder.offsets]
        packed = _pack_head(header, self._section, offsets, nslots)
        if moved or self._place is None:
            self._copy_behind(packed)
        else:
            self._file.seek(0)
            self._file.write(packed)
            self._file.close()
            self._place.finish()

    def _copy_behind(self, packed: bytes) -> None:
        """Rewrite the file with another head, whose length was unknown when the first chunk was written."""
        self._file.seek(self._first_chunk)
        rest = iter(lambda: self._file.read(_STEP), b"")
        pieces = chain((packed,), rest)
        if self._store is None:
            self.packed = b"".join(pieces)
        else:
            write = self._store.replace if self._overwrite else self._store.create
            write("", pieces)
        self.abort()

    def abort(self) -> None:
        """Abandon the unfinished file and remove it."""
        # If the disk is full, the last bytes cannot be written, but they are no longer needed.
        with suppress(OSError):
            self._file.close()
        if self._place is not None:
            self._place.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


# Appending.


def extend(store: Store, x: Any, cparams: AnyCParams) -> None:
    """Replace the file in a store with a copy that has more data at its end. The caller holds the lock of the store.

    Full chunks are copied unchanged.
    """
    reader = Reader(store)
    about, pieces = _more_content(x, reader)
    header = reader.header
    size = header.chunk_size
    if size >= 0 and reader.nchunks <= 1:
        # The size of the only chunk does not determine the size of further chunks.
        size = max(size, _chunk_size(None, reader.dtype.itemsize))
    if size <= 0:
        raise UnsupportedError(f"{reader.url} does not state the size of its chunks: write a new file")
    starts, stop, rest = _full_chunks(reader, size)
    typesize = max(header.typesize, 1)
    with Spool() as spool:

        def put(*new: Buffer) -> int:
            return stop + spool.write(*new)

        encoder = _ChunkEncoder(cparams, typesize, size, header.checksum, put, starts)
        for piece in chain(rest, pieces):
            encoder.write(piece)
        encoder.finish()
        header = _with_size(header, len(starts) * size + encoder.nbytes, size)
        if header.offsets and header.nchunks > reader.nslots:
            raise LimitError(
                f"{reader.url} has room for the offsets of {reader.nslots} chunks, not of {header.nchunks}"
            )
        section = reader.head_bytes()[header.length : reader.table_start]
        if about is not None:
            metadata = reader.metadata | {"shape": about.shape}
            section = head.repack_metadata(section, metadata)
        packed = _pack_head(header, section, encoder.offsets, reader.nslots)
        new = spool.pieces(0, spool.length)
        whole = chain((packed,), reader.pieces(stop), new)
        store.replace("", whole, expected=reader.stamp.version)


def _full_chunks(reader: Reader, size: int) -> tuple[list[int], int, list[Bytes]]:
    """Return the positions of the full chunks, their end, and the data of a last chunk that is not full."""
    starts = [reader.place(n).start for n in range(reader.nchunks)]
    if not starts:
        return [], reader.first_chunk, []
    last = reader.place(len(starts) - 1)
    if last.start != max(starts):
        raise UnsupportedError(f"{reader.url} stores other chunks behind its last one: write a new file")
    if last.nbytes < size:
        data = [data for _, data in reader.decode_chunks([last])]
        return starts[:-1], last.start, data
    cbytes = len(reader.get_chunk(last.number)) + head.digest_size(reader.header.checksum)
    return starts, last.start + cbytes, []


# Arrays and bytes as a stream of bytes.


def content(x: Any) -> tuple[Description | None, Iterator[Bytes]]:
    """Return the description of array `x`, or None if `x` is bytes, and its bytes in pieces."""
    if isinstance(x, Buffer):
        return None, iter([_flat(x, None)])
    values = x if isinstance(x, Sliceable) else np.asarray(x)
    # An array that is contiguous in both orders is written in C order.
    is_fortran = isinstance(values, np.ndarray) and values.flags.fnc
    order: Order = "F" if is_fortran else "C"
    about = Description(np.dtype(values.dtype), tuple(values.shape), order)
    return about, _pieces(values, about.dtype, order)


def _more_content(x: Any, reader: Reader) -> tuple[Description | None, Iterator[Bytes]]:
    """Return the description of the array with `x` appended, or None for bytes, and the bytes of `x` in pieces."""
    if not reader.is_array:
        if not isinstance(x, Buffer):
            raise TypeError(f"{reader.url} holds bytes, not an array")
        return content(x)
    about = reader.description
    if isinstance(x, Sliceable):
        values: Any = x
        require_same_kind(np.dtype(x.dtype), about.dtype)
    else:
        values = lossless(x, about.dtype)
    shape = tuple(values.shape)
    axis = about.axis
    if not 0 < len(shape) == len(about.shape) or about.with_rows(shape[axis]).shape != shape:
        raise ValueError(f"shape {shape} cannot be added to an array of shape {about.shape}")
    longer = about.with_rows(about.shape[axis] + shape[axis])
    return longer, _pieces(values, about.dtype, about.order)


def _pieces(values: Any, dtype: np.dtype[Any], order: Order) -> Iterator[Bytes]:
    if order == "F":
        values = values[...].T
    most = max(1, _WINDOW_NBYTES // dtype.itemsize)
    for box in boxes(values.shape, most):
        piece = lossless(values[box], dtype)
        yield np.ascontiguousarray(piece, dtype).reshape(-1).view(np.uint8)


def _flat(data: Any, about: Description | None) -> Bytes:
    """Return the bytes of data in the order of the file."""
    if isinstance(data, Buffer):
        return np.frombuffer(memoryview(data).cast("B"), np.uint8)
    if about is None:
        check_plain(data)
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    values = lossless(data, about.dtype).astype(about.dtype, copy=False)
    return values.reshape(-1, order=about.order).view(np.uint8)
