"""`open`: opens the array, super-chunk or group that a URL names, alone or as a member of a group."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

import numpy.typing as npt

from b2array import config
from b2array.array import creation, drafts
from b2array.array.array import NDArray
from b2array.array.array_snapshots import SnapshotInfo
from b2array.array.at_times import At, name_of, open_found
from b2array.array.drafts import AnyPlace, ArrayOptions, MemberKeywords, Shape, Url, takes
from b2array.array.objects import Items
from b2array.array.schunk import SChunk
from b2array.array.tensors import face
from b2array.catalog import intact, owners
from b2array.catalog.group_places import GROUP, ZIP, Place, Storage, cut_path, group_of, strip_suffix
from b2array.catalog.manifest import ARRAY, SUFFIXES
from b2array.commit.cursor import Following
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle, Mode
from b2array.errors import FormatError, ReadOnlyError, UnsupportedError
from b2array.frame.kept_states import ledger_in
from b2array.frame.revision import Revision
from b2array.group import embedded
from b2array.group.archive import make_archive_error
from b2array.group.blosc2_tables import Table, is_table
from b2array.group.group import AnyMode, Group, check_mode, open_embed_file, open_group
from b2array.group.homes import GroupHome
from b2array.group.listed_group import group_at
from b2array.group.member_making import make_member
from b2array.group.unpacked import is_changeable_archive
from b2array.keywords import nearest
from b2array.store.base import MISSING, Head, Store
from b2array.store.open import address_of, cut, open_store
from b2array.store.open_file import BinaryFile, is_open_file

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["open", "open_array", "open_listed_member", "split_member"]

_LISTED = 8
_GROUP = ".b2d"
_OF_BUCKETS = re.compile(r"(?:.*::)?(?:https?|s3a?|gc?s|az|abfss?)://", re.IGNORECASE)
"""The part of a URL before the name of a bucket, a container or a server. No ending makes such a name a file."""


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
    """Open an array, a group or a super-chunk.

    `open_array`, `open_group` and `open_schunk` open only one of these kinds, so type checkers know the result.

    Parameters
    ----------
    url : str, os.PathLike or binary file
        A file, a directory, or a URL that fsspec understands. Also a seekable binary file, or a file from
        `fsspec.open`; it must stay open, and can only be read. The URL of a member is the URL of its group and a path,
        with or without the ending of the member's file: ``run.b2d/air/temperature``, ``run.b2z/air/temperature`` or
        ``run.b2z#air/temperature``.
    mode : {"r", "r+", "a", "w", "w-", "x"}
        "r": read; "r+": read and change; "a": like "r+", but make a missing array or group; "w": make an array or a
        group, and replace an existing one; "w-" and "x": make one, and refuse to replace anything. With a `shape`,
        these modes make an array, otherwise a group.
    offset : int, default 0
        The position of the frame in its file, in bytes.
    follow : bool, default False
        Whether the array or group shows the commits of other writers without `refresh`. Each use of it then checks the
        store first.
    at : str, datetime.datetime or datetime.date, optional
        The name of a snapshot, which is read-only; see `NDArray.snapshot` and `Group.snapshot`. A time selects the
        latest snapshot up to then. It may also be text (``at="2026-11-26"``), if no snapshot has that name. A date
        stands for the end of the day; times without a time zone are in UTC.
    shape, dtype, chunks, ..., meta
        Properties of a new array; see `create`.
    storage_options : mapping, optional
        Options for fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system; the URL is a path in it.

    Returns
    -------
    NDArray, Group or SChunk
        An array written by python-blosc2's ``save_array`` or ``save_tensor`` is read into memory, and is read-only.

    Raises
    ------
    FileNotFoundError
        Nothing exists at the URL.
    FileExistsError
        Something exists at the URL, and the mode does not replace it.
    KeyError
        No snapshot has this name.
    FormatError
        The URL names something of an unknown format.
    UnsupportedError
        The kind of frame is not supported, or its chunks do not hold the values of the array.
    ReadOnlyError
        The array or group can only be read.

    Examples
    --------
    >>> a = open("memory://opened.b2d/x", "w", shape=3, dtype="i2")
    >>> open("memory://opened.b2d/x").shape
    (3,)
    """
    check_mode(mode, at, follow=follow)
    again = partial(open, url, offset=offset, storage_options=storage_options, fs=fs)
    find = partial(name_of, at, again, lambda: () if offset else _snapshots_around(url, storage_options, fs))
    name = find()
    if options and shape is None:
        names = ", ".join(sorted(options))
        raise TypeError(f"open() takes {names} for new arrays only, which have a shape")
    if offset and mode != "r":
        raise ReadOnlyError("a frame inside a larger file can only be read")
    if name is not None and name != at:
        return open_found(name, find, lambda it: again(at=it))
    if is_open_file(url):
        store = open_store(url, storage_options=storage_options, fs=fs)
        return _open_file(url, mode, offset, store, follow=follow, at=name)
    url, storage_options = address_of(cast(Url, url), storage_options, fs)
    if mode in ("w", "w-", "x"):
        return _make(url, mode, shape, dtype, storage_options, options)
    existing: Mode = "r" if mode == "r" else "r+"
    if not offset and name is None:
        member = open_listed_member(url, existing, storage_options, follow=follow)
        if member is None and mode == "r" and config.disk_cache is not None:
            member = _open_known_group(url, storage_options, follow=follow)
        if member is not None:
            return _as_table(member)
    try:
        return _open_existing(url, existing, offset, storage_options, follow=follow, name=name)
    except FileNotFoundError:
        if mode != "a":
            raise
        return _make(url, mode, shape, dtype, storage_options, options)


def _open_existing(
    url: Url,
    mode: Mode,
    offset: int,
    storage_options: Storage,
    *,
    follow: bool,
    name: str | None,
) -> Any:
    """Open the frame at a URL, or the group or member that the URL names; with a `name`, at this snapshot.

    A read-only group that python-blosc2 wrote as a table is returned as a `Table`. Raises the errors of `open`.
    """
    try:
        store = open_store(url, storage_options=storage_options)
        is_read = mode == "r"
        source = owners.load(
            store,
            start=offset,
            bare=name is not None,
            cached=is_read,
            needs_group=not is_read,
        )
    except (FileNotFoundError, FormatError) as error:
        foreign = isinstance(error, FormatError)
        if offset:
            raise
        member = _open_in_group(
            url,
            mode,
            storage_options,
            foreign=foreign,
            follow=follow,
            at=name,
        )
        if member is None:
            raise
        return _as_table(member)
    if offset:
        return _wrap(source, mode, follow=follow, at=name)
    if name is None and embedded.holds_members(source.frame):
        return open_embed_file(
            os.fspath(url),
            mode,
            follow=follow,
            storage_options=storage_options or {},
        )
    if name is not None:
        member = _open_in_snapshot_of_group(url, source, storage_options, name)
        if member is not None:
            return member
    return _wrap(source, mode, follow=follow, at=name)


def _open_file(
    file: BinaryFile,
    mode: AnyMode,
    offset: int,
    store: Store,
    *,
    follow: bool,
    at: str | None,
) -> NDArray | SChunk | Items | Group:
    """Open the frame or the archive in an open file, for reading; raise ReadOnlyError for any other mode."""
    if mode != "r":
        raise ReadOnlyError(f"{type(file).__name__}: an open file can only be read; to change it, open it by its name")
    try:
        source = owners.load(store, start=offset, bare=at is not None)
    except FormatError:
        # The file may be an archive, that is, a whole group.
        (head,) = store.head([""], 16)
        if offset or isinstance(head, Exception) or bytes(head.data[:4]) not in ZIP:
            raise
        return open_group(file, follow=follow, at=at)
    return _wrap(source, mode, follow=follow, at=at)


def _wrap(
    source: Revision,
    mode: Mode,
    *,
    follow: bool,
    at: str | None,
) -> NDArray | SChunk | Items:
    """Return the object for users that shows a state of a frame, or its state `at` a snapshot.

    The state at a snapshot is read and checked first. With `follow`, the object shows later commits as well.
    """
    if at is not None:
        source = intact.load_intact_state(source, at)
    cursor = Following(source) if follow else source
    handle = Handle(cursor, mode)
    return NDArray(handle) if source.state.layout is not None else face(handle)


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
    """Open an array, or make one. The parameters are the same as for `open`.

    Raises
    ------
    TypeError
        The URL names a group or a super-chunk, or a new array has no shape.
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
        # With "a" and without a shape, `open` would make a group.
        mode = "r+"
    array = open(
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
    if not isinstance(array, NDArray):
        other = "open_group" if isinstance(array, Group) else "open_schunk"
        raise TypeError(f"expected an array, found {array!r}; b2array.{other} opens it")
    return array


def _make(
    url: Url,
    mode: AnyMode,
    shape: Shape | None,
    dtype: npt.DTypeLike,
    storage_options: Storage,
    options: MemberKeywords,
) -> NDArray | Group:
    """Make an array of this shape, or a group if the user passes no shape; in a group, make a member of the group.

    Mode "w" replaces what exists at the URL; the other modes raise FileExistsError. Without a shape, a URL that ends
    like the file of an array or a super-chunk raises ValueError.
    """
    overwrite = mode == "w"
    if shape is not None:
        try:
            return _make_array(url, shape, dtype, storage_options, options, overwrite=overwrite)
        except FileExistsError as error:
            # `open` has modes, and no argument `overwrite`.
            raise FileExistsError(str(error).replace("overwrite=True", "mode='w'")) from None
    if os.fsdecode(url).endswith(SUFFIXES):
        where = open_store(url, storage_options=storage_options).url
        raise ValueError(f"{where}: to make a new array, mode {mode!r} needs its shape=")
    return open_group(url, "w" if overwrite else "x", storage_options=storage_options)


def _make_array(
    url: Url,
    shape: Shape,
    dtype: npt.DTypeLike,
    storage_options: Storage,
    options: MemberKeywords,
    *,
    overwrite: bool,
) -> NDArray:
    """Make an array, in a group as a member of the group."""
    place = group_of(url, storage_options)
    if place is None or not place.name:
        return creation.create(
            url,
            shape,
            dtype,
            overwrite=overwrite,
            storage_options=storage_options,
            **options,
        )
    wanted = ArrayOptions(**options, overwrite=overwrite, storage_options=storage_options)

    def new(at: AnyPlace, final: ArrayOptions) -> Draft:
        """Return a draft of the member, filled with its fill value."""
        return drafts.draft_filled(at, shape, dtype, final)

    return NDArray(make_member(place, wanted, ARRAY, new))


def _as_table(member: Any) -> Any:
    """Return a read-only group as a `Table` if python-blosc2 wrote it as one; return anything else unchanged.

    This may read the description of the table.
    """
    if isinstance(member, Group) and member.mode == "r" and is_table(member._home, member._prefix):
        return Table(member._home, member._prefix)
    return member


# Groups.


def split_member(url: str) -> tuple[str, str]:
    """Split a URL into the URL of a file or directory, and the name of a member after ``#``; without one, "".

    In the path of an existing local file or directory, "#" has no special meaning.

    Examples
    --------
    >>> split_member("run.h5#/air/temperature"), split_member("run.h5")
    (('run.h5', 'air/temperature'), ('run.h5', ''))
    """
    ends = [mark.start() for mark in re.finditer(r"[#/\\]|$", url)]
    existing = [end for end in ends if os.path.lexists(url[:end])]
    start = max(existing, default=0)
    address, _, name = url[start:].partition("#")
    return url[:start] + address, name.strip("/")


def _open_in_snapshot_of_group(
    url: Url,
    source: Revision,
    storage_options: Storage,
    at: str,
) -> Any:
    """Open the member at a URL as it was at a snapshot of its group.

    Return None if the frame itself, which is the `source`, has a snapshot of this name, if the URL does not lead into a
    group, or if the group had no such member at a snapshot of this name.
    """
    if ledger_in(source).find(at) is not None:
        return None
    place = group_of(url, storage_options)
    if place is None or not place.name:
        return None
    # If the group has no such snapshot or member, the caller reports the missing snapshot of the frame.
    with suppress(KeyError):
        return open_group(place.group, at=at, storage_options=storage_options)[place.name]
    return None


def _snapshots_around(
    url: Url | BinaryFile,
    storage_options: Storage,
    fs: AbstractFileSystem | None,
) -> Sequence[SnapshotInfo]:
    """Return the snapshots of the group around a URL; an empty tuple if the URL does not name a member.

    This reads the indexes of all members, to count the bytes of each snapshot.
    """
    if is_open_file(url):
        return ()
    address, options = address_of(cast(Url, url), storage_options, fs)
    place = group_of(address, options)
    if place is None or not place.name:
        return ()
    return open_group(place.group, storage_options=options).snapshots


def _open_in_group_at(place: Place, storage_options: Storage, at: str) -> Any:
    """Open a member, or a group inside another one, as it was at a snapshot.

    A snapshot of the outer group comes first. If no snapshot has this name, or if it does not have the member, open
    the member's own snapshot. Raises KeyError if neither exists, and FileNotFoundError if there is no such member or
    group.
    """
    missing: KeyError | None = None
    try:
        then = open_group(place.group, at=at, storage_options=storage_options)
    except KeyError as error:
        missing = error
    else:
        if place.name in then:
            return then[place.name]
    member = _get_member(open_group(place.group, storage_options=storage_options), place.name)
    if not isinstance(member, Group):
        source = intact.load_intact_state(member._handle.revision, at)
        return face(Handle(source, "r"))
    raise missing or FileNotFoundError(f"{place.group} had no group {place.name!r} at the snapshot {at!r}")


def _get_member(group: Group, name: str) -> Any:
    """Open a member of a group; for a missing member, raise FileNotFoundError that lists the existing members."""
    try:
        return group[name]
    except KeyError:
        names = [*group]
        listed = ", ".join(names[:_LISTED]) or "no members"
        more = ", ..." if len(names) > _LISTED else ""
        raise FileNotFoundError(
            f"{group.url} has no member {name!r}; it has {listed}{more}{nearest(name, group._list_names())}"
        ) from None


def open_listed_member(
    url: Url,
    mode: Mode,
    storage_options: Storage,
    *,
    follow: bool,
) -> Any:
    """Open a member of a group in an object store if the ending ``.b2d`` in the URL shows the group; otherwise None.

    This takes one request for the manifest, and one for the member. It also returns None if the manifest does not list
    the member at this URL. For a read-only server, it returns None if the URL ends like a file, or if the cache on disk
    does not know the group.
    """
    front, path, back = cut(os.fsdecode(url))
    names = path.split("/")
    ends = [n for n, name in enumerate(names[:-1], 1) if name.endswith(_GROUP)]
    if "://" not in front or not ends:
        return None
    outer = "/".join(names[: ends[-1]])
    inner = "/".join(names[ends[-1] :])
    home = group_at(f"{front}{outer}{back}", storage_options or {})
    if home.is_local:
        return None
    # For a read-only server, `open` requests all possible places in one wave instead.
    if not home.store.can.write and (inner.endswith(SUFFIXES) or not _is_known(home, url, storage_options)):
        return None
    name = strip_suffix(inner)
    if not home.look_for_manifest() or name not in home.members():
        return None
    # The URL may name the file of another frame, next to the member with the same name.
    if inner not in (name, home.members()[name]):
        return None
    return Group(home, "", mode, follow=follow)[name]


def _open_known_group(url: Url, storage_options: Storage, *, follow: bool) -> Group | None:
    """Open a group for reading if its URL ends with ``.b2d``, and the cache on disk has its manifest; otherwise None.

    This takes a request for an object with this URL, which would be opened instead, and one for the manifest.
    """
    front, path, _ = cut(os.fsdecode(url))
    if "://" not in front or not path.rstrip("/").endswith(_GROUP):
        return None
    home = group_at(os.fsdecode(url), storage_options or {})
    if not _is_known(home, url, storage_options):
        return None
    return Group(home, "", "r", follow=follow) if home.look_for_manifest() else None


def _is_known(home: GroupHome, url: Url, storage_options: Storage) -> bool:
    """Return whether the cache on disk has the manifest of a group, and nothing but a group may be at the URL.

    If the cache has the manifest, this may take a request for an object with this URL.
    """
    if not home.is_cached():
        return False
    store = open_store(url, storage_options=storage_options)
    if store.is_prefix:
        return True
    (head,) = store.head([""], 1)
    return isinstance(head, (*MISSING, IsADirectoryError))


def _open_in_group(
    url: Url,
    mode: Mode,
    storage_options: Storage,
    *,
    foreign: bool,
    follow: bool,
    at: str | None,
) -> Any:
    """Open a group or a member of a group; None if the URL names neither.

    With `foreign`, a file exists at the URL that is not a frame, but may be an archive. Raises FileNotFoundError if the
    group has no such member, and ReadOnlyError for changing a single member of an archive.
    """
    place = group_of(url, storage_options, is_missing=not foreign)
    if place is None:
        return None if foreign else _open_unmarked(url, mode, storage_options, follow=follow, at=at)
    if foreign and place.name and "#" not in os.fsdecode(url):
        return None
    if place.name and mode != "r" and is_changeable_archive(place.group, storage_options or {}):
        raise make_archive_error(place)
    if at is not None and place.name:
        return _open_in_group_at(place, storage_options, at)
    group = open_group(place.group, mode, follow=follow, at=at, storage_options=storage_options)
    # A zip archive without members is probably the file of another program.
    if foreign and not len(group) and not group.url.endswith(".b2z"):
        return None
    return _get_member(group, place.name) if place.name else group


def _is_file(store: Store, parts: Sequence[str]) -> bool:
    """Return whether a store is a file, by a request. `parts` are its path, without the ending that was tried.

    If these have an ending themselves, or lead into a group, return False without a request.
    """
    if parts[-1].endswith(SUFFIXES) or any(part.endswith(GROUP) for part in parts):
        return False
    (head,) = store.head([""], 1)
    return isinstance(head, Head)


def _open_unmarked(
    url: Url,
    mode: Mode,
    storage_options: Storage,
    *,
    follow: bool,
    at: str | None,
) -> Any:
    """Open a frame whose URL lacks the ending of its file, or a directory of arrays without the mark of a group.

    This requests the file with each possible ending; from a server that does not list files, only with the ending of
    arrays. Return None if nothing can be opened; a missing bucket raises FileNotFoundError.
    """
    front, parts, back = cut_path(url, storage_options)
    path = "/".join(parts)
    is_bucket = len(parts) < 2 and _OF_BUCKETS.fullmatch(front) is not None
    for suffix in () if is_bucket else SUFFIXES:
        store = open_store(f"{front}{path}{suffix}{back}", storage_options=storage_options)
        # If the server cannot list files, send one more request, for the usual ending.
        if not (store.can.lists or (suffix == ARRAY and _is_file(store, parts))):
            continue
        try:
            is_read = mode == "r"
            source = owners.load(store, bare=at is not None, cached=is_read, needs_group=not is_read)
            return _wrap(source, mode, follow=follow, at=at)
        except (FileNotFoundError, PermissionError):
            continue
    if not open_store(url, storage_options=storage_options).can.lists:
        # The directory has no manifest, so only a listing could name its members.
        return None
    try:
        group = open_group(url, mode, follow=follow, at=at, storage_options=storage_options)
    except (FileNotFoundError, FormatError, UnsupportedError, PermissionError, ReadOnlyError) as error:
        if is_bucket and isinstance(error, FileNotFoundError):
            raise
        return None
    return group if len(group) else None
