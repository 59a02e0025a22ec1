"""Ways to compress what repeats whole items: the size of a file, the time to write it, and the time to read it.

    python asv_bench/streams.py [--array NUMBER] [--blocks N] [--rounds N]

Takes blocks of several sizes from all over an array of access.py, by default one of floats rounded to hundredths, and
compresses each as one stream without a filter: by zstd's own levels, and by other strategies, least lengths of a match
and sizes of tables. Prints the size compared with zarr's default chunks, and milliseconds of processor time for each
megabyte, the least of the rounds. A star marks what no other way beats in size, writing and reading at once: the front
from which the default was chosen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import access
import numpy as np
import zarr
import zstandard
from numcodecs import zstd

SHAPES = {2: [(184, 192), (216, 216), (224, 256)], 3: [(34, 26, 40), (36, 26, 48), (41, 30, 52), (40, 24, 64)]}
"""Shapes of blocks to try, by the number of dimensions of the array."""
STRATEGIES = {"fast": 1, "dfast": 2, "greedy": 3, "lazy": 4}
WAYS = [
    ("fast", 4, 18, 12), ("fast", 5, 18, 12), ("dfast", 4, 17, 16), ("dfast", 5, 17, 16), ("dfast", 5, 17, 17),
    ("dfast", 5, 18, 17), ("dfast", 6, 17, 17), ("greedy", 4, 17, 16), ("greedy", 5, 17, 16), ("lazy", 4, 17, 16),
    ("lazy", 5, 17, 16),
]  # fmt: skip
"""Strategy, least match in bytes, and the sizes of both tables, as logarithms."""


class Way(NamedTuple):
    """What blocks of a size take by a way: the size compared with zarr's, and milliseconds for each megabyte."""

    name: str
    size: float
    writing: float
    reading: float

    def is_beaten(self, others: list[Way]) -> bool:
        """Whether another way is at least as good in each respect, and better in one."""
        return any(other != self and all(a <= b for a, b in zip(other[1:], self[1:], strict=True)) for other in others)


def parts_of(data: np.ndarray[Any, Any], chunks: tuple[int, ...]) -> list[bytes]:
    """Return all chunks of an array, without the padding that zarr adds at the edges."""
    grid = np.ndindex(*(-(-n // c) for n, c in zip(data.shape, chunks, strict=True)))
    keys = (tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunks, strict=True)) for index in grid)
    return [np.ascontiguousarray(data[key]).tobytes() for key in keys]


def pieces(data: np.ndarray[Any, Any], shape: tuple[int, ...], count: int) -> list[bytes]:
    """Return blocks of a shape from all over an array."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        starts = [int(rng.integers(0, (n - b) // b + 1)) * b for n, b in zip(data.shape, shape, strict=True)]
        key = tuple(slice(start, start + b) for start, b in zip(starts, shape, strict=True))
        found.append(np.ascontiguousarray(data[key]).tobytes())
    return found


def least(action: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """Return the least processor time of some rounds in milliseconds, and the result."""
    best, result = float("inf"), None
    for _ in range(rounds):
        begun = time.process_time()
        result = action()
        best = min(best, time.process_time() - begun)
    return best * 1e3, result


def tried(
    name: str,
    parts: list[bytes],
    encode: Callable[[bytes], bytes],
    decode: Callable[[bytes], bytes],
    rounds: int,
) -> Way:
    """Return the bytes that are left of each byte, and how long that takes."""
    nbytes = sum(map(len, parts))
    writing, encoded = least(lambda: [encode(part) for part in parts], rounds)
    reading, _ = least(lambda: [decode(part) for part in encoded], rounds)
    return Way(name, sum(map(len, encoded)) / nbytes, 1e6 * writing / nbytes, 1e6 * reading / nbytes)


def compressors() -> dict[str, zstandard.ZstdCompressor]:
    """Return what compresses, by name."""
    ways = {f"level {level}": zstandard.ZstdCompressor(level=level) for level in (1, 3, 5)}
    for strategy, match, hash_log, chain_log in WAYS:
        parameters = zstandard.ZstdCompressionParameters(
            window_log=18,
            strategy=STRATEGIES[strategy],
            min_match=match,
            hash_log=hash_log,
            chain_log=chain_log,
            search_log=1,
        )
        name = f"{strategy}, {match} bytes, 2**{hash_log}, 2**{chain_log}"
        ways[name] = zstandard.ZstdCompressor(compression_params=parameters)
    return ways


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--array", type=int, default=1, help="which array of access.py, from 0")
    parser.add_argument("--blocks", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    data = access.values(*access.ARRAYS[options.array])
    chunks = zarr.create_array(store={}, shape=data.shape, dtype=data.dtype).chunks
    zarrs = tried("zarr", parts_of(data, chunks), zstd.compress, zstd.decompress, 2)
    print(
        f"{data.shape} {data.dtype}; zarr: chunks {chunks}, write {zarrs.writing:.2f}, read {zarrs.reading:.2f} ms/MB"
    )
    decompressor = zstandard.ZstdDecompressor()
    rows = []
    for shape in SHAPES[data.ndim]:
        parts = pieces(data, shape, options.blocks)
        for name, each in compressors().items():
            way = tried(name, parts, each.compress, decompressor.decompress, options.rounds)
            label = f"{shape}, {len(parts[0]) >> 10} KiB, {name}"
            rows.append(way._replace(name=label, size=way.size / zarrs.size))
    for row in rows:
        star = " " if row.is_beaten(rows) else "*"
        print(f"{star} {row.name:56} {row.size:.3f}  write {row.writing:.2f}  read {row.reading:.2f}")


if __name__ == "__main__":
    main()
