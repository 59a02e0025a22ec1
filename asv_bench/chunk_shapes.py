"""Read and write one index of each axis, every library with its own defaults: are the automatic chunks good for all?

    python asv_bench/chunk_shapes.py [--runs N] [--data smooth|random]

Prints milliseconds a slab and the ratio of b2array's time to the fastest of the others.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import blosc2
import h5py
import numpy as np
import zarr

import b2array

SHAPES = [
    ((100, 512, 512), "f4"), ((512, 512, 100), "f4"), ((10_000, 100), "f8"), ((100, 10_000), "f8"),
    ((24, 1000, 1000, 3), "u1"), ((1_000_000,), "f8"), ((1000, 1000), "f8"), ((5000, 5000), "f4"),
    ((60, 720, 1440), "f4"), ((200, 200, 200), "f8"),
]  # fmt: skip


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    if dtype == "u1":
        return np.clip(rng.normal(100, 20, shape), 0, 255).astype(dtype)
    total = sum(
        np.sin(np.linspace(0, 7, n)).reshape([-1 if k == axis else 1 for k in range(len(shape))])
        for axis, n in enumerate(shape)
    )
    return (np.round(total * 1000) / 1000 + rng.integers(0, 4, shape) / 1000).astype(dtype)


def made(folder: Path, data: np.ndarray) -> dict[str, object]:
    """Store the values with each library's defaults; returns open, writable arrays."""
    dataset = h5py.File(folder / "a.h5", "w").create_dataset("a", data=data, chunks=True, compression="lzf")
    return {
        "b2array": b2array.asarray(data, url=folder / "a.b2nd"),
        "blosc2": blosc2.asarray(data, urlpath=str(folder / "c.b2nd"), mode="w"),
        "zarr": zarr.create_array(str(folder / "a.zarr"), data=data),
        "h5py": dataset,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--read-only", action="store_true")
    options = parser.parse_args()
    print(f"{'':34}{'b2array':>10}{'blosc2':>10}{'zarr':>10}{'h5py':>10}{'ratio':>8}  milliseconds a slab")
    rng = np.random.default_rng(0)
    for shape, dtype in SHAPES:
        data = values(shape, dtype)
        with tempfile.TemporaryDirectory() as folder:
            arrays = made(Path(folder), data)
            ours = arrays["b2array"]
            print(shape, dtype, "chunks", ours.chunks, "blocks", ours.blocks)
            for axis in range(len(shape)):
                for write in (False,) if options.read_only else (False, True):
                    taken: dict[str, list[float]] = {name: [] for name in arrays}
                    for index in rng.integers(0, shape[axis], options.runs).tolist():
                        key = (slice(None),) * axis + (index,)
                        plane = np.array(data[key])
                        for name, array in arrays.items():
                            begun = time.perf_counter()
                            if write:
                                array[key] = plane
                            else:
                                array[key]
                            taken[name].append(time.perf_counter() - begun)
                    medians = {name: statistics.median(times) * 1000 for name, times in taken.items()}
                    ratio = medians["b2array"] / min(time for name, time in medians.items() if name != "b2array")
                    times = "".join(f"{time:10.2f}" for time in medians.values())
                    print(f"  {'write' if write else 'read'} axis {axis:<22}{times}{ratio:8.1f}", flush=True)
            arrays["h5py"].file.close()


if __name__ == "__main__":
    main()
