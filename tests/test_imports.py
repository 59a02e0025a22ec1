"""The package's structure: which module may import what, how large modules get, and what a plain import loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "b2array"
MAX_LINES = 650

# From the top down: a module imports only from the layers below its own.
LAYERS = (
    ("__init__", "__main__"),
    ("cli",),
    ("cli_options",),
    ("bench", "conversion", "demo", "describing", "xarray_io"),
    ("formats",),
    ("hdf5_io", "zarr_io"),
    ("sources",),
    ("dask_io", "group"),
    ("building",),
    ("parallel",),
    ("creation",),
    ("array", "bloscpack", "integrity"),
    ("appender", "joint"),
    ("archive", "catalog", "handle", "life"),
    ("embedding",),
    ("anatomy",),
    ("inspection", "members", "opening", "salvage", "transfer", "unfinished"),
    ("schunk",),
    ("attributes", "edits"),
    ("draft",),
    ("geometry", "snapshot"),
    ("fetching",),
    ("healing", "notes", "shelf"),
    ("extras",),
    ("bloscpack_reader", "bloscpack_writer"),
    ("frame", "lazy", "oneshot", "planes", "tiling"),
    ("chunk", "encoder"),
    ("bloscpack_walk",),
    ("s3_store",),
    ("blosc1", "local", "remote"),
    ("bloscpack_header", "bloscpack_undo", "placement", "streams", "upload"),
    ("assignment", "display", "indexers", "seal"),
    ("alignment", "b2nd", "indexing", "metalayers", "params", "spool", "storage"),
    ("codecs", "filters", "locating", "partition", "progress", "redaction", "shared", "spans", "workers"),
    ("keys",),
    ("spec",),
    ("caching", "config", "errors", "workspace"),
)
LEVEL = {module: level for level, layer in enumerate(reversed(LAYERS)) for module in layer}

# The only imports against that direction, each inside the function named.
UPWARD = {
    ("remote", "open_remote", "s3_store"),
    ("array", "NDArray.astype", "building"),
    ("array", "NDArray.copy", "building"),
    ("array", "NDArray.store", "dask_io"),
    ("array", "NDArray.to_dask", "dask_io"),
    ("storage", "open_store", "local"),
    ("storage", "open_store", "remote"),
}

REQUIRED = {"fsspec", "isal", "msgpack", "numcodecs", "numpy", "zstandard"}
OPTIONAL = {
    "aiobotocore": {"s3_store"},
    "botocore": {"s3_store"},
    "dask": {"array", "dask_io", "xarray_io"},
    "distributed": {"dask_io"},
    "h5py": {"hdf5_io"},
    "lz4": {"codecs"},
    "ml_dtypes": {"b2nd", "creation"},
    "rich": {"cli", "display", "progress"},
    "s3fs": {"s3_store"},
    "typer": {"cli", "cli_options"},
    "xarray": {"xarray_io"},
    "zarr": {"zarr_io"},
}

# All modules of a folder are in its layer, and import from each other.
MODULES = sorted(path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py"))


class Import(NamedTuple):
    module: str  # of the package, or the top-level name of another one
    ours: bool
    where: str  # qualified name of the function or class around it, "" at the top of the module


def imports(source: str) -> Iterator[Import]:
    yield from _imports(ast.parse(source), "")


def _imports(node: ast.AST, where: str) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield _classify(alias.name, where)
        elif isinstance(child, ast.ImportFrom):
            # A relative import of a flat package stands for an absolute one.
            origin = ".".join(["b2array"] * bool(child.level) + [child.module] * bool(child.module))
            for alias in child.names:
                submodule = origin == "b2array" and alias.name in LEVEL
                yield _classify(f"b2array.{alias.name}" if submodule else origin, where)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _imports(child, f"{where}.{child.name}".lstrip("."))
        else:
            yield from _imports(child, where)


def _classify(name: str, where: str) -> Import:
    package, _, rest = name.partition(".")
    if package != "b2array":
        return Import(package, ours=False, where=where)
    return Import(rest.partition(".")[0] or "__init__", ours=True, where=where)


def _layer(module: str) -> str:
    return module.partition("/")[0]


def module_imports(module: str) -> list[Import]:
    return list(imports((PACKAGE / f"{module}.py").read_text(encoding="utf-8")))


def test_every_module_has_a_level() -> None:
    assert [module for module in MODULES if _layer(module) not in LEVEL] == []


def test_every_level_is_named_once() -> None:
    assert len(LEVEL) == sum(len(layer) for layer in LAYERS)


def test_the_table_for_contributors_has_every_module_in_the_order_of_the_layers() -> None:
    guide = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [re.findall(r"`(\w+)`", line.split("|")[2]) for line in guide.splitlines() if line.startswith("|")]
    named = [row for row in rows if row]
    assert sorted(module for row in named for module in row) == sorted(LEVEL)
    levels = [[LEVEL[module] for module in row] for row in named]
    assert all(min(upper) > max(lower) for upper, lower in pairwise(levels))


def test_no_module_is_a_drawer_for_leftovers() -> None:
    drawers = {"base", "common", "core", "helpers", "misc", "util", "utils"}
    assert drawers.isdisjoint(LEVEL)
    assert drawers.isdisjoint(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_module_is_small(module: str) -> None:
    assert len((PACKAGE / f"{module}.py").read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downward(module: str) -> None:
    wrong = [
        found
        for found in module_imports(module)
        if found.ours
        and found.module != _layer(module)
        and LEVEL.get(found.module, len(LAYERS)) >= LEVEL.get(_layer(module), 0)
        and (module, found.where, found.module) not in UPWARD
    ]
    assert wrong == []


@pytest.mark.parametrize("module", MODULES)
def test_other_packages_are_required_or_served_by_this_module(module: str) -> None:
    wrong = [
        found
        for found in module_imports(module)
        if not found.ours
        and found.module not in sys.stdlib_module_names
        and found.module not in REQUIRED
        and _layer(module) not in OPTIONAL.get(found.module, set())
    ]
    assert wrong == []


def test_the_reader_of_imports_sees_every_form() -> None:
    source = """
import os, b2array.chunk
import b2array
from b2array import codecs, open
from . import filters
from .spec import Buffer
from b2array.errors import FormatError
class NDArray:
    def copy(self):
        if True:
            from b2array.creation import create
try:
    import lz4.block
except ImportError:
    pass
"""
    assert [(found.module, found.where) for found in imports(source)] == [
        ("os", ""),
        ("chunk", ""),
        ("__init__", ""),
        ("codecs", ""),
        ("__init__", ""),
        ("filters", ""),
        ("spec", ""),
        ("errors", ""),
        ("creation", "NDArray.copy"),
        ("lz4", ""),
    ]


def test_importing_b2array_loads_only_what_it_depends_on() -> None:
    script = f"""
import sys
def packages():
    return {{name.partition(".")[0] for name in sys.modules}}
import {", ".join(sorted(REQUIRED))}
before = packages()
import b2array
print(*packages() - before - sys.stdlib_module_names)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    # Compiled modules register helpers of Cython under names of their own.
    assert {name for name in done.stdout.split() if "cython" not in name} == {"b2array"}
