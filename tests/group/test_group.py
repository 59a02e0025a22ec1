"""Groups: names, members, attributes, and the directories that python-blosc2 reads and writes."""

from __future__ import annotations

import copy
import errno
import itertools
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import blosc2
import fsspec
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples
from servers import RangeServer

import b2array
from b2array import Group, NDArray, open_group
from b2array.catalog import manifest
from b2array.catalog.manifest import MANIFEST, Manifest, PendingStep, Row, check_name
from b2array.catalog.names_of_members import check_new
from b2array.commit import in_bucket, manifest_writes, on_disk, publication
from b2array.errors import ChecksumError, ConflictError, FormatError, LimitError, ReadOnlyError, UnsupportedError
from b2array.format.ledger import seal
from b2array.group import embedded, local_group
from b2array.group.listed_group import group_at
from b2array.store.base import Stamp, Store
from b2array.store.open import open_store

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


def test_a_member_that_another_handle_makes_is_found(group: Group, url: str) -> None:
    group["time"] = [1.0]
    assert [*group] == ["time"]
    b2array.arange(10, url=f"{url}/overview/level")
    assert group["overview"]["level"][3] == 3
    assert [*group] == ["overview", "time"]
    b2array.arange(5, url=f"{url}/again")
    assert group.pop("again").shape == (5,)
    b2array.arange(6, url=f"{url}/overview/more")
    assert group["overview"]["more"].shape == (6,)
    assert group["time"][...].tolist() == [1.0]


def test_a_member_of_a_transaction_with_other_changes_is_found_after_a_refresh(group: Group, url: str) -> None:
    group["time"] = [1.0]
    group["level"] = [1.0]
    reader = open_group(url)
    assert reader["time"][...].tolist() == [1.0]
    with open_group(url, "r+").transaction() as changes:
        changes["time"][...] = [2.0]
        changes["level"][...] = [2.0]
        changes["new"] = [2.0]
    # A reader that finds the new member would then find only a part of the transaction.
    for _ in range(2):
        with pytest.raises(KeyError, match=r"has this member now, but more has changed .* refresh\(\) shows all of it"):
            reader["new"]
    assert [*reader] == ["level", "time"]
    reader.refresh()
    assert [reader[name][0] for name in ("time", "level", "new")] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("asked", ["second", "third", "sub"])
def test_of_members_that_were_made_together_none_is_found_alone(group: Group, url: str, asked: str) -> None:
    """The reader has been told that the first one is missing, so it must not see what belongs to it."""
    group["time"] = [1.0]
    reader = open_group(url)
    with pytest.raises(KeyError, match="no such member"):
        reader["first"]
    with open_group(url, "r+").transaction() as changes:
        for name in ("first", "second", "sub/x"):
            changes[name] = [2.0]
    if asked == "third":  # another commit, but its list has the members of the first one
        open_group(url, "r+")["third"] = [3.0]
    with suppress(KeyError):  # on a disk, the third one is found, because each member is looked for alone
        reader[asked]
    assert "second" not in reader
    with pytest.raises(KeyError, match=r"refresh\(\) shows all of it"):
        reader["second"]
    reader.refresh()
    assert [reader[name][0] for name in ("first", "second", "sub/x")] == [2.0] * 3


def test_snapshots_and_transactions_do_not_look_for_newer_members(group: Group, url: str) -> None:
    group["time"] = [1.0]
    group.snapshot("before")
    then = open_group(url, at="before")
    assert [*then] == ["time"]
    with group.transaction() as changes:
        assert [*changes] == ["time"]
        b2array.arange(3, url=f"{url}/new")
        for missing in (then, changes):
            with pytest.raises(KeyError, match=r"no such member\W*$"):
                missing["new"]
    assert group["new"].shape == (3,)


def test_a_mistyped_name_names_the_nearest(group: Group, url: str) -> None:
    group["overview/level"] = [1.0]
    group["overview/time"] = [1.0]
    with pytest.raises(KeyError, match=r"no such member\. Did you mean 'overview/level'\?"):
        group["overview/leevl"]
    with pytest.raises(KeyError, match=r"no such member\. Did you mean 'time'\?"):
        group["overview"]["tiem"]
    with pytest.raises(KeyError, match=r"no such member\W*$"):
        group["pressure"]
    with pytest.raises(FileNotFoundError, match=r"Did you mean 'overview/time'\?"):
        b2array.open(f"{url}/overview/tiem")


def test_handles_write_and_others_see_it_when_they_open(group: Group, url: str) -> None:
    group.create("x", 4, "i4")
    group["x"][1:3] = 5
    assert open_group(url)["x"][...].tolist() == [0, 5, 5, 0]


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_group_that_replaces_another_shows_nothing_that_was_not_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    place = tmp_path / "group.b2d"
    group = open_group(place, "w")
    group["kept"] = group["deleted"] = [1]
    interrupted = group.transaction()
    changes = interrupted.__enter__()
    changes.create("secret", data=[1, 2, 3], layout=layout)
    with monkeypatch.context() as patch, group.transaction() as others:
        patch.setattr(publication, "publish_step", lambda *_, **__: (_ for _ in ()).throw(TimeoutError))
        del others["deleted"]
    assert [*open_group(place)] == ["kept"]
    assert [*open_group(place, "w")] == [*open_group(place)] == []
    assert not [*place.glob("kept*"), *place.glob("deleted*"), *place.glob("secret.b2nd")]


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


def test_a_group_stays_where_it_is_when_the_working_directory_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    group = open_group("g.b2d", "w")
    group["x"] = [1]
    b2array.convert("g.b2d", "g.b2z")
    archive = open_group("g.b2z")
    monkeypatch.chdir(tmp_path / "there")
    group["later"] = [2]
    with group.transaction() as changes:
        changes["x"][0] = 3
    group.attrs["unit"] = "m"
    group.refresh()
    for held in (group, pickle.loads(pickle.dumps(group)), open_group(tmp_path / "here" / "g.b2d")):
        assert {name: a[:].tolist() for name, a in held.arrays().items()} == {"later": [2], "x": [3]}
        assert dict(held.attrs) == {"unit": "m"}
    for held in (archive, pickle.loads(pickle.dumps(archive))):
        assert held["x"][:].tolist() == [1]
    assert list((tmp_path / "there").iterdir()) == []


def test_the_root_of_a_store_is_a_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.store", {})
    group = open_group("memory://", "w-")
    group["x"] = [1]
    group["s/y"] = [2]
    assert (group.url, group["s"].url, group["x"].url) == ("memory://", "memory://s", "memory://x.b2nd")
    for url in ("memory://s/y", "memory://s/y.b2nd"):
        assert b2array.open(url)[:].tolist() == [2]
    assert list(open_group(group.url)) == list(b2array.open("memory://")) == ["s", "x"]
    with pytest.raises(FileExistsError, match=r"memory:// exists; mode='w' replaces a group"):
        open_group("memory://", "w-")
    assert list(tmp_path.iterdir()) == []


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


def test_attributes_are_opened_once_for_all(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.attrs.update({f"name{n}": n for n in range(30)})
    opened = []
    kind = type(group_at(group.url, {}))
    original = kind.open
    monkeypatch.setattr(kind, "open", lambda *args, **how: opened.append(args) or original(*args, **how))
    assert dict(open_group(group.url).attrs) == {f"name{n}": n for n in range(30)}
    assert len(opened) == 1


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
    "name", ["", "//x", "a//b", "a/", "../x", "a/../x", ".", "a\0b", "a\\b", "a\nb", "x.b2nd", "a.b2f/x", "__vlmeta__"]
)
def test_names_that_cannot_be_are_refused(group: Group, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a member"):
        group.create(name, 3)
    with pytest.raises(KeyError):
        group[name]
    assert name not in group
    assert list(group) == []


@pytest.mark.parametrize("name", ["a::b", "a::b/x", "x?versionId=1", "x?", "a?b/x", "#", "a#b", "g#/x"])
def test_names_that_change_the_meaning_of_urls_are_refused(group: Group, name: str) -> None:
    for make in (lambda home: home.create(name, 3), lambda home: home.require_group(name)):
        with pytest.raises(ValueError, match=r"cannot name a member: .* in URLs"):
            make(group)
        with pytest.raises(ValueError, match=r"cannot name a member: .* in URLs"), group.transaction() as changes:
            make(changes)
    assert list(group) == []


@pytest.mark.parametrize(
    "name",
    [
        *[".b2group/x", "g/embed.b2e", "x.b2nd.b2lock/y", "x.b2nd.0123456789abcdef.b2tmp/y", ".b2retired/x"],
        *["x.0123456789abcdef.b2write/y", "x.b2z.b2work/y", "0123456789abcdef.b2kept"],
    ],
)
def test_names_of_the_files_of_a_group_are_refused(group: Group, url: str, name: str) -> None:
    group["x"] = [1]
    for make in (lambda home: home.create(name, 3), lambda home: home.require_group(name)):
        with pytest.raises(ValueError, match=r"cannot name a member: .* names a file"):
            make(group)
        with pytest.raises(ValueError, match=r"cannot name a member: .* names a file"), group.transaction() as changes:
            make(changes)
    group["x"] = [2]
    assert [*open_group(url)] == ["x"]


@pytest.mark.parametrize(
    "name", ["a%b", "a%23b", "50%", "g%2F/x", "a b", "a&b=c", "a;b", "a+b", "[a]", "{a}", "~a", "$a"]
)
def test_members_open_by_every_url_that_names_them(group: Group, url: str, name: str) -> None:
    group[name] = [1, 2]
    for place in (f"{url}/{name}", f"{url}#{name}", group[name].url, f"{url}/{name}.b2nd"):
        assert b2array.open(place)[...].tolist() == [1, 2]


def test_local_members_whose_names_mean_something_in_urls_are_still_there(tmp_path: Path) -> None:
    group = open_group(tmp_path / "old.b2d", "w")
    with pytest.raises(ValueError, match="'::' has a meaning of its own"):
        b2array.asarray([1, 2], url=tmp_path / "old.b2d" / "a::b.b2nd")

    def put(name: str) -> None:
        b2array.save(tmp_path / "alone.b2nd", [1, 2])
        (tmp_path / "alone.b2nd").rename(tmp_path / "old.b2d" / f"{name}.b2nd")

    put("a::b")
    group.refresh()
    assert (list(group), group["a::b"][:].tolist()) == (["a::b"], [1, 2])
    group["a::b"] = [3]
    assert group["a::b"][:].tolist() == [3]
    group.move("a::b", "c")
    for name in ("a#b", "a?b"):
        put(name)
        group.refresh()
        assert group[name][:].tolist() == [1, 2]
        del group[name]
    assert list(group) == ["c"]


def test_an_array_is_no_group_and_a_group_no_array(group: Group) -> None:
    group.create("a/x", 2)
    with pytest.raises(FileExistsError, match="there is a group 'a'"):
        group.create("a", 2)
    with pytest.raises(ValueError, match="'a/x' is an array"):
        group.create("a/x/y", 2)


def test_groups_and_super_chunks_are_not_stored_as_the_arrays_that_numpy_makes_of_them(group: Group) -> None:
    group["in/x"] = [1]
    chunks = b2array.create_schunk(chunksize=4)
    chunks.append_data(b"ab\0\0")
    for data in (group["in"], chunks):
        for store in (lambda: group.__setitem__("new", data), lambda: b2array.asarray(data), lambda: np.asarray(data)):  # noqa: B023
            with pytest.raises(TypeError, match=r"is a group, not an array|is a super-chunk"):
                store()
    assert list(group) == ["in"]


def test_errors_advise_only_what_can_be_done(group: Group) -> None:
    group["x"] = group["y"] = [1]
    with pytest.raises(FileExistsError, match="'x'; overwrite=True replaces it"):
        group.create("x", 3)
    for change in (lambda: group.copy("y", group, "x"), lambda: group.move("y", "x"), lambda: group.create_group("x")):
        with pytest.raises(FileExistsError, match=r"there is a member 'x'$"):
            change()


def test_nothing_is_put_below_an_array_or_over_a_group(group: Group, url: str, tmp_path: Path) -> None:
    group["x"] = group["g/y"] = [1, 2]
    for name, error, found in (("x/y", ValueError, "'x' is an array"), ("g", FileExistsError, "is a group 'g'")):
        other = open_group(tmp_path / "other.b2d", "w")
        other[name] = [3]
        with pytest.raises(error, match=found):
            other.copy("/", group)
    with pytest.raises(ValueError, match="'x' is an array"):
        Group(group._home, "x/", "r+").attrs["n"] = 1
    assert [name for name, _ in open_group(url).walk()] == ["g", "g/y", "x"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("layout", ["auto", "contiguous", "sparse"])
def test_an_array_does_not_replace_a_group(group: Group, url: str, layout: Any, overwrite: bool) -> None:
    group["x"] = [1]
    with pytest.raises(FileExistsError):
        b2array.zeros(3, url=url, layout=layout, overwrite=overwrite)
    assert list(b2array.open(url)) == ["x"]


@pytest.mark.parametrize("mode", ["w", "w-", "x", "a"])
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_group_does_not_replace_an_array(url: str, tmp_path: Path, layout: Any, mode: Any) -> None:
    b2array.asarray([1, 2], url=url, layout=layout)
    with pytest.raises((FileExistsError, FormatError)):
        open_group(url, mode)
    np.save(tmp_path / "x.npy", [3])
    for target in (url, f"{url}#x"):
        with pytest.raises(FileExistsError):
            b2array.convert(tmp_path / "x.npy", target)
    assert b2array.open(url)[:].tolist() == [1, 2]
    with pytest.raises((FileNotFoundError, FormatError)):
        open_group(url)


@pytest.mark.parametrize(("one", "two"), [("q", "q/r"), ("q/r", "q"), ("q/r", "q/r/s")])
def test_of_two_writers_who_make_an_array_and_a_group_of_one_name_the_later_is_told(
    group: Group, url: str, one: str, two: str
) -> None:
    later = group.transaction()
    later.__enter__()[two] = [2]
    with open_group(url, "r+").transaction() as faster:
        faster[one] = [1]
    with pytest.raises(ConflictError, match="another writer was faster"):
        later.__exit__(None, None, None)
    assert [name for name, _ in open_group(url).walk()][-1:] == [one]
    assert open_group(url)[one][:].tolist() == [1]


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


def _append(changes: Group, n: int) -> None:
    for name in ("time", "level"):
        held = changes[name]
        before = held.shape[0]
        held.resize(before + n)
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
    if "://" in url:  # a handle opens the revisions that it has listed
        assert _grown(before) == (3, 3)
    else:
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
@pytest.mark.parametrize("url", ["local"], indirect=True)
def test_a_commit_that_is_interrupted_shows_all_or_nothing(
    growing: Group, url: str, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.attrs["n"] = 3
    original = publication.publish_step
    calls = itertools.count()

    def publish(*args: Any, **options: Any) -> None:
        if next(calls) >= fails_at:
            raise OSError("killed")
        original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(publication, "publish_step", publish)
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


@pytest.mark.filterwarnings("ignore:External leaf")  # python-blosc2 looks at what a killed writer has left
@pytest.mark.parametrize("at", ["on_disk.write_manifest", "on_disk.publish_pending", "publication.publish_step"])
def test_a_killed_writer_leaves_all_or_nothing(tmp_path: Path, at: str) -> None:
    url = str(tmp_path / "group.b2d")
    group = open_group(url, "w")
    for name in ("level", "time"):
        group.create(name, data=np.zeros(10), chunks=(4,), blocks=(2,))
    script = f"""
import os
from b2array import open_group
from b2array.commit import on_disk, publication
group = open_group({url!r}, "r+")
calls = 0
original = {at}
def killed(*args, **options):
    global calls
    calls += armed
    if calls > {int(at == "publication.publish_step")}:
        os._exit(9)
    return original(*args, **options)
armed = 0
{at} = killed
with group.transaction() as changes:
    changes["time"][2:7] = 1
    changes["level"][2:7] = 1
    changes.create("new", data=[1])
    armed = 1
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert done.returncode == 9
    committed = at != "on_disk.write_manifest"
    for mode in ("r", "r+"):
        found = open_group(url, mode)
        assert [found[name][...].sum() for name in ("level", "time")] == [5 * committed] * 2
        assert ("new" in found) == committed
    with group.transaction() as changes:
        changes["time"][0] = changes["level"][0] = 1
    found = open_group(url)
    assert [found[name][...].sum() for name in ("level", "time")] == [1 + 5 * committed] * 2
    assert found["time"][...].tolist() == blosc2.TreeStore(url, mode="r")["/time"][:].tolist()
    if not committed:
        group.create("new", data=[2])
        assert open_group(url)["new"][...].tolist() == [2]


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


@pytest.mark.costly
def test_readers_never_see_a_member_without_the_others(growing: Group, url: str) -> None:
    done = threading.Event()
    seen: set[tuple[int, int]] = set()

    def read() -> None:
        while not done.is_set():
            found = open_group(url)
            with suppress(ConflictError):
                seen.add((found["time"].shape[0], found["level"].shape[0]))

    with ThreadPoolExecutor(2) as readers:
        reading = [readers.submit(read) for _ in range(2)]
        try:
            for n in range(12):
                with growing.transaction() as changes:
                    _append(changes, 1 + n % 3)
        finally:
            done.set()
    assert [each.result() for each in reading] == [None, None]
    assert seen
    assert all(time == level for time, level in seen)
    assert _grown(open_group(url)) == (27, 27)


def test_threads_share_a_transaction(growing: Group, url: str) -> None:
    with growing.transaction() as changes, ThreadPoolExecutor(4) as threads:
        barrier = threading.Barrier(4)

        def write(n: int) -> None:
            barrier.wait()
            changes["time" if n % 2 else "level"][n // 2] = 10 + n

        assert list(threads.map(write, range(4))) == [None] * 4
    found = open_group(url)
    assert found["level"][...].tolist() == [10, 12, 2]
    assert found["time"][...].tolist() == [11, 13, 2]


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


def _contents(group: Group) -> dict[str, object]:
    inner = {f"{name}/{key}": value for name, each in group.groups().items() for key, value in _contents(each).items()}
    return {**{name: each[...].tolist() for name, each in group.arrays().items()}, **dict(group.attrs), **inner}


def _filled(url: str) -> dict[str, object]:
    group = open_group(url, "w")
    group["a"], group["b/x"], group["b/y"] = [1, 2], [3], [4]
    group.attrs["unit"], group["b"].attrs["axis"] = "m", "z"
    return {"a": [1, 2], "unit": "m", "b/x": [3], "b/y": [4], "b/axis": "z"}


def test_a_transaction_can_begin_anew(url: str) -> None:
    before = _filled(url)
    group = open_group(url, "r+")
    with group.transaction(replace=True) as changes:
        assert _contents(changes) == {}
        changes.create("a", 3, "i8", fill_value=7)
        changes["a"][1] = 8
        changes.attrs["place"] = "roof"
        changes["c/x"] = [5.5]
        assert _contents(changes) == {"a": [7, 8, 7], "place": "roof", "c/x": [5.5]}
        assert _contents(open_group(url)) == before
    assert _contents(open_group(url)) == _contents(group) == {"a": [7, 8, 7], "place": "roof", "c/x": [5.5]}
    changes = open_group(url, "r+")
    changes["a"][0] = 1
    assert open_group(url)["a"][...].tolist() == [1, 8, 7]
    assert b2array.verify(group["a"].url, deep=True).problems == ()


def test_a_transaction_that_begins_anew_and_raises_leaves_everything(url: str) -> None:
    before = _filled(url)
    group = open_group(url, "r+")

    def change() -> None:
        with group.transaction(replace=True) as changes:
            changes["a"], changes["d"] = [9, 9], [1]
            changes.attrs["unit"] = "km"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change()
    assert _contents(group) == _contents(open_group(url)) == before


def test_a_group_in_a_group_can_begin_anew(url: str) -> None:
    _filled(url)
    with open_group(url, "r+")["b"].transaction(replace=True) as changes:
        changes["y"] = [0.5]
    assert _contents(open_group(url)) == {"a": [1, 2], "unit": "m", "b/y": [0.5]}


def test_a_transaction_can_delete_and_make_the_same_member(growing: Group, url: str) -> None:
    old = open_group(url)["level"]
    with growing.transaction() as changes:
        del changes["time"], changes["level"]
        changes["level"] = np.arange(5.0)
        del changes["level"]
        changes["level"] = np.arange(6.0)
        changes["level"].attrs["unit"] = "m"
    assert _contents(open_group(url)) == {"level": [0, 1, 2, 3, 4, 5]}
    assert open_group(url)["level"].attrs == {"unit": "m"}
    old.refresh()
    assert old.shape == (6,)


def _call_after_writes_of_the_manifest(verb: Callable[[], None], url: str, patched: pytest.MonkeyPatch) -> None:
    """Call `verb` after the store of a group has written the manifest, before anybody learns of it."""
    kind = type(open_store(url))
    for method in ("create", "replace"):
        original = getattr(kind, method)

        def write(self: Store, name: str, *args: Any, original: Any = original, **options: Any) -> Stamp:
            stamp: Stamp = original(self, name, *args, **options)
            if name == MANIFEST:
                verb()
            return stamp

        patched.setattr(kind, method, write)


def test_an_answer_to_a_commit_that_is_lost_is_no_failure(
    growing: Group, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> None:
        raise TimeoutError("no answer")

    with monkeypatch.context() as patched:
        _call_after_writes_of_the_manifest(lose, url, patched)
        with growing.transaction() as changes:
            _append(changes, 1)
    assert _grown(open_group(url)) == (4, 4)
    assert _grown(growing) == (4, 4)


@pytest.mark.costly
def test_a_commit_whose_outcome_is_not_known_removes_nothing(
    growing: Group, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: Any, **__: Any) -> None:
        raise ConnectionError("the network is down")

    def lose() -> None:
        monkeypatch.setattr(manifest_writes, "read_manifest", cut_off)
        raise TimeoutError("no answer")

    with monkeypatch.context() as patched:
        _call_after_writes_of_the_manifest(lose, url, patched)
        with pytest.raises(TimeoutError), growing.transaction() as changes:
            _append(changes, 1)
    monkeypatch.undo()
    assert _grown(open_group(url)) == (4, 4)
    assert _grown(open_group(url, "r+")) == (4, 4)


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


def _stock_tree(url: str, mode: str = "w", **options: object) -> None:
    with blosc2.TreeStore(url, mode=mode, **options) as tree:
        tree["/a/b/x"] = np.arange(1000.0).reshape(20, 50)
        tree["/small"] = np.arange(3)
        tree["/s"] = blosc2.SChunk(chunksize=8, data=b"12345678")
        tree.vlmeta["title"] = "outer"
        tree["/a"].vlmeta["n"] = 5


def _check_stock(group: Group) -> None:
    assert list(group) == ["a", "s", "small"]
    assert np.array_equal(group["a/b/x"][...], np.arange(1000.0).reshape(20, 50))
    assert np.array_equal(group["a/b/x"][3:5, 7], np.arange(1000.0).reshape(20, 50)[3:5, 7])
    assert group["small"][...].tolist() == [0, 1, 2]
    assert group["s"].get_slice() == b"12345678"
    assert dict(group.attrs) == {"title": "outer"}
    assert dict(group["a"].attrs) == {"n": 5}


@pytest.mark.parametrize("suffix", [".b2d", ".b2z"])
@pytest.mark.parametrize("threshold", [0, 100, None])
def test_stores_of_python_blosc2_are_read_with_and_without_embedded_members(
    tmp_path: Path, suffix: str, threshold: int | None
) -> None:
    url = str(tmp_path / f"stock{suffix}")
    _stock_tree(url, threshold=threshold)
    group = open_group(url)
    _check_stock(group)
    _check_stock(pickle.loads(pickle.dumps(group)))
    array = pickle.loads(pickle.dumps(group["a/b/x"]))
    assert array[1, 1] == 51


def test_embedded_members_can_be_removed_and_replaced_but_not_changed(tmp_path: Path) -> None:
    url = str(tmp_path / "stock.b2d")
    _stock_tree(url, threshold=None)
    group = open_group(url, "r+")
    with pytest.raises(ReadOnlyError):
        group["small"][0] = 1
    del group["a/b"]
    group["small"] = [7, 8]
    with group.transaction() as changes:
        assert changes["small"][...].tolist() == [7, 8]
        del changes["s"]
    for found in (group, open_group(url)):
        assert list(found) == ["a", "small"]
        assert found["small"][...].tolist() == [7, 8]
    assert sorted(blosc2.TreeStore(url, mode="r").keys()) == ["/a", "/small"]


def test_embedded_attributes_can_be_changed(tmp_path: Path) -> None:
    url = str(tmp_path / "stock.b2d")
    _stock_tree(url, threshold=None)
    group = open_group(url, "r+")
    group.attrs["more"] = 1
    del group["a"].attrs["n"]
    with pytest.raises(KeyError):
        del group.attrs["none"]
    for found in (group, open_group(url)):
        assert dict(found.attrs) == {"title": "outer", "more": 1}
        assert dict(found["a"].attrs) == {}
    theirs = blosc2.TreeStore(url, mode="r").vlmeta
    assert (theirs["title"], theirs["more"]) == ("outer", 1)


def test_archives_are_read_by_range_without_unpacking(tmp_path: Path, http: RangeServer) -> None:
    path = tmp_path / "stock.b2z"
    with blosc2.TreeStore(str(path), mode="w") as tree:
        tree["/noise"] = np.random.default_rng(0).integers(0, 255, 500_000, dtype="u1")
        tree["/a/x"] = np.arange(10)
        tree.vlmeta["v"] = 1
    http.objects["x/stock.b2z"] = path.read_bytes()
    group = open_group(http.url_of("x/stock.b2z"))
    assert list(group) == ["a", "noise"]
    assert group["a/x"][...].tolist() == list(range(10))
    assert group.attrs["v"] == 1
    assert 0 < len(http.requests) < 25
    assert http.nbytes_asked < 400_000
    with pytest.raises(ReadOnlyError, match="archive"):
        open_group(http.url_of("x/stock.b2z"), "r+")


def test_threads_that_share_an_archive_see_all_members_or_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = open_group(tmp_path / "a.b2d", "w")
    group["x"] = [1]
    b2array.convert(group.url, str(tmp_path / "a.b2z"))
    shared = open_group(tmp_path / "a.b2z")
    found: list[list[str]] = []

    def members(held: Any) -> dict[str, str]:
        monkeypatch.undo()
        other = threading.Thread(target=lambda: found.append(list(shared)))
        other.start()
        other.join(30)
        return embedded.members(held)

    monkeypatch.setattr(embedded, "members", members)
    assert list(shared) == ["x"]
    assert found == [["x"]]


def test_an_archive_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    path = str(tmp_path / "stock.b2z")
    _stock_tree(path)
    group = open_group(path)
    array = group["small"]
    with blosc2.TreeStore(path, mode="a") as tree:
        tree["/more"] = np.ones(5)
    with pytest.raises(ConflictError, match="refresh"):
        group["a/b/x"]
    assert array[...].tolist() == [0, 1, 2]
    group.refresh()
    assert list(group) == ["a", "more", "s", "small"]


@pytest.mark.parametrize("released", [False, True])
def test_an_archive_with_other_bytes_in_the_place_of_a_member_was_replaced_not_damaged(
    tmp_path: Path, released: bool
) -> None:
    path = tmp_path / "g.b2z"

    def write(rows: int) -> None:
        with open_group(path, "w") as group:
            group["a"], group["b"] = np.random.default_rng(0).random((rows, 100)), np.zeros(3)
            group.attrs["rows"] = rows

    write(10)
    group = open_group(path)
    assert group["b"][0] == 0
    write(500)
    if released:  # the system may allow few open files
        group._home.store.release()
    for ask in (lambda: group["b"], lambda: group.attrs["rows"]):
        with pytest.raises(ConflictError, match="changed since it was opened"):
            ask()
    group.refresh()
    assert group.attrs["rows"] == 500


def test_a_directory_that_is_no_group_is_refused_without_looking_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object) -> None:
        raise AssertionError(path)

    (tmp_path / "a/b").mkdir(parents=True)
    b2array.asarray([1], url=tmp_path / "a/b/x.b2nd").close()
    with monkeypatch.context() as patch:
        patch.setattr("os.walk", refuse)
        with pytest.raises(FileNotFoundError, match="there is no group"):
            open_group(tmp_path)
    assert [*open_group(tmp_path / "a/b")] == ["x"]
    b2array.asarray([1], url=tmp_path / "a/y.b2nd", layout="sparse").close()
    assert [*open_group(tmp_path / "a")] == ["b", "y"]
    open_group(tmp_path / "marked", "w").create("deep/er/x", data=[1])
    assert [*open_group(tmp_path / "marked/deep")] == ["er"]


def test_a_member_is_made_changed_moved_and_deleted_without_a_list_of_all_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, walk = str(tmp_path / "large.b2d"), os.walk

    def walk_below(top: str, *args: object, **options: object) -> object:
        assert top != root, "the whole group was listed"
        return walk(top, *args, **options)

    group = open_group(root, "w")
    for name in ("a", "b", "in/c"):
        group[name] = [1, 2]
    assert [*open_group(root)] == ["a", "b", "in"]
    monkeypatch.setattr("os.walk", walk_below)
    group["a"][0] = 7
    group["new"] = group["a"]
    group.move("a", "in/moved")
    group.copy("b", group, "copied")
    group.move("in", "out")
    del group["new"]
    assert "a" not in group
    assert group["out/moved"][:].tolist() == [7, 2]
    monkeypatch.undo()
    assert [name for name, _ in open_group(root).walk()] == ["b", "copied", "out", "out/c", "out/moved"]


def _zip(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("name", ["../x.b2nd", "/x.b2nd", "a//x.b2nd", "a/./x.b2nd", "a/../../x.b2nd", "C:\\x.b2nd"])
def test_an_archive_with_names_outside_of_it_is_refused(tmp_path: Path, name: str) -> None:
    path = _zip(tmp_path / "evil.b2z", {name: b2array.asarray([1]).to_bytes()})
    with pytest.raises(FormatError, match="expected relative paths"):
        list(open_group(path))


def test_a_name_with_nul_in_an_archive_is_refused(tmp_path: Path) -> None:
    path = _zip(tmp_path / "evil.b2z", {"xxxx.b2nd": b2array.asarray([1]).to_bytes()})
    path.write_bytes(path.read_bytes().replace(b"xxxx.b2nd", b"xx\0x.b2nd"))
    with pytest.raises(FormatError):
        list(open_group(path))


def test_a_compressed_member_says_so_and_leaves_the_others(tmp_path: Path) -> None:
    path = _zip(tmp_path / "packed.b2z", {"x.b2nd": b2array.zeros(1000).to_bytes()}, zipfile.ZIP_DEFLATED)
    group = open_group(path)
    assert list(group) == ["x"]
    with pytest.raises(UnsupportedError, match="compressed"):
        group["x"]


def test_a_member_that_claims_more_than_it_has_is_refused(tmp_path: Path) -> None:
    content = b2array.asarray(np.arange(1000)).to_bytes()
    path = _zip(tmp_path / "cut.b2z", {"x.b2nd": content[:-9], "y.b2nd": content})
    group = open_group(path)
    with pytest.raises(FormatError):
        group["x"]
    assert group["y"].shape == (1000,)


def test_a_file_twice_in_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.b2z"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.b2nd", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.b2nd", b"2")
    with pytest.raises(FormatError, match="once"):
        list(open_group(path))


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_a_damaged_archive_is_read_or_refused(archive: bytes, data: st.DataObject) -> None:
    damaged = bytearray(archive)
    for _ in range(data.draw(st.integers(1, 4))):
        # Mostly in the directory, which is at the end.
        at = data.draw(st.integers(max(4, len(damaged) - 500), len(damaged) - 1) | st.integers(4, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(8, len(damaged)) | st.just(len(damaged)))
    with fsspec.filesystem("memory").open("/test-damaged.b2z", "wb") as file:
        file.write(damaged[:stop])
    with suppress(FormatError, UnsupportedError, LimitError):
        group = open_group("memory://test-damaged.b2z")
        for name in ("a/x", "y", "small"):
            with suppress(FormatError, UnsupportedError, LimitError, KeyError):
                held = group[name]
                held[...] if isinstance(held, NDArray) else held.get_slice(0, 10)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("archive") / "stock.b2z"
    with blosc2.TreeStore(str(path), mode="w", threshold=100) as tree:
        tree["/a/x"] = np.arange(100)
        tree["/y"] = np.ones(200)
        tree["/small"] = np.arange(3)
    return path.read_bytes()


@given(st.binary(max_size=60))
def test_any_bytes_are_a_list_of_members_or_refused(content: bytes) -> None:
    with pytest.raises(FormatError):
        Manifest.unpack(content)


_TOKEN = "0123456789abcdef"
_ROW = ["a.b2nd", bytes(16), True, 3, 7]
_listed = Manifest(
    {"a/b": Row("a/b.b2nd", "0f" * 16, number=3, next=7), "c": Row("c.b2f", sparse=False), "d": Row("embed.b2e/d")},
    "ab",
    3,
    {
        "a/b.b2nd": PendingStep("patch", "ab", "cd", b"header"),
        "c.b2nd": PendingStep("frame", "", "cd", _TOKEN),
        "embed.b2e": PendingStep("patch", "ab", "cd", b"header"),
    },
    gone={"e.b2nd": 5},
)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("rows", {"../x": ["../x.b2nd", *_ROW[1:]]}),
        ("rows", {"a": ["/a.b2nd", *_ROW[1:]]}),
        ("rows", {"a": ["b.b2nd", *_ROW[1:]]}),
        ("rows", {"embed.b2e/x": ["embed.b2e/x.b2nd", *_ROW[1:]]}),
        ("rows", {"embed.b2e/x": ["embed.b2e/embed.b2e/x", *_ROW[1:]]}),
        ("rows", {".b2retired/x": [".b2retired/x.b2nd", *_ROW[1:]]}),
        ("rows", {"x.b2lock/y": ["x.b2lock/y.b2nd", *_ROW[1:]]}),
        ("rows", {"a": ["a.txt", *_ROW[1:]]}),
        ("rows", {"a": ["a.b2nd", bytes(15), *_ROW[2:]]}),
        ("rows", {"a": ["a.b2nd", "0" * 32, *_ROW[2:]]}),
        ("rows", {"a": [*_ROW[:2], 1, *_ROW[3:]]}),
        ("rows", {"a": [*_ROW[:3], -1, 7]}),
        ("rows", {"a": [*_ROW[:4], 7.5]}),
        ("rows", {"a": _ROW[:4]}),
        ("rows", {"a": "a.b2nd"}),
        ("rows", {1: _ROW}),
        ("rows", []),
        ("gone", {"../x.b2nd": 1}),
        ("gone", {"x.b2nd": -1}),
        ("gone", {"x.b2nd": "1"}),
        ("gone", None),
        ("number", "3"),
        ("identity", 3),
        ("pending", {"x.b2nd": 3}),
        ("pending", {"../x.b2nd": ["delete", "", "", _TOKEN]}),
        ("pending", None),
        ("pending", {"x.b2nd": ["frame", "", "", "../../../../y"]}),
        ("pending", {"x.b2nd": ["patch", "", "", _TOKEN]}),
        ("pending", {"x.b2nd": ["other", "", "", _TOKEN]}),
        ("pending", {"embed.b2e/../x": ["delete", "", "", _TOKEN]}),
        ("pending", {"x.b2nd": ["frame", 1, "", _TOKEN]}),
        ("pending", {"x.b2nd": ["frame", "", 3, _TOKEN]}),
        ("version", 0),
        ("version", None),
        ("format", "x"),
    ],
)
def test_a_list_of_members_is_checked(entry: str, value: object) -> None:
    content = msgpack.unpackb(_listed.pack()[:-16])
    assert Manifest.unpack(seal(msgpack.packb(content))) == _listed
    with pytest.raises(FormatError) as caught:
        Manifest.unpack(seal(msgpack.packb({**content, entry: value})))
    assert not isinstance(caught.value, ChecksumError)
    # A later version may end in another way.
    for ending in (b"", bytes(16), b"other"):
        with pytest.raises(UnsupportedError, match="found the later version 2"):
            Manifest.unpack(msgpack.packb({**content, "version": 2}) + ending)
    del content["rows"]
    with pytest.raises(FormatError):
        Manifest.unpack(seal(msgpack.packb(content)))


@pytest.mark.parametrize("listed", [True, False])
def test_each_damage_of_a_manifest_is_noticed(listed: bool) -> None:
    manifest = _listed if listed else Manifest(identity="0" * 16, number=3)
    content = manifest.pack()
    assert Manifest.unpack(content) == Manifest.unpack(memoryview(content)) == manifest
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            with pytest.raises((FormatError, UnsupportedError)):
                Manifest.unpack(bytes(damaged))
        with pytest.raises(FormatError):
            Manifest.unpack(content[:place])
    with pytest.raises(ChecksumError):
        Manifest.unpack(content + b"\0")


def test_a_damaged_manifest_is_never_written_back(url: str) -> None:
    group = open_group(url, "w")
    with group.transaction() as changes:
        for name in ("x", "y"):
            changes.create(name, data=np.full((4, 2), 3.0), chunks=(2, 2))
    store = open_store(url)
    content = b"".join(store.pieces(MANIFEST))
    place = content.rindex(b"x.b2nd") if b"x.b2nd" in content else len(content) // 2
    damaged = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    store.replace(MANIFEST, damaged)

    def change() -> None:
        with open_group(url, "r+").transaction() as changes:
            changes["y"][0] = 7

    with pytest.raises(FormatError, match=r"\.b2group"):
        change()
    assert b"".join(store.pieces(MANIFEST)) == damaged
    store.replace(MANIFEST, content)
    change()
    assert (open_group(url)["x"][...] == 3).all()
    assert (open_group(url)["y"][0] == 7).all()


def test_a_damaged_list_of_members_is_reported(group: Group, url: str) -> None:
    group.create("x", data=[1])
    b2array.store.open.open_store(url).replace(".b2group", b"rubbish")
    with pytest.raises(FormatError, match=r"\.b2group: expected a group's manifest"):
        list(open_group(url))


def test_a_member_that_is_missing_is_reported(group: Group, url: str) -> None:
    group.create("x", data=[1])
    group.create("y", data=[2])
    fs, root = fsspec.url_to_fs(url)
    fs.rm(f"{root}/x.b2nd", recursive=True)
    if "://" in url:
        with pytest.raises(FormatError, match=r"expected the member x\.b2nd, found nothing"):
            group["x"]
    else:  # the files are the list of members: a writer may have deleted it
        with pytest.raises(ConflictError, match="refresh"):
            group["x"]
    assert group["y"][0] == 2


@pytest.mark.parametrize(
    "notes",
    [
        3,
        {"embed_map": 3},
        {"embed_map": {"../x": {"offset": 0, "length": 1}}},
        {"embed_map": {"/x": {"offset": 0, "length": 10**9}}},
        {"embed_map": {"/x": {"offset": -1, "length": 1}}},
        {"embed_map": {"/x": {"offset": 0}}},
        {"embed_map": {"/x": None}},
        {"embed_map": {"/": {}}},
    ],
)
def test_a_damaged_map_of_embedded_members_is_reported(tmp_path: Path, notes: object) -> None:
    url = str(tmp_path / "group.b2d")
    open_group(url, "w")
    b2array.open_schunk(f"{url}/embed.b2e", "r+").vlmeta["estore_metadata"] = notes
    with pytest.raises(FormatError, match=r"embed\.b2e: expected"):
        list(open_group(url))


def test_references_to_servers_are_refused(tmp_path: Path) -> None:
    url = str(tmp_path / "group.b2d")
    open_group(url, "w")
    notes = {"embed_map": {"/x": {"urlbase": "https://example.org", "path": "x"}}, "current_offset": 0}
    b2array.open_schunk(f"{url}/embed.b2e", "r+").vlmeta["estore_metadata"] = notes
    group = open_group(url)
    assert list(group) == ["x"]
    with pytest.raises(UnsupportedError, match="reference"):
        group["x"]


def test_what_is_no_group_is_refused(tmp_path: Path) -> None:
    b2array.asarray([1], url=tmp_path / "x.b2nd")
    with pytest.raises(FormatError, match="found a frame"):
        open_group(tmp_path / "x.b2nd")
    (tmp_path / "text").write_text("text")
    for mode in ("r", "w"):
        with pytest.raises(FormatError, match="expected a directory"):
            open_group(tmp_path / "text", mode)  # type: ignore[arg-type]
    with pytest.raises(FileExistsError, match="not a group"):
        open_group(tmp_path, "w")
    assert (tmp_path / "text").read_text() == "text"


def test_a_directory_of_arrays_is_a_group_and_becomes_no_other(tmp_path: Path) -> None:
    b2array.asarray([1], url=tmp_path / "x.b2nd")
    b2array.asarray([2], url=tmp_path / "a" / "y.b2nd", layout="sparse")
    assert open_group(tmp_path).tree() == "/\n├── a\n│   └── y\n└── x"
    assert open_group(tmp_path)["a/y"][0] == 2
    group = open_group(tmp_path, "r+")
    with group.transaction() as changes:
        changes["a/y"][0] = 3
        changes["x"][0] = 4
    assert [open_group(tmp_path)[name][0] for name in ("a/y", "x")] == [3, 4]


def test_a_tree_of_many_members_opens_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(300):
        path = tmp_path / f"g{n % 7}" / f"x{n}.b2nd"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"not even a frame")
    group = open_group(tmp_path)
    monkeypatch.setattr(b2array.catalog.owners, "load", None)
    assert len(group.tree().splitlines()) == 1 + 7 + 300
    assert len(group) == 7
    assert len(group["g3"]) == 43
    assert repr(group) == f"<b2array.Group {tmp_path}: 7 members>"
    assert "x299" in group._repr_html_()


def test_groups_on_s3_are_written_and_read_without_listing(
    bucket: str, s3_options: dict[str, object], s3_calls: list[str]
) -> None:
    url = f"s3://{bucket}/data/group.b2d"
    group = open_group(url, "x", storage_options=s3_options)
    s3_calls.clear()
    for name in ("time", "level"):
        group.create(name, data=np.arange(3), chunks=(4,), blocks=(2,))
    group.attrs["n"] = 3
    before = open_group(url, storage_options=s3_options)
    assert _grown(before) == (3, 3)
    with group.transaction() as changes:
        _append(changes, 5)
        changes.attrs["n"] = 8
        changes.create("new/x", data=[1])
        assert list(open_group(url, storage_options=s3_options)) == ["level", "time"]
    again = pickle.loads(pickle.dumps(open_group(url, storage_options=s3_options)))
    assert _grown(again) == (8, 8)
    assert again.attrs["n"] == 8
    assert again.tree() == "/\n├── level\n├── new\n│   └── x\n└── time"
    assert _grown(before) == (3, 3)
    other = open_group(url, "r+", storage_options=s3_options)
    with other.transaction() as changes:
        changes["time"][0] = 5
        group.create("y", data=[1])
    assert list(open_group(url, storage_options=s3_options)) == ["level", "new", "time", "y"]
    assert "shared_secret" not in repr(again)
    assert not [call for call in s3_calls if call.startswith("list")]


def test_groups_move_between_directories_and_object_stores(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    group = open_group(tmp_path / "first.b2d", "w")
    for name in ("time", "level"):
        group.create(name, data=np.arange(3), chunks=(4,), blocks=(2,))
    with group.transaction() as changes:
        _append(changes, 1)
    url = f"memory://test-moved-{next(_serials)}.b2d"
    memory.put(str(tmp_path / "first.b2d"), url, recursive=True)
    group = open_group(url, "r+")
    assert _grown(group) == (4, 4)
    group.create("x", data=[1])
    with group.transaction() as changes:
        _append(changes, 1)
    assert list(open_group(url)) == ["level", "time", "x"]
    memory.get(url, str(tmp_path / "second.b2d"), recursive=True)
    group = open_group(tmp_path / "second.b2d", "r+")
    assert list(group) == ["level", "time", "x"]
    group.create("y", data=[1])
    with group.transaction() as changes:
        _append(changes, 1)
    url = f"memory://test-moved-{next(_serials)}.b2d"
    memory.put(str(tmp_path / "second.b2d"), url, recursive=True)
    assert list(open_group(url)) == ["level", "time", "x", "y"]
    assert _grown(open_group(url)) == (6, 6)


def test_writers_of_the_list_of_members_do_not_lose_each_others_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://test-writers-{next(_serials)}.b2d"
    group = open_group(url, "w")
    group.create("x", data=[1])
    original = in_bucket.replace_manifest
    names = iter(["other1", "other2", "other3"])

    def write(*args: object, **options: object) -> object:
        for name in names:
            open_group(url, "r+").create(name, data=[1])
            break
        return original(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(in_bucket, "replace_manifest", write)
    group.create("y", data=[1])
    with group.transaction() as changes:
        changes["x"][0] = 2
        changes.create("z", data=[1])
    assert list(open_group(url)) == ["other1", "other2", "other3", "x", "y", "z"]
    assert open_group(url)["x"][0] == 2


def test_a_directory_copied_to_an_object_store_is_read_and_continued(tmp_path: Path) -> None:
    local = str(tmp_path / "stock.b2d")
    _stock_tree(local, threshold=100)
    url = f"memory://test-copied-{next(_serials)}.b2d"
    fsspec.filesystem("memory").put(local, url, recursive=True)
    group = open_group(url, "r+")
    _check_stock(group)
    group.create("new", data=[1])
    del group["new"]
    _check_stock(group)
    _check_stock(open_group(url))


def test_snapshots_that_were_copied_to_an_object_store_are_counted_and_verified_like_the_originals(
    tmp_path: Path,
) -> None:
    """The frames that were copied keep the states of the snapshots, as on the disk, and no revision has them."""
    local = str(tmp_path / "first.b2d")
    group = open_group(local, "w")
    group.create("x", data=np.random.default_rng(0).random(4000), chunks=(1000,))
    group.create("gone", data=np.random.default_rng(1).random(500))
    group.snapshot("one")
    group["x"][:1500] = 7
    del group["gone"]
    group.snapshot("two")
    group["x"][:] = 8
    url = f"memory://test-copied-{next(_serials)}.b2d"
    fsspec.filesystem("memory").put(local, url, recursive=True)
    copied = open_group(url)
    assert [each.nbytes for each in copied.snapshots] == [each.nbytes for each in group.snapshots]
    assert copied.snapshots[0].nbytes > 3000 * 8 / 2
    assert b2array.verify(url, deep=True).ok
    # A lost state is still found.
    fsspec.filesystem("memory").rm(f"{url}/x.b2nd")
    found = b2array.verify(url, deep=True)
    assert not found.ok
    assert "snapshot 'one'" in str(found)


def test_damaged_published_indexes_do_not_keep_a_copy_on_a_disk_from_being_written(tmp_path: Path) -> None:
    """The manifest names the states that count; the indexes under the usual names are copies of them."""
    url = f"memory://test-taken-along-{next(_serials)}.b2d"
    group = open_group(url, "w")
    with group.transaction() as changes:
        changes.create("x", data=np.arange(6), chunks=(2,), layout="sparse")
        changes.create("y", data=np.arange(3), layout="contiguous")
    for name in ("x", "y"):
        group[name][0] = 7
    copy = tmp_path / "copy.b2d"
    fsspec.filesystem("memory").get(url, str(copy), recursive=True)
    for name in ("x.b2nd/chunks.b2frame", "y.b2nd"):
        path = copy / name
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
    open_group(copy, "r+")["x"][1] = 9
    shown = open_group(copy)
    assert [shown[name][:].tolist() for name in ("x", "y")] == [[7, 9, 2, 3, 4, 5], [7, 1, 2]]
    assert b2array.verify(copy, deep=True).ok


def test_threads_that_read_members_of_an_inner_group_show_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer commits between the first looks of two threads at the inner group."""
    inner = open_group(tmp_path / "outer.b2d/inner", "w")
    inner["a"], inner["b"] = [1], [1]
    outer = open_group(tmp_path / "outer.b2d", "r")
    assert [*outer] == ["inner"]
    lists, looks, both = local_group.list_group, itertools.count(), threading.Event()

    def commit() -> None:
        with inner.transaction() as changes:
            changes["a"][0] = changes["b"][0] = 2

    def list_group(store: Any, recovered: Any) -> Any:
        number = next(looks)
        if number == 0:  # in the first thread, which waits for the second one, if that looks as well
            both.wait(0.5)
        if number == 1:
            both.set()
            time.sleep(0.5)  # now the first thread opens its member
            commit()
        return lists(store, recovered)

    monkeypatch.setattr(local_group, "list_group", list_group)
    read = outer.read_many({"inner/a": 0, "inner/b": 0})
    assert read["inner/a"] == read["inner/b"]


def test_groups_are_read_over_http_by_their_list(http: RangeServer) -> None:
    url = f"memory://test-served-{next(_serials)}.b2d"
    group = open_group(url, "w")
    group.create("a/x", data=np.arange(5))
    group.attrs["n"] = 1
    with group.transaction() as changes:
        changes["a/x"][0] = 7
    memory = fsspec.filesystem("memory")
    for path in memory.find(url):
        http.objects["served" + path.partition(".b2d")[2]] = memory.cat_file(path)
    found = open_group(http.url_of("served"))
    assert found.tree() == "/\n└── a\n    └── x"
    assert found["a/x"][...].tolist() == [7, 1, 2, 3, 4]
    assert dict(found.attrs) == {"n": 1}
    with pytest.raises(FileNotFoundError, match=r"no group with a manifest.* does not list"):
        open_group(http.url_of("elsewhere"))


@given(st.text(min_size=1, max_size=12))
def test_every_name_is_refused_or_found_again(name: str) -> None:
    try:
        name = check_name(name)
    except ValueError:
        assert manifest.members_among([f"{name}.b2nd"]).keys() <= {"__vlmeta__", name}
    else:
        assert manifest.members_among([f"{name}.b2nd"]) == {name: f"{name}.b2nd"}
        listed = Manifest({name: Row(f"{name}.b2nd")})
        assert Manifest.unpack(listed.pack()) == listed


_NAMES = ("a", "b", "g/a", "g/h/b")
_ops = st.lists(
    st.tuples(st.sampled_from(["create", "delete", "write", "attrs", "reopen"]), st.sampled_from(_NAMES)), max_size=6
)


def _apply(group: Group, model: dict[str, list[int]], ops: list[tuple[str, str]], *, replacing: bool) -> None:
    for n, (op, name) in enumerate(ops):
        if op == "create" and (replacing or name not in model):
            group[name] = [n]
            model[name] = [n]
        elif op == "delete" and name in model:
            del group[name]
            del model[name]
        elif op == "write" and name in model:
            group[name][0] = model[name][0] = 100 + n
        elif op == "attrs":
            group.attrs[name] = model.setdefault("attrs", {})[name] = n  # type: ignore[arg-type, call-overload]


@pytest.mark.parametrize("local", [True, False])
@settings(max_examples=examples(20), deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["direct", "commit", "abort"]), _ops), max_size=5))
def test_groups_do_what_dictionaries_do(
    local: bool, steps: list[tuple[str, list[tuple[str, str]]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = str(tmp_path_factory.mktemp("model")) if local else f"memory://test-model-{next(_serials)}.b2d"
    group = open_group(url, "a")
    model: dict[str, Any] = {}
    for kind, ops in steps:
        changed = copy.deepcopy(model)
        if kind == "direct":
            _apply(group, changed, ops, replacing=True)
            model = changed
        else:
            # What a transaction deletes is there until its commit, so that it cannot make it anew.
            once = [op for n, op in enumerate(ops) if op[1] not in [name for _, name in ops[:n]]]
            with suppress(ZeroDivisionError), group.transaction() as changes:
                _apply(changes, changed, once, replacing=False)
                assert sorted(_leaves(changes)) == sorted(changed.keys() - {"attrs"})
                if kind == "abort":
                    raise ZeroDivisionError
                model = changed
        for found in (group, open_group(url)):
            assert {name: found[name][...].tolist() for name in _leaves(found)} == {
                name: value for name, value in model.items() if name != "attrs"
            }
            assert dict(found.attrs) == model.get("attrs", {})
    if local:
        keys = blosc2.DictStore(url, mode="a").keys()
        assert {key[1:] for key in keys} - {"__vlmeta__"} == model.keys() - {"attrs"}


def _leaves(group: Group) -> Iterator[str]:
    for name in group.arrays():
        yield name
    for name, inner in group.groups().items():
        yield from (f"{name}/{leaf}" for leaf in _leaves(inner))


def test_a_slash_at_the_beginning_of_a_name_is_ignored(group: Group) -> None:
    group.create("/a/x", data=[1])
    group["a"]["/y"] = [2]
    assert ("/a/x" in group, "/a" in group, "/x" in group, "/" in group) == (True, True, False, False)
    assert (group["/a/x"][0], group["/a/y"][0]) == (1, 2)
    del group["/a"]
    assert list(group) == []


def test_groups_are_context_managers(url: str) -> None:
    with open_group(url, "w") as group:
        group["x"] = [1]
    assert group["x"][0] == 1


def test_a_group_knows_its_parent_and_all_below(group: Group) -> None:
    for name in ("a/b/x", "a/y", "z"):
        group[name] = [1]
    inner = group["a/b"]
    assert (inner.parent.name, inner.parent.parent.name, group.parent) == ("a", "", None)
    assert [*inner.parent] == ["b", "y"]
    found = dict(group.walk())
    assert [*found] == ["a", "a/b", "a/b/x", "a/y", "z"]
    assert [isinstance(each, Group) for each in found.values()] == [True, True, False, False, False]
    assert [name for name, _ in group["a"].walk()] == ["b", "b/x", "y"]


def test_arrays_and_groups_can_be_required(group: Group) -> None:
    made = group.require_array("a/x", (2, 3), "i4", chunks=(1, 3))
    made[0, 0] = 7
    assert group.require_array("a/x", (2, 3), np.int32)[0, 0] == 7
    for wrong in (("a/x", (2, 3), "f4"), ("a/x", 6, "i4"), ("a", 1)):
        with pytest.raises(TypeError, match="expected an array"):
            group.require_array(*wrong)
    group.create_array("b/y", 3)
    assert group.require_group("b").name == group.create_group("b").name == "b"
    assert [*group.require_group("b")] == ["y"]
    with pytest.raises(FileExistsError):
        group.require_group("a/x")
    assert open_group(group.url).require_array("b/y", 3)[...].tolist() == [0, 0, 0]


def test_members_and_groups_move_in_one_commit(group: Group, url: str) -> None:
    before = _filled(url)
    group = open_group(url, "r+")
    group.create("b/s", data=[5], layout="sparse")
    group.move("b", "c/d")
    group.move("a", "aa")
    moved = {"aa": [1, 2], "unit": "m", "c/d/x": [3], "c/d/y": [4], "c/d/s": [5], "c/d/axis": "z"}
    assert _contents(group) == _contents(open_group(url)) == moved
    assert group["c/d/s"].cparams == group["aa"].cparams
    for source, name, error in (
        ("aa", "aa", ValueError),
        ("c", "c/d/e", ValueError),
        ("aa", "c/d/x", FileExistsError),
        ("aa", "c", FileExistsError),
        ("none", "x", KeyError),
        ("c", "aa/x", ValueError),
    ):
        with pytest.raises(error):
            group.move(source, name)
    with group.transaction() as changes:
        changes.move("c/d", "b")
        changes.move("aa", "a")
        assert _contents(open_group(url)) == moved
    assert _contents(open_group(url)) == {**before, "b/s": [5]}
    with pytest.raises(ReadOnlyError):
        open_group(url).move("a", "x")


def test_whole_groups_are_copied(tmp_path: Path, url: str) -> None:
    expected = _filled(url)
    group = open_group(url)
    other = open_group(tmp_path / "other.b2d", "w")
    group.copy("/", other)
    group.copy("/", other, "inner")
    group["b"].copy("x", other["inner"], "b/z")
    inner = {f"inner/{name}": value for name, value in expected.items()}
    assert _contents(open_group(other.url)) == {**expected, **inner, "inner/b/z": [3]}
    with pytest.raises(FileExistsError):
        group.copy("b", other)
    assert _contents(group) == expected
    memory = open_group(f"memory://test-copied-{next(_serials)}.b2d", "w")
    other.copy("inner/b", memory, "b")
    assert _contents(memory) == {"b/x": [3], "b/y": [4], "b/z": [3], "b/axis": "z"}


def test_stores_of_python_blosc2_with_embedded_members_are_copied_and_moved(tmp_path: Path) -> None:
    url = str(tmp_path / "stock.b2d")
    _stock_tree(url, threshold=None)
    group, other = open_group(url, "r+"), open_group(tmp_path / "copy.b2d", "w")
    group.copy("/", other)
    _check_stock(open_group(other.url))
    group.move("a", "moved")
    with group.transaction() as changes:
        changes.attrs["more"] = 1
    for found in (group, open_group(url)):
        assert list(found) == ["moved", "s", "small"]
        assert np.array_equal(found["moved/b/x"][...], np.arange(1000.0).reshape(20, 50))
        assert dict(found["moved"].attrs) == {"n": 5}
        assert dict(found.attrs) == {"title": "outer", "more": 1}


def test_a_failure_after_the_commit_leaves_what_was_committed(
    growing: Group, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TimeoutError("no answer")

    with growing.transaction() as changes:
        _append(changes, 2)
        changes.create("new", data=[1])
        monkeypatch.setattr(on_disk, "load_local_member", fail)
    monkeypatch.undo()
    found = open_group(url)
    assert _grown(found) == (5, 5)
    assert found["new"][...].tolist() == [1]


@pytest.mark.parametrize("root", ["local", "memory"])
def test_a_whole_group_is_copied_into_a_group_that_exists(root: str, tmp_path: Path) -> None:
    root = str(tmp_path) if root == "local" else f"memory://{tmp_path}"
    source, target = open_group(f"{root}/a.b2d", "w"), open_group(f"{root}/b.b2d", "w")
    source["x"], source["t/y"] = [1], [2]
    source.attrs["unit"] = "m"
    inner = target.require_group("s")
    inner.attrs["place"] = "roof"
    source.copy("/", inner)
    found = open_group(target.url)["s"]
    assert (list(found), list(found["t"])) == (["t", "x"], ["y"])
    assert found.attrs == {"place": "roof", "unit": "m"}
    with pytest.raises(FileExistsError, match=r"there is (a member 's/(x|t/y)'|an attribute 'unit')"):
        source.copy("/", inner)
    other = open_group(f"{root}/c.b2d", "w")
    other["x"] = [5]
    with pytest.raises(FileExistsError, match="there is a member 's/x'"):
        other.copy("/", inner)
    found.refresh()
    assert found["x"][:].tolist() == [1]


def test_no_new_member_makes_a_manifest_unreadable(tmp_path: Path) -> None:
    group = open_group(tmp_path / "a.b2d", "w")
    for name in ("s//x", "x.b2nd", "../x", ""):
        with pytest.raises(ValueError, match="cannot name a member"):
            check_new(name, group._home.members(), group.url)


def test_a_copy_of_a_handle_follows_what_others_do_as_the_handle_does(tmp_path: Path) -> None:
    group = open_group(tmp_path / "g", "w")
    followers = [copy.copy(open_group(tmp_path / "g", follow=follow)) for follow in (True, False)]
    assert [list(each) for each in followers] == [[], []]
    group["x"] = [1]
    assert [list(each) for each in followers] == [["x"], []]


def test_a_deleted_member_leaves_room_for_one_of_either_layout_wherever_it_is(url: str) -> None:
    group = open_group(url, "w")
    group.create("x", data=[1, 2], layout="sparse")[0] = 5  # leaves an old chunk behind
    group.create("x", data=[3], layout="contiguous", overwrite=True)
    del group["x"]
    for layout in ("contiguous", "sparse", "contiguous"):
        group.create("x", data=[4], layout=layout)
        assert open_group(group.url)["x"][...].tolist() == [4]
        del group["x"]
    if "://" in url:  # another transaction could have staged the old chunk
        assert b2array.vacuum(url, grace=0)
    assert not [path for path in open_store(url).walk() if path.startswith("x.")]


def test_attributes_replace_what_an_interrupted_writer_has_left_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{tmp_path.name}/g.b2d"
    group, stale = open_group(url, "w"), open_group(url, "r+")
    assert not stale.attrs
    with monkeypatch.context() as broken:
        broken.setattr(manifest_writes, "write_manifest", lambda *_, **__: (_ for _ in ()).throw(TimeoutError))
        for begin in (lambda: group.attrs.update(k=1), lambda: group.require_group("a/b")):
            with pytest.raises(TimeoutError):
                begin()
    group = open_group(url, "r+")
    group.attrs["k"] = 2
    group.require_group("a/b").attrs["k"] = 3
    found = open_group(url)
    assert (dict(found.attrs), dict(found["a/b"].attrs)) == ({"k": 2}, {"k": 3})
    with pytest.raises(ConflictError, match="another writer has made"):
        stale.attrs["other"] = 4
    assert dict(open_group(url).attrs) == {"k": 2}


@pytest.mark.filterwarnings("ignore:.*rewritten with every change")
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_popped_array_is_a_copy_in_memory(group: Group, layout: Any) -> None:
    for name in ("old", "other"):
        group.create(name, data=np.arange(10), chunks=(4,), layout=layout, attrs={"unit": "m"})
    group["old"].snapshot("first")
    group["old"][0] = 5
    group["new"] = group.pop("old")
    assert (sorted(group), group["new"][0], group["new"][9]) == (["new", "other"], 5, 9)
    del group["new"]
    name, popped = group.popitem()
    assert (name, popped.attrs["unit"], popped[:].tolist()) == ("other", "m", [*range(10)])
    popped[0] = 7
    assert (popped[0], list(group)) == (7, [])
    with pytest.raises(KeyError, match="no such member"):
        group.pop("old")
    with pytest.raises(KeyError, match="has no array"):
        group.popitem()
    group.attrs["a"] = 1
    for name in ("old", "old/", "__vlmeta__"):
        assert group.pop(name, None) is None
        with pytest.raises(KeyError):
            group.pop(name)
    with pytest.raises(TypeError, match="names of members are str"):
        group.pop(3, None)  # type: ignore[arg-type]


def test_a_popped_array_has_its_snapshots_and_what_a_transaction_has_changed(group: Group) -> None:
    group["x"] = [1, 2]
    group["x"].snapshot("first")
    with group.transaction() as changes:
        changes["x"][0] = 9
        popped = changes.pop("x")
        assert list(changes) == []
        changes["y"] = popped
    assert (popped[:].tolist(), [each.name for each in popped.snapshots]) == ([9, 2], ["first"])
    assert {name: group[name][:].tolist() for name in group} == {"y": [9, 2]}


def test_a_group_is_not_popped_and_all_members_go_with_clear(group: Group) -> None:
    group["inner/x"] = [1]
    group["y"] = [2]
    group.attrs["a"] = group["inner"].attrs["b"] = 1
    with pytest.raises(ValueError, match="'inner' is a group, which pop"):
        group.pop("inner")
    group["bare/x"] = [3]
    group["bare"].clear()
    assert (list(group), list(open_group(f"{group.url}/bare", "r+"))) == (["bare", "inner", "y"], [])
    del group["bare"]
    group["inner"].clear()
    assert (list(group), list(group["inner"]), group["inner"].attrs["b"]) == (["inner", "y"], [], 1)
    group.clear()
    assert (list(group), dict(group.attrs)) == ([], {"a": 1})
    group.clear()


def _create_below(group: Group) -> None:
    group.create("gone/q", data=[5])


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda group: group.__delitem__("new"), ["kept"]),
        (lambda group: group.pop("new"), ["kept"]),
        (lambda group: group.move("new", "y"), ["kept", "y"]),
        (lambda group: group.copy("new", group, "y"), ["kept", "new", "y"]),
        (lambda group: group.create("gone", data=[5]), ["gone", "kept", "new"]),
        (_create_below, ["gone", "kept", "new"]),
        (Group.clear, []),
    ],
)
def test_a_handle_that_follows_changes_what_is_there_now(
    group: Group, url: str, change: Callable[[Group], object], left: list[str]
) -> None:
    group["kept"], group["gone"] = [0], [1]
    following = open_group(url, "r+", follow=True)
    assert sorted(following) == ["gone", "kept"]
    group["new"] = [1, 2]
    del group["gone"]
    change(following)
    assert sorted(following) == left == sorted(open_group(url))


def _convert_into(part: Group) -> None:
    with tempfile.TemporaryDirectory() as directory:
        open_group(f"{directory}/other.b2d", "w")["o"] = [6]
        b2array.convert(f"{directory}/other.b2d", part.url, overwrite=True)


@pytest.mark.parametrize(
    ("change", "now"),
    [
        (lambda part: part.__delitem__("y"), {"z": [3]}),
        (lambda part: part.__setitem__("y", [7]), {"y": [7], "z": [3]}),
        (lambda part: part.move("y", "q"), {"q": [1, 2], "z": [3]}),
        (lambda part: part.__setitem__("new", [9]), {"new": [9], "y": [1, 2], "z": [3]}),
        (lambda part: part["y"].__setitem__(0, 5), {"y": [5, 2], "z": [3]}),
        (lambda part: open_group(part.url, "w"), {}),
        (_convert_into, {"o": [6], "y": [1, 2], "z": [3]}),
    ],
)
def test_who_changes_a_part_of_a_group_by_its_own_url_changes_the_group(
    group: Group, url: str, change: Callable[[Group], object], now: dict[str, list[int]]
) -> None:
    group["part/y"], group["part/z"], group["x"] = [1, 2], [3], [4]
    group.snapshot("before")
    part = open_group(f"{url}/part", "r+")
    assert (part.name, part.url) == ("part", f"{url}/part")
    change(part)
    found = open_group(url)
    assert {name: found["part"][name][:].tolist() for name in found["part"]} == now
    assert found["x"][0] == 4
    then = open_group(url, at="before")
    assert (then["part/y"][:].tolist(), then["part/z"][0], then["x"][0]) == ([1, 2], 3, 4)
    assert b2array.verify(url, deep=True).ok


@pytest.mark.parametrize("mode", ["a", "w", "w-", "x"])
def test_a_group_that_is_made_inside_of_another_one_is_part_of_it(url: str, mode: Any) -> None:
    root = url.rpartition("/")[0]
    group = open_group(f"{root}/g{mode}.b2d", "w")
    group["x"] = [1]
    with pytest.raises(FileNotFoundError):
        open_group(f"{root}/g{mode}.b2d/inner", "r+")
    inner = open_group(f"{root}/g{mode}.b2d/inner", mode)
    assert (inner.name, [*open_group(f"{root}/g{mode}.b2d")]) == ("inner", ["inner", "x"])
    inner["y"] = [2]
    assert open_group(f"{root}/g{mode}.b2d")["inner/y"][0] == 2
    with pytest.raises(FileExistsError, match="mode='w' replaces"):
        open_group(f"{root}/g{mode}.b2d/inner", "x")
    assert [*open_group(f"{root}/g{mode}.b2d/inner", "w")] == []
    assert [*open_group(f"{root}/g{mode}.b2d")] == ["inner", "x"]
    with pytest.raises(FileExistsError, match="there is a member 'x'"):
        open_group(f"{root}/g{mode}.b2d/x", "w")


def test_a_group_is_made_with_its_attributes(tmp_path):
    group = open_group(tmp_path / "a.b2d", "w")
    made = group.create_group("run/1", attrs={"grid": "coarse", "step": 0.5})
    assert (made.name, dict(made.attrs)) == ("run/1", {"grid": "coarse", "step": 0.5})
    assert dict(open_group(tmp_path / "a.b2d")["run/1"].attrs) == dict(made.attrs)
    # A group that is there keeps its others.
    assert dict(group.require_group("run/1", attrs={"step": 1}).attrs) == {"grid": "coarse", "step": 1}
    with group.transaction() as changes:
        changes.create_group("later", attrs={"a": 1, "b": 2})
        assert "later" not in group
    assert dict(group["later"].attrs) == {"a": 1, "b": 2}
    for wrong in ({"n": object()}, {"n": 1, 2: 3}, [1]):
        with pytest.raises(TypeError):
            group.create_group("wrong", attrs=wrong)
    assert "wrong" not in group


def test_several_attributes_are_one_commit(tmp_path):
    group = open_group(tmp_path / "a.b2d", "w")
    array = group.create("x", 3)
    for attrs in (array.attrs, group.attrs, group.create_group("inner").attrs):
        with pytest.raises(TypeError, match="has no form"):
            attrs.update({"a": 1, "b": object()})
        assert dict(attrs) == {}
        attrs.update({"a": 1}, b=2)
        assert dict(attrs) == {"a": 1, "b": 2}


def test_members_come_as_dictionaries_and_other_words_are_answered():
    group = open_group("memory://words.b2d", "w")
    group["x"], group["inner/y"] = [1], [2]
    assert [(name, array[0]) for name, array in group.arrays().items()] == [("x", 1)]
    assert [*group.groups()] == ["inner"]
    for name, hint in {
        "rename": "group.move",
        "array_keys": "group.arrays()",
        "update_attributes": "group.attrs.update",
    }.items():
        with pytest.raises(AttributeError, match=re.escape(hint)):
            getattr(group, name)


def test_members_are_copied_into_a_group_that_a_url_names(tmp_path):
    group = open_group(tmp_path / "a.b2d", "w")
    group["x"] = [1, 2]
    group.copy("x", tmp_path / "b.b2d")
    group.copy("x", str(tmp_path / "b.b2z"), "y")
    group.copy("x", "memory://copied-by-url.b2d")
    assert [*open_group(tmp_path / "b.b2d")] == [*open_group("memory://copied-by-url.b2d")] == ["x"]
    assert open_group(tmp_path / "b.b2z")["y"][:].tolist() == [1, 2]
    with pytest.raises(KeyError):
        group.copy("z", tmp_path / "c.b2d")
    assert not (tmp_path / "c.b2d").exists()
    with pytest.raises(TypeError, match=r"write group\.copy"):
        group.copy("x", "/y")  # as in h5py


@pytest.mark.parametrize("items", [[], [1, 2]])
def test_a_sparse_member_in_memory_replaces_a_contiguous_one(items: list[int], tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}.b2d"
    group = open_group(url, "w")
    group.create("v", data=np.arange(5), layout="contiguous")
    group.create("v", data=np.array(items, int), layout="sparse", overwrite=True)
    assert open_group(url)["v"][...].tolist() == items


def test_a_name_that_is_too_long_for_a_file_is_explained(tmp_path):
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["x"] = np.arange(3)
    name = "n" * 300
    for call in (lambda: group.move("x", name), lambda: group.create(name, 3), lambda: group.create_group(name)):
        with pytest.raises(OSError, match="the name of a member is too long for this file system") as caught:
            call()
        assert caught.value.errno == errno.ENAMETOOLONG
    assert [*group] == ["x"]
    assert b2array.load(tmp_path / "g.b2d/x").tolist() == [0, 1, 2]
    assert sorted(path.name for path in (tmp_path / "g.b2d").iterdir() if "n" * 200 in path.name) == []
