"""xarray's own tests of backends that write groups, run on b2array in place of zarr.

The classes are those of the installed xarray. Where a test calls ``to_zarr`` and ``open_zarr`` itself, these are
b2array's here, without the keywords that are about zarr's format. What is left out says why it cannot apply.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from xarray.backends import AbstractDataStore, plugins
from xarray.tests import conftest as theirs_to_share
from xarray.tests import create_test_data
from xarray.tests import test_backends as theirs
from xarray.tests import test_backends_datatree as theirs_of_trees

import b2array
from b2array.xarray_io import Backend, to_b2array

pytestmark = [
    pytest.mark.filterwarnings("default", "ignore:The specified chunks separate:UserWarning"),
]

create_test_datatree = theirs_to_share.create_test_datatree
simple_datatree = theirs_to_share.simple_datatree
time_unit = theirs_to_share.time_unit
use_dask = theirs_to_share.use_dask
unaligned_datatree_zarr_factory = theirs_of_trees.unaligned_datatree_zarr_factory

ABOUT_ZARR = {
    "consolidated",
    "zarr_format",
    "write_empty_chunks",
    "safe_chunks",
    "align_chunks",
    "overwrite_encoded_chunks",
    "use_zarr_fill_value_as_mask",
    "mode",
    "create_default_indexes",
}


class InZarrsPlace(Backend):
    """b2array's backend under the name that xarray's tests ask for."""

    def open_dataset(self, filename_or_obj: Any, **options: Any) -> xr.Dataset:
        return super().open_dataset(_ours(filename_or_obj), **_without_zarrs_own(options))

    def open_groups_as_dict(self, filename_or_obj: Any, **options: Any) -> dict[str, xr.Dataset]:
        return super().open_groups_as_dict(_ours(filename_or_obj), **_without_zarrs_own(options))


def _without_zarrs_own(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in ABOUT_ZARR}


def _ours(place: Any) -> Any:
    """Return another name in the place of one that ends like those of other formats, which b2array refuses."""
    named = isinstance(place, str | os.PathLike) and os.fspath(place).endswith((".zarr", ".nc"))
    return f"{os.fspath(place)}.b2d" if named else place


def to_zarr(self: Any, store: Any = None, mode: Any = None, **options: Any) -> Any:
    return to_b2array(self, _ours(store), mode=mode, **_without_zarrs_own(options))


@pytest.fixture(autouse=True)
def _in_zarrs_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (xr.Dataset, xr.DataArray, xr.DataTree):
        monkeypatch.setattr(kind, "to_zarr", to_zarr)
    real = plugins.get_backend
    monkeypatch.setattr(plugins, "get_backend", lambda engine: InZarrsPlace() if engine == "zarr" else real(engine))


@pytest.fixture
def default_zarr_format() -> int:
    """Stand for the format whose dimensions have names, as b2array's have."""
    return 3


@pytest.fixture
def zarr_format() -> int:
    return 3


@pytest.fixture
def tmp_store(tmp_path: Path) -> str:
    return str(tmp_path / "test.b2d")


class Store(AbstractDataStore):
    """What ``dump_to_store`` writes to, and ``decode_cf`` reads."""

    def __init__(self, url: Path) -> None:
        self.url = url

    def store(self, variables: Any, attributes: Any, *_: Any, **__: Any) -> None:
        to_b2array(xr.Dataset(variables, attrs=attributes), self.url, mode="w")

    def load(self) -> Any:
        ds = xr.open_dataset(self.url, engine=Backend, decode_cf=False)
        return ds.variables, ds.attrs


SAFE = "expects refusals where b2array cuts the pieces to fit and writes safely"


def _skipped(reason: str) -> Any:
    def skipped(self: Any) -> None: ...

    return pytest.mark.skip(reason=reason)(skipped)


class TestDatasets(theirs.ZarrBase):
    """Datasets, as zarr's directories are tested."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.places = (tmp_path / f"{n}.b2d" for n in range(100))

    @contextlib.contextmanager
    def create_zarr_target(self) -> Iterator[str]:
        yield str(next(self.places))

    @contextlib.contextmanager
    def create_store(self, cache_members: bool = False) -> Iterator[Store]:
        yield Store(next(self.places))

    def test_load_async(self) -> None:
        asyncio.run(theirs.DatasetIOBase.test_load_async(self))

    # The tests that zarr has its own versions of, as they are for all backends.
    test_roundtrip_boolean_dtype = theirs.DatasetIOBase.test_roundtrip_boolean_dtype
    test_roundtrip_bytes_with_fill_value = theirs.CFEncodedBase.test_roundtrip_bytes_with_fill_value
    test_encoding_kwarg_fixed_width_string = theirs.CFEncodedBase.test_encoding_kwarg_fixed_width_string

    def test_compressor_encoding(self) -> None:
        """The same with b2array's parameters of compression."""
        asked = b2array.CParams("zstd", clevel=3)
        with self.roundtrip(create_test_data(), {"encoding": {"var1": {"cparams": asked}}}) as ds:
            assert ds["var1"].encoding["cparams"] == asked

    def test_check_encoding_is_consistent_after_append(self) -> None:
        """The same with b2array's parameters of compression."""
        ds, later, _ = theirs.create_append_test_data()
        asked = b2array.CParams("lz4", clevel=3)
        url = next(self.places)
        to_b2array(ds, url, encoding={"da": {"cparams": asked}})
        to_b2array(later, url, append_dim="time")
        found = xr.open_dataset(url, engine=Backend)
        assert found["da"].encoding["cparams"] == asked
        xr.testing.assert_identical(found.compute(), xr.concat([ds, later], dim="time"))

    def test_append_with_append_dim_no_overwrite(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same without b2array's look at indexes: the new ones differ from those that are stored."""
        for kind in (xr.Dataset, xr.DataArray):
            monkeypatch.setattr(kind, "to_zarr", partialmethod(to_zarr, check_index="off"))
        super().test_append_with_append_dim_no_overwrite()

    def test_zarr_mode_w_overwrites_encoding(self) -> None:
        """The same with a look at b2array's arrays."""
        data, url = xr.Dataset({"foo": ("x", [1.0, 1.0, 1.0])}), next(self.places)
        to_b2array(data, url, encoding={"foo": {"add_offset": 1}})
        np.testing.assert_equal(b2array.open_group(url)["foo"][...], data.foo.data - 1)
        to_b2array(data, url, encoding={"foo": {"add_offset": 0}}, mode="w")
        np.testing.assert_equal(b2array.open_group(url)["foo"][...], data.foo.data)

    def test_dimension_names(self) -> None:
        """The same with a look at b2array's arrays."""
        expected = create_test_data()
        with self.create_store() as store:
            expected.dump_to_store(store)
            group = b2array.open_group(store.url)
            assert {name: group[name].dims for name in group} == {
                name: v.dims for name, v in expected.variables.items()
            }

    @pytest.mark.parametrize("obj", [xr.Dataset(), xr.DataArray(name="foo")])
    def test_attributes(self, obj: Any) -> None:
        """The same with b2array's words."""
        ds = obj.assign_attrs(good={"key": "value"})
        ds = ds if isinstance(ds, xr.Dataset) else ds.to_dataset()
        with self.roundtrip(ds) as actual:
            xr.testing.assert_identical(ds, actual)
        bad = obj.assign_attrs(bad=xr.DataArray())
        with pytest.raises(TypeError, match="attribute 'bad' that cannot be stored"):
            to_b2array(bad, next(self.places))

    @pytest.mark.parametrize("compute", [False, True])
    def test_write_region(self, compute: bool, use_dask: bool) -> None:
        """The same without the variants of what zarr calls consolidated, and of empty chunks."""
        super().test_write_region(None, compute, use_dask, None)

    # What cannot apply.

    test_hidden_zarr_keys = _skipped("dimensions are no attributes")
    test_roundtrip_boolean_dtype_legacy_int8 = _skipped("makes its file with zarr")
    test_cache_members = _skipped("is about an object of zarr's backend")
    test_read_non_consolidated_warning = _skipped("there is no metadata apart that could lack")
    test_shard_encoding = _skipped("there are no shards")
    test_shard_encoding_with_dask = _skipped("there are no shards")
    test_chunk_encoding_with_dask = _skipped(SAFE)


class TestRegionsFoundByCoordinates(theirs.TestZarrRegionAuto):
    """``region="auto"``."""

    @contextlib.contextmanager
    def create_zarr_target(self) -> Iterator[str]:
        with theirs.create_tmp_file(suffix=".b2d") as url:
            yield url

    def test_zarr_region_index_write(self, tmp_path: Path) -> None:
        """The same with a look at the states of b2array's arrays."""
        part = {"x": slice(2, 4), "y": slice(6, 8)}
        with self.create() as (url, ds):
            for region in (part, "auto"):
                before = {name: array.generation for name, array in b2array.open_group(url).arrays().items()}
                to_b2array(1 + ds.isel(part), url, region=region, mode="r+")
                after = {name: array.generation for name, array in b2array.open_group(url).arrays().items()}
                assert {name for name in before if before[name] != after[name]} <= {"test"}

    test_zarr_region_chunk_partial = _skipped(SAFE)
    test_zarr_append_chunk_partial = _skipped(SAFE)
    test_zarr_region_chunk_partial_offset = _skipped(SAFE)
    test_zarr_safe_chunk_append_dim = _skipped(SAFE)
    test_zarr_safe_chunk_region = _skipped(SAFE)


class TestArrays(theirs.TestDataArrayToZarr):
    """Single arrays."""


# Their class has a mark that repeats all for each of zarr's formats.
_OF_TREES = {name: each for name, each in vars(theirs_of_trees.TestZarrDatatreeIO).items() if name.startswith("test_")}


class TestTrees(type("Copied", (), {"engine": "zarr", **_OF_TREES})):  # type: ignore[misc]
    """Trees."""

    def test_zarr_encoding(self, tmpdir: Any, simple_datatree: xr.DataTree, zarr_format: int) -> None:
        """The same with b2array's parameters of compression."""
        asked = b2array.CParams("zstd", clevel=3)
        encoding = {"/set2": {name: {"cparams": asked} for name in simple_datatree["/set2"].data_vars}}
        to_b2array(simple_datatree, tmpdir / "test.b2d", encoding=encoding)
        with xr.open_datatree(tmpdir / "test.b2d", engine=Backend) as found:
            assert found["/set2/a"].encoding["cparams"] == asked
        with pytest.raises(ValueError, match="unexpected encoding group"):
            to_b2array(simple_datatree, tmpdir / "other.b2d", encoding={**encoding, "/not/a/group": {"foo": "bar"}})

    def test_to_zarr_compute_false(self, tmp_path: Path, simple_datatree: xr.DataTree, zarr_format: int) -> None:
        """The same with a look at b2array's arrays."""
        url, original = tmp_path / "test.b2d", simple_datatree.chunk()
        delayed = to_b2array(original, url, compute=False)
        template = b2array.open_group(url)
        assert [template[name][...].tolist() for name in ("a", "set0", "set2/a")] == [[0, 0, 0], [0, 0], [0, 0]]
        assert template["set1/a"].dims == ()
        assert not xr.open_datatree(url, engine=Backend).equals(original)
        delayed.compute()
        xr.testing.assert_identical(xr.open_datatree(url, engine=Backend).load(), original)

    def test_zarr_engine_recognised(self, tmpdir: Any, zarr_format: int) -> None:
        """The same with a name that b2array's groups have."""
        tree = xr.DataTree.from_dict(
            {"/": xr.Dataset(coords={"x": [1, 2]}), "/child": xr.Dataset({"a": ("x", [4, 5])})}
        )
        to_b2array(tree, tmpdir / "test.b2d", write_inherited_coords=True)
        assert Backend().guess_can_open(tmpdir / "test.b2d")
        with xr.open_datatree(tmpdir / "test.b2d", engine=Backend) as found:
            xr.testing.assert_identical(tree, found)

    test_to_zarr_zip_store = _skipped("writes to an object of zarr's")
    test_to_zarr_not_consolidated = _skipped("there is no metadata apart that could lack")
