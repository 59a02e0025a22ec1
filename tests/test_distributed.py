"""dask's process and distributed schedulers, on local files and on S3, and workers that die."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_all_start_methods
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, ClassVar

import dask
import dask.array as da
import numcodecs
import numpy as np
import pytest
from clouds import Cloud

import b2array
from b2array import codecs, config
from b2array.store.endings import JOURNAL

distributed = pytest.importorskip("distributed")

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:distributed"),
]

LAYOUTS = ["contiguous", "sparse"]
SHAPE = (40, 30)
PIECES = (10, 15)

START = {
    "distributed.worker.multiprocessing-method": "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
}
"""Where it can be, a process begins as a copy of one that has done nothing but import distributed and what it needs."""


def fresh_processes() -> BaseContext:
    with dask.config.set(START):
        return distributed.utils.get_mp_context()


@contextmanager
def workers(count: int, failures: int = 10) -> Iterator[object]:
    settings = {
        **START,
        "distributed.scheduler.allowed-failures": failures,
        "distributed.worker.daemon": True,
        # On a busy machine half a minute is not enough for a worker to be answered.
        "distributed.comm.timeouts.connect": "120s",
    }
    with (
        dask.config.set(settings),
        distributed.LocalCluster(count, threads_per_worker=2, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[object]:
    with workers(2) as client:
        yield client


@pytest.fixture
def mortal_client() -> Iterator[object]:
    """Give a cluster for one test that kills one of its workers.

    That there is another one does not depend on the killed one being started again, which may fail on a busy machine:
    distributed waits for ever if a worker dies while it is being started. Of several tests with the same cluster the
    second might kill the only one left.
    """
    with workers(2) as client:
        yield client


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=fresh_processes()) as pool:
        yield pool


def values() -> np.ndarray:
    return np.arange(1200).reshape(SHAPE)


def source() -> da.Array:
    return da.from_array(values(), chunks=PIECES)


def doubled(block: np.ndarray) -> np.ndarray:
    return 2 * block


@pytest.mark.costly
@pytest.mark.parametrize("layout", LAYOUTS)
def test_processes_read_and_write(pool: Executor, tmp_path: Path, layout: str) -> None:
    with dask.config.set(scheduler="processes", pool=pool):
        a = b2array.from_dask(source(), tmp_path / "a.b2nd", layout=layout)
        assert np.array_equal(a.to_dask().map_blocks(doubled).compute(), 2 * values())
        region = (slice(5, 25), slice(5, 20))
        a.store(-source()[region].rechunk(((5, 10, 5), (10, 5))), region)
        da.store(source() + 1, b2array.open(a.url, mode="r+"), lock=False)
    assert np.array_equal(b2array.open(a.url)[...], values() + 1)


@pytest.mark.costly
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cluster_reads_and_writes(client: object, tmp_path: Path, layout: str) -> None:
    a = b2array.from_dask(source(), tmp_path / "a.b2nd", layout=layout, scheduler=client)
    assert np.array_equal(b2array.open(a.url)[...], values())
    assert a.to_dask().sum().compute(scheduler=client) == values().sum()
    region = (slice(5, 25), slice(5, 20))
    a.store(-source()[region].rechunk(((5, 10, 5), (10, 5))), region, scheduler=client)
    expected = values()
    expected[region] *= -1
    assert np.array_equal(a[...], expected)
    stored = a.store(2 * source(), compute=False, return_stored=True)
    assert np.array_equal(stored.compute(scheduler=client), 2 * values())
    assert np.array_equal(b2array.open(a.url)[...], 2 * values())
    assert [path.name for path in tmp_path.rglob(f"*{JOURNAL}*")] == []


def test_a_cluster_writes_into_memory_of_the_client(client: object) -> None:
    a = b2array.from_dask(source(), scheduler=client)
    assert np.array_equal(a[...], values())
    a.store(source() + 1, scheduler=client)
    assert np.array_equal(a[...], values() + 1)
    with pytest.raises(ValueError, match="memory of one process"):
        a.store(source(), compute=False).compute(scheduler=client)


@pytest.mark.costly
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dask_store_by_processes_loses_nothing(client: object, tmp_path: Path, layout: str) -> None:
    a = b2array.zeros(SHAPE, "i8", url=tmp_path / "a.b2nd", layout=layout, chunks=(8, 8), blocks=(4, 4))
    da.store(source(), a, lock=False, scheduler=client)
    assert np.array_equal(b2array.open(a.url)[...], values())


def test_progress_of_a_cluster_is_shown(client: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = b2array.from_dask(source(), tmp_path / "a.b2nd", scheduler=client, progress=True)
    assert "8/8" in capsys.readouterr().err
    assert np.array_equal(a[...], values())


class Watched(numcodecs.BZ2):
    """A codec that notes in which threads it works."""

    codec_id = "watched"
    threads: ClassVar[set[str]] = set()

    def encode(self, buf: object) -> bytes:
        self.threads.add(threading.current_thread().name)
        return super().encode(buf)

    def decode(self, buf: object, out: object = None) -> bytes:
        self.threads.add(threading.current_thread().name)
        return super().decode(buf, out)


codecs.register(231, lambda *_: Watched())
WATCHED = b2array.CParams(codec=231, filters=())


def watch() -> None:
    """Let a worker know the codec, which it does by importing this module, and tempt it."""
    config.threads = 4
    config.cache_bytes = 0


def threads_at_work() -> set[str]:
    found = set(Watched.threads)
    Watched.threads.clear()
    return found


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[b2array.NDArray]:
    # The settings of `watch`, but only here: what it assigns would last.
    with config.using(threads=4, cache_bytes=0):
        yield b2array.asarray(values(), url=tmp_path / "w.b2nd", chunks=(4, 5), blocks=(2, 5), cparams=WATCHED)


def read_and_write(a: b2array.NDArray, url: Path, scheduler: object, *, whole: bool = True) -> None:
    with dask.config.set({"array.chunk-size": "2kB"}):
        assert np.array_equal(a.to_dask().compute(scheduler=scheduler), values())
        if whole:
            assert np.array_equal(da.from_array(a, chunks=(20, 30)).compute(scheduler=scheduler), values())
        x = a.to_dask()
    threads_at_work()  # those that wrote the array, or read in this process
    b2array.from_dask(x, url, chunks=(4, 5), cparams=WATCHED, scheduler=scheduler)


def test_tasks_of_the_synchronous_scheduler_use_one_thread(watched: b2array.NDArray, tmp_path: Path) -> None:
    watched[...]
    threads_at_work()
    read_and_write(watched, tmp_path / "a.b2nd", "sync", whole=False)
    assert len(threads_at_work()) == 1


def test_tasks_of_threads_use_no_other_thread(watched: b2array.NDArray, tmp_path: Path) -> None:
    threads_at_work()
    with dask.config.set(num_workers=2):
        read_and_write(watched, tmp_path / "a.b2nd", "threads")
    used = threads_at_work()
    assert 1 <= len(used) <= 2
    assert not [name for name in used if name.startswith("b2array")]


def test_tasks_of_processes_use_one_thread(watched: b2array.NDArray, tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=fresh_processes(), initializer=watch) as pool:
        with dask.config.set(pool=pool):
            read_and_write(watched, tmp_path / "a.b2nd", "processes")
        assert threads_at_work() == set()
        assert len(pool.submit(threads_at_work).result(60)) == 1


def test_tasks_of_a_cluster_use_no_other_thread(client: object, watched: b2array.NDArray, tmp_path: Path) -> None:
    client.run(watch)
    read_and_write(watched, tmp_path / "a.b2nd", client)
    assert threads_at_work() == set()
    used = client.run(threads_at_work)
    assert any(used.values())
    assert not [name for names in used.values() for name in names if name.startswith("b2array")]


def test_workers_do_not_open_again(client: object, tmp_path: Path) -> None:
    a = b2array.asarray(values(), url=tmp_path / "a.b2nd", layout="sparse", chunks=PIECES)
    x = a.to_dask()
    (tmp_path / "a.b2nd" / "chunks.b2frame").rename(tmp_path / "gone")
    assert np.array_equal(x.compute(scheduler=client), values())


def kill_once(block: np.ndarray, marker: str, block_info: object = None) -> np.ndarray:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return block
    time.sleep(0.3)  # until other tasks have put their chunks
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def killing(x: da.Array, marker: Path) -> da.Array:
    name = f"killing-{dask.base.tokenize(x, str(marker))}"
    return x.map_blocks(kill_once, marker=str(marker), dtype=x.dtype, name=name, meta=np.empty((0, 0), x.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_worker_that_is_killed_is_made_up_for(mortal_client: object, tmp_path: Path, layout: str) -> None:
    x = killing(source(), tmp_path / "killed")
    a = b2array.from_dask(x, tmp_path / "a.b2nd", layout=layout, scheduler=mortal_client)
    assert (tmp_path / "killed").exists()
    assert np.array_equal(b2array.open(a.url)[...], values())
    assert [path.name for path in tmp_path.rglob(f"*{JOURNAL}*")] == []


def die_by_chance(block: np.ndarray, chance: float) -> np.ndarray:
    """Kill the worker, unless it is the first, with a chance that each repetition meets anew."""
    rng = np.random.default_rng()
    time.sleep(0.05 * rng.random())
    if str(distributed.get_worker().name) != "0" and rng.random() < chance:
        os.kill(os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.slow
def test_workers_that_die_again_and_again_and_steal_tasks_lose_nothing(tmp_path: Path, remote: dict[str, Any]) -> None:
    """Tasks repeat what a dead worker had written, beside tasks of the same array that go on elsewhere."""
    group_url, options = str(remote["url"]).replace("a.b2nd", "g.b2d"), remote["storage_options"]
    with dask.config.set({"distributed.scheduler.work-stealing-interval": "20ms"}), workers(3, failures=1000) as client:
        for number, chance in enumerate([0.1, 0.2]):
            values = np.random.default_rng(number).integers(0, 10**6, SHAPE)
            x = da.from_array(values, chunks=(8, 7)).map_blocks(die_by_chance, chance=chance, dtype=values.dtype)
            for layout in LAYOUTS:
                url = tmp_path / f"{number} {layout}.b2nd"
                a = b2array.from_dask(x, url, chunks=(4, 7), layout=layout, scheduler=client)
                assert np.array_equal(b2array.open(a.url)[...], values)
                group = b2array.open_group(tmp_path / f"{number}.b2d", "w")
                group.create("a", shape=SHAPE, dtype=values.dtype, chunks=(8, 7), layout=layout)
                with group.transaction() as changes:
                    changes["a"].store(x, scheduler=client)
                    changes["b"] = values
                for found in b2array.open_group(group.url).arrays().values():
                    assert np.array_equal(found[...], values)
            far = b2array.open_group(group_url, "w", storage_options=options)
            far.create("a", shape=SHAPE, dtype=values.dtype, chunks=(8, 7))
            far["a"].store(x, scheduler=client)
            assert np.array_equal(b2array.open_group(group_url, storage_options=options)["a"][...], values)
    assert b2array.verify(tmp_path)
    assert [path.name for path in tmp_path.rglob(f"*{JOURNAL}*")] == []


# On S3.


@pytest.fixture
def remote(bucket: str, s3_options: dict[str, object]) -> dict[str, object]:
    return {"url": f"s3://{bucket}/a.b2nd", "storage_options": s3_options}


@pytest.mark.slow
def test_a_cluster_writes_to_s3_and_reads_it(mortal_client: object, remote: dict[str, object], tmp_path: Path) -> None:
    client = mortal_client
    x = killing(source(), tmp_path / "killed")
    a = b2array.from_dask(x, **remote, scheduler=client)
    assert (tmp_path / "killed").exists()
    assert np.array_equal(b2array.open(**remote)[...], values())
    assert np.array_equal(a.to_dask().map_blocks(doubled).compute(scheduler=client), 2 * values())
    region = (slice(5, 25), slice(5, 20))
    a.store(-source()[region].rechunk(((5, 10, 5), (10, 5))), region, scheduler=client)
    expected = values()
    expected[region] *= -1
    assert np.array_equal(b2array.open(**remote)[...], expected)
    assert str(remote["storage_options"]["secret"]) not in repr(a.to_dask()) + a.to_dask().name


def test_processes_write_one_array_to_an_object_store(pool: Executor, cloud: Cloud, cloud_url: str) -> None:
    layout = "contiguous" if cloud.kind == "s3" else "sparse"
    remote = {"url": f"{cloud_url}/a.b2nd", "storage_options": cloud.options}
    with dask.config.set(scheduler="processes", pool=pool):
        a = b2array.from_dask(source(), **remote, layout=layout)
    assert np.array_equal(b2array.open(**remote)[...], values())
    assert a.info["layout"] == layout


def test_dask_store_to_s3_loses_nothing(remote: dict[str, object]) -> None:
    a = b2array.zeros(SHAPE, "i8", chunks=(20, 15), **remote)
    da.store(source(), a, lock=False, scheduler="threads", num_workers=3)
    assert np.array_equal(b2array.open(**remote)[...], values())


def test_reading_from_s3_asks_once_for_each_chunk(remote: dict[str, object], s3_calls: list[str]) -> None:
    a = b2array.from_dask(source(), **remote, scheduler="threads")
    x = pickle.loads(pickle.dumps(b2array.open(**remote).to_dask()))
    s3_calls.clear()
    with dask.config.set({"array.chunk-size": "1200B"}):
        x = b2array.open(**remote).to_dask()
    s3_calls.clear()
    assert x.sum().compute(scheduler="threads") == values().sum()
    assert s3_calls == ["get_object"] * a.nchunks
