"""Descriptors of open files. Systems allow few of them: 256 on macOS, usually 1,024 on Linux.

A store of one file keeps the file open between reads, if it is among the stores that were read most recently. The other
stores close their files, and open them again for the next read.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Final, Protocol
from weakref import WeakValueDictionary

if sys.platform != "win32":
    import resource

__all__ = ["Keeper", "allow", "count_use", "keep", "limit", "open_descriptor"]

_FEWEST, _MOST = 16, 1024
_SHARE = 4
"""The divisor for the share of descriptors that stores may use. Locks, connections and the user need the rest."""
_GONE: Final = 4
"""The divisor for the share of files to close if too many are open, so that few new files search for the oldest."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)

count_use = itertools.count().__next__
"""Return a larger number than ever before. The call is C code, so threads need no lock."""


class Keeper(Protocol):
    """An object that keeps a file open between uses."""

    last_use: int
    """The count that `count_use` returned at the last use of the file."""

    def release(self) -> None:
        """Close the file when nobody reads from it any more; the next use opens it again."""


_keepers: WeakValueDictionary[int, Keeper] = WeakValueDictionary()
"""All keepers with an open file, by `id`."""


def keep(keeper: Keeper) -> None:
    """Record that a keeper has opened its file; if too many files are open, close the least recently used ones."""
    keeper.last_use = count_use()
    _keepers[id(keeper)] = keeper
    if len(_keepers) > _FEWEST and len(_keepers) > _capacity():
        by_use = sorted(_all_keepers(), key=lambda each: each.last_use)
        _release(by_use[: 1 + len(by_use) // _GONE])


def _all_keepers() -> list[Keeper]:
    # Other threads may change the dictionary meanwhile, so copy the references in one call of C code.
    keepers = (reference() for reference in _keepers.valuerefs())
    return [keeper for keeper in keepers if keeper is not None]


def _release(keepers: Sequence[Keeper]) -> None:
    for keeper in keepers:
        _keepers.pop(id(keeper), None)
        keeper.release()


def _capacity() -> int:
    return min(max(_FEWEST, limit() // _SHARE), _MOST)


def limit() -> int:
    """Return how many descriptors the process may have now; programs can change this limit."""
    if sys.platform == "win32":
        return _SHARE * _MOST
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def allow(count: int) -> bool:
    """Raise the limit of descriptors to `count`, or as far as allowed; return whether the limit is now higher."""
    if sys.platform == "win32":
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        # macOS has a lower limit than it reports.
        return False
    return True


def open_descriptor(path: str, flags: int, mode: int = 0o666, *, dir_fd: int | None = None) -> int:
    """Open a file like `os.open`. If too many files are open, close the files of the stores, and try again."""
    try:
        return os.open(path, flags, mode, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in _EXHAUSTED or not _keepers:
            raise
    _release(_all_keepers())
    return os.open(path, flags, mode, dir_fd=dir_fd)
