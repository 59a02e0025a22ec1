"""A disk that is full is an OSError whatever is written, and nothing is left."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

import b2array
from b2array.store import disk
from b2array.tools.member_commands import remove

VALUES = np.random.default_rng(0).integers(0, 255, (48, 128, 256)).astype("u1")
PROGRAM = """
import sys
import b2array
try:
    b2array.convert(sys.argv[1], sys.argv[2], **eval(sys.argv[3]))
except OSError as error:
    print(error.errno)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "a.b2nd"
    b2array.asarray(VALUES, url=path, chunks=(8, 64, 64))
    return path


def in_small_disk(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a disk of 1 MiB mounted on a directory; then list what is there."""
    run = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && "$@"; echo $?; ls -A "$0"', directory]
    try:
        if subprocess.run([*run, "true"], capture_output=True, text=True, check=False).stdout != "0\n":
            pytest.skip("this user cannot mount a disk")
    except FileNotFoundError:
        pytest.skip("there is no program unshare")
    return subprocess.run([*run, *command], capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a disk")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("x.npy", {}),
        pytest.param("x.h5", {}, marks=pytest.mark.slow),
        ("x.h5", {"compression": "blosc2"}),
        pytest.param("x.zarr", {}, marks=pytest.mark.slow),
        pytest.param("x.blp", {}, marks=pytest.mark.slow),
        ("x.b2nd", {}),
        pytest.param("x.b2d", {}, marks=pytest.mark.slow),
        pytest.param("x.b2z", {}, marks=pytest.mark.slow),
        ("x.b2nd", {"layout": "sparse"}),
    ],
)
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, source, name, options):
    arguments = str(source), str(tmp_path / name), repr(options)
    done = in_small_disk(tmp_path, sys.executable, "-c", PROGRAM, *arguments)
    assert done.stdout.split() == [str(errno.ENOSPC), "0"], done.stderr


def test_what_was_reserved_in_vain_is_given_back(tmp_path, source):
    b2array.convert(source, tmp_path / "x.h5", chunks=(8, 64, 64))
    about = (tmp_path / "x.h5").stat()
    assert about.st_blocks * 512 < about.st_size + 2**17
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_array_equal(file["data"][...], VALUES)


@pytest.mark.parametrize("can", [True, False])
def test_a_file_gets_its_room_before_it_is_mapped(tmp_path, monkeypatch, can):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "not here")

    if not can:
        monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    path = tmp_path / "file"
    path.write_bytes(b"head")
    os.truncate(path, 3 * 2**20)
    disk.allocate(str(path), 4)
    assert path.stat().st_blocks * 512 >= 3 * 2**20
    assert path.read_bytes() == b"head" + bytes(3 * 2**20 - 4)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="these systems write zeros")
def test_a_file_without_room_is_an_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left on device") as caught:
        b2array.convert(b2array.asarray(VALUES, url=tmp_path / "a.b2nd").url, tmp_path / "x.npy")
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".b2lock"] == ["a.b2nd"]


def test_room_is_compared_with_what_is_free_where_it_cannot_be_reserved(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    disk.reserve(str(path), 500)
    disk.reserve(str(path), 2000)
    assert path.stat().st_size == 1000
    monkeypatch.setattr(sys, "platform", "other")
    disk.reserve(str(path), 2000)
    with pytest.raises(OSError, match="No space left"):
        disk.reserve(str(path), 2**60)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
@pytest.mark.parametrize("name", ["x.h5", "x.npy"])
def test_a_limit_of_file_sizes_is_an_error_and_leaves_nothing(tmp_path, source, name):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            b2array.convert(source, tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [*tmp_path.iterdir()] == []


# A disk without room for one more name: everything fails that makes a file, and files that are there can be written.


def some(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((8, 30))


def make_source(directory: Path) -> b2array.Group:
    group = b2array.open_group(directory / "g.b2d", "w")
    with group.transaction() as changes:
        for n in range(3):
            changes.create(f"m{n}", data=some(n), layout="sparse" if n else "contiguous", chunks=(2, 30))
    return group


def change_members(group: b2array.Group, directory: Path) -> None:
    with group.transaction() as changes:
        changes["m1"][:4] = 1
        changes.create("new", data=some(9), chunks=(2, 30), layout="sparse")
        changes["m0"][0] = 2


def restore(group: b2array.Group, directory: Path) -> None:
    group.restore("s")


NEW = {"chunks": (2, 30), "layout": "sparse"}
CALLS: dict[str, Callable[[b2array.Group, Path], object]] = {
    "convert": lambda group, to: b2array.convert(to / "g.b2d", to / "c.b2d"),
    "a new array": lambda group, to: b2array.asarray(some(1), url=to / "n.b2nd", **NEW),
    "a new array below new directories": lambda group, to: b2array.asarray(some(1), url=to / "x" / "y" / "n.b2nd"),
    "a new member": lambda group, to: group.create("n", data=some(1), **NEW),
    "copy to a new group": lambda group, to: group.copy("m1", to / "o.b2d", "m1"),
    "copy to a new archive": lambda group, to: group.copy("m1", to / "o.b2z", "m1"),
    "a new group": lambda group, to: b2array.open_group(to / "o.b2d", "w"),
    "assignment": lambda group, to: group["m1"].__setitem__(slice(0, 4), 1),
    "a transaction": change_members,
    "restore": restore,
}


class FullDisk:
    """A disk that has room for so many new files and directories, or whose user may make so many more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room, self.reason = 10**9, errno.ENOSPC
        self._open, self._mkdir = os.open, os.mkdir
        monkeypatch.setattr(os, "open", self.open)
        monkeypatch.setattr(os, "mkdir", self.mkdir)

    def _take_room(self, path) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(self.reason, os.strerror(self.reason), path)

    def open(self, path, flags, *args, **kwargs):
        if flags & os.O_CREAT:
            try:
                os.stat(path, dir_fd=kwargs.get("dir_fd"), follow_symlinks=False)
            except FileNotFoundError:
                self._take_room(path)
        return self._open(path, flags, *args, **kwargs)

    def mkdir(self, path, *args, **kwargs):
        if not os.path.lexists(path):
            self._take_room(path)
        return self._mkdir(path, *args, **kwargs)


def names(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if not path.name.endswith(".b2lock")}


def places(call: str, tmp_path: Path, disk: FullDisk) -> Iterator[tuple[set[Path], set[Path]]]:
    """Make a call with room for no new name, for one, and so on until it succeeds: what was there before and after."""
    source = tmp_path / "source"
    source.mkdir()
    group = make_source(source)
    if call == "restore":
        group.snapshot("s")
        del group["m1"]
        group["m2"][0] = 5
    for room in range(60):
        directory = tmp_path / str(room)
        shutil.copytree(source, directory)
        group = b2array.open_group(directory / "g.b2d", "r+")
        before, disk.room = names(directory), room
        disk.reason = errno.EDQUOT if room % 2 else errno.ENOSPC
        raised = None
        try:
            CALLS[call](group, directory)
        except OSError as error:
            raised = error
        finally:
            disk.room = 10**9
        if raised is None:
            return
        assert raised.errno == disk.reason
        yield before, names(directory)


@pytest.mark.skipif(sys.platform == "win32", reason="os.stat takes no dir_fd there")
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_finds_no_room_for_a_name_leaves_nothing(tmp_path, monkeypatch, call):
    tried = 0
    for before, after in places(call, tmp_path, FullDisk(monkeypatch)):
        assert sorted(after - before) == []
        tried += 1
    assert tried


@pytest.mark.skipif(sys.platform == "win32", reason="os.stat takes no dir_fd there")
@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
def test_an_array_can_be_removed_from_a_full_disk(tmp_path, monkeypatch, layout):
    array = b2array.asarray(some(1), url=tmp_path / "a.b2nd", chunks=(2, 30), layout=layout)
    FullDisk(monkeypatch).room = 0
    remove(array.url, {}, recursive=False)
    assert [*tmp_path.iterdir()] == []


def test_a_copy_that_fails_keeps_the_empty_group_that_was_there(tmp_path, monkeypatch):
    group = make_source(tmp_path)
    b2array.open_group(tmp_path / "o.b2d", "w")
    FullDisk(monkeypatch).room = 0
    with pytest.raises(OSError, match="No space left"):
        group.copy("m1", tmp_path / "o.b2d")
    assert [*b2array.open_group(tmp_path / "o.b2d")] == []


def test_convert_waits_for_the_tasks_of_zarr_that_still_write(tmp_path, source, monkeypatch):
    zarr = pytest.importorskip("zarr")
    begun, written = [], []
    original = zarr.storage.LocalStore.set

    async def put(self, key, value):
        if key.endswith(".json"):
            await original(self, key, value)
            return
        begun.append(key)
        first = len(begun) == 1
        await asyncio.sleep(0.2 if first else 0.5)  # the others are under way when the first fails
        if first:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await original(self, key, value)
        written.append(key)

    monkeypatch.setattr(zarr.storage.LocalStore, "set", put)
    with pytest.raises(OSError, match="No space left"):
        b2array.convert(source, tmp_path / "x.zarr", chunks=(8, 64, 64))
    assert [*tmp_path.iterdir()] == []
    count = len(written)
    assert count == len(begun) - 1 > 0
    time.sleep(1)  # a task that begins later writes nothing
    assert (len(written), [*tmp_path.iterdir()]) == (count, [])
