"""Ctrl-C at any moment of what a store does in several threads: nothing goes on, and no lock stays taken."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import pytest
from fsspec.asyn import get_loop
from interrupts import interrupted, works

from b2array.store import upload
from b2array.store.cloud import CloudStore
from b2array.store.open import open_store
from b2array.store.remote import CachingStore
from b2array.store.spans import Span

# fsspec was interrupted before it could send a request.
pytestmark = pytest.mark.filterwarnings("ignore:.*was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Let what an interrupt has left go here, and not in another test, which expects no warning."""
    yield
    gc.collect()


def interrupt(action: Callable[[], object], moment: int) -> int:
    """Raise KeyboardInterrupt where Python looks for signals; return how many such moments there were.

    At the beginning of a generator's step it would leave the generator without a `finally`; a signal does not. Where
    `threading` starts a thread, it would leave that half begun, for the tests that count threads.
    """

    def counts(frame: FrameType, event: str) -> bool:
        return (event == "c_return" or not frame.f_code.co_flags & inspect.CO_GENERATOR) and not is_starting(frame)

    _, passed = interrupted(action, moment, counts)
    assert not [thread for thread in threading.enumerate() if "initial" in repr(thread)]
    return passed


def is_starting(frame: FrameType | None) -> bool:
    """Whether a frame belongs to the start of a thread."""
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        if frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


class Log:
    """What is under way, and what has happened."""

    def __init__(self, delay: float = 0.001) -> None:
        self.delay = delay
        self.lock, self.under_way, self.most, self.events = threading.Lock(), 0, 0, list[object]()

    def __enter__(self) -> None:
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.events.append("part")

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.under_way -= 1


class Bucket:
    """As much of a file system as a store needs to write."""

    loop = get_loop()

    def invalidate_cache(self, _path):
        pass

    def _parent(self, path):
        return path


class FakeCloud(CloudStore):
    """A cloud without requests for reading."""

    def __init__(self, log, uploads):
        super().__init__("memory://bucket/object", {})
        self.log, self.uploads = log, uploads

    def _connect(self):
        return Bucket(), "bucket/object"

    async def _ask(self, fs, path):
        raise FileNotFoundError(path)

    _get = _send = _remove = None

    async def _begin(self, fs, path, expected):
        await asyncio.sleep(self.log.delay)
        self.log.events.append("begin")

    async def _send_part(self, fs, path, begun, part):
        with self.log:
            await asyncio.sleep(self.log.delay)  # a request under way
        return part.number

    async def _finish(self, fs, path, begun, sent, expected):
        self.log.events.append(sent)
        return "1"

    async def _abort(self, fs, path, begun):
        self.log.events.append("abort")


FakeCloud.__abstractmethods__ = frozenset()


@pytest.fixture
def _small_parts(monkeypatch):
    monkeypatch.setattr(upload, "PART", 10)
    monkeypatch.setattr(upload, "WHOLE", 10)


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("uploads", [1, 3])
def test_an_interrupted_upload_sends_no_part_afterwards(uploads, sampled):
    log = Log(0.04)
    moments = interrupt(lambda: FakeCloud(log, uploads).create("", iter([bytes(65)])), -1)
    assert (log.events, log.most) == (["begin", *["part"] * 7, [*range(7)]], uploads)
    for moment in sampled(range(1, moments + 1), 24):
        log = Log()
        interrupt(lambda: FakeCloud(log, uploads).create("", iter([bytes(65)])), moment)  # noqa: B023
        assert log.under_way == 0
        if "begin" in log.events and [*range(7)] not in log.events:
            assert log.events[-1] == "abort"
        events = [*log.events]
        assert works(lambda: FakeCloud(Log(), uploads).create("", iter([bytes(15)])))
        assert log.events == events


class FakeCache(CachingStore):
    """A cache of objects that contain their names."""

    def __init__(self, log):
        super().__init__("simplecache::memory://x", {})
        self.log = log

    def _read_copy(self, spans):
        with self.log:
            time.sleep(self.log.delay)
        return [(span.name.encode(), None) for span in spans]


@pytest.mark.parametrize("names", ["a", "abcde"])
def test_an_interrupted_reader_fills_no_file_of_a_cache_afterwards(names, sampled):
    spans = [Span(name, 0, 1) for name in names]
    log, found = Log(0.3), []
    moments = interrupt(lambda: found.extend(FakeCache(log).read(spans)), -1)
    assert [bytes(view).decode() for view in found] == [*names]
    assert log.most == len(names)
    for moment in sampled(range(1, moments + 1), 24):
        log = Log()
        interrupt(lambda: FakeCache(log).read(spans), moment)  # noqa: B023
        assert log.under_way == 0
        count = log.events.count("part")
        assert works(lambda: FakeCache(Log()).read(spans))
        assert log.events.count("part") == count


@pytest.mark.parametrize("verb", ["listing", "stamp", "walk"])
def test_an_interrupted_request_leaves_the_loop_of_all_clients_running(bucket, s3_options, verb):
    store = open_store(f"s3://{bucket}/a", storage_options=s3_options)
    for name in ("", "b"):
        store.create(name, b"content")
    ask = partial(getattr(store, verb), *["b"] * (verb == "stamp"))
    expected = ask()
    for moment in range(1, interrupt(ask, -1) + 1, 2):
        interrupt(ask, moment)
        assert works(lambda: store.stamp("b")), moment
    assert ask() == expected
    gc.collect()  # what was interrupted complains here, and not in another test
