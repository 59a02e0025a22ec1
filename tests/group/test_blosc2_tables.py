"""What python-blosc2 stores besides arrays and groups: tables, embedding stores, caches, and sequences of objects."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from dataclasses import make_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import blosc2
import msgpack
import numpy as np
import pytest
from blosc2.ctable_storage import _column_name_to_relpath

import b2array
from b2array import Items, Table, config
from b2array.errors import B2ArrayError, FormatError, LimitError, ReadOnlyError, UnsupportedError

SPECS: dict[str, tuple[Any, Any]] = {
    **{
        name: (int if "int" in name else float, getattr(blosc2, name)(nullable=True))
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
    },
    "complex64": (complex, blosc2.complex64(nullable=True)),
    "plain": (int, blosc2.int64()),
    "switch": (bool, blosc2.bool(nullable=True)),
    "fixed": (str, blosc2.string(max_length=6, nullable=True)),
    "raw": (bytes, blosc2.bytes(max_length=5)),
    "text": (str, blosc2.utf8(nullable=True)),
    "long": (str, blosc2.vlstring(nullable=True)),
    "blob": (bytes, blosc2.vlbytes(nullable=True)),
    "word": (str, blosc2.dictionary(nullable=True)),
    "time": (object, blosc2.timestamp(nullable=True)),
    "vector": (np.ndarray, blosc2.ndarray((3,), dtype=blosc2.int16())),
}
NROWS = 40
DELETED = (3, 5, 17, NROWS - 1)


def item(kind: str, n: int) -> Any:
    """Return the item of a column in a row."""
    if n % 7 == 2 and kind not in ("plain", "raw", "vector"):
        return None
    values = {
        "switch": n % 3 == 0,
        "fixed": f"ü{n}",
        "raw": b"r%d" % n,
        "text": "täxt" * (n % 4),
        "long": f"line {n}" * (n % 3),
        "blob": b"\0b\0" * (n % 5),
        "word": ("red", "green", "blau")[n % 3],
        "time": np.datetime64("2026-01-01T00:00:00", "us") + np.timedelta64(n, "h"),
        "vector": np.array([n, -n, n + 1], "i2"),
        "complex64": complex(n, -1),
    }
    return values.get(kind, n * 1.5 if "float" in kind else n)


def write_table(url: Path, columns: tuple[str, ...] = tuple(SPECS), nrows: int = NROWS, **more: Any) -> None:
    fields = [(name, SPECS[name][0], blosc2.field(SPECS[name][1], default=None)) for name in columns]
    fields = [(name, kind, blosc2.field(SPECS[name][1])) for name, kind, _ in fields]
    table = blosc2.CTable(make_dataclass("Row", fields), urlpath=str(url), mode="w", **more)
    if nrows:
        # One row after the other gives the same files, in ten times the time.
        table.extend([tuple(item(name, n) for name in columns) for n in range(nrows)])
        table.delete([n for n in DELETED if n < nrows])
    table.close()


@pytest.fixture(scope="module", params=["t.b2d", "t.b2z"])
def table_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    url = tmp_path_factory.mktemp("tables") / request.param
    write_table(url)
    return url


@pytest.mark.costly
def test_each_column_has_the_items_of_the_rows_that_are_left(table_url: Path) -> None:
    table = b2array.open(table_url)
    rows = [n for n in range(NROWS) if n not in DELETED]
    assert isinstance(table, Table)
    assert (list(table), len(table)) == (list(SPECS), len(rows))
    for name in table:
        found, expected = table[name], [item(name, n) for n in rows]
        assert len(found) == len(rows)
        mask = np.ma.getmaskarray(found)
        for n, value in enumerate(expected):
            if value is None:
                assert mask[n], (name, n)
            else:
                assert not np.any(mask[n]), (name, n)
                assert np.array_equal(np.asarray(found)[n], value), (name, n)
    assert table["time"].dtype == "M8[us]"
    assert table["int16"].dtype == "i2"
    assert table["text"].dtype == np.dtypes.StringDType()
    assert not isinstance(table["plain"], np.ma.MaskedArray)


def test_a_table_has_the_columns_that_python_blosc2_shows(table_url: Path) -> None:
    table = b2array.open(table_url)
    with blosc2.CTable.open(str(table_url)) as theirs:
        assert list(table) == theirs.col_names
        for name in ("int32", "float64", "switch", "fixed", "text", "plain", "vector"):
            np.testing.assert_array_equal(np.ma.filled(table[name]), np.ma.filled(theirs[name][:]), name)
        for name in ("long", "blob", "word"):
            assert np.ma.asarray(table[name]).tolist() == list(theirs[name][:]), name


def test_records_have_all_columns(table_url: Path) -> None:
    table = b2array.open(table_url)
    records = table.to_records()
    assert records.dtype.names == table.columns
    assert records["vector"].shape == (len(table), 3)
    assert records["plain"][:4].tolist() == [0, 1, 2, 4]
    assert records["text"].tolist() == [item("text", n) for n in range(NROWS) if n not in DELETED]
    assert records["raw"][0] == b"r0"


NAMES = ("trip.lon", "a%b", "x/y", r"a\.b", "plain", "trip.deep.er", "back\\\\slash", "ends\\", "täxt.s", "50% of a.b")


def rename_columns(table: Path, names: dict[str, str]) -> None:
    """Rename columns of a table, and their files: `CTable.rename_column` fails for text."""
    meta = b2array.open_schunk(table / "_meta.b2f", "r+")
    schema = json.loads(meta.vlmeta["schema"])
    for column in schema["columns"]:
        old, column["name"] = column["name"], names[column["name"]]
        place = _column_name_to_relpath(column["name"])
        (table / "_cols" / place).parent.mkdir(parents=True, exist_ok=True)
        for file in [*(table / "_cols").glob(f"{old}[._]*")]:
            file.rename(table / "_cols" / (place + file.name.removeprefix(old)))
    meta.vlmeta["schema"] = json.dumps(schema)


@pytest.mark.parametrize(
    "kind", ["int32", "text", "long", "blob", pytest.param("word", marks=pytest.mark.slow), "time"]
)
def test_columns_have_any_names_that_python_blosc2_accepts(kind: str, tmp_path: Path) -> None:
    columns = [f"k{n}" for n in range(len(NAMES))]
    fields = [(name, SPECS[kind][0], blosc2.field(SPECS[kind][1])) for name in columns]
    theirs = blosc2.CTable(make_dataclass("Row", fields), urlpath=str(tmp_path / "t.b2d"), mode="w")
    theirs.extend([tuple(item(kind, n + i) for i in range(len(NAMES))) for n in range(20)])
    theirs.close()
    rename_columns(tmp_path / "t.b2d", dict(zip(columns, NAMES, strict=True)))
    ours = b2array.open(tmp_path / "t.b2d")
    with blosc2.CTable.open(str(tmp_path / "t.b2d")) as theirs:
        assert tuple(ours) == tuple(theirs.col_names) == NAMES
        for i, name in enumerate(NAMES):
            expected = [item(kind, n + i) for n in range(20)]
            mask = np.ma.getmaskarray(ours[name])
            values = np.ma.getdata(ours[name])
            assert [None if hidden else value for hidden, value in zip(mask, values, strict=True)] == expected, name
            assert len(theirs[name][:]) == 20


def test_an_index_may_have_a_name_that_no_member_can_have(tmp_path: Path) -> None:
    fields = [("k", int, blosc2.field(blosc2.int64()))]
    theirs = blosc2.CTable(make_dataclass("Row", fields), urlpath=str(tmp_path / "t.b2d"), mode="w")
    theirs.extend([(n,) for n in range(100)])
    theirs.rename_column("k", r"a\.b")
    theirs.close()
    assert (tmp_path / "t.b2d" / "_indexes" / r"a\.b").is_dir()
    assert b2array.open(tmp_path / "t.b2d")[r"a\.b"].tolist() == [*range(100)]


@pytest.mark.parametrize("name", [r"a\\b", "ends.b2nd", r"both\\.b2f.b2b"])
def test_copies_keep_the_index_of_a_column_with_a_backslash_or_the_ending_of_a_file(name: str, tmp_path: Path) -> None:
    fields = [("k", int, blosc2.field(blosc2.int64()))]
    theirs = blosc2.CTable(make_dataclass("Row", fields), urlpath=str(tmp_path / "t.b2d"), mode="w")
    theirs.extend([(60,), (61,), (70,)])
    theirs.rename_column("k", name)
    theirs.close()
    written = files_of_indexes(tmp_path / "t.b2d")
    assert any("\\" in path for path in written) == ("\\" in name)
    with zipfile.ZipFile(tmp_path / "by-hand.b2z", "w") as archive:
        for path in (tmp_path / "t.b2d").rglob("*.b2*"):
            archive.write(path, path.relative_to(tmp_path / "t.b2d"))
    assert b2array.open(tmp_path / "by-hand.b2z")[name].tolist() == [60, 61, 70]
    through = f"memory:/{tmp_path}/index.b2d"
    b2array.convert(tmp_path / "t.b2d", through, verify=True)
    b2array.convert(through, tmp_path / "t.b2z", verify=True)
    b2array.convert(tmp_path / "t.b2z", tmp_path / "copy.b2d", verify=True)
    assert files_of_indexes(tmp_path / "copy.b2d") == written
    with blosc2.CTable.open(str(tmp_path / "copy.b2d")) as copied:
        assert copied.where(copied[name] > 60).nrows == 2
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    b2array.open_group(tmp_path / "t.b2d").copy("", group, "t")
    group.move("t", "u")
    assert files_of_indexes(tmp_path / "g.b2d" / "u") == written
    del group["u"]
    assert not [path for path in (tmp_path / "g.b2d").rglob("*") if "_indexes" in path.parts and path.is_file()]


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_users_cannot_give_members_names_of_such_indexes(layout: str, tmp_path: Path) -> None:
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group.create("_indexes/a", data=[1], layout=layout)
    with pytest.raises(ValueError, match=r"'a\.b2nd' is reserved"):
        group["_indexes/a.b2nd/b"] = [2]
    with pytest.raises(ValueError, match=r"'a\.b2nd' is reserved"):
        group.require_group("_indexes/a.b2nd/b")
    with pytest.raises(ValueError, match=r"'a\.b2nd' is reserved"):
        group.move("_indexes/a", "_indexes/a.b2nd/c")
    assert b2array.open_group(tmp_path / "g.b2d")["_indexes/a"][...].tolist() == [1]


def files_of_indexes(table: Path) -> list[str]:
    """List the files of the indexes of a table."""
    return sorted(str(path.relative_to(table)) for path in (table / "_indexes").rglob("*") if path.is_file())


@pytest.mark.parametrize("version", [4, 0, "2", None, [1]])
def test_a_table_of_a_version_that_nobody_knows_is_refused(version: Any, tmp_path: Path) -> None:
    write_table(tmp_path / "t.b2d", ("plain",), 3)
    meta = b2array.open_schunk(tmp_path / "t.b2d" / "_meta.b2f", "r+")
    schema = json.loads(meta.vlmeta["schema"])
    meta.vlmeta["schema"] = json.dumps({**schema, "version": version})
    with pytest.raises(ValueError, match="Unsupported schema version"):
        blosc2.CTable.open(str(tmp_path / "t.b2d"), mode="r")
    with pytest.raises(UnsupportedError, match="expected the description of a table of version 1 to 3, found"):
        b2array.open(tmp_path / "t.b2d")
    del schema["version"]
    meta.vlmeta["schema"] = json.dumps(schema)
    assert b2array.open(tmp_path / "t.b2d")["plain"].tolist() == [0, 1, 2]


def test_a_table_without_rows_and_one_without_missing_items_are_plain(tmp_path: Path) -> None:
    write_table(tmp_path / "empty.b2d", ("plain", "text", "word", "long"), 0)
    empty = b2array.open(tmp_path / "empty.b2d")
    assert len(empty) == len(empty.to_records()) == 0
    write_table(tmp_path / "plain.b2d", ("plain", "raw"), 2)
    records = b2array.open(tmp_path / "plain.b2d").to_records()
    assert type(records) is np.ndarray
    assert records.tolist() == [(0, b"r0"), (1, b"r1")]


def test_a_table_is_one_member_of_its_group(tmp_path: Path) -> None:
    write_table(tmp_path / "t.b2d", ("plain", "word"), 10)
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["x"] = [1, 2]
    shutil.copytree(tmp_path / "t.b2d", tmp_path / "g.b2d" / "inner" / "t")
    (tmp_path / "g.b2d" / "inner" / "t" / "embed.b2e").unlink()
    group = b2array.open(tmp_path / "g.b2d")
    table = group["inner/t"]
    assert repr(table) == f"<b2array.Table {tmp_path}/g.b2d/inner/t: 8 rows, columns plain, word>"
    assert table["plain"].tolist() == [0, 1, 2, 4, 6, 7, 8, 9]
    assert group["inner"].groups() == {}
    assert [name for name, _ in group.walk()] == ["inner", "inner/t", "x"]
    assert group["inner/t/_cols/plain"].shape == (10,)
    with pytest.raises(KeyError, match="has the columns plain, word"):
        table["other"]
    assert isinstance(b2array.open_group(tmp_path / "t.b2d"), b2array.Group)


def test_columns_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    fields = [
        ("numbers", list[int], blosc2.field(blosc2.list(blosc2.int64()))),
        ("anything", object, blosc2.field(blosc2.object(nullable=True))),
        ("plain", int, blosc2.field(blosc2.int64())),
    ]
    table = blosc2.CTable(make_dataclass("Row", fields), urlpath=str(tmp_path / "t.b2d"), mode="w")
    table.append(([1, 2], {"a": 1}, 7))
    table.add_computed_column("twice", "plain * 2")
    table.close()
    found = b2array.open(tmp_path / "t.b2d")
    assert found["plain"].tolist() == [7]
    assert list(found) == ["numbers", "anything", "plain", "twice"]
    for name, kind in (("numbers", "list"), ("anything", "object"), ("twice", "computed")):
        with pytest.raises(UnsupportedError, match=f"{name!r} is of kind '{kind}'"):
            found[name]
    with pytest.raises(UnsupportedError, match="'numbers' is of kind 'list'"):
        found.to_records()


def test_missing_items_marked_by_a_value_are_masked(tmp_path: Path) -> None:
    fields = [
        ("n", int, blosc2.field(blosc2.int64(null_value=-1))),
        ("f", float, blosc2.field(blosc2.float64(null_value=float("nan")))),
        ("s", str, blosc2.field(blosc2.string(max_length=4, null_value="N/A"))),
    ]
    table = blosc2.CTable(make_dataclass("Row", fields), urlpath=str(tmp_path / "t.b2d"), mode="w")
    for row in ((1, 0.5, "a"), (-1, float("nan"), "N/A"), (-2, 1.5, "")):
        table.append(row)
    table.close()
    found = b2array.open(tmp_path / "t.b2d")
    assert [found[name].tolist() for name in found] == [[1, None, -2], [0.5, None, 1.5], ["a", None, ""]]


def test_a_column_of_more_bytes_than_the_limit_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "t.b2d", ("plain",), 3)
    huge = b2array.zeros(3 * 10**6, "i8", chunks=10**6).to_bytes()
    (tmp_path / "t.b2d" / "_cols" / "plain.b2nd").write_bytes(huge)
    with (
        config.using(limits=config.Limits(chunk_nbytes=2**24)),
        pytest.raises(LimitError, match="24000000 bytes of a column would be read into memory, more than 16777216"),
    ):
        b2array.open(tmp_path / "t.b2d")["plain"]


# Embedding stores.


def test_an_embedding_store_is_a_group_for_reading(tmp_path: Path) -> None:
    with blosc2.EmbedStore(str(tmp_path / "e.b2e"), mode="w") as store:
        store["/a"] = np.arange(10)
        store["/g/b"] = np.arange(6.0).reshape(2, 3)
        store["/s"] = blosc2.SChunk(chunksize=100, data=b"x" * 50)
    for opened in (b2array.open, b2array.open_group):
        group = opened(tmp_path / "e.b2e")
        assert list(group) == ["a", "g", "s"]
        assert group["a"][2:4].tolist() == [2, 3]
        assert group["g/b"][1].tolist() == [3.0, 4.0, 5.0]
        assert group["s"].get_slice() == b"x" * 50
        assert dict(group.attrs) == {}
        assert group.snapshots == ()
        assert "e.b2e" in repr(group)
        assert "└── b" in str(group.tree())
    assert pickle.loads(pickle.dumps(group))["a"].shape == (10,)
    with pytest.raises(ReadOnlyError):
        group["new"] = [1]
    for mode in ("r+", "a"):
        with pytest.raises(ReadOnlyError, match="embedding store of python-blosc2"):
            b2array.open_group(tmp_path / "e.b2e", mode)
    (tmp_path / "other").write_bytes((tmp_path / "e.b2e").read_bytes())
    assert b2array.open(tmp_path / "other")["a"].shape == (10,)
    assert b2array.open_schunk(tmp_path / "e.b2e").nchunks == 1


# Caches.


@pytest.fixture
def source(tmp_path: Path) -> Any:
    x = np.arange(400).reshape(20, 20)
    return blosc2.asarray(x, chunks=(5, 5), blocks=(5, 5), urlpath=str(tmp_path / "source.b2nd"), mode="w")


def test_a_complete_cache_is_an_array_for_reading(source: Any, tmp_path: Path) -> None:
    blosc2.Proxy(source, urlpath=str(tmp_path / "cache.b2nd"), mode="w").fetch()
    a = b2array.open(tmp_path / "cache.b2nd")
    np.testing.assert_array_equal(a[...], source[...])
    with pytest.raises(ReadOnlyError, match="caches another array"):
        b2array.open(tmp_path / "cache.b2nd", "r+")
    copy = b2array.copy(a, tmp_path / "copy.b2nd")
    copy[0, 0] = 7
    assert "proxy-source" not in copy.meta
    assert blosc2.open(str(tmp_path / "copy.b2nd"))[0, 0] == 7


def test_a_cache_that_lacks_chunks_says_so(source: Any, tmp_path: Path) -> None:
    proxy = blosc2.Proxy(source, urlpath=str(tmp_path / "cache.b2nd"), mode="w")
    proxy[:5, :10]
    with pytest.raises(UnsupportedError, match=r"cache\.b2nd: .* has only 2 of 16 chunks so far"):
        b2array.open(tmp_path / "cache.b2nd")
    blosc2.Proxy(source, urlpath=str(tmp_path / "none.b2nd"), mode="w")
    with pytest.raises(UnsupportedError, match="has only 0 of 16"):
        b2array.open(tmp_path / "none.b2nd")


def test_a_cache_whose_writer_was_killed_is_not_read(source: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "cache.b2nd")
    blosc2.Proxy(source, urlpath=url, mode="w").fetch()
    whole = Path(url).read_bytes()
    # As `Proxy._begin_persistent_mutation` does before it changes chunks.
    cache = blosc2.blosc2_ext.open(url, mode="a", offset=0)
    cache.schunk.vlmeta["proxy-dirty"] = {"pid": 1, "version": 1}
    with pytest.raises(UnsupportedError, match=r"cache\.b2nd: .* a writer is at work or was killed"):
        b2array.open(url)
    with pytest.raises(UnsupportedError, match="a writer is at work or was killed"):
        b2array.from_bytes(Path(url).read_bytes())
    del cache.schunk.vlmeta["proxy-dirty"]
    np.testing.assert_array_equal(b2array.open(url)[...], source[...])
    np.testing.assert_array_equal(b2array.from_bytes(whole)[...], source[...])


@pytest.mark.parametrize("kind", ["expression", "function"])
def test_saved_computations_are_refused_with_the_reason(kind: str, source: Any, tmp_path: Path) -> None:
    if kind == "expression":
        (source * 2 + 1).save(str(tmp_path / "lazy.b2nd"))
    else:
        b2array.create_schunk(
            tmp_path / "lazy.b2nd",
            chunksize=24,
            typesize=8,
            meta={"b2nd": dict(b2array.zeros(3)._handle.frame.metalayers)["b2nd"], "LazyArray": 1},
        ).append_data(bytes(24))
    with pytest.raises(UnsupportedError, match=r"lazy\.b2nd: .* an expression.*let python-blosc2 open it, and store"):
        b2array.open(tmp_path / "lazy.b2nd")


# Sequences of objects.

OBJECTS = [{"a": 1, "b": [1, "x", None]}, "text", 7, b"raw", [1, [2]], None, 2.5, 1 + 2j, (1, 2)]


def test_object_arrays_have_their_items(tmp_path: Path) -> None:
    theirs = blosc2.ObjectArray(urlpath=str(tmp_path / "o.b2f"), mode="w")
    for each in OBJECTS:
        theirs.append(each)
    items = b2array.open(tmp_path / "o.b2f")
    assert isinstance(items, Items)
    assert list(items) == OBJECTS == [items[n - len(items)] for n in range(len(items))]
    assert items[1:4] == OBJECTS[1:4]
    assert repr(items) == f"<b2array.Items {tmp_path}/o.b2f: 9 objects>"
    with pytest.raises(IndexError, match="index 9 is out of bounds for 9 items"):
        items[9]
    assert list(pickle.loads(pickle.dumps(items))) == OBJECTS


def test_batch_and_list_arrays_have_the_items_of_all_batches(tmp_path: Path) -> None:
    batches = blosc2.BatchArray(urlpath=str(tmp_path / "b.b2b"), mode="w", items_per_block=2)
    for batch in ([1, 2, 3], ["a", b"b"], list(range(50))):
        batches.append(batch)
    assert list(b2array.open(tmp_path / "b.b2b")) == [1, 2, 3, "a", b"b", *range(50)]
    lists = blosc2.ListArray(item_spec=blosc2.int64(), nullable=True, urlpath=str(tmp_path / "l.b2b"), mode="w")
    values = [[1, 2], [], None, [3]]
    for value in values:
        lists.append(value)
    lists.flush()
    assert list(b2array.open(tmp_path / "l.b2b")) == values
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    shutil.copy(tmp_path / "l.b2b", tmp_path / "g.b2d")
    assert list(b2array.open(tmp_path / "g.b2d")["l"]) == values
    assert "4 objects" in str(b2array.open(tmp_path / "g.b2d").info)
    assert group.mode == "r+"


@pytest.mark.parametrize("kind", ["vlarray", "batcharray", "listarray"])
def test_pickles_and_arrow_are_refused(kind: str, tmp_path: Path) -> None:
    for serializer in ("pickle", "arrow", 3, None):
        held = b2array.create_schunk(
            tmp_path / "x.b2f", chunksize=0, meta={kind: {"version": 1, "serializer": serializer}}, overwrite=True
        )
        held.append_data(pickle.dumps([timedelta(1)]))
        with pytest.raises(UnsupportedError, match=f"only objects stored as msgpack are read, not as {serializer!r}"):
            b2array.open(tmp_path / "x.b2f")


@pytest.mark.parametrize(("items_per_block", "nitems"), [(1, 1), (1, 2), (2, 100), (1, 2000), (100, 5000)])
def test_batches_of_small_items_take_more_bytes_than_their_data(
    items_per_block: int, nitems: int, tmp_path: Path
) -> None:
    theirs = blosc2.BatchArray(urlpath=str(tmp_path / "b.b2b"), mode="w", items_per_block=items_per_block)
    items = [n % 5 for n in range(nitems)]
    for _ in range(3):
        theirs.append(items)
    assert list(b2array.open(tmp_path / "b.b2b")) == 3 * items
    # The same chunks with checksums behind them, in one file and in many objects.
    source = b2array.open_schunk(tmp_path / "b.b2b")
    for url in (str(tmp_path / "copy.b2b"), f"memory://small-items-{items_per_block}-{nitems}.b2b"):
        copy = b2array.create_schunk(url, chunksize=0, meta=source.meta)
        for number in range(3):
            copy.append_chunk(source.get_chunk(number))
        assert list(b2array.open(url)) == 3 * items
        assert b2array.verify(url).ok


@pytest.mark.parametrize("note", [None, 3, {}, {"batch_lengths": None}])
def test_batches_without_a_note_of_their_lengths_are_counted(note: Any, tmp_path: Path) -> None:
    theirs = blosc2.BatchArray(urlpath=str(tmp_path / "b.b2b"), mode="w", items_per_block=2)
    theirs.append(["text", 2, 3])
    theirs.append([None])
    del theirs.schunk.vlmeta["_batch_array_metadata"]
    if note is not None:
        theirs.schunk.vlmeta["_batch_array_metadata"] = note
    del theirs
    ours = b2array.open(tmp_path / "b.b2b")
    assert (len(ours), list(ours)) == (4, ["text", 2, 3, None])
    if note is None:
        assert [item for batch in blosc2.open(str(tmp_path / "b.b2b")) for item in batch] == list(ours)


@pytest.mark.parametrize("lengths", [[2, 2], [-1], ["x"], [5], [True]])
def test_batches_of_other_lengths_are_refused(lengths: Any, tmp_path: Path) -> None:
    held = b2array.create_schunk(
        tmp_path / "x.b2b", chunksize=0, meta={"batcharray": {"version": 1, "serializer": "msgpack"}}
    )
    held.append_data(msgpack.packb([1, 2, 3]))
    held.vlmeta["_batch_array_metadata"] = {"batch_lengths": lengths}
    with pytest.raises(FormatError, match=r"lengths|objects"):
        list(b2array.open(tmp_path / "x.b2b"))


@pytest.mark.parametrize(
    "schema",
    [
        None,
        "",
        "{",
        "[]",
        "3",
        "{}",
        '{"columns": 3}',
        '{"columns": [3]}',
        '{"columns": [{"name": 1, "kind": "x"}]}',
        "[" * 100_000,
    ],
)
def test_descriptions_that_make_no_sense_are_refused(schema: Any, tmp_path: Path) -> None:
    write_table(tmp_path / "t.b2d", ("plain",), 3)
    b2array.open_schunk(tmp_path / "t.b2d" / "_meta.b2f", "r+").vlmeta["schema"] = schema
    with pytest.raises(FormatError, match="expected the columns of a table"):
        b2array.open(tmp_path / "t.b2d")


def test_columns_that_do_not_fit_their_rows_are_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "t.b2d", ("plain", "text", "word", "long", "time"), 6)
    columns = tmp_path / "t.b2d" / "_cols"
    changes = {
        "plain.b2nd": np.arange(3),
        "text.b2nd": np.array([0, 9, 3, 4, 5, 6, 7]),
        "word.b2nd": np.array([0, 1, 2, 3, 99, 0], "i4"),
        "time.b2nd": np.zeros(6),
    }
    for name, values in changes.items():
        (columns / name).write_bytes(b2array.asarray(values).to_bytes())
    meta = b2array.open_schunk(tmp_path / "t.b2d" / "_meta.b2f", "r+")
    schema = json.loads(meta.vlmeta["schema"])
    schema["columns"][3]["kind"] = "vlbytes"
    meta.vlmeta["schema"] = json.dumps(schema)
    table = b2array.open(tmp_path / "t.b2d")
    for name in table:
        with pytest.raises(FormatError, match=f"column {name!r}"):
            table[name]
    (columns / "text.utf8.b2nd").unlink()
    (columns / "text.b2nd").write_bytes(b2array.asarray(np.arange(7)).to_bytes())
    with pytest.raises(B2ArrayError, match=r"expected a member '_cols/text\.utf8' of the table, found none"):
        b2array.open(tmp_path / "t.b2d")["text"]
