"""Files that are made apart, and get their place when they are complete."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from b2array import config
from b2array.store.base import Store

__all__ = ["Placement", "require_free"]

_STEP = 8 * 2**20


def require_free(store: Store, magic: bytes, what: str, *, overwrite: bool) -> None:
    """Raise FileExistsError unless there is nothing, or what may be replaced.

    Parameters
    ----------
    store : Store
    magic : bytes
        How a file begins that may be replaced; empty: any file may.
    what : str
        What such a file is called.
    overwrite : bool
        Whether it may be replaced at all.
    """
    (head,) = store.head([""], max(1, len(magic)))
    if isinstance(head, FileNotFoundError):
        return
    if isinstance(head, IsADirectoryError):
        raise FileExistsError(f"{store.url} exists and is a directory")
    if isinstance(head, Exception):
        raise head
    if not overwrite:
        raise FileExistsError(f"{store.url} exists; overwrite=True replaces it")
    if not bytes(head.data).startswith(magic):
        raise FileExistsError(f"{store.url} exists and is not {what} that can be replaced")


class Placement:
    """A local file that becomes the only object of a store, as a whole or not at all.

    Use it as a context manager that gives the path, or call `finish` or `abort`.

    Parameters
    ----------
    store : Store
    overwrite : bool
        Whether an object that is there is replaced; FileExistsError otherwise.
    """

    def __init__(self, store: Store, *, overwrite: bool) -> None:
        self._store, self._overwrite = store, overwrite
        beside = store.temporary("")
        self._directory = tempfile.TemporaryDirectory(prefix="b2array-") if beside is None else None
        self.path = Path(self._directory.name, "file") if self._directory is not None else Path(str(beside))
        """Where the file is to be made."""
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def finish(self) -> None:
        """Make the file, which is closed by now, the store's object."""
        try:
            if self._directory is not None:
                write = self._store.replace if self._overwrite else self._store.create
                write("", self._pieces())
                return
            if config.durable:
                _sync(self.path)
            self._store.adopt(str(self.path), "", exclusive=not self._overwrite)
        finally:
            self.abort()

    def _pieces(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while piece := file.read(_STEP):
                yield piece

    def abort(self) -> None:
        """Remove the file; the object stays as it is."""
        self.path.unlink(missing_ok=True)
        if self._directory is not None:
            self._directory.cleanup()

    def __enter__(self) -> str:
        return str(self.path)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
