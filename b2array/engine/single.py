"""Writers of a single member of a group, outside the group's transactions: how they keep to the order of its commits.

A commit of a group writes the manifest, and then each member. A writer of one member must not come in between.

On a local disk it takes the member's lock, and carries out what the manifest has for the member: `writers_lock`. Who
makes a frame takes the lock of the manifest, so that no commit gives the place to another one meanwhile: `makers_lock`.
A group may be inside of another one. So these look at the manifests of all groups around a member, and a transaction
carries out what other groups than its own have: `carry_out_others`.

An object store compares the version of one object while it writes, and has no locks. There a member that a transaction
changes notes its group. Whoever writes such a member reads its state first, and then the manifest: `may_replace`. The
first time he says there that others than transactions write the member, too, and takes its summary back. A transaction
compares the manifest while it commits, so it learns of this. For each such member, and for one that does not note its
group yet, it does three things: it reads the state, says in the manifest that it holds the member, and replaces the
state by an equal one. Whoever read a state before that cannot replace it any more, and whoever reads one later finds in
the manifest that the member is held, or the commit. He lets the transaction go first, but does not wait for ever.

A transaction that is given up leaves the member open: its state may be another one now, which other transactions must
see. A new summary leaves it open, too. Then the next writer says again that he is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache, partial
from io import FileIO
from pathlib import Path
from weakref import WeakKeyDictionary

from b2array.engine.manifest import EMBEDDED, MANIFEST, Entry, Manifest
from b2array.engine.redo import carry_out, look_by, read_manifest, write_manifest
from b2array.engine.snapshot import Snapshot
from b2array.errors import ConflictError, FormatError, LimitError, UnsupportedError
from b2array.store.base import MISSING, Store, Version, pause
from b2array.store.endings import TEMPORARY
from b2array.store.local import LocalStore
from b2array.store.locks import holds_locks

__all__ = [
    "LOOKS",
    "carry_out_others",
    "makers_lock",
    "may_replace",
    "wait",
    "waits_for_others",
    "writers_lock",
]

_UNREADABLE = (FormatError, LimitError, UnsupportedError)

# On a local disk.


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


def _log_of(group: LocalStore) -> Mapping[str, Entry]:
    (head,) = group.head([MANIFEST], 1)
    # Right after a change, another one could leave the same times.
    if isinstance(head, Exception) or not head.unique:
        return read_manifest(group, versioned=False)[0].redo
    return _known_log(group.url, head.unique)


@lru_cache(maxsize=16)
def _known_log(url: str, unique: str) -> Mapping[str, Entry]:  # noqa: ARG001 - it tells states of the manifest apart
    return read_manifest(LocalStore(url), versioned=False)[0].redo


# In an object store.

LOOKS, _LONGEST = 30, 4
"""How often to look whether a transaction still holds a member, and which pause is the longest: some five seconds."""

_known: WeakKeyDictionary[Store, tuple[Manifest, Version | None]] = WeakKeyDictionary()
"""The last manifest that was read for the store of a member, and its version: it takes long to parse a large one."""


def may_replace(held: Snapshot) -> bool:
    """Say in the manifest of the group that a state notes that others than transactions write the member.

    False: a commit of the group has come in between, or may have; then read the state again. FileNotFoundError: a
    commit has deleted the member.
    """
    noted = held.state.annotations.group_commit if held.store.can.compare else None
    store_of = None if noted is None else held.store.around(noted.path)
    if noted is None or store_of is None:  # it is in no group, or a copy from one
        return True
    path, group = noted.path, store_of("")
    for looks in range(LOOKS):
        if looks:
            wait(looks)
        manifest, version = _manifest(held.store, group)
        if manifest.identity != noted.identity:
            return True
        entry = manifest.redo.get(path)
        if entry is not None and look_by(entry, store_of, path)[1]:
            if entry.kind == "delete":
                raise FileNotFoundError(f"{held.url} was deleted")
            carry_out(store_of, path, entry)
            return False
        if manifest.is_single(path):
            return looks == 0
        is_last = looks == LOOKS - 1
        if manifest.holder(path) and not is_last:
            continue
        with suppress(ConflictError):
            write_manifest(group, manifest.with_single(path), version)
            return looks == 0
    return False


def _manifest(member: Store, group: Store) -> tuple[Manifest, Version | None]:
    """Return the manifest of a group and its version, for a writer of a member."""
    found = _known[member] = read_manifest(group, known=_known.get(member))
    return found


def wait(looks: int) -> None:
    """Let a transaction go first that holds a member: wait for a moment, longer after some looks at the manifest."""
    time.sleep(pause(min(looks, _LONGEST)))
