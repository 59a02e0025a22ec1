"""`open`: finds out what a URL names, an array, a super-chunk or a group, and which groups it leads through."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

import numpy.typing as npt

from b2array.array import creation, drafts
from b2array.array.array import NDArray
from b2array.array.drafts import ArrayOptions, MemberKeywords, Shape, Url, takes
from b2array.array.objects import Items
from b2array.array.schunk import SChunk
from b2array.array.snapshots import SnapshotInfo
from b2array.array.tensors import face
from b2array.array.times import At, name_of
from b2array.commit.cursor import Following
from b2array.commit.handle import Handle, Mode
from b2array.errors import FormatError, ReadOnlyError, UnsupportedError
from b2array.frame import kept, snapshot
from b2array.frame.manifest import ARRAY, SUFFIXES
from b2array.frame.places import GROUP, ZIP, Place, Storage, cut_path, group_of, strip_suffix
from b2array.frame.snapshot import Snapshot, ledger_in
from b2array.group import embedded
from b2array.group.archive import changed_as_a_whole
from b2array.group.group import AnyMode, Group, check_mode, in_embed_file, open_group
from b2array.group.listed import ListedGroup, group_at
from b2array.group.making import make_member
from b2array.group.tables import Table, is_table
from b2array.group.unpacked import is_place
from b2array.store.base import Head, Store
from b2array.store.open import address_of, cut, open_store
from b2array.store.open_file import BinaryFile, is_open_file

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["listed_member", "open", "open_array", "split_member"]

_LISTED = 8
_GROUP = ".b2d"
_OF_BUCKETS = re.compile(r"(?:.*::)?(?:https?|s3a?|gc?s|az|abfss?)://", re.IGNORECASE)
"""What comes before the name of a bucket, a container or a server: no ending makes it that of a file."""


@overload
def open(
    url: Url,
    mode: AnyMode = "r",
    *,
    offset: int = 0,
    follow: bool = False,
    at: At = None,
    shape: Shape,
    dtype: npt.DTypeLike = float,
    storage_options: Storage = None,
    fs: AbstractFileSystem | None = None,
    **options: Unpack[MemberKeywords],
) -> NDArray: ...


@overload
def open(
    url: Url | BinaryFile,
    mode: AnyMode = "r",
    *,
    offset: int = 0,
    follow: bool = False,
    at: At = None,
    shape: Shape | None = None,
    dtype: npt.DTypeLike = float,
    storage_options: Storage = None,
    fs: AbstractFileSystem | None = None,
    **options: Unpack[MemberKeywords],
) -> Any: ...


@takes(MemberKeywords)
def open(
    url: Url | BinaryFile,
    mode: AnyMode = "r",
    *,
    offset: int = 0,
    follow: bool = False,
    at: At = None,
    shape: Shape | None = None,
    dtype: npt.DTypeLike = float,
    storage_options: Storage = None,
    fs: AbstractFileSystem | None = None,
    **options: Unpack[MemberKeywords],
) -> Any:
    """Open whatever is there: an array, a group, or a super-chunk.

    `open_array`, `open_group` and `open_schunk` open one of them and nothing else: then a type checker knows which.

    Parameters
    ----------
    url : str, os.PathLike or binary file
        A file, a directory, or what fsspec understands; also an open file of bytes that can seek, or what `fsspec.open`
        returns, which must stay open and can only be read. A member of a group is a path below it, with or without the
        ending of its file: ``run.b2d/air/temperature``, ``run.b2z/air/temperature`` or ``run.b2z#air/temperature``.
    mode : {"r", "r+", "a", "w", "w-", "x"}
        "r": read; "r+": read and change; "a": the same, and make what is not there; "w": make, and replace what is
        there; "w-" and "x": make where nothing is. What is made is an array if there is a `shape`, else a group.
    offset : int, default 0
        Where a frame begins in its file, in bytes.
    follow : bool, default False
        Whether the array or group shows what others commit, without `refresh`. Then each use of it looks at the store
        first.
    at : str, datetime.datetime or datetime.date, optional
        The name of a snapshot, which can only be read; see `NDArray.snapshot` and `Group.snapshot`. A moment stands for
        the latest snapshot until then, also as text (``at="2026-11-26"``), if no snapshot has that name. A date alone
        is the end of the day; without a time zone, it is in UTC.
    shape, dtype, chunks, ..., meta
        Of a new array; see `create`.
    storage_options : mapping, optional
        For fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Returns
    -------
    NDArray, Group or SChunk
        What python-blosc2's ``save_array`` and ``save_tensor`` wrote is read into memory, and can only be read.

    Raises
    ------
    FileNotFoundError
        There is nothing.
    FileExistsError
        There is something already.
    KeyError
        There is no such snapshot.
    FormatError
        Its kind is unknown.
    UnsupportedError
        The frame is of an unsupported kind, or its chunks do not hold the array's values.
    ReadOnlyError
        It can only be read.

    Examples
    --------
    >>> a = open("memory://opened.b2d/x", "w", shape=3, dtype="i2")
    >>> open("memory://opened.b2d/x").shape
    (3,)
    """
    check_mode(mode, at, follow=follow)
    name = name_of(
        at,
        lambda: open(url, offset=offset, storage_options=storage_options, fs=fs),
        lambda: () if offset else _snapshots_around(url, storage_options, fs),
    )
    if options and shape is None:
        raise TypeError(f"open() takes {', '.join(sorted(options))} for new arrays only, which have a shape")
    if offset and mode != "r":
        raise ReadOnlyError("a frame inside a larger file can only be read")
    if is_open_file(url):
        store = open_store(url, storage_options=storage_options, fs=fs)
        return _in_file(url, mode, offset, store, follow=follow, at=name)
    url, storage_options = address_of(cast(Url, url), storage_options, fs)
    if mode in ("w", "w-", "x"):
        return _made(url, mode, shape, dtype, storage_options, options)
    existing: Mode = "r" if mode == "r" else "r+"
    member = None if offset or name is not None else listed_member(url, existing, storage_options, follow=follow)
    if member is not None:
        return _as_table(member)
    try:
        return _existing(url, existing, offset, storage_options, follow=follow, name=name)
    except FileNotFoundError:
        if mode != "a":
            raise
        return _made(url, mode, shape, dtype, storage_options, options)


def _existing(url: Url, mode: Mode, offset: int, storage_options: Storage, *, follow: bool, name: str | None) -> Any:
    """Open what is at a URL, or where it leads in a group, at the snapshot of a name if there is one.

    Raises what `open` raises.
    """
    try:
        held = snapshot.load(open_store(url, storage_options=storage_options), start=offset, bare=name is not None)
    except (FileNotFoundError, FormatError) as error:
        foreign = isinstance(error, FormatError)
        if offset:
            raise
        found = _in_group(url, mode, storage_options, foreign=foreign, follow=follow, at=name)
        if found is None:
            raise
        return _as_table(found)
    if name is None and not offset and embedded.holds_members(held.frame):
        return in_embed_file(os.fspath(url), mode, follow=follow, storage_options=storage_options or {})
    found = None if name is None or offset else _of_group(url, held, storage_options, name)
    return _shown(held, mode, follow=follow, at=name) if found is None else found


def _in_file(
    file: BinaryFile, mode: AnyMode, offset: int, store: Store, *, follow: bool, at: str | None
) -> NDArray | SChunk | Items | Group:
    if mode != "r":
        raise ReadOnlyError(f"{type(file).__name__}: an open file can only be read; to change it, open it by its name")
    try:
        held = snapshot.load(store, start=offset, bare=at is not None)
    except FormatError:
        (head,) = store.head([""], 16)
        if offset or isinstance(head, Exception) or bytes(head.data[:4]) not in ZIP:
            raise
        return open_group(file, follow=follow, at=at)
    return _shown(held, mode, follow=follow, at=at)


def _shown(held: Snapshot, mode: Mode, *, follow: bool, at: str | None) -> NDArray | SChunk | Items:
    held = held if at is None else kept.load_intact_state(held, at)
    handle = Handle(Following(held) if follow else held, mode)
    return NDArray(handle) if held.state.layout is not None else face(handle)


@takes(MemberKeywords)
def open_array(
    url: Url | BinaryFile,
    mode: AnyMode = "r",
    *,
    offset: int = 0,
    follow: bool = False,
    at: At = None,
    shape: Shape | None = None,
    dtype: npt.DTypeLike = float,
    storage_options: Storage = None,
    fs: AbstractFileSystem | None = None,
    **options: Unpack[MemberKeywords],
) -> NDArray:
    """Open an array, or make one; parameters as for `open`, which opens other things, too.

    Raises
    ------
    TypeError
        There is a group or a super-chunk; or a new array has no shape.
    FileNotFoundError, FileExistsError, FormatError, UnsupportedError, ReadOnlyError
        As for `open`.

    Examples
    --------
    >>> a = open_array("memory://alone.b2nd", "w", shape=(3, 4), chunks=(1, 4))
    >>> open_array("memory://alone.b2nd").chunks
    (1, 4)
    """
    if shape is None and mode in ("w", "w-", "x"):
        raise TypeError(f"open_array() makes a new array for mode {mode!r}, which needs a shape")
    if shape is None and mode == "a":
        mode = "r+"  # `open` would make a group
    found = open(
        url,
        mode,
        offset=offset,
        follow=follow,
        at=at,
        shape=shape,
        dtype=dtype,
        storage_options=storage_options,
        fs=fs,
        **options,
    )
    if not isinstance(found, NDArray):
        other = "open_group" if isinstance(found, Group) else "open_schunk"
        raise TypeError(f"expected an array, found {found!r}; b2array.{other} opens it")
    return found


def _made(
    url: Url,
    mode: AnyMode,
    shape: Shape | None,
    dtype: npt.DTypeLike,
    storage_options: Storage,
    options: MemberKeywords,
) -> NDArray | Group:
    overwrite = mode == "w"
    if shape is not None:
        place = group_of(url, storage_options)
        if place is None or not place.name:
            return creation.create(url, shape, dtype, overwrite=overwrite, storage_options=storage_options, **options)
        wanted = ArrayOptions(**options, overwrite=overwrite, storage_options=storage_options)
        return NDArray(
            make_member(place, wanted, ARRAY, lambda at, final: drafts.draft_filled(at, shape, dtype, final))
        )
    if os.fsdecode(url).endswith(SUFFIXES):
        where = open_store(url, storage_options=storage_options).url
        raise ValueError(f"{where}: mode {mode!r} makes a new array only if it is told its shape=")
    return open_group(url, "w" if overwrite else "x", storage_options=storage_options)


def _as_table(found: Any) -> Any:
    """Return the table of python-blosc2 that a group opened for reading is; other things as they are."""
    if isinstance(found, Group) and found.mode == "r" and is_table(found._home, found._prefix):
        return Table(found._home, found._prefix)
    return found


# Groups.


def split_member(url: str) -> tuple[str, str]:
    """Split a URL into that of a file or directory, and the name of a member after ``#``, or an empty one.

    In the path of a local file or directory that exists, "#" is a letter like others.

    Examples
    --------
    >>> split_member("run.h5#/air/temperature"), split_member("run.h5")
    (('run.h5', 'air/temperature'), ('run.h5', ''))
    """
    ends = [found.start() for found in re.finditer(r"[#/\\]|$", url)]
    there = max((end for end in ends if os.path.lexists(url[:end])), default=0)
    address, _, name = url[there:].partition("#")
    return url[:there] + address, name.strip("/")


def _of_group(url: Url, held: Snapshot, storage_options: Storage, at: str) -> Any:
    """Open what was in the place of a frame at a snapshot of its group; None if the frame has that snapshot itself."""
    place = None if ledger_in(held).find(at) is not None else group_of(url, storage_options)
    if place is not None and place.name:
        with suppress(KeyError):
            return open_group(place.group, at=at, storage_options=storage_options)[place.name]
    return None


def _snapshots_around(
    url: Url | BinaryFile, storage_options: Storage, fs: AbstractFileSystem | None
) -> Sequence[SnapshotInfo]:
    """Return the snapshots of the group that a URL leads into; none for the group itself."""
    if is_open_file(url):
        return ()
    address, options = address_of(cast(Url, url), storage_options, fs)
    place = group_of(address, options)
    return open_group(place.group, storage_options=options).snapshots if place is not None and place.name else ()


def _part_at(place: Place, storage_options: Storage, at: str) -> Any:
    """Open a member of a group at a snapshot of the group, or at one of its own."""
    missing: KeyError | None = None
    try:
        then = open_group(place.group, at=at, storage_options=storage_options)
    except KeyError as error:
        missing = error
    else:
        if place.name in then:
            return then[place.name]
    found = _member(open_group(place.group, storage_options=storage_options), place.name)
    if not isinstance(found, Group):
        return face(Handle(kept.load_intact_state(found._handle.snapshot, at), "r"))
    raise missing or FileNotFoundError(f"{place.group} had no group {place.name!r} at the snapshot {at!r}")


def _member(group: Group, name: str) -> Any:
    try:
        return group[name]
    except KeyError:
        names = [*group]
        listed = ", ".join(names[:_LISTED]) + ", ..." * (len(names) > _LISTED)
        raise FileNotFoundError(f"{group.url} has no member {name!r}; it has {listed or 'no members'}") from None


def listed_member(url: Url, mode: Mode, storage_options: Storage, *, follow: bool) -> Any:
    """Open a member of a group in an object store, if the URL shows where the group is; None otherwise.

    That takes one request for the manifest, and one for the member.
    """
    front, parts, back = cut(os.fsdecode(url))
    names = parts.split("/")
    ends = [n for n, name in enumerate(names[:-1], 1) if name.endswith(_GROUP)]
    if "://" not in front or not ends:
        return None
    home = group_at(f"{front}{'/'.join(names[: ends[-1]])}{back}", storage_options or {})
    inner = "/".join(names[ends[-1] :])
    name = strip_suffix(inner)
    # Servers that can only be read are asked for all places at once, below.
    if not isinstance(home, ListedGroup) or not home.store.can.write:
        return None
    if not home.has_manifest() or name not in home.members():
        return None
    if inner not in (name, home.members()[name]):  # another frame next to the member
        return None
    return Group(home, "", mode, follow=follow)[name]


def _in_group(url: Url, mode: Mode, storage_options: Storage, *, foreign: bool, follow: bool, at: str | None) -> Any:
    """Open a group or a member of one; None if the URL leads to neither. A `foreign` file may be an archive."""
    place = group_of(url, storage_options, is_missing=not foreign)
    if place is None:
        return None if foreign else _unmarked(url, mode, storage_options, follow=follow, at=at)
    if foreign and place.name and "#" not in os.fsdecode(url):
        return None
    if place.name and mode != "r" and is_place(place.group, storage_options or {}):
        raise changed_as_a_whole(place)
    if at is not None and place.name:
        return _part_at(place, storage_options, at)
    group = open_group(place.group, mode, follow=follow, at=at, storage_options=storage_options)
    if foreign and not len(group) and not group.url.endswith(".b2z"):
        return None  # other programs make zip archives, too
    return _member(group, place.name) if place.name else group


def _is_there(store: Store, parts: Sequence[str]) -> bool:
    """Ask with one request for a file that was named without its ending."""
    is_of_group = any(part.endswith(GROUP) for part in parts)
    return not (is_of_group or parts[-1].endswith(SUFFIXES)) and isinstance(store.head([""], 1)[0], Head)


def _unmarked(url: Url, mode: Mode, storage_options: Storage, *, follow: bool, at: str | None) -> Any:
    """Open a frame that is named without the ending of its file, or a directory of arrays that nothing marks."""
    front, parts, back = cut_path(url, storage_options)
    is_bucket = len(parts) < 2 and _OF_BUCKETS.fullmatch(front) is not None
    for suffix in () if is_bucket else SUFFIXES:
        store = open_store(f"{front}{'/'.join(parts)}{suffix}{back}", storage_options=storage_options)
        if not (store.can.lists or (suffix == ARRAY and _is_there(store, parts))):
            continue
        try:
            held = snapshot.load(store, bare=at is not None)
            return _shown(held, mode, follow=follow, at=at)
        except (FileNotFoundError, PermissionError):
            continue
    if not open_store(url, storage_options=storage_options).can.lists:
        return None  # without a manifest, nothing tells the members
    try:
        group = open_group(url, mode, follow=follow, at=at, storage_options=storage_options)
    except (FileNotFoundError, FormatError, UnsupportedError, PermissionError, ReadOnlyError) as error:
        if is_bucket and isinstance(error, FileNotFoundError):
            raise
        return None
    return group if len(group) else None
