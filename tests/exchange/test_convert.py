"""Arrays from any format to any other."""

from __future__ import annotations

import builtins
import importlib
import os
import re
import shutil
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import blosc2
import fsspec
import h5py
import numpy as np
import pytest
import zarr

import b2array
from b2array import bloscpack
from b2array.errors import B2ArrayError, FormatError, UnsupportedError
from b2array.exchange.formats import source_of
from b2array.exchange.places import FORMATS

# The function of this name hides the module.
CONVERT = importlib.import_module("b2array.exchange.convert")

PLACES = {
    "contiguous": ("x.b2nd", {}),
    "sparse": ("x-sparse.b2nd", {"layout": "sparse"}),
    "npy": ("x.npy", {}),
    "zarr2": ("x2.zarr", {"zarr_format": 2}),
    "zarr3": ("x3.zarr", {"zarr_format": 3}),
    "hdf5": ("x.h5", {}),
    "blp": ("x.blp", {}),
}
ATTRS = {"unit": "m", "levels": [1, 2.5], "on": True}
DTYPES = {
    "float": "<f8",
    "big": ">i2",
    "bool": "?",
    "complex": "<c8",
    "bytes": "S5",
    "text": "<U4",
    "time": "<M8[ms]",
    "span": "<m8[s]",
    "half": "<f2",
    "raw": "V3",
    "record": [("a", "<i4"), ("b", ">f8")],
    "fields": [("a", "<i4"), ("b", "<M8[s]")],
    "nested": [("a", "<i4"), ("b", "<f4", (2,))],
    "long": "g",
}
CANNOT = {
    "npy": set(),
    "zarr2": {"fields", "nested", "long"},
    "zarr3": {"nested", "long"} | ({"record"} if zarr.__version__ < "3.2" else set()),
    "hdf5": {"fields"},
    "contiguous": set(),
    "sparse": set(),
    "blp": set(),
}


def sample(kind: str, shape: tuple[int, ...] = (23, 17)) -> np.ndarray:
    dtype = np.dtype(DTYPES[kind])
    values = np.arange(int(np.prod(shape))).reshape(shape)
    if dtype.names is not None:
        x = np.zeros(shape, dtype)
        x["a"] = values
        x["b"] = values[..., None] if dtype["b"].shape else values
        return x
    if dtype.kind == "V":
        return values.astype("<i4").view("V4").astype("V3")
    return (
        values.astype("S" if dtype.kind == "S" else "U").astype(dtype) if dtype.kind in "SU" else values.astype(dtype)
    )


def make(name: str, x: np.ndarray, directory: Path) -> Path:
    """Write a file of a format by its own library; return what names the array."""
    place, options = PLACES[name]
    path = directory / f"source-{place}"
    dims = tuple("yx"[: x.ndim])
    if name in ("contiguous", "sparse"):
        b2array.asarray(x, url=path, attrs=ATTRS, dims=dims, chunks=(10, 8), blocks=(5, 8), **options)
    elif name == "npy":
        np.save(path, x)
    elif name == "zarr3":
        zarr.create_array(path, data=x, chunks=(10, 8), attributes=ATTRS, dimension_names=dims)
    elif name == "zarr2":
        more = {"_ARRAY_DIMENSIONS": list(dims)}
        zarr.create_array(path, data=x, chunks=(10, 8), attributes=ATTRS | more, zarr_format=2)
    elif name == "hdf5":
        with h5py.File(path, "w") as file:
            data = file.create_dataset("values", data=x, chunks=(10, 8))
            data.attrs.update(ATTRS)
            for dim, label in zip(data.dims, dims, strict=True):
                dim.label = label
        return path / "values"
    else:
        bloscpack.pack(x, path, metadata={"attrs": ATTRS, "dims": list(dims)})
    return path


def read(name: str, path: Path) -> tuple[np.ndarray, dict[str, Any], Any]:
    """Read a file by its own library: values, attributes, names of dimensions."""
    if name in ("contiguous", "sparse"):
        a = b2array.open(path)
        return a[...], dict(a.attrs), a.dims
    if name == "npy":
        return np.load(path), {}, None
    if name.startswith("zarr"):
        node = zarr.open_array(path, mode="r")
        attrs = dict(node.attrs)
        dims = attrs.pop("_ARRAY_DIMENSIONS", None) if name == "zarr2" else node.metadata.dimension_names
        return node[...], attrs, None if dims is None else tuple(dims)
    if name == "hdf5":
        with h5py.File(path) as file:
            data = file["data"]
            attrs = {key: value for key, value in data.attrs.items() if key != "DIMENSION_LIST"}
            return data[...], attrs, tuple(dim[0].name[1:] for dim in data.dims) if len(data.dims[0]) else None
    with bloscpack.open(path) as f:
        meta = f.metadata
        return f[...], meta.get("attrs", {}), tuple(meta["dims"]) if "dims" in meta else None


def plain(attrs: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.tolist() if isinstance(value, np.ndarray | np.generic) else value for key, value in attrs.items()
    }


@pytest.mark.filterwarnings("ignore:.*has no place for")
@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("source", PLACES)
def test_any_format_becomes_any_other(source: str, target: str, tmp_path: Path) -> None:
    x = sample("float")
    src = make(source, x, tmp_path)
    place, options = PLACES[target]
    dst = tmp_path / f"target-{place}"
    b2array.convert(src, dst, verify=True, **options)
    values, attrs, dims = read(target, dst)
    np.testing.assert_array_equal(values, x)
    assert values.dtype == x.dtype
    if "npy" not in (source, target):
        assert plain(attrs) == ATTRS
        assert dims == ("y", "x")
    if target == "sparse":
        assert (dst / "chunks.b2frame").exists()
    if source in ("contiguous", "zarr3", "hdf5") and target in ("sparse", "zarr2"):
        opened = b2array.open(dst) if target == "sparse" else zarr.open_array(dst)
        # So small a chunk is not worth keeping.
        assert opened.chunks != (10, 8)


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("target", PLACES)
def test_types_are_kept_or_refused_before_anything_is_written(kind: str, target: str, tmp_path: Path) -> None:
    x = sample(kind)
    b2array.asarray(x, url=tmp_path / "source.b2nd")
    place, options = PLACES[target]
    dst = tmp_path / place
    if kind in CANNOT[target]:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UnsupportedError, match=r"cannot hold|would change"):
            b2array.convert(tmp_path / "source.b2nd", dst, **options)
        assert sorted(tmp_path.rglob("*")) == before
        return
    b2array.convert(tmp_path / "source.b2nd", dst, verify=True, **options)
    back = tmp_path / "back.npy"
    b2array.convert(dst, back, verify=True)
    found = np.load(back)
    if kind != "text" or target != "hdf5":  # text of any length there, and as long as the longest here
        assert found.dtype == (x.dtype.newbyteorder("=") if target == "zarr3" else x.dtype)
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4, 5)])
@pytest.mark.parametrize("target", PLACES)
def test_shapes_are_kept(shape: tuple[int, ...], target: str, tmp_path: Path) -> None:
    x = np.arange(int(np.prod(shape)), dtype="f4").reshape(shape)
    np.save(tmp_path / "x.npy", x)
    place, options = PLACES[target]
    b2array.convert(tmp_path / "x.npy", tmp_path / "out" / place, verify=True, **options)
    b2array.convert(tmp_path / "out" / place, tmp_path / "back.npy")
    found = np.load(tmp_path / "back.npy")
    assert found.shape == shape
    np.testing.assert_array_equal(found, x)


FILLS = [
    ("f8", -7.5),
    ("<i2", -3),
    ("f4", np.nan),
    ("c8", 1 - 2j),
    ("?", True),
    ("S3", b"ab"),
    ("<U4", "µ"),
    ("M8[s]", np.datetime64("2020-01-01", "s")),
    ("m8[ms]", np.timedelta64(5, "ms")),
    ("V3", b"abc"),
    ([("a", "<i4"), ("b", ">f8")], (3, -1.5)),
]


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
@pytest.mark.parametrize(("dtype", "fill"), FILLS)
@pytest.mark.parametrize("target", ["contiguous", "sparse", "zarr2", "zarr3", "hdf5", "blp"])
def test_fill_values_are_kept(target: str, dtype: Any, fill: Any, tmp_path: Path) -> None:
    expected = np.array(fill, dtype)
    b2array.create(tmp_path / "source.b2nd", (20, 20), dtype, fill_value=expected[()]).close()
    place, options = PLACES[target]
    try:
        b2array.convert(tmp_path / "source.b2nd", tmp_path / place, verify=True, **options)
    except UnsupportedError:
        kinds = {np.dtype(dtype) for kind, dtype in DTYPES.items() if kind in CANNOT[target]}
        assert np.dtype(dtype) in kinds
        return
    b2array.convert(tmp_path / place, tmp_path / "back.b2nd", verify=True)
    found = b2array.open(tmp_path / "back.b2nd")
    assert np.asarray(found.fill_value, found.dtype).astype(dtype).tobytes() == expected.tobytes()


def test_chunks_are_kept_where_they_are_worth_it(tmp_path: Path) -> None:
    x = np.arange(2_000_000).reshape(1000, 2000)
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(100, 250), shards=(200, 500))
    b2array.convert(tmp_path / "x.zarr", tmp_path / "x.b2nd")
    a = b2array.open(tmp_path / "x.b2nd")
    assert (a.chunks, a.blocks) == ((200, 500), (100, 250))
    b2array.convert(tmp_path / "x.b2nd", tmp_path / "x.h5", chunks=(50, 2000))
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["data"].chunks == (50, 2000)
    np.testing.assert_array_equal(a[150:160], x[150:160])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only a few items be held at once."""
    monkeypatch.setattr(CONVERT, "_BUDGET", 3000)


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore:.*has no place for")
@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("source", PLACES)
def test_pieces_cover_everything_once(source: str, target: str, tmp_path: Path) -> None:
    x = sample("float", (40, 37))
    src = make(source, x, tmp_path)
    place, options = PLACES[target]
    chunked = {} if target in ("npy", "blp") else {"chunks": (7, 9)}
    b2array.convert(src, tmp_path / place, verify=True, **options, **chunked)
    np.testing.assert_array_equal(read(target, tmp_path / place)[0], x)


@pytest.mark.parametrize("name", ["x.npy", "x.blp", "x.h5"])
def test_memory_is_bounded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CONVERT, "_BUDGET", 2**22)
    monkeypatch.setattr(b2array.config, "cache_bytes", 2**20)
    x = b2array.zeros((1000, 500, 20), "i8", url=tmp_path / "big.b2nd", chunks=(50, 500, 20))
    x[::100] = 1
    tracemalloc.start()
    try:
        b2array.convert(tmp_path / "big.b2nd", tmp_path / name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < x.nbytes / 2


@pytest.mark.filterwarnings("ignore:.*a .npy file has no place for")
@pytest.mark.parametrize("target", PLACES)
def test_a_super_chunk_is_a_frame_again_or_an_array_of_its_bytes(target: str, tmp_path: Path) -> None:
    data = np.arange(3000, dtype="i2").tobytes()
    with b2array.create_schunk(url=tmp_path / "s.b2frame", chunksize=1000, cparams=b2array.CParams("lz4")) as chunks:
        for start in range(0, 6000, 1000):
            chunks.append_data(data[start : start + 1000])
        chunks.vlmeta["unit"] = "m"
    place, options = PLACES[target]
    b2array.convert(tmp_path / "s.b2frame", tmp_path / place, verify=True, **options)
    b2array.convert(tmp_path / place, tmp_path / "back.npy")
    found = np.load(tmp_path / "back.npy")
    assert (found.dtype, found.tobytes()) == (np.uint8, data)
    copy = tmp_path / "copy.b2frame"
    b2array.convert(tmp_path / "s.b2frame", copy, verify=True)
    with pytest.raises(FileExistsError):
        b2array.convert(tmp_path / "s.b2frame", copy)
    b2array.convert(tmp_path / "s.b2frame", copy, overwrite=True, layout="sparse")
    held = b2array.open_schunk(copy)
    assert (held.nchunks, held.get_slice(), held.cparams.codec, dict(held.vlmeta)) == (6, data, "lz4", {"unit": "m"})


@pytest.mark.parametrize("dims", [5, "ab", ["a"], [1, 2], {"a": 1}])
def test_what_others_note_under_our_names_does_no_harm(tmp_path: Path, dims: Any) -> None:
    x = np.arange(6, dtype="i2").reshape(2, 3)
    bloscpack.pack(x, tmp_path / "x.blp", metadata={"dims": dims, "fill_value": "none", "attrs": {"n": 1}})
    zarr.create_array(tmp_path / "x.zarr", data=x, zarr_format=2, attributes={"_ARRAY_DIMENSIONS": dims, "n": 1})
    for name in ("x.blp", "x.zarr"):
        b2array.convert(tmp_path / name, tmp_path / "x.b2nd", overwrite=True)
        a = b2array.open(tmp_path / "x.b2nd")
        assert (a[...].tolist(), a.dims, a.fill_value, a.attrs["n"]) == (x.tolist(), None, 0, 1)
    assert a.attrs["_ARRAY_DIMENSIONS"] == dims


@pytest.mark.parametrize("key", [np.s_[::2], np.s_[10:90:7], np.s_[::-1], np.s_[5:60], 7, [3, 99, 3]])
def test_any_bytes_of_a_super_chunk_are_read(key: Any) -> None:
    data = np.arange(100, dtype="u1")
    with b2array.create_schunk(chunksize=30) as chunks:
        chunks.append_data(data[:30].tobytes())
        chunks.append_data(data[30:60].tobytes())
        chunks.append_data(data[60:90].tobytes())
        chunks.append_data(data[90:].tobytes())
        source = source_of(chunks._handle)
        np.testing.assert_array_equal(source.read(key), data[key])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_records_that_zarr_would_pack_are_refused(tmp_path: Path, zarr_format: int) -> None:
    # Their values are the same afterwards, but not their bytes.
    padded = np.zeros(3, np.dtype([("a", "u1"), ("b", "<i4")], align=True))
    np.save(tmp_path / "x.npy", padded)
    with pytest.raises(UnsupportedError, match=r"Zarr (would change|cannot hold) items of type"):
        b2array.convert(tmp_path / "x.npy", tmp_path / "x.zarr", zarr_format=zarr_format)
    assert not (tmp_path / "x.zarr").exists()


def test_a_tensor_of_python_blosc2_is_an_array(tmp_path: Path) -> None:
    blosc2.save_array(np.arange(6.0).reshape(2, 3), str(tmp_path / "t.b2frame"))
    b2array.convert(tmp_path / "t.b2frame", tmp_path / "t.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("target", PLACES)
def test_an_existing_destination_needs_overwrite(target: str, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    np.save(tmp_path / "two.npy", np.arange(5))
    place, options = PLACES[target]
    dst = tmp_path / "out" / place
    b2array.convert(tmp_path / "one.npy", dst, **options)
    with pytest.raises(FileExistsError):
        b2array.convert(tmp_path / "two.npy", dst, **options)
    np.testing.assert_array_equal(read(target, dst)[0], np.arange(3))
    b2array.convert(tmp_path / "two.npy", dst, overwrite=True, verify=True, **options)
    np.testing.assert_array_equal(read(target, dst)[0], np.arange(5))
    assert len(list(dst.parent.glob("x*"))) - len(list(dst.parent.glob("*.b2lock"))) == 1


@pytest.mark.parametrize("target", PLACES)
def test_what_is_something_else_is_never_replaced(target: str, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    place, options = PLACES[target]
    (tmp_path / "out").mkdir()
    dst = tmp_path / "out" / place
    dst.write_text("my only copy")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        b2array.convert(tmp_path / "one.npy", dst, overwrite=True, **options)
    assert dst.read_text() == "my only copy"
    assert [path.name for path in dst.parent.iterdir()] == [place]


@pytest.mark.parametrize("target", PLACES)
def test_a_conversion_that_fails_leaves_nothing(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bloscpack.pack(np.arange(100_000), tmp_path / "one.blp", chunk_size=8000, checksum="crc32")
    raw = bytearray((tmp_path / "one.blp").read_bytes())
    raw[-10] ^= 1
    (tmp_path / "one.blp").write_bytes(raw)
    monkeypatch.setattr(CONVERT, "_BUDGET", 80_000)
    place, options = PLACES[target]
    with pytest.raises(FormatError, match="chunk 99 of"):
        b2array.convert(tmp_path / "one.blp", tmp_path / "out" / place, **options)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.suffix != ".b2lock"]


@pytest.fixture(params=["local", "memory", "s3"])
def somewhere(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Give an address below which there is nothing, and its options."""
    if request.param == "s3":
        return f"s3://{request.getfixturevalue('bucket')}/out", request.getfixturevalue("s3_options")
    return (str(tmp_path / "out") if request.param == "local" else f"memory://{tmp_path.name}/convert"), {}


@pytest.mark.parametrize("target", PLACES)
def test_what_fails_at_its_end_leaves_what_was_there(
    target: str, somewhere: tuple[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, storage = somewhere
    place, options = PLACES[target]
    url = f"{directory}/{place}"
    bloscpack.pack(np.arange(10_000), tmp_path / "one.blp", chunk_size=8000)
    raw = bytearray((tmp_path / "one.blp").read_bytes())
    raw[-10] ^= 1
    (tmp_path / "bad.blp").write_bytes(raw)
    monkeypatch.setattr(CONVERT, "_BUDGET", 8_000)
    with pytest.raises(FormatError, match="chunk 9 of"):
        b2array.convert(tmp_path / "bad.blp", url, dst_options=storage, **options)
    with pytest.raises(FileNotFoundError):
        b2array.convert(url, tmp_path / "back.npy", src_options=storage)
    b2array.convert(tmp_path / "one.blp", url, dst_options=storage, verify=True, **options)
    if target.startswith("zarr") and "://" in url:
        return  # written in place
    with pytest.raises(FormatError, match="chunk 9 of"):
        b2array.convert(tmp_path / "bad.blp", url, dst_options=storage, overwrite=True, **options)
    b2array.convert(url, tmp_path / "back.npy", src_options=storage)
    np.testing.assert_array_equal(np.load(tmp_path / "back.npy"), np.arange(10_000))


def test_a_symbolic_link_to_a_zarr_array_stays_and_its_array_is_replaced(tmp_path: Path) -> None:
    np.save(tmp_path / "new.npy", np.arange(3))
    zarr.create_array(tmp_path / "real" / "t.zarr", data=np.arange(5.0))
    (tmp_path / "link.zarr").symlink_to("real/t.zarr")
    b2array.convert(tmp_path / "new.npy", tmp_path / "link.zarr", overwrite=True, verify=True)
    assert (tmp_path / "link.zarr").is_symlink()
    np.testing.assert_array_equal(read("zarr3", tmp_path / "real" / "t.zarr")[0], np.arange(3))
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["t.zarr"]


def test_a_zarr_array_that_cannot_be_renamed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    np.save(tmp_path / "two.npy", np.arange(5))
    b2array.convert(tmp_path / "one.npy", tmp_path / "out" / "x.zarr")
    original, refused = os.rename, []

    def rename(path: Any, target: Any) -> None:
        if os.fsdecode(target).endswith("x.zarr") and not refused:
            refused.append(path)
            raise PermissionError("no")
        original(path, target)

    monkeypatch.setattr("b2array.store.disk.ctypes.CDLL", lambda _: object())  # without a call that swaps names
    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(PermissionError):
        b2array.convert(tmp_path / "two.npy", tmp_path / "out" / "x.zarr", overwrite=True)
    np.testing.assert_array_equal(read("zarr3", tmp_path / "out" / "x.zarr")[0], np.arange(3))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["x.zarr"]


def test_what_gets_lost_is_said(tmp_path: Path) -> None:
    b2array.full((3, 3), 4, url=tmp_path / "x.b2nd", dims=("y", "x"), attrs={"a": 1})
    with pytest.warns(UserWarning, match=r"x.npy: a .npy file has no place for attrs and dims and fill value"):
        b2array.convert(tmp_path / "x.b2nd", tmp_path / "x.npy")


def test_attributes_that_the_format_cannot_hold_are_refused_first(tmp_path: Path) -> None:
    b2array.zeros(3, url=tmp_path / "x.b2nd", attrs={"raw": b"\xff", "deep": {"a": {1, 2}}})
    for name in ("x.blp", "x.zarr", "x.h5"):
        with pytest.raises(TypeError, match="attribute"):
            b2array.convert(tmp_path / "x.b2nd", tmp_path / name)
        assert not (tmp_path / name).exists()


def test_verify_finds_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.arange(10))
    blp = FORMATS["blp"]

    def write(url: str, source: Any, pieces: Any, settings: Any) -> None:
        blp.write(url, source, ((box, values + 1) for box, values in pieces), settings)

    monkeypatch.setitem(FORMATS, "blp", blp._replace(write=write))
    b2array.convert(tmp_path / "x.npy", tmp_path / "x.blp")
    with pytest.raises(B2ArrayError, match=r"differs from its source in \[0:10\]"):
        b2array.convert(tmp_path / "x.npy", tmp_path / "x.blp", overwrite=True, verify=True)


def test_groups_are_searched_for_their_only_array(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a/one"] = np.arange(3)
    b2array.convert(tmp_path / "x.h5", tmp_path / "one.npy")
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file["b/two"] = np.arange(4)
    with pytest.raises(ValueError, match="a/one, b/two"):
        b2array.convert(tmp_path / "x.h5", tmp_path / "two.npy")
    b2array.convert(f"{tmp_path}/x.h5#b/two", tmp_path / "two.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "two.npy"), np.arange(4))
    with pytest.raises(FileNotFoundError, match="no dataset 'c'"):
        b2array.convert(f"{tmp_path}/x.h5#c", tmp_path / "three.npy")
    b2array.convert(tmp_path / "two.npy", f"{tmp_path}/y.h5#deep/er", verify=True)
    group = zarr.create_group(tmp_path / "g.zarr")
    group.create_array("in", data=np.arange(6))
    b2array.convert(tmp_path / "g.zarr", tmp_path / "in.npy")
    b2array.convert(tmp_path / "g.zarr" / "in", tmp_path / "in2.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "in2.npy"), np.arange(6))


def test_only_what_is_named_is_replaced(tmp_path: Path) -> None:
    np.save(tmp_path / "new.npy", np.arange(9))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["one"], file["deep/two"] = np.arange(3), np.arange(4)
    b2array.convert(tmp_path / "new.npy", f"{tmp_path}/x.h5#three", verify=True)
    for name in ("x.h5#one", "x.h5#deep"):
        with pytest.raises(FileExistsError, match="already"):
            b2array.convert(tmp_path / "new.npy", f"{tmp_path}/{name}")
    with pytest.raises(FileExistsError, match="already"):
        b2array.convert(tmp_path / "new.npy", f"{tmp_path}/x.h5#deep", overwrite=True)
    with pytest.raises(FileExistsError, match="several datasets"):
        b2array.convert(tmp_path / "new.npy", tmp_path / "x.h5", overwrite=True)
    b2array.convert(tmp_path / "new.npy", f"{tmp_path}/x.h5#one", overwrite=True)
    with h5py.File(tmp_path / "x.h5") as file:
        assert [len(file[name]) for name in ("one", "deep/two", "three")] == [9, 4, 9]
    group = zarr.create_group(tmp_path / "g.zarr")
    group.create_array("in", data=np.arange(6))
    with pytest.raises(FileExistsError, match="not a Zarr array"):
        b2array.convert(tmp_path / "new.npy", tmp_path / "g.zarr", overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "g.zarr" / "in")[...], np.arange(6))
    assert {path.name for path in tmp_path.iterdir()} == {"new.npy", "x.h5", "g.zarr"}


def test_netcdf_dimensions_are_recognised(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file["lat"] = np.arange(3.0)
        file["lat"].make_scale("lat")
        file["t"] = np.zeros((3,))
        file["t"].dims[0].attach_scale(file["lat"])
    b2array.convert(f"{tmp_path}/x.nc#t", tmp_path / "t.b2nd")
    assert b2array.open(tmp_path / "t.b2nd").dims == ("lat",)


def test_netcdf_dimensions_that_are_no_variables_become_no_arrays(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc", "w") as file:
        for name in ("x", "run/y"):
            file.create_dataset(name, data=np.zeros(3, ">f4")).make_scale(
                f"This is a netCDF dimension but not a netCDF variable{3:10}"
            )
        file["run/t"] = np.zeros((3, 3))
        file["run/t"].dims[0].attach_scale(file["x"])
        file["run/t"].dims[1].attach_scale(file["run/y"])
    b2array.convert(tmp_path / "x.nc", tmp_path / "x.b2d", verify=True)
    found = b2array.open(tmp_path / "x.b2d")
    assert ([*found], [*found["run"]], found["run/t"].dims) == (["run"], ["t"], ("x", "y"))
    b2array.convert(f"{tmp_path}/x.nc#x", tmp_path / "x.b2nd")
    assert b2array.open(tmp_path / "x.b2nd").shape == (3,)


@pytest.mark.parametrize("target", ["x.b2nd", "x.zarr", "x.blp", "y.h5"])
def test_attributes_of_netcdf_are_text_and_lists_of_text(target: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc", "w") as file:
        attrs = file.create_dataset("t", data=np.zeros(3)).attrs
        attrs["units"], attrs["place"] = np.bytes_(b"K"), np.bytes_("Z\u00fcrich".encode())
        attrs["comment"], attrs["nothing"] = h5py.Empty("S1"), h5py.Empty("f4")
        attrs["flags"], attrs["fixed"] = ["a", "bb"], np.array([b"c", b"dd"])
        attrs["long"], attrs["range"] = np.longdouble(1.5), np.array([1.0, 2.5])
    b2array.convert(tmp_path / "x.nc", tmp_path / target)
    b2array.convert(tmp_path / target, tmp_path / "back.b2nd")
    found = dict(b2array.open(tmp_path / "back.b2nd").attrs)
    assert {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in found.items()} == {
        "units": "K",
        "place": "Z\u00fcrich",
        "comment": "",
        "nothing": [],
        "flags": ["a", "bb"],
        "fixed": ["c", "dd"],
        "long": 1.5,
        "range": [1.0, 2.5],
    }


@pytest.mark.parametrize("version", [2, 3])
def test_missing_values_of_xarray_stay_missing_and_others_do_not_become_so(version: int, tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    time = np.array(["2000-01-01", "2000-01-02"], "M8[ns]")
    ds = xr.Dataset({"t": ("time", [0.0, np.nan]), "n": ("time", [0, 5]), "m": ("time", [np.nan, 5.0])}, {"time": time})
    ds.t.encoding["_FillValue"], ds.m.encoding = -999.0, {"_FillValue": -1, "dtype": "i4"}
    ds.to_zarr(tmp_path / "x.zarr", zarr_format=version, consolidated=False)
    b2array.convert(tmp_path / "x.zarr", tmp_path / "x.b2d", verify=True)
    xr.testing.assert_identical(xr.load_dataset(tmp_path / "x.b2d", engine="b2array"), ds)
    b2array.convert(tmp_path / "x.b2d", tmp_path / "y.zarr", zarr_format=version, verify=True)
    xr.testing.assert_identical(xr.load_dataset(tmp_path / "y.zarr", engine="zarr", consolidated=False), ds)
    b2array.full((3,), 7, url=tmp_path / "z.b2d/x.b2nd", dims=("x",)).close()
    b2array.convert(tmp_path / "z.b2d", tmp_path / "z.zarr", zarr_format=version)
    found = xr.load_dataset(tmp_path / "z.zarr", engine="zarr", consolidated=False)
    assert found.x.values.tolist() == [7, 7, 7]


def test_xarray_opens_scalars_that_were_copied_to_version_2_of_zarr(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    ds = xr.Dataset({"n": 0, "t": 0.5, "m": np.nan}, {"level": 7})
    ds.to_zarr(tmp_path / "x.zarr", zarr_format=3, consolidated=False)
    b2array.convert(tmp_path / "x.zarr", tmp_path / "x.b2d")
    b2array.convert(tmp_path / "x.b2d", tmp_path / "y.zarr", zarr_format=2)
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "y.zarr").load(), ds)


# The archive keeps a file of each state.
@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("version", [2, 3])
def test_zip_archives_of_zarr_are_copied_with_the_last_state_of_each_file(version: int, tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zarr.storage.ZipStore(path, mode="w") as store:
        group = zarr.create_group(store, zarr_format=version)
        z = group.create_array("air/t", shape=(50, 40), chunks=(20, 15), dtype="i4", fill_value=-1)
        z[5:, 3:] = 1
        z[10:30] = np.arange(800).reshape(20, 40)
        z.attrs["units"] = "K"
        group.attrs["title"] = "tide"
        x = z[...]
    place = f"memory://{tmp_path.name}/x"
    with fsspec.open(place, "wb") as file:
        file.write(path.read_bytes())
    for number, source in enumerate((path, place)):
        b2array.convert(source, tmp_path / f"{number}.b2d", verify=True)
        copy = b2array.open_group(tmp_path / f"{number}.b2d")
        np.testing.assert_array_equal(copy["air/t"][...], x)
        assert (copy.attrs, copy["air/t"].attrs, copy["air/t"].fill_value) == ({"title": "tide"}, {"units": "K"}, -1)
    for call in (b2array.open, b2array.load, lambda url: len(b2array.open_group(url))):
        with pytest.raises(FormatError, match=r"found one of Zarr; b2array\.convert copies it"):
            call(path)


@pytest.mark.parametrize("separator", ["/", "#"])
def test_a_member_of_a_zip_archive_of_zarr_is_copied(separator: str, tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(3, 4)
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        zarr.create_group(store).create_array("air/t", data=x, attributes={"units": "K"})
    b2array.convert(f"{tmp_path}/x.zip{separator}air/t", tmp_path / "t.b2nd", verify=True)
    t = b2array.open(tmp_path / "t.b2nd")
    np.testing.assert_array_equal(t[...], x)
    assert t.attrs == {"units": "K"}
    b2array.convert(f"{tmp_path}/x.zip{separator}air", tmp_path / "air.b2d", verify=True)
    np.testing.assert_array_equal(b2array.open(tmp_path / "air.b2d/t")[...], x)
    with pytest.raises(FileNotFoundError, match=r"x\.zip does not exist, or is not a Zarr array"):
        b2array.convert(f"{tmp_path}/x.zip{separator}sea", tmp_path / "sea.b2d")


def test_an_array_in_a_zip_archive_of_zarr_is_copied(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(3, 4)
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        zarr.create_array(store, data=x)
    b2array.convert(tmp_path / "x.zip", tmp_path / "x.b2nd", verify=True)
    np.testing.assert_array_equal(b2array.load(tmp_path / "x.b2nd"), x)


def test_missing_values_of_netcdf_stay_missing(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file.create_dataset("t", data=np.array([1.0, -999]), fillvalue=-999)
        file["t"].attrs["_FillValue"], file["t"].dims[0].label = np.array([-999.0]), "x"
    b2array.convert(tmp_path / "x.nc", tmp_path / "x.b2d")
    assert xr.load_dataset(tmp_path / "x.b2d", engine="b2array").t.isnull().values.tolist() == [False, True]
    b2array.convert(tmp_path / "x.b2d", tmp_path / "x.zarr")
    found = xr.load_dataset(tmp_path / "x.zarr", engine="zarr", consolidated=False)
    assert found.t.isnull().values.tolist() == [False, True]


def test_attributes_that_are_no_text_stay_bytes_and_are_named_where_they_do_not_fit(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["t"] = np.zeros(3)
        file["t"].attrs["raw"] = np.bytes_(b"\xff\xfe")
    b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2nd")
    assert b2array.open(tmp_path / "x.b2nd").attrs["raw"] == b"\xff\xfe"
    with pytest.raises(TypeError, match="the attribute 'raw' cannot be written as JSON: JSON has no type for bytes"):
        b2array.convert(tmp_path / "x.h5", tmp_path / "x.zarr")


def test_attributes_that_mean_something_in_their_hdf5_file_only_are_left_out_and_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset("g/t", data=np.zeros(3))
        record = np.array([(data.ref, 1)], [("to", h5py.ref_dtype), ("n", "i4")])
        for attrs in (data.attrs, file["g"].attrs):
            attrs["to"], attrs["all"], attrs["record"] = data.ref, np.array([data.ref] * 2, h5py.ref_dtype), record
            attrs["part"], attrs["unit"] = data.regionref[1:], "K"
    with pytest.warns(UserWarning, match="are not copied") as warned:
        b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2d", verify=True)
    found = b2array.open(tmp_path / "x.b2d", mode="r")
    assert dict(found["g"].attrs) == dict(found["g/t"].attrs) == {"unit": "K"}
    said = {str(each.message).partition("#")[2] for each in warned}
    why = "the attributes ['all', 'part', 'record', 'to'] are not copied, because they refer to places in their file"
    assert said == {f"g: {why}", f"g/t: {why}"}


def test_bytes_and_opaque_attributes_of_hdf5_stay_what_they_are(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        attrs = file.create_dataset("t", data=np.zeros(3)).attrs
        attrs["raw"], attrs["opaque"] = b"abc\xff", np.void(b"\0ab")
        attrs["record"] = np.array((1, 2.0), [("x", "i4"), ("y", "f8")])[()]
    b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2nd")
    found = b2array.open(tmp_path / "x.b2nd").attrs
    assert (found["raw"], found["opaque"].tobytes(), found["record"].tolist()) == (b"abc\xff", b"\0ab", (1, 2.0))


def test_formats_are_found_by_content_and_can_be_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    (tmp_path / "x.npy").rename(tmp_path / "mystery")
    b2array.convert(tmp_path / "mystery", tmp_path / "array", dst_format="hdf5")
    b2array.convert(tmp_path / "array", tmp_path / "other", dst_format="blp")
    b2array.convert(tmp_path / "other", tmp_path / "third", dst_format="zarr")
    b2array.convert(tmp_path / "third", tmp_path / "fourth", dst_format="b2nd", layout="sparse")
    b2array.convert(tmp_path / "fourth", tmp_path / "fifth", dst_format="b2nd")
    assert b2array.load(tmp_path / "fifth").tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"known endings are \.b2nd"):
        b2array.convert(tmp_path / "fifth", tmp_path / "sixth")
    with pytest.raises(ValueError, match="format must be one of"):
        b2array.convert(tmp_path / "fifth", tmp_path / "sixth", dst_format="csv")
    with pytest.raises(TypeError, match="takes no zarr_format"):
        b2array.convert(tmp_path / "fifth", tmp_path / "six.npy", zarr_format=2)


@pytest.mark.parametrize("name", ["x.npy", "x.h5", "x.blp", "x.b2nd"])
def test_what_is_not_of_the_format_is_a_format_error(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"certainly nothing of that kind, but long enough" * 3)
    with pytest.raises(FormatError):
        b2array.convert(tmp_path / name, tmp_path / "y.npy")
    with pytest.raises(FileNotFoundError):
        b2array.convert(tmp_path / f"missing-{name}", tmp_path / "y.npy")
    assert not (tmp_path / "y.npy").exists()


@pytest.mark.parametrize("ending", ["npy", "h5", "zarr"])
def test_a_file_with_the_ending_of_another_format_is_called_what_it_is(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{ending}"
    b2array.asarray(np.arange(100), url=tmp_path / "x.b2nd")
    shutil.copy(tmp_path / "x.b2nd", path)
    with pytest.raises(FormatError, match="found a Blosc2 frame") as caught:
        b2array.verify(path)
    assert "pickle" not in str(caught.value)
    path.unlink()
    path.mkdir()
    with pytest.raises((IsADirectoryError, FileNotFoundError), match=f"x.{ending}"):
        b2array.verify(path)


def test_missing_zarr_array_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        b2array.convert(tmp_path / "missing.zarr", tmp_path / "y.npy")


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([None, 1]), allow_pickle=True)
    with pytest.raises(UnsupportedError, match="pickled"):
        b2array.convert(tmp_path / "x.npy", tmp_path / "y.b2nd")
    np.savez(tmp_path / "z.npz", a=np.arange(3))
    with pytest.raises(FormatError, match=r"found a \.npz file"):
        b2array.convert(tmp_path / "z.npz", tmp_path / "y.b2nd", src_format="npy")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (3, 1), h5py.vlen_dtype("i4"))
    with pytest.raises(UnsupportedError, match="can only be text or bytes"):
        b2array.convert(tmp_path / "x.h5", tmp_path / "y.b2nd")


@contextmanager
def without(module: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    original = builtins.__import__
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        patch.setattr(builtins, "__import__", original)
        yield


@pytest.mark.parametrize(
    ("src", "dst"), [("", ""), ("/v", "/v"), ("/v", ""), ("", "/v"), ("/", "#v"), ("", "/"), ("", "/more/x")]
)
def test_a_zarr_store_that_cannot_rename_does_not_replace_what_is_read(tmp_path: Path, src: str, dst: str) -> None:
    url = f"memory:/{tmp_path}/s.zarr"
    zarr.create_group(url).create_array("v", data=np.arange(1, 11), chunks=(3,))
    with pytest.raises(ValueError, match=r"s\.zarr\S* cannot be replaced while .* is read"):
        b2array.convert(url + src, url + dst, overwrite=True, verify=True)
    np.testing.assert_array_equal(zarr.open_group(url, mode="r")["v"][:], np.arange(1, 11))
    b2array.convert(f"{url}/v", f"{url}/v2", overwrite=True, verify=True)
    np.testing.assert_array_equal(zarr.open_group(url, mode="r")["v2"][:], np.arange(1, 11))


@pytest.mark.parametrize(("module", "name", "extra"), [("zarr", "x.zarr", "zarr"), ("h5py", "x.h5", "hdf5")])
def test_missing_packages_are_named_in_one_line(
    module: str, name: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    with without(module, monkeypatch), pytest.raises(UnsupportedError) as caught:
        b2array.convert(tmp_path / "x.npy", tmp_path / name)
    assert f"pip install 'b2array[{extra}]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_urls_will_do_on_both_sides(tmp_path: Path) -> None:
    x = sample("float")
    np.save(tmp_path / "x.npy", x)
    previous: str = str(tmp_path / "x.npy")
    for name in ("a.b2nd", "b.h5", "c.zarr", "d.blp", "e.npy"):
        url = f"memory://convert-test/{name}"
        b2array.convert(previous, url, verify=True)
        previous = url
    b2array.convert(previous, tmp_path / "back.npy", verify=True)
    np.testing.assert_array_equal(np.load(tmp_path / "back.npy"), x)


def test_compression_can_be_chosen(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))
    cparams = b2array.CParams("lz4", clevel=3, filters=("bitshuffle",))
    b2array.convert(tmp_path / "x.npy", tmp_path / "x.b2nd", cparams=cparams)
    assert b2array.open(tmp_path / "x.b2nd").cparams.codec == "lz4"
    b2array.convert(tmp_path / "x.npy", tmp_path / "x.zarr", cparams=cparams)
    assert "lz4" in str(zarr.open_array(tmp_path / "x.zarr").compressors)
    b2array.convert(tmp_path / "x.npy", tmp_path / "x.h5", cparams=cparams)
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["data"].compression_opts == 3
    with pytest.raises(UnsupportedError, match="Zarr supports the filters"):
        b2array.convert(tmp_path / "x.npy", tmp_path / "y.zarr", cparams=b2array.CParams(filters=("delta",)))


def test_progress_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))
    b2array.convert(tmp_path / "x.npy", tmp_path / "x.b2nd", progress=True, verify=True)
    shown = capsys.readouterr().err
    assert re.search(r"converting: 100%.* 8\.00k/8\.00k ", shown)
    assert re.search(r"verifying: 100%.* 8\.00k/8\.00k ", shown)


def test_a_converted_array_keeps_how_it_is_compressed(tmp_path):
    cparams = b2array.CParams("lz4", clevel=7, filters="auto", absolute_error=0.5)
    values = np.random.default_rng(0).normal(0, 30, (1000, 1000)).astype("f4")
    array = b2array.asarray(values, url=tmp_path / "a.b2nd", cparams=cparams, chunks=(500, 500))
    b2array.convert(tmp_path / "a.b2nd", tmp_path / "b.b2nd")
    b2array.convert(tmp_path / "a.b2nd", tmp_path / "c.b2nd", chunks=(300, 300), cparams=b2array.CParams(clevel=9))
    copies = [b2array.open(tmp_path / name) for name in ("b.b2nd", "c.b2nd")]
    assert [(each.cparams.clevel, each.cparams.absolute_error, each.chunks) for each in copies] == [
        (7, 0.5, (500, 500)),
        (9, None, (300, 300)),
    ]
    assert copies[0].get_chunk(0) == array.get_chunk(0)
    for each in copies:
        np.testing.assert_array_equal(each[...], array[...])
