"""What writing parts of an array takes, beside python-blosc2 and zarr: wall and processor time, in turns.

    python asv_bench/writes.py [--rounds N] [--only NAME]

The table has medians, and b2array's ratios of wall and of processor time to the faster of the two others. "equal"
writes into arrays of equal chunks and blocks (zarr: chunks, without shards), "default" leaves all settings to each
library. b2array runs twice: as it is, and with `config.durable="off"`, which shows the part of waiting for the disk.
The others never wait for it.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import zarr
from timing import in_turns

import b2array
from b2array import config

Action = Callable[[int], None]
SHAPE, CHUNKS, BLOCKS = (128, 256, 256), (64, 128, 128), (16, 32, 32)
STEPS = (100, 512, 512)


def cube() -> np.ndarray:
    axes = np.ogrid[0:1:128j, 0:1:256j, 0:1:256j]
    noise = np.random.default_rng(0).normal(scale=1e-3, size=SHAPE)
    return (np.sin(9 * axes[0]) + np.cos(7 * axes[1] * axes[2]) + noise).round(4)


class Arrays:
    """An array of each library in a directory, made when it is first asked for."""

    def __init__(self, root: Path, values: np.ndarray, chunks: Any, blocks: Any) -> None:
        self.root, self.values, self.chunks, self.blocks = root, values, chunks, blocks

    def of(self, library: str) -> Any:
        path = str(self.root / f"{library}-{len(list(self.root.iterdir()))}")
        grid = {} if self.chunks is None else {"chunks": self.chunks}
        if library == "zarr":
            made = zarr.create_array(path + ".zarr", shape=self.values.shape, dtype=self.values.dtype, **grid)
            made[...] = self.values
            return zarr.open_array(path + ".zarr", mode="r+")
        if self.blocks is not None:
            grid["blocks"] = self.blocks
        if library == "blosc2":
            blosc2.asarray(self.values, urlpath=path + ".b2nd", mode="w", **grid)
            return blosc2.open(path + ".b2nd", mode="a")
        b2array.asarray(self.values, url=path + ".b2nd", **grid)
        return b2array.open(path + ".b2nd", mode="r+")


def assigning(arrays: Arrays, library: str, key: Callable[[int], Any], shape: tuple[int, ...]) -> Action:
    array = arrays.of(library)
    values = np.random.default_rng(1).normal(size=shape).round(3)

    def act(number: int) -> None:
        array[key(number)] = values if shape else 1.5

    return act


def appending(arrays: Arrays, library: str) -> Action:
    array = arrays.of(library)
    row = np.random.default_rng(1).normal(size=(1, *arrays.values.shape[1:])).round(3)

    def act(_: int) -> None:
        if library == "blosc2":
            length = array.shape[0]
            array.resize((length + 1, *array.shape[1:]))
            array[length:] = row
        else:
            array.append(row)

    return act


def stepping(root: Path, library: str, steps: int, *, joined: bool = False) -> Action:
    frames = np.random.default_rng(2).normal(size=(4, *STEPS[1:])).cumsum(axis=2).astype("f4").round(2)
    shape = (steps, *STEPS[1:])

    def act(_: int) -> None:
        path = str(root / "steps")
        shutil.rmtree(path, ignore_errors=True)
        Path(path).unlink(missing_ok=True)
        array: Any
        if library == "blosc2":
            array = blosc2.zeros(shape, dtype="f4", urlpath=path, mode="w")
        elif library == "zarr":
            array = zarr.create_array(path, shape=shape, dtype="f4")
        else:
            array = b2array.zeros(shape, "f4", url=path)
        with array.transaction() if joined and library.startswith("b2array") else nullcontext():
            for k in range(steps):
                array[k] = frames[k % 4]

    return act


def cases(root: Path) -> dict[str, Callable[[str], Action]]:
    values = cube()
    equal, line = Arrays(root, values, CHUNKS, BLOCKS), Arrays(root, values[0, 0].repeat(400), (10000,), (2500,))
    table = Arrays(root, values.reshape(-1)[: 10**6].reshape(10000, 100), None, None)
    defaults = Arrays(root, values, None, None)
    return {
        "equal: a plane a[k]": lambda lib: assigning(equal, lib, lambda n: n * 37 % 128, SHAPE[1:]),
        "equal: a plane a[:, :, k]": lambda lib: assigning(
            equal, lib, lambda n: (slice(None), slice(None), n * 37 % 256), SHAPE[:2]
        ),
        "equal: a row a[i, j]": lambda lib: assigning(equal, lib, lambda n: (n * 37 % 128, n * 53 % 256), SHAPE[2:]),
        "equal: a box of 20 x 50 x 50": lambda lib: assigning(
            equal, lib, lambda n: tuple(slice(7 + n % 40, 7 + n % 40 + m) for m in (20, 50, 50)), (20, 50, 50)
        ),
        "equal: a point of a line": lambda lib: assigning(line, lib, lambda n: n * 7919 % 100000, ()),
        "default: a point of the cube": lambda lib: assigning(
            defaults, lib, lambda n: (n * 37 % 128, n * 53 % 256, 5), ()
        ),
        "default: a point of a table": lambda lib: assigning(table, lib, lambda n: (n * 37 % 10000, 5), ()),
        "default: append a row to a table": lambda lib: appending(table, lib),
        "default: 30 steps a[k] = frame": lambda lib: stepping(root, lib, 30),
        "default: 100 steps a[k] = frame": lambda lib: stepping(root, lib, 100),
        "default: 100 steps, one transaction": lambda lib: stepping(root, lib, 100, joined=True),
    }


def timed(library: str, action: Action) -> Callable[[int], Callable[[], None]]:
    def run(number: int) -> None:
        with config.using(durable="off") if library.endswith("off") else nullcontext():
            action(number)

    run(0)
    return lambda number: lambda: run(number + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    heads = "".join(f"{name:>18}" for name in ("b2array", "durable off", "blosc2", "zarr"))
    print(f"{'milliseconds, wall (processor)':36}{heads}   ratio wall, processor; off")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for title, make in cases(root).items():
            if options.only not in title:
                continue
            verbs = {library: timed(library, make(library)) for library in ("b2array", "b2array-off", "blosc2", "zarr")}
            medians = in_turns(verbs, max(1, options.rounds // 4) if "steps" in title else options.rounds)
            cells = "".join(f"{f'{wall * 1e3:.2f} ({cpu * 1e3:.2f})':>18}" for wall, cpu in medians.values())
            best = [min(medians[library][clock] for library in ("blosc2", "zarr")) for clock in (0, 1)]
            ratios = (
                ", ".join(f"{time / least:.2f}" for time, least in zip(medians[library], best, strict=True))
                for library in ("b2array", "b2array-off")
            )
            print(f"{title:36}{cells}   {'; '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
