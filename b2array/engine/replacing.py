"""New frames that replace frames of the other layout: a file replaces a directory, or the reverse."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from b2array.engine.fetch import chunk_number
from b2array.engine.snapshot import Snapshot, load
from b2array.engine.source import FRAME_NAME
from b2array.errors import B2ArrayError, FormatError, UnsupportedError
from b2array.format import index
from b2array.store.base import Store

__all__ = ["discard", "frame_in", "is_part", "take_place"]


def is_part(name: str) -> bool:
    """Whether a file in the directory of a sparse frame belongs to it."""
    return name in (FRAME_NAME, ".b2lock") or chunk_number(name) is not None


def frame_in(store: Store) -> Snapshot | None:
    """Return the frame that a new one is to replace, if there is one that can be read."""
    try:
        return load(store)
    except (FileNotFoundError, FormatError, UnsupportedError):
        return None


def take_place(place: Store, made: Snapshot, old: Snapshot | None) -> Snapshot:
    """Let a new frame replace one of the other layout, and remove the old one.

    The new one is in `place`, where the old one was, or in the store that `Store.beside` has returned.
    """
    if made.store is not place:
        place.exchange(made.store)
        discard(made.store)
        return replace(made, store=place)
    if old is None or old.name == made.name:
        return made
    if made.name:
        place.delete([old.name])  # until then readers find the old one
        return made
    with suppress(OSError, B2ArrayError):  # what stays behind disturbs no reader
        offsets = old.frame.offsets
        place.delete([old.name, *map(index.chunk_name, offsets[offsets >= 0].tolist())])
    return made


def discard(store: Store) -> None:
    """Remove a frame that is in a place of its own, as far as possible."""
    with suppress(OSError, B2ArrayError):
        store.delete([*filter(is_part, store.listing()), ""])
