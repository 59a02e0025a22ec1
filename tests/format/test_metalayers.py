"""The map of metalayers: it survives, its bytes are msgpack, and damage is refused."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2array import config
from b2array.errors import FormatError, LimitError
from b2array.format import metalayers

# A name is bytes in the file, and text here: what is not UTF-8 becomes lone surrogates.
names = (
    st.binary(max_size=31).filter(lambda raw: b"\0" not in raw).map(lambda raw: raw.decode(errors="surrogateescape"))
)
layers = st.dictionaries(names, st.binary(max_size=50), max_size=16).map(lambda found: tuple(found.items()))


@given(layers, st.integers(0, 100), st.binary(max_size=9))
def test_metalayers_survive_packing(made: metalayers.Layers, start: int, rest: bytes) -> None:
    metalayers.check(made)
    region = bytes(start) + metalayers.pack(made, start, uncounted=0) + rest
    assert metalayers.unpack(region, start) == made
    for name, content in made:
        assert metalayers.find(made, name) == content
    assert metalayers.find(made, "x" * 32) is None


@given(layers.filter(lambda made: all(name.isascii() for name, _ in made)), st.sampled_from([0, 1]))
def test_the_bytes_are_msgpack(made: metalayers.Layers, uncounted: int) -> None:
    raw = metalayers.pack(made, 7, uncounted=uncounted)
    map_size, offsets, contents = msgpack.unpackb(raw)
    assert contents == [content for _, content in made]
    assert list(offsets) == [name for name, _ in made]
    assert [raw[offset - 7] for offset in offsets.values()] == [0xC6] * len(made)
    assert raw[map_size + uncounted] == 0xDC


def test_without_entries_it_is_ten_bytes() -> None:
    assert metalayers.pack((), 0x57, uncounted=0).hex(" ") == "93 cd 00 07 de 00 00 dc 00 00"
    assert metalayers.pack((), 2, uncounted=1).hex(" ") == "93 cd 00 06 de 00 00 dc 00 00"


def test_more_entries_than_are_written_are_read() -> None:
    made = tuple((f"{n}", bytes(n % 5)) for n in range(3000))
    assert metalayers.unpack(metalayers.pack(made, 0, uncounted=0), 0) == made


@pytest.mark.parametrize(("name", "expected"), [("a\0", "without zero bytes"), ("b", "that are distinct")])
def test_names_that_no_writer_makes_are_refused(name: str, expected: str) -> None:
    raw = metalayers.pack(((name, b"1"), ("b", b"2")), 0, uncounted=0)
    with pytest.raises(FormatError, match=expected):
        metalayers.unpack(raw, 0)


def test_limits_are_checked() -> None:
    metalayers.check(tuple((f"{n}" + "x" * 29, b"") for n in range(16)))
    for wrong in (tuple((f"{n}", b"") for n in range(17)), (("x" * 32, b""),)):
        with pytest.raises(LimitError):
            metalayers.check(wrong)
    for wrong in ((("a", b""), ("a", b"")), (("\0", b""),)):
        with pytest.raises(ValueError, match="distinct"):
            metalayers.check(wrong)
    with config.using(limits=config.Limits(metadata_nbytes=2000)):
        metalayers.check((("a", bytes(900)),))
        with pytest.raises(LimitError, match="bytes of metalayers"):
            metalayers.check((("a", bytes(500)), ("b", bytes(500))))


@given(layers.filter(len), st.data())
def test_damage_is_refused_or_stays_inside(made: metalayers.Layers, data: st.DataObject) -> None:
    raw = bytearray(metalayers.pack(made, 0, uncounted=0))
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(0, len(raw))) :]
    try:
        found = metalayers.unpack(bytes(raw), 0)
    except FormatError:
        return
    assert sum(len(content) for _, content in found) <= len(raw)


@given(st.binary(max_size=80))
def test_random_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(FormatError):
        metalayers.unpack(b"\x93\xcd\0\7\xde\xff\xff" + raw, 0)
