"""Values that are added to an array keep their value, or an error names them and says what to do."""

from __future__ import annotations

import datetime as dt
import re
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from lengths import examples

import b2array
from b2array.grid.lossless import lossless

REFUSALS = (TypeError, ValueError, OverflowError)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INT4 = np.dtype(ml_dtypes.int4)
FLOAT4 = np.dtype(ml_dtypes.float4_e2m1fn)
TWO_FLOATS = np.dtype([("lat", "f4"), ("lon", "f4")])

LOST: dict[str, tuple[Any, Any, str]] = {
    "a large integer": (np.array([1, 2**40 + 5]), "i4", "1099511627781"),
    "an unsigned integer": (np.array([300], "u8"), "u1", "300"),
    "an unsigned integer that wraps twice": (np.array([2**63], "u8"), "i8", "9223372036854775808"),
    "an integer of Python": ([300], "u1", "300"),
    "a negative integer of Python": ([-1], "u1", "-1"),
    "a scalar of NumPy in a list": ([np.int64(300)], "u1", "300"),
    "an array in a list": ([np.array([3, 300])], "u1", "300"),
    "a float out of range": (np.array([1.0, 1e300]), "f4", "1e+300"),
    "a float of Python out of range": ([1e300], "f4", "1e+300"),
    "an integer out of a float's range": (np.array([70000]), "f2", "70000"),
    "a complex number out of range": (np.array([1e300j]), "c8", "1e+300j"),
    "text": (np.array(["ab", "longer"]), "U2", "'longer'"),
    "text in a list": (["ab", "longer"], "U2", "'longer'"),
    "text in objects": (np.array(["ab", "longer"], object), "U2", "'longer'"),
    "text of any length": (np.array(["ab", "longer"], np.dtypes.StringDType()), "U2", "'longer'"),
    "bytes": (np.array([b"longer"]), "S2", "b'longer'"),
    "bytes in a list": ([b"longer"], "S2", "b'longer'"),
    "raw bytes": (np.array([b"abcd"], "V4"), "V2", "V2"),
    "a number as text": (np.array([-1000]), "U2", "-1000"),
    "a float as text": ([0.125], "U3", "0.125"),
    "an hour in days": (np.array(["2000-01-02T06"], "M8[h]"), "M8[D]", "2000-01-02T06"),
    "an hour in days, as text": (["2000-01-02T06"], "M8[D]", "2000-01-02T06"),
    "an hour in days, as an object": ([dt.datetime.fromisoformat("2000-01-02T06:00")], "M8[D]", "2000-01-02T06"),
    "a year out of range": (np.array(["3000-01-01"], "M8[D]"), "M8[ns]", "3000-01-01"),
    "a duration": (np.array([90], "m8[s]"), "m8[m]", "90 seconds"),
    "an integer of four bits": (np.array([7, 300]), INT4, "300"),
    "a small float with a largest number": (np.array([300.0]), FLOAT4, "300"),
    "a bfloat16 out of range": (np.array([1e300]), BFLOAT16, "1e+300"),
    "a field": (np.array([(1, "longer")], "i8,U9"), "i4,U2", "'longer'"),
    "a field of a tuple": ([(1, "longer")], "i4,U2", "'longer'"),
    "an integer in a tuple": ([(300, "a")], "u1,U2", "300"),
    "a nested field": ([((300,), "a")], [("in", [("n", "u1")]), ("t", "U2")], "300"),
    "a field of arrays": (np.array([([1, 70000],)], [("n", "i8", 2)]), [("n", "i2", 2)], "70000"),
}

KEPT: dict[str, tuple[Any, Any]] = {
    "integers": (np.array([-128, 127]), "i1"),
    "integers of Python": ([0, 255], "u1"),
    "rounded floats": (np.array([0.1, np.nan, np.inf, -np.inf]), "f4"),
    "floats of Python": ([0.1, np.nan], "f2"),
    "None as a float": ([None], "f8"),
    "integers as floats": (np.array([2**53 + 1]), "f8"),
    "short text": (np.array(["ab"], "U9"), "U2"),
    "text in a list": (["é", ""], "U2"),
    "text of any length": (np.array(["ab"], np.dtypes.StringDType()), "U2"),
    "numbers as text": ([10], "U2"),
    "whole days": (np.array(["2000-01-02T00", "NaT"], "M8[h]"), "M8[D]"),
    "days as text": (["2000-01-02", "NaT"], "M8[D]"),
    "a day as an object": ([dt.date(2000, 1, 2)], "M8[ns]"),
    "integers as durations": (np.array([5]), "m8[s]"),
    "integers of Python as durations": ([5], "m8[s]"),
    "rounded bfloat16": (np.array([0.1, 3.0, 1e38, np.nan]), BFLOAT16),
    "integers of four bits": (np.array([-8, 7]), INT4),
    "raw bytes": (np.array([b"ab"], "V2"), "V4"),
    "no items": ([], "i4"),
    "one item": (np.array(5), "i2"),
    "tuples": ([(1, "ab"), (2, "")], "i4,U2"),
    "padded records": (np.array([(1, 2.5)], np.dtype("i1,f8", align=True)), "i1,f8"),
    "a field of arrays": (np.array([([1, 300],)], [("n", "i8", 2)]), [("n", "i2", 2)]),
    "tuples with arrays": ([([1, 300],)], [("n", "i2", 2)]),
    "nested tuples": ([((200,), "a")], [("in", [("n", "u1")]), ("t", "U2")]),
}


@pytest.mark.parametrize("name", LOST)
def test_a_value_that_would_change_is_refused_by_its_name(name: str) -> None:
    values, dtype, text = LOST[name]
    with pytest.raises((ValueError, OverflowError)) as caught:
        lossless(values, np.dtype(dtype))
    assert text in str(caught.value)
    assert "does not fit items of type" in str(caught.value)
    assert "astype" in str(caught.value)


@pytest.mark.parametrize("name", KEPT)
def test_values_that_the_type_holds_are_kept(name: str) -> None:
    values, text = KEPT[name]
    dtype = np.dtype(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lossless(values, dtype).astype(dtype)
    expected = np.asarray(values).astype(dtype) if isinstance(values, np.ndarray) else np.asarray(values, dtype)
    assert found.dtype == dtype
    assert found.tobytes() == expected.tobytes()


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_integers_and_times_come_back_or_are_refused(data: Any) -> None:
    kinds = st.one_of(
        hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(), hnp.datetime64_dtypes(), hnp.timedelta64_dtypes()
    )
    old, new = data.draw(kinds), data.draw(kinds)
    values = data.draw(hnp.arrays(old, hnp.array_shapes(max_dims=2, max_side=4)))
    try:
        found = lossless(values, new).astype(new)
    except REFUSALS:
        return
    if old.kind in "mM":
        assert np.array_equal(found, values, equal_nan=True)
    else:
        assert found.astype(object).tolist() == values.astype(object).tolist() or new.kind == "m"


def test_a_value_behind_many_others_is_found() -> None:
    values = np.zeros((3, 2**19), "i8")
    values[2, -7] = 2**31
    with pytest.raises(OverflowError, match="2147483648"):
        lossless(values, np.dtype("i4"))


def test_the_fields_of_records_go_by_name() -> None:
    other = np.array([(10.0, 50.0)], [("lon", "f8"), ("lat", "f8")])
    for values in (other, [other[0]], other[0]):
        found = lossless(values, TWO_FLOATS)
        assert found.dtype == TWO_FLOATS
        assert np.array_equal(found.reshape(1), np.array([(50.0, 10.0)], TWO_FLOATS))
    outer = np.array([(((1, 2),),)], [("in", [("more", [("b", "i4"), ("a", "i4")])])])
    inner = np.dtype([("in", [("more", [("a", "i4"), ("b", "i4")])])])
    assert lossless(outer, inner)["in"]["more"]["a"] == 2


@pytest.mark.parametrize("fields", [[("x", "f4"), ("y", "f4")], [("lat", "f4")], [("lat", "f4", 2), ("lon", "f4")]])
def test_records_with_other_fields_are_refused(fields: list[Any]) -> None:
    with pytest.raises(TypeError, match=r"fields|items of shape|same_kind"):
        lossless(np.zeros(1, fields), TWO_FLOATS)


# The functions that add items.


def _appended(values: Any, dtype: Any) -> Any:
    a = b2array.zeros(0, dtype)
    a.append(values)
    return a


def _inserted(values: Any, dtype: Any) -> Any:
    a = b2array.zeros(0, dtype)
    a.insert(values, 0)
    return a


def _collected(values: Any, dtype: Any) -> Any:
    a = b2array.zeros(0, dtype)
    with a.appender(every=1) as out:
        out.append(values)
    return a


def _streamed(values: Any, dtype: Any) -> Any:
    a = b2array.zeros(0, dtype)
    a.append(b2array.asarray(values))
    return a


def _stored(values: Any, dtype: Any) -> Any:
    da = pytest.importorskip("dask.array")
    a = b2array.zeros(len(values), dtype)
    a.store(da.from_array(np.asarray(values), chunks=-1))
    return a


def _stored_together(values: Any, dtype: Any) -> Any:
    da = pytest.importorskip("dask.array")
    a = b2array.zeros(len(values), dtype)
    with a.transaction():
        a.store(da.from_array(np.asarray(values), chunks=-1))
    return a


ADD: dict[str, Callable[[Any, Any], Any]] = {
    "append": _appended,
    "append of an array of b2array": _streamed,
    "insert": _inserted,
    "appender": _collected,
    "store": _stored,
    "store in a transaction": _stored_together,
    "from_blocks": lambda values, dtype: b2array.from_blocks([np.empty(0, dtype), values]),
    "from_blocks with a type": lambda values, dtype: b2array.from_blocks([values], dtype=dtype),
    "fromiter": lambda values, dtype: b2array.fromiter(iter(values), dtype),
    "map": lambda values, dtype: b2array.map(lambda x: x, values, dtype=dtype),
}
ARRAYS = ["a large integer", "an unsigned integer", "text", "an hour in days", "a field", "a float out of range"]


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("add", ADD)
def test_whatever_adds_items_keeps_their_values_or_refuses_them(add: str, name: str) -> None:
    values, dtype, text = LOST[name]
    with pytest.raises((ValueError, OverflowError), match="does not fit items of type") as caught:
        ADD[add](values, np.dtype(dtype))
    assert text in str(caught.value)
    # Items that fit are kept.
    assert np.array_equal(ADD[add](values[:0], np.dtype(dtype)), np.empty(0, dtype))
    wide = np.result_type(values.dtype, dtype) if name != "a field" else values.dtype
    assert np.array_equal(ADD[add](values, wide)[...], values)


@pytest.mark.parametrize("add", ADD)
def test_whatever_adds_records_takes_their_fields_by_name(add: str) -> None:
    other = np.array([(10.0, 50.0), (11.0, 51.0)], [("lon", "f4"), ("lat", "f4")])
    found = ADD[add](other, TWO_FLOATS)[...]
    assert found["lat"].tolist() == [50.0, 51.0]
    assert found["lon"].tolist() == [10.0, 11.0]
    with pytest.raises(TypeError):
        ADD[add](np.zeros(2, [("x", "f4"), ("y", "f4")]), TWO_FLOATS)


CONVERT: dict[str, Callable[[Any, Any], Any]] = {
    "asarray": lambda values, dtype: b2array.asarray(values, dtype=dtype),
    "astype": lambda values, dtype: b2array.asarray(values).astype(dtype),
    "copy": lambda values, dtype: b2array.copy(b2array.asarray(values), dtype=dtype),
    "copy of a view": lambda values, dtype: b2array.asarray(values).view[:1].copy(dtype=dtype),
    "concatenate": lambda values, dtype: b2array.concatenate([values], dtype=dtype),
    "stack": lambda values, dtype: b2array.stack([values], dtype=dtype),
}


@pytest.mark.parametrize("convert", CONVERT)
def test_a_conversion_by_position_is_refused_where_it_would_exchange_fields(convert: str) -> None:
    other = np.array([(10.0, 50.0)], [("lon", "f4"), ("lat", "f4")])
    with pytest.raises(TypeError, match="by position"):
        CONVERT[convert](other, TWO_FLOATS)
    # As in NumPy, other names are given by position.
    renamed = CONVERT[convert](other, [("x", "f4"), ("y", "f4")])[...]
    assert renamed["x"].ravel().tolist() == [10.0]


def test_an_append_that_is_refused_in_its_middle_changes_nothing(tmp_path: Any) -> None:
    a = b2array.asarray(np.arange(5, dtype="i2"), url=tmp_path / "a.b2nd", chunks=(4,))
    values = np.zeros(2**21, "i4")
    values[-1] = 2**15
    stored = b2array.asarray(values, chunks=(2**16,))
    for attempt in (values, stored):
        with pytest.raises(OverflowError, match="32768"):
            a.append(attempt)
    with a.transaction():
        a.append([5])
        with pytest.raises(OverflowError, match="32768"):
            a.append(stored)
    assert b2array.load(tmp_path / "a.b2nd").tolist() == [0, 1, 2, 3, 4, 5]
    assert b2array.verify(tmp_path / "a.b2nd").ok


@pytest.mark.parametrize("kind", [list, tuple])
def test_text_of_any_length_keeps_what_text_of_one_size_would_lose(kind):
    given = kind(["x", "end\0\0"])
    found = lossless(given, np.dtypes.StringDType())
    assert found.tolist() == np.asarray(given, np.dtypes.StringDType()).tolist() == ["x", "end\0\0"]
    (nested,) = lossless([given], np.dtypes.StringDType()).tolist()
    assert nested == [*given]


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_items_in_lists_do_not_become_text(missing):
    dtype = np.dtypes.StringDType(na_object=missing)
    found = lossless(["x", missing, "nan"], dtype).astype(dtype)
    assert found[1] is missing or np.isnan(found[1])
    assert [found[0], found[2]] == ["x", "nan"]
    with pytest.raises(TypeError, match="expected text, found missing items"):
        lossless(["x", missing], np.dtypes.StringDType())


@pytest.mark.parametrize(
    ("item", "dtype", "advised"),
    [
        ("9999-01-01", "M8[ns]", "M8[us]"),
        ("2000-01-01T01", "M8[D]", "M8[h]"),
        ("300000-01-01", "M8[us]", "M8[ms]"),
    ],
)
def test_the_advice_for_times_names_a_type_that_holds_them(item, dtype, advised):
    time = np.array([item], "M8")
    with pytest.raises(ValueError, match=re.escape(f'a.astype("{np.dtype(advised)}") holds it')):
        lossless(time, np.dtype(dtype))
    assert time.astype(advised).astype(time.dtype) == time


def test_the_advice_for_text_can_be_followed():
    a = b2array.asarray(np.array(["ab"]))
    with pytest.raises(ValueError, match=re.escape("a.astype(np.dtypes.StringDType()) holds it")):
        a.append(np.array(["longer"], np.dtypes.StringDType()))
