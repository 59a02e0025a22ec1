"""The summaries in a group's manifest: members are opened from them, and never read as they no longer are."""

from __future__ import annotations

import itertools
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import blosc2
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples
from servers import RangeServer

import b2array
from b2array import Group, open_group
from b2array.catalog import owners
from b2array.catalog.manifest import MANIFEST, Manifest, Row
from b2array.commit.cursor import Promised
from b2array.errors import B2ArrayError, ConflictError, FormatError, UnsupportedError
from b2array.format import summary
from b2array.frame import revision
from b2array.group.homes import GroupHome
from b2array.store.local_store import LocalStore

_serials = itertools.count()
_DATA = np.arange(12.0).reshape(6, 2)
_FORM: dict[str, Any] = {"chunks": (3, 2), "blocks": (3, 2), "dims": ("t", None), "fill_value": 7}


def _filled(url: str | Path, layout: str = "auto", **options: Any) -> Group:
    """Make a group in one commit, so that its manifest describes all members."""
    group = open_group(url, "w", **options)
    with group.transaction() as changes:
        for name in ("a", "deep/b"):
            changes.create(
                name, data=_DATA, chunks=(3, 2), blocks=(3, 2), layout=layout, dims=("t", None), fill_value=7
            )
            changes[name].attrs["unit"] = "K"
        changes.attrs["n"] = 1
    return group


@pytest.fixture(params=["contiguous", "sparse", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Give a URL on this computer, and a layout."""
    memory = request.param == "memory"
    return (f"memory://test-summaries-{next(_serials)}.b2d", "auto") if memory else (str(tmp_path / "g"), request.param)


def _records(group: Group) -> dict[str, Any]:
    assert isinstance(group._home, GroupHome)
    return summary.unpack_all(group._home.manifest.summaries)


def _loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the URL of each frame that is read."""
    loaded: list[str] = []
    original = revision._parse_frame

    def parse(store: Any, *args: Any, **kwargs: Any) -> Any:
        loaded.append(store.url.rpartition("/")[2])
        return original(store, *args, **kwargs)

    monkeypatch.setattr(revision, "_parse_frame", parse)
    return loaded


def test_what_is_shown_of_members_takes_no_reading_of_them(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(*place)
    group = open_group(place[0])
    assert sorted(_records(group)) == ["__vlmeta__.b2f", "a.b2nd", "deep/b.b2nd"]
    loaded = _loads(monkeypatch)
    a, b = group.arrays()["a"], group["deep/b"]
    for each in (a, b):
        assert (each.shape, each.dtype, each.attrs["unit"], each.fill_value) == ((6, 2), "f8", "K", 7.0)
        assert (each.chunks, each.blocks, each.dims) == ((3, 2), (3, 2), ("t", None))
        assert (each.cparams.codec, each.cbytes > 0) == ("zstd", True)
    assert dict(group.attrs) == {"n": 1}
    assert "a.b2nd" not in loaded
    assert "b.b2nd" not in loaded
    assert np.array_equal(a[...], _DATA)
    assert a.generation == b2array.open(a.url).generation
    assert np.array_equal(pickle.loads(pickle.dumps(b))[1:], _DATA[1:])


def _append(url: str) -> None:
    b2array.open(url, "r+").append(np.ones((1, 2)))


def _assign(url: str) -> None:
    b2array.open(url, "r+")[0] = -1


def _describe(url: str) -> None:
    b2array.open(url, "r+").attrs["unit"] = "F"  # as long as the old one


def _replace(url: str) -> None:
    layout = b2array.open(url).info["layout"]
    b2array.asarray(_DATA[::-1], url=url, attrs={"unit": "K"}, overwrite=True, layout=layout, **_FORM)


def _other_layout(url: str) -> None:
    layout = "sparse" if b2array.open(url).info["layout"] == "contiguous" else "contiguous"
    b2array.asarray(_DATA * 2, url=url, overwrite=True, layout=layout)


CHANGES = [_append, _assign, _describe, _replace, _other_layout]


@pytest.mark.parametrize("change", CHANGES)
def test_members_changed_by_their_own_url_are_shown_as_they_are(
    place: tuple[str, str], change: Callable[[str], None]
) -> None:
    _filled(*place)
    url = f"{place[0]}/a.b2nd"
    earlier = open_group(place[0])
    held = earlier.arrays()["a"]
    change(url)
    now = b2array.open(url)
    earlier.refresh()
    for group in (open_group(place[0]), earlier):
        for found in (group["a"], group.arrays()["a"]):
            assert (found.shape, dict(found.attrs), found.dims) == (now.shape, dict(now.attrs), now.dims)
            assert np.array_equal(found[...], now[...])
    # One that was taken before shows the state from before, or says that it is gone.
    try:
        assert np.array_equal(held[...], _DATA)
        assert dict(held.attrs) == {"unit": "K"}
    except (ConflictError, FileNotFoundError, NotADirectoryError):
        assert change in (_replace, _other_layout) or place[0].startswith("memory:")


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_what_python_blosc2_writes_in_place_is_seen(tmp_path: Path, layout: str) -> None:
    _filled(tmp_path / "g", layout)
    stock = blosc2.open(str(tmp_path / "g" / "a.b2nd"), mode="a")
    stock[0] = 9.0
    found = open_group(tmp_path / "g")["a"]
    assert found[0].tolist() == [9.0, 9.0]
    stock.schunk.vlmeta["unit"] = "F"
    assert open_group(tmp_path / "g")["a"].attrs["unit"] == "F"
    stock.resize((5, 2))
    assert open_group(tmp_path / "g")["a"].shape == (5, 2)


def test_a_deleted_member_is_not_described(tmp_path: Path) -> None:
    _filled(tmp_path / "g")
    (tmp_path / "g" / "a.b2nd").unlink()
    assert list(open_group(tmp_path / "g")) == ["deep"]
    group = open_group(tmp_path / "g", "r+")
    del group["deep/b"]
    assert "deep/b.b2nd" not in _records(open_group(tmp_path / "g"))


def test_a_copied_group_keeps_its_summaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _filled(tmp_path / "g")
    shutil.copytree(tmp_path / "g", tmp_path / "h")
    loaded = _loads(monkeypatch)
    found = open_group(tmp_path / "h")["a"]
    assert (found.shape, "a.b2nd" in loaded) == ((6, 2), False)
    assert np.array_equal(found[...], _DATA)


def test_transactions_keep_summaries_up_to_date(place: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    group = _filled(*place)
    with group.transaction() as changes:
        changes["a"].append(np.ones((1, 2)))
        changes.create("c", data=[1, 2])
        changes["c"].attrs["late"] = True
        del changes["deep/b"]
    again = open_group(place[0])
    assert sorted(_records(again)) == ["__vlmeta__.b2f", "a.b2nd", "c.b2nd"]
    loaded = _loads(monkeypatch)
    found = again.arrays()
    assert found["a"].shape == (7, 2)
    assert found["c"].attrs["late"] is True
    assert not {"a.b2nd", "c.b2nd"} & {*loaded}
    assert found["a"][6].tolist() == [1, 1]


def test_groups_without_summaries_get_them_by_consolidating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with blosc2.TreeStore(str(tmp_path / "g.b2d"), mode="w", threshold=0) as tree:
        tree["/stock"] = np.arange(5)
    group = open_group(tmp_path / "g.b2d", "r+")
    group.create("ours", data=[1])
    assert _records(group) == {}
    group.consolidate()
    records = _records(open_group(tmp_path / "g.b2d"))
    assert records["stock.b2nd"] is None
    assert records["ours.b2nd"] is not None
    group.create("more", data=[2])
    assert "more.b2nd" in _records(open_group(tmp_path / "g.b2d"))
    group["ours"].append([2])
    group.consolidate()
    loaded = _loads(monkeypatch)
    assert open_group(tmp_path / "g.b2d")["ours"].shape == (2,)
    assert "ours.b2nd" not in loaded
    with group.transaction() as changes, pytest.raises(ValueError, match="inside a transaction"):
        changes.consolidate()
    with blosc2.TreeStore(str(tmp_path / "g.b2d"), mode="r") as tree:
        assert tree["/stock"][:].tolist() == list(range(5))


def _mutated(manifest: Manifest, change: Callable[[dict[str, Any]], object]) -> bytes:
    records = summary.unpack_all(manifest.summaries)
    change(records)
    return replace(manifest, summaries=summary.pack_all(records)).pack()


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records.update({"a.b2nd": records["deep/b.b2nd"][::-1]}),
        lambda records: records.update({"a.b2nd": [b"", b"", b""]}),
        lambda records: records.update({"a.b2nd": 3}),
        lambda records: records.update({"../evil.b2nd": records["a.b2nd"], "a.b2nd": [records["a.b2nd"][0][:50]] * 3}),
        lambda records: records["a.b2nd"].__setitem__(1, bytes(16)),
        lambda records: records["a.b2nd"].__setitem__(2, b"\x81\xa1v\x01"),
    ],
)
def test_damaged_summaries_give_way_to_the_member(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = tmp_path / "g" / MANIFEST
    _filled(tmp_path / "g")
    path.write_bytes(_mutated(Manifest.unpack(path.read_bytes()), change))
    group = open_group(tmp_path / "g")
    assert sorted(group) == ["a", "deep"]
    assert np.array_equal(group["a"][...], _DATA)
    assert np.array_equal(group.arrays()["a"][...], _DATA)


def test_a_damaged_byte_costs_no_more_than_the_summaries(tmp_path: Path) -> None:
    path = tmp_path / "g" / MANIFEST
    _filled(tmp_path / "g")
    manifest = Manifest.unpack(path.read_bytes())
    for at in range(0, len(manifest.summaries), 7):
        packed = bytearray(manifest.summaries)
        packed[at] ^= 4
        path.write_bytes(replace(manifest, summaries=bytes(packed)).pack())
        group = open_group(tmp_path / "g")
        assert _records(group) == {}
        assert group["a"].shape == (6, 2)


def test_a_manifest_whose_summaries_are_no_bytes_is_refused() -> None:
    good = Manifest({"a": Row("a.b2nd")}, summaries=summary.pack_all({"a.b2nd": None}))
    assert Manifest.unpack(good.pack()) == good
    with pytest.raises(FormatError, match="summaries"):
        Manifest.unpack(replace(good, summaries=[1]).pack())  # type: ignore[arg-type]


_held = owners.load(
    b2array.asarray(_DATA, chunks=(3, 2), blocks=(3, 2), dims=("t", None), attrs={"unit": "K"})._handle.store
)
_record = summary.pack(_held.state, _held.header)


def _any_record() -> st.SearchStrategy[Any]:
    assert _record is not None

    @st.composite
    def damaged(draw: st.DrawFn) -> list[bytes]:
        parts = [bytearray(part) for part in _record]
        for _ in range(draw(st.integers(1, 4))):
            part = parts[draw(st.integers(0, 2))]
            part[draw(st.integers(0, len(part) - 1))] = draw(st.integers(0, 255))
        return [bytes(part) for part in parts]

    return st.one_of(damaged(), st.lists(st.binary(max_size=300), max_size=4), st.none() | st.integers() | st.text())


@settings(max_examples=examples(150))
@given(_any_record())
def test_any_record_is_a_summary_or_refused(record: Any) -> None:
    try:
        found = summary.unpack(record)
    except (FormatError, UnsupportedError):
        return
    # What is made up of the index takes no memory, whatever size the record claims.
    assert found.state.frame.offsets.strides == (0,) or found.state.frame.nchunks < 2
    assert all(isinstance(raw, bytes) for raw in found.state.attrs().values())


@settings(max_examples=examples(50))
@given(st.binary(max_size=200))
def test_any_bytes_are_summaries_or_none(data: bytes) -> None:
    assert summary.unpack_all(data) == {}


def test_a_summary_that_claims_a_huge_index_is_refused() -> None:
    assert _record is not None
    header = bytearray(_record[0])
    header[30:38] = (2**62).to_bytes(8, "big")
    with pytest.raises(FormatError, match="chunks"):
        summary.unpack([bytes(header), *_record[1:]])


def test_long_attributes_stay_out_of_the_manifest(tmp_path: Path) -> None:
    group = open_group(tmp_path / "g", "w")
    with group.transaction() as changes:
        changes.create("a", data=[1], attrs={"text": "x" * 20_000})
        changes.create("b", data=[1])
    records = _records(open_group(tmp_path / "g"))
    assert records["a.b2nd"] is None
    assert records["b.b2nd"] is not None
    assert len(open_group(tmp_path / "g")["a"].attrs["text"]) == 20_000


# In other places.


@pytest.fixture
def served(http: RangeServer, tmp_path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Give the URL of a server of a local directory, and what brings it up to date."""

    def publish() -> None:
        for path in tmp_path.rglob("*"):
            if path.is_file():
                http.objects[path.relative_to(tmp_path).as_posix()] = path.read_bytes()

    return http.url_of("g"), publish


def test_a_server_without_listing_shows_a_local_group_in_one_request(
    served: tuple[str, Callable[[], None]], http: RangeServer, tmp_path: Path
) -> None:
    _filled(tmp_path / "g")
    url, publish = served
    publish()
    group = open_group(url)
    assert group.tree() == "/\n├── a\n└── deep\n    └── b"
    arrays = {**group.arrays(), **group["deep"].arrays()}
    assert {name: each.shape for name, each in arrays.items()} == {"a": (6, 2), "b": (6, 2)}
    assert arrays["b"].attrs["unit"] == "K"
    assert dict(group.attrs) == {"n": 1}
    assert len(http.requests) == 1
    assert np.array_equal(arrays["a"][...], _DATA)


def test_a_server_of_a_group_without_summaries_says_that_it_cannot_be_listed(
    served: tuple[str, Callable[[], None]], tmp_path: Path
) -> None:
    open_group(tmp_path / "g", "w").create("a", data=[1])
    served[1]()
    for cache in ("", "simplecache::"):  # an empty listing is none, either
        group = open_group(f"{cache}{served[0]}")
        with pytest.raises(UnsupportedError, match=r"cannot be listed.*Group\.consolidate"):
            list(group)
    open_group(tmp_path / "g", "r+").consolidate()
    served[1]()
    for cache in ("", "simplecache::"):
        assert list(open_group(f"{cache}{served[0]}")) == ["a"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_server_never_gives_items_other_than_described(
    served: tuple[str, Callable[[], None]], tmp_path: Path, change: Callable[[str], None]
) -> None:
    _filled(tmp_path / "g")
    url, publish = served
    change(str(tmp_path / "g" / "a.b2nd"))
    publish()
    now = b2array.open(tmp_path / "g" / "a.b2nd")
    held = open_group(url).arrays()["a"]
    if (held.shape, dict(held.attrs), held.dims, held.fill_value) == (
        now.shape,
        dict(now.attrs),
        now.dims,
        now.fill_value,
    ):
        assert np.array_equal(held[...], now[...])
        return
    with pytest.raises(ConflictError, match="own URL"):
        held[...]
    # It is said once; from then on the member is read.
    again = open_group(url).arrays()["a"]
    assert (again.shape, dict(again.attrs)) == (now.shape, dict(now.attrs))
    assert np.array_equal(again[...], now[...])


def test_opening_all_members_on_s3_is_one_request(
    bucket: str, s3_options: dict[str, object], s3_calls: list[str]
) -> None:
    url = f"s3://{bucket}/g.b2d"
    _filled(url, storage_options=s3_options)
    s3_calls.clear()
    group = open_group(url, storage_options=s3_options)
    arrays = {**group.arrays(), **group["deep"].arrays()}
    assert [each.shape for each in arrays.values()] == [(6, 2), (6, 2)]
    assert dict(group.attrs) == {"n": 1}
    assert s3_calls == ["get_object"]
    assert np.array_equal(arrays["b"][...], _DATA)


def test_on_s3_a_writer_through_the_group_keeps_the_summary_up_to_date(
    bucket: str, s3_options: dict[str, object]
) -> None:
    url = f"s3://{bucket}/g.b2d"
    _filled(url, storage_options=s3_options)
    writer = open_group(url, "r+", storage_options=s3_options)
    held = writer["a"]
    assert _records(open_group(url, storage_options=s3_options))["a.b2nd"] is not None
    held.append(np.ones((1, 2)))
    held.append(np.ones((1, 2)))
    deep = writer["deep/b"]
    deep.store(da.ones((3, 2)), slice(0, 3), scheduler="sync")
    writer.attrs["n"] = 2
    group = open_group(url, storage_options=s3_options)
    assert all(_records(group)[f"{name}.b2nd"] is not None for name in ("a", "deep/b"))
    assert (group.arrays()["a"].shape, dict(group.attrs)) == ((8, 2), {"n": 2})


def test_on_s3_a_change_by_the_own_url_keeps_the_summary_up_to_date(bucket: str, s3_options: dict[str, object]) -> None:
    url = f"s3://{bucket}/g.b2d"
    _filled(url, storage_options=s3_options)
    own = b2array.open(f"{url}/a.b2nd", "r+", storage_options=s3_options)
    before = open_group(url, storage_options=s3_options).arrays()["a"]
    own.append(np.ones((1, 2)))
    assert np.array_equal(before[...], _DATA)
    group = open_group(url, storage_options=s3_options)
    assert _records(group)["a.b2nd"] is not None
    assert group.arrays()["a"][6].tolist() == [1, 1]


def test_on_s3_a_change_by_the_own_url_is_never_mixed_with_the_summary(
    bucket: str, s3_options: dict[str, object]
) -> None:
    url = f"s3://{bucket}/g.b2d"
    own = b2array.asarray(_DATA, url=f"{url}/a.b2nd", chunks=(3, 2), blocks=(3, 2), storage_options=s3_options)
    open_group(url, "a", storage_options=s3_options).consolidate()
    own[0] = -1
    assert open_group(url, storage_options=s3_options).arrays()["a"][0].tolist() == [-1, -1]
    own.append(np.ones((1, 2)))
    with pytest.raises(ConflictError, match="consolidate"):
        open_group(url, storage_options=s3_options).arrays()["a"][...]
    assert open_group(url, storage_options=s3_options).arrays()["a"].shape == (7, 2)
    lazy = open_group(url, storage_options=s3_options).arrays()["a"]
    assert lazy[6].tolist() == [1, 1]
    open_group(url, "r+", storage_options=s3_options).consolidate()
    assert _records(open_group(url, storage_options=s3_options))["a.b2nd"] is not None


def test_a_prefix_of_arrays_without_a_manifest_is_consolidated(bucket: str, s3_options: dict[str, object]) -> None:
    url = f"s3://{bucket}/g.b2d"
    b2array.asarray(_DATA, url=f"{url}/a.b2nd", storage_options=s3_options)
    open_group(url, "r+", storage_options=s3_options).consolidate()
    group = open_group(url, storage_options=s3_options)
    assert _records(group)["a.b2nd"] is not None
    assert np.array_equal(group.arrays()["a"][...], _DATA)


def test_a_transaction_between_opening_and_reading_changes_nothing_that_was_opened(
    bucket: str, s3_options: dict[str, object]
) -> None:
    url = f"s3://{bucket}/g.b2d"
    writer = _filled(url, storage_options=s3_options)
    arrays = open_group(url, storage_options=s3_options).arrays()
    with writer.transaction() as changes:
        changes["a"][0] = -1
    assert arrays["a"][0].tolist() == _DATA[0].tolist()


def test_a_member_that_is_only_promised_can_be_refreshed(tmp_path: Path) -> None:
    _filled(tmp_path / "g")
    held = open_group(tmp_path / "g")["a"]
    assert isinstance(held._handle.cursor, Promised)
    held.refresh()
    assert held._handle.described is held._handle.source
    with pytest.raises(B2ArrayError):
        held[0] = 1
    assert isinstance(held._handle.store, LocalStore)
    with pytest.raises(AttributeError):
        held._handle.nothing  # noqa: B018
