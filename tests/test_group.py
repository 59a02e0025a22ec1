"""Groups: names, members, attributes, and the directories that python-blosc2 reads and writes."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path

import blosc2
import numpy as np
import pytest

import b2array
from b2array import Group, open_group
from b2array.errors import ReadOnlyError

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
