"""Indexes of python-blosc2 are stale after every change of values or shape, and its queries find all rows."""

from __future__ import annotations

import subprocess
import sys

import blosc2
import numpy as np
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

import b2array
from b2array.format.attributes import encode_attr
from b2array.format.foreign_indexes import with_stale_indexes

LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])


def indexed(path, layout="contiguous", **attrs):
    """An array of python-blosc2 with an index, 100 items, 0 to 99."""
    array = blosc2.asarray(
        np.arange(100.0), urlpath=str(path), mode="w", contiguous=layout == "contiguous", chunks=(10,), blocks=(5,)
    )
    array.create_index()
    for name, value in attrs.items():
        array.schunk.vlmeta[name] = value
    return path


def marks(path):
    array = blosc2.open(str(path))  # its attributes go with it
    catalog = array.schunk.vlmeta["blosc2_indexes"]
    return [entry["stale"] for entry in catalog["indexes"].values()]


CHANGES = {
    "an item": lambda a: a.__setitem__(3, 1000.0),
    "all items": lambda a: a.__setitem__(..., 1000.0),
    "an append": lambda a: a.append(np.full(5, 1000.0)),
    "an insertion": lambda a: a.insert(np.full(5, 1000.0), 0),
    "a deletion": lambda a: a.delete(slice(0, 5)),
    "fewer items": lambda a: a.resize(50),
    "more items": lambda a: a.resize(150),
    "a restored state": lambda a: a.restore("first"),
}


@LAYOUTS
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_marks_the_index(tmp_path, layout, change):
    path = indexed(tmp_path / "a.b2nd", layout, _blosc2_query_cache={"entries": {}}, mine=1)
    array = b2array.open(path, "r+")
    if "restored" in change:
        array.snapshot("first")
    else:
        assert marks(path) == [False]
    CHANGES[change](array)
    assert marks(path) == [True]
    assert sorted(array.attrs) == ["blosc2_indexes", "mine"]
    blosc2_array = blosc2.open(str(path))
    np.testing.assert_array_equal(blosc2_array[:], array[:])


def test_queries_of_python_blosc2_find_what_was_written(tmp_path):
    dtype = [("k", "<i8"), ("v", "<f8")]
    rows = np.zeros(100, dtype)
    rows["k"] = np.arange(100)
    path = str(tmp_path / "rows.b2nd")
    stock = blosc2.asarray(rows, urlpath=path, mode="w", chunks=(10,), blocks=(5,))
    stock.create_index("k")
    array = b2array.open(path, "r+")
    rows["k"][:10] = 500 + np.arange(10)
    array[:10] = rows[:10]
    more = np.zeros(5, dtype)
    more["k"] = 600
    array.append(more)
    # In this process python-blosc2 would remember the index as it made it.
    program = f"import blosc2; found = blosc2.open({path!r})['k >= 500']; print(sorted(found[:]['k'].tolist()))"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert answer.strip() == str([*range(500, 510), *[600] * 5])


OTHER_CHANGES = {
    "an attribute": lambda a: a.attrs.update(mine=2),
    "a repack": lambda a: b2array.repack(a.url),
    "a vacuum": lambda a: b2array.vacuum(a.url, grace=0),
}


@LAYOUTS
@pytest.mark.parametrize("change", OTHER_CHANGES)
def test_a_change_of_metadata_or_place_leaves_the_index(tmp_path, layout, change):
    path = indexed(tmp_path / "a.b2nd", layout, _blosc2_query_cache={"entries": {}})
    array = b2array.open(path, "r+")
    OTHER_CHANGES[change](array)
    assert marks(path) == [False]
    assert "_blosc2_query_cache" in array.attrs


def test_a_frame_that_is_written_again_as_a_whole_has_the_mark(tmp_path):
    indexed(tmp_path / "a.b2nd")
    array = b2array.open("a.b2nd", "r+", fs=DirFileSystem(str(tmp_path), LocalFileSystem()))
    array.attrs["mine"] = 1
    assert marks(tmp_path / "a.b2nd") == [False]
    array[3] = 1000.0
    assert marks(tmp_path / "a.b2nd") == [True]


def test_changes_that_collect_have_the_mark(tmp_path):
    (tmp_path / "run.b2d").mkdir()
    path = indexed(tmp_path / "run.b2d" / "a.b2nd")
    with b2array.open_group(tmp_path / "run.b2d", "r+").transaction() as changes:
        changes["a"][3] = 1000.0
        changes["a"].resize(120)
    assert marks(path) == [True]


def test_two_writers_do_not_meet_at_the_mark(tmp_path):
    path = indexed(tmp_path / "a.b2nd")
    one, other = b2array.open(path, "r+"), b2array.open(path, "r+")
    one.attrs["ours"] = True  # from now on changes of different chunks merge
    other.refresh()
    one[0], other[99] = 1000.0, 1000.0
    assert b2array.open(path)[[0, 99]].tolist() == [1000.0, 1000.0]
    assert marks(path) == [True]


@LAYOUTS
def test_a_copy_does_not_trust_the_index_of_its_source(tmp_path, layout):
    """The files of the index lie beside the source, and change with that."""
    path = indexed(tmp_path / "a.b2nd")
    b2array.open(path).copy(tmp_path / "same.b2nd", layout=layout)
    b2array.open(path).copy(tmp_path / "other.b2nd", layout=layout, chunks=20)
    assert marks(tmp_path / "same.b2nd") == marks(tmp_path / "other.b2nd") == [True]
    assert marks(path) == [False]


@pytest.mark.parametrize(
    "value",
    [7, {"indexes": 7}, {"indexes": {"a": 7}}, {"indexes": {"a": {"stale": True}}}, {"other": {"a": {"stale": False}}}],
)
def test_an_attribute_of_another_form_stays(value):
    state = b2array.zeros(3)._handle.revision.state.with_attr("blosc2_indexes", encode_attr(value))
    assert with_stale_indexes(state) is state


def test_a_catalog_that_cannot_be_read_stays_and_one_that_cannot_be_written_goes():
    plain = b2array.zeros(3)._handle.revision.state
    damaged = plain.with_attr("blosc2_indexes", b"\xc1")
    assert with_stale_indexes(damaged) is damaged
    numbered = plain.with_attr("blosc2_indexes", b"\x81\xa7indexes\x81\xa1a\x81\x01\x02")  # {"indexes": {"a": {1: 2}}}
    assert with_stale_indexes(numbered).attr("blosc2_indexes") is None
