"""Appending to Bloscpack files: whatever it is interrupted by, the file is as before, or complete."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2array import bloscpack
from b2array.bloscpack import undo
from b2array.bloscpack.undo import Old
from b2array.codec.cparams import CParams
from b2array.store.base import join_pieces
from b2array.store.local import LocalStore
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store

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


class Faults:
    """Lets the nth writing call write part of its bytes and fail; with `dead`, all further calls as well."""

    def __init__(self, monkeypatch, nth: int, part: float, error: BaseException, *, dead: bool) -> None:
        self.calls = 0
        self.originals = {name: getattr(LocalStore, name) for name in ("append", "patch")}
        for name, verb in self.originals.items():
            monkeypatch.setattr(LocalStore, name, self._failing(verb, nth, part, error, dead=dead))

    def _failing(self, verb, nth, part, error, *, dead):
        def call(store, name, offset, data):
            self.calls += 1
            if self.calls == nth:
                content = join_pieces(data)
                verb(store, name, offset, content[: int(len(content) * part)])
                raise error
            if dead and self.calls > nth:
                raise error
            return verb(store, name, offset, data)

        return call


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    before, more, options = CASES[request.param]
    path = tmp_path / "x.blp"
    size = 1200 if request.param == "array" else 1000
    bloscpack.pack(before, path, **{"chunk_size": size} | options)
    if isinstance(more, np.ndarray):
        more = np.tile(more, (90, 1))
        return path, before, more, np.concatenate((before, more))
    return path, before, more, before + more


def add(path, more):
    bloscpack.append(path, more, cparams=CParams(clevel=9))


@pytest.mark.parametrize("part", [0, 0.5])
def test_an_error_leaves_the_file_as_it_was(case, part, monkeypatch):
    path, _, more, after = case
    content = path.read_bytes()
    for nth in itertools.count(1):
        with monkeypatch.context() as patch:
            faults = Faults(patch, nth, part, OSError(errno.ENOSPC, "No space left on device"), dead=False)
            with suppress(OSError):
                add(path, more)
        if faults.calls < nth:
            break
        # Half of what goes behind the file is cut off by whoever comes next.
        assert path.read_bytes()[: len(content)] == content
        assert len(path.read_bytes()) == len(content) or nth == 1
    assert nth > 3
    np.testing.assert_array_equal(bloscpack.unpack(path), after)
    assert open_store(path).stamp("").size == bloscpack.open(path).cbytes


@pytest.mark.parametrize("part", [0, 0.5, 1])
def test_a_kill_leaves_the_file_as_it_was_or_complete(case, part, monkeypatch):
    path, before, more, after = case
    content, undone = path.read_bytes(), 0
    for nth in itertools.count(1):
        path.write_bytes(content)
        with monkeypatch.context() as patch:
            faults = Faults(patch, nth, part, Killed(), dead=True)
            try:
                add(path, more)
            except Killed:
                assert faults.calls >= nth
            else:
                break
        found = bloscpack.unpack(path)
        if path.read_bytes()[: len(content)] == content:
            undone += 1
            np.testing.assert_array_equal(found, before)
            add(path, more)
        np.testing.assert_array_equal(bloscpack.unpack(path), after)
    # Only the last call, which cuts the record off, lets the change take effect.
    assert undone == nth - 2 > 1 or len(before) == len(after)


def test_a_source_that_fails_touches_nothing(tmp_path):
    bloscpack.pack(np.arange(10), tmp_path / "x.blp")
    content = (tmp_path / "x.blp").read_bytes()

    class Broken(np.ndarray):
        def __getitem__(self, key):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bloscpack.append(tmp_path / "x.blp", np.arange(5).view(Broken))
    assert (tmp_path / "x.blp").read_bytes() == content


def test_a_process_that_is_killed_between_two_writes_loses_nothing(tmp_path):
    path = tmp_path / "x.blp"
    bloscpack.pack(NOISE[:2500], path, chunk_size=1000)
    content = path.read_bytes()
    script = f"""
import os, signal
from b2array import bloscpack
from b2array.store.local import LocalStore
original = LocalStore.patch
def patch(store, name, offset, data):
    if offset == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(store, name, offset, data)
LocalStore.patch = patch
bloscpack.append({str(path)!r}, {NOISE[2500:]!r})
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert done.returncode < 0
    assert path.read_bytes()[: len(content)] != content
    assert bloscpack.unpack(path) == NOISE[:2500]
    assert path.read_bytes() == content


def test_a_last_chunk_that_is_full_stays_where_it_is(tmp_path):
    path = tmp_path / "x.blp"
    bloscpack.pack(NOISE[:3000], path, chunk_size=1000, max_app_chunks=5)
    content = path.read_bytes()
    with bloscpack.open(path) as f:
        first = f.first_chunk
    bloscpack.append(path, NOISE[3000:], cparams=CParams(clevel=0))
    assert path.read_bytes()[first : len(content)] == content[first:]


def test_chunks_behind_the_last_one_are_not_overwritten(tmp_path):
    packed = bytearray(bloscpack.pack(NOISE[:2000], chunk_size=1000, checksum=None))
    with bloscpack.open(packed) as f:
        table = f.table_start
        places = [f.place(n).start for n in range(2)]
    packed[table : table + 16] = np.array(places[::-1], "<i8").tobytes()
    path = tmp_path / "x.blp"
    path.write_bytes(packed)
    with pytest.raises(bloscpack.UnsupportedError, match="behind its last one"):
        bloscpack.append(path, b"more")
    assert path.read_bytes() == packed


olds = st.lists(st.tuples(st.integers(0, 80), st.binary(min_size=1, max_size=20)), max_size=4)


@given(olds, st.integers(0, 100), st.binary(max_size=20))
def test_what_is_recorded_is_restored(entries, size, behind):
    entries = [Old(start % max(size, 1), content[: size - start % max(size, 1)]) for start, content in entries]
    before = bytearray(range(size))
    for start, content in entries:
        before[start : start + len(content)] = content
    record = undo.pack(entries, size, size + len(behind))
    store = MemoryStore({"": bytes(range(size)) + behind + record})
    undo.recover(store)
    assert join_pieces(store.head([""], 1000)[0].data) == before


@given(st.data())
def test_a_record_that_is_damaged_or_elsewhere_is_none(data):
    record = undo.pack([Old(0, b"header")], 100, 120)
    content = bytes(120) + record
    harm = data.draw(st.sampled_from(["flipped", "cut", "moved"]))
    if harm == "flipped":
        n = data.draw(st.integers(120, len(content) - 1))
        content = content[:n] + bytes([content[n] ^ 1 << data.draw(st.integers(0, 7))]) + content[n + 1 :]
    elif harm == "cut":
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content = bytes(data.draw(st.integers(1, 50))) + content
    store = MemoryStore({"": content})
    undo.recover(store)
    assert join_pieces(store.head([""], 1000)[0].data) == content


def test_a_file_with_a_record_inside_is_not_taken_for_one(tmp_path):
    """A killed file may itself be packed without compression and without checksums."""
    record = bytes(100) + undo.pack([Old(0, b"\0" * 32)], 40, 100)
    path = tmp_path / "x.blp"
    bloscpack.pack(record, path, checksum=None, cparams=CParams(clevel=0, filters=()))
    assert path.read_bytes().endswith(record)
    assert bloscpack.unpack(path) == record


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_for_reading_is_read_as_it_is(tmp_path):
    path = tmp_path / "x.blp"
    bloscpack.pack(NOISE[:2500], path, chunk_size=1000)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + undo.pack([Old(4, b"\3")], size, size))
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        assert bloscpack.unpack(path) == NOISE[:2500]
    finally:
        tmp_path.chmod(0o700)


def test_where_nothing_can_be_written_the_record_is_left_alone(monkeypatch):
    size = 100
    content = bytes(size) + undo.pack([Old(4, b"\3")], size, size)
    store = MemoryStore({"": content})

    def lock(name, *, shared=False):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(store, "lock", lock)
    undo.recover(store)
    assert join_pieces(store.head([""], 1000)[0].data) == content
