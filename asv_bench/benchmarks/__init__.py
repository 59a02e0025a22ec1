"""Benchmarks over b2array's public names, run by airspeed velocity.

All of them work on the same simulated field, 64 MiB of float64, with the chunks and blocks of a three-dimensional
simulation: small enough to run often, large enough that every read touches several chunks.
"""

import numpy as np

SHAPE = (128, 256, 256)
CHUNKS = (64, 128, 128)
BLOCKS = (16, 32, 32)
CODECS = ("lz4", "zstd")


def field() -> np.ndarray:
    """Return a smooth field with noise in its low bits, as simulations write them."""
    z, y, x = (np.linspace(0, 4 * np.pi, n) for n in SHAPE)
    smooth = np.sin(z)[:, None, None] * np.cos(y)[:, None] + np.sin(x)
    noise = np.random.default_rng(0).standard_normal(SHAPE)
    return np.round(smooth + 1e-3 * noise, 4)
