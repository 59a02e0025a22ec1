"""The public names, and what functions call themselves in errors."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import b2array
from b2array.commit import draft


def test_dir_shows_public_names_and_nothing_else() -> None:
    script = """
import b2array, b2array.tools.cli, b2array.xarray_io
b2array.repair, b2array.open_group
shown = [name for name in dir(b2array) if not name.startswith("__")]
assert shown == sorted([*b2array.__all__, "map", "open"]), set(shown) ^ set(b2array.__all__)
assert "__version__" in dir(b2array)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_editor_finds_no_other_names_in_the_source() -> None:
    tree = ast.parse(Path(b2array.__file__).read_text(encoding="utf-8"))
    names = [
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(name for name in names if not name.startswith("_")) == sorted(
        [*b2array.__all__, "map", "open", "xarray_io"]
    )
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert defined == ["__getattr__", "__dir__"]


def test_all_names_at_once_hide_no_function_of_python() -> None:
    script = """
import builtins
from b2array import *
assert open is builtins.open and map is builtins.map
import b2array
assert not set(b2array.__all__) & set(dir(builtins))
assert callable(b2array.open) and callable(b2array.map)
assert zeros((3,)).shape == (3,)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_public_modules_are_reachable() -> None:
    script = """
import sys
import b2array
from types import ModuleType
for name in ("codecs", "filters", "config", "errors", "bloscpack"):
    assert isinstance(getattr(b2array, name), ModuleType), name
assert "xarray" not in sys.modules
assert b2array.xarray_io.to_b2array
"""
    subprocess.run([sys.executable, "-c", script], check=True)


CALLS: dict[str, Callable[..., Any]] = {
    "asarray": lambda **given: b2array.asarray([1], **given),
    "create": lambda **given: b2array.create(None, 3, **given),
    "copy": lambda **given: b2array.copy(b2array.zeros(3), **given),
    "empty": lambda **given: b2array.empty(3, **given),
    "empty_like": lambda **given: b2array.empty_like([1], **given),
    "from_blocks": lambda **given: b2array.from_blocks([[1]], **given),
    "full": lambda **given: b2array.full(3, 1, **given),
    "full_like": lambda **given: b2array.full_like([1], 1, **given),
    "ones": lambda **given: b2array.ones(3, **given),
    "ones_like": lambda **given: b2array.ones_like([1], **given),
    "save": lambda **given: b2array.save("memory://names.b2nd", [1], **given),
    "zeros": lambda **given: b2array.zeros(3, **given),
    "zeros_like": lambda **given: b2array.zeros_like([1], **given),
    "astype": lambda **given: b2array.zeros(3).astype("f4", **given),
}


@pytest.mark.parametrize("function", CALLS)
def test_functions_say_their_own_name_when_they_refuse_a_keyword(function: str) -> None:
    with pytest.raises(TypeError, match=rf"^{function}\(\) got an unexpected keyword argument 'path'"):
        CALLS[function](path="a.b2nd")


@pytest.mark.parametrize("function", sorted(CALLS.keys() - {"create", "copy"}))
@pytest.mark.parametrize("name", ["path", "urlpath", "file"])
def test_functions_that_are_given_a_place_by_another_name_tell_theirs(function: str, name: str) -> None:
    with pytest.raises(TypeError, match=rf"'{name}': the place is given as url"):
        CALLS[function](**{name: "a.b2nd"})
    with pytest.raises(TypeError, match=r"Did you mean 'chunks'\?$"):
        CALLS[function](chunk=3)


def test_a_group_and_dask_say_their_own_name_as_well() -> None:
    group = b2array.open_group("memory://names.b2d", "w")
    with pytest.raises(TypeError, match=r"^create\(\) got an unexpected keyword argument 'path'"):
        group.create("a", 3, path="x")
    assert "a" not in group
    da = pytest.importorskip("dask.array")
    with pytest.raises(TypeError, match=r"^from_dask\(\) got an unexpected keyword argument 'path'"):
        b2array.from_dask(da.zeros(3), path="x")


@pytest.mark.parametrize("function", ["ones", "full", "ones_like", "full_like"])
def test_functions_that_choose_the_fill_value_refuse_another(function: str) -> None:
    with pytest.raises(TypeError, match=rf"{function}\(\) got .*'fill_value'"):
        CALLS[function](fill_value=2)


def test_what_is_like_another_array_takes_the_options_of_create() -> None:
    found = b2array.zeros_like(np.zeros((4, 6), "i2"), shape=(5, 6), attrs={"n": 1}, chunks=(5, 2))
    assert (found.shape, found.dtype, found.chunks, dict(found.attrs)) == ((5, 6), np.dtype("i2"), (5, 2), {"n": 1})


def test_no_setter_ignores_the_value(tmp_path: Path) -> None:
    ignoring = tmp_path / "ignoring.py"
    ignoring.write_text("class A:\n    @x.setter\n    def x(self, _):\n        pass\n")
    assert _ignoring_setters(ignoring) == ["x"]
    modules = sorted(Path(b2array.__file__).parent.rglob("*.py"))
    assert {path.name: names for path in modules if (names := _ignoring_setters(path))} == {}


def _ignoring_setters(path: Path) -> list[str]:
    """Return the names of the setters in a module that do nothing with their value."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef):
            continue
        if any(isinstance(each, ast.Attribute) and each.attr == "setter" for each in node.decorator_list):
            value = node.args.args[-1].arg
            reads = {name.id for part in node.body for name in ast.walk(part) if isinstance(name, ast.Name)}
            if value not in reads:
                names.append(node.name)
    return names


def test_a_draft_has_few_fields_and_methods() -> None:
    """What a draft knows is in values of its own. A class that collects everything can be understood by nobody."""
    tree = ast.parse(Path(draft.__file__).read_text(encoding="utf-8"))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Draft")
    methods = [node for node in body if isinstance(node, ast.FunctionDef)]
    stored = [
        node
        for node in ast.walk(ast.Module(body, []))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    fields = {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}
    fields |= {node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    assert len(methods) <= 25, [method.name for method in methods]
    assert len(fields) <= 12, sorted(fields)
