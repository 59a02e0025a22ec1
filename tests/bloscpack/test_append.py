"""Appending to Bloscpack files: a failure or a kill leaves the file as it was, and success leaves it complete."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from b2array import bloscpack
from b2array.bloscpack.blp_header import FileHeader, digest_size
from b2array.codec.cparams import CParams
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.store.local_store import LocalStore

ROOT = Path(__file__).parents[2]
NOISE = np.random.default_rng(0).integers(0, 256, 4000, "u1").tobytes()

# What is in the file, what is added, and how the file is made: with a last chunk that is full, that gets larger, and
# that gets smaller.
CASES = {
    "full": (NOISE[:3000], NOISE[3000:], {}),
    "larger": (NOISE[:2500], NOISE[2500:], {}),
    "in the last chunk": (NOISE[:2500], NOISE[2500:2700], {}),
    "without offsets": (NOISE[:2500], NOISE[2500:], {"offsets": False}),
    "nothing": (NOISE[:2500], b"", {}),
    "smaller": (NOISE[:2500], b"", {"cparams": CParams(clevel=0)}),
    "array": (np.arange(300).reshape(100, 3), np.arange(3), {"checksum": "sha256", "metadata": {"unit": "m"}}),
}


class Killed(BaseException):
    """Nothing is written any more."""


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    before, more, options = CASES[request.param]
    path = tmp_path / "x.blp"
    size = 1200 if request.param == "array" else 1000
    bloscpack.pack(before, path, **{"chunk_size": size} | options)
    if isinstance(more, np.ndarray):
        more = np.tile(more, (90, 1))
        return path, more, np.concatenate((before, more))
    return path, more, before + more


def add(path, more):
    bloscpack.append(path, more, cparams=CParams(clevel=9))


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if not path.name.endswith(".b2lock")}


def failing_piece(monkeypatch, nth: int, error: BaseException) -> list[int]:
    """Let the nth piece of the new file raise an error instead of being written; return a list of the pieces."""
    seen: list[int] = []
    replace = LocalStore.replace

    def pieces(data):
        for piece in data:
            seen.append(len(piece))
            if len(seen) == nth:
                raise error
            yield piece

    monkeypatch.setattr(LocalStore, "replace", lambda self, name, data, **kw: replace(self, name, pieces(data), **kw))
    return seen


def test_an_error_leaves_the_file_as_it_was(case, monkeypatch):
    path, more, after = case
    content = path.read_bytes()
    for nth in itertools.count(1):
        with monkeypatch.context() as patch:
            seen = failing_piece(patch, nth, OSError(errno.ENOSPC, "No space left on device"))
            try:
                add(path, more)
            except OSError:
                pass
            else:
                break
        assert len(seen) == nth
        assert path.read_bytes() == content
        assert files(path.parent) == {"x.blp"}
    assert nth > 2
    np.testing.assert_array_equal(bloscpack.unpack(path), after)


@pytest.mark.parametrize("renamed", [False, True])
def test_a_kill_leaves_the_file_as_it_was_or_complete(case, renamed, monkeypatch):
    path, more, after = case
    before = bloscpack.unpack(path)
    content = path.read_bytes()
    rename, unlink = os.replace, os.unlink

    def killed(source, target):
        if renamed:
            rename(source, target)
        monkeypatch.setattr(os, "unlink", lambda path: None)  # a killed program does not clean up
        raise Killed

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Killed):
        add(path, more)
    monkeypatch.setattr(os, "replace", rename)
    monkeypatch.setattr(os, "unlink", unlink)
    if not renamed:
        assert len(files(path.parent)) == 2
        assert path.read_bytes() == content
        np.testing.assert_array_equal(bloscpack.unpack(path), before)
        add(path, more)
    np.testing.assert_array_equal(bloscpack.unpack(path), after)


@pytest.mark.parametrize("where", ["write", "rename"])
def test_a_process_that_is_killed_loses_nothing(tmp_path, where):
    path = tmp_path / "x.blp"
    bloscpack.pack(NOISE[:2500], path, chunk_size=1000)
    content = path.read_bytes()
    script = f"""
import os, signal
from b2array import bloscpack
from b2array.store import disk
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if {where!r} == "rename":
    os.replace = kill
else:
    disk.flush = kill
bloscpack.append({str(path)!r}, {NOISE[2500:]!r})
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert done.returncode < 0
    assert path.read_bytes() == content
    assert bloscpack.unpack(path) == NOISE[:2500]
    bloscpack.append(path, NOISE[2500:])
    assert bloscpack.unpack(path) == NOISE


def test_a_source_that_fails_touches_nothing(tmp_path):
    bloscpack.pack(np.arange(10), tmp_path / "x.blp")
    content = (tmp_path / "x.blp").read_bytes()

    class Broken(np.ndarray):
        def __getitem__(self, key):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bloscpack.append(tmp_path / "x.blp", np.arange(5).view(Broken))
    assert (tmp_path / "x.blp").read_bytes() == content
    assert files(tmp_path) == {"x.blp"}


def test_a_last_chunk_that_is_full_stays_as_it_is(tmp_path):
    path = tmp_path / "x.blp"
    bloscpack.pack(NOISE[:3000], path, chunk_size=1000, max_app_chunks=5)
    content = path.read_bytes()
    with bloscpack.open(path) as f:
        first = f.first_chunk
    bloscpack.append(path, NOISE[3000:], cparams=CParams(clevel=0))
    assert path.read_bytes()[first : len(content)] == content[first:]


def test_a_damaged_chunk_stays_and_the_others_stay_readable(tmp_path):
    path = tmp_path / "x.blp"
    bloscpack.pack(NOISE[:3000], path, chunk_size=1000)
    content = bytearray(path.read_bytes())
    with bloscpack.open(path) as f:
        content[f.place(0).start + 100] ^= 0xFF
    path.write_bytes(content)
    bloscpack.append(path, NOISE[3000:])
    with bloscpack.open(path) as f:
        assert f[1000:] == NOISE[1000:]
        with pytest.raises(FormatError, match="chunk 0 of"):
            f[0]


def test_chunks_behind_the_last_one_are_not_overwritten(tmp_path):
    packed = bytearray(bloscpack.pack(NOISE[:2000], chunk_size=1000, checksum=None))
    with bloscpack.open(packed) as f:
        table = f.table_start
        places = [f.place(n).start for n in range(2)]
    packed[table : table + 16] = np.array(places[::-1], "<i8").tobytes()
    path = tmp_path / "x.blp"
    path.write_bytes(packed)
    with pytest.raises(UnsupportedError, match="behind its last one"):
        bloscpack.append(path, b"more")
    assert path.read_bytes() == packed


def test_a_file_whose_chunks_are_empty_takes_no_more(tmp_path):
    path = tmp_path / "x.blp"
    empty = bloscpack.open(bloscpack.pack(b"")).get_chunk(0)
    path.write_bytes(FileHeader(nchunks=2, chunk_size=0, last_chunk=0).pack() + 2 * empty)
    with pytest.raises(UnsupportedError, match="does not state the size of its chunks"):
        bloscpack.append(path, b"more")
    assert bloscpack.unpack(path) == b""


def test_permissions_and_links_stay(tmp_path):
    path, link = tmp_path / "x.blp", tmp_path / "link.blp"
    bloscpack.pack(NOISE[:2500], path, chunk_size=1000)
    path.chmod(0o640)
    link.symlink_to(path)
    bloscpack.append(link, NOISE[2500:])
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert bloscpack.unpack(path) == NOISE


def test_a_file_that_was_never_finished_is_completed(tmp_path):
    writer = bloscpack.create(tmp_path / "x.blp", chunk_size=1000)
    writer.write(NOISE[:2500])
    writer._file.flush()
    path = tmp_path / "y.blp"
    path.write_bytes(writer._place.path.read_bytes())
    writer.abort()
    bloscpack.append(path, NOISE[2000:])
    with bloscpack.open(path) as f:
        assert (f.header.nchunks, f.header.last_chunk, f.nslots) == (4, 1000, 1024)
    assert bloscpack.unpack(path) == NOISE


def test_a_change_by_another_program_is_not_lost(tmp_path, monkeypatch):
    path = tmp_path / "x.blp"
    bloscpack.pack(NOISE[:2500], path, chunk_size=1000)
    replace = LocalStore.replace

    def late(self, name, data, **kw):
        path.write_bytes(b"other")
        return replace(self, name, [b"".join([])], **kw)

    monkeypatch.setattr(LocalStore, "replace", late)
    with pytest.raises(ConflictError):
        bloscpack.append(path, NOISE[2500:])
    assert path.read_bytes() == b"other"


def test_remote_files_are_replaced(bucket: str, s3_options: Any) -> None:
    url = f"s3://{bucket}/appended.blp"
    bloscpack.pack(NOISE[:2500], url, chunk_size=1000, storage_options=s3_options)
    bloscpack.append(url, NOISE[2500:], storage_options=s3_options)
    assert bloscpack.unpack(url, storage_options=s3_options) == NOISE


def test_memory_is_bounded_by_what_is_added(tmp_path, monkeypatch):
    path = tmp_path / "x.blp"
    noise = np.random.default_rng(1).integers(0, 256, 60 * 2**20, "u1").tobytes()
    bloscpack.pack(noise, path, cparams=CParams(clevel=0))
    more = noise[: 2**20]
    monkeypatch.setattr("b2array.bloscpack.reader._WINDOW_NBYTES", 4 * 2**20)
    tracemalloc.start()
    try:
        bloscpack.append(path, more)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * 2**20
    with bloscpack.open(path) as f:
        assert f.nbytes == len(noise) + len(more)
        assert f[-len(more) :] == more


def test_what_is_appended_is_the_same_file_as_earlier_versions_made(tmp_path):
    """They changed the file in place, and moved nothing."""
    path = tmp_path / "x.blp"
    bloscpack.pack(NOISE[:2500], path, chunk_size=1000, checksum="md5", max_app_chunks=3)
    before = path.read_bytes()
    with bloscpack.open(path) as f:
        start, kept = f.place(2).start, f.table_start
    bloscpack.append(path, NOISE[2500:])
    after = path.read_bytes()
    with bloscpack.open(path) as f:
        assert f.nslots == 6
        assert [f.place(n).start for n in range(4)][:3] == np.frombuffer(before, "<i8", 3, kept).tolist()
        assert after[f.first_chunk : start] == before[f.first_chunk : start]
        assert len(after) == f.place(3).start + len(f.get_chunk(3)) + digest_size(f.header.checksum)
        assert np.frombuffer(after, "<i8", 6, kept)[4:].tolist() == [-1, -1]


@pytest.mark.parametrize("values", [[1.5], [True, 2.5], np.array([1.5]), [2**40], [1j]])
def test_values_that_the_type_of_a_file_would_change_are_refused(tmp_path, values):
    bloscpack.pack(np.arange(5, dtype="i4"), tmp_path / "a.blp")
    with pytest.raises((TypeError, OverflowError)):
        bloscpack.append(tmp_path / "a.blp", values)
    writer = bloscpack.create(tmp_path / "b.blp", (None,), "i4")
    with pytest.raises((TypeError, OverflowError)), writer:
        writer.write(values)
    assert bloscpack.unpack(tmp_path / "a.blp").tolist() == [0, 1, 2, 3, 4]
    bloscpack.append(tmp_path / "a.blp", [5, True])
    bloscpack.append(tmp_path / "a.blp", np.array([7], "i8"))
    assert bloscpack.unpack(tmp_path / "a.blp").tolist() == [0, 1, 2, 3, 4, 5, 1, 7]


class Dataset:
    """Gives its items by slices, as datasets of other libraries do; netCDF4's are masked."""

    def __init__(self, values):
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def __getitem__(self, key):
        return self.values[key]


@pytest.mark.parametrize("order", ["C", "F"])
def test_datasets_of_other_libraries_are_appended_a_part_at_a_time_but_no_masked_items(tmp_path, monkeypatch, order):
    monkeypatch.setattr("b2array.bloscpack.writer._WINDOW_NBYTES", 100)
    values = np.arange(60.0).reshape(10, 6)
    bloscpack.pack(np.asarray(values, order=order), tmp_path / "a.blp")
    axis = 0 if order == "C" else 1
    bloscpack.append(tmp_path / "a.blp", Dataset(values))
    expected = np.concatenate([values, values], axis)
    assert np.array_equal(bloscpack.unpack(tmp_path / "a.blp"), expected)
    masked = Dataset(np.ma.masked_equal(values, 3))
    for action in (lambda: bloscpack.append(tmp_path / "a.blp", masked), lambda: bloscpack.pack(masked)):
        with pytest.raises(TypeError, match="masked"):
            action()
    assert np.array_equal(bloscpack.unpack(tmp_path / "a.blp"), expected)
