"""Groups of arrays from any format to any other, and members by their paths."""

from __future__ import annotations

import json
import os
import re
import signal
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import blosc2
import fsspec
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from damage import flip
from damage import place as place_of
from servers import directory_server

import b2array
from b2array.errors import B2ArrayError, ConflictError, FormatError, ReadOnlyError, UnsupportedError
from b2array.exchange.convert import convert_to
from b2array.exchange.formats import ArraySource, Hierarchy
from b2array.exchange.groups import B2D
from b2array.exchange.places import find
from b2array.tools.describing import describe

ARRAYS = {"air/t": np.arange(12.0).reshape(3, 4), "air/deep/w": np.arange(5, dtype="i2"), "roof": np.ones((2, 2))}
ATTRS = {"": {"place": "roof"}, "air": {"height": 3}}
PLACES = ["x.b2d", "x.b2z", "x.h5", "x.zarr", "memory://"]

pytestmark = pytest.mark.filterwarnings("ignore:.*a .npy file has no place for")


def fill(group: Any) -> None:
    for name, values in ARRAYS.items():
        group.create(name, data=values, attrs={"unit": "m"}, dims=tuple("yx"[: values.ndim]))
    for name, attrs in ATTRS.items():
        (group[name] if name else group).attrs.update(attrs)


def forget_consolidated(path: Path) -> None:
    """Remove the copies of metadata that convert writes at the top, so that zarr looks for the members itself."""
    (path / ".zmetadata").unlink(missing_ok=True)
    top = path / "zarr.json"
    if top.exists():
        metadata = json.loads(top.read_text())
        del metadata["consolidated_metadata"]
        top.write_text(json.dumps(metadata))


def address(place: str, directory: Path) -> str:
    return f"memory:/{directory}/x.b2d" if place == "memory://" else str(directory / place)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    fill(b2array.open_group(tmp_path / "source.b2d", "w"))
    return tmp_path / "source.b2d"


def check(url: str) -> None:
    """Check all arrays and attributes, read by the library of the format."""
    if url.endswith(".h5"):
        with h5py.File(url) as file:
            found = {name: (file[name][...], file[name].attrs["unit"]) for name in ARRAYS}
            attrs = {name: dict(file[name or "/"].attrs) for name in ATTRS}
    elif url.endswith(".zarr"):
        root = zarr.open_group(url, mode="r")
        found = {name: (root[name][...], root[name].attrs["unit"]) for name in ARRAYS}
        attrs = {name: dict(root[name].attrs if name else root.attrs) for name in ATTRS}
    else:
        group = b2array.open_group(url)
        found = {name: (group[name][...], group[name].attrs["unit"]) for name in ARRAYS}
        attrs = {name: dict((group[name] if name else group).attrs) for name in ATTRS}
    assert attrs == ATTRS
    for name, values in ARRAYS.items():
        assert found[name][1] == "m"
        np.testing.assert_array_equal(found[name][0], values)
        assert found[name][0].dtype == values.dtype


@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("middle", PLACES)
def test_a_group_of_any_format_becomes_one_of_any_other(middle: str, target: str, source: Path, tmp_path: Path) -> None:
    first, second = address(middle, tmp_path / "first"), address(target, tmp_path / "second")
    b2array.convert(source, first, verify=True)
    check(first)
    b2array.convert(first, second, verify=True)
    check(second)


def test_a_group_goes_to_s3_and_back(source: Path, tmp_path: Path, bucket: str, s3_options: dict[str, Any]) -> None:
    for name in ("x.b2d", "x.b2z"):
        url = f"s3://{bucket}/{name}"
        b2array.convert(source, url, dst_options=s3_options, verify=True)
        b2array.convert(f"{url}/air/t", tmp_path / "t.npy", src_options=s3_options)
        np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), ARRAYS["air/t"])
        (tmp_path / "t.npy").unlink()
        b2array.convert(url, tmp_path / f"back-{name}", src_options=s3_options)
        check(str(tmp_path / f"back-{name}"))


def test_python_blosc2_opens_an_archive_of_ours(source: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "x.b2z")
    b2array.convert(source, path)
    with blosc2.open(path, mode="r") as tree:
        assert isinstance(tree, blosc2.TreeStore)
        for name, values in ARRAYS.items():
            np.testing.assert_array_equal(tree[f"/{name}"][...], values)
        assert tree.vlmeta["place"] == "roof"
    assert [each.name for each in tmp_path.glob("*.b2tmp")] == []


@pytest.mark.parametrize("suffix", [".b2d", ".b2z"])
def test_stores_of_python_blosc2_are_converted_with_embedded_members_and_chunks(suffix: str, tmp_path: Path) -> None:
    url = str(tmp_path / f"stock{suffix}")
    with blosc2.TreeStore(url, mode="w", threshold=10_000) as tree:
        tree["/a/small"], tree["/large"] = np.arange(3), np.arange(50_000)
        tree["/bytes"] = blosc2.SChunk(data=b"12345678", chunksize=8)
    b2array.convert(url, tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["a/small"][...].tolist() == [0, 1, 2]
        assert file["bytes"][...].tobytes() == b"12345678"
    b2array.convert(url, tmp_path / "x.b2d")
    group = b2array.open_group(tmp_path / "x.b2d")
    assert group["bytes"].get_slice() == b"12345678"
    assert (group["large"][-1], group["a/small"][...].tolist()) == (49_999, [0, 1, 2])


def test_chunks_of_frames_are_copied_as_they_are_unless_options_ask_for_others(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "x.b2d", "w")
    group.create("a", data=np.arange(1000), chunks=(7,), blocks=(7,), cparams=b2array.CParams("lz4"))
    b2array.convert(tmp_path / "x.b2d", tmp_path / "y.b2z")
    a = b2array.open_group(tmp_path / "y.b2z")["a"]
    assert (a.chunks, a.cparams.codec) == ((7,), "lz4")
    b2array.convert(tmp_path / "x.b2d", tmp_path / "z.b2d", chunks=(100,), cparams=b2array.CParams("zlib"))
    a = b2array.open_group(tmp_path / "z.b2d")["a"]
    assert (a.chunks, a.cparams.codec) == ((100,), "zlib")


def damage(source: Path) -> None:
    path = source / "air/t.b2nd"
    raw = bytearray(path.read_bytes())
    raw[200] ^= 255
    path.write_bytes(raw)
    (source / "roof.b2nd").write_bytes(b"nothing")


@pytest.mark.parametrize("target", PLACES)
def test_a_damaged_member_costs_itself_and_no_other(target: str, source: Path, tmp_path: Path) -> None:
    damage(source)
    url = address(target, tmp_path / "out")
    done = convert_to(source, url, verify=True)
    assert (done.narrays, sorted(done.failed)) == (3, ["air/t", "roof"])
    assert all(isinstance(error, FormatError) for error in done.failed.values())
    with find(url, None, None, exists=True)[0].tree(url, None) as tree:
        assert tree.names == ("air/deep/w",)
    with pytest.raises(FormatError, match=r"2 of 3 arrays could not be copied: air/t: .*; roof: "):
        b2array.convert(source, url, overwrite=True)


@pytest.mark.parametrize("what", ["dataset", "metadata"])
def test_damage_in_other_formats_is_a_format_error_of_its_member(what: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("bad", data=rng.random(1000), chunks=(1000,), compression="gzip", fletcher32=True)
        file["good"] = np.arange(3)
        at = file["bad"].id.get_chunk_info(0).byte_offset
    raw = bytearray((tmp_path / "x.h5").read_bytes())
    raw[at + 100] ^= 255
    (tmp_path / "x.h5").write_bytes(raw)
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("bad", data=rng.random(1000))
    group.create_array("good", data=np.arange(3))
    file = tmp_path / "x.zarr/bad" / ("c/0" if what == "dataset" else "zarr.json")
    file.write_bytes(b"{" + file.read_bytes()[:-20])
    for name in ("x.h5", "x.zarr"):
        done = convert_to(tmp_path / name, tmp_path / f"{name}.b2d")
        assert [*done.failed] == ["bad"]
        assert isinstance(done.failed["bad"], FormatError)
        assert b2array.open_group(tmp_path / f"{name}.b2d")["good"][...].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("signature", "number", "bad"), [("TREE", 0, ""), ("SNOD", 1, "group"), ("TREE", 2, "data")])
def test_damage_of_the_structure_of_hdf5_is_a_format_error(
    signature: str, number: int, bad: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["good"] = np.arange(3)
        file["group/x"] = np.arange(3)
        file.create_dataset("data", data=np.arange(1000), chunks=(100,))
    raw = path.read_bytes()
    at = [found.start() for found in re.finditer(signature.encode(), raw)][number]
    path.write_bytes(raw[:at] + b"X" + raw[at + 1 :])
    if not bad:
        with pytest.raises(FormatError, match="wrong B-tree signature"):
            describe(str(path), None)
        return
    failed = describe(str(path), None).failed
    assert {name: type(error) for name, error in failed.items()} == {bad: FormatError}
    found = b2array.verify(path)
    assert found.damaged
    assert found.members["good"].ok


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_zarr_leaves_out_of_a_hierarchy_is_damage(zarr_format: int, source: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    b2array.convert(source, path, zarr_format=zarr_format)
    forget_consolidated(path)
    (path / "README.md").write_bytes(b"no part of it")
    (path / "notes").mkdir()
    (path / "notes" / "more.txt").write_bytes(b"nor is this")
    assert b2array.verify(path).ok
    (path / "roof" / (".zarray" if zarr_format == 2 else "zarr.json")).unlink()
    found = b2array.verify(path)
    assert found.damaged
    assert {name: each.ok for name, each in found.members.items()} == {".": False, "air/deep/w": True, "air/t": True}
    assert "describe roof" in str(found)
    assert [*convert_to(path, tmp_path / "x.h5").failed] == [""]


def test_what_zarr_leaves_out_of_the_pages_of_a_web_server_is_told(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    b2array.convert(source, tmp_path / "x.zarr")
    forget_consolidated(tmp_path / "x.zarr")
    (tmp_path / "x.zarr" / "README.md").write_bytes(b"no part of it")
    with directory_server(tmp_path) as server, pytest.warns(UserWarning, match=r"Object at README\.md"):
        assert {*b2array.verify(f"{server}/x.zarr").members} == {*ARRAYS}


def test_a_hierarchy_of_which_nothing_can_be_listed_replaces_nothing(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    b2array.convert(source, path, zarr_format=2)
    forget_consolidated(path)
    b2array.convert(path, tmp_path / "x.h5")
    group = path / ".zgroup"
    group.write_bytes(group.read_bytes().replace(b"zarr_format", b"z`rr_format"))  # zarr takes it for version 3
    with pytest.raises(FormatError, match="describe air, roof"):
        b2array.convert(path, tmp_path / "x.h5", overwrite=True)
    check(str(tmp_path / "x.h5"))


def test_a_file_of_hdf5_that_holds_itself_ends(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a/x"] = np.arange(3)
        file["a/again"] = file["/"]
        file["soft"] = h5py.SoftLink("/a")
    with (
        pytest.warns(UserWarning, match=r"the links \['soft'\] are left out"),
        pytest.warns(UserWarning, match=r"left out: a/again \(a name of /\)"),
    ):
        b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2d", src_format="hdf5")
    assert [name for name, _ in b2array.open_group(tmp_path / "x.b2d").walk()] == ["a", "a/x"]


@pytest.mark.parametrize("target", PLACES)
def test_a_group_is_replaced_only_on_request_and_as_a_whole(target: str, source: Path, tmp_path: Path) -> None:
    url = address(target, tmp_path / "out")
    b2array.convert(source, url)
    group = b2array.open_group(tmp_path / "other.b2d", "w")
    group["one"], group["two"] = [1], [2]
    with pytest.raises(FileExistsError):
        b2array.convert(tmp_path / "other.b2d", url)
    check(url)
    b2array.open_group(tmp_path / "bad.b2d", "w")["one"] = [1]
    (tmp_path / "bad.b2d/one.b2nd").write_bytes(b"nothing")
    with pytest.raises(FormatError):
        b2array.convert(tmp_path / "bad.b2d", url, overwrite=True)
    check(url)
    b2array.convert(tmp_path / "other.b2d", url, overwrite=True)
    with find(url, None, None, exists=True)[0].tree(url, None) as tree:
        assert tree.names == ("one", "two")


def test_what_is_no_group_is_never_replaced(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.b2d").mkdir()
    (tmp_path / "mine.b2d/letter.txt").write_text("dear")
    (tmp_path / "mine.b2z").write_text("dear")
    for name in ("mine.b2d", "mine.b2z"):
        with pytest.raises(FileExistsError):
            b2array.convert(source, tmp_path / name, overwrite=True)
    assert [each.name for each in (tmp_path / "mine.b2d").iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("middle", PLACES)
def test_empty_groups_are_kept(middle: str, target: str, tmp_path: Path) -> None:
    source = b2array.open_group(tmp_path / "source.b2d", "w")
    source["air/t"] = source["roof"] = [1, 2]
    for name in ("air/nothing", "empty/inner"):
        source.require_group(name)
    first, second = address(middle, tmp_path / "first"), address(target, tmp_path / "second")
    b2array.convert(source.url, first)
    b2array.convert(first, second)
    b2array.convert(second, tmp_path / "back.b2d")
    back = b2array.open_group(tmp_path / "back.b2d")
    assert repr(back.tree()) == repr(source.tree())
    assert sorted(back._below()) == sorted(source._below())


def test_an_empty_group_takes_nothing_from_one_that_is_there(tmp_path: Path) -> None:
    b2array.open_group(tmp_path / "source.b2d", "w").require_group("a/b")
    target = b2array.open_group(tmp_path / "x.b2d", "w")
    target.require_group("in/a/b").attrs["n"] = 1
    target["in/a/x"] = [1, 2]
    for overwrite in (False, True):
        b2array.convert(tmp_path / "source.b2d", tmp_path / "x.b2d#in", overwrite=overwrite)
    b2array.convert(b2array.open_group(tmp_path / "nothing.b2d", "w").url, tmp_path / "x.b2d#in/new")
    target.refresh()
    assert sorted(target["in"].groups()) == ["a", "new"]
    assert dict(target["in/a/b"].attrs) == {"n": 1}
    assert target["in/a/x"][...].tolist() == [1, 2]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["/air/t", "#air/t", "/air/t.b2nd", "#/air/t"])
def test_a_member_is_named_by_its_path(place: str, name: str, source: Path, tmp_path: Path) -> None:
    url = address(place, tmp_path / "x")
    b2array.convert(source, url)
    if name.endswith(".b2nd") and place in ("x.h5", "x.zarr"):
        return  # an ending of another format
    b2array.convert(url + name, tmp_path / "t.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), ARRAYS["air/t"])
    with pytest.raises(FileNotFoundError):
        b2array.convert(f"{url}/air/none", tmp_path / "none.npy")


def test_a_member_is_found_in_a_group_without_an_ending(source: Path, tmp_path: Path) -> None:
    source.rename(tmp_path / "plain")
    for name in ("air/t", "air/t.b2nd"):
        b2array.convert(tmp_path / "plain" / name, tmp_path / "t.npy", overwrite=True)
        np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), ARRAYS["air/t"])
    b2array.convert(tmp_path / "plain/air", tmp_path / "air.h5")
    with h5py.File(tmp_path / "air.h5") as file:
        assert sorted(file) == ["deep", "t", "x", "y"]  # with the scales of two dimensions
    with blosc2.TreeStore(str(tmp_path / "stock"), mode="w", threshold=10_000) as tree:
        tree["/a/small"] = np.arange(3)
    for name in ("a/small", "a/small.b2nd"):
        b2array.convert(tmp_path / "stock" / name, tmp_path / "s.npy", overwrite=True)
        assert np.load(tmp_path / "s.npy").tolist() == [0, 1, 2]


def test_a_member_is_added_to_what_is_there(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    np.save(tmp_path / "y.npy", np.arange(4))
    for url in (f"{tmp_path}/g.b2d", f"memory://{tmp_path.name}/g.b2d", f"{tmp_path}/g.h5", f"{tmp_path}/g.zarr"):
        b2array.convert(tmp_path / "x.npy", f"{url}/a/x", verify=True)
        b2array.convert(tmp_path / "y.npy", f"{url}/y", verify=True)
        with pytest.raises(FileExistsError):
            b2array.convert(tmp_path / "y.npy", f"{url}/a/x")
        b2array.convert(f"{url}/a/x", tmp_path / "back.npy", overwrite=True)
        assert np.load(tmp_path / "back.npy").tolist() == [0, 1, 2]
        with find(url, None, None, exists=True)[0].tree(url, None) as tree:
            assert tree.names == ("a/x", "y")
        b2array.convert(tmp_path / "y.npy", f"{url}/a/x", overwrite=True)
        b2array.convert(f"{url}/a/x", tmp_path / "back.npy", overwrite=True)
        assert np.load(tmp_path / "back.npy").tolist() == [0, 1, 2, 3]
    b2array.convert(tmp_path / "x.npy", tmp_path / "new.b2z#a/x")
    assert b2array.open_group(tmp_path / "new.b2z")["a/x"][...].tolist() == [0, 1, 2]
    for url in (f"{tmp_path}/new.b2z/y", f"{tmp_path}/new.b2z#a/y"):
        b2array.convert(tmp_path / "y.npy", url)
        with pytest.raises(FileExistsError):
            b2array.convert(tmp_path / "x.npy", url)
        b2array.convert(tmp_path / "x.npy", url, overwrite=True, verify=True)
    group = b2array.open_group(tmp_path / "new.b2z")
    assert [group[name][...].tolist() for name in ("a/x", "a/y", "y")] == [[0, 1, 2]] * 3
    with fsspec.open(f"memory://{tmp_path.name}.b2z", "wb") as file:
        file.write((tmp_path / "new.b2z").read_bytes())
    with pytest.raises(ReadOnlyError, match="archive on another computer"):
        b2array.convert(tmp_path / "y.npy", f"memory://{tmp_path.name}.b2z#z")


def lone_group(place: str, directory: Path) -> str:
    """A group of one array in a group, with attributes everywhere."""
    url = address(place, directory)
    if place.endswith(".h5"):
        with h5py.File(url, "w") as file:
            file["air/t"] = ARRAYS["air/t"]
            file.attrs["title"], file["air"].attrs["height"], file["air/t"].attrs["unit"] = "a run", 3, "K"
    elif place.endswith(".zarr"):
        root = zarr.open_group(url, mode="w", attributes={"title": "a run"})
        root.create_group("air", attributes={"height": 3}).create_array("t", data=ARRAYS["air/t"])
        root["air/t"].attrs["unit"] = "K"
        zarr.consolidate_metadata(url)
    else:
        with b2array.open_group(url, "w") as group:
            group.create("air/t", data=ARRAYS["air/t"], attrs={"unit": "K"})
            group.attrs["title"], group["air"].attrs["height"] = "a run", 3
    return url


@pytest.mark.filterwarnings("ignore::UserWarning:zarr")
@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("place", PLACES)
def test_a_group_of_one_array_stays_a_group(place: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    url, copy = lone_group(place, tmp_path), address(target, tmp_path / "out")
    b2array.convert(url, copy, verify=True)
    back = str(tmp_path / "back.b2d")
    b2array.convert(copy, back)
    group = b2array.open_group(back)
    assert [*group] == ["air"]
    assert [*group["air"]] == ["t"]
    assert (group.attrs["title"], group["air"].attrs["height"], group["air/t"].attrs["unit"]) == ("a run", 3, "K")
    np.testing.assert_array_equal(group["air/t"][...], ARRAYS["air/t"])


@pytest.mark.filterwarnings("ignore::UserWarning:zarr")
def test_a_file_of_one_variable_stays_a_dataset(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    with h5py.File(tmp_path / "one.h5", "w") as file:
        data = file.create_dataset("temp", data=np.arange(3.0))
        data.attrs["units"], file.attrs["title"] = "K", "a run"
        data.dims[0].label = "x"
    b2array.convert(tmp_path / "one.h5", tmp_path / "one.zarr")
    with xarray.open_zarr(tmp_path / "one.zarr", consolidated=False) as found:
        assert found["temp"].values.tolist() == [0, 1, 2]
        assert (found.attrs["title"], found["temp"].attrs["units"]) == ("a run", "K")


@pytest.mark.parametrize("target", ["a.b2nd", "a.npy", "a.blp"])
@pytest.mark.parametrize("place", ["x.b2d", "x.h5"])
def test_a_file_of_one_array_says_which_attributes_of_groups_it_drops(place: str, target: str, tmp_path: Path) -> None:
    url = lone_group(place, tmp_path)
    with pytest.warns(UserWarning, match=r"no place for the attributes of groups: title of '/'; height of '/air'"):
        b2array.convert(url, tmp_path / target)


@pytest.mark.parametrize("place", PLACES)
def test_a_group_without_members_is_a_group_afterwards(place: str, tmp_path: Path) -> None:
    b2array.open_group(tmp_path / "source.b2d", "w")
    url = address(place, tmp_path / "x")
    b2array.convert(tmp_path / "source.b2d", url)
    with find(url, None, None, exists=True)[0].tree(url, None) as tree:
        assert tree.names == ()


@pytest.mark.parametrize("place", ["x.b2d", "memory://"])
def test_attributes_of_a_group_inside_another_are_replaced_on_request(place: str, tmp_path: Path) -> None:
    url = address(place, tmp_path)
    group = b2array.open_group(url, "w")
    group["s/y"] = [1]
    group["s"].attrs["old"] = 1
    group.require_group("s/in").attrs["old"] = 1
    new = b2array.open_group(tmp_path / "new.b2d", "w")
    new["in/z"] = [5]
    new.attrs["new"] = new["in"].attrs["new"] = 2
    assert convert_to(tmp_path / "new.b2d", f"{url}#s").failed.keys() == {"/", "in/"}
    assert dict(b2array.open_group(url)["s"].attrs) == {"old": 1}
    group.refresh()
    del group["s/in/z"]
    b2array.convert(tmp_path / "new.b2d", f"{url}#s", overwrite=True, verify=True)
    found = b2array.open_group(url)["s"]
    assert dict(found.attrs) == dict(found["in"].attrs) == {"new": 2}
    assert (found["y"][...].tolist(), found["in/z"][...].tolist()) == ([1], [5])


@pytest.mark.parametrize("place", ["x.b2d", "x.h5", "x.zarr", "memory://", "memory.zarr"])
def test_nothing_is_put_below_an_array(place: str, tmp_path: Path) -> None:
    url = f"memory:/{tmp_path}/x.zarr" if place == "memory.zarr" else address(place, tmp_path)
    np.save(tmp_path / "x.npy", [1, 2])
    b2array.convert(tmp_path / "x.npy", f"{url}#in/a")
    for member in ("#in/a/b", "/in/a/b/c"):
        with pytest.raises((TypeError, ValueError)):
            b2array.convert(tmp_path / "x.npy", url + member, overwrite=True)
    b2array.convert(url, tmp_path / "back.b2d")
    assert [name for name, _ in b2array.open_group(tmp_path / "back.b2d").walk()] == ["in", "in/a"]


def test_attributes_that_could_not_be_copied_are_not_counted_as_arrays(tmp_path: Path) -> None:
    new, old = (b2array.open_group(tmp_path / name, "w") for name in ("new.b2d", "old.b2d"))
    new["a"] = new["in/b"] = [1]
    for group in (new, old, new["in"], old.require_group("in")):
        group.attrs["n"] = 1
    old["s/x"] = [1]
    old["s"].attrs["n"] = 1
    old.require_group("s/in").attrs["n"] = 1
    with pytest.raises(B2ArrayError, match=r"b2d: the attributes of 2 groups could not be copied: /: .* already"):
        b2array.convert(tmp_path / "new.b2d", f"{tmp_path}/old.b2d#s")
    done = convert_to(tmp_path / "new.b2d", f"{tmp_path}/old.b2d#in")
    assert done.failed.keys() == {"/"}
    assert done.summary().startswith("2 arrays")


@pytest.mark.parametrize("place", ["x.b2d", "memory://", "x.h5"])
def test_members_of_a_group_inside_another_are_replaced_on_request_but_not_by_damaged_ones(
    place: str, tmp_path: Path
) -> None:
    url = address(place, tmp_path)
    new = b2array.open_group(tmp_path / "new.b2d", "w")
    for name in ("flat", "in/sparse", "bad", "more"):
        new.create(name, data=[1, 2], layout="sparse" if name == "in/sparse" else "auto")
    noise = np.random.default_rng(0).random(1000)
    new.create("torn", data=noise, chunks=(500,))
    new["in"].attrs["n"] = 1
    b2array.convert(tmp_path / "new.b2d", f"{url}#s")
    for name in ("flat", "in/sparse", "bad"):
        new[name][:] = [3, 4]
    new["torn"][:] = noise[::-1]
    flip(*place_of(tmp_path / "new.b2d" / "torn.b2nd", 1, 600))
    del new["more"]
    (tmp_path / "new.b2d" / "bad.b2nd").write_bytes(b"nothing")
    with pytest.raises((B2ArrayError, FileExistsError)):
        b2array.convert(tmp_path / "new.b2d", f"{url}#s")
    with pytest.raises(B2ArrayError, match=r": 2 of 4 arrays could not be copied: bad: .*; torn: "):
        b2array.convert(tmp_path / "new.b2d", f"{url}#s", overwrite=True, verify=True)
    b2array.convert(url, tmp_path / "back.b2d")
    back = b2array.open_group(tmp_path / "back.b2d")["s"]
    found = {name: a[:].tolist() for name, a in back.walk() if isinstance(a, b2array.NDArray)}
    assert found == {"bad": [1, 2], "flat": [3, 4], "in/sparse": [3, 4], "more": [1, 2], "torn": noise.tolist()}


@pytest.mark.parametrize("place", ["x.b2d", "memory://"])
def test_a_group_into_which_nothing_could_be_copied_is_not_left_behind(place: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in ARRAYS:
            file.create_dataset(name, (1, 1), h5py.vlen_dtype("i4"))
    url = address(place, tmp_path / "new")
    with pytest.raises(UnsupportedError):
        b2array.convert(tmp_path / "x.h5", url)
    with pytest.raises(FileNotFoundError):
        b2array.open_group(url)
    b2array.open_group(tmp_path / "good.b2d", "w")["z"] = [5]
    b2array.convert(tmp_path / "good.b2d", url)
    with pytest.raises(UnsupportedError):
        b2array.convert(tmp_path / "x.h5", url, overwrite=True)
    assert [*b2array.open_group(url)] == ["z"]


def test_an_archive_of_something_else_is_no_group(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(3))
    with pytest.raises(FormatError, match="zip archive without any"):
        b2array.convert(tmp_path / "x.npz", tmp_path / "y.b2d")


def test_a_name_with_a_hash_is_still_a_file(tmp_path: Path) -> None:
    b2array.asarray([1, 2], url=tmp_path / "run #1.b2nd").close()
    b2array.convert(tmp_path / "run #1.b2nd", tmp_path / "x.npy")
    assert np.load(tmp_path / "x.npy").tolist() == [1, 2]


@pytest.mark.parametrize("name", ["x.npy", "x.b2nd", "x.blp", "x.h5", "x.b2d", "x.b2z", "x.zarr"])
def test_a_directory_with_a_hash_in_its_name_takes_files(tmp_path: Path, name: str) -> None:
    b2array.asarray([1, 2], url=tmp_path / "a.b2nd").close()
    (tmp_path / "d#1").mkdir()
    for _ in range(2):
        b2array.convert(tmp_path / "a.b2nd", tmp_path / "d#1" / name, overwrite=True, verify=True)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"d#1"}
    b2array.convert(tmp_path / "d#1" / name, tmp_path / "back.npy")
    assert np.load(tmp_path / "back.npy").tolist() == [1, 2]
    b2array.convert(tmp_path / "a.b2nd", f"{tmp_path}/plain#1")
    assert b2array.open_group(tmp_path / "plain")["1"][...].tolist() == [1, 2]


@pytest.mark.parametrize("name", ["x.h5", "x.b2d", "x.zarr"])
def test_members_are_named_in_a_directory_with_a_hash_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d #1").mkdir()
    np.save(tmp_path / "x.npy", [1, 2])
    for n, member in enumerate(("#a/one", "/a/two", "#three")):
        b2array.convert("x.npy", f"d #1/{name}{member}")
        for source in (f"d #1/{name}{member}", f"{tmp_path}/d #1/{name}{member}"):
            b2array.convert(source, f"{n}.npy", overwrite=True, verify=True)
            assert np.load(f"{n}.npy").tolist() == [1, 2]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["d #1"]


def test_the_name_of_a_new_file_may_have_a_hash(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", [1, 2])
    for name in ("run #1.npy", "run #1.b2nd", "run #1.blp"):
        b2array.convert(tmp_path / "x.npy", tmp_path / name, verify=True)
        assert (tmp_path / name).is_file()


def test_a_group_in_a_directory_with_a_hash_in_its_name_is_opened_and_checked(tmp_path: Path) -> None:
    for place in (tmp_path / "d", tmp_path / "d#1"):
        b2array.open_group(place / "g.b2d", "w")["x"] = [place.name]
    b2array.open_group(tmp_path / "d", "a")
    for url in (f"{tmp_path}/d#1/g.b2d/x", f"{tmp_path}/d#1/g.b2d#x", f"{tmp_path}/d#1/g.b2d/x.b2nd"):
        assert b2array.open(url)[:].tolist() == ["d#1"]
        assert b2array.verify(url).ok
        assert b2array.repack(url).nbytes == 0
    assert [*b2array.open(tmp_path / "d#1" / "g.b2d")] == ["x"]
    assert [*b2array.verify(f"{tmp_path}/d#1/g.b2d").members] == ["x"]


def test_many_arrays_do_not_become_one_file(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name one of air/deep/w, air/t, roof"):
        b2array.convert(source, tmp_path / "x.npy")
    assert not (tmp_path / "x.npy").exists()


def test_a_damaged_manifest_or_embedding_frame_is_told_and_the_files_are_copied(source: Path, tmp_path: Path) -> None:
    for name in (".b2group", "embed.b2e"):
        (source / name).write_bytes(b"nothing at all")
        done = convert_to(source, tmp_path / f"{name}.h5")
        assert [type(error) for error in done.failed.values()] == [FormatError]
        with h5py.File(tmp_path / f"{name}.h5") as file:
            assert {"air", "roof"} <= {*file}
        (source / name).unlink()
    (source / ".b2group").write_bytes(b"nothing at all")
    with pytest.raises(B2ArrayError, match=r"whole list of arrays could not be copied: [^:;]*\.b2group: expected"):
        b2array.convert(source, tmp_path / "x.h5")


@pytest.mark.parametrize(("found", "expected"), [(ConflictError, ConflictError), (FormatError, FormatError)])
def test_another_writer_who_came_first_is_told_from_damage(
    found: type[Exception], expected: type[Exception], source: Path, tmp_path: Path
) -> None:
    def contested(url: str, storage_options: Any) -> Any:
        @contextmanager
        def opened() -> Any:
            with B2D.tree(url, storage_options) as tree:

                def member(name: str) -> ArraySource:
                    if name == "roof":
                        raise found("the chunk was replaced")
                    if name == "air/t" and found is FormatError:
                        raise ConflictError("the chunk was replaced")
                    return tree.open(name)

                yield Hierarchy(tree.names, member, tree.attrs)

        return opened()

    kind: Any = B2D._replace(tree=contested)
    with pytest.raises(expected, match="roof: the chunk was replaced"):
        b2array.convert(source, tmp_path / "x.b2d", src_format=kind)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.parametrize("way", ["convert", "change"])
def test_vacuum_removes_what_a_killed_writer_of_an_archive_has_left(tmp_path: Path, way: str) -> None:
    target = tmp_path / "x.b2z"
    group = b2array.open_group(tmp_path / "x.b2d", "w")
    group.create("a", data=np.arange(10), layout="sparse")
    pid = os.fork()
    if not pid:
        try:
            # It dies when it is about to put a member into the archive.
            zipfile.ZipFile.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            if way == "convert":
                b2array.convert(group.url, target)
            else:
                with b2array.open_group(target, "w") as made:
                    made.create("a", data=np.arange(10), layout="sparse")
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) > 1
    if way == "change":
        b2array.open_group(target, "a", resume=True).close()
        with zipfile.ZipFile(target) as archive:
            assert sorted(archive.namelist()) == ["a.b2nd", "embed.b2e"]
    assert b2array.vacuum(target, grace=0).removed
    assert {path.name for path in tmp_path.iterdir()} <= {"x.b2d", "x.b2z"}


@pytest.mark.parametrize("target", ["out.b2d", "out.b2z", "out.h5", "out.zarr"])
def test_embedding_stores_of_python_blosc2_are_groups_to_read(tmp_path: Path, target: str) -> None:
    values = {"a": np.arange(6.0), "in/b": np.arange(4, dtype="i2").reshape(2, 2)}
    with blosc2.EmbedStore(str(tmp_path / "s.b2e"), mode="w") as store:
        for name, items in values.items():
            store[f"/{name}"] = items
    b2array.convert(tmp_path / "s.b2e", tmp_path / target, verify=True)
    _, url = find(tmp_path / target, None, None, exists=True)
    with find(url, None, None, exists=True)[0].tree(url, None) as tree:
        assert {name: tree.open(name).read((...,)).tolist() for name in tree.names} == {
            name: items.tolist() for name, items in values.items()
        }
    b2array.convert(tmp_path / "s.b2e/in/b", tmp_path / "b.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), values["in/b"])
    with pytest.raises(FileNotFoundError, match="has no member 'c'"):
        b2array.convert(tmp_path / "s.b2e/c", tmp_path / "c.npy")
    with pytest.raises(ReadOnlyError, match=r"x\.b2e: stores of python-blosc2 in one frame can only be read"):
        b2array.convert(tmp_path / "b.npy", tmp_path / "x.b2e")
    with pytest.raises(ReadOnlyError, match=r"x\.b2e: stores of python-blosc2 in one frame can only be read"):
        b2array.convert(tmp_path / target, tmp_path / "x.b2e")
    assert describe(str(tmp_path / "s.b2e"), None).typed["arrays"] == ["a"]


@pytest.mark.parametrize("number", [2, 3])
def test_hierarchies_of_zarr_are_consolidated(tmp_path, number):
    target = str(tmp_path / "g.zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xr.Dataset({"t": ("x", [1.5, 2.5])}, attrs={"title": "rain"}).b2array.to_b2array(tmp_path / "g.b2d")
        b2array.convert(tmp_path / "g.b2d", target, zarr_format=number)
        with xr.open_zarr(target) as ds:
            assert (ds.t.values.tolist(), ds.title) == ([1.5, 2.5], "rain")
    assert zarr.open_group(target, mode="r").metadata.consolidated_metadata is not None


@pytest.mark.parametrize("number", [2, 3])
def test_a_member_that_is_added_to_a_consolidated_hierarchy_is_found(tmp_path, number):
    target = str(tmp_path / "g.zarr")
    b2array.open_group(tmp_path / "g.b2d", "w")["t"] = [1.5]
    b2array.convert(tmp_path / "g.b2d", target, zarr_format=number)
    b2array.save(tmp_path / "x.b2nd", [1, 2])
    b2array.convert(tmp_path / "x.b2nd", f"{target}/deep/er/x", zarr_format=number)
    assert zarr.open_group(target, mode="r")["deep/er/x"][:].tolist() == [1, 2]
    b2array.convert(target, tmp_path / "back.b2d")
    assert b2array.open_group(tmp_path / "back.b2d")["deep/er/x"][:].tolist() == [1, 2]
