"""How many requests and waves each action on an array or a group in an object store takes.

A wave is a set of requests that do not wait for each other's answers. Each budget holds for one writer in a row, on
sparse members of one chunk, with connections that are open already. The waves of a transaction count from the exit of
its block: what happens inside is the user's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import clouds
import numpy as np
import pytest
from servers import answer_after

import b2array

DELAY = 0.01
"""Seconds that each answer takes at least: see `answer_after`."""
NATIVE = ("s3", "gcs", "azure")


@dataclass
class Count:
    """The requests of an action, in order, and the length of the longest chain of those that waited for others."""

    asked: list[str] = field(default_factory=list)
    waves: int = 0

    @property
    def requests(self) -> int:
        return len(self.asked)


class Counter:
    """Counts what passes a gate in front of a server."""

    def __init__(self, gate: clouds.Gate) -> None:
        self.gate = gate
        self.lock = threading.Lock()
        self.count: Count | None = None

    def _rule(self, _: int, what: str) -> Callable[[], None]:
        with self.lock:
            count = self.count
            if count is not None:
                count.asked.append(what)
                depth = count.waves + 1

        def answer() -> None:
            answer_after(DELAY)
            if count is not None:
                with self.lock:
                    count.waves = max(count.waves, depth)

        return answer

    @contextmanager
    def counting(self) -> Iterator[Count]:
        """Count the requests of the block."""
        self.gate.arm(self._rule)
        with self.lock:
            self.count = count = Count()
        try:
            yield count
        finally:
            with self.lock:
                self.count = None
            self.gate.arm()


@dataclass
class Bucket:
    """A bucket behind a counter."""

    url: str
    options: dict[str, object]
    counter: Counter

    def counting(self) -> object:
        return self.counter.counting()

    def group(self, name: str = "g.b2d", mode: str = "r+") -> b2array.Group:
        return b2array.open_group(f"{self.url}/{name}", mode, storage_options=self.options)

    def open(self, name: str, mode: str = "r", **options: object) -> b2array.NDArray:
        return b2array.open(f"{self.url}/{name}", mode, storage_options=self.options, **options)


@pytest.fixture(params=NATIVE)
def bucket(
    request: pytest.FixtureRequest, cloud_of: Callable[[str], clouds.Cloud], _bucket_names: Iterator[str]
) -> Iterator[Bucket]:
    cloud = cloud_of(request.param)
    url = cloud.make_bucket(next(_bucket_names))
    with clouds.gate_to(cloud) as (gate, endpoint):
        yield Bucket(url, cloud.through(endpoint), Counter(gate))


def values(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(1500)


@pytest.fixture
def group(bucket: Bucket) -> b2array.Group:
    """A group of ten members, each of one chunk."""
    group = bucket.group(mode="w")
    with group.transaction() as changes:
        for n in range(10):
            changes[f"m{n}"] = values(n)
    return bucket.group()


def test_a_group_and_its_members_are_opened_by_what_the_manifest_lists(bucket: Bucket, group: b2array.Group) -> None:
    with bucket.counting() as count:
        reader = bucket.group(mode="r")
    assert (count.requests, count.waves) == (1, 1)
    with bucket.counting() as count:
        member = reader["m2"]
    assert (count.requests, count.waves) == (1, 1)
    with bucket.counting() as count:
        member[:]
    assert (count.requests, count.waves) == (1, 1)


@pytest.mark.parametrize("name", ["m1", "m1.b2nd"])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_url_that_shows_the_group_leads_to_its_member(
    bucket: Bucket, group: b2array.Group, name: str, mode: str
) -> None:
    with bucket.counting() as count:
        bucket.open(f"g.b2d/{name}", mode)
    assert (count.requests, count.waves) == (2, 2)


def test_a_change_of_one_member_writes_its_chunk_its_revision_the_manifest_and_a_copy(
    bucket: Bucket, group: b2array.Group
) -> None:
    for open_member in (lambda: group["m3"], lambda: bucket.open("g.b2d/m4.b2nd", "r+")):
        member = open_member()
        for seed in (20, 21):
            with bucket.counting() as count:
                member[...] = values(seed)
            assert (count.requests, count.waves) <= (5, 5)


def test_members_are_made_replaced_moved_and_removed(bucket: Bucket, group: b2array.Group) -> None:
    with bucket.counting() as count:
        group["z"] = values(5)
    assert count.requests <= 5
    with bucket.counting() as count:
        group["z"] = values(6)
    assert count.requests <= 5
    with bucket.counting() as count, group.transaction() as changes:
        changes["n1"], changes["n2"] = values(1), values(2)
    assert count.requests <= 9
    with bucket.counting() as count:
        group.move("m5", "m55")
    assert count.requests <= 7
    with bucket.counting() as count:
        group.move("m55", "m5")  # among what the first one has left
    assert count.requests <= 7
    with bucket.counting() as count:
        del group["m6"]
    assert count.requests <= 4


@pytest.mark.parametrize(("members", "requests"), [(2, 12), (8, 42)])
def test_a_transaction_takes_four_requests_for_each_member_and_two_more(
    bucket: Bucket, group: b2array.Group, members: int, requests: int
) -> None:
    transaction = group.transaction()
    with bucket.counting() as inside:
        changes = transaction.__enter__()
        for n in range(members):
            changes[f"m{n}"][...] = changes[f"m{n}"][...] + 1
    with bucket.counting() as at_the_end:
        transaction.__exit__(None, None, None)
    assert inside.requests + at_the_end.requests <= requests
    assert at_the_end.waves <= 6
    assert bucket.group()["m1"][0] == values(1)[0] + 1


@pytest.mark.slow
def test_a_fork_prepares_its_members_together(bucket: Bucket, group: b2array.Group) -> None:
    with bucket.counting() as count, group.transaction() as changes:
        fork = changes.fork()
        for n in range(10):
            fork[f"m{n}"][...] = values(0)
        changes.merge(fork)
    assert count.requests <= 2 + 10 * 7
    assert count.waves <= 10 + 10  # the chunks are written one after the other here
    assert (bucket.group()["m9"][...] == values(0)).all()


@pytest.mark.slow
def test_a_snapshot_costs_the_same_whatever_the_group_has(bucket: Bucket, group: b2array.Group) -> None:
    for more in (0, 100):
        with group.transaction() as changes:
            for n in range(more):
                changes[f"more{n}"] = [n]
        with bucket.counting() as count:
            group.snapshot(f"s{more}")
        assert count.requests <= 3
    group["m1"][...] = group["m2"][...] = values(55)
    with bucket.counting() as count:
        group.restore("s100")
    assert count.requests <= 3 + 4 * 2
    assert group["m1"][0] == values(1)[0]
    with bucket.counting() as count:
        then = b2array.open_group(f"{bucket.url}/g.b2d", at="s0", storage_options=bucket.options)
        then["m1"][:]
    assert count.requests <= 5


def test_an_array_by_itself_takes_few_requests(bucket: Bucket) -> None:
    with bucket.counting() as count:
        b2array.asarray(values(1), url=f"{bucket.url}/x.b2nd", storage_options=bucket.options)
    assert (count.requests, count.waves) <= (5, 3)
    with bucket.counting() as count:
        array = bucket.open("x.b2nd", "r+")
    assert (count.requests, count.waves) <= (3, 2)
    with bucket.counting() as count:
        array[:]
    assert (count.requests, count.waves) == (1, 1)
    with bucket.counting() as count:
        array[...] = values(2)
    assert (count.requests, count.waves) <= (3, 3)
    with bucket.counting() as count:
        array.snapshot("s")
    assert (count.requests, count.waves) <= (2, 2)
