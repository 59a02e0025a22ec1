"""Random views of random arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import b2array


@st.composite
def shown(draw, dtype, items, views=True):
    """The same items as an array, or a view of one, and as a NumPy array."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 0, 5]), max_size=3)))
    chunks = tuple(draw(st.integers(1, max(n, 1) + 1)) for n in shape)
    blocks = tuple(draw(st.integers(1, n)) for n in chunks)
    options = {"chunks": chunks, "blocks": blocks, "layout": draw(st.sampled_from(["contiguous", "sparse"]))}
    seed = draw(st.integers(0, 99))
    fill = items(dtype, (), draw(st.integers(0, 9)))[()] if seed % 4 == 0 else 0
    array = b2array.create(None, shape, dtype, fill_value=fill, **options)
    values = np.full(shape, array.fill_value, dtype)
    if seed % 7 and values.size:
        part = tuple(slice(0, draw(st.integers(0, n))) for n in shape)
        array[part] = values[part] = items(dtype, np.shape(values[part]), seed)
    return draw(viewed(array, values)) if views else (array, values)


@st.composite
def viewed(draw, array, values):
    for _ in range(draw(st.sampled_from([0, 0, 1, 2, 4]))):
        array, values = draw(changed(array, values))
    return array, values


SLICES = [
    slice(*each) for each in ((None,), (1, None), (None, -1), (None, None, 2), (None, None, -1), (None, None, -3))
]


@st.composite
def changed(draw, array, values):
    """Transpose, slice, squeeze, split or join both; as they were where no view can show that."""
    kind = draw(st.sampled_from(["transpose", "slice", "slice", "squeeze", "split", "join"]))
    if kind == "transpose":
        order = draw(st.permutations(range(values.ndim)))
        return array.transpose(order), values.transpose(order)
    if kind == "squeeze":
        return array.squeeze(), values.squeeze()
    try:
        if kind == "slice":
            entries = st.sampled_from([*SLICES, *SLICES, None, 0, -1, ...])
            key = tuple(draw(st.lists(entries, max_size=values.ndim)))
            return array.view[key], values[(*key, ...) if ... not in key else key]
        axis = draw(st.integers(0, max(values.ndim - 1, 0)))
        n = values.shape[axis] if values.ndim else 1
        new = (-1,)
        if kind == "split":
            new = draw(st.sampled_from([(d, n // d) for d in range(1, n + 1) if n % d == 0] or [(0, 1)]))
        shape = (*values.shape[:axis], *new, *values.shape[axis + 1 + (kind == "join") :])
        return array.reshape(shape), values.reshape(shape)
    except (IndexError, ValueError):
        return array, values
