"""Writers of a single member of a group on a local disk: how they keep to the order of the group's commits.

A commit of a group writes the manifest, and then each member. A writer of one member must not come in between. So it
takes the member's lock, and carries out what the manifest has for the member: `writers_lock`. Who makes a frame takes
the lock of the manifest, so that no commit gives the place to another one meanwhile: `makers_lock`. A group may be
inside of another one. So these look at the manifests of all groups around a member, and a transaction carries out what
other groups than its own have: `carry_out_others`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache, partial
from io import FileIO
from pathlib import Path

from b2array.commit.redo import carry_out, look_by
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.frame.catalog import read_manifest
from b2array.frame.manifest import EMBEDDED, MANIFEST, Entry
from b2array.store.base import MISSING, Store
from b2array.store.endings import TEMPORARY
from b2array.store.local import LocalStore
from b2array.store.locks import holds_locks

__all__ = ["carry_out_others", "makers_lock", "waits_for_others", "writers_lock"]

_UNREADABLE = (FormatError, LimitError, UnsupportedError)


def writers_lock(store: Store, name: str) -> AbstractContextManager[object]:
    """Take the lock of a frame, once no commit of a group that it is in waits to be carried out for it.

    The lock itself is the context manager: it ends in C code, which Ctrl-C does not interrupt.
    """
    return _once_nothing_waits(store, lambda: store.lock(name))


def makers_lock(store: Store) -> AbstractContextManager[object]:
    """Take the lock of a group's manifest for who makes a local frame in it, once nothing waits for its place.

    A frame that is in no group needs none. A thread that holds another lock takes none: a commit may wait for that one,
    and hold the manifest's.
    """
    # The first commit of a group makes its manifest.
    groups = _groups_around(store, MANIFEST) or _groups_around(store, EMBEDDED)
    if not groups:
        return nullcontext()

    def take() -> AbstractContextManager[object]:
        if holds_locks():
            return nullcontext()
        try:
            return LocalStore(groups[0][0]).lock(MANIFEST)
        except PermissionError:  # a directory in somebody else's group may be ours
            return nullcontext()

    return _once_nothing_waits(store, take)


def carry_out_others(store: Store, group: Store) -> None:
    """Carry out what other groups have for a member of a group: those that it is in, and those in between.

    The caller holds no lock.
    """
    while waiting := _waiting(store, besides=group):
        _carry_out(*waiting)


def waits_for_others(store: Store, group: Store) -> bool:
    """Whether other groups have committed what is not carried out yet for a member of a group."""
    return _waiting(store, besides=group) is not None


def _once_nothing_waits(
    store: Store, take: Callable[[], AbstractContextManager[object]]
) -> AbstractContextManager[object]:  # fmt: skip
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
        _carry_out(*waiting)


def _carry_out(group: Path, path: str, entry: Entry) -> None:
    with LocalStore(group).lock(MANIFEST):
        carry_out(partial(_member_store, group), path, entry)


def _release(lock: AbstractContextManager[object] | None) -> None:
    """Release the lock of a local file, which is taken at once. Others are taken when their block begins."""
    if isinstance(lock, FileIO):
        lock.close()


def _member_store(group: Path, path: str) -> LocalStore:
    return LocalStore(group / path, within=group)


def _groups_around(store: Store, mark: str) -> list[tuple[Path, str]]:
    """Return the groups that a local frame is in, from the innermost on, by a file that marks them, and its paths."""
    if not isinstance(store, LocalStore):
        return []
    place = Path(store.url)
    place = place.resolve() if place.is_symlink() else place
    if place.name.endswith(TEMPORARY):  # no log names the places beside members
        return []
    return [(outer, place.relative_to(outer).as_posix()) for outer in place.parents if (outer / mark).exists()]


def _waiting(store: Store, *, besides: Store | None = None) -> tuple[Path, str, Entry] | None:
    """Return the entry for a local frame that one of its groups has not carried out yet, after the group and the path.

    The log of one group may be left out.
    """
    for group, path in _groups_around(store, MANIFEST):
        if besides is not None and group == Path(besides.url):
            continue
        with suppress(*_UNREADABLE, *MISSING):  # nobody can read such a group, either
            entry = _log_of(LocalStore(group)).get(path)
            if entry is not None and look_by(entry, partial(_member_store, group), path)[1]:
                return group, path, entry
    return None


def _redo_of(group: LocalStore) -> Mapping[str, Entry]:
    """Read the redo log of a group. UnsupportedError: its files were copied from an object store."""
    manifest, _ = read_manifest(group, versioned=False)
    if manifest.rows is not None:
        raise UnsupportedError(
            f"{group.url} was copied from an object store: open it with b2array.open_group(url, 'r+') once, before you"
            " change a member by its own URL"
        )
    return manifest.redo


def _log_of(group: LocalStore) -> Mapping[str, Entry]:
    (head,) = group.head([MANIFEST], 1)
    # Right after a change, another one could leave the same times.
    if isinstance(head, Exception) or not head.unique:
        return _redo_of(group)
    return _known_log(group.url, head.unique)


@lru_cache(maxsize=16)
def _known_log(url: str, unique: str) -> Mapping[str, Entry]:  # noqa: ARG001 - it tells states of the manifest apart
    return _redo_of(LocalStore(url))
