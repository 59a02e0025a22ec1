"""Several writers of one group: nothing that was committed is lost, nothing else is shown, whoever is killed."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from clouds import Cloud
from operations import compare, in_a_child

import b2array
from b2array import config, open_group
from b2array.catalog.manifest import Manifest
from b2array.commit import on_disk, publication
from b2array.commit.frame_commit import frame_lock
from b2array.errors import ConflictError
from b2array.format import summary
from b2array.group.local_group import LocalGroup
from b2array.store import disk, links
from b2array.store.local_store import LocalStore
from b2array.store.open import open_store

LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])
ROWS = (6, 100)

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are killed in processes of their own"),
]


def killed_after_the_commit(url: str, change: Callable[[b2array.Group], object]) -> None:
    """Let a writer be killed when its transaction is committed and nothing of it was carried out."""

    def task() -> None:
        publication.publish_step = lambda *_, **__: os._exit(0)
        with open_group(url, "r+").transaction() as changes:
            change(changes)

    in_a_child(task)


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Return the URL of a group with two arrays of zeros."""
    url = str(tmp_path / "g.b2d")
    group = open_group(url, "w")
    with group.transaction() as changes:
        for name in "xy":
            changes.create(name, data=np.zeros(ROWS), chunks=(2, 50), layout=request.param)
    return url


both_layouts = pytest.mark.parametrize("pair", ["contiguous", "sparse"], indirect=True)


def fill(value: float) -> Callable[[b2array.Group], None]:
    def change(group: b2array.Group) -> None:
        group["x"][:] = value
        group["y"][:] = value

    return change


def values(url: str, mode: Any = "r") -> dict[str, float]:
    group = open_group(url, mode)
    found = {}
    for name in group:
        items = group[name][...]
        assert (items == items.flat[0]).all(), name
        found[name] = float(items.flat[0])
    return found


def test_a_transaction_that_fails_does_not_show_what_another_one_has_made(tmp_path: Path) -> None:
    open_group(tmp_path / "g", "w")

    def fails() -> None:
        with open_group(tmp_path / "g", "r+").transaction() as second:
            second.create("a", data=np.zeros(3))
            raise ZeroDivisionError

    with open_group(tmp_path / "g", "r+").transaction() as first:
        first.create("a", data=np.ones(3))
        with pytest.raises(ZeroDivisionError):
            fails()
        assert list(open_group(tmp_path / "g")) == []
    assert open_group(tmp_path / "g")["a"][...].tolist() == [1, 1, 1]


def test_of_two_transactions_that_make_one_name_the_second_is_told(tmp_path: Path) -> None:
    open_group(tmp_path / "g", "w")

    def both() -> None:
        with open_group(tmp_path / "g", "r+").transaction() as first:
            first.create("a", data=np.zeros(3))
            with open_group(tmp_path / "g", "r+").transaction() as second:
                second.create("a", data=np.ones(3))

    with pytest.raises(ConflictError, match="another writer has made"):
        both()
    assert values(str(tmp_path / "g")) == {"a": 1}
    b2array.vacuum(tmp_path / "g", grace=0)
    assert values(str(tmp_path / "g")) == {"a": 1}


def test_a_writer_that_is_killed_while_it_makes_a_member_hides_no_other_one(tmp_path: Path) -> None:
    url = str(tmp_path / "g")
    open_group(url, "w")

    def made_and_killed() -> None:
        on_disk.write_manifest = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        with open_group(url, "r+").transaction() as changes:
            changes.create("a", data=np.zeros(5))

    in_a_child(made_and_killed)
    with open_group(url, "r+").transaction() as changes:
        changes.create("a", data=np.ones(5))
    in_a_child(made_and_killed)
    assert values(url) == values(url, "r+") == {"a": 1}
    b2array.vacuum(url, grace=0)
    assert values(url) == {"a": 1}
    assert not [path for path in Path(url).iterdir() if path.name.endswith(".b2tmp")]


@both_layouts
@pytest.mark.parametrize("way", ["group", "url", "link", "repack", "open handle", "attribute", "vacuum", "lock"])
def test_whoever_writes_a_member_completes_what_a_killed_writer_has_committed(
    pair: str, way: str, tmp_path: Path
) -> None:
    handle = open_group(pair, "r+")["x"]
    killed_after_the_commit(pair, fill(7))
    assert values(pair) == {"x": 7, "y": 7}
    assert b2array.open(f"{pair}/x.b2nd")[0, 0] == 0
    expected = 7.0
    if way == "repack":
        b2array.repack(f"{pair}/x.b2nd")
    elif way == "vacuum":
        b2array.vacuum(f"{pair}/x.b2nd", grace=0)
    else:
        if way == "group":
            handle = open_group(pair, "r+")["x"]
        elif way == "url":
            handle = b2array.open(f"{pair}/x.b2nd", "r+")
        elif way == "link":
            (tmp_path / "link.b2nd").symlink_to(f"{pair}/x.b2nd")
            handle = b2array.open(tmp_path / "link.b2nd", "r+")
        if way == "attribute":
            handle.attrs["unit"] = "m"
        elif way == "lock":
            with handle.lock():
                handle[:] = handle[0, 0] + 1
            expected = 8.0
        else:
            handle[5, 99] = 7
    assert values(pair) == {"x": expected, "y": 7}
    open_group(pair, "r+").attrs["z"] = 1
    assert values(pair) == values(pair, "r+") == {"x": expected, "y": 7}
    for name in "xy":
        assert b2array.open(f"{pair}/{name}.b2nd")[3, 3] == {"x": expected, "y": 7}[name]
        assert b2array.verify(f"{pair}/{name}.b2nd", deep=True).ok


@both_layouts
def test_what_another_program_puts_in_the_place_of_a_member_stays(pair: str) -> None:
    import blosc2

    killed_after_the_commit(pair, fill(7))
    path = Path(pair, "x.b2nd")
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    blosc2.asarray(np.full(ROWS, 3.0), urlpath=str(path), mode="w")
    open_group(pair, "r+").attrs["z"] = 1
    assert values(pair) == {"x": 3, "y": 7}


@LAYOUTS
def test_an_array_that_is_made_by_its_own_url_takes_no_place_from_a_commit_that_waits(
    tmp_path: Path, layout: Any
) -> None:
    url, values_of_x = str(tmp_path / "g"), {"x": 7, "y": 7}

    def make_both(changes: b2array.Group) -> None:
        for name in "xy":
            changes.create(name, data=np.full(ROWS, 7.0), chunks=(2, 50), layout=layout)

    open_group(url, "w").attrs["z"] = 1
    killed_after_the_commit(url, make_both)
    for other in ("contiguous", "sparse"):
        with pytest.raises(FileExistsError):
            b2array.asarray(np.ones(ROWS), url=f"{url}/x.b2nd", layout=other)
    assert values(url) == values_of_x
    open_group(url, "r+").attrs["z"] = 2
    assert values(url) == values_of_x
    b2array.asarray(np.ones(ROWS), url=f"{url}/x.b2nd", overwrite=True)
    assert values(url) == {"x": 1, "y": 7}


@both_layouts
def test_a_manifest_with_the_times_of_an_earlier_one_is_read_again(pair: str, tmp_path: Path) -> None:
    manifest, kept = Path(pair, ".b2group"), tmp_path / "kept"

    def write_and_die(*args: Any, write: Any = on_disk.write_manifest, **options: Any) -> None:
        write(*args, **options)
        os._exit(0)

    def task() -> None:
        on_disk.write_manifest = write_and_die
        with open_group(pair, "r+").transaction() as changes:
            fill(8)(changes)

    killed_after_the_commit(pair, fill(7))
    b2array.open(f"{pair}/x.b2nd", "r+")[:] = 7  # a new attribute would make the next manifest longer
    os.link(manifest, kept)
    before = manifest.stat()
    in_a_child(task)
    # Where times are coarse, a new file can get number, size and times of one that was replaced a moment ago.
    kept.write_bytes(manifest.read_bytes())
    os.utime(kept, ns=(before.st_atime_ns, before.st_mtime_ns))
    kept.replace(manifest)
    after = manifest.stat()
    assert [after.st_ino, after.st_mtime_ns, after.st_size] == [before.st_ino, before.st_mtime_ns, before.st_size]
    b2array.open(f"{pair}/y.b2nd", "r+").attrs["n"] = 2
    assert values(pair) == values(pair, "r+") == {"x": 8, "y": 8}


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_change_of_a_group_inside_the_lock_of_a_member_is_an_error(tmp_path: Path, layout: Any) -> None:
    group = open_group(tmp_path / "g.b2d", "w")
    group.create("x", data=[1, 2], layout=layout)
    alone = b2array.asarray([1], url=tmp_path / "alone.b2nd")
    link = tmp_path / "link.b2d"
    link.symlink_to(tmp_path / "g.b2d")
    for url in (tmp_path / "g.b2d", link):
        x = open_group(url, "r+")["x"]
        with x.lock():
            with pytest.raises(RuntimeError, match=r"found one that holds .*x\.b2nd.*outside of lock"):
                group["y"] = [3]
            x[0] = 5  # one array is one step
    with alone.lock():
        group["y"] = [3]
    assert (group["x"][0], [*group]) == (5, ["x", "y"])


def test_a_deletion_is_completed_whose_writer_was_killed_while_the_file_had_two_names(tmp_path: Path) -> None:
    url = str(tmp_path / "g.b2d")
    group = open_group(url, "w")
    for name in "xy":
        group.create(name, data=[1, 2], layout="contiguous")
    killed_after_the_commit(url, lambda changes: changes.__delitem__("x"))
    log = LocalGroup(url, {}).load_manifest().pending
    os.link(f"{url}/x.b2nd", f"{url}/{log['x.b2nd'].aside('x.b2nd')}")
    open_group(url, "r+")["y"][0] = 5
    with open_group(url, "r+").transaction() as changes:
        changes["y"][1] = 6
    assert LocalGroup(url, {}).load_manifest().pending == {}
    assert not [*Path(url).glob("x.*")]
    assert open_group(url)["y"][:].tolist() == [5, 6]


@pytest.fixture(params=[True, False], ids=["with a manifest", "without"])
def nested(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A group, and another one inside it that was made before; it may have had no commit that needs a manifest."""
    outer, inner = str(tmp_path / "outer"), str(tmp_path / "outer" / "inner")
    for url, names in (inner, "xz"), (outer, "y"):
        group = open_group(url, "w" if url == inner else "a")
        for name in names:
            group.create(name, data=np.zeros(6), chunks=(3,))
        if request.param:
            with group.transaction() as changes:
                for name in names:
                    changes[name][0] = 1
        else:
            for name in names:
                group[name][0] = 1
    return outer, inner


def test_a_commit_belongs_to_one_of_two_nested_groups(nested: tuple[str, str]) -> None:
    outer, inner = nested
    group = open_group(outer, "r+")
    assert [*group] == ["inner", "y"]
    for change in (
        lambda changes: changes["inner/x"].__setitem__(0, 7),
        lambda changes: changes.create("inner/new", data=[1]),
        lambda changes: changes.__delitem__("inner/x"),
        lambda changes: changes.move("y", "inner/y"),
    ):
        with (
            pytest.raises(ValueError, match=r"a separate group; .*outer/inner'"),
            group.transaction() as t,
        ):
            t["y"][0] = 5
            change(t)
    assert (group["y"][0], group["inner/x"][0], sorted(open_group(inner))) == (1, 1, ["x", "z"])
    with pytest.warns(UserWarning, match="'before' does not have 'inner/x'"):
        group.snapshot("before")
    assert sorted(name for name, _ in open_group(outer, at="before").walk()) == ["y"]
    group["inner/x"][3] = 9  # one array is one commit, whatever handle it comes from
    assert open_group(inner)["x"][:].tolist() == [1, 0, 0, 9, 0, 0]


def test_an_outer_group_shows_all_or_nothing_of_a_commit_of_the_group_inside_it(nested: tuple[str, str]) -> None:
    outer, inner = nested
    group = open_group(outer)
    assert group["inner/x"][1] == 0

    def change(changes: b2array.Group) -> None:
        for name in "xz":
            changes[name][1] = 7

    killed_after_the_commit(inner, change)
    assert group["inner/z"][1] == 0  # it belongs to the state of "x" that this handle has shown
    group.refresh()
    for again in (group, open_group(outer), open_group(outer, "r+")):
        assert [again[f"inner/{name}"][1] for name in "xz"] == [7, 7]
    b2array.open(f"{inner}/x.b2nd", "r+")[3] = 9
    assert [open_group(outer)[f"inner/{name}"][:4].tolist() for name in "xz"] == [[1, 7, 0, 9], [1, 7, 0, 0]]


def test_an_outer_group_goes_back_to_a_snapshot_without_the_group_inside_it(nested: tuple[str, str]) -> None:
    outer, inner = nested
    group = open_group(outer, "r+")
    with pytest.warns(UserWarning, match="'before' does not have 'inner/x'"):
        group.snapshot("before")
    group["y"][3] = group["inner/x"][3] = 9
    group["new"] = [1]
    difference = group.diff("before")
    assert (difference.made, difference.deleted, [*difference.changed]) == (("new",), (), ["y"])
    group.restore("before")
    assert [*group] == ["inner", "y"]
    assert group["y"][:].tolist() == [1, 0, 0, 0, 0, 0]
    assert open_group(inner)["x"][:].tolist() == [1, 0, 0, 9, 0, 0]


@pytest.mark.parametrize("url", ["memory://shows-all.b2d", "local"])
def test_a_handle_shows_all_that_was_committed_through_it(url: str, tmp_path: Path) -> None:
    group = open_group(str(tmp_path / "g") if url == "local" else url, "w")
    group["a"], group["b"] = [1], [2]
    with group.transaction() as changes:
        changes["made"] = [3]
        group["new"] = [4]
        del group["b"]
    assert [*group] == ["a", "made", "new"]
    assert group["new"][0] == 4


def test_a_fork_of_an_outer_group_has_its_own_members(nested: tuple[str, str]) -> None:
    group = open_group(nested[0], "r+")
    with group.transaction() as changes:
        fork = pickle.loads(pickle.dumps(changes.fork()))
        with pytest.raises(ValueError, match="a separate group"):
            fork["inner/x"]
        fork["y"][0] = 8
        changes.merge(pickle.loads(pickle.dumps(fork)))
    assert group["y"][0] == 8


def test_a_change_in_a_group_takes_nothing_from_snapshots_of_the_group_around_it(nested: tuple[str, str]) -> None:
    outer, inner = nested
    with pytest.warns(UserWarning, match="'before' does not have 'inner/x'"):
        open_group(outer, "r+").snapshot("before")
    del open_group(inner, "r+")["x"]
    b2array.asarray([5], url=f"{inner}/z.b2nd", overwrite=True)
    assert sorted(name for name, _ in open_group(outer, at="before").walk()) == ["y"]
    assert b2array.verify(outer, deep=True).ok
    assert open_group(outer)["inner/z"][:].tolist() == [5]


def test_in_an_object_store_a_group_has_one_owner_of_each_member() -> None:
    """The outer group shows what is inside it until a commit lists its own members; it never changes the others."""
    inner = open_group("memory://owned/inner.b2d", "w")
    inner["x"] = np.arange(6)
    outer = open_group("memory://owned", "a")
    assert outer["inner.b2d/x"][:].tolist() == [0, 1, 2, 3, 4, 5]
    outer["inner.b2d/x"][0] = 7
    assert open_group("memory://owned/inner.b2d")["x"][0] == 7
    with pytest.raises(ValueError, match="separate group"):
        del outer["inner.b2d/x"]
    outer["y"] = [1]
    assert [*open_group("memory://owned")] == ["y"]
    inner.refresh()
    inner["x"][1] = 8
    for layout in ("sparse", "contiguous"):
        inner.create(layout, data=np.arange(5), layout=layout)
    before = {name: inner[name][:].tolist() for name in inner}
    b2array.vacuum("memory://owned", grace=0)
    assert b2array.verify("memory://owned/inner.b2d", deep=True).ok
    assert {name: each[:].tolist() for name, each in open_group("memory://owned/inner.b2d").items()} == before
    assert before["x"] == [7, 8, 2, 3, 4, 5]


@LAYOUTS
def test_an_outer_group_in_an_object_store_shows_one_commit_of_the_group_inside_it(
    layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://shows-one-commit-{layout}.b2d"
    compare(type(open_store(url)), monkeypatch)
    inner = open_group(f"{url}/inner", "w")
    for name in "xyz":
        inner.create(name, data=np.zeros(4), chunks=(2,), layout=layout)
    outer, late, other = (open_group(url, "a") for _ in range(3))
    assert (outer["inner/x"][0], late["inner/x"][0], other["inner/x"][0]) == (0, 0, 0)
    with inner.transaction() as changes:
        changes["x"][0] = changes["y"][0] = 1
        changes["new"] = [1]
        del changes["z"]
    copy = pickle.loads(pickle.dumps(outer))
    assert (outer["inner/y"][0], copy["inner/y"][0]) == (0, 0)  # as it was when the handle has shown "x"
    with pytest.raises(ConflictError, match=r"changed since it was opened; call refresh\(\)"):
        outer["inner/z"]
    with pytest.raises(KeyError, match=r"refresh\(\) shows all of it"):
        outer["inner/new"]
    other["inner/x"][1] = 7  # its own commit shows those before it
    assert [other[f"inner/{name}"][:2].tolist() for name in "xy"] == [[1, 7], [1, 0]]
    b2array.vacuum(inner.url, grace=0)
    with pytest.raises(ConflictError, match=r"call refresh\(\)"):
        late["inner/y"]
    for again in (outer, copy, late):
        again.refresh()
        assert [each[0] for each in (again["inner/x"], again["inner/y"], again["inner/new"])] == [1, 1, 1]
        assert "inner/z" not in again
    inner.refresh()
    inner["newer"] = [1]
    with pytest.raises(ConflictError, match=r"call refresh\(\)"):
        outer["inner/newer"]


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize("other", ["drops the snapshot", "makes the member again"])
@pytest.mark.slow
def test_a_member_goes_although_what_a_snapshot_needed_of_it_was_changed_meanwhile(
    tmp_path: Path, layout: Any, other: str
) -> None:
    url = str(tmp_path / "g")
    group = open_group(url, "w")
    for name in "ab":
        # So many chunks that the list of the snapshot is an object of its own.
        group.create(name, data=np.arange(4000.0), chunks=(2,), blocks=(2,), layout=layout)
    group.snapshot("before")
    with suppress(ConflictError), open_group(url, "r+").transaction() as changes:
        del changes["a"]
        if other == "drops the snapshot":
            open_group(url, "r+").drop_snapshot("before")
        else:
            with open_group(url, "r+").transaction() as others:
                del others["a"]
                others.create("a", data=np.ones(3), layout=layout)
    now = open_group(url)
    assert "a" not in now or now["a"][:].tolist() == [1, 1, 1]
    if other != "drops the snapshot":
        assert open_group(url, at="before")["a"][5] == 5
    assert b2array.verify(url, deep=True).ok


def test_a_snapshot_that_is_made_while_a_transaction_deletes_a_member_keeps_the_member(tmp_path: Path) -> None:
    url = str(tmp_path / "g")
    open_group(url, "w").update({"a": np.arange(10), "b": np.arange(5)})
    with open_group(url, "r+").transaction() as changes:
        del changes["a"]
        open_group(url, "r+").snapshot("before")
    assert [*open_group(url)] == ["b"]
    assert open_group(url, at="before")["a"][:].tolist() == [*range(10)]


@both_layouts
def test_who_makes_an_array_while_he_holds_the_lock_of_another_one_waits_for_no_transaction(pair: str) -> None:
    begun, told = threading.Event(), []

    def transact() -> None:
        with suppress(ConflictError), open_group(pair, "r+").transaction() as changes:
            changes["x"][0] = 5
            begun.set()
        told.append(True)

    x = b2array.open(f"{pair}/x.b2nd", "r+")
    with x.lock():
        thread = threading.Thread(target=transact, daemon=True)
        thread.start()
        assert begun.wait(30)
        time.sleep(0.2)
        b2array.asarray(np.arange(3), url=f"{pair}/new.b2nd")
        x[1] = 6
    thread.join(30)
    assert told == [True]
    assert open_group(pair)["new"][:].tolist() == [0, 1, 2]


@LAYOUTS
@pytest.mark.parametrize("others_first", [False, True])
@pytest.mark.parametrize("name", ["x", "new"])
def test_a_handle_goes_on_after_a_commit_that_could_not_be_carried_out_at_once(
    tmp_path: Path, layout: Any, name: str, others_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "g")
    open_group(url, "w").create("x", data=np.zeros(8), chunks=(4,), layout=layout)

    def fail(*_: object, **__: object) -> None:
        raise OSError

    with monkeypatch.context() as full, open_group(url, "r+").transaction() as changes:
        array = changes[name] if name == "x" else changes.create(name, data=np.zeros(8), chunks=(4,), layout=layout)
        array[2] = 50
        changes.attrs["n"] = 1
        full.setattr(publication, "publish_step", fail)
    if others_first:
        open_group(url, "r+").attrs["carried"] = "out"
    array[0], array[5] = 77, 78
    assert array[:].tolist() == open_group(url)[name][:].tolist() == [77, 0, 50, 0, 0, 78, 0, 0]
    open_group(url, "r+").attrs["n"] = 2
    assert array[:].tolist() == open_group(url)[name][:].tolist()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid(), reason="needs a second user")
def test_who_may_not_lock_a_group_makes_arrays_in_a_directory_of_his_inside_of_it() -> None:
    with tempfile.TemporaryDirectory() as outer:  # the directories of pytest are closed to other users
        Path(outer).chmod(0o755)
        url = f"{outer}/g"
        with open_group(url, "w").transaction() as changes:
            changes["a"] = np.zeros(3)
        mine = Path(url, "mine")
        mine.mkdir()
        mine.chmod(0o777)
        pid = os.fork()
        if not pid:
            try:
                os.setuid(65534)
                b2array.asarray(np.arange(3), url=mine / "x.b2nd")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert b2array.open(mine / "x.b2nd")[:].tolist() == [0, 1, 2]


@LAYOUTS
@pytest.mark.parametrize("fails", [True, False])
def test_a_forked_process_takes_nothing_from_the_transaction_of_its_parent(
    tmp_path: Path, layout: Any, fails: bool
) -> None:
    group, pid = open_group(tmp_path / "g.b2d", "w"), -1
    group["goes"] = [1]
    try:
        with group.transaction() as changes:
            changes.create("x", data=np.arange(10), chunks=(3,), layout=layout)
            del changes["goes"]
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
                assert [*open_group(tmp_path / "g.b2d")] == ["goes"]
            elif fails:
                raise SystemExit
    finally:
        if not pid:
            os._exit(0)
    assert {name: group[name][:].tolist() for name in group} == {"x": [*range(10)]}
    assert b2array.verify(tmp_path / "g.b2d", deep=True).ok


@both_layouts
def test_a_member_is_repaired_after_the_commit_that_waits_for_it(pair: str) -> None:
    killed_after_the_commit(pair, fill(7))
    b2array.repair(f"{pair}/x.b2nd")
    assert b2array.open(f"{pair}/x.b2nd")[0, 0] == 7
    assert values(pair) == {"x": 7, "y": 7}


@pytest.mark.costly
@LAYOUTS
def test_a_damaged_member_stops_no_other_one(tmp_path: Path, layout: Any) -> None:
    url = str(tmp_path / "g")
    group = open_group(url, "w")
    for name in "xyz":
        group.create(name, data=np.zeros(ROWS), chunks=(2, 50), layout=layout)
    killed_after_the_commit(url, fill(7))
    frame = Path(url, "x.b2nd") / ("chunks.b2frame" if layout == "sparse" else "")
    frame.write_bytes(frame.read_bytes()[:60])
    with open_group(url, "r+").transaction() as changes:
        changes["y"][:] = 8
        changes["z"][:] = 8
    group = open_group(url)
    assert (group["y"][0, 0], group["z"][0, 0]) == (8, 8)
    with pytest.raises((b2array.errors.FormatError, ConflictError)):
        group["x"]
    del open_group(url, "r+")["x"]
    assert values(url) == {"y": 8, "z": 8}


@pytest.mark.parametrize("place", ["local", "memory"])
@LAYOUTS
def test_a_handle_never_shows_members_of_two_transactions(tmp_path: Path, place: str, layout: Any) -> None:
    url = str(tmp_path / "g") if place == "local" else f"memory://{tmp_path.name}.b2d"
    group = open_group(url, "w")

    def make(value: float) -> None:
        with group.transaction() as changes:
            for name in "ab":
                changes.create(name, data=np.full(4, value), layout=layout)

    make(1)
    reader = open_group(url)
    assert reader["a"][0] == 1
    with group.transaction() as changes:
        del changes["a"], changes["b"]
    make(2)
    if place == "local":
        with pytest.raises(ConflictError):
            reader["b"]
    else:
        assert reader["b"][0] == 1
    reader.refresh()
    assert (reader["a"][0], reader["b"][0]) == (2, 2)


def test_in_memory_to_delete_a_member_leaves_the_chunks_of_one_that_is_being_made(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}.b2d"
    open_group(url, "w").create("c", data=np.zeros(ROWS), chunks=(2, 50), layout="sparse")
    with open_group(url, "r+").transaction() as changes:
        del changes["c"]
        changes.create("c", data=np.ones(ROWS), chunks=(2, 50), layout="sparse")
        del open_group(url, "r+")["c"]
    assert values(url) == {"c": 1}
    assert b2array.verify(url, deep=True).ok


def places(tmp_path: Path) -> dict[str, str]:
    return {"local": str(tmp_path / "g"), "memory": f"memory://{tmp_path.name}.b2d"}


each_place = pytest.mark.parametrize("place", ["local", "memory"])


def make(url: str, name: str, layout: Any, value: float = 0) -> b2array.Group:
    group = open_group(url, "r+" if list(open_group(url, "a")) else "a")
    group.create(name, data=np.full(ROWS, float(value)), chunks=(2, 50), layout=layout)
    return group


@each_place
@LAYOUTS
@pytest.mark.parametrize("change", ["items", "attribute", "again", "gone"])
def test_a_member_that_another_writer_changes_is_not_moved(
    tmp_path: Path, place: str, layout: Any, change: str
) -> None:
    url = places(tmp_path)[place]
    group = make(url, "x", layout)

    def move() -> None:
        with group.transaction() as changes:
            changes.move("x", "y")
            other = open_group(url, "r+")
            if change == "items":
                other["x"][0, 0] = 5
            elif change == "attribute":
                other["x"].attrs["unit"] = "m"
            elif change == "again":
                other["x"] = np.ones(3)
            else:
                del other["x"]

    with pytest.raises(ConflictError, match=r"x\.b2nd.* another writer"):
        move()
    assert list(open_group(url)) == ([] if change == "gone" else ["x"])


@each_place
@LAYOUTS
def test_a_member_that_was_changed_in_the_transaction_is_moved(tmp_path: Path, place: str, layout: Any) -> None:
    url = places(tmp_path)[place]
    with make(url, "x", layout).transaction() as changes:
        changes["x"][...] = 3
        changes.move("x", "y")
        changes.move("y", "z")
    assert values(url) == {"z": 3}


@each_place
@LAYOUTS
def test_a_transaction_is_told_of_a_conflict_if_its_member_was_deleted(tmp_path: Path, place: str, layout: Any) -> None:
    url = places(tmp_path)[place]
    group = make(url, "x", layout)

    def change() -> None:
        with group.transaction() as changes:
            changes["x"][0, 0] = 4
            del open_group(url, "r+")["x"]

    with pytest.raises(ConflictError, match="was deleted"):
        change()
    assert list(open_group(url)) == []


def test_a_transaction_is_told_of_a_conflict_if_its_member_is_deleted_while_it_writes_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "g")
    group = make(url, "x", "sparse")
    make_directories = disk.make_directories

    def too_late(path: str, *root: Any) -> list[str]:
        new = make_directories(path, *root)
        if path.endswith("x.b2nd"):
            monkeypatch.undo()
            del open_group(url, "r+")["x"]
        return new

    def change() -> None:
        with group.transaction() as changes:
            array = changes["x"]
            monkeypatch.setattr(disk, "make_directories", too_late)
            array[:4] = 4

    with pytest.raises(ConflictError, match="was deleted or moved since"):
        change()


@pytest.mark.parametrize(("layout", "then"), [("sparse", "contiguous"), ("contiguous", "sparse")])
def test_a_transaction_is_told_of_a_conflict_if_its_member_has_another_layout_now(
    tmp_path: Path, layout: Any, then: Any
) -> None:
    url = str(tmp_path / "g")
    group = make(url, "x", layout)

    def change() -> None:
        with group.transaction() as changes:
            changes["x"][0, 0] = 4
            open_group(url, "r+").create("x", data=np.ones(ROWS), layout=then, overwrite=True)

    with pytest.raises(ConflictError, match=r"was deleted|was replaced by a file"):
        change()
    assert values(url) == {"x": 1}


@each_place
@LAYOUTS
def test_a_transaction_is_told_of_a_conflict_if_another_writer_has_the_name_by_then(
    tmp_path: Path, place: str, layout: Any
) -> None:
    url = places(tmp_path)[place]
    group = make(url, "y", layout)

    def change() -> None:
        with group.transaction() as changes:
            make(url, "x", layout, 1)
            changes.create("x", data=np.zeros(3), layout=layout)

    with pytest.raises(ConflictError, match="another writer"):
        change()
    assert values(url) == {"x": 1, "y": 0}


@pytest.mark.parametrize("place", ["local", "memory", "memory as a server"])
@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
def test_a_transaction_changes_a_member_that_was_replaced_before_it_opened_it(
    tmp_path: Path, place: str, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In object stores, a member has another path after its layout has changed. The transaction has listed that one."""
    url = places(tmp_path)["local" if place == "local" else "memory"]
    if place == "memory as a server":
        compare(type(open_store(url)), monkeypatch)
    group = make(url, "x", "contiguous" if layout == "sparse" else "sparse")
    with group.transaction() as changes:
        del changes["x"]
        changes.create("x", data=np.zeros(ROWS), layout=layout)
    with group.transaction() as changes:
        make(url, "y", layout, 1).create("x", data=np.ones(ROWS), layout=layout, overwrite=True)
        array = changes["x"]
        array.attrs["unit"] = "m"
    for each in (array, group["x"], open_group(url)["x"]):
        assert each.attrs == {"unit": "m"}
        assert (each[...] == 1).all()
    assert values(url) == {"x": 1, "y": 1}


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize("length", [2, 9], ids=["at the commit", "at once"])
@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
def test_a_transaction_is_told_of_a_conflict_if_the_name_has_the_other_layout_by_then(
    tmp_path: Path, place: str, length: int, layout: Any
) -> None:
    """A full chunk of a sparse member is written at once, and the last one at the commit."""
    url = places(tmp_path)[place]
    group = make(url, "y", layout)

    def change() -> None:
        with group.transaction() as changes:
            array = changes.create("x", data=np.arange(4), chunks=(4,), layout=layout)
            make(url, "x", "contiguous" if layout == "sparse" else "sparse", 1)
            array.append(np.arange(length))

    with pytest.raises(ConflictError, match=r"another writer|was replaced by a file"):
        change()
    assert values(url) == {"x": 1, "y": 0}


@pytest.mark.parametrize("place", ["local", "memory", "s3", "gcs"])
@LAYOUTS
def test_an_array_that_was_opened_where_it_waited_for_its_place_is_read_when_it_is_there(
    tmp_path: Path, place: str, layout: Any, monkeypatch: pytest.MonkeyPatch, cloud_of: Callable[[str], Cloud]
) -> None:
    options: dict[str, Any] = {}
    if place in ("local", "memory"):
        url = places(tmp_path)[place]
    else:
        options["storage_options"] = cloud_of(place).options
        url = f"{cloud_of(place).make_bucket(f'waiting-{layout}')}/g.b2d"
    group = open_group(url, "w", **options)
    group["x"] = np.zeros(ROWS)

    def stopped(*_: object, **__: object) -> None:
        raise OSError

    with monkeypatch.context() as slow:
        slow.setattr(publication, "publish_step", stopped)
        with group.transaction() as changes:
            del changes["x"]
            changes.create("x", data=np.ones(ROWS), chunks=(2, 50), layout=layout)
        early = open_group(url, **options)["x"]
    open_group(url, "r+", **options).attrs["done"] = True
    assert (early[...] == 1).all()
    assert (open_group(url, **options)["x"][...] == 1).all()


def once(verb: Callable[[], object], monkeypatch: pytest.MonkeyPatch, owner: object, name: str, nth: int = 0) -> None:
    """Call `verb` before a later call of a function or method: the next one, or the `nth` after it."""
    original, calls = getattr(owner, name), []

    def overtaken(*args: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) == nth + 1:
            verb()
        return original(*args, **options)

    monkeypatch.setattr(owner, name, overtaken)


def made_again(url: str, layout: Any) -> None:
    """Let a writer be killed when it has committed that both of a pair are deleted and made again."""

    def again(changes: b2array.Group) -> None:
        for name in "xy":
            del changes[name]
            changes.create(name, data=np.full(ROWS, 7.0), chunks=(2, 50), layout=layout)

    killed_after_the_commit(url, again)


@pytest.mark.parametrize(("pair", "layout"), [("sparse", "contiguous"), ("contiguous", "sparse")], indirect=["pair"])
@pytest.mark.parametrize("nth", range(9))
def test_a_reader_lists_members_whose_places_change_while_it_looks(
    pair: str, layout: Any, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_again(pair, layout)

    def carry_out() -> None:
        monkeypatch.undo()
        open_group(pair, "r+")

    once(carry_out, monkeypatch, links, "open_itself", nth)
    assert values(pair) == {"x": 7, "y": 7}


@both_layouts
@pytest.mark.parametrize("nth", range(9))
def test_a_reader_lists_members_that_go_aside_before_the_new_ones_come(
    pair: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems that do not swap names in one step."""
    made_again(pair, "sparse" if Path(pair, "x.b2nd").is_file() else "contiguous")
    monkeypatch.setattr(disk, "swap", lambda *_: False)
    aside, go_on = threading.Event(), threading.Event()
    move_here = LocalStore.move_here

    def slowly(store: LocalStore, other: LocalStore) -> None:
        if store.url.endswith("x.b2nd"):
            aside.set()
            go_on.wait(60)
        move_here(store, other)

    monkeypatch.setattr(LocalStore, "move_here", slowly)
    writer = threading.Thread(target=open_group, args=[pair, "r+"])
    writer.start()
    aside.wait(60)

    def carry_on() -> None:
        go_on.set()
        writer.join()

    assert not Path(pair, "x.b2nd").exists()
    once(carry_on, monkeypatch, links, "open_itself", nth)
    try:
        assert list(open_group(pair)) == ["x", "y"]
        assert values(pair) == {"x": 7, "y": 7}
    finally:
        carry_on()


@LAYOUTS
@pytest.mark.parametrize("then", ["contiguous", "sparse"])
@pytest.mark.parametrize("nth", range(3))
def test_a_name_that_another_writer_has_made_and_deleted_meanwhile_is_free(
    tmp_path: Path, layout: Any, then: Any, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "g")
    group = make(url, "y", layout)
    deleted = []

    def delete() -> None:
        monkeypatch.undo()
        del open_group(url, "r+")["x"]
        deleted.append("x")

    with group.transaction() as changes:
        make(url, "x", layout, 1)
        once(delete, monkeypatch, links, "open_itself", nth)
        with suppress(ConflictError):
            changes.create("x", data=np.full(ROWS, 2.0), layout=then)
        monkeypatch.undo()
    assert deleted
    assert values(url).items() <= {"x": 2, "y": 0}.items()


@pytest.mark.parametrize("verb", ["copy", "move"])
def test_a_member_that_a_file_replaces_while_it_is_copied_is_a_conflict(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "g")
    group = make(url, "x", "sparse", 3)

    def again() -> None:
        monkeypatch.undo()
        open_group(url, "r+").create("x", data=np.ones(ROWS), layout="contiguous", overwrite=True)

    def carry() -> None:
        with group.transaction() as changes:
            once(again, monkeypatch, LocalStore, "read")
            if verb == "copy":
                changes.copy("x", changes, "y")
            else:
                changes.move("x", "y")

    with pytest.raises(ConflictError, match="made again"):
        carry()
    assert values(url) == {"x": 1}


@LAYOUTS
def test_a_member_that_was_deleted_does_not_come_back_because_a_killed_writer_has_left_a_log(
    tmp_path: Path, layout: Any
) -> None:
    url = str(tmp_path / "g")
    make(url, "y", layout)

    def made_and_killed() -> None:
        publication.discard = lambda *_, **__: os._exit(0)  # the new member has its place by then
        with open_group(url, "r+").transaction() as changes:
            changes.create("x", data=np.ones(ROWS), layout=layout)

    in_a_child(made_and_killed)
    assert values(url) == {"x": 1, "y": 0}
    del open_group(url, "r+")["x"]
    assert values(url) == values(url, "r+") == {"y": 0}
    make(url, "x", layout, 2)
    assert values(url) == {"x": 2, "y": 0}


@both_layouts
@pytest.mark.parametrize("again", [False, True])
def test_a_backup_that_somebody_restores_stays_although_a_killed_writer_has_left_a_log(
    pair: str, again: bool, tmp_path: Path
) -> None:
    shutil.copytree(pair, tmp_path / "backup")

    def change(group: b2array.Group) -> None:
        for name in "xy":
            if again:
                del group[name]
                group.create(name, data=np.full(ROWS, 7.0), chunks=(2, 50))
            else:
                group[name][...] = 7

    def killed() -> None:
        settle = on_disk.publish_pending

        def settled(group: Any, manifest: Any, **options: Any) -> Any:
            left = settle(group, manifest, **options)
            if manifest.pending:
                os._exit(0)
            return left

        on_disk.publish_pending = settled
        with open_group(pair, "r+").transaction() as changes:
            change(changes)

    in_a_child(killed)
    assert values(pair) == {"x": 7, "y": 7}
    member = Path(pair, "x.b2nd")
    shutil.rmtree(member) if member.is_dir() else member.unlink()
    backup = tmp_path / "backup" / "x.b2nd"
    shutil.copytree(backup, member) if backup.is_dir() else shutil.copy(backup, member)
    assert values(pair) == values(pair, "r+") == {"x": 0, "y": 7}
    with open_group(pair, "r+").transaction() as changes:
        changes["x"][...] = changes["y"][...] = 8
    assert values(pair) == {"x": 8, "y": 8}


@pytest.mark.parametrize("count", [3, 1100])
def test_a_log_that_was_carried_out_goes(tmp_path: Path, count: int) -> None:
    group = open_group(tmp_path / "g", "w")
    group["x"] = [1.0]
    for n in range(1, count):
        shutil.copy(tmp_path / "g/x.b2nd", tmp_path / f"g/x{n}.b2nd")
    with open_group(tmp_path / "g", "r+").transaction() as changes:
        changes["x"][0] = 2
        changes["x1"][0] = 2
    found = Manifest.unpack((tmp_path / "g/.b2group").read_bytes())
    assert (found.number, found.pending) == (1, {})


@LAYOUTS
def test_a_new_member_takes_the_place_of_a_directory_that_a_late_writer_has_just_made(
    tmp_path: Path, layout: Any
) -> None:
    url = str(tmp_path / "g")
    group = make(url, "x", "sparse")
    for changing in (group.transaction, lambda: nullcontext(group)):
        del group["x"]
        (tmp_path / "g/x.b2nd").mkdir()
        with changing() as changes:
            changes.create("x", data=np.ones(ROWS), layout=layout)
        assert values(url) == values(url, "r+") == {"x": 1}
    del group["x"]
    (tmp_path / "g/x.b2nd").write_text("notes")
    with pytest.raises(FileExistsError), group.transaction() as changes:
        changes.create("x", data=np.ones(ROWS), layout=layout)
    assert (tmp_path / "g/x.b2nd").read_text() == "notes"


def test_a_new_member_takes_the_place_where_a_late_writer_has_left_chunks(tmp_path: Path) -> None:
    url = str(tmp_path / "g")
    group = make(url, "x", "sparse")
    late = tmp_path / "g/x.b2nd/00000009.chunk"
    del group["x"]
    late.parent.mkdir()
    late.write_bytes(b"late")
    with group.transaction() as changes:
        changes.create("x", data=np.ones(ROWS), layout="sparse")
    assert values(url) == {"x": 1}
    del group["x"]
    late.parent.mkdir()
    late.write_bytes(b"late")
    (late.parent / ".b2lock").touch()
    group.create("x", data=np.full(ROWS, 2.0), layout="contiguous")
    assert values(url) == {"x": 2}
    del group["x"]
    late.parent.mkdir()
    (late.parent / "notes.txt").touch()
    with pytest.raises(FileExistsError, match="is a directory"):
        group.create("x", data=np.zeros(3), layout="sparse")


@each_place
def test_a_write_in_a_transaction_to_a_member_that_was_deleted_is_a_conflict(tmp_path: Path, place: str) -> None:
    url = places(tmp_path)[place]
    group = make(url, "x", "contiguous")
    group["x"].append(np.ones((1, 100)))

    def append() -> None:
        with group.transaction() as changes:
            array = changes["x"]
            del open_group(url, "r+")["x"]
            array.append(np.ones((1, 100)))

    with pytest.raises(ConflictError):
        append()


@LAYOUTS
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_handle_that_lists_a_member_of_files_that_is_gone_says_so(tmp_path: Path, layout: Any, mode: Any) -> None:
    url = str(tmp_path / "g")
    make(url, "x", layout)
    group = open_group(url, mode)
    assert list(group) == ["x"]
    del open_group(url, "r+")["x"]
    with pytest.raises(ConflictError, match="refresh"):
        group["x"]
    group.refresh()
    with pytest.raises(KeyError):
        group["x"]


def test_the_first_transactions_of_a_group_mark_what_they_change_alike(tmp_path: Path) -> None:
    group = open_group(tmp_path / "g", "w")
    for name in "abc":
        group[name] = np.zeros(ROWS)
    with group.transaction() as first:
        first["a"][:] = first["b"][:] = 1
        with open_group(tmp_path / "g", "r+").transaction() as second:
            second["c"][:] = 2
        reader = open_group(tmp_path / "g")
        assert reader["a"][0, 0] == 0
    with pytest.raises(ConflictError, match="refresh"):
        reader["b"]


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize("base", ["", "memory://"])
def test_the_handle_of_a_member_whose_transaction_is_given_up_says_so(tmp_path: Path, base: str, layout: str) -> None:
    group = open_group(f"{base or tmp_path}/given-up-{layout}.b2d", "w")
    with suppress(ZeroDivisionError), group.transaction() as changes:
        new = changes.create("x", data=[1, 2], layout=layout)
        raise ZeroDivisionError
    assert new.shape == (2,)
    for use in (lambda: new[:], lambda: new.append([3]), lambda: new.attrs.update(a=1), new.refresh, new.sum):
        with pytest.raises(ConflictError, match=r"given up|has ended|changed since"):
            use()


def test_a_file_whose_name_is_no_text_stops_no_transaction(tmp_path: Path) -> None:
    group = open_group(tmp_path / "g", "w")
    group["x"] = [0.0]
    shutil.copyfile(tmp_path / "g/x.b2nd", os.fsencode(tmp_path / "g") + b"/\xff.b2nd")
    for value in (1, 2):
        with open_group(tmp_path / "g", "r+").transaction() as changes:
            changes["x"][0] = value
    assert values(str(tmp_path / "g")) == {"x": 2}
    open_group(tmp_path / "g", "r+").consolidate()


@pytest.fixture(autouse=True)
def _uncached() -> Iterator[None]:
    with config.using(cache_bytes=0), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*rewritten with every change")
        yield
    fsspec.filesystem("memory").store.clear()


def test_the_lock_of_a_draft_is_a_conflict_if_its_directory_became_a_file(tmp_path: Path) -> None:
    group = open_group(tmp_path / "g.b2d", "w")
    array = group.create("x", data=np.zeros(4), chunks=(2,), layout="sparse")
    draft = array._handle.new_draft()
    group.create("x", data=np.zeros(4), chunks=(2,), layout="contiguous", overwrite=True)
    with pytest.raises(ConflictError, match=r"open it again|changed since|deleted"):
        frame_lock(draft)
    draft.abort()


@both_layouts
def test_a_transaction_sees_what_others_wrote_since_the_last_one_of_its_handle(pair: str) -> None:
    group = open_group(pair, "r+")
    for number in range(1, 4):
        with group.transaction() as changes:
            changes["x"][0] = number
        b2array.open(f"{pair}/x.b2nd", "r+")[1] = number
        with group.transaction() as changes:
            assert changes["x"][:2].ravel()[0] == changes["x"][1].ravel()[0] == number
            changes["x"][2] = number
    assert [row.ravel()[0] for row in b2array.open(f"{pair}/x.b2nd")[:3]] == [3, 3, 3]


@both_layouts
def test_a_transaction_sees_a_member_that_others_made_again_since_the_last_one_of_its_handle(pair: str) -> None:
    group = open_group(pair, "r+")
    with group.transaction() as changes:
        changes["x"][0] = 1
    b2array.asarray(np.full(ROWS, 5.0), url=f"{pair}/x.b2nd", overwrite=True)
    with group.transaction() as changes:
        assert (changes["x"][:] == 5).all()
        changes["x"][0] = 6
    assert b2array.open(f"{pair}/x.b2nd")[:].max() == 6


@both_layouts
def test_a_commit_describes_the_states_that_its_log_brings(pair: str) -> None:
    killed_after_the_commit(pair, fill(7))
    manifest = Manifest.unpack(Path(pair, ".b2group").read_bytes())
    described = summary.unpack_all(manifest.summaries)
    assert {path: described[path][1].hex() for path in manifest.pending} == {
        path: entry.after for path, entry in manifest.pending.items()
    }
    with open_group(pair, "r+").transaction() as changes:
        changes["x"][0] = 7
    assert values(pair) == {"x": 7, "y": 7}
