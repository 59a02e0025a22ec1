"""Arrays that are joined, and which of their chunks are copied without decoding them."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import same
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array.commit.open_chunk import OpenChunk

RNG = np.random.default_rng(0)


def counts(monkeypatch):
    """Count the chunks that are encoded from now on."""
    encoded = []
    original = OpenChunk.encode
    monkeypatch.setattr(OpenChunk, "encode", lambda self: encoded.append(1) or original(self))
    return encoded


def chunks_of(a):
    return [a.get_chunk(n) for n in range(a.nchunks)]


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_joining_equals_numpys(data):
    ndim = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(-ndim, ndim - 1))
    base = data.draw(st.tuples(*[st.integers(0, 5)] * ndim))
    lengths = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=5))
    dtypes = data.draw(st.lists(st.sampled_from(["i2", "f4", "?"]), min_size=len(lengths), max_size=len(lengths)))
    chunks = data.draw(st.tuples(*[st.integers(1, 4)] * ndim))
    arrays, expected = [], []
    for length, dtype in zip(lengths, dtypes, strict=True):
        shape = list(base)
        shape[axis] = length
        x = RNG.integers(0, 9, shape).astype(dtype)
        own = data.draw(st.sampled_from([None, chunks, chunks, (3,) * ndim]))
        arrays.append(
            x if own is None else b2array.asarray(x, chunks=own, blocks=data.draw(st.sampled_from([1, "auto"])))
        )
        expected.append(x)
    options = data.draw(st.sampled_from([{}, {}, {"chunks": 2}, {"cparams": "lz4"}]))
    assert same(b2array.concatenate(arrays, axis, **options)[...], np.concatenate(expected, axis))
    first = [each for each in arrays if each.shape == arrays[0].shape]
    found = b2array.stack(first, axis, **options)
    assert same(found[...], np.stack([each[...] for each in first], axis))


def test_chunks_are_copied_where_the_grids_fit(monkeypatch):
    x = RNG.normal(size=(10, 6))
    parts = [b2array.asarray(each, chunks=(2, 4), blocks=(1, 4)) for each in (x[:4], x[4:8], x[8:9])]
    encoded = counts(monkeypatch)
    found = b2array.concatenate(parts)
    assert encoded == []
    assert same(found[...], x[:9])
    assert chunks_of(found) == [chunk for part in parts for chunk in chunks_of(part)]
    assert (found.chunks, found.blocks) == ((2, 4), (1, 4))


@pytest.mark.parametrize(
    ("lengths", "torn"),
    [((4, 3), 0), ((3, 4), 3), ((3, 1, 4), 1), ((4, 3, 3, 2), 2), ((4, 0, 4), 0), ((1, 1, 1), 1)],
)
def test_only_chunks_in_which_arrays_meet_are_encoded(lengths, torn, monkeypatch):
    parts = [b2array.asarray(RNG.normal(size=n), chunks=2) for n in lengths]
    expected = np.concatenate([part[...] for part in parts])
    encoded = counts(monkeypatch)
    assert same(b2array.concatenate(parts)[...], expected)
    assert len(encoded) == torn


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stacked_arrays_keep_their_chunks(axis, monkeypatch):
    parts = [b2array.asarray(RNG.normal(size=(5, 6)), chunks=(2, 4), dims=("y", "x")) for _ in range(3)]
    expected = np.stack([part[...] for part in parts], axis)
    encoded = counts(monkeypatch)
    found = b2array.stack(parts, axis)
    assert encoded == []
    assert same(found[...], expected)
    wanted = ["y", "x"]
    wanted.insert(axis if axis >= 0 else 2, None)
    assert found.dims == tuple(wanted)
    assert found.chunks[found.dims.index(None)] == 1


def test_special_chunks_take_no_room_in_the_result():
    nan, zeros = b2array.full((4, 4), np.nan, chunks=2), b2array.zeros((4, 4), chunks=2)
    sevens = b2array.full((4, 4), 7.0, chunks=2)
    found = b2array.concatenate([nan, zeros, sevens])
    assert same(found[...], np.concatenate([nan[...], zeros[...], sevens[...]]))
    assert found.cbytes == sevens.cbytes
    assert np.isnan(found.fill_value)


def test_the_first_stored_array_gives_the_rest():
    first = b2array.asarray(
        np.ones((2, 3)), chunks=1, dims=("t", "x"), attrs={"units": "m"}, cparams="lz4", fill_value=3
    )
    found = b2array.concatenate([np.zeros((1, 3)), first, b2array.zeros((2, 3))], chunks=(2, 3))
    assert (found.dims, dict(found.attrs), found.fill_value) == (("t", "x"), {"units": "m"}, 3.0)
    assert (found.cparams, found.chunks) == (first.cparams, (2, 3))
    assert b2array.concatenate([first, first], attrs={}, dims=("a", "b")).attrs == {}


def test_values_are_never_rounded_twice():
    rough = b2array.asarray(RNG.normal(size=5), chunks=2, cparams=b2array.CParams(absolute_error=0.1))
    exact = b2array.asarray(RNG.normal(size=5), chunks=2)
    assert same(b2array.concatenate([rough, exact])[...], np.concatenate([rough[...], exact[...]]))
    found = b2array.concatenate([rough, exact], cparams=b2array.CParams(absolute_error=0.5))
    assert not same(found[...], np.concatenate([rough[...], exact[...]]))


def test_changes_that_wait_are_joined(tmp_path):
    a = b2array.asarray(np.arange(8), url=tmp_path / "a.b2nd", chunks=2)
    with a.transaction():
        a[1] = 70
        a[4:6] = 80
        found = b2array.concatenate([a, a])
    expected = np.array([0, 70, 2, 3, 80, 80, 6, 7] * 2)
    assert same(found[...], expected)


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_the_result_may_replace_one_of_the_arrays(layout, tmp_path):
    url = tmp_path / "a.b2nd"
    a = b2array.asarray(np.arange(6), url=url, chunks=2, layout=layout)
    b2array.concatenate([a, np.arange(3), a], url=url, overwrite=True, layout=layout)
    assert b2array.load(url).tolist() == [*range(6), *range(3), *range(6)]


def test_damaged_and_lost_chunks_are_errors(tmp_path):
    url = tmp_path / "a.b2nd"
    b2array.asarray(RNG.normal(size=1000), url=url, chunks=100, blocks=50)
    raw = bytearray(url.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    url.write_bytes(raw)
    with pytest.raises(b2array.errors.FormatError):
        b2array.concatenate([b2array.open(url)] * 2, url=tmp_path / "b.b2nd")
    assert not (tmp_path / "b.b2nd").exists()
    b2array.repair(url)
    with pytest.raises(b2array.errors.FormatError, match="lost"):
        b2array.concatenate([b2array.open(url)] * 2, url=tmp_path / "b.b2nd")
    assert not (tmp_path / "b.b2nd").exists()


def test_arrays_of_other_libraries_are_read_in_pieces(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("x", data=RNG.normal(size=(6, 4)), chunks=(2, 4))
        found = b2array.concatenate([data, b2array.ones((2, 4)).T.T, [[1, 2, 3, 4]]])
        assert same(found[...], np.concatenate([data[...], np.ones((2, 4)), [[1, 2, 3, 4]]]))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda a: b2array.concatenate([]), ValueError, "at least one array"),
        (lambda a: b2array.concatenate(a), TypeError, "takes a sequence of arrays, found NDArray"),
        (lambda a: b2array.concatenate([a, a[0]]), ValueError, r"array 1 has the shape \(3,\)"),
        (lambda a: b2array.concatenate([a, a[:, :2]]), ValueError, r"array 1 has the shape \(2, 2\)"),
        (lambda a: b2array.concatenate([1, 2]), ValueError, "zero-dimensional"),
        (lambda a: b2array.concatenate([a], 2), np.exceptions.AxisError, "out of bounds"),
        (lambda a: b2array.concatenate([a, a * 1j], dtype="f4"), TypeError, "same_kind"),
        (lambda a: b2array.concatenate([a, np.ma.masked_equal(a[...], 1)]), TypeError, "mask"),
        (lambda a: b2array.stack([]), ValueError, "at least one array"),
        (lambda a: b2array.stack([a, a[:1]]), ValueError, r"shape \(2, 3\), found \(1, 3\): array 1"),
        (lambda a: b2array.stack([a], 3), np.exceptions.AxisError, "out of bounds"),
        (lambda a: b2array.stack([a], dims=("x", "y")), ValueError, "3 dimensions"),
    ],
)
def test_wrong_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call(b2array.ones((2, 3)))
