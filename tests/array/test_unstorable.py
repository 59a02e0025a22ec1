"""Values that are no data for NumPy: errors say what to store instead, and that works."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

import b2array

PANDAS: dict[str, tuple[Any, Callable[[Any], Any], str]] = {
    "times with a zone": (
        pd.date_range("2026", periods=2, tz="Europe/Oslo"),
        lambda x: pd.Index(x).tz_convert(None),
        r"items of pandas type datetime64\[us, Europe/Oslo\] .* store times in UTC, pandas.Index\(x\).tz_convert\(None",
    ),
    "a series of times with a zone": (
        pd.Series(pd.date_range("2026", periods=2, tz="UTC")),
        lambda x: pd.Index(x).tz_convert(None),
        r"pandas.Index\(x\).tz_convert\(None\)",
    ),
    "intervals": (pd.interval_range(0, 2), lambda x: pd.Index(x).left, r"pandas.Index\(x\).left and .right"),
    "periods": (pd.period_range("2026", periods=2, freq="D"), lambda x: pd.Index(x).to_timestamp(), "to_timestamp"),
    "missing truth": (pd.array([True, None], dtype="boolean"), lambda x: x.fillna(False).astype("?"), "astype"),
    "a table": (
        pd.DataFrame({"a": [1, 2], "b": ["x", "yz"]}),
        lambda x: x.to_records(index=False, column_dtypes={"b": "U2"}),
        r"items of a DataFrame .* to_records\(index=False\)",
    ),
    "an index of levels": (
        pd.MultiIndex.from_product([[1, 2], [0.5]]),
        lambda x: x.get_level_values(1),
        r"MultiIndex .* get_level_values\(n\)",
    ),
    "datetimes with a zone": (
        [datetime(2026, 1, 1, tzinfo=UTC)],
        lambda x: [each.replace(tzinfo=None) for each in x],
        "times with a time zone .* found datetime.datetime.* UTC",
    ),
}


ROWS = np.empty(2, object)
ROWS[:] = [np.arange(2), np.arange(3)]


@pytest.mark.parametrize("rows", [ROWS, pd.Series([[1], [2, 3]]), pd.Series(ROWS)])
def test_rows_of_different_lengths_are_for_another_function(rows: Any) -> None:
    with pytest.raises(TypeError, match=r"items that are lists .* b2array\.Rows\.create\(group, x\) stores rows"):
        b2array.asarray(rows)
    group = b2array.open_group("memory://unstorable-rows.b2d", "w")
    assert [row.tolist() for row in b2array.Rows.create(group, rows)] == [list(row) for row in rows]


def test_a_list_of_lists_of_different_lengths_is_an_error_of_numpy_with_advice() -> None:
    with pytest.raises(ValueError, match="inhomogeneous shape") as caught:
        b2array.asarray([[1], [2, 3]])
    assert caught.value.__notes__ == ["b2array.Rows.create(group, x) stores rows of different lengths"]
    with pytest.raises(TypeError, match="items with fields cannot be stored as objects, found Series: store each"):
        b2array.asarray(pd.Series([{"a": 1}]))


@pytest.mark.parametrize("kind", PANDAS)
def test_the_error_says_what_can_be_stored(kind: str) -> None:
    values, storable, message = PANDAS[kind]
    group = b2array.open_group("memory://unstorable.b2d", "w")
    with pytest.raises(TypeError, match=message):
        b2array.asarray(values)
    with pytest.raises(TypeError, match=message):
        group["a"] = values
    assert "a" not in group
    if kind == "datetimes with a zone":
        assert b2array.asarray(storable(values), dtype="M8[us]").shape == (1,)
    else:
        group["a"] = storable(values)
        assert np.array_equal(group["a"][:], np.asarray(storable(values)).astype(group["a"].dtype))


@pytest.mark.parametrize("values", [pd.Categorical(["a", "bc"]), pd.Series(["a", "bc"]), pd.DataFrame({"a": ["bc"]})])
def test_text_of_pandas_is_stored_as_text(values: Any) -> None:
    assert b2array.asarray(values).dtype.kind == "T"


class Sparse:
    """Has what sparse arrays of SciPy have, which NumPy takes for one object."""

    shape, dtype, nnz = (3, 3), np.dtype("f8"), 3

    def todense(self) -> np.ndarray[Any, Any]:
        return np.eye(3)


def test_sparse_arrays_are_refused_wherever_values_are_given() -> None:
    message = "Sparse is a sparse array, which cannot be stored: store it dense, with todense"
    a = b2array.zeros((3, 3))
    with pytest.raises(TypeError, match=message):
        a[...] = Sparse()
    with pytest.raises(TypeError, match=message):
        b2array.asarray(Sparse())
    with pytest.raises(TypeError, match=message):
        a.append(Sparse())
    assert a.shape == (3, 3)
    assert not a[...].any()
