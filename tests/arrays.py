"""Random arrays of every type and what is assigned to them, and how results are compared with NumPy's."""

from __future__ import annotations

import math
import warnings

import numpy as np
from hypothesis import strategies as st

import b2array
from b2array.array import array_copying
from b2array.array.drafts import ArrayOptions
from b2array.commit.frame_commit import commit
from b2array.grid.runs import automatic_run

RECORD = np.dtype([("x", "<i4"), ("y", ">f8")])
ALIGNED = np.dtype([("a", "i1"), ("b", "f8"), ("c", "S3", (2,))], align=True)
SPARSE_FIELDS = np.dtype({"names": ["p", "q"], "formats": ["<u2", "<f4"], "offsets": [6, 1], "itemsize": 11})
NESTED = np.dtype([("point", [("x", "f4"), ("y", "f4")]), ("t", "M8[ms]")])
TEXT = np.dtypes.StringDType()
MISSING = np.dtypes.StringDType(na_object=None)
DTYPES = [
    *map(np.dtype, ("?", "i1", "u2", ">i4", "<u8", "f2", ">f4", "f8", "g", "c8", ">c16", "G", "S1", "S5")),
    *map(np.dtype, ("<U3", ">U2", "V1", "V7", "V300", "M8[ns]", ">M8[D]", "m8[us]", "M8")),
    RECORD,
    ALIGNED,
    SPARSE_FIELDS,
    NESTED,
    TEXT,
    MISSING,
]
NUMBERS = [np.dtype(text) for text in ("?", "i1", "u2", ">i4", "<u8", "f2", ">f4", "f8", "g", "c8", ">c16")]


def items(dtype, shape, seed=0):
    """Random items of any type, special values included."""
    rng = np.random.default_rng(seed)
    size = math.prod(shape)
    if dtype.names is not None:
        made = np.zeros(shape, dtype)
        for n, name in enumerate(dtype.names):
            field = dtype[name]
            base, inner = field.subdtype or (field, ())
            made[name] = items(base, (*shape, *inner), seed + n)
        return made
    if dtype.kind in "fc":
        flat = rng.choice([0.0, -0.0, 1.0, -2.5, np.nan, np.inf, 1e-7, 3e4], size)
        made = flat.astype(dtype)
        if dtype.kind == "c":
            made.imag = rng.permutation(flat)
        return made.reshape(shape)
    if dtype.kind == "T":
        words = ["", "a", "bc", "Grüße", "more than fifteen bytes", *([dtype.na_object] if dtype == MISSING else [])]
        return np.array([words[n] for n in rng.integers(0, len(words), size)], dtype).reshape(shape)
    if dtype.kind in "SU":
        return rng.choice(np.array(["", "a", "bc", "def", "ghijk"]), size).astype(dtype).reshape(shape)
    if dtype.kind == "b":
        return rng.integers(0, 2, size).astype(bool).reshape(shape)
    return np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).reshape(shape).copy()


def same(found, expected):
    """Whether two results are the same items of the same type; padding bytes do not count."""
    assert type(found) is type(expected)
    if isinstance(expected, type):
        return found is expected
    left, right = np.asarray(found), np.asarray(expected)
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    return bits(left) == bits(right)


def bits(values):
    if values.dtype.names is not None:
        return [bits(values[name]) for name in values.dtype.names]
    if values.dtype.kind == "T":
        return values.tolist()
    if values.dtype.char in "gG":
        nans = np.isnan(values)
        return nans.tobytes(), np.where(nans, 0, values).tolist(), np.signbit(np.where(nans, 0, values.real)).tobytes()
    return np.ascontiguousarray(values).tobytes()


def outcome(action):
    try:
        return action()
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        return type(error)


shapes = st.one_of(
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 7]), max_size=4).map(tuple),
    st.just((2, 1, 1, 2, 1, 2, 1, 1, 2)),
    st.just((37,)),
)


@st.composite
def arrays(draw, dtypes=DTYPES):
    """The same items as an `NDArray` in memory and as a NumPy array."""
    shape, dtype = draw(shapes), draw(st.sampled_from(tuple(dtypes)))
    chunks = tuple(draw(st.integers(1, max(n, 1) + 1)) for n in shape)
    blocks = tuple(draw(st.integers(1, n)) for n in chunks)
    if dtype.kind == "T":
        blocks = automatic_run(chunks, math.prod(blocks))
    cparams = b2array.CParams(draw(st.sampled_from(("lz4", "zstd"))), clevel=draw(st.sampled_from((0, 1, 5))))
    layout = draw(st.sampled_from(("contiguous", "sparse")))
    options = {"chunks": chunks, "blocks": blocks, "cparams": cparams, "layout": layout}
    if draw(st.booleans()):
        values = items(dtype, shape, draw(st.integers(0, 99)))
        return b2array.asarray(values, **options), values
    fill = items(dtype, (), draw(st.integers(0, 9)))[()]
    return b2array.create(None, shape, dtype, fill_value=fill, **options), np.full(shape, fill, dtype)


numbers = st.sampled_from(NUMBERS)
kinds = st.sampled_from(["array", "array", "flipped", "fortran", "strided", "list", "scalar", "object"])


@st.composite
def assigned(draw, shape, dtype):
    """A value that mostly broadcasts to `shape`: other types, layouts in memory and kinds of objects."""
    dims = [n if draw(st.integers(0, 3)) else 1 for n in shape[draw(st.integers(0, len(shape))) :]]
    if dims and draw(st.integers(0, 9)) == 0:
        dims[draw(st.integers(0, len(dims) - 1))] = draw(st.sampled_from((0, 2, 3)))
    dims = (*[1] * draw(st.sampled_from((0, 0, 0, 1))), *dims)
    other = draw(numbers) if dtype in NUMBERS and draw(st.booleans()) else dtype
    value = items(other, dims, draw(st.integers(0, 99)))
    kind = draw(kinds)
    if kind == "flipped":
        return value[(slice(None, None, -1),) * value.ndim]
    if kind == "fortran":
        return np.asfortranarray(value)
    if kind == "strided" and dims:
        return np.repeat(value, 2, -1)[..., ::2]
    if kind == "object" and value.dtype.kind in "biufc" and value.dtype.char != "g":
        return value.astype(object)
    # Python knows neither units of 64 bits nor records that are not tuples.
    if kind == "list" and value.dtype.kind in "biufSU" and value.dtype.char != "g":
        return value.tolist()
    return value.ravel()[0] if kind == "scalar" and value.size else value


def is_one_of(found, wanted, read, value, dtype):
    """Whether an assignment ends as NumPy's; if key and value are both wrong, either mistake may be named.

    Which one NumPy names first depends on the number and shapes of index arrays. So does whether it converts a value of
    which nothing is assigned.
    """
    converted = outcome(lambda: np.asarray(value, dtype))
    if found is None and isinstance(read, np.ndarray) and not read.size:
        return wanted is None or wanted is converted
    both = (read, converted) if {type(read), type(wanted)} == {type} else ()
    return any(found is error for error in (wanted, *both))


def set_in_numpy(values, key, value):
    """Assign to a part of an array of NumPy.

    Releases before 2.5 may end the process if positions select items of text of any length, and the value is an array
    of such text (numpy/numpy#32153). An array of objects is assigned in another way.
    """
    if values.dtype.kind == "T" and isinstance(value, np.ndarray) and value.dtype.kind == "T":
        value = value.astype(values.dtype).astype(object)
    values[key] = value


def check_writing(array, values, key, value):
    """Assign to the same part of an array here and of one of NumPy, and compare what comes of it."""
    old, before = values.copy(), array.generation
    target = outcome(lambda: values[key])
    with warnings.catch_warnings(action="ignore"):
        expected = outcome(lambda: set_in_numpy(values, key, value))
        found = outcome(lambda: array.__setitem__(key, value))
        assert is_one_of(found, expected, target, value, values.dtype)
    if expected is not None:
        values[...] = old  # NumPy may have stored a part
    assert same(array[...], values)
    if expected is not None or not np.size(target):
        assert array.generation == before


def put_frame(url, values, **options):
    """Store an array as a frame with exactly this URL, as other programs do: in a group, it may be no member."""
    commit(array_copying.holding(values, str(url), None, ArrayOptions(**options)))
