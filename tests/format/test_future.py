"""Parts of later formats are read as far as they can be, and nothing writes to them; the error names the part."""

from __future__ import annotations

import blosc2
import numpy as np
import pytest

import b2array
from b2array.errors import FormatError, UnsupportedError

VALUES = np.arange(20.0)


def written(path, **options):
    stock = blosc2.asarray(VALUES, urlpath=str(path), mode="w", chunks=(10,), blocks=(5,), **options)
    stock.schunk.vlmeta["mine"] = 1
    return stock


def with_byte(path, find, value):
    """Change a byte of a file; `find` says where it is."""
    raw = bytearray(path.read_bytes())
    raw[find(raw)] = value
    path.write_bytes(raw)


def trailer_version(raw):
    return len(raw) - int.from_bytes(raw[-22:-18], "big") + 1


def array_version(raw):
    return raw.index(b"\x97\x00\x01") + 1  # seven parts, version 0, one dimension


WRITES = {
    "an item": lambda a: a.__setitem__(3, 7.0),
    "all items": lambda a: a.__setitem__(..., 7.0),
    "an attribute": lambda a: a.attrs.update(other=2),
    "a shape": lambda a: a.resize(30),
    "a snapshot": lambda a: a.snapshot("now"),
}
PARTS = {
    "trailer": (trailer_version, 2, r"a trailer of version 2 \(known is 1\)"),
    "array": (array_version, 1, r"a metalayer 'b2nd' of version 1 \(known is 0\)"),
}


@pytest.mark.parametrize("part", PARTS)
def test_frames_of_later_versions_are_read_and_not_written(tmp_path, part):
    find, value, message = PARTS[part]
    path = tmp_path / "a.b2nd"
    written(path)
    with_byte(path, find, value)
    before = path.read_bytes()
    array = b2array.open(path, "r+")
    np.testing.assert_array_equal(array[...], VALUES)
    assert array.attrs["mine"] == 1
    for write in WRITES.values():
        with pytest.raises(UnsupportedError, match=rf"{message}, so it can be read, but not written"):
            write(array)
    assert path.read_bytes() == before
    np.testing.assert_array_equal(array.copy(chunks=4)[...], VALUES)


def test_chunks_of_later_versions_are_read_and_not_changed_in_part(tmp_path):
    path = tmp_path / "a.b2nd"
    stock = written(path)
    first = bytes(stock.schunk.get_chunk(0))
    with_byte(path, lambda raw: raw.index(first), 7)
    array = b2array.open(path, "r+")
    np.testing.assert_array_equal(array[...], VALUES)
    with pytest.raises(
        UnsupportedError, match=r"a chunk of version 7 \(known are up to 6\) can be read, but not written"
    ):
        array[3] = 7.0
    np.testing.assert_array_equal(b2array.open(path)[...], VALUES)
    array[13] = 7.0
    array[:10] = 8.0
    np.testing.assert_array_equal(b2array.open(path)[...], [*[8.0] * 10, 10, 11, 12, 7, *range(14, 20)])


@pytest.mark.parametrize("write", ["append_chunk", "insert_chunk", "update_chunk"])
def test_chunks_of_later_versions_are_not_put_into_frames(write):
    chunks = b2array.create_schunk(chunksize=80, typesize=8)
    chunks.append_data(VALUES[:10])
    chunk = b"\x07" + chunks.get_chunk(0)[1:]
    numbers = () if write == "append_chunk" else (0,)
    with pytest.raises(UnsupportedError, match="version 7"):
        getattr(chunks, write)(*numbers, chunk)
    assert b2array.decompress(chunk) == VALUES[:10].tobytes()


def test_a_fingerprint_of_others_is_not_ours(tmp_path):
    """Stock does not look at it."""
    path = tmp_path / "a.b2nd"
    written(path)
    with_byte(path, lambda raw: slice(len(raw) - 17, len(raw)), b"\x03" + bytes(range(16)))
    array = b2array.open(path, "r+")
    np.testing.assert_array_equal(array[...], VALUES)
    assert not array._handle.frame.is_ours
    array[3] = 7.0
    assert b2array.open(path)._handle.frame.is_ours
    assert blosc2.open(str(path))[3] == 7.0


def test_damage_of_a_frame_of_ours_stays_damage(tmp_path):
    path = tmp_path / "a.b2nd"
    b2array.asarray(VALUES, url=path)
    with_byte(path, lambda raw: raw.rindex(b"b2array"), ord("c"))
    with pytest.raises(FormatError, match="expected the fingerprint"):
        b2array.open(path)


def test_stock_has_room_for_metalayers_of_its_own(tmp_path):
    path = tmp_path / "a.b2nd"
    attrs = {f"attr{n}": n for n in range(20)}
    b2array.asarray(VALUES, url=path, chunks=(10,), blocks=(5,), attrs=attrs)
    stock = blosc2.open(str(path), mode="a")
    assert len(stock.schunk.vlmeta) == 13
    for n in range(3):
        stock.schunk.vlmeta[f"theirs{n}"] = n
    stock[0] = 7.0
    del stock
    array = b2array.open(path, "r+")
    assert dict(array.attrs) == {**attrs, "theirs0": 0, "theirs1": 1, "theirs2": 2}
    array[1] = 8.0
    assert blosc2.open(str(path))[:2].tolist() == [7.0, 8.0]
