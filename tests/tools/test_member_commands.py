"""The commands that change members and attributes, compare places, and write to standard output."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import jsonschema
import numpy as np
import pytest

import b2array
from b2array.tools import describing, options

Run = Callable[..., tuple[int, str, str]]
SCHEMA = Path(__file__).parents[2] / "docs" / "_static" / "info.schema.json"


@pytest.fixture
def group(tmp_path: Path) -> b2array.Group:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["x"] = np.arange(12.0).reshape(3, 4)
    group["deep/y"] = [1, 2]
    return group


@pytest.mark.usefixtures("group")
def test_members_are_renamed_and_removed(run: Run) -> None:
    assert run("mv", "g.b2d/x", "g.b2d/z/x")[0] == 0
    assert run("rm", "g.b2d/deep")[::2] == (
        1,
        "b2array: 'deep' is a group: --recursive removes it with all that is below it\n",
    )
    assert run("rm", "-r", "g.b2d/deep")[0] == 0
    group = b2array.open_group("g.b2d")
    assert [name for name, _ in group.walk()] == ["z", "z/x"]
    assert group["z/x"][2, 3] == 11
    for refused in (("rm", "g.b2d"), ("rm", "g.b2d/none"), ("mv", "g.b2d/z", "other.b2d/z"), ("rm", "none.b2nd")):
        assert run(*refused)[0] == 1
    assert [name for name, _ in b2array.open_group("g.b2d").walk()] == ["z", "z/x"]


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.usefixtures("group")
def test_an_array_in_no_group_is_removed_and_nothing_beside_it(layout: str, run: Run) -> None:
    b2array.save("a.b2nd", np.arange(100), layout=layout)
    Path("a.txt").write_text("stays")
    assert run("rm", "a.b2nd")[0] == 0
    assert not Path("a.b2nd").exists()
    assert Path("a.txt").exists()
    Path("noframe.b2nd").write_text("no frame")
    assert run("rm", "noframe.b2nd")[0] == 3
    assert Path("noframe.b2nd").exists()


@pytest.mark.parametrize("url", ["g.b2d", "g.b2d/x", "log.b2frame"])
def test_attributes_are_shown_and_changed_in_one_commit(url: str, run: Run, group: b2array.Group) -> None:
    b2array.create_schunk("log.b2frame", chunksize=8).close()
    assert "no attributes" in run("attrs", url)[1]
    code, out, _ = run("attrs", url, "--set", "unit=m", "--set", "levels=[1, 2.5]", "--set", "n=5", "--json")
    assert (code, json.loads(out)) == (0, {"unit": "m", "levels": [1, 2.5], "n": 5})
    assert run("attrs", url, "--set", "unit=cm", "--unset", "none")[0] == 1
    assert json.loads(run("attrs", url, "--json")[1])["unit"] == "m"
    assert run("attrs", url, "--unset", "levels", "--unset", "n")[1] == "unit : m\n"
    assert run("attrs", url, "--set", "unit")[0] == 2


def test_two_places_are_compared_whatever_their_formats(run: Run, group: b2array.Group) -> None:
    b2array.convert("g.b2d", "g.h5")
    assert run("diff", "g.b2d", "g.h5") == (0, "no difference\n", "")
    with h5py.File("g.h5", "a") as file:
        file["x"][1, 2] = np.nan
        file["x"].attrs["unit"] = "m"
        del file["deep/y"]
        file["new"] = [1]
    code, out, _ = run("diff", "g.b2d", "g.h5", "--json")
    assert code == 1
    assert [tuple(each.values()) for each in json.loads(out)] == [
        ("deep/y", "only in", "g.b2d"),
        ("new", "only in", "g.h5"),
        ("x", "attrs.unit", "only in one of them"),
        ("x", "items", "1 of 12, the first at [1, 2]"),
    ]
    group["x"][1, 2] = np.nan
    group["x"].attrs["unit"] = "m"
    assert run("diff", "g.b2d/x", "g.h5/x")[:2] == (0, "no difference\n")  # NaN in both is no difference
    b2array.save("t.b2nd", [1, 2], dtype="i2", attrs={"a": 1})
    b2array.save("u.b2nd", [1, 2, 3], dtype="i4", attrs={"a": 2})
    assert [each["what"] for each in json.loads(run("diff", "t.b2nd", "u.b2nd", "--json")[1])] == [
        "shape",
        "dtype",
        "attrs.a",
    ]


def test_a_snapshot_goes_before_a_file_of_its_name(run: Run, group: b2array.Group) -> None:
    b2array.save("before.b2nd", [1])
    group["x"].snapshot("before.b2nd")
    group["x"][0, 0] = 7
    assert run("diff", "g.b2d/x", "before.b2nd")[:2] == (0, "[0:3, 0:4]\n")


@pytest.mark.usefixtures("group")
@pytest.mark.slow
def test_arrays_go_to_standard_output(run: Run, tmp_path: Path) -> None:
    def program(*arguments: str) -> bytes:
        command = [sys.executable, "-m", "b2array", "cat", *arguments, "-o", "-"]
        return subprocess.run(command, capture_output=True, check=True, cwd=tmp_path).stdout

    x = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(np.load(io.BytesIO(program("g.b2d/x", "--format", "npy"))), x)
    assert program("g.b2d/x", "[:2, 1:3]", "--format", "csv") == b"1.0,2.0\n5.0,6.0\n"
    assert run("cat", "g.b2d/x", "-o", "-")[0] == 1
    assert run("cat", "g.b2d/x", "-o", "-", "--format", "xml")[0] == 2


def test_csv_has_what_tells_each_value_from_others(run: Run, tmp_path: Path) -> None:
    records = np.array([(0.1, "a,b", "2026-11-27")], [("x", "f4"), ("name", "U3"), ("day", "M8[D]")])
    b2array.save(tmp_path / "records.b2nd", records)
    assert run("cat", "records.b2nd", "-o", "records.csv")[0] == 0
    assert Path("records.csv").read_text() == 'x,name,day\n0.1,"a,b",2026-11-27\n'
    b2array.save(tmp_path / "cube.b2nd", np.zeros((2, 2, 2)))
    code, _, err = run("cat", "cube.b2nd", "-o", "cube.csv")
    assert (code, "rows and columns" in err, Path("cube.csv").exists()) == (1, True, False)
    assert run("cat", "cube.b2nd", "[0]", "-o", "cube.csv")[0] == 0


def test_info_as_json_keeps_to_its_schema(run: Run, group: b2array.Group) -> None:
    schema = json.loads(SCHEMA.read_text())
    assert tuple(schema["required"]) == describing.FIELDS
    b2array.create_schunk("log.b2frame", chunksize=8).close()
    np.save("n.npy", np.arange(3))
    b2array.convert("g.b2d", "g.h5")
    b2array.convert("g.b2d", "g.zarr")
    b2array.bloscpack.pack(np.arange(3), "n.blp")
    group["x"].snapshot("first")
    group.snapshot("all")
    filters = b2array.CParams("lz4", filters=("delta", "shuffle"), absolute_error=None)
    b2array.save("f.b2nd", np.arange(5), cparams=filters, dims=("t",), fill_value=3)
    for url in ("g.b2d", "g.b2d/x", "log.b2frame", "n.npy", "g.h5", "g.h5/x", "g.zarr", "n.blp", "f.b2nd"):
        jsonschema.validate(json.loads(run("info", url, "--json")[1]), schema)
    jsonschema.validate(json.loads(run("info", "f.b2nd", "--json", "--chunks")[1]), schema)
    found = json.loads(run("info", "f.b2nd", "--json")[1])
    assert (found["compression"]["codec"], found["compression"]["filters"]) == ("lz4", ["delta", "shuffle"])
    assert (found["dims"], found["fill_value"], found["shape"], found["metalayers"]) == (["t"], 3, [5], ["b2nd"])
    assert json.loads(run("info", "g.b2d/x", "--json")[1])["snapshots"] == ["first"]
    at = json.loads(run("info", "g.b2d", "--at", "all", "--json")[1])
    assert (at["snapshot"], at["snapshots"], at["members"]) == ("all", [], 2)


def test_storage_options_belong_to_one_side_or_to_both() -> None:
    assert options.both_options(["a=1"], ["b=x"], ["a=2"]) == ({"a": 1, "b": "x"}, {"a": 2})


@pytest.mark.usefixtures("run")
def test_members_snapshots_and_words_are_completed(group: b2array.Group) -> None:
    group["x"].snapshot("first")
    assert options.complete_url("g.b2d/") == ["g.b2d/deep", "g.b2d/deep/y", "g.b2d/x"]
    assert options.complete_url("g.b2d#x") == ["g.b2d#x"]
    assert options.complete_url("g") == ["g.b2d/"]
    assert options.complete_url("none.b2d/x") == []
    assert options.one_of_words(*options.CODECS)("lz") == ["lz4", "lz4hc"]

    class Context:
        params = {"url": "g.b2d/x"}  # noqa: RUF012

    assert options.complete_snapshot(Context(), "f") == ["first"]
    Context.params["url"] = "none.b2nd"
    assert options.complete_snapshot(Context(), "") == []
