"""Extras, checksum records and attribute values: their laws, and what python-blosc2 makes of them."""

from __future__ import annotations

import datetime as dt
import enum
import math
import struct
from collections import OrderedDict, namedtuple
from dataclasses import replace
from decimal import Decimal
from typing import Any
from zlib import crc32

import blosc2
import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from b2array import config
from b2array.codec import chunk, encode
from b2array.codec.cparams import CParams
from b2array.codec.header import ChunkHeader, Special
from b2array.errors import ChecksumError, FormatError, UnsupportedError
from b2array.format import extras, frame
from b2array.format.extras import Extras, Record

REFUSED = (FormatError, UnsupportedError)
GEOMETRY = {"itemsize": 4, "ndim": 2, "nchunks": 10}

# --- the metalayer -------------------------------------------------------------------------------------------------

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
plain = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
known = {"v", "fill", "dims", "dtype", "next", "attrs", "lost", "sizes"}

all_extras = st.builds(
    Extras,
    fill=st.none() | st.binary(min_size=4, max_size=4),
    dims=st.none() | st.tuples(st.none() | st.text(), st.none() | st.text()),
    dtype=st.none() | st.text(),
    next=st.none() | st.integers(0, 2**32),
    attrs=st.dictionaries(st.text(), st.binary()).map(lambda attrs: tuple(attrs.items())),
    lost=st.lists(st.integers(0, 9), unique=True).map(tuple),
    sizes=st.none() | st.binary(),
    unknown=st.dictionaries(st.text().filter(lambda key: key not in known) | st.integers(0, 9), plain).map(
        lambda unknown: tuple(unknown.items())
    ),
)


@given(all_extras)
def test_extras_survive_packing(made: Extras) -> None:
    assert Extras.unpack(made.pack(), **GEOMETRY) == made


def test_arrays_without_dimensions_have_dims_of_none() -> None:
    made = Extras(dims=())
    assert Extras.unpack(made.pack(), itemsize=1, ndim=0, nchunks=1) == made


def test_empty_extras_say_only_their_version() -> None:
    assert msgpack.unpackb(Extras().pack()) == {"v": 1}


@pytest.mark.parametrize(
    "entry",
    [
        {"fill": b"123"},
        {"fill": "1234"},
        {"dims": ["x"]},
        {"dims": ["x", 1]},
        {"dims": "xy"},
        {"dtype": 5},
        {"next": -1},
        {"next": 1.5},
        {"next": True},
        {"attrs": [1]},
        {"attrs": {"a": "text", 5: b""}},
        {"lost": 3},
        {"lost": [10, -1, "x", True]},
        {"sizes": [1]},
    ],
)
def test_what_does_not_fit_is_ignored(entry: dict) -> None:
    assert Extras.unpack(msgpack.packb({"v": 1} | entry), **GEOMETRY) == Extras()


def test_lost_chunks_that_exist_are_kept() -> None:
    assert Extras.unpack(msgpack.packb({"v": 1, "lost": [3, 10, 9]}), **GEOMETRY).lost == (3, 9)


@pytest.mark.parametrize("layer", [None, 5, [], {}, {"v": 0}, {"v": "1"}, {"v": True}, {"fill": b"1234"}])
def test_a_metalayer_that_is_not_ours_is_ignored(layer: object) -> None:
    assert Extras.unpack(msgpack.packb(layer), **GEOMETRY) == Extras()


def test_a_later_version_is_foreign_and_cannot_be_written() -> None:
    found = Extras.unpack(msgpack.packb({"v": 2, "fill": b"1234"}), **GEOMETRY)
    assert found == Extras(foreign=True)
    with pytest.raises(UnsupportedError, match="later version"):
        found.pack()


@given(st.binary(max_size=100))
def test_random_bytes_are_no_error(raw: bytes) -> None:
    for prefix in (b"", b"\x82\xa1v\x01\xa4fill", b"\x82\xa1v\x01\xa1x"):
        found = Extras.unpack(prefix + raw, **GEOMETRY)
        assert found.foreign or Extras.unpack(found.pack(), **GEOMETRY) == found or "nan" in repr(found.unknown)


@pytest.mark.parametrize(
    "raw", [b"\xdd\xff\xff\xff\xff" * 20000, b"\x91" * 100000, b"\xdf\xff\xff\xff\xff", b"\x81\x90\x01"]
)
def test_claims_of_enormous_contents_are_no_error(raw: bytes) -> None:
    assert Extras.unpack(b"\x82\xa1v\x01\xa1x" + raw, **GEOMETRY) == Extras()
    with pytest.raises(FormatError):
        extras.decode_attr(raw)


def test_stock_reads_the_metalayer_as_a_map() -> None:
    made = Extras(fill=b"\0\0\x80\x3f", dims=("x", None), attrs=(("a" * 40, extras.encode_attr((1, 2))),))
    store = blosc2.SChunk(chunksize=400)
    store.vlmeta["b2array"] = msgpack.unpackb(made.pack())
    header = frame.unpack_header(store.to_cframe())
    found = frame.unpack(store.to_cframe(), store.to_cframe()[header.tail_start :])
    assert Extras.unpack(frame.unpack_vlmeta(found.vlmetalayer(extras.LAYER)), **GEOMETRY) == made
    packed = frame.pack(replace(found, vlmetalayers=((extras.LAYER, frame.pack_vlmeta(made.pack())),)))
    again = blosc2.schunk_from_cframe(packed.header + packed.tail)
    assert again.vlmeta["b2array"] == store.vlmeta["b2array"]


# --- block sizes ---------------------------------------------------------------------------------------------------


def numbers(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, n, dtype="i4")


def made_chunk(**kwargs: Any) -> bytes:
    return encode.encode(numbers(3000).tobytes(), typesize=4, blocksize=1600, cparams=CParams(**kwargs))


@pytest.mark.parametrize("kwargs", [{}, {"codec": "lz4", "splitmode": "always"}, {"use_dict": True}])
def test_block_bounds_are_where_the_blocks_are(kwargs: dict) -> None:
    raw = made_chunk(**kwargs)
    head = chunk.unpack_head(raw)
    row = extras.sizes_row(head, 8)
    bounds = extras.block_bounds(row)
    np.testing.assert_array_equal(bounds[:-1], head.starts)
    np.testing.assert_array_equal(bounds[1:], head.stops)
    assert bounds[0] == chunk.head_nbytes(raw)
    assert row[0] == len(raw)


@pytest.mark.parametrize(
    "raw",
    [
        encode.encode(numbers(3000).tobytes(), typesize=4, blocksize=1600, cparams=CParams(clevel=0)),
        encode.special_chunk(b"1234", 12000, typesize=4),
        encode.encode(b""),
        made_chunk()[:32] + made_chunk()[36:40] + made_chunk()[32:36] + made_chunk()[40:],
    ],
    ids=["raw", "special", "empty", "out of order"],
)
def test_other_chunks_have_no_block_bounds(raw: bytes) -> None:
    row = extras.sizes_row(chunk.unpack_head(raw), 8)
    assert row[0] == len(raw)
    assert not row[1:].any()
    assert extras.block_bounds(row) is None


def test_rows_that_cannot_be_sizes_have_no_bounds() -> None:
    for row in ([100], [100, 100], [65, 30], [10, 2**32 - 1], [0, 0]):
        assert extras.block_bounds(np.array(row, np.uint32)) is None


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 2**32))
def test_sizes_survive_packing(nchunks: int, nblocks: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 2**32, (nchunks, 1 + nblocks), np.uint32)
    packed = extras.pack_sizes(rows)
    np.testing.assert_array_equal(extras.unpack_sizes(packed, nchunks, nblocks), rows)
    assert extras.unpack_sizes(packed, nchunks + 1, nblocks) is None
    assert extras.unpack_sizes(packed[:-1], nchunks, nblocks) is None
    assert extras.unpack_sizes(packed + b"\0", nchunks, nblocks) is None


def test_sizes_that_get_large_are_left_out() -> None:
    rows = np.random.default_rng(0).integers(0, 2**32, (2**10, 2**8 + 1), np.uint32)
    assert extras.pack_sizes(rows) is None
    assert extras.pack_sizes(rows[:-20]) is not None
    assert extras.pack_sizes(np.zeros((2**15, 2**9), np.uint32)) is not None
    assert extras.pack_sizes(np.broadcast_to(np.uint32(0), (2**20, 2**10))) is None


def test_enormous_sizes_are_not_decoded() -> None:
    huge = encode.special_chunk(Special.ZEROS, 2**30, typesize=4)
    assert extras.unpack_sizes(huge, 2**18, 2**10 - 1) is None
    with config.using(limits=config.Limits(metadata_nbytes=2**30)):
        assert extras.unpack_sizes(huge, 2**18, 2**10 - 1).shape == (2**18, 2**10)


@given(st.binary(max_size=100))
def test_random_bytes_are_no_sizes(raw: bytes) -> None:
    assert extras.unpack_sizes(raw, 3, 4) is None


# --- records -------------------------------------------------------------------------------------------------------

CHUNKS = {
    "streams": made_chunk(),
    "dictionary": made_chunk(use_dict=True),
    "raw": encode.encode(numbers(3000).tobytes(), typesize=4, blocksize=1600, cparams=CParams(clevel=0)),
    "value": encode.special_chunk(b"1234", 12000, typesize=4),
    "zeros": encode.special_chunk(Special.ZEROS, 12000, typesize=4),
    "empty": encode.encode(b""),
    "stock": blosc2.compress2(numbers(100_000), typesize=4, blocksize=4000, nthreads=2),
}
NBLOCKS = {"streams": 8, "dictionary": 8, "raw": 8, "value": 0, "zeros": 0, "empty": 0, "stock": 100}


@pytest.mark.parametrize("name", CHUNKS)
def test_a_record_speaks_for_every_byte_of_a_chunk(name: str) -> None:
    raw = CHUNKS[name]
    packed = extras.pack_record(raw + b"what follows the chunk")
    record = extras.unpack_record(packed + b"garbage")
    head = chunk.unpack_head(raw)
    assert len(packed) == extras.record_nbytes(NBLOCKS[name]) == 20 + 4 * NBLOCKS[name]
    assert len(record.block_crcs) == NBLOCKS[name]
    head_nbytes = chunk.head_nbytes(raw)
    extras.check_head(record, raw[:head_nbytes])
    covered = np.zeros(len(raw), bool)
    covered[:head_nbytes] = True
    for n, (start, stop) in enumerate(zip(head.starts, head.stops, strict=True)):
        extras.check_blocks(np.array(record.block_crcs, "u4"), [n], memoryview(raw), [int(start)], [int(stop)])
        covered[start:stop] = True
    assert covered.all()


def test_the_record_has_the_documented_bytes() -> None:
    raw = CHUNKS["raw"]
    blocks = [raw[start : start + 1600] for start in range(32, len(raw), 1600)]
    body = b"b2ck" + struct.pack("<HHII8I", 1, 0, 8, crc32(raw[:32]), *map(crc32, blocks))
    assert extras.pack_record(raw) == body + struct.pack("<I", crc32(body))
    whole = CHUNKS["value"]
    assert extras.unpack_record(extras.pack_record(whole)) == Record(crc32(whole), ())


def test_differences_are_named() -> None:
    raw = bytearray(CHUNKS["streams"])
    record = extras.unpack_record(extras.pack_record(raw))
    head = chunk.unpack_head(raw)
    starts, stops = head.starts[2:5].tolist(), head.stops[2:5].tolist()
    raw[starts[1] + 5] ^= 1
    with pytest.raises(ChecksumError, match="of block 3, found"):
        extras.check_blocks(np.array(record.block_crcs, "u4"), range(2, 5), memoryview(raw), starts, stops)
    with pytest.raises(ChecksumError, match="header and block starts"):
        extras.check_head(record, raw[: chunk.head_nbytes(raw) - 1])


@pytest.mark.parametrize("name", ["streams", "value"])
def test_a_damaged_record_is_none(name: str) -> None:
    packed = extras.pack_record(CHUNKS[name])
    for size in range(len(packed)):
        assert extras.unpack_record(packed[:size]) is None
    for at in range(len(packed)):
        for bit in range(8):
            if at in (6, 7):
                continue
            damaged = bytearray(packed)
            damaged[at] ^= 1 << bit
            assert extras.unpack_record(damaged) is None


@given(st.binary(max_size=100))
def test_random_bytes_are_no_record(raw: bytes) -> None:
    assert extras.unpack_record(raw) is None
    assert extras.unpack_record(b"b2ck\1\0\0\0" + raw) is None


@given(st.binary(max_size=100))
def test_what_is_no_chunk_has_no_record(raw: bytes) -> None:
    for at in range(3):
        try:
            packed = extras.pack_record(CHUNKS["streams"][: 20 * at] + raw)
        except REFUSED:
            continue
        assert extras.unpack_record(packed) is not None


# --- attributes ----------------------------------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        if not isinstance(b, np.ndarray) or (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        if a.dtype == object:
            return all(same(x, y) for x, y in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True))
        return a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


names = st.text(st.characters(codec="utf-8"), max_size=9)
hashable = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.complex_numbers()
    | names
    | st.binary(max_size=9)
)
arrays = st.one_of(
    npst.arrays(
        npst.scalar_dtypes() | npst.byte_string_dtypes() | npst.unicode_string_dtypes() | npst.nested_dtypes(),
        npst.array_shapes(min_dims=0, min_side=0, max_side=3),
    )
)
tuples = st.lists(hashable, max_size=3).map(tuple)
sets = st.sets(hashable.filter(lambda x: x == x) | tuples.filter(lambda x: x == x), max_size=4)
attributes = st.recursive(
    hashable | arrays | sets | tuples,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(names | st.binary(max_size=3), inner, max_size=4)
    ),
    max_leaves=6,
)


def is_sane(value: Any) -> bool:
    """What both packages keep: no padding between fields (it would become a field), no item without a size."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype.itemsize > 0
    if isinstance(value, list | tuple | set):
        return all(map(is_sane, value))
    return all(map(is_sane, value.values())) if isinstance(value, dict) else True


@given(attributes.filter(is_sane))
def test_attributes_survive_and_are_those_of_stock(value: Any) -> None:
    packed = extras.encode_attr(value)
    assert same(extras.decode_attr(packed), value)
    stock_bytes = blosc2.msgpack_utils.msgpack_packb(value)
    assert packed == stock_bytes
    assert same(blosc2.msgpack_utils.msgpack_unpackb(packed), value)


VALUES = [
    None, True, 0, -(2**63), 2**64 - 1, 1.5, float("inf"), 1 + 2j, "é", b"\0\xff", "x" * 70000, [], (), {}, set(),
    (1, (2, [3, ()])), {"a": {"b": (1,)}, b"raw": None}, {1, "a", (2, 3)},
    np.arange(6).reshape(2, 3), np.float32([1.5]), np.array(3), np.zeros((0, 3)), np.array(["ab", "c"]),
    np.array([(1, 2.5)], [("a", "i4"), ("b", ">f8")]),
    np.array([((1, 2), 3)], [("p", [("x", "i1"), ("y", "i2")]), ("q", "u1")]),
    np.array([((1, 2),)], [(("title", "s"), "f4", (2,))]), np.array(["2020-01-01"], "M8[D]"), np.array([3], "m8[s]"),
    np.array([1, "a", (2, 3), None, {"b": [1]}], object), np.array([[1, 2]], object),
]  # fmt: skip


@pytest.fixture(scope="module")
def store() -> blosc2.SChunk:
    return blosc2.SChunk(chunksize=400)


def through_frame(store: blosc2.SChunk) -> frame.Frame:
    raw = store.to_cframe()
    header = frame.unpack_header(raw)
    return frame.unpack(raw, raw[header.tail_start :])


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_vlmeta_of_stock_and_attributes_are_one(value: Any, store: blosc2.SChunk) -> None:
    store.vlmeta["name"] = value
    expected = store.vlmeta["name"]
    found = through_frame(store)
    packed = frame.unpack_vlmeta(found.vlmetalayer("name"))
    assert same(extras.decode_attr(packed), expected)
    ours = replace(found, vlmetalayers=(("name", frame.pack_vlmeta(extras.encode_attr(value))),))
    header, tail, _ = frame.pack(ours)
    again = blosc2.schunk_from_cframe(header + tail)
    assert same(again.vlmeta["name"], expected)


Point = namedtuple("Point", "x y")  # noqa: PYI024
Colour = enum.IntEnum("Colour", "RED")


class Words(list):
    pass


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int8(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float32(1.5), 1.5),
        (np.float64(1.5), 1.5),
        (np.longdouble(1.5), 1.5),
        (np.bool_(True), True),
        (np.complex64(1 + 2j), 1 + 2j),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (frozenset([1]), {1}),
        (bytearray(b"a"), b"a"),
        (Point(1, 2), (1, 2)),
        (Colour.RED, 1),
        (OrderedDict(a=1), {"a": 1}),
        (Words("ab"), ["a", "b"]),
        (np.arange(6)[::2], np.array([0, 2, 4])),
        (np.asfortranarray([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]])),
    ],
)
def test_relatives_of_these_types_become_plain(value: Any, plain: Any) -> None:
    assert same(extras.decode_attr(extras.encode_attr(value)), plain)
    assert same(extras.decode_attr(extras.encode_attr([value])), [plain])


def deep(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


def deep_sets(levels: int) -> frozenset:
    value: frozenset = frozenset()
    for _ in range(levels):
        value = frozenset([value, 1])
    return value


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        dt.datetime(2020, 1, 1),  # noqa: DTZ001
        Decimal(1),
        slice(1),
        object(),
        ...,
        {1: 2},
        {(1, 2): 3},
        "\ud800",
        np.datetime64("2020"),
        np.timedelta64(3, "s"),
        np.ma.masked_array([1, 2], [True, False]),
        np.array([1.0], ml_dtypes.bfloat16),
        np.array(["a"], np.dtypes.StringDType()),
        np.zeros(2, np.dtype([("a", "i1"), ("b", "i4")], align=True)),
        np.array([object()]),
        np.array([(1, object())], [("a", "i4"), ("b", "O")]),
        deep(2000),
        {frozenset([4])},
        deep_sets(100),
        {"a": [1, (2, object())]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_an_attribute_cannot_hold_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="an attribute cannot hold"):
        extras.encode_attr(value)


def test_frames_and_references_in_attributes_stay_as_they_are(store: blosc2.SChunk) -> None:
    store.vlmeta["name"] = [blosc2.asarray(np.arange(3)), 1]
    raw = frame.unpack_vlmeta(through_frame(store).vlmetalayer("name"))
    embedded, one = extras.decode_attr(raw)
    assert (embedded.code, one) == (42, 1)
    np.testing.assert_array_equal(blosc2.ndarray_from_cframe(embedded.data)[:], np.arange(3))
    assert extras.encode_attr([embedded, one]) == raw
    reference = msgpack.ExtType(43, msgpack.packb({"kind": "ref", "version": 1, "ref": {"urlpath": "/etc/passwd"}}))
    assert extras.decode_attr(msgpack.packb(reference)) == reference


def test_values_that_only_stock_could_write_are_read() -> None:
    assert extras.decode_attr(blosc2.msgpack_utils.msgpack_packb({1: 2})) == {1: 2}
    assert extras.decode_attr(msgpack.packb(msgpack.Timestamp(5, 6))) == msgpack.Timestamp(5, 6)


def ndarray(**payload: Any) -> bytes:
    return msgpack.packb(msgpack.ExtType(46, msgpack.packb(payload)))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x91",
        b"\x01\x01",
        b"\xa1\xff",
        b"\x81\x90\x01",
        msgpack.packb(msgpack.ExtType(44, b"short")),
        msgpack.packb(msgpack.ExtType(45, b"\x01")),
        msgpack.packb(msgpack.ExtType(45, b"\x91\x90")),
        msgpack.packb(msgpack.ExtType(46, b"\x01")),
        ndarray(),
        ndarray(shape=[1], dtype={"str": "<i4"}),
        ndarray(shape=[1], dtype={"str": "<i4"}, data=b"123"),
        ndarray(shape=[1], dtype={"str": "nonsense"}, data=b"1234"),
        ndarray(shape=[1], dtype={"descr": [["a"]]}, data=b"1234"),
        ndarray(shape=[1], dtype={"descr": [["a", "<i4", 5]]}, data=b"1234"),
        ndarray(shape=[1], dtype={"descr": 5}, data=b"1234"),
        ndarray(shape=[1], dtype={"descr": []}, data=b""),
        ndarray(shape=[1], dtype={"str": "(2,)<i2"}, data=b"1234"),
        ndarray(shape=[1], dtype=5, data=b"1234"),
        ndarray(shape=[-1], dtype={"str": "<i4"}, data=b"1234"),
        ndarray(shape=["1"], dtype={"str": "<i4"}, data=b"1234"),
        ndarray(shape=[2**62, 2**62, 0], dtype={"str": "<i4"}, data=b""),
        ndarray(shape=[1] * 100, dtype={"str": "<i4"}, data=b"1234"),
        ndarray(shape=[2], values=[1]),
        ndarray(shape=[0, 2**62, 2**62], values=[]),
    ],
)
def test_damaged_values_are_format_errors(raw: bytes) -> None:
    with pytest.raises(FormatError):
        extras.decode_attr(raw)


def test_arrays_of_objects_are_not_made_from_bytes() -> None:
    with pytest.raises(UnsupportedError, match="references"):
        extras.decode_attr(ndarray(shape=[1], dtype={"str": "|O"}, data=bytes(8)))
    with pytest.raises(UnsupportedError, match="references"):
        extras.decode_attr(ndarray(shape=[1], dtype={"descr": [["a", "O"]]}, data=bytes(8)))


def test_nested_extensions_end_in_a_format_error() -> None:
    raw = b"\x90"
    for _ in range(3000):
        raw = msgpack.packb(msgpack.ExtType(45, raw))
    with pytest.raises(FormatError, match="inside each other"):
        extras.decode_attr(raw)


@given(st.binary(max_size=60), st.sampled_from([b"", b"\xc7\x30\x2e", b"\xc7\x20\x2d\x91", b"\x93\xa9__tuple__"]))
def test_random_values_are_read_or_refused(raw: bytes, prefix: bytes) -> None:
    try:
        extras.decode_attr(prefix + raw)
    except REFUSED:
        return


@given(attributes.filter(is_sane), st.data())
def test_damaged_attributes_are_read_or_refused(value: Any, data: st.DataObject) -> None:
    raw = bytearray(extras.encode_attr(value))
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    try:
        extras.decode_attr(raw[: data.draw(st.integers(0, len(raw)))])
    except REFUSED:
        return


def test_a_record_of_a_chunk_needs_its_bytes() -> None:
    raw = CHUNKS["streams"]
    assert ChunkHeader.unpack(raw).cbytes == len(raw)
    with pytest.raises(FormatError):
        extras.pack_record(raw[:-1])
