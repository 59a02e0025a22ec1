"""First mistakes: foreign and damaged files, missing packages, wrong settings; each answer says what to do."""

from __future__ import annotations

import datetime as dt
import io
import os
import re
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest

import b2array
from b2array import config, neighbours
from b2array.errors import ConflictError, FormatError, UnsupportedError, warn

X = np.arange(100.0)


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = X


def write_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=X)


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "hello")


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, X)
    return buffer.getvalue()


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "npy": (lambda path: path.write_bytes(npy()), r"a \.npy file, which numpy\.load opens; b2array\.convert"),
    "npz": (write_npz, r"a \.npz file, which numpy\.load opens"),
    "hdf5": (write_hdf5, r"an HDF5 file, which h5py opens; b2array\.convert"),
    "blp": (lambda path: b2array.bloscpack.pack(X, path), r"a Bloscpack file, which b2array\.bloscpack\.open opens"),
    "zip": (write_zip, r"a zip archive"),
    "empty": (lambda path: path.write_bytes(b""), "an empty file"),
    "text": (lambda path: path.write_text("x,y\n1,2\n"), r"text, b'x,y\\n1,2\\n'"),
    "bytes": (lambda path: path.write_bytes(bytes(range(200))), r"b'\\x00\\x01"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_of_another_kind_is_named(tmp_path: Path, kind: str) -> None:
    write, what = FOREIGN[kind]
    write(tmp_path / "a.b2nd")
    for verb in (b2array.open, b2array.open_schunk, b2array.load):
        with pytest.raises(FormatError, match=rf"a\.b2nd: expected a Blosc2 frame, found {what}"):
            verb(tmp_path / "a.b2nd")


def test_a_directory_of_zarr_is_named(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    zarr.save(tmp_path / "a.zarr", X)
    for verb in (b2array.open, b2array.load):
        with pytest.raises(
            FileNotFoundError, match=r"a\.zarr is a directory of Zarr, which zarr\.open opens; b2array\."
        ):
            verb(tmp_path / "a.zarr")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_file_that_was_cut_says_so(tmp_path: Path, share: float) -> None:
    b2array.save(tmp_path / "a.b2nd", np.random.default_rng(0).normal(size=3000))
    content = (tmp_path / "a.b2nd").read_bytes()
    (tmp_path / "a.b2nd").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(FormatError, match=r"the file is cut off \(b2array\.repair saves what is left\)"):
        b2array.open(tmp_path / "a.b2nd")


def test_the_embedding_frame_leads_to_its_group(tmp_path: Path) -> None:
    b2array.open_group(tmp_path / "g.b2d", "w")["x"] = X
    with pytest.raises(FormatError, match=r"is the file for small members of a group; open the group .*g\.b2d$"):
        b2array.open_group(tmp_path / "g.b2d" / "embed.b2e")
    assert isinstance(b2array.open(tmp_path / "g.b2d" / "embed.b2e"), b2array.SChunk)


def test_a_missing_bucket_is_named(s3_options: dict[str, Any]) -> None:
    for verb in (b2array.open, b2array.open_group, lambda url, **options: b2array.zeros(3, url=url, **options)):
        with pytest.raises(FileNotFoundError, match="there is no bucket 'nowhere-at-all'"):
            verb("s3://nowhere-at-all/x.b2nd", storage_options=s3_options)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a directory that cannot be written")
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    b2array.save(tmp_path / "a.b2nd", X)
    for url in (f"/proc/{os.getpid()}/x.b2nd", str(tmp_path / "a.b2nd" / "x.b2nd")):
        with pytest.raises(OSError, match=f"{re.escape(url)}'$"):
            b2array.save(url, X)


# Missing packages.


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def hide(package: str) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


def test_dask_is_asked_for_by_its_extra(without: Callable[[str], None]) -> None:
    a = b2array.zeros(3)
    without("dask")
    for verb in (a.to_dask, lambda: a.store(X), lambda: b2array.from_dask(X)):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'b2array\[dask\]'$"):
            verb()


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("s3://x/a.b2nd", "s3"),
        ("https://x/a.b2nd", "http"),
        ("simplecache::s3://x/a.b2nd", "s3"),
    ],
)
def test_protocols_are_asked_for_by_their_extras(monkeypatch: pytest.MonkeyPatch, url: str, extra: str) -> None:
    def absent(protocol: str) -> None:
        if protocol != "simplecache":
            raise ImportError("Install something else")

    monkeypatch.setattr(sys.modules["fsspec.registry"], "get_filesystem_class", absent)
    with pytest.raises(UnsupportedError, match=rf"Install something else: pip install 'b2array\[{extra}\]'$"):
        b2array.open(url)


def test_xarray_is_asked_for_by_its_extra(without: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "b2array.xarray_io", raising=False)
    without("xarray")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'b2array\[xarray\]'$"):
        __import__("b2array.xarray_io")


def test_types_of_ml_dtypes_are_asked_for_by_their_extra(without: Callable[[str], None]) -> None:
    without("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "int4"):
        with pytest.raises(UnsupportedError, match=rf"{name} needs .* pip install 'b2array\[ml-dtypes\]'$"):
            b2array.zeros(3, name)
    with pytest.raises(TypeError, match="bfloat17"):
        b2array.zeros(3, "bfloat17")


# Settings.


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("verify", False, "'always' or 'never', not False"),
        ("verify", "no", "'always' or 'never'"),
        ("threads", "4", "1 or more, not '4'"),
        ("threads", 0, "1 or more"),
        ("threads", True, "1 or more"),
        ("cache_bytes", -1, "0 or more"),
        ("cache_bytes", "1GB", "number of bytes"),
        ("retries", 1.5, "whole number"),
        ("durable", "yes", "'off', 'ordered' or 'full'"),
        ("limits", {}, "Limits"),
        ("coalesce_gap", None, "0 or more"),
    ],
)
def test_settings_are_checked_when_they_are_assigned(name: str, value: Any, words: str) -> None:
    before = getattr(config, name)
    with pytest.raises(ValueError, match=rf"config\.{name} must be .*{words}"):
        setattr(config, name, value)
    with pytest.raises(ValueError, match=rf"config\.{name} must be .*{words}"), config.using(**{name: value}):
        pass
    assert getattr(config, name) is before


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"no setting 'thread'; there are cache_bytes, .*threads"):
        config.thread = 4  # type: ignore[attr-defined]
    with config.using(threads=np.int64(2), durable=True):
        assert (config.threads, config.durable) == (2, True)


# Warnings, and names that do not exist.


def test_warnings_point_at_the_line_that_called(tmp_path: Path) -> None:
    a = b2array.asarray(X, url="memory://warned.b2nd", layout="contiguous")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        a[0] = 1
        b2array.convert("memory://warned.b2nd", tmp_path / "a.npy")
        with a.transaction():
            a.attrs["x"] = 1
        b2array.convert("memory://warned.b2nd", tmp_path / "b.npy")
        warn("directly")
    assert {each.filename for each in caught} == {__file__}
    assert len(caught) >= 4


def test_array_is_no_function() -> None:
    with pytest.raises(TypeError, match=r"b2array\.asarray stores an array, b2array\.open opens one"):
        b2array.array([1, 2])  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["codec", "filter"])
def test_codecs_and_filters_of_others_are_named_with_how_to_register_them(kind: str) -> None:
    registry: Any = b2array.codecs if kind == "codec" else b2array.filters
    cparams = {"codec": 201} if kind == "codec" else {"filters": (201,)}
    registry.register(201, lambda *_: __import__("numcodecs").BZ2() if kind == "codec" else Same())
    chunk = b2array.compress(X, cparams=cparams)
    registry._registry.pop(201)
    with pytest.raises(UnsupportedError, match=rf"{kind} 201 is not built in; b2array\.{kind}s\.register\(201, make\)"):
        b2array.decompress(chunk)


class Same:
    """A filter that changes nothing."""

    def encode(self, data: bytes) -> bytes:
        return data

    decode = encode


def test_chunks_of_arrays_have_the_size_of_their_items() -> None:
    values = np.arange(10**6)
    chunk = b2array.compress(values)
    assert len(chunk) == len(b2array.compress(values.tobytes(), typesize=8)) < 20_000
    assert len(b2array.compress(memoryview(values))) == len(chunk)
    assert b2array.decompress(chunk) == values.tobytes()


def test_times_are_attributes() -> None:
    a = b2array.zeros(3)
    utc, naive = dt.datetime(2026, 7, 5, 12, 30, 1, 5, dt.UTC), dt.datetime(1960, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001
    offset = dt.timezone(dt.timedelta(hours=2))
    for value, expected in (
        (np.datetime64("2026-07-05T12:30", "ns"), np.datetime64("2026-07-05T12:30", "ns")),
        (np.datetime64("NaT", "ms"), np.datetime64("NaT", "ms")),
        (np.timedelta64(5, "D"), np.timedelta64(5, "D")),
        (naive, np.datetime64(naive, "us")),
        (dt.date(2026, 7, 5), np.datetime64("2026-07-05", "D")),
        (dt.timedelta(seconds=5), np.timedelta64(5_000_000, "us")),
        (utc, utc),
        (utc.astimezone(offset), utc),
    ):
        a.attrs["t"] = {"at": [value]}
        (found,) = a.attrs["t"]["at"]
        assert type(found) is type(expected), value
        assert found == expected or (found != found and expected != expected), value
        if isinstance(found, np.generic):
            assert found.dtype == expected.dtype  # type: ignore[union-attr]


# What others did meanwhile, and what members cannot do.


def test_an_array_takes_a_shape_or_data(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    with pytest.raises(TypeError, match=r"a shape or data, found both shape=\(3,\) and data of the shape \(1,\)"):
        group.create("a", shape=(3,), data=[1])
    with pytest.raises(TypeError, match="a shape or data, found neither"):
        group.create("a")
    assert [*group] == []


def test_a_new_group_is_asked_for_by_its_own_name(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    assert group.create_group("s", attrs={"a": 1}).attrs["a"] == 1
    with pytest.raises(TypeError, match=r"create_group\(\) got an unexpected keyword argument"):
        group.create_group("t", attributes={})


def test_a_walk_goes_on_behind_a_member_that_cannot_be_read(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    for name in ("a", "b/c", "b/d", "e"):
        group[name] = [1]
    (tmp_path / "g.b2d" / "b" / "c.b2nd").write_bytes(b"garbage")
    with pytest.warns(UserWarning, match=r"walk\(\) leaves out 'c': .*expected a Blosc2 frame, found text"):
        names = [name for name, _ in b2array.open_group(tmp_path / "g.b2d").walk()]
    assert names == ["a", "b", "b/d", "e"]


@pytest.mark.parametrize("content", [b"\x05" * 100_000, b"\0" * 100_000, b"tiny", "lazy"])
def test_a_file_on_a_server_that_something_else_replaced_is_a_conflict(http: Any, content: Any) -> None:
    if content == "lazy":  # bytes that look like a chunk whose blocks are elsewhere
        content = (struct.pack("<4B3i", 5, 1, 7, 8, 4000, 800, 900) + bytes(15) + b"\x08") * 4000
    http.tags = False
    url = http.url_of("replaced.b2nd")
    http.objects["replaced.b2nd"] = b2array.asarray(np.arange(4000.0), chunks=500, blocks=100).to_bytes()
    array = b2array.open(url)
    http.objects["replaced.b2nd"] = content
    with pytest.raises(ConflictError, match="changed since it was opened"):
        array[1234:1240]


CHANGES = {
    "an item": lambda a: a.__setitem__(3, 1),
    "a shape": lambda a: a.resize(5),
    "an attribute": lambda a: a.attrs.update(x=1),
    "an item in a transaction": lambda a: change_in_transaction(a),
}


def change_in_transaction(array: b2array.NDArray) -> None:
    with array.transaction():
        array[3] = 1


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_handle_whose_array_was_moved_raises_a_conflict(tmp_path: Path, layout: str, place: str, change: str) -> None:
    url = f"memory:/{tmp_path}/g.b2d" if place == "memory" else str(tmp_path / "g.b2d")
    group = b2array.open_group(url, "w")
    group.create("x", data=np.arange(100), layout=layout, chunks=10)
    array = b2array.open(f"{url}/x", "r+")
    group.move("x", "y")
    with pytest.raises(ConflictError, match=r"x\.b2nd (was deleted or moved|changed) since it was opened"):
        CHANGES[change](array)
    with pytest.raises(FileNotFoundError):
        array.refresh()
    assert group["y"][3] == 3


def test_a_file_that_was_renamed_is_a_conflict_for_its_handle(tmp_path: Path) -> None:
    array = b2array.asarray(X, url=tmp_path / "a.b2nd", chunks=10)
    (tmp_path / "a.b2nd").rename(tmp_path / "b.b2nd")
    array.close()
    with pytest.raises(ConflictError, match="deleted or moved"):
        array[3] = 1.0
    assert b2array.open(tmp_path / "b.b2nd")[3] == 3


# Names of other libraries.


def test_names_of_zarr_lead_to_the_names_of_b2array(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    array = group.create_array("z", (4, 4), "f4")
    # The package `group` hides its hint once it is imported.
    functions = {name: hint for name, hint in neighbours.MODULE.items() if name != "group"}
    tables = [(b2array, functions), (array, neighbours.ARRAY), (group, neighbours.GROUP)]
    tables += [(config, neighbours.CONFIG), (b2array.errors, neighbours.ERRORS)]
    for owner, table in [*tables, (group.attrs, neighbours.ATTRS), (array.attrs, neighbours.ATTRS)]:
        for name, hint in table.items():
            with pytest.raises(AttributeError, match=f"has no attribute '{name}': {re.escape(hint)}$"):
                getattr(owner, name)
    assert not hasattr(group.attrs, "__array__")
    assert not hasattr(array.attrs, "other")


def test_every_public_name_of_zarr_exists_or_leads_to_one_that_does(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    array = group.create_array("z", (4, 4), "f4")
    group_of_zarr = zarr.group()
    pairs = [
        (zarr, b2array),
        (zarr.Array, array),
        (zarr.Group, group),
        (group_of_zarr.attrs, group.attrs),
    ]
    bare = []
    for theirs, ours in pairs:
        names = [name for name in dir(theirs) if name.isidentifier() and not name.startswith("_")]
        for name in names:
            value = getattr(theirs, name, None)
            if isinstance(value, ModuleType) or getattr(value, "__module__", "") in ("typing", "__future__"):
                continue
            try:
                getattr(ours, name)
            except AttributeError as error:
                if not re.search(r"has no attribute '\w+': ", str(error)):
                    bare.append((type(ours).__name__, name))
    assert not bare


@pytest.mark.parametrize("dtype", [str, "string", "variable_length_utf8"])
def test_text_of_zarr_leads_to_text_of_any_length(dtype: Any) -> None:
    with pytest.raises(TypeError, match="write 'T' for text of any length"):
        b2array.zeros(3, dtype)
    with pytest.raises(TypeError, match="write a type with a size"):
        b2array.zeros(3, [("name", str)])
    assert b2array.zeros(3, "T").dtype == np.dtype("T")


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda url: b2array.open_group(url, "w").create_group("x", attributes={"a": 1}), r"attrs=\{'title'"),
        (lambda url: b2array.zeros(3, codecs=[]), r"cparams="),
        (lambda url: b2array.zeros(3, config={"order": "C"}), r"b2array\.config has the settings"),
        (lambda url: b2array.create(url, 3, write_data=False), r"b2array\.asarray stores them"),
        (lambda url: b2array.open_group(url, "w", attributes={"a": 1}), r"attrs=\{'title'"),
        (lambda url: b2array.zeros(3, zarr_format=3), "the format of Blosc2"),
        (lambda url: b2array.open(url, "r+", synchronizer=1), "commits are atomic"),
        (lambda url: b2array.zeros(3, url=url, dimension_separator="/"), "layout='sparse'"),
        (lambda url: b2array.open_group(url, use_consolidated=True), r"leave it out; group\.consolidate\(\) prepares"),
        (lambda url: b2array.open_group(url, "w", overwrite=True), "mode='w' of open and open_group replaces"),
        (lambda url: b2array.open(url, "r+", meta_array=None), "every result is an array of NumPy"),
        (
            lambda url: b2array.open(fsspec.get_mapper("memory://m")),
            r"found FSMap: give its parts instead, .* fs=mapper\.fs",
        ),
        (lambda url: b2array.zeros(3, url=fsspec.get_mapper("memory://m")), "found FSMap"),
        (lambda url: b2array.open_group({}, "w"), "found dict"),
    ],
)
def test_arguments_of_zarr_get_a_hint(tmp_path: Path, call: Callable[[str], object], hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        call(str(tmp_path / "x.b2d"))


@pytest.mark.parametrize("name", ["x.b2nd", "g.b2d/x"])
def test_a_mode_is_the_way_to_replace_an_array_for_functions_with_modes(tmp_path: Path, name: str) -> None:
    b2array.open_group(tmp_path / "g.b2d", "w")
    for verb in (b2array.open, b2array.open_array):
        verb(tmp_path / name, "w", shape=3)
        with pytest.raises(FileExistsError, match=r"; mode='w' replaces it$"):
            verb(tmp_path / name, "w-", shape=4)
        assert verb(tmp_path / name).shape == (3,)
    with pytest.raises(FileExistsError, match=r"; overwrite=True replaces it$"):
        b2array.create(tmp_path / name, 4)


@pytest.mark.parametrize(
    "call",
    [
        b2array.open,
        b2array.open_group,
        lambda store: b2array.create(store, (3,), "f4"),
        lambda store: b2array.create(store, shape=(3,)),
        lambda store: b2array.asarray(X, url=store),
        lambda store: b2array.convert(store, "x.b2d"),
    ],
)
def test_a_store_of_zarr_is_refused_with_what_to_pass_instead(call: Callable[[Any], object]) -> None:
    storage = pytest.importorskip("zarr.storage")
    hint = "found MemoryStore of zarr: pass its path or URL instead, .* an array without a URL is in memory"
    with pytest.raises(TypeError, match=hint):
        call(storage.MemoryStore())


def test_stores_and_codecs_of_zarr_lead_to_urls_and_parameters() -> None:
    zarr = pytest.importorskip("zarr")
    for module in (zarr.storage, zarr.codecs):
        for name in ("LocalStore", "MemoryStore", "ZipStore", "FsspecStore", "BloscCodec", "ZstdCodec", "GzipCodec"):
            if hasattr(module, name):
                with pytest.raises(AttributeError, match=rf"'{name}': (a path or a URL names|b2array\.CParams)"):
                    getattr(b2array, name)


def test_no_advice_for_users_of_zarr_replaces_what_is_there() -> None:
    assert not [hint for hint in neighbours.MODULE.values() if "(url, 'w')" in hint]


def test_a_new_group_takes_attributes(tmp_path: Path) -> None:
    for mode in ("w-", "w", "w"):
        assert dict(b2array.open_group(tmp_path / "g.b2d", mode, attrs={"title": mode}).attrs) == {"title": mode}
    with pytest.raises(ValueError, match="attrs are for a new group, not for mode 'a'"):
        b2array.open_group(tmp_path / "g.b2d", "a", attrs={"title": "a"})
    assert b2array.open_group(tmp_path / "g.b2d").attrs["title"] == "w"


def test_a_hierarchy_of_zarr_is_named(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    zarr.open_group(str(tmp_path / "x.zarr"), mode="w")
    for verb in (b2array.open, b2array.open_group):
        with pytest.raises(FileNotFoundError, match=r"is a directory of Zarr, .*; b2array\.convert copies it"):
            verb(tmp_path / "x.zarr")


def test_stored_chunks_are_counted() -> None:
    a = b2array.zeros((40, 6), chunks=(10, 6))
    assert a.nchunks_initialized == 0
    a[15:25] = 1
    a[35] = 0
    assert (a.nchunks, a.nchunks_initialized) == (4, 2)
    a[...] = 3.5
    assert a.nchunks_initialized == 4
