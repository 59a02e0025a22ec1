"""Members that python-blosc2 keeps in one frame: they can be read, and the error of a write says what helps."""

from __future__ import annotations

import pickle
from pathlib import Path

import blosc2
import numpy as np
import pytest

import b2array
from b2array.errors import ReadOnlyError

WRITES = {
    "an item": lambda a: a.__setitem__(0, 5),
    "an append": lambda a: a.append([5]),
    "an attribute": lambda a: a.attrs.update(x=5),
    "a snapshot": lambda a: a.snapshot("x"),
    "a shape": lambda a: a.resize(3),
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = str(tmp_path / "e.b2d")
    with blosc2.DictStore(path, mode="w", threshold=2**20) as store:
        store["/air/t"] = np.arange(10)
    return path


@pytest.mark.parametrize("write", WRITES)
def test_writing_to_an_embedded_member_names_it_and_the_way_out(url: str, write: str) -> None:
    for member in (b2array.open_group(url, "r+")["air/t"], b2array.open(f"{url}/air/t", "r+")):
        assert member.url == f"{url}/air/t"
        with pytest.raises(ReadOnlyError, match=r"e\.b2d/air/t .*embed\.b2e.*group\[name\] = group\[name\]"):
            WRITES[write](member)


def test_the_way_out_works(url: str) -> None:
    group = b2array.open_group(url, "r+")
    group["air/t"] = group["air/t"]
    group["air/t"][0] = 5
    assert b2array.open(f"{url}/air/t")[:3].tolist() == [5, 1, 2]


def test_embedded_members_pickle(url: str) -> None:
    member = pickle.loads(pickle.dumps(b2array.open_group(url)["air/t"]))
    assert (member.url, member[3]) == (f"{url}/air/t", 3)
