"""What an operation has used is freed when it ends: an open file must not wait for the collector of garbage."""

from __future__ import annotations

import gc
import time
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest

import b2array
from b2array import bloscpack, config
from b2array.errors import FormatError
from b2array.store.open import open_store
from b2array.store.spans import Span

VALUES = np.random.default_rng(0).normal(size=(40, 30, 4))


def missing(url, options):
    with suppress(FileNotFoundError):
        b2array.open(f"{url.rstrip('/')}-missing", storage_options=options)


def slip(url, options):
    with suppress(IndexError):
        b2array.open(url, storage_options=options)[1000]


def transaction(url, options):
    array = b2array.open(url, "r+", storage_options=options)
    with array.transaction():
        array[5], array[30, 5] = 2, 3


def failed_transaction(url, options):
    array = b2array.open(url, "r+", storage_options=options)
    with suppress(KeyError), array.transaction():
        array[5] = 2
        raise KeyError


def growth(url, options):
    array = b2array.open(url, "r+", storage_options=options)
    array.append(VALUES[:1])
    array.resize(VALUES.shape)


def attributes(url, options):
    array = b2array.open(url, "r+", storage_options=options)
    array.attrs["units"] = "m"


def chunks(url, options):
    for _, values in b2array.open(url, storage_options=options).iter_chunks():
        assert values.size


OPERATIONS = {
    "open": lambda url, options: b2array.open(url, storage_options=options),
    "slab": lambda url, options: b2array.open(url, storage_options=options)[3],
    "rows": lambda url, options: b2array.open(url, storage_options=options)[[3, 20]],
    "chunks": chunks,
    "sum": lambda url, options: b2array.open(url, storage_options=options).sum(axis=0),
    "explain": lambda url, options: b2array.open(url, storage_options=options).explain(3),
    "copy": lambda url, options: b2array.open(url, storage_options=options).copy(),
    "verify": lambda url, options: b2array.verify(url, storage_options=options),
    "missing": missing,
    "slip": slip,
    "transaction": transaction,
    "failed transaction": failed_transaction,
    "growth": growth,
    "attributes": attributes,
}


@pytest.fixture(params=["file", "directory", "memory", "s3"])
def place(request, tmp_path):
    if request.param == "s3":
        options = request.getfixturevalue("s3_options")
        return f"s3://{request.getfixturevalue('bucket')}/a.b2nd", options
    urls = {
        "file": f"{tmp_path}/a.b2nd",
        "directory": f"{tmp_path}/a.b2nd/",
        "memory": f"memory://{tmp_path.name}.b2nd",
    }
    return urls[request.param], None


CACHED = {"Plan", "Blosc1Params", "Manifest", "Row", "Entry"}
"""Caches keep these for the next time, each up to a fixed number: `functools.lru_cache`, `remember_manifest`."""


def ours():
    """Count what is in memory of this package, by type."""
    types = [type(each) for each in gc.get_objects()]
    return Counter(t.__name__ for t in types if str(t.__module__).startswith("b2array.") and t.__name__ not in CACHED)


def left_behind(operation, threads=1):
    """Count what an operation leaves in memory that another one like it did not need."""
    with config.using(threads=threads, cache_bytes=0):
        operation()
        operation()
        gc.collect()
        gc.disable()
        try:
            before = ours()
            operation()
            # Other threads may need a moment to let go. What only the collector removes stays.
            for _ in range(40):
                found = ours() - before
                if not found:
                    break
                time.sleep(0.05)
            return found
        finally:
            gc.enable()


def test_nothing_is_left_of_an_array(place):
    url, options = place
    b2array.asarray(VALUES, url=url, chunks=(10, 30, 4), blocks=(2, 15, 4), storage_options=options)
    found = {name: left_behind(lambda each=each: each(url, options)) for name, each in OPERATIONS.items()}
    assert {name: each for name, each in found.items() if each} == {}


def refused(task):
    """Return an operation with an array that fails because a chunk is damaged."""

    def operation(url, options):
        with suppress(FormatError):
            task(b2array.open(url, "r+", storage_options=options))

    return operation


def changed(array):
    with array.transaction():
        array[5, 3], array[15, 3], array[25, 3] = 2, 3, 4


DAMAGED = {
    "slab": lambda array: array[12],
    "head": lambda array: array[25:28, 3],
    "point": lambda array: array[11, 5, 2],
    "missing": lambda array: array[35],
    "whole": lambda array: array[:],
    "chunks": lambda array: [*array.iter_chunks()],
    "sum": lambda array: array.sum(),
    "write": lambda array: array.__setitem__((12, 3), 5),
    "transaction": changed,
    "delete": lambda array: array.delete(3),
}


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_left_of_an_array_with_damaged_chunks(place, threads):
    url, options = place
    made = b2array.asarray(VALUES, url=url, chunks=(10, 30, 4), blocks=(2, 15, 4), storage_options=options)
    store, source = open_store(url, storage_options=options), made._handle.source
    for number, at in ((1, 500), (2, 20)):
        name, start, _ = source.locate(number)
        (view,) = store.read([Span(name, 0, store.stamp(name).size)])
        view[start + at] ^= 255
        store.replace(name, bytes(view))
    if source.sparse:
        store.delete([source.locate(3).name])
    del made, source
    tried = {name: refused(task) for name, task in DAMAGED.items()}
    found = {name: left_behind(lambda each=each: each(url, options), threads) for name, each in tried.items()}
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_nothing_is_left_of_a_group(tmp_path, protocol):
    url = f"{tmp_path}/g" if protocol == "file" else f"memory://{tmp_path.name}-group"
    group = b2array.open_group(url, "w")
    group["x"] = VALUES
    group["inner/y"] = VALUES

    def change():
        opened = b2array.open_group(url, "r+")
        with opened.transaction():
            opened["z"] = VALUES
            opened["x"][3] = 5
        del opened["z"]

    operations = {
        "open": lambda: b2array.open_group(url),
        "members": lambda: [each.shape for each in b2array.open_group(url)["inner"].values()],
        "slab": lambda: b2array.open_group(url)["inner/y"][3],
        "verify": lambda: b2array.verify(url),
        "change": change,
    }
    found = {name: left_behind(each) for name, each in operations.items()}
    assert {name: each for name, each in found.items() if each} == {}


def test_nothing_is_left_of_a_bloscpack_file(tmp_path):
    path = tmp_path / "a.blp"
    bloscpack.pack(VALUES, path)
    assert not left_behind(lambda: bloscpack.open(path)[3])
