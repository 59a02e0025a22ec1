"""What xarray sees in a netCDF file, it sees in the group that `convert` makes of it, and in a file made of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import b2array

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")

ENGINE = "h5netcdf"


def weather() -> xr.Dataset:
    """Make a dataset with all that netCDF files usually have."""
    rng = np.random.default_rng(0)
    time = np.array(["2000-01-01", "2000-02-01", "2000-03-01"], "M8[ns]")
    temperature = rng.normal(280, 9, (3, 2, 4)).round(2)
    temperature[0, 0, 0] = np.nan
    ds = xr.Dataset(
        {
            "temperature": (("time", "lat", "lon"), temperature, {"units": "K", "cell_methods": "time: mean"}),
            "packed": (("lat", "lon"), rng.random((2, 4)).round(2)),
            "narrow": (("lat", "lon"), rng.random((2, 4)).round(2)),
            "flag": (
                ("lat", "lon"),
                np.array([[0, 1, 2, 9], [1, 1, 1, 1]], "i1"),
                {"flag_values": np.arange(3, dtype="i1")},
            ),
            "station": ("lat", np.array(["Zürich", "Łódź, a long name"], object), {"long_name": ""}),
            "code": ("lon", np.array([b"a", b"bc", b"", b"def"])),
            "time_bnds": (("time", "nv"), np.stack([time, time + np.timedelta64(1, "D")], 1)),
            "on": ("lat", [True, False]),
            "scalar": ((), np.float32(1.5)),
            "no_coordinate": (("lat", "depth"), np.arange(6.0).reshape(2, 3)),
        },
        {
            "time": ("time", time, {"bounds": "time_bnds"}),
            "lat": ("lat", [45.0, 46.0], {"units": "degrees_north"}),
            "lon": ("lon", np.arange(4, dtype="f4"), {"units": "degrees_east"}),
            "height": ((), 2.0, {"positive": "up"}),
            "area": (("lat", "lon"), np.ones((2, 4))),
        },
        {"title": "weather", "history": "made\nchanged", "version": np.int32(3), "levels": [1.5, 2.5], "empty": ""},
    )
    ds.time.encoding = {"units": "days since 2000-01-01", "dtype": "f8"}
    ds.packed.encoding = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 0.5, "_FillValue": np.int16(-999)}
    ds.narrow.encoding = {
        "dtype": "i2",
        "scale_factor": np.float32(0.01),
        "add_offset": np.float32(0.5),
        "_FillValue": np.int16(-1),
    }
    ds.temperature.encoding = {"dtype": "f4", "_FillValue": np.float32(1e20), "missing_value": np.float32(1e20)}
    return ds


def there_and_back(path: Path) -> tuple[Path, Path]:
    """Convert a file to a group, and the group to a file."""
    group, back = path.with_suffix(".b2d"), path.with_name("back.nc")
    b2array.convert(path, group, verify=True)
    b2array.convert(group, back, verify=True)
    return group, back


def check(path: Path, group: str | None = None, engine: str = ENGINE) -> None:
    """Check that xarray sees the same in the file, in a group made of it, and in a file made of that."""
    original = xr.load_dataset(path, engine=engine, group=group)
    made, back = there_and_back(path) if group is None else (path.with_suffix(".b2d"), path.with_name("back.nc"))
    for found in (
        xr.load_dataset(made, engine="b2array", group=group),
        xr.load_dataset(back, engine=engine, group=group),
    ):
        xr.testing.assert_identical(found, original)
        assert found.dtypes.keys() == original.dtypes.keys()
        assert {name: dtype for name, dtype in found.dtypes.items() if dtype.kind not in "OTU"} == {
            name: dtype for name, dtype in original.dtypes.items() if dtype.kind not in "OTU"
        }
        assert found.indexes.keys() == original.indexes.keys()


def test_a_dataset_of_netcdf_is_the_same_dataset_there_and_back(tmp_path: Path) -> None:
    weather().to_netcdf(tmp_path / "a.nc", engine=ENGINE, unlimited_dims=["time"])
    check(tmp_path / "a.nc")
    found = xr.load_dataset(tmp_path / "a.b2d", engine="b2array")
    assert float(found.area.sel(lat=45, lon=2)) == 1


def test_files_of_the_library_of_netcdf_are_the_same_there_and_back(tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")
    weather().to_netcdf(tmp_path / "a.nc", engine="netcdf4", unlimited_dims=["time"])
    check(tmp_path / "a.nc", engine="netcdf4")


def test_groups_of_netcdf_are_the_same_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    weather().to_netcdf(path, engine=ENGINE)
    inner = xr.Dataset({"t": (("lat", "level"), np.ones((2, 3)))}, {"level": [1, 2, 3]}, {"title": "inner"})
    inner.to_netcdf(path, engine=ENGINE, group="run/one", mode="a")
    check(path)
    check(path, "run/one")
    original = xr.load_datatree(path, engine=ENGINE)
    for place, engine in ((path.with_suffix(".b2d"), "b2array"), (path.with_name("back.nc"), ENGINE)):
        xr.testing.assert_identical(xr.load_datatree(place, engine=engine), original)


def test_a_dimension_of_an_outer_group_is_found(tmp_path: Path) -> None:
    netcdf = pytest.importorskip("h5netcdf")
    with netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"x": 3}
        file.create_variable("x", ("x",), "f8", data=[1.0, 2.0, 3.0])
        file.create_group("inner").create_variable("t", ("x",), "f8", data=[4.0, 5.0, 6.0])
    check(tmp_path / "a.nc")
    check(tmp_path / "a.nc", "inner")


def test_a_variable_with_the_name_of_a_dimension_need_not_be_its_coordinate(tmp_path: Path) -> None:
    netcdf = pytest.importorskip("netCDF4")
    with netcdf.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 2)
        file.createDimension("y", 3)
        file.createVariable("t", "f8", ("x", "y"))[...] = np.arange(6.0).reshape(2, 3)
        file.createVariable("x", "f8", ("y",))[...] = np.arange(3.0)
    check(tmp_path / "a.nc", engine="netcdf4")
    assert {*b2array.open(tmp_path / "a.b2d")} == {"t", "x"}


def test_scales_of_hdf5_that_no_library_of_netcdf_wrote_name_the_dimensions(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["lat"], file["t"] = [45.0, 46.0], np.ones((2, 3))
        file["lat"].make_scale("latitude")
        file["t"].dims[0].attach_scale(file["lat"])
        file["t"].dims[1].label = "x"
    b2array.convert(tmp_path / "a.h5", tmp_path / "a.b2d")
    found = b2array.open(tmp_path / "a.b2d")
    assert (found["lat"].dims, found["t"].dims) == (("lat",), ("lat", "x"))


def test_dimensions_that_no_scale_can_name_are_labels(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "a.b2d", "w")
    group.create("t", (2, 3), dims=("x/y", None)).close()
    group.create("u", (2,), dims=("x",)).close()
    group.create("v", (3,), dims=("x",)).close()
    b2array.convert(tmp_path / "a.b2d", tmp_path / "a.h5")
    b2array.convert(tmp_path / "a.h5", tmp_path / "b.b2d", verify=True)
    found = b2array.open(tmp_path / "b.b2d")
    assert {name: found[name].dims for name in found} == {"t": ("x/y", None), "u": ("x",), "v": ("x",)}


def test_new_arrays_in_a_file_use_the_scales_that_are_there(tmp_path: Path) -> None:
    weather()[["area", "flag"]].to_netcdf(tmp_path / "a.nc", engine=ENGINE)
    b2array.asarray(np.ones((2, 4)), dims=("lat", "lon"), url=tmp_path / "new.b2nd").close()
    b2array.convert(tmp_path / "new.b2nd", f"{tmp_path}/a.nc#more")
    found = xr.load_dataset(tmp_path / "a.nc", engine=ENGINE)
    assert found.more.sel(lat=45, lon=3) == 1
    assert {*found.variables} == {"area", "flag", "more", "lat", "lon"} | ({*weather().coords} & {*found.variables})


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_booleans_stay_booleans_for_xarray_and_for_arrays(tmp_path: Path, engine: str) -> None:
    values = np.random.default_rng(0).random((30, 7)) < 0.4
    ds = xr.Dataset({"m": (("y", "x"), values), "n": ("x", np.arange(7, dtype="i1"))}, {"c": ("x", values[0])})
    ds.b2array.to_b2array(tmp_path / "g.b2d", encoding={"m": {"chunks": (7, 4)}})
    b2array.convert(tmp_path / "g.b2d", tmp_path / "ours.nc", verify=True)
    ds.to_netcdf(tmp_path / "theirs.nc", engine=engine)
    for name in ("ours", "theirs"):
        with h5py.File(tmp_path / f"{name}.nc") as file:
            assert (file["m"].dtype, file["m"].attrs["dtype"]) in ((np.int8, "bool"), (np.int8, b"bool"))
        with xr.open_dataset(tmp_path / f"{name}.nc", engine=engine) as found:
            xr.testing.assert_identical(found.load(), ds)
        b2array.convert(tmp_path / f"{name}.nc", tmp_path / f"{name}.b2d", verify=True)
        group = b2array.open_group(tmp_path / f"{name}.b2d")
        assert (group["m"].dtype, group["n"].dtype, "dtype" in group["m"].attrs) == (np.bool_, np.int8, False)
        np.testing.assert_array_equal(group["m"][...], values)
        xr.testing.assert_identical(xr.open_dataset(tmp_path / f"{name}.b2d", engine="b2array").load(), ds)
    b2array.convert(tmp_path / "g.b2d", tmp_path / "plain.h5")
    with h5py.File(tmp_path / "plain.h5") as file:
        assert file["m"].dtype == np.bool_


@pytest.mark.parametrize("compression", ["gzip", "blosc", "blosc2"])
def test_booleans_with_a_fill_value_come_back_from_netcdf(tmp_path: Path, compression: Any) -> None:
    a = b2array.full((300, 70), True, url=tmp_path / "a.b2nd", chunks=(64, 64))
    a[100:200, ::3] = False
    b2array.convert(tmp_path / "a.b2nd", tmp_path / "a.nc", compression=compression, verify=True)
    b2array.convert(tmp_path / "a.nc", tmp_path / "back.b2nd", verify=True)
    back = b2array.open(tmp_path / "back.b2nd")
    assert (back.dtype, back.fill_value) == (np.bool_, True)
    np.testing.assert_array_equal(back[...], a[...])


def test_integers_that_are_not_only_booleans_stay_integers(tmp_path: Path) -> None:
    values = np.array([1, 0, -9], "i1")
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file["m"] = values
        file["m"].attrs.update(dtype="bool", _FillValue=np.int8(-9))
    b2array.convert(tmp_path / "x.nc", tmp_path / "x.b2nd")
    np.testing.assert_array_equal(b2array.open(tmp_path / "x.b2nd")[...], values)
    b2array.asarray(values > 0, url=tmp_path / "own.b2nd", attrs={"dtype": "of the user"})
    b2array.convert(tmp_path / "own.b2nd", tmp_path / "own.nc")
    b2array.convert(tmp_path / "own.nc", tmp_path / "back.b2nd")
    back = b2array.open(tmp_path / "back.b2nd")
    assert (back.dtype, dict(back.attrs)) == (np.bool_, {"dtype": "of the user"})
