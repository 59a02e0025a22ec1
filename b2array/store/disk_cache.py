"""The cache on disk for bytes from servers, in `config.disk_cache`, which all processes of a user share.

The cache knows neither servers nor formats. It keeps *contents*: bytes under a key that names them for ever, as
`b2array.store.through` makes it. A content has one file, to which each process appends *records*: a range of the
content, with checksums. Nothing in a file is ever changed in place, so readers need no locks.

* A reader trusts only checksums. If a file is damaged, cut off, foreign or half-written, it is removed, and the bytes
  are read from the server again. A record says to which key it belongs, so an exchanged file is noticed as well.
* A process that is killed while it appends leaves a record that is cut off. Readers ignore such a record, and remove
  the file once another record follows.
* All processes count together how much they add: each appends to the file ``added``, one byte for `_UNIT` bytes, after
  the total at the last look. The process that reaches `config.disk_cache_bytes` lists all files, and removes those that
  were not used for the longest time, until nine tenths of the limit are left. A reader sets the time of each file that
  it reads.
* The files are in a subdirectory that belongs to the user alone (0700).

Libraries that were considered, and why b2array uses none of them:

* diskcache keeps SQLite's database and files: it is shared, bounded and atomic. But its rows may contain pickles, so a
  foreign database runs code; it has no checksums; SQLite's locks fail on many network file systems, where home
  directories are; a damaged database raises errors; and each use of an entry is a transaction that writes.
* zict joins mappings of one process. Other processes do not see what it evicts, and it has no checksums.
* The caches of fsspec do not note to which version of an object a block belongs (``blockcache``), copy whole objects
  (``simplecache``, ``filecache``), and have no limit. python-blosc2's ``cache_dir`` assumes that objects never change.

Weak spots: The total counts sizes of files in units of 4 KiB, without directories. A process that is killed while it
removes files lets the cache grow by a tenth over its limit. On network file systems, appends of two computers may
overwrite each other: the checksums notice it, and the bytes are read again. The least recently used files are only as
exact as the clock of the file system. A file that two processes fill at the same time may have a range twice.
"""

from __future__ import annotations

import atexit
import errno
import math
import os
import re
import stat
import struct
import time
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from b2array import config
from b2array.buffers import Buffer, crc32
from b2array.errors import warn
from b2array.store.disk import READ, read_into
from b2array.store.secrets import redact

__all__ = ["CachedPart", "DiskCache", "Usage", "current", "directory_of"]

T = TypeVar("T")

KEY_NBYTES = 16
_NAME = "b2array-1"
"""The subdirectory. Another version of the files would get another name."""
_ADDED, _READS = "added", "reads"
_FILE = re.compile("[0-9a-f]{30}")
_SHARD = re.compile("[0-9a-f]{2}")
_MAGIC = b"b2dc"
_RECORD = struct.Struct(f"<4sI{KEY_NBYTES}sQQI")
"""Magic, the CRC-32 of the rest, key, first byte in the content, number of bytes, and the CRC-32 of the table that
follows: the CRC-32 of each segment of the payload. The payload is last."""
_CHECKED = 8
"""The offset in a record of the first byte that its checksum covers."""
_TOTAL = struct.Struct("<Q")
_COUNTS = struct.Struct("<4Q")
_SEGMENT = 32 * 2**10
"""Bytes with one checksum: a reader of fewer bytes reads so many."""
_GLANCE = 4096
"""Bytes that are read at a record's beginning; they usually have all of its checksums."""
_UNIT = 4096
_TO_READ = READ | getattr(os, "O_NOFOLLOW", 0)
_FOREIGN = (errno.EISDIR, errno.ELOOP, errno.ENXIO)
"""The errors of opening a directory, a link or a pipe to append to it."""
_MOST_INDEXES = 4096
"""The number of contents whose records this process remembers."""
_MOST_COUNTS = 2**16
"""The size of the file ``reads`` from which a process sums it up."""
_SECONDS_BETWEEN_NOTES = 1.0
_CLOCKS_DIFFER = 60 * 10**9
"""In nanoseconds. The clocks of a computer and of its file server may differ so much."""
_LONGEST_WRITE = 30.0
"""In seconds. A record that is still incomplete then will not be completed."""


class _Record(NamedTuple):
    """A range of a content, and where its payload and checksums are."""

    start: int
    stop: int
    place: int
    sums: bytes


class _Index:
    """The records of a file that this process has seen, in the order of their starts."""

    __slots__ = ("end", "inode", "is_cut", "last", "records", "stop", "touched")

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.records: list[_Record] = []
        self.last: _Record | None = None
        self.end = 0
        self.is_cut = False
        self.stop: int | None = None
        self.touched = -math.inf


class CachedPart(NamedTuple):
    """The part of a wanted range that the cache has.

    Attributes
    ----------
    views : list of (int, memoryview)
        Bytes, and their places in the content, in order.
    missing : (int, int) or None
        One range that contains everything else; None if nothing is missing.
    stop : int or None
        The end of the content, if it is known, and ends before the wanted range does.
    """

    views: list[tuple[int, memoryview]]
    missing: tuple[int, int] | None
    stop: int | None = None


class Usage(NamedTuple):
    """What a cache contains, and what it was used for since it was cleared."""

    files: int
    nbytes: int
    hits: int
    hit_nbytes: int
    misses: int
    missed_nbytes: int


class _DamagedError(Exception):
    """A file of the cache is not as this module writes it."""


class DiskCache:
    """The cache in a directory. OSError says that the directory cannot be used.

    Threads may share a cache, and it works in forked processes: it keeps nothing open.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.root = _prepare(directory)
        self._indexes: OrderedDict[bytes, _Index] = OrderedDict()
        self._counts = [0, 0, 0, 0]
        self._noted = time.monotonic()
        # Fails if the directory is read-only, or the disk is full.
        self._count_added(0)

    # Reading.

    def find(self, key: bytes, ranges: Sequence[tuple[int, int]]) -> list[CachedPart]:
        """Return the parts of ranges of a content that are here."""

        def read(descriptor: int, index: _Index) -> list[CachedPart]:
            return [_read_range(descriptor, index, start, stop) for start, stop in ranges]

        parts = self._read_content(key, read)
        return [CachedPart([], each) for each in ranges] if parts is None else parts

    def find_whole(self, key: bytes, start: int, stop: int) -> memoryview | None:
        """Return a range of a content if all of it is here; otherwise None."""
        return self._read_content(key, lambda descriptor, index: _read_whole(descriptor, index, start, stop))

    def missing(self, key: bytes, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int] | None]:
        """Return for each range what the cache lacks of it, as `find` does, without reading its bytes."""
        try:
            descriptor = os.open(self._path(key), _TO_READ)
            try:
                index = self._scan(key, descriptor)
            finally:
                os.close(descriptor)
        except (_DamagedError, OSError):
            return [*ranges]
        return [_gap(index, *each) for each in ranges]

    def last(self, key: bytes) -> memoryview | None:
        """Return the bytes of the record of a content that was added last."""

        def read(descriptor: int, index: _Index) -> memoryview | None:
            last = index.last
            return None if last is None else _read_record(descriptor, last, last.start, last.stop)

        return self._read_content(key, read)

    def _read_content(self, key: bytes, read: Callable[[int, _Index], T | None]) -> T | None:
        """Return what a function reads from the file of a content; None if that is not here.

        A damaged file is removed, and a file that was read becomes the last to make room for others.
        """
        path = self._path(key)
        try:
            descriptor = os.open(path, _TO_READ)
            try:
                index = self._scan(key, descriptor)
                value = read(descriptor, index)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None
        except (_DamagedError, OSError):
            self._remove(path, key)
            return None
        if value is not None:
            _touch(path, index)
        return value

    def _scan(self, key: bytes, descriptor: int) -> _Index:
        """Return the records of a file; read only those that were added since this process last looked."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _DamagedError
        index = self._indexes.pop(key, None)
        if index is None or index.inode != status.st_ino or status.st_size < index.end:
            index = _Index(status.st_ino)
        while index.end < status.st_size:
            place = index.end
            glance = _read_at(descriptor, place, _GLANCE)
            if len(glance) < _RECORD.size:
                break
            magic, checksum, owner, start, nbytes, of_table = _RECORD.unpack_from(glance)
            if magic != _MAGIC or owner != key or crc32(glance[_CHECKED : _RECORD.size]) != checksum:
                raise _DamagedError
            first = _RECORD.size + 4 * -(-nbytes // _SEGMENT)
            if place + first + nbytes > status.st_size:
                break
            head = glance if first <= len(glance) else _read_at(descriptor, place, first)
            sums = head[_RECORD.size : first]
            if crc32(sums) != of_table:
                raise _DamagedError
            record = _Record(start, start + nbytes, place + first, sums)
            if nbytes:
                insort(index.records, record)
                index.last = record
            else:
                index.stop = start
            index.end = record.place + nbytes
        # Another process is adding the last record, or was killed meanwhile.
        index.is_cut = index.end < status.st_size
        if index.is_cut and time.time() - status.st_mtime > _LONGEST_WRITE:
            raise _DamagedError
        self._indexes[key] = index
        while len(self._indexes) > _MOST_INDEXES:
            # Another thread may have removed the last one.
            with suppress(KeyError):
                self._indexes.popitem(last=False)
        return index

    # Adding and removing.

    def add(
        self,
        key: bytes,
        extents: Sequence[tuple[int, Buffer]],
        *,
        stop: int | None = None,
        replaces: bool = False,
    ) -> None:
        """Keep ranges of a content, each with its first byte, and the end of the content if it is known.

        With `replaces`, everything else in the content is removed. OSError says that the cache cannot be used.
        """
        pieces: list[Buffer] = []
        for start, data in extents:
            pieces += _pack(key, start, data)
        if stop is not None:
            pieces += _pack(key, stop, b"")
        nbytes = sum(map(len, pieces))
        if nbytes > config.disk_cache_bytes // 2:
            return
        self._make_room(nbytes)
        path = self._path(key)
        if replaces:
            self._remove(path, key)
        try:
            descriptor = self._open_to_add(path)
        except OSError as error:
            if error.errno in _FOREIGN:
                return
            raise
        try:
            # One write, so that records of several processes follow each other.
            written = os.write(descriptor, b"".join(pieces))
        except OSError:
            self._remove(path, key)
            raise
        finally:
            os.close(descriptor)
        if written < nbytes:
            self._remove(path, key)

    def _open_to_add(self, path: str) -> int:
        try:
            return _open_to_append(path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            return _open_to_append(path)

    def forget(self, key: bytes) -> bool:
        """Remove a content; return whether it was here."""
        return self._remove(self._path(key), key)

    def _remove(self, path: str, key: bytes) -> bool:
        self._indexes.pop(key, None)
        try:
            os.unlink(path)
        except OSError:
            return False
        return True

    def _path(self, key: bytes) -> str:
        name = key.hex()
        return f"{self.root}{os.sep}{name[:2]}{os.sep}{name[2:]}"

    # The limit.

    def _make_room(self, nbytes: int) -> None:
        """Count bytes that will be added, and remove files if there would be too many."""
        nbytes = -(-nbytes // _UNIT) * _UNIT
        total = self._count_added(nbytes)
        if total is None or total > config.disk_cache_bytes:
            self._evict(nbytes)

    def _count_added(self, nbytes: int) -> int | None:
        """Add whole units to the count that all processes share; return the new total, or None if it is unknown."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        descriptor = os.open(os.path.join(self.root, _ADDED), flags, 0o600)
        try:
            stored = os.read(descriptor, _TOTAL.size)
            if len(stored) < _TOTAL.size:
                return None
            added = nbytes // _UNIT
            units = os.fstat(descriptor).st_size - _TOTAL.size + added
            os.write(descriptor, bytes(added))
        finally:
            os.close(descriptor)
        (total,) = _TOTAL.unpack(stored)
        return int(total) + units * _UNIT

    def _set_total(self, total: int) -> None:
        temporary = os.path.join(self.root, f"{_ADDED}-{os.urandom(8).hex()}")
        with open(temporary, "xb", opener=_private) as file:
            file.write(_TOTAL.pack(max(0, total)))
        os.replace(temporary, os.path.join(self.root, _ADDED))

    def _evict(self, coming: int) -> None:
        """Remove the files that were not used for the longest time, so that there is room for `coming` bytes."""
        most = max(0, config.disk_cache_bytes * 9 // 10 - coming)
        # Other processes can go on meanwhile, and need not do the same.
        self._set_total(most + coming)
        # A file from the future is of a time when the clock was wrong: nobody knows when it was used.
        present = time.time_ns() + _CLOCKS_DIFFER
        files = sorted((0 if used > present else used, nbytes, path) for used, nbytes, path in self._files())
        total = sum(nbytes for _, nbytes, _ in files)
        for _, nbytes, path in files:
            if total <= most:
                break
            with suppress(OSError):
                os.unlink(path)
            total -= nbytes
        self._set_total(total + coming)
        self._remove_temporary()

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """Yield the time, the size and the path of each file with a content."""
        with os.scandir(self.root) as shards:
            directories = [shard.path for shard in shards if _SHARD.fullmatch(shard.name)]
        for directory in directories:
            # Another process may be clearing the cache.
            with suppress(OSError), os.scandir(directory) as entries:
                for entry in entries:
                    if _FILE.fullmatch(entry.name):
                        status = entry.stat(follow_symlinks=False)
                        yield status.st_mtime_ns, -(-status.st_size // _UNIT) * _UNIT, entry.path

    def _remove_temporary(self) -> None:
        """Remove files that killed processes have left."""
        with os.scandir(self.root) as entries:
            for entry in entries:
                if entry.name.startswith((f"{_ADDED}-", f"{_READS}-")):
                    # Another process may be about to rename its file: then its total is unknown.
                    with suppress(OSError):
                        if time.time() - entry.stat().st_mtime > 60:
                            os.unlink(entry.path)

    def clear(self) -> None:
        """Remove all contents, and the counts. Other processes may go on using the cache."""
        self._indexes.clear()
        self._counts = [0, 0, 0, 0]
        paths = [path for _, _, path in self._files()]
        for path in [*paths, os.path.join(self.root, _READS), os.path.join(self.root, _ADDED)]:
            with suppress(FileNotFoundError):
                os.unlink(path)
        for directory in {os.path.dirname(path) for path in paths}:
            # A foreign file, or a new one of another process.
            with suppress(OSError):
                os.rmdir(directory)

    # Counts of use.

    def count(self, *, found: int, missed: int) -> None:
        """Note a read: the number of bytes that were found here, and of those that were not."""
        counts = self._counts
        counts[0] += not missed
        counts[1] += found
        counts[2] += bool(missed)
        counts[3] += missed
        if time.monotonic() > self._noted + _SECONDS_BETWEEN_NOTES:
            self.note_counts()

    def note_counts(self) -> None:
        """Add the counts of this process to the counts of all processes."""
        counts, self._counts, self._noted = self._counts, [0, 0, 0, 0], time.monotonic()
        if not any(counts):
            return
        path = os.path.join(self.root, _READS)
        # Nothing depends on the counts: they may be lost.
        with suppress(OSError):
            descriptor = _open_to_append(path)
            try:
                os.write(descriptor, _COUNTS.pack(*counts))
                long = os.fstat(descriptor).st_size > _MOST_COUNTS
            finally:
                os.close(descriptor)
            if long:
                temporary = os.path.join(self.root, f"{_READS}-{os.urandom(8).hex()}")
                with open(temporary, "xb", opener=_private) as file:
                    file.write(_COUNTS.pack(*self._sum_counts()))
                os.replace(temporary, path)

    def _sum_counts(self) -> list[int]:
        try:
            with open(os.path.join(self.root, _READS), "rb") as file:
                data = file.read()
        except OSError:
            return [0, 0, 0, 0]
        whole = len(data) - len(data) % _COUNTS.size
        columns = zip(*_COUNTS.iter_unpack(data[:whole]), strict=True)
        return [min(sum(column), 2**64 - 1) for column in columns] or [0, 0, 0, 0]

    def usage(self) -> Usage:
        """Return what the cache contains now, and its counts."""
        self.note_counts()
        sizes = [nbytes for _, nbytes, _ in self._files()]
        return Usage(len(sizes), sum(sizes), *self._sum_counts())


# Records.


def _pack(key: bytes, start: int, data: Buffer) -> list[Buffer]:
    view = memoryview(data)
    sums = [crc32(view[first : first + _SEGMENT]) for first in range(0, len(view), _SEGMENT)]
    table = struct.pack(f"<{len(sums)}I", *sums)
    described = _RECORD.pack(_MAGIC, 0, key, start, len(view), crc32(table))[_CHECKED:]
    return [struct.pack("<4sI", _MAGIC, crc32(described)), described, table, view]


def _read_at(descriptor: int, place: int, nbytes: int) -> bytes:
    buffer = bytearray(nbytes)
    count = read_into(descriptor, [buffer], place)
    return bytes(buffer[:count])


def _read_record(
    descriptor: int,
    record: _Record,
    start: int,
    stop: int,
    out: memoryview | None = None,
) -> memoryview:
    """Read a part of a record, and compare the segments that contain it with their checksums.

    With `out`, which has the size of the part, the bytes get there.
    """
    first = (start - record.start) // _SEGMENT
    low = record.start + first * _SEGMENT
    high = min(record.stop, record.start + -(-(stop - record.start) // _SEGMENT) * _SEGMENT)
    is_exact = low == start and high == stop
    nbytes = high - low
    view = out if out is not None and is_exact else np.empty(nbytes, np.uint8).data
    place = record.place + low - record.start
    done = read_into(descriptor, [view], place)
    while done < nbytes:
        count = read_into(descriptor, [view[done:]], place + done)
        if not count:
            raise _DamagedError
        done += count
    sums = struct.unpack_from(f"<{-(-nbytes // _SEGMENT)}I", record.sums, 4 * first)
    for number, expected in enumerate(sums):
        if crc32(view[number * _SEGMENT : (number + 1) * _SEGMENT]) != expected:
            raise _DamagedError
    if is_exact:
        return view
    part = view[start - low : stop - low]
    if out is None:
        return part
    out[:] = part
    return out


def _touch(path: str, index: _Index) -> None:
    """Set the time of a file that was used; a file with an incomplete record keeps the time of the last write."""
    now = time.monotonic()
    if not index.is_cut and now > index.touched + _SECONDS_BETWEEN_NOTES:
        index.touched = now
        # Another process may have removed the file.
        with suppress(OSError):
            os.utime(path)


def _pieces(index: _Index, start: int, stop: int) -> Iterator[tuple[int, int, _Record]]:
    """Yield parts of a range that records have, in order, each byte once."""
    reached = start
    for record in index.records:
        if record.start >= stop:
            return
        if record.stop > reached:
            low, high = max(reached, record.start), min(stop, record.stop)
            yield low, high, record
            reached = high
            if reached == stop:
                return


def _gap(index: _Index, start: int, stop: int) -> tuple[int, int] | None:
    """Return one range with everything that records lack of a range; None if they lack nothing."""
    if index.stop is not None:
        stop = max(start, min(stop, index.stop))
    reached = start
    first = last = -1
    for low, high, _ in _pieces(index, start, stop):
        if low > reached:
            first, last = (reached if first < 0 else first), low
        reached = high
    if reached < stop:
        first, last = (reached if first < 0 else first), stop
    return None if first < 0 else (first, last)


def _read_whole(descriptor: int, index: _Index, start: int, stop: int) -> memoryview | None:
    part = _read_range(descriptor, index, start, stop)
    is_whole = part.missing is None and part.stop is None
    return part.views[0][1] if is_whole else None


def _read_range(descriptor: int, index: _Index, start: int, stop: int) -> CachedPart:
    end = None
    if index.stop is not None and index.stop < stop:
        end = stop = max(start, index.stop)
    if start >= stop:
        return CachedPart([], None, end)
    # Most often, one record has it all.
    for record in index.records:
        if record.start <= start and stop <= record.stop:
            return CachedPart([(start, _read_record(descriptor, record, start, stop))], None, end)
    gap = _gap(index, start, stop)
    pieces = [*_pieces(index, start, stop)]
    if gap is None:
        whole = np.empty(stop - start, np.uint8).data
        for low, high, record in pieces:
            _read_record(descriptor, record, low, high, whole[low - start : high - start])
        return CachedPart([(start, whole)], None, end)
    views = []
    for low, high, record in pieces:
        # The request for the missing bytes brings what is between them as well.
        for first, last in (low, min(high, gap[0])), (max(low, gap[1]), high):
            if first < last:
                views.append((first, _read_record(descriptor, record, first, last)))
    return CachedPart(views, gap, end)


# The directory.


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o600)


def _open_to_append(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
    # A foreign pipe would make the process wait for a reader, and a link could lead anywhere.
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    return _private(path, flags)


def directory_of(setting: str | os.PathLike[str]) -> str:
    """Return the absolute path of the directory that a setting names."""
    return os.path.abspath(os.path.expanduser(os.fspath(setting)))


def _prepare(directory: str) -> str:
    """Make the subdirectory for the cache, and return its path; PermissionError if others might use it."""
    os.makedirs(directory, 0o700, exist_ok=True)
    root = os.path.join(directory, _NAME)
    with suppress(FileExistsError):
        os.mkdir(root, 0o700)
    if hasattr(os, "geteuid"):  # absent on Windows, where the directory inherits the permissions of its parent
        outer, status = os.stat(directory), os.lstat(root)
        if outer.st_uid not in (0, os.geteuid()) or (outer.st_mode & 0o022 and not outer.st_mode & stat.S_ISVTX):
            raise PermissionError(f"others may change {directory}")
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(f"expected {root} to be a directory of this user alone, with the mode 0700")
    return root


# The cache of this process.


class _Caches:
    """The caches that this process has used, by their setting; None for one that cannot be used."""

    caches: ClassVar[dict[object, DiskCache | None]] = {}


def current() -> DiskCache | None:
    """Return the cache of the present settings; None without one, or if it cannot be used."""
    setting = config.disk_cache
    if setting is None or not config.disk_cache_bytes:
        return None
    try:
        return _Caches.caches[setting]
    except KeyError:
        pass
    cache: DiskCache | None = None
    try:
        cache = DiskCache(directory_of(setting))
    except OSError as error:
        _warn(setting, error)
    _Caches.caches[setting] = cache
    return cache


def give_up(cache: DiskCache, error: OSError) -> None:
    """Go on without a cache that cannot be written; the first call warns."""
    for setting, each in [*_Caches.caches.items()]:
        if each is cache:
            _Caches.caches[setting] = None
            _warn(setting, error)


def _warn(setting: object, error: OSError) -> None:
    warn(f"b2array reads without its cache on disk, {redact(str(setting))}: {error}")


def _forget_refusals() -> None:
    # Whoever assigns the setting again wants another attempt.
    for setting in [setting for setting, cache in _Caches.caches.items() if cache is None]:
        _Caches.caches.pop(setting, None)


config.when_assigned("disk_cache", _forget_refusals)


@atexit.register
def _note_all_counts() -> None:
    for cache in _Caches.caches.values():
        if cache is not None:
            cache.note_counts()


def _after_fork() -> None:
    # The parent notes its counts itself.
    for cache in _Caches.caches.values():
        if cache is not None:
            cache._counts = [0, 0, 0, 0]


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)
