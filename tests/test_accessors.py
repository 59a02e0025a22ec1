"""The accessor ``ds.b2array``, which is there without an import of `b2array.xarray_io`."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module, invalidate_caches
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path

import pytest

import b2array
from b2array.accessors import register, when_xarray_is_imported

FAKE = """
class Dataset: pass
class DataArray: pass
registered = []
def register_dataset_accessor(name):
    def decorator(accessor):
        registered.append((Dataset, name))
        setattr(Dataset, name, property(accessor))
    return decorator
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory in which Python finds the package xarray before it finds the installed one."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    for name in [name for name in sys.modules if name.partition(".")[0] == "xarray"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.slow
def test_the_accessor_is_there_when_xarray_is_imported_last() -> None:
    script = """
import sys
import b2array
assert "xarray" not in sys.modules
import xarray as xr
assert "b2array.xarray_io" not in sys.modules
for labelled in (xr.Dataset({"a": ("x", [1, 2])}), xr.DataArray([1, 2], dims="x", name="a"), xr.DataTree()):
    labelled.b2array.to_b2array("memory://accessor-order.b2d", mode="w")
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_the_accessor_is_there_when_xarray_was_imported_first() -> None:
    xr = pytest.importorskip("xarray")
    # conftest or another module may have imported either first; both ways lead to one accessor.
    when_xarray_is_imported()
    xr.Dataset({"a": ("x", [1, 2])}).b2array.to_b2array("memory://accessor-first.b2d", mode="w")
    assert b2array.open("memory://accessor-first.b2d/a")[:].tolist() == [1, 2]


def test_xarray_is_watched_until_it_is_imported_and_shows_its_loader(elsewhere: Path) -> None:
    (elsewhere / "xarray.py").write_text(FAKE, encoding="utf-8")
    invalidate_caches()
    when_xarray_is_imported()
    when_xarray_is_imported()  # as after a reload of b2array
    spec = find_spec("xarray")  # looks, and imports nothing
    assert spec is not None
    assert spec.loader.get_filename() == str(elsewhere / "xarray.py")
    package = import_module("xarray")
    # An old xarray without trees, and without an accessor for arrays, is no reason to fail.
    assert package.registered == [(package.Dataset, "b2array")]
    assert type(package.__loader__) is type(package.__spec__.loader) is SourceFileLoader
    register(package)
    assert len(package.registered) == 1


def test_an_xarray_that_fails_to_import_fails_as_without_b2array(elsewhere: Path) -> None:
    (elsewhere / "xarray.py").write_text("raise ZeroDivisionError", encoding="utf-8")
    invalidate_caches()
    when_xarray_is_imported()
    with pytest.raises(ZeroDivisionError):
        import_module("xarray")
    assert "xarray" not in sys.modules


def test_xarray_that_is_not_installed_is_not_found(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(elsewhere)])
    when_xarray_is_imported()
    assert find_spec("xarray") is None


def test_arrays_open_in_xarray_without_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = pytest.importorskip("xarray.backends.plugins")
    monkeypatch.setattr(plugins, "list_engines", dict)
    group = b2array.open_group("memory://no-entry-point.b2d", "w")
    group.create("level", data=[1.5, 2.5], dims=["x"])
    assert group["level"].to_xarray().values.tolist() == [1.5, 2.5]
    assert group.to_xarray().sizes == {"x": 2}


def test_an_array_names_the_extra_that_xarray_needs() -> None:
    script = """
import sys
sys.modules["xarray"] = None
import b2array
try:
    b2array.zeros(3).to_xarray()
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "pip install 'b2array[xarray]'" in done.stdout
