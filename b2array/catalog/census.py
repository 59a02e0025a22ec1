"""Lists the members of a group in an object store by its files, where no manifest lists them.

A directory that was copied to the store has no such manifest. Without a row, a member has the state of its published
index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from b2array.catalog.known_manifests import InnerManifests
from b2array.catalog.manifest import (
    EMBEDDED,
    MANIFEST,
    Manifest,
    Row,
    is_embedded,
    members_among,
    own_files,
    refuse_other_names,
    require_member_name,
)
from b2array.catalog.owners import load_published
from b2array.catalog.redo import inspect_place
from b2array.errors import FormatError, UnsupportedError, prefix_errors
from b2array.format import summary
from b2array.format.attributes import decode_attr
from b2array.format.state import State
from b2array.frame.source import FRAME_NAME
from b2array.store.base import Store, stale_reader

__all__ = [
    "EMBEDDED_MAP",
    "EMBEDDED_NOTES",
    "OBJECTS",
    "TABLE",
    "complete_manifest",
    "embedded_extents",
    "find_objects",
    "rows_among",
]

EMBEDDED_NOTES = "estore_metadata"
"""The attribute in which python-blosc2 describes the members in an embedding frame."""
EMBEDDED_MAP = "embed_map"
"""The key in this attribute under which python-blosc2 notes where each member is."""
OBJECTS = "_object_registry"
"""The attribute of the embedding frame in which python-blosc2 lists tables and references to remote groups."""
TABLE = "ctable"
"""The kind of tables in this list. Their columns are members; objects of other kinds have no members."""
_REMOTE = "b2remote_store"


def complete_manifest(group: Store, manifest: Manifest, *, inner: InnerManifests | None = None) -> Manifest:
    """Return a manifest with rows; if it has none, list the files of the group, and add a row for each member.

    The result then has no pending steps. With `inner`, members of groups inside this one get rows as well, and `inner`
    gets to know these groups. A reader may list them, and may read the embedding frame from the cache on disk; a commit
    of this group must not.

    Raises
    ------
    UnsupportedError
        The store cannot be listed, or the files were copied from a local disk during a commit.
    FormatError
        The embedding frame is damaged.
    ConflictError
        The manifest was empty because it was missing, and the list of the files shows one.
    """
    if manifest.rows is not None:
        return manifest
    files: Collection[str] = ()
    # Many HTTP servers do not list files, but summaries in the manifest may name the members.
    with suppress(UnsupportedError):
        files = group.walk()
    # An existing group has files, so an empty list from a read-only server means that the server hides them.
    if not files and not group.can.write:
        if not manifest.summaries:
            raise UnsupportedError(
                f"{group.url} cannot be listed, and no manifest names its members: Group.consolidate writes one where"
                " the group is made"
            )
        files = [*summary.unpack_all(manifest.summaries)]
    if manifest == Manifest() and MANIFEST in files:
        raise stale_reader(group.url)
    _require_complete(group, manifest)
    prefix_errors(group.url, lambda: refuse_other_names(files))
    rows = {}
    if EMBEDDED in files:
        frame = load_published(group.below(EMBEDDED), sparse=False, cached=inner is not None)
        names = embedded_extents(frame.state, frame.url)
        rows = {name: Row(f"{EMBEDDED}/{name}", sparse=False) for name in names}
    # python-blosc2 prefers the file of a member to its copy in the embedding frame.
    rows |= rows_among(own_files(files) if inner is None else files)
    if inner is not None:
        inner.note_groups(group, files)
    return replace(manifest, rows=dict(sorted(rows.items())), pending={})


def rows_among(files: Collection[str]) -> dict[str, Row]:
    """Return a row for each member whose frame is among some files of a group, by the member's name."""
    existing = {*files}
    rows = {}
    for name, path in members_among(files).items():
        sparse = path not in existing and f"{path}/{FRAME_NAME}" in existing
        rows[name] = Row(path, sparse=sparse)
    return rows


def _require_complete(group: Store, manifest: Manifest) -> None:
    """Read the members with pending steps. UnsupportedError: a step was not taken before the group was copied."""
    for path, step in manifest.pending.items():
        if is_embedded(path) or step.before == step.after:
            continue
        occupant = inspect_place(group.below(path))
        is_before = step.before in (occupant.state, occupant.lasting)
        if is_before and occupant.state != step.after:
            raise UnsupportedError(
                f"{group.url} was copied while a commit was under way, which changes {path}: open the original for"
                " writing, which completes the commit, and copy it again"
            )


def embedded_extents(state: State, url: str) -> dict[str, range | None]:
    """Return the range of bytes of each member in the data of an embedding frame, by name; None for a remote member.

    Tables have no range: their columns are members. FormatError: the map of members is damaged, or a range exceeds the
    data of the frame. UnsupportedError: the group only refers to a remote group, or a member has a name that it cannot
    have here.
    """
    if state.frame.metalayer(_REMOTE) is not None:
        raise UnsupportedError(
            f"{url}: RemoteStore.save() of python-blosc2 has written references to a remote group here (the metalayer"
            f" {_REMOTE!r} says so); let python-blosc2 open it, and store the arrays with materialize()"
        )
    packed = state.attr(EMBEDDED_NOTES)
    notes = {} if packed is None else decode_attr(packed)
    entries = notes.get(EMBEDDED_MAP, {}) if isinstance(notes, Mapping) else None
    if not isinstance(entries, Mapping):
        raise FormatError(f"{url}: expected a map of embedded members, found another value")
    nbytes = state.frame.nbytes
    extents = {_name_of_key(url, key): _range_of(url, nbytes, key, entry) for key, entry in entries.items()}
    for key, entry in find_objects(state, url).items():
        if not isinstance(entry, Mapping) or entry.get("kind") != TABLE:
            extents[_name_of_key(url, key)] = None
    return extents


def find_objects(state: State, url: str) -> Mapping[str, Any]:
    """Return the list of tables and references to remote groups in an embedding frame, by key, which begins with "/".

    FormatError: the list is damaged.
    """
    packed = state.attr(OBJECTS)
    objects = {} if packed is None else decode_attr(packed)
    if not isinstance(objects, Mapping):
        raise FormatError(f"{url}: expected a list of objects by their names, found another value")
    return objects


def _name_of_key(url: str, key: Any) -> str:
    """Return the name of an embedded member, without the slash before it in the `key`.

    FormatError: this is not a name. UnsupportedError: b2array cannot give the name to a member.
    """
    name = ""
    # python-blosc2 writes a slash before each name.
    if isinstance(key, str) and key.startswith("/"):
        name = key[1:]
    parts = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise FormatError(f"{url}: expected names of embedded members, found {key!r}")
    prefix_errors(url, lambda: require_member_name(name))
    return name


def _range_of(url: str, nbytes: int, key: str, entry: Any) -> range | None:
    """Return the byte range of an embedded member, given its `entry` in the map; None for a reference to a server.

    FormatError: the range exceeds the data, which has `nbytes` bytes.
    """
    start: Any = None
    count: Any = None
    if isinstance(entry, Mapping):
        if "urlbase" in entry:
            return None
        start = entry.get("offset")
        count = entry.get("length")
    is_range = type(start) is int and type(count) is int
    if not is_range or not 0 <= start <= start + count <= nbytes:
        raise FormatError(f"{url}: expected {key!r} within {nbytes} bytes of data, found {entry!r}")
    return range(start, start + count)
