"""The documentation: its examples run, its reference is complete, its drawings are up to date."""

from __future__ import annotations

import doctest
import inspect
import json
import os
import re
import runpy
import shutil
import sys
import textwrap
import tomllib
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from clouds import skip

import b2array

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SCRIPT = re.compile(r"^\.\. code-block:: python\n   :caption: (\S+)\n\n((?:   .*\n|\n)+)", re.MULTILINE)
LONGEST = 100
"""How many characters of code a page shows without scrolling."""


@cache
def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


@cache
def examples(page: str) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(text(page))


ALL_PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.rst"))
PAGES = [page for page in ALL_PAGES if examples(page)]
WITH_MPI = [page for page in PAGES if "mpiexec" in text(page)]
ON_S3 = [page for page in PAGES if "s3://" in "".join(example.source for example in examples(page))]


LONG = {f"how-to/{name}.rst" for name in ("climate-archive", "shared-bucket", "simulation", "training")}


def _long_ones_apart(pages: list[str]) -> list[Any]:
    """Give parameters, of which those whose examples take seconds are for a slow run."""
    return [pytest.param(page, marks=pytest.mark.slow if page in LONG else ()) for page in pages]


def run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    # Programs that a page starts find the package that is tested.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for module in (b2array.codecs, b2array.filters):
        monkeypatch.setattr(module, "_registry", dict(module._registry))
    for name, script in SCRIPT.findall(text(page)):
        (folder / name).write_text(textwrap.dedent(script), encoding="utf-8")
    failed, attempted = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=FLAGS, verbose=False)
    assert attempted > 0
    assert failed == 0


@pytest.mark.parametrize("page", _long_ones_apart([page for page in PAGES if page not in [*ON_S3, *WITH_MPI]]))
def test_the_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if 'CParams("zfp"' in text(page) and find_spec("zfpy") is None:
        pytest.skip("needs zfpy")
    run(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", WITH_MPI)
@pytest.mark.slow
def test_the_examples_run_with_the_ranks_of_mpi(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The package mpich puts the command beside the interpreter.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    if find_spec("mpi4py") is None or shutil.which("mpiexec") is None:
        skip("needs mpi4py and mpich")
    run(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", _long_ones_apart(ON_S3))
def test_the_examples_run_on_a_server_of_the_protocol_of_s3(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_options: dict[str, str]
) -> None:
    for variable, option in {
        "AWS_ENDPOINT_URL": "endpoint_url",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(variable, s3_options[option])
    run(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", [page for page in ALL_PAGES if page != "cli.rst"])
def test_no_page_shows_code_that_does_not_run(page: str) -> None:
    # Programs have a name, and an example starts them. Those of cli.rst are run with its transcripts.
    shown = text(page).count(".. code-block:: python\n")
    scripts = [name for name, _ in SCRIPT.findall(text(page))]
    assert len(scripts) == shown
    started = "".join(example.source for example in examples(page))
    assert [name for name in scripts if name not in started] == []
    assert ".. code-block:: console" not in text(page)


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_code_are_not_cut_off(page: str) -> None:
    lines = [line for example in examples(page) for line in (example.source + example.want).splitlines()]
    # The prompt takes four characters.
    assert [line for line in lines if len(line) + 4 > LONGEST] == []


def test_extras_that_pages_name_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        extra
        for page in [ROOT / "README.md", *DOCS.rglob("*.rst")]
        for extras in re.findall(r"(?:b2array|\.)\[([a-z0-9,-]+)\]'", page.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert named
    assert named <= set(project["optional-dependencies"])


PUBLIC = [*b2array.__all__, "map", "open"]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_shown_at_work(name: str) -> None:
    shown = "".join(example.source for page in PAGES for example in examples(page))
    # Functions and methods return these, and they show themselves.
    returned = ("Appender", "Group", "GroupDiff", "Items", "NDArray", "SChunk", "SnapshotInfo", "Table")
    assert name in returned or f"b2array.{name}" in shown


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_hold_the_outputs_of_one_clean_run(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    # What a page shows of them names no directory of the machine that ran them, and no warning.
    shown = [output.get("text") or output["data"].get("text/html", ()) for output in outputs]
    assert not re.search(r"/tmp|/home|\\Users|Warning", "".join(line for lines in shown for line in lines))
    code = "".join("".join(cell["source"]) + "\n" for cell in cells)
    assert [line for line in code.splitlines() if len(line) > LONGEST] == []
    assert path.stat().st_size < 400_000


def test_the_documentation_lists_all_notebooks() -> None:
    listed = re.findall(r"^   notebooks/(\w+)$", text("index.rst"), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def documented() -> list[str]:
    blocks = re.findall(r"^\.\. documented::\n\n((?: {3}\S+\n)+)", "".join(map(text, ALL_PAGES)), re.MULTILINE)
    return [name for block in blocks for name in block.split()]


def public() -> set[str]:
    """Return the names that the reference must have: functions, classes with their members, and what modules offer."""
    found = set()
    for name in PUBLIC:
        value = getattr(b2array, name)
        if isinstance(value, ModuleType):
            offered = ["register"] if name in ("codecs", "filters") else value.__all__
            found |= {f"b2array.{name}.{each}" for each in offered}
        else:
            found.add(f"b2array.{name}")
        if inspect.isclass(value):
            # The parameters of a dataclass stand in its own documentation.
            own = {field.name for field in fields(value) if field.init} if is_dataclass(value) else set()
            found |= {f"{name}.{member}" for member in dir(value) if not member.startswith("_") and member not in own}
    return found


def test_the_reference_lacks_nothing_public() -> None:
    assert sorted(public() - set(documented())) == [], "put them into a block '.. documented::' in docs/reference/"


def test_the_reference_has_every_name_once() -> None:
    names = documented()
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_pages_name_no_internal_module() -> None:
    modules = {name for name in b2array.__all__ if isinstance(getattr(b2array, name), ModuleType)} | {"xarray_io"}
    for page in ALL_PAGES:
        # What functions return is documented without its home.
        shown = re.sub(r"^   b2array\.[a-z]+\.[a-z]+\.[A-Z].*$", "", text(page), flags=re.MULTILINE)
        paths = set(re.findall(r"b2array\.([a-z_]+)\.", shown))
        assert (page, paths - modules) == (page, set())


@pytest.mark.parametrize("page", ALL_PAGES)
def test_pages_show_drawings_that_are_there_as_images_with_a_text(page: str) -> None:
    assert ".. drawing::" not in text(page), "code hosts show images only"
    images = re.findall(r"^\.\. image:: (\S+)\n((?:   .*\n)*)", text(page), re.MULTILINE)
    for path, options in images:
        assert (DOCS / page).parent.joinpath(path).is_file()
        assert "   :alt: " in options


def test_the_index_of_the_reference_lists_the_names_of_every_page() -> None:
    listed = re.findall(r"\.\. names:: (\S+)", text("reference/index.rst"))
    pages = [page for page in ALL_PAGES if page.startswith("reference/") and ".. documented::" in text(page)]
    assert sorted(listed) == [page.removeprefix("reference/").removesuffix(".rst") for page in pages]


def test_the_drawings_are_what_their_scripts_draw() -> None:
    pictures = runpy.run_path(str(DOCS / "drawings.py"))["PICTURES"]
    drawn = {name: draw().svg() for name, draw in pictures.items()}
    drawn |= runpy.run_path(str(ROOT / "asv_bench" / "plot.py"))["pictures"]()
    assert drawn == {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "drawings").glob("*.svg")}
