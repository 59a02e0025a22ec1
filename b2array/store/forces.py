"""Forcing writes to the disk: each at once, or the writes of many files together.

A disk takes about as long to force one file as to force many that wait for it at the same time, and the names in a
directory are forced all at once. In a block of `together`, forces wait for its end. So the order in which the writes of
a block reach the disk is unknown, until the block has ended: what relies on them comes after it.
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
"""How many files are forced at the same time: the threads wait for the disk, not for a processor."""


class _Forces:
    """The forces of a block, and the actions that follow them."""

    def __init__(self) -> None:
        # In the order in which they were asked for: a set would differ from run to run.
        self.files: dict[str, None] = {}
        self.directories: dict[str, None] = {}
        self.actions: list[Callable[[], object]] = []

    def end(self) -> None:
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
    """Let the forces that this thread asks for in the block wait for its end, where they go out together.

    OSError at the end: perhaps nothing of it is on the disk, and nothing that was to be done `then` was done.
    """
    if _here.waiting is not None:
        yield
        return
    waiting = _here.waiting = _Forces()
    try:
        yield
        waiting.end()  # an action may ask for more forces
    finally:
        _here.waiting = None


def may_wait() -> bool:
    """Whether forces of this thread wait for the end of a block."""
    return _here.waiting is not None


def then(action: Callable[[], object]) -> None:
    """Run an action once everything forced so far is on the disk: now, or at the end of the block."""
    if _here.waiting is None:
        action()
    else:
        _here.waiting.actions.append(action)


def force_file(path: str) -> None:
    """Wait until the content of a file is on the disk, now or at the end of the block. It may be gone."""
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
