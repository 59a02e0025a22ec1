"""Random keys: what NumPy takes as an index, and what it refuses.

Most of the time of a test with Hypothesis goes into making strategies. So those that are asked for again are kept, and
what to choose from is in tuples, by which Hypothesis finds a strategy that it has made before.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from hypothesis import strategies as st


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value

    def __repr__(self):
        return f"Index({self.value})"


def _short(bound):
    """Return a short type for integers from -bound - 1 to bound."""
    return np.int8 if bound < 128 else np.int32


@cache
@st.composite
def integers(draw, extent):
    bound = max(extent, 1)
    value = draw(st.one_of(st.integers(-bound, bound - 1), st.integers(-bound - 1, bound)))
    kind = draw(st.sampled_from((int, int, int, np.int64, _short(bound), np.array, Index)))
    return kind(value)


@cache
@st.composite
def slices(draw, extent):
    bounds = st.one_of(st.none(), st.integers(-extent - 2, extent + 2))
    start, stop = draw(bounds), draw(bounds)
    step = draw(st.sampled_from((None, 1, 1, 2, 3, -1, -2, -7, 10**30, -(10**30))))
    if draw(st.booleans()):
        start = None if start is None else Index(start)
        step = None if step is None or abs(step) > 10 else np.int16(step)
    return slice(start, stop, step)


@cache
@st.composite
def integer_arrays(draw, extent, whole):
    """An index array that broadcasts to the shape `whole`."""
    dims = [n if draw(st.integers(0, 3)) else 1 for n in whole[draw(st.integers(0, len(whole) - 1)) :]]
    size, bound = math.prod(dims), max(extent, 1)
    flat = draw(st.lists(st.integers(-bound, bound - 1), min_size=size, max_size=size))
    if flat and draw(st.integers(0, 30)) == 0:
        flat[-1] = draw(st.sampled_from((bound, -bound - 1)))
    array = np.array(flat, draw(st.sampled_from((np.int64, _short(bound), ">i4")))).reshape(dims)
    kind = draw(st.sampled_from(("array", "list", "tuple", "unsigned")))
    if kind == "unsigned" and (array >= 0).all():
        return array.astype(np.uint64)
    if kind == "tuple" and array.ndim == 1:
        return tuple(array.tolist())
    return array.tolist() if kind == "list" else array


@cache
@st.composite
def masks(draw, extents):
    size = math.prod(extents)
    packed = draw(st.binary(min_size=-(-size // 8), max_size=-(-size // 8)))
    array = np.unpackbits(np.frombuffer(packed, "u1"), count=size).astype(bool).reshape(extents)
    return array.tolist() if array.size and draw(st.booleans()) else array


JUNK = [
    0,
    ...,
    1.0,
    "none",
    b"a",
    2**70,
    [1.5],
    [[1], [1, 2]],
    [None],
    {},
    slice(None, None, 0),
    slice(0.5),
    np.zeros(0),
    [True],
    np.zeros(0, bool),
]
junk = st.sampled_from(JUNK)
bools = st.sampled_from([True, False, np.True_, np.array(False), np.array(True)])


@cache
@st.composite
def keys(draw, shape):
    """A key that mixes everything; most are valid for an array of shape `shape`."""
    kinds = ("int", "slice", "slice", "new", "stop", "ellipsis")
    kinds += draw(st.sampled_from(((), ("array",) * 4, ("array", "mask") * 2, ("mask",) * 4, ("array", "bool") * 2)))
    whole = draw(st.sampled_from(((1,), (2,), (3,), (0,), (2, 3), (3, 1, 2), (2, 0))))
    entries, axis, ellipsis = [], 0, False
    while len(entries) < 8:
        kind = draw(st.sampled_from(kinds))
        left = len(shape) - axis
        if kind == "new":
            entries.append(None)
        elif kind == "bool":
            entries.append(draw(bools))
        elif kind == "stop" or not left:
            break
        elif kind == "ellipsis" and not ellipsis:
            ellipsis = True
            entries.append(...)
            axis += draw(st.integers(0, left))
        elif kind == "mask":
            covered = draw(st.integers(1, left))
            entries.append(draw(masks(shape[axis : axis + covered])))
            axis += covered
        elif kind == "array":
            entries.append(draw(integer_arrays(shape[axis], whole)))
            axis += 1
        else:
            entries.append(draw(integers(shape[axis]) if kind == "int" else slices(shape[axis])))
            axis += 1
    if draw(st.integers(0, 20)) == 0:
        entries.insert(draw(st.integers(0, len(entries))), draw(junk))
    return entries[0] if len(entries) == 1 and draw(st.booleans()) else tuple(entries)


@st.composite
def orthogonal_keys(draw, shape):
    return tuple(
        draw(st.one_of(integers(n), slices(n), integer_arrays(n, (3,)), integer_arrays(n, (0,)), masks((n,))))
        for n in shape[: draw(st.integers(0, len(shape)))]
    )
