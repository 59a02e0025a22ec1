"""A frame that other software resized opens, and one that is damaged does not."""

from __future__ import annotations

import gc

import blosc2
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import b2array
from b2array import config
from b2array.codec.cparams import CParams
from b2array.errors import FormatError, UnsupportedError
from b2array.format import fingerprint, frame
from b2array.format.frame_header import FrameType

LAYOUTS = ["contiguous", "sparse"]


def resized_by_stock(url, shape):
    held = blosc2.open(str(url), mode="a")
    held.resize(shape)
    del held
    gc.collect()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 4), (6, 5), (3, 4), (9, 6)], ids=str)
def test_an_array_that_stock_resized_opens(tmp_path, layout, shape):
    values = np.arange(36, dtype="i4").reshape(6, 6)
    a = b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=(4, 4), blocks=(2, 4), layout=layout, attrs={"k": 1})
    before = a.generation
    resized_by_stock(tmp_path / "a.b2nd", shape)
    a.refresh()
    assert a.shape == shape
    assert a.generation != before
    rows, columns = (min(n, 6) for n in shape)
    assert np.array_equal(a[:rows, :columns], values[:rows, :columns])
    a.resize((6, 6))
    assert (a[rows:] == 0).all()
    assert (a[:, columns:] == 0).all()
    assert a.attrs["k"] == 1
    assert a._handle.frame.fingerprint_type == 3
    assert np.array_equal(blosc2.open(str(tmp_path / "a.b2nd"))[...], b2array.load(tmp_path / "a.b2nd"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_writer_notices_that_stock_resized_the_array_meanwhile(tmp_path, layout):
    a = b2array.asarray(np.arange(6), url=tmp_path / "a.b2nd", chunks=(4,), layout=layout)
    resized_by_stock(tmp_path / "a.b2nd", (5,))
    with pytest.raises(IndexError, match="index 5 is out of bounds for axis 0 with size 5"):
        a[5] = 1
    assert b2array.load(tmp_path / "a.b2nd").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cparams": {"nthreads": 1}, "dparams": {"nthreads": 1}},
        {
            "cparams": {
                "codec": blosc2.Codec.LZ4,
                "clevel": 9,
                "filters": [blosc2.Filter.BITSHUFFLE],
                "filters_meta": [0],
            }
        },
        {"cparams": {"typesize": 4, "blocksize": 4096, "splitmode": blosc2.SplitMode.NEVER_SPLIT, "use_dict": True}},
        {"dparams": {"nthreads": 5}},
    ],
    ids=["as it is", "one thread", "codec", "sizes", "threads"],
)
def test_whatever_stock_writes_into_a_header_is_no_damage(tmp_path, layout, options):
    path = tmp_path / "a.b2nd"
    values = np.arange(36, dtype="i4").reshape(6, 6)
    meta = {"mine": b"before"}
    b2array.asarray(values, url=path, chunks=(4, 4), blocks=(2, 4), layout=layout, attrs={"k": 1}, meta=meta)
    held = blosc2.open(str(path), mode="a", **options)
    held.resize((5, 6))
    held.schunk.meta["mine"] = b"then"  # with its msgpack head as long as before
    del held
    gc.collect()
    a = b2array.open(path, mode="r+")
    assert (a.shape, a.attrs["k"]) == ((5, 6), 1)
    assert np.array_equal(a[...], values[:5])
    a[0] = values[0] = 7
    assert np.array_equal(b2array.open(path)[...], values[:5])
    assert np.array_equal(blosc2.open(str(path))[...], values[:5])


def state(path):
    a = b2array.open(path)
    return a.shape, a.dtype, a.chunks, a.blocks, dict(a.attrs), dict(a.meta), a.dims, a.fill_value, a[...].tobytes()


@pytest.mark.costly
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_flipped_bit_of_header_index_and_trailer_gives_anything_else_than_was_written(tmp_path, layout, sampled):
    path = tmp_path / "a.b2nd"
    values = np.arange(30, dtype="i2").reshape(5, 6)
    values[:2] = 0
    options = {"attrs": {"k": 1}, "meta": {"m": b"xy"}, "dims": ("y", "x"), "fill_value": 3}
    b2array.asarray(values, url=path, chunks=(2, 6), blocks=(2, 3), layout=layout, **options)
    file = path / "chunks.b2frame" if layout == "sparse" else path
    expected, raw = state(path), file.read_bytes()
    described = b2array.open_schunk(path).frame
    places = [*range(described.header_len), *range(described.tail_start, len(raw))]
    unnoticed = set()
    with config.using(cache_bytes=0, threads=1):
        for number, at in enumerate(places):
            for bit in sampled(range(number, number + 8), 24):
                changed = bytearray(raw)
                changed[at] ^= 1 << bit % 8
                file.write_bytes(changed)
                try:
                    found = state(path)
                except (FormatError, UnsupportedError, FileNotFoundError):
                    continue
                assert found == expected, (at, bit)
                unnoticed.add(at)
    # Two bytes of which b2array does not obey any, and by which it knows that other software wrote the header.
    assert unnoticed <= {0x42, 0x43}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_of_before_the_mark_is_read(tmp_path, layout):
    """What other software gave a number of threads keeps the rest of what b2array noted."""
    path = tmp_path / "a.b2nd"
    b2array.asarray(np.arange(6), url=path, chunks=(4,), layout=layout)
    held = blosc2.open(str(path), mode="a")
    held.schunk.vlmeta["k"] = 1
    del held
    gc.collect()
    assert b2array.open_schunk(path).frame.nthreads_decompress > 0
    b2array.open(path, mode="r+").attrs["k"] = 2
    assert b2array.open_schunk(path).frame.nthreads_decompress == 0
    resized_by_stock(path, (5,))
    assert b2array.open(path)[...].tolist() == [0, 1, 2, 3, 4]


@given(layer=st.binary(max_size=40) | st.just(msgpack.packb({"header": 1})) | st.just(msgpack.packb({"header": b"x"})))
def test_what_is_noted_may_be_anything(layer):
    assert fingerprint.header_copy(layer) is None


@given(st.binary(min_size=0x60, max_size=0x80))
def test_headers_of_any_bytes_are_compared(noted):
    packed = frame.pack_header(frame.create(CParams(), frame_type=FrameType.SPARSE, typesize=1, chunksize=4))
    assert not fingerprint.is_changed_by_others(packed, noted)
    assert not fingerprint.is_changed_by_others(noted, packed)
