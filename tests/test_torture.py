"""Writers are killed at random moments. Afterwards there is exactly one committed state, and nothing is damaged.

``--torture N`` kills N writers of each layout and of a group, N / 4 of other kinds, and N / 8 that write in parallel.
So ``pytest tests/test_torture.py --torture 2500`` kills 10,000.
"""

from __future__ import annotations

import gc
import mmap
import os
import select
import shutil
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest

import b2array
from b2array import bloscpack, config

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")

SHAPE, CHUNKS, BLOCKS = (48, 40), (16, 20), (4, 10)
LONGEST = 0.05
"""Seconds a writer lives after its first commit, at most: enough for several more, in one of which it mostly dies."""


def write_forever(path, first, started, rng):
    """Make commit after commit, each of which gives every item the number of the commit."""
    a = b2array.open(path, mode="r+")
    for number in range(first, first + 100_000):
        way = number % 4
        if way == 0:
            a[...] = number
        elif way == 1:
            with a.transaction():
                for start in range(0, SHAPE[0], 16):
                    a[start : start + 16] = number
                a.attrs["number"] = number
        elif way == 2:  # chunks that are hard to compress, beside the others
            with a.transaction():
                a[...] = number
                a.attrs["noise"] = rng.bytes(int(rng.integers(1, 4000)))
        else:
            with a.transaction():
                a[:20] = number
                a[20:] = number
        if number == first:
            os.write(started, b"!")


def change_forever(path, first, started, rng):
    """Make commit after commit of several members, each of which gives every item the number of the commit."""
    group = b2array.open_group(path, mode="r+")
    for number in range(first, first + 100_000):
        with group.transaction() as changes:
            changes["file"][...] = number
            changes["directory"][...] = number
            changes.attrs["number"] = number
            if "turns" in changes:
                del changes["turns"]
            if number % 3:
                changes.create("turns", data=[number] * int(rng.integers(1, 4)), overwrite=True)
        if number == first:
            os.write(started, b"!")


def killed_after(path, first, seconds, write=write_forever):
    """Let a forked process write, and kill it some time after its first commit."""
    ready, started = os.pipe()
    child = os.fork()
    if not child:
        gc.freeze()  # objects of python-blosc2 wait forever for threads that are not in this process
        try:
            write(path, first, started, np.random.default_rng(first))
        except BaseException:  # noqa: BLE001 - the process ends
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(started)
    try:
        # Unlike `select`, this takes descriptors above 1023, of which a long run of tests may have many.
        waiting = select.poll()
        waiting.register(ready, select.POLLIN)
        first_commit = waiting.poll(30_000) and os.read(ready, 1)
        os.close(ready)
        time.sleep(seconds)
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert first_commit == b"!", "the writer failed or hung before its first commit"
    assert os.WIFSIGNALED(status), "the writer failed before it was killed"


def check(path, before):
    """Return the number of the only committed state, which is not older than one seen before."""
    with config.using(cache_bytes=0):
        data = b2array.open(path)[...]
    number = int(data.flat[0])
    assert (data == number).all(), f"a mixture of {np.unique(data)}"
    assert number >= before
    report = b2array.verify(path, deep=True)
    assert report.ok, str(report)
    assert report.stale == report.unchecked == 0
    stock = blosc2.open(str(path))
    np.testing.assert_array_equal(stock[...], data)
    if "noise" in stock.schunk.vlmeta:
        assert isinstance(stock.schunk.vlmeta["noise"], bytes)
    return number


LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])


@LAYOUTS
def test_a_killed_writer_leaves_the_last_commit(tmp_path, layout, torture, chance, capsys):
    path = tmp_path / "a.b2nd"
    cparams = b2array.CParams("lz4")
    b2array.create(path, SHAPE, "i8", chunks=CHUNKS, blocks=BLOCKS, layout=layout, cparams=cparams)
    with config.using(threads=1):
        number = 0
        for _ in range(torture):
            killed_after(path, number + 1, chance.uniform(0, LONGEST))
            number = check(path, number + 1)
            if chance.random() < 0.1:
                b2array.vacuum(path, grace=0)
    with capsys.disabled():
        print(f"\n{layout}: {torture} kills survived, {number} commits")
    b2array.open(path, mode="r+")[...] = number + 1
    assert check(path, number) == number + 1


@pytest.mark.costly
@LAYOUTS
def test_a_killed_writer_leaves_only_files_that_vacuum_removes(tmp_path, layout):
    path = tmp_path / "a.b2nd"
    b2array.create(path, SHAPE, "i8", chunks=CHUNKS, blocks=BLOCKS, layout=layout)
    number = 0
    with config.using(threads=1):
        for seconds in (0.003, 0.02, 0.05):
            killed_after(path, number + 1, seconds)
            number = check(path, number + 1)
    b2array.vacuum(path, grace=0)
    report = b2array.verify(path, deep=True)
    assert (report.orphans, report.leftovers) == ((), ())
    expected = {path.name, f"{path.name}.b2lock"} if layout == "contiguous" else {path.name}
    assert {file.name for file in tmp_path.iterdir()} <= expected
    assert check(path, number) == number
    shutil.rmtree(tmp_path)


def check_group(path, before, mode):
    """Return the number of the only committed state of a group, which is not older than one seen before."""
    group = b2array.open_group(path, mode)
    numbers = {int(group.attrs["number"])}
    with config.using(cache_bytes=0):
        for member in group.arrays().values():
            numbers |= {*member[...].ravel().tolist()}
    (number,) = numbers
    assert number >= before
    assert ("turns" in group) == bool(number % 3)
    return number


def test_a_killed_writer_of_a_group_leaves_the_last_commit(tmp_path, torture, chance):
    path = tmp_path / "group.b2d"
    group = b2array.open_group(path, "w")
    options = {"chunks": CHUNKS, "blocks": BLOCKS, "cparams": b2array.CParams("lz4")}
    group.create("file", SHAPE, "i8", **options)
    group.create("directory", SHAPE, "i8", layout="sparse", **options)
    group.attrs["number"] = number = 0
    with config.using(threads=1):
        for _ in range(torture):
            killed_after(path, number + 1, chance.uniform(0, LONGEST), change_forever)
            number = check_group(path, number + 1, "r")
            assert check_group(path, number, "r+") == number
            for name in ("file", "directory"):  # the writer before has completed what was interrupted
                assert (blosc2.open(str(path / f"{name}.b2nd"))[...] == number).all()
                report = b2array.verify(path / f"{name}.b2nd", deep=True)
                assert report.ok, str(report)


def append_forever(path, first, started, rng):
    """Append to a Bloscpack file again and again, each time rows with the number of the commit; or begin a new file."""
    for number in range(first, first + 100_000):
        rows = np.full((1 + number % 3, 40), number)
        if number % 20:
            bloscpack.append(path, rows)
        else:
            bloscpack.pack(rows, path, chunk_size=2000, overwrite=True)
        if number == first:
            os.write(started, b"!")


def test_a_killed_writer_of_a_bloscpack_file_leaves_the_last_commit(tmp_path, torture, chance):
    path = tmp_path / "a.blp"
    bloscpack.pack(np.zeros((1, 40), int), path, chunk_size=2000)
    number = 0
    with config.using(threads=1):
        for _ in range(torture // 4):
            killed_after(path, number + 1, chance.uniform(0, LONGEST), append_forever)
            found = bloscpack.unpack(path)
            first, last = int(found[0, 0]), int(found[-1, 0])
            assert last >= number + 1
            commits = np.arange(first, last + 1)
            assert first == last - last % 20
            assert np.array_equal(found, np.repeat(commits, 1 + commits % 3)[:, None] * np.ones((1, 40), int))
            number = last


def store_forever(path, first, started, rng):
    """Make commit after commit by dask, whose threads write the chunks at the same time."""
    # Dask keeps a pool for each thread that called it; in a forked process those of the parent have no threads.
    with ThreadPoolExecutor(3) as pool, dask.config.set(scheduler="threads", pool=pool):
        for number in range(first, first + 100_000):
            source = da.full(SHAPE, number, chunks=CHUNKS)
            b2array.open(path, mode="r+").store(source)
            if number == first:
                os.write(started, b"!")


@LAYOUTS
def test_a_killed_parallel_write_leaves_the_last_commit(tmp_path, layout, torture, chance):
    path = tmp_path / "a.b2nd"
    b2array.create(path, SHAPE, "i8", chunks=CHUNKS, blocks=BLOCKS, layout=layout)
    number = 0
    for kill in range(torture // 8):
        killed_after(path, number + 1, chance.uniform(0, 4 * LONGEST), store_forever)  # a commit takes long
        number = check(path, number + 1)
        if kill % 20 == 19:
            b2array.vacuum(path, grace=0)
    b2array.vacuum(path, grace=0)
    assert b2array.verify(path, deep=True).leftovers == ()


ABREAST = 4
"""Writers of one array at the same time, each of rows of its own; the first chunk holds rows of two of them."""


def write_rows(path, me, first, done):
    """Give one's rows a number after the other, and note those that are committed."""
    a = b2array.open(path, mode="r+")
    rows = slice(12 * me, 12 * me + 12)
    for number in range(first, first + 100_000):
        a[rows] = number
        done[me] = number


@LAYOUTS
@pytest.mark.slow
def test_writers_go_on_beside_one_that_is_killed(tmp_path, layout, torture, chance):
    path = tmp_path / "a.b2nd"
    b2array.create(path, SHAPE, "i8", chunks=CHUNKS, blocks=BLOCKS, layout=layout)
    done = np.frombuffer(mmap.mmap(-1, 8 * ABREAST), "i8")
    writers = {}

    def begin(me, first):
        done[me] = first - 1
        child = os.fork()
        if not child:
            gc.freeze()
            try:
                write_rows(path, me, first, done)
            except BaseException:  # noqa: BLE001 - the process ends
                traceback.print_exc()
            finally:
                os._exit(1)
        writers[me] = child

    def kill(me):
        writer = writers.pop(me)
        os.kill(writer, signal.SIGKILL)
        return os.WIFSIGNALED(os.waitpid(writer, 0)[1])

    with config.using(threads=1, cache_bytes=0):
        try:
            for me in range(ABREAST):
                begin(me, 1)
            for count in range(torture // 4):
                time.sleep(chance.uniform(0, LONGEST))
                victim = chance.randrange(ABREAST)
                assert kill(victim), "the writer failed before it was killed"
                before = done.copy()
                found = b2array.open(path)[...].reshape(ABREAST, -1)
                assert (found == found[:, :1]).all(), f"a mixture: {[np.unique(rows) for rows in found]}"
                numbers = found[:, 0]
                assert (numbers >= before).all()
                assert numbers[victim] <= before[victim] + 1
                if count % 10 == 9:
                    report = b2array.verify(path, deep=True)
                    assert report.ok, str(report)
                begin(victim, int(numbers[victim]) + 1)
        finally:
            for me in list(writers):
                kill(me)
    assert b2array.verify(path, deep=True).ok
    assert done.sum() > 0
