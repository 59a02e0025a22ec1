"""Symbolic links and hard links: names that b2array chooses itself never lead to another place.

A user may give the URL of a link. What b2array puts below or next to that (chunks, members of a group, locks, files
that wait for a commit) is never a link, so a link there was made by somebody else, and may lead anywhere.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from b2array.errors import FormatError, UnsupportedError
from b2array.store.descriptors import open_descriptor
from b2array.store.endings import UNFINISHED

__all__ = [
    "OpenDirectory",
    "is_link",
    "make_link_error",
    "open_directory",
    "open_itself",
    "parts_below",
    "refuse_link",
    "refuse_other_names",
]

if sys.platform == "win32":
    _ITSELF = os.O_BINARY
    _DIRECTORY = 0
else:
    _ITSELF = os.O_NOFOLLOW
    _DIRECTORY = os.O_RDONLY | os.O_DIRECTORY

_BY_DESCRIPTOR = {os.open, os.unlink, os.rmdir, os.rename} <= os.supports_dir_fd and os.scandir in os.supports_fd
"""Whether the system opens and removes names relative to the descriptor of their directory."""


def is_link(path: str) -> bool:
    """Whether a path is a symbolic link, or a junction of Windows; False if there is nothing."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if sys.platform == "win32" and status.st_reparse_tag == stat.IO_REPARSE_TAG_MOUNT_POINT:
        return True
    return stat.S_ISLNK(status.st_mode)


def refuse_link(path: str) -> None:
    """Raise FormatError if a path is a link."""
    if is_link(path):
        raise make_link_error(path)


def make_link_error(path: str) -> FormatError:
    """Return the error for a link in a place where there must be none."""
    return FormatError(
        f"{path}: expected a file or a directory, found a symbolic link: inside of arrays and groups, and for"
        " locks, none is followed"
    )


def open_itself(path: str, flags: int, mode: int = 0o666) -> int:
    """Open the file of this name itself: FormatError for a link."""
    if sys.platform == "win32":
        refuse_link(path)
    try:
        return open_descriptor(path, flags | _ITSELF, mode)
    except OSError:
        refuse_link(path)  # systems give this error different numbers
        raise


def parts_below(directory: str, path: str) -> tuple[str, ...]:
    """Return the paths from below a directory down to `path`, which is below it.

    Examples
    --------
    >>> parts_below("/a", "/a/b/c")
    ('/a/b', '/a/b/c')
    """
    parts = []
    while path != directory:
        parts.append(path)
        path, before = os.path.dirname(path), path
        if path == before:
            raise ValueError(f"expected a path below {directory}, found {parts[0]}")
    return tuple(reversed(parts))


@dataclass(frozen=True, slots=True)
class OpenDirectory:
    """A directory, and its descriptor: names are relative to that where the system can, whatever the path leads to."""

    path: str
    fd: int | None

    def names(self) -> tuple[list[str], list[str]]:
        """Return the names of all files in the directory, and the names of everything else: links, directories."""
        files: list[str] = []
        others: list[str] = []
        with os.scandir(self.path if self.fd is None else self.fd) as entries:
            for entry in entries:
                (files if entry.is_file(follow_symlinks=False) else others).append(os.fsdecode(entry.name))
        return files, others

    def status(self, name: str) -> os.stat_result:
        """Return the status of a file, or of the link itself."""
        return os.stat(self._name(name), dir_fd=self.fd, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file or link, if it exists; what the link points to stays."""
        # Another process may have removed it already.
        with suppress(FileNotFoundError):
            os.unlink(self._name(name), dir_fd=self.fd)

    def remove_directory(self, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(self._name(name), dir_fd=self.fd)

    def rename(self, old: str, new: str) -> None:
        """Give a file or directory another name here."""
        os.rename(self._name(old), self._name(new), src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def _name(self, name: str) -> str:
        return os.path.join(self.path, name) if self.fd is None else name


@contextmanager
def open_directory(path: str, inner: Sequence[str] = ()) -> Iterator[OpenDirectory]:
    """Open a directory until the block ends.

    `inner` are the paths of its last parts that must not be links, from the outermost to `path` itself: FormatError if
    one is.
    """
    if not _BY_DESCRIPTOR:
        for each in inner:
            refuse_link(each)
        yield OpenDirectory(path, None)
        return
    fd = open_descriptor(os.path.dirname(inner[0]) if inner else path, _DIRECTORY)
    try:
        for each in inner:
            try:
                below = open_descriptor(os.path.basename(each), _DIRECTORY | _ITSELF, dir_fd=fd)
            except OSError:
                refuse_link(each)
                raise
            os.close(fd)
            fd = below
        yield OpenDirectory(path, fd)
    finally:
        os.close(fd)


def refuse_other_names(path: str) -> None:
    """Raise UnsupportedError if a file has other names (hard links): each name has a lock of its own."""
    # The file may be removed while its names are counted: then nobody shares it.
    with suppress(FileNotFoundError):
        while (status := os.stat(path)).st_nlink > 1:
            count = status.st_nlink - _temporary_names(path, status)
            if count <= 1:
                return
            if os.stat(path).st_nlink == status.st_nlink:
                raise UnsupportedError(
                    f"{path}: expected a file with one name, found {count} hard links: each name has a lock of its own,"
                    " so their writers would not exclude each other. Copy the file, and write to the copy"
                )


def _temporary_names(path: str, status: os.stat_result) -> int:
    """Count the temporary names of a file: it has one while it is made, and keeps it if its maker is killed then."""
    directory, name = os.path.split(path)
    temporary = re.compile(re.escape(name) + UNFINISHED)
    count = 0
    for other in filter(temporary.fullmatch, os.listdir(directory)):
        # A temporary name may disappear at any time.
        with suppress(FileNotFoundError):
            count += os.path.samestat(status, os.lstat(os.path.join(directory, other)))
    return count
