"""Where the time of b2array goes, beside the whole time of python-blosc2: what could better Python code still save?

    python asv_bench/limits.py [--rounds N]

For each action, prints milliseconds of both libraries in one thread, and how many of b2array's are spent in C: files,
checksums, decoding, encoding, one copy of the result from the cache or from where it was decoded, and the first touch
of memory that is new: the cache's, or that of a large result. The rest is Python and other copies in memory. Then come
ratios to python-blosc2: of b2array; of C alone, if the rest took no time at all; and of a reader with the least Python,
`bare.Bare`.
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
from bare import Bare
from benchmarks import BLOCKS, CHUNKS, integers, rounded
from compare import CLEVEL, SHAPE, forget

import b2array
from b2array import config
from b2array.codec import cblosc, codecs
from b2array.commit import staging
from b2array.format import checksums
from b2array.frame import cache
from b2array.store import disk
from b2array.store.local_store import LocalStore
from b2array.store.spool import Spool

IN_C = {
    "file": [
        (disk, "read_into"),
        (LocalStore, "append"),
        (LocalStore, "replace"),
        (LocalStore, "adopt"),
        (Spool, "_flush"),
        (Spool, "finish"),
    ],
    "checksums": [(checksums, "check_blocks"), (staging, "pack_record")],
    "decode": [(cblosc, "_decompress"), (codecs, "decode_zstd_frames")],
    "encode": [(cblosc, "compress")],
    "copy": [],
    "memory": [],
}

# Equal shapes and codecs, so that only the programs differ.
EQUAL: dict[str, Any] = {"chunks": CHUNKS, "blocks": BLOCKS}
OURS = {**EQUAL, "cparams": b2array.CParams("zstd", CLEVEL, filters="shuffle")}
THEIRS = {**EQUAL, "cparams": {"codec": blosc2.Codec.ZSTD, "clevel": CLEVEL}}

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


Verbs = tuple[Callable[[int], Any], ...]
"""What b2array, python-blosc2 and perhaps `Bare` do in a round: a call prepares it, and returns what is timed.

That may return what is to be measured apart.
"""


class Reads:
    """One field in a file of each library, and keys of several patterns."""

    def __init__(self, directory: Path, data: np.ndarray) -> None:
        self.data, self.ours, self.theirs = data, directory / "a.b2nd", str(directory / "b.b2nd")
        self.a = b2array.asarray(data, url=self.ours, **OURS)
        self.b = blosc2.asarray(data, urlpath=self.theirs, mode="w", **THEIRS)
        self.bare: dict[str, Bare] = {}
        self.rng = np.random.default_rng(0)

    def slabs(self, axis: int) -> list[Any]:
        return [(slice(None),) * axis + (n,) for n in self.rng.permutation(self.data.shape[axis]).tolist()]

    def boxes(self, *extents: int) -> list[Any]:
        limits = zip(self.data.shape, extents, strict=True)
        corners = zip(*[self.rng.integers(1, n - extent, 99).tolist() for n, extent in limits], strict=True)
        return [tuple(slice(at, at + n) for at, n in zip(corner, extents, strict=True)) for corner in corners]

    def rows(self) -> dict[str, Verbs]:
        patterns = {
            "a[i]": self.slabs(0),
            "a[:, j]": self.slabs(1),
            "box": self.boxes(*(n * 3 // 8 for n in self.data.shape)),
            "tiny box": self.boxes(10, 10, 10),
            "point": [tuple(at.start for at in box) for box in self.boxes(1, 1, 1)],
        }
        rows = {}
        for label, keys in patterns.items():
            rows[label] = self.cold(keys, opened=False)
            rows[f"{label}, again"] = self.warm(keys)
            rows[f"{label}, just opened"] = self.cold(keys, opened=True)
        return rows

    def cold(self, keys: list[Any], *, opened: bool) -> Verbs:
        spare = cache.Cache()

        def ours(n: int) -> Any:
            forget()
            handle = b2array.open(self.ours) if opened else self.a

            def run() -> Callable[[], None]:
                read = np.asarray(handle[keys[n]])

                def apart() -> None:
                    measure("copy", read.copy)
                    touch(spare.reserve(1, read.nbytes)[1])

                return apart

            return run

        def theirs(n: int) -> Any:
            handle = blosc2.open(self.theirs) if opened else self.b
            return lambda: handle[keys[n]]

        def bare(n: int) -> Any:
            least = Bare(self.ours, keys[n])
            if not opened:
                self.bare[str(keys[n])] = least  # `warm` reads it again

            def run() -> Callable[[], None]:
                read = least.read(opened=opened)
                return lambda: np.testing.assert_array_equal(read.ravel(), self.data[keys[n]].ravel())

            return run

        return ours, theirs, bare

    def warm(self, keys: list[Any]) -> Verbs:
        def ours(n: int) -> Any:
            read = self.a[keys[n]]

            def run() -> Callable[[], None]:
                self.a[keys[n]]
                return lambda: measure("copy", read.copy)

            return run

        def theirs(n: int) -> Any:
            self.b[keys[n]]
            return lambda: self.b[keys[n]]

        def bare(n: int) -> Any:
            least = self.bare.pop(str(keys[n]))
            least.again()
            return lambda: least.again() is None

        return ours, theirs, bare


def everything(directory: Path, values: np.ndarray, codec: str) -> Verbs:
    a = b2array.asarray(values, url=directory / f"{codec}.b2nd", cparams=b2array.CParams(codec, filters="shuffle"))
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
    c = b2array.zeros(data.shape, "f8", url=directory / "c.b2nd", **OURS)
    d = blosc2.zeros(data.shape, dtype="f8", urlpath=str(directory / "d.b2nd"), mode="w", **THEIRS)

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
    }


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
    labels = [*IN_C, "| b2array", "C alone", "bare"]
    print(f"{'milliseconds':28}{'blosc2':>9}{'b2array':>9}" + "".join(f"{label:>11}" for label in labels))
    with tempfile.TemporaryDirectory(prefix="b2array-limits-") as directory:
        data = rounded(SHAPE)
        actions = Reads(Path(directory), data).rows()
        actions["read all, zstd"] = everything(Path(directory), data.copy(), "zstd")
        actions["read all, lz4, counts"] = everything(Path(directory), integers(SHAPE), "lz4")
        actions |= writes(Path(directory), data)
        for label, verbs in actions.items():
            samples: list[list[list[float]]] = [[] for _ in verbs]
            for number in range(5 if " all" in label else rounds):
                for reader in rng.sample(range(len(verbs)), len(verbs)):
                    run = verbs[reader](number)
                    spent.update(dict.fromkeys(spent, 0.0))
                    begin = time.perf_counter()
                    measure_apart = run()
                    elapsed = time.perf_counter() - begin
                    if callable(measure_apart):
                        measure_apart()
                    samples[reader].append([elapsed, *spent.values()])
            ours, theirs, *bare = ([1e3 * median(column) for column in zip(*each, strict=True)] for each in samples)
            shares = "".join(f"{share:>11.2f}" for share in ours[1:])
            ratios = [ours[0], sum(ours[1:]), *(each[0] for each in bare)]
            rated = "".join(f"{each / theirs[0]:>11.2f}" for each in ratios)
            print(f"{label:28}{theirs[0]:>9.2f}{ours[0]:>9.2f}{shares}{rated}", flush=True)


if __name__ == "__main__":
    main()
