"""What python-blosc2 writes reads back equal here, what is written here reads back equal there, also in turns."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import pytest
from chunks import CODECS, STOCK_SPLITMODES, make_chunk, vl_chunk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array.codec import decode, encode
from b2array.codec.chunk import Stored
from b2array.codec.chunk_header import ChunkHeader, Special
from b2array.codec.cparams import CParams
from b2array.errors import UnsupportedError
from b2array.format.frame_header import FrameType

SHAPE, CHUNKS, BLOCKS = (23, 17), (12, 9), (5, 4)
LAYOUTS = ("contiguous", "sparse")
KEYS: tuple[Any, ...] = (..., (slice(3, 20, 3), slice(None)), (slice(None), 8), (22, 16), (slice(11, 13), slice(8, 10)))
FILTERS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "none": ((), ()),
    "shuffle": (("shuffle",), ()),
    "bitshuffle": (("bitshuffle",), ()),
    "bytedelta": (("shuffle", "bytedelta"), (0, 0)),
    "shuffle of pairs": (("shuffle",), (2,)),
    "both shuffles": (("bitshuffle", "shuffle"), ()),
}
DTYPES = (
    "?",
    "i1",
    "u1",
    "<i2",
    ">i2",
    "<u2",
    "<i4",
    ">i4",
    "<u4",
    "<i8",
    "<u8",
    ">u8",
    "<f2",
    "<f4",
    ">f4",
    "<f8",
    ">f8",
    "<f16",
    "<c8",
    "<c16",
    ">c16",
    "<M8[D]",
    "<M8[ns]",
    ">M8[s]",
    "<m8[us]",
    "S1",
    "S7",
    "S300",
    "<U1",
    "<U5",
    ">U5",
    "<U80",
    "V3",
    "V17",
)
RECORDS = {
    "packed": [("x", "<i4"), ("y", ">f8"), ("s", "S3")],
    "nested": [("p", [("x", "<f4"), ("y", "<f4")]), ("n", "<u2", (2, 2))],
    "aligned": np.dtype([("a", "i1"), ("b", "<f8"), ("c", "S3", (2,))], align=True),
    "large": [("t", "<M8[us]"), ("text", "<U70"), ("n", "<i8", (3,))],
}


DEFAULT = CParams()


def values(dtype: Any = "<i4", shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Smooth and noisy regions, runs and zeros, as far as the type has them."""
    dtype = np.dtype(dtype)
    n = np.arange(np.prod(shape, dtype=int))
    if dtype.names or dtype.kind == "V":
        made = np.zeros(len(n), dtype)
        for field in dtype.names or ():
            made[field] = values(dtype[field].base, (len(n), *dtype[field].shape))
        if not dtype.names:
            made = np.random.default_rng(0).integers(0, 256, len(n) * dtype.itemsize, "u1").view(dtype)
        return made.reshape(shape)
    numbers = np.where(n % 100 < 30, 7, n * 37 % 500_000 + n * n % 61)  # 16 bits hold an eighth of them
    numbers[len(n) // 2 : len(n) // 2 + 60] = 0
    if dtype.kind in "SU":
        return numbers.astype(dtype).reshape(shape)
    if dtype.kind in "fc":
        return (numbers / 8).astype(dtype).reshape(shape)
    return numbers.astype("<i8").astype(dtype).reshape(shape)


def stock_params(params: CParams, itemsize: int) -> dict[str, Any]:
    slots = list(zip(params.filter_slots, params.metas_for(min(itemsize, 255)), strict=True))
    return {
        "typesize": itemsize,
        "nthreads": 1,
        "codec": blosc2.Codec(params.codec_id),
        "clevel": params.clevel,
        "filters": [blosc2.Filter(fid) for fid, _ in slots],
        "filters_meta": [meta - 256 * (meta > 127) for _, meta in slots],
        "splitmode": STOCK_SPLITMODES["blosc2" if params.splitmode == "auto" else params.splitmode],
        "use_dict": params.use_dict,
    }


def write_stock(
    path: Path,
    array: np.ndarray,
    layout: str,
    params: CParams = DEFAULT,
    **options: Any,
) -> None:
    shapes = {"chunks": CHUNKS, "blocks": BLOCKS} | options
    made = blosc2.zeros(
        array.shape,
        dtype=array.dtype,
        urlpath=str(path),
        mode="w",
        contiguous=layout == "contiguous",
        cparams=stock_params(params, array.itemsize),
        dparams={"nthreads": 1},
        **shapes,
    )
    if not array.ndim and array.dtype.kind in "mM":  # which it cannot assign
        made.schunk.update_data(0, array.tobytes(), copy=True)
    elif array.size:
        made[...] = array
    del made


def write_ours(
    path: Path,
    array: np.ndarray,
    layout: str,
    params: CParams = DEFAULT,
    **options: Any,
) -> None:
    shapes = {"chunks": CHUNKS, "blocks": BLOCKS} | options
    b2array.asarray(array, url=path, layout=layout, cparams=params, **shapes).close()


def assert_same(found: Any, expected: np.ndarray) -> None:
    found = np.asarray(found)
    assert (found.shape, found.dtype.itemsize) == (expected.shape, expected.dtype.itemsize)
    if expected.dtype.names:
        for name in expected.dtype.names:
            assert_same(found[name], expected[name])
    elif expected.dtype.kind in "fc":
        np.testing.assert_array_equal(found, expected)
    else:
        assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()


def assert_read_here(path: Path, expected: np.ndarray, keys: tuple[Any, ...] = KEYS) -> None:
    with b2array.open(path) as array:
        assert array.dtype == expected.dtype
        for key in keys:
            assert_same(np.array(array[key], expected.dtype), np.array(expected[key], expected.dtype))


def assert_read_there(path: Path, expected: np.ndarray, keys: tuple[Any, ...] = KEYS) -> None:
    array = blosc2.open(str(path), mode="r", dparams={"nthreads": 1})
    assert array.dtype == expected.dtype
    for key in keys:
        if isinstance(key, tuple) and any(isinstance(k, slice) and k.step not in (None, 1) for k in key):
            continue
        assert_same(np.array(array[key], expected.dtype), np.array(expected[key], expected.dtype))


def assert_read_everywhere(path: Path, expected: np.ndarray, keys: tuple[Any, ...] = KEYS) -> None:
    assert_read_here(path, expected, keys)
    assert_read_there(path, expected, keys)


WRITERS = {"stock": write_stock, "ours": write_ours}

# Codecs, filters, ways to split


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("filters", FILTERS)
def test_every_codec_and_filter_is_read_on_both_sides(codec: str, filters: str, tmp_path: Path) -> None:
    names, metas = FILTERS[filters]
    for n, (writer, layout, split) in enumerate(itertools.product(WRITERS, LAYOUTS, STOCK_SPLITMODES)):
        params = CParams(codec, filters=names, filters_meta=metas, splitmode=split)
        array = values("<i4" if n % 2 else "<f8")
        path = tmp_path / f"{n}.b2nd"
        WRITERS[writer](path, array, layout, params)
        assert_read_everywhere(path, array)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("clevel", range(10))
def test_every_level_is_read_on_both_sides(writer: str, clevel: int, tmp_path: Path) -> None:
    for codec in CODECS:
        path = tmp_path / f"{codec}.b2nd"
        WRITERS[writer](path, values(), "contiguous", CParams(codec, clevel=clevel))
        assert_read_everywhere(path, values())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("filters", [("delta",), ("delta", "shuffle"), ("shuffle", "delta"), ("delta", "bitshuffle")])
def test_delta_is_read(filters: tuple[str, ...], layout: str, tmp_path: Path) -> None:
    """python-blosc2 itself reads parts of chunks with several blocks wrongly, but whole chunks of one block rightly."""
    params = CParams("lz4", filters=filters, splitmode="never")
    write_stock(tmp_path / "stock.b2nd", values(), layout, params)
    assert_read_here(tmp_path / "stock.b2nd", values())
    write_ours(tmp_path / "ours.b2nd", values(), layout, params, blocks=CHUNKS)
    assert_read_everywhere(tmp_path / "ours.b2nd", values())
    write_ours(tmp_path / "many.b2nd", values(), layout, params, interop=False)
    assert_read_here(tmp_path / "many.b2nd", values())
    array = blosc2.open(str(tmp_path / "many.b2nd"), dparams={"nthreads": 1})
    with b2array.open_schunk(tmp_path / "many.b2nd") as schunk:
        for n in range(len(schunk)):
            assert blosc2.decompress2(schunk.get_chunk(n), nthreads=1) == schunk.decompress_chunk(n)
    assert array.shape == SHAPE


@pytest.mark.parametrize(
    ("name", "dtype", "meta"), [("trunc_prec", "<f4", 10), ("trunc_prec", "<f8", 4), ("int_trunc", "<i4", 20)]
)
def test_lossy_filters_lose_the_same(name: str, dtype: str, meta: int, tmp_path: Path) -> None:
    params = CParams("zstd", filters=(name, "shuffle"), filters_meta=(meta,))
    found = {}
    for author, write in WRITERS.items():
        path = tmp_path / f"{author}.b2nd"
        write(path, values(dtype), "contiguous", params)
        found[author] = b2array.load(path)
        assert_read_there(path, found[author])
    assert_same(found["ours"], found["stock"])
    assert not np.array_equal(found["ours"], values(dtype))


@pytest.mark.parametrize(("name", "dtype", "meta"), [("trunc_prec", "<f4", -3), ("int_trunc", "<i4", -8)])
def test_metas_below_zero_are_written_where_stock_need_not_open_the_frame(
    name: str, dtype: str, meta: int, tmp_path: Path
) -> None:
    """python-blosc2 writes them and cannot open what it has written."""
    params = CParams("zstd", filters=(name, "shuffle"), filters_meta=(meta,))
    with pytest.raises(UnsupportedError, match="how many bits to keep"):
        b2array.asarray(values(dtype), url=tmp_path / "ours.b2nd", cparams=params)
    assert list(tmp_path.iterdir()) == []
    write_stock(tmp_path / "stock.b2nd", values(dtype), "contiguous", params)
    write_ours(tmp_path / "ours.b2nd", values(dtype), "contiguous", params, interop=False)
    assert_same(b2array.load(tmp_path / "ours.b2nd"), b2array.load(tmp_path / "stock.b2nd"))
    for author in WRITERS:
        with pytest.raises(OverflowError):
            blosc2.open(str(tmp_path / f"{author}.b2nd"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("codec", ["zstd", "lz4", "lz4hc"])
def test_dictionaries_are_read_on_both_sides(codec: str, layout: str, tmp_path: Path) -> None:
    """python-blosc2 reads chunks with dictionaries as a whole; slices of arrays fail there, of its own ones too."""
    rows = np.random.default_rng(0).integers(0, 2**31, (7, 60)).astype("<i4")
    array = rows[np.arange(360) * 5 % 7]
    shapes = {"chunks": (180, 60), "blocks": (4, 60)}
    params = CParams(codec, use_dict=True)
    write_stock(tmp_path / "stock.b2nd", array, layout, params, **shapes)
    write_ours(tmp_path / "ours.b2nd", array, layout, params, interop=False, **shapes)
    for path in (tmp_path / "stock.b2nd", tmp_path / "ours.b2nd"):
        assert_read_here(path, array, (..., (slice(17, 50), 3)))
        there = blosc2.open(str(path))
        with b2array.open_schunk(path) as schunk:
            assert ChunkHeader.unpack(schunk.get_chunk(0)).has_dict
            for n in range(len(schunk)):
                assert blosc2.decompress2(schunk.get_chunk(n)) == schunk.decompress_chunk(n)
                assert there.schunk.decompress_chunk(n) == schunk.decompress_chunk(n)


# Types


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_read_and_changed_on_both_sides(dtype: str, layout: str, tmp_path: Path) -> None:
    for writer, write in WRITERS.items():
        path = tmp_path / f"{writer}.b2nd"
        expected = values(dtype)
        write(path, expected, layout)
        assert_read_everywhere(path, expected)
        expected = change_in_turns(path, expected)
        assert_read_everywhere(path, expected)


def change_in_turns(path: Path, expected: np.ndarray) -> np.ndarray:
    expected = expected.copy()
    with b2array.open(path, "r+") as ours:
        ours[4:15, 3:12] = expected[:11, :9]
    expected[4:15, 3:12] = expected[:11, :9].copy()
    there = blosc2.open(str(path), mode="a", dparams={"nthreads": 1})
    part = np.ascontiguousarray(expected[12:20, :5])
    there[0:8, 12:17] = part
    expected[0:8, 12:17] = part
    del there
    with b2array.open(path, "r+") as ours:
        ours[22] = expected[0]
    expected[22] = expected[0]
    return expected


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", RECORDS)
def test_records_are_read_and_changed_on_both_sides(name: str, layout: str, tmp_path: Path) -> None:
    expected = values(RECORDS[name], (40,))
    keys = (..., slice(3, 30), 39)
    for writer, write in WRITERS.items():
        path = tmp_path / f"{writer}.b2nd"
        write(path, expected, layout, chunks=(16,), blocks=(5,))
        assert_read_everywhere(path, expected, keys)
        with b2array.open(path, "r+") as array:
            array[5:20] = expected[20:35]
        changed = expected.copy()
        changed[5:20] = expected[20:35]
        assert_read_everywhere(path, changed, keys)
        with b2array.open(path) as array:
            for field in expected.dtype.names:
                assert_same(array[field], changed[field])


# Shapes

SHAPES = (
    (), (1,), (7,), (0,), (0, 5), (3, 0), (0, 0, 0), (1, 1, 1), (5, 6, 7), (2, 3, 4, 5), (2, 1) * 4,
    (2,) * 8 + (1,) * 8,
)  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_is_read_and_changed_on_both_sides(shape: tuple[int, ...], layout: str, tmp_path: Path) -> None:
    cut = {"chunks": tuple(max(1, -(-n * 2 // 3)) for n in shape), "blocks": tuple(max(1, n // 3) for n in shape)}
    expected = values("<f8", shape)
    for writer, write in WRITERS.items():
        path = tmp_path / f"{writer}.b2nd"
        write(path, expected, layout, **cut)
        assert_read_everywhere(path, expected, (...,))
        if not expected.size:
            continue
        expected = expected + 1
        with b2array.open(path, "r+") as array:
            array[...] = expected
        assert_read_everywhere(path, expected, (...,))
        there = blosc2.open(str(path), mode="a")
        there[()] = expected * 2
        del there
        assert_read_everywhere(path, expected * 2, (...,))


def test_automatic_chunks_and_blocks_are_read_on_both_sides(tmp_path: Path) -> None:
    for shape in ((), (0, 3), (1000,), (100, 70), (30, 20, 10), (3, 50_000)):
        array = values("<f4", shape)
        b2array.asarray(array, url=tmp_path / f"{len(shape)}{shape}.b2nd").close()
        assert_read_everywhere(tmp_path / f"{len(shape)}{shape}.b2nd", array, (...,))
        blosc2.asarray(array, urlpath=str(tmp_path / f"s{shape}.b2nd"), mode="w")
        assert_read_everywhere(tmp_path / f"s{shape}.b2nd", array, (...,))


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_array_is_read_on_both_sides(tmp_path: Path, data: st.DataObject) -> None:
    ndim = data.draw(st.integers(0, 4))
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=ndim, max_size=ndim)))
    chunks, nchunks = (), 1
    for n in shape:  # each chunk may be a file: at most about a hundred of them
        chunks += (data.draw(st.integers(min(n, -(-n * nchunks // 100)), n + 2)),)
        nchunks *= -(-n // chunks[-1])
    blocks = tuple(data.draw(st.integers(1, c)) for c in chunks)
    dtype = data.draw(st.sampled_from(DTYPES))
    # python-blosc2 cannot open arrays with bytedelta and items of more bytes.
    filters = [name for name in FILTERS if name != "bytedelta" or np.dtype(dtype).itemsize < 128]
    names, metas = FILTERS[data.draw(st.sampled_from(filters))]
    params = CParams(
        data.draw(st.sampled_from(CODECS)),
        clevel=data.draw(st.integers(0, 9)),
        filters=names,
        filters_meta=metas,
        splitmode=data.draw(st.sampled_from(sorted(STOCK_SPLITMODES))),
    )
    expected = values(dtype, shape)
    layout = data.draw(st.sampled_from(LAYOUTS))
    writer = data.draw(st.sampled_from(sorted(WRITERS)))
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.b2nd"
    WRITERS[writer](path, expected, layout, params, chunks=chunks, blocks=blocks)
    low = [data.draw(st.integers(0, n - 1)) for n in shape]
    key = tuple(slice(start, data.draw(st.integers(start + 1, n))) for start, n in zip(low, shape, strict=True))
    assert_read_everywhere(path, expected, (..., key))


# Special values


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("verb", "args", "dtype", "expected"),
    [
        ("zeros", (), "<f8", 0),
        ("zeros", (), "S300", b""),
        ("zeros", (), "<i2", 0),
        ("nans", (), "<f4", np.nan),
        ("nans", (), "<f8", np.nan),
        ("full", (7,), "<i4", 7),
        ("full", (-0.0,), "<f8", -0.0),
        ("full", (0,), "<i8", 0),
        ("full", (np.nan,), "<f8", np.nan),
        ("full", (b"abc",), "S3", b"abc"),
        ("ones", (), "<c16", 1),
        ("uninit", (), "<i4", None),
        ("empty", (), "<i4", 0),
    ],
)
def test_special_chunks_of_stock_are_read_and_changed(
    verb: str, args: tuple[Any, ...], dtype: str, expected: Any, layout: str, tmp_path: Path
) -> None:
    path = tmp_path / "special.b2nd"
    options = {"chunks": CHUNKS, "blocks": BLOCKS, "urlpath": str(path), "contiguous": layout == "contiguous"}
    getattr(blosc2, verb)(SHAPE, *args, dtype=np.dtype(dtype), **options)
    model = np.full(SHAPE, 0 if expected is None else expected, dtype)
    assert_read_here(path, model)
    if expected is not None:
        assert_read_there(path, model)
    piece = np.full((3, 12), model[0, 0]) if model.dtype.kind == "S" else values(dtype, (3, 12))
    with b2array.open(path, "r+") as array:
        array[4:7, 2:14] = piece
    model[4:7, 2:14] = piece
    assert_read_here(path, model)
    if expected is not None:
        assert_read_there(path, model)
        there = blosc2.open(str(path), mode="a")
        there[15:18, 2:14] = piece
        model[15:18, 2:14] = piece
        assert_read_everywhere(path, model)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("fill", "dtype"),
    [
        (0, "<f8"),
        (-0.0, "<f8"),
        (np.nan, "<f4"),
        (np.nan, "<f8"),
        (np.nan, ">f8"),
        (np.nan, "<f2"),
        (7, "<i4"),
        (b"abc", "S5"),
        (b"abc", "S300"),
        ("ä", "<U3"),
        ((1, 2.5), [("a", "<i4"), ("b", "<f8")]),
    ],
)
def test_fill_values_of_ours_are_read_and_changed(fill: Any, dtype: Any, layout: str, tmp_path: Path) -> None:
    path = tmp_path / "full.b2nd"
    array = b2array.create(path, SHAPE, dtype, fill_value=fill, chunks=CHUNKS, blocks=BLOCKS, layout=layout)
    model = np.full(SHAPE, np.array(fill, dtype), dtype)
    assert_read_everywhere(path, model)
    piece = values(dtype, (3, 12))
    there = blosc2.open(str(path), mode="a")
    there[4:7, 2:14] = piece
    model[4:7, 2:14] = piece
    del there
    assert_read_everywhere(path, model)
    array.refresh()
    assert_same(array[...], model)
    array[4:7, 2:14] = np.array(fill, dtype)
    assert_read_there(path, np.full(SHAPE, np.array(fill, dtype), dtype))


# Metadata

ATTRS = {
    "number": 3,
    "real": 2.5,
    "text": "m/s",
    "none": None,
    "yes": True,
    "bytes": b"\0\xff",
    "list": [1, "two", None],
    "map": {"a": {"b": [1, 2]}},
    "pair": (1, 2),
    "complex": 1 - 2j,
    "large": 2**63,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attributes_go_both_ways(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    write_stock(path, values(), layout)
    there = blosc2.open(str(path), mode="a")
    layers = there.schunk.vlmeta
    for name, value in ATTRS.items():
        layers[name] = value
    with b2array.open(path, "r+") as array:
        assert dict(array.attrs) == ATTRS
        array.attrs["number"] = 4
        del array.attrs["real"]
        array.attrs["new"] = [1.5, "x"]
    there = blosc2.open(str(path), mode="a")
    found = there.schunk.vlmeta[:]
    assert {k: v for k, v in found.items() if k != "b2array"} == {
        **{k: v for k, v in ATTRS.items() if k != "real"},
        "number": 4,
        "new": [1.5, "x"],
    }
    layers = there.schunk.vlmeta
    layers["last"] = "stock"
    del layers["new"]
    with b2array.open(path) as array:
        assert set(array.attrs) == {*ATTRS, "last"} - {"real"}
        assert_same(array[...], values())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attributes_of_ours_are_read_there(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    array = b2array.asarray(values(), url=path, layout=layout, attrs=ATTRS, dims=("y", "x"), meta={"m": {"k": [1, 2]}})
    there = blosc2.open(str(path), mode="r")
    found = there.schunk.vlmeta[:]
    assert {name: found[name] for name in ATTRS} == ATTRS
    assert there.schunk.meta["m"] == {"k": [1, 2]}
    assert set(there.schunk.meta) == {"b2nd", "m"}
    assert array.meta["m"] == {"k": [1, 2]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_metalayers_are_the_same_bytes(layout: str, tmp_path: Path) -> None:
    meta = {"first": {"a": [1, 2.5]}, "raw": b"\0\1", "text": "x" * 300}
    blosc2.asarray(
        values(),
        chunks=CHUNKS,
        blocks=BLOCKS,
        urlpath=str(tmp_path / "s.b2nd"),
        meta=meta,
        contiguous=layout == "contiguous",
    )
    b2array.asarray(values(), url=tmp_path / "o.b2nd", chunks=CHUNKS, blocks=BLOCKS, layout=layout, meta=meta).close()
    with b2array.open_schunk(tmp_path / "s.b2nd") as stock, b2array.open_schunk(tmp_path / "o.b2nd") as ours:
        assert stock.frame.metalayer("b2nd") == ours.frame.metalayer("b2nd")
        for name in ("first", "text"):
            assert stock.frame.metalayer(name) == ours.frame.metalayer(name)
        assert dict(stock.meta)["first"] == meta["first"]
    with b2array.open(tmp_path / "s.b2nd", "r+") as array:
        array[0] = 1
    there = blosc2.open(str(tmp_path / "s.b2nd"))
    assert there.schunk.meta["first"] == meta["first"]


# Frames in memory and inside of other files


@pytest.mark.parametrize("layout", LAYOUTS)
def test_frames_in_memory_go_both_ways(layout: str, tmp_path: Path) -> None:
    array = values()
    there = blosc2.asarray(array, chunks=CHUNKS, blocks=BLOCKS, contiguous=layout == "contiguous")
    there.schunk.vlmeta["note"] = "stock"
    ours = b2array.from_bytes(there.to_cframe())
    assert_same(ours[...], array)
    assert ours.attrs["note"] == "stock"
    again = blosc2.ndarray_from_cframe(ours.to_bytes())
    assert_same(again[...], array)
    assert again.schunk.vlmeta["note"] == "stock"
    mine = b2array.asarray(array, chunks=CHUNKS, blocks=BLOCKS, layout=layout, attrs={"note": "ours"})
    again = blosc2.ndarray_from_cframe(mine.to_bytes(), copy=True)
    assert_same(again[...], array)
    assert again.schunk.vlmeta["note"] == "ours"
    write_stock(tmp_path / "s.b2nd", array, layout)
    with b2array.open(tmp_path / "s.b2nd") as opened:
        assert_same(blosc2.ndarray_from_cframe(opened.to_bytes())[...], array)


def test_frames_inside_of_a_larger_file_go_both_ways(tmp_path: Path) -> None:
    array, before = values(), b"x" * 123
    for writer, write in WRITERS.items():
        write(tmp_path / f"{writer}.b2nd", array, "contiguous")
        content = (tmp_path / f"{writer}.b2nd").read_bytes()
        (tmp_path / f"{writer}.zip").write_bytes(before + content + b"behind it" * 9)
        with b2array.open(tmp_path / f"{writer}.zip", offset=123) as ours:
            for key in KEYS:
                assert_same(ours[key], array[key])
        there = blosc2.schunk.open(str(tmp_path / f"{writer}.zip"), mode="r", offset=123)
        assert_same(there[...], array)


# Chunks of other kinds in frames


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("clevel", [0, 5])
def test_lazy_chunks_are_those_of_stock(writer: str, layout: str, clevel: int, tmp_path: Path) -> None:
    path, array = tmp_path / "a.b2nd", values()
    array[:12, :9] = 0
    array[12:, :9] = 3
    WRITERS[writer](path, array, layout, CParams(clevel=clevel))
    there = blosc2.open(str(path), mode="r")
    with b2array.open_schunk(path) as schunk:
        for n in range(len(schunk)):
            ours, stock = schunk.lazy_chunk(n), there.schunk.get_lazychunk(n)
            header = ChunkHeader.unpack(stock)
            # The block starts of a raw chunk mean nothing.
            skipped = slice(32, 32 + 4 * header.nblocks * header.memcpyed)
            assert ours[:32] == stock[:32]
            assert ours[skipped.stop :] == stock[skipped.stop :]


def test_variable_length_blocks_are_read_and_appended(tmp_path: Path) -> None:
    path = tmp_path / "batches.b2b"
    array = blosc2.BatchArray(items_per_block=2, urlpath=str(path), mode="w", cparams={"nthreads": 1})
    batches: list[list[Any]] = [["one", "two" * 50, {"three": 3}], [4.0, [5] * 100]]
    for batch in batches:
        array.append(batch)
    stored = [[array.schunk.get_vlblock(n, i) for i in range(-(-len(batch) // 2))] for n, batch in enumerate(batches)]
    del array
    with b2array.open_schunk(path, "r+") as schunk:
        assert schunk.frame.vl_blocks
        for n, blocks in enumerate(stored):
            assert list(decode.vl_blocks(Stored.whole(schunk.get_chunk(n)))) == blocks
            assert schunk.decompress_chunk(n) == b"".join(blocks)
        schunk.append_chunk(vl_chunk(stored[0][::-1], typesize=schunk.typesize))
    there = blosc2.schunk.open(str(path), mode="r")
    held = there if isinstance(there, blosc2.SChunk) else there.schunk
    assert [held.get_vlblock(2, i) for i in range(2)] == stored[0][::-1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_instrumented_chunks_in_frames_decode(layout: str, tmp_path: Path) -> None:
    records = np.random.default_rng(0).bytes(128)
    blocks = [b"".join(b"\x10\0\0\0" + records[i : i + 16] for i in range(at, at + 64, 16)) for at in (0, 64)]
    buf = make_chunk(
        blocks, typesize=4, nbytes=128, blocksize=64, flags=0x25, filters=(0, 0, 0, 0, 3, 1), blosc2_flags=0x80
    )
    path = tmp_path / "a.b2frame"
    there = blosc2.SChunk(
        chunksize=128, urlpath=str(path), mode="w", contiguous=layout == "contiguous", cparams={"typesize": 4}
    )
    there.append_chunk(buf)
    with b2array.open_schunk(path) as schunk:
        assert schunk.decompress_chunk(0) == records


# In turns: whatever python-blosc2 and b2array do to one file, both see what NumPy says.

SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


def boxes(draw: Any, shape: tuple[int, ...]) -> tuple[slice, ...]:
    low = [draw(st.integers(0, n - 1)) for n in shape]
    return tuple(slice(a, draw(st.integers(a + 1, n))) for a, n in zip(low, shape, strict=True))


@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_changes_in_turns(tmp_path: Path, data: st.DataObject) -> None:
    layout, writer = data.draw(st.sampled_from(LAYOUTS)), data.draw(st.sampled_from(sorted(WRITERS)))
    model = np.zeros(SHAPE, "<i4")
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.b2nd"
    WRITERS[writer](path, model, layout, CParams(data.draw(st.sampled_from(("lz4", "zstd")))))
    attrs: dict[str, int] = {}
    for step in range(data.draw(st.integers(1, 7))):
        side, what = data.draw(st.sampled_from(("stock", "ours"))), data.draw(st.sampled_from("wwwwzar"))
        opened: Any = blosc2.open(str(path), mode="a") if side == "stock" else b2array.open(path, "r+")
        layers = opened.schunk.vlmeta if side == "stock" else opened.attrs
        if what in "wz":
            key = boxes(data.draw, model.shape)
            piece = np.zeros_like(model[key]) if what == "z" else values("<i4", model[key].shape) + step
            opened[key] = piece
            model[key] = piece
        elif what == "a":
            name = data.draw(st.sampled_from("pqr"))
            layers[name] = attrs[name] = step
        elif side == "stock":
            shape = tuple(data.draw(st.integers(1, 30)) for _ in model.shape)
            opened.resize(shape)
            grown = np.zeros(shape, model.dtype)
            both = tuple(slice(0, min(a, b)) for a, b in zip(shape, model.shape, strict=True))
            grown[both] = model[both]
            new = tuple(slice(b, a) for a, b in zip(shape, model.shape, strict=True))
            # What growing shows was padding, which may hold anything.
            for axis, part in enumerate(new):
                if part.start < part.stop:
                    strip = tuple(part if i == axis else slice(None) for i in range(2))
                    opened[strip] = np.zeros(grown[strip].shape, "<i4")
            model = grown
        del opened, layers
        with b2array.open(path) as array:
            assert {name: array.attrs[name] for name in array.attrs} == attrs
        assert_read_everywhere(path, model, (...,))


@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_chunks_in_turns(tmp_path: Path, data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(LAYOUTS))
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.b2frame"
    if data.draw(st.booleans()):
        blosc2.SChunk(
            chunksize=400,
            urlpath=str(path),
            mode="w",
            contiguous=layout == "contiguous",
            cparams={"typesize": 4, "nthreads": 1},
        )
    else:
        b2array.create_schunk(path, chunksize=400, typesize=4, layout=layout).close()
    model: list[bytes] = []
    for step in range(data.draw(st.integers(1, 9))):
        side = data.draw(st.sampled_from(("stock", "ours")))
        verb = data.draw(
            st.sampled_from(("append", "append", "insert", "update", "delete", "reorder") if model else ("append",))
        )
        kind = data.draw(st.sampled_from(("zeros", "ramp", "noise", "constant")))
        content = {
            "zeros": bytes(400),
            "ramp": np.arange(step, step + 100, dtype="<i4").tobytes(),
            "noise": np.random.default_rng(step).bytes(400),
            "constant": np.full(100, step + 1, "<i4").tobytes(),
        }[kind]
        n = data.draw(st.integers(0, len(model) - 1)) if model else 0
        held: Any = blosc2.open(str(path), mode="a") if side == "stock" else b2array.open_schunk(path, "r+")
        if verb == "append":
            held.append_data(content)
            model.append(content)
        elif verb == "insert":
            held.insert_data(n, content, **({"copy": True} if side == "stock" else {}))
            model.insert(n, content)
        elif verb == "update":
            held.update_data(n, content, **({"copy": True} if side == "stock" else {}))
            model[n] = content
        elif verb == "delete":
            held.delete_chunk(n)
            del model[n]
        else:
            order = data.draw(st.permutations(range(len(model))))
            held.reorder_offsets(order) if side == "stock" else held.reorder(order)
            model = [model[i] for i in order]
        del held
        there = blosc2.open(str(path), mode="r")
        assert [there.decompress_chunk(i) for i in range(there.nchunks)] == model
        with b2array.open_schunk(path) as ours:
            assert [ours.decompress_chunk(i) for i in range(len(ours))] == model
            assert ours.get_slice(7, 333) == b"".join(model)[28 : 333 * 4]
            assert (ours.frame.frame_type == FrameType.SPARSE) == (layout == "sparse")


def test_special_chunks_are_offsets_for_both(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        path = tmp_path / f"{layout}.b2frame"
        there = blosc2.SChunk(
            chunksize=800, urlpath=str(path), mode="w", contiguous=layout == "contiguous", cparams={"typesize": 8}
        )
        there.fill_special(300, blosc2.SpecialValue.NAN)
        del there
        with b2array.open_schunk(path, "r+") as schunk:
            assert schunk.decompress_chunk(2) == np.full(100, np.nan).tobytes()
            schunk.append_chunk(encode.special_chunk(Special.ZEROS, 800, typesize=8))
            schunk.append_chunk(encode.special_chunk(Special.NAN, 800, typesize=8))
            schunk.append_chunk(encode.special_chunk(b"12345678", 800, typesize=8))
            assert (schunk.frame.offsets < 0).tolist() == [True] * 5 + [False]
        there = blosc2.open(str(path), mode="r")
        found = np.concatenate([np.frombuffer(there.decompress_chunk(n)) for n in range(5)])
        np.testing.assert_array_equal(found, np.repeat([np.nan, np.nan, np.nan, 0, np.nan], 100))
        assert there.decompress_chunk(5) == b"12345678" * 100


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_threads_of_stock_are_read(layout: str, tmp_path: Path) -> None:
    """Its threads store blocks in the order in which they finish them."""
    array = np.random.default_rng(0).normal(size=(200, 300)).cumsum(axis=1)
    path = tmp_path / "a.b2nd"
    blosc2.asarray(
        array,
        chunks=(100, 300),
        blocks=(3, 100),
        urlpath=str(path),
        contiguous=layout == "contiguous",
        cparams={"typesize": 8, "nthreads": 4},
    )
    assert_read_everywhere(path, array, (..., (slice(17, 160), slice(5, 250))))
