"""`copy`, `load` and `open_schunk`: read an array or a super-chunk by its URL, alone or in a group."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from b2array.array.array import NDArray, View
from b2array.array.drafts import Access, Casting, CopyKeywords, Extents, Kind, Url
from b2array.array.schunk import SChunk, schunk_at
from b2array.codec.cparams import AnyCParams
from b2array.commit.handle import Mode
from b2array.errors import FormatError
from b2array.group.addressing import open, open_array, open_listed_member
from b2array.group.blosc2_tables import Table
from b2array.group.group import Group
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
    """Copy an array with its attributes and metalayers, and return a handle that can change the copy.

    If chunks, blocks, compression and type stay the same, the compressed chunks are copied unchanged. Otherwise they
    are encoded again, a few at a time, in bounded memory.

    Parameters
    ----------
    src : NDArray, View, str or os.PathLike
        The array to copy: a handle, whose present state is copied, or a URL as for `open`.
    dst : str or os.PathLike, optional
        The URL of the copy; by default the copy is in memory.
    dtype : dtype-like, optional
        The type of the copy; by default the type of `src`.
    casting : {"no", "equiv", "safe", "same_kind", "unsafe"}
        The conversions to allow; see `numpy.can_cast`.
    chunks, blocks : int, str, sequence or mapping, optional
        The extents of the copy, in items, as for `create`; by default the extents of `src`.
    access : {"balanced", "planes", "series", "boxes", "samples"}, optional
        Choose chunks and blocks for keys of this kind; see `create`.
    cparams : CParams, optional
        The compression of the copy; by default the compression of `src`.
    layout : {"auto", "contiguous", "sparse"}
        One file, or a directory with a file for each chunk; "auto" chooses one file on local disks, else a directory.
    overwrite, interop
        As for `create`.
    src_options, dst_options : mapping, optional
        Storage options for fsspec, if `src` and `dst` are URLs.
    src_fs, dst_fs : fsspec.AbstractFileSystem, optional
        File systems; `src` and `dst` are then paths in them.
    progress : bool, default False
        Whether to show on stderr how many chunks are done.
    snapshots : bool, default True
        Whether to copy the snapshots of `src` as well. Snapshots of views are not copied.

    Raises
    ------
    FileExistsError
        Something exists at `dst`, and `overwrite` is False.
    TypeError
        `casting` does not allow the conversion.
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
    options: CopyKeywords = {
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
        raise TypeError("src_options and src_fs are for a source given by its URL; this source is open")
    if isinstance(src, View):
        return src.copy(dst, dtype=dtype, casting=casting, **options)
    if isinstance(src, NDArray):
        context: AbstractContextManager[NDArray] = nullcontext(src)
    else:
        context = open_array(src, storage_options=src_options, fs=src_fs)
    with context as source:
        return source.copy(
            dst,
            dtype=dtype,
            casting=casting,
            progress=progress,
            snapshots=snapshots,
            **options,
        )


@spell_out()
def load(
    url: Url,
    *,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> npt.NDArray[Any]:
    """Read a whole array into memory. The URL may name a member of a group, as for `open`.

    Raises
    ------
    FileNotFoundError, FormatError, UnsupportedError
        As for `open`.
    TypeError
        The URL names a group or a super-chunk.
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
    """Open a frame as a super-chunk, a sequence of numbered chunks.

    Parameters
    ----------
    url : str or os.PathLike
        A file, a directory with a sparse frame, or a URL that fsspec understands; also a member of a group, as for
        `open`.
    mode : {"r", "r+"}
        "r" for reading, "r+" for reading and changing.
    offset : int, default 0
        The position of the frame in the file, in bytes.
    at : str, optional
        The name of a snapshot, which is read-only.
    storage_options : mapping, optional
        Options for fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system; the URL is a path in it.

    Raises
    ------
    FileNotFoundError
        Nothing exists at the URL.
    FormatError, UnsupportedError
        The URL does not name a frame, or names a frame of an unknown kind.
    TypeError
        The URL names a group.
    """
    address, options = address_of(url, storage_options, fs)
    member = None
    if not offset and at is None:
        member = open_listed_member(address, mode, options, follow=False)
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
