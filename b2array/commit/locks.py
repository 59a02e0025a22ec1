"""The locks of local frames, for writers who know nothing of the group around.

A commit of a group writes the manifest, and then each member. A writer of one member must not come in between. So it
takes the member's lock, and applies the entry that the manifest may have for the member: `writers_lock`. A writer that
makes a frame takes the lock of the manifest, so that no commit gives the place to another frame: `makers_lock`.

The order of locks is the manifest's first, then the members'. Whoever holds the lock of a member never waits for the
manifest's.
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
    """Take the lock of a frame, once no commit of its group waits to be applied to it.

    The lock itself is the context manager: it ends in C code, which Ctrl-C does not interrupt.
    """
    return _once_nothing_waits(store, lambda: store.lock(name))


def makers_lock(store: Store) -> AbstractContextManager[object]:
    """Take the manifest's lock for a writer that makes a local frame in a group, once nothing waits for its place.

    A frame that is in no group needs none. A thread that holds another lock takes none: a commit may wait for that one,
    and hold the manifest's.
    """
    # The first commit of a group makes its manifest.
    around = _group_around(store, (MANIFEST, EMBEDDED))
    if around is None:
        return nullcontext()
    group, _ = around

    def take() -> AbstractContextManager[object]:
        if holds_locks():
            return nullcontext()
        try:
            return LocalStore(group).lock(MANIFEST)
        except PermissionError:  # a directory in somebody else's group may be ours
            return nullcontext()

    return _once_nothing_waits(store, take)


def _once_nothing_waits(
    store: Store,
    take: Callable[[], AbstractContextManager[object]],
) -> AbstractContextManager[object]:
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
    store = LocalStore(group)
    with nullcontext() if store.holds_lock() else store.lock(MANIFEST):
        apply_entry(store.below, path, entry)


def _release(lock: AbstractContextManager[object] | None) -> None:
    """Release the lock of a local file, which is taken at once. Others are taken when their block begins."""
    if isinstance(lock, FileIO):
        lock.close()


def groups_above(place: str, marks: Sequence[str] = (MANIFEST,)) -> Iterator[tuple[str, str]]:
    """Yield the local groups that a path leads through, the innermost first, with the path of the frame in each.

    `marks` are the files by which groups are known.
    """
    if place.endswith(TEMPORARY):  # neither a log nor a snapshot names the places next to members
        return
    inner, group = place, os.path.dirname(place)
    while group != inner:
        for mark in marks:
            if os.path.exists(os.path.join(group, mark)):
                yield group, place.removeprefix(group).lstrip(os.sep).replace(os.sep, "/")
                break
        inner, group = group, os.path.dirname(group)


def _group_around(store: Store, marks: Sequence[str] = (MANIFEST,)) -> tuple[str, str] | None:
    """Return the group that a local frame is in, and its path there; see `groups_above` for `marks`."""
    if not isinstance(store, LocalStore):
        return None
    place = os.path.realpath(store.url) if os.path.islink(store.url) else store.url
    return next(groups_above(place, marks), None)


def _waiting(store: Store) -> tuple[str, str, Entry] | None:
    """Return the entry for a local frame that waits to be applied in its group, after the group and the path."""
    around = _group_around(store)
    if around is None:
        return None
    group, path = around
    with suppress(*_UNREADABLE, *MISSING):  # nobody can read such a group, either
        entry = _log_of(LocalStore(group)).get(path)
        if entry is not None and action_of(entry, LocalStore(group).below, path)[1].is_pending:
            return group, path, entry
    return None


def _read_log(group: LocalStore) -> Mapping[str, Entry]:
    """Read the log of a group. UnsupportedError: its files were copied from an object store."""
    manifest, _ = read_manifest(group, versioned=False)
    if manifest.rows is not None:
        raise UnsupportedError(
            f"{group.url} was copied from an object store: open it with b2array.open_group(url, 'r+') once, before you"
            " change a member by its own URL"
        )
    return manifest.log


def _log_of(group: LocalStore) -> Mapping[str, Entry]:
    (head,) = group.head([MANIFEST], 1)
    # Right after a change, another one could leave the same times.
    if isinstance(head, Exception) or not head.unique:
        return _read_log(group)
    return _known_log(group.url, head.unique)


@lru_cache(maxsize=16)
def _known_log(url: str, unique: str) -> Mapping[str, Entry]:  # noqa: ARG001 - it tells states of the manifest apart
    return _read_log(LocalStore(url))
