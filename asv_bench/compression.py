"""How small data get, by kind: b2array beside python-blosc2, zarr and h5py, each with its own defaults.

    python asv_bench/compression.py [--kinds NAME ...] [--rounds N] [--filters] [--errors] [--json FILE]

Makes some thirty-five kinds of data, of about 4 MB each, writes each with every library in turns, and reads it back.
The sizes are those of the files. The times are processor time, medians over the rounds; a ratio above 1 means that the
other library takes more than b2array. ``--filters`` also tries each filter with b2array's own codec and level, which
the automatic choice has to match. ``--errors`` compares arrays that may have errors with the exact ones. Files are in a
temporary directory, in the system's memory. plot.py draws what ``--json`` writes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import blosc2
import h5py
import ml_dtypes
import numpy as np
import zarr
from timing import in_turns

import b2array

Array = np.ndarray[Any, Any]
SIDE = 1024
FILTERS = {
    "none": (),
    "shuffle": ("shuffle",),
    "bitshuffle": ("bitshuffle",),
    "bytedelta": ("shuffle", "bytedelta"),
}


class Size(NamedTuple):
    """Bytes in files, and seconds of processor time."""

    nbytes: int
    writing: float
    reading: float


# The data. Each function takes a random generator and returns some megabytes.


def waves(rng: np.random.Generator, shape: tuple[int, ...], *, roughness: float = 2.0) -> Array:
    """Return a random field whose waves are the weaker the shorter they are, with a deviation of 1."""
    grids = np.meshgrid(*(np.fft.fftfreq(n) for n in shape), indexing="ij")
    distance = np.sqrt(sum(grid**2 for grid in grids))
    distance[(0,) * len(shape)] = np.inf
    spectrum = np.fft.fftn(rng.standard_normal(shape)) * distance**-roughness
    field = np.real(np.fft.ifftn(spectrum))
    return (field - field.mean()) / field.std()


def packed(values: Array, scale: float, offset: float, dtype: str) -> Array:
    """Return values as they come out of a file that stores them as integers of 16 bits."""
    stored = np.rint((values - offset) / scale).clip(-32767, 32767).astype("i2")
    return (stored * np.dtype(dtype).type(scale) + np.dtype(dtype).type(offset)).astype(dtype)


def smooth_f4(rng: np.random.Generator) -> Array:
    return waves(rng, (SIDE, SIDE), roughness=3.0).astype("f4")


def smooth_f8(rng: np.random.Generator) -> Array:
    return waves(rng, (8, 256, 256), roughness=3.0)


def simulated_f8(rng: np.random.Generator) -> Array:
    z, y, x = (np.linspace(0, 4 * np.pi, n) for n in (32, 128, 128))
    return np.sin(z)[:, None, None] * np.cos(y)[:, None] + np.sin(x)


def noisy_f4(rng: np.random.Generator) -> Array:
    return (10 * waves(rng, (SIDE, SIDE)) + 0.5 * rng.standard_normal((SIDE, SIDE))).astype("f4")


def noisy_f8(rng: np.random.Generator) -> Array:
    return waves(rng, (512, SIDE)) + 0.01 * rng.standard_normal((512, SIDE))


def temperatures_f4(rng: np.random.Generator) -> Array:
    return np.round(280 + 15 * waves(rng, (16, 256, 256)) + 0.2 * rng.standard_normal((16, 256, 256)), 1).astype("f4")


def rounded_f4(rng: np.random.Generator) -> Array:
    return np.round(10 * waves(rng, (SIDE, SIDE)) + 0.5 * rng.standard_normal((SIDE, SIDE)), 2).astype("f4")


def rounded_f8(rng: np.random.Generator) -> Array:
    return np.round(10 * waves(rng, (512, SIDE)) + 0.5 * rng.standard_normal((512, SIDE)), 2)


def sensors_f8(rng: np.random.Generator) -> Array:
    daily = 20 + 5 * np.sin(np.arange(16384) * (2 * np.pi / 1440))[:, None]
    return np.round(daily + rng.normal(0, 2, 32) + 0.3 * rng.standard_normal((16384, 32)), 1)


def prices_f8(rng: np.random.Generator) -> Array:
    return np.round(100 + np.cumsum(0.02 * rng.standard_normal((8192, 64)), axis=0), 2)


def decoded_f4(rng: np.random.Generator) -> Array:
    return packed(280 + 20 * waves(rng, (16, 256, 256)), 0.0017, 273.15, "f4")


def decoded_f8(rng: np.random.Generator) -> Array:
    return packed(1e5 + 2000 * waves(rng, (512, SIDE)), 0.21, 100500.0, "f8")


def walk_f8(rng: np.random.Generator) -> Array:
    return np.cumsum(rng.standard_normal((8192, 64)), axis=0)


def walk_i4(rng: np.random.Generator) -> Array:
    return np.cumsum(rng.integers(-3, 4, (SIDE, SIDE)), axis=0, dtype="i4")


def counts_i8(rng: np.random.Generator) -> Array:
    return rng.poisson(20 * np.exp(0.5 * waves(rng, (512, SIDE))))


def counts_f4(rng: np.random.Generator) -> Array:
    return rng.poisson(20 * np.exp(0.5 * waves(rng, (SIDE, SIDE)))).astype("f4")


def terrain_i2(rng: np.random.Generator) -> Array:
    return (600 * waves(rng, (2048, SIDE), roughness=2.5)).astype("i2")


def image_u1(rng: np.random.Generator) -> Array:
    field = 128 + 40 * waves(rng, (2048, 2048)) + 3 * rng.standard_normal((2048, 2048))
    return field.clip(0, 255).astype("u1")


def colours_u1(rng: np.random.Generator) -> Array:
    light = waves(rng, (1152, 1152))[..., None]
    tint = np.stack([waves(rng, (1152, 1152), roughness=2.5) for _ in range(3)], axis=-1)
    return (128 + 40 * light + 10 * tint).clip(0, 255).astype("u1")


def image_u2(rng: np.random.Generator) -> Array:
    bright = 1000 * np.exp(0.5 * waves(rng, (2048, SIDE)))
    return (bright + np.sqrt(bright) * rng.standard_normal(bright.shape)).clip(0, 65535).astype("u2")


def labels_i4(rng: np.random.Generator) -> Array:
    field = waves(rng, (SIDE, SIDE), roughness=2.5)
    return (np.digitize(field, np.linspace(-2, 2, 40)) * 1009 % 4096).astype("i4")


def classes_u1(rng: np.random.Generator) -> Array:
    return np.digitize(waves(rng, (2048, 2048)), np.linspace(-2, 2, 12)).astype("u1")


def mask_bool(rng: np.random.Generator) -> Array:
    return waves(rng, (2048, 2048)) > 0.3


def coordinates_f8(rng: np.random.Generator) -> Array:
    latitude, longitude = np.meshgrid(np.linspace(30, 60, 512), np.linspace(-10, 40, 512), indexing="ij")
    return np.stack([latitude + 0.1 * np.sin(longitude), longitude])


def times(rng: np.random.Generator) -> Array:
    steps = rng.integers(900, 1100, 512 * 1024) * 1_000_000
    return np.datetime64("2024-01-01T00:00:00", "ns") + np.cumsum(steps).astype("m8[ns]")


def index_i8(rng: np.random.Generator) -> Array:
    return np.sort(rng.integers(0, 10**9, 512 * 1024))


def words(rng: np.random.Generator) -> Array:
    syllables = np.array(["ka", "to", "mi", "re", "su", "la", "ben", "dor", "ing", "er", "an", "o"])
    parts = syllables[rng.integers(0, len(syllables), (3, 2000))]
    vocabulary = np.char.add(np.char.add(parts[0], parts[1]), parts[2])
    return vocabulary[np.minimum(rng.zipf(1.3, 96 * 1024) - 1, 1999)].astype("U10")


def stations_s8(rng: np.random.Generator) -> Array:
    names = np.array([f"ST{n:05d}" for n in range(500)], "S8")
    return names[rng.integers(0, 500, 512 * 1024)]


def records(rng: np.random.Generator) -> Array:
    made = np.zeros(160 * 1024, [("id", "i4"), ("x", "f4"), ("y", "f4"), ("energy", "f8"), ("kind", "u1")])
    made["id"] = np.arange(made.size)
    made["x"], made["y"] = rng.normal(0, 10, (2, made.size))
    made["energy"] = np.round(rng.exponential(5, made.size), 3)
    made["kind"] = rng.integers(0, 4, made.size)
    return made


def rain_f4(rng: np.random.Generator) -> Array:
    field = waves(rng, (16, 256, 256))
    return np.where(field > 1, rng.gamma(2.0, 2.0, field.shape), 0).astype("f4")


def holes_f4(rng: np.random.Generator) -> Array:
    land = waves(rng, (256, 256)) > 0.4
    water = np.round(15 + 5 * waves(rng, (16, 256, 256), roughness=2.5), 2).astype("f4")
    return np.where(land, np.float32(np.nan), water)


def waves_c8(rng: np.random.Generator) -> Array:
    return np.fft.fft(waves(rng, (512, SIDE)), axis=-1).astype("c8")


def noise_f8(rng: np.random.Generator) -> Array:
    return rng.random((512, SIDE))


def field_bf16(rng: np.random.Generator) -> Array:
    return (10 * waves(rng, (2048, SIDE))).astype(ml_dtypes.bfloat16)


def weights_bf16(rng: np.random.Generator) -> Array:
    return rng.normal(0, 0.02, (2048, SIDE)).astype(ml_dtypes.bfloat16)


def weights_f8(rng: np.random.Generator) -> Array:
    return rng.normal(0, 0.5, (4096, SIDE)).astype(ml_dtypes.float8_e4m3fn)


KINDS: dict[str, Callable[[np.random.Generator], Array]] = {
    "smooth f4": smooth_f4,
    "smooth f8": smooth_f8,
    "simulated f8": simulated_f8,
    "noisy f4": noisy_f4,
    "noisy f8": noisy_f8,
    "temperatures f4, .1": temperatures_f4,
    "rounded f4, .01": rounded_f4,
    "rounded f8, .01": rounded_f8,
    "sensors f8, .1": sensors_f8,
    "prices f8, .01": prices_f8,
    "decoded f4": decoded_f4,
    "decoded f8": decoded_f8,
    "random walk f8": walk_f8,
    "random walk i4": walk_i4,
    "counts i8": counts_i8,
    "counts f4": counts_f4,
    "terrain i2": terrain_i2,
    "image u1": image_u1,
    "colours u1": colours_u1,
    "image u2": image_u2,
    "labels i4": labels_i4,
    "classes u1": classes_u1,
    "mask bool": mask_bool,
    "coordinates f8": coordinates_f8,
    "times M8[ns]": times,
    "index i8": index_i8,
    "words U10": words,
    "names S8": stations_s8,
    "records": records,
    "rain f4": rain_f4,
    "holes (NaN) f4": holes_f4,
    "complex c8": waves_c8,
    "noise f8": noise_f8,
    "field bfloat16": field_bf16,
    "weights bfloat16": weights_bf16,
    "weights float8": weights_f8,
}


def made(kind: str) -> Array:
    """Return the data of a kind; the same in every run."""
    return KINDS[kind](np.random.default_rng(len(kind)))


# The libraries.


def known_to_all(data: Array) -> Array:
    """Return data as integers if their type is from the package ml_dtypes, which only b2array stores."""
    return data.view(f"u{data.itemsize}") if data.dtype.name in dir(ml_dtypes) else data


def write_b2array(path: Path, data: Array, **options: Any) -> None:
    b2array.asarray(data, url=path, **options)


def read_b2array(path: Path) -> Array:
    return b2array.open(path)[...]


def write_blosc2(path: Path, data: Array) -> None:
    blosc2.asarray(known_to_all(data), urlpath=str(path), mode="w")


def read_blosc2(path: Path) -> Array:
    return blosc2.open(str(path))[...]


def write_zarr(path: Path, data: Array) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some types have no place in the specification
        zarr.create_array(str(path), data=known_to_all(data))


def read_zarr(path: Path) -> Array:
    return zarr.open_array(str(path), mode="r")[...]


def write_h5py(path: Path, data: Array, compression: str) -> None:
    # h5py knows neither times nor text of fixed length in Unicode.
    data = known_to_all(data)
    stored = (
        data.view("i8")
        if data.dtype.kind == "M"
        else data.view(f"V{data.itemsize}")
        if data.dtype.kind == "U"
        else data
    )
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=stored, compression=compression)


def read_h5py(path: Path) -> Array:
    with h5py.File(path) as file:
        return file["a"][...]


def write_lzf(path: Path, data: Array) -> None:
    write_h5py(path, data, "lzf")


def write_gzip(path: Path, data: Array) -> None:
    write_h5py(path, data, "gzip")


Write = Callable[[Path, Array], None]
Read = Callable[[Path], Array]
LIBRARIES: dict[str, tuple[Write, Read]] = {
    "b2array": (write_b2array, read_b2array),
    "python-blosc2": (write_blosc2, read_blosc2),
    "zarr": (write_zarr, read_zarr),
    "h5py, lzf": (write_lzf, read_h5py),
    "h5py, gzip": (write_gzip, read_h5py),
}


def fixed(filters: tuple[str, ...]) -> Write:
    """Return a function that writes with b2array's own codec and level, and with these filters."""
    cparams = b2array.CParams(filters=filters)
    return lambda path, data: write_b2array(path, data, cparams=cparams)


def stored_nbytes(path: Path) -> int:
    """Return the bytes of a file, or of all files in a directory."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def measured(data: Array, libraries: dict[str, tuple[Write, Read]], place: Path, rounds: int) -> dict[str, Size]:
    """Write and read data with each library, in turns."""
    paths = {name: place / f"{number}.b2nd" for number, name in enumerate(libraries)}

    def writer(name: str) -> Callable[[int], Callable[[], object]]:
        def prepare(_: int) -> Callable[[], object]:
            path = paths[name]
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            return lambda: libraries[name][0](path, data)

        return prepare

    def reader(name: str) -> Callable[[int], Callable[[], object]]:
        return lambda _: lambda: libraries[name][1](paths[name])

    writing = in_turns({name: writer(name) for name in libraries}, rounds)
    reading = in_turns({name: reader(name) for name in libraries}, rounds)
    return {name: Size(stored_nbytes(path), writing[name][1], reading[name][1]) for name, path in paths.items()}


def mean_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the geometric mean of ratios."""
    logarithms = [math.log(a / b) for a, b in pairs]
    return math.exp(sum(logarithms) / len(logarithms))


def show(found: dict[str, dict[str, Size]]) -> None:
    """Print how much larger the others' files are than b2array's, and how much longer they take."""
    names = [name for name in next(iter(found.values())) if name != "b2array"]
    for title, field in (("bytes", "nbytes"), ("processor time to write", "writing"), ("to read", "reading")):
        print(f"\n{title}: b2array, and the others / b2array")
        print(f"{'':22}{'b2array':>12}" + "".join(f"{name:>15}" for name in names))
        for kind, row in found.items():
            own = getattr(row["b2array"], field)
            shown = f"{own / 1e3:12.1f}" if field == "nbytes" else f"{own * 1e3:12.2f}"
            print(f"{kind:22}{shown}" + "".join(f"{getattr(row[name], field) / own:15.3f}" for name in names))
        means = (
            mean_ratio((getattr(row[name], field), getattr(row["b2array"], field)) for row in found.values())
            for name in names
        )
        print(f"{'geometric mean':34}" + "".join(f"{mean:15.3f}" for mean in means))


def show_errors() -> None:
    """Print how much smaller arrays of floats get if values may be off by a hundredth, or by a thousandth of each."""
    exact = b2array.CParams()
    print(f"{'':22}{'exact':>12}{'absolute 0.01':>18}{'relative 0.001':>18}{'largest error':>16}")
    for kind in KINDS:
        data = made(kind)
        if data.dtype.kind != "f":
            continue
        sizes = []
        worst = 0.0
        for bounds in ({}, {"absolute_error": 0.01}, {"relative_error": 0.001}):
            a = b2array.asarray(data, cparams=replace(exact, **bounds))
            sizes.append(a.cbytes)
            if "absolute_error" in bounds:
                worst = float(np.nanmax(np.abs(a[...].astype("f8") - data)))
        print(f"{kind:22}{sizes[0] / 1e3:12.1f}{sizes[0] / sizes[1]:18.2f}{sizes[0] / sizes[2]:18.2f}{worst:16.5f}")


def main() -> None:
    """Measure, print, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--filters", action="store_true", help="also b2array with each filter")
    parser.add_argument("--errors", action="store_true", help="only what errors that the user allows save")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.errors:
        show_errors()
        return
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112
    libraries = LIBRARIES
    if given.filters:
        tried = {name: (fixed(filters), read_b2array) for name, filters in FILTERS.items()}
        libraries = {"b2array": LIBRARIES["b2array"], **tried}
    found = {}
    with tempfile.TemporaryDirectory(dir=base) as place:
        for kind in given.kinds:
            found[kind] = measured(made(kind), libraries, Path(place), given.rounds)
    show(found)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
