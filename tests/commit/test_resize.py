"""An array grows, shrinks and is copied as a NumPy array would be, and python-blosc2 reads it after every commit."""

from __future__ import annotations

import gc
import shutil
import tempfile
import threading
import tracemalloc
from functools import partial
from pathlib import Path

import blosc2
import dask.array as da
import numpy as np
import pytest
from arrays import DTYPES, items, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from keys import keys
from lengths import examples

import b2array
from b2array.commit import resize, write
from b2array.errors import ConflictError, LimitError, ReadOnlyError

LAYOUTS = ["contiguous", "sparse"]
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
    max_examples=examples(10),
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestContiguousLife = Life.TestCase
TestContiguousLife.settings = checked
TestSparseLife = SparseLife.TestCase
TestSparseLife.settings = checked


@pytest.fixture
def made(monkeypatch):
    """Remember which chunks are made anew, and read for that."""
    numbers = []
    original = write._Writer.make

    def make(self, chunk):
        numbers.append(chunk[0])
        return original(self, chunk)

    monkeypatch.setattr(write._Writer, "make", make)
    return numbers


def test_growing_along_the_first_axis_touches_only_a_partial_row_of_old_chunks(made):
    a = b2array.asarray(np.arange(48).reshape(8, 6), chunks=(4, 3), blocks=(2, 3))
    made.clear()
    old = [a.get_chunk(n) for n in range(4)]
    a.resize((20, 6))
    assert made == []
    assert [a.get_chunk(n) for n in range(4)] == old
    a.append(np.ones((2, 6), int))
    assert sorted(made) == [10, 11]
    made.clear()
    a.resize((25, 6))
    assert sorted(made) == [10, 11]
    assert (a[22:] == 0).all()
    assert (a[20:22] == 1).all()


def test_each_chunk_at_an_edge_is_rewritten_once_when_all_axes_grow(made):
    values = np.arange(5 * 7 * 3).reshape(5, 7, 3)
    a = b2array.asarray(values, chunks=(2, 3, 2), blocks=(1, 3, 2))
    made.clear()
    a.resize((6, 9, 5))
    assert len(made) == len(set(made)) == 3 * 3 * 2 - 2 * 2 * 1
    assert same(a[...], grown(values, (6, 9, 5), 0))


def test_zeros_of_any_size_grow_without_being_read(made):
    a = b2array.zeros((10**5 + 1, 10**6 + 1), "f4", chunks=(100, 10**5))
    a.resize((2 * 10**5, 10**6 + 5))
    assert made == []
    a.append(np.ones((1, 10**6 + 5), "f4"))
    assert a[-1, -1] == 1
    assert a[-2, -1] == 0
    assert len(made) == 11


def test_whole_rows_of_chunks_move_without_being_rewritten(made):
    values = np.arange(60).reshape(10, 6)
    a = b2array.asarray(values, chunks=(2, 4), blocks=(1, 2))
    made.clear()
    a.insert(np.full((4, 6), -1), 4)
    assert len(made) == 4
    made.clear()
    a.delete(slice(4, 8))
    a.delete([0, 1, 4, 5])
    assert made == []
    assert same(a[...], np.delete(values, [0, 1, 4, 5], 0))
    a.delete(slice(1, 2))
    assert len(made) == 6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_new_items_are_the_fill_value_of_any_type(tmp_path, dtype, layout):
    fill = items(dtype, (), 3)[()]
    values = items(dtype, (5, 3), 1)
    a = b2array.create(tmp_path / "a.b2nd", (5, 3), dtype, fill_value=fill, chunks=(2, 2), blocks=(1, 2), layout=layout)
    a[...] = values
    assert same(a.fill_value, fill)
    a.resize((3, 2))
    a.resize((5, 3))
    assert same(b2array.load(a.url), grown(values[:3, :2], (5, 3), fill))
    a.append(values, axis=1)
    assert same(a[:, 3:], values)
    copied = a.copy(chunks=(5, 2), blocks=(5, 1))
    assert same(copied[...], a[...])
    assert same(copied.fill_value, fill)


def test_a_fill_value_takes_one_small_chunk_for_each_position(tmp_path):
    a = b2array.full((1000, 1000), 7, "i4", url=tmp_path / "a.b2nd", chunks=(100, 100))
    assert a.cbytes < 100 * 100
    a.resize((2000, 1000))
    assert a.cbytes < 200 * 100
    assert (a[1999] == 7).all()
    assert same(stock(tmp_path / "a.b2nd"), np.full((2000, 1000), 7, "i4"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stock_arrays_without_items_grow(tmp_path, layout):
    url = str(tmp_path / "a.b2nd")
    held = blosc2.asarray(np.empty((0, 5), "f4"), urlpath=url, contiguous=layout == "contiguous")
    del held
    a = b2array.open(url, "r+")
    a.append(np.ones((3, 5)))
    assert same(a[...], np.ones((3, 5), "f4"))
    assert same(stock(url), np.ones((3, 5), "f4"))


def test_names_attributes_and_metalayers_stay():
    a = b2array.create(None, (4, 6), "i2", dims=("x", None), attrs={"units": "K"}, meta={"source": 7}, fill_value=-1)
    a.attrs.update({f"long name {n}" + "x" * 40: n for n in range(20)})
    a.append(np.zeros((1, 6), "i2"))
    for b in (a, a.copy(), a.copy(chunks=(2, 2)), a.astype("f4"), a.copy(cparams=b2array.CParams("lz4"))):
        assert (b.dims, dict(b.attrs), b.meta["source"], b.fill_value) == (("x", None), dict(a.attrs), 7, -1)


def test_items_that_are_arrays_grow_along_the_other_dimensions_only(tmp_path):
    url = str(tmp_path / "a.b2nd")
    held = blosc2.zeros((2, 3), np.dtype(("f4", (2,))), urlpath=url, chunks=(2, 2), blocks=(1, 2))
    del held
    gc.collect()
    a = b2array.open(url, "r+")
    assert a.shape == (2, 3, 2)
    a[...] = values = np.arange(12, dtype="f4").reshape(2, 3, 2)
    with pytest.raises(ValueError, match="items"):
        a.resize((2, 3, 3))
    a.resize((3, 4, 2))
    assert same(a[...], grown(values, (3, 4, 2), 0))
    a.append(np.ones((1, 4, 2)))
    a.delete(0)
    assert same(b2array.load(url), np.concatenate([grown(values, (3, 4, 2), 0), np.ones((1, 4, 2), "f4")])[1:])


def test_an_item_of_equal_items_that_are_arrays_is_read(tmp_path):
    url = str(tmp_path / "a.b2nd")
    blosc2.zeros((40, 40), np.dtype(("f4", (2,))), urlpath=url, chunks=(10, 10), blocks=(5, 5))
    a = b2array.open(url, "r+")
    a[...] = 1.5
    assert (a[0, 0, 1], a[39, 7, 0]) == (1.5, 1.5)


# Copies.


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_of_the_same_layout_has_the_same_chunks(tmp_path, layout, to, made):
    values = items(np.dtype("f8"), (50, 40))
    a = b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=(20, 20), layout=layout, attrs={"k": 1})
    made.clear()
    b = b2array.copy(tmp_path / "a.b2nd", tmp_path / "b.b2nd", layout=to)
    assert made == []
    assert [b.get_chunk(n) for n in range(6)] == [a.get_chunk(n) for n in range(6)]
    assert same(stock(tmp_path / "b.b2nd"), values)
    with pytest.raises(FileExistsError):
        a.copy(tmp_path / "b.b2nd", layout=to)
    a[0] = 1
    b = a.copy(tmp_path / "b.b2nd", layout=to, overwrite=True)
    assert (b[0] == 1).all()
    b[0] = 2
    assert (a[0] == 1).all()


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), small_shapes, st.sampled_from(DTYPES), st.sampled_from(LAYOUTS))
def test_a_copy_in_any_layout_has_the_same_items(data, shape, dtype, layout):
    values = items(dtype, shape, data.draw(st.integers(0, 9)))
    a = b2array.asarray(values, **data.draw(cuts(shape)))
    b = a.copy(layout=layout, cparams=b2array.CParams("lz4"), **data.draw(cuts(shape)))
    assert same(b[...], values)
    assert b.cparams.codec == "lz4"


def test_a_copy_streams(tmp_path):
    a = b2array.zeros((64, 512, 512), "f8", url=tmp_path / "a.b2nd", chunks=(1, 512, 512))
    with a.appender() as out:
        for step in range(16):
            out.append(np.full((512, 512), step))
    with b2array.config.using(threads=2, cache_bytes=0):
        tracemalloc.start()
        b = a.copy(tmp_path / "b.b2nd", chunks=(2, 256, 512))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < a.nbytes / 4
    assert b[70, 0, 0] == 6


def test_a_copy_reports_its_progress(capsys):
    a = b2array.asarray(np.arange(10), chunks=(2,))
    a.copy(progress=True)
    a.copy(chunks=(5,), progress=True)
    shown = capsys.readouterr().err
    assert "5/5" in shown
    assert "2/2" in shown


@pytest.mark.parametrize(("dtype", "to"), [("f8", "i2"), ("i4", "U"), ("f4", ">f4"), ("c8", "c16"), ("S3", "U3")])
def test_types_are_converted_as_numpy_converts_them(dtype, to):
    values = np.arange(20).reshape(4, 5).astype(dtype)
    a = b2array.asarray(values, chunks=(3, 2))
    assert same(a.astype(to)[...], values.astype(to))


def test_unsafe_casts_are_refused_on_request(tmp_path):
    a = b2array.asarray(np.ones(3))
    with pytest.raises(TypeError, match="Cannot cast"):
        a.astype("i4", tmp_path / "a.b2nd", casting="safe")
    with pytest.raises(TypeError, match="arrays"):
        a.astype("(2,)f4")
    with pytest.raises(TypeError, match="Cannot cast"):
        b2array.asarray([1, 2]).append(np.ones(2))
    with pytest.raises(TypeError, match="Cannot cast"):
        b2array.asarray([1, 2]).append([1.5])
    with pytest.raises(OverflowError):
        b2array.asarray(np.zeros(2, "u1")).append([256])
    assert not (tmp_path / "a.b2nd").exists()


# Step by step.


@pytest.mark.parametrize("every", [None, 1, 3, 4, 10, 11])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_an_appender_writes_its_values(tmp_path, every, axis):
    shape = [2, 2]
    shape.insert(axis % 3, 0)
    a = b2array.zeros(tuple(shape), "i4", url=tmp_path / "a.b2nd", chunks=(4, 4, 4))
    buffer = np.zeros((2, 2), "i4")
    with a.appender(axis, every) as out:
        for step in range(23):
            buffer[...] = step
            out.append(buffer)
            committed = b2array.open(tmp_path / "a.b2nd").shape[axis]
            assert committed == step + 1 - out.uncommitted
            assert committed == ((step + 1) // (every or 4)) * (every or 4)
        out.append(np.full(np.insert((2, 2), axis % 3, 6), -1))
    expected = np.repeat([*range(23), *[-1] * 6], 4).reshape(29, 2, 2)
    assert np.array_equal(b2array.load(tmp_path / "a.b2nd"), np.moveaxis(expected, 0, axis))


def test_an_appender_commits_the_values_before_an_error(tmp_path):
    a = b2array.zeros((0, 3), url=tmp_path / "a.b2nd", chunks=(10, 3))
    with pytest.raises(ZeroDivisionError), a.appender() as out:
        out.append([1, 2, 3])
        with pytest.raises(ValueError, match="extents"):
            out.append([1, 2])
        out.append([4, 5, 6])
        raise ZeroDivisionError
    assert b2array.load(tmp_path / "a.b2nd").tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(ValueError, match="at least 1"):
        a.appender(every=0)


def test_an_appender_joins_a_transaction(tmp_path):
    a = b2array.zeros((0,), "i4", url=tmp_path / "a.b2nd", chunks=(2,))
    with a.transaction():
        with a.appender(every=3) as out:
            for step in range(8):
                out.append(step)
        assert len(b2array.open(tmp_path / "a.b2nd")) == 0
    assert b2array.load(tmp_path / "a.b2nd").tolist() == list(range(8))


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 1), st.sampled_from(LAYOUTS))
def test_blocks_make_an_array(data, lengths, axis, layout):
    blocks = [items(np.dtype("i4"), (n, 3) if axis == 0 else (3, n), n) for n in lengths]
    chunks = (data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8)))
    a = b2array.from_blocks(iter(blocks), axis=axis, chunks=chunks, blocks=(1, 1), layout=layout)
    assert same(a[...], np.concatenate(blocks, axis))


def test_blocks_that_end_with_an_error_make_no_array(tmp_path):
    def blocks():
        yield np.ones((4, 2))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        b2array.from_blocks(blocks(), tmp_path / "a.b2nd", chunks=(2, 2))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="at least one block"):
        b2array.from_blocks([])
    with pytest.raises(ValueError, match="extents"):
        b2array.from_blocks([np.ones((4, 2)), np.ones((4, 3))])


def test_chunks_are_iterated_over_with_their_places():
    values = np.arange(35).reshape(5, 7)
    a = b2array.asarray(values, chunks=(2, 3), blocks=(1, 2))
    found = np.zeros_like(values)
    chunks = a.iter_chunks()
    a[...] = -1
    for box, part in chunks:
        found[box] = part
    assert same(found, values)
    assert [part.tolist() for _, part in b2array.asarray(5).iter_chunks()] == [5]
    assert list(b2array.zeros((0, 3)).iter_chunks()) == []


def test_iterating_over_chunks_makes_no_list_of_them():
    a = b2array.zeros((2**20,), "u1", chunks=(1,), blocks=(1,))
    next(a.iter_chunks())
    tracemalloc.start()
    try:
        next(a.iter_chunks())
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


# Other writers.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shared", [True, False])
def test_threads_that_append_lose_nothing(tmp_path, layout, shared):
    url = tmp_path / "a.b2nd"
    handle = b2array.zeros((0,), "i4", url=url, chunks=(4,), layout=layout)

    def work(name):
        a = handle if shared else b2array.open(url, "r+")
        for n in range(10):
            a.append([100 * name + n])

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = b2array.load(url)
    assert sorted(found) == sorted(100 * name + n for name in range(3) for n in range(10))
    for name in range(3):
        assert [n for n in found if n // 100 == name] == [100 * name + n for n in range(10)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("verb", ["resize", "insert", "delete"])
def test_a_change_of_shape_keeps_what_another_handle_wrote_meanwhile(tmp_path, verb, layout):
    url = tmp_path / "a.b2nd"
    a = b2array.asarray(np.arange(10), url=url, chunks=(4,), layout=layout)
    other = b2array.open(url, "r+")
    other[3:6] = -1
    calls = {"resize": (12,), "insert": ([7], 1), "delete": (slice(0, 2),)}
    getattr(a, verb)(*calls[verb])
    assert (b2array.load(url) == -1).sum() == 3
    before = b2array.load(url)
    with pytest.raises(ConflictError):
        getattr(other, verb)(*calls[verb])
    assert same(b2array.load(url), before)
    other.refresh()
    with pytest.raises(ConflictError), other.transaction():
        other.append([8])
        a[0] = 5
    assert b2array.load(url)[0] == 5
    assert len(b2array.load(url)) == len(before)


def test_an_append_to_an_array_with_other_extents_by_now_is_a_conflict(tmp_path):
    a = b2array.zeros((2, 3), url=tmp_path / "a.b2nd")
    other = b2array.open(tmp_path / "a.b2nd", "r+")
    other.resize((2, 4))
    with pytest.raises(ConflictError, match="shape"):
        a.append(np.ones((1, 3)))
    assert b2array.open(tmp_path / "a.b2nd").shape == (2, 4)


# Slips.


def test_impossible_changes_are_refused_before_anything_is_written(tmp_path):
    a = b2array.zeros((4, 6), "i4", url=tmp_path / "a.b2nd", chunks=(2, 2))
    generation = a.generation
    wrong = [
        (ValueError, "must have 2 dimensions, not 1", lambda: a.resize(7)),
        (ValueError, "negative", lambda: a.resize((4, -1))),
        (TypeError, "integer", lambda: a.resize((4, 1.5))),
        (ValueError, "9223372036854775807 bytes", lambda: a.resize((2**40, 2**40))),
        (LimitError, "an index holds 268435456", lambda: a.resize((2**30, 2**30))),
        (ValueError, "axis 2 is out of bounds", lambda: a.append(np.zeros((1, 6), "i4"), 2)),
        (ValueError, "2 dimensions", lambda: a.append(np.zeros(6, "i4"))),
        (ValueError, r"\(1, 5\)", lambda: a.append(np.zeros((1, 5), "i4"))),
        (TypeError, "same_kind", lambda: a.append(np.zeros((1, 6), "c8"))),
        (TypeError, "masked", lambda: a.append(np.ma.masked_all((1, 6), "i4"))),
        (IndexError, "index 5 is out of bounds for axis 0 with size 4", lambda: a.insert(np.zeros((1, 6), "i4"), 5)),
        (IndexError, "index 6 is out of bounds for axis 1 with size 6", lambda: a.delete(6, 1)),
        (IndexError, "boolean index did not match", lambda: a.delete([True], 1)),
        (IndexError, "along one axis", lambda: a.delete(...)),
        (ValueError, "axis -3 is out of bounds", lambda: a.delete(0, -3)),
    ]
    for kind, text, call in wrong:
        with pytest.raises(kind, match=text):
            call()
    a.append(np.zeros((0, 6), "i4"))
    a.insert(np.zeros((4, 0), "i4"), 1, 1)
    a.delete([])
    a.resize((4, 6))
    assert a.generation == generation
    reader = b2array.open(tmp_path / "a.b2nd")
    for call in (lambda: reader.resize((5, 6)), lambda: reader.append(np.zeros((1, 6))), lambda: reader.delete([])):
        with pytest.raises(ReadOnlyError):
            call()


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("f4", [[1, 2.5]]),
        ("u1", [[255, True]]),
        ("?", [[True, False]]),
        ("M8[D]", [["2020-01-01", "NaT"]]),
        ("U3", [["a", "bc"]]),
        ("c8", [[1j, 2]]),
        ([("x", "i4"), ("y", "f4")], [[(1, 2.5), (3, 4)]]),
        ("i2", []),
    ],
)
def test_lists_are_appended_as_numpy_makes_arrays_of_them(dtype, values):
    a = b2array.zeros((1, 2) if values else (0,), dtype)
    a.append(values)
    assert same(a[1:] if values else a[...], np.array(values, dtype))


@pytest.mark.parametrize("edit", [lambda a: a.delete(slice(2, 9)), lambda a: a.insert([-1], 9)])
def test_positions_refer_to_the_current_shape(edit, monkeypatch):
    a = b2array.asarray(np.arange(10), chunks=(4,))
    other = threading.Thread(target=lambda: a.delete(slice(0, 6)))
    find, joint = resize.select_positions, resize.make_joint

    def late(function, *args):
        if other.ident is None:
            other.start()
            other.join(0.2)
        return function(*args)

    monkeypatch.setattr(resize, "select_positions", partial(late, find))
    monkeypatch.setattr(resize, "make_joint", partial(late, joint))
    edit(a)
    other.join()
    assert a[...].tolist() in ([], [6, 7, 8, -1, 9])


def test_an_array_with_chunks_of_no_extent_is_stored_to(tmp_path):
    blosc2.zeros((0, 3), urlpath=str(tmp_path / "a.b2nd"), mode="w")
    a = b2array.open(tmp_path / "a.b2nd", "r+")
    a.store(da.zeros((0, 3)))
    assert a.shape == (0, 3)


def test_an_appender_that_is_dropped_with_steps_warns():
    a = b2array.zeros((0, 2), "i4", chunks=(4, 2))
    out = a.appender()
    out.append([[1, 2], [3, 4], [5, 6]])
    with pytest.warns(UserWarning, match=r"Appender to memory: along axis 0, 3 steps not committed>: it was dropped"):
        del out
    assert a.shape == (0, 2)
    with a.appender() as out:
        out.append([1, 2])
    del out
    assert a.shape == (1, 2)
