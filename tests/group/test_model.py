"""Many writers and readers of one group, in processes and threads, killed and stopped: a random model of it."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import group_model
import numpy as np
import pytest
import system_calls
from clouds import KINDS, Cloud, Request
from group_model import (
    CALLS,
    FOCUSES,
    MOUNT,
    NAMES,
    OPERATIONS,
    PLAIN,
    Change,
    Fate,
    History,
    Look,
    Repeat,
    Settings,
    check,
    let_begin,
    read_history,
    rows_of,
)
from operations import Killed, compare

import b2array
from b2array import config, open_group
from b2array.store import base
from b2array.store.local_store import LocalStore
from b2array.store.open import open_store
from b2array.xarray_io import to_b2array

PROGRAM = group_model.__file__
PACKAGES = os.pathsep.join([str(Path(b2array.__file__).parents[1]), str(Path(PROGRAM).parent)])


@pytest.fixture(autouse=True)
def _uncached() -> Iterator[None]:
    with config.using(cache_bytes=0, disk_cache=None), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*rewritten with every change")
        yield
    fsspec.filesystem("memory").store.clear()


class Crowd:
    """Processes that write and read one group. Some of the writers are killed, some are stopped for a while."""

    def __init__(self, settings: Settings, chance: random.Random) -> None:
        self.settings, self.chance = settings, chance
        self.serial = self.kills = self.stops = 0

    def begin(self, nursery: subprocess.Popen[str], *, reads: bool = False) -> int:
        self.serial += 1
        told = json.dumps({**asdict(self.settings), "serial": self.serial, "reads": reads})
        print(told, file=nursery.stdin, flush=True)
        return int(nursery.stdout.readline())

    def run(self, seconds: float, writers: int, readers: int) -> None:
        command = [
            sys.executable,
            PROGRAM,
            self.settings.url.partition("://")[0] if "://" in self.settings.url else "file",
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, "PYTHONPATH": PACKAGES}}
        with subprocess.Popen(command, text=True, **pipes) as nursery:
            crowd = [self.begin(nursery, reads=n >= writers) for n in range(writers + readers)]
            stop = let_begin(self.settings, seconds, len(crowd) * self.settings.threads)
            while time.monotonic() < stop - 0.5:
                # A client of an object store takes its time to begin.
                time.sleep(self.chance.uniform(0.1, 0.6) if self.settings.is_local else self.chance.uniform(1, 4))
                self.disturb(nursery, crowd, writers)
            nursery.stdin.close()
            # On a busy machine, the last commits try again and again.
            assert nursery.wait(300) == 0

    def disturb(self, nursery: subprocess.Popen[str], crowd: list[int], writers: int) -> None:
        n = self.chance.randrange(writers)
        if self.chance.random() < 0.5:
            os.kill(crowd[n], signal.SIGKILL)
            crowd[n] = self.begin(nursery)
            self.kills += 1
        else:
            os.kill(crowd[n], signal.SIGSTOP)
            time.sleep(self.chance.uniform(0, 0.2))
            os.kill(crowd[n], signal.SIGCONT)
            self.stops += 1


class Play:
    """A group, the journals of its workers, and what is checked at the end."""

    def __init__(self, url: str, journal: Path, options: dict[str, Any], *, is_local: bool) -> None:
        self.url, self.options, self.is_local = url, options, is_local
        self.journal = journal / "journals"
        self.journal.mkdir()
        self.first = [Change(PLAIN, "set", 1, 0, outcome="ok", seen=0)]
        self.parts = ["", MOUNT]
        self.make_mount()
        first = self.first[0]
        # An array that is there before the group, which the first change of the group to it adopts.
        b2array.asarray(
            np.full((3, 3), first.value),
            url=f"{url}/{PLAIN}.b2nd",
            chunks=(2, 2),
            layout="sparse",
            storage_options=options,
        )
        open_group(url, "a", storage_options=options)
        new = group_model.dataset(7, is_new=True)
        encoding = {name: {"chunks": (1, 2), "layout": "sparse"} for name in "uv"}
        to_b2array(
            new, url, mode="a", group=group_model.DATASET, encoding=encoding, storage_options=options, interop=True
        )

    def make_mount(self) -> None:
        """Make a group with a manifest where the outer one will be around it. Only on local disks it shows there."""
        first = Change(f"{MOUNT}{PLAIN}", "set", 1, 0, outcome="ok", seen=0)
        with open_group(f"{self.url}/{MOUNT}", "w", storage_options=self.options).transaction() as changes:
            changes.create(PLAIN, data=np.full((3, 3), first.value), chunks=(2, 2))
        self.first.append(first)

    def settings(self, seed: int, layout: str, threads: int, *, swaps: bool = True) -> Settings:
        return Settings(
            self.url,
            str(self.journal),
            str(seed),
            0,
            layout,
            is_local=self.is_local,
            threads=threads,
            swaps=swaps,
            # Half of the runs read through a cache on disk that all processes share.
            disk_cache=None if self.is_local or seed % 2 else str(self.journal.parent / "cache"),
            options=self.options,
        )

    def look(self, history: History, mode: Any = "r") -> dict[str, list[int] | None]:
        found: dict[str, list[int] | None] = {}
        for part in self.parts:
            # On local disks, the outer group shows the members of the inner one.
            within = part if "://" in self.url else ""
            group = open_group(f"{self.url}/{within}", mode, storage_options=self.options)
            for name in (part + name for name in NAMES):
                begin, inner = time.monotonic(), name.removeprefix(within)
                found[name] = rows_of(group[inner]) if inner in group else None
                history.looks.append(Look(name, found[name], begin, time.monotonic()))
        return found

    def check_kept(self) -> list[tuple[str, str]]:
        """Check the snapshots and the dataset; return the names of the snapshots."""
        names = []
        for part in self.parts:
            url = f"{self.url}/{part}".removesuffix("/")
            for entry in open_group(url, storage_options=self.options).snapshots:
                then = open_group(url, at=entry.name, storage_options=self.options)
                found = {name: rows_of(then[name]) for name in NAMES if name in then}
                group_model.compare_with_message(entry.message, found)
                names.append((part, entry.name))
        variables = open_group(self.url, storage_options=self.options)[group_model.DATASET]
        length = variables["time"].shape[0]
        group_model.compare_variables(rows_of(variables["u"]), rows_of(variables["v"]), length)
        return names

    def look_by_urls(self) -> dict[str, list[int] | None]:
        """Look at the members by their URLs, when nothing is left to be published."""
        found: dict[str, list[int] | None] = {}
        for name in group_model.ALL_NAMES:
            found[name] = None
            with suppress(FileNotFoundError):
                found[name] = rows_of(b2array.open(f"{self.url}/{name}.b2nd", storage_options=self.options))
        return found

    def end(self, *, is_small: bool, **counts: Any) -> None:
        """Check all that was seen, and what is there now."""
        history = read_history(self.journal)
        group_model.print_counts(history, **counts)
        history.changes += self.first
        found = self.look(history)
        assert self.look(history, "r+") == found
        kept = self.check_kept()
        b2array.vacuum(self.url, grace=0, storage_options=self.options)
        assert self.look(history) == found
        if not (self.url.startswith("memory:") and open_store(self.url).can.lock):  # see `Writer.begin_group`
            assert self.look_by_urls() == found
        assert self.check_kept() == kept
        wrong = check(history)
        assert not wrong, f"{len(wrong)} contradictions, the first:\n" + "\n".join(wrong[:5])
        for part in self.parts:
            assert found[f"{part}a"] == found[f"{part}b"]
        for part in self.parts:
            report = b2array.verify(f"{self.url}/{part}", deep=True, storage_options=self.options)
            assert report.ok, report
        # A few writers who do a few things may all be refused in a short run.
        assert any(what.endswith((" ok", " refused", " unknown") if is_small else " ok") for what in history.counts)
        assert history.looks


SIZES = [
    pytest.param((1, 3, 1, 1), id="short"),
    pytest.param((4, 12, 4, 2), id="long", marks=[pytest.mark.slow, pytest.mark.timeout(0)]),
]
"""Seconds, processes that write, processes that read, threads of each."""


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> tuple[float, int, int, int]:
    seconds, *counts = request.param
    return (pytestconfig.getoption("--groups") or seconds, *counts)


def play_in_processes(play: Play, settings: Settings, seconds: float, writers: int, readers: int) -> None:
    crowd = Crowd(settings, random.Random(settings.seed))
    crowd.run(seconds, writers, readers)
    play.end(is_small=bool(settings.verbs), kills=crowd.kills, stops=crowd.stops)


def play_in_threads(
    play: Play, settings: Settings, seconds: float, writers: int, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_model.listen(settings, monkeypatch)
    crowd = [replace(settings, serial=n, reads=n > writers) for n in range(1, writers + readers + 1)]
    threads = [threading.Thread(target=group_model.work, args=[each]) for each in crowd]
    for thread in threads:
        thread.start()
    let_begin(settings, seconds, len(threads))
    for thread in threads:
        thread.join()
    play.end(is_small=bool(settings.verbs))


def begin_in_cloud(tmp_path: Path, cloud: Cloud, seed: int, layout: str, threads: int) -> tuple[Play, Settings]:
    """Make a group on a server, which gives strange answers to writers."""
    bucket = cloud.make_bucket(f"model-{uuid4()}")
    play = Play(f"{bucket}/g.b2d", tmp_path, cloud.options, is_local=False)
    return play, replace(play.settings(seed, layout, threads), chance=0.6, cloud=asdict(cloud))


def begin_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_locks: bool) -> Play:
    """Make a group in memory, which behaves as an object store unless it has locks."""
    url = f"memory://{tmp_path.name}.b2d"
    if not has_locks:
        compare(type(open_store(url)), monkeypatch)
        monkeypatch.setattr(base, "_LONGEST_PAUSE", 0.01)
    return Play(url, tmp_path, {}, is_local=True)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops no processes")
@pytest.mark.parametrize(
    "layout", ["any", *(pytest.param(each, marks=pytest.mark.slow) for each in ("contiguous", "sparse"))]
)
def test_a_group_in_files_shows_what_was_committed(
    tmp_path: Path, layout: str, size: tuple[float, int, int, int], seed: int
) -> None:
    seconds, writers, readers, threads = size
    play = Play(str(tmp_path / "g.b2d"), tmp_path, {}, is_local=True)
    play_in_processes(play, play.settings(seed, layout, threads), seconds, writers, readers)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops no processes")
@pytest.mark.slow
def test_a_group_in_files_whose_names_cannot_be_swapped_shows_what_was_committed(
    tmp_path: Path, size: tuple[float, int, int, int], seed: int
) -> None:
    seconds, writers, readers, threads = size
    play = Play(str(tmp_path / "g.b2d"), tmp_path, {}, is_local=True)
    play_in_processes(play, play.settings(seed, "any", threads, swaps=False), seconds, writers, readers)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_a_group_in_an_object_store_shows_what_was_committed(
    tmp_path: Path,
    kind: str,
    layout: str,
    size: tuple[float, int, int, int],
    seed: int,
    cloud_of: Callable[[str], Cloud],
) -> None:
    seconds, writers, readers, threads = size
    play, settings = begin_in_cloud(tmp_path, cloud_of(kind), seed, layout, threads)
    play_in_processes(play, settings, seconds, writers, readers)


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["contiguous", pytest.param("sparse", marks=pytest.mark.slow)])
@pytest.mark.parametrize("has_locks", [True, False], ids=["memory", "as a server"])
def test_a_group_in_memory_shows_what_was_committed(
    tmp_path: Path,
    layout: str,
    has_locks: bool,
    size: tuple[float, int, int, int],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In memory, and in memory that behaves as an object store, where much more happens than on a server."""
    seconds, writers, readers, _ = size
    play = begin_in_memory(tmp_path, monkeypatch, has_locks=has_locks)
    # There are twice as many of these tests.
    play_in_threads(play, play.settings(seed, layout, 1), seconds / 2, writers, readers, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("place", "focus"),
    [
        ("files", "first commits"),
        ("files that cannot be swapped", "first commits"),
        ("memory", "first commits"),
        ("as a server", "first commits"),
        ("gcs", "first commits"),
        ("azure", "first commits"),
        ("files", "tasks"),
        ("as a server", "tasks"),
        ("files", "other groups"),
        ("files", "members"),
        ("as a server", "members"),
        ("gcs", "members"),
        ("azure", "members"),
    ],
)
def test_writers_who_do_a_few_things_show_what_was_committed(
    tmp_path: Path,
    place: str,
    focus: str,
    seed: int,
    cloud_of: Callable[[str], Cloud],
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    """What several rare events have to come together for comes often if nothing else is done."""
    seconds, writers, readers = pytestconfig.getoption("--groups") or 1, 3, 1
    verbs = FOCUSES[focus]
    if place in ("memory", "as a server"):
        play = begin_in_memory(tmp_path, monkeypatch, has_locks=place == "memory")
        # In memory, a name is an object or has objects below it, but not both as in a bucket.
        layout = ["contiguous", "sparse"][seed % 2]
        settings = replace(play.settings(seed, layout, 1), verbs=verbs)
        play_in_threads(play, settings, seconds, writers, readers, monkeypatch)
    elif place in KINDS:
        play, settings = begin_in_cloud(tmp_path, cloud_of(place), seed, "any", 1)
        play_in_processes(play, replace(settings, verbs=verbs), seconds, writers, readers)
    else:
        play = Play(str(tmp_path / "g.b2d"), tmp_path, {}, is_local=True)
        settings = replace(play.settings(seed, "any", 1, swaps=place == "files"), verbs=verbs, chance=0.6)
        play_in_processes(play, settings, seconds, writers, readers)


# The checker finds what cannot be.


def made(value: int, begin: float, end: float, kind: str = "set", **more: Any) -> Change:
    return Change("c", kind, value, begin, **{"outcome": "ok", "seen": end, **more})


def contradictions(changes: list[Change], *looks: tuple[list[int] | None, float, float]) -> list[str]:
    return check(History(changes, [Look("c", rows, begin, end) for rows, begin, end in looks]))


FIRST = made(1, 0, 1)


@pytest.mark.parametrize(
    ("changes", "look", "problem"),
    [
        ([], [7], "nobody wrote it"),
        ([made(2, 2, 3, outcome="refused")], [2], "nothing has happened"),
        ([made(2, 12, 13)], [2], "had not begun"),
        ([made(2, 2, 3)], [1], "has replaced"),
        ([made(2, 2, 3, "delete")], [1], "has replaced"),
        ([made(2, 2, 3, "append")], [1], "has appended"),
        ([made(2, 2, 3, "append"), made(3, 4, 5)], [3, 2], "has replaced"),
        ([made(2, 2, 3, "append")], [1, 2, 2], "appended twice"),
        ([made(2, 2, 3, "append")], [2], "was made or filled"),
        ([made(2, 2, 3)], [1, 2], "begins with"),
        ([made(2, 2, 3, "carried", before=[8, 9])], [8, 7, 2], "begins with"),
        ([made(2, 2, 3, "delete"), made(3, 4, 5)], None, "expected an array"),
        ([], None, "expected an array"),
    ],
)
def test_the_checker_finds_looks_that_cannot_be(changes: list[Change], look: list[int] | None, problem: str) -> None:
    (found, *_) = contradictions([FIRST, *changes], (look, 10, 11))
    assert problem in found


@pytest.mark.parametrize(
    ("changes", "look"),
    [
        ([], [1, 1]),
        ([made(2, 2, 20)], [1]),
        ([made(2, 2, 20)], [2]),
        ([made(2, 2, 3, "append"), made(3, 4, 5, "append")], [1, 2, 3]),
        ([made(2, 2, 3, "append"), made(3, 2, 5)], [3, 3, 2]),
        ([made(2, 2, float("inf"), outcome="unknown")], [1]),
        ([made(2, 2, float("inf"), "delete", outcome="unknown")], None),
        ([made(2, 2, 3, "carried", before=[8, 9])], [8, 9, 2]),
    ],
)
def test_the_checker_lets_looks_pass_that_can_be(changes: list[Change], look: list[int] | None) -> None:
    assert contradictions([FIRST, *changes], (look, 10, 11)) == []


@pytest.mark.parametrize(
    ("others", "is_wrong"),
    [
        ([], True),
        ([made(3, 5, 6)], True),
        ([made(3, 5, 6, "append"), made(4, 7, 8, "delete", outcome="refused")], True),
        ([made(3, 5, 6, "make")], False),
        ([made(3, 5, 6, "delete")], False),
        ([made(value, 5, 6) for value in range(10, 10 + group_model.REMEMBERED)], False),
    ],
)
def test_the_checker_finds_tasks_that_were_refused_after_their_commit(others: list[Change], is_wrong: bool) -> None:
    own = made(2, 2, 4)
    refused = History([FIRST, own, *others], repeats=[Repeat("c", 2, "ConflictError", 9)])
    assert bool(check(refused)) == is_wrong
    found = History([FIRST, own, *others], repeats=[Repeat("c", 2, "", 9)])
    assert check(found) == []


def test_the_checker_finds_tasks_that_write_once_more() -> None:
    (found,) = contradictions([FIRST, made(2, 2, 4), made(3, 5, 6)], ([2], 10, 11))
    assert "has replaced" in found


def test_the_checker_counts_a_change_of_a_killed_writer_from_when_it_was_seen() -> None:
    unknown = made(2, 2, float("inf"), outcome="unknown")
    assert contradictions([FIRST, unknown], ([1], 3, 4), ([2], 5, 6), ([2], 7, 8)) == []
    unknown = made(2, 2, float("inf"), outcome="unknown")
    (found,) = contradictions([made(1, 0, 1), unknown], ([2], 5, 6), ([1], 7, 8))
    assert "has replaced" in found


def test_a_fate_finds_that_ctrl_c_was_swallowed() -> None:
    def swallow() -> None:
        with suppress(KeyboardInterrupt):
            OPERATIONS.run("replace", lambda: None)

    with pytest.raises(AssertionError, match="expected that Ctrl-C reaches the user, found None"):
        Fate("interrupted", 0).watch(swallow)


def test_a_server_loses_an_answer_and_then_refuses_some_reads() -> None:
    asked = ["GET x", "PUT a", "DELETE a", "PUT b", "PUT c", "GET c", "HEAD c", "GET c", "PUT d"]
    requests = [Request(each) for each in asked]
    for request in requests:
        request.has_condition = request.startswith("PUT")
    fate = Fate("silent", 2, silence=2, answer="lost")
    assert [fate.judge(0, each) for each in requests] == [None, None, None, None, "lost", 403, 403, None, None]


@pytest.mark.parametrize(("kind", "left"), [("failed", ["b"]), ("full", [])])
def test_a_disk_fails_once_or_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, left: list[str]
) -> None:
    system_calls.listen(CALLS.run, monkeypatch)
    store, errors = LocalStore(tmp_path), []

    def task() -> None:
        for name in "ab":
            try:
                store.create(name, b"content")
            except OSError as error:
                errors.append(error.errno)

    Fate(kind, 1, number=errno.EDQUOT).watch(task)
    assert store.walk() == left
    assert errors == [errno.EDQUOT] * (2 - len(left))


def test_a_writer_that_is_killed_changes_nothing_more() -> None:
    done = []

    def task() -> None:
        try:
            for name in ("create", "replace"):
                OPERATIONS.run(name, lambda: done.append(name))  # noqa: B023
        finally:
            OPERATIONS.run("delete", lambda: done.append("delete"))

    with pytest.raises(Killed):
        Fate("killed", 1).watch(task)
    assert done == ["create"]


def test_the_checker_finds_what_a_move_has_lost() -> None:
    lost = Change("sub/d", "append", 2, 3, outcome="ok", seen=4)
    source = Change("sub/d", "set", 5, 0, outcome="ok", seen=1)
    (found,) = contradictions([source, lost, made(3, 2, 6, "carried", before=[5], source="sub/d")])
    assert "lost" in found
