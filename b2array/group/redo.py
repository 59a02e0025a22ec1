"""The redo log in a group's manifest: read members through it, and apply it to them.

An entry says how one member gets its new state: a header to write over the beginning of its file, or a staged frame
that replaces its own. An entry can be applied more than once. It is skipped if its member has the new state already, or
if other software has changed that since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress

from b2array.engine import snapshot
from b2array.engine.snapshot import Snapshot
from b2array.engine.source import FRAME_NAME
from b2array.errors import ConflictError, FormatError
from b2array.format.state import State
from b2array.group.manifest import Manifest, staged_path
from b2array.store.base import Store, attempts, too_many_conflicts

__all__ = ["ABSENT", "COMMIT_KEY", "apply", "commit_of", "read_member"]

COMMIT_KEY = "group"
"""Key under which a member's frame records the last transaction that changed it: the group's identity, a number."""

ABSENT = (FileNotFoundError, NotADirectoryError)

StoreOf = Callable[[str], Store]
"""Gives the store of a path in the group."""


def commit_of(state: State) -> tuple[str, int]:
    """Return the last transaction that changed a member, as its frame records it."""
    found = state.annotations.entry(COMMIT_KEY)
    if isinstance(found, list | tuple) and len(found) == 2 and isinstance(found[0], str) and type(found[1]) is int:
        return found[0], found[1]
    return "", 0


def read_member(store_of: StoreOf, manifest: Manifest, path: str) -> Snapshot:
    """Return the state of a member by the manifest: that of its own frame, or of its redo entry."""
    own = snapshot.load(store_of(path))
    return own if path not in manifest.redo or _follows(own, manifest) else _redone(store_of, manifest, path, own)


def _follows(own: Snapshot, manifest: Manifest) -> bool:
    identity, number = commit_of(own.state)
    return identity == manifest.identity and number >= manifest.number


def _redone(store_of: StoreOf, manifest: Manifest, path: str, own: Snapshot) -> Snapshot:
    """Return the state in a member's redo entry, or the present one if another process has just applied the entry."""
    change = manifest.redo[path]
    with suppress(FormatError, *ABSENT):
        if isinstance(change, bytes):
            return snapshot.restore(own.store, change, own.version)
        staged = _staged(store_of, path, change, own)
        if not own.name:
            return snapshot.load(staged)
        return snapshot.restore(own.store, b"".join(staged.pieces()), own.version)
    return snapshot.load(own.store)


def _staged(store_of: StoreOf, path: str, token: str, own: Snapshot) -> Store:
    return store_of(staged_path(path, token, sparse=own.name == FRAME_NAME))


def apply(store_of: StoreOf, manifest: Manifest, *, locked: Collection[str] = ()) -> None:
    """Give all members the states in the manifest's redo log.

    The caller holds the manifest's lock, and those of the members `locked`. ConflictError says that other writers
    changed a member again and again.
    """
    for path in manifest.redo:
        store = store_of(path)
        for _ in attempts(store):
            try:
                if _applied(store_of, manifest, path, locked=path in locked):
                    break
            except ConflictError:  # another writer came first; look again
                continue
        else:
            raise too_many_conflicts(store)
        store.force()


def _applied(store_of: StoreOf, manifest: Manifest, path: str, *, locked: bool) -> bool:
    """Apply one entry, unless that is done already; return False to try again."""
    try:
        own = snapshot.load(store_of(path))
    except ABSENT:
        return True  # the member was deleted
    # If the redo entry does not give the transaction's state, other software has changed the member since.
    if _follows(own, manifest) or commit_of(_redone(store_of, manifest, path, own).state) != manifest.commit:
        return True
    store = own.store
    with nullcontext() if locked else store.lock(own.name), suppress(*ABSENT):  # absent: another process was faster
        if snapshot.load(store).generation == own.generation:
            _publish(store, store_of, path, manifest.redo[path], own)
            return True
    return False


def _publish(store: Store, store_of: StoreOf, path: str, change: bytes | str, own: Snapshot) -> None:
    """Make a member's new state its own frame; the caller holds the member's lock."""
    if isinstance(change, bytes):
        store.patch("", 0, change)
        return
    staged = _staged(store_of, path, change, own)
    if store.appendable:
        store.adopt(staged.url, own.name, exclusive=False)
        return
    store.replace(own.name, staged.pieces(), expected=own.version)
    staged.delete([""])
