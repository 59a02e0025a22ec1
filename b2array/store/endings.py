"""Endings of the names of files that are not part of a frame: locks, and files of commits under way."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["JOURNAL", "LOCK", "TEMPORARY", "UNFINISHED", "WORK", "replaced_frames", "replaced_name"]

LOCK = ".b2lock"
TEMPORARY = ".b2tmp"
"""The ending of unfinished files. A killed writer leaves such files behind."""
JOURNAL = ".b2write"
"""The ending of journals of parallel writes in sparse frames, and of directories with new chunks next to a file."""
WORK = ".b2work"
"""The ending of the directory next to an archive with the members of a group, before its writer packs them."""

UNFINISHED = rf"[.][0-9a-f]{{16}}(?:{re.escape(TEMPORARY)}|{re.escape(JOURNAL)})"
"""A pattern for the ending of an unfinished file or directory; before the ending is the name that it will get."""

_STAGED = re.compile(rf"(.*[.])([0-9a-f]{{16}})({re.escape(TEMPORARY)})", re.DOTALL)


def replaced_name(staged: str) -> str:
    """Return the temporary name of an old frame while the new frame `staged` gets its place; "" for any other name.

    The number in the name is larger by one. If a writer is killed when both names exist, and nothing is in the place,
    `b2array.vacuum` thus recognizes the old frame.
    """
    match = _STAGED.fullmatch(staged)
    if match is None:
        return ""
    front, token, ending = match.groups()
    number = (int(token, 16) + 1) % 2**64
    return f"{front}{number:016x}{ending}"


def replaced_frames(names: Iterable[str]) -> dict[str, str]:
    """Find frames whose writers were killed while they replaced them; return the names of the new frames, by theirs."""
    there = {*names}
    return {old: new for new in there if (old := replaced_name(new)) in there}
