"""What Python's `copy` makes of handles."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

import b2array
from b2array.array import described
from b2array.store.memory import MemoryStore

xr = pytest.importorskip("xarray")
from b2array.xarray_io import to_b2array  # noqa: E402

PLACES = ("a.b2nd", "sparse", "memory")


@pytest.fixture(params=PLACES)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> b2array.NDArray:
    """Make an array in a file, in a directory, or in memory."""
    url = {"a.b2nd": tmp_path / "a.b2nd", "sparse": f"{tmp_path}/a.b2nd/", "memory": None}[request.param]
    layout = "sparse" if request.param == "sparse" else "auto"
    options = {"chunks": (2, 3), "blocks": (1, 3), "dims": ("y", "x"), "attrs": {"unit": "m"}}
    return b2array.asarray(np.arange(24).reshape(4, 6), url=url, layout=layout, **options)


def test_a_deep_copy_is_an_array_in_memory_of_its_own(stored: b2array.NDArray) -> None:
    made = copy.deepcopy(stored)
    made[0] = -1
    made.attrs["unit"] = "km"
    np.testing.assert_array_equal(stored[...], np.arange(24).reshape(4, 6))
    stored.refresh()
    assert (stored[0, 0], stored.attrs["unit"]) == (0, "m")
    stored[1] = -2
    assert (made[0, 0], made[1, 0], made.attrs["unit"]) == (-1, 6, "km")
    assert (made.dims, made.chunks, made.blocks, made.cparams) == (stored.dims, (2, 3), (1, 3), stored.cparams)
    assert isinstance(made._handle.store, MemoryStore)


def test_a_deep_copy_of_what_can_only_be_read_can_be_changed(tmp_path: Path) -> None:
    b2array.asarray([1, 2], url=tmp_path / "a.b2nd").close()
    for follow in (False, True):
        made = copy.deepcopy(b2array.open(tmp_path / "a.b2nd", follow=follow))
        made[0] = 5
        assert made[...].tolist() == [5, 2]
    assert b2array.open(tmp_path / "a.b2nd")[...].tolist() == [1, 2]


def test_a_deep_copy_in_a_transaction_has_its_changes(stored: b2array.NDArray) -> None:
    with stored.transaction():
        stored[0] = 7
        made = copy.deepcopy([stored, stored])
        stored[1] = 7
    assert made[0] is made[1]
    assert (made[0][0, 0], made[0][1, 0]) == (7, 6)
    assert not made[0].in_transaction


def test_a_deep_copy_of_a_super_chunk_is_in_memory(tmp_path: Path) -> None:
    chunks = b2array.create_schunk(tmp_path / "a.b2frame", chunksize=8)
    chunks.append_data(b"12345678")
    made = copy.deepcopy(chunks)
    made.update_data(0, b"abcdefgh")
    assert (chunks[:], made[:]) == (b"12345678", b"abcdefgh")


def test_a_deep_copy_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = b2array.asarray(np.arange(1000), url=tmp_path / "a.b2nd")
    monkeypatch.setattr(described, "free_nbytes", lambda: 100)
    with pytest.raises(MemoryError, match=r"b2array\.copy\(a, url\)"):
        copy.deepcopy(a)


def test_a_shallow_copy_is_the_same_array_once_more(stored: b2array.NDArray) -> None:
    made = copy.copy(stored)
    made[0] = -1
    assert stored[0, 0] == -1
    with stored.transaction():
        stored[1] = -1
        assert made.in_transaction
        assert made[1, 0] == -1


def test_a_group_is_not_copied_as_if_it_were_a_value(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "a.b2d", "w")
    with pytest.raises(TypeError, match=r"b2array\.convert"):
        copy.deepcopy(group)
    assert copy.copy(group).url == group.url


def test_deep_copies_of_lazy_datasets_read_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_b2array(xr.Dataset({"t": ("x", np.arange(5))}), tmp_path / "a.b2d")
    ds = xr.open_dataset(tmp_path / "a.b2d", engine="b2array")
    with monkeypatch.context() as patch:
        patch.setattr(b2array.NDArray, "__getitem__", None)
        made = ds.copy(deep=True)
    assert made.t.values.tolist() == [0, 1, 2, 3, 4]
