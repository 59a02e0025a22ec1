"""What `to_b2array` makes of values, encodings, modes and graphs: nothing is cut, wrapped or done twice."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
import warnings
from collections import Counter
from pathlib import Path

import dask
import dask.array as da
import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import b2array
from b2array.errors import ConflictError
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


@pytest.mark.parametrize("values", [["a\0"], [b"a\0"], [b"a", "b"], [b"a", 3]])
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
    to_b2array(along([9.0]).assign_coords(t=[7]), url, region={"t": slice(0, 1)})
    assert reopened(url).a.values.tolist() == [9, 0, 1, 2, 0]
    assert reopened(url).t.values.tolist() == [10, 20, 30, 40, 50]


def test_a_region_is_not_looked_for_among_repeated_values(url: Path) -> None:
    to_b2array(along(np.zeros(3)).assign_coords(t=[10, 20, 20]), url)
    with pytest.raises(ValueError, match=r"the stored coordinate 't' must have different values"):
        to_b2array(along([1.0]).assign_coords(t=[10]), url, region="auto")


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
    ds = along([1.0]).assign_coords(x=("x", [1, 2]))
    to_b2array(ds.assign_attrs(version=1, kept=1), url)
    later = along([2.0]).assign_coords(x=("x", [8, 9])).assign(new=("x", [5, 6])).assign_attrs(version=2)
    to_b2array(later, url, append_dim="t")
    found = reopened(url)
    assert (found.a.values.tolist(), found.x.values.tolist(), found.new.values.tolist()) == ([1, 2], [8, 9], [5, 6])
    assert found.attrs == {"version": 2, "kept": 1}
    to_b2array(later.assign_coords(x=("x", [0, 0])), url, append_dim="t", mode="a-")
    assert (reopened(url).a.values.tolist(), reopened(url).x.values.tolist()) == ([1, 2, 2], [8, 9])


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


@pytest.mark.parametrize("key", ["zlib", "compressor", "shards"])
def test_an_encoding_that_is_not_known_is_refused(url: Path, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        to_b2array(along([1.0]), url, encoding={"a": {key: None if key == "x" else 1}})
    assert not url.exists()


def test_names_that_would_make_groups_are_refused(url: Path) -> None:
    with pytest.raises(ValueError, match="a/b"):
        to_b2array(along([1.0], "a/b"), url)


# Encodings and attributes.


@pytest.mark.parametrize(
    ("chunks", "expected"), [((100, 50), (100, 50)), (7, (7, 7)), ((-1, 5), (2, 5)), (-1, (2, 60)), ("160B", (1, 30))]
)
def test_chunks_are_those_that_are_asked_for(url: Path, chunks: object, expected: tuple[int, int]) -> None:
    step = xr.Dataset({"a": (("t", "x"), np.ones((2, 60)))})
    for n, ds in enumerate((step, step.chunk(t=1, x=30))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", da.PerformanceWarning)
            to_b2array(ds, url.parent / f"{n}.b2d", encoding={"a": {"chunks": chunks}})
        assert b2array.open_group(url.parent / f"{n}.b2d")["a"].chunks == expected
        xr.testing.assert_identical(reopened(url.parent / f"{n}.b2d").load(), step)


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
            "replaced": {"mode": "w"}, "appended": {"append_dim": "t"}, "region": {"region": {"t": slice(0, 32)}},
            "later": {"mode": "w", "compute": False},
        }[how]  # fmt: skip
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
