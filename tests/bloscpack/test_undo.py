"""Files to which earlier versions of b2array were appending, in place, when they were killed."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2array import bloscpack
from b2array.bloscpack import undo
from b2array.codec.cparams import CParams
from b2array.store.base import join_pieces
from b2array.store.memory import MemoryStore

INTERRUPTED = Path(__file__).parents[1] / "golden" / "bloscpack" / "interrupted"
"""``before.blp``: 70 rows; ``after-<n>.blp``: the same file after n of 5 writes that were to append 30 more rows."""

ROWS = np.arange(300).reshape(100, 3)
NOISE = np.random.default_rng(0).integers(0, 256, 2500, "u1").tobytes()


def record(old: list[tuple[int, bytes]], size: int, position: int) -> bytes:
    """Return what earlier versions wrote behind the last chunk before they changed a file in place."""
    body = b"".join(struct.pack("<QQ", start, len(part)) + part for start, part in old)
    digest = hashlib.blake2b(body, digest_size=16, salt=size.to_bytes(8, "little")).digest()
    return body + struct.pack("<QQ16s8s", position, size, digest, b"b2a-undo")


@pytest.mark.parametrize("name", ["after-1", "after-2", "after-3", "after-4"])
def test_an_append_in_place_that_was_interrupted_is_undone_when_the_file_is_opened(name, tmp_path):
    path = tmp_path / "x.blp"
    shutil.copyfile(INTERRUPTED / f"{name}.blp", path)
    before = (INTERRUPTED / "before.blp").read_bytes()
    assert path.read_bytes() != before
    np.testing.assert_array_equal(bloscpack.unpack(path), ROWS[:70])
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["after-1", "after-2", "after-3", "after-4"])
def test_an_append_in_place_that_was_interrupted_is_undone_before_the_next_one(name, tmp_path):
    path = tmp_path / "x.blp"
    shutil.copyfile(INTERRUPTED / f"{name}.blp", path)
    bloscpack.append(path, ROWS[70:])
    np.testing.assert_array_equal(bloscpack.unpack(path), ROWS)
    with bloscpack.open(path) as f:
        assert f.metadata["unit"] == "m"


olds = st.lists(st.tuples(st.integers(0, 80), st.binary(min_size=1, max_size=20)), max_size=4)


@given(olds, st.integers(0, 100), st.binary(max_size=20))
def test_what_is_recorded_is_restored(entries, size, behind):
    entries = [(start % max(size, 1), content[: size - start % max(size, 1)]) for start, content in entries]
    before = bytearray(range(size))
    for start, content in entries:
        before[start : start + len(content)] = content
    store = MemoryStore({"": bytes(range(size)) + behind + record(entries, size, size + len(behind))})
    undo.recover(store)
    assert join_pieces(store.head([""], 1000)[0].data) == before


@given(st.data())
def test_a_record_that_is_damaged_or_elsewhere_is_none(data):
    content = bytes(120) + record([(0, b"header")], 100, 120)
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
    inside = bytes(100) + record([(0, b"\0" * 32)], 40, 100)
    path = tmp_path / "x.blp"
    bloscpack.pack(inside, path, checksum=None, cparams=CParams(clevel=0, filters=()))
    assert path.read_bytes().endswith(inside)
    assert bloscpack.unpack(path) == inside


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_for_reading_is_read_as_it_is(tmp_path):
    path = tmp_path / "x.blp"
    bloscpack.pack(NOISE, path, chunk_size=1000)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + record([(4, b"\3")], size, size))
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        assert bloscpack.unpack(path) == NOISE
    finally:
        tmp_path.chmod(0o700)


def test_where_nothing_can_be_written_the_record_is_left_alone(monkeypatch):
    size = 100
    content = bytes(size) + record([(4, b"\3")], size, size)
    store = MemoryStore({"": content})

    def lock(name, *, shared=False):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(store, "lock", lock)
    undo.recover(store)
    assert join_pieces(store.head([""], 1000)[0].data) == content
