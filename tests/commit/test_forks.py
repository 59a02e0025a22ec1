"""Forks of a transaction: handles for workers, whose writes become part of one commit."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from random import Random
from typing import TypeVar

import blosc2
import clouds
import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from writers import add_row, join_forks

import b2array
from b2array.codec import encode
from b2array.commit.draft import mark_lost
from b2array.errors import ConflictError, FormatError
from b2array.store.endings import JOURNAL

T = TypeVar("T")

SHAPE, CHUNKS = (8, 6), (1, 6)
PLACES = ["file", "directory", "memory", "sparse memory"]
LOCAL = PLACES[:2]

Make = Callable[..., b2array.NDArray]


def layout_of(place: str) -> str:
    return "sparse" if place in ("directory", "sparse memory") else "contiguous"


def where(place: str, folder: Path, name: str = "a") -> dict[str, object]:
    url = {} if "memory" in place else {"url": folder / f"{name}.b2nd"}
    return {**url, "layout": layout_of(place), "chunks": CHUNKS, "blocks": CHUNKS}


@pytest.fixture(params=PLACES)
def a(request: pytest.FixtureRequest, tmp_path: Path) -> b2array.NDArray:
    return b2array.zeros(SHAPE, "i4", **where(request.param, tmp_path))


@pytest.fixture(params=LOCAL)
def local(request: pytest.FixtureRequest, tmp_path: Path) -> b2array.NDArray:
    return b2array.zeros(SHAPE, "i4", **where(request.param, tmp_path))


def sent(value: T) -> T:
    """Return what another process would receive."""
    received: T = pickle.loads(pickle.dumps(value))
    return received


def rows(a: b2array.NDArray) -> list[int]:
    """Return one number for each row, in which all items are equal."""
    items = a[...]
    assert (items == items[:, :1]).all()
    first: list[int] = items[:, 0].tolist()
    return first


def again(a: b2array.NDArray) -> b2array.NDArray:
    """Return what another program reads."""
    if a.url == "memory":
        return a
    return b2array.open(a.url)


def files_at(folder: Path) -> list[str]:
    """Return what is in a folder, without locks."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.endswith("b2lock"))


def fill(fork: b2array.NDArray, row: int, value: int) -> b2array.NDArray:
    fork[row] = value
    return fork


# What forks read and write.


def test_a_fork_reads_the_base_the_changes_so_far_and_its_own_writes_and_no_siblings(a: b2array.NDArray) -> None:
    a[0] = 1
    with a.transaction() as changes:
        changes[1] = 2
        one, two = sent(changes.fork()), sent(changes.fork())
        one[2] = 3
        changes[3] = 4  # after the fork
        assert rows(one) == [1, 2, 3, 0, 0, 0, 0, 0]
        assert rows(two) == [1, 2, 0, 0, 0, 0, 0, 0]
        assert rows(sent(one)) == rows(one)
        assert rows(changes) == [1, 2, 0, 4, 0, 0, 0, 0]
        changes.merge(sent(one))
        assert rows(changes) == [1, 2, 3, 4, 0, 0, 0, 0]
        two[4] = 5
        changes.merge(two)
    assert rows(again(a)) == [1, 2, 3, 4, 5, 0, 0, 0]


def test_partial_writes_in_a_fork_start_from_the_chunks_that_it_shows(a: b2array.NDArray) -> None:
    a[...] = 1
    with a.transaction() as changes:
        changes[1, 1] = 2
        fork = sent(changes.fork())
        fork[1, 2] = 3
        fork[2, 3:] += 4
        changes.merge(sent(fork))
    assert again(a)[1].tolist() == [1, 2, 3, 1, 1, 1]
    assert again(a)[2].tolist() == [1, 1, 1, 5, 5, 5]


def test_one_fork_serves_many_workers(a: b2array.NDArray) -> None:
    with a.transaction() as changes:
        fork = changes.fork()
        workers = [fill(sent(fork), row, row + 1) for row in range(8)]
        assert rows(fork) == [0] * 8
        changes.merge(*map(sent, workers))
    assert rows(again(a)) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_threads_share_a_fork(a: b2array.NDArray) -> None:
    with a.transaction() as changes, ThreadPoolExecutor(4) as pool:
        fork = changes.fork()
        list(pool.map(lambda row: fill(fork, row, row + 1), range(8)))
        changes.merge(fork)
    assert rows(again(a)) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_zeros_nan_and_whole_arrays_are_written(a: b2array.NDArray) -> None:
    a[...] = 1
    with a.transaction() as changes:
        fork, other = sent(changes.fork()), sent(changes.fork())
        fork[:4] = 0
        other[4:] = 2
        changes.merge(sent(fork), sent(other))
    assert rows(again(a)) == [0, 0, 0, 0, 2, 2, 2, 2]


def test_attributes_and_dims_of_forks_become_part_of_the_commit(a: b2array.NDArray) -> None:
    a.attrs.update(kept=1, gone=2)
    with a.transaction() as changes:
        changes.attrs["before"] = 3
        one, two = sent(changes.fork()), sent(changes.fork())
        assert dict(one.attrs) == {"kept": 1, "gone": 2, "before": 3}
        one.attrs["new"] = [4]
        del one.attrs["gone"]
        one.dims = ("y", "x")
        two[0] = 1
        two.attrs["new"] = [4]
        changes.merge(sent(two), sent(one))
    assert dict(again(a).attrs) == {"kept": 1, "before": 3, "new": [4]}
    assert again(a).dims == ("y", "x")


def test_forks_of_forks_make_a_tree(a: b2array.NDArray) -> None:
    with a.transaction() as changes:
        changes[0] = 1
        fork = fill(sent(changes.fork()), 1, 2)
        leaves = [sent(fork.fork()) for _ in range(2)]
        assert rows(leaves[0])[:2] == [1, 2]
        fill(leaves[0], 2, 3)
        fill(leaves[1], 1, 4)
        fork.merge(*map(sent, leaves))
        assert rows(fork)[:4] == [1, 4, 3, 0]
        changes.merge(sent(fork))
    assert rows(again(a))[:4] == [1, 4, 3, 0]


# Siblings.


def test_siblings_make_a_tree(a: b2array.NDArray) -> None:
    with a.transaction() as changes:
        changes[0] = 9
        forks = [changes.fork() for _ in range(8)]
        done = [fill(sent(fork), row, 10 + row) for row, fork in enumerate(forks)]
        done[1].merge(done[2], sent(done[3]))
        assert rows(done[1]) == [9, 11, 12, 13, 0, 0, 0, 0]
        done[4].merge(sent(done[5]), done[6])
        root = sent(done[1])
        root.merge(sent(done[4]), done[7])
        assert rows(root) == [9, 11, 12, 13, 14, 15, 16, 17]
        root[7] = 18  # it is a fork as before
        changes.merge(sent(root), done[0])
    assert rows(again(a)) == [10, 11, 12, 13, 14, 15, 16, 18]


def test_siblings_change_parts_of_chunks_attributes_and_dims(a: b2array.NDArray) -> None:
    a.attrs["kept"] = 1
    with a.transaction() as changes:
        changes[0, :2] = 1
        forks = [sent(changes.fork()) for _ in range(3)]
        forks[0][0, 2] = 2
        forks[1][1, 3] = 3
        forks[1].attrs["one"] = 1
        forks[2].attrs["two"] = 2
        forks[2].dims = ("y", "x")
        forks[0].merge(*map(sent, forks[1:]))
        assert (dict(forks[0].attrs), forks[0].dims) == ({"kept": 1, "one": 1, "two": 2}, ("y", "x"))
        changes.merge(sent(forks[0]))
    shown = again(a)
    assert shown[:2].tolist() == [[1, 1, 2, 0, 0, 0], [0, 0, 0, 3, 0, 0]]
    assert (dict(shown.attrs), shown.dims) == ({"kept": 1, "one": 1, "two": 2}, ("y", "x"))


def test_siblings_that_write_different_items_are_a_conflict_that_changes_nothing(a: b2array.NDArray) -> None:
    with a.transaction() as changes:
        one, two, three = (sent(changes.fork()) for _ in range(3))
        one[1:4] = 1
        two[3:5] = 2
        three[5] = 3
        three.attrs["x"] = 3
        for others in ((two,), (three, two)):
            with pytest.raises(ConflictError, match=r"chunks \[3\]"):
                one.merge(*others)
        one.attrs["x"] = 1
        with pytest.raises(ConflictError, match=r"attributes \['x'\]"):
            one.merge(three)
        assert rows(one) == [0, 1, 1, 1, 0, 0, 0, 0]
        two[3] = 1  # now they agree
        one.merge(two)
        del three.attrs["x"]
        with pytest.raises(ConflictError, match=r"attributes \['x'\]"):
            one.merge(three)
        three.attrs["x"] = 1
        one.merge(three)
        changes.merge(one)
    assert (rows(again(a)), again(a).attrs["x"]) == ([0, 1, 1, 1, 2, 3, 0, 0], 1)


def test_a_sibling_can_be_merged_through_two_branches(a: b2array.NDArray) -> None:
    with a.transaction() as changes:
        changes[7] = 1
        one, two, three = (sent(changes.fork()) for _ in range(3))
        fill(one, 1, 1), fill(two, 2, 2), fill(three, 3, 3)
        repeated = fill(sent(changes.fork()), 3, 3)
        one.merge(sent(three))
        two.merge(sent(three), repeated)
        changes.merge(sent(one), two, three)
    assert rows(again(a)) == [0, 1, 2, 3, 0, 0, 0, 1]


def test_only_forks_of_one_point_merge_into_each_other(a: b2array.NDArray) -> None:
    with a.transaction() as changes:
        one, same = changes.fork(), changes.fork()
        changes[0] = 1
        later = fill(sent(changes.fork()), 2, 2)
        for fork, other in ((one, later), (later, fill(same, 1, 1))):
            with pytest.raises(ConflictError, match="has changed between these forks"):
                fork.merge(other)
        with pytest.raises(ValueError, match="into itself"):
            one.merge(one)
        with pytest.raises(ConflictError, match="different ones"):
            later.merge(sent(later), fill(sent(later.fork()), 3, 3))
        one.merge(same)
        with pytest.raises(ValueError, match="was merged"):
            one.merge(same)
        changes.merge(one, later)
    other = b2array.zeros(SHAPE, "i4", chunks=CHUNKS)
    with a.transaction() as changes, other.transaction() as others:
        forks = changes.fork(), others.fork()
        with pytest.raises(ConflictError, match="another transaction"):
            forks[0].merge(forks[1])
        changes.merge(forks[0])
        others.merge(forks[1])
    assert rows(again(a)) == [1, 1, 2, 0, 0, 0, 0, 0]


def test_a_branch_conflicts_with_later_changes_of_the_transaction_and_of_others(local: b2array.NDArray) -> None:
    def work(row: int) -> None:
        with local.transaction() as changes:
            one, two = sent(changes.fork()), fill(sent(changes.fork()), row, 1)
            one.merge(two)
            changes[5] = 5
            b2array.open(local.url, "r+")[6] = 6
            changes.merge(one)

    with pytest.raises(ConflictError, match=r"chunks \[5\]"):
        work(5)
    with pytest.raises(ConflictError, match=r"chunks \[6\]"):
        work(6)
    local.refresh()
    work(4)
    assert rows(again(local)) == [0, 0, 0, 0, 1, 5, 6, 0]


@pytest.mark.parametrize("place", LOCAL)
def test_a_failed_transaction_removes_the_files_of_its_branches(tmp_path: Path, place: str) -> None:
    a = b2array.zeros(SHAPE, "i4", **where(place, tmp_path))
    before = files_at(tmp_path)
    with pytest.raises(ZeroDivisionError), a.transaction() as changes:
        forks = [fill(sent(changes.fork()), row, 1) for row in range(4)]
        forks[0].merge(*map(sent, forks[1:]))
        changes.merge(sent(forks[0]))
        raise ZeroDivisionError
    assert files_at(tmp_path) == before
    with a.transaction() as changes:
        forks = [fill(sent(changes.fork()), row, 1) for row in range(4)]
        forks[0].merge(*map(sent, forks[1:]))
        forks[0][3] = 2  # the sibling's chunk is not needed any more
        changes.merge(sent(forks[0]))
    assert rows(again(a)) == [1, 1, 1, 2, 0, 0, 0, 0]
    assert b2array.vacuum(a.url, grace=0).removed == ()


WRITES = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=4)


@pytest.mark.filterwarnings("ignore:.*were never merged:UserWarning")
@given(st.sampled_from(PLACES[2:]), st.lists(WRITES, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_every_tree_of_merges_equals_one_merge(place: str, writes: list[list[tuple[int, int]]], random: Random) -> None:
    """Each merge of two forks at random, until one is left: as if all were merged at once, or the same conflict."""
    results = []
    for as_tree in (False, True):
        a = b2array.zeros(SHAPE, "i4", **where(place, Path()))
        with a.transaction() as changes:
            changes[0] = 9
            forks = [sent(changes.fork()) for _ in writes]
            for fork, of_fork in zip(forks, writes, strict=True):
                for row, value in of_fork:
                    fork[row] = value
            try:
                while as_tree and len(forks) > 1:
                    random.shuffle(forks)
                    other = forks.pop()
                    forks[0].merge(other if random.random() < 0.5 else sent(other))
                changes.merge(*map(sent, forks))
            except ConflictError:
                results.append(None)
                continue
        results.append(rows(again(a)))
    assert results[0] == results[1]


def test_a_fork_of_a_transaction_that_was_resized_has_the_new_shape(a: b2array.NDArray) -> None:
    a[7] = 7
    with a.transaction() as changes:
        changes.resize((10, 6))
        changes[8] = 8
        fork = sent(changes.fork())
        assert rows(fork) == [0] * 7 + [7, 8, 0]
        fork[9] = 9
        fork[0] = 1
        changes.merge(sent(fork))
    assert rows(again(a)) == [1, 0, 0, 0, 0, 0, 0, 7, 8, 9]


def resize(fork: b2array.NDArray) -> None:
    fork.resize((9, 6))


def append(fork: b2array.NDArray) -> None:
    fork.append(np.zeros((1, 6), "i4"))


def insert(fork: b2array.NDArray) -> None:
    fork.insert(np.zeros((1, 6), "i4"), 0)


def delete(fork: b2array.NDArray) -> None:
    fork.delete(slice(0, 1))


@pytest.mark.parametrize("change", [resize, append, insert, delete])
def test_a_fork_cannot_change_the_shape(a: b2array.NDArray, change: Callable[[b2array.NDArray], None]) -> None:
    with a.transaction() as changes:
        fork = fill(sent(changes.fork()), 1, 1)
        with pytest.raises(ValueError, match="resize before you fork"):
            change(fork)
        fork[2] = 2
        changes.merge(fork)
    assert rows(again(a)) == [0, 1, 2, 0, 0, 0, 0, 0]


def test_an_array_without_items_can_be_forked(tmp_path: Path) -> None:
    a = b2array.zeros((0, 6), "i4", url=tmp_path / "a.b2nd")
    with a.transaction() as changes:
        fork = sent(changes.fork())
        fork.attrs["empty"] = True
        changes.merge(sent(fork))
    assert again(a).attrs["empty"] is True


# Conflicts.


def test_equal_bytes_of_two_forks_are_fine(a: b2array.NDArray) -> None:
    with a.transaction() as changes:
        fork = changes.fork()
        twice = [fill(fill(sent(fork), 1, 5), 2, 0) for _ in range(3)]
        changes.merge(*map(sent, twice[:2]))
        changes.merge(sent(twice[2]))
    assert rows(again(a)) == [0, 5, 0, 0, 0, 0, 0, 0]


def test_different_bytes_of_two_forks_are_a_conflict_that_names_the_chunks_and_changes_nothing(
    a: b2array.NDArray,
) -> None:
    with a.transaction() as changes:
        fork = changes.fork()
        one, two = fill(fill(sent(fork), 1, 5), 4, 4), fill(fill(sent(fork), 1, 6), 2, 2)
        with pytest.raises(ConflictError, match=r"chunks \[1\] were written by two forks"):
            changes.merge(one, two)
        assert rows(changes) == [0] * 8
        changes.merge(one)  # it was not merged before
        with pytest.raises(ConflictError, match=r"chunks \[1\]"):
            changes.merge(two)
        assert rows(changes) == [0, 5, 0, 0, 4, 0, 0, 0]
        changes.merge(fork)  # it has no change
    assert rows(again(a)) == [0, 5, 0, 0, 4, 0, 0, 0]


def test_a_chunk_that_the_transaction_changed_after_the_fork_is_a_conflict(a: b2array.NDArray) -> None:
    with a.transaction() as changes:
        fork = fill(sent(changes.fork()), 1, 5)
        changes[1] = 6
        with pytest.raises(ConflictError, match=r"chunks \[1\]"):
            changes.merge(fork)
        changes[1] = 5
        changes.merge(fork)
    assert rows(again(a))[1] == 5


@pytest.mark.filterwarnings("ignore:.*were never merged:UserWarning")
def test_forks_that_set_an_attribute_or_dims_to_different_values_conflict(a: b2array.NDArray) -> None:
    with a.transaction() as changes:
        one, two = sent(changes.fork()), sent(changes.fork())
        one.attrs["x"], two.attrs["x"] = 1, 2
        with pytest.raises(ConflictError, match="'x'"):
            changes.merge(one, two)
        one, two = sent(changes.fork()), sent(changes.fork())
        one.dims, two.dims = ("y", "x"), ("x", "y")
        with pytest.raises(ConflictError, match="dims"):
            changes.merge(one, two)
        changes.merge(one)
        with pytest.raises(ConflictError, match="dims"):
            changes.merge(two)
        changes.attrs["x"] = 3
        three = sent(changes.fork())
        three.attrs["x"] = 4
        changes.attrs["x"] = 5
        with pytest.raises(ConflictError, match="'x'"):
            changes.merge(three)
    assert (dict(a.attrs), a.dims) == ({"x": 5}, ("y", "x"))


def test_a_resize_after_the_fork_is_a_conflict(a: b2array.NDArray) -> None:
    with pytest.raises(ConflictError, match="order of the chunks"), a.transaction() as changes:
        fork = fill(sent(changes.fork()), 1, 5)
        changes.resize((9, 6))
        changes.merge(fork)
    assert a.shape == (8, 6)


def test_concurrent_commits_to_other_chunks_are_kept(local: b2array.NDArray) -> None:
    with local.transaction() as changes:
        changes[0] = 1
        b2array.open(local.url, mode="r+")[6] = 6
        fork = fill(sent(changes.fork()), 1, 2)
        b2array.open(local.url, mode="r+")[7] = 7
        changes.merge(sent(fork))
    assert rows(again(local)) == [1, 2, 0, 0, 0, 0, 6, 7]


@pytest.mark.parametrize("moment", ["before the fork", "after the fork", "after the merge"])
@pytest.mark.parametrize("theirs", ["written", "read"])
def test_concurrent_commits_to_the_same_chunks_are_a_conflict(local: b2array.NDArray, moment: str, theirs: str) -> None:
    def other() -> None:
        b2array.open(local.url, mode="r+")[1] = 7

    def work() -> None:
        with local.transaction() as changes:
            changes[0] = 1
            if moment == "before the fork":
                other()
            fork = sent(changes.fork())
            fork[2] = 1 + (fork[1] if theirs == "read" else 0)
            if theirs == "written":
                fork[1, 1] = 1
            if moment == "after the fork":
                other()
            changes.merge(sent(fork))
            if moment == "after the merge":
                other()

    with pytest.raises(ConflictError, match=r"chunks \[1\] were changed by another writer"):
        work()
    assert again(local)[:3, 0].tolist() == [0, 7, 0]


# The end of forks and of transactions.


USES: dict[str, Callable[[b2array.NDArray], object]] = {
    "read": lambda a: a[0],
    "write": lambda a: fill(a, 0, 1),
    "shape": lambda a: a.shape,
    "attrs": lambda a: dict(a.attrs),
    "set attrs": lambda a: a.attrs.update(x=1),
    "dims": lambda a: a.dims,
    "view": lambda a: a.view[1:],
    "copy": lambda a: a.copy(),
    "resize": lambda a: a.resize((9, 6)),
    "fork": lambda a: a.fork(),
    "merge nothing": lambda a: a.merge(),
    "pickle": pickle.dumps,
    "bytes": lambda a: a.to_bytes(),
    "generation": lambda a: a.generation,
}


@pytest.mark.parametrize("use", USES)
def test_a_merged_fork_raises_at_every_use(use: str) -> None:
    a = b2array.zeros(SHAPE, "i4", chunks=CHUNKS)
    with a.transaction() as changes:
        fork = fill(changes.fork(), 1, 1)
        changes.merge(fork)
        with pytest.raises(ValueError, match="was merged"):
            USES[use](fork)
        with pytest.raises(ValueError, match="was merged"):
            changes.merge(fork)


def test_merging_after_the_commit_or_into_another_transaction_is_a_conflict(a: b2array.NDArray) -> None:
    with a.transaction() as changes:
        fork = changes.fork()
        late = fill(sent(fork), 1, 1)
        changes.merge(fork)
    with pytest.raises(ConflictError, match="ended"):
        a.merge(late)
    with a.transaction() as changes, pytest.raises(ConflictError, match="another transaction"):
        changes.merge(late)
    with a.transaction() as changes:
        other = changes.fork()
        with pytest.raises(ConflictError, match="another transaction"):
            changes.merge(late)
        changes.merge(other)
    assert rows(a) == [0] * 8


def test_only_forks_can_be_merged_and_only_transactions_forked(a: b2array.NDArray) -> None:
    with pytest.raises(ValueError, match="needs a transaction"):
        a.fork()
    with a.transaction() as changes, pytest.raises(TypeError, match="forks of this transaction"):
        changes.merge(b2array.zeros(3))


@pytest.mark.parametrize("place", LOCAL)
def test_forks_that_were_never_merged_are_named_and_vacuum_removes_what_they_left(tmp_path: Path, place: str) -> None:
    a = b2array.zeros(SHAPE, "i4", **where(place, tmp_path))
    before = files_at(tmp_path)
    with pytest.warns(UserWarning, match="2 of 3 forks were never merged"), a.transaction() as changes:
        forks = [fill(sent(changes.fork()), row, row + 1) for row in range(3)]
        sent(forks[0])
        changes.merge(sent(forks[1]))
    assert rows(again(a)) == [0, 2, 0, 0, 0, 0, 0, 0]
    fill(forks[2], 5, 9)  # it does not know yet
    pickle.dumps(forks[2])
    assert rows(again(a)) == [0, 2, 0, 0, 0, 0, 0, 0]
    b2array.vacuum(a.url, grace=0)
    assert len([name for name in files_at(tmp_path) if name not in before]) == (place == "directory")


@pytest.mark.parametrize("place", LOCAL)
def test_vacuum_keeps_what_a_transaction_of_thirty_hours_needs(tmp_path: Path, place: str) -> None:
    a = b2array.zeros((8, 60000), "i4", **{**where(place, tmp_path), "chunks": (1, 60000), "blocks": (1, 6000)})
    noise = np.random.default_rng(0).integers(0, 2**30, (8, 60000), "i4")
    with a.transaction() as changes:
        changes[0] = noise[0]  # before the fork
        fork = changes.fork()
        one = sent(fork)
        one[1] = noise[1]
        one = sent(one)
        then = time.time() - 30 * 3600
        journals = [path for path in tmp_path.rglob(f"*{JOURNAL}*") if path.is_file() and path.suffix != ".b2tmp"]
        assert len(journals) == 1
        for path in tmp_path.rglob("*"):
            if path not in journals:
                os.utime(path, (then, then))
        assert b2array.vacuum(a.url).removed == ()
        two = sent(fork)
        two[2] = noise[2]
        assert (two[0] == noise[0]).all()
        changes.merge(one, sent(two))
    assert (again(a)[:3] == noise[:3]).all()


@pytest.mark.parametrize("place", LOCAL)
def test_an_exception_leaves_nothing_behind(tmp_path: Path, place: str) -> None:
    a = b2array.zeros(SHAPE, "i4", **where(place, tmp_path))
    before = files_at(tmp_path)
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error), a.transaction() as changes:
            changes[0] = 1
            fork = changes.fork()
            one, two = fill(sent(fork), 1, 1), fill(sent(fork), 2, 2)
            changes.merge(sent(one))
            sent(two)  # it came back, and was not merged
            raise error
        assert files_at(tmp_path) == before
    assert rows(again(a)) == [0] * 8
    assert [thread.name for thread in threading.enumerate() if thread.name == "b2array-journal"] == []


@pytest.mark.parametrize("place", LOCAL)
def test_a_conflict_at_the_commit_leaves_nothing_behind(tmp_path: Path, place: str) -> None:
    a = b2array.zeros(SHAPE, "i4", **where(place, tmp_path))
    with pytest.raises(ConflictError), a.transaction() as changes:
        changes.merge(sent(fill(sent(changes.fork()), 1, 1)))
        b2array.open(a.url, mode="r+")[1] = 7
    assert rows(again(a)) == [0, 7, 0, 0, 0, 0, 0, 0]
    assert b2array.vacuum(a.url, grace=0).removed == ()


@pytest.mark.parametrize("place", LOCAL)
def test_a_commit_leaves_only_the_files_of_the_array(tmp_path: Path, place: str) -> None:
    a = b2array.zeros(SHAPE, "i4", **where(place, tmp_path))
    with a.transaction() as changes:
        fork = changes.fork()
        changes.merge(*(sent(fill(sent(fork), row, row + 1)) for row in range(8)))
    assert b2array.vacuum(a.url, grace=0).removed == ()
    assert len(files_at(tmp_path)) == (10 if place == "directory" else 1)
    assert b2array.verify(a.url, deep=True).ok
    theirs = blosc2.open(a.url, mode="r")
    assert theirs[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("place", LOCAL)
def test_a_fork_can_write_a_lost_chunk_again(tmp_path: Path, place: str) -> None:
    a = b2array.ones(SHAPE, "i4", **where(place, tmp_path))
    for attempt in a._handle.attempts():
        with attempt as draft:
            for n in (1, 2, 3):
                mark_lost(draft, n)
    with a.transaction() as changes:
        one, two = fill(sent(changes.fork()), 1, 5), fill(sent(changes.fork()), 2, 6)
        changes.merge(sent(one), sent(two))
    assert again(a)[:3, 0].tolist() == [1, 5, 6]
    with pytest.raises(FormatError, match="lost"):
        again(a)[3]


@pytest.mark.parametrize("place", ["file", pytest.param("memory", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_pickled_fork_of_many_chunks_is_small(tmp_path: Path, place: str) -> None:
    layout = {**where(place, tmp_path), "chunks": (8,), "blocks": (8,)}
    a = b2array.zeros(20_000 * 8, "f8", **layout)
    # Chunks of different lengths make the longest index and sizes.
    draws = np.random.default_rng(0)
    contents = [encode.encode(draws.integers(0, 1 + k, 8).tobytes(), typesize=8) for k in range(64)]
    for attempt in a._handle.attempts():
        with attempt as draft:
            for n, k in enumerate(draws.integers(0, 64, 20_000)):
                draft.put(n, contents[k])
    with a.transaction() as changes:
        changes[:80] = draws.random(80)
        fork = changes.fork()
        room = len(pickle.dumps(fork)) - (0 if place == "file" else a.cbytes)
        assert room < 300_000
        changes.merge(fork)


# Groups.


@pytest.mark.parametrize("place", LOCAL)
def test_members_of_a_group_are_forked_and_committed_together(tmp_path: Path, place: str) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", mode="a")
    layout = {"layout": layout_of(place), "chunks": CHUNKS, "blocks": CHUNKS}
    for name in ("one", "two"):
        group.create(name, SHAPE, "i4", **layout)
    with group.transaction() as changes:
        for number, name in enumerate(("one", "two")):
            fork = fill(sent(changes[name].fork()), number, 5)
            changes[name].merge(sent(fork))
        assert rows(group["one"]) == [0] * 8
    shown = b2array.open_group(tmp_path / "g.b2d")
    assert (rows(shown["one"])[:2], rows(shown["two"])[:2]) == ([5, 0], [0, 5])
    assert [name for name in files_at(tmp_path) if JOURNAL in name] == []


@pytest.mark.parametrize("place", LOCAL)
def test_a_new_member_is_written_by_forks(tmp_path: Path, place: str) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", mode="a")
    with group.transaction() as changes:
        new = changes.create("new", SHAPE, "i4", layout=layout_of(place), chunks=CHUNKS, blocks=CHUNKS)
        new.merge(sent(fill(sent(new.fork()), 3, 4)))
        assert "new" not in b2array.open_group(tmp_path / "g.b2d")
    assert rows(b2array.open_group(tmp_path / "g.b2d")["new"]) == [0, 0, 0, 4, 0, 0, 0, 0]
    assert [name for name in files_at(tmp_path) if JOURNAL in name] == []


@pytest.mark.parametrize("place", LOCAL)
def test_a_group_names_forks_that_were_never_merged(tmp_path: Path, place: str) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", mode="a")
    group.create("one", SHAPE, "i4", layout=layout_of(place), chunks=CHUNKS, blocks=CHUNKS)
    with pytest.warns(UserWarning, match="1 of 1 forks were never merged"), group.transaction() as changes:
        changes["one"][0] = 1
        fill(sent(changes["one"].fork()), 1, 1)
    assert rows(group["one"]) == [1, 0, 0, 0, 0, 0, 0, 0]


# Who may remove files.


@pytest.fixture
def two(tmp_path: Path) -> tuple[b2array.NDArray, b2array.NDArray]:
    """Two handles of one sparse array."""
    url = tmp_path / "a.b2nd"
    b2array.zeros(SHAPE, "i4", **where("directory", tmp_path))[...] = 1
    return b2array.open(url, mode="r+"), b2array.open(url, mode="r+")


def test_a_failing_transaction_with_forks_leaves_the_files_of_others_alone(
    two: tuple[b2array.NDArray, b2array.NDArray],
) -> None:
    ours, theirs = two
    # The files of chunks are numbered in the order in which threads have written them.
    replaced = ours._handle.source.locate(0).name
    with theirs.transaction(), pytest.raises(ZeroDivisionError), ours.transaction():
        fork = ours.fork()
        theirs[0] = 5
        theirs.get_chunk(0)  # it gets its file now
        fork[1] = 6
        ours.merge(sent(fork))
        raise ZeroDivisionError
    assert rows(again(ours)) == [5, *[1] * 7]
    assert b2array.verify(ours.url, deep=True).ok
    assert b2array.vacuum(ours.url, grace=0).removed == (replaced,)


def test_a_fork_does_not_reuse_an_equal_file_of_another_writer(
    two: tuple[b2array.NDArray, b2array.NDArray],
) -> None:
    ours, theirs = two
    with ours.transaction(), pytest.raises(ZeroDivisionError), theirs.transaction():
        theirs[0] = 5
        theirs.get_chunk(0)  # its file has the number that a task of dask tries first
        ours.store(da.full((1, 6), 5, chunks=(1, 6), dtype="i4"), (slice(0, 1),), scheduler="sync")
        raise ZeroDivisionError
    assert rows(again(ours)) == [5, *[1] * 7]
    assert b2array.verify(ours.url, deep=True).ok


@pytest.mark.parametrize("way", ["write", "fork", "write through a fork", "store"])
def test_a_writer_gets_an_error_if_a_file_has_replaced_the_directory(
    two: tuple[b2array.NDArray, b2array.NDArray], way: str
) -> None:
    ours, _ = two

    def meet() -> None:
        with ours.transaction() as changes:
            fork = changes.fork() if "through" in way else changes
            shutil.rmtree(ours.url)
            b2array.zeros(SHAPE, "i4", url=ours.url, layout="contiguous")
            if way == "fork":
                changes.fork()
            elif way == "store":
                changes.store(da.ones(SHAPE, chunks=(1, 6), dtype="i4"), scheduler="sync")
            else:
                fork[0] = 5
                fork.get_chunk(0)

    with pytest.raises(ConflictError):
        meet()
    assert rows(again(ours)) == [0] * 8


def test_a_repeated_task_writes_another_file_and_the_merge_keeps_one(tmp_path: Path) -> None:
    a = b2array.zeros(SHAPE, "i4", **where("directory", tmp_path))
    before = files_at(tmp_path)
    with a.transaction() as changes:
        fork = sent(changes.fork())
        one, two = sent(fill(sent(fork), 1, 1)), sent(fill(sent(fork), 1, 1))
        assert one._handle.freeze().codes.tolist() != two._handle.freeze().codes.tolist()
        changes.merge(one, two)
    assert rows(again(a)) == [0, 1, 0, 0, 0, 0, 0, 0]
    assert len([name for name in files_at(tmp_path) if name not in before]) == 1


def test_forks_use_few_numbers_however_many_chunks_there_are(tmp_path: Path) -> None:
    a = b2array.zeros((10**6, 2), "i1", url=tmp_path / "a.b2nd", chunks=(1, 2), layout="sparse")
    for row in range(3):
        with a.transaction() as changes:
            fork = sent(changes.fork())
            fork[row * 10**5] = 1
            changes.merge(sent(fork))
    assert a._handle.revision.state.annotations.next < 1000
    a.store(da.ones((2, 2), chunks=(1, 2), dtype="i1"), (slice(10**6 - 2, 10**6),), scheduler="sync")
    assert a._handle.revision.state.annotations.next < 1002


# Processes.


def executor(kind: str) -> Executor:
    if kind == "threads":
        return ThreadPoolExecutor(2)
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(kind))


KINDS = [
    pytest.param(kind, marks=pytest.mark.slow if kind == "spawn" else ())
    for kind in ("threads", "fork", "spawn")
    if kind in ("threads", *multiprocessing.get_all_start_methods())
]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_an_executor_writes_through_forks(tmp_path: Path, kind: str) -> None:
    with executor(kind) as pool:
        for place in PLACES:
            a = b2array.ones(SHAPE, "i4", **where(place, tmp_path, place))
            with a.transaction() as changes:
                changes[0] = 10
                forks = [changes.fork() for _ in range(1, 8)]
                changes.merge(*pool.map(add_row, forks, range(1, 8)))
            assert rows(again(a)) == [10, 11, 12, 13, 14, 15, 16, 17]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_an_executor_merges_siblings_in_pairs(tmp_path: Path, kind: str) -> None:
    with executor(kind) as pool:
        for place in PLACES:
            a = b2array.ones(SHAPE, "i4", **where(place, tmp_path, place))
            with a.transaction() as changes:
                changes[0] = 10
                forks = list(pool.map(add_row, [changes.fork() for _ in range(1, 8)], range(1, 8)))
                while len(forks) > 1:
                    pairs = list(pool.map(join_forks, forks[::2], forks[1::2]))
                    forks = pairs + forks[len(forks) & ~1 :]
                changes.merge(*forks)
            assert rows(again(a)) == [10, 11, 12, 13, 14, 15, 16, 17]


@pytest.mark.parametrize("place", PLACES)
def test_a_bag_of_dask_reduces_siblings_to_one(tmp_path: Path, place: str) -> None:
    a = b2array.ones(SHAPE, "i4", **where(place, tmp_path))
    with a.transaction() as changes:
        fork = changes.fork()
        parts = db.from_sequence(range(8), npartitions=8).map(lambda row: fill(sent(fork), row, row + 1))
        changes.merge(parts.fold(join_forks, split_every=2).compute(scheduler="threads"))
    assert rows(again(a)) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("place", PLACES)
def test_delayed_tasks_of_dask_write_through_forks(tmp_path: Path, place: str) -> None:
    a = b2array.ones(SHAPE, "i4", **where(place, tmp_path))
    with a.transaction() as changes:
        fork = changes.fork()
        tasks = [dask.delayed(lambda row: fill(sent(fork), row, row + 1))(row) for row in range(8)]
        changes.merge(*dask.compute(*tasks, scheduler="threads"))
    assert rows(again(a)) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_joblib_writes_through_forks(tmp_path: Path, place: str) -> None:
    joblib = pytest.importorskip("joblib")
    a = b2array.ones(SHAPE, "i4", **where(place, tmp_path))
    with a.transaction() as changes:
        tasks = (joblib.delayed(add_row)(changes.fork(), row) for row in range(1, 8))
        changes.merge(*joblib.Parallel(n_jobs=2)(tasks))
    assert rows(again(a)) == [1, 2, 3, 4, 5, 6, 7, 8]


def fill_or_die(fork: b2array.NDArray, row: int) -> b2array.NDArray:
    fork[row] = row + 1
    if row == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return fork


@pytest.mark.costly
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("place", LOCAL)
def test_a_killed_worker_loses_only_its_own_part(tmp_path: Path, place: str) -> None:
    a = b2array.zeros(SHAPE, "i4", **where(place, tmp_path))
    lost = 0
    with pytest.warns(UserWarning, match="1 of 4 forks were never merged"), a.transaction() as changes:
        for row in range(4):
            with executor("fork") as pool:  # a pool with a killed process does no more work
                try:
                    changes.merge(pool.submit(fill_or_die, changes.fork(), row).result())
                except BrokenProcessPool:
                    lost += 1
    assert lost == 1
    assert rows(again(a)) == [1, 2, 0, 4, 0, 0, 0, 0]


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def in_child(task: Callable[[], object]) -> int:
    """Call a task in a forked process, and return its status: 0, or 3 for a ConflictError."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            task()
            status = 0
        except ConflictError:
            status = 3
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.costly
@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("place", LOCAL)
def test_a_forked_process_cannot_write_to_an_inherited_fork(tmp_path: Path, place: str) -> None:
    a = b2array.zeros(SHAPE, "i4", **where(place, tmp_path))
    with a.transaction() as changes:
        fork = fill(changes.fork(), 1, 1)
        assert in_child(lambda: fill(fork, 2, 2)) == 3
        assert in_child(lambda: fill(sent(fork), 2, 2)) in (0, 3)
        assert in_child(lambda: changes.merge(fork)) == 3
        changes.merge(sent(fork))
    assert rows(again(a)) == [0, 1, 0, 0, 0, 0, 0, 0]


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("place", LOCAL)
def test_a_forked_process_that_leaves_the_block_removes_no_files(tmp_path: Path, place: str) -> None:
    a = b2array.zeros(SHAPE, "i4", **where(place, tmp_path))
    with a.transaction() as changes:
        changes.merge(sent(fill(sent(changes.fork()), 1, 1)))
        before = files_at(tmp_path)
        assert in_child(changes._handle.draft.abort) == 0
        assert files_at(tmp_path) == before
    assert rows(again(a)) == [0, 1, 0, 0, 0, 0, 0, 0]


# Object stores.


OFTEN = {("s3", "sparse"), ("gcs", "contiguous"), ("azure", "sparse")}
CLOUDS = [
    pytest.param(kind, layout, marks=() if (kind, layout) in OFTEN else pytest.mark.slow)
    for kind in clouds.KINDS
    for layout in ("contiguous", "sparse")
]


@pytest.mark.filterwarnings("ignore:.*is rewritten with every change:UserWarning")
@pytest.mark.parametrize(("kind", "layout"), CLOUDS)
def test_forks_write_to_object_stores(
    kind: str, layout: str, cloud_of: Callable[[str], clouds.Cloud], tmp_path: Path
) -> None:
    cloud = cloud_of(kind)
    url = f"{cloud.make_bucket(f'forks-{layout}-{kind}'.replace(' ', '-'))}/a.b2nd"
    options = {"storage_options": cloud.options}
    a = b2array.zeros(SHAPE, "i4", url=url, layout=layout, chunks=CHUNKS, blocks=CHUNKS, **options)
    with a.transaction() as changes:
        changes[0] = 1
        fork = changes.fork()
        one, two, three = (sent(fork) for _ in range(3))
        one[1], two[2], two[1], three[1] = 2, 3, 2, 4
        b2array.open(url, mode="r+", **options)[7] = 8
        with pytest.raises(ConflictError, match=r"chunks \[1\]"):
            changes.merge(sent(one), sent(three))
        changes.merge(sent(one), sent(two))
        changes.merge(fork)
    assert rows(b2array.open(url, **options)) == [1, 2, 3, 0, 0, 0, 0, 8]
    with pytest.raises(ConflictError, match="another writer"), a.transaction() as changes:
        changes.merge(sent(fill(sent(changes.fork()), 1, 1)))
        b2array.open(url, mode="r+", **options)[1] = 9
    assert b2array.open(url, **options)[:2, 0].tolist() == [1, 9]
    b2array.vacuum(url, grace=0, **options)
    assert b2array.open(url, **options)[:3, 0].tolist() == [1, 9, 3]
    assert [name for name in cloud.fs.find(url) if JOURNAL in name] == []
