"""What killed writes by many workers leave is removed by `vacuum`, and nothing else is."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import b2array
from b2array.array import dask as graphs
from b2array.commit import staging
from b2array.commit.journals import Journal
from b2array.errors import ConflictError, FormatError
from b2array.format.ledger import seal
from b2array.store.endings import JOURNAL

LAYOUTS = ["contiguous", "sparse"]


@pytest.fixture(autouse=True)
def _synchronous():
    with dask.config.set(scheduler="sync"):
        yield


def values() -> np.ndarray:
    return np.arange(1200).reshape(40, 30)


def source(sign: int = 1) -> da.Array:
    return da.from_array(sign * values(), chunks=(10, 30), name=f"source{sign}")


def place(url: Path, layout: str) -> dict[str, object]:
    return {"url": url, "layout": layout, "chunks": (10, 15), "blocks": (5, 15)}


def killed(url: Path, layout: str, *, new: bool) -> None:
    """Let a process be killed when it begins with its third piece."""
    pid = os.fork()
    if not pid:
        try:
            gc.freeze()
            count, original = itertools.count(), graphs.write_part

            def limited(*args: object) -> object:
                if next(count) == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args)

            graphs.write_part = limited
            if new:
                b2array.from_dask(source(), **place(url, layout))
            else:
                b2array.open(url, mode="r+").store(source(-1))
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    for each in [path, *path.rglob("*")]:
        os.utime(each, (then, then))


@pytest.mark.costly
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_write_of_a_new_array_is_removed_when_it_is_old(tmp_path: Path, layout: str) -> None:
    url = tmp_path / "a.b2nd"
    killed(url, layout, new=True)
    before = sorted(tmp_path.rglob("*"))
    waiting = [path for path in before if path.suffix in (".chunk", ".b2tmp")]
    assert len(waiting) == (4 if layout == "sparse" else 2)
    assert b2array.vacuum(url).removed == ()
    age(tmp_path, 3700)
    assert b2array.vacuum(url).removed == ()
    assert len(b2array.vacuum(url, grace="1h", dry_run=True).removed) == (5 if layout == "sparse" else 1)
    assert sorted(tmp_path.rglob("*")) == before
    cleanup = b2array.vacuum(url, grace="1h")
    assert cleanup.nbytes > 4 * 100
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with pytest.raises(FileNotFoundError):
        b2array.vacuum(url)
    assert np.array_equal(b2array.from_dask(source(), **place(url, layout))[...], values())


@pytest.mark.costly
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_write_into_an_array_is_removed_and_the_array_stays(tmp_path: Path, layout: str) -> None:
    url = tmp_path / "a.b2nd"
    b2array.asarray(values(), **place(url, layout))
    kept = sorted(tmp_path.rglob("*"))
    killed(url, layout, new=False)
    report = b2array.verify(url, deep=True)
    assert report.ok
    assert [name.rstrip("/").endswith(JOURNAL) for name in report.leftovers] == [True]
    age(tmp_path, 90000)
    b2array.vacuum(url)
    assert b2array.verify(url, deep=True).leftovers == ()
    assert [path for path in sorted(tmp_path.rglob("*")) if path.suffix != ".b2lock" and path.name != ".b2lock"] == [
        path for path in kept if path.suffix != ".b2lock" and path.name != ".b2lock"
    ]
    assert np.array_equal(b2array.open(url)[...], values())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("new", [True, False])
def test_vacuum_leaves_all_files_of_a_write_under_way(tmp_path: Path, layout: str, new: bool) -> None:
    url = tmp_path / "a.b2nd"
    if not new:
        b2array.asarray(values(), **place(url, layout))
    removed = []

    def late(block: np.ndarray, block_info: object = None) -> np.ndarray:
        # Each piece finds those before it old, but the youngest of them not old enough.
        for path in tmp_path.rglob("*.chunk"):
            status = path.stat()
            os.utime(path, (status.st_atime - 3600, status.st_mtime - 3600))
        removed.extend(b2array.vacuum(url, grace="90 min").removed)
        return block

    x = source(1 if new else -1).map_blocks(late, dtype="i8", meta=np.empty((0, 0), "i8"))
    if new:
        write = b2array.from_dask(x, **place(url, layout), compute=False)
    else:
        write = b2array.open(url, mode="r+").store(x, compute=False)
    write.compute()
    assert removed == []
    assert np.array_equal(b2array.open(url)[...], values() if new else -values())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slow_write_notices_that_its_chunks_were_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    url = tmp_path / "a.b2nd"
    a = b2array.asarray(values(), **place(url, layout))
    monkeypatch.setattr(staging, "CHECKED_AFTER", 0.0)
    original = graphs.commit_changes

    def finish(*args: object) -> object:
        assert b2array.vacuum(url, grace=0).removed
        return original(*args)

    with monkeypatch.context() as patched:
        patched.setattr(graphs, "commit_changes", finish)
        with pytest.raises(ConflictError, match="somebody removed"):
            a.store(source(-1))
    assert np.array_equal(b2array.open(url)[...], values())
    a.store(source(-1))
    assert np.array_equal(b2array.open(url)[...], -values())


def test_vacuum_keeps_the_chunks_of_an_array_with_a_lost_index(tmp_path: Path) -> None:
    url = tmp_path / "a.b2nd"
    b2array.asarray(values(), **place(url, "sparse"))
    chunks = sorted(path.name for path in url.glob("*.chunk"))
    b2array.open(url, mode="r+").store(source(-1), compute=False)
    (url / "chunks.b2frame").unlink()
    b2array.vacuum(url, grace=0)
    assert sorted(path.name for path in url.glob("*.chunk")) == chunks
    with pytest.raises(FileNotFoundError):
        b2array.vacuum(url, grace=0)


def test_vacuum_of_a_missing_array_raises_file_not_found(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.b2nd.0123456789abcdef.b2write").mkdir()
    for name in ("empty", "none.b2nd", "none/none.b2nd"):
        with pytest.raises(FileNotFoundError):
            b2array.vacuum(tmp_path / name, grace=0)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("there", [True, False])
def test_leftovers_on_s3_are_removed(
    bucket: str, s3_options: dict[str, object], monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    where = {"url": f"s3://{bucket}/a.b2nd", "storage_options": s3_options}
    layout = {"chunks": (10, 15), "blocks": (5, 15)}

    def write() -> None:
        if there:
            b2array.open(**where, mode="r+").store(source(-1))
        else:
            b2array.from_dask(source(-1), **where, **layout)

    if there:
        b2array.asarray(values(), **where, **layout)
    with monkeypatch.context() as patched:
        patched.setattr(graphs, "commit_changes", lambda *_: (_ for _ in ()).throw(OSError("the client went away")))
        with pytest.raises(OSError, match="went away"):
            write()
    assert b2array.vacuum(**where, grace="1h").removed == ()
    assert len(b2array.vacuum(**where, grace=0).removed) == 9
    if there:
        assert np.array_equal(b2array.open(**where)[...], values())
    write()
    assert np.array_equal(b2array.open(**where)[...], -values())
    assert len(b2array.vacuum(**where, grace=0).removed) == (8 if there else 0)  # what was there before


@given(st.binary(max_size=60))
def test_any_bytes_are_a_journal_or_refused(content: bytes) -> None:
    for each in (content, seal(content)):
        try:
            notes = Journal.unpack(each)
        except FormatError:
            continue
        assert Journal.unpack(notes.pack()) == notes


def test_each_damage_of_a_journal_is_noticed() -> None:
    content = Journal(3, b"identity", "state").pack()
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(FormatError):
            Journal.unpack(bytes(damaged))


def test_a_file_that_is_not_a_journal_is_removed(tmp_path: Path) -> None:
    a = b2array.asarray(values(), **place(tmp_path / "a.b2nd", "sparse"))
    a.store(source(), compute=False)
    (notes,) = (tmp_path / "a.b2nd").glob(f"*{JOURNAL}")
    notes.write_bytes(b"nothing")
    assert b2array.vacuum(a.url, grace=0).removed == (notes.name,)
