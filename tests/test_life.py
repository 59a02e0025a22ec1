"""An array grows, shrinks and is copied as a NumPy array would be, and python-blosc2 reads it after every commit."""

from __future__ import annotations

import gc
import shutil
import tempfile
from pathlib import Path

import blosc2
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from test_array import items, same
from test_indexing import keys

import b2array

STOCK_DTYPES = [np.dtype(text) for text in ("i4", "<f8", "u1", "S3", "c8")]


def stock(url):
    """What python-blosc2 reads."""
    held = blosc2.open(str(url), mode="r")
    return held[...] if held.shape else held[()]


def grown(values, shape, fill):
    """A NumPy array as `resize` leaves it."""
    result = np.full(shape, fill, values.dtype)
    common = tuple(slice(0, min(n, m)) for n, m in zip(values.shape, shape, strict=True))
    result[common] = values[common]
    return result


@st.composite
def cuts(draw, shape):
    """Chunks and blocks, sometimes larger than the array."""
    chunks = tuple(draw(st.integers(1, max(n, 1) + 2)) for n in shape)
    return {"chunks": chunks, "blocks": tuple(draw(st.integers(1, n)) for n in chunks)}


small_shapes = st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple)


class Life(RuleBasedStateMachine):
    """Operations in any order on an array in a file, and on a NumPy array."""

    layout = "contiguous"

    @initialize(data=st.data())
    def create(self, data):
        self.folder = Path(tempfile.mkdtemp(prefix="b2array-life-"))
        self.url = self.folder / "a.b2nd"
        shape = data.draw(small_shapes)
        dtype = data.draw(st.sampled_from(STOCK_DTYPES))
        self.fill = items(dtype, (), data.draw(st.integers(0, 9)))[()]
        options = {"layout": self.layout, "fill_value": self.fill, **data.draw(cuts(shape))}
        self.array = b2array.create(self.url, shape, dtype, **options)
        self.values = np.full(shape, self.fill, dtype)
        if data.draw(st.booleans()):
            self.values[...] = self.made(data, shape)
            self.array[...] = self.values

    def made(self, data, shape):
        return items(self.values.dtype, shape, data.draw(st.integers(0, 99)))

    def axis(self, data):
        return data.draw(st.integers(0, self.values.ndim - 1))

    def change(self, data, kind):
        """Do one thing to both."""
        array, values = self.array, self.values
        if kind == "set":
            key = data.draw(keys(values.shape))
            try:
                part = values[key]
            except (IndexError, ValueError, TypeError):
                return
            new = self.made(data, np.shape(part))
            values[key] = new
            array[key] = new
        elif kind == "resize":
            shape = tuple(data.draw(st.integers(0, n + 4)) for n in values.shape)
            array.resize(shape)
            self.values = grown(values, shape, self.fill)
        elif kind == "append":
            axis = self.axis(data)
            new = self.made(data, (*values.shape[:axis], data.draw(st.integers(0, 5)), *values.shape[axis + 1 :]))
            assert array.append(new, axis - values.ndim) == array.shape
            self.values = np.concatenate([values, new], axis)
        elif kind == "insert":
            axis = self.axis(data)
            new = self.made(data, (*values.shape[:axis], data.draw(st.integers(0, 5)), *values.shape[axis + 1 :]))
            where = data.draw(st.integers(-values.shape[axis], values.shape[axis]))
            array.insert(new, where, axis)
            before, after = np.split(values, [where % values.shape[axis] if where < 0 else where], axis)
            self.values = np.concatenate([before, new, after], axis)
        else:
            axis = self.axis(data)
            key = data.draw(removals(values.shape[axis]))
            array.delete(key, axis)
            self.values = np.delete(values, key, axis)

    kinds = st.sampled_from(["set", "resize", "append", "insert", "delete"])

    @rule(data=st.data(), kind=kinds)
    def alone(self, data, kind):
        self.change(data, kind)

    @rule(data=st.data(), what=st.lists(kinds, min_size=2, max_size=4), fails=st.booleans())
    def in_a_transaction(self, data, what, fails):
        before = self.values.copy()
        if not fails:
            with self.array.transaction():
                for kind in what:
                    self.change(data, kind)
            return
        with pytest.raises(InterruptedError), self.array.transaction():
            for kind in what:
                self.change(data, kind)
            assert same(self.array[...], self.values)
            raise InterruptedError
        self.values = before

    @rule()
    def reopen(self):
        self.array = b2array.open(self.url, "r+")

    @precondition(lambda self: self.values.size)
    @rule(data=st.data(), shrinks=st.booleans())
    def stock_writes(self, data, shrinks):
        held = blosc2.open(str(self.url), mode="a")
        if shrinks:
            # What it exposes when it lets an array grow is not the fill value, but what lay there before.
            shape = tuple(data.draw(st.integers(1, n)) for n in self.values.shape)
            held.resize(shape)
            self.values = grown(self.values, shape, self.fill)
        else:
            box = tuple(slice(data.draw(st.integers(0, n - 1)), n) for n in self.values.shape)
            new = self.made(data, self.values[box].shape)
            held[box] = new
            self.values[box] = new
        del held
        gc.collect()
        self.array.refresh()

    @invariant()
    def all_read_the_same(self):
        if not hasattr(self, "array"):
            return
        assert same(self.array[...], self.values)
        assert self.array.shape == self.values.shape
        assert same(b2array.load(self.url), self.values)
        assert same(stock(self.url), self.values)

    def teardown(self):
        shutil.rmtree(self.folder, ignore_errors=True)


@st.composite
def removals(draw, length):
    """What `delete` takes along an axis."""
    kind = draw(st.sampled_from(["slice", "int", "list", "mask"]))
    if kind == "int" and length:
        return draw(st.integers(-length, length - 1))
    if kind == "list" and length:
        return draw(st.lists(st.integers(-length, length - 1), max_size=4))
    if kind == "mask":
        return np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)), bool)
    return draw(st.slices(length))


class SparseLife(Life):
    """The same, as a directory."""

    layout = "sparse"


checked = settings(
    max_examples=8, stateful_step_count=12, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)  # fmt: skip
TestContiguousLife = Life.TestCase
TestContiguousLife.settings = checked
TestSparseLife = SparseLife.TestCase
TestSparseLife.settings = checked
