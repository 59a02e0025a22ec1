"""Rounds floats to fewer bits, within the error that the user allows.

The filter TRUNC_PREC of the format truncates bits, with twice the error of rounding, and converts some NaN to
infinities. So values are rounded here first. In the chunk's header, the filter then states how many of the lowest bits
are zero in all items, but it changes no items.

NaN, infinities, and values that would become infinite are not changed, nor are items that equal the fill value, because
readers compare items with the fill value.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.codec.cparams import CParams

__all__ = ["check_dtype", "count_kept_bits", "round_items"]

Array = npt.NDArray[Any]
DType = np.dtype[Any]

_WORDS: dict[int, DType] = {
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
}
_TRUNCATABLE = {np.dtype("<f4"): 23, np.dtype("<f8"): 52}
"""The types that TRUNC_PREC supports, with the number of mantissa bits."""


def check_dtype(cparams: CParams, dtype: DType) -> None:
    """Raise TypeError or ValueError if items of this type cannot have the errors that the parameters allow."""
    if not cparams.is_lossy:
        return
    if dtype.kind not in "fc" or _part(dtype).itemsize not in _WORDS:
        raise TypeError(
            "absolute_error, relative_error and keepbits round floats of 2, 4 or 8 bytes and complex numbers of such, "
            f"not {dtype}: leave them out"
        )
    most = np.finfo(_part(dtype)).nmant
    if cparams.keepbits is not None and cparams.keepbits > most:
        raise ValueError(f"keepbits must be 1 to {most} for {dtype}, not {cparams.keepbits}")


def round_items(items: Array, cparams: CParams, fill: bytes | None = None) -> Array:
    """Round floats or complex numbers; items with the bytes of `fill` are not changed."""
    values = items.view(_part(items.dtype))
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    if cparams.absolute_error is not None:
        bound = cparams.absolute_error
        if items.dtype.kind == "c":  # its error is at most the square root of 2 times its parts' error
            bound = math.nextafter(bound / math.sqrt(2), 0)
        floats = _to_multiples(native, bound)
    else:
        bits = _mantissa_bits(cparams)
        # Subnormal numbers have fewer bits, so a relative bound would not hold for them; do not round them.
        rounds_subnormals = cparams.keepbits is not None
        floats = _to_bits(native, bits, subnormals=rounds_subnormals)
    result: Array = floats.astype(values.dtype, copy=False).view(items.dtype)
    if fill is not None:
        raw = _raw(items)
        is_fill = raw == np.frombuffer(fill, raw.dtype)
        np.copyto(result, items, where=is_fill)
    return result


def count_kept_bits(items: Array) -> int:
    """Return the number of mantissa bits that the filter TRUNC_PREC must keep, so that no item changes.

    The result is 0 if the filter cannot be used: the type is not supported, or an item uses all bits.
    """
    mantissa = _TRUNCATABLE.get(items.dtype)
    if mantissa is None or not items.size:
        return 0
    words = items.view(f"<u{items.dtype.itemsize}")
    together = int(np.bitwise_or.reduce(words, axis=None))
    if not together:
        return 1
    lowest = (together & -together).bit_length() - 1
    return max(mantissa - lowest, 1) if lowest else 0


def _part(dtype: DType) -> DType:
    """Return the type of the real part of an item."""
    if dtype.kind != "c":
        return dtype
    return np.dtype(f"{dtype.byteorder}f{dtype.itemsize // 2}")


def _raw(items: Array) -> Array:
    """Return the bits of the items as a type in which equal bits compare equal."""
    itemsize = items.dtype.itemsize
    kind = "V" if itemsize > 8 else "u"  # complex numbers of 16 bytes have no integer of their size
    return items.view(f"{kind}{itemsize}")


def _mantissa_bits(cparams: CParams) -> int:
    """Return the number of mantissa bits to keep."""
    if cparams.keepbits is not None:
        return cparams.keepbits
    # Rounding to n bits has an error of at most 2**-(n + 1) of a value; by frexp, 2**(power - 1) is within the bound.
    _, power = math.frexp(cparams.relative_error or 1.0)
    return max(-power, 1)


def _to_multiples(values: Array, bound: float) -> Array:
    """Round to multiples of the largest power of two that is at most twice the bound."""
    wide = values.astype("f4") if values.dtype.itemsize == 2 else values
    kind = wide.dtype.type
    limits = np.finfo(wide.dtype)
    _, power = math.frexp(bound)
    power = min(power, limits.maxexp - 1)
    if power < limits.minexp:  # only numbers close to zero could change
        return values.copy()
    step = kind(2.0**power)
    inverse = kind(2.0**-power)
    with np.errstate(all="ignore"):
        multiples = wide * inverse
        # Larger numbers are already multiples; the multiplication might overflow.
        is_small = np.abs(multiples) < 2.0**limits.nmant
        np.rint(multiples, out=multiples)
        multiples *= step
        result: Array = multiples.astype(values.dtype, copy=False)
        is_rounded = is_small & np.isfinite(result)
        np.copyto(result, values, where=~is_rounded)
    return result


def _to_bits(values: Array, bits: int, *, subnormals: bool) -> Array:
    """Round to a number of mantissa bits; optionally skip subnormal numbers, which have fewer bits."""
    limits = np.finfo(values.dtype)
    drop = limits.nmant - bits
    if drop <= 0:
        return values.copy()
    word = _WORDS[values.dtype.itemsize]
    raw = values.view(word)
    odd = raw >> word.type(drop)
    odd &= word.type(1)
    # Add almost half of a step, and the rest for odd numbers, so that ties round to even.
    half = (1 << drop - 1) - 1
    words = raw + word.type(half)
    words += odd
    all_bits = (1 << 8 * word.itemsize) - 1
    words &= word.type(all_bits >> drop << drop)
    result: Array = words.view(values.dtype)
    kept = ~np.isfinite(values) | ~np.isfinite(result)
    if not subnormals:
        kept |= np.abs(values) < limits.smallest_normal
    np.copyto(result, values, where=kept)
    return result
