"""Writing Bloscpack files chunk by chunk.

Source: "RFC for the new Bloscpack Header", section Description of the offsets entries, and the files of Bloscpack
0.16.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import IO, Any, Self, cast

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.bloscpack.header import (
    ARRAY_KEYS,
    MAGIC,
    MAX_CHUNK_SIZE,
    META_HEADER_LEN,
    Description,
    Header,
    checksum_id,
    describe,
    digest,
    digest_size,
    pack_metadata,
)
from b2array.buffers import Buffer
from b2array.codec import cblosc
from b2array.codec.codecs import codec_name
from b2array.codec.cparams import CParams, given_or_default
from b2array.codec.header import CODEC_FORMATS, FilterId
from b2array.errors import UnsupportedError
from b2array.grid.assignment import check_unmasked
from b2array.store.atomic import AtomicFile, require_free
from b2array.store.open import open_store

__all__ = ["Recipe", "Writer", "chunk_size_of", "converted"]

Url = str | os.PathLike[str]
Bytes = npt.NDArray[np.uint8]

_CHUNK_SIZE = 2**20
_MAX_ITEMSIZE = 255
_META_CHECKSUM = 1
_APPENDABLE = 10
"""There is room for the offsets of so many times the chunks."""

_FIRST_SLOTS = 1024
"""Room for offsets where the number of chunks is not known; doubled when it is not enough."""

_STEP = 8 * 2**20
_SHUFFLES: dict[tuple[int, ...], int] = {
    (): cblosc.NOSHUFFLE,
    (FilterId.SHUFFLE,): cblosc.SHUFFLE,
    (FilterId.BITSHUFFLE,): cblosc.BITSHUFFLE,
}


class Writer:
    """A Bloscpack file that is being written; made by `create`.

    Use it as a context manager: the file is complete when the block ends, and is not there if the block raises.
    """

    def __init__(
        self, url: Url | None, about: Description | None, nbytes: int | None, *, checksum: str | None, offsets: bool,
        chunk_size: int | None, metadata: Mapping[str, Any] | None, cparams: CParams | None, version: int,
        max_app_chunks: int | None, overwrite: bool, storage_options: Mapping[str, Any] | None,
    ) -> None:  # fmt: skip
        if version not in (2, 3):
            raise ValueError(f"version must be 2 or 3, not {version}")
        self._about, self._user = about, metadata
        self._recipe = Recipe(given_or_default(cparams), 1 if about is None else about.dtype.itemsize)
        self._checksum = checksum_id(checksum)
        section = self._section(None)
        if section and version == 2:
            raise ValueError("version 2 has neither arrays nor metadata; give it bytes")
        size = chunk_size_of(chunk_size, 1 if about is None else about.dtype.itemsize)
        self._header = Header(
            version, offsets, bool(section), self._checksum, self._recipe.typesize,
            *_sizes(nbytes, size),
        )  # fmt: skip
        self._expected = nbytes
        self._chunk_size = size
        self._room = len(section)
        self._max_app_chunks = 0 if version == 2 else max_app_chunks
        self._slots = self._first_slots() if offsets else 0
        self._place = None if url is None else _place(url, storage_options, overwrite=overwrite)
        self._file: IO[bytes] = io.BytesIO() if self._place is None else self._place.path.open("x+b")
        self._pending: list[Bytes] = []
        self._npending = 0
        self._offsets: list[int] = []
        self._position = 0
        self._nbytes = self._last = 0
        self.packed: bytes | None = None
        """The file's bytes, once it is complete, where it has no other place."""
        self._put(self._current_header().pack(), section, b"\xff" * (8 * self._slots))

    def _section(self, room: int | None) -> bytes:
        """Pack the metadata, into the room that they had at first."""
        user = dict(self._user or {})
        if self._about is None:
            return pack_metadata(user, checksum=_META_CHECKSUM, room=room) if self._user is not None else b""
        clash = sorted(set(user) & set(ARRAY_KEYS))
        if clash:
            raise ValueError(f"the metadata of an array name {clash[0]!r} themselves")
        return pack_metadata(describe(self._about) | user, checksum=_META_CHECKSUM, room=room)

    def _first_slots(self) -> int:
        nchunks = self._header.nchunks
        if nchunks < 0:
            return _FIRST_SLOTS
        more = _APPENDABLE * nchunks if self._max_app_chunks is None else self._max_app_chunks
        if more < 0:
            raise ValueError(f"max_app_chunks must be 0 or more, not {more}")
        return nchunks + more

    def _current_header(self) -> Header:
        if self._header.nchunks < 0 or not self._header.offsets or self._header.version == 2:
            return self._header
        return replace(self._header, max_app_chunks=self._slots - self._header.nchunks)

    def _put(self, *pieces: Buffer) -> None:
        for piece in pieces:
            self._file.write(piece)
            self._position += len(piece)

    def write(self, data: Buffer | npt.ArrayLike) -> None:
        """Add bytes, or items of an array in the file's order.

        Parameters
        ----------
        data : bytes-like or array-like
            Of any length; an array of the file's type.
        """
        self.write_bytes(_flat(data, self._about))

    def write_bytes(self, flat: Bytes) -> None:
        """Add bytes in the file's order, given as an array of uint8."""
        self._nbytes += len(flat)
        if self._expected is not None and self._nbytes > self._expected:
            raise ValueError(f"expected {self._expected} bytes in all, got {self._nbytes}")
        self._npending += len(flat)
        size = self._chunk_size
        if self._npending < size:
            # The caller may change its buffer before there are enough bytes for a chunk.
            self._pending.append(flat.copy())
            return
        joined = np.concatenate((*self._pending, flat)) if self._pending else flat
        border = len(joined) - len(joined) % size
        self._encode(joined[first : first + size] for first in range(0, border, size))
        self._pending = [joined[border:].copy()]
        self._npending = len(joined) - border

    def _encode(self, parts: Iterable[Bytes]) -> None:
        lengths: list[int] = []

        def counted() -> Iterator[Bytes]:
            for part in parts:
                lengths.append(len(part))
                yield part

        for buf in threads.spread(self._recipe.encode, counted()):
            if self._header.offsets and len(self._offsets) == self._slots:
                self._make_slots(2 * self._slots)
            self._offsets.append(self._position)
            self._put(buf, digest(self._checksum, buf))
        self._last = lengths[-1] if lengths else self._last

    def _make_slots(self, slots: int) -> None:
        """Change how many offsets there is room for: move all chunks."""
        more = 8 * (slots - self._slots)
        start = self._header.length + self._room + 8 * self._slots
        steps = range(start, self._position, _STEP)
        # What is moved must not have been overwritten before.
        for first in reversed(steps) if more > 0 else steps:
            self._file.seek(first)
            data = self._file.read(min(_STEP, self._position - first))
            self._file.seek(first + more)
            self._file.write(data)
        self._slots = slots
        self._offsets = [offset + more for offset in self._offsets]
        self._position += more
        self._file.truncate(self._position)
        self._file.seek(self._header.length + self._room)
        self._file.write(b"\xff" * (8 * slots))
        self._file.seek(self._position)

    def close(self) -> None:
        """Complete the file and give it its name."""
        if self._file.closed:
            return
        try:
            self._finish()
        except BaseException:
            self.abort()
            raise

    def _finish(self) -> None:
        if self._expected not in (None, self._nbytes):
            raise ValueError(f"expected {self._expected} bytes in all, got {self._nbytes}")
        if self._npending or not self._offsets:
            self._encode([np.concatenate(self._pending) if self._pending else np.empty(0, np.uint8)])
        if self._about is not None and -1 in self._about.shape:
            self._about = self._about._replace(shape=_completed(self._about, self._nbytes))
        nchunks = len(self._offsets)
        chunk_size = self._last if nchunks == 1 else self._chunk_size
        self._header = replace(self._header, nchunks=nchunks, chunk_size=chunk_size, last_chunk=self._last)
        if self._header.version == 2 and self._slots > nchunks:
            self._make_slots(nchunks)
        self._file.seek(0)
        head = self._current_header().pack()
        section = self._section(_meta_room(self._room)) if self._room else b""
        self._file.write(head + section)
        if self._header.offsets:
            self._file.write(np.array(self._offsets, "<i8").tobytes())
        if self._place is None:
            self.packed = cast(io.BytesIO, self._file).getvalue()
        self._file.close()
        if self._place is not None:
            self._place.finish()

    def abort(self) -> None:
        """Give up: nothing stays."""
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


def _place(url: Url, storage_options: Mapping[str, Any] | None, *, overwrite: bool) -> AtomicFile:
    store = open_store(url, storage_options=storage_options)
    require_free(store, {"": MAGIC}, "a Bloscpack file", overwrite=overwrite)
    return AtomicFile(store, overwrite=overwrite)


class Recipe:
    """How C-Blosc 1 makes the chunks of a file."""

    def __init__(self, cparams: CParams, itemsize: int) -> None:
        codec = cparams.codec_id
        shuffles = tuple(fid for fid in cparams.filter_slots if fid)
        if codec not in CODEC_FORMATS or cparams.use_dict:
            raise UnsupportedError(f"Blosc 1 has no codec {cparams.codec!r}" + " with a dictionary" * cparams.use_dict)
        if shuffles not in _SHUFFLES or any(cparams.meta_slots):
            raise UnsupportedError(f"Blosc 1 has no filters but shuffle or bitshuffle, not {cparams.filters}")
        self.typesize = itemsize if itemsize <= _MAX_ITEMSIZE else 1
        self._cname = codec_name(codec).encode()
        self._clevel = cparams.clevel
        self._shuffle = _SHUFFLES[shuffles]

    def encode(self, data: Bytes) -> bytes:
        """Encode one chunk."""
        return cblosc.compress(data, self._cname, self._clevel, self._shuffle, 0, self.typesize)


def chunk_size_of(given: int | None, itemsize: int) -> int:
    """Return the size of a chunk in bytes, given or by default, as whole items."""
    if given is None:
        return max(_CHUNK_SIZE - _CHUNK_SIZE % itemsize, itemsize)
    if not 0 < given <= MAX_CHUNK_SIZE or given % itemsize:
        raise ValueError(f"chunk_size must be 1 to {MAX_CHUNK_SIZE} bytes of whole items of {itemsize}, not {given}")
    return given


def _sizes(nbytes: int | None, size: int) -> tuple[int, int, int]:
    """Return the header's chunk-size, last-chunk and nchunks; -1 where that is not known yet."""
    if nbytes is None:
        return size, -1, -1
    nchunks = max(1, -(-nbytes // size))
    last = nbytes - (nchunks - 1) * size
    return last if nchunks == 1 else size, last, nchunks


def _meta_room(section_nbytes: int) -> int:
    return section_nbytes - META_HEADER_LEN - digest_size(_META_CHECKSUM)


def _completed(about: Description, nbytes: int) -> tuple[int, ...]:
    """Return the shape that an array with an open extent has got."""
    if nbytes % (about.row_nbytes or nbytes + 1):
        raise ValueError(f"expected whole rows of {about.row_nbytes} bytes, got {nbytes} bytes")
    rows = nbytes // about.row_nbytes if about.row_nbytes else 0
    return tuple(rows if n == -1 else n for n in about.shape)


def _flat(data: Any, about: Description | None) -> Bytes:
    """Return the bytes of data in the order of the file."""
    if isinstance(data, bytes | bytearray | memoryview):
        return np.frombuffer(memoryview(data).cast("B"), np.uint8)
    if about is None:
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return converted(data, about.dtype).reshape(-1, order=about.order).view(np.uint8)


def converted(data: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return data as an array of a type, as far as NumPy converts without losing the kind."""
    check_unmasked(data)
    if isinstance(data, np.ndarray):
        return data.astype(dtype, casting="same_kind", copy=False)
    return np.asarray(data, dtype)
