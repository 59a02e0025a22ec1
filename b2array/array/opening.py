"""Opens arrays and super-chunks, and creates super-chunks."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any, Literal

from b2array.array.array import NDArray
from b2array.array.options import Url
from b2array.array.placing import encoded_metalayers, place_new
from b2array.array.schunk import SChunk
from b2array.buffers import Buffer
from b2array.codec.cparams import AnyCParams, given_or_default
from b2array.config import MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.engine import snapshot
from b2array.engine.handle import Handle, Mode
from b2array.engine.transaction import Transaction
from b2array.errors import LimitError, ReadOnlyError
from b2array.format import frame
from b2array.format.state import parse
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store

__all__ = ["create_schunk", "from_bytes", "open", "open_schunk"]


def open(url: Url, mode: Mode = "r", *, offset: int = 0, storage_options: Mapping[str, Any] | None = None) -> NDArray:
    """Open an array and nothing else; parameters as for `b2array.open`, which opens other things, too.

    Raises what it raises, and FormatError for a frame without an array.
    """
    if offset and mode != "r":
        raise ReadOnlyError("a frame inside a larger file can only be read")
    held = Handle(snapshot.load(open_store(url, storage_options=storage_options), start=offset), mode)
    return NDArray(held)


def from_bytes(buf: Buffer) -> NDArray:
    """Open an array that is a contiguous frame in memory; `bytes` are not copied. It can be read only.

    Raises
    ------
    FormatError, UnsupportedError
        As for `open`.
    """
    content = buf if isinstance(buf, bytes) else memoryview(buf).tobytes()
    return NDArray(Handle(snapshot.load(MemoryStore({"": content})), "r"))


def open_schunk(
    url: str | os.PathLike[str],
    mode: Mode = "r",
    *,
    offset: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> SChunk:
    """Open a frame as numbered chunks.

    Parameters
    ----------
    url : str or os.PathLike
        A file, a directory with a sparse frame, or what fsspec understands.
    mode : {"r", "r+"}
        For reading, or for reading and changing.
    offset : int, default 0
        Where the frame begins in the file, in bytes.
    storage_options : mapping, optional
        For fsspec.

    Raises
    ------
    FileNotFoundError
        There is nothing.
    FormatError, UnsupportedError
        It is no frame, or one of an unknown kind.
    """
    return SChunk(Handle(snapshot.load(open_store(url, storage_options=storage_options), start=offset), mode))


def create_schunk(
    url: str | os.PathLike[str] | None = None,
    *,
    chunksize: int,
    typesize: int = 1,
    blocksize: int = 0,
    cparams: AnyCParams = None,
    meta: Mapping[str, Any] | None = None,
    layout: Literal["auto", "contiguous", "sparse"] = "auto",
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> SChunk:
    """Create a frame without chunks, and return a handle that can change it.

    Parameters
    ----------
    url : str or os.PathLike, optional
        Where to; in memory if left out.
    chunksize : int
        Uncompressed size in bytes of the chunks, a multiple of `typesize`; 0 if every chunk has its own.
    typesize : int, default 1
        Size of an item in bytes.
    blocksize : int, default 0
        Uncompressed size in bytes of a block; 0 lets each chunk choose.
    cparams : CParams, optional
        How to compress chunks.
    meta : mapping, optional
        Metalayers, which can never change: what msgpack takes, or bytes, which are stored as they are.
    layout : {"auto", "contiguous", "sparse"}
        One file, or a directory with a file a chunk; "auto": one file on local paths, else a directory.
    overwrite : bool, default False
        Whether to replace an existing frame.
    storage_options : mapping, optional
        For fsspec.

    Raises
    ------
    FileExistsError
        There is something already.
    ValueError
        Sizes are negative, or no whole number of items.
    LimitError
        Sizes are larger than the format allows.
    """
    chunksize, typesize, blocksize = map(operator.index, (chunksize, typesize, blocksize))
    if typesize < 1:
        raise ValueError(f"typesize must be at least 1, not {typesize}")
    width = typesize if typesize <= 255 else 1
    for name, size, unit, most in (
        ("chunksize", chunksize, typesize, MAX_CHUNK_NBYTES), ("blocksize", blocksize, width, MAX_BLOCKSIZE)
    ):  # fmt: skip
        if size < 0 or size % unit:
            raise ValueError(f"{name} must be a multiple of the typesize {typesize}, not {size}")
        if size > most:
            raise LimitError(f"{name} must be at most {most} bytes, not {size}")
    layers = encoded_metalayers(meta)
    store, frame_type = place_new(url, layout, storage_options, overwrite=overwrite)
    new = frame.create(
        given_or_default(cparams), frame_type=frame_type, typesize=typesize, chunksize=chunksize, blocksize=blocksize,
        metalayers=layers,
    )  # fmt: skip
    return SChunk(Handle(Transaction(store, None, parse(new), overwrite=overwrite).commit(), "r+"))
