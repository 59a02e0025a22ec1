"""How much of NumPy's indexing array stores understand: the same random keys for all of them, read and assigned.

    python asv_bench/parity.py [--cases 1000] [--seed 0]

A key counts if NumPy accepts it. It matches if the store reads the same shape and items, or holds the same items after
the assignment. Each store works in a process of its own; where one crashes or hangs, that key does not match.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

STORES = ("b2array", "blosc2", "zarr", "h5py")
STARTUP = 60.0
"""Seconds after which a store hangs, besides a second a key."""


class Case(NamedTuple):
    values: np.ndarray
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]
    key: Any
    value: Any


def integer(rng: np.random.Generator, n: int) -> Any:
    return rng.choice([int, np.int64])(rng.integers(-n, n))


def any_slice(rng: np.random.Generator, n: int) -> slice:
    start, stop = (None if rng.random() < 0.3 else int(rng.integers(-n - 1, n + 2)) for _ in range(2))
    return slice(start, stop, [None, None, 1, 2, 3, -1, -2][rng.integers(7)])


def index_array(rng: np.random.Generator, n: int, length: int) -> Any:
    shape = [(length,), (length,), (length, 1), (2, length)][rng.integers(4)]
    array = rng.integers(-n, n, shape)
    return array.tolist() if rng.random() < 0.5 else array


def any_key(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Return a key as NumPy takes it: basic, with one index array, with several, or with masks."""
    style = rng.choice(["basic", "basic", "one", "several", "mask", "whole mask"])
    if style == "whole mask":
        return rng.random(shape) < 0.4
    length = int(rng.integers(1, 5))
    axes = list(range(int(rng.integers(1, len(shape) + 1))))
    fancy = {"basic": [], "one": axes[-1:], "several": axes, "mask": axes[-1:]}[style]
    entries: list[Any] = []
    for axis in axes:
        n = shape[axis]
        if axis in fancy and rng.random() < 0.9:
            entries.append(rng.random(n) < 0.5 if style == "mask" else index_array(rng, n, length))
        else:
            entries.append(integer(rng, n) if rng.random() < 0.4 else any_slice(rng, n))
    for extra in (None, ...):
        if rng.random() < 0.15:
            entries.insert(int(rng.integers(len(entries) + 1)), extra)
    return entries[0] if len(entries) == 1 and rng.random() < 0.7 else tuple(entries)


def any_case(seed: int, number: int) -> Case | None:
    """Return a case, or None if NumPy refuses it."""
    rng = np.random.default_rng([seed, number])
    shape = tuple(rng.integers(1, 13, rng.integers(1, 4)).tolist())
    values = np.arange(1, 1 + np.prod(shape), dtype=rng.choice(["i4", "f8", "u2"])).reshape(shape)
    chunks = tuple(int(rng.integers(1, n + 1)) for n in shape)
    blocks = tuple(int(rng.integers(1, n + 1)) for n in chunks)
    key = any_key(rng, shape)
    try:
        target = values[key]
    except (IndexError, ValueError):
        return None
    kind = rng.choice(["scalar", "full", "broadcast"])
    full = rng.integers(0, 1000, np.shape(target)).astype(values.dtype)
    value = 7 if kind == "scalar" else full if kind == "full" or not full.ndim else full[:1]
    return Case(values, chunks, blocks, key, value)


def make(store: str, case: Case) -> Any:
    values, chunks = case.values, case.chunks
    if store == "b2array":
        import b2array

        return b2array.asarray(values, chunks=chunks, blocks=case.blocks)
    if store == "blosc2":
        import blosc2

        return blosc2.asarray(values, chunks=chunks, blocks=case.blocks)
    if store == "zarr":
        import zarr

        made = zarr.create_array({}, shape=values.shape, dtype=values.dtype, chunks=chunks)
        made[...] = values
        return made
    import h5py

    file = h5py.File("memory", "w", driver="core", backing_store=False)
    return file.create_dataset("a", data=values, chunks=chunks)


def reads(array: Any, case: Case) -> bool:
    found, expected = np.asarray(array[case.key]), np.asarray(case.values[case.key])
    return found.shape == expected.shape and bool((found == expected).all())


def assigns(array: Any, case: Case) -> bool:
    expected = case.values.copy()
    expected[case.key] = case.value
    array[case.key] = case.value
    return bool((np.asarray(array[...]) == expected).all())


def matches(verb: Callable[[Any, Case], bool], store: str, case: Case) -> bool:
    array = make(store, case)
    try:
        return verb(array, case)
    except Exception:  # noqa: BLE001 - stores refuse keys with all kinds of exceptions
        return False


def work(store: str, seed: int, start: int, stop: int) -> None:
    """Print a line before each key, and one with what became of it."""
    warnings.simplefilter("ignore")
    for number in range(start, stop):
        case = any_case(seed, number)
        if case is not None:
            print(json.dumps({"key": number}), flush=True)
            print(json.dumps({"get": matches(reads, store, case), "set": matches(assigns, store, case)}), flush=True)
    print(json.dumps({"end": stop}), flush=True)


def measure(store: str, seed: int, cases: int) -> tuple[int, int, int]:
    """Return how many keys counted, and how many of them matched in reading and in assigning."""
    keys = got = put = start = 0
    while True:
        command = [sys.executable, __file__, "--work", store, str(start), "--seed", str(seed), "--cases", str(cases)]
        try:
            out = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=STARTUP + cases).stdout
        except subprocess.TimeoutExpired as late:
            out = late.stdout or b""
        lines = [json.loads(line) for line in out.decode().splitlines() if line.endswith("}")]
        begun = [line["key"] for line in lines if "key" in line]
        keys += len(begun)
        got += sum(line.get("get", False) for line in lines)
        put += sum(line.get("set", False) for line in lines)
        if any("end" in line for line in lines):
            return keys, got, put
        if not begun:
            raise RuntimeError(f"{store} does not work here")
        start = begun[-1] + 1  # that key crashed it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs=2, metavar=("STORE", "START"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work[0], given.seed, int(given.work[1]), given.cases)
        return
    print("| | keys | read as NumPy | assigned as NumPy |\n| --- | --- | --- | --- |")
    for store in STORES:
        keys, got, put = measure(store, given.seed, given.cases)
        name = f"{store} {importlib.metadata.version(store)}"
        print(f"| {name} | {keys} | {got} ({got / keys:.0%}) | {put} ({put / keys:.0%}) |", flush=True)


if __name__ == "__main__":
    main()
