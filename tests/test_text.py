"""Text of any length: arrays of NumPy's StringDType are arrays like others, and python-blosc2 reads their batches."""

from __future__ import annotations

import math
import pickle
import struct
import warnings

import blosc2
import dask.array as da
import msgpack
import numpy as np
import pandas as pd
import pytest
from operations import Operations
from test_requests import far

import b2array
from b2array.array import wide_text
from b2array.commit.write import write
from b2array.errors import ChecksumError, ChunkLostError, FormatError, PerformanceWarning, UnsupportedError
from b2array.grid import chunking
from b2array.grid.runs import automatic_run, block_extents, is_run
from b2array.store.shared_memory import SharedMemoryStore
from b2array.tools.cli import main

TEXT = np.dtypes.StringDType()
layouts = pytest.mark.parametrize("layout", ["contiguous", "sparse"])


def words(*shape, seed=0, dtype=TEXT):
    """Return text of very different lengths, also beyond ASCII."""
    rng = np.random.default_rng(seed)
    lengths = rng.choice([0, 1, 5, 15, 16, 40, 3000], math.prod(shape), p=[0.1, 0.2, 0.3, 0.1, 0.1, 0.19, 0.01])
    letters = np.array(list("abcdefgh éß🙂"))
    made = ["".join(rng.choice(letters, n)) for n in lengths]
    return np.array(made, dtype).reshape(shape)


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert repr(found.tolist()) == repr(expected.tolist())


def boxes(a):
    return [box for box, _ in a.iter_chunks()]


def batches(url):
    return [batch[:] for batch in blosc2.open(str(url), mode="r")]


# Stock.


@layouts
@pytest.mark.parametrize("shape", [(10,), (7, 9), (3, 4, 5), (), (0,), (5, 0)], ids=str)
def test_stock_reads_a_batch_for_each_chunk_with_its_items_in_order(tmp_path, shape, layout):
    values = words(*shape)
    chunks = tuple(max(1, n // 2) for n in shape)
    a = b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=chunks, layout=layout)
    same(b2array.open(tmp_path / "a.b2nd")[...], values)
    assert batches(tmp_path / "a.b2nd") == [values[(*box, ...)].reshape(-1).tolist() for box in boxes(a)]
    stock = blosc2.open(str(tmp_path / "a.b2nd"), mode="r")
    assert isinstance(stock, blosc2.BatchArray)
    assert [len(batch) for batch in stock] == [values[(*box, ...)].size for box in boxes(a)]
    assert stock.schunk.nbytes == sum(stock.schunk.decompress_chunk(n).__len__() for n in range(len(stock)))


@pytest.mark.parametrize("codec", ["zstd", "lz4", "lz4hc", "zlib", "blosclz"])
@pytest.mark.parametrize("clevel", [0, 1, 9])
def test_stock_reads_every_codec_and_single_items(tmp_path, codec, clevel):
    values = words(5000)
    cparams = b2array.CParams(codec, clevel=clevel)
    b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=2000, blocks=300, cparams=cparams)
    stock = blosc2.open(str(tmp_path / "a.b2nd"), mode="r")
    assert [item for batch in stock for item in batch[:]] == values.tolist()
    assert stock.items_per_block == 300
    assert stock[1][299] == values[2299]
    assert stock[1][300] == values[2300]
    assert stock.items[4999] == values[4999]


@layouts
def test_stock_reads_what_was_edited(tmp_path, layout):
    values = words(20, 6)
    a = b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=(4, 4), blocks=(1, 3), layout=layout)
    expected = values.copy()
    a[3:9, 2] = expected[3:9, 2] = "an item longer than it was"
    a.append(words(3, 6, seed=1))
    expected = np.concatenate([expected, words(3, 6, seed=1)])
    a.insert(words(5, 6, seed=2), 7)
    expected = np.concatenate([expected[:7], words(5, 6, seed=2), expected[7:]])
    a.delete([0, 5, 6, 11])
    expected = np.delete(expected, [0, 5, 6, 11], 0)
    a.delete(slice(20, 24))
    expected = expected[:20]
    a.resize((17, 5))
    expected = expected[:17, :5]
    same(a[...], expected)
    for other in (a, b2array.open(tmp_path / "a.b2nd")):
        same(other[...], expected)
    assert batches(tmp_path / "a.b2nd") == [expected[box].reshape(-1).tolist() for box in boxes(a)]
    stock = blosc2.open(str(tmp_path / "a.b2nd"), mode="r")
    assert [len(batch) for batch in stock] == [expected[box].size for box in boxes(a)]
    assert b2array.verify(tmp_path / "a.b2nd").ok


def test_what_stock_changed_is_read_and_batches_of_another_length_are_refused(tmp_path):
    a = b2array.asarray(words(10), url=tmp_path / "a.b2nd", chunks=4)
    stock = blosc2.open(str(tmp_path / "a.b2nd"), mode="a")
    stock[1] = ["by", "stock", "", "é"]
    assert b2array.open(tmp_path / "a.b2nd")[4:8].tolist() == ["by", "stock", "", "é"]
    a = b2array.open(tmp_path / "a.b2nd", "r+")
    a[5] = "b2array"
    assert batches(tmp_path / "a.b2nd")[1] == ["by", "b2array", "", "é"]
    stock = blosc2.open(str(tmp_path / "a.b2nd"), mode="a")
    stock[1] = ["too", "few"]
    changed = b2array.open(tmp_path / "a.b2nd")
    with pytest.raises(FormatError, match=r"chunk 1 of .*expected a list of 4 items, found 2 items"):
        changed[...]
    assert changed[:4].tolist() == words(10)[:4].tolist()
    stock.append(["another batch"])
    with pytest.raises(FormatError, match=r"expected 3 batches of text .* found 4: other software .*open_schunk"):
        b2array.open(tmp_path / "a.b2nd")


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ([1, "b", "c", "d"], "expected text, found items of type int"),
        ([None, "b", "c", "d"], "expected text, found items of type NoneType"),
        ([["a"], "b", "c", b"d"], "expected text, found items of type bytes, list"),
    ],
)
def test_other_items_than_text_are_refused(tmp_path, batch, says):
    b2array.asarray(words(4), url=tmp_path / "a.b2nd")
    stock = blosc2.open(str(tmp_path / "a.b2nd"), mode="a")
    stock[0] = batch
    with pytest.raises(FormatError, match=says):
        b2array.open(tmp_path / "a.b2nd")[...]


# The bytes.


def test_the_bytes_are_the_ones_of_the_page_on_formats():
    values = np.array(["a", "é", "longer", ""], TEXT)
    a = b2array.asarray(values, chunks=3, blocks=2)
    content = a._handle.revision
    geometry = content.frame.metalayer("b2array_text")
    assert geometry[:3] == b"\x97\x00\x01"
    assert struct.unpack_from(">xBq", geometry, 3) == (0xD3, 4)
    assert struct.unpack_from(">xBi", geometry, 13) == (0xD2, 3)
    assert struct.unpack_from(">xBi", geometry, 19) == (0xD2, 2)
    assert geometry[25:] == b"\x00\xdb\x00\x00\x00\x0dStringDType()"
    assert msgpack.unpackb(content.frame.metalayer("batcharray")) == {
        "version": 1,
        "serializer": "msgpack",
        "items_per_block": 2,
        "arrow_schema": None,
    }
    assert content.state.attr("_batch_array_metadata") == msgpack.packb({"batch_lengths": [3, 1]})
    assert dict(a.attrs) == {}
    blocks = [b"\x92\xa1a\xa2\xc3\xa9", b"\x91\xa6longer"]
    assert b2array.open_schunk is not None
    assert content.frame.nbytes == len(b"".join(blocks)) + len(b"\x91\xa0" + b"\x90")
    chunk = a.get_chunk(1)
    assert chunk[0] == 6
    assert struct.unpack_from("<iii", chunk, 4) == (3, 2, len(chunk))
    assert chunk[30] == 1
    assert struct.unpack_from("<ii", chunk, 32) == (40, 46)
    assert chunk[40:] == b"\x02\x00\x00\x00\x91\xa0" + b"\x01\x00\x00\x00\x90"


@pytest.mark.parametrize("na_object", [None, math.nan, pd.NA, "?", 'it\'s \\ "na"'], ids=repr)
@pytest.mark.parametrize("coerce", [True, False])
def test_missing_items_stay_missing(tmp_path, na_object, coerce):
    dtype = np.dtypes.StringDType(na_object=na_object, coerce=coerce)
    values = np.array(["a", na_object, "", "None", "nan", na_object], dtype)
    a = b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=4)
    read = b2array.open(tmp_path / "a.b2nd")
    same(read[...], values)
    assert read[1] is na_object or read[1] == na_object
    same(pickle.loads(pickle.dumps(read))[...], values)
    a.append(values)
    same(a[...], np.concatenate([values, values]))
    stored = na_object if isinstance(na_object, str) else None
    assert batches(tmp_path / "a.b2nd")[0] == ["a", stored, "", "None"]
    full = b2array.full(3, na_object, dtype)
    full.resize(5)
    same(full[...], np.full(5, na_object, dtype))


def test_other_marks_of_missing_items_are_refused():
    with pytest.raises(TypeError, match=r"na_object must be None, NaN, pandas\.NA or text, not 7"):
        b2array.zeros(3, np.dtypes.StringDType(na_object=7))
    missing = np.array(["a", None], np.dtypes.StringDType(na_object=None))
    a = b2array.asarray(["b"], dtype=TEXT)
    with pytest.raises(TypeError, match=r"missing items .*None.*the array .* has none"):
        a.append(missing)
    assert a[...].tolist() == ["b"]


@pytest.mark.parametrize(
    "text",
    [
        "StringDType(",
        "StringDType(na_object=7)",
        "StringDType(na_object=open('x'))",
        "<U3",
        "",
        "StringDType(coerce=True)",
    ],
)
def test_types_from_damaged_files_are_refused(text):
    with pytest.raises(FormatError, match="expected a"):
        b2array.format.strings.parse_type(text)


@layouts
def test_damage_is_noticed(tmp_path, layout):
    a = b2array.asarray(words(1000), url=tmp_path / "a.b2nd", chunks=500, blocks=100, layout=layout)
    location = a._handle.revision.locate(1)
    path = tmp_path / "a.b2nd" / location.name if location.name else tmp_path / "a.b2nd"
    raw = bytearray(path.read_bytes())
    raw[location.start + 200] ^= 1
    path.write_bytes(raw)
    damaged = b2array.open(tmp_path / "a.b2nd")
    with pytest.raises(ChecksumError, match="chunk 1 of"):
        damaged[500:]
    same(damaged[:500], words(1000)[:500])
    assert not b2array.verify(tmp_path / "a.b2nd").ok


# Chunks and blocks.


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_runs_that_cover_each_chunk_once(seed):
    rng = np.random.default_rng(seed)
    ndim = int(rng.integers(1, 4))
    shape = tuple(map(int, rng.integers(1, 9, ndim)))
    chunks = tuple(map(int, rng.integers(1, 6, ndim)))
    blocks = automatic_run(chunks, int(rng.integers(1, 30)))
    assert is_run(chunks, blocks)
    values = np.array([str(n) for n in range(math.prod(shape))], TEXT).reshape(shape)
    a = b2array.asarray(values, chunks=chunks, blocks=blocks)
    layout = a._handle.revision.state.require_layout()
    assert layout.blocks == blocks
    same(a[...], values)
    for number, box in enumerate(boxes(a)):
        counts = [math.prod(block_extents(layout, number, block)) for block in range(layout.nblocks)]
        assert sum(counts) == values[box].size


def test_chunks_are_chosen_by_the_bytes_of_text():
    short = b2array.asarray(np.full(400_000, "a" * 10, TEXT))
    long = b2array.asarray(np.full(4_000, "a" * 1000, TEXT))
    assert 100_000 <= short.chunks[0] <= 400_000
    assert 1_000 <= long.chunks[0] <= 4_000
    assert 1_000 <= short.blocks[0] <= 4096
    assert 50 <= long.blocks[0] <= 200
    plain = b2array.zeros((100, 100), "T", chunks=(10, 100), blocks=(5, 10))
    assert plain.blocks == (1, 50)


def log_lines(n, *, long):
    """Return short lines, and among them some long ones of 4,000 characters."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(30, 60, n)
    lengths[rng.choice(n, long, replace=False)] = 4000
    return np.array(["x" * length for length in lengths], TEXT)


def short_names(n):
    return np.array(["n" * length for length in np.random.default_rng(2).integers(8, 13, n)], TEXT)


class Sliced:
    """An array of another library, which is read by slices and counts the items that it read."""

    def __init__(self, values):
        self._values = values
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim
        self.most = 0

    def __getitem__(self, key):
        found = self._values[key]
        self.most = max(self.most, found.size)
        return found


def _append(values, first):
    a = b2array.zeros((0,), TEXT) if first is None else b2array.asarray(values[:first])
    a.append(values[first:])
    return a


def _insert(values):
    a = b2array.create(shape=0, dtype=TEXT)
    a.insert(values, 0)
    return a


def _appender(values):
    a = b2array.create(shape=0, dtype=TEXT)
    with a.appender() as out:
        out.append(values)
    return a


ROUTES = {
    "group": lambda values: b2array.open_group("memory://text-chunks.b2d", "w").create("a", data=values),
    "concatenate": lambda values: b2array.concatenate([values[:100], values[100:]]),
    "concatenate, converted": lambda values: b2array.concatenate([values.astype(object)], dtype=TEXT, casting="unsafe"),
    "map": lambda values: b2array.map(lambda items: items, values),
    "from_dask": lambda values: b2array.from_dask(da.from_array(values, chunks=-1)),
    "from_dask in a group": lambda values: b2array.from_dask(
        da.from_array(values, chunks=-1), "memory://text-chunks.b2d/b", overwrite=True
    ),
    "slices": lambda values: b2array.asarray(Sliced(values)),
    "map to a type": lambda values: b2array.map(lambda items: items, values, dtype=TEXT),
    "copy": lambda values: b2array.asarray(values, chunks=700).copy(chunks="auto", blocks="auto"),
    "from_blocks": lambda values: b2array.from_blocks(np.array_split(values, 3)),
    "from_blocks of a type": lambda values: b2array.from_blocks(np.array_split(values, 3), dtype=TEXT),
    "fromiter": lambda values: b2array.fromiter(values.tolist(), TEXT),
    "append": lambda values: _append(values, None),
    "append to a few": lambda values: _append(values, 5),
    "append of slices": lambda values: _append(Sliced(values), None),
    "insert": _insert,
    "appender": _appender,
    "rows": lambda values: b2array.Rows.create(b2array.open_group("memory://text-rows.b2d", "w"), [values]).values,
}


@pytest.mark.parametrize("values", [log_lines(3000, long=75), short_names(20_000)], ids=["log lines", "short names"])
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_all_routes_choose_chunks_by_the_bytes_of_text(monkeypatch, route, values):
    # Smaller chunks than usual, so that a small text has several.
    monkeypatch.setattr(chunking, "LEAST_CHUNK_NBYTES", 2**17)
    a = route(values)
    assert a.dtype == TEXT
    np.testing.assert_array_equal(a[...], values)
    average = np.strings.str_len(values).mean()
    assert 2**17 / 2 < a.chunks[0] * average < 2**17 * 2, a.chunks
    assert 1000 < a.blocks[0] <= 4096 if average < 20 else 2**16 < a.blocks[0] * average < 2**18, a.blocks


@pytest.mark.parametrize("values", [log_lines(1500, long=30), short_names(20_000)], ids=["log lines", "short names"])
def test_text_of_one_width_gets_chunks_by_the_bytes_of_text_when_it_is_converted(monkeypatch, values):
    monkeypatch.setattr(chunking, "LEAST_CHUNK_NBYTES", 2**17)
    longest = np.strings.str_len(values).max()
    a = b2array.asarray(values.astype(f"U{longest}")).astype(TEXT)
    same(a[...], values)
    assert 2**17 / 2 < a.chunks[0] * np.strings.str_len(values).mean() < 2**17 * 2
    chosen = b2array.asarray(values[:9].astype(f"U{longest}"), chunks=3).astype(TEXT)
    assert chosen.chunks == (3,)


def test_stacked_text_has_chunks_for_its_bytes():
    values = np.array(["x" * 4000], TEXT).repeat(2000)
    a = b2array.stack([values, values])
    assert a.chunks[0] * a.chunks[1] * 4000 < 2**22
    same(a[1], values)


@pytest.mark.parametrize("store", [b2array.asarray, lambda source: b2array.concatenate([source])])
def test_only_the_first_items_of_other_libraries_are_read_to_measure_text(store):
    source = Sliced(np.array(["x" * 4000], TEXT).repeat(10_000))
    a = store(source)
    # The array is read in pieces of 32 MiB.
    assert source.most < 10_000
    assert a.chunks[0] * 4000 < 2**23
    table = short_names(5000).reshape(50, 100)
    same(store(Sliced(table))[...], table)


def test_dask_computes_the_first_items_once_more_to_measure_text_unless_it_is_delayed():
    computed = []

    def make(block_info=None):
        computed.append(block_info[None]["chunk-location"])
        return np.full(2000, "z" * 1000, TEXT)

    x = da.map_blocks(make, chunks=((2000,) * 4,), dtype=TEXT, meta=np.empty(0, TEXT))
    computed.clear()
    a = b2array.from_dask(x, scheduler="sync")
    # The first 4,096 items are in three of the four pieces.
    assert sorted(computed) == [(0,), (0,), (1,), (1,), (2,), (2,), (3,)]
    assert a.chunks[0] * 1000 < 2**22
    computed.clear()
    delayed = b2array.from_dask(x, compute=False)
    assert not computed
    np.testing.assert_array_equal(delayed.compute(scheduler="sync")[...], np.full(8000, "z" * 1000, TEXT))
    computed.clear()
    b2array.from_dask(x, chunks=500, blocks=100, scheduler="sync")
    assert len(computed) == 4


def test_pieces_of_text_for_tasks_and_functions_have_a_limit():
    values = np.array(["x" * 4000], TEXT).repeat(6000)
    a = b2array.asarray(values)
    (lengths,) = a.to_dask().chunks
    assert max(lengths) * 4000 <= 2 * 4 * 2**20
    seen = []

    def measure(items):
        seen.append(items.size)
        return np.strings.str_len(items)

    lengths = b2array.map(measure, a, dtype=int, chunks=500)
    np.testing.assert_array_equal(lengths[...], np.full(6000, 4000))
    # Without the text, all items would be one piece of less than 32 MiB.
    assert max(seen) * 4000 <= 32 * 2**20


def test_sizes_are_numpys_and_the_ratio_is_of_the_text():
    a = b2array.asarray(np.full(10_000, "a" * 99, TEXT))
    assert a.nbytes == 160_000
    assert a.cratio > 99 * 10_000 / a.cbytes * 0.99


def test_one_item_costs_a_block():
    a = b2array.asarray(words(10_000), chunks=4000, blocks=200)
    plan = a.explain(6_234)
    assert (plan.chunks, plan.blocks) == (1, 1)


def test_unwritten_chunks_have_the_fill_value_for_all_readers(tmp_path):
    a = b2array.full((5, 5), "é", TEXT, url=tmp_path / "a.b2nd", chunks=(2, 3))
    assert a.fill_value == "é"
    a[0, 0] = "first"
    a.resize((7, 5))
    expected = np.full((7, 5), "é", TEXT)
    expected[0, 0] = "first"
    same(b2array.open(tmp_path / "a.b2nd")[...], expected)
    assert batches(tmp_path / "a.b2nd") == [expected[box].reshape(-1).tolist() for box in boxes(a)]
    with a.transaction() as changes:
        changes.resize((9, 5))
        assert changes[8].tolist() == ["é"] * 5
        changes[8, 1] = "last"
    assert a[8].tolist() == ["é", "last", "é", "é", "é"]


# Making, copying, converting.


def test_arrays_of_objects_and_of_pandas_are_text(tmp_path):
    lines = ["a", "longer than the others", ""]
    for x in (np.array(lines, object), pd.Series(lines), pd.Index(lines), pd.Series(lines, dtype="string")):
        same(b2array.asarray(x)[...], np.array(lines, TEXT))
    same(b2array.from_blocks(np.array([line], object) for line in lines)[...], np.array(lines, TEXT))
    a = b2array.zeros(0, "T")
    a.append(pd.Series(lines))
    assert a[...].tolist() == lines
    with pytest.raises(TypeError, match="expected text, found int 3"):
        a.append(np.array(["a", 3], object))
    assert b2array.asarray(lines).dtype == "<U22"


def test_types_are_converted_both_ways(tmp_path):
    values = np.array([["1.5", "-2"], ["1e3", "0"]], TEXT)
    a = b2array.asarray(values, url=tmp_path / "a.b2nd", attrs={"units": "m"}, dims=("y", "x"), fill_value="0")
    fixed = a.astype("U10")
    assert fixed[...].tolist() == values.astype("U10").tolist()
    assert fixed.dims == ("y", "x")
    assert dict(fixed.attrs) == {"units": "m"}
    assert "batcharray" not in fixed.meta
    back = fixed.astype("T", url=tmp_path / "b.b2nd")
    same(back[...], values)
    assert batches(tmp_path / "b.b2nd") == [values.reshape(-1).tolist()]
    assert a.astype("f8")[...].tolist() == [[1.5, -2], [1000, 0]]
    same(b2array.asarray(np.arange(3.0)).astype("T")[...], np.arange(3.0).astype(TEXT))
    with pytest.raises(TypeError, match="does not say how long an item is"):
        a.astype("U")
    same(a.copy(chunks=(1, 2), cparams="lz4")[...], values)
    same(a.copy(tmp_path / "c.b2nd")[...], values)
    assert a.copy().get_chunk(0) == a.get_chunk(0)
    like = b2array.zeros_like(a)
    assert (like.dtype, like.chunks, like.blocks) == (a.dtype, a.chunks, a.blocks)


def test_what_does_not_apply_to_text_is_refused_by_name():
    a = b2array.asarray(words(10))
    for name in ("sum", "mean", "std", "min", "argmax", "any", "prod"):
        with pytest.raises(TypeError, match=f"{name}.*reduces numbers, and the items are of StringDType"):
            getattr(a, name)()
    with pytest.raises(TypeError, match="nansum"):
        b2array.nansum(a)
    for cparams, says in [
        ({"filters": ("shuffle",)}, "filters rearrange the bytes of numbers"),
        ({"absolute_error": 0.1}, "absolute_error"),
        ({"codec": "zfp", "tolerance": 0.1}, "zfp"),
        ({"use_dict": True}, "without dictionaries"),
    ]:
        with pytest.raises(TypeError, match=says):
            b2array.asarray(words(10), cparams=b2array.CParams(**cparams))


# Transactions, forks, snapshots, groups.


@layouts
def test_appends_in_a_transaction_stay_open_and_are_one_commit(tmp_path, layout):
    a = b2array.zeros((0, 3), "T", url=tmp_path / "a.b2nd", chunks=(10, 2), layout=layout)
    expected = words(45, 3)
    with a.transaction() as changes:
        for n in range(25):
            changes.append(expected[n : n + 1])
        same(changes[...], expected[:25])
        assert b2array.open(tmp_path / "a.b2nd").shape == (0, 3)
    with a.appender(every=7) as out:
        for row in expected[25:]:
            out.append(row)
    same(b2array.open(tmp_path / "a.b2nd")[...], expected)
    assert batches(tmp_path / "a.b2nd") == [expected[box].reshape(-1).tolist() for box in boxes(a)]


def fail_to_write(changes):
    with next(iter(changes._handle.attempts())) as draft:
        layout = draft.state.require_layout()
        write(draft, layout, (slice(0, 6, 1),), None, np.full(6, "lost", TEXT))
        raise RuntimeError


def test_a_failed_write_in_a_transaction_is_undone(tmp_path):
    values = words(20)
    a = b2array.asarray(values, chunks=8, blocks=3)
    with a.transaction() as changes:
        changes[3] = "kept"
        with pytest.raises(ValueError, match="broadcast"):
            changes[2:5] = ["too", "few"]
        with pytest.raises(RuntimeError):
            fail_to_write(changes)
        assert changes[:6].tolist() == [*values[:3].tolist(), "kept", *values[4:6].tolist()]
    values[3] = "kept"
    same(a[...], values)


@layouts
def test_forks_and_snapshots(tmp_path, layout):
    values = words(50)
    a = b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=12, blocks=5, layout=layout)
    a.snapshot("start")
    with a.transaction() as changes:
        workers = [pickle.loads(pickle.dumps(changes.fork())) for _ in range(3)]
        for n, worker in enumerate(workers):
            worker[12 * n : 12 * (n + 1)] = f"fork {n}"
        changes.merge(*workers)
    a.append(words(7, seed=1))
    expected = np.concatenate([np.repeat(np.array(["fork 0", "fork 1", "fork 2"], TEXT), 12), values[36:]])
    expected = np.concatenate([expected, words(7, seed=1)])
    same(b2array.open(tmp_path / "a.b2nd")[...], expected)
    same(b2array.open(tmp_path / "a.b2nd", at="start")[...], values)
    assert a.diff("start") == [(slice(0, 36, None),), (slice(48, 57, None),)]
    copy = b2array.copy(tmp_path / "a.b2nd", tmp_path / "b.b2nd")
    same(b2array.open(tmp_path / "b.b2nd", at="start")[...], values)
    same(copy[...], expected)
    a.restore("start")
    same(a[...], values)
    assert batches(tmp_path / "a.b2nd") == [values[box].tolist() for box in boxes(a)]
    assert [len(batch) for batch in blosc2.open(str(tmp_path / "a.b2nd"), mode="r")] == [12, 12, 12, 12, 2]
    b2array.repack(tmp_path / "a.b2nd")
    b2array.vacuum(tmp_path / "a.b2nd")
    same(b2array.open(tmp_path / "a.b2nd")[...], values)
    assert b2array.verify(tmp_path / "a.b2nd", deep=True).ok


@layouts
def test_a_repair_saves_the_other_chunks(tmp_path, layout):
    values = words(50)
    a = b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=12, blocks=5, layout=layout)
    location = a._handle.revision.locate(1)
    path = tmp_path / "a.b2nd" / location.name if location.name else tmp_path / "a.b2nd"
    raw = bytearray(path.read_bytes())
    raw[location.start + 90] ^= 255
    path.write_bytes(raw)
    assert not b2array.verify(tmp_path / "a.b2nd", deep=True).ok
    b2array.repair(tmp_path / "a.b2nd")
    repaired = b2array.open(tmp_path / "a.b2nd", "r+")
    same(repaired[24:], values[24:])
    with pytest.raises(ChunkLostError):
        repaired[12:24]
    repaired[12:24] = "healed"
    assert b2array.verify(tmp_path / "a.b2nd", deep=True).ok
    assert batches(tmp_path / "a.b2nd")[1] == ["healed"] * 12


@pytest.mark.parametrize("place", ["local", "memory"])
def test_members_of_groups_are_committed_with_the_others(tmp_path, place):
    url = str(tmp_path / "g.b2d") if place == "local" else "memory://text-group.b2d"
    group = b2array.open_group(url, "w")
    values = words(30, 4)
    a = group.create("lines/text", (30, 4), TEXT, chunks=(8, 4))
    a[...] = values
    group["numbers"] = np.arange(3)
    with group.transaction() as changes:
        changes["lines/text"][3] = "changed"
        changes["lines/text"].append(words(2, 4, seed=4))
        changes["numbers"][0] = 7
        changes.create("new", (5,), TEXT, fill_value="?")[1] = "b"
        assert b2array.open_group(url)["lines/text"].shape == (30, 4)
    values[3] = "changed"
    values = np.concatenate([values, words(2, 4, seed=4)])
    same(b2array.open_group(url)["lines/text"][...], values)
    assert b2array.open_group(url)["new"][...].tolist() == ["?", "b", "?", "?", "?"]
    group.snapshot("one")
    group["lines/text"].resize((20, 4))
    group["lines/text"][0] = "later"
    same(b2array.open_group(url, at="one")["lines/text"][...], values)
    with group.transaction() as changes:
        worker = pickle.loads(pickle.dumps(changes.fork()))
        worker["lines/text"][0:8] = "by a fork"
        changes.merge(worker)
    assert b2array.open_group(url)["lines/text"][7].tolist() == ["by a fork"] * 4
    group.restore("one")
    same(b2array.open_group(url)["lines/text"][...], values)
    assert [each.dtype for each in (group["lines/text"], group["new"])] == [TEXT, TEXT]


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    a = b2array.asarray(words(20), url=tmp_path / "a.b2nd", chunks=5)
    one, other = (b2array.open(tmp_path / "a.b2nd", "r+") for _ in range(2))
    one[0] = "one"
    other[19] = "other"
    one.append(["first"])
    other.append(["second"])
    a.refresh()
    assert a.shape == (22,)
    assert a[[0, 19, 20, 21]].tolist() == ["one", "other", "first", "second"]
    assert [len(batch) for batch in blosc2.open(str(tmp_path / "a.b2nd"), mode="r")] == [5, 5, 5, 5, 2]


# dask, files of other formats, warnings.


@pytest.mark.parametrize("dtype", [TEXT, np.dtype(object)], ids=str)
def test_dask_arrays_of_text_are_stored_and_read(tmp_path, dtype):
    values = words(40, 3)
    a = b2array.from_dask(da.from_array(values.astype(dtype), chunks=(8, 3)), tmp_path / "a.b2nd", chunks=(8, 3))
    same(a[...], values)
    same(a.to_dask().compute(), values)
    a.store(da.from_array(values[:8].astype(dtype), chunks=8), region=(slice(16, 24), slice(0, 3)))
    same(a[16:24], values[:8])
    broken = da.from_array(np.array(["a", 5], object), chunks=1)
    with pytest.raises(TypeError, match="expected text, found int 5"):
        b2array.from_dask(broken, tmp_path / "b.b2nd")
    assert not (tmp_path / "b.b2nd").exists()


@pytest.mark.parametrize("suffix", ["zarr", "h5", "nc", "b2z", "b2d"])
def test_text_is_converted_both_ways(tmp_path, suffix):
    values = words(40, 6)
    b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=(9, 6), attrs={"units": "m"}, dims=("y", "x"))
    b2array.convert(tmp_path / "a.b2nd", tmp_path / f"b.{suffix}", verify=True)
    b2array.convert(tmp_path / f"b.{suffix}", tmp_path / "c.b2nd", verify=True)
    back = b2array.open(tmp_path / "c.b2nd")
    same(back[...], values)
    assert (back.dims, dict(back.attrs)) == (("y", "x"), {"units": "m"})


def test_missing_text_is_converted_or_refused(tmp_path):
    values = np.array(["a", None, "c"], np.dtypes.StringDType(na_object=None))
    b2array.asarray(values, url=tmp_path / "a.b2nd")
    b2array.convert(tmp_path / "a.b2nd", tmp_path / "b.b2z")
    b2array.convert(tmp_path / "b.b2z", tmp_path / "back.b2nd")
    same(b2array.open(tmp_path / "back.b2nd")[...], values)
    for suffix in ("zarr", "h5"):
        with pytest.raises(UnsupportedError, match=r"no missing text, found missing items .None."):
            b2array.convert(tmp_path / "a.b2nd", tmp_path / f"c.{suffix}")
        assert not (tmp_path / f"c.{suffix}").exists()
    b2array.asarray(words(9), url=tmp_path / "d.b2nd")
    b2array.convert(tmp_path / "d.b2nd", tmp_path / "d.npy")
    assert np.load(tmp_path / "d.npy").dtype.kind == "U"


def test_nobody_pays_for_wide_text_by_accident():
    wide = np.full(200_000, "short", "U100")
    wide[5] = "y" * 100
    says = "200000 items of type <U100 take 76.3 MiB in memory, and their text about .*StringDType"
    with pytest.warns(PerformanceWarning, match=says):
        b2array.asarray(wide)
    text = b2array.asarray(wide.astype(TEXT))
    with pytest.warns(PerformanceWarning, match=says):
        text.astype("U100")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        b2array.asarray(wide[:150_000])
        b2array.asarray(np.full(200_000, "z" * 50, "U100"))


MAKERS = {
    "from_dask": lambda wide, _: b2array.from_dask(da.from_array(wide, chunks=500)),
    "from_dask, a member": lambda wide, _: b2array.from_dask(
        da.from_array(wide, chunks=500), "memory://wide-text.b2d/a", overwrite=True, scheduler="sync"
    ),
    "from_blocks": lambda wide, _: b2array.from_blocks(np.array_split(wide, 5)),
    "fromiter": lambda wide, _: b2array.fromiter(iter(wide.tolist()), wide.dtype, len(wide)),
    "concatenate": lambda wide, _: b2array.concatenate([wide[:100].astype("U5"), wide]),
    "stack": lambda wide, _: b2array.stack([wide, wide]),
    "map": lambda wide, _: b2array.map(lambda x: x.astype(wide.dtype), b2array.asarray(wide.astype(TEXT))),
    "convert": lambda wide, path: (np.save(path / "a.npy", wide), b2array.convert(path / "a.npy", path / "a.b2nd")),
    "convert to .npy": lambda wide, path: (
        b2array.asarray(wide.astype(TEXT), url=path / "a.b2nd"),
        b2array.convert(path / "a.b2nd", path / "a.npy"),
    ),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_whatever_makes_wide_text_warns_once(tmp_path, monkeypatch, maker):
    b2array.open_group("memory://wide-text.b2d", "a")
    monkeypatch.setattr(wide_text, "_LEAST_NBYTES", 2**20)
    wide = np.full(3000, "short", "U100")
    wide[5] = "y" * 100
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MAKERS[maker](wide, tmp_path)
        about_text = [str(each.message) for each in caught if "StringDType" in str(each.message)]
        assert len(about_text) == 1
        assert "of type <U100 take" in about_text[0]


def test_text_that_fills_its_items_does_not_warn(monkeypatch):
    monkeypatch.setattr(wide_text, "_LEAST_NBYTES", 2**20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        b2array.from_blocks([np.full(3000, "short", "U100"), np.full(3000, "z" * 100, "U100")], chunks=500)


def test_wide_text_without_items_is_not_measured(monkeypatch):
    monkeypatch.setattr(wide_text, "_LEAST_NBYTES", 2**20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        b2array.zeros(3000, "U100")
        b2array.from_blocks([np.empty((0, 100_000), "U100")])


def test_the_program_shows_text(tmp_path, capsys):
    b2array.asarray(np.array(["a", "é", "longer"], TEXT), url=tmp_path / "a.b2nd")
    path = str(tmp_path / "a.b2nd")
    for command, shown in [
        (["cat", path], "['a' 'é' 'longer']"),
        (["info", path], "StringDType()"),
        (["ls", path], "StringDType()"),
        (["verify", path], "in order"),
        (["diff", path, path], "no difference"),
        (["bench", path], "filters none"),
    ]:
        assert main(command) == 0
        assert shown in capsys.readouterr().out
    a = b2array.open(path)
    assert "StringDType()" in repr(a)
    assert "longer" in a._repr_html_()
    assert "StringDType()" in str(a.info)


# Requests.


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_reading_text_far_away_takes_one_round_trip_for_the_blocks(tmp_path, layout, monkeypatch):
    values = words(20_000)
    a = b2array.asarray(values, url=tmp_path / "a.b2nd", chunks=8000, blocks=500, layout=layout)
    store, remote = far(tmp_path / "a.b2nd")
    for key, most in [(12_345, a.cbytes // 20), (slice(3, 10), a.cbytes // 20), (..., 2 * a.cbytes)]:
        store.forget()
        monkeypatch.setattr(b2array.config, "cache_bytes", 0)
        found = remote[key]
        assert np.asarray(found, object).tolist() == np.asarray(values[key], object).tolist()
        assert store.round_trips == 1
        assert store.nbytes < most


def commits_of(dtype, values, monkeypatch):
    """Return the operations of commits of a group in an object store whose member is of this type."""
    group = b2array.open_group(f"memory://requests-{np.dtype(dtype).kind}.b2d", "w")
    seen = Operations()
    with monkeypatch.context() as patch:
        seen.listen(SharedMemoryStore, patch)

        def write():
            with group.transaction() as changes:
                a = changes.create("a", values.shape, dtype, chunks=(4,))
                a[...] = values
                changes["n"] = np.arange(3)

        def change():
            with group.transaction() as changes:
                changes["a"][2:7] = values[0]
                changes["a"].append(values[:5])
                changes["n"][0] = 1

        return [[*seen.watch(task)] for task in (write, change)]


def test_a_commit_of_a_group_takes_no_more_requests_for_text(monkeypatch):
    numbers = commits_of("i8", np.arange(1, 11), monkeypatch)
    text = commits_of(TEXT, words(10), monkeypatch)
    for ours, theirs in zip(text, numbers, strict=True):
        assert len(ours) <= len(theirs)
        assert ours == theirs
