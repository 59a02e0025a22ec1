"""Finds, makes, completes, summarizes and removes whole groups."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from b2array.catalog.group_places import ZIP, Place, group_of
from b2array.catalog.manifest import EMBEDDED, MANIFEST, is_embedded, members_among
from b2array.errors import B2ArrayError, FormatError, ReadOnlyError, UnsupportedError
from b2array.format import foreign, summary
from b2array.frame.revision import is_of_zarr
from b2array.frame.source import FRAME_NAME
from b2array.group import embedded
from b2array.group.archive import Archive, make_archive_error
from b2array.group.group_forks import Changes
from b2array.group.homes import GroupHome
from b2array.group.listed_group import group_at
from b2array.group.transaction import committing
from b2array.store.atomic import require_free
from b2array.store.base import MISSING, Head, HiddenError, Store
from b2array.store.endings import JOURNAL, LOCK, UNFINISHED
from b2array.store.open import open_store
from b2array.store.open_file import BinaryFile

__all__ = [
    "check_replaceable",
    "clear",
    "complete",
    "consolidate",
    "discard",
    "exists",
    "find_outer_group",
    "home_of",
    "home_to_change",
    "initialise",
    "is_archive",
]


def home_of(url: str, storage_options: Mapping[str, Any], *, required: bool = True) -> GroupHome | Archive:
    """Return the home of a group at a URL; raise FileNotFoundError if the group is `required` and missing.

    This reads the manifest; without one, it looks for an archive or for members. Raises FormatError if another kind of
    file is at the URL.
    """
    home = group_at(url, storage_options)
    # Look for the manifest first: if there is one, this is the only request.
    has_manifest = not home.url.endswith(".b2z") and home.look_for_manifest()
    if not has_manifest and is_archive(home.store):
        return Archive(url, storage_options)
    if required and not (has_manifest or exists(home, visible=True)):
        if is_of_zarr(home.store):
            raise FileNotFoundError(foreign.zarr_text(home.store.url))
        raise _make_missing_error(home.store)
    return home


def find_outer_group(home: GroupHome) -> tuple[GroupHome, str] | None:
    """Return the group around a place where a group is or will be, and the name of this place in it.

    Return None for a separate group, and for a place that is in no group.

    A manifest or an embedding frame marks a separate group. Any other group exists because of the names of members,
    which the outer group lists, commits and keeps in snapshots; so changes go through the outer group. This looks for
    both in the store. ReadOnlyError says that the outer group is an archive.
    """
    if home.is_separate():
        return None
    # On a local disk, a symbolic link may lead into a group.
    url = os.path.realpath(home.store.url) if home.is_local else home.address("")
    place = group_of(url, home.storage_options)
    if place is None or not place.name:
        return None
    return home_to_change(place, home.storage_options), place.name


def home_to_change(place: Place, storage_options: Mapping[str, Any]) -> GroupHome:
    """Return the home of the group at a place, whose members are to be changed; raise ReadOnlyError for an archive."""
    home = home_of(place.group, storage_options)
    if isinstance(home, Archive):
        raise make_archive_error(place)
    return home


def home_in_file(file: BinaryFile) -> Archive:
    """Return the archive in an open file; raise FormatError for any other file."""
    store = open_store(file)
    if not is_archive(store):
        (head,) = store.head([""], 16)
        kind = "nothing" if isinstance(head, Exception) else foreign.describe(head.data)
        raise FormatError(f"{store.url}: expected a zip archive, found {kind}")
    return Archive(file, {})


def _make_missing_error(store: Store) -> FileNotFoundError:
    """Return the error for a missing group. This tries to list the files: without a list, only a manifest shows it."""
    missing = f"{store.url}: there is no group"
    try:
        store.listing()
    except UnsupportedError:
        return FileNotFoundError(
            f"{missing} with a manifest, and without one it cannot be found, because this server does not list files"
        )
    except PermissionError:
        return HiddenError(f"{missing} that you may read, and you may not list the files there")
    except OSError:
        # A missing directory needs no explanation.
        pass
    return FileNotFoundError(missing)


def is_archive(store: Store) -> bool:
    """Return whether a store is a zip archive, and not a directory or prefix.

    This reads the head of the file. Raises FormatError for a frame, and for any other file on a local disk or with the
    ending ``.b2z``.
    """
    if store.is_prefix:
        return False
    (head,) = store.head([""], 16)
    if isinstance(head, Exception):
        return False
    if bytes(head.data[2:9]) == b"b2frame":
        outer, _, last = store.url.rpartition("/")
        if last == EMBEDDED:
            raise FormatError(f"{store.url} is the file for small members of a group; open the group {outer}")
        raise FormatError(f"{store.url}: expected a group, found a frame (see b2array.open)")
    if bytes(head.data[:4]) in ZIP:
        return True
    # In an object store, the prefix of a group may also be the name of an object.
    if store.can.local or store.url.endswith(".b2z"):
        kind = foreign.describe(head.data)
        raise FormatError(f"{store.url}: expected a directory or a zip archive, found {kind}")
    return False


_GLANCE = 2000
"""The maximum number of entries to examine in a directory that nothing marks as a group."""


_ABANDONED = re.compile(
    rf".*{re.escape(LOCK)}|.+{UNFINISHED}(/.+)?|.+[.]b2(nd|f|b)/[0-9A-Fa-f]+([.]chunk|{re.escape(JOURNAL)})", re.DOTALL
)
"""The paths of files that writers leave if they fail or are killed before their first commit."""


def exists(group: GroupHome, *, visible: bool = False) -> bool:
    """Return whether there is a group, or a local directory with any files, which can become a group; this lists them.

    With `visible`, a local directory counts only if it or a directory around it is marked as a group, or if members are
    in it or one level below; nothing further down is examined. Files that a writer has left before its first commit do
    not count. Raises the store's error if it hides whether the group is marked.
    """
    if group.is_marked():
        return True
    try:
        files = group.store.listing() if group.is_local else group.store.walk()
    except (*MISSING, PermissionError, UnsupportedError):
        # If the store cannot list files, only a manifest can show a group.
        return False
    if not group.is_local:
        return bool(members_among(files))
    place = Path(group.store.url)
    if visible:
        return _is_inside_group(place) or _has_members(place)
    if not place.is_dir():
        return True
    inside = (path.relative_to(place).as_posix() for path in place.rglob("*") if not path.is_dir())
    return not all(map(_ABANDONED.fullmatch, inside))


def _is_inside_group(place: Path) -> bool:
    """Return whether a manifest or an embedding frame marks any directory around a place as a group."""
    signs = MANIFEST, EMBEDDED
    return any(Path(outer, sign).is_file() for outer in place.parents for sign in signs)


def _has_members(place: Path) -> bool:
    """Return whether members are in a directory or one level below, among the first `_GLANCE` entries."""
    entries = chain(place.glob("*"), place.glob("*/*"))
    paths = (path.relative_to(place).as_posix() for path in entries)
    members = members_among(islice(paths, _GLANCE))
    files = [place / path for path in members.values()]
    return any(each.is_file() or (each / FRAME_NAME).is_file() for each in files)


def initialise(group: GroupHome) -> None:
    """Make an empty group: an embedding frame, and in an object store a manifest, which the home then shows.

    Raises ReadOnlyError for a read-only store, FileExistsError if another file or group is there, and ValueError for a
    URL below which no member can have a name.
    """
    if not group.store.can.write:
        raise ReadOnlyError(f"{group.url} can only be read")
    # Raises ValueError for a URL below which no member can have a name.
    group.address("")
    _require_no_frame(group)
    group.store.create(EMBEDDED, embedded.pack_empty_frame())
    group.ensure_manifest()


def _require_no_frame(group: GroupHome) -> None:
    """Raise FileExistsError if an array or another file is at the URL, which would hide a group there."""
    names = [FRAME_NAME] if group.store.is_prefix else ["", FRAME_NAME]
    heads = group.store.head(names, 1)
    if any(isinstance(head, Head) and head.data for head in heads):
        raise FileExistsError(f"{group.store.url} exists and is not a group")


def complete(group: GroupHome) -> None:
    """Add a missing embedding frame to a local group; python-blosc2 opens no directory without it.

    Does nothing in an object store. Raises FileExistsError if an array is there.
    """
    if not group.is_local:
        return
    (head,) = group.store.head([EMBEDDED], 1)
    if isinstance(head, MISSING):
        _require_no_frame(group)
        # Another process may have made the frame meanwhile.
        with suppress(FileExistsError):
            group.store.create(EMBEDDED, embedded.pack_empty_frame())


def consolidate(group: GroupHome | Changes) -> None:
    """Write summaries of the present states of all members into the manifest.

    This first completes an interrupted commit, and lists and reads the members again; `group` then shows the latest
    list. Raises ValueError inside a transaction.
    """
    if isinstance(group, Changes):
        raise ValueError("consolidate() inside a transaction would describe uncommitted changes")  # noqa: TRY004
    group.recover()
    group.refresh()
    members = group.members()
    records = {}
    for path in {*members.values()}:
        if not is_embedded(path):
            source = group.load_current(path)
            records[path] = summary.pack(source.state, source.header)
    group.update_manifest(lambda manifest: manifest.with_summaries(records, members=members))
    group.refresh()


def check_replaceable(group: GroupHome) -> None:
    """Raise FileExistsError if something other than a group is at the URL."""
    kinds = {MANIFEST: b"", EMBEDDED: b""}
    require_free(group.store, kinds, "a group", overwrite=True, name=MANIFEST, alone=True)


def clear(group: GroupHome) -> None:
    """Remove all members and snapshots of a group in one commit; raise FileExistsError for anything but a group.

    This first completes an interrupted commit, and at the end adds a missing embedding frame or manifest.
    """
    check_replaceable(group)
    group.recover()
    with committing(group) as changes:
        changes.remove(dict(group.members()))
        changes.snapshots.drop(changes.snapshots.ledger.names)
    complete(group)
    group.ensure_manifest()


def discard(group: GroupHome) -> None:
    """Remove a new group whose first commit failed, unless it has members; ignore errors.

    On a local disk, this also removes the directory if it has no other files.
    """
    # The caller raises the error of the commit, which is more important than a failure to clean up.
    with suppress(OSError, B2ArrayError), group.store.lock(MANIFEST, removing=True):
        group.refresh()
        if group.members():
            return
        group.store.delete([MANIFEST, EMBEDDED])
        group.refresh()
        if group.is_local and group.store.walk() in ([], [LOCK]):
            group.store.delete([LOCK])
            for directory, *_ in os.walk(group.store.url, topdown=False):
                Path(directory).rmdir()
