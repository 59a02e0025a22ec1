"""What local files use where the system lacks POSIX calls."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Sequence

_seeking = threading.Lock()


def read_into(fd: int, buffers: Sequence[memoryview], offset: int, /) -> int:
    """Do what `os.preadv` does."""
    done = 0
    with _seeking:
        os.lseek(fd, offset, os.SEEK_SET)
        for view in buffers:
            data = os.read(fd, len(view))
            view[: len(data)] = data
            done += len(data)
            if len(data) < len(view):
                break
    return done


if sys.platform == "win32":
    import msvcrt

    def flock(fd: int, shared: bool) -> None:  # noqa: ARG001 - Windows has no shared locks
        """Wait for the lock on a file."""
        while True:
            os.lseek(fd, 0, os.SEEK_SET)
            try:
                return msvcrt.locking(fd, msvcrt.LK_LOCK, 1)
            except OSError as error:  # after ten seconds
                if error.errno != errno.EDEADLK:
                    raise

    def unlock(fd: int) -> None:
        """Release the lock on a file."""
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
