"""Writers are killed at random moments. Afterwards there is exactly one committed state, and nothing is damaged."""

from __future__ import annotations

import gc
import os
import random
import select
import shutil
import signal
import sys
import time

import blosc2
import numpy as np
import pytest

import b2array
from b2array import config

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
        finally:
            os._exit(1)
    os.close(started)
    first_commit = select.select([ready], [], [], 30)[0] and os.read(ready, 1)
    os.close(ready)
    time.sleep(seconds)
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


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_killed_writer_leaves_the_last_commit(tmp_path, layout, torture, capsys):
    path = tmp_path / "a.b2nd"
    chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID", layout))
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


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
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


def test_a_killed_writer_of_a_group_leaves_the_last_commit(tmp_path, torture):
    path = tmp_path / "group.b2d"
    group = b2array.open_group(path, "w")
    options = {"chunks": CHUNKS, "blocks": BLOCKS, "cparams": b2array.CParams("lz4")}
    group.create("file", SHAPE, "i8", **options)
    group.create("directory", SHAPE, "i8", layout="sparse", **options)
    group.attrs["number"] = number = 0
    chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID", "group"))
    with config.using(threads=1):
        for _ in range(torture):
            killed_after(path, number + 1, chance.uniform(0, LONGEST), change_forever)
            number = check_group(path, number + 1, "r")
            assert check_group(path, number, "r+") == number
            for name in ("file", "directory"):  # the writer before has completed what was interrupted
                assert (blosc2.open(str(path / f"{name}.b2nd"))[...] == number).all()
                report = b2array.verify(path / f"{name}.b2nd", deep=True)
                assert report.ok, str(report)
