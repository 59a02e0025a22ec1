"""A commit of several members under stress: writers that die, fail or meet each other at every operation of a store.

Stores: local files, and memory that behaves as an object store, which has no locks and compares versions.
"""

from __future__ import annotations

import itertools
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import blosc2
import fsspec
import numpy as np
import pytest
from arrays import put_frame
from dask.array import from_array
from hypothesis import given
from hypothesis import strategies as st
from lengths import Sampled
from operations import WRITES, Killed, Operations, compare

import b2array
from b2array import Group, config, open_group
from b2array.catalog import known_manifests as catalog
from b2array.commit import manifest_writes, on_disk, publication
from b2array.errors import B2ArrayError, ConflictError
from b2array.store import base, disk
from b2array.store.local_store import LocalStore
from b2array.store.open import open_store

# python-blosc2 looks at what a killed writer has left beside a member.
pytestmark = [
    pytest.mark.crossed,
    pytest.mark.filterwarnings("ignore:External leaf", "ignore:.*one file in this store is rewritten"),
]

Contents = dict[str, Any]
_serials = itertools.count()


@pytest.fixture(autouse=True)
def _steady(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let operations come in the same order each time, reads reach the store, and writers not wait long."""
    monkeypatch.setattr(base, "_LONGEST_PAUSE", 0.001)
    with config.using(threads=1, cache_bytes=0):
        yield


class Place:
    """Where groups are made, each in a new place, and the operations there."""

    def __init__(self, kind: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind, self.directory, self.operations = kind, directory, Operations()
        self.template: str | None = None
        store = type(open_store(self.new()))
        if kind == "compared":
            compare(store, monkeypatch)
        self.operations.listen(store, monkeypatch)

    def prepared(self, **more: Any) -> Group:
        """Return a group like that of `prepared`, with more arrays: a copy of one that was made before."""
        if self.template is None:
            group = prepared(self.new())
            for name, values in more.items():
                group.create(name, data=values)
            self.template = group.url
        url = self.new()
        if self.kind == "local":
            shutil.copytree(self.template, url)
        else:
            memory = fsspec.filesystem("memory")
            start = self.template.removeprefix("memory:/")
            for path in [path for path in memory.store if not path.startswith(f"{start}/")]:  # of earlier runs
                del memory.store[path]
            for path in [path for path in memory.store if path.startswith(f"{start}/")]:
                memory.pipe_file(url.removeprefix("memory:/") + path.removeprefix(start), memory.cat_file(path))
        return open_group(url, "r+")

    def new(self) -> str:
        number = next(_serials)
        return str(self.directory / f"{number}.b2d") if self.kind == "local" else f"memory://test-commit-{number}.b2d"


@pytest.fixture(params=["local", "compared"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(request.param, tmp_path, monkeypatch)


def prepared(url: str) -> Group:
    """Make a group with members of every kind: in a file, in a directory, to be replaced, to go, attributes."""
    group = open_group(url, "w")
    first = {"chunks": (4,), "blocks": (2,)}
    sparse = {"layout": "sparse"}
    group.create("time", data=np.arange(3), **first)
    group.create("level", data=np.arange(3.0), **first, **sparse)
    group.create("a/again", data=[1, 2], **sparse)
    group.create("gone", data=[3])
    group.attrs["n"] = 3
    return group


def change(group: Group, *, overwrite: bool = False) -> None:
    """Change everything, in one commit."""
    with group.transaction() as changes:
        for name in ("time", "level"):
            held = changes[name]
            held.resize(8)
            held[2:] = np.arange(2, 8)
        changes.attrs["n"] = 8
        changes["a"].attrs["new"] = "yes"
        changes.create("a/new", data=[7, 8], overwrite=overwrite)
        del changes["gone"], changes["a/again"]
        changes.create("a/again", data=[5.5, 6.5, 7.5], layout="sparse")


def begin_again(group: Group, *, overwrite: bool = False) -> None:
    """Put other members in the place of all, in one commit."""
    with group.transaction(replace=True) as changes:
        changes.create("time", data=np.arange(5) + 1, chunks=(2,), blocks=(2,))
        changes.create("level", data=np.arange(5.0) + 1, chunks=(2,), blocks=(2,), layout="sparse")
        changes.create("a/other", data=[1], overwrite=overwrite)
        changes.attrs["m"] = 1


@pytest.mark.parametrize(("layout", "other"), [("contiguous", "sparse"), ("sparse", "contiguous")])
def test_a_transaction_gives_a_member_the_other_layout(tmp_path: Path, layout: str, other: str) -> None:
    group = open_group(tmp_path / "g", "w")
    group.create("x", data=[1, 2], layout=layout)
    with group.transaction() as changes:
        del changes["x"]
        changes.create("x", data=[3, 4, 5], layout=other)
        assert found(tmp_path / "g") == {"x": [1, 2]}
    assert found(tmp_path / "g") == {"x": [3, 4, 5]}
    assert open_group(tmp_path / "g")["x"].info["layout"] == other


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize("times", [2, 3, 4])
def test_a_transaction_gives_a_member_the_other_layout_again_and_again(tmp_path: Path, layout: str, times: int) -> None:
    group = open_group(tmp_path / "g", "w")
    group.create("x", data=[0], layout=layout)
    layouts = itertools.cycle(["contiguous", "sparse"] if layout == "sparse" else ["sparse", "contiguous"])
    with group.transaction() as changes:
        for n, other in zip(range(1, times + 1), layouts, strict=False):
            del changes["x"]
            changes.create("x", data=[n], layout=other)
        assert found(str(tmp_path / "g")) == {"x": [0]}
    assert found(str(tmp_path / "g")) == {"x": [times]}
    assert open_group(tmp_path / "g")["x"].info["layout"] == other


@given(st.lists(st.sampled_from(["sparse", "contiguous", "delete", "vacuum"]), max_size=12))
def test_a_name_in_an_object_store_takes_every_layout_whatever_was_there(steps: list[Any]) -> None:
    url = f"memory://layouts-{next(_serials)}.b2d"
    with pytest.MonkeyPatch.context() as patch:
        compare(type(open_store(url)), patch)
        group, expected = open_group(url, "w"), {}
        for number, step in enumerate(steps):
            if step == "vacuum":
                b2array.vacuum(url, grace=0)
            elif step != "delete":
                group.create("x", data=[number], layout=step, overwrite=True)
                expected = {"x": [number]}
            elif expected:
                del group["x"]
                expected = {}
            assert found(url) == expected


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_frame_that_is_no_member_is_not_overwritten_by_a_member_of_its_name(
    monkeypatch: pytest.MonkeyPatch, layout: Any
) -> None:
    url = f"memory://no-member-{next(_serials)}.b2d"
    compare(type(open_store(url)), monkeypatch)
    group = open_group(url, "w")
    put_frame(f"{url}/x.b2f", [7, 8, 9], layout=layout)
    group.create("x", data=[1], layout=layout)
    group.create("x", data=[2], layout=layout, overwrite=True)
    assert found(url) == {"x": [2]}
    assert b2array.open(f"{url}/x.b2f")[:].tolist() == [7, 8, 9]


def _delete(group: Group) -> None:
    del group["x"]


def _delete_in_a_transaction(group: Group) -> None:
    with group.transaction() as changes:
        del changes["x"]


def _replace_and_delete(group: Group) -> None:
    group.create("x", data=[6], overwrite=True)
    del group["x"]


def _replace_in_a_transaction_and_delete(group: Group) -> None:
    with group.transaction() as changes:
        del changes["x"]
        changes.create("x", data=[6], layout="sparse")
    assert group["x"][...].tolist() == [6]
    del group["x"]


def _begin_anew(group: Group) -> None:
    open_group(group.url, "w")


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize(
    "delete",
    [_delete, _delete_in_a_transaction, _replace_and_delete, _replace_in_a_transaction_and_delete, _begin_anew],
)
def test_a_deleted_member_takes_older_frames_of_its_name_along(
    tmp_path: Path, delete: Callable[[Group], None], layout: Any
) -> None:
    url = tmp_path / "g"
    group = open_group(url, "w")
    group.create("x", data=[1, 2], layout=layout)
    with group.transaction() as changes:
        del changes["x"]
        changes.create("x", data=[3, 4], layout={"contiguous": "sparse", "sparse": "contiguous"}[layout])
    put_frame(f"{url}/x.b2f", [5], layout=layout)
    assert found(str(url)) == {"x": [3, 4]}
    delete(open_group(url, "r+"))
    assert found(str(url)) == {}
    assert not [*url.glob("x.*/*"), *(path for path in url.glob("x.*") if path.suffix != ".b2lock")]


def test_a_deleted_member_takes_an_embedded_one_of_its_name_along(tmp_path: Path) -> None:
    with blosc2.TreeStore(str(tmp_path / "g.b2d"), mode="w", threshold=2**20) as tree:
        tree["/x"] = np.arange(3)
    assert found(str(tmp_path / "g.b2d")) == {"x": [0, 1, 2]}
    put_frame(tmp_path / "g.b2d/x.b2nd", [5])
    group = open_group(tmp_path / "g.b2d", "r+")
    del group["x"]
    assert found(group.url) == {}


def test_a_deleted_member_leaves_the_one_that_a_transaction_under_way_makes_of_its_name(tmp_path: Path) -> None:
    group = open_group(tmp_path / "g", "w")
    group["x"] = [1]
    other = open_group(tmp_path / "g", "r+")
    assert other["x"][0] == 1
    with group.transaction() as changes:
        del changes["x"]
        changes.create("x", data=[2], layout="sparse")
        del other["x"]
    assert found(group.url) == {"x": [2]}


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_transaction_replaces_a_damaged_member(tmp_path: Path, layout: Any, replace: bool) -> None:
    group = open_group(tmp_path / "g", "w")
    group.create("x", data=[1, 2], layout=layout)
    frame = tmp_path / "g/x.b2nd" / ("chunks.b2frame" if layout == "sparse" else "")
    frame.write_bytes(frame.read_bytes()[:50])
    with group.transaction(replace=replace) as changes:
        if not replace:
            del changes["x"]
        changes["x"] = [3]
    assert found(group.url) == {"x": [3]}
    assert b2array.verify(tmp_path / "g", deep=True).ok


STORIES = pytest.mark.parametrize("story", [change, begin_again])


def found(url: str, mode: Any = "r") -> Contents:
    return contents(open_group(url, mode))


def contents(group: Group) -> Contents:
    inner = {f"{name}/{key}": value for name, each in group.groups().items() for key, value in contents(each).items()}
    attrs = {f"@{name}": value for name, value in group.attrs.items()}
    return {**{name: each[...].tolist() for name, each in group.arrays().items()}, **attrs, **inner}


def states(place: Place, story: Callable[..., None]) -> tuple[Contents, Contents, list[str]]:
    """Return what is found before and after, and the operations between."""
    group = place.prepared()
    before = found(url := group.url)
    assert sorted(group)  # from here on the handle knows the members, as in the runs that follow
    names = place.operations.watch(lambda: story(group))
    after = found(url)
    assert before != after
    assert set(names) & set(WRITES)
    return before, after, names


def check_all_follow(place: Place, url: str, expected: Contents) -> None:
    """Check that the members' own frames are what the group says, for readers who know no group."""
    for name, values in expected.items():
        if "@" not in name:
            own = next(own for suffix in (".b2nd", ".b2f") if (own := _own(f"{url}/{name}{suffix}")) is not None)
            assert own == values, name
    if place.kind == "local":  # python-blosc2 finds members by their files, also one that was not committed
        tree = blosc2.DictStore(url, mode="r")
        members = {key[1:] for key in set(tree.keys()) if "__vlmeta__" not in key and ".b2nd." not in key}
        assert members - expected.keys() <= {"a/new", "a/other"}
        for name in members & expected.keys():
            assert tree[f"/{name}"][:].tolist() == expected[name]


def _own(url: str) -> Any:
    with suppress(FileNotFoundError):
        return b2array.open(url)[...].tolist()
    return None


def _goes_on(place: Place, url: str, expected: Contents) -> None:
    """Let the next writer come, who completes what another one has left."""
    group = open_group(url, "r+")
    assert contents(group) == expected
    with group.transaction() as changes:
        changes["time"][0] = changes["level"][0] = 50
    group.create("a/new", data=[1], overwrite=True)
    expected = {**expected, "time": [50, *expected["time"][1:]], "level": [50.0, *expected["level"][1:]], "a/new": [1]}
    assert found(url) == expected
    check_all_follow(place, url, expected)
    for held in (group["time"], group["level"]):
        assert b2array.verify(held.url, deep=True).problems == ()


@STORIES
@pytest.mark.parametrize("half", [False, True])
def test_a_writer_that_is_killed_at_any_operation_leaves_all_or_nothing(
    place: Place, story: Callable[..., None], half: bool, sampled: Sampled
) -> None:
    before, after, names = states(place, story)
    outcomes = []
    places = [at for at, name in enumerate(names) if name in WRITES and (name == "append" or not half)]
    for at in sorted({*sampled(places, 12), *places[-1:]}):  # the last one comes after the commit
        name = names[at]
        group = place.prepared()
        url = group.url
        earlier = open_group(url)
        assert sorted(earlier) == sorted(group)

        def die(number: int, _: str, call: Any, at: int = at) -> Any:
            if number < at:
                return call()
            if number == at and half:
                call.half()
            raise Killed

        with pytest.raises(Killed):
            place.operations.watch(lambda: story(group), die)  # noqa: B023
        outcomes.append(found(url) == after)
        expected = after if outcomes[-1] else before
        assert found(url) == expected, (at, name)
        with suppress(ConflictError):
            assert contents(earlier) == before, (at, name)
        _goes_on(place, url, expected)
    assert outcomes == sorted(outcomes)
    assert half or {*outcomes} == {False, True}


@STORIES
def test_vacuum_of_a_member_leaves_what_a_killed_writer_committed(
    place: Place, tmp_path: Path, story: Callable[..., None], sampled: Sampled
) -> None:
    _, after, names = states(place, story)
    spared = 0
    for at in sampled([at for at, name in enumerate(names) if name in WRITES], 6):
        group = place.prepared()
        url = group.url

        def die(number: int, _: str, call: Any, at: int = at) -> Any:
            if number < at:
                return call()
            raise Killed

        with pytest.raises(Killed):
            place.operations.watch(lambda: story(group), die)  # noqa: B023
        if found(url) != after:
            continue
        for name in ("time", "level"):
            member = link = f"{url}/{name}.b2nd"
            if place.kind == "local":
                link = str(tmp_path / f"{at}-{name}")
                Path(link).symlink_to(member)
            foreseen = b2array.vacuum(member, grace=0, dry_run=True)
            assert b2array.vacuum(link, grace=0).removed == foreseen.removed
            spared += bool(b2array.verify(member).orphans)
        assert found(url) == after, (at, names[at])
        _goes_on(place, url, after)
    # New members of a local group wait in other places, where no vacuum of another member looks; and in an object store
    # a revision that is listed needs no step of another writer.
    assert spared or place.kind != "local" or story is begin_again


@pytest.mark.parametrize("way", ["fails", "is lost"])
def test_an_operation_that_fails_leaves_all_or_nothing(place: Place, way: str, sampled: Sampled) -> None:
    before, after, names = states(place, change)
    places = [at for at, name in enumerate(names) if name in WRITES or (way == "fails" and at % 7 == 0)]
    for at in sampled(places, 24):
        name = names[at]
        group = place.prepared()
        url = group.url

        def fail(number: int, _: str, call: Any, at: int = at) -> Any:
            if number != at:
                return call()
            if way == "is lost":
                call()
            raise TimeoutError("injected")

        failure = None
        try:
            place.operations.watch(lambda: change(group), fail)  # noqa: B023
        except (OSError, B2ArrayError) as error:
            failure = error
        assert found(url) == (before if failure else after), (at, name, failure)
        if failure:
            group.refresh()
            change(group, overwrite=True)
        assert found(url, "r+") == after, (at, name, failure)
        assert contents(group) == after
        check_all_follow(place, url, after)


@pytest.mark.costly
@STORIES
def test_readers_see_all_or_nothing_at_every_operation(place: Place, story: Callable[..., None]) -> None:
    before, after, _ = states(place, story)
    group = place.prepared()
    url = group.url
    seen = []
    earlier = open_group(url)
    assert contents(earlier) == before
    handles = earlier.arrays()

    def look(_: int, name: str, call: Any) -> Any:
        result = call()
        if name in WRITES:
            seen.append(found(url))
            with suppress(ConflictError):
                assert contents(earlier) == before
            with suppress(ConflictError, FileNotFoundError, b2array.errors.ChunkMissingError):
                assert {each: held[...].tolist() for each, held in handles.items()}.items() <= before.items()
        return result

    place.operations.watch(lambda: story(group), look)
    seen.append(found(url))
    assert [each for each, _ in itertools.groupby(seen)] == [before, after]


@pytest.mark.parametrize("clash", [False, True])
def test_two_writers_that_meet_at_any_operation_both_win_or_one_is_told(
    place: Place, clash: bool, sampled: Sampled
) -> None:
    """The second writer commits while the first one is at some operation, or right after it, if there are locks."""

    def others(url: str) -> None:
        with open_group(url, "r+").transaction() as changes:
            changes["time" if clash else "free"][0] = 40
            changes.create("from/others", data=[9])

    def both(ours: Contents) -> Contents:
        touched = {"time": [40, *ours["time"][1:]]} if clash else {"free": [40]}
        return {**ours, **touched, "from/others": [9]}

    group = place.prepared(free=[0])
    before = found(group.url)
    names = place.operations.watch(lambda: change(group))
    after = found(group.url)
    outcomes = set()
    writes = [at for at, name in enumerate(names) if name in WRITES]
    # At the first write, the second writer is ahead of the commit; at the last operation, it comes after the commit.
    snapshots = {writes[0], len(names) - 1, *sampled(writes, 18), *sampled(range(3 + clash, len(names), 7), 32)}
    for at in sorted(snapshots):
        group = place.prepared(free=[0])
        failures: list[BaseException] = []

        def write(url: str, failures: list[BaseException] = failures) -> None:
            try:
                others(url)
            except BaseException as error:  # noqa: BLE001 - looked at below
                failures.append(error)

        second = threading.Thread(target=write, args=[group.url])

        def meet(number: int, _: str, call: Any, at: int = at, second: threading.Thread = second) -> Any:
            if number == at:
                second.start()
                second.join(30 if place.kind == "compared" else 0.2)
            return call()

        failure = None
        try:
            place.operations.watch(lambda: change(group), meet)  # noqa: B023
        except ConflictError as error:
            failure = error
        second.join(60)
        assert not second.is_alive()
        told = (failure is not None, bool(failures))
        assert told != (True, True)
        assert all(isinstance(each, ConflictError) for each in failures)
        # One that commits first lets the other come second, or fail.
        expected = {(True, False): [both(before)], (False, True): [after], (False, False): [both(after)]}[told]
        assert found(group.url) in expected, (at, names[at], told)
        assert found(group.url, "r+") in expected
        check_all_follow(place, group.url, expected[0])
        outcomes.add(told)
    assert (False, False) in outcomes
    assert not clash or len(outcomes) > 1


def _first_items(group: Group) -> None:
    """Change the first chunk of both arrays, in one commit."""
    with group.transaction() as changes:
        for name in ("time", "level"):
            changes[name][0] = 40


def _move_level(group: Group) -> None:
    group.move("level", "moved")


def _last_item(url: str, name: str, way: str = "url", group: Group | None = None) -> None:
    """Change the last chunk of an array, perhaps through a handle of the group that was opened before."""
    if way == "url":
        b2array.open(f"{url}/{name}.b2nd", "r+")[-1] = 50
    elif way == "group":
        (group or open_group(url, "r+"))[name][-1] = 50
    else:
        with (group or open_group(url, "r+")).transaction() as changes:
            changes[name][-1] = 50


def _insisting(task: Callable[..., object], *args: Any) -> None:
    """Do something again where another writer was faster."""
    for _ in range(3):
        with suppress(ConflictError):
            task(*args)
            return
    raise AssertionError("expected to win at last")


@pytest.fixture(params=["in the group", "by their URLs", "by python-blosc2"])
def two_chunks(place: Place, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Group]:
    """Make groups whose arrays have two chunks. Some groups have no manifest yet."""

    def new() -> Group:
        if request.param == "in the group":
            group = place.prepared()
            for name in ("time", "level"):
                group[name].resize(8)
            return group
        url = place.new()
        for name, values, layout in (("time", np.arange(8), "contiguous"), ("level", np.arange(8.0), "sparse")):
            if request.param == "by their URLs":
                b2array.asarray(values, url=f"{url}/{name}.b2nd", chunks=(4,), blocks=(2,), layout=layout)
            else:
                made = tmp_path / "stock.b2nd"
                blosc2.asarray(values, urlpath=str(made), mode="w", chunks=(4,), blocks=(2,))
                open_store(f"{url}/{name}.b2nd").create("", made.read_bytes())
        return open_group(url, "a")

    return new


def _moments(operations: list[str], sampled: Sampled) -> list[int]:
    """Return at which operations something is to happen: at writes above all."""
    writes = [at for at, name in enumerate(operations) if name in WRITES]
    return sorted({*sampled(writes, 40), *sampled(range(len(operations)), 20)})


def _check_both(place: Place, group: Group, name: str, at: object) -> None:
    check_all_follow(place, group.url, expected := found(group.url))
    assert [expected["time"][0], expected["level"][0]] == [40, 40], at
    assert expected[name][-1] == 50, at
    assert b2array.open(f"{group.url}/{name}.b2nd")[-1] == 50


@pytest.mark.parametrize("way", ["url", "group", "transaction"])
@pytest.mark.parametrize("name", ["time", "level"])
def test_a_writer_of_one_member_and_a_transaction_that_meet_at_any_operation_both_win(
    place: Place, two_chunks: Callable[[], Group], name: str, way: str, sampled: Sampled
) -> None:
    group = two_chunks()
    names = {
        "transaction": place.operations.watch(lambda: _insisting(_first_items, group)),
        "writer": place.operations.watch(lambda: _insisting(_last_item, group.url, name, way)),
    }
    for outer, operations in names.items():
        for at in _moments(operations, sampled):
            group = two_chunks()
            tasks = [
                partial(_insisting, _first_items, group),
                partial(_insisting, _last_item, group.url, name, way),
            ]
            first, second = tasks if outer == "transaction" else tasks[::-1]
            failures: list[BaseException] = []
            _meeting(place, at, first, lambda: _noting(second, failures))  # noqa: B023
            assert not failures, (outer, at, failures)
            _check_both(place, group, name, (outer, at, operations[at]))


def _meeting(place: Place, at: int, first: Callable[[], object], second: Callable[[], object]) -> None:
    """Do the second thing while the first is at some operation, or right after it, if there are locks."""
    thread = threading.Thread(target=second)

    def meet(number: int, _: str, call: Any) -> Any:
        if number == at:
            thread.start()
            thread.join(30 if place.kind == "compared" else 0.1)
        return call()

    place.operations.watch(first, meet)
    if not thread.ident:  # this time there were fewer operations
        thread.start()
    thread.join(60)
    assert not thread.is_alive()


def _noting(task: Callable[[], object], failures: list[BaseException]) -> None:
    try:
        task()
    except BaseException as error:  # noqa: BLE001 - looked at by the caller
        failures.append(error)


@pytest.mark.parametrize("name", ["time", "level"])
def test_a_writer_by_an_own_url_loses_nothing_of_a_transaction_that_was_killed(
    place: Place, two_chunks: Callable[[], Group], name: str, sampled: Sampled
) -> None:
    group = two_chunks()
    names = place.operations.watch(lambda: _first_items(group))
    for at in _moments(names, sampled):
        group = two_chunks()

        def kill(number: int, _: str, call: Any, at: int = at) -> Any:
            if number >= at:
                raise Killed
            return call()

        with suppress(Killed):
            place.operations.watch(lambda: _first_items(group), kill)  # noqa: B023
        seen = found(group.url)
        _insisting(_last_item, group.url, name)
        seen[name][-1] = 50
        assert found(group.url) == found(group.url, "r+") == seen, (at, names[at])


def _replace(group: Group, *names: str) -> None:
    """Replace arrays, in one commit."""
    with group.transaction() as changes:
        for name in names:
            del changes[name]
            changes.create(name, data=np.full(8, 60), chunks=(4,), blocks=(2,), layout="sparse")


@pytest.mark.parametrize("place", ["local"], indirect=True)  # nothing waits to be carried out in an object store
@pytest.mark.parametrize("way", ["url", "group", "transaction"])
@pytest.mark.parametrize("name", ["time", "level"])
def test_a_writer_who_meets_a_replacement_that_is_not_carried_out_takes_nothing_of_it_away(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, way: str, sampled: Sampled
) -> None:
    """Two transactions are killed right after their commits, one before the writer begins, and one while he writes."""
    settle, doomed = on_disk.publish_pending, threading.local()

    def settle_or_die(group: Any, manifest: Any, **options: Any) -> Any:
        if len(manifest.pending) == vars(doomed).get("members"):
            raise Killed
        return settle(group, manifest, **options)

    def replace_and_die(group: Group, *names: str) -> None:
        doomed.members = len(names)
        try:
            _replace(group, *names)
        finally:
            doomed.members = None

    def begun() -> Group:
        """Return a group that was opened before the first transaction."""
        group = place.prepared()
        assert [*group] == ["a", "gone", "level", "time"]
        with suppress(Killed):
            replace_and_die(open_group(group.url, "r+"), "a/again")
        return group

    monkeypatch.setattr(on_disk, "publish_pending", settle_or_die)
    names = place.operations.watch(partial(_last_item, (group := begun()).url, name, way, group))
    for at in sampled(range(len(names)), 6):
        group = begun()
        told: list[BaseException] = []
        died: list[BaseException] = []
        writer = partial(_noting, partial(_last_item, group.url, name, way, group), told)
        _meeting(place, at, writer, partial(_noting, partial(replace_and_die, group, "time", "level"), died))
        assert [*map(type, died)] == [Killed], (at, names[at], died)
        assert {*map(type, told)} <= {ConflictError}, (at, names[at], told)
        seen = found(group.url)
        assert seen["level" if name == "time" else "time"] == seen["a/again"] == [60] * 8, (at, names[at])
        assert seen[name] in ([60] * 8, [60] * 7 + [50]), (at, names[at], told)
        assert found(group.url, "r+") == seen, (at, names[at])


@pytest.mark.parametrize("name", ["time", "level"])
def test_a_reader_who_meets_a_replacement_never_gets_what_goes_after_what_comes(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, sampled: Sampled
) -> None:
    """He knows of the commit; whoever carries it out is killed before he has removed the old frame."""

    def committed() -> Group:
        group = place.prepared()
        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(publication, "publish_step", _die)
            _replace(group, "time", "level")
        return open_group(group.url)

    def carry_out(url: str) -> None:
        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(publication, "discard", _die)
            open_group(url, "r+")

    def read(group: Group) -> None:
        with suppress(ConflictError):
            seen.append(group[name][:].tolist())

    seen: list[list[int]] = []
    names = place.operations.watch(partial(read, committed()))
    for at in sampled(range(len(names)), 1):
        group = committed()
        assert place.operations.meets(at, partial(read, group), partial(carry_out, group.url))
        assert set(map(tuple, seen)) == {(60,) * 8}, (at, names[at])


def test_a_transaction_that_opens_what_a_killed_one_has_changed_and_another_one_deletes_is_told_of_a_conflict(
    place: Place, monkeypatch: pytest.MonkeyPatch, sampled: Sampled
) -> None:
    def change(group: Group) -> None:
        with group.transaction() as changes:
            changes["time"][0] = 50

    def commit_alone(url: str) -> None:
        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(publication, "publish_step", _die)
            with open_group(url, "r+").transaction() as changes:
                changes["time"][1] = 60
                changes["level"][1] = 60

    def delete(url: str) -> None:
        del open_group(url, "r+")["time"]

    names = place.operations.watch(partial(change, place.prepared()))
    for at in sampled([*itertools.combinations(range(len(names)), 2)], 80):
        group, acts = place.prepared(), dict(zip(at, (commit_alone, delete), strict=True))
        done: list[object] = []

        def meet(
            number: int, _: str, call: Callable[[], Any], url: str = group.url, acts: Any = acts, done: Any = done
        ) -> Any:
            if number in acts:
                with suppress(RuntimeError):  # this thread has the lock that the other one would wait for
                    acts[number](url)
                    done.append(acts[number])
            return call()

        with suppress(ConflictError, KeyError):
            place.operations.watch(partial(change, group), meet)
        assert ("time" in open_group(group.url, "r+")) == (delete not in done), at


@pytest.mark.parametrize("way", ["replaced", "changed"])
@pytest.mark.parametrize("name", ["time", "level"])
def test_a_reader_of_a_commit_that_waits_goes_on_with_it_when_it_is_carried_out(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    group = place.prepared()
    promised = open_group(group.url).arrays()[name]
    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(publication, "publish_step", _die)
        with group.transaction() as changes:
            for each in ("time", "level"):
                if way == "changed":
                    changes[each][0] = 40
                else:
                    del changes[each]
                    changes.create(each, data=np.full(8, 60), chunks=(4,), blocks=(2,), layout="sparse")
            changes.snapshot("now")
    reader = open_group(group.url)
    held, refreshed = reader[name], reader[name]
    following = open_group(group.url, follow=True)[name]
    copied = pickle.loads(pickle.dumps(reader[name]))
    kept = open_group(group.url, at="now")[name]
    arrays = held, refreshed, following, copied, from_array(reader[name]), kept
    new = held[:].tolist()
    for _ in range(2):
        refreshed.refresh()
        assert [each[:].tolist() for each in (refreshed, following)] == [new] * 2
    open_group(group.url, "r+").attrs["carried"] = "out"
    assert [np.asarray(each).tolist() for each in arrays] == [new] * len(arrays)
    kept.refresh()
    promised.refresh()
    assert kept[:].tolist() == promised[:].tolist() == new
    _last_item(group.url, name)
    for each in (refreshed, following, copied):
        each.refresh()
        assert each[:].tolist() == [*new[:-1], 50]
    _replace(open_group(group.url, "r+"), name)
    refreshed.refresh()
    assert refreshed[:].tolist() == following[:].tolist() == [60] * 8


def _die(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_who_makes_an_array_by_its_own_url_takes_no_place_from_a_commit_that_comes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any, sampled: Sampled
) -> None:
    """A transaction makes an array of the same name, and is killed right after its commit."""
    place = Place("local", tmp_path, monkeypatch)
    settle, doomed = on_disk.publish_pending, threading.local()

    def settle_or_die(group: Any, manifest: Any, **options: Any) -> Any:
        if manifest.pending and vars(doomed):
            raise Killed
        return settle(group, manifest, **options)

    def make(url: str) -> None:
        b2array.asarray(np.full(8, 1), url=f"{url}/new.b2nd", chunks=(4,), layout=layout)

    def make_and_die(group: Group) -> None:
        doomed.now = True
        with group.transaction() as changes:
            for name in ("new", "beside"):
                changes.create(name, data=np.full(8, 2), chunks=(4,), layout=layout)

    monkeypatch.setattr(on_disk, "publish_pending", settle_or_die)
    names = place.operations.watch(partial(make, place.prepared().url))
    for at in sampled(range(len(names) + 1), 1):
        group, refused = place.prepared(), []
        died: list[BaseException] = []
        writer = partial(_noting, partial(make, group.url), refused)
        _meeting(place, at, writer, partial(_noting, partial(make_and_die, group), died))
        seen = found(group.url)
        winner = 2 if refused else 1
        assert {*map(type, refused)} <= {FileExistsError, ConflictError}, (at, names[at:], died)
        assert refused or died, (at, names[at:])
        assert seen["new"] == [winner] * 8, (at, names[at:])
        assert seen.get("beside") == (None if winner == 1 else [2] * 8)
        assert found(group.url, "r+") == seen


@pytest.mark.parametrize("moves", [False, True])
def test_a_change_by_an_own_url_is_not_lost_in_a_member_that_a_transaction_moves(
    place: Place, two_chunks: Callable[[], Group], moves: bool, sampled: Sampled
) -> None:
    """The transaction moves what was changed, or one of both is told."""
    group = two_chunks()
    url = group.url
    names = place.operations.watch(lambda: _move_level(group) if moves else _last_item(url, "level"))
    outcomes = set()
    for at in _moments(names, sampled):
        group = two_chunks()
        failures: dict[str, list[BaseException]] = {"move": [], "write": []}

        def write(group: Group = group) -> None:
            b2array.open(f"{group.url}/level.b2nd", "r+")[-1] = 50

        tasks = [
            lambda group=group, each=failures["move"]: _noting(lambda: _move_level(group), each),
            lambda write=write, each=failures["write"]: _noting(write, each),
        ]
        first, second = tasks if moves else tasks[::-1]
        _meeting(place, at, first, second)
        told = [bool(failures[each]) for each in ("move", "write")]
        now = found(group.url)
        assert told != [True, True]
        assert ("moved" in now, "level" in now) == ((False, True) if told[0] else (True, False)), (at, failures)
        items = now["level"] if told[0] else now["moved"]
        assert (items[-1] == 50) == (not told[1]), (at, failures)
        outcomes.add(tuple(told))
    assert outcomes


def _double_level(group: Group) -> None:
    with group.transaction() as changes:
        _read_and_replace_it(changes)


def test_a_change_by_an_own_url_is_not_lost_in_a_member_that_a_transaction_reads_and_replaces(
    place: Place, two_chunks: Callable[[], Group], sampled: Sampled
) -> None:
    """The transaction doubles what was changed, or one of both is told."""
    names = place.operations.watch(partial(_double_level, two_chunks()))
    for at in _moments(names, sampled):
        group = two_chunks()
        before = found(group.url)["level"]
        failures: dict[str, list[BaseException]] = {"double": [], "write": []}
        double = partial(_noting, partial(_double_level, group), failures["double"])
        write = partial(_noting, partial(_last_item, group.url, "level"), failures["write"])
        _meeting(place, at, double, write)
        told = [name for name, errors in failures.items() if errors]
        assert all(isinstance(error, ConflictError) for error in failures["double"]), (at, failures)
        written = [*before[:-1], 50]
        doubled = [2 * item for item in before]
        expected = {
            (): [[*doubled[:-1], 50], [*doubled[:-1], 100]],
            ("write",): [doubled],
            ("double",): [written],
        }
        assert found(group.url)["level"] in expected[tuple(told)], (at, names[at], failures)


@pytest.mark.parametrize("way", ["deleted", "replaced"])
def test_a_handle_with_later_commits_of_its_own_is_told_of_a_member_that_another_one_took(
    place: Place, way: str
) -> None:
    one = open_group(place.new(), "w")
    one.create("x", data=[1], layout="sparse")
    other = open_group(one.url, "r+")
    assert other["x"][0] == 1
    if way == "deleted":
        del one["x"]
    else:
        one.create("x", data=[2], layout="contiguous", overwrite=True)
    other["y"] = [3]
    with suppress(ConflictError, KeyError):
        assert (way, other["x"][0]) == ("replaced", 2)
    other.refresh()
    assert {name: each[0] for name, each in other.arrays().items()} == {
        "y": 3,
        **({"x": 2} if way == "replaced" else {}),
    }


# What a transaction has only read.


def _derive(group: Group) -> None:
    with group.transaction() as changes:
        changes["time"][0] = 1000 + int(changes["level"][...].sum())


@pytest.mark.parametrize("way", ["url", "group", "transaction"])
def test_a_transaction_follows_from_what_is_there_when_others_change_what_it_reads_at_any_operation(
    place: Place, two_chunks: Callable[[], Group], way: str, sampled: Sampled
) -> None:
    group = two_chunks()
    operations = place.operations.watch(lambda: _derive(group))
    outcomes = set()
    behind = operations.index("gather" if "gather" in operations else "read") + 1
    for at in sorted({*_moments(operations, sampled), behind}):
        group, shown, failures = two_chunks(), [], []
        old = 1000 + int(group["level"][...].sum())
        new = old - int(group["level"][-1]) + 50

        def change_what_is_read() -> None:
            _insisting(_last_item, group.url, "level", way)  # noqa: B023
            shown.append(int(open_group(group.url)["time"][0]))  # noqa: B023

        _meeting(place, at, lambda: _noting(partial(_derive, group), failures), change_what_is_read)  # noqa: B023
        after = int(open_group(group.url)["time"][0])
        assert [type(failure) for failure in failures] in ([], [ConflictError]), failures
        # What follows from the old items was there before they were changed.
        expected = [0] if failures else [new] if shown == [0] else [old, new]
        assert after in expected, (at, operations[at], shown)
        assert open_group(group.url)["level"][-1] == 50
        outcomes.add((bool(failures), after))
    assert place.kind == "local" or (True, 0) in outcomes  # with locks, threads may be too slow to come in between


def _write(group: Group) -> None:
    group["level"][0] = 5


def _append(group: Group) -> None:
    group["level"].append([5])


def _delete_level(group: Group) -> None:
    del group["level"]


def _again(group: Group) -> None:
    del group["level"]
    group["level"] = [0.0, 1, 2]


def _annotate(group: Group) -> None:
    group["level"].attrs["unit"] = "m"


OTHERS = [_write, _append, _delete_level, _again, _annotate]


def _read_and_write(changes: Group) -> None:
    changes["time"][...] = 2 * changes["level"][...]


def _read_and_make(changes: Group) -> None:
    changes["new"] = 2 * changes["level"][...]


def _read_and_delete(changes: Group) -> None:
    if changes["level"][0] == 0:
        del changes["time"]


def _read_and_delete_it(changes: Group) -> None:
    changes["new"] = 2 * changes["level"][...]
    del changes["level"]


def _read_and_replace_it(changes: Group) -> None:
    items = changes["level"][...]
    del changes["level"]
    changes["level"] = 2 * items


def _read_attributes(changes: Group) -> None:
    changes["time"].attrs["unit"] = changes["level"].attrs.get("unit", "none")


def _copy_it(changes: Group) -> None:
    changes.copy("level", changes, "new")


def _read_in_a_fork(changes: Group) -> None:
    fork = pickle.loads(pickle.dumps(changes.fork()))
    fork["time"][...] = 2 * fork["level"][...]
    changes.merge(pickle.loads(pickle.dumps(fork)))


def _read_in_a_fork_of_a_fork(changes: Group) -> None:
    fork = pickle.loads(pickle.dumps(changes.fork()))
    inner = pickle.loads(pickle.dumps(fork.fork()))
    inner["new"] = 2 * inner["level"][...]
    fork.merge(pickle.loads(pickle.dumps(inner)))
    changes.merge(pickle.loads(pickle.dumps(fork)))


OURS = [
    _read_and_write,
    _read_and_make,
    _read_and_delete,
    _read_and_delete_it,
    _read_and_replace_it,
    _read_attributes,
    _copy_it,
    _read_in_a_fork,
    _read_in_a_fork_of_a_fork,
]


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_change_of_what_a_transaction_has_read_is_a_conflict(
    place: Place, layout: str, ours: Callable[[Group], None], others: Callable[[Group], None]
) -> None:
    group = open_group(place.new(), "w")
    group.create("time", data=np.arange(3), layout=layout)
    group.create("level", data=np.arange(3.0), layout=layout)

    def meet() -> None:
        with group.transaction() as changes:
            ours(changes)
            others(open_group(group.url, "r+"))

    with pytest.raises(ConflictError):
        meet()
    fresh = open_group(group.url)
    assert fresh["time"][...].tolist() == [0, 1, 2]
    assert "new" not in fresh
    with group.transaction() as changes:  # nothing is left behind that would hinder it
        changes["time"][0] = 7
        assert "level" not in changes or changes["level"].shape[0] >= 3
    assert open_group(group.url)["time"][0] == 7


@pytest.mark.parametrize("ours", OURS)
def test_what_is_read_may_change_before_and_after_and_others_beside_it(
    place: Place, ours: Callable[[Group], None]
) -> None:
    group = open_group(place.new(), "w")
    group["time"], group["level"], group["other"] = np.arange(3), np.arange(3.0), np.arange(3)
    _write(open_group(group.url, "r+"))
    with group.transaction() as changes:
        open_group(group.url, "r+")["other"][0] = 5
        ours(changes)
        with open_group(group.url, "r+").transaction() as beside:
            beside["other"][1] = 6
    fresh = open_group(group.url, "r+")
    assert fresh["other"][...].tolist() == [5, 6, 2]
    if "level" in fresh:
        _append(fresh)


def test_a_transaction_that_only_reads_is_never_refused(place: Place) -> None:
    group = prepared(place.new())
    with group.transaction() as changes:
        assert changes["level"][0] == 0
        open_group(group.url, "r+")["level"][0] = 5
    assert open_group(group.url)["level"][0] == 5


def test_attributes_of_a_group_that_were_read_belong_to_the_commit(place: Place) -> None:
    group = prepared(place.new())

    def meet() -> None:
        with group.transaction() as changes:
            changes["level"][0] = changes.attrs["n"]
            open_group(group.url, "r+").attrs["n"] = 4

    with pytest.raises(ConflictError):
        meet()
    assert open_group(group.url)["level"][0] == 0


def test_a_new_member_is_made_where_another_one_goes_at_that_moment(tmp_path: Path, monkeypatch: Any) -> None:
    place = Place("compared", tmp_path, monkeypatch)
    group = place.prepared()
    put_frame(f"{group.url}/x.b2nd", [0, 0], layout="sparse")
    memory, met = fsspec.filesystem("memory"), []

    def meet(_: int, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except FileExistsError:
            met.append(name)
            memory.rm(f"{group.url.removeprefix('memory:/')}/x.b2nd/chunks.b2frame")
            raise

    def make() -> None:
        group.create("x", data=[7, 8], layout="sparse")

    place.operations.watch(make, meet)
    assert met == ["create"]
    assert found(group.url)["x"] == [7, 8]


# Changes of one member without a transaction.


@pytest.mark.costly
@pytest.mark.parametrize(
    ("layout", "other"), [("contiguous", "sparse"), ("sparse", "contiguous"), ("sparse", "sparse")]
)
@pytest.mark.parametrize("swaps", [True, False])
def test_a_writer_that_is_killed_while_it_replaces_a_member_leaves_one_of_the_frames(
    layout: Any, other: Any, swaps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems that do not swap names in one step, where the new frame comes after the old one has gone."""
    if not swaps:
        monkeypatch.setattr(disk, "swap", lambda *_: False)
    operations = Operations()
    operations.listen(LocalStore, monkeypatch)
    expected = {"x": [1, 2], "y": [3]}

    def made(moment: int) -> str:
        group = open_group(tmp_path / f"{moment}.b2d", "w")
        group.create("x", data=[1, 2], layout=layout)
        group["y"] = [3]
        return group.url

    def replace(url: str) -> None:
        open_group(url, "r+").create("x", data=[7, 8, 9], layout=other, overwrite=True)

    count = len(operations.watch(partial(replace, made(-1))))
    states = set()
    for moment in range(count):
        url = made(moment)

        def die(number: int, _: str, call: Callable[[], Any], moment: int = moment) -> Any:
            if number >= moment:
                raise Killed
            return call()

        with suppress(Killed):
            operations.watch(partial(replace, url), die)
        there = found(url)
        states.add(tuple(there["x"]))
        assert there in (expected, {**expected, "x": [7, 8, 9]})
        open_group(url, "r+")["y"][0] = 4
        b2array.vacuum(url, grace=0)
        assert found(url) == {**there, "y": [4]}
    assert states == {(1, 2), (7, 8, 9)}


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_an_interrupt_right_after_the_commit_reaches_the_user(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "g.b2d") if kind == "local" else f"memory://{tmp_path.name}.b2d"
    group = open_group(url, "w")
    for name in "xy":
        group.create(name, data=np.zeros(4), chunks=(2,))
    armed = [True]

    def remember(*arguments: Any) -> None:
        if armed:
            armed.clear()
            raise KeyboardInterrupt
        catalog.remember_manifest(*arguments)

    monkeypatch.setattr(manifest_writes, "remember_manifest", remember)
    with pytest.raises(KeyboardInterrupt), group.transaction() as changes:  # noqa: PT012
        for name in "xy":
            changes[name][0] = 9
    assert not armed
    assert found(url) == {"x": [9, 0, 0, 0], "y": [9, 0, 0, 0]}
    group.refresh()
    group["x"][1] = 5
    assert found(url) == {"x": [9, 5, 0, 0], "y": [9, 0, 0, 0]}
    assert b2array.verify(url, deep=True).ok
