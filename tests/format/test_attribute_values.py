"""Values of attributes: their laws, and what python-blosc2 makes of them."""

from __future__ import annotations

import datetime as dt
import enum
import math
import struct
from collections import OrderedDict, namedtuple
from dataclasses import replace
from decimal import Decimal
from typing import Any

import blosc2
import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from b2array.errors import FormatError, UnsupportedError
from b2array.format import attributes, frame
from b2array.format.frame_header import unpack_header

REFUSED = (FormatError, UnsupportedError)


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
        return same([*a.items()], [*b.items()])
    if isinstance(a, set | frozenset):  # a NaN in them is another one
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
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
values = st.recursive(
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


@given(values.filter(is_sane))
@example({(math.nan,)})
def test_attributes_survive_and_are_those_of_stock(value: Any) -> None:
    packed = attributes.encode_attr(value)
    assert same(attributes.decode_attr(packed), value)
    stock_bytes = blosc2.msgpack_utils.msgpack_packb(value)
    assert packed == stock_bytes
    assert same(blosc2.msgpack_utils.msgpack_unpackb(packed), value)


VALUES = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    float("inf"),
    1 + 2j,
    "é",
    b"\0\xff",
    "x" * 70000,
    [],
    (),
    {},
    set(),
    (1, (2, [3, ()])),
    {"a": {"b": (1,)}, b"raw": None},
    {1, "a", (2, 3)},
    np.arange(6).reshape(2, 3),
    np.float32([1.5]),
    np.array(3),
    np.zeros((0, 3)),
    np.array(["ab", "c"]),
    np.array([(1, 2.5)], [("a", "i4"), ("b", ">f8")]),
    np.array([((1, 2), 3)], [("p", [("x", "i1"), ("y", "i2")]), ("q", "u1")]),
    np.array([((1, 2),)], [(("title", "s"), "f4", (2,))]),
    np.array(["2020-01-01"], "M8[D]"),
    np.array([3], "m8[s]"),
    np.array([1, "a", (2, 3), None, {"b": [1]}], object),
    np.array([[1, 2]], object),
]


@pytest.fixture(scope="module")
def store() -> blosc2.SChunk:
    return blosc2.SChunk(chunksize=400)


def through_frame(store: blosc2.SChunk) -> frame.Frame:
    raw = store.to_cframe()
    header = unpack_header(raw)
    return frame.unpack(raw, raw[header.tail_start :])


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_vlmeta_of_stock_and_attributes_are_one(value: Any, store: blosc2.SChunk) -> None:
    store.vlmeta["name"] = value
    expected = store.vlmeta["name"]
    found = through_frame(store)
    packed = frame.unpack_vlmeta(found.vlmetalayer("name"))
    assert same(attributes.decode_attr(packed), expected)
    ours = replace(found, vlmetalayers=(("name", frame.pack_vlmeta(attributes.encode_attr(value))),))
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
    assert same(attributes.decode_attr(attributes.encode_attr(value)), plain)
    assert same(attributes.decode_attr(attributes.encode_attr([value])), [plain])


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
        Decimal(1),
        slice(1),
        object(),
        ...,
        {1: 2},
        {(1, 2): 3},
        "\ud800",
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
        attributes.encode_attr(value)


def test_frames_and_references_in_attributes_stay_as_they_are(store: blosc2.SChunk) -> None:
    store.vlmeta["name"] = [blosc2.asarray(np.arange(3)), 1]
    raw = frame.unpack_vlmeta(through_frame(store).vlmetalayer("name"))
    embedded, one = attributes.decode_attr(raw)
    assert (embedded.code, one) == (42, 1)
    np.testing.assert_array_equal(blosc2.ndarray_from_cframe(embedded.data)[:], np.arange(3))
    assert attributes.encode_attr([embedded, one]) == raw
    reference = msgpack.ExtType(43, msgpack.packb({"kind": "ref", "version": 1, "ref": {"urlpath": "/etc/passwd"}}))
    assert attributes.decode_attr(msgpack.packb(reference)) == reference


def test_values_that_only_stock_could_write_are_read() -> None:
    assert attributes.decode_attr(blosc2.msgpack_utils.msgpack_packb({1: 2})) == {1: 2}
    assert attributes.decode_attr(msgpack.packb(msgpack.Timestamp(5, 6))) == msgpack.Timestamp(5, 6)


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
        attributes.decode_attr(raw)


def test_arrays_of_objects_are_not_made_from_bytes() -> None:
    with pytest.raises(UnsupportedError, match="references"):
        attributes.decode_attr(ndarray(shape=[1], dtype={"str": "|O"}, data=bytes(8)))
    with pytest.raises(UnsupportedError, match="references"):
        attributes.decode_attr(ndarray(shape=[1], dtype={"descr": [["a", "O"]]}, data=bytes(8)))


def test_nested_extensions_end_in_a_format_error() -> None:
    raw = b"\x90"
    for _ in range(3000):
        raw = msgpack.packb(msgpack.ExtType(45, raw))
    with pytest.raises(FormatError, match="inside each other"):
        attributes.decode_attr(raw)


@given(st.binary(max_size=60), st.sampled_from([b"", b"\xc7\x30\x2e", b"\xc7\x20\x2d\x91", b"\x93\xa9__tuple__"]))
def test_random_values_are_read_or_refused(raw: bytes, prefix: bytes) -> None:
    try:
        attributes.decode_attr(prefix + raw)
    except REFUSED:
        return


@given(values.filter(is_sane), st.data())
def test_damaged_attributes_are_read_or_refused(value: Any, data: st.DataObject) -> None:
    raw = bytearray(attributes.encode_attr(value))
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    try:
        attributes.decode_attr(raw[: data.draw(st.integers(0, len(raw)))])
    except REFUSED:
        return


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda pd: pd.Timestamp("2020-01-02 03:04:05.000000006"),
            np.datetime64("2020-01-02T03:04:05.000000006", "ns"),
        ),
        (lambda pd: pd.Timedelta(7, "ns"), np.timedelta64(7, "ns")),
        (lambda pd: [pd.Timestamp("2020-01-02").as_unit("s")], [np.datetime64("2020-01-02T00:00:00", "s")]),
        (lambda pd: pd.Timestamp("1970-01-01T01:00:05.000000006+01:00"), msgpack.Timestamp(5, 6)),
        (lambda pd: pd.Timestamp("1970-01-01T01:00:05+01:00"), dt.datetime(1970, 1, 1, 0, 0, 5, tzinfo=dt.UTC)),
    ],
)
def test_times_of_pandas_are_times(make: Any, expected: Any) -> None:
    value = make(pytest.importorskip("pandas"))
    found = attributes.decode_attr(attributes.encode_attr(value))
    assert type(found) is type(expected)
    assert found == expected
    if isinstance(found, np.generic):
        assert found.dtype == expected.dtype


def test_the_missing_time_of_pandas_is_one() -> None:
    found = attributes.decode_attr(attributes.encode_attr(pytest.importorskip("pandas").NaT))
    assert np.isnat(found)


def test_classes_derived_from_times_are_times() -> None:
    class Day(dt.datetime):
        pass

    found = attributes.decode_attr(attributes.encode_attr(Day(2020, 1, 2, 3)))
    assert found == np.datetime64("2020-01-02T03:00:00", "us")


def test_times_without_a_form_are_refused_by_name() -> None:
    class Odd(dt.timedelta):
        def to_numpy(self) -> object:
            return np.array(self, object)

    with pytest.raises(TypeError, match="the attribute 't' cannot hold this Odd: Odd has no form in msgpack"):
        attributes.encode_attr(Odd(1), "t")
