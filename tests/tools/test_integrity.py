"""`verify` finds all damage and nothing else; `repair` saves what is intact; `vacuum` takes only leftovers."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from pathlib import Path

import blosc2
import fsspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import b2array
from b2array import config
from b2array.codec import chunk
from b2array.engine import staging
from b2array.engine.source import FRAME_NAME
from b2array.errors import (
    B2ArrayError,
    ChunkLostError,
    ChunkMissingError,
    ConflictError,
    FormatError,
    ReadOnlyError,
    UnsupportedError,
)
from b2array.format import checksums, index
from b2array.format.header import unpack_header

LAYOUTS = ("contiguous", "sparse")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch):
    monkeypatch.setattr(config, "cache_bytes", 0)


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.b2nd"


def noise(rows=40):
    return RNG.random((rows, 16))


def write(path, data, layout, **options):
    options = {"chunks": (8, 16), "blocks": (2, 8), "attrs": {"unit": "K"}, **options}
    return b2array.asarray(data, url=path, layout=layout, **options)


def write_stock(path, data, layout, mode="w"):
    options = {"chunks": (8, 16), "blocks": (2, 8), "urlpath": str(path), "contiguous": layout == "contiguous"}
    s = blosc2.asarray(data, **options, mode=mode)
    s.schunk.vlmeta["unit"] = "K"


def place(path, n, where=0):
    found = b2array.open_schunk(path)._handle.source.place(n)
    return (path / found.name if found.name else path), found.start + where


def index_file(path):
    return path / FRAME_NAME if path.is_dir() else path


def flip(file, at, by=0x10):
    raw = bytearray(file.read_bytes())
    raw[at] ^= by
    file.write_bytes(raw)


def kinds(report):
    return {(problem.kind, problem.chunk) for problem in report.problems}


def record_at(path, n):
    file, start = place(path, n)
    return file, start + chunk.unpack_head(file.read_bytes()[start:]).header.cbytes


# ---- verify ----


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


@given(steps=OPS)
@settings(max_examples=25, deadline=None)
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
    assert "1 orphaned chunk files: 000000FF.chunk" in str(report)


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


# ---- repair ----


def test_what_is_in_order_is_not_touched(path, layout):
    write(path, noise(), layout)
    before = index_file(path).read_bytes()
    result = b2array.repair(path)
    assert (result.changed, result.lost, result.backup) == (False, (), None)
    assert index_file(path).read_bytes() == before
    assert "nothing to repair" in str(result)


def test_lost_chunks_are_errors_until_they_are_written_again(path, layout):
    data = noise()
    write(path, data, layout)
    file, at = record_at(path, 2)
    flip(file, at - 3)
    before = file.read_bytes()
    dry = b2array.repair(path, dry_run=True)
    assert (dry.lost, dry.changed, dry.backup) == ((2,), True, None)
    assert file.read_bytes() == before
    result = b2array.repair(path)
    assert result.lost == (2,)
    assert Path(result.backup).exists()
    a = b2array.open(path, mode="r+")
    assert a.attrs["unit"] == "K"
    for key in (np.s_[...], np.s_[17, 3], np.s_[16:24]):
        with pytest.raises(ChunkMissingError, match=r"chunk 2 of .* is lost"):
            a[key]
    with pytest.raises(ChunkMissingError, match="chunk 2"):
        a[16, 0] = 1
    np.testing.assert_array_equal(a[:16], data[:16])
    report = b2array.verify(path, deep=True)
    assert kinds(report) == {("lost", 2)}
    assert report.lost == (2,)
    s = blosc2.open(str(path))
    np.testing.assert_array_equal(s[:16], data[:16])
    np.testing.assert_array_equal(s[24:], data[24:])
    with pytest.raises(RuntimeError):
        s[16:24]
    del s
    assert not b2array.repair(path).changed
    a[16:24] = data[16:24]
    assert b2array.verify(path, deep=True).ok
    np.testing.assert_array_equal(b2array.open(path)[...], data)
    np.testing.assert_array_equal(blosc2.open(str(path))[...], data)


def test_lost_chunks_stay_lost_when_others_change(path, layout):
    data = noise()
    write(path, data, layout)
    file, at = record_at(path, 1)
    flip(file, at - 3)
    b2array.repair(path, backup=False)
    a = b2array.open(path, mode="r+")
    a[:8] = data[:8] = 1
    a.attrs["more"] = 1
    b2array.repack(path)
    with pytest.raises(ChunkMissingError, match=r"chunk 1 .*lost"):
        b2array.open(path)[8]
    held = b2array.open_schunk(path, "r+")
    held.reorder([4, 3, 2, 1, 0])
    with pytest.raises(ChunkMissingError, match=r"chunk 3 .*lost"):
        held.decompress_chunk(3)
    held.delete_chunk(0)
    assert b2array.verify(path, deep=True).lost == (2,)
    assert b2array.open_schunk(path).decompress_chunk(3) == data[:8].tobytes()


def test_two_writers_may_write_two_lost_chunks(path):
    data = noise()
    write(path, data, "sparse")
    for n in (1, 3):
        place(path, n)[0].unlink()
    assert b2array.repair(path).lost == (1, 3)
    one, two = b2array.open(path, mode="r+"), b2array.open(path, mode="r+")
    one[8:16] = data[8:16]
    two[24:32] = data[24:32]
    assert b2array.verify(path, deep=True).ok
    np.testing.assert_array_equal(b2array.open(path)[...], data)


def test_a_missing_file_is_a_lost_chunk(path):
    data = noise()
    write(path, data, "sparse")
    place(path, 4)[0].unlink()
    result = b2array.repair(path)
    assert result.lost == (4,)
    np.testing.assert_array_equal(b2array.open(path)[:32], data[:32])
    assert b2array.verify(path, deep=True).checked == 4


@pytest.mark.parametrize("damage", ["trailer", "frame_len", "fingerprint", "cut", "longer"])
def test_damaged_metadata_around_good_chunks_are_put_together(path, layout, damage):
    data = noise()
    data[8:16] = 0
    write(path, data, layout)
    file = index_file(path)
    raw = bytearray(file.read_bytes())
    if damage == "trailer":
        raw[-23:] = bytes(23)
    elif damage == "frame_len":
        raw[0x10:0x18] = struct.pack(">Q", len(raw) - 7)
    elif damage == "fingerprint":
        raw[-1] ^= 1
    elif damage == "cut":
        del raw[-30:]
    elif damage == "longer":
        raw[0x10:0x18] = struct.pack(">Q", len(raw) + 700)
    file.write_bytes(raw)
    with pytest.raises(FormatError):
        b2array.open(path)
    unproven = damage in ("trailer", "cut")  # the fingerprint is gone
    if unproven:
        with pytest.raises(FormatError, match=r"nothing proves .*trust_order=True"):
            b2array.repair(path)
    result = b2array.repair(path, trust_order=unproven)
    assert result.changed
    assert result.certain
    assert result.lost == ()
    a = b2array.open(path)
    np.testing.assert_array_equal(a[...], data)
    np.testing.assert_array_equal(blosc2.open(str(path))[...], data)
    assert b2array.verify(path, deep=True).ok
    assert ("unit" in a.attrs) == (damage not in ("trailer", "cut"))
    kept = index_file(path).with_name(f"{index_file(path).name}.b2bak")
    assert kept.read_bytes() == bytes(raw)


def killed_append(path, step, how_many=5):
    """Compose what a file is after the C library was killed at one step of appending its last chunk."""
    chunks = [noise(8) for _ in range(how_many)]
    schunk = blosc2.SChunk(chunksize=1024, urlpath=str(path), mode="w", cparams={"typesize": 8})
    for each in chunks[:-1]:
        schunk.append_data(each)
    old = path.read_bytes()
    before = unpack_header(old)
    schunk.append_data(chunks[-1])
    new = path.read_bytes()
    after = unpack_header(new)
    del schunk
    index_start = after.tail_start
    index_end = index_start + int.from_bytes(new[index_start + 12 : index_start + 16], "little")
    ends = {"half a chunk": (before.tail_start + index_start) // 2, "chunk": index_start, "index": index_end}
    end = ends.get(step, index_end)
    raw = bytearray(old)
    raw[before.tail_start : end] = new[before.tail_start : end]
    if step == "header":
        raw[0x1D:0x2F] = new[0x1D:0x2F]
    path.write_bytes(raw)
    return chunks


@pytest.mark.parametrize("step", ["half a chunk", "chunk", "index", "header"])
def test_a_file_is_saved_whose_writer_was_killed_while_appending(tmp_path, step):
    path = tmp_path / "s.b2frame"
    chunks = killed_append(path, step)
    with pytest.raises(B2ArrayError):
        [b2array.open_schunk(path).decompress_chunk(n) for n in range(4)]
    result = b2array.repair(path)
    assert result.lost == ()
    expected = chunks if step == "header" else chunks[:-1]
    held = b2array.open_schunk(path)
    assert [held.decompress_chunk(n) for n in range(held.nchunks)] == [each.tobytes() for each in expected]
    stock = blosc2.open(str(path))
    assert [stock.decompress_chunk(n) for n in range(stock.nchunks)] == [each.tobytes() for each in expected]
    assert b2array.verify(path, deep=True).ok


def test_an_array_whose_index_is_gone_is_saved_in_the_order_of_its_chunks(path):
    data = noise()
    write_stock(path, data, "contiguous")
    header = unpack_header(path.read_bytes())
    raw = bytearray(path.read_bytes())
    raw[header.tail_start : header.tail_start + 20] = bytes(20)
    path.write_bytes(raw)
    result = b2array.repair(path)
    assert not result.certain
    assert any("no index" in action for action in result.actions)
    np.testing.assert_array_equal(b2array.open(path)[...], data)
    np.testing.assert_array_equal(blosc2.open(str(path))[...], data)
    assert b2array.open(path).attrs["unit"] == "K"


def test_chunks_are_not_guessed_without_leave(path):
    data = noise()
    write_stock(path, data, "contiguous")
    header = unpack_header(path.read_bytes())
    offsets = sorted(b2array.open_schunk(path).frame.offsets.tolist())
    raw = path.read_bytes()[: header.header_len + offsets[3] + 40]  # within the fourth chunk
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="trust_order=True"):
        b2array.repair(path)
    assert path.read_bytes() == raw
    result = b2array.repair(path, trust_order=True)
    assert result.lost == (3, 4)
    np.testing.assert_array_equal(b2array.open(path)[:24], data[:24])
    with pytest.raises(ChunkMissingError, match="chunk 4"):
        b2array.open(path)[32]


def test_a_sparse_index_that_was_cut_off_is_made_from_the_files(path):
    data = noise()
    write_stock(path, data, "sparse")
    file = path / FRAME_NAME
    header = unpack_header(file.read_bytes())
    file.write_bytes(file.read_bytes()[: header.header_len + 10])
    result = b2array.repair(path)
    assert not result.certain
    np.testing.assert_array_equal(b2array.open(path)[...], data)
    np.testing.assert_array_equal(blosc2.open(str(path))[...], data)
    assert (path / f"{FRAME_NAME}.b2bak").stat().st_size == header.header_len + 10


def test_damage_that_nothing_can_be_made_of_is_one_clear_error(path, layout):
    write(path, noise(), layout)
    file = index_file(path)
    raw = file.read_bytes()
    file.write_bytes(b"\0" * 40 + raw[40:-200] + bytes(200))
    with pytest.raises(FormatError, match="magic"):
        b2array.repair(path)
    with pytest.raises(FileNotFoundError):
        b2array.repair(path.parent / "nothing.b2nd")


@pytest.mark.parametrize("length", [0, 1, 14, 15, 22, 24, 90, 120])
def test_a_header_that_was_cut_off_is_one_clear_error(path, layout, length):
    write(path, noise(), layout)
    file = index_file(path)
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(FormatError, match="expected"):
        b2array.repair(path)
    assert file.stat().st_size == length


def all_of(path):
    a = b2array.open(path)
    return a.shape, a.dtype, a.chunks, a.blocks, dict(a.attrs), dict(a.meta), a.dims, a.fill_value


@pytest.mark.parametrize("damage", [bytes(150), bytes(40), b"\xff\0" * 40], ids=["all", "start", "noise"])
def test_a_header_that_is_gone_is_taken_from_the_trailer(path, layout, damage):
    data = noise()
    write(path, data, layout, dims=("y", "x"), fill_value=2.5)
    expected, file = all_of(path), index_file(path)
    raw = file.read_bytes()
    file.write_bytes(damage + raw[len(damage) :])
    with pytest.raises(FormatError):
        b2array.open(path)
    surely = not any(damage)  # else other software may have changed the shape
    if not surely:
        with pytest.raises(FormatError, match="trust_order=True"):
            b2array.repair(path)
    result = b2array.repair(path, trust_order=not surely)
    assert (result.lost, result.certain) == ((), surely)
    assert "took the header that is noted in the trailer" in str(result)
    assert all_of(path) == expected
    np.testing.assert_array_equal(b2array.open(path)[...], data)
    np.testing.assert_array_equal(blosc2.open(str(path))[...], data)
    assert b2array.verify(path, deep=True).ok


def test_an_index_that_nothing_proves_is_not_believed_without_leave(path, layout):
    data = noise()
    write(path, data, layout)
    file, described = index_file(path), b2array.open_schunk(path).frame
    raw = bytearray(file.read_bytes())
    start = described.tail_start + 32
    one, two = slice(start, start + 8), slice(start + 8, start + 16)
    raw[one], raw[two] = raw[two], raw[one]  # two chunks are exchanged
    file.write_bytes(raw)
    with pytest.raises(FormatError, match="fingerprint"):
        b2array.open(path)
    with pytest.raises(FormatError, match=r"(fit the fingerprint|found no index).*trust_order=True"):
        b2array.repair(path)
    assert file.read_bytes() == raw
    result = b2array.repair(path, trust_order=True)
    assert not result.certain


@example(at=30, by=1)
@example(at=31, by=8)
@given(at=st.integers(0, 10**6), by=st.integers(1, 255))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_repairing_a_flipped_byte_loses_at_most_its_chunk_and_asks_about_index_and_trailer(
    tmp_path_factory, layout, at, by
):
    path = tmp_path_factory.mktemp("flipped") / "a.b2nd"
    data = noise()
    write(path, data, layout)
    expected = all_of(path)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if not file.name.endswith("lock")]
    sizes = np.cumsum([0, *(file.stat().st_size for file in files)])
    at %= int(sizes[-1])
    which = int(np.searchsorted(sizes, at, side="right")) - 1
    places = [place(path, n) for n in range(5)]
    at -= int(sizes[which])
    hit = {n for n, (file, start) in enumerate(places) if file == files[which] and start <= at}
    described = b2array.open_schunk(path).frame
    if files[which] == index_file(path) and at >= described.tail_start:
        hit = set()
    elif layout == "contiguous":
        hit = {max(hit, key=lambda n: places[n][1])} if hit else set()
    flip(files[which], at, by)
    if files[which] == index_file(path) and described.tail_start <= at < files[which].stat().st_size - 17:
        before = files[which].read_bytes()
        with pytest.raises(FormatError, match="trust_order=True"):
            b2array.repair(path)
        assert files[which].read_bytes() == before
        return
    result = b2array.repair(path)
    assert result.certain
    assert set(result.lost) <= hit
    assert all_of(path) == expected
    a = b2array.open(path)
    for n in range(5):
        if n in result.lost:
            with pytest.raises(ChunkLostError):
                a[8 * n]
        else:
            np.testing.assert_array_equal(a[8 * n : 8 * n + 8], data[8 * n : 8 * n + 8])


@pytest.mark.parametrize("wrong", [(-1,), (-16, -9), (-17,), (-17, -3)])
def test_a_damaged_fingerprint_is_told_from_damaged_contents(path, layout, wrong):
    write(path, noise(), layout)
    expected, file = all_of(path), index_file(path)
    for at in wrong:
        flip(file, at)
    result = b2array.repair(path)
    assert (result.certain, result.lost) == (True, ())
    assert "only the fingerprint itself is damaged" in str(result)
    assert all_of(path) == expected
    assert b2array.verify(path, deep=True).ok


def test_a_wrong_byte_of_the_index_costs_at_most_its_chunk_where_the_order_is_trusted(path, layout):
    data = noise()
    write(path, data, layout)
    flip(index_file(path), b2array.open_schunk(path).frame.tail_start + 34)  # in the offset of the first chunk
    with pytest.raises(FormatError, match="trust_order=True"):
        b2array.repair(path)
    assert set(b2array.repair(path, trust_order=True).lost) <= {0}
    a = b2array.open(path)
    np.testing.assert_array_equal(a[8:], data[8:])
    assert a.attrs["unit"] == "K"


# ---- vacuum ----


def test_only_old_files_of_nobody_are_removed(path):
    data = noise()
    a = write(path, data, "sparse")
    a[:8] = data[:8] = noise(8)
    superseded = (
        {file.name for file in path.iterdir()}
        - {index.chunk_name(n) for n in b2array.open_schunk(path).frame.offsets}
        - {FRAME_NAME, ".b2lock"}
    )
    assert len(superseded) == 1
    (path / "0000AAAA.chunk").write_bytes(b"x")
    (path / "x.b2tmp").write_bytes(b"y")
    (path / "notes.txt").write_text("z")
    assert b2array.vacuum(path).removed == ()
    expected = tuple(sorted({"0000AAAA.chunk", "x.b2tmp"} | superseded))
    assert b2array.vacuum(path, grace=0, dry_run=True).removed == expected
    assert (path / "x.b2tmp").exists()
    old = time.time() - 7200
    os.utime(path / "x.b2tmp", (old, old))
    assert b2array.vacuum(path, grace="1h").removed == ("x.b2tmp",)
    assert b2array.vacuum(path, grace="0 s").removed == tuple(n for n in expected if n != "x.b2tmp")
    assert (path / "notes.txt").exists()
    assert b2array.verify(path, deep=True).orphans == ()
    np.testing.assert_array_equal(b2array.open(path)[...], data)
    np.testing.assert_array_equal(blosc2.open(str(path))[...], data)


def test_leftovers_beside_a_file_are_removed(path):
    write(path, noise(), "contiguous")
    ours = path.with_name("a.b2nd.0123456789abcdef.b2tmp")
    other = path.with_name("b.b2nd.0123456789abcdef.b2tmp")
    ours.write_bytes(b"x")
    other.write_bytes(b"x")
    assert b2array.verify(path).leftovers == (ours.name,)
    assert b2array.vacuum(path, grace=0).removed == (ours.name,)
    assert other.exists()
    assert not ours.exists()


def test_an_older_state_that_was_vacuumed_is_a_conflict_and_never_other_data(path):
    data = noise()
    a = write(path, data, "sparse")
    reader = b2array.open(path)
    a[:8] = 1
    b2array.vacuum(path, grace=0)
    with pytest.raises(ConflictError, match="refresh"):
        reader[:8]
    np.testing.assert_array_equal(reader[8:], data[8:])
    reader.refresh()
    assert (reader[:8] == 1).all()


def test_a_slow_writer_notices_that_its_files_are_gone(path, monkeypatch):
    data = noise()
    a = write(path, data, "sparse")
    generation = a.generation
    monkeypatch.setattr(staging, "CHECKED_AFTER", 0.0)

    def interrupted():
        with a.transaction():
            a[:8] = 1
            assert b2array.vacuum(path, grace=0).removed

    with pytest.raises(ConflictError, match=r"somebody removed .*chunk before the commit"):
        interrupted()
    assert b2array.open(path).generation == generation
    np.testing.assert_array_equal(b2array.open(path)[...], data)
    with a.transaction():
        a[:8] = 1
    assert (b2array.open(path)[:8] == 1).all()


def test_numbers_of_removed_files_are_not_used_again(path):
    a = write(path, noise(), "sparse")
    a[:8] = 1
    highest = int(b2array.open_schunk(path).frame.offsets.max())
    a[:8] = 0  # takes no file
    b2array.vacuum(path, grace=0)
    a[:8] = 2
    assert int(b2array.open_schunk(path).frame.offsets.max()) > highest


@pytest.mark.parametrize(("grace", "seconds"), [("90 s", 90), ("2min", 120), ("1.5h", 5400), ("7d", 604800), (3, 3)])
def test_grace_is_a_duration(path, grace, seconds):
    write(path, noise(), "sparse")
    orphan = path / "0000AAAA.chunk"
    for age, removed in ((seconds - 2, ()), (seconds + 2, (orphan.name,))):
        orphan.write_bytes(b"x")
        os.utime(orphan, (time.time() - age,) * 2)
        assert b2array.vacuum(path, grace=grace, dry_run=True).removed == removed


@pytest.mark.parametrize("grace", ["soon", "-1h", -1, "5", "1 week"])
def test_what_is_no_duration_is_refused(path, grace):
    write(path, noise(), "sparse")
    with pytest.raises(ValueError, match="grace must"):
        b2array.vacuum(path, grace=grace)


def test_stores_that_cannot_be_written_or_listed_say_so(http, path):
    write(path, noise(), "contiguous")
    http.objects["a.b2nd"] = path.read_bytes()
    url = f"{http.url}/a.b2nd"
    assert b2array.verify(url, deep=True).ok
    with pytest.raises(ReadOnlyError):
        b2array.repair(url)
    with pytest.raises(ReadOnlyError):
        b2array.vacuum(url)
    with pytest.raises(UnsupportedError, match="listed"):
        b2array.vacuum(url, dry_run=True)
    with pytest.raises(ReadOnlyError):
        b2array.repack(url)


def test_results_are_json(path):
    write(path, noise(), "sparse")
    place(path, 0)[0].unlink()
    for result in (b2array.verify(path), b2array.repair(path), b2array.vacuum(path), b2array.repack(path)):
        assert json.loads(json.dumps(result.to_dict()))["url"] == str(path)
        assert str(path) in str(result)


def test_records_of_chunks_in_files_continue_from_their_numbers(path):
    write(path, noise(), "sparse")
    file, at = record_at(path, 1)
    raw = file.read_bytes()[at:]
    number = int(file.name[:8], 16)
    assert checksums.unpack_record(raw, number=number) is not None
    assert checksums.unpack_record(raw, number=number + 1) is None
