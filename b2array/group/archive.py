"""Groups in a ``.b2z`` file: a zip archive that stores the files of a directory uncompressed.

Members are read in place. Source: "APPNOTE.TXT - .ZIP File Format Specification", sections 4.3.7 and 4.3.12; the
central directory is read by `zipfile`.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from b2array import config
from b2array.array.schunk import SChunk
from b2array.catalog import owners
from b2array.catalog.group_places import ZIP, Place
from b2array.catalog.manifest import EMBEDDED, MANIFEST, check_path, is_embedded, members_among, refuse_other_names
from b2array.catalog.names_of_members import Members
from b2array.commit.handle import Handle, Mode
from b2array.errors import FormatError, LimitError, ReadOnlyError, UnsupportedError, prefix_errors
from b2array.format import foreign
from b2array.group import embedded
from b2array.store.base import ContentName, Stamp, Store, in_one_state, stale_reader
from b2array.store.endings import JOURNAL, LOCK, TEMPORARY, UNFINISHED
from b2array.store.open import open_store
from b2array.store.open_file import BinaryFile
from b2array.store.secrets import redact_url
from b2array.store.spans import Span

__all__ = ["NOTE", "Archive", "is_content", "make_archive_error", "names_in"]

NOTE = ".b2work"
"""The file in which a writer notes the version of the archive, next to the members in its directory."""


def make_archive_error(place: Place) -> ReadOnlyError:
    """Return the error for changing a single member: an archive is written as a whole, when its group is closed."""
    return ReadOnlyError(
        f'{redact_url(place.group)} is an archive, which is changed as a whole: \'with b2array.open_group(url, "a")'
        f" as group:' and then group[{place.name!r}]"
    )


_TAIL = 2**16 + 2**10
"""Bytes to read at the end of an archive: the longest comment, and a small directory before it."""
_LOCAL_HEADER = struct.Struct("<4s22x2H")
_ENCRYPTED = 1
_UNREADABLE = (
    zipfile.BadZipFile,
    ValueError,
    EOFError,
    LookupError,
    NotImplementedError,
    OverflowError,
    struct.error,
)
"""The errors that `zipfile` raises for damaged archives."""
_PIECE = 2**22


class _Entry(NamedTuple):
    """A file in the archive: the offset of its local header, its size, and whether it is stored uncompressed."""

    start: int
    nbytes: int
    stored: bool


def is_content(path: str) -> bool:
    """Return whether an archive stores this file of a writer's directory.

    It stores no manifest, lock, note or unfinished file.
    """
    name = path.rpartition("/")[2]
    if name in (MANIFEST, NOTE) or name.endswith((LOCK, TEMPORARY, JOURNAL)):
        return False
    return re.search(rf"{UNFINISHED}(/|$)", path) is None


class Archive:
    """The members of a group in a zip archive, as listed at the first use. Read-only.

    A pickle passes the list as `contents`: the archive's size and version, its files by path, and its members.
    """

    def __init__(
        self,
        url: str | BinaryFile,
        storage_options: Mapping[str, Any],
        contents: tuple[Stamp, dict[str, _Entry], Members] | None = None,
    ) -> None:
        self._options = dict(storage_options)
        self._listing = contents
        self.store: Store = open_store(url, storage_options=self._options)
        self._address = self.store.url if self.store.can.local else url

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the archive is, and the list of its members if it was read."""
        return type(self), (self._address, self._options, self._listing)

    @property
    def url(self) -> str:
        """The URL of the archive, without secrets."""
        return self.store.url

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names.

        The first use, and the first use after `refresh`, reads the list from the archive.
        """
        return self._ensure_listing()[2]

    def refresh(self) -> None:
        """Forget the list of members, and close the file; the next use reads the list again."""
        self._listing = None
        self.store.close()

    def close(self) -> None:
        """Close the file."""
        self.store.close()

    def unpack(self, target: Store) -> None:
        """Copy the files of the archive to a store, except those for which `is_content` is false.

        Raises FormatError for a damaged archive, UnsupportedError for a compressed file, and ConflictError if another
        archive replaces this one meanwhile.
        """
        stamp, entries, _ = self._ensure_listing()
        # Overlapping files would let a small archive unpack to any size.
        if sum(entry.nbytes for entry in entries.values()) > stamp.size:
            raise FormatError(f"{self.url}: expected separate files, found files that overlap")
        with self._of_one_archive(stamp), zipfile.ZipFile(_ArchiveFile(self.store, stamp)) as archive:
            for info in archive.infolist():
                path = _path_of(info)
                if path in entries and is_content(path):
                    copy = partial(self._copy, archive, info, entries[path], target)
                    prefix_errors(f"{self.url}: {path}", copy)

    @contextmanager
    def _of_one_archive(self, stamp: Stamp) -> Iterator[None]:
        """Turn a FormatError in the block into ConflictError if the archive was replaced since the stamp was read."""
        try:
            yield
        except FormatError:
            if stamp.version is not None and self.store.stamp("").version != stamp.version:
                raise stale_reader(self.url) from None
            raise

    @staticmethod
    def _copy(
        archive: zipfile.ZipFile,
        info: zipfile.ZipInfo,
        entry: _Entry,
        target: Store,
    ) -> None:
        """Copy one file of the archive to a store, in pieces.

        Raises UnsupportedError for a compressed or encrypted file, and FormatError for a damaged one.
        """
        if not entry.stored:
            raise UnsupportedError("expected an uncompressed file, found one that is compressed or encrypted")
        try:
            with archive.open(info) as file:
                pieces = iter(partial(file.read, _PIECE), b"")
                target.create(_path_of(info), pieces)
        except _UNREADABLE as error:
            raise FormatError(f"expected a file in the archive, found other bytes ({error})") from None

    def _ensure_listing(self) -> tuple[Stamp, dict[str, _Entry], Members]:
        """Return the archive's size and version, its files by path, and its members; read them at the first use."""
        if self._listing is None:
            self._listing = in_one_state(self._read_listing)
        return self._listing

    def _read_listing(self) -> tuple[Stamp, dict[str, _Entry], Members]:
        """Read the archive's directory, and the embedding frame in it; return what `_ensure_listing` returns."""
        stamp = self.store.stamp("")
        inner: Mapping[str, str] = {}
        with self._of_one_archive(stamp):
            entries = prefix_errors(self.url, lambda: _read_entries(self.store, stamp))
            prefix_errors(self.url, lambda: refuse_other_names(entries))
            if EMBEDDED in entries:
                embedding = SChunk(self._open_in_place(EMBEDDED, stamp, entries))
                inner = embedded.members(embedding)
        return stamp, entries, Members({**inner, **members_among(entries)})

    def open(
        self,
        path: str,
        mode: Mode,
        *,
        lazy: bool = False,  # noqa: ARG002
    ) -> Handle:
        """Open a member by its path, for reading. The archive must store it as one file, uncompressed and unencrypted.

        An embedded member is read into memory. Raises ReadOnlyError for any mode but "r", and ConflictError if another
        archive has replaced this one.
        """
        if mode != "r":
            raise ReadOnlyError(f"{self.url} is an archive: open_group(url, 'a') opens it as a whole for changes")
        stamp, entries, _ = self._ensure_listing()
        with self._of_one_archive(stamp):
            if not is_embedded(path):
                return self._open_in_place(path, stamp, entries)
            embedding = SChunk(self._open_in_place(EMBEDDED, stamp, entries))
            return embedded.open_member(embedding, path)
        raise AssertionError  # for the type checker

    def _open_in_place(self, path: str, stamp: Stamp, entries: Mapping[str, _Entry]) -> Handle:
        """Open the frame in a file of the archive for reading, without copying it, through a separate store.

        Raises UnsupportedError for a directory and for a compressed or encrypted file, FormatError for a damaged frame,
        and ConflictError if another archive has replaced this one.
        """
        where = f"{self.url}: {path}"
        entry = entries.get(path)
        if entry is None or not entry.stored:
            kind = "a directory" if entry is None else "compressed or encrypted"
            raise UnsupportedError(f"{where} is {kind} in the archive and cannot be read in place; unpack the archive")
        start = entry.start + self._header_nbytes(where, entry, stamp)
        # A separate store keeps this archive open while the member is in use, even if another archive replaces it.
        store = open_store(self._address, storage_options=self._options)
        load = partial(owners.load, store, start=start, with_contents=True, cached=True)
        # The server has just told this version of the archive.
        source = prefix_errors(where, lambda: load(accepts=lambda version: version == stamp.version))
        if source.version not in (None, stamp.version):
            raise stale_reader(self.url)
        if source.frame.frame_len > entry.nbytes:
            raise FormatError(f"{where}: expected a frame in {entry.nbytes} bytes, found {source.frame.frame_len}")
        return Handle(source, "r")

    def _header_nbytes(self, where: str, entry: _Entry, stamp: Stamp) -> int:
        """Read a file's local header, and return its size.

        Raises FormatError, which names the file as `where`, if it is no header, or if the file goes beyond the end of
        the archive.
        """
        # The size is not in the central directory: its extra fields differ from the fields in the local header.
        span = Span("", entry.start, entry.start + _LOCAL_HEADER.size)
        head = _read_range(self.store, span, stamp)
        magic, name_nbytes, extra_nbytes = _LOCAL_HEADER.unpack(head)
        if magic != ZIP[0]:
            raise FormatError(f"{where}: expected the header of a file in the archive, found {magic!r}")
        nbytes: int = _LOCAL_HEADER.size + name_nbytes + extra_nbytes
        if entry.start + nbytes + entry.nbytes > stamp.size:
            raise FormatError(f"{where}: expected {entry.nbytes} bytes, found the end of the archive")
        return nbytes


def _read_range(store: Store, span: Span, stamp: Stamp) -> memoryview:
    """Read a range of an archive, if possible from the cache on disk.

    Raises ConflictError if the archive was replaced since the stamp was read.
    """
    version = stamp.version
    content = None
    if version is not None and store.may_keep(version):
        content = ContentName(repr(version).encode(), 0)
    (view,) = store.read_through([span], [content], expected=version)
    return view


def names_in(store: Store) -> frozenset[str]:
    """Return the names of the files in a zip archive of any software; FormatError for other bytes."""
    infos = prefix_errors(store.url, lambda: _read_directory(store, store.stamp("")))
    return frozenset(map(_path_of, infos))


def _read_directory(store: Store, stamp: Stamp) -> list[zipfile.ZipInfo]:
    """Read the directory of an archive; FormatError for other bytes, and LimitError for a directory too large."""
    try:
        with zipfile.ZipFile(_ArchiveFile(store, stamp)) as archive:
            return archive.infolist()
    except (FormatError, LimitError):
        raise
    except _UNREADABLE as error:
        raise FormatError(f"expected a zip archive, found other bytes ({error})") from None


def _read_entries(store: Store, stamp: Stamp) -> dict[str, _Entry]:
    """Read the directory of an archive, and return its files by path, without directories.

    Raises FormatError for a file that is no archive, or for a wrong name, size or offset, and LimitError for a
    directory that is too large.
    """
    infos = _read_directory(store, stamp)
    names = [_path_of(info) for info in infos]
    if not set(names).isdisjoint(foreign.ZARR) and not members_among(names):
        raise FormatError("expected an archive of Blosc2 frames, found one of Zarr; b2array.convert copies it")
    entries: dict[str, _Entry] = {}
    for info, name in zip(infos, names, strict=True):
        if info.filename.endswith("/"):
            continue
        check_path(name)
        if name in entries:
            raise FormatError(f"expected every file once in the archive, found {name!r} again")
        is_encrypted = bool(info.flag_bits & _ENCRYPTED)
        stored = info.compress_type == zipfile.ZIP_STORED and not is_encrypted
        if stored and info.file_size != info.compress_size:
            raise FormatError(f"{name}: expected {info.file_size} bytes, found {info.compress_size}")
        if not 0 <= info.header_offset <= stamp.size - _LOCAL_HEADER.size:
            raise FormatError(f"{name}: expected an offset in the archive, found {info.header_offset}")
        entries[name] = _Entry(info.header_offset, info.compress_size, stored)
    return entries


def _path_of(info: zipfile.ZipInfo) -> str:
    """Return the path of a file in the archive, with slashes."""
    # Some writers on Windows, which is system 0, separate directories by backslashes.
    return info.orig_filename.replace("\\", "/") if info.create_system == 0 else info.orig_filename


class _ArchiveFile(io.RawIOBase):
    """An archive as a file for `zipfile`. One request reads its end, which usually has the whole directory."""

    def __init__(self, store: Store, stamp: Stamp) -> None:
        """Read the end of the archive, and begin at the position 0."""
        super().__init__()
        self._store = store
        self._stamp = stamp
        self._at = 0
        self._tail_start = max(0, stamp.size - _TAIL)
        self._tail = self._range(self._tail_start, stamp.size)

    def _range(self, start: int, stop: int) -> memoryview:
        """Read a range of the archive, in the state of the stamp."""
        return _read_range(self._store, Span("", start, stop), self._stamp)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, like a file, and return it; a position before the beginning becomes 0."""
        # In a short file, zipfile looks for the end of the directory before the beginning. It then finds other bytes at
        # 0, and says that the file is no archive.
        origins = 0, self._at, self._stamp.size
        self._at = max(0, offset + origins[whence])
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read from the present position, like a file; LimitError for more than `config.limits.metadata_nbytes`."""
        end = self._stamp.size
        start = min(self._at, end)
        stop = min(start + size, end) if size >= 0 else end
        # Damaged sizes must not make this process allocate too much memory.
        if stop - start > config.limits.metadata_nbytes:
            raise LimitError(f"the directory of the archive takes {stop - start} bytes")
        self._at = stop
        if start < self._tail_start:
            return bytes(self._range(start, stop))
        first = start - self._tail_start
        return bytes(self._tail[first : first + stop - start])
