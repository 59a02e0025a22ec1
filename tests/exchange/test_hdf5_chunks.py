"""HDF5 datasets that Blosc compressed: read without its filters, and written for programs that have them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pytest

import b2array
from b2array import CParams, config
from b2array.errors import FormatError, UnsupportedError
from b2array.exchange import hdf5_chunks
from b2array.exchange.hdf5_chunks import Stage

if not (find_spec("hdf5plugin") and find_spec("tables")):
    pytest.skip("needs hdf5plugin and PyTables", allow_module_level=True)

# This process has no filters of Blosc: other ones write and read with them.
WRITE = """
import sys, warnings
import h5py, hdf5plugin, numpy as np, tables
from hdf5plugin import Blosc, Blosc2
warnings.simplefilter("ignore")
x = np.arange(70 * 51, dtype="<f8").reshape(70, 51) % 97
one = {"chunks": (30,)}
two = {"chunks": (32, 20)}
with h5py.File(sys.argv[1], "w") as file:
    for codec in ("blosclz", "lz4", "lz4hc", "zlib", "zstd"):
        for shuffle in (0, 1, 2):
            file.create_dataset(f"blosc2/{codec}{shuffle}", data=x, **two, **Blosc2(cname=codec, filters=shuffle))
            file.create_dataset(f"blosc/{codec}{shuffle}", data=x, **two, **Blosc(cname=codec, shuffle=shuffle))
    for name, how in (("blosc", Blosc()), ("blosc2", Blosc2())):
        file.create_dataset(f"pipeline/{name}", data=x, shuffle=True, fletcher32=True, **two, **how)
        for dtype in ("<i2", ">i4", "bool", "<c16", "S7", "<f2", "V300"):
            items = np.arange(70 * 51).reshape(70, 51).astype("S4" if dtype[0] in "SV" else "i2").astype(dtype)
            file.create_dataset(f"{name} of {dtype}", data=items, **two, **how)
            large = items if dtype == "V300" else None
        record = np.zeros(70, np.dtype([("a", "<i4"), ("b", "S5"), ("c", "<f8", (2,))], align=True))
        record["a"], record["c"][:, 1] = np.arange(70), 7
        file.create_dataset(f"record/{name}", data=record, **one, **how)
        file.create_dataset(f"line/{name}", data=x[0], **one, **how)
        file.create_dataset(f"cube/{name}", data=x.reshape(7, 10, 51), chunks=(4, 4, 51), **how)
        partial = file.create_dataset(f"partial/{name}", (70, 51), "<i4", fillvalue=-3, **two, **how)
        partial[40:45, 3:9] = 8
        noise = np.random.default_rng(0).integers(0, 256, (50, 60), dtype="u1")
        file.create_dataset(f"noise/{name}", data=noise, chunks=(20, 20), **how)
        padded = h5py.h5t.C_S1.copy()
        padded.set_size(6)
        padded.set_strpad(h5py.h5t.STR_SPACEPAD)
        text = file.create_dataset(f"padded/{name}", (50,), h5py.Datatype(padded), chunks=(20,), **how)
        text[:] = np.array([b"ab", b"", b"abcdef", b"x", b"yz"] * 10)
    deflated = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    deflated.set_chunk((32, 20))
    deflated.set_filter(32026, h5py.h5z.FLAG_OPTIONAL, (0, 0, 0, 0, 5, 1, 1))
    deflated.set_deflate(5)
    deflated.set_fletcher32()
    space = h5py.h5s.create_simple(x.shape)
    data = h5py.Dataset(h5py.h5d.create(file.id, b"deflated", h5py.h5t.py_create(x.dtype), space, deflated))
    data[...] = x
    masked = file.create_dataset("masked", (64, 20), "<f8", shuffle=True, **two, **Blosc2())
    masked[...] = x[:64, :20]
    masked.id.write_direct_chunk((32, 0), np.ascontiguousarray(x[32:64, :20]).tobytes(), filter_mask=3)
with tables.open_file(sys.argv[2], "w") as file:
    for lib in ("blosc", "blosc2", "blosc2:lz4", "blosc2:zstd"):
        name = lib.replace(":", "_")
        filters = tables.Filters(complevel=5, complib=lib, fletcher32=True)
        file.create_carray("/", f"a_{name}", obj=x, chunkshape=(32, 20), filters=filters)
        rows = np.zeros(500, [("a", "<i4"), ("b", "<f8"), ("s", "S5"), ("on", "?")])
        rows["a"], rows["s"] = np.arange(500), b"text"
        file.create_table("/", f"t_{name}", obj=rows, filters=filters, expectedrows=500)
        earray = file.create_earray("/", f"e_{name}", tables.Int16Atom(), (0, 10), filters=filters)
        earray.append(np.arange(300, dtype="i2").reshape(30, 10))
values = {}
for path in sys.argv[1:3]:
    with h5py.File(path) as file:
        def take(name, node):
            if isinstance(node, h5py.Dataset):
                # The filter does not read large items that it has written itself.
                values[name] = large if name == "blosc2 of V300" else node[...]
        file.visititems(take)
np.savez(sys.argv[3], **{name.replace("/", "#"): value for name, value in values.items()})
"""

READ = """
import sys, warnings
import h5py, hdf5plugin, numpy as np, tables
warnings.simplefilter("ignore")
z = np.load(sys.argv[2])
with h5py.File(sys.argv[1]) as file:
    for name in z:
        node = file[name]
        assert {"blosc": "32001", "blosc2": "32026"}[sys.argv[3]] in node._filters, name
        assert node.dtype.newbyteorder("=") == z[name].dtype.newbyteorder("=")
        assert np.array_equal(node[...], z[name]), name
with tables.open_file(sys.argv[1]) as file:
    for name in set(z) - {"time", "record"}:
        assert np.array_equal(file.root[name][...], z[name]), name
with h5py.File(sys.argv[1], "a") as file:
    for name in set(z) - {"time", "record"}:
        file[name][...] = z[name][::-1]
        assert np.array_equal(file[name][...], z[name][::-1]), name
"""


def run(program: str, *arguments: object) -> None:
    # netCDF4 may have named filters here that need another copy of HDF5.
    env = {name: value for name, value in os.environ.items() if name != "HDF5_PLUGIN_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, np.ndarray]]:
    directory = tmp_path_factory.mktemp("written")
    paths = [directory / name for name in ("plugin.h5", "tables.h5", "values.npz")]
    run(WRITE, *paths)
    with np.load(paths[2]) as values:
        return paths[0], paths[1], {name.replace("#", "/"): values[name] for name in values}


@pytest.mark.parametrize("nthreads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_every_dataset_of_hdf5plugin_and_pytables_is_read(nthreads: int, written, tmp_path: Path) -> None:
    assert not h5py.h5z.filter_avail(32026)
    *paths, values = written
    with config.using(threads=nthreads):
        for path in paths:
            b2array.convert(path, tmp_path / "all.b2d#both", overwrite=True, verify=True)
    group = b2array.open(tmp_path / "all.b2d")["both"]
    assert len(values) > 60
    for name, expected in values.items():
        assert group[name].dtype == expected.dtype, name
        np.testing.assert_array_equal(group[name][...], expected, name)


def test_a_part_of_a_dataset_needs_only_its_chunks(written, tmp_path: Path) -> None:
    path, _, values = written
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(path.read_bytes())
    with h5py.File(damaged, "r+") as file:
        node = file["blosc2/zstd1"]
        node.id.write_direct_chunk((64, 40), b"no frame")
    with h5py.File(damaged) as file:
        node = file["blosc2/zstd1"]
        stages = hdf5_chunks.stages_of(h5py, node, "x")
        assert stages is not None
        box = (slice(10, 60), slice(3, 44))
        np.testing.assert_array_equal(hdf5_chunks.read_box(h5py, node, stages, "x", box), values["blosc2/zstd1"][box])
    with pytest.raises(FormatError, match=r"damaged\.h5#blosc2/zstd1: the chunk at \(64, 40\): "):
        b2array.convert(f"{damaged}#blosc2/zstd1", tmp_path / "x.b2nd")


def test_a_chunk_with_another_checksum_is_refused(written, tmp_path: Path) -> None:
    path, _, _ = written
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(path.read_bytes())
    with h5py.File(damaged, "r+") as file:
        node = file["pipeline/blosc2"]
        mask, content = node.id.read_direct_chunk((32, 20))
        node.id.write_direct_chunk((32, 20), content[:-1] + bytes([content[-1] ^ 1]), mask)
    with pytest.raises(FormatError, match="Fletcher32"):
        b2array.convert(f"{damaged}#pipeline/blosc2", tmp_path / "x.b2nd")


def test_a_chunk_of_another_size_is_refused(tmp_path: Path) -> None:
    frames = {n: b2array.asarray(np.arange(n, dtype="u1").reshape(1, n)).to_bytes() for n in (40, 50)}
    stages = (Stage(32026, ()),)
    assert bytes(hdf5_chunks.unpack(frames[40], 0, stages, 40)) == bytes(range(40))
    with pytest.raises(FormatError, match="expected 40 bytes of items, found 50"):
        hdf5_chunks.unpack(frames[50], 0, stages, 40)
    large = b2array.zeros((1, 2**24), "u1").to_bytes()
    with pytest.raises(FormatError, match="expected at most"):
        hdf5_chunks.unpack(large, 0, stages, 40)


def test_a_filter_that_nobody_has_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset("x", (10,), "i4", chunks=(10,), compression=32008, allow_unknown_filter=True)
        data.id.write_direct_chunk((0,), b"bitshuffled")
    with pytest.raises(UnsupportedError, match=r"x\.h5#x: its chunks need the HDF5 filter 32008 .*import it first"):
        b2array.convert(tmp_path / "x.h5", tmp_path / "x.b2nd")


ARRAYS = {
    "float": np.random.default_rng(1).normal(size=(50, 60)).round(2),
    "bytes": np.random.default_rng(2).integers(0, 256, (40, 50), "u1"),
    "zeros": np.zeros((30, 30)),
    "line": np.arange(1000, dtype=">i4"),
    "zero_line": np.zeros(40, "i2"),
    "bool": np.random.default_rng(3).random((20, 20)) > 0.5,
    "time": np.arange(100).astype("M8[s]"),
    "record": np.zeros((10, 10), [("a", "<i4"), ("s", "S300")]),
    "four": np.random.default_rng(4).normal(size=(5, 6, 7, 8)).astype("f4"),
    "text": np.array([b"abc", b"d"] * 50),
}
HOW = (None, CParams("lz4", filters=("bitshuffle",)), CParams("zlib", filters=()), CParams("blosclz", clevel=9))


@pytest.mark.parametrize("how", range(len(HOW)))
@pytest.mark.parametrize("compression", ["blosc", "blosc2"])
def test_hdf5plugin_and_pytables_read_and_change_what_convert_writes(
    compression: str, how: int, tmp_path: Path
) -> None:
    for name, x in ARRAYS.items():
        b2array.asarray(x, url=tmp_path / f"{name}.b2nd", fill_value=0)
        b2array.convert(
            tmp_path / f"{name}.b2nd",
            f"{tmp_path}/x.h5#{name}",
            chunks=[n // 2 + 1 for n in x.shape],
            compression=compression,
            cparams=HOW[how],
            verify=True,
        )
    np.savez(tmp_path / "x.npz", **ARRAYS)
    run(READ, tmp_path / "x.h5", tmp_path / "x.npz", compression)


def test_text_of_any_length_is_compressed_as_before(tmp_path: Path) -> None:
    b2array.asarray(np.array(["é", "bc"] * 50), url=tmp_path / "x.b2nd")
    b2array.convert(tmp_path / "x.b2nd", tmp_path / "x.h5", compression="blosc2", verify=True)
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["data"].compression == "gzip"
        assert file["data"].asstr()[...].tolist() == ["é", "bc"] * 50


def test_a_group_is_written_with_one_compression(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["a/x"], group["y"] = ARRAYS["float"], np.float64(3)
    b2array.convert(tmp_path / "g.b2d", tmp_path / "g.h5", compression="blosc2", verify=True)
    with h5py.File(tmp_path / "g.h5") as file:
        assert "32026" in file["a/x"]._filters
        assert file["y"][()] == 3


def test_compression_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    b2array.asarray(ARRAYS["float"], url=tmp_path / "x.b2nd")
    with pytest.raises(ValueError, match="compression must be one of gzip, blosc, blosc2, not 'zip'"):
        b2array.convert(tmp_path / "x.b2nd", tmp_path / "x.h5", compression="zip")
    with pytest.raises(UnsupportedError, match="Blosc 1 has no filters but"):
        b2array.convert(tmp_path / "x.b2nd", tmp_path / "x.h5", compression="blosc", cparams={"filters": [3]})
    with pytest.raises(TypeError, match="a destination of format npy takes no compression"):
        b2array.convert(tmp_path / "x.b2nd", tmp_path / "x.npy", compression="blosc2")
    assert [path.name for path in tmp_path.iterdir()] == ["x.b2nd"]


def test_memory_stays_within_the_limit_of_a_chunk(tmp_path: Path) -> None:
    shape = (2**11, 2**10)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset("x", shape, "u1", chunks=shape, compression=32026, allow_unknown_filter=True)
        data.id.write_direct_chunk((0, 0), b2array.zeros(shape, "u1", chunks=shape).to_bytes())
    limits = config.Limits(chunk_nbytes=2**20)
    with (
        config.using(limits=limits),
        pytest.raises(FormatError, match=r"x\.h5#x: expected chunks of at most 1048576 bytes"),
    ):
        b2array.convert(tmp_path / "x.h5", tmp_path / "x.npy")


@pytest.mark.skipif(find_spec("netCDF4") is None, reason="needs netCDF4")
@pytest.mark.parametrize("compression", ["blosc", "blosc2"])
@pytest.mark.slow
def test_the_filters_that_netcdf4_brings_do_not_disturb(compression: str, tmp_path: Path) -> None:
    b2array.asarray(np.arange(1000.0), url=tmp_path / "x.b2nd")
    program = """
import sys
import netCDF4  # first: it names its filters for all copies of HDF5
import b2array
b2array.convert(sys.argv[1], sys.argv[2], compression=sys.argv[3])
"""
    run(program, tmp_path / "x.b2nd", tmp_path / "x.h5", compression)
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["data"].shape == (1000,)


@pytest.mark.skipif(find_spec("netCDF4") is None, reason="needs netCDF4")
def test_a_filter_that_hdf5_cannot_forget_is_told_with_the_way_out(tmp_path: Path) -> None:
    b2array.asarray(np.arange(1000.0), url=tmp_path / "x.b2nd")
    program = """
import os, sys
import netCDF4  # names its filters, which h5py loads to open a new file
import h5py
with h5py.File(sys.argv[3], "a") as file:
    file["x"] = 1
import b2array
try:
    b2array.convert(sys.argv[1], sys.argv[2], compression="blosc")
except b2array.errors.UnsupportedError as error:
    assert "importing netCDF4 adds such filters: set HDF5_PLUGIN_PATH before the import" in str(error), error
    assert not os.path.exists(sys.argv[2])
else:  # where the filters that netCDF4 brings work
    b2array.verify(sys.argv[2])
"""
    run(program, tmp_path / "x.b2nd", tmp_path / "x.h5", tmp_path / "first.h5")
