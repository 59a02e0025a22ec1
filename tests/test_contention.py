"""Several writers of one array on an object store, which has no locks: none is lost, and few are refused."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from clouds import Cloud

import b2array
from b2array import config
from b2array.commit import in_bucket, prepare
from b2array.errors import ConflictError
from b2array.store.cloud import CloudStore

PLACES = [("s3", "contiguous"), ("s3", "sparse"), ("gcs", "contiguous"), ("azure", "sparse")]
"""Kinds of servers, each with a layout that is committed there."""
SHAPE, CHUNKS = (32, 20), (4, 20)


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings(), config.using(cache_bytes=0):
        warnings.filterwarnings("ignore", message=".*rewritten with every change")
        yield


@pytest.fixture(params=PLACES, ids="-".join)
def cloud(request: pytest.FixtureRequest, cloud_of: Callable[[str], Cloud]) -> Cloud:
    return cloud_of(request.param[0])


@pytest.fixture
def layout(request: pytest.FixtureRequest) -> str:
    return request.node.callspec.params["cloud"][1]


@pytest.fixture
def opened(layout: str, cloud: Cloud, cloud_url: str) -> Callable[..., b2array.NDArray]:
    url = f"{cloud_url}/a.b2nd"
    create = {"chunks": CHUNKS, "blocks": (2, 10), "layout": layout, "storage_options": cloud.options}
    b2array.zeros(SHAPE, "i8", url=url, **create)
    return lambda mode="r+": b2array.open(url, mode, storage_options=cloud.options)


def together(verb: Callable[[int], object], count: int) -> None:
    """Call `verb` in threads that begin at the same time, and raise what one of them raises."""
    begin = threading.Barrier(count)

    def run(n: int) -> None:
        begin.wait(30)
        verb(n)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))


def test_transactions_on_different_chunks_are_merged(opened):
    one, two = opened(), opened()
    with one.transaction():
        one[:4] = 1
        one.attrs["one"] = 1
        with two.transaction():
            two[8:12] = 2
            two[20:24] = 3
            two.attrs["two"] = 2
    found = opened("r")
    expected = np.zeros(SHAPE, "i8")
    expected[:4], expected[8:12], expected[20:24] = 1, 2, 3
    assert np.array_equal(found[...], expected)
    assert dict(found.attrs) == {"one": 1, "two": 2}


def test_transactions_whose_chunks_take_other_room_are_merged(opened):
    one, two = opened(), opened()
    noise = np.random.default_rng(0).integers(0, 2**60, SHAPE)
    one[...] = noise
    two.refresh()
    with one.transaction():
        one[24:] = 5
        with two.transaction():  # all chunks behind these move
            two[:8] = np.arange(20)
    noise[:8], noise[24:] = np.arange(20), 5
    assert np.array_equal(opened("r")[...], noise)


def once(verb: Callable[[], object], monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """Call `verb` before the next call of a function or method, and before no other."""
    original, calls = getattr(owner, name), []

    def overtaken(*args: object, **kwargs: object) -> object:
        if not calls:
            calls.append(name)
            verb()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, overtaken)


def test_transactions_on_different_chunks_that_commit_at_once_are_merged(opened, monkeypatch):
    opened()[...] = 1
    one, two = opened(), opened()

    def other():
        with two.transaction():
            two[16:] = 3

    with one.transaction():
        one[:16] = 2
        once(other, monkeypatch, CloudStore, "replace")  # when the commit has seen that it is the first
    assert np.array_equal(opened("r")[:, 0], np.repeat([2, 3], 16))


def test_a_transaction_that_commits_at_once_with_one_that_changed_what_it_read_is_a_conflict(opened, monkeypatch):
    opened()[...] = 1
    one, two = opened(), opened()

    def both():
        with one.transaction():
            one[:4] = one[8:12] + 1
            once(lambda: two.__setitem__(slice(8, 32), 3), monkeypatch, CloudStore, "replace")

    with pytest.raises(ConflictError, match=r"chunks \[2\]"):
        both()
    assert np.array_equal(opened("r")[:, 0], np.repeat([1, 3], [8, 24]))


@pytest.fixture
def group(layout: str, cloud: Cloud, cloud_url: str) -> Callable[[], b2array.Group]:
    """Open a group with one member."""
    url = f"{cloud_url}/g.b2d"
    made = b2array.open_group(url, "w", storage_options=cloud.options)
    made.create("a", data=np.ones(SHAPE, "i8"), chunks=CHUNKS, blocks=(2, 10), layout=layout)
    return lambda: b2array.open_group(url, "r+", storage_options=cloud.options)


def test_group_transactions_on_different_chunks_that_commit_at_once_are_merged(group, monkeypatch):
    one, two = group(), group()

    def other():
        with two.transaction() as changes:
            changes["a"][16:] = 3

    with one.transaction() as changes:
        changes["a"][:16] = 2
        once(other, monkeypatch, in_bucket, "replace_manifest")
    assert np.array_equal(group()["a"][:, 0], np.repeat([2, 3], 16))


@pytest.mark.parametrize("cloud", [place for place in PLACES if place[1] == "contiguous"], ids="-".join, indirect=True)
def test_a_group_transaction_copies_again_what_was_replaced_while_it_was_copied(group, monkeypatch):
    other = group()["a"]
    with group().transaction() as changes:
        changes["a"][:16] = 2
        once(lambda: other.__setitem__(slice(16, 32), 3), monkeypatch, prepare, "copy_frame")
    assert np.array_equal(group()["a"][:, 0], np.repeat([2, 3], 16))


@pytest.mark.parametrize("change", ["items", "rows", "attributes"])
def test_of_two_equal_changes_that_commit_at_once_the_later_one_is_a_conflict(opened, monkeypatch, change):
    """Both may build on what was there, as when each adds one: a writer must not take another's commit for its own."""
    one, two = opened(), opened()

    def add(array):
        with array.transaction():
            if change == "items":
                array[:4] = array[:4] + 1
            elif change == "rows":
                array.resize((array.shape[0] + 4, array.shape[1]))
            else:
                array.attrs["count"] = array.attrs.get("count", 0) + 1

    once(lambda: add(two), monkeypatch, CloudStore, "replace")
    with pytest.raises(ConflictError):
        add(one)
    one.refresh()
    add(one)
    found = opened("r")
    expected = {"items": 2, "rows": SHAPE[0] + 8, "attributes": 2}[change]
    assert {"items": found[0, 0], "rows": found.shape[0], "attributes": found.attrs.get("count")}[change] == expected


def test_transactions_on_the_same_chunk_are_a_conflict_with_its_number(opened):
    one, two = opened(), opened()

    def both():
        with one.transaction():
            one[4:8] = 1
            one[:4] = 5
            with two.transaction():
                two[4:8] = 2

    with pytest.raises(ConflictError, match=r"chunks \[1\]"):
        both()
    assert np.array_equal(opened("r")[:8], np.repeat([0, 2], 4)[:, None] * np.ones((1, 20)))


def test_a_chunk_that_was_read_and_changed_meanwhile_is_a_conflict(opened):
    one, two = opened(), opened()

    def copy():
        with one.transaction():
            one[4:8] = one[:4]
            with two.transaction():
                two[:4] = 2

    with pytest.raises(ConflictError):
        copy()
    assert (opened("r")[4:8] == 0).all()


def test_a_transaction_goes_on_reading_what_others_left_alone(opened):
    one, two = opened(), opened()
    two[12:16] = 3
    one.refresh()
    with one.transaction():
        one[:4] = 1
        one[4] = one[13]
        with two.transaction():
            two[20:24] = 2
        one[5] = one[14] + 1  # in one object, the bytes that this handle has opened are gone
        two[24:28] = 4
        one[17] = one[13]
    expected = np.zeros(SHAPE, "i8")
    expected[12:16], expected[:4], expected[4], expected[5], expected[17] = 3, 1, 3, 4, 3
    expected[20:24], expected[24:28] = 2, 4
    assert np.array_equal(opened("r")[...], expected)


def test_a_transaction_that_comes_upon_a_change_of_what_it_read_is_a_conflict(opened):
    one, two = opened(), opened()
    two[...] = 3
    one.refresh()

    def copy():
        with one.transaction():
            one[0] = one[13]
            with two.transaction():
                two[12:16] = 2
            one[17] = one[21]

    with pytest.raises(ConflictError, match=r"chunks \[3\]"):
        copy()
    assert (opened("r")[:12] == 3).all()


def test_equal_chunks_in_other_places_are_not_taken_for_each_other(opened):
    one, two = opened(), opened()
    two[0:4] = 7
    two[4:8] = 7
    one.refresh()

    def both():
        with one.transaction():
            one[0:4] = 1
            with two.transaction():
                two[0:4] = 0  # not stored any more, so that the other one takes its place

    with pytest.raises(ConflictError, match=r"chunks \[0\]"):
        both()


def test_many_writers_of_different_chunks_all_succeed(opened):
    def write(n):
        array = opened()
        for value in range(1, 4):
            array[4 * n : 4 * n + 4] = 10 * n + value

    together(write, 5)
    assert np.array_equal(opened("r")[:20], np.repeat(10 * np.arange(5) + 3, 4)[:, None] * np.ones((1, 20), "i8"))


def test_writers_of_different_rows_of_one_chunk_all_succeed(opened):
    def write(n):
        array = opened()
        for value in range(1, 4):
            array[n] = 10 * n + value

    together(write, 4)
    assert np.array_equal(opened("r")[:4], (10 * np.arange(4) + 3)[:, None] * np.ones((1, 20), "i8"))


def test_a_slow_writer_among_fast_ones_gets_its_turn(opened, monkeypatch):
    slow, stop = opened(), threading.Event()
    replace = type(slow._handle.store).replace

    def slowly(store, *args, **options):
        if store is slow._handle.store:
            time.sleep(0.2)  # others commit between its look at the state and its request
        return replace(store, *args, **options)

    monkeypatch.setattr(type(slow._handle.store), "replace", slowly)
    counts = []

    def write(n):
        array, count = opened(), 0
        while not stop.is_set() and count < 12:
            count += 1
            array[4 * n : 4 * n + 4] = count
            time.sleep(0.01)
        counts.append((n, count))

    threads = [threading.Thread(target=write, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        slow[:4] = 9
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    found = opened("r")
    assert (found[:4] == 9).all()
    assert sorted(n for n, _ in counts) == [1, 2]
    for n, count in counts:
        assert (found[4 * n : 4 * n + 4] == count).all()


def test_attempts_are_counted_and_end(opened, monkeypatch):
    array = opened()
    store = type(array._handle.store)
    monkeypatch.setattr(b2array.store.base, "_LONGEST_PAUSE", 0.0)
    tries = []

    def refuse(self, name, *_, **__):
        tries.append(name)
        raise b2array.store.base.conflict(name)

    monkeypatch.setattr(store, "replace", refuse)
    with config.using(retries=0), pytest.raises(ConflictError):
        array[0] = 1
    assert len(tries) <= 2
    monkeypatch.undo()
    assert (opened("r")[0] == 0).all()
