"""Attributes are a mapping whose changes are commits, and python-blosc2 sees the same."""

from __future__ import annotations

from collections.abc import MutableMapping

import blosc2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array.errors import ConflictError, FormatError, ReadOnlyError
from b2array.store.local_store import LocalStore

LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])


@pytest.fixture
def array(tmp_path):
    return b2array.zeros(4, url=tmp_path / "a.b2nd")


def test_the_attributes_are_a_mutable_mapping(array):
    attrs = array.attrs
    assert isinstance(attrs, MutableMapping)
    attrs["unit"] = "K"
    attrs.update(scale=0.5, tags=["a", "b"])
    assert dict(attrs) == {"unit": "K", "scale": 0.5, "tags": ["a", "b"]}
    assert (len(attrs), list(attrs), "unit" in attrs, 3 in attrs) == (3, ["unit", "scale", "tags"], True, False)
    assert attrs.pop("scale") == 0.5
    assert attrs.setdefault("unit", "m") == "K"
    assert attrs.get("missing") is None
    assert attrs == {"unit": "K", "tags": ["a", "b"]}
    assert repr(attrs) == "{'unit': 'K', 'tags': ['a', 'b']}"
    attrs.clear()
    assert not attrs


@LAYOUTS
def test_both_libraries_see_the_same(tmp_path, layout):
    array = b2array.zeros(4, url=tmp_path / "a.b2nd", layout=layout)
    array.attrs["ours"] = {"a": [1, 2.5, None], "t": (1, 2)}
    stock = blosc2.open(str(tmp_path / "a.b2nd"), mode="a")
    assert stock.schunk.vlmeta["ours"] == {"a": [1, 2.5, None], "t": (1, 2)}
    stock.schunk.vlmeta["theirs"] = 1 + 2j
    stock.schunk.vlmeta["ours"] = "changed"
    del stock
    array.refresh()
    assert dict(array.attrs) == {"ours": "changed", "theirs": 1 + 2j}
    del array.attrs["theirs"]
    assert "theirs" not in blosc2.open(str(tmp_path / "a.b2nd")).schunk.vlmeta


def test_each_change_is_a_commit(array):
    states = [array.generation]
    for change in (
        lambda: array.attrs.update(x=1),
        lambda: array.attrs.update(x=2),
        lambda: array.attrs.pop("x"),
    ):
        change()
        states.append(array.generation)
    assert len(set(states)) == 4
    assert not b2array.open(array.url).attrs


def test_many_changes_in_a_transaction_are_one_commit_or_none(array):
    with array.transaction():
        array.attrs["x"] = 1
        array.attrs["y"] = 2
        del array.attrs["x"]
        assert dict(array.attrs) == {"y": 2}
        assert not b2array.open(array.url).attrs
    assert dict(b2array.open(array.url).attrs) == {"y": 2}
    with pytest.raises(ZeroDivisionError), array.transaction():
        array.attrs["y"] = 1 // 0
    with pytest.raises(KeyboardInterrupt), array.transaction():
        array.attrs["z"] = 1
        raise KeyboardInterrupt
    assert dict(array.attrs) == {"y": 2}


def test_missing_names_are_key_errors(array):
    state = array.generation
    for use in (lambda: array.attrs["x"], lambda: array.attrs.__delitem__("x"), lambda: array.attrs.pop("x")):
        with pytest.raises(KeyError, match="x"):
            use()
    assert array.generation == state


@pytest.mark.parametrize("name", [1, None, b"x", ("x",)])
def test_names_are_text(array, name):
    with pytest.raises(TypeError, match="attribute names are str"):
        array.attrs[name] = 1


@pytest.mark.parametrize("value", [object(), {1: object()}, 2**70, slice(3)])
def test_values_that_cannot_be_stored_change_nothing(array, value):
    state = array.generation
    with pytest.raises(TypeError):
        array.attrs["x"] = value
    assert array.generation == state


def test_a_handle_for_reading_changes_no_attribute(array):
    array.attrs["x"] = 1
    reader = b2array.open(array.url)
    for change in (lambda: reader.attrs.update(x=2), lambda: reader.attrs.pop("x"), lambda: reader.attrs.clear()):
        with pytest.raises(ReadOnlyError):
            change()


@LAYOUTS
@given(
    st.lists(st.tuples(st.integers(0, 25), st.one_of(st.none(), st.integers(-9, 9), st.text(max_size=3))), max_size=12)
)
@settings(max_examples=examples(15), deadline=None)
def test_any_number_of_attributes_is_kept_and_stock_can_still_write(tmp_path_factory, layout, changes):
    url = tmp_path_factory.mktemp("a") / "a.b2nd"
    first = {f"name {n}": n for n in range(18)}
    array, model = b2array.zeros(4, url=url, layout=layout, attrs=first), dict(first)
    with array.transaction():
        for n, value in changes:
            name = "x" * 40 if n == 25 else f"name {n}"
            if value is None and name in model:
                del array.attrs[name], model[name]
            else:
                array.attrs[name] = model[name] = value
    assert dict(b2array.open(url).attrs) == model
    stock = blosc2.open(str(url), mode="a")
    stock[0] = 7
    del stock
    found = b2array.open(url)
    assert dict(found.attrs) == model
    assert found[0] == 7


def test_handles_set_different_attributes_without_seeing_each_other(array):
    other = b2array.open(array.url, "r+")
    array.attrs["a"] = 1
    other.attrs["b"] = 2
    array[0] = 3
    array.attrs["b"] = 4
    assert dict(b2array.open(array.url).attrs) == {"a": 1, "b": 4}
    with pytest.raises(ConflictError, match=r"\['a'\]"), other.transaction():
        other.attrs["a"] = 5
        array.attrs["a"] = 6
    assert b2array.open(array.url).attrs["a"] == 6


@pytest.fixture
def overtake(array, monkeypatch):
    """Let a verb run when a commit through `array` is about to take the lock, and at no other time."""

    def register(verb):
        lock, calls = LocalStore.lock, []

        def locked(store, *args, **kwargs):
            if store is array._handle.store and not calls:
                calls.append(store)
                verb()
            return lock(store, *args, **kwargs)

        monkeypatch.setattr(LocalStore, "lock", locked)

    return register


def test_an_attribute_is_set_again_on_another_shape(array, overtake):
    other = b2array.open(array.url, "r+")

    def reshape():
        other.append([1, 2])
        other.attrs["a"] = 1

    overtake(reshape)
    array.attrs["a"] = 2
    found = b2array.open(array.url)
    assert (found.shape, dict(found.attrs)) == ((array.shape[0],), {"a": 2})


def test_an_attribute_that_another_writer_removed_meanwhile_cannot_be_removed(array, overtake):
    array.attrs.update(a=1, b=2)
    other = b2array.open(array.url, "r+")
    overtake(lambda: other.attrs.pop("a"))
    with pytest.raises(KeyError, match="a"):
        del array.attrs["a"]
    assert dict(b2array.open(array.url).attrs) == {"b": 2}


def test_a_damaged_value_is_a_format_error_with_its_name(array):
    for attempt in array._handle.attempts():
        with attempt as draft:
            draft.set_attr("bad", b"\xc1")
    array.attrs["good"] = 1
    with pytest.raises(FormatError, match="attribute 'bad'"):
        array.attrs["bad"]
    assert array.attrs["good"] == 1
    del array.attrs["bad"]
    assert dict(array.attrs) == {"good": 1}


def test_the_metalayer_with_the_notes_is_no_attribute(array):
    array.attrs["b2array"] = "mine"
    assert dict(b2array.open(array.url).attrs) == {"b2array": "mine"}
    assert array.fill_value == 0
    array[1] = 5
    assert array.attrs["b2array"] == "mine"


def test_arrays_are_values(array):
    array.attrs["v"] = np.arange(3, dtype="u2")
    found = b2array.open(array.url).attrs["v"]
    assert found.dtype == "u2"
    assert found.tolist() == [0, 1, 2]
