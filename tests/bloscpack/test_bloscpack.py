"""Bloscpack files: those that Bloscpack wrote, our own, and damaged ones."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import pickle
import shutil
import struct
import subprocess
import time
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lengths import Sampled
from numcodecs import blosc

import b2array
from b2array import CParams, bloscpack
from b2array.bloscpack.blp_header import CHECKSUMS, Description, FileHeader, describe, description, digest
from b2array.codec.chunk_header import ChunkHeader
from b2array.errors import ChecksumError, ConflictError, FormatError, LimitError, ReadOnlyError, UnsupportedError

GOLDEN = Path(__file__).parents[1] / "golden" / "bloscpack"
_spec = importlib.util.spec_from_file_location("golden_bloscpack", GOLDEN / "make.py")
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)


def chunk1(data: bytes, typesize: int = 1) -> bytes:
    return blosc.compress(data, b"lz4", 5, blosc.SHUFFLE, 0, typesize)


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, bytes):
        assert found == expected
        return
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    if min(expected.shape, default=1) > 1:
        assert found.flags.f_contiguous == expected.flags.f_contiguous


# Files that Bloscpack wrote.


@pytest.mark.parametrize("name", golden.arrays())
def test_reads_the_arrays_that_bloscpack_wrote(name: str) -> None:
    expected = golden.arrays()[name]
    same(bloscpack.unpack(GOLDEN / f"{name}.blp"), expected)
    with bloscpack.open(GOLDEN / f"{name}.blp") as f:
        assert (f.shape, f.dtype, f.ndim, f.size) == (expected.shape, expected.dtype, expected.ndim, expected.size)
        same(np.asarray(f[...]), np.ascontiguousarray(expected).reshape(expected.shape))


@pytest.mark.parametrize("name", ["bytes", "bytes-plain", "bytes-raw", "bytes-appended"])
def test_reads_the_bytes_that_bloscpack_wrote(name: str) -> None:
    expected = golden.bytes_()
    assert bloscpack.unpack(GOLDEN / f"{name}.blp") == expected
    with bloscpack.open(GOLDEN / f"{name}.blp") as f:
        assert f.metadata == ({"made by": "bloscpack 0.16.0"} if name == "bytes" else None)
        assert f[1990:3010] == expected[1990:3010]
        assert f[-7:] == expected[-7:]
        assert (f[5], len(f), f.nbytes) == (expected[5], len(expected), len(expected))


def test_the_golden_files_are_those_of_the_script() -> None:
    names = {*golden.arrays(), "bytes", "bytes-plain", "bytes-raw", "bytes-appended"}
    assert {path.stem for path in GOLDEN.glob("*.blp")} == names


PYTHONS = (os.environ.get("B2ARRAY_BLOSCPACK_PYTHON"), "python3.9", "python3.8", "python3.7")


def _bloscpack_python() -> str | None:
    for name in PYTHONS:
        path = shutil.which(name) if name else None
        if path and subprocess.run([path, "-c", "import bloscpack"], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.fixture(scope="module")
def stock() -> Callable[[str, Path], Any]:
    """Give a function that runs the script beside the golden files in a Python that has Bloscpack."""
    python = _bloscpack_python()
    if python is None:
        pytest.skip("no Python with bloscpack found: set B2ARRAY_BLOSCPACK_PYTHON")

    def run(verb: str, directory: Path) -> Any:
        command = [python, str(GOLDEN / "make.py"), verb, str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    return run


def test_bloscpack_reads_our_files(stock: Callable[[str, Path], Any], tmp_path: Path) -> None:
    expected: dict[str, Any] = {}

    def add(name: str, x: Any, **options: Any) -> None:
        expected[name] = x
        bloscpack.pack(x, tmp_path / f"{name}.blp", **options)

    for name, array in golden.arrays().items():
        add(f"default-{name}", array)
    for checksum in CHECKSUMS:
        for offsets in (True, False):
            add(f"{checksum}-{offsets}", np.arange(1000), checksum=checksum, offsets=offsets, chunk_size=800)
    for codec in ("blosclz", "lz4", "lz4hc", "zlib", "zstd"):
        for filters in ((), ("shuffle",), ("bitshuffle",)):
            cparams = CParams(codec, filters=filters)
            add(f"{codec}-{len(filters)}-{filters}", np.arange(50000) // 7, cparams=cparams, chunk_size=80000)
    add("meta", b"abc" * 5000, metadata={"x": [1, 2]}, chunk_size=1000)
    add("empty-bytes", b"")
    add("streamed", np.arange(60.0).reshape(20, 3))
    with bloscpack.create(tmp_path / "streamed.blp", (None, 3), "f8", chunk_size=96, overwrite=True) as writer:
        for row in expected["streamed"]:
            writer.write(row)
    add("grown", np.arange(60.0).reshape(20, 3)[:5], chunk_size=96)
    bloscpack.append(tmp_path / "grown.blp", expected["streamed"][5:])
    expected["grown"] = expected["streamed"]

    found = stock("read", tmp_path)
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        if isinstance(x, bytes):
            assert bytes.fromhex(found[name]["bytes"]) == x, name
        else:
            assert found[name]["shape"] == list(x.shape), name
            assert bytes.fromhex(found[name]["data"]) == x.tobytes(), name
    assert found["meta"]["metadata"] == {"x": [1, 2]}
    assert found["default-f"]["order"] == "F"


def test_bloscpack_reads_files_that_were_appended_to(stock: Callable[[str, Path], Any], tmp_path: Path) -> None:
    expected: dict[str, Any] = {}
    rows = np.arange(60.0).reshape(20, 3)
    for offsets in (True, False):
        # Last chunks that are full, that grow, and that get smaller, in steps.
        path = tmp_path / f"steps-{offsets}.blp"
        bloscpack.pack(rows[:4], path, chunk_size=96, offsets=offsets, cparams=CParams(clevel=0))
        for first, stop in [(4, 5), (5, 8), (8, 8), (8, 17), (17, 20)]:
            bloscpack.append(path, rows[first:stop])
        expected[path.stem] = rows
    for name in ("c", "f", "times", "checksum-sha512", "codec-zstd"):
        theirs = golden.arrays()[name]
        path = tmp_path / f"theirs-{name}.blp"
        path.write_bytes((GOLDEN / f"{name}.blp").read_bytes())
        more = theirs[:, :1] if name == "f" else theirs[:1]
        bloscpack.append(path, more)
        whole = np.concatenate((theirs, more), axis=int(name == "f"))
        expected[path.stem] = np.asarray(whole, order="F" if name == "f" else "C")
    found = stock("read", tmp_path)
    for name, x in expected.items():
        same(bloscpack.unpack(tmp_path / f"{name}.blp"), x)
        assert found[name]["shape"] == list(x.shape), name
        assert bytes.fromhex(found[name]["data"]) == x.tobytes(), name


def test_files_that_bloscpack_writes_today_are_read(stock: Callable[[str, Path], Any], tmp_path: Path) -> None:
    stock("make", tmp_path)
    for name, array in golden.arrays().items():
        same(bloscpack.unpack(tmp_path / f"{name}.blp"), array)


# Older versions.


def test_reads_version_1(tmp_path: Path) -> None:
    parts = [b"a" * 300, b"b" * 300, b"c" * 10]
    buf = struct.pack("<4sB3xq", b"blpk", 1, 3) + b"".join(map(chunk1, parts))
    assert bloscpack.unpack(buf) == b"".join(parts)
    assert bloscpack.open(buf)[299:301] == b"ab"
    assert bloscpack.open(buf).nchunks == 3
    assert bloscpack.open(buf)[::7] == b"".join(parts)[::7]


@pytest.mark.parametrize("offsets", [True, False])
@pytest.mark.parametrize("checksum", CHECKSUMS)
def test_writes_and_reads_version_2(checksum: str, offsets: bool) -> None:
    data = bytes(range(256)) * 10
    buf = bloscpack.pack(data, version=2, checksum=checksum, offsets=offsets, chunk_size=1000)
    assert (buf[4], buf[5]) == (2, offsets)
    assert buf[24:32] == bytes(8)
    if offsets:
        first = struct.unpack_from("<3q", buf, 32)
        assert first[0] == 32 + 3 * 8
        assert buf[first[1]] == 2
    assert bloscpack.unpack(buf) == data
    assert bloscpack.open(buf)[990:1010] == data[990:1010]


def test_the_reserved_bytes_of_version_2_are_ignored() -> None:
    buf = bytearray(bloscpack.pack(b"abc" * 1000, version=2))
    buf[24:32] = b"\x07" * 8
    assert bloscpack.unpack(buf) == b"abc" * 1000


def test_version_2_of_unknown_length_gets_a_table_without_room() -> None:
    with bloscpack.create(None, version=2, chunk_size=10) as writer:
        for n in range(30):
            writer.write(b"%03d" % n)
    assert struct.unpack_from("<q", writer.packed, 32) == (32 + 9 * 8,)
    assert bloscpack.unpack(writer.packed) == b"".join(b"%03d" % n for n in range(30))


def test_version_2_takes_bytes_only() -> None:
    with pytest.raises(ValueError, match="version 2"):
        bloscpack.pack(np.arange(3), version=2)
    with pytest.raises(ValueError, match="version 2"):
        bloscpack.pack(b"abc", version=2, metadata={})


@pytest.mark.parametrize("version", [0, 4, 255])
def test_other_versions_are_unsupported(version: int) -> None:
    buf = bytearray(bloscpack.pack(b"abc"))
    buf[4] = version
    with pytest.raises(UnsupportedError, match=f"version {version}"):
        bloscpack.unpack(buf)


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        ("'<f8'", "<f8"),
        ("<f8", "<f8"),
        ("float32", "f4"),
        ([["a", "<i4"], ["b", "<f8", [2, 3]]], [("a", "<i4"), ("b", "<f8", (2, 3))]),
        ([["a", [["b", "<f8"]]]], [("a", [("b", "<f8")])]),
        ("[('a', '<i4'), ('', '|V4'), ('b', '<f8')]", np.dtype([("a", "<i4"), ("b", "<f8")], align=True)),
        ("[(('long', 'x'), '<i4')]", [(("long", "x"), "<i4")]),
    ],
)
def test_older_texts_of_types_are_understood(stored: Any, dtype: Any) -> None:
    metadata = {"dtype": stored, "shape": [4], "order": "C", "container": "numpy"}
    assert description(metadata) == Description(np.dtype(dtype), (4,), "C")


@pytest.mark.parametrize("stored", ["'|O'", "O", "[('a', '|O')]", [["a", "O"]], [["a", [["b", "object"]]]]])
def test_pickled_objects_are_refused(stored: Any) -> None:
    metadata = {"dtype": stored, "shape": [4], "order": "C", "container": "numpy"}
    with pytest.raises(UnsupportedError, match="bject"):
        description(metadata)
    with pytest.raises(UnsupportedError, match="pickled"):
        bloscpack.pack(np.array([None, 1]))


@pytest.mark.parametrize(
    "metadata",
    [
        {"container": "numpy"},
        {"dtype": "'<f8'", "shape": [4], "order": "A", "container": "numpy"},
        {"dtype": "'<f8'", "shape": 4, "order": "C", "container": "numpy"},
        {"dtype": "'<f8'", "shape": [-2], "order": "C", "container": "numpy"},
        {"dtype": "'<f8'", "shape": [-1, -1], "order": "C", "container": "numpy"},
        {"dtype": "'<f8'", "shape": [3, -1], "order": "C", "container": "numpy"},
        {"dtype": "'<f8'", "shape": [True], "order": "C", "container": "numpy"},
        {"dtype": "'<f8'", "shape": [2**63], "order": "C", "container": "numpy"},
        {"dtype": "'nonsense'", "shape": [4], "order": "C", "container": "numpy"},
        {"dtype": "'V0'", "shape": [4], "order": "C", "container": "numpy"},
        {"dtype": 8, "shape": [4], "order": "C", "container": "numpy"},
        {"dtype": [["a"]], "shape": [4], "order": "C", "container": "numpy"},
        {"dtype": "(" * 3000, "shape": [4], "order": "C", "container": "numpy"},
        {"dtype": "x" * 5000, "shape": [4], "order": "C", "container": "numpy"},
    ],
)
def test_impossible_metadata_of_arrays_are_refused(metadata: Any) -> None:
    with pytest.raises(FormatError):
        description(metadata)


def test_types_that_cannot_be_told_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i2"], "offsets": [0, 0]})
    for array, error in ((np.zeros(3, overlapping), ValueError), (np.zeros(3, "V0"), ValueError)):
        with pytest.raises(error):
            bloscpack.pack(array, tmp_path / "a.blp")
    wide = np.zeros(3, [(f"field-{n}", "<i4") for n in range(300)])
    with pytest.raises(LimitError):
        bloscpack.pack(wide, tmp_path / "a.blp")
    assert list(tmp_path.iterdir()) == []


# Our own files.

dtypes = st.sampled_from(["<f8", ">i2", "?", "<U3", "S5", "<M8[us]", "<c16", [("a", "<i4"), ("b", "<f4", (2,))]])


@given(
    shape=st.lists(st.integers(0, 7), max_size=3),
    dtype=dtypes,
    order=st.sampled_from("CF"),
    checksum=st.sampled_from(CHECKSUMS),
    offsets=st.booleans(),
    items=st.integers(1, 20),
    codec=st.sampled_from(["blosclz", "lz4", "lz4hc", "zlib", "zstd"]),
    data=st.data(),
)
def test_what_is_packed_is_unpacked(
    shape: list[int], dtype: Any, order: str, checksum: str, offsets: bool, items: int, codec: str, data: Any
) -> None:
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    raw = bytes((17 * i + i // 5) % 2 if kind.kind == "b" else (17 * i) % 120 for i in range(size))
    x = np.frombuffer(raw, kind).reshape(shape)
    if kind.kind == "U":
        x = np.char.mod("%d", np.arange(int(np.prod(shape))).reshape(shape)).astype(kind)
    x = np.asarray(x, order=order)
    packed = bloscpack.pack(
        x, checksum=checksum, offsets=offsets, chunk_size=items * kind.itemsize, cparams=CParams(codec)
    )
    same(bloscpack.unpack(packed), x)
    keys = [st.integers(-n, n - 1) if n else st.just(slice(None)) for n in shape]
    entries = [data.draw(st.one_of(key, st.slices(n))) for key, n in zip(keys, shape, strict=True)]
    key = tuple(entries[: data.draw(st.integers(0, len(entries)))])
    np.testing.assert_array_equal(bloscpack.open(packed)[key], x[key])


@given(st.binary(max_size=500), st.slices(500), st.booleans(), st.integers(1, 90))
def test_parts_of_bytes_are_those_of_bytes(data: bytes, key: slice, offsets: bool, chunk_size: int) -> None:
    f = bloscpack.open(bloscpack.pack(data, offsets=offsets, chunk_size=chunk_size))
    assert f[key] == data[key]
    assert b"".join(f.iter_chunks()) == data


def test_index_arrays_read_rows() -> None:
    x = np.arange(600).reshape(20, 30)
    for y in (x, np.asfortranarray(x)):
        f = bloscpack.open(bloscpack.pack(y, chunk_size=80))
        np.testing.assert_array_equal(f[[3, 19, 3], 1:], x[[3, 19, 3], 1:])
        np.testing.assert_array_equal(f[:, [3, 29, 3]], x[:, [3, 29, 3]])
        np.testing.assert_array_equal(f[x % 7 == 0], x[x % 7 == 0])
        np.testing.assert_array_equal(f[None, 3, ..., None], x[None, 3, ..., None])
    with pytest.raises(IndexError):
        f[20]


def test_only_the_chunks_of_a_part_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).integers(0, 2**60, (1000, 100))
    bloscpack.pack(x, tmp_path / "x.blp", chunk_size=8000)
    f = bloscpack.open(tmp_path / "x.blp")
    spans = []
    read = f._store.read
    monkeypatch.setattr(f._store, "read", lambda wanted, **kw: spans.extend(wanted) or read(wanted, **kw))
    np.testing.assert_array_equal(f[15:25], x[15:25])
    assert len(spans) == 2
    assert sum(span.stop - span.start for span in spans) < 17000
    spans.clear()
    np.testing.assert_array_equal(f[::500], x[::500])
    assert len(spans) == 2
    spans.clear()
    for n in range(300, 310):
        np.testing.assert_array_equal(f[n], x[n])
    assert len(spans) == 1


def test_any_store_will_do(tmp_path: Path) -> None:
    x = np.arange(5000).reshape(50, 100)
    bloscpack.pack(x, "memory://bloscpack-test/x.blp")
    same(bloscpack.unpack("memory://bloscpack-test/x.blp"), x)
    with pytest.raises(FileExistsError):
        bloscpack.pack(x, "memory://bloscpack-test/x.blp")
    bloscpack.append("memory://bloscpack-test/x.blp", x)
    same(bloscpack.unpack("memory://bloscpack-test/x.blp"), np.concatenate((x, x)))
    with pytest.raises(ReadOnlyError, match="cannot write"):
        bloscpack.append("simplecache::memory://bloscpack-test/x.blp", x)
    with pytest.raises(FileNotFoundError):
        bloscpack.open(tmp_path / "missing.blp")


@pytest.mark.parametrize("nchunks", [100, -1])
def test_threads_share_a_reader_that_does_not_know_where_the_chunks_are(
    nchunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = [chunk1(struct.pack("<i", n) * 20) for n in range(100)]
    f = bloscpack.open(FileHeader(chunk_size=80, last_chunk=80, nchunks=nchunks).pack() + b"".join(chunk))

    def slow(buf: memoryview) -> ChunkHeader:
        time.sleep(0.0002)
        return ChunkHeader.unpack(buf)

    monkeypatch.setattr("b2array.bloscpack.chunks.ChunkHeader", SimpleNamespace(unpack=slow))
    with ThreadPoolExecutor(4) as pool:
        found = [each.result() for each in [pool.submit(f.__getitem__, slice(None)) for _ in range(4)]]
    assert found == [b"".join(struct.pack("<i", n) * 20 for n in range(100))] * 4


def test_reads_over_http(http: Any) -> None:
    x = np.arange(100000).reshape(100, 1000)
    http.objects["x.blp"] = bloscpack.pack(x)
    np.testing.assert_array_equal(bloscpack.open(f"{http.url}/x.blp")[40:42], x[40:42])


def test_arrays_that_are_elsewhere_are_packed_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("b2array.bloscpack.writer._WINDOW_NBYTES", 4000)
    x = np.arange(6000).reshape(20, 300)
    a = b2array.asarray(x)
    same(bloscpack.unpack(bloscpack.pack(a)), x)


def test_an_existing_file_needs_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "x.blp"
    bloscpack.pack(b"one", path)
    with pytest.raises(FileExistsError, match="overwrite"):
        bloscpack.pack(b"two", path)
    bloscpack.pack(b"two", path, overwrite=True)
    assert bloscpack.unpack(path) == b"two"
    other = tmp_path / "other.txt"
    other.write_text("mine")
    with pytest.raises(FileExistsError, match="not a Bloscpack file"):
        bloscpack.pack(b"two", other, overwrite=True)
    with pytest.raises(FileExistsError, match="directory"):
        bloscpack.pack(b"two", tmp_path, overwrite=True)


@pytest.mark.parametrize(
    "options",
    [
        {"checksum": "crc64"},
        {"chunk_size": 0},
        {"chunk_size": 7},
        {"chunk_size": 2**31},
        {"version": 1},
        {"max_app_chunks": -1},
        {"metadata": {"shape": 3}},
    ],
)
def test_impossible_parameters_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be|themselves"):
        bloscpack.pack(np.arange(10), tmp_path / "x.blp", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((3,), {"order": "A"}, "order C or F"),
        ((1,) * 65, {}, "64 extents"),
        ((3,), {"checksum": False}, "must be one of"),
        (None, {"metadata": {"container": "numpy"}}, "dtype"),
    ],
)
def test_what_no_reader_would_understand_is_not_written(
    shape: tuple[int, ...] | None, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        bloscpack.create(tmp_path / "x.blp", shape, None if shape is None else "i4", **options)
    assert not isinstance(caught.value, FormatError)
    assert list(tmp_path.iterdir()) == []


def test_bytes_with_the_metadata_of_an_array_are_an_array() -> None:
    metadata = {"container": "numpy", "dtype": "<i4", "shape": (2, 3), "order": "F"}
    x = np.arange(6, dtype="<i4").reshape((2, 3), order="F")
    same(bloscpack.unpack(bloscpack.pack(x.tobytes("F"), metadata=metadata)), x)


@pytest.mark.parametrize("order", ["C", "F"])
def test_masked_arrays_without_masked_items_are_written(order: str) -> None:
    x = np.array([[1, 2], [3, 4]])
    with bloscpack.create(None, (None, 2) if order == "C" else (2, None), "i8", order=order) as writer:
        writer.write(np.ma.masked_array(x, mask=False))
    same(bloscpack.unpack(writer.packed), np.asarray(x, order=order))


def test_masked_items_are_not_written_as_bytes() -> None:
    with pytest.raises(TypeError, match="masked"), bloscpack.create(None) as writer:
        writer.write(np.ma.masked_array([1, 2], [False, True]))


def test_chunk_sizes_are_rounded_down_to_whole_items() -> None:
    for wanted, size in ((8, 8), (15, 8), (1000, 1000), (1007, 1000)):
        f = bloscpack.open(bloscpack.pack(np.arange(1000), chunk_size=wanted))
        assert f.header.chunk_size == size
        np.testing.assert_array_equal(f[3:500], np.arange(3, 500))
    with bloscpack.create(None, (None,), "S5", chunk_size=64) as writer:
        writer.write(np.full(100, b"abcde"))
    assert bloscpack.open(writer.packed).header.chunk_size == 60
    assert bloscpack.open(bloscpack.pack(bytes(3000), chunk_size=1007)).header.chunk_size == 1007


@pytest.mark.parametrize(
    "cparams", [CParams(use_dict=True), CParams(filters=("delta",)), CParams(filters=("shuffle", "bitshuffle"))]
)
def test_what_blosc_1_lacks_is_refused(cparams: CParams, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="Blosc 1"):
        bloscpack.pack(np.arange(10), tmp_path / "x.blp", cparams=cparams)
    assert list(tmp_path.iterdir()) == []


# Streaming.


def test_until_the_end_offsets_and_sizes_are_unknown_and_chunks_are_found_all_the_same(tmp_path: Path) -> None:
    rows = np.arange(300).reshape(100, 3)
    writer = bloscpack.create(tmp_path / "x.blp", (None, 3), "i8", chunk_size=240)
    writer.write(rows[:45])
    writer._file.flush()
    (unfinished,) = tmp_path.iterdir()
    assert unfinished.name != "x.blp"
    found = FileHeader.unpack(unfinished.read_bytes())
    assert (found.nchunks, found.last_chunk, found.chunk_size) == (-1, -1, 240)
    with bloscpack.open(unfinished) as f:
        assert f.nslots == 1024
        np.testing.assert_array_equal(f[...], rows[:40])
        np.testing.assert_array_equal(f[35:37], rows[35:37])
    np.testing.assert_array_equal(bloscpack.unpack(unfinished, partial=True), rows[:40])
    writer.write(rows[45:])
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["x.blp"]
    same(bloscpack.unpack(tmp_path / "x.blp"), rows)
    with bloscpack.open(tmp_path / "x.blp") as f:
        assert (f.header.nchunks, f.header.last_chunk, f.nslots) == (10, 240, 1024)


@pytest.mark.parametrize("offsets", [True, False])
@pytest.mark.parametrize("nbytes", [900, 1000, 12_345])
def test_a_file_that_knows_its_last_chunk_but_not_their_number_is_read(nbytes: int, offsets: bool) -> None:
    data = np.random.default_rng(nbytes).bytes(nbytes)
    more = {"max_app_chunks": 0} if offsets else {}
    raw = bytearray(bloscpack.pack(data, chunk_size=1000, offsets=offsets, **more))
    assert FileHeader.unpack(raw).last_chunk == (nbytes % 1000 or 1000)
    raw[16:24] = struct.pack("<q", -1)
    with bloscpack.open(bytes(raw)) as f:
        assert (f.nchunks, f.nbytes) == (-(-nbytes // 1000), nbytes)
        assert f.read() == data
        assert f[nbytes - 10 :] == data[-10:]


def test_a_known_length_is_held(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 24 bytes"), bloscpack.create(tmp_path / "x", (3,), "i8") as writer:
        writer.write([1, 2])
    with pytest.raises(ValueError, match="expected 24 bytes"), bloscpack.create(tmp_path / "x", (3,), "i8") as writer:
        writer.write([1, 2, 3, 4])
    with pytest.raises(ValueError, match="whole rows"), bloscpack.create(tmp_path / "x", (None, 2), "i8") as writer:
        writer.write([1, 2, 3])
    assert list(tmp_path.iterdir()) == []


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    with pytest.raises(TypeError), bloscpack.create(tmp_path / "x.blp", (None,), "i4") as writer:
        writer.write(np.array([1.5]))
    assert list(tmp_path.iterdir()) == []


def test_room_for_offsets_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("b2array.bloscpack.writer._FIRST_SLOTS", 2)
    monkeypatch.setattr("b2array.bloscpack.writer._STEP", 50)
    data = bytes(range(256)) * 2
    with bloscpack.create(None, chunk_size=16, metadata={"a": 1}) as writer:
        writer.write(data)
    with bloscpack.open(writer.packed) as f:
        assert (f.nslots, f.nchunks, f.metadata) == (32, 32, {"a": 1})
        assert f[100:150] == data[100:150]
    assert bloscpack.unpack(writer.packed) == data


@pytest.mark.parametrize("version", [2, 3])
def test_a_file_whose_table_gets_another_size_is_complete_and_alone(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("b2array.bloscpack.writer._FIRST_SLOTS", 4)
    monkeypatch.setattr("b2array.bloscpack.writer._STEP", 50)
    data = bytes(range(256)) * 2
    path = tmp_path / "x.blp"
    path.write_bytes(bloscpack.pack(b"before"))
    for overwrite in (False, True):
        writer = bloscpack.create(
            path if overwrite else tmp_path / "new.blp", chunk_size=16, version=version, overwrite=overwrite
        )
        with writer:
            writer.write(data)
    assert {found.name for found in tmp_path.iterdir()} == {"x.blp", "new.blp"}
    assert path.read_bytes() == (tmp_path / "new.blp").read_bytes()
    with bloscpack.open(path) as f:
        assert (f.nslots, f.nchunks) == (32, 32)
        assert f[100:150] == data[100:150]
    assert bloscpack.unpack(path) == data
    writer = bloscpack.create(tmp_path / "late.blp", chunk_size=16)
    writer.write(data)
    (tmp_path / "late.blp").write_bytes(b"other")
    with pytest.raises(FileExistsError):
        writer.close()
    assert {found.name for found in tmp_path.iterdir()} == {"x.blp", "new.blp", "late.blp"}
    assert (tmp_path / "late.blp").read_bytes() == b"other"


def test_a_writer_that_was_closed_or_given_up_takes_no_more(tmp_path: Path) -> None:
    for end in (bloscpack.Writer.close, bloscpack.Writer.abort):
        writer = bloscpack.create(tmp_path / "x.blp", overwrite=True)
        writer.write(b"kept")
        end(writer)
        with pytest.raises(ValueError, match="the file is closed"):
            writer.write(b"lost")
        writer.close()
    assert bloscpack.unpack(tmp_path / "x.blp") == b"kept"


def test_open_extents_are_the_outermost() -> None:
    with bloscpack.create(None, (3, None), "i4", order="F") as writer:
        for n in range(5):
            writer.write([n, n, n])
    np.testing.assert_array_equal(bloscpack.unpack(writer.packed), np.tile(np.arange(5), (3, 1)))
    for arguments in [((3, None), "i4"), ((3,), None), (None, "i4"), ((-2,), "i4")]:
        with pytest.raises((TypeError, ValueError)):
            bloscpack.create(None, *arguments)


def test_memory_is_bounded(tmp_path: Path) -> None:
    x = b2array.zeros((400, 500, 100), "i8", url=tmp_path / "big.b2nd", chunks=(10, 500, 100))
    x[::50] = 1
    with b2array.config.using(cache_bytes=0):
        tracemalloc.start()
        try:
            bloscpack.pack(x, tmp_path / "x.blp")
            with bloscpack.open(tmp_path / "x.blp") as f:
                total = sum(map(len, f.iter_chunks()))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert total == x.nbytes
    assert peak < x.nbytes / 1.5


@given(
    order=st.sampled_from("CF"),
    chunk_size=st.integers(8, 900),
    window=st.sampled_from([1, 500, 2**25]),
    data=st.data(),
)
def test_any_key_reads_what_numpy_reads(order: str, chunk_size: int, window: int, data: Any) -> None:
    x = np.asarray(np.arange(23 * 11 * 3).reshape(23, 11, 3), order=order)
    f = bloscpack.open(bloscpack.pack(x, chunk_size=chunk_size))
    entry = st.one_of(
        st.integers(-3, 2), st.slices(23), st.just(None), st.just(...), st.lists(st.integers(-3, 2), max_size=5)
    )
    key = tuple(data.draw(st.lists(entry, max_size=5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("b2array.bloscpack.reader._WINDOW_NBYTES", window)
        try:
            expected = x[key]
        except IndexError:
            with pytest.raises(IndexError):
                f[key]
        else:
            np.testing.assert_array_equal(f[key], expected)
            mask = np.asarray(x % 5 == 0)
            np.testing.assert_array_equal(f[mask], x[mask])


@pytest.mark.parametrize("key", [(slice(None), 0), (slice(None), [0, 5]), ([0, 50, 100, 399], 3)])
def test_memory_for_a_key_is_bounded_by_the_result(key: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("b2array.bloscpack.reader._WINDOW_NBYTES", 2 * 2**20)
    x = np.zeros((400, 12_500), "i8")
    x[:, 0] = np.arange(400)
    bloscpack.pack(x, tmp_path / "x.blp")
    with bloscpack.open(tmp_path / "x.blp") as f:
        tracemalloc.start()
        try:
            found = f[key]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    np.testing.assert_array_equal(found, x[key])
    assert peak < x.nbytes / 4


# Appending.


@pytest.mark.parametrize("offsets", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_are_appended(tmp_path: Path, order: str, offsets: bool) -> None:
    x = np.asarray(np.arange(1200).reshape(30, 40), order=order)
    axis = 0 if order == "C" else 1
    path = tmp_path / "x.blp"
    bloscpack.pack(x, path, chunk_size=1000, offsets=offsets, checksum="crc32", metadata={"unit": "m"})
    bloscpack.append(path, x)
    bloscpack.append(path, np.take(x, range(7), axis))
    expected = np.concatenate((x, x, np.take(x, range(7), axis)), axis)
    same(bloscpack.unpack(path), np.asarray(expected, order=order))
    with bloscpack.open(path) as f:
        assert f.metadata["unit"] == "m"
        assert f.header.offsets == offsets
        if offsets:
            assert f.nslots == 10 * 11


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.integers(1, 25))
def test_bytes_are_appended(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], chunk_size: int) -> None:
    path = tmp_path_factory.getbasetemp() / "appended.blp"
    bloscpack.pack(parts[0], path, chunk_size=chunk_size, max_app_chunks=200, overwrite=True)
    for part in parts[1:]:
        bloscpack.append(path, part)
    assert bloscpack.unpack(path) == b"".join(parts)


def test_a_file_that_is_full_takes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "x.blp"
    bloscpack.pack(b"a" * 100, path, chunk_size=10, max_app_chunks=2)
    before = path.read_bytes()
    with pytest.raises(LimitError, match="12 chunks"):
        bloscpack.append(path, b"b" * 21)
    assert path.read_bytes() == before
    bloscpack.append(path, b"b" * 20)
    assert bloscpack.unpack(path) == b"a" * 100 + b"b" * 20


def test_what_does_not_fit_is_not_appended(tmp_path: Path) -> None:
    path = tmp_path / "x.blp"
    bloscpack.pack(np.zeros((3, 4), "i4"), path)
    before = path.read_bytes()
    for x in (np.zeros((3, 5), "i4"), np.zeros(4, "i4"), np.zeros((3, 4), "f8"), b"abc"):
        with pytest.raises((TypeError, ValueError)):
            bloscpack.append(path, x)
    assert path.read_bytes() == before
    bloscpack.pack(b"abc", path, overwrite=True)
    with pytest.raises(TypeError, match="bytes"):
        bloscpack.append(path, np.zeros(3))


def test_small_files_grow_in_chunks_of_the_usual_size(tmp_path: Path) -> None:
    path = tmp_path / "x.blp"
    bloscpack.pack(np.empty((0, 3)), path)
    for n in range(5):
        bloscpack.append(path, np.full((1, 3), n))
    with bloscpack.open(path) as f:
        assert f.nchunks == 1
        assert f[:, 0].tolist() == [0, 1, 2, 3, 4]


# Damage.


@pytest.fixture
def damaged() -> Callable[..., bytes]:
    """Give a function that packs 40 rows in 10 chunks and changes a byte of one chunk."""

    def make(number: int, **options: Any) -> bytes:
        buf = bytearray(bloscpack.pack(np.arange(400).reshape(40, 10), chunk_size=320, **options))
        buf[bloscpack.open(buf).place(number).start + 40] ^= 0xFF
        return bytes(buf)

    return make


@pytest.mark.parametrize("checksum", CHECKSUMS[1:])
@pytest.mark.parametrize("offsets", [True, False])
def test_a_wrong_checksum_names_the_chunk(damaged: Callable[..., bytes], checksum: str, offsets: bool) -> None:
    buf = damaged(7, checksum=checksum, offsets=offsets)
    with pytest.raises(ChecksumError, match="chunk 7 of"):
        bloscpack.unpack(buf)
    np.testing.assert_array_equal(bloscpack.open(buf)[:28], np.arange(280).reshape(28, 10))
    with pytest.raises(ChecksumError, match="chunk 7 of"):
        bloscpack.open(buf)[28]


def test_damage_without_checksum_still_names_the_chunk() -> None:
    buf = bytearray(bloscpack.pack(bytes(range(256)) * 8, chunk_size=1024, checksum=None))
    start = bloscpack.open(buf).place(1).start
    buf[start + 4 : start + 8] = struct.pack("<i", 77)
    with pytest.raises(FormatError, match="chunk 1 of"):
        bloscpack.unpack(buf)


def test_the_intact_part_of_a_damaged_file_can_be_had(damaged: Callable[..., bytes]) -> None:
    with pytest.warns(UserWarning, match="chunk 7 of"):
        found = bloscpack.unpack(damaged(7), partial=True)
    np.testing.assert_array_equal(found, np.arange(280).reshape(28, 10))


@pytest.mark.parametrize("offsets", [True, False])
def test_a_file_that_was_cut_short_keeps_what_is_before(offsets: bool, sampled: Sampled) -> None:
    data = bytes(range(256)) * 8
    buf = bloscpack.pack(data, chunk_size=256, offsets=offsets)
    f = bloscpack.open(buf)
    stops = [f.place(n).stop for n in range(8)]
    first = f.place(0).start
    for length in sampled(range(first, len(buf)), 16):
        with pytest.raises(FormatError, match="chunk"):
            bloscpack.unpack(buf[:length])
        with pytest.warns(UserWarning, match="damaged"):
            found = bloscpack.unpack(buf[:length], partial=True)
        intact = 256 * sum(stop <= length for stop in stops)
        assert found == data[:intact]
    for length in range(first):
        with pytest.raises(FormatError):
            bloscpack.unpack(buf[:length])


@pytest.mark.parametrize("name", ["empty", "records", "f", "checksum-sha512", "bytes-appended", "none"])
def test_golden_files_that_were_cut_short_are_refused_or_give_what_is_before(name: str) -> None:
    buf = (GOLDEN / f"{name}.blp").read_bytes()
    whole = bloscpack.unpack(buf)
    first = bloscpack.open(buf).first_chunk
    for length in {*range(0, len(buf), 41), *range(first - 3, min(first + 40, len(buf))), len(buf) - 1}:
        with pytest.raises(FormatError):
            bloscpack.unpack(buf[:length])
        with warnings.catch_warnings(action="ignore"), suppress(FormatError):
            found = bloscpack.unpack(buf[:length], partial=True)
            if isinstance(whole, bytes):
                assert whole.startswith(found)
            else:
                axis = int(name == "f")
                same(found, np.asarray(np.take(whole, range(found.shape[axis]), axis), order="F" if axis else "C"))


def test_nothing_is_warned_of_where_nothing_is_wrong() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bloscpack.unpack(bloscpack.pack(b"abc" * 100), partial=True) == b"abc" * 100
        assert bloscpack.unpack(bloscpack.pack(np.array(1.5)), partial=True) == 1.5


@pytest.mark.parametrize("offsets", [True, False])
@pytest.mark.parametrize("nchunks", [2**40, 2**62, -2])
def test_the_number_of_chunks_alone_takes_no_memory(nchunks: int, offsets: bool) -> None:
    buf = FileHeader(offsets=offsets, nchunks=nchunks, chunk_size=2**30, last_chunk=1).pack() + chunk1(b"abc" * 100)
    tracemalloc.start()
    try:
        for verb in (
            bloscpack.unpack,
            lambda buf: bloscpack.open(buf)[-1],
            lambda buf: list(bloscpack.open(buf).iter_chunks()),
        ):
            with pytest.raises(FormatError):
                verb(buf)
        with pytest.raises(FormatError):
            bloscpack.append(buf, b"more")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_shapes_alone_take_no_memory() -> None:
    from b2array.bloscpack.blp_header import pack_metadata

    meta = pack_metadata(describe(Description(np.dtype("f8"), (2**40,), "C")))
    header = FileHeader(metadata=True, nchunks=2**20, chunk_size=2**23, last_chunk=2**23, checksum=0).pack()
    bomb = chunk1(bytes(1000))
    with pytest.raises(FormatError):
        bloscpack.unpack(header + meta + bomb)
    for key in (..., slice(0, 2**40, 2**20)):
        with pytest.raises(FormatError, match="expected at most"):
            bloscpack.open(header + meta + bomb)[key]
    mild = FileHeader(metadata=True, nchunks=1, chunk_size=1000, last_chunk=1000).pack()
    with pytest.raises(FormatError, match="expected 8796093022208 bytes"):
        bloscpack.unpack(mild + meta + bomb)
    with pytest.raises(FormatError, match="expected 8796093022208 bytes"):
        bloscpack.open(mild + meta + bomb)[0]


def test_wrong_metadata_are_noticed() -> None:
    buf = bytearray(bloscpack.pack(np.arange(10), checksum=None))
    at = 32 + 32 + 3
    buf[at] ^= 0xFF
    with pytest.raises(ChecksumError, match="metadata"):
        bloscpack.unpack(buf)
    bomb = zlib.compress(bytes(10**6))
    section = struct.pack("<8s4B3I8s", b"JSON", 0, 0, 1, 6, 100, len(bomb), len(bomb), b"") + bomb
    with pytest.raises(FormatError, match="100 bytes of metadata"):
        bloscpack.open(FileHeader(metadata=True, nchunks=0).pack() + section)
    with pytest.raises(UnsupportedError, match="YAML"):
        bloscpack.open(FileHeader(metadata=True, nchunks=0).pack() + section.replace(b"JSON", b"YAML"))


def test_unknown_options_and_codecs_are_unsupported() -> None:
    buf = bytearray(bloscpack.pack(b"abc" * 100, checksum=None))
    buf[5] |= 4
    with pytest.raises(UnsupportedError, match="options"):
        bloscpack.unpack(buf)
    buf[5] &= 3
    start = bloscpack.open(buf).place(0).start
    buf[start + 2] = buf[start + 2] & 0x1D | 2 << 5
    with pytest.raises(UnsupportedError, match="snappy"):
        bloscpack.unpack(buf)


@given(st.data())
def test_any_bytes_are_read_or_refused(data: Any) -> None:
    checksum = data.draw(st.sampled_from([None, "crc32"]))
    buf = bytearray(bloscpack.pack(np.arange(60).reshape(6, 10), chunk_size=160, checksum=checksum))
    for _ in range(data.draw(st.integers(1, 3))):
        buf[data.draw(st.integers(0, min(len(buf), 400) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(buf)), st.integers(0, len(buf))))
    with suppress(b2array.errors.B2ArrayError):
        found = bloscpack.unpack(buf[:cut])
        assert isinstance(found, bytes) or found.nbytes <= 10**6


def test_checksums_can_be_left_out_of_reading(damaged: Callable[..., bytes]) -> None:
    with b2array.config.using(verify="never"), pytest.raises(FormatError) as caught:
        bloscpack.unpack(damaged(3)[:-700])
    assert not isinstance(caught.value, ChecksumError)


def test_checksums_stand_as_the_format_wants_them() -> None:
    assert digest(1, b"b2array") == struct.pack("<I", zlib.adler32(b"b2array"))
    assert [len(digest(n, b"")) for n in range(9)] == [0, 4, 4, 16, 20, 28, 32, 48, 64]


def test_a_reader_describes_itself() -> None:
    f = bloscpack.open(bloscpack.pack(np.zeros((3, 4), "<i4")))
    assert repr(f) == "<b2array.bloscpack.Reader memory shape=(3, 4) dtype=int32>"
    assert "3 bytes" in repr(bloscpack.open(bloscpack.pack(b"abc")))
    assert np.asarray(f, "f8").shape == (3, 4)
    assert f.get_chunk(0)[:1] == b"\x02"
    with pytest.raises(IndexError):
        f.get_chunk(1)


@pytest.mark.costly
@pytest.mark.parametrize("known", [True, False])
def test_a_reader_pickles_and_reads_in_another_process(tmp_path: Path, known: bool) -> None:
    path, x = tmp_path / "x.blp", np.arange(600).reshape(60, 10)
    bloscpack.pack(x, path, chunk_size=800, offsets=known)
    head = FileHeader(chunk_size=80 if known else -1, last_chunk=80, nchunks=2).pack()
    other = bloscpack.open(head + b"".join([chunk1(bytes(80)) + digest(0, b"")] * 2))
    with bloscpack.open(path) as f, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        f[:3]
        same(pool.submit(bloscpack.Reader.read, f).result(60), x)
        assert pool.submit(bloscpack.Reader.read, other).result(60) == bytes(160)
        same(pool.submit(bloscpack.Reader.__getitem__, f, np.s_[5:50:7]).result(60), x[5:50:7])
        packed = pickle.dumps(f)
        assert len(packed) < 4000
        bloscpack.pack(x[::-1].copy(), path, chunk_size=800, overwrite=True)
        with pytest.raises(ConflictError, match="changed since it was opened"):
            pickle.loads(packed).read()
    fresh = pickle.loads(pickle.dumps(bloscpack.open(path, storage_options={})))
    same(fresh[2:4], x[::-1][2:4])


def test_a_reader_by_url_pickles_with_its_options(http: Any) -> None:
    http.objects["x.blp"] = bloscpack.pack(b"a" * 1000)
    f = bloscpack.open(f"{http.url}/x.blp", storage_options={"headers": {"x-key": "1"}})
    assert pickle.loads(pickle.dumps(f)).read() == b"a" * 1000
    assert copy.deepcopy(f)[1:3] == b"aa"


@pytest.mark.parametrize(("start", "stop"), [(-2, 2), (-2, -1), (3, 2), (0, 101), (101, 102), (-2, 200)])
@pytest.mark.parametrize("offsets", [True, False])
def test_bytes_that_no_file_has_are_a_slip(start: int, stop: int, offsets: bool) -> None:
    f = bloscpack.open(bloscpack.pack(bytes(range(100)), chunk_size=10, offsets=offsets))
    with pytest.raises(ValueError, match=f"<= 100 bytes, got {start} and {stop}"):
        f.read_bytes(start, stop)
    assert f.read_bytes(9, 11).tolist() == [9, 10]
    assert f.read_bytes(100, 100).tolist() == []


def test_sizes_are_whole_numbers() -> None:
    for wrong in ({"chunk_size": 1e6}, {"chunk_size": "8"}, {"max_app_chunks": 2.0}):
        with pytest.raises(TypeError, match="integer"):
            bloscpack.pack(bytes(100), **wrong)
    with pytest.raises(TypeError, match="integer"):
        bloscpack.create(None, (2.5, 3), "i4")


def test_what_is_no_bloscpack_file_is_named(tmp_path):
    path = tmp_path / "other.blp"
    for content in (b"b2frame\0" * 10, b""):
        path.write_bytes(content)
        for verb in (bloscpack.open, bloscpack.unpack, lambda url: bloscpack.append(url, b"more")):
            with pytest.raises(FormatError) as caught:
                verb(path)
            assert str(caught.value).startswith(f"{path}: expected ")


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_written_part_by_part_in_the_order_of_the_file(order: str) -> None:
    x = np.arange(24, dtype="<i4").reshape(4, 6)
    with bloscpack.create(None, x.shape, x.dtype, order=order, chunk_size=16) as file:
        for start in (0, 2):
            file.write(x[start : start + 2] if order == "C" else x[:, 3 * (start // 2) : 3 * (start // 2) + 3])
    assert file.packed is not None
    np.testing.assert_array_equal(bloscpack.unpack(file.packed), x)
