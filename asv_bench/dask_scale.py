"""How dask's use of arrays grows: with the number of chunks, with workers, and beyond the memory there is.

Run it as ``python asv_bench/dask_scale.py``, or with one of ``chunks``, ``memory``, ``workers`` and
``requests``. All of it takes some minutes, and up to 3 GB in the directory for temporary files.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from dask.core import flatten

import b2array
from b2array.array import dask as dask_io
from b2array.commit import forks

COUNTS = (100, 10_000, 100_000)


def timed(verb: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> tuple[float, object]:
    start = clock()
    result = verb()
    return clock() - start, result


def used(verb: Callable[[], object]) -> tuple[float, object]:
    """Time what this process uses of the processor, whatever else runs."""
    return timed(verb, time.process_time)


def row(*cells: object) -> None:
    print("".join(f"{cell if isinstance(cell, str) else f'{cell:.4g}':>14}" for cell in cells), flush=True)


def chunks() -> None:
    """Seconds of the processor for arrays of many small chunks, one a task; none may grow faster than their number."""
    row("layout", "chunks", "open", "read graph", "optimise", "tasks", "graph kB", "pickling", "handle kB")
    row("", "", "write graph", "tasks", "graph kB", "pickling", "commit")
    with tempfile.TemporaryDirectory() as folder, dask.config.set({"array.chunk-size": "128B"}):
        for layout in ("contiguous", "sparse"):
            for count in COUNTS:
                _with(count, layout, Path(folder, f"{layout}{count}.b2nd"))


def _with(count: int, layout: str, url: Path) -> None:
    options = {"layout": layout, "chunks": (16,), "blocks": (16,)}
    x = da.zeros(16 * count, dtype="i8", chunks=16) + 1
    writing, write = used(lambda: b2array.from_dask(x, url.with_suffix(".other"), compute=False, **options))
    committing = _commit_draft(count, url, options)
    opening, a = used(lambda: b2array.open(url))
    reading, y = used(lambda: a.to_dask())
    optimising, graph = used(lambda: dict(y.__dask_optimize__(y.dask, list(flatten(y.__dask_keys__())))))
    sending, pickled = used(lambda: pickle.dumps(graph))
    handle = len(pickle.dumps(dask_io.Frozen(a)))
    row(layout, str(count), opening, reading, optimising, str(len(graph)), len(pickled) / 1e3, sending, handle / 1e3)
    graph = dict(write.dask)
    sending, pickled = used(lambda: pickle.dumps(graph))
    row("", "", writing, str(len(graph)), len(pickled) / 1e3, sending, committing)


def _commit_draft(count: int, url: Path, options: dict[str, object]) -> float:
    """Put chunks as tasks do, and time the commit alone."""
    values = np.arange(16 * count).reshape(count, 16)
    a = b2array.zeros(16 * count, "i8", url=url, **options)
    origin = forks.make_fork_point(a._handle.new_draft(), lasts=True)
    step = 1000
    changes = [
        forks.write_part(
            origin, (slice(16 * first, 16 * min(first + step, count), 1),), values[first : first + step].reshape(-1)
        )
        for first in range(0, count, step)
    ]
    return used(lambda: forks.commit_changes(origin, changes))[0]


_OUT_OF_CORE = """
import resource, sys, time
import dask, dask.array as da, numpy as np, b2array
url, target, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
dask.config.set({"array.chunk-size": "8MiB", "scheduler": "threads", "num_workers": 2})
a = b2array.open(url)
start = time.perf_counter(); total = float(a.to_dask().mean().compute()); reduced = time.perf_counter() - start
x = a.to_dask().rechunk((64, a.shape[1]), method="tasks", block_size_limit=2**25)
start = time.perf_counter()
b2array.from_dask(x, target, layout="sparse", chunks=(64, 4096), overwrite=True)
moved = time.perf_counter() - start
print(a.nbytes / 1e6, limit / 1e6, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, reduced, moved)
"""


def memory(nbytes: int = 2 * 2**30) -> None:
    """A reduction and a rechunk of an array that is larger than the address space of the process."""
    row("array MB", "limit MB", "peak MB", "reduce s", "rechunk s")
    with tempfile.TemporaryDirectory() as folder:
        rows = nbytes // (8 * 8192)
        x = da.arange(rows * 8192, chunks=2**20, dtype="i8").reshape(rows, 8192)
        url, target = str(Path(folder, "a.b2nd")), str(Path(folder, "b.b2nd"))
        b2array.from_dask(x.rechunk((512, 2048)), url, chunks=(512, 1024))
        command = [sys.executable, "-c", _OUT_OF_CORE, url, target, str(nbytes * 3 // 4)]
        settings = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        row(*map(float, done.stdout.split()))
        a, b = b2array.open(url), b2array.open(target)
        if not np.array_equal(a[100:200, 4000:4200], b[100:200, 4000:4200]):
            raise RuntimeError("what was rechunked is not what it was")


def workers() -> None:
    """The same work by one to four processes of a cluster, with a memory limit each."""
    from distributed import Client, LocalCluster

    row("workers", "write s", "reduce s", "peak MB each")
    for count in (1, 2, 4):
        with (
            tempfile.TemporaryDirectory() as folder,
            LocalCluster(count, threads_per_worker=1, memory_limit="400MiB", dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            writing, reducing = _written_and_reduced(Path(folder, "a.b2nd"))
            peaks = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
            row(str(count), writing, reducing, max(peaks.values()))


def _written_and_reduced(url: Path) -> tuple[float, float]:
    x = da.random.default_rng(0).normal(size=(8192, 8192), chunks=(1024, 1024)).round(2)
    writing, a = timed(lambda: b2array.from_dask(x, url, layout="sparse"))
    with dask.config.set({"array.chunk-size": "16MiB"}):
        y = a.to_dask()
    reducing, _ = timed(lambda: y.std(axis=0).compute())
    return writing, reducing


def _count_calls() -> None:
    """Let a process remember what it asks of S3, where functions that are sent to it find it, and no blocks."""
    import s3fs

    original = s3fs.S3FileSystem._call_s3

    async def call_s3(self: object, method: str, *args: object, **parameters: object) -> object:
        s3fs.S3FileSystem.asked_for.append(method)
        return await original(self, method, *args, **parameters)

    b2array.config.cache_bytes = 0
    s3fs.S3FileSystem.asked_for = []
    s3fs.S3FileSystem._call_s3 = call_s3


def _counted() -> Counter[str]:
    import s3fs

    return Counter(s3fs.S3FileSystem.asked_for)


def requests() -> None:
    """What a cluster asks of S3 (moto's server) to read all chunks, once whole and once a small part of each."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import s3fs
    from distributed import Client, LocalCluster
    from servers import s3_server

    row("chunks", "read", "tasks", "opening", "by workers", "a chunk")
    data = np.random.default_rng(0).integers(0, 1000, (640, 640))
    _count_calls()
    with s3_server() as options, LocalCluster(2, threads_per_worker=2, dashboard_address=None) as cluster:
        s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket="bench")
        where = {"url": "s3://bench/a.b2nd", "storage_options": options}
        b2array.asarray(data, **where, chunks=(80, 80), blocks=(40, 40))
        with Client(cluster) as client, dask.config.set({"array.chunk-size": "60kB"}):
            client.run(_count_calls)
            for what, key in (("whole", np.s_[...]), ("corners", np.s_[::80, ::80])):
                before = _counted()
                a = b2array.open(**where)
                x = a.to_dask()[key]
                opening, before = (_counted() - before).total(), sum(client.run(_counted).values(), Counter())
                if not np.array_equal(x.compute(), data[key]):
                    raise RuntimeError("what was read is wrong")
                asked = sum(client.run(_counted).values(), Counter()) - before
                if asked.keys() != {"get_object"}:
                    raise RuntimeError(f"workers asked for {dict(asked)}")
                row(
                    str(a.nchunks),
                    what,
                    str(x.npartitions),
                    str(opening),
                    str(asked.total()),
                    asked.total() / a.nchunks,
                )


def main() -> None:
    parts = {verb.__name__: verb for verb in (chunks, memory, workers, requests)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=[*parts, "all"], default="all")
    chosen = parser.parse_args().part
    for name, verb in parts.items():
        if chosen in (name, "all"):
            print(f"\n{name}: {verb.__doc__}\n")
            verb()


if __name__ == "__main__":
    main()
