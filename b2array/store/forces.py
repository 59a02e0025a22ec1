"""Forcing writes to the disk: each immediately, or the writes to many files together.

A disk forces many files at the same time about as fast as one file, and all names in a directory together. In a block
of `together`, forces wait for the end of the block. Until then the writes of the block reach the disk in any order, so
a write that relies on them must come after the block.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from b2array import threads
from b2array.store.base import durability
from b2array.store.descriptors import open_descriptor

__all__ = ["flush", "force_directory", "force_file", "may_wait", "sync_directory", "then", "together"]

_AT_ONCE = 16
"""The number of files to force at the same time. The threads wait for the disk, not for a processor."""


class _Forces:
    """The forces of a block, and the actions that follow them."""

    def __init__(self) -> None:
        # Dictionaries, because they keep the order: the order of a set would differ from run to run.
        self.files: dict[str, None] = {}
        self.directories: dict[str, None] = {}
        self.actions: list[Callable[[], object]] = []

    def end(self) -> None:
        # Again, because an action may request more forces.
        while self.files or self.directories or self.actions:
            files, self.files = self.files, {}
            directories, self.directories = self.directories, {}
            actions, self.actions = self.actions, []
            # More threads than files would only be started and ended.
            deque(threads.ahead(_sync_file, files, min(len(files), _AT_ONCE)), 0)
            for path in directories:
                # A directory that was removed meanwhile needs no force.
                with suppress(FileNotFoundError):
                    sync_directory(path)
            for action in actions:
                action()


class _Here(threading.local):
    waiting: _Forces | None = None


_here = _Here()


@contextmanager
def together() -> Iterator[None]:
    """Collect the forces that this thread requests in the block, and execute them together at its end.

    OSError at the end says that any of the writes may not be on the disk. No action of `then` was run.
    """
    if _here.waiting is not None:
        yield
        return
    waiting = _here.waiting = _Forces()
    try:
        yield
        waiting.end()
    finally:
        _here.waiting = None


def may_wait() -> bool:
    """Return whether forces of this thread wait for the end of a block."""
    return _here.waiting is not None


def then(action: Callable[[], object]) -> None:
    """Run an action when everything forced so far is on the disk: now, or at the end of the block."""
    if _here.waiting is None:
        action()
    else:
        _here.waiting.actions.append(action)


def force_file(path: str) -> None:
    """Wait until the content of a file is on the disk, now or at the end of the block. The file may be removed."""
    if _here.waiting is None:
        _sync_file(path)
    else:
        _here.waiting.files[path] = None


def force_directory(path: str) -> None:
    """Wait until the names in a directory are on the disk, now or at the end of the block."""
    if _here.waiting is None:
        sync_directory(path)
    else:
        _here.waiting.directories[path] = None


def flush(file: Any, path: str, *steps: str) -> None:
    """Flush an open file to the system, and force it if `config.durable` is one of `steps`."""
    file.flush()
    if durability() in steps:
        if _here.waiting is None:
            os.fsync(file.fileno())
        else:
            _here.waiting.files[path] = None


def _sync_file(path: str) -> None:
    # A file that was removed meanwhile needs no force.
    with suppress(FileNotFoundError), open(path, "r+b", opener=open_descriptor) as file:
        os.fsync(file.fileno())


def sync_directory(path: str) -> None:
    """Wait now until the names in a directory are on the disk."""
    if sys.platform != "win32":
        fd = open_descriptor(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
