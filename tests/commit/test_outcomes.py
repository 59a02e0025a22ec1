"""Each write of a whole object in a cloud, whose server refuses it or loses its answer: has the change happened?"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from clouds import BUSY, Cloud, Gate, gate_to

import b2array
from b2array import config
from b2array.commit.outcomes import Found, Look, create_unique, write_once
from b2array.errors import ConflictError
from b2array.format import ledger
from b2array.store.base import Capabilities, Stamp
from b2array.store.memory import MemoryStore

pytestmark = [pytest.mark.crossed, pytest.mark.filterwarnings("ignore:.*is rewritten with every change")]

Options = dict[str, Any]


@pytest.fixture(autouse=True)
def _one_thread_and_no_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda _seconds, *args: sleep(0, *args))
    # Kept states and lists of members become objects.
    monkeypatch.setattr(ledger, "_ROOM", 0)
    with config.using(threads=1, cache_bytes=0):
        yield


@pytest.fixture
def gate(cloud: Cloud) -> Iterator[tuple[Gate, Options]]:
    """Stand in front of a server; gives the gate and the options to pass it."""
    with gate_to(cloud) as (gate, endpoint):
        yield gate, cloud.through(endpoint)


class Place(NamedTuple):
    """Where the arrays of a test are, and how a handle reaches them."""

    url: str
    options: Options

    def array(self, name: str) -> b2array.NDArray:
        return b2array.open(f"{self.url}/{name}.b2nd", "r+", storage_options=self.options)

    def group(self, name: str = "g.b2d") -> b2array.Group:
        return b2array.open_group(f"{self.url}/{name}", "r+", storage_options=self.options)

    def fill(self, kind: str) -> None:
        """Make what a change needs: arrays of both layouts, a group with such members, or a member without a group."""
        data = np.arange(4)
        layouts = [{"chunks": (2,), "layout": layout} for layout in ("sparse", "contiguous")]
        if kind == "arrays":
            for each in layouts:
                url = f"{self.url}/{each['layout']}.b2nd"
                b2array.asarray(data, url=url, storage_options=self.options, **each)
        elif kind == "group":
            group = b2array.open_group(f"{self.url}/g.b2d", "w", storage_options=self.options)
            with group.transaction() as changes:
                for each in layouts:
                    changes.create(each["layout"], data=data, **each)
        elif kind == "loose":
            url = f"{self.url}/loose.b2d/x.b2nd"
            b2array.asarray(data, url=url, chunks=(2,), layout="sparse", storage_options=self.options)

    def contents(self, kind: str) -> dict[str, list[int]]:
        """Return all values: of arrays, of members, and of their snapshots."""
        found = {}
        if kind == "group":
            group = self.group()
            for at in (None, *[each.name for each in group.snapshots]):
                shown = b2array.open_group(group.url, at=at, storage_options=self.options)
                found |= {f"{name} at {at}": shown[name][...].tolist() for name in shown}
            return found
        for name in {"arrays": ["sparse", "contiguous"], "loose": ["loose.b2d/x"], "nothing": ["new"]}[kind]:
            try:
                a = self.array(name)
            except FileNotFoundError:
                continue
            for at in (None, *[each.name for each in a.snapshots]):
                shown = b2array.open(a.url, at=at, storage_options=self.options)
                found[f"{name} at {at}"] = shown[...].tolist()
        return found


def make(place: Place) -> None:
    url = f"{place.url}/new.b2nd"
    b2array.asarray(np.arange(3), url=url, chunks=(2,), layout="sparse", storage_options=place.options)


def transact(place: Place) -> None:
    with place.group().transaction() as changes:
        for name in ("sparse", "contiguous"):
            changes[name].append([9, 9])


def adopt(place: Place) -> None:
    b2array.open_group(f"{place.url}/loose.b2d", "a", storage_options=place.options)["x"].append([9])


class Write(NamedTuple):
    """A write of a whole object: what must be there, the end of the object's name, and the change that needs it."""

    kind: str
    name: str
    change: Callable[[Place], object]


WRITES = {
    "create a frame": Write("nothing", r"[/=]new\.b2nd/chunks\.b2frame", make),
    "replace an index": Write("arrays", r"[/=]sparse\.b2nd/chunks\.b2frame", lambda at: at.array("sparse").append([9])),
    "replace a frame": Write("arrays", r"[/=]contiguous\.b2nd", lambda at: at.array("contiguous").append([9])),
    "the manifest": Write("group", r"[/=]\.b2group", transact),
    "publication": Write("group", r"[/=]g\.b2d/sparse\.b2nd/chunks\.b2frame", transact),
    "adoption": Write("loose", r"[/=]loose\.b2d/x\.b2nd/chunks\.b2frame", adopt),
    "a revision": Write("group", r"[/=]sparse\.b2nd/chunks\.b2frame\.[0-9a-f]{32}", transact),
    "a whole revision": Write("group", r"[/=]\.b2data/[0-9a-f]{32}", transact),
    "a kept state": Write("arrays", r"\.b2kept", lambda at: at.array("sparse").snapshot("s")),
    "the members of a snapshot": Write("group", r"\.b2kept", lambda at: at.group().snapshot("s")),
}
IS_COMMIT = ["create a frame", "replace an index", "replace a frame", "the manifest", "publication"]


@pytest.fixture(params=WRITES)
def story(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Faults:
    """A rule for a gate: what becomes of the writes of an object, and of the reads after the first of them."""

    def __init__(self, name: str, *, writes: list[object], reads: object = None) -> None:
        self.pattern = re.compile(rf"{name}($|[?&])")
        self.writes = writes
        self.reads = reads
        self.has_begun = False

    def __call__(self, _: int, what: str) -> object:
        method = what.partition(" ")[0]
        if method in ("GET", "HEAD"):
            return self.reads if self.has_begun else None
        if method == "DELETE" or not self.pattern.search(what):
            return None
        self.has_begun = True
        return self.writes.pop(0) if len(self.writes) > 1 else self.writes[0]


@cache
def states(story: str) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return the contents before a change and after it, as they are in memory."""
    kind, _, change = WRITES[story]
    place = Place(f"memory://outcomes/{story}", {})
    place.fill(kind)
    before = place.contents(kind)
    change(place)
    return before, place.contents(kind)


@pytest.fixture
def place(story: str, cloud: Cloud, cloud_url: str) -> Place:
    """Make what the change needs, and return the place."""
    filled = Place(cloud_url, cloud.options)
    filled.fill(WRITES[story].kind)
    return filled


def test_a_write_that_a_server_refuses_because_it_is_busy_is_sent_again(story, place, gate) -> None:
    gate, options = gate
    kind, name, change = WRITES[story]
    gate.arm(Faults(name, writes=[(409, BUSY), None]))
    change(Place(place.url, options))
    assert gate.fired
    assert place.contents(kind) == states(story)[1]


def test_a_write_that_a_busy_server_refuses_for_ever_has_not_happened(story, place, gate) -> None:
    gate, options = gate
    kind, name, change = WRITES[story]
    before, after = states(story)
    gate.arm(Faults(name, writes=[(409, BUSY)]))
    with config.using(retries=1):
        if story == "publication":
            change(Place(place.url, options))  # the manifest was the commit
        else:
            with pytest.raises(OSError, match="another request was changing the object") as caught:
                change(Place(place.url, options))
            assert (type(caught.value), caught.value.errno) == (OSError, errno.EBUSY)
            assert place.contents(kind) == before
            change(place)
    assert gate.fired
    assert place.contents(kind) == after


@pytest.mark.parametrize("reads", [None, 503, 403])
def test_a_change_whose_answer_is_lost_happens_once_even_if_reads_are_refused(story, place, gate, reads) -> None:
    gate, options = gate
    kind, name, change = WRITES[story]
    before, after = states(story)
    gate.arm(Faults(name, writes=["lost", None], reads=reads))
    failure = None
    try:
        change(Place(place.url, options))
    except OSError as error:
        failure = error
    assert gate.fired
    gate.arm()
    # A writer that cannot read the object does not know whose it is: that is no FileExistsError, and no ConflictError.
    assert not isinstance(failure, FileExistsError)
    if reads is None or story == "publication":
        assert failure is None
    has_happened = failure is None or story in IS_COMMIT
    assert place.contents(kind) == (after if has_happened else before)


# In one process.


class Repeating(MemoryStore):
    """A store whose client sends each request twice, as after a lost answer, and shows the answer to the second one."""

    can = Capabilities(compare=True)

    def create(self, name: str, data: Any) -> Stamp:
        content = b"".join(data) if not isinstance(data, bytes) else data
        super().create(name, content)
        return super().create(name, content)


class Refusing(MemoryStore):
    """A store that says that each new object exists."""

    can = Capabilities(compare=True)

    def create(self, name: str, data: Any) -> Stamp:
        raise FileExistsError(errno.EEXIST, "exists", name)


@pytest.mark.parametrize("content", [b"content", [b"some ", b"content"] * 10_000], ids=["bytes", "pieces"])
def test_an_object_under_its_own_name_is_compared_with_what_was_sent(content) -> None:
    store = Repeating()
    version = create_unique(store, "x", content)
    assert version == store.stamp("x").version
    with pytest.raises(OSError, match="nothing was written; try again") as caught:
        create_unique(store, "x", b"other")
    assert caught.value.errno == errno.EBUSY
    with pytest.raises(OSError, match="nothing was written; try again"):
        create_unique(Refusing(), "x", content)


@pytest.mark.parametrize("found", Found)
@pytest.mark.parametrize("failure", [ConflictError("refused"), TimeoutError("no answer"), KeyboardInterrupt()])
@pytest.mark.parametrize("can", [Capabilities(compare=True), Capabilities(lock=True, local=True), Capabilities()])
def test_a_look_judges_each_failure(found, failure, can) -> None:
    store, ledger = MemoryStore({"x": b"content"}), []
    store.can = can

    def write() -> Stamp:
        raise failure

    is_refusal, is_interrupt = isinstance(failure, ConflictError), isinstance(failure, KeyboardInterrupt)
    looks = not (is_refusal and can.lock) and not (is_interrupt and not can.local)
    done = found is Found.OURS and looks and not is_interrupt
    too_late = found is Found.OTHER and can.compare and not is_interrupt
    expected = ConflictError if too_late else type(failure)
    judge = partial(write_once, store, write, lambda: Look(found, None, "seen"), keep=lambda: ledger.append(1))
    if done:
        assert judge().content == "seen"
    else:
        with pytest.raises(expected) as caught:
            judge()
        assert caught.type is expected
    may_follow = not is_refusal and not can.lock and not too_late and not done
    assert bool(ledger) == (may_follow or (is_interrupt and can.local and found is Found.OURS))


@pytest.mark.parametrize("failure", [ConflictError("refused"), FileExistsError(errno.EEXIST, "exists")])
def test_a_refusal_that_cannot_be_checked_is_neither_a_conflict_nor_a_success(failure) -> None:
    store, ledger = Refusing(), []

    def write() -> Stamp:
        raise failure

    def look() -> Look[None]:
        raise ConnectionError("the network is down")

    with pytest.raises(OSError, match="now the object cannot be read") as caught:
        write_once(store, write, look, keep=lambda: ledger.append(1))
    assert (type(caught.value), ledger) == (OSError, [1])


def test_with_full_durability_an_error_of_the_disk_reaches_the_user(monkeypatch) -> None:
    store = MemoryStore({"x": b"old"})
    monkeypatch.setattr(store, "force", lambda: (_ for _ in ()).throw(OSError(errno.EIO, "the disk is broken")))

    def write() -> Stamp:
        return store.replace("x", b"new")

    def ours() -> Look[None]:
        return Look(Found.OURS, store.stamp("x").version)

    for durable, is_error in [("ordered", False), ("full", True)]:
        with config.using(durable=durable):
            if is_error:
                with pytest.raises(OSError, match="the disk is broken"):
                    write_once(store, write, ours, forces=True)
            else:
                assert write_once(store, write, ours, forces=True).version == store.stamp("x").version
