"""Snapshots of local groups write to no member, and nobody destroys what they need."""

from __future__ import annotations

import pickle
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest
from operations import WRITES, Killed, Operations

import b2array
from b2array import Group, open_group
from b2array.commit import frame_locks
from b2array.errors import B2ArrayError, ConflictError, FormatError, LimitError
from b2array.store.local_store import LocalStore

EDGE = 2**14
"""Items of one chunk: large enough that a file of a few chunks counts as mostly dead."""


@pytest.fixture
def group(tmp_path: Path) -> Group:
    group = open_group(tmp_path / "g.b2d", "w")
    group.create("file", data=noise(0), chunks=(EDGE,), layout="contiguous")
    group.create("directory", data=noise(0), chunks=(EDGE,), layout="sparse")
    return group


def noise(seed: int, count: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**62, count * EDGE)


def files_of(group: Group, name: str) -> dict[str, tuple[bytes, int]]:
    paths = sorted(path for path in Path(group.url).rglob("*") if path.is_file() and f"/{name}" in str(path))
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths if not path.name.endswith(".b2lock")
    }


def with_manifest(group: Group) -> None:
    """Let the group have a manifest, of which writers of a member need the lock."""
    group.snapshot("x")
    group.drop_snapshot("x")


def at(group: Group, name: str) -> Group:
    return open_group(group.url, at=name)


pytestmark = pytest.mark.filterwarnings("ignore:.*more than half of the file is dead space")

MEMBERS = pytest.mark.parametrize("name", ["file", "directory"])


@MEMBERS
def test_a_snapshot_changes_no_byte_of_a_member_and_no_revision(group: Group, name: str) -> None:
    before, generation, reader = files_of(group, name), group[name].generation, open_group(group.url)[name]
    group.snapshot("a")
    group.snapshot("b", "again")
    group.drop_snapshot("a")
    assert files_of(group, name) == before
    assert open_group(group.url)[name].generation == generation == reader.generation
    assert group[name].snapshots == ()
    assert at(group, "b")[name].generation == generation


def test_a_transaction_that_only_reads_a_member_does_not_conflict_with_a_snapshot(group: Group) -> None:
    other = open_group(group.url, "r+")
    with group.transaction() as changes:
        total = int(changes["file"][0])
        other.snapshot("meanwhile")
        changes["directory"][0] = total
    assert open_group(group.url)["directory"][0] == noise(0)[0]
    assert at(group, "meanwhile")["directory"][0] == noise(0)[0]


@MEMBERS
def test_every_rewrite_of_all_items_keeps_the_states_of_snapshots(group: Group, name: str) -> None:
    group.snapshot("start")
    for seed in (1, 2):
        group[name][...] = noise(seed)
    array = b2array.open(f"{group.url}/{name}", "r+")
    array[...] = noise(3)
    with array.transaction():
        array[...] = noise(4)
    with group.transaction() as changes:
        changes[name][...] = noise(5)
    assert np.array_equal(at(group, "start")[name][...], noise(0))
    assert np.array_equal(open_group(group.url)[name][...], noise(5))
    assert b2array.verify(group.url, deep=True).ok


def test_without_snapshots_a_rewritten_file_has_no_dead_space(group: Group) -> None:
    path = Path(group.url) / "file.b2nd"
    before = path.stat().st_size
    for seed in range(1, 5):
        group["file"][...] = noise(seed)
    assert path.stat().st_size < 1.01 * before
    group.snapshot("start")
    group["file"][...] = noise(5)
    assert path.stat().st_size > 1.9 * before
    group.drop_snapshot("start")
    group["file"][...] = noise(6)
    assert path.stat().st_size < 1.01 * before


def test_a_writer_beside_snapshots_warns_once_of_dead_space_and_repack_removes_it(group: Group) -> None:
    group.snapshot("start")
    path, chunk = Path(group.url) / "file.b2nd", noise(0, 1).nbytes
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for seed in range(1, 12):
            group["file"][:EDGE] = noise(seed, 1)
    assert [str(each.message) for each in told if "repack" in str(each.message)] == [
        f"{path}: more than half of the file is dead space, and stays because the group has snapshots: b2array.repack"
        " removes what they do not need"
    ]
    assert path.stat().st_size > 14 * chunk
    b2array.repack(path)
    assert path.stat().st_size < 5.1 * chunk  # the chunk of the snapshot, and four of now
    assert np.array_equal(at(group, "start")["file"][...], noise(0))
    assert np.array_equal(group["file"][:EDGE], noise(11, 1))


def test_repack_keeps_the_states_of_several_snapshots_and_forgets_those_of_dropped_ones(group: Group) -> None:
    for seed in range(3):
        group["file"][:EDGE] = noise(10 + seed, 1)
        group.snapshot(f"{seed}")
    group.snapshot("2 again")
    group["file"][:EDGE] = noise(20, 1)
    opened = {name: at(group, name)["file"] for name in ("0", "1", "2", "2 again")}
    path, chunk = Path(group.url) / "file.b2nd", noise(0, 1).nbytes
    for _ in range(2):
        b2array.repack(group.url)
        assert path.stat().st_size < 7.1 * chunk
        for name, array in opened.items():
            assert np.array_equal(array[:EDGE], noise(10 + int(name[0]), 1))
            assert np.array_equal(at(group, name)["file"][:EDGE], noise(10 + int(name[0]), 1))
    assert group["file"].snapshots == ()
    group.restore("1")
    assert np.array_equal(group["file"][:EDGE], noise(11, 1))
    unread = at(group, "0")["file"]
    for name in ("0", "1", "2", "2 again"):
        group.drop_snapshot(name)
    b2array.repack(group.url)
    assert path.stat().st_size < 4.1 * chunk
    with pytest.raises(ConflictError):
        pickle.loads(pickle.dumps(unread))[EDGE : 2 * EDGE]


def test_restore_and_repack_in_turns_lose_nothing(group: Group) -> None:
    group.snapshot("0")
    for seed in range(1, 4):
        for name in ("file", "directory"):
            group[name][EDGE * seed // 2 : EDGE * seed] = seed
        group.snapshot(str(seed))
    states = {str(seed): at(group, str(seed))["file"][...] for seed in range(4)}
    for name in ("2", "0", "3", "1"):
        group.restore(name)
        assert np.array_equal(group["file"][...], states[name])
        b2array.repack(group.url)
        b2array.vacuum(group.url, grace=0)
        for other, items in states.items():
            for member in ("file", "directory"):
                assert np.array_equal(at(group, other)[member][...], items)
    assert b2array.verify(group.url, deep=True).ok


def test_a_change_that_needs_a_new_header_keeps_the_states_of_snapshots(group: Group) -> None:
    group.create("meta", data=noise(7), chunks=(EDGE,), layout="contiguous", meta={"notes": "x" * 600})
    group.snapshot("start")
    with group.transaction() as changes:
        changes["meta"].resize(5 * EDGE)
    group["meta"].resize(6 * EDGE)
    b2array.open(f"{group.url}/meta", "r+")[0] = 1
    assert np.array_equal(at(group, "start")["meta"][...], noise(7))
    assert group["meta"].shape == (6 * EDGE,)
    assert np.array_equal(group["meta"][1 : 4 * EDGE], noise(7)[1:])


def test_a_file_whose_chunks_a_snapshot_needs_cannot_become_empty(group: Group) -> None:
    group.snapshot("start")
    with pytest.raises(LimitError, match=r"file\.b2nd.*'start'.*layout='sparse'"):
        group["file"].resize(0)
    group["directory"].resize(0)
    assert np.array_equal(at(group, "start")["file"][...], noise(0))
    assert np.array_equal(at(group, "start")["directory"][...], noise(0))


def test_vacuum_of_a_group_and_of_a_member_keeps_the_chunks_of_snapshots(group: Group) -> None:
    group.snapshot("start")
    group["directory"][...] = noise(1)
    group["directory"][...] = noise(2)
    member = f"{group.url}/directory.b2nd"
    assert len(b2array.vacuum(member, grace=0, dry_run=True).removed) == 4
    assert len(b2array.vacuum(member, grace=0).removed) == 4
    b2array.vacuum(group.url, grace=0)
    assert np.array_equal(at(group, "start")["directory"][...], noise(0))
    report = b2array.verify(member)
    assert (report.ok, report.orphans, report.dead_nbytes) == (True, (), 0)
    group.drop_snapshot("start")
    assert len(b2array.vacuum(member, grace=0).removed) == 4


def test_a_member_behind_a_link_belongs_to_the_group(group: Group, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(group.url, target_is_directory=True)
    (tmp_path / "g.b2d" / "inner").mkdir()
    group.create("inner/x", data=noise(3), chunks=(EDGE,), layout="contiguous")
    (tmp_path / "inside").symlink_to(tmp_path / "g.b2d" / "inner", target_is_directory=True)
    group.snapshot("start")
    b2array.open(tmp_path / "link" / "file.b2nd", "r+")[...] = noise(1)
    b2array.repack(tmp_path / "link" / "file.b2nd")
    b2array.open(tmp_path / "inside" / "x.b2nd", "r+")[...] = noise(4)
    b2array.repack(tmp_path / "inside" / "x.b2nd")
    assert np.array_equal(at(group, "start")["file"][...], noise(0))
    assert np.array_equal(at(group, "start")["inner/x"][...], noise(3))


@pytest.mark.parametrize("damage", ["header", "chunk"])
def test_repair_keeps_readable_states_of_snapshots(group: Group, damage: str) -> None:
    group.snapshot("start")
    path = Path(group.url) / "file.b2nd"
    group["file"][:EDGE] = noise(1, 1)
    content = bytearray(path.read_bytes())
    if damage == "header":
        content[24:32] = bytes(8)
    else:  # of the chunk of now
        content[-EDGE] ^= 1
        place = len(content) - EDGE
        assert place > 4 * noise(0, 1).nbytes
    path.write_bytes(content)
    b2array.repair(path, trust_order=True)
    assert np.array_equal(at(group, "start")["file"][...], noise(0))
    assert np.array_equal(group["file"][EDGE:], noise(0)[EDGE:])


def test_repair_of_a_directory_keeps_snapshots(group: Group) -> None:
    group.snapshot("start")
    group["directory"][:EDGE] = 5
    index = Path(group.url) / "directory.b2nd" / "chunks.b2frame"
    content = bytearray(index.read_bytes())
    content[24:32] = bytes(8)
    index.write_bytes(content)
    b2array.repair(index.parent, trust_order=True)
    b2array.vacuum(index.parent, grace=0)
    assert np.array_equal(at(group, "start")["directory"][...], noise(0))


@MEMBERS
def test_states_that_stock_preserves_stay_readable_and_overwritten_ones_raise(group: Group, name: str) -> None:
    group.snapshot("start")
    path = f"{group.url}/{name}.b2nd"
    stock = blosc2.open(path, mode="a")
    stock[:EDGE] = 0
    del stock
    then = at(group, "start")
    for _ in range(2):
        try:
            items = then[name][...]
        except ConflictError:
            pass
        else:
            assert np.array_equal(items, noise(0))
        try:
            group.restore("start")
        except ConflictError:
            pass
        else:
            assert np.array_equal(group[name][...], noise(0))
        b2array.open(path, "r+")[-1] = 1  # the frame is b2array's again, and its chunks stay what they are


def test_a_snapshot_of_a_stock_frame_adds_checksums(group: Group) -> None:
    blosc2.asarray(noise(5), urlpath=f"{group.url}/stock.b2nd", mode="w", chunks=(EDGE,))
    group.refresh()
    group.snapshot("start")
    generation = b2array.open(f"{group.url}/stock.b2nd").generation
    group.snapshot("again")
    assert b2array.open(f"{group.url}/stock.b2nd").generation == generation
    assert b2array.verify(f"{group.url}/stock.b2nd", deep=True).unchecked == 0
    group["stock"][...] = noise(6)
    b2array.repack(group.url)
    assert np.array_equal(at(group, "start")["stock"][...], noise(5))


def test_another_file_in_the_place_of_a_member_is_not_a_state_of_a_snapshot(group: Group, tmp_path: Path) -> None:
    group.snapshot("start")
    path = Path(group.url) / "file.b2nd"
    shutil.copy(path, tmp_path / "backup.b2nd")
    group["file"][:EDGE] = noise(1, 1)
    group.snapshot("later")
    # Packed where nobody knows of the group, and brought back.
    shutil.copy(path, tmp_path / "away.b2nd")
    b2array.repack(tmp_path / "away.b2nd")
    for copy in ("away.b2nd", "backup.b2nd"):
        (tmp_path / copy).replace(path)
        for name, items in {"start": noise(0), "later": np.concatenate([noise(1, 1), noise(0)[EDGE:]])}.items():
            try:
                shown = at(group, name)["file"][...]
            except B2ArrayError:
                continue
            assert np.array_equal(shown, items)
    group.drop_snapshot("later")
    path.unlink()
    b2array.save(tmp_path / "other.b2nd", noise(9))
    shutil.copy(tmp_path / "other.b2nd", path)
    with pytest.raises(FormatError, match=r"file\.b2nd.*without the group"):
        at(group, "start")["file"]
    b2array.open(path, "r+")[0] = 1
    b2array.repack(path)


def test_an_array_that_is_made_again_by_its_own_url_keeps_the_states_of_snapshots(group: Group) -> None:
    group.snapshot("start")
    b2array.asarray(noise(9), url=f"{group.url}/file.b2nd", overwrite=True)
    b2array.repack(group.url)
    assert np.array_equal(at(group, "start")["file"][...], noise(0))


def test_a_writer_that_cannot_lock_the_manifest_destroys_nothing(group: Group) -> None:
    with_manifest(group)
    path = Path(group.url) / "file.b2nd"
    before = path.stat().st_size
    with LocalStore(group.url).lock(".b2group"):
        thread = threading.Thread(target=lambda: b2array.open(path, "r+").__setitem__(..., noise(1)))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert path.stat().st_size > 1.9 * before  # the old chunks are there
    assert np.array_equal(b2array.open(path)[...], noise(1))


def test_a_writer_that_must_destroy_waits_for_the_manifest(group: Group) -> None:
    with_manifest(group)
    path = Path(group.url) / "file.b2nd"
    group["file"][:EDGE] = 1
    before, is_free = path.stat().st_size, threading.Event()

    failures: list[BaseException] = []

    def run() -> None:
        try:
            b2array.repack(path)
            assert is_free.is_set()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    with LocalStore(group.url).lock(".b2group"):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(0.05)
        assert path.stat().st_size == before
        is_free.set()
    thread.join(60)
    assert not failures
    assert path.stat().st_size < before


def test_the_first_snapshot_waits_for_writers_that_saw_no_snapshot(group: Group) -> None:
    with b2array.open(f"{group.url}/file.b2nd", "r+").lock():
        thread = threading.Thread(target=lambda: open_group(group.url, "r+").snapshot("first"))
        thread.start()
        thread.join(0.05)
        assert open_group(group.url).snapshots == ()
    thread.join(60)
    assert [each.name for each in open_group(group.url).snapshots] == ["first"]
    with b2array.open(f"{group.url}/file.b2nd", "r+").lock():
        thread = threading.Thread(target=lambda: open_group(group.url, "r+").snapshot("second"))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()


def test_a_snapshot_that_is_dropped_during_its_restore_is_a_conflict(group: Group) -> None:
    group.snapshot("start")
    group["directory"][...] = 1
    other = open_group(group.url, "r+")

    def restore() -> None:
        with group.transaction() as changes:
            changes.restore("start")
            other.drop_snapshot("start")
            b2array.vacuum(f"{group.url}/directory.b2nd", grace=0)

    with pytest.raises(ConflictError, match="has dropped the snapshot 'start'"):
        restore()
    assert (b2array.open(f"{group.url}/directory")[...] == 1).all()


@pytest.fixture(autouse=True)
def _no_lock_is_left(group: Group) -> Iterator[None]:
    yield
    with frame_locks.try_manifests_lock(LocalStore(f"{group.url}/file.b2nd")) as is_alone:
        assert is_alone


@pytest.mark.parametrize("way", ["repack", "new header"])
def test_a_writer_that_is_killed_during_a_copy_loses_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    start = open_group(tmp_path / "start.b2d", "w")
    start.create("x", data=np.arange(8), chunks=(2,), layout="contiguous", meta={"notes": "x" * 600})
    start.snapshot("one")
    start["x"][:2] = 7
    start.snapshot("two")
    start["x"][2:4] = 8
    before = start["x"][...].tolist()

    def change(url: Path) -> None:
        if way == "repack":
            b2array.repack(url / "x.b2nd")
        else:
            b2array.open(url / "x.b2nd", "r+").resize(10)

    operations = Operations()
    operations.listen(LocalStore, monkeypatch)
    shutil.copytree(tmp_path / "start.b2d", tmp_path / "whole.b2d")
    names = operations.watch(lambda: change(tmp_path / "whole.b2d"))
    writes = [number for number, name in enumerate(names) if name in WRITES]
    assert writes
    for at_last in writes:
        url = tmp_path / f"{at_last}.b2d"
        shutil.copytree(tmp_path / "start.b2d", url)

        def die(number: int, _: str, call: Callable[[], Any], at_last: int = at_last) -> Any:
            if number < at_last:
                return call()
            raise Killed

        with pytest.raises(Killed):
            operations.watch(lambda: change(url), die)  # noqa: B023
        for _ in range(2):
            assert b2array.open(url / "x.b2nd")[:8].tolist() == before
            assert open_group(url, at="one")["x"][...].tolist() == [*range(8)]
            assert open_group(url, at="two")["x"][...].tolist() == [7, 7, *range(2, 8)]
            b2array.repack(url)
        assert b2array.verify(url, deep=True).ok
