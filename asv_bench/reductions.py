"""What a mean along an axis costs: beside reading the array, and beside python-blosc2. Prints a table in Markdown.

    python asv_bench/reductions.py [--mb 1000] [--times 5]

Each action runs in turn, `times` times, and medians are shown: of the time that passes, and of the processor time of
all threads. Peak memory is what a process of its own has at most beyond what it had before the action.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from timing import in_turns

import b2array

DTYPES = ("f4", "f8")
CODECS = ("lz4", "zstd")
ACTIONS = ("read", "mean", "blosc2")


def prepared(action: str, path: str, _: int) -> Callable[[], int]:
    return partial(act, action, path)


def act(action: str, path: str) -> int:
    """Do it once, and return the size of the result in bytes."""
    if action == "blosc2":
        import blosc2

        return int(np.asarray(blosc2.open(path, mode="r").mean(axis=0)).nbytes)
    with b2array.open(path) as a:
        return int((a[...] if action == "read" else a.mean(axis=0)).nbytes)


def write(path: Path, codec: str, dtype: str, mb: int) -> None:
    """Store waves with noise in the last of the digits that are kept."""
    rows = mb * 10**6 // (500 * 500 * np.dtype(dtype).itemsize)
    rng = np.random.default_rng(0)
    x = np.sin(np.linspace(0, 9, 500)) * np.cos(np.linspace(0, 7, 500))[:, None]
    steps = (np.round(20 + 5 * x + rng.normal(0, 0.1, (1, 500, 500)), 2).astype(dtype) for _ in range(rows))
    b2array.from_blocks(steps, url=path, cparams=b2array.CParams(codec), overwrite=True).close()


def peak(action: str, path: str) -> str:
    """Return how many MB an action needs at most, in a process of its own."""
    command = [sys.executable, __file__, "--peak", action, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def own_peak(action: str, path: str) -> float:
    # Threads, caches and modules are there before.
    if action == "blosc2":
        import blosc2

        np.asarray(blosc2.zeros((9, 9)).mean(axis=0))
    else:
        b2array.asarray(np.eye(99), chunks=(9, 99)).mean(axis=0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = high_water()
    act(action, path)
    return high_water() - before


def high_water() -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak:
        print(f"{own_peak(*given.peak):.0f}")
        return
    print("| codec | type | action | seconds | of the processor | peak MB |\n| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as home:
        for codec in CODECS:
            for dtype in DTYPES:
                path = Path(home) / "a.b2nd"
                write(path, codec, dtype, given.mb)
                verbs = {action: partial(prepared, action, str(path)) for action in ACTIONS}
                for action, (wall, cpu) in in_turns(verbs, given.times).items():
                    most = peak(action, str(path))
                    print(f"| {codec} | {dtype} | {action} | {wall:.2f} | {cpu:.2f} | {most} |", flush=True)
    start = time.perf_counter()
    total = b2array.zeros((500_000, 500_000), "f4").sum()
    print(f"\nThe sum of 1 TB of zeros, {total}, takes {time.perf_counter() - start:.3f} s.")


if __name__ == "__main__":
    main()
