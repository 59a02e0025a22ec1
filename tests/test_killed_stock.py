"""python-blosc2 is killed while it changes a file in its place: what can be saved is, and nothing else is given."""

from __future__ import annotations

import inspect
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import b2array
from b2array import config
from b2array.errors import B2ArrayError, ChunkMissingError, FormatError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")

NITEMS, NCHUNKS = 4096, 10
LONGEST = 0.04
"""Seconds that a writer lives at most: enough for some hundred changes."""


def content(n: int, version: int) -> np.ndarray:
    """Return the items of a version of a chunk: some versions take much more room than others."""
    rng = np.random.default_rng((n, version))
    return rng.integers(0, 2 ** (1 + version % 30), NITEMS) * 1000 + n


_WRITER = f"""
import os, random, sys
import blosc2, numpy as np
NITEMS, NCHUNKS = {NITEMS}, {NCHUNKS}
{inspect.getsource(content).replace("-> np.ndarray", "")}
blosc2.set_nthreads(1)
ONE = dict(cparams=dict(typesize=8, nthreads=1), dparams=dict(nthreads=1))

def change(path, seed):
    chance, held, version = random.Random(seed), blosc2.open(path, mode="a"), 0
    log = os.open(path + ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    while True:
        version += 1
        append = chance.random() < 0.4 and held.nchunks < 40
        n = held.nchunks if append else chance.randrange(held.nchunks)
        os.write(log, b"%012d %012d\\n" % (n, version))
        held.append_data(content(n, version)) if append else held.update_data(n, content(n, version), copy=True)

for line in sys.stdin:
    path, layout, seed = line.split()
    held = blosc2.SChunk(chunksize=8 * NITEMS, urlpath=path, mode="w", contiguous=layout == "contiguous", **ONE)
    for n in range(NCHUNKS):
        held.append_data(content(n, 0))
    held.vlmeta["unit"] = "K"
    del held
    child = os.fork()
    if not child:
        try:
            change(path, int(seed))
        finally:
            os._exit(1)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def writer() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _WRITER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()
        process.wait(30)


def killed(writer: subprocess.Popen[str], path: Path, layout: str, seed: int, seconds: float) -> list[tuple[int, int]]:
    """Let a process change a new file, kill it, and return the chunks and versions that it began to write."""
    log = Path(f"{path}.log")
    log.unlink(missing_ok=True)
    writer.stdin.write(f"{path} {layout} {seed}\n")
    writer.stdin.flush()
    child = int(writer.stdout.readline())
    deadline = time.monotonic() + 30
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert int(writer.stdout.readline()) == signal.SIGKILL, "the writer failed before it was killed"
    return [tuple(map(int, line.split())) for line in log.read_text().splitlines()]


def differing(path: Path, versions: dict[int, int], under_way: tuple[int, int], lost: tuple[int, ...]) -> set[int]:
    """Return the chunks that are neither lost nor as they were written last, after some that must be."""
    held = b2array.open_schunk(path)
    n_under_way, version = under_way
    assert held.nchunks in {len(versions), len(versions) + (n_under_way not in versions)}
    wrong = set()
    for n in range(min(held.nchunks, len(versions))):
        try:
            found = np.frombuffer(held.decompress_chunk(n), "i8")
        except ChunkMissingError:
            assert n in lost
            continue
        assert n not in lost
        wanted = [content(n, versions[n])] + [content(n, version)] * (n == n_under_way)
        if not any(np.array_equal(found, each) for each in wanted):
            wrong.add(n)
    return wrong


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_what_a_killed_writer_leaves_opens_or_is_repaired(tmp_path, writer, layout, torture, capsys):
    chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID", layout))
    path = tmp_path / "a.b2frame"
    repaired = refused = 0
    for _ in range(torture):
        begun = killed(writer, path, layout, chance.randrange(2**30), chance.uniform(0, LONGEST))
        versions = dict.fromkeys(range(NCHUNKS), 0) | dict(begun[:-1])
        lost: tuple[int, ...] = ()
        with config.using(cache_bytes=0):
            try:
                held = b2array.open_schunk(path)
                [held.decompress_chunk(n) for n in range(held.nchunks)]
            except B2ArrayError:
                repaired += 1
                try:
                    lost = b2array.repair(path).lost
                except FormatError:
                    # Chunks were being moved, so that only who knows that they are in order can say which is which.
                    refused += 1
                    assert layout == "contiguous"
                    lost = b2array.repair(path, trust_order=True).lost
                    assert lost
                assert b2array.verify(path, deep=True).lost == lost
            wrong = differing(path, versions, begun[-1], lost)
        # There are no checksums: where chunks were moved, one may look like another that stood in its place before.
        moved = layout == "contiguous" and begun[-1][0] in versions
        assert not wrong or (moved and min(wrong) > begun[-1][0]), (wrong, begun[-1])
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        for left in tmp_path.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    with capsys.disabled():
        print(f"\n{layout}: {torture} kills of python-blosc2, {repaired} files repaired, {refused} of them by leave")
