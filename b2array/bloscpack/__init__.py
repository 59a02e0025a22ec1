"""Bloscpack files (``.blp``): arrays or bytes in numbered chunks of Blosc 1.

Versions 1, 2 and 3 of the format are read, 3 and, by option, 2 are written.

Source: "RFC for the new Bloscpack Header", and the files that Bloscpack 0.16 writes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.bloscpack import undo
from b2array.bloscpack.header import Description, Header, Order, digest, pack_metadata
from b2array.bloscpack.reader import Reader, Url, open, reader_of, store_of
from b2array.bloscpack.undo import Old
from b2array.bloscpack.writer import Bytes, Recipe, Writer, chunk_size_of, converted
from b2array.buffers import Buffer
from b2array.codec.cparams import CParams, given_or_default
from b2array.errors import LimitError, UnsupportedError
from b2array.grid.assignment import check_unmasked
from b2array.grid.partition import boxes
from b2array.store.base import Store
from b2array.store.spans import Span
from b2array.store.spool import Spool

__all__ = ["Reader", "Writer", "append", "create", "open", "pack", "unpack"]

_WINDOW_NBYTES = 32 * 2**20


def pack(
    x: Any,
    url: Url | None = None,
    *,
    checksum: str | None = "adler32",
    offsets: bool = True,
    chunk_size: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    cparams: CParams | None = None,
    version: Literal[2, 3] = 3,
    max_app_chunks: int | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> bytes | None:
    """Write an array or bytes to a Bloscpack file.

    Parameters
    ----------
    x : array-like or bytes-like
        What has a shape, a dtype and NumPy's indexing (a `b2array.NDArray`, say) is read part by part. An array that is
        contiguous in Fortran's order is stored so.
    url : str or os.PathLike, optional
        Where to; if left out, the file's bytes are returned.
    checksum : str or None, default "adler32"
        "adler32", "crc32", "md5", "sha1", "sha224", "sha256", "sha384", "sha512", or none.
    offsets : bool, default True
        Whether the file says where its chunks are, so that parts of it are read fast.
    chunk_size : int, optional
        Bytes in a chunk before compression, whole items; about 1 MiB by default.
    metadata : mapping, optional
        Whatever JSON takes. Not in version 2.
    cparams : CParams, optional
        Codec, level, and "shuffle", "bitshuffle" or no filter.
    version : {3, 2}
        Version 2 has no metadata, and so takes bytes only.
    max_app_chunks : int, optional
        For the offsets of how many further chunks there is to be room; ten times the chunks by default.
    overwrite : bool, default False
        Whether a Bloscpack file that is there may be replaced.
    storage_options : mapping, optional
        For fsspec.

    Returns
    -------
    bytes or None
        The file, if there is no `url`.

    Raises
    ------
    FileExistsError
        There is something already.
    UnsupportedError
        The items are Python objects, or Blosc 1 lacks the codec or the filters.
    ValueError
        A parameter cannot be.

    Examples
    --------
    >>> from b2array import bloscpack
    >>> packed = bloscpack.pack(b"b2array" * 1000, checksum="sha256")
    >>> bloscpack.unpack(packed) == b"b2array" * 1000
    True
    """
    about, pieces = _taken(x)
    nbytes = memoryview(x).nbytes if about is None else about.nbytes
    writer = Writer(
        url, about, nbytes, checksum=checksum, offsets=offsets, chunk_size=chunk_size, metadata=metadata,
        cparams=cparams, version=version, max_app_chunks=max_app_chunks, overwrite=overwrite,
        storage_options=storage_options,
    )  # fmt: skip
    with writer:
        for piece in pieces:
            writer.write_bytes(piece)
    return writer.packed


def create(
    url: Url | None,
    shape: Sequence[int | None] | None = None,
    dtype: npt.DTypeLike | None = None,
    *,
    order: Order = "C",
    checksum: str | None = "adler32",
    offsets: bool = True,
    chunk_size: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    cparams: CParams | None = None,
    version: Literal[2, 3] = 3,
    max_app_chunks: int | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Writer:
    """Begin a Bloscpack file whose content comes piece by piece.

    Until the end the offsets in the file are -1, as are the sizes that are not known yet. The file gets its name when
    it is complete.

    Parameters
    ----------
    url : str, os.PathLike or None
        Where to; None: to `Writer.packed`.
    shape : sequence of int or None, optional
        Extents of an array; the first one (with order "F" the last) may be None: what will be written decides. Bytes
        are written if left out.
    dtype : dtype-like, optional
        Type of the items; needed with a shape.
    order : {"C", "F"}
        In which order the items will come.
    checksum, offsets, chunk_size, metadata, cparams, version, max_app_chunks, overwrite, storage_options
        As for `pack`.

    Examples
    --------
    >>> import numpy as np
    >>> from b2array import bloscpack
    >>> with bloscpack.create(None, (None, 3), "i4") as writer:
    ...     for step in range(4):
    ...         writer.write(np.full(3, step, "i4"))
    >>> bloscpack.unpack(writer.packed)[:, 0].tolist()
    [0, 1, 2, 3]
    """
    about = None
    if shape is not None:
        if dtype is None:
            raise TypeError("an array needs a dtype beside its shape")
        about = Description(np.dtype(dtype), tuple(-1 if n is None else int(n) for n in shape), order)
        if any(n is None for i, n in enumerate(shape) if i != about.axis) or any(n < -1 for n in about.shape):
            raise ValueError(f"only the extent along axis {about.axis} can be left open, not {tuple(shape)}")
    elif dtype is not None:
        raise TypeError("an array needs a shape beside its dtype")
    nbytes = None if about is None or -1 in about.shape else about.nbytes
    return Writer(
        url, about, nbytes, checksum=checksum, offsets=offsets, chunk_size=chunk_size, metadata=metadata,
        cparams=cparams, version=version, max_app_chunks=max_app_chunks, overwrite=overwrite,
        storage_options=storage_options,
    )  # fmt: skip


def unpack(
    url: Url | Buffer, *, partial: bool = False, storage_options: Mapping[str, Any] | None = None
) -> npt.NDArray[Any] | bytes:
    """Read a Bloscpack file as a whole.

    Parameters
    ----------
    url : str, os.PathLike or bytes-like
        A file, what fsspec understands, or the bytes of a file.
    partial : bool, default False
        Return what lies before the first damage, of an array whole rows, and warn, instead of raising an error.
    storage_options : mapping, optional
        For fsspec.

    Returns
    -------
    ndarray or bytes

    Raises
    ------
    ChecksumError
        A chunk differs from what was written; the message has its number.
    FormatError
        It is not a Bloscpack file, or ends early.
    UnsupportedError
        It is of another version, its items are pickled Python objects, or a codec is not there.
    """
    with open(url, storage_options=storage_options) as reader:
        if not partial:
            return reader.read()
        data, error = reader.read_intact()
    if error is not None:
        warnings.warn(f"the file is damaged, and this is what was before: {error}", stacklevel=2)
    return data


def append(
    url: Url, x: Any, *, cparams: CParams | None = None, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Add bytes, or rows of an array, to a local Bloscpack file.

    A last chunk that has room is written anew with more bytes. If that fails, the file is as before. If the program is
    killed meanwhile, it is so when b2array opens the file the next time: until all is done, the old bytes stand at its
    end. To other readers the chunks before the last one are intact.

    Parameters
    ----------
    url : str or os.PathLike
        The file.
    x : array-like or bytes-like
        Of the file's type; an array has the file's extents but along the first axis (with order "F" the last), which
        grows.
    cparams : CParams, optional
        How to compress.
    storage_options : mapping, optional
        For fsspec.

    Raises
    ------
    LimitError
        There is no room for so many offsets, or for the new shape.
    ValueError
        The array does not fit.
    UnsupportedError
        The store cannot change files, or the file has chunks of unknown or differing sizes.
    """
    store = store_of(url, storage_options)
    if not store.appendable:
        raise UnsupportedError(f"{store.url} cannot be changed in place")
    with store.lock(""):
        undo.undo(store)
        reader = reader_of(store)
        about, pieces = _matching(x, reader)
        _Appender(store, reader, given_or_default(cparams)).append(about, pieces)


class _Appender:
    """Adds to a file: a last chunk with more in it, new chunks, their offsets, and a new header."""

    def __init__(self, store: Store, reader: Reader, cparams: CParams) -> None:
        header = reader.header
        if header.chunk_size < 0:
            raise UnsupportedError(f"{reader.url} does not say how large its chunks are")
        self._store, self._reader = store, reader
        nchunks = reader.nchunks
        self._recipe = Recipe(cparams, max(header.typesize, 1))
        self._size = header.chunk_size
        if nchunks <= 1:
            self._size = max(header.chunk_size, chunk_size_of(None, reader.dtype.itemsize))
        self._starts = [reader.place(n).start for n in range(nchunks)]
        self._start = self._end = reader.first_chunk
        self._last = b""
        """What the last chunk holds, if it has room; it begins at `_start`, where the old chunks end at `_end`."""
        if nchunks:
            self._find_room()

    def _find_room(self) -> None:
        reader, last = self._reader, len(self._starts) - 1
        start = self._starts[last]
        if start != max(self._starts):
            raise UnsupportedError(f"{reader.url} has chunks behind its last one")
        self._start = self._end = start + len(reader.get_chunk(last)) + reader.checksum_nbytes
        if reader.place(last).nbytes < self._size:
            self._start, self._last = start, reader.decode(last)
            self._starts.pop()

    def append(self, about: Description | None, pieces: Iterable[Bytes]) -> None:
        """Encode everything, and only then change the file."""
        lengths = [self._size] * len(self._starts)
        kept = [np.frombuffer(self._last, np.uint8)] if self._start < self._end else []
        with Spool() as spool:
            starts = list(self._starts)
            parts = _rechunked(chain(kept, pieces), self._size, lengths)
            starts += [
                self._start + spool.write(buf, digest(self._reader.header.checksum, buf))
                for buf in threads.spread(self._recipe.encode, parts)
            ]
            header, section = self._head(len(starts), lengths[-1], about)
            head = [Old(0, header.pack() + section)]
            if header.offsets:
                head.append(self._changed(np.array(starts, "<i8")))
            self._change(head, spool)

    def _changed(self, offsets: npt.NDArray[np.int64]) -> Old:
        """Return the offsets that are not in the table yet, and where they belong."""
        first = self._reader.table_start
        (raw,) = self._store.read([Span("", first, first + offsets.nbytes)])
        differ = np.flatnonzero(np.frombuffer(raw, "<i8") != offsets)
        n = int(differ[0]) if len(differ) else len(offsets)
        return Old(first + 8 * n, offsets[n:].tobytes())

    def _change(self, head: Sequence[Old], spool: Spool) -> None:
        """Write what is new where nothing is yet, what was there behind it, and only then overwrite."""
        store, size = self._store, self._end
        over, behind = _divided(spool.pieces(0, spool.length), size - self._start)
        new = [Old(self._start, over), *head]
        spans = [Span("", start, start + len(content)) for start, content in new]
        # A new last chunk may be shorter than the old one.
        spans[0] = Span("", self._start, size)
        old = [Old(span.start, view) for span, view in zip(spans, store.read(spans), strict=True)]
        end = self._start + spool.length
        store.append("", size, chain(behind, (undo.pack(old, size, max(size, end)),)))
        try:
            for start, content in new:
                if len(content):
                    store.patch("", start, content)
            store.append("", end, ())
        except BaseException:
            with suppress(Exception):  # the record is still there for the next one who opens the file
                undo.restore(store, old, size)
            raise

    def _head(self, nchunks: int, last: int, about: Description | None) -> tuple[Header, bytes]:
        reader = self._reader
        header = replace(
            reader.header,
            nchunks=nchunks,
            last_chunk=last,
            chunk_size=last if nchunks == 1 else self._size,
            max_app_chunks=max(0, reader.nslots - nchunks) if reader.header.version == 3 else 0,
        )
        if header.offsets and nchunks > reader.nslots:
            raise LimitError(f"{reader.url} has room for the offsets of {reader.nslots} chunks, not of {nchunks}")
        meta = reader.meta_head
        if meta is None or about is None:
            return header, b""
        metadata = reader.metadata | {"shape": list(about.shape)}
        return header, pack_metadata(metadata, checksum=meta.checksum, room=meta.max_meta_size)


def _divided(pieces: Iterable[Buffer], nbytes: int) -> tuple[bytes, Iterator[Buffer]]:
    """Return the first bytes of pieces, and the others."""
    rest, held = iter(pieces), bytearray()
    while len(held) < nbytes and (piece := next(rest, None)) is not None:
        held += piece
    return bytes(held[:nbytes]), chain((bytes(held[nbytes:]),), rest)


def _rechunked(pieces: Iterable[Bytes], size: int, lengths: list[int]) -> Iterator[Bytes]:
    """Yield pieces of `size` bytes and a shorter last one; note their lengths."""
    pending = np.empty(0, np.uint8)
    for piece in pieces:
        joined = np.concatenate((pending, piece)) if len(pending) else piece
        border = len(joined) - len(joined) % size
        for first in range(0, border, size):
            lengths.append(size)
            yield joined[first : first + size]
        pending = joined[border:]
    if len(pending) or not lengths:
        lengths.append(len(pending))
        yield pending


def _taken(x: Any) -> tuple[Description | None, Iterator[Bytes]]:
    """Return what `x` is, and its bytes piece by piece."""
    if isinstance(x, bytes | bytearray | memoryview):
        return None, _windows(np.frombuffer(memoryview(x).cast("B"), np.uint8))
    check_unmasked(x)
    values = x if isinstance(x, _Sliceable) else np.asarray(x)
    order: Order = "C"
    turned = values
    if isinstance(values, np.ndarray) and values.flags.f_contiguous and not values.flags.c_contiguous:
        order, turned = "F", values.T
    about = Description(np.dtype(values.dtype), tuple(values.shape), order)
    return about, _pieces(turned, about.dtype)


@runtime_checkable
class _Sliceable(Protocol):
    """What can be read part by part."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, key: Any, /) -> Any: ...


def _pieces(values: Any, dtype: np.dtype[Any]) -> Iterator[Bytes]:
    for box in boxes(values.shape, max(1, _WINDOW_NBYTES // dtype.itemsize)):
        yield np.ascontiguousarray(values[box], dtype).reshape(-1).view(np.uint8)


def _windows(flat: Bytes) -> Iterator[Bytes]:
    for first in range(0, len(flat), _WINDOW_NBYTES):
        yield flat[first : first + _WINDOW_NBYTES]


def _matching(x: Any, reader: Reader) -> tuple[Description | None, Iterator[Bytes]]:
    """Return what the file will be with `x` in it, and the bytes of `x`."""
    if not reader.is_array:
        if not isinstance(x, bytes | bytearray | memoryview):
            raise TypeError(f"{reader.url} holds bytes, not an array")
        return None, _windows(np.frombuffer(memoryview(x).cast("B"), np.uint8))
    about = reader.description
    values = converted(x, about.dtype)
    if not about.shape or values.ndim != len(about.shape):
        raise ValueError(f"{values.ndim} dimensions cannot be added to an array of shape {about.shape}")
    grown = list(about.shape)
    grown[about.axis] = values.shape[about.axis]
    if tuple(grown) != values.shape:
        raise ValueError(f"shape {values.shape} cannot be added to an array of shape {about.shape}")
    grown[about.axis] += about.shape[about.axis]
    return about._replace(shape=tuple(grown)), _pieces(values.T if about.order == "F" else values, about.dtype)
