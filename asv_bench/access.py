"""Read an array by every usual key, with the shapes for each kind of access: is the default bad for any key?

    python asv_bench/access.py [--runs N] [--only NUMBER ...] [--no-zarr] [--model | --bound]

The keys are a plane and a series along each axis, a box of a tenth of each axis, forty random patches, every fourth or
eighth item, and everything. The shapes are the default, the ones that ``access="boxes"`` gives, and shapes that are
thin, or long, along each axis in turn.
Each read opens the array anew, with an empty cache. Prints for the default milliseconds of
processor time, the ratio to the best shape for that key (the regret), and to zarr with its own defaults: medians of
ratios of reads that follow each other, so that a busy machine does no harm. ``--model`` fits what a read, a chunk and a
megabyte decoded cost to the same reads. ``--bound`` looks with the model for the shapes whose worst regret is the
least, for blocks of several sizes, and writes the array in each: what would a smaller regret cost?
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import b2array
from b2array.grid.chunking import automatic

Key = tuple[slice | int, ...]
Shapes = tuple[tuple[int, ...], tuple[int, ...]]

ARRAYS = [
    ((128, 256, 512), "f4", None), ((365, 180, 360), "f4", 2), ((144, 320, 400), "f4", None),
    ((3000, 5000), "f4", None), ((10_000, 500), "f8", 2), ((4380, 60, 60), "f4", 1), ((12, 700, 700, 3), "u1", 0),
    ((12, 20, 90, 180), "f4", None), ((10, 5, 5, 10, 32, 48), "f4", None),
]  # fmt: skip
"""Shape, type, and the decimals that values are rounded to."""


def values(shape: tuple[int, ...], dtype: str, decimals: int | None) -> np.ndarray[Any, Any]:
    """Return waves along each axis with a little noise."""
    rng = np.random.default_rng(1)
    field = rng.normal(0, 0.1, shape)
    for axis, n in enumerate(shape):
        along = np.sin(np.linspace(0, 7 + axis, n))
        field += 10 * along.reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return (field if decimals is None else np.round(field, decimals)).astype(dtype)


def usual_keys(shape: tuple[int, ...]) -> dict[str, list[Key]]:
    """Return the keys by name; the same handle reads all keys of one name, one after the other."""
    rng = np.random.default_rng(3)
    ndim = len(shape)
    place = [int(n * 0.37) for n in shape]
    keys: dict[str, list[Key]] = {}
    for axis in range(ndim) if ndim > 1 else ():
        keys[f"plane {axis}"] = [tuple(place[k] if k == axis else slice(None) for k in range(ndim))]
    for axis in range(ndim) if ndim > 2 else ():
        keys[f"series {axis}"] = [tuple(slice(None) if k == axis else place[k] for k in range(ndim))]
    keys["box"] = [tuple(slice(at, at + max(1, n // 10)) for at, n in zip(place, shape, strict=True))]
    side = round(32768 ** (1 / ndim))
    patches = []
    for _ in range(40):
        sizes = [min(side, n) for n in shape]
        starts = [int(rng.integers(0, n - size + 1)) for n, size in zip(shape, sizes, strict=True)]
        patches.append(tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True)))
    keys["patches"] = patches
    keys["strided"] = [tuple(slice(None, None, 8 if axis else 4) for axis in range(ndim))]
    keys["all"] = [(slice(None),) * ndim]
    return keys


def candidates(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[str, Shapes]]:
    """Yield names and shapes of chunks and blocks, the default first."""
    yield "default", automatic(shape, itemsize)
    yield "boxes", automatic(shape, itemsize, access="boxes")
    for axis in range(len(shape)):
        order = [axis, *(k for k in range(len(shape)) if k != axis)]
        back = np.argsort(order)
        for word, name in (("planes", "thin"), ("series", "long")):
            turned = automatic([shape[k] for k in order], itemsize, access=word)
            chunks, blocks = (tuple(part[k] for k in back) for part in turned)
            yield f"{name} {axis}", (chunks, blocks)


def cold(path: Path) -> b2array.NDArray:
    """Open an array, none of whose blocks is in the cache."""
    kept = b2array.config.cache_bytes
    b2array.config.cache_bytes = 0
    b2array.config.cache_bytes = kept
    return b2array.open(path)


def seconds(opened: Callable[[], Any], keys: list[Key]) -> float:
    """Return the processor time of an open and of reads."""
    begun = time.process_time()
    array = opened()
    for key in keys:
        array[key]
    return time.process_time() - begun


def measure(folder: Path, data: np.ndarray[Any, Any], runs: int, *, with_zarr: bool) -> None:
    """Write an array in each form, read it, and print a table."""
    openers: dict[str, Callable[[], Any]] = {}
    for name, (chunks, blocks) in candidates(data.shape, data.itemsize):
        path = folder / f"{name}.b2nd"
        b2array.asarray(data, url=path, chunks=chunks, blocks=blocks).close()
        openers[name] = lambda path=path: cold(path)
    if with_zarr:
        zarr.create_array(str(folder / "a.zarr"), data=data)
        openers["zarr"] = lambda: zarr.open_array(str(folder / "a.zarr"), mode="r")
    chunks, blocks = automatic(data.shape, data.itemsize)
    print(f"\n{data.shape} {data.dtype}: chunks {chunks}, blocks {blocks}")
    print(f"  {'key':10}{'ms':>8}{'regret':>9}  {'best':10}{'to zarr':>9}")
    for name, keys in usual_keys(data.shape).items():
        times: dict[str, list[float]] = {each: [] for each in openers}
        for run in range(runs + 1):
            for each, opened in openers.items():
                took = seconds(opened, keys)
                if run:
                    times[each].append(took)
        medians = {each: statistics.median(taken) for each, taken in times.items()}
        best = min((each for each in medians if each != "zarr"), key=medians.__getitem__)
        ratios = {
            other: statistics.median(a / b for a, b in zip(times["default"], times[other], strict=True))
            for other in {best, *times}
        }
        to_zarr = f"{ratios['zarr']:9.2f}" if with_zarr else ""
        print(f"  {name:10}{medians['default'] * 1e3:8.1f}{ratios[best]:9.1f}  {best:10}{to_zarr}", flush=True)


# The model.


def touched(extent: int, chunk: int, block: int, part: slice | int) -> tuple[int, int]:
    """Return how many chunks and how many blocks a part of an axis touches."""
    start, stop = (part, part + 1) if isinstance(part, int) else part.indices(extent)[:2]
    chunks = range(start // chunk, (stop - 1) // chunk + 1)
    spans = ((max(start, n * chunk) - n * chunk, min(stop, (n + 1) * chunk) - n * chunk) for n in chunks)
    return len(chunks), sum((last - 1) // block - first // block + 1 for first, last in spans)


def work(shape: tuple[int, ...], itemsize: int, shapes: Shapes, key: Key) -> tuple[float, float, float]:
    """Return what a read costs in units of the model: reads, chunks, and megabytes that are decoded."""
    nchunks, nblocks = 1, 1
    for n, c, b, part in zip(shape, *shapes, key, strict=True):
        along = touched(n, c, b, part)
        nchunks, nblocks = nchunks * along[0], nblocks * along[1]
    return 1.0, float(nchunks), nblocks * math.prod(shapes[1]) * itemsize / 1e6


def fit(folder: Path, data: np.ndarray[Any, Any], runs: int) -> None:
    """Fit the costs to measurements, and print how far off the model is."""
    rows, times = [], []
    for name, shapes in candidates(data.shape, data.itemsize):
        path = folder / f"{name}.b2nd"
        b2array.asarray(data, url=path, chunks=shapes[0], blocks=shapes[1]).close()
        for keys in usual_keys(data.shape).values():
            if len(keys) == 1 and all(isinstance(k, int) or k.step is None for k in keys[0]):
                taken = [seconds(lambda path=path: cold(path), keys) for _ in range(runs)]
                rows.append(work(data.shape, data.itemsize, shapes, keys[0]))
                times.append(statistics.median(taken) * 1e3)
    weights = 1 / np.array(times)
    costs, *_ = np.linalg.lstsq(np.array(rows) * weights[:, None], np.array(times) * weights, rcond=None)
    ratios = np.array(rows) @ costs / np.array(times)
    off = np.percentile(ratios, [10, 50, 90])
    print(f"{data.shape} {data.dtype}: {costs[0]:.2f} ms a read, {costs[1]:.3f} a chunk, {costs[2]:.2f} a megabyte;")
    print(f"  model / measured: {off[1]:.2f}, four fifths between {off[0]:.2f} and {off[2]:.2f}", flush=True)


# The least regret that is possible.

COSTS = {None: (0.45, 0.14, 0.65), 1: (0.42, 0.12, 1.31), 2: (0.42, 0.12, 1.31)}
"""Milliseconds of a read, a chunk and a megabyte, as `fit` found them, by the decimals that values are rounded to."""
BLOCK_SIZES = [(2**17, 2**18), (2**15, 2**16), (2**13, 2**14), (2**11, 2**12)]
CUTS = [*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256, 512, 1024]
MOST_PADDING = 1.25


def lengths(extent: int) -> list[int]:
    """Return the lengths of blocks to try along an axis."""
    return sorted({-(-extent // cut) for cut in CUTS})


def chunk_lengths(extent: int, block: int) -> list[int]:
    """Return the lengths of chunks to try along an axis with such blocks."""
    count = -(-extent // block)
    return sorted({min(block * n, extent) for n in (1, 2, 3, 4, 6, count)})


def least_worst(shape: tuple[int, ...], itemsize: int, costs: tuple[float, ...], sizes: tuple[int, int]) -> Shapes:
    """Return the shapes with blocks of a size, from `sizes[0]` to `sizes[1]` bytes, whose worst regret is the least."""

    def took(shapes: Shapes, key: Key) -> float:
        return sum(cost * n for cost, n in zip(costs, work(shape, itemsize, shapes, key), strict=True))

    keys = [each[0] for name, each in usual_keys(shape).items() if name not in ("patches", "strided")]
    usual = [shapes for _, shapes in candidates(shape, itemsize)]
    least = [min(took(shapes, key) for shapes in usual) for key in keys]
    worst, best = math.inf, usual[0]
    for blocks in itertools.product(*map(lengths, shape)):
        padding = math.prod(-(-n // b) * b / n for n, b in zip(shape, blocks, strict=True))
        if not sizes[0] < math.prod(blocks) * itemsize <= sizes[1] or padding > MOST_PADDING:
            continue
        for chunks in itertools.product(*map(chunk_lengths, shape, blocks)):
            if not 2**20 <= math.prod(chunks) * itemsize <= 10 * 2**20:
                continue
            regret = 0.0
            for key, ms in zip(keys, least, strict=True):
                regret = max(regret, took((chunks, blocks), key) / ms)
                if regret >= worst:
                    break
            else:
                worst, best = regret, (chunks, blocks)
    print(
        f"  {sizes[0] // 2**10:4} to {sizes[1] // 2**10} KiB: worst regret {worst:.1f}, {best[0]} / {best[1]}", end=""
    )
    return best


def bound(folder: Path, data: np.ndarray[Any, Any], costs: tuple[float, ...], runs: int) -> None:
    """Print for blocks of each size the least worst regret, the size of the file and the time to read all of it."""
    zarr.create_array(str(folder / "a.zarr"), data=data)
    other = sum(each.stat().st_size for each in (folder / "a.zarr").rglob("*") if each.is_file())
    print(f"\n{data.shape} {data.dtype}: by the model; measured, size to zarr and milliseconds to read all")
    for sizes in BLOCK_SIZES:
        chunks, blocks = least_worst(data.shape, data.itemsize, costs, sizes)
        path = folder / "a.b2nd"
        b2array.asarray(data, url=path, chunks=chunks, blocks=blocks, overwrite=True).close()
        taken = [seconds(lambda path=path: cold(path), [(slice(None),) * data.ndim]) for _ in range(runs)]
        print(f": {path.stat().st_size / other:.2f}, {statistics.median(taken) * 1e3:.0f} ms", flush=True)


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the arrays to try, from 0")
    parser.add_argument("--no-zarr", action="store_true")
    parser.add_argument("--model", action="store_true", help="fit the cost model")
    parser.add_argument("--bound", action="store_true", help="the least regret for blocks of each size")
    options = parser.parse_args()
    for number in options.only or range(len(ARRAYS)):
        data = values(*ARRAYS[number])
        with tempfile.TemporaryDirectory() as folder:
            if options.bound:
                bound(Path(folder), data, COSTS[ARRAYS[number][2]], options.runs)
            elif options.model:
                with b2array.config.using(threads=1):
                    fit(Path(folder), data, options.runs)
            else:
                measure(Path(folder), data, options.runs, with_zarr=not options.no_zarr)


if __name__ == "__main__":
    main()
