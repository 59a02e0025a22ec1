"""Files and chunks that were written once, by python-blosc2, C-Blosc 1 and earlier b2array, stay readable."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chunks import decoded_blocks, unpack_lazy

import b2array
from b2array.codec import decode
from b2array.codec.chunk import Stored
from b2array.codec.chunk_header import ChunkHeader
from b2array.errors import UnsupportedError
from b2array.format.frame_header import FrameType

HERE = Path(__file__).parent / "golden"


def load_make() -> Any:
    spec = importlib.util.spec_from_file_location("golden_make", HERE / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = load_make()
ARRAYS = [(author, name) for author, cases in (("stock", make.STOCK), ("ours", make.OURS)) for name in cases]

ONE_IN_THREE = [pytest.param(*each, marks=() if n % 3 == 0 else pytest.mark.slow) for n, each in enumerate(ARRAYS)]
"""For tests in which the file matters less than where it lies."""

"""Made with filters that b2array only reads."""


def case_of(author: str, name: str) -> Any:
    return (make.STOCK if author == "stock" else make.OURS)[name]


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.names:
        for name in expected.dtype.names:
            assert_same(found[name], expected[name])
    elif expected.dtype.kind in "fc":
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found.real), np.signbit(expected.real))
    else:
        assert found.tobytes() == expected.tobytes()


# Arrays


def test_every_file_has_a_case_and_every_case_a_file() -> None:
    folders = [HERE / name for name in ("stock", "ours", "schunk", "chunk")]
    found = {path.relative_to(HERE).as_posix() for folder in folders for path in folder.iterdir()}
    expected = {f"{author}/{name}.b2nd" for author, name in ARRAYS}
    expected |= {f"schunk/{name}{suffix}" for name in make.SCHUNKS for suffix in (".b2nd", ".npy")}
    expected |= {f"chunk/{name}.chunk" for name in make.CHUNK}
    assert found == expected


def test_the_files_are_small() -> None:
    assert sum(path.stat().st_size for path in HERE.rglob("*") if path.suffix != ".pyc") < 2**20


@pytest.mark.parametrize(("author", "name"), ARRAYS)
def test_arrays_read_equal(author: str, name: str) -> None:
    expected = case_of(author, name).values()
    with b2array.open(make.path_of(author, name)) as array:
        assert_same(np.asarray(array), expected)
        if expected.ndim:
            steps = tuple(slice(n // 3, None, 2) for n in expected.shape)
            assert_same(array[steps], expected[steps])
            for row in range(0, len(expected), 7):
                assert_same(np.asarray(array[row]), np.asarray(expected[row]))


@pytest.mark.parametrize(("author", "name"), ONE_IN_THREE)
def test_arrays_read_equal_from_memory_and_inside_of_another_file(author: str, name: str, tmp_path: Path) -> None:
    path = make.path_of(author, name)
    with b2array.open(path) as array:
        content = array.to_bytes() if path.is_dir() else path.read_bytes()
    expected = case_of(author, name).values()
    assert_same(np.asarray(b2array.from_bytes(content)), expected)
    (tmp_path / "larger").write_bytes(b"x" * 77 + content + b"y" * 33)
    with b2array.open(tmp_path / "larger", offset=77) as array:
        assert_same(np.asarray(array), expected)


@pytest.mark.parametrize(("author", "name"), ARRAYS)
def test_arrays_can_be_changed(author: str, name: str, tmp_path: Path) -> None:
    source, path = make.path_of(author, name), tmp_path / "copy.b2nd"
    (shutil.copytree if source.is_dir() else shutil.copy)(source, path)
    expected = case_of(author, name).values()
    with b2array.open(path, "r+") as array:
        # Part of a cell would change the mean of all of it.
        part = tuple(slice(0 if name == "ndmean" else n // 2, None) for n in expected.shape)
        value = expected.reshape(-1)[:1].copy() if expected.size else 0
        value = value[0] if expected.size else 0
        array[part] = value
        array.attrs["changed"] = True
        expected[part] = value
    with b2array.open(path) as array:
        # Lossy filters leave the values that they have made, which is what these files hold.
        assert_same(np.asarray(array), expected)
        assert array.attrs["changed"] is True


def test_layers_of_stock_are_read() -> None:
    with b2array.open(make.path_of("stock", "layers")) as array:
        assert dict(array.attrs) == make.ATTRS
        assert {name: array.meta[name] for name in ("first", "raw")} == {"first": {"a": [1, 2.5]}, "raw": b"\0\1"}


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_what_we_noted_is_read(layout: str) -> None:
    with b2array.open(make.path_of("ours", layout)) as array:
        assert dict(array.attrs) == {**make.ATTRS, "a name that is much longer than thirty-one bytes": [1, 2, 3]}
        assert (array.fill_value, array.dims, array.meta["first"]) == (7, ("y", None), [1, 2])
        assert array.info["layout"] == layout


def test_what_we_noted_outlives_a_stock_writer() -> None:
    with b2array.open(make.path_of("ours", "then-stock")) as array:
        assert array.attrs["by"] == "stock"
        assert array.fill_value == 7
        assert array.info["fingerprint"] == "none"


# Chunk headers


def header_fields(path: Path) -> dict[str, Any]:
    """What a frame says that depends neither on how well codecs compress nor on b2array's mark."""
    frame = b2array.open_schunk(path).frame
    left_out = {"cbytes", "frame_len", "offsets", "vlmetalayers", "fingerprint", "trailer_len", "nthreads_decompress"}
    told = {field.name: getattr(frame, field.name) for field in fields(frame) if field.name not in left_out}
    return told | {"names": [name for name, _ in frame.vlmetalayers], "specials": (frame.offsets < 0).tolist()}


def chunk_fields(path: Path) -> list[dict[str, Any]]:
    with b2array.open_schunk(path) as schunk:
        headers = [ChunkHeader.unpack(schunk.get_chunk(n)) for n in range(len(schunk))]
    return [{f.name: getattr(header, f.name) for f in fields(header) if f.name != "cbytes"} for header in headers]


@pytest.mark.parametrize("name", [name for name in make.OURS if name != "then-stock"])
def test_what_we_write_now_is_what_we_wrote_then(name: str, tmp_path: Path) -> None:
    case, then, now = make.OURS[name], make.path_of("ours", name), tmp_path / "now.b2nd"
    case.make(now, case.values())
    assert header_fields(now) == header_fields(then)
    assert chunk_fields(now) == chunk_fields(then)
    with b2array.open_schunk(then) as old, b2array.open_schunk(now) as new:
        for n in range(len(old)):
            assert new.decompress_chunk(n) == old.decompress_chunk(n)


def test_the_files_have_what_their_names_say() -> None:
    def header(author: str, name: str) -> ChunkHeader:
        with b2array.open_schunk(make.path_of(author, name)) as schunk:
            return ChunkHeader.unpack(schunk.get_chunk(0))

    formats = {"blosclz": 0, "lz4": 1, "lz4hc": 1, "zlib": 3, "zstd": 4}
    for author, (codec, fmt) in ((author, item) for author in ("stock", "ours") for item in formats.items()):
        always, never = (header(author, f"{codec}-{split}") for split in ("always", "never"))
        assert (always.codec_format, never.codec_format) == (fmt, fmt)
        assert (always.nstreams, never.nstreams) == (4, 1)
    for name, fid in (("shuffle", 1), ("bitshuffle", 2), ("delta", 3), ("bytedelta", 35), ("trunc", 4)):
        for codec in formats:
            assert fid in header("stock", f"{codec}-{name}").filters
    for name, fid in (("ndcell", 32), ("ndmean", 33), ("int-trunc", 36)):
        assert fid in header("stock", name).filters
    for name in ("dict-zstd", "dict-lz4", "dict-lz4hc"):
        assert header("stock", name).has_dict
        assert header("ours", name).has_dict
    for author, name in (("stock", "noise"), ("stock", "clevel-0"), ("ours", "raw")):
        assert header(author, name).memcpyed


@pytest.mark.parametrize("name", [name for name in make.STOCK if "sparse" in name])
def test_sparse_frames_are_directories(name: str) -> None:
    with b2array.open_schunk(make.path_of("stock", name)) as schunk:
        assert schunk.frame.frame_type == FrameType.SPARSE


# Super-chunks


@pytest.mark.parametrize("name", make.SCHUNKS)
def test_super_chunks_read_equal(name: str) -> None:
    path = make.path_of("schunk", name)
    data = np.load(path.with_suffix(".npy")).tobytes()
    with b2array.open_schunk(path) as schunk:
        assert b"".join(schunk.decompress_chunk(n) for n in range(len(schunk))) == data
        assert schunk.nbytes == len(data)
        if name != "batches":
            assert schunk.get_slice(3, 1700) == data[3:1700]


def test_chunks_of_every_size_and_blocks_of_every_length() -> None:
    with b2array.open_schunk(make.path_of("schunk", "own-sizes")) as schunk:
        assert [len(schunk.decompress_chunk(n)) for n in range(4)] == [500, 1500, 300, 500]
        assert schunk.vlmeta["note"] == "a text"
    with b2array.open_schunk(make.path_of("schunk", "batches")) as schunk:
        assert schunk.frame.vl_blocks
        assert len(list(decode.vl_blocks(Stored.whole(schunk.get_chunk(0))))) == 3


# Chunks

LAZY = [name for name in make.CHUNK if name.startswith("lazy-")]


@pytest.mark.parametrize("name", [name for name in make.CHUNK if name not in LAZY])
def test_chunks_decode(name: str) -> None:
    content = make.chunk_path(name).read_bytes()
    assert b2array.decompress(content) == make.CHUNK[name].data()
    header = ChunkHeader.unpack(content)
    assert header.extended == (not name.startswith("blosc1-"))
    assert header.vl_blocks == ("-vl" in name)
    assert header.has_dict == ("dict" in name)
    assert header.instrumented == (name == "instrumented")
    assert header.memcpyed == name.endswith("-raw")


@pytest.mark.parametrize("name", [name for name in make.CHUNK if name not in LAZY and "-vl" not in name])
def test_blocks_of_chunks_decode_alone(name: str) -> None:
    content, data = make.chunk_path(name).read_bytes(), make.CHUNK[name].data()
    stored = Stored.whole(content)
    step = stored.head.header.block_nbytes
    for number in range(stored.head.header.nblocks):
        assert decoded_blocks(stored, [number]) == data[number * step : (number + 1) * step]


def without_starts(content: bytes) -> bytes:
    """Leave out the block starts of a raw chunk: it has none, and python-blosc2 shows what else is there."""
    header = ChunkHeader.unpack(content)
    return content[:32] + content[32 + 4 * header.nblocks * header.memcpyed :]


@pytest.mark.parametrize("name", LAZY)
def test_lazy_chunks_point_into_their_frame(name: str) -> None:
    case, content = make.CHUNK[name], make.chunk_path(name).read_bytes()
    path = make.path_of("stock", name.removeprefix("lazy-"))
    with b2array.open_schunk(path) as schunk:
        assert without_starts(content) in [without_starts(schunk.lazy_chunk(n)) for n in range(len(schunk))]
        if ChunkHeader.unpack(content).special:
            assert b2array.decompress(content) == case.data()
            return

    def read(offset: int, nbytes: int) -> bytes:
        if path.is_dir():
            return (path / f"{offset:08X}.chunk").read_bytes()
        return path.read_bytes()[offset : offset + nbytes]

    found = unpack_lazy(content)
    assert decode.decode(read(found.offset, found.head.header.cbytes)).tobytes() == case.data()
    with pytest.raises(UnsupportedError, match="lazy"):
        b2array.decompress(content)
