"""Calls of the operating system for local stores: reads at an offset, renames, directories, room on the disk."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from b2array.store.base import durability
from b2array.store.descriptors import open_descriptor
from b2array.store.endings import replaced_name
from b2array.store.forces import force_directory, sync_directory, then

__all__ = [
    "FULL",
    "READ",
    "allocate",
    "exchange",
    "flush",
    "inherit",
    "make_directories",
    "read_into",
    "remove_directories",
    "rename_exclusively",
    "rename_to_free_name",
    "reserve",
    "swap",
    "sync_directory",
]

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""The numbers of the errors of a full disk: it has no more blocks or names, or the user may have no more of them."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_FALLOC_FL_KEEP_SIZE = 1
_ZEROS = bytes(2**20)

try:
    from os import preadv as read_into
except ImportError:  # Windows, old macOS
    _seeking = threading.Lock()

    def read_into(  # type: ignore[misc]
        fd: int,
        buffers: Sequence[memoryview],
        offset: int,
        /,
    ) -> int:
        """Read bytes at an offset into buffers like `os.preadv`; return how many."""
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
    READ = os.O_RDONLY | os.O_BINARY
else:
    # Opening a named pipe must not wait for a writer.
    READ = os.O_RDONLY | os.O_NONBLOCK


def flush(file: Any, *steps: str) -> None:
    """Flush an open file to the system, and wait for the disk if `config.durable` is one of `steps`."""
    file.flush()
    if durability() in steps:
        os.fsync(file.fileno())


def allocate(path: str, start: int) -> None:
    """Allocate room on the disk for all bytes of a new file, which are zeros from `start` on; OSError if it is full.

    Otherwise a write to a hole through a memory map would end the process on a full disk.
    """
    with open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= start or _allocates(file.fileno(), start, size - start, path):
            return
        file.seek(start)
        file.writelines(_ZEROS[: size - first] for first in range(start, size, len(_ZEROS)))


def _allocates(fd: int, start: int, nbytes: int, path: str) -> bool:
    """Allocate room for a part of a file; return False if the system cannot; OSError if the disk is full."""
    if sys.platform == "win32" or sys.platform == "darwin":
        return False
    try:
        os.posix_fallocate(fd, start, nbytes)
    except OSError as error:
        _require_room(error.errno or 0, path)
        return False
    return True


def _require_room(number: int, path: str) -> None:
    """Raise OSError if a call failed for want of room; return if the file system does not support the call."""
    if number in (*FULL, errno.EFBIG):
        raise OSError(number, os.strerror(number), path)


def reserve(path: str, nbytes: int) -> None:
    """Reserve room for a file that will have `nbytes` bytes, without changing its size; OSError if the disk is full.

    Call this before writes that must not fail. To free the room, truncate the file to its size. If the system cannot
    reserve room, the missing bytes are compared with the free space.
    """
    if sys.platform != "win32":
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if most != resource.RLIM_INFINITY and nbytes > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    size = os.stat(path).st_size
    if nbytes > size and not _reserves(path, size, nbytes) and shutil.disk_usage(path).free < nbytes - size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _reserves(path: str, start: int, stop: int) -> bool:
    """Reserve room for a part of a file; return False if the system cannot; OSError if the disk is full."""
    if sys.platform != "linux":
        return False
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:  # another C library
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    fd = os.open(path, os.O_WRONLY)
    try:
        if fallocate(fd, _FALLOC_FL_KEEP_SIZE, start, stop - start) == 0:
            return True
        _require_room(ctypes.get_errno(), path)
    finally:
        os.close(fd)
    return False


def make_directories(path: str, root: str | None = None) -> list[str]:
    """Make a directory, and the missing directories above it. Return the paths of the new ones, the innermost first.

    FileNotFoundError: `root`, one of these directories, is missing.
    """
    if os.path.isdir(path):
        return []
    if path == root:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    parent = os.path.dirname(path)
    new = make_directories(parent, root)
    try:
        os.mkdir(path)
        new.insert(0, path)
    except FileExistsError:
        # Another process has made the directory at the same moment.
        pass
    except BaseException:
        remove_directories(new)
        raise
    if durability() != "off":
        force_directory(parent)
    return new


def remove_directories(paths: Iterable[str]) -> None:
    """Remove new directories, if they are empty."""
    # Another process may have written into a directory, or removed it.
    with suppress(OSError):
        for path in paths:
            os.rmdir(path)


def inherit(path: str, old: os.stat_result) -> None:
    """Give a new file or directory the group and the permissions of the one that it is about to replace."""
    new = os.stat(path)
    if sys.platform != "win32" and new.st_gid != old.st_gid:
        # Only members of a group may give files to it. A user who is not a member keeps the file in another group.
        with suppress(OSError):
            os.chown(path, -1, old.st_gid)
    mode = stat.S_IMODE(old.st_mode)
    if stat.S_ISDIR(new.st_mode) and not stat.S_ISDIR(old.st_mode):
        # Users who could read the file must be able to list the directory.
        mode |= (mode & 0o444) >> 2
    elif stat.S_ISDIR(old.st_mode) and not stat.S_ISDIR(new.st_mode):
        mode &= 0o666
    if mode != stat.S_IMODE(new.st_mode):
        os.chmod(path, mode)


def rename_exclusively(source: str, target: str) -> None:
    """Rename the file `source` to `target`; FileExistsError if `target` exists. The file may keep its old name."""
    try:
        try:
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:
            # The file system has no hard links: reserve the name, then replace the reserved file.
            os.close(open_descriptor(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            try:
                os.replace(source, target)
            except BaseException:
                os.unlink(target)
                raise
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None


def rename_to_free_name(source: str, target: str, *, durable: bool, may_wait: bool = False) -> None:
    """Rename a file or directory; FileExistsError if `target` exists. With `durable`, wait until the disk has the name.

    For a file, the check and the rename are one step; for a directory, the caller excludes other writers. With
    `may_wait`, in a block of `forces.together`, a file has both names until the block ends.
    """
    if os.path.isdir(source):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        os.rename(source, target)
    else:
        rename_exclusively(source, target)
    if durable:
        (force_directory if may_wait else sync_directory)(os.path.dirname(target))
    # A file still has its old name, which must stay until the disk has the new name.
    remove = partial(_remove_old_name, source)
    if may_wait:
        then(remove)
    else:
        remove()


def _remove_old_name(path: str) -> None:
    # A rename has removed the old name already, or a directory has this name by now.
    with suppress(FileNotFoundError, IsADirectoryError):
        os.unlink(path)


def exchange(source: str, target: str, *, at_once: bool = False) -> bool:
    """Exchange the names of two files or directories, in one step on Linux and macOS, and return True.

    `source` gets the permissions of `target`. With `at_once`, this returns False where the system cannot do it in one
    step.
    """
    inherit(source, os.stat(target))
    if swap(source, target):
        return True
    if at_once:
        return False
    # Keep the old file under another name until the new file has its name. If a writer is killed between these renames,
    # `vacuum` recognizes the old file by that name, and puts it back.
    aside = replaced_name(source)
    if not aside:
        raise ValueError(f"{source}: expected the name of a staged frame")
    os.rename(target, aside)
    try:
        os.rename(source, target)
    except BaseException:
        os.rename(aside, target)
        raise
    os.rename(aside, source)
    return True


def swap(source: str, target: str) -> bool:
    """Exchange the names of two files or directories in one step; return False if the system cannot."""
    one, other = os.fsencode(source), os.fsencode(target)
    failed = True
    # An old C library lacks the function.
    with suppress(AttributeError):
        if sys.platform == "linux":
            failed = ctypes.CDLL(None).renameat2(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE)
        elif sys.platform == "darwin":
            failed = ctypes.CDLL(None).renamex_np(one, other, _RENAME_EXCHANGE)
    return not failed
