"""xarray's backend, and datasets written as groups."""

from __future__ import annotations

import inspect
import itertools
import os
import pickle
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from servers import RangeServer
from xarray.backends import plugins

import b2array
from b2array.array import dask as graphs
from b2array.errors import ConflictError, FormatError
from b2array.store import cloud, remote, shared_memory
from b2array.store.endings import JOURNAL
from b2array.store.local_store import LocalStore
from b2array.xarray_io import Backend, loading, to_b2array

ENGINE = Backend


@pytest.fixture(autouse=True)
def _threads():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


def weather(start: str = "2026-01-01", periods: int = 6) -> xr.Dataset:
    times = pd.date_range(start, periods=periods, freq="6h")
    rng = np.random.default_rng(periods)
    return xr.Dataset(
        {
            "temperature": (
                ("time", "y", "x"),
                rng.normal(size=(periods, 4, 5)).astype("f4"),
                {"units": "K", "valid_range": np.array([180.0, 340.0])},
            ),
            "rain": (("time", "y", "x"), rng.integers(0, 9, (periods, 4, 5)), {"long_name": "Regen, täglich"}),
            "mask": (("y", "x"), rng.integers(0, 2, (4, 5)).astype(bool)),
            "height": ((), 2.0, {"positive": "up"}),
        },
        coords={
            "time": times,
            "x": ("x", np.arange(5.0), {"axis": "X"}),
            "y": np.linspace(-1, 1, 4),
            "station": ("x", ["a", "bb", "ccc", "d", "e"]),
            "length": ("time", pd.to_timedelta(np.arange(periods), unit="h")),
        },
        attrs={"title": "weather", "levels": [1, 2, 3], "version": 3},
    )


def reopened(url: object, **options: object) -> xr.Dataset:
    return xr.open_dataset(url, engine=ENGINE, decode_timedelta=True, **options)


def test_a_dataset_makes_the_round_trip(tmp_path: Path) -> None:
    ds = weather()
    to_b2array(ds, tmp_path / "w.b2d")
    back = reopened(tmp_path / "w.b2d")
    xr.testing.assert_identical(back, ds)
    xr.testing.assert_identical(back.load(), ds)
    assert {name: var.dtype.kind for name, var in back.variables.items()} == {
        name: var.dtype.kind for name, var in ds.variables.items()
    }


@pytest.mark.parametrize(
    "values",
    [
        np.array(["2000-01-01", "NaT"], "M8[ns]"),
        np.array(["2000-01-01T00:00:00.123456", "1900-01-01"], "M8[us]"),
        np.array([5, "NaT"], "m8[s]"),
        np.arange(3) * 1j,
        np.array([1, np.nan, np.inf], "f4"),
        np.array([2**64 - 1], "u8"),
        np.array([True, False]),
        np.array(["a", "bcd", ""], dtype=object),
        np.array(["ä", "☃☃"]),
        np.array([b"a", b"bcd"]),
        np.zeros(0),
    ],
    ids=lambda values: str(values.dtype),
)
@pytest.mark.filterwarnings("ignore:variable .* has data in the form of a dask array with dtype=object")
@pytest.mark.parametrize("chunked", [False, True])
def test_values_of_every_kind_make_the_round_trip(tmp_path: Path, values: np.ndarray, chunked: bool) -> None:
    ds = xr.Dataset({"a name": ("x", values, {"µ": "☃"})}, {"also": ("x", values)})
    if len(values):
        ds = ds.assign(scalar=((), values[0]))
    to_b2array(ds.chunk(x=1) if chunked and len(values) else ds, tmp_path / "w.b2d")
    xr.testing.assert_identical(reopened(tmp_path / "w.b2d").load(), ds)


def test_empty_datasets_and_coordinates_of_two_dimensions_make_the_round_trip(tmp_path: Path) -> None:
    grid = (("y", "x"), np.arange(6.0).reshape(2, 3))
    for n, ds in enumerate(
        (
            xr.Dataset(attrs={"a": 1}),
            xr.Dataset({"a": grid, "n": 3}, {"lat": grid, "at": np.datetime64("2000-01-01", "ns")}),
        )
    ):
        to_b2array(ds, tmp_path / f"{n}.b2d")
        xr.testing.assert_identical(reopened(tmp_path / f"{n}.b2d").load(), ds)


def test_preferred_chunks_are_those_of_the_file_and_can_be_grouped(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("x", "y"), np.zeros((100, 100)))})
    to_b2array(ds, tmp_path / "w.b2d", encoding={"a": {"chunks": (30, 50)}})
    assert reopened(tmp_path / "w.b2d", chunks={}).a.chunks == ((30, 30, 30, 10), (50, 50))
    assert reopened(tmp_path / "w.b2d", chunks={"x": 60}).a.chunks == ((60, 40), (50, 50))
    assert reopened(tmp_path / "w.b2d", chunks="auto").a.chunks == ((100,), (100,))


def test_decoding_can_be_turned_off_and_files_be_joined(tmp_path: Path) -> None:
    for n in range(2):
        ds = xr.Dataset({"a": ("time", np.arange(5.0))}, {"time": pd.date_range(f"2000-01-{5 * n + 1:02}", periods=5)})
        coding = {
            "a": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -(2**15)},
            "time": {"units": "hours since 1990-01-01"},
        }
        to_b2array(ds, tmp_path / f"{n}.b2d", encoding=coding)
    raw = reopened(tmp_path / "0.b2d", decode_times=False, mask_and_scale=False)
    assert (raw.a.dtype, raw.a.values.tolist()) == ("i2", [0, 2, 4, 6, 8])
    assert raw.time.attrs["units"] == "hours since 1990-01-01"
    assert "a" not in reopened(tmp_path / "0.b2d", drop_variables="a")
    joined = xr.open_mfdataset([tmp_path / "0.b2d", tmp_path / "1.b2d"], engine=ENGINE)
    assert joined.a.values.tolist() == [0, 1, 2, 3, 4] * 2
    assert joined.time.values[-1] == np.datetime64("2000-01-10")


def test_what_was_read_can_be_written_again(tmp_path: Path) -> None:
    ds = weather()
    ds.time.encoding |= {"units": "hours since 2000-01-01", "calendar": "proleptic_gregorian", "dtype": "i4"}
    ds.temperature.encoding |= {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.0, "_FillValue": -999}
    to_b2array(ds, tmp_path / "a.b2d", encoding={"rain": {"chunks": (2, 4, 5), "cparams": b2array.CParams("lz4")}})
    first = reopened(tmp_path / "a.b2d")
    assert b2array.open_group(tmp_path / "a.b2d")["temperature"].dtype == "i2"
    assert b2array.open_group(tmp_path / "a.b2d")["rain"].cparams.codec == "lz4"
    assert first.time.encoding["units"] == "hours since 2000-01-01"
    assert first.rain.encoding["preferred_chunks"] == {"time": 2, "y": 4, "x": 5}
    to_b2array(first, tmp_path / "b.b2d")
    xr.testing.assert_identical(reopened(tmp_path / "b.b2d"), first)
    assert b2array.open_group(tmp_path / "b.b2d")["rain"].chunks == (2, 4, 5)
    to_b2array(first.isel(time=[3]), tmp_path / "c.b2d")
    xr.testing.assert_identical(reopened(tmp_path / "c.b2d"), first.isel(time=[3]))


@pytest.mark.slow
def test_dask_variables_are_written_in_parallel_and_read_lazily(tmp_path: Path) -> None:
    ds = weather()
    to_b2array(ds.chunk(time=2, x=5), tmp_path / "w.b2d")
    back = reopened(tmp_path / "w.b2d", chunks={})
    assert back.temperature.chunks is not None
    assert b2array.open_group(tmp_path / "w.b2d")["temperature"].chunks == (2, 4, 5)
    xr.testing.assert_identical(back.compute(), ds)
    with dask.config.set(scheduler="processes", num_workers=1):
        assert float(back.temperature.sum()) == pytest.approx(float(ds.temperature.sum()))


@pytest.mark.parametrize(
    "key",
    [
        {"x": 2},
        {"x": slice(None, None, -2), "time": slice(1, 4)},
        {"x": [4, 0, -1], "time": [1, 1]},
        {"x": xr.DataArray([0, 3, -1], dims="p"), "y": xr.DataArray([1, 1, -4], dims="p")},
        {"x": xr.DataArray([[0, 3], [1, 1]], dims=("p", "q")), "time": 3},
        {"time": xr.DataArray([5, 0], dims="p"), "x": xr.DataArray([2, 1], dims="p"), "y": slice(1, 3)},
        {"time": []},
        {"time": np.array([True, False] * 3)},
    ],
)
def test_every_kind_of_indexing_gives_what_memory_gives(tmp_path: Path, key: dict[str, object]) -> None:
    ds = weather()
    to_b2array(ds, tmp_path / "w.b2d")
    back = reopened(tmp_path / "w.b2d")
    xr.testing.assert_identical(back.isel(key).load(), ds.isel(key))
    xr.testing.assert_identical(back.isel(x=slice(1, 5)).isel(x=[0, 2]).load(), ds.isel(x=slice(1, 5)).isel(x=[0, 2]))


def test_opening_reads_no_data_and_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_b2array(weather(), tmp_path / "w.b2d")
    keys = []
    original = b2array.NDArray.__getitem__

    def getitem(self: b2array.NDArray, key: object) -> object:
        keys.append((self.url, key))
        return original(self, key)

    monkeypatch.setattr(b2array.NDArray, "__getitem__", getitem)
    back = reopened(tmp_path / "w.b2d")
    assert not [key for url, key in keys if "temperature" in url]
    copy = pickle.loads(pickle.dumps(back))
    assert not [key for url, key in keys if "temperature" in url]
    xr.testing.assert_identical(copy, weather())


def published(http: RangeServer, path: Path) -> str:
    """Put a group on a server; return its URL."""
    b2array.open_group(path, "r+").consolidate()
    for file in path.rglob("*"):
        if file.is_file() and file.suffix != ".b2lock":
            http.objects[f"{path.name}/{file.relative_to(path).as_posix()}"] = file.read_bytes()
    return http.url_of(path.name)


def many(number: int = 12) -> xr.Dataset:
    """Return a dataset whose variables are too large to be read with their indexes, in one request."""
    rng = np.random.default_rng(number)
    variables = {f"v{n}": (("time", "y", "x"), rng.normal(size=(6, 20, 200)).astype("f4")) for n in range(number)}
    return xr.Dataset(variables, {"time": pd.date_range("2026-01-01", periods=6, freq="6h"), "x": np.arange(200.0)})


def packed(ds: xr.Dataset) -> dict[str, dict[str, object]]:
    """Return encodings so that xarray has to decode each variable."""
    return {name: {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -(2**15)} for name in ds.data_vars}


def test_a_dataset_is_opened_in_two_waves_of_requests(http: RangeServer, tmp_path: Path) -> None:
    ds = many().assign_coords(y=np.arange(20), start=("time", pd.date_range("2025-01-01", periods=6)))
    to_b2array(ds, tmp_path / "w.b2d")
    url = published(http, tmp_path / "w.b2d")
    opened = []

    def open_dataset() -> None:
        http.requests.clear()
        http.depth = 0
        opened.append(xr.open_dataset(url, engine=ENGINE, drop_variables="y"))

    # The group is read in the first wave, and the coordinates in the second one, with all their items.
    assert http.waves_of(open_dataset) == 2
    members = {path.rpartition(".b2nd")[0].rpartition("/")[2] for _, path, _ in http.requests if ".b2nd" in path}
    assert members == {"time", "x", "start"}
    http.requests.clear()
    xr.testing.assert_identical(opened[-1].coords.to_dataset().load(), ds.drop_vars("y").coords.to_dataset())
    assert not http.requests


def test_a_coordinate_that_cannot_be_read_fails_only_if_xarray_reads_it(tmp_path: Path, http: RangeServer) -> None:
    to_b2array(many(2), tmp_path / "w.b2d")
    url = published(http, tmp_path / "w.b2d")
    http.statuses["w.b2d/x.b2nd"] = 500
    with pytest.raises(OSError, match=r"x\.b2nd"):
        xr.open_dataset(url, engine=ENGINE)
    assert xr.open_dataset(url, engine=ENGINE, create_default_indexes=False).sizes["x"] == 200


@pytest.mark.parametrize("call", [xr.Dataset.load, xr.Dataset.compute, xr.Dataset.copy])
def test_a_dataset_is_loaded_in_two_waves_of_requests(http: RangeServer, tmp_path: Path, call: object) -> None:
    ds = many()
    to_b2array(ds, tmp_path / "w.b2d", encoding=packed(ds))
    url = published(http, tmp_path / "w.b2d")

    def load() -> xr.Dataset:
        back = xr.open_dataset(url, engine=ENGINE)
        if call is xr.Dataset.copy:
            back.v3.load()
        http.requests.clear()
        http.depth = 0
        return call(back).load()

    with b2array.config.using(cache_bytes=0):
        # Members are opened in the first wave, and read in the second one.
        assert http.waves_of(load) == 2
        left = len(ds.data_vars) - (call is xr.Dataset.copy)
        assert len(http.requests) == (3 + 1) * left
        xr.testing.assert_identical(load(), xr.open_dataset(tmp_path / "w.b2d", engine=ENGINE))


def test_a_dataset_of_members_that_are_open_is_loaded_in_one_wave_of_requests(
    http: RangeServer, tmp_path: Path
) -> None:
    ds = many()
    to_b2array(ds, tmp_path / "w.b2d")
    back = xr.open_dataset(published(http, tmp_path / "w.b2d"), engine=ENGINE)
    first, second = back.isel(y=slice(0, 10)), back.isel(y=slice(10, 20))
    first.load()

    def load() -> xr.Dataset:
        http.requests.clear()
        http.depth = 0
        return second.compute()

    with b2array.config.using(cache_bytes=0):
        assert http.waves_of(load) == 1
        assert len(http.requests) == len(ds.data_vars)  # no block is asked for twice
        xr.testing.assert_identical(load(), ds.isel(y=slice(10, 20)))


def test_a_tree_is_loaded_in_two_waves_of_requests(http: RangeServer, tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/": many(3), "/inner": many(4), "/inner/most": many(2)})
    to_b2array(tree, tmp_path / "t.b2d")
    url = published(http, tmp_path / "t.b2d")

    def load() -> xr.DataTree:
        back = xr.open_datatree(url, engine=ENGINE)
        http.requests.clear()
        http.depth = 0
        return back.load()

    with b2array.config.using(cache_bytes=0):
        assert http.waves_of(load) == 2
        xr.testing.assert_identical(load(), tree)


def test_selections_of_a_dataset_are_loaded_together(http: RangeServer, tmp_path: Path) -> None:
    ds = many()
    to_b2array(ds, tmp_path / "w.b2d")
    url = published(http, tmp_path / "w.b2d")

    def load() -> xr.Dataset:
        back = xr.open_dataset(url, engine=ENGINE).isel(time=slice(1, 4), y=3)
        # One variable is transposed, one is taken at points, and one is in memory.
        back = back.assign(v1=back.v1.T, v2=back.v2.isel(x=[3, 1]).drop_vars("x").rename(x="few"), v3=ds.v3[0, :2, 0])
        http.requests.clear()
        http.depth = 0
        return back.load()

    with b2array.config.using(cache_bytes=0):
        # Two are read alone.
        assert http.waves_of(load) <= 4
        part = ds.isel(time=slice(1, 4), y=3)
        loaded = load()
    for name in set(ds.data_vars) - {"v1", "v2", "v3"}:
        xr.testing.assert_identical(loaded[name], part[name])
    assert np.array_equal(loaded.v1, part.v1.T)
    assert np.array_equal(loaded.v2, part.v2[:, [3, 1]])


def test_one_variable_of_a_dataset_is_loaded_alone(http: RangeServer, tmp_path: Path) -> None:
    ds = many()
    to_b2array(ds, tmp_path / "w.b2d")
    back = xr.open_dataset(published(http, tmp_path / "w.b2d"), engine=ENGINE)
    with b2array.config.using(cache_bytes=0):
        http.requests.clear()
        assert np.array_equal(back.v5.values, ds.v5)
        assert not [path for _, path, _ in http.requests if "v5" not in path]


def test_datasets_are_loaded_in_parts_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = many()
    to_b2array(ds, tmp_path / "w.b2d")
    asked = []

    def read_many(selections: Iterable[tuple[b2array.NDArray, object]]) -> list[object]:
        asked.append(list(selections))
        return b2array.read_many(asked[-1])

    monkeypatch.setattr(loading, "read_many", read_many)
    monkeypatch.setattr(loading, "MOST_NBYTES", 4 * ds.v0.nbytes)
    xr.testing.assert_identical(reopened(tmp_path / "w.b2d").load(), ds)
    assert [len(each) for each in asked] == [4, 4, 4]


def test_what_fails_while_a_dataset_is_loaded_leaves_it_usable(http: RangeServer, tmp_path: Path) -> None:
    ds = many()
    to_b2array(ds, tmp_path / "w.b2d")
    url = published(http, tmp_path / "w.b2d")
    back = xr.open_dataset(url, engine=ENGINE)
    (lost,) = [name for name in http.objects if "v5" in name and name.endswith(".b2nd")] or [None]
    content = http.objects.pop(lost)
    with b2array.config.using(cache_bytes=0), pytest.raises(FormatError, match="member v5"):
        back.load()
    http.objects[lost] = content
    xr.testing.assert_identical(back.load(), ds)


def test_a_single_array_is_a_variable(tmp_path: Path) -> None:
    values = np.arange(12.0).reshape(3, 4)
    b2array.asarray(values, url=tmp_path / "level.b2nd", dims=("time", None), attrs={"units": "m"})
    b2array.asarray(values, url=tmp_path / "sparse", layout="sparse")
    b2array.asarray(values, url=tmp_path / "old.b2frame")
    ds = reopened(tmp_path / "level.b2nd")
    assert ds.level.dims == ("time", "level_1")
    assert ds.level.attrs == {"units": "m"}
    assert np.array_equal(ds.level, values)
    assert np.array_equal(reopened(tmp_path / "sparse").sparse, values)
    assert np.array_equal(reopened(tmp_path / "old.b2frame").old, values)


def test_what_stock_wrote_is_opened(tmp_path: Path) -> None:
    blosc2 = pytest.importorskip("blosc2")
    values = np.arange(12.0).reshape(3, 4)
    array = blosc2.asarray(values, urlpath=str(tmp_path / "a.b2nd"))
    array.schunk.vlmeta["units"] = "m"
    found = reopened(tmp_path / "a.b2nd").a
    assert np.array_equal(found, values)
    assert found.attrs == {"units": "m"}


def test_guessing_goes_by_name_and_by_content(tmp_path: Path) -> None:
    guess = Backend().guess_can_open
    b2array.asarray(np.arange(3), url=tmp_path / "a.b2frame")
    b2array.asarray(np.arange(3), url=tmp_path / "sparse", layout="sparse")
    b2array.create_schunk(tmp_path / "s.b2f", chunksize=80).append_data(b"x" * 80)
    (tmp_path / "empty").mkdir()
    assert [guess(name) for name in ("s3://bucket/a.b2nd", "a.B2D", "c.b2z", "d/e.b2d/")] == [True] * 4
    assert [guess(tmp_path / name) for name in ("a.b2frame", "sparse")] == [True] * 2
    assert [guess(tmp_path / name) for name in ("s.b2f", "empty", "none.b2frame", "a.nc", "a.zarr")] == [False] * 5
    assert not guess(b"CDF")


def test_the_entry_points_are_declared() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["xarray.backends"] == {"b2array": "b2array.xarray_io:Backend"}
    assert project["entry-points"]["dask.sizeof"] == {"b2array": "b2array.array.dask:register_sizeof"}


_BY_NAME = """
import sys, numpy as np, xarray as xr
folder, names = sys.argv[1], sys.argv[2:]
assert type(xr.backends.list_engines()["b2array"]).__name__ == "Backend"
for name in names:
    for options in ({"engine": "b2array"}, {}, {"chunks": {}}):
        ds = xr.open_dataset(f"{folder}/{name}", **options)
        assert next(iter(ds.data_vars.values())).values.tolist() == [0, 1, 2], name
        ds.close()
assert xr.open_dataarray(f"{folder}/a.b2nd").values.tolist() == [0, 1, 2]
tree = xr.open_datatree(f"{folder}/tree.b2d")
assert tree["inner/level"].values.tolist() == [0, 1, 2]
for name in ("chunks.b2f", "empty", "none.txt"):
    try:
        xr.open_dataset(f"{folder}/{name}")
    except (ValueError, FileNotFoundError):
        continue
    raise AssertionError(name)
import b2array
from dask.sizeof import sizeof
assert sizeof(b2array.zeros(10**6, chunks=10)) > 8 * 10**5
"""


def test_xarray_and_dask_find_what_the_package_declares(tmp_path: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    if not any(each.value == "b2array.xarray_io:Backend" for each in entry_points(group="xarray.backends")):
        described = tmp_path / "site" / "declared-1.dist-info"
        described.mkdir(parents=True)
        (described / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 1\n")
        groups = project["entry-points"].items()
        lines = [
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in each.items()) for group, each in groups
        ]
        (described / "entry_points.txt").write_text("\n".join(lines))
    values = np.arange(3)
    for name in ("a.b2nd", "a.b2frame", "a.b2f"):
        b2array.asarray(values, url=tmp_path / name)
    b2array.asarray(values, url=tmp_path / "sparse", layout="sparse")
    for group, member in (("a.b2d", "level"), ("tree.b2d", "inner/level")):
        b2array.open_group(tmp_path / group, "w")[member] = values
    with zipfile.ZipFile(tmp_path / "a.b2z", "w") as archive:
        for name in ("embed.b2e", "level.b2nd"):
            archive.write(tmp_path / "a.b2d" / name, name)
    b2array.create_schunk(tmp_path / "chunks.b2f", chunksize=80).append_data(b"x" * 80)
    (tmp_path / "empty").mkdir()
    names = ["a.b2nd", "a.b2frame", "a.b2f", "sparse", "a.b2d", "a.b2z"]
    path = os.pathsep.join([str(tmp_path / "site"), str(Path(b2array.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-P", "-c", _BY_NAME, str(tmp_path), *names],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_members_are_opened_by_the_paths_that_b2array_opens(tmp_path: Path) -> None:
    home = b2array.open_group(tmp_path / "run.b2d", "w")
    home.create("air/t", data=np.arange(3), dims=("x",))
    b2array.convert(tmp_path / "run.b2d", tmp_path / "run.b2z")
    for url in ("run.b2d/air/t", "run.b2d/air/t.b2nd", "run.b2d/air", "run.b2z/air/t", "run.b2z#air/t", "run.b2z#air"):
        with xr.open_dataset(f"{tmp_path}/{url}", engine=Backend) as ds:
            assert ds.t.values.tolist() == [0, 1, 2]
            assert [*ds.variables] == ["t"]
    assert xr.open_datatree(f"{tmp_path}/run.b2z", engine=Backend)["air/t"].sum() == 3
    assert xr.open_dataset(f"{tmp_path}/run.b2z", engine=Backend, group="air").t.sum() == 3
    for url, name in (("run.b2d", "air/t"), ("run.b2d/air/t", "x")):
        with pytest.raises(TypeError, match=f"{name!r} in .* is not a group"):
            xr.open_dataset(f"{tmp_path}/{url}", engine=Backend, group=name)


def test_nothing_to_open_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        reopened(tmp_path / "none.b2d")
    with pytest.raises(FileNotFoundError):
        reopened(tmp_path / "none.b2nd")
    (tmp_path / "bad.b2nd").write_bytes(b"nothing")
    with pytest.raises(FormatError):
        reopened(tmp_path / "bad.b2nd")


# Trees.


def test_a_tree_makes_the_round_trip(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset(attrs={"title": "all"}),
            "/air": weather(),
            "/sea/deep": xr.Dataset({"salt": ("z", np.arange(3.0))}, attrs={"from": "ship"}),
        }
    )
    to_b2array(tree, tmp_path / "t.b2d")
    back = xr.open_datatree(tmp_path / "t.b2d", engine=ENGINE, decode_timedelta=True)
    xr.testing.assert_identical(back, tree)
    xr.testing.assert_identical(reopened(tmp_path / "t.b2d", group="/sea/deep"), tree["/sea/deep"].to_dataset())


def test_a_group_in_a_group_is_written(tmp_path: Path) -> None:
    to_b2array(weather(), tmp_path / "t.b2d", group="a/b")
    to_b2array(weather(periods=2), tmp_path / "t.b2d", mode="a", group="c")
    xr.testing.assert_identical(reopened(tmp_path / "t.b2d", group="a/b"), weather())
    xr.testing.assert_identical(reopened(tmp_path / "t.b2d", group="c"), weather(periods=2))
    with pytest.raises(FileExistsError):
        to_b2array(weather(), tmp_path / "t.b2d", mode="w-", group="c")
    with pytest.raises(FileExistsError):
        to_b2array(weather(), tmp_path / "t.b2d")
    changed = weather(periods=2).assign(height=3.0)
    to_b2array(changed, tmp_path / "t.b2d", mode="a", group="c")
    xr.testing.assert_equal(reopened(tmp_path / "t.b2d", group="c"), changed)
    to_b2array(weather(periods=3), tmp_path / "t.b2d", mode="w")
    xr.testing.assert_identical(reopened(tmp_path / "t.b2d"), weather(periods=3))


# Replacing.


WRITES = ("create", "replace", "move_in", "append", "patch", "delete")


@contextmanager
def watched_writes(
    monkeypatch: pytest.MonkeyPatch, notice: Callable[[], None], *, before: bool = False
) -> Iterator[None]:
    """Call something after everything that changes a store, and perhaps before."""
    mutex = threading.RLock()
    depth = 0

    def wrap(original: Callable[..., object]) -> Callable[..., object]:
        def method(*args: object, **options: object) -> object:
            nonlocal depth
            with mutex:
                if depth:  # part of what another one does
                    return original(*args, **options)
                depth += 1
                try:
                    if before:
                        notice()
                    result = original(*args, **options)
                    notice()
                finally:
                    depth -= 1
                return result

        return method

    with monkeypatch.context() as patched:
        for kind in (LocalStore, remote.FsspecStore, shared_memory.SharedMemoryStore, cloud.CloudStore):
            for name in set(WRITES) & vars(kind).keys():
                patched.setattr(kind, name, wrap(getattr(kind, name)))
        yield


def replaced() -> tuple[xr.Dataset, xr.Dataset]:
    old = weather()[["rain", "mask"]].drop_vars(["station", "length", "y", "x"]).assign_attrs(version=1)
    new = weather("2027-01-01", periods=8)[["rain"]].drop_vars(["station", "length", "y", "x"]).assign_attrs(version=2)
    return old, new.assign(wind=("time", np.arange(8.0)))


def is_one_of(found: xr.Dataset, *expected: xr.Dataset) -> int:
    return [found.identical(each) for each in expected].index(True)


@pytest.fixture(params=["contiguous", "sparse", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    if request.param == "memory":
        return {"url": f"memory://replaced-{tmp_path.name}.b2d"}
    if request.param == "s3":
        options = request.getfixturevalue("s3_options")
        return {"url": f"s3://{request.getfixturevalue('bucket')}/w.b2d", "storage_options": options}
    return {"url": tmp_path / "w.b2d", "layout": request.param}


def read_from(place: dict[str, object]) -> xr.Dataset:
    return reopened(place["url"], **{key: place[key] for key in place if key == "storage_options"}).load()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("one_in", [pytest.param(12, id="short"), pytest.param(1, id="long", marks=pytest.mark.slow)])
def test_readers_see_the_old_dataset_or_the_new_one(
    place: dict[str, object], monkeypatch: pytest.MonkeyPatch, chunked: bool, one_in: int
) -> None:
    old, new = replaced()
    to_b2array(old, **place)
    states: list[int] = []
    writes = itertools.count()

    def look() -> None:
        if next(writes) % one_in == 0:
            states.append(is_one_of(read_from(place), old, new))

    with watched_writes(monkeypatch, look):
        to_b2array(new.chunk(time=4) if chunked else new, **place, mode="w", scheduler="sync")
    states.append(is_one_of(read_from(place), old, new))
    assert states[0] == 0
    assert states[-1] == 1
    assert states == sorted(states)
    # And once more, from a state that was itself a replacement, to members that were there before.
    to_b2array(old, **place, mode="w")
    xr.testing.assert_identical(read_from(place), old)


def test_a_handle_from_before_shows_no_mixture(place: dict[str, object]) -> None:
    old, new = replaced()
    to_b2array(old, **place)
    options = {key: place[key] for key in place if key == "storage_options"}
    lazy = reopened(place["url"], **options)
    group = b2array.open_group(place["url"], **options)
    assert "mask" in group
    to_b2array(new, **place, mode="w")
    for name in ("rain", "mask", "time"):
        if "://" in str(place["url"]):  # the revisions that the handle has listed stay there
            assert group[name].shape == old[name].shape
        else:
            with pytest.raises(ConflictError, match="refresh"):
                group[name]
    with suppress(ConflictError):
        assert np.array_equal(lazy.rain.values, old.rain.values)
    group.refresh()
    assert sorted(group) == sorted(new.variables)
    assert group["rain"].shape == new.rain.shape


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.slow
def test_a_fault_in_mid_write_leaves_the_old_dataset_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    old, new = replaced()
    failures = 0
    for at in itertools.count(1):
        url = tmp_path / f"{at}.b2d"
        to_b2array(old, url, layout=layout)
        moments, raised = itertools.count(1), False

        def fail(at: int = at, moments: Iterator[int] = moments) -> None:
            if next(moments) == at:
                raise OSError("the disk is full")

        with watched_writes(monkeypatch, fail, before=True):
            try:
                to_b2array(new, url, mode="w", layout=layout)
            except OSError:
                raised = True
        assert is_one_of(reopened(url).load(), old, new) == (not raised)
        failures += raised
        to_b2array(new, url, mode="w", layout=layout)
        xr.testing.assert_identical(reopened(url).load(), new)
        if next(moments) <= at:  # it ended before the fault came
            break
    assert failures >= 3


def test_a_task_that_fails_leaves_the_old_dataset(place: dict[str, object]) -> None:
    old, new = replaced()

    def fail(block: np.ndarray) -> np.ndarray:
        raise RuntimeError("out of order")

    to_b2array(old, **place)
    bad = new.assign(rain=new.rain.chunk(time=2).map_blocks(fail, template=new.rain.chunk(time=2)))
    with pytest.raises(RuntimeError, match="out of order"):
        to_b2array(bad, **place, mode="w")
    xr.testing.assert_identical(read_from(place), old)
    to_b2array(new, **place, mode="w")
    xr.testing.assert_identical(read_from(place), new)


def test_a_dataset_can_take_the_place_of_the_one_it_is_computed_from(place: dict[str, object]) -> None:
    ds = weather()[["rain"]].drop_vars(["station", "length", "y"])
    to_b2array(ds, **place)
    options = {key: place[key] for key in place if key == "storage_options"}
    for chunks in (None, {}):
        lazy = reopened(place["url"], chunks=chunks, **options)
        with xr.set_options(keep_attrs=True):
            to_b2array(lazy + 1, **place, mode="w")
    found = read_from(place)
    assert np.array_equal(found.rain, ds.rain + 2)
    assert np.array_equal(found.time, ds.time)


def test_members_of_another_kind_take_the_place_too(tmp_path: Path) -> None:
    old, new = replaced()
    url = tmp_path / "w.b2d"
    to_b2array(old, url)
    for ds, layout in ((new, "sparse"), (old, "contiguous"), (new, "contiguous")):
        to_b2array(ds, url, mode="w", layout=layout)
        xr.testing.assert_identical(reopened(url).load(), ds)
        assert b2array.open_group(url)["rain"].info["layout"] == layout
    blosc2 = pytest.importorskip("blosc2")
    with blosc2.TreeStore(str(url), mode="r") as store:
        assert np.array_equal(store["/rain"][...], new.rain)


def test_a_tree_takes_the_place_of_a_dataset(tmp_path: Path) -> None:
    url = tmp_path / "w.b2d"
    to_b2array(weather(), url)
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"a": 1}), "/rain": weather(periods=2)})
    to_b2array(tree, url, mode="w")
    xr.testing.assert_identical(xr.open_datatree(url, engine=ENGINE, decode_timedelta=True).load(), tree)
    to_b2array(weather(), url, mode="w")
    xr.testing.assert_identical(reopened(url).load(), weather())
    assert not b2array.open_group(url).groups()


def test_dask_variables_are_encoded_by_tasks_when_they_replace_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = weather()[["rain"]].drop_vars(["station", "length"]).chunk(time=2)
    to_b2array(ds, tmp_path / "w.b2d")
    parts = []
    original = graphs.write_part
    monkeypatch.setattr(graphs, "write_part", lambda *args: parts.append(args[1]) or original(*args))
    to_b2array(ds + 1, tmp_path / "w.b2d", mode="w")
    assert len(parts) == 3
    assert np.array_equal(reopened(tmp_path / "w.b2d").rain, ds.rain + 1)
    assert not list(tmp_path.rglob(f"*{JOURNAL}*"))


def test_what_is_no_group_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "w.b2d").mkdir()
    (tmp_path / "w.b2d" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="not a group"):
        to_b2array(weather(), tmp_path / "w.b2d", mode="w")
    assert [path.name for path in (tmp_path / "w.b2d").iterdir()] == ["thesis.txt"]


# Growing.


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
@pytest.mark.parametrize("chunked", [False, True])
def test_appending_gives_the_concatenation(tmp_path: Path, chunked: bool) -> None:
    first, second = weather(), weather("2026-01-02T12:00", periods=5)
    second = second.assign(mask=first.mask)
    to_b2array(first, tmp_path / "w.b2d", encoding={"rain": {"chunks": (4, 4, 5)}})
    to_b2array(second.chunk(time=2) if chunked else second, tmp_path / "w.b2d", append_dim="time")
    expected = xr.concat([first, second], "time", data_vars="minimal")
    xr.testing.assert_identical(reopened(tmp_path / "w.b2d"), expected)


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
@pytest.mark.parametrize("chunked", [False, True])
def test_a_region_is_written(tmp_path: Path, chunked: bool) -> None:
    ds = weather()
    to_b2array(ds, tmp_path / "w.b2d")
    part = (ds[["temperature", "rain"]] + 1).isel(time=slice(1, 4), x=slice(2, 5)).drop_vars(["y"])
    part = part.drop_vars(["station"])
    with xr.set_options(keep_attrs=True):
        to_b2array(
            part.chunk(time=1) if chunked else part, tmp_path / "w.b2d", region={"time": slice(1, 4), "x": slice(2, 5)}
        )
    back = reopened(tmp_path / "w.b2d")
    expected = ds.copy(deep=True)
    for name in ("temperature", "rain"):
        expected[name][1:4, :, 2:5] += 1
    xr.testing.assert_identical(back, expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ds: ds.drop_vars("rain"), "would not grow"),
        (lambda ds: ds.assign(new=("time", np.arange(2))), "no variables"),
        (lambda ds: ds.assign(rain=ds.rain.astype("f8") + 0.5), "cannot hold"),
        (lambda ds: ds.assign(rain=ds.rain.rename(y="z")).drop_vars("y"), "dimension names"),
        (lambda ds: ds.isel(x=slice(0, 2)), "items"),
        (lambda ds: ds.rename(time="when"), "no dimension"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_happens(tmp_path: Path, change: object, words: str) -> None:
    to_b2array(weather(), tmp_path / "w.b2d")
    with pytest.raises(ValueError, match=words):
        to_b2array(change(weather("2026-02-01", periods=2)), tmp_path / "w.b2d", append_dim="time")
    xr.testing.assert_identical(reopened(tmp_path / "w.b2d"), weather())


@pytest.mark.parametrize("part", [slice(4, 8), slice(-9, 2), slice(0, 4, 2)])
def test_regions_outside_are_refused(tmp_path: Path, part: slice) -> None:
    to_b2array(weather(), tmp_path / "w.b2d")
    with pytest.raises(ValueError, match=r"not inside|items along"):
        to_b2array(
            weather(periods=4)[["rain"]].drop_vars(["x", "y", "station"]), tmp_path / "w.b2d", region={"time": part}
        )
    xr.testing.assert_identical(reopened(tmp_path / "w.b2d"), weather())


@pytest.mark.filterwarnings("ignore:Times can't be serialized faithfully")
def test_times_that_do_not_fit_their_units_are_refused(tmp_path: Path) -> None:
    ds = weather()
    ds.time.encoding |= {"units": "hours since 2026-01-01", "dtype": "i8"}
    to_b2array(ds, tmp_path / "w.b2d")
    later = weather("2026-03-01T00:00:01", periods=2)
    with pytest.raises(ValueError, match=r"units|faithfully|cannot hold"):
        to_b2array(later, tmp_path / "w.b2d", append_dim="time")
    assert reopened(tmp_path / "w.b2d").sizes["time"] == 6


def test_readers_never_see_a_variable_without_its_coordinate(tmp_path: Path) -> None:
    url = tmp_path / "w.b2d"
    ds = xr.Dataset({"level": (("time", "x"), np.zeros((1, 3)))}, {"time": [0]})
    to_b2array(ds, url)
    ended = threading.Event()
    seen: list[int] = []
    failures: list[Exception] = []

    def read() -> None:
        try:
            while not ended.is_set():
                found = xr.open_dataset(url, engine=ENGINE)
                n = found.sizes["time"]
                assert found.time.values.tolist() == list(range(n))
                assert found.level.values[:, 0].tolist() == list(range(n))
                seen.append(n)
        except Exception as error:  # noqa: BLE001 - shown by the main thread
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for step in range(1, 9):
            to_b2array(ds.assign_coords(time=[step]) + step, url, append_dim="time")
    finally:
        ended.set()
        reader.join()
    assert failures == []
    assert seen == sorted(seen)
    assert reopened(url).time.values.tolist() == list(range(9))


def test_a_failing_task_leaves_everything_as_it_was(tmp_path: Path) -> None:
    def fail(block: np.ndarray) -> np.ndarray:
        raise RuntimeError("out of order")

    bad = xr.Dataset(
        {"level": (("time", "x"), da.zeros((2, 3), chunks=(1, 3)).map_blocks(fail, dtype="f8", meta=np.empty((0, 0))))},
        {"time": [1, 2]},
    )
    good = xr.Dataset({"level": (("time", "x"), np.zeros((1, 3)))}, {"time": [0]})
    to_b2array(good, tmp_path / "w.b2d")
    with pytest.raises(RuntimeError, match="out of order"):
        to_b2array(bad, tmp_path / "w.b2d", append_dim="time")
    xr.testing.assert_identical(reopened(tmp_path / "w.b2d"), good)
    with pytest.raises(RuntimeError, match="out of order"):
        to_b2array(bad, tmp_path / "new.b2d")
    assert not (tmp_path / "new.b2d").exists()


def test_objects_that_are_no_text_are_refused(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": ("x", np.array(["a", 3, None], dtype=object))})
    with pytest.raises((TypeError, ValueError)):
        to_b2array(ds, tmp_path / "w.b2d")
    with pytest.raises(TypeError, match="must be a string or None, not 3"):
        to_b2array(xr.Dataset({3: ("x", [1])}), tmp_path / "w.b2d")


def test_datasets_on_s3_make_the_round_trip(bucket: str, s3_options: dict[str, object]) -> None:
    url, options = f"s3://{bucket}/w.b2d", {"storage_options": s3_options}
    to_b2array(weather().chunk(time=3), url, **options)
    later = weather("2026-01-02T12:00", periods=5).assign(mask=weather().mask)
    to_b2array(later, url, append_dim="time", **options)
    expected = xr.concat([weather(), later], "time", data_vars="minimal")
    xr.testing.assert_identical(reopened(url, **options), expected)


def test_open_arrays_and_groups_become_those_of_xarray(tmp_path):
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group.create("x", data=[10, 20], dims=["x"])
    group.create("level", data=[[1, -9], [3, 4]], dims=("t", "x"), attrs={"_FillValue": -9, "scale_factor": 0.5})
    group["inner/other"] = [1]
    ds = group.to_xarray()
    assert ds.identical(xr.open_dataset(tmp_path / "g.b2d", engine="b2array"))
    assert ds.identical(xr.open_dataset(group, engine="b2array"))
    assert (list(ds.coords), ds.level.sel(x=10).values.tolist()) == (["x"], [0.5, 1.5])
    assert xr.open_datatree(group, engine="b2array")["inner/other"].values.tolist() == [1]
    level = group["level"].to_xarray(mask_and_scale=False)
    assert (level.name, level.dims, level.values.tolist()) == ("level", ("t", "x"), [[1, -9], [3, 4]])
    assert group["x"].to_xarray().values.tolist() == [10, 20]
    assert group["level"].to_xarray(chunks={}).chunks == ((2,), (2,))
    assert b2array.zeros((2, 3)).to_xarray().shape == (2, 3)


@pytest.mark.parametrize("call", [xr.open_dataset, xr.open_datatree, xr.open_groups])
def test_keywords_of_the_engine_of_zarr_get_a_hint(call):
    xr.Dataset({"x": ("n", [1, 2])}).b2array.to_b2array("memory://engine-keywords.b2d", mode="w")
    with pytest.raises(TypeError, match="engine b2array has no keyword argument 'consolidated': leave it out; group"):
        call("memory://engine-keywords.b2d", engine="b2array", consolidated=False)
    with pytest.raises(TypeError, match=r"no keyword argument 'decode_time'\. Did you mean 'decode_times'\?"):
        call("memory://engine-keywords.b2d", engine="b2array", backend_kwargs={"decode_time": False})


@pytest.mark.parametrize("keyword", ["safe_chunks", "align_chunks"])
def test_keywords_of_to_zarr_get_a_hint(keyword):
    ds = xr.Dataset({"x": ("n", [1, 2])})
    with pytest.raises(TypeError, match=f"'{keyword}': leave it out, because writes to parts of a chunk are merged"):
        ds.b2array.to_b2array("memory://writing-keywords.b2d", **{keyword: False})


def test_the_accessor_names_its_keywords():
    accessor = xr.Dataset().b2array
    given = inspect.signature(accessor.to_b2array).parameters
    assert given.keys() == inspect.signature(to_b2array).parameters.keys() - {"ds"}
    with pytest.raises(TypeError, match="Did you mean 'append_dim'"):
        accessor.to_b2array("memory://accessor-keywords.b2d", apend_dim="x")


@pytest.mark.parametrize(
    "url", ["s3://bucket/x.b2d", "https://host/x.b2nd", "gs://bucket/a/x.b2z#t", "memory://x.b2d/sub"]
)
def test_urls_are_recognised_where_netcdf4_does_not_claim_them_first(url: str) -> None:
    assert Backend().guess_can_open(url)
    if "b2array" not in plugins.list_engines():
        pytest.skip("the package is not installed")
    try:
        with xr.set_options(netcdf_engine_order=("h5netcdf", "scipy")):
            plugins.refresh_engines()
            assert plugins.guess_engine(url) == "b2array"
    finally:
        plugins.refresh_engines()
