"""What one URL opens: arrays, groups, members, super-chunks, and the modes that make them."""

from __future__ import annotations

import pickle
import re
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import blosc2
import fsspec
import numpy as np
import pytest
from clouds import Cloud
from servers import RangeServer

import b2array
from b2array import Group, NDArray, SChunk
from b2array.catalog.group_places import group_of
from b2array.commit.handle import Handle
from b2array.errors import ChecksumError, ConflictError, FormatError, LimitError, ReadOnlyError
from b2array.group.local_group import LocalGroup

X = np.arange(12.0).reshape(3, 4)


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


@pytest.fixture
def archive(tmp_path: Path) -> str:
    with blosc2.TreeStore(str(tmp_path / "run.b2z"), mode="w") as tree:
        tree["/air/x"] = X
    return str(tmp_path / "run.b2z")


def test_a_group_opens_as_a_group_and_its_members_by_path(root: str) -> None:
    with b2array.open_group(f"{root}/run.b2d", "w") as group:
        group.create("air/x", data=X)
        group["air"].attrs["place"] = "roof"
    assert list(b2array.open(f"{root}/run.b2d")) == ["air"]
    inner = b2array.open(f"{root}/run.b2d/air")
    assert isinstance(inner, Group)
    assert (inner.name, inner.attrs["place"]) == ("air", "roof")
    for name in ("air/x", "air/x.b2nd", "air/x/"):
        assert np.array_equal(b2array.open(f"{root}/run.b2d/{name}")[:], X), name
    assert np.array_equal(b2array.open(f"{root}/run.b2d#air/x")[:], X)
    with pytest.raises(FileNotFoundError, match=r"run\.b2d has no member 'air/y'; it has air"):
        b2array.open(f"{root}/run.b2d/air/y")


def test_a_member_can_be_changed(root: str) -> None:
    b2array.open_group(f"{root}/run.b2d", "w").create("x", data=X)
    b2array.open(f"{root}/run.b2d/x", "r+")[0, 0] = 7
    assert b2array.open(f"{root}/run.b2d/x")[0, 0] == 7


def test_members_of_archives_are_reached_by_path_and_by_fragment(archive: str) -> None:
    assert list(b2array.open(archive)) == ["air"]
    for url in (f"{archive}/air/x", f"{archive}#air/x", f"{archive}#/air/x", f"{archive}/air/x.b2nd"):
        assert np.array_equal(b2array.open(url)[:], X), url
    assert isinstance(b2array.open(f"{archive}#air"), Group)
    with pytest.raises(ReadOnlyError, match="archive"):
        b2array.open(f"{archive}/air/x", "r+")


def test_members_of_an_archive_behind_a_query_are_read_over_http(archive: str, http: RangeServer) -> None:
    http.objects["data/run.b2z"] = Path(archive).read_bytes()
    for url in (f"{http.url}/data/run.b2z?key=1#air/x", f"{http.url}/data/run.b2z/air/x?key=1"):
        assert np.array_equal(b2array.open(url)[:], X)


def test_a_frame_is_found_without_its_ending(root: str) -> None:
    b2array.save(f"{root}/x.b2nd", X)
    assert np.array_equal(b2array.open(f"{root}/x")[:], X)


def test_a_name_with_a_number_sign_is_a_name_first(tmp_path: Path) -> None:
    b2array.save(tmp_path / "a#b.b2nd", X)
    assert b2array.open(tmp_path / "a#b.b2nd").shape == (3, 4)


def test_a_directory_of_arrays_without_a_mark_is_a_group(tmp_path: Path) -> None:
    b2array.save(tmp_path / "bare" / "x.b2nd", X)
    assert list(b2array.open(tmp_path / "bare")) == ["x"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty is a directory"):
        b2array.open(tmp_path / "empty")


def test_the_place_of_a_url_is_its_innermost_group(tmp_path: Path) -> None:
    for name in ("outer.b2d", "inner.b2d"):
        b2array.open_group(tmp_path / name, "w")
    (tmp_path / "inner.b2d").rename(tmp_path / "outer.b2d/inner.b2d")
    outer = str(tmp_path / "outer.b2d")
    assert group_of(f"{outer}/inner.b2d/a/x.b2nd") == (f"{outer}/inner.b2d", "a/x")
    assert group_of(f"{outer}/a#x") == (outer, "a/x")
    assert group_of(outer) == (outer, "")
    assert group_of(tmp_path / "x") is None
    assert group_of("memory://nowhere/at/all?a=1") is None


@pytest.mark.parametrize("cache", ["simplecache::", "filecache::file://"])
def test_groups_and_members_are_found_through_a_cache_of_a_local_path(tmp_path: Path, cache: str) -> None:
    b2array.open_group(tmp_path / "run.b2d", "w")["air/x"] = X
    url = f"{cache}{tmp_path.as_posix()}"
    assert list(b2array.open(f"{url}/run.b2d")) == ["air"]
    for name in ("run.b2d/air/x", "run.b2d/air/x.b2nd"):
        assert np.array_equal(b2array.open(f"{url}/{name}")[:], X), name
    assert group_of(f"{url}/run.b2d/air/x") == (f"{url}/run.b2d", "air/x")
    with pytest.raises(FileNotFoundError, match="has no member 'y'"):
        b2array.open(f"{url}/run.b2d/y")
    with pytest.raises(FileNotFoundError, match="missing"):
        b2array.open(f"{url}/missing.b2nd")


def test_a_super_chunk_opens_as_one(tmp_path: Path) -> None:
    blosc2.SChunk(data=b"1234", urlpath=str(tmp_path / "s.b2frame"), mode="w")
    held = b2array.open(tmp_path / "s.b2frame")
    assert isinstance(held, SChunk)
    assert held.get_slice() == b"1234"


@pytest.mark.parametrize("items", [X, np.array(["ab", "c"]), np.zeros(2, [("a", "<i2"), ("b", "<f4", (2,))])])
def test_what_save_array_wrote_is_an_array(tmp_path: Path, items: Any) -> None:
    path = str(tmp_path / "a.bl2")
    blosc2.save_array(items, path, mode="w")
    held = b2array.open(path)
    assert isinstance(held, NDArray)
    assert held.dtype == items.dtype
    assert np.array_equal(held[...], items)
    with pytest.raises(ReadOnlyError):
        held[0] = items[0]
    with pytest.raises(ReadOnlyError, match="save_array"):
        b2array.open(path, "r+")


def test_shapes_that_do_not_fit_a_saved_array_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "a.bl2")
    blosc2.save_array(np.arange(13.0), path, mode="w", chunksize=80)
    monkeypatch.setattr(b2array.config, "limits", b2array.config.Limits(chunk_nbytes=96))
    with pytest.raises(LimitError, match="104 bytes would be read into memory"):
        b2array.open(path)
    b2array.open_schunk(path, "r+").vlmeta["__pack_tensor__"] = ("numpy", (10**6, 10**6), "<f8")
    with pytest.raises(FormatError, match="expected an array of 104 bytes"):
        b2array.open(path)


# Modes.


@pytest.mark.parametrize("name", ["x.b2nd", "run.b2d/x"])
def test_modes_for_arrays(root: str, name: str) -> None:
    b2array.open_group(f"{root}/run.b2d", "w")
    url = f"{root}/{name}"
    for mode in ("r", "r+"):
        with pytest.raises(FileNotFoundError):
            b2array.open(url, mode)
    a = b2array.open(url, "a", shape=3, dtype="i2", fill_value=1)
    assert (a.shape, a.dtype, a[0], a.mode) == ((3,), np.dtype("i2"), 1, "r+")
    for mode in ("x", "w-"):
        with pytest.raises(FileExistsError):
            b2array.open(url, mode, shape=4)
    assert b2array.open(url, "a", shape=99).shape == (3,)
    assert b2array.open(url, "w", shape=4).shape == (4,)
    assert b2array.open(url).shape == (4,)
    assert "x" in b2array.open(f"{root}/run.b2d") or name == "x.b2nd"


def test_modes_for_groups(root: str) -> None:
    url = f"{root}/run.b2d"
    b2array.open(url, "a")["x"] = X
    assert list(b2array.open(url, "a")) == ["x"]
    with pytest.raises(FileExistsError):
        b2array.open(url, "w-")
    b2array.open(f"{url}/air", "a")["y"] = X
    assert list(b2array.open(f"{url}/air", "w")) == []
    with pytest.raises(FileExistsError, match="there is a member 'x'"):
        b2array.open(f"{url}/x", "w")
    assert list(b2array.open(url, "w")) == []


def test_a_slip_in_the_mode_or_its_options_is_named(tmp_path: Path) -> None:
    b2array.save(tmp_path / "x.b2nd", X)
    with pytest.raises(ValueError, match="mode must be one of 'r', 'r\\+', 'a', 'w'"):
        b2array.open(tmp_path / "x.b2nd", "rb")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="to make a new array"):
        b2array.open(tmp_path / "x.b2nd", "w")
    with pytest.raises(TypeError, match="takes chunks for new arrays only"):
        b2array.open(tmp_path / "x.b2nd", chunks=(1, 1))
    assert np.array_equal(b2array.load(tmp_path / "x.b2nd"), X)


# Following.


@pytest.mark.parametrize("name", ["x.b2nd", "run.b2d/x"])
def test_a_handle_can_follow_other_writers(root: str, name: str) -> None:
    b2array.open_group(f"{root}/run.b2d", "w")
    writer = b2array.open(f"{root}/{name}", "w", shape=(2,), dtype="i4")
    still, live = b2array.open(f"{root}/{name}"), b2array.open(f"{root}/{name}", follow=True)
    writer.append([5, 6])
    writer.attrs["step"] = 1
    assert (live.shape, live[-1], live.attrs["step"]) == ((4,), 6, 1)
    writer[0] = 9
    assert live[...].tolist() == [9, 0, 5, 6]
    assert still[...].tolist() == [0, 0]


def test_a_follower_refuses_a_damaged_chunk(tmp_path: Path) -> None:
    path = tmp_path / "x.b2nd"
    b2array.asarray(np.random.default_rng(0).random(1000), url=path, chunks=500)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 4] ^= 1
    path.write_bytes(raw)
    followed = b2array.open(path, follow=True)
    for key in (slice(None), 5):
        with pytest.raises(ChecksumError, match="chunk 0"):
            followed[key]
    assert followed[500:].shape == (500,)


def test_a_follower_begins_with_what_is_committed_now(tmp_path: Path) -> None:
    a = b2array.create(tmp_path / "x.b2nd", (4, 4), "i8", chunks=(2, 2))

    def followed() -> NDArray:
        found = b2array.open(tmp_path / "x.b2nd", "r+", follow=True)
        a[...] = a[0, 0] + 1
        return found

    b = followed()
    with b.transaction():
        b[0] += 1
    assert (b[0, 0], b[1, 1]) == (2, 1)
    turned = followed().T
    assert turned.to_dask().compute()[0, 0] == a[0, 0]
    assert followed().generation == a.generation
    b = pickle.loads(pickle.dumps(followed()))
    a[...] = 50
    assert b[0, 0] == 50


def test_a_follower_can_write_and_its_transaction_stands_still(tmp_path: Path) -> None:
    a = b2array.open(tmp_path / "x.b2nd", "w", shape=(2,), dtype="i4")
    b = b2array.open(tmp_path / "x.b2nd", "r+", follow=True)
    with b.transaction():
        b[0] = 1
        a.attrs["seen"] = True
        assert "seen" not in b.attrs
        assert b[0] == 1
    assert (b[0], b.attrs["seen"]) == (1, True)


def test_a_group_that_was_moved_opens_where_it_is(tmp_path: Path) -> None:
    b2array.open_group(tmp_path / "a.b2d", "w")["x"] = X
    shutil.move(tmp_path / "a.b2d", tmp_path / "b.b2d")
    assert b2array.open(tmp_path / "b.b2d/x").shape == (3, 4)


def test_a_bucket_without_a_group_is_not_taken_for_a_file_without_its_ending(cloud: Cloud, cloud_url: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        b2array.open(cloud_url, storage_options=cloud.options)
    assert str(caught.value) == f"{cloud_url}: there is no group"
    b2array.open_group(cloud_url, "w", storage_options=cloud.options)["x"] = X
    assert list(b2array.open(cloud_url, storage_options=cloud.options)) == ["x"]


@pytest.mark.parametrize(
    "path",
    [
        "missing",
        "missing.b2nd",
        "missing.b2d",
        "a/b/c/d/e/missing",
        "a/b/c/d/e/missing.b2nd",
        "a/g.b2d/b/c/missing",
        "a/g.b2d/h.b2d/b/c/missing",
        "g.b2d/missing.b2nd",
        "a/g.b2z/missing",
        "v1.2/missing",
    ],
)
def test_a_missing_url_takes_few_requests(http: RangeServer, path: str) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        b2array.open(http.url_of(path))
    assert len(http.requests) <= 6


def test_what_a_server_has_is_found_by_a_url_that_shows_it(http: RangeServer) -> None:
    memory = fsspec.filesystem("memory")
    for name in ("run.b2d", "run"):
        url = f"memory://served-by-http/{name}"
        group = b2array.open_group(url, "w")
        group.create("x", data=[1, 2], layout="contiguous")
        group["sub/y"] = [3]
        for path in memory.find(url):
            http.objects[path.removeprefix("/served-by-http/")] = memory.cat_file(path)
    memory.rm("/served-by-http", recursive=True)
    http.objects["alone.b2nd"] = http.objects["run.b2d/x.b2nd"]
    for path in ("run.b2d/x", "run/x", "alone", "run.b2d/x.b2nd"):
        assert b2array.open(http.url_of(path))[...].tolist() == [1, 2]
    assert b2array.open(http.url_of("run.b2d/sub/y"))[0] == 3
    assert [*b2array.open(http.url_of("run.b2d/sub"))] == ["y"]
    assert [{*b2array.open(http.url_of(name))} for name in ("run", "run.b2d")] == [{"x", "sub"}] * 2
    with pytest.raises(FileNotFoundError, match="has no member 'z'; it has sub, x"):
        b2array.open(http.url_of("run.b2d/z"))


def test_a_server_is_not_taken_for_a_file_without_its_ending(http: RangeServer) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(http.url)):
        b2array.open(http.url)


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_deleted_member_of_an_object_store_is_not_found_by_its_url(cloud: Cloud, cloud_url: str, layout: str) -> None:
    url, options = f"{cloud_url}/g.b2d", {"storage_options": cloud.options}
    group = b2array.open_group(url, "w", **options)
    group.create("x", data=X, layout=layout)
    held = b2array.open(f"{url}/x.b2nd", **options)
    del group["x"]
    for find in (b2array.open, b2array.open_array, b2array.open_schunk):
        with pytest.raises(FileNotFoundError):
            find(f"{url}/x.b2nd", **options)
    with b2array.config.using(cache_bytes=0):  # its revision stays until the grace of vacuum is over
        assert held[...].tolist() == X.tolist()
    group.create("x", data=X, layout=layout)
    assert b2array.open(f"{url}/x.b2nd", **options)[...].tolist() == X.tolist()
    del group["x"]
    left = [path for path in cloud.fs.find(url) if "x.b2nd" in path or ".b2data" in path]
    assert left
    b2array.vacuum(url, grace="1h", **options)
    assert [path for path in cloud.fs.find(url) if path in left] == left
    b2array.vacuum(url, grace=0, **options)
    assert not [path for path in cloud.fs.find(url) if path in left]
    group.create("x", data=X, layout=layout)
    assert b2array.verify(url, deep=True, **options).ok


def test_a_number_sign_is_a_letter_of_a_groups_name(cloud: Cloud, cloud_url: str) -> None:
    url, options = f"{cloud_url}/a#b", {"storage_options": cloud.options}
    group = b2array.open_group(url, "w", **options)
    group["x"], group["s/y"] = X, X
    assert group.url == url
    assert np.array_equal(b2array.open(f"{url}/s/y", **options)[:], X)
    assert np.array_equal(b2array.open(f"{url}#x", **options)[:], X)
    del group["x"]
    assert list(b2array.open_group(url, **options)) == ["s"]
    assert list(b2array.open_group(url, "w", **options)) == []


def test_a_question_mark_in_the_url_of_a_group_is_refused_where_it_begins_no_query(
    cloud: Cloud, cloud_url: str, tmp_path: Path
) -> None:
    for url, options in ((f"{cloud_url}/a?b", cloud.options), (f"memory://{tmp_path}/a?b", {})):
        with pytest.raises(ValueError, match=r"a: expected the URL of a group, found a '\?'"):
            b2array.open_group(url, "w", storage_options=options)
        with pytest.raises(FileNotFoundError):
            b2array.open_group(url, storage_options=options)
        a = b2array.open(f"{url}.b2nd", "a", shape=(2,), storage_options=options)  # of an array it is a part
        a[...] = 3
        assert b2array.open(f"{url}.b2nd", storage_options=options)[:].tolist() == [3, 3]
    assert b2array.open_group(tmp_path / "a?b", "w").url == str(tmp_path / "a?b")


def test_open_array_opens_members_and_nothing_but_arrays(tmp_path: Path) -> None:
    b2array.open_group(tmp_path / "run.b2d", "w")["air/temperature"] = X
    b2array.create_schunk(tmp_path / "bytes.b2frame", chunksize=8)
    assert np.array_equal(b2array.open_array(tmp_path / "run.b2d" / "air" / "temperature")[:], X)
    with pytest.raises(TypeError, match=r"expected an array, found <b2array.Group .*; b2array.open_group opens it"):
        b2array.open_array(tmp_path / "run.b2d" / "air")
    with pytest.raises(TypeError, match=r"b2array.open_schunk opens it"):
        b2array.open_array(tmp_path / "bytes.b2frame")


@pytest.mark.parametrize("mode", ["w", "w-", "x", "a"])
def test_open_array_makes_no_group_where_the_shape_is_missing(tmp_path: Path, mode: Any) -> None:
    with pytest.raises((TypeError, FileNotFoundError)):
        b2array.open_array(tmp_path / "a", mode)
    assert not list(tmp_path.iterdir())
    assert b2array.open_array(tmp_path / "a.b2nd", mode, shape=3).mode == "r+"


@pytest.mark.parametrize("place", ["local", "memory", "archive"])
def test_a_group_can_follow_other_writers(tmp_path: Path, place: str) -> None:
    url = f"memory:/{tmp_path}/g.b2d" if place == "memory" else str(tmp_path / "g.b2d")
    writer = b2array.open_group(url, "w")
    writer["a/x"], writer["a/y"] = X, X
    if place == "archive":
        b2array.convert(url, tmp_path / "g.b2z")
        url = str(tmp_path / "g.b2z")
    group = b2array.open(url, follow=True)
    inner, x = group["a"], group["a/x"]
    assert ([*group], [*inner]) == (["a"], ["x", "y"])
    if place == "archive":
        writer["b"] = X
        b2array.convert(str(tmp_path / "g.b2d"), url, overwrite=True)
    else:
        writer["b"] = X
        writer["a/x"][0] = 7
        del writer["a/y"]
        writer.attrs["n"] = 1
        assert [each.flat[0] for each in (x[:], group["a/x"][:], inner["x"][:])] == [7, 7, 7]
        assert (dict(group.attrs), [*inner]) == ({"n": 1}, ["x"])
    assert ([*group], "b" in group, inner.parent is not None) == (["a", "b"], True, True)
    assert [*inner.parent] == ["a", "b"]


def test_a_follower_meets_commits_while_it_opens_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = b2array.open_group(tmp_path / "g.b2d", "w")
    with writer.transaction() as changes:
        changes["x"], changes["y"] = X, X
    group = b2array.open_group(tmp_path / "g.b2d", follow=True)
    standing = b2array.open_group(tmp_path / "g.b2d")
    opened = LocalGroup.open
    numbers = iter(range(1, 99))

    def open_after_a_commit(home: LocalGroup, *args: Any, **options: Any) -> Handle:
        """Let another writer commit after the members were listed."""
        number = next(numbers)
        if number in (1, 2, 4, 6):
            monkeypatch.setattr(LocalGroup, "open", opened)
            with writer.transaction() as changes:
                changes["x"][0], changes["y"][0] = number, number
            monkeypatch.setattr(LocalGroup, "open", open_after_a_commit)
        return opened(home, *args, **options)

    assert [*standing] == ["x", "y"]
    monkeypatch.setattr(LocalGroup, "open", open_after_a_commit)
    assert group["x"][0].flat[0] == 2
    assert {name: array[0].flat[0] for name, array in group.arrays().items()} == {"x": 6, "y": 6}
    with pytest.raises(ConflictError, match=r"call refresh\(\)"):
        standing["x"]


@pytest.mark.parametrize("kind", ["s3", "memory"])
def test_an_array_that_is_made_by_its_url_belongs_to_the_innermost_group_of_any_name(kind, cloud_of):
    cloud = cloud_of("s3") if kind == "s3" else None
    options = cloud.options if cloud else {}
    url = f"{cloud.make_bucket(f'inner-{uuid4()}') if cloud else f'memory://{uuid4()}'}/g.b2d"
    for inner in ("/m", ""):
        b2array.open_group(url + inner, "a", storage_options=options)["x"] = [1]
    b2array.asarray([2, 3], url=f"{url}/m/sub/y.b2nd", storage_options=options)
    assert [*b2array.open_group(f"{url}/m", storage_options=options)["sub"]] == ["y"]
    assert [*b2array.open_group(url, storage_options=options)] == ["x"]
