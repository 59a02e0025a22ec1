"""Arrays that begin with few items and grow get chunks for what they become, unless a user chose the chunks."""

from __future__ import annotations

import warnings

import blosc2
import dask.array as da
import numpy as np
import pytest
from dask.array.core import PerformanceWarning

import b2array
from b2array.array import appender
from b2array.errors import ConflictError

FEW = {"one item": np.zeros(1, "i8"), "none": np.zeros(0, "i8"), "some": np.arange(1000)}


@pytest.fixture(params=["contiguous", "sparse"])
def layout(request):
    return request.param


@pytest.mark.parametrize("first", FEW.values(), ids=FEW)
def test_appended_items_do_not_get_chunks_as_small_as_the_first_ones(tmp_path, layout, first):
    a = b2array.asarray(first, url=tmp_path / "a.b2nd", layout=layout)
    expected = first
    for n in (1, 20_000, 700_000):
        more = np.arange(n) * 3
        a.append(more)
        expected = np.concatenate([expected, more])
    assert (a.nchunks, a.chunks) == (3, (262_144,))
    np.testing.assert_array_equal(b2array.open(tmp_path / "a.b2nd")[...], expected)
    np.testing.assert_array_equal(blosc2.open(str(tmp_path / "a.b2nd"))[:], expected)
    assert b2array.verify(tmp_path / "a.b2nd").ok


@pytest.mark.parametrize("axis", [0, 1])
def test_every_way_of_growing_chooses_chunks(axis):
    values = np.arange(12).reshape(3, 4)
    shape = tuple(300 if n == axis else extent for n, extent in enumerate(values.shape))
    more = np.ones([300 if n == axis else extent for n, extent in enumerate(values.shape)], int)
    resized, appended, inserted = (b2array.asarray(values) for _ in range(3))
    resized.resize(shape)
    appended.append(more, axis)
    inserted.insert(more, 2, axis)
    assert resized.nchunks == appended.nchunks == inserted.nchunks == 1
    np.testing.assert_array_equal(resized[:3, :4], values)
    assert resized[...].sum() == values.sum()
    np.testing.assert_array_equal(appended[...], np.concatenate([values, more], axis))
    np.testing.assert_array_equal(inserted[...], np.insert(values, [2], more, axis))


@pytest.mark.parametrize("shape", [(4, 2), (2, 5), (0, 3), (6, 6)])
def test_a_resize_takes_an_integer_for_each_dimension_as_numpy_does(shape):
    values = np.arange(9).reshape(3, 3)
    a, b = b2array.asarray(values, chunks=2), b2array.asarray(values, chunks=2)
    a.resize(*shape)
    b.resize(shape)
    assert a.shape == shape
    np.testing.assert_array_equal(a[...], b[...])
    with pytest.raises(ValueError, match="must have 2 dimensions, not 3"):
        a.resize(1, 2, 3)
    with pytest.raises(TypeError):
        a.resize(shape, 4)


def test_growing_keeps_fill_values_and_values_that_were_rounded():
    filled = b2array.full((2, 3), np.nan)
    filled.resize((40, 3))
    assert np.isnan(filled[...]).all()
    assert (filled._handle.frame.offsets < 0).all()
    rounded = b2array.asarray(np.linspace(0, 1, 7), cparams=b2array.CParams(absolute_error=0.1))
    before = rounded[...]
    rounded.append(np.zeros(9))
    np.testing.assert_array_equal(rounded[:7], before)
    sevens = b2array.full(3, 7)
    sevens.resize(5)
    np.testing.assert_array_equal(sevens[...], np.full(5, 7))


def test_chunks_of_the_user_never_change():
    chosen = [
        b2array.zeros((1, 4), chunks=(1, 4)),
        b2array.zeros((1, 4), chunks=(1, -1)),
        b2array.zeros((1, 4), blocks=(1, 2)),
        b2array.asarray(np.zeros((1, 4)), chunks={0: 1}),
    ]
    before = [(a.chunks, a.blocks) for a in chosen]
    for a in chosen:
        a.append(np.ones((6, 4)))
    assert [(a.chunks, a.blocks) for a in chosen] == before


def test_chunks_are_chosen_only_once():
    a = b2array.asarray(np.zeros((2, 3)))
    a.append(np.ones((1, 3)))
    once = a.chunks, a.blocks
    a.delete(slice(0, 2))
    a.append(np.ones((5, 3)))
    a.append(np.ones((6, 2)), axis=1)
    assert (a.chunks, a.blocks) == once


def test_larger_arrays_keep_their_chunks():
    a = b2array.asarray(np.zeros((300_000,)))
    before = a.chunks
    a.append(np.zeros(10))
    assert a.chunks == before


def test_growth_follows_the_word_for_the_kind_of_access():
    a = b2array.zeros((4, 64, 64), "f4", access="series")
    a.append(np.ones((1, 64, 64), "f4"))
    assert a.blocks[0] > 8 * a.blocks[2]


def test_copies_and_likes_of_arrays_with_few_items_grow_as_well():
    a = b2array.asarray(np.arange(3))
    copies = [
        b2array.copy(a),
        b2array.copy(a, cparams="lz4"),
        b2array.asarray(a, dtype="f4"),
        b2array.zeros_like(a),
    ]
    for each in copies:
        each.append(np.zeros(5000, each.dtype))
        assert each.nchunks == 1


def test_a_snapshot_keeps_the_old_chunks(tmp_path):
    a = b2array.asarray(np.arange(3), url=tmp_path / "a.b2nd")
    a.snapshot("before")
    a.append([7])
    old = b2array.open(tmp_path / "a.b2nd", at="before")
    assert (old.chunks, old[...].tolist()) == ((3,), [0, 1, 2])
    assert a.diff("before") == [(slice(0, 4),)]
    a.restore("before")
    assert (a.chunks, a[...].tolist()) == ((3,), [0, 1, 2])


def test_members_grow_in_transactions(tmp_path):
    group = b2array.open_group(tmp_path / "ragged.b2d", "w")
    with group.transaction() as changes:
        changes["values"] = np.arange(3.0)
        changes["offsets"] = np.array([0, 3])
    with group.transaction() as changes:
        for n in range(1, 200):
            changes["values"].append(np.full(n, n, float))
            changes["offsets"].append([3 + n * (n + 1) // 2])
    again = b2array.open_group(tmp_path / "ragged.b2d")
    assert (again["values"].nchunks, again["offsets"].nchunks) == (1, 1)
    start, stop = again["offsets"][150:152]
    np.testing.assert_array_equal(again["values"][start:stop], np.full(150, 150.0))


def test_items_with_dimensions_grow():
    a = b2array.asarray(np.zeros(2, dtype=[("a", "i4"), ("b", "f8", (3,))]))
    a.append(np.ones(5, a.dtype))
    assert a.nchunks == 1
    np.testing.assert_array_equal(a["b"][2:], np.ones((5, 3)))
    vectors = b2array.zeros(2, "3f4")
    vectors.append(np.ones((4, 3), "f4"))
    assert vectors[...].sum() == 12


@pytest.mark.costly
@pytest.mark.parametrize(("every", "chunk"), [(3000, 3000), (50_000, 2500), (10, 2690)])
def test_an_appender_that_commits_regularly_chooses_chunks_that_end_there(every, chunk):
    a = b2array.zeros((0, 384), "i2")
    steps = np.arange(every * 384, dtype="i2").reshape(every, 384)
    with a.appender(every=every) as out:
        out.append(steps)
        assert out.uncommitted == 0
        out.append(steps[: every // 2])
    assert a.chunks == (chunk, 384)
    np.testing.assert_array_equal(a[...], np.concatenate([steps, steps[: every // 2]]))


def test_a_recording_leaves_no_dead_chunks(tmp_path):
    path = tmp_path / "a.b2nd"
    a = b2array.zeros((0, 384), "i2", url=path)
    steps = np.random.default_rng(0).integers(-99, 99, (3000, 384)).astype("i2")
    with a.appender(every=3000) as out:
        for _ in range(8):
            out.append(steps)
    before = path.stat().st_size
    b2array.repack(path)
    assert path.stat().st_size > 0.98 * before


def test_an_appender_takes_the_chunks_of_the_user():
    a = b2array.zeros((0, 6), chunks=(7, 6))
    with a.appender(every=10) as out:
        for n in range(25):
            out.append(np.full(6, n))
    assert a.chunks == (7, 6)
    assert a[:, 0].tolist() == list(range(25))


def test_very_many_small_chunks_are_mentioned_once(monkeypatch):
    monkeypatch.setattr(appender, "_MANY_CHUNKS", 50)
    a = b2array.zeros((1, 4), chunks=(1, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a.append(np.ones((48, 4)))
        with pytest.warns(UserWarning, match=r"50 chunks of only 32 bytes, \(1, 4\) items.*chunks='auto'"):
            a.append(np.ones((1, 4)))
        a.append(np.ones((9, 4)))
    assert a.shape == (59, 4)


def test_small_pieces_of_dask_are_mentioned():
    x = da.zeros((204, 240, 240), chunks=(17, 30, 30), dtype="f4")
    with pytest.warns(PerformanceWarning, match=r"\(17, 30, 30\) items, cut it into 768 chunks of 60 KiB"):
        b2array.from_dask(x)


@pytest.mark.parametrize("first", [[], ["a", "Grüße"]], ids=["none", "some"])
def test_text_gets_chunks_for_what_it_becomes(tmp_path, layout, first):
    url = tmp_path / "a.b2nd"
    a = b2array.asarray(np.array(first, "T"), url=url, layout=layout)
    a.snapshot("before")
    more = np.array([f"line {n}" * (n % 7) for n in range(70_000)], "T")
    a.append(more[:10])
    a.append(more[10:])
    expected = [*first, *more.tolist()]
    assert (a.nchunks, a.chunks, a.blocks) == (2, (65_536,), (4096,))
    assert b2array.open(url)[...].tolist() == expected
    theirs = blosc2.open(str(url))
    # python-blosc2 finds an item by the number of items in a block, which the growth changed.
    assert (theirs.items_per_block, theirs[0][60_000], theirs[1][0]) == (4096, expected[60_000], expected[65_536])
    assert b2array.verify(url, deep=True).ok
    assert b2array.open(url, at="before")[...].tolist() == first
    a.restore("before")
    assert a[...].tolist() == first
    assert b2array.verify(url, deep=True).ok


def test_text_grows_in_every_way_and_keeps_its_fill_value():
    values = np.array([["a", "bb"], ["", "dddd"]], "T")
    resized, inserted = (b2array.asarray(values, fill_value="zz") for _ in range(2))
    resized.resize((300, 2))
    inserted.insert(np.full((400, 2), "e", "T"), 1)
    assert resized.nchunks == inserted.nchunks == 1
    resized.resize((300, 3))
    assert resized[:3].tolist() == [["a", "bb", "zz"], ["", "dddd", "zz"], ["zz", "zz", "zz"]]
    assert inserted[...].tolist() == [["a", "bb"], *[["e", "e"]] * 400, ["", "dddd"]]
    a = b2array.full((2,), "zz", dtype="T")
    with a.transaction() as changes:
        changes[0] = "q"
        changes.append(["r"])
        changes.insert(["k"], 1)
    assert a[...].tolist() == ["q", "k", "zz", "r"]


def test_chunks_of_text_expect_items_as_long_as_those_there_are():
    a = b2array.asarray(np.full(3, "x" * 10_000, "T"))
    a.append(np.full(1000, "x" * 10_000, "T"))
    assert 100 <= a.chunks[0] <= 1000
    chosen = b2array.asarray(np.array(["a"], "T"), chunks=1)
    chosen.append(np.array(["b", "c"], "T"))
    assert chosen.chunks == (1,)


@pytest.mark.filterwarnings("ignore:.*one file in this store")
@pytest.mark.parametrize("where", ["file", "memory", "member"])
def test_a_shape_that_only_an_outdated_handle_shows_is_refused(tmp_path, layout, where):
    """Otherwise a call that asks for this shape would seem to succeed, and the array would have another one."""
    url = {
        "file": tmp_path / "a.b2nd",
        "memory": f"memory://outdated-{layout}.b2nd",
        "member": f"memory://outdated-{layout}.b2d/a.b2nd",
    }[where]
    if where == "member":
        b2array.open_group(f"memory://outdated-{layout}.b2d", "w")
    b2array.asarray(np.arange(3), url=url, layout=layout, chunks=(2,))
    outdated, other = b2array.open(url, "r+"), b2array.open(url, "r+")
    other.append([3, 4])
    with pytest.raises(ConflictError, match=r"changed the shape to \(5,\)"):
        outdated.resize(3)
    assert b2array.open(url)[...].tolist() == [0, 1, 2, 3, 4]
    outdated.resize(3)
    outdated.resize(3)
    assert b2array.open(url)[...].tolist() == [0, 1, 2]


def test_names_that_only_an_outdated_handle_shows_are_set_again(tmp_path):
    b2array.asarray(np.zeros((2, 3)), url=tmp_path / "a.b2nd", dims=("x", "y"))
    outdated, other = (b2array.open(tmp_path / "a.b2nd", "r+") for _ in range(2))
    other.dims = ("lat", "lon")
    outdated.dims = ("x", "y")
    assert b2array.open(tmp_path / "a.b2nd").dims == ("x", "y")
    with outdated.transaction():
        outdated.dims = None
    assert b2array.open(tmp_path / "a.b2nd").dims is None
