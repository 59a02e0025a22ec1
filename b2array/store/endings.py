"""Endings of the names of files that are not part of a frame: locks, and files of commits under way."""

from __future__ import annotations

import re

__all__ = ["JOURNAL", "LOCK", "TEMPORARY", "UNFINISHED", "WORK"]

LOCK = ".b2lock"
TEMPORARY = ".b2tmp"
"""The ending of unfinished files. A killed writer leaves such files behind."""
JOURNAL = ".b2write"
"""The ending of journals of parallel writes in sparse frames, and of directories with new chunks next to a file."""
WORK = ".b2work"
"""The ending of the directory next to an archive with the members of a group, before its writer packs them."""

UNFINISHED = rf"[.][0-9a-f]{{16}}(?:{re.escape(TEMPORARY)}|{re.escape(JOURNAL)})"
"""A pattern for the ending of an unfinished file or directory; before the ending is the name that it will get."""
