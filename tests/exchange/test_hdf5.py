"""What HDF5 has and other formats do not: empty datasets, enumerations, records with text, unlimited dimensions."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import b2array
from b2array.errors import B2ArrayError
from b2array.xarray_io import Backend


def test_empty_datasets_become_arrays_without_items(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["number"] = h5py.Empty("f4")
        file["text"] = h5py.Empty(h5py.string_dtype())
        file["number"].attrs["unit"] = "m"
    b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2d", verify=True)
    group = b2array.open(tmp_path / "x.b2d")
    assert (group["number"].shape, group["number"].dtype, dict(group["number"].attrs)) == ((0,), "f4", {"unit": "m"})
    assert group["text"].shape == (0,)


def test_enumerations_keep_the_names_of_their_values(tmp_path: Path) -> None:
    kind = h5py.enum_dtype({"clear": 0, "light rain": 3, "snow": -2}, basetype="i1")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("weather", data=np.array([0, 3, -2], "i1"), dtype=kind)
        file["on"] = np.array([True, False])
    b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2d", verify=True)
    group = b2array.open(tmp_path / "x.b2d")
    assert group["weather"][...].tolist() == [0, 3, -2]
    assert group["weather"].dtype == "i1"
    assert group["weather"].attrs["flag_values"].tolist() == [0, 3, -2]
    assert group["weather"].attrs["flag_meanings"] == "clear light_rain snow"
    assert group["on"].dtype == bool
    assert dict(group["on"].attrs) == {}


def test_text_in_records_gets_the_size_of_its_longest_item(tmp_path: Path) -> None:
    kind = np.dtype(
        [("n", "<i4"), ("name", h5py.string_dtype()), ("code", h5py.string_dtype("ascii")), ("v", "<f4", 2)]
    )
    records = np.array([(n, "ü" * n, "c" * (3 - n), (n, n + 1)) for n in range(3)], kind)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=records, chunks=(2,))
    b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2nd", verify=True)
    a = b2array.open(tmp_path / "x.b2nd")
    assert a.dtype == np.dtype([("n", "<i4"), ("name", "<U2"), ("code", "<U3"), ("v", "<f4", (2,))])
    assert a[...]["name"].tolist() == ["", "ü", "üü"]
    assert a[...]["code"].tolist() == ["ccc", "cc", "c"]
    assert a[...]["v"][2].tolist() == [2, 3]
    other = np.dtype([("n", "<i4"), ("list", h5py.vlen_dtype("i4"))])
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file.create_dataset("y", (2,), other)
    with pytest.raises(B2ArrayError, match=r"y\.h5#y: the field 'list' holds .*, which is not text"):
        b2array.convert(tmp_path / "y.h5", tmp_path / "y.b2nd")


@pytest.mark.parametrize("through", ["b2d", "b2z", "h5"])
def test_unlimited_dimensions_come_back(through: str, tmp_path: Path) -> None:
    ds = xr.Dataset({"v": (("t", "x"), np.arange(6.0).reshape(3, 2))}, {"t": [1, 2, 3]})
    ds.to_netcdf(tmp_path / "x.nc", engine="h5netcdf", unlimited_dims=["t"])
    b2array.convert(tmp_path / "x.nc", tmp_path / f"y.{through}", verify=True)
    b2array.convert(tmp_path / f"y.{through}", tmp_path / "z.nc", verify=True)
    with h5py.File(tmp_path / "z.nc") as file:
        assert (file["v"].maxshape, file["t"].maxshape) == ((None, 2), (None,))
        assert "_unlimited" not in file["v"].attrs
    with xr.open_dataset(tmp_path / "z.nc", engine="h5netcdf") as back:
        assert back.identical(ds)
        assert back.encoding["unlimited_dims"] == {"t"}
    if through != "h5":
        assert xr.open_dataset(tmp_path / f"y.{through}", engine=Backend).identical(ds)


def test_attributes_that_hdf5_cannot_hold_become_json_or_are_left_out(tmp_path: Path) -> None:
    scales = [{"datasets": [{"path": "0", "scale": [1, 2.5]}], "name": None}]
    a = b2array.asarray([1, 2], url=tmp_path / "x.b2nd", attrs={"multiscales": scales, "unit": "m"})
    b2array.convert(tmp_path / "x.b2nd", tmp_path / "x.h5", verify=True)
    with h5py.File(tmp_path / "x.h5") as file:
        assert json.loads(file["data"].attrs["multiscales"]) == scales
    b2array.convert(tmp_path / "x.b2nd", tmp_path / "y.h5", other_attrs="skip")
    with h5py.File(tmp_path / "y.h5") as file:
        assert dict(file["data"].attrs) == {"unit": "m"}
    with pytest.raises(ValueError, match="other_attrs must be one of"):
        b2array.convert(tmp_path / "x.b2nd", tmp_path / "z.h5", other_attrs="drop")
    b2array.open(tmp_path / "x.b2nd", "r+").attrs["odd"] = {1, 2}
    with pytest.raises(TypeError, match=r"neither HDF5 nor JSON can store the attribute 'odd'.*other_attrs='skip'"):
        b2array.convert(tmp_path / "x.b2nd", tmp_path / "z.h5")
    assert not (tmp_path / "z.h5").exists()
    assert a.shape == (2,)


def test_a_sharded_array_of_zarr_comes_back_sharded(tmp_path: Path) -> None:
    x = np.arange(600).reshape(20, 30)
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(5, 10), shards=(10, 20))
    b2array.convert(tmp_path / "x.zarr", tmp_path / "y.zarr", verify=True, chunks=(10, 20), blocks=(5, 10))
    b2array.convert(tmp_path / "x.zarr", tmp_path / "x.b2nd", chunks=(10, 20), blocks=(5, 10))
    b2array.convert(tmp_path / "x.b2nd", tmp_path / "z.zarr", verify=True, chunks=(10, 20), blocks=(5, 10))
    b2array.convert(tmp_path / "x.b2nd", tmp_path / "plain.zarr", verify=True)
    for name in ("y", "z"):
        array = zarr.open_array(tmp_path / f"{name}.zarr", mode="r")
        assert (array.shards, array.chunks) == ((10, 20), (5, 10))
        np.testing.assert_array_equal(array[...], x)
    assert zarr.open_array(tmp_path / "plain.zarr", mode="r").shards is None
    large = np.zeros((200, 300))
    zarr.create_array(tmp_path / "large.zarr", data=large, chunks=(50, 100), shards=(100, 300))
    b2array.convert(tmp_path / "large.zarr", tmp_path / "same.zarr", verify=True)
    array = zarr.open_array(tmp_path / "same.zarr", mode="r")
    assert (array.shards, array.chunks) == ((100, 300), (50, 100))


def test_rows_of_any_length_become_values_and_offsets(tmp_path: Path) -> None:
    rows = [np.arange(n % 5, dtype="i4") + n for n in range(30)]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset("g/rows", (30,), h5py.vlen_dtype("i4"))
        data[:] = np.array([*rows, None], object)[:30]
        data.attrs["unit"] = "m"
        file.create_dataset("none", (0,), h5py.vlen_dtype("f8"))
    b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2d", verify=True)
    group = b2array.open(tmp_path / "x.b2d")
    values, offsets = group["g/rows/values"], group["g/rows/offsets"]
    assert (values.dtype, dict(values.attrs)) == ("i4", {"unit": "m"})
    np.testing.assert_array_equal(values[...], np.concatenate(rows))
    for n, row in enumerate(rows):
        np.testing.assert_array_equal(values[offsets[n] : offsets[n + 1]], row)
    assert (group["none/values"].shape, group["none/offsets"][...].tolist()) == ((0,), [0])
    b2array.convert(tmp_path / "x.h5#g/rows", tmp_path / "y.b2d", verify=True)
    assert sorted(b2array.open(tmp_path / "y.b2d")) == ["offsets", "values"]


def test_a_group_with_several_names_is_copied_once_and_its_other_names_are_shown(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["run/x"] = np.arange(3)
        file["latest"] = file["run"]
        file["run/again"] = file["run"]
        file["twice"] = file["run/x"]
    with pytest.warns(UserWarning, match=r"left out: latest/again \(a name of latest\), run \(a name of latest\)"):
        b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2d")
    found = b2array.open(tmp_path / "x.b2d")
    assert [name for name, _ in found.walk()] == ["latest", "latest/x", "twice"]
    assert found["twice"][...].tolist() == found["latest/x"][...].tolist() == [0, 1, 2]
