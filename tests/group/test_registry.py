"""What python-blosc2 lists in its groups besides files: tables and references; and names that are reserved here."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Iterator
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import blosc2
import fsspec
import numpy as np
import pytest

import b2array
from b2array.errors import B2ArrayError, FormatError, ReadOnlyError, UnsupportedError

Row = make_dataclass("Row", [("id", int, blosc2.field(blosc2.int64()))])


def new_table(*ids: int) -> Any:
    table = blosc2.CTable(Row)
    for each in ids:
        table.append((each,))
    return table


def stock_shows(url: Path) -> dict[str, Any]:
    """Return what python-blosc2 shows: the rows of tables, the items of arrays, None for groups."""
    found: dict[str, Any] = {}
    with blosc2.TreeStore(str(url), mode="r") as store:
        for key in store.keys():  # noqa: SIM118 - iterating a store gives no keys
            member = store[key]
            if isinstance(member, blosc2.CTable):
                found[key] = ("table", *member.id[:].tolist())
            elif isinstance(member, blosc2.NDArray):
                found[key] = member[...].tolist()
            else:
                found[key] = None
    return found


def check(url: Any) -> str:
    """Return what `verify` says about a group that is not in order: for an archive, the message of its error."""
    try:
        report = b2array.verify(url)
    except UnsupportedError as error:
        return str(error)
    assert not report.ok
    return str(report)


@pytest.fixture(params=["b2d", "b2z"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"g.{request.param}"


@pytest.fixture
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A remote group of python-blosc2."""
    source = tmp_path_factory.mktemp("remote") / "s.b2z"
    with blosc2.TreeStore(str(source), mode="w") as store:
        store["/d/x"], store["/y"] = np.arange(10.0), np.arange(5)
    files = fsspec.filesystem("memory")
    files.put(str(source), "/registry/source.b2z")
    yield blosc2.open("memory://registry/source.b2z", lazy=True)
    files.rm("/registry", recursive=True)


# Tables.


@pytest.mark.costly
def test_stock_lists_the_tables_that_were_moved_copied_and_removed(url: Path) -> None:
    with blosc2.TreeStore(str(url), mode="w") as store:
        store["/t"], store["/u"], store["/v"] = new_table(1), new_table(2, 3), new_table()
        store["/keep"] = new_table(4)
    with b2array.open_group(url, "r+") as group:
        del group["t"]
        group["t"] = np.arange(4)
        group.move("u", "h/w")
        group.copy("keep", group, "k2")
        del group["v"]
    expected = {"/h": None, "/h/w": ("table", 2, 3), "/k2": ("table", 4), "/keep": ("table", 4), "/t": [0, 1, 2, 3]}
    assert stock_shows(url) == expected


def test_stock_lists_tables_that_one_transaction_replaced_by_arrays(url: Path) -> None:
    with blosc2.TreeStore(str(url), mode="w") as store:
        store["/a/t"], store["/a/u"] = new_table(1), new_table(2)
    with b2array.open_group(url, "r+") as group, group.transaction() as changes:
        del changes["a/t"]
        changes["a/t"] = np.arange(2)
        changes.move("a/u", "u")
    assert stock_shows(url) == {"/a": None, "/a/t": [0, 1], "/u": ("table", 2)}


def test_tables_of_files_without_a_list_are_still_found_by_stock(url: Path) -> None:
    with blosc2.TreeStore(str(url), mode="w") as store:
        store["/t"], store["/u"] = new_table(1), new_table(2)
        store._estore._store.vlmeta["_object_registry"] = {}
    with b2array.open_group(url, "r+") as group:
        group.copy("t", group, "copy")
    expected = {"/t": ("table", 1), "/u": ("table", 2), "/copy": ("table", 1)}
    assert stock_shows(url) == expected
    # A table that python-blosc2 adds afterwards does not hide the columns of the others.
    with blosc2.TreeStore(str(url), mode="a") as store:
        store["/new"] = new_table(3)
    assert stock_shows(url) == {**expected, "/new": ("table", 3)}


def test_clearing_a_group_and_making_it_again_leaves_no_tables(url: Path) -> None:
    for step in ("clear", "w"):
        url = url.with_name(f"{step}-{url.name}")
        with blosc2.TreeStore(str(url), mode="w") as store:
            store["/a/t"], store["/x"] = new_table(1), np.arange(2)
        if step == "clear":
            with b2array.open_group(url, "r+") as group:
                group.clear()
        with b2array.open_group(url, "w" if step == "w" else "r+") as group:
            group["a/t"] = np.arange(3)
        assert stock_shows(url) == {"/a": None, "/a/t": [0, 1, 2]}


def test_a_killed_writer_leaves_the_list_to_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = tmp_path / "g.b2d"
    with blosc2.TreeStore(str(url), mode="w") as store:
        store["/t"], store["/u"] = new_table(1), new_table(2)

    def fail(*_: Any, **__: Any) -> bool:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr("b2array.commit.on_disk.publish_pending", fail)
        with b2array.open_group(url, "r+") as group:
            del group["t"]
    assert list(b2array.open_group(url)) == ["u"]
    with b2array.open_group(url, "r+") as group:
        group["x"] = [1]
    assert stock_shows(url) == {"/u": ("table", 2), "/x": [1]}


@pytest.mark.parametrize("seed", range(4))
def test_both_libraries_change_tables_in_turn(seed: int, url: Path) -> None:
    chance = random.Random(seed)
    names = ["a", "b", "c/d", "c/e"]
    expected: dict[str, Any] = {}
    with blosc2.TreeStore(str(url), mode="w"):
        pass
    for step in range(12):
        name = chance.choice(names)
        other = chance.choice([each for each in names if each != name])
        is_table = chance.random() < 0.6
        if chance.random() < 0.4:
            with blosc2.TreeStore(str(url), mode="a") as store:
                if name in expected:
                    del store[f"/{name}"]
                    del expected[name]
                else:
                    store[f"/{name}"] = new_table(step) if is_table else np.arange(step)
                    expected[name] = ("table", step) if is_table else [*range(step)]
        else:
            with b2array.open_group(url, "r+") as group:
                if name in expected and other not in expected:
                    if chance.random() < 0.5:
                        group.move(name, other)
                        expected[other] = expected.pop(name)
                    else:
                        group.copy(name, group, other)
                        expected[other] = expected[name]
                elif name in expected:
                    del group[name]
                    del expected[name]
                else:
                    group[name] = np.arange(step)
                    expected[name] = [*range(step)]
        shown = stock_shows(url)
        leaves = {f"/{each}": value for each, value in expected.items()}
        assert {key: value for key, value in shown.items() if value is not None} == leaves, step
        assert {key for key, value in shown.items() if value is None} <= {"/c"}, step
        ours = b2array.open_group(url)
        for each, value in expected.items():
            member = ours[each]
            if isinstance(member, b2array.Table):
                assert ("table", *member["id"].tolist()) == value
            else:
                assert member[...].tolist() == value


def test_the_parts_of_a_table_cannot_be_changed(url: Path, tmp_path: Path) -> None:
    with blosc2.TreeStore(str(url), mode="w") as store:
        store["/a/t"], store["/x"] = new_table(1, 2), np.arange(3)
    with b2array.open_group(url, "r+") as group:
        changes = [
            lambda: group.__delitem__("a/t/_cols/id"),
            lambda: group.__delitem__("a/t/_meta"),
            lambda: group.pop("a/t/_valid_rows"),
            lambda: group.move("a/t/_cols/id", "y"),
            lambda: group.move("x", "a/t/_cols/other"),
            lambda: group.copy("x", group, "a/t/extra"),
            lambda: group.__setitem__("a/t/extra", [1]),
            lambda: group.__setitem__("a/t/_cols/id", [1, 2]),
            lambda: group.require_group("a/t/inner"),
        ]
        for change in changes:
            with pytest.raises(ReadOnlyError, match="a table of python-blosc2"):
                change()
        with group.transaction() as inner, pytest.raises(ReadOnlyError, match="a table of python-blosc2"):
            del inner["a/t/_cols/id"]
        # The whole table is a member like others, and its columns can be copied out of it.
        group.copy("a/t/_cols/id", group, "ids")
    shown = stock_shows(url)
    # python-blosc2 stores columns with room for more rows.
    assert shown.pop("/ids")[:2] == [1, 2]
    assert shown == {"/a": None, "/a/t": ("table", 1, 2), "/x": [0, 1, 2]}
    if url.suffix == ".b2d":
        with pytest.raises(ReadOnlyError, match="a table of python-blosc2"):
            b2array.zeros(3, url=url / "a" / "t" / "extra.b2nd")
    blosc2.CTable(Row, urlpath=str(tmp_path / "t.b2d"), mode="w").close()
    with (
        b2array.open_group(tmp_path / "t.b2d", "r+") as group,
        pytest.raises(ReadOnlyError, match="is a table of python-blosc2"),
    ):
        del group["_cols/id"]


# References to remote groups.


def test_a_reference_to_a_remote_group_is_listed_and_refused(url: Path, remote: Any, tmp_path: Path) -> None:
    with blosc2.TreeStore(str(url), mode="w") as store:
        store["/keep"], store["/in/mount"] = np.arange(3), remote
    group = b2array.open_group(url)
    assert (list(group), list(group["in"]), "in/mount" in group) == (["in", "keep"], ["mount"], True)
    with pytest.raises(UnsupportedError, match=r"'in/mount' is a reference to an array or a group on a server"):
        group["in/mount"]
    with pytest.warns(UserWarning, match="leaves out 'mount'"):
        assert [name for name, _ in group.walk()] == ["in", "keep"]
    with pytest.raises(B2ArrayError, match=r"1 of 2 arrays could not be copied: in/mount: .* is a reference"):
        b2array.convert(url, tmp_path / "copy.b2d")
    report = b2array.verify(url)
    assert not report.ok
    assert "'in/mount' is a reference" in str(report)


def test_an_array_takes_the_place_of_a_reference_for_both_libraries(url: Path, remote: Any) -> None:
    with blosc2.TreeStore(str(url), mode="w") as store:
        store["/a"], store["/b"], store["/c"] = remote, remote, remote
        store["/t"] = new_table(1)
    with b2array.open_group(url, "r+") as group:
        with pytest.raises(FileExistsError):
            group.create("a", data=[1])
        group["a"] = [1, 2]
        del group["b"]
        with pytest.raises(ValueError, match="'c' is an array"):
            group["c/x"] = [1]
    with blosc2.TreeStore(str(url), mode="r", deserialize="full") as store:
        assert sorted(store.keys()) == ["/a", "/c", "/t"]
        assert store["/a"][...].tolist() == [1, 2]
        assert isinstance(store["/c"], blosc2.RemoteStore)
        assert store["/t"].id[:].tolist() == [1]


@pytest.mark.parametrize("include_cache", [False, True])
def test_an_archive_of_references_is_refused_by_every_function(
    include_cache: bool, remote: Any, tmp_path: Path
) -> None:
    url = tmp_path / "saved.b2z"
    remote["/y"][...]
    remote.save(str(url), include_cache=include_cache)
    before = url.read_bytes()
    with zipfile.ZipFile(url) as archive:
        archive.extractall(tmp_path / "unpacked.b2d")
    fsspec.filesystem("memory").put(str(url), "/registry/saved.b2z")
    for where in (url, tmp_path / "unpacked.b2d", "memory://registry/saved.b2z"):
        for function in (
            b2array.open,
            lambda it: list(b2array.open_group(it)),
            lambda it: b2array.convert(it, tmp_path / "copy.b2d"),
        ):
            with pytest.raises(B2ArrayError, match=r"RemoteStore\.save\(\) of python-blosc2 has written"):
                list(function(where))
        assert "has written references to a remote group" in check(where)
    with pytest.raises(UnsupportedError, match="has written references"):
        b2array.open_group(url, "r+")
    assert url.read_bytes() == before


def test_a_damaged_list_of_objects_is_an_error(tmp_path: Path) -> None:
    url = tmp_path / "g.b2d"
    with blosc2.TreeStore(str(url), mode="w") as store:
        store["/x"] = np.arange(3)
    for wrong in (3, {b"x": {"kind": "ctable"}, "x": {"kind": "other"}}, {"/../x": {"kind": "other"}}):
        b2array.open_schunk(url / "embed.b2e", "r+").vlmeta["_object_registry"] = wrong
        with pytest.raises(FormatError, match=r"expected (a list of objects|names of embedded members)"):
            list(b2array.open_group(url))


# Names.


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("day1.b2nd", "'day1.b2nd' is reserved"),
        ("log.b2f", "'log.b2f' is reserved"),
        ("in/batch.b2b", "'batch.b2b' is reserved"),
        ("run.b2nd/x", "'run.b2nd' is reserved"),
        ("back\\slash", "backslash"),
    ],
)
@pytest.mark.parametrize("threshold", [0, 10**6])
def test_members_whose_names_are_reserved_here_are_named(
    name: str, reason: str, threshold: int, url: Path, tmp_path: Path
) -> None:
    with blosc2.TreeStore(str(url), mode="w", threshold=threshold) as store:
        store["/plain"] = np.arange(3)
        store[f"/{name}"] = np.arange(4)
    for function in (
        lambda: list(b2array.open_group(url)),
        lambda: [*b2array.open_group(url).walk()],
        lambda: b2array.convert(url, tmp_path / "copy.b2d"),
    ):
        with pytest.raises(B2ArrayError, match="cannot be shown here") as caught:
            function()
        assert repr(name)[1:-1] in str(caught.value)
        assert reason in str(caught.value)
    assert "cannot be shown here" in check(url)


@pytest.mark.parametrize("name", ["day1.b2nd", "back\\slash"])
def test_a_directory_in_an_object_store_is_refused_for_such_names(name: str) -> None:
    files = fsspec.filesystem("memory")
    with b2array.open_group("memory://registry-names", "w") as group:
        group["plain"] = [1]
    files.rm("/registry-names/.b2group")
    files.pipe(f"/registry-names/{name}.b2nd", b2array.asarray([1, 2]).to_bytes())
    with pytest.raises(UnsupportedError, match="cannot be shown here"):
        list(b2array.open_group("memory://registry-names"))
    files.rm("/registry-names", recursive=True)
