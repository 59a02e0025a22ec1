"""CF data that grow: bounds, climatologies, calendars, finer units, trees, and states with names."""

from __future__ import annotations

import threading
import warnings
from datetime import timedelta
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import b2array
from b2array.errors import ConflictError
from b2array.xarray_io import Backend, to_b2array


@pytest.fixture(autouse=True)
def _threads():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


@pytest.fixture
def url(tmp_path: Path) -> Path:
    return tmp_path / "cf.b2d"


def reopened(url: Path, **options: object) -> xr.Dataset:
    return xr.open_dataset(url, engine=Backend, **options)


PACKING = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -(2**15)}


def day(number: int, calendar: str = "standard", *, units: str = "days since 2000-01-01") -> xr.Dataset:
    """Return what an archive gets for a day: a packed variable, times and their bounds, a grid with bounds."""
    use_cftime = calendar != "standard"
    start = xr.date_range("2000-02-27", periods=number + 2, calendar=calendar, use_cftime=use_cftime)[number:]
    edges = np.array(start if use_cftime else start.values)
    ds = xr.Dataset(
        {
            "t2m": (("time", "lat"), [[280.0 + number / 10, np.nan]], {"units": "K", "cell_methods": "time: mean"}),
            "time_bnds": (("time", "nv"), edges[None, :]),
            "lat_bnds": (("lat", "nv"), [[-90.0, 0.0], [0.0, 90.0]]),
        },
        {
            "time": ("time", edges[:1], {"bounds": "time_bnds", "axis": "T"}),
            "lat": ("lat", [-45.0, 45.0], {"bounds": "lat_bnds", "units": "degrees_north"}),
        },
        {"Conventions": "CF-1.11"},
    )
    ds.t2m.encoding = dict(PACKING)
    ds.time.encoding = {"units": units, "calendar": calendar, "dtype": "f8"}
    return ds


def netcdf(ds: xr.Dataset, path: Path, **options: object) -> Path:
    ds.to_netcdf(path, engine="h5netcdf", **options)
    return path


# Bounds.


@pytest.mark.costly
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("first", ["convert", "xarray"])
@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
def test_files_of_a_day_are_appended_to_an_archive_with_bounds(
    url: Path, tmp_path: Path, calendar: str, first: str, chunked: bool
) -> None:
    files = [
        netcdf(day(n, calendar, units=f"days since 2000-02-{27 - n}"), tmp_path / f"{n}.nc", unlimited_dims=["time"])
        for n in range(4)
    ]
    if first == "convert":
        b2array.convert(files[0], url)
    else:
        with xr.open_dataset(files[0], engine="h5netcdf") as ds:
            to_b2array(ds, url)
    for file in files[1:]:
        with xr.open_dataset(file, engine="h5netcdf", chunks={} if chunked else None) as ds:
            to_b2array(ds, url, append_dim="time")
    expected = xr.concat([day(n, calendar) for n in range(4)], "time", data_vars="minimal")
    xr.testing.assert_allclose(reopened(url).load(), expected)
    assert (reopened(url).time_bnds.values == expected.time_bnds.values).all()
    stored = b2array.open_group(url)
    assert stored["t2m"].dtype == "i2"
    assert "units" not in stored["time_bnds"].attrs
    assert b2array.verify(url, deep=True).ok


def test_bounds_are_written_into_regions_and_grids_may_be_left_out(url: Path) -> None:
    to_b2array(xr.concat([day(n) for n in range(3)], "time", data_vars="minimal"), url)
    to_b2array(day(3).drop_vars(["lat", "lat_bnds"]), url, append_dim="time")
    late = day(1)
    late.time_bnds[:] += np.timedelta64(1, "D")
    to_b2array(late.drop_vars(["lat_bnds"]), url, region={"time": "auto"})
    found = reopened(url)
    assert found.time_bnds.values[1].tolist() == late.time_bnds.values[0].tolist()
    assert found.time_bnds.values[3].tolist() == day(3).time_bnds.values[0].tolist()
    assert found.lat_bnds.values.tolist() == [[-90, 0], [0, 90]]


@pytest.mark.parametrize("chunked", [False, True])
def test_climatological_bounds_follow_their_coordinate_into_other_units(
    url: Path, tmp_path: Path, chunked: bool
) -> None:
    def month(number: int, since: str) -> xr.Dataset:
        times = np.array([f"2000-{number:02}-15"], "M8[ns]")
        edges = (np.array([f"1990-{number:02}-01", f"2000-{number + 1:02}-01"], "M8[D]") - np.datetime64(since)).astype(
            "f8"
        )
        ds = xr.Dataset(
            {"a": ("time", [1.0 * number]), "climatology_bounds": (("time", "nv"), edges[None, :])},
            {"time": ("time", times, {"climatology": "climatology_bounds"})},
        )
        ds.time.encoding = {"units": f"days since {since}", "dtype": "f8"}
        return ds

    files = [netcdf(month(n, f"19{60 + n}-01-01"), tmp_path / f"{n}.nc") for n in (1, 2)]
    b2array.convert(files[0], url)
    with xr.open_dataset(files[1], engine="h5netcdf", chunks={} if chunked else None) as ds:
        to_b2array(ds, url, append_dim="time")
    expected = [month(n, "1961-01-01").climatology_bounds.values[0].tolist() for n in (1, 2)]
    assert reopened(url).climatology_bounds.values.tolist() == expected


def test_bounds_of_times_that_were_not_decoded_are_appended_as_they_are(url: Path, tmp_path: Path) -> None:
    files = [netcdf(day(n), tmp_path / f"{n}.nc") for n in range(2)]
    b2array.convert(files[0], url)
    with xr.open_dataset(files[1], engine="h5netcdf", decode_times=False, mask_and_scale=False) as raw:
        to_b2array(raw, url, append_dim="time", check_index="error")
        with pytest.raises(ValueError, match="the stored index 'time' has"):
            to_b2array(raw, url, append_dim="time", check_index="error")
        to_b2array(raw.drop_vars("lat_bnds"), url, region={"time": "auto"})
    assert reopened(url).time_bnds.values[1].tolist() == day(1).time_bnds.values[0].tolist()


# Units.


def at(*times: str, **variables: object) -> xr.Dataset:
    when = np.array(times, "M8[ns]")
    return xr.Dataset({"a": ("time", np.arange(len(times), dtype="f8"))}, {"time": when}).assign(variables)


DAYS = {"time": {"units": "days since 2000-01-01", "dtype": "i4", "calendar": "standard"}}


def test_times_that_need_finer_units_are_refused_with_the_way_out(url: Path) -> None:
    to_b2array(at("2000-01-02"), url, encoding=DAYS)
    with pytest.raises(ValueError, match=r"encoding=\{'time': \{'units': 'hours since 2000-01-01'\}\} stores all"):
        to_b2array(at("2000-01-03T06"), url, append_dim="time")
    assert b2array.open_group(url)["time"][:].tolist() == [1]


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ({"units": "hours since 2000-01-01"}, [24, 54]),
        ({"units": "minutes since 1999-12-31", "dtype": "i8"}, [2880, 4680]),
        ({"units": "days since 2000-01-01", "dtype": "f8"}, [1, 2.25]),
    ],
)
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_stored_times_get_finer_units_in_the_same_commit(
    url: Path, asked: dict[str, object], stored: list[float], layout: str
) -> None:
    first = at("2000-01-02")
    first.time.attrs["axis"] = "T"
    to_b2array(first, url, encoding={"time": {**DAYS["time"], "chunks": 8}}, layout=layout, snapshot="before")
    for _ in range(2):
        to_b2array(at("2000-01-03T06"), url, append_dim="time", encoding={"time": asked}, check_index="off")
    array = b2array.open_group(url)["time"]
    assert array[:].tolist() == [*stored, stored[1]]
    assert (array.chunks, array.attrs["axis"], array.info["layout"]) == ((8,), "T", layout)
    assert reopened(url).time.values.astype("M8[h]").astype(str).tolist()[:2] == ["2000-01-02T00", "2000-01-03T06"]
    assert reopened(url, at="before").time.values.astype("M8[D]").astype(str).tolist() == ["2000-01-02"]


def test_bounds_get_the_finer_units_of_their_coordinate(url: Path) -> None:
    def with_bounds(*edges: str) -> xr.Dataset:
        ds = at(edges[0]).assign(time_bnds=(("time", "nv"), np.array([edges], "M8[ns]")))
        ds.time.attrs["bounds"] = "time_bnds"
        return ds

    first, second = with_bounds("2000-01-02", "2000-01-03"), with_bounds("2000-01-03", "2000-01-03T06")
    to_b2array(first, url, encoding={**DAYS, "time_bnds": {"dtype": "i4"}})
    with pytest.raises(ValueError, match=r"variable 'time_bnds' .* encoding=\{'time': \{'units': 'hours since"):
        to_b2array(second, url, append_dim="time")
    to_b2array(second, url, append_dim="time", encoding={"time": {"units": "hours since 2000-01-01"}})
    xr.testing.assert_identical(
        reopened(url).time_bnds.variable.load(), xr.concat([first, second], "time").time_bnds.variable
    )
    assert b2array.open_group(url)["time_bnds"][:].tolist() == [[24, 48], [48, 54]]


def test_units_that_cannot_hold_what_is_stored_are_refused(url: Path) -> None:
    to_b2array(at("2000-01-02T06"), url, encoding={"time": {"units": "hours since 2000-01-01", "dtype": "i4"}})
    before = reopened(url).load()
    for asked in ({"units": "days since 2000-01-01"}, {"units": "nanoseconds since 2000-01-01"}):
        with pytest.raises((ValueError, OverflowError), match="'time'"):
            to_b2array(at("2000-01-03"), url, append_dim="time", encoding={"time": asked})
    for asked in ({"chunks": 3}, {"units": "days since 2000-01-01", "chunks": 3}, {"dtype": "f8"}):
        with pytest.raises(ValueError, match=r"variables \['time'\] already exist"):
            to_b2array(at("2000-01-03"), url, append_dim="time", encoding={"time": asked})
    with pytest.raises(KeyError, match="time"):
        to_b2array(
            at("2000-01-03").drop_vars("time"), url, mode="a", encoding={"time": {"units": "days since 2000-01-01"}}
        )
    xr.testing.assert_identical(reopened(url).load(), before)


@pytest.mark.parametrize("stored", [[], [np.nan, np.nan]], ids=["empty", "NaT"])
@pytest.mark.parametrize("dtype", ["i8", "f8"])
def test_units_are_free_where_no_time_is_stored_yet(url: Path, stored: list[float], dtype: str) -> None:
    codes = np.where(np.isnan(stored), -(2**63) if dtype == "i8" else np.nan, 0).astype(dtype)
    units = {"units": "days since 2000-01-01", "calendar": "standard"}
    to_b2array(xr.Dataset({"when": ("t", codes, {**units, "long_name": "when"})}), url)
    later = xr.Dataset({"when": ("t", np.array(["2000-01-02T06:30", "2000-01-03"], "M8[ns]"))})
    to_b2array(later, url, append_dim="t")
    found = reopened(url).when
    assert found.values.tolist() == [*[None] * len(stored), *later.when.values.tolist()]
    assert found.attrs == {"long_name": "when"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # xarray encodes missing times with NumPy
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("values", [["NaT", "NaT"], ["NaT", "2000-01-02"]])
def test_missing_times_are_refused_where_a_small_type_has_no_mark_for_them(
    url: Path, values: list[str], chunked: bool
) -> None:
    ds = xr.Dataset({"a": ("t", np.array(values, "M8[ns]"))})
    ds = ds.chunk(t=1) if chunked else ds
    coding = {"units": "days since 2000-01-01", "dtype": "i4", "calendar": "proleptic_gregorian"}
    with pytest.raises(ValueError, match="variable 'a' is stored as int32, which cannot hold"):
        to_b2array(ds, url, encoding={"a": coding})
    to_b2array(ds, url, encoding={"a": {**coding, "_FillValue": -1}})
    xr.testing.assert_equal(reopened(url).load(), ds.load())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # xarray encodes missing times with NumPy
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("dtype", ["i4", "u4", "i2"])
def test_times_beyond_the_range_of_their_type_are_refused(url: Path, dtype: str, chunked: bool) -> None:
    coding = {"units": "seconds since 1970-01-01", "dtype": dtype, "calendar": "proleptic_gregorian"}
    early, late = (
        xr.Dataset({"a": ("t", np.array([when, "NaT" if dtype == "i4" else when], "M8[ns]"))})
        for when in ("1970-01-01T00:00:05", "2200-01-01")
    )
    late = late.chunk(t=1) if chunked else late
    with pytest.raises((ValueError, OverflowError), match="'a'"):
        to_b2array(late, url, encoding={"a": coding})
    to_b2array(early, url, encoding={"a": {**coding, "_FillValue": 0}})
    with pytest.raises((ValueError, OverflowError), match="'a'"):
        to_b2array(late, url, append_dim="t")
    xr.testing.assert_equal(reopened(url).load(), early)
    to_b2array(late, url, append_dim="t", encoding={"a": {"units": coding["units"], "dtype": "i8"}})
    xr.testing.assert_equal(reopened(url).load(), xr.concat([early, late.load()], "t"))


def test_lengths_of_time_get_finer_units(url: Path) -> None:
    first, later = (xr.Dataset({"a": ("t", np.array([n], "m8[h]").astype("m8[ns]"))}) for n in (48, 6))
    to_b2array(first, url, encoding={"a": {"units": "days", "dtype": "i8"}})
    with pytest.raises(ValueError, match=r"encoding=\{'a': \{'units': 'hours'\}\}"):
        to_b2array(later, url, append_dim="t")
    to_b2array(later, url, append_dim="t", encoding={"a": {"units": "hours"}})
    assert reopened(url, decode_timedelta=True).a.values.astype("m8[h]").astype(int).tolist() == [48, 6]


# Trees.


def tree(*times: int, factor: float = 1.0) -> xr.DataTree:
    t = np.array(times)
    return xr.DataTree.from_dict(
        {
            "/": xr.Dataset(coords={"t": t}),
            "/air": xr.Dataset({"a": (("t", "x"), factor * np.outer(t, [1.0, 2.0]))}, {"x": [5, 6]}),
            "/air/deep": xr.Dataset({"b": ("t", factor * t)}),
            "/land": xr.Dataset({"height": ("x", [7.0, 8.0])}),
        }
    )


def read(url: Path) -> xr.DataTree:
    return xr.open_datatree(url, engine=Backend).load()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("mode", ["a", "a-"])
def test_trees_are_appended_in_one_commit(url: Path, mode: str, chunked: bool) -> None:
    to_b2array(tree(0, 1), url)
    later = tree(2, 3)
    later["land/height"][:] = 0
    to_b2array(later.chunk(t=1) if chunked else later, url, append_dim="t", mode=mode)
    expected = tree(0, 1, 2, 3)
    expected["land/height"][:] = [0, 0] if mode == "a" else [7, 8]
    xr.testing.assert_identical(read(url), expected)


@pytest.mark.parametrize("region", [{"t": slice(1, 3)}, {"t": "auto"}, "auto"], ids=str)
def test_regions_of_trees_are_written(url: Path, region: object) -> None:
    to_b2array(tree(0, 1, 2, 3), url)
    part = tree(1, 2, factor=10.0)
    if region != "auto":
        part["air"].dataset = part["air"].to_dataset(inherit=False).drop_vars("x")
        with pytest.raises(ValueError, match=r"land: variables \['height'\] have no dimension of the region \['t'\]"):
            to_b2array(part, url, region=region)
        part = part.filter(lambda node: "height" not in node)
    to_b2array(part, url, region=region)
    found = read(url)
    assert found["air/a"].values[:, 0].tolist() == [0, 10, 20, 3]
    assert found["air/deep/b"].values.tolist() == [0, 10, 20, 3]
    assert found["t"].values.tolist() == [0, 1, 2, 3]
    assert found["land/height"].values.tolist() == [7, 8]


def test_what_does_not_fit_in_one_node_changes_none(url: Path) -> None:
    to_b2array(tree(0, 1), url)
    bad = tree(2)
    bad["air"] = bad["air"].to_dataset(inherit=False).assign_coords(x=[6, 5])
    with pytest.raises(ValueError, match="the index 'x'"):
        to_b2array(bad, url, append_dim="t")
    with pytest.raises(ValueError, match="no node of the tree has a dimension 'z'"):
        to_b2array(tree(2), url, append_dim="z")
    xr.testing.assert_identical(read(url), tree(0, 1))


# Names of states, and several writers.


@pytest.mark.parametrize("base", ["local", "memory"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_write_and_the_name_of_its_state_are_one_commit(tmp_path: Path, base: str, chunked: bool) -> None:
    url = tmp_path / "s.b2d" if base == "local" else f"memory://{tmp_path}/s.b2d"
    for n in range(3):
        ds = at(f"2000-01-0{n + 1}")
        to_b2array(ds.chunk() if chunked else ds, url, append_dim="time" if n else None, snapshot=f"day {n}")
    assert [reopened(url, at=f"day {n}").sizes["time"] for n in range(3)] == [1, 2, 3]
    with pytest.raises(FileExistsError, match="day 1"):
        to_b2array(at("2000-01-09"), url, append_dim="time", snapshot="day 1")
    with pytest.raises(ValueError, match="'a'"):
        to_b2array(at("2000-01-09").drop_vars("a"), url, append_dim="time", snapshot="bad")
    assert reopened(url).sizes["time"] == 3
    group = b2array.open_group(url, "r+")
    assert [each.name for each in group.snapshots] == ["day 0", "day 1", "day 2"]
    group.restore("day 0")
    assert reopened(url).sizes["time"] == 1


def test_states_of_inner_groups_of_trees_and_of_later_commits_get_names(url: Path) -> None:
    to_b2array(tree(0, 1), url, group="inner", snapshot="tree")
    delayed = to_b2array(
        at("2000-01-01", "2000-01-02").chunk(time=1), url, group="other", compute=False, snapshot="later"
    )
    group = b2array.open_group(url)
    assert [each.name for each in group.snapshots] == ["tree"]
    delayed.compute()
    assert reopened(url, group="other", at="later").a.values.tolist() == [0, 1]
    assert b2array.open_group(url, at="tree")["inner/air/a"].shape == (2, 2)
    with pytest.raises(ValueError, match="cannot keep snapshots"):
        to_b2array(at("2000-01-01"), url.with_suffix(".b2z"), snapshot="no")


@pytest.mark.costly
@pytest.mark.parametrize("base", ["local", "memory"])
def test_regions_that_meet_in_one_chunk_are_all_written(tmp_path: Path, base: str) -> None:
    url = tmp_path / "r.b2d" if base == "local" else f"memory://{tmp_path}/r.b2d"
    whole = xr.Dataset({"a": ("t", np.zeros(16)), "b": ("t", np.zeros(16))})
    to_b2array(whole, url, encoding={name: {"chunks": 16} for name in whole})
    ready, failures = threading.Barrier(4), []

    def write(worker: int) -> None:
        ready.wait()
        try:
            for n in range(worker, 16, 4):
                part = xr.Dataset({name: ("t", [n + 1.0]) for name in whole})
                to_b2array(part, url, region={"t": slice(n, n + 1)})
        except Exception as error:  # noqa: BLE001 - shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert reopened(url).a.values.tolist() == reopened(url).b.values.tolist() == [*range(1, 17)]


def test_appends_and_dask_arrays_that_meet_others_are_conflicts(url: Path) -> None:
    to_b2array(xr.Dataset({"a": ("t", np.zeros(4))}), url, encoding={"a": {"chunks": 4}})
    tries = []

    def meanwhile(block: np.ndarray) -> np.ndarray:
        tries.append(block.shape)
        b2array.open_group(url, "r+")["a"][0] = len(tries)
        return block

    values = da.ones(2, chunks=2).map_blocks(meanwhile, dtype=float, meta=np.empty(0))
    with pytest.raises(ConflictError):
        to_b2array(xr.Dataset({"a": ("t", values)}), url, region={"t": slice(2, 4)})
    assert len(tries) == 1
    assert reopened(url).a.values.tolist() == [1, 0, 0, 0]


def test_dates_of_a_day_in_pandas_are_the_labels_of_an_archive(url: Path) -> None:
    for n in range(3):
        ds = xr.Dataset(
            {"a": ("time", np.full(4, n))}, {"time": pd.date_range(f"2026-01-0{n + 1}", periods=4, freq="6h")}
        )
        to_b2array(ds, url, append_dim="time" if n else None, check_index="error")
    assert reopened(url).a.sel(time="2026-01-02").values.tolist() == [1] * 4
    with pytest.warns(UserWarning, match="the stored index 'time' has"):
        to_b2array(ds, url, append_dim="time")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*more than half of the file is dead space, and stays because the group has snap")
def test_a_year_grows_by_five_days_at_a_time_with_a_named_state_now_and_then(url: Path, tmp_path: Path) -> None:
    """The whole job of an archive: 73 files, one bad one, and a restore."""
    days, at_once = 365, 5
    for n in range(0, days, at_once):
        last = n + at_once - 1
        ds = xr.concat([day(n + each, "noleap") for each in range(at_once)], "time", data_vars="minimal")
        if n == 200:
            to_b2array(ds.assign(t2m=ds.t2m - 100), url, append_dim="time", snapshot="bad")
            b2array.open_group(url, "r+").restore("day 199")
        options = (
            {"append_dim": "time", "check_index": "error"}
            if n
            else {"encoding": {"t2m": {**PACKING, "chunks": (365, 2)}}}
        )
        to_b2array(ds, url, snapshot=f"day {last}" if last % 50 == 49 else None, **options)
    expected = xr.concat([day(n, "noleap") for n in range(days)], "time", data_vars="minimal")
    xr.testing.assert_allclose(reopened(url).load(), expected)
    for n in (49, 199, 349):
        assert reopened(url, at=f"day {n}").sizes["time"] == n + 1
    assert reopened(url, at="bad").t2m.values[200, 0] == pytest.approx(200)
    assert b2array.verify(url, deep=True).ok
    before = sum(file.stat().st_size for file in url.rglob("*") if file.is_file())
    b2array.repack(url)
    assert sum(file.stat().st_size for file in url.rglob("*") if file.is_file()) < before
    assert reopened(url, at="day 49").sizes["time"] == 50


@pytest.mark.parametrize("calendar", ["standard", "360_day"])
def test_bounds_and_their_coordinate_choose_units_together(url: Path, calendar: str) -> None:
    # A file of netCDF would have days for the times and hours for the bounds, with a warning.
    noons = xr.date_range("2000-01-01T12", periods=3, calendar=calendar, use_cftime=calendar != "standard")
    edges = np.stack([noons - timedelta(hours=12), noons + timedelta(hours=12)], axis=1)
    ds = xr.Dataset(
        {"a": ("time", np.arange(3.0)), "time_bnds": (("time", "nv"), edges)},
        {"time": ("time", noons, {"bounds": "time_bnds"})},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_b2array(ds, url)
    stored = b2array.open_group(url)
    assert stored["time"].attrs["units"].startswith("hours since 2000-01-01")
    assert "units" not in stored["time_bnds"].attrs
    assert np.array_equal(np.diff(stored["time_bnds"][:]), [[24], [24], [24]])
    assert reopened(url).time_bnds.values.tolist() == ds.time_bnds.values.tolist()
    assert "units" not in ds.time.encoding
