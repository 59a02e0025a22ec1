"""How many round trips and bytes reading takes, in both layouts, on files of this package and of python-blosc2."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import blosc2
import numpy as np
import pytest
from servers import answer_after

import b2array
from b2array import config
from b2array.array.array import NDArray
from b2array.catalog import owners
from b2array.codec import chunk
from b2array.codec.chunk_header import Special
from b2array.codec.cparams import CParams
from b2array.commit.edits import set_special
from b2array.commit.handle import Handle
from b2array.errors import FormatError
from b2array.format import index
from b2array.frame import read
from b2array.store.base import Head, join_views_at, merge
from b2array.store.local_store import LocalStore
from b2array.store.spans import Span

ROOT = Path(__file__).parents[1]
SHAPE, CHUNKS, BLOCKS = (120, 130, 64), (30, 60, 64), (10, 15, 32)
FREE = 4096

SELECTIONS = {
    "point": (7, 100, 3),
    "box": (slice(25, 40), slice(20, 70), slice(10, 50)),
    "slab": (slice(0, 45),),
    "row": (50, 70),
    "column": (slice(None), 64, 20),
    "strided": (slice(0, 120, 20), slice(5, None, 30), slice(None)),
    "full": (),
    "list": ([0, 3, 77, 110],),
    "most of a chunk": (slice(0, 30), slice(0, 50)),
}


def values(kind: str) -> np.ndarray:
    n = int(np.prod(SHAPE))
    rng = np.random.default_rng(5)
    made = {
        "smooth": lambda: np.sin(np.arange(n) / 999) + 1e-7 * rng.standard_normal(n),
        "integers": lambda: rng.integers(0, 1000, n).astype("f8"),
        "random": lambda: rng.random(n),
        # A third of each chunk is noise, the rest takes hardly any room.
        "uneven": lambda: np.where(np.arange(n) // 64 % 60 < 40, np.arange(n) // 64, rng.random(n)),
    }
    return made[kind]().reshape(SHAPE)


class FarStore(LocalStore):
    """Local files that count as far away: every call is a round trip."""

    can = replace(LocalStore.can, append=False, local=False)

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.forget()

    def forget(self) -> None:
        self.round_trips = self.requests = self.nbytes = 0

    def read(self, spans: Sequence[Span], *, expected=None, clip=False) -> list[memoryview]:
        views = super().read(spans, expected=expected, clip=clip)
        reached = [
            max(spans[n].start + len(views[n]) for n in members) - whole.start
            for whole, members in merge(self.url, spans, 16 * 2**20)
        ]
        self.round_trips += 1
        self.requests += len(reached)
        self.nbytes += sum(reached)
        return views

    def gather(self, spans: Sequence[Span], places, nbytes, *, expected=None) -> memoryview:
        return join_views_at(self.read(spans, expected=expected), places, nbytes)

    def head(self, names: Sequence[str], nbytes: int, *, offset: int = 0) -> list[Head | Exception]:
        heads = super().head(names, nbytes, offset=offset)
        self.round_trips += 1
        self.requests += len(heads)
        self.nbytes += sum(len(head.data) for head in heads if isinstance(head, Head))
        return heads

    def stamp(self, name):
        self.round_trips += 1
        return super().stamp(name)

    def listing(self):
        raise PermissionError("listing is forbidden")


def far(path) -> tuple[FarStore, NDArray]:
    store = FarStore(path)
    return store, NDArray(Handle(owners.load(store), "r"))


def needed(path, key) -> tuple[int, int]:
    """Count the bytes of the blocks that a selection touches, and those of all chunks' heads."""
    a = b2array.open(path)
    touched = np.zeros(SHAPE, bool)
    touched[key] = True
    blocks = heads = 0
    for n, place in enumerate(np.ndindex(a.grid_shape)):
        part = touched[tuple(slice(i * c, (i + 1) * c) for i, c in zip(place, CHUNKS, strict=True))]
        padded = np.zeros(a._layout.extended_chunks, bool)
        padded[tuple(map(slice, part.shape))] = part
        split = padded.reshape([m for c, b in zip(padded.shape, BLOCKS, strict=True) for m in (c // b, b)])
        wanted = split.any(axis=(1, 3, 5)).ravel()
        if wanted.any():
            buf = a.get_chunk(n)
            head = chunk.unpack_head(buf)
            heads += chunk.head_nbytes(buf)
            blocks += int((head.stops - head.starts)[wanted].sum())
    return blocks, heads


def write_ours(path: Path, data: np.ndarray, layout: str) -> None:
    b2array.asarray(data, url=path, chunks=CHUNKS, blocks=BLOCKS, layout=layout)


def write_stock(path: Path, data: np.ndarray, layout: str, **cparams) -> None:
    options = {"cparams": cparams} if cparams else {}
    blosc2.asarray(
        data, chunks=CHUNKS, blocks=BLOCKS, urlpath=str(path), contiguous=layout == "contiguous", mode="w", **options
    )


Write = Callable[[Path, np.ndarray, str], None]
WRITERS: dict[str, Write] = {"ours": write_ours, "stock": write_stock}
ROUND_TRIPS = {"ours": 1, "stock": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Callable[[str, str, str], tuple[Path, np.ndarray]]:
    made: dict[tuple[str, str, str], tuple[Path, np.ndarray]] = {}

    def get(writer: str, layout: str, kind: str) -> tuple[Path, np.ndarray]:
        key = (writer, layout, kind)
        if key not in made:
            path, data = tmp_path_factory.mktemp("files") / "a.b2nd", values(kind)
            WRITERS[writer](path, data, layout)
            made[key] = path, data
        return made[key]

    return get


both_layouts = pytest.mark.parametrize("layout", ["contiguous", "sparse"])
both_writers = pytest.mark.parametrize("writer", ["ours", "stock"])


# ---- reading ----


@both_layouts
@both_writers
@pytest.mark.parametrize("kind", ["smooth", "integers", "random", "uneven"])
def test_a_cold_read_takes_few_round_trips_and_hardly_more_bytes_than_its_blocks(files, writer, layout, kind):
    path, data = files(writer, layout, kind)
    for name, key in SELECTIONS.items():
        store, a = far(path)
        store.forget()
        with config.using(cache_bytes=0):
            assert np.array_equal(a[key], data[key]), name
        blocks, heads = needed(path, key)
        assert store.round_trips <= ROUND_TRIPS[writer], name
        assert store.nbytes <= 1.5 * blocks + heads + FREE * store.requests, name


@both_layouts
def test_points_in_many_chunks_come_in_one_round_trip(files, layout):
    path, data = files("ours", layout, "smooth")
    store, a = far(path)
    store.forget()
    where = np.random.default_rng(0).integers(0, 64, (3, 50))
    assert np.array_equal(a.vindex[tuple(where)], data[tuple(where)])
    assert store.round_trips == 1


@both_layouts
def test_a_mixture_of_chunks_known_and_unknown_takes_no_more_round_trips(files, layout):
    path, data = files("stock", layout, "smooth")
    store, a = far(path)
    with config.using(cache_bytes=0):
        assert a[0, 0, 0] == data[0, 0, 0]
        store.forget()
        assert np.array_equal(a[:, 0, 0], data[:, 0, 0])
        assert store.round_trips == 2
        store.forget()
        assert np.array_equal(a[5::20, 2, 33], data[5::20, 2, 33])
    assert store.round_trips == 1


@pytest.mark.costly
@both_layouts
def test_chunks_with_dictionaries_take_two_round_trips(tmp_path, layout):
    data = values("integers")
    write_stock(tmp_path / "a.b2nd", data, layout, codec=blosc2.Codec.ZSTD, use_dict=True)
    store, a = far(tmp_path / "a.b2nd")
    assert a.cparams.use_dict
    store.forget()
    assert np.array_equal(a[:, 64, 20], data[:, 64, 20])
    assert store.round_trips == 2


@both_layouts
def test_delta_needs_the_first_block_in_the_same_round_trip(tmp_path, layout):
    data = values("integers")
    cparams = b2array.CParams("zstd", filters=["shuffle", "delta"])
    options = {"chunks": CHUNKS, "blocks": BLOCKS, "layout": layout, "interop": False}
    b2array.asarray(data, url=tmp_path / "a.b2nd", cparams=cparams, **options)
    store, a = far(tmp_path / "a.b2nd")
    store.forget()
    assert np.array_equal(a[25, 44:46], data[25, 44:46])
    assert store.round_trips == 1


@both_layouts
def test_special_chunks_cost_nothing(tmp_path, layout):
    b2array.zeros(SHAPE, url=tmp_path / "a.b2nd", chunks=CHUNKS, blocks=BLOCKS, layout=layout)
    store, a = far(tmp_path / "a.b2nd")
    store.forget()
    assert not a[...].any()
    assert store.round_trips == 0


@pytest.mark.costly
@both_layouts
def test_dead_space_between_chunks_is_not_read(tmp_path, layout):
    data = values("random")
    path = tmp_path / "a.b2nd"
    write_ours(path, data, layout)
    a = b2array.open(path, mode="r+")
    for _ in range(2):
        a[30:60] = data[30:60] = data[30:60] + 1
    store, a = far(path)
    for key in SELECTIONS.values():
        store.forget()
        with config.using(cache_bytes=0):
            assert np.array_equal(a[key], data[key])
        blocks, heads = needed(path, key)
        assert store.nbytes <= 1.5 * blocks + heads + FREE * store.requests
        assert store.round_trips <= 1


# ---- noted sizes that are wrong ----


@both_layouts
@pytest.mark.parametrize("wrong", ["shifted", "larger", "smaller", "nonsense", "raw"])
def test_noted_sizes_that_are_wrong_are_noticed_and_not_used(files, layout, wrong):
    path, data = files("ours", layout, "smooth")
    _store, a = far(path)
    sizes = a._handle.source.state.sizes
    change = {
        "shifted": lambda: np.roll(sizes[:, 1:], 1, axis=1),
        "larger": lambda: sizes[:, 1:] + 50_000,
        "smaller": lambda: sizes[:, 1:] // 2,
        "nonsense": lambda: np.random.default_rng(1).integers(1, 9000, sizes[:, 1:].shape),
        "raw": lambda: 0 * sizes[:, 1:],
    }
    sizes[:, 1:] = change[wrong]()
    if wrong in ("larger", "nonsense"):
        sizes[:, 0] = 32 + 4 * (sizes.shape[1] - 1) + sizes[:, 1:].sum(axis=1)
    if wrong == "raw":
        sizes[:, 0] = 32 + np.prod(a._layout.extended_chunks) * 8
    for name, key in SELECTIONS.items():
        with config.using(cache_bytes=0):
            assert np.array_equal(a[key], data[key]), name


def test_a_chunk_that_another_program_rewrote_unseen_is_not_taken_for_ours(tmp_path):
    data = values("smooth")
    path = tmp_path / "a.b2nd"
    write_ours(path, data, "sparse")
    _store, a = far(path)
    other, noise = tmp_path / "other.b2nd", values("random")
    write_ours(other, noise, "sparse")
    held = b2array.open_schunk(other)
    for n, ours in enumerate(a._handle.frame.offsets):
        (path / index.chunk_name(ours)).write_bytes(held.get_chunk(n))
    with pytest.raises(FormatError, match=r"^chunk \d+ of .*00000"):
        a[3, 64]


# ---- opening ----


@both_layouts
@both_writers
def test_opening_takes_one_round_trip_or_two(files, tmp_path, writer, layout):
    path, _ = files(writer, layout, "smooth")
    store, _ = far(path)
    assert store.round_trips == (1 if layout == "sparse" else 2)
    WRITERS[writer](tmp_path / "small.b2nd", np.arange(5.0).reshape(5, 1, 1), layout)
    store, _ = far(tmp_path / "small.b2nd")
    assert store.round_trips == 1


def test_a_large_index_takes_a_second_round_trip(tmp_path):
    a = b2array.zeros(300_000, dtype="u1", chunks=1, blocks=1, url=tmp_path / "a.b2nd", layout="sparse")
    order = np.random.default_rng(0).permutation(300_000)
    for attempt in a._handle.attempts():
        with attempt as draft:
            set_special(draft, np.flatnonzero(order % 2), Special.ZEROS)
            set_special(draft, np.flatnonzero(order % 2 == 0), Special.NAN)
    assert (tmp_path / "a.b2nd" / "chunks.b2frame").stat().st_size > 2**16
    store, _ = far(tmp_path / "a.b2nd")
    assert store.round_trips == 2


# ---- on servers ----


def served(http, path: Path) -> str:
    """Put a file or the files of a directory on a server; returns the URL."""
    inner = [file for file in path.rglob("*") if file.is_file()]
    files = {f"a.b2nd/{file.relative_to(path).as_posix()}": file for file in inner} or {"a.b2nd": path}
    http.objects |= {name: file.read_bytes() for name, file in files.items() if file.suffix != ".b2lock"}
    return http.url_of("a.b2nd")


@pytest.mark.costly
@both_layouts
@both_writers
def test_a_server_of_ranges_is_asked_no_more_than_that(files, http, writer, layout):
    path, data = files(writer, layout, "smooth")
    a = b2array.open(served(http, path))
    assert len(http.requests) == 3
    assert http.waves_of(lambda: b2array.open(a.url)) == 1
    for name, key in SELECTIONS.items():
        store, known = far(path)
        store.forget()
        a.refresh()
        http.requests.clear()
        with config.using(cache_bytes=0):
            assert np.array_equal(a[key], data[key]), name
            assert np.array_equal(known[key], data[key]), name
        assert [method for method, _, _ in http.requests] == ["GET"] * store.requests, name


@pytest.mark.costly
@both_writers
def test_a_server_without_ranges_of_the_last_bytes_is_asked_twice(files, http, writer):
    path, data = files(writer, "contiguous", "smooth")
    url = served(http, path)
    http.ends, http.delay = False, 0.02
    assert np.array_equal(b2array.open(url)[7], data[7])
    http.depth = 0
    b2array.open(url)
    assert http.depth == 2
    http.ranges = False
    assert np.array_equal(b2array.open(url)[7], data[7])


def test_a_large_tail_is_read_in_a_second_wave(tmp_path, http):
    noise = np.random.default_rng(0)
    a = b2array.asarray(noise.random((64, 8)), chunks=(1, 8), url=tmp_path / "a.b2nd")
    a.attrs["noise"] = noise.bytes(2**17)
    http.objects["a.b2nd"], http.delay = (tmp_path / "a.b2nd").read_bytes(), 0.02
    found = b2array.open(http.url_of("a.b2nd"))
    assert http.depth == 2
    assert found.attrs["noise"] == a.attrs["noise"]


def test_a_snapshot_near_the_end_of_a_file_is_opened_with_the_requests_of_the_newest_state(tmp_path, http):
    path, data = tmp_path / "a.b2nd", values("random")
    write_ours(path, data, "contiguous")
    a = b2array.open(path, "r+")
    a.snapshot("before")
    a[0, 0, 0] = 7
    b2array.repack(path)  # as each commit to an object store does
    url = served(http, path)
    assert len(http.objects["a.b2nd"]) > 2 * 2**16
    asked = []
    for at in (None, "before"):
        http.requests.clear()
        found = b2array.open(url, at=at)
        asked.append(sorted(http.requests))
        assert found[0, 0, 0] == (7 if at is None else data[0, 0, 0])
    assert asked[0] == asked[1]
    assert len(asked[0]) == 3


def test_a_directory_and_a_group_are_opened_at_a_snapshot_with_the_requests_of_the_newest_state(tmp_path, http):
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    # So many items of noise are not read with the index.
    noise = np.random.default_rng(0).integers(0, 2**62, 8000)
    for name, layout in (("x", "sparse"), ("y", "contiguous")):
        group.create(name, data=noise, chunks=(800,), layout=layout)
    group["x"].snapshot("before")
    group.snapshot("before")
    group["x"][0] = group["y"][0] = 7
    group.consolidate()
    url = served(http, tmp_path / "g.b2d")
    for look in (
        lambda at: b2array.open(f"{url}/x.b2nd", at=at),  # at its own snapshot: the group is not looked for
        lambda at: b2array.open_group(url, at=at),
        lambda at: b2array.open_group(url, at=at)["x"][1:3],
        lambda at: b2array.open_group(url, at=at)["y"][1:3],
    ):
        asked = []
        for at in (None, "before"):
            http.requests.clear()
            look(at)
            asked.append(len(http.requests))
        assert asked[0] == asked[1]


class Changing(dict):
    """Objects on a server that change after each request."""

    states: Sequence[bytes] = ()
    asked = 0

    def get(self, name, default=None):
        if name != "a.b2nd" or not self.states:
            return super().get(name, default)
        self.asked += 1
        return self.states[min(self.asked, len(self.states)) - 1]


@both_writers
@pytest.mark.parametrize("tags", [True, False])
def test_beginning_and_end_of_different_states_are_not_put_together(tmp_path, http, writer, tags):
    states = []
    for number in range(2):
        path = tmp_path / f"{number}.b2nd"
        WRITERS[writer](path, values("random") + number, "contiguous")
        states.append(path.read_bytes())
    http.tags, http.objects = tags, Changing()
    # One of the two requests of the first wave gets the old state, and the other one the new state.
    http.objects.states = [states[0], states[1]]
    a = b2array.open(http.url_of("a.b2nd"))
    assert np.array_equal(a[3], values("random")[3] + 1)
    assert http.objects.asked > 3 or not tags
    http.objects.states = ()


@pytest.mark.costly
@both_layouts
@both_writers
def test_windows_of_a_large_read_do_not_wait_for_each_other(files, http, monkeypatch, writer, layout):
    path, data = files(writer, layout, "random")
    a = b2array.open(served(http, path))
    monkeypatch.setattr(read, "WINDOW_NBYTES", data.nbytes // 3)
    monkeypatch.setattr(read, "WINDOWS_UNDER_WAY", 4)
    for name, most in (("full", 1), ("box", 1 + (writer == "stock")), ("column", 1 + (writer == "stock"))):
        http.requests.clear()
        a.refresh()
        http.depth, http.most_under_way, http.delay = 0, 0, 0.02
        with config.using(cache_bytes=0):
            assert np.array_equal(a[SELECTIONS[name]], data[SELECTIONS[name]])
        http.delay = 0
        assert "b2array-ahead" not in " ".join(thread.name for thread in threading.enumerate())
        assert http.depth <= most, name


def test_windows_that_fail_are_errors_and_leave_no_threads(files, http, monkeypatch):
    path, _ = files("ours", "sparse", "random")
    a = b2array.open(served(http, path))
    monkeypatch.setattr(read, "WINDOW_NBYTES", 1)
    name = a._handle.source.locate(5).name
    kept = http.objects.pop(f"a.b2nd/{name}")
    with config.using(cache_bytes=0):
        with pytest.raises(b2array.errors.ChunkMissingError, match="chunk 5 of"):
            a[...]
        assert not [thread for thread in threading.enumerate() if "ahead" in thread.name]
        http.objects[f"a.b2nd/{name}"] = kept
        assert a[...].shape == SHAPE


def test_what_was_read_is_forgotten_without_the_garbage_collector(tmp_path):
    path = tmp_path / "a.b2nd"
    b2array.asarray(np.arange(2**18), url=path, chunks=2**14, blocks=2**12, cparams=CParams(clevel=0))
    _, array = far(path)
    gc.disable()
    tracemalloc.start()
    try:
        with config.using(cache_bytes=0):
            array[...]
            array[5::3]
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left < 2**17  # of 2 MiB that each of them has read


@pytest.mark.slow
def test_a_large_read_takes_bounded_memory(tmp_path):
    path = tmp_path / "a.b2nd"
    data = np.random.default_rng(0).integers(0, 2**60, (1024, 16384))  # 128 MiB of noise
    b2array.asarray(data, url=path, chunks=(16, 16384), blocks=(4, 8192), cparams=CParams(clevel=0))

    class SlowStore(FarStore):
        def read(self, *args, **kwargs):
            time.sleep(0.02)
            return super().read(*args, **kwargs)

    array = NDArray(Handle(owners.load(SlowStore(path)), "r"))
    tracemalloc.start()
    try:
        with config.using(cache_bytes=0):
            found = array[...]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(found, data)
    assert peak - found.nbytes < 128e6


@pytest.mark.costly
@both_layouts
def test_s3_is_asked_for_ranges_only_and_never_lists(files, bucket, s3_options, s3_calls, layout):
    path, data = files("ours", layout, "smooth")
    url = f"s3://{bucket}/a.b2nd"
    b2array.asarray(data, url=url, chunks=CHUNKS, blocks=BLOCKS, layout=layout, storage_options=s3_options)
    s3_calls.clear()
    a = b2array.open(url, storage_options=s3_options)
    assert s3_calls == ["get_object"] * 3
    for name, key in SELECTIONS.items():
        store, known = far(path)
        store.forget()
        s3_calls.clear()
        a.refresh()
        s3_calls.clear()
        with config.using(cache_bytes=0):
            assert np.array_equal(a[key], data[key]), name
            assert np.array_equal(known[key], data[key]), name
        assert s3_calls == ["get_object"] * store.requests, name


# ---- pickles ----


REOPEN = """
import pickle, sys
import numpy as np
a, key, data = pickle.load(sys.stdin.buffer)
assert a.shape == data.shape
assert np.array_equal(a[key], data[key])
"""


@pytest.mark.costly
@both_layouts
def test_a_pickled_handle_opens_elsewhere_without_a_request(files, http, layout):
    path, data = files("ours", layout, "smooth")
    a = b2array.open(served(http, path), storage_options={"headers": {"X-Mine": "yes"}})
    http.requests.clear()
    http.headers.clear()
    content = pickle.dumps((a, SELECTIONS["point"], data))
    assert len(pickle.dumps(a)) < 30_000
    copy = pickle.loads(content)[0]
    assert (copy.shape, copy.generation, copy.url) == (a.shape, a.generation, a.url)
    assert http.requests == []
    subprocess.run([sys.executable, "-c", REOPEN], input=content, check=True, cwd=ROOT)
    # Where the block is, its sizes have told: one range, or one each for the head, the block and the checksums.
    assert 1 <= len(http.requests) <= 3
    assert all(headers["X-Mine"] == "yes" for headers in http.headers)


@pytest.mark.slow
def test_a_pickled_handle_for_writing_writes_elsewhere(bucket, s3_options):
    a = b2array.zeros((4, 10), url=f"s3://{bucket}/a.b2nd", chunks=(1, 10), storage_options=s3_options)
    script = "import pickle, sys; a = pickle.load(sys.stdin.buffer); a[2] = 5"
    subprocess.run([sys.executable, "-c", script], input=pickle.dumps(a), check=True, cwd=ROOT)
    a[1] = 3
    assert a[:, 0].tolist() == [0, 3, 5, 0]


def test_an_answer_waits_until_its_client_does_nothing_else():
    """So a busy machine does not make two waves of one."""
    is_over = threading.Event()

    def work():
        begun = time.thread_time()
        while time.thread_time() - begun < 0.1:
            pass
        is_over.set()

    threading.Thread(target=work).start()
    answer_after(0.001)
    assert is_over.is_set()
