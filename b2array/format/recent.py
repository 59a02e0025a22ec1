"""The list of the last commits, in the annotations of a frame and in a group's manifest.

The list contains the first eight bytes of each commit's name, the latest first. After a request that ended with an
error, a writer looks here for its commit, which may have happened, and may have later commits on top.
"""

from __future__ import annotations

__all__ = ["has_commit", "with_commit"]

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
    starts = range(0, len(listed), _NBYTES)
    names = [listed[at : at + _NBYTES] for at in starts]
    return commit[:_NBYTES] in names
