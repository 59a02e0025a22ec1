"""Which keys shapes serve badly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2array.grid.advice import advice, count_decoded_nbytes
from b2array.grid.chunking import Access, automatic
from b2array.grid.layout import Layout


def layout_of(shape: tuple[int, ...], chunks: tuple[int, ...], blocks: tuple[int, ...]) -> Layout:
    return Layout(shape, chunks, blocks, np.dtype("f4"), "<f4")


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int, int, slice]:
    extent = draw(st.integers(1, 40))
    chunk = draw(st.integers(1, extent))
    block = draw(st.integers(1, chunk))
    start = draw(st.integers(0, extent - 1))
    # A longer step than a block passes over blocks: it is counted as if it touched one for each item at most.
    return extent, chunk, block, slice(start, draw(st.integers(start + 1, extent)), draw(st.integers(1, block)))


@given(st.lists(axes(), min_size=1, max_size=3))
def test_the_blocks_that_slices_touch_are_counted(parts: list[tuple[int, int, int, slice]]) -> None:
    shape, chunks, blocks, positions = zip(*parts, strict=True)
    layout = layout_of(shape, chunks, blocks)
    items = itertools.product(*(range(n)[part] for n, part in zip(shape, positions, strict=True)))
    touched = {tuple((i // c, i % c // b) for i, c, b in zip(item, chunks, blocks, strict=True)) for item in items}
    # A step may pass over the last short block of a chunk.
    counted = count_decoded_nbytes(layout, positions) // layout.block_nbytes
    assert len(touched) <= counted
    if all(part.step == 1 for part in positions):
        assert counted == len(touched)


@pytest.mark.parametrize("shape", [(400, 200, 200), (3000, 4000), (365, 180, 360), (12, 40, 90, 180), (10**7,)])
def test_balanced_shapes_serve_no_usual_key_badly(shape: tuple[int, ...]) -> None:
    layout = layout_of(shape, *automatic(shape, 4))
    assert advice(layout, [slice(0, n) for n in shape]) == ""


def test_a_key_that_is_served_badly_is_told_what_would_serve_it() -> None:
    shape = (1000, 500, 500)
    layout = layout_of(shape, *automatic(shape, 4, access="series"))
    assert advice(layout, (slice(0, 1000), slice(7, 8), slice(7, 8))) == ""
    told = advice(layout, (slice(7, 8), slice(0, 500), slice(0, 500)))
    assert told.startswith('access="planes" would decode ')
    assert told.endswith(" times less")


def test_keys_that_an_array_serves_badly_are_listed() -> None:
    shape = (365, 180, 360)
    layout = layout_of(shape, *automatic(shape, 4, access="planes"))
    told = advice(layout, [slice(0, n) for n in shape])
    assert told.startswith('access="balanced" would decode less for a[:, ')
    assert "a[:, i, i] (" in told
    assert "a[i, :, :]" not in told


def test_small_reads_and_empty_arrays_need_no_advice() -> None:
    assert advice(layout_of((10, 10), (10, 10), (10, 10)), (slice(0, 1), slice(0, 10))) == ""
    assert advice(layout_of((0, 10), (1, 10), (1, 10)), (slice(0, 0), slice(0, 10))) == ""


def test_a_random_sample_is_told_what_would_serve_it() -> None:
    shape = (6000, 3, 64, 64)
    key = (slice(7, 8), *(slice(0, n) for n in shape[1:]))
    balanced = layout_of(shape, *automatic(shape, 4))
    assert advice(balanced, key).startswith('access="samples" would decode ')
    assert advice(layout_of(shape, *automatic(shape, 4, access="samples")), key) == ""


def test_pictures_that_are_cut_are_told_so() -> None:
    shape = (24_000, 3, 64, 64)

    def pictures(access: Access | None) -> Layout:
        return Layout(shape, *automatic(shape, 1, access=access), np.dtype("u1"), "|u1")

    whole = [slice(0, n) for n in shape]
    assert advice(pictures("balanced"), whole).startswith('access="samples" would decode less for a[i, :, :, :] (')
    assert advice(pictures(None), whole) == ""
