"""Reductions are NumPy's, chunk by chunk, in bounded memory, and without decoding what has one value."""

from __future__ import annotations

import math
import threading
import time
import tracemalloc
import warnings

import numpy as np
import pytest
from arrays import NUMBERS, outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples
from views import shown

import b2array
from b2array import config
from b2array.codec import decode
from b2array.commit.handle import Handle
from b2array.compute import reductions
from b2array.compute.mapping import Mapping

SUMS = ("sum", "prod", "mean", "std", "var")
VERBS = (*SUMS, "min", "max", "any", "all", "argmin", "argmax", "count_nonzero")
NAN_VERBS = (*SUMS, "min", "max", "argmin", "argmax")
OTHERS = [np.dtype(text) for text in ("M8[s]", "m8[ms]", "S3", ">U2", "G")]


@st.composite
def requests(draw, shape, dtype, verbs):
    """A reduction and its arguments, some of them wrong."""
    verb, options = draw(st.sampled_from(verbs)), {}
    ndim = len(shape)
    axis = st.none() | st.integers(-ndim - 1, ndim)
    if not verb.startswith("arg"):
        axis |= st.lists(st.integers(-ndim, max(ndim - 1, 0)), max_size=3).map(tuple)
    if draw(st.integers(0, 3)):
        options["axis"] = draw(axis)
    if draw(st.booleans()):
        options["keepdims"] = draw(st.booleans())
    if verb in SUMS and dtype.kind in "biufc" and draw(st.integers(0, 4)) == 0:
        # NumPy's variance of complex numbers loses their imaginary parts where a type of real ones is asked for.
        whole = ["i8", "i2"] * (dtype.kind in "biu" and verb in ("sum", "prod"))
        kinds = ["c16"] if dtype.kind == "c" else ["f8", "f4", "c16", *whole]
        options["dtype"] = draw(st.sampled_from(kinds))
    if verb in ("sum", "prod", "min", "max") and draw(st.integers(0, 3)) == 0:
        options["initial"] = draw(st.sampled_from([0, 1, 3, None]))
    if verb not in ("argmin", "argmax", "count_nonzero") and draw(st.integers(0, 3)) == 0:
        seed, dims = draw(st.integers(0, 9)), shape[draw(st.integers(0, ndim)) :]
        where = np.random.default_rng(seed).integers(0, 3, dims) > 0
        options["where"] = draw(st.sampled_from([where, True, False, np.ones(7, bool), np.ones(shape)]))
    if verb in ("std", "var") and draw(st.booleans()):
        options["ddof"] = draw(st.sampled_from([0, 1, 3, 1.5]))
    return verb, options


def numbers(dtype, shape, seed):
    """Numbers that do not overflow when they are added up."""
    rng = np.random.default_rng(seed)
    if dtype.kind in "biu":
        return rng.integers(0, 4, shape).astype(dtype)
    if dtype.kind in "fc":
        made = rng.choice([0.0, 1.0, -2.5, 0.1, 3.25, *[np.nan, np.inf][: seed % 3]], shape).astype(dtype)
        # What infinite complex numbers make of products depends on their order.
        return np.where(np.isinf(made), 1j, made).astype(dtype) if dtype.kind == "c" else made
    made = rng.integers(-50, 50, shape).astype("i8")
    return made.astype(f"{dtype.kind}8[s]" if dtype.kind in "mM" else made.dtype).astype(dtype)


def matches(found, expected, values, verb):
    assert type(found) is type(expected), (found, expected)
    if isinstance(expected, type):
        return True
    assert (np.shape(found), found.dtype) == (np.shape(expected), expected.dtype)
    if found.dtype.kind not in "fc":
        return np.array_equal(found, expected, equal_nan=found.dtype.kind in "mM")
    if verb in ("min", "max"):
        return np.array_equal(found, expected, equal_nan=True)
    # NumPy's nanvar computes in the type of the items, whatever type is asked for.
    eps = max(np.finfo(each).eps for each in (found.dtype, values.dtype) if each.kind in "fc")
    # The error of a pairwise sum.
    total = np.sum(np.abs(values, where=np.isfinite(values), out=np.zeros(values.shape)) ** 2) + 1
    return np.allclose(found, expected, rtol=64 * eps, atol=16 * eps * total, equal_nan=True)


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.sampled_from([*NUMBERS, *OTHERS]))
def test_reductions_are_those_of_numpy(data, dtype):
    array, values = data.draw(shown(dtype, numbers))
    for _ in range(5):
        nan = dtype.kind in "fc" and data.draw(st.booleans())
        verb, options = data.draw(requests(values.shape, dtype, NAN_VERBS if nan else VERBS))
        # NumPy calls methods where there are some.
        place = b2array if nan else type(array) if verb == "count_nonzero" else np
        ours = getattr(place, f"nan{verb}" if nan else verb)
        theirs = getattr(np, f"nan{verb}" if nan else verb)
        with warnings.catch_warnings(action="ignore"):
            found = outcome(lambda: ours(array, **options))  # noqa: B023
            expected = outcome(lambda: theirs(values, **options))  # noqa: B023
        assert matches(found, expected, values, verb), (theirs, options, values, found, expected)


@pytest.mark.parametrize("fill", [0, np.nan, 7.5])
@pytest.mark.parametrize("verb", [*VERBS, "nansum", "nanmean", "nanvar", "nanmin"])
def test_chunks_of_one_value_are_not_decoded(fill, verb, monkeypatch):
    array, values = b2array.full((40, 30), fill, chunks=(7, 10), blocks=(3, 5)), np.full((40, 30), fill)
    array[14:16] = values[14:16] = 1.5
    decoded, asked = decode.decode_blocks, []
    monkeypatch.setattr(decode, "decode_blocks", lambda *given, **more: asked.append(1) or decoded(*given, **more))
    place = b2array if verb.startswith("nan") else b2array.NDArray
    with warnings.catch_warnings(action="ignore"), config.using(cache_bytes=0):
        for axis in (None, 0, 1):
            asked.clear()
            found, expected = getattr(place, verb)(array, axis=axis), getattr(np, verb)(values, axis=axis)
            assert np.allclose(found, expected, rtol=1e-13, equal_nan=True)
            assert len(asked) == 3
            found = getattr(place, verb)(array.T.view[::-1], axis=axis)
            assert np.allclose(found, getattr(np, verb)(values.T[::-1], axis=axis), rtol=1e-13, equal_nan=True)


def test_a_terabyte_of_zeros_is_reduced_in_a_moment():
    array = b2array.zeros((500_000, 500_000), "f4")
    start = time.perf_counter()
    assert array.sum() == array.max() == array.std() == 0
    assert array.view[::3, 5:].any() == False  # noqa: E712
    assert array.view[:, :7].mean(axis=0).tolist() == [0] * 7
    assert array.T.argmax() == array.count_nonzero() == 0
    assert time.perf_counter() - start < 6
    ones = b2array.zeros((3, 5), "i1", chunks=(1, 2))
    assert ones.prod() == 0 == ones.sum(dtype="i1")


@pytest.mark.slow
def test_sums_are_as_exact_as_pairwise_ones():
    rng = np.random.default_rng(3)
    for dtype in ("f4", "f8"):
        values = (rng.normal(size=2**18) * 10 ** rng.uniform(-6, 6, 2**18)).astype(dtype)
        array = b2array.asarray(values, chunks=(999,))
        exact, size = math.fsum(values.tolist()), math.fsum(np.abs(values).tolist())
        assert abs(float(array.sum()) - exact) <= 18 * np.finfo("f8").eps * size + abs(exact) * np.finfo(dtype).eps
        exact /= values.size
        deviation = math.sqrt(math.fsum(((values.astype("f8") - exact) ** 2).tolist()) / values.size)
        assert abs(float(array.std()) / deviation - 1) < 4 * np.finfo(dtype).eps
    # Naive sums of these stop growing at 2**24.
    ones = b2array.asarray(np.ones(2**24 + 2**20, "f4"), chunks=(2**16,))
    ones[0] = 2
    assert ones.sum() == np.float32(2**24 + 2**20 + 1)
    assert ones.mean(axis=0) == 1


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("options", [{}, {"keepdims": True}, {"ddof": 1}])
@pytest.mark.parametrize("verb", ["std", "var", "nanvar"])
@pytest.mark.parametrize("dtype", ["i4", "u4", "i8"])
def test_variances_of_whole_numbers_may_be_whole(axis, options, verb, dtype):
    values = np.random.default_rng(3).integers(dtype[0] == "u" or -90, 90, (30, 17)) + (dtype[0] == "u") * 9
    array = b2array.asarray(values.astype(dtype), chunks=(4, 5), blocks=(3, 2))
    place = b2array if verb == "nanvar" else np
    found = outcome(lambda: getattr(place, verb)(array, axis=axis, dtype=dtype, **options))
    expected = outcome(lambda: getattr(np, verb)(values.astype(dtype), axis=axis, dtype=dtype, **options))
    assert matches(found, expected, values, verb)


@pytest.mark.parametrize("kind", ["U4", "S3"])
@pytest.mark.parametrize("dtype", ["i8", "f8", "c16"])
def test_products_of_text_are_those_of_its_numbers(kind, dtype):
    values = np.random.default_rng(3).integers(-3, 4, (3, 7)).astype(kind)
    array = b2array.asarray(values, chunks=(2, 3))
    assert np.prod(array, dtype=dtype) == np.prod(values, dtype=dtype)
    assert np.prod(array, axis=0, dtype=dtype).tolist() == np.prod(values, axis=0, dtype=dtype).tolist()
    array[1, 1] = values[1, 1] = "x"
    assert outcome(lambda: np.prod(array, dtype=dtype)) is outcome(lambda: np.prod(values, dtype=dtype)) is ValueError


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("options", [{}, {"keepdims": True}, {"initial": 5}, {"initial": 5, "where": [True, False]}])
def test_sums_and_products_of_objects_have_no_limits(axis, options):
    values = np.random.default_rng(3).integers(2**61, 2**62, (9, 2))
    array = b2array.asarray(values, chunks=(2, 2), blocks=(1, 2))
    for verb in ("sum", "prod", "mean"):
        given = {name: value for name, value in options.items() if verb != "mean" or name == "keepdims"}
        found = getattr(array, verb)(axis=axis, dtype=object, **given)
        expected = getattr(np, verb)(values, axis=axis, dtype=object, **given)
        assert verb == "mean" or type(found) is type(expected)
        assert np.array_equal(found, expected)
    floats = b2array.asarray([1.5, np.nan, 3], chunks=(2,))
    assert b2array.nansum(floats, dtype=object) == 4.5


def test_the_first_of_equal_items_is_found_in_whatever_chunk_it_is():
    values = np.zeros((9, 8))
    values[[2, 5], [7, 0]] = 4
    values[[1, 3], [5, 2]] = -4
    array = b2array.asarray(values, chunks=(4, 3))
    for ours, theirs in ((array, values), (array.T, values.T), (array.view[::-1, ::-1], values[::-1, ::-1])):
        assert ours.argmax() == theirs.argmax()
        assert ours.argmin() == theirs.argmin()


def test_nothing_but_a_few_chunks_is_in_memory():
    rows = 512
    array = b2array.from_blocks(
        (np.full((1, 128, 128), n, "f8") + np.eye(128) for n in range(rows)), chunks=(8, 128, 128)
    )
    tracemalloc.start()
    try:
        with config.using(cache_bytes=0):
            found = array.mean(axis=0)
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.allclose(found, (rows - 1) / 2 + np.eye(128))
    assert peak < array.nbytes / 4


def test_large_chunks_are_reduced_in_pieces(monkeypatch):
    values = np.random.default_rng(0).normal(size=(50, 64, 30))
    array = b2array.asarray(values, chunks=(40, 64, 30), blocks=(4, 16, 30))
    monkeypatch.setattr(reductions, "_MOST_NBYTES", 2**16)
    monkeypatch.setattr(reductions, "_LEAST_NBYTES", 0)
    sizes = []

    def use(box, items):
        sizes.append(items.nbytes)

    source = array._handle.source
    list(reductions._pieces(source, array._layout, Mapping.of(array.shape), [0], use, merge=True))
    assert max(sizes) <= 2**16
    assert sum(sizes) == array.nbytes
    for axis in (None, 0, (1, 2)):
        assert np.allclose(array.var(axis=axis), values.var(axis=axis), rtol=1e-13)


def test_settings_for_floating_point_errors_hold_in_threads():
    array = b2array.asarray(np.array([np.inf, -np.inf] * 300), chunks=(100,))
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        array.sum()
    with np.errstate(invalid="ignore"):
        assert np.isnan(array.sum())
    with pytest.warns(RuntimeWarning, match="invalid value"):
        array.sum()


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (lambda a: b2array.nanmean(a), "Mean of empty slice"),
        (lambda a: b2array.nanmax(a), "All-NaN slice encountered"),
        (lambda a: b2array.nanvar(a), "Degrees of freedom <= 0"),
        (lambda a: a.var(ddof=6), "Degrees of freedom <= 0"),
        (lambda a: b2array.zeros((0, 3)).mean(), "Mean of empty slice"),
    ],
)
def test_numpy_warnings_are_given(action, text):
    array = b2array.full(6, np.nan, chunks=(4,))
    with pytest.warns(RuntimeWarning, match=text), np.errstate(all="ignore"):
        assert np.isnan(action(array))


def test_what_cannot_be_reduced_raises_what_numpy_raises():
    array = b2array.asarray(np.full((4, 3), np.nan))
    with pytest.raises(ValueError, match="All-NaN slice encountered"):
        b2array.nanargmin(array)
    with pytest.raises(ValueError, match="zero-size array to reduction operation minimum which has no identity"):
        np.min(b2array.zeros((0, 3)))
    with pytest.raises(ValueError, match="axis 2 is out of bounds for array of dimension 2"):
        array.sum(axis=2)
    with pytest.raises(ValueError, match="duplicate value in 'axis'"):
        array.sum(axis=(1, -1))
    with pytest.raises(TypeError, match="out must be None"):
        np.mean(array, out=np.zeros(()))
    for wrong in ({"colour": 1}, {"ddof": 1}):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            array.any(**wrong)
    assert b2array.nansum([1, np.nan]) == 1


def test_progress_counts_the_bytes(capsys):
    array = b2array.asarray(np.arange(3000.0), chunks=(1000,))
    assert array.sum(progress=True) == array.sum()
    assert "sum of memory" in (shown := capsys.readouterr().err)
    assert "24.0k/24.0k" in shown


def test_a_transaction_reduces_what_it_has_changed(tmp_path):
    array = b2array.zeros((20, 20), url=tmp_path / "a.b2nd", chunks=(5, 5))
    with array.transaction():
        array[3] = 2
        assert array.sum() == 40
        assert array.T.sum(axis=0).tolist() == [40 * (n == 3) for n in range(20)]
    assert array.mean() == 0.1


def test_remote_pieces_are_read_at_the_same_time(monkeypatch):
    values = np.random.default_rng(0).normal(size=(64, 1000))
    array = b2array.asarray(values, url="memory://reduce.b2nd", chunks=(4, 1000), layout="sparse")
    array = b2array.open("memory://reduce.b2nd")
    monkeypatch.setattr(reductions, "_LEAST_NBYTES_AFAR", 0)
    together, most, mutex = 0, 0, threading.Lock()
    plain = type(array._handle.store).read

    def slow(self, *given, **options):
        nonlocal together, most
        with mutex:
            together += 1
            most = max(most, together)
        time.sleep(0.02)
        try:
            return plain(self, *given, **options)
        finally:
            with mutex:
                together -= 1

    monkeypatch.setattr(type(array._handle.store), "read", slow)
    with config.using(cache_bytes=0):
        assert np.allclose(array.mean(axis=0), values.mean(axis=0))
    assert most > 3


def test_result_has_the_shape_of_what_was_reduced_if_another_thread_resizes_meanwhile(monkeypatch):
    values = np.arange(12).reshape(2, 6, 1)
    array = b2array.asarray(values)
    plain = Handle.reading

    def interrupted(handle, task):
        found = plain(handle, task)
        array.resize((3, 4, 1))
        return found

    monkeypatch.setattr(Handle, "reading", interrupted)
    assert array.sum(axis=2).tolist() == values.sum(axis=2).tolist()


def test_records_are_counted_and_objects_have_a_variance_as_in_numpy():
    records = np.zeros((3, 4), [("x", "i4"), ("y", "f8"), ("z", "U2")])
    records["y"][1, 2], records["z"][2] = 1, "a"
    array = b2array.asarray(records, chunks=(2, 2))
    assert array.count_nonzero() == np.count_nonzero(array) == np.count_nonzero(records) == 5
    assert array.T.view[1:].count_nonzero() == np.count_nonzero(records.T[1:])
    assert b2array.asarray(records[1, 2]).count_nonzero() == 1
    with pytest.raises(TypeError):
        array.count_nonzero(axis=0)
    values = np.array([1 + 2j, 3, 2j])
    for verb in ("std", "var"):
        expected = getattr(values, verb)(dtype=object)
        assert getattr(b2array.asarray(values, chunks=(2,)), verb)(dtype=object) == pytest.approx(expected)
