"""Groups in a ``.b2z`` file: a zip archive that holds the files of a directory as they are.

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
from b2array.commit.handle import Handle, Mode
from b2array.errors import FormatError, LimitError, ReadOnlyError, UnsupportedError, prefix_errors
from b2array.frame import snapshot
from b2array.frame.manifest import EMBEDDED, MANIFEST, check_path, is_embedded, members_among
from b2array.frame.places import ZIP, Place
from b2array.group import embedded
from b2array.group.members import Members
from b2array.store.base import Stamp, Store, in_one_state, stale_reader
from b2array.store.endings import JOURNAL, LOCK, TEMPORARY, UNFINISHED
from b2array.store.open import open_store
from b2array.store.open_file import BinaryFile
from b2array.store.secrets import redact_url
from b2array.store.spans import Span

__all__ = ["NOTE", "Archive", "changed_as_a_whole", "is_content"]

NOTE = ".b2work"
"""What a writer notes about the archive, next to the members in its directory."""


def changed_as_a_whole(place: Place) -> ReadOnlyError:
    """Return the error for who wants to change a member of an archive, which is written when its group is closed."""
    return ReadOnlyError(
        f'{redact_url(place.group)} is an archive, which is changed as a whole: \'with b2array.open_group(url, "a")'
        f" as group:' and then group[{place.name!r}]"
    )


_TAIL = 2**16 + 2**10  # the longest comment, and what a small directory takes
_LOCAL_HEADER = struct.Struct("<4s22x2H")
_ENCRYPTED = 1
_UNREADABLE = (zipfile.BadZipFile, ValueError, EOFError, LookupError, NotImplementedError, OverflowError, struct.error)


_PIECE = 2**22


class _Entry(NamedTuple):
    start: int  # of the local header
    nbytes: int
    stored: bool


def is_content(path: str) -> bool:
    """Whether a file of a directory belongs into an archive: locks and what waits for a commit do not."""
    name = path.rpartition("/")[2]
    unfinished = re.search(rf"{UNFINISHED}(/|$)", path) is not None
    return not (name in (MANIFEST, NOTE) or name.endswith((LOCK, TEMPORARY, JOURNAL)) or unfinished)


class Archive:
    """The members of a group in a zip archive, as they were when somebody first asked for them. For reading."""

    def __init__(
        self,
        url: str | BinaryFile,
        storage_options: Mapping[str, Any],
        known: tuple[Stamp, dict[str, _Entry], Members] | None = None,
    ) -> None:
        self._options = dict(storage_options)
        self._known = known
        self.store: Store = open_store(url, storage_options=self._options)
        self._address = self.store.url if self.store.can.local else url

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._address, self._options, self._known)

    @property
    def url(self) -> str:
        """Where the archive is, without secrets."""
        return self.store.url

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""
        return self._state()[2]

    def refresh(self) -> None:
        """Read the list of members again when it is next needed."""
        self._known = None
        self.store.close()

    def close(self) -> None:
        """Close the file."""
        self.store.close()

    def unpack(self, target: Store) -> None:
        """Copy every file of the archive to a store, except files of locks and of commits under way."""
        stamp, entries, _ = self._state()
        if sum(entry.nbytes for entry in entries.values()) > stamp.size:
            raise FormatError(f"{self.url}: expected files beside each other, found some in the place of others")
        with self._of_one_archive(stamp), zipfile.ZipFile(_ArchiveFile(self.store, stamp)) as opened:
            for info in opened.infolist():
                path = _path_of(info)
                if path in entries and is_content(path):
                    prefix_errors(f"{self.url}: {path}", partial(self._copy, opened, info, entries[path], target))

    @contextmanager
    def _of_one_archive(self, stamp: Stamp) -> Iterator[None]:
        """Raise ConflictError instead of FormatError in the block if the archive was replaced: it is not damaged."""
        try:
            yield
        except FormatError:
            if stamp.version is not None and self.store.stamp("").version != stamp.version:
                raise stale_reader(self.url) from None
            raise

    @staticmethod
    def _copy(opened: zipfile.ZipFile, info: zipfile.ZipInfo, entry: _Entry, target: Store) -> None:
        if not entry.stored:
            raise UnsupportedError("expected a file that is stored as it is, found one that is compressed or encrypted")
        try:
            with opened.open(info) as file:
                target.create(_path_of(info), iter(partial(file.read, _PIECE), b""))
        except _UNREADABLE as error:
            raise FormatError(f"expected a file in the archive, found other bytes ({error})") from None

    def _state(self) -> tuple[Stamp, dict[str, _Entry], Members]:
        if self._known is None:
            self._known = in_one_state(self._read)
        return self._known

    def _read(self) -> tuple[Stamp, dict[str, _Entry], Members]:
        stamp = self.store.stamp("")
        with self._of_one_archive(stamp):
            entries = prefix_errors(self.url, lambda: _entries(self.store, stamp))
            inner = embedded.members(SChunk(self._open(EMBEDDED, stamp, entries))) if EMBEDDED in entries else {}
        return stamp, entries, Members({**inner, **members_among(entries)})

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member by its path. It must be one file, and neither compressed nor encrypted."""
        if mode != "r":
            raise ReadOnlyError(f"{self.url} is an archive: open_group(url, 'a') opens it as a whole for changes")
        stamp, entries, _ = self._state()
        with self._of_one_archive(stamp):
            if is_embedded(path):
                return embedded.open_embedded(SChunk(self._open(EMBEDDED, stamp, entries)), path)
            return self._open(path, stamp, entries)
        raise AssertionError  # for the type checker

    def _open(self, path: str, stamp: Stamp, entries: Mapping[str, _Entry]) -> Handle:
        entry, where = entries.get(path), f"{self.url}: {path}"
        if entry is None or not entry.stored:
            kind = "a directory" if entry is None else "compressed or encrypted"
            raise UnsupportedError(f"{where} is {kind} in the archive and cannot be read in place; unpack the archive")
        start = entry.start + self._header_nbytes(where, entry, stamp)
        # Its own store keeps the archive open as long as the member is used, even if another archive replaces it.
        store = open_store(self._address, storage_options=self._options)
        held = prefix_errors(where, lambda: snapshot.load(store, start=start))
        if held.version not in (None, stamp.version):
            raise stale_reader(self.url)
        if held.frame.frame_len > entry.nbytes:
            raise FormatError(f"{where}: expected a frame in {entry.nbytes} bytes, found {held.frame.frame_len}")
        return Handle(held, "r")

    def _header_nbytes(self, where: str, entry: _Entry, stamp: Stamp) -> int:
        # Its extra fields differ from those in the central directory.
        span = Span("", entry.start, entry.start + _LOCAL_HEADER.size)
        (head,) = self.store.read([span], expected=stamp.version)
        magic, name_nbytes, extra_nbytes = _LOCAL_HEADER.unpack(head)
        if magic != ZIP[0]:
            raise FormatError(f"{where}: expected the header of a file in the archive, found {magic!r}")
        nbytes: int = _LOCAL_HEADER.size + name_nbytes + extra_nbytes
        if entry.start + nbytes + entry.nbytes > stamp.size:
            raise FormatError(f"{where}: expected {entry.nbytes} bytes, found the end of the archive")
        return nbytes


def _entries(store: Store, stamp: Stamp) -> dict[str, _Entry]:
    try:
        with zipfile.ZipFile(_ArchiveFile(store, stamp)) as opened:
            infos = opened.infolist()
    except (FormatError, LimitError):
        raise
    except _UNREADABLE as error:
        raise FormatError(f"expected a zip archive, found other bytes ({error})") from None
    entries: dict[str, _Entry] = {}
    for info in infos:
        if info.filename.endswith("/"):
            continue
        name = _path_of(info)
        check_path(name)
        if name in entries:
            raise FormatError(f"expected every file once in the archive, found {name!r} again")
        stored = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & _ENCRYPTED
        if stored and info.file_size != info.compress_size:
            raise FormatError(f"{name}: expected {info.file_size} bytes, found {info.compress_size}")
        if not 0 <= info.header_offset <= stamp.size - _LOCAL_HEADER.size:
            raise FormatError(f"{name}: expected an offset in the archive, found {info.header_offset}")
        entries[name] = _Entry(info.header_offset, info.compress_size, stored)
    return entries


def _path_of(info: zipfile.ZipInfo) -> str:
    return info.orig_filename.replace("\\", "/") if info.create_system == 0 else info.orig_filename


class _ArchiveFile(io.RawIOBase):
    """An archive as a file, from which `zipfile` reads the directory; its end, which has that, is read once."""

    def __init__(self, store: Store, stamp: Stamp) -> None:
        super().__init__()
        self._store, self._stamp, self._at = store, stamp, 0
        self._tail_start = max(0, stamp.size - _TAIL)
        self._tail = self._range(self._tail_start, stamp.size)

    def _range(self, start: int, stop: int) -> memoryview:
        (view,) = self._store.read([Span("", start, stop)], expected=self._stamp.version)
        return view

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._stamp.size)[whence])
        return self._at

    def read(self, size: int = -1) -> bytes:
        start, end = min(self._at, self._stamp.size), self._stamp.size
        stop = min(start + size, end) if size >= 0 else end
        if stop - start > config.limits.metadata_nbytes:
            raise LimitError(f"the directory of the archive takes {stop - start} bytes")
        self._at = stop
        if start >= self._tail_start:
            return bytes(self._tail[start - self._tail_start : stop - self._tail_start])
        return bytes(self._range(start, stop))
