"""How many files stay open, and which."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import b2array
from b2array import config
from b2array.errors import ConflictError
from b2array.store.descriptors import allow, limit
from b2array.store.local_store import LocalStore
from b2array.store.spans import Span

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")

ROOT = Path(__file__).parents[2]
FEW = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
import numpy as np, b2array
b2array.config.durable, b2array.config.cache_bytes = "off", 0
place = sys.argv[1]
"""


def run(code: str, place: Path, soft: int, hard: int) -> str:
    program = FEW.format(soft=soft, hard=hard) + code
    done = subprocess.run(
        [sys.executable, "-c", program, place], capture_output=True, text=True, timeout=100, check=False, cwd=ROOT
    )
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.fixture
def members(tmp_path: Path) -> Path:
    """A group of more contiguous arrays than a process with few descriptors can have open."""
    place = tmp_path / "g.b2d"
    b2array.open_group(place, "w")["0"] = b2array.asarray(np.arange(8))
    first = place / "0.b2nd"
    for n in range(1, 80):
        shutil.copy(first, place / f"{n}.b2nd")
    return place


@pytest.mark.slow
def test_more_arrays_can_be_open_than_files(members):
    code = """
arrays = [b2array.open(f"{place}/{n}.b2nd", mode="r+") for n in range(80)]
for n, a in enumerate(arrays): a[0] = n
print(sum(int(a[0]) for a in arrays), sum(int(a[7]) for a in arrays))
"""
    assert run(code, members, 48, 48).split() == [str(sum(range(80))), str(80 * 7)]


def test_files_that_a_store_keeps_open_make_room_for_others(members):
    code = """
arrays = [b2array.open(f"{place}/{n}.b2nd") for n in range(80)]
files = []
try:
    while True: files.append(open("/dev/null"))
except OSError: pass
print([int(a[7]) for a in arrays] == [7] * 80)
files.pop(); files.pop()
print([int(b2array.open(f"{place}/{n}.b2nd")[7]) for n in range(80)] == [7] * 80)
"""
    assert run(code, members, 48, 48).split() == ["True", "True"]


def test_a_commit_of_many_members_needs_a_descriptor_for_each_not_more(members):
    code = """
g = b2array.open_group(place, "r+")
g.snapshot("then")
with g.transaction() as t:
    for n in range(80): t[str(n)][0] = 100
then = b2array.open_group(place, at="then")
print(sum(int(g[str(n)][0]) for n in range(80)), sum(int(then[str(n)][0]) for n in (3, 79)))
"""
    assert run(code, members, 120, 120).split() == ["8000", "0"]


@pytest.mark.slow
def test_a_commit_raises_the_limit_where_it_may_and_says_what_to_do_where_it_may_not(members):
    code = """
try:
    b2array.open_group(place, "r+").snapshot("then")
except OSError as error:
    print(error)
print(len(b2array.open_group(place).snapshots))
"""
    refused = run(code, members, 60, 60)
    assert "Too many open files (60 are allowed, of which" in refused
    assert "each member that a commit changes needs one; `ulimit -n` allows more" in refused
    assert refused.endswith("\n0\n")
    assert run(code, members, 60, 4000) == "1\n"


def test_the_limit_is_not_lowered_and_stays_below_what_the_process_may_have():
    before = limit()
    assert not allow(before)
    assert not allow(1)
    assert limit() == before


@pytest.fixture
def released(tmp_path: Path) -> LocalStore:
    """A store whose file was closed because others were used later."""
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    store = LocalStore(path)
    assert bytes(*store.read([Span("", 1, 3)])) == b"bc"
    store.release()
    return store


def test_a_released_file_is_opened_again(released):
    assert bytes(*released.read([Span("", 2, 4)])) == b"cd"
    released.release()
    assert bytes(released.gather([Span("", 4, 6)], [0], 2)) == b"ef"
    released.release()
    assert released.stamp_read("").size == 6


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.read([Span("", 2, 4)]),
        lambda store: store.gather([Span("", 4, 6)], [0], 2),
        lambda store: store.stamp_read(""),
    ],
)
def test_a_released_file_that_was_replaced_or_removed_is_a_conflict(released, read):
    path = Path(released.url)
    other = path.with_name("other")
    other.write_bytes(b"ABCDEF")
    other.replace(path)
    with pytest.raises(ConflictError, match="file changed since it was opened"):
        read(released)
    path.unlink()
    with pytest.raises(ConflictError, match="file was deleted or moved since it was opened"):
        read(released)
    path.write_bytes(b"ABCDEF")
    released.close()
    read(released)  # nothing was open before


def test_an_array_whose_file_was_released_and_replaced_gives_no_other_values(tmp_path):
    a = b2array.asarray(np.arange(8), url=tmp_path / "a.b2nd")
    with config.using(cache_bytes=0):
        reader = b2array.open(a.url)
        assert reader[3] == 3
        reader.close()
        b2array.asarray(np.zeros(8, int), url=a.url, overwrite=True)
        with pytest.raises(ConflictError):
            reader[3]


def test_a_file_closes_when_its_last_reader_is_done(released):
    before = _descriptors_of(released)
    released.read([Span("", 0, 1)])
    assert len(_descriptors_of(released)) == len(before) + sys.platform.startswith("linux")
    released.release()
    assert _descriptors_of(released) == before


def _descriptors_of(store: LocalStore) -> list[Path]:
    shown = Path("/proc/self/fd")
    return (
        [fd for fd in shown.iterdir() if fd.is_symlink() and str(fd.readlink()) == store.url] if shown.exists() else []
    )
