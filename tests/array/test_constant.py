"""What is inside an attribute cannot be changed by mistake, and still behaves as the value that was stored."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
import xarray as xr

import b2array
from b2array.xarray_io import to_b2array

VALUE = {"gain": 1.0, "steps": [1, [2, 3]], "pair": (4, {"a": 5}), "table": {"b": {"c": 6}}}


@pytest.fixture(params=["array", "group", "super-chunk"])
def attrs(request: pytest.FixtureRequest) -> Any:
    if request.param == "array":
        return b2array.zeros(3, attrs={"v": VALUE}).attrs
    if request.param == "group":
        group = b2array.open_group("memory://constant.b2d", "w")
        group.attrs["v"] = VALUE
        return group.attrs
    chunks = b2array.create_schunk(chunksize=8)
    chunks.vlmeta["v"] = VALUE
    return chunks.vlmeta


CHANGES = {
    "item": lambda v: v.__setitem__("gain", 2),
    "new item": lambda v: v.__setitem__("new", 2),
    "deletion": lambda v: v.__delitem__("gain"),
    "update": lambda v: v.update(gain=2),
    "union": lambda v: v.__ior__({"gain": 2}),
    "pop": lambda v: v.pop("gain"),
    "setdefault": lambda v: v.setdefault("gain", 3),
    "item of a list": lambda v: v["steps"].__setitem__(0, 2),
    "append": lambda v: v["steps"].append(2),
    "extension": lambda v: v["steps"].__iadd__([2]),
    "sort": lambda v: v["steps"][1].sort(),
    "in a tuple": lambda v: v["pair"][1].clear(),
    "in a table": lambda v: v["table"]["b"].__setitem__("c", 7),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_inside_an_attribute_is_refused(attrs: Any, change: str) -> None:
    with pytest.raises(TypeError, match="would be lost: assign a changed copy"):
        CHANGES[change](attrs["v"])
    assert attrs["v"] == VALUE


def test_copies_of_an_attribute_can_be_changed_and_stored(attrs: Any) -> None:
    value = attrs["v"]
    assert value == VALUE
    assert repr(value) == repr(VALUE)
    assert json.loads(json.dumps(value)) == json.loads(json.dumps(VALUE))
    for clone in (copy.deepcopy(value), pickle.loads(pickle.dumps(value)), copy.copy(value), dict(value)):
        assert clone == VALUE
        clone["gain"] = 2.0
    deep = copy.deepcopy(value)
    deep["steps"][1].append(9)
    deep["pair"][1]["a"] = 10
    deep["table"]["b"]["c"] = 11
    attrs["v"] = deep
    assert attrs["v"] == deep
    assert attrs["v"]["steps"] == [1, [2, 3, 9]]
    attrs["v"] = attrs["v"]
    assert attrs["v"] == deep


def test_arrays_and_sets_in_attributes_cannot_be_changed() -> None:
    a = b2array.zeros(3, attrs={"x": np.arange(3), "o": np.array([1, "a"], object), "s": {1, 2}})
    for name in ("x", "o"):
        with pytest.raises(ValueError, match="read-only"):
            a.attrs[name][0] = 5
    for change in (lambda s: s.add(3), lambda s: s.discard(1), lambda s: s.__ior__({3})):
        with pytest.raises(TypeError, match="a change of this set would be lost"):
            change(a.attrs["s"])
    assert (a.attrs["s"], repr(a.attrs["s"])) == ({1, 2}, "{1, 2}")
    assert type(copy.deepcopy(a.attrs["s"])) is set


def test_a_dataset_in_memory_may_change_its_attributes(tmp_path: Any) -> None:
    to_b2array(xr.Dataset({"v": ("x", [1.0], {"v": VALUE})}, attrs={"v": VALUE}), tmp_path / "d.b2d")
    ds = xr.open_dataset(tmp_path / "d.b2d", engine="b2array")
    for attrs in (ds.attrs, ds.v.attrs):
        attrs["v"]["gain"] = 2.0
        attrs["v"]["steps"].append(4)
        assert attrs["v"]["steps"] == [1, [2, 3], 4]
