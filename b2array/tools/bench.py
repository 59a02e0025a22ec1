"""`bench`: measure reads of an array, with the array's own and with other chunks and blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np

from b2array import config
from b2array.array import creation
from b2array.array.array import NDArray
from b2array.codec.cparams import CParams
from b2array.display import text_tables
from b2array.grid import chunking

__all__ = [
    "Compressed",
    "Measured",
    "alternatives",
    "comparison_rows",
    "compression_rows",
    "compressions",
    "duration",
    "measure",
    "patterns",
    "rates",
    "repeat",
]

T = TypeVar("T")
Shape = tuple[int, ...]
Shapes = tuple[Shape, Shape]
"""Shapes of chunks and blocks."""

_SAMPLE_NBYTES = 32 * 2**20
_MOST_NBYTES = 256 * 2**20
_SECONDS = 0.4
_MOST_CALLS = 64
"""The maximum number of calls in a measurement; `_SECONDS` is the maximum time."""

_SEED = 0  # each run reads the same points, so that runs can be compared


class Measured(NamedTuple):
    """The cost of one access pattern: bytes of values and seconds per read."""

    chunks: Shape
    blocks: Shape
    pattern: str
    nbytes: int
    seconds: float
    ratio: float

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.nbytes / self.seconds if self.seconds else math.inf


class Compressed(NamedTuple):
    """A sample stored with one set of compression parameters: its size, and the seconds to write and to read it."""

    name: str
    nbytes: int
    ratio: float
    writing: float
    reading: float


def compressions(a: NDArray, bounds: CParams | None = None) -> Iterator[Compressed]:
    """Store a sample of an array in memory with other filters, and read it.

    The first result is for the filters of the array, the second lets each chunk choose its filters, and other filters
    follow. If the user allows errors, `bounds` holds the error bounds, and the last result shows their effect.
    """
    if not a.size:
        return
    own = a.cparams
    exact = own.without_bounds()
    tried = {"as the array": own, "filters auto": replace(exact, filters="auto", filters_meta=())}
    # Filters are for numbers.
    choices: list[tuple[str, ...]] = [()] if a.dtype.kind == "T" else [(), ("shuffle",), ("bitshuffle",)]
    for filters in choices:
        name = ", ".join(filters) or "none"
        tried[f"filters {name}"] = replace(exact, filters=filters, filters_meta=())
    if bounds is not None:
        tried[text_tables.errors(bounds)] = bounds
    sample = a[_head(a.shape, _SAMPLE_NBYTES // a.itemsize)]
    shapes: dict[str, Any] = {
        "chunks": tuple(map(min, a.chunks, sample.shape)),
        "blocks": tuple(map(min, a.blocks, sample.shape)),
    }
    # Cached blocks would cost nothing to read.
    with config.using(cache_bytes=0):
        for name, cparams in tried.items():
            store = partial(creation.asarray, sample, **shapes, cparams=cparams, interop=False)
            array, writing = repeat([store])
            _, reading = repeat([partial(array.__getitem__, ...)])
            yield Compressed(name, array.cbytes, array.cratio, writing, reading)


def patterns(a: NDArray) -> Iterator[Measured]:
    """Read an array by one access pattern after another, without the cache of decoded blocks.

    The patterns are one item, one chunk, one layer along each dimension, and everything (of large arrays 256 MiB).
    """
    with config.using(cache_bytes=0):
        for name, keys in _keys(a.shape, a.chunks, a.itemsize):
            calls = [partial(a.__getitem__, key) for key in keys]
            part, seconds = repeat(calls)
            nbytes = np.asarray(part).nbytes
            yield Measured(a.chunks, a.blocks, name, nbytes, seconds, a.cratio)


def alternatives(a: NDArray) -> Iterator[Measured]:
    """Store a sample of an array in memory with other chunks and blocks, and read it by the same access patterns.

    The array's own chunks and blocks come first. Then come b2array's own choice, smaller and larger blocks, and chunks
    that are long along the first and the last dimension.
    """
    if not a.size:
        return
    sample = a[_head(a.shape, _SAMPLE_NBYTES // a.itemsize)]
    for chunks, blocks in _candidates(a, sample.shape):
        array = creation.asarray(sample, chunks=chunks, blocks=blocks, cparams=a.cparams, interop=False)
        yield from patterns(array)


def _candidates(a: NDArray, shape: Shape) -> list[Shapes]:
    def fit(extents: Shape) -> Shape:
        limited = map(min, extents, shape)
        return tuple(max(1, n) for n in limited)

    own_chunks = fit(a.chunks)
    own_blocks = tuple(map(min, fit(a.blocks), own_chunks))
    chunks, blocks = chunking.automatic(shape, a.itemsize)
    smaller = tuple(max(1, n // 2) for n in blocks)
    doubled = [2 * n for n in blocks]
    larger = tuple(map(min, doubled, chunks))
    candidates = [(own_chunks, own_blocks)]
    candidates += [(chunks, each) for each in (blocks, smaller, larger)]
    if len(shape) > 1:
        first = 0
        last = len(shape) - 1
        candidates += [_long(shape, a.itemsize, axis) for axis in (first, last)]
    return list(dict.fromkeys(candidates))


def _long(shape: Shape, itemsize: int, axis: int) -> Shapes:
    """Return the shape of chunks of about 2 MiB that span one dimension."""
    room = max(1, 2**21 // itemsize // shape[axis])
    nothers = len(shape) - 1
    side = max(1, int(room ** (1 / nothers)))
    chunks = [min(n, side) for n in shape]
    chunks[axis] = shape[axis]
    return chunking.automatic(shape, itemsize, chunks=tuple(chunks))


def _head(shape: Shape, items: int) -> tuple[slice, ...]:
    """Select roughly the first `items` items, with similar extents along all dimensions."""
    lengths = list(shape)
    while math.prod(lengths) > max(1, items):
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        lengths[longest] = -(-lengths[longest] // 2)
    return tuple(slice(0, n) for n in lengths)


def _keys(shape: Shape, chunks: Shape, itemsize: int) -> Iterator[tuple[str, list[Any]]]:
    if 0 in shape:
        return
    random = np.random.default_rng(_SEED)
    points = [tuple(int(random.integers(n)) for n in shape) for _ in range(16)]
    yield "one item", list(points)
    yield "one chunk", [_chunk_around(point, chunks) for point in points]
    if len(shape) > 1:
        for axis, n in enumerate(shape):
            nbytes = math.prod(shape) // n * itemsize
            if nbytes > _MOST_NBYTES:
                continue
            name = [":"] * len(shape)
            name[axis] = "i"
            before = (slice(None),) * axis
            yield f"[{', '.join(name)}]", [(*before, point[axis]) for point in points]
    head = _head(shape, _MOST_NBYTES // itemsize)
    is_whole = all(part.stop == n for part, n in zip(head, shape, strict=True))
    yield "everything" if is_whole else "the first part", [head]


def _chunk_around(point: Shape, chunks: Shape) -> tuple[slice, ...]:
    """Return the key that selects the chunk around an item."""
    sides = []
    for position, extent in zip(point, chunks, strict=True):
        start = position // extent * extent
        sides.append(slice(start, start + extent))
    return tuple(sides)


def repeat(calls: Iterable[Callable[[], T]]) -> tuple[T, float]:
    """Call functions in turn for a while; return the last result and the median duration in seconds."""
    times: list[float] = []
    start = time.perf_counter()
    for call in cycle(calls):
        result, seconds = measure(call)
        times.append(seconds)
        elapsed = time.perf_counter() - start
        if elapsed >= _SECONDS or len(times) >= _MOST_CALLS:
            break
    return result, median(times)


def measure(verb: Callable[[], T]) -> tuple[T, float]:
    """Call a function; return its result and the duration in seconds."""
    start = time.perf_counter()
    result = verb()
    return result, time.perf_counter() - start


def rates(measurements: Iterable[Measured]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of access patterns, with times and rates."""
    yield ("read", "bytes", "time", "rate")
    for each in measurements:
        rate = f"{each.rate / 1e6:.1f} MB/s"
        yield each.pattern, text_tables.nbytes(each.nbytes), duration(each.seconds), rate


def comparison_rows(measurements: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of chunks and blocks, with the time of each access pattern in milliseconds."""
    names = list(dict.fromkeys(each.pattern for each in measurements))
    yield ("chunks", "blocks", "ratio", *map(_short_name, names))
    by_shapes: dict[Shapes, dict[str, Measured]] = {}
    for each in measurements:
        by_pattern = by_shapes.setdefault((each.chunks, each.blocks), {})
        by_pattern[each.pattern] = each
    for (chunks, blocks), by_pattern in by_shapes.items():
        ratio = next(iter(by_pattern.values())).ratio
        times = [f"{by_pattern[name].seconds * 1e3:.2f}" if name in by_pattern else "" for name in names]
        yield _shape_text(chunks), _shape_text(blocks), f"{ratio:.2f}", *times


def _short_name(pattern: str) -> str:
    """Return the name of an access pattern for the head of a narrow column.

    Examples
    --------
    >>> _short_name("one item"), _short_name("[i, :]")
    ('item', 'i,:')
    """
    if pattern.startswith("["):
        return pattern.strip("[]").replace(" ", "")
    return {"everything": "all", "the first part": "part"}.get(pattern, pattern.removeprefix("one "))


def _shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "()"


def compression_rows(measurements: Iterable[Compressed]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of compressed sizes."""
    yield ("parameters", "bytes", "ratio", "write", "read")
    for each in measurements:
        ratio = f"{each.ratio:.2f}"
        times = duration(each.writing), duration(each.reading)
        yield each.name, text_tables.nbytes(each.nbytes), ratio, *times


def duration(seconds: float) -> str:
    """Format a duration in seconds.

    Examples
    --------
    >>> duration(0.02134), duration(2.134)
    ('21.34 ms', '2.13 s')
    """
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
