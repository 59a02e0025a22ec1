"""Read and write one index of each axis, every library with its own defaults: are the automatic chunks good for all?

    python asv_bench/chunk_shapes.py [--runs N] [--read-only] [--only SHAPE ...]

Prints milliseconds a slab, by wall clock and of processor time, and the ratio of b2array's to the fastest of the
others. A write ends when other processes can see it: h5py, which keeps changed chunks in memory, is told to flush.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import h5py
import numpy as np
import zarr
from timing import in_turns

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


def slab(array: Any, keys: list[Any], planes: list[np.ndarray] | None) -> Callable[[int], Callable[[], object]]:
    """Read slabs, or write `planes` to them."""

    def write(number: int) -> None:
        array[keys[number]] = planes[number]
        if isinstance(array, h5py.Dataset):
            array.file.flush()

    return lambda number: (lambda: array[keys[number]]) if planes is None else (lambda: write(number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the shapes to try, from 0")
    options = parser.parse_args()
    names = ("b2array", "blosc2", "zarr", "h5py")
    print(
        f"{'milliseconds, wall (processor)':34}" + "".join(f"{name:>18}" for name in names) + "   ratio wall, processor"
    )
    rng = np.random.default_rng(0)
    for n, (shape, dtype) in enumerate(SHAPES):
        if options.only and n not in options.only:
            continue
        data = values(shape, dtype)
        with tempfile.TemporaryDirectory() as folder:
            arrays = made(Path(folder), data)
            chosen = arrays["b2array"]
            print(shape, dtype, "chunks", chosen.chunks, "blocks", chosen.blocks)
            for axis in range(len(shape)):
                for verb in ("read",) if options.read_only else ("read", "write"):
                    keys = [(slice(None),) * axis + (i,) for i in rng.permutation(shape[axis])[: options.runs].tolist()]
                    planes = [np.array(data[key]) for key in keys] if verb == "write" else None
                    medians = in_turns({name: slab(array, keys, planes) for name, array in arrays.items()}, len(keys))
                    times = "".join(f"{f'{w * 1e3:.2f} ({cpu * 1e3:.2f})':>18}" for w, cpu in medians.values())
                    ours, *others = (medians[name] for name in names)
                    ratios = (time / min(each) for time, each in zip(ours, zip(*others, strict=True), strict=True))
                    print(f"  {verb:5} axis {axis:<22}{times}   {', '.join(f'{r:.1f}' for r in ratios)}", flush=True)
            arrays["h5py"].file.close()


if __name__ == "__main__":
    main()
