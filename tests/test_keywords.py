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
a: NDArray[np.float32] = b2array.open_array("a.b2nd")
b: NDArray = b2array.zeros(3)
reveal_type((a.dtype, a[...], a[:, 1:3], a[0], b[1:]))
wrong: NDArray[np.int8] = a
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
    array = "b2array.array.array.NDArray[Any]"
    assert revealed == [array, "b2array.group.group.Group", array, array, array]
    assert 'Unexpected keyword argument "chunkss" for "zeros"; did you mean "chunks"' in found[11]
    assert "layout" in found[12]
    assert 'Unexpected keyword argument "dims"' in found[13]
    assert 'did you mean "overwrite"' in found[14]
    assert '"fill_value"' in found[15]
    # Annotations with and without the type of the items are complete.
    assert not {16, 17} & found.keys()
    single = "numpy.floating[numpy._typing._nbit_base._32Bit]"
    values = f"numpy.ndarray[tuple[Any, ...], numpy.dtype[{single}]]"
    several = f"numpy.dtype[{single}], {values}, {values}, Any, numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]"
    assert f"tuple[{several}]" in found[18].replace("builtins.tuple", "tuple")
    assert "Incompatible types in assignment" in found[19]


COMPRESSION = r"write cparams='lz4', or cparams=b2array.CParams\('zstd', clevel=5\)"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        *[(word, COMPRESSION) for word in ("compression", "compressor", "compressors", "codec", "clevel")],
        ("shards", "chunks= says how much is stored at once, blocks= how much of it is read alone"),
        ("maxshape", "every array can grow, see resize and append"),
        ("dimension_names", "write dims="),
        ("mode", "overwrite=True replaces an array that is there; b2array.open takes modes"),
        ("anon", r"write storage_options={'anon': ...}"),
        ("endpoint_url", r"write storage_options={'endpoint_url': ...}"),
        ("path", "the place is given as url"),
    ],
)
@pytest.mark.parametrize("function", [b2array.zeros, b2array.create, b2array.asarray, b2array.save])
def test_words_of_other_libraries_are_answered_with_ours(function: Callable[..., Any], word: str, hint: str) -> None:
    with pytest.raises(
        TypeError, match=rf"{function.__name__}\(\) got an unexpected keyword argument '{word}': {hint}$"
    ):
        function(**{word: None})


@pytest.mark.parametrize(
    ("call", "error", "hint"),
    [
        (lambda a, _: b2array.asarray(a, "y.b2nd"), TypeError, r"write url='y.b2nd'$"),
        (lambda a, _: b2array.asarray(a, "f4"), TypeError, r"write dtype='f4'$"),
        (lambda _, g: g.create_dataset("x", data=[1]), AttributeError, r"group\.create\(name, shape, dtype\) makes"),
        (lambda _, g: g.visititems(print), AttributeError, r"group\.walk\(\) yields"),
        (lambda *_: b2array.group(), TypeError, r"b2array\.open_group\(url, 'a'\) opens a group, or makes a"),
        (lambda *_: b2array.array([1]), TypeError, r"b2array\.asarray stores an array"),
        (lambda *_: b2array.NDArray((3, 4)), TypeError, r"NDArray is made by b2array\.zeros\(shape\)"),
        (lambda *_: b2array.SChunk("a.b2frame"), TypeError, r"SChunk is made by b2array\.create_schunk"),
        (lambda _, g: g.copy("a", "b"), TypeError, r"found 'b'; write group\.copy\('a', group, name\)"),
        (lambda a, _: a.view("i4"), TypeError, r"a\.view\[1:3\]; a\.astype\(dtype\) converts"),
        (lambda a, _: a.oindex([0]), TypeError, r"takes a key in brackets, as in a\.oindex\[1:3\]$"),
        (lambda _, g: g.__setitem__("n", None), TypeError, r"None is not an array; del group\['n'\] removes"),
        (lambda *_: b2array.save([1], "a.b2nd"), TypeError, "expected a URL or a path, found list"),
        (lambda *_: b2array.zeros("a.b2nd", (3,)), TypeError, r"write url='a\.b2nd'"),
        (
            lambda _, g: g.create_array("n", (3,), shards=3),
            TypeError,
            r"^create_array\(\) got .*'shards': chunks= ",
        ),
        (lambda _, g: g.create("n", (3,), shards=3), TypeError, r"^create\(\) got .* 'shards': chunks= says"),
        (lambda a, _: a.resize((3,), refcheck=False), TypeError, r"leave it out, because views and other handles see"),
        (lambda a, _: a.resize(new_shape=(3,)), TypeError, r"write shape=$"),
    ],
)
def test_calls_of_other_libraries_are_answered_with_ours(
    call: Callable[[Any, Any], Any], error: type[Exception], hint: str
) -> None:
    group = b2array.open_group("memory://keywords.b2d", "w")
    group["a"] = [1, 2]
    with pytest.raises(error, match=hint):
        call(group["a"], group)
    assert list(group) == ["a"]


def test_indexers_say_what_they_are() -> None:
    assert repr(b2array.zeros(3).oindex) == "<b2array.Indexer of memory: oindex[key]>"


def test_xarray_is_told_from_arrays() -> None:
    xarray_io = pytest.importorskip("b2array.xarray_io")
    with pytest.raises(TypeError, match=r"found list; b2array\.asarray\(values, url=\.\.\.\) stores other arrays"):
        xarray_io.to_b2array([1, 2], "memory://none.b2d")
