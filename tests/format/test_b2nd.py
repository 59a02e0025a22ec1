"""The b2nd metalayer: against the bytes that stock Blosc2 writes, and against bytes that nobody should have written."""

from __future__ import annotations

import struct
import subprocess
import sys
from math import prod

import blosc2
import hypothesis.extra.numpy as npst
import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from b2array import config
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.format import b2nd, dtypes
from b2array.grid.layout import Layout

REFUSED = (FormatError, UnsupportedError)
FLOAT64_1000x1000 = bytes.fromhex(
    "97 00 02 92 d3 00000000000003e8 d3 00000000000003e8 92 d2 000003e8 d2 000003e8 92 d2 00000019 d2 000003e8"
    "00 db 00000003 3c6638"
)


def scalar_dtypes() -> st.SearchStrategy[np.dtype]:
    return st.one_of(
        npst.boolean_dtypes(),
        npst.integer_dtypes(endianness="?"),
        npst.unsigned_integer_dtypes(endianness="?"),
        npst.floating_dtypes(endianness="?", sizes=(16, 32, 64, 128)),
        npst.complex_number_dtypes(endianness="?", sizes=(64, 128, 256)),
        npst.datetime64_dtypes(endianness="?"),
        npst.timedelta64_dtypes(endianness="?"),
        npst.byte_string_dtypes(endianness="?", min_len=1, max_len=300),
        npst.unicode_string_dtypes(endianness="?", min_len=1, max_len=70),
        st.integers(1, 300).map(lambda n: np.dtype(f"V{n}")),
    )


NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=5)


@st.composite
def structured(draw: st.DrawFn, items: st.SearchStrategy[np.dtype]) -> np.dtype:
    names = draw(st.lists(NAMES, min_size=2, max_size=8, unique=True))
    half = len(names) // 2
    names, titles = names[:half], names[half : 2 * half]
    formats = [draw(items) for _ in names]
    kind = draw(st.sampled_from(["packed", "aligned", "titles", "offsets"]))
    if kind == "aligned":
        return np.dtype(list(zip(names, formats, strict=True)), align=True)
    if kind == "titles":
        return np.dtype([((t, n), f) for t, n, f in zip(titles, names, formats, strict=True)])
    if kind == "packed":
        return np.dtype(list(zip(names, formats, strict=True)))
    offsets, at = [], 0
    for dtype in formats:
        at += draw(st.integers(0, 9))
        offsets.append(at)
        at += dtype.itemsize
    spec = {"names": names, "formats": formats, "offsets": offsets, "itemsize": at + draw(st.integers(0, 9))}
    return np.dtype(spec)


def subarrays(items: st.SearchStrategy[np.dtype]) -> st.SearchStrategy[np.dtype]:
    shapes = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
    return st.tuples(items, shapes).map(np.dtype)


DTYPES = st.one_of(
    scalar_dtypes(),
    structured(st.recursive(scalar_dtypes(), lambda s: structured(s) | subarrays(s), max_leaves=4)),
)


@st.composite
def layouts(draw: st.DrawFn, among: st.SearchStrategy[np.dtype] = DTYPES) -> Layout:
    ndim = draw(st.integers(0, 16))
    extent = st.integers(0 if draw(st.booleans()) else 1, 7)
    shape = tuple(draw(extent) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1 if s else 0, 3)) for s in shape)
    blocks = tuple(draw(st.integers(1 if s else 0, 3)) for s in shape)
    dtype = draw(among)
    assume(prod(4 if c else 0 for c in chunks) * dtype.itemsize < 2**31)
    assume(len(str(dtype)) < 4000)
    return Layout(shape, chunks, blocks, dtype, dtypes.dtype_text(dtype))


@given(layouts())
def test_a_layout_survives_packing(layout: Layout) -> None:
    back = b2nd.unpack(b2nd.pack(layout))
    assert back == layout
    assert back.dtype.fields == layout.dtype.fields
    assert b2nd.unpack(b2nd.pack(layout) + b"further bytes", chunksize=layout.chunk_nbytes) == layout


def stock_metalayer(array: blosc2.NDArray) -> bytes:
    cframe = array.to_cframe()
    start = cframe.index(b"\xa4b2nd\xd2") + 6
    (offset,) = struct.unpack_from(">i", cframe, start)
    (size,) = struct.unpack_from(">I", cframe, offset + 1)
    return cframe[offset + 5 : offset + 5 + size]


@given(DTYPES)
@example(np.dtype("V3"))
@example(np.dtype({"names": ["a", "b"], "formats": ["i4", ("S3", (2,))], "offsets": [0, 4], "itemsize": 12}))
def test_the_bytes_are_those_of_stock(dtype: np.dtype) -> None:
    # NumPy's text of an aligned record beside a packed one stands for another type, and stock writes it all the same.
    assume(dtypes.dtype_text(dtype) in (dtype.str, str(dtype)))
    array = blosc2.zeros((7, 5), dtype=dtype, chunks=(4, 4), blocks=(3, 2))
    layout = Layout((7, 5), (4, 4), (3, 2), dtype, dtypes.dtype_text(dtype))
    stored = stock_metalayer(array)
    assert b2nd.pack(layout) == stored
    assert b2nd.unpack(stored) == layout


@pytest.mark.parametrize(
    ("shape", "chunks", "blocks"),
    [
        ((), (), ()),
        ((0,), None, None),
        ((0, 5), None, None),
        ((0, 5), (3, 5), (2, 2)),
        ((5, 0, 3), (2, 2, 2), (1, 1, 1)),
        ((2,) * 16, (2,) * 16, (1,) * 16),
        ((10, 7), (4, 4), (3, 2)),
        ((3,), (100,), (7,)),
    ],
)
def test_geometry_is_that_of_stock(shape: tuple, chunks: tuple | None, blocks: tuple | None) -> None:
    given_parts = {"chunks": chunks, "blocks": blocks} if chunks else {}
    array = blosc2.zeros(shape, dtype="<i4", **given_parts)
    layout = b2nd.unpack(stock_metalayer(array))
    assert (layout.shape, layout.chunks, layout.blocks) == (array.shape, array.chunks, array.blocks)
    assert layout.extended_chunks == tuple(
        -(-c // b) * b if b else 0 for c, b in zip(array.chunks, array.blocks, strict=True)
    )
    assert layout.chunk_nbytes == array.schunk.chunksize
    assert layout.nbytes == array.schunk.nbytes
    assert layout.nchunks == array.schunk.nchunks
    assert layout.block_nbytes == array.schunk.blocksize
    assert layout.itemsize == 4
    assert layout.nblocks == prod(layout.block_grid)
    assert b2nd.pack(layout) == stock_metalayer(array)


def test_the_documented_example_is_read() -> None:
    layout = b2nd.unpack(FLOAT64_1000x1000)
    assert layout == Layout((1000, 1000), (1000, 1000), (25, 1000), np.dtype("<f8"), "<f8")
    assert b2nd.pack(layout) == FLOAT64_1000x1000


def test_sixteen_dimensions_have_the_marker_a0() -> None:
    layout = Layout((1,) * 16, (1,) * 16, (1,) * 16, np.dtype("i1"), "|i1")
    assert b2nd.pack(layout)[3] == 0xA0
    assert b2nd.unpack(b2nd.pack(layout)) == layout


def test_the_size_of_a_chunk_decides_the_size_of_an_item() -> None:
    layout = Layout((10,), (10,), (5,), np.dtype("u1"), "|u1")
    back = b2nd.unpack(b2nd.pack(layout), chunksize=40)
    assert back.dtype == np.dtype("V4")
    assert back.itemsize == 4
    assert b2nd.pack(back) == b2nd.pack(layout)
    assert b2nd.unpack(b2nd.pack(layout), chunksize=-1) == layout
    with pytest.raises(FormatError, match="chunks of 10 items, found chunks of 45 bytes"):
        b2nd.unpack(b2nd.pack(layout), chunksize=45)


def test_caterva_names_no_type() -> None:
    raw = b"\x95" + FLOAT64_1000x1000[1:-9]
    layout = b2nd.unpack_caterva(raw, 8)
    assert layout == Layout((1000, 1000), (1000, 1000), (25, 1000), np.dtype("V8"), "")
    with pytest.raises(ValueError, match="without a type"):
        b2nd.pack(layout)
    with pytest.raises(FormatError):
        b2nd.unpack_caterva(raw, 0)
    with pytest.raises(FormatError):
        b2nd.unpack_caterva(raw[:-1], 8)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("<f8", "<f8"),
        (">i4", ">i4"),
        ("float64", "<f8"),
        ("'<f8'", "<f8"),
        ("[('a', '<i4'), ('b', 'S3', (2,))]", [("a", "<i4"), ("b", "S3", (2,))]),
        ("('<f4', (2,))", ("<f4", (2,))),
        ("[('a', 'S0'), ('b', 'i1')]", [("a", "S0"), ("b", "i1")]),
    ],
)
def test_type_texts_are_understood(text: str, dtype: object) -> None:
    assert dtypes.parse_dtype(text) == np.dtype(dtype)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "None",
        "5",
        "{1, 2}",
        "S0",
        "V0",
        "[]",
        "(0,)f4",
        "f4\0",
        "(" * 3000 + ")" * 3000,
        "-" * 4095 + "1",
        "1+" * 2000 + "1",
        "[" * 150 + "]" * 150,
        "('f4', (1000000, 1000000, 1000000))",
        "[('a', 'f4'), ('a', 'f4')]",
        "{'names': ['a'], 'formats': ['f4'], 'offsets': [2147483647]}",
        "{'names': ['a'], 'formats': ['f4'], 'offsets': [-4]}",
        "[('x', {'names': ['a'], 'formats': ['f4'], 'offsets': [2147483647]}), ('y', 'V2147483646')]",
        "__import__('os').system('true')",
        "open('x')",
        "M8[3/0s]",
        "i4," * 2000,
    ],
)
def test_other_type_texts_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        dtypes.parse_dtype(text)


@pytest.mark.parametrize(
    "text", ["O", "object", "T", "[('a', 'O')]", "[('a', [('b', 'i4'), ('c', 'O', (2,))])]", "('O', (2,))"]
)
def test_objects_are_refused_at_any_depth(text: str) -> None:
    with pytest.raises(UnsupportedError, match="references"):
        dtypes.parse_dtype(text)


@pytest.mark.parametrize(
    "dtype", ["O", "S0", [("a", "O")], ml_dtypes.bfloat16, [("a", ml_dtypes.bfloat16)], ("O", (2,))]
)
def test_types_that_no_text_stands_for_are_refused(dtype: object) -> None:
    with pytest.raises(TypeError, match="cannot be stored"):
        dtypes.dtype_text(np.dtype(dtype))


INNER = [("a", "?"), ("b", "<i2")]


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype([("x", np.dtype(INNER, align=True))]),
        np.dtype([("x", np.dtype(INNER))], align=True),
        np.dtype([(("title", "x"), np.dtype(INNER, align=True), (2,)), ("y", "S0")]),
    ],
    ids=["aligned in packed", "packed in aligned", "titles and subarrays"],
)
def test_types_that_numpy_prints_wrongly_have_a_text_of_their_own(dtype: np.dtype) -> None:
    text = dtypes.dtype_text(dtype)
    assert text != str(dtype)
    assert dtypes.parse_dtype(text) == dtype
    assert dtypes.parse_dtype(text).fields == dtype.fields


@pytest.mark.parametrize(
    "name",
    ["bfloat16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("float8_e5m2", "int4", "float4_e2m1fn"))],
)
def test_names_of_ml_dtypes_are_understood(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    stored = stock_metalayer(blosc2.zeros((3,), dtype="V1", chunks=(3,), blocks=(3,)))
    named = stored[:-7] + struct.pack(">I", len(name)) + name.encode()
    assert b2nd.unpack(named).dtype == dtype
    code = f"from b2array.format import dtypes; print(dtypes.parse_dtype({name!r}).itemsize)"
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"%d\n" % dtype.itemsize
    )


def test_other_contents_of_ml_dtypes_are_no_types() -> None:
    for name in ("finfo", "__name__", "numpy", "bfloat17"):
        assert dtypes.extension_dtype(name) is None


def test_long_type_texts_are_refused() -> None:
    dtype = np.dtype([(f"field {n}", "<f8") for n in range(300)])
    with pytest.raises(LimitError):
        dtypes.dtype_text(dtype)
    with config.using(limits=config.Limits(dtype_text=2**20)):
        raw = b2nd.pack(Layout((), (), (), dtype, dtypes.dtype_text(dtype)))
        assert b2nd.unpack(raw).dtype == dtype
    with pytest.raises(FormatError, match="4096"):
        b2nd.unpack(raw)


@pytest.mark.parametrize(
    ("shape", "chunks", "blocks", "itemsize"),
    [
        ((1,) * 17, (1,) * 17, (1,) * 17, 1),
        ((1,), (1, 1), (1,), 1),
        ((1,), (1,), (), 1),
        ((-1,), (1,), (1,), 1),
        ((2**63,), (1,), (1,), 1),
        ((1,), (2**31,), (1,), 1),
        ((1,), (1,), (-1,), 1),
        ((5,), (0,), (5,), 1),
        ((5,), (5,), (0,), 1),
        ((5,), (2**30,), (2**30,), 1),
        ((2**31 - 1,), (2**31 - 1,), (2**20,), 1),
        ((2**16, 2**16), (2**16, 2**16), (1, 1), 1),
        ((2**62,), (1,), (1,), 8),
    ],
)
def test_sizes_that_do_not_fit_are_refused(shape: tuple, chunks: tuple, blocks: tuple, itemsize: int) -> None:
    with pytest.raises(ValueError, match=r"expected|at most"):
        Layout(shape, chunks, blocks, np.dtype(f"V{itemsize}"), f"|V{itemsize}")


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (2, 17),  # dimensions
        (4, 0xCF),  # marker of an extent
        (5, 0xFF),  # negative extent
        (24, 0xFF),  # negative chunk extent
        (-8, 0xDA),  # marker of the text
        (-4, 0x04),  # text beyond the end
        (-1, 0xFF),  # not UTF-8
    ],
)
def test_a_wrong_field_is_a_format_error(at: int, value: int) -> None:
    raw = bytearray(FLOAT64_1000x1000)
    raw[at] = value
    with pytest.raises(FormatError):
        b2nd.unpack(raw)


def test_an_unknown_dtype_format_is_unsupported() -> None:
    raw = bytearray(FLOAT64_1000x1000)
    raw[-9] = 1
    with pytest.raises(UnsupportedError, match="format 1"):
        b2nd.unpack(raw)


def test_every_truncation_is_a_format_error() -> None:
    for size in range(len(FLOAT64_1000x1000)):
        with pytest.raises(FormatError):
            b2nd.unpack(FLOAT64_1000x1000[:size])


@given(layouts(st.sampled_from([np.dtype("<f8"), np.dtype([("a", "<i4"), ("b", "S3", (2,))])])), st.data())
def test_changed_bytes_parse_or_are_refused(layout: Layout, data: st.DataObject) -> None:
    raw = bytearray(b2nd.pack(layout))
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    try:
        back = b2nd.unpack(raw, chunksize=data.draw(st.integers(-1, 10**6)))
    except REFUSED:
        return
    assert back.itemsize > 0
    assert back.chunk_nbytes < 2**31


@given(st.binary(max_size=100))
def test_random_bytes_parse_or_are_refused(raw: bytes) -> None:
    for prefix in (b"", b"\x97\x00\x01\x91\xd3" + bytes(7)):
        try:
            b2nd.unpack(prefix + raw)
        except REFUSED:
            continue


@given(st.text(max_size=60) | st.text("'\"()[]{}:,fiOUSV<>|0123456789 abnmesorftd", max_size=60))
def test_random_texts_are_types_or_refused(text: str) -> None:
    try:
        dtype = dtypes.parse_dtype(text)
    except REFUSED:
        return
    assert dtype.itemsize > 0
    assert not dtype.hasobject
