"""What counts as a slip of style, and which packages have too many. They are no faults of the product."""

from __future__ import annotations

import ast
import os
from dataclasses import replace

import pytest
import style


def test_phrases_of_the_dialect_are_told_from_plain_ones() -> None:
    text = "Let readers wait.\n\nA lock\nof its own, too. Who waits is none; that of others."
    assert style.phrases(text) == ["Let readers", "that of", "of its own", ", too", "is none", ". Who"]
    assert style.phrases("Too many. The writer who waits, and who reads? Readers let it go.") == []


def test_a_table_of_numbers_may_skip_the_formatter() -> None:
    table = "T = (1, 2, 3, 4, 5, 6, 7, 8)  # fmt: skip\n"
    words = "WORDS = (one, two, 3, 4)  # fmt: skip\n"
    assert style.skips(table, ast.parse(table)) == 0
    assert style.skips(words, ast.parse(words)) == 1


def test_an_f_string_is_one_token_on_each_python() -> None:
    source = 'x = f"{a!r:>{n}} and {f\'{b}\'}" + "c"\n'
    assert style.code(source, ast.parse(source)) == (5, 1)


def test_a_limit_that_is_exceeded_is_listed() -> None:
    counts, _ = style.count("grid")
    assert style.slips_of("grid", {"grid": counts}) == []
    (line,) = style.slips_of("grid", {"grid": replace(counts, tokens=counts.tokens - 1)})
    assert "tokens, at most" in line
    assert style.slips_of_docs(10**6) == []
    (line,) = style.slips_of_docs(-1)
    assert "dialect, at most" in line


@pytest.mark.slow
@pytest.mark.parametrize("part", [*style.packages(), "documentation"])
def test_limits_of_style_are_kept(part: str) -> None:
    slips = style.slips_of_docs() if part == "documentation" else style.slips_of(part)
    if slips and os.environ.get("B2ARRAY_STYLE") != "strict":
        pytest.xfail("\n".join(slips))
    assert slips == []
