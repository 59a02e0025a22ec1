"""Files that are made elsewhere and renamed, and checks of what such a file may replace."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from b2array.store.base import MISSING, Head, Store, Version, durability
from b2array.store.endings import LOCK, TEMPORARY
from b2array.store.local_store import LocalStore

__all__ = ["AtomicFile", "place_beside", "require_free"]


def require_free(
    store: Store,
    kinds: Mapping[str, bytes],
    what: str,
    *,
    overwrite: bool,
    name: str = "",
    never: Iterable[str] = (),
    alone: bool = False,
) -> str | None:
    """Return the name of the object that may be replaced, or None; raise FileExistsError if something else exists.

    `kinds` maps the names of objects that may be replaced to their first bytes; messages call such an object `what`.
    `name` is the object to write; ``""`` cannot be written over a directory. An object in `never` must not be replaced.
    With `alone`, a directory with other files, but without objects in `kinds`, raises the error.
    """
    names = sorted({name, *kinds, *never})
    heads = dict(zip(names, store.head(names, max(1, *map(len, kinds.values()))), strict=True))
    contents = {each: bytes(head.data) for each, head in heads.items() if isinstance(head, Head)}
    recognised = [each for each, data in contents.items() if each in kinds and data.startswith(kinds[each])]
    # An empty object contains no data; in an object store it may represent a directory.
    strange = any(contents[each] for each in contents if each not in recognised)
    is_directory = any(isinstance(error, IsADirectoryError) for error in heads.values())
    # A writer that did not know that the frame was deleted may have left its lock, and nothing else.
    if not recognised and not name and is_directory and store.walk() != [LOCK]:
        raise FileExistsError(f"{store.url} exists and is a directory")
    if not contents:
        for error in heads.values():
            # S3 also denies access to a missing object if the user may not list. There `create` is conditional, so it
            # replaces nothing.
            unknown = isinstance(error, PermissionError) and store.can.compare and not overwrite
            absent = isinstance(error, (*MISSING, IsADirectoryError)) and not isinstance(error, PermissionError)
            if isinstance(error, Exception) and not (absent or unknown):
                raise error
        if alone:
            # If the directory does not exist, the new file replaces nothing.
            with suppress(FileNotFoundError):
                is_file = any(isinstance(error, NotADirectoryError) for error in heads.values())
                strange = is_file or any(store.walk())
    if strange:
        raise FileExistsError(f"{store.url} exists and is not {what} that can be replaced")
    if contents and not overwrite:
        raise FileExistsError(f"{store.url} exists; overwrite=True replaces it")
    return recognised[0] if recognised else None


@contextmanager
def place_beside(path: str) -> Iterator[str]:
    """Make a directory next to a file, and yield a path in it. After a kill, `vacuum` of the file removes both."""
    directory = Path(f"{path}.{os.urandom(8).hex()}{TEMPORARY}")
    directory.mkdir()
    try:
        yield str(directory / f"frame{TEMPORARY}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class AtomicFile:
    """A local file that becomes the only object of a store, as a whole or not at all.

    Use it as a context manager that returns the path, or call `finish` or `abort`. With `overwrite`, the file replaces
    an existing object; otherwise an existing object raises FileExistsError. With `expected`, an object of another
    version raises ConflictError.
    """

    def __init__(
        self,
        store: Store,
        *,
        overwrite: bool,
        expected: Version | None = None,
    ) -> None:
        self._store = store
        self._overwrite = overwrite
        self._expected = expected
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        beside = store.temporary("")
        if beside is None:
            # The store cannot adopt files: `finish` copies the file into it.
            self._directory = tempfile.TemporaryDirectory(prefix="b2array-")
            beside = str(Path(self._directory.name, "file"))
        self.path = Path(beside)
        """The path at which to make the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def finish(self) -> None:
        """Make the file the object of the store. The caller has closed the file."""
        try:
            if self._directory is not None:
                content = LocalStore(self.path).pieces()
                if self._overwrite:
                    self._store.replace("", content, expected=self._expected)
                else:
                    self._store.create("", content)
                return
            if durability() != "off":
                with self.path.open("rb+") as file:
                    os.fsync(file.fileno())
            self._store.move_in(
                str(self.path),
                "",
                exclusive=not self._overwrite,
                expected=self._expected,
            )
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove the file; the object of the store does not change."""
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
