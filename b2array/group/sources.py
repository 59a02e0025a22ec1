"""Functions that read an array or a super-chunk by its URL, alone or in a group: `copy`, `load`, `open_schunk`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from b2array.array.array import NDArray, View
from b2array.array.drafts import Access, Casting, CopyKeywords, Extents, Kind, Url
from b2array.array.schunk import SChunk, schunk_at
from b2array.codec.cparams import AnyCParams
from b2array.commit.handle import Mode
from b2array.errors import FormatError
from b2array.group.addressing import listed_member, open, open_array
from b2array.group.group import Group
from b2array.group.tables import Table
from b2array.keywords import spell_out
from b2array.store.open import address_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["copy", "load", "open_schunk"]


@spell_out()
def copy(
    src: NDArray | View | Url,
    dst: Url | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    casting: Casting = "unsafe",
    chunks: Extents = None,
    blocks: Extents = None,
    access: Access | None = None,
    cparams: AnyCParams = None,
    layout: Kind = "auto",
    overwrite: bool = False,
    interop: bool = True,
    progress: bool = False,
    snapshots: bool = True,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    src_fs: AbstractFileSystem | None = None,
    dst_fs: AbstractFileSystem | None = None,
) -> NDArray:
    """Copy an array, its attributes and metalayers, and return a handle that can change the copy.

    Chunks are copied as they are where chunks, blocks, compression and type stay the same; otherwise they are encoded
    again, a few at a time, in bounded memory.

    Parameters
    ----------
    src : NDArray, View, str or os.PathLike
        What to copy: the state that the handle shows, or the array at a URL, as `open` finds it.
    dst : str or os.PathLike, optional
        Where to; in memory if left out.
    dtype : dtype-like, optional
        Type to convert to.
    casting : {"no", "equiv", "safe", "same_kind", "unsafe"}
        Which conversions are allowed; see `numpy.can_cast`.
    chunks, blocks : int, str, sequence or mapping, optional
        Other extents, in items, as `create` takes them; by default they stay.
    access : {"balanced", "planes", "series", "boxes"}, optional
        Choose other chunks and blocks, for keys of this kind; see `create`.
    cparams : CParams, optional
        Other compression.
    layout : {"auto", "contiguous", "sparse"}
        One file, or a directory with a file a chunk; "auto": one file on local paths, else a directory.
    overwrite, interop
        As for `create`.
    src_options, dst_options : mapping, optional
        Storage options for fsspec, for URLs.
    src_fs, dst_fs : fsspec.AbstractFileSystem, optional
        File systems, in which `src` and `dst` are paths.
    progress : bool, default False
        Show on stderr how many chunks are done.
    snapshots : bool, default True
        Whether the copy also has the snapshots of `src`. Snapshots of views are not copied.

    Raises
    ------
    FileExistsError
        There is something already.
    TypeError
        The conversion is not allowed.
    ValueError, LimitError, UnsupportedError
        As for `create`.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.asarray(np.arange(12).reshape(3, 4), chunks=(3, 4))
    >>> b = b2array.copy(a, chunks=(2, 2), blocks=(1, 2))
    >>> b.chunks, bool((b[...] == a[...]).all())
    ((2, 2), True)
    """
    given: CopyKeywords = {
        "chunks": chunks,
        "blocks": blocks,
        "access": access,
        "cparams": cparams,
        "layout": layout,
        "overwrite": overwrite,
        "interop": interop,
        "storage_options": dst_options,
        "fs": dst_fs,
    }
    if isinstance(src, NDArray | View) and not (src_options is None and src_fs is None):
        raise TypeError("src_options and src_fs are for a source that is named by its URL; this one is open")
    if isinstance(src, View):
        return src.copy(dst, dtype=dtype, casting=casting, **given)
    opened = nullcontext(src) if isinstance(src, NDArray) else open_array(src, storage_options=src_options, fs=src_fs)
    with opened as source:
        return source.copy(dst, dtype=dtype, casting=casting, progress=progress, snapshots=snapshots, **given)


@spell_out()
def load(
    url: Url, *, storage_options: Mapping[str, Any] | None = None, fs: AbstractFileSystem | None = None
) -> npt.NDArray[Any]:
    """Read a whole array into memory. The URL may be that of a member of a group, as for `open`.

    Raises
    ------
    FileNotFoundError, FormatError, UnsupportedError
        As for `open`.
    TypeError
        There is a group or a super-chunk.
    """
    with open_array(url, storage_options=storage_options, fs=fs) as stored:
        return np.asarray(stored)


@spell_out()
def open_schunk(
    url: str | os.PathLike[str],
    mode: Mode = "r",
    *,
    offset: int = 0,
    at: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> SChunk:
    """Open a frame as numbered chunks.

    Parameters
    ----------
    url : str or os.PathLike
        A file, a directory with a sparse frame, or what fsspec understands; also a member of a group, as for `open`.
    mode : {"r", "r+"}
        For reading, or for reading and changing.
    offset : int, default 0
        Where the frame begins in the file, in bytes.
    at : str, optional
        The name of a snapshot, which can only be read.
    storage_options : mapping, optional
        For fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Raises
    ------
    FileNotFoundError
        There is nothing.
    FormatError, UnsupportedError
        It is no frame, or one of an unknown kind.
    TypeError
        It is a group.
    """
    address, options = address_of(url, storage_options, fs)
    member = None if offset or at is not None else listed_member(address, mode, options, follow=False)
    if member is None:
        try:
            return schunk_at(address, mode, offset=offset, at=at, storage_options=options)
        except (FileNotFoundError, FormatError):
            if offset:
                raise
            member = open(address, mode, at=at, storage_options=options)
    if isinstance(member, Group | Table):
        raise TypeError(f"expected an array or a super-chunk, found {member!r}; b2array.open_group opens it")
    return SChunk(member._handle)
