"""`repair` saves what is intact."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import blosc2
import fsspec
import numpy as np
import pytest
from damage import LAYOUTS, flip, index_file, kinds, noise, place, record_at, write, write_stock
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array import open_group
from b2array.errors import (
    B2ArrayError,
    ChunkLostError,
    ChunkMissingError,
    FormatError,
)
from b2array.format.fingerprint import MARK_AT
from b2array.format.frame_header import unpack_header
from b2array.frame.source import FRAME_NAME
from b2array.store.base import Store
from b2array.store.open import open_store
from b2array.tools import repair as repairing

pytestmark = pytest.mark.usefixtures("_no_cache")


def test_what_is_in_order_is_not_touched(path, layout):
    write(path, noise(), layout)
    before = index_file(path).read_bytes()
    result = b2array.repair(path)
    assert (result.changed, result.lost, result.backup) == (False, (), None)
    assert index_file(path).read_bytes() == before
    assert "nothing to repair" in str(result)


def test_the_place_of_the_old_frame_shows_no_password(tmp_path, monkeypatch):
    url = f"memory://user:word@{tmp_path.name}/x.b2nd"
    write(tmp_path / "x.b2nd", noise(), "contiguous")
    broken = bytearray((tmp_path / "x.b2nd").read_bytes())
    broken[len(broken) // 2] ^= 1
    for _ in range(2):
        fsspec.filesystem("memory").pipe_file(url, bytes(broken))
        result = b2array.repair(url)
        assert result.backup.startswith(f"memory://{tmp_path.name}/x.b2nd.")
        assert "word" not in str(result)
    monkeypatch.setattr(repairing, "range", lambda _: range(2), raising=False)
    fsspec.filesystem("memory").pipe_file(url, bytes(broken))
    with pytest.raises(FileExistsError, match="more backups exist") as caught:
        b2array.repair(url)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("end", ["zeros", "trailer"])
def test_a_cut_frame_in_a_large_sparse_file_is_repaired_in_little_memory(path, end):
    write(path, noise(), "contiguous")
    whole = path.read_bytes()
    os.truncate(path, len(whole) // 2)
    os.truncate(path, 2**26)
    if end == "trailer":
        trailer = whole[-int.from_bytes(whole[-22:-18], "big") :]
        with path.open("r+b") as file:
            file.seek(-len(trailer), os.SEEK_END)
            file.write(trailer)
    tracemalloc.start()
    result = b2array.repair(path, dry_run=True, trust_order=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0 < len(result.lost) < result.nchunks
    assert most < 2**25


@pytest.mark.parametrize("what", ["text", "empty file", "empty directory", "nothing", "directory with text"])
def test_no_lock_file_is_left_beside_what_is_no_frame(tmp_path, what):
    path = tmp_path / "x"
    if "directory" in what:
        path.mkdir()
    if what not in ("nothing", "empty directory"):
        (path / FRAME_NAME if path.is_dir() else path).write_bytes(b"hello" * ("text" in what))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((FormatError, FileNotFoundError)):
        b2array.repair(path)
    assert sorted(tmp_path.rglob("*")) == before


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


def test_the_index_of_a_sparse_frame_is_no_frame_of_its_own(path):
    write(path, noise(), "sparse")
    with pytest.raises(FormatError, match="expected the frame of a file, found a sparse one"):
        b2array.repair(index_file(path))


def without_index(path):
    raw = bytearray(path.read_bytes())
    start = unpack_header(raw).tail_start
    raw[start : start + 20] = bytes(20)
    path.write_bytes(raw)


def test_chunks_whose_filter_needs_the_shape_of_blocks_are_saved(path):
    filters = {"filters": [blosc2.Filter.NDMEAN, blosc2.Filter.SHUFFLE], "filters_meta": [4, 0]}
    data = np.repeat(np.arange(40.0, dtype="f4"), 16).reshape(40, 16)
    blosc2.asarray(data, chunks=(8, 16), blocks=(4, 8), urlpath=str(path), cparams=filters)
    expected = b2array.open(path)[...]
    without_index(path)
    assert b2array.repair(path).lost == ()
    np.testing.assert_array_equal(b2array.open(path)[...], expected)


def test_no_more_is_read_behind_a_chunk_than_its_record_of_checksums_can_have(tmp_path):
    path = tmp_path / "s.b2frame"
    cparams = {"typesize": 4, "blocksize": 2**22, "codec": blosc2.Codec.ZSTD}
    schunk = blosc2.SChunk(chunksize=2**22, urlpath=str(path), mode="w", cparams=cparams)
    for n in range(3):
        schunk.append_data(np.arange(2**20, dtype="u4") + n)
    del schunk
    without_index(path)
    os.truncate(path, 2**26)
    tracemalloc.start()
    result = b2array.repair(path, dry_run=True, trust_order=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (result.nchunks, result.lost) == (3, ())
    assert most < 2**25  # half of the file; threads of earlier tests may allocate meanwhile


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
    with pytest.raises(FormatError, match="expected a Blosc2 frame, found"):
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


@pytest.mark.costly
@example(at=30, by=1)
@example(at=31, by=8)
@example(at=66, by=128)
@given(at=st.integers(0, 10**6), by=st.integers(1, 255))
@settings(max_examples=examples(60), deadline=None)
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
    in_tail = described.tail_start <= at < files[which].stat().st_size - 17
    # A negative mark is damage, and hides whether other software had written a header before.
    in_mark = at == MARK_AT.start and by >= 0x80
    if files[which] == index_file(path) and (in_tail or in_mark):
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


def test_repairing_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.b2nd"):
        b2array.repair(tmp_path / "missing.b2nd")
    assert not list(tmp_path.iterdir())


def _flip_near_end(store: Store, names: list[str]) -> None:
    for name in names:
        content = bytearray(b"".join(store.pieces(name)))
        content[-40] ^= 16
        store.delete([name])
        store.create(name, bytes(content))


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize("damaged", [("listed",), ("published",), ("listed", "published")])
def test_a_member_in_an_object_store_is_read_and_repaired_from_the_intact_index(
    damaged: tuple[str, ...], layout: str, tmp_path: Path
) -> None:
    url = f"memory://{tmp_path.name}.b2d"
    group = open_group(url, "w")
    group.create("v", data=np.arange(50), chunks=(5,), layout=layout)
    group["v"][:5] = 7
    expected = group["v"][...].tolist()
    store = open_store(url)
    published = "v.b2nd" if layout == "contiguous" else "v.b2nd/chunks.b2frame"
    listed = [name for name in store.walk() if name.startswith((".b2data/", "v.b2nd/chunks.b2frame."))]
    _flip_near_end(store, [*(listed if "listed" in damaged else ()), *([published] if "published" in damaged else ())])
    assert not b2array.verify(url).ok
    if len(damaged) == 1:
        assert open_group(url)["v"][...].tolist() == expected
        assert b2array.open(f"{url}/v.b2nd")[...].tolist() == expected
    assert b2array.repair(url, trust_order=len(damaged) == 2).ok
    assert b2array.verify(url).ok
    assert open_group(url)["v"][...].tolist() == expected
    group = open_group(url, "r+")
    group["v"][0] = 8
    assert b2array.open(f"{url}/v.b2nd")[:2].tolist() == [8, 7]
