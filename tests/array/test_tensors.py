"""Bytes of python-blosc2's functions for packing are arrays, or the error names the function that takes them."""

from __future__ import annotations

import blosc2
import numpy as np
import pytest

import b2array
from b2array.errors import FormatError, ReadOnlyError

ARRAYS = {
    "plain": np.arange(6).reshape(2, 3),
    "empty": np.zeros((0, 3), "f4"),
    "no dimensions": np.array(7.5),
    "records": np.array([(1, 2.5), (3, 4.5)], [("a", "<i4"), ("b", ">f8")]),
}


@pytest.mark.parametrize("pack", [blosc2.pack_tensor, blosc2.pack_array2])
@pytest.mark.parametrize("kind", ARRAYS)
def test_packed_tensors_are_arrays(pack, kind):
    values = ARRAYS[kind]
    array = b2array.from_bytes(pack(values))
    assert (array.shape, array.dtype) == (values.shape, values.dtype)
    np.testing.assert_array_equal(array[...], values)
    with pytest.raises(ReadOnlyError):
        array[...] = values


def test_frames_of_arrays_are_arrays():
    values = ARRAYS["plain"]
    for content in (blosc2.asarray(values).to_cframe(), b2array.asarray(values).to_bytes()):
        for buf in (content, bytearray(content), memoryview(content)):
            np.testing.assert_array_equal(b2array.from_bytes(buf)[...], values)


@pytest.mark.parametrize("pack", [blosc2.pack_array, blosc2.pack, lambda x: blosc2.compress2(x.tobytes())])
def test_chunks_say_which_function_takes_them(pack):
    with pytest.raises(FormatError, match=r"found a Blosc chunk, whose bytes b2array\.decompress returns"):
        b2array.from_bytes(pack(ARRAYS["plain"]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file"),
        (b"nothing like it", "found text"),
        (b2array.create_schunk(chunksize=8).to_bytes(), "found a plain super-chunk"),
    ],
)
def test_other_bytes_are_told(content, message):
    with pytest.raises(FormatError, match=message):
        b2array.from_bytes(content)
