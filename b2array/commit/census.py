"""Lists the members of a group in an object store by its files, where no manifest lists them.

That is so for a directory that was copied there. Nothing says then which revision of a member counts: the published
index does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from b2array.errors import FormatError, UnsupportedError
from b2array.format import summary
from b2array.format.attributes import decode_attr
from b2array.format.state import State
from b2array.frame.log import inspect_place
from b2array.frame.manifest import EMBEDDED, Manifest, Row, is_embedded, is_member_name, members_among
from b2array.frame.snapshot import load_published
from b2array.frame.source import FRAME_NAME
from b2array.store.base import Store

__all__ = ["EMBEDDED_MAP", "EMBEDDED_NOTES", "complete_manifest", "embedded_extents", "rows_among"]

EMBEDDED_NOTES = "estore_metadata"
"""The attribute in which python-blosc2 describes the members in an embedding frame."""
EMBEDDED_MAP = "embed_map"
"""The part of it that says where each member is."""


def complete_manifest(group: Store, manifest: Manifest) -> Manifest:
    """Return a manifest with rows: the same one, or one for the files of the group.

    Raises
    ------
    UnsupportedError
        The store cannot be listed; or a commit was under way when local files were copied there.
    FormatError
        The embedding frame is damaged.
    """
    if manifest.rows is not None:
        return manifest
    files: Collection[str] = ()
    with suppress(UnsupportedError):  # many HTTP servers do not list files
        files = group.walk()
    if not files and not group.can.write:  # a group that is there has files: nothing lists them
        if not manifest.summaries:
            raise UnsupportedError(
                f"{group.url} cannot be listed, and no manifest names its members: Group.consolidate writes one where"
                " the group is made"
            )
        files = [*summary.unpack_all(manifest.summaries)]
    _require_complete(group, manifest)
    rows = {}
    if EMBEDDED in files:
        held = load_published(group.below(EMBEDDED), sparse=False)
        rows = {name: Row(f"{EMBEDDED}/{name}", sparse=False) for name in embedded_extents(held.state, held.url)}
    rows |= rows_among(files)
    return replace(manifest, rows=dict(sorted(rows.items())), log={})


def rows_among(files: Collection[str]) -> dict[str, Row]:
    """Return a row for each member whose frame is among some files."""
    there, rows = {*files}, {}
    for name, path in members_among(files).items():
        rows[name] = Row(path, sparse=path not in there and f"{path}/{FRAME_NAME}" in there)
    return rows


def _require_complete(group: Store, manifest: Manifest) -> None:
    for path, entry in manifest.log.items():
        if is_embedded(path) or entry.before == entry.after:
            continue
        found = inspect_place(group.below(path))
        if entry.before in (found.state, found.lasting) and found.state != entry.after:
            raise UnsupportedError(
                f"{group.url} was copied while a commit was under way, which changes {path}: open the original for"
                " writing, which completes the commit, and copy it again"
            )


def embedded_extents(state: State, url: str) -> dict[str, range | None]:
    """Return which bytes of an embedding frame hold each member; None if there is only a reference to a server.

    FormatError says that a member does not lie within the data.
    """
    packed = state.attr(EMBEDDED_NOTES)
    notes = {} if packed is None else decode_attr(packed)
    entries = notes.get(EMBEDDED_MAP, {}) if isinstance(notes, Mapping) else None
    if not isinstance(entries, Mapping):
        raise FormatError(f"{url}: expected a map of embedded members, found another value")
    nbytes = state.frame.nbytes
    return {_name(url, key): _extent(url, nbytes, key, entry) for key, entry in entries.items()}


def _name(url: str, key: Any) -> str:
    name = key[1:] if isinstance(key, str) and key.startswith("/") else ""
    if not is_member_name(name):
        raise FormatError(f"{url}: expected names of embedded members, found {key!r}")
    return name


def _extent(url: str, nbytes: int, key: str, entry: Any) -> range | None:
    if isinstance(entry, Mapping) and "urlbase" in entry:
        return None
    start, count = (entry.get("offset"), entry.get("length")) if isinstance(entry, Mapping) else (None, None)
    if type(start) is not int or type(count) is not int or not 0 <= start <= start + count <= nbytes:
        raise FormatError(f"{url}: expected {key!r} within {nbytes} bytes of data, found {entry!r}")
    return range(start, start + count)
