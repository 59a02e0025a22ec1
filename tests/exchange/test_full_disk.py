"""A disk that is full is an OSError whatever is written, and nothing is left."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import b2array
from b2array.store import disk

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
        ("x.h5", {}),
        ("x.h5", {"compression": "blosc2"}),
        ("x.zarr", {}),
        ("x.blp", {}),
        ("x.b2nd", {}),
        ("x.b2d", {}),
        ("x.b2z", {}),
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
