"""Makes the images beside this script, which plugins for older versions of python-blosc2 compressed.

    python tests/golden/images/make.py grok         with blosc2 4.0.0 and blosc2_grok 0.3.5
    python tests/golden/images/make.py openhtj2k    with blosc2 2.2.8, NumPy 1.26 and blosc2_openhtj2k 0.1.2

C-Blosc2 asks the first `python` of the PATH where the plugin is, and importing it loads what it needs. Old files are
the point: make only new ones, and never make one again because it cannot be read any more.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent


class Image(NamedTuple):
    """An image, and the parameter byte of its codec: if not 0, values get errors, and `errors.npz` has them all."""

    shape: tuple[int, ...]
    dtype: str
    meta: int = 0

    @property
    def values(self) -> np.ndarray:
        """The image before it was compressed."""
        n = np.arange(np.prod(self.shape)).reshape(self.shape)
        return ((n // 7 + (n * n * 2654435761 >> 7) % 9) % 256).astype(self.dtype)


IMAGES = {
    "grok-u1": Image((40, 50), "u1"),
    "grok-u2": Image((40, 50, 3), "<u2"),
    "grok-i2": Image((1, 40, 50), "<i2"),
    "grok-errors-u1": Image((40, 50), "u1", meta=50),
    "grok-errors-u2": Image((40, 50, 3), "<u2", meta=50),
    "openhtj2k-u4": Image((3, 40, 50), "<u4"),
    "openhtj2k-one": Image((1, 30, 60), "<u4"),
    "openhtj2k-i4": Image((2, 40, 60), "<i4"),
}


def write(name: str) -> Any:
    """Write a file, and return the values that python-blosc2 reads."""
    import blosc2

    image, codec = IMAGES[name], name.partition("-")[0]
    importlib.import_module(f"blosc2_{codec}")
    cparams = {
        "codec": blosc2.Codec[codec.upper()],
        "codec_meta": image.meta,
        "filters": [],
        "nthreads": 1,
        "splitmode": blosc2.SplitMode.NEVER_SPLIT,
    }
    where = {"urlpath": str(HERE / f"{name}.b2nd"), "mode": "w"}
    return blosc2.asarray(image.values, chunks=image.shape, blocks=image.shape, cparams=cparams, **where)[...]


if __name__ == "__main__":
    errors = {}
    for name, image in IMAGES.items():
        if name.startswith(sys.argv[1]):
            values = write(name)
            if image.meta:
                errors[name] = values
            else:
                np.testing.assert_array_equal(values, image.values)
    if errors:
        np.savez_compressed(HERE / "errors.npz", **errors)
