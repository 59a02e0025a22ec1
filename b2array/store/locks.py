"""The lock files of the C library: ``flock`` on a file next to a frame, or in the directory of a sparse one.

The lock belongs to the file, not to its name. A writer that removes a frame also removes its lock file, and holds the
lock meanwhile. So after a writer takes a lock, it checks that the file still has the name, and begins again if another
file has it.

All users who may write to a frame must be able to write to its lock file. So whenever the owner of the lock file takes
the lock, the file gets the group and the permissions of the frame, which may have changed.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from io import FileIO
from pathlib import Path
from weakref import WeakValueDictionary

from b2array import config
from b2array.errors import FormatError
from b2array.store.base import make_deadlock_error
from b2array.store.descriptors import allow, limit
from b2array.store.disk import FULL, READ
from b2array.store.endings import LOCK
from b2array.store.links import OpenDirectory, open_itself

__all__ = ["free_lock", "holds_lock", "holds_locks", "lock_file", "locks_below", "remove_lock"]

if sys.platform == "win32":
    import msvcrt

    def _flock(fd: int, shared: bool) -> None:  # noqa: ARG001 - Windows has no shared locks
        while True:
            os.lseek(fd, 0, os.SEEK_SET)
            try:
                return msvcrt.locking(fd, msvcrt.LK_LOCK, 1)
            except OSError as error:  # after ten seconds
                if error.errno != errno.EDEADLK:
                    raise

    def _flock_if_free(fd: int) -> bool:
        os.lseek(fd, 0, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EDEADLK):
                raise
            return False
        return True
else:
    import fcntl

    def _flock(fd: int, shared: bool) -> None:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)

    def _flock_if_free(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


_COUNTER = slice(8, 16)
"""The position of the counter in a lock file. The bytes before the counter are zeros, and no bytes follow it."""


_READ_AND_WRITE = 0o666


class _LockFile(FileIO):
    """An open lock file. It inherits `close`, which is C code that Ctrl-C does not interrupt."""

    key: tuple[int, int, int, bool]
    """The device and number of the file, the thread that locks it, and whether the lock is shared."""
    path: str


_held: WeakValueDictionary[tuple[int, int, int, bool], _LockFile] = WeakValueDictionary()
"""The files whose locks threads hold or wait for."""

_all_open: WeakValueDictionary[int, _LockFile] = WeakValueDictionary()
"""All open lock files, by `id`. A forked child closes its copies, which would otherwise keep the locks."""

_opening = threading.RLock()
"""Held while a lock file is opened and added to `_all_open`, so that no fork happens in between."""


def _drop_copies() -> None:
    for file in tuple(_all_open.values()):
        file.close()
    _opening.release()


if sys.platform != "win32":
    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_drop_copies)


def _is_held(file: _LockFile, *modes: bool) -> bool:
    """Return whether this thread already holds the lock of a file in one of these modes: shared (True) or exclusive."""
    place = file.key[:-1]
    for shared in modes:
        holder = _held.get((*place, shared))
        if holder is not None and not holder.closed:
            return True
    return False


def holds_locks() -> bool:
    """Return whether this thread holds the lock of any file."""
    me = threading.get_ident()
    return any(file.key[2] == me and not file.closed for file in tuple(_held.values()))


def locks_below(directory: str) -> list[str]:
    """Return the paths of lock files below a directory, if this thread holds their locks."""
    me, front = threading.get_ident(), os.path.realpath(directory) + os.sep
    files = [file for file in tuple(_held.values()) if file.key[2] == me and not file.closed]
    return sorted(file.path for file in files if os.path.realpath(file.path).startswith(front))


def holds_lock(path: str) -> bool:
    """Return whether this thread holds the lock of a file for writing."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    file = _held.get((status.st_dev, status.st_ino, threading.get_ident(), False))
    return file is not None and not file.closed


def _open_lock(path: str, *, shared: bool) -> _LockFile:
    """Open a lock file; raise FormatError for anything that cannot be one, as far as is visible without the lock."""
    try:
        with _opening:
            file = _LockFile(
                _descriptor_of(path, READ if shared else READ | os.O_RDWR | os.O_CREAT), "r" if shared else "r+"
            )
            _all_open[id(file)] = file
    except FileNotFoundError as error:
        # Name the directory, because users do not know its lock file.
        error.filename = str(Path(path).parent)
        raise
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        file.key = (status.st_dev, status.st_ino, threading.get_ident(), shared)
        file.path = path
        if not shared:
            _let_others_write(path, file.fileno(), status)
        return file
    file.close()
    what = f"one with {status.st_nlink} hard links" if stat.S_ISREG(status.st_mode) else "something else"
    raise FormatError(f"{path}: expected a lock file with one name, found {what}. Remove it while no program writes")


def _descriptor_of(path: str, flags: int) -> int:
    """Open a lock file; if a commit to very many members needs more descriptors, raise their limit."""
    try:
        return open_itself(path, flags)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        count = len(_all_open)
        if count < limit() // 2 or not allow(2 * limit()):
            raise OSError(
                error.errno,
                f"{error.strerror} ({limit()} are allowed, of which {count} are locks: each member that a"
                " commit changes needs one; `ulimit -n` allows more)",
                path,
            ) from None
    return open_itself(path, flags)


if sys.platform == "win32":

    def _let_others_write(path: str, fd: int, status: os.stat_result) -> None:
        """Do nothing: on Windows, files inherit the permissions of the directory."""
else:

    def _let_others_write(path: str, fd: int, status: os.stat_result) -> None:
        """Give a lock file, if it is ours, the group of its frame, and the frame's permissions to read and write."""
        try:
            frame = Path(path.removesuffix(LOCK)).stat()
        except OSError:
            # The frame does not exist yet.
            return
        missing = frame.st_mode & _READ_AND_WRITE & ~status.st_mode
        if status.st_uid != os.geteuid() or (not missing and frame.st_gid == status.st_gid):
            return
        try:
            if frame.st_gid != status.st_gid:
                os.fchown(fd, -1, frame.st_gid)
            os.fchmod(fd, (status.st_mode & 0o777) | missing)
        except OSError:
            # The user is not in that group, or the file system has no permissions: then others may not lock the frame.
            return


def _raise_counter(path: str, fd: int, *, removing: bool = False) -> None:
    # In other processes, the C library reads the frame again when this number changes.
    os.lseek(fd, 0, os.SEEK_SET)
    content = os.read(fd, _COUNTER.stop + 1).ljust(_COUNTER.stop, b"\0")
    if len(content) > _COUNTER.stop or any(content[: _COUNTER.start]):
        raise FormatError(
            f"{path}: expected the counter of a lock file, found other content; rename or remove this file, which is no"
            " lock"
        )
    counter = (int.from_bytes(content[_COUNTER], "little") + 1) % 2**64
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        os.write(fd, bytes(_COUNTER.start) + counter.to_bytes(8, "little"))
    except OSError as error:
        # The disk had room for an empty file. Nobody reads again what is removed.
        if not (removing and error.errno in FULL):
            raise


def _still_has(path: str, file: _LockFile) -> bool:
    """Return whether an open lock file still has its name; a writer that removes the frame removes the name as well."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
"""The numbers of the errors of file systems without locks, such as some mounts of NFS and Lustre."""


def _wait_for(file: _LockFile, *, shared: bool) -> None:
    """Wait for the lock of an open file, and take it; do nothing if `config.locks` is "off"."""
    if config.locks == "off":
        return
    try:
        _flock(file.fileno(), shared)
    except OSError as error:
        raise _explain(error, file.path) from None


def _take_if_free(file: _LockFile) -> bool:
    """Take the lock of an open file if it is free, and return whether; with `config.locks` "off" it always is."""
    if config.locks == "off":
        return True
    try:
        return _flock_if_free(file.fileno())
    except OSError as error:
        raise _explain(error, file.path) from None


def _explain(error: OSError, path: str) -> OSError:
    """Return an error that names what was locked, and says what to do if the file system has no locks."""
    place = path.removesuffix(LOCK).rstrip(os.sep)
    if error.errno not in _NO_LOCKS:
        return OSError(error.errno, error.strerror, place)
    return OSError(
        error.errno,
        f"{error.strerror}: this file system has no locks, which keep two writers apart. If nobody else writes here,"
        " set b2array.config.locks = 'off'. Some file systems have locks once they are mounted with the option flock",
        place,
    )


def lock_file(path: str, *, shared: bool, removing: bool = False) -> AbstractContextManager[object]:
    """Take the lock of the C library's lock file, and hold it until the ``with`` block ends.

    Readers take the lock only if the file exists. Writers make the file, but not its directory; FileNotFoundError says
    that the directory is missing. The context manager is the file itself, which C code closes: after Ctrl-C in Python
    code, the lock could remain, and the next change by this process would wait for ever.

    With `removing`, the caller will remove the frame or the group. If the disk is full, it needs no new lock file:
    nobody holds the lock of a missing file, and nobody else can make the file, either.

    Raises
    ------
    FormatError
        The file is a link, or not a lock file.
    RuntimeError
        This thread already holds the lock, and would wait for itself.
    """
    while True:
        if shared and not os.path.lexists(path):
            return nullcontext()
        try:
            file = _open_lock(path, shared=shared)
        except OSError as error:
            if removing and error.errno in FULL:
                return nullcontext()
            raise
        try:
            if _is_held(file, False, *(() if shared else (True,))):
                raise make_deadlock_error(path)  # noqa: TRY301 - the file must be closed
            if shared and _is_held(file, True):
                file.close()
                return nullcontext()
            _held[file.key] = file
            _wait_for(file, shared=shared)
            if _still_has(path, file):
                if not shared:
                    _raise_counter(path, file.fileno(), removing=removing)
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def free_lock(path: str) -> FileIO | None:
    """Take the lock for writing if it is free, and return its open file; else return None.

    The lock is held until the caller closes the file; in a forked process, the file is closed. Raises FormatError like
    `lock_file`.
    """
    while True:
        file = _open_lock(path, shared=False)
        try:
            if _is_held(file, False, True) or not _take_if_free(file):
                file.close()
                return None
            if _still_has(path, file):
                _held[file.key] = file
                _raise_counter(path, file.fileno())
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def remove_lock(directory: OpenDirectory, name: str) -> None:
    """Remove a lock file whose lock the caller holds.

    A writer that waits for the lock notices that the name is gone, and takes the lock of a new file.
    """
    # Windows removes no open files; a remaining lock file does no harm.
    with suppress(PermissionError):
        directory.remove(name)
