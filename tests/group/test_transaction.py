"""What the transactions of local groups and of groups in object stores have in common."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from operations import Operations, begin_there

from b2array import Group, NDArray, Rows, open_group
from b2array.errors import ConflictError
from b2array.group.group_forks import GroupFork
from b2array.group.listed_group import group_at
from b2array.group.transaction import Transaction, begin
from b2array.store.open import open_store


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a group with the members x and y."""
    url = str(tmp_path / "g.b2d") if request.param == "local" else f"memory://{tmp_path.name}.b2d"
    group = open_group(url, "w")
    group["x"], group["y"] = np.arange(4), np.arange(4)
    return url


@pytest.fixture
def changes(url: str) -> Transaction:
    """A transaction of the group."""
    return begin(group_at(url, {}))


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_ended_transaction_refuses_changes(url: str, changes: Transaction, end: str) -> None:
    path = changes.members()["x"]
    getattr(changes, end)()
    for refused in (
        lambda: changes.open(path, "r"),
        lambda: changes.remove({"x": path}),
        lambda: changes.snapshots,
        changes.commit,
    ):
        with pytest.raises(ConflictError, match=f"{re.escape(url)}: the transaction has ended; begin another one$"):
            refused()


def test_a_transaction_is_not_pickled(changes: Transaction) -> None:
    with pytest.raises(ValueError, match="with a transaction under way cannot be pickled"):
        pickle.dumps(changes)


def test_a_member_that_is_put_back_stays(url: str, changes: Transaction) -> None:
    members = dict(changes.members())
    changes.remove(members)
    assert {**changes.members()} == {}
    changes.put_back({"y": members["y"]})
    assert {**changes.members()} == {"y": members["y"]}
    changes.commit()
    assert [*open_group(url)] == ["y"]


@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
@pytest.mark.parametrize("change", ["items", "dask", "another member", "a new member"])
@pytest.mark.parametrize("is_other_thread", [True, False])
def test_a_change_during_the_commit_is_part_of_it_or_refused(
    url: str, layout: Any, change: str, monkeypatch: pytest.MonkeyPatch, *, is_other_thread: bool
) -> None:
    operations, moment, refused = Operations(), 0, 0
    operations.listen(type(open_store(url)), monkeypatch)
    while True:
        group = open_group(f"{url}-{moment}.b2d", "w")
        for name in "xyz":
            group.create(name, data=np.zeros(8), chunks=(2,), layout=layout)
        block = group.transaction()
        changes = block.__enter__()
        changes["x"][0], changes["y"][0], x = 1, 1, changes["x"]
        errors: list[Exception] = []

        def act(x: Any = x, changes: Any = changes, errors: list[Exception] = errors) -> None:
            try:
                if change == "items":
                    x[5] = 5
                elif change == "dask":
                    x.store(da.full(4, 5.0, chunks=2), region=np.s_[4:8], scheduler="sync")
                elif change == "another member":
                    changes["z"][5] = 5
                else:
                    changes["n"] = np.full(8, 5.0)
            except ConflictError as error:
                errors.append(error)

        def act_there(act: Callable[[], None] = act) -> None:
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()

        end = partial(block.__exit__, None, None, None)
        if not operations.meets(moment, end, act_there if is_other_thread else act):
            break
        moment += 1
        found = open_group(group.url)
        name = {"items": "x", "dask": "x", "another member": "z", "a new member": "n"}[change]
        is_there = name in found and found[name][5] == 5
        assert is_there != bool(errors), operations.names[moment - 1]
        assert (found["x"][0], found["y"][0]) == (1, 1)
        refused += bool(errors)
    assert refused > 1


def restore(group: Group) -> None:
    """Restore the snapshot in a transaction."""
    group.restore("s")


def move(group: Group) -> None:
    """Rename a group of two members in a transaction."""
    group.move("z", "moved")


def copy(group: Group) -> None:
    """Copy a group of two members in a transaction."""
    group.copy("z", group, "copied")


def delete(group: Group) -> None:
    """Delete a group of two members in a transaction."""
    del group["z"]


def make_rows(group: Group) -> None:
    """Make the two arrays of rows in a transaction."""
    Rows.create(group.create_group("made"), [[1, 2], [3]])


def append_rows(group: Group) -> None:
    """Change the two arrays of rows in a transaction."""
    Rows(group["rows"]).append([[7, 8]])


def merge(group: Group) -> None:
    """Merge a fork that has changed two members and made a third one."""
    fork = group.fork()
    fork["x"][...], fork["y"][...], fork["n"] = 5, 5, [5]
    group.merge(fork)


def show_all(group: Group) -> dict[str, Any]:
    """Return the items of all members."""
    return {name: member[...].tolist() for name, member in group.walk() if isinstance(member, NDArray)}


@pytest.mark.parametrize("change", [restore, move, copy, delete, make_rows, append_rows, merge])
def test_a_change_of_several_steps_during_the_commit_is_part_of_it_as_a_whole_or_refused(
    url: str, change: Callable[[Group], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    operations, moment, acknowledged = Operations(), 0, 0
    operations.listen(type(open_store(url)), monkeypatch)
    while True:
        group = open_group(f"{url}-{moment}.b2d", "w")
        for name in ("x", "y", "z/a", "z/b"):
            group.create(name, data=np.zeros(8, int), chunks=(2,), layout="sparse")
        Rows.create(group.create_group("rows"), [[1]])
        group.snapshot("s")
        group["x"][...], group["y"][...], group["later"] = 1, 1, [1]
        before = show_all(group)
        with pytest.raises(ZeroDivisionError), group.transaction() as changes:
            changes["x"][0] = 3
            change(changes)
            after = show_all(changes)
            raise ZeroDivisionError  # give it up

        block = group.transaction()
        changes = block.__enter__()
        changes["x"][0] = 3
        before["x"][0] = 3
        errors: list[Exception] = []
        commit = threading.Thread(target=partial(block.__exit__, None, None, None))

        def act(changes: Group = changes, errors: list[Exception] = errors) -> None:
            try:
                change(changes)
            except ConflictError as error:
                errors.append(error)

        is_met = operations.meets(moment, act, partial(begin_there, commit))
        if not is_met:
            commit.start()
        commit.join()
        assert show_all(open_group(group.url)) == (before if errors else after), operations.names[moment - 1 :]
        moment += 1
        acknowledged += not errors
        if not is_met:
            break
    assert acknowledged > 0


@pytest.mark.parametrize("change", ["make", "delete"])
def test_a_snapshot_has_all_that_another_thread_has_done_before_its_commit(
    url: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations, moment = Operations(), 0
    operations.listen(type(open_store(url)), monkeypatch)
    while True:
        group = open_group(f"{url}-{moment}.b2d", "w")
        group["x"], group["z"] = [1], [1]
        block = group.transaction()
        changes = block.__enter__()
        changes["x"][0] = 2
        changes.snapshot("s")
        errors: list[Exception] = []

        def act(changes: Group = changes, errors: list[Exception] = errors) -> None:
            try:
                if change == "make":
                    changes["n"] = [5]
                else:
                    del changes["z"]
            except ConflictError as error:
                errors.append(error)

        thread = threading.Thread(target=act)

        end = partial(block.__exit__, None, None, None)
        is_met = operations.meets(moment, end, partial(begin_there, thread))
        if not is_met:
            break
        thread.join()
        changed = {"x": [2], "z": [1], "n": [5]} if change == "make" else {"x": [2]}
        found = show_all(open_group(group.url))
        assert found == ({"x": [2], "z": [1]} if errors else changed)
        assert show_all(open_group(group.url, at="s")) == found
        moment += 1
    assert moment > 2


def test_two_threads_set_the_first_attributes_of_a_group(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operations, moment = Operations(), 0
    operations.listen(type(open_store(url)), monkeypatch)
    while True:
        group = open_group(f"{url}-{moment}.b2d", "w")
        with group.transaction() as changes:
            other = threading.Thread(target=changes.attrs.update, args=({"b": 2},))
            update = partial(changes.attrs.update, {"a": 1})
            is_met = operations.meets(moment, update, partial(begin_there, other))
            if is_met:
                other.join()
        if not is_met:
            break
        assert dict(open_group(group.url).attrs) == {"a": 1, "b": 2}
        moment += 1
    assert moment > 0


def test_a_member_that_another_thread_has_just_deleted_is_missing(url: str) -> None:
    with open_group(url, "r+").transaction() as changes:
        changes["n"] = [1]
        with ThreadPoolExecutor(1) as pool:
            with changes._home.undivided.held:
                late = pool.submit(changes.__delitem__, "n")
                time.sleep(0.05)  # it has found the member, and waits
                del changes["n"]
            with pytest.raises(KeyError):
                late.result(60)
    assert {*open_group(url)} == {"x", "y"}


def test_another_writer_may_make_what_a_transaction_has_found_missing(url: str) -> None:
    with open_group(url, "r+").transaction() as changes:
        assert "n" not in changes
        assert changes.attrs.get("unit") is None
        other = open_group(url, "r+")
        other["n"], other.attrs["unit"] = [5], "s"
        changes["x"][0] = 9
    found = open_group(url)
    assert (found["x"][0], found["n"][0], found.attrs["unit"]) == (9, 5, "s")


def test_a_transaction_does_not_show_what_its_handle_commits_meanwhile(url: str) -> None:
    group = open_group(url, "r+")
    with group.transaction() as changes:
        group["n"] = [5]
        group.move("y", "moved")
        assert [*changes] == ["x", "y"]
        with pytest.raises(KeyError):
            changes["moved"]
    assert {*group} == {"x", "n", "moved"}


def test_a_snapshot_does_not_have_what_its_handle_commits_meanwhile(url: str) -> None:
    group = open_group(url, "r+")
    with pytest.raises(ConflictError, match="another writer has made or deleted 'n'"), group.transaction() as changes:
        changes.snapshot("s")
        group["n"] = [5]
    assert [*group.snapshots] == []
    assert {*group} == {"x", "y", "n"}


def test_members_below_a_prefix_are_deleted_first(url: str) -> None:
    open_group(url, "r+")["z/x"] = [1]
    changes = begin(group_at(url, {}), "z/")
    assert [*changes.members()] == ["x", "y"]
    changes.abort()
    assert "z/x" in open_group(url)


@pytest.mark.parametrize("kind", [Transaction, GroupFork])
def test_what_collects_changes_of_a_group_stays_small(kind: type) -> None:
    """The counts include inherited methods and fields. Nobody can understand a class that does everything."""
    methods: set[str] = set()
    fields: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("b2array"):
            (node,) = ast.parse(inspect.getsource(base)).body
            assert isinstance(node, ast.ClassDef)
            methods |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            stored = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
            stored = [each for each in stored if isinstance(each.ctx, ast.Store)]
            fields |= {each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"}
    assert 10 < len(methods) <= 25, sorted(methods)
    assert 5 < len(fields) <= 12, sorted(fields)
