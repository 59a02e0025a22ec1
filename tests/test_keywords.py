"""Public functions name their keywords, for people and type checkers, and answer a wrong one with the right one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import b2array
from b2array.array.drafts import ArrayOptions

OPTIONS = {"chunks", "blocks", "cparams", "layout", "dims", "attrs", "meta", "interop"}


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        (b2array.asarray, set()),
        (b2array.create, set()),
        (b2array.zeros, set()),
        (b2array.full_like, set()),
        (b2array.arange, set()),
        (b2array.from_blocks, set()),
        (b2array.from_dask, set()),
        (b2array.save, set()),
        (b2array.open, set()),
        (b2array.open_array, set()),
        (b2array.Group.create, set()),
        (b2array.Group.create_array, set()),
        (b2array.Group.require_array, set()),
        (b2array.copy, {"dims", "attrs", "meta"}),
        (b2array.NDArray.copy, {"dims", "attrs", "meta"}),
        (b2array.NDArray.astype, {"dims", "attrs", "meta"}),
    ],
)
def test_signatures_name_every_keyword(function: Callable[..., Any], missing: set[str]) -> None:
    parameters = inspect.signature(function).parameters
    assert parameters.keys() >= OPTIONS - missing
    assert parameters.keys().isdisjoint({"options", "kwargs"} | missing)


def test_signatures_show_the_defaults() -> None:
    signature = inspect.signature(b2array.zeros)
    assert [each for each in signature.parameters if each in ArrayOptions.__slots__] == list(ArrayOptions.__slots__)
    assert "layout: 'Kind' = 'auto'" in str(signature)
    assert "fill_value: 'Any' = 0" in str(signature)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: b2array.zeros(3, chunkss=1), r"zeros\(\) got .*'chunkss'\. Did you mean 'chunks'\?"),
        (lambda: b2array.create("a", 3, chunkss=1), r"create\(\) got .*'chunkss'\. Did you mean 'chunks'\?"),
        (lambda: b2array.open("a", moed="r"), r"open\(\) got .*'moed'\. Did you mean 'mode'\?"),
        (lambda: b2array.open_group("a", storage_option={}), "Did you mean 'storage_options'"),
        (lambda: b2array.zeros(3).copy(chunkss=3), r"copy\(\) got .*Did you mean 'chunks'"),
        (lambda: b2array.convert("a.npy", "b.zarr", overwrit=True), "Did you mean 'overwrite'"),
        (lambda: b2array.zeros(3, something=1), r"got an unexpected keyword argument 'something'$"),
    ],
)
def test_a_wrong_keyword_is_answered_with_the_right_one(call: Callable[[], Any], expected: str) -> None:
    with pytest.raises(TypeError, match=expected):
        call()


PROGRAM = """
import numpy as np
import b2array
from b2array import NDArray

reveal_type(b2array.open_array("a.b2nd"))
reveal_type(b2array.open_group("g.b2d"))
reveal_type(b2array.open("a.b2nd", "w", shape=3))
reveal_type(b2array.zeros((3, 4), chunks=(1, -1), cparams="lz4", dims=["x", None], overwrite=True))
reveal_type(b2array.asarray([1], url="a.b2nd").copy(chunks={0: "1MB"}).astype("f4", layout="sparse"))
b2array.zeros(3, chunkss=2)
b2array.asarray([1], layout="spars")
b2array.zeros(3).copy(dims=["x"])
b2array.open_group("g.b2d").create("a", 3, overwritte=True)
b2array.ones(3, fill_value=2)
"""


@pytest.mark.slow
def test_a_type_checker_knows_results_and_refuses_typing_errors(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    cache = Path(__file__).parents[1] / ".mypy_cache"
    out, _, _ = api.run(["--strict", "--no-error-summary", f"--cache-dir={cache}", "--config-file=", str(program)])
    found: dict[int, str] = {}
    for line in out.splitlines():
        if "program.py:" in line:
            number = int(line.split(":")[1])
            found[number] = found.get(number, "") + line
    revealed = [found[n].rpartition('"')[0].rpartition('"')[2] for n in range(6, 11)]
    array = "b2array.array.array.NDArray"
    assert revealed == [array, "b2array.group.group.Group", array, array, array]
    assert 'Unexpected keyword argument "chunkss" for "zeros"; did you mean "chunks"' in found[11]
    assert "layout" in found[12]
    assert 'Unexpected keyword argument "dims"' in found[13]
    assert 'did you mean "overwrite"' in found[14]
    assert '"fill_value"' in found[15]
