"""`find`: finds the format that a path or URL names, and the member of a group, an HDF5 file or a Zarr hierarchy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from b2array.catalog.group_places import group_of
from b2array.catalog.manifest import EMBEDDED, MANIFEST, SUFFIXES
from b2array.errors import UnsupportedError
from b2array.exchange.formats import B2ND, BLP, NPY, Format, Hierarchy, Storage, source_of
from b2array.exchange.groups import B2D, B2E, B2Z, tree_of
from b2array.exchange.hdf5 import HDF5
from b2array.exchange.netcdf3 import MAGICS, NETCDF3
from b2array.exchange.zarr import ZARR, ZARR_ZIP
from b2array.format import foreign
from b2array.frame.source import FRAME_NAME
from b2array.group import addressing, whole
from b2array.group.addressing import split_member
from b2array.group.archive import names_in
from b2array.group.group import Group
from b2array.group.listed_group import group_at
from b2array.store.base import Head, Store
from b2array.store.open import open_store, with_home
from b2array.store.secrets import redact_url

__all__ = ["FORMATS", "by_ending", "find", "require_frames"]

FORMATS = {each.name: each for each in (B2ND, B2D, B2Z, B2E, NPY, ZARR, HDF5, NETCDF3, BLP)}

_ENDINGS = "|".join(suffix[1:] for each in FORMATS.values() if each.building for suffix in each.suffixes)
_CONTAINER = re.compile(rf"(.*?\.(?:{_ENDINGS}))/+([^?#]+)", re.IGNORECASE | re.DOTALL)
_MEMBER_OF_ZIP = re.compile(r"(.*?\.zip)(?:/+|#)([^?#]+)", re.IGNORECASE | re.DOTALL)
_FILES = (B2Z, B2E, HDF5)


def find(
    url: str | os.PathLike[str],
    name: str | Format | None,
    storage_options: Storage,
    *,
    exists: bool,
    at: str | None = None,
) -> tuple[Format, str]:
    """Find the format of a file, and return it with the URL of the file and the member after ``#``.

    The URL is, for example, ``results.h5#run/pressure``. The format is the one called `name`, or follows from the
    ending of the URL, or from the contents of the file. The user may name a member after ``#``, or by a path below its
    group, with or without the ending of its file. With `at`, the format opens the snapshot of this name.
    """
    zipped = _find_zipped(url, storage_options) if exists and name is None else None
    kind, address = zipped or _find(url, name, storage_options, exists=exists)
    if kind is B2D:
        address = _of_innermost(address, storage_options)
    return (kind, address) if at is None else (_at_snapshot(kind, address, at), address)


def _find(
    url: str | os.PathLike[str],
    name: str | Format | None,
    storage_options: Storage,
    *,
    exists: bool,
) -> tuple[Format, str]:
    text = with_home(os.fspath(url))
    if isinstance(name, Format):
        return name, text
    if name is not None and name not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
    if name is not None:
        return FORMATS[name], by_ending(text)[1] if FORMATS[name].building else text
    kind, text = by_ending(text)
    if kind is HDF5 and exists and _is_netcdf3(text, storage_options):
        return NETCDF3, text
    # A local path that ends with .b2nd may name a member, whose file does not exist.
    if kind is not None and (kind.name != "b2nd" or not exists or "://" in text or os.path.lexists(text)):
        return kind, text
    if exists:
        store = open_store(text, storage_options=storage_options)
        try:
            return _sniff(store), text
        except FileNotFoundError:
            member = _find_member(text, storage_options)
            if member is None:
                raise
            return member
    suffixes = " ".join(suffix for each in FORMATS.values() for suffix in each.suffixes)
    raise ValueError(f"{redact_url(text)} does not have the ending of a known format; known endings are {suffixes}")


def _find_zipped(url: str | os.PathLike[str], storage_options: Storage) -> tuple[Format, str] | None:
    """Find the member of a zip archive of Zarr that a path or the part after "#" names, or return None."""
    match = _MEMBER_OF_ZIP.fullmatch(with_home(os.fspath(url)))
    if match is None:
        return None
    store = open_store(match[1], storage_options=storage_options)
    (head,) = store.head([""], 4)
    if isinstance(head, Exception):
        return None
    is_zip = bytes(head.data).startswith(B2Z.magics)
    if not is_zip or not _has_zarr(store):
        return None
    member = match[2].rstrip("/")
    return ZARR_ZIP, f"{match[1]}#{member}"


def _has_zarr(store: Store) -> bool:
    """Return whether a zip archive contains an array or a group of Zarr."""
    names = names_in(store)
    return not names.isdisjoint(foreign.ZARR)


def _of_innermost(address: str, storage_options: Storage) -> str:
    """Return the URL of a member of a group, by the innermost separate group that it leads through."""
    outer, name = split_member(address)
    if not name or "::" in outer or "?" in outer or not open_store(outer, storage_options=storage_options).can.lists:
        return address
    place = group_of(f"{outer}/{name}", storage_options)
    if place is None or not place.group.startswith(f"{outer}/"):
        return address
    return f"{place.group}#{place.name}" if place.name else place.group


def _is_netcdf3(url: str, storage_options: Storage) -> bool:
    """Return whether a file that ends with ``.nc`` or ``.nc4`` is netCDF-3, and not netCDF-4."""
    address, _ = split_member(url)
    if not _path_of(address).endswith((".nc", ".nc4")):
        return False
    store = open_store(address, storage_options=storage_options)
    (head,) = store.head([""], 4)
    return not isinstance(head, Exception) and bytes(head.data).startswith(MAGICS)


def _at_snapshot(kind: Format, url: str, at: str) -> Format:
    require_frames(kind, url)
    return kind._replace(tree=partial(_tree_at, at))


def require_frames(kind: Format, url: str) -> None:
    """Raise UnsupportedError for a format that has no snapshots."""
    if kind not in (B2ND, B2D, B2Z):
        raise UnsupportedError(f"{redact_url(url)} is of the format {kind.name}, which has no snapshots")


@contextmanager
def _tree_at(at: str, url: str, storage_options: Storage) -> Iterator[Hierarchy]:
    with addressing.open(url, at=at, storage_options=storage_options) as opened:
        if isinstance(opened, Group):
            yield tree_of(opened._home, opened._below())
        else:
            source = source_of(opened._handle)
            yield Hierarchy(("",), lambda _: source)


def by_ending(url: str) -> tuple[Format | None, str]:
    """Return the format by the ending of a URL, or None, and the URL with ``#`` before the name of a member."""
    address, name = split_member(url)
    kind = _by_ending(address)
    if name:
        # The name of a new local file may have a "#".
        if kind is None and not os.path.lexists(address):
            of_file = _by_ending(name)
            if of_file is not None and not of_file.building and (of_file.name != "b2nd" or "://" not in url):
                return of_file, url
        return (B2D, f"{address}#{name}") if kind is None else (kind, url)
    match = _CONTAINER.fullmatch(url)
    if match is None:
        return kind, url
    kind = _by_ending(match[1])
    # A directory may have the ending of a file.
    if kind in _FILES and Path(match[1]).is_dir():
        return _by_ending(url), url
    return kind, f"{match[1]}#{match[2].rstrip('/')}"


def _path_of(url: str) -> str:
    """Return the path of a URL, or of the first URL in a chain, in lower case."""
    first = redact_url(url).partition("::")[0]
    return first.partition("?")[0].lower()


def _by_ending(url: str) -> Format | None:
    path = _path_of(url).rstrip("/\\")
    for each in FORMATS.values():
        if path.endswith(each.suffixes):
            return each
    return None


_MARKS = {
    FRAME_NAME: B2ND,
    MANIFEST: B2D,
    EMBEDDED: B2D,
    "zarr.json": ZARR,
    ".zarray": ZARR,
    ".zgroup": ZARR,
}
"""The formats of directories, by a file that only a directory of this format has."""


def _sniff(store: Store) -> Format:
    """Return the format of a file or directory by its contents; a directory without a mark may be a group."""
    head, *marks = store.head(["", *_MARKS], 16)
    for mark, kind in zip(marks, _MARKS.values(), strict=True):
        if not isinstance(mark, Exception):
            return kind
    if isinstance(head, IsADirectoryError):
        return B2D
    if isinstance(head, Exception):
        raise head
    start = bytes(head.data)
    for each in FORMATS.values():
        if start.startswith(each.magics):
            if each is B2Z and _has_zarr(store):
                return ZARR_ZIP
            return each
    # Read anything else as a frame: the error then describes the file.
    return B2ND


def _find_member(url: str, storage_options: Storage) -> tuple[Format, str] | None:
    """Find the frame, the group or the member that a path without an ending means, or return None."""
    text = url.rstrip("/")
    for suffix in SUFFIXES if "?" not in url and "::" not in url else ():
        store = open_store(text + suffix, storage_options=storage_options)
        heads = store.head(["", FRAME_NAME], 16)
        if any(isinstance(each, Head) for each in heads):
            return B2ND, text + suffix
    if "://" in text and whole.exists(group_at(text, storage_options or {})):
        return B2D, text
    place = group_of(url, storage_options, (*B2Z.magics, *HDF5.magics))
    if place is None:
        return None
    store = open_store(place.group, storage_options=storage_options)
    return _sniff(store), f"{place.group}#{place.name}"
