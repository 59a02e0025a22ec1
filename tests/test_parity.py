"""What NumPy reads and writes with a key, b2array reads and writes: random keys, arrays, layouts and values.

There is no list of exceptions. Where NumPy raises, an error of the same class is raised, and nothing has changed.
"""

from __future__ import annotations

import numpy as np
from arrays import DTYPES, arrays, assigned, check_writing, outcome, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keys import keys
from lengths import examples

KEYS_EACH = 10
checked = settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
records = [dtype for dtype in DTYPES if dtype.names is not None]


@st.composite
def any_key(draw, values):
    """A key, or for records mostly a field or several."""
    names = values.dtype.names
    if names is None or draw(st.integers(0, 3)) == 0:
        return draw(keys(values.shape))
    chosen = draw(st.lists(st.sampled_from((*names, "no field")[: len(names) + (draw(st.integers(0, 9)) == 0)])))
    return chosen[0] if len(chosen) == 1 and draw(st.booleans()) else chosen


def check_get(data, array, values):
    for _ in range(KEYS_EACH):
        key = data.draw(any_key(values))
        assert same(outcome(lambda: array[key]), outcome(lambda: values[key]))  # noqa: B023


def check_set(data, array, values):
    for _ in range(KEYS_EACH):
        key = data.draw(any_key(values))
        target = outcome(lambda: values[key])  # noqa: B023
        wrong = isinstance(target, type)
        # NumPy returns an item of text of any length as a str, which has no shape and no type.
        shape = () if wrong else np.shape(target)
        dtype = values.dtype if wrong else getattr(target, "dtype", values.dtype)
        value = data.draw(assigned(shape, dtype))
        check_writing(array, values, key, value)


@checked
@given(st.data(), arrays())
def test_get(data, pair):
    check_get(data, *pair)


@checked
@given(st.data(), arrays())
def test_set(data, pair):
    check_set(data, *pair)


@settings(checked, max_examples=examples(50))
@given(st.data(), arrays(dtypes=records))
def test_get_of_records(data, pair):
    check_get(data, *pair)


@settings(checked, max_examples=examples(50))
@given(st.data(), arrays(dtypes=records))
def test_set_of_records(data, pair):
    check_set(data, *pair)
