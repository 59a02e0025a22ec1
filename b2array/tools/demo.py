"""`demo`: store a simulation, read parts of it, and survive a killed writer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.array import creation
from b2array.array.array import NDArray, array_at
from b2array.display.text_tables import size, text_table
from b2array.tools.bench import duration, measure, repeat
from b2array.tools.verify import verify

__all__ = ["main", "ripples"]

Field = npt.NDArray[np.float32]

_GRAINS = np.float32(2**14)
_SHADES = " .:-=+*#%@"
_PICTURE = (22, 76)
"""Rows and columns of the picture."""


def main(steps: int = 160, side: int = 384) -> None:
    """Run the demonstration in a temporary directory, and print each step.

    The simulation has `steps` steps on a grid of `side` by `side` points; each number must be at least 8.
    """
    print("b2array: rings on a pond, simulated, stored, and read in parts\n")
    field, seconds = measure(lambda: ripples(steps, side))
    steps, side, _ = field.shape
    _line("simulate", f"{steps} steps on {side} x {side} points of {field.dtype}: {size(field.nbytes)}", seconds)
    with TemporaryDirectory(prefix="b2array-demo-") as directory, config.using(cache_bytes=0):
        path = Path(directory) / "pond.b2nd"
        stored, seconds = measure(lambda: creation.asarray(field, url=path))
        nbytes = path.stat().st_size
        _line("store", f"pond.b2nd: {size(nbytes)}, {field.nbytes / nbytes:.1f} times smaller", seconds)
        stored.close()

        a, seconds = measure(lambda: array_at(path))
        _line("open", "to know where everything is", seconds)
        print(f"          chunks of {_shape(a.chunks)}, each of blocks of {_shape(a.blocks)}\n")
        _read_parts(a, nbytes, field)
        print(f"\nThe pond at step {steps // 2}, read from the file:\n")
        print(*_draw(a[steps // 2]), sep="\n")
        _kill_a_writer(path, field)
        a.close()


def ripples(steps: int, side: int) -> Field:
    """Simulate the surface of a square pond into which three pebbles fall.

    Return its height in multiples of 2**-14, as an instrument would record it. The simulation makes two steps for each
    recorded one.

    Examples
    --------
    >>> ripples(8, 16).shape
    (8, 16, 16)
    """
    place = np.linspace(0, 1, side, dtype=np.float32)
    now = np.zeros((side, side), np.float32)
    for y, x in ((0.3, 0.35), (0.62, 0.7), (0.75, 0.25)):
        distance = (place[:, None] - y) ** 2 + (place - x) ** 2
        now += np.exp(-distance * np.float32(4e3))
    before = now.copy()
    field = np.empty((steps, side, side), np.float32)
    for step in range(steps):
        np.rint(now * _GRAINS, out=field[step])
        field[step] /= _GRAINS
        for _ in range(2):
            # The wave equation; the squared time step is a quarter of the stability limit. The pond's edge is fixed.
            after = 2 * now - before
            inner = now[1:-1, 1:-1]
            above_below = now[:-2, 1:-1] + now[2:, 1:-1]
            around = above_below + now[1:-1, :-2] + now[1:-1, 2:]
            after[1:-1, 1:-1] += np.float32(0.125) * (around - 4 * inner)
            before = now
            now = after
    return field


def _read_parts(a: NDArray, file_nbytes: int, field: Field) -> None:
    steps, side, _ = a.shape
    t = steps // 2
    y = side // 3
    x = side // 4
    after = t + steps // 8
    below = y + side // 8
    right = x + side // 8
    rows = [("read", "what it is", "result", "from the file", "", "time")]
    costs: dict[str, tuple[int, float]] = {}
    for text, meaning, key in (
        (f"a[{t}, {y}, {x}]", "one item", np.s_[t, y, x]),
        (f"a[:, {y}, {x}]", "a point at all steps", np.s_[:, y, x]),
        (f"a[{t}:{after}, {y}:{below}, {x}:{right}]", "a box", np.s_[t:after, y:below, x:right]),
        (f"a[{t}]", "one step", np.s_[t]),
        ("a[...]", "everything", np.s_[...]),
    ):
        part, seconds = repeat([partial(a.__getitem__, key)])
        if not np.array_equal(part, field[key]):
            raise RuntimeError(f"{text} differs from what was stored")
        nbytes = a.explain(key).nbytes
        costs[meaning] = nbytes, seconds
        share = f"{nbytes / file_nbytes:.2%}"
        rows.append((text, meaning, size(part.nbytes), size(nbytes), share, duration(seconds)))
    print(*text_table(rows, "<<>>>>"), sep="\n")
    some, quick = costs["a box"]
    whole, slow = costs["everything"]
    print(f"\nFor the box alone, reading everything would cost {whole / some:.0f} times the bytes", end=" ")
    print(f"and {slow / quick:.0f} times the time.")
    print("Every part is equal to the same part of the simulation. Times are medians of several reads,")
    print("with the file in the system's memory and without b2array's cache of decoded blocks.")


def _draw(plane: Field) -> Iterator[str]:
    """Draw a plane with one character for each cell of a coarse grid; higher values are darker."""
    height, width = plane.shape
    nrows, ncolumns = _PICTURE
    rows = np.linspace(0, height - 1, nrows).astype(int)
    columns = np.linspace(0, width - 1, ncolumns).astype(int)
    cells = plane[np.ix_(rows, columns)]
    low = float(cells.min())
    high = float(cells.max())
    most = len(_SHADES) - 1
    scale = len(_SHADES) / ((high - low) or 1)  # a plane without waves has one shade
    shades = ((cells - low) * scale).astype(int).clip(0, most)
    for row in shades:
        yield "  " + "".join(_SHADES[shade] for shade in row)


_WRITER = """
import os, sys, b2array
from b2array.store.local_store import LocalStore
LocalStore.patch = os.replace = lambda *_: print(flush=True) or sys.stdin.read()
a = b2array.open(sys.argv[1], "r+")
half = a.shape[0] // 2
a[:half] = 1 - a[:half]
"""
"""A program that stops before the last step of its commit, which writes a new header or renames a new file."""


def _kill_a_writer(path: Path, field: Field) -> None:
    """Start a process that overwrites half of the array, kill it in its commit, and show that nothing is lost."""
    before = path.stat().st_size
    command = [sys.executable, "-c", _WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:  # noqa: S603 - our own
        if writer.stdout is not None:
            writer.stdout.readline()
        writer.kill()
    files = path.parent.glob(f"{path.name}*")
    written = sum(file.stat().st_size for file in files) - before
    a = array_at(path)
    report, seconds = measure(lambda: verify(path, deep=True))
    intact = report.ok and np.array_equal(a, field)
    if not (written > 0 and intact):
        raise RuntimeError("the array differs from what was stored before the writer was killed")
    print("\nAnother process overwrote half of the array. It was killed before the last step of its commit,")
    print(f"with {size(written)} written. All checksums fit ({duration(seconds)}), and every item is as it was.")


def _line(verb: str, text: str, seconds: float) -> None:
    print(f"{verb:<10}{text:<69}{duration(seconds):>9}")


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
