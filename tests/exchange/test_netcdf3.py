"""netCDF-3: what xarray sees in a file, it sees in the group that `convert` makes of it."""

from __future__ import annotations

import importlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import b2array
from b2array.errors import FormatError, UnsupportedError
from b2array.exchange.places import find

scipy_io = pytest.importorskip("scipy.io")
xr = pytest.importorskip("xarray")

KINDS = {"NETCDF3_CLASSIC": b"CDF\x01", "NETCDF3_64BIT": b"CDF\x02"}


def weather() -> xr.Dataset:
    rng = np.random.default_rng(0)
    ds = xr.Dataset(
        {
            "temperature": (("time", "lat", "lon"), rng.normal(280, 9, (3, 2, 4)), {"units": "K"}),
            "packed": (("lat", "lon"), rng.random((2, 4)).round(2)),
            "flag": (("lat", "lon"), np.array([[0, 1, 2, 9], [1, 1, 1, 1]], "i1")),
            "station": ("lat", np.array(["Zürich", "Łódź"], object), {"long_name": ""}),
            "count": ("time", np.array([1, 2, 3], "i4"), {"flag_values": np.array([1, 2, 3], "i2")}),
            "scalar": ((), np.float32(1.5)),
        },
        {
            "time": ("time", np.array(["2000-01-01", "2000-02-01", "2000-03-01"], "M8[ns]")),
            "lat": ("lat", [45.0, 46.0], {"units": "degrees_north"}),
            "lon": ("lon", np.arange(4, dtype="f4")),
        },
        {"title": "weather", "levels": [1.5, 2.5], "version": np.int32(3)},
    )
    ds.time.encoding = {"units": "days since 2000-01-01", "dtype": "f8"}
    ds.packed.encoding = {"dtype": "i2", "scale_factor": np.float32(0.01), "_FillValue": np.int16(-999)}
    ds.temperature.encoding = {"dtype": "f4", "_FillValue": np.float32(1e20)}
    return ds


def write(path: Path, kind: str = "NETCDF3_CLASSIC") -> Path:
    weather().to_netcdf(path, engine="scipy", format=kind, unlimited_dims=["time"])
    assert path.read_bytes().startswith(KINDS[kind])
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_is_the_same_dataset_in_the_group(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", kind)
    expected = xr.load_dataset(path, engine="scipy")
    b2array.convert(path, tmp_path / "a.b2d", verify=True)
    actual = xr.load_dataset(tmp_path / "a.b2d", engine="b2array")
    xr.testing.assert_identical(actual, expected)
    numbers = {name: dtype for name, dtype in expected.dtypes.items() if dtype.kind not in "OTU"}
    assert {name: actual.dtypes[name] for name in numbers} == numbers
    with b2array.open_group(tmp_path / "a.b2d") as group:
        packed = group["packed"]
        assert (packed.dtype, packed.dims, packed.fill_value) == (np.dtype("<i2"), ("lat", "lon"), -999)
        assert np.asarray(packed.attrs["scale_factor"]).dtype == np.float32
        assert group["count"].attrs["flag_values"].dtype == np.dtype("<i2")
        assert dict(group.attrs)["title"] == "weather"
    b2array.convert(tmp_path / "a.b2d", tmp_path / "back.nc", verify=True)
    xr.testing.assert_identical(xr.load_dataset(tmp_path / "back.nc", engine="h5netcdf"), expected)
    with importlib.import_module("h5py").File(tmp_path / "back.nc") as file:
        assert file["temperature"].maxshape == (None, 2, 4)


def test_files_of_the_library_of_netcdf_are_read(tmp_path: Path) -> None:
    netcdf = pytest.importorskip("netCDF4")
    for kind in ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET"):
        path = tmp_path / f"{kind}.nc"
        with netcdf.Dataset(path, "w", format=kind) as file:
            file.createDimension("t", None)
            file.createDimension("x", 5)
            data = file.createVariable("data", "i2", ("t", "x"))
            data[:3] = np.arange(15).reshape(3, 5)
            file.createVariable("other", "f8", ("t",))[:3] = [1.5, 2.5, np.nan]
            file.note = "ä"
        b2array.convert(path, tmp_path / f"{kind}.b2d")
        with b2array.open_group(tmp_path / f"{kind}.b2d") as group:
            np.testing.assert_array_equal(group["data"][...], np.arange(15).reshape(3, 5))
            np.testing.assert_array_equal(group["other"][...], [1.5, 2.5, np.nan])
            assert (group["data"].dims, group.attrs["note"]) == (("t", "x"), "ä")


@pytest.mark.filterwarnings("ignore:.*a .npy file has no place for")
def test_one_variable_and_other_endings_are_found(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc")
    expected = xr.load_dataset(path, engine="scipy", mask_and_scale=False).packed.values
    b2array.convert(f"{path}/packed", tmp_path / "p.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy"), expected)
    other = path.rename(tmp_path / "a.data")
    assert find(other, None, None, exists=True)[0].name == "netcdf3"
    b2array.convert(f"{other}#packed", tmp_path / "q.npy", src_format="netcdf3")
    np.testing.assert_array_equal(np.load(tmp_path / "q.npy"), expected)
    with pytest.raises(FileNotFoundError, match="holds no variable 'nothing'"):
        b2array.convert(f"{other}#nothing", tmp_path / "r.npy", src_format="netcdf3")


def test_remote_files_are_read(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    content = write(tmp_path / "a.nc").read_bytes()
    fsspec.filesystem("memory").pipe("/netcdf3/a.nc", content)
    b2array.convert("memory://netcdf3/a.nc", tmp_path / "a.b2d")
    xr.testing.assert_identical(
        xr.load_dataset(tmp_path / "a.b2d", engine="b2array"), xr.load_dataset(tmp_path / "a.nc", engine="scipy")
    )


def test_what_scipy_cannot_read_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    netcdf = pytest.importorskip("netCDF4")
    with netcdf.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as file:
        file.createDimension("x", 5)
        file.createVariable("data", "i8", ("x",))[:] = range(5)
    with pytest.raises(UnsupportedError, match=r"a\.nc has 64-bit sizes \(CDF-5\), which scipy cannot read: nccopy"):
        b2array.convert(path, tmp_path / "a.b2d")
    content = bytearray(write(path).read_bytes())
    content[4:8] = b"\xff" * 4
    path.write_bytes(content)
    with pytest.raises(UnsupportedError, match="does not tell its number of records"):
        b2array.convert(path, tmp_path / "b.b2d")
    with pytest.raises(UnsupportedError, match="netCDF-3 can only be read"):
        b2array.convert(tmp_path / "x.npy", tmp_path / "c.nc", dst_format="netcdf3", src_format=_npy(tmp_path))


def _npy(directory: Path) -> str:
    np.save(directory / "x.npy", np.arange(3))
    return "npy"


def test_without_scipy_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.nc")

    def missing(name: str, *_: object) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UnsupportedError, match=r"netCDF-3 needs the package scipy: pip install 'b2array\[netcdf3\]'"):
        b2array.convert(path, tmp_path / "a.b2d")


@pytest.mark.parametrize("cut", [4, 8, 30, 200, -1, -30])
def test_a_file_that_is_cut_off_is_refused(cut: int, tmp_path: Path) -> None:
    content = write(tmp_path / "a.nc").read_bytes()
    (tmp_path / "cut.nc").write_bytes(content[:cut])
    with pytest.raises(FormatError, match=r"cut\.nc: expected a netCDF-3 file, found"):
        b2array.convert(tmp_path / "cut.nc", tmp_path / "a.b2d")


def test_a_size_that_no_file_has_gets_no_memory(tmp_path: Path) -> None:
    content = write(tmp_path / "a.nc").read_bytes()
    at = content.index(b"lon\x00") + 4
    (tmp_path / "large.nc").write_bytes(content[:at] + struct.pack(">i", 2**31 - 1) + content[at + 4 :])
    with pytest.raises(FormatError, match=r"large\.nc: expected a netCDF-3 file, found"):
        b2array.convert(tmp_path / "large.nc", tmp_path / "a.b2d")
