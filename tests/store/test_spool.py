"""A spool gives back what was put into it, from memory or from a file, and leaves nothing behind."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupts import interrupted

from b2array.errors import ConflictError
from b2array.store.spool import Spool

# Small pieces are joined, large ones are not.
_PIECES = st.binary(max_size=40) | st.builds(bytes.__mul__, st.binary(min_size=4, max_size=4), st.integers(500, 20_000))


@given(st.lists(st.lists(_PIECES, min_size=1, max_size=3), max_size=12), st.integers(0, 200) | st.just(10**6))
@settings(deadline=None)
def test_what_was_written_is_read(writes, limit):
    with Spool(limit=limit) as spool:
        starts = [spool.write(*pieces) for pieces in writes]
        content = b"".join(b"".join(pieces) for pieces in writes)
        assert spool.length == len(content)
        assert spool.on_disk == (len(content) > limit)
        for start, pieces in zip(starts, writes, strict=True):
            whole = b"".join(pieces)
            assert b"".join(map(bytes, spool.pieces(start, start + len(whole)))) == whole
            assert bytes(spool.read(start, start + len(pieces[0]))) == pieces[0]
        assert b"".join(map(bytes, spool.pieces(0, len(content)))) == content


@pytest.mark.parametrize("limit", [0, 100])
def test_what_is_read_is_a_private_copy(limit):
    with Spool(limit=limit) as spool:
        spool.write(b"abc")
        view = spool.read(0, 3)
        view[0] = 0
        assert bytes(spool.read(0, 3)) == b"abc"


def test_there_is_no_file_while_everything_fits_into_memory(tmp_path):
    path = tmp_path / "spool"
    with Spool(str(path), limit=10) as spool:
        spool.write(b"x" * 10)
        assert not path.exists()
        spool.write(b"y")
        assert path.exists()
    assert not path.exists()


def test_a_file_is_completed_with_header_and_tail(tmp_path):
    path = tmp_path / "spool"
    with Spool(str(path), reserved=4, limit=0) as spool:
        assert [spool.write(b"one"), spool.write(b"two")] == [0, 3]
        assert bytes(spool.read(3, 6)) == b"two"
        for tail in (b"a longer tail", b"tail"):
            spool.finish(b"HEAD", tail, durable=True)
        assert path.read_bytes() == b"HEADonetwotail"


@pytest.mark.parametrize(("limit", "header"), [(100, b"HEAD"), (0, b"HEADER")])
def test_only_a_file_with_room_for_the_header_is_completed(tmp_path, limit, header):
    with Spool(str(tmp_path / "spool"), reserved=4, limit=limit) as spool:
        spool.write(b"data")
        with pytest.raises(ValueError, match="header of 4 bytes"):
            spool.finish(header, b"tail", durable=False)


def test_a_file_that_got_another_name_stays(tmp_path):
    path = tmp_path / "spool"
    with Spool(str(path), limit=0) as spool:
        spool.write(b"data")
        path.rename(tmp_path / "kept")
    assert (tmp_path / "kept").read_bytes() == b"data"


def test_a_closed_spool_says_that_its_transaction_has_ended():
    spool = Spool()
    spool.write(b"data")
    spool.close()
    spool.close()
    for use in (lambda: spool.read(0, 4), lambda: spool.write(b"more")):
        with pytest.raises(ConflictError, match="ended"):
            use()


def test_another_file_is_never_overwritten(tmp_path):
    path = tmp_path / "spool"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError), Spool(str(path), limit=0) as spool:
        spool.write(b"data")
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("nbytes", [3, 6000])
def test_a_write_that_fails_leaves_the_earlier_pieces(tmp_path, nbytes):
    path = tmp_path / "spool"
    path.write_bytes(b"in the way")
    with Spool(str(path), limit=10) as spool:
        spool.write(b"123", b"45")
        spool.write(b"678")
        with pytest.raises(FileExistsError):
            spool.write(b"-" * nbytes)
        path.unlink()
        assert (spool.length, bytes(spool.read(3, 5))) == (8, b"45")
        assert spool.write(b"+" * nbytes) == 8
        assert b"".join(map(bytes, spool.pieces(0, 8 + nbytes))) == b"12345678" + b"+" * nbytes


def test_views_of_pieces_do_not_keep_others_from_writing():
    with Spool() as spool:
        spool.write(b"123")
        held = list(spool.pieces(0, 3))
        assert spool.write(b"456") == 3
        assert bytes(held[0]) == b"123"


def test_two_interrupted_writes_take_nothing_of_earlier_ones_away(tmp_path):
    _, moments = interrupted(lambda: Spool().write(b"12", b"3"), -1)
    for first in (b"-" * 20, b"-" * 5):
        for moment, other in itertools.product(range(1, moments + 4), repeat=2):
            with Spool(str(tmp_path / "spool"), limit=10) as spool:
                spool.write(first)
                interrupted(lambda: spool.write(b"12", b"3"), moment)
                interrupted(lambda: spool.write(b"45", b"6"), other)
                at = spool.write(b"789")
                assert b"".join(map(bytes, spool.pieces(0, len(first)))) == first
                assert bytes(spool.read(at, at + 3)) == b"789"


def test_threads_write_at_the_same_time():
    with Spool(limit=500) as spool:
        starts = {}

        def write(me):
            for n in range(50):
                piece = bytes([me, n]) * 10
                starts[spool.write(piece)] = piece

        threads = [threading.Thread(target=write, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(starts) == 200
        assert all(bytes(spool.read(start, start + 20)) == piece for start, piece in starts.items())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked there")
def test_a_forked_process_leaves_the_file_alone(tmp_path):
    path = tmp_path / "spool"
    with Spool(str(path), limit=0) as spool:
        spool.write(b"data")
        pid = os.fork()
        if not pid:
            try:
                spool.read(0, 4)
            except ConflictError:
                spool.close()
            os._exit(not path.exists())
        assert os.waitpid(pid, 0)[1] == 0
        spool.write(b"more")
        assert bytes(spool.read(4, 8)) == b"more"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_an_error_once_and_leaves_no_file(tmp_path):
    path = tmp_path / "spool"
    spool = Spool(str(path), limit=0)
    spool.write(b"data")
    with Path("/dev/full").open("r+b", buffering=0) as full:
        os.dup2(full.fileno(), spool._file.fileno())
    with pytest.raises(OSError, match="No space"):
        spool.write(b"more")
    spool.close()
    assert not path.exists()
