"""A value is laid out for the items that it is assigned to as NumPy would convert and broadcast it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array.grid.assignment import arrange, check_plain
from b2array.grid.selection import select

KEYS = [
    (), (...,), (0,), (slice(1, 4),), (slice(None, None, -2), 1), ([0, 2], slice(0, 2)),
    (slice(None), [True, False, True]), (3, 2), (np.newaxis, slice(2)), ([[0], [3]], [0, 2]),
]  # fmt: skip
VALUES = [
    7, -1, 3.75, True, None, "5", "text", b"5", 1 + 2j, np.float32(2.5), np.int64(300), np.nan, 10**30,
    [1, 2, 3], [[1], [2]], [], [[]], (1, 2), np.arange(3), np.arange(3.5, 6), np.arange(12).reshape(4, 3),
    np.zeros((0,)), np.datetime64("2020-01-01"), np.array("2021", "M8[Y]"), [None, 1], np.array([1, 2], object),
    [[1, 2, 3]], [[[1, 2, 3]]], np.ones((1, 1, 3)), [1, [2, 3]],
]  # fmt: skip
DTYPES = ["?", "i1", "u2", ">i4", "f4", "c8", "S3", "U4", "M8[D]", "V2"]
ERRORS = (ValueError, TypeError, OverflowError, RuntimeError)


def by_numpy(items, key, value):
    """What an array has become, or the type of the error."""
    items = items.copy()
    try:
        items[key] = value
    except ERRORS as error:
        return type(error)
    return items


def by_us(items, key, value):
    items = items.copy()
    selection = select(key, items.shape)
    try:
        box, names = arrange(value, selection, items.dtype)
        assert names is None
        assert not box.flags.writeable
        assert box.shape == selection.box
        view = selection.view(np.empty(selection.shape, items.dtype))
        view[...] = box
        laid = np.empty(selection.shape, items.dtype)
        selection.view(laid)[...] = view
        items[key] = laid
    except ERRORS as error:
        return type(error)
    return items


@given(st.sampled_from(KEYS), st.sampled_from(VALUES), st.sampled_from(DTYPES))
@settings(max_examples=examples(600), deadline=None)
def test_values_are_converted_and_broadcast_as_by_numpy(key, value, dtype):
    items = np.zeros((4, 3), dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, found = by_numpy(items, key, value), by_us(items, key, value)
    if isinstance(expected, type) or isinstance(found, type):
        # Which of two things that are wrong is found first may differ, for types without values.
        assert found is expected or (dtype == "V2" and isinstance(found, type) and isinstance(expected, type))
    else:
        assert found.tobytes() == expected.tobytes()


def test_nothing_is_copied_for_an_array_that_fits():
    values = np.arange(12).reshape(4, 3)
    box, _ = arrange(values, select((...,), (4, 3)), values.dtype)
    assert np.shares_memory(box, values)


def test_a_single_value_is_broadcast_without_memory():
    box, _ = arrange(5, select((...,), (10**6, 10**6)), np.dtype("f8"))
    assert box.shape == (10**6, 10**6)
    assert box.strides == (0, 0)


def test_the_message_about_shapes_is_numpys():
    with pytest.raises(ValueError, match=r"could not broadcast input array from shape \(2,\) into shape \(4,3\)"):
        arrange(np.zeros(2), select((...,), (4, 3)), np.dtype("f8"))


def test_the_range_of_single_numbers_is_checked():
    with pytest.raises(OverflowError):
        arrange(300, select((...,), (3,)), np.dtype("u1"))


RECORD = np.dtype([("x", "i4"), ("y", "f8"), ("v", "i2", (3,))])


def test_fields_are_laid_out_with_their_own_type():
    selection = select((slice(1, 3),), (4,))
    box, names = arrange([1.5, 2.5], selection, RECORD, "x")
    assert (box.tolist(), box.dtype, names) == ([1, 2], np.dtype("i4"), "x")


def test_a_field_of_arrays_goes_into_the_items():
    box, names = arrange([[1, 2, 3], [4, 5, 6]], select((slice(1, 3),), (4,)), RECORD, "v")
    assert names == ["v"]
    assert box["v"].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_several_fields_take_tuples_and_records():
    selection = select((slice(0, 2),), (4,))
    box, names = arrange((1, 2.5), selection, RECORD, ["x", "y"])
    assert names == ["x", "y"]
    assert box.tolist() == [(1, 2.5)] * 2


@pytest.mark.parametrize(
    "value",
    [np.ma.masked, np.ma.array([1, 2], mask=[0, 1]), np.ma.array([(1, 2.0, 3)], mask=[(0, 1, 0)], dtype=RECORD)],
)
def test_masked_items_are_refused(value):
    with pytest.raises(TypeError, match="filled"):
        check_plain(value)
    with pytest.raises(TypeError, match="filled"):
        arrange(value, select((slice(2),), (4,)), np.dtype("f8"))


def test_a_mask_of_records_that_hides_nothing_is_no_matter():
    check_plain(np.ma.array([(1, 2.0, 3)], dtype=RECORD))
    check_plain(np.ma.zeros((), RECORD))


def test_a_mask_that_hides_nothing_is_no_matter():
    value = np.ma.array([1, 2], mask=[False, False])
    check_plain(value)
    assert arrange(value, select((slice(2),), (4,)), np.dtype("i8"))[0].tolist() == [1, 2]


def test_lists_that_are_too_deep_are_refused_before_numbers_that_are_too_large():
    expected = np.zeros(3, "u2")
    stored = b2array.asarray(expected)
    for target in (expected, stored):
        with pytest.raises(ValueError, match="exceed the maximum number of dimension"):
            target[0:2] = [[-1, -1], [-1, -1]]
        with pytest.raises(OverflowError):
            target[0:2] = [-1, -1]
