"""Where a URL leads: the group that it names or leads through, and the name in it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from b2array.frame.manifest import EMBEDDED, MANIFEST, SUFFIXES
from b2array.store.base import Head, Store
from b2array.store.local import LocalStore
from b2array.store.open import cut, open_store

__all__ = ["ARCHIVE", "GROUP", "ZIP", "Place", "Storage", "cut_path", "group_of", "strip_suffix", "target_of"]

Storage = Mapping[str, Any] | None

GROUP = ".b2d"
"""How the URLs of most groups end."""
ARCHIVE = ".b2z"
"""How the URLs of most archives end."""
ZIP = (b"PK\3\4", b"PK\5\6")
"""How archives begin: with members, and without any."""

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

    It finds only what is marked as a group: a directory or prefix with a manifest or an embedding frame, a zip archive,
    or another file that begins with one of `magics`. One wave of requests asks for all places; a server that cannot
    list, such as an HTTP server, is asked only for those that `_likely` says. The name is without the ending of its
    file, and need not exist. `is_missing` says that there is no object of this URL: the caller has asked.

    Examples
    --------
    >>> import b2array
    >>> _ = b2array.open_group("memory://outer/run.b2d", "w")
    >>> group_of("memory://outer/run.b2d/air/temperature.b2nd")
    Place(group='memory://outer/run.b2d', name='air/temperature')
    """
    outer, mark, fragment = os.fsdecode(url).rpartition("#")
    is_path = os.path.lexists(f"{outer}#{fragment.partition('/')[0]}")
    if mark and not is_path and (place := group_of(outer, storage_options, magics)) is not None:
        return Place(place.group, strip_suffix(f"{place.name}/{fragment}".strip("/")))
    front, parts, back = cut_path(url, storage_options)
    if not parts:
        return None
    store = open_store(f"{front}{parts[0]}/{back}", storage_options=storage_options)
    if store.can.lists:
        asked = [(count, sign) for count in range(len(parts), 0, -1) for sign in ("", MANIFEST, EMBEDDED)]
    else:
        asked = _likely(parts, is_missing=is_missing)
    n = _find_innermost(store, parts, asked, magics)
    return None if n is None else Place(f"{front}{'/'.join(parts[:n])}{back}", strip_suffix("/".join(parts[n:])))


def target_of(url: str | os.PathLike[str], storage_options: Storage = None) -> Place | None:
    """Return the group that a new frame will be in, and its name there, if any.

    A local path is followed through links. Servers are asked only if a part of the URL ends as groups and archives do,
    so that other new frames cost no request.

    Examples
    --------
    >>> import b2array
    >>> _ = b2array.open_group("memory://outer/new.b2d", "w")
    >>> target_of("memory://outer/new.b2d/x"), target_of("memory://outer/x")
    (Place(group='memory://outer/new.b2d', name='x'), None)
    """
    store = open_store(url, storage_options=storage_options)
    if isinstance(store, LocalStore):
        return group_of(os.path.realpath(store.url))
    if store.in_process:
        return group_of(url, storage_options)
    outer, mark, fragment = os.fsdecode(url).rpartition("#")
    if mark:
        place = target_of(outer, storage_options)
        return None if place is None else Place(place.group, strip_suffix(f"{place.name}/{fragment}".strip("/")))
    front, parts, back = cut_path(url, storage_options)
    asked = []
    for count in range(len(parts), 0, -1):
        if parts[count - 1].endswith(GROUP):
            asked += [(count, MANIFEST), (count, EMBEDDED)]
        elif parts[count - 1].endswith(ARCHIVE):
            asked.append((count, ""))
    if not asked:
        return None
    n = _find_innermost(open_store(f"{front}{parts[0]}/{back}", storage_options=storage_options), parts, asked, ZIP)
    return None if n is None else Place(f"{front}{'/'.join(parts[:n])}{back}", strip_suffix("/".join(parts[n:])))


def _find_innermost(
    store: Store, parts: Sequence[str], asked: Sequence[tuple[int, str]], magics: tuple[bytes, ...]
) -> int | None:
    """Return how many parts of a path lead to the first group among the places that are asked for."""
    heads = store.head(["/".join(filter(None, (*parts[1:n], sign))) for n, sign in asked], 16)
    for (n, sign), head in zip(asked, heads, strict=True):
        if isinstance(head, Head) and (sign or bytes(head.data).startswith(magics)):
            return n
    return None


def _likely(parts: Sequence[str], *, is_missing: bool) -> list[tuple[int, str]]:
    """Return where the group of a URL may be on a server that cannot list, by the number of parts and the sign there.

    A group can be read there only if it has a manifest; an embedding frame tells the user that this is what is missing.
    Parts of the URL that end as groups and files of groups do are asked for. Without any, it may be the URL itself, or
    the part above it.

    Examples
    --------
    >>> _likely(["example.org", "run.b2d", "air", "x"], is_missing=True)
    [(2, '.b2group'), (2, 'embed.b2e')]
    >>> _likely(["example.org", "data", "run", "x"], is_missing=False)
    [(4, ''), (4, '.b2group'), (3, '.b2group')]
    """
    whole = len(parts)
    asked = [] if is_missing else [(whole, "")]
    named = [n for n in range(whole, 1, -1) if _ENDING.search(parts[n - 1]) and not parts[n - 1].endswith(SUFFIXES)]
    for n in named:
        if parts[n - 1].endswith(GROUP):
            asked.append((n, MANIFEST))
            if n == named[0]:
                asked.append((n, EMBEDDED))
        elif n < whole:
            asked.append((n, ""))
    if not named and not parts[-1].endswith(SUFFIXES):
        asked.append((whole, MANIFEST))
    if not named and whole > 1:
        asked.append((whole - 1, MANIFEST))
    return asked


def strip_suffix(name: str) -> str:
    """Return the name of a member without the ending of its file."""
    ending = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(ending)


def cut_path(url: str | os.PathLike[str], storage_options: Storage) -> tuple[str, list[str], str]:
    """Cut a URL into what comes before its path, the parts of the path, and what comes after it."""
    store = open_store(url, storage_options=storage_options)
    if isinstance(store, LocalStore):
        drive, path = os.path.splitdrive(store.url)
        return f"{drive}{os.sep}", path.replace(os.sep, "/").strip("/").split("/"), ""
    front, path, back = cut(os.fsdecode(url))
    return front, [part for part in path.split("/") if part], back
