"""Endings of the names of files that hold no data of a frame: locks, and where new data waits for a commit."""

from __future__ import annotations

import re

__all__ = ["JOURNAL", "LOCK", "TEMPORARY", "UNFINISHED", "WORK"]

LOCK = ".b2lock"
TEMPORARY = ".b2tmp"
"""Of unfinished files. A killed writer leaves such a file behind."""
JOURNAL = ".b2write"
"""Of the journals of parallel writes in sparse frames, and of the directories next to files where their chunks wait."""
WORK = ".b2work"
"""Of the directory next to an archive where a writer has its members, until they are packed."""

UNFINISHED = rf"[.][0-9a-f]{{16}}(?:{re.escape(TEMPORARY)}|{re.escape(JOURNAL)})"
"""A pattern: the suffix of a file or directory that waits for another one, after the name of that."""
