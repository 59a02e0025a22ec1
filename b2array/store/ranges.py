"""Reads of byte ranges through obstore, a client written in Rust, for the stores on HTTP servers and in clouds.

The file system of fsspec remains the main client: it holds the options, finds the credentials, writes, and reports
errors. If its requests can be described for obstore, obstore sends the same GET requests with much less Python code. If
an answer to obstore leaves any doubt, the file system sends the request again.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Any, ClassVar, Final, NamedTuple

from b2array import config, threads
from b2array.errors import UnsupportedError
from b2array.store.base import Stamp, Version
from b2array.store.spans import Span

__all__ = [
    "CONFIGURATION",
    "Client",
    "Got",
    "client_of",
    "has_proxy",
    "http_store",
    "is_plain",
    "is_possible",
    "name_of",
]

_IS_INSTALLED = find_spec("obstore") is not None
_MOST_CLIENTS = 64
_MOST_THREADS = 64
_FAST = 0.0002
_WORTH_A_THREAD = 0.0005
"""In seconds: if answers take less than `_FAST`, wake another thread only for at least `_WORTH_A_THREAD` of work."""
_PATIENCE = 3
_REST = 300.0
"""After this many failures in a row, the client is not used for this many seconds."""
_OPTIONS = {"connect_timeout": "20s", "read_timeout": "60s", "timeout": "600s", "allow_http": True}
CONFIGURATION: Final[Mapping[str, Any]] = {"client_options": _OPTIONS, "retry_config": {"max_retries": 0}}
"""Arguments for all stores of obstore. They do not retry: the file system does, as often as its options say."""
_PART = r"(?![.]{1,2}(?:/|$))[A-Za-z0-9._~=-]+"
_PLAIN = re.compile(f"{_PART}(?:/{_PART})*")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|[Tt]he specified (bucket|container) does not exist")
_BEYOND = re.compile(r"\b416\b")
_DENIALS = ("PermissionDeniedError", "UnauthenticatedError")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_IDENTITY = {"accept-encoding": "identity"}


class Address(NamedTuple):
    """The address of an object for obstore: the bucket, or the origin of a server, and the path in it."""

    bucket: str
    path: str


Got = tuple[Any, Stamp]
"""The bytes of a range, as a buffer, and the state of the object."""


@dataclass(slots=True)
class _Bucket:
    """A store of obstore, or None if making it failed; and its recent failures and speed."""

    store: Any
    failures: int = 0
    resting_until: float = 0.0
    pace: float = 1.0
    """The response time in seconds, as a moving average."""

    def note(self, seconds: float) -> None:
        self.failures = 0
        self.pace += (seconds - self.pace) / 4

    def fail(self) -> None:
        self.failures += 1
        if self.failures >= _PATIENCE:
            self.failures = 0
            self.resting_until = time.monotonic() + _REST

    @property
    def is_resting(self) -> bool:
        return self.resting_until > 0 and time.monotonic() < self.resting_until


@dataclass(frozen=True, slots=True)
class Client:
    """A client that sends the requests of one file system, in this process.

    Parameters
    ----------
    make : callable
        Returns obstore's store for a bucket.
    tag : {"e_tag", "version"}
        The field of an answer that differs between the states of an object.
    conditional : bool
        Whether requests have the expected state as a condition. Answers are compared with it in any case.
    is_http : bool
        Whether the server may be any HTTP server, whose answers may be pages or compressed.
    is_alone : bool
        Whether the file system itself works through obstore, so that there is no other client to ask.
    note_age : callable, optional
        Called with the version of each object that was read, and the time of its last change.
    """

    make: Callable[[str], Any]
    tag: str = "e_tag"
    conditional: bool = True
    is_http: bool = False
    is_alone: bool = False
    note_age: Callable[[Version, datetime], None] | None = None
    buckets: dict[str, _Bucket] = field(default_factory=dict)

    def get(
        self,
        addresses: Sequence[Address],
        spans: Sequence[Span],
        expected: Version | None,
    ) -> list[Got | Exception | None]:
        """Read spans at once; for each, return bytes and state, an error, or None if the file system has to read it."""
        calls = []
        for address, span in zip(addresses, spans, strict=True):
            bucket = self.buckets.get(address.bucket) or self._begin(address.bucket)
            if bucket.store is None or bucket.is_resting:
                return [None] * len(spans)
            calls.append(partial(self._ask, bucket, address.path, span, expected))
        # Ctrl-C does not interrupt a call of obstore. Signals reach the main thread only.
        if len(calls) == 1 and threading.current_thread() is not threading.main_thread():
            return [calls[0]()]
        # When the interpreter ends, no thread can start.
        with suppress(RuntimeError):
            return _waiters.together(calls, bucket)
        return [None] * len(spans)

    def _begin(self, name: str) -> _Bucket:
        store = None
        # The file system's error is clearer, unless obstore made the file system.
        with nullcontext() if self.is_alone else suppress(Exception):
            store = self.make(name)
        bucket = self.buckets[name] = _Bucket(store)
        return bucket

    def _ask(
        self,
        bucket: _Bucket,
        path: str,
        span: Span,
        expected: Version | None,
    ) -> Got | Exception | None:
        _, start, stop = span
        wanted_range: Any = (start, stop)
        if start < 0:
            wanted_range = {"suffix": -start}
        options = {"range": wanted_range}
        if expected is not None and self.conditional:
            options["if_match"] = expected.tag
        begun = time.perf_counter()
        try:
            answer = bucket.store.get(path, options=options)
            content = answer.bytes()
            meta = answer.meta
            first, end = answer.range
        except Exception as error:  # noqa: BLE001 - the file system says what it means
            return self._judge(bucket, error, start, expected)
        size = meta["size"]
        tag = meta[self.tag]
        version = Version(tag) if tag else None  # an HTTP server may send none
        if start < 0:
            start, stop = max(0, size + start), size
        is_right = first == start and end == min(stop, size)
        is_complete = is_right and len(content) == end - first
        is_expected = version is not None and version == expected
        is_plausible = is_expected or not self.is_http or _is_plain_answer(answer.attributes)
        if not (is_complete and is_plausible):
            bucket.fail()
            return None
        bucket.note(time.perf_counter() - begun)
        if version is not None and self.note_age is not None:
            self.note_age(version, meta["last_modified"])
        if expected is None or is_expected:
            return content, Stamp(size, version)
        return None

    def _judge(
        self,
        bucket: _Bucket,
        error: Exception,
        start: int,
        expected: Version | None,
    ) -> Exception | None:
        """Return the error for a failed request, or None if the file system has to find out the reason."""
        text = str(error)
        kind = type(error).__name__
        if self.is_alone:
            return None if kind in _DENIALS else error
        if start < 0 and "RangeNotSupported" in text:
            return UnsupportedError("expected the last bytes of an object, found a server that ignores the range")
        if isinstance(error, FileNotFoundError) or kind == "NotFoundError":
            return None if expected is not None or _NO_BUCKET.search(text) else FileNotFoundError()
        if kind != "PreconditionError" and not _BEYOND.search(text):
            bucket.fail()
        return None


def _is_plain_answer(headers: Mapping[str, str]) -> bool:
    """Return whether an answer is neither compressed nor a page, which only the file system understands."""
    return "Content-Encoding" not in headers and "html" not in headers.get("Content-Type", "")


def is_possible() -> bool:
    """Return whether obstore is enabled, installed, and works in this process."""
    return config.obstore and _Process.works and _IS_INSTALLED


def name_of(fs: object) -> str:
    """Return the full name of a file system's class. A subclass has another name, and may act differently."""
    return f"{type(fs).__module__}.{type(fs).__qualname__}"


def has_proxy() -> bool:
    """Return whether the environment names a proxy, which clients use in different ways."""
    return any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES)


def client_of(fs: Hashable, describe: Callable[[], Client | None]) -> Client | None:
    """Return the client of a file system, which `describe` makes for the first call."""
    # The file system meets the same problem when it reads, and raises a clearer error.
    with suppress(Exception):
        if fs not in _clients:
            while len(_clients) >= _MOST_CLIENTS:
                del _clients[next(iter(_clients))]
            _clients[fs] = describe()
        return _clients[fs]
    return None


_clients: dict[Hashable, Client | None] = {}
"""The clients by file system. A forked process keeps its parent's clients, and must not free their objects."""


def http_store(headers: Mapping[str, str], origin: str) -> Any:
    """Return obstore's store for the server of a URL."""
    from obstore.store import HTTPStore

    options: Any = {**_OPTIONS, "default_headers": {**headers, **_IDENTITY}}
    return HTTPStore(origin, **{**CONFIGURATION, "client_options": options})


def cloud_store(kind: str, options: Mapping[str, Any], bucket: str) -> Any:
    """Return obstore's store for a bucket, by the name of its class, such as "S3Store"."""
    from obstore import store

    return getattr(store, kind)(bucket, **CONFIGURATION, **options)


def is_plain(path: str) -> bool:
    """Return whether all clients write this path into a URL in the same way.

    Examples
    --------
    >>> is_plain("data/a.b2nd/0000000A.chunk"), is_plain("a b"), is_plain("a/../b"), is_plain("50%.b2nd")
    (True, False, False, False)
    """
    return _PLAIN.fullmatch(path) is not None


class _Process:
    """Whether obstore works in this process. A forked process lacks its threads, so calls there would wait for ever."""

    works: ClassVar[bool] = True


class _Batch:
    """Calls that several threads share, and their results.

    Each thread that begins a call may wake one more. So a server on this computer keeps few threads busy, which then
    rarely wait for the interpreter; a slower server keeps as many threads busy as there are calls.
    """

    def __init__(self, calls: Sequence[Callable[[], Any]], bucket: _Bucket) -> None:
        self.calls = calls
        self.bucket = bucket
        self.results: list[Any] = [None] * len(calls)
        self.left = iter(range(len(calls)))
        self.ended: list[None] = []
        self.helpers: list[None] = []
        self.over: threads.Answer[None] = SimpleQueue()

    def work(self, wake: Callable[[_Batch], None]) -> None:
        """Make calls that no thread has begun, until none remain."""
        self.helpers.append(None)
        for number in self.left:
            left = len(self.calls) - number - 1
            pace = self.bucket.pace
            if left and (pace > _FAST or left * pace > len(self.helpers) * _WORTH_A_THREAD):
                wake(self)
            try:
                self.results[number] = self.calls[number]()
            except BaseException as error:  # noqa: BLE001 - raised in the other thread
                self.over.put((None, error))
            self.ended.append(None)
            if len(self.ended) == len(self.calls):
                self.over.put((None, None))


class _Waiters:
    """Threads that send requests and wait for answers. They run until the process ends."""

    def __init__(self) -> None:
        self.batches: SimpleQueue[_Batch] = SimpleQueue()
        self.asleep: list[None] = []
        self.size = 0

    def together(self, calls: Sequence[Callable[[], Any]], bucket: _Bucket) -> list[Any]:
        """Make calls to a bucket at the same time; return their results, or raise the error of one of them."""
        batch = _Batch(calls, bucket)
        self._wake(batch)
        threads.result(batch.over)
        return batch.results

    def _wake(self, batch: _Batch) -> None:
        self.batches.put(batch)
        try:
            self.asleep.pop()
        except IndexError:
            self._begin_thread()

    def _begin_thread(self) -> None:
        if self.size >= _MOST_THREADS:
            return
        self.size += 1
        try:
            threading.Thread(target=self._serve, name=f"b2array-ranges_{self.size}", daemon=True).start()
        except RuntimeError:
            # If no more threads can start, the existing threads make all calls.
            self.size -= 1
            if not self.size:
                raise

    def _serve(self) -> None:
        while True:
            batch = self.batches.get()
            batch.work(self._wake)
            del batch  # its results may be large
            self.asleep.append(None)


_waiters = _Waiters()


def _after_fork() -> None:
    global _waiters
    _waiters = _Waiters()
    # The parent may have used obstore, through this package or another one.
    _Process.works = _Process.works and "obstore" not in sys.modules


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)


_LONGEST_WAIT = 2.0
"""In seconds: how long the end of the program may wait for threads of obstore."""


def _let_answers_end() -> None:
    """Wait until no thread of obstore runs Python code.

    obstore passes an answer to asyncio in one of its threads. The program may go on, and end, while that thread waits
    for the interpreter. Before Python 3.14, the interpreter then ends the thread, and Rust ends the process with
    SIGABRT. `threading` does not know such a thread, but it has a Python frame until it has passed the answer.
    """
    if "obstore" not in sys.modules:
        return
    latest = time.monotonic() + _LONGEST_WAIT
    while time.monotonic() < latest:
        known = {thread.ident for thread in threading.enumerate()}
        if sys._current_frames().keys() <= known:
            return
        time.sleep(0.001)


# Functions that were registered later run earlier, and may still send requests.
atexit.register(_let_answers_end)
