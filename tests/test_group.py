"""Groups: names, members, attributes, and the directories that python-blosc2 reads and writes."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import blosc2
import numpy as np
import pytest

import b2array
from b2array import Group, NDArray, b2nd, open_group
from b2array.catalog import Directory
from b2array.errors import ConflictError, ReadOnlyError

_serials = itertools.count()


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of a group that does not exist yet."""
    if request.param == "local":
        yield str(tmp_path / "group.b2d")
    else:
        yield f"memory://test-group-{next(_serials)}.b2d"


@pytest.fixture
def group(url: str) -> Group:
    return open_group(url, "w")


def test_members_are_found_by_name_and_path(group: Group, url: str) -> None:
    x = np.arange(12.0).reshape(3, 4)
    group.create("a/b/x", data=x, chunks=(2, 2), blocks=(2, 2), dims=("r", "c"))
    group.create("y", 3, "i2", fill_value=7, attrs={"unit": "m"})
    again = open_group(url)
    for found in (group, again):
        assert list(found) == ["a", "y"]
        assert list(found["a"]) == ["b"]
        assert [name in found for name in ("a/b/x", "a/b", "a/b/z", "", 3)] == [True, True, False, False, False]
        assert np.array_equal(found["a/b/x"][...], x)
        assert np.array_equal(found["a"]["b"]["x"][...], x)
        assert found["a/b/x"].dims == ("r", "c")
        assert found["y"][...].tolist() == [7, 7, 7]
        assert dict(found["y"].attrs) == {"unit": "m"}
        assert found["a/b"].name == "a/b"
        assert [*found.arrays()] == ["y"]
        assert [*found.groups()] == ["a"]
        assert len(found) == 2
    with pytest.raises(KeyError, match="no such member"):
        again["a/z"]


def test_handles_write_and_others_see_it_when_they_open(group: Group, url: str) -> None:
    group.create("x", 4, "i4")
    group["x"][1:3] = 5
    assert open_group(url)["x"][...].tolist() == [0, 5, 5, 0]


def test_a_group_for_reading_refuses_changes(group: Group, url: str) -> None:
    group.create("x", 4)
    group.attrs["a"] = 1
    reading = open_group(url)
    for change in (
        lambda: reading.create("y", 1),
        lambda: reading.create_group("y"),
        lambda: reading.__delitem__("x"),
        lambda: reading.__setitem__("x", [1]),
        lambda: reading.attrs.__setitem__("a", 2),
        lambda: reading.attrs.__delitem__("a"),
        lambda: reading["x"].__setitem__(0, 1),
    ):
        with pytest.raises(ReadOnlyError, match="opened for reading"):
            change()


def test_modes(url: str) -> None:
    for mode in ("r", "r+"):
        with pytest.raises(FileNotFoundError, match="no group"):
            open_group(url, mode)
    open_group(url, "a").create("x", data=[1])
    assert list(open_group(url, "a")) == list(open_group(url, "r+")) == ["x"]
    with pytest.raises(FileExistsError):
        open_group(url, "x")
    assert list(open_group(url, "w")) == []
    assert open_group(url).mode == "r"
    with pytest.raises(ValueError, match="mode must be"):
        open_group(url, "q")  # type: ignore[arg-type]


def test_attributes_of_every_group_are_its_own(group: Group, url: str) -> None:
    assert dict(group.attrs) == {}
    group.attrs["title"] = "outer"
    group.create("a/x", 2)
    group["a"].attrs["title"] = "inner"
    group["a"].attrs["n"] = [1, 2.5, "x"]
    del group["a"].attrs["n"]
    again = open_group(url)
    assert dict(again.attrs) == {"title": "outer"}
    assert dict(again["a"].attrs) == {"title": "inner"}
    assert list(again["a"]) == ["x"]
    assert list(again) == ["a"]


def test_empty_groups_can_be_made(group: Group, url: str) -> None:
    assert group.create_group("a/b").name == "a/b"
    assert list(group.create_group("a/b")) == []
    assert open_group(url).tree() == "/\n└── a\n    └── b"


def test_deleting_removes_members_and_groups_with_all_below(group: Group, url: str) -> None:
    for name in ("a/x", "a/b/y", "ab", "c"):
        group.create(name, data=[1, 2])
    group["a"].attrs["k"] = 1
    del group["a"]
    assert list(group) == list(open_group(url)) == ["ab", "c"]
    del group["c"]
    assert list(group) == ["ab"]
    for name in ("c", "", "a/x"):
        with pytest.raises(KeyError):
            del group[name]
    group.create("a", data=[3])
    assert group["a"][...].tolist() == [3]


def test_assignment_makes_and_replaces_arrays(group: Group) -> None:
    group["x"] = np.arange(3)
    group["x"] = np.ones((2, 2))
    assert np.array_equal(group["x"][...], np.ones((2, 2)))
    with pytest.raises(FileExistsError, match="overwrite"):
        group.create("x", 3)


@pytest.mark.parametrize(
    "name", ["", "/x", "a//b", "a/", "../x", "a/../x", ".", "a\0b", "a\\b", "a\nb", "x.b2nd", "a.b2f/x", "__vlmeta__"]
)
def test_names_that_cannot_be_are_refused(group: Group, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a member"):
        group.create(name, 3)
    with pytest.raises(KeyError):
        group[name]
    assert name not in group
    assert list(group) == []


def test_an_array_is_no_group_and_a_group_no_array(group: Group) -> None:
    group.create("a/x", 2)
    with pytest.raises(FileExistsError, match="there is a group 'a'"):
        group.create("a", 2)
    with pytest.raises(ValueError, match="'a/x' is an array"):
        group.create("a/x/y", 2)


def test_groups_pickle(group: Group) -> None:
    group.create("a/x", data=[1, 2, 3])
    again = pickle.loads(pickle.dumps(group["a"]))
    assert again.name == "a"
    assert again["x"][...].tolist() == [1, 2, 3]
    assert again.mode == "r+"


def test_python_blosc2_opens_what_is_written(tmp_path: Path) -> None:
    url = str(tmp_path / "ours.b2d")
    group = open_group(url, "x")
    x = np.arange(20.0).reshape(4, 5)
    group.create("a/x", data=x, chunks=(2, 3))
    group.create("y", data=np.arange(3))
    group.attrs["title"] = "outer"
    group["a"].attrs["n"] = 5
    tree = blosc2.TreeStore(url, mode="a")
    assert sorted(tree.keys()) == ["/a", "/a/x", "/y"]
    assert np.array_equal(tree["/a/x"][:], x)
    assert tree.vlmeta["title"] == "outer"
    assert tree["/a"].vlmeta["n"] == 5
    tree.vlmeta["more"] = "stock"
    tree["/b/z"] = np.arange(4)
    assert set(blosc2.DictStore(url, mode="r").keys()) >= {"/a/x", "/y", "/b/z"}
    group.refresh()
    assert dict(group.attrs) == {"title": "outer", "more": "stock"}
    assert group["b/z"][...].tolist() == [0, 1, 2, 3]


def test_directories_of_python_blosc2_are_read_and_continued(tmp_path: Path) -> None:
    url = str(tmp_path / "stock.b2d")
    tree = blosc2.TreeStore(url, mode="w")
    tree["/a/b/x"] = np.arange(10)
    tree["/s"] = blosc2.SChunk(chunksize=8, data=b"12345678")
    tree.vlmeta["v"] = 1
    group = open_group(url, "r+")
    assert list(group) == ["a", "s"]
    assert group["a/b/x"][...].tolist() == list(range(10))
    assert isinstance(group["s"], b2array.SChunk)
    assert group["s"].get_slice() == b"12345678"
    assert dict(group.attrs) == {"v": 1}
    group["a/b/x"][0] = 100
    group.attrs["w"] = 2
    tree = blosc2.TreeStore(url, mode="r")
    assert tree["/a/b/x"][0] == 100
    assert tree.vlmeta["w"] == 2


def _grown(group: Group) -> tuple[int, int]:
    return len(group["time"][...]), len(group["level"][...])


def _resize(held: NDArray, n: int) -> None:
    layout = replace(held._layout, shape=(n,))
    with held._held.changing() as draft:
        old = draft.frame.nchunks
        draft.reindex([k if k < old else -1 for k in range(layout.nchunks)], nbytes=layout.nbytes)
        draft.set_metalayer("b2nd", b2nd.pack(layout))


def _append(changes: Group, n: int) -> None:
    for name in ("time", "level"):
        held = changes[name]
        before = held.shape[0]
        _resize(held, before + n)
        held[before:] = np.arange(before, before + n)


@pytest.fixture
def growing(group: Group) -> Group:
    group.create("time", data=np.arange(3), chunks=(4,), blocks=(2,))
    group.create("level", data=np.arange(3.0), chunks=(2,), blocks=(2,))
    return group


def test_a_transaction_changes_all_members_or_none(growing: Group, url: str) -> None:
    before = open_group(url)
    old = before["level"]
    with growing.transaction() as changes:
        _append(changes, 5)
        changes.attrs["steps"] = 8
        changes["time"].attrs["unit"] = "s"
        changes.create("new/x", data=[1, 2])
        assert _grown(changes) == (8, 8)
        assert _grown(open_group(url)) == (3, 3)
        assert list(open_group(url)) == ["level", "time"]
        assert dict(open_group(url).attrs) == {}
    for found in (growing, open_group(url)):
        assert _grown(found) == (8, 8)
        assert found["level"][...].tolist() == list(range(8))
        assert dict(found.attrs) == {"steps": 8}
        assert dict(found["time"].attrs) == {"unit": "s"}
        assert found["new/x"][...].tolist() == [1, 2]
    assert old[...].tolist() == [0, 1, 2]
    with pytest.raises(ConflictError, match="refresh"):
        before["time"]
    before.refresh()
    assert _grown(before) == (8, 8)


def test_a_transaction_that_raises_leaves_nothing(growing: Group, url: str) -> None:
    class Stop(BaseException):
        pass

    def fail() -> None:
        with growing.transaction() as changes:
            _append(changes, 5)
            changes.create("new", data=[1])
            del changes["time"]
            changes.attrs["a"] = 1
            raise Stop

    with pytest.raises(Stop):
        fail()
    for found in (growing, open_group(url)):
        assert list(found) == ["level", "time"]
        assert _grown(found) == (3, 3)
        assert dict(found.attrs) == {}
    growing.create("new", data=[1])


def test_transactions_follow_each_other(growing: Group, url: str) -> None:
    for n in range(1, 4):
        with growing.transaction() as changes:
            _append(changes, n)
    assert _grown(open_group(url)) == (9, 9)
    growing["time"][0] = 9
    assert open_group(url)["time"][0] == 9
    with growing.transaction() as changes:
        del changes["time"]
        changes["level"][0] = 7
        assert "time" not in changes
        assert "time" in open_group(url)
    assert list(open_group(url)) == ["level"]
    assert open_group(url)["level"][0] == 7


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_commit_that_is_interrupted_shows_all_or_nothing(
    growing: Group, url: str, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.attrs["n"] = 3
    original = Directory._publish_one
    calls = itertools.count()

    def publish_one(*args: object, **options: object) -> None:
        if next(calls) >= fails_at:
            raise OSError("killed")
        original(*args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "_publish_one", publish_one)
        with growing.transaction() as changes:
            _append(changes, 5)
            changes.attrs["n"] = 8
    # Some of the members' own frames are old, and nobody who goes by the group notices.
    own = [b2array.open(f"{url}/{name}.b2nd").shape[0] for name in ("level", "time")]
    assert own != [8, 8]
    for found in (open_group(url), growing):
        assert _grown(found) == (8, 8)
        assert found["level"][...].tolist() == list(range(8))
        assert found.attrs["n"] == 8
    # The next writer completes it.
    again = open_group(url, "r+")
    again["time"][0] = 100
    assert b2array.open(f"{url}/time.b2nd")[...].tolist() == [100, *range(1, 8)]
    with again.transaction() as changes:
        _append(changes, 1)
    assert [b2array.open(f"{url}/{name}.b2nd").shape[0] for name in ("level", "time")] == [9, 9]
    assert _grown(open_group(url)) == (9, 9)


def test_a_transaction_notices_other_writers(growing: Group, url: str) -> None:
    def clash() -> None:
        with growing.transaction() as changes:
            _append(changes, 2)
            with open_group(url, "r+").transaction() as others:
                _append(others, 1)

    with pytest.raises(ConflictError):
        clash()
    assert _grown(open_group(url)) == (4, 4)
    growing.refresh()
    with growing.transaction() as changes:
        changes["time"][0] = 5
        with open_group(url, "r+").transaction() as others:
            others["level"][3] = 6
            others.create("x", data=[1])
    found = open_group(url)
    assert (found["time"][0], found["level"][3], list(found)) == (5, 6.0, ["level", "time", "x"])


def test_a_transaction_has_rules(growing: Group) -> None:
    with growing.transaction() as changes:
        with pytest.raises(ValueError, match="under way"), changes.transaction():
            pass
        with pytest.raises(ValueError, match="cannot replace"):
            changes["time"] = [1]
        with pytest.raises(ValueError, match="pickled"):
            pickle.dumps(changes)
        changes.create("short", data=[1])
        del changes["short"]
        assert "short" not in changes
    with pytest.raises(ConflictError, match="ended"):
        changes["time"]
    assert "short" not in growing
    reading = open_group(growing.url)
    with pytest.raises(ReadOnlyError), reading.transaction():
        pass


def test_python_blosc2_reads_what_transactions_leave_and_goes_on(tmp_path: Path) -> None:
    url = str(tmp_path / "ours.b2d")
    group = open_group(url, "w")
    for name in ("time", "level"):
        group.create(name, data=np.arange(3), chunks=(4,), blocks=(2,))
    with group.transaction() as changes:
        _append(changes, 5)
        changes.attrs["n"] = 8
    tree = blosc2.TreeStore(url, mode="a")
    assert sorted(tree.keys()) == ["/level", "/time"]
    assert sorted(blosc2.DictStore(url, mode="r").keys()) == ["/__vlmeta__", "/level", "/time"]
    assert tree["/time"][:].tolist() == list(range(8))
    assert tree.vlmeta["n"] == 8
    held = tree["/time"]
    held.resize((10,))
    held[8:] = [80, 90]
    tree["/level"] = np.ones(10)
    assert _grown(open_group(url)) == (10, 10)
    with open_group(url, "r+").transaction() as changes:
        _append(changes, 1)
    assert blosc2.TreeStore(url, mode="r")["/time"][:].tolist() == [*range(8), 80, 90, 10]
    assert _grown(open_group(url)) == (11, 11)
