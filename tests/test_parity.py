"""What NumPy reads and writes with a key, b2array reads and writes: random keys, arrays, layouts and values.

There is no list of exceptions. Both sides may raise, but then NumPy raised first, and an error of the same kind.
"""

from __future__ import annotations

import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_array import arrays, assigned, outcome, same
from test_indexing import keys, orthogonal_keys

checked = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
KEYS_EACH = 8
cases = {"get": 0, "set": 0}


def kind(found):
    return found if isinstance(found, type) else None


@checked
@given(st.data(), arrays())
def test_get(data, pair):
    array, values = pair
    for _ in range(KEYS_EACH):
        key = data.draw(keys(values.shape))
        found, expected = outcome(lambda: array[key]), outcome(lambda: values[key])  # noqa: B023
        assert kind(found) is kind(expected)
        assert same(found, expected)
        cases["get"] += 1


@checked
@given(st.data(), arrays())
def test_set(data, pair):
    array, values = pair
    for _ in range(KEYS_EACH):
        key = data.draw(keys(values.shape))
        shape = outcome(lambda: values[key].shape)  # noqa: B023
        value = data.draw(assigned(() if isinstance(shape, type) else shape, values.dtype))
        before = array.generation
        with warnings.catch_warnings(action="ignore"):
            expected = outcome(lambda: values.__setitem__(key, value))  # noqa: B023
            found = outcome(lambda: array.__setitem__(key, value))  # noqa: B023
        assert kind(found) is kind(expected)
        assert same(array[...], values)
        if not isinstance(shape, type) and 0 in shape:
            assert array.generation == before
        cases["set"] += 1


@checked
@given(st.data(), arrays())
def test_oindex_and_vindex(data, pair):
    array, values = pair
    key = data.draw(orthogonal_keys(values.shape))
    found = outcome(lambda: array.oindex[key])
    if not isinstance(found, type):
        array.oindex[key] = found
        assert same(array[...], values)
    points = tuple(data.draw(st.integers(-n, n - 1)) if n else 0 for n in values.shape)
    if values.size and values.ndim:
        assert same(array.vindex[tuple([p, p] for p in points)], values[tuple([p, p] for p in points)])


def test_there_were_thousands_of_cases():
    if not all(cases.values()):
        pytest.skip("the other tests of this file ran in another process")
    assert min(cases.values()) >= 250 * KEYS_EACH
