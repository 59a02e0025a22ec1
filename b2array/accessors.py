"""Connects arrays, groups and datasets with `b2array.xarray_io`, which is imported at the first use.

That package imports arrays and groups, and xarray is optional and slow to import, so this module imports both by name.
xarray finds backends by entry points, but accessors must be registered. Programs import b2array and xarray in either
order. `when_xarray_is_imported` handles both orders, and imports nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import dropwhile, islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["dataset_of", "register", "when_xarray_is_imported"]

_NAME = "b2array"
_REGISTRIES = {
    "Dataset": "register_dataset_accessor",
    "DataArray": "register_dataarray_accessor",
    "DataTree": "register_datatree_accessor",
}


def dataset_of(opened: object, options: Mapping[str, Any]) -> xr.Dataset:
    """Open an array or a group as a dataset.

    The engine is passed as a class: to look up its name, xarray would need the entry point of an installed package,
    and would import all engines.
    """
    package = import_module("b2array.xarray_io")
    dataset: xr.Dataset = import_module("xarray").open_dataset(opened, engine=package.Backend, **options)
    return dataset


def accessor(labelled: object) -> object:
    """``ds.b2array`` of datasets, arrays and trees of xarray; see `b2array.xarray_io.Accessor`."""
    return import_module("b2array.xarray_io").Accessor(labelled)


def register(package: ModuleType) -> None:
    """Register the accessor with xarray, once."""
    for kind, registry in _REGISTRIES.items():
        # Old versions of xarray have no trees, and a partly imported xarray has no names yet.
        if not hasattr(package, kind) or not hasattr(package, registry):
            continue
        labelled = getattr(package, kind)
        if not hasattr(labelled, _NAME):
            register_accessor = getattr(package, registry)
            register_accessor(_NAME)(accessor)


def when_xarray_is_imported() -> None:
    """Register the accessor now if xarray is already imported, otherwise as soon as the program imports it."""
    if "xarray" in sys.modules:
        register(sys.modules["xarray"])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds xarray as the other finders do, with a loader that registers the accessor."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "xarray":
            return None
        # After b2array is reloaded, there are several of these finders. Each finder asks only the finders after it;
        # otherwise they would ask each other forever.
        here = dropwhile(lambda finder: finder is not self, sys.meta_path)
        for finder in islice(here, 1, None):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Loads a module as another loader does, and registers the accessor afterwards."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        # Some programs request the source from the loader without importing the module.
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Restore the original loader, which programs use to find the files of the module.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        register(module)
