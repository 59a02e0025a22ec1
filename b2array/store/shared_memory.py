"""Objects in the memory of this process that fsspec reaches as ``memory://``."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self
from weakref import WeakKeyDictionary

from b2array.buffers import Buffer
from b2array.store import upload
from b2array.store.base import Capabilities, Mutex, Stamp, Version, conflict, where
from b2array.store.remote import FsspecStore, join
from b2array.store.spans import Span

__all__ = ["SharedMemoryStore"]

_shared_memory, _shared_writers = Mutex(), Mutex()
_serials: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_next_serial = itertools.count()


class SharedMemoryStore(FsspecStore):
    """An object or prefix of ``memory://``, which all stores of this process share."""

    can = Capabilities(lock=True)
    in_process = True
    _ident = "memory:/"  # equal for all paths: each file in the process has another serial number

    def stamp(self, name: str) -> Stamp:
        return self._call(name, self._stamp)

    @staticmethod
    def _stamp(fs: Any, path: str) -> Stamp:
        file = fs.store.get("/" + path.lstrip("/"))
        if file is None:
            raise FileNotFoundError(path)
        serial = _serials.setdefault(file, next(_next_serial))
        return Stamp(file.size, Version(f"{serial}", f"{file.modified}"))

    def _ranges(self, spans: Sequence[Span], expected: Version | None) -> list[Any]:
        with _shared_memory.held:
            if expected is not None and self._version(spans[0].name) != expected:
                return [conflict(where(self.url, spans[0].name))] * len(spans)
            answers = zip(spans, super()._ranges(spans, None), strict=True)
            return [each if isinstance(each, Exception) else (each[0], self.stamp(span.name)) for span, each in answers]

    def replace(
        self,
        name: str,
        data: Buffer | Iterable[Buffer],
        *,
        expected: Version | None = None,
    ) -> Stamp:
        return self._write(name, upload.split(data), expected)

    def _write(
        self,
        name: str,
        content: bytes | Iterator[bytes],
        expected: Version | None,
    ) -> Stamp:
        from fsspec.implementations.memory import MemoryFile

        fs, root = self._connect()
        path, place = "/" + join(root, name).lstrip("/"), where(self.url, name)
        file = MemoryFile(fs, path)
        file.writelines([content] if isinstance(content, bytes) else content)
        with _shared_memory.held:
            # The file system itself would write over a prefix, and below an object.
            if expected is not None and self._version(name) != expected:
                raise conflict(place)
            if any(outer in fs.store for outer in itertools.accumulate(path.split("/")[:-1], "{}/{}".format)):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), place)
            file.commit()
            return self.stamp(name)

    def walk(self) -> list[str]:
        # Search all names, because the file system would not look below an object.
        fs, root = self._connect()
        start = f"{root.rstrip('/')}/"
        return sorted(path.removeprefix(start) for path in tuple(fs.store) if path.startswith(start))

    def withdraw(self, digests: Mapping[str, int]) -> None:
        fs, root = self._connect()
        with _shared_memory.held:
            for name, digest in digests.items():
                path = "/" + join(root, name).lstrip("/")
                if path in fs.store and self.stamp(name).digest == digest:
                    del fs.store[path]

    def beside(self, *, directory: bool) -> Self | None:
        fs, root = self._connect()
        excluded = directory and fs.isfile(root)
        return type(self)(f"{self._address.rstrip('/')}.{os.urandom(8).hex()}", self._options) if excluded else None

    def exchange(self, other: Self, *, at_once: bool = False) -> bool:  # noqa: ARG002 - the mutex makes it one step
        (fs, here), (_, there) = self._connect(), other._connect()
        with _shared_memory.held:
            # `store` is an attribute of the class; `fs.store |= ...` would add one to this object.
            fs.store.update(
                {
                    new + path.removeprefix(old): fs.store.pop(path)
                    for old, new in ((here, there), (there, here))
                    for path in list(fs.store)
                    if path == old or path.startswith(f"{old}/")
                }
            )
        return True

    def lock(
        self,
        name: str,  # noqa: ARG002
        *,
        shared: bool = False,  # noqa: ARG002
        removing: bool = False,  # noqa: ARG002
    ) -> AbstractContextManager[object]:
        return _shared_writers.held
