"""Snapshots of groups: all members at one moment, whatever becomes of the members later."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import blosc2
import fsspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from lengths import Sampled, examples
from operations import WRITES, Killed, Operations, compare

import b2array
from b2array import Group, config, open_group
from b2array.catalog import intact
from b2array.errors import (
    B2ArrayError,
    ConflictError,
    FormatError,
    ReadOnlyError,
    SnapshotLostError,
    UnsupportedError,
)
from b2array.group.snapshot_list import GroupDiff
from b2array.store import base
from b2array.store.open import open_store
from b2array.store.shared_memory import SharedMemoryStore

pytestmark = pytest.mark.filterwarnings("ignore:.*one file in this store")

Contents = dict[str, Any]
LAYOUTS = ["contiguous", "sparse"]
_serials = itertools.count()


class Where(NamedTuple):
    """Where a group is made."""

    url: str
    options: dict[str, object] | None = None

    @property
    def is_local(self) -> bool:
        """Whether members keep the states of the group's snapshots. Elsewhere the group names revisions."""
        return "://" not in self.url

    def open(self, mode: Any = "r", **more: Any) -> Group:
        return open_group(self.url, mode, storage_options=self.options, **more)

    def at(self, name: str, member: str = "") -> Any:
        url = f"{self.url}/{member}" if member else self.url
        return b2array.open(url, at=name, storage_options=self.options)

    def files(self) -> list[str]:
        return open_store(self.url, storage_options=self.options).walk()


KINDS = ["local", "memory", "s3"]
EVERYWHERE = pytest.mark.parametrize("where", KINDS, indirect=True)
"""For a test that takes all kinds of stores in an ordinary run, too. The others do so in a slow one."""


@pytest.fixture(params=[KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])])
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


LONG_NAME = "/".join(["n" * 200] * 11)
"""With a member of such a name, the list of members of a snapshot has an object for itself."""


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


@pytest.mark.costly
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
    with pytest.raises(KeyError, match="it has 'mine'"):
        group["time"].drop_snapshot("ours")
    assert [each.name for each in group.snapshots] == ["ours"]
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
    assert group["time"].snapshots == ()


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
    if where.is_local:
        with pytest.raises(ConflictError):
            two["time"]
    b2array.vacuum(where.url, grace=0, storage_options=where.options)
    with pytest.raises((ConflictError, FileNotFoundError)):
        two["time"][...]
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
    # In an object store each revision of a contiguous member has chunks in other places.
    assert found.changed == {"level": [(slice(0, 6),)], "time": [(slice(2, 4) if where.is_local else slice(0, 6),)]}
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


_STEPS = st.one_of(
    st.tuples(st.just("zero"), st.sampled_from("abc"), st.just(0), st.just("")),
    st.tuples(st.just("grow"), st.sampled_from("abc"), st.integers(1, 9), st.just("")),
    st.tuples(st.just("write"), st.sampled_from("abc"), st.integers(0, 7), st.just("")),
    st.tuples(st.just("append"), st.sampled_from("abc"), st.integers(1, 4), st.just("")),
    st.tuples(st.just("snapshot"), st.sampled_from("abc"), st.integers(0, 2), st.just("")),
    st.tuples(st.just("drop"), st.sampled_from("abc"), st.just(0), st.just("")),
    st.tuples(st.sampled_from(["copy", "move"]), st.sampled_from("abc"), st.just(0), st.sampled_from("abcd")),
)


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@example(steps=[("move", "a", 0, "c"), ("move", "b", 0, "a"), ("move", "c", 0, "b")])
@example(steps=[("write", "a", 0, ""), ("copy", "a", 0, "c"), ("copy", "c", 0, "d")])
@example(steps=[("snapshot", "a", 0, ""), ("drop", "a", 0, ""), ("move", "a", 0, "c"), ("write", "c", 4, "")])
@example(steps=[("grow", "a", 9, ""), ("copy", "a", 0, "c"), ("write", "a", 7, ""), ("append", "a", 2, "")])
@example(steps=[("zero", "a", 0, ""), ("copy", "a", 0, "c"), ("write", "a", 4, ""), ("write", "a", 0, "")])
@given(steps=st.lists(_STEPS, max_size=8))
def test_copies_and_moves_in_a_transaction_take_values_and_snapshots_along(  # noqa: C901
    layout: Any, steps: list[Any]
) -> None:
    group = open_group(f"memory://along-{next(_serials)}.b2d", "w")
    values: dict[str, list[int]] = {"a": [1, 2, 3, 4, 5], "b": [6, 7, 8]}
    # What each member keeps by name; None is the state that the commit makes.
    kept: dict[str, dict[str, list[int] | None]] = {name: {"old": [*items]} for name, items in values.items()}
    for name, items in values.items():
        group.create(name, data=items, chunks=(2,), layout=layout).snapshot("old")
    with group.transaction() as changes:
        first = {*values}  # new members cannot drop what they have from their source
        for number, (step, name, n, target) in enumerate(steps, 100):
            if name not in values:
                continue
            if step == "write" and n < len(values[name]):
                changes[name][n] = values[name][n] = number
            elif step == "zero":
                changes[name][:] = 0
                values[name] = [0] * len(values[name])
            elif step == "grow":
                changes[name].resize((len(values[name]) + n,))
                values[name] += [0] * n
            elif step == "append":
                changes[name].append([number] * n)
                values[name] += [number] * n
            elif step == "snapshot" and f"s{n}" not in kept[name]:
                changes[name].snapshot(f"s{n}")
                kept[name][f"s{n}"] = None
            elif step == "drop" and "old" in kept[name] and name in first:
                changes[name].drop_snapshot("old")
                del kept[name]["old"]
            elif step in ("copy", "move") and target not in values:
                getattr(changes, step)(name, *([changes] if step == "copy" else []), target)
                values[target], kept[target] = [*values[name]], {**kept[name]}
                if step == "move":
                    del values[name], kept[name]
                    first.discard(name)
    assert {name: group[name][:].tolist() for name in group} == values
    for name, states in kept.items():
        found = {each.name: b2array.open(group[name].url, at=each.name)[:].tolist() for each in group[name].snapshots}
        assert found == {label: values[name] if state is None else state for label, state in states.items()}
    assert b2array.verify(group.url, deep=True).ok


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
    orphans = ["00000000000000aa.b2kept"]
    if where.is_local:
        orphans.append(".b2retired/00000000000000bb/chunks.b2frame")
    else:  # of a new member whose commit failed
        orphans.append("never.b2nd/00000000000000cc.b2kept")
    others = ["notes.b2kept", ".b2retired/notes.txt"]
    for name in (*orphans, *others):
        store.create(name, b"x")
    assert b2array.vacuum(where.url, storage_options=where.options).ok
    assert {*orphans} <= {*where.files()}
    b2array.vacuum(where.url, grace=0, storage_options=where.options)
    assert {*others} == {*orphans, *others} & {*where.files()}
    b2array.repack(where.url, storage_options=where.options)
    assert contents(where.open(at="start")) == before


LOCAL = pytest.mark.parametrize("where", ["local"], indirect=True)
MEMORY = pytest.mark.parametrize("where", ["memory"], indirect=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Where:
    """A group with two snapshots, which was changed after each."""
    where = Where(str(tmp_path_factory.mktemp("copied") / "source.b2d"))
    group = prepared(where)
    group.snapshot("one", "the first", {"k": 1})
    change(group)
    group["time"].snapshot("own")
    group.snapshot("two")
    group["time"][1] = 9
    group["level"] = [2]
    return where


def shown(where: Where) -> dict[str, Any]:
    """Return what users see of the snapshots of a group, and of what differs between them and now."""
    group = where.open()
    listed = [(each.name, each.time, each.message, dict(each.attrs)) for each in group.snapshots]
    held = {each.name: contents(where.open(at=each.name)) for each in group.snapshots}
    return {"": contents(group), "listed": listed, "held": held, "diff": [group.diff("one"), group.diff("one", "two")]}


def copied(source: Where, where: Where, **more: Any) -> None:
    b2array.convert(source.url, where.url, **more)


@MEMORY
def test_a_copy_of_a_group_has_its_snapshots(where: Where, source: Where, tmp_path: Path) -> None:
    before = shown(source)
    copied(source, where)
    files = {*where.files()}
    b2array.vacuum(where.url, grace=0)
    assert files <= {*where.files()}
    back = Where(str(tmp_path / "back.b2d"))
    copied(where, back)
    assert before == shown(where) == shown(back) == shown(source)
    assert [each.name for each in back.open()["time"].snapshots] == ["own"]
    assert b2array.verify(where.url, deep=True).ok


@MEMORY
def test_snapshots_of_a_copied_group_are_dropped_and_gone_back_to(where: Where, source: Where) -> None:
    before = shown(source)
    copied(source, where)
    group = where.open("r+")
    group.restore("one")
    assert contents(where.open()) == before["held"]["one"]
    group.restore("two")
    assert contents(where.open()) == before["held"]["two"]
    b2array.vacuum(where.url, grace=0)
    assert {name: contents(where.open(at=name)) for name in ("one", "two")} == before["held"]
    for name in ("one", "two"):
        group.drop_snapshot(name)
    b2array.vacuum(where.url, grace=0)
    assert not [path for path in where.files() if ".b2retired" in path or (path.endswith("kept") and "/" not in path)]
    assert contents(where.open()) == before["held"]["two"]
    assert shown(source) == before


def test_a_copied_group_with_other_chunks_has_its_snapshots(tmp_path: Path, source: Where) -> None:
    before, where = shown(source), Where(str(tmp_path / "copy.b2d"))
    copied(source, where, chunks=(3,), layout="sparse")
    after = shown(where)
    assert {**after, "diff": None} == {**before, "diff": None}
    assert where.at("one", "time").chunks == (3,)


def test_a_member_without_chunks_is_copied_to_a_file_with_its_earlier_states(tmp_path: Path) -> None:
    source, where = Where(f"memory://emptied-{next(_serials)}.b2d"), Where(str(tmp_path / "copy.b2d"))
    group = source.open("w")
    group["x"] = [1, 2]
    group.snapshot("one")
    group["x"].resize(0)
    copied(source, where)
    assert contents(where.open()) == {"x": []}
    assert contents(where.open(at="one")) == {"x": [1, 2]}


@LOCAL
def test_a_copy_in_the_place_of_a_group_replaces_snapshots_of_the_same_names(where: Where, source: Where) -> None:
    group = where.open("w")
    group["time"] = [4]
    group.snapshot("one")
    group.snapshot("old")
    before = shown(source)
    for _ in range(2):
        copied(source, where, overwrite=True)
        names = ["old", "one", "two"]
        assert {name: contents(where.open(at=name)) for name in names} == {"old": {"time": [4]}, **before["held"]}
    assert sorted(each.name for each in where.open().snapshots) == names
    assert contents(where.open()) == before[""]


@LOCAL
def test_a_copy_into_a_group_has_no_snapshots_of_the_group(where: Where, source: Where) -> None:
    where.open("w")["y"] = [1]
    with pytest.warns(UserWarning, match="leaves out 2 snapshots of the group"):
        b2array.convert(source.url, f"{where.url}#inner", dst_format="b2d")
    assert where.open().snapshots == ()
    assert [each.name for each in where.open()["inner/time"].snapshots] == ["own"]


def test_a_snapshot_that_is_damaged_fails_the_copy_with_nothing_left(tmp_path: Path, source: Where) -> None:
    damaged = shutil.copytree(source.url, tmp_path / "damaged.b2d")
    (retired, *_) = sorted((damaged / ".b2retired").glob("*/chunks.b2frame"))
    retired.write_bytes(b"damaged" + retired.read_bytes()[7:])
    with pytest.raises(FormatError):
        copied(Where(str(damaged)), Where(str(tmp_path / "copy.b2d")))
    assert not (tmp_path / "copy.b2d").exists()


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


def test_a_member_that_is_deleted_while_its_state_is_opened_is_found_where_it_was_retired(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = where.open("w")
    noise = np.random.default_rng(0).bytes(5000)  # so that the index of the state is an object by itself
    group.create("a", data=np.ones((4, 100)), chunks=(1, 100), layout="sparse", attrs={"noise": noise})
    group.snapshot("then")
    then, original = where.open(at="then"), intact.load_intact_state

    def meanwhile(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(intact, "load_intact_state", original)
        del where.open("r+")["a"]
        return original(*args, **options)

    monkeypatch.setattr(intact, "load_intact_state", meanwhile)
    assert then["a"][0, 0] == 1


@pytest.mark.parametrize("large", [False, True])
def test_a_request_that_is_repeated_because_its_answer_was_lost_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """What waits for the commit, and the list of a snapshot's members, have names that nobody else has."""
    where, created = Where(f"memory://group-snapshots-{next(_serials)}.b2d"), set()
    group = where.open("w")
    for n in range(200 if large else 2):
        group[f"a{n}"] = np.zeros(3)
    original = SharedMemoryStore.create

    def repeated(self: SharedMemoryStore, name: str, data: Any) -> Any:
        whole = data if isinstance(data, bytes) else b"".join(data)
        stamp, key = original(self, name, whole), f"{self.url}/{name}"
        if not key.endswith(".chunk") and ".b2" in key.rpartition("g.b2d")[2]:
            created.add(key.rstrip("/").rpartition(".")[2])
            return original(self, name, whole)
        return stamp

    monkeypatch.setattr(SharedMemoryStore, "create", repeated)
    group.snapshot("then")
    with group.transaction() as changes:
        changes["a0"][0] = 1
        changes["a1"][0] = 1
    assert ("b2kept" in created) == large
    assert len(created) > 1  # revisions
    assert [where.open()[name][0] for name in ("a0", "a1")] == [1, 1]
    assert [where.open(at="then")[name][0] for name in ("a0", "a1")] == [0, 0]


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
        with pytest.raises(SnapshotLostError, match=rf"{name}\.b2nd cannot go.*drop them first: 'x'"):
            del group[name]
    assert [each.name for each in group.snapshots] == ["x"]
    group.drop_snapshot("x")
    del group["contiguous"], group["sparse"]
    assert not {*group}


def _write_all(changes: Group) -> None:
    for array in changes.arrays().values():
        array[...] = 90
        array.attrs["later"] = 1
    changes.attrs["later"] = 1


def _replace_all(changes: Group) -> None:
    for name in list(changes.arrays()):
        del changes[name]
        changes[name] = [90]


def _rename_all(changes: Group) -> None:
    for name in list(changes.arrays()):
        changes.move(name, f"{name}2")


@pytest.mark.parametrize("alter", [_write_all, _replace_all, _rename_all])
def test_restore_undoes_what_its_own_transaction_has_changed_before(
    where: Where, alter: Callable[[Group], None]
) -> None:
    """Most members have the state of the snapshot already, as far as the last commit knows."""
    group = prepared(where)
    group.snapshot("start")
    group["time"][1] = 8
    before = contents(where.at("start"))
    with group.transaction() as changes:
        alter(changes)
        changes.restore("start")
        assert contents(changes) == before
    assert contents(where.open()) == before
    assert not any("later" in array.attrs for array in where.open().arrays().values())


def test_restore_is_refused_if_another_writer_changes_a_member_that_has_the_state_already(where: Where) -> None:
    group = prepared(where)
    group.snapshot("start")
    group["time"][1] = 8
    with pytest.raises(ConflictError, match="level"), group.transaction() as changes:  # noqa: PT012
        changes.restore("start")
        where.open("r+")["level"][0] = 77
    found = where.open()
    assert (found["time"][1], found["level"][0]) == (8, 77)


@pytest.mark.parametrize("theirs", ["make", "delete"])
def test_restore_is_refused_if_another_writer_makes_or_deletes_a_member(where: Where, theirs: str) -> None:
    """A member that the transaction has never seen would survive, although it was made after the snapshot."""
    group = prepared(where)
    group.snapshot("start")
    group["later"] = [1, 2]

    def restore() -> None:
        with group.transaction() as changes:
            changes.restore("start")
            other = where.open("r+")
            if theirs == "make":
                other.copy("level", other, "copied")
            else:
                del other["later"]

    with pytest.raises(ConflictError, match="another writer has made or deleted"):
        restore()
    there = {*where.open()}
    assert ("copied" in there, "later" in there) == (theirs == "make", theirs == "make")
    group.restore("start")
    assert {*where.open()} == {*where.at("start")}


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


def test_a_file_from_another_group_does_not_keep_the_names_that_it_had_there(tmp_path: Path) -> None:
    there, here = prepared(Where(str(tmp_path / "there"))), prepared(Where(str(tmp_path / "here")))
    there.snapshot("x")
    shutil.copy(tmp_path / "there/time.b2nd", tmp_path / "here/guest.b2nd")
    assert b2array.open(tmp_path / "here/guest.b2nd").snapshots == ()
    assert b2array.copy(tmp_path / "here/guest.b2nd").snapshots == ()
    here.refresh()
    here["guest"][0] = 7
    here.snapshot("x")
    here["guest"][0] = 8
    assert open_group(tmp_path / "here", at="x")["guest"][0] == 7
    here.drop_snapshot("x")
    assert here["guest"].snapshots == ()


def test_damage_of_the_list_of_members_is_told(tmp_path: Path) -> None:
    group = prepared(Where(str(tmp_path / "g")))
    group[LONG_NAME] = [1]
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


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_whatever_needs_a_snapshot_whose_bytes_stock_took_raises_one_error(tmp_path: Path, layout: str) -> None:
    url = tmp_path / "g.b2d"
    rng = np.random.default_rng(0)
    group = open_group(url, "w")
    group.create("x", data=rng.integers(0, 2**62, (40, 50)), chunks=(10, 50), layout=layout)
    group.create("y", data=[1, 2])
    group.snapshot("start")
    before = open_group(url, at="start")["x"]
    blosc2.open(str(url / "x.b2nd"), mode="a")[:10] = rng.integers(0, 2**62, (10, 50))
    now = open_group(url, "r+")

    def replace() -> None:
        now["x"] = np.zeros(3)

    needs: list[Callable[[], object]] = [
        lambda: before[...],
        lambda: open_group(url, at="start")["x"][...],
        lambda: now.diff("start"),
        lambda: now.restore("start"),
        lambda: now.pop("x"),
        replace,
        lambda: b2array.convert(url, tmp_path / "whole.b2d", overwrite=True),
        lambda: b2array.convert(url, tmp_path / "then.b2d", at="start", overwrite=True),
    ]
    for _ in range(2):
        for need in needs:
            with config.using(cache_bytes=0), pytest.raises(SnapshotLostError, match=r"'start'.* took data of it"):
                need()
        now["x"].attrs["u"] = "K"  # a commit of ours does not hide what stock has done
    assert open_group(url, at="start")["y"][...].tolist() == [1, 2]
    assert not b2array.verify(url, deep=True).ok
    now.drop_snapshot("start")
    del now["x"]


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
    with pytest.raises(KeyError, match="archives keep snapshots of single arrays only"):
        open_group(url, at="s")
    with Path(url).open("rb") as file, pytest.raises(KeyError, match="archives keep snapshots of single arrays only"):
        open_group(file, at="s")
    with pytest.raises(ReadOnlyError):
        open_group(url).snapshot("s")


@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
def test_going_back_leaves_the_snapshots_that_a_member_has_for_itself(where: Where, layout: Any) -> None:
    group = where.open("w")
    group.create("x", data=np.arange(4), chunks=(2,), layout=layout)
    group.snapshot("first")
    group["x"][0] = 5
    group["x"].snapshot("own")
    group["x"][1] = 6
    group.restore("first")
    assert where.open()["x"][:].tolist() == [0, 1, 2, 3]
    assert where.open(at="first")["x"][:].tolist() == [0, 1, 2, 3]
    group["x"].restore("own")
    assert where.open()["x"][:].tolist() == [5, 1, 2, 3]


@pytest.mark.parametrize(("before", "after"), [("sparse", "contiguous"), ("contiguous", "sparse")])
def test_a_member_that_has_another_layout_now_goes_back(where: Where, before: Any, after: Any) -> None:
    group = where.open("w")
    group.create("x", data=np.arange(4), chunks=(2,), layout=before)
    group.snapshot("first")
    group.create("x", data=np.arange(3), chunks=(2,), layout=after, overwrite=True)
    group.restore("first")
    assert where.open()["x"][:].tolist() == [0, 1, 2, 3]
    assert where.open(at="first")["x"][:].tolist() == [0, 1, 2, 3]


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


@EVERYWHERE
def test_a_snapshot_in_a_transaction_has_no_member_that_the_transaction_does_not_show(where: Where) -> None:
    group = where.open("w")
    group["a"] = [1]

    def keep(meanwhile: Callable[[], None]) -> None:
        with group.transaction() as changes:
            shown = sorted(changes)
            meanwhile()
            changes.snapshot("now", ",".join(shown))

    with pytest.raises(ConflictError):
        keep(lambda: where.open("r+").update({"b": [2]}))
    keep(lambda: None)
    assert sorted(where.at("now")) == ["a", "b"]


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


def _lengthened(group: Group) -> None:
    group["y"].attrs["noise"] = np.random.default_rng(0).bytes(2**13)
    group.create(LONG_NAME, data=[1], layout="contiguous")
    group.snapshot("one")
    group["y"][0] = 7


def _restore(group: Group) -> None:
    group.restore("one")


def _drop(group: Group) -> None:
    group.drop_snapshot("one")


def _delete(group: Group) -> None:
    del group["y"]


def _replace(group: Group) -> None:
    group.create("x", data=[9], overwrite=True)


_SOURCE = "memory://source-of-copies.b2d"


def _beside_source(group: Group) -> None:
    _changed(group)
    _all_kinds(small(_SOURCE))


def _copy_over(group: Group) -> None:
    b2array.convert(_SOURCE, group.url, overwrite=True)


Story = tuple[Callable[[Group], None], Callable[[Group], None]]
"""How a group is prepared, and what is then done to it."""
STORIES: list[Story] = [
    (_nothing, _keep),
    (_all_kinds, _keep),
    (_changed, _restore),
    (_all_kinds, _restore),
    (_all_kinds, _drop),
    (_changed, _delete),
    (_changed, _replace),
    (_lengthened, _keep),
    (_lengthened, _drop),
]


def _named(story: Story) -> str:
    return "-".join(each.__name__.strip("_") for each in story)


@pytest.fixture(params=STORIES, ids=_named)
def story(request: pytest.FixtureRequest) -> Story:
    return cast(Story, request.param)


# If a member cannot be read, a copy goes on with the others: it may end with an error and yet be there.
STORIES_OF_KILLS = pytest.mark.parametrize(
    "story", [*STORIES, pytest.param((_beside_source, _copy_over), marks=pytest.mark.slow)], ids=_named
)


@pytest.fixture(params=["local", "compared"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(base, "_LONGEST_PAUSE", 0.001)
    with config.using(threads=1, cache_bytes=0):
        yield Place(request.param, tmp_path, monkeypatch)


def everything(url: str) -> dict[str, Contents]:
    """Return what is found now, and at each snapshot."""
    group = open_group(url)
    return {"": contents(group), **{each.name: contents(open_group(url, at=each.name)) for each in group.snapshots}}


@STORIES_OF_KILLS
@pytest.mark.crossed
def test_a_writer_that_is_killed_at_any_operation_leaves_all_or_nothing(
    place: Place, story: Story, sampled: Sampled
) -> None:
    prepare, task = story
    before, after, names = _states(place, story)
    outcomes = []
    for at in sampled([at for at, name in enumerate(names) if name in WRITES], 18):
        group = place.prepared(prepare)
        url = group.url
        assert sorted(group)

        def die(number: int, _: str, call: Any, at: int = at) -> Any:
            if number < at:
                return call()
            raise Killed

        with pytest.raises(Killed):
            place.operations.watch(lambda: task(group), die)  # noqa: B023
        found = everything(url)
        outcomes.append(found == after)
        assert found in (before, after), (at, names[at])
        _is_cleaned_up(url, found)
    assert outcomes == sorted(outcomes)


def test_opening_a_member_at_a_snapshot_takes_two_operations_more_at_most(place: Place) -> None:
    url = place.prepared(_changed).url
    latest = place.operations.watch(lambda: open_group(url)["x"])
    then = place.operations.watch(lambda: open_group(url, at="one")["x"])
    assert len(then) <= len(latest) + 2


@pytest.mark.crossed
@pytest.mark.parametrize("way", ["fails", "is lost"])
def test_an_operation_that_fails_leaves_all_or_nothing(place: Place, story: Story, way: str, sampled: Sampled) -> None:
    prepare, task = story
    before, after, names = _states(place, story)
    for at in sampled([at for at, name in enumerate(names) if name in WRITES or at % 7 == 0], 16):
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
            place.operations.watch(lambda: task(group), fail)  # noqa: B023
        except (OSError, B2ArrayError) as error:
            failure = error
        found = everything(url)
        assert found == (before if failure else after), (at, names[at], failure)
        _is_cleaned_up(url, found)


def _states(place: Place, story: Story) -> tuple[dict[str, Contents], dict[str, Contents], list[str]]:
    prepare, task = story
    group = place.prepared(prepare)
    url = group.url
    before = everything(url)
    assert sorted(group)
    names = place.operations.watch(lambda: task(group))
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


# Histories.

NAMES = ("x", "y", "in/z", "in/w", "v")


@dataclass
class Member:
    """What a member holds. `own` is the state that it has kept for itself; `born` tells it from others of its name."""

    items: np.ndarray[Any, Any]
    born: int
    attrs: Contents = field(default_factory=dict)
    own: Member | None = None

    def fill(self, start: int, value: int) -> None:
        self.items[start : start + 2] = value

    def resize(self, size: int) -> None:
        grown = np.zeros(size, self.items.dtype)
        grown[: self.items.size] = self.items[:size]
        self.items = grown


@dataclass
class Model:
    """What a group holds."""

    members: dict[str, Member] = field(default_factory=dict)
    attrs: Contents = field(default_factory=dict)

    def seen(self) -> Contents:
        """Return what readers see."""
        return {**{name: (each.items.tolist(), each.attrs) for name, each in self.members.items()}, "": self.attrs}

    def go_back(self, then: Model, serials: Iterator[int], *, is_local: bool) -> None:
        """Be as the group was; members that are still the same keep their own snapshots.

        In an object store the revision of a member that is made again has the snapshots of that time.
        """
        before, self.members, self.attrs = self.members, deepcopy(then.members), dict(then.attrs)
        for name, each in self.members.items():
            now = before.get(name)
            if now is not None and now.born == each.born:
                each.own = now.own
            elif is_local:
                # The frame is another one than the snapshot names: the next restoration replaces it as well.
                each.own = None
                each.born = next(serials)


def seen(group: Group) -> Contents:
    """Return what a group shows, its inner group included."""
    arrays = {name: each for name, each in group.walk() if not isinstance(each, Group)}
    attrs = [(name, *item) for name, each in {"": group, **group.groups()}.items() for item in each.attrs.items()]
    found: Contents = {name: (each[...].tolist(), dict(each.attrs)) for name, each in arrays.items()}
    return {**found, "": {name + key: value for name, key, value in attrs}}


class Histories(RuleBasedStateMachine):
    """Random histories of a group with snapshots, against copies in NumPy. One of two handles may be stale."""

    kind = "local"

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.directory = pytest.MonkeyPatch(), tempfile.mkdtemp()
        self.url = f"{self.directory}/g.b2d" if self.kind == "local" else f"memory://histories-{next(_serials)}.b2d"
        if self.kind != "local":
            self.patch.setattr(base, "_LONGEST_PAUSE", 0.001)
            compare(type(open_store(self.url)), self.patch)
        self.model = Model()
        self.kept: dict[str, Model] = {}
        self.serials = itertools.count(1)
        self.handles = [open_group(self.url, "w"), open_group(self.url, "r+")]

    def do(self, handle: int, task: Callable[[Group], object]) -> None:
        """Change the group through one of the handles, which is refreshed if it does not know what the other did."""
        group = self.handles[handle]
        try:
            task(group)
        except (ConflictError, FileExistsError, FileNotFoundError, KeyError):
            self.is_as_the_model()
            group.refresh()
            task(group)

    def keep(self, name: str) -> None:
        self.kept.pop(name, None)
        self.kept[name] = deepcopy(self.model)

    def one_of(self, data: Any) -> tuple[str, Member]:
        name = data.draw(st.sampled_from(sorted(self.model.members)))
        return name, self.model.members[name]

    handles_ = st.integers(0, 1)
    labels = st.sampled_from("abc")
    with_members = precondition(lambda self: self.model.members)
    with_room = precondition(lambda self: 0 < len(self.model.members) < len(NAMES))
    with_snapshots = precondition(lambda self: self.kept)

    @rule(n=handles_, name=st.sampled_from(NAMES), size=st.integers(0, 5), layout=st.sampled_from(LAYOUTS))
    def make(self, n: int, name: str, size: int, layout: Any) -> None:
        member = Member(np.full(size, next(self.serials)), next(self.serials))
        self.do(n, lambda group: group.create(name, data=member.items, chunks=(2,), layout=layout, overwrite=True))
        self.model.members[name] = member

    @with_members
    @rule(n=handles_, data=st.data(), start=st.integers(0, 4), by_url=st.booleans())
    def write(self, n: int, data: Any, start: int, by_url: bool) -> None:
        (name, member), value = self.one_of(data), next(self.serials)

        def task(group: Group) -> None:
            array = b2array.open(f"{self.url}/{name}", "r+") if by_url else group[name]
            array[start : start + 2] = value

        self.do(n, task)
        member.fill(start, value)

    @with_members
    @rule(n=handles_, data=st.data(), size=st.integers(1, 7))
    def resize(self, n: int, data: Any, size: int) -> None:
        name, member = self.one_of(data)
        self.do(n, lambda group: group[name].resize(size))
        member.resize(size)

    @with_members
    @rule(n=handles_, data=st.data())
    def annotate_a_member(self, n: int, data: Any) -> None:
        (name, member), value = self.one_of(data), next(self.serials)
        self.do(n, lambda group: group[name].attrs.update(n=value))
        member.attrs["n"] = value

    @rule(n=handles_, inner=st.sampled_from(["", "in"]))
    def annotate(self, n: int, inner: str) -> None:
        value = next(self.serials)
        self.do(n, lambda group: (group.require_group(inner) if inner else group).attrs.update(n=value))
        self.model.attrs[f"{inner}n"] = value

    @with_members
    @rule(n=handles_, data=st.data())
    def delete(self, n: int, data: Any) -> None:
        name, _ = self.one_of(data)
        self.do(n, lambda group: group.__delitem__(name))
        del self.model.members[name]

    @with_room
    @rule(n=handles_, data=st.data())
    def move(self, n: int, data: Any) -> None:
        name, member = self.one_of(data)
        to = data.draw(st.sampled_from(sorted({*NAMES} - self.model.members.keys())))
        self.do(n, lambda group: group.move(name, to))
        del self.model.members[name]
        self.model.members[to] = replace(member, born=next(self.serials))

    @rule(n=handles_, name=labels)
    def snapshot(self, n: int, name: str) -> None:
        if name in self.kept:
            with pytest.raises(FileExistsError):
                self.handles[n].snapshot(name)
        self.handles[n].snapshot(name, replace=True)
        self.keep(name)

    @with_members
    @rule(n=handles_, data=st.data())
    def snapshot_a_member(self, n: int, data: Any) -> None:
        name, member = self.one_of(data)
        self.do(n, lambda group: group[name].snapshot("own", replace=True))
        member.own = replace(member, items=member.items.copy(), attrs=dict(member.attrs))

    @with_room
    @rule(n=handles_, data=st.data(), name=st.none() | labels, drops=st.booleans(), forks=st.booleans())
    def transact(self, n: int, data: Any, name: str | None, drops: bool, forks: bool) -> None:
        """Change, delete and make members in one commit, of which a fork is part, and which a snapshot keeps."""
        (changed, member), (deleted, _), value = self.one_of(data), self.one_of(data), next(self.serials)
        made = data.draw(st.sampled_from(sorted({*NAMES} - self.model.members.keys())))
        gone = next((each for each in self.kept if drops and each != name), None)

        def task(group: Group) -> None:
            with group.transaction() as changes:
                if name is not None:
                    changes.snapshot(name, replace=True)
                if gone is not None:
                    changes.drop_snapshot(gone)
                if deleted != changed:
                    del changes[deleted]
                worker = pickle.loads(pickle.dumps(changes.fork())) if forks else changes
                worker[changed][:2] = value
                worker.create(made, data=[value])
                if forks:
                    changes.merge(worker)

        self.do(n, task)
        member.fill(0, value)
        self.model.members[made] = Member(np.array([value]), value)
        if deleted != changed:
            del self.model.members[deleted]
        if gone is not None:
            del self.kept[gone]
        if name is not None:
            self.keep(name)

    @with_snapshots
    @rule(n=handles_, data=st.data(), then=st.none() | labels)
    def restore(self, n: int, data: Any, then: str | None) -> None:
        """Go back, perhaps in a transaction that changes what it went back to, and keeps it."""
        name, value = data.draw(st.sampled_from(sorted(self.kept))), next(self.serials)
        self.model.go_back(self.kept[name], self.serials, is_local=self.kind == "local")
        if then is None:
            self.handles[n].restore(name)
            return
        with self.handles[n].transaction() as changes:
            changes.restore(name)
            for each, member in self.model.members.items():
                changes[each][:2] = value
                member.fill(0, value)
            changes.snapshot(then, replace=True)
        self.keep(then)

    @with_snapshots
    @rule(n=handles_, data=st.data())
    def drop(self, n: int, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.kept)))
        self.do(n, lambda group: group.drop_snapshot(name))
        del self.kept[name]

    @rule(left=st.integers(0, 2))
    def expire(self, left: int) -> None:
        gone = [*self.kept][: max(0, len(self.kept) - left)]
        assert b2array.expire(self.url, keep_last=left) == tuple(gone)
        for name in gone:
            del self.kept[name]

    @rule()
    def clean(self) -> None:
        b2array.vacuum(self.url, grace=0)
        b2array.repack(self.url)

    @with_snapshots
    @rule(data=st.data())
    def diff(self, data: Any) -> None:
        at = data.draw(st.sampled_from(sorted(self.kept)))
        then = data.draw(st.none() | st.sampled_from(sorted(self.kept)))
        old, new = self.kept[at].members, (self.kept[then] if then else self.model).members
        found = open_group(self.url).diff(at, then)
        assert found.made == tuple(sorted(new.keys() - old.keys()))
        assert found.deleted == tuple(sorted(old.keys() - new.keys()))
        for name in old.keys() & new.keys():
            size = max(old[name].items.size, new[name].items.size)
            one, two = (np.resize(np.pad(each[name].items, (0, size), constant_values=-1), size) for each in (old, new))
            differ = one != two
            for (box,) in found.changed.get(name, []):
                differ[box] = False
            assert not differ.any()

    @invariant()
    def is_as_the_model(self) -> None:
        group = open_group(self.url)
        assert seen(group) == self.model.seen()
        assert [each.name for each in group.snapshots] == [*self.kept]
        for name, model in self.kept.items():
            assert seen(open_group(self.url, at=name)) == model.seen()
        for name, member in self.model.members.items():
            own = [each.name for each in group[name].snapshots if each.name == "own"]
            assert own == ["own"] * (member.own is not None)
            if member.own is not None:
                assert b2array.open(f"{self.url}/{name}", at="own")[...].tolist() == member.own.items.tolist()

    def teardown(self) -> None:
        try:
            assert b2array.verify(self.url, deep=True).ok
            b2array.expire(self.url, keep_last=0)
            b2array.vacuum(self.url, grace=0)
            assert seen(open_group(self.url)) == self.model.seen()
            assert not [path for path in open_store(self.url).walk() if path.startswith(".b2retired")]
        finally:
            self.patch.undo()
            shutil.rmtree(self.directory)
            fsspec.filesystem("memory").store.clear()


class ComparedHistories(Histories):
    """The same in a store that behaves as an object store."""

    kind = "compared"


for machine in (Histories, ComparedHistories):
    machine.TestCase.settings = settings(
        max_examples=examples(20),
        stateful_step_count=15,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )

TestLocal = Histories.TestCase
TestCompared = ComparedHistories.TestCase


# Readers beside a writer that drops a snapshot.

LISTING: dict[str, Callable[[str, str], object]] = {
    "snapshots": lambda url, _: open_group(url).snapshots,
    "expire": lambda url, _: b2array.expire(url, older_than="1d"),
    "open at a time": lambda url, _: open_group(url, at="2999-01-01")["x"][...],
    "open a member at a time": lambda url, _: b2array.open(f"{url}/x.b2nd", at="2999-01-01")[...],
    "convert": lambda url, copy: b2array.convert(url, copy, overwrite=True),
    "verify": lambda url, _: b2array.verify(url, deep=True),
    "vacuum": lambda url, _: b2array.vacuum(url, grace=0),
}


@pytest.mark.crossed
@pytest.mark.parametrize("name", LISTING)
@pytest.mark.parametrize("kind", ["local", "memory", "compared"])
@pytest.mark.parametrize("long", [True, False])
def test_nobody_is_told_of_a_snapshot_that_was_dropped_while_it_was_listed(
    name: str, kind: str, long: bool, tmp_path: Path, sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_url = str(tmp_path / "g") if kind == "local" else f"memory://{tmp_path.name}"
    copy = "memory://copy.b2d" if kind == "local" else str(tmp_path / "copy.b2d")  # only the group's store is watched
    store, operations = type(open_store(base_url)), Operations()
    if kind == "compared":
        compare(store, monkeypatch)
    operations.listen(store, monkeypatch)
    serials = itertools.count()

    def made() -> str:
        url = f"{base_url}-{next(serials)}.b2d"
        group = open_group(url, "w")
        with group.transaction() as changes:
            changes["x"] = np.arange(6)
            for number in range(4 * long):  # with such names, the lists of members are objects
                changes["/".join([f"{number}" * 200] * 6)] = np.arange(3)
        for snapshot in ("a", "b"):
            group.snapshot(snapshot)
            group["x"][0] = 9
        return url

    url = made()
    count = len(operations.watch(lambda: LISTING[name](url, copy)))
    for moment in sampled(range(count), 24):
        url = made()
        with suppress(ConflictError):
            operations.meets(
                moment,
                lambda: LISTING[name](url, copy),  # noqa: B023
                lambda: open_group(url, "r+").drop_snapshot("b"),  # noqa: B023
            )
