"""What people see of arrays and groups, and that the plan of a read is what the read does."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import blosc2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples
from servers import RangeServer

import b2array
from b2array import config
from b2array.display.drawing import Box, draw, merge
from b2array.errors import FormatError
from b2array.store.local_store import LocalStore, _File
from b2array.tools.describing import describe, lines, plain

X = np.random.default_rng(0).normal(size=(60, 80))


@pytest.fixture(autouse=True)
def _no_cache() -> Any:
    with config.using(cache_bytes=0, threads=1):
        yield


@pytest.fixture
def a(tmp_path: Path) -> b2array.NDArray:
    attrs = {"unit": "<K>", "long": "x" * 500}
    return b2array.asarray(
        X, url=tmp_path / "a.b2nd", chunks=(20, 30), blocks=(5, 10), dims=("lat", "lon"), attrs=attrs
    )


def parsed(html: str) -> ET.Element:
    return ET.fromstring(html)


def texts(html: str) -> str:
    return " ".join(" ".join(parsed(html).itertext()).split())


# Pages.


def test_a_page_says_what_an_array_is(a: b2array.NDArray) -> None:
    html = a._repr_html_()
    said = texts(html)
    for word in (
        "(60, 80)",
        "(20, 30)",
        "(5, 10)",
        "37.5 KiB",
        "float64",
        "lat 60",
        "lon 80",
        "unit",
        "<K>",
        "auto",
    ):
        assert word in said, word
    assert "x" * 101 not in said
    before, _, more = html.partition("<summary>more</summary>")
    for word in ("fingerprint", "generation", "commits"):
        assert word not in before
        assert word in more


def test_the_description_and_the_line_of_an_array_read_nothing(
    a: b2array.NDArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("this reads")

    for name in ("read", "gather", "head", "stamp"):
        monkeypatch.setattr(LocalStore, name, refuse)
    assert "\n" not in repr(a)
    assert len(a.info._repr_html_()) < 20_000
    assert "unit='<K>'" in repr(a.info)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (0, 4), (3, 4, 5), (2, 3, 4, 5), (1,) * 8, (10**6, 10**6)])
def test_arrays_of_any_shape_have_a_page(shape: tuple[int, ...]) -> None:
    array = b2array.zeros(shape, "i2")
    assert len(list(parsed(array._repr_html_()).iter("svg"))) == 2
    assert "nothing: all items are the fill value" in array._repr_html_()


def test_damaged_attributes_do_not_hide_the_rest(a: b2array.NDArray, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> object:
        raise b2array.errors.FormatError("expected a msgpack value")

    monkeypatch.setattr("b2array.array.described.decode_attr", damaged)
    assert "cannot be read" in texts(a._repr_html_())
    assert a.info["shape"] == (60, 80)


def test_colours_suit_light_and_dark_pages(a: b2array.NDArray) -> None:
    for svg in parsed(a._repr_html_()).iter("svg"):
        strokes = {each.get("stroke") for each in svg.iter() if each.get("stroke")}
        assert strokes == {"currentColor"}
        assert all(each.get("fill") == "currentColor" for each in svg.iter("text"))


# Drawings.


def areas(svg: str, colour: str) -> list[list[tuple[float, float]]]:
    found = [
        each for each in parsed(svg).iter("polygon") if each.get("fill") == colour and each.get("fill-opacity") == "1"
    ]
    return [[tuple(map(float, point.split(","))) for point in str(each.get("points")).split()] for each in found]  # type: ignore[misc]


def test_a_rectangle_is_drawn_where_its_items_are() -> None:
    svg = draw((10, 20), (5, 5), solid=[((0, 5), (10, 20))])
    assert areas(svg, "#f28e2b") == [[(75, 0), (150, 0), (150, 37.5), (75, 37.5)]]
    assert len(list(parsed(svg).iter("line"))) == 1 + 3


def test_a_box_shows_three_sides_and_its_lines() -> None:
    svg = draw((4, 4, 4), (2, 2, 2), solid=[((0, 2), (0, 2), (0, 2))])
    assert [len(areas(svg, colour)) for colour in ("#f28e2b", "#f7b46f", "#c96d12")] == [1, 1, 1]
    assert len(list(parsed(svg).iter("line"))) == 6


def test_many_chunks_are_few_lines() -> None:
    assert len(list(parsed(draw((10**9,), (1,))).iter("line"))) <= 40


def test_more_dimensions_are_drawn_side_by_side() -> None:
    assert len(list(parsed(draw((2,) * 7, (1,) * 7)).iter("g"))) == 2 * 3


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1))
@settings(max_examples=examples(50))
def test_merged_boxes_cover_the_same_items(cells: set[tuple[int, int]]) -> None:
    boxes: list[Box] = [((i, i + 1), (j, j + 1)) for i, j in cells]
    found = [(i, j) for (a, b), (c, d) in merge(boxes) for i in range(a, b) for j in range(c, d)]
    assert sorted(found) == sorted(cells)


# What a selection will read.

KEYS = [
    np.s_[0, 0],
    np.s_[:],
    np.s_[3:17, ::40],
    np.s_[21, :],
    np.s_[[1, 30, 59], [2, 40, 79]],
    np.s_[50:, 70:],
    np.s_[5:5],
]


def local(path: Path, http: RangeServer) -> tuple[str, Callable[[], tuple[int, int]]]:
    counted = [0, 0]
    read_into, read = _File.read_into, _File.read

    def counting(self: _File, views: list[memoryview], start: int) -> None:
        counted[0] += 1
        counted[1] += sum(map(len, views))
        read_into(self, views, start)

    _File.read_into = counting  # type: ignore[method-assign]

    def total() -> tuple[int, int]:
        _File.read_into = read_into  # type: ignore[method-assign]
        assert _File.read is read
        return counted[0], counted[1]

    return str(path), total


def remote(path: Path, http: RangeServer) -> tuple[str, Callable[[], tuple[int, int]]]:
    http.requests.clear()

    def total() -> tuple[int, int]:
        ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", str(header)) for _, _, header in http.requests]
        return len(ranges), sum(int(found[2]) + 1 - int(found[1]) for found in ranges if found)

    return f"{http.url}/a.b2nd", total


@pytest.mark.parametrize("writer", ["b2array", "blosc2"])
@pytest.mark.parametrize("place", [local, remote])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_the_plan_of_a_read_is_what_the_read_does(
    tmp_path: Path, http: RangeServer, place: Any, key: Any, writer: str
) -> None:
    path = tmp_path / "a.b2nd"
    if writer == "b2array":
        b2array.asarray(X, url=path, chunks=(20, 30), blocks=(5, 10))
    else:
        blosc2.asarray(X, urlpath=str(path), chunks=(20, 30), blocks=(5, 10))
    http.objects["a.b2nd"] = path.read_bytes()
    array = b2array.open(path if place is local else f"{http.url}/a.b2nd")
    plan = array.explain(key)
    _, counted = place(path, http)
    try:
        values = array[key]
    finally:
        found = counted()
    assert (plan.requests, plan.nbytes) == found
    assert plan.result_nbytes == values.nbytes
    assert plan.share == min(1.0, plan.nbytes / array.cbytes)
    again = array.explain(key)
    assert again.nbytes <= plan.nbytes
    parsed(plan._repr_html_())


def test_a_small_member_is_read_with_its_index_and_needs_no_more_requests(tmp_path: Path, http: RangeServer) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["a"] = np.arange(100)
    group.consolidate()
    http.objects.update({f"g.b2d/{file.name}": file.read_bytes() for file in (tmp_path / "g.b2d").iterdir()})
    array = b2array.open_group(http.url_of("g.b2d"))["a"]
    with b2array.config.using(cache_bytes=0):
        assert array.explain(np.s_[:1]).result_nbytes == 8
        http.requests.clear()
        plan = array.explain(np.s_[3:5])
        assert (plan.blocks, plan.cached, plan.requests, plan.nbytes) == (1, 0, 0, 0)
        assert array[3:5].tolist() == [3, 4]
    assert not http.requests


def test_a_plan_counts_chunks_and_blocks_and_draws_them(a: b2array.NDArray) -> None:
    plan = a.explain(np.s_[3:17, ::40])
    assert (plan.chunks, plan.blocks, plan.cached) == (2, 8, 0)
    assert re.search(
        r"chunks +: 2 of 9\nblocks +: 8 of 96\nrequests +: \d+\nbytes read : .* %? ?of the array", repr(plan)
    )
    assert len(areas(draw_of(plan), "#f28e2b")) == 2


def test_a_plan_says_which_access_would_serve_the_key_better() -> None:
    values = np.random.default_rng(0).integers(0, 9, (400, 100, 100), "i2").astype("f4")
    thin = b2array.asarray(values, access="planes")
    assert thin.explain(np.s_[0]).advice == ""
    plan = thin.explain(np.s_[:, 5, 5])
    assert re.fullmatch('access="series" would decode [0-9]+ times less', plan.advice)
    assert repr(plan).endswith(f"advice     : {plan.advice}")
    assert b2array.asarray(values, access="series").explain(np.s_[:, 5, 5]).advice == ""
    assert thin.explain(np.s_[[0, 7], 5, 5]).advice == ""


def test_a_plan_of_the_whole_array_lists_the_keys_that_are_served_badly() -> None:
    values = np.random.default_rng(0).integers(0, 9, (400, 100, 100), "i2").astype("f4")
    told = b2array.asarray(values, chunks=(10, -1, -1), blocks=(1, -1, -1)).explain(...).advice
    assert told.startswith('access="balanced" would decode less for a[:, ')
    assert "a[:, i, i] (" in told
    assert "a[i, :, :]" not in told
    assert b2array.asarray(values).explain(...).advice == ""


def draw_of(plan: Any) -> str:
    (svg,) = parsed(plan._repr_html_()).iter("svg")
    return ET.tostring(svg, encoding="unicode")


def test_what_the_cache_has_is_not_read(a: b2array.NDArray, tmp_path: Path) -> None:
    with config.using(cache_bytes=2**24):
        held = b2array.open(tmp_path / "a.b2nd")
        before = held.explain(np.s_[:5, :20])
        held[:5, :20]
        after = held.explain(np.s_[:5, :20])
    assert (before.cached, before.blocks) == (0, 2)
    assert (after.cached, after.blocks, after.requests, after.nbytes) == (2, 2, 0, 0)
    assert "2 of them in the cache" in repr(after)


@pytest.mark.costly
@pytest.mark.parametrize("step", [1, 3])
def test_a_plan_of_many_chunks_keeps_few_boxes(step: int) -> None:
    plan = b2array.zeros((10_000 * step,), "i1", chunks=(1,), blocks=(1,)).explain(np.s_[::step])
    assert plan.chunks == 10_000
    assert len(plan._touched) <= 4096 + 1
    assert len(areas(draw_of(plan), "#f28e2b")) == 1


def test_chunks_without_data_are_not_read_and_scalars_have_a_plan() -> None:
    assert b2array.zeros((100, 100), chunks=(10, 10)).explain(np.s_[:]).requests == 0
    assert b2array.asarray(5.0).explain(()).blocks == 1
    with pytest.raises(IndexError):
        b2array.zeros(3).explain(7)


@pytest.mark.parametrize("content", [None, b"", bytes(50)])
def test_a_plan_raises_what_the_read_raises(tmp_path: Path, content: bytes | None) -> None:
    array = b2array.asarray(X, url=tmp_path / "s.b2nd", chunks=(20, 30), blocks=(5, 10), layout="sparse")
    file = tmp_path / "s.b2nd" / "00000000.chunk"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(FormatError) as raised:
        array[:, 1]
    with pytest.raises(type(raised.value), match=f"^{re.escape(str(raised.value))}$"):
        array.explain(np.s_[:, 1])


@pytest.mark.parametrize("dtype", ["M8", [("a", "i4"), ("b", "M8")]])
def test_times_without_a_unit_are_described(tmp_path: Path, dtype: Any) -> None:
    array = b2array.zeros(3, dtype, url=tmp_path / "x.b2nd")
    for text in (repr(array.info), array._repr_html_(), "".join(lines(describe(str(tmp_path / "x.b2nd"), None)[0]))):
        assert "0x00000000" in text
    np.save(tmp_path / "x.npy", np.zeros(3, dtype))
    assert plain(describe(str(tmp_path / "x.npy"), None)[0])["fill value"] == f"0x{bytes(array.itemsize).hex()}"


def test_a_large_fill_value_is_described_in_a_line(tmp_path: Path) -> None:
    array = b2array.zeros(3, "V2000000", url=tmp_path / "x.b2nd")
    assert "0x0000000000000000..., 1.9 MiB" in repr(array.info)
    assert len(repr(array.info)) < 2000
    assert len(array._repr_html_()) < 20_000
    assert len("".join(lines(describe(str(tmp_path / "x.b2nd"), None)[0]))) < 2000
    assert array.fill_value.nbytes == 2_000_000


# Groups.


def test_a_group_is_a_tree_with_shapes_types_and_sizes(tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["air/x"], group["air/long name"], group["y"] = X, X[:3], np.zeros(3, "i2")
    group.attrs["title"] = "<hello>"
    lines = repr(group.info).splitlines()
    assert lines[0] == "/"
    assert lines[2].startswith("│   ├── long name  (3, 80) float64, 1.9 KiB, stored in ")
    assert lines[3].startswith("│   └── x          (60, 80) float64, 37.5 KiB, stored in ")
    assert lines[4].startswith("└── y    (3,) int16, 6 bytes, stored in ")
    assert group.tree() == "/\n├── air\n│   ├── long name\n│   └── x\n└── y"
    said = texts(group._repr_html_())
    for word in ("air", "x (60, 80) float64", "title", "<hello>"):
        assert word in said, word
    (tmp_path / "g.b2d" / "air" / "x.b2nd").write_bytes(b"damaged")
    assert "cannot be read: " in repr(group.info)
    assert "y (3,) int16" in texts(group._repr_html_())
    assert repr(group["air"].info).splitlines()[0] == "/air"


def test_keys_complete() -> None:
    group = b2array.open_group("memory://completed.b2d", "w")
    group["air/x"] = X
    group.attrs["title"] = 1
    group["air/x"].attrs["unit"] = "K"
    assert list(group._ipython_key_completions_()) == ["air"]
    assert group.attrs._ipython_key_completions_() == ["title"]
    assert group["air/x"].attrs._ipython_key_completions_() == ["unit"]


# Values, and what else has a line of its own.


def test_a_page_shows_the_items_at_the_corners(a: b2array.NDArray) -> None:
    text = parsed(a._repr_html_()).find(".//pre")
    assert text is not None
    assert text.text == np.array2string(X, threshold=0)


def test_a_page_decodes_only_the_blocks_at_the_corners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = b2array.asarray(np.arange(4_000_000).reshape(2000, 2000), url=tmp_path / "big.b2nd", chunks=200, blocks=50)
    read: list[int] = []
    plain = _File.read_into

    def counted(self: _File, views: list[memoryview], start: int) -> None:
        read.extend(map(len, views))
        plain(self, views, start)

    monkeypatch.setattr(_File, "read_into", counted)
    assert "3999999" in big._repr_html_()
    assert sum(read) < big.cbytes / 10


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (np.arange(5), "[0 1 2 3 4]"),
        (np.arange(7), "[0 1 2 ... 4 5 6]"),
        (np.float64(2), "2."),
        (np.zeros((0, 3)), "[]"),
        (np.array(["<a>"]), "['<a>']"),
    ],
)
def test_values_are_shown_as_numpy_shows_them(x: Any, expected: str) -> None:
    text = parsed(b2array.asarray(x)._repr_html_()).find(".//pre")
    assert text is not None
    assert text.text == expected


def test_a_page_of_a_remote_array_or_of_many_arrays_reads_no_items(http: RangeServer, tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["x"] = X
    assert "<pre>" not in group._repr_html_()
    assert "<pre>" in group["x"]._repr_html_()
    http.objects["x.b2nd"] = (tmp_path / "g.b2d" / "x.b2nd").read_bytes()
    assert "<pre>" not in b2array.open(http.url_of("x.b2nd"))._repr_html_()


def test_a_page_says_that_its_values_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    b2array.asarray(X, url=path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    assert "cannot be read: " in b2array.open(path)._repr_html_()


def test_drawings_of_four_dimensions_stand_in_one_row() -> None:
    page = parsed(b2array.zeros((30, 30, 30, 30), chunks=10)._repr_html_())
    rows = [div for div in page.iter("div") if "flex" in div.get("style", "") and "wrap" not in div.get("style", "")]
    assert [[child.tag for child in row] for row in rows] == [["svg", "svg"]]


def test_no_plan_reads_more_than_there_is(tmp_path: Path) -> None:
    b2array.asarray(X, url=tmp_path / "a.b2nd", chunks=(20, 30), blocks=(5, 10))
    a = b2array.open(tmp_path / "a.b2nd")
    plan = a.explain(...)
    assert plan.nbytes > a.cbytes  # it reads heads apart
    assert (plan.share, "100.00%" in repr(plan)) == (1.0, True)


def test_a_tree_prints_in_terminals_and_folds_in_notebooks() -> None:
    group = b2array.open_group("memory://shown-tree.b2d", "w")
    group["air/x"] = group["y"] = [1]
    tree = group.tree()
    assert repr(tree) == str(tree) == tree == "/\n├── air\n│   └── x\n└── y"
    assert texts(tree._repr_html_()) == "b2array.Group memory://shown-tree.b2d air x y"


def test_everything_has_a_line_that_says_what_it_is() -> None:
    a = b2array.zeros((0, 2), "i4")
    out = a.appender()
    out.append([1, 2])
    assert repr(out) == "<b2array.Appender to memory: along axis 0, 1 step not committed>"
    out.commit()
    assert repr(a.T) == "<b2array.View of memory shape=(2, 1) dtype=int32>"
    assert repr(a.transaction()) == "<b2array: a transaction of memory, for the with statement>"
    with a.transaction():
        assert repr(a).endswith(", in a transaction>")
    assert repr(b2array.create_schunk(chunksize=8)) == "<b2array.SChunk memory: 0 chunks, 0 bytes>"
    assert repr(config).startswith("<b2array.config cache_bytes=0, ")
    group = b2array.open_group("memory://lines.b2d", "w")
    group["x"] = [1]
    assert repr(group) == "<b2array.Group memory://lines.b2d: 1 member>"
    with group.transaction() as changes:
        assert repr(changes) == "<b2array.Group memory://lines.b2d: 1 member, in a transaction>"


def test_old_states_look_old(tmp_path):
    a = b2array.zeros(3, url=tmp_path / "a.b2nd")
    a.snapshot("v1")
    a[0] = 1
    old = b2array.open(tmp_path / "a.b2nd", at="v1")
    for shown in (repr(old), repr(old.view[:2])):
        assert shown.endswith(", at the snapshot 'v1'>")
    assert old.info["snapshot"] == "v1"
    assert "v1: an earlier state, read-only" in old._repr_html_()
    for text in (repr(a), a._repr_html_(), repr(a.view[:2])):
        assert "snapshot 'v1'" not in text
        assert "earlier state" not in text


@pytest.mark.parametrize("place", ["local", "memory"])
def test_old_states_of_groups_look_old(tmp_path, place):
    url = str(tmp_path / "g.b2d") if place == "local" else f"memory://{tmp_path.name}.b2d"
    group = b2array.open_group(url, "w")
    group["x"] = [1]
    group["part/y"] = [2]
    group.snapshot("v1")
    group["x"] = [3]
    old = b2array.open_group(url, at="v1")
    members = [old["x"], old["part"]["y"], b2array.open(f"{url}/x", at="v1")]
    for each in (old, old["part"], *members):
        assert repr(each).endswith(", at the snapshot 'v1'>")
    assert [each.info["snapshot"] for each in members] == ["v1"] * 3
    assert repr(old.info).startswith("/, at the snapshot 'v1'")
    assert "at the snapshot &#x27;v1&#x27;" in old._repr_html_()
    assert "at the snapshot" not in repr(group) + repr(group["x"]) + repr(group.info)
    assert pickle.loads(pickle.dumps(old["x"])).info["snapshot"] == "v1"


def test_snapshots_and_differences_print_as_tables(tmp_path):
    a = b2array.zeros((40, 6), url=tmp_path / "a.b2nd", chunks=(10, 6))
    assert repr(a.snapshots) == "()"
    a.snapshot("v1", message="<first>")
    assert (repr(a.diff("v1")), a.diff("v1")._repr_html_()) == ("no difference", "no difference")
    a[3] = 1
    a[35] = 1
    heads, row = repr(a.snapshots).splitlines()
    assert heads.split() == ["when", "name", "shape", "own", "bytes", "message"]
    assert re.fullmatch(r"20..-..-.. ..:..:.. UTC  v1    \(40, 6\) +\d+ B  <first>", row)
    assert "&lt;first&gt;</td></tr></table>" in a.snapshots._repr_html_()
    assert repr(a.diff("v1")) == "[0:10, 0:6]\n[30:40, 0:6]"
    assert "[30:40, 0:6]</td></tr></table>" in a.diff("v1")._repr_html_()
    assert a.diff("v1") == [(slice(0, 10), slice(0, 6)), (slice(30, 40), slice(0, 6))]
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["x"] = [1, 2]
    group.snapshot("v1")
    assert repr(group.diff("v1")) == "no difference"
    group["x"][0] = 3
    group["y"] = [1]
    assert repr(group.diff("v1")) == "made     y\nchanged  x  [0:2]"
    assert "<td" in group.diff("v1")._repr_html_()
    assert [each.name for each in group.snapshots] == ["v1"]
    assert repr(group.snapshots).count("\n") == 1
