"""New chunks are kept where no index refers to them, and are found by their codes."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from b2array.codec import chunk, decode, encode
from b2array.codec.chunk_header import NAN_BYTES, Special
from b2array.commit.staging import Staging
from b2array.errors import ConflictError, FormatError
from b2array.format import checksums, index
from b2array.store.memory import MemoryStore
from b2array.store.spool import Spool


def packed(seed, nbytes=400):
    return encode.encode(np.random.default_rng(seed).bytes(nbytes), typesize=4, blocksize=80)


def in_files(objects=None, first=0):
    store = MemoryStore(objects)
    return store, Staging(store, None, first)


def spooled(**options):
    return Staging(MemoryStore(), Spool(**options), 0)


def test_a_chunk_gets_a_separate_file_that_ends_with_its_checksums():
    store, shelf = in_files(first=7)
    made = [shelf.put(0, packed(n), 5) for n in range(2)]
    assert [each.code for each in made] == [7, 8]
    stored = bytes(store._objects["00000007.chunk"].data)
    assert stored.startswith(packed(0))
    assert stored[len(packed(0)) :] == checksums.pack_record(packed(0), number=7)
    assert made[0].sizes[0] == len(packed(0))
    assert made[0].record == checksums.record_crc(checksums.pack_record(packed(0), number=7))
    assert shelf.next == 9


def test_files_that_exist_are_never_overwritten():
    store, shelf = in_files({"00000000.chunk": b"theirs", "00000001.chunk": b"theirs"})
    assert shelf.put(0, packed(0), 5).code == 2
    assert bytes(store._objects["00000000.chunk"].data) == b"theirs"


def test_spooled_chunks_are_read_back():
    shelf = spooled()
    codes = [shelf.put(0, packed(n), 5).code for n in range(3)]
    assert all(code < 0 for code in codes)
    assert [bytes(shelf.read(*shelf.extent(code))) for code in codes] == [packed(n) for n in range(3)]


@pytest.mark.parametrize("code", [0, 5, *index.SPECIAL_OFFSETS.values()])
def test_other_codes_have_no_extent(code):
    assert spooled().extent(code) is None


@pytest.mark.parametrize("limit", [0, 2**20])
def test_ranges_of_the_spool_are_the_chunks_with_their_records(limit):
    shelf = spooled(limit=limit)
    codes = [shelf.put(0, packed(n), 5).code for n in range(4)]
    _, extents = shelf.own_segments()
    for n, code in enumerate(codes):
        found = b"".join(map(bytes, shelf.pieces(extents[[-1 - code], ::2])))
        assert found == packed(n) + checksums.pack_record(packed(n))
    shelf.close()


def test_a_file_that_only_lacks_its_ends_can_be_completed(tmp_path):
    shelf = spooled(path=str(tmp_path / "spool"), reserved=8, limit=0)
    codes = [shelf.put(0, packed(n), 5).code for n in range(3)]
    assert shelf.header_room == 8
    path = shelf.complete_spool_file(b"8 bytes.", b"tail", durable=False)
    raw = (tmp_path / "spool").read_bytes()
    assert path == str(tmp_path / "spool")
    _, extents = shelf.own_segments()
    assert raw[:8] + raw[8 + extents[-1, 2] :] == b"8 bytes.tail"
    for n, code in enumerate(codes):
        assert raw[8 + extents[-1 - code, 0] :].startswith(packed(n))
    shelf.close()


def test_a_spool_in_memory_has_no_file():
    shelf = spooled()
    shelf.put(0, packed(0), 5)
    assert shelf.header_room is None
    with pytest.raises(ValueError, match="found one in memory"):
        shelf.complete_spool_file(b"", b"", durable=False)


def test_stored_chunks_of_zeros_and_nan_are_readable_by_other_software():
    shelf = spooled()
    kinds = ((Special.ZEROS, bytes(4), Special.NONE), (Special.NAN, NAN_BYTES[4], Special.VALUE))
    for special, item, stored in kinds:
        code = shelf.put(0, encode.special_chunk(special, 400, typesize=4), 5).code
        buf = bytes(shelf.read(*shelf.extent(code)))
        assert chunk.unpack_head(buf).header.special == stored
        assert bytes(decode.decode(buf)) == item * 100


def test_only_files_created_here_count_as_unused():
    _, shelf = in_files({"00000001.chunk": b"theirs"})
    for n in range(3):
        shelf.put(0, packed(n), 5)
    assert [*shelf.files.find_unused(np.array([2, -1, 9]))] == ["00000000.chunk", "00000003.chunk"]


def test_staging_looks_for_its_files_after_an_hour_of_either_clock(monkeypatch):
    store, shelf = in_files()
    code = shelf.put(0, packed(0), 5).code
    store.delete([index.chunk_name(code)])
    assert shelf.find_missing(np.array([code])) == []
    for clock in ("time", "monotonic"):  # a computer that sleeps stops the second one
        with monkeypatch.context() as patched:
            now = getattr(time, clock)()
            patched.setattr(time, clock, lambda now=now: now + 3601)
            assert shelf.find_missing(np.array([code])) == [index.chunk_name(code)]


def test_numbers_stay_low_in_a_directory_with_many_leftovers():
    others = {f"{number:08X}.chunk": b"theirs" for number in range(0, 1000, 2)}
    for _ in range(40):  # each begins at 0, as a new frame does
        store, shelf = in_files(others)
        others = dict.fromkeys([*store.listing(), index.chunk_name(shelf.put(0, packed(0), 5).code)], b"theirs")
        for n in range(3):
            shelf.put(0, packed(n), 5)
    assert shelf.next < 1200


def test_closed_staging_refuses_chunks():
    store, shelf = in_files()
    shelf.close()
    with pytest.raises(ConflictError, match="ended"):
        shelf.put(0, packed(0), 5)
    assert store.listing() == {}


def test_bytes_that_are_not_a_chunk_are_refused():
    store, shelf = in_files()
    with pytest.raises(FormatError):
        shelf.put(0, b"no chunk at all, but long enough to be one", 5)
    assert store.listing() == {}


def test_chunks_in_files_are_not_spooled():
    _, shelf = in_files()
    with pytest.raises(ValueError, match="found one in a separate file"):
        shelf.read(0, 1)


@pytest.mark.parametrize("make", [lambda: in_files()[1], spooled])
def test_threads_put_chunks_at_the_same_time(make):
    shelf = make()
    codes = {}

    def put(me):
        for n in range(10):
            codes[me, n] = shelf.put(0, packed(100 * me + n), 5).code

    threads = [threading.Thread(target=put, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(codes.values())) == 40
    for (me, n), code in codes.items():
        found = shelf.read(*shelf.extent(code)) if code < 0 else shelf._store._objects[index.chunk_name(code)].data
        assert bytes(found).startswith(packed(100 * me + n))
