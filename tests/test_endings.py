"""The names of new arrays and groups: endings of other formats are refused, and paths are those that people write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import b2array

MAKERS: dict[str, Callable[[Any], Any]] = {
    "create": lambda url: b2array.create(url, 3),
    "save": lambda url: b2array.save(url, [1, 2]),
    "zeros": lambda url: b2array.zeros(3, url=url, overwrite=True),
    "sparse": lambda url: b2array.zeros(3, url=url, layout="sparse"),
    "copy": lambda url: b2array.zeros(3).copy(url),
    "open": lambda url: b2array.open(url, "w", shape=3),
    "schunk": lambda url: b2array.create_schunk(url, chunksize=8),
}


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize("ending", [".npy", ".npz", ".h5", ".hdf5", ".zarr", ".nc", ".NC", ".nc4", ".blp", ".b2z"])
@pytest.mark.parametrize("maker", MAKERS)
def test_arrays_do_not_get_the_endings_of_other_formats(tmp_path: Path, maker: str, ending: str, place: str) -> None:
    url = f"{tmp_path}/q{ending}" if place == "local" else f"memory:/{tmp_path}/q{ending}"
    with pytest.raises(
        ValueError, match=r"q\.\w+: expected an ending such as \.b2nd for an array, found that of an? \w"
    ):
        MAKERS[maker](url)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".npy", ".h5", ".zarr", ".zarr/", ".nc", ".b2z/"])
@pytest.mark.parametrize("mode", ["w", "x", "w-", "a"])
def test_groups_do_not_get_the_endings_of_other_formats(tmp_path: Path, mode: Any, ending: str) -> None:
    with pytest.raises(ValueError, match=r"expected an ending such as \.b2d for a group, found that of an? \w"):
        b2array.open_group(f"{tmp_path}/q{ending}", mode)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", ["w", "w-", "a"])
def test_datasets_do_not_get_the_endings_of_other_formats(tmp_path: Path, mode: Any) -> None:
    xr = pytest.importorskip("xarray")
    xarray_io = pytest.importorskip("b2array.xarray_io")
    with pytest.raises(ValueError, match=r"found that of a netCDF file; .*to_b2array\(ds, 'name\.b2d'\) writes"):
        xarray_io.to_b2array(xr.Dataset({"a": ("x", [1])}), tmp_path / "q.nc", mode=mode)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".nc", ".nc4", ".NC4", ".he5"])
def test_files_of_hdf5_have_several_endings(tmp_path: Path, ending: str) -> None:
    h5py = pytest.importorskip("h5py")
    b2array.zeros((2, 3), "?", url=tmp_path / "q.b2nd", dims=("y", "x"))
    b2array.convert(tmp_path / "q.b2nd", tmp_path / f"q{ending}")
    b2array.convert(tmp_path / f"q{ending}", tmp_path / "back.b2d", verify=True)
    with h5py.File(tmp_path / f"q{ending}") as file:
        # netCDF has no booleans.
        assert file["data"].dtype == ("?" if ending == ".he5" else "i1")
    assert b2array.open_group(tmp_path / "back.b2d")["data"].dtype == "?"


def test_a_group_with_a_foreign_ending_that_is_there_can_be_read_and_changed(tmp_path: Path) -> None:
    b2array.open_group(tmp_path / "q.b2d", "w")["a"] = [1]
    (tmp_path / "q.b2d").rename(tmp_path / "q.zarr")
    b2array.open_group(tmp_path / "q.zarr", "a")["b"] = [2]
    assert [*b2array.open_group(tmp_path / "q.zarr")] == ["a", "b"]
    with pytest.raises(ValueError, match="found that of a Zarr hierarchy"):
        b2array.open_group(tmp_path / "q.zarr", "w")
    assert [*b2array.open_group(tmp_path / "q.zarr")] == ["a", "b"]


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    b2array.save("~/a.b2nd", [1, 2])
    b2array.open_group(Path("~/g.b2d"), "w")["x/y"] = [3]
    b2array.convert("~/a.b2nd", "~/a.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.b2nd", "a.npy", "g.b2d"]
    assert np.load(tmp_path / "a.npy").tolist() == b2array.load(Path("~/a.b2nd")).tolist() == [1, 2]
    assert b2array.open("~/g.b2d/x/y")[...].tolist() == [3]


@pytest.mark.parametrize("url", ["s3:/bucket/a.b2nd", Path("s3://bucket/a.b2nd"), "http:/example.org/a.b2nd"])
def test_a_url_with_one_slash_is_refused(url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (b2array.open, MAKERS["create"], lambda url: b2array.open_group(url, "w")):
        with pytest.raises(ValueError, match=r"a URL begins with \w+://; pathlib makes one slash of two"):
            use(url)
    assert not list(tmp_path.iterdir())
