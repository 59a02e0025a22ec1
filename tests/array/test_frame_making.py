"""One rule for every function that makes or reads a frame: a URL below a group names a member."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest

import b2array
from b2array.array import array_copying
from b2array.errors import ReadOnlyError

_serials = itertools.count()

X = np.arange(6.0)


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Make a group with a member `x`, and give its URL."""
    root = str(tmp_path) if request.param == "local" else f"memory://making-{next(_serials)}"
    b2array.open_group(f"{root}/m.b2d", "w")["x"] = X
    return f"{root}/m.b2d"


def _from_dask(url: str, **options: Any) -> Any:
    da = pytest.importorskip("dask.array")
    return b2array.from_dask(da.from_array(X, chunks=3), url, **options)


def _saved(url: str, **options: Any) -> Any:
    b2array.save(url, X, **{"overwrite": False, **options})
    return b2array.open(url, "r+")


SOURCE = b2array.asarray(X)

MAKERS: dict[str, Callable[..., Any]] = {
    "asarray": lambda url, **options: b2array.asarray(X, url=url, **options),
    "asarray of an array": lambda url, **options: b2array.asarray(SOURCE, url=url, **options),
    "create": lambda url, **options: b2array.create(url, 6, **options),
    "zeros": lambda url, **options: b2array.zeros(6, url=url, **options),
    "empty": lambda url, **options: b2array.empty(6, url=url, **options),
    "ones": lambda url, **options: b2array.ones(6, url=url, **options),
    "full": lambda url, **options: b2array.full(6, 2.5, url=url, **options),
    "full_like": lambda url, **options: b2array.full_like(SOURCE, 2.5, url=url, **options),
    "save": _saved,
    "from_blocks": lambda url, **options: b2array.from_blocks([X[:2], X[2:]], url, **options),
    "from_dask": _from_dask,
    "fromiter": lambda url, **options: b2array.fromiter(iter(X), "f8", url=url, **options),
    "arange": lambda url, **options: b2array.arange(6.0, url=url, **options),
    "arange of dates": lambda url, **options: b2array.arange(
        np.datetime64("2026-01-01"), np.datetime64("2026-01-07"), url=url, **options
    ),
    "linspace": lambda url, **options: b2array.linspace(0, 5, 6, url=url, **options),
    "eye": lambda url, **options: b2array.eye(3, url=url, **options),
    "copy": lambda url, **options: b2array.copy(SOURCE, url, **options),
    "copy of another type": lambda url, **options: b2array.copy(SOURCE, url, dtype="f4", **options),
    "copy of a view": lambda url, **options: SOURCE.view[::2].copy(url, **options),
    "astype": lambda url, **options: SOURCE.astype("f4", url, **options),
    "map": lambda url, **options: b2array.map(np.sqrt, SOURCE, url=url, **options),
    "map with factors": lambda url, **options: b2array.map(lambda x: x[::2], SOURCE, factors=2, url=url, **options),
    "downsample": lambda url, **options: b2array.downsample(SOURCE, 2, url=url, **options),
    "concatenate": lambda url, **options: b2array.concatenate([SOURCE, SOURCE], url=url, **options),
    "stack": lambda url, **options: b2array.stack([SOURCE, SOURCE], url=url, **options),
    "create_schunk": lambda url, **options: b2array.create_schunk(url, chunksize=8, **options),
}


@pytest.mark.parametrize("name", ["y", "in/y"])
@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_made_below_a_group_is_a_member(url: str, maker: str, name: str) -> None:
    make = MAKERS[maker]
    new = make(f"{url}/{name}")
    ending = ".b2f" if maker == "create_schunk" else ".b2nd"
    assert new.url.endswith(f"/m.b2d/{name}{ending}")
    member = b2array.open_group(url)[name]
    assert type(member) is type(new)
    if maker != "create_schunk":
        assert np.array_equal(member[...], new[...])
        new[0] = new[1]  # the handle writes to the member
        assert np.array_equal(b2array.open_group(url)[name][0], new[1])
    assert [each for each in b2array.verify(url) if each.endswith("y")] == [name]


@pytest.mark.parametrize("maker", [name for name in MAKERS if name != "create_schunk"])
def test_a_member_has_the_items_that_the_same_array_has_alone(
    url: str, maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Items are written one by one, so that chunks stay open where they may.
    monkeypatch.setattr(array_copying, "PIECE_NBYTES", 8)
    make = MAKERS[maker]
    expected = make(tmp_path / "alone.b2nd")[...]
    assert np.array_equal(make(f"{url}/y")[...], expected)
    assert np.array_equal(make(f"{url}/x", overwrite=True)[...], expected)
    group = b2array.open_group(url)
    assert np.array_equal(group["y"][...], expected)
    assert np.array_equal(group["x"][...], expected)


@pytest.mark.parametrize("name", ["x", "x.b2nd", "x/"])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_member_is_replaced_only_on_demand_and_never_doubled(url: str, maker: str, name: str) -> None:
    make = MAKERS[maker]
    with pytest.raises(FileExistsError, match="there is a member 'x'; overwrite=True replaces it"):
        make(f"{url}/{name}")
    assert b2array.load(f"{url}/x").tolist() == X.tolist()
    make(f"{url}/{name}", overwrite=True)
    assert [*b2array.open_group(url)] == ["x"]
    if not url.startswith("memory"):
        files = [path.name for path in Path(url).rglob("x*") if not path.name.endswith(".b2lock")]
        assert len(files) == 1, files


def test_a_member_that_is_replaced_by_its_url_stays_in_the_snapshots_of_its_group(url: str) -> None:
    b2array.open_group(url, "r+").snapshot("then")
    b2array.save(f"{url}/x.b2nd", X + 1)
    assert b2array.open_group(url, at="then")["x"][...].tolist() == X.tolist()
    assert b2array.load(f"{url}/x").tolist() == (X + 1).tolist()


def test_a_name_that_excludes_another_one_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="'x' is an array, not a group"):
        b2array.asarray(X, url=f"{url}/x/y")
    b2array.asarray(X, url=f"{url}/in/y")
    with pytest.raises(FileExistsError, match="there is a group 'in'"):
        b2array.asarray(X, url=f"{url}/in", overwrite=True)
    with pytest.raises(ValueError, match="cannot name a member"):
        b2array.asarray(X, url=f"{url}/.b2group")
    assert [*b2array.open_group(url)] == ["in", "x"]


def test_a_failing_maker_leaves_the_group_as_it_was(url: str) -> None:
    def blocks() -> Any:
        yield X
        raise KeyError("no more blocks")

    for name in ("x", "y"):
        with pytest.raises(KeyError, match="no more blocks"):
            b2array.from_blocks(blocks(), f"{url}/{name}", overwrite=True)
    assert [*b2array.open_group(url)] == ["x"]
    assert b2array.load(f"{url}/x").tolist() == X.tolist()


def test_blocks_that_replace_one_file_in_memory_are_all_there() -> None:
    url = f"memory://making-{next(_serials)}/m.b2d"
    b2array.open_group(url, "w").create("x", data=X, layout="contiguous")
    b2array.from_blocks(iter([X[:2], X[2:4], X[4:]]), f"{url}/x", overwrite=True)
    assert b2array.load(f"{url}/x").tolist() == X.tolist()


@pytest.mark.parametrize("name", ["x", "x.b2nd"])
def test_readers_find_a_member_by_its_name(url: str, name: str) -> None:
    assert b2array.load(f"{url}/{name}").tolist() == X.tolist()
    assert b2array.copy(f"{url}/{name}")[...].tolist() == X.tolist()
    assert b2array.copy(f"{url}/{name}", f"{url}/copied-{name.partition('.')[0]}")[...].tolist() == X.tolist()
    with b2array.open_schunk(f"{url}/{name}") as chunks:
        assert np.frombuffer(chunks.get_slice()).tolist() == X.tolist()
    with b2array.open_schunk(f"{url}/{name}", "r+") as chunks:
        chunks.vlmeta["unit"] = "m"
    assert dict(b2array.open_group(url)["x"].attrs) == {"unit": "m"}
    assert b2array.load(f"{url}#x").tolist() == X.tolist()


def test_readers_say_what_else_is_there(url: str) -> None:
    b2array.open_group(url, "r+").create_group("in")
    for read in (b2array.load, b2array.copy, b2array.open_schunk):
        with pytest.raises(TypeError, match="open_group opens it"):
            read(f"{url}/in")
        with pytest.raises(FileNotFoundError, match="has no member 'z'; it has in, x"):
            read(f"{url}/z")


def test_members_of_archives_are_read_and_not_written(tmp_path: Path) -> None:
    with b2array.open_group(tmp_path / "m.b2z", "w") as group:
        group["x"] = X
    assert b2array.load(tmp_path / "m.b2z/x").tolist() == X.tolist()
    with pytest.raises(ReadOnlyError, match=r"is an archive, which is changed as a whole.*group\['y'\]"):
        b2array.asarray(X, url=tmp_path / "m.b2z/y")
    with pytest.raises(ReadOnlyError, match="is an archive"):
        b2array.open_group(tmp_path / "m.b2z/in", "w")


def test_a_store_of_another_library_gets_members_beside_its_embedded_ones(tmp_path: Path) -> None:
    with blosc2.TreeStore(str(tmp_path / "m.b2d"), mode="w") as tree:
        tree["/x"] = X
    with pytest.raises(FileExistsError, match="there is a member 'x'"):
        b2array.asarray(X, url=tmp_path / "m.b2d/x")
    b2array.asarray(X + 1, url=tmp_path / "m.b2d/x", overwrite=True).close()
    with blosc2.TreeStore(str(tmp_path / "m.b2d"), mode="r") as tree:
        assert tree["/x"][:].tolist() == (X + 1).tolist()


def test_a_link_into_a_group_leads_to_its_members(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "m.b2d", "w")
    group.create_group("in")
    (tmp_path / "link").symlink_to(tmp_path / "m.b2d" / "in")
    b2array.asarray(X, url=tmp_path / "link" / "y")
    group.refresh()
    assert [*group["in"]] == ["y"]


def test_a_member_that_is_computed_later_is_made_first(url: str) -> None:
    da = pytest.importorskip("dask.array")
    x = da.from_array(X, chunks=3)
    with pytest.raises(ValueError, match="make 'y' with its create"):
        b2array.from_dask(x, f"{url}/y", compute=False)
    a = b2array.open_group(url, "r+").create("y", x.shape, x.dtype, chunks=3)
    a.store(x, compute=False).compute()
    assert b2array.load(f"{url}/y").tolist() == X.tolist()


def test_a_directory_is_a_sparse_member(tmp_path: Path) -> None:
    b2array.open_group(tmp_path / "m.b2d", "w")
    b2array.asarray(X, url=f"{tmp_path}/m.b2d/y{os.sep}")
    assert (tmp_path / "m.b2d/y.b2nd").is_dir()


def test_arrays_in_no_group_do_without_the_package_of_groups(tmp_path: Path) -> None:
    program = f"""
import sys, b2array
b2array.asarray([1], url={str(tmp_path / "a.b2nd")!r})
print([name for name in sys.modules if name.startswith("b2array.group")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_who_holds_the_lock_of_a_member_replaces_none_that_snapshots_need(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "m.b2d", "w")
    group["x"], group["y"] = X, X
    with group["y"].lock():
        b2array.save(f"{group.url}/x", X + 1)
    group.snapshot("then")
    with group["y"].lock(), pytest.raises(RuntimeError, match="snapshots need 'x'"):
        b2array.save(f"{group.url}/x", X + 2)
    assert b2array.open_group(group.url, at="then")["x"][...].tolist() == (X + 1).tolist()
