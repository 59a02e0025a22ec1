"""Text of any length beside zarr: writing, reading, one slice of ten items, memory and size.

Two cases of 300,000 items: lines of a log, of which 30 have 4,000 characters, and short names. Each library stores a
NumPy array of StringDType on a local disk with its defaults. Runs are interleaved, and each figure is a median of
processor time, so that other programs disturb it less. Memory is the peak of a fresh process, without the
imports and the text itself; it needs Linux.

Run it with ``python asv_bench/text.py`` on Python 3.12 or later; it needs zarr 3.4.
"""

from __future__ import annotations

import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

COUNT = 300_000
TIMES = 5
SLICES = 200
CASES = ("log", "names")
LIBRARIES = ("b2array", "zarr")


def items(case: str) -> np.ndarray:
    """Return the text of a case; every run makes the same."""
    chance = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(3, 9))) for _ in range(3000)]
    if case == "names":
        made = ["".join(chance.choices(letters, k=chance.randint(8, 12))) for _ in range(COUNT)]
    else:
        made = []
        for n in range(COUNT):
            clock = f"{n // 3600:02d}:{n // 60 % 60:02d}:{n % 60:02d}"
            made.append(f"{clock} {' '.join(chance.choices(words, k=4))}")
        for n in range(0, COUNT, COUNT // 30):
            made[n] = "".join(chance.choices(letters + "     ", k=4000))
    return np.array(made, np.dtypes.StringDType())


def write(library: str, values: np.ndarray, path: Path) -> None:
    """Store the text as a new array."""
    if library == "b2array":
        import b2array

        b2array.asarray(values, url=path)
    else:
        import zarr

        out = zarr.create_array(path, shape=values.shape, dtype=values.dtype)
        out[:] = values


def opened(library: str, path: Path) -> object:
    """Open the array."""
    if library == "b2array":
        import b2array

        b2array.config.cache_bytes = 0
        return b2array.open(path)
    import zarr

    return zarr.open_array(path, mode="r")


def seconds(task: Callable[[], object]) -> float:
    """Return the processor time that a task takes."""
    start = time.process_time()
    task()
    return time.process_time() - start


def nbytes(path: Path) -> int:
    """Return the size of a file, or of all files in a directory."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def peak(library: str, case: str, verb: str, path: Path) -> float:
    """Return the memory in MB by which a task raises the peak of a fresh process."""
    command = [sys.executable, __file__, "peak", library, case, verb, str(path)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _memory(field: str) -> float:
    """Return a field of the memory of this process, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def _measure_peak(library: str, case: str, verb: str, path: Path) -> None:
    """Print the memory that a task takes in this process, in MB."""
    values = items(case) if verb == "write" else np.empty(0)
    write(library, np.array(["warm", "up"], np.dtypes.StringDType()), path.with_name(f"{library}-{case}-{verb}"))
    # A new process starts with the peak of the process that has started it.
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    if verb == "write":
        write(library, values, path)
    else:
        values = opened(library, path)[:]
    print(_memory("VmHWM") - before)


def compare(case: str, home: Path) -> None:
    """Print the figures of a case for both libraries."""
    values = items(case)
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in LIBRARIES}
    places = np.random.default_rng(0).integers(0, COUNT - 10, SLICES).tolist()
    for turn in range(TIMES):
        for name in LIBRARIES:
            path = home / f"{case}-{name}"
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
            of_write = seconds(lambda name=name, path=path: write(name, values, path))
            array = opened(name, path)
            of_read = seconds(lambda array=array: array[:])
            of_slice = seconds(lambda array=array: [array[n : n + 10] for n in places]) / SLICES if turn < 4 else None
            if turn == 0:
                assert array[:].tolist() == values.tolist()
                continue
            results = {"write, s": of_write, "read, s": of_read, "slice of ten, ms": of_slice and 1000 * of_slice}
            for label, figure in results.items():
                if figure is not None:
                    figures[name].setdefault(label, []).append(figure)
    for name in LIBRARIES:
        path = home / f"{case}-{name}"
        figures[name]["size, MB"] = [nbytes(path) / 2**20]
        figures[name]["peak of read, MB"] = [peak(name, case, "read", path)]
        figures[name]["peak of write, MB"] = [peak(name, case, "write", home / f"{case}-{name}-peak")]
    print(f"\n{case}: {COUNT} items, {sum(map(len, values.tolist())) / 2**20:.1f} MB of text")
    print(f"{'':20s}{'b2array':>10s}{'zarr':>10s}{'ratio':>8s}")
    for label in figures["zarr"]:
        ours, theirs = (statistics.median(figures[name][label]) for name in LIBRARIES)
        print(f"{label:20s}{ours:10.3f}{theirs:10.3f}{ours / theirs:8.2f}")


def main() -> None:
    """Compare the libraries in all cases."""
    if sys.argv[1:2] == ["peak"]:
        library, case, verb, path = sys.argv[2:]
        _measure_peak(library, case, verb, Path(path))
        return
    with tempfile.TemporaryDirectory() as home:
        for case in CASES:
            compare(case, Path(home))


if __name__ == "__main__":
    main()
