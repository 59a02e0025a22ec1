"""A function of arrays, piece by piece."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from arrays import same

import b2array
from b2array.array import array_copying

X = np.random.default_rng(0).normal(size=(80, 60, 40))


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(array_copying, "PIECE_NBYTES", 8 * 20 * 20 * 40)


@pytest.fixture
def a():
    return b2array.asarray(X, chunks=(20, 20, 40), dims=("t", "y", "x"))


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor, ProcessPoolExecutor])
def test_a_function_is_called_with_pieces(a, executor, small_pieces, tmp_path):
    pool = None if executor is None else executor(2)
    try:
        squared = b2array.map(np.square, a.T.T, url=tmp_path / "a.b2nd", dtype="c16", executor=pool)
        found = b2array.map(np.negative, a, url=tmp_path / "b.b2nd", executor=pool)
    finally:
        if pool is not None:
            pool.shutdown()
    assert same(squared[...], (X * X).astype("c16"))
    assert same(found[...], -X)
    assert (found.dims, b2array.load(tmp_path / "b.b2nd").shape) == (("t", "y", "x"), X.shape)


def test_pieces_are_whole_chunks_of_the_result(a, small_pieces):
    shapes = []

    def note(values):
        shapes.append(values.shape)
        return values

    found = b2array.map(note, a, dtype="f8", chunks=(40, 10, 40), url=None)
    assert same(found[...], X)
    assert set(shapes) == {(40, 10, 40)}
    assert len(shapes) == 12


def test_arrays_are_broadcast(a, small_pieces):
    mean = b2array.map(lambda x: x.mean(axis=0), a, drop_axis=0)
    assert np.allclose(mean[...], X.mean(axis=0))
    assert mean.dims == ("y", "x")
    anomaly = b2array.map(lambda x, m, s: ((x - m) * s).astype("f4"), a, mean, 2, chunks=(80, 20, 20))
    assert same(anomaly[...], ((X - mean[...]) * 2).astype("f4"))
    assert same(b2array.map(np.add, mean, X)[...], mean[...] + X)
    assert same(b2array.map(np.add, X[:, :1], a.view[:1])[...], X[:, :1] + X[:1])


@pytest.mark.parametrize(
    ("function", "dropped", "new", "expected"),
    [
        (lambda x: x.max(axis=(0, 2)), (0, 2), (), X.max(axis=(0, 2))),
        (lambda x: x.sum(axis=-1), -1, (), X.sum(axis=-1)),
        (lambda x: np.stack([x, -x], axis=-1), (), 3, np.stack([X, -X], axis=-1)),
        (lambda x: np.stack([x.min(-1), x.max(-1)]), 2, 0, np.stack([X.min(-1), X.max(-1)])),
        (lambda x: np.quantile(x, [0.1, 0.5, 0.9], axis=0), 0, [0], np.quantile(X, [0.1, 0.5, 0.9], axis=0)),
        (lambda x: x[:, None, :, None], (), (1, 3), X[:, None, :, None]),
    ],
)
def test_axes_are_dropped_and_added(a, function, dropped, new, expected, small_pieces):
    found = b2array.map(function, a, drop_axis=dropped, new_axis=new)
    assert np.allclose(found[...], expected)
    assert found.shape == expected.shape


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda a, url: b2array.map(np.ravel, a, url=url), ValueError, r"expected a result of shape \(20, 20, 40\)"),
        (lambda a, url: b2array.map(np.ravel, a, dtype="f8", url=url), ValueError, r"expected a result of shape"),
        (lambda a, url: b2array.map(lambda x: x + 1j, a, dtype="f4", url=url), TypeError, "Cannot cast array data"),
        (lambda a, url: b2array.map(np.add, a, np.zeros(7), url=url), ValueError, "broadcast"),
        (lambda a, url: b2array.map(lambda x: 1 / 0, a, dtype="f8", url=url), ZeroDivisionError, "division"),
        (lambda a, url: b2array.map(np.abs, a, drop_axis=3, url=url), np.exceptions.AxisError, "drop_axis"),
        (lambda _, url: b2array.map(np.abs, url=url), TypeError, "at least one array"),
        (lambda a, url: b2array.map(np.abs, a, chunkss=3, url=url), TypeError, "Did you mean 'chunks'"),
    ],
)
def test_what_fails_leaves_nothing(a, call, error, text, small_pieces, tmp_path):
    with pytest.raises(error, match=text):
        call(a, tmp_path / "a.b2nd")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_small_arrays_are_mapped_too(shape):
    x = np.ones(shape)
    assert same(b2array.map(np.negative, b2array.asarray(x))[...], np.asarray(-x))


def test_the_result_may_replace_what_it_was_computed_from(tmp_path):
    a = b2array.asarray(X, url=tmp_path / "a.b2nd", chunks=(20, 20, 40))
    b2array.map(np.negative, a, url=tmp_path / "a.b2nd", overwrite=True)
    assert same(b2array.load(tmp_path / "a.b2nd"), -X)


def test_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(array_copying, "PIECE_NBYTES", 2**20)
    big = b2array.zeros((4000, 2000), chunks=(100, 1000), url=tmp_path / "a.b2nd")
    with b2array.config.using(cache_bytes=0, threads=2):
        tracemalloc.start()
        try:
            found = b2array.map(lambda x: x + 1, big, url=tmp_path / "b.b2nd")
            assert tracemalloc.get_traced_memory()[1] < 24 * 2**20
        finally:
            tracemalloc.stop()
    assert (found[-1, -1], found.nbytes) == (1, 64_000_000)


def test_threads_call_the_function(a, small_pieces):
    names = set()

    def note(values):
        names.add(threading.current_thread().name)
        return values

    with b2array.config.using(threads=2):
        b2array.map(note, a, dtype="f8")
    assert "MainThread" not in names


def test_results_have_fewer_items_than_their_pieces(a, small_pieces):
    shapes = []

    def middle(values):
        shapes.append(values.shape)
        return values[::2, :, ::3]

    found = b2array.map(middle, a, factors={"t": 2, "x": 3}, dtype="f8", chunks=(10, 20, 12))
    assert same(found[...], X[::2, :, ::3])
    assert found.dims == ("t", "y", "x")
    assert set(shapes) == {(20, 20, 36), (20, 20, 4)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"factors": (1, 4, 1), "drop_axis": 0}, X.sum(0)[::4]),
        ({"factors": (7, 4, 1), "drop_axis": 0}, X.sum(0)[::4]),  # a dropped axis stays whole
        ({"factors": (1, 4, 1), "drop_axis": 0, "new_axis": 0}, X.sum(0)[::4][None]),
    ],
)
def test_axes_are_dropped_and_added_where_others_shrink(a, options, expected, small_pieces):
    def total(values):
        found = values.sum(axis=0)[::4]
        return found[None] if "new_axis" in options else found

    assert np.allclose(b2array.map(total, a, **options)[...], expected)


def test_a_result_must_be_smaller_by_the_factors(a):
    with pytest.raises(ValueError, match=r"expected a result of shape \(10, 20, 40\) .* found \(20, 20, 40\)"):
        b2array.map(np.square, a, factors=(2, 1, 1))
