"""What users do, beside zarr, h5py and python-blosc2: dask, xarray, an object store, the steps of a simulation.

    python asv_bench/users.py [--quick] [--rounds N] [--json FILE] [PART ...]

PART is ``dask``, ``xarray``, ``store`` or ``simulation``; all of them by default. Each library works with its own
defaults; b2array, zarr and h5py get the same chunks where dask needs some, and h5py gets its filter lzf. Where they are
installed, zarrs reads and writes zarr's files, and Icechunk commits datasets with zarr. In each row
the libraries take turns, in another order each round, and the tables give medians of wall and processor time, and the
ratio to b2array: above 1, b2array takes less. So the ratios mean something on a busy machine, too; the milliseconds do
not. Files are in a temporary directory that is removed at the end. plot.py draws what ``--json`` writes. If that file
is there, the parts that are measured again are replaced in it.

From the object store, which takes 20 ms to answer, each read is done by a new process, and the ratio is that of wall
time. It is a server of S3's protocol on this computer: see roundtrips.py.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import access
import blosc2
import dask
import dask.array as da
import h5py
import numpy as np
import roundtrips
import xarray as xr
import zarr
from benchmarks import rounded
from timing import Times, in_turns

import b2array
from b2array.frame import cache
from b2array.xarray_io import Backend, to_b2array

Verb = Callable[[Path], object]
Rows = dict[str, dict[str, Times]]
SHAPE, QUICK = (128, 256, 256), (16, 128, 128)
YEAR, QUICK_YEAR = (365, 180, 360), (365, 18, 36)
DELAY = 0.02
SEED = {"b2array": "b2nd", "zarr": "zarr", "h5py": "h5"}
ENDINGS = {"b2array": "b2d", "zarr": "zarr", "zarrs": "zarr", "icechunk": "ice", "h5py": "nc"}
INSTALLED = {name: importlib.util.find_spec(name) is not None for name in ("zarrs", "icechunk")}


def pipeline(library: str) -> contextlib.AbstractContextManager[object]:
    """Make zarr use zarrs, for as long as the context lasts, if that is the library."""
    if library != "zarrs":
        return contextlib.nullcontext()
    changed: contextlib.AbstractContextManager[object] = zarr.config.set(
        {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}
    )
    return changed


def repository(path: Path, *, new: bool = False) -> Any:
    """Return a repository of Icechunk in a directory."""
    import icechunk

    storage = icechunk.local_filesystem_storage(str(path))
    return icechunk.Repository.create(storage) if new else icechunk.Repository.open(storage)


def measured(root: Path, rounds: int, verbs: dict[str, Verb]) -> dict[str, Times]:
    """Time each verb with a new directory to write into, and with nothing decoded in memory."""

    def prepared(library: str, number: int) -> Callable[[], object]:
        place = root / f"{library}-{number}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        cache.blocks = cache.Cache()
        return lambda: verbs[library](place)

    return in_turns({name: lambda number, name=name: prepared(name, number) for name in verbs}, rounds)


# dask.


def with_dask(root: Path, shape: tuple[int, ...], rounds: int) -> Rows:
    """Mean, standard deviation, an anomaly that is stored, other chunks."""
    values = rounded(shape)
    chunks = tuple(max(1, n // 4) for n in shape)
    other = (shape[0], *(max(1, n // 8) for n in shape[1:]))
    b2array.asarray(values, url=root / "x.b2nd", chunks=chunks)
    zarr.create_array(root / "x.zarr", data=values, chunks=chunks)
    with h5py.File(root / "x.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=chunks, compression="lzf")

    def opened(library: str) -> Any:
        if library == "b2array":
            return b2array.open(root / "x.b2nd").to_dask()
        if library in ("zarr", "zarrs"):
            return da.from_zarr(str(root / "x.zarr"))
        return da.from_array(h5py.File(root / "x.h5")["x"], chunks)

    def stored(library: str, x: Any, place: Path) -> None:
        if library == "b2array":
            b2array.from_dask(x, place / "y.b2nd")
        elif library in ("zarr", "zarrs"):
            da.to_zarr(x, str(place / "y.zarr"))
        else:
            with h5py.File(place / "y.h5", "w") as file:
                made = file.create_dataset("y", x.shape, x.dtype, chunks=x.chunksize, compression="lzf")
                da.store(x, made)

    actions: dict[str, Callable[[str, Path], object]] = {
        "mean of the first axis": lambda library, _: opened(library).mean(axis=0).compute(),
        "std of the last axis": lambda library, _: opened(library).std(axis=-1).compute(),
        "anomaly, stored": lambda library, place: stored(library, (x := opened(library)) - x.mean(axis=0), place),
        "other chunks, stored": lambda library, place: stored(library, opened(library).rechunk(other), place),
    }

    def taken(library: str, action: Callable[[str, Path], object], place: Path) -> None:
        with pipeline(library):
            action(library, place)

    libraries = ["b2array", "zarr", *(["zarrs"] if INSTALLED["zarrs"] else []), "h5py"]
    return {
        f"dask: {label}": measured(
            root,
            rounds,
            {name: lambda place, name=name, action=action: taken(name, action, place) for name in libraries},
        )
        for label, action in actions.items()
    }


# xarray.


def climate(shape: tuple[int, ...]) -> xr.Dataset:
    """Return four variables of a year of days, rounded to hundredths."""
    values = access.values(shape, "f4", 2)
    named = {name: (("time", "y", "x"), np.round(values + n, 2)) for n, name in enumerate("tuvw")}
    days = np.datetime64("2026-01-01", "ns") + np.arange(shape[0]).astype("m8[D]")
    places = {"y": np.linspace(-90, 90, shape[1]), "x": np.linspace(0, 360, shape[2], endpoint=False)}
    return xr.Dataset(named, {"time": days, **places})


def with_xarray(root: Path, shape: tuple[int, ...], rounds: int) -> tuple[Rows, dict[str, int]]:
    """Write a dataset, read it as users do, and compute with dask; also the sizes of the files."""
    ds = climate(shape)

    def write(library: str, place: Path) -> Path:
        target = place / f"{library}.{ENDINGS[library]}"
        if library == "b2array":
            to_b2array(ds, target)
        elif library == "icechunk":
            session = repository(target, new=True).writable_session("main")
            ds.to_zarr(session.store, consolidated=False)
            session.commit("written")
        elif library != "h5py":
            ds.to_zarr(target)
        else:
            ds.to_netcdf(target, engine="h5netcdf", encoding={name: {"compression": "lzf"} for name in ds.data_vars})
        return target

    libraries = [name for name in ENDINGS if INSTALLED.get(name, True)]
    made = {name: write(name, root) for name in libraries}
    engines: dict[str, Any] = {"b2array": Backend, "zarr": "zarr", "zarrs": "zarr", "h5py": "h5netcdf"}

    def opened(library: str, chunks: Any = None) -> xr.Dataset:
        if library == "icechunk":
            store = repository(made[library]).readonly_session("main").store
            return xr.open_zarr(store, consolidated=False, chunks=chunks)
        return xr.open_dataset(made[library], engine=engines[library], chunks=chunks)

    def taken(library: str, action: Callable[[str, Path], object], place: Path) -> None:
        with pipeline(library):
            action(library, place)

    def of_months(library: str, _: Path) -> xr.DataArray:
        return opened(library, {}).t.groupby("time.month").mean().compute()

    def anomaly(library: str, _: Path) -> xr.DataArray:
        t = opened(library, {}).t
        return (t - t.mean("time")).std("time").compute()

    middle = {"y": shape[1] // 2, "x": shape[2] // 2}
    region = {name: slice(n // 3, n // 3 + max(1, n // 9)) for name, n in zip(("y", "x"), shape[1:], strict=True)}
    actions: dict[str, Callable[[str, Path], object]] = {
        "write": write,
        "open": lambda library, _: opened(library),
        "a series": lambda library, _: opened(library).t.isel(middle).values,
        "a map": lambda library, _: opened(library).t.isel(time=shape[0] // 2).values,
        "mean of a region": lambda library, _: opened(library).t.isel(region).mean(("y", "x")).values,
        "load": lambda library, _: opened(library).load(),
        "dask, means of months": of_months,
        "dask, mean of all": lambda library, _: opened(library, {}).mean().compute(),
        "dask, std of an anomaly": anomaly,
        "dask, resampled": lambda library, _: opened(library, {}).t.resample(time="5D").mean().compute(),
    }
    # h5netcdf holds a lock while it decodes: dask's tasks take minutes.
    rows = {
        f"xarray: {label}": measured(
            root,
            rounds,
            {
                name: lambda place, name=name, action=action: taken(name, action, place)
                for name in libraries
                if name != "h5py" or not label.startswith("dask")
            },
        )
        for label, action in actions.items()
    }
    sizes = {
        name: sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
        for name, path in made.items()
    }
    return rows, sizes


# An object store.


def from_store(shape: tuple[int, ...], rounds: int) -> Rows:
    """Read from a server that takes a while to answer."""
    labels = {"full": "whole", "slab": "a plane", "box": "a box", "point": "a point"}
    data = rounded(shape)
    rows: Rows = {}
    with roundtrips.server(DELAY) as endpoint:
        options = {**roundtrips.CREDENTIALS, "endpoint_url": endpoint}
        lines = roundtrips.write(data, "zstd", options)
        chosen = {"b2array": "b2array, one file", "blosc2": "python-blosc2, stock", "zarr, shards": "zarr, shards"}
        for key, label in labels.items():
            text = roundtrips.selections(shape)[key]
            expected = float(np.sum(data[eval(text)]))
            seconds: dict[str, list[float]] = {name: [] for name in chosen}
            for _ in range(rounds):
                for name, line in chosen.items():
                    found = roundtrips.measure(*lines[line], text, options, expected)
                    seconds[name].append(found["read"]["seconds"])
            rows[f"store: {label}"] = {name: (median(each), median(each)) for name, each in seconds.items()}
    return rows


# A simulation.


def of_simulation(root: Path, shape: tuple[int, ...], rounds: int) -> Rows:
    """Append step after step, each of which is in the file when the call returns; and ten at a time."""
    steps = rounded(shape).astype("f4")[: min(40, shape[0])]

    def write(library: str, place: Path, every: int) -> None:
        empty, chunks, dtype = (0, *shape[1:]), (10, *shape[1:]), steps.dtype
        parts = [steps[n : n + every] for n in range(0, len(steps), every)]
        if library == "b2array":
            a = b2array.zeros(empty, dtype, url=place / "s.b2nd", chunks=chunks)
            for part in parts:
                a.append(part)
        elif library == "zarr":
            z = zarr.create_array(place / "s.zarr", shape=empty, dtype=dtype, chunks=chunks)
            for part in parts:
                z.append(part)
        elif library == "blosc2":
            b = blosc2.zeros(empty, dtype, urlpath=str(place / "s.b2nd"), chunks=chunks)
            for part in parts:
                first = b.shape[0]
                b.resize((first + len(part), *shape[1:]))
                b[first:] = part
        else:
            with h5py.File(place / "s.h5", "w") as file:
                d = file.create_dataset(
                    "s", empty, dtype, chunks=chunks, maxshape=(None, *shape[1:]), compression="lzf"
                )
                for part in parts:
                    d.resize(len(d) + len(part), axis=0)
                    d[-len(part) :] = part
                    file.flush()

    libraries = ("b2array", "blosc2", "zarr", "h5py")
    return {
        f"simulation: {label}": measured(
            root, rounds, {name: lambda place, name=name, every=every: write(name, place, every) for name in libraries}
        )
        for label, every in {"step by step": 1, "ten at a time": 10}.items()
    }


def shown(rows: Rows) -> None:
    """Print a table in Markdown: for each library the wall and processor time in ms, and the ratio to b2array."""
    for label, row in rows.items():
        ours = row["b2array"]
        which = 0 if label.startswith("store") else 1
        each = (f"{n} {1000 * t[0]:.1f} / {1000 * t[1]:.1f} ms ({t[which] / ours[which]:.2f})" for n, t in row.items())
        print(f"| {label} | {' | '.join(each)} |", flush=True)


def main() -> None:
    """Measure the parts that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[[], "dask", "xarray", "store", "simulation"])
    parser.add_argument("--quick", action="store_true", help="small arrays, to see that it works")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    parts = given.parts or ["dask", "xarray", "store", "simulation"]
    shape, rounds = (QUICK, 1) if given.quick else (SHAPE, given.rounds)
    found: dict[str, Any] = {"rows": {}, "sizes": {}}
    if given.json and given.json.exists():
        found = json.loads(given.json.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as directory, dask.config.set(scheduler="threads"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = Path(directory)
        for part in parts:
            if part == "dask":
                rows = with_dask(root, shape, rounds)
            elif part == "xarray":
                rows, found["sizes"] = with_xarray(root, QUICK_YEAR if given.quick else YEAR, rounds)
                print("sizes:", ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in found["sizes"].items()))
            elif part == "store":
                rows = from_store(roundtrips.QUICK if given.quick else roundtrips.SHAPE, min(rounds, 5))
            else:
                rows = of_simulation(root, shape, rounds)
            shown(rows)
            found["rows"] |= rows
            if given.json:
                given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
