"""Where bytes are kept: a file or object, or a directory or prefix of them. Knows no format.

A store that is one object names it ``""``; in a directory or prefix objects have names without slashes. The first
may turn out to be the second only when it is read, so that every store takes both kinds of names.

Errors of a backend pass through, with these exceptions: what does not exist is `FileNotFoundError`, what exists
already `FileExistsError`, bytes beyond the end of an object `FormatError`, a lost race `ConflictError`, and an error
whose text holds a secret is replaced by one of the nearest built-in type without it.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple, Protocol, TypeVar

from b2array import config
from b2array.buffers import Buffer
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.store.spans import Merged, Span, coalesce

__all__ = [
    "COMPARE_AND_SWAP",
    "Head",
    "Listed",
    "MemoryStore",
    "Mutex",
    "Stamp",
    "Store",
    "attempts",
    "in_one_state",
    "outrun",
]

T = TypeVar("T")

COMPARE_AND_SWAP = "compare-and-swap"
"""The guarantee of a store without locks that replaces an object only if it is the one expected."""

_PATIENCE = 20
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0


class Stamp(NamedTuple):
    """The state of an object: its size in bytes, and a version that differs between states."""

    size: int
    version: str


class Head(NamedTuple):
    """The first bytes of an object, and its state where the backend tells it in the same answer.

    No other object that this process can reach has the same `unique`, nor has this object in another state. It is empty
    where the store cannot promise that. It shows no secrets.
    """

    data: memoryview
    stamp: Stamp | None
    unique: str = ""


class Listed(NamedTuple):
    """Size of an object in bytes, and when it was written, in seconds since 1970, where that is known."""

    size: int
    modified: float | None


class Store(Protocol):
    """What every kind of store does. Threads may share one; a pickled store connects when it is first used."""

    url: str
    """Where the store is, for messages: without user, password and query string."""

    is_prefix: bool | None
    """True if the URL ended with a slash, so that there is nothing under the name ``""``; None if unknown."""

    guarantee: str
    """What protects a commit from other writers: "lock", "compare-and-swap", "single writer", or "read only"."""

    appendable: bool
    """Whether there are `append` and `patch`."""

    def read(self, spans: Sequence[Span], *, expected: str | None = None, clip: bool = False) -> list[memoryview]:
        """Read spans of any objects, near ones together.

        Parameters
        ----------
        spans : sequence of Span
        expected : str, optional
            The version that the object had, if all spans lie in one. The bytes of another object that has taken its
            place since are refused, where the backend can tell: for local files by inode (appending keeps it) and by
            what `marked` has added, by entity tag on S3 and HTTP. Elsewhere it is ignored.
        clip : bool, default False
            Spans may reach beyond the end of their objects, and give fewer bytes then.

        Returns
        -------
        list of memoryview
            Writable bytes, one item a span. Views of spans that overlap may share memory.

        Raises
        ------
        FormatError
            If a span is not inside its object, unless `clip` allows that.
        FileNotFoundError
            If an object does not exist; its ``filename`` ends with the object's name.
        ConflictError
            If another object is found where `expected` was.
        """
        ...

    def gather(
        self, spans: Sequence[Span], places: Sequence[int], nbytes: int, *, expected: str | None = None
    ) -> memoryview:
        """Read spans into one buffer, which may be used again when this thread gathers next.

        Parameters
        ----------
        spans, expected
            As in `read`, with its errors.
        places : sequence of int
            Where in the buffer each span goes.
        nbytes : int
            Size of the buffer. What is in it between the spans is not defined.
        """
        ...

    def head(self, names: Sequence[str], nbytes: int, *, offset: int = 0) -> list[Head | Exception]:
        """Read the beginnings of several objects at once, as they are now.

        Parameters
        ----------
        names : sequence of str
        nbytes : int
            Bytes to read. An object that ends earlier gives fewer.
        offset : int
            Where to begin.

        Returns
        -------
        list of Head or Exception
            One item a name. What cannot be read is the error that says why; none is raised.
        """
        ...

    def stamp(self, name: str) -> Stamp:
        """Ask for the present size and version of an object; FileNotFoundError if there is none."""
        ...

    def listing(self) -> dict[str, Listed]:
        """Find the objects of the store; FileNotFoundError if there is nothing at all."""
        ...

    def walk(self) -> list[str]:
        """Find the objects of the store and of all directories or prefixes below it, by names with slashes.

        Raises
        ------
        FileNotFoundError
            There is no such directory. A prefix without objects is empty.
        UnsupportedError
            The protocol cannot list.
        """
        ...

    def create(self, name: str, data: Buffer | Iterable[Buffer]) -> Stamp:
        """Write an object that does not exist yet, as a whole or not at all.

        Parameters
        ----------
        name : str
        data : buffer, or iterable of buffers
            The content; of much of it in pieces a part is in memory at a time.

        Raises
        ------
        FileExistsError
            If it exists. Exclusive on local files, S3 and in memory; elsewhere it is looked for just before.
        ReadOnlyError
            If the protocol is for reading.
        """
        ...

    def replace(self, name: str, data: Buffer | Iterable[Buffer], *, expected: str | None = None) -> Stamp:
        """Write an object, as a whole or not at all, in the place of one that may exist.

        Parameters
        ----------
        name : str
        data : buffer, or iterable of buffers
            The content; of much of it in pieces a part is in memory at a time, unless a version is expected.
        expected : str, optional
            The version to replace. S3 compares it while it writes. Local files compare before they write: hold
            `lock` to exclude other writers. Where `guarantee` is "single writer", it is compared just before.

        Raises
        ------
        ConflictError
            If the object has another version than `expected`, or does not exist. Nothing is written then, unless
            the answer to a request that succeeded was lost and the client of S3 has sent it again: look whether the
            object has become what was written.
        """
        ...

    def temporary(self, name: str) -> str | None:
        """Return the path of a file, not there yet, that `adopt` can turn into an object; None if it takes none."""
        ...

    def adopt(self, path: str, name: str, *, exclusive: bool) -> Stamp:
        """Make the file at `path`, from `temporary`, the object `name` by renaming it.

        Raises
        ------
        FileExistsError
            If `exclusive`, and the object exists.
        UnsupportedError
            If `temporary` returns None.
        """
        ...

    def append(self, name: str, offset: int, data: Buffer | Iterable[Buffer]) -> None:
        """Cut an object at `offset` and write from there on.

        Raises
        ------
        FormatError
            If the object is shorter than `offset`.
        UnsupportedError
            If the store is not `appendable`.
        """
        ...

    def patch(self, name: str, offset: int, data: Buffer) -> Stamp:
        """Overwrite bytes inside an object in one small write. Raises what `append` raises."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; those that do not exist are no error. The name ``""`` also removes an empty directory."""
        ...

    def lock(self, name: str, *, shared: bool = False) -> AbstractContextManager[None]:
        """Exclude other writers from an object, and those from its directory, if its name is not empty.

        Local files use the lock file of the C library, others in the same process a mutex; where there is neither,
        nothing happens. Not reentrant: a thread that holds it must not take it again.

        Parameters
        ----------
        name : str
        shared : bool
            Only keep writers away, and only if one has ever left a lock file.
        """
        ...

    def close(self) -> None:
        """Let go of descriptors. The store can be used again."""
        ...


def checked(url: str, span: Span) -> Span:
    """Refuse a span that cannot be one, because it was computed from damaged bytes."""
    if not 0 <= span.start <= span.stop:
        raise FormatError(f"{where(url, span.name)}: expected a range of bytes, found {span.start} to {span.stop}")
    return span


def merge(url: str, spans: Sequence[Span], limit: int) -> list[Merged]:
    """Decide what to read at once."""
    return coalesce([checked(url, span) for span in spans], config.coalesce_gap, limit)


def scatter(spans: Sequence[Span], merged: Sequence[Merged], buffers: Iterable[memoryview]) -> list[memoryview]:
    """Find the wanted spans in what was read."""
    views = [memoryview(b"")] * len(spans)
    for (whole, members), buffer in zip(merged, buffers, strict=True):
        for member in members:
            _, start, stop = spans[member]
            views[member] = buffer[start - whole.start : stop - whole.start]
    return views


def gathered(views: Sequence[memoryview]) -> memoryview:
    """Put what was read into one buffer."""
    return views[0] if len(views) == 1 else memoryview(bytearray().join(views))


def placed(views: Sequence[memoryview], places: Sequence[int], nbytes: int) -> memoryview:
    """Put what was read into one buffer of `nbytes` bytes, each view to its place."""
    if len(views) == 1 and nbytes == len(views[0]):
        return views[0]
    buffer = memoryview(bytearray(nbytes))
    for view, place in zip(views, places, strict=True):
        buffer[place : place + len(view)] = view
    return buffer


def where(url: str, name: str) -> str:
    """Name an object in a message."""
    return f"{url.rstrip('/')}/{name}" if name else url


def too_short(place: str, start: int, stop: int, found: int) -> FormatError:
    """Make the error of an object that ends inside or before a span."""
    return FormatError(f"{place}: expected {stop - start} bytes at {start}, found {max(0, found)}")


def changed(place: str) -> ConflictError:
    """Make the error of a reader whose object is gone."""
    return ConflictError(f"{place} changed since it was opened; call refresh()")


def attempts(store: Store) -> Iterator[int]:
    """Count the attempts at a commit, as many as are to be made.

    Where writers exclude each other, `config.retries` after the first one. Where they compare, somebody has got on
    whenever one has come too late, and a slow writer may come too late often: there are many more attempts, and before
    each a random time, the longer the later it is.
    """
    for attempt in range(_count(store)):
        if attempt and store.guarantee == COMPARE_AND_SWAP:
            time.sleep(random.uniform(0, min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2**attempt)))  # noqa: S311
        yield attempt


def _count(store: Store) -> int:
    return config.retries * (_PATIENCE if store.guarantee == COMPARE_AND_SWAP else 1) + 1


def in_one_state(verb: Callable[[], T]) -> T:
    """Read what takes several requests, again if a commit came in between."""
    for _ in range(config.retries):
        with suppress(ConflictError):
            return verb()
    return verb()


def outrun(store: Store) -> ConflictError:
    """Make the error of a writer whose attempts were all in vain."""
    return ConflictError(f"{store.url}: other writers came first {_count(store)} times")


def overtaken(place: str) -> ConflictError:
    """Make the error of a writer who comes second."""
    return ConflictError(f"{place} was changed by another writer")


def identity(version: str) -> str:
    """Take the part of a version that stays while an object is appended to."""
    return version.partition("@")[0]


class Mark(NamedTuple):
    """Bytes of an object, by their end, that stay while it is appended to and that no other object has."""

    stop: int
    content: bytes


def marked(version: str, mark: Mark) -> str:
    """Add to the version of an `appendable` store's object how it can be recognised."""
    return f"{version}#{mark.stop}:{mark.content.hex()}"


def unmarked(version: str) -> tuple[str, Mark | None]:
    """Take apart what `marked` has put together."""
    version, _, mark = version.partition("#")
    stop, _, content = mark.partition(":")
    return version, Mark(int(stop), bytes.fromhex(content)) if mark else None


def pieces(data: Buffer | Iterable[Buffer]) -> Iterable[Buffer]:
    """Take one buffer for an iterable of it alone."""
    return (data,) if isinstance(data, bytes | bytearray | memoryview) else data


def joined(data: Buffer | Iterable[Buffer]) -> bytes:
    """Put pieces together."""
    return data if isinstance(data, bytes) else b"".join(pieces(data))


class Mutex:
    """A lock that a forked child finds open, whoever held it in the parent."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if self._owner != os.getpid():
            self._owner, self._lock = os.getpid(), threading.RLock()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@dataclasses.dataclass(slots=True)
class _Object:
    data: bytes | bytearray
    identity: str = dataclasses.field(default_factory=lambda: os.urandom(8).hex())
    state: int = 0
    modified: float = dataclasses.field(default_factory=time.time)

    def change(self) -> bytearray:
        """Give the bytes to write into, as a new state of the same object."""
        if isinstance(self.data, bytes):
            self.data = bytearray(self.data)
        self.state += 1
        self.modified = time.time()
        return self.data

    def stamp(self) -> Stamp:
        return Stamp(len(self.data), f"{self.identity}@{self.state}")


class MemoryStore:
    """Objects in the memory of this process. A pickle holds a copy of them.

    Parameters
    ----------
    objects : mapping of str to buffer, optional
        What the store has from the beginning. `bytes` are not copied.

    Examples
    --------
    >>> store = MemoryStore({"": b"some bytes"})
    >>> [bytes(view) for view in store.read([Span("", 0, 4)])]
    [b'some']
    """

    url = "memory"
    is_prefix: bool | None = None
    guarantee = "lock"
    appendable = True

    def __init__(self, objects: Mapping[str, Buffer] | None = None) -> None:
        self.__setstate__({name: _Object(joined(data)) for name, data in (objects or {}).items()})

    def __repr__(self) -> str:
        return f"<MemoryStore of {sum(len(each.data) for each in self._objects.values())} bytes>"

    def __getstate__(self) -> dict[str, _Object]:
        with self._mutex:
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

    def read(self, spans: Sequence[Span], *, expected: str | None = None, clip: bool = False) -> list[memoryview]:
        """Copy spans; see `Store.read`."""
        with self._mutex:
            return [self._copy(span, expected, clip=clip) for span in spans]

    def gather(
        self, spans: Sequence[Span], places: Sequence[int], nbytes: int, *, expected: str | None = None
    ) -> memoryview:
        """Copy spans into one buffer; see `Store.gather`."""
        return placed(self.read(spans, expected=expected), places, nbytes)

    def _copy(self, span: Span, expected: str | None, *, clip: bool) -> memoryview:
        name, start, stop = checked(self.url, span)
        found = self._get(name)
        if expected is not None and found.identity != identity(expected):
            raise changed(where(self.url, name))
        if stop > len(found.data) and not clip:
            raise too_short(where(self.url, name), start, stop, len(found.data) - start)
        with memoryview(found.data) as view:
            return memoryview(bytearray(view[start:stop]))

    def head(self, names: Sequence[str], nbytes: int, *, offset: int = 0) -> list[Head | Exception]:
        """Copy beginnings; see `Store.head`."""
        with self._mutex:
            return [self._head(name, nbytes, offset) for name in names]

    def _head(self, name: str, nbytes: int, offset: int) -> Head | Exception:
        try:
            found = self._get(name)
        except FileNotFoundError as error:
            return error
        stamp = found.stamp()
        return Head(
            memoryview(bytearray(found.data[offset : offset + nbytes])), stamp, f"{self._ident}/{name} {stamp.version}"
        )

    def stamp(self, name: str) -> Stamp:
        """Look up size and version; see `Store.stamp`."""
        return self._get(name).stamp()

    def listing(self) -> dict[str, Listed]:
        """Find the objects; see `Store.listing`."""
        with self._mutex:
            return {name: Listed(len(each.data), each.modified) for name, each in self._objects.items()}

    def walk(self) -> list[str]:
        """Find the objects; see `Store.walk`."""
        with self._mutex:
            return sorted(self._objects)

    def create(self, name: str, data: Buffer | Iterable[Buffer]) -> Stamp:
        """Add an object; see `Store.create`."""
        new = _Object(joined(data))
        with self._mutex:
            if self._objects.setdefault(name, new) is not new:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), where(self.url, name))
        return new.stamp()

    def replace(self, name: str, data: Buffer | Iterable[Buffer], *, expected: str | None = None) -> Stamp:
        """Exchange an object; see `Store.replace`."""
        new = _Object(joined(data))
        with self._mutex:
            if expected is not None and (name not in self._objects or self.stamp(name).version != expected):
                raise overtaken(where(self.url, name))
            self._objects[name] = new
        return new.stamp()

    def temporary(self, name: str) -> str | None:  # noqa: ARG002
        """Take no files; see `Store.temporary`."""
        return None

    def adopt(self, path: str, name: str, *, exclusive: bool) -> Stamp:  # noqa: ARG002
        """Take no files; see `Store.adopt`."""
        raise UnsupportedError(f"{self.url} takes no files")

    def append(self, name: str, offset: int, data: Buffer | Iterable[Buffer]) -> None:
        """Cut and extend an object; see `Store.append`."""
        content = joined(data)
        with self._mutex:
            self._writable(name, offset)[offset:] = content

    def patch(self, name: str, offset: int, data: Buffer) -> Stamp:
        """Overwrite bytes of an object; see `Store.patch`."""
        content = joined(data)
        with self._mutex:
            self._writable(name, offset + len(content))[offset : offset + len(content)] = content
            return self.stamp(name)

    def _writable(self, name: str, nbytes: int) -> bytearray:
        found = self._get(name)
        if len(found.data) < nbytes:
            raise FormatError(f"{where(self.url, name)}: expected at least {nbytes} bytes, found {len(found.data)}")
        return found.change()

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; see `Store.delete`."""
        with self._mutex:
            for name in names:
                self._objects.pop(name, None)

    def lock(self, name: str, *, shared: bool = False) -> AbstractContextManager[None]:  # noqa: ARG002
        """Exclude the other writers, and nobody who reads; see `Store.lock`."""
        return self._writers

    def close(self) -> None:
        """Do nothing: the objects stay."""
