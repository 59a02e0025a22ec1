"""Every key does to a store of chunks and blocks what NumPy does to an array in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keys import Index, integer_arrays, keys, orthogonal_keys, slices
from lengths import examples

from b2array.grid.assignment import broadcast
from b2array.grid.layout import grid_shape
from b2array.grid.partition import parts, put, take
from b2array.grid.selection import Selection, fields, orthogonal, select, vectorised

PADDING = -99


class Blocks:
    """An array kept as padded blocks, which remembers how often each was touched."""

    def __init__(self, values, chunks, blocks):
        self.shape, self.dtype, self.chunks, self.blocks = values.shape, values.dtype, chunks, blocks
        self.store = {}
        for chunk in np.ndindex(grid_shape(values.shape, chunks)):
            padded = np.full(np.multiply(grid_shape(chunks, blocks), blocks), PADDING, values.dtype)
            part = values[region(chunk, chunks, values.shape)]
            padded[tuple(map(slice, part.shape))] = part
            for block in np.ndindex(grid_shape(chunks, blocks)):
                self.store[chunk, block] = padded[(*region(block, blocks, padded.shape), ...)].copy()

    def pieces(self, selection):
        seen = set()
        for chunk, inside, outside in parts(selection.positions, self.chunks, selection.axes):
            for block, *rest in parts(inside, self.blocks, selection.axes, outside):
                assert (chunk, block) not in seen
                seen.add((chunk, block))
                yield self.store[chunk, block], *rest

    def read(self, selection):
        result = np.full(selection.shape, PADDING, self.dtype)
        box = selection.view(result)
        assert box.shape == selection.box
        for block, inside, outside in self.pieces(selection):
            put(box, outside, take(block, inside, selection.axes))
        return result[()] if selection.kind == "scalar" else result

    def write(self, selection, value):
        box = broadcast(value, selection)
        assert box.shape == selection.box
        for block, inside, outside in self.pieces(selection):
            put(block, inside, take(box, outside), selection.axes)

    def __array__(self, dtype=None, copy=None):
        whole = select(..., self.shape)
        return self.read(whole)


def region(coords, part, shape):
    return tuple(slice(c * p, min((c + 1) * p, n)) for c, p, n in zip(coords, part, shape, strict=True))


shapes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 7]), max_size=4).map(tuple)


@st.composite
def stores(draw):
    shape = draw(shapes)
    chunks = tuple(draw(st.integers(1, max(n, 1) + 1)) for n in shape)
    blocks = tuple(draw(st.integers(1, n)) for n in chunks)
    values = np.arange(math.prod(shape)).reshape(shape)
    return values, Blocks(values, chunks, blocks)


def outcome(action):
    """What `action` returns, or the type of its exception."""
    try:
        return action()
    except (IndexError, KeyError, TypeError, ValueError) as error:
        return type(error)


def assert_identical(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, type):
        assert found is expected
        return
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=examples(600), deadline=None)
@given(st.data(), stores())
def test_reading_is_what_numpy_reads(data, store):
    values, blocks = store
    key = data.draw(keys(values.shape))
    assert_identical(outcome(lambda: blocks.read(select(key, values.shape))), outcome(lambda: values[key]))


@st.composite
def assigned(draw, shape):
    """A value that mostly broadcasts to `shape`."""
    dims = [n if draw(st.integers(0, 3)) else 1 for n in shape[draw(st.integers(0, len(shape))) :]]
    if dims and draw(st.integers(0, 9)) == 0:
        dims[draw(st.integers(0, len(dims) - 1))] = draw(st.sampled_from([0, 2, 3]))
    dims = [1] * draw(st.sampled_from([0, 0, 0, 1, 2])) + dims
    return (1000 + np.arange(math.prod(dims))).reshape(dims)


@settings(max_examples=examples(600), deadline=None)
@given(st.data(), stores())
def test_writing_is_what_numpy_writes_and_of_repeated_items_the_last_stays(data, store):
    values, blocks = store
    key = data.draw(keys(values.shape))
    target = outcome(lambda: values[key])
    value = data.draw(assigned(() if isinstance(target, type) else target.shape))
    expected = outcome(lambda: values.__setitem__(key, value))
    assert outcome(lambda: blocks.write(select(key, values.shape), value)) is expected
    np.testing.assert_array_equal(np.asarray(blocks), values)


@given(st.integers(0, 2**32 - 1))
def test_of_many_repeated_points_the_last_stays(seed):
    rng = np.random.default_rng(seed)
    values = np.zeros((9, 3, 7), int)
    blocks = Blocks(values, (4, 2, 3), (2, 2, 2))
    for key in [(rng.integers(0, 9, 500), slice(None), rng.integers(0, 7, 500)), rng.integers(-9, 9, 500)]:
        value = rng.integers(0, 10**9, values[key].shape)
        blocks.write(select(key, values.shape), value)
        values[key] = value
        np.testing.assert_array_equal(np.asarray(blocks), values)


@given(st.data(), stores())
def test_writing_keeps_the_padding(data, store):
    values, blocks = store
    before = sum(int((block == PADDING).sum()) for block in blocks.store.values())
    blocks.write(select(..., values.shape), np.array(5))
    assert sum(int((block == PADDING).sum()) for block in blocks.store.values()) == before


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), stores())
def test_orthogonal_indexing_selects_along_one_axis_after_the_other(data, store):
    values, blocks = store
    key = data.draw(orthogonal_keys(values.shape))

    def reference():
        result, axis = values, 0
        for entry in key:
            result = result[(slice(None),) * axis + (entry,)]
            axis += not isinstance(entry, int | np.integer | Index) and np.ndim(entry) == (type(entry) is not slice)
        return result

    found = outcome(lambda: blocks.read(orthogonal(key, values.shape)))
    expected = outcome(reference)
    if isinstance(expected, type):
        assert found is expected
    else:
        np.testing.assert_array_equal(found, expected, strict=isinstance(found, np.ndarray))


def test_orthogonal_indexing_takes_only_arrays_of_one_dimension():
    for wrong in ([[0, 1]], np.zeros((2, 3), bool), True):
        with pytest.raises(IndexError, match="one-dimensional"):
            orthogonal(wrong, (2, 3))
    with pytest.raises(IndexError, match="axis 1; size of axis is 3 but size of corresponding boolean axis is 2"):
        orthogonal((0, [True, False]), (2, 3))


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), stores())
def test_vectorised_indexing_puts_the_dimensions_of_the_arrays_first(data, store):
    values, blocks = store
    whole = data.draw(st.sampled_from([(2,), (2, 3), (0,)]))
    key = tuple(data.draw(st.one_of(slices(n), integer_arrays(n, whole))) for n in values.shape)
    if all(isinstance(entry, slice) for entry in key):
        expected = outcome(lambda: values[key])
    else:
        # NumPy does so when the arrays are separated: by a new axis, which is dropped here, from a trailing zero.
        expected = outcome(lambda: values[..., None][(*key, None, 0)][..., 0])
    assert_identical(outcome(lambda: blocks.read(vectorised(key, values.shape))), expected)


KEYS_WITH_ERRORS = [
    5, -4, (0, 4), (0, 0, 0), (..., ...), [0, 5], (0, [7]), ([], 10), ([0, 1], [0, 1, 2]), [True, False],
    np.ones((3, 5), bool), np.ones((3, 4, 1), bool), (False, [0, 1]), 1.0, "a", [1.5], np.array([]), np.array([1.0]),
    (None,) * 63, (slice(None, None, 0),), (slice("a", None),), [[1], [1, 2]], np.array([2**63], np.uint64),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS_WITH_ERRORS, ids=repr)
def test_what_numpy_refuses_is_refused_with_its_words(key):
    with pytest.raises((IndexError, ValueError, TypeError)) as theirs:
        np.zeros((3, 4))[key]
    with pytest.raises(theirs.type) as ours:
        select(key, (3, 4))
    assert str(ours.value) == str(theirs.value)


ASSIGNMENTS_WITH_ERRORS = [
    (slice(0, 2), (3,)), (0, (2, 2)), (slice(0, 0), (2, 4)), ([0, 1], (3,)), ([], (3, 4)), (True, (2, 3, 4)),
    ((0, 0), (1,)), ((0, 0, ...), (1, 2)), (np.eye(3, 4) > 0, (2,)), (np.eye(3, 4) > 0, (1, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("key", "shape"), ASSIGNMENTS_WITH_ERRORS, ids=repr)
def test_values_that_numpy_refuses_are_refused_with_its_words(key, shape):
    with pytest.raises((ValueError, TypeError)) as theirs:
        np.zeros((3, 4))[key] = np.zeros(shape)
    with pytest.raises(theirs.type) as ours:
        broadcast(np.zeros(shape), select(key, (3, 4)))
    assert str(ours.value) == str(theirs.value)


def test_only_integers_without_ellipsis_make_a_scalar():
    assert select((1, 2), (3, 4)).kind == "scalar"
    assert select((np.int8(1), np.array(2)), (3, 4)).kind == "scalar"
    assert select((), ()).kind == "scalar"
    for key in [(1, 2, ...), (1, 2, None), 1, (1, [2]), (1, 2, True)]:
        assert select(key, (3, 4)).kind != "scalar"
    assert select(..., ()).kind != "scalar"


def test_sixteen_dimensions_and_results_of_sixty_four():
    values = np.arange(2**16).reshape((2,) * 16)
    blocks = Blocks(values, (1, 2) * 8, (1,) * 8 + (1, 2) * 4)
    for key in [(0, ..., [1, 0]), (1, [0, 1], [[1], [0]], slice(None, None, -1)), (None,) * 48, values % 5 == 0]:
        assert_identical(blocks.read(select(key, values.shape)), values[key])


def test_a_mask_along_one_axis_is_not_expanded_over_the_others():
    selection = select((np.ones(10, bool), slice(None)), (10, 10**6))
    assert selection.box == (10, 10**6)
    assert [i.size for i in selection.positions if isinstance(i, np.ndarray)] == [10]


def test_arrays_that_vary_along_different_dimensions_stay_apart():
    rows, columns = np.arange(1000)[:, None], np.arange(500)
    selection = select((rows, 3, columns), (1000, 7, 500))
    assert selection.shape == (1000, 500)
    assert selection.box == (1000, 1, 500)
    assert selection.axes is None


def test_arrays_that_vary_along_a_common_dimension_are_points():
    selection = select((slice(None), [0, 1], [[2, 3], [3, 2]]), (5, 6, 7))
    assert selection.axes == ((0,), (1, 2))
    assert selection.box == (5, 4)
    assert selection.shape == (5, 2, 2)


@given(st.data())
def test_spread_does_not_copy_the_value_for_each_place(data):
    selection = select((np.zeros((3, 4), int), slice(None)), (5, 10**9))
    value = np.ones(data.draw(st.sampled_from([(), (1,), (4, 1), (3, 1, 1), (3, 4, 1), (1, 1, 1, 1)])))
    laid = broadcast(value, selection)
    assert laid.shape == (12, 10**9)
    assert not laid.flags.writeable
    with pytest.raises(ValueError, match="could not be broadcast"):
        broadcast(np.ones((2, 1)), selection)


def test_view_refuses_what_it_cannot_view():
    with pytest.raises(ValueError, match="C-contiguous"):
        select(..., (3, 4)).view(np.zeros((4, 3)).T)


def test_selections_are_values():
    assert isinstance(select(0, (3,)), Selection)
    assert select((0, slice(1, None)), (3, 4)) == select((-3, slice(1, 9)), (3, 4))


RECORDS = np.zeros(3, [("x", "i4"), ("y", "f8")])


@pytest.mark.parametrize("key", ["x", ["x", "y"], np.str_("y"), "q", ["x", "q"], ["x", "x"], ["x", 1], 0, []])
def test_fields_are_named_as_in_numpy(key):
    def ours():
        rest, names = fields(key, RECORDS.dtype)
        select(rest, RECORDS.shape)
        return RECORDS[rest] if names is None else RECORDS[rest][names]

    found, expected = (outcome(action) for action in (ours, lambda: RECORDS[key]))
    assert type(found) is type(expected)
    assert found is expected if isinstance(expected, type) else found.dtype == expected.dtype
    if isinstance(expected, np.ndarray):
        assert found.shape == expected.shape


def test_a_dtype_without_fields_leaves_the_key_alone():
    for key in ("x", ["x"], 0):
        assert fields(key, np.dtype("f8")) == (key, None)
