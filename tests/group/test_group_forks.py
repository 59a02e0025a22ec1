"""Forks of a group's transaction: handles of the group for workers, whose changes become part of one commit."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import clouds
import numpy as np
import pytest
from operations import Operations, begin_there
from writers import change_group

import b2array
from b2array.errors import ConflictError
from b2array.store.endings import JOURNAL
from b2array.store.open import open_store

pytestmark = pytest.mark.filterwarnings("ignore:.*is rewritten with every change:UserWarning")

T = TypeVar("T")

SHAPE = (8, 6)
PLACES = [("local", "contiguous"), ("local", "sparse"), ("memory", "contiguous"), ("memory", "sparse")]


def sent(value: T) -> T:
    """Return what another process would receive."""
    received: T = pickle.loads(pickle.dumps(value))
    return received


def made(url: object, layout: str, **options: object) -> b2array.Group:
    """Make a group of two arrays in groups of different depth."""
    group = b2array.open_group(url, "w", **options)
    for name in ("level", "air/speed"):
        group.create(name, SHAPE, "i4", chunks=(1, 6), blocks=(1, 6), layout=layout)
    return group


@pytest.fixture(params=PLACES, ids="-".join)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> b2array.Group:
    place, layout = request.param
    return made(tmp_path / "g.b2d" if place == "local" else f"memory://{tmp_path.name}.b2d", layout)


def again(group: b2array.Group) -> b2array.Group:
    """Return what another program reads."""
    return b2array.open_group(group.url)


def rows(a: b2array.NDArray) -> list[int]:
    first: list[int] = a[:, 0].tolist()
    return first


# What forks show and change.


def test_a_fork_shows_the_group_the_changes_so_far_and_its_own_and_no_siblings(group: b2array.Group) -> None:
    group["level"][0] = 1
    with group.transaction() as changes:
        changes["level"][1] = 2
        changes["new"] = np.arange(3)
        one, two = sent(changes.fork()), sent(changes.fork())
        one["level"][2] = 3
        one["mine"] = [4]
        changes["air/speed"][0] = 5  # after the fork
        assert rows(one["level"])[:3] == [1, 2, 3]
        assert rows(two["level"])[:3] == [1, 2, 0]
        assert rows(one["air/speed"])[0] == 0
        assert (sorted(one), sorted(two)) == (["air", "level", "mine", "new"], ["air", "level", "new"])
        assert one["new"][:].tolist() == [0, 1, 2]
        assert sorted(sent(one)) == sorted(one)
        assert sorted(changes) == ["air", "level", "new"]
        changes.merge(sent(one))
        assert changes["mine"][:].tolist() == [4]
        two["new"][0] = 9
        changes.merge(two)
    shown = again(group)
    assert rows(shown["level"]) == [1, 2, 3, 0, 0, 0, 0, 0]
    assert (shown["new"][:].tolist(), shown["mine"][:].tolist()) == ([9, 1, 2], [4])
    assert rows(shown["air/speed"])[0] == 5


def test_one_fork_serves_many_workers(group: b2array.Group) -> None:
    with group.transaction() as changes:
        fork = changes.fork()
        workers = [sent(fork) for _ in range(8)]
        for n, worker in enumerate(workers):
            worker["level"][n] = n + 1
            worker["air"]["speed"][n] = 10 * n
            worker[f"parts/{n}"] = [n]
        changes.merge(*map(sent, workers))
    shown = again(group)
    assert rows(shown["level"]) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert rows(shown["air/speed"]) == [0, 10, 20, 30, 40, 50, 60, 70]
    assert [shown[f"parts/{n}"][0] for n in range(8)] == list(range(8))


def test_attributes_of_groups_and_arrays_become_part_of_the_commit(group: b2array.Group) -> None:
    group.attrs["kept"] = 1
    with group.transaction() as changes:
        one, two = sent(changes.fork()), sent(changes.fork())
        one.attrs["x"], two.attrs["y"] = 1, 2
        one["air"].attrs["p"], two["air"].attrs["q"] = 3, 4  # it had none
        two["level"].attrs["unit"] = "m"
        two["level"].dims = ("t", "x")
        changes.merge(sent(one), sent(two))
    shown = again(group)
    assert dict(shown.attrs) == {"kept": 1, "x": 1, "y": 2}
    assert dict(shown["air"].attrs) == {"p": 3, "q": 4}
    assert (dict(shown["level"].attrs), shown["level"].dims) == ({"unit": "m"}, ("t", "x"))


def test_forks_of_forks_make_a_tree(group: b2array.Group) -> None:
    with group.transaction() as changes:
        fork = sent(changes.fork())
        fork["level"][0] = 1
        fork["mine"] = np.zeros(4, "i4")
        leaves = [sent(fork.fork()) for _ in range(2)]
        leaves[0]["level"][1] = 2
        leaves[0]["leaf"] = [5]
        leaves[1]["mine"][2] = 3
        fork.merge(*map(sent, leaves))
        assert (rows(fork["level"])[:2], fork["mine"][:].tolist()) == ([1, 2], [0, 0, 3, 0])
        changes.merge(sent(fork))
    shown = again(group)
    assert (rows(shown["level"])[:2], shown["mine"][:].tolist()) == ([1, 2], [0, 0, 3, 0])
    assert shown["leaf"][:].tolist() == [5]


@pytest.mark.parametrize("group", PLACES[:2], ids="-".join, indirect=True)
# Siblings.


def test_siblings_make_a_tree(group: b2array.Group) -> None:
    group.attrs["kept"] = 1
    with group.transaction() as changes:
        changes["level"][0] = 9
        forks = [sent(changes.fork()) for _ in range(4)]
        for n, fork in enumerate(forks, 1):
            fork["level"][n] = n
            fork[f"parts/{n}"] = [n, n]
            fork.attrs[f"worker {n}"] = n
        forks[3]["air/speed"][1] = 4
        forks[0].merge(forks[1])
        forks[2].merge(sent(forks[3]))
        root = sent(forks[0])
        root.merge(sent(forks[2]))
        assert rows(root["level"]) == [9, 1, 2, 3, 4, 0, 0, 0]
        assert sorted(root["parts"]) == ["1", "2", "3", "4"]
        root["parts/4"][0] = 5  # it is a fork as before
        changes.merge(sent(root))
    shown = again(group)
    assert rows(shown["level"]) == [9, 1, 2, 3, 4, 0, 0, 0]
    assert rows(shown["air/speed"]) == [0, 4, 0, 0, 0, 0, 0, 0]
    assert [shown[f"parts/{n}"][:].tolist() for n in range(1, 5)] == [[1, 1], [2, 2], [3, 3], [5, 4]]
    assert dict(shown.attrs) == {"kept": 1} | {f"worker {n}": n for n in range(1, 5)}


def test_siblings_that_exclude_each_other_are_a_conflict_and_nothing_is_taken(group: b2array.Group) -> None:
    with pytest.warns(UserWarning, match="2 of 5 forks were never merged"), group.transaction() as changes:
        one, two, three, four = (sent(changes.fork()) for _ in range(4))
        one["level"][1] = 1
        one["new"] = [1]
        two["level"][1] = 2
        two["more"] = [2]
        three["new"] = [3]
        four["new"] = [1]  # as `one` has it
        four["level"][2] = 4
        with pytest.raises(ConflictError, match=r"chunks \[1\]"):
            one.merge(two)
        with pytest.raises(ConflictError, match="'new' was made by two forks"):
            one.merge(three)
        assert sorted(one) == ["air", "level", "new"]
        one.merge(four)
        assert rows(one["level"])[:3] == [0, 1, 4]
        changes["level"][3] = 3
        later = sent(changes.fork())
        later["level"][4] = 4
        with pytest.raises(ConflictError, match="has changed between these forks"):
            one.merge(later)
        with pytest.raises(ValueError, match="into itself"):
            one.merge(one)
        changes.merge(one, later)
    shown = again(group)
    assert rows(shown["level"]) == [0, 1, 4, 3, 4, 0, 0, 0]
    assert (shown["new"][:].tolist(), "more" in shown) == ([1], False)


def test_a_fork_of_an_inner_group_writes_there_alone(group: b2array.Group) -> None:
    group["level"][0] = 1
    with group.transaction() as changes:
        fork = sent(changes["air"].fork())
        fork["speed"][1] = 2
        outer = fork.parent
        assert outer is not None
        assert rows(outer["level"])[0] == 1
        with pytest.raises(PermissionError):
            outer["level"][0] = 3
        changes.merge(sent(fork))
    assert rows(again(group)["air/speed"])[1] == 2


# What they refuse.


REFUSED: dict[str, Callable[[b2array.Group], object]] = {
    "delete": lambda fork: fork.__delitem__("level"),
    "delete its own": lambda fork: fork.__delitem__("mine"),
    "move": lambda fork: fork.move("level", "other"),
    "replace": lambda fork: fork.__setitem__("level", [1]),
    "overwrite": lambda fork: fork.create("level", (3,), overwrite=True),
    "resize": lambda fork: fork["level"].resize((9, 6)),
    "append": lambda fork: fork["level"].append(np.zeros((1, 6), "i4")),
    "refresh": lambda fork: fork.refresh(),
    "consolidate": lambda fork: fork.consolidate(),
    "transaction": lambda fork: fork.transaction().__enter__(),
}


@pytest.mark.parametrize("change", REFUSED)
def test_a_fork_does_not_delete_move_replace_or_resize(tmp_path: Path, change: str) -> None:
    group = made(tmp_path / "g.b2d", "contiguous")
    with group.transaction() as changes:
        fork = sent(changes.fork())
        fork["mine"] = [1]
        with pytest.raises(ValueError, match=r"fork|transaction"):
            REFUSED[change](fork)
        assert sorted(fork) == ["air", "level", "mine"]
        changes.merge(fork)
    assert sorted(again(group)) == ["air", "level", "mine"]
    assert again(group)["level"].shape == SHAPE


USES: dict[str, Callable[[b2array.Group], object]] = {
    "in": lambda fork: "level" in fork,
    "list": list,
    "get": lambda fork: fork["level"],
    "create": lambda fork: fork.create("x", (3,)),
    "set": lambda fork: fork.__setitem__("x", [1]),
    "attrs": lambda fork: dict(fork.attrs),
    "set attrs": lambda fork: fork.attrs.update(x=1),
    "inner": lambda fork: list(fork.groups()),
    "fork": lambda fork: fork.fork(),
    "pickle": pickle.dumps,
    "repr": repr,
}


@pytest.mark.parametrize("use", USES)
def test_a_merged_fork_raises_at_every_use(use: str, tmp_path: Path) -> None:
    group = made(f"memory://{tmp_path.name}.b2d", "sparse")
    with group.transaction() as changes:
        fork = changes.fork()
        level, fork["mine"] = fork["level"], [1]
        mine = fork["mine"]
        changes.merge(fork)
        with pytest.raises(ValueError, match="was merged"):
            USES[use](fork)
        with pytest.raises(ValueError, match="was merged"):
            changes.merge(fork)
        for a in (level, mine):
            with pytest.raises(ValueError, match="was merged"):
                a[0] = 1


def test_merging_after_the_commit_or_into_another_transaction_is_a_conflict(group: b2array.Group) -> None:
    with pytest.raises(ValueError, match="needs a transaction"):
        group.fork()
    with group.transaction() as changes:
        fork = changes.fork()
        late = sent(fork)
        late["level"][0] = 1
        late["mine"] = [1]
        changes.merge(fork)
    with pytest.raises(ConflictError, match="ended"):
        group.merge(late)
    with pytest.raises(ConflictError, match="ended"):
        changes.merge(late)
    with group.transaction() as changes:
        with pytest.raises(ConflictError, match="another transaction"):
            changes.merge(late)
        with pytest.raises(TypeError, match="forks of this group"):
            changes.merge(group)
        with pytest.raises(TypeError, match="forks of this group"):
            changes.merge(group["level"])
    assert rows(again(group)["level"]) == [0] * 8
    assert "mine" not in again(group)


# Conflicts.


def test_equal_members_and_equal_bytes_of_two_forks_are_fine(group: b2array.Group) -> None:
    with group.transaction() as changes:
        fork = changes.fork()
        twice = [sent(fork) for _ in range(3)]
        for worker in twice:
            worker["level"][1] = 5
            worker.create("mine", data=np.arange(1000.0), chunks=100, dims=["x"], attrs={"unit": "m"})
            worker.attrs["x"] = 1
        changes.merge(*map(sent, twice[:2]))
        changes.merge(sent(twice[2]))
    assert rows(again(group)["level"])[1] == 5
    assert again(group)["mine"][:].tolist() == list(range(1000))


def write(group: b2array.Group, value: int) -> None:
    group["level"][2:4] = value


DIFFERENT: dict[str, tuple[Callable[[b2array.Group], object], Callable[[b2array.Group], object], str]] = {
    "chunks": (lambda one: write(one, 1), lambda two: write(two, 2), r"chunks \["),
    "items": (lambda one: one.__setitem__("new", [1]), lambda two: two.__setitem__("new", [2]), "'new'"),
    "shapes": (lambda one: one.create("new", (3,)), lambda two: two.create("new", (4,)), "'new'"),
    "zeros": (lambda one: one.create("new", data=[0, 1]), lambda two: two.create("new", (2,), "i8"), "'new'"),
    "attributes": (lambda one: one.attrs.update(x=1), lambda two: two.attrs.update(x=2), "attr|vlmeta"),
    "new attributes": (
        lambda one: one["air"].attrs.update(x=1),
        lambda two: two["air"].attrs.update(x=2),
        "attr|vlmeta",
    ),
    "names": (lambda one: one.__setitem__("new", [1]), lambda two: two.__setitem__("new/inner", [1]), "new"),
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.filterwarnings("ignore:.*were never merged:UserWarning")
def test_changes_that_exclude_each_other_are_a_conflict_and_nothing_is_taken(tmp_path: Path, what: str) -> None:
    group = made(tmp_path / "g.b2d", "contiguous")
    first, second, said = DIFFERENT[what]
    with group.transaction() as changes:
        one, two = sent(changes.fork()), sent(changes.fork())
        first(one)
        second(two)
        one["air/speed"][3] = 7
        two["other"] = [1]
        with pytest.raises(ConflictError, match=said):
            changes.merge(one, two)
        assert (sorted(changes), rows(changes["air/speed"])[3]) == (["air", "level"], 0)
        changes.merge(one)  # it was not merged before
        with pytest.raises(ConflictError, match=said):
            changes.merge(two)
    assert rows(again(group)["air/speed"])[3] == 7
    assert "other" not in again(group)


@pytest.mark.filterwarnings("ignore:.*were never merged:UserWarning")
def test_a_member_that_the_transaction_deleted_after_the_fork_is_a_conflict(group: b2array.Group) -> None:
    with group.transaction() as changes:
        fork = sent(changes.fork())
        fork["level"][0] = 1
        del changes["level"]
        with pytest.raises(ConflictError, match="deleted since the fork"):
            changes.merge(fork)
        changes["level"] = [1]
    assert again(group)["level"][:].tolist() == [1]


@pytest.mark.filterwarnings("ignore:.*were never merged:UserWarning")
@pytest.mark.parametrize("opens", ["nothing", "reads", "writes"])
def test_a_fork_after_another_writer_has_deleted_a_member_is_a_conflict(group: b2array.Group, opens: str) -> None:
    def work() -> None:
        with group.transaction() as changes:
            if opens == "reads":
                assert changes["level"].shape
            if opens == "writes":
                changes["level"][0] = 1
            del b2array.open_group(group.url, "r+")["level"]
            fork = changes.fork()
            fork["level"][1] = 1
            changes.merge(fork)

    with pytest.raises(ConflictError):
        work()
    assert "level" not in again(group)


@pytest.mark.parametrize("group", PLACES[:2], ids="-".join, indirect=True)
@pytest.mark.parametrize("theirs", ["written", "read", "made"])
def test_commits_of_others_are_a_conflict_as_in_any_transaction(group: b2array.Group, theirs: str) -> None:
    def work() -> None:
        with group.transaction() as changes:
            fork = sent(changes.fork())
            if theirs == "made":
                fork["new"] = [1]
            fork["air/speed"][0] = 1 + (fork["level"][1, 0] if theirs == "read" else 0)
            fork["level"][2] = 1
            if theirs == "written":
                fork["level"][1] = 2
            changes.merge(sent(fork))
            other = b2array.open_group(group.url, "r+")
            other["level"][1] = 7
            if theirs == "made":
                other["new"] = [2]

    with pytest.raises(ConflictError):
        work()
    shown = again(group)
    assert (rows(shown["level"])[:3], rows(shown["air/speed"])[0]) == ([0, 7, 0], 0)


# The end.


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_forks_that_were_never_merged_are_named_and_nothing_stays(tmp_path: Path, layout: str) -> None:
    group = made(tmp_path / "g.b2d", layout)
    with pytest.warns(UserWarning, match=r"2 of 3 forks were never merged") as said, group.transaction() as changes:
        forks = [sent(changes.fork()) for _ in range(3)]
        for n, fork in enumerate(forks):
            fork["level"][n] = n + 1
            fork[f"new{n}"] = [n]
        changes.merge(sent(forks[1]))
    assert len(said) == 1
    assert rows(again(group)["level"])[:3] == [0, 2, 0]
    assert sorted(again(group)) == ["air", "level", "new1"]
    b2array.vacuum(group.url, grace=0)
    assert [path for path in tmp_path.rglob("*") if JOURNAL in path.name or ".b2tmp" in path.name] == []


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_an_exception_leaves_nothing_behind(tmp_path: Path, layout: str) -> None:
    group = made(tmp_path / "g.b2d", layout)
    before = sorted(path for path in tmp_path.rglob("*") if not path.name.endswith("b2lock"))
    with pytest.raises(ZeroDivisionError), group.transaction() as changes:
        changes.create("new", SHAPE, "i4", layout=layout)[0] = 1
        fork = sent(changes.fork())
        fork["level"][0], fork["new"][1] = 1, 2
        fork["mine"] = [1]
        changes.merge(sent(fork))
        raise ZeroDivisionError
    assert sorted(path for path in tmp_path.rglob("*") if not path.name.endswith("b2lock")) == before


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_vacuum_keeps_what_a_transaction_of_thirty_hours_needs(tmp_path: Path, layout: str) -> None:
    group = made(tmp_path / "g.b2d", layout)
    noise = np.random.default_rng(0).integers(0, 2**30, (8, 600_000), "i4")
    with group.transaction() as changes:
        changes.create("new", noise.shape, "i4", chunks=(1, 600_000), blocks=(1, 6000), layout=layout)
        changes["new"][0] = noise[0]
        fork = changes.fork()
        one = sent(fork)
        one["new"][1], one["level"][1] = noise[1], 1
        one["mine"] = [1]
        one = sent(one)
        changes.create("after", data=noise[2:4], chunks=(1, 600_000), blocks=(1, 6000), layout=layout)
        then = time.time() - 30 * 3600
        for path in tmp_path.rglob("*"):
            if not (path.is_file() and JOURNAL in str(path) and path.suffix != ".b2tmp"):
                os.utime(path, (then, then))
        b2array.vacuum(group.url)
        changes.merge(one)
    shown = again(group)
    assert (shown["new"][:2] == noise[:2]).all()
    assert (shown["after"][...] == noise[2:4]).all()
    assert (rows(shown["level"])[1], shown["mine"][0]) == (1, 1)


# Processes and object stores.


KINDS = [
    pytest.param(kind, marks=pytest.mark.slow if (kind, n) == ("spawn", 1) else ())
    for n, kind in enumerate(kind for kind in ("fork", "spawn") if kind in multiprocessing.get_all_start_methods())
]
"""Where processes begin as copies, an ordinary run leaves out those that begin anew."""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_processes_change_a_group(tmp_path: Path, kind: str) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(kind)) as pool:
        for layout in ("contiguous", "sparse"):
            group = made(tmp_path / f"{layout}.b2d", layout)
            with group.transaction() as changes:
                changes["level"][0] = 10
                changes.merge(*pool.map(change_group, [changes.fork() for _ in range(1, 8)], range(1, 8)))
            shown = again(group)
            assert rows(shown["level"]) == [10, 11, 12, 13, 14, 15, 16, 17]
            assert [shown[f"parts/{n}"][0] for n in range(1, 8)] == [*range(1, 8)]
            assert shown.attrs == {f"worker {n}": n for n in range(1, 8)}


OFTEN = {("gcs", "contiguous"), ("azure", "sparse")}
CLOUDS = [
    pytest.param(kind, layout, marks=() if (kind, layout) in OFTEN else pytest.mark.slow)
    for kind in clouds.KINDS
    for layout in ("contiguous", "sparse")
]


@pytest.mark.costly
@pytest.mark.parametrize(("kind", "layout"), CLOUDS)
def test_forks_change_groups_in_object_stores(kind: str, layout: str, cloud_of: Callable[[str], clouds.Cloud]) -> None:
    cloud = cloud_of(kind)
    url = f"{cloud.make_bucket(f'groups-{layout}-{kind}'.replace(' ', '-'))}/g.b2d"
    options = {"storage_options": cloud.options}
    group = made(url, layout, **options)
    with group.transaction() as changes:
        changes["level"][0] = 10
        changes.merge(*[change_group(sent(changes.fork()), n) for n in range(1, 4)])
    shown = b2array.open_group(url, **options)
    assert rows(shown["level"]) == [10, 11, 12, 13, 0, 0, 0, 0]
    assert [shown[f"parts/{n}"][0] for n in range(1, 4)] == [1, 2, 3]
    assert shown.attrs == {f"worker {n}": n for n in range(1, 4)}
    with pytest.raises(ConflictError), group.transaction() as changes:
        changes.merge(change_group(sent(changes.fork()), 4))
        b2array.open_group(url, "r+", **options)["level"][4] = 9
    assert "parts/4" not in b2array.open_group(url, **options)
    b2array.vacuum(url, grace=0, **options)
    assert rows(b2array.open_group(url, **options)["level"])[:5] == [10, 11, 12, 13, 9]
    assert [name for name in cloud.fs.find(url) if JOURNAL in name] == []


@pytest.mark.parametrize("change", ["items", "items of an array's fork", "another member", "a new member"])
def test_a_change_through_a_fork_during_its_merge_is_part_of_it_or_refused(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations, moment, refused = Operations(), 0, 0
    operations.listen(type(open_store(tmp_path)), monkeypatch)
    while True:
        group = made(tmp_path / f"{moment}.b2d", "sparse")
        with group.transaction() as changes:
            level = changes["level"]
            owner = level if change == "items of an array's fork" else changes
            forks = [owner.fork(), owner.fork()]
            for n, fork in enumerate(forks):
                each = fork if owner is level else fork["level"]
                each[n] = 5
                if owner is changes:
                    fork[f"new{n}"] = [n]
            first, errors = forks[0], list[ValueError]()

            def act(first: Any = first, errors: list[ValueError] = errors) -> None:
                try:
                    if change == "items of an array's fork":
                        first[5] = 7
                    elif change == "items":
                        first["level"][5] = 7
                    elif change == "another member":
                        first["air/speed"][5] = 7
                    else:
                        first["n"] = np.full((8, 6), 7)
                except ValueError as error:
                    errors.append(error)

            thread = threading.Thread(target=act)

            is_met = operations.meets(moment, partial(owner.merge, *forks), partial(begin_there, thread))
            if is_met:
                thread.join()
        if not is_met:
            break
        name = {"another member": "air/speed", "a new member": "n"}.get(change, "level")
        is_there = name in again(group) and again(group)[name][5, 0] == 7
        assert is_there != bool(errors), operations.names[moment]
        assert again(group)["level"][:2, 0].tolist() == [5, 5]
        moment += 1
        refused += bool(errors)
    assert refused > 1


def test_a_fork_does_not_show_what_the_transaction_does_later(group: b2array.Group) -> None:
    with group.transaction() as changes:
        changes["early"] = [1]
        fork = changes.fork()
        changes["late"] = [2]
        del changes["level"]
        assert {*fork} == {"level", "air", "early"}
        assert "late" not in fork
        changes.merge(fork)


@pytest.mark.filterwarnings("ignore:.*forks were never merged")
def test_merges_of_groups_and_arrays_by_threads_do_not_wait_for_each_other(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    for name in "xy":
        group.create(name, SHAPE, "i4", chunks=(1, 6), layout="sparse")
    for turn in range(10):
        with group.transaction() as changes:
            forks = [changes.fork() for _ in range(3)]
            for n, fork in enumerate(forks):
                fork["x"][n] = fork["y"][n] = turn + 1
            tasks: list[Callable[[], object]] = [
                partial(changes.merge, forks[0], forks[1]),
                partial(changes["x"].merge, forks[2]["x"]),
                partial(forks[1]["y"].merge, forks[2]["y"]),
                partial(forks[2].merge, forks[0]),
            ]
            with ThreadPoolExecutor(len(tasks)) as pool:
                for future in [pool.submit(task) for task in tasks]:
                    try:
                        future.result(60)
                    except (ConflictError, ValueError):
                        continue  # another thread was faster


def test_a_fork_is_pickled_while_a_thread_makes_members_through_it(group: b2array.Group) -> None:
    with group.transaction() as changes, ThreadPoolExecutor(1) as pool:
        fork = changes.fork()

        def make() -> None:
            for n in range(40):
                fork[f"n{n}"] = [n]

        made_all = pool.submit(make)
        while not made_all.done():
            received = sent(fork)
            assert all(received[name][0] == int(name[1:]) for name in received if name[0] == "n")
        made_all.result()
        changes.merge(sent(fork))
    assert sorted(name for name in again(group) if name[0] == "n") == sorted(f"n{n}" for n in range(40))


@pytest.mark.filterwarnings("ignore:.*forks were never merged")
def test_a_fork_is_used_after_a_merge_that_failed(group: b2array.Group) -> None:
    with group.transaction() as changes:
        fork = changes.fork()
        fork["level"][0] = fork["air/speed"][0] = 5
        changes["level"].merge(fork["level"])
        for _ in range(2):
            with pytest.raises(ValueError, match="this fork was merged"):
                changes.merge(fork)
        fork["air/speed"][1] = 6
        changes["air/speed"].merge(fork["air/speed"])
    assert rows(again(group)["level"])[:2] == [5, 0]
    assert rows(again(group)["air/speed"])[:2] == [5, 6]


@pytest.mark.filterwarnings("ignore:.*forks were never merged")
def test_a_merge_into_a_fork_that_another_thread_merges_is_part_of_that_merge_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations, moment, refused = Operations(), 0, 0
    operations.listen(type(open_store(tmp_path)), monkeypatch)
    while True:
        group = made(tmp_path / f"{moment}.b2d", "sparse")
        with group.transaction() as changes:
            one, two = changes.fork(), changes.fork()
            one["level"][0], two["level"][1] = 5, 6
            errors: list[Exception] = []

            def act(one: Any = one, two: Any = two, errors: list[Exception] = errors) -> None:
                try:
                    one.merge(two)
                except (ValueError, ConflictError) as error:
                    errors.append(error)

            thread = threading.Thread(target=act)

            into_array = partial(changes["level"].merge, one["level"])
            is_met = operations.meets(moment, into_array, partial(begin_there, thread))
            if is_met:
                thread.join()
        if not is_met:
            break
        assert rows(again(group)["level"])[:2] == [5, 0 if errors else 6]
        moment += 1
        refused += bool(errors)
    assert refused > 0
