"""Where the time of b2array goes, beside the whole time of python-blosc2: what could better Python code still save?

    python asv_bench/limits.py [--rounds N]

For each action, prints milliseconds of both libraries in one thread, and how many of b2array's are spent in C: files,
checksums, decoding, encoding, and, for a read of what the cache has, one copy of the result. The rest is Python and
other copies in memory. The last column is the ratio that is left if the rest took no time at all.
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
from benchmarks import BLOCKS, CHUNKS, rounded
from compare import CLEVEL, SHAPE, forget

import b2array
from b2array import config
from b2array.codec import cblosc, codecs
from b2array.engine import staging
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


def actions(directory: Path, data: np.ndarray) -> dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]]:
    """Return what each library does in a round; a call prepares the round, and returns what is timed."""
    ours, theirs = directory / "a.b2nd", str(directory / "b.b2nd")
    a, b = b2array.asarray(data, url=ours), blosc2.asarray(data, urlpath=theirs, mode="w")
    order = np.random.default_rng(0).permutation(len(data)).tolist()
    equal = {"chunks": CHUNKS, "blocks": BLOCKS}
    c = b2array.zeros(data.shape, "f8", cparams=b2array.CParams("zstd", CLEVEL), url=directory / "c.b2nd", **equal)
    parameters = {"codec": blosc2.Codec.ZSTD, "clevel": CLEVEL}
    d = blosc2.zeros(data.shape, dtype="f8", urlpath=str(directory / "d.b2nd"), mode="w", cparams=parameters, **equal)

    # A table that is written along its second axis, which touches every chunk.
    table = np.ascontiguousarray(data[:49].reshape(-1)[: 2500**2].reshape(2500, 2500))
    e = b2array.asarray(table, url=directory / "e.b2nd")
    f = blosc2.asarray(table, urlpath=str(directory / "f.b2nd"), mode="w")

    def across(axis: int, ours: Any, theirs: Any, values: np.ndarray) -> tuple[Callable[[int], Any], ...]:
        def write(array: Any) -> Callable[[int], Any]:
            def prepared(n: int) -> Any:
                key = (slice(None),) * axis + (n,)
                step = np.ascontiguousarray(values[key])
                return lambda: array.__setitem__(key, step)

            return prepared

        return write(ours), write(theirs)

    def warm(key: Callable[[int], Any]) -> tuple[Callable[[int], Any], Callable[[int], Any]]:
        def first(n: int) -> Any:
            read = a[key(n)]

            def run() -> None:
                a[key(n)]
                begin = time.perf_counter()
                read.copy()
                spent["copy"] += time.perf_counter() - begin

            return run

        def second(n: int) -> Any:
            b[key(n)]
            return lambda: b[key(n)]

        return first, second

    def opened(key: Callable[[int], Any], *, again: bool) -> tuple[Callable[[int], Any], Callable[[int], Any]]:
        def first(n: int) -> Any:
            forget()
            handle = a if again else b2array.open(ours)
            return lambda: handle[key(n)]

        def second(n: int) -> Any:
            handle = b if again else blosc2.open(theirs)
            return lambda: handle[key(n)]

        return first, second

    def point(n: int) -> tuple[int, int, int]:
        return order[n], 5 * n, 7 * n

    return {
        "a[i]": opened(order.__getitem__, again=True),
        "a[i], just opened": opened(order.__getitem__, again=False),
        "point": opened(point, again=True),
        "point, just opened": opened(point, again=False),
        "a[i], again": warm(order.__getitem__),
        "box, again": warm(lambda n: (slice(n, n + 48), slice(n, n + 96), slice(n, n + 192))),
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
        for label, verbs in actions(Path(directory), rounded(SHAPE)).items():
            samples: tuple[list[list[float]], list[list[float]]] = [], []
            for number in range(3 if label == "write all" else rounds):
                for library in rng.sample((0, 1), 2):
                    run = verbs[library](number)
                    spent.update(dict.fromkeys(spent, 0.0))
                    begin = time.perf_counter()
                    run()
                    samples[library].append([time.perf_counter() - begin - spent["copy"], *spent.values()])
            ours, theirs = ([1e3 * median(column) for column in zip(*each, strict=True)] for each in samples)
            shares = "".join(f"{share:>11.2f}" for share in ours[1:])
            print(f"{label:28}{theirs[0]:>9.2f}{ours[0]:>9.2f}{shares}{sum(ours[1:]) / theirs[0]:>11.2f}", flush=True)


if __name__ == "__main__":
    main()
