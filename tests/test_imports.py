"""The package's structure: which package may import what, and what a plain import loads."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "b2array"

GROUND = ("accessors", "buffers", "config", "errors", "keywords", "neighbours", "printable", "progress")
FACES = ("__init__", "__main__")

# What each package may import besides the ground and itself. The public faces and the tools may import everything.
ALLOWED = {
    "threads": set(),
    "grid": set(),
    "store": {"threads"},
    "codec": {"threads"},
    "format": {"codec", "grid"},
    "frame": {"codec", "format", "grid", "store", "threads"},
    "catalog": {"format", "frame", "store"},
    "commit": {"catalog", "codec", "format", "frame", "grid", "store", "threads"},
    "display": {"codec", "frame", "grid", "store"},
    "bloscpack": {"codec", "format", "grid", "store", "threads"},
    "compute": {"commit", "format", "frame", "grid", "threads"},
    "array": {"catalog", "codec", "commit", "compute", "display", "format", "frame", "grid", "store", "threads"},
    "group": {"array", "catalog", "codec", "commit", "compute", "display", "format", "frame", "store", "threads"},
    "xarray_io": {"array", "codec", "commit", "format", "frame", "grid", "group", "store", "threads"},
    "exchange": {
        "array",
        "bloscpack",
        "catalog",
        "codec",
        "commit",
        "display",
        "format",
        "frame",
        "grid",
        "group",
        "store",
        "threads",
    },
}

REQUIRED = {"fsspec", "msgpack", "numcodecs", "numpy", "zlib_ng", "zstandard"}
OPTIONAL = {
    "aiohttp": {"store.http"},
    "aiobotocore": {"store.s3"},
    "azure": {"store.azure"},
    "botocore": {"store.s3"},
    "dask": {"array.array", "array.creation", "array.dask", "compute.readable", "xarray_io.writing"},
    "distributed": {"array.dask"},
    "h5py": {"exchange.hdf5"},
    "imagecodecs": {"codec.jpeg2000"},
    "lz4": {"codec.codecs"},
    "obstore": {"store.obstore", "store.ranges"},
    "ml_dtypes": {"array.creation", "format.dtypes"},
    "rich": {"tools.cli"},
    "s3fs": {"store.s3"},
    "scipy": {"exchange.netcdf3"},
    "tqdm": {"progress"},
    "typer": {"tools.cli", "tools.options"},
    "typing_extensions": {"array.array"},  # for type checkers alone
    "xarray": {"accessors", "array.array", "group.group"}
    | {f"xarray_io.{path.stem}" for path in (PACKAGE / "xarray_io").glob("*.py")},
    "zarr": {"exchange.zarr"},
    "zfpy": {"codec.zfp"},
}


def _name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


PATHS = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
PACKAGES = sorted({path.parent.name for path in PATHS.values()} - {"b2array"})


class Import(NamedTuple):
    module: str  # of the package, or the top-level name of another one
    ours: bool
    where: str  # qualified name of the function or class around it, "" at the top of the module


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(source: str, package: str = "b2array") -> Iterator[Import]:
    yield from _imports(ast.parse(source), package, "")


def _imports(node: ast.AST, package: str, where: str) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield _classify(alias.name, where)
        elif isinstance(child, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - child.level + 1] if child.level else []
            origin = ".".join([*above, *[child.module] * bool(child.module)])
            for alias in child.names:
                submodule = f"{origin}.{alias.name}".removeprefix("b2array.")
                known = submodule in PATHS or f"{submodule}.__init__" in PATHS
                yield _classify(f"{origin}.{alias.name}" if known else origin, where)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _imports(child, package, f"{where}.{child.name}".lstrip("."))
        else:
            yield from _imports(child, package, where)


def _classify(name: str, where: str) -> Import:
    package, _, rest = name.partition(".")
    if package != "b2array":
        return Import(package, ours=False, where=where)
    module = rest or "__init__"
    return Import(module if module in PATHS else f"{module}.__init__", ours=True, where=where)


@functools.cache
def module_imports(module: str) -> list[Import]:
    package = ".".join(["b2array", *module.split(".")[:-1]])
    return list(_imports(tree_of(PATHS[module]), package, ""))


def room(module: str) -> str:
    """Name the package of a module; modules at the top that have a line in the table stand for themselves."""
    first = module.partition(".")[0]
    return "ground" if first in GROUND else first


def test_every_package_has_a_line_in_the_table() -> None:
    assert {room(module) for module in PATHS} == {*ALLOWED, *FACES, "ground", "tools"}


def test_imports_point_downward() -> None:
    wrong = []
    for module in PATHS:
        mine = room(module)
        allowed = {"ground", mine} | ALLOWED.get(mine, set())
        if mine in {*ALLOWED, "ground"}:
            found = {each.module for each in module_imports(module) if each.ours}
            wrong += [(module, other) for other in found if room(other) not in allowed]
    assert wrong == []


def test_no_module_imports_itself_through_others() -> None:
    arrows = {module: {found.module for found in module_imports(module) if found.ours} for module in PATHS}
    graphlib.TopologicalSorter(arrows).prepare()  # raises CycleError, which names the circle


def test_other_packages_are_required_or_served_by_this_module() -> None:
    wrong = [
        (module, found)
        for module in PATHS
        for found in module_imports(module)
        if not found.ours
        and found.module not in sys.stdlib_module_names
        and found.module not in REQUIRED
        and module not in OPTIONAL.get(found.module, set())
    ]
    assert wrong == []


def test_only_optional_packages_are_imported_late() -> None:
    late = [
        (module, found.module) for module in PATHS for found in module_imports(module) if found.where and found.ours
    ]
    # The program says what is missing when the packages that the command line needs are not there.
    assert late == [("__main__", "tools.cli")]


def test_packages_have_no_code_but_a_map_in_their_docstring() -> None:
    public = {"__init__", "bloscpack.__init__", "xarray_io.__init__"}
    faces = [module for module in PATHS if module.endswith("__init__") and module not in public]
    for module in faces:
        body = tree_of(PATHS[module]).body
        assert [type(node) for node in body] == [ast.Expr], module


def test_no_module_is_a_drawer_for_leftovers() -> None:
    drawers = {"common", "core", "helpers", "misc", "util", "utils"}
    assert drawers.isdisjoint(part for module in PATHS for part in module.split("."))


def test_every_class_has_a_name_that_no_other_class_has() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in PATHS.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    assert len(homes) > 100
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


ARCHITECTURE = (PACKAGE.parent / "docs" / "architecture.rst").read_text(encoding="utf-8")


def test_the_page_about_the_architecture_says_what_each_package_may_import() -> None:
    rows = re.findall(r"^   \* - (.*)\n     - (.*)\n     -(.*)$", ARCHITECTURE, re.MULTILINE)
    table = {name.strip("`/"): (topic, imported.strip()) for name, topic, imported in rows}
    assert table.pop("Package")[1] == "May import (besides the ground)"
    assert table.pop("tools")[1] == "everything"
    assert re.findall(r"``(\w+)``", table.pop("ground")[0]) == [*GROUND]
    assert {name: set(filter(None, imported.split(", "))) for name, (_, imported) in table.items()} == ALLOWED


def test_the_routes_name_modules_that_exist() -> None:
    routes = ARCHITECTURE.partition(".. code-block:: text\n")[2]
    named = re.findall(rf"\b(?:{'|'.join(PACKAGES)})\.\w+\b(?!\()", routes)  # but not what users call
    assert len(named) > 80
    assert [name for name in named if name not in PATHS] == []


def test_the_reader_of_imports_sees_every_form() -> None:
    source = """
import os, b2array.codec.chunk
import b2array
from b2array import bloscpack, open
from . import errors
from .grid.layout import Layout
from b2array.errors import FormatError
from b2array.codec import chunk
class NDArray:
    def copy(self):
        if True:
            from b2array.array.creation import create
try:
    import lz4.block
except ImportError:
    pass
"""
    assert [(found.module, found.where) for found in imports(source, "b2array")] == [
        ("os", ""),
        ("codec.chunk", ""),
        ("__init__", ""),
        ("bloscpack.__init__", ""),
        ("__init__", ""),
        ("errors", ""),
        ("grid.layout", ""),
        ("errors", ""),
        ("codec.chunk", ""),
        ("array.creation", "NDArray.copy"),
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


def test_importing_b2array_leaves_out_what_only_some_programs_use() -> None:
    script = "import sys, b2array; print(*(name for name in sys.modules if name.startswith('b2array.')))"
    command = [sys.executable, "-c", script]
    loaded = set(subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent).stdout.split())
    late = {
        "bloscpack",
        "group",
        "tools",
        "xarray_io",
        "store.http",
        "store.remote",
        "store.s3",
        "store.shared_memory",
        "store.upload",
    }
    assert loaded.isdisjoint(f"b2array.{name}" for name in late)
    assert "b2array.store.local_store" in loaded


def test_a_class_has_a_name_of_one_class() -> None:
    places: dict[str, list[str]] = {}
    for module in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module.name)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_a_module_has_a_name_of_one_module() -> None:
    names = Counter(module.name for module in PACKAGE.rglob("*.py"))
    assert [name for name, count in names.items() if count > 1] == ["__init__.py"]
