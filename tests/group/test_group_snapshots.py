"""Snapshots of groups: all members at one moment, whatever becomes of the members later."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import blosc2
import fsspec
import numpy as np
import pytest
from lengths import Sampled
from operations import WRITES, Killed, Operations, compare

import b2array
from b2array import Group, config, open_group
from b2array.errors import B2ArrayError, ConflictError, FormatError, LimitError, ReadOnlyError, UnsupportedError
from b2array.group.snapshots import GroupDiff
from b2array.store import base
from b2array.store.open import open_store

pytestmark = pytest.mark.filterwarnings("ignore:.*one file in this store")

Contents = dict[str, Any]
_serials = itertools.count()


class Where(NamedTuple):
    """Where a group is made."""

    url: str
    options: dict[str, object] | None = None

    def open(self, mode: Any = "r", **more: Any) -> Group:
        return open_group(self.url, mode, storage_options=self.options, **more)

    def at(self, name: str, member: str = "") -> Any:
        url = f"{self.url}/{member}" if member else self.url
        return b2array.open(url, at=name, storage_options=self.options)

    def files(self) -> list[str]:
        return open_store(self.url, storage_options=self.options).walk()


EVERYWHERE = pytest.mark.parametrize("where", ["local", "memory", "s3"], indirect=True)


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    if request.param == "local":
        return Where(str(tmp_path / "g.b2d"))
    if request.param == "memory":
        return Where(f"memory://group-snapshots-{next(_serials)}.b2d")
    bucket = request.getfixturevalue("bucket")
    return Where(f"s3://{bucket}/g.b2d", request.getfixturevalue("s3_options"))


def contents(group: Group) -> Contents:
    inner = {f"{name}/{key}": value for name, each in group.groups().items() for key, value in contents(each).items()}
    attrs = {f"@{name}": value for name, value in group.attrs.items()}
    return {**{name: each[...].tolist() for name, each in group.arrays().items()}, **attrs, **inner}


def prepared(where: Where) -> Group:
    """Make a group with members in a file and in a directory, without items, in an inner group; attributes."""
    group = where.open("w")
    group.create("time", data=np.arange(6), chunks=(2,), layout="contiguous", dims=["t"])
    group.create("level", data=np.arange(6.0), chunks=(2,), layout="sparse", dims=["t"])
    group.create("a/gone", data=[1, 2, 3], layout="contiguous")
    group.create("a/sparse", data=[4, 5], layout="sparse")
    group.create("empty", 0, "i4")
    group.attrs["n"] = 1
    group["a"].attrs["m"] = 2
    return group


def change(group: Group) -> None:
    """Change, replace, move, delete and make members and attributes."""
    group["time"][:2] = 50
    group["level"].resize(8)
    group["empty"].append([1])
    group.attrs["n"] = 7
    del group["a/gone"]
    group.create("a/sparse", data=[8.5, 9.5, 7.5], overwrite=True)
    group["new/x"] = [1]
    group.move("level", "height")


@EVERYWHERE
def test_a_snapshot_shows_all_members_and_attributes_whatever_became_of_them(where: Where) -> None:
    group = prepared(where)
    before = contents(group)
    group.snapshot("start", "before the changes", {"by": "me"})
    assert contents(group) == before
    change(group)
    after = contents(group)
    assert before != after
    then = where.open(at="start")
    assert contents(then) == before
    assert contents(where.open()) == after
    assert then["time"].dims == then["level"].dims == ("t",)
    assert then["a/gone"].mode == then.mode == "r"
    assert then["a"]["sparse"][...].tolist() == before["a/sparse"]
    assert "new" not in then
    assert [*then.walk()] != [*where.open().walk()]
    again = pickle.loads(pickle.dumps(then))
    assert contents(again) == before
    assert then.read_many({"time": slice(1, 3), "a/gone": 0})["a/gone"] == 1
    (info,) = where.open().snapshots
    assert (info.name, info.message, info.attrs, info.shape) == ("start", "before the changes", {"by": "me"}, None)
    assert info.nbytes > 0
    assert abs(datetime.now(UTC) - info.time) < timedelta(minutes=5)
    assert b2array.verify(where.url, deep=True, storage_options=where.options).ok


def test_a_member_is_opened_at_a_snapshot_by_its_own_url(where: Where) -> None:
    group = prepared(where)
    group.snapshot("start")
    change(group)
    assert where.at("start", "time")[...].tolist() == [*range(6)]
    assert where.at("start", "time.b2nd")[...].tolist() == [*range(6)]
    assert where.at("start", "a/gone")[...].tolist() == [1, 2, 3]
    assert where.at("start", "a/gone.b2nd")[...].tolist() == [1, 2, 3]
    assert where.at("start", "a/sparse.b2nd")[...].tolist() == [4, 5]
    assert where.at("start", "level")[...].tolist() == [*range(6)]
    assert sorted(where.at("start")) == ["a", "empty", "level", "time"]
    assert where.at("start", "a")["gone"][0] == 1
    assert b2array.open_group(f"{where.url}/a", at="start", storage_options=where.options).attrs["m"] == 2
    with pytest.raises(FileNotFoundError, match="new"):
        open_group(f"{where.url}/new", at="start", storage_options=where.options)
    with pytest.raises(KeyError, match="no snapshot 'start'"):
        where.at("start", "new/x")
    with pytest.raises(FileNotFoundError):
        where.at("start", "nowhere")
    for member in ("", "time", "a", "a/gone"):
        with pytest.raises((KeyError, FileNotFoundError)):
            where.at("never", member)


def test_a_member_has_snapshots_of_its_own_beside_those_of_the_group(where: Where) -> None:
    group = prepared(where)
    group["time"].snapshot("mine")
    group.snapshot("ours")
    group["time"][0] = 9
    assert where.at("mine", "time")[0] == where.at("ours", "time")[0] == 0
    with pytest.raises(FileExistsError, match=r"time\.b2nd has a snapshot 'mine' of its own"):
        group.snapshot("mine")
    with pytest.raises(FileExistsError, match=r"time\.b2nd.* of its own"):
        group.snapshot("mine", replace=True)
    assert [each.name for each in group.snapshots] == ["ours"]
    with pytest.raises(ValueError, match="snapshot of the group"):
        group["time"].drop_snapshot("ours")
    with pytest.raises(ValueError, match="snapshot of the group"):
        group["time"].snapshot("ours", replace=True)
    group.move("time", "moved")
    assert [each.name for each in group["moved"].snapshots] == ["mine"]
    assert where.at("ours", "time")[0] == where.at("mine", "moved")[0] == 0


def test_a_name_that_a_member_gives_up_in_a_transaction_is_free_for_the_group(where: Where) -> None:
    group = prepared(where)
    group["time"].snapshot("x")
    group["time"][0] = 9
    with group.transaction() as changes:
        changes["time"].drop_snapshot("x")
        changes.snapshot("x")
    assert where.open(at="x")["time"][0] == where.at("x", "time")[0] == 9
    assert [each.name for each in group["time"].snapshots] == ["x"]


def test_a_second_snapshot_of_a_name_says_how_to_replace_it(where: Where) -> None:
    group = prepared(where)
    group.snapshot("x")
    group["time"][0] = 9
    del group["a/gone"]
    with pytest.raises(FileExistsError, match="replace=True"):
        group.snapshot("x")
    assert contents(where.open(at="x"))["time"][0] == 0
    group.snapshot("x", replace=True)
    assert contents(where.open(at="x")) == contents(group)
    assert len(group.snapshots) == 1
    assert not [path for path in where.files() if path.startswith(".b2retired/")]
    with pytest.raises(KeyError, match="no snapshot 'y'; it has 'x'"):
        group.drop_snapshot("y")
    with pytest.raises(KeyError, match="no snapshot 'y'; it has 'x'"):
        group.restore("y")
    with pytest.raises(KeyError, match="no snapshot 'y'; it has 'x'"):
        group.diff("y")


def test_restore_goes_back_in_one_commit_and_keeps_all_snapshots(where: Where) -> None:
    group = prepared(where)
    before = contents(group)
    group.snapshot("start")
    change(group)
    after = contents(group)
    group.snapshot("later")
    group.restore("start")
    assert contents(group) == contents(where.open()) == before
    assert group["a/gone"].info["layout"] == "contiguous"
    assert group["a/sparse"].info["layout"] == "sparse"
    assert group["time"].dims == ("t",)
    group.restore("later")
    assert contents(where.open()) == after
    group.restore("start")
    assert contents(where.open()) == before
    assert [each.name for each in group.snapshots] == ["start", "later"]
    assert contents(where.open(at="later")) == after
    assert contents(where.open(at="start")) == before


def test_dropped_snapshots_leave_nothing_behind(where: Where) -> None:
    group = prepared(where)
    group.snapshot("one")
    change(group)
    group.snapshot("two")
    del group["time"]
    two = where.open(at="two")
    assert two["time"][0] == 50
    group.drop_snapshot("one")
    with pytest.raises(KeyError, match="it has 'two'"):
        where.open(at="one")
    assert contents(where.open(at="two"))["time"][0] == 50
    group.drop_snapshot("two")
    assert group.snapshots == ()
    with pytest.raises(ConflictError):
        two["time"]
    b2array.vacuum(where.url, grace=0, storage_options=where.options)
    b2array.repack(where.url, storage_options=where.options)
    assert not [path for path in where.files() if "b2kept" in path or "b2retired" in path]
    assert all(member.snapshots == () for _, member in where.open().walk() if not isinstance(member, Group))
    assert b2array.verify(where.url, storage_options=where.options).ok


def test_diff_names_members_and_boxes(where: Where) -> None:
    group = prepared(where)
    group.snapshot("start")
    assert not group.diff("start")
    assert group.diff("start") == GroupDiff()
    group["time"][2:3] = 50
    del group["a/gone"]
    group.create("level", data=[1.0], overwrite=True)
    group["new"] = [1]
    group["a"].attrs["m"] = 3
    group["time"].attrs["unit"] = "s"
    found = group.diff("start")
    assert found.made == ("new",)
    assert found.deleted == ("a/gone",)
    assert found.changed == {"level": [(slice(0, 6),)], "time": [(slice(2, 4),)]}
    assert {"a", "time"} <= {*found.attrs}
    group.snapshot("later")
    assert group.diff("start", "later") == found
    back = group.diff("later", "start")
    assert (back.made, back.deleted) == (found.deleted, found.made)
    assert group.diff("later") == GroupDiff()


def test_members_of_a_transaction_are_kept_as_its_commit_makes_them(where: Where) -> None:
    group = prepared(where)
    with group.transaction() as changes:
        changes.snapshot("x")
        changes["time"][0] = 9
        changes["new"] = [5]
        changes["new"][0] = 6
        del changes["a/gone"]
        with pytest.raises(FileExistsError, match="makes a snapshot 'x' already"):
            changes.snapshot("x")
        with pytest.raises(ValueError, match="transaction is under way"):
            _ = changes.snapshots
    expected = contents(group)
    assert expected["new"] == [6]
    group["time"][:] = 1
    group["new"] = [7]
    assert contents(where.open(at="x")) == expected
    with pytest.raises(RuntimeError), group.transaction() as changes:
        _drop_and_fail(changes)
    assert [each.name for each in group.snapshots] == ["x"]
    with group.transaction() as changes:
        changes.drop_snapshot("x")
        changes.snapshot("y")
        changes.snapshot("z")
    assert [each.name for each in group.snapshots] == ["y", "z"]
    group.drop_snapshot("y")
    assert contents(where.open(at="z")) == contents(group)


def _drop_and_fail(group: Group) -> None:
    group.drop_snapshot("x")
    group.snapshot("y")
    raise RuntimeError


def test_a_group_without_members_has_snapshots(where: Where) -> None:
    group = where.open("w")
    group.snapshot("nothing")
    group["x"] = [1]
    assert contents(where.open(at="nothing")) == {}
    group.restore("nothing")
    assert contents(where.open()) == {}


def test_a_new_group_in_the_place_of_an_old_one_has_no_snapshots(where: Where) -> None:
    prepared(where).snapshot("old")
    group = where.open("w")
    assert group.snapshots == ()
    assert not [path for path in where.files() if "b2kept" in path or "b2retired" in path]


def test_a_transaction_that_begins_with_nothing_keeps_what_snapshots_need(where: Where) -> None:
    group = prepared(where)
    before = contents(group)
    group.snapshot("start")
    with group.transaction(replace=True) as changes:
        changes["time"] = [1]
    assert contents(where.open()) == {"time": [1]}
    assert contents(where.open(at="start")) == before


def test_vacuum_and_repack_keep_what_snapshots_need_and_remove_what_none_does(where: Where) -> None:
    group = prepared(where)
    before = contents(group)
    group.snapshot("start")
    change(group)
    store = open_store(where.url, storage_options=where.options)
    orphans = ["00000000000000aa.b2kept", ".b2retired/00000000000000bb/chunks.b2frame"]
    for name in orphans:
        store.create(name, b"x")
    assert b2array.vacuum(where.url, storage_options=where.options).ok
    assert {*orphans} <= {*where.files()}
    b2array.vacuum(where.url, grace=0, storage_options=where.options)
    assert not {*orphans} & {*where.files()}
    b2array.repack(where.url, storage_options=where.options)
    assert contents(where.open(at="start")) == before


def test_a_snapshot_can_only_be_read(where: Where) -> None:
    prepared(where).snapshot("x")
    then = where.open(at="x")
    for task in (
        lambda: then.create("y", 3),
        lambda: then.attrs.update(n=2),
        lambda: then.snapshot("y"),
        lambda: then.restore("x"),
        lambda: then.drop_snapshot("x"),
        lambda: then.transaction().__enter__(),
        lambda: then["time"].__setitem__(0, 1),
        lambda: then.__delitem__("time"),
    ):
        with pytest.raises(ReadOnlyError):
            task()
    for more in ({"mode": "r+"}, {"mode": "a"}, {"follow": True}):
        with pytest.raises(ValueError, match="opened for reading"):
            open_group(where.url, at="x", storage_options=where.options, **more)
    assert [each.name for each in then.snapshots] == ["x"]
    then.refresh()
    then.close()
    assert then["time"][0] == 0


def test_an_inner_group_says_where_its_snapshots_are(where: Where) -> None:
    inner = prepared(where)["a"]
    for task in (
        lambda: inner.snapshot("x"),
        lambda: inner.restore("x"),
        lambda: inner.drop_snapshot("x"),
        lambda: inner.diff("x"),
        lambda: inner.snapshots,
    ):
        with pytest.raises(ValueError, match=r"inside the group .*g.*open_group"):
            task()


def test_expire_drops_old_snapshots_of_groups_and_arrays(where: Where) -> None:
    group = prepared(where)
    for name in ("a1", "a2", "a3"):
        group.snapshot(name)
    group["time"].snapshot("own")

    def expire(member: str = "", **how: Any) -> tuple[str, ...]:
        return b2array.expire(f"{where.url}/{member}".rstrip("/"), storage_options=where.options, **how)

    assert expire(keep_last=2, dry_run=True) == ("a1",)
    assert expire(keep_last=2) == ("a1",)
    assert expire(older_than="1h") == ()
    assert expire(older_than=timedelta(0), keep_last=1) == ("a2",)
    assert expire(older_than=datetime(2020, 1, 1, tzinfo=UTC)) == ()
    assert expire("time", older_than=0) == ("own",)
    assert [each.name for each in where.open().snapshots] == ["a3"]
    assert expire(older_than=0) == ("a3",)
    assert expire(older_than=0) == ()
    with pytest.raises(TypeError, match="older_than"):
        expire()
    with pytest.raises(ValueError, match="keep_last"):
        expire(keep_last=-1)


def test_xarray_opens_a_group_at_a_snapshot(where: Where) -> None:
    xr = pytest.importorskip("xarray")
    group = prepared(where)
    group.snapshot("start")
    options = {"engine": "b2array", "at": "start", "storage_options": where.options}
    before = {name: each.load() for name, each in xr.open_groups(where.url, **options).items()}
    change(group)
    ds = xr.open_dataset(where.url, **options)
    xr.testing.assert_identical(ds.load(), before["/"])
    assert ds.level.values.tolist() == [*range(6)]
    tree = xr.open_datatree(where.url, **options)
    assert tree["a/gone"].values.tolist() == [1, 2, 3]
    assert tree["a"].attrs["m"] == 2
    inner = xr.open_dataset(where.url, group="a", **options)
    assert inner.sparse.values.tolist() == [4, 5]
    alone = xr.open_dataset(f"{where.url}/a/gone.b2nd", **options)
    assert alone.gone.values.tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="open already"):
        xr.open_dataset(group, engine="b2array", at="start")
    lazy = xr.open_dataset(where.url, chunks={}, **options)
    again = pickle.loads(pickle.dumps(lazy))
    del group["time"]
    group["height"][:] = 0
    assert again.level.sum().compute().item() == 15
    assert where.open(at="start").to_xarray().time.values.tolist() == [*range(6)]


def test_dask_reads_a_member_of_a_snapshot(where: Where) -> None:
    da = pytest.importorskip("dask.array")
    group = prepared(where)
    group.snapshot("start")
    change(group)
    for name in ("time", "level"):
        lazy = da.from_array(where.open(at="start")[name])
        assert pickle.loads(pickle.dumps(lazy)).sum().compute() == 15


def test_another_writer_who_makes_a_member_meanwhile_is_not_left_out(where: Where) -> None:
    group, other = prepared(where), where.open("r+")
    with pytest.raises(ConflictError, match="made or deleted"), group.transaction() as changes:  # noqa: PT012
        changes.snapshot("x")
        other["late"] = [1]
    assert group.snapshots == ()
    group.snapshot("x")
    assert where.open(at="x")["late"][0] == 1
    other.refresh()
    with group.transaction() as changes:
        changes.snapshot("y")
        other["time"][0] = 77
    assert where.open(at="y")["time"][0] == 77


def test_two_writers_of_one_snapshot_do_not_both_succeed(where: Where) -> None:
    group, other = prepared(where), where.open("r+")
    with pytest.raises((FileExistsError, ConflictError)), group.transaction() as changes:  # noqa: PT012
        changes.snapshot("x")
        other.snapshot("x", "of the other")
    assert [each.message for each in where.open().snapshots] == ["of the other"]
    assert contents(where.open(at="x")) == contents(where.open())


def test_a_snapshot_that_waits_for_its_members_follows_them_to_where_they_are_retired(where: Where) -> None:
    group = prepared(where)
    group.snapshot("x")
    then = where.open(at="x")
    assert sorted(then) == ["a", "empty", "level", "time"]
    del group["time"], group["level"]
    assert then["time"][...].tolist() == then["level"][...].tolist() == [*range(6)]


def test_a_member_that_somebody_removed_without_the_group_is_told_by_name(tmp_path: Path) -> None:
    group = prepared(Where(str(tmp_path / "g")))
    group.snapshot("x")
    (tmp_path / "g/time.b2nd").unlink()
    shutil.rmtree(tmp_path / "g/level.b2nd")
    b2array.asarray([1.0], url=tmp_path / "g/level.b2nd")
    then = open_group(tmp_path / "g", at="x")
    for name in ("time", "level"):
        with pytest.raises(FormatError, match=rf"'x' of {name}\.b2nd"):
            then[name]
    assert then["a/gone"][0] == 1
    with pytest.raises(FormatError):
        group.restore("x")
    group.drop_snapshot("x")
    assert group.snapshots == ()


def test_a_member_whose_snapshot_other_software_took_says_that_it_is_to_be_dropped_first(tmp_path: Path) -> None:
    url = str(tmp_path / "g.b2d")
    group = open_group(url, "w")
    for layout in ("contiguous", "sparse"):
        group.create(layout, data=np.arange(100), chunks=(10,), layout=layout)
    group.snapshot("x")
    for name in group:
        blosc2.open(f"{url}/{name}.b2nd", mode="a")[:] = np.random.default_rng(0).integers(0, 999, 100)
    group = open_group(url, "r+")
    for name in ("contiguous", "sparse"):
        with pytest.raises(FormatError, match=rf"{name}\.b2nd cannot go.*drop them first: 'x'"):
            del group[name]
    assert [each.name for each in group.snapshots] == ["x"]
    group.drop_snapshot("x")
    del group["contiguous"], group["sparse"]
    assert not {*group}


def test_a_restored_member_finds_a_free_place_where_layouts_changed(where: Where) -> None:
    group = where.open("w")
    group.create("x", data=[1], layout="sparse")
    group.create("x", data=[2], layout="contiguous", overwrite=True)
    group.snapshot("two")
    group.create("x", data=[3], layout="contiguous", overwrite=True)
    group.create("x", data=[4], layout="sparse", overwrite=True)
    group.restore("two")
    assert contents(where.open()) == contents(where.open(at="two")) == {"x": [2]}
    assert group["x"].info["layout"] == "contiguous"


@EVERYWHERE
def test_vacuum_finds_dropped_states_of_members_that_are_gone(where: Where) -> None:
    group = where.open("w")
    group.create("holes", data=np.zeros(4), chunks=(2,), layout="sparse")
    group.create("items", data=np.arange(4), chunks=(2,), layout="sparse")
    group.snapshot("x")
    group.drop_snapshot("x")
    del group["holes"], group["items"]
    b2array.vacuum(where.url, grace=0, storage_options=where.options)
    assert not [path for path in where.files() if "b2kept" in path or "b2retired" in path]


def test_damage_of_the_list_of_members_is_told(tmp_path: Path) -> None:
    group = prepared(Where(str(tmp_path / "g")))
    group.snapshot("x")
    (listed,) = (tmp_path / "g").glob("*.b2kept")
    content = listed.read_bytes()
    for damaged in (content[:-1] + b"\0", content[:20], b"\0" + content[1:]):
        listed.write_bytes(damaged)
        with pytest.raises(FormatError):
            open_group(tmp_path / "g", at="x")
    listed.unlink()
    with pytest.raises(FormatError, match="members of the snapshot 'x'"):
        open_group(tmp_path / "g", at="x")
    assert contents(open_group(tmp_path / "g")) == contents(group)
    group.drop_snapshot("x")


def test_python_blosc2_sees_the_members_and_nothing_else(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    url = str(tmp_path / "g.b2d")
    with blosc2.TreeStore(url, mode="w", threshold=0) as tree:
        tree["/x"], tree["/in/y"], tree["/gone"] = np.arange(3), np.arange(4.0), np.arange(5)
    group = open_group(url, "r+")
    group.snapshot("start")
    group["x"][0] = 7
    del group["gone"]
    with blosc2.TreeStore(url, mode="r") as tree:
        assert {*tree.keys()} == {"/x", "/in", "/in/y"}
        assert tree["/x"][:].tolist() == [7, 1, 2]
    with blosc2.TreeStore(url, mode="a") as tree:
        tree["/in/y"][0] = 5
        tree["/z"] = np.arange(2)
    then = open_group(url, at="start")
    assert then["gone"][...].tolist() == [*range(5)]
    assert then["x"][...].tolist() == [0, 1, 2]
    with suppress(ConflictError):  # other software may have taken the place of the old chunk
        assert then["in/y"][0] == 0
    assert not [each for each in recwarn if "b2retired" in str(each.message)]


def test_embedded_members_get_files_of_their_own(tmp_path: Path) -> None:
    url = str(tmp_path / "g.b2d")
    with blosc2.TreeStore(url, mode="w", threshold=2**20) as tree:
        tree["/x"], tree["/in/y"] = np.arange(3), np.arange(4.0)
        tree.vlmeta["n"] = 1
    before = contents(open_group(url))
    group = open_group(url, "r+")
    group.snapshot("start")
    assert contents(open_group(url)) == before
    assert (tmp_path / "g.b2d/x.b2nd").exists()
    group["x"][0] = 7
    del group["in/y"]
    assert contents(open_group(url, at="start")) == before
    with blosc2.TreeStore(url, mode="r") as tree:
        assert tree["/x"][:].tolist() == [7, 1, 2]


def test_an_archive_says_that_it_has_no_place_for_snapshots_of_the_group(tmp_path: Path) -> None:
    url = str(tmp_path / "g.b2z")
    with open_group(url, "w") as group:
        group.create("x", data=[1, 2], layout="contiguous")
        group.create("y", data=[1, 2], layout="sparse")
        with pytest.raises(UnsupportedError, match="archive"):
            group.snapshot("s")
        for name in ("x", "y"):
            group[name].snapshot("own")
            group[name][0] = 5
    assert b2array.open(f"{url}/x", at="own")[0] == b2array.open(f"{url}#y", at="own")[0] == 1
    assert open_group(url).snapshots == ()
    with pytest.raises(KeyError, match="archives have none"):
        open_group(url, at="s")
    with Path(url).open("rb") as file, pytest.raises(KeyError, match="archives have none"):
        open_group(file, at="s")
    with pytest.raises(ReadOnlyError):
        open_group(url).snapshot("s")


def test_a_manifest_without_snapshots_has_no_word_of_them(where: Where) -> None:
    group = prepared(where)
    change(group)
    with group.transaction() as changes:
        changes["time"][0] = changes["a/sparse"][0] = 1
    (head,) = open_store(where.url, storage_options=where.options).head([".b2group"], 2**20)
    assert b"kept" not in head.data
    assert b"retired" not in head.data
    group.snapshot("x")
    group.drop_snapshot("x")
    (head,) = open_store(where.url, storage_options=where.options).head([".b2group"], 2**20)
    assert b"retired" not in head.data
    assert not open_group(where.url, storage_options=where.options).snapshots


# Writers that fail or are killed.


class Place:
    """Where groups are made, each in a new place, and the operations there."""

    def __init__(self, kind: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind, self.directory, self.operations = kind, directory, Operations()
        self.templates: dict[Callable[[Group], None], str] = {}
        store = type(open_store(self.new()))
        if kind == "compared":
            compare(store, monkeypatch)
        self.operations.listen(store, monkeypatch)

    def new(self) -> str:
        number = next(_serials)
        return str(self.directory / f"{number}.b2d") if self.kind == "local" else f"memory://kept-{number}.b2d"

    def prepared(self, prepare: Callable[[Group], None]) -> Group:
        """Return a copy of a group that was made before."""
        if prepare not in self.templates:
            self.templates[prepare] = self.new()
            prepare(small(self.templates[prepare]))
        start, url = self.templates[prepare], self.new()
        if self.kind == "local":
            shutil.copytree(start, url)
        else:
            memory = fsspec.filesystem("memory")
            front = start.removeprefix("memory:/")
            for path in [path for path in memory.store if path.startswith(f"{front}/")]:
                memory.pipe_file(url.removeprefix("memory:/") + path.removeprefix(front), memory.cat_file(path))
        return open_group(url, "r+")


def small(url: str) -> Group:
    group = open_group(url, "w")
    group.create("x", data=np.arange(4), chunks=(2,), layout="contiguous")
    group.create("y", data=np.arange(4.0), chunks=(2,), layout="sparse")
    group.attrs["n"] = 1
    return group


def _nothing(_: Group) -> None:
    pass


def _changed(group: Group) -> None:
    group.snapshot("one")
    with group.transaction() as changes:
        changes["x"][0] = changes["y"][0] = 7
        changes.attrs["n"] = 2


def _all_kinds(group: Group) -> None:
    _changed(group)
    del group["y"]
    group["z"] = [3]


def _keep(group: Group) -> None:
    group.snapshot("two")


def _restore(group: Group) -> None:
    group.restore("one")


def _drop(group: Group) -> None:
    group.drop_snapshot("one")


def _delete(group: Group) -> None:
    del group["y"]


def _replace(group: Group) -> None:
    group.create("x", data=[9], overwrite=True)


STORIES = pytest.mark.parametrize(
    ("prepare", "story"),
    [
        (_nothing, _keep), (_all_kinds, _keep), (_changed, _restore), (_all_kinds, _restore), (_all_kinds, _drop),
        (_changed, _delete), (_changed, _replace),
    ],
)  # fmt: skip


@pytest.fixture(params=["local", "compared"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(base, "_LONGEST_PAUSE", 0.001)
    with config.using(threads=1, cache_bytes=0):
        yield Place(request.param, tmp_path, monkeypatch)


def everything(url: str) -> dict[str, Contents]:
    """Return what is found now, and at each snapshot."""
    group = open_group(url)
    return {"": contents(group), **{each.name: contents(open_group(url, at=each.name)) for each in group.snapshots}}


@pytest.mark.crossed
@STORIES
def test_a_writer_that_is_killed_at_any_operation_leaves_all_or_nothing(
    place: Place, prepare: Callable[[Group], None], story: Callable[[Group], None], sampled: Sampled
) -> None:
    before, after, names = _states(place, prepare, story)
    outcomes = []
    for at in sampled([at for at, name in enumerate(names) if name in WRITES], 6):
        group = place.prepared(prepare)
        url = group.url
        assert sorted(group)

        def die(number: int, _: str, call: Any, at: int = at) -> Any:
            if number < at:
                return call()
            raise Killed

        with pytest.raises(Killed):
            place.operations.watch(lambda: story(group), die)  # noqa: B023
        found = everything(url)
        outcomes.append(found == after)
        assert found in (before, after), (at, names[at])
        _is_cleaned_up(url, found)
    assert outcomes == sorted(outcomes)


@pytest.mark.crossed
@STORIES
@pytest.mark.parametrize("way", ["fails", "is lost"])
def test_an_operation_that_fails_leaves_all_or_nothing(
    place: Place, prepare: Callable[[Group], None], story: Callable[[Group], None], way: str, sampled: Sampled
) -> None:
    before, after, names = _states(place, prepare, story)
    for at in sampled([at for at, name in enumerate(names) if name in WRITES or at % 7 == 0], 6):
        group = place.prepared(prepare)
        url = group.url
        assert sorted(group)

        def fail(number: int, _: str, call: Any, at: int = at) -> Any:
            if number != at:
                return call()
            if way == "is lost":
                call()
            raise TimeoutError("injected")

        failure = None
        try:
            place.operations.watch(lambda: story(group), fail)  # noqa: B023
        except (OSError, B2ArrayError) as error:
            failure = error
        found = everything(url)
        assert found == (before if failure else after), (at, names[at], failure)
        _is_cleaned_up(url, found)


def _states(
    place: Place, prepare: Callable[[Group], None], story: Callable[[Group], None]
) -> tuple[dict[str, Contents], dict[str, Contents], list[str]]:
    group = place.prepared(prepare)
    url = group.url
    before = everything(url)
    assert sorted(group)
    names = place.operations.watch(lambda: story(group))
    after = everything(url)
    assert before != after
    return before, after, names


def _is_cleaned_up(url: str, expected: dict[str, Contents]) -> None:
    """Let the next writer and `vacuum` come, and check that all is as before and nothing is left."""
    open_group(url, "r+")
    b2array.vacuum(url, grace=0)
    assert everything(url) == expected
    group = open_group(url, "r+")
    for each in group.snapshots:
        group.drop_snapshot(each.name)
    assert {"": contents(open_group(url))} == {"": expected[""]}
    b2array.vacuum(url, grace=0)
    files = open_store(url).walk()
    # The memory of fsspec does not list what lies below a file.
    shown = [path for path in files if path.rpartition("/")[0] not in files]
    left = [path for path in shown if "b2kept" in path or "b2retired" in path]
    assert not left
    assert os.fspath(url)


# Random histories.

NAMES = ("a", "b", "in/a", "in/b")
Members = dict[str, tuple[list[int], dict[str, int]]]
"""The items and attributes of each array, and those of groups: the outermost one is "@"."""


class History:
    """Does random things to a group and to what is expected of it, through two handles."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.random = url, random.Random(seed)
        self.handles = [open_group(url, "w"), open_group(url, "r+")]
        self.now: Members = {}
        self.kept: dict[str, Members] = {}
        self.told: list[tuple[Any, ...]] = []

    def tell(self, *what: Any) -> None:
        """Note what is done, for the message of a failure."""
        self.told.append(what)

    def step(self) -> None:
        """Do one thing, in a transaction or not, and compare everything."""
        group = self.random.choice(self.handles)
        group.refresh()
        before = copy.deepcopy((self.now, self.kept))
        whole = (self.snapshot, self.restore, self.drop)
        verb = self.random.choices(
            [self.change, self.transaction, *whole, self.expire, self.clean, self.begin_again], [9, 4, 3, 3, 1, 1, 2, 1]
        )[0]
        try:
            verb(group)
        except LimitError:  # a file without chunks has no room for those of snapshots
            self.now, self.kept = before
            self.tell("refused")
        self.compare()

    def compare(self) -> None:
        """Compare what there is now, and at each snapshot."""
        assert seen(open_group(self.url)) == self.now, self.told
        assert [each.name for each in open_group(self.url).snapshots] == [*self.kept], self.told
        for name, then in self.kept.items():
            assert seen(open_group(self.url, at=name)) == then, (name, self.told)

    # Changes.

    def change(self, group: Group) -> None:
        arrays = [name for name in self.now if "@" not in name]
        free = [name for name in NAMES if name not in arrays]
        verbs = [self.write, self.write, self.resize, self.annotate, self.delete, self.replace] if arrays else []
        verb = self.random.choice([*verbs, *[self.move] * bool(arrays and free), *[self.create] * bool(free)])
        verb(group, self.random.choice(free if verb == self.create else arrays))

    def numbers(self, count: int) -> list[int]:
        return [self.random.randrange(10**6) for _ in range(count)]

    def create(self, group: Group, name: str, *, overwrite: bool = False) -> None:
        items, layout = self.numbers(self.random.choice([0, 1, 3, 7])), self.random.choice(["contiguous", "sparse"])
        self.tell("create", name, items, layout, overwrite)
        group.create(name, data=np.array(items, "i8"), chunks=(2,), layout=layout, overwrite=overwrite)  # type: ignore[arg-type]
        self.now[name] = items, {}

    def replace(self, group: Group, name: str) -> None:
        if group in self.handles:
            self.create(group, name, overwrite=True)
        else:  # a transaction cannot replace a member in one go
            self.delete(group, name)
            self.create(group, name)

    def write(self, group: Group, name: str) -> None:
        items, _ = self.now[name]
        first = self.random.randrange(len(items) + 1)
        items[first:] = self.numbers(len(items) - first)
        self.tell("write", name, first)
        group[name][first:] = items[first:]

    def resize(self, group: Group, name: str) -> None:
        items, attrs = self.now[name]
        length = self.random.choice([0, 1, 4, 6])
        self.tell("resize", name, length)
        self.now[name] = (items + [0] * length)[:length], attrs
        group[name].resize(length)

    def annotate(self, group: Group, name: str) -> None:
        value = self.random.randrange(100)
        self.tell("annotate", name, value)
        if self.random.random() < 0.5:
            group[name].attrs["n"] = self.now[name][1]["n"] = value
        else:
            place = "in" if name.startswith("in/") else ""
            (group[place] if place else group).attrs["n"] = value
            self.now[f"{place}@"] = [], {"n": value}

    def delete(self, group: Group, name: str) -> None:
        self.tell("delete", name)
        del group[name]
        del self.now[name]

    def move(self, group: Group, name: str) -> None:
        other = self.random.choice([other for other in NAMES if other not in self.now])
        self.tell("move", name, other)
        group.move(name, other)
        self.now[other] = self.now.pop(name)

    def transaction(self, group: Group) -> None:
        self.tell("begin")
        kept: list[str] = []
        with group.transaction() as changes:
            for _ in range(self.random.choice([1, 2, 4])):
                verb = self.random.choices([self.change, self.restore, self.drop, self.worker], [7, 1, 1, 1])[0]
                verb(changes)
            if self.random.random() < 0.5:
                kept = [self.snapshot(changes)]
            self.tell("end")
        for name in kept:
            self.kept[name] = copy.deepcopy(self.now)

    def worker(self, changes: Group) -> None:
        """Write through a fork."""
        for name in [name for name in self.now if self.now[name][0]][:1]:
            self.tell("fork", name)
            fork = pickle.loads(pickle.dumps(changes.fork()))
            fork[name][0] = self.now[name][0][0] = self.random.randrange(10**6)
            changes.merge(fork)

    # Snapshots.

    def snapshot(self, group: Group) -> str:
        name = self.random.choice("xyz")
        self.tell("snapshot", name)
        group.snapshot(name, replace=True)
        self.kept.pop(name, None)
        self.kept[name] = copy.deepcopy(self.now)
        return name

    def restore(self, group: Group) -> None:
        for name in self.random.sample([*self.kept], min(1, len(self.kept))):
            self.tell("restore", name)
            group.restore(name)
            self.now = copy.deepcopy(self.kept[name])

    def drop(self, group: Group) -> None:
        for name in self.random.sample([*self.kept], min(1, len(self.kept))):
            self.tell("drop", name)
            group.drop_snapshot(name)
            del self.kept[name]

    def expire(self, _: Group) -> None:
        self.tell("expire")
        for name in b2array.expire(self.url, keep_last=1):
            del self.kept[name]
        assert len(self.kept) <= 1

    def clean(self, _: Group) -> None:
        self.tell("clean")
        b2array.repack(self.url)
        b2array.vacuum(self.url, grace=0)

    def begin_again(self, _: Group) -> None:
        self.tell("begin again")
        self.handles[0] = open_group(self.url, "w")
        self.now, self.kept = {}, {}


def seen(group: Group) -> Members:
    """Return what is found in a group as `History` expects it."""
    found: Members = {}
    for name, each in (("", group), *group.walk()):
        if isinstance(each, Group):
            if each.attrs:
                found[f"{name}@"] = [], dict(each.attrs)
        else:
            found[name] = each[...].tolist(), dict(each.attrs)
    return found


@pytest.mark.parametrize("kind", ["local", "memory", "compared"])
@pytest.mark.parametrize("count", [pytest.param(4, id="short"), pytest.param(70, id="long", marks=pytest.mark.slow)])
def test_random_histories_are_as_expected_and_leave_nothing_behind(
    kind: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_LONGEST_PAUSE", 0.001)
    if kind == "compared":
        compare(type(open_store("memory://")), monkeypatch)
    for seed in range(count):
        url = str(tmp_path / f"{seed}.b2d") if kind == "local" else f"memory://histories-{next(_serials)}.b2d"
        history = History(url, seed)
        with config.using(threads=1):
            for _ in range(14):
                history.step()
            assert b2array.verify(url, deep=True).ok
            b2array.vacuum(url, grace=0)
            history.compare()
            _is_cleaned_up(url, everything(url))
