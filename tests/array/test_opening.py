"""Super-chunks by URL are opened, created and replaced, and nothing else is ever overwritten."""

from __future__ import annotations

import os

import blosc2
import numpy as np
import pytest

import b2array
from b2array.array.opening import place_new
from b2array.errors import FormatError, LimitError, ReadOnlyError
from b2array.format.frame import FrameType
from b2array.store.memory import MemoryStore

LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])


@pytest.mark.parametrize("kind", [str, os.fspath, lambda path: path, lambda path: f"file://{path}"])
@LAYOUTS
def test_what_was_created_is_opened(tmp_path, kind, layout):
    url = kind(tmp_path / "a.b2frame")
    b2array.create_schunk(url, chunksize=80, typesize=8, layout=layout).append_data(np.arange(10))
    held = b2array.open_schunk(url)
    assert held.mode == "r"
    assert held.decompress_chunk(0) == np.arange(10).tobytes()


@LAYOUTS
def test_stock_opens_what_was_created_and_goes_on(tmp_path, layout):
    url = tmp_path / "a.b2frame"
    params = b2array.CParams("lz4", clevel=3, filters=("bitshuffle",))
    b2array.create_schunk(
        url, chunksize=800, typesize=8, blocksize=160, cparams=params, meta={"m": {"a": [1]}}, layout=layout
    )
    stock = blosc2.open(str(url), mode="a")
    assert (stock.nchunks, stock.typesize, stock.chunksize, stock.blocksize) == (0, 8, 800, 160)
    assert (stock.cparams.codec, stock.cparams.clevel) == (blosc2.Codec.LZ4, 3)
    assert stock.meta["m"] == {"a": [1]}
    stock.append_data(np.arange(100))
    del stock
    held = b2array.open_schunk(url)
    assert held.decompress_chunk(0) == np.arange(100).tobytes()
    assert held.cparams.codec == "lz4"


def test_without_a_url_the_frame_is_in_memory():
    first, second = (b2array.create_schunk(chunksize=8) for _ in range(2))
    first.append_data(b"12345678")
    assert (first.url, first.nchunks, second.nchunks) == ("memory", 1, 0)


@pytest.mark.parametrize(
    ("sizes", "error", "match"),
    [
        ({"chunksize": -8}, ValueError, "chunksize must be a multiple"),
        ({"chunksize": 10, "typesize": 4}, ValueError, "chunksize must be a multiple of the typesize 4, not 10"),
        ({"chunksize": 8, "typesize": 0}, ValueError, "at least 1"),
        ({"chunksize": 8, "typesize": 4, "blocksize": 6}, ValueError, "blocksize must be a multiple"),
        ({"chunksize": 2**31}, LimitError, "at most"),
        ({"chunksize": 8, "blocksize": 2**30}, LimitError, "at most"),
    ],
)
def test_sizes_are_checked_before_anything_is_written(tmp_path, sizes, error, match):
    with pytest.raises(error, match=match):
        b2array.create_schunk(tmp_path / "a.b2frame", **sizes)
    assert list(tmp_path.iterdir()) == []


def test_large_items_are_stored_as_bytes(tmp_path):
    held = b2array.create_schunk(tmp_path / "a.b2frame", chunksize=900, typesize=300, blocksize=77)
    data = np.random.default_rng(0).bytes(900)
    held.append_data(data)
    assert blosc2.open(str(tmp_path / "a.b2frame")).decompress_chunk(0) == data
    assert b2array.open_schunk(tmp_path / "a.b2frame").get_slice(1, 2) == data[300:600]


def test_metalayers_must_be_something_that_msgpack_takes(tmp_path):
    with pytest.raises(TypeError):
        b2array.create_schunk(tmp_path / "a.b2frame", chunksize=8, meta={"m": object()})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sizes", [{"chunksize": 8.0}, {"chunksize": 8, "typesize": 2.0}, {"chunksize": "8"}])
def test_sizes_are_integers(sizes):
    with pytest.raises(TypeError, match="interpreted as an integer"):
        b2array.create_schunk(**sizes)


# --- what is there already --------------------------------------------------------------------------------------------


@LAYOUTS
def test_a_frame_is_replaced_only_when_asked_for(tmp_path, layout):
    url = tmp_path / "a.b2frame"
    b2array.create_schunk(url, chunksize=8, layout=layout).append_data(b"12345678")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        b2array.create_schunk(url, chunksize=8, layout=layout)
    reader = b2array.open_schunk(url)
    held = b2array.create_schunk(url, chunksize=4, layout=layout, overwrite=True)
    held.append_data(b"abcd")
    assert b2array.open_schunk(url).get_slice() == b"abcd"
    assert blosc2.open(str(url)).decompress_chunk(0) == b"abcd"
    # A reader of the old frame is not given the new one's chunks under the old names.
    assert reader.decompress_chunk(0) == b"12345678"


@pytest.mark.parametrize("overwrite", [False, True])
@LAYOUTS
def test_other_files_and_directories_are_left_alone(tmp_path, overwrite, layout):
    (tmp_path / "file").write_bytes(b"something else, long enough to have been a frame" * 9)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "precious").write_bytes(b"1")
    for name in ("file", "empty", *(["directory"] if layout == "contiguous" else [])):
        with pytest.raises(FileExistsError):
            b2array.create_schunk(tmp_path / name, chunksize=8, layout=layout, overwrite=overwrite)
    assert (tmp_path / "file").stat().st_size == 48 * 9
    assert (tmp_path / "directory" / "precious").read_bytes() == b"1"


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_frame_of_the_other_kind_is_not_replaced(tmp_path, layout):
    other = {"contiguous": "sparse", "sparse": "contiguous"}[layout]
    b2array.create_schunk(tmp_path / "a.b2frame", chunksize=8, layout=other).append_data(b"12345678")
    with pytest.raises(FileExistsError, match=f"is a {other} frame, which a {layout} one cannot replace"):
        b2array.create_schunk(tmp_path / "a.b2frame", chunksize=8, layout=layout, overwrite=True)
    assert b2array.open_schunk(tmp_path / "a.b2frame").get_slice() == b"12345678"


def test_the_layout_follows_the_url(tmp_path):
    cases = {
        str(tmp_path / "a"): FrameType.CONTIGUOUS, f"{tmp_path}/b/": FrameType.SPARSE,
        "memory://here/c": FrameType.SPARSE,
    }  # fmt: skip
    for url, expected in cases.items():
        assert place_new(url, "auto", None, overwrite=False)[1] == expected
    store, kind = place_new(None, "auto", None, overwrite=False)
    assert (type(store), kind) == (MemoryStore, FrameType.CONTIGUOUS)
    assert place_new(None, "sparse", None, overwrite=False)[1] == FrameType.SPARSE


def test_layouts_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'auto', 'contiguous' or 'sparse'"):
        b2array.create_schunk(tmp_path / "a", chunksize=8, layout="dense")
    with pytest.raises(ValueError, match="ends with a slash"):
        b2array.create_schunk(f"{tmp_path}/a/", chunksize=8, layout="contiguous")
    assert list(tmp_path.iterdir()) == []


# --- what cannot be opened --------------------------------------------------------------------------------------------


def test_nothing_is_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.b2frame does not exist"):
        b2array.open_schunk(tmp_path / "a.b2frame")
    (tmp_path / "d").mkdir()
    with pytest.raises(FileNotFoundError, match=r"directory without chunks\.b2frame"):
        b2array.open_schunk(tmp_path / "d")


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 1000])
def test_what_is_no_frame_is_a_format_error_with_its_name(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(FormatError, match="file"):
        b2array.open_schunk(tmp_path / "file")


def test_modes_are_checked(tmp_path):
    b2array.create_schunk(tmp_path / "a", chunksize=8)
    with pytest.raises(ValueError, match="'r' or"):
        b2array.open_schunk(tmp_path / "a", "a")
    with pytest.raises(ReadOnlyError):
        b2array.open_schunk(tmp_path / "a").append_data(b"12345678")


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_on_s3_frames_are_created_once_without_the_permission_to_list(bucket, s3_options, monkeypatch, layout):
    import s3fs

    original = s3fs.S3FileSystem._call_s3

    async def call_s3(self, method, *args, **parameters):
        if method.startswith("list"):
            raise PermissionError("Access Denied")
        try:
            return await original(self, method, *args, **parameters)
        except FileNotFoundError:
            raise PermissionError("Access Denied") from None

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", call_s3)
    url = f"s3://{bucket}/unlisted-{layout}"
    b2array.asarray(np.arange(10), url=url, chunks=4, blocks=2, layout=layout, storage_options=s3_options)
    assert b2array.open(url, storage_options=s3_options)[...].tolist() == list(range(10))
    with pytest.raises(FileExistsError):
        b2array.asarray(np.zeros(10), url=url, layout=layout, storage_options=s3_options)
    b2array.asarray(np.zeros(3), url=url, layout=layout, overwrite=True, storage_options=s3_options)
    assert b2array.open(url, storage_options=s3_options)[...].tolist() == [0, 0, 0]
    with pytest.raises(PermissionError, match="Access Denied"):
        b2array.open(f"s3://{bucket}/missing", storage_options=s3_options)
