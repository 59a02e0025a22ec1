"""`info`, `ls` and `tree`: describe arrays and groups as data and as lines of text."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from b2array import bloscpack, config
from b2array.array.array import NDArray
from b2array.array.array_snapshots import box_text
from b2array.array.schunk import SChunk
from b2array.bloscpack.blp_header import CHECKSUMS
from b2array.catalog import owners
from b2array.commit.handle import Handle
from b2array.display import text_tables
from b2array.errors import FormatError, UnsupportedError
from b2array.exchange.formats import B2ND, ArraySource, Box, Hierarchy, Storage, holds_array
from b2array.exchange.places import find
from b2array.frame.kept_states import ledger_in
from b2array.frame.revision import Revision
from b2array.group.addressing import split_member
from b2array.group.snapshot_list import GroupDiff
from b2array.group.tree import draw_branches, nest
from b2array.store import disk_cache
from b2array.store.open import open_store
from b2array.store.secrets import redact_url

__all__ = [
    "FIELDS",
    "Overview",
    "describe",
    "describe_cache",
    "difference",
    "difference_lines",
    "draw_tree",
    "frame_of",
    "lines",
    "list_members",
    "open_frame",
    "plain",
    "row",
]

Description = Mapping[str, Any]
Members = dict[str, dict[str, Any]]
"""Descriptions of arrays and groups by name."""

_GROUPS = ("b2d", "b2z", "b2e")
"""Formats of groups of Blosc2 frames."""


class Overview(NamedTuple):
    """The description of an object: rows to print, typed values for programs, and errors by member."""

    rows: dict[str, Any]
    typed: dict[str, Any]
    failed: dict[str, Exception]


def describe(url: str, storage_options: Storage, at: str | None = None) -> Overview:
    """Describe an array, a super-chunk, a Bloscpack file or a group, now or at a snapshot."""
    kind, address = find(url, None, storage_options, exists=True, at=at)
    if kind.name == "blp":
        with bloscpack.open(address, storage_options=storage_options) as f:
            about = _bloscpack(f)
            return Overview(about, to_values(url, about, None), {})
    is_group = kind.name in _GROUPS
    with kind.tree(address, storage_options) as tree:
        if tree.names == ("",) or (len(tree.names) == 1 and not is_group):
            source = tree.only(url)
            frame = None if source.handle is None else source.handle.revision
            about = {"format": kind.name} | _source(source) if frame is None else _frame(frame)
            return Overview(about, to_values(url, about, frame), {})
        members, failed = _describe_members(tree, tree.names)
        names = [*tree.snapshots] if at is None else []
    about = {"format": "group" if is_group else kind.name, "url": redact_url(url)}
    about |= _group(members)
    fields = to_values(url, about | {"snapshot": at, "snapshots": names}, None)
    if at is None:
        about["snapshots"] = ", ".join(names) or None
    else:
        about["snapshot"] = at
    outer, _ = split_member(address)
    directory = open_store(outer, storage_options=storage_options).disk_cache if is_group else None
    if directory is not None:
        about["disk cache"] = directory
    return Overview(about, fields, failed)


FIELDS = (
    "format",
    "url",
    "layout",
    "commits",
    "shape",
    "dtype",
    "chunks",
    "blocks",
    "grid",
    "dims",
    "fill_value",
    "nbytes",
    "cbytes",
    "ratio",
    "nchunks",
    "chunksize",
    "typesize",
    "compression",
    "metalayers",
    "generation",
    "snapshot",
    "snapshots",
    "members",
    "arrays",
    "groups",
    "bloscpack",
    "attrs",
)
"""The names of all fields in a JSON description; a field without a value is null. ``docs/_static`` holds the schema."""


def to_values(url: str, about: Description, frame: Revision | None) -> dict[str, Any]:
    """Return a description for programs: the fields `FIELDS`, with typed values instead of text."""
    # The names of rows are for people, with spaces.
    rows = {name.replace(" ", "_"): value for name, value in about.items()}
    fields: dict[str, Any] = dict.fromkeys(FIELDS)
    fields |= {name: rows[name] for name in FIELDS if name in rows}
    fields["url"] = rows.get("url") or redact_url(url)
    fields["snapshots"] = _names(rows.get("snapshots"))
    fields["metalayers"] = []
    if rows["format"] == "bloscpack":
        header = ("version", "order", "chunk_size", "last_chunk", "checksum", "offsets", "room_for", "metadata")
        fields["bloscpack"] = {name: rows[name] for name in header}
        fields["attrs"] = {}
    if frame is not None:
        chunks = SChunk(Handle(frame, "r"))
        cparams = chunks.cparams
        names = [each.name for each in dataclass_fields(cparams) if each.init]
        fields["compression"] = {name: getattr(cparams, name) for name in names}
        fields["metalayers"] = [name for name, _ in frame.frame.metalayers]
        fields["nchunks"] = chunks.nchunks
        fields["generation"] = chunks.generation
        fields["snapshots"] = _snapshot_names(frame)
    if rows["format"] == "array" and frame is not None:
        fields["fill_value"] = NDArray(Handle(frame, "r")).fill_value
    return fields


def _snapshot_names(frame: Revision) -> list[str]:
    if frame.at is not None:
        return []
    try:
        entries = ledger_in(frame).entries
    except (FormatError, UnsupportedError):
        # `verify` reports the damaged list.
        return []
    return [entry.name for entry in entries if not entry.group]


def _names(text: Any) -> list[str]:
    return [] if text is None else list(text)


def list_members(
    url: str,
    storage_options: Storage,
    *,
    deep: bool,
    at: str | None = None,
) -> tuple[Members, dict[str, Exception]]:
    """Describe one array, or the direct members of a group, with `deep` all members; return errors by name."""
    kind, address = find(url, None, storage_options, exists=True, at=at)
    with kind.tree(address, storage_options) as tree:
        if tree.names == ("",):
            outer, inner = split_member(redact_url(url))
            name = (inner or outer).rstrip("/").rpartition("/")[2]
            return {name: _brief(tree.only(url))}, {}
        names = [name for name in tree.names if deep or "/" not in name]
        members, failed = _describe_members(tree, names)
    # `_describe_members` also adds the parent groups of members; drop the nested ones.
    return {name: each for name, each in members.items() if deep or "/" not in name}, failed


def _describe_members(tree: Hierarchy, names: Iterable[str]) -> tuple[Members, dict[str, Exception]]:
    members: Members = {}
    failed: dict[str, Exception] = {} if tree.error is None else {"/": tree.error}
    for name in (*tree.attrs, *tree.names):
        # Some formats list only arrays, not the groups that contain them.
        *outer_names, _ = name.split("/")
        for outer in accumulate(outer_names, "{}/{}".format):
            members[outer] = {"kind": "group", "attrs": {}}
    for name, attrs in tree.attrs.items():
        members[name] = {"kind": "group", "attrs": {}}
        try:
            members[name]["attrs"] = dict(attrs())
        except Exception as error:  # noqa: BLE001 - other libraries raise errors of many kinds
            failed[f"{name}/"] = error
    for name in names:
        try:
            members[name] = _brief(tree.open(name))
        except Exception as error:  # noqa: BLE001 - as above
            failed[name] = error
            kind = "damaged" if isinstance(error, FormatError) else "unreadable"
            members[name] = {"kind": kind}
    return dict(sorted(members.items())), failed


def _brief(source: ArraySource) -> dict[str, Any]:
    sizes = {"nbytes": source.nbytes, "cbytes": source.stored()}
    if source.is_bytes:
        return {"kind": "chunks", **sizes}
    return {"kind": "array", "dtype": str(source.dtype), "shape": source.shape, **sizes}


def _group(members: Mapping[str, Description]) -> dict[str, Any]:
    arrays = {name: each for name, each in members.items() if each["kind"] != "group"}
    nbytes = sum(each.get("nbytes") or 0 for each in arrays.values())
    cbytes = sum(each.get("cbytes") or 0 for each in arrays.values())
    return {
        "members": len(arrays),
        "arrays": [name for name in arrays if "/" not in name],
        "groups": [name for name in members if name and name not in arrays and "/" not in name],
        "nbytes": nbytes,
        # Some formats do not tell how large their arrays are in the file.
        "cbytes": cbytes if cbytes or not arrays else None,
        "ratio": round(nbytes / cbytes, 2) if cbytes else None,
        "attrs": members.get("", {}).get("attrs", {}),
    }


def row(name: str, member: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a member's row: name, type, shape, size and ratio."""
    if member["kind"] == "group":
        return f"{name}/", "", "", "", ""
    if "nbytes" not in member:
        return name, member["kind"], "", "", ""
    ratio = f"{member['nbytes'] / member['cbytes']:.1f}x" if member["cbytes"] else ""
    dtype = member.get("dtype", "super-chunk")
    shape = str(member.get("shape", ""))
    return name, dtype, shape, text_tables.narrow_size(member["nbytes"]), ratio


def draw_tree(members: Mapping[str, Description]) -> Iterator[str]:
    """Draw members as a tree, with types, shapes, sizes and ratios."""
    cells = {}
    for name, member in members.items():
        if name:
            _, *rest = row(name, member)
            cells[name] = ("", *rest)
    rows: list[tuple[str, ...]] = [("/", "", "", "", "")]
    # Each branch is a single text, so tabs join the name and the cells.
    for line in draw_branches(nest(cells), "\t".join):
        stem, *others = line.split("\t")
        rows.append((stem.rstrip(), *others))
    yield from text_tables.text_table(rows, "<<<>>")


def _frame(revision: Revision) -> dict[str, Any]:
    handle = Handle(revision, "r")
    chunks = SChunk(handle)
    if not holds_array(revision.frame):
        return {
            "format": "super-chunk",
            "url": revision.url,
            "layout": revision.frame.frame_type.name.lower(),
            "nchunks": chunks.nchunks,
            "chunksize": chunks.chunksize,
            "typesize": chunks.typesize,
            "nbytes": chunks.nbytes,
            "cbytes": chunks.cbytes,
            "ratio": round(chunks.cratio, 2) if chunks.cbytes else None,
            "codec": text_tables.codec(chunks.cparams),
            "filters": text_tables.filters(chunks.cparams),
            "metalayers": [name for name, _ in revision.frame.metalayers],
            "attrs": dict(chunks.vlmeta),
        }
    a = NDArray(handle)
    info = dict(a.info)
    # Every handle is opened for reading here, and `generation` already identifies the state.
    for name in ("mode", "fingerprint"):
        info.pop(name, None)
    exact = {"nbytes": a.nbytes, "cbytes": a.cbytes, "ratio": round(a.cratio, 2) if a.cbytes else None}
    return {"format": "array"} | info | exact | {"attrs": dict(a.attrs)}


def _bloscpack(f: bloscpack.Reader) -> dict[str, Any]:
    header = f.header
    return {
        "format": "bloscpack",
        "url": f.url,
        "version": header.version,
        "shape": f.shape,
        "dtype": str(f.dtype),
        "order": f.order if f.is_array else None,
        "nbytes": f.nbytes,
        "cbytes": f.cbytes,
        "ratio": round(f.nbytes / f.cbytes, 2),
        "nchunks": f.nchunks,
        "chunk size": header.chunk_size,
        "last chunk": header.last_chunk,
        "checksum": CHECKSUMS[header.checksum],
        "offsets": header.offsets,
        "room for": f.nslots - f.nchunks if f.nslots else 0,
        "metadata": f.metadata,
    }


def _source(source: ArraySource) -> dict[str, Any]:
    return {
        "shape": source.shape,
        "dtype": str(source.dtype),
        "chunks": source.chunks,
        "fill value": text_tables.item(source.fill),
        "dims": source.dims,
        "attrs": dict(source.attrs),
    }


def difference(changes: Sequence[Box] | GroupDiff) -> Any:
    """Return the differences of an array or a group as lists; a box is a list of start and stop along each axis."""
    if isinstance(changes, GroupDiff):
        return {
            "made": changes.made,
            "deleted": changes.deleted,
            "changed": {name: difference(boxes) for name, boxes in changes.changed.items()},
            "attrs": changes.attrs,
        }
    return [[[part.start, part.stop] for part in box] for box in changes]


def difference_lines(changes: Sequence[Box] | GroupDiff) -> Iterator[str]:
    """Yield differences as text: one line for each member of a group, or one key for each box of an array.

    Examples
    --------
    >>> list(difference_lines([(slice(0, 2), slice(10, 20)), ()]))
    ['[0:2, 10:20]', '[()]']
    """
    if isinstance(changes, GroupDiff):
        yield from repr(changes).splitlines() if changes else ()
        return
    yield from map(box_text, changes)


def lines(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a description, without empty fields."""
    rows = {name: value for name, value in about.items() if value is not None and name != "attrs"}
    for name in ("nbytes", "cbytes"):
        if name in rows:
            rows[name] = text_tables.nbytes(rows[name])
    rows |= {f"attrs.{name}": value for name, value in about.get("attrs", {}).items()}
    yield from repr(text_tables.Info(rows)).splitlines()


def describe_cache(setting: str | os.PathLike[str], *, clear: bool) -> Overview:
    """Describe the cache on disk in a directory, after clearing it if asked to; nothing is made there.

    OSError says that the directory cannot be used.
    """
    directory = disk_cache.directory_of(setting)
    usage = disk_cache.Usage(0, 0, 0, 0, 0, 0)
    if os.path.isdir(directory):  # noqa: PTH112 - as the setting was written
        cache = disk_cache.DiskCache(directory)
        if clear:
            cache.clear()
        usage = cache.usage()
    reads = usage.hits + usage.misses
    typed = {"directory": directory, "limit": config.disk_cache_bytes, **usage._asdict()}
    rows = {
        "directory": directory,
        "size": f"{text_tables.nbytes(usage.nbytes)} of {text_tables.size(config.disk_cache_bytes)}",
        "contents": usage.files,
        "hits": f"{usage.hits} of {reads} reads ({usage.hits / max(1, reads):.0%})",
        "from disk": text_tables.nbytes(usage.hit_nbytes),
        "from servers": text_tables.nbytes(usage.missed_nbytes),
    }
    return Overview(rows, typed, {})


def plain(value: Any) -> Any:
    """Convert a value to JSON-compatible types."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        has_json_items = value.dtype.kind in "biufUSV"
        return plain(value.tolist()) if has_json_items else str(value)
    if isinstance(value, bytes):
        return value.hex()
    # JSON has no NaN and no infinities.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def frame_of(url: str, storage_options: Storage, at: str | None = None) -> Revision:
    """Open the current state or a snapshot of a frame, which may be a member of a group."""
    kind, address = find(url, None, storage_options, exists=True, at=at)
    # Do not read the layout, which may be damaged.
    if kind is B2ND:
        store = open_store(address, storage_options=storage_options)
        return owners.load(store, cached=True)
    with kind.open(address, storage_options) as source:
        if source.handle is None:
            raise UnsupportedError(f"{redact_url(url)} is of the format {kind.name}, which has no Blosc2 frames")
        return source.handle.revision


@contextmanager
def open_frame(
    url: str,
    storage_options: Storage,
    at: str | None = None,
) -> Iterator[Revision | bloscpack.Reader]:
    """Open a frame, which may be a member of a group, or a Bloscpack file; `at` is the name of a snapshot."""
    kind, _ = find(url, None, storage_options, exists=True, at=at)
    if kind.name == "blp":
        with bloscpack.open(url, storage_options=storage_options) as f:
            yield f
    else:
        yield frame_of(url, storage_options, at)
