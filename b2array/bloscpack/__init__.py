"""Bloscpack files (``.blp``): arrays or bytes in numbered chunks of Blosc 1.

Versions 1, 2 and 3 of the format are read. Version 3 is written, and version 2 on request.

blp_header  the bytes before the chunks, as tables of fields; checksums
chunks      finds the chunks
reader      reads files, whole or in parts
writer      writes files, and appends

Source: "RFC for the new Bloscpack Header", and the files that Bloscpack 0.16 writes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from b2array.bloscpack.blp_header import Description, Order
from b2array.bloscpack.reader import Reader, Url, store_of
from b2array.bloscpack.writer import Writer, content, extend
from b2array.buffers import Buffer
from b2array.codec.cparams import AnyCParams
from b2array.errors import warn

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Reader", "Writer", "append", "create", "open", "pack", "unpack"]


def pack(
    x: Any,
    url: Url | None = None,
    *,
    checksum: str | None = "adler32",
    offsets: bool = True,
    chunk_size: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    cparams: AnyCParams = None,
    version: Literal[2, 3] = 3,
    max_app_chunks: int | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> bytes | None:
    """Write an array or bytes to a Bloscpack file.

    Parameters
    ----------
    x : array-like or bytes-like
        An object with a shape, a dtype and NumPy's indexing (a `b2array.NDArray`, say) is read in parts. An array that
        is contiguous in Fortran's order is stored in that order.
    url : str or os.PathLike, optional
        The URL of the new file. By default the function returns the bytes of the file.
    checksum : str or None, default "adler32"
        "adler32", "crc32", "md5", "sha1", "sha224", "sha256", "sha384", "sha512", or None for no checksums.
    offsets : bool, default True
        Whether the file lists the positions of its chunks, so that parts can be read fast.
    chunk_size : int, optional
        Size of a chunk in bytes before compression, rounded down to whole items; about 1 MiB by default.
    metadata : mapping, optional
        JSON-compatible metadata. Not available in version 2.
    cparams : CParams, optional
        Codec, level, and "shuffle", "bitshuffle" or no filter.
    version : {3, 2}
        Version 2 has no metadata, so it can store only bytes.
    max_app_chunks : int, optional
        Number of chunks that can be appended to a file with offsets; by default ten times the number of chunks.
    overwrite : bool, default False
        Whether to replace an existing Bloscpack file.
    storage_options : mapping, optional
        Options for fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Returns
    -------
    bytes or None
        The file, if there is no `url`.

    Raises
    ------
    FileExistsError
        Something exists at `url`.
    UnsupportedError
        The items are Python objects, or Blosc 1 lacks the codec or the filters.
    ValueError
        A parameter has a value that is not allowed.

    Examples
    --------
    >>> from b2array import bloscpack
    >>> packed = bloscpack.pack(b"b2array" * 1000, checksum="sha256")
    >>> bloscpack.unpack(packed) == b"b2array" * 1000
    True
    """
    about, pieces = content(x)
    # The items of an array are read during the write, so take the size from its description.
    nbytes = memoryview(x).nbytes if about is None else about.nbytes
    with Writer(
        url,
        about,
        nbytes,
        checksum=checksum,
        offsets=offsets,
        chunk_size=chunk_size,
        metadata=metadata,
        cparams=cparams,
        version=version,
        max_app_chunks=max_app_chunks,
        overwrite=overwrite,
        storage_options=storage_options,
        fs=fs,
    ) as writer:
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
    cparams: AnyCParams = None,
    version: Literal[2, 3] = 3,
    max_app_chunks: int | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> Writer:
    """Begin a Bloscpack file and write its content later, piece by piece.

    Until the file is complete, it has -1 for offsets and unknown sizes, and a temporary name.

    Parameters
    ----------
    url : str, os.PathLike or None
        The URL of the new file. If None, `Writer.packed` has the bytes of the complete file.
    shape : sequence of int or None, optional
        Extents of an array. The first extent (with order "F" the last) may be None; it is then determined by the
        written items. By default the file holds bytes.
    dtype : dtype-like, optional
        Type of the items; needed with a shape.
    order : {"C", "F"}
        The order in which the items are written.
    checksum, offsets, chunk_size, metadata, cparams, version, max_app_chunks, overwrite, storage_options, fs
        See `pack`.

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
    if (shape is None) != (dtype is None):
        raise TypeError("an array needs both a shape and a dtype")
    about = None
    nbytes = None
    if shape is not None and dtype is not None:
        extents = tuple(-1 if n is None else operator.index(n) for n in shape)
        about = Description(np.dtype(dtype), extents, order)
        has_other_gap = any(n is None for axis, n in enumerate(shape) if axis != about.axis)
        if has_other_gap or any(n < -1 for n in extents):
            raise ValueError(f"only the extent along axis {about.axis} may be None, found shape {tuple(shape)}")
        nbytes = None if -1 in extents else about.nbytes
    return Writer(
        url,
        about,
        nbytes,
        checksum=checksum,
        offsets=offsets,
        chunk_size=chunk_size,
        metadata=metadata,
        cparams=cparams,
        version=version,
        max_app_chunks=max_app_chunks,
        overwrite=overwrite,
        storage_options=storage_options,
        fs=fs,
    )


def open(
    url: Url | Buffer,
    *,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> Reader:
    """Open a Bloscpack file. Only the chunks that a key needs are read.

    Parameters
    ----------
    url : str, os.PathLike or bytes-like
        A path, a URL that fsspec understands, or the bytes of a file.
    storage_options : mapping, optional
        Options for fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Raises
    ------
    FormatError
        The file is not a Bloscpack file.
    UnsupportedError
        The file has an unknown version, or its items are pickled Python objects.

    Examples
    --------
    >>> import numpy as np
    >>> from b2array import bloscpack
    >>> packed = bloscpack.pack(np.arange(12).reshape(6, 2))
    >>> with bloscpack.open(packed) as f:
    ...     f.shape, f[4:].tolist()
    ((6, 2), [[8, 9], [10, 11]])
    """
    return Reader(store_of(url, storage_options, fs))


def unpack(
    url: Url | Buffer,
    *,
    partial: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> npt.NDArray[Any] | bytes:
    """Read a whole Bloscpack file.

    Parameters
    ----------
    url : str, os.PathLike or bytes-like
        A path, a URL that fsspec understands, or the bytes of a file.
    partial : bool, default False
        Instead of raising an error, warn, and return the data before the first damage; for an array, whole rows.
    storage_options : mapping, optional
        Options for fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Returns
    -------
    ndarray or bytes

    Raises
    ------
    ChecksumError
        A chunk differs from the written chunk; the message names the chunk.
    FormatError
        The file is not a Bloscpack file, or ends early.
    UnsupportedError
        The file has an unknown version, its items are pickled Python objects, or it needs a codec that is missing.
    """
    with open(url, storage_options=storage_options, fs=fs) as reader:
        if not partial:
            return reader.read()
        data, error = reader.read_intact()
    if error is not None:
        warn(f"the file is damaged; the data before the damage are returned: {error}")
    return data


def append(
    url: Url,
    x: Any,
    *,
    cparams: AnyCParams = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> None:
    """Add bytes, or rows of an array, to a Bloscpack file.

    In the last step, a longer file replaces the old file, so a failure or a killed program leaves the file unchanged.
    Appending copies the compressed chunks, and uploads remote files again, so append much data at a time, or write with
    `create`.

    Parameters
    ----------
    url : str or os.PathLike
        The file.
    x : array-like or bytes-like
        More bytes, or more rows: an array with the extents of the file, except along the axis that grows (the first
        one, with order "F" the last).
    cparams : CParams, optional
        Compression parameters.
    storage_options : mapping, optional
        Options for fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Raises
    ------
    ConflictError
        Another program changed the file in the meantime.
    LimitError
        The file has too few free slots for the offsets, or too few reserved bytes for the new shape.
    ValueError
        The array does not fit.
    UnsupportedError
        The sizes of the file's chunks are unknown, or its last chunk is not stored last.
    """
    store = store_of(url, storage_options, fs)
    with store.lock(""):
        extend(store, x, cparams)
