"""What is shown to people is complete, exact and safe to show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2array.codec.cparams import CParams
from b2array.display import text_tables


def test_information_is_a_mapping_and_a_table() -> None:
    info = text_tables.Info({"shape": (3, 2), "a longer name": None})
    assert dict(info) == {"shape": (3, 2), "a longer name": None}
    assert len(info) == 2
    assert repr(info) == "shape         : (3, 2)\na longer name : None"
    assert repr(text_tables.Info({})) == ""
    with pytest.raises(KeyError):
        info["missing"]
    with pytest.raises(TypeError):
        info["shape"] = 1


def test_html_is_escaped() -> None:
    html = text_tables.Info({"<b>": "<script>alert('&')</script>"})._repr_html_()
    assert html.startswith("<table>")
    assert "<script>" not in html
    assert "<b>" not in html
    assert "&lt;script&gt;" in html


def test_what_was_given_is_copied() -> None:
    rows = {"a": 1}
    info = text_tables.Info(rows)
    rows["a"] = 2
    assert info["a"] == 1


def test_parameters_are_one_line() -> None:
    assert text_tables.codec(CParams("lz4", clevel=1, splitmode="never")) == "lz4, level 1, split never"
    assert text_tables.filters(CParams()) == "auto"
    assert text_tables.filters(CParams(filters="shuffle")) == "shuffle"
    assert text_tables.filters(CParams(filters=())) == "none"
    assert text_tables.filters(CParams(filters=("trunc_prec", "bitshuffle"), filters_meta=(10,))) == (
        "trunc_prec(10), bitshuffle"
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1024 (1.0 KiB)"),
        (1536, "1536 (1.5 KiB)"),
        (2**20, "1048576 (1.0 MiB)"),
        (5 * 2**40, f"{5 * 2**40} (5.0 TiB)"),
        (2**70, f"{2**70} (1048576.0 PiB)"),
    ],
)
def test_bytes_have_a_unit(count: int, text: str) -> None:
    assert text_tables.nbytes(count) == text


@given(st.integers(0, 2**80))
def test_the_exact_number_comes_first(count: int) -> None:
    assert text_tables.nbytes(count).split(maxsplit=1)[0] == str(count)
