"""Symbolic links and hard links in local stores: what is never followed, and what is refused."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from functools import partial
from pathlib import Path

import pytest

from b2array.errors import FormatError, UnsupportedError
from b2array.store import links
from b2array.store.base import Stamp
from b2array.store.endings import LOCK
from b2array.store.local_store import LocalStore
from b2array.store.open import open_store
from b2array.store.spans import Span

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege there")

PRECIOUS = b"precious" * 10
INDEX = "chunks.b2frame"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory outside, with files of somebody."""
    path = tmp_path / "home"
    (path / "docs").mkdir(parents=True)
    for name in ("thesis.txt", "docs/photo.jpg", INDEX, "00000000.chunk", LOCK):
        (path / name).write_bytes(PRECIOUS)
    return path


def untouched(home: Path) -> bool:
    files = [path for path in home.rglob("*") if path.is_file()]
    return len(files) == 5 and all(path.read_bytes() == PRECIOUS for path in files)


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def everything(name: str) -> bool:
    return True


ON_AN_OBJECT = {
    "read": lambda store, name: store.read([Span(name, 0, 8)]),
    "gather": lambda store, name: store.gather([Span(name, 0, 8)], [0], 8),
    "stamp": lambda store, name: store.stamp(name),
    "replace": lambda store, name: store.replace(name, b"new"),
    "append": lambda store, name: store.append(name, 8, b"new"),
    "patch": lambda store, name: store.patch(name, 0, b"new"),
    "temporary": lambda store, name: store.temporary(name),
}


@pytest.mark.parametrize("call", ON_AN_OBJECT.values(), ids=ON_AN_OBJECT)
@pytest.mark.parametrize("name", ["x.chunk", "inner/thesis.txt"])
def test_an_object_below_a_store_that_is_a_link_or_behind_one_is_refused(tmp_path, home, call, name):
    store = LocalStore(tmp_path / "a.b2nd")
    store.create("other", b"")
    (tmp_path / "a.b2nd" / "x.chunk").symlink_to(home / "thesis.txt")
    (tmp_path / "a.b2nd" / "inner").symlink_to(home)
    with pytest.raises(FormatError, match=rf"a.b2nd/{name.partition('/')[0]}: expected .* symbolic link"):
        call(store, name)
    assert untouched(home)


def test_the_beginning_of_a_link_is_an_error_like_that_of_a_missing_object(tmp_path, home):
    (tmp_path / "link").symlink_to(home / "thesis.txt")
    found, missing = LocalStore(tmp_path).head(["link", "missing"], 10)
    assert isinstance(found, FormatError)
    assert isinstance(missing, FileNotFoundError)


ON_A_STORE = {
    **{verb: partial(call, name="") for verb, call in ON_AN_OBJECT.items()},
    "create": lambda store: store.create("new.chunk", b"new"),
    "listing": lambda store: store.listing(),
    "walk": lambda store: store.walk(),
    "delete": lambda store: store.delete(["thesis.txt"]),
    "lock": lambda store: store.lock(INDEX).__enter__(),
    "remove": lambda store: store.remove(INDEX, everything),
    "withdraw": lambda store: store.withdraw({"thesis.txt": Stamp(len(PRECIOUS), None).digest}),
}


@pytest.mark.parametrize("call", ON_A_STORE.values(), ids=ON_A_STORE)
@pytest.mark.parametrize("part", ["m.b2nd", "inner"])
@pytest.mark.parametrize("pickled", [False, True])
def test_a_store_within_a_directory_refuses_links_between_the_two(tmp_path, home, call, part, pickled):
    group = tmp_path / "group"
    group.mkdir()
    (group / part).symlink_to(home)
    path = group / part if part == "m.b2nd" else group / part / "docs"
    store = LocalStore(path, within=group)
    if pickled:
        store = pickle.loads(pickle.dumps(store))
    with pytest.raises(FormatError, match=rf"group/{part}: expected .* symbolic link"):
        call(store)
    assert untouched(home)


def test_what_lies_above_and_the_url_itself_may_be_links(tmp_path):
    (tmp_path / "real" / "group").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    within = LocalStore(tmp_path / "link" / "group" / "a.b2nd", within=tmp_path / "link" / "group")
    within.create("x", b"content")
    (tmp_path / "array").symlink_to("real/group/a.b2nd")
    assert LocalStore(tmp_path / "array").listing().keys() == {"x"}
    assert [bytes(view) for view in LocalStore(tmp_path / "array").read([Span("x", 0, 7)])] == [b"content"]
    (tmp_path / "group").symlink_to("real/group")
    assert LocalStore(tmp_path / "group" / "a.b2nd", within=tmp_path / "group").stamp("x").size == 7


def test_a_url_is_opened_within_another_one(tmp_path, home):
    (tmp_path / "m.b2nd").symlink_to(home)
    store = open_store(f"file://{tmp_path}/m.b2nd", within=f"file://{tmp_path}")
    with pytest.raises(FormatError, match="symbolic link"):
        store.walk()
    assert open_store("memory://x/m", within="memory://x").walk() == []  # has no links


def test_a_store_is_not_within_a_directory_beside_it(tmp_path):
    with pytest.raises(ValueError, match="expected a path below"):
        LocalStore(tmp_path / "a", within=tmp_path / "b")


def test_lists_do_not_look_behind_links(tmp_path, home):
    group = tmp_path / "group"
    (group / "inner").mkdir(parents=True)
    (group / "inner" / "file").write_bytes(b"x")
    (group / "file").symlink_to(home / "thesis.txt")
    (group / "inner" / "directory").symlink_to(home)
    (group / "gone").symlink_to("nowhere")
    store = LocalStore(group)
    assert store.walk() == ["file", "gone", "inner/directory", "inner/file"]
    assert store.listing() == {}


# ---- removing ----


def test_a_file_is_removed_with_its_lock(tmp_path):
    store = LocalStore(tmp_path / "a.b2nd", within=tmp_path)
    store.create("", b"frame")
    with store.lock(""):
        pass
    (tmp_path / "other").write_bytes(b"")
    store.remove(INDEX, everything)
    assert names(tmp_path) == ["other"]
    store.remove(INDEX, everything)  # there is nothing any more


def test_a_directory_is_removed_with_its_lock(tmp_path):
    store = LocalStore(tmp_path / "a.b2nd", within=tmp_path)
    for name in (INDEX, "0", "1"):
        store.create(name, b"x")
    store.remove(INDEX, everything)
    assert names(tmp_path) == []


def test_files_that_do_not_belong_and_links_stay_and_so_does_their_directory(tmp_path, home):
    store = LocalStore(tmp_path / "a.b2nd")
    for name in (INDEX, "0.chunk", "notes.txt"):
        store.create(name, b"x")
    (tmp_path / "a.b2nd" / "1.chunk").symlink_to(home / "thesis.txt")
    (tmp_path / "a.b2nd" / "2.chunk").symlink_to(home)
    store.remove(INDEX, lambda name: name == INDEX or name.endswith(".chunk"))
    assert sorted(names(tmp_path / "a.b2nd")) == ["1.chunk", "2.chunk", "notes.txt"]
    assert untouched(home)


def test_nobody_sees_a_part_of_a_directory_that_is_removed(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "a.b2nd")
    for name in (INDEX, "0", "1"):
        store.create(name, b"x")
    seen = []
    unlink = os.unlink

    def look(path, **options):
        seen.append((tmp_path / "a.b2nd").exists())
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", look)
    store.remove(INDEX, everything)
    assert seen == [False] * 4


def test_a_directory_that_cannot_be_renamed_loses_its_index_first(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "a.b2nd")
    for name in ("0", INDEX, "1"):
        store.create(name, b"x")
    removed = []
    unlink = os.unlink

    def look(path, **options):
        removed.append(path)
        unlink(path, **options)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "unlink", look)
    monkeypatch.setattr(os, "rename", refuse)
    store.remove(INDEX, everything)
    assert (removed[0], removed[-1]) == (INDEX, LOCK)
    assert names(tmp_path) == []


def test_withdrawing_leaves_alone_what_another_writer_has_put_there(tmp_path):
    store = LocalStore(tmp_path / "a.b2nd")
    made = {name: store.create(name, name.encode()).digest for name in ("0", "1", "2")}
    (tmp_path / "theirs").write_bytes(b"1")
    (tmp_path / "theirs").replace(tmp_path / "a.b2nd" / "1")
    (tmp_path / "a.b2nd" / "2").unlink()
    store.withdraw(made)
    assert names(tmp_path / "a.b2nd") == ["1"]
    (tmp_path / "a.b2nd" / "1").unlink()
    (tmp_path / "a.b2nd").rmdir()
    store.withdraw(made)


def test_a_system_without_names_relative_to_descriptors_does_the_same(tmp_path, home, monkeypatch):
    monkeypatch.setattr(os, "supports_dir_fd", set())
    spec = importlib.util.spec_from_file_location("links_without_descriptors", links.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # for its dataclass
    spec.loader.exec_module(module)
    inner = tmp_path / "group" / "a.b2nd"
    inner.mkdir(parents=True)
    (inner / "0").write_bytes(b"x")
    (inner / "link").symlink_to(home)
    with module.open_directory(str(inner), (str(inner.parent), str(inner))) as here:
        assert here.fd is None
        assert here.names() == (["0"], ["link"])
        assert here.status("0").st_size == 1
        here.rename("0", "1")
        here.remove("1")
        here.remove("link")
    with module.open_directory(str(inner.parent)) as above:
        above.remove_directory("a.b2nd")
    inner.symlink_to(home)
    with pytest.raises(FormatError, match=r"a\.b2nd"), module.open_directory(str(inner), (str(inner),)):
        pass
    assert untouched(home)


# ---- hard links ----


@pytest.mark.parametrize("verb", ["append", "patch"])
def test_a_file_with_two_names_is_not_changed_in_place(tmp_path, verb):
    store = LocalStore(tmp_path / "a.b2nd")
    store.create("", b"frame")
    (tmp_path / "b.b2nd").hardlink_to(tmp_path / "a.b2nd")
    for name in ("a.b2nd", "b.b2nd"):
        with pytest.raises(UnsupportedError, match=rf"{name}: expected a file with one name, found 2 hard links.*Copy"):
            getattr(LocalStore(tmp_path / name), verb)("", 0, b"x")
    assert (tmp_path / "a.b2nd").read_bytes() == b"frame"
    (tmp_path / "b.b2nd").unlink()
    getattr(store, verb)("", 0, b"x")


def test_the_temporary_name_of_a_file_that_was_just_made_is_no_second_name(tmp_path):
    store = LocalStore(tmp_path / "a.b2nd")
    store.create("", b"frame")
    (tmp_path / "a.b2nd.0123456789abcdef.b2tmp").hardlink_to(tmp_path / "a.b2nd")
    store.patch("", 0, b"x")
    assert (tmp_path / "a.b2nd").read_bytes() == b"xrame"
    (tmp_path / "c.b2nd").hardlink_to(tmp_path / "a.b2nd")
    with pytest.raises(UnsupportedError, match="found 2 hard links"):
        store.patch("", 0, b"x")


def test_replacing_a_file_gives_one_of_its_names_a_new_file(tmp_path):
    store = LocalStore(tmp_path / "a.b2nd")
    store.create("", b"frame")
    (tmp_path / "b.b2nd").hardlink_to(tmp_path / "a.b2nd")
    store.replace("", b"new", expected=store.stamp("").version)
    store.append("", 3, b"er")
    assert [(tmp_path / name).read_bytes() for name in ("a.b2nd", "b.b2nd")] == [b"newer", b"frame"]
