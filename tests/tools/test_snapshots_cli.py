"""Snapshots on the command line: `log`, `snapshot`, `restore`, `drop`, `diff`, `expire`, and `--at`."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import blosc2
import fsspec
import numpy as np
import pytest
from damage import flip, kinds

import b2array
from b2array.array.array_snapshots import Keep
from b2array.array.schunk import SChunk
from b2array.catalog.manifest import RETIRED
from b2array.errors import ConflictError
from b2array.format.ledger import KEPT, Kept, Ledger
from b2array.frame.kept_states import load_kept_state
from b2array.store.open import open_store

Run = Callable[..., tuple[int, str, str]]

X = np.arange(1200.0).reshape(30, 40)
NOISE = np.random.default_rng(2).bytes(2**13)
"""With an attribute of so many bytes, a kept state of a directory has an object for itself."""
RAW = "\x1b[2J\u202e"
_serials = itertools.count()


@pytest.fixture(params=["file", "directory", "member"])
def url(request: pytest.FixtureRequest, run: Run) -> str:
    """Make an array with the snapshot "spin-up", and change it."""
    options: dict[str, Any] = {"chunks": (10, 20), "attrs": {"unit": "m"}, "dims": ("y", "x")}
    if request.param == "member":
        where = "runs.b2d/deep/level"
        a = b2array.open_group("runs.b2d", "w").create_array("deep/level", data=X, **options)
    else:
        where = "a.b2nd"
        layout = "sparse" if request.param == "directory" else "contiguous"
        a = b2array.asarray(X, url=where, layout=layout, **options)
    a.snapshot("spin-up", "after a year")
    a[0:3, 5:15] = -1
    a.attrs["unit"] = "km"
    a.resize((35, 40))
    return where


def now() -> np.ndarray:
    x = np.zeros((35, 40))
    x[:30] = X
    x[0:3, 5:15] = -1
    return x


@pytest.fixture(params=["directory", "memory"])
def group(request: pytest.FixtureRequest, run: Run) -> Iterator[str]:
    """Make a group with the snapshot "one", and change, delete and add members."""
    where = f"memory://cli-snapshots-{next(_serials)}/g.b2d" if request.param == "memory" else "g.b2d"
    held = b2array.open_group(where, "w")
    held.create_array("level", data=np.arange(100.0), chunks=(10,))
    held["deep/gone"], held["deep/stays"] = np.arange(50), np.arange(5)
    held.attrs["title"] = "before"
    held.snapshot("one", "the first")
    del held["deep/gone"]
    held["new"] = np.arange(7)
    held["level"][5:7] = -1
    held.attrs["title"] = "after"
    yield where
    fsspec.filesystem("memory").store.clear()


def super_chunk(url: str) -> SChunk:
    blosc2.SChunk(80, bytes(100), urlpath=url, contiguous=True)
    return b2array.open_schunk(url, "r+")


def ok(done: tuple[int, str, str]) -> str:
    """Return what a command printed that has nothing to complain of."""
    code, out, err = done
    assert (code, err) == (0, "")
    return out


def refused(done: tuple[int, str, str], code: int = 1) -> str:
    """Return the one line of a command that refuses."""
    assert done[:2] == (code, "")
    assert re.fullmatch(r"b2array.*: .+\n", done[2])
    return done[2]


# Lists.


def test_log_lists_snapshots_in_columns(url: str, run: Run) -> None:
    b2array.open(url, "r+").snapshot("two")
    head, first, second = ok(run("log", url)).splitlines()
    assert head.split() == ["when", "name", "shape", "own", "bytes", "message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  spin-up  \(30, 40\) +\S+ (B|KiB)  after a year", first)
    assert re.fullmatch(r".* UTC  two      \(35, 40\) +\S+ (B|KiB)", second)
    assert first.index("(30") == head.index("shape")


def test_log_as_json_has_what_python_says(url: str, run: Run) -> None:
    a = b2array.open(url, "r+")
    a.snapshot("two", attrs={"step": 3})
    found = json.loads(ok(run("log", url, "--json")))
    for each, expected in zip(found, a.snapshots, strict=True):
        assert each == {
            "name": expected.name,
            "time": expected.time.isoformat(),
            "message": expected.message,
            "attrs": dict(expected.attrs),
            "generation": expected.generation,
            "shape": list(expected.shape or ()),
            "nbytes": expected.nbytes,
            "error": "",
        }


def test_log_without_snapshots_says_so(run: Run) -> None:
    b2array.asarray(X, url="plain.b2nd")
    assert ok(run("log", "plain.b2nd")) == "plain.b2nd has no snapshots\n"
    assert json.loads(ok(run("log", "plain.b2nd", "--json"))) == []


def test_log_of_groups_and_super_chunks_has_no_shape(group: str, run: Run) -> None:
    (_, row) = ok(run("log", group)).splitlines()
    assert re.fullmatch(r".* UTC  one +\S+ (B|KiB)  the first", row)
    assert json.loads(ok(run("log", group, "--json")))[0]["shape"] is None
    super_chunk("s.b2frame").snapshot("raw")
    assert "raw" in ok(run("log", "s.b2frame"))


# Commands that change.


def test_snapshot_restore_and_drop(url: str, run: Run) -> None:
    assert ok(run("snapshot", url, "now", "-m", "a remark")) == ""
    assert [(each.name, each.message) for each in b2array.open(url).snapshots][1:] == [("now", "a remark")]
    assert ok(run("restore", url, "spin-up")) == ""
    assert (b2array.open(url)[...] == X).all()
    assert b2array.open(url).attrs["unit"] == "m"
    assert ok(run("restore", url, "now")) == ""
    assert (b2array.open(url)[...] == now()).all()
    assert ok(run("drop", url, "spin-up")) == ""
    assert [each.name for each in b2array.open(url).snapshots] == ["now"]


def test_groups_are_kept_restored_and_dropped_as_a_whole(group: str, run: Run) -> None:
    assert ok(run("snapshot", group, "two", "--message", "later")) == ""
    assert ok(run("restore", group, "one")) == ""
    held = b2array.open_group(group)
    assert (held["deep/gone"][...] == np.arange(50)).all()
    assert "new" not in held
    assert held.attrs["title"] == "before"
    assert ok(run("drop", group, "one")) == ""
    assert [each.name for each in b2array.open_group(group).snapshots] == ["two"]
    assert "has no snapshot 'two'" in refused(run("drop", f"{group}/level", "two"))


def test_a_second_snapshot_of_a_name_says_how_to_replace_the_first(url: str, run: Run) -> None:
    assert "has a snapshot 'spin-up'; --replace replaces it" in refused(run("snapshot", url, "spin-up"))
    assert [each.message for each in b2array.open(url).snapshots] == ["after a year"]
    ok(run("snapshot", url, "spin-up", "--replace"))
    assert [each.message for each in b2array.open(url).snapshots] == [""]


def test_a_second_snapshot_of_a_group_says_how_to_replace_the_first(group: str, run: Run) -> None:
    assert "--replace replaces it" in refused(run("snapshot", group, "one"))
    ok(run("snapshot", group, "one", "--replace"))
    assert ok(run("diff", group, "one")) == ""


def test_unknown_names_say_which_there_are(url: str, run: Run) -> None:
    for command in ("restore", "drop", "diff", "info", "ls", "tree", "cat", "verify", "copy", "convert"):
        more = ["spinup"] if command in ("restore", "drop", "diff") else ["--at", "spinup"]
        target = ["x.b2nd"] if command in ("copy", "convert") else []
        assert "has no snapshot 'spinup'; it has 'spin-up'" in refused(run(command, url, *target, *more))
    assert not Path("x.b2nd").exists()


def test_unknown_names_of_groups_say_which_there_are(group: str, run: Run) -> None:
    for command in ("restore", "drop", "diff", "info", "ls", "tree", "verify", "copy", "convert"):
        more = ["two"] if command in ("restore", "drop", "diff") else ["--at", "two"]
        target = ["x.b2d"] if command in ("copy", "convert") else []
        assert "has no snapshot 'two'; it has 'one'" in refused(run(command, group, *target, *more))
    assert not Path("x.b2d").exists()


@pytest.mark.parametrize("name", ["", "a\nb", RAW, "x" * 256])
def test_names_that_nobody_could_type_are_refused(name: str, run: Run) -> None:
    b2array.asarray(X, url="plain.b2nd")
    line = refused(run("snapshot", "plain.b2nd", name))
    assert "cannot name a snapshot" in line
    assert line.rstrip("\n").isprintable()


# Differences.


def test_diff_prints_the_keys_of_boxes(url: str, run: Run) -> None:
    assert ok(run("diff", url, "spin-up")) == "[0:10, 0:20]\n[30:35, 0:40]\n"
    assert json.loads(ok(run("diff", url, "spin-up", "--json"))) == [[[0, 10], [0, 20]], [[30, 35], [0, 40]]]
    ok(run("snapshot", url, "now"))
    assert ok(run("diff", url, "now")) == ""
    assert ok(run("diff", url, "spin-up", "now")) == ok(run("diff", url, "spin-up"))


def test_diff_of_a_group_names_members_and_boxes(group: str, run: Run) -> None:
    rows = [line.split() for line in ok(run("diff", group, "one")).splitlines()]
    assert rows == [["made", "new"], ["deleted", "deep/gone"], ["changed", "level", "[0:10]"], ["attributes", "/"]]
    assert json.loads(ok(run("diff", group, "one", "--json"))) == {
        "made": ["new"],
        "deleted": ["deep/gone"],
        "changed": {"level": [[[0, 10]]]},
        "attrs": [""],
    }


def test_super_chunks_have_no_diff(run: Run) -> None:
    super_chunk("s.b2frame").snapshot("one")
    assert "is a super-chunk" in refused(run("diff", "s.b2frame", "one"))


# Old snapshots.


def test_expire_drops_old_snapshots(url: str, run: Run) -> None:
    ok(run("snapshot", url, "now"))
    assert ok(run("expire", url, "--keep-last", "1", "--dry-run")) == f"{url}: would drop spin-up\n"
    assert len(b2array.open(url).snapshots) == 2
    assert ok(run("expire", url, "--older-than", "1h")) == f"{url}: dropped nothing\n"
    assert json.loads(ok(run("expire", url, "--keep-last", "1", "--older-than", "0s", "--json"))) == ["spin-up"]
    assert [each.name for each in b2array.open(url).snapshots] == ["now"]
    assert ok(run("expire", url, "--older-than", "0")) == f"{url}: dropped now\n"


@pytest.mark.parametrize("is_late", [False, True])
def test_expire_of_a_group_drops_no_snapshot_that_was_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["a"] = [0.0]
    group.snapshot("latest")
    time.sleep(0.01)
    moment = datetime.fromtimestamp(time.time()).astimezone()
    begin = b2array.Group.transaction

    def replace() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(b2array.Group, "transaction", begin)
            b2array.open_group(group.url, "r+").snapshot("latest", "a fresh one", replace=True)

    @contextmanager
    def meeting(home: b2array.Group) -> Iterator[b2array.Group]:
        if not is_late:
            replace()
        with begin(home) as changes:
            yield changes
            if is_late:
                replace()

    monkeypatch.setattr(b2array.Group, "transaction", meeting)
    if is_late:
        with pytest.raises(ConflictError):
            b2array.expire(group.url, older_than=moment)
    else:
        assert b2array.expire(group.url, older_than=moment) == ()
    monkeypatch.undo()
    assert [each.message for each in b2array.open_group(group.url).snapshots] == ["a fresh one"]


def test_expire_of_a_group_drops_its_snapshots(group: str, run: Run) -> None:
    assert ok(run("expire", group, "--keep-last", "0")) == f"{group}: dropped one\n"
    assert b2array.open_group(group).snapshots == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "say which snapshots are old"),
        (["--older-than", "soon"], "an age must be"),
        (["--keep-last", "-1"], "--keep-last"),
    ],
)
def test_expire_needs_to_know_which_snapshots_are_old(options: list[str], said: str, run: Run) -> None:
    b2array.asarray(X, url="plain.b2nd")
    line = refused(run("expire", "plain.b2nd", *options), 2)
    assert said in line
    assert line.endswith("(see b2array expire --help)\n")


# `--at`.


def test_info_and_lists_at_a_snapshot(url: str, run: Run) -> None:
    assert json.loads(ok(run("info", url, "--json")))["snapshots"] == ["spin-up"]
    found = json.loads(ok(run("info", url, "--at", "spin-up", "--json")))
    assert (found["snapshot"], found["shape"], found["attrs"]) == ("spin-up", [30, 40], {"unit": "m"})
    assert 0 < found["cbytes"] < found["nbytes"]
    assert "(30, 40)" in ok(run("ls", url, "--at", "spin-up"))
    assert "(30, 40)" in ok(run("tree", url, "--at", "spin-up"))
    assert "(35, 40)" in ok(run("tree", url))
    assert "not a snapshot" in refused(run("info", url, "--chunks", "--at", "spin-up"), 2)


def test_cat_prints_and_writes_a_snapshot(url: str, run: Run) -> None:
    assert ok(run("cat", url, "[0, 4:7]", "--at", "spin-up")) == "[4. 5. 6.]\n"
    assert ok(run("cat", url, "[0, 4:7]")) == "[ 4. -1. -1.]\n"
    ok(run("cat", url, "-o", "old.npy", "--at", "spin-up"))
    assert (np.load("old.npy") == X).all()


@pytest.mark.parametrize("ending", ["npy", "blp"])
def test_other_formats_have_no_snapshots(ending: str, run: Run) -> None:
    b2array.convert(b2array.asarray(X, url="a.b2nd").url, f"a.{ending}")
    for command in ("info", "ls", "tree", "cat", "verify", "copy", "convert"):
        more = ["x.b2nd"] if command in ("copy", "convert") else []
        line = refused(run(command, f"a.{ending}", *more, "--at", "one"))
        assert f"a.{ending} is of the format {ending}, which has no snapshots" in line
    for command in ("log", "snapshot", "restore", "drop", "diff", "expire"):
        more = [] if command == "log" else ["--keep-last=1"] if command == "expire" else ["x"]
        assert "which has no snapshots" in refused(run(command, f"a.{ending}", *more))
        assert "missing.b2nd" in refused(run(command, "missing.b2nd", *more))


def test_a_group_is_drawn_and_listed_as_it_was(group: str, run: Run) -> None:
    drawn = ok(run("tree", group, "--at", "one"))
    assert re.findall(r"── (\w+)", drawn) == ["deep", "gone", "stays", "level"]
    assert re.search(r"gone +int64 +\(50,\) +400 B +\d", drawn)
    assert re.findall(r"── (\w+)", ok(run("tree", group))) == ["deep", "stays", "level", "new"]
    assert [line.split()[0] for line in ok(run("ls", group, "--at", "one")).splitlines()] == ["deep/", "level"]
    found = json.loads(ok(run("info", group, "--at", "one", "--json")))
    assert (found["snapshot"], found["members"], found["attrs"]) == ("one", 3, {"title": "before"})
    assert json.loads(ok(run("info", group, "--json")))["snapshots"] == ["one"]


def test_members_of_a_group_are_shown_as_they_were(group: str, run: Run) -> None:
    for separator in "/#":
        assert ok(run("cat", f"{group}{separator}deep/gone", "[-3:]", "--at", "one")) == "[47 48 49]\n"
    assert "(50,)" in ok(run("info", f"{group}/deep/gone", "--at", "one"))
    assert "has no snapshot 'one'" in refused(run("info", f"{group}/new", "--at", "one"))
    assert "is inside the group" in refused(run("log", f"{group}/deep"))


# Copies.


def test_copies_of_a_snapshot_are_exactly_its_state(url: str, run: Run) -> None:
    ok(run("copy", url, "copied.b2nd", "--at", "spin-up"))
    ok(run("copy", url, "recoded.b2nd", "--at", "spin-up", "--chunks", "7,9"))
    assert run("convert", url, "converted.b2nd", "--at", "spin-up", "--verify")[0] == 0
    for name in ("copied", "recoded", "converted"):
        a = b2array.open(f"{name}.b2nd")
        assert a.shape == X.shape
        assert (a[...] == X).all()
        assert (dict(a.attrs), a.dims) == ({"unit": "m"}, ("y", "x"))
        assert a.snapshots == ()
        assert (blosc2.open(f"{name}.b2nd", mode="r")[...] == X).all()
    assert "snapshots" not in run("convert", url, "x.npy", "--at", "spin-up")[2]
    assert (np.load("x.npy") == X).all()


@pytest.mark.parametrize("command", ["copy", "convert"])
@pytest.mark.parametrize("more", [[], ["--chunks", "7,9", "--codec", "lz4"], ["--layout", "sparse"]])
def test_copies_keep_the_snapshots(command: str, more: list[str], run: Run) -> None:
    a = b2array.asarray(X, url="a.b2nd", chunks=(10, 10), attrs={"unit": "m"})
    a.snapshot("one", "the first")
    a[0] = 7
    code, _, err = run(command, "a.b2nd", "x.b2nd", *more)
    assert (code, err) == (0, "")
    assert [(each.name, each.message) for each in b2array.open("x.b2nd").snapshots] == [("one", "the first")]
    assert (b2array.open("x.b2nd", at="one")[...] == X).all()
    assert (b2array.open("x.b2nd")[...] == a[...]).all()
    assert b2array.open("x.b2nd", at="one").attrs["unit"] == "m"


@pytest.mark.parametrize("command", ["copy", "convert"])
def test_a_copy_leaves_the_snapshots_out_on_request(url: str, command: str, run: Run) -> None:
    ok(run(command, url, "x.b2nd", "--no-snapshots"))
    assert b2array.open("x.b2nd").snapshots == ()
    assert (b2array.open("x.b2nd")[...] == now()).all()


def test_formats_without_a_place_for_snapshots_say_so(run: Run) -> None:
    a = b2array.asarray(X, url="a.b2nd")
    for ending in ("npy", "blp"):
        assert run("convert", "a.b2nd", f"none.{ending}")[2] == ""
    a.snapshot("one")
    for ending in ("npy", "blp"):
        code, _, err = run("convert", "a.b2nd", f"x.{ending}")
        assert (code, err) == (0, f"b2array: x.{ending}: a .{ending} file has no place for snapshots\n")
        code, _, err = run("convert", "a.b2nd", f"without.{ending}", "--no-snapshots")
        assert (code, err) == (0, "")


@pytest.mark.costly
def test_copies_of_groups_keep_its_snapshots_where_there_is_a_place_for_them(group: str, run: Run) -> None:
    level = b2array.open(f"{group}/level", "r+")
    level.snapshot("own")
    for command, copy in itertools.product(("copy", "convert"), ("b2d", "b2z")):
        code, _, err = run(command, group, f"{command}.{copy}")
        told = f"b2array: {command}.{copy}: the copy leaves out 1 snapshot of the group\n"
        assert (code, err) == (0, "" if copy == "b2d" else told)
        assert [each.name for each in b2array.open(f"{command}.{copy}#level").snapshots] == ["own"]
    for command in ("copy", "convert"):
        assert [each.name for each in b2array.open(f"{command}.b2d").snapshots] == ["one"]
        assert (b2array.open(f"{command}.b2d", at="one")["deep/gone"][...] == np.arange(50)).all()
    for command, copy in itertools.product(("copy", "convert"), ("b2d", "b2z")):
        code, _, err = run(command, group, f"{command}-without.{copy}", "--no-snapshots")
        assert (code, err) == (0, "")
        held = b2array.open(f"{command}-without.{copy}")
        assert held["level"].snapshots == held.snapshots == ()


def test_a_copy_of_a_group_leaves_the_snapshots_of_super_chunks_out_on_request(run: Run) -> None:
    b2array.open_group("g.b2d", "w")["x"] = [1]
    super_chunk("g.b2d/raw.b2f").snapshot("one")
    ok(run("copy", "g.b2d", "with.b2d"))
    ok(run("copy", "g.b2d", "without.b2d", "--no-snapshots"))
    assert [len(b2array.open(f"{name}.b2d/raw").snapshots) for name in ("with", "without")] == [1, 0]


@pytest.mark.parametrize("command", ["copy", "convert"])
@pytest.mark.parametrize("ending", ["b2d", "b2z"])
def test_a_copy_of_a_group_at_a_snapshot_is_exactly_its_state(command: str, ending: str, group: str, run: Run) -> None:
    code, _, err = run(command, group, f"x.{ending}", "--at", "one")
    assert (code, err) == (0, "")
    copied = b2array.open_group(f"x.{ending}")
    assert copied.attrs["title"] == "before"
    assert sorted(copied) == ["deep", "level"]
    assert (copied["level"][...] == np.arange(100)).all()
    assert (copied["deep/gone"][...] == np.arange(50)).all()
    assert copied.snapshots == ()


# Damage.


def _damage_kept_index(url: str) -> None:
    """Change a byte of the index that an array keeps for its snapshot."""
    held = b2array.open(url)._handle.revision
    (entry,) = Ledger.unpack(held.state.annotations.kept).entries
    if held.sparse:
        (file,) = Path(url).glob(f"*{KEPT}")
        flip(file, entry.nbytes // 2)
    else:
        flip(Path(url), held.frame.header_len + entry.place + entry.nbytes // 2)


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_verify_reports_a_damaged_snapshot(layout: Any, run: Run) -> None:
    a = b2array.asarray(X, url="a.b2nd", chunks=(10, 10), layout=layout, attrs={"noise": NOISE})
    a.snapshot("one")
    a[0] = 7
    assert re.search(r"snapshots +: 1\n", ok(run("verify", "a.b2nd")))
    assert re.search(r"snapshot +: one\n", ok(run("verify", "a.b2nd", "--at", "one")))
    _damage_kept_index("a.b2nd")
    code, out, err = run("verify", "a.b2nd")
    assert (code, err) == (3, "")
    assert re.search(r"a\.b2nd: 1 problem\n(.*\n)*  snapshot: .*'one'", out)
    assert kinds(b2array.verify("a.b2nd")) == {("snapshot", None)}
    assert "'one'" in refused(run("cat", "a.b2nd", "--at", "one"), 3)
    assert run("cat", "a.b2nd", "[0, 0]")[:2] == (0, "7.\n")


def test_verify_at_a_snapshot_looks_at_its_chunks_alone(run: Run) -> None:
    a = b2array.asarray(X, url="a.b2nd", chunks=(10, 10), layout="sparse")
    a.snapshot("one")
    a[0, 0] = 7
    held = b2array.open("a.b2nd")._handle.revision
    numbers = [int(state.frame.offsets[0]) for state in (load_kept_state(held, "one"), held)]
    files = [Path("a.b2nd", f"{number:08X}.chunk") for number in numbers]
    whole = files[1].read_bytes()
    flip(files[1], len(whole) // 2)
    assert "in order" in ok(run("verify", "--deep", "a.b2nd", "--at", "one"))
    files[1].write_bytes(whole)
    flip(files[0], files[0].stat().st_size // 2)
    code, out, _ = run("verify", "--deep", "a.b2nd", "--at", "one")
    assert (code, "chunk 0" in out) == (3, True)
    code, out, _ = run("verify", "--deep", "a.b2nd")
    assert code == 3
    assert "snapshot: snapshot 'one': chunk 0" in out


@pytest.mark.costly
def test_verify_of_a_group_looks_at_what_only_snapshots_hold(group: str, run: Run) -> None:
    found = json.loads(ok(run("verify", group, "--json")))
    assert found["members"]["."]["snapshots"] == 1
    at_one = json.loads(ok(run("verify", group, "--json", "--at", "one")))
    assert set(at_one["members"]) == {"/", "deep/gone", "deep/stays", "level"}
    store = open_store(group)
    place = "deep/gone.b2nd/" if "://" in group else RETIRED
    (chunk,) = [path for path in store.walk() if path.startswith(place) and path.endswith(".chunk")]
    fs, path = fsspec.url_to_fs(f"{group}/{chunk}")
    fs.rm(path)
    code, out, _ = run("verify", group)
    assert code == 3
    assert re.search(r"\. +1 problem", out)
    assert re.search(r"\.: snapshot: chunk 0 of .*\n", out)
    assert run("verify", group, "--at", "one")[0] == 3


def test_verify_tells_of_a_list_of_members_that_is_gone(run: Run) -> None:
    b2array.open_group("g.b2d", "w")["/".join(["long" * 50] * 11)] = [1, 2]
    b2array.open_group("g.b2d", "r+").snapshot("one")
    (found,) = Path("g.b2d").glob(f"*{KEPT}")
    found.unlink()
    code, out, _ = run("verify", "g.b2d")
    assert code == 3
    assert re.search(r"\.: snapshot: .*'one'", out)


def test_verify_tells_of_a_member_that_somebody_removed_without_the_group(run: Run) -> None:
    held = b2array.open_group("g.b2d", "w")
    held["x"], held["y"] = [1, 2], [3]
    held.snapshot("one")
    Path("g.b2d/x.b2nd").unlink()
    code, out, _ = run("verify", "g.b2d")
    assert code == 3
    assert re.search(r"\.: snapshot: snapshot 'one': .*g\.b2d/x\.b2nd does not keep its state any more", out)


def test_a_file_that_other_software_changed_tells_so(run: Run) -> None:
    noise = np.random.default_rng(0).integers(0, 2**62, (40, 50))
    a = b2array.asarray(noise, url="a.b2nd", chunks=(10, 50), cparams=b2array.CParams(filters=()))
    a.snapshot("one")
    held = blosc2.open("a.b2nd", mode="a")
    held[:10] = np.random.default_rng(1).integers(0, 2**62, (10, 50))
    del held
    codes = []
    for command, *more in (["cat", "[0, 0]", "--at"], ["info", "--at"], ["copy", "x.b2nd", "--at"], ["restore"]):
        code, out, err = run(command, "a.b2nd", *more, "one")
        codes.append(code)
        if code:
            assert (out, "other software has changed the frame since the snapshot 'one'" in err) == ("", True)
        elif command == "cat":
            assert out == f"{noise[0, 0]}\n"
    assert set(codes) in ({0}, {1})
    assert run("log", "a.b2nd")[1].splitlines()[1].split()[3] == "one"


def test_log_lists_intact_snapshots_beside_a_damaged_one(run: Run) -> None:
    a = b2array.asarray(X, url="a.b2nd", layout="sparse", attrs={"noise": NOISE})
    a.snapshot("one")
    _damage_kept_index("a.b2nd")
    a.snapshot("two")
    code, out, err = run("log", "a.b2nd")
    assert code == 3
    assert [line.split()[3] for line in out.splitlines()[1:]] == ["one", "two"]
    assert re.fullmatch(r"b2array: .*a\.b2nd: snapshot 'one': .*\n", err)
    ok(run("drop", "a.b2nd", "one"))
    assert ok(run("log", "a.b2nd")).count("\n") == 2


# Texts that others wrote.


def _with_hostile_texts(url: str) -> None:
    """Give an array a snapshot whose name and message steer a terminal, as another program could."""
    a = b2array.asarray(X, url=url)
    a.snapshot("harmless")
    ledger = Ledger.unpack(a._handle.revision.state.annotations.kept)
    (entry,) = ledger.entries
    hostile = Kept(**{name: getattr(entry, name) for name in Kept.__dataclass_fields__} | {"name": RAW, "message": RAW})
    for attempt in a._handle.attempts():
        with attempt as draft:
            draft.delta.keep(Keep(hostile))


@pytest.mark.parametrize("arguments", [["log"], ["log", "--json"], ["info"], ["expire", "--keep-last=0", "--dry-run"]])
def test_names_and_messages_never_steer_a_terminal(arguments: list[str], run: Run) -> None:
    _with_hostile_texts("a.b2nd")
    command, *more = arguments
    out = ok(run(command, "a.b2nd", *more))
    assert "2J" in out
    assert out.replace("\n", "").isprintable()


def test_errors_with_names_never_steer_a_terminal(run: Run) -> None:
    _with_hostile_texts("a.b2nd")
    for command in (["drop", "a.b2nd", RAW + "x"], ["info", "a.b2nd", "--at", RAW + "x"]):
        line = refused(run(*command))
        assert line.rstrip("\n").isprintable()
        assert "harmless" in line


def test_messages_may_have_any_characters(run: Run) -> None:
    b2array.asarray(X, url="a.b2nd")
    ok(run("snapshot", "a.b2nd", "größe", "-m", f"two\nlines {RAW}"))
    _, row = ok(run("log", "a.b2nd")).splitlines()
    assert "größe" in row
    assert row.isprintable()
    assert json.loads(ok(run("log", "a.b2nd", "--json")))[0]["message"] == f"two\nlines {RAW}"


# On object stores.


def test_snapshots_on_an_object_store(bucket: str, s3_options: dict[str, object], run: Run) -> None:
    where = f"s3://{bucket}/a.b2nd"
    options = [f"--storage={name}={json.dumps(value)}" for name, value in s3_options.items()]
    a = b2array.asarray(X, url=where, chunks=(10, 40), storage_options=s3_options)
    ok(run("snapshot", where, "one", *options))
    a.refresh()
    a[0] = 7
    assert "one" in ok(run("log", where, *options))
    assert ok(run("diff", where, "one", *options)) == "[0:10, 0:40]\n"
    assert ok(run("cat", where, "[0, :3]", "--at", "one", *options)) == "[0. 1. 2.]\n"
    ok(run("restore", where, "one", *options))
    assert ok(run("cat", where, "[0, :3]", *options)) == "[0. 1. 2.]\n"
