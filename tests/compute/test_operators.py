"""Operators act on the items, or refuse; identity is left to `is` and to hashes."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from arrays import outcome, same

import b2array
from b2array.compute import operators

BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    divmod,
    operator.lshift,
    operator.rshift,
    operator.and_,
    operator.or_,
    operator.xor,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
    operator.matmul,
]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ior, operator.ipow]


def equal(found, expected):
    if isinstance(expected, tuple):
        return all(map(same, found, expected))
    return same(found, expected)


@pytest.mark.parametrize("verb", BINARY)
@pytest.mark.parametrize("dtype", ["i4", "f8", "?", "c8"])
def test_operators_are_numpys(verb, dtype):
    values = (np.arange(12).reshape(3, 4) % 5).astype(dtype)
    array = b2array.asarray(values, chunks=(2, 2))
    others = [(array, values), (2, 2), (True, True), (1.5, 1.5), (np.int8(3), np.int8(3)), ([1, 2, 3, 4],) * 2]
    others += [(values[1], values[1]), (values.T, values.T), (array.T, values.T), (array.view[:, :1], values[:, :1])]
    with np.errstate(all="ignore"):
        for ours, theirs in [*others, (None, None), ("x", "x"), (np.zeros((2, 2, 1, 1)),) * 2]:
            expected = outcome(lambda: verb(values, theirs))  # noqa: B023
            assert equal(outcome(lambda: verb(array, ours)), expected), theirs  # noqa: B023
            assert equal(outcome(lambda: verb(array.view[...], ours)), expected), theirs  # noqa: B023
            assert equal(outcome(lambda: verb(ours, array)), outcome(lambda: verb(theirs, values))), theirs  # noqa: B023


@pytest.mark.parametrize("verb", [operator.neg, operator.pos, operator.abs, operator.invert])
@pytest.mark.parametrize("dtype", ["i4", "f8", "?", "M8[s]"])
def test_unary_operators_are_numpys(verb, dtype):
    values = np.arange(-3, 3).astype(dtype)
    assert equal(outcome(lambda: verb(b2array.asarray(values))), outcome(lambda: verb(values)))


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3), (), (0, 3)])
def test_in_looks_among_all_items_as_in_numpy(shape):
    values = np.arange(math.prod(shape)).reshape(shape)
    array = b2array.asarray(values)
    for item in (0, 5, 6, "x", [0, 1, 2], values):
        assert equal(outcome(lambda: item in array), outcome(lambda: item in values)), item  # noqa: B023
    assert (0 in array.T) == (0 in values.T)


@pytest.mark.parametrize("verb", IN_PLACE)
def test_an_operator_in_place_does_not_pretend_to_change_what_is_stored(verb):
    array = b2array.zeros(4, "i8")
    with pytest.raises(TypeError, match=r"a\[\.\.\.\] \+= x"):
        verb(array, 1)
    array[...] += 1
    assert array[...].tolist() == [1] * 4
    values = kept = np.zeros(4)
    values += array
    assert kept is values
    assert kept.tolist() == [1] * 4


def test_handles_are_hashed_by_identity():
    first, second = b2array.zeros(3), b2array.zeros(3)
    assert len({first, first, second}) == 2
    assert {first: 1}[first] == 1
    assert (first == second).all()
    assert not hasattr(first, "__array_ufunc__")
    assert not hasattr(first, "__array_function__")


def test_a_result_beyond_half_of_the_free_memory_is_refused_with_a_way_out(monkeypatch):
    array, small = b2array.zeros((10**6, 10**6)), b2array.zeros(10)
    for action in (
        lambda: array + 1,
        lambda: 1 - array,
        lambda: array == array.T,
        lambda: -array,
        lambda: array > small[:1],
    ):
        with pytest.raises(MemoryError, match=r"to_dask\(\) .* reductions such as sum\(\)"):
            action()
    monkeypatch.setattr(operators, "free_nbytes", lambda: 159)
    with pytest.raises(MemoryError):
        small + 1
    with pytest.raises(MemoryError):
        operator.eq(b2array.zeros((10, 1), "i1"), np.zeros((1, 80), "i1"))
    monkeypatch.setattr(operators, "free_nbytes", lambda: 160)
    assert (small + 1).sum() == 10


def test_the_memory_that_is_free_is_known():
    assert 2**20 < operators.free_nbytes() < 2**50


def test_dask_and_xarray_go_on_without_reading():
    da, xr = pytest.importorskip("dask.array"), pytest.importorskip("xarray")
    values = np.arange(12.0).reshape(3, 4)
    array = b2array.asarray(values)
    lazy = da.from_array(values, chunks=2)
    for found in (array + lazy, lazy + array):
        assert isinstance(found, da.Array)
        assert (found.compute() == 2 * values).all()
    found = array * xr.DataArray(lazy)
    assert isinstance(found.data, da.Array)
    assert (found.values == values**2).all()
    assert isinstance(array + np.ma.array(values), np.ma.MaskedArray)
    assert (np.add(values, array) == 2 * values).all()


def test_items_become_numbers_and_lists_of_python():
    x = np.arange(6, dtype="i2").reshape(2, 3)
    a = b2array.asarray(x)
    for args in ((0,), (-1,), (5,), (1, 2), (-1, 0), (np.int64(3),)):
        assert (a.item(*args), type(a.item(*args))) == (x.item(*args), int)
    assert (a.view[1, 1].item(), b2array.asarray([2.5]).item(), a.T.item(1)) == (4, 2.5, 3)
    assert (a.tolist(), a.view[0].tolist(), a.view[1, 1].tolist()) == (x.tolist(), [0, 1, 2], 4)
    day = np.datetime64("2026-11-27")
    assert b2array.asarray(day).item() == day.item()


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((), ValueError, "size 1"),
        ((6,), IndexError, "6"),
        ((0, 3), IndexError, "3"),
        ((0, 0, 0), ValueError, "number of indices"),
    ],
)
def test_item_refuses_what_numpy_refuses(args, error, text):
    x = np.arange(6).reshape(2, 3)
    with pytest.raises(error):
        x.item(*args)
    with pytest.raises(error, match=text):
        b2array.asarray(x).item(*args)


def test_items_are_clipped_and_rounded_as_by_numpy():
    x = np.array([[-1.55, 0.25], [1.45, 27.0]])
    a = b2array.asarray(x)
    for function in (
        lambda y: y.clip(0, 1),
        lambda y: np.clip(y, [0, 1], None),
        lambda y: y.clip(max=2),
        lambda y: y.round(),
        lambda y: np.round(y, 1),
        lambda y: y.round(-1),
        lambda y: y.clip(y, y),
    ):
        assert same(function(a), function(x))
        assert same(function(a.T), function(x.T))
    with pytest.raises(TypeError, match="out must be None"):
        a.clip(0, 1, out=np.empty((2, 2)))
    out = np.empty((2, 2))
    assert np.clip(a, 0, 1, out=out) is out  # NumPy reads the array then
    assert same(out, x.clip(0, 1))


def test_methods_that_only_numpys_arrays_have_are_answered_with_a_way():
    a = b2array.zeros((2, 3))
    for array, name in ((a, "sort"), (a.T, "flatten"), (a, "cumsum")):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': a\[\.\.\.\] reads the items"):
            getattr(array, name)
    with pytest.raises(AttributeError, match=r"^'NDArray' object has no attribute 'sorted'$"):
        _ = a.sorted
    assert not hasattr(a, "__array_interface__")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("coarsen", r"b2array\.downsample"), ("path", r"a\.url"), ("update_attributes", r"attrs\.update")],
)
def test_arrays_answer_the_words_of_other_libraries(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': .*{hint}"):
        getattr(b2array.zeros(3), name)
