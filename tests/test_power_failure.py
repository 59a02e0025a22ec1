"""What a power failure may cost, tried on every kind of commit: the disk loses, tears and reorders what was not forced.

Each story is a sequence of commits. They are recorded once, then states that the disk may be left in are opened: with
``durable="full"`` they must show the last commit that returned, with "ordered" that one or an earlier one, and never
anything else. A hundred or two states of each story are tried; ``--power N`` tries N
more.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from powerfail import EVERY_MOMENT, Crash, Disk, materialise

import b2array
from b2array import bloscpack, config
from b2array.commit import draft as drafting
from b2array.errors import B2ArrayError, ChecksumError, ChunkMissingError, ConflictError
from b2array.store.atomic import AtomicFile
from b2array.store.open import open_store
from b2array.store.spool import Spool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the names of descriptors")

NOISE = np.random.default_rng(5).random((16, 300))
CUT: dict[str, Any] = {"chunks": (4, 300), "blocks": (2, 150)}
State = Any


class Story:
    """Commits to what is below `root`, and how a reader sees it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Make what is there before; it is safe."""

    def steps(self) -> list[Callable[[], object]]:
        raise NotImplementedError

    def see(self, root: Path) -> State:
        raise NotImplementedError

    def go_on(self, root: Path) -> None:
        """Write to what is left, and read it back."""


class Array(Story):
    """The life of one array."""

    layout = "contiguous"

    def steps(self) -> list[Callable[[], object]]:
        return [
            self.create,
            partial(self.assign, slice(0, 4)),
            self.append,
            self.assign_attribute,
            self.transaction,
            partial(self.assign, slice(2, 11)),
            self.shrink,
            self.repack,
            partial(self.assign, 3),
            self.overwrite,
            self.append,
        ]

    @property
    def url(self) -> Path:
        return self.root / "deep" / "er" / "a.b2nd"

    def create(self) -> None:
        b2array.asarray(NOISE[:8], url=self.url, layout=self.layout, **CUT)

    def overwrite(self) -> None:
        b2array.asarray(NOISE[8:], url=self.url, layout=self.layout, overwrite=True, **CUT)

    def assign(self, where: Any) -> None:
        a = b2array.open(self.url, "r+")
        a[where] = a[where] + 1

    def append(self) -> None:
        b2array.open(self.url, "r+").append(NOISE[:3])

    def assign_attribute(self) -> None:
        b2array.open(self.url, "r+").attrs["name"] = "a value of some length"

    def transaction(self) -> None:
        a = b2array.open(self.url, "r+")
        with a.transaction():
            a[5] = 5
            a[0] = 0
            a.attrs["number"] = 1

    def shrink(self) -> None:
        b2array.open(self.url, "r+").resize((7, 300))

    def repack(self) -> None:
        b2array.repack(self.url)

    def see(self, root: Path) -> State:
        try:
            a = b2array.open(root / "deep" / "er" / "a.b2nd")
        except FileNotFoundError:
            return None
        return a.shape, a[...].tobytes(), dict(a.attrs)

    def go_on(self, root: Path) -> None:
        url = root / "deep" / "er" / "a.b2nd"
        a = b2array.open(url, "r+")
        a[1] = 17
        a.append(NOISE[:6])
        again = b2array.open(url)[...]
        assert (again[1] == 17).all()
        assert np.array_equal(again[-6:], NOISE[:6])


class SpooledArray(Array):
    """The same, where new chunks wait in a file because there are many of them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.url.parent.mkdir(parents=True)


class SparseArray(Array):
    """The life of an array in a directory."""

    layout = "sparse"

    def repack(self) -> None:
        b2array.vacuum(self.url, grace="0s")


class Snapshots(Array):
    """The life of an array that keeps states of it."""

    def steps(self) -> list[Callable[[], object]]:
        return [
            self.create,
            partial(self.keep, "one"),
            partial(self.assign, slice(0, 6)),
            self.describe,
            self.keep_in_a_transaction,
            partial(self.assign, slice(4, 8)),
            self.repack,
            self.go_back,
            partial(self.assign, 3),
            self.drop,
            self.repack,
        ]

    def keep(self, name: str) -> None:
        b2array.open(self.url, "r+").snapshot(name)

    def describe(self) -> None:
        # A kept state of so many bytes has an object for itself in a directory.
        b2array.open(self.url, "r+").attrs["noise"] = NOISE[0].tobytes()

    def keep_in_a_transaction(self) -> None:
        a = b2array.open(self.url, "r+")
        with a.transaction():
            a[7] = 5
            a.snapshot("two")

    def go_back(self) -> None:
        b2array.open(self.url, "r+").restore("one")

    def drop(self) -> None:
        b2array.open(self.url, "r+").drop_snapshot("one")

    def see(self, root: Path) -> State:
        url = root / "deep" / "er" / "a.b2nd"
        try:
            a = b2array.open(url)
        except FileNotFoundError:
            return None
        kept = {each.name: b2array.open(url, at=each.name)[...].tobytes() for each in a.snapshots}
        return a.shape, a[...].tobytes(), kept


class SparseSnapshots(Snapshots):
    """The same in a directory."""

    layout = "sparse"

    def repack(self) -> None:
        b2array.vacuum(self.url, grace="0s")


class Crowded(Array):
    """Commits until most of the file is dead space, so that it is written again."""

    def steps(self) -> list[Callable[[], object]]:
        return [self.create, *[partial(self.assign, slice(0, 8))] * 6]


class Group(Story):
    """Transactions of several arrays, in files and in directories."""

    def prepare(self) -> None:
        group = b2array.open_group(self.root / "g.b2d", "a")
        group["one"] = NOISE[:4]
        group["inner/two"] = NOISE[4:8]
        group.create("three", data=NOISE[8:12], layout="sparse", **CUT)
        group.create("five", data=NOISE[12:], layout="sparse", **CUT)

    def steps(self) -> list[Callable[[], object]]:
        return [self.change, self.make, self.change]

    def change(self) -> None:
        group = b2array.open_group(self.root / "g.b2d", "r+")
        with group.transaction() as t:
            t["one"][...] = t["one"][...] + 1
            t["inner/two"][1] = 2
            if "three" in t:
                t["three"][...] = NOISE[:4]
            t.attrs["count"] = t.attrs.get("count", 0) + 1

    def make(self) -> None:
        group = b2array.open_group(self.root / "g.b2d", "r+")
        with group.transaction() as t:
            t["inner/deeper/four"] = NOISE[:2]
            t["one"][0] = 4

    def remove(self) -> None:
        group = b2array.open_group(self.root / "g.b2d", "r+")
        with group.transaction() as t:
            del t["three"]
            t["one"][0] = 3

    def delete(self) -> None:
        del b2array.open_group(self.root / "g.b2d", "r+")["inner/two"]

    def delete_directory(self) -> None:
        del b2array.open_group(self.root / "g.b2d", "r+")["five"]

    def see(self, root: Path) -> State:
        return self._see(root, "r")

    def _see(self, root: Path, mode: str) -> State:
        group = b2array.open_group(root / "g.b2d", mode)
        names = [name for name in ("one", "inner/two", "three", "inner/deeper/four", "five") if name in group]
        return {name: group[name][...].tobytes() for name in names}, group.tree(), dict(group.attrs)

    def go_on(self, root: Path) -> None:
        before = self._see(root, "r")
        assert self._see(root, "r+") == before  # which completes what was interrupted
        group = b2array.open_group(root / "g.b2d", "r+")
        with group.transaction() as t:
            t["one"][3] = 33
        assert self._see(root, "r") == self._see(root, "r+")
        assert (b2array.open_group(root / "g.b2d")["one"][3] == 33).all()


class Deletions(Group):
    """Members of a group deleted, in a transaction and outside of one."""

    def steps(self) -> list[Callable[[], object]]:
        return [self.remove, self.delete, self.delete_directory]


class Makings(Group):
    """Members of a group made and replaced, many in one transaction: their writes are forced together."""

    NAMES = ("one", "inner/two", "three", "five", "six", "inner/seven", "eight", "nine")

    def steps(self) -> list[Callable[[], object]]:
        return [self.make, self.replace, self.replace]

    def make(self) -> None:
        with b2array.open_group(self.root / "g.b2d", "r+").transaction() as t:
            t["six"], t["inner/seven"] = NOISE[:2], NOISE[2:4]
            for name in ("eight", "nine"):
                t.create(name, data=NOISE[4:8], layout="sparse", **CUT)
            t["three"][0] = 1

    def replace(self) -> None:
        with b2array.open_group(self.root / "g.b2d", "r+").transaction() as t:
            for name, other in {"one": "sparse", "three": "contiguous", "six": "contiguous", "eight": "sparse"}.items():
                values = t[name][...] + 1
                del t[name]
                t.create(name, data=values, layout=other, **CUT)
            t["nine"][0] = 1

    def _see(self, root: Path, mode: str) -> State:
        group = b2array.open_group(root / "g.b2d", mode)
        return {name: group[name][...].tobytes() for name in self.NAMES if name in group}, group.tree()


class Archive(Story):
    """A group in one file, made, changed and replaced. What a writer left is dropped, or somebody continues."""

    def steps(self) -> list[Callable[[], object]]:
        return [partial(self.write, "w", 0), partial(self.write, "a", 1), partial(self.write, "w", 2)]

    def write(self, mode: Any, number: int) -> None:
        with b2array.open_group(self.root / "deep" / "g.b2z", mode) as group:
            group["one"] = NOISE[:4] + number
            group.create(f"inner/{number}", data=NOISE[4:8], layout="sparse", **CUT)
            group.attrs["number"] = number

    def see(self, root: Path) -> State:
        try:
            group = b2array.open_group(root / "deep" / "g.b2z")
        except FileNotFoundError:
            return None
        arrays = {name: member[...].tobytes() for name, member in group.walk() if isinstance(member, b2array.NDArray)}
        return arrays, dict(group.attrs)

    def go_on(self, root: Path) -> None:
        before = self.see(root)
        work = Path(f"{root}/deep/g.b2z.b2work")
        held = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
        b2array.open_group(root / "deep" / "g.b2z", "a", resume=False).close()
        assert self.see(root) == before
        for path, content in held.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        try:
            with b2array.open_group(root / "deep" / "g.b2z", "a", resume=True) as group:
                group["last"] = [1]
        except ConflictError:  # the archive is already another one: what has been left is older
            return
        group = b2array.open_group(root / "deep" / "g.b2z")
        assert b2array.verify(root / "deep" / "g.b2z", deep=True).ok
        assert group["last"][0] == 1
        assert "one" not in group or {*(group["one"][...] - NOISE[:4]).round(9).ravel().tolist()} <= {0.0, 1.0, 2.0}


class Bloscpack(Story):
    """A Bloscpack file, made, replaced, and appended to."""

    def steps(self) -> list[Callable[[], object]]:
        url = self.root / "a.blp"
        pack = partial(bloscpack.pack, url=url, chunk_size=2400 * 2)
        return [
            partial(pack, NOISE[:5]),
            partial(bloscpack.append, url, NOISE[5:6]),
            partial(bloscpack.append, url, NOISE[6:]),
            partial(pack, NOISE[8:], overwrite=True),
        ]

    def see(self, root: Path) -> State:
        try:
            return bloscpack.unpack(root / "a.blp").tobytes()
        except FileNotFoundError:
            return None

    def go_on(self, root: Path) -> None:
        before = bloscpack.unpack(root / "a.blp")
        bloscpack.append(root / "a.blp", NOISE[:2])
        assert np.array_equal(bloscpack.unpack(root / "a.blp"), np.concatenate((before, NOISE[:2])))


class OneFile(Story):
    """Files of other formats, which are made beside and renamed."""

    def steps(self) -> list[Callable[[], object]]:
        return [partial(self.write, NOISE[:4].tobytes()), partial(self.write, NOISE.tobytes())]

    def write(self, content: bytes) -> None:
        with AtomicFile(open_store(self.root / "file"), overwrite=True) as path:
            Path(path).write_bytes(content)

    def see(self, root: Path) -> State:
        return (root / "file").read_bytes() if (root / "file").exists() else None


class Distributed(Array):
    """Arrays whose chunks dask's tasks put where no reader looks, before one commit takes them."""

    def steps(self) -> list[Callable[[], object]]:
        return [self.create, self.store, partial(self.assign, 3), self.overwrite, self.append]

    def create(self) -> None:
        self._write(NOISE[:8])

    def overwrite(self) -> None:
        self._write(NOISE[8:], overwrite=True)

    def _write(self, values: Any, **options: Any) -> None:
        x = da.from_array(values, chunks=(4, 300))
        b2array.from_dask(x, self.url, layout=self.layout, scheduler="synchronous", **CUT, **options)

    def store(self) -> None:
        a = b2array.open(self.url, "r+")
        x = da.from_array(NOISE[8:14], chunks=((3, 3), 300))
        a.store(x, (slice(1, 7), slice(0, 300)), scheduler="synchronous")


class SparseDistributed(Distributed):
    layout = "sparse"


class Repair(Story):
    """An array with a chunk that is damaged, repaired and then written to."""

    layout = "contiguous"

    def prepare(self) -> None:
        a = b2array.asarray(NOISE, url=self.root / "a.b2nd", layout=self.layout, **CUT)
        path = self.root / "a.b2nd" / "00000001.chunk" if self.layout == "sparse" else self.root / "a.b2nd"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        a.close()

    def steps(self) -> list[Callable[[], object]]:
        return [partial(b2array.repair, self.root / "a.b2nd"), self.assign]

    def assign(self) -> None:
        b2array.open(self.root / "a.b2nd", "r+")[12:] = 7

    def see(self, root: Path) -> State:
        a = b2array.open(root / "a.b2nd")
        return [self._chunk(a, n) for n in range(0, 16, 4)]

    @staticmethod
    def _chunk(a: b2array.NDArray, n: int) -> bytes | str:
        try:
            return a[n : n + 4].tobytes()
        except (ChecksumError, ChunkMissingError) as error:
            return type(error).__name__


class SparseRepair(Repair):
    layout = "sparse"


STORIES = (
    Array,
    SpooledArray,
    SparseArray,
    Snapshots,
    SparseSnapshots,
    Crowded,
    Group,
    Deletions,
    Makings,
    Archive,
    Bloscpack,
    OneFile,
    Distributed,
    SparseDistributed,
    Repair,
    SparseRepair,
)


@pytest.fixture
def spooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "Spool", lambda path, **options: Spool(path, **options | {"limit": 1000}))


def recorded(story: Story, durable: str) -> tuple[Disk, list[State]]:
    with config.using(durable="off"):
        story.prepare()
    disk = Disk(story.root)
    states = [story.see(story.root)] if any(story.root.rglob("*.b*")) else [None]
    with config.using(durable=durable), disk.record():
        for step in story.steps():
            step()
            disk.done()
            with disk.paused():
                states.append(story.see(story.root))
    return disk, states


def seen(story: Story, crash: Crash, root: Path) -> tuple[State, str]:
    """Open a state of the disk; return what is found, or the error."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    materialise(crash, root)
    try:
        return story.see(root), ""
    except (B2ArrayError, OSError, ValueError) as error:
        return None, f"{type(error).__name__}: {error}".replace(str(root), "")


def tried(story: Story, disk: Disk, states: list[State], seed: int, count: int) -> Counter[str]:
    """Count how states of the disk compare with what had been committed."""
    outcomes: Counter[str] = Counter()
    looks: dict[object, tuple[State, str]] = {}  # many moments leave the same bytes
    root = story.root.parent / "crashed"
    for number, crash in enumerate(disk.crashes(seed, count)):
        bytes_there = frozenset(crash.files.items()), crash.directories
        goes_on = number % 7 == 0
        if goes_on or bytes_there not in looks:
            looks[bytes_there] = seen(story, crash, root)
        found, result = looks[bytes_there]
        if not result:
            known = [n for n, state in enumerate(states[: crash.done + 2]) if state == found]
            result = "mixed" if not known else "newest" if max(known) >= crash.done else "older"
        outcomes[result] += 1
        if goes_on and result in ("newest", "older") and states[0] != found is not None:
            story.go_on(root)
    return outcomes


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given: int = request.config.getoption("--power-seed")
    print(f"--power-seed {given}")
    return given


@pytest.mark.crossed
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("durable", ["ordered", "full"])
def test_a_power_failure_costs_no_array_and_with_full_no_commit(tmp_path, story, durable, power, seed, request):
    if story is SpooledArray:
        request.getfixturevalue("spooled")
    (tmp_path / "root").mkdir()
    told = story(tmp_path / "root")
    disk, states = recorded(told, durable)
    with config.using(durable="off", cache_bytes=0):
        found = tried(told, disk, states, seed, power)
    print(story.__name__, durable, dict(found), f"of {found.total()} states")
    allowed = {"newest"} if durable == "full" else {"newest", "older"}
    assert not {*found} - allowed, found.most_common()
    assert found.total() > len(disk.log) // max(1, EVERY_MOMENT // power)


@pytest.mark.costly
@pytest.mark.parametrize("story", [Array, SparseArray, Group, Bloscpack])
def test_without_waiting_a_power_failure_may_cost_an_array(tmp_path, story, power, seed):
    (tmp_path / "root").mkdir()
    told = story(tmp_path / "root")
    disk, states = recorded(told, "off")
    found: Counter[str] = Counter()
    for n in range(10):  # in most of the states nothing is lost
        with config.using(durable="off", cache_bytes=0):
            found += tried(told, disk, states, seed + n, max(power, EVERY_MOMENT))
        if {*found} - {"newest", "older"}:
            break
    print(story.__name__, "off", found.most_common(9))
    assert {*found} - {"newest", "older"}
