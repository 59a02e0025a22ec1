"""Damage is noticed when it is read: never wrong data where there are checksums, and no alarm where there is none."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace

import blosc2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array import config
from b2array.array.array import NDArray
from b2array.catalog import owners
from b2array.codec import chunk
from b2array.commit.handle import Handle
from b2array.errors import B2ArrayError, ChecksumError, ConflictError, FormatError
from b2array.format import checksums
from b2array.format.state import State
from b2array.frame.fetch import fetch
from b2array.frame.source import ChunkRequest
from b2array.store.memory import MemoryStore

LAYOUTS = ("contiguous", "sparse")
NOISE = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch):
    monkeypatch.setattr(config, "cache_bytes", 0)


def mixed(shape=(40, 16)):
    """Rows of several kinds, so that chunks of them are encoded in different ways."""
    data = np.zeros(shape, "f8")
    data[:8] = np.arange(8 * shape[1]).reshape(8, -1)
    data[8:16] = NOISE.random((8, shape[1]))  # stored raw
    data[16:24] = 3.5  # one repeated value
    data[24:32] = 0  # not stored at all
    data[32:] = np.round(NOISE.random((len(data) - 32, shape[1])), 1)
    return data


def write(path, data, layout, **options):
    options = {"chunks": (8, 16), "blocks": (2, 8), "attrs": {"unit": "K"}, **options}
    return b2array.asarray(data, url=path, layout=layout, **options)


def objects(path):
    """The files of a frame, as the objects of a store in memory."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {file.name: file.read_bytes() for file in path.iterdir() if not file.name.endswith("lock")}


def opened(files, mode="r"):
    return NDArray(Handle(owners.load(MemoryStore(files)), mode))


def place(path, n, where=0):
    """The file with chunk `n`, and where byte `where` of the chunk is in it."""
    held = b2array.open_schunk(path)
    found = held._handle.source.locate(n)
    return (path / found.name if found.name else path), found.start + where


def flip(path, at, by=0x10):
    raw = bytearray(path.read_bytes())
    raw[at] ^= by
    path.write_bytes(raw)


def head_of(path, n):
    file, start = place(path, n)
    return chunk.unpack_head(file.read_bytes()[start:])


@pytest.fixture(scope="module", params=LAYOUTS)
def intact(request, tmp_path_factory):
    """Files with a commit on top of another, and the data in them."""
    path = tmp_path_factory.mktemp("intact") / "a.b2nd"
    data = mixed()
    a = write(path, data, request.param)
    a[1] = data[1] = 7
    return objects(path), data


@given(data=st.data(), by=st.integers(1, 255))
@settings(max_examples=examples(200), deadline=None)
def test_any_flipped_byte_gives_an_error_or_the_right_data(intact, data, by):
    files, expected = intact
    name = data.draw(st.sampled_from(sorted(files)))
    at = data.draw(st.integers(0, len(files[name]) - 1))
    changed = bytearray(files[name])
    changed[at] ^= by
    check_right_or_refused({**files, name: bytes(changed)}, expected)


def check_right_or_refused(files, expected):
    try:
        a = opened(files)
    except (B2ArrayError, FileNotFoundError):
        return
    if a.shape != expected.shape and not a._handle.frame.fingerprint_type:
        return  # as after the C library has resized the array, which leaves no other trace
    for read in (
        lambda: np.testing.assert_array_equal(a[...], expected),
        lambda: np.testing.assert_array_equal(a[3:30:5, 9], expected[3:30:5, 9]),
        lambda: np.testing.assert_array_equal(a[[1, 39, 17], [0, 4, 15]], expected[[1, 39, 17], [0, 4, 15]]),
        lambda: np.testing.assert_equal(a.attrs["unit"], "K"),
        lambda: np.testing.assert_equal((a.shape, a.dtype), (expected.shape, expected.dtype)),
    ):
        try:
            read()
        except B2ArrayError:
            continue


def test_every_byte_of_chunks_and_records_is_covered(intact, sampled):
    files, expected = intact
    for name, raw in files.items():
        for at in sampled(range(0, len(raw), 7), 12):
            changed = bytearray(raw)
            changed[at] ^= 1 << at % 8
            check_right_or_refused({**files, name: bytes(changed)}, expected)


@given(cut=st.floats(0, 1), data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_cut_off_file_gives_an_error_or_the_right_data(intact, cut, data):
    files, expected = intact
    name = data.draw(st.sampled_from(sorted(files)))
    check_right_or_refused({**files, name: files[name][: int(cut * len(files[name]))]}, expected)


def damaged(path, data, layout):
    """Write an array and change a byte in block 3 of chunk 1; gives the array and the file that was changed."""
    write(path, data, layout)
    file, at = place(path, 1, int(head_of(path, 1).starts[3]) + 20)
    flip(file, at)
    return b2array.open(path), file


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_error_names_chunk_block_and_file(tmp_path, layout):
    path = tmp_path / "a.b2nd"
    a, file = damaged(path, mixed(), layout)
    for key in (..., (slice(8, 16), 12), (10, 9), (slice(None), slice(8, 10))):
        with pytest.raises(
            ChecksumError, match=rf"^chunk 1 of {path}.*CRC-32 of 0x[0-9a-f]* of block 3, found 0x"
        ) as e:
            a[key]
        assert (file.name in str(e.value)) or layout == "contiguous"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_what_is_read_is_compared(tmp_path, layout):
    data = mixed()
    a, _ = damaged(tmp_path / "a.b2nd", data, layout)
    np.testing.assert_array_equal(a[8:10], data[8:10])
    assert a[15, 15] == data[15, 15]
    np.testing.assert_array_equal(a[:8], data[:8])
    with pytest.raises(ChecksumError):
        a[11, 8]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_comparing_can_be_turned_off_and_on_again(tmp_path, layout):
    data = mixed()
    a, _ = damaged(tmp_path / "a.b2nd", data, layout)
    with config.using(verify="never"):
        assert (a[...] != data).sum() == 1
        assert (a[10:12, 8:] != data[10:12, 8:]).sum() == 1
    with pytest.raises(ChecksumError):
        a[10:12, 8:]
    with pytest.raises(ChecksumError):
        a[...]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_damaged_head_or_record_is_noticed(tmp_path, layout, n):
    path = tmp_path / "a.b2nd"
    data = mixed()
    write(path, data, layout)
    head = head_of(path, n)
    record = head.header.cbytes
    intact = tmp_path / "intact"
    (shutil.copytree if layout == "sparse" else shutil.copy)(path, intact)
    for where in (
        2,
        3,
        17,
        24,
        record,
        record + 9,
        record + 14,
        record + checksums.record_nbytes(len(head.starts)) - 1,
    ):
        file, at = place(path, n, where)
        flip(file, at)
        for key in (np.s_[n * 8 : n * 8 + 8], np.s_[n * 8 + 1, 3]):
            with pytest.raises(FormatError, match=f"^chunk {n} of "):
                b2array.open(path)[key]
        flip(file, at)
    np.testing.assert_array_equal(b2array.open(path)[...], data)


def test_exchanged_files_of_equal_size_are_noticed(tmp_path):
    path = tmp_path / "a.b2nd"
    data = NOISE.random((32, 16))
    write(path, data, "sparse")
    one, two = (place(path, n)[0] for n in (1, 2))
    assert one.stat().st_size == two.stat().st_size
    other = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(other)
    for key in (np.s_[8:16], np.s_[9, 3], np.s_[16:24, 0]):
        with pytest.raises(ChecksumError, match="record"):
            b2array.open(path)[key]
    np.testing.assert_array_equal(b2array.open(path)[:8], data[:8])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_of_the_c_library_are_read_without_checksums(tmp_path, layout):
    path = tmp_path / "s.b2nd"
    data = mixed()
    options = {"chunks": (8, 16), "blocks": (2, 8), "urlpath": str(path), "contiguous": layout == "contiguous"}
    blosc2.asarray(data, **options)
    a = b2array.open(path)
    np.testing.assert_array_equal(a[...], data)
    np.testing.assert_array_equal(a[::3, 5], data[::3, 5])


# What other software may do to a file of ours, and what we may do after it.
ROWS = st.one_of(
    st.integers(0, 255).map(
        lambda seed: np.random.default_rng(seed).random((8, 16))
    ),  # stored raw, always equally large
    st.integers(0, 3).map(lambda value: np.full((8, 16), float(value))),
    st.integers(0, 50).map(lambda start: np.arange(start, start + 128.0).reshape(8, 16)),
)
STEP = st.tuples(st.sampled_from(["stock", "ours", "part", "attr", "read"]), st.integers(0, 4), ROWS)


@pytest.mark.costly
@pytest.mark.parametrize("layout", LAYOUTS)
@given(steps=st.lists(STEP, max_size=8))
@settings(max_examples=examples(60), deadline=None)
def test_there_is_no_false_alarm_whoever_wrote_last(tmp_path_factory, layout, steps):
    path = tmp_path_factory.mktemp("histories") / "a.b2nd"
    data = mixed()
    write(path, data, layout)
    for step, n, rows in steps:
        part = np.s_[8 * n : 8 * n + 8] if step != "part" else np.s_[8 * n + 3, 4:]
        if step == "stock":
            s = blosc2.open(str(path), mode="a")
            s[part] = rows
            del s
            data[part] = rows
        elif step in ("ours", "part"):
            b2array.open(path, mode="r+")[part] = rows if step == "ours" else rows[0, 4:]
            data[part] = rows if step == "ours" else rows[0, 4:]
        elif step == "attr":
            b2array.open(path, mode="r+").attrs["step"] = n
        a = b2array.open(path)
        np.testing.assert_array_equal(a[part], data[part])
    np.testing.assert_array_equal(b2array.open(path)[...], data)


def test_after_other_software_wrote_only_new_chunks_are_compared(tmp_path):
    path = tmp_path / "a.b2nd"
    data = NOISE.random((40, 16))
    write(path, data, "contiguous")
    s = blosc2.open(str(path), mode="a")
    s[8:16] = data[8:16] = NOISE.random((8, 16))  # raw: its head is that of the chunk before, byte for byte
    del s
    np.testing.assert_array_equal(b2array.open(path)[...], data)
    b2array.open(path, mode="r+")[:8] = data[:8]
    held = b2array.open_schunk(path)._handle.source
    assert [held.state.has_checksums(n) for n in range(5)] == [True, False, False, False, False]
    np.testing.assert_array_equal(b2array.open(path)[...], data)
    file, at = place(path, 0, 50)
    flip(file, at)
    with pytest.raises(ChecksumError):
        b2array.open(path)[0]


def test_a_point_of_a_file_just_opened_is_compared_without_unpacking_sizes(tmp_path):
    path = tmp_path / "a.b2nd"
    data = mixed()
    write(path, data, "contiguous")
    held = b2array.open(path)
    assert held[9, 3] == data[9, 3]
    assert held._handle.source.state._sizes is None
    file, at = place(path, 1, 32)
    flip(file, at)
    with pytest.raises(ChecksumError):
        b2array.open(path)[9, 3]


@pytest.mark.parametrize("where", [48, -4])
def test_an_old_record_behind_a_chunk_without_one_does_not_count(tmp_path, monkeypatch, where):
    path = tmp_path / "a.b2nd"
    data = NOISE.random((40, 16))
    write(path, data, "contiguous")
    cbytes = head_of(path, 1).header.cbytes
    file, at = place(path, 1, where % (cbytes + 4))  # in a raw block, or in the record
    flip(file, at, 1)
    with pytest.raises(ChecksumError):
        b2array.open(path)[8:16]
    monkeypatch.setattr(State, "has_checksums", lambda state, n: n != 1)
    held = b2array.open(path)
    for _ in range(2):
        assert (held[8:16] != data[8:16]).sum() == (where > 0)
    assert held._handle.source.heads[1].sums is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_moved_chunks_take_their_checksums_along(tmp_path, layout):
    path = tmp_path / "s.b2frame"
    held = b2array.create_schunk(path, chunksize=64, typesize=4, layout=layout)
    chunks = [NOISE.bytes(64) for _ in range(5)]
    for each in chunks:
        held.append_data(each)
    held.reorder([4, 2, 0, 1, 3])
    held.delete_chunk(1)
    held.insert_data(2, b"x" * 64)
    expected = [chunks[4], chunks[0], b"x" * 64, chunks[1], chunks[3]]
    again = b2array.open_schunk(path)
    assert [again.decompress_chunk(n) for n in range(5)] == expected
    assert all(again._handle.source.state.has_checksums(n) for n in range(5))
    file, at = place(path, 3, 40)
    flip(file, at)
    with pytest.raises(ChecksumError, match=f"^chunk 3 of {path}"):
        again.decompress_chunk(3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chunks_and_blocks_of_any_size_have_checksums(tmp_path, layout):
    path = tmp_path / "s.b2frame"
    held = b2array.create_schunk(path, chunksize=0, typesize=1, layout=layout)
    chunks = [NOISE.bytes(5000), b"a" * 70_000, bytes(range(256)) * 300, b"z"]
    for each in chunks:
        held.append_data(each)
    again = b2array.open_schunk(path)
    assert [again.decompress_chunk(n) for n in range(4)] == chunks
    assert again.get_slice(4000, 90_000) == b"".join(chunks)[4000:90_000]
    for n in range(4):
        head = head_of(path, n)
        file, at = place(path, n, head.header.cbytes - 1)
        flip(file, at)
        with pytest.raises(ChecksumError, match=f"^chunk {n} of "):
            b2array.open_schunk(path).decompress_chunk(n)
        flip(file, at)


def test_a_wrong_size_in_one_chunk_does_not_move_the_others(tmp_path):
    path = tmp_path / "s.b2frame"
    held = b2array.create_schunk(path, chunksize=0)
    for each in (b"a" * 100, b"b" * 200, b"c" * 300):
        held.append_data(each)
    file, at = place(path, 0, 4)
    flip(file, at, by=8)
    with pytest.raises(FormatError):
        b2array.open_schunk(path).get_slice(150, 160)


class Counting(MemoryStore):
    """Counts waves of requests and what they read, like a store that is far away."""

    can = replace(MemoryStore.can, append=False, local=False)

    def __init__(self, files):
        super().__init__(files)
        self.waves = self.nbytes = 0

    def read(self, spans, *, expected=None, clip=False):
        self.waves += 1
        self.nbytes += sum(span.stop - span.start for span in spans)
        return super().read(spans, expected=expected, clip=clip)

    def head(self, names, nbytes, *, offset=0):
        self.waves += 1
        return super().head(names, nbytes, offset=offset)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key", [np.s_[5, 700], np.s_[:, 0], np.s_[200:300, 50:60], np.s_[[3, 900], [1, 999]]])
def test_a_cold_read_of_blocks_is_one_wave_with_their_checksums(tmp_path, layout, key):
    path = tmp_path / "a.b2nd"
    data = np.cumsum(NOISE.normal(size=(1000, 1000)), axis=1)
    write(path, data, layout, chunks=(500, 500), blocks=(100, 50))
    store = Counting(objects(path))
    a = NDArray(Handle(owners.load(store), "r"))
    store.waves = store.nbytes = 0
    np.testing.assert_array_equal(a[key], data[key])
    assert store.waves == 1
    before = store.nbytes
    np.testing.assert_array_equal(a[key], data[key])  # what is known of a chunk is not read again
    assert store.waves == 2
    assert store.nbytes - before < before


def test_only_needed_blocks_are_read(tmp_path):
    path = tmp_path / "a.b2nd"
    data = np.cumsum(NOISE.normal(size=(1000, 1000)), axis=1)
    write(path, data, "contiguous", chunks=(500, 500), blocks=(100, 50))
    store = Counting(objects(path))
    a = NDArray(Handle(owners.load(store), "r"))
    store.nbytes = 0
    assert a[750, 60] == data[750, 60]
    head = head_of(path, 2)
    block = int(head.stops[21] - head.starts[21])
    extra = int(head.starts.min()) + checksums.record_nbytes(50)
    assert store.nbytes <= block + extra + 2 * 4096


def test_delta_chunks_take_their_first_block_along(tmp_path):
    path = tmp_path / "a.b2nd"
    data = np.arange(64 * 64).reshape(64, 64) % 977
    cparams = b2array.CParams("lz4", filters=("delta", "shuffle"))
    held = b2array.create_schunk(
        path, chunksize=data.nbytes, typesize=8, blocksize=4096, cparams=cparams, interop=False
    )
    held.append_data(data)
    store = Counting(objects(path))
    source = owners.load(store)
    store.waves = 0
    (stored,) = fetch(source, [ChunkRequest(0, (5,))])
    assert store.waves == 1
    (whole,) = fetch(source, [ChunkRequest(0, None)])
    for n in (0, 5):
        got = stored.region[stored.starts[n] : stored.stops[n]]
        assert got == whole.region[whole.starts[n] : whole.stops[n]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_snapshot_that_was_overwritten_is_a_conflict_and_not_damage(tmp_path, layout):
    path = tmp_path / "a.b2nd"
    data = NOISE.random((40, 16))
    write(path, data, layout)
    reader = b2array.open(path)
    s = blosc2.open(str(path), mode="a")
    s[8:16] = 2.0 + NOISE.random((8, 16))
    del s
    with pytest.raises(ConflictError, match="refresh"):
        reader[9, 3]
    reader.refresh()
    assert reader[9, 3] >= 2.0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_chunk_is_not_given_new_checksums(tmp_path, layout):
    path = tmp_path / "a.b2nd"
    write(path, mixed(), layout)
    file, at = place(path, 1, 60)
    flip(file, at)
    a = b2array.open(path, mode="r+")
    with pytest.raises(ChecksumError):
        a.to_bytes()
    with pytest.raises(ChecksumError):
        a[9, 3] = 1
    a[8:16] = 5
    assert (b2array.open(path)[8:16] == 5).all()


def test_writing_goes_on_beside_a_damaged_chunk_however_much_is_dead(tmp_path):
    path = tmp_path / "a.b2nd"
    data = NOISE.random((4, 40_000))
    write(path, data, "contiguous", chunks=(1, 40_000), blocks=(1, 4000))
    file, at = place(path, 3, 600)
    flip(file, at)
    a = b2array.open(path, mode="r+")
    for _ in range(6):
        a[0] = data[0] = NOISE.random(40_000)
    np.testing.assert_array_equal(a[:3], data[:3])
    with pytest.raises(ChecksumError):
        a[3]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pickled_handle_compares_too(tmp_path, layout, monkeypatch):
    path = tmp_path / "a.b2nd"
    data = mixed()
    a = write(path, data, layout)
    for limit in (2**16, 200, 60):
        monkeypatch.setattr("b2array.frame.revision._PICKLED_NBYTES", limit)
        handle = pickle.loads(pickle.dumps(a))
        np.testing.assert_array_equal(handle[...], data)
        file, at = place(path, 1, 60)
        flip(file, at)
        with pytest.raises(ChecksumError):
            pickle.loads(pickle.dumps(a))[8, 3]
        with pytest.raises(ChecksumError):
            pickle.loads(pickle.dumps(a))[8:16]
        flip(file, at)
    handle = pickle.loads(pickle.dumps(a))
    handle[0] = data[0] = 1
    np.testing.assert_array_equal(b2array.open(path)[...], data)


def test_lazy_chunks_are_made_of_verified_ones(tmp_path):
    path = tmp_path / "a.b2nd"
    write(path, mixed(), "contiguous")
    held = b2array.open_schunk(path)
    assert len(held.lazy_chunk(0)) < len(held.get_chunk(0)) + 50
    file, at = place(path, 0, 60)
    flip(file, at)
    with pytest.raises(ChecksumError):
        b2array.open_schunk(path).lazy_chunk(0)


def test_a_span_of_a_chunk_that_is_cut_off_names_the_chunk(tmp_path):
    path = tmp_path / "a.b2nd"
    data = NOISE.random((32, 16))
    write(path, data, "sparse")
    file, _ = place(path, 2)
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(FormatError, match=f"^chunk 2 of {path}"):
        b2array.open(path)[17:31, 3]
