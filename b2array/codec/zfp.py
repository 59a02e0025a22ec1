"""ZFP: blocks of floats with errors within the user's bounds, through the package zfpy.

A block is one stream without a ZFP header: the id of the codec, its parameter byte, the shape of the block and the size
of an item are sufficient.

Sources: the documentation of ZFP (sections Compression Modes and Low-Level C API) and of the codec in C-Blosc2
(``plugins/codecs/zfp/README.md``).
"""

from __future__ import annotations

import importlib
import math
from enum import IntEnum
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs.abc import Codec

from b2array.buffers import Buffer
from b2array.errors import FormatError, UnsupportedError

__all__ = ["MAX_RATIO", "MIN_ITEMS", "Mode", "Zfp", "check_layout", "exponent", "tolerance"]

MAX_RATIO = 8 * 4**4 * 8
"""The maximum ratio: one bit can represent a cell of four items, of eight bytes each, along each of four dimensions."""
MIN_ITEMS = 64
"""The minimum number of items in a block: C-Blosc2 overruns its memory when it changes smaller blocks."""
_MIN_EXTENT = 4
_MOST_DIMS = 4
_DTYPES: dict[int, np.dtype[Any]] = {
    4: np.dtype("<f4"),
    8: np.dtype("<f8"),
}
_EXPONENT_BITS = {4: 8, 8: 11}
_PRECISION = (5, 7, 9, 11)
"""The addend to the parameter byte, by the number of dimensions."""
_MOST_PRECISION = 64
_PACKAGE = "ZFP needs the package zfpy: pip install 'b2array[zfp]'"


class Mode(IntEnum):
    """The ids of the codec, one for each way of limiting errors."""

    ZFP_ACC = 33
    ZFP_PREC = 34
    ZFP_RATE = 35


def exponent(tolerance: float) -> int:
    """Return the exponent of the largest power of ten that is not above a tolerance.

    Examples
    --------
    >>> exponent(0.001), exponent(0.0099), exponent(20)
    (-3, -3, 1)
    """
    if not 0 < tolerance < math.inf:
        raise ValueError(f"tolerance must be a finite number above 0, not {tolerance!r}")
    number = math.floor(math.log10(tolerance))
    # The logarithm is rounded, so it may be off by one at a power of ten.
    if 10.0 ** (number + 1) <= tolerance:
        number += 1
    if 10.0**number > tolerance:
        number -= 1
    if not -128 <= number <= 127:
        raise ValueError(f"tolerance must be 1e-128 to 1e127, not {tolerance!r}")
    return number


def tolerance(meta: int) -> float:
    """Return the largest error that the parameter byte of the accuracy mode allows.

    Examples
    --------
    >>> tolerance(253), tolerance(2)
    (0.001, 100.0)
    """
    power = meta - 256 if meta > 127 else meta  # a signed byte
    return float(10.0**power)


def check_layout(
    mode: int,
    meta: int,
    blockshape: tuple[int, ...] | None,
    dtype: np.dtype[Any],
) -> None:
    """Raise UnsupportedError if blocks cannot be compressed so that C-Blosc2 can read and change them."""
    if dtype not in _DTYPES.values():
        raise UnsupportedError(f"ZFP compresses items of type float32 or float64 in little endian, not {dtype.str}")
    if blockshape is None or not 1 <= len(blockshape) <= _MOST_DIMS:
        raise UnsupportedError(f"ZFP compresses arrays of 1 to {_MOST_DIMS} dimensions")
    if min(blockshape) < _MIN_EXTENT or math.prod(blockshape) < MIN_ITEMS:
        raise UnsupportedError(
            f"ZFP compresses blocks of at least {MIN_ITEMS} items, {_MIN_EXTENT} along each dimension, not {blockshape}"
        )
    Zfp(Mode(mode), meta, dtype.itemsize, blockshape).check_rate()


class Zfp(Codec):  # type: ignore[misc]  # numcodecs has no type hints
    """The codec of one block."""

    def __init__(
        self,
        mode: Mode,
        meta: int,
        typesize: int,
        blockshape: tuple[int, ...] | None,
    ) -> None:
        if blockshape is None:
            raise UnsupportedError(f"{mode.name.lower()} needs the shape of a block, and the chunk is not in an array")
        if typesize not in _DTYPES or not 1 <= len(blockshape) <= _MOST_DIMS or 0 in blockshape:
            raise FormatError(
                f"expected blocks of 4 or 8 bytes an item in 1 to {_MOST_DIMS} dimensions for ZFP, found {typesize} "
                f"bytes an item and shape {blockshape}"
            )
        self._dtype = _DTYPES[typesize]
        self._shape = blockshape
        self._mode = mode
        self._how = _settings(mode, meta, typesize, len(blockshape))

    def check_rate(self) -> None:
        """Raise UnsupportedError for a rate that leaves no bits for items, because zfpy would crash."""
        if self._mode != Mode.ZFP_RATE:
            return
        nitems = _MIN_EXTENT ** len(self._shape)
        bits = math.floor(nitems * self._how["rate"] + 0.5)
        if bits <= 1 + _EXPONENT_BITS[self._dtype.itemsize]:
            raise UnsupportedError(
                f"ZFP cannot compress {self._dtype.name} in {len(self._shape)} dimensions to so few percent"
            )

    def encode(self, buf: Buffer) -> Buffer:
        """Compress a block; return it unchanged if the error bound cannot be met."""
        self.check_rate()
        items = np.frombuffer(buf, self._dtype).reshape(self._shape)
        if not np.isfinite(items).all():  # ZFP converts these values and their neighbours to arbitrary numbers
            return buf
        payload: bytes = _zfpy().compress_numpy(items, write_header=False, **self._how)
        # A tolerance below the resolution of a type cannot be met.
        if self._mode == Mode.ZFP_ACC and not self._is_within(items, payload):
            return buf
        return payload

    def _is_within(self, items: npt.NDArray[Any], payload: bytes) -> bool:
        if len(payload) >= items.nbytes:
            return False
        with np.errstate(over="ignore"):  # the difference of large numbers may be infinite
            differences = np.subtract(self._decompress(payload), items, dtype=np.float64)
            errors = np.abs(differences)
        return bool((errors <= self._how["tolerance"]).all())

    def decode(self, buf: Buffer, out: None = None) -> bytes:  # noqa: ARG002 - numcodecs requires it
        """Decompress a block."""
        return self._decompress(buf).tobytes()

    def _decompress(self, payload: Buffer) -> npt.NDArray[Any]:
        zfpy = _zfpy()
        # ZFP reads beyond the end of a truncated payload. No cell takes more than two bits for each bit of its items,
        # a sign of life and an exponent.
        cells = math.prod(-(-n // _MIN_EXTENT) for n in self._shape)
        cell_nbytes = _MIN_EXTENT ** len(self._shape) * self._dtype.itemsize
        most = cells * (2 * cell_nbytes + 2) + 16
        padded = bytes(payload).ljust(most, b"\0")
        ztype = zfpy.dtype_to_ztype(self._dtype)
        items: npt.NDArray[Any] = zfpy._decompress(padded, ztype, self._shape, **self._how)
        return items


def _settings(mode: Mode, meta: int, typesize: int, ndim: int) -> dict[str, float]:
    if mode == Mode.ZFP_ACC:
        return {"tolerance": tolerance(meta)}
    if mode == Mode.ZFP_PREC:
        return {"precision": min(meta + _PRECISION[ndim - 1], _MOST_PRECISION)}
    if not 1 <= meta <= 100:
        raise FormatError(f"expected a rate of 1 to 100 percent for ZFP, found {meta}")
    return {"rate": meta / 100 * 8 * typesize}


def _zfpy() -> ModuleType:
    try:
        return importlib.import_module("zfpy")
    except ImportError:
        raise UnsupportedError(_PACKAGE) from None
