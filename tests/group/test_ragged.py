"""Rows of different lengths: two arrays in a group, which every program reads, and one object over them."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
from operations import Operations

import b2array
from b2array import Rows
from b2array.errors import FormatError
from b2array.store.local_store import LocalStore


def data(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 99, rng.integers(0, 20)).astype("i4") for _ in range(count)]


def same(found, expected):
    assert len(found) == len(expected)
    assert all(
        np.array_equal(one, other) and one.dtype == other.dtype for one, other in zip(found, expected, strict=True)
    )


@pytest.fixture
def group(tmp_path):
    return b2array.open_group(tmp_path / "g.b2d", "w")


def test_rows_are_read_like_a_list(group):
    expected = data(300)
    rows = Rows.create(group, expected)
    assert len(rows) == 300
    same(rows[:], expected)
    same(rows[5:100:7], expected[5:100:7])
    same(rows[::-1], expected[::-1])
    same(rows[[5, 2, 5]], [expected[5], expected[2], expected[5]])
    same(rows[np.arange(300) % 3 == 0], expected[::3])
    same(rows[[]], [])
    same([*rows], expected)
    same([rows[-1], rows[np.int64(7)]], [expected[-1], expected[7]])
    assert rows.lengths.tolist() == [len(row) for row in expected]
    for number in (300, -301):
        with pytest.raises(IndexError, match="out of bounds"):
            rows[number]


def test_two_arrays_are_what_other_programs_see(group):
    rows = Rows.create(group, [[1.5, 2.5], [], [3.5]])
    assert group["values"][...].tolist() == [1.5, 2.5, 3.5]
    assert group["offsets"][...].tolist() == [0, 2, 2, 3]
    assert rows.offsets.dtype == np.int64
    assert rows.values.url == group["values"].url


def test_an_append_is_one_commit(group):
    rows = Rows.create(group, dtype="i4")
    expected = data(50, seed=1)
    before = group["values"].generation, group["offsets"].generation
    assert rows.append(expected) == 50
    assert rows.append([]) == 50
    same(rows[:], expected)
    other = Rows(b2array.open_group(group.url))
    same(other[:], expected)
    assert before != (group["values"].generation, group["offsets"].generation)
    for bad, error in [([[1.5]], TypeError), ([["x"]], TypeError), ([[[1, 2]]], ValueError), ([5], ValueError)]:
        with pytest.raises(error):
            rows.append(bad)
    same(rows[:], expected)
    with group.transaction() as changes:
        inside = Rows(changes)
        inside.append([[7]])
        inside.append([[8, 8]])
        same(inside[50:], [np.array([7], "i4"), np.array([8, 8], "i4")])
        assert len(Rows(b2array.open_group(group.url))) == 50
    rows.refresh()
    assert len(rows) == 52


def test_rows_are_opened_beside_a_writer_that_appends(group, monkeypatch):
    operations = Operations()
    operations.listen(LocalStore, monkeypatch)
    Rows.create(group, dtype="i8")
    writer, moments = Rows(group), 0

    def read():
        return Rows(b2array.open_group(group.url, "r+"))[:]

    while operations.meets(moments, read, partial(writer.append, [[moments]])):
        moments += 1
    assert moments > 4
    same(read(), [np.array([n]) for n in range(moments)])


def test_rows_of_writers_at_the_same_time_are_all_there(group):
    Rows.create(group, dtype="i8")

    def work(number):
        rows = Rows(b2array.open_group(group.url, "r+"))
        for _ in range(5):
            rows.append([[number] * number])

    writers = [threading.Thread(target=work, args=(number,)) for number in range(1, 4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    rows = Rows(b2array.open_group(group.url))
    assert sorted(map(tuple, rows)) == sorted(5 * [(1,), (2, 2), (3, 3, 3)])


def test_items_may_be_points_or_text(group):
    polygons = Rows.create(group.require_group("p"), [[(0, 0), (1, 1)], [], [(2, 2)]], dtype="f8", item_shape=(2,))
    assert polygons[0].tolist() == [[0, 0], [1, 1]]
    assert polygons[1].shape == (0, 2)
    polygons.append([np.ones((3, 2))])
    assert polygons[-1].shape == (3, 2)
    tokens = Rows.create(group.require_group("t"), [["a", "longer"], [], ["é" * 40]], dtype="T")
    assert [row.tolist() for row in tokens] == [["a", "longer"], [], ["é" * 40]]
    assert tokens.values.dtype == np.dtypes.StringDType()


def test_several_rows_are_read_together(group, monkeypatch):
    rows = Rows.create(group, data(300), chunks=100)
    asked = []
    monkeypatch.setattr("b2array.group.ragged.read_many", lambda pairs: asked.append(pairs) or [a[k] for a, k in pairs])
    rows[[250, 3, 4, 100]]
    assert [len(pairs) for pairs in asked] == [3]


def test_other_groups_and_wrong_offsets_are_refused(group):
    with pytest.raises(KeyError, match=r"no array 'values'.*Rows\.create"):
        Rows(group)
    group["values"] = np.arange(5)
    group["offsets"] = np.array([0.0, 1.0])
    with pytest.raises(FormatError, match="expected offsets of rows"):
        Rows(group)
    del group["offsets"]
    group["offsets"] = np.array([0, 3, 2, 9])
    rows = Rows(group)
    with pytest.raises(FormatError, match="expected offsets that increase up to 5"):
        rows[:]


LAT_LON = np.dtype([("lat", "f4"), ("lon", "f4")])


@pytest.mark.parametrize(
    ("first", "row", "error"),
    [
        (np.array([1], "i8"), [2**63], OverflowError),
        (np.array([1], "i1"), np.array([300]), OverflowError),
        (np.array(["a"]), np.array(["longer"]), ValueError),
        (np.array([1]), np.ma.array([1, 2], mask=[0, 1]), TypeError),
        (np.array(["2000"], "M8[Y]"), np.array(["2000-02"], "M8[M]"), ValueError),
    ],
)
def test_appended_rows_keep_their_values_or_are_refused(group, first, row, error):
    rows = Rows.create(group, [first])
    with pytest.raises(error):
        rows.append([first, row])
    same(rows[:], [first])


@pytest.mark.parametrize("made", [True, False])
def test_rows_are_converted_one_by_one(group, made):
    # NumPy's common type of all rows is float64, which rounds the second.
    given = [np.empty(0), np.array([2**60 + 1]), []]
    rows = Rows.create(group, given if made else [[7]])
    if not made:
        rows.append(given)
    assert rows.values.dtype == np.int64
    assert [row.tolist() for row in rows[-3:]] == [[], [2**60 + 1], []]


def test_fields_of_appended_rows_go_by_name(group):
    rows = Rows.create(group, [np.array([(1, 2)], LAT_LON)])
    rows.append([np.array([(20, 10)], [("lon", "f4"), ("lat", "f4")])])
    assert rows[1].tolist() == [(10, 20)]


def test_new_rows_with_masked_items_are_refused(group):
    with pytest.raises(TypeError, match="masked items"):
        Rows.create(group, [np.ma.array([1, 2], mask=[0, 1])])
    assert [*group] == []


def test_text_without_a_size_gets_that_of_the_longest_item(group):
    rows = Rows.create(group, [["a"], ["longer", "b"]], dtype="U")
    assert rows.values.dtype == "U6"
    assert [row.tolist() for row in rows] == [["a"], ["longer", "b"]]


def test_rows_of_text_of_any_length_keep_each_character(group):
    rows = Rows.create(group, [["a"]], dtype=np.dtypes.StringDType())
    rows.append([["end\0"], [], ["w" * 99]])
    assert [row.tolist() for row in rows] == [["a"], ["end\0"], [], ["w" * 99]]


def test_offsets_of_other_programs_do_not_wrap(group):
    with group.transaction() as changes:
        changes["values"] = np.zeros(120, "u1")
        changes["offsets"] = np.array([0, 120], "i1")
    with pytest.raises(OverflowError, match="130 does not fit items of type int8"):
        Rows(group).append([np.zeros(10, "u1")])
    assert Rows(group).lengths.tolist() == [120]
