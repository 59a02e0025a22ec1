"""b2array and python-blosc2 change one array in turn, twenty to forty times, and both find what NumPy has.

Beyond `test_histories`: the array grows, shrinks, gets and loses rows, and its snapshots are opened and restored. A
long run is ``pytest tests/test_turns.py -m slow --hypothesis-profile nightly``. An error names its seed.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest
from hypothesis import settings

import b2array
from b2array.errors import SnapshotLostError

CHUNKS, BLOCKS = (4, 5), (2, 3)
MOST = 14


class Turns:
    """An array in a file, and what it must hold."""

    def __init__(self, path: Path, layout: str, seed: int) -> None:
        self.rng, self.path, self.noise = random.Random(seed), path, np.random.default_rng(seed)
        shape = (self.rng.randint(1, 9), self.rng.randint(1, 9))
        self.items = self.noise.integers(0, 50, shape).astype("i4")
        self.attrs: dict[str, Any] = {}
        self.snapshots: dict[str, np.ndarray] = {}
        self.nrefused = 0
        if self.rng.random() < 0.5:
            b2array.asarray(self.items, url=path, chunks=CHUNKS, blocks=BLOCKS, layout=layout)
        else:
            chunks, blocks = (tuple(map(min, part, shape)) for part in (CHUNKS, BLOCKS))
            contiguous = layout == "contiguous"
            blosc2.asarray(self.items, urlpath=str(path), chunks=chunks, blocks=blocks, contiguous=contiguous)
        self.ours = b2array.open(path, "r+")

    def theirs(self) -> Any:
        return blosc2.open(str(self.path), mode="a")

    def box(self) -> tuple[slice, ...]:
        starts = [self.rng.randrange(n) for n in self.items.shape]
        return tuple(
            slice(start, self.rng.randint(start + 1, n)) for start, n in zip(starts, self.items.shape, strict=True)
        )

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        if self.rng.random() < 0.3:
            return np.full(shape, self.rng.choice([0, 7]), "i4")
        return self.noise.integers(-99, 99, shape).astype("i4")

    def we_write(self) -> None:
        key = self.box()
        self.items[key] = self.ours[key] = self.values(self.items[key].shape)

    def they_write(self) -> None:
        key = self.box()
        self.items[key] = values = self.values(self.items[key].shape)
        self.theirs()[key] = values

    def we_write_many_at_once(self) -> None:
        items = self.items.copy()
        is_kept = self.rng.random() < 0.7
        try:
            with self.ours.transaction():
                for _ in range(self.rng.randint(1, 4)):
                    key = self.box()
                    items[key] = self.ours[key] = self.values(items[key].shape)
                np.testing.assert_array_equal(self.ours[...], items)
                if not is_kept:
                    raise InterruptedError
        except InterruptedError:
            return
        self.items = items

    def we_resize(self) -> None:
        shape = tuple(self.rng.randint(1, MOST) for _ in self.items.shape)
        self.ours.resize(shape)
        self._resize(shape)

    def they_grow(self) -> None:
        shape = tuple(min(MOST, n + self.rng.randint(0, 4)) for n in self.items.shape)
        old = self.items.shape
        array = self.theirs()
        array.resize(shape)
        self._resize(shape)
        # What they grow over may hold what was there before the array was made smaller.
        for key in ((slice(old[0], None), slice(None)), (slice(None, old[0]), slice(old[1], None))):
            if self.items[key].size:
                self.items[key] = values = self.values(self.items[key].shape)
                array[key] = values

    def _resize(self, shape: tuple[int, ...]) -> None:
        new = np.zeros(shape, "i4")
        key = tuple(slice(0, min(n, m)) for n, m in zip(shape, self.items.shape, strict=True))
        new[key] = self.items[key]
        self.items = new

    def we_insert(self) -> None:
        if self.items.shape[0] < MOST:
            at = self.rng.randint(0, self.items.shape[0])
            rows = self.values((self.rng.randint(1, 3), self.items.shape[1]))
            self.ours.insert(rows, at)
            self.items = np.insert(self.items, at, rows, axis=0)

    def we_delete(self) -> None:
        if self.items.shape[0] > 3:
            at = self.rng.randint(0, self.items.shape[0] - 2)
            self.ours.delete(slice(at, at + 2))
            self.items = np.delete(self.items, slice(at, at + 2), axis=0)

    def we_append(self) -> None:
        if self.items.shape[0] < MOST:
            rows = self.values((self.rng.randint(1, 3), self.items.shape[1]))
            self.ours.append(rows)
            self.items = np.concatenate((self.items, rows))

    def we_set_an_attribute(self) -> None:
        name, value = self.rng.choice("abcd"), self.rng.choice([1, "x" * self.rng.randint(0, 99), [1, 2.5], None])
        self.ours.attrs[name] = self.attrs[name] = value

    def they_set_an_attribute(self) -> None:
        name, value = self.rng.choice("abcd"), self.rng.choice([1, "y" * self.rng.randint(0, 99), [1, 2.5]])
        array = self.theirs()
        array.schunk.vlmeta[name] = self.attrs[name] = value

    def they_delete_an_attribute(self) -> None:
        if self.attrs:
            name = self.rng.choice(sorted(self.attrs))
            array = self.theirs()
            del array.schunk.vlmeta[name]
            del self.attrs[name]

    def we_keep(self) -> None:
        name = self.rng.choice("xyz")
        self.ours.snapshot(name, replace=True)
        self.snapshots[name] = self.items.copy()

    def we_go_back(self) -> None:
        if self.snapshots:
            name = self.rng.choice(sorted(self.snapshots))
            attrs = dict(self.ours.attrs)
            try:
                self.ours.restore(name)
            except SnapshotLostError:  # they have taken its chunks
                self.nrefused += 1
                return
            self.items = self.snapshots[name].copy()
            self.attrs = dict(self.ours.attrs)
            assert self.attrs.keys() <= attrs.keys() | set("abcd")

    def we_repack(self) -> None:
        try:
            b2array.repack(self.path)
        except SnapshotLostError as error:  # they have taken a part of a snapshot, which must go first
            (name,) = (name for name in self.snapshots if f"snapshot {name!r}" in str(error))
            self.nrefused += 1
            self.ours.drop_snapshot(name)
            del self.snapshots[name]

    STEPS = (
        we_write,
        we_write,
        they_write,
        they_write,
        we_write_many_at_once,
        we_resize,
        they_grow,
        we_insert,
        we_delete,
        we_append,
        we_set_an_attribute,
        they_set_an_attribute,
        they_delete_an_attribute,
        we_keep,
        we_go_back,
        we_repack,
    )

    def look(self) -> None:
        found = b2array.open(self.path)
        np.testing.assert_array_equal(found[...], self.items)
        assert dict(found.attrs) == self.attrs
        key = self.box()
        np.testing.assert_array_equal(found[key], self.items[key])
        theirs = blosc2.open(str(self.path), mode="r")
        np.testing.assert_array_equal(theirs[...], self.items)
        np.testing.assert_array_equal(theirs[key], self.items[key])
        assert {name: theirs.schunk.vlmeta[name] for name in self.attrs} == self.attrs
        for name, items in self.snapshots.items():
            try:
                then = b2array.open(self.path, at=name)[...]
            except SnapshotLostError:  # they have taken its chunks
                self.nrefused += 1
            else:
                np.testing.assert_array_equal(then, items)


def play(path: Path, layout: str, seed: int) -> Turns:
    turns = Turns(path, layout, seed)
    done = []
    try:
        for _ in range(turns.rng.randint(20, 40)):
            step = turns.rng.choice(Turns.STEPS)
            done.append(step.__name__)
            turns.ours.refresh()
            step(turns)
            turns.look()
    except BaseException as error:
        raise AssertionError(f"seed {seed}, {layout}: {', '.join(done)}: {error!r}") from error
    return turns


def check(tmp_path: Path, layout: str, seeds: range) -> None:
    for seed in seeds:
        play(tmp_path / f"{seed}.b2nd", layout, seed)


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_both_libraries_find_what_either_has_written(layout: str, tmp_path: Path) -> None:
    check(tmp_path, layout, range(2))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_both_libraries_find_what_either_has_written_in_many_turns(layout: str, tmp_path: Path) -> None:
    check(tmp_path, layout, range(1000, 1000 + settings().max_examples))
