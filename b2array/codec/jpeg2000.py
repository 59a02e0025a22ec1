"""JPEG 2000: blocks that are images, read through the package imagecodecs.

A block is one stream, in a file of the format JP2 or without one. Its samples are the block's items in C order: the
last dimension may hold the components of each pixel. The oldest codec instead has 4 bytes per item, and one plane
after another.

Values of lossless images are exact. With errors, the values are those that OpenJPEG and Grok return. OpenHTJ2K returns
other values, because its arithmetic is less precise and sometimes overflows.

Sources: ISO/IEC 15444-1, Annex A (marker segment SIZ), and the files that the plugins blosc2_j2k, blosc2_htj2k,
blosc2_grok and blosc2_openhtj2k make.
"""

from __future__ import annotations

import importlib
import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs.abc import Codec

from b2array.buffers import Buffer
from b2array.errors import FormatError, UnsupportedError

__all__ = ["Jpeg2000"]

_START = bytes.fromhex("ff4f ff51")
"""The markers SOC and SIZ at the start of every codestream."""
_PLANE = np.dtype("<u4")
"""The type of items in planes."""
_SIZ = struct.Struct(">4xHH8IH")
"""The markers, the segment's length, capabilities, four pairs of sizes, and the number of components."""


class Jpeg2000(Codec):  # type: ignore[misc]  # numcodecs has no type hints
    """The codec of one block. With `planes`, the block has the components one after the other, with 4 bytes per item.

    The parameter byte is for encoders only.
    """

    def __init__(
        self,
        meta: int,  # noqa: ARG002
        typesize: int,
        blockshape: tuple[int, ...] | None,
        *,
        planes: bool = False,
    ) -> None:
        if blockshape is None:
            raise UnsupportedError("JPEG 2000 needs the shape of a block, and the chunk is not in an array")
        if planes and typesize != _PLANE.itemsize:
            raise FormatError(f"expected items of {_PLANE.itemsize} bytes for planes of JPEG 2000, found {typesize}")
        self._nbytes = math.prod(blockshape) * typesize
        self._typesize = typesize
        self._planes = planes

    def encode(self, buf: Buffer) -> Buffer:
        """Refuse to encode."""
        raise UnsupportedError(f"blocks of {len(buf)} bytes cannot be encoded as JPEG 2000, only decoded")

    def decode(self, buf: Buffer, out: None = None) -> bytes:  # noqa: ARG002 - numcodecs requires it
        """Decode a block."""
        data = bytes(buf)
        start = data.find(_START)
        if start < 0 or len(data) < start + _SIZ.size:
            raise FormatError("expected a codestream of JPEG 2000, found none")
        # The decoder allocates the size that the stream claims, so check the claim first, in the same bytes.
        _, _, width, height, left, top, *_, ncomponents = _SIZ.unpack_from(data, start)
        nsamples = max(0, width - left) * max(0, height - top) * ncomponents
        if nsamples * self._typesize != self._nbytes:
            raise FormatError(
                f"expected an image of {self._nbytes // self._typesize} samples, found {width - left} x {height - top} "
                f"with {ncomponents} components"
            )
        image = _decode_image(data[start:])
        if self._planes:
            height, width, *_ = image.shape
            pixels = image.reshape(height, width, -1)
            image = np.moveaxis(pixels, -1, 0).astype(_PLANE)
        return image.tobytes()


def _decode_image(stream: bytes) -> npt.NDArray[Any]:
    try:
        imagecodecs = importlib.import_module("imagecodecs")
    except ImportError:
        raise UnsupportedError("JPEG 2000 needs the package imagecodecs: pip install 'b2array[jpeg2000]'") from None
    image: npt.NDArray[Any] = np.ascontiguousarray(imagecodecs.jpeg2k_decode(stream))
    return image
