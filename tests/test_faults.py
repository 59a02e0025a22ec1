"""What happens when something fails: every operation of a store in turn, in several ways, and full disks.

A change either happened or did not. If it raised, it did not, and works when it is repeated; else it did.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import blosc2
import fsspec
import numpy as np
import pytest
import system_calls
from fsspec.implementations.memory import MemoryFileSystem
from stories import ChunkStory, Contents, SnapshotStory, Story

import b2array
from b2array import config
from b2array.commit import draft as drafting
from b2array.commit import resize
from b2array.errors import B2ArrayError
from b2array.store.spool import Spool

LAYOUTS = ("contiguous", "sparse")

pytestmark = pytest.mark.filterwarnings("ignore:.*is rewritten with every change")
both_layouts = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(autouse=True)
def one_thread_and_no_cache():
    """Let operations come in the same order each time, and reads reach the store."""
    with config.using(threads=1, cache_bytes=0):
        yield


class Faults:
    """Counts operations, and lets one of them fail."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.inside = threading.local()
        self.arm(None)

    def arm(self, at: int | None, mode: str = "error") -> None:
        self.at, self.mode = at, mode
        self.names: list[str] = []
        self.fired = self.paused = False

    def run(self, name: str, verb: Callable[[], object]) -> object:
        """Call `verb`, unless it is its turn to fail. What it calls itself is part of it."""
        if self.paused or getattr(self.inside, "yes", False):
            return verb()
        with self.mutex:
            number = len(self.names)
            self.names.append(name)
        self.inside.yes = True
        try:
            return verb() if number != self.at else self._fail(verb)
        finally:
            self.inside.yes = False

    def _fail(self, verb: Callable[[], object]) -> object:
        self.fired = True
        half = getattr(verb, "half", None)
        if half is not None:  # a file may be cut anywhere
            half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.mode == "error":
            kinds = OSError(errno.EIO, "injected"), TimeoutError("injected"), PermissionError(errno.EACCES, "injected")
            raise kinds[len(self.names) % 3]
        result = verb()
        if self.mode == "lost":  # it has happened, but nobody says so
            raise ConnectionResetError(errno.ECONNRESET, "injected")
        if self.mode == "twice":  # a client that repeats a request whose answer was lost
            return verb()
        return result[: len(result) // 2] if isinstance(result, bytes) else result

    @contextmanager
    def pause(self) -> Iterator[None]:
        self.paused = True
        try:
            yield
        finally:
            self.paused = False


FAULTS = Faults()


class FaultyFileSystem(MemoryFileSystem):
    """A file system in memory of which every operation can fail."""

    protocol = "faulty"
    store: dict = {}  # noqa: RUF012 - as in its base
    pseudo_dirs = [""]  # noqa: RUF012


def faulty(name: str) -> Callable:
    original = getattr(MemoryFileSystem, name)

    def method(self, *args, **kwargs):
        return FAULTS.run(name, lambda: original(self, *args, **kwargs))

    return method


for name in ("cat_file", "pipe_file", "info", "rm_file", "ls"):
    setattr(FaultyFileSystem, name, faulty(name))


def told(story: Story) -> list[Contents]:
    """Do everything; returns what is found before the first step and after each."""
    states: list[Contents] = [None]
    for step in story.STEPS:
        getattr(story, step)()
        with FAULTS.pause():
            states.append(story.found())
    return states


def retold(story: Story, states: list[Contents]) -> None:
    """Do everything while something fails."""
    for step, before, after in zip(story.STEPS, states, states[1:], strict=False):
        failure, unharmed = None, FAULTS.fired
        try:
            getattr(story, step)()
        except (OSError, B2ArrayError) as error:
            failure = error
        assert FAULTS.fired or failure is None
        if FAULTS.fired == unharmed and step != story.STEPS[-1]:
            continue
        with FAULTS.pause():
            found = story.found()
        assert found == (after if failure is None else before), (step, failure)
        if failure is not None:
            getattr(story, step)()
            with FAULTS.pause():
                assert story.found() == after, step


STORIES = pytest.mark.parametrize("story", [Story, ChunkStory, SnapshotStory])
_places = itertools.count()


@pytest.mark.crossed
@both_layouts
@STORIES
@pytest.mark.parametrize("mode", ["error", "lost", "twice", "short"])
def test_each_operation_of_a_file_system_may_fail(monkeypatch, layout, story, mode, sampled):
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
    FAULTS.arm(None)
    states = told(story(f"faulty://{next(_places)}/a.b2nd", layout))
    count = len(FAULTS.names)
    assert count > 20
    for at in sampled(range(count), 12):
        FAULTS.arm(at, mode)
        retold(story(f"faulty://{next(_places)}/a.b2nd", layout), states)
        assert FAULTS.fired
    FaultyFileSystem.store.clear()


# ---- local files ----


@pytest.mark.crossed
@both_layouts
@STORIES
@pytest.mark.parametrize("durable", [False, True])
def test_each_call_of_the_system_may_fail(tmp_path, monkeypatch, layout, story, durable, sampled):
    system_calls.listen(FAULTS.run, monkeypatch)
    with config.using(durable=durable):
        FAULTS.arm(None)
        # As deep as the places below, because each directory above a file is opened.
        (tmp_path / "told").mkdir()
        states = told(story(str(tmp_path / "told" / "a.b2nd"), layout))
        names = FAULTS.names
        assert {"open", "link", "write"} <= {*names}
        assert ("fsync" in names) == durable
        for at, name in sampled([*enumerate(names)], 12):
            if durable and name != "fsync" and at % 5:
                continue  # as without
            FAULTS.arm(at)
            place = tmp_path / str(at) / "a.b2nd"
            place.parent.mkdir()
            if durable and name in ("fsync", "open"):  # of a directory, to have it on the disk
                survived(story(str(place), layout), states, must_fail=name == "fsync")
            else:
                retold(story(str(place), layout), states)
            assert FAULTS.fired
            assert FAULTS.names[at] == name


def survived(story: Story, states: list[Contents], *, must_fail: bool) -> None:
    """Do everything while the disk may not have taken something, so that nobody knows what will be there."""
    for step, before, after in zip(story.STEPS, states, states[1:], strict=False):
        failure = None
        try:
            getattr(story, step)()
        except OSError as error:
            failure = error
        with FAULTS.pause():
            found = story.found()
            assert found == after or (failure is not None and found == before), step
        if failure is not None:
            return
    # Another run may make fewer calls, or others in between: then another call has failed, or none.
    assert not (must_fail and FAULTS.fired and FAULTS.names[FAULTS.at] == "fsync")


# ---- full disks ----


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else path.rglob("*")
    return {file.name: file.read_bytes() for file in files if file.suffix != ".b2lock"}


NOISE = np.random.default_rng(1).integers(0, 2**62, (20, 1000))


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
@both_layouts
@pytest.mark.parametrize("spooled", [False, True])
def test_a_disk_that_is_full_leaves_the_files_as_they_were(tmp_path, monkeypatch, layout, spooled):
    if spooled:  # to a file, as when there is much to write
        monkeypatch.setattr(drafting, "Spool", lambda path, **options: Spool(path, **options | {"limit": 1000}))
    path = tmp_path / "a.b2nd"
    old = NOISE[::-1].copy()
    a = b2array.asarray(old, url=path, layout=layout, chunks=(5, 1000), blocks=(5, 500))
    before, nbytes = contents(path), sum(map(len, contents(path).values()))
    # A file of new chunks replaces the old one, what was in memory goes behind the old chunks.
    largest = 0.26 if layout == "sparse" else 1 if spooled else 2
    limits = np.linspace(100, nbytes * largest, 14).astype(int).tolist()
    failed = 0
    for limit in limits:
        try:
            with files_of_at_most(limit):
                a[...] = NOISE
        except OSError as error:
            assert error.errno in (errno.EFBIG, errno.ENOSPC)  # noqa: PT017 - it need not come
            failed += 1
            assert contents(path) == before
            assert np.array_equal(a[...], old)
            assert np.array_equal(b2array.open(path)[...], old)
            assert np.array_equal(blosc2.open(str(path))[...], old)
    assert failed > 8
    a[...] = NOISE
    assert np.array_equal(b2array.open(path)[...], NOISE)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
@both_layouts
@pytest.mark.parametrize("place", ["alone", "in a group"])
def test_a_new_array_for_which_there_is_no_room_leaves_nothing(tmp_path, layout, place):
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    options = {"layout": layout, "chunks": (5, 1000), "blocks": (5, 500)}

    def make():
        if place == "alone":
            return b2array.asarray(NOISE, url=tmp_path / "a.b2nd", **options)
        return group.create("a", data=NOISE, **options)

    before = sorted(tmp_path.rglob("*"))
    with files_of_at_most(30_000), pytest.raises(OSError, match=r"too large|No space"):
        make()
    assert [path for path in sorted(tmp_path.rglob("*")) if path.suffix != ".b2lock"] == before
    assert np.array_equal(make()[...], NOISE)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
def test_an_empty_directory_that_was_there_stays(tmp_path):
    (tmp_path / "a.b2nd").mkdir()
    with files_of_at_most(30_000), pytest.raises(OSError, match=r"too large|No space"):
        b2array.asarray(NOISE, url=tmp_path / "a.b2nd", layout="sparse", chunks=(5, 1000))
    assert [*tmp_path.iterdir()] == [tmp_path / "a.b2nd"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
@both_layouts
@pytest.mark.parametrize("first", [0, 5, 10])
def test_a_transaction_goes_on_after_the_disk_was_full(tmp_path, monkeypatch, layout, first):
    monkeypatch.setattr(drafting, "Spool", lambda path, **options: Spool(path, **options | {"limit": 60_000}))
    path = tmp_path / "a.b2nd"
    a = b2array.asarray(NOISE[::-1].copy(), url=path, layout=layout, chunks=(5, 1000), blocks=(5, 500))
    with a.transaction():
        a[:first] = NOISE[:first]
        with files_of_at_most(30_000), pytest.raises(OSError, match=r"too large|No space"):
            a[...] = -NOISE
        assert np.array_equal(a[...], [*NOISE[:first], *NOISE[::-1][first:]])
        a[...] = NOISE
    for found in (a, b2array.open(path), blosc2.open(str(path))):
        assert np.array_equal(found[...], NOISE)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
@both_layouts
@pytest.mark.parametrize("spooled", [False, True])
def test_a_new_array_that_finds_no_room_is_not_there(tmp_path, monkeypatch, layout, spooled):
    if spooled:
        monkeypatch.setattr(drafting, "Spool", lambda path, **options: Spool(path, **options | {"limit": 1000}))
    for limit in (0, 100, 1000, 30_000):
        with files_of_at_most(limit), pytest.raises(OSError, match=r"too large|No space"):
            b2array.asarray(NOISE, url=tmp_path / "a.b2nd", layout=layout, chunks=(5, 1000), blocks=(5, 500))
        assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    a = b2array.asarray(NOISE, url=tmp_path / "a.b2nd", layout=layout, chunks=(5, 1000), blocks=(5, 500))
    assert np.array_equal(a[...], NOISE)


def test_an_appender_keeps_the_steps_of_an_append_that_failed(monkeypatch):
    a = b2array.zeros((0, 2), "i8", chunks=(8, 2))
    append = resize.append
    failures: list[int] = []

    def sometimes(*args):
        if failures:
            raise OSError(errno.ENOSPC, f"No space left on device {failures.pop()}")
        return append(*args)

    monkeypatch.setattr(resize, "append", sometimes)
    for every in (None, 3, 20):
        failures.append(1)
        failed, start = [], len(a)
        with a.appender(every=every) as out:
            for step in range(40):
                try:
                    out.append([step, step])
                except OSError:
                    failed.append(step)
        assert len(failed) == 1
        assert a[start:, 0].tolist() == list(range(40))


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
def test_a_bloscpack_file_is_given_up_after_a_write_that_failed(tmp_path):
    parts = np.random.default_rng(0).integers(0, 256, (8, 300_000), np.uint8)
    with (
        pytest.raises(ValueError, match="an earlier write failed"),
        b2array.bloscpack.create(tmp_path / "a.blp", chunk_size=100_000) as writer,
    ):
        writer.write(parts[0])
        with files_of_at_most(450_000), pytest.raises(OSError, match=r"too large|No space"):
            writer.write(parts[1])
        with pytest.raises(ValueError, match="an earlier write failed"):
            writer.write(parts[1])
    with files_of_at_most(10), pytest.raises(OSError, match=r"too large|No space"):
        b2array.bloscpack.pack(parts[0].tobytes(), tmp_path / "b.blp")
    assert list(tmp_path.iterdir()) == []
