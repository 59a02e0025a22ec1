"""The filters of a chunk suit its data, and depend on nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import b2array
from b2array import codecs
from b2array.codec.chunk_header import ChunkHeader, FilterId
from b2array.codec.cparams import CParams
from b2array.codec.decode import decode
from b2array.codec.encode import encode

AUTO = CParams(clevel=2, filters="auto")
ITEMS = 2**18


def counts() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).poisson(20, ITEMS)


def prices() -> np.ndarray[Any, Any]:
    return np.round(100 + np.cumsum(np.random.default_rng(0).normal(0, 0.02, ITEMS)), 2)


def mask() -> np.ndarray[Any, Any]:
    y, x = np.ogrid[:512, :512]
    return np.sin(x / 40) * np.cos(y / 30) > 0.3


def filters_of(chunk: bytes) -> list[int]:
    return [fid for fid in ChunkHeader.unpack(chunk).filters if fid]


def nbytes(data: np.ndarray[Any, Any], cparams: CParams) -> int:
    return len(encode(data, typesize=data.itemsize, blocksize=2**16, cparams=cparams))


@pytest.mark.parametrize(
    ("data", "expected"), [(counts(), [FilterId.SHUFFLE]), (prices(), []), (mask(), [FilterId.BITSHUFFLE])]
)
@pytest.mark.parametrize("codec", ["zstd", "zlib", "lz4", "lz4hc", "blosclz"])
def test_each_chunk_gets_filters_that_are_nearly_the_best(
    data: np.ndarray[Any, Any], expected: list[int], codec: str
) -> None:
    auto = CParams(codec, clevel=2, filters="auto")
    chunk = encode(data, typesize=data.itemsize, blocksize=2**16, cparams=auto)
    tried = [CParams(codec, clevel=2, filters=each) for each in ((), ("shuffle",), ("bitshuffle",))]
    assert len(chunk) <= 1.04 * min(nbytes(data, each) for each in tried)
    assert decode(chunk).tobytes() == data.tobytes()
    if codec == "zstd":
        assert filters_of(chunk) == expected


def rounded_field(seed: int, decimals: int) -> np.ndarray[Any, Any]:
    field = np.random.default_rng(seed).normal(0, 1, (512, 1024)).cumsum(axis=0).cumsum(axis=1)
    return np.round(15 + 5 * (field - field.mean()) / field.std(), decimals).astype("f4")


@pytest.mark.parametrize(("seed", "decimals"), [(4, 1), (5, 1), (7, 2)])
def test_items_that_repeat_far_apart_get_no_filter(seed: int, decimals: int) -> None:
    data = rounded_field(seed, decimals)  # pieces of a chunk see fewer of them than its blocks
    tried = [CParams(clevel=2, filters=each) for each in ((), ("shuffle",), ("bitshuffle",))]
    assert nbytes(data, AUTO) <= 1.03 * min(nbytes(data, each) for each in tried)


def held(dtype: str, shape: tuple[int, ...], fill: float, start: int, stop: int, values: Any) -> np.ndarray[Any, Any]:
    """Return an array that has values in some rows alone."""
    data = np.full(shape, fill, dtype)
    data[start:stop] = np.asarray(values(data[start:stop].size)).reshape(data[start:stop].shape)
    return data


@pytest.mark.parametrize(
    "data",
    [
        held("i4", (1000, 1000), 0, 500, 520, np.arange),
        held("i4", (512, 512), 0, 100, 112, np.arange),
        held("f4", (2_000_000,), 0, 30_000, 40_000, lambda n: np.linspace(0, 1, n)),
        held("f4", (361, 720), np.nan, 0, 6, lambda n: np.linspace(0, 9, n)),
        held("i8", (40_000,), 0, 20_000, 24_000, lambda n: np.arange(20_000, 20_000 + n)),
        held("c16", (117, 133), 1j, 0, 16, np.arange),
    ],
)
def test_data_in_a_small_part_of_a_chunk_decide(data: np.ndarray[Any, Any]) -> None:
    tried = [CParams(clevel=2, filters=each) for each in ((), ("shuffle",), ("bitshuffle",))]
    assert nbytes(data, AUTO) <= 1.03 * min(nbytes(data, each) for each in tried)


@given(st.binary(max_size=300), st.integers(1, 300), st.integers(1, 40), st.sampled_from(["zstd", "lz4", "zlib"]))
def test_any_data_are_decoded_to_what_they_were(piece: bytes, typesize: int, times: int, codec: str) -> None:
    data = piece * times
    cparams = CParams(codec, clevel=2, filters="auto")
    chunk = encode(data, typesize=typesize, cparams=cparams)
    assert decode(chunk).tobytes() == data
    assert encode(data, typesize=typesize, cparams=cparams) == chunk


def test_equal_data_give_equal_chunks_wherever_they_lie_in_memory() -> None:
    data = prices()
    elsewhere = np.concatenate(([0.0], data))[1:]
    assert encode(data, typesize=8, cparams=AUTO) == encode(elsewhere, typesize=8, cparams=AUTO)


def test_zeros_stay_special() -> None:
    chunk = encode(np.zeros(ITEMS), typesize=8, cparams=AUTO)
    assert len(chunk) == 32


def test_level_0_stores_data_as_they_are() -> None:
    data = prices()
    assert len(encode(data, typesize=8, cparams=CParams(clevel=0, filters="auto"))) == 32 + data.nbytes


def test_a_registered_codec_sees_whole_blocks_only() -> None:
    sizes = set()

    class Seen:
        codec_id = "seen"

        def encode(self, buf: bytes) -> bytes:
            sizes.add(len(buf))
            return bytes(buf)[: len(buf) // 2]

        def decode(self, buf: bytes, out: Any = None) -> bytes:
            raise NotImplementedError

    codecs.register(201, lambda meta, typesize, blockshape: Seen())
    encode(prices(), typesize=8, blocksize=2**16, cparams=CParams(201, filters="auto"))
    assert sizes == {2**16}


@pytest.mark.parametrize("kind", [np.arange, lambda n: np.random.default_rng(n).poisson(20, n)])
def test_a_chunk_gets_the_same_filters_whether_it_is_written_at_once_or_in_parts(kind: Any) -> None:
    values = np.asarray(kind(16 * 133), "f8").reshape(16, 133)
    layout: Any = {"chunks": (117, 133), "blocks": (59, 133)}
    at_once = b2array.asarray(values, **layout)
    in_parts = b2array.zeros(values.shape, dtype="f8", **layout)
    with in_parts.transaction():
        for start in range(0, 16, 4):
            in_parts[start : start + 4] = values[start : start + 4]
    assert filters_of(at_once.get_chunk(0)) == filters_of(in_parts.get_chunk(0))
