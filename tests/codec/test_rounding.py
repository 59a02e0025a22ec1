"""Floats that may have errors: the bound holds for every item, and nothing else changes."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from b2array.codec.cparams import CParams
from b2array.codec.rounding import check_dtype, count_kept_bits, round_items

FLOATS = ("<f2", "<f4", "<f8", ">f4", ">f8")
COMPLEX = ("<c8", "<c16", ">c8")
BOUNDS = st.one_of(
    st.floats(1e-320, 1e308, allow_nan=False, allow_infinity=False), st.sampled_from([0.01, 0.5, 1.0, 2.0**-20, 5e-324])
)


@st.composite
def floats(draw: st.DrawFn, kinds: tuple[str, ...] = FLOATS) -> np.ndarray[Any, Any]:
    """Draw floats of any bits (subnormals, payloads, infinities, both zeros, huge ranges), or usual numbers."""
    dtype = np.dtype(draw(st.sampled_from(kinds)))
    part = np.dtype(f"{dtype.byteorder}f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    count = draw(st.integers(1, 20)) * (2 if dtype.kind == "c" else 1)
    any_bits = hnp.arrays(f"u{part.itemsize}", count)
    numbers = hnp.arrays(part.newbyteorder("="), count, elements=st.floats(-100, 100, width=8 * part.itemsize))
    if draw(st.booleans()):
        return draw(any_bits).view(part).view(dtype)
    return draw(numbers).astype(part).view(dtype)


def exact(value: Any) -> Fraction:
    return Fraction(float(value))


@given(floats(), BOUNDS)
def test_absolute_error_holds_for_every_item(items: np.ndarray[Any, Any], bound: float) -> None:
    found = round_items(items, CParams(absolute_error=bound))
    for old, new in zip(items, found, strict=True):
        if np.isfinite(old):
            assert abs(exact(new) - exact(old)) <= Fraction(bound)
            assert math.copysign(1, new) == math.copysign(1, old)
        else:
            assert old.tobytes() == new.tobytes()


@given(floats(), st.floats(1e-18, 10))
def test_relative_error_holds_for_every_item(items: np.ndarray[Any, Any], bound: float) -> None:
    found = round_items(items, CParams(relative_error=bound))
    for old, new in zip(items, found, strict=True):
        if np.isfinite(old):
            assert abs(exact(new) - exact(old)) <= Fraction(bound) * abs(exact(old))
        else:
            assert old.tobytes() == new.tobytes()


@given(floats(COMPLEX), st.floats(1e-30, 1e30), st.floats(1e-6, 1))
def test_errors_hold_for_complex_numbers(items: np.ndarray[Any, Any], absolute: float, relative: float) -> None:
    by_absolute = round_items(items, CParams(absolute_error=absolute))
    by_relative = round_items(items, CParams(relative_error=relative))
    for old, a, r in zip(items, by_absolute, by_relative, strict=True):
        if not np.isfinite(old):
            continue
        square = exact(old.real) ** 2 + exact(old.imag) ** 2
        error = (exact(a.real) - exact(old.real)) ** 2 + (exact(a.imag) - exact(old.imag)) ** 2
        assert error <= Fraction(absolute) ** 2
        error = (exact(r.real) - exact(old.real)) ** 2 + (exact(r.imag) - exact(old.imag)) ** 2
        assert error <= Fraction(relative) ** 2 * square


@given(floats(FLOATS + COMPLEX), st.sampled_from(["absolute_error", "relative_error", "keepbits"]), st.data())
def test_rounding_again_changes_nothing(items: np.ndarray[Any, Any], name: str, data: st.DataObject) -> None:
    amount = data.draw(st.integers(1, 10) if name == "keepbits" else BOUNDS)
    cparams = CParams(**{name: amount})
    once = round_items(items, cparams)
    assert round_items(once, cparams).tobytes() == once.tobytes()


@given(floats(), st.integers(1, 9))
def test_keepbits_rounds_to_nearest_and_to_even(items: np.ndarray[Any, Any], keepbits: int) -> None:
    found = round_items(items, CParams(keepbits=keepbits))
    drop = np.finfo(items.dtype).nmant - keepbits
    for old, new in zip(items, found, strict=True):
        native = old.astype(old.dtype.newbyteorder("="))
        raw = int(native.view(f"u{native.itemsize}"))
        even = (raw + (1 << drop - 1) - 1 + (raw >> drop & 1)) >> drop << drop
        expected = np.array(even % 2 ** (8 * native.itemsize), f"u{native.itemsize}").view(native.dtype)
        stays = not (np.isfinite(native) and np.isfinite(expected))
        assert new.tobytes() == (old if stays else expected.astype(old.dtype)).tobytes()


@given(floats(("<f4", "<f8")))
def test_kept_bits_are_enough_for_every_item(items: np.ndarray[Any, Any]) -> None:
    mantissa = np.finfo(items.dtype).nmant
    kept = count_kept_bits(items)
    assert 0 <= kept <= mantissa
    if kept:
        dropped = mantissa - kept
        raw = items.view(f"u{items.dtype.itemsize}")
        assert not (raw & raw.dtype.type((1 << dropped) - 1)).any()


def test_items_that_equal_the_fill_value_stay() -> None:
    items = np.array([-999.9, 1.2345, np.nan], "f4")
    found = round_items(items, CParams(absolute_error=0.1), fill=np.float32(-999.9).tobytes())
    assert found[0] == np.float32(-999.9)
    assert found[1] != items[1]


def test_nan_keeps_its_payload_and_infinities_stay() -> None:
    items = np.array([0x7FF00000000007A2, 0xFFF8000000000001, 0x7FF0000000000000], "u8").view("f8")
    for cparams in (CParams(absolute_error=1), CParams(relative_error=0.1), CParams(keepbits=1)):
        assert round_items(items, cparams).tobytes() == items.tobytes()


@pytest.mark.parametrize("dtype", ["i4", "u1", "?", "S3", "U3", "M8[s]", "V4", [("x", "f4")], "g"])
def test_other_types_are_refused(dtype: Any) -> None:
    with pytest.raises(TypeError, match="round floats"):
        check_dtype(CParams(absolute_error=0.1), np.dtype(dtype))


def test_keepbits_beyond_the_mantissa_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 23"):
        check_dtype(CParams(keepbits=24), np.dtype("f4"))


@pytest.mark.parametrize(
    ("given_", "error"),
    [
        ({"absolute_error": 0}, ValueError),
        ({"absolute_error": -1}, ValueError),
        ({"relative_error": math.nan}, ValueError),
        ({"relative_error": math.inf}, ValueError),
        ({"absolute_error": "much"}, TypeError),
        ({"absolute_error": [1]}, TypeError),
        ({"keepbits": 0}, ValueError),
        ({"keepbits": 53}, ValueError),
        ({"keepbits": 3.5}, TypeError),
        ({"absolute_error": 1, "keepbits": 3}, ValueError),
        ({"absolute_error": 1, "filters": ("trunc_prec",)}, ValueError),
    ],
)
def test_impossible_bounds_are_refused(given_: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        CParams(**given_)
