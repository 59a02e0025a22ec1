"""NDLZ: the values that C-Blosc2 compressed, from cells of every kind; damage is refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import blosc2
import numpy as np
import pytest

import b2array
from b2array import CParams
from b2array.codec import codecs, ndlz
from b2array.errors import FormatError, UnsupportedError

SHAPES = [((64, 64), (64, 64)), ((61, 83), (17, 30)), ((40, 50), (9, 50)), ((100, 9), (33, 9)), ((30, 70), (30, 31))]
"""Shapes of arrays and blocks, with and without cells that are cut off at an edge."""


def images(shape: tuple[int, int], dtype: str) -> Iterator[np.ndarray]:
    """Yield images with equal cells, cells that repeat, and cells that share some rows."""
    rng = np.random.default_rng(0)
    height, width = shape
    yield np.eye(*shape, dtype=dtype)
    yield rng.integers(0, 2, shape).astype(dtype)
    yield (np.add.outer(np.arange(height), np.arange(width)) // 7).astype(dtype)
    yield np.tile(rng.integers(0, 200, (8, 8)), (height // 8 + 1, width // 8 + 1))[:height, :width].astype(dtype)
    for nrows in (3, 4, 6, 9, 12):
        rows = rng.integers(0, 200, (nrows, 8))
        yield np.concatenate([rows[rng.integers(0, nrows, height)] for _ in range(0, width, 8)], 1)[:, :width].astype(
            dtype
        )


def stock(x: np.ndarray, edge: int, chunks: tuple[int, ...], blocks: tuple[int, ...]) -> blosc2.NDArray:
    cparams = {
        "codec": blosc2.Codec.NDLZ,
        "codec_meta": edge,
        "filters": [blosc2.Filter.SHUFFLE],
        "splitmode": blosc2.SplitMode.ALWAYS_SPLIT,
        "nthreads": 1,
    }
    return blosc2.asarray(x, chunks=chunks, blocks=blocks, cparams=cparams)


@pytest.mark.parametrize("edge", [4, 8])
@pytest.mark.parametrize("dtype", ["u1", "<u2", "<f8"])
@pytest.mark.parametrize(("chunks", "blocks"), SHAPES)
def test_arrays_of_python_blosc2_have_the_same_values(
    chunks: tuple[int, int], blocks: tuple[int, int], dtype: str, edge: int
) -> None:
    shape = (chunks[0] + 5, 2 * chunks[1])
    for x in images(shape, dtype):
        theirs = stock(x, edge, chunks, blocks)
        np.testing.assert_array_equal(theirs[...], x)
        a = b2array.from_bytes(theirs.to_cframe())
        assert (a.cparams.codec, a.cparams.codec_meta) == ("ndlz", edge)
        np.testing.assert_array_equal(a[...], x)
        np.testing.assert_array_equal(a[3:11, ::5], x[3:11, ::5])


def streams(edge: int) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield the streams of images, each in one block, that C-Blosc2 could make smaller."""
    for x in images((128, 96), "u1"):
        chunk = b2array.from_bytes(stock(x, edge, x.shape, x.shape).to_cframe()).get_chunk(0)
        if len(chunk) < x.size:
            (start,) = struct.unpack_from("<i", chunk, 32)
            (size,) = struct.unpack_from("<i", chunk, start)
            yield chunk[start + 4 : start + 4 + size], x


TOKENS = {
    4: {0, 40, 48, 56, 64, 128, 136, 144, 152, 176, 184, 192, 224, 232, 240, 248},
    8: {0, 64, *range(136, 143), *range(168, 174), 192},
}


@pytest.mark.parametrize("edge", [4, 8])
def test_cells_of_every_kind_are_read(edge: int) -> None:
    tokens, nbytes = set(), ndlz.TOKENS[edge].nbytes
    for data, x in streams(edge):
        np.testing.assert_array_equal(decode(data, x.shape, edge), x)
        at = 9
        while at < len(data):
            tokens.add(data[at])
            at += nbytes[data[at]]
    assert tokens == TOKENS[edge]


def decode(data: bytes, shape: tuple[int, ...] | None, edge: int = 4) -> np.ndarray:
    nbytes = 128 * 96 if shape is None else int(np.prod(shape))
    decoded = codecs.decode(32, data, nbytes, meta=edge, typesize=1, blockshape=shape)
    return np.frombuffer(decoded, np.uint8).reshape(shape or -1)


def cells(*parts: bytes, shape: tuple[int, int] = (4, 8)) -> bytes:
    return struct.pack("<Bii", 2, *shape) + b"".join(parts)


LITERAL = b"\0" + bytes(range(16))


def test_a_copy_reads_bytes_in_front_of_its_cell_and_nothing_else() -> None:
    whole = np.arange(16, dtype="u1").reshape(4, 4)
    copy = b"\xc0" + struct.pack("<H", 16)
    np.testing.assert_array_equal(decode(cells(LITERAL, copy), (4, 8)), np.hstack((whole, whole)))
    for distance in (0, 3, 15, 18, 27, 65535):
        with pytest.raises(FormatError, match="expected copies of bytes in front of a cell of NDLZ"):
            decode(cells(LITERAL, b"\xc0" + struct.pack("<H", distance)), (4, 8))
    pairs = b"\x30" + struct.pack("<HH", 16, 8)  # rows 0 and 2 from one place, 1 and 3 from the other
    np.testing.assert_array_equal(decode(cells(LITERAL, pairs), (4, 8))[:, 4:], whole[[0, 2, 1, 3]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (cells()[:5], "expected a stream of NDLZ for blocks of shape"),
        (cells(LITERAL, LITERAL, shape=(8, 4)), "found it begins 02 08 00 00 00 04"),
        (b"\3" + cells(LITERAL, LITERAL)[1:], "found it begins 03"),
        (cells(), "expected cells of NDLZ up to byte 9, found none"),
        (cells(LITERAL), "up to byte 26, found the last token, 0, at byte 9"),
        (cells(LITERAL, LITERAL[:-1]), "up to byte 42, found the last token, 0, at byte 26"),
        (cells(LITERAL, LITERAL, b"\0"), "up to byte 44, found the last token, 0, at byte 26"),
        (cells(LITERAL, b"\x07" + bytes(16)), "found the last token, 7, at byte 26"),
        (cells(b"\x07" + bytes(16), LITERAL), "found the last token, 7, at byte 9"),
        (cells(LITERAL, b"\x40"), "found the last token, 64, at byte 26"),
    ],
)
def test_other_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode(data, (4, 8))


def test_a_cell_at_an_edge_copies_nothing() -> None:
    edges = cells(b"\0" + bytes(range(12)), b"\0\1\2\3", shape=(3, 5))
    expected = np.column_stack((np.arange(12).reshape(3, 4), [1, 2, 3]))
    np.testing.assert_array_equal(decode(edges, (3, 5)), expected)
    with pytest.raises(FormatError, match="expected the token 0 of a cell at the edge of a block, found 64"):
        decode(cells(LITERAL, b"\x40\1", shape=(4, 7)), (4, 7))


@pytest.mark.parametrize(("edge", "shape"), [(5, (40, 50)), (4, (2000,)), (8, (10, 10, 20)), (0, (40, 50))])
def test_other_blocks_are_refused(edge: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(FormatError, match="expected cells of 4 or 8 bytes in blocks of 2 dimensions for NDLZ"):
        decode(bytes(100), shape, edge)


def test_chunks_outside_of_arrays_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="NDLZ needs the shape of a block"):
        decode(bytes(1000), None)


def test_no_stream_can_claim_more_memory_than_its_cells_have() -> None:
    with pytest.raises(FormatError, match="too few to hold them"):
        decode(cells(LITERAL, shape=(2**15, 2**15)), (2**15, 2**15))


def test_ndlz_is_not_written_and_copies_have_another_codec(tmp_path: Path) -> None:
    x = np.tile(np.arange(64, dtype="u1").reshape(8, 8), (8, 8))
    with pytest.raises(UnsupportedError, match="ndlz can be read but not written"):
        b2array.asarray(x, url=tmp_path / "x.b2nd", cparams=CParams("ndlz", codec_meta=4))
    a = b2array.from_bytes(stock(x, 4, x.shape, x.shape).to_cframe())
    copy = b2array.copy(a, tmp_path / "copy.b2nd", chunks=(20, 30))
    assert copy.cparams.codec == "zstd"
    np.testing.assert_array_equal(copy[...], x)
    b2array.copy(a, tmp_path / "same.b2nd")
    with b2array.open(tmp_path / "same.b2nd", "r+") as same, pytest.raises(UnsupportedError, match="only decoded"):
        same[3:9] = np.arange(64, dtype="u1")
    np.testing.assert_array_equal(b2array.open(tmp_path / "same.b2nd")[...], x)
