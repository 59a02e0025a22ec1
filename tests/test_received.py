"""Groups and arrays that were received, for example in an archive, with links in them: nothing outside is touched."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import b2array
from b2array.catalog.manifest import MANIFEST, Manifest, PendingStep
from b2array.catalog.redo import inspect_place
from b2array.errors import FormatError, UnsupportedError
from b2array.store.endings import LOCK
from b2array.store.local_store import LocalStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege there")

REFUSED = "expected .*, found a symbolic link"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory outside: files, and an array with chunks that no index names."""
    path = tmp_path / "home"
    (path / "docs").mkdir(parents=True)
    (path / "thesis.txt").write_text("precious")
    (path / "docs" / "photo.jpg").write_text("precious")
    a = b2array.asarray(np.arange(8), url=path / "own.b2nd", chunks=(4,), layout="sparse")
    a[:4] = 0
    b2array.asarray(np.arange(8), url=path / "file.b2nd")
    return path


def content(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}


def group_with(tmp_path: Path, link: str, target: Path, manifest: Manifest | None = None) -> Path:
    url = tmp_path / "received.b2d"
    group = b2array.open_group(url, "w")
    group.create("good", data=np.arange(3))
    (url / link).parent.mkdir(exist_ok=True)
    (url / link).symlink_to(target)
    if manifest is not None:
        (url / MANIFEST).write_bytes(manifest.pack())
    return url


def removed(path: str, target: Path) -> Manifest:
    """Return a manifest that says that the frame behind a path was deleted."""
    before = inspect_place(LocalStore(target)).lasting
    return Manifest(identity="00" * 8, number=1, pending={path: PendingStep("delete", before, "", "0" * 16)})


def set_attribute(url: Path) -> None:
    b2array.open_group(url, "r+").attrs["note"] = 1


def transact(url: Path) -> None:
    with b2array.open_group(url, "r+").transaction() as changes:
        changes["good"][0] = 5


def make_again(url: Path) -> None:
    b2array.open_group(url, "w")


def complaint(write: Callable[[Path], object], url: Path) -> str:
    """Return what a call raises, or says in its results."""
    try:
        return str(write(url))
    except FormatError as error:
        return str(error)


WRITES = {
    "attribute": set_attribute,
    "transaction": transact,
    "overwrite": make_again,
    "vacuum": lambda url: b2array.vacuum(url, grace=0),
    "repack": b2array.repack,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("target", ["", "own.b2nd", "file.b2nd"])
def test_a_member_that_is_a_link_and_that_the_manifest_calls_deleted_is_refused(tmp_path, home, write, target):
    url = group_with(tmp_path, "m.b2nd", home / target, removed("m.b2nd", home / target))
    before = content(home)
    assert re.search(rf"m\.b2nd: {REFUSED}", complaint(write, url))
    assert content(home) == before
    assert (url / "m.b2nd").is_symlink()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_group_behind_a_link_is_refused_too(tmp_path, home, write):
    url = group_with(tmp_path, "inner", home, removed("inner/own.b2nd", home / "own.b2nd"))
    before = content(home)
    assert re.search(rf"inner: {REFUSED}", complaint(write, url))
    assert content(home) == before


@pytest.mark.parametrize("target", ["own.b2nd", "file.b2nd"])
def test_a_member_that_is_a_link_is_listed_and_refused_with_its_name(tmp_path, home, target):
    url = group_with(tmp_path, "m.b2nd", home / target)
    before = content(home)
    group = b2array.open_group(url, "r+")
    assert list(group) == ["good", "m"]
    assert group["good"][...].tolist() == [0, 1, 2]
    for use in (
        lambda: group["m"],
        lambda: b2array.open_group(url)["m"],
        lambda: group.__delitem__("m"),
        lambda: group.create("m", data=np.zeros(3), overwrite=True),
    ):
        with pytest.raises(FormatError, match=rf"m\.b2nd: {REFUSED}"):
            use()
    for results in (b2array.vacuum(url, grace=0), b2array.repack(url), b2array.verify(url), b2array.repair(url)):
        assert not results.ok
        assert "symbolic link" in str(results.members["m"])
    assert content(home) == before


def test_files_that_wait_behind_a_link_beside_an_array_stay(tmp_path, home):
    url = tmp_path / "a.b2nd"
    b2array.asarray(np.arange(8), url=url)
    (tmp_path / "a.b2nd.0123456789abcdef.b2write").symlink_to(home)
    (tmp_path / "a.b2nd.0123456789abcdef.b2tmp").symlink_to(home / "own.b2nd")
    before = content(home)
    assert b2array.vacuum(url, grace=0).removed == ()
    assert b2array.verify(url).leftovers == ()
    assert content(home) == before


@pytest.mark.parametrize("name", ["chunks.b2frame", "00000001.chunk"])
def test_a_part_of_a_directory_that_is_a_link_is_refused(tmp_path, home, name):
    url = tmp_path / "a.b2nd"
    b2array.asarray(np.arange(8), url=url, chunks=(4,), layout="sparse")
    (url / name).rename(home / "part")
    (url / name).symlink_to(home / "part")
    before = content(home)
    for use in (lambda: b2array.open(url)[...], lambda: b2array.open(url, "r+").__setitem__(slice(3, 6), 1)):
        with pytest.raises(FormatError, match=f"{name}: {REFUSED}"):
            use()
    assert content(home) == before


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_lock_that_is_a_link_changes_no_other_file(tmp_path, home, layout):
    url = tmp_path / "a.b2nd"
    a = b2array.asarray(np.arange(8), url=url, layout=layout)
    lock = url / LOCK if layout == "sparse" else Path(f"{url}{LOCK}")
    lock.symlink_to(home / "thesis.txt")
    before = content(home)
    for change in (lambda: a.__setitem__(0, 1), lambda: b2array.vacuum(url)):
        with pytest.raises(FormatError, match=rf"{LOCK}: {REFUSED}"):
            change()
    assert content(home) == before
    assert a[0] == 0


def test_a_manifest_that_is_a_link_is_refused(tmp_path, home):
    url = group_with(tmp_path, MANIFEST, home / "thesis.txt")
    for use in (lambda: list(b2array.open_group(url)), lambda: transact(url)):
        with pytest.raises(FormatError, match=rf"{MANIFEST}: {REFUSED}"):
            use()
    assert (home / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_the_urls_of_groups_and_arrays_may_be_links(tmp_path, layout):
    group = b2array.open_group(tmp_path / "real" / "g.b2d", "w")
    group.create("a", data=np.zeros(4), layout=layout)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "g.b2d").symlink_to("real/g.b2d")
    (tmp_path / "a.b2nd").symlink_to("real/g.b2d/a.b2nd")
    for number, url in enumerate((tmp_path / "link" / "g.b2d", tmp_path / "g.b2d")):
        with b2array.open_group(url, "r+").transaction() as changes:
            changes["a"][number] = 1
    b2array.open(tmp_path / "a.b2nd", "r+")[2] = 1
    assert b2array.open(tmp_path / "real" / "g.b2d" / "a.b2nd")[...].tolist() == [1, 1, 1, 0]
    del b2array.open_group(tmp_path / "g.b2d", "r+")["a"]
    assert not (tmp_path / "real" / "g.b2d" / "a.b2nd").exists()


def test_an_array_in_a_file_with_two_names_is_read_and_not_written(tmp_path):
    a = b2array.asarray(np.arange(8), url=tmp_path / "a.b2nd", chunks=(4,))
    (tmp_path / "b.b2nd").hardlink_to(tmp_path / "a.b2nd")
    before = (tmp_path / "a.b2nd").read_bytes()
    for name in "ab":
        handle = b2array.open(tmp_path / f"{name}.b2nd", "r+")
        assert handle[...].tolist() == [*range(8)]
        for change in (partial(handle.append, [1]), partial(handle.attrs.update, x=1)):
            with pytest.raises(UnsupportedError, match=rf"{name}\.b2nd: expected a file with one name.*Copy the file"):
                change()
    assert (tmp_path / "a.b2nd").read_bytes() == before
    (tmp_path / "b.b2nd").unlink()
    a.append([8])
    assert b2array.open(tmp_path / "a.b2nd")[8] == 8
