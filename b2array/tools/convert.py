"""`convert`: arrays from one file format to another; and the formats that it knows."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from b2array import bloscpack
from b2array.array import opening
from b2array.buffers import Buffer
from b2array.codec.cparams import AnyCParams, given_or_default
from b2array.errors import B2ArrayError, FormatError, warn
from b2array.grid.chunking import automatic
from b2array.grid.partition import boxes
from b2array.progress import track
from b2array.store.atomic import require_free
from b2array.store.base import Store
from b2array.store.open import open_store
from b2array.store.secrets import redact
from b2array.tools.formats import (  # fmt: skip
    NPY_MAGIC,
    Box,
    Format,
    Piece,
    Settings,
    Source,
    Storage,
    check_blp,
    open_b2nd,
    open_blp,
    open_npy,
    refuse_objects,
    write_b2nd,
    write_blp,
    write_npy,
)
from b2array.tools.hdf5 import MAGIC, check_hdf5, open_hdf5, write_hdf5
from b2array.tools.zarr import check_zarr, open_zarr, write_zarr

__all__ = ["FORMATS", "convert", "find", "is_array", "pack_bytes", "save_intact", "unpack_bytes"]

Url = str | os.PathLike[str]
Name = Literal["b2nd", "npy", "zarr", "hdf5", "blp"]

_BUDGET = 64 * 2**20
"""Number of bytes to read at once, unless a chunk is larger."""

_FEWEST, _MOST = 2**16, 2**28
"""The destination gets the chunks of the source if their size in bytes is between these."""


FORMATS = {
    each.name: each
    for each in (
        Format("b2nd", (".b2nd", ".b2frame"), open_b2nd, refuse_objects, write_b2nd, sequential=False),
        Format("npy", (".npy",), open_npy, refuse_objects, write_npy, sequential=False, keeps=frozenset()),
        Format("zarr", (".zarr",), open_zarr, check_zarr, write_zarr, sequential=False),
        Format("hdf5", (".h5", ".hdf5", ".hdf", ".nc"), open_hdf5, check_hdf5, write_hdf5, sequential=False),
        Format("blp", (".blp",), open_blp, check_blp, write_blp, sequential=True),
    )
}


def convert(
    src: Url,
    dst: Url,
    *,
    src_format: Name | None = None,
    dst_format: Name | None = None,
    chunks: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    cparams: AnyCParams = None,
    layout: Literal["auto", "contiguous", "sparse"] = "auto",
    overwrite: bool = False,
    verify: bool = False,
    progress: bool = False,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Copy an array to another file format, a bounded number of bytes at a time.

    Attributes, names of dimensions and the fill value are copied, and the chunks too where both formats have them.

    Parameters
    ----------
    src, dst : str or os.PathLike
        Files, directories or URLs. Their endings tell the formats: ``.b2nd`` and ``.b2frame``, ``.npy``, ``.zarr``,
        ``.h5``, ``.hdf5``, ``.hdf`` and ``.nc``, ``.blp``. Without such an ending, the first bytes of a source tell
        its format. The name of a dataset in an HDF5 file follows ``#``, as in ``results.h5#run/pressure``. Without a
        name, a source must have exactly one dataset, and a new dataset is called ``data``.
    src_format, dst_format : {"b2nd", "npy", "zarr", "hdf5", "blp"}, optional
        The formats, if the endings do not tell or tell wrong ones.
    chunks, blocks : sequence of int, optional
        Extents in items, for formats that have them.
    cparams : CParams, optional
        How to compress: all of it in ``.b2nd``; codec, level and shuffle in Zarr and ``.blp``; the level in HDF5.
    layout : {"auto", "contiguous", "sparse"}
        Kind of a ``.b2nd``: one file, or a directory.
    overwrite : bool, default False
        Whether to replace an existing destination, which must have the same format. The old file stays until the new
        one is complete. Only Zarr arrays in stores that cannot rename are written in place.
    verify : bool, default False
        Whether to read both files again afterwards and compare them.
    progress : bool, default False
        Whether to show a progress bar.
    src_options, dst_options : mapping, optional
        Storage options for fsspec.
    **options
        For the destination: ``zarr_format`` (2 or 3), and for ``.blp`` what `b2array.bloscpack.create` takes.

    Raises
    ------
    FileExistsError
        The destination exists.
    UnsupportedError
        The destination's format cannot hold the type of the items, or a package is missing. Nothing has been written.
    B2ArrayError
        With `verify`: the destination differs from the source.

    Warns
    -----
    UserWarning
        The destination's format cannot store attributes, names of dimensions or the fill value.

    Examples
    --------
    >>> import tempfile, b2array
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     a = b2array.asarray(np.arange(6).reshape(2, 3), url=f"{directory}/a.b2nd")
    ...     b2array.convert(f"{directory}/a.b2nd", f"{directory}/a.npy", verify=True)
    ...     np.load(f"{directory}/a.npy").tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    from_format, src_url = find(src, src_format, src_options, exists=True)
    to_format, dst_url = find(dst, dst_format, dst_options, exists=False)
    with from_format.open(src_url, src_options) as source:
        settings = _settings(source, chunks, blocks, cparams, layout, overwrite, dst_options, options, to_format)
        to_format.check(source, settings)
        _warn_of_loss(source, to_format, dst_url)
        total = math.prod(source.shape) * source.dtype.itemsize
        regions = _regions(source, to_format, settings)
        with track(total, "converting", progress) as shown:
            to_format.write(dst_url, source, _pieces(source, regions, shown.advance), settings)
        if verify:
            with to_format.open(dst_url, dst_options) as copy, track(total, "verifying", progress) as shown:
                _compare(source, copy, regions, dst_url, shown.advance)


def _settings(
    source: Source, chunks: Sequence[int] | None, blocks: Sequence[int] | None, cparams: AnyCParams, layout: str,
    overwrite: bool, storage_options: Mapping[str, Any] | None, options: Mapping[str, Any], target: Format,
) -> Settings:  # fmt: skip
    known = {"zarr": {"zarr_format"}, "blp": {"checksum", "offsets", "chunk_size", "max_app_chunks"}}
    unknown = sorted(options.keys() - known.get(target.name, set()))
    if unknown:
        raise TypeError(f"a destination of format {target.name} takes no {', '.join(unknown)}")
    given = None if chunks is None else tuple(chunks)
    inner = None if blocks is None else tuple(blocks)
    if given is None and source.chunks is not None:
        nbytes = math.prod(source.chunks) * source.dtype.itemsize
        if (0 not in source.shape and _FEWEST <= nbytes <= _MOST) or source.chunks == source.shape:
            given = source.chunks
            inner = source.blocks if inner is None else inner
    cut, within = automatic(source.shape, source.dtype.itemsize, chunks=given, blocks=inner)
    params = None if cparams is None else given_or_default(cparams)
    return Settings(cut, within, params, layout, overwrite, storage_options, options)


def _warn_of_loss(source: Source, target: Format, url: str) -> None:
    has = {
        "attrs": bool(source.attrs),
        "dims": source.dims is not None and any(source.dims),
        "fill value": bool(np.asarray(source.fill).tobytes().strip(b"\0")),
    }
    lost = [name for name, there in has.items() if there and name not in target.keeps]
    if lost:
        warn(f"{redact(url)}: a .{target.name} file has no place for {' and '.join(lost)}")


def _regions(source: Source, target: Format, settings: Settings) -> list[Box]:
    """Cut the array into boxes to read and write at once: whole chunks, of the destination if possible."""
    items = max(1, _BUDGET // source.dtype.itemsize)
    if target.sequential:
        return list(boxes(source.shape, items))
    if 0 in source.shape:
        return []
    unit = source.chunks if target.name == "npy" and source.chunks else settings.chunks
    steps = list(unit)
    for axis in reversed(range(len(steps))):
        fitting = max(1, items // math.prod(steps))
        steps[axis] = min(steps[axis] * fitting, -(-source.shape[axis] // unit[axis]) * unit[axis])
    ranges = [range(0, n, step) for n, step in zip(source.shape, steps, strict=True)]
    return [
        tuple(slice(i, min(i + step, n)) for i, step, n in zip(starts, steps, source.shape, strict=True))
        for starts in product(*ranges)
    ]


def _pieces(source: Source, regions: list[Box], advance: Callable[[int], None]) -> Iterator[Piece]:
    for box in regions:
        values = np.asarray(source.read(box), source.dtype)
        yield box, values
        advance(values.nbytes)


def _compare(source: Source, copy: Source, regions: list[Box], url: str, advance: Callable[[int], None]) -> None:
    # In Zarr 3 the byte order belongs to the storage, not to the type.
    if source.shape != copy.shape or source.dtype.newbyteorder("=") != copy.dtype.newbyteorder("="):
        raise B2ArrayError(
            f"{redact(url)} differs from its source: expected shape {source.shape} and type {source.dtype}, "
            f"found {copy.shape} and {copy.dtype}"
        )
    for box in regions:
        values = np.asarray(source.read(box))
        if not _same(values, np.asarray(copy.read(box), values.dtype)):
            where = ", ".join(f"{i.start}:{i.stop}" for i in box)
            raise B2ArrayError(f"{redact(url)} differs from its source in [{where}]")
        advance(values.nbytes)


def _same(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> bool:
    """Say whether items have the same bytes, except for the padding between fields."""
    if x.dtype.names is not None:
        return all(_same(x[name], y[name]) for name in x.dtype.names)
    if x.dtype.char in "gG":
        return bool(np.array_equal(x, y, equal_nan=True))
    return x.shape == y.shape and x.tobytes() == y.tobytes()


def find(
    url: str | os.PathLike[str], name: str | None, storage_options: Storage, *, exists: bool
) -> tuple[Format, str]:
    """Return the format of a file and its URL as text.

    The format is given by its name, by the ending of the URL or, if the file exists, by its first bytes.

    Raises
    ------
    ValueError
        The format is not known.
    """
    text = os.fspath(url)
    if name is not None:
        if name not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
        return FORMATS[name], text
    path = redact(text).partition("::")[0].partition("#")[0].partition("?")[0].rstrip("/\\")
    for found in FORMATS.values():
        if path.lower().endswith(found.suffixes):
            return found, text
    if ".zarr/" in path.lower():
        return FORMATS["zarr"], text
    if exists:
        return FORMATS[_sniff(open_store(text, storage_options=storage_options))], text
    suffixes = " ".join(suffix for each in FORMATS.values() for suffix in each.suffixes)
    raise ValueError(f"{redact(text)} has no ending of a known format; known are {suffixes}")


def _sniff(store: Store) -> str:
    head, frame, *zarr = store.head(["", "chunks.b2frame", "zarr.json", ".zarray", ".zgroup"], 16)
    if not isinstance(frame, Exception):
        return "b2nd"
    if not all(isinstance(found, Exception) for found in zarr):
        return "zarr"
    if isinstance(head, Exception):
        raise head
    start = bytes(head.data)
    for magic, name in ((NPY_MAGIC, "npy"), (MAGIC, "hdf5"), (b"blpk", "blp")):
        if start.startswith(magic):
            return name
    return "b2nd"


def is_array(url: str, storage_options: Storage) -> bool:
    """Say whether a file holds an array in a known format, by its ending or by its first bytes."""
    kind, address = find(url, None, storage_options, exists=True)
    if kind.name != "b2nd" or address.rstrip("/").endswith(kind.suffixes):
        return True
    try:
        opening.open(url, storage_options=storage_options).close()
    except FormatError:
        return False
    return True


# Bloscpack files of plain bytes.


def pack_bytes(
    src: str, dst: str, *, cparams: AnyCParams, overwrite: bool, verify: bool, progress: bool,
    storage_options: Storage, **options: Any,
) -> None:  # fmt: skip
    """Write the bytes of a file to a Bloscpack file."""
    store = open_store(src, storage_options=storage_options)
    with (
        track(store.stamp("").size, "packing", progress) as shown,
        bloscpack.create(
            dst, cparams=cparams, overwrite=overwrite, storage_options=storage_options, **options
        ) as writer,
    ):
        for data in store.pieces():
            writer.write(data)
            shown.advance(len(data))
    if verify:
        with bloscpack.open(dst, storage_options=storage_options) as f:
            _compare_bytes(f, store, f.url)


def unpack_bytes(
    f: bloscpack.Reader, dst: str, *, overwrite: bool, verify: bool, progress: bool, storage_options: Storage
) -> None:
    """Write the bytes in a Bloscpack file to a file of their own."""

    def counted() -> Iterator[Buffer]:
        for piece in f.iter_chunks():
            yield piece
            shown.advance(len(piece))

    with track(f.nbytes, "unpacking", progress) as shown:
        store = _write(dst, counted(), overwrite=overwrite, storage_options=storage_options)
    if verify:
        _compare_bytes(f, store, store.url)


def save_intact(data: Any, dst: str, *, overwrite: bool, storage_options: Storage) -> None:
    """Write the intact part of a damaged Bloscpack file: an array in any format, bytes as they are."""
    if isinstance(data, bytes):
        _write(dst, (data,), overwrite=overwrite, storage_options=storage_options)
        return
    with tempfile.TemporaryDirectory(prefix="b2array-") as directory:
        np.save(f"{directory}/intact.npy", data)
        convert(f"{directory}/intact.npy", dst, overwrite=overwrite, dst_options=storage_options)


def _write(dst: str, pieces: Iterable[Buffer], *, overwrite: bool, storage_options: Storage) -> Store:
    store = open_store(dst, storage_options=storage_options)
    require_free(store, {"": b""}, "a file", overwrite=overwrite)
    write = store.replace if overwrite else store.create
    write("", pieces)
    return store


def _compare_bytes(f: bloscpack.Reader, store: Store, made: str) -> None:
    """Raise B2ArrayError if a Bloscpack file and another file differ; `made` is the new one of the two."""
    at = 0
    for piece in f.iter_chunks():
        (head,) = store.head([""], len(piece), offset=at) if piece else (None,)
        if isinstance(head, Exception):
            raise head
        if head is not None and bytes(head.data) != piece:
            raise B2ArrayError(f"{made} differs from its source at byte {at} or behind")
        at += len(piece)
    if at != store.stamp("").size:
        raise B2ArrayError(f"{made} differs from its source: one has {at} bytes, the other {store.stamp('').size}")
