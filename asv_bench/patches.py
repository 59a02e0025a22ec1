"""Random patches for training: b2array beside zarr and h5py, in one process and in workers.

    python asv_bench/patches.py [--patches N] [--rounds N] [--workers N]

A local array of float32 with noise, and random boxes of 32 items a side, a batch of 16 at a time. All compress with
zstd after a shuffle but h5py, which has gzip at level 1 after its own. What is decoded at once (blocks of b2array,
inner chunks of zarr, chunks of the others) has the same extents everywhere. The figures are processor time, medians of
rounds that take the libraries in turn. The cache of decoded blocks holds the whole array here, so that b2array is also
measured without it. Those of workers are the sums of all of them, without starting them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from zarr.codecs import BloscCodec

import b2array

SHAPE, CHUNKS, BLOCKS = (160, 256, 256), (32, 128, 128), (16, 32, 32)
PATCH, BATCH = (32, 32, 32), 16

CACHE = b2array.config.cache_bytes
Key = tuple[slice, ...]


def scans() -> np.ndarray:
    """Return smooth values with noise."""
    z, y, x = np.ogrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
    smooth = np.sin(z / 20) + np.cos(y / 30) + np.sin(x / 25)
    return (smooth + np.random.default_rng(0).normal(0, 0.01, SHAPE)).astype("f4").round(3)


def write(directory: Path) -> dict[str, str]:
    """Store the values with each library, and return the places."""
    values = scans()
    places = {name: str(directory / name) for name in ("b2array", "zarr", "zarr, sharded", "h5py")}
    b2array.save(places["b2array"] + ".b2nd", values, chunks=CHUNKS, blocks=BLOCKS)
    compressor = BloscCodec(cname="zstd", clevel=3, shuffle="shuffle")
    for name, shards in (("zarr", None), ("zarr, sharded", CHUNKS)):
        array = zarr.create_array(
            places[name], shape=SHAPE, dtype="f4", chunks=BLOCKS, shards=shards, compressors=compressor
        )
        array[...] = values
    with h5py.File(places["h5py"], "w") as file:
        file.create_dataset("x", data=values, chunks=BLOCKS, compression="gzip", compression_opts=1, shuffle=True)
    places["b2array"] += ".b2nd"
    places["b2array, cache"] = places["b2array"]
    return places


def opened(library: str, place: str) -> Callable[[Sequence[Key]], Any]:
    """Open an array, and return a function that reads a batch of patches."""
    if library.startswith("b2array"):
        b2array.config.cache_bytes = CACHE if "cache" in library else 0
        stored = b2array.open_array(place)
        return lambda keys: np.stack(b2array.read_many([(stored, key) for key in keys]))
    array = h5py.File(place)["x"] if library == "h5py" else zarr.open_array(place, mode="r")
    return lambda keys: np.stack([array[key] for key in keys])


def batches(count: int, seed: int) -> list[list[Key]]:
    """Return the places of random patches, in batches."""
    rng = np.random.default_rng(seed)
    corners = rng.integers(0, np.subtract(SHAPE, PATCH) + 1, (count, 3)).tolist()
    keys = [tuple(slice(i, i + n) for i, n in zip(corner, PATCH, strict=True)) for corner in corners]
    return [keys[first : first + BATCH] for first in range(0, count, BATCH)]


def seconds(job: tuple[str, str, int, int]) -> float:
    """Read patches, and return the processor time."""
    library, place, count, seed = job
    read = opened(library, place)
    read(batches(1, seed)[0])  # opens, and reads what is read once
    work = batches(count, seed)
    start = time.process_time()
    for keys in work:
        read(keys)
    return time.process_time() - start


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patches", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        places = write(Path(directory))
        alone: dict[str, list[float]] = {name: [] for name in places}
        shared: dict[str, list[float]] = {name: [] for name in places}
        share = options.patches // options.workers
        with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
            for turn in range(options.rounds):
                for name, place in places.items():
                    alone[name].append(seconds((name, place, options.patches, turn)) / options.patches)
                    jobs = [(name, place, share, 100 * turn + n) for n in range(options.workers)]
                    shared[name].append(sum(pool.map(seconds, jobs)) / (share * options.workers))
    print(f"{'':16}{'one process':>14}{f'{options.workers} workers':>14}   ms of processor time a patch")
    for name in places:
        print(f"{name:16}{1000 * statistics.median(alone[name]):14.2f}{1000 * statistics.median(shared[name]):14.2f}")


if __name__ == "__main__":
    main()
