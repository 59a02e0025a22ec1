"""Calls of the operating system for local stores: reads at an offset, names, directories, locks, the disk."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from io import FileIO
from typing import Any
from weakref import ref

from b2array.store.base import durability
from b2array.store.endings import TEMPORARY

__all__ = [
    "READ", "exchange", "flush", "locked", "make_directories", "read_into", "rename_exclusively",
    "sync_directory",
]  # fmt: skip

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

try:
    from os import preadv as read_into
except ImportError:  # Windows, old macOS
    _seeking = threading.Lock()

    def read_into(fd: int, buffers: Sequence[memoryview], offset: int, /) -> int:  # type: ignore[misc]
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

    _BINARY = os.O_BINARY
    READ = os.O_RDONLY | os.O_BINARY

    def _flock(fd: int, shared: bool) -> None:  # noqa: ARG001 - Windows has no shared locks
        while True:
            os.lseek(fd, 0, os.SEEK_SET)
            try:
                return msvcrt.locking(fd, msvcrt.LK_LOCK, 1)
            except OSError as error:  # after ten seconds
                if error.errno != errno.EDEADLK:
                    raise
else:
    import fcntl

    _BINARY = 0
    # Opening a named pipe must not wait for a writer.
    READ = os.O_RDONLY | os.O_NONBLOCK

    def _flock(fd: int, shared: bool) -> None:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


_held: set[ref[FileIO]] = set()
"""Files whose locks are held. A forked child closes them, so that it does not keep its parent's locks."""


def _drop_held() -> None:
    for held in tuple(_held):
        if (file := held()) is not None:
            file.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_drop_held)


def _raise_counter(fd: int) -> None:
    # When this number changes, other processes' handles of the C library read the file again.
    os.lseek(fd, 0, os.SEEK_SET)
    content = os.read(fd, 16).ljust(16, b"\0")
    counter = (int.from_bytes(content[8:], "little") + 1) % 2**64
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, content[:8] + counter.to_bytes(8, "little"))


def sync_directory(path: str) -> None:
    """Wait until the names in a directory are on the disk."""
    if sys.platform != "win32":
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def flush(file: Any, *steps: str) -> None:
    """Flush to the system, and wait for the disk if `config.durable` is one of `steps`."""
    file.flush()
    if durability() in steps:
        os.fsync(file.fileno())


def make_directories(path: str) -> None:
    """Make a directory and those above it that are missing."""
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        make_directories(parent)
        with suppress(FileExistsError):
            os.mkdir(path)
        if durability() != "off":
            sync_directory(parent)


def rename_exclusively(source: str, target: str) -> None:
    """Give the file `source` the name `target`, unless `target` exists. The old name may stay."""
    try:
        try:
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links: reserve the name, then replace it
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            try:
                os.replace(source, target)
            except BaseException:
                os.unlink(target)
                raise
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None


def exchange(source: str, target: str) -> None:
    """Let two files or directories swap their names, in one step on Linux and macOS."""
    one, other = os.fsencode(source), os.fsencode(target)
    failed = True
    with suppress(AttributeError):  # an old C library
        if sys.platform == "linux":
            failed = ctypes.CDLL(None).renameat2(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE)
        elif sys.platform == "darwin":
            failed = ctypes.CDLL(None).renamex_np(one, other, _RENAME_EXCHANGE)
    if failed:
        # The old one stays under another name until the new one has its name.
        kept = f"{target}.{os.urandom(8).hex()}{TEMPORARY}"
        os.rename(target, kept)
        try:
            os.rename(source, target)
        except BaseException:
            os.rename(kept, target)
            raise
        os.rename(kept, source)


def locked(path: str, *, shared: bool) -> AbstractContextManager[object]:
    """Take the lock on the lock file of the C library, and hold it until the ``with`` block ends.

    Readers take it only if the file exists. The file itself is the context manager: it ends in C code, which Ctrl-C
    does not interrupt. A lock that stays behind would make the next change of its own process wait for ever.
    """
    if not shared:
        make_directories(os.path.dirname(path))
    elif not os.path.exists(path):
        return nullcontext()
    flags = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
    file = FileIO(os.open(path, flags | _BINARY, 0o666), "r" if shared else "r+")
    try:
        _held.difference_update([held for held in tuple(_held) if held() is None])
        _held.add(ref(file))
        _flock(file.fileno(), shared)
        if not shared:
            _raise_counter(file.fileno())
    except BaseException:
        file.close()
        raise
    return file
