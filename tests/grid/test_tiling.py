"""How the reading of slices is planned: blocks, steps, and what is copied of each."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from b2array.grid.layout import Layout
from b2array.grid.tiling import tiling_of


def layout_of(chunks, blocks):
    return Layout(chunks, chunks, blocks, np.dtype("i8"), "<i8")


@st.composite
def slices_of_a_chunk(draw):
    chunks = tuple(draw(st.lists(st.integers(1, 12), max_size=3)))
    blocks = tuple([draw(st.integers(1, extent)) for extent in chunks])
    starts = [draw(st.integers(0, extent - 1)) for extent in chunks]
    stops = [draw(st.integers(start + 1, extent)) for start, extent in zip(starts, chunks, strict=True)]
    steps = [draw(st.integers(1, 14)) if stop - start > 1 else 1 for start, stop in zip(starts, stops, strict=True)]
    return layout_of(chunks, blocks), tuple(map(slice, starts, stops, steps))


def blocks_of(layout):
    """Return a chunk whose items count up in C order, and its blocks."""
    chunk = np.arange(math.prod(layout.chunks)).reshape(layout.chunks)
    padded = np.full(layout.extended_chunks, -1)
    padded[tuple(map(slice, layout.chunks))] = chunk
    split = padded.reshape([n for pair in zip(layout.block_grid, layout.blocks, strict=True) for n in pair])
    moved = split.transpose(*range(0, split.ndim, 2), *range(1, split.ndim, 2))
    return chunk, moved.reshape(layout.nblocks, *layout.blocks)


@given(slices_of_a_chunk(), st.integers(1, 20))
def test_the_steps_of_a_plan_copy_each_selected_item_to_its_place(selected, length):
    layout, inside = selected
    chunk, blocks = blocks_of(layout)
    plan = tiling_of(layout, inside, length)
    target = np.full(chunk[inside].shape, -1)
    ndim = layout.ndim
    for step in plan.steps:
        assert math.prod(step.counts) == len(step.numbers) <= length
        data = blocks[(step.numbers, *(plan.within or ()))].reshape(step.counts + plan.shape)
        for copy in step.copies:
            assert not copy.whole or data[copy.source].shape[ndim:] == plan.shape
            taken = data[copy.source].transpose([axis for n in range(ndim) for axis in (n, ndim + n)])
            assert taken.shape == copy.split
            target[copy.target] = taken.reshape(target[copy.target].shape)
    assert plan.numbers == [number for step in plan.steps for number in step.numbers]
    assert np.array_equal(target, chunk[inside])


def test_plans_of_very_many_blocks_are_not_kept():
    layout = layout_of((2**14, 1), (1, 1))
    tracemalloc.start()
    try:
        for step in (1, 2):
            tiling_of(layout, (slice(0, 2**14, step), slice(0, 1, 1)), 2**14)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2**20
