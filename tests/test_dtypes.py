"""Every type of NumPy's but references, and those of ml_dtypes: stored, changed, read back, read by python-blosc2."""

from __future__ import annotations

import gc
import subprocess
import sys

import blosc2
import ml_dtypes
import numpy as np
import pytest
from arrays import bits, items, same
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from lengths import examples

import b2array
from b2array.errors import LimitError

NUMBERS = [np.dtype(order + code) for code in "?bBhHiIlLefdgFDG" for order in "<>"]
TIMES = [np.dtype(text) for text in ("M8[Y]", "M8[25s]", ">M8[ns]", "M8", "m8[D]", ">m8[us]", "m8[7h]", "m8")]
TEXT = [np.dtype(text) for text in ("S1", "S17", "S300", "<U1", ">U5", "<U100", "V1", "V3", "V16", "V1000")]
RECORDS = [
    np.dtype([("x", "<i4"), ("y", ">f8")]),
    np.dtype([("a", "i1"), ("b", "f8"), ("c", "S3", (2,))], align=True),
    np.dtype({"names": ["p", "q"], "formats": ["<u2", "<f4"], "offsets": [6, 1], "itemsize": 11}),
    np.dtype([("point", [("x", "f4"), ("y", "f4")]), ("t", "M8[ms]")]),
    np.dtype([("m", "f4", (2, 3)), ("g", "g")], align=True),
    np.dtype([(("a title", "t"), "i2"), ("u", "U3")]),
    np.dtype([("", "i4"), ("", "i4")]),
    np.dtype([("größe", "f4")]),
]
ALL = [*NUMBERS, *TIMES, *TEXT, *RECORDS]
FOREIGN = [np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint2")]
WIDE = np.dtype([(f"n{n}", "i4") for n in range(400)])
names = pytest.mark.parametrize("dtype", ALL, ids=str)
layouts = pytest.mark.parametrize("layout", ["contiguous", "sparse"])


def stock(url):
    held = blosc2.open(str(url), mode="r")
    return held[...]


@layouts
@names
def test_items_come_back_and_stock_reads_them(tmp_path, dtype, layout):
    values = items(dtype, (5, 7), 1)
    fill = items(dtype, (), 4)[()]
    options = {"chunks": (3, 4), "blocks": (2, 2), "layout": layout, "fill_value": fill}
    a = b2array.create(tmp_path / "a.b2nd", (5, 7), dtype, **options)
    assert same(a[...], np.full((5, 7), fill, dtype))
    a[:, :] = values
    a[1:3, 2] = values[0, 0]
    values[1:3, 2] = values[0, 0]
    read = b2array.open(tmp_path / "a.b2nd")
    assert same(read[...], values)
    assert same(read[2, 3], values[2, 3])
    assert same(read[[4, -5]], values[[4, -5]])
    assert same(read.fill_value, fill)
    assert read.dtype == dtype
    found = stock(tmp_path / "a.b2nd")
    assert found.dtype == dtype
    assert bits(found) == bits(values)


@names
def test_what_stock_writes_is_read(tmp_path, dtype):
    given = items(dtype, (5, 7), 1)
    held = blosc2.asarray(given, urlpath=str(tmp_path / "a.b2nd"), chunks=(3, 4), blocks=(2, 2))
    values = held[...]  # of another type sometimes, which names the bytes between fields
    del held
    gc.collect()
    a = b2array.open(tmp_path / "a.b2nd", "r+")
    assert same(a[...], values)
    a[0] = values[4]
    values[0] = values[4]
    assert bits(stock(tmp_path / "a.b2nd")) == bits(values)


flat = hnp.scalar_dtypes() | hnp.unicode_string_dtypes(max_len=9) | hnp.byte_string_dtypes(max_len=9)
any_dtype = flat | hnp.array_dtypes(flat, max_size=4) | hnp.nested_dtypes(flat, max_leaves=6, max_itemsize=300)


@settings(max_examples=examples(150), deadline=None)
@given(any_dtype, hnp.array_shapes(max_dims=3, max_side=5))
def test_any_type_that_can_be_built_comes_back(dtype, shape):
    model = np.empty(0, dtype)  # items that are arrays become dimensions
    values = items(model.dtype, (*shape, *model.shape[1:]), 2)
    a = b2array.create(None, shape, dtype)
    a[...] = values
    found = b2array.from_bytes(a.to_bytes())
    assert (found.dtype, found.shape) == (values.dtype, values.shape)
    assert same(found[...], values)


@layouts
@pytest.mark.parametrize("dtype", FOREIGN, ids=str)
def test_types_of_ml_dtypes_keep_their_name_and_are_raw_items_for_stock(tmp_path, dtype, layout):
    values = np.arange(12).reshape(3, 4).astype(dtype)
    a = b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=(2, 3), layout=layout)
    assert a.meta["b2nd"][-1] == f"|V{dtype.itemsize}"
    a.append(values)
    a[0, ::2] = 1
    values = np.concatenate([values, values])
    values[0, ::2] = 1
    read = b2array.open(tmp_path / "a.b2nd")
    assert read.dtype == dtype
    assert read[...].dtype == dtype
    assert np.array_equal(read[...], values)
    assert type(read[0, 0]) is dtype.type
    assert np.array_equal(read.copy(chunks=(1, 1))[...], values)
    assert np.array_equal(read.astype("f4")[...], values.astype("f4"))
    assert stock(tmp_path / "a.b2nd").tobytes() == values.tobytes()
    full = b2array.full((2, 2), 1, dtype.name)
    full.resize((3, 2))
    assert full[...].tolist() == np.ones((3, 2), dtype).tolist()


def test_without_ml_dtypes_their_items_are_raw(tmp_path):
    b2array.zeros((3, 2), ml_dtypes.bfloat16, url=tmp_path / "a.b2nd")
    script = f"""
import sys
sys.modules["ml_dtypes"] = None
import b2array
print(b2array.open({str(tmp_path / "a.b2nd")!r}).dtype)
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "|V2\n"


@pytest.mark.parametrize("dtype", ["O", [("a", "O")], [("a", "i4"), ("b", "O", (2,))], [("a", ml_dtypes.bfloat16)]])
def test_references_are_refused_before_anything_is_written(tmp_path, dtype):
    with pytest.raises(TypeError, match="cannot be stored"):
        b2array.zeros(3, dtype, url=tmp_path / "a.b2nd")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "text", "options"),
    [
        (ValueError, "at most 16 dimensions are possible, found 17", {"shape": (1,) * 17}),
        (ValueError, "negative dimensions", {"shape": (3, -1)}),
        (ValueError, "have 80[0-9]+ bytes each.*more than 2147483615", {"shape": (10**9,), "chunks": (10**9,)}),
        (ValueError, "have 800000000 bytes each, more than 536866816", {"shape": (10**8,), "blocks": (10**8,)}),
        (ValueError, "blocks .4,. must not exceed chunks .3,.", {"shape": (9,), "chunks": (3,), "blocks": (4,)}),
        (ValueError, "must have 1 extents, as the shape has, not 2", {"shape": (9,), "chunks": (3, 3)}),
        (ValueError, "must be at least 1", {"shape": (9,), "chunks": (0,)}),
        (LimitError, "10000000000 chunks, an index holds 268435456", {"shape": (10**10,), "chunks": (1,)}),
        (LimitError, "type text has [0-9]+ bytes, at most 4096", {"shape": 1, "dtype": WIDE}),
        (LimitError, "31", {"shape": 1, "meta": {"m" * 32: 1}}),
        (LimitError, "16", {"shape": 1, "meta": {f"m{n}": 1 for n in range(16)}}),
        (TypeError, "str", {"shape": 1, "attrs": {1: 1}}),
        (TypeError, "attribute", {"shape": 1, "attrs": {"a": object()}}),
        (ValueError, "dims must name 1 dimensions, not 2", {"shape": 1, "dims": ("x", "y")}),
        (TypeError, "dims", {"shape": 1, "dims": "x"}),
        (ValueError, "could not convert|invalid literal", {"shape": 1, "fill_value": "x"}),
        ((OverflowError, ValueError), "256", {"shape": 1, "dtype": "u1", "fill_value": 256}),
        (TypeError, "integer", {"shape": (1.5,)}),
    ],
)
def test_what_is_beyond_a_limit_is_refused_with_limit_and_value(tmp_path, kind, text, options):
    with pytest.raises(kind, match=text):
        b2array.create(tmp_path / "a.b2nd", **options)
    assert list(tmp_path.iterdir()) == []
