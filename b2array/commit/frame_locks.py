"""The locks of local frames, for writers that do not know the groups around a frame.

A commit of a group writes the manifest, and then each member. A writer of one member must not write between these
steps. So `writers_lock` takes the lock of the member, after taking the step that the manifest may list for the
member. For a writer that makes a frame, `makers_lock` takes the lock of the manifest, so that no commit puts another
frame in the place.

A thread takes the lock of the manifest first, and then the locks of members. A thread that holds the lock of a member
never waits for the lock of the manifest.

A writer that destroys bytes holds the locks of all manifests around the frame, so that nobody makes a snapshot of these
bytes meanwhile. `manifests_lock` waits for the locks. `try_manifests_lock` takes them only if they are free, because
its caller already holds the lock of the member.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import lru_cache
from io import FileIO

from b2array.catalog.known_manifests import read_manifest
from b2array.catalog.manifest import EMBEDDED, MANIFEST, PendingStep
from b2array.catalog.needs import groups_above, local_groups
from b2array.catalog.redo import LocalMember, action_of
from b2array.commit.publication import publish_step
from b2array.errors import ConflictError, FormatError, LimitError, UnsupportedError
from b2array.store.base import MISSING, Store
from b2array.store.local_store import LocalStore
from b2array.store.locks import holds_locks

__all__ = ["makers_lock", "manifests_lock", "publish_waiting", "try_manifests_lock", "writers_lock"]

_UNREADABLE = (FormatError, LimitError, UnsupportedError)


def writers_lock(store: Store, name: str) -> AbstractContextManager[object]:
    """Take and return the lock of a frame, after taking the step that may be pending for it.

    The header of the frame is in the object `name`. The lock is a context manager whose end is C code, which Ctrl-C
    does not interrupt.
    """
    return _lock_without_pending(store, lambda: store.lock(name))


def makers_lock(store: Store) -> AbstractContextManager[object]:
    """Take and return the manifest's lock to make a local frame in a group, after taking a step pending for the place.

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

    return _lock_without_pending(store, take)


def _lock_without_pending(
    store: Store,
    take: Callable[[], AbstractContextManager[object]],
) -> AbstractContextManager[object]:
    """Take a lock with the function `take`, and return it once no step of a group is pending for the frame.

    If one is pending, this releases the lock, takes the step, and takes the lock again.
    """
    while True:
        lock: AbstractContextManager[object] | None = None
        try:
            lock = take()
            waiting = _find_pending(store)
            if waiting is None:
                return lock
        except BaseException:
            _release(lock)
            raise
        _release(lock)
        _take_under_lock(*waiting)


def publish_waiting(owner: LocalMember) -> None:
    """If the pending step of a member puts a new frame into its place, take the step, so that a writer finds it there.

    No writer may change a frame that waits in another place. If the member has no such step, this does nothing.
    """
    step = _pending_of(owner.group).get(owner.path)
    if step is not None and step.kind == "frame":
        _take_under_lock(owner.group, owner.path, step)


def _take_under_lock(group: Store, path: str, step: PendingStep) -> None:
    """Take a pending step of a local group, under the lock of its manifest; the manifest still lists the step.

    This waits for that lock, unless this thread holds it already.
    """
    is_locked = isinstance(group, LocalStore) and group.holds_lock()
    with nullcontext() if is_locked else group.lock(MANIFEST):
        publish_step(group, path, step)


def _release(lock: AbstractContextManager[object] | None) -> None:
    """Release the lock of a local file, which was taken at once; do nothing for other locks, and without a lock.

    Other locks are taken only when their block begins.
    """
    if isinstance(lock, FileIO):
        lock.close()


def _group_around(store: Store, marks: Sequence[str] = (MANIFEST,)) -> tuple[str, str] | None:
    """Look for the innermost group around a local frame; return it, and the frame's path there, or None.

    See `groups_above` for `marks`.
    """
    if not isinstance(store, LocalStore):
        return None
    place = os.path.realpath(store.url) if os.path.islink(store.url) else store.url
    return next(groups_above(place, marks), None)


def _find_pending(store: Store) -> tuple[Store, str, PendingStep] | None:
    """Look for the group around a local frame, and return the group, the frame's path there, and its pending step.

    None if no step is pending, or the manifest cannot be read.
    """
    around = _group_around(store)
    if around is None:
        return None
    url, path = around
    group = LocalStore(url)
    with suppress(*_UNREADABLE, *MISSING):  # readers cannot read such a group, either
        step = _pending_of(group).get(path)
        if step is not None and action_of(step, group.below, path)[1].is_pending:
            return group, path, step
    return None


def _read_pending(group: Store) -> Mapping[str, PendingStep]:
    """Read the pending steps of a local group. UnsupportedError: the group was copied from an object store."""
    manifest, _ = read_manifest(group, versioned=False)
    if manifest.rows is not None:
        raise UnsupportedError(
            f"{group.url} was copied from an object store: open it with b2array.open_group(url, 'r+') once, before you"
            " change a member by its own URL"
        )
    return manifest.pending


def _pending_of(group: Store) -> Mapping[str, PendingStep]:
    """Return the pending steps of a local group; read them unless the manifest is the one that was read last time."""
    (head,) = group.head([MANIFEST], 1)
    # Right after a change, a second change might leave the same times, so do not use the cache.
    if isinstance(head, Exception) or not head.unique:
        return _read_pending(group)
    return _known_pending(group.url, head.unique)


@lru_cache(maxsize=16)
def _known_pending(url: str, unique: str) -> Mapping[str, PendingStep]:  # noqa: ARG001 - it tells states of the manifest apart
    """Read the pending steps of a local group once for each state of the manifest, which `unique` identifies."""
    return _read_pending(LocalStore(url))


# The locks for destroying states that snapshots need.


@contextmanager
def try_manifests_lock(store: Store) -> Iterator[bool]:
    """Take the locks of the manifests around a frame if they are free; yield whether this thread holds all of them.

    This never waits, because the caller holds the lock of the frame, and the holder of a manifest's lock may be waiting
    for the frame.
    """
    with ExitStack() as locks:
        yield all(_try_lock(group, locks) for group, _ in local_groups(store))


def _try_lock(url: str, locks: ExitStack) -> bool:
    """Take the lock of the manifest of the group at a URL if it is free, and add it to `locks`.

    Return whether states may be destroyed. If this thread holds the lock already, that is enough. Without permission to
    lock, the group must have no snapshots.
    """
    group = LocalStore(url)
    if group.holds_lock():
        return True
    try:
        lock = group.lock_if_free(inside=True)
    except PermissionError:
        # The user may write to the member but not to the group. A group without snapshots needs no lock: its first
        # snapshot takes the locks of all members.
        manifest, _ = read_manifest(group, versioned=False)
        return not manifest.kept
    if lock is None:
        return False
    locks.callback(lock.close)
    return True


@contextmanager
def manifests_lock(store: Store) -> Iterator[None]:
    """Wait for the locks of the manifests around a frame, and hold them.

    ConflictError: this thread holds a lock already, and another writer holds the lock of a manifest. Then this thread
    does not wait, because that writer may be waiting for it.
    """
    may_wait = not holds_locks()
    with ExitStack() as locks:
        # Every writer takes the locks from the outermost group inward, so that no two writers wait for each other.
        for url, _ in reversed(local_groups(store)):
            group = LocalStore(url)
            if may_wait and not group.holds_lock():
                locks.enter_context(group.lock(MANIFEST))
            elif not _try_lock(url, locks):
                raise ConflictError(f"{group.url}: another writer is at work")
        yield
