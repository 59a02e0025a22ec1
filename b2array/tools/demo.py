"""`demo`: store a small simulation, open it without reading it, and read it in parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.array import creation
from b2array.array.array import NDArray
from b2array.engine import snapshot
from b2array.engine.handle import Handle
from b2array.store.base import Head, merge
from b2array.store.local import LocalStore
from b2array.store.spans import Span

__all__ = ["main", "ripples"]

T = TypeVar("T")
Field = npt.NDArray[np.float32]

_REPEATS = 5
_RULE = "-" * 88


class _Part(NamedTuple):
    text: str
    meaning: str
    key: Any


def main(steps: int = 160, side: int = 384) -> None:
    """Run the demonstration, in a directory that is removed at the end, and print what happens.

    Parameters
    ----------
    steps : int, default 160
        Steps of the simulation that are stored, at least 8.
    side : int, default 384
        Points of the simulation's grid along each of its two dimensions, at least 8.
    """
    print("b2array: rings on a pond, simulated, stored, and read in parts\n")
    field, seconds = _timed(lambda: ripples(steps, side))
    steps, side, _ = field.shape
    _line("simulate", f"{steps} steps on {side} x {side} points of {field.dtype}: {_bytes(field.nbytes)}", seconds)
    with TemporaryDirectory(prefix="b2array-demo-") as directory, config.using(cache_bytes=0):
        path = Path(directory) / "pond.b2nd"
        stored, seconds = _timed(lambda: creation.asarray(field, url=path))
        nbytes = path.stat().st_size
        _line("store", f"pond.b2nd: {_bytes(nbytes)}, {field.nbytes / nbytes:.1f} times smaller", seconds)
        stored.close()

        store = _CountingStore(path)
        a, seconds = _timed(lambda: NDArray(Handle(snapshot.load(store), "r")))
        _line("open", f"{_bytes(store.count())} read, to know where everything is", seconds)
        print(f"          chunks of {_shape(a.chunks)}, each of blocks of {_shape(a.blocks)}\n")
        _read_parts(a, store, nbytes, field)
        a.close()


def ripples(steps: int, side: int) -> Field:
    """Simulate the surface of a square pond into which three pebbles fall.

    Parameters
    ----------
    steps : int
        Steps to record; between two of them the simulation makes two.
    side : int
        Points of the grid along each side.

    Returns
    -------
    ndarray
        Height of the surface, of shape (steps, side, side).

    Examples
    --------
    >>> ripples(8, 16).shape
    (8, 16, 16)
    """
    place = np.linspace(0, 1, side, dtype=np.float32)
    now = np.zeros((side, side), np.float32)
    for y, x in ((0.3, 0.35), (0.62, 0.7), (0.75, 0.25)):
        now += np.exp(-((place[:, None] - y) ** 2 + (place - x) ** 2) * np.float32(4e3))
    before = now.copy()
    field = np.empty((steps, side, side), np.float32)
    for step in range(steps):
        field[step] = now
        for _ in range(2):
            # The wave equation, at a quarter of the largest stable step squared; the pond's edge stays at rest.
            after = 2 * now - before
            inner = now[1:-1, 1:-1]
            around = now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:]
            after[1:-1, 1:-1] += np.float32(0.125) * (around - 4 * inner)
            before, now = now, after
    return field


def _read_parts(a: NDArray, store: _CountingStore, file_nbytes: int, field: Field) -> None:
    print(f"{'read':<28}{'what it is':<22}{'result':>10}{'from the file':>19}{'time':>9}\n{_RULE}")
    costs: dict[str, tuple[int, float]] = {}
    for part in _parts(a.shape):
        store.count()
        expected = field[part.key]
        if not np.array_equal(a[part.key], expected):
            raise RuntimeError(f"{part.text} differs from what was stored")
        nbytes = store.count()
        seconds = _repeated(partial(a.__getitem__, part.key))
        costs[part.meaning] = nbytes, seconds
        share = f"{_bytes(nbytes)} {nbytes / file_nbytes:>7.2%}"
        print(f"{part.text:<28}{part.meaning:<22}{_bytes(expected.nbytes):>10}{share:>19}{_time(seconds):>9}")
    (some, quick), (whole, slow) = costs["a box"], costs["everything"]
    print(f"{_RULE}\nFor the box alone, reading everything would cost {whole / some:.0f} times the bytes", end=" ")
    print(f"and {slow / quick:.0f} times the time.")
    print(f"Every part is equal to the same part of the simulation. Times are medians of {_REPEATS} reads,")
    print("with the file in the system's memory and without b2array's cache of decoded blocks.")


def _parts(shape: Sequence[int]) -> list[_Part]:
    steps, side, _ = shape
    t, y, x = steps // 2, side // 3, side // 4
    box = (slice(t, t + steps // 8), slice(y, y + side // 8), slice(x, x + side // 8))
    corner = ", ".join(f"{part.start}:{part.stop}" for part in box)
    return [
        _Part(f"a[{t}, {y}, {x}]", "one item", (t, y, x)),
        _Part(f"a[:, {y}, {x}]", "a point at all steps", (slice(None), y, x)),
        _Part(f"a[{corner}]", "a box", box),
        _Part(f"a[{t}]", "one step", (t,)),
        _Part("a[...]", "everything", ...),
    ]


class _CountingStore(LocalStore):
    """A file that counts the bytes that are read from it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # Several threads can append to a list at once.
        self._counts: list[int] = []

    def count(self) -> int:
        """Return the number of bytes that were read since the last call."""
        counts, self._counts = self._counts, []
        return sum(counts)

    def read(self, spans: Sequence[Span], *, expected: str | None = None, clip: bool = False) -> list[memoryview]:
        # Ranges that are close to each other are read together with the bytes between them.
        self._counts += (span.stop - span.start for span, _ in merge(self.url, spans, limit=2**31))
        return super().read(spans, expected=expected, clip=clip)

    def gather(
        self, spans: Sequence[Span], places: Sequence[int], nbytes: int, *, expected: str | None = None
    ) -> memoryview:
        view = super().gather(spans, places, nbytes, expected=expected)
        self._counts += (span.stop - span.start for span in spans)
        return view

    def head(self, names: Sequence[str], nbytes: int, *, offset: int = 0) -> list[Head | Exception]:
        heads = super().head(names, nbytes, offset=offset)
        self._counts += (len(head.data) for head in heads if isinstance(head, Head))
        return heads


def _timed(verb: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = verb()
    return result, time.perf_counter() - start


def _repeated(verb: Callable[[], object]) -> float:
    return median(_timed(verb)[1] for _ in range(_REPEATS))


def _line(verb: str, text: str, seconds: float) -> None:
    print(f"{verb:<10}{text:<69}{_time(seconds):>9}")


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _bytes(count: int) -> str:
    """Return a number of bytes as text with about three digits.

    Examples
    --------
    >>> _bytes(4), _bytes(61_440), _bytes(94_371_840)
    ('4 B', '61.4 kB', '94.4 MB')
    """
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def _time(seconds: float) -> str:
    """Return a time as text with about three digits.

    Examples
    --------
    >>> _time(0.0000213), _time(0.0213), _time(2.13)
    ('0.02 ms', '21.3 ms', '2.13 s')
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:.1f} ms"
