"""Local files and directories, without fsspec."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Self

import numpy as np

from b2array.buffers import Buffer, scratch
from b2array.errors import FormatError
from b2array.store import disk
from b2array.store.base import (
    Head,
    Listed,
    Stamp,
    Store,
    as_answer,
    as_pieces,
    check_span,
    conflict,
    durability,
    identity,
    merge,
    scatter,
    split_version,
    stale_reader,
    too_short,
)
from b2array.store.endings import LOCK, TEMPORARY
from b2array.store.spans import Span

__all__ = ["LocalStore"]

_READ_LIMIT = 64 * 2**20

_SETTLED = 2 * 10**9
"""Changes this many nanoseconds apart give a file different times: some file systems count in steps of two seconds."""

_IOV_MAX = 1024
"""The most buffers that POSIX systems fill in one call."""


def _local_stamp(status: os.stat_result) -> Stamp:
    # Without the device: its number differs between computers that share the file system.
    return Stamp(status.st_size, f"{status.st_ino}@{status.st_mtime_ns}:{status.st_size}")


def _unique(path: str, status: os.stat_result) -> str:
    """Identify a state of a file among all files; empty while another change could still leave the same times."""
    # Programs can set the time of modification back, but not that of the change of status.
    modified, changed = status.st_mtime_ns, status.st_ctime_ns
    if time.time_ns() - max(modified, changed) < _SETTLED:
        return ""
    return f"{path} {status.st_dev}:{status.st_ino}:{modified}:{changed}:{status.st_size}"


class _File:
    """A descriptor. It closes when its last user is done, even if the store uses another one by then."""

    __slots__ = ("fd", "known", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self.known: set[str] = set()

    @classmethod
    def open(cls, path: str) -> Self:
        return cls(os.open(path, disk.READ), path)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)

    def stamp(self) -> Stamp:
        return _local_stamp(os.fstat(self.fd))

    def require(self, expected: str) -> None:
        """Raise ConflictError unless this is the file of that version: later commits append to it, patch its header.

        FormatError says that the file was cut off.
        """
        if expected in self.known:
            return
        found = self.stamp()
        version, known = split_version(expected)
        if version != found.version:
            if identity(version) != identity(found.version):
                raise stale_reader(self.path)
            # A new file may get the inode of a deleted one. `read` raises FormatError if this one is too short.
            if known is not None and self.read(known.stop - len(known.content), known.stop) != known.content:
                raise stale_reader(self.path)
        self.known.add(expected)

    def read(self, start: int, stop: int, *, clip: bool = False) -> memoryview:
        size = os.fstat(self.fd).st_size
        if clip:
            start, stop = min(start, size), min(stop, size)
        elif stop > size:
            raise too_short(self.path, start, stop, size - start)
        view = np.empty(stop - start, np.uint8).data
        if view:
            self.read_into([view], start)
        return view

    def read_into(self, views: list[memoryview], start: int) -> None:
        """Fill views with the bytes from `start` on."""
        nbytes = sum(map(len, views))
        try:
            done = disk.read_into(self.fd, views, start)
            if done == nbytes:
                return
            for view in views:
                # One call may read less than asked for; the rest comes piece by piece.
                at, done = min(done, len(view)), max(0, done - len(view))
                while at < len(view):
                    count = disk.read_into(self.fd, [view[at:]], start + at)
                    if not count:
                        raise too_short(self.path, start, start + len(view), at)
                    at += count
                start += len(view)
        except OSError as error:
            error.filename = self.path  # the system knows only the descriptor
            raise


_TRUSTED_ROOM = 16 * 2**20
"""Before it allocates more, a store checks the sizes of its files: a damaged one may ask for any number of bytes."""
_KEPT_ROOM = 64 * 2**20


class LocalStore(Store):
    """A local file or directory. A relative path is resolved at once: the working directory may change later.

    A store of one file keeps it open, so that its bytes can be read even after another writer has replaced the file.
    `head` opens the file again; `replace`, `adopt`, `exchange` and `close` close it.
    """

    guarantee = "lock"
    appendable = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        text = os.fsdecode(path)
        self.url = os.path.abspath(text)
        self.is_prefix = True if text.endswith(("/", os.sep)) else None
        self._file: _File | None = None

    def __repr__(self) -> str:
        return f"<LocalStore {self.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalStore, (os.path.join(self.url, "") if self.is_prefix else self.url,)

    def _path(self, name: str) -> str:
        return os.path.join(self.url, name) if name else self.url

    def _open(self, name: str) -> _File:
        if name:
            return _File.open(self._path(name))
        file = self._file
        if file is None:
            file = self._file = _File.open(self.url)
        return file

    def read(self, spans: Sequence[Span], *, expected: str | None = None, clip: bool = False) -> list[memoryview]:
        merged = merge(self.url, spans, _READ_LIMIT)
        views: list[memoryview] = []
        for name, group in itertools.groupby((each.span for each in merged), key=lambda span: span.name):
            file = self._open(name)
            if expected is not None:
                file.require(expected)
            views += [file.read(start, stop, clip=clip) for _, start, stop in group]
        return scatter(spans, merged, views)

    def gather(
        self, spans: Sequence[Span], places: Sequence[int], nbytes: int, *, expected: str | None = None
    ) -> memoryview:
        # The thread uses the memory again: fresh memory costs more time than reading into it.
        check = partial(self._check_size, spans) if nbytes > _TRUSTED_ROOM else None
        buffer = scratch("room", nbytes, _KEPT_ROOM, check).data
        file: _File | None = None
        opened, begin, reached = "", -1, -1
        side_by_side: list[memoryview] = []  # one call reads all spans that follow each other without a gap
        for span, place in zip(spans, places, strict=True):
            name, start, stop = span
            if not 0 <= start <= stop:
                check_span(self.url, span)
            if file is None or start != reached or name != opened or len(side_by_side) == _IOV_MAX:
                if file is not None:
                    file.read_into(side_by_side, begin)
                if file is None or name != opened:
                    file, opened = (not name and self._file) or self._open(name), name
                    if expected is not None and expected not in file.known:
                        file.require(expected)
                side_by_side, begin = [], start
            side_by_side.append(buffer[place : place + stop - start])
            reached = stop
        if file is not None:
            file.read_into(side_by_side, begin)
        return buffer

    def _check_size(self, spans: Sequence[Span]) -> None:
        # The room between the spans is not read from the file.
        wanted = sum(span.stop - span.start for span in spans)
        if wanted > _TRUSTED_ROOM:
            found = sum(self._open(name).stamp().size for name in {span.name for span in spans})
            if wanted > found:
                raise FormatError(f"{self.url}: expected {wanted} bytes, found {found}")

    def head(self, names: Sequence[str], nbytes: int, *, offset: int = 0) -> list[Head | Exception]:
        return [self._head(name, nbytes, offset) for name in names]

    def _head(self, name: str, nbytes: int, offset: int) -> Head | Exception:
        try:
            file = _File.open(self._path(name))
            status = os.fstat(file.fd)
            if stat.S_ISDIR(status.st_mode):  # some file systems would let us read 0 bytes
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file.path)
            unique = _unique(file.path, status)
            data = file.read(offset, offset + nbytes, clip=True)
        except (OSError, FormatError) as error:
            return as_answer(error)
        if not name:
            self._file = file
        return Head(data, _local_stamp(status), unique)

    def stamp(self, name: str) -> Stamp:
        return _local_stamp(os.stat(self._path(name)))

    def listing(self) -> dict[str, Listed]:
        if not os.path.isdir(self.url):
            status = os.stat(self.url)
            return {"": Listed(status.st_size, status.st_mtime)}
        found = {}
        with os.scandir(self.url) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # it may be removed meanwhile
                    if entry.is_file():
                        found[entry.name] = Listed(entry.stat().st_size, entry.stat().st_mtime)
        return found

    def walk(self) -> list[str]:
        os.stat(self.url)
        start = len(os.path.join(self.url, ""))
        found = (
            os.path.join(directory, "")[start:] + name for directory, _, names in os.walk(self.url) for name in names
        )
        return sorted(path.replace(os.sep, "/") for path in found)

    def create(self, name: str, data: Buffer | Iterable[Buffer]) -> Stamp:
        path = self._path(name)
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return self._write(path, data, exclusive=True)

    def replace(self, name: str, data: Buffer | Iterable[Buffer], *, expected: str | None = None) -> Stamp:
        return self._write(os.path.realpath(self._path(name)), data, exclusive=False, expected=expected)

    def _write(
        self, path: str, data: Buffer | Iterable[Buffer], *, exclusive: bool, expected: str | None = None
    ) -> Stamp:  # fmt: skip
        disk.make_directories(os.path.dirname(path))
        temporary = f"{path}.{os.urandom(8).hex()}{TEMPORARY}"
        try:
            with open(temporary, "xb") as file:
                file.writelines(as_pieces(data))
                disk.flush(file, "ordered", "full")
            return self._rename(temporary, path, exclusive=exclusive, expected=expected)
        except OSError as error:
            if error.filename == temporary:
                error.filename = path  # the name that the caller knows
            raise
        finally:
            with suppress(OSError):  # usually it was renamed; if it stays, it does no harm
                os.unlink(temporary)

    def temporary(self, name: str) -> str | None:
        return f"{os.path.realpath(self._path(name))}.{os.urandom(8).hex()}{TEMPORARY}"

    def adopt(self, path: str, name: str, *, exclusive: bool, expected: str | None = None) -> Stamp:
        return self._rename(path, os.path.realpath(self._path(name)), exclusive=exclusive, expected=expected)

    def _rename(self, source: str, target: str, *, exclusive: bool, expected: str | None) -> Stamp:
        stamp = _local_stamp(os.stat(source))
        if exclusive:
            disk.rename_exclusively(source, target)
        else:
            found = None
            with suppress(FileNotFoundError):
                status = os.stat(target)
                found = _local_stamp(status).version
                os.chmod(source, status.st_mode & 0o7777)
            if expected is not None and found != expected:
                raise conflict(target)
            os.replace(source, target)
        self.close()
        if durability() == "full":
            disk.sync_directory(os.path.dirname(target))
        return stamp

    def beside(self, *, directory: bool) -> Self | None:
        excluded = os.path.isfile(self.url) if directory else os.path.isdir(self.url)
        return type(self)(str(self.temporary(""))) if excluded else None

    def exchange(self, other: Self) -> None:
        other.force()
        path = os.path.realpath(self.url)
        disk.exchange(other.url, path)
        self.close()
        other.close()
        if durability() != "off":
            disk.sync_directory(os.path.dirname(path))

    def force(self) -> None:
        if durability() != "ordered":
            return  # with "full", every write has waited already
        if os.path.isdir(self.url):
            disk.sync_directory(self.url)
            return
        path = os.path.realpath(self.url)
        with suppress(FileNotFoundError), open(path, "r+b") as file:
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            disk.sync_directory(os.path.dirname(path))

    def append(self, name: str, offset: int, data: Buffer | Iterable[Buffer]) -> None:
        cut = False
        try:
            with self._open_to_write(name, offset) as file:
                if os.fstat(file.fileno()).st_size > offset:
                    # Only after earlier writes may the bytes that are cut off be superfluous.
                    disk.flush(file, "ordered", "full")
                file.truncate(offset)
                cut = True
                file.seek(offset)
                file.writelines(as_pieces(data))
                disk.flush(file, "ordered", "full")
        except BaseException:
            if cut:  # the disk may be full: free what was written
                with suppress(OSError):
                    os.truncate(self._path(name), offset)
            raise

    def patch(self, name: str, offset: int, data: Buffer) -> Stamp:
        with self._open_to_write(name, offset + memoryview(data).nbytes) as file:
            file.seek(offset)
            file.write(data)
            disk.flush(file, "full")
            return _local_stamp(os.fstat(file.fileno()))

    @contextmanager
    def _open_to_write(self, name: str, nbytes: int) -> Iterator[Any]:
        path = self._path(name)
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size < nbytes:
                raise FormatError(f"{path}: expected at least {nbytes} bytes, found {size}")
            yield file

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._path(name)
            with suppress(FileNotFoundError):
                if not name and os.path.isdir(path) and not os.path.islink(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)
                if durability() == "full":
                    disk.sync_directory(os.path.dirname(path))

    def lock(self, name: str, *, shared: bool = False) -> AbstractContextManager[object]:
        path = os.path.join(self.url, LOCK) if name else self.url + LOCK
        if name or not os.path.islink(self.url):
            return disk.locked(path, shared=shared)
        return _both(os.path.realpath(self.url) + LOCK, path, shared=shared)

    def close(self) -> None:
        self._file = None


@contextmanager
def _both(of_file: str, of_link: str, *, shared: bool) -> Iterator[None]:
    """Take the lock that all names of a file share, and the one that the C library takes by a symbolic link."""
    with disk.locked(of_file, shared=shared), disk.locked(of_link, shared=shared):
        yield
