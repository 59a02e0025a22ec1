"""Arrow, Awkward Array and Polars: text and rows of different lengths go both ways, where these libraries are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

import b2array
from b2array import Rows

WORDS = ["a", "", "Grüße🙂", "long " * 400]
ROWS = [[3, 1], [], [4, 1, 5], [9]]


@pytest.fixture
def group() -> b2array.Group:
    return b2array.open_group("memory://arrow.b2d", "w")


class Words:
    """Text of a library that has one type for text, and gives NumPy text of one width."""

    dtype = "String"

    def __init__(self, items: list[str | None]) -> None:
        self.items = items

    def __getitem__(self, key: slice) -> Words:
        return Words(self.items[key])

    def __len__(self) -> int:
        return len(self.items)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if dtype is None and None not in self.items:
            assert len(self.items) < 2, "all items would have the width of the longest"
            return np.array(self.items, "U")
        return np.array(self.items, object)


@pytest.mark.parametrize(
    "items", [WORDS, ["a", None], [None, "a"], []], ids=["all", "missing", "missing first", "none"]
)
def test_text_of_other_libraries_is_text_of_any_length(items: list[str | None]) -> None:
    a = b2array.asarray(Words(items))
    missing = {"na_object": None} if None in items else {}
    assert a.dtype == np.dtypes.StringDType(**missing)
    assert a[...].tolist() == items


@pytest.mark.parametrize("dtype", ["str", "string"])
def test_text_of_pandas_without_items_is_text(dtype: str) -> None:
    a = b2array.asarray(pd.Series([], dtype=dtype))
    assert (a.dtype, a.shape) == (np.dtypes.StringDType(), (0,))
    a.append(pd.Series(WORDS, dtype=dtype))
    assert a[...].tolist() == WORDS


# Arrow.


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary", "chunked"])
def test_text_of_arrow_comes_back(kind: str) -> None:
    pa = pytest.importorskip("pyarrow")
    plain = pa.array(WORDS)
    if kind == "dictionary":
        values = plain.dictionary_encode()
    elif kind == "chunked":
        values = pa.chunked_array([plain[:1], plain[1:]])
    else:
        values = plain.cast(getattr(pa, kind)())
    a = b2array.asarray(values)
    assert a.dtype == np.dtypes.StringDType()
    a.append(values)
    a[0:4] = values
    assert pa.array(a[...]).equals(pa.array(WORDS + WORDS))


def test_missing_text_of_arrow_stays_missing() -> None:
    pa = pytest.importorskip("pyarrow")
    values = pa.array(["a", None, "b"])
    a = b2array.asarray(values)
    assert a.dtype == np.dtypes.StringDType(na_object=None)
    assert pa.array(a[...]).equals(values)
    assert b2array.asarray(values[:0]).dtype == np.dtypes.StringDType()


def test_lists_of_arrow_are_rows_and_rows_are_lists(group: b2array.Group) -> None:
    pa = pytest.importorskip("pyarrow")
    for number, values in enumerate(
        [
            pa.array(ROWS),
            pa.array(ROWS, pa.large_list(pa.int64())),
            pa.array([[7], *ROWS, [8]])[1:-1],
            pa.chunked_array([pa.array(ROWS[:1]), pa.array(ROWS[1:])]),
        ]
    ):
        rows = Rows.create(group.require_group(str(number)), values)
        assert rows.values.dtype == np.int64
        assert [row.tolist() for row in rows] == ROWS
        back = pa.LargeListArray.from_arrays(rows.offsets[...], rows.values[...])
        assert back.to_pylist() == ROWS
        rows.append(values[1:3])
        assert [row.tolist() for row in rows[4:]] == ROWS[1:3]
    empty = Rows.create(group.require_group("empty"), pa.array([], pa.list_(pa.int32())))
    assert (len(empty), empty.values.dtype) == (0, np.int32)


def test_text_in_lists_of_arrow(group: b2array.Group) -> None:
    pa = pytest.importorskip("pyarrow")
    values = pa.array([WORDS, [], ["b"]], pa.large_list(pa.string()))
    rows = Rows.create(group, values)
    assert rows.values.dtype == np.dtypes.StringDType()
    assert pa.LargeListArray.from_arrays(rows.offsets[...], pa.array(rows.values[...])).equals(values)


def test_what_is_no_list_of_arrow_is_refused(group: b2array.Group) -> None:
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="expected rows, found 1 missing ones"):
        Rows.create(group, pa.array([[1], None]))
    with pytest.raises(TypeError, match="expected lists of items, one for each row, found int64"):
        Rows.create(group, pa.array([1, 2]))
    points = pa.list_(pa.list_(pa.float64(), 2))
    for values in (pa.array([[[1], [2, 3]], []]), pa.array([[[1.0, 2.0]], []], points)):
        message = rf"expected lists of numbers or text, found {re.escape(str(values.type))}: pass points and other"
        with pytest.raises(TypeError, match=message):
            Rows.create(group, values)
    with pytest.raises(TypeError, match=r"found list<item: struct<a: int64>>: store each field as rows in a group"):
        Rows.create(group, pa.array([[{"a": 1}]]))
    with pytest.raises(TypeError, match=r"found list<item: int64>: b2array.Rows.create\(group, x\) stores rows"):
        b2array.asarray(pa.array([[1], [2, 3]]))
    with pytest.raises(TypeError, match=r"found struct<a: int64>: store each field as an array of a group"):
        b2array.asarray(pa.array([{"a": 1}]))
    assert list(group) == []
    # What the errors advise.
    values = pa.array([[[1.0, 2.0]], []], points)
    rows = Rows.create(group.require_group("points"), [row.as_py() for row in values], item_shape=(2,))
    assert [row.tolist() for row in rows] == values.to_pylist()
    nested = pa.array([[[1], [2, 3]], []])
    inner = Rows.create(group.require_group("inner"), nested.flatten())
    outer = Rows.create(group.require_group("outer"), [[0, 1], []])
    assert [[inner[n].tolist() for n in numbers] for numbers in outer] == nested.to_pylist()


# Awkward Array and Polars.


def test_rows_of_awkward_come_back(group: b2array.Group) -> None:
    ak = pytest.importorskip("awkward")
    values = ak.Array(ROWS)
    rows = Rows.create(group.require_group("plain"), values)
    assert rows.append(values[1:3]) == 6
    offsets = ak.index.Index64(rows.offsets[...])
    content = ak.contents.NumpyArray(rows.values[...])
    assert ak.Array(ak.contents.ListOffsetArray(offsets, content)).to_list() == ROWS + ROWS[1:3]
    points = ak.Array([[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]])
    polygons = Rows.create(group.require_group("points"), points, item_shape=(2,))
    assert [row.tolist() for row in polygons] == points.to_list()
    words = Rows.create(group.require_group("words"), ak.Array([WORDS, []]))
    assert words.values.dtype == np.dtypes.StringDType()
    with pytest.raises(TypeError, match=r"expected lists of items, one for each row, found 2 \* int64"):
        Rows.create(group, ak.Array([1, 2]))
    with pytest.raises(ValueError, match=r"found 2 \* var \* var \* int64: pass points and other items of one shape"):
        Rows.create(group, ak.Array([[[1, 2], [3]], []]))
    for missing in ([[1, None], []], [[1], None]):
        with pytest.raises(ValueError, match=r"found 2 \* .*: replace what is missing, as awkward.fill_none does"):
            Rows.create(group, ak.Array(missing))
    with pytest.raises(ValueError, match="not regular") as caught:
        b2array.asarray(values)
    assert "b2array.Rows.create(group, x) stores rows of different lengths" in caught.value.__notes__[-1]


def test_text_of_awkward_comes_back() -> None:
    ak = pytest.importorskip("awkward")
    a = b2array.asarray(ak.Array(WORDS))
    assert a.dtype == np.dtypes.StringDType()
    assert ak.Array(a[...].tolist()).to_list() == WORDS


def test_text_and_rows_of_polars_come_back(group: b2array.Group) -> None:
    pl = pytest.importorskip("polars")
    for items in (WORDS, ["a", None], [None, "a"], []):
        values = pl.Series(items, dtype=pl.String)
        a = b2array.asarray(values)
        assert a.dtype.kind == "T"
        assert pl.Series(a[...].tolist(), dtype=pl.String).to_list() == items
    assert [row.tolist() for row in Rows.create(group, pl.Series(ROWS))] == ROWS
