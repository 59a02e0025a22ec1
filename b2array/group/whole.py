"""A group as a whole: find it, make it, complete it, describe all of its members, remove it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from b2array.commit.manifests import replace_manifest
from b2array.errors import B2ArrayError, FormatError, ReadOnlyError, UnsupportedError
from b2array.format import foreign, summary
from b2array.frame.manifest import EMBEDDED, MANIFEST, Manifest, is_embedded, members_among
from b2array.frame.places import ZIP, group_of
from b2array.frame.source import FRAME_NAME
from b2array.group import embedded
from b2array.group.archive import Archive, changed_as_a_whole
from b2array.group.changing import committing
from b2array.group.fork import Changes
from b2array.group.listed import AnyGroup, ListedGroup, group_at
from b2array.group.local import LocalGroup
from b2array.store.atomic import require_free
from b2array.store.base import MISSING, Head, Store, says_more
from b2array.store.endings import JOURNAL, LOCK, UNFINISHED
from b2array.store.open import open_store
from b2array.store.open_file import BinaryFile

__all__ = [
    "around",
    "check_replaceable",
    "clear",
    "complete",
    "consolidate",
    "discard",
    "exists",
    "home_of",
    "initialise",
    "is_archive",
]


def home_of(url: str, storage_options: Mapping[str, Any], *, required: bool = True) -> AnyGroup | Archive:
    """Return the home of a group's members; raise FileNotFoundError if the group is required and missing."""
    home = group_at(url, storage_options)
    # Look for the manifest first: if it exists, this is the only request.
    there = not home.url.endswith(".b2z") and home.has_manifest()
    if not there and is_archive(home.store):
        return Archive(url, storage_options)
    if required and not (there or exists(home, shown=True)):
        raise FileNotFoundError(f"{home.store.url}: there is no group{_unlisted(home.store)}")
    return home


def around(home: AnyGroup) -> tuple[AnyGroup, str] | None:
    """Return the group that a group is part of, or will be, and its name there; None for a group by itself.

    A group by itself has a mark, a manifest or an embedding frame. A part of another one exists by the names of its
    members, which the manifest of the other one may list. Its commits and snapshots have them, too. So whoever changes
    the part changes the other one. ReadOnlyError: it would be part of an archive.
    """
    if home.is_listed() if isinstance(home, ListedGroup) else _is_marked(home):
        return None
    # A local link may lead into a group.
    place = group_of(os.path.realpath(home.store.url) if home.is_local else home.address(""), home.storage_options)
    if place is None or not place.name:
        return None
    outer = home_of(place.group, home.storage_options)
    if isinstance(outer, Archive):
        raise changed_as_a_whole(place)
    return outer, place.name


def home_in_file(file: BinaryFile) -> Archive:
    """Return the archive that an open file holds. Raises FormatError for anything else."""
    store = open_store(file)
    if not is_archive(store):
        (head,) = store.head([""], 16)
        found = "nothing" if isinstance(head, Exception) else foreign.describe(head.data)
        raise FormatError(f"{store.url}: expected a zip archive, found {found}")
    return Archive(file, {})


def _unlisted(store: Store) -> str:
    """Say so if only a manifest could have shown a group."""
    try:
        store.listing()
    except UnsupportedError:
        return " with a manifest, and without one it cannot be found, because this server does not list files"
    except PermissionError:
        return " that you may read, and you may not list what is there"
    except OSError:
        pass
    return ""


def is_archive(store: Store) -> bool:
    """Whether the URL names a zip archive, and not a directory or prefix."""
    if store.is_prefix:
        return False
    (head,) = store.head([""], 16)
    if isinstance(head, Exception):
        return False
    if bytes(head.data[2:9]) == b"b2frame":
        outer, _, last = store.url.rpartition("/")
        if last == EMBEDDED:
            raise FormatError(f"{store.url} is where a group keeps small members; open the group {outer}")
        raise FormatError(f"{store.url}: expected a group, found a frame (see b2array.open)")
    if bytes(head.data[:4]) in ZIP:
        return True
    if store.can.local or store.url.endswith(".b2z"):
        raise FormatError(f"{store.url}: expected a directory or a zip archive, found {foreign.describe(head.data)}")
    return False


_GLANCE = 2000
"""The most entries to look at in a directory that nothing marks as a group."""


_ABANDONED = re.compile(
    rf".*{re.escape(LOCK)}|.+{UNFINISHED}(/.+)?|.+[.]b2(nd|f|b)/[0-9A-Fa-f]+([.]chunk|{re.escape(JOURNAL)})", re.DOTALL
)
"""Files of writers that failed or were killed before their first commit."""


def exists(group: AnyGroup, *, shown: bool = False) -> bool:
    """Whether there is a group, or a local directory with anything in it, which can become one.

    If it must be `shown`, a local directory needs a mark on it or on a directory around it, or members in it or one
    level below: not everything below it is looked at.
    """
    if _is_marked(group):
        return True
    try:
        files = group.store.listing() if group.is_local else group.store.walk()
    except (*MISSING, PermissionError, UnsupportedError):  # where nothing is listed, only a manifest can tell
        return False
    if not group.is_local:
        return bool(members_among(files))
    place = Path(group.store.url)
    if shown:
        if any(Path(outer, sign).is_file() for outer in place.parents for sign in (MANIFEST, EMBEDDED)):
            return True
        found = (path.relative_to(place).as_posix() for path in chain(place.glob("*"), place.glob("*/*")))
        members = map(place.joinpath, members_among(islice(found, _GLANCE)).values())
        return any(each.is_file() or each.joinpath(FRAME_NAME).is_file() for each in members)
    inside = (path.relative_to(place).as_posix() for path in place.rglob("*") if not path.is_dir())
    return not place.is_dir() or not all(map(_ABANDONED.fullmatch, inside))


def _is_marked(group: AnyGroup) -> bool:
    heads = group.store.head([MANIFEST, EMBEDDED], 8)
    if any(not isinstance(head, Exception) for head in heads):
        return True
    for error in heads:
        if isinstance(error, Exception) and (says_more(error) or not isinstance(error, MISSING)):
            raise error
    return False


def initialise(group: AnyGroup) -> None:
    """Make an empty group: an embedding frame, and a manifest where one is needed."""
    if not group.store.can.write:
        raise ReadOnlyError(f"{group.url} can only be read")
    group.address("")  # refuses what cannot have members
    _require_no_frame(group)
    group.store.create(EMBEDDED, embedded.nothing())
    if isinstance(group, ListedGroup):
        _list_nothing(group)


def _list_nothing(group: ListedGroup) -> None:
    """Write the manifest of a group without members."""
    replace_manifest(group.catalog, Manifest({}, os.urandom(8).hex()), None)
    group.show(*group.catalog.last_seen())


def _require_no_frame(group: AnyGroup) -> None:
    """Raise FileExistsError where a group would be hidden by an array, or by another file."""
    heads = group.store.head([FRAME_NAME] if group.store.is_prefix else ["", FRAME_NAME], 1)
    if any(isinstance(head, Head) and head.data for head in heads):
        raise FileExistsError(f"{group.store.url} exists and is not a group")


def complete(group: AnyGroup) -> None:
    """Add the embedding frame without which python-blosc2 does not open a directory."""
    if group.is_local and isinstance(group.store.head([EMBEDDED], 1)[0], MISSING):
        _require_no_frame(group)
        with suppress(FileExistsError):
            group.store.create(EMBEDDED, embedded.nothing())


def consolidate(group: AnyGroup | Changes) -> None:
    """Put summaries of all members, as they are now, into the manifest."""
    if isinstance(group, Changes):
        raise ValueError("consolidate() inside a transaction would describe what is not committed yet")  # noqa: TRY004
    group.recover()
    group.refresh()
    members = group.members()
    records = {}
    for path in {*members.values()}:
        if not is_embedded(path):
            held = group.current(path)
            records[path] = summary.pack(held.state, held.header)
    group.update(lambda found: found.with_summaries(records, members=members))
    group.refresh()


def check_replaceable(group: AnyGroup) -> None:
    """Raise FileExistsError if there is something that may not be a group."""
    kinds = {MANIFEST: b"", EMBEDDED: b""}
    require_free(group.store, kinds, "a group", overwrite=True, name=MANIFEST, alone=True)


def clear(group: AnyGroup) -> None:
    """Remove all members and snapshots of a group."""
    check_replaceable(group)
    group.recover()
    with committing(group) as changes:
        changes.remove(dict(group.members()))
        changes.snapshots.drop(changes.snapshots.ledger.names)
    if isinstance(group, LocalGroup):
        complete(group)
    elif group.catalog.read()[1] is None:
        _list_nothing(group)


def discard(group: AnyGroup) -> None:
    """Remove a group that was made in vain, unless others have begun to use it."""
    with suppress(OSError, B2ArrayError), group.store.lock(MANIFEST):
        group.refresh()
        if group.members():
            return
        group.store.delete([MANIFEST, EMBEDDED])
        group.refresh()
        if group.is_local and group.store.walk() in ([], [LOCK]):
            group.store.delete([LOCK])
            for directory, *_ in os.walk(group.store.url, topdown=False):
                Path(directory).rmdir()
