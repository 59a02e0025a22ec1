"""`verify` finds all damage, and nothing else."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc

import blosc2
import fsspec
import numpy as np
import pytest
from damage import LAYOUTS, flip, index_file, kinds, noise, place, record_at, write, write_stock
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array.format import checksums
from b2array.frame.source import FRAME_NAME

pytestmark = pytest.mark.usefixtures("_no_cache")


@pytest.mark.parametrize("deep", [False, True])
def test_a_frame_of_ours_is_in_order(path, layout, deep):
    data = noise()
    data[8:16] = 0
    data[16:24] = 2.5
    a = write(path, data, layout)
    a[0] = 1
    report = b2array.verify(path, deep=deep)
    assert report.ok
    assert str(report).startswith(f"{path}: in order")
    assert (report.nchunks, report.special, report.checked, report.unchecked, report.stale) == (5, 1, 4, 0, 0)
    assert report.layout == layout
    assert report.generation == a.generation
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True


@pytest.mark.parametrize("deep", [False, True])
def test_a_frame_of_the_c_library_is_in_order(path, layout, deep):
    data = noise()
    data[8:16] = 0
    write_stock(path, data, layout)
    report = b2array.verify(path, deep=deep)
    assert report.ok
    assert (report.nchunks, report.special, report.checked, report.unchecked) == (5, 1, 0, 4)
    assert report.dead_nbytes == 0


OPS = st.lists(st.tuples(st.sampled_from(["stock", "ours"]), st.integers(0, 4), st.integers(0, 3)), max_size=7)


@pytest.mark.costly
@given(steps=OPS)
@settings(max_examples=examples(25), deadline=None)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_whatever_both_libraries_write_in_turn_is_in_order(tmp_path_factory, layout, steps):
    path = tmp_path_factory.mktemp("histories") / "a.b2nd"
    data = noise()
    write(path, data, layout)
    for who, n, what in steps:
        rows = (noise(8), np.zeros((8, 16)), np.full((8, 16), 3.5), np.arange(128.0).reshape(8, 16))[what]
        data[8 * n : 8 * n + 8] = rows
        if who == "stock":
            s = blosc2.open(str(path), mode="a")
            s[8 * n : 8 * n + 8] = rows
            del s
        else:
            b2array.open(path, mode="r+")[8 * n : 8 * n + 8] = rows
        for deep in (False, True):
            report = b2array.verify(path, deep=deep)
            assert report.problems == ()
            assert report.special + report.checked + report.unchecked + report.stale == 5
    np.testing.assert_array_equal(b2array.open(path)[...], data)


@pytest.mark.parametrize("where", ["block", "head", "record"])
def test_a_flipped_byte_is_found_where_it_is(path, layout, where):
    write(path, noise(), layout)
    file, at = record_at(path, 2)
    flip(file, {"block": at - 3, "head": place(path, 2)[1] + 24, "record": at + 14}[where])
    report = b2array.verify(path, deep=True)
    assert kinds(report) == {("checksum", 2)}
    assert not report.ok
    assert report.checked == 4
    assert report.problems[0].file == (file.name if layout == "sparse" else "")
    assert "chunk 2 of" in str(report)
    assert b2array.verify(path).ok == (where == "block")


@pytest.mark.parametrize("at", [5, 25, 0x31, 0x60, -60, -30, -10])
def test_damaged_metadata_are_found(path, layout, at):
    write(path, noise(), layout)
    file = index_file(path)
    flip(file, at % file.stat().st_size)
    try:
        report = b2array.verify(path, deep=True)
    except FileNotFoundError:
        pytest.fail("the frame is there")
    assert kinds(report) == {("frame", None)}


def test_a_byte_of_a_frame_without_checksums_is_found_if_the_codec_finds_it(path, layout):
    write_stock(path, np.arange(640.0).reshape(40, 16), layout)
    file, at = place(path, 1, 0)
    flip(file, at + 33, by=0x7F)  # where the first block is
    assert kinds(b2array.verify(path, deep=True)) == {("chunk", 1)}


@pytest.mark.parametrize("what", ["attribute", "shape"])
def test_metadata_that_cannot_be_read_are_found_without_a_fingerprint(path, layout, what):
    write_stock(path, noise(), layout)
    file = index_file(path)
    raw = file.read_bytes()
    described = b2array.open_schunk(path).frame
    if what == "attribute":
        content = dict(described.vlmetalayers)["unit"]
        broken = content[:12] + b"\xff\xff\xff\x7f" + content[16:]
    else:
        content = dict(described.metalayers)["b2nd"]
        broken = content.replace(struct.pack(">q", 40), struct.pack(">q", 400))
    assert raw.count(content) == 1
    file.write_bytes(raw.replace(content, broken))
    report = b2array.verify(path)
    assert kinds(report) == {("metadata", None)}
    assert report.problems[0].file == (file.name if layout == "sparse" else "")
    assert str(path) in report.problems[0].text


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.99])
def test_a_truncated_file_is_found(path, share):
    write(path, noise(), "contiguous")
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share)])
    assert kinds(b2array.verify(path, deep=True)) == {("frame", None)}


@pytest.mark.parametrize("nbytes", [0, 10, 300, 1100])
@pytest.mark.parametrize("writer", [write, write_stock])
def test_a_truncated_chunk_is_found(path, nbytes, writer):
    writer(path, noise(), "sparse")
    file, _ = place(path, 3)
    file.write_bytes(file.read_bytes()[:nbytes])
    for deep in (False, True):
        if writer is write or nbytes < 1000:
            assert [(problem.chunk, problem.file) for problem in b2array.verify(path, deep=deep).problems] == [
                (3, file.name)
            ]


def test_missing_orphaned_and_leftover_files_are_found(path):
    write(path, noise(), "sparse")
    gone, _ = place(path, 1)
    gone.unlink()
    (path / "000000FF.chunk").write_bytes(b"x" * 77)
    (path / "chunks.b2frame.0123.b2tmp").write_bytes(b"y")
    (path / "notes.txt").write_text("of somebody else")
    report = b2array.verify(path)
    assert kinds(report) == {("missing", 1)}
    assert report.orphans == ("000000FF.chunk",)
    assert report.leftovers == ("chunks.b2frame.0123.b2tmp",)
    assert report.dead_nbytes == 77
    assert "1 orphaned chunk file: 000000FF.chunk" in str(report)


def test_an_index_that_is_gone_is_a_problem_and_nothing_at_all_an_error(path):
    write(path, noise(), "sparse")
    (path / FRAME_NAME).unlink()
    assert kinds(b2array.verify(path)) == {("frame", None)}
    for file in path.iterdir():
        file.unlink()
    with pytest.raises(FileNotFoundError):
        b2array.verify(path)
    with pytest.raises(FileNotFoundError):
        b2array.verify(path / "nothing")


def test_exchanged_files_are_found(path):
    write(path, noise(), "sparse")
    one, two = place(path, 1)[0], place(path, 2)[0]
    other = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(other)
    assert kinds(b2array.verify(path)) == {("checksum", 1), ("checksum", 2)}


def test_chunks_that_overlap_are_found(path):
    write_stock(path, noise(), "contiguous")
    held = b2array.open_schunk(path)
    file, at = place(path, 0)
    raw = bytearray(file.read_bytes())
    raw[at + 12 : at + 16] = struct.pack(
        "<i", 2 * held._handle.source.known_sizes(0)[0] if held._handle.source.known_sizes(0) is not None else 2000
    )
    file.write_bytes(raw)
    assert {problem.chunk for problem in b2array.verify(path).problems} == {0}


def test_dead_space_is_counted_and_freed(path):
    data = noise()
    a = write(path, data, "contiguous")
    a[:8] = data[:8] = noise(8)
    dead = b2array.verify(path, deep=True).dead_nbytes
    assert dead > 1000
    before = path.stat().st_size
    dry = b2array.repack(path, dry_run=True)
    assert (dry.nbytes, path.stat().st_size) == (dead, before)
    done = b2array.repack(path)
    assert done.nbytes == before - path.stat().st_size > 1000
    assert b2array.verify(path, deep=True).dead_nbytes == 0
    np.testing.assert_array_equal(b2array.open(path)[...], data)
    assert "freed" in str(done)


def test_other_stores_are_verified_too(tmp_path):
    data = noise()
    b2array.asarray(data, url="memory://verify-me/a.b2nd", chunks=(8, 16), blocks=(2, 8))
    fs = fsspec.filesystem("memory")
    assert b2array.verify("memory://verify-me/a.b2nd/", deep=True).checked == 5
    name = next(name for name in fs.ls("/verify-me/a.b2nd", detail=False) if name.endswith("chunk"))
    fs.rm(name)
    assert [problem.kind for problem in b2array.verify("memory://verify-me/a.b2nd/").problems] == ["missing"]
    repaired = b2array.repair("memory://verify-me/a.b2nd/")
    assert len(repaired.lost) == 1
    assert b2array.verify("memory://verify-me/a.b2nd/").lost == repaired.lost
    shutil.rmtree(tmp_path)


def test_records_of_chunks_in_files_continue_from_their_numbers(path):
    write(path, noise(), "sparse")
    file, at = record_at(path, 1)
    raw = file.read_bytes()[at:]
    number = int(file.name[:8], 16)
    assert checksums.unpack_record(raw, number=number) is not None
    assert checksums.unpack_record(raw, number=number + 1) is None


def test_memory_grows_little_with_the_number_of_chunks(tmp_path):
    peaks = []
    for n in (300, 900):
        url = tmp_path / f"{n}.b2nd"
        b2array.asarray(np.arange(1, n + 1, dtype="i4"), chunks=(1,), url=url).close()
        b2array.verify(url)
        traced = []
        for _ in range(3):  # threads of other tests may allocate meanwhile
            tracemalloc.start()
            try:
                assert b2array.verify(url).checked == n
                traced.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
        peaks.append(min(traced))
    assert (peaks[1] - peaks[0]) / 600 < 200


def test_in_an_object_store_chunks_that_only_a_snapshot_needs_are_no_orphans() -> None:
    group = b2array.open_group("memory://needed.b2d", "w")
    group.create("x", data=np.arange(8), chunks=(4,), layout="sparse")
    group.snapshot("first")
    group["x"][:4] = 7
    group["x"][:] = 9
    assert b2array.verify(group.url)["x"].orphans == ("00000002.chunk",)  # no state has the sevens any more
    group.drop_snapshot("first")
    assert b2array.verify(group.url)["x"].orphans == ("00000000.chunk", "00000001.chunk", "00000002.chunk")
    b2array.vacuum(group.url, grace=0)
    assert b2array.verify(group.url)["x"].orphans == ()
