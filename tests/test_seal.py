"""A frame that other software resized opens, and one that is damaged does not."""

from __future__ import annotations

import gc
import warnings

import blosc2
import numpy as np
import pytest

import b2array
from b2array import seal
from b2array.errors import FormatError, UnsupportedError

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
    assert a._held.frame.fingerprint_type == 3
    assert np.array_equal(blosc2.open(str(tmp_path / "a.b2nd"))[...], b2array.load(tmp_path / "a.b2nd"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_writer_notices_that_stock_resized_the_array_meanwhile(tmp_path, layout):
    a = b2array.asarray(np.arange(6), url=tmp_path / "a.b2nd", chunks=(4,), layout=layout)
    resized_by_stock(tmp_path / "a.b2nd", (5,))
    with pytest.raises(b2array.errors.ConflictError):
        a[5] = 1
    assert b2array.load(tmp_path / "a.b2nd").tolist() == [0, 1, 2, 3, 4]


def test_any_other_change_of_the_header_is_damage():
    a = b2array.asarray(np.arange(6), chunks=(4,))
    raw = a.to_bytes()
    frame = b2array.from_bytes(raw)._held.frame
    metalayer = raw.index(frame.metalayer("b2nd"))
    # The shape of one dimension, and the numbers of threads; and where the length of the frame stands, which is
    # not part of the fingerprint: a frame may be cut out of a longer one.
    free = {*range(metalayer + 5, metalayer + 13), 0x3F, 0x40, 0x42, 0x43}
    opened = set()
    for at in range(frame.header_len):
        changed = bytearray(raw)
        changed[at] ^= 1
        try:
            with warnings.catch_warnings(action="ignore"):
                b2array.from_bytes(changed)
        except (FormatError, UnsupportedError):
            continue
        opened.add(at)
    assert opened <= free
    assert metalayer + 12 in opened


def test_what_is_noted_may_be_anything():
    header = b"x" * 0x50 + b"shape"
    for layer in (b"", b"\xc1", b"\x80", b"\x81\xa5shape\xc0", b"\x90"):
        assert seal.as_committed(header, b"shape", layer) is None
    assert seal.notes(None, 1, 1) == {}
    assert seal.notes(b"", 1, 1) == {}
