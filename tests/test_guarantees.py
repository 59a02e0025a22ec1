"""Each line of the table of guarantees in the documentation, tried out; the pages below it name tests that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import b2array
from b2array import config
from b2array.catalog import owners
from b2array.commit import write
from b2array.commit.handle import Handle
from b2array.errors import ConflictError, ReadOnlyError
from b2array.store.base import Store, durability
from b2array.store.cloud import CloudStore
from b2array.store.local_store import LocalStore
from b2array.store.memory import MemoryStore
from b2array.store.remote import FsspecStore
from b2array.store.shared_memory import SharedMemoryStore

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
FRONT = (DOCS / "guarantees.rst").read_text(encoding="utf-8")
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((DOCS / "guarantees").glob("*.rst"))}
COLUMNS = ("place", "written", "atomic", "concurrent", "relies", "page")
CLOUDS = {"``s3://``": "s3", "``gs://``": "gcs", "``az://``": "azure"}
OPTIONS = {"chunks": (1, 50), "blocks": (1, 25)}

pytestmark = pytest.mark.filterwarnings("ignore:.*is rewritten with every change")


def rows() -> dict[str, dict[str, str]]:
    """Read the table; a row about several clouds counts as one for each of them."""
    table = FRONT.partition("* - Where the array is")[2].partition("\n\n")[0]
    found = {}
    for row in table.split("\n   * ")[1:]:
        cells = dict(zip(COLUMNS, re.findall(r"- (.*)", row), strict=True))
        protocols, colon, layout = cells["place"].partition(": ")
        places = [f"{protocol}: {layout}" for protocol in protocols.split(", ")] if colon else [cells["place"]]
        found |= dict.fromkeys(places, cells)
    return found


TEXT = "".join([FRONT, *PAGES.values()])


def named_tests() -> list[tuple[str, str]]:
    """Find the tests that the pages name: their files and their names."""
    return re.findall(r"``([a-z0-9_/]+\.py)::(test_\w+)(?:\[\w+\])?``", TEXT)


def test_the_pages_name_no_test_without_its_file():
    assert len(named_tests()) > 200
    assert {name for _, name in named_tests()} == set(re.findall(r"\btest_\w+\b(?!\.py)", TEXT))


@pytest.mark.parametrize(("file", "name"), named_tests())
def test_the_pages_name_tests_that_exist(file, name):
    assert f"\ndef {name}(" in (TESTS / file).read_text(encoding="utf-8")


TABLE = rows()
WRITTEN = [place for place, row in TABLE.items() if row["written"] != "no"]
READ_ONLY = [place for place in TABLE if place not in WRITTEN]


class OtherFileSystem(MemoryFileSystem):
    """A protocol of which nothing special is known."""

    protocol = "other"
    store: dict = {}  # noqa: RUF012 - as in its base
    pseudo_dirs = [""]  # noqa: RUF012


@pytest.fixture(autouse=True)
def uncached():
    fsspec.register_implementation("other", OtherFileSystem, clobber=True)
    with config.using(cache_bytes=0):
        yield


def make(place: str, request, tmp_path) -> tuple[b2array.NDArray, dict]:
    """Make an array of zeros at a place; returns a handle for writing and how to open another one."""
    protocol, _, way = place.partition(": ")
    if protocol in CLOUDS:
        cloud = request.getfixturevalue("cloud_of")(CLOUDS[protocol])
        bucket = cloud.make_bucket(next(request.getfixturevalue("_bucket_names")))
        layout = {"a directory": "auto", "one file": "contiguous"}[way]
        place_ = {"url": f"{bucket}/a.b2nd", "storage_options": cloud.options}
        return b2array.zeros((4, 50), layout=layout, **place_, **OPTIONS), place_
    url, layout = {
        "a local file": (str(tmp_path / "a.b2nd"), "contiguous"),
        "a local directory": (str(tmp_path / "a.b2nd"), "sparse"),
        "in memory, without a URL": (None, "auto"),
        "``memory://``": (f"memory://{tmp_path.name}/a.b2nd", "auto"),
        "other protocols of fsspec": (f"other://{tmp_path.name}/a.b2nd", "auto"),
    }[place]
    a = b2array.zeros((4, 50), url=url, layout=layout, **OPTIONS)
    return a, {"url": url, "storage_options": {}}


def handle(a: b2array.NDArray, place: dict, mode: str = "r") -> b2array.NDArray:
    if place["url"] is not None:
        return b2array.open(place["url"], mode=mode, storage_options=place["storage_options"])
    return b2array.NDArray(Handle(owners.load(a._handle.store), mode))


def test_the_table_has_a_line_for_every_kind_of_store_and_names_its_page():
    assert len(TABLE) == 14
    assert {row["relies"] for row in TABLE.values()} == {"lock", "compare-and-swap", "read only", "single writer"}
    assert set(READ_ONLY) == {place for place, row in TABLE.items() if row["relies"] == "read only"}
    pages = {row["page"].removeprefix(":doc:`guarantees/").removesuffix("`") for row in TABLE.values()}
    assert pages == {"local-disks", "object-stores", "http", "archives", "memory"}
    assert pages <= PAGES.keys()


@pytest.mark.parametrize("place", WRITTEN)
def test_a_handle_says_what_its_commits_rely_on(request, tmp_path, place):
    a, _ = make(place, request, tmp_path)
    assert a.info["commits"] == TABLE[place]["relies"]


@pytest.mark.parametrize("place", WRITTEN)
def test_a_reader_finds_one_state_or_the_other_after_every_step_of_a_commit(request, tmp_path, monkeypatch, place):
    assert not TABLE[place]["atomic"].startswith("no")
    a, where = make(place, request, tmp_path)
    seen = []

    def watched(kind: type[Store], name: str) -> None:
        original = getattr(kind, name)

        def step(self, *args, **kwargs):
            result = original(self, *args, **kwargs)
            if threading.current_thread() is main and seen[-1:] != ["looking"]:
                seen.append("looking")
                found = handle(a, where)[...]
                seen[-1] = sorted({*found[:, 0].tolist()})
            return result

        monkeypatch.setattr(kind, name, step)

    main = threading.current_thread()
    for kind in (LocalStore, MemoryStore, FsspecStore, SharedMemoryStore, CloudStore):
        for name in ("create", "replace", "append", "patch", "delete"):
            if name in vars(kind):
                watched(kind, name)
    with config.using(threads=1):
        a[...] = 1
    assert {*map(tuple, seen)} <= {(0.0,), (1.0,)}
    assert seen[-1] == [1.0]


@pytest.mark.parametrize("place", WRITTEN)
def test_what_another_writer_has_committed_is_noticed(request, tmp_path, place):
    a, where = make(place, request, tmp_path)
    b = handle(a, where, "r+")
    a[0] = 1
    b[1] = 2
    b[0, :10] = 3
    assert handle(a, where)[:2, [0, 20]].tolist() == [[3, 1], [2, 2]]
    with pytest.raises(ConflictError), a.transaction():
        a[1] = a[1] + 1
        b[1] = 5
    assert handle(a, where)[1, 0] == 5


@pytest.mark.parametrize("place", WRITTEN)
def test_an_assignment_is_done_again_on_the_shape_that_another_writer_has_left(request, tmp_path, monkeypatch, place):
    a, where = make(place, request, tmp_path)
    b = handle(a, where, "r+")
    original, calls = write.write, []

    def overtaken(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            b.append([[7.0] * 50] * 2)
        return original(*args, **kwargs)

    monkeypatch.setattr("b2array.array.items.write", overtaken)
    a[-2:, ::49] = 1
    assert handle(a, where)[:, [0, 1, 49]].tolist() == [[0, 0, 0]] * 4 + [[1, 7, 1]] * 2


@pytest.mark.parametrize("place", [place for place in WRITTEN if TABLE[place]["concurrent"].startswith("yes")])
def test_concurrent_writers_lose_nothing(request, tmp_path, place):
    a, where = make(place, request, tmp_path)
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def work(n: int) -> None:
        try:
            mine = handle(a, where, "r+")
            start.wait()
            for k in range(3):
                while True:
                    try:
                        mine[n, k] = n + 1
                        break
                    except ConflictError:
                        if "may give up" not in TABLE[place]["concurrent"]:
                            raise
                        mine.refresh()
        except BaseException as error:  # noqa: BLE001 - it is looked at below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert handle(a, where)[:, :3].tolist() == [[n + 1] * 3 for n in range(4)]


def test_two_single_writers_that_look_at_the_same_moment_overwrite_each_other(request, tmp_path, monkeypatch):
    a, where = make("other protocols of fsspec", request, tmp_path)
    b = handle(a, where, "r+")
    original = FsspecStore._version
    with monkeypatch.context() as patched:

        def version(self, name):
            patched.undo()
            found = original(self, name)
            b[1] = 2  # between looking and writing
            return found

        patched.setattr(FsspecStore, "_version", version)
        a[0] = 1
    assert handle(a, where)[:2, 0].tolist() == [1, 0]


@pytest.mark.parametrize("place", READ_ONLY)
def test_places_for_reading_are_read_and_refuse_to_be_written(request, tmp_path, http, place):
    assert TABLE[place]["concurrent"] == "no"
    b2array.ones((4, 50), url=tmp_path / "a.b2nd", **OPTIONS)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "a.b2nd", "a.b2nd")
    http.objects["a.b2nd"] = (tmp_path / "a.b2nd").read_bytes()
    url = {
        "``http://``, ``https://``": http.url_of("a.b2nd"),
        "``zip://``, ``tar://``": f"zip://a.b2nd::{tmp_path}/a.zip",
        "``simplecache::``, ``filecache::``": f"simplecache::{http.url_of('a.b2nd')}",
    }[place]
    a = b2array.open(url)
    assert (a[...] == 1).all()
    assert a.info["commits"] == "read only"
    with pytest.raises(ReadOnlyError, match="can only be read"):
        b2array.open(url, mode="r+")


@pytest.fixture
def forced(tmp_path, monkeypatch) -> list[tuple[str, float | None]]:
    """What is forced to the disk from now on: which file, and what readers see at that moment."""
    events: list[tuple[str, float | None]] = []
    original = os.fsync

    def fsync(fd: int) -> None:
        original(fd)
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        try:
            events.append((name, float(b2array.open(tmp_path / "a.b2nd")[0, 0])))
        except FileNotFoundError:
            events.append((name, None))

    monkeypatch.setattr(os, "fsync", fsync)
    return events


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs names of descriptors")


@needs_proc
def test_a_durable_commit_to_one_file_forces_the_data_before_the_header_and_then_the_header(tmp_path, forced):
    a = b2array.zeros((4, 50), url=tmp_path / "a.b2nd", **OPTIONS)
    assert forced == []
    with config.using(durable=True):
        a[0] = 1
    assert forced == [("a.b2nd", 0), ("a.b2nd", 1)]


@needs_proc
def test_an_ordered_commit_forces_what_the_header_or_index_refers_to_and_no_more(tmp_path, forced):
    with config.using(durable="ordered"):
        b2array.zeros((4, 50), url=tmp_path / "a.b2nd", **OPTIONS)
        assert [seen for _, seen in forced] == [None]
        forced.clear()
        b2array.open(tmp_path / "a.b2nd", "r+")[0] = 1
    assert forced == [("a.b2nd", 0)]


@needs_proc
def test_an_ordered_commit_to_a_directory_forces_chunks_their_names_and_the_index(tmp_path, forced):
    a = b2array.zeros((4, 50), url=tmp_path / "a.b2nd", layout="sparse", **OPTIONS)
    with config.using(durable="ordered"):
        a[0] = 1
    (chunk, index) = (name for name, _ in forced if name.endswith(".b2tmp"))
    assert chunk.startswith("00000000.chunk")
    assert forced == [(chunk, 0), ("a.b2nd", 0), (index, 0)]


def test_commits_are_ordered_by_default_and_other_settings_are_refused():
    code = "import b2array; print(b2array.config.durable)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ordered\n"
    with pytest.raises(ValueError, match="'off', 'ordered' or 'full'"), config.using(durable="sometimes"):
        pass
    for given, meant in ((True, "full"), (1, "full"), (0, "off"), (False, "off"), ("ordered", "ordered")):
        with config.using(durable=given):
            assert durability() == meant


@needs_proc
def test_a_durable_commit_to_a_directory_forces_chunks_then_the_index_then_its_name(tmp_path, forced):
    a = b2array.zeros((4, 50), url=tmp_path / "a.b2nd", layout="sparse", **OPTIONS)
    with config.using(durable=True):
        a[0] = 1
    (chunk, index) = (name for name, _ in forced if name.endswith(".b2tmp"))
    assert chunk.startswith("00000000.chunk")
    assert index.startswith("chunks.b2frame")
    assert forced == [(chunk, 0), ("a.b2nd", 0), (index, 0), ("a.b2nd", 1)]


@needs_proc
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_durable_new_array_is_forced_before_it_gets_its_name(tmp_path, forced, layout):
    with config.using(durable=True):
        b2array.asarray([[1.0] * 50] * 4, url=tmp_path / "a.b2nd", layout=layout, **OPTIONS)
    written = [seen for name, seen in forced if name.endswith(".b2tmp")]
    assert written == [None] * len(written)
    if layout == "contiguous":
        assert forced[-1] == (tmp_path.name, 1)
    else:
        assert (tmp_path.name, None) in forced
        assert forced[-1] == ("a.b2nd", 1)
