"""Super-chunks by URL are opened, created and replaced, and nothing else is ever overwritten."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial, partialmethod

import blosc2
import fsspec
import numpy as np
import pytest

import b2array
from b2array import config
from b2array.array.drafts import place_new
from b2array.commit import draft as drafting
from b2array.commit import journals
from b2array.errors import ConflictError, FormatError, LimitError, ReadOnlyError
from b2array.format.frame_header import FrameType
from b2array.store import disk
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store

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
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "precious").write_bytes(b"1")
    for name in ("file", *(["directory"] if layout == "contiguous" else [])):
        with pytest.raises(FileExistsError):
            b2array.create_schunk(tmp_path / name, chunksize=8, layout=layout, overwrite=overwrite)
    assert (tmp_path / "file").stat().st_size == 48 * 9
    assert (tmp_path / "directory" / "precious").read_bytes() == b"1"


OTHER = {"contiguous": "sparse", "sparse": "contiguous"}


def test_a_frame_of_the_other_layout_is_replaced_only_when_asked(tmp_path):
    for layout, other in OTHER.items():
        path = tmp_path / layout
        b2array.create_schunk(path, chunksize=8, layout=other).append_data(b"12345678")
        with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
            b2array.create_schunk(path, chunksize=8, layout=layout)
        assert b2array.open_schunk(path).get_slice() == b"12345678"
        b2array.create_schunk(path, chunksize=8, layout=layout, overwrite=True).append_data(b"abcdefgh")
        assert b2array.open_schunk(path).get_slice() == b"abcdefgh"


VALUES = np.arange(60).reshape(6, 10)
MAKERS = {
    "create": lambda url, **options: b2array.create(url, (6, 10), "i8", **options).__setitem__(..., VALUES),
    "zeros": lambda url, **options: b2array.zeros((6, 10), "i8", url=url, **options).__setitem__(..., VALUES),
    "asarray": lambda url, **options: b2array.asarray(VALUES, url=url, **options),
    "save": lambda url, **options: b2array.save(url, VALUES, **options),
    "copy": lambda url, storage_options=None, **options: b2array.copy(
        b2array.asarray(VALUES), url, dst_options=storage_options, **options
    ),
    "from_blocks": lambda url, **options: b2array.from_blocks(iter(VALUES[:, None]), url, **options),
}


@pytest.fixture(params=["local", "memory", "s3"])
def place(request, tmp_path):
    """Give a URL, its options, and a function that tells what is there."""
    if request.param == "local":
        url, options = str(tmp_path / "in" / "a.b2nd"), {}
        (tmp_path / "in").mkdir()
        return url, options, lambda: sorted(path.name for path in (tmp_path / "in").rglob("*") if path.is_file())
    root, options = f"memory://{tmp_path.name}", {}
    if request.param == "s3":
        root, options = f"s3://{request.getfixturevalue('bucket')}", request.getfixturevalue("s3_options")
    fs = fsspec.filesystem(root.partition(":")[0], **options)

    def names():
        fs.invalidate_cache()
        return sorted(path.rpartition("/")[2] for path in fs.find(root))

    return f"{root}/a.b2nd", options, names


@pytest.mark.filterwarnings("ignore:.*rewritten")
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("layout", OTHER)
def test_overwriting_replaces_the_other_layout_and_leaves_nothing_of_it(place, layout, maker):
    url, options, names = place
    old = b2array.asarray(-VALUES, url=url, layout=OTHER[layout], chunks=(2, 10), storage_options=options)
    old.close()
    MAKERS[maker](url, layout=layout, chunks=(3, 10), overwrite=True, storage_options=options)
    a = b2array.open(url, mode="r+", storage_options=options)
    assert np.array_equal(a[...], VALUES)
    assert a.info["layout"] == layout
    a[0, 0] = 7
    assert b2array.open(url, storage_options=options)[0, 0] == 7
    found = [name for name in names() if not name.endswith((".b2lock", ".chunk"))]
    assert found == (["a.b2nd"] if layout == "contiguous" else ["chunks.b2frame"])
    assert layout == "sparse" or not [name for name in names() if name.endswith(".chunk")]


@pytest.mark.filterwarnings("ignore:.*rewritten")
@pytest.mark.parametrize("layout", OTHER)
def test_an_empty_object_is_replaced(place, layout):
    url, options, names = place
    fsspec.open(url, "wb", **options).open().close()
    with pytest.raises(FileExistsError):
        b2array.asarray(VALUES, url=url, layout=layout, storage_options=options)
    assert names() == ["a.b2nd"]
    b2array.asarray(VALUES, url=url, layout=layout, overwrite=True, storage_options=options)
    assert np.array_equal(b2array.open(url, storage_options=options)[...], VALUES)


@pytest.mark.filterwarnings("ignore:.*rewritten")
@pytest.mark.parametrize("layout", OTHER)
def test_a_commit_cut_short_anywhere_leaves_the_old_frame_or_the_new_one(place, layout, monkeypatch):
    root, options, _ = place
    kind = type(open_store(root, storage_options=options))
    for count in range(99):
        url = root.replace("a.b2nd", f"{count}.b2nd")
        b2array.asarray(-VALUES, url=url, layout=OTHER[layout], overwrite=True, storage_options=options)
        calls = []

        def step(verb, *args, calls=calls, count=count, **given):
            calls.append(verb)
            if len(calls) > count:
                raise KeyboardInterrupt
            return verb(*args, **given)

        with monkeypatch.context() as patched:
            for name in ("create", "replace", "move_in", "exchange", "delete"):
                patched.setattr(kind, name, partialmethod(partial(step, getattr(kind, name))))
            with suppress(KeyboardInterrupt):
                b2array.asarray(VALUES, url=url, layout=layout, chunks=(2, 10), overwrite=True, storage_options=options)
        found = b2array.open(url, storage_options=options)[...]
        assert np.array_equal(found, VALUES) or np.array_equal(found, -VALUES), (count, calls)
        if len(calls) <= count:
            break
    assert np.array_equal(found, VALUES)
    assert count > 1


def test_a_directory_with_more_than_a_frame_is_not_replaced(tmp_path):
    b2array.asarray(VALUES, url=tmp_path / "a", layout="sparse")
    (tmp_path / "a" / "precious").write_bytes(b"1")
    with pytest.raises(FileExistsError, match="more than a frame in it: precious"):
        b2array.asarray(VALUES, url=tmp_path / "a", layout="contiguous", overwrite=True)
    assert np.array_equal(b2array.open(tmp_path / "a")[...], VALUES)


@pytest.mark.parametrize("layout", OTHER)
def test_places_are_swapped_in_steps_where_the_system_has_no_call_for_it(tmp_path, layout, monkeypatch):
    monkeypatch.setattr(disk, "_AT_FDCWD", -1)
    monkeypatch.setattr(disk, "_RENAME_EXCHANGE", -1)
    test_overwriting_replaces_the_other_layout_and_leaves_nothing_of_it(
        (str(tmp_path / "a.b2nd"), {}, lambda: sorted(path.name for path in tmp_path.rglob("*") if path.is_file())),
        layout,
        "asarray",
    )


@pytest.mark.parametrize("layout", OTHER)
def test_a_writer_of_the_replaced_frame_writes_into_the_new_one_after_a_refresh(tmp_path, layout):
    old = b2array.asarray(-VALUES, url=tmp_path / "a", layout=OTHER[layout], chunks=(2, 10))
    b2array.asarray(VALUES, url=tmp_path / "a", layout=layout, chunks=(2, 10), overwrite=True)
    for change in (lambda: old.__setitem__((0, 0), 5), lambda: old.attrs.__setitem__("x", 5)):
        with pytest.raises(ConflictError, match="deleted and made again"):
            change()
    old.refresh()
    old[0, 0] = 7
    old.attrs["x"] = 1
    new = b2array.open(tmp_path / "a")
    assert (new[0, 0], new[0, 1], new.attrs["x"], new.info["layout"]) == (7, 1, 1, layout)


def test_a_reader_of_a_directory_that_became_a_file_is_told_so(tmp_path):
    b2array.asarray(VALUES, url=tmp_path / "a", layout="sparse", chunks=(2, 10))
    old = b2array.open(tmp_path / "a")
    b2array.asarray(-VALUES, url=tmp_path / "a", layout="contiguous", chunks=(2, 10), overwrite=True)
    for read in (lambda: old[0, 0], lambda: old[...], lambda: old[0], old.mean, lambda: b2array.copy(old)):
        with pytest.raises(ConflictError, match="refresh"):
            read()
    old.refresh()
    assert old[0, 0] == -VALUES[0, 0]


@pytest.mark.parametrize("layout", OTHER)
def test_a_transaction_on_the_replaced_frame_is_a_conflict(place, layout):
    url, options, _ = place
    for change in (lambda a: a.__setitem__((0, 0), 7), lambda a: a.attrs.__setitem__("x", 1)):
        old = b2array.asarray(
            -VALUES, url=url, layout=OTHER[layout], chunks=(2, 10), overwrite=True, storage_options=options
        )

        def replaced_meanwhile(a, change=change):
            with a.transaction():
                change(a)
                b2array.asarray(VALUES, url=url, layout=layout, chunks=(2, 10), overwrite=True, storage_options=options)

        with pytest.raises(ConflictError):
            replaced_meanwhile(old)
        new = b2array.open(url, storage_options=options)
        assert np.array_equal(new[...], VALUES)
        assert dict(new.attrs) == {}


@pytest.mark.parametrize("layout", OTHER)
def test_a_damaged_frame_of_the_other_layout_stays(tmp_path, layout):
    b2array.asarray(VALUES, url=tmp_path / "a", layout=OTHER[layout])
    path = tmp_path / "a" / "chunks.b2frame" if layout == "contiguous" else tmp_path / "a"
    damaged = path.read_bytes()[:60]
    path.write_bytes(damaged)
    with pytest.raises(FileExistsError, match="cannot be read"):
        b2array.asarray(VALUES, url=tmp_path / "a", layout=layout, overwrite=True)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("layout", OTHER)
def test_a_killed_writer_leaves_a_place_that_is_found_and_removed(tmp_path, layout, monkeypatch):
    b2array.asarray(-VALUES, url=tmp_path / "a", layout=OTHER[layout], chunks=(2, 10))

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(disk, "exchange", die)
        patched.setattr(drafting, "discard_quietly", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            b2array.asarray(VALUES, url=tmp_path / "a", layout=layout, chunks=(2, 10), overwrite=True)
    (left,) = [path.name for path in tmp_path.iterdir() if path.name.endswith(".b2tmp")]
    store = open_store(tmp_path / "a")
    found = journals.find_leftovers(store, store.listing())
    assert [name.rpartition("/")[0] or name for name in found] == [left]
    journals.remove(store, found)
    assert not (tmp_path / left).exists()
    assert np.array_equal(b2array.open(tmp_path / "a")[...], -VALUES)


def test_the_layout_follows_the_url(tmp_path):
    cases = {
        str(tmp_path / "a"): FrameType.CONTIGUOUS,
        f"{tmp_path}/b/": FrameType.SPARSE,
        "memory://here/c": FrameType.SPARSE,
    }
    for url, expected in cases.items():
        assert place_new(url, "auto", None, overwrite=False).kind == expected
    place = place_new(None, "auto", None, overwrite=False)
    assert (type(place.store), place.kind) == (MemoryStore, FrameType.CONTIGUOUS)
    assert place_new(None, "sparse", None, overwrite=False).kind == FrameType.SPARSE


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
    monkeypatch.setattr(config, "obstore", False)  # it would ask the server, which denies nothing
    url = f"s3://{bucket}/unlisted-{layout}"
    b2array.asarray(np.arange(10), url=url, chunks=4, blocks=2, layout=layout, storage_options=s3_options)
    assert b2array.open(url, storage_options=s3_options)[...].tolist() == list(range(10))
    with pytest.raises(FileExistsError):
        b2array.asarray(np.zeros(10), url=url, layout=layout, storage_options=s3_options)
    b2array.asarray(np.zeros(3), url=url, layout=layout, overwrite=True, storage_options=s3_options)
    assert b2array.open(url, storage_options=s3_options)[...].tolist() == [0, 0, 0]
    with pytest.raises(PermissionError, match="Access Denied"):
        b2array.open(f"s3://{bucket}/missing", storage_options=s3_options)


@pytest.mark.parametrize("name", ["0123456789abcdef.b2write", "chunks.b2frame.0123456789abcdef.b2tmp"])
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_files_of_a_killed_writer_do_not_prevent_an_overwrite(tmp_path, name, layout):
    url = tmp_path / "a.b2nd"
    b2array.asarray(VALUES, url=url, layout="sparse")
    (url / name).write_bytes(b"1")
    b2array.asarray(-VALUES, url=url, layout=layout, overwrite=True)
    assert np.array_equal(b2array.open(url)[...], -VALUES)
    if layout == "contiguous":
        assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith("lock")) == ["a.b2nd"]


def test_a_directory_with_a_directory_in_it_is_not_replaced(tmp_path):
    url = tmp_path / "a.b2nd"
    b2array.asarray(VALUES, url=url, layout="sparse")
    (url / "mine").mkdir()
    (url / "mine" / "0123456789abcdef.b2tmp").write_bytes(b"1")
    with pytest.raises(FileExistsError, match="more than a frame"):
        b2array.asarray(-VALUES, url=url, layout="contiguous", overwrite=True)
    assert np.array_equal(b2array.open(url)[...], VALUES)
