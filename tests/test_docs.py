"""The examples of the documentation run as they stand there."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import b2array

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("dask.rst", "getting-started.rst", "guarantees.rst", "reductions.rst")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(page: str) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples((DOCS / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (b2array.codecs, b2array.filters):
        monkeypatch.setattr(module, "_registry", dict(module._registry))
    failed, attempted = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=FLAGS, verbose=False)
    assert attempted > 0
    assert failed == 0


def test_every_page_with_examples_is_run() -> None:
    assert {page.name for page in DOCS.glob("*.rst") if examples(page.name)} == set(PAGES)


@pytest.mark.parametrize("name", b2array.__all__)
def test_every_public_name_is_shown_at_work(name: str) -> None:
    shown = "".join(example.source for page in PAGES for example in examples(page))
    # Handles are made by functions, and show themselves.
    assert name in ("Appender", "Group", "NDArray", "SChunk") or f"b2array.{name}" in shown
