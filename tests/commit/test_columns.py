"""Columns of a table of python-blosc2 can be read, and only python-blosc2 writes them."""

from __future__ import annotations

from dataclasses import dataclass

import blosc2
import fsspec
import numpy as np
import pytest

import b2array
from b2array.errors import ReadOnlyError


@dataclass
class Row:
    n: int = blosc2.field(blosc2.int64())
    x: float = blosc2.field(blosc2.float64())


def table(path):
    made = blosc2.CTable(Row, urlpath=str(path), mode="w")
    made.extend([(n, n / 2) for n in range(100)])
    made.close()
    return path


WRITES = {
    "an item": lambda path: b2array.open(path / "_cols/n", "r+").__setitem__(3, 1000),
    "a member's item": lambda path: b2array.open_group(path, "r+")["_cols/n"].__setitem__(3, 1000),
    "an append": lambda path: b2array.open(path / "_cols" / "n.b2nd", "r+").append([1000]),
    "the rows that count": lambda path: b2array.open(path / "_valid_rows", "r+").__setitem__(3, False),
    "another array": lambda path: b2array.asarray([1000], url=path / "_cols" / "n.b2nd", overwrite=True),
    "another member": lambda path: b2array.open_group(path, "r+").__setitem__("_cols/n", np.arange(3)),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_column_is_not_written(tmp_path, write):
    path = table(tmp_path / "t.b2d")
    with pytest.raises(ReadOnlyError, match=r"table of python-blosc2.*blosc2\.open\(.*t\.b2d'"):
        WRITES[write](path)
    np.testing.assert_array_equal(b2array.open(path / "_cols/n")[...], np.arange(100))
    with blosc2.open(str(path), mode="r") as found:
        assert found.where("n >= 90").nrows == 10


def test_a_transaction_with_a_column_changes_nothing(tmp_path):
    path = table(tmp_path / "t.b2d")
    group = b2array.open_group(path, "r+")

    def change_both():
        with group.transaction() as changes:
            changes["mine"] = np.arange(3)
            changes["_cols/n"][0] = 5

    with pytest.raises(ReadOnlyError, match="table of python-blosc2"):
        change_both()
    assert "mine" not in b2array.open_group(path)


def test_a_column_in_an_object_store_is_not_written(tmp_path):
    fs = fsspec.filesystem("memory")
    fs.put(str(table(tmp_path / "t.b2d")), "/tables/t.b2d", recursive=True)
    with pytest.raises(ReadOnlyError, match="table of python-blosc2"):
        b2array.open("memory://tables/t.b2d/_cols/n", "r+")[3] = 1000


def test_attributes_and_files_of_a_table_may_change(tmp_path):
    path = table(tmp_path / "t.b2d")
    column = b2array.open(path / "_cols/n", "r+")
    column.attrs["units"] = "m"
    b2array.repack(path)
    b2array.convert(path, tmp_path / "copy.b2d")
    with blosc2.open(str(tmp_path / "copy.b2d"), mode="r") as found:
        assert found.where("n >= 90").nrows == 10


def test_names_like_a_columns_are_allowed_in_other_groups(tmp_path):
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["_cols/n"] = np.arange(3)
    group["_meta"] = np.arange(3)
    group["_cols/n"][0] = 5
    assert group["_cols/n"][0] == 5
