"""Local files and directories, without fsspec."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from io import FileIO
from typing import Any, Self

import numpy as np

from b2array.buffers import Buffer, scratch
from b2array.errors import FormatError
from b2array.store import disk, forces, links
from b2array.store.base import (
    MISSING,
    Capabilities,
    Head,
    Listed,
    Stamp,
    Store,
    Version,
    as_answer,
    as_pieces,
    check_span,
    conflict,
    durability,
    merge,
    moved_away,
    scatter,
    stale_reader,
    too_short,
)
from b2array.store.descriptors import count_use, keep, open_descriptor
from b2array.store.endings import LOCK, TEMPORARY
from b2array.store.links import OpenDirectory
from b2array.store.locks import free_lock, holds_lock, lock_file, remove_lock
from b2array.store.spans import Span

__all__ = ["LocalStore"]

_READ_LIMIT = 64 * 2**20

_SETTLED = 2 * 10**9
"""The age, in nanoseconds, at which a file's time identifies its state: some file systems have steps of 2 seconds."""

_IOV_MAX = 1024
"""The maximum number of buffers that POSIX systems fill in one call."""


def _local_stamp(status: os.stat_result) -> Stamp:
    # Without the device: its number differs between computers that share the file system.
    version = Version(f"{status.st_ino}", f"{status.st_mtime_ns}:{status.st_size}")
    return Stamp(status.st_size, version)


def _identity_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _unique(path: str, status: os.stat_result) -> str:
    """Identify a state of a file among all files; "" for a recent state, because a next change might get its times."""
    # Programs can set the time of modification back, but not the time of the last change of status.
    modified, changed = status.st_mtime_ns, status.st_ctime_ns
    if time.time_ns() - max(modified, changed) < _SETTLED:
        return ""
    return f"{path} {status.st_dev}:{status.st_ino}:{modified}:{changed}:{status.st_size}"


class _File:
    """A descriptor of a file. It closes when its last user is done, even if the store uses another file by then."""

    __slots__ = ("fd", "known", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self.known: set[Version] = set()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)

    def stamp(self) -> Stamp:
        return _local_stamp(os.fstat(self.fd))

    def require(self, expected: Version) -> None:
        """Raise ConflictError unless this file has the expected version, or later commits have appended to it.

        FormatError says that the file was truncated.
        """
        if expected in self.known:
            return
        status = os.fstat(self.fd)
        current = _local_stamp(status).version
        tag, state, content, stop = expected
        if current != Version(tag, state):
            if current is None or tag != current.tag or stat.S_ISDIR(status.st_mode):
                raise stale_reader(self.path)
            # A new file may get the inode of a deleted file. `read` raises FormatError if this file is too short.
            if content and self.read(stop - len(content), stop) != content:
                raise stale_reader(self.path)
        self.known.add(expected)

    def read(self, start: int, stop: int, *, clip: bool = False) -> memoryview:
        """Read a range; with `clip`, as much of it as the file contains."""
        # Again, if a writer truncates an unfinished commit between the calls.
        while True:
            size = os.fstat(self.fd).st_size
            if stop > size and not clip:
                raise too_short(self.path, start, stop, size - start)
            view = np.empty(max(0, min(stop, size) - start), np.uint8).data
            try:
                if view:
                    self.read_into([view], start)
            except FormatError:
                if not clip:
                    raise
            else:
                return view

    def read_into(self, views: list[memoryview], start: int) -> None:
        """Fill views with the bytes of the file from `start` on."""
        nbytes = sum(map(len, views))
        try:
            done = disk.read_into(self.fd, views, start)
            if done == nbytes:
                return
            for view in views:
                # One call may read fewer bytes than requested: read the rest piece by piece.
                at, done = min(done, len(view)), max(0, done - len(view))
                while at < len(view):
                    count = disk.read_into(self.fd, [view[at:]], start + at)
                    if not count:
                        raise too_short(self.path, start, start + len(view), at)
                    at += count
                start += len(view)
        except OSError as error:
            # The system knows only the descriptor.
            error.filename = self.path
            raise


_TRUSTED_ROOM = 16 * 2**20
"""For a larger buffer, a store first checks the sizes of its files: a damaged file may claim any number of bytes."""
_KEPT_ROOM = 64 * 2**20


class _Listing(Mapping[str, Listed]):
    """The files of a directory, sorted by name. For very many files, it takes half the memory of a dictionary."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int], times: Sequence[float]) -> None:
        self._names, self._sizes, self._times = names, sizes, times

    def __getitem__(self, name: str) -> Listed:
        row = bisect_left(self._names, name)
        if row == len(self._names) or self._names[row] != name:
            raise KeyError(name)
        return Listed(self._sizes[row], self._times[row])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class LocalStore(Store):
    """A local file or directory. A relative path is made absolute, because the working directory may change.

    A store of one file keeps the file open, so that readers can read it even after another writer has replaced it. If
    the store has closed the file meanwhile, because too many other files are open (see `b2array.store.descriptors`), it
    opens the file again, and raises ConflictError if it finds another file. `head` opens the file anew; `replace`,
    `adopt`, `exchange` and `close` close it.

    The path may be a symbolic link, or lead through symbolic links. Names below it may not: they raise FormatError.

    Parameters
    ----------
    path : str or os.PathLike
    within : str or os.PathLike, optional
        A directory above the path. Links below this directory, the path included, raise FormatError.
    """

    can = Capabilities(lock=True, append=True, local=True)

    def __init__(self, path: str | os.PathLike[str], *, within: str | os.PathLike[str] | None = None) -> None:
        text = os.fsdecode(path)
        self.url = os.path.abspath(text)
        self.is_prefix = True if text.endswith(("/", os.sep)) else None
        self._within = None if within is None else os.path.abspath(os.fsdecode(within))
        self._inner = () if self._within is None else links.parts_below(self._within, self.url)
        # Only the path that the user passes may be a link.
        self._may_be_link = not self._inner
        # A directory that must exist. If somebody has deleted or renamed it, no write may make it again.
        self.root = self._within
        self._file: _File | None = None
        self._identity: tuple[int, int] | None = None  # device and number of the file that was opened
        self.last_use = 0

    def __repr__(self) -> str:
        return f"<LocalStore {self.url}>"

    def below(self, path: str, *, shown_as: str | None = None) -> LocalStore:  # noqa: ARG002
        return LocalStore(os.path.join(self.url, path), within=self._within or self.url)

    def __reduce__(self) -> tuple[Any, ...]:
        address = os.path.join(self.url, "") if self.is_prefix else self.url
        return partial(_restore, self._within, self.root), (address,)

    def _path(self, name: str) -> str:
        """Return the path of an object; FormatError if links lead there. The object itself may be a link."""
        for part in self._inner if name else self._inner[:-1]:
            links.refuse_link(part)
        if not name:
            return self.url
        path = os.path.join(self.url, name)
        if "/" in name:
            for part in links.parts_below(self.url, os.path.dirname(path)):
                links.refuse_link(part)
        return path

    def _own_path(self, name: str) -> str:
        """Return the path of an object with all links in the user's path resolved; FormatError for other links."""
        path = self._path(name)
        if self._may_be_link and not name:
            return os.path.realpath(path)
        if links.is_link(path):
            raise links.make_link_error(path)
        return path

    def _status(self, name: str) -> os.stat_result:
        path = self._path(name)
        if self._may_be_link and not name:
            return os.stat(path)
        links.refuse_link(path)
        return os.lstat(path)

    def _open_new(self, name: str) -> _File:
        path = self._path(name)
        may_be_link = self._may_be_link and not name
        fd = open_descriptor(path, disk.READ) if may_be_link else links.open_itself(path, disk.READ)
        return _File(fd, path)

    def _open(self, name: str) -> _File:
        if name:
            return self._open_new(name)
        file = self._file
        if file is None:
            return self._open_again()
        self.last_use = count_use()
        return file

    def _open_again(self) -> _File:
        """Open the file of the store; ConflictError if another file was open before."""
        before = self._identity
        try:
            file = self._open_new("")
        except MISSING:
            if before is None:
                raise
            raise moved_away(self.url) from None
        status = os.fstat(file.fd)
        if before not in (None, _identity_of(status)):
            raise stale_reader(file.path)
        self._keep(file, status)
        return file

    def _keep(self, file: _File, status: os.stat_result) -> None:
        self._file, self._identity = file, _identity_of(status)
        keep(self)

    def release(self) -> None:
        """Close the file when nobody reads from it any more; the next read opens it again."""
        self._file = None

    def read(
        self,
        spans: Sequence[Span],
        *,
        expected: Version | None = None,
        clip: bool = False,
    ) -> list[memoryview]:
        if len(spans) == 1:
            return [self._read_one(spans[0], expected, clip=clip)]
        merged = merge(self.url, spans, _READ_LIMIT)
        views: list[memoryview] = []
        for name, group in itertools.groupby((each.span for each in merged), key=lambda span: span.name):
            file = self._open(name)
            if expected is not None:
                file.require(expected)
            views += [file.read(start, stop, clip=clip) for _, start, stop in group]
        return scatter(spans, merged, views)

    def _read_one(self, span: Span, expected: Version | None, *, clip: bool) -> memoryview:
        name, start, stop = span
        check_span(self.url, span)
        file = self._open(name)
        if expected is not None:
            file.require(expected)
        return file.read(start, stop, clip=clip)

    def gather(
        self,
        spans: Sequence[Span],
        places: Sequence[int],
        nbytes: int,
        *,
        expected: Version | None = None,
    ) -> memoryview:
        # Reuse the memory of the thread: allocating memory takes longer than reading into it.
        check = partial(self._check_size, spans) if nbytes > _TRUSTED_ROOM else None
        buffer = scratch("room", nbytes, _KEPT_ROOM, check).data
        file: _File | None = None
        opened, begin, reached = "", -1, -1
        side_by_side: list[memoryview] = []  # the views of adjacent spans, which one call reads
        for span, place in zip(spans, places, strict=True):
            name, start, stop = span
            if not 0 <= start <= stop:
                check_span(self.url, span)
            if file is None or start != reached or name != opened or len(side_by_side) == _IOV_MAX:
                if file is not None:
                    file.read_into(side_by_side, begin)
                if file is None or name != opened:
                    file, opened = self._open(name), name
                    if expected is not None and expected not in file.known:
                        file.require(expected)
                side_by_side, begin = [], start
            side_by_side.append(buffer[place : place + stop - start])
            reached = stop
        if file is not None:
            file.read_into(side_by_side, begin)
        return buffer

    def _check_size(self, spans: Sequence[Span]) -> None:
        # Count the spans alone: the room between them is not read from the file.
        wanted = sum(span.stop - span.start for span in spans)
        if wanted > _TRUSTED_ROOM:
            nbytes = sum(self._open(name).stamp().size for name in {span.name for span in spans})
            if wanted > nbytes:
                raise FormatError(f"{self.url}: expected {wanted} bytes, found {nbytes}")

    def head(self, names: Sequence[str], nbytes: int, *, offset: int = 0) -> list[Head | Exception]:
        answers: list[Head | Exception] = []
        is_file = False
        for name in names:
            # No object can be below a file, so do not ask the system.
            if is_file:
                place = os.path.join(self.url, name)
                answers.append(NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), place))
                continue
            answer = self._head(name, nbytes, offset)
            is_file = not name and isinstance(answer, Head)
            answers.append(answer)
        return answers

    def _head(self, name: str, nbytes: int, offset: int) -> Head | Exception:
        try:
            file = self._open_new(name)
            status = os.fstat(file.fd)
            # Some file systems would read 0 bytes from a directory.
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file.path)
            unique = _unique(file.path, status)
            data = file.read(offset, offset + nbytes, clip=True)
        except (OSError, FormatError) as error:
            return as_answer(error)
        if not name:
            self._keep(file, status)
        return Head(data, _local_stamp(status), unique)

    def stamp(self, name: str) -> Stamp:
        return _local_stamp(self._status(name))

    def stamp_read(self, name: str) -> Stamp:
        return self.stamp(name) if name else self._open("").stamp()

    def listing(self) -> Mapping[str, Listed]:
        status = self._status("")
        if not stat.S_ISDIR(status.st_mode):
            return {"": Listed(status.st_size, status.st_mtime)}
        names, sizes, times = [], array("q"), array("d")
        try:
            with os.scandir(self.url) as entries:
                candidates = sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
            for name in candidates:
                # Another process may have removed the file meanwhile.
                with suppress(FileNotFoundError):
                    each = os.stat(os.path.join(self.url, name), follow_symlinks=False)
                    names.append(name)
                    sizes.append(each.st_size)
                    times.append(each.st_mtime)
        except NotADirectoryError:
            # A file has replaced the directory meanwhile.
            return self.listing()
        return _Listing(names, sizes, times)

    def walk(self) -> list[str]:
        self._status("")
        paths = []
        for directory, inner, names in os.walk(self.url):
            start = os.path.join(directory, "")[len(os.path.join(self.url, "")) :]
            # List a link to a directory as one object: opening it raises the error for links.
            names += [name for name in inner if links.is_link(os.path.join(directory, name))]
            paths += [(start + name).replace(os.sep, "/") for name in names]
        return sorted(paths)

    def now(self) -> float:
        # A file system on a server dates files by the server's clock. Without permission to make a file, the clock of
        # this computer is the best guess.
        with suppress(OSError, FormatError):
            target = self._own_path("")
            beside = os.path.join(target, "") if os.path.isdir(target) else f"{target}."
            path = f"{beside}{os.urandom(8).hex()}{TEMPORARY}"
            with open(path, "xb", opener=open_descriptor) as file:
                file.write(b"-")
            try:
                return os.stat(path).st_mtime
            finally:
                os.unlink(path)
        return time.time()

    def create(self, name: str, data: Buffer | Iterable[Buffer]) -> Stamp:
        path = self._path(name)
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return self._write(path, data, exclusive=True)

    def replace(
        self,
        name: str,
        data: Buffer | Iterable[Buffer],
        *,
        expected: Version | None = None,
    ) -> Stamp:
        return self._write(self._own_path(name), data, exclusive=False, expected=expected)

    def _write(
        self,
        path: str,
        data: Buffer | Iterable[Buffer],
        *,
        exclusive: bool,
        expected: Version | None = None,
    ) -> Stamp:
        new = disk.make_directories(os.path.dirname(path), self.root)
        temporary = f"{path}.{os.urandom(8).hex()}{TEMPORARY}"
        # Only a new file may wait: a file that replaces an older one must be on the disk before the rename.
        may_wait = exclusive and forces.may_wait()
        try:
            with open(temporary, "xb", opener=open_descriptor) as file:
                file.writelines(as_pieces(data))
                disk.flush(file, *(() if may_wait else ("ordered", "full")))
            stamp = self._rename(temporary, path, exclusive=exclusive, expected=expected)
            if may_wait and durability() != "off":
                forces.force_file(path)
        except BaseException as error:
            # The caller knows only this name.
            if isinstance(error, OSError) and error.filename == temporary:
                error.filename = path
            _remove(temporary, new)
            raise
        # A new file still has both names, if the file system cannot rename it exclusively.
        _remove(temporary)
        return stamp

    def require_place(self, *, directory: bool) -> None:
        self.root = self.url if directory else os.path.dirname(self.url)

    def temporary(self, name: str) -> str | None:
        return f"{self._own_path(name)}.{os.urandom(8).hex()}{TEMPORARY}"

    def move_in(
        self,
        path: str,
        name: str,
        *,
        exclusive: bool,
        expected: Version | None = None,
    ) -> Stamp:
        return self._rename(path, self._own_path(name), exclusive=exclusive, expected=expected)

    def _rename(
        self,
        source: str,
        target: str,
        *,
        exclusive: bool,
        expected: Version | None,
    ) -> Stamp:
        links.refuse_link(source)
        stamp = _local_stamp(os.stat(source))
        if exclusive:
            disk.rename_exclusively(source, target)
        else:
            current = None
            # A missing file has no version and no permissions.
            with suppress(FileNotFoundError):
                status = os.stat(target)
                current = _local_stamp(status).version
                disk.inherit(source, status)
            if expected is not None and current != expected:
                raise conflict(target)
            os.replace(source, target)
        self.close()
        if durability() == "full":
            forces.force_directory(os.path.dirname(target))
        return stamp

    def beside(self, *, directory: bool) -> Self | None:
        excluded = os.path.isfile(self.url) if directory else os.path.isdir(self.url)
        return type(self)(str(self.temporary("")), within=self._within) if excluded else None

    def exchange(self, other: Self, *, at_once: bool = False) -> bool:
        path = self._own_path("")
        # What takes one step was forced before, with the rest of its commit.
        if not at_once:
            other.force()
        done = disk.exchange(other._own_path(""), path, at_once=at_once)
        self.close()
        other.close()
        if done and durability() != "off":
            disk.sync_directory(os.path.dirname(path))
        return done

    def move_here(self, other: Self, *, may_wait: bool = False) -> None:
        path = self._path("")
        disk.rename_to_free_name(other._own_path(""), path, durable=durability() != "off", may_wait=may_wait)
        self.close()
        other.close()

    def lock_if_free(self, *, inside: bool = False) -> FileIO | None:
        """Take the lock of this file, or of the files `inside` this directory; None if somebody holds the lock.

        The caller holds the lock until it closes the file that is returned.
        """
        return free_lock(self._path(LOCK) if inside else self._own_path("") + LOCK)

    def holds_lock(self) -> bool:
        """Return whether this thread holds the lock of the files in this directory for writing."""
        return holds_lock(self._path(LOCK))

    def drop_directory(self) -> None:
        # The directory is not empty, or another process has removed it.
        with suppress(OSError):
            os.rmdir(self._own_path(""))

    def drop_lock(self) -> None:
        outer, name = os.path.split(self._path(""))
        # If the directory was removed, so was its lock.
        with suppress(*MISSING), links.open_directory(outer, self._inner[:-1]) as above:
            remove_lock(above, name + LOCK)

    def force(self) -> None:
        if durability() != "ordered":
            # With "full", every write has already waited.
            return
        if os.path.isdir(self.url):
            forces.force_directory(self.url)
            return
        path = self._own_path("")
        # The file may have been removed since.
        if os.path.lexists(path):
            forces.force_file(path)
        # A directory that was removed needs no force.
        with suppress(FileNotFoundError):
            forces.force_directory(os.path.dirname(path))

    def append(self, name: str, offset: int, data: Buffer | Iterable[Buffer]) -> None:
        cut = False
        try:
            with self._open_to_write(name, offset) as file:
                if os.fstat(file.fileno()).st_size > offset:
                    # The bytes that are cut off may still be needed until earlier writes are on the disk.
                    disk.flush(file, "ordered", "full")
                file.truncate(offset)
                cut = True
                file.seek(offset)
                file.writelines(as_pieces(data))
                forces.flush(file, file.name, "ordered", "full")
        except BaseException:
            # The disk may be full: free the bytes that were written.
            if cut:
                # Bytes after the end do no harm, and the first error is more informative.
                with suppress(OSError):
                    os.truncate(self._path(name), offset)
            raise

    def patch(self, name: str, offset: int, data: Buffer) -> Stamp:
        with self._open_to_write(name, offset + memoryview(data).nbytes) as file:
            file.seek(offset)
            file.write(data)
            forces.flush(file, file.name, "full")
            return _local_stamp(os.fstat(file.fileno()))

    @contextmanager
    def _open_to_write(self, name: str, nbytes: int) -> Iterator[Any]:
        path = self._own_path(name)
        with open(path, "r+b", opener=links.open_itself) as file:
            links.refuse_other_names(path)
            size = os.fstat(file.fileno()).st_size
            if size < nbytes:
                raise FormatError(f"{path}: expected at least {nbytes} bytes, found {size}")
            yield file

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._path(name)
            # Another process may have removed it already.
            with suppress(FileNotFoundError):
                if not name and os.path.isdir(path) and not os.path.islink(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)
                if durability() == "full":
                    disk.sync_directory(os.path.dirname(path))

    def withdraw(self, digests: Mapping[str, int]) -> None:
        # Another process may have removed the whole directory.
        with suppress(FileNotFoundError), links.open_directory(self._path(""), self._inner) as here:
            for name, digest in digests.items():
                # Another process may have removed it already.
                with suppress(FileNotFoundError):
                    if _local_stamp(here.status(name)).digest == digest:
                        here.remove(name)

    def refuse_links(self, name: str) -> None:
        self._own_path(name)

    def remove(self, first: str, belongs: Callable[[str], bool], *, locked: bool = False) -> None:
        # Another process may have removed the frame already.
        with suppress(*MISSING):
            is_directory = stat.S_ISDIR(self._status("").st_mode)
            with nullcontext() if locked else self.lock(LOCK if is_directory else "", removing=True):
                if is_directory:
                    self._remove_directory(first, belongs)
                else:
                    self._remove_file()
        self.close()

    def _remove_file(self) -> None:
        outer, name = os.path.split(self._path(""))
        with links.open_directory(outer, self._inner[:-1]) as above:
            above.remove(name)
            if durability() != "off":
                disk.sync_directory(outer)
            remove_lock(above, name + LOCK)

    def _remove_directory(self, first: str, belongs: Callable[[str], bool]) -> None:
        path = self._own_path("")
        outer, name = os.path.split(path)
        with links.open_directory(outer, self._inner[:-1]) as above, links.open_directory(path, self._inner) as here:
            files, others = here.names()
            ours = [each for each in files if each == LOCK or belongs(each)]
            alone = not others and len(ours) == len(files)
            aside = self._put_aside(above, name) if alone else None
            # Remove this file first, so that no reader finds it without the others.
            if aside is None and first in ours:
                here.remove(first)
                if durability() != "off":
                    disk.sync_directory(path)
            for each in ours:
                if each != LOCK:
                    here.remove(each)
            remove_lock(here, LOCK)
            if aside is not None:
                # Other writers may have made files meanwhile.
                for each in filter(belongs, here.names()[0]):
                    here.remove(each)
            if alone:
                # Other writers may still make files here; then `vacuum` removes the directory.
                with suppress(OSError):
                    above.remove_directory(aside or name)

    @staticmethod
    def _put_aside(above: OpenDirectory, name: str) -> str | None:
        """Rename a directory, so that no reader sees a part of it; return its new name, or None if renaming failed."""
        aside = f"{name}.{os.urandom(8).hex()}{TEMPORARY}"
        try:
            above.rename(name, aside)
        except OSError:
            # Windows renames no directory with open files.
            return None
        if durability() != "off":
            disk.sync_directory(above.path)
        return aside

    def lock(
        self,
        name: str,
        *,
        shared: bool = False,
        removing: bool = False,
    ) -> AbstractContextManager[object]:
        take = partial(lock_file, shared=shared, removing=removing)
        if name:
            return take(self._path(LOCK))
        path = self._path("")
        if not self._may_be_link or not os.path.islink(path):
            return take(path + LOCK)
        return _both(take, os.path.realpath(path) + LOCK, path + LOCK)

    def close(self) -> None:
        self._file = self._identity = None


def _remove(temporary: str, directories: Iterable[str] = ()) -> None:
    """Remove a temporary file, if it still has this name, and the directories that were made for it."""
    # A remaining file does no harm, and `vacuum` removes it.
    with suppress(OSError):
        os.unlink(temporary)
    disk.remove_directories(directories)


def _restore(within: str | None, root: str | None, address: str) -> LocalStore:
    """Restore a pickled store."""
    store = LocalStore(address, within=within)
    store.root = root
    return store


@contextmanager
def _both(
    take: Callable[[str], AbstractContextManager[object]],
    of_file: str,
    of_link: str,
) -> Iterator[None]:
    """Take two locks: the lock of the file itself, and the lock that the C library takes for a symbolic link to it."""
    with take(of_file), take(of_link):
        yield
