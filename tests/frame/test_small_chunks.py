"""Many small chunks are read together, and give the same items and errors as chunks that are read one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import numpy.typing as npt
import pytest

import b2array
from b2array import config
from b2array.frame import read, small_chunks
from b2array.grid.layout import Layout

Array = npt.NDArray[Any]
Put = Callable[[str, object], None]


@contextmanager
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Collect the numbers of the chunks that are read one by one."""
    numbers: list[int] = []
    fetch = read.fetch

    def counted(source: Any, requests: Any) -> Any:
        numbers.extend(request.chunk for request in requests)
        return fetch(source, requests)

    with monkeypatch.context() as patch:
        patch.setattr(read, "fetch", counted)
        yield numbers


def values(shape: tuple[int, ...], dtype: str) -> Array:
    """Return values of which some chunks repeat one item, some compress well, and some badly."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 2**40, shape).astype(dtype)
    flat = x.reshape(-1)
    n = flat.size
    flat[n // 5 : n // 4] = 0
    flat[n // 3 : n // 2] = 7
    flat[n // 2 : 3 * n // 4] = np.arange(len(flat[n // 2 : 3 * n // 4])) // 9
    return x


SHAPES = [
    ((1201,), (4,)),
    ((600,), (5,)),
    ((61, 47), (6, 5)),
    ((131, 17), (1, 17)),
    ((17, 14, 11), (4, 3, 5)),
]
KEYS: dict[int, list[Any]] = {
    1: [..., slice(3, -5), slice(None, None, 3), slice(None, None, -7), slice(40, 400, 9)],
    2: [..., (slice(5, 58), slice(3, 16)), (slice(None), -1), (slice(None, None, 3), slice(2, None, 2))],
    3: [..., (slice(1, -1), 5, slice(None)), (slice(None, None, 2), slice(2, 9), slice(None, None, -3))],
}
CPARAMS = {
    "lz4": {"codec": "lz4"},
    "zstd": {"codec": "zstd", "filters": ["bitshuffle"]},
    "split": {"codec": "blosclz", "splitmode": "always"},
    "zlib": {"codec": "zlib", "filters": []},
    "bytedelta": {"codec": "zstd", "filters": ["shuffle", "bytedelta"]},
}


def made(x: Array, chunks: tuple[int, ...], url: Path, **options: Any) -> b2array.NDArray:
    """Return the array in a new file."""
    b2array.asarray(x, url=url, chunks=chunks, blocks=chunks, **options)
    a = b2array.open(url)
    assert isinstance(a, b2array.NDArray)
    return a


@pytest.mark.parametrize(("shape", "chunks"), SHAPES)
@pytest.mark.parametrize("name", CPARAMS)
def test_selections_of_small_chunks_equal_numpy(
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = values(shape, "<i4")
    a = made(x, chunks, tmp_path / "a.b2nd", cparams=CPARAMS[name])
    rng = np.random.default_rng(1)
    points = rng.integers(-shape[0], shape[0], 60)
    keys = [*KEYS[len(shape)], points, rng.random(shape) < 0.2]
    with alone(monkeypatch) as numbers:
        for key in keys:
            np.testing.assert_array_equal(a[key], x[key], strict=True)
    assert not numbers


@pytest.mark.parametrize("name", CPARAMS)
def test_larger_chunks_are_read_together_if_the_cache_does_not_keep_them(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = values((40 * 4000,), "<f8")
    a = made(x, (4000,), tmp_path / "a.b2nd", cparams=CPARAMS[name])
    with config.using(cache_bytes=x.nbytes), alone(monkeypatch) as numbers:
        np.testing.assert_array_equal(a[...], x, strict=True)
        np.testing.assert_array_equal(a[10:-3:3], x[10:-3:3], strict=True)
    assert not numbers


def test_chunks_that_were_written_later_or_are_not_stored_are_read_together(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.full((300, 40), np.nan)
    a = b2array.full((300, 40), np.nan, url=tmp_path / "a.b2nd", chunks=(4, 8), blocks=(4, 8))
    rng = np.random.default_rng(5)
    for row in (200, 3, 100, 9):
        x[row : row + 11, 5:30] = a[row : row + 11, 5:30] = rng.random((11, 25))
    x[250:260] = a[250:260] = 0
    with alone(monkeypatch) as numbers:
        np.testing.assert_array_equal(a[...], x, strict=True)
        np.testing.assert_array_equal(a[::-1, 7], x[::-1, 7], strict=True)
    assert not numbers


def test_files_of_stock_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values((2000,), "<i8")
    url = str(tmp_path / "a.b2nd")
    blosc2.asarray(x, urlpath=url, chunks=(20,), blocks=(20,))
    a = b2array.open(url)
    with alone(monkeypatch) as numbers:
        np.testing.assert_array_equal(a[...], x, strict=True)
    assert not numbers


@pytest.mark.parametrize("verify", ["always", "never"])
@pytest.mark.parametrize("place", ["head", "block", "record"])
def test_damage_raises_the_error_of_its_chunk(verify: str, place: str, tmp_path: Path) -> None:
    x = np.random.default_rng(2).integers(0, 2**40, 4000)
    path = tmp_path / "a.b2nd"
    a = made(x, (40,), path)
    location = a._handle.source.locate(61)
    offset = {"head": 1, "block": 100, "record": location.stop - location.start - 2}[place]
    with path.open("r+b") as file:
        file.seek(location.start + offset)
        byte = file.read(1)
        file.seek(location.start + offset)
        file.write(bytes([byte[0] ^ 1]))
    a = b2array.open(path)
    with config.using(verify=verify):
        # Chunks without damage are read as before.
        np.testing.assert_array_equal(a[: 61 * 40], x[: 61 * 40])
        if verify == "always":
            with pytest.raises(b2array.errors.ChecksumError, match=r"chunk 61 of .*a\.b2nd"):
                a[...]
            return
        found = a[...]
    assert (found != x).sum() == (place == "block")
    np.testing.assert_array_equal(np.delete(found, np.s_[61 * 40 : 62 * 40]), np.delete(x, np.s_[61 * 40 : 62 * 40]))


OTHER_KINDS = [
    {"filters": ["delta"]},
    {"filters": ["shuffle"], "use_dict": True, "interop": False},
]


@pytest.mark.parametrize("cparams", OTHER_KINDS, ids=str)
def test_other_kinds_of_chunks_give_the_same_items(cparams: dict[str, Any], tmp_path: Path) -> None:
    x = np.linspace(0, 1, 6000).round(2)
    options = dict(cparams)
    interop = options.pop("interop", True)
    a = made(x, (300,), tmp_path / "a.b2nd", cparams={"codec": "zstd", **options}, interop=interop)
    expected = [a[n * 300 : n * 300 + 300] for n in range(20)]
    np.testing.assert_array_equal(a[...], np.concatenate(expected), strict=True)


def test_a_file_that_ends_early_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    a = made(np.random.default_rng(4).random(4000), (40,), path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(b2array.errors.B2ArrayError, match=r"a\.b2nd"):
        a[...]


@pytest.mark.parametrize("limit", [2**10, 2**30])
def test_batches_stay_within_the_limits(limit: int) -> None:
    layout = Layout((10**6, 50), (4, 4), (4, 4), np.dtype("<f8"), "<f8")
    everything = (slice(0, 10**6, 1), slice(0, 50, 1))
    with config.using(limits=replace(config.limits, chunk_nbytes=limit)):
        batches = small_chunks.batch_layout(layout, everything, by_slices=True)
    assert batches is not None
    assert batches.nblocks == (8 if limit == 2**10 else 13 * 315)
    assert batches.nbytes >= layout.nbytes
