"""The list of the last commits, among the entries of annotations or of a group's manifest.

It has the first eight bytes of each commit's name, the latest first. A writer whose request ended with an error finds
here whether its commit happened, even if others have committed on top of it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["has_commit", "last_commit", "with_commit"]

_KEY, _NBYTES, _MOST = "recent", 8, 32

Entries = tuple[tuple[Any, Any], ...]


def with_commit(entries: Entries, commit: bytes) -> Entries:
    """Return the entries with one more commit in front of the list; the oldest of 32 falls out.

    Examples
    --------
    >>> entries = with_commit(with_commit((), b"commit 1"), b"commit 2")
    >>> entries, last_commit(entries), has_commit(entries, b"commit 1")
    ((('recent', b'commit 2commit 1'),), b'commit 2', True)
    """
    packed = commit[:_NBYTES] + _packed(entries)[: (_MOST - 1) * _NBYTES]
    return tuple((dict(entries) | {_KEY: packed}).items())


def last_commit(entries: Entries) -> bytes:
    """Return the latest commit of the list; empty if there is no list."""
    return _packed(entries)[:_NBYTES]


def has_commit(entries: Entries, commit: bytes) -> bool:
    """Whether the list has a commit."""
    packed = _packed(entries)
    return commit[:_NBYTES] in [packed[at : at + _NBYTES] for at in range(0, len(packed), _NBYTES)]


def _packed(entries: Entries) -> bytes:
    found = dict(entries).get(_KEY)
    return found if isinstance(found, bytes) else b""
