"""Benchmarks over b2array's public names, run by airspeed velocity, and the data that they work on.

Those of airspeed velocity take one field, 64 MiB of float64, with the chunks and blocks of a three-dimensional
simulation: small enough to run often, large enough that every read touches several chunks.
"""

import numpy as np

SHAPE = (128, 256, 256)
CHUNKS = (64, 128, 128)
BLOCKS = (16, 32, 32)
CODECS = ("lz4", "zstd")


def smooth(shape: tuple[int, int, int]) -> np.ndarray:
    """Return a field of float64 without noise, in which all bits of the mantissa matter."""
    z, y, x = (np.linspace(0, 4 * np.pi, n) for n in shape)
    return np.sin(z)[:, None, None] * np.cos(y)[:, None] + np.sin(x)


def rounded(shape: tuple[int, int, int]) -> np.ndarray:
    """Return a field of float64 with noise, rounded to four decimals, as it is often archived."""
    noise = np.random.default_rng(0).standard_normal(shape)
    noise *= 1e-3
    noise += smooth(shape)
    return np.round(noise, 4, out=noise)


def integers(shape: tuple[int, int, int]) -> np.ndarray:
    """Return counts (int64) around a mean that varies slowly, as detectors give them."""
    mean = 20 * (2.1 + smooth(shape))
    return np.random.default_rng(0).poisson(mean)


def mask(shape: tuple[int, int, int]) -> np.ndarray:
    """Return a mask (bool) of a few connected regions."""
    return smooth(shape) > 0.5


def image(shape: tuple[int, int, int]) -> np.ndarray:
    """Return images (uint16) as a camera gives them: smooth, with the noise of counting."""
    noise = np.random.default_rng(0).standard_normal(shape, dtype="f4")
    bright = 1000 * (2.1 + smooth(shape))
    return (bright + np.sqrt(bright) * noise).astype("u2")


DATA = {"smooth": smooth, "rounded": rounded, "integers": integers, "mask": mask, "image": image}


def field() -> np.ndarray:
    """Return the field of the benchmarks of airspeed velocity."""
    return rounded(SHAPE)
