"""`Store`, the interface of all stores, and their shared code: versions, conflicts, retries.

A store is one object, named ``""``, or a directory or prefix of objects, whose names have no slashes. Sometimes only a
read shows which of the two it is, so every store accepts both kinds of names.

Errors of a backend pass through, with these exceptions: a missing object raises `FileNotFoundError`, an object that
must not exist `FileExistsError`, a read beyond the end of an object `FormatError`, and a lost race `ConflictError`.
Errors of object stores' clients become `OSError`. An error whose text contains a secret is replaced by a built-in error
without the secret.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Self, TypeGuard, TypeVar

from b2array import config
from b2array.buffers import Buffer
from b2array.errors import B2ArrayError, ConflictError, FormatError, UnsupportedError
from b2array.store.endings import TEMPORARY
from b2array.store.spans import Merged, Span, coalesce

__all__ = [
    "MISSING",
    "READ_ONLY",
    "Capabilities",
    "ContentName",
    "Head",
    "HiddenError",
    "Listed",
    "Mutex",
    "Stamp",
    "Store",
    "Tail",
    "Version",
    "attempts",
    "durability",
    "in_one_state",
    "moved_away",
    "pause",
    "spaced",
    "too_many_conflicts",
]

T = TypeVar("T")

MISSING = (FileNotFoundError, NotADirectoryError)
"""The errors that stores raise for a missing object. The second one means that a file has replaced its directory."""

_PATIENCE = 20
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
_STEP = 8 * 2**20


class HiddenError(FileNotFoundError, PermissionError):
    """An object does not exist, or the user may not read it: a cloud does not reveal which to a user who may not list.

    Callers that look for something else in its place treat the object as missing. They write there only with a
    condition, so that an object that exists after all is not replaced.
    """


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a store. The defaults describe a plain object store.

    Parameters
    ----------
    write : bool
        Objects can be made, replaced and deleted.
    lock : bool
        `Store.lock` excludes other writers.
    compare : bool
        `Store.replace` compares the version of the object while it writes.
    append : bool
        `Store.append` and `Store.patch` work.
    local : bool
        The objects are on this computer: files, which can be renamed, or bytes in memory.
    lists : bool
        `Store.listing` and `Store.walk` work.
    """

    write: bool = True
    lock: bool = False
    compare: bool = False
    append: bool = False
    local: bool = False
    lists: bool = True

    @property
    def guarantee(self) -> str:
        """A short name for the protection of commits from other writers."""
        if not self.write:
            return "read only"
        if self.lock:
            return "lock"
        return "compare-and-swap" if self.compare else "single writer"


READ_ONLY = Capabilities(write=False)


class Version(NamedTuple):
    """The version of an object, which differs between the states of the object. A store without versions has None.

    On local disks, appending keeps the `tag`, and every write changes the `state`. In clouds and on HTTP the tag alone
    names the state: it is an entity tag or a generation. Because a new file may get the inode of a deleted one, a
    reader can add some bytes of the object that end at `stop`: appending keeps these `known` bytes, and no other object
    has the same bytes there.
    """

    tag: str
    state: str = ""
    known: bytes = b""
    stop: int = 0

    def __str__(self) -> str:
        """Return the version without known bytes, for digests, logs and notes. No code parses this text."""
        return f"{self.tag}@{self.state}" if self.state else self.tag


class Stamp(NamedTuple):
    """The state of an object: its size in bytes (-1 if unknown), and its version."""

    size: int
    version: Version | None

    @property
    def digest(self) -> int:
        """A short digest, equal in every process."""
        text = f"{self.size} {self.version}".encode()
        digest = blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)


class Head(NamedTuple):
    """The first bytes of an object, and the object's state if the backend sends it with them.

    `unique` differs between all objects that this process can reach, and between the states of each. It is empty if the
    store cannot guarantee that. It contains no secrets.
    """

    data: memoryview
    stamp: Stamp | None
    unique: str = ""

    @property
    def version(self) -> Version | None:
        """The version of the object, if the backend sends it with the bytes."""
        return self.stamp.version if self.stamp else None


class Tail(NamedTuple):
    """The last bytes of an object, the offset of the first of them, and the version of the object."""

    data: memoryview
    start: int
    version: Version | None


class ContentName(NamedTuple):
    """Bytes that the cache on disk may keep: they never change, and no other bytes of the object get their name.

    Attributes
    ----------
    name : bytes
        A name for the bytes. The object's name and place need not be part of it.
    base : int
        The offset in the object at which the bytes begin now.
    """

    name: bytes
    base: int


class Listed(NamedTuple):
    """The size of an object in bytes, and the time of its last write in seconds since 1970; None if unknown."""

    size: int
    modified: float | None


class Store(ABC):
    """Objects under names. Threads may share a store. A pickled store connects again when it is first used.

    The defaults describe a plain object store: an object is written as a whole, and there are no locks.
    """

    url: str
    """The URL for messages, without user, password and query string."""

    is_prefix: bool | None = None
    """True if the URL ended with a slash, so that there is no object ``""``; None if unknown."""

    can: Capabilities = Capabilities()
    """The capabilities of the store."""

    advice: str = "open it with mode='r+' to change it"
    """Advice for a user who writes to an array that was opened for reading."""

    in_process: bool = False
    """Whether only this process can reach the objects."""

    @abstractmethod
    def read(
        self,
        spans: Sequence[Span],
        *,
        expected: Version | None = None,
        clip: bool = False,
    ) -> list[memoryview]:
        """Read spans of any objects; return one view per span. Spans that are close together share a request.

        If all spans are in one object, the caller may pass its `expected` version; then the store refuses the bytes of
        an object that has replaced it. Local files are compared by the tag, which appending keeps, and by the known
        bytes; objects in clouds and on HTTP by the tag. Other stores ignore `expected`. With `clip`, the view of a span
        that reaches beyond the end of its object is shorter. Views of overlapping spans may share memory, and long
        views may be read-only.

        Raises
        ------
        FormatError
            A span reaches beyond the end of its object, and `clip` is False.
        FileNotFoundError
            An object does not exist; the error's ``filename`` ends with its name.
        ConflictError
            The object is not the expected one.
        """

    def gather(
        self,
        spans: Sequence[Span],
        places: Sequence[int],
        nbytes: int,
        *,
        expected: Version | None = None,
    ) -> memoryview:
        """Read spans into one buffer of `nbytes` bytes, each at its place. The bytes between them are undefined.

        The next call of this thread may overwrite the buffer. Raises the errors of `read`.
        """
        return join_views_at(self.read(spans, expected=expected), places, nbytes)

    def pieces(self, name: str = "") -> Iterator[memoryview]:
        """Yield the bytes of an object in pieces of 8 MiB; ConflictError if `read` notices that it was replaced."""
        size, version = self.stamp(name)
        start = 0
        while start < size or size < 0:
            stop = start + _STEP if size < 0 else min(start + _STEP, size)
            (piece,) = self.read([Span(name, start, stop)], expected=version, clip=size < 0)
            if not piece:
                return
            yield piece
            start += len(piece)

    @abstractmethod
    def head(self, names: Sequence[str], nbytes: int, *, offset: int = 0) -> list[Head | Exception]:
        """Read `nbytes` bytes at `offset` of each of several objects, at once, in their present states.

        A shorter object gives fewer bytes. The item of an object that cannot be read is its error; nothing is raised.
        """

    def ends(
        self,
        names: Sequence[str],
        nbytes: int,
        last: int,  # noqa: ARG002
    ) -> tuple[list[Head | Exception], Tail | None]:
        """Read heads like `head`, and at the same time the `last` bytes of the first object, or all of a shorter one.

        The tail is None if there is no object, or if the store cannot request the end of an object. Heads and tail may
        belong to different states: compare their versions.
        """
        return self.head(names, nbytes), None

    # The cache on disk, which only stores on servers use.

    @property
    def disk_cache(self) -> str | None:
        """The directory of the cache on disk for this store; None without a cache that can be used."""
        return None

    def may_keep(self, version: Version) -> bool:  # noqa: ARG002
        """Return whether a version is certain to differ between any two states of its object."""
        return False

    def read_through(
        self,
        spans: Sequence[Span],
        contents: Sequence[ContentName | None],  # noqa: ARG002
        *,
        expected: Version | None = None,
        clip: bool = False,
        split: Callable[[Span], Iterable[tuple[Span, ContentName | None]]] | None = None,  # noqa: ARG002
    ) -> list[memoryview]:
        """Read spans like `read`; the cache on disk may have the bytes of a span that belongs to a content.

        A request that reads over a gap brings bytes of other contents as well, which the cache keeps if `split` names
        them: it cuts a range of an object where one content ends and the next one begins.
        """
        return self.read(spans, expected=expected, clip=clip)

    def find_on_disk(
        self,
        spans: Sequence[Span],  # noqa: ARG002
        contents: Sequence[ContentName | None],  # noqa: ARG002
    ) -> list[memoryview] | None:
        """Return the bytes of spans if the cache on disk has all of them; otherwise None."""
        return None

    def ends_through(
        self,
        names: Sequence[str],
        nbytes: int,
        last: int = 0,
        *,
        offset: int = 0,
        accepts: Callable[[Version], bool] | None = None,  # noqa: ARG002
    ) -> tuple[list[Head | Exception], Tail | None]:
        """Read heads and a tail like `head` and `ends`, in the present states; without `last`, there is no tail.

        If the cache on disk has the bytes, the server is only asked whether they are still the same. If that is so for
        the first name, the others need not be asked for: their answers may be that they do not exist. It is not even
        asked if the caller `accepts` their version, because it has just been told the version, or because nobody ever
        replaces the objects.
        """
        if last and not offset:
            return self.ends(names, nbytes, last)
        return self.head(names, nbytes, offset=offset), None

    def has_copy(self, name: str, nbytes: int) -> bool:  # noqa: ARG002
        """Return whether the cache on disk has the first `nbytes` bytes of an object, in any state."""
        return False

    def not_on_disk(
        self,
        spans: Sequence[Span],
        contents: Sequence[ContentName | None],  # noqa: ARG002
    ) -> tuple[list[Span], int]:
        """Return the ranges that `read_through` would now request, and the number of bytes that the cache has."""
        return [*spans], 0

    def forget(self, spans: Sequence[Span], contents: Sequence[ContentName | None]) -> bool:  # noqa: ARG002
        """Remove the contents of spans from the cache on disk; return whether any of them was there."""
        return False

    @abstractmethod
    def stamp(self, name: str) -> Stamp:
        """Return the present size and version of an object; FileNotFoundError if it does not exist."""

    def stamp_read(self, name: str) -> Stamp:
        """Return the present size and version of the object that `read` reads, which may be a local file kept open."""
        return self.stamp(name)

    @abstractmethod
    def listing(self) -> Mapping[str, Listed]:
        """List the objects of the store; FileNotFoundError if the store does not exist."""

    @abstractmethod
    def walk(self) -> list[str]:
        """List all objects of the store, at any depth, by names with slashes.

        FileNotFoundError says that the directory does not exist; a prefix without objects gives an empty list.
        UnsupportedError says that the protocol cannot list.
        """

    def now(self) -> float:
        """Return the time in seconds since 1970, by the clock of the server that dates the objects.

        To read that clock, the store makes and deletes an object. If it cannot, it uses the clock of this computer.
        """
        name = f"{os.urandom(8).hex()}{TEMPORARY}"
        modified = None
        if self.can.write and not self.in_process:
            # If the store cannot report its time, the clock of this computer is the best estimate, so raise no error.
            with suppress(OSError, B2ArrayError, KeyError):
                self.create(name, b"-")
                try:
                    modified = self.listing()[name].modified
                finally:
                    self.delete([name])
        return time.time() if modified is None else modified

    @abstractmethod
    def create(self, name: str, data: Buffer | Iterable[Buffer]) -> Stamp:
        """Write a new object, as a whole or not at all. At most a few pieces are in memory at a time.

        Raises
        ------
        FileExistsError
            The object exists. For local files, clouds and memory, the check and the write are one step; other stores
            check just before they write.
        ReadOnlyError
            The protocol cannot write.
        """

    @abstractmethod
    def replace(
        self,
        name: str,
        data: Buffer | Iterable[Buffer],
        *,
        expected: Version | None = None,
    ) -> Stamp:
        """Write an object, as a whole or not at all, and replace an older one; with `expected`, only this version.

        Clouds compare the version while they write; then the whole content is in memory. Local files are compared
        before the write: hold `lock` to exclude other writers. Other stores also compare just before they write.

        Raises
        ------
        ConflictError
            The object has another version than `expected`, or does not exist. Nothing was written, with one exception:
            if the answer to a successful request is lost, the client of a cloud repeats the request, and the repeated
            request fails. So compare the object with the bytes that you wrote.
        """

    root: str | None = None
    """On a local disk, a directory that must exist, and that no write makes again."""

    def require_place(self, *, directory: bool) -> None:  # noqa: B027 - other stores have no directories
        """Note that a frame exists here, as a `directory` or a file: then no write makes a missing directory for it."""

    def temporary(self, name: str) -> str | None:  # noqa: ARG002
        """Return the path of a file to make for `move_in`, or None if no file can be moved into the store."""
        return None

    def move_in(
        self,
        path: str,  # noqa: ARG002
        name: str,  # noqa: ARG002
        *,
        exclusive: bool,  # noqa: ARG002
        expected: Version | None = None,  # noqa: ARG002
    ) -> Stamp:
        """Make the file at `path`, which is a path from `temporary`, the object `name`, by a rename.

        With `exclusive`, an existing object raises FileExistsError. An object that is not the `expected` version raises
        ConflictError.
        """
        raise UnsupportedError(f"{self.url} takes no files")

    def beside(self, *, directory: bool) -> Self | None:  # noqa: ARG002
        """Return a temporary place for a directory (or a file) if something of the other kind is here; else None.

        On local disks, a file and a directory cannot have the same name; in object stores, they can.
        """
        return None

    def around(self, path: str) -> Callable[[str], Store] | None:  # noqa: ARG002
        """Return a function from paths to stores, for the directory in which `path` leads to this store.

        Return None if the URL does not end with `path`, or if the store has locks, whose users need no such function.
        """
        return None

    def below(self, path: str, *, shown_as: str | None = None) -> Self:  # noqa: ARG002
        """Return the store of a path below this directory or prefix, without a request.

        With `shown_as`, messages show this path instead.
        """
        raise UnsupportedError(f"{self.url} is one object; expected a directory or prefix to look for {path!r} in")

    def exchange(self, other: Self, *, at_once: bool = False) -> bool:  # noqa: ARG002
        """Exchange the contents of this store and `other`, a store from `beside`, and return True.

        This is one step, if the system can. With `at_once`, it returns False and does nothing if the system cannot.
        """
        raise UnsupportedError(f"{self.url} cannot be exchanged with {other.url}")

    def move_here(self, other: Self, *, may_wait: bool = False) -> None:  # noqa: ARG002
        """Move the file or directory of `other` here by a rename; FileExistsError if something is here.

        With `may_wait`, in a block of `b2array.store.forces.together`, a file keeps its old name until the block ends.
        """
        raise UnsupportedError(f"{self.url} cannot get the name of {other.url}")

    def drop_directory(self) -> None:  # noqa: B027 - object stores have none
        """Remove the directory of the store, if it is empty."""

    def drop_lock(self) -> None:  # noqa: B027 - object stores have none
        """Remove the lock file of the object ``""``, which was deleted. The caller holds the lock."""

    def append(
        self,
        name: str,
        offset: int,  # noqa: ARG002
        data: Buffer | Iterable[Buffer],  # noqa: ARG002
    ) -> None:
        """Truncate an object at `offset`, and append to it; UnsupportedError if the store cannot do this."""
        raise self._unchangeable(name)

    def patch(self, name: str, offset: int, data: Buffer) -> Stamp:  # noqa: ARG002
        """Overwrite bytes inside an object in one small write. Raises the errors of `append`."""
        raise self._unchangeable(name)

    def _unchangeable(self, name: str) -> UnsupportedError:
        return UnsupportedError(f"{where(self.url, name)} can be replaced, but not changed in place")

    def force(self) -> None:  # noqa: B027 - object stores have nothing to wait for
        """Wait until all changes to this store are on the disk. Call this before a write that relies on them.

        Only local stores wait, and only if `config.durable` is "ordered": with "full", every call has already waited.
        For a file, its content and its name are forced; for a directory, the names in it.
        """

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, if they exist. The name ``""`` also removes an empty directory."""

    def withdraw(self, digests: Mapping[str, int]) -> None:  # noqa: B027 - most stores remove nothing here
        """Remove objects that `create` has made. `digests` maps names to digests of the stamps that it returned.

        Local and in-memory stores remove an object only if it still has this digest. Other stores remove nothing: a
        server may execute a request late, or twice, when another object has the name.
        """

    def refuse_links(self, name: str) -> None:  # noqa: B027 - object stores have none
        """Raise FormatError if a part of a name is a symbolic link. Only local stores have symbolic links."""

    def remove(
        self,
        first: str,
        belongs: Callable[[str], bool],
        *,
        locked: bool = False,  # noqa: ARG002
    ) -> None:
        """Remove a frame: the object ``""``, or, in a directory, `first` and then every file that `belongs` accepts.

        Nothing else is removed, and no link is followed. Local stores hold the lock meanwhile, to exclude other
        writers; `locked` says that the caller holds it. At the end they remove the lock file, and the directory if no
        other files are in it.
        """
        names = []
        # Another process may have removed everything already.
        with suppress(FileNotFoundError, NotADirectoryError):
            names = self.walk()
        if first in names:
            self.delete([first])
        self.delete([name for name in names if name != first and belongs(name)])
        self.delete([""])

    def lock(
        self,
        name: str,  # noqa: ARG002
        *,
        shared: bool = False,  # noqa: ARG002
        removing: bool = False,  # noqa: ARG002
    ) -> AbstractContextManager[object]:
        """Exclude other writers from the object ``""``, or from the whole directory if `name` is not empty.

        Local files use the lock file of the C library, and in-memory stores a mutex; other stores do nothing.
        RuntimeError is raised if a thread takes a lock that it already holds. A `shared` lock excludes writers, but not
        other readers; it takes effect only if a writer has made a lock file before. With `removing`, the caller will
        remove the frame or the group, which is possible even if the disk has no room for a lock file.
        """
        return nullcontext()

    def close(self) -> None:  # noqa: B027 - most stores keep nothing open
        """Release descriptors and connections. The store can be used again."""


# Errors. One function makes each error, so that all stores use the same text.


def where(url: str, name: str) -> str:
    """Return the name of an object for messages."""
    return f"{url.rstrip('/')}/{name}" if name else url


def says_more(error: object) -> TypeGuard[Exception]:
    """Return whether an error reports more than a missing object, for example a missing bucket."""
    if not isinstance(error, FileNotFoundError) or isinstance(error, HiddenError):
        return False
    return error.strerror not in (None, os.strerror(errno.ENOENT))


def as_answer(error: Exception) -> Exception:
    """Remove the tracebacks from an error that `Store.head` caught, and return the error.

    A traceback refers to the stack frames of its functions, and one of them will refer to the error. Only the garbage
    collector would free such a cycle, with everything in the stack frames, such as open files.
    """
    link: BaseException | None = error
    while link is not None and link.__traceback__ is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def read_whole(
    store: Store,
    span: Span,
    expected: Version | None,
    content: ContentName | None = None,
) -> memoryview:
    """Read a part of a file that readers need; FormatError if the file ends before it.

    With a `content`, the cache on disk may have the bytes.
    """
    (view,) = store.read_through([span], [content], expected=expected, clip=True)
    if len(view) < span.stop - span.start:
        raise FormatError(f"expected {span.stop} bytes: the file is cut off (b2array.repair saves what is left)")
    return view


def too_short(place: str, start: int, stop: int, end: int) -> FormatError:
    """Make the error for an object that ends inside or before a span."""
    return FormatError(f"{place}: expected {stop - start} bytes at {start}, found {max(0, end)}")


def make_hidden_error(place: str) -> HiddenError:
    """Make the error for an object that is missing, or that the user may not read."""
    return HiddenError(
        errno.EACCES,
        "does not exist, or may not be read: without the right to list, the server does not say which",
        place,
    )


def stale_reader(place: str) -> ConflictError:
    """Make the error for a reader whose object was replaced."""
    return ConflictError(f"{place} changed since it was opened; call refresh()")


def conflict(place: str) -> ConflictError:
    """Make the error for a writer that another writer overtook."""
    return ConflictError(f"{place} was changed by another writer")


def too_many_conflicts(store: Store) -> ConflictError:
    """Make the error for a writer that other writers overtook at every attempt."""
    return ConflictError(f"{store.url}: other writers came first {_count(store)} times")


def moved_away(url: str) -> ConflictError:
    """Make the error for a writer whose frame or group is not at its URL any more."""
    return ConflictError(f"{url} was deleted or moved since it was opened")


def make_deadlock_error(place: str) -> RuntimeError:
    """Make the error for a thread that would wait for itself."""
    return RuntimeError(
        f"{place}: this thread holds the lock already, or waits for it: it writes to the same frame inside a write or"
        " inside `lock()`, in a signal handler or through another handle"
    )


# Durability.


def durability() -> str:
    """Return `config.durable` as "off", "ordered" or "full"."""
    setting = config.durable
    if isinstance(setting, str):
        return setting
    return "full" if setting else "off"


# Retries.


def attempts(store: Store) -> Iterator[int]:
    """Yield the number of each attempt at a commit: the first, and `config.retries` more.

    In a store without locks, a writer learns only at the end that another writer was faster, and a slow writer may lose
    often. So it makes 20 times as many attempts there, each after a longer random pause.
    """
    if store.can.compare:
        return spaced(range(_count(store)))
    return iter(range(config.retries + 1))


def spaced(counts: Iterable[int]) -> Iterator[int]:
    """Yield the numbers of attempts, and wait for a random time before each one but the first."""
    for attempt in counts:
        if attempt:
            time.sleep(pause(attempt))
        yield attempt


def pause(attempt: int) -> float:
    """Return a random time to wait before an attempt, in seconds; on average it is longer before later attempts."""
    # Random, so that writers that collided once do not collide again.
    longest = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2**attempt)
    return random.uniform(0, longest)  # noqa: S311


def _count(store: Store) -> int:
    return config.retries * (_PATIENCE if store.can.compare else 1) + 1


def in_one_state(function: Callable[[], T]) -> T:
    """Call a function that reads with several requests; call it again if a commit happened between the requests."""
    for _ in range(config.retries):
        # The next call reads the newer state; the last call, below, raises the error.
        with suppress(ConflictError):
            return function()
    return function()


# Spans and buffers.


def check_span(url: str, span: Span) -> Span:
    """Return a span; raise FormatError if it is not a range, because it was computed from damaged bytes."""
    if not 0 <= span.start <= span.stop:
        raise FormatError(f"{where(url, span.name)}: expected a range of bytes, found {span.start} to {span.stop}")
    return span


def merge(url: str, spans: Sequence[Span], limit: int, *, gap: int | None = None) -> list[Merged]:
    """Check spans, and merge spans that are close together."""
    checked = [check_span(url, span) for span in spans]
    return coalesce(checked, config.coalesce_gap if gap is None else gap, limit)


def scatter(
    spans: Sequence[Span],
    merged: Sequence[Merged],
    buffers: Iterable[memoryview],
) -> list[memoryview]:
    """Return a view for each span, given the buffers of the merged spans."""
    views = [memoryview(b"")] * len(spans)
    for (whole, members), buffer in zip(merged, buffers, strict=True):
        for member in members:
            _, start, stop = spans[member]
            views[member] = buffer[start - whole.start : stop - whole.start]
    return views


def join_views(views: Sequence[memoryview]) -> memoryview:
    """Return one buffer with all views, one after the other."""
    return views[0] if len(views) == 1 else memoryview(bytearray().join(views))


def join_views_at(views: Sequence[memoryview], places: Sequence[int], nbytes: int) -> memoryview:
    """Return one buffer of `nbytes` bytes with each view at its place."""
    if len(views) == 1 and nbytes == len(views[0]):
        return views[0]
    buffer = memoryview(bytearray(nbytes))
    for view, place in zip(views, places, strict=True):
        buffer[place : place + len(view)] = view
    return buffer


def as_pieces(data: Buffer | Iterable[Buffer]) -> Iterable[Buffer]:
    """Return an iterable of buffers, whether `data` is one buffer or many."""
    return (data,) if isinstance(data, bytes | bytearray | memoryview) else data


def join_pieces(data: Buffer | Iterable[Buffer]) -> bytes:
    """Return the content of one buffer or of many."""
    return data if isinstance(data, bytes) else b"".join(as_pieces(data))


class Mutex:
    """A lock that is free in a forked child, even if a thread of the parent held it."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.RLock()

    @property
    def held(self) -> AbstractContextManager[object]:
        """A context manager that holds the lock.

        It is the lock itself: Ctrl-C inside methods `__enter__` and `__exit__` in Python code could leave the lock held
        for ever.
        """
        if self._owner != os.getpid():
            self._owner, self._lock = os.getpid(), threading.RLock()
        return self._lock

    def held_once(self, place: str) -> AbstractContextManager[object]:
        """Return `held`; raise RuntimeError if this thread already holds the lock, as around a signal handler.

        The error says that `place` is locked.
        """
        lock = self.held
        try:
            # This raises RuntimeError unless the thread holds the lock; then it notifies nobody.
            threading.Condition(self._lock).notify(0)
        except RuntimeError:
            return lock
        raise make_deadlock_error(place)
