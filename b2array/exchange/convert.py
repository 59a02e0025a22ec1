"""`convert`: copies arrays and groups from one file format to another."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from b2array.array.array import array_at
from b2array.array.drafts import ArrayOptions, choose_layout
from b2array.array.wide_text import warn_of_waste
from b2array.codec.cparams import AnyCParams, resolve_cparams
from b2array.display.text_tables import count_text, size
from b2array.errors import B2ArrayError, ConflictError, FormatError, SnapshotLostError, UnsupportedError, warn
from b2array.exchange.formats import (
    BYTES,
    ArraySource,
    Box,
    Build,
    Format,
    Hierarchy,
    Options,
    Piece,
    Storage,
    storable,
)
from b2array.exchange.hdf5 import FOLLOWING, HDF5
from b2array.exchange.places import find
from b2array.grid.chunking import Access, automatic, check_access
from b2array.grid.partition import boxes
from b2array.group.addressing import split_member
from b2array.keywords import spell_out
from b2array.progress import track
from b2array.store.open import address_of, open_store
from b2array.store.secrets import redact_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Conversion", "convert", "convert_to", "is_array", "save_intact"]

Url = str | os.PathLike[str]
Name = Literal["b2nd", "b2d", "b2z", "b2e", "npy", "zarr", "hdf5", "netcdf3", "blp"]

_BUDGET = 64 * 2**20
"""The number of bytes to read at once, unless a chunk is larger."""

_FEWEST, _MOST = 2**16, 2**28
"""The minimum and maximum size, in bytes, of chunks whose shape the destination keeps from the source."""


_ROUNDED = ("b2nd", "b2d", "b2z")
"""The formats that store which errors the values of an array may have."""


class FormatKeywords(TypedDict, total=False):
    """Options for a destination in the formats Zarr, HDF5 and ``.blp``."""

    zarr_format: Literal[2, 3]
    compression: Literal["gzip", "blosc", "blosc2"]
    other_attrs: Literal["json", "skip"]
    checksum: str | None
    offsets: bool
    chunk_size: int | None
    max_app_chunks: int | None


@spell_out(FormatKeywords)
def convert(
    src: Url,
    dst: Url,
    *,
    src_format: Name | None = None,
    dst_format: Name | None = None,
    chunks: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    access: Access | None = None,
    cparams: AnyCParams = None,
    layout: Literal["auto", "contiguous", "sparse"] = "auto",
    overwrite: bool = False,
    verify: bool = False,
    progress: bool = False,
    follow_external: bool = False,
    at: str | None = None,
    snapshots: bool = True,
    src_options: Mapping[str, Any] | None = None,
    dst_options: Mapping[str, Any] | None = None,
    src_fs: AbstractFileSystem | None = None,
    dst_fs: AbstractFileSystem | None = None,
    **options: Unpack[FormatKeywords],
) -> None:
    """Copy an array, or a group of arrays, to another file format, a bounded number of bytes at a time.

    The copy includes attributes, dimension names and the fill value, and has the same chunks if both formats have
    chunks. Chunks below 64 KiB or above 256 MiB become automatic ones, unless you pass `chunks`. Blosc2 arrays keep
    their snapshots if the destination has Blosc2 frames. A whole group of them keeps its snapshots if the destination
    is a directory or prefix; there they replace snapshots with the same names. Groups, including empty ones, are copied
    between directories and archives of Blosc2 frames, HDF5 files and Zarr hierarchies. A group with a single array is
    still copied as a group; to copy only the array, name it as a member, as in ``results.h5/temperature``. A
    super-chunk becomes an array of bytes, except in a ``.b2frame`` or a group of frames, where it remains a
    super-chunk.

    Parameters
    ----------
    src, dst : str or os.PathLike
        Files, directories or URLs. Their endings determine the formats: ``.b2nd`` and ``.b2frame``, ``.b2d`` and
        ``.b2z`` for groups, ``.b2e`` (a source only), ``.npy``, ``.zarr``, ``.blp``, and for HDF5 ``.h5``, ``.hdf5``,
        ``.hdf``, ``.he5``, ``.nc`` and ``.nc4``. A source ``.nc`` may be netCDF-4 or netCDF-3. The format of a source
        without such an ending is determined from its contents; it may also be a zip archive of Zarr. Name a member by a
        path, as in ``results.h5/run/pressure``, or after ``#``. The default name of a new member is ``data``.
    src_format, dst_format : str, optional
        The formats, if the endings are missing or misleading: "b2nd", "b2d", "b2z", "b2e", "npy", "zarr", "hdf5",
        "netcdf3" (a source only) or "blp".
    chunks, blocks : sequence of int, optional
        Extents in items, for formats that have chunks and blocks.
    access : {"balanced", "planes", "series", "boxes", "samples"}, optional
        Choose new chunks and blocks for keys of this kind; see `create`.
    cparams : CParams, optional
        The compression. ``.b2nd``, and HDF5 with the `compression` "blosc" or "blosc2", use all parameters; Zarr and
        ``.blp`` use codec, level and shuffle; other HDF5 files use only the level. By default a copy of a Blosc2 array
        as another Blosc2 array has the same parameters, and the same compressed chunks if their shape does not change.
    layout : {"auto", "contiguous", "sparse"}
        The layout of a ``.b2nd``: one file, or a directory.
    overwrite : bool, default False
        Whether to replace an existing destination of the same format. The old file remains until the new file is
        complete, except for Zarr arrays in stores that cannot rename.
    verify : bool, default False
        Whether to read both files again after the copy and compare them.
    progress : bool, default False
        Whether to show a progress bar.
    follow_external : bool, default False
        Whether to read other files to which an HDF5 file refers: by links, as the storage of a dataset, or as parts of
        a virtual dataset. By default this is an error that names the dataset and the file, because a file from somebody
        else could refer to any of your files.
    at : str, optional
        The name of a snapshot of the source to copy, instead of its latest state. Other snapshots are not copied.
    snapshots : bool, default True
        Whether to copy the snapshots of the source as well, if the format of the destination supports them.
    src_options, dst_options : mapping, optional
        Storage options for fsspec.
    src_fs, dst_fs : fsspec.AbstractFileSystem, optional
        File systems; `src` and `dst` are then paths in them.
    zarr_format : {2, 3}, optional
        The version of the Zarr format.
    compression : {"gzip", "blosc", "blosc2"}, optional
        For HDF5: gzip, which every program reads, or the faster filters of Blosc 1 and Blosc2, which other programs
        read with hdf5plugin or PyTables. Variable-length text is always compressed with gzip.
    other_attrs : {"json", "skip"}, optional
        For HDF5: whether to store attributes that HDF5 does not support, such as lists of dicts, as JSON text, or to
        drop them.
    checksum, offsets, chunk_size, max_app_chunks
        For ``.blp``; see `b2array.bloscpack.create`.

    Raises
    ------
    FileExistsError
        The destination exists, and `overwrite` is False.
    KeyError
        The source has no such snapshot.
    UnsupportedError
        The destination's format does not support the type of the items, a package is missing, or items are in other
        files (see `follow_external`). Nothing was written.
    FormatError
        An array is damaged. The intact arrays of a group were copied.
    ConflictError
        Another writer changed an array during the copy. The other arrays of a group were copied.
    B2ArrayError
        With `verify`, the destination differs from the source.

    Warns
    -----
    UserWarning
        The destination's format does not support attributes, names of dimensions, the fill value or snapshots of an
        array or a group. Attributes that refer to places in their HDF5 file were dropped.

    Examples
    --------
    >>> import tempfile, b2array
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     a = b2array.asarray(np.arange(6).reshape(2, 3), url=f"{directory}/a.b2nd")
    ...     b2array.convert(f"{directory}/a.b2nd", f"{directory}/a.npy", verify=True)
    ...     np.load(f"{directory}/a.npy").tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    src, src_options = address_of(src, src_options, src_fs)
    dst, dst_options = address_of(dst, dst_options, dst_fs)
    done = convert_to(
        src,
        dst,
        src_format=src_format,
        dst_format=dst_format,
        chunks=chunks,
        blocks=blocks,
        access=access,
        cparams=cparams,
        layout=layout,
        overwrite=overwrite,
        verify=verify,
        progress=progress,
        follow_external=follow_external,
        at=at,
        snapshots=snapshots,
        src_options=src_options,
        dst_options=dst_options,
        **options,
    )
    if done.failed:
        listed = "; ".join(": ".join(filter(None, (name, str(error)))) for name, error in done.failed.items())
        errors = done.failed.values()
        kinds = (FormatError, SnapshotLostError, ConflictError)
        raised = [kind for kind in kinds if any(isinstance(error, kind) for error in errors)]
        kind: type[B2ArrayError] = raised[0] if raised else B2ArrayError
        raise kind(f"{redact_url(os.fspath(src))}: {done.share()} could not be copied: {listed}")


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion: a function that opens the copy, the number of arrays, the seconds, and the errors.

    An error is listed under the name of its array; under the name of a group and a slash if the attributes of the group
    were not copied; and under the empty name if the list of arrays may be incomplete.
    """

    open_copy: Callable[[], AbstractContextManager[Hierarchy]]
    narrays: int
    seconds: float
    failed: Mapping[str, Exception]

    @property
    def _nfailed(self) -> int:
        """The number of arrays that were not copied."""
        return sum(bool(name) and not name.endswith("/") for name in self.failed)

    def share(self) -> str:
        """Return the share of arrays and groups that could not be copied, as text."""
        groups = sum(name.endswith("/") for name in self.failed)
        parts = {
            f"{self._nfailed} of {count_text(self.narrays, 'array')}": self._nfailed,
            f"the attributes of {count_text(groups, 'group')}": groups,
            "the whole list of arrays": "" in self.failed,
        }
        return " and ".join(part for part, happened in parts.items() if happened)

    def summary(self) -> str:
        """Open the copy, and return its number of arrays, its sizes and the time in one line."""
        nbytes = stored = 0
        with self.open_copy() as tree:
            for copy in map(tree.open, tree.names):
                nbytes += copy.nbytes
                stored += copy.stored() or 0
        arrays = count_text(self.narrays - self._nfailed, "array")
        ratio = f"{nbytes / stored:.2f}" if stored else "none"
        return f"{arrays} of {size(nbytes)} in {size(stored)}, ratio {ratio}, {self.seconds:.2f} s"


def convert_to(
    src: Url,
    dst: Url,
    *,
    src_format: str | Format | None = None,
    dst_format: str | Format | None = None,
    chunks: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    access: Access | None = None,
    cparams: AnyCParams = None,
    layout: str = "auto",
    overwrite: bool = False,
    verify: bool = False,
    progress: bool = False,
    follow_external: bool = False,
    at: str | None = None,
    snapshots: bool = True,
    src_options: Storage = None,
    dst_options: Storage = None,
    **options: Any,
) -> Conversion:
    """Convert like `convert`, and return the outcome. If one array cannot be copied, the others still are."""
    start = time.perf_counter()
    from_format, src_url = find(src, src_format, src_options, exists=True, at=at)
    if follow_external and from_format is HDF5:
        from_format = FOLLOWING
    to_format, dst_url = find(dst, dst_format, dst_options, exists=False)
    if overwrite and to_format.name == "zarr":
        _refuse_the_source(src_url, src_options, dst_url, dst_options)
    allowed = {
        "zarr": {"zarr_format"},
        "hdf5": {"compression", "other_attrs"},
        "blp": {"checksum", "offsets", "chunk_size", "max_app_chunks"},
    }
    if unknown := sorted(options.keys() - allowed.get(to_format.name, set())):
        raise TypeError(f"a destination of format {to_format.name} takes no {', '.join(unknown)}")
    wanted = Options(
        (),
        None,
        None if cparams is None else resolve_cparams(cparams),
        layout,
        overwrite,
        dst_options,
        options,
        (None if chunks is None else tuple(chunks), None if blocks is None else tuple(blocks)),
        snapshots,
        access=check_access(access),
    )
    # Fail before anything is read or written.
    if wanted.cparams is not None and wanted.cparams.allows_errors:
        _check_rounding(to_format, verify=verify)
    failed: dict[str, Exception] = {}
    with from_format.tree(src_url, src_options) as tree:
        names = tree.names
        if snapshots and tree.snapshots:
            # Only a whole group in a directory or prefix has a manifest, which can list snapshots.
            if to_format.name == "b2d" and not split_member(dst_url)[1]:
                wanted = wanted._replace(of_group=tuple(_open_snapshots(tree)))
            else:
                lost = count_text(len(tree.snapshots), "snapshot")
                warn(f"{redact_url(dst_url)}: the copy leaves out {lost} of the group")
        build = to_format.building
        # A group stays a group, even with a single array.
        if build is not None and names != ("",):
            failed = _convert_all(
                tree,
                to_format,
                build,
                dst_url,
                wanted,
                verify=verify,
                progress=progress,
            )
        else:
            _warn_of_lost_attributes(tree, to_format, dst_url)
            _convert_one(
                tree.only(src_url),
                to_format,
                dst_url,
                wanted,
                verify=verify,
                progress=progress,
            )
    seconds = time.perf_counter() - start
    return Conversion(partial(to_format.tree, dst_url, dst_options), len(names), seconds, failed)


def _open_snapshots(tree: Hierarchy) -> Iterator[Any]:
    """Open a group at its snapshots, and leave out those that another writer has dropped since they were listed."""
    for opened in tree.snapshots.values():
        with suppress(ConflictError):
            yield opened()


def _check_rounding(target: Format, *, verify: bool) -> None:
    """Raise an error if the destination cannot store rounded values, or if `verify` would compare them."""
    if target.name not in _ROUNDED:
        raise UnsupportedError(f"the format {target.name} cannot store values with errors, only {_ROUNDED} can")
    if verify:
        raise ValueError("verify=True compares exact values: omit it if the values may have errors")


def _refuse_the_source(
    src: str,
    src_options: Storage,
    dst: str,
    dst_options: Storage,
) -> None:
    """Raise ValueError if a Zarr store that cannot rename would overwrite the source during the copy."""
    source = open_store("/".join(split_member(src)), storage_options=src_options)
    target = open_store("/".join(split_member(dst)), storage_options=dst_options)
    one, two = (f"{store.url.rstrip('/')}/" for store in (source, target))
    if target.temporary("") is None and (one.startswith(two) or two.startswith(one)):
        raise ValueError(
            f"{target.url} cannot be replaced while {source.url} is read, because one contains the other: "
            "convert to another place"
        )


def _convert_one(
    source: ArraySource,
    target: Format,
    url: str,
    wanted: Options,
    *,
    verify: bool,
    progress: bool,
) -> None:
    """Convert the single array of a source."""
    source = storable(source, target.keeps)
    settings = _settings(source, wanted)
    target.check(source, settings)
    _warn_of_loss(source, target, url, snapshots=settings.snapshots)
    regions = _regions(source, target, settings)
    copies_frame = source.is_array and target.name == "b2nd"
    settings = settings._replace(progress=progress and copies_frame)
    with track(source.nbytes, target.verb, progress and not copies_frame) as bar:
        target.write(url, source, _pieces(source, regions, bar.advance), settings)
    if verify:
        with target.open(url, wanted.storage_options) as copy, track(source.nbytes, "verifying", progress) as bar:
            _compare(source, storable(copy, target.keeps), regions, url, bar.advance)


def _convert_all(
    tree: Hierarchy,
    target: Format,
    build: Build,
    url: str,
    wanted: Options,
    *,
    verify: bool,
    progress: bool,
) -> dict[str, Exception]:
    """Convert all arrays of a tree, and return the errors by name; if all arrays fail, raise the first error."""
    if tree.error is not None and not tree.names:
        raise tree.error
    failed: dict[str, Exception] = {} if tree.error is None else {"": tree.error}

    def each(
        verb: Callable[[str, ArraySource, Options], None],
        names: Iterable[str],
        label: str,
    ) -> None:
        with track(len(tree.names), label, progress, unit="items") as bar:
            for name in names:
                try:
                    source = storable(tree.open(name), target.keeps)
                    verb(name, source, _settings(source, wanted))
                except Exception as error:  # noqa: BLE001 - other libraries raise errors of many kinds
                    failed[name] = error
                bar.advance()

    def copy(name: str, source: ArraySource, settings: Options) -> None:
        target.check(source, settings)
        _warn_of_loss(source, target, f"{url}/{name}", snapshots=settings.snapshots)
        building.put(name, source, _pieces(source, _regions(source, target, settings)), settings)

    def compare(name: str, source: ArraySource, settings: Options) -> None:
        _compare(
            source,
            storable(copies.open(name), target.keeps),
            _regions(source, target, settings),
            f"{url}/{name}",
        )

    implied = _implied_groups(tree, url)
    groups = {"": dict} | dict(tree.attrs)
    with build(url, wanted) as building:
        for name, read_attrs in groups.items():
            try:
                attrs = read_attrs()
                if attrs or name not in implied:
                    building.group(name, attrs)
            except Exception as error:  # noqa: BLE001 - as above
                failed[f"{name}/"] = error
        each(copy, tree.names, "arrays converted")
        if tree.names and all(name in failed for name in tree.names):
            raise failed[tree.names[0]]
    if verify:
        with target.tree(url, wanted.storage_options) as copies:
            each(compare, [name for name in tree.names if name not in failed], "arrays verified")
    return failed


def _implied_groups(tree: Hierarchy, url: str) -> set[str]:
    """Return the groups that exist without attributes: they have members, or are the whole destination."""
    groups: set[str] = set()
    for name in filter(None, (*tree.names, *tree.attrs)):
        groups.update(("", *accumulate(name.split("/")[:-1], "{}/{}".format)))
    if not split_member(url)[1]:
        groups.add("")
    return groups


def _settings(source: ArraySource, wanted: Options) -> Options:
    """Return the options with chunks and blocks for a source: requested by the user, taken from the source, or new."""
    chunks, inner = wanted.given
    if chunks is None and source.chunks is not None and wanted.access is None:
        nbytes = math.prod(source.chunks) * source.item_nbytes
        if (0 not in source.shape and _FEWEST <= nbytes <= _MOST) or source.chunks == source.shape:
            chunks = source.chunks
            inner = source.blocks if inner is None else inner
    if source.dtype.kind == "T":
        asked = ArrayOptions(chunks, inner, wanted.access)
        layout = choose_layout(source.shape, source.dtype, asked, source.text_nbytes)
        return wanted._replace(chunks=layout.chunks, blocks=layout.blocks)
    cut, within = automatic(
        source.shape,
        source.dtype.itemsize,
        chunks=chunks,
        blocks=inner,
        access=wanted.access,
    )
    return wanted._replace(chunks=cut, blocks=within)


def _warn_of_loss(
    source: ArraySource,
    target: Format,
    url: str,
    *,
    snapshots: bool,
) -> None:
    """Warn of properties of a source that the destination's format does not support."""
    has = {
        "attrs": bool(source.attrs),
        "dims": source.dims is not None and any(source.dims),
        "fill value": source.is_filled,
        "snapshots": snapshots and source.has_snapshots,
    }
    lost = [name for name, there in has.items() if there and name not in target.keeps]
    if lost:
        warn(f"{redact_url(url)}: a .{target.name} file has no place for {' and '.join(lost)}")


def _warn_of_lost_attributes(tree: Hierarchy, target: Format, url: str) -> None:
    """Warn that the attributes of groups are lost, if only the single array of a tree is copied."""
    if tree.names == ("",) or len(tree.names) != 1:
        return
    lost = []
    for group, attrs in tree.attrs.items():
        names = ", ".join(sorted(attrs()))
        if names:
            lost.append(f"{names} of {f'/{group}'!r}")
    if lost:
        listed = "; ".join(lost)
        warn(f"{redact_url(url)}: a .{target.name} file has no place for the attributes of groups: {listed}")


def _regions(source: ArraySource, target: Format, settings: Options) -> list[Box]:
    """Divide an array into boxes to read and write at once: whole chunks, if possible of the destination."""
    most = _BUDGET // max(1, source.item_nbytes)
    if target.sequential:
        # Small pieces stay in the processor's cache. But reading part of a chunk decodes the whole chunk, so these
        # pieces are larger.
        return list(boxes(source.shape, most if source.chunks else most // 8))
    # A .npy file has no chunks, so use the chunks of the source.
    chunks = settings.chunks
    if target.name == "npy" and source.chunks:
        chunks = source.chunks
    return list(boxes(source.shape, most, chunks))


def _pieces(
    source: ArraySource,
    regions: list[Box],
    advance: Callable[[int], object] = id,
) -> Iterator[Piece]:
    for number, box in enumerate(regions):
        values = np.asarray(source.read(box), source.dtype)
        if not number:
            warn_of_waste(values, source.shape, source.dtype)
        yield box, values
        advance(values.nbytes)


def _compare(
    source: ArraySource,
    copy: ArraySource,
    regions: list[Box],
    url: str,
    advance: Callable[[int], object] = id,
) -> None:
    # In Zarr 3 the byte order belongs to the storage, not to the type. In HDF5 text has a variable length.
    is_text = {source.dtype.kind, copy.dtype.kind} <= {"T", "U"}
    same_type = is_text or source.dtype.newbyteorder("=") == copy.dtype.newbyteorder("=")
    if source.shape != copy.shape or not same_type:
        raise B2ArrayError(
            f"{redact_url(url)} differs from its source: expected shape {source.shape} and type {source.dtype}, "
            f"found {copy.shape} and {copy.dtype}"
        )
    for box in regions:
        values = np.asarray(source.read(box))
        if not _same(values, np.asarray(copy.read(box), values.dtype)):
            where = ", ".join(f"{i.start}:{i.stop}" for i in box)
            raise B2ArrayError(f"{redact_url(url)} differs from its source in [{where}]")
        advance(values.nbytes)


def _same(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> bool:
    """Return whether items have equal bytes, apart from the padding between fields."""
    if x.dtype.names is not None:
        return all(_same(x[name], y[name]) for name in x.dtype.names)
    if x.dtype.char in "gG":
        return bool(np.array_equal(x, y, equal_nan=True))
    if x.dtype.kind == "T":
        return x.shape == y.shape and repr(x.tolist()) == repr(y.tolist())
    return x.shape == y.shape and x.tobytes() == y.tobytes()


def is_array(url: str, storage_options: Storage) -> bool:
    """Return whether a file is an array in a known format, by its ending or its first bytes."""
    kind, address = find(url, None, storage_options, exists=True)
    if kind.name != "b2nd" or address.rstrip("/").endswith(kind.suffixes):
        return True
    try:
        array_at(url, storage_options=storage_options).close()
    except FormatError:
        return False
    return True


def save_intact(
    data: Any,
    dst: str,
    *,
    overwrite: bool,
    storage_options: Storage,
) -> None:
    """Write the intact part of a damaged Bloscpack file: an array in any format, and bytes as a plain file."""
    with tempfile.TemporaryDirectory(prefix="b2array-") as directory:
        path, plain = f"{directory}/intact.npy", isinstance(data, bytes)
        np.save(path, np.frombuffer(data, np.uint8) if plain else data)
        kind = BYTES if plain else None
        convert_to(path, dst, dst_format=kind, overwrite=overwrite, dst_options=storage_options)
