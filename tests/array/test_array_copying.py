"""Arrays that are not in memory: read a part at a time; and copies of arrays, with all that belongs to them."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest
from servers import range_server

import b2array
from b2array import CParams
from b2array.array import array_copying
from b2array.errors import ConflictError
from b2array.frame.revision import Revision

CHUNKS = (16, 128)
SHAPE = (256, 1000)
MOST = 128 * 1024


class Distant:
    """Items that are made when they are asked for, and the most bytes that were asked for at a time."""

    def __init__(self, shape: tuple[int, ...] = SHAPE, dtype: Any = "f8") -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.most = 0

    def __getitem__(self, key: Any) -> Any:
        starts, stops = [part.start for part in key], [part.stop for part in key]
        lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
        self.most = max(self.most, math.prod(lengths) * self.dtype.itemsize)
        grid = np.ogrid[tuple(slice(start, stop) for start, stop in zip(starts, stops, strict=True))]
        return sum((part * 1000**n for n, part in enumerate(grid[::-1])), np.zeros(lengths, self.dtype))

    def values(self) -> Any:
        return type(self)(self.shape, self.dtype)[tuple(slice(0, n) for n in self.shape)]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_copying, "PIECE_NBYTES", MOST)


@contextmanager
def bounded(nbytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < nbytes, f"{peak} bytes at the peak"


def _as_array(x: Any, path: Path) -> None:
    b2array.asarray(x, url=path / "a.b2nd", chunks=CHUNKS)


def _save(x: Any, path: Path) -> None:
    b2array.save(path / "a.b2nd", x, chunks=CHUNKS)


def _append(x: Any, path: Path) -> None:
    b2array.zeros((0, *x.shape[1:]), x.dtype, url=path / "a.b2nd", chunks=CHUNKS).append(x)


def _member(x: Any, path: Path) -> None:
    b2array.open_group(path / "a.b2d", "w").create("a", data=x, chunks=CHUNKS)


WRITERS = [_as_array, _save, _append, _member]


@pytest.mark.parametrize("write", WRITERS)
def test_what_is_not_in_memory_is_read_a_part_at_a_time(write: Callable[[Any, Path], None], tmp_path: Path) -> None:
    write(Distant((16, 1000)), tmp_path / "warm")
    x = Distant()
    with bounded(math.prod(SHAPE) * 8 // 2):
        write(x, tmp_path / "a")
    assert 0 < x.most <= MOST
    place = next((tmp_path / "a").rglob("a.b2nd"))
    assert np.array_equal(b2array.load(place), x.values())


def test_an_assigned_member_is_read_a_part_at_a_time(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "a.b2d", "w")
    x = Distant((1500, 1000))
    group["x"] = x
    assert x.most < 1500 * 1000 * 8 // 4
    assert np.array_equal(group["x"][...], x.values())


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (33, 5, 9)])
@pytest.mark.parametrize("dtype", [None, "f4"])
def test_parts_cover_every_shape_and_are_converted(shape: tuple[int, ...], dtype: Any) -> None:
    x = Distant(shape)
    a = b2array.asarray(x, dtype=dtype)
    assert (a.shape, a.dtype) == (shape, np.dtype(dtype or "f8"))
    assert np.array_equal(a[...], x.values().astype(dtype or "f8"))


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_that_are_appended_end_where_chunks_end(axis: int) -> None:
    a = b2array.ones((21, 130), chunks=CHUNKS)
    shape = (600, 130) if axis == 0 else (21, 2000)
    x = Distant(shape)
    before = a[...]
    a.append(x, axis)
    assert 0 < x.most <= MOST
    assert np.array_equal(a[...], np.concatenate([before, x.values()], axis))


def test_an_array_that_gives_other_items_than_its_shape_says_is_refused(tmp_path: Path) -> None:
    class Short(Distant):
        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(key)[1:]

    with pytest.raises(ValueError, match="expected items of shape"):
        b2array.asarray(Short(), url=tmp_path / "a.b2nd", chunks=CHUNKS)
    assert not (tmp_path / "a.b2nd").exists()


def test_masked_parts_are_refused() -> None:
    class Masked(Distant):
        def __getitem__(self, key: Any) -> Any:
            return np.ma.masked_equal(super().__getitem__(key), 0)

    with pytest.raises(TypeError, match="masked"):
        b2array.asarray(Masked(), chunks=CHUNKS)


def test_blocks_with_masked_items_are_refused() -> None:
    whole, masked = np.array([1, 2]), np.ma.array([1, 2], mask=[0, 1])
    for blocks in ([masked], [whole, masked]):
        with pytest.raises(TypeError, match="masked"):
            b2array.from_blocks(blocks)


def test_datasets_of_other_libraries_are_stored(tmp_path: Path) -> None:
    h5py, zarr, blosc2 = (pytest.importorskip(name) for name in ("h5py", "zarr", "blosc2"))
    values = np.arange(40_000.0).reshape(200, 200)
    np.save(tmp_path / "a.npy", values)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        sources = [
            file.create_dataset("a", data=values, chunks=(30, 30)),
            zarr.array(values, chunks=(30, 30)),
            blosc2.asarray(values, chunks=(30, 30)),
            np.load(tmp_path / "a.npy", mmap_mode="r"),
        ]
        for source in sources:
            assert array_copying.is_sliceable(source)
            assert np.array_equal(b2array.asarray(source, chunks=(64, 50))[...], values)


def test_what_has_labels_or_a_graph_is_read_whole() -> None:
    pandas, dask = pytest.importorskip("pandas"), pytest.importorskip("dask.array")
    for x in (pandas.Series([1.0, 2.0], index=[5.0, 0.0]), dask.arange(5, chunks=2), np.arange(3), [1, 2], 1.5):
        assert not array_copying.is_sliceable(x)
        assert np.array_equal(b2array.asarray(x)[...], np.asarray(x))


# Copies of arrays.


def annotated(url: Path) -> b2array.NDArray:
    a = b2array.create(
        url,
        (60, 50),
        "i4",
        chunks=(20, 25),
        blocks=(10, 5),
        fill_value=7,
        dims=("x", "y"),
        attrs={"unit": "m"},
        meta={"made": "here"},
        cparams=b2array.CParams(codec="lz4", clevel=3),
    )
    a[3:40] = np.arange(50)
    return a


def everything(a: b2array.NDArray) -> tuple[Any, ...]:
    return a[...].tolist(), a.chunks, a.blocks, a.fill_value, a.dims, dict(a.attrs), dict(a.meta), a.cparams


@pytest.mark.parametrize("verb", ["asarray", "save", "setitem", "create", "save to itself"])
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_stored_array_keeps_what_belongs_to_it(tmp_path: Path, verb: str, layout: Any) -> None:
    a = annotated(tmp_path / "a.b2nd")
    expected = everything(a)
    target = tmp_path / "b.b2nd"
    if verb == "asarray":
        found = b2array.asarray(a, url=target, layout=layout)
    elif verb == "save":
        b2array.save(target, a, layout=layout)
        found = b2array.open(target)
    elif verb == "save to itself":
        b2array.save(target, a, layout=layout)
        b2array.save(target, b2array.open(target), layout=layout)
        found = b2array.open(target)
    else:
        group = b2array.open_group(tmp_path / "g.b2d", "w")
        if verb == "setitem":
            group["b"] = a
        else:
            group.create("b", data=a, layout=layout)
        found = group["b"]
    assert everything(found) == expected


def test_options_replace_what_a_stored_array_would_keep() -> None:
    a = annotated(None)  # type: ignore[arg-type]
    b = b2array.asarray(a, attrs={"unit": "km", "n": 1}, dims=("u", "v"), fill_value=0, meta={"made": "there"})
    values, *_ = everything(a)
    assert (b[...].tolist(), b.chunks, b.blocks) == (values, a.chunks, a.blocks)
    assert (dict(b.attrs), b.dims, b.fill_value) == ({"unit": "km", "n": 1}, ("u", "v"), 0)
    assert b.meta["made"] == "there"
    c = b2array.asarray(a, dtype="f8", chunks=(30, 30))
    assert (c.dtype, c.chunks, c.attrs["unit"], c.fill_value) == (np.dtype("f8"), (30, 30), "m", 7.0)


def test_a_copy_looks_at_no_chunks_that_are_not_stored(monkeypatch):
    array = b2array.zeros((2_000,), "i4", chunks=(1,), blocks=(1,))
    array[[5, 1700]] = 1, 2
    looked_at = []
    locate = Revision.locate
    monkeypatch.setattr(Revision, "locate", lambda self, n: looked_at.append(n) or locate(self, n))
    copy = array.copy()
    assert set(looked_at) == {5, 1700}
    assert np.flatnonzero(copy[...]).tolist() == [5, 1700]


def test_a_copy_in_a_transaction_has_what_is_not_encoded_yet_and_counts_as_a_read(tmp_path):
    array = b2array.zeros((9,), "i4", url=tmp_path / "a.b2nd", chunks=(3,))
    other = b2array.open(tmp_path / "a.b2nd", mode="r+")

    def change():
        with array.transaction():
            array[0] = 1
            assert array.copy()[...].tolist() == [1] + [0] * 8
            other[8] = 2

    with pytest.raises(ConflictError):
        change()


def test_a_fill_value_that_does_not_convert_costs_no_conversion_of_items_that_do():
    texts = b2array.full((4,), "n/a", "U3", chunks=(2,))
    texts[...] = ["1", "2", "3", "4"]
    numbers = texts.astype("f8")
    assert (numbers[...].tolist(), numbers.fill_value) == ([1, 2, 3, 4], 0)
    texts.resize(5)
    with pytest.raises(ValueError, match="could not convert string to float"):
        texts.astype("f8")


@pytest.mark.parametrize("options", [{}, {"chunks": (30, 30)}, {"dtype": "f8"}, {"cparams": "lz4"}])
def test_a_copy_never_rounds_values_that_other_software_has_stored_exactly(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    values = np.random.default_rng(0).normal(0, 30, (100, 100)).astype("f4")
    url = tmp_path / "a.b2nd"
    b2array.zeros(values.shape, "f4", url=url, chunks=(50, 50), cparams=CParams(absolute_error=1.0))
    blosc2.open(str(url), mode="a")[...] = values
    copy = b2array.copy(url, **options)
    np.testing.assert_array_equal(copy[...], values)
    if "cparams" not in options:
        assert copy.cparams.absolute_error == 1
        copy[...] = values
        assert 0 < np.abs(copy[...] - values).max() <= 1


def test_a_copy_of_numbers_too_small_to_be_rounded_keeps_them() -> None:
    values = (np.random.default_rng(1).normal(size=100) * 1e-40).astype("f4")
    array = b2array.asarray(values, cparams=CParams(relative_error=1e-2))
    np.testing.assert_array_equal(b2array.copy(array, dtype="f8")[...], array[...])


@pytest.mark.parametrize(
    ("shape", "chunks", "blocks", "new", "most"),
    [
        ((48, 97, 88), (24, 97, 88), (6, 49, 44), (48, 20, 20), 2**25),  # one window
        ((48, 97, 88), (24, 97, 88), (6, 49, 44), (48, 20, 20), 2**19),  # windows that cut blocks
        ((256, 128, 128), (1, 128, 128), (1, 128, 128), (256, 16, 16), 2**21),  # another copy in between
        ((60, 70), (7, 70), (7, 70), (60, 9), 2**9),  # chunks of another copy would be too small
    ],
)
@pytest.mark.parametrize("dtype", [None, "f8"])
def test_a_copy_into_other_chunks_has_the_same_items(
    shape: Any, chunks: Any, blocks: Any, new: Any, most: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_copying, "PIECE_NBYTES", most)
    x = np.random.default_rng(0).integers(0, 50, shape).astype("f4")
    a = b2array.asarray(x, chunks=chunks, blocks=blocks, attrs={"n": 1}, fill_value=7)
    with b2array.config.using(cache_bytes=0):
        b = a.copy(chunks=new, dtype=dtype)
    assert b.chunks == new
    assert np.array_equal(b[...], x)
    assert (dict(b.attrs), b.fill_value) == ({"n": 1}, 7)


@pytest.mark.costly
@pytest.mark.parametrize("most", [2**25, 2**21])
def test_a_copy_into_long_thin_chunks_reads_each_block_about_once(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_copying, "PIECE_NBYTES", most)
    x = np.random.default_rng(0).integers(0, 50, (256, 128, 128)).astype("f4")
    b2array.asarray(x, url=tmp_path / "s.b2nd", chunks=(4, 128, 128))
    content = (tmp_path / "s.b2nd").read_bytes()
    with range_server() as server, b2array.config.using(cache_bytes=0, obstore=False):
        server.objects["s.b2nd"] = content
        copied = b2array.open(server.url_of("s.b2nd")).copy(tmp_path / "c.b2nd", chunks=(256, 16, 16))
        assert server.nbytes_asked <= 1.2 * len(content)
    assert np.array_equal(copied[...], x)


@pytest.mark.costly
@pytest.mark.parametrize("most", [2**25, 2**17])
def test_a_copy_of_text_reads_windows_by_the_size_of_its_items(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_copying, "PIECE_NBYTES", most)
    boxes = []
    read_box = array_copying.resize.read_box

    def read(source: Any, layout: Any, box: Any) -> Any:
        values = read_box(source, layout, box)
        boxes.append(sum(len(item) for item in values.flat))
        return values

    monkeypatch.setattr(array_copying.resize, "read_box", read)
    x = np.array([str(n % 10) * 200 for n in range(200 * 200)], "T").reshape(200, 200)
    a = b2array.asarray(x, chunks=(1, 200))
    for chunks in [(200, 1), (25, 20)]:
        b = a.copy(chunks=chunks)
        assert b.chunks == chunks
        assert b[...].tolist() == x.tolist()
    assert max(boxes) <= most
