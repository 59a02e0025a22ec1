"""Arrays from one file format to another."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from b2array.codec.cparams import CParams, given_or_default
from b2array.errors import B2ArrayError
from b2array.grid.chunking import automatic
from b2array.grid.partition import boxes
from b2array.progress import track
from b2array.store.secrets import redact
from b2array.tools.formats import find
from b2array.tools.sources import Box, Format, Piece, Settings, Source

__all__ = ["convert"]

Url = str | os.PathLike[str]
Name = Literal["b2nd", "npy", "zarr", "hdf5", "blp"]

_BUDGET = 64 * 2**20
"""Bytes of values that are held at once, unless a chunk is larger."""

_FEWEST, _MOST = 2**16, 2**28
"""Chunks of a source are kept for the destination if they have so many bytes."""


def convert(
    src: Url,
    dst: Url,
    *,
    src_format: Name | None = None,
    dst_format: Name | None = None,
    chunks: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    cparams: CParams | None = None,
    layout: Literal["auto", "contiguous", "sparse"] = "auto",
    overwrite: bool = False,
    verify: bool = False,
    progress: bool = False,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Copy an array from a file of one format to one of another, a bounded number of bytes at a time.

    Attributes, names of dimensions and the fill value are kept, and so are the chunks where both formats have them.

    Parameters
    ----------
    src, dst : str or os.PathLike
        Files, directories or URLs. Their endings tell the formats: ``.b2nd`` and ``.b2frame``, ``.npy``, ``.zarr``,
        ``.h5``, ``.hdf5``, ``.hdf`` and ``.nc``, ``.blp``; a source without one of these is looked at. A dataset of an
        HDF5 file stands behind ``#``, as in ``results.h5#run/pressure``; without it there must be one only, and a new
        one is called ``data``.
    src_format, dst_format : {"b2nd", "npy", "zarr", "hdf5", "blp"}, optional
        The formats, whatever the endings are.
    chunks, blocks : sequence of int, optional
        Extents in items, for formats that have them.
    cparams : CParams, optional
        How to compress: all of it in ``.b2nd``; codec, level and shuffle in Zarr and ``.blp``; the level in HDF5.
    layout : {"auto", "contiguous", "sparse"}
        Kind of a ``.b2nd``: one file, or a directory.
    overwrite : bool, default False
        Whether a destination may be replaced, if it has the same format. The old one is there until the new one is
        complete, but for Zarr arrays in stores without renaming, which are written in place.
    verify : bool, default False
        Read both again afterwards and compare.
    progress : bool, default False
        Show how far it is.
    src_options, dst_options : mapping, optional
        Storage options for fsspec.
    **options
        For the destination: ``zarr_format`` (2 or 3), and for ``.blp`` what `b2array.bloscpack.create` takes.

    Raises
    ------
    FileExistsError
        There is a destination already.
    UnsupportedError
        The destination's format cannot hold the type of the items, or a package is missing. Nothing has been written.
    B2ArrayError
        With `verify`: the destination differs from the source.

    Warns
    -----
    UserWarning
        The destination's format has no place for attributes, names of dimensions or the fill value.

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
    source: Source, chunks: Sequence[int] | None, blocks: Sequence[int] | None, cparams: CParams | None, layout: str,
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
        warnings.warn(f"{redact(url)}: a .{target.name} file has no place for {' and '.join(lost)}", stacklevel=3)


def _regions(source: Source, target: Format, settings: Settings) -> list[Box]:
    """Cut the array into boxes of whole chunks, of the destination if possible, each read and written at once."""
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
    # Zarr 3 counts the order of bytes as a matter of storage, not of the type.
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
    """Whether items have the same bytes; those between fields are nobody's."""
    if x.dtype.names is not None:
        return all(_same(x[name], y[name]) for name in x.dtype.names)
    if x.dtype.char in "gG":
        return bool(np.array_equal(x, y, equal_nan=True))
    return x.shape == y.shape and x.tobytes() == y.tobytes()
