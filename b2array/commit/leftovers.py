"""Removes files that writers leave in the places of frames."""

from __future__ import annotations

from b2array.format.index import chunk_number
from b2array.format.ledger import KEPT
from b2array.frame.source import FRAME_NAME
from b2array.store.base import MISSING, Store
from b2array.store.endings import JOURNAL, LOCK, TEMPORARY

__all__ = ["belongs", "discard", "is_abandoned"]


def discard(store: Store, *, locked: bool = False) -> None:
    """Remove a staged or replaced frame: a file, a directory or an object, which may be missing already.

    Files that do not belong to a frame remain, and so does their directory. If `locked`, the caller ensures that no
    other process uses the place.
    """
    if store.can.local:
        store.remove(FRAME_NAME, belongs, locked=locked)
        store.drop_lock()  # no other writer waits for the lock: only its writer knows this place
    else:
        store.delete([""])


def is_abandoned(store: Store) -> bool:
    """List a place: whether it is a directory that is empty, or has only files of late writers.

    A late writer does not notice that its frame was deleted, and creates the directory again.
    """
    try:
        names = store.walk()
    except MISSING:
        return False
    is_directory = isinstance(store.head([""], 1)[0], IsADirectoryError)
    return is_directory and FRAME_NAME not in names and all(map(belongs, names))


def belongs(name: str) -> bool:
    """Whether a file in the directory of a frame is part of it, or waits there for a commit."""
    return name == FRAME_NAME or chunk_number(name) is not None or name.endswith((LOCK, TEMPORARY, JOURNAL, KEPT))
