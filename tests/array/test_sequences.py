"""Numbers that follow a rule are NumPy's, and go to chunks piece by piece."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import outcome, same

import b2array
from b2array.array import array_copying, sequences


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(array_copying, "PIECE_NBYTES", 100)
    monkeypatch.setattr(sequences, "_ITEMS", 7)


def check(found, expected):
    if isinstance(expected, type):
        assert found is expected
    else:
        assert same(found[...], expected)


ARANGES = [(10,), (3, 40), (3, 40, 5), (40, 3, -3), (5, 3), (0.5, 20), (0, 1, 0.013), (3, -2.5, -0.25), (1, 0)]


@pytest.mark.parametrize("given", ARANGES)
@pytest.mark.parametrize("dtype", [None, "f4", "f2", "i2", ">i8"])
def test_arange_is_numpys(given, dtype):
    expected = outcome(lambda: np.arange(*given, dtype=dtype))
    check(outcome(lambda: b2array.arange(*given, dtype=dtype, chunks=(6,))), expected)


@pytest.mark.parametrize(
    "given", [(np.uint8(3),), (np.float32(1), 4), (np.int16(2), 9, np.float16(2)), (np.uint64(7),)]
)
def test_arange_of_numpys_scalars_has_the_type_that_numpy_chooses(given):
    check(b2array.arange(*given), np.arange(*given))


DAY = np.datetime64("2020-01-01")


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ((DAY, np.datetime64("2020-02-01")), None),
        ((DAY, np.datetime64("2020-01-03T12", "h"), np.timedelta64(90, "m")), None),
        ((DAY, np.timedelta64(10, "D"), np.timedelta64(3, "D")), None),
        (("2020-01-01", "2019-12-01", -2), "M8[D]"),
        ((0, 100, 7), "M8[s]"),
        ((np.timedelta64(50, "D"),), None),
        ((5, 40), "m8[h]"),
        ((DAY,), None),
        ((DAY, np.datetime64("NaT", "D")), None),
    ],
)
def test_arange_takes_dates_as_numpy_does(given, dtype):
    expected = outcome(lambda: np.arange(*given, dtype=dtype))
    check(outcome(lambda: b2array.arange(*given, dtype=dtype, chunks=(6,))), expected)


def test_arange_of_zero_steps_is_an_error():
    with pytest.raises(ZeroDivisionError):
        b2array.arange(0, 9, 0)


@pytest.mark.parametrize(
    "given",
    [(0, 1, 50), (2, 7, 1), (5, -3, 33), (0, 1, 0), (3, 3, 20), (0.1, 0.7, 28), (0, 1, -1), (0, 1, 2)],
)
@pytest.mark.parametrize("options", [{}, {"endpoint": False}, {"dtype": "f4"}, {"dtype": int}])
def test_linspace_is_numpys(given, options):
    with np.errstate(all="ignore"):
        expected = outcome(lambda: np.linspace(*given, **options))
        check(outcome(lambda: b2array.linspace(*given, **options, chunks=(6,))), expected)


@pytest.mark.parametrize("given", [(9,), (9, 4), (4, 9), (9, 8, 3), (9, 8, -4), (3, 3, 7), (0,), (7, None, -6)])
def test_eye_is_numpys(given):
    check(b2array.eye(*given, dtype="i4", chunks=(4, 3)), np.eye(*given, dtype="i4"))


def test_an_eye_stores_its_diagonal_only(tmp_path):
    found = b2array.eye(4096, url=tmp_path / "eye.b2nd", chunks=(64, 64))
    assert found.sum() == found.view[:, 7:].sum() + 7 == 4096
    assert (tmp_path / "eye.b2nd").stat().st_size < 2**17


@pytest.mark.parametrize("n", [0, 1, 6, 7, 14, 30])
@pytest.mark.parametrize("count", [-1, 0, 7, 14, 20])
def test_items_that_come_one_by_one_are_stored_as_numpy_collects_them(n, count):
    expected = outcome(lambda: np.fromiter(iter(range(n)), "i4", count))
    check(outcome(lambda: b2array.fromiter(iter(range(n)), "i4", count, chunks=(6,))), expected)


def test_an_iterator_is_not_read_beyond_what_is_wanted(tmp_path):
    numbers = iter(range(100))
    found = b2array.fromiter(numbers, "f8", 20, url=tmp_path / "a.b2nd", attrs={"unit": "m"})
    assert next(numbers) == 20
    assert (found.attrs["unit"], b2array.open(tmp_path / "a.b2nd")[-1]) == ("m", 19.0)
    with pytest.raises(ValueError, match="iterator too short: Expected 5 but iterator had only 3 items"):
        b2array.fromiter(range(3), "i4", 5, url=tmp_path / "b.b2nd")
    assert not (tmp_path / "b.b2nd").exists()


@pytest.mark.parametrize("name", ["arange", "linspace", "eye", "fromiter"])
def test_wrong_options_are_refused_by_name(name):
    given = {"arange": (3,), "linspace": (0, 1), "eye": (3,), "fromiter": ([1], "i4")}[name]
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'path'"):
        getattr(b2array, name)(*given, path="x")
