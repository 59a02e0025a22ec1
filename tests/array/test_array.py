"""An `NDArray` does what a NumPy array of its items does, in chunks and by commits."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import threading
import warnings

import numpy as np
import pytest
from arrays import (
    ALIGNED,
    DTYPES,
    NESTED,
    RECORD,
    SPARSE_FIELDS,
    arrays,
    assigned,
    check_writing,
    is_one_of,
    items,
    outcome,
    same,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from keys import keys, orthogonal_keys
from lengths import examples

import b2array
from b2array import config
from b2array.array.schunk import SChunk
from b2array.commit import write
from b2array.errors import (
    B2ArrayError,
    ConflictError,
    FormatError,
    ReadOnlyError,
    UnsupportedError,
)


@pytest.mark.parametrize(
    "key",
    [
        (slice(None), np.array([False]), np.array([False, True, True])),
        (slice(None), np.array([5]), np.array([0])),
        (slice(None), 9, np.array([0])),
        (slice(None), np.array([False, True])),
        (9,),
    ],
    ids=repr,
)
def test_of_a_wrong_key_and_a_wrong_value_the_one_is_told_that_numpy_tells(key):
    values = np.zeros((4, 1, 3), "i1")
    check_writing(b2array.asarray(values), values, key, 33375)


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), arrays())
def test_orthogonal_indexing_reads_and_writes_along_one_axis_after_the_other(data, pair):
    array, values = pair
    key = data.draw(orthogonal_keys(values.shape))
    # The same items by NumPy: the positions of all, indexed axis by axis.
    numbers, axis = np.arange(values.size).reshape(values.shape), 0
    try:
        for entry in key:
            numbers = numbers[(slice(None),) * axis + (entry,)]
            axis += np.ndim(entry) if not isinstance(entry, slice) else 1
    except (IndexError, ValueError):
        with pytest.raises((IndexError, ValueError)):
            array.oindex[key]
        return
    assert same(np.asarray(array.oindex[key]), np.asarray(values.ravel()[numbers]))
    assume(np.unique(numbers).size == numbers.size)
    value = items(values.dtype, numbers.shape, 5)
    array.oindex[key] = value[()] if not value.ndim else value
    expected = values.ravel()
    expected[numbers] = value
    assert same(array[...].ravel(), expected)


def test_indexing_by_points_puts_their_dimensions_first():
    values = np.arange(5 * 6 * 7).reshape(5, 6, 7)
    array = b2array.asarray(values, chunks=(2, 4, 3), blocks=(1, 2, 2))
    rows, columns = np.array([[0, 4], [2, 0]]), np.array([6, 1])
    assert same(array.vindex[rows, :, columns], values[rows, :, columns])
    assert same(array.vindex[:, [1, 5]], np.moveaxis(values[:, [1, 5]], 1, 0))
    assert same(array.vindex[values % 2 == 0], values[values % 2 == 0])
    array.vindex[:, [1, 5]] = [[[7]], [[8]]]
    values[:, [1, 5]] = [[7], [8]]
    assert same(array[...], values)


def test_chunk_view_reads_and_writes_whole_chunks():
    values = np.arange(7 * 5).reshape(7, 5)
    array = b2array.asarray(values, chunks=(3, 2), blocks=(2, 2))
    assert same(array.chunk_view[0, 0], values[:3, :2])
    assert same(array.chunk_view[-1, -1], values[6:, 4:])
    assert same(array.chunk_view[np.int8(1)], values[3:6])
    assert same(array.chunk_view[..., 1:], values[:, 2:])
    assert same(array.chunk_view[1:1], values[:0])
    array.chunk_view[2, 1:] = [[1, 2, 3]]
    values[6:, 2:] = [1, 2, 3]
    assert same(array[...], values)
    with pytest.raises(IndexError, match="index 3 is out of bounds for axis 0 with size 3"):
        array.chunk_view[3, 0]
    for key in (None, [0], True, slice(None, None, 2), "x", 1.0):
        with pytest.raises(IndexError, match="select chunks"):
            array.chunk_view[key]


# Fields.


@pytest.mark.parametrize("dtype", [RECORD, ALIGNED, SPARSE_FIELDS, NESTED], ids=str)
def test_fields_are_read_and_written_alone(dtype):
    values = items(dtype, (5, 3))
    array = b2array.asarray(values, chunks=(2, 3), blocks=(1, 2))
    for n, name in enumerate(dtype.names):
        assert same(array[name], np.array(values[name]))
        new = items(dtype, (5, 3), 50 + n)[name]
        array[name] = new
        values[name] = new
        assert same(array[...], values)
        array[name] = new[2, 1]
        values[name] = new[2, 1]
        assert same(array[...], values)
    names = list(dtype.names[::-1][:2])
    assert same(array[names], values[names])
    array[names] = values[names][::-1]
    values[names] = values[names][::-1].copy()
    assert same(array[...], values)


def test_a_field_of_arrays_has_their_dimensions():
    array = b2array.zeros(4, [("v", "i2", (2, 3)), ("n", "i4")], chunks=3, blocks=2)
    array["v"] = [[1], [2]]
    assert array["v"].shape == (4, 2, 3)
    assert array["v"][3].tolist() == [[1] * 3, [2] * 3]
    with pytest.raises(ValueError, match=r"could not broadcast input array from shape \(4,\) into shape \(4,2,3\)"):
        array["v"] = np.zeros(4)


def test_names_of_fields_are_refused_as_numpy_refuses_them():
    array, values = b2array.zeros(2, RECORD), np.zeros(2, RECORD)
    for name in ("z", ["x", "z"], ["x", "x"]):
        for target in (array, values):
            with pytest.raises((ValueError, KeyError, IndexError)):
                target[name]
            with pytest.raises((ValueError, KeyError, IndexError)):
                target[name] = 0


@settings(max_examples=examples(75), deadline=None)
@given(st.data(), arrays([RECORD, SPARSE_FIELDS, NESTED]))
def test_a_key_with_names_selects_what_numpy_selects_with_one_key_after_the_other(data, pair):
    array, values = pair
    for _ in range(4):
        rest = data.draw(keys(values.shape))
        rest = (rest or (...,)) if isinstance(rest, tuple) else (rest,)
        if any(isinstance(entry, str) for entry in rest):
            continue
        names = data.draw(st.sampled_from([*values.dtype.names, list(values.dtype.names[::-1])]))
        at = data.draw(st.integers(0, len(rest)))
        key = (*rest[:at], names, *rest[at:])
        found, expected = outcome(lambda: array[key]), outcome(lambda: values[rest][names])  # noqa: B023
        assert same(found, np.array(expected) if isinstance(expected, np.ndarray) else expected)
        value = data.draw(assigned(() if isinstance(expected, type) else expected.shape, values[names].dtype))
        old = values.copy()
        with warnings.catch_warnings(action="ignore"):
            wanted = outcome(lambda: values[names].__setitem__(rest, value))  # noqa: B023
            done = outcome(lambda: array.__setitem__(key, value))  # noqa: B023
            assert is_one_of(done, wanted, expected, value, values[names].dtype)
        if wanted is not None:
            values[...] = old  # NumPy may have stored a part
        assert same(array[...], values)


def test_names_may_stand_one_by_one_and_a_field_of_arrays_among_them():
    array = b2array.zeros((4, 2), [("v", "i2", (2, 3)), ("n", "i4"), ("m", "f8")], chunks=(3, 2), blocks=(2, 1))
    array["v", 1:3, 0] = [[1, 2, 3], [4, 5, 6]]
    assert array[2, "v", 0].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert array["v", 0].tolist() == [[[0] * 3] * 2] * 2
    array["n", "m", 3] = (7, 8.5)
    assert array[3:, "n", "m"].tolist() == [[(7, 8.5)] * 2]
    assert array.oindex["n", [3, 0], [1]].tolist() == [[7], [0]]
    assert array.vindex["n", [3, 0], [1, 1]].tolist() == [7, 0]
    for key in (("z", 0), (0, "n", "n"), (["n", "z"], 0), ("n", 9), ("n", 0, 0, 0), (["n", 1], 0)):
        with pytest.raises((ValueError, KeyError, IndexError)):
            array[key]
        with pytest.raises((ValueError, KeyError, IndexError)):
            array[key] = 0


@pytest.mark.parametrize("key", ["x", ["x", "y"], ("x", slice(0, 3)), (slice(0, 3), ["y", "x"])])
def test_no_assignment_is_lost_in_what_was_read_of_fields(key):
    array = b2array.zeros(5, RECORD)
    with pytest.raises(ValueError, match="read-only"):
        array[key][1:3] = 1
    with pytest.raises(ValueError, match="read-only"):
        array["x"] += 1
    assert array[...].tolist() == [(0, 0.0)] * 5


def test_a_field_that_is_read_does_not_keep_the_others():
    array = b2array.zeros(3, RECORD)
    assert array["x"].base is None


def test_fields_written_by_two_handles_are_both_there(tmp_path):
    b2array.zeros(6, RECORD, url=tmp_path / "a.b2nd", chunks=2, blocks=1)
    first, second = (b2array.open(tmp_path / "a.b2nd", "r+") for _ in range(2))
    first["x"] = 1
    second["y"] = 2.0
    first.refresh()
    assert first[...].tolist() == [(1, 2.0)] * 6


# Values.

VALUES = [
    1,
    True,
    2**40,
    -1,
    1.5,
    math.nan,
    math.inf,
    1j,
    "abc",
    "12",
    b"7",
    None,
    np.float64(3.7),
    np.float64("nan"),
    np.int8(-1),
    np.array(5),
    np.array([1]),
    [1],
    [1, 2, 3],
    [[1, 2, 3]],
    [[1], [2]],
    ["1", "2", "3"],
    [2**40, 1, 1],
    np.arange(3) * 2.5,
    np.array(["1", "2", "3"]),
    np.array(["a", "b", "c"]),
    np.array([1, "2", 3.5], object),
    np.datetime64("2020-01-01"),
    np.array(["2020-01-01"] * 3, "M8[D]"),
    "2020-01-01",
    np.array([1, 2, 3], "m8[s]"),
    (1, 2.5),
    [(1, 2.5)] * 3,
    np.array([(1, 2.5)] * 3, "i8,f4"),
    {},
    range(3),
    memoryview(b"abc"),
    [],
    np.zeros(0),
    np.zeros((1, 1, 3)),
    "nan",
    object(),
    [[1, 2], [3]],
    np.complex64(1 + 2j),
    np.arange(3) + 1j,
    [np.array(1), 2, 3],
    10**30,
    bytearray(b"xy"),
]


@pytest.mark.parametrize("key", [(slice(None),), (0,), ([0, 2, 1],), (np.ones(3, bool),), (slice(0, 0),)], ids=repr)
@pytest.mark.parametrize("dtype", ["u1", ">i2", "f8", "?", "c16", "S3", "U2", "M8[s]", RECORD], ids=str)
def test_values_are_converted_as_numpy_converts_them(dtype, key, sampled):
    for value in sampled(VALUES, 8):
        values = np.zeros(3, dtype)
        array = b2array.asarray(values, chunks=2, blocks=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = outcome(lambda: values.__setitem__(key, value))  # noqa: B023
            assert outcome(lambda: array.__setitem__(key, value)) is expected, value  # noqa: B023
        # What NumPy stored before it failed is not stored here.
        assert same(array[...], values if expected is None else np.zeros(3, dtype)), value


def test_a_lossy_conversion_warns_as_in_numpy():
    with pytest.warns(np.exceptions.ComplexWarning):
        b2array.zeros(3)[:] = np.ones(3) + 1j
    with pytest.warns(RuntimeWarning, match="invalid value"):
        b2array.zeros(3, "i4")[:] = np.full(3, np.nan)


def test_masked_items_are_refused():
    array = b2array.zeros(3)
    for value in (np.ma.array([1, 2, 3], mask=[0, 1, 0]), np.ma.masked):
        with pytest.raises(TypeError, match="filled"):
            array[...] = value
    array[...] = np.ma.array([1, 2, 3])
    assert array[...].tolist() == [1, 2, 3]


def test_objects_with_an_array_interface_are_values():
    class Wrapped:
        def __array__(self, dtype=None, copy=None):
            return np.arange(6, dtype=dtype).reshape(2, 3)

    array = b2array.zeros((2, 3), "i2", chunks=(1, 2), blocks=(1, 1))
    array[...] = Wrapped()
    assert array[...].tolist() == [[0, 1, 2], [3, 4, 5]]
    array[:, 1:] = b2array.asarray(np.array([[7, 8]]))
    assert array[...].tolist() == [[0, 7, 8], [3, 7, 8]]
    with pytest.raises(ValueError, match=r"from shape \(2,3\) into shape \(3,\)"):
        array[0] = array


def test_an_array_can_be_assigned_to_a_part_of_itself():
    array = b2array.asarray(np.arange(10), chunks=3, blocks=2)
    array[1:] = array[:-1]
    assert array[...].tolist() == [0, *range(9)]
    array[...] = b2array.asarray(array[::-1])
    assert array[...].tolist() == [*range(8, -1, -1), 0]


@pytest.mark.parametrize("dtype", ["f4", ">f4", "f8", ">f8", "c16"])
def test_no_bit_of_a_float_is_lost(dtype):
    dtype = np.dtype(dtype)
    size = dtype.itemsize if dtype.kind == "f" else dtype.itemsize // 2
    raw = [
        b"\x00" * size,
        b"\x80" + b"\x00" * (size - 1),
        b"\x7f\xf0" + b"\x00" * (size - 2),
        b"\x7f\xf8" + b"\x00" * (size - 2),
    ]
    raw += [
        b"\x7f\xf8" + b"\x00" * (size - 3) + b"\x2a",
        b"\xff\xff" + b"\x01" * (size - 2),
        b"\x7f\xc0" + b"\x00" * (size - 2),
    ]
    raw += [pattern[::-1] for pattern in raw]
    for pattern in raw:
        item = np.frombuffer(pattern * (dtype.itemsize // size), dtype)[0]
        whole = b2array.full(40, item, dtype, chunks=20, blocks=10)
        assert whole[...].tobytes() == pattern * (40 * dtype.itemsize // size)
        assert np.array(whole.fill_value, dtype).tobytes() == pattern * (dtype.itemsize // size)
        written = b2array.zeros(40, dtype, chunks=20, blocks=10)
        written[:25] = item
        assert written[...].tobytes() == pattern * (25 * dtype.itemsize // size) + bytes(15 * dtype.itemsize)


def test_chunks_of_one_item_cost_nothing_and_minus_zero_is_an_item():
    array = b2array.create(None, 4000, "f8", chunks=1000, blocks=100, cparams=b2array.CParams("lz4"), layout="sparse")
    array[:1000] = 0.0
    assert (array._handle.frame.offsets < 0).all()
    array[1000:2000] = -0.0
    array[2000:3000] = 2.5
    array[3000:] = np.arange(1000)
    assert [len(array.get_chunk(n)) for n in range(3)] == [32, 40, 40]
    assert np.signbit(array[999:1001]).tolist() == [False, True]
    array[...] = 0
    assert (array._handle.frame.offsets < 0).all()


# Types and shapes.


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_is_stored_and_comes_back(tmp_path, dtype, layout):
    values = items(dtype, (7, 5))
    b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=(3, 4), blocks=(2, 3), layout=layout)
    array = b2array.open(tmp_path / "a.b2nd", "r+")
    assert array.dtype == dtype
    assert same(array[...], values)
    assert same(array[3, 2], values[3, 2])
    array[1:6, ::2] = values[:5, ::2]
    values[1:6, ::2] = values[:5, ::2].copy()
    array.refresh()
    assert same(array[...], values)


def test_the_bytes_between_fields_are_not_what_the_memory_held_before():
    values = np.zeros(1000, ALIGNED)
    values["b"] = np.arange(1000)
    array = b2array.zeros(1000, ALIGNED, chunks=1000, blocks=1000)
    array[...] = values.astype([(name, ALIGNED[name]) for name in ALIGNED.names])
    gap = np.frombuffer(SChunk(array._handle).decompress_chunk(0), np.uint8).reshape(1000, -1)[:, 1:8]
    assert not gap.any()


@pytest.mark.parametrize(
    "ndim", [n if n in {0, 1, 2, 3, 4, 7, 16} else pytest.param(n, marks=pytest.mark.slow) for n in range(17)]
)
def test_up_to_sixteen_dimensions(ndim):
    shape = tuple([3, 2, 1, 2] * 4)[:ndim]
    values = items(np.dtype("i4"), shape)
    array = b2array.asarray(values, chunks=tuple([2, 2, 1, 1] * 4)[:ndim], blocks=tuple([2, 1, 1, 1] * 4)[:ndim])
    assert same(array[...], values)
    key = (..., *[-1, slice(None, None, -1), slice(0, 1), [0]][: min(ndim, 4)])
    assert same(array[key], values[key])
    array[key] = 9
    values[key] = 9
    assert same(array[...], values)
    assert same(np.asarray(b2array.from_bytes(array.to_bytes())), values)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (0, 0, 2)])
def test_arrays_without_items(tmp_path, shape):
    array = b2array.zeros(shape, "i4", url=tmp_path / "a.b2nd")
    assert array.nchunks == array.size == array.nbytes == 0
    assert array[...].shape == shape
    array[...] = 5
    array[...] = np.zeros(shape)
    with pytest.raises(ValueError, match="broadcast"):
        array[...] = np.zeros(7)
    with pytest.raises(TypeError):
        array[...] = np.zeros(shape, RECORD)
    assert b2array.open(tmp_path / "a.b2nd")[...].shape == shape
    assert list(array) == [] if shape[0] == 0 else len(list(array)) == shape[0]


def test_items_that_are_arrays_are_further_dimensions(tmp_path):
    array = b2array.zeros(3, ("f4", (2,)), url=tmp_path / "a.b2nd", chunks=2, blocks=1)
    assert (array.shape, array.dtype, array.chunks, array.blocks) == ((3, 2), np.dtype("f4"), (2, 2), (1, 2))


@pytest.mark.parametrize("key", [0, ..., (), (0, 0), "x", slice(0, 1)])
def test_an_array_of_no_dimensions_is_read_and_written_as_in_numpy(key):
    values = np.array(5)
    array = b2array.asarray(values)
    assert same(outcome(lambda: array[key]), outcome(lambda: values[key]))
    assert outcome(lambda: array.__setitem__(key, 7)) is outcome(lambda: values.__setitem__(key, 7))
    assert same(array[()], values[()])


def test_padding_keeps_the_fill_value_in_partial_writes():
    array = b2array.create(None, (5, 5), "i4", chunks=(4, 4), blocks=(3, 3), fill_value=7)
    array[4, 4] = 1
    expected = np.full((5, 5), 7)
    expected[4, 4] = 1
    assert array[...].tolist() == expected.tolist()
    array[0] = 2
    expected[0] = 2
    assert array[...].tolist() == expected.tolist()


# Commits.


def test_every_assignment_is_a_commit_and_an_empty_one_is_none(tmp_path):
    array = b2array.zeros((4, 6), url=tmp_path / "a.b2nd", chunks=(2, 3), blocks=(1, 3))
    states = [array.generation]
    for key in ((1, 1), slice(None), [0, 3]):
        array[key] = len(states)
        states.append(array.generation)
    assert len(set(states)) == 4
    content = (tmp_path / "a.b2nd").read_bytes()
    for key in (slice(0, 0), [], np.zeros((4, 6), bool), (0, slice(3, 3))):
        array[key] = 5
    for key, value in ((slice(0, 0), np.zeros(7)), (9, 0), ([], np.zeros((2, 3)))):
        with pytest.raises((ValueError, IndexError)):
            array[key] = value
    assert array.generation == states[-1]
    assert (tmp_path / "a.b2nd").read_bytes() == content


def test_an_empty_selection_is_read_without_the_file(tmp_path):
    b2array.asarray(np.arange(6), url=tmp_path / "a.b2nd")
    with b2array.open(tmp_path / "a.b2nd") as array:
        array.close()
        (tmp_path / "a.b2nd").unlink()
        assert array[0:0].shape == (0,)
        assert array[[]].shape == (0,)
        with pytest.raises(ConflictError, match="was deleted or moved since it was opened"):
            array[0:1]


def test_a_failed_assignment_changes_nothing(tmp_path):
    array = b2array.asarray(np.arange(100.0), url=tmp_path / "a.b2nd", chunks=10, blocks=5)
    content, state = (tmp_path / "a.b2nd").read_bytes(), array.generation
    broken = np.arange(100.0).astype(object)
    broken[95] = "not a number"
    with pytest.raises(ValueError, match="not a number"):
        array[...] = broken
    assert (tmp_path / "a.b2nd").read_bytes() == content
    assert array.generation == state
    assert array[...].tolist() == list(range(100))


def test_a_transaction_goes_on_without_an_assignment_that_failed():
    for layout in ("sparse", "contiguous"):
        array = b2array.asarray(np.arange(100.0), chunks=10, blocks=5, layout=layout)
        broken = np.zeros(100).astype(object)
        broken[95] = "not a number"
        with array.transaction():
            array[0] = 5
            with pytest.raises(ValueError, match="not a number"):
                array[...] = broken
            array[1] = 6
        assert array[...].tolist() == [5, 6, *range(2, 100)]


def test_a_transaction_is_one_commit_that_only_its_handle_sees_before(tmp_path):
    array = b2array.zeros(10, RECORD, url=tmp_path / "a.b2nd", chunks=4, blocks=2)
    other = b2array.open(tmp_path / "a.b2nd")
    with array.transaction() as same_array:
        assert same_array is array
        array["x"] = np.arange(10)
        array[3:5] = (9, 1.5)
        array.attrs["note"] = "both"
        assert array["x"].tolist() == [0, 1, 2, 9, 9, 5, 6, 7, 8, 9]
        other.refresh()
        assert not other["x"].any()
        assert "note" not in other.attrs
    other.refresh()
    assert other["y"].tolist() == [0, 0, 0, 1.5, 1.5, 0, 0, 0, 0, 0]
    assert other.attrs["note"] == "both"


def test_a_transaction_that_raises_has_not_happened():
    array = b2array.asarray(np.arange(10), chunks=4, blocks=2)
    state = array.generation
    with pytest.raises(KeyboardInterrupt), array.transaction():
        array[...] = 0
        array.attrs["note"] = 1
        raise KeyboardInterrupt
    assert array.generation == state
    assert array[...].tolist() == list(range(10))
    assert not array.attrs


def test_threads_that_write_through_one_handle_lose_nothing():
    array = b2array.zeros((8, 40), "i4", chunks=(2, 10), blocks=(1, 5))
    failures = []

    def fill(row):
        try:
            for column in range(0, 40, 8):
                array[row, column : column + 8] = row * 100 + np.arange(column, column + 8)
        except B2ArrayError as error:
            failures.append(error)

    with config.using(retries=200):
        threads = [threading.Thread(target=fill, args=(row,)) for row in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert array[...].tolist() == (100 * np.arange(8)[:, None] + np.arange(40)).tolist()


def test_an_assignment_is_repeated_on_what_another_handle_committed(tmp_path):
    b2array.zeros(8, "i4", url=tmp_path / "a.b2nd", chunks=8, blocks=4)
    first, second = (b2array.open(tmp_path / "a.b2nd", "r+") for _ in range(2))
    first[:3] = 1
    second[2:5] = 2
    first[0] = 9
    assert first[...].tolist() == [9, 1, 2, 2, 2, 0, 0, 0]


def test_a_reader_keeps_its_state_until_it_is_refreshed(tmp_path):
    writer = b2array.asarray(np.arange(6), url=tmp_path / "a.b2nd", chunks=3, blocks=3)
    reader = b2array.open(tmp_path / "a.b2nd")
    writer[...] = 0
    assert reader[...].tolist() == list(range(6))
    reader.refresh()
    assert not reader[...].any()


def test_an_assignment_to_an_array_that_has_another_shape_by_now_is_a_conflict(tmp_path):
    first = b2array.zeros(8, "i4", url=tmp_path / "a.b2nd", chunks=8, blocks=4)
    b2array.save(tmp_path / "a.b2nd", np.zeros((3, 3)))
    with pytest.raises(ConflictError):
        first[5] = 1
    first.refresh()
    assert first.shape == (3, 3)


def test_a_handle_for_reading_refuses_to_write(tmp_path):
    b2array.asarray(np.zeros(3, RECORD), url=tmp_path / "a.b2nd")
    array = b2array.open(tmp_path / "a.b2nd")
    for key in (0, slice(0, 0), "x", 99):
        with pytest.raises(ReadOnlyError, match=r"mode='r\+'"):
            array[key] = 0
    with pytest.raises(ReadOnlyError), array.transaction():
        pass
    with pytest.raises(ReadOnlyError):
        array.attrs["a"] = 1


# Attributes.


def test_attributes_are_what_was_assigned():
    array = b2array.zeros(3, attrs={"units": "m"})
    given = {
        "none": None,
        "flag": True,
        "count": 2**60,
        "step": 0.1,
        "z": 1 - 2j,
        "text": "ä",
        "raw": b"\0\1",
        "list": [1, [2.5]],
        "pair": (1, ("a",)),
        "set": {1, 2},
        "map": {"k": [None]},
        "array": np.arange(6, dtype=">i2").reshape(2, 3),
        "records": np.zeros(2, RECORD),
        "scalar": np.float32(2.5),
        "a name that is much longer than thirty-one bytes": 1,
    }
    for name, value in given.items():
        array.attrs[name] = value
    found = b2array.from_bytes(array.to_bytes()).attrs
    assert list(found) == list(array.attrs)
    assert set(found) == {"units", *given}
    for name, value in given.items():
        if isinstance(value, np.ndarray):
            assert same(found[name], value)
        else:
            assert found[name] == value
            # Copies have the type; the value in the attribute cannot be changed.
            assert isinstance(value, np.generic) or type(copy.deepcopy(found[name])) is type(value)
    del array.attrs["units"]
    assert "units" not in array.attrs
    with pytest.raises(KeyError):
        array.attrs["units"]


def test_the_error_for_an_attribute_that_cannot_be_stored_names_it():
    a = b2array.asarray([1])
    with pytest.raises(TypeError, match="the attribute 'large' cannot hold this int"):
        a.attrs.update(small=1, large=2**70)
    with pytest.raises(TypeError, match="the attribute 'large' cannot hold this int"):
        b2array.asarray([1], attrs={"small": 1, "large": 2**70})


def test_attributes_that_cannot_be_stored_are_refused_before_anything_is_written():
    array = b2array.zeros(3, attrs={"kept": 1})
    state = array.generation
    for value in (object(), len, {1j: 2}, [object()], np.ma.array([1], mask=[True])):
        with pytest.raises(TypeError):
            array.attrs["x"] = value
    with pytest.raises(TypeError, match="names are str"):
        array.attrs[3] = 1
    assert array.generation == state
    assert dict(array.attrs) == {"kept": 1}


def test_more_attributes_than_the_format_has_room_for():
    array = b2array.zeros(3)
    with array.transaction():
        for n in range(40):
            array.attrs[f"a{n}"] = n
    again = b2array.from_bytes(array.to_bytes())
    assert dict(again.attrs) == {f"a{n}": n for n in range(40)}
    assert len(again._handle.frame.vlmetalayers) <= 16


# Python's and NumPy's protocols.


def test_numpy_sees_an_array():
    values = np.arange(12.0).reshape(3, 4)
    array = b2array.asarray(values, chunks=(2, 2), blocks=(1, 1))
    assert same(np.asarray(array), values)
    assert same(np.asarray(array, "f4"), values.astype("f4"))
    assert same(np.array(array, dtype="i2", copy=True), values.astype("i2"))
    with pytest.raises(ValueError, match="copy"):
        np.asarray(array, copy=False)
    assert np.sum(array) == values.sum()
    assert same(np.concatenate([array, array]), np.concatenate([values, values]))
    assert same(np.mean(array, axis=0), values.mean(axis=0))
    assert same(np.add(array, 1), values + 1)
    assert np.shape(array) == (3, 4)
    assert np.size(array) == 12
    assert not hasattr(array, "__array_function__")
    assert not hasattr(array, "__array_ufunc__")


@pytest.mark.parametrize(
    "values", [np.array(3), np.array([3]), np.zeros(2), np.zeros(0), np.array(2.5), np.array(1j), np.array("7")]
)
@pytest.mark.parametrize("convert", [bool, int, float, complex, operator.index, len, list])
def test_conversions_are_numpys(values, convert):
    array = b2array.asarray(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, expected = outcome(lambda: convert(array)), outcome(lambda: convert(values))
    assert type(found) is type(expected)
    assert found == expected or found is expected


def test_a_large_array_is_not_read_to_find_that_it_is_no_number():
    array = b2array.zeros((10**6, 10**6), chunks=(10**4, 10**4), blocks=(10**2, 10**3))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(array)
    with pytest.raises(TypeError):
        int(array)


def test_iteration_gives_rows():
    values = np.arange(7 * 3 * 2).reshape(7, 3, 2)
    array = b2array.asarray(values, chunks=(3, 2, 2), blocks=(2, 1, 1))
    assert all(same(found, expected) for found, expected in zip(array, values, strict=True))
    assert [type(item) for item in b2array.asarray(np.arange(3, dtype="i2"))] == [np.int16] * 3
    with pytest.raises(TypeError, match="0-d"):
        iter(b2array.asarray(1))


def test_iteration_does_not_read_far_ahead(monkeypatch):
    array = b2array.zeros((1000, 5 * 10**6), "f8", chunks=(1000, 10**4), blocks=(10, 10**3))
    rows = iter(array)
    assert next(rows).base.shape[0] == 1


def test_an_index_may_be_an_ndarray():
    values = np.arange(5)
    assert values[b2array.asarray(2)] == 2
    array = b2array.asarray(values)
    assert array[b2array.asarray([3, 1])].tolist() == [3, 1]
    assert array[b2array.asarray(values > 2)].tolist() == [3, 4]


@pytest.mark.parametrize("where", ["memory", "contiguous", "sparse"])
def test_a_pickle_opens_the_same_state(tmp_path, where):
    url = None if where == "memory" else tmp_path / "a.b2nd"
    array = b2array.asarray(
        np.arange(20), url=url, chunks=7, blocks=3, attrs={"a": 1}, layout="auto" if url is None else where
    )
    again = pickle.loads(pickle.dumps(array))
    assert again[...].tolist() == list(range(20))
    assert (again.url, again.mode, again.generation, dict(again.attrs)) == (array.url, "r+", array.generation, {"a": 1})
    again[0] = 5
    assert array[0] == 0
    with array.transaction(), pytest.raises(ValueError, match="pickled"):
        pickle.dumps(array)


def test_a_with_block_closes_and_the_handle_can_be_used_again(tmp_path):
    with b2array.asarray(np.arange(3), url=tmp_path / "a.b2nd") as array:
        assert array[1] == 1
    assert array[2] == 2


def test_properties_describe_the_array(tmp_path):
    array = b2array.create(
        tmp_path / "a.b2nd", (5, 7), "i2", chunks=(2, 4), blocks=(2, 2), dims=("y", None), meta={"m": [1]}
    )
    assert (array.shape, array.dtype, array.ndim, array.size, array.itemsize, array.nbytes) == (
        (5, 7),
        "i2",
        2,
        35,
        2,
        70,
    )
    assert (array.chunks, array.blocks, array.grid_shape, array.nchunks) == ((2, 4), (2, 2), (3, 2), 6)
    assert array.cbytes == 0
    assert array.cratio == float("inf")
    assert array.info["ratio"] == "inf"
    assert array.fill_value == 0
    assert isinstance(array.fill_value, np.int16)
    assert array.dims == ("y", None)
    assert array.meta["m"] == [1]
    assert array.mode == "r+"
    assert array.url == str(tmp_path / "a.b2nd")
    assert (array.cparams.codec, array.cparams.clevel, array.cparams.filters) == ("zstd", 2, "auto")
    assert repr(array) == f"<b2array.NDArray {tmp_path}/a.b2nd shape=(5, 7) dtype=int16 chunks=(2, 4)>"
    array[...] = np.arange(35).reshape(5, 7)
    assert array.cratio == 70 / array.cbytes


# Files that are no arrays.


def test_a_super_chunk_is_no_array():
    schunk = b2array.create_schunk(chunksize=100)
    schunk.append_data(b"x" * 100)
    with pytest.raises(FormatError, match=r"plain super-chunk.*open_schunk"):
        b2array.from_bytes(schunk.to_bytes())


@pytest.mark.parametrize("name", ["b2o", "LazyArray"])
def test_chunks_that_do_not_hold_the_values_are_refused(name):
    layer = dict(b2array.zeros(3)._handle.frame.metalayers)["b2nd"]
    schunk = b2array.create_schunk(chunksize=24, typesize=8, meta={"b2nd": layer, name: 1})
    with pytest.raises(UnsupportedError, match=name):
        b2array.from_bytes(schunk.to_bytes())


# --- keys and the shapes that other writers leave ---------------------------------------------------------------------


def overtaken(tmp_path, monkeypatch, shape):
    """Make an array of 4 by 6 zeros that another handle resizes during the next assignment."""
    array = b2array.zeros((4, 6), "i4", url=tmp_path / "a.b2nd", chunks=(2, 3), blocks=(1, 3))
    other = b2array.open(tmp_path / "a.b2nd", "r+")
    original, calls = write.write, []

    def resized(*args, **kwargs):
        if not calls:
            calls.append(args)
            other.resize(shape)
        return original(*args, **kwargs)

    monkeypatch.setattr("b2array.array.items.write", resized)
    return array


@pytest.mark.parametrize("shape", [(6, 9), (3, 2)])
@pytest.mark.parametrize(
    "assign",
    [
        lambda a: a.__setitem__(-1, 1),
        lambda a: a.__setitem__((..., [0, -1]), 2),
        lambda a: a.oindex.__setitem__(([-1, 0], slice(None)), 3),
        lambda a: a.vindex.__setitem__(([-1, 0], [0, -1]), [4, 5]),
        lambda a: a.chunk_view.__setitem__((-1, -1), 6),
    ],
)
def test_a_key_is_taken_for_the_shape_that_another_writer_has_left(tmp_path, monkeypatch, shape, assign):
    array = overtaken(tmp_path, monkeypatch, shape)
    assign(array)
    expected = b2array.zeros(shape, "i4", chunks=(2, 3), blocks=(1, 3))
    assign(expected)
    assert np.array_equal(b2array.open(tmp_path / "a.b2nd")[...], expected[...])


@pytest.mark.parametrize(
    ("shape", "key", "value", "error"),
    [
        ((2, 6), 3, 1, IndexError),
        ((6, 6), (slice(None), 0), np.arange(4), ValueError),
        ((6, 6), np.ones((4, 6), bool), 1, IndexError),
    ],
)
def test_a_key_that_another_writer_made_impossible_raises_as_in_numpy(tmp_path, monkeypatch, shape, key, value, error):
    array = overtaken(tmp_path, monkeypatch, shape)
    with pytest.raises(error) as raised:
        array[key] = value
    assert not isinstance(raised.value, ConflictError)
    assert array.shape == shape
    assert not b2array.open(tmp_path / "a.b2nd")[...].any()


def test_a_key_that_selects_nothing_of_another_writers_shape_writes_nothing(tmp_path, monkeypatch):
    array = overtaken(tmp_path, monkeypatch, (1, 6))
    array[2:] = 1
    assert array.shape == (1, 6)
    assert not array[...].any()
