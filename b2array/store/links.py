"""Symbolic links and hard links. b2array follows only links that the user names.

A user may pass the path of a link. Below it or next to it, b2array itself makes no links: chunks, members, locks and
files of commits under way are never links. So any link there was made by another program, and it may lead anywhere.
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
"""Whether the system can open and remove names relative to the descriptor of a directory."""


def is_link(path: str) -> bool:
    """Return whether a path is a symbolic link, or a junction of Windows; False for a missing path."""
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
    """Make the error for a symbolic link inside an array or a group, or in place of a lock."""
    return FormatError(
        f"{path}: expected a file or a directory, found a symbolic link, which is not followed inside arrays and"
        " groups or for locks"
    )


def open_itself(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a file without following links; FormatError if the path is a link."""
    if sys.platform == "win32":
        refuse_link(path)
    try:
        return open_descriptor(path, flags | _ITSELF, mode)
    except OSError:
        # Systems report a link with different error numbers, so look at the path.
        refuse_link(path)
        raise


def parts_below(directory: str, path: str) -> tuple[str, ...]:
    """Return the path of each part of `path` below a directory, from the outermost one on.

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
    """A directory and its descriptor. If the system can, names are relative to the descriptor, even after a rename."""

    path: str
    fd: int | None

    def names(self) -> tuple[list[str], list[str]]:
        """Return the names of the files in the directory, and the names of other entries such as links."""
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
        """Remove a file or a link, if it exists; the target of the link stays."""
        # Another process may have removed it already.
        with suppress(FileNotFoundError):
            os.unlink(self._name(name), dir_fd=self.fd)

    def remove_directory(self, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(self._name(name), dir_fd=self.fd)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory in this directory."""
        os.rename(self._name(old), self._name(new), src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def _name(self, name: str) -> str:
        return os.path.join(self.path, name) if self.fd is None else name


@contextmanager
def open_directory(path: str, inner: Sequence[str] = ()) -> Iterator[OpenDirectory]:
    """Open a directory until the block ends.

    `inner` are paths that must not be links, from an outer directory to `path` itself; a link raises FormatError.
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
    """Raise UnsupportedError if a file has other names (hard links), because each name has a separate lock."""
    # Another process may remove the file while its names are counted: then nobody shares it.
    with suppress(FileNotFoundError):
        while (status := os.stat(path)).st_nlink > 1:
            count = status.st_nlink - _temporary_names(path, status)
            if count <= 1:
                return
            if os.stat(path).st_nlink == status.st_nlink:
                raise UnsupportedError(
                    f"{path}: expected a file with one name, found {count} hard links: each name has a separate lock,"
                    " so writers would not exclude each other. Copy the file, and write to the copy"
                )


def _temporary_names(path: str, status: os.stat_result) -> int:
    """Count the temporary names of a file: a writer gives it one, and if it is killed, the file keeps this name."""
    directory, name = os.path.split(path)
    temporary = re.compile(re.escape(name) + UNFINISHED)
    count = 0
    for other in filter(temporary.fullmatch, os.listdir(directory)):
        # The writer may remove a temporary name at any time.
        with suppress(FileNotFoundError):
            count += os.path.samestat(status, os.lstat(os.path.join(directory, other)))
    return count
