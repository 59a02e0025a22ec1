"""Finds the group that a URL names or leads through, and the rest of the URL as a name in the group."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from b2array.catalog.manifest import EMBEDDED, MANIFEST, SUFFIXES
from b2array.store.base import Head, Store
from b2array.store.local_store import LocalStore
from b2array.store.open import cut, open_store

__all__ = ["ARCHIVE", "GROUP", "ZIP", "Place", "Storage", "cut_path", "group_for_new_frame", "group_of", "strip_suffix"]

Storage = Mapping[str, Any] | None

GROUP = ".b2d"
"""The usual ending of a group's URL."""
ARCHIVE = ".b2z"
"""The usual ending of an archive's URL."""
ZIP = (b"PK\3\4", b"PK\5\6")
"""The first bytes of an archive: with members, and without any."""

_ENDING = re.compile(r"\.[A-Za-z]\w*\Z")


class Place(NamedTuple):
    """The URL of a group, and a name in it; the group itself has the empty name."""

    group: str
    name: str


def group_of(
    url: str | os.PathLike[str],
    storage_options: Storage = None,
    magics: tuple[bytes, ...] = ZIP,
    *,
    is_missing: bool = False,
) -> Place | None:
    """Return the innermost group or archive that a URL names or leads through, if any.

    A group is a directory or prefix with a manifest or an embedding frame, a zip archive, or another file that begins
    with one of `magics`. One wave of requests checks all places. A server that cannot list, such as an HTTP server,
    gets requests only for the places that `_likely_places` returns. The returned name lacks the ending of its file, and
    need not exist. With `is_missing`, the caller already knows that no object has this URL.

    Examples
    --------
    >>> import b2array
    >>> _ = b2array.open_group("memory://outer/run.b2d", "w")
    >>> group_of("memory://outer/run.b2d/air/temperature.b2nd")
    Place(group='memory://outer/run.b2d', name='air/temperature')
    """
    outer, mark, fragment = os.fsdecode(url).rpartition("#")
    # The name of a local file may itself contain "#".
    is_path = os.path.lexists(f"{outer}#{fragment.partition('/')[0]}")
    if mark and not is_path:
        place = group_of(outer, storage_options, magics)
        if place is not None:
            return _join_fragment(place, fragment)
    front, parts, back = cut_path(url, storage_options)
    if not parts:
        return None
    store = open_store(f"{front}{parts[0]}/{back}", storage_options=storage_options)
    if store.can.lists:
        signs = ("", MANIFEST, EMBEDDED)
        asked = [(count, sign) for count in range(len(parts), 0, -1) for sign in signs]
    else:
        asked = _likely_places(parts, is_missing=is_missing)
    count = _find_innermost(store, parts, asked, magics)
    return None if count is None else _cut_at(front, parts, back, count)


def _join_fragment(place: Place, fragment: str) -> Place:
    """Return the place of the name `fragment`, after "#" in a URL, below the place of the URL before it."""
    name = f"{place.name}/{fragment}".strip("/")
    return Place(place.group, strip_suffix(name))


def _cut_at(front: str, parts: Sequence[str], back: str, count: int) -> Place:
    """Return the place of a URL whose first `count` parts lead to the group; `cut_path` has cut it."""
    group = "/".join(parts[:count])
    name = "/".join(parts[count:])
    return Place(f"{front}{group}{back}", strip_suffix(name))


def group_for_new_frame(url: str | os.PathLike[str], storage_options: Storage = None) -> Place | None:
    """Return the group that will contain a new frame, if any, and the name of the frame there.

    This resolves links in a local path. Servers get requests only if a part of the URL has the usual ending of a group
    or an archive, so other new frames cost no request. Below such a group, each part may be a group.

    Examples
    --------
    >>> import b2array
    >>> _ = b2array.open_group("memory://outer/new.b2d", "w")
    >>> group_for_new_frame("memory://outer/new.b2d/x"), group_for_new_frame("memory://outer/x")
    (Place(group='memory://outer/new.b2d', name='x'), None)
    """
    store = open_store(url, storage_options=storage_options)
    if isinstance(store, LocalStore):
        return group_of(os.path.realpath(store.url))
    # Reads of memory cost nothing, so check any ending.
    if store.in_process:
        return group_of(url, storage_options)
    outer, mark, fragment = os.fsdecode(url).rpartition("#")
    if mark:
        place = group_for_new_frame(outer, storage_options)
        return None if place is None else _join_fragment(place, fragment)
    front, parts, back = cut_path(url, storage_options)
    asked = []
    outermost = next((count for count, part in enumerate(parts, 1) if part.endswith(GROUP)), len(parts))
    for count in range(len(parts), 0, -1):
        part = parts[count - 1]
        # A group inside a group may have any name.
        is_inside = outermost < count < len(parts)
        if part.endswith(GROUP) or is_inside:
            asked += [(count, MANIFEST), (count, EMBEDDED)]
        elif part.endswith(ARCHIVE):
            asked.append((count, ""))
    if not asked:
        return None
    root = open_store(f"{front}{parts[0]}/{back}", storage_options=storage_options)
    level = _find_innermost(root, parts, asked, ZIP)
    return None if level is None else _cut_at(front, parts, back, level)


def _find_innermost(
    store: Store,
    parts: Sequence[str],
    asked: Sequence[tuple[int, str]],
    magics: tuple[bytes, ...],
) -> int | None:
    """Read some places at once; return how many parts of the path lead to the first group in `asked`, or None.

    `asked` has the innermost place first. Each is a number of parts, and the object there that marks a group: "" stands
    for the object at the place itself, which is an archive if it begins with one of `magics`. `store` is at `parts[0]`.
    """
    names = ["/".join(filter(None, (*parts[1:count], sign))) for count, sign in asked]
    # 16 bytes are enough for every magic.
    heads = store.head(names, 16)
    for (count, sign), head in zip(asked, heads, strict=True):
        if not isinstance(head, Head):
            continue
        # Without a marker, the object itself is the group, if it is an archive.
        if sign or bytes(head.data).startswith(magics):
            return count
    return None


def _likely_places(
    parts: Sequence[str],
    *,
    is_missing: bool,
) -> list[tuple[int, str]]:
    """Return the likely places of a URL's group on a server that cannot list: numbers of parts, and the object there.

    Likely places are the parts of the URL with an ending. Without any, they are the URL itself and the part above it.
    There, only a group with a manifest can be read. An embedding frame without a manifest only leads to an error that
    helps the user.

    Examples
    --------
    >>> _likely_places(["example.org", "run.b2d", "air", "x"], is_missing=True)
    [(2, '.b2group'), (2, 'embed.b2e')]
    >>> _likely_places(["example.org", "data", "run", "x"], is_missing=False)
    [(4, ''), (4, '.b2group'), (3, '.b2group')]
    """
    whole = len(parts)
    asked = [] if is_missing else [(whole, "")]
    counts = []
    for count in range(whole, 1, -1):
        part = parts[count - 1]
        if _ENDING.search(part) and not part.endswith(SUFFIXES):
            counts.append(count)
    for count in counts:
        if parts[count - 1].endswith(GROUP):
            asked.append((count, MANIFEST))
            # One check for a group without a manifest is enough for a helpful error.
            if count == counts[0]:
                asked.append((count, EMBEDDED))
        elif count < whole:
            asked.append((count, ""))
    if counts:
        return asked
    if not parts[-1].endswith(SUFFIXES):
        asked.append((whole, MANIFEST))
    if whole > 1:
        asked.append((whole - 1, MANIFEST))
    return asked


def strip_suffix(name: str) -> str:
    """Return a name without the ending of a member's file, if it has one."""
    ending = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(ending)


def cut_path(
    url: str | os.PathLike[str],
    storage_options: Storage,
) -> tuple[str, list[str], str]:
    """Cut a URL into the text before its path, the parts of the path, and the text after it."""
    store = open_store(url, storage_options=storage_options)
    if isinstance(store, LocalStore):
        drive, path = os.path.splitdrive(store.url)
        return f"{drive}{os.sep}", path.replace(os.sep, "/").strip("/").split("/"), ""
    front, path, back = cut(os.fsdecode(url))
    return front, [part for part in path.split("/") if part], back
