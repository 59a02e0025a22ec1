"""A call inside another one of the same thread, as from a signal's handler, leaves the memory of that one alone."""

from __future__ import annotations

import numpy as np
import pytest

import b2array
from b2array import chunk, config, workers
from b2array.workspace import exclusive, kept, nested


def test_only_a_call_inside_another_has_memory_of_its_own() -> None:
    def inner() -> tuple[bool, int, bool]:
        return nested(), workers.width(), kept() is mine

    mine = kept()
    with config.using(threads=3):
        assert exclusive(inner)() == (False, 3, True)
        assert exclusive(exclusive(inner))() == (True, 1, False)
        assert inner() == (False, 3, True)


def test_the_memory_comes_back_after_an_error() -> None:
    mine = kept()

    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        exclusive(exclusive(fail))()
    assert kept() is mine
    assert not nested()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("key", [..., slice(5, 2500), 4321, (4321,)])
def test_an_array_is_read_in_the_middle_of_reading_another(tmp_path, monkeypatch, codec, key):
    values = np.random.default_rng(0).integers(0, 2**20, (2, 20000)).repeat(3, axis=1)
    arrays = []
    for n in range(2):
        options = {"chunks": 3000, "blocks": 300, "cparams": b2array.CParams(codec)}
        b2array.asarray(values[n], url=str(tmp_path / f"{n}.b2nd"), **options)
        arrays.append(b2array.open(str(tmp_path / f"{n}.b2nd")))
    original = chunk.decode_blocks
    inside = []

    def decode_blocks(*args, **options):
        if not nested():
            inside.append(np.array_equal(arrays[1][100:9000], values[1, 100:9000]))
        original(*args, **options)

    monkeypatch.setattr(chunk, "decode_blocks", decode_blocks)
    with config.using(cache_bytes=0, threads=1):
        for _ in range(2):
            assert np.array_equal(arrays[0][key], values[0][key])
    assert inside
    assert all(inside)
