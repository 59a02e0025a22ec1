"""What loops and hands do: locks, reading into memory that is there, super-chunks as sequences, text."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest

import b2array
from b2array import SChunk
from b2array.errors import ReadOnlyError, UnsupportedError
from b2array.store.base import Capabilities


@pytest.mark.slow
def test_writers_that_hold_the_lock_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "a.b2nd")
    b2array.save(path, np.zeros(1, "i8"))
    script = f"""
import b2array
a = b2array.open({path!r}, "r+")
for _ in range(10):
    with a.lock():
        n = int(a[0])
        a.resize(len(a) + 1)
        a[-1] = n
        a[0] = n + 1
"""
    running = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
    assert [each.wait(60) for each in running] == [0, 0, 0]
    assert b2array.load(path).tolist() == [30, *range(30)]


@pytest.mark.parametrize("url", ["memory://locked.b2nd", None])
def test_the_lock_begins_with_the_last_commit_and_keeps_threads_out(url: str | None) -> None:
    a = b2array.zeros(1, "i8", url=url, overwrite=True)
    other = b2array.open(url, "r+") if url else a

    def count() -> None:
        for _ in range(20):
            with other.lock(), other.transaction():
                other[0] = other[0] + 1

    threads = [threading.Thread(target=count) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    a.refresh()
    assert a[0] == 60


def test_a_lock_is_refused_where_it_cannot_be(tmp_path: Path) -> None:
    a = b2array.asarray([1], url=tmp_path / "a.b2nd")
    with a.lock(), pytest.raises(ValueError, match="held already"), a.lock():
        pass
    with a.transaction(), pytest.raises(ValueError, match="transaction"), a.lock():
        pass
    with pytest.raises(RuntimeError, match="inside"), a.lock():
        raise RuntimeError("inside")
    with a.lock():
        a[0] = 2
    a._handle.store.can = Capabilities(compare=True)
    with pytest.raises(UnsupportedError, match="no locks in this place"), a.lock():
        pass
    with pytest.raises(ReadOnlyError), b2array.open(tmp_path / "a.b2nd").lock():
        pass


def test_items_are_read_into_memory_that_is_there(tmp_path: Path) -> None:
    x = np.arange(200.0).reshape(10, 20)
    a = b2array.asarray(x, url=tmp_path / "a.b2nd", chunks=(4, 7), blocks=(2, 3))
    out = np.empty((10, 20))
    assert a.read_direct(out) is out
    assert np.array_equal(out, x)
    for key in (np.s_[3:5, ::-2], np.s_[[1, 5], [0, 19]], 7):
        part = np.empty(x[key].shape)
        assert np.array_equal(a.read_direct(part, key), x[key])
    row = np.empty((2, 20))[1]
    assert np.array_equal(a.read_direct(row, 9), x[9])
    for wrong, error in (
        (np.empty((10, 21)), ValueError),
        (np.empty((20, 10)).T, ValueError),
        (np.empty((10, 20), "f4"), TypeError),
    ):
        with pytest.raises(error, match="out must be"):
            a.read_direct(wrong)


def test_a_super_chunk_has_items_and_chunks() -> None:
    x = np.arange(25, dtype="i4")
    held = b2array.create_schunk(chunksize=40, typesize=4)
    theirs = blosc2.SChunk(chunksize=40, data=x, cparams={"typesize": 4})
    for start in range(0, 25, 10):
        held.append_data(x[start : start + 10])
    for key in (np.s_[3:17], np.s_[:], np.s_[-4:], 5, -1, np.s_[7:3]):
        expected = x[key].tobytes()
        assert held[key] == expected
        assert expected in (b"", theirs[key] if key != -1 else theirs[24])
    assert b"".join(held) == x.tobytes()
    assert [len(each) for each in held] == [40, 40, 20]
    with pytest.raises(IndexError):
        held[25]
    with pytest.raises(ValueError, match="no step"):
        held[::2]
    again = SChunk.from_bytes(held.to_bytes())
    assert again[:] == x.tobytes()
    assert SChunk.from_bytes(theirs.to_cframe())[:] == x.tobytes()


@pytest.mark.parametrize(
    ("value", "special"),
    [
        (0, blosc2.SpecialValue.ZERO),
        (np.float32(1.5), blosc2.SpecialValue.VALUE),
        (np.float32("nan"), blosc2.SpecialValue.NAN),
    ],
)
def test_a_super_chunk_is_filled_with_one_value(value: Any, special: Any) -> None:
    held = b2array.create_schunk(chunksize=400, typesize=4)
    theirs = blosc2.SChunk(chunksize=400, cparams={"typesize": 4})
    theirs.fill_special(1050, special, value if special == blosc2.SpecialValue.VALUE else None)
    assert held.fill_special(1050, value) == theirs.nchunks == 11
    assert held[:] == np.full(1050, value, "f4").tobytes()
    assert np.array_equal(np.frombuffer(theirs[:], "f4"), np.frombuffer(held[:], "f4"), equal_nan=True)
    assert blosc2.schunk_from_cframe(held.to_bytes())[:] == held[:]
    assert held.cbytes < 1000
    with pytest.raises(ValueError, match="an item has 4 bytes, not 8"):
        held.fill_special(1, 1.5)


def test_text_is_shuffled_by_the_bytes_of_its_characters() -> None:
    words = np.array(["alpha", "beta", "gamma", "delta", "a much longer word"])
    text = np.random.default_rng(0).choice(words, 20_000)
    stock = blosc2.asarray(text)
    a = b2array.asarray(text)
    assert a.cparams.filters_meta == (4,)
    width = tuple(stock.schunk.cparams.filters_meta[-1:])
    assert a.cparams == b2array.CParams(filters_meta=width)
    a = b2array.asarray(
        text,
        chunks=stock.chunks,
        blocks=stock.blocks,
        cparams={"clevel": 5, "filters": "shuffle", "filters_meta": (4,)},
    )
    assert a.cbytes <= stock.schunk.cbytes * 1.05
    assert np.array_equal(a[...], text)
    assert np.array_equal(blosc2.ndarray_from_cframe(a.to_bytes())[:], text)
    assert b2array.asarray(text, cparams="zstd").cparams == b2array.asarray(text).cparams
    assert b2array.asarray(text, cparams={"filters": "shuffle"}).cparams.filters_meta == ()
