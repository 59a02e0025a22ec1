"""Arrays are created with what was asked for, and whatever is refused leaves nothing behind."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import blosc2
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array import config
from b2array.codec import encode
from b2array.codec.chunk_header import Special
from b2array.errors import LimitError, ReadOnlyError, UnsupportedError
from b2array.format import index
from b2array.grid.chunking import automatic

LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])


def offsets(array):
    return set(array._handle.frame.offsets.tolist())


# --- fill values ------------------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize(
    ("dtype", "fill", "special"),
    [
        ("f8", 0, Special.ZEROS),
        ("f8", np.nan, Special.NAN),
        ("f4", np.nan, Special.NAN),
        ("f8", -0.0, None),
        (">f8", np.nan, None),
        ("f2", np.nan, None),
        ("f8", -np.nan, None),
        ("i4", 7, None),
        ("i4", 0, Special.ZEROS),
        ("?", False, Special.ZEROS),
        ("S3", b"", Special.ZEROS),
        ("S3", b"ab", None),
        ("U2", 0, Special.ZEROS),
        ("V300", b"x" * 300, None),
        ([("x", "i4"), ("y", "f8")], (1, 2.5), None),
        ([("x", "i4"), ("y", "f8")], 0, Special.ZEROS),
        ("M8[D]", np.datetime64("NaT", "D"), None),
        ("c16", 1j, None),
    ],
)
def test_special_values_take_no_room_and_others_one_small_chunk_each(tmp_path, layout, dtype, fill, special):
    array = b2array.create(
        tmp_path / "a.b2nd", (5, 4), dtype, chunks=(2, 4), blocks=(1, 2), fill_value=fill, layout=layout
    )
    expected = np.zeros((5, 4), dtype)
    if special is not Special.ZEROS:
        expected[...] = fill
    assert array[...].tobytes() == expected.tobytes()
    assert np.asarray(array.fill_value).tobytes() == expected[0, 0].tobytes()
    if special is None:
        assert len(offsets(array)) == 3
        assert all(len(array.get_chunk(n)) == 32 + array.itemsize for n in range(3))
    else:
        assert offsets(array) == {index.special_offset(special)}
    stock = blosc2.open(str(tmp_path / "a.b2nd"))
    if np.dtype(dtype).kind != "V":
        assert stock[...].tobytes() == expected.tobytes()
    array[1, 1:3] = array[0, 1:3]
    assert b2array.open(tmp_path / "a.b2nd")[...].tobytes() == expected.tobytes()


@pytest.mark.skipif(np.finfo("g").nmant != 63, reason="extended floats use all their bytes here")
@pytest.mark.parametrize("dtype", ["g", "G"])
def test_the_unused_bytes_of_extended_floats_are_zero_in_fill_values(dtype):
    zero, one = (b2array.full(3, np.dtype(dtype).type(fill), dtype) for fill in (0, 1.5))
    assert offsets(zero) == {index.special_offset(Special.ZEROS)}
    item = np.frombuffer(one.get_chunk(0)[32:], np.uint8).reshape(-1, 16)
    assert not item[:, 10:].any()
    assert np.array_equal(one[...], np.full(3, 1.5, dtype))


@pytest.mark.skipif(np.finfo("g").nmant != 63, reason="extended floats use all their bytes here")
@pytest.mark.parametrize("dtype", [">g", ">G"])
def test_extended_floats_of_the_other_byte_order_keep_all_digits_in_fill_values(dtype):
    tenth = np.longdouble("0.1")
    array = b2array.full(3, tenth, dtype)
    item = np.frombuffer(array.get_chunk(0)[32:], np.uint8).reshape(-1, 16)
    assert not item[:, :6].any()
    assert array.fill_value == tenth
    assert np.array_equal(array[...], np.full(3, tenth, dtype))


def test_enormous_arrays_of_zeros_cost_nothing(tmp_path):
    array = b2array.zeros((10**5, 10**5), url=tmp_path / "a.b2nd")
    assert (tmp_path / "a.b2nd").stat().st_size < 1000
    assert array[-1, -3:].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: b2array.empty((2, 3), "i4"), np.zeros((2, 3), "i4")),
        (lambda: b2array.zeros(3), np.zeros(3)),
        (lambda: b2array.ones((2, 0), "u1"), np.ones((2, 0), "u1")),
        (lambda: b2array.ones(2, "V3"), np.ones(2, "V3")),
        (lambda: b2array.ones(2, "M8"), np.ones(2, "M8")),
        (lambda: b2array.ones_like(np.zeros(2, "V3")), np.ones(2, "V3")),
        (lambda: b2array.full((2, 2), 7), np.full((2, 2), 7)),
        (lambda: b2array.full(2, [7]), np.full(2, [7])),
        (lambda: b2array.full(2, "ab"), np.full(2, "ab")),
        (lambda: b2array.full((), 2.5, "f4"), np.full((), 2.5, "f4")),
        (lambda: b2array.asarray([[1, 2], [3, 4]], dtype="f2"), np.array([[1, 2], [3, 4]], "f2")),
        (lambda: b2array.asarray(5), np.asarray(5)),
        (lambda: b2array.zeros_like(np.ones((2, 3), "c8")), np.zeros((2, 3), "c8")),
        (lambda: b2array.ones_like([1.5, 2]), np.ones(2)),
        (lambda: b2array.full_like(b2array.ones(3, "i2"), 9), np.full(3, 9, "i2")),
        (lambda: b2array.empty_like(np.ones(3), dtype="i1", shape=(2, 2)), np.zeros((2, 2), "i1")),
    ],
)
def test_relatives_make_what_numpys_make(make, expected):
    found = make()
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found[...].tolist() == expected.tolist()
    assert found.mode == "r+"


def test_an_array_like_another_has_its_chunks_and_parameters():
    model = b2array.zeros((10, 10), chunks=(5, 4), blocks=(2, 2), cparams=b2array.CParams("lz4", clevel=2))
    like = b2array.ones_like(model)
    assert (like.chunks, like.blocks, like.cparams) == (model.chunks, model.blocks, model.cparams)
    other = b2array.ones_like(model, shape=(3, 3))
    assert other.chunks == (3, 3)


def test_an_array_is_returned_as_it_is_if_nothing_else_is_asked_for():
    array = b2array.zeros(3)
    assert b2array.asarray(array) is array
    assert b2array.asarray(array, dtype="f8") is array
    assert b2array.asarray(array, dtype="f4") is not array


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"shape": -1}, ValueError),
        ({"shape": (1,) * 17}, ValueError),
        ({"shape": 1.5}, TypeError),
        ({"shape": "a"}, TypeError),
        ({"dtype": object}, TypeError),
        ({"dtype": [("x", object)]}, TypeError),
        ({"dtype": "no type"}, TypeError),
        ({"chunks": (3, 3)}, ValueError),
        ({"chunks": 0}, ValueError),
        ({"blocks": -2}, ValueError),
        ({"fill_value": "text"}, ValueError),
        ({"dims": "x"}, TypeError),
        ({"dims": ["x", "y"]}, ValueError),
        ({"dims": [3]}, TypeError),
        ({"attrs": {"x": object()}}, TypeError),
        ({"attrs": {1: 2}}, TypeError),
        ({"meta": {"x" * 40: 1}}, LimitError),
        ({"meta": {"b2o": 1}}, ValueError),
        ({"meta": {3: 1}}, TypeError),
        ({"meta": {f"{n}": n for n in range(17)}}, LimitError),
        ({"layout": "dense"}, ValueError),
        ({"shape": 2**50, "chunks": 1}, LimitError),
        ({"shape": 100, "blocks": 5, "cparams": b2array.CParams(filters=("delta",))}, UnsupportedError),
        ({"cparams": b2array.CParams("lz4", use_dict=True)}, UnsupportedError),
        ({"cparams": b2array.CParams("zstd", use_dict=True)}, UnsupportedError),
        ({"dtype": "S128", "cparams": b2array.CParams(filters=("bytedelta",))}, UnsupportedError),
        ({"unknown": 1}, TypeError),
    ],
)
@LAYOUTS
def test_what_is_refused_leaves_nothing(tmp_path, layout, options, error):
    with pytest.raises(error):
        b2array.create(tmp_path / "a.b2nd", **{"shape": 10, "layout": layout} | options)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_without_interop_everything_that_can_be_read_here_is_written(tmp_path):
    values = np.arange(1000)
    params = b2array.CParams(filters=("delta", "shuffle"))
    array = b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=500, blocks=100, cparams=params, interop=False)
    assert (array[...] == values).all()
    assert array[777] == 777


@LAYOUTS
@pytest.mark.parametrize("when", ["encode", "put"])
def test_a_value_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch, layout, when):
    from b2array.commit.staging import Staging

    def failing(*_, **__):
        raise MemoryError

    if when == "encode":
        monkeypatch.setattr(encode, "encode", failing)
    else:
        monkeypatch.setattr(Staging, "put", failing)
    with pytest.raises(MemoryError):
        b2array.asarray(np.arange(100), url=tmp_path / "a.b2nd", chunks=10, blocks=5, layout=layout)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


# --- opening ----------------------------------------------------------------------------------------------------------


def test_bytes_are_opened_for_reading_without_a_copy():
    raw = b2array.asarray(np.arange(5), attrs={"a": 1}).to_bytes()
    array = b2array.from_bytes(raw)
    assert array[...].tolist() == list(range(5))
    assert array._handle.store._objects[""].data is raw
    with pytest.raises(ReadOnlyError):
        array[0] = 1
    for kind in (bytearray, memoryview):
        assert b2array.from_bytes(kind(raw))[3] == 3


@pytest.mark.parametrize("given", ["text", 3, None, [b"b2"], io.BytesIO(b"b2")])
def test_only_bytes_are_opened_as_bytes(given):
    with pytest.raises(TypeError, match="bytes-like"):
        b2array.from_bytes(given)


def test_bytes_that_do_not_lie_side_by_side_are_opened():
    raw = b2array.asarray(np.arange(5)).to_bytes()
    spread = np.zeros(2 * len(raw), np.uint8)
    spread[::2] = np.frombuffer(raw, np.uint8)
    assert b2array.from_bytes(spread[::2])[...].tolist() == list(range(5))
    assert b2array.from_bytes(memoryview(spread)[::2])[...].tolist() == list(range(5))


def test_integers_of_numpy_are_extents():
    assert b2array.zeros(np.array(5)).shape == b2array.zeros(np.int8(5)).shape == (5,)
    array = b2array.zeros(np.array([6, 5]), chunks=[np.int16(3), np.array(5)], blocks=np.array([3, 1]))
    assert (array.shape, array.chunks, array.blocks) == ((6, 5), (3, 5), (3, 1))
    array.resize(np.array([2, 5]))
    assert array.shape == (2, 5)
    with pytest.raises(TypeError, match="integer"):
        b2array.zeros(np.array(5.0))


@pytest.mark.parametrize("given", [[("a", 1)], "ab", 3, {1: 2}])
def test_attributes_and_metalayers_are_mappings_from_names(given):
    for make in (
        lambda: b2array.zeros(3, attrs=given),
        lambda: b2array.zeros(3, meta=given),
        lambda: b2array.create_schunk(chunksize=8, meta=given),
    ):
        with pytest.raises(TypeError, match="attributes and metalayers are"):
            make()


@pytest.mark.parametrize("open_", [b2array.open, b2array.open_schunk])
def test_a_frame_does_not_begin_before_its_file(tmp_path, open_):
    b2array.save(tmp_path / "a.b2nd", np.arange(5))
    with pytest.raises(ValueError, match="at least 0, not -1"):
        open_(tmp_path / "a.b2nd", offset=-1)
    with pytest.raises(TypeError):
        open_(tmp_path / "a.b2nd", offset=1.5)


@pytest.mark.parametrize("offset", [1, 77])
def test_an_array_is_read_inside_a_larger_file(tmp_path, offset):
    values = np.random.default_rng(0).random((20, 30))
    raw = b2array.asarray(values, chunks=(7, 7), blocks=(3, 3), attrs={"a": 1}).to_bytes()
    (tmp_path / "archive").write_bytes(b"\0" * offset + raw + b"behind")
    array = b2array.open(tmp_path / "archive", offset=offset)
    assert (array[...] == values).all()
    assert (array[3:9, ::5] == values[3:9, ::5]).all()
    assert dict(array.attrs) == {"a": 1}
    assert (blosc2.open(str(tmp_path / "archive"), offset=offset)[...] == values).all()
    with pytest.raises(ReadOnlyError, match="larger file"):
        b2array.open(tmp_path / "archive", "r+", offset=offset)


def test_saving_replaces_and_loading_reads_everything(tmp_path):
    for values in (np.arange(5), np.ones((3, 4), "f4"), np.zeros((0, 2))):
        b2array.save(tmp_path / "a.b2nd", values)
        found = b2array.load(tmp_path / "a.b2nd")
        assert isinstance(found, np.ndarray)
        assert (found.dtype, found.tolist()) == (values.dtype, values.tolist())
    with pytest.raises(FileExistsError):
        b2array.save(tmp_path / "a.b2nd", values, overwrite=False)


def test_a_super_chunk_is_no_array_and_says_so(tmp_path):
    b2array.create_schunk(tmp_path / "a", chunksize=8)
    assert isinstance(b2array.open(tmp_path / "a"), b2array.SChunk)
    with pytest.raises(TypeError, match="open_schunk"):
        b2array.load(tmp_path / "a")


def test_an_index_larger_than_the_limit_is_refused_before_memory_is_taken():
    with config.using(limits=config.Limits(index_nbytes=80)), pytest.raises(LimitError, match="index holds 10"):
        b2array.zeros(11, chunks=1)


@LAYOUTS
@given(st.data())
@settings(max_examples=examples(25), deadline=None)
def test_any_array_comes_back_from_both_libraries(tmp_path_factory, layout, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), max_size=3)))
    dtype = data.draw(st.sampled_from(["u1", "i2", "f4", "f8", "c16", "S3"]))
    values = np.frombuffer(np.random.default_rng(1).bytes(3000 * 16), "u1")[
        : int(np.prod(shape)) * np.dtype(dtype).itemsize
    ]
    values = np.nan_to_num(values.view(dtype)).reshape(shape) if dtype[0] in "fc" else values.view(dtype).reshape(shape)
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    blocks = tuple(data.draw(st.integers(1, n)) for n in chunks)
    url = tmp_path_factory.mktemp("a") / "a.b2nd"
    b2array.asarray(values, url=url, chunks=chunks, blocks=blocks, layout=layout)
    for found in (b2array.load(url), blosc2.open(str(url))[...]):
        assert np.asarray(found).tobytes() == values.tobytes()


def test_a_masked_item_is_no_fill_value():
    item = np.ma.array([(1, 2.0)], mask=[(False, True)], dtype=[("x", "i4"), ("y", "f8")])[0]
    for make in (lambda: b2array.full(3, item), lambda: b2array.create(None, 3, item.dtype, fill_value=item)):
        with pytest.raises(TypeError, match="masked"):
            make()


@pytest.mark.parametrize("name", ["chunks", "blocks"])
def test_true_lets_chunks_and_blocks_be_chosen_as_in_h5py(name):
    usual = b2array.zeros((300, 300))
    for wanted in (True, (True, True), [True, "auto"], {0: True}):
        found = b2array.zeros((300, 300), **{name: wanted})
        if not isinstance(wanted, dict):
            assert (found.chunks, found.blocks) == (usual.chunks, usual.blocks)
        assert getattr(found, name)[0] > 1
    with pytest.raises(ValueError, match=f"{name} cannot be False"):
        b2array.zeros((300, 300), **{name: False})


@pytest.mark.parametrize(
    "dtype", [str, bytes, "S", "U", "V", "S0", np.void, [("a", "i4"), ("b", "S")], [("a", [("b", "U")])]]
)
def test_types_without_a_size_are_refused_with_what_to_write(dtype):
    for make in (b2array.create, b2array.zeros, b2array.empty):
        with pytest.raises(TypeError, match="such as 'U20' for text"):
            make(*([None] * (make is b2array.create)), 3, dtype)


def test_values_give_types_their_size():
    for made in (
        b2array.asarray(["a", "three"], dtype=str),
        b2array.full(3, "three", str),
        b2array.asarray([1.5]).astype(str).copy(),
    ):
        assert made.dtype.itemsize >= 20
    assert b2array.full(3, "three", "U")[...].tolist() == ["three"] * 3
    assert b2array.full(2, b"abc", "S").dtype == "S3"


@pytest.mark.parametrize("url", [None, "a.b2nd"])
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array(["a", "é🙂", "long " * 9], np.dtypes.StringDType()), "T"),
        (np.array([["a", "bcd"], ["", "e\0"]], object), "T"),
        (np.array(["a", None], object), np.dtypes.StringDType(na_object=None)),
        (np.array([b"a", b"bcd"], object), "S3"),
        (np.array([], np.dtypes.StringDType()), "T"),
        (np.array("scalar", np.dtypes.StringDType()), "T"),
        (np.array(["of one", "size"]), "U6"),
    ],
    ids=["StringDType", "objects", "missing", "bytes", "nothing", "scalar", "fixed"],
)
def test_text_of_any_length_stays_text_of_any_length(values, dtype, url, tmp_path):
    a = b2array.asarray(values, url=url and tmp_path / url)
    assert a.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(a[...].astype(object), values.astype(object))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.array(["a", None, float("nan")], object), "expected one mark for missing items, found None and nan"),
        (np.array(["a", np.datetime64("NaT", "s")], object), "found .*NaT.*: text has no missing items"),
        (np.array([b"a", None], object), "found None: text has no missing items"),
        (np.array(["a", 5], object), "expected text, found int 5"),
        (np.array(["a", b"b"], object), "expected text, found bytes"),
    ],
)
def test_what_is_no_text_is_refused_with_what_to_do(values, says):
    with pytest.raises(TypeError, match=says):
        b2array.asarray(values)
    with pytest.raises(ValueError, match="NUL"):
        b2array.asarray(np.array([b"a\0"], object))


def test_create_without_a_url_makes_an_array_in_memory():
    a = b2array.create(shape=(3, 4), dtype="i2", fill_value=7)
    assert (a.url, a.mode, a[1, 2]) == ("memory", "r+", 7)


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_dims_can_be_set_later_in_one_commit(tmp_path, layout):
    a = b2array.create(tmp_path / "a.b2nd", (2, 3), layout=layout)
    other, before = b2array.open(tmp_path / "a.b2nd"), a.generation
    a.dims = ["x", None]
    assert (a.dims, other.dims, a.generation != before) == (("x", None), None, True)
    other.refresh()
    assert other.dims == b2array.open(tmp_path / "a.b2nd").dims == ("x", None)
    with a.transaction():
        a.dims = ("p", "q")
        a[0] = 1
    assert b2array.open(tmp_path / "a.b2nd").dims == ("p", "q")
    a.dims = None
    assert b2array.open(tmp_path / "a.b2nd").dims is None
    for wrong, error in ((("x",), ValueError), ("xy", TypeError), ((1, 2), TypeError)):
        with pytest.raises(error, match="dims must"):
            a.dims = wrong
    with pytest.raises(b2array.errors.ReadOnlyError):
        other.dims = ("x", "y")


def test_the_shape_may_come_first(tmp_path):
    for array in (
        b2array.create((3, 4), "i2", url=tmp_path / "a.b2nd"),
        b2array.create(tmp_path / "b.b2nd", (3, 4), "i2"),
        b2array.create((3, 4), "i2"),
        b2array.create(shape=(3, 4), dtype="i2"),
    ):
        assert (array.shape, array.dtype) == ((3, 4), np.int16)
    assert b2array.create(3).shape == b2array.create(None, 3).shape == (3,)
    assert b2array.open(tmp_path / "a.b2nd").shape == (3, 4)
    with pytest.raises(TypeError, match="needs a shape"):
        b2array.create(tmp_path / "c.b2nd")
    with pytest.raises(TypeError, match="positional arguments"):
        b2array.create((3, 4), "i2", 7)


WORDS = pytest.mark.parametrize("access", ["balanced", "planes", "series", "boxes"])


@WORDS
def test_a_word_for_the_access_chooses_shapes_for_all_that_makes_arrays(access):
    shape = (120, 100, 90)
    chosen = automatic(shape, 4, access=access)
    x = np.ones(shape, "f4")
    thin = b2array.asarray(x, access="planes")
    arrays = [
        b2array.create(shape=shape, dtype="f4", access=access),
        b2array.zeros(shape, "f4", access=access),
        b2array.asarray(x, access=access),
        b2array.zeros_like(thin, access=access),
        b2array.copy(thin, access=access),
        thin.copy(access=access),
        thin.view[:].copy(access=access),
        b2array.from_dask(da.ones(shape, dtype="f4", chunks=-1), access=access, scheduler="synchronous"),
    ]
    for a in arrays[:-1]:
        assert (a.chunks, a.blocks) == chosen
    assert arrays[-1].chunks == chosen[0]


def test_arrays_are_balanced_but_those_that_grow_are_thin():
    assert b2array.zeros((365, 180, 360), "f4").chunks == automatic((365, 180, 360), 4, access="balanced")[0]
    grows = b2array.zeros((0, 180, 360), "f4")
    assert (grows.chunks, grows.blocks) == automatic((0, 180, 360), 4, access="planes")
    assert grows.blocks[0] == 1
    grows.append(np.ones((3, 180, 360), "f4"))
    assert grows.blocks[0] == 1
    steps = b2array.from_blocks(np.ones((1, 180, 360), "f4") for _ in range(3))
    assert steps.blocks[0] == 1
    assert b2array.zeros((0, 180, 360), "f4", access="series").blocks[0] > 100


def test_given_chunks_go_before_the_word():
    a = b2array.zeros((120, 100, 90), "f4", chunks=(7, 100, 90), access="series")
    assert a.chunks == (7, 100, 90)


def test_an_unknown_word_for_the_access_is_refused(tmp_path):
    for make in (b2array.zeros, b2array.asarray):
        with pytest.raises(ValueError, match=r"access must be one of 'balanced', 'planes', .* not 'rows'"):
            make((3, 4), url=tmp_path / "a.b2nd", access="rows")
    assert not (tmp_path / "a.b2nd").exists()


def test_a_copy_names_the_options_of_both_sides(tmp_path):
    from fsspec.implementations.memory import MemoryFileSystem

    fs = MemoryFileSystem()
    b2array.asarray([1, 2], url="/options/a.b2nd", fs=fs)
    b2array.copy("/options/a.b2nd", tmp_path / "b.b2nd", src_fs=fs)
    b2array.copy(tmp_path / "b.b2nd", "/options/c.b2nd", dst_fs=fs)
    assert b2array.load("/options/c.b2nd", fs=fs).tolist() == [1, 2]
    for word in ("storage_options", "fs"):
        with pytest.raises(TypeError, match="src_options= or dst_options="):
            b2array.copy(tmp_path / "b.b2nd", **{word: None})
    with pytest.raises(TypeError, match="this source is open"):
        b2array.copy(b2array.open(tmp_path / "b.b2nd"), src_options={})


# --- masked items -----------------------------------------------------------------------------------------------------


def _mask(values):
    return np.ma.masked_equal(values, -999.0)


PLAIN = np.array([1.0, -999.0, 3.0, -999.0])


def _appended(values):
    a = b2array.zeros((0, 4))
    with a.appender() as out:
        out.append(values)


def _assigned(values):
    a = b2array.zeros((2, 4))
    a[...] = values


@pytest.mark.parametrize(
    "store",
    [
        lambda: b2array.map(_mask, b2array.asarray(PLAIN)),
        lambda: b2array.map(_mask, b2array.asarray(PLAIN), dtype="f8"),
        lambda: b2array.map(lambda x: [*_mask(x)], b2array.asarray(PLAIN), dtype="f8"),
        lambda: b2array.map(_mask, PLAIN, dtype="f8", executor=ThreadPoolExecutor(1)),
        lambda: b2array.downsample(PLAIN, 2, lambda x, axis: _mask(x.min(axis))),
        lambda: b2array.downsample([_mask(PLAIN)] * 2, 2, "max"),
        lambda: b2array.asarray([_mask(PLAIN)] * 2),
        lambda: b2array.asarray([[PLAIN], (_mask(PLAIN),)]),
        lambda: b2array.asarray([1.0, np.ma.masked]),
        lambda: b2array.open_group("memory://masked", "w").update({"x": [_mask(PLAIN)]}),
        lambda: b2array.from_blocks([PLAIN[None], [_mask(PLAIN)]]),
        lambda: b2array.concatenate([[PLAIN], [_mask(PLAIN)]]),
        lambda: b2array.zeros((0, 4)).append([_mask(PLAIN)]),
        lambda: b2array.zeros((0, 4)).insert([_mask(PLAIN)], 0),
        lambda: _appended(_mask(PLAIN)),
        lambda: _appended([_mask(PLAIN)]),
        lambda: _assigned([PLAIN, _mask(PLAIN)]),
        lambda: b2array.zeros(3, attrs={"mask": _mask(PLAIN)}),
        lambda: b2array.zeros(3, attrs={"mask": [_mask(PLAIN)]}),
    ],
)
def test_masked_items_are_refused_wherever_they_come_from(store):
    with pytest.raises(TypeError, match="masked"):
        store()


def test_masked_arrays_without_a_masked_item_are_stored():
    plain = _mask(PLAIN[::2])
    assert b2array.asarray([plain, (1, 2)])[...].tolist() == [[1, 3], [1, 2]]
    assert b2array.map(_mask, PLAIN[::2])[...].tolist() == [1, 3]
    assert b2array.downsample(PLAIN[::2], 2, lambda x, axis: _mask(x.max(axis)))[...].tolist() == [3]
