"""Reads and writes that come in between any two lines of others, as those of threads and signal handlers do."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import b2array
from b2array import buffers, config
from b2array.frame import cache

PACKAGE = str(Path(b2array.__file__).parent)
SHARED = {cache.__file__, buffers.__file__}
"""Modules with memory that all reads share."""
_OFTEN = 50


class Array:
    """An array in a file, and the items that it should have."""

    def __init__(self, url: Path, layout: str, items: np.ndarray) -> None:
        self.url, self.items, self.busy = url, items, False
        b2array.asarray(items, url=url, chunks=(5, 12), blocks=(5, 4), layout=layout)
        self.handle = b2array.open(url, "r+")

    def read(self, chance: random.Random) -> None:
        """Read rows, points and a single item, through an old handle or a new one."""
        array = self.handle if chance.random() < 0.6 else b2array.open(self.url)
        start, stop = sorted(chance.sample(range(len(self.items) + 1), 2))
        assert np.array_equal(array[start:stop], self.items[start:stop])
        place = chance.randrange(self.items.shape[0]), chance.randrange(self.items.shape[1])
        assert array[place] == self.items[place]
        rows = chance.sample(range(len(self.items)), 4)
        assert np.array_equal(array[rows, 3:9], self.items[rows, 3:9])

    def write(self, chance: random.Random) -> None:
        """Write a box, in a transaction or without one."""
        start, stop = sorted(chance.sample(range(len(self.items) + 1), 2))
        after = self.items.copy()
        after[start:stop, 3:9] = value = chance.randrange(100)
        if chance.random() < 0.5:
            self.handle[start:stop, 3:9] = value
        else:
            with self.handle.transaction() as changes:
                changes[start:stop, 3:9] = value
        self.items = after


class Crowd:
    """Arrays, and what is done with those of them with which nothing else is being done."""

    def __init__(self, folder: Path, seed: int, interruptions: int) -> None:
        self.chance, self.left = random.Random(seed), interruptions
        items = np.random.default_rng(seed).integers(0, [5] * 12 + [2**60] * 12, (6, 20, 24))
        self.arrays = [
            Array(folder / f"{n}.b2nd", ["contiguous", "sparse"][n % 2], each) for n, each in enumerate(items)
        ]
        self.rate = 0.0

    def act(self, writes: float) -> None:
        """Read or write one array."""
        free = [array for array in self.arrays if not array.busy]
        if not free:
            return
        array = self.chance.choice(free)
        array.busy = True
        try:
            if self.chance.random() < writes:
                array.write(self.chance)
            else:
                array.read(self.chance)
        finally:
            array.busy = False

    def act_interrupted(self, writes: float) -> None:
        """Do the same, and other things in between the lines of the package."""

        def at_line(frame: FrameType, event: str, _: object) -> Any:
            rate = self.rate * (_OFTEN if frame.f_code.co_filename in SHARED else 1)
            if event == "line" and self.left and self.chance.random() < rate:
                self.left -= 1
                self.act(writes)
            return at_line

        def at_call(frame: FrameType, *_: object) -> Any:
            return at_line if frame.f_code.co_filename.startswith(PACKAGE) else None

        before = sys.gettrace()
        sys.settrace(at_call)
        try:
            self.act(writes)
        finally:
            sys.settrace(before)


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    with config.using(threads=2):
        yield


@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 12))])
@pytest.mark.parametrize(("writes", "most"), [pytest.param(0, 800, id="reads"), pytest.param(0.4, 60, id="writes")])
def test_what_comes_in_between_the_lines_of_a_call_disturbs_neither(
    tmp_path: Path, writes: float, most: int, seed: int
) -> None:
    crowd = Crowd(tmp_path, seed, most)
    while crowd.left:
        with config.using(cache_bytes=crowd.chance.choice([0, 60_000, 2**22])):
            crowd.rate = crowd.chance.choice([0.002, 0.01]) if writes == 0 else 0.001
            for _ in range(5):
                crowd.act_interrupted(writes)
    for array in crowd.arrays:
        assert np.array_equal(b2array.open(array.url)[...], array.items)
