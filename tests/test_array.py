"""Arrays against NumPy, and against python-blosc2 in both directions."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import b2array
from b2array.errors import B2ArrayError, ConflictError, FormatError, ReadOnlyError

LAYOUTS = ("contiguous", "sparse")
CODECS = {
    "blosclz": blosc2.Codec.BLOSCLZ,
    "lz4": blosc2.Codec.LZ4,
    "lz4hc": blosc2.Codec.LZ4HC,
    "zlib": blosc2.Codec.ZLIB,
    "zstd": blosc2.Codec.ZSTD,
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], tuple[int, ...], tuple[int, ...], tuple[Any, ...]]:
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, n + 2)) for n in shape)
    blocks = tuple(draw(st.integers(1, c)) for c in chunks)
    dtype = draw(st.sampled_from(["u1", ">i4", "<f8", "c16", "S5", "<U3", "M8[s]"]))
    values = (np.arange(np.prod(shape)) * 7 % 101).astype("i8").astype(dtype).reshape(shape)
    key: list[Any] = []
    for n in shape:
        bound = st.integers(-n - 2, n + 2) | st.none()
        step = st.sampled_from([None, 1, 2, 3, -1, -2])
        key.append(
            draw(
                st.integers(-n, n - 1)
                | st.builds(slice, bound, bound, step)
                | st.lists(st.integers(-n, n - 1), min_size=1, max_size=1)
            )
        )
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    return values, chunks, blocks, tuple(key)


@settings(max_examples=400, deadline=None)
@given(cases())
def test_reading_is_what_numpy_reads(case: tuple[Any, ...]) -> None:
    values, chunks, blocks, key = case
    a = b2array.asarray(values, chunks=chunks, blocks=blocks)
    expected, found = values[key], a[key]
    assert np.shape(found) == np.shape(expected)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


@settings(max_examples=300, deadline=None)
@given(cases())
def test_writing_is_what_numpy_writes(case: tuple[Any, ...]) -> None:
    values, chunks, blocks, key = case
    a = b2array.asarray(values, chunks=chunks, blocks=blocks)
    expected = values.copy()
    item = values[(-1,) * values.ndim]
    expected[key] = item
    a[key] = item
    assert np.array_equal(a[...], expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("split", ["auto", "always", "never", "blosc2"])
def test_stock_reads_what_we_write(tmp_path: Path, layout: str, codec: str, split: Any) -> None:
    x = np.linspace(0, 9, 90 * 70).reshape(90, 70)
    path = str(tmp_path / "a.b2nd")
    cparams = b2array.CParams(codec, splitmode=split)
    a = b2array.asarray(x, url=path, chunks=(40, 33), blocks=(13, 20), layout=layout, cparams=cparams)
    assert np.array_equal(blosc2.open(path)[...], x)
    a[3:50, ::-3] = -1.5
    x[3:50, ::-3] = -1.5
    assert np.array_equal(blosc2.open(path)[...], x)
    assert np.array_equal(b2array.open(path)[...], x)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_we_read_what_stock_writes_and_go_on(tmp_path: Path, codec: str, contiguous: bool) -> None:
    x = (np.arange(80 * 60) // 7).astype("i4").reshape(80, 60)
    path = str(tmp_path / "a.b2nd")
    blosc2.asarray(
        x, urlpath=path, contiguous=contiguous, chunks=(30, 40), blocks=(10, 20), cparams={"codec": CODECS[codec]}
    )
    a = b2array.open(path, mode="r+")
    assert np.array_equal(a[5:70, 1::2], x[5:70, 1::2])
    a[:, 7] = np.arange(80)
    x[:, 7] = np.arange(80)
    stock = blosc2.open(path, mode="a")
    assert np.array_equal(stock[...], x)
    stock[10:20, 10:20] = 3
    x[10:20, 10:20] = 3
    assert np.array_equal(b2array.open(path)[...], x)


@pytest.mark.parametrize("fill", [0, 1, np.nan, -0.0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fill_values_are_read_by_both(tmp_path: Path, fill: float, layout: str) -> None:
    path = str(tmp_path / "a.b2nd")
    b2array.full((20, 30), fill, "f8", url=path, chunks=(8, 8), blocks=(4, 4), layout=layout)
    expected = np.full((20, 30), fill, "f8")
    for found in (b2array.open(path)[...], blosc2.open(path)[...]):
        assert found.tobytes() == expected.tobytes()


def test_a_transaction_is_one_commit_or_none(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    a = b2array.zeros((10, 10), "i4", url=path, chunks=(5, 5), blocks=(5, 5))
    before = a.generation
    with a.transaction():
        a[0] = 1
        a[9] = 2
        assert a[0].tolist() == [1] * 10
        assert b2array.open(path)[0].tolist() == [0] * 10
    assert a.generation != before
    after = a.generation
    with pytest.raises(RuntimeError, match="stop"), a.transaction():
        a[5] = 3
        raise RuntimeError("stop")
    assert a.generation == after
    assert b2array.open(path)[...].sum() == 30


def test_two_handles_merge_disjoint_chunks_and_refuse_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    b2array.zeros((10,), "i4", url=path, chunks=(5,), blocks=(5,)).close()
    a, b = b2array.open(path, "r+"), b2array.open(path, "r+")
    a[:5] = 1
    b[5:] = 2
    assert b2array.open(path)[...].tolist() == [1] * 5 + [2] * 5
    a.refresh()
    with pytest.raises(ConflictError, match="chunks"), a.transaction():
        a[0] = 9
        b[1] = 8
    assert b2array.open(path)[:2].tolist() == [1, 8]


def test_equal_metadata_and_other_data_are_another_generation(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first = b2array.asarray(rng.integers(0, 256, 1000, "u1"), url=tmp_path / "a.b2nd")
    second = b2array.asarray(rng.integers(0, 256, 1000, "u1"), url=tmp_path / "b.b2nd")
    assert first.generation != second.generation


def test_attributes_are_read_by_both(tmp_path: Path) -> None:
    path = str(tmp_path / "a.b2nd")
    a = b2array.zeros((3,), url=path, attrs={"unit": "m"})
    for n in range(20):
        a.attrs[f"n{n}"] = (n, complex(n))
    a.attrs["a name that is longer than thirty-one bytes"] = 5
    del a.attrs["n3"]
    stock = blosc2.open(path)
    held = stock.schunk
    assert held.vlmeta["unit"] == "m"
    again = b2array.open(path).attrs
    assert again["n19"] == (19, 19 + 0j)
    assert again["a name that is longer than thirty-one bytes"] == 5
    assert len(again) == 21
    with pytest.raises(TypeError, match="attribute"):
        a.attrs["no"] = object()


def test_handles_pickle_and_bytes_are_frames(tmp_path: Path) -> None:
    x = np.arange(100.0).reshape(10, 10)
    a = b2array.asarray(x, url=tmp_path / "a.b2nd", chunks=(4, 4), blocks=(2, 2))
    assert np.array_equal(pickle.loads(pickle.dumps(a))[...], x)
    assert np.array_equal(b2array.from_bytes(a.to_bytes())[2:5, 3], x[2:5, 3])
    stock = blosc2.ndarray_from_cframe(a.to_bytes())
    assert np.array_equal(stock[...], x)


def test_a_handle_for_reading_refuses_to_write(tmp_path: Path) -> None:
    b2array.zeros((3,), url=tmp_path / "a.b2nd").close()
    with pytest.raises(ReadOnlyError, match=r"r\+"):
        b2array.open(tmp_path / "a.b2nd")[0] = 1
    with pytest.raises(FileExistsError, match="overwrite"):
        b2array.zeros((3,), url=tmp_path / "a.b2nd")


def test_damaged_files_raise_our_errors_only(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    b2array.asarray(np.arange(4000).reshape(40, 100), url=path, chunks=(20, 50), blocks=(10, 25)).close()
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    messages = []
    for n in range(150):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged if n % 3 else whole[: rng.integers(len(whole))])
        try:
            b2array.open(path)[...]
        except B2ArrayError as error:
            messages.append(str(error))
    assert messages
    assert all(str(path) in message for message in messages)


def test_a_plain_super_chunk_is_no_array(tmp_path: Path) -> None:
    held = b2array.create_schunk(tmp_path / "a.b2frame", chunksize=100)
    held.append_data(bytes(range(100)))
    with pytest.raises(FormatError, match="super-chunk"):
        b2array.open(tmp_path / "a.b2frame")
