"""Arrays at URLs of every kind: read, written, changed by several processes at once, and what errors say."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import subprocess
import sys
import tarfile
import threading
import traceback
import zipfile
from pathlib import Path

import blosc2
import numpy as np
import pytest
from servers import S3_KEY, S3_SECRET, directory_server

import b2array
from b2array.errors import B2ArrayError, ChunkMissingError, ConflictError, ReadOnlyError, UnsupportedError

ROOT = Path(__file__).parents[1]
DATA = np.arange(40 * 50, dtype="i4").reshape(40, 50)
OPTIONS = {"chunks": (10, 50), "blocks": (5, 25)}
LAYOUTS = ("contiguous", "sparse")

both_layouts = pytest.mark.parametrize("layout", LAYOUTS)


def made(path: Path, layout: str) -> dict[str, bytes]:
    """Make an array; returns its files: names that begin with ``a.b2nd``, and their content."""
    b2array.asarray(DATA, url=path / "a.b2nd", layout=layout, attrs={"name": "probe"}, **OPTIONS)
    files = [file for file in path.rglob("*") if file.is_file() and file.suffix != ".b2lock"]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def check(a) -> None:
    assert (a.shape, a.dtype, a.attrs["name"]) == (DATA.shape, DATA.dtype, "probe")
    assert np.array_equal(a[...], DATA)
    assert np.array_equal(a[7::9, [3, 1]], DATA[7::9, [3, 1]])
    assert a[33, 44] == DATA[33, 44]


@pytest.fixture(autouse=True)
def uncached():
    """Read from the stores: arrays of equal content share the cache of decoded blocks, wherever they are."""
    with b2array.config.using(cache_bytes=0):
        yield


# ---- reading ----


@pytest.fixture
def place(request, tmp_path, http, bucket, s3_options):
    """Give a function that puts files somewhere, and the URL and storage options to read them there."""
    kind = request.param
    cache = {"cache_storage": str(tmp_path / "cache")}

    def put(files: dict[str, bytes]) -> tuple[str, dict]:
        if kind in ("zip", "zip over http", "zip over memory", "zip over s3"):
            with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
                for name, content in files.items():
                    archive.writestr(f"in/{name}", content, zipfile.ZIP_DEFLATED if len(name) % 2 else None)
            files = {"x.zip": (tmp_path / "x.zip").read_bytes()}
        if kind == "tar":
            with tarfile.open(tmp_path / "x.tar", "w") as archive:
                archive.add(tmp_path / "made", "in")
        if "http" in kind:
            http.objects |= files
        if "memory" in kind or kind == "dir":
            import fsspec

            fsspec.filesystem("memory").pipe({f"/{tmp_path.name}/{name}": raw for name, raw in files.items()})
        if "s3" in kind:
            import s3fs

            s3fs.S3FileSystem(**s3_options).pipe({f"{bucket}/{name}": raw for name, raw in files.items()})
        return {
            "file": (f"file://{tmp_path}/made/a.b2nd", {}),
            "memory": (f"memory://{tmp_path.name}/a.b2nd", {}),
            "http": (http.url_of("a.b2nd"), {}),
            "s3": (f"s3://{bucket}/a.b2nd", s3_options),
            "zip": (f"zip://in/a.b2nd::{tmp_path}/x.zip", {}),
            "zip over http": (f"zip://in/a.b2nd::{http.url_of('x.zip')}", {}),
            "zip over memory": (f"zip://in/a.b2nd::memory://{tmp_path.name}/x.zip", {}),
            "zip over s3": (f"zip://in/a.b2nd::s3://{bucket}/x.zip", {"s3": s3_options}),
            "tar": (f"tar://in/a.b2nd::{tmp_path}/x.tar", {}),
            "simplecache http": (f"simplecache::{http.url_of('a.b2nd')}", {"simplecache": cache}),
            "filecache http": (f"filecache::{http.url_of('a.b2nd')}", {"filecache": cache}),
            "simplecache s3": (f"simplecache::s3://{bucket}/a.b2nd", {"s3": s3_options, "simplecache": cache}),
            "blockcache s3": (f"blockcache::s3://{bucket}/a.b2nd", {"s3": s3_options, "blockcache": cache}),
        }[kind]

    return put


KINDS = (
    "file",
    "memory",
    "http",
    "s3",
    "zip",
    "zip over http",
    "zip over memory",
    "zip over s3",
    "tar",
    "simplecache http",
    "filecache http",
    "simplecache s3",
    "blockcache s3",
)


# fsspec does not close the files of its block cache.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@both_layouts
@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_an_array_is_read_wherever_it_is(place, tmp_path, layout):
    (tmp_path / "made").mkdir()
    url, options = place(made(tmp_path / "made", layout))
    check(b2array.open(url, storage_options=options))
    check(b2array.open(url, storage_options=options))  # from a cache that has been filled


@pytest.mark.parametrize("place", ["file", "memory", "http", "s3", "zip", "simplecache http"], indirect=True)
def test_a_slash_says_that_it_is_a_directory(place, tmp_path):
    (tmp_path / "made").mkdir()
    url, options = place(made(tmp_path / "made", "sparse"))
    head, mark, tail = url.partition("::")
    url = f"{head}/{mark}{tail}" if head.startswith("zip") else f"{url}/"
    check(b2array.open(url, storage_options=options))


@pytest.mark.parametrize("where", ["local", "http", "memory"])
def test_a_frame_stored_inside_an_archive_is_read_in_place(tmp_path, http, where):
    content = made(tmp_path, "contiguous")["a.b2nd"]
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("before", bytes(5000))
        archive.writestr("in/a.b2nd", content)
        archive.writestr("after", bytes(5000))
        info = archive.getinfo("in/a.b2nd")
    raw = (tmp_path / "x.zip").read_bytes()
    offset = info.header_offset + 30 + len(info.filename) + len(info.extra)
    http.objects["x.zip"] = raw
    url = {"local": tmp_path / "x.zip", "http": http.url_of("x.zip"), "memory": f"memory://{tmp_path.name}/x.zip"}[
        where
    ]
    if where == "memory":
        b2array.store.open.open_store(url).create("", raw)
    check(b2array.open(url, offset=offset))
    with pytest.raises(ReadOnlyError, match="inside a larger file"):
        b2array.open(url, mode="r+", offset=offset)
    assert (tmp_path / "x.zip").read_bytes() == raw


def test_super_chunks_take_urls_too(bucket, s3_options):
    url = f"s3://{bucket}/s.b2frame"
    s = b2array.create_schunk(url, chunksize=400, typesize=4, storage_options=s3_options)
    s.append_data(np.arange(100, dtype="i4"))
    again = b2array.open_schunk(url, storage_options=s3_options)
    assert again.decompress_chunk(0) == np.arange(100, dtype="i4").tobytes()


def test_an_empty_object_in_the_place_of_a_directory_does_not_hide_the_frame(bucket, s3_options):
    url = f"s3://{bucket}/a.b2nd"
    b2array.asarray(DATA, url=url, attrs={"name": "probe"}, storage_options=s3_options, **OPTIONS)
    b2array.store.open.open_store(url, storage_options=s3_options).create("", b"")
    check(b2array.open(url, storage_options=s3_options))


# ---- writing ----


@pytest.fixture
def target(request, tmp_path, bucket, s3_options):
    return {
        "local": (str(tmp_path / "a.b2nd"), {}),
        "memory": (f"memory://{tmp_path.name}/a.b2nd", {}),
        "s3": (f"s3://{bucket}/deep/a.b2nd", s3_options),
        "dir": (f"dir://a.b2nd::file://{tmp_path}", {}),
    }[request.param]


writable = pytest.mark.parametrize("target", ["local", "memory", "s3", "dir"], indirect=True)
# One file at such a place is rewritten with every change, which is said.
rewritten = pytest.mark.filterwarnings("ignore:.*is rewritten with every change")


@rewritten
@both_layouts
@writable
def test_an_array_is_written_and_changed_wherever_it_is(target, layout):
    url, options = target
    a = b2array.create(url, (40, 50), "i4", layout=layout, storage_options=options, attrs={"name": "x"}, **OPTIONS)
    a[...] = DATA
    a[3, 4] = -1
    with a.transaction():
        a[30:, 10] = 7
        a[:5] += 1
        a.attrs["name"] = "probe"
    expected = DATA.copy()
    expected[3, 4] = -1
    expected[30:, 10] = 7
    expected[:5] += 1
    b = b2array.open(url, mode="r+", storage_options=options)
    for handle in (a, b):
        assert np.array_equal(handle[...], expected)
        assert handle.attrs["name"] == "probe"
    b[...] = DATA
    a.refresh()
    check(a)
    with pytest.raises(FileExistsError):
        b2array.create(url, (4,), "i4", layout=layout, storage_options=options)
    b2array.asarray(DATA + 1, url=url, layout=layout, overwrite=True, storage_options=options, **OPTIONS)
    assert np.array_equal(b2array.open(url, storage_options=options)[...], DATA + 1)


@rewritten
@both_layouts
@writable
def test_a_transaction_that_raises_leaves_nothing_new(target, layout):
    url, options = target
    a = b2array.asarray(DATA, url=url, layout=layout, storage_options=options, **OPTIONS)
    before = a._handle.store.listing().keys()
    with pytest.raises(ZeroDivisionError), a.transaction():
        a[:20] = 0
        1 / 0  # noqa: B018
    assert np.array_equal(b2array.open(url, storage_options=options)[...], DATA)
    assert {n for n in a._handle.store.listing() if not n.endswith(".b2lock")} == {
        n for n in before if not n.endswith(".b2lock")
    }


@rewritten
@both_layouts
@pytest.mark.parametrize("target", ["local", "memory", "s3"], indirect=True)
def test_two_handles_lose_nothing_and_a_transaction_in_conflict_says_so(target, layout):
    url, options = target
    a = b2array.asarray(DATA, url=url, layout=layout, storage_options=options, **OPTIONS)
    b = b2array.open(url, mode="r+", storage_options=options)
    a[0] = 0
    b[1] = 1  # the same chunk
    b[20] = 20
    a[30] = 30
    for n in (0, 1, 20, 30):
        assert (b2array.open(url, storage_options=options)[n] == n).all()
    a.refresh()
    with pytest.raises(ConflictError), a.transaction():
        a[0] += 1
        b[0] = 5
    assert (b2array.open(url, storage_options=options)[0] == 5).all()


WRITE = """
import json, sys
import numpy as np
import b2array
url, options, rank, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
a = b2array.open(url, mode="r+", storage_options=options)
for n in range(rank, len(a), count):
    a[n] = np.full(a.shape[1], n + 1)
"""


@pytest.mark.parametrize("rows_of_a_chunk", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("target", ["local", pytest.param("s3", marks=pytest.mark.slow)], indirect=True)
def test_processes_that_write_disjoint_parts_lose_nothing(target, rows_of_a_chunk):
    url, options = target
    b2array.create(url, (12, 30), "i4", chunks=(rows_of_a_chunk, 30), layout="sparse", storage_options=options)
    command = [sys.executable, "-c", WRITE, url, json.dumps(options)]
    processes = [subprocess.Popen([*command, str(rank), "3"], cwd=ROOT) for rank in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    a = b2array.open(url, storage_options=options)
    assert np.array_equal(a[...], np.repeat(np.arange(1, 13)[:, None], 30, axis=1))
    assert len({*a._handle.frame.offsets.tolist()}) == a.nchunks


@pytest.mark.parametrize("target", ["local", "memory", "s3"], indirect=True)
@pytest.mark.parametrize("shared", [False, True])
def test_threads_that_write_disjoint_chunks_lose_nothing(target, shared):
    url, options = target
    a = b2array.create(url, (8, 30), "i4", chunks=(1, 30), layout="sparse", storage_options=options)
    failures = []

    def work(rank):
        try:
            mine = a if shared else b2array.open(url, mode="r+", storage_options=options)
            for n in range(rank, 8, 4):
                mine[n] = n + 1
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert b2array.open(url, storage_options=options)[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_one_file_at_a_store_without_appending_is_written_anew_with_a_warning(bucket, s3_options):
    url = f"s3://{bucket}/a.b2nd"
    a = b2array.asarray(DATA, url=url, layout="contiguous", storage_options=s3_options, **OPTIONS)
    with pytest.warns(UserWarning, match=r"a\.b2nd: one file in this store is rewritten with every change"):
        a[0] = 5
    assert (b2array.open(url, storage_options=s3_options)[0] == 5).all()


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_child_goes_on_with_the_handle(bucket, s3_options):
    a = b2array.asarray(DATA, url=f"s3://{bucket}/a.b2nd", storage_options=s3_options, **OPTIONS)

    def work():
        a[0] = 5

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    a[10] = 6
    assert a[[0, 10], 0].tolist() == [5, 6]


# ---- errors ----


@pytest.mark.parametrize("place", ["file", "memory", "http", "s3", "zip", "simplecache http"], indirect=True)
def test_a_missing_chunk_is_named_with_its_number(place, tmp_path):
    (tmp_path / "made").mkdir()
    files = made(tmp_path / "made", "sparse")
    offsets = b2array.open(tmp_path / "made" / "a.b2nd")._handle.frame.offsets
    name = f"{offsets[2]:08X}.chunk"
    files.pop(f"a.b2nd/{name}")
    (tmp_path / "made" / "a.b2nd" / name).unlink()
    url, options = place(files)
    a = b2array.open(url, storage_options=options)
    for key in ((25, 3), (), slice(20, 30)):
        with pytest.raises(ChunkMissingError, match=rf"^chunk 2 of .*{name}"):
            a[key]
    assert np.array_equal(a[:20], DATA[:20])


@both_layouts
@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_refused_chunk_is_that_refusal_and_never_zeros(tmp_path, http, layout, status):
    http.objects |= made(tmp_path, layout)
    a = b2array.open(http.url_of("a.b2nd"))
    for path in http.objects:
        http.statuses[path] = status
    for verb in (lambda: a[0], lambda: b2array.open(http.url_of("a.b2nd"))):
        with b2array.config.using(retries=1), pytest.raises(Exception, match=str(status)) as caught:
            verb()
        assert not isinstance(caught.value, B2ArrayError | FileNotFoundError)


@pytest.mark.costly
@both_layouts
def test_a_group_with_special_names_is_read_from_a_web_server_of_files(tmp_path, layout):
    pytest.importorskip("aiohttp")
    names = ["a b", "a%20b", "a+b", "50%", "ü", "a%2Fb", "in side/a b"]
    with b2array.open_group(tmp_path / "one two.b2d", "w").transaction() as group:
        for number, name in enumerate(names):
            group.create(name, data=np.full(5, number), layout=layout)
    with directory_server(tmp_path) as server:
        for url in (f"{server}/one two.b2d", f"{server}/one%20two.b2d"):
            found = b2array.open_group(url)
            assert [int(found[name][3]) for name in names] == [*range(len(names))]
            assert b2array.verify(url).ok


def test_an_array_that_was_replaced_on_a_server_is_noticed(tmp_path, http):
    random = np.random.default_rng(0).permuted(DATA, axis=0)
    for name, data in (("one", random), ("other", random[::-1])):
        path = str(tmp_path / name)
        blosc2.asarray(data.copy(), urlpath=path, cparams={"clevel": 0}, chunks=(10, 50), blocks=(5, 25))
    http.objects["a.b2nd"] = (tmp_path / "one").read_bytes()
    a = b2array.open(http.url_of("a.b2nd"))
    assert np.array_equal(a[:10], random[:10])
    http.objects["a.b2nd"] = (tmp_path / "other").read_bytes()
    with pytest.raises(ConflictError, match="refresh"):
        a[20:]
    a.refresh()
    assert np.array_equal(a[...], random[::-1])


@both_layouts
def test_a_server_that_does_not_answer_in_time_is_a_timeout(tmp_path, http, layout):
    aiohttp = pytest.importorskip("aiohttp")
    http.objects |= made(tmp_path, layout)
    options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=0.5)}}
    a = b2array.open(http.url_of("a.b2nd"), storage_options=options)
    http.delay = 2
    with pytest.raises(TimeoutError):
        a[0]


def test_reading_needs_no_permission_to_list(bucket, s3_options, s3_calls):
    url = f"s3://{bucket}/a.b2nd"
    a = b2array.asarray(DATA, url=url, attrs={"name": "probe"}, storage_options=s3_options, **OPTIONS)
    a[0] = DATA[0]
    check(b2array.open(url, storage_options=s3_options))
    assert not any(call.startswith("list") for call in s3_calls)


@pytest.mark.parametrize("url", ["a", "a/", "memory://empty-directory/a", "file://{}/a"])
def test_what_is_not_there_is_said_in_one_line(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist") as caught:
        b2array.open(url.format(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_directory_without_a_frame_is_said_to_be_one(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "00000000.chunk").write_bytes(b"x")
    with pytest.raises(
        FileNotFoundError,
        match=r"/a is a directory without chunks\.b2frame: no sparse frame$",
    ):
        b2array.open(tmp_path / "a")
    for url in (f"{tmp_path}/a/", f"file://{tmp_path}/a/"):
        with pytest.raises(FileNotFoundError, match=r"chunks\.b2frame") as caught:
            b2array.open(url)
        assert "\n" not in str(caught.value)


@both_layouts
@pytest.mark.parametrize("place", ["http", "zip", "zip over http", "tar", "simplecache s3"], indirect=True)
def test_places_for_reading_cannot_be_opened_for_writing(place, tmp_path, layout):
    (tmp_path / "made").mkdir()
    url, options = place(made(tmp_path / "made", layout))
    with pytest.raises(ReadOnlyError, match=r"^\S+ can only be read; open it with mode='r'$"):
        b2array.open(url, mode="r+", storage_options=options)
    with pytest.raises(ReadOnlyError, match=r"can only be read"):
        b2array.create(url.replace("a.b2nd", "new.b2nd"), (4,), "i4", layout=layout, storage_options=options)


def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(importlib.import_module("fsspec.registry")._registry, "s3", raising=False)
    for verb in (b2array.open, lambda url: b2array.create(url, (4,), "i4")):
        with pytest.raises(UnsupportedError, match=r"^s3://b/a: .*s3fs") as caught:
            verb("s3://b/a")
        assert "\n" not in str(caught.value)


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))


def test_no_message_shows_keys(bucket, s3_options):
    url = f"s3://{bucket}/a.b2nd"
    a = b2array.asarray(DATA, url=url, storage_options=s3_options, **OPTIONS)
    texts = [repr(a), str(a.info), a.url]
    name = f"{a._handle.frame.offsets[0]:08X}.chunk"
    a._handle.store.delete([name])

    def create_in(url):
        return b2array.create(url, (4,), "i4", storage_options=s3_options)

    for verb in (
        lambda: a[0],
        lambda: b2array.open(url + "x", storage_options=s3_options),
        lambda: create_in(url),
        lambda: create_in("s3://no-such-bucket-at-all/a.b2nd"),
        lambda: create_in(f"s3://{S3_KEY}:{S3_SECRET}@no-such-bucket/a.b2nd"),
    ):
        with pytest.raises(Exception, match=r".") as caught:
            verb()
        texts.append(shown(caught.value))
    for text in texts:
        assert S3_KEY not in text
        assert S3_SECRET not in text
