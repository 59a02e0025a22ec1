"""The model of a disk that loses what was not forced, for directories: their names, and what is in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from powerfail import Crash, Disk, materialise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the names of descriptors")

Files = dict[str, bytes]


def force(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a frame in it."""
    (tmp_path / "root" / "a").mkdir(parents=True)
    (tmp_path / "root" / "a" / "index").write_bytes(b"old")
    return tmp_path / "root"


def crashes(root: Path, change: Callable[[], object]) -> list[Crash]:
    disk = Disk(root)
    with disk.record():
        change()
        disk.done()
    return list(disk.crashes(1, 400))


def at_the_end(found: list[Crash]) -> list[Files]:
    """The different files of the states in which the change had returned."""
    states: list[Files] = []
    for crash in found:
        if crash.done and crash.files not in states:
            states.append(crash.files)
    return states


def test_a_directory_that_is_renamed_takes_its_files_along_or_keeps_its_name(root):
    found = crashes(root, lambda: os.rename(root / "a", root / "b"))
    assert [crash.files for crash in found if not crash.done and crash.moment == 0] == [{"a/index": b"old"}] * sum(
        crash.moment == 0 for crash in found
    )
    assert sorted(map(str, at_the_end(found))) == sorted(map(str, [{"a/index": b"old"}, {"b/index": b"old"}]))


def test_forcing_the_directory_above_keeps_the_new_name(root):
    def change() -> None:
        os.rename(root / "a", root / "b")
        force(root)

    assert at_the_end(crashes(root, change)) == [{"b/index": b"old"}]


def test_forcing_the_renamed_directory_keeps_what_is_in_it_but_not_its_name(root):
    def change() -> None:
        os.rename(root / "a", root / "b")
        write(root / "b" / "new", b"new")
        force(root / "b")

    states = at_the_end(crashes(root, change))
    files = {"index": b"old", "new": b"new"}
    assert len(states) == 2
    for name in "ab":
        assert {f"{name}/{file}": content for file, content in files.items()} in states


def test_a_directory_that_was_made_and_renamed_is_lost_as_a_whole_without_force(root):
    def change() -> None:
        os.mkdir(root / "staged")
        write(root / "staged" / "index", b"new")
        force(root / "staged")
        os.rename(root / "staged", root / "b")

    states = at_the_end(crashes(root, change))
    assert {"a/index": b"old"} in states
    assert {"a/index": b"old", "b/index": b"new"} in states


def test_one_directory_takes_the_place_of_another_one(root):
    def change() -> None:
        os.mkdir(root / "staged")
        write(root / "staged" / "index", b"new")
        force(root / "staged")
        force(root)
        os.rename(root / "a", root / "aside")
        os.rename(root / "staged", root / "a")
        force(root)
        os.unlink(root / "aside" / "index")
        os.rmdir(root / "aside")

    found = crashes(root, change)
    states = at_the_end(found)
    assert all(files["a/index"] == b"new" for files in states)
    assert {"a/index": b"new", "aside/index": b"old"} in states
    assert {"a/index": b"new"} in states
    # Before that, the one or the other may be there, or for a moment none: who does this needs a record of it.
    assert {files.get("a/index") for files in (crash.files for crash in found)} == {b"old", b"new", None}


def test_a_directory_never_has_two_names(root):
    def change() -> None:
        os.rename(root / "a", root / "b")
        os.rename(root / "b", root / "c")

    for crash in crashes(root, change):
        assert len(crash.files) == 1
        assert len(crash.directories) == 2


def test_names_relative_to_a_descriptor_are_recorded(root):
    def change() -> None:
        above = os.open(root, os.O_RDONLY)
        here = os.open(root / "a", os.O_RDONLY)
        os.rename("a", "b", src_dir_fd=above, dst_dir_fd=above)
        os.fsync(above)
        os.unlink("index", dir_fd=here)
        os.fsync(here)
        os.rmdir("b", dir_fd=above)
        os.fsync(above)
        os.close(here)
        os.close(above)

    found = crashes(root, change)
    assert at_the_end(found) == [{}]
    assert {frozenset(crash.directories) for crash in found if crash.done} == {frozenset({"."})}


def test_a_state_is_written_to_another_place(root, tmp_path):
    found = crashes(root, lambda: os.rename(root / "a", root / "b"))
    (tmp_path / "crashed").mkdir()
    materialise(next(crash for crash in found if "b" in crash.directories), tmp_path / "crashed")
    assert (tmp_path / "crashed" / "b" / "index").read_bytes() == b"old"
