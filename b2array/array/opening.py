"""Super-chunks by URL: open one, create one, find the place for a new frame."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any, Literal

from b2array.array.schunk import SChunk
from b2array.codec.cparams import AnyCParams, given_or_default
from b2array.config import MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.engine import snapshot
from b2array.engine.handle import Handle, Mode
from b2array.engine.replacing import frame_in, is_part
from b2array.engine.source import FRAME_NAME
from b2array.engine.transaction import Transaction
from b2array.errors import LimitError
from b2array.format import frame
from b2array.format.attributes import encode_attr
from b2array.format.frame import FrameType
from b2array.format.state import parse
from b2array.store.atomic import require_free
from b2array.store.base import Store
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store

__all__ = ["create_schunk", "encoded_metalayers", "named", "open_schunk", "place_new"]


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
        It is not a frame, or one that is not known here.
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
        How chunks are made.
    meta : mapping, optional
        Metalayers, which can never change: what msgpack takes, or bytes, which are stored as they are.
    layout : {"auto", "contiguous", "sparse"}
        One file, or a directory with a file a chunk; "auto": one file on local paths, else a directory.
    overwrite : bool, default False
        Whether a frame that is there may be replaced.
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


def encoded_metalayers(meta: Mapping[str, Any] | None) -> list[tuple[str, bytes]]:
    r"""Return metalayers as they are stored: bytes as they are, other values as msgpack, or TypeError.

    Examples
    --------
    >>> encoded_metalayers({"as it is": b"1", "packed": 1})
    [('as it is', b'1'), ('packed', b'\x01')]
    """
    return [(name, raw if isinstance(raw, bytes) else encode_attr(raw)) for name, raw in named(meta)]


def named(layers: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """Return names and values; raises TypeError if it is no mapping from str."""
    if layers is None:
        return []
    if not isinstance(layers, Mapping):
        raise TypeError(f"attributes and metalayers are given as a mapping, not as {type(layers).__name__}")
    for name in layers:
        if not isinstance(name, str):
            raise TypeError(f"names of attributes and metalayers are str, not {type(name).__name__}")
    return list(layers.items())


def place_new(
    url: str | os.PathLike[str] | None,
    layout: str,
    storage_options: Mapping[str, Any] | None,
    *,
    overwrite: bool,
) -> tuple[Store, FrameType]:
    """Find the store for a new frame and decide its kind; nothing but a frame or an empty file is ever overwritten.

    Raises
    ------
    FileExistsError
        There is something already, and it is not a frame or may not be overwritten.
    ValueError
        The layout has another name, or does not fit the URL.
    """
    if layout not in ("auto", "contiguous", "sparse"):
        raise ValueError(f"layout must be 'auto', 'contiguous' or 'sparse', not {layout!r}")
    if url is None:
        return MemoryStore(), FrameType.SPARSE if layout == "sparse" else FrameType.CONTIGUOUS
    store = open_store(url, storage_options=storage_options)
    if layout == "auto":
        layout = "contiguous" if store.appendable and not store.is_prefix else "sparse"
    if layout == "contiguous" and store.is_prefix:
        raise ValueError(f"a contiguous frame is one file, but {store.url} ends with a slash")
    frame_type = FrameType.SPARSE if layout == "sparse" else FrameType.CONTIGUOUS
    _make_room(store, frame_type, overwrite=overwrite)
    return store, frame_type


def _make_room(store: Store, frame_type: FrameType, *, overwrite: bool) -> None:
    name = FRAME_NAME if frame_type == FrameType.SPARSE else ""
    kinds = {"": frame.FIRST_BYTES, FRAME_NAME: frame.FIRST_BYTES}
    found = require_free(store, kinds, "a frame", overwrite=overwrite, name=name)
    if found in (None, name):
        return
    if frame_in(store) is None:
        old, new = ("sparse", "contiguous") if found else ("contiguous", "sparse")
        raise FileExistsError(f"{store.url} is a {old} frame that cannot be read, which a {new} one cannot replace")
    if found and store.beside(directory=False) is not None:
        others = [name for name in store.walk() if not is_part(name)]
        if others:
            raise FileExistsError(f"{store.url} is a directory with more than a frame in it: {others[0]}")
