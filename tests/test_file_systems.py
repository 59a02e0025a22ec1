"""File systems of fsspec that callers hold: every function takes a path and ``fs=``."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import blosc2
import fsspec
import numpy as np
import pytest
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.implementations.zip import ZipFileSystem
from servers import range_server

import b2array
from b2array import bloscpack
from b2array.errors import ConflictError, LimitError, ReadOnlyError, UnsupportedError
from b2array.store import upload
from b2array.store.open import open_store

DATA = np.arange(40 * 50, dtype="i4").reshape(40, 50)
OPTIONS = {"chunks": (10, 50), "blocks": (5, 25)}

forking = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


class PlainFileSystem(LocalFileSystem):
    """Files of the local disk through a class that might do something else with paths."""

    protocol = "plain"


class Held(NamedTuple):
    """A file system, a path in it, and what protects a commit there."""

    fs: Any
    path: str
    guarantee: str


@pytest.fixture(autouse=True)
def _uncached():
    with b2array.config.using(cache_bytes=0):
        yield


@pytest.fixture
def held(request, tmp_path) -> Held:
    """Make a file system of a kind, with room for a directory."""
    kind = request.param
    if kind == "file":
        return Held(LocalFileSystem(), str(tmp_path), "lock")
    if kind == "dir of files":
        return Held(DirFileSystem(path=str(tmp_path), fs=LocalFileSystem()), "", "lock")
    if kind == "class of its own":
        return Held(PlainFileSystem(auto_mkdir=True), str(tmp_path), "single writer")
    if kind == "memory":
        return Held(MemoryFileSystem(), f"/{tmp_path.name}", "lock")
    if kind == "memory of its own":
        return Held(MemoryFileSystem(global_store=False, skip_instance_cache=True), "room", "lock")
    if kind == "dir of memory":
        return Held(DirFileSystem(path=f"/{tmp_path.name}", fs=MemoryFileSystem()), "room", "lock")
    options = request.getfixturevalue("s3_options")
    s3, bucket = fsspec.filesystem("s3", **options), request.getfixturevalue("bucket")
    if kind == "s3":
        return Held(s3, f"{bucket}/room", "compare-and-swap")
    if kind == "dir of s3":
        return Held(DirFileSystem(path=f"{bucket}/room", fs=s3), "", "compare-and-swap")
    raise ValueError(kind)


KINDS = (
    "file",
    "dir of files",
    "class of its own",
    "memory",
    "memory of its own",
    "dir of memory",
    "s3",
    "dir of s3",
)
everywhere = pytest.mark.parametrize("held", KINDS, indirect=True)
nearly_everywhere = pytest.mark.parametrize(
    "held", [*KINDS[:-1], pytest.param(KINDS[-1], marks=pytest.mark.slow)], indirect=True
)


def below(held: Held, name: str) -> str:
    return f"{held.path}/{name}".lstrip("/") if held.path in ("", "room") else f"{held.path}/{name}"


@everywhere
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.filterwarnings("ignore:.*is rewritten with every change")
def test_an_array_is_made_changed_and_read_by_a_path_in_a_file_system(held, layout):
    path = below(held, "a.b2nd")
    a = b2array.create(path, (40, 50), "i4", layout=layout, fs=held.fs, **OPTIONS)
    a[...] = DATA
    assert a.info["commits"] == held.guarantee
    assert held.fs.exists(path)
    again = b2array.open(path, "r+", fs=held.fs)
    again[3] = -1
    expected = DATA.copy()
    expected[3] = -1
    assert np.array_equal(b2array.load(path, fs=held.fs), expected)
    assert b2array.verify(path, deep=True, fs=held.fs).ok
    with pytest.raises(FileExistsError):
        b2array.zeros((3,), url=path, fs=held.fs)
    with pytest.raises(FileNotFoundError):
        b2array.open(below(held, "nothing.b2nd"), fs=held.fs)


@everywhere
def test_a_group_is_made_and_read_by_a_path_in_a_file_system(held):
    path = below(held, "g.b2d")
    group = b2array.open_group(path, "w", fs=held.fs)
    with group.transaction() as changes:
        changes.create("air/temperature", data=DATA, **OPTIONS)
        changes.create("air/pressure", data=DATA + 1, **OPTIONS)
    found = b2array.open_group(path, fs=held.fs)
    assert sorted(found["air"]) == ["pressure", "temperature"]
    assert np.array_equal(b2array.open(f"{path}/air/temperature", fs=held.fs)[...], DATA)
    assert np.array_equal(pickle.loads(pickle.dumps(found))["air/pressure"][5], DATA[5] + 1)
    assert b2array.verify(path, fs=held.fs).ok
    assert "nothing to repair" in str(b2array.repair(path, fs=held.fs, dry_run=True))


@nearly_everywhere
def test_a_handle_is_pickled_with_its_file_system(held):
    path = below(held, "a.b2nd")
    a = b2array.asarray(DATA, url=path, fs=held.fs, layout="sparse", **OPTIONS)
    again = pickle.loads(pickle.dumps(a))
    assert np.array_equal(again[7], DATA[7])
    again[7] = 0
    if held.path != "room" or "dir" in str(held.fs.protocol):
        assert not b2array.open(path, fs=held.fs)[7].any()  # a memory of its own is copied


@nearly_everywhere
def test_every_function_that_makes_or_changes_arrays_takes_a_file_system(held):
    import dask.array as da

    fs, at = held.fs, lambda name: below(held, name)
    sparse = {"layout": "sparse", "fs": fs}
    b2array.ones((4,), url=at("ones"), **sparse)
    b2array.arange(9, url=at("arange"), **sparse)
    b2array.from_blocks([DATA, DATA], at("blocks"), **sparse)
    b2array.from_dask(da.from_array(DATA, (10, 50)), at("dask"), scheduler="sync", **sparse)
    b2array.copy(at("dask"), at("copy"), layout="sparse", src_fs=fs, dst_fs=fs)
    b2array.open(at("copy"), fs=fs).copy(at("another"), chunks=(5, 5), **sparse)
    b2array.save(at("saved"), DATA, fs=fs)
    b2array.open(at("opened"), "w", shape=3, fs=fs)
    assert b2array.load(at("ones"), fs=fs).tolist() == [1] * 4
    assert b2array.load(at("arange"), fs=fs)[-1] == 8
    for name in ("dask", "copy", "another", "saved"):
        assert np.array_equal(b2array.load(at(name), fs=fs), DATA)
    assert b2array.open(at("blocks"), fs=fs).shape == (80, 50)
    schunk = b2array.create_schunk(at("chunks"), chunksize=8, **sparse)
    schunk.append_data(b"12345678")
    assert b2array.open_schunk(at("chunks"), fs=fs).decompress_chunk(0) == b"12345678"
    assert b2array.vacuum(at("saved"), grace=0, fs=fs).removed == ()
    assert b2array.repack(at("saved"), fs=fs).nbytes == 0
    bloscpack.pack(DATA, at("packed.blp"), fs=fs)
    assert np.array_equal(bloscpack.unpack(at("packed.blp"), fs=fs), DATA)
    assert bloscpack.open(at("packed.blp"), fs=fs)[3].tolist() == DATA[3].tolist()


@nearly_everywhere
def test_files_are_converted_between_file_systems(held, tmp_path):
    fs, at = held.fs, lambda name: below(held, name)
    np.save(tmp_path / "x.npy", DATA)
    b2array.convert(tmp_path / "x.npy", at("a.b2nd"), dst_fs=fs, verify=True)
    b2array.convert(at("a.b2nd"), at("a.zarr"), src_fs=fs, dst_fs=fs, verify=True)
    b2array.convert(at("a.zarr"), tmp_path / "y.npy", src_fs=fs, verify=True)
    assert np.array_equal(np.load(tmp_path / "y.npy"), DATA)


@nearly_everywhere
def test_xarray_reads_and_writes_by_a_path_in_a_file_system(held):
    xr = pytest.importorskip("xarray")
    path = below(held, "g.b2d")
    from b2array.xarray_io import to_b2array

    ds = xr.Dataset({"depth": (("time", "x"), DATA)}, {"time": np.arange(40)})
    to_b2array(ds, path, fs=held.fs)
    found = xr.open_dataset(path, engine="b2array", fs=held.fs)
    assert found["depth"].sel(time=7).values.tolist() == DATA[7].tolist()
    to_b2array(ds.chunk(x=25) + 1, path, mode="a", compute=False, fs=held.fs).compute(scheduler="sync")
    found = xr.open_datatree(path, engine="b2array", fs=held.fs)
    assert found["depth"].sel(time=7).values.tolist() == (DATA[7] + 1).tolist()


# ---- the class decides ----


def test_the_local_file_system_means_local_files(tmp_path):
    path = tmp_path / "a.b2nd"
    a = b2array.asarray(DATA, url=str(path), fs=fsspec.filesystem("file"), **OPTIONS)
    assert a.url == str(path)
    inode = path.stat().st_ino
    a[0] = 1
    assert path.stat().st_ino == inode  # it is appended to, not replaced
    assert b2array.open(f"file://{path}", fs=LocalFileSystem())[0, 0] == 1
    assert b2array.open(path, fs=LocalFileSystem())[0, 0] == 1


@pytest.mark.parametrize(
    ("make", "path", "kind", "guarantee"),
    [
        (lambda: fsspec.filesystem("memory"), "x", "SharedMemoryStore", "lock"),
        (lambda: fsspec.filesystem("http"), "https://127.0.0.1/x", "HttpStore", "read only"),
        (lambda: fsspec.filesystem("s3", anon=True), "bucket/x", "S3Store", "compare-and-swap"),
        (lambda: SimpleCacheFileSystem(fs=fsspec.filesystem("memory")), "x", "CachingStore", "read only"),
        (lambda: DirFileSystem("bucket", fs=fsspec.filesystem("s3", anon=True)), "x", "S3Store", "compare-and-swap"),
        (lambda: PlainFileSystem(), "/x", "FsspecStore", "single writer"),
    ],
)
def test_the_class_of_the_file_system_decides_the_kind_of_store(make, path, kind, guarantee):
    pytest.importorskip("s3fs")
    store = open_store(path, fs=make())
    assert (type(store).__name__, store.can.guarantee) == (kind, guarantee)


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_slash_at_the_end_says_that_it_is_a_directory(tmp_path, slash):
    for fs, path in (
        (LocalFileSystem(), str(tmp_path / "x")),
        (DirFileSystem(str(tmp_path), fs=LocalFileSystem()), "x"),
        (MemoryFileSystem(), "x"),
        (DirFileSystem("y", fs=MemoryFileSystem()), "x"),
    ):
        assert open_store(path + slash, fs=fs).is_prefix is (True if slash else None)


def archive(kind: str, tmp_path: Path) -> Any:
    b2array.asarray(DATA, url=tmp_path / "made", layout="sparse", overwrite=True, **OPTIONS)
    if kind == "tar":
        with tarfile.open(tmp_path / "x.tar", "w") as file:
            file.add(tmp_path / "made", "in/a.b2nd")
        return fsspec.filesystem("tar", fo=str(tmp_path / "x.tar"))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        for each in (tmp_path / "made").iterdir():
            file.write(each, f"in/a.b2nd/{each.name}")
    return fsspec.filesystem("zip", fo=str(tmp_path / "x.zip"))


@pytest.fixture
def zip_of_a_file(tmp_path):
    """Make the file system of an open zip file."""
    archive("zip", tmp_path)
    with (tmp_path / "x.zip").open("rb") as file:
        yield ZipFileSystem(file)


@pytest.mark.parametrize("kind", ["zip", "zip of a file", "tar", "dir of zip", "cached zip"])
def test_threads_that_hold_an_archive_take_turns(tmp_path, zip_of_a_file, kind):
    fs, path = zip_of_a_file if kind == "zip of a file" else archive(kind.rpartition(" ")[2], tmp_path), "in/a.b2nd"
    if kind == "dir of zip":
        fs, path = DirFileSystem("in", fs=fs), "a.b2nd"
    if kind == "cached zip":
        fs = SimpleCacheFileSystem(fs=fs, cache_storage=str(tmp_path / "cache"))
    wrong = []

    def work(seed: int) -> None:
        a = b2array.open(path, fs=fs)
        numbers = [(n + seed) % 40 for n in range(0, 40, 3)]
        wrong.extend(n for n in numbers if not np.array_equal(a[n], DATA[n]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert b2array.open(path, fs=fs).info["commits"] == "read only"
    with pytest.raises(ReadOnlyError):
        b2array.open(path, "r+", fs=fs)


def test_what_is_no_file_system_is_named(tmp_path):
    with pytest.raises(TypeError, match="fs must be a file system of fsspec, not str"):
        b2array.open("x", fs="s3")
    with pytest.raises(TypeError, match="storage_options are for URLs"):
        b2array.open("x", fs=fsspec.filesystem("memory"), storage_options={"anon": True})
    with pytest.raises(ValueError, match="asynchronous=True"):
        b2array.open("https://127.0.0.1/x", fs=fsspec.filesystem("http", asynchronous=True))


def test_secrets_of_a_file_system_stay_secret():
    pytest.importorskip("s3fs")
    fs = fsspec.filesystem("s3", key="name", secret="very-secret", endpoint_url="http://127.0.0.1:9")
    store = open_store("bucket/x", fs=fs)
    assert "very-secret" in store._secrets
    assert "very-secret" in open_store("x", fs=DirFileSystem("bucket", fs=fs))._secrets
    assert "very-secret" not in repr(store)


# ---- forks ----


def _in_a_fork(function: Callable[[], object]) -> object:
    """Call a function in a forked process; return what it returns, or its error."""
    parent, child = multiprocessing.Pipe()

    def run() -> None:
        try:
            answer = function()
        except Exception as error:  # noqa: BLE001 - the parent judges it
            answer = error
        child.send(answer)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    assert parent.poll(60), "the fork hangs"
    answer = parent.recv()
    process.join(10)
    return answer


@forking
@pytest.mark.parametrize("held", ["file", "memory", "s3", "dir of s3"], indirect=True)
@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_fork_reads_through_a_file_system_of_its_parent(held, opened):
    path = below(held, "a.b2nd")
    b2array.asarray(DATA, url=path, fs=held.fs, layout="sparse", **OPTIONS)
    a = b2array.open(path, fs=held.fs)
    a[3]

    def read() -> object:
        found = a if opened == "before" else b2array.open(path, fs=held.fs)
        return found[7].tolist()

    assert _in_a_fork(read) == DATA[7].tolist()
    assert a[8].tolist() == DATA[8].tolist()


@forking
@pytest.mark.parametrize("kind", ["zip", "zip of a file"])
def test_a_fork_opens_an_archive_again_or_says_that_it_cannot(tmp_path, zip_of_a_file, kind):
    fs = zip_of_a_file if kind == "zip of a file" else archive(kind, tmp_path)
    a = b2array.open("in/a.b2nd", fs=fs)
    answer = _in_a_fork(lambda: a[7].tolist())
    if kind == "zip":
        assert answer == DATA[7].tolist()
    else:
        assert isinstance(answer, UnsupportedError)
        assert "does not work in a forked process" in str(answer)
    assert a[8].tolist() == DATA[8].tolist()


def test_processes_that_spawn_read_through_a_pickled_handle(tmp_path):
    fs = archive("zip", tmp_path)
    a = b2array.open("in/a.b2nd", fs=fs)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    program = "import pickle, sys; a = pickle.load(sys.stdin.buffer); print(int(a[7].sum()))"
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(a), capture_output=True, check=True, env=environment
    )
    assert int(done.stdout) == DATA[7].sum()


# ---- obstore ----


def test_obstore_registered_for_a_protocol_serves_its_urls(cloud_of, _bucket_names):  # noqa: PT019
    register = pytest.importorskip("obstore.fsspec").register
    from fsspec.registry import get_filesystem_class

    cloud = cloud_of("s3 obstore")
    url, usual = f"{cloud.make_bucket(next(_bucket_names))}/a.b2nd", get_filesystem_class("s3")
    options = cloud.options["file system"].storage_options
    register("s3")
    try:
        a = b2array.asarray(DATA, url=url, storage_options=options, **OPTIONS)
        assert a.info["commits"] == "compare-and-swap"
        again = pickle.loads(pickle.dumps(b2array.open(url, storage_options=options)))
        held = fsspec.filesystem("s3", **options)
        through = b2array.open(url.removeprefix("s3://"), fs=held)
    finally:
        fsspec.register_implementation("s3", usual, clobber=True)
    assert np.array_equal(again[7], DATA[7])
    assert np.array_equal(pickle.loads(pickle.dumps(through))[7], DATA[7])
    assert "loopback-secret-key" in open_store(url, storage_options=cloud.options)._secrets


@pytest.mark.parametrize("kind", ["s3 obstore", "gcs obstore", "azure obstore"])
def test_obstore_says_whether_the_bucket_or_the_object_is_missing(cloud_of, _bucket_names, kind):  # noqa: PT019
    cloud = cloud_of(kind)
    url = cloud.make_bucket(next(_bucket_names))
    with pytest.raises(FileNotFoundError, match="there is no bucket 'no-such-bucket'"):
        b2array.open(f"{cloud.protocol}://no-such-bucket/a.b2nd", storage_options=cloud.options)
    with pytest.raises(FileNotFoundError, match=rf"^{url}/a.b2nd does not exist"):
        b2array.open(f"{url}/a.b2nd", storage_options=cloud.options)


@pytest.mark.parametrize("kind", ["s3", "s3 obstore"])
def test_a_slash_in_front_of_a_bucket_makes_no_difference(cloud_of, _bucket_names, kind):  # noqa: PT019
    cloud = cloud_of(kind)
    url = f"{cloud.make_bucket(next(_bucket_names))}/a.b2nd"
    fs = cloud.options["file system"] if kind == "s3 obstore" else cloud.fs
    b2array.asarray([1, 2], url=url, fs=fs)
    assert b2array.open("/" + url.partition("://")[2], fs=fs)[:].tolist() == [1, 2]


def test_obstore_reads_from_a_server_without_entity_tags(tmp_path):
    store = pytest.importorskip("obstore.fsspec").FsspecStore("http", client_options={"allow_http": True})
    b2array.asarray(DATA, url=tmp_path / "a.b2nd", **OPTIONS)
    with range_server(tags=False) as server:
        server.objects["a.b2nd"] = (tmp_path / "a.b2nd").read_bytes()
        assert np.array_equal(b2array.open(server.url_of("a.b2nd"), fs=store)[7], DATA[7])


@pytest.mark.parametrize("kind", ["s3 obstore", "gcs obstore", "azure obstore"])
def test_obstore_makes_a_large_object_once_and_as_a_whole(cloud_of, _bucket_names, monkeypatch, kind):  # noqa: PT019
    cloud = cloud_of(kind)
    store = open_store(f"{cloud.make_bucket(next(_bucket_names))}/a", storage_options=cloud.options)
    part = bytes(upload.PART)

    def parts(then=lambda: None):
        yield from [part] * 6
        then()
        yield b"end"

    def fail():
        raise RuntimeError("of the caller")

    with pytest.raises(RuntimeError, match="of the caller"):
        store.create("", parts(fail))
    with monkeypatch.context() as patch:
        patch.setattr(store, "put_limit", upload.WHOLE)
        with pytest.raises(LimitError, match="too many to make an object in one request"):
            store.create("", parts())
    with pytest.raises(FileNotFoundError):
        store.stamp("")
    made = store.create("", parts())
    assert made == store.stamp("")
    assert made.size == 6 * len(part) + 3
    store.delete([""])
    with pytest.raises(FileExistsError):
        store.create("", parts(lambda: store.create("", b"another writer's")))
    assert store.stamp("").size == 16


@pytest.mark.parametrize("chain", ["blockcache", "cached", "fs", "blockcache://", "cached://"])
def test_a_cache_of_blocks_never_mixes_two_states_of_an_object(http, tmp_path, chain):
    old = np.random.default_rng(0).integers(0, 255, (400, 1000), "u1")

    def put(values):
        blosc2.asarray(
            values,
            chunks=(100, 1000),
            blocks=(10, 1000),
            urlpath=str(tmp_path / "a.b2nd"),
            mode="w",
            cparams={"clevel": 0},
        )
        http.objects["a.b2nd"] = (tmp_path / "a.b2nd").read_bytes()

    cache = {"cache_storage": str(tmp_path / "cache")}

    def opened():
        url = http.url_of("a.b2nd")
        if chain.endswith("://"):
            return b2array.open(f"{chain}{url}", storage_options={"target_protocol": "http", **cache})
        if chain != "fs":
            return b2array.open(f"{chain}::{url}", storage_options={chain: cache})
        return b2array.open(url, fs=fsspec.filesystem("blockcache", target_protocol="http", **cache))

    put(old)
    held = opened()
    np.testing.assert_array_equal(held[:100], old[:100])
    put(old + 1)
    with pytest.raises(ConflictError):
        held[...]
    np.testing.assert_array_equal(opened()[...], old + 1)
