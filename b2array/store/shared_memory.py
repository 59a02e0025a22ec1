"""Objects in the memory of this process that fsspec reaches as ``memory://``."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self
from weakref import WeakKeyDictionary

from b2array.buffers import Buffer
from b2array.store.base import Mutex, Stamp, conflict, join_pieces, where
from b2array.store.remote import ABSENT, FsspecStore, join
from b2array.store.spans import Span

__all__ = ["SharedMemoryStore"]

_shared_memory, _shared_writers = Mutex(), Mutex()
_serials: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_next_serial = itertools.count()


class SharedMemoryStore(FsspecStore):
    """An object or prefix of ``memory://``, which all stores of this process share."""

    guarantee = "lock"
    in_process = True
    _ident = "memory:/"  # no two files of the process have the same serial number, wherever they are

    def stamp(self, name: str) -> Stamp:
        return self._call(name, self._stamp)

    @staticmethod
    def _stamp(fs: Any, path: str) -> Stamp:
        file = fs.store.get("/" + path.lstrip("/"))
        if file is None:
            raise FileNotFoundError(path)
        serial = _serials.setdefault(file, next(_next_serial))
        return Stamp(file.size, f"{serial}@{file.modified.isoformat()}")

    def _ranges(self, spans: Sequence[Span], expected: str | None) -> list[Any]:
        with _shared_memory.held:
            if expected is not None and self._version(spans[0].name) != expected:
                return [conflict(where(self.url, spans[0].name))] * len(spans)
            answers = zip(spans, super()._ranges(spans, None), strict=True)
            return [each if isinstance(each, Exception) else (each[0], self.stamp(span.name)) for span, each in answers]

    def _put(self, name: str, content: bytes, expected: str | None) -> Stamp:
        with _shared_memory.held:
            try:
                return super()._put(name, content, expected)
            except FileExistsError:
                if self._version(name) is None:  # a file above it exists; disks raise this, too
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), where(self.url, name)) from None
                raise

    def _put_parts(self, name: str, parts: Iterator[bytes], expected: str | None) -> Stamp:
        from fsspec.implementations.memory import MemoryFile

        fs, root = self._connect()
        file = MemoryFile(fs, "/" + join(root, name).lstrip("/"))
        file.writelines(parts)

        def commit(fs: Any, path: str) -> None:
            if expected == ABSENT and fs.exists(path):
                raise FileExistsError
            file.commit()

        with _shared_memory.held:
            self._call(name, commit)
            return self.stamp(name)

    def replace(self, name: str, data: Buffer | Iterable[Buffer], *, expected: str | None = None) -> Stamp:
        if expected is None:
            return super().replace(name, data)
        content = join_pieces(data)
        with _shared_memory.held:
            return super().replace(name, content, expected=expected)

    def beside(self, *, directory: bool) -> Self | None:
        fs, root = self._connect()
        excluded = directory and fs.isfile(root)
        return type(self)(f"{self._address.rstrip('/')}.{os.urandom(8).hex()}", self._options) if excluded else None

    def exchange(self, other: Self) -> None:
        (fs, here), (_, there) = self._connect(), other._connect()
        with _shared_memory.held:
            # `fs.store |= ...` would give this object an attribute beside that of its class.
            fs.store.update(
                {
                    new + path.removeprefix(old): fs.store.pop(path)
                    for old, new in ((here, there), (there, here))
                    for path in list(fs.store)
                    if path == old or path.startswith(f"{old}/")
                }
            )

    def lock(self, name: str, *, shared: bool = False) -> AbstractContextManager[object]:  # noqa: ARG002
        return _shared_writers.held
