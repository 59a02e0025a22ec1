"""Groups in a ``.b2z`` file that are made and changed: one step at the end, and nothing before."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import msgpack
import numpy as np
import pytest
from hypothesis import settings

import b2array
from b2array import open_group
from b2array.errors import ConflictError, FormatError, ReadOnlyError, UnsupportedError
from b2array.group.archive import NOTE
from b2array.store.endings import WORK

X = np.arange(12.0).reshape(3, 4)


@pytest.fixture
def url(tmp_path: Path) -> Path:
    return tmp_path / "k.b2z"


def made(url: Path, **values: Any) -> Path:
    with open_group(url, "w") as group:
        for name, value in (values or {"x": X}).items():
            group[name] = value
    return url


def found(url: Path) -> dict[str, Any]:
    return {
        name: member[...].tolist() for name, member in open_group(url).walk() if isinstance(member, b2array.NDArray)
    }


def names(url: Path) -> list[str]:
    return sorted(path.name for path in url.parent.iterdir())


@pytest.mark.parametrize("mode", ["w", "w-", "x", "a"])
def test_a_group_in_one_file_is_made_at_the_end_of_the_block(url: Path, mode: Any) -> None:
    with open_group(url, mode) as group:
        group["air/x"] = X
        group.create("sparse", data=X, layout="sparse", chunks=(1, 4))
        group.attrs["place"] = "roof"
        assert not url.exists()
        assert group["air/x"][1, 1] == 5
        assert group.url == str(url)
    assert names(url) == ["k.b2z"]
    read = open_group(url)
    assert found(url) == {"air/x": X.tolist(), "sparse": X.tolist()}
    assert dict(read.attrs) == {"place": "roof"}
    assert b2array.verify(url, deep=True).ok
    assert {info.compress_type for info in zipfile.ZipFile(url).infolist()} == {zipfile.ZIP_STORED}


def test_python_blosc2_opens_the_file_and_changes_it(url: Path) -> None:
    with open_group(url, "w") as group:
        group["air/x"] = X
        group.create("sparse", data=X, layout="sparse", chunks=(1, 4))
        group.attrs["place"] = "roof"
    with blosc2.TreeStore(str(url), mode="r") as tree:
        assert np.array_equal(tree["/air/x"][:], X)
        assert np.array_equal(tree["/sparse"][:], X)
        assert tree.vlmeta["place"] == "roof"
    with blosc2.DictStore(str(url), mode="a") as store:
        assert np.array_equal(store["/air/x"][:], X)
        store["/y"] = np.arange(3)
    assert isinstance(blosc2.open(str(url)), blosc2.DictStore)
    with open_group(url, "a") as group:
        group["z"] = group["y"][:] + 1
        del group["sparse"]
    assert found(url) == {"air/x": X.tolist(), "y": [0, 1, 2], "z": [1, 2, 3]}
    with blosc2.TreeStore(str(url), mode="r") as tree:
        assert sorted(tree.keys()) == ["/air", "/air/x", "/y", "/z"]


@pytest.mark.parametrize("mode", ["a", "r+"])
def test_the_old_file_stays_until_the_new_one_takes_its_place(url: Path, mode: Any) -> None:
    made(url, x=[1, 2], y=[3])
    reader = open_group(url)
    with open_group(url, mode) as group:
        group["x"][0] = 7
        with group.transaction() as changes:
            del changes["y"]
            changes["z"] = [9]
        assert found(url) == {"x": [1, 2], "y": [3]}
    assert found(url) == {"x": [7, 2], "z": [9]}
    assert reader["y"][0] == 3 if sys.platform == "win32" else True
    reader.refresh()
    assert [*reader] == ["x", "z"]


def test_modes_say_what_may_be_there(url: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_group(url, "r+")
    made(url, x=[1])
    for mode in ("x", "w-"):
        with pytest.raises(FileExistsError, match="mode='w' replaces"):
            open_group(url, mode)  # type: ignore[arg-type]
    made(url, y=[2])
    assert found(url) == {"y": [2]}
    with open_group(url, "a") as group:
        group["x"] = [1]
    assert found(url) == {"x": [1], "y": [2]}
    assert names(url) == ["k.b2z"]


def test_what_is_no_archive_is_not_replaced(url: Path) -> None:
    url.write_text("dear")
    with pytest.raises(FileExistsError, match="not an archive"):
        open_group(url, "w")
    for mode in ("a", "r+", "x"):
        with pytest.raises((FormatError, FileExistsError)):
            open_group(url, mode)  # type: ignore[arg-type]
    assert (url.read_text(), names(url)) == ("dear", ["k.b2z"])


def test_a_directory_with_that_ending_is_neither_made_nor_replaced(tmp_path: Path) -> None:
    open_group(tmp_path / "g.b2d", "w")["x"] = [1]
    (tmp_path / "g.b2d").rename(tmp_path / "g.b2z")
    with pytest.raises(ValueError, match="expected an ending such as"):
        open_group(tmp_path / "g.b2z", "w")
    assert found(tmp_path / "g.b2z") == {"x": [1]}
    with pytest.raises(ValueError, match="expected an ending such as"):
        open_group(f"memory://{tmp_path.name}.b2z", "w")


def test_after_close_the_group_shows_the_file_for_reading(url: Path) -> None:
    group = open_group(url, "w")
    inner = group.create_group("air")
    inner["x"] = X
    array = inner["x"]
    inner.close()
    assert not url.exists()
    group.close()
    group.close()
    assert url.exists()
    assert (group["air/x"][1, 1], inner["x"][1, 1], [*inner], len(group)) == (5, 5, ["x"], 1)
    assert "1 member" in repr(group)
    for change in (
        lambda: group.__setitem__("y", [1]),
        lambda: inner.__delitem__("x"),
        lambda: group.attrs.update(a=1),
        lambda: group["air/x"].__setitem__(0, 1),
        lambda: group.transaction().__enter__(),
    ):
        with pytest.raises(ReadOnlyError):
            change()  # type: ignore[no-untyped-call]
    with pytest.raises(ConflictError, match=r"k\.b2z\.b2work"):
        array[0] = 1
    assert names(url) == ["k.b2z"]


def test_an_error_in_the_block_leaves_the_old_file_and_the_changes(url: Path) -> None:
    made(url, x=[1])

    def fail() -> None:
        with open_group(url, "a") as group:
            group["x"][0] = 2
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        fail()
    assert "open_group(url, 'a', resume=True)" in caught.value.__notes__[0]
    assert found(url) == {"x": [1]}
    for mode in ("a", "r+", "x"):
        with pytest.raises(ConflictError, match=r"did not finish.*resume=True.*resume=False or b2array\.vacuum"):
            open_group(url, mode)  # type: ignore[arg-type]
    with open_group(url, "a", resume=True) as group:
        assert group["x"][0] == 2
        group["y"] = [3]
    assert found(url) == {"x": [2], "y": [3]}


def test_what_was_left_can_be_dropped(url: Path) -> None:
    made(url, x=[1])

    def fail() -> None:
        with open_group(url, "a") as group:
            group["y"] = [2]
            raise KeyError

    def without() -> None:
        open_group(url, "a", resume=False).close()

    for drop in (without, lambda: b2array.vacuum(url, grace=0), lambda: made(url, x=[1])):
        with pytest.raises(KeyError):
            fail()
        assert names(url) == ["k.b2z", "k.b2z.b2lock", "k.b2z.b2work"]
        drop()
        assert (found(url), names(url)) == ({"x": [1]}, ["k.b2z"])
    with pytest.raises(ValueError, match="mode 'w' begins with an empty group"):
        open_group(url, "w", resume=True)


def test_vacuum_leaves_young_directories_and_those_of_writers_at_work(url: Path) -> None:
    made(url)
    with open_group(url, "a") as group:
        assert b2array.vacuum(url, grace=0).removed == ()
        group["y"] = [1]
    with pytest.raises(KeyError), open_group(url, "a"):
        raise KeyError
    assert b2array.vacuum(url).removed == ()
    assert b2array.vacuum(url, grace=0, dry_run=True).removed == ("k.b2z.b2work/",)
    (url.parent / "k.b2z.0123456789abcdef.b2tmp").write_bytes(b"part")
    assert b2array.vacuum(url, grace=0).removed == ("k.b2z.0123456789abcdef.b2tmp", "k.b2z.b2work/")
    assert names(url) == ["k.b2z"]
    with pytest.raises(FileNotFoundError):
        b2array.vacuum(url.with_name("none.b2z"))


def test_there_is_one_writer_at_a_time(url: Path) -> None:
    group = open_group(url, "w")
    for mode in ("w", "a", "x"):
        with pytest.raises(ConflictError, match="found one at work"):
            open_group(url, mode, resume=None)  # type: ignore[arg-type]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_error_of_opening, (str(url),)) == "ConflictError"
    group["x"] = [1]
    group.close()
    made(url, y=[1])
    assert found(url) == {"y": [1]}


def _error_of_opening(url: str) -> str:
    try:
        open_group(url, "a")
    except Exception as error:  # noqa: BLE001
        return type(error).__name__
    return ""


def test_the_note_names_the_archive_that_the_writer_began_with(url: Path) -> None:
    made(url, x=[1])
    status = url.stat()
    with open_group(url, "a") as group:
        (note,) = Path(f"{url}{WORK}").glob(NOTE)
        assert msgpack.unpackb(note.read_bytes()) == [f"{status.st_ino}@{status.st_mtime_ns}:{status.st_size}", ""]
        group["x"][0] = 2
        note.unlink()  # the writer itself does not need it
    assert found(url) == {"x": [2]}


def test_an_archive_that_somebody_replaced_is_not_overwritten(url: Path) -> None:
    made(url, x=[1])
    other = made(url.with_name("other.b2z"), z=[5])
    group = open_group(url, "a")
    group["x"][0] = 2
    other.replace(url)
    with pytest.raises(ConflictError):
        group.close()
    assert found(url) == {"z": [5]}
    assert group["x"][0] == 2
    with pytest.warns(UserWarning, match="dropped before it was closed"):
        del group
    with pytest.raises(ConflictError, match="replaced since a writer left its changes"):
        open_group(url, "a", resume=True)
    open_group(url, "a", resume=False).close()
    assert found(url) == {"z": [5]}


def test_a_group_that_is_dropped_says_so_and_its_changes_stay(url: Path) -> None:
    group = open_group(url, "w")
    group["x"] = [1]
    with pytest.warns(UserWarning, match=r"k\.b2z: the group was dropped before it was closed"):
        del group
    with open_group(url, "a", resume=True):
        pass
    assert found(url) == {"x": [1]}


def test_a_copy_in_another_process_writes_members_and_packs_nothing(url: Path) -> None:
    with open_group(url, "w") as group:
        group["x"] = [1, 2]
        other = pickle.loads(pickle.dumps(group))
        other["x"][0] = 7
        other.close()
        assert not url.exists()
        if hasattr(os, "fork"):
            child = os.fork()
            if not child:
                group.close()
                os._exit(0)
            os.waitpid(child, 0)
            assert not url.exists()
    assert found(url) == {"x": [7, 2]}


@pytest.mark.parametrize("kind", ["compressed", "overlapping", "outside", "damaged"])
def test_an_archive_that_cannot_be_unpacked_stays_as_it_is(url: Path, kind: str) -> None:
    content = b2array.asarray(X).to_bytes()
    with zipfile.ZipFile(url, "w") as archive:
        archive.writestr("embed.b2e", b"")
        path = "../x.b2nd" if kind == "outside" else "x.b2nd"
        archive.writestr(path, content, zipfile.ZIP_DEFLATED if kind == "compressed" else zipfile.ZIP_STORED)
        if kind == "overlapping":
            for number in range(9):
                info = zipfile.ZipInfo(f"y{number}.b2nd")
                info.header_offset, info.file_size, info.compress_size, info.CRC = 0, len(content), len(content), 0
                archive.filelist.append(info)
    data = bytearray(url.read_bytes())
    if kind == "damaged":
        data[data.index(content) + 100] ^= 1
        url.write_bytes(data)
    with pytest.raises((FormatError, UnsupportedError), match=r"k\.b2z"):
        open_group(url, "a")
    assert (names(url), url.read_bytes()) == (["k.b2z"], bytes(data))


def test_what_users_put_beside_the_members_is_kept(url: Path) -> None:
    made(url)
    with zipfile.ZipFile(url, "a") as archive:
        archive.writestr("notes/README.txt", "mine")
    with open_group(url, "a") as group:
        group["y"] = [1]
    with zipfile.ZipFile(url) as archive:
        assert archive.read("notes/README.txt") == b"mine"
        assert sorted(archive.namelist()) == ["embed.b2e", "notes/README.txt", "x.b2nd", "y.b2nd"]


def test_members_of_an_archive_are_not_changed_by_their_own_urls(url: Path) -> None:
    made(url)
    for use in (
        lambda: b2array.open(url / "x", "r+"),
        lambda: b2array.open(f"{url}#x", "a"),
        lambda: b2array.open(url / "y", "w", shape=3),
    ):
        with pytest.raises(ReadOnlyError, match="changed as a whole"):
            use()
    assert names(url) == ["k.b2z"]


def test_open_makes_and_changes_a_group_in_one_file(url: Path) -> None:
    with b2array.open(url, "w") as group:
        group["x"] = [1]
    with b2array.open(url, "r+") as group:
        group["y"] = [2]
    assert found(url) == {"x": [1], "y": [2]}
    assert names(url) == ["k.b2z"]


def test_a_link_to_an_archive_has_the_same_writer(url: Path, tmp_path: Path) -> None:
    made(url, x=[1])
    link = tmp_path / "link.b2z"
    link.symlink_to(url)
    with open_group(link, "a") as group:
        with pytest.raises(ConflictError):
            open_group(url, "a")
        group["y"] = [2]
    assert link.is_symlink()
    assert found(url) == {"x": [1], "y": [2]}


def test_a_link_in_the_place_of_the_directory_is_refused(url: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    (tmp_path / "k.b2z.b2work").symlink_to(tmp_path / "mine")
    for use in (lambda: open_group(url, "w"), lambda: b2array.vacuum(url, grace=0)):
        with pytest.raises(FormatError, match="symbolic link"):
            use()
    assert (tmp_path / "mine" / "file").read_text() == "mine"


# Kills.


def _die_at(moment: int) -> None:
    """Let this process end at one of the snapshots at which it asks the system for something that changes files."""
    count = itertools.count()

    def look(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate")
        if (writes or changes) and next(count) == moment:
            os._exit(9)

    sys.addaudithook(look)


def _killed(moment: int, task: Callable[[], None]) -> bool:
    """Do something in a forked process that ends at a moment; return whether the task came to its end."""
    child = os.fork()
    if not child:
        try:
            _die_at(moment)
            task()
        except BaseException:  # noqa: BLE001
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are killed in processes of their own")
@pytest.mark.parametrize("every", [pytest.param(11, id="short"), pytest.param(3, id="long", marks=pytest.mark.slow)])
@pytest.mark.parametrize("begin", ["nothing", "archive"])
@pytest.mark.slow
def test_a_writer_that_is_killed_at_any_moment_leaves_the_old_or_the_new_archive(
    tmp_path: Path, begin: str, every: int
) -> None:
    before, after = ({} if begin == "nothing" else {"x": [1, 2]}), {"x": [7, 2], "y": [3]}
    outcomes, resumed = [], []

    def write() -> None:
        with open_group(url, "a") as group:
            group["x"] = [7, 2]
            group.create("y", data=[3], layout="sparse", overwrite=True)

    for moment in itertools.count(0, 1 if settings().max_examples > 25 else every):
        url = tmp_path / str(moment) / "k.b2z"
        url.parent.mkdir()
        if before:
            made(url, **before)
        done = _killed(moment, write)
        outcomes.append(url.exists() and found(url) == after)
        assert outcomes[-1] or (found(url) if url.exists() else {}) == before
        try:
            open_group(url, "a").close()
        except ConflictError:
            assert not outcomes[-1]
            if moment % 2:
                b2array.vacuum(url, grace=0)
                assert (found(url) if url.exists() else {}) == before
            else:
                open_group(url, "a", resume=True).close()
                resumed.append([*found(url).items()])
        else:
            assert found(url) == (after if outcomes[-1] else before)
        assert not {*names(url)} - {"k.b2z", *(name for name in names(url) if name.endswith(".b2tmp"))}
        if moment % 5 == 0:
            write()
            assert found(url) == after
        if done:
            break
    assert outcomes == sorted(outcomes)
    assert outcomes[-1]
    assert resumed
    assert every > 1 or [*after.items()] in resumed


def test_a_killed_writer_does_not_keep_the_lock(url: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_open_and_wait, args=(str(url),))
    process.start()
    while not (url.parent / "ready").exists():
        time.sleep(0.01)
    with pytest.raises(ConflictError, match="at work"):
        open_group(url, "a")
    process.kill()
    process.join()
    with open_group(url, "a", resume=True) as group:
        assert group["x"][0] == 1
    assert found(url) == {"x": [1]}


def _open_and_wait(url: str) -> None:
    group = open_group(url, "w")
    group["x"] = [1]
    Path(url).with_name("ready").touch()
    time.sleep(60)
