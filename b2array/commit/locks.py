"""The locks of local frames, for writers that do not know the group around a frame.

A commit of a group writes the manifest, and then each member. A writer of one member must not write between these
steps. So `writers_lock` takes the lock of the member, after applying the entry that the manifest may have for the
member. For a writer that makes a frame, `makers_lock` takes the lock of the manifest, so that no commit puts another
frame in the place.

A thread takes the lock of the manifest first, and then the locks of members. A thread that holds the lock of a member
never waits for the lock of the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from io import FileIO

from b2array.commit.apply import apply_entry
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.frame.catalog import read_manifest
from b2array.frame.log import action_of
from b2array.frame.manifest import EMBEDDED, MANIFEST, Entry
from b2array.store.base import MISSING, Store
from b2array.store.endings import TEMPORARY
from b2array.store.local import LocalStore
from b2array.store.locks import holds_locks

__all__ = ["groups_above", "makers_lock", "writers_lock"]

_UNREADABLE = (FormatError, LimitError, UnsupportedError)


def writers_lock(store: Store, name: str) -> AbstractContextManager[object]:
    """Take and return the lock of a frame, after applying the commit of its group that may still wait for it.

    The lock is a context manager whose end is C code, which Ctrl-C does not interrupt.
    """
    return _once_nothing_waits(store, lambda: store.lock(name))


def makers_lock(store: Store) -> AbstractContextManager[object]:
    """Take the manifest's lock to make a local frame in a group, after applying the entry that may wait for the place.

    A frame outside of groups needs no lock. A thread that holds another lock takes none, because a commit that holds
    the lock of the manifest may be waiting for that other lock.
    """
    # A group may have no manifest before its first commit, so look for an embedding frame as well.
    around = _group_around(store, (MANIFEST, EMBEDDED))
    if around is None:
        return nullcontext()
    group, _ = around

    def take() -> AbstractContextManager[object]:
        """Take the lock of the manifest, or no lock."""
        if holds_locks():
            return nullcontext()
        try:
            return LocalStore(group).lock(MANIFEST)
        except PermissionError:  # the user may own only a directory in the group
            return nullcontext()

    return _once_nothing_waits(store, take)


def _once_nothing_waits(
    store: Store,
    take: Callable[[], AbstractContextManager[object]],
) -> AbstractContextManager[object]:
    """Take a lock once no commit of a group waits to be applied to the frame.

    If one waits, this releases the lock, applies the commit, and takes the lock again.
    """
    while True:
        lock: AbstractContextManager[object] | None = None
        try:
            lock = take()
            waiting = _waiting(store)
            if waiting is None:
                return lock
        except BaseException:
            _release(lock)
            raise
        _release(lock)
        _apply(*waiting)


def _apply(group: str, path: str, entry: Entry) -> None:
    """Take the lock of a local group's manifest, if this thread does not hold it, and apply an entry of its log."""
    store = LocalStore(group)
    with nullcontext() if store.holds_lock() else store.lock(MANIFEST):
        apply_entry(store.below, path, entry)


def _release(lock: AbstractContextManager[object] | None) -> None:
    """Release the lock of a local file, which was taken at once. Other locks are taken only when their block begins."""
    if isinstance(lock, FileIO):
        lock.close()


def groups_above(place: str, marks: Sequence[str] = (MANIFEST,)) -> Iterator[tuple[str, str]]:
    """Look for files, and yield the local groups that a path leads through, with the path of the frame in each.

    The innermost group comes first. `marks` are the names of files that mark a directory as a group.
    """
    if place.endswith(TEMPORARY):  # no log and no snapshot names the temporary places next to members
        return
    inner, group = place, os.path.dirname(place)
    while group != inner:
        for mark in marks:
            if os.path.exists(os.path.join(group, mark)):
                yield group, place.removeprefix(group).lstrip(os.sep).replace(os.sep, "/")
                break
        inner, group = group, os.path.dirname(group)


def _group_around(store: Store, marks: Sequence[str] = (MANIFEST,)) -> tuple[str, str] | None:
    """Look for the innermost group around a local frame; return it, and the frame's path there, or None.

    See `groups_above` for `marks`.
    """
    if not isinstance(store, LocalStore):
        return None
    place = os.path.realpath(store.url) if os.path.islink(store.url) else store.url
    return next(groups_above(place, marks), None)


def _waiting(store: Store) -> tuple[str, str, Entry] | None:
    """Read the log of the group around a local frame: return the group, the frame's path there, and its waiting entry.

    None if no entry waits to be applied, or the manifest cannot be read.
    """
    around = _group_around(store)
    if around is None:
        return None
    group, path = around
    with suppress(*_UNREADABLE, *MISSING):  # readers cannot read such a group, either
        entry = _log_of(LocalStore(group)).get(path)
        if entry is not None and action_of(entry, LocalStore(group).below, path)[1].is_pending:
            return group, path, entry
    return None


def _read_log(group: LocalStore) -> Mapping[str, Entry]:
    """Read the log of a local group. UnsupportedError: the group was copied from an object store."""
    manifest, _ = read_manifest(group, versioned=False)
    if manifest.rows is not None:
        raise UnsupportedError(
            f"{group.url} was copied from an object store: open it with b2array.open_group(url, 'r+') once, before you"
            " change a member by its own URL"
        )
    return manifest.log


def _log_of(group: LocalStore) -> Mapping[str, Entry]:
    """Return the log of a local group; read it unless the manifest is the one that was read last time."""
    (head,) = group.head([MANIFEST], 1)
    # Right after a change, a second change might leave the same times, so do not use the cache.
    if isinstance(head, Exception) or not head.unique:
        return _read_log(group)
    return _known_log(group.url, head.unique)


@lru_cache(maxsize=16)
def _known_log(url: str, unique: str) -> Mapping[str, Entry]:  # noqa: ARG001 - it tells states of the manifest apart
    """Read the log of a local group once for each state of the manifest, which `unique` identifies."""
    return _read_log(LocalStore(url))
