"""b2array beside python-blosc2, zarr (sharded and not), h5py and tensorstore: the same data and the same verbs.

    python asv_bench/compare.py [--quick] [--equal] [--data NAME ...] [--codec NAME] [--rounds N] [--json FILE]

Each library works with its own defaults; with ``--equal``, with the same chunks, blocks, codec and level, and the two
Blosc2 libraries then read one file, which python-blosc2 has written. Every verb is tried in turns, by wall clock and
by processor time, and the tables give medians; a ratio below 1 means that b2array takes less. Files are in a temporary
directory, in the system's memory, which is removed at the end. Nothing else should use the machine meanwhile. plot.py
draws what ``--json`` writes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import blosc2
import h5py
import hdf5plugin
import numpy as np
import tensorstore
import zarr
from benchmarks import BLOCKS, CHUNKS, DATA
from timing import Times, in_turns

import b2array
from b2array import config, threads
from b2array.frame import cache

SHAPE = (128, 256, 512)
QUICK = (64, 128, 256)
CLEVEL = 5

Rows = dict[str, dict[str, Times]]


class Parameters(NamedTuple):
    """What `--equal` gives to all libraries; in its place stands None for the defaults of each."""

    codec: str


class Library(NamedTuple):
    """How to make an array of zeros, open it, read, write, and grow it along the first axis."""

    name: str
    create: Callable[[Path, tuple[int, ...], Any, Parameters | None], Any]
    open: Callable[[Path], Any]
    read: Callable[[Any, Any], np.ndarray] = lambda a, key: a[key]
    write: Callable[[Any, Any, Any], None] = lambda a, key, values: a.__setitem__(key, values)
    grow: Callable[[Any, int], Any] = lambda a, n: a.resize((n, *a.shape[1:]))


def create_b2array(path: Path, shape: tuple[int, ...], dtype: Any, equal: Parameters | None) -> Any:
    cparams = b2array.CParams(equal.codec, CLEVEL, filters="shuffle") if equal else None
    options = {"chunks": CHUNKS, "blocks": BLOCKS, "cparams": cparams} if equal else {}
    return b2array.zeros(shape, dtype, url=path, **options)


def create_blosc2(path: Path, shape: tuple[int, ...], dtype: Any, equal: Parameters | None) -> Any:
    options: dict[str, Any] = {}
    if equal:
        options = {"chunks": CHUNKS, "blocks": BLOCKS}
        options["cparams"] = {"codec": blosc2.Codec[equal.codec.upper()], "clevel": CLEVEL}
    return blosc2.zeros(shape, dtype=dtype, urlpath=str(path), mode="w", **options)


def create_zarr(path: Path, shape: tuple[int, ...], dtype: Any, equal: Parameters | None) -> Any:
    """Create chunks as large as blocks."""
    return zarr.create_array(str(path), shape=shape, dtype=dtype, **zarr_options(equal))


def create_shards(path: Path, shape: tuple[int, ...], dtype: Any, equal: Parameters | None) -> Any:
    """Create shards in place of chunks, and chunks in place of blocks."""
    options: dict[str, Any] = {"shards": CHUNKS, **zarr_options(equal)} if equal else {"shards": "auto"}
    return zarr.create_array(str(path), shape=shape, dtype=dtype, **options)


def zarr_options(equal: Parameters | None) -> dict[str, Any]:
    if equal is None:
        return {}
    return {
        "chunks": BLOCKS,
        "compressors": zarr.codecs.BloscCodec(cname=equal.codec, clevel=CLEVEL, shuffle="shuffle"),
    }


def create_h5py(path: Path, shape: tuple[int, ...], dtype: Any, equal: Parameters | None) -> Any:
    """Create chunks as large as blocks, or of the size that h5py chooses, by the filter Blosc."""
    chosen = hdf5plugin.Blosc(cname=equal.codec, clevel=CLEVEL) if equal else hdf5plugin.Blosc()
    chunks = BLOCKS if equal else True
    maxshape = (None, *shape[1:])
    return h5py.File(path, "w").create_dataset("a", shape, dtype, chunks=chunks, maxshape=maxshape, compression=chosen)


def create_tensorstore(path: Path, shape: tuple[int, ...], dtype: Any, equal: Parameters | None) -> Any:
    metadata: dict[str, Any] = {}
    if equal:
        blosc = {"cname": equal.codec, "clevel": CLEVEL, "shuffle": "shuffle", "typesize": np.dtype(dtype).itemsize}
        inner = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "blosc", "configuration": blosc}]
        sharded = {"name": "sharding_indexed", "configuration": {"chunk_shape": BLOCKS, "codecs": inner}}
        metadata = {
            "codecs": [sharded],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": CHUNKS}},
        }
    spec = spec_of(path) | ({"metadata": metadata} if metadata else {})
    return tensorstore.open(spec, create=True, shape=shape, dtype=np.dtype(dtype)).result()


def spec_of(path: Path) -> dict[str, Any]:
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}


LIBRARIES = [
    Library("b2array", create_b2array, lambda path: b2array.open(path, mode="r+")),
    Library("blosc2", create_blosc2, lambda path: blosc2.open(str(path), mode="a")),
    Library("zarr", create_zarr, lambda path: zarr.open_array(str(path), mode="r+")),
    Library("zarr, shards", create_shards, lambda path: zarr.open_array(str(path), mode="r+")),
    Library("h5py", create_h5py, lambda path: h5py.File(path, "r+")["a"], grow=lambda a, n: a.resize(n, axis=0)),
    Library(
        "tensorstore",
        create_tensorstore,
        lambda path: tensorstore.open(spec_of(path), open=True).result(),
        read=lambda a, key: a[key].read().result(),
        write=lambda a, key, values: a[key].write(values).result(),
        grow=lambda a, n: a.resize(exclusive_max=[n, *a.shape[1:]]).result(),
    ),
]


# What is measured.


def keys(shape: tuple[int, ...], rounds: int) -> dict[str, list[Any]]:
    """Return keys of every pattern, none of which begins where a chunk or a block does."""
    rng = np.random.default_rng(0)

    def boxes(extents: tuple[int, ...]) -> list[Any]:
        starts = [rng.integers(1, n - extent, rounds).tolist() for n, extent in zip(shape, extents, strict=True)]
        corners = zip(*starts, strict=True)
        return [tuple(slice(at, at + n) for at, n in zip(corner, extents, strict=True)) for corner in corners]

    def slabs(axis: int) -> list[Any]:
        return [(slice(None),) * axis + (i,) for i in rng.permutation(shape[axis])[:rounds].tolist()]

    def series() -> list[Any]:
        return [(slice(None), *(at.start for at in box[1:])) for box in boxes((1, 1, 1))]

    def strided() -> list[Any]:
        return [(slice(number % 4, None, 4), *(slice(None, None, 8) for _ in shape[1:])) for number in range(rounds)]

    return {
        "slab [i]": slabs(0),
        "slab [:, j]": slabs(1),
        "slab [:, :, k]": slabs(2),
        "series [:, j, k]": series(),
        "every 4th, 8th, 8th": strided(),
        "box of 3/8": boxes(tuple(n * 3 // 8 for n in shape)),
        "tiny box": boxes((10, 10, 10)),
        "point": [tuple(at.start for at in box) for box in boxes((1, 1, 1))],
    }


class Field:
    """One field in a file of every library, and the time that each verb takes."""

    def __init__(self, directory: Path, data: np.ndarray, equal: Parameters | None, rounds: int) -> None:
        self.directory, self.data, self.equal, self.rounds = directory, data, equal, rounds
        self.rows: Rows = {}
        self.made = 0

    def new(self, library: Library, shape: tuple[int, ...]) -> tuple[Path, Any]:
        self.made += 1
        path = self.directory / f"{self.made}.{'b2nd' if 'b2' in library.name or 'blosc' in library.name else 'x'}"
        return path, library.create(path, shape, self.data.dtype, self.equal)

    def turns(self, label: str, verbs: dict[str, Callable[[int], Any]], rounds: int | None = None) -> None:
        """Time each verb in turns; a verb is called with the number of the round and returns what is not timed."""
        self.rows[label] = in_turns(verbs, rounds or self.rounds)

    def writes(self) -> dict[str, Path]:
        """Write the whole field; returns the path of each library's last file."""
        paths: dict[str, Path] = {}

        def whole(library: Library) -> Callable[[int], Any]:
            def prepared(_: int) -> Any:
                if library.name in paths:
                    remove(paths[library.name])
                paths[library.name], array = self.new(library, self.data.shape)
                return lambda: library.write(array, (slice(None),) * 3, self.data)

            return prepared

        self.turns("write all", {each.name: whole(each) for each in LIBRARIES}, max(3, self.rounds // 3))
        if self.equal:
            remove(paths["b2array"])
            paths["b2array"] = paths["blosc2"]
        self.rows["size"] = {name: (nbytes(path), 0.0) for name, path in paths.items()}
        return paths

    def reads(self, paths: dict[str, Path]) -> None:
        arrays = {each.name: each.open(paths[each.name]) for each in LIBRARIES}
        self.turns("open", {each.name: lambda _, each=each: lambda: each.open(paths[each.name]) for each in LIBRARIES})
        for label, chosen in keys(self.data.shape, self.rounds).items():
            for each in LIBRARIES:
                if not np.array_equal(each.read(arrays[each.name], chosen[0]), self.data[chosen[0]]):
                    raise SystemExit(f"{each.name}: {label} is not what was written")
            forget()

            def read(each: Library, chosen: list[Any] = chosen) -> Callable[[int], Any]:
                return lambda number: lambda: each.read(arrays[each.name], chosen[number])

            def opened(each: Library, chosen: list[Any] = chosen) -> Callable[[int], Any]:
                def prepared(number: int) -> Any:
                    forget()
                    array = each.open(paths[each.name])
                    return lambda: each.read(array, chosen[number])

                return prepared

            self.turns(label, {each.name: read(each) for each in LIBRARIES})
            self.turns(f"{label}, again", {each.name: read(each) for each in LIBRARIES})
            self.turns(f"{label}, just opened", {each.name: opened(each) for each in LIBRARIES})
        everything = (slice(None),) * 3

        def all_of(each: Library) -> Callable[[int], Any]:
            def prepared(_: int) -> Any:
                forget()
                return lambda: each.read(arrays[each.name], everything)

            return prepared

        whole = {each.name: all_of(each) for each in LIBRARIES}
        with b2array.open_schunk(paths["b2array"]) as stored:
            chunks = [stored.get_chunk(n) for n in range(stored.nchunks)]
        limits: dict[str, Callable[[int], Any]] = {
            "a copy in memory": lambda _: self.data.copy,
            "the codec alone": lambda _: lambda: deque(threads.spread(b2array.decompress, chunks), 0),
        }
        self.turns("read all", whole | limits, max(3, self.rounds // 3))
        before = config.threads, blosc2.nthreads
        config.threads, alone = 1, {name: whole[name] for name in ("b2array", "blosc2")}
        blosc2.set_nthreads(1)
        arrays["blosc2"] = LIBRARIES[1].open(paths["blosc2"])  # it keeps the number of threads
        self.turns("read all, one thread", alone | limits, max(3, self.rounds // 3))
        config.threads = before[0]
        blosc2.set_nthreads(before[1])

    def steps(self) -> None:
        """Write into arrays of zeros step by step, along each axis, and then small things."""
        for axis, label in enumerate(("a[i] = step", "a[:, j] = step", "a[:, :, k] = step")):
            arrays = {each.name: self.new(each, self.data.shape) for each in LIBRARIES}

            def step(each: Library, array: Any, axis: int = axis) -> Callable[[int], Any]:
                key = (slice(None),) * axis

                def prepared(n: int) -> Any:
                    values = np.ascontiguousarray(self.data[(*key, n)])
                    return lambda: each.write(array, (*key, n), values)

                return prepared

            self.turns(label, {each.name: step(each, arrays[each.name][1]) for each in LIBRARIES})
            if axis == 0:
                self.in_a_transaction(arrays)
                self.small(arrays)
            for path, _ in arrays.values():
                remove(path)

    def in_a_transaction(self, arrays: dict[str, tuple[Path, Any]]) -> None:
        """Write as many steps at once; the others have no transactions and write them one by one."""

        def several(each: Library) -> Callable[[int], Any]:
            array, count = arrays[each.name][1], self.rounds

            def run() -> None:
                with array.transaction() if each.name == "b2array" else contextlib.nullcontext(array) as inside:
                    for n in range(count):
                        each.write(inside, (n + 1, slice(None), slice(None)), self.data[n])

            return lambda _: run

        self.turns(f"{self.rounds} steps, one commit", {each.name: several(each) for each in LIBRARIES}, 3)

    def small(self, arrays: dict[str, tuple[Path, Any]]) -> None:
        def point(each: Library) -> Callable[[int], Any]:
            return lambda n: lambda: each.write(arrays[each.name][1], (n, 5 + n, 7), n)

        self.turns("a point written", {each.name: point(each) for each in LIBRARIES})
        held = {each.name: arrays[each.name][1] for each in LIBRARIES}

        def append(each: Library) -> Callable[[int], Any]:
            def run() -> None:
                array = held[each.name]
                if each.name == "b2array":
                    array.append(self.data[:1])
                    return
                n = array.shape[0]
                held[each.name] = each.grow(array, n + 1) if each.name == "tensorstore" else array
                if each.name != "tensorstore":
                    each.grow(array, n + 1)
                each.write(held[each.name], (slice(n, n + 1), slice(None), slice(None)), self.data[:1])

            return lambda _: run

        self.turns("a row appended", {each.name: append(each) for each in LIBRARIES})


def forget() -> None:
    """Begin with an empty cache of decoded blocks, as a new process does; the others keep none beyond their handles."""
    cache.blocks = cache.Cache()


def nbytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def imports(rounds: int) -> dict[str, Times]:
    """Import each library in new processes."""
    lines = {"b2array": "b2array", "blosc2": "blosc2", "zarr": "zarr", "h5py": "h5py", "tensorstore": "tensorstore"}
    samples: dict[str, list[float]] = {name: [] for name in lines}
    for _ in range(rounds):
        for name, line in lines.items():
            script = f"import time; t = time.perf_counter(); import {line}; print(time.perf_counter() - t)"
            found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
            samples[name].append(float(found.stdout))
    return {name: (median(each), 0.0) for name, each in samples.items()}


# What is shown.


def lines(title: str, rows: Rows) -> Iterator[str]:
    """Yield a table: milliseconds by wall clock, and ratios of wall clock and of processor time."""
    others = [library.name for library in LIBRARIES[1:]]
    yield f"\n{title}"
    yield f"{'':26}{'b2array':>12}" + "".join(f"{name:>28}" for name in others)
    for label, row in rows.items():
        own = row["b2array"]
        unit, scale = ("MB", 1e-6) if label == "size" else ("ms", 1e3)
        cells = []
        for name in [*others, *(row.keys() - {each.name for each in LIBRARIES})]:
            if name not in row:
                cells.append(" " * 28)
                continue
            wall, cpu = row[name]
            ratios = f"x{own[0] / wall:.2f}" + (f" cpu x{own[1] / cpu:.2f}" if cpu else "")
            cells.append(f"{wall * scale:>10.2f} {unit} {ratios:>14}" + ("" if name in others else f" ({name})"))
        yield f"{label:26}{own[0] * scale:>9.2f} {unit}" + "".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small field and few rounds")
    parser.add_argument("--equal", action="store_true", help="the same chunks, blocks, codec and level for all")
    parser.add_argument("--data", nargs="+", choices=DATA, default=["rounded"])
    parser.add_argument("--codec", choices=("lz4", "zstd"), default="zstd", help="with --equal")
    parser.add_argument("--rounds", type=int, help="samples of each value")
    parser.add_argument("--threads", type=int, help="of b2array and python-blosc2; by default what each chooses")
    parser.add_argument("--json", type=Path, help="write all medians here")
    chosen = parser.parse_args()
    rounds = chosen.rounds or (3 if chosen.quick else 15)
    if chosen.threads:
        config.threads = chosen.threads
        blosc2.set_nthreads(chosen.threads)
    names = ("numpy", "blosc2", "zarr", "h5py", "hdf5plugin", "tensorstore")
    print(
        f"Python {sys.version.split()[0]},", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    )
    print(
        f"{os.cpu_count()} CPUs; threads: b2array {config.threads}, python-blosc2 {blosc2.nthreads}; b2array waits for "
        f"the disk as durable={config.durable!r} says, the others never; medians of {rounds} rounds"
    )
    equal = Parameters(chosen.codec) if chosen.equal else None
    results: dict[str, Rows] = {}
    for name in chosen.data:
        data = DATA[name](QUICK if chosen.quick else SHAPE)
        with tempfile.TemporaryDirectory(prefix="b2array-compare-") as temporary:
            field = Field(Path(temporary), data, equal, rounds)
            field.reads(field.writes())
            field.steps()
        results[name] = field.rows
        how = f"chunks {CHUNKS}, blocks {BLOCKS}, {chosen.codec} level {CLEVEL}" if equal else "each library's defaults"
        print("\n".join(lines(f"{name}: {data.dtype} {data.shape}, {data.nbytes / 1e6:.0f} MB; {how}", field.rows)))
    print("\nimport, seconds:", {name: round(wall, 3) for name, (wall, _) in imports(rounds).items()})
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
