"""Finds objects of a group in an object store that neither a row of the manifest nor a snapshot needs any more.

An index was replaced at the time when the next index of its member was created. Until the grace period is over, a
reader may still use the old revision, so its chunks are kept as well. Ages are measured by the server's clock.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf

import numpy as np
import numpy.typing as npt

from b2array.catalog.ledgers import group_ledger
from b2array.catalog.manifest import DATA, MANIFEST, SUFFIXES, Row, index_name, is_index_name, name_of, own_files
from b2array.catalog.owners import load_published, load_revision
from b2array.commit import journals
from b2array.commit.manifest_writes import replace_manifest
from b2array.errors import B2ArrayError, FormatError
from b2array.format.index import chunk_number
from b2array.format.ledger import KEPT, object_name
from b2array.frame.kept_states import ledger_in, load_kept_states
from b2array.frame.revision import Revision
from b2array.frame.source import FRAME_NAME
from b2array.group.group_snapshot import find_unneeded, load_snapshot
from b2array.group.listed_group import ListedGroup
from b2array.store.base import Listed, Store, stale_reader, where
from b2array.store.endings import JOURNAL, TEMPORARY

__all__ = ["chunks_needed", "never_again", "of_member", "outside", "unpublished"]

Int64Array = npt.NDArray[np.int64]
Files = dict[str, Listed]
"""Objects by name or path."""


def of_member(group: ListedGroup, name: str, seconds: float, now: float) -> Files:
    """Find unneeded objects in the prefix of a sparse member, by name."""
    row = group.rows.get(name)
    if row is None or not row.sparse:
        return {}
    return _in_prefix(group, row.path, _live(group), seconds, now)


def chunks_needed(group: ListedGroup, name: str) -> Int64Array:
    """Return the numbers of the chunks that the listed state of a sparse member or the group's snapshots need.

    Raises
    ------
    FormatError, UnsupportedError
        An index or the list of a snapshot cannot be read.
    """
    path = group.rows[name].path
    numbers, _ = _find_needed(_states(group, path, (), _live(group).get(path, ())))
    return numbers


def unpublished(group: ListedGroup) -> list[Row]:
    """Return the rows whose members have no published index."""
    files = {*group.store.walk()}
    missing = []
    for row in group.rows.values():
        published = f"{row.path}/{FRAME_NAME}" if row.sparse else row.path
        if row.generation and published not in files:
            missing.append(row)
    return missing


def outside(group: ListedGroup, seconds: float, now: float) -> Files:
    """Find unneeded objects outside of the members: left by deleted members, failed writers and dropped snapshots.

    A frame that does not note the group belongs to someone else, who may have copied it there: its objects stay.
    Before the objects are removed, `never_again` must ensure that no commit in progress needs them.
    """
    files = _with_times(group)
    live = _live(group)
    unneeded_objects = _contiguous(group, files, live, seconds, now)
    for path in find_unneeded(group, group.manifest):
        if path in files:
            unneeded_objects[path] = files[path]
    unneeded_objects |= {path: each for path, each in files.items() if path.endswith(TEMPORARY)}
    prefixes = set()
    for path in files:
        prefix, _, name = path.rpartition("/")
        if _is_of_member(name):
            prefixes.add(prefix)
    # `vacuum` cleans listed members one by one, and reports on each.
    listed = {row.path for row in group.rows.values()}
    for path in files.keys() - {row.path for row in group.rows.values() if not row.sparse}:
        if path.endswith(SUFFIXES) and _is_leftover(group, path, sparse=False):
            unneeded_objects[path] = files[path]
    for prefix in sorted(prefixes - listed):
        if not prefix.endswith(SUFFIXES):
            continue
        if f"{prefix}/{FRAME_NAME}" in files and not _is_leftover(group, prefix, sparse=True):
            continue
        for name, each in _in_prefix(group, prefix, live, seconds, now).items():
            unneeded_objects[f"{prefix}/{name}"] = each
    return unneeded_objects


def never_again(group: ListedGroup, paths: Iterable[str]) -> None:
    """Record the removal of these objects in a commit, so that no later member reuses the numbers of their chunks.

    ConflictError: another writer has committed since the group was read, and may need one of the objects. Because this
    is a commit, a writer that commits later must first check again that its objects exist.
    """
    highest: dict[str, int] = {}
    for path in paths:
        prefix, _, name = path.rpartition("/")
        number = chunk_number(name)
        if number is None or not prefix.endswith(SUFFIXES):
            continue
        highest[prefix] = max(highest.get(prefix, -1), number)
    manifest, version = group.versioned_manifest()
    gone = dict(manifest.gone)
    for path, number in highest.items():
        gone[path] = max(gone.get(path, 0), number + 1)
    after = replace(manifest, gone=gone, number=manifest.number + 1)
    with group.store.lock(MANIFEST):
        replace_manifest(group.known, after.with_commit(os.urandom(8).hex()), version, is_commit=True)


def _is_leftover(group: ListedGroup, path: str, *, sparse: bool) -> bool:
    """Read a frame that the group does not list, and return whether it notes the group, which listed it or meant to.

    A frame that cannot be read may belong to someone else.
    """
    try:
        published = load_published(group.store_of(path), sparse=sparse)
    except (OSError, B2ArrayError):
        return False
    return published.state.annotations.is_member(group.manifest.identity, path)


def _live(group: ListedGroup) -> dict[str, set[str]]:
    """Return the revisions that rows and snapshots refer to, by the paths of sparse members.

    The revisions of all contiguous members are under "".
    """
    live: dict[str, set[str]] = {"": set()}
    for row in group.rows.values():
        path = row.path if row.sparse else ""
        live.setdefault(path, set()).add(row.generation)
    for entry in group_ledger(group.url, group.manifest).entries:
        for state in load_snapshot(group, entry, group.manifest).states.values():
            path = state.path if state.sparse else ""
            live.setdefault(path, set()).add(state.generation.hex())
    return live


def _in_prefix(
    group: ListedGroup,
    path: str,
    live: Mapping[str, Collection[str]],
    seconds: float,
    now: float,
) -> Files:
    store = group.store_of(path)
    wanted = live.get(path, ())
    try:
        files = store.listing()
    except FileNotFoundError:
        files = {}
    has_journal = any(name.endswith(JOURNAL) for name in files)
    if has_journal and not wanted:  # a transaction is about to create the member
        files = journals.with_newest_time(files)
    indexes = {name: each for name, each in files.items() if is_index_name(name)}
    live_indexes = {index_name(revision) for revision in wanted}
    old = _find_replaced(indexes, live_indexes, seconds, now)
    revisions = {_revision_in(name) for name in indexes}
    states = _states(group, path, revisions - old, wanted)
    listed = group.rows.get(name_of(path))
    if listed is not None and listed.path == path and not listed.generation:
        # The group lists the member, but no commit to the member has followed yet.
        states.append(load_published(store))
    needed, objects = _find_needed(states)
    unneeded_objects = {}
    for name, each in files.items():
        is_old_index = name in indexes and _revision_in(name) in old
        is_unneeded_state = name.endswith(KEPT) and name not in objects
        if is_old_index or is_unneeded_state or name.endswith(TEMPORARY):
            unneeded_objects[name] = each
    if not wanted and FRAME_NAME in files:
        unneeded_objects[FRAME_NAME] = files[FRAME_NAME]
    return unneeded_objects | journals.find_orphans(store, files, needed)


def _revision_in(name: str) -> str:
    """Extract the revision from the name of an index."""
    return name.rpartition(".")[2]


def _find_replaced(
    indexes: Mapping[str, Listed],
    live: Collection[str],
    seconds: float,
    now: float,
) -> set[str]:
    """Return the revisions that are not live, and that were replaced before the grace period.

    A revision was replaced when the next index of the same member was written.
    """
    ordered = sorted(indexes, key=lambda name: indexes[name].modified or 0.0)
    old = set()
    for position, name in enumerate(ordered):
        if name in live:
            continue
        later = ordered[position + 1] if position + 1 < len(ordered) else name
        when = indexes[later].modified
        is_past_grace = when is not None and now - when >= seconds
        # Without a grace period, clocks do not matter.
        if is_past_grace or seconds == 0:
            old.add(_revision_in(name))
    return old


def _states(
    group: ListedGroup,
    path: str,
    revisions: Collection[str],
    wanted: Collection[str],
) -> list[Revision]:
    """Read revisions. Raise if a `wanted` revision is damaged or missing, because its chunks are then unknown.

    Raises
    ------
    FormatError, UnsupportedError
        A wanted revision cannot be read.
    ConflictError
        A wanted revision has been removed since another writer's commit replaced it.
    """
    states = []
    for revision in sorted({*revisions, *wanted} - {""}):
        try:
            row = Row(path, revision)
            states.append(load_revision(group.owner_of(path), row))
        except FileNotFoundError:
            if revision not in wanted:
                continue
            if group.load_manifest() != group.manifest:
                raise stale_reader(group.url) from None
            place = where(group.store_of(path).url, index_name(revision))
            raise FormatError(f"{place}: expected an index that the group lists, found none") from None
        except B2ArrayError:
            if revision in wanted:
                raise
    return states


def _find_needed(states: Iterable[Revision]) -> tuple[Int64Array, set[str]]:
    """Return the numbers of the chunks that states need, and the names of the objects with their kept states."""
    numbers = [np.zeros(0, np.int64)]
    objects: set[str] = set()
    for state in states:
        entries = ledger_in(state).entries
        objects |= {object_name(entry.place) for entry in entries}
        kept = load_kept_states(state, entries)
        numbers += [each.state.frame.offsets for each in (state, *kept)]
    return np.concatenate(numbers), objects


def _contiguous(
    group: ListedGroup,
    files: Mapping[str, Listed],
    live: Mapping[str, Collection[str]],
    seconds: float,
    now: float,
) -> Files:
    """Find unneeded revisions of contiguous members."""
    members: dict[str, Files] = {}
    for path, each in files.items():
        if not path.startswith(f"{DATA}/"):
            continue
        owner = ""
        # An unreadable object belongs to no member.
        with suppress(B2ArrayError, OSError):
            noted = load_published(group.store_of(path)).state.annotations.group_commit
            if noted is not None:
                owner = noted.path
        revision = path.rpartition("/")[2]
        members.setdefault(owner, {})[f".{revision}"] = each
    live_indexes = {f".{revision}" for revision in live[""]}
    unneeded_objects = {}
    for indexes in members.values():
        for revision in _find_replaced(indexes, live_indexes, seconds, now):
            unneeded_objects[f"{DATA}/{revision}"] = indexes[f".{revision}"]
    return unneeded_objects


def _with_times(group: ListedGroup) -> Files:
    """List all objects of the group, with sizes and times, prefix by prefix."""
    files: Files = {}
    paths = own_files(group.store.walk())
    for prefix in {path.rpartition("/")[0] for path in paths}:
        store: Store = group.store_of(prefix) if prefix else group.store
        # The directory may have been removed in the meantime.
        with suppress(FileNotFoundError):
            for name, each in store.listing().items():
                path = f"{prefix}/{name}" if prefix else name
                files[path] = each
    # An object that was created between the two listings counts as new.
    return {path: files.get(path, Listed(0, inf)) for path in paths}


def _is_of_member(name: str) -> bool:
    if chunk_number(name) is not None or is_index_name(name):
        return True
    return name.endswith((KEPT, JOURNAL))
