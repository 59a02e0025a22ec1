"""The cutting of selections at a grid, and the choice of chunks and blocks."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from operator import mul

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lengths import examples

from b2array.config import MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.grid import partition
from b2array.grid.chunking import automatic
from b2array.grid.layout import grid_shape
from b2array.grid.partition import parts, put, take

KIB = 1024
MIB = 1024 * KIB


@st.composite
def slices_of_an_axis(draw):
    extent = draw(st.integers(1, 60))
    start = draw(st.integers(0, extent))
    return extent, slice(start, draw(st.integers(start, extent)), draw(st.integers(1, extent + 1)))


@given(slices_of_an_axis(), st.integers(1, 70))
def test_the_parts_of_a_slice_are_its_positions_in_order(axis, part):
    _, index = axis
    found = []
    for (coord,), (inside,), (outside,) in parts((index,), (part,)):
        positions = range(part)[inside]
        assert len(positions) == outside.stop - outside.start > 0
        assert outside == slice(len(found), len(found) + len(positions), 1)
        found.extend(coord * part + n for n in positions)
    assert found == list(range(index.start, index.stop, index.step))


@given(st.data(), st.integers(1, 3), st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_each_point_is_in_one_part_and_points_keep_their_order_there(data, ndim, part_shape):
    points = data.draw(st.lists(st.tuples(*[st.integers(0, 9)] * ndim), max_size=30))
    index = np.array(points, np.int64).reshape(-1, ndim).T
    axes = (tuple(range(ndim)),)
    seen, positions = set(), []
    for coords, (inside,), (outside,) in parts((index,), part_shape[:ndim], axes):
        assert coords not in seen
        seen.add(coords)
        here = list(np.arange(len(points))[outside if isinstance(outside, slice) else outside[0]])
        assert here == sorted(here)
        assert (inside.T + np.multiply(coords, part_shape[:ndim])).tolist() == [list(points[n]) for n in here]
        positions += here
    assert sorted(positions) == list(range(len(points)))


def test_sorted_points_stand_in_slices_of_the_box():
    index = np.array([[0, 3, 3, 7, 8]])
    assert [part.outside for part in parts((index,), (4,))] == [(slice(0, 3, 1),), (slice(3, 4, 1),), (slice(4, 5, 1),)]


def test_parts_come_in_the_order_of_the_grid():
    index = (slice(0, 5, 1), np.array([[5, 0, 3]]), slice(2, 3, 1))
    assert [part.coords for part in parts(index, (3, 2, 2))] == [
        (0, 0, 1),
        (0, 1, 1),
        (0, 2, 1),
        (1, 0, 1),
        (1, 1, 1),
        (1, 2, 1),
    ]


def test_coords_follow_the_axes_whatever_the_factors():
    index = (np.array([[0, 9], [5, 1]]), slice(4, 5, 1))
    found = list(parts(index, (5, 2, 3), ((0, 2), (1,))))
    assert [part.coords for part in found] == [(0, 2, 1), (1, 2, 0)]
    assert [part.inside[0].tolist() for part in found] == [[[0], [2]], [[4], [1]]]


@given(st.data(), st.integers(1, 5))
def test_very_many_parts_are_the_same_ones(data, most):
    factors, part_shape, axes = [], [], []
    for n in range(data.draw(st.integers(1, 3))):
        extent, index = data.draw(slices_of_an_axis())
        if data.draw(st.booleans()):
            index = np.array([data.draw(st.lists(st.integers(0, extent - 1), max_size=9))], np.int64).reshape(1, -1)
        factors.append(index)
        part_shape.append(data.draw(st.integers(1, 20)))
        axes.append((n,))
    for given_axes in (None, tuple(axes)):
        expected = repr(sorted(parts(tuple(factors), part_shape, given_axes), key=lambda part: part.coords))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(partition, "_MOST", most)
            found = list(parts(tuple(factors), part_shape, given_axes))
        assert repr(sorted(found, key=lambda part: part.coords)) == expected
        if not any(isinstance(each, slice) for each in factors[1:]):
            assert repr(found) == expected


@pytest.mark.parametrize(
    "key", [(slice(0, 3 * 10**6, 20),), (slice(0, 3, 1), slice(0, 3 * 10**5, 1), np.array([[1, 7]]))]
)
@pytest.mark.parametrize("with_axes", [False, True])
def test_parts_take_memory_for_a_bounded_number(key, with_axes):
    axes = tuple((n,) for n in range(len(key))) if with_axes else None
    tracemalloc.start()
    try:
        next(parts(key, (10,) * len(key), axes))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**25


def test_an_array_without_axes_has_one_part():
    assert list(parts((), ())) == [((), (), ())]


def test_an_empty_selection_has_no_part():
    assert not list(parts((slice(0, 5, 1), slice(0, 0, 1)), (2, 2)))
    assert not list(parts((slice(0, 5, 1), np.zeros((1, 0), np.int64)), (2, 2)))
    assert not list(parts((np.zeros((2, 0), np.int64),), (2, 2), ((0, 1),)))
    assert not list(parts((np.zeros((0, 0), np.int64), slice(0, 5, 1)), (2,), ((), (0,))))


def test_far_apart_positions_cost_only_their_own_parts():
    assert len(list(parts((slice(0, 2**62, 2**61), slice(0, 1, 1)), (1, 1)))) == 2


@given(st.data())
def test_take_and_put_agree_with_an_open_mesh(data):
    shape = (4, 5, 6)
    target = np.zeros(shape, int)
    index, mesh = [], []
    for n in shape:
        if data.draw(st.booleans()):
            index.append(np.array([data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4))]))
            mesh.append(index[-1][0])
        else:
            start = data.draw(st.integers(0, n))
            index.append(slice(start, n, data.draw(st.integers(1, 3))))
            mesh.append(np.arange(n)[index[-1]])
    values = np.arange(math.prod(map(len, mesh))).reshape(list(map(len, mesh)))
    expected = target.copy()
    expected[np.ix_(*mesh)] = values
    put(target, tuple(index), values)
    np.testing.assert_array_equal(target, expected)
    np.testing.assert_array_equal(take(target, tuple(index)), expected[np.ix_(*mesh)])


def test_take_of_slices_is_a_view():
    values = np.zeros((3, 4))
    assert np.shares_memory(take(values, (slice(0, 2, 1), slice(0, 4, 3))), values)
    assert isinstance(take(np.array(1.0), ()), np.ndarray)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 110)), max_size=4))
def test_grids_cover_the_shape_and_no_more(axes):
    shape, part = tuple(n for n, _ in axes), tuple(p for _, p in axes)
    for n, p, count in zip(shape, part, grid_shape(shape, part), strict=True):
        assert n <= count * p < n + p


def whole_parts(shape, part):
    return math.prod(map(mul, grid_shape(shape, part), part))


def test_a_grid_of_nothing_needs_no_extent():
    assert grid_shape((0, 5), (0, 2)) == (0, 3)


# Automatic chunks and blocks.

some_shapes = st.integers(0, 16).flatmap(
    lambda ndim: st.lists(
        st.one_of(st.integers(1, 4), st.integers(1, 40), st.integers(1, 3000), st.integers(1, 10**9)),
        min_size=ndim,
        max_size=ndim,
    )
)
itemsizes = st.one_of(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 8 * KIB))


@settings(max_examples=examples(500), deadline=None)
@given(some_shapes, itemsizes)
@example([2**62], 8)
@example([2] * 16, 1)
@example([3] * 16, 4)
@example([1, 1, 10**9], 8)
def test_automatic_chunks_and_blocks_have_sizes_that_suit(shape, itemsize):
    chunks, blocks = automatic(shape, itemsize, access="balanced")
    assert len(chunks) == len(blocks) == len(shape)
    assert all(1 <= b <= c <= n for b, c, n in zip(blocks, chunks, shape, strict=True))
    assert all(c % b == 0 or c == n for b, c, n in zip(blocks, chunks, shape, strict=True))
    nbytes, block = math.prod(shape) * itemsize, math.prod(blocks) * itemsize
    assert block <= MIB
    if nbytes >= 128 * KIB:
        assert block >= 32 * KIB
    chunk = whole_parts(chunks, blocks) * itemsize
    usual = min(max(nbytes // 16, 2 * MIB), 8 * MIB)
    assert chunk <= 3 * usual
    if nbytes >= 8 * MIB:
        assert chunk >= 3 / 8 * usual


@settings(max_examples=examples(500), deadline=None)
@given(some_shapes, itemsizes)
@example([2**62], 8)
@example([2] * 16, 1)
def test_shapes_for_samples_have_sizes_that_suit(shape, itemsize):
    chunks, blocks = automatic(shape, itemsize, access="samples")
    assert all(1 <= b <= c <= n for b, c, n in zip(blocks, chunks, shape, strict=True))
    assert all(c % b == 0 or c == n for b, c, n in zip(blocks, chunks, shape, strict=True))
    assert math.prod(blocks) * itemsize <= MIB
    assert whole_parts(chunks, blocks) * itemsize <= 24 * MIB


@given(some_shapes, itemsizes)
def test_thin_blocks_take_a_larger_share_of_each_axis_than_of_the_one_before(shape, itemsize):
    _, blocks = automatic(shape, itemsize, access="planes")
    first = next((axis for axis, n in enumerate(shape) if n > 1), 0)
    cut = [axis for axis, (b, n) in enumerate(zip(blocks, shape, strict=True)) if axis != first and b < n]
    shares = {axis: blocks[axis] / shape[axis] for axis in cut if shape[axis] > 16}
    # An axis cannot get less than one item: that may be more than its share.
    for earlier, later in itertools.pairwise(shares if all(blocks[axis] > 1 for axis in cut) else ()):
        assert shares[earlier] / 2 <= shares[later] <= 3 * 4 ** (later - earlier) * shares[earlier]


@given(st.lists(st.integers(100, 3000), min_size=2, max_size=4), itemsizes.filter(lambda n: n <= 16))
def test_one_index_of_the_first_axis_touches_little_more_than_it_selects_where_planes_are_read(shape, itemsize):
    _, blocks = automatic(shape, itemsize, access="planes")
    slab = math.prod(shape[1:]) * itemsize
    touched = whole_parts(shape[1:], blocks[1:]) * blocks[0] * itemsize
    assert touched <= max(8 * slab, 4 * MIB)


@given(st.lists(st.integers(100, 3000), min_size=2, max_size=4), st.sampled_from([4, 8]))
def test_where_series_are_read_a_block_has_few_places(shape, itemsize):
    _, blocks = automatic(shape, itemsize, access="series")
    assert math.prod(blocks[1:]) <= 700
    assert blocks[0] >= min(shape[0], 1000) / 2 or math.prod(shape) * itemsize < 4 * MIB


@given(st.lists(st.integers(100, 3000), min_size=1, max_size=4), st.sampled_from([1, 2, 4, 8]))
def test_blocks_for_boxes_are_about_as_long_along_all_axes(shape, itemsize):
    _, blocks = automatic(shape, itemsize, access="boxes")
    cut = [b for b, n in zip(blocks, shape, strict=True) if 2 * b < n]
    assert max(cut, default=1) <= 2 * min(cut, default=1) + 1
    assert 32 * KIB <= math.prod(blocks) * itemsize <= 128 * KIB or math.prod(shape) * itemsize < 128 * KIB


@settings(deadline=None)
@given(st.lists(st.integers(100, 3000), min_size=2, max_size=5), st.sampled_from([1, 2, 4, 8]))
def test_balanced_blocks_cut_no_axis_much_finer_than_its_length_asks(shape, itemsize):
    # A block has f * n ** (5 / 8) items along an axis of n, and 1.1 times more along each next axis.
    _, blocks = automatic(shape, itemsize)
    factors = [b / n**0.625 for b, n in zip(blocks, shape, strict=True) if b > 1]
    # An array of two or three blocks is cut where their size asks for it.
    assert max(factors) <= 3 * 1.1 ** len(shape) * min(factors) or math.prod(shape) * itemsize < 4 * MIB


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("shape", [(365, 180, 360), (256, 512, 512), (5000, 5000), (10**7,), (12, 40, 180, 360)])
def test_balanced_blocks_are_of_the_size_at_which_zstd_finds_most(shape, itemsize):
    _, blocks = automatic(shape, itemsize)
    assert 192 * KIB < math.prod(blocks) * itemsize <= 256 * KIB


@pytest.mark.parametrize("shape", [(365, 180, 360), (256, 512, 512), (1000, 1000, 1000), (5000, 5000), (60, 900, 900)])
def test_balanced_blocks_serve_planes_and_series_along_every_axis(shape):
    # Zarr's automatic chunks have a quarter to an eighth of each axis.
    _, blocks = automatic(shape, 4)
    for n, b in zip(shape, blocks, strict=True):
        assert b <= n / 5
        across = math.prod(blocks) // b
        assert whole_parts([n], [b]) * across * 4 <= 16 * MIB


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_blocks_have_octets_of_items_which_c_blosc_shuffles_bit_by_bit(ndim, itemsize):
    rng = np.random.default_rng(ndim * itemsize)
    shapes = [np.exp(rng.uniform(np.log(100), np.log(3000), ndim)).astype(int).tolist() for _ in range(40)]
    large = [shape for shape in shapes if math.prod(shape) * itemsize >= 4 * MIB] or [[10**7 + 1]]
    others = [shape for shape in large if math.prod(automatic(shape, itemsize)[1]) % 8]
    # Where such a length would only add padding, none is taken.
    assert len(others) <= len(large) / 10


def test_colours_stay_together():
    assert automatic((24, 1000, 1000, 3), 1)[1][-1] == 3
    assert automatic((1000, 1000, 4), 1)[1][-1] == 4


SAMPLES = [
    ((24_000, 3, 64, 64), "u1"),
    ((50_000, 224, 224, 3), "u1"),
    ((60_000, 28, 28), "u1"),
    ((100_000, 768), "f4"),
    ((10**6, 512), "u2"),
    ((0, 3, 64, 64), "f4"),
    ((3000, 512, 512, 3), "u1"),
    ((900, 2000, 1000), "f4"),
]


@pytest.mark.parametrize(("shape", "dtype"), SAMPLES)
def test_a_random_sample_decodes_little_more_than_itself(shape, dtype):
    itemsize = np.dtype(dtype).itemsize
    chunks, blocks = automatic(shape, itemsize, access="samples")
    sample_nbytes = math.prod(shape[1:]) * itemsize
    touched = math.prod(-(-n // block) for n, block in zip(shape[1:], blocks[1:], strict=True))
    decoded = touched * math.prod(blocks) * itemsize
    assert decoded <= max(2**14, 1.2 * 4 * sample_nbytes)
    if sample_nbytes > 2**16:
        assert decoded <= 1.2 * sample_nbytes
    assert 2**20 <= math.prod(chunks) * itemsize <= 11 * 2**20


@pytest.mark.parametrize(
    ("shape", "itemsize", "is_set"),
    [
        ((24_000, 3, 64, 64), 1, True),
        ((60_000, 28, 28), 1, True),
        ((600, 240, 320, 3), 1, True),
        ((0, 240, 320, 3), 1, True),
        # Maps along time, volumes, tables and large pictures are read in other directions as well.
        ((24_000, 3, 64, 64), 4, False),
        ((87_600, 60, 60), 4, False),
        ((400, 512, 512), 1, False),
        ((10**6, 512), 1, False),
        ((12, 700, 700, 3), 1, False),
    ],
)
def test_sets_of_pictures_are_found(shape, itemsize, is_set):
    samples = automatic(shape, itemsize, access="samples")
    assert (automatic(shape, itemsize) == samples) is is_set


def test_samples_have_the_blocks_of_the_user():
    assert automatic((5000, 3, 64, 64), 1, access="samples", blocks="100 KiB")[1] == (8, 3, 64, 64)
    chunks, blocks = automatic((5000, 3, 64, 64), 1, access="samples", chunks=(10, -1, 32, 32))
    assert chunks == (10, 3, 32, 32)
    assert blocks[1:] == (3, 32, 32)
    assert automatic((5000,), 4, access="samples", blocks=(7,))[1] == (7,)
    assert automatic((), 4, access="samples") == ((), ())


def test_automatic_is_the_same_everywhere():
    assert automatic((), 8) == ((), ())
    assert automatic((10,), 8) == ((10,), (10,))
    assert automatic((10**8,), 8) == ((1177600,), (29440,))
    assert automatic((10000, 10000), 8) == ((704, 1408), (176, 176))
    assert automatic((10000, 100), 8) == ((3104, 100), (776, 34))
    assert automatic((100, 512, 512), 4) == ((32, 285, 171), (16, 57, 57))
    assert automatic((365, 721, 1440), 4) == ((46, 160, 320), (23, 40, 64))
    assert automatic((3, 1000, 1000, 1000), 1) == ((1, 168, 192, 168), (1, 56, 48, 56))
    assert automatic((8760, 181, 360), 4) == ((912, 28, 78), (152, 14, 26))
    assert automatic((30, 5, 5, 20, 64, 96), 4) == ((8, 2, 3, 20, 32, 60), (4, 2, 3, 7, 16, 20))
    assert automatic((365, 721, 1440), 4, access="series") == ((365, 370, 16), (365, 10, 16))
    assert automatic((365, 721, 1440), 4, access="boxes") == ((50, 192, 288), (25, 24, 24))


def test_thin_shapes_are_the_same_everywhere():
    def thin(shape, itemsize):
        return automatic(shape, itemsize, access="planes")

    assert thin((10**8,), 8) == ((1048576,), (8192,))
    assert thin((10000, 10000), 8) == ((96, 10000), (3, 2500))
    assert thin((10000, 100), 8) == ((2000, 100), (80, 100))
    assert thin((100, 512, 512), 4) == ((5, 256, 512), (1, 64, 256))
    assert thin((365, 721, 1440), 4) == ((5, 276, 1440), (1, 46, 360))
    assert thin((3, 1000, 1000, 1000), 1) == ((3, 20, 200, 600), (1, 10, 40, 200))


def test_an_unknown_kind_of_access_is_refused():
    with pytest.raises(
        ValueError, match="access must be one of 'balanced', 'planes', 'series', 'boxes', 'samples', not 'time'"
    ):
        automatic((10, 10), 8, access="time")


def test_an_extent_of_zero_gets_what_the_others_leave():
    assert automatic((0,), 8) == ((262144,), (8192,))
    assert automatic((0, 0), 8) == ((160, 1536), (32, 256))
    assert automatic((0, 1000, 1000), 8) == ((1, 1000, 1000), (1, 48, 200))
    assert automatic((0, 10), 4)[1] == (1640, 10)


def test_items_larger_than_a_block_stand_alone():
    assert automatic((5, 5), 3 * MIB) == ((1, 1), (1, 1))
    assert automatic((5, 50), 3 * MIB) == ((1, 3), (1, 1))
    assert automatic((100,), 0)[1] == (100,)


@settings(deadline=None)
@given(some_shapes, itemsizes, st.data())
def test_what_the_user_gives_is_kept(shape, itemsize, data):
    chunks, blocks = automatic(shape, itemsize)
    assert automatic(shape, itemsize, chunks=chunks, blocks=blocks) == (chunks, blocks)
    kept, own = automatic(shape, itemsize, chunks=list(chunks))
    assert kept == chunks
    assert math.prod(own) * itemsize <= MIB
    own, kept = automatic(shape, itemsize, blocks=blocks)
    assert kept == blocks
    assert own == chunks


def test_blocks_divide_given_chunks_without_padding_where_they_can():
    assert automatic((10**8,), 8, chunks=(10**6,)) == ((1000000,), (29416,))
    assert automatic((5000, 5000), 4, chunks=(900, 960)) == ((900, 960), (225, 240))


def test_given_shapes_may_exceed_the_array():
    assert automatic((4, 5), 8, blocks=(10, 10))[0] == (10, 10)
    assert automatic((4, 0), 8, chunks=(10, 10)) == ((10, 10), (10, 10))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"chunks": (10,)}, "chunks must have 2 extents, as the shape has, not 1"),
        ({"blocks": (10, 10, 10)}, "blocks must have 2 extents, as the shape has, not 3"),
        ({"chunks": (0, 10)}, "the extents of chunks must be at least 1"),
        ({"blocks": (10, -2)}, "the extents of blocks must be at least 1, or -1 for a whole axis, found -2"),
        ({"chunks": "large"}, r"""chunks takes "auto" or a size such as "8MB" or "512 KiB", found 'large'"""),
        ({"chunks": ("1MB", "2MB")}, "chunks can have one size, not 2"),
        ({"chunks": {2: 10}}, r"chunks names the axes \[2\], the array has 2"),
        ({"chunks": ((3, 4), 10)}, r"chunks along an axis of 1000000 must be equal, except the last.*\(3, 4\)"),
        ({"chunks": ((500_000, 300_000, 200_000), 10)}, "must be equal"),
        ({"chunks": (10, 10), "blocks": (10, 11)}, "must not exceed chunks"),
        ({"blocks": (2**16, 2**13)}, f"more than {MAX_BLOCKSIZE}"),
        ({"chunks": (2**16, 2**16), "blocks": (8, 8)}, f"more than {MAX_CHUNK_NBYTES}"),
        ({"chunks": (2**15 + 1, 2**13), "blocks": (2**15, 2**11)}, f"more than {MAX_CHUNK_NBYTES}"),
    ],
)
def test_given_shapes_are_checked(given, message):
    with pytest.raises(ValueError, match=message):
        automatic((10**6, 10**6), 4, **given)


@pytest.mark.parametrize(
    ("given", "chunks"),
    [
        (100, (100, 100, 100)),
        (-1, (90, 720, 1440)),
        ((1, -1, None), (1, 720, 1440)),
        ({0: 10}, (10, 720, 1440)),
        ({-1: 10, 0: "auto"}, (90, 720, 10)),
        (("auto", 720, 1440), (2, 720, 1440)),
        (((40, 40, 10), (720,), 9), (40, 720, 9)),
        ("1MB", (13, 104, 180)),
        ("1 MiB", (13, 104, 180)),
        (np.array([5, 6, 7]), (5, 6, 7)),
        ("auto", automatic((90, 720, 1440), 4)[0]),
    ],
)
def test_extents_are_given_in_many_forms(given, chunks):
    assert automatic((90, 720, 1440), 4, chunks=given)[0] == chunks


def test_a_whole_axis_that_will_grow_is_not_cut_at_its_present_end():
    assert automatic((0, 10), 4, chunks=-1)[0] == automatic((0, 10), 4)[0]


def test_axes_of_the_items_stay_whole():
    assert automatic((1000, 1000), 4, chunks=(10, 10), inner=(3,)) == ((10, 10, 3), (10, 10, 3))


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="at most 16 dimensions"):
        automatic((1,) * 17, 1)
    with pytest.raises(ValueError, match="negative dimensions"):
        automatic((3, -1), 1)
    with pytest.raises(TypeError):
        automatic((3, 1.5), 1)


def test_points_outside_the_bounds_are_not_looked_at_beside_an_empty_factor():
    index = (slice(0, 0, 1), np.array([[0, 7], [0, -1]]))
    assert list(parts(index, (1, 1, 1), ((0,), (1, 2)))) == []
    assert list(parts((np.empty((1, 0), np.int64), index[1]), (1, 1, 1), ((0,), (1, 2)))) == []
