"""Where a URL leads: the group that it names or leads through, and the name in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from b2array.array.drafts import Url
from b2array.engine.manifest import EMBEDDED, MANIFEST, SUFFIXES
from b2array.group.archive import MAGIC
from b2array.store.base import Head
from b2array.store.local import LocalStore
from b2array.store.open import cut, open_store

__all__ = ["Place", "Storage", "cut_path", "group_of", "plain"]

Storage = Mapping[str, Any] | None


class Place(NamedTuple):
    """The URL of a group, and a name in it; the group itself has the empty name."""

    group: str
    name: str


def group_of(url: Url, storage_options: Storage = None, magics: tuple[bytes, ...] = MAGIC) -> Place | None:
    """Return the innermost group or archive that a URL names or leads through; None if there is none.

    It finds only what is marked as a group: a directory or prefix with a manifest or an embedding frame, a zip archive,
    or another file that begins with one of `magics`. One wave of requests asks for all places. The name is without the
    ending of its file, and need not exist.

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
        return Place(place.group, plain(f"{place.name}/{fragment}".strip("/")))
    front, parts, back = cut_path(url, storage_options)
    if not parts:
        return None
    lengths = range(len(parts), 0, -1)
    signs = ("", MANIFEST, EMBEDDED)
    names = ["/".join(filter(None, (*parts[1:n], sign))) for n in lengths for sign in signs]
    heads = open_store(f"{front}{parts[0]}/{back}", storage_options=storage_options).head(names, 16)
    for n, *found in zip(lengths, *(heads[i :: len(signs)] for i in range(len(signs))), strict=True):
        archive, *marks = found
        is_archive = isinstance(archive, Head) and bytes(archive.data).startswith(magics)
        if is_archive or any(isinstance(each, Head) for each in marks):
            return Place(f"{front}{'/'.join(parts[:n])}{back}", plain("/".join(parts[n:])))
    return None


def plain(name: str) -> str:
    """Return the name of a member without the ending of its file."""
    ending = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(ending)


def cut_path(url: Url, storage_options: Storage) -> tuple[str, list[str], str]:
    """Cut a URL into what comes before its path, the parts of the path, and what comes behind."""
    store = open_store(url, storage_options=storage_options)
    if isinstance(store, LocalStore):
        drive, path = os.path.splitdrive(store.url)
        return f"{drive}{os.sep}", path.replace(os.sep, "/").strip("/").split("/"), ""
    front, path, back = cut(os.fsdecode(url))
    return front, [part for part in path.split("/") if part], back
