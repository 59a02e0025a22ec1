"""Handles of groups and arrays whose directory was renamed, deleted or replaced: their changes are refused."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import b2array
from b2array import Group, open_group
from b2array.commit import draft, forks
from b2array.errors import ConflictError

REFUSED = (ConflictError, FileNotFoundError)


def change_together(group: Group) -> None:
    with group.transaction() as changes:
        changes["x"][0] = 1
        changes.create("n", data=np.ones(3))


CHANGES: dict[str, Callable[[Group], object]] = {
    "attributes": lambda group: group.attrs.update(k=1),
    "items": lambda group: group.__setitem__("n", np.ones(3)),
    "items of a member": lambda group: group.__setitem__("x", np.ones(3)),
    "create": lambda group: group.create("n", data=np.ones(3)),
    "create sparse": lambda group: group.create("n", data=np.ones(3), layout="sparse"),
    "create more than fits": lambda group: group.create("n", data=RANDOM, chunks=(1, 64)),
    "create_group": lambda group: group.create_group("sub"),
    "require_group": lambda group: group.require_group("sub"),
    "require_array": lambda group: group.require_array("n", (3,), "f8"),
    "attributes of a part": lambda group: group["s"].attrs.update(k=1),
    "copy": lambda group: group.copy("x", group, "n"),
    "move": lambda group: group.move("x", "n"),
    "delete": lambda group: group.__delitem__("x"),
    "clear": lambda group: group.clear(),
    "consolidate": lambda group: group.consolidate(),
    "snapshot": lambda group: group.snapshot("s"),
    "transaction": change_together,
}
RANDOM = np.random.default_rng(0).normal(size=(8, 64))


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new chunks go to files early."""
    monkeypatch.setattr(draft, "_LEAST_IN_MEMORY", 2**10)
    monkeypatch.setattr(draft, "_MOST_IN_MEMORY", 2**10)
    monkeypatch.setattr(forks, "_IN_MEMORY", 2**10)


def made(url: Path, *, marked: bool) -> Group:
    group = open_group(url, "w")
    group["x"] = np.zeros(3)
    group["s/y"] = np.zeros(3)
    if marked:
        with group.transaction() as changes:
            changes["x"][0] = 5
    return group


def files(url: Path) -> dict[str, bytes]:
    paths = [path for path in sorted(url.rglob("*")) if path.is_file() and not path.name.endswith(".b2lock")]
    return {str(path.relative_to(url)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("how", ["renamed", "deleted"])
@pytest.mark.parametrize("way", ["same", "pickled"])
def test_no_change_makes_a_directory_again_that_was_renamed_or_deleted(
    name: str, how: str, way: str, tmp_path: Path
) -> None:
    url = tmp_path / "g.b2d"
    made(url, marked=False)
    group = open_group(url, "r+")
    assert group["s/y"][0] == group["x"][0] == 0
    if way == "pickled":
        group = pickle.loads(pickle.dumps(group))
    if how == "renamed":
        url.rename(tmp_path / "h.b2d")
        there = files(tmp_path / "h.b2d")
    else:
        shutil.rmtree(url)
    with pytest.raises(REFUSED):
        CHANGES[name](group)
    assert not url.exists()
    if how == "renamed":
        assert files(tmp_path / "h.b2d") == there
        (tmp_path / "h.b2d").rename(url)
        open_group(url, "r+").attrs["k"] = 1  # as before


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("marked", [True, False])
def test_no_change_goes_to_another_group_in_the_same_place(name: str, marked: bool, tmp_path: Path) -> None:
    url = tmp_path / "g.b2d"
    made(url, marked=marked)
    group = open_group(url, "r+")
    assert group["s/y"][0] == 0
    url.rename(tmp_path / "h.b2d")
    made(url, marked=marked)
    there = files(url)
    with pytest.raises(REFUSED):
        CHANGES[name](group)
    assert files(url) == there
    open_group(url, "r+").attrs["k"] = 1


@pytest.mark.parametrize("kind", ["local", "memory"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_transaction_does_not_commit_to_a_group_that_was_made_again(kind: str, begun: bool, tmp_path: Path) -> None:
    url = str(tmp_path / "g.b2d") if kind == "local" else f"memory://{tmp_path.name}/g.b2d"

    def make_again() -> None:
        if kind == "local":
            shutil.rmtree(url)
        else:
            fsspec.filesystem("memory").rm(url, recursive=True)
        with open_group(url, "w").transaction() as changes:
            changes["other"] = np.arange(3)

    with open_group(url, "w").transaction() as changes:
        changes["x"] = np.zeros(3)
    group = open_group(url, "r+")
    assert list(group) == ["x"]
    if not begun:
        make_again()
    with pytest.raises(ConflictError), group.transaction() as changes:  # noqa: PT012
        if begun:
            make_again()
        changes["new"] = np.arange(2)
    assert list(open_group(url)) == ["other"]


@pytest.mark.parametrize("change", ["attributes", "items", "transaction", "consolidate"])
def test_no_change_makes_a_group_again_that_was_deleted_from_an_object_store(change: str, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/g.b2d"
    made(url, marked=True)  # type: ignore[arg-type]
    group = open_group(url, "r+")
    array = group["x"]
    memory = fsspec.filesystem("memory")
    memory.rm(url, recursive=True)
    with pytest.raises(REFUSED):
        CHANGES[change](group)
    with pytest.raises(ConflictError):
        array[0] = 1
    assert not memory.exists(url) or memory.find(url) == []


def of_array(directory: Path, **options: Any) -> b2array.NDArray:
    return b2array.zeros(RANDOM.shape, url=directory / "old" / "a.b2nd", chunks=(2, 64), **options)


@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("forked", [True, False])
def test_a_refused_write_to_an_array_does_not_make_its_directory_again(
    layout: str, above: bool, begun: bool, forked: bool, tmp_path: Path
) -> None:
    array = of_array(tmp_path, layout=layout)
    old = tmp_path / "old" if above else tmp_path / "old" / "a.b2nd"

    def write() -> None:
        if not begun:
            old.rename(tmp_path / "new")
        with array.transaction() as changes:
            if begun:
                changes[0] = 1
                old.rename(tmp_path / "new")
            if forked:
                part = pickle.loads(pickle.dumps(changes.fork()))
                part[...] = RANDOM
                changes.merge(part)
            changes[2:] = RANDOM[2:]

    with pytest.raises(REFUSED):
        write()
    assert not old.exists()
    (tmp_path / "new").rename(old)
    assert not b2array.open(array.url)[...].any()
    assert not [*tmp_path.rglob("*.b2tmp")]


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_group_that_a_backup_has_brought_back_with_old_times_is_read_and_continued(
    in_place: bool, layout: Any, tmp_path: Path
) -> None:
    """As rsync or tar do it: whole files, or in place, with the times that they had when they were copied."""
    url, backup = tmp_path / "g.b2d", tmp_path / "backup"
    group, other = open_group(url, "w"), open_group(url, "a")
    group.create("x", data=np.zeros(8), chunks=(2,), layout=layout)
    with group.transaction() as changes:
        changes["x"][0] = 1
    shutil.copytree(url, backup)
    with group.transaction() as changes:
        changes["x"][...] = 2
    reader, writer = open_group(url)["x"], other["x"]
    assert (reader[7], writer[7]) == (2, 2)
    for file in [path for path in url.rglob("*") if path.is_file() and not path.name.endswith("lock")]:
        copy = backup / file.relative_to(url)
        if not copy.exists() or not in_place:
            file.unlink()
        if copy.exists():
            file.write_bytes(copy.read_bytes())
            shutil.copystat(copy, file)
    assert open_group(url)["x"][:].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    reader.refresh()
    assert reader[:].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    writer[4] = 3
    with group.transaction() as changes:
        changes["x"][6] = 4
    b2array.vacuum(url, grace=0)
    assert b2array.verify(url, deep=True).ok
    assert open_group(url)["x"][:].tolist() == [1, 0, 0, 0, 3, 0, 4, 0]
