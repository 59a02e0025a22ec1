"""Objects in the memory of this process."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from b2array.buffers import Buffer
from b2array.errors import FormatError
from b2array.store.base import (
    Capabilities,
    Head,
    Listed,
    Mutex,
    Stamp,
    Store,
    Version,
    as_answer,
    check_span,
    conflict,
    join_pieces,
    stale_reader,
    too_short,
    where,
)
from b2array.store.spans import Span

__all__ = ["MemoryStore"]


@dataclasses.dataclass(slots=True)
class _Object:
    data: bytes | bytearray
    tag: str = dataclasses.field(default_factory=lambda: os.urandom(8).hex())
    state: int = 0
    modified: float = dataclasses.field(default_factory=time.time)

    def begin_change(self) -> bytearray:
        """Begin a new state of the object, and return its bytes as a buffer to write to."""
        if isinstance(self.data, bytes):
            self.data = bytearray(self.data)
        self.state += 1
        self.modified = time.time()
        return self.data

    def stamp(self) -> Stamp:
        return Stamp(len(self.data), Version(self.tag, f"{self.state}"))


class MemoryStore(Store):
    """Objects in the memory of this process. A pickle copies them. The store does not copy the `bytes` passed to it.

    Examples
    --------
    >>> store = MemoryStore({"": b"some bytes"})
    >>> [bytes(view) for view in store.read([Span("", 0, 4)])]
    [b'some']
    """

    url = "memory"
    can = Capabilities(lock=True, append=True, local=True)
    advice = "a copy() of it can be changed"
    in_process = True

    def __init__(self, objects: Mapping[str, Buffer] | None = None) -> None:
        self.__setstate__({name: _Object(join_pieces(data)) for name, data in (objects or {}).items()})

    def __repr__(self) -> str:
        return f"<MemoryStore of {sum(len(each.data) for each in self._objects.values())} bytes>"

    def __getstate__(self) -> dict[str, _Object]:
        with self._mutex.held:
            return {name: dataclasses.replace(each, data=bytes(each.data)) for name, each in self._objects.items()}

    def __setstate__(self, objects: dict[str, _Object]) -> None:
        self._objects = objects
        self._ident = os.urandom(16).hex()
        self._mutex, self._writers = Mutex(), Mutex()

    def _get(self, name: str) -> _Object:
        try:
            return self._objects[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where(self.url, name)) from None

    def read(
        self,
        spans: Sequence[Span],
        *,
        expected: Version | None = None,
        clip: bool = False,
    ) -> list[memoryview]:
        with self._mutex.held:
            return [self._copy(span, expected, clip=clip) for span in spans]

    def _copy(self, span: Span, expected: Version | None, *, clip: bool) -> memoryview:
        name, start, stop = check_span(self.url, span)
        entry = self._get(name)
        if expected is not None and entry.tag != expected.tag:
            raise stale_reader(where(self.url, name))
        if stop > len(entry.data) and not clip:
            raise too_short(where(self.url, name), start, stop, len(entry.data) - start)
        with memoryview(entry.data) as view:
            return memoryview(bytearray(view[start:stop]))

    def head(
        self,
        names: Sequence[str],
        nbytes: int,
        *,
        offset: int = 0,
    ) -> list[Head | Exception]:
        with self._mutex.held:
            return [self._head(name, nbytes, offset) for name in names]

    def _head(self, name: str, nbytes: int, offset: int) -> Head | Exception:
        try:
            entry = self._get(name)
        except FileNotFoundError as error:
            return as_answer(error)
        stamp, data = entry.stamp(), memoryview(bytearray(entry.data[offset : offset + nbytes]))
        return Head(data, stamp, f"{self._ident}/{name} {stamp.version}")

    def stamp(self, name: str) -> Stamp:
        return self._get(name).stamp()

    def listing(self) -> dict[str, Listed]:
        with self._mutex.held:
            return {name: Listed(len(each.data), each.modified) for name, each in self._objects.items()}

    def walk(self) -> list[str]:
        with self._mutex.held:
            return sorted(self._objects)

    def create(self, name: str, data: Buffer | Iterable[Buffer]) -> Stamp:
        new = _Object(join_pieces(data))
        with self._mutex.held:
            if self._objects.setdefault(name, new) is not new:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), where(self.url, name))
        return new.stamp()

    def replace(
        self,
        name: str,
        data: Buffer | Iterable[Buffer],
        *,
        expected: Version | None = None,
    ) -> Stamp:
        new = _Object(join_pieces(data))
        with self._mutex.held:
            if expected is not None and (name not in self._objects or self.stamp(name).version != expected):
                raise conflict(where(self.url, name))
            self._objects[name] = new
        return new.stamp()

    def append(self, name: str, offset: int, data: Buffer | Iterable[Buffer]) -> None:
        content = join_pieces(data)
        # A signal handler may run inside a read of this thread, which then has a view of the bytes.
        with self._mutex.held_once(self.url):
            self._writable(name, offset)[offset:] = content

    def patch(self, name: str, offset: int, data: Buffer) -> Stamp:
        content = join_pieces(data)
        with self._mutex.held:
            self._writable(name, offset + len(content))[offset : offset + len(content)] = content
            return self.stamp(name)

    def _writable(self, name: str, nbytes: int) -> bytearray:
        entry = self._get(name)
        if len(entry.data) < nbytes:
            raise FormatError(f"{where(self.url, name)}: expected at least {nbytes} bytes, found {len(entry.data)}")
        return entry.begin_change()

    def delete(self, names: Iterable[str]) -> None:
        with self._mutex.held:
            for name in names:
                self._objects.pop(name, None)

    def withdraw(self, digests: Mapping[str, int]) -> None:
        with self._mutex.held:
            for name, digest in digests.items():
                if name in self._objects and self.stamp(name).digest == digest:
                    del self._objects[name]

    def lock(
        self,
        name: str,  # noqa: ARG002
        *,
        shared: bool = False,  # noqa: ARG002
        removing: bool = False,  # noqa: ARG002
    ) -> AbstractContextManager[object]:
        return self._writers.held_once(self.url)
