"""What every store can do, and what stores share: versions, conflicts, retries.

A store is one object, named ``""``, or a directory or prefix of objects, whose names have no slashes. Which of the two
it is may turn out only on reading. So every store takes both kinds of names.

Errors of a backend pass through, except these. A missing object raises `FileNotFoundError`, an object that must not
exist `FileExistsError`, a read beyond the end of an object `FormatError`, and a lost race `ConflictError`. Errors of
object stores' clients become `OSError`. If the text of an error shows a secret, a built-in error without the secret
replaces it.
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
    "Head",
    "HiddenError",
    "Listed",
    "Mutex",
    "Stamp",
    "Store",
    "Tail",
    "Version",
    "attempts",
    "create_under_own_name",
    "durability",
    "in_one_state",
    "may_still_happen",
    "pause",
    "too_many_conflicts",
]

T = TypeVar("T")

MISSING = (FileNotFoundError, NotADirectoryError)
"""The errors that stores raise for an object that does not exist. A file may have replaced the directory that it was
in."""

_PATIENCE = 20
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
_STEP = 8 * 2**20


class HiddenError(FileNotFoundError, PermissionError):
    """An object does not exist, or may not be read: without the right to list, a cloud does not say which.

    It counts as missing where something else may be in its place. Nothing is ever written there without a condition.
    """


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do. The defaults describe a plain object store.

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
        The objects are on this computer: files, whose names can be changed, or bytes in memory.
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
        """A text that says what protects a commit from other writers."""
        if not self.write:
            return "read only"
        return "lock" if self.lock else "compare-and-swap" if self.compare else "single writer"


READ_ONLY = Capabilities(write=False)


class Version(NamedTuple):
    """The version of an object, which differs between its states. Where nothing tells them apart, None is in its place.

    The `tag` stays while the object is appended to, and the `state` changes with every write. In clouds and on HTTP the
    tag alone names the state: it is an entity tag or a generation. A reader can add `known` bytes, which end at `stop`:
    appending keeps them, and no other object has them there. A new file may get the inode of a deleted one.
    """

    tag: str
    state: str = ""
    known: bytes = b""
    stop: int = 0

    def __str__(self) -> str:
        """Return the version, without known bytes, as digests, logs and notes have it. Nobody reads it back."""
        return f"{self.tag}@{self.state}" if self.state else self.tag


class Stamp(NamedTuple):
    """The state of an object: its size in bytes (-1 if unknown), and its version."""

    size: int
    version: Version | None

    @property
    def digest(self) -> int:
        """A short digest, which is the same in every process."""
        said = f"{self.size} {self.version}".encode()
        return int.from_bytes(blake2b(said, digest_size=8).digest(), "big", signed=True)


class Head(NamedTuple):
    """The first bytes of an object, and its state if the backend sends it with them.

    `unique` differs for each object that this process can reach, and for each of its states. It is empty if the store
    cannot promise that. It shows no secrets.
    """

    data: memoryview
    stamp: Stamp | None
    unique: str = ""

    @property
    def version(self) -> Version | None:
        """The version of the object, if the backend sends it with the bytes."""
        return self.stamp.version if self.stamp else None


class Tail(NamedTuple):
    """The last bytes of an object, where they start in it, and its version."""

    data: memoryview
    start: int
    version: Version | None


class Listed(NamedTuple):
    """Size of an object in bytes, and when it was written, in seconds since 1970, if that is known."""

    size: int
    modified: float | None


class Store(ABC):
    """Objects under names. Threads may share a store. A pickled store connects again when it is first used.

    The defaults describe a plain object store: an object is written as a whole, and there are no locks.
    """

    url: str
    """Where the store is, for messages: without user, password and query string."""

    is_prefix: bool | None = None
    """True if the URL ended with a slash, so that there is no object ``""``; None if unknown."""

    can: Capabilities = Capabilities()
    """What it can do."""

    advice: str = "open it with mode='r+' to change it"
    """Advice for a user who writes to something opened for reading."""

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
        """Read spans of any objects: one item per span. Spans that are close together share a request.

        If all spans lie in one object, `expected` is the version that it had. The store refuses the bytes of an object
        that has replaced it. Local files are compared by the tag, which appending keeps, and by the known bytes;
        objects in clouds and on HTTP by the tag. Other stores ignore `expected`. With `clip`, a span that reaches
        beyond the end of its object gives fewer bytes. Views of overlapping spans may share memory, and long ones may
        be read-only.

        Raises
        ------
        FormatError
            A span is not inside its object, and `clip` is False.
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
        """Read spans into one buffer of `nbytes` bytes, each to its place. The bytes between them are undefined.

        The store may use the buffer again at this thread's next call. Raises the errors of `read`.
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
        """Read `nbytes` bytes at `offset` of several objects at once, as they are now.

        A shorter object gives fewer. If an object cannot be read, its item is the error; this function raises none.
        """

    def ends(
        self,
        names: Sequence[str],
        nbytes: int,
        last: int,  # noqa: ARG002
    ) -> tuple[list[Head | Exception], Tail | None]:
        """Do what `head` does, and at the same time read the `last` bytes of the first object; a shorter one gives all.

        Without an object, or where a store cannot ask for the end of one, there is no tail. Heads and tail may be of
        different states: compare their versions.
        """
        return self.head(names, nbytes), None

    @abstractmethod
    def stamp(self, name: str) -> Stamp:
        """Return the present size and version of an object; FileNotFoundError if it does not exist."""

    def stamp_read(self, name: str) -> Stamp:
        """Return the present size and version of the object that `read` reads: a local file that stays open."""
        return self.stamp(name)

    @abstractmethod
    def listing(self) -> Mapping[str, Listed]:
        """List the objects of the store; FileNotFoundError if there is nothing at all."""

    @abstractmethod
    def walk(self) -> list[str]:
        """List the objects of the store and of all directories or prefixes below it, by names with slashes.

        FileNotFoundError says that there is no such directory; a prefix without objects gives an empty list.
        UnsupportedError says that the protocol cannot list.
        """

    def now(self) -> float:
        """Return the time by the clock that dates objects here, in seconds since 1970: that of the server, or ours.

        To find out, the store makes an object for a moment. Where it cannot, it returns the time of this computer.
        """
        name = f"{os.urandom(8).hex()}{TEMPORARY}"
        modified = None
        if self.can.write and not self.in_process:
            # If the store cannot tell its time, the time of this computer has to do.
            with suppress(OSError, B2ArrayError, KeyError):
                self.create(name, b"-")
                try:
                    modified = self.listing()[name].modified
                finally:
                    self.delete([name])
        return time.time() if modified is None else modified

    @abstractmethod
    def create(self, name: str, data: Buffer | Iterable[Buffer]) -> Stamp:
        """Write an object that does not exist yet, as a whole or not at all. Pieces are in memory in parts only.

        Raises
        ------
        FileExistsError
            The object exists. Local files, clouds and memory exclude a race; other stores look just before they
            write.
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
        """Write an object, as a whole or not at all. It may replace an older one, whose version may be `expected`.

        Clouds compare the version while they write; the content is in memory as a whole then. Local files compare
        before they write: hold `lock` to exclude other writers. Other stores compare just before, too.

        Raises
        ------
        ConflictError
            The object has another version than `expected`, or does not exist. Nothing was written, with one exception:
            if the answer to a successful request is lost, the client of a cloud repeats the request, and that one
            fails. So compare the object with what you wrote.
        """

    def temporary(self, name: str) -> str | None:  # noqa: ARG002
        """Return the path of a file to make for `adopt`, or None if the store takes no files."""
        return None

    def adopt(
        self,
        path: str,  # noqa: ARG002
        name: str,  # noqa: ARG002
        *,
        exclusive: bool,  # noqa: ARG002
        expected: Version | None = None,  # noqa: ARG002
    ) -> Stamp:
        """Rename the file at `path`, from `temporary`, to the object `name`.

        With `exclusive`, only if there is no such object. ConflictError if it is not the `expected` version.
        """
        raise UnsupportedError(f"{self.url} takes no files")

    def beside(self, *, directory: bool) -> Self | None:  # noqa: ARG002
        """Return a new place for a directory, or else for a file, if one of the other kind is here; else None.

        An object and objects below its name exclude each other on local disks, but not in object stores.
        """
        return None

    def around(self, path: str) -> Callable[[str], Store] | None:  # noqa: ARG002
        """Return the function that gives the stores of paths in the directory in which this store is at a path.

        None: this store is at another path, or has locks, so that nobody needs to ask.
        """
        return None

    def below(self, path: str, *, shown_as: str | None = None) -> Self:  # noqa: ARG002
        """Return the store of a path below this directory or prefix. It costs no request, and hardly any time.

        Messages show another path, if it is `shown_as` that.
        """
        raise UnsupportedError(f"{self.url} is one object; expected a directory or prefix to look for {path!r} in")

    def exchange(self, other: Self) -> None:
        """Swap the names of what is here and what is in `other`, from `beside`: in one step, if the system can."""
        raise UnsupportedError(f"{self.url} cannot be exchanged with {other.url}")

    def swap(self, other: Self) -> bool:  # noqa: ARG002
        """Swap the names of what is here and what is in `other` in one step; return whether that is possible."""
        return False

    def take(self, other: Self, *, may_wait: bool = False) -> None:  # noqa: ARG002
        """Rename the file or directory in `other` to what this store is, where nothing may be: FileExistsError.

        In a block of `b2array.store.forces.together` a file loses its old name only at the end, if that `may_wait`.
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
        """Cut an object at `offset` and write from there on; UnsupportedError if the store cannot."""
        raise self._unchangeable(name)

    def patch(self, name: str, offset: int, data: Buffer) -> Stamp:  # noqa: ARG002
        """Overwrite bytes inside an object in one small write. Raises the errors of `append`."""
        raise self._unchangeable(name)

    def _unchangeable(self, name: str) -> UnsupportedError:
        return UnsupportedError(f"{where(self.url, name)} cannot be changed in place, only be replaced")

    def force(self) -> None:  # noqa: B027 - object stores have nothing to wait for
        """Wait until all changes made here are on the disk. Call it before you write what relies on them.

        Only local stores wait, and only with `config.durable` "ordered": with "full" every call has waited already.
        For a file they force its content and its name, for a directory the names in it.
        """

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, if they exist. The name ``""`` also removes an empty directory."""

    def withdraw(self, digests: Mapping[str, int]) -> None:  # noqa: B027 - most stores remove nothing here
        """Remove objects that `create` has made, given the digest of the stamp that it returned for each.

        Local and in-memory stores do. They leave objects alone that have come in their place. A request to a
        server may be carried out late, or twice, when something else has the name: there the objects stay.
        """

    def refuse_links(self, name: str) -> None:  # noqa: B027 - object stores have none
        """Raise FormatError if a symbolic link is among the parts of a name. Only local stores have any."""

    def remove(
        self,
        first: str,
        belongs: Callable[[str], bool],
        *,
        locked: bool = False,  # noqa: ARG002
    ) -> None:
        """Remove a frame: the object ``""``, or in a directory `first`, and then every file that `belongs` accepts.

        Nothing else is removed, and no link is followed. Local stores hold the lock meanwhile, so that no other writer
        is at work, and remove its file and the directory at the end, unless other files are in it. If `locked`, the
        caller holds the lock.
        """
        names = []
        # Another process may have removed everything already.
        with suppress(FileNotFoundError, NotADirectoryError):
            names = self.walk()
        if first in names:
            self.delete([first])
        self.delete([name for name in names if name != first and belongs(name)])
        self.delete([""])

    def lock(self, name: str, *, shared: bool = False) -> AbstractContextManager[object]:  # noqa: ARG002
        """Exclude other writers from the object ``""``, or from the whole directory if `name` is not empty.

        Local files use the lock file of the C library, stores in memory a mutex; other stores do nothing. A thread
        that holds the lock must not take it again: RuntimeError. A `shared` lock excludes writers only, and only if one
        of them has ever left a lock file.
        """
        return nullcontext()

    def close(self) -> None:  # noqa: B027 - most stores keep nothing open
        """Release descriptors and connections. The store can be used again."""


# Errors, each made in one place.


def where(url: str, name: str) -> str:
    """Name an object in a message."""
    return f"{url.rstrip('/')}/{name}" if name else url


def says_more(error: object) -> TypeGuard[Exception]:
    """Whether an error says more than that an object is missing, for example that the bucket is."""
    if not isinstance(error, FileNotFoundError) or isinstance(error, HiddenError):
        return False
    return error.strerror not in (None, os.strerror(errno.ENOENT))


def as_answer(error: Exception) -> Exception:
    """Return an error that `Store.head` caught, without its tracebacks.

    They refer to the frames that are going to hold the error. Only the garbage collector would free the frames, with
    everything else in them, such as open files.
    """
    link: BaseException | None = error
    while link is not None and link.__traceback__ is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def read_whole(store: Store, span: Span, expected: Version | None) -> memoryview:
    """Read a part of a file without which the rest means nothing."""
    (view,) = store.read([span], expected=expected, clip=True)
    if len(view) < span.stop - span.start:
        raise FormatError(f"expected {span.stop} bytes: the file is cut off (b2array.repair saves what is left)")
    return view


def too_short(place: str, start: int, stop: int, end: int) -> FormatError:
    """Make the error for an object that ends inside or before a span."""
    return FormatError(f"{place}: expected {stop - start} bytes at {start}, found {max(0, end)}")


def make_hidden_error(place: str) -> HiddenError:
    """Make the error for an object that is missing or may not be read."""
    return HiddenError(
        errno.EACCES,
        "does not exist, or may not be read: without the right to list, the server does not say which",
        place,
    )


def stale_reader(place: str) -> ConflictError:
    """Make the error for a reader whose object was replaced."""
    return ConflictError(f"{place} changed since it was opened; call refresh()")


def conflict(place: str) -> ConflictError:
    """Make the error for a writer who comes second."""
    return ConflictError(f"{place} was changed by another writer")


def too_many_conflicts(store: Store) -> ConflictError:
    """Make the error for a writer who came second at every attempt."""
    return ConflictError(f"{store.url}: other writers came first {_count(store)} times")


def make_deadlock_error(place: str) -> RuntimeError:
    """Make the error for a thread that would wait for itself."""
    return RuntimeError(
        f"{place}: this thread holds the lock already, or waits for it: it writes to the same frame inside of a write"
        " or of `lock()`, in a signal handler or through another handle"
    )


# Durability.


def durability() -> str:
    """Return `config.durable` as "off", "ordered" or "full"."""
    setting = config.durable
    return setting if isinstance(setting, str) else "full" if setting else "off"


# Retries.


def attempts(store: Store) -> Iterator[int]:
    """Count the attempts at a commit: `config.retries` after the first one, more in stores without locks.

    There a writer learns only at the end that another one was first, and a slow writer may lose often. So it gets 20
    times as many attempts, each after a longer random pause.
    """
    if store.can.compare:
        return _spaced(range(_count(store)))
    return iter(range(config.retries + 1))


def _spaced(counts: Iterable[int]) -> Iterator[int]:
    for attempt in counts:
        if attempt:
            time.sleep(pause(attempt))
        yield attempt


def pause(attempt: int) -> float:
    """Return how long to wait before an attempt, in seconds: longer before later ones, and never as long as others."""
    return random.uniform(0, min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2**attempt))  # noqa: S311


def _count(store: Store) -> int:
    return config.retries * (_PATIENCE if store.can.compare else 1) + 1


def create_under_own_name(store: Store, name: str, data: Buffer | Iterable[Buffer]) -> None:
    """Create an object under a random name, which nobody else has.

    If there is one already, the client has repeated a request that had succeeded, because its answer was lost.
    """
    # The first request of this client made it, as the docstring says.
    with suppress(FileExistsError):
        store.create(name, data)


def may_still_happen(store: Store, error: BaseException) -> bool:
    """Whether a write that has raised an error may take effect later, because its request may still be under way.

    Then what the request refers to must stay; at worst nothing ever needs it.
    """
    return not store.can.lock and not isinstance(error, B2ArrayError | FileExistsError)


def in_one_state(function: Callable[[], T]) -> T:
    """Call a function that reads with several requests; call it again if a commit came between them."""
    for _ in range(config.retries):
        # A commit came between two requests: read the newer state instead. The last attempt raises.
        with suppress(ConflictError):
            return function()
    return function()


# Spans and buffers.


def check_span(url: str, span: Span) -> Span:
    """Refuse a span that is not a range: it was computed from damaged bytes."""
    if not 0 <= span.start <= span.stop:
        raise FormatError(f"{where(url, span.name)}: expected a range of bytes, found {span.start} to {span.stop}")
    return span


def merge(url: str, spans: Sequence[Span], limit: int, *, gap: int | None = None) -> list[Merged]:
    """Check spans, and merge spans that are worth reading together."""
    return coalesce([check_span(url, span) for span in spans], config.coalesce_gap if gap is None else gap, limit)


def scatter(
    spans: Sequence[Span],
    merged: Sequence[Merged],
    buffers: Iterable[memoryview],
) -> list[memoryview]:
    """Return the wanted spans as views of the merged ones that were read."""
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
    """A lock that a forked child finds free, even if a thread of its parent held it."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.RLock()

    @property
    def held(self) -> AbstractContextManager[object]:
        """For ``with``: the lock is held inside.

        Methods `__enter__` and `__exit__` would be Python code: Ctrl-C inside them would leave the lock held for ever.
        """
        if self._owner != os.getpid():
            self._owner, self._lock = os.getpid(), threading.RLock()
        return self._lock

    def held_once(self, place: str) -> AbstractContextManager[object]:
        """Return `held`, or raise RuntimeError if this thread holds it already, for example around a signal handler.

        The message names `place` as what is locked.
        """
        lock = self.held
        try:
            threading.Condition(self._lock).notify(0)  # does nothing in a thread that holds the lock
        except RuntimeError:
            return lock
        raise make_deadlock_error(place)
