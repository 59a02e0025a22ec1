"""What `to_b2array` makes of values, encodings, modes and graphs: nothing is cut, wrapped or done twice."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import re
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import b2array
from b2array.commit import staging
from b2array.errors import ConflictError
from b2array.grid.chunking import automatic
from b2array.xarray_io import Backend, to_b2array

pytestmark = pytest.mark.crossed


@pytest.fixture(autouse=True)
def _threads():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


@pytest.fixture
def url(tmp_path: Path) -> Path:
    return tmp_path / "w.b2d"


def reopened(url: Path, **options: object) -> xr.Dataset:
    return xr.open_dataset(url, engine=Backend, **options)


def along(values: object, name: str = "a", dim: str = "t") -> xr.Dataset:
    return xr.Dataset({name: (dim, values)})


# Text.


@pytest.mark.parametrize("kind", [object, np.dtypes.StringDType()], ids=str)
def test_appended_text_makes_the_stored_text_wider(url: Path, kind: object) -> None:
    to_b2array(along(["asd", "b"]), url, encoding={"a": {"chunks": 4}})
    to_b2array(along(np.array(["asdfäö", "c"], dtype=kind)), url, append_dim="t")
    assert reopened(url).a.values.tolist() == ["asd", "b", "asdfäö", "c"]
    assert b2array.open_group(url)["a"].chunks == (4,)


def test_text_that_becomes_wider_keeps_its_fill_value(url: Path) -> None:
    to_b2array(along(np.array(["a", "b"], object)), url, encoding={"a": {"fill_value": "z"}})
    to_b2array(along(np.array(["long"], object)), url, append_dim="t")
    array = b2array.open_group(url, "r+")["a"]
    assert array.fill_value == "z"
    array.resize(4)
    assert array[:].tolist() == ["a", "b", "long", "z"]


@pytest.mark.parametrize("values", [["asdf"], np.array([b"asdf"])], ids=["U", "S"])
def test_wider_text_of_one_width_is_refused_by_the_name_of_its_variable(url: Path, values: object) -> None:
    first = along(np.asarray(values).astype(np.asarray(values).dtype.kind + "3"))
    to_b2array(first, url)
    for options in ({"append_dim": "t"}, {"region": {"t": slice(0, 1)}}):
        with pytest.raises(ValueError, match=r"variable 'a'.* cannot hold"):
            to_b2array(along(values), url, **options)
    xr.testing.assert_identical(reopened(url), first)


def test_text_in_a_region_is_never_cut(url: Path) -> None:
    to_b2array(along(["asd", "b"]), url)
    wide = along(np.array(["asdf"], dtype=object))
    with pytest.raises(ValueError, match=r"variable 'a'.* cannot hold"):
        to_b2array(wide, url, region={"t": slice(0, 1)})
    to_b2array(wide, url, region={"t": slice(0, 1)}, mode="a")
    assert reopened(url).a.values.tolist() == ["asdf", "b"]


def test_text_that_was_read_and_made_longer_is_not_cut_to_its_old_width(url: Path, tmp_path: Path) -> None:
    to_b2array(along(["abc", "d"]), url)
    longer = reopened(url)
    longer["a"] = longer.a.copy(data=["abcdefgh", "d"])
    longer.a.encoding = reopened(url).a.encoding
    to_b2array(longer, tmp_path / "b.b2d")
    assert reopened(tmp_path / "b.b2d").a.values.tolist() == ["abcdefgh", "d"]


def test_a_width_that_is_asked_for_is_kept_or_refused(url: Path, tmp_path: Path) -> None:
    to_b2array(along(["abc"]), url, encoding={"a": {"dtype": "U10"}})
    assert b2array.open_group(url)["a"].dtype == "U10"
    with pytest.raises(ValueError, match=r"variable 'a'.* cannot hold"):
        to_b2array(along(["abc"]), tmp_path / "b.b2d", encoding={"a": {"dtype": "U2"}})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"a", b"b"], [b"a", b"b"]),
        (np.array(["a", None, "bcd"], object), ["a", "", "bcd"]),
        (np.array(["a", np.nan], object), ["a", ""]),
        (np.array([1, 2], object), [1, 2]),
        (np.array([True, False], object), [True, False]),
        (np.array([1.5, None], object), [1.5, pytest.approx(np.nan, nan_ok=True)]),
        (np.array(["a", None], np.dtypes.StringDType(na_object=None)), ["a", ""]),
    ],
)
def test_objects_are_stored_as_what_they_are(url: Path, values: object, expected: list[object]) -> None:
    to_b2array(along(values), url)
    assert reopened(url).a.values.tolist() == expected


@pytest.mark.parametrize("values", [[b"a\0"], [b"a", "b"], [b"a", 3]])
def test_objects_that_would_be_other_ones_are_refused(url: Path, values: list[object]) -> None:
    with pytest.raises((ValueError, TypeError), match="'a'"):
        to_b2array(along(np.array(values, dtype=object)), url)


def test_characters_grow_by_shorter_text_and_refuse_longer(url: Path) -> None:
    to_b2array(along(["abc", "d"]), url, encoding={"a": {"dtype": "S1"}})
    assert b2array.open_group(url)["a"].shape == (2, 3)
    to_b2array(along(["ef"]), url, append_dim="t")
    with pytest.raises(ValueError, match="'a'"):
        to_b2array(along(["abcd"]), url, append_dim="t")
    assert reopened(url).a.values.tolist() == ["abc", "d", "ef"]


# Times.


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("calendar", ["noleap", "360_day", "julian", "all_leap"])
def test_times_of_other_calendars_are_appended_and_put_into_regions(url: Path, calendar: str, chunked: bool) -> None:
    times = xr.date_range("2000-02-27", periods=6, calendar=calendar, use_cftime=True)
    ds = xr.Dataset({"when": ("t", np.array(times))})
    first, later = ds.isel(t=slice(4)), ds.isel(t=slice(4, 6))
    to_b2array(first, url)
    to_b2array(later.chunk(t=1) if chunked else later, url, append_dim="t")
    xr.testing.assert_equal(reopened(url).load(), ds)
    to_b2array(later, url, region={"t": slice(0, 2)})
    assert reopened(url).when.values[:2].tolist() == later.when.values.tolist()


def test_times_outside_nanoseconds_are_appended(url: Path) -> None:
    first, later = (along(np.array([f"{year}-01-01", f"{year}-01-02"], "M8[s]")) for year in (1000, 9000))
    to_b2array(first, url)
    to_b2array(later, url, append_dim="t")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xr.SerializationWarning)
        found = reopened(url).a.values
    assert [str(each)[:10] for each in found] == ["1000-01-01", "1000-01-02", "9000-01-01", "9000-01-02"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("units", ["days", "hours", "seconds", "milliseconds", "microseconds", "nanoseconds"])
def test_times_of_every_resolution_are_converted_to_the_stored_units(url: Path, units: str, unit: str) -> None:
    first, later = (along(np.array([f"200{n}-01-01", f"200{n}-03-01"], f"M8[{unit}]")) for n in (1, 2))
    encoding = {"units": f"{units} since 2000-01-01", "dtype": "i8"}
    to_b2array(first, url, encoding={"a": encoding})
    to_b2array(later, url, append_dim="t")
    assert np.array_equal(reopened(url).a, np.concatenate([first.a, later.a]))


def test_a_time_in_another_calendar_is_refused(url: Path) -> None:
    to_b2array(along(np.array(xr.date_range("2000", periods=2, calendar="noleap", use_cftime=True))), url)
    other = along(np.array(xr.date_range("2000", periods=2, calendar="360_day", use_cftime=True)))
    for ds in (other, along(pd.date_range("2000", periods=2).values.astype("M8[ns]"))):
        with pytest.raises(ValueError, match=r"variable 'a'.* calendar"):
            to_b2array(ds, url, append_dim="t")


def test_lengths_of_time_are_converted_to_the_stored_unit(url: Path) -> None:
    to_b2array(along(np.array([1, 2], "m8[ns]")), url)
    to_b2array(along(np.array([3], "m8[s]")), url, append_dim="t")
    assert reopened(url).a.values.tolist() == [1, 2, 3 * 10**9]


@pytest.mark.filterwarnings("ignore:Timedeltas can't be serialized faithfully")
def test_lengths_of_time_that_need_a_finer_unit_than_the_stored_one_are_refused(url: Path) -> None:
    days = along(np.array([1, 2], "m8[D]").astype("m8[ns]"))
    to_b2array(days, url)
    for options in ({"append_dim": "t"}, {"region": {"t": slice(0, 1)}}):
        with pytest.raises(ValueError, match=r"variable 'a' has units='days' .* 'hours'"):
            to_b2array(along(np.array([12], "m8[h]").astype("m8[ns]")), url, **options)
    to_b2array(along(np.array(["NaT", 72], "m8[h]").astype("m8[ns]")), url, append_dim="t")
    to_b2array(along(np.array([], "m8[ns]")), url, append_dim="t")
    assert reopened(url).a.values.astype("m8[h]").astype(int).tolist()[::3] == [24, 72]


# Numbers.


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        ([100_000], {"dtype": "i2"}),
        ([-1], {"dtype": "u1"}),
        ([2.0**63], {"dtype": "i8"}),
        ([np.nan], {"dtype": "i4"}),
        ([1 + 1j], {"dtype": "f8"}),
        ([1e300], {"dtype": "f4"}),
        ([400.0], {"dtype": "i1", "scale_factor": 0.5, "_FillValue": -1}),
        ([300.0], {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_the_name_of_their_variable(
    url: Path, values: list[object], encoding: dict[str, object], chunked: bool
) -> None:
    ds = along(values)
    with pytest.raises(ValueError, match=r"variable 'a'.* cannot hold"):
        to_b2array(ds.chunk(t=1) if chunked else ds, url, encoding={"a": encoding})


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("values", [np.array([100_000]), np.array([1j]), np.array([0.5]), np.array([True, False])[1:]])
def test_numbers_that_do_not_fit_what_is_there_are_refused(url: Path, values: np.ndarray, chunked: bool) -> None:
    first = along(np.zeros(1, "i2"))
    if values.dtype == bool:
        first, values = along(np.array([True])), np.array([2])
    to_b2array(first, url)
    ds = along(values).chunk(t=1) if chunked else along(values)
    for options in ({"append_dim": "t"}, {"region": {"t": slice(0, 1)}}, {"mode": "a"}):
        with pytest.raises(ValueError, match=r"variable 'a'.* cannot hold"):
            to_b2array(ds, url, **options)
    xr.testing.assert_identical(reopened(url), first)


def test_packed_numbers_are_appended_as_they_are_packed(url: Path) -> None:
    packing = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1}
    to_b2array(along([10.0, np.nan]), url, encoding={"a": packing})
    to_b2array(along([np.nan, 12.5]), url, append_dim="t")
    np.testing.assert_equal(reopened(url).a.values, [10.0, np.nan, np.nan, 12.5])
    with pytest.raises(ValueError, match=r"variable 'a'.* cannot hold"):
        to_b2array(along([1e6]), url, append_dim="t")


@pytest.mark.parametrize("encoding", [{}, {"dtype": "i2"}, {"dtype": "i2", "scale_factor": 0.1}])
@pytest.mark.parametrize("how", ["new", "appended"])
def test_pieces_of_another_type_than_declared_are_refused(url: Path, how: str, encoding: dict[str, object]) -> None:
    fractions = da.ones(4, chunks=2, dtype="i8").map_blocks(lambda block: block * 0.5, dtype="i8")
    ds, options = along(fractions), {"encoding": {"a": encoding}}
    if how == "appended":
        to_b2array(along([0, 0]), url, encoding={"a": {**encoding, "chunks": 2}})
        options = {"append_dim": "t"}
    with pytest.raises(TypeError, match=r"expected a piece of type int64 from dask, .* found float64"):
        to_b2array(ds, url, **options)


PACKED = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -(2**15)}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("how", ["new", "appended", "region"])
@pytest.mark.parametrize(
    ("values", "encoding", "value"),
    [
        ([-54.53, 1.0], PACKED, "-54.53"),
        ([-999, 1], {"_FillValue": -999}, "-999"),
        ([-999.0, np.nan], {"_FillValue": -999.0}, "-999"),
        ([5, 1], {"missing_value": 5}, "5"),
        ([255.0, 1.0], {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}, "255"),
        (
            np.array(["2000-01-01", "2000-01-03"], "M8[ns]"),
            {"units": "days since 2000-01-01", "dtype": "i4", "_FillValue": 0, "calendar": "standard"},
            "2000-01-01",
        ),
    ],
    ids=["packed", "whole", "floats", "missing_value", "unsigned", "times"],
)
def test_values_that_would_be_read_as_missing_are_refused(
    url: Path, values: object, encoding: dict[str, object], value: str, how: str, chunked: bool
) -> None:
    ds, options = along(values), {"encoding": {"a": encoding}}
    if how != "new":
        first = along(np.asarray(values)[[1, 1]])
        to_b2array(first, url, encoding={"a": {**encoding, "chunks": 1}})
        options = {"append_dim": "t"} if how == "appended" else {"region": {"t": slice(0, 2)}}
    with pytest.raises(ValueError, match=f"variable 'a' is stored as .*, which cannot hold {value}.*missing"):
        to_b2array(ds.chunk(t=1) if chunked else ds, url, **options)
    if how != "new":
        xr.testing.assert_equal(reopened(url).load(), first)


def test_missing_values_and_marks_that_are_attributes_are_written(url: Path) -> None:
    to_b2array(along([np.nan, -54.52]), url, encoding={"a": PACKED})
    to_b2array(along([np.nan]), url, append_dim="t")
    np.testing.assert_allclose(reopened(url).a.values, [np.nan, -54.52, np.nan])
    raw = reopened(url, mask_and_scale=False)
    assert raw.a.values.tolist() == [-(2**15), -(2**15) + 1, -(2**15)]
    to_b2array(raw, url, mode="w")
    to_b2array(raw.load(), url, append_dim="t")
    np.testing.assert_allclose(reopened(url).a.values, [np.nan, -54.52, np.nan] * 2)


# Groups and modes.


def test_one_group_is_replaced_and_its_neighbours_stay(url: Path) -> None:
    to_b2array(along([1.0]).assign_attrs(title="root"), url)
    to_b2array(along([2.0]), url, group="one", mode="w")
    to_b2array(along([3.0], "b").assign_attrs(old=1), url, group="two", mode="w")
    to_b2array(along([4.0]), url, group="two", mode="w")
    xr.testing.assert_identical(reopened(url), along([1.0]).assign_attrs(title="root"))
    xr.testing.assert_identical(reopened(url, group="one"), along([2.0]))
    xr.testing.assert_identical(reopened(url, group="two"), along([4.0]))


def test_a_region_leaves_indexes_and_is_found_by_them(url: Path) -> None:
    ds = along(np.zeros(5)).assign_coords(t=[10, 20, 30, 40, 50])
    to_b2array(ds, url)
    to_b2array(along([1.0, 2.0]).assign_coords(t=[30, 40]), url, region={"t": "auto"})
    to_b2array(along([9.0]).assign_coords(t=[10]), url, region={"t": slice(0, 1)})
    assert reopened(url).a.values.tolist() == [9, 0, 1, 2, 0]
    assert reopened(url).t.values.tolist() == [10, 20, 30, 40, 50]


def test_a_region_is_not_looked_for_among_repeated_values(url: Path) -> None:
    to_b2array(along(np.zeros(3)).assign_coords(t=[10, 20, 20]), url)
    with pytest.raises(ValueError, match=r"the stored coordinate 't' has repeated values"):
        to_b2array(along([1.0]).assign_coords(t=[10]), url, region="auto")


@pytest.mark.parametrize("compute", [True, False])
def test_chunks_of_text_from_dask_are_chosen_by_its_bytes(url: Path, compute: bool) -> None:
    text = np.full(2000, "y" * 4000, np.dtypes.StringDType())
    ds = xr.Dataset({"s": ("x", da.from_array(text, chunks=1000))})
    delayed = to_b2array(ds, url, compute=compute)
    if not compute:
        # Nothing is computed before the caller asks for it.
        assert reopened(url).s.values[0] == ""
        delayed.compute()
    np.testing.assert_array_equal(reopened(url).s.values, text)
    a = b2array.open_group(url)["s"]
    assert a.chunks[0] * 4000 <= 2**22
    assert (a.blocks[0] * 4000 <= 2**17) == compute


def test_a_region_without_values_to_look_for_is_refused_with_what_to_do(url: Path) -> None:
    ds = xr.Dataset({"a": (("t", "x"), np.zeros((4, 2)))}, {"t": [1, 2, 3, 4]})
    to_b2array(ds, url)
    piece = ds.isel(t=slice(1, 2)) + 1
    # xarray would write the piece to the beginning.
    with pytest.raises(KeyError, match=r"does not have, and it has 1 of 4 items along 't': pass the place, as in regi"):
        to_b2array(piece.drop_vars("t"), url, region="auto")
    with pytest.raises(KeyError, match=r"values of the coordinate 'x', which is not stored: pass the place"):
        to_b2array(piece.assign_coords(x=[1, 2]), url, region="auto")
    with pytest.raises(KeyError, match=r"1 of 1 values .* not among the stored ones, the first of them 17: append_dim"):
        to_b2array(piece.assign_coords(t=[17]), url, region={"t": "auto"})
    with pytest.raises(ValueError, match=r"not stored side by side and in this order: write one piece at a time"):
        to_b2array(ds.isel(t=[0, 2]), url, region={"t": "auto"})
    # A dimension without a coordinate is written as a whole.
    to_b2array(piece, url, region="auto")
    assert reopened(url).a.values.sum(1).tolist() == [0, 2, 0, 0]


def test_a_region_found_by_one_coordinate_leaves_the_other_indexes(url: Path) -> None:
    ds = xr.Dataset({"a": (("t", "x"), np.zeros((4, 2)))}, {"t": [1, 2, 3, 4], "x": [5, 6]})
    to_b2array(ds, url)
    to_b2array(ds.isel(t=slice(1, 3)) + 1, url, region={"t": "auto"})
    assert reopened(url).a.values.sum(1).tolist() == [0, 2, 2, 0]
    with pytest.raises(ValueError, match="'x'"):
        to_b2array(ds.isel(t=slice(1, 3)), url, region={"t": slice(1, 3)})


@pytest.mark.parametrize("chunked", [False, True])
def test_dimensions_in_another_order_are_turned(url: Path, chunked: bool) -> None:
    values = np.arange(12.0).reshape(3, 4)
    to_b2array(xr.Dataset({"a": (("t", "x"), values)}), url)
    turned = xr.Dataset({"a": (("x", "t"), values.T + 100)})
    to_b2array(turned.chunk(t=3) if chunked else turned, url, append_dim="t")
    to_b2array(turned.isel(t=[1]) + 1, url, region={"t": slice(0, 1)})
    expected = np.concatenate([values, values + 100])
    expected[0] = values[1] + 101
    assert np.array_equal(reopened(url).a, expected)


def test_appending_overwrites_other_coordinates_and_adds_variables(url: Path) -> None:
    ds = along([1.0]).assign_coords(z=("x", [1, 2]))
    to_b2array(ds.assign_attrs(version=1, kept=1), url)
    later = along([2.0]).assign_coords(z=("x", [8, 9])).assign(new=("x", [5, 6])).assign_attrs(version=2)
    to_b2array(later, url, append_dim="t")
    found = reopened(url)
    assert (found.a.values.tolist(), found.z.values.tolist(), found.new.values.tolist()) == ([1, 2], [8, 9], [5, 6])
    assert found.attrs == {"version": 2, "kept": 1}
    to_b2array(later.assign_coords(z=("x", [0, 0])), url, append_dim="t", mode="a-")
    assert (reopened(url).a.values.tolist(), reopened(url).z.values.tolist()) == ([1, 2, 2], [8, 9])


def test_a_new_variable_along_the_dimension_that_grows_is_refused(url: Path) -> None:
    first = along([1, 2, 3]).assign_coords(t=[0, 1, 2])
    to_b2array(first, url)
    later = along([4, 5, 6]).assign_coords(t=[3, 4, 5]).assign(new=("t", [7, 8, 9]))
    for part in (later, later.isel(t=[0])):
        with pytest.raises(ValueError, match=r"no variables \['new'\], and new ones cannot have the dimension 't'"):
            to_b2array(part, url, append_dim="t")
    xr.testing.assert_identical(reopened(url), first)


def test_what_a_step_repeats_is_not_written_again(url: Path) -> None:
    step = along([1.0]).assign_coords(x=("x", np.arange(1000)))
    to_b2array(step, url)
    before = b2array.open_group(url)["x"].generation
    to_b2array(step, url, append_dim="t")
    assert b2array.open_group(url)["x"].generation == before


UNKNOWN = {
    "zlib": "write cparams='lz4'",
    "compressor": "write cparams='lz4'",
    "shards": "chunks= says how much is stored at once",
    "chunk": r"there are chunks, .*, fill_value\. Did you mean 'chunks'\?",
}


@pytest.mark.parametrize("key", UNKNOWN)
def test_an_encoding_that_is_not_known_is_refused(url: Path, key: str) -> None:
    with pytest.raises(ValueError, match=rf"'{key}'\]; .*{UNKNOWN[key]}"):
        to_b2array(along([1.0]), url, encoding={"a": {key: None if key == "x" else 1}})
    assert not url.exists()


def test_names_that_would_make_groups_are_refused(url: Path) -> None:
    with pytest.raises(ValueError, match="a/b"):
        to_b2array(along([1.0], "a/b"), url)


# Indexes.


def labelled(t: list[float], x: list[object], values: object = 0.0) -> xr.Dataset:
    return xr.Dataset({"a": (("t", "x"), np.full((len(t), len(x)), values))}, {"t": t, "x": x})


@pytest.mark.parametrize("mode", ["a", "a-"])
@pytest.mark.parametrize("x", [[20, 10], [10, 30]])
def test_an_append_is_refused_where_the_index_of_another_dimension_differs(url: Path, mode: str, x: list[int]) -> None:
    first = labelled([0], [10, 20], [[1.0, 2.0]])
    to_b2array(first, url)
    later = labelled([1], x, [[3.0, 4.0]])
    with pytest.raises(ValueError, match=r"the index 'x' .* expected \[10, 20\], found"):
        to_b2array(later, url, append_dim="t", mode=mode)
    xr.testing.assert_identical(reopened(url), first)
    to_b2array(later.drop_vars("x"), url, append_dim="t", mode=mode)
    assert reopened(url).a.sel(x=10).values.tolist() == [1, 3]


@pytest.mark.parametrize("mode", ["a", "r+"])
def test_stored_variables_that_a_write_leaves_keep_their_labels(url: Path, mode: str) -> None:
    first = labelled([0], [10, 20], [[1.0, 2.0]]).assign(b=("x", [3.0, 4.0]))
    to_b2array(first, url)
    turned = first.isel(x=[1, 0])
    with pytest.raises(ValueError, match="the index 'x' of the dataset differs from the stored one"):
        to_b2array(turned.drop_vars("b"), url, mode=mode)
    with pytest.raises(ValueError, match="the index 'x' of the dataset differs from the stored one"):
        to_b2array(turned.drop_vars(["a", "b"]).assign(c=("x", [5.0, 6.0])), url, mode="a")
    xr.testing.assert_identical(reopened(url), first)
    to_b2array(turned, url, mode=mode)
    xr.testing.assert_identical(reopened(url), turned)


def test_indexes_are_compared_as_they_are_stored(url: Path) -> None:
    thirds = [1 / 3, 2 / 3]
    to_b2array(labelled([0], thirds), url, encoding={"x": {"dtype": "f4"}})
    to_b2array(labelled([1], thirds), url, append_dim="t")
    to_b2array(labelled([1], thirds, 7.0), url, region={"t": slice(1, 2), "x": slice(None)})
    assert reopened(url).a.values.tolist() == [[0, 0], [7, 7]]


def test_a_region_is_refused_where_the_stored_index_has_other_values(url: Path) -> None:
    first = labelled([0, 1], ["a", "b"])
    to_b2array(first, url)
    for part, region in (
        (labelled([7], ["a", "b"], 1.0), {"t": slice(0, 1), "x": slice(0, 2)}),
        (labelled([0], ["b", "a"], 1.0), {"t": slice(0, 1), "x": slice(0, 2)}),
    ):
        with pytest.raises(ValueError, match=r"the index '[tx]' of the dataset differs from the stored one"):
            to_b2array(part, url, region=region)
    xr.testing.assert_identical(reopened(url), first)
    to_b2array(labelled([7], ["b", "a"], 1.0), url, region={"t": slice(0, 1), "x": slice(0, 2)}, check_index="off")
    xr.testing.assert_identical(reopened(url), first.where(first.t > 0, 1.0))


@pytest.mark.parametrize(
    ("t", "words"),
    [
        ([1.0], r"has \[1.0\] already"),
        ([7.0, 7.0], r"has \[7.0\] already"),
        ([0.5], r"goes from 0.0 to 2.0, and \[0.5\] lies between"),
        ([2.0, 5.0], r"has \[2.0\] already"),
    ],
)
def test_labels_that_are_stored_already_or_lie_between_give_a_warning(url: Path, t: list[float], words: str) -> None:
    first = labelled([0.0, 1.0, 2.0], [1])
    to_b2array(first, url)
    with pytest.raises(ValueError, match=f"the stored index 't' {words}"):
        to_b2array(labelled(t, [1]), url, append_dim="t", check_index="error")
    xr.testing.assert_identical(reopened(url), first)
    with pytest.warns(UserWarning, match=words):
        to_b2array(labelled(t, [1]), url, append_dim="t")
    to_b2array(labelled(t, [1]), url, append_dim="t", check_index="off")
    assert reopened(url).t.values.tolist() == [0, 1, 2, *t, *t]


def test_labels_on_either_side_of_the_stored_ones_give_no_warning(url: Path) -> None:
    to_b2array(labelled([5.0, 6.0], [1]), url)
    for t in ([7.0, 8.0], [1.0, 2.0]):
        to_b2array(labelled(t, [1]), url, append_dim="t", check_index="error")
    assert reopened(url).t.values.tolist() == [5, 6, 7, 8, 1, 2]
    with pytest.raises(ValueError, match="check_index must be"):
        to_b2array(labelled([9], [1]), url, append_dim="t", check_index="no")


# Encodings and attributes.


@pytest.mark.parametrize("asked", [{"access": "series"}, {"encoding": {"a": {"access": "series"}}}])
@pytest.mark.parametrize("pieces", [None, {"t": 10}])
def test_shapes_are_those_for_the_access_that_is_asked_for(url: Path, asked: Any, pieces: Any) -> None:
    steps = xr.Dataset({"a": (("t", "y", "x"), np.ones((100, 40, 50), "f4"))})
    to_b2array(steps, url.parent / "thin.b2d", access="planes")
    source = reopened(url.parent / "thin.b2d")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", da.PerformanceWarning)
        to_b2array(source if pieces is None else source.chunk(pieces), url, **asked)
    stored = b2array.open_group(url)["a"]
    assert stored.blocks[0] == stored.chunks[0]
    if pieces is None:
        assert (stored.chunks, stored.blocks) == automatic((100, 40, 50), 4, access="series")
    xr.testing.assert_identical(reopened(url).load(), steps)


@pytest.mark.parametrize(
    ("chunks", "expected"), [((100, 50), (100, 50)), (7, (7, 7)), ((-1, 5), (2, 5)), (-1, (2, 60)), ("160B", (2, 10))]
)
def test_chunks_are_those_that_are_asked_for(url: Path, chunks: object, expected: tuple[int, int]) -> None:
    step = xr.Dataset({"a": (("t", "x"), np.ones((2, 60)))})
    for n, ds in enumerate((step, step.chunk(t=1, x=30))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", da.PerformanceWarning)
            to_b2array(ds, url.parent / f"{n}.b2d", encoding={"a": {"chunks": chunks}})
        assert b2array.open_group(url.parent / f"{n}.b2d")["a"].chunks == expected
        xr.testing.assert_identical(reopened(url.parent / f"{n}.b2d").load(), step)


def cube(*chunks: int) -> xr.Dataset:
    """Return a dataset that was stored in these chunks, and opened."""
    url = f"memory://cubes/{'-'.join(map(str, chunks))}.b2d"
    to_b2array(xr.Dataset({"a": (("t", "y", "x"), np.ones((20, 20, 24)))}), url, mode="w", chunks=chunks)
    return xr.open_dataset(url, engine=Backend)


def stored_chunks(ds: xr.Dataset, url: Path, **options: object) -> tuple[int, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", da.PerformanceWarning)
        to_b2array(ds, url, mode="w", **options)
    array = b2array.open_group(url)["a"]
    assert array[...].min() == 1
    return array.chunks


@pytest.mark.parametrize("opened", [None, {}, {"t": 20}])
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"t": -1, "y": 2, "x": 2}, (20, 2, 2)),
        ({"t": 20, "y": 20, "x": 12}, (20, 20, 12)),
        ({"t": 3, "y": 10, "x": 12}, (3, 10, 12)),
        ({"y": (8, 12)}, (5, 8, 12)),
    ],
)
def test_chunks_that_dask_was_asked_for_go_before_those_that_were_read(
    url: Path, opened: object, asked: dict[str, object], expected: tuple[int, ...]
) -> None:
    ds = cube(10, 10, 12)
    ds = ds if opened is None else xr.open_dataset("memory://cubes/10-10-12.b2d", engine=Backend, chunks=opened)
    if "t" not in asked:
        ds = ds.chunk(t=5, x=12)
    ds = ds.chunk(asked)
    assert stored_chunks(ds, url) == expected
    assert stored_chunks(ds, url, encoding={"a": {"chunks": (7, 7, 7)}}) == (7, 7, 7)
    assert stored_chunks(ds, url, chunks=(6, 6, 6)) == (6, 6, 6)


@pytest.mark.parametrize("opened", [{}, {"t": 20}, {"t": 20, "y": 20}, "auto"])
def test_chunks_that_were_read_stay_where_nobody_asked_dask_for_others(url: Path, opened: object) -> None:
    cube(10, 10, 12)
    ds = xr.open_dataset("memory://cubes/10-10-12.b2d", engine=Backend, chunks=opened)
    months = np.arange(20) % 7 != 3
    for part in (ds, ds.isel(t=slice(3, 17)), ds.isel(t=months), ds.isel(t=months).chunk(), xr.concat([ds, ds], "t")):
        assert stored_chunks(part, url) == (10, 10, 12)
    assert stored_chunks(ds, url, chunks=(6, 6, 6)) == (6, 6, 6)
    turned = ds.transpose("x", "t", "y")
    assert stored_chunks(turned, url) == stored_chunks(turned.load(), url) == (12, 10, 10)


def test_dask_chunks_that_no_stored_chunks_can_be_joined_to_are_refused(url: Path) -> None:
    ds = cube(10, 10, 12).chunk(t=20, y=(7, 6, 7), x=(2, 1, 21))
    with pytest.raises(ValueError, match=r"variable 'a': no stored chunks .* can be joined .*encoding="):
        to_b2array(ds, url)
    assert not url.exists()
    assert stored_chunks(ds, url, encoding={"a": {"chunks": (20, 7, 12)}}) == (20, 7, 12)


@pytest.mark.parametrize("chunked", [False, True])
def test_chunks_are_asked_for_by_the_names_of_dimensions(url: Path, chunked: bool) -> None:
    ds = xr.Dataset({"a": (("t", "x"), np.ones((4, 60)))})
    ds = ds.chunk(t=1) if chunked else ds
    assert stored_chunks(ds, url, encoding={"a": {"chunks": {"t": 1}}}) == (1, 60)
    assert stored_chunks(ds, url, encoding={"a": {"chunks": {"x": 20, "t": 2}}}) == (2, 20)
    with pytest.raises(ValueError, match=r"variable 'a': .* dimensions \('t', 'x'\), found some for \['time'\]"):
        to_b2array(ds, url, mode="w", encoding={"a": {"chunks": {"time": 1}}})


def test_what_the_call_asks_for_all_variables_goes_before_what_they_were_read_with(url: Path) -> None:
    ds = cube(10, 10, 12)
    to_b2array(ds, url, cparams="lz4", layout="sparse")
    array = b2array.open_group(url)["a"]
    assert (array.cparams.codec, array.info["layout"], array.chunks) == ("lz4", "sparse", (10, 10, 12))


def test_the_word_of_netcdf_for_chunks_is_known(url: Path, tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("t", "x"), np.ones((40, 30)))})
    ds.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", encoding={"a": {"chunksizes": (8, 15)}})
    for options in ({}, {"chunks": {}}):
        with xr.open_dataset(tmp_path / "a.nc", engine="h5netcdf", **options) as source:
            assert stored_chunks(source, url) == (8, 15)
            assert stored_chunks(source.chunk(t=20, x=30), url) == (20, 30)
    assert stored_chunks(ds, url, encoding={"a": {"chunksizes": (4, 5)}}) == (4, 5)


def test_an_encoding_that_drops_the_stored_packing_gives_a_warning(url: Path, tmp_path: Path) -> None:
    to_b2array(along([1.0, np.nan]), url, encoding={"a": PACKED})
    packed = reopened(url)
    with pytest.warns(UserWarning, match=r"variable 'a' .*dtype=int16, scale_factor=0.01, .*_FillValue=-32768 to pack"):
        to_b2array(packed, tmp_path / "b.b2d", encoding={"a": {"chunks": 2}})
    assert b2array.open_group(tmp_path / "b.b2d")["a"].dtype == "f8"
    for n, asked in enumerate(({"dtype": "f4", "chunks": 2}, {**PACKED, "chunks": 2})):
        to_b2array(packed, tmp_path / f"c{n}.b2d", encoding={"a": asked})
    assert b2array.open_group(tmp_path / "c1.b2d")["a"].dtype == "i2"


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        ([1.5], {"scale_factor": "two"}),
        (np.array(["2000-01-01"], "M8[ns]"), {"units": "days since never"}),
        (np.array(["2000-01-01"], "M8[ns]"), {"units": "days since 2000-01-01", "calendar": "of the moon"}),
        (np.array([1, "a", {}], object), {}),
        (np.array([[1], [2, 3]], object), {}),
    ],
)
def test_a_variable_that_cannot_be_encoded_is_named(url: Path, values: object, encoding: dict[str, object]) -> None:
    ds = along([1.0], "good", "x").assign(bad=("t", values))
    with pytest.raises((TypeError, ValueError), match="'bad'"):
        to_b2array(ds, url, encoding={"bad": encoding})
    assert not url.exists()


@pytest.mark.parametrize(
    ("values", "instead"),
    [
        (pd.Categorical(["a", "b"]), "astype(object)"),
        (pd.date_range("2000-01-01", periods=2, tz="Europe/Berlin"), "tz_convert(None)"),
        (pd.interval_range(0, 2), "to_index().left"),
        (pd.period_range("2000-01", periods=2, freq="M"), "to_timestamp()"),
        (pd.array([1, None], dtype="Int64"), "astype()"),
    ],
    ids=lambda values: str(getattr(values, "dtype", "")),
)
@pytest.mark.parametrize("coordinate", [False, True])
def test_items_of_pandas_are_refused_with_what_to_store_instead(
    url: Path, values: object, instead: str, coordinate: bool
) -> None:
    first = along([1.0, 2.0]).assign_coords(v=("t", [1.0, 2.0]))
    to_b2array(first, url)
    bad = first.assign_coords(v=("t", values)) if coordinate else first.drop_vars("v").assign(v=("t", values))
    for options in ({"mode": "w"}, {"mode": "a"}, {"append_dim": "t"}):
        with pytest.raises(TypeError, match=f"variable 'v' has items of pandas type .*{re.escape(instead)}"):
            to_b2array(bad, url, **options)
    xr.testing.assert_identical(reopened(url), first)


@pytest.mark.parametrize("dtype", ["str", "string"])
def test_text_of_pandas_is_written_and_appended_as_text(url: Path, dtype: str) -> None:
    words, gaps = (pd.array(items, dtype=dtype) for items in (["a", "longer é"], [None, "b"]))
    to_b2array(xr.Dataset({"v": ("t", words, {"about": "names"})}), url)
    to_b2array(xr.Dataset({"v": ("t", gaps, {"about": "names"})}), url, append_dim="t")
    stored = b2array.open_group(url)["v"]
    assert stored.dtype == np.dtypes.StringDType()
    # Missing text becomes empty, as for objects.
    assert stored[...].tolist() == ["a", "longer é", "", "b"]
    assert reopened(url).v.attrs == {"about": "names"}


def test_sparse_arrays_of_other_libraries_are_refused_with_what_to_store_instead(url: Path) -> None:
    sparse = pytest.importorskip("sparse")
    ds = along(sparse.COO.from_numpy(np.eye(3)[0]))
    with pytest.raises(TypeError, match=r"variable 'a' is a sparse array, .*todense"):
        to_b2array(ds, url)
    to_b2array(ds.a.copy(data=ds.a.data.todense()).to_dataset(), url)
    assert reopened(url).a.values.tolist() == [1, 0, 0]


def test_blocks_that_do_not_fit_other_chunks_are_chosen_anew(url: Path, tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("t", "x"), np.ones((100, 100)))})
    to_b2array(ds, url, encoding={"a": {"chunks": (100, 100), "blocks": (50, 50)}})
    other = reopened(url)
    other.a.encoding["chunks"] = (10, 10)
    to_b2array(other, tmp_path / "b.b2d")
    assert b2array.open_group(tmp_path / "b.b2d")["a"].chunks == (10, 10)


def test_attributes_may_be_numbers_and_times_of_numpy(url: Path) -> None:
    when = np.datetime64("2000-01-01T12")
    attrs = {"n": np.int16(3), "when": when, "long": np.timedelta64(3, "h"), "all": np.array([1.5]), "yes": np.True_}
    given = {**attrs, "plain": dt.datetime(2000, 1, 1), "stamp": pd.Timestamp("2000-01-01")}  # noqa: DTZ001
    to_b2array(along([1.0]).assign_attrs(given), url)
    found = reopened(url).attrs
    assert found == {**attrs, "plain": np.datetime64("2000-01-01"), "stamp": np.datetime64("2000-01-01")}
    assert isinstance(found["when"], np.datetime64)


def test_attributes_that_are_none_are_kept(url: Path) -> None:
    ds = along([1.0]).assign_attrs(note=None)
    ds.a.attrs["note"] = None
    to_b2array(xr.DataTree(ds, children={"inner": xr.DataTree(ds)}), url)
    xr.testing.assert_identical(reopened(url), ds)
    xr.testing.assert_identical(reopened(url, group="inner"), ds)
    to_b2array(along([2.0]).assign_attrs(other=None), url, append_dim="t")
    assert reopened(url).attrs == {"note": None, "other": None}


@pytest.mark.parametrize("how", ["a", "appended", "region"])
def test_a_new_coordinate_is_one_when_it_is_read(url: Path, how: str) -> None:
    first = xr.Dataset({"a": (("t", "x"), [[1.0, 2.0]])}, {"old": ("x", [3, 4])}, {"title": "mine"})
    to_b2array(first, url)
    options = {
        "a": {"mode": "a"},
        "appended": {"append_dim": "t"},
        "region": {"region": {"x": slice(0, 2)}, "mode": "a"},
    }
    ds = first.assign_coords(new=("x", [5, 6]), scalar=7, x=[8, 9])
    to_b2array(ds.drop_vars("scalar") if how == "region" else ds, url, **options[how])
    expected = {"a": {"old", "new", "scalar", "x"}, "region": {"old", "new"}}.get(how, {"old", "new", "scalar", "x"})
    assert {*map(str, reopened(url).coords)} == expected
    assert reopened(url).attrs == {"title": "mine"}


def test_a_single_array_is_found_again(url: Path, tmp_path: Path) -> None:
    array = xr.DataArray(np.arange(6).reshape(2, 3), dims=("x", "y"), name="x")
    to_b2array(array, url)
    xr.testing.assert_identical(xr.open_dataarray(url, engine=Backend), array)
    array.rename("b").b2array.to_b2array(tmp_path / "b.b2d")
    assert "b" in b2array.open_group(tmp_path / "b.b2d")


def test_what_is_loaded_asynchronously_is_the_same(url: Path) -> None:
    to_b2array(along([1.0, 2.0]), url)
    assert asyncio.run(reopened(url).load_async()).a.values.tolist() == [1, 2]


# Trees.


def test_a_branch_is_written_as_a_tree_with_the_coordinates_it_inherits(url: Path) -> None:
    root = {"/": xr.Dataset(coords={"x": [1, 2, 3]}), "/a/b": xr.Dataset({"c": ("x", [4, 5, 6])})}
    branch = xr.DataTree.from_dict(root)["a"]
    to_b2array(branch, url, encoding={"/a/b": {"c": {"dtype": "i2"}}})
    with xr.open_datatree(url, engine=Backend) as found:
        xr.testing.assert_equal(found, branch)
    assert b2array.open_group(url)["b/c"].dtype == "i2"
    assert sorted(b2array.open_group(url)["b"]) == ["c"]


# One graph.


def counted(calls: Counter[int], n: int = 8) -> da.Array:
    def work(block: np.ndarray) -> np.ndarray:
        calls[int(block[0])] += 1
        return block.astype(float)

    return da.arange(4 * n, chunks=4).map_blocks(work, dtype=float, meta=np.empty(0))


@pytest.mark.parametrize("how", ["new", "replaced", "appended", "region", "later"])
def test_what_variables_share_is_computed_once(url: Path, how: str) -> None:
    calls: Counter[int] = Counter()
    shared = counted(calls)
    ds = xr.Dataset({"a": ("t", shared), "b": ("t", shared + 1), "c": ("t", shared * 2)})
    if how == "new":
        to_b2array(ds, url)
    else:
        to_b2array(xr.zeros_like(ds).compute(), url, encoding={name: {"chunks": 4} for name in ds})
        options = {
            "replaced": {"mode": "w"},
            "appended": {"append_dim": "t"},
            "region": {"region": {"t": slice(0, 32)}},
            "later": {"mode": "w", "compute": False},
        }[how]
        calls.clear()
        delayed = to_b2array(ds, url, **options)
        if how == "later":
            assert not calls
            delayed.compute()
    assert len(calls) == 8
    assert set(calls.values()) == {1}
    last = reopened(url).isel(t=slice(-32, None)).load()
    assert np.array_equal(last.a, np.arange(32.0))
    assert np.array_equal(last.b, np.arange(32.0) + 1)
    assert np.array_equal(last.c, np.arange(32.0) * 2)


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_template_shows_the_fill_value_until_all_of_it_is_committed(url: Path, layout: str) -> None:
    x = da.arange(12.0, chunks=4)
    ds = xr.Dataset({"a": ("t", x), "b": ("t", x + 1)}, {"t": np.arange(12)}, {"title": "later"})
    delayed = to_b2array(ds, url, compute=False, layout=layout)
    template = reopened(url).load()
    assert template.attrs == {"title": "later"}
    assert template.t.values.tolist() == list(range(12))
    assert np.isnan(template.a).all()
    delayed.compute()
    xr.testing.assert_identical(reopened(url).load(), ds.compute())


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
@pytest.mark.parametrize("through", ["convert", "xarray"])
def test_a_template_of_netcdf_variables_shows_what_marks_missing_items(
    url: Path, tmp_path: Path, engine: str, through: str
) -> None:
    days = pd.date_range("2000-01-01", periods=4).values.astype("M8[ns]")
    variables = {name: (("t", "x"), np.ones((4, 3), "f4")) for name in ("nan", "marked", "bare")}
    ds = xr.Dataset({**variables, "count": ("t", np.arange(4)), "when": ("t", days)}, {"t": days})
    encoding = {"marked": {"_FillValue": -9.0}, "bare": {"_FillValue": None}}
    ds.to_netcdf(tmp_path / "a.nc", engine=engine, encoding=encoding)
    if through == "convert":
        b2array.convert(tmp_path / "a.nc", tmp_path / "a.b2d")
        source = reopened(tmp_path / "a.b2d", chunks={})
    else:
        source = xr.open_dataset(tmp_path / "a.nc", engine=engine, chunks={"t": 1})
    to_b2array(source, url, compute=False)
    source.close()
    to_b2array(ds[["nan", "count"]].isel(t=[2]), url, region="auto")
    template = reopened(url).load()
    assert template["nan"].sum("x", skipna=False).values.tolist()[2] == 3
    assert np.isnan(template["nan"]).sum() == 9
    assert np.isnan(template.marked).all()
    assert b2array.open_group(url)["marked"][0, 0] == -9
    assert np.isnan(template.bare).all()
    assert template["count"].values.tolist() == [0, 0, 2, 0]
    assert template.when.values.astype("M8[D]").astype(str).tolist() == ["2000-01-01"] * 4


def test_a_fill_value_that_somebody_chose_is_read_and_written_again(url: Path, tmp_path: Path) -> None:
    to_b2array(along([1, 2]), url, encoding={"a": {"fill_value": 7}})
    to_b2array(reopened(url), tmp_path / "b.b2d")
    assert b2array.open_group(tmp_path / "b.b2d")["a"].fill_value == 7


@pytest.mark.parametrize("where", ["local", "memory", "empty directory"])
@pytest.mark.parametrize("mode", ["w-", "w", "a"])
@pytest.mark.parametrize("layout", ["auto", "sparse"])
@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_a_first_write_that_fails_leaves_nothing_that_a_second_one_stumbles_over(
    tmp_path: Path, where: str, mode: str, layout: str, scheduler: str
) -> None:
    url = f"memory://{tmp_path}/w.b2d" if where == "memory" else str(tmp_path / "w.b2d")
    fails = [True]

    def work(block: np.ndarray) -> np.ndarray:
        if fails and block[0] == 8:
            raise RuntimeError("out of order")
        time.sleep(0.02 * len(fails))  # other tasks go on for a while
        return block

    a = da.arange(32.0, chunks=4).map_blocks(work, dtype=float, meta=np.empty(0))
    ds = xr.Dataset({"a": ("t", a), "b": ("t", da.zeros(32, chunks=4))}, {"t": np.arange(32)}, {"title": "new"})
    tree = xr.DataTree(ds, children={"inner": xr.DataTree(ds)})
    if where == "empty directory":
        Path(url).mkdir()
    with pytest.raises(RuntimeError, match="out of order"):
        to_b2array(tree, url, mode=mode, layout=layout, scheduler=scheduler)
    with pytest.raises(FileNotFoundError):
        b2array.open_group(url)
    if scheduler == "sync":
        assert not fsspec.url_to_fs(url)[0].find(url)
    fails.clear()
    to_b2array(tree, url, mode=mode, layout=layout)
    xr.testing.assert_identical(reopened(url).load(), ds.compute())


def test_a_group_that_was_there_stays_when_a_write_fails(url: Path) -> None:
    b2array.open_group(url, "w")
    bad = da.zeros(3, chunks=1).map_blocks(np.linalg.inv, dtype=float, meta=np.empty(0))
    for mode in ("w", "a"):
        with pytest.raises(np.linalg.LinAlgError):
            to_b2array(xr.Dataset({"a": ("t", bad)}), url, mode=mode)
        assert len(b2array.open_group(url)) == 0


def test_what_is_in_memory_is_written_at_once_even_if_nothing_is_computed(url: Path) -> None:
    delayed = to_b2array(along([1.0]), url, compute=False)
    assert reopened(url).a.values.tolist() == [1]
    assert delayed.compute() is None


def test_what_is_computed_later_goes_where_it_was_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ds = xr.Dataset({"a": ("t", da.arange(12.0, chunks=4))})
    delayed = to_b2array(ds, "w.b2d", compute=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    delayed.compute()
    xr.testing.assert_identical(reopened(tmp_path / "w.b2d").load(), ds.compute())


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_template_is_filled_by_many_jobs(url: Path, layout: str) -> None:
    ds = xr.Dataset({"a": ("t", da.arange(12.0, chunks=4))}, {"t": np.arange(12)})
    to_b2array(ds, url, compute=False, layout=layout)
    for start in (8, 0, 4):
        to_b2array(ds.isel(t=slice(start, start + 4)), url, region="auto")
    xr.testing.assert_identical(reopened(url).load(), ds.compute())


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_part_that_others_changed_before_it_was_computed_is_a_conflict(url: Path, layout: str) -> None:
    first = xr.Dataset({"a": ("t", np.zeros(10))})
    to_b2array(first, url, encoding={"a": {"chunks": 4}}, layout=layout)
    part = xr.Dataset({"a": ("t", da.ones(6, chunks=6))})
    delayed = to_b2array(part, url, region={"t": slice(1, 7)}, compute=False)
    to_b2array(first.isel(t=[0]) + 5, url, region={"t": slice(0, 1)})
    with pytest.raises(ConflictError):
        delayed.compute()
    assert reopened(url).a.values.tolist() == [5] + [0] * 9
    to_b2array(part, url, region={"t": slice(1, 7)}, compute=False).compute()
    assert reopened(url).a.values.tolist() == [5] + [1] * 6 + [0] * 3


@pytest.mark.parametrize("base", ["", "memory://"])
def test_a_commit_that_is_repeated_after_other_writes_finds_itself(tmp_path: Path, base: str) -> None:
    url = f"{base}{tmp_path}/g.b2d"
    to_b2array(xr.Dataset({"a": ("t", np.zeros(8))}), url, encoding={"a": {"chunks": 4}})
    first = xr.Dataset({"a": ("t", da.ones(4, chunks=4))})
    second = xr.Dataset({"a": ("t", da.full(4, 2.0, chunks=4))})
    delayed = to_b2array(first, url, region={"t": slice(0, 4)}, compute=False, snapshot="first")
    delayed.compute()
    to_b2array(second, url, region={"t": slice(4, 8)})
    to_b2array(second, url, region={"t": slice(0, 4)}, compute=False).compute()
    delayed.compute()  # a cluster runs the task again, whose worker died before it could answer
    assert b2array.open_group(url)["a"][...].tolist() == [2] * 8
    assert [each.name for each in b2array.open_group(url).snapshots] == ["first"]


@pytest.mark.parametrize("base", ["", "memory://"])
def test_a_part_of_a_group_is_written_by_its_own_url(tmp_path: Path, base: str) -> None:
    url = f"{base or tmp_path}/xarray-part.b2d"
    first = xr.Dataset({"a": ("t", np.arange(8.0))})
    to_b2array(first, url, group="part")
    b2array.open_group(url, "r+").snapshot("first")
    to_b2array((first * 2).chunk(t=4), f"{url}/part", mode="w")
    last = (first * 3).isel(t=slice(4, 8)).chunk(t=4)
    to_b2array(last, f"{url}/part", region={"t": slice(4, 8)}, compute=False).compute()
    to_b2array(first, f"{url}/part", append_dim="t")
    expected = [0, 2, 4, 6, 12, 15, 18, 21, *range(8)]
    for opened in (reopened(f"{url}/part"), xr.open_dataset(url, engine=Backend, group="part")):
        assert opened.a.values.tolist() == expected
    assert b2array.open_group(url, at="first")["part/a"][:].tolist() == [*range(8)]
    assert b2array.verify(url, deep=True).ok


def test_chunks_that_do_not_fit_give_one_warning_for_all_variables(url: Path) -> None:
    ds = xr.Dataset({name: ("t", da.ones(120_000, chunks=30_000)) for name in "abc"})
    with pytest.warns(da.PerformanceWarning) as given:
        to_b2array(ds, url, encoding={name: {"chunks": 40_000} for name in "abc"})
    assert len(given) == 1


def test_empty_and_small_pieces_give_no_warning(url: Path) -> None:
    ds = xr.Dataset({"none": (("t", "x"), da.ones((0, 3), chunks=1)), "small": ("y", da.ones(9, chunks=1))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_b2array(ds, url)
    xr.testing.assert_identical(reopened(url).load(), ds.compute())


# Groups in one file.


def _days(first: int, count: int) -> xr.Dataset:
    values = np.arange(first * 3, (first + count) * 3, dtype="f4").reshape(count, 3)
    return xr.Dataset({"level": (("day", "x"), values)}, {"day": np.arange(first, first + count)}, {"place": "roof"})


@pytest.mark.parametrize("chunks", [None, {"day": 2}], ids=["values", "dask"])
@pytest.mark.parametrize("mode", ["w", "w-", "a"])
def test_datasets_are_written_to_one_file(tmp_path: Path, mode: str, chunks: object) -> None:
    url = tmp_path / "q.b2z"
    ds = _days(0, 4) if chunks is None else _days(0, 4).chunk(chunks)
    to_b2array(ds, url, mode=mode)
    assert reopened(url).identical(_days(0, 4))
    to_b2array(_days(4, 2).chunk(day=2), url, append_dim="day")
    assert reopened(url).identical(_days(0, 6))
    to_b2array(_days(1, 2) * 0, url, region="auto")
    assert reopened(url).level.values.sum(axis=1).tolist() == [3, 0, 0, 30, 39, 48]
    to_b2array(_days(7, 1), url, mode="w")
    assert reopened(url).identical(_days(7, 1))
    to_b2array(_days(8, 1), url, group="inner/one")
    assert reopened(url).identical(_days(7, 1))
    assert reopened(url, group="inner/one").identical(_days(8, 1))
    with pytest.raises(FileExistsError):
        to_b2array(_days(8, 1), url)
    assert [path.name for path in tmp_path.iterdir()] == ["q.b2z"]


def test_a_dataset_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    url = tmp_path / "q.b2z"

    def fail(block: object) -> object:
        raise RuntimeError("mine")

    broken = xr.Dataset({"level": (("day", "x"), da.ones((4, 3)).map_blocks(fail, meta=np.ones((0, 0))))})
    with pytest.raises(RuntimeError, match="mine"):
        to_b2array(broken, url)
    assert [*tmp_path.iterdir()] == []
    to_b2array(_days(0, 2), url)
    for mode in ("w", "a"):
        with pytest.raises((RuntimeError, ValueError)):
            to_b2array(broken, url, mode=mode)
    with pytest.raises(FileNotFoundError, match="no group 'none'"):
        to_b2array(_days(0, 2), url, group="none", mode="r+")
    with pytest.raises(ValueError, match="would not grow"):
        to_b2array(xr.Dataset({"day": ("day", [5])}), url, append_dim="day")
    assert reopened(url).identical(_days(0, 2))
    assert [path.name for path in tmp_path.iterdir()] == ["q.b2z"]


def test_a_later_write_into_one_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"compute=False writes into a group later.*b2array\.convert"):
        to_b2array(_days(0, 2).chunk(day=1), tmp_path / "q.b2z", compute=False)
    assert [*tmp_path.iterdir()] == []


def test_a_later_write_notices_that_chunks_are_gone_which_it_had_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One variable takes 25 hours, and `vacuum` runs meanwhile: it removes the chunks of the other one."""
    url = tmp_path / "q.b2d"
    monkeypatch.setattr(staging, "CHECKED_AFTER", 0.0)
    b2array.open_group(url, "w")["before"] = [1]

    def chunks() -> list[Path]:
        return [*url.glob("level.b2nd/*.chunk")]

    def slow(block: np.ndarray) -> np.ndarray:
        while len(chunks()) < 2:  # as many threads as tasks: both chunks are on their way
            time.sleep(0.001)
        for path in url.glob("level.b2nd/*"):
            os.utime(path, (time.time() - 25 * 3600,) * 2)
        b2array.vacuum(url)
        return block

    level, depth = (da.from_array(np.random.default_rng(n).random((8, 50)), chunks=(4, 50)) for n in range(2))
    depth = depth.rechunk((8, 50)).map_blocks(slow, dtype=float, meta=np.empty((0, 0)))
    dataset = xr.Dataset({"level": (("y", "x"), level), "depth": (("y", "x"), depth)})
    later = to_b2array(dataset, url, mode="a", compute=False, layout="sparse")
    with pytest.raises(ConflictError, match=r"somebody removed .*chunk before the commit"):
        later.compute(scheduler="threads", num_workers=4)
    assert chunks() == []
    assert b2array.load(url / "before").tolist() == [1]
    assert np.isnan(b2array.load(url / "level")).all()  # the template of the dataset, without values


# Booleans, attributes of what exists, and variables without items.


def test_booleans_are_stored_as_such(url: Path) -> None:
    ds = xr.Dataset({"a": ("t", [False, True, False]), "c": ("t", da.from_array(np.array([True, False, True])))})
    to_b2array(ds, url)
    for name, expected in (("a", [False, True, False]), ("c", [True, False, True])):
        stored = b2array.open(url / name)
        assert stored.dtype == bool
        assert "dtype" not in stored.attrs
        assert np.array([10, 20, 30])[stored[...]].tolist() == np.array([10, 20, 30])[expected].tolist()
    to_b2array(ds, url, append_dim="t")
    to_b2array(along([True], "a").assign(c=("t", [True])), url, region={"t": slice(0, 1)})
    assert reopened(url).a.values.tolist() == [True, True, False, False, True, False]
    assert reopened(url).c.values.tolist() == [True, False, True, True, False, True]
    assert reopened(url).a.dtype == bool
    with pytest.raises((TypeError, ValueError), match="'a'"):
        to_b2array(along([1, 2]).assign(c=("t", [True, True])), url, append_dim="t")


def test_booleans_in_the_form_of_netcdf_are_read_and_appended_to(url: Path) -> None:
    group = b2array.open_group(url, "w")
    group.create("a", data=np.array([0, 1], "i1"), dims=("t",), attrs={"dtype": "bool"})
    assert reopened(url).a.dtype == bool
    to_b2array(along([True, False]), url, append_dim="t")
    assert b2array.open(url / "a").dtype == np.int8
    assert reopened(url).a.values.tolist() == [False, True, True, False]


def test_a_part_in_other_units_is_refused_and_other_attributes_are_reported(url: Path) -> None:
    meters = xr.Dataset({"a": ("t", [1000.0], {"units": "m", "note": "x"})})
    to_b2array(meters, url)
    kilometers = xr.Dataset({"a": ("t", [7.0], {"units": "km"})})
    for options in ({"append_dim": "t"}, {"region": {"t": slice(0, 1)}}, {"mode": "r+"}):
        with pytest.raises(ValueError, match=r"'a' is stored in units of 'm', the new part is in 'km'"):
            to_b2array(kilometers, url, **options)
    assert reopened(url).a.values.tolist() == [1000.0]
    other = xr.Dataset({"a": ("t", [7.0], {"units": "m", "note": "y", "more": 1})})
    with pytest.warns(UserWarning, match=r"the new part has \{'note': 'y', 'more': 1\}"):
        to_b2array(other, url, append_dim="t")
    assert reopened(url).a.values.tolist() == [1000.0, 7.0]
    assert reopened(url).a.attrs == {"units": "m", "note": "x"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_b2array(meters, url, append_dim="t")
        to_b2array(xr.Dataset({"a": ("t", [1.0])}), url, append_dim="t")


def test_a_variable_that_is_replaced_takes_its_new_units_and_keeps_other_attributes(url: Path) -> None:
    to_b2array(xr.Dataset({"a": ("t", [1000.0], {"units": "m", "note": "x"})}), url)
    new = xr.Dataset({"a": ("t", [7.0], {"units": "km", "note": "y"})})
    with pytest.warns(UserWarning, match=r"attributes stay as they are; the new values have \{'note': 'y'\}"):
        to_b2array(new, url, mode="a")
    assert reopened(url).a.values.tolist() == [7.0]
    assert reopened(url).a.attrs == {"units": "km", "note": "x"}


def test_variables_without_items_stay_times_and_text(url: Path) -> None:
    cftime = pytest.importorskip("cftime")
    times = xr.Variable("t", np.empty(0, object), encoding={"units": "days since 2000-01-01", "calendar": "noleap"})
    to_b2array(xr.Dataset({"a": times, "b": ("t", np.empty(0, object)), "c": ("t", np.empty(0, "U4"))}), url)
    assert b2array.open(url / "a").dtype == np.int64
    assert b2array.open(url / "b").dtype == np.dtypes.StringDType()
    assert b2array.open(url / "c").dtype == np.dtype("U4")
    new = [cftime.DatetimeNoLeap(2000, 3, 1)]
    to_b2array(
        xr.Dataset({"a": ("t", new), "b": ("t", np.array(["long"], object)), "c": ("t", ["text"])}), url, append_dim="t"
    )
    found = reopened(url)
    assert found.a.values.tolist() == new
    assert found.b.values.tolist() == ["long"]
    assert found.c.values.tolist() == ["text"]


@pytest.mark.parametrize("kind", [object, np.dtypes.StringDType()], ids=str)
def test_strings_grow_and_are_written_by_region_without_rewriting(url: Path, kind: object) -> None:
    to_b2array(along(np.array(["a", "bc"], kind)), url)
    array = b2array.open_group(url)["a"]
    assert array.dtype == np.dtypes.StringDType()
    identity = array._handle.revision.state.annotations.identity
    to_b2array(along(np.array(["much longer than before", "é"], kind)), url, append_dim="t")
    to_b2array(along(np.array(["longer still, by a region"], kind)), url, region={"t": slice(1, 2)})
    expected = ["a", "longer still, by a region", "much longer than before", "é"]
    assert reopened(url).a.values.tolist() == expected
    after = b2array.open_group(url)["a"]
    assert after._handle.revision.state.annotations.identity == identity
    to_b2array(reopened(url), url.with_name("copy.b2d"))
    assert b2array.open_group(url.with_name("copy.b2d"))["a"][...].tolist() == expected


def test_strings_of_dask_are_stored_piece_by_piece(url: Path) -> None:
    values = np.array(["a" * n for n in range(40)], np.dtypes.StringDType())
    to_b2array(along(values).chunk(t=10), url)
    assert b2array.open_group(url)["a"][...].tolist() == values.tolist()
    assert reopened(url).a.chunk().values.tolist() == values.tolist()
