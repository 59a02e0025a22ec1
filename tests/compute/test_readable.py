"""Views show what NumPy's would, read no more than is asked for, and are lazy."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
from arrays import DTYPES, items, outcome, same
from hypothesis import given, settings
from hypothesis import strategies as st
from keys import keys, orthogonal_keys
from lengths import examples
from views import changed, shown

import b2array
from b2array.compute import readable


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.sampled_from(DTYPES))
def test_reading_a_view_is_reading_numpys(data, dtype):
    array, values = data.draw(shown(dtype, items))
    for _ in range(4):
        assert same(np.asarray(array), np.ascontiguousarray(values) if values.ndim else values)
        key = data.draw(keys(values.shape))
        assert same(outcome(lambda: array[key]), outcome(lambda: values[key])), key  # noqa: B023
        array, values = data.draw(changed(array, values))


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_orthogonal_and_pointwise_indexing_work_on_views(data):
    array, values = data.draw(shown(np.dtype("i4"), items))
    whole = b2array.asarray(values)
    if isinstance(array, b2array.NDArray):
        array = array.view[...]
    key = data.draw(orthogonal_keys(values.shape))
    assert same(outcome(lambda: array.oindex[key]), outcome(lambda: whole.oindex[key]))
    key = data.draw(keys(values.shape))
    assert same(outcome(lambda: array.vindex[key]), outcome(lambda: whole.vindex[key]))


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_dask_reads_what_a_view_shows(data):
    pytest.importorskip("dask")
    array, values = data.draw(shown(np.dtype("f8"), items))
    assert same(
        np.asarray(array.to_dask().compute(scheduler="synchronous")), np.ascontiguousarray(values).reshape(values.shape)
    )


@pytest.fixture
def cube():
    values = np.arange(24 * 30 * 8.0).reshape(24, 30, 8)
    return b2array.asarray(values, chunks=(6, 10, 4), blocks=(3, 5, 2)), values


def test_a_view_reads_the_items_that_are_asked_for_and_no_others(cube, monkeypatch):
    array, values = cube
    asked = []

    def read(source, layout, positions, axes, box):
        asked.append(box.size)
        plain(source, layout, positions, axes, box)

    plain = readable.read
    monkeypatch.setattr(readable, "read", read)
    view = array.view[10:20, ::2].T
    assert view.shape == (8, 15, 10)
    joined, split = array.reshape(720, 8), array.reshape(4, 6, 30, 2, 4).T
    assert asked == []
    found = [
        (view[3, 4], values[10:20, ::2].T[3, 4]),
        (joined[29:33, 2], values.reshape(720, 8)[29:33, 2]),
        (joined[[700, 3, 3]], values.reshape(720, 8)[[700, 3, 3]]),
        (split[1, 1, 5:7, ::2, 3], values.reshape(4, 6, 30, 2, 4).T[1, 1, 5:7, ::2, 3]),
    ]
    assert all(same(ours, np.ascontiguousarray(theirs)) for ours, theirs in found)
    assert asked == [ours.size for ours, _ in found]


def test_a_view_shows_what_its_array_becomes_and_refuses_another_shape(cube):
    array, values = cube
    view = array.T.view[1]
    array[...] = -values
    assert same(view[...], np.ascontiguousarray(-values.T[1]))
    with pytest.raises(ValueError, match="assignment destination is read-only"):
        view[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        view.oindex[[0]] = 1
    array.resize((24, 30, 9))
    with pytest.raises(ValueError, match=r"view of an array of shape \(24, 30, 8\), which has become \(24, 30, 9\)"):
        view[...]
    with pytest.raises(ValueError, match="has become"):
        view.sum()


def test_a_part_of_joined_axes_takes_little_more_memory_than_it_has_items():
    values = np.arange(500_000.0).reshape(50, 100, 100)
    flat = b2array.asarray(values, chunks=(10, 100, 100)).reshape(-1)
    for key in (slice(5, -7), slice(-3, 11, -1), slice(10_050, 19_001, 2)):
        flat[key]
        tracemalloc.start()
        try:
            found = flat[key]
            assert tracemalloc.get_traced_memory()[1] < 3 * found.nbytes
        finally:
            tracemalloc.stop()
        assert (found == values.reshape(-1)[key]).all()


def test_a_view_takes_a_part_of_one_row_of_joined_axes(cube):
    array, values = cube
    flat, lines = array.reshape(-1), array.reshape(720, 8)
    for view, expected in (
        (flat.view[256:464], values.reshape(-1)[256:464]),
        (flat.view[463:255:-1], values.reshape(-1)[463:255:-1]),
        (flat.view[249:255:2], values.reshape(-1)[249:255:2]),
        (lines.view[31:50, ::2], values.reshape(720, 8)[31:50, ::2]),
    ):
        assert same(view[...], np.ascontiguousarray(expected))
        assert view.sum() == expected.sum()


def test_numpys_functions_make_views(cube):
    array, values = cube
    for found, expected in (
        (np.transpose(array, (2, 0, 1)), np.transpose(values, (2, 0, 1))),
        (np.squeeze(array.view[:1]), values[0]),
        (np.squeeze(array.view[:, None, :1], axis=2), values[:, None, 0]),
        (np.reshape(array, (24, -1)), values.reshape(24, -1)),
        (np.reshape(array, -1), values.reshape(-1)),
        (array.reshape((8, 90, 8)), values.reshape(8, 90, 8)),
        (array.transpose(1, 0, 2), values.transpose(1, 0, 2)),
        (array.transpose(), values.T),
    ):
        assert isinstance(found, b2array.array.array.View)
        assert same(found[...], np.ascontiguousarray(expected))
        assert (found.nbytes, found.ndim, len(found)) == (expected.nbytes, expected.ndim, len(expected))
    assert same(list(array.T.view[0])[3], values.T[0][3])
    assert same(np.array(array.T, "f4"), np.array(values.T, "f4"))


@pytest.mark.parametrize(
    ("action", "error", "text"),
    [
        (lambda a: a.transpose(0, 1), ValueError, "axes don't match array"),
        (lambda a: a.transpose(0, 1, 1), ValueError, "repeated axis"),
        (lambda a: a.transpose(0, 1, 3), ValueError, "axis 3 is out of bounds for array of dimension 3"),
        (lambda a: a.squeeze(0), ValueError, "size not equal to one"),
        (lambda a: a.reshape(7, -1), ValueError, r"cannot reshape array of size 5760 into shape \(7,"),
        (lambda a: a.reshape(-1, -1), ValueError, "can only specify one unknown dimension"),
        (lambda a: a.reshape(16, 45, 8), ValueError, r"whole axes only, .* a\[\.\.\.\]\.reshape\(\) reads"),
        (lambda a: a.reshape(5760, order="F"), ValueError, "in C order only"),
        (lambda a: a.view[[0, 1]], IndexError, "a view takes integers, slices"),
        (lambda a: a.view[24], IndexError, "index 24 is out of bounds for axis 0 with size 24"),
        (lambda a: a.view[0, 0, 0, 0], IndexError, "too many indices"),
        (lambda a: a.reshape(720, 8).view[1:50], ValueError, "axis 0 joins axes .* whole rows of 30"),
    ],
)
def test_what_no_view_can_show_is_refused_with_numpys_words_or_a_way_out(cube, action, error, text):
    with pytest.raises(error, match=text):
        action(cube[0])


@pytest.mark.parametrize("key", [(...,), ([0, 0],), ([[0], [0]],), (True, [0, 0]), (slice(None, None, -1),)])
def test_items_that_a_view_repeats_belong_to_the_caller(key):
    for array, values in ((np.float32(3), np.float32(3)[None]), (np.arange(6).reshape(1, 6), np.arange(6)[None, None])):
        found = b2array.asarray(array).view[None][key]
        assert same(found, values[key])
        found += 1
        assert same(found, values[key] + 1)


def test_rows_of_joined_axes_stay_lazy(cube):
    array, values = cube
    joined, expected = array.reshape(720, 8), values.reshape(720, 8)
    for key in (slice(30, 90), slice(None, None, -1), 95, slice(719, None), slice(5, 5), slice(89, 29, -1)):
        assert same(joined.view[key][...], np.ascontiguousarray(expected[key]))


def test_views_go_to_other_processes_and_to_dask_xarray_and_plots(cube, tmp_path):
    values = cube[1]
    b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=(6, 10, 4))
    view = b2array.open(tmp_path / "a.b2nd").T.view[2:5]
    assert same(pickle.loads(pickle.dumps(view))[...], view[...])
    da, xr = pytest.importorskip("dask.array"), pytest.importorskip("xarray")
    lazy = view.to_dask()
    assert isinstance(lazy, da.Array)
    assert lazy.chunks == ((3,), (30,), (24,))
    assert view.to_dask().name == lazy.name != b2array.open(tmp_path / "a.b2nd").T.view[1:4].to_dask().name
    assert (xr.DataArray(lazy, dims=("z", "y", "x")).mean("x").values == values.T[2:5].mean(axis=2)).all()
    assert (xr.DataArray(view).values == values.T[2:5]).all()


def test_fields_of_a_view_are_read_by_name():
    values = np.zeros((3, 4), [("x", "i4"), ("y", "f8")])
    values["x"] = np.arange(12).reshape(3, 4)
    view = b2array.asarray(values).T
    assert view["x"].tolist() == values["x"].T.tolist()
    assert view[1:3, "x", 0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="no field of name z"):
        view["z"]
    with pytest.raises(ValueError, match="read-only"):
        view["x"] += 1
    for found in (view["x"], view[["x", "y"]]):
        with pytest.raises(ValueError, match="read-only"):
            found[...] = 0


@pytest.mark.parametrize(
    ("view", "dims"),
    [
        (lambda a: a.T, ("x", "y", "t")),
        (lambda a: a.view[0], ("y", "x")),
        (lambda a: a.view[:1], ("t", "y", "x")),
        (lambda a: a.view[:, None, 1:2, ::-1], ("t", None, "y", "x")),
        (lambda a: a.view[..., 0], ("t", "y")),
        (lambda a: a.view[1:1], ("t", "y", "x")),
        (lambda a: a.view[:1].squeeze(), ("y", "x")),
        (lambda a: a.view[:1, :, :1].squeeze(-1), ("t", "y")),
        (lambda a: a.reshape(6, 4), (None, "x")),
        (lambda a: a.reshape(2, 3, 2, 2), ("t", "y", None, None)),
        (lambda a: a.reshape(-1), (None,)),
        (lambda a: a.view[:, ::2].transpose(1, 0, 2).view[0], ("t", "x")),
    ],
)
def test_views_know_the_names_of_their_axes_and_can_be_copied(tmp_path, view, dims):
    values = np.arange(24).reshape(2, 3, 4)
    a = b2array.asarray(values, dims=("t", "y", "x"), attrs={"units": "m"}, fill_value=7, cparams="lz4", chunks=2)
    shown = view(a)
    assert shown.dims == dims
    for copied in (shown.copy(tmp_path / "a.b2nd"), b2array.copy(shown)):
        assert same(copied[...], np.ascontiguousarray(shown[...]))
        assert (copied.dims, dict(copied.attrs), copied.fill_value) == (dims, {"units": "m"}, 7)
        assert copied.cparams == a.cparams


def test_a_view_of_an_array_without_names_has_none():
    a = b2array.zeros((2, 3))
    assert a.T.dims is None
    a.dims = ("y", None)
    assert a.T.dims == (None, "y")


def test_copies_of_views_take_the_options_of_copies(tmp_path):
    a = b2array.asarray(np.arange(6).reshape(2, 3), fill_value=-1)
    b = a.T.copy(tmp_path / "b.b2nd", dtype="f4", chunks=(1, 2), cparams="zlib", layout="sparse")
    assert (b.dtype, b.chunks, b.cparams.codec, b.fill_value, b[2, 1]) == (np.dtype("f4"), (1, 2), "zlib", -1, 5)
    with pytest.raises(TypeError, match=r"Cannot cast array data .* according to the rule 'safe'"):
        a.T.copy(dtype="i1", casting="safe")
    with pytest.raises(TypeError, match=r"copy\(\) got an unexpected keyword argument 'compression': write cparams"):
        a.T.copy(compression="lz4")


def test_the_plan_of_a_view_is_that_of_the_same_items():
    a = b2array.asarray(np.random.default_rng(0).normal(size=(40, 60)), chunks=(10, 20), blocks=(5, 5))
    for plan, expected in (
        (a.T.explain(np.s_[:5, 0]), a.explain(np.s_[0, :5])),
        (a.view[10:20].explain(), a.explain(np.s_[10:20])),
        (a.view[::2, 3].explain(0), a.explain(np.s_[:1, 3])),
    ):
        assert (plan.chunks, plan.blocks, plan.result_nbytes) == (
            expected.chunks,
            expected.blocks,
            expected.result_nbytes,
        )


@pytest.mark.parametrize("function", [np.median, lambda a: np.percentile(a, 5), lambda a: np.asarray(a.T)])
def test_a_function_that_loads_more_than_memory_holds_is_warned_of_before_it_begins(function):
    enormous = b2array.zeros((2**23, 2**20), chunks=(2**13, 2**12))  # no computer has 64 TiB
    with pytest.warns(UserWarning, match=r"65536\.0 GiB, and the machine has .*to_dask\(\) and b2array\.map") as caught:  # noqa: SIM117
        with pytest.raises(MemoryError):
            function(enormous)
    assert caught[0].filename == __file__
