"""Where the time of b2array goes, beside the whole time of python-blosc2: what could better Python code still save?

    python asv_bench/limits.py [--rounds N]

For each action, prints milliseconds of both libraries in one thread, and how many of b2array's are spent in C: files,
checksums, decoding, encoding, one copy of the result from the cache or from where it was decoded, and the first touch
of memory that is new: the cache's, or that of a large result. The rest is Python and other copies in memory. The last
column is the ratio that is left if the rest took no time at all.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import blosc2
import numpy as np
from benchmarks import BLOCKS, CHUNKS, integers, rounded
from compare import CLEVEL, SHAPE, forget

import b2array
from b2array import config
from b2array.codec import cblosc, codecs
from b2array.engine import cache, staging
from b2array.format import checksums
from b2array.store import disk
from b2array.store.local import LocalStore
from b2array.store.spool import Spool

IN_C = {
    "file": [
        (disk, "read_into"), (LocalStore, "append"), (LocalStore, "replace"), (LocalStore, "adopt"),
        (Spool, "_flush"), (Spool, "finish"),
    ],
    "checksums": [(checksums, "check_blocks"), (staging, "pack_record")],
    "decode": [(cblosc, "_decompress"), (codecs, "decode_zstd_frames")],
    "encode": [(cblosc, "compress")],
    "copy": [],
    "memory": [],
}  # fmt: skip

spent = dict.fromkeys(IN_C, 0.0)


def watch(module: Any, name: str, label: str) -> None:
    function = getattr(module, name)

    def watched(*args: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            spent[label] += time.perf_counter() - begin

    setattr(module, name, watched)


def measure(label: str, action: Callable[[], Any]) -> None:
    """Measure alone what a read did among other things."""
    begin = time.perf_counter()
    action()
    spent[label] += time.perf_counter() - begin


def touch(new: np.ndarray) -> None:
    """Measure what the first touch of memory costs more than the second."""
    measure("memory", lambda: new.fill(0))
    begin = time.perf_counter()
    new.fill(0)
    spent["memory"] -= time.perf_counter() - begin


Verbs = tuple[Callable[[int], Any], Callable[[int], Any]]
"""What each library does in a round: a call prepares it, and returns what is timed.

That may return what is to be measured apart.
"""


def reads(directory: Path, data: np.ndarray) -> dict[str, Verbs]:
    ours, theirs = directory / "a.b2nd", str(directory / "b.b2nd")
    a, b = b2array.asarray(data, url=ours), blosc2.asarray(data, urlpath=theirs, mode="w")
    order = np.random.default_rng(0).permutation(len(data)).tolist()
    spare = cache.Cache()

    def warm(key: Callable[[int], Any]) -> Verbs:
        def first(n: int) -> Any:
            read = a[key(n)]

            def run() -> Callable[[], None]:
                a[key(n)]
                return lambda: measure("copy", read.copy)

            return run

        def second(n: int) -> Any:
            b[key(n)]
            return lambda: b[key(n)]

        return first, second

    def cold(key: Callable[[int], Any], *, opened: bool) -> Verbs:
        def first(n: int) -> Any:
            if opened:
                forget()
            handle = b2array.open(ours) if opened else a

            def run() -> Callable[[], None]:
                read = np.asarray(handle[key(n)])

                def apart() -> None:
                    measure("copy", read.copy)
                    touch(spare.room_for(read.nbytes)[1])

                return apart

            return run

        def second(n: int) -> Any:
            handle = blosc2.open(theirs) if opened else b
            return lambda: handle[key(n)]

        return first, second

    def point(n: int) -> tuple[int, int, int]:
        return order[n], 5 * n, 7 * n

    return {
        "a[i]": cold(order.__getitem__, opened=False),
        "a[i], just opened": cold(order.__getitem__, opened=True),
        "point": cold(point, opened=False),
        "point, just opened": cold(point, opened=True),
        "a[i], again": warm(order.__getitem__),
        "box, again": warm(lambda n: (slice(n, n + 48), slice(n, n + 96), slice(n, n + 192))),
    }


def everything(directory: Path, values: np.ndarray, codec: str) -> Verbs:
    a = b2array.asarray(values, url=directory / f"{codec}.b2nd", cparams=b2array.CParams(codec))
    parameters = {"codec": blosc2.Codec[codec.upper()]}
    b = blosc2.asarray(values, urlpath=str(directory / f"{codec}-2.b2nd"), mode="w", cparams=parameters)

    def first(_: int) -> Any:
        forget()

        def run() -> Callable[[], None]:
            read = a[...]

            def apart() -> None:
                measure("copy", lambda: np.copyto(values, read))
                touch(np.empty_like(read))

            return apart

        return run

    return first, lambda _: lambda: b[:]


def writes(directory: Path, data: np.ndarray) -> dict[str, Verbs]:
    a, b = b2array.open(directory / "a.b2nd", "r+"), blosc2.open(str(directory / "b.b2nd"), mode="a")
    equal = {"chunks": CHUNKS, "blocks": BLOCKS}
    c = b2array.zeros(data.shape, "f8", cparams=b2array.CParams("zstd", CLEVEL), url=directory / "c.b2nd", **equal)
    parameters = {"codec": blosc2.Codec.ZSTD, "clevel": CLEVEL}
    d = blosc2.zeros(data.shape, dtype="f8", urlpath=str(directory / "d.b2nd"), mode="w", cparams=parameters, **equal)

    # A table that is written along its second axis, which touches every chunk.
    table = np.ascontiguousarray(data[:49].reshape(-1)[: 2500**2].reshape(2500, 2500))
    e = b2array.asarray(table, url=directory / "e.b2nd")
    f = blosc2.asarray(table, urlpath=str(directory / "f.b2nd"), mode="w")

    def across(axis: int, ours: Any, theirs: Any, values: np.ndarray) -> Verbs:
        def write(array: Any) -> Callable[[int], Any]:
            def prepared(n: int) -> Any:
                key = (slice(None),) * axis + (n,)
                step = np.ascontiguousarray(values[key])
                return lambda: array.__setitem__(key, step)

            return prepared

        return write(ours), write(theirs)

    return {
        "a[i] = step, equal chunks": across(0, c, d, data),
        "a[:, j] = step, equal chunks": across(1, c, d, data),
        "table[:, j] = column": across(1, e, f, table),
        "write all": (lambda _: lambda: a.__setitem__(..., data), lambda _: lambda: b.__setitem__(slice(None), data)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    config.threads = 1
    blosc2.set_nthreads(1)
    for label, functions in IN_C.items():
        for module, name in functions:
            watch(module, name, label)
    rng = random.Random(0)
    print(
        f"{'milliseconds':28}{'blosc2':>9}{'b2array':>9}" + "".join(f"{label:>11}" for label in IN_C) + "   if C alone"
    )
    with tempfile.TemporaryDirectory(prefix="b2array-limits-") as directory:
        data = rounded(SHAPE)
        actions = reads(Path(directory), data)
        actions["read all, zstd"] = everything(Path(directory), data.copy(), "zstd")
        actions["read all, lz4, counts"] = everything(Path(directory), integers(SHAPE), "lz4")
        actions |= writes(Path(directory), data)
        for label, verbs in actions.items():
            samples: tuple[list[list[float]], list[list[float]]] = [], []
            for number in range(5 if " all" in label else rounds):
                for library in rng.sample((0, 1), 2):
                    run = verbs[library](number)
                    spent.update(dict.fromkeys(spent, 0.0))
                    begin = time.perf_counter()
                    measure_apart = run()
                    elapsed = time.perf_counter() - begin
                    if callable(measure_apart):
                        measure_apart()
                    samples[library].append([elapsed, *spent.values()])
            ours, theirs = ([1e3 * median(column) for column in zip(*each, strict=True)] for each in samples)
            shares = "".join(f"{share:>11.2f}" for share in ours[1:])
            print(f"{label:28}{theirs[0]:>9.2f}{ours[0]:>9.2f}{shares}{sum(ours[1:]) / theirs[0]:>11.2f}", flush=True)


if __name__ == "__main__":
    main()
