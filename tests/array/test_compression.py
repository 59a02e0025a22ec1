"""Arrays whose chunks choose their filters, and arrays whose floats may have errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blosc2
import dask.array as da
import numpy as np
import pytest

import b2array
from b2array import CParams
from b2array.codec.chunk_header import ChunkHeader, FilterId

ITEMS = 2**17
BOUND = CParams(clevel=2, filters="auto", absolute_error=0.01)


def prices(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.round(100 + np.cumsum(np.random.default_rng(seed).normal(0, 0.02, ITEMS)), 2)


def counts() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).poisson(20, ITEMS).astype("f8")


def field() -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    return (30 * np.sin(np.arange(ITEMS) / 3000) + rng.normal(0, 0.3, ITEMS)).astype("f4")


def filters_of(a: b2array.NDArray, n: int) -> list[int]:
    return [fid for fid in ChunkHeader.unpack(a.get_chunk(n)).filters if fid]


def bits_of(a: b2array.NDArray, n: int) -> int | None:
    header = ChunkHeader.unpack(a.get_chunk(n))
    return dict(zip(header.filters, header.filters_meta, strict=True)).get(FilterId.TRUNC_PREC)


def chunks_of(a: b2array.NDArray) -> list[bytes]:
    return [a.get_chunk(n) for n in range(a.nchunks)]


# Filters that the data choose.


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_each_chunk_has_its_own_filters_and_stock_reads_them(tmp_path: Path, layout: Any) -> None:
    x = np.concatenate((prices(), counts()))
    a = b2array.asarray(x, url=tmp_path / "a.b2nd", chunks=ITEMS, layout=layout)
    assert [filters_of(a, n) for n in range(2)] == [[], [FilterId.SHUFFLE]]
    again = b2array.open(tmp_path / "a.b2nd")
    assert again.cparams == a.cparams == CParams(clevel=2, filters="auto")
    assert again.info["filters"] == "auto"
    stock = blosc2.open(str(tmp_path / "a.b2nd"))
    assert np.array_equal(stock[:], x)
    assert np.array_equal(stock[ITEMS - 5 : ITEMS + 5], x[ITEMS - 5 : ITEMS + 5])


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_stock_goes_on_with_the_filters_of_the_first_chunk_with_data(tmp_path: Path, layout: Any) -> None:
    path = tmp_path / "a.b2nd"
    a = b2array.zeros(3 * ITEMS, url=path, chunks=ITEMS, layout=layout)
    assert blosc2.open(str(path)).schunk.cparams.filters[-1] == blosc2.Filter.SHUFFLE
    a[ITEMS : 2 * ITEMS] = prices()
    assert set(blosc2.open(str(path)).schunk.cparams.filters) == {blosc2.Filter.NOFILTER}
    a[:ITEMS] = counts()
    assert set(blosc2.open(str(path)).schunk.cparams.filters) == {blosc2.Filter.NOFILTER}
    stock = blosc2.open(str(path), mode="a")
    stock[2 * ITEMS :] = prices(1)
    a.refresh()
    assert np.array_equal(a[...], np.concatenate((counts(), prices(), prices(1))))
    assert a.cparams.filters == "auto"


def test_a_chunk_written_in_part_keeps_its_filters_and_one_written_whole_chooses_again() -> None:
    a = b2array.asarray(prices(), chunks=ITEMS, blocks=ITEMS // 8)
    assert filters_of(a, 0) == []
    a[: ITEMS // 2] = counts()[: ITEMS // 2]
    assert filters_of(a, 0) == []
    assert np.array_equal(a[: ITEMS // 2], counts()[: ITEMS // 2])
    assert np.array_equal(a[ITEMS // 2 :], prices()[ITEMS // 2 :])
    a[...] = counts()
    assert filters_of(a, 0) == [FilterId.SHUFFLE]


def test_a_special_chunk_written_in_part_gets_filters_that_suit_what_was_written() -> None:
    a = b2array.full(ITEMS, 7.0, chunks=ITEMS, blocks=ITEMS // 8)
    a[: ITEMS // 8] = prices()[: ITEMS // 8]
    assert filters_of(a, 0) == []
    assert np.array_equal(a[: ITEMS // 8], prices()[: ITEMS // 8])
    assert (a[ITEMS // 8 :] == 7).all()


def test_a_chunk_of_stock_with_a_filter_that_loses_bits_is_encoded_again(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    x = prices()
    a = b2array.asarray(x, url=path, chunks=ITEMS, blocks=ITEMS // 8)
    cparams = {"filters": [blosc2.Filter.TRUNC_PREC, blosc2.Filter.SHUFFLE], "filters_meta": [10, 0], "typesize": 8}
    cut = blosc2.compress2(x, **cparams, blocksize=ITEMS)
    stock = blosc2.open(str(path), mode="a")
    stock.schunk.update_chunk(0, cut)
    a.refresh()
    before = a[...]
    a[: ITEMS // 8] = x[: ITEMS // 8]
    assert np.array_equal(a[: ITEMS // 8], x[: ITEMS // 8])
    assert np.array_equal(a[ITEMS // 8 :], before[ITEMS // 8 :])


def test_dask_and_numpy_make_equal_chunks(tmp_path: Path) -> None:
    x = np.concatenate((prices(), counts()))
    a = b2array.asarray(x, chunks=ITEMS)
    b = b2array.from_dask(da.from_array(x, chunks=ITEMS), tmp_path / "b.b2nd", chunks=ITEMS)
    assert chunks_of(a) == chunks_of(b)
    assert b.cparams == a.cparams


def test_copies_keep_chunks_and_parameters(tmp_path: Path) -> None:
    a = b2array.asarray(np.concatenate((prices(), counts())), chunks=ITEMS)
    b = a.copy(tmp_path / "b.b2nd")
    assert chunks_of(b) == chunks_of(a)
    assert b.cparams == a.cparams
    assert a.copy(chunks=ITEMS // 2).cparams == a.cparams


def test_super_chunks_choose_as_well(tmp_path: Path) -> None:
    held = b2array.create_schunk(tmp_path / "a.b2frame", chunksize=8 * ITEMS, typesize=8)
    held.append_data(prices())
    held.append_data(counts())
    again = b2array.open_schunk(tmp_path / "a.b2frame")
    assert again.cparams.filters == "auto"
    found = [ChunkHeader.unpack(again.get_chunk(n)).filters[-1] for n in range(2)]
    assert found == [0, FilterId.SHUFFLE]
    assert again.decompress_chunk(0) == prices().tobytes()


# Errors that the user allows.


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_errors_stay_within_the_bound_and_stock_reads_the_same_values(tmp_path: Path, layout: Any, dtype: str) -> None:
    x = field().astype(dtype)
    a = b2array.asarray(x, url=tmp_path / "a.b2nd", cparams=BOUND, layout=layout, chunks=ITEMS // 2)
    assert np.abs(a[...] - x).max() <= 0.01
    assert bits_of(a, 0) == 10  # of 30, to multiples of 2**-6
    stock = blosc2.open(str(tmp_path / "a.b2nd"))
    assert np.array_equal(stock[:], a[...])
    assert np.array_equal(stock[100:200], a[100:200])
    assert b2array.open(tmp_path / "a.b2nd").cparams == BOUND
    assert a.info["errors"] == "absolute_error 0.01"
    assert a.cbytes * 2 < b2array.asarray(x).cbytes
    assert blosc2.Filter.TRUNC_PREC not in stock.schunk.cparams.filters  # stock would cut, not round


def test_writing_the_same_values_again_changes_nothing() -> None:
    a = b2array.asarray(field(), cparams=BOUND, chunks=ITEMS // 2, blocks=ITEMS // 16)
    before = chunks_of(a)
    a[...] = a[...]
    assert chunks_of(a) == before
    a[10:20] = a[10:20]
    assert chunks_of(a) == before
    a[...] = field()
    assert chunks_of(a) == before


def test_a_part_with_larger_values_is_rounded_as_it_needs() -> None:
    a = b2array.asarray(field(), cparams=BOUND, chunks=ITEMS, blocks=ITEMS // 8)
    before = a[...]
    assert bits_of(a, 0) == 10
    a[5:8] = [1000.123, -1e30, np.nan]
    assert abs(a[5] - np.float32(1000.123)) <= 0.01
    assert a[6] == np.float32(-1e30)
    assert np.isnan(a[7])
    assert np.array_equal(a[8:], before[8:])
    assert bits_of(a, 0) == 22  # of -1e30
    assert np.array_equal(blosc2.ndarray_from_cframe(a.to_bytes())[8:], before[8:])


def test_the_fill_value_is_not_rounded() -> None:
    x = field()
    x[::7] = np.float32(-999.9)
    a = b2array.asarray(x, cparams=BOUND, fill_value=np.float32(-999.9))
    assert np.array_equal(a[...] == a.fill_value, x == np.float32(-999.9))
    assert np.abs(a[...] - x).max() <= 0.01
    a.resize(ITEMS + 10)
    assert (a[ITEMS:] == np.float32(-999.9)).all()


def test_copies_keep_values_and_bound_and_do_not_round_again(tmp_path: Path) -> None:
    a = b2array.asarray(field(), cparams=BOUND)
    for b in (a.copy(tmp_path / "b.b2nd"), a.copy(chunks=1000), b2array.from_bytes(a.to_bytes())):
        assert np.array_equal(a[...], b[...])
        assert b.cparams == BOUND
    exact = a.copy(cparams=CParams(clevel=2, filters="auto"))
    assert np.array_equal(a[...], exact[...])
    assert a.astype("i4").cparams == CParams(clevel=2, filters="auto")
    b2array.repack(tmp_path / "b.b2nd")
    assert np.array_equal(b2array.open(tmp_path / "b.b2nd")[...], a[...])


def test_dask_rounds_as_well(tmp_path: Path) -> None:
    x = field()
    a = b2array.from_dask(da.from_array(x, chunks=ITEMS // 4), tmp_path / "a.b2nd", cparams=BOUND)
    assert np.array_equal(a[...], b2array.asarray(x, cparams=BOUND)[...])


def test_transactions_and_appends_round_once() -> None:
    a = b2array.zeros((0, 64), "f4", cparams=BOUND, chunks=(100, 64))
    x = field().reshape(-1, 64)
    with a.transaction():
        for start in range(0, 500, 70):
            a.append(x[start : start + 70])
    assert np.abs(a[...] - x[: len(a)]).max() <= 0.01
    assert np.array_equal(a[...], b2array.asarray(x[: len(a)], cparams=BOUND)[...])


@pytest.mark.parametrize("dtype", ["f2", ">f4", "c8", "c16"])
def test_types_that_the_filter_does_not_know_are_rounded_without_it(dtype: str) -> None:
    x = field().astype(dtype)
    a = b2array.asarray(x, cparams=BOUND)
    assert bits_of(a, 0) is None
    assert 0 < np.abs(a[...].astype("c16") - x).max() <= 0.01
    assert blosc2.ndarray_from_cframe(a.to_bytes())[...].tobytes() == a[...].tobytes()


def test_items_that_are_arrays_are_rounded() -> None:
    x = field().reshape(-1, 2)
    a = b2array.zeros(len(x), ("f4", (2,)), cparams=BOUND)
    a[...] = x
    assert np.array_equal(a[...], b2array.asarray(x, cparams=BOUND)[...])


def test_other_types_and_super_chunks_are_refused() -> None:
    with pytest.raises(TypeError, match="round floats"):
        b2array.zeros(3, "i4", cparams=BOUND)
    with pytest.raises(TypeError, match="round floats"):
        b2array.create_schunk(chunksize=100, cparams=BOUND)
    with pytest.raises(TypeError, match="round floats"):
        b2array.compress(b"12345678", cparams=BOUND)


def test_a_compressed_buffer_is_rounded() -> None:
    x = field()
    found = np.frombuffer(b2array.decompress(b2array.compress(x, cparams=BOUND)), "f4")
    assert 0 < np.abs(found - x).max() <= 0.01
