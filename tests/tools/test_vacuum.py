"""`vacuum` and `repack` remove what nothing needs, and nothing else."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import nullcontext

import blosc2
import dask.array
import fsspec
import numpy as np
import pytest
from damage import noise, write
from operations import compare, in_a_child

import b2array
from b2array.commit import in_bucket, staging
from b2array.errors import (
    ConflictError,
    ReadOnlyError,
    UnsupportedError,
)
from b2array.format import index
from b2array.frame.source import FRAME_NAME
from b2array.store import disk
from b2array.store.open import open_store

pytestmark = pytest.mark.usefixtures("_no_cache")


def test_only_old_files_of_nobody_are_removed(path):
    data = noise()
    a = write(path, data, "sparse")
    a[:8] = data[:8] = noise(8)
    superseded = (
        {file.name for file in path.iterdir()}
        - {index.chunk_name(n) for n in b2array.open_schunk(path).frame.offsets}
        - {FRAME_NAME, ".b2lock"}
    )
    assert len(superseded) == 1
    (path / "0000AAAA.chunk").write_bytes(b"x")
    (path / "x.b2tmp").write_bytes(b"y")
    (path / "notes.txt").write_text("z")
    assert b2array.vacuum(path).removed == ()
    expected = tuple(sorted({"0000AAAA.chunk", "x.b2tmp"} | superseded))
    assert b2array.vacuum(path, grace=0, dry_run=True).removed == expected
    assert (path / "x.b2tmp").exists()
    old = time.time() - 7200
    os.utime(path / "x.b2tmp", (old, old))
    assert b2array.vacuum(path, grace="1h").removed == ("x.b2tmp",)
    assert b2array.vacuum(path, grace="0 s").removed == tuple(n for n in expected if n != "x.b2tmp")
    assert (path / "notes.txt").exists()
    assert b2array.verify(path, deep=True).orphans == ()
    np.testing.assert_array_equal(b2array.open(path)[...], data)
    np.testing.assert_array_equal(blosc2.open(str(path))[...], data)


def test_leftovers_beside_a_file_are_removed(path):
    write(path, noise(), "contiguous")
    ours = path.with_name("a.b2nd.0123456789abcdef.b2tmp")
    other = path.with_name("b.b2nd.0123456789abcdef.b2tmp")
    ours.write_bytes(b"x")
    other.write_bytes(b"x")
    assert b2array.verify(path).leftovers == (ours.name,)
    assert b2array.vacuum(path, grace=0).removed == (ours.name,)
    assert other.exists()
    assert not ours.exists()


@pytest.mark.parametrize("kind", [".b2tmp", ".b2write"])
def test_files_of_other_kinds_in_a_directory_of_leftovers_stay(path, kind):
    write(path, noise(), "contiguous")
    left = path.with_name(f"a.b2nd.0123456789abcdef{kind}")
    left.mkdir()
    for name in ("00000000.chunk", FRAME_NAME, "notes.txt"):
        (left / name).write_bytes(b"x")
    assert b2array.vacuum(path, grace=0).removed == (f"{left.name}/",)
    assert [each.name for each in left.iterdir()] == ["notes.txt"]
    assert b2array.vacuum(path, grace=0).removed == ()


def _delete(group):
    del group["a"]


@pytest.mark.parametrize(
    "change", [_delete, lambda group: group.move("a", "b"), lambda group: group.create("a", data=[1], overwrite=True)]
)
def test_files_of_other_kinds_beside_the_chunks_of_a_member_stay_when_that_goes(tmp_path, change):
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group.create("a", data=np.arange(10), chunks=(3,), layout="sparse")
    (tmp_path / "g.b2d" / "a.b2nd" / "notes.txt").write_text("mine")
    change(group)
    for _ in range(2):
        b2array.vacuum(tmp_path / "g.b2d", grace=0)
        (notes,) = (tmp_path / "g.b2d").rglob("notes.txt")
        assert [each.name for each in notes.parent.iterdir()] == ["notes.txt"]
        assert notes.read_text() == "mine"
    group["a"] = [2]
    assert group["a"][0] == 2


def test_leftovers_of_a_file_that_was_never_finished_are_removed(path):
    ours = path.with_name("a.b2nd.0123456789abcdef.b2tmp")
    ours.write_bytes(b"x")
    assert b2array.vacuum(path).removed == ()
    assert b2array.vacuum(path, grace=0).removed == (ours.name,)
    assert not ours.exists()
    with pytest.raises(FileNotFoundError):
        b2array.vacuum(path, grace=0)


def test_what_a_directory_leaves_below_the_file_that_replaced_it_is_removed(bucket, s3_options):
    url = f"s3://{bucket}/a.b2nd"
    a = b2array.asarray(np.arange(4), url=url, chunks=(2,), layout="sparse", storage_options=s3_options)
    a.attrs["noise"] = np.random.default_rng(0).bytes(2**13)
    a.snapshot("x")
    a.drop_snapshot("x")
    a[...] = 7
    b2array.asarray(np.arange(3), url=url, layout="contiguous", overwrite=True, storage_options=s3_options)
    removed = b2array.vacuum(url, grace=0, storage_options=s3_options).removed
    assert [name.rpartition(".")[2] for name in removed] == ["chunk", "chunk", "b2kept"]
    assert open_store(f"s3://{bucket}", storage_options=s3_options).walk() == ["a.b2nd"]
    assert b2array.open(url, storage_options=s3_options)[...].tolist() == [0, 1, 2]


def test_an_older_state_that_was_vacuumed_is_a_conflict_and_never_other_data(path):
    data = noise()
    a = write(path, data, "sparse")
    reader = b2array.open(path)
    a[:8] = 1
    b2array.vacuum(path, grace=0)
    with pytest.raises(ConflictError, match="refresh"):
        reader[:8]
    np.testing.assert_array_equal(reader[8:], data[8:])
    reader.refresh()
    assert (reader[:8] == 1).all()


def test_numbers_of_removed_objects_are_never_used_again(bucket, s3_options):
    url, place = f"s3://{bucket}/a.b2nd", {"storage_options": s3_options}
    a = b2array.asarray(np.zeros((4, 100)) + 1, url=url, chunks=(1, 100), layout="sparse", **place)
    store = open_store(url, **place)

    def chunks():
        return {name for name in store.listing() if name.endswith(".chunk")}

    def give_up():
        with a.transaction():
            a[0] = 5
            a.get_chunk(0)  # it gets its object now
            raise ZeroDivisionError

    before = chunks()
    a[0] = 7
    committed = chunks() - before
    with pytest.raises(ZeroDivisionError):
        give_up()
    (aborted,) = chunks() - before - committed  # a request to delete it might be carried out late
    removed = b2array.vacuum(url, grace=0, **place).removed
    assert aborted in removed
    fresh = b2array.open(url, mode="r+", **place)
    fresh[1] = 8
    assert not {*removed} & chunks()
    store.delete(removed)  # a second time
    assert b2array.open(url, **place)[:, 0].tolist() == [7, 8, 1, 1]


@pytest.mark.parametrize("way", ["transaction", "group", "dask"])
def test_a_transaction_takes_other_numbers_than_those_of_objects_that_were_removed_meanwhile(bucket, s3_options, way):
    place = {"storage_options": s3_options}
    group = b2array.open_group(f"s3://{bucket}/g.b2d", "w", **place)
    a = group.create("a", data=np.zeros((4, 100)) + 1, chunks=(1, 100), layout="sparse")
    store, orphan = open_store(a.url, **place), "00000004.chunk"
    store.create(orphan, b"of a killed writer")
    with (group if way == "group" else a).transaction() as changes:
        target = changes["a"] if way == "group" else changes
        assert orphan in b2array.vacuum(a.url, grace=0, **place).removed
        if way == "dask":
            target.store(dask.array.full((1, 100), 5.0), (slice(0, 1),), scheduler="sync")
        else:
            target[0] = 5
            target.get_chunk(0)
        assert orphan in store.listing()  # the transaction does not know yet that the number was used
    store.delete([orphan])  # the request of vacuum is carried out a second time
    shown = b2array.open(a.url, **place)
    assert shown[:, 0].tolist() == [5, 1, 1, 1]


def test_an_array_that_becomes_one_object_and_sparse_again_uses_no_number_twice(cloud, cloud_url):
    url, place = f"{cloud_url}/a.b2nd", {"storage_options": cloud.options}
    store = open_store(url, **place)

    def chunks():
        return {name for name in store.listing() if name.endswith(".chunk")}

    def write(values, layout):
        return b2array.asarray(
            np.zeros((4, 100)) + values, url=url, chunks=(1, 100), layout=layout, overwrite=True, **place
        )

    write(1, "sparse")[0] = 5
    before = chunks()
    one = write(2, "contiguous")
    with pytest.warns(UserWarning, match="is rewritten with every change"):
        one[0] = 6
    write(3, "sparse")
    assert len(chunks() - before) == 4
    store.delete([*before])  # a request to delete what went is carried out late
    assert (b2array.open(url, **place)[...] == 3).all()


def test_a_writer_of_objects_that_slept_looks_again_for_its_chunks(bucket, s3_options, monkeypatch):
    url, place = f"s3://{bucket}/a.b2nd", {"storage_options": s3_options}
    a = b2array.asarray(np.zeros((4, 100)) + 1, url=url, chunks=(1, 100), layout="sparse", **place)
    monkeypatch.setattr(staging, "CHECKED_AFTER", 0.0)
    looked, slept = staging.Staging.find_missing, []

    def missing(self, offsets):
        gone = looked(self, offsets)
        if not slept and self._numbers:  # it is stopped here for days, before it writes the index
            slept.append(b2array.vacuum(url, grace=0, **place).removed)
        return gone

    monkeypatch.setattr(staging.Staging, "find_missing", missing)
    with pytest.raises(ConflictError, match="somebody removed"), a.transaction():
        a[0] = 5
    assert slept
    assert (b2array.open(url, **place)[...] == 1).all()


def test_a_writer_of_a_new_member_that_slept_looks_again_for_its_chunks(bucket, s3_options, monkeypatch):
    group = b2array.open_group(f"s3://{bucket}/g.b2d", "w", storage_options=s3_options)
    group["other"] = [1]
    monkeypatch.setattr(staging, "CHECKED_AFTER", 0.0)
    looked, slept = staging.Staging.find_missing, []

    def missing(self, offsets):
        gone = looked(self, offsets)
        if not slept and self._numbers:
            slept.append(b2array.vacuum(group.url, grace=0, storage_options=s3_options))
        return gone

    monkeypatch.setattr(staging.Staging, "find_missing", missing)
    with pytest.raises(ConflictError, match="somebody removed"), group.transaction() as changes:
        changes.create("new", data=np.ones((4, 100)), chunks=(1, 100), layout="sparse")
    assert slept
    shown = b2array.open_group(group.url, "r+", storage_options=s3_options)
    assert [*shown] == ["other"]
    shown.create("new", data=np.ones((4, 100)), chunks=(1, 100), layout="sparse")
    assert (shown["new"][...] == 1).all()


@pytest.mark.parametrize("delayed", [False, True])
def test_a_slow_transaction_of_a_group_notices_that_its_files_are_gone(tmp_path, monkeypatch, delayed):
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    for name in "ab":
        group.create(name, data=np.ones((4, 100)), chunks=(1, 100), layout="sparse")
    monkeypatch.setattr(staging, "CHECKED_AFTER", 0.0)

    def interrupted():
        with b2array.config.using(write_buffer_bytes=0), group.transaction() as changes:
            if delayed:
                fork = changes.fork()
                fork["a"][0] = 2
                fork["a"].get_chunk(0)
                b2array.vacuum(group["a"].url, grace=0)
                changes.merge(fork)
            else:
                changes["a"][0] = 2
                assert b2array.vacuum(group["a"].url, grace=0).removed
            changes["b"][0] = 2

    with pytest.raises(ConflictError, match=r"somebody removed .*chunk before the commit"):
        interrupted()
    for name in "ab":
        assert (b2array.open_group(group.url)[name][...] == 1).all()


def test_a_slow_writer_notices_that_its_files_are_gone(path, monkeypatch):
    data = noise()
    a = write(path, data, "sparse")
    generation = a.generation
    monkeypatch.setattr(staging, "CHECKED_AFTER", 0.0)

    def interrupted():
        with b2array.config.using(write_buffer_bytes=0), a.transaction():
            a[:8] = 1
            assert b2array.vacuum(path, grace=0).removed

    with pytest.raises(ConflictError, match=r"somebody removed .*chunk before the commit"):
        interrupted()
    assert b2array.open(path).generation == generation
    np.testing.assert_array_equal(b2array.open(path)[...], data)
    with a.transaction():
        a[:8] = 1
    assert (b2array.open(path)[:8] == 1).all()


def test_numbers_of_removed_files_are_not_used_again(path):
    a = write(path, noise(), "sparse")
    a[:8] = 1
    highest = int(b2array.open_schunk(path).frame.offsets.max())
    a[:8] = 0  # takes no file
    b2array.vacuum(path, grace=0)
    a[:8] = 2
    assert int(b2array.open_schunk(path).frame.offsets.max()) > highest


@pytest.mark.parametrize(("grace", "seconds"), [("90 s", 90), ("2min", 120), ("1.5h", 5400), ("7d", 604800), (3, 3)])
def test_grace_is_a_duration(path, grace, seconds):
    write(path, noise(), "sparse")
    orphan = path / "0000AAAA.chunk"
    for age, removed in ((seconds - 2, ()), (seconds + 2, (orphan.name,))):
        orphan.write_bytes(b"x")
        os.utime(orphan, (time.time() - age,) * 2)
        assert b2array.vacuum(path, grace=grace, dry_run=True).removed == removed


def test_no_grace_removes_files_of_a_server_whose_clock_is_fast(path):
    write(path, noise(), "sparse")
    orphan = path / "0000AAAA.chunk"
    orphan.write_bytes(b"x")
    os.utime(orphan, (time.time() + 100,) * 2)
    assert b2array.vacuum(path, grace=1).removed == ()
    assert b2array.vacuum(path, grace=0).removed == (orphan.name,)


@pytest.mark.parametrize("ahead", [-7200, 7200])
def test_ages_are_those_by_the_clock_that_dates_the_files(path, monkeypatch, ahead):
    write(path, noise(), "sparse")
    (path / "x.b2tmp").write_bytes(b"y")
    time_of = time.time
    monkeypatch.setattr(time, "time", lambda: time_of() + ahead)  # the clock of this computer is wrong
    assert b2array.vacuum(path, grace="1h").removed == ()
    old = time_of() - 5400
    os.utime(path / "x.b2tmp", (old, old))
    assert b2array.vacuum(path, grace="1h", dry_run=True).removed == ("x.b2tmp",)
    assert b2array.vacuum(path, grace="1h").removed == ("x.b2tmp",)


def test_ages_in_a_cloud_are_those_by_the_clock_of_its_server(cloud, cloud_url, monkeypatch):
    where = {"url": f"{cloud_url}/a.b2nd", "storage_options": cloud.options}
    b2array.zeros((4, 4), **where)
    store = open_store(where["url"], storage_options=cloud.options)
    store.create("0123456789abcdef.b2tmp", b"y")
    time_of = time.time
    monkeypatch.setattr(time, "time", lambda: time_of() + 7200)
    assert abs(store.now() - time_of()) < 600
    assert b2array.vacuum(**where, grace="1h").removed == ()
    assert [*store.listing()] == ["0123456789abcdef.b2tmp", FRAME_NAME]


def test_the_time_where_nothing_can_be_written_is_ours(http):
    for url in (f"{http.url}/a.b2nd", "memory://clock"):
        assert abs(open_store(url).now() - time.time()) < 100


@pytest.mark.parametrize("grace", ["soon", "-1h", -1, float("nan"), "5", "1 week"])
def test_what_is_no_duration_is_refused(path, grace):
    write(path, noise(), "sparse")
    with pytest.raises(ValueError, match="an age must"):
        b2array.vacuum(path, grace=grace)


def test_stores_that_cannot_be_written_or_listed_say_so(http, path):
    write(path, noise(), "contiguous")
    http.objects["a.b2nd"] = path.read_bytes()
    url = f"{http.url}/a.b2nd"
    assert b2array.verify(url, deep=True).ok
    with pytest.raises(ReadOnlyError):
        b2array.repair(url)
    with pytest.raises(ReadOnlyError):
        b2array.vacuum(url)
    with pytest.raises(UnsupportedError, match="listed"):
        b2array.vacuum(url, dry_run=True)
    with pytest.raises(ReadOnlyError):
        b2array.repack(url)


@pytest.mark.parametrize("happens", ["damaged", "missing"])
def test_chunks_stay_if_the_index_that_names_them_cannot_be_read(happens, tmp_path):
    group = b2array.open_group(f"memory://{tmp_path.name}.b2d", "w")
    group.create("v", data=np.arange(50), chunks=(5,), layout="sparse")
    group["v"][:5] = 7
    store = open_store(group.url)
    for path in [path for path in store.walk() if f"{FRAME_NAME}." in path]:
        content = bytearray(b"".join(store.pieces(path)))
        store.delete([path])
        content[len(content) // 2] ^= 16
        if happens == "damaged":
            store.create(path, bytes(content))
    before = store.walk()
    found = b2array.vacuum(group.url, grace=0)
    assert not found.ok
    expected = "expected an index that the group lists, found none" if happens == "missing" else "fingerprint"
    assert expected in found.members["v"].error
    assert store.walk() == before


@pytest.mark.parametrize(
    "name", ["new.b2nd.0123456789abcdef.b2tmp", "x.b2nd.0123456789abcdef.b2tmp.fedcba9876543210.b2tmp"]
)
def test_a_directory_that_a_killed_writer_has_just_made_or_emptied_is_removed(tmp_path, name):
    group = b2array.open_group(str(tmp_path / "g"), "w")
    group["x"] = [1, 2]
    for place in ("g", "g/sub"):
        (tmp_path / place / name).mkdir(parents=True)
        (tmp_path / place / "kept").mkdir()
    assert "." not in b2array.vacuum(group.url)  # they are young
    assert b2array.vacuum(group.url, grace=0)["."].removed == tuple(sorted([name, f"sub/{name}"]))
    assert not [*tmp_path.rglob("*.b2tmp")]
    assert (tmp_path / "g/kept").is_dir()
    assert group["x"][:].tolist() == [1, 2]


@pytest.mark.parametrize("place", ["local", "memory://inside"])
def test_a_separate_group_inside_another_one_is_cleaned_and_verified_as_a_whole(place, tmp_path):
    url = str(tmp_path / "g.b2d") if place == "local" else f"{place}/g.b2d"
    inner = b2array.open_group(f"{url}/m", "w")
    with inner.transaction() as changes:
        changes["x"], changes["sub/y"] = [1, 2], [3]
    inner.snapshot("s")
    b2array.open_group(url, "a")["a"] = [4]
    left = f"{url}/m/new.b2nd.0123456789abcdef.b2tmp"
    with fsspec.open(left, "wb") as file:
        file.write(b"of a writer that was killed")
    assert {*b2array.verify(f"{url}/m")} == {".", "x", "sub/y"}
    assert b2array.verify(f"{url}/m/x").ok
    assert b2array.vacuum(url, grace=0)["a"].removed == ()
    assert b2array.vacuum(f"{url}/m", grace=0)["."].removed == ("new.b2nd.0123456789abcdef.b2tmp",)
    assert b2array.open_group(f"{url}/m", at="s")["x"][:].tolist() == [1, 2]


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_arrays_that_a_group_does_not_list_stay_unless_it_has_deleted_them(layout, monkeypatch):
    """Somebody has copied some there; a writer was killed before it removed the published index of another one."""
    url, memory = f"memory://unlisted-{layout}.b2d", fsspec.filesystem("memory")
    compare(type(open_store(url)), monkeypatch)
    made = {"layout": layout, "chunks": (2,)}
    group, other = b2array.open_group(url, "w"), b2array.open_group(f"memory://other-{layout}.b2d", "w")
    for name in ("x", "y"):
        group.create(name, data=np.arange(4), **made)
    other.create("x", data=np.arange(3), **made)
    b2array.asarray(np.arange(5), url=f"memory://alone-{layout}.b2nd", **made)
    with monkeypatch.context() as patch:
        patch.setattr(in_bucket, "remove_published", lambda *_: None)
        del group["x"]
    for source, name in (f"/other-{layout}.b2d/x.b2nd", "from_other"), (f"/alone-{layout}.b2nd", "alone"):
        for path in memory.find(source) or [source]:
            memory.pipe_file(f"{url}/{name}.b2nd{path.removeprefix(source)}", memory.cat_file(path))
    copied = {path for path in open_store(url).walk() if path.startswith(("from_other", "alone"))}
    b2array.vacuum(url, grace=0)
    left = {*open_store(url).walk()}
    assert left >= copied
    assert not [path for path in left if path.startswith("x.b2nd")]
    assert b2array.open(f"{url}/alone.b2nd")[...].tolist() == [0, 1, 2, 3, 4]
    assert [*group] == ["y"]
    assert group["y"][...].tolist() == [0, 1, 2, 3]


def _replace_until_killed(monkeypatch, at, url, layout):
    """Replace an array in a process that ends before a rename of a number, where names cannot be exchanged at once."""
    rename, count = os.rename, itertools.count()

    def renamed(*args, **options):
        if next(count) == at:
            os._exit(0)
        rename(*args, **options)

    def replace():
        monkeypatch.setattr(disk, "swap", lambda *_: False)
        monkeypatch.setattr(os, "rename", renamed)
        b2array.asarray(np.arange(50), url=url, layout=layout, chunks=(10,), overwrite=True)

    in_a_child(replace)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ends a forked process")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("within", ["", "folder"])
@pytest.mark.parametrize(("layout", "other"), [("contiguous", "sparse"), ("sparse", "contiguous")])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_frame_that_a_killed_writer_was_replacing_is_put_back(tmp_path, monkeypatch, within, layout, other, at):
    url = tmp_path / within / "a.b2nd"
    old, new = np.arange(100), np.arange(50)
    b2array.asarray(new, url=url.with_name("b.b2nd"))
    b2array.asarray(old, url=url, layout=layout, chunks=(10,))
    _replace_until_killed(monkeypatch, at, url, other)
    assert url.exists() == (at != 1)
    where = url.parent if within else url
    with pytest.warns(UserWarning, match="a.b2nd: put the array back") if at == 1 else nullcontext():
        b2array.vacuum(where, grace=0)
    assert np.array_equal(b2array.open(url)[...], old if at < 2 else new)
    assert b2array.verify(where)
    assert [path.name for path in tmp_path.rglob("*.b2tmp")] == []
    b2array.open(url, "r+")[0] = 7
    assert b2array.open(url)[0] == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ends a forked process")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_neither_frame_is_removed_while_its_writer_may_be_at_work(tmp_path, monkeypatch):
    url = tmp_path / "a.b2nd"
    b2array.asarray(np.arange(100), url=url, layout="contiguous")
    os.utime(url, (0, 0))
    _replace_until_killed(monkeypatch, 1, url, "sparse")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert not b2array.vacuum(url, grace="1h").removed
    assert len(b2array.vacuum(url, grace=0, dry_run=True).removed) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == names
