"""What writers leave in the places of frames, and how it is removed."""

from __future__ import annotations

from b2array.format.kept import KEPT
from b2array.frame.fetch import chunk_number
from b2array.frame.source import FRAME_NAME
from b2array.store.base import MISSING, Store
from b2array.store.endings import JOURNAL, LOCK, TEMPORARY

__all__ = ["belongs", "discard", "is_abandoned"]


def discard(store: Store, *, locked: bool = False) -> None:
    """Remove what was staged, or put aside: a file, a directory, or an object. It may be gone.

    Files that are no part of a frame stay, and so does their directory. If `locked`, the caller sees to it that no
    other process is at work there.
    """
    if store.can.local:
        store.remove(FRAME_NAME, belongs, locked=locked)
        store.drop_lock()  # nobody else waits for it: only its writer knows this place
    else:
        store.delete([""])


def is_abandoned(store: Store) -> bool:
    """Whether there is a directory with nothing in it, or with files of late writers.

    They missed that the frame was deleted, and make its directory anew.
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
