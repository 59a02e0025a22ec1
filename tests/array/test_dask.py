"""dask: reading and writing with its schedulers."""

from __future__ import annotations

import math
import operator
import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.core import PerformanceWarning
from hypothesis import given
from hypothesis import strategies as st
from servers import RangeServer

import b2array
from b2array import config, threads
from b2array.array import dask as dask_io
from b2array.array import dask_chunks
from b2array.array.frozen import Frozen
from b2array.commit.changes import ChangeSet
from b2array.commit.fork_point import ForkPoint
from b2array.commit.forks import commit_changes, make_fork_point, write_part
from b2array.errors import ConflictError, ReadOnlyError
from b2array.store.endings import JOURNAL

LAYOUTS = ["contiguous", "sparse"]
PLACES = ["{}/a.b2nd", "memory://{}/a.b2nd/"]


@pytest.fixture(autouse=True)
def _threads():
    with dask.config.set(scheduler="threads", num_workers=4):
        yield


def numbers(*shape: int, dtype: str = "i8") -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@pytest.fixture(params=LAYOUTS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> b2array.NDArray:
    options = {"layout": request.param, "chunks": (10, 8), "blocks": (4, 4)}
    return b2array.asarray(numbers(43, 30), url=tmp_path / "a.b2nd", **options)


def leftovers(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob(f"*{JOURNAL}*"))


# Reading.


def test_reading_gives_what_is_stored(stored: b2array.NDArray) -> None:
    x = stored.to_dask()
    assert x.dtype == stored.dtype
    assert np.array_equal(x.compute(), numbers(43, 30))
    assert np.array_equal(x[5:40:3, ::-1].compute(), numbers(43, 30)[5:40:3, ::-1])
    assert np.array_equal(x[[1, 7, 40], 3].compute(), numbers(43, 30)[[1, 7, 40], 3])
    assert x.sum().compute() == numbers(43, 30).sum()


@pytest.mark.parametrize(("limit", "expected"), [("1MiB", ((43,), (30,))), ("1300B", ((10, 10, 10, 10, 3), (16, 14)))])
def test_pieces_are_whole_chunks_within_the_limit(stored: b2array.NDArray, limit: str, expected: object) -> None:
    with dask.config.set({"array.chunk-size": limit}):
        assert stored.to_dask().chunks == expected


@pytest.mark.parametrize("shape", [(96, 512, 512), (10_000, 2500), (25_000_000,), (400, 4000, 4000)])
def test_pieces_are_enough_for_many_cores_and_large_enough_for_tasks(shape: tuple[int, ...]) -> None:
    a = b2array.zeros(shape, "f4")
    x = a.to_dask()
    assert 12 <= x.npartitions <= 512
    largest = math.prod(x.chunksize) * 4
    assert 2 * 2**20 <= largest <= 128 * 2**20
    assert dask_chunks.align(x.chunks, a.chunks, [0] * a.ndim) == x.chunks


def test_small_arrays_are_one_piece() -> None:
    assert b2array.zeros((1000, 1000), "f4", chunks=(10, 1000)).to_dask().npartitions == 1


def test_pieces_of_large_chunks_are_whole_blocks(stored: b2array.NDArray) -> None:
    with dask.config.set({"array.chunk-size": "300B"}):
        rows, columns = stored.to_dask().chunks
    assert rows == (4, 4, 2) * 4 + (3,)
    assert columns == (8, 8, 8, 6)


def test_building_a_graph_reads_nothing(stored: b2array.NDArray, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(type(stored._handle.store), "read", refuse)
    monkeypatch.setattr(type(stored._handle.store), "gather", refuse)
    monkeypatch.setattr(type(stored._handle.store), "head", refuse)
    stored.to_dask()[3:].sum()
    da.from_array(stored)[3:].sum()
    pickle.dumps(stored.to_dask())


def test_slices_are_pushed_down_to_blocks(stored: b2array.NDArray, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    original = b2array.NDArray.__getitem__

    def getitem(self: b2array.NDArray, key: object) -> object:
        keys.append(key)
        return original(self, key)

    monkeypatch.setattr(b2array.NDArray, "__getitem__", getitem)
    assert stored.to_dask()[11:13, 5].compute().tolist() == numbers(43, 30)[11:13, 5].tolist()
    (key,) = keys
    assert key == (slice(11, 13, None), 5) or key == (slice(11, 13, 1), 5)


WITH_DASK: dict[str, Callable[[Any, Any], Any]] = {
    "a - x": lambda a, x: a - x,
    "x - a": lambda a, x: x - a,
    "a < x": lambda a, x: a < x,
    "a.view[1:] + x[1:]": lambda a, x: (a.view[1:] if isinstance(a, b2array.NDArray) else a[1:]) + x[1:],
    "a.T * x.T": lambda a, x: a.T * x.T,
    "a @ x.T": lambda a, x: a @ x.T,
    "divmod": lambda a, x: divmod(a, x)[1],
    "x += a": lambda a, x: operator.iadd(x, a),
    "np.add": lambda a, x: np.add(a, x),
    "np.hypot": lambda a, x: np.hypot(x, a),
    "np.where": lambda a, x: np.where(x > 7, a, x),
    "np.concatenate": lambda a, x: np.concatenate([a, x]),
    "np.stack": lambda a, x: np.stack([x, a]),
    "np.maximum of a row": lambda a, x: np.maximum(a, x[0]),
}


@pytest.mark.parametrize("name", WITH_DASK)
def test_operators_with_a_dask_array_read_whole_chunks_piece_by_piece(
    stored: b2array.NDArray, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sizes, original, x = [], Frozen.__getitem__, numbers(43, 30) % 11 + 1

    def getitem(self: Frozen, key: Any) -> Any:
        found = original(self, key)
        sizes.append(found.size)
        return found

    expected = WITH_DASK[name](numbers(43, 30), x.copy())
    with dask.config.set({"array.chunk-size": "1300B"}):
        result = WITH_DASK[name](stored, da.from_array(x, chunks=(20, 30)))
    assert isinstance(result, da.Array)
    monkeypatch.setattr(Frozen, "__getitem__", getitem)
    np.testing.assert_array_equal(result.compute(), expected)
    assert sizes
    assert max(sizes) <= 10 * 16  # two chunks


def test_from_array_does_not_copy(stored: b2array.NDArray) -> None:
    x = da.from_array(stored)
    assert any(value is stored or getattr(value, "value", None) is stored for value in dict(x.dask).values())
    assert np.array_equal(x.compute(), numbers(43, 30))


def test_tokens_depend_on_place_and_generation(stored: b2array.NDArray) -> None:
    name = stored.to_dask().name
    assert b2array.open(stored.url).to_dask().name == name
    assert dask.base.tokenize(b2array.open(stored.url)) == dask.base.tokenize(stored)
    stored[0, 0] = 99
    assert stored.to_dask().name != name


def test_graphs_read_the_state_they_were_made_from(stored: b2array.NDArray) -> None:
    x = stored.to_dask()
    stored[...] = 0
    assert np.array_equal(x.compute(), numbers(43, 30))


def test_transactions_have_no_graph_and_no_token(stored: b2array.NDArray) -> None:
    with stored.transaction():
        stored[0] = 0
        with pytest.raises(ValueError, match="transaction"):
            stored.to_dask()
        assert dask.base.tokenize(stored) != dask.base.tokenize(b2array.open(stored.url))


def test_misaligned_chunks_are_told_and_right(stored: b2array.NDArray) -> None:
    with pytest.warns(PerformanceWarning, match="do not align") as warned:
        x = stored.to_dask(chunks=(7, 9))
    assert warned[0].filename == __file__
    assert np.array_equal(x.compute(), numbers(43, 30))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1)])
def test_small_shapes_make_the_round_trip(shape: tuple[int, ...]) -> None:
    a = b2array.from_dask(da.ones(shape, dtype="f4"))
    assert np.array_equal(a[...], np.ones(shape))
    assert np.array_equal(a.to_dask().compute(), np.ones(shape))


def test_tasks_use_one_thread(stored: b2array.NDArray, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    original = b2array.NDArray.__getitem__

    def getitem(self: b2array.NDArray, key: object) -> object:
        widths.append(threads.width())
        return original(self, key)

    monkeypatch.setattr(b2array.NDArray, "__getitem__", getitem)
    with config.using(threads=3):
        for scheduler in ("sync", "threads"):
            stored.to_dask().compute(scheduler=scheduler)
        assert threads.width() == 3
    assert set(widths) == {1}


def test_size_in_memory_is_that_of_the_index(stored: b2array.NDArray) -> None:
    from dask.sizeof import sizeof

    dask_io.register_sizeof(sizeof)
    for held in (stored, dask_io.Frozen(stored)):
        assert stored.nchunks * 8 < sizeof(held) < stored.nbytes


def test_handles_are_pickled_and_unpickled_once(stored: b2array.NDArray) -> None:
    frozen = dask_io.Frozen(stored)
    copies = [pickle.loads(pickle.dumps(frozen)) for _ in range(2)]
    assert copies[0].array is copies[1].array
    assert len(pickle.dumps(frozen)) < 2000


def test_importing_b2array_does_not_import_dask() -> None:
    script = "import sys, b2array; b2array.zeros(3)[...]; print('dask' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# Writing.


@pytest.mark.parametrize("layout", LAYOUTS)
def test_writing_is_one_commit_without_leftovers(tmp_path: Path, layout: str) -> None:
    x = da.from_array(numbers(40, 30), chunks=(10, 15))
    a = b2array.from_dask(x, tmp_path / "a.b2nd", layout=layout, attrs={"unit": "m"}, dims=("x", "y"))
    assert a.chunks == (10, 15)
    assert (a.dims, dict(a.attrs)) == (("x", "y"), {"unit": "m"})
    assert np.array_equal(b2array.open(tmp_path / "a.b2nd")[...], numbers(40, 30))
    assert b2array.verify(tmp_path / "a.b2nd", deep=True).problems == ()
    assert leftovers(tmp_path) == []
    a[0] = 0
    assert b2array.open(tmp_path / "a.b2nd")[0].sum() == 0


def test_tasks_do_not_replace_a_local_frame_of_the_other_layout(tmp_path: Path) -> None:
    x = da.from_array(numbers(40, 30), chunks=(10, 15))
    for layout, other in (LAYOUTS, LAYOUTS[::-1]):
        b2array.asarray(numbers(4, 3), url=tmp_path / layout, layout=layout)
        with pytest.raises(FileExistsError, match="other layout"):
            b2array.from_dask(x, tmp_path / layout, layout=other, overwrite=True)
        assert np.array_equal(b2array.open(tmp_path / layout)[...], numbers(4, 3))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(LAYOUTS)


def test_stock_reads_what_was_written_in_parallel(tmp_path: Path) -> None:
    blosc2 = pytest.importorskip("blosc2")
    x = da.from_array(numbers(40, 30), chunks=(10, 15))
    for layout in LAYOUTS:
        a = b2array.from_dask(x, tmp_path / layout, layout=layout)
        a.store(-x[:12].rechunk(((5, 7), (15, 15))), region=(slice(5, 17),))
        expected = numbers(40, 30)
        expected[5:17] = -numbers(40, 30)[:12]
        assert np.array_equal(blosc2.open(str(tmp_path / layout))[...], expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_visible_before_the_commit(tmp_path: Path, layout: str) -> None:
    x = da.from_array(numbers(40, 30), chunks=(10, 15))
    writing = b2array.from_dask(x, tmp_path / "a.b2nd", layout=layout, compute=False)
    with pytest.raises(FileNotFoundError):
        b2array.open(tmp_path / "a.b2nd")
    assert np.array_equal(writing.compute()[...], numbers(40, 30))
    assert np.array_equal(b2array.open(tmp_path / "a.b2nd")[...], numbers(40, 30))
    writing.compute()
    assert np.array_equal(b2array.open(tmp_path / "a.b2nd")[...], numbers(40, 30))
    with pytest.raises(FileExistsError):
        b2array.from_dask(x, tmp_path / "a.b2nd", layout=layout)


@pytest.mark.parametrize(
    "region", [None, (slice(3, 33), slice(5, 25)), (slice(10, 20),), (slice(None), slice(-1, None)), (slice(4, 4),)]
)
@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
def test_regions_are_written_and_the_rest_is_kept(stored: b2array.NDArray, region: tuple[slice, ...] | None) -> None:
    expected = numbers(43, 30)
    key = region or (...,)
    values = -1 - numbers(*expected[key].shape)
    x = da.from_array(values, chunks=(7, 6))
    expected[key] = values
    assert stored.store(x, region) is None
    assert np.array_equal(stored[...], expected)
    assert np.array_equal(b2array.open(stored.url)[...], expected)
    assert leftovers(Path(stored.url).parent) == []


def test_return_stored_reads_what_was_written(stored: b2array.NDArray) -> None:
    x = da.from_array(numbers(43, 30) + 1, chunks=(10, 30))
    before = stored.store(x, return_stored=True, compute=False)
    assert np.array_equal(b2array.open(stored.url)[...], numbers(43, 30))
    assert np.array_equal(before.compute(), numbers(43, 30) + 1)
    assert np.array_equal(b2array.open(stored.url)[...], numbers(43, 30) + 1)
    after = b2array.open(stored.url, mode="r+").store(x * 2, return_stored=True)
    assert np.array_equal(after.compute(), (numbers(43, 30) + 1) * 2)


def test_misaligned_sources_are_rechunked_with_a_warning(stored: b2array.NDArray) -> None:
    x = da.from_array(numbers(43, 30) + 1, chunks=(7, 6))
    with pytest.warns(PerformanceWarning, match=r"35 pieces are cut into .* MB move") as warned:
        stored.store(x)
    assert warned[0].filename == __file__
    assert np.array_equal(stored[...], numbers(43, 30) + 1)


def test_chunks_are_those_of_flat_pieces_rather_than_of_another_form() -> None:
    x = da.zeros((365, 300, 300), chunks=(1, 300, 300))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a = b2array.from_dask(x, compute=False)
    del a
    assert dask_chunks.dividing(x.chunks, 8) == (1, 300, 300)
    assert dask_chunks.dividing(((8,) * 30, (256, 256), (512,)), 4) == (8, 256, 512)
    assert dask_chunks.dividing(((1,) * 100_000,), 8) is None


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=3),
    st.sampled_from([1, 4, 8]),
)
def test_chosen_chunks_divide_all_pieces(axes: list[tuple[int, int, int]], itemsize: int) -> None:
    cut = tuple((length,) * count + (min(last, length),) for count, length, last in axes)
    chunks = dask_chunks.dividing(cut, itemsize)
    if chunks is not None:
        assert dask_chunks.align(cut, chunks, [0] * len(cut)) == cut
        assert math.prod(chunks) * itemsize <= 2**26


@pytest.mark.parametrize("layout", LAYOUTS)
def test_irregular_sources_are_written(tmp_path: Path, layout: str) -> None:
    x = da.from_array(numbers(40, 30), chunks=((3, 17, 20), (30,)))
    with pytest.warns(PerformanceWarning):
        a = b2array.from_dask(x, tmp_path / "a.b2nd", layout=layout, chunks=(8, 10))
    assert np.array_equal(a[...], numbers(40, 30))


def test_writing_in_memory_and_casting(tmp_path: Path) -> None:
    a = b2array.from_dask(da.from_array(numbers(6, 4), chunks=(3, 4)), dtype="f4")
    assert a.dtype == "f4"
    a.store(da.ones((6, 4), chunks=(3, 4), dtype="i2"))
    assert a[...].sum() == 24


def test_zeros_take_no_files(tmp_path: Path) -> None:
    b2array.from_dask(da.zeros((40, 40), chunks=(10, 10)), tmp_path / "z.b2nd", layout="sparse")
    assert [path.name for path in (tmp_path / "z.b2nd").glob("*.chunk")] == []


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda x: x[x > 3], ValueError, "unknown sizes"),
        (lambda x: x[:3], ValueError, "shape"),
        (lambda x: x.astype("f8") + 0.5, TypeError, "cast"),
        (lambda x: da.ma.masked_equal(x, 3), TypeError, "masked"),
        (lambda x: x.compute(), TypeError, "dask array"),
    ],
)
def test_bad_sources_are_refused_before_anything_runs(
    stored: b2array.NDArray, make: object, error: type[Exception], words: str
) -> None:
    x = da.from_array(numbers(43, 30), chunks=(10, 30))
    before = stored.generation
    with pytest.raises(error, match=words):
        stored.store(make(x))
    assert b2array.open(stored.url).generation == before


@pytest.mark.parametrize("region", [(slice(30, 50),), (slice(0, 5), slice(0, 31)), (slice(-50, None),), (slice(5, 3),)])
def test_regions_outside_are_refused(stored: b2array.NDArray, region: tuple[slice, ...]) -> None:
    with pytest.raises(IndexError, match="not inside"):
        stored.store(da.zeros((20, 30), dtype="i8"), region)


def test_regions_that_are_not_boxes_are_refused(stored: b2array.NDArray) -> None:
    for region in ((slice(0, 20, 2),), (3,), ([1, 2],)):
        with pytest.raises(ValueError, match="slices without step"):
            stored.store(da.zeros((20, 30), dtype="i8"), region)
    with pytest.raises(IndexError, match="dimensions"):
        stored.store(da.zeros((20, 30), dtype="i8"), (slice(None),) * 3)


def test_handles_for_reading_refuse_to_store_and_transactions_to_wait(stored: b2array.NDArray) -> None:
    with pytest.raises(ReadOnlyError):
        b2array.open(stored.url).store(da.zeros((43, 30), dtype="i8"))
    with stored.transaction(), pytest.raises(ValueError, match="transaction"):
        stored.store(da.zeros((43, 30), dtype="i8"), compute=False)


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
def test_a_transaction_takes_in_what_is_stored(stored: b2array.NDArray) -> None:
    with stored.transaction():
        stored.resize((50, 30))
        stored.store(da.ones((17, 30), chunks=(7, 30), dtype="i8"), (slice(33, 50),))
        assert stored[33:].sum() == 17 * 30
        assert b2array.open(stored.url).shape == (43, 30)
    assert np.array_equal(b2array.open(stored.url)[:33], numbers(43, 30)[:33])
    assert b2array.open(stored.url)[33:].sum() == 17 * 30


def test_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        b2array.from_dask(da.from_array(np.array([{}, []], dtype=object), chunks=1), tmp_path / "a.b2nd")
    assert list(tmp_path.iterdir()) == []


def test_pieces_of_the_wrong_shape_are_refused(stored: b2array.NDArray) -> None:
    x = da.zeros((43, 30), chunks=(10, 30), dtype="i8").map_blocks(lambda block: block[:1], dtype="i8")
    with pytest.raises(ValueError, match="expected a piece of shape"):
        stored.store(x)
    assert np.array_equal(b2array.open(stored.url)[...], numbers(43, 30))


def mistyped(declared: str, actual: str) -> da.Array:
    """Return an array whose pieces have another type than it declares."""
    return da.zeros((43, 30), chunks=(10, 30), dtype=declared).map_blocks(
        lambda block: (block + 0.5 if actual == "f8" else block).astype(actual), dtype=declared
    )


@pytest.mark.parametrize(("declared", "actual"), [("i8", "f8"), ("f4", "f8"), ("u4", "i8"), ("U1", "U9")])
def test_pieces_of_another_type_than_declared_are_refused(tmp_path: Path, declared: str, actual: str) -> None:
    x, url = mistyped(declared, actual), tmp_path / "x.b2nd"
    for dtype in (None, declared if declared == "U1" else "i2"):
        with pytest.raises(
            TypeError, match=rf"expected a piece of type {np.dtype(declared)} .*found {np.dtype(actual)}"
        ):
            b2array.from_dask(x, url=url, dtype=dtype, chunks=(10, 30))
    target = b2array.zeros((43, 30), dtype=declared, url=url, chunks=(10, 30))
    with pytest.raises(TypeError, match="expected a piece of type"):
        target.store(x)
    with pytest.raises(TypeError, match="expected a piece of type"), target.transaction():
        target.store(x)
    assert np.array_equal(b2array.open(url), np.zeros((43, 30), declared))


@pytest.mark.parametrize(("declared", "actual"), [("i8", "i4"), ("f8", "f4"), ("U9", "U1")])
def test_pieces_that_cast_to_the_declared_type_without_a_loss_are_written(declared: str, actual: str) -> None:
    stored = b2array.from_dask(mistyped(declared, actual), chunks=(10, 30))
    assert stored.dtype == declared
    assert np.array_equal(stored, np.zeros((43, 30), declared))


# Failures.


class Failing:
    """A source that fails from the fourth piece on until it is mended, and counts the pieces."""

    def __init__(self, values: np.ndarray, marker: Path) -> None:
        self.values = values
        self.marker = marker
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim
        self.calls = 0

    def __dask_tokenize__(self) -> str:
        return "failing"

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        self.calls += 1
        if self.calls > 3 and not self.marker.exists():
            raise RuntimeError("out of order")
        return self.values[key]

    def dask(self) -> da.Array:
        return da.from_array(self, chunks=(10, 30), meta=np.empty((0, 0), self.dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_interrupted_write_can_begin_anew(tmp_path: Path, layout: str) -> None:
    source = Failing(numbers(40, 30), tmp_path / "mended")
    target = tmp_path / "a.b2nd"
    with pytest.raises(RuntimeError):
        b2array.from_dask(source.dask(), target, layout=layout)
    source.marker.touch()
    source.values = -source.values
    assert np.array_equal(b2array.from_dask(source.dask(), target, layout=layout)[...], -numbers(40, 30))
    assert np.array_equal(b2array.open(target)[...], -numbers(40, 30))


def test_a_changed_chunk_is_a_conflict(stored: b2array.NDArray) -> None:
    writing = stored.store(da.zeros((43, 30), chunks=(10, 30), dtype="i8"), compute=False)
    other = b2array.open(stored.url, mode="r+")
    other[0, 0] = 77
    before = sorted(Path(stored.url).parent.rglob("*[0-9A-Z].chunk"))
    with pytest.raises(ConflictError):
        writing.compute()
    assert b2array.open(stored.url)[0, 0] == 77
    # A scheduler may run the task that commits twice, and then the first run may have used the files.
    b2array.vacuum(stored.url, grace=0)
    assert len(sorted(Path(stored.url).parent.rglob("*[0-9A-Z].chunk"))) <= len(before)
    assert leftovers(Path(stored.url).parent) == []


def test_a_refused_write_of_a_new_array_leaves_the_snapshots_of_the_other_one_alone(tmp_path: Path) -> None:
    url, place = tmp_path / "a.b2nd", {"chunks": (1, 100), "layout": "sparse"}
    late = b2array.from_dask(da.full((4, 100), 7.0, chunks=(1, 100)), url, **place, compute=False)
    a = b2array.zeros((4, 100), url=url, **place)
    a[...] = 1
    a.snapshot("published")
    a[...] = 2
    with pytest.raises(FileExistsError):
        late.compute(scheduler="sync")
    assert (b2array.open(url, at="published")[...] == 1).all()
    assert (b2array.open(url)[...] == 2).all()


def test_a_write_that_is_computed_twice_leaves_the_chunks_of_snapshots_alone(tmp_path: Path) -> None:
    a = b2array.zeros((4, 100), url=tmp_path / "a.b2nd", chunks=(1, 100), layout="sparse")
    first = a.store(da.full((4, 100), 1.0, chunks=(1, 100)), compute=False)
    first.compute(scheduler="sync")
    a.refresh()
    a.snapshot("published")
    a.store(da.full((4, 100), 2.0, chunks=(1, 100)), scheduler="sync")
    first.compute(scheduler="sync")  # it finds its commit, which the second write has replaced since
    assert (b2array.open(a.url)[...] == 2).all()
    assert (b2array.open(a.url, at="published")[...] == 1).all()


def test_a_commit_that_is_repeated_after_others_removes_nothing(tmp_path: Path) -> None:
    a = b2array.zeros((4, 100), url=tmp_path / "a.b2nd", chunks=(1, 100), layout="sparse")
    origin = make_fork_point(a._handle.new_draft(), lasts=True)
    whole = slice(0, 4, 1), slice(0, 100, 1)
    change = write_part(origin, whole, np.ones((4, 100)))
    commit_changes(origin, [change], again=True)
    held = b2array.open(a.url)
    b2array.open(a.url, mode="r+").store(da.full((4, 100), 2.0, chunks=(1, 100)), scheduler="sync")
    # Its worker died before it could say that the commit had happened.
    commit_changes(pickle.loads(pickle.dumps(origin)), [change], again=True)
    assert (held[...] == 1).all()
    assert (b2array.open(a.url)[...] == 2).all()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("others", [1, 31, 32])
def test_a_repeated_commit_is_found_below_other_commits_of_forks(place: str, others: int, tmp_path: Path) -> None:
    url = place.format(tmp_path)
    a = b2array.zeros((2, 100), url=url, chunks=(1, 100))

    def write(row: int, value: int) -> tuple[ForkPoint, ChangeSet]:
        point = make_fork_point(b2array.open(url, "r+")._handle.new_draft(), lasts=True)
        part = slice(row, row + 1, 1), slice(0, 100, 1)
        return point, write_part(point, part, np.full((1, 100), value), part)

    first, late = write(0, 1), write(0, 7)
    commit_changes(first[0], [first[1]], again=True)
    for value in range(others):
        point, change = write(1, value)
        commit_changes(point, [change], again=True)
    if others < 32:
        commit_changes(first[0], [first[1]], again=True)
    else:  # the list is full, and a refusal is safe
        with pytest.raises(ConflictError):
            commit_changes(first[0], [first[1]], again=True)
    with pytest.raises(ConflictError):  # this one was never committed
        commit_changes(late[0], [late[1]], again=True)
    a.refresh()
    assert a[:, 0].tolist() == [1, others - 1]


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize("place", PLACES)
def test_a_repeated_commit_to_a_member_of_a_group_is_found(place: str, layout: Any, tmp_path: Path) -> None:
    url = place.format(tmp_path).rstrip("/").replace("a.b2nd", "g.b2d")
    group = b2array.open_group(url, "w")
    group.create("x", data=np.zeros((4, 4), int), chunks=(2, 4), layout=layout)
    write = group["x"].store(da.full((4, 4), 7, chunks=(2, 4)), compute=False)
    for _ in range(2):
        write.compute(scheduler="sync")
    b2array.open_group(url, "r+")["x"][0] = 9
    write.compute(scheduler="sync")
    assert b2array.open_group(url)["x"][:, 0].tolist() == [9, 7, 7, 7]


def test_forks_that_are_committed_at_the_same_time_are_both_found(tmp_path: Path) -> None:
    a = b2array.zeros((2, 100), url=tmp_path / "a.b2nd", chunks=(1, 100))
    points = [make_fork_point(a._handle.new_draft(), lasts=True) for _ in range(2)]
    parts = [(slice(row, row + 1, 1), slice(0, 100, 1)) for row in range(2)]
    changes = [
        write_part(point, part, np.full((1, 100), row + 1.0), part)
        for row, (point, part) in enumerate(zip(points, parts, strict=True))
    ]
    for _ in range(2):
        for point, change in zip(points, changes, strict=True):
            commit_changes(point, [change], again=True)
    a.refresh()
    assert a[:, 0].tolist() == [1, 2]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("new", [True, False])
def test_a_failing_write_leaves_nothing_behind(tmp_path: Path, layout: str, new: bool) -> None:
    def third(block: np.ndarray, block_info: dict[int, Any] | None = None) -> np.ndarray:
        if block_info[0]["chunk-location"][0] == 2:
            time.sleep(0.05)  # until others have written, or are about to
            raise ZeroDivisionError
        return block + 1

    x = da.from_array(numbers(60, 30), chunks=(10, 30)).map_blocks(third, dtype="i8", meta=np.empty((0, 0), "i8"))
    target = tmp_path / "a.b2nd"
    if not new:
        b2array.zeros((60, 30), "i8", url=target, layout=layout, chunks=(10, 30))[...] = 1
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    with ThreadPoolExecutor(2) as pool:
        write = partial(b2array.from_dask, x, target, layout=layout, chunks=(10, 30), scheduler=pool)
        if not new:
            write = partial(b2array.open(target, mode="r+").store, x, scheduler=pool)
        with pytest.raises(ZeroDivisionError):
            write()
    after = sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".b2lock")
    assert [path for path in after if path.name != ".b2lock"] == [path for path in before if ".b2lock" not in path.name]
    assert target.exists() is not new


def test_changes_elsewhere_are_merged(stored: b2array.NDArray) -> None:
    writing = stored.store(da.zeros((20, 30), chunks=(10, 30), dtype="i8"), (slice(0, 20),), compute=False)
    b2array.open(stored.url, mode="r+")[42, 0] = 77
    writing.compute()
    found = b2array.open(stored.url)
    assert found[42, 0] == 77
    assert found[:20].sum() == 0


def test_a_repeated_task_does_no_harm(stored: b2array.NDArray) -> None:
    origin = make_fork_point(stored._handle.new_draft(), lasts=True)
    whole, values = (slice(0, 43, 1), slice(0, 30, 1)), numbers(43, 30) * 3
    first, again = write_part(origin, whole, values), write_part(origin, whole, values)
    if (np.asarray(first.codes) >= 0).all():
        assert not np.isin(first.codes, again.codes).any()
    copy = pickle.loads(pickle.dumps(origin))
    done = commit_changes(copy, [first, again])
    assert commit_changes(origin, [first]).generation == done.generation
    stored.refresh()
    assert np.array_equal(stored[...], values)


def test_tasks_that_put_different_items_into_a_chunk_are_a_conflict(stored: b2array.NDArray) -> None:
    origin = make_fork_point(stored._handle.new_draft(), lasts=True)
    first = write_part(origin, (slice(0, 43, 1), slice(0, 30, 1)), numbers(43, 30) * 3)
    other = write_part(origin, (slice(0, 10, 1), slice(0, 30, 1)), numbers(10, 30) * 3 + 1)
    with pytest.raises(ConflictError, match=r"chunks \[0, 1, 2, 3\]"):
        commit_changes(origin, [first, other])
    assert np.array_equal(b2array.open(stored.url), stored[...])
    assert leftovers(Path(stored.url).parent) == []


def test_writes_that_are_computed_together_compute_what_they_share_once(tmp_path: Path) -> None:
    calls = []

    def noted(block: np.ndarray) -> np.ndarray:
        calls.append(block.shape)
        return block

    x = da.from_array(numbers(40, 30), chunks=(10, 30)).map_blocks(noted, dtype="i8", meta=np.empty((0, 0), "i8"))
    one = b2array.from_dask(x + 1, tmp_path / "one.b2nd", compute=False)
    two = b2array.from_dask(x * 2, tmp_path / "two.b2nd", compute=False)
    calls.clear()
    dask.compute(one, two, scheduler="sync")
    assert len(calls) == 4
    assert np.array_equal(b2array.open(tmp_path / "one.b2nd"), numbers(40, 30) + 1)
    assert np.array_equal(b2array.open(tmp_path / "two.b2nd"), numbers(40, 30) * 2)


def test_concurrent_jobs_take_different_numbers(tmp_path: Path) -> None:
    a = b2array.zeros((40, 30), "i8", url=tmp_path / "a.b2nd", layout="sparse", chunks=(10, 30))
    b = b2array.open(a.url, mode="r+")
    upper = a.store(da.ones((20, 30), chunks=(10, 30), dtype="i8"), (slice(0, 20),), compute=False)
    lower = b.store(da.full((20, 30), 2, chunks=(10, 30)), (slice(20, 40),), compute=False)
    dask.compute(upper, lower)
    assert b2array.open(a.url)[:, 0].tolist() == [1] * 20 + [2] * 20


# What dask does by itself.


def test_dask_store_in_a_transaction_is_one_commit(stored: b2array.NDArray) -> None:
    x = da.from_array(-numbers(43, 30), chunks=(7, 6))
    with stored.transaction():
        da.store(x, stored, lock=False)
        assert np.array_equal(b2array.open(stored.url)[...], numbers(43, 30))
    assert np.array_equal(b2array.open(stored.url)[...], -numbers(43, 30))


@pytest.mark.costly
@pytest.mark.parametrize("lock", [True, False])
def test_dask_store_by_threads_loses_nothing(stored: b2array.NDArray, lock: bool) -> None:
    da.store(da.from_array(-numbers(43, 30), chunks=(7, 6)), stored, lock=lock)
    assert np.array_equal(b2array.open(stored.url)[...], -numbers(43, 30))


@pytest.mark.costly
def test_dask_store_works_in_all_its_forms(stored: b2array.NDArray, tmp_path: Path) -> None:
    x = da.from_array(-numbers(43, 30), chunks=(17, 13))
    expected = numbers(43, 30)
    expected[5:15, 3:9] = -expected[5:15, 3:9]
    da.store(x[5:15, 3:9], stored, regions=(slice(5, 15), slice(3, 9)), lock=False)
    assert np.array_equal(b2array.open(stored.url)[...], expected)
    other = b2array.zeros((43, 30), "i4", url=tmp_path / "other.b2nd", layout="sparse", chunks=(9, 11))
    writing = da.store([x, 2 * x], [stored, other], lock=False, compute=False)
    assert np.array_equal(b2array.open(stored.url)[...], expected)
    dask.compute(writing)
    assert np.array_equal(b2array.open(stored.url)[...], -numbers(43, 30))
    assert np.array_equal(b2array.open(other.url)[...], -2 * numbers(43, 30))
    after = da.store(3 * x, stored, lock=False, return_stored=True)
    assert np.array_equal(after.compute(), -3 * numbers(43, 30))
    before = da.store(4 * x, stored, lock=False, return_stored=True, compute=False)
    assert np.array_equal(b2array.open(stored.url)[...], -3 * numbers(43, 30))
    assert np.array_equal(before.compute(), -4 * numbers(43, 30))


@pytest.mark.parametrize("options", [{}, {"chunks": (7, 11)}, {"lock": True, "inline_array": True}, {"asarray": False}])
def test_from_array_reads_right_whatever_dask_chooses(stored: b2array.NDArray, options: dict[str, object]) -> None:
    x = da.from_array(stored, **options)
    assert np.array_equal(x.compute(), numbers(43, 30))
    assert np.array_equal(x[3:40:2, [1, 0, -1]].compute(), numbers(43, 30)[3:40:2, [1, 0, -1]])
    assert np.array_equal(da.asarray(stored)[::-5].compute(), numbers(43, 30)[::-5])


def test_unknown_chunk_sizes_are_refused_for_new_arrays_too(tmp_path: Path) -> None:
    x = da.from_array(numbers(43), chunks=10)
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        b2array.from_dask(x[x > 3], tmp_path / "a.b2nd")
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = da.from_array(numbers(40, 30), chunks=(20, 30))
    b2array.from_dask(x, tmp_path / "a.b2nd", chunks=(5, 10), progress=True)
    told = capsys.readouterr().err
    assert "100%" in told
    assert "24/24" in told


def test_progress_bar_of_dask_works(stored: b2array.NDArray, capsys: pytest.CaptureFixture[str]) -> None:
    from dask.diagnostics import ProgressBar

    with ProgressBar(dt=0.01):
        stored.to_dask().sum().compute()
        stored.store(da.zeros((43, 30), chunks=(10, 30), dtype="i8"))
    assert capsys.readouterr().out.count("100% Completed") >= 2


@pytest.mark.slow
def test_processes_compute_what_an_http_server_has(http: RangeServer, tmp_path: Path) -> None:
    values = np.arange(6000).reshape(60, 100)
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group.create("x", data=values, chunks=(20, 50))
    group.create("y", data=values, chunks=(20, 50), layout="sparse")
    group.create("z", data=values, chunks=(20, 50))
    group.consolidate()
    http.objects |= {
        str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    served = b2array.open(http.url_of("g.b2d"))
    promised = served.arrays()
    copied = b2array.open(
        f"simplecache::{http.url_of('g.b2d/x.b2nd')}", storage_options={"simplecache": {"cache_storage": str(tmp_path)}}
    )
    arrays = [served["x"], served["y"], promised["x"], promised["y"].T, served["x"].view[:, 7:], copied]
    wanted = [values, values, values, values.T, values[:, 7:], values]
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        dask.config.set({"scheduler": "processes", "pool": pool}),
    ):
        for found, expected in zip(dask.compute(*(a.to_dask() + 1 for a in arrays)), wanted, strict=True):
            np.testing.assert_array_equal(found, expected + 1)
        lost = served["z"].to_dask()
        http.objects["g.b2d/z.b2nd"] = b2array.asarray(-values, chunks=(20, 50)).to_bytes()
        with pytest.raises(ConflictError, match=r"z\.b2nd changed since it was opened"):
            lost.compute()
