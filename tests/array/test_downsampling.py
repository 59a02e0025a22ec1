"""Smaller arrays: one item for each block of items."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from arrays import same
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from lengths import examples

import b2array
from b2array.array import array_copying

X = np.random.default_rng(0).integers(0, 1000, (7, 30, 41)).astype("u2")


def blocks_of(x, factors, boundary="pad"):
    """Return each block of an array by the place of its result."""
    counts = [n // k if boundary == "trim" else -(-n // k) for n, k in zip(x.shape, factors, strict=True)]
    places = product(*map(range, counts))
    found = {place: x[tuple(slice(i * k, i * k + k) for i, k in zip(place, factors, strict=True))] for place in places}
    return counts, found


def reference(x, factors, reduce, boundary="pad", dtype=None):
    counts, blocks = blocks_of(x, factors, boundary)
    result = np.empty(counts, x.dtype if dtype is None else dtype)
    for place, block in blocks.items():
        result[place] = reduce(block)
    return result


def rounded_mean(block):
    return round(Fraction(sum(int(i) for i in block.flat), block.size))  # to even, as NumPy rounds


REDUCTIONS = {
    "mean": rounded_mean,
    "min": np.min,
    "max": np.max,
    "first": lambda block: block.flat[0],
}


@pytest.mark.parametrize("boundary", ["pad", "trim"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_one_item_stands_for_each_block(reduce, boundary):
    a = b2array.asarray(X, chunks=(2, 16, 16), blocks=(1, 8, 16))
    found = b2array.downsample(a, (1, 2, 3), reduce, boundary=boundary)
    assert same(found[...], reference(X, (1, 2, 3), REDUCTIONS[reduce], boundary))
    assert (found.chunks, found.blocks) == (
        (2, min(16, found.shape[1]), min(16, found.shape[2])),
        (1, 8, found.chunks[2]),
    )


@settings(max_examples=examples(150))
@given(data=st.data(), dtype=st.sampled_from(["i1", "u1", "i2", "i4", "u4", "i8", "u8", "?"]))
def test_means_of_integers_are_exact_and_rounded_to_the_nearest(data, dtype):
    x = data.draw(hnp.arrays(dtype, hnp.array_shapes(max_dims=3, max_side=7)))
    factors = data.draw(st.tuples(*[st.integers(1, 4)] * x.ndim))
    assert same(b2array.downsample(x, factors)[...], reference(x, factors, rounded_mean))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
def test_means_of_floats_are_those_of_double_precision(dtype):
    x = np.random.default_rng(1).normal(size=(9, 10)).astype(dtype)
    x[3, 3] = np.nan
    wide = np.result_type(dtype, "f8")
    expected = reference(x, (2, 4), lambda block: block.mean(dtype=wide), dtype=wide)
    found = b2array.downsample(x, (2, 4))[...]
    assert found.dtype == dtype
    assert np.allclose(found, expected, rtol=float(np.finfo(dtype).eps), atol=1e-15, equal_nan=True)
    assert np.isnan(found).sum() == 1
    # A function says what becomes of NaN.
    assert not np.isnan(b2array.downsample(x, (2, 4), np.nanmean)[...]).any()


def test_means_of_extension_types_are_rounded_as_the_type_is():
    x = np.arange(8).astype(ml_dtypes.bfloat16) / 2
    assert b2array.downsample(x, 2)[...].astype(float).tolist() == [0.25, 1.25, 2.25, 3.25]
    whole = np.array([1, 2, 3, 4, -5, -6], ml_dtypes.int4)
    assert b2array.downsample(whole, 2)[...].astype(int).tolist() == [2, 4, -6]


def test_sums_and_functions_have_numpys_types():
    found = b2array.downsample(X, (7, 2, 2), "sum")
    assert same(found[...], reference(X, (7, 2, 2), np.sum, dtype="u8"))
    found = b2array.downsample(X, (7, 2, 2), np.median)
    assert same(found[...], reference(X, (7, 2, 2), np.median, dtype="f8"))
    found = b2array.downsample(X, 2, dtype="f4")
    assert np.allclose(found[...], reference(X, (2, 2, 2), np.mean, dtype="f8").astype("f4"))
    assert found.dtype == np.float32


def test_factors_go_by_axis_or_name():
    a = b2array.asarray(X, dims=("t", "y", "x"), attrs={"unit": "counts"}, cparams=b2array.CParams("lz4"))
    by_name = b2array.downsample(a, {"y": 2, "x": 4})
    by_axis = b2array.downsample(a, {1: 2, -1: 4})
    assert same(by_name[...], by_axis[...])
    assert by_name.shape == (7, 15, 11)
    assert (by_name.dims, dict(by_name.attrs), by_name.cparams) == (a.dims, {"unit": "counts"}, a.cparams)
    assert b2array.downsample(a.T, {"x": 2}).shape == (21, 30, 7)
    assert b2array.downsample(a, 2, attrs={}, dims=("a", "b", "c")).attrs == {}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda a: b2array.downsample(a, (2, 2)), ValueError, "factors for 3 axes, found 2"),
        (lambda a: b2array.downsample(a, 0), ValueError, "factors of 1 or more"),
        (lambda a: b2array.downsample(a, 1.5), TypeError, "integer"),
        (lambda a: b2array.downsample(a, {"z": 2}), ValueError, r"one of \('t', 'y', 'x'\), found 'z'"),
        (lambda a: b2array.downsample(a, {3: 2}), np.exceptions.AxisError, "out of bounds"),
        (lambda a: b2array.downsample(a, 2, "mode"), ValueError, "a function such as numpy.median, found 'mode'"),
        (lambda a: b2array.downsample(a, 2, boundary="reflect"), ValueError, "found 'reflect'"),
        (lambda a: b2array.downsample(a, 2, boundary="exact"), ValueError, r"multiples of \(2, 2, 2\)"),
        (lambda a: b2array.downsample(a, 2, np.sort), TypeError, "axis|tuple"),
        (lambda _: b2array.downsample(np.zeros(4, "M8[s]"), 2), TypeError, "no mean"),
        (lambda _: b2array.downsample(np.zeros(4, "i4,f4"), 2), TypeError, "no mean"),
        (lambda a: b2array.downsample(a, 2, np.median, dtype="i4"), TypeError, "Cannot cast array data"),
    ],
)
def test_wrong_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call(b2array.asarray(X, dims=("t", "y", "x")))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1)])
def test_small_arrays_are_reduced_too(shape):
    x = np.ones(shape, "i4")
    found = b2array.downsample(b2array.asarray(x), 2)
    assert same(found[...], np.ones([-(-n // 2) for n in shape], "i4"))


@pytest.mark.costly
@pytest.mark.parametrize("boundary", ["pad", "trim"])
def test_large_factors_need_little_memory(tmp_path, monkeypatch, boundary):
    monkeypatch.setattr(array_copying, "PIECE_NBYTES", 2**18)
    x = np.random.default_rng(0).integers(0, 99, (900, 1030), "u2")
    a = b2array.asarray(x, url=tmp_path / "a.b2nd", chunks=(64, 256), blocks=(32, 64))
    expected = reference(x, (32, 32), rounded_mean, boundary)
    with b2array.config.using(cache_bytes=0, threads=2):
        tracemalloc.start()
        try:
            found = b2array.downsample(a, 32, url=tmp_path / "b.b2nd", boundary=boundary, chunks=(20, 20))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert same(found[...], expected)
    # One chunk of the result stands for 800 KiB, and pieces of the array are at most 256 KiB.
    assert peak < 4 * 2**20


def test_pieces_of_one_chunk_are_encoded_once(tmp_path, monkeypatch):
    monkeypatch.setattr(array_copying, "PIECE_NBYTES", 2**14)
    a = b2array.asarray(np.arange(512 * 512, dtype="u4").reshape(512, 512), chunks=(64, 64))
    found = b2array.downsample(a, 8, url=tmp_path / "a.b2d/", layout="sparse")
    assert same(found[...], reference(a[...], (8, 8), rounded_mean))
    assert sorted(path.name for path in (tmp_path / "a.b2d").iterdir() if path.name[0] == "0") == ["00000000.chunk"]


def test_processes_reduce_too():
    with ProcessPoolExecutor(2) as pool:
        found = b2array.downsample(b2array.asarray(X), (1, 3, 3), executor=pool)
    assert same(found[...], reference(X, (1, 3, 3), rounded_mean))


def test_bounds_stay_where_the_type_does():
    bounded = b2array.CParams("zstd", absolute_error=0.25)
    a = b2array.asarray(np.linspace(0, 1, 100, dtype="f4"), cparams=bounded)
    assert b2array.downsample(a, 4).cparams == a.cparams
    assert b2array.downsample(a, 4, "first", dtype="f8").cparams == a.cparams.without_bounds()
    assert b2array.downsample(a, 4, lambda x, axis: (x > 0.5).any(axis)).dtype == bool
