"""`vacuum` removes old files that no commit refers to; `repack` writes a file again without its dead space."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from b2array.array.schunk import schunk_at
from b2array.catalog.group_places import group_of
from b2array.catalog.manifest import MANIFEST, RETIRED, own_files
from b2array.catalog.needs import identities_of_groups, needed_offsets, needs_of_all_groups, unneeded_names
from b2array.catalog.owners import BucketMember, load, load_published
from b2array.catalog.redo import read_member
from b2array.commit import journals
from b2array.commit.draft import Draft
from b2array.commit.edits import reserve_up_to
from b2array.commit.frame_commit import commit
from b2array.commit.frame_locks import manifests_lock
from b2array.commit.leftovers import belongs, discard
from b2array.commit.publication import publish_missing
from b2array.commit.retired import remove_retired
from b2array.display.text_tables import count_text, size
from b2array.errors import ConflictError, ReadOnlyError, UnsupportedError, warn
from b2array.exchange.formats import Storage
from b2array.format.frame_header import FrameType
from b2array.format.index import chunk_number
from b2array.format.ledger import KEPT, object_name
from b2array.frame.kept_states import ledger_in, load_kept_states
from b2array.frame.revision import Revision
from b2array.group import unpacked
from b2array.group.group_snapshot import find_unneeded
from b2array.group.homes import GroupHome
from b2array.group.listed_group import ListedGroup
from b2array.group.local_group import LocalGroup
from b2array.store.base import MISSING, HiddenError, Listed, Store, attempts, too_many_conflicts
from b2array.store.endings import JOURNAL, TEMPORARY, UNFINISHED, replaced_frames
from b2array.store.local_store import LocalStore
from b2array.store.open import address_of, open_store
from b2array.tools.members import change_each
from b2array.tools.results import Result, Results, ResultSummary, first_of
from b2array.tools.unlisted import never_again, of_member, outside, unpublished
from b2array.tools.verify import verify_frame

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Cleanup", "in_seconds", "repack", "vacuum"]

_SAFE = 3600
"""The safe age in seconds: younger files may only be removed while there is no other writer."""
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_LEFT = re.compile(rf"(?P<left>(?P<frame>.+?){UNFINISHED})(?:/.+)?", re.DOTALL)
_DURATION = re.compile(r"\s*([0-9]+(?:[.][0-9]+)?)\s*(s|min|h|d)\s*")

Files = dict[str, Listed]
"""Files or objects by name or path."""


@dataclass(frozen=True, slots=True)
class Cleanup(Result):
    """The result of `vacuum` or `repack`: names of the removed files, and the number of freed bytes."""

    url: str
    dry_run: bool
    removed: tuple[str, ...] = ()
    nbytes: int = 0

    def summarize(self) -> ResultSummary:
        """Summarize the freed bytes and the removed files."""
        headline = f"{'would free' if self.dry_run else 'freed'} {count_text(self.nbytes, 'byte')}"
        if self.nbytes >= 1024:
            headline += f" ({size(self.nbytes)})"
        rows = {}
        if self.removed:
            rows["files"] = f"{len(self.removed)}: {first_of(self.removed)}"
        return ResultSummary(headline, rows)

    @classmethod
    def of(cls, url: str, files: Files, *, dry_run: bool) -> Cleanup:
        """Return the result of removing these files."""
        nbytes = sum(each.size for each in files.values())
        return cls(url, dry_run, tuple(sorted(files)), nbytes)


def vacuum(
    url: str | os.PathLike[str],
    *,
    grace: str | float = "24h",
    dry_run: bool = False,
    storage_options: Storage = None,
    fs: AbstractFileSystem | None = None,
) -> Cleanup | Results:
    """Remove old files that no commit refers to: files of killed writers, and files of earlier states.

    All files of a parallel write are removed together, once the newest file is old enough, even if the array was never
    created. The process of a transaction with forks keeps its files young.

    Some systems, such as Windows, cannot exchange two names in one step. If a writer was killed there while it replaced
    an array by one of the other layout, the old array is put back, with a warning.

    Parameters
    ----------
    url : str or os.PathLike
        An array, any other frame, a ``.b2z`` file, next to which unfinished writers leave a directory, or a group: all
        of its members are cleaned, and the result is a `Results`. In it, "." stands for files that killed writers left
        outside of the members, and for members that were never committed.
    grace : str or float, default "24h"
        The minimum age of a file, in seconds or as text with a unit ("s", "min", "h", "d"), by the clock of the server
        or file system. One hour or more is safe while others write, because a commit that takes longer checks that its
        files still exist. Use a shorter time only while there is no other writer. A handle that still shows an earlier
        state raises `ConflictError` for removed data; then refresh it.
    dry_run : bool, default False
        Only report which files would be removed.
    storage_options : mapping, optional
        For fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Raises
    ------
    UnsupportedError
        The store cannot be listed, or does not report the age of its files.
    ReadOnlyError
        The store cannot be written to.
    FormatError
        The frame is damaged: see `repair`.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), url="memory://vacuumed/")
    >>> a[...] = 1
    >>> a[...] = 2
    >>> b2array.vacuum("memory://vacuumed/", grace=0).removed
    ('00000000.chunk',)
    """
    seconds = in_seconds(grace)
    url, storage_options = address_of(url, storage_options, fs)
    text = os.fsdecode(url)
    if unpacked.is_changeable_archive(text, storage_options or {}):
        return _clean_archive(text, seconds, dry_run, storage_options)

    def frame(address: str) -> Cleanup:
        return _vacuum_store(address, seconds, dry_run, storage_options)

    def outside_members(group: GroupHome) -> Cleanup | None:
        return _clean_outside(group, seconds, dry_run)

    return change_each(url, storage_options, frame, dry_run=dry_run, outside=outside_members)


def _vacuum_store(url: str, seconds: float, dry_run: bool, storage_options: Storage) -> Cleanup:
    store = open_store(url, storage_options=storage_options)
    if not store.can.write and not dry_run:
        raise ReadOnlyError(f"{store.url} can only be read")
    for _ in attempts(store):
        try:
            name: str | None = load_published(store).name
        except FileNotFoundError:
            name = None  # writers of a new array do not lock
        # A group snapshot in progress may need files that nothing refers to yet.
        groups = nullcontext() if dry_run else manifests_lock(store)
        with groups, nullcontext() if name is None else store.lock(name, shared=dry_run):
            if not dry_run:
                _drop_unpinned(store)
            there = _removable(store, url, storage_options, seconds)
            old = _older(store, there.removable, seconds)
            if old:
                for needed in _files_in_log(store, url, storage_options, list(old)):
                    del old[needed]
            replaced = [] if there.revision is not None else _spare_replaced(there.removable, old)
            if not dry_run:
                try:
                    _commit_before(there, old)
                except ConflictError:  # another writer has committed in the meantime
                    continue
                place = Path(os.path.realpath(store.url))
                for temporary in replaced:
                    _put_back(LocalStore(place), LocalStore(place.parent / temporary))
                journals.remove(store, old)
        return Cleanup.of(store.url, old, dry_run=dry_run)
    raise too_many_conflicts(store)


def _spare_replaced(files: Collection[str], old: Files) -> list[str]:
    """Find frames whose writers were killed while they replaced them; return the names of the frames to put back.

    Nothing has their places. This takes the replaced frames out of `old`, the files to remove, in any case. A frame is
    put back if its new frame is in `old`: the writer of a younger one may be at work.
    """
    names = {name.rstrip("/"): name for name in files}
    to_put_back = []
    for replaced, new in replaced_frames(names).items():
        old.pop(names[replaced], None)
        if names[new] in old:
            to_put_back.append(replaced)
    return to_put_back


def _put_back(place: Store, replaced: Store) -> None:
    """Move a replaced frame back into its place, and warn; do nothing if something else is there by now."""
    with suppress(FileExistsError):
        place.move_here(replaced)
        warn(f"{place.url}: put the array back that its writer was replacing when it was killed")


def _drop_unpinned(store: Store) -> None:
    """Drop the states that a sparse frame keeps for dropped snapshots of its group.

    The caller holds the locks of the frame and of the groups around it.
    """
    if not store.can.local:
        return
    try:
        revision = load_published(store)
    except FileNotFoundError:
        return
    if not revision.sparse:
        return
    names = unneeded_names(revision, needs_of_all_groups(store), identities_of_groups(store))
    if not names:
        return
    draft = Draft(store, revision, locked=True)
    for name in names:
        draft.delta.drop(name)
    commit(draft)


def _commit_before(there: _There, old: Collection[str]) -> None:
    """Commit in the object store before objects are removed, so that no later commit needs them.

    ConflictError: another writer has committed in the meantime, and may need one of the objects. Because of this
    commit, a writer that has already checked its objects must check them again. No later chunk reuses the name of a
    removed object, because the store may carry out a request to delete late, or twice.
    """
    revision = there.revision
    group = there.group
    if revision is None or not revision.store.can.compare or not revision.sparse:
        return
    numbers = [number for number in map(chunk_number, old) if number is not None]
    removes_state = any(name.endswith(KEPT) for name in old)
    if numbers or (removes_state and group is None):
        draft = Draft(revision.store, revision)
        reserve_up_to(draft, max(numbers, default=-1))
        commit(draft)
    elif group is not None and old:
        never_again(group, ())


def _clean_archive(url: str, seconds: float, dry_run: bool, storage_options: Storage) -> Cleanup:
    """Remove files that writers of an archive have left next to it, unless a writer is active."""
    store = open_store(url, storage_options=storage_options)
    with unpacked.lock_abandoned(url, storage_options or {}) as left:
        leftovers = dict(journals.find_leftovers(store, {}))
        name = ""
        if left is not None:
            name = f"{Path(left).name}/"
            leftovers[name] = _directory_size(Path(left))
        elif not leftovers and not os.path.lexists(store.url):
            raise FileNotFoundError(f"{store.url}: there is no archive, and no writer has left anything")
        old = _older(store, leftovers, seconds)
        if not dry_run:
            journals.remove(store, old)
            if left is not None and name in old:
                unpacked.remove(left)
    return Cleanup.of(store.url, old, dry_run=dry_run)


def _directory_size(directory: Path) -> Listed:
    """Return the total size of a directory, and the time of its newest file."""
    files = [each.lstat() for each in (directory, *directory.rglob("*"))]
    nbytes = sum(each.st_size for each in files)
    youngest = max(each.st_mtime for each in files)
    return Listed(nbytes, youngest)


def _older(store: Store, files: Mapping[str, Listed], seconds: float) -> Files:
    """Return the files that are older than the grace period."""
    if seconds == 0:
        return dict(files)  # including files from a server whose clock is ahead
    if any(each.modified is None for each in files.values()):
        raise UnsupportedError(f"{store.url} does not know how old its files are: only grace=0 is possible")
    # Asking a store for its time may take a request, so skip it if there is nothing to remove.
    now = store.now() if files else 0.0
    return {name: each for name, each in files.items() if now - (each.modified or 0) >= seconds}


@dataclass(frozen=True, slots=True)
class _There:
    """A frame or None, the files that it does not need, and its group in an object store, if any."""

    revision: Revision | None
    removable: Mapping[str, Listed]
    group: ListedGroup | None = None


def _removable(store: Store, url: str, storage_options: Storage, seconds: float) -> _There:
    """Find the files that a frame does not need."""
    listed = _load_listed_member(store, url, storage_options)
    owner = None if listed is None else listed.owner
    if listed is not None and isinstance(owner, BucketMember):
        group = ListedGroup.of(owner.known)
        unneeded = of_member(group, owner.name, seconds, store.now())
        return _There(listed, unneeded, group)
    files: Mapping[str, Listed] = {}
    try:
        files = store.listing()
        exists = True
    except FileNotFoundError:
        exists = False
    try:
        # Load the frame after the listing, so that files committed in between are kept.
        revision = load_published(store)
    except FileNotFoundError:
        unneeded = {**journals.find_orphans(store, files, None), **journals.find_leftovers(store, files)}
        unfinished = any(name.rstrip("/").endswith(JOURNAL) for name in unneeded)
        if not unneeded or (exists and not unfinished):
            raise
        return _There(None, unneeded)
    numbers = [np.zeros(0, np.int64)]
    needed: set[str] = set()
    if revision.name:  # the objects below the name of a file would belong to the directory that the file replaced
        entries = ledger_in(revision).entries
        needed = {object_name(entry.place) for entry in entries}
        kept_snapshots = load_kept_states(revision, entries)
        numbers += [state.frame.offsets for state in (revision, *kept_snapshots)]
        numbers.append(needed_offsets(revision, needs_of_all_groups(store)))
    unneeded_states = {name: each for name, each in files.items() if name.endswith(KEPT) and name not in needed}
    orphans = journals.find_orphans(store, files, np.concatenate(numbers))
    return _There(revision, journals.find_leftovers(store, files) | unneeded_states | orphans)


def _files_in_log(
    store: Store,
    url: str,
    storage_options: Storage,
    names: Iterable[str],
) -> set[str]:
    """Return the files that the pending steps of a group need because its writer was killed after the commit."""
    if not store.can.local:
        return set()
    urls = {url}
    if isinstance(store, LocalStore):
        urls.add(os.path.realpath(store.url))
    places = {group_of(each, storage_options) for each in urls}
    needed = set()
    for place in filter(None, places):
        group = LocalGroup(place.group, storage_options or {})
        manifest = group.load_manifest()
        for path, step in manifest.pending.items():
            if path.rpartition(".")[0] != place.name:
                continue
            # A deleted member needs no files.
            with suppress(FileNotFoundError):
                offsets = read_member(group.store_of, manifest, path).frame.offsets
                numbers = set(offsets.tolist())
                staged = f".{step.token}{TEMPORARY}"
                for name in names:
                    if chunk_number(name) in numbers or name.rstrip("/").endswith(staged):
                        needed.add(name)
    return needed


def _load_listed_member(store: Store, url: str, storage_options: Storage) -> Revision | None:
    """Return the state of a member of a group in an object store; None for any other frame."""
    if store.can.local:
        return None
    try:
        snapshot = load(store, needs_group=True)
    except HiddenError:
        raise
    except FileNotFoundError:
        return None
    if snapshot.owner.lists_revisions:
        return snapshot
    # If somebody has put an older frame in the place of a member, its group still needs the files of its revision.
    place = group_of(url, storage_options)
    if place is None or not place.name:
        return None
    group = ListedGroup(place.group, storage_options or {})
    row = (group.load_manifest().rows or {}).get(place.name)
    return None if row is None or not row.generation else group.load_current(row.path)


def _clean_outside(group: GroupHome, seconds: float, dry_run: bool) -> Cleanup | None:
    """Remove unneeded files outside of the members of a group; return None if there are no such files."""
    if isinstance(group, ListedGroup):
        return _clean_outside_listed(group, seconds, dry_run)
    if dry_run:
        return _clean_outside_local(group, seconds, dry_run)
    # The lock keeps out writers that are between a check of their files and their commit.
    with group.store.lock(MANIFEST):
        group.refresh()
        return _clean_outside_local(group, seconds, dry_run)


def _clean_outside_listed(group: ListedGroup, seconds: float, dry_run: bool) -> Cleanup | None:
    """Publish what killed writers have not published, and remove what neither rows nor snapshots need."""
    for row in () if dry_run else unpublished(group):
        publish_missing(group.store, row)
    for _ in attempts(group.store):
        group.refresh()
        unneeded = outside(group, seconds, group.store.now())
        old = _older(group.store, unneeded, seconds)
        if old and not dry_run:
            try:
                never_again(group, old)
            except ConflictError:  # another writer has committed since the look
                continue
            group.store.delete(old)
        return Cleanup.of(group.store.url, old, dry_run=dry_run) if old else None
    raise too_many_conflicts(group.store)


def _clean_outside_local(group: GroupHome, seconds: float, dry_run: bool) -> Cleanup | None:
    """Remove the leftovers of killed writers outside of the members; return None if there are no leftovers.

    Leftovers are files, directories and objects with uncommitted data, chunks of deleted members, and states that no
    snapshot of the group needs. On object stores, an array that is missing from the list of members is kept, because it
    may belong to another program.
    """
    manifest = group.manifest
    members = {*group.members().values()}
    staged = {step.aside(path) for path, step in manifest.pending.items() if step.token}
    left, arrays = _waiting(group, members | staged, members)
    unneeded_files = {path: _whole(group, path) for path in (*left, *find_unneeded(group, manifest))}
    with_journal = {left[path] for path in left if path.endswith(JOURNAL)}
    for frame in with_journal:
        # A live writer updates only its journal, but may still need its older files.
        of_frame = {path: unneeded_files[path] for path in left if left[path] == frame}
        unneeded_files |= journals.with_newest_time(of_frame)
    old = _older(group.store, unneeded_files, seconds)
    replaced = _spare_replaced(unneeded_files, old)
    if not dry_run:
        for path in replaced:
            _put_back(group.store_of(left[path]), group.store_of(path))
        for path in old:
            front, _, token = path.partition("/")
            if front == RETIRED:
                remove_retired(group.store, token)
            else:
                discard(group.store_of(path))
    removed = list(old)
    nbytes = sum(each.size for each in old.values())
    for path in arrays:
        # Another process may delete the member, with all its files, at the same time.
        with suppress(FileNotFoundError):
            one = _vacuum_store(group.address(path), seconds, dry_run, group.storage_options)
            removed += [f"{path}/{name}" for name in one.removed]
            nbytes += one.nbytes
    if not removed:
        return None
    return Cleanup(group.store.url, dry_run, tuple(sorted(removed)), nbytes)


def _waiting(
    group: GroupHome,
    needed: set[str],
    members: set[str],
) -> tuple[dict[str, str], set[str]]:
    """Find files that wait for a commit, each with its frame, and arrays with journals next to them."""
    left: dict[str, str] = {}
    arrays: set[str] = set()
    empty = {*_empty_directories(group)}
    for path in own_files([*group.store.walk(), *empty]):
        parents = accumulate(path.split("/"), "{}/{}".format)
        if not needed.isdisjoint(parents):
            continue
        match = _LEFT.fullmatch(path)
        if match is not None and (match["left"] == path or belongs(path.rpartition("/")[2])):
            is_next_to_member = group.is_local and match["frame"] in members and path not in empty
            if not is_next_to_member:  # the vacuum of a local member finds files next to the member
                left[match["left"]] = match["frame"]
        elif path.endswith(JOURNAL):
            arrays.add(path.rpartition("/")[0])
    return left, arrays


def _empty_directories(group: GroupHome) -> Iterator[str]:
    """Yield empty directories: a killed writer may have just created or emptied them."""
    root = group.store.url
    for place, directories, files in os.walk(root):
        if not (directories or files):
            yield os.path.relpath(place, root).replace(os.sep, "/")


def _whole(group: GroupHome, path: str) -> Listed:
    """Return the size of a file or the total size of a directory, and the time of its newest file."""
    files: Mapping[str, Listed] = {}
    # If another process has removed the path, there are no files.
    with suppress(*MISSING):
        files = group.store_of(path).listing()
    if not files:
        try:
            modified = Path(group.store.url, path).lstat().st_mtime
        except OSError:
            # Somebody else has removed it: too young to be removed here.
            modified = inf
        return Listed(0, modified)
    nbytes = sum(each.size for each in files.values())
    return Listed(nbytes, journals.newest_time(files.values()))


def in_seconds(age: str | float) -> float:
    """Convert a duration, a number of seconds or text with a unit, to seconds."""
    if isinstance(age, str):
        match = _DURATION.fullmatch(age)
        if match is None:
            raise ValueError(f"an age must be a number of seconds or a text like '24h', not {age!r}")
        return float(match[1]) * _UNITS[match[2]]
    if not age >= 0:
        raise ValueError(f"an age must not be negative, not {age}")
    return float(age)


def repack(
    url: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    storage_options: Storage = None,
    fs: AbstractFileSystem | None = None,
    progress: bool = False,
) -> Cleanup | Results:
    """Rewrite a contiguous frame without dead space. Sparse frames have no dead space: see `vacuum`.

    Parameters
    ----------
    url : str or os.PathLike
        An array, any other frame, or a group: all of its members are rewritten, and the result is a `Results`.
    dry_run : bool, default False
        Only report how many bytes would be freed.
    storage_options : mapping, optional
        For fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.
    progress : bool, default False
        Whether to show a progress bar.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), url="memory://repacked/")
    >>> b2array.repack("memory://repacked/").nbytes
    0
    """
    url, storage_options = address_of(url, storage_options, fs)

    def one(address: str) -> Cleanup:
        opened = schunk_at(address, "r" if dry_run else "r+", storage_options=storage_options)
        if opened.frame.frame_type == FrameType.SPARSE:
            return Cleanup(opened.url, dry_run)
        store = opened._handle.store
        if dry_run:
            report = verify_frame(opened.url, lambda: load(store), deep=False, progress=progress)
            return Cleanup(opened.url, dry_run, (), report.dead_nbytes)
        before = store.stamp("").size
        opened.repack(progress=progress)
        after = store.stamp("").size
        # Another writer may append at the same time.
        return Cleanup(opened.url, dry_run, (), max(0, before - after))

    return change_each(url, storage_options, one, dry_run=dry_run)
