"""The list of the last commits, in the annotations of a frame and in a group's manifest.

The list contains the first eight bytes of each commit's name, the latest first. After a request that ended with an
error, a writer looks here for its commit, which may have happened, and may have later commits on top. So does a task
that runs again.
"""

from __future__ import annotations

__all__ = ["has_commit", "merge", "with_commit"]

_NBYTES = 8
_MOST = 32


def with_commit(listed: bytes, commit: bytes) -> bytes:
    """Return the list with one more commit at the front. The list keeps only the last 32 commits.

    Examples
    --------
    >>> listed = with_commit(with_commit(b"", b"commit 1"), b"commit 2")
    >>> listed, has_commit(listed, b"commit 1")
    (b'commit 2commit 1', True)
    """
    older = listed[: (_MOST - 1) * _NBYTES]
    return commit[:_NBYTES] + older


def has_commit(listed: bytes, commit: bytes) -> bool:
    """Return whether the list contains a commit."""
    return commit[:_NBYTES] in _names_in(listed)


def merge(base: bytes, ours: bytes, theirs: bytes) -> bytes:
    """Return the list of another writer, with the commits at the front that we have added to the same base.

    Examples
    --------
    >>> base = with_commit(b"", b"commit 1")
    >>> merge(base, with_commit(base, b"commit 3"), with_commit(base, b"commit 2"))
    b'commit 3commit 2commit 1'
    """
    for name in reversed(_names_in(ours)):
        if not (has_commit(base, name) or has_commit(theirs, name)):
            theirs = with_commit(theirs, name)
    return theirs


def _names_in(listed: bytes) -> list[bytes]:
    """Return the names in a list, the latest first."""
    return [listed[at : at + _NBYTES] for at in range(0, len(listed), _NBYTES)]
