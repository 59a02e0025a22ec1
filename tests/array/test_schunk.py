"""Super-chunks: the sequence of chunks, transactions, several handles, pickles, and the two kinds of frames."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import blosc2
import numpy as np
import pytest

import b2array
from b2array import config
from b2array.array.schunk import SChunk
from b2array.catalog import owners
from b2array.codec import encode
from b2array.codec.chunk_header import NAN_BYTES, Special
from b2array.commit.handle import Handle
from b2array.errors import ChunkMissingError, ConflictError, FormatError, ReadOnlyError
from b2array.store.memory import MemoryStore

LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])


def data(n, length=100):
    return np.arange(n * 1000, n * 1000 + length, dtype="i4").tobytes()


def made(url=None, count=4, **options):
    held = b2array.create_schunk(url, chunksize=400, typesize=4, blocksize=80, **options)
    with held.transaction():
        for n in range(count):
            held.append_data(data(n))
    return held


def contents(held):
    return [held.decompress_chunk(n) for n in range(held.nchunks)]


def files(path):
    return sorted(file.name for file in path.iterdir() if not file.name.startswith("."))


def everything(directory):
    """Read all files but locks."""
    return {
        str(file): file.read_bytes() for file in directory.rglob("*") if file.is_file() and "b2lock" not in file.name
    }


# --- "Blosc2 Sparse Frame Format", section Examples -------------------------------------------------------------------


FOUR = [f"0000000{n}.chunk" for n in range(4)]


def test_the_insertion_example_of_the_sparse_frame_format(tmp_path):
    path = tmp_path / "dir.b2frame"
    held = made(path, layout="sparse")
    assert held.frame.offsets.tolist() == [0, 1, 2, 3]
    assert files(path) == [*FOUR, "chunks.b2frame"]
    before = {name: (path / name).read_bytes() for name in FOUR}
    assert held.insert_data(2, data(9)) == 5
    assert held.frame.offsets.tolist() == [0, 1, 4, 2, 3]
    assert files(path) == [*FOUR, "00000004.chunk", "chunks.b2frame"]
    assert {name: (path / name).read_bytes() for name in FOUR} == before
    expected = [data(n) for n in (0, 1, 9, 2, 3)]
    assert contents(b2array.open_schunk(path)) == contents(blosc2.open(str(path))) == expected
    assert (path / "00000004.chunk").read_bytes().startswith(held.get_chunk(2))


def test_the_reorder_example_of_the_sparse_frame_format(tmp_path):
    path = tmp_path / "dir.b2frame"
    held = made(path, layout="sparse")
    before = {name: (path / name).read_bytes() for name in FOUR}
    held.reorder([3, 1, 0, 2])
    assert held.frame.offsets.tolist() == [3, 1, 0, 2]
    assert files(path) == [*FOUR, "chunks.b2frame"]
    assert {name: (path / name).read_bytes() for name in FOUR} == before
    expected = [data(n) for n in (3, 1, 0, 2)]
    assert contents(b2array.open_schunk(path)) == contents(blosc2.open(str(path))) == expected


def test_fifteen_chunks_have_the_names_of_the_sparse_frame_format(tmp_path):
    made(tmp_path / "dir.b2frame", count=15, layout="sparse")
    assert files(tmp_path / "dir.b2frame")[9:] == [*(f"0000000{c}.chunk" for c in "9ABCDE"), "chunks.b2frame"]


def test_special_values_have_no_files(tmp_path):
    path = tmp_path / "dir.b2frame"
    held = b2array.create_schunk(path, chunksize=400, typesize=4, layout="sparse")
    held.append_data(bytes(400))
    held.append_data(data(1))
    held.append_chunk(encode.special_chunk(Special.NAN, 400, typesize=4))
    held.append_data(bytes(60))
    assert files(path) == ["00000000.chunk", "chunks.b2frame"]
    expected = [bytes(400), data(1), NAN_BYTES[4] * 100, bytes(60)]
    assert contents(b2array.open_schunk(path)) == contents(blosc2.open(str(path))) == expected
    held.update_data(1, bytes(400))
    assert held.frame.offsets.max() < 0
    assert contents(blosc2.open(str(path)))[1] == bytes(400)


def test_a_missing_file_is_named_and_is_not_zeros(tmp_path):
    held = made(tmp_path / "dir.b2frame", layout="sparse")
    (tmp_path / "dir.b2frame" / "00000002.chunk").unlink()
    assert held.decompress_chunk(1) == data(1)
    for read in (lambda: held.decompress_chunk(2), lambda: held.get_chunk(2), held.get_slice, held.to_bytes):
        with pytest.raises(ChunkMissingError, match=r"chunk 2 .*00000002\.chunk"):
            read()


# --- frames inside larger files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 30, 100_000])
def test_a_frame_is_read_inside_a_larger_file(tmp_path, offset):
    held = made()
    held.vlmeta["unit"] = "K"
    raw = held.to_bytes()
    path = tmp_path / "archive"
    path.write_bytes(b"\xa5" * offset + raw + b"behind" * 50)
    found = b2array.open_schunk(path, offset=offset)
    assert contents(found) == [data(n) for n in range(4)]
    assert found.get_slice(90, 210) == (data(0) + data(1) + data(2))[360:840]
    assert dict(found.vlmeta) == {"unit": "K"}
    assert found.to_bytes() == raw or contents(snapshot_of(found.to_bytes())) == contents(held)
    assert contents(pickle.loads(pickle.dumps(found))) == contents(held)
    found.refresh()
    assert found.nchunks == 4
    with pytest.raises(ReadOnlyError):
        found.append_data(data(5))
    with pytest.raises(ReadOnlyError, match="larger file"):
        b2array.open_schunk(path, "r+", offset=offset)
    with pytest.raises(FormatError):
        b2array.open_schunk(path, offset=offset + 1)


def snapshot_of(raw):
    return SChunk(Handle(owners.load(MemoryStore({"": raw})), "r"))


# --- reading ----------------------------------------------------------------------------------------------------------


def test_chunks_are_numbered_from_both_ends():
    held = made()
    assert held.decompress_chunk(-1) == data(3)
    for verb in (held.decompress_chunk, held.get_chunk, held.lazy_chunk, held.delete_chunk):
        for n in (4, -5):
            with pytest.raises(IndexError, match="4 chunks"):
                verb(n)


@pytest.mark.parametrize("variable", [False, True])
def test_slices_are_those_of_the_items(variable):
    held = made()
    held.append_data(data(4, 30))
    if variable:
        held.insert_data(1, data(7, 17))
    whole = np.frombuffer(b"".join(contents(held)), "i4")
    for start, stop in ((0, None), (5, 10), (99, 101), (-40, None), (100, 200), (30, 20), (-3, 9999), (400, 1000)):
        assert held.get_slice(start, stop) == whole[start:stop].tobytes()


@LAYOUTS
def test_a_lazy_chunk_says_where_its_blocks_are(tmp_path, layout):
    held = made(tmp_path / "a.b2frame", layout=layout)
    held.append_data(bytes(400))
    buf = held.lazy_chunk(2)
    assert buf == blosc2.open(str(tmp_path / "a.b2frame")).get_lazychunk(2)
    assert len(buf) < len(held.get_chunk(2))
    assert held.lazy_chunk(4) == held.get_chunk(4)


def test_a_copy_in_bytes_is_a_frame_of_the_same_chunks(tmp_path):
    held = made(tmp_path / "a.b2frame", layout="sparse")
    held.vlmeta["x"] = [1, 2]
    held.append_data(bytes(400))
    copy = snapshot_of(held.to_bytes())
    assert contents(copy) == contents(held)
    assert [copy.get_chunk(n) for n in range(4)] == [held.get_chunk(n) for n in range(4)]
    assert dict(copy.vlmeta) == {"x": [1, 2]}
    assert contents(blosc2.schunk_from_cframe(held.to_bytes())) == contents(held)


def test_a_reading_is_repeated_if_a_commit_through_the_handle_took_its_bytes_away(tmp_path):
    held = made(tmp_path / "a.b2frame")
    sources = []

    def read(source):
        sources.append(source)
        if len(sources) == 1:
            held.update_data(1, data(8))
            held.repack()
        return SChunk(Handle(source, "r")).decompress_chunk(1)

    assert held._handle.reading(read) == data(8)
    assert len(sources) == 2


def test_a_reading_of_what_other_software_has_moved_is_a_conflict(tmp_path):
    path = tmp_path / "a.b2frame"
    held = made(path, count=8)
    other = blosc2.open(str(path), mode="a")
    other.update_data(0, np.random.default_rng(0).bytes(400), copy=True)
    with pytest.raises(ConflictError, match="refresh"):
        contents(held)
    held.refresh()
    assert contents(held)[1:] == [data(n) for n in range(1, 8)]


def test_damage_is_no_conflict(tmp_path):
    path = tmp_path / "a.b2frame"
    held = made(path)
    raw = bytearray(path.read_bytes())
    at = raw.index(held.get_chunk(2))
    raw[at : at + 32] = bytes(32)
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="chunk 2"):
        b2array.open_schunk(path).decompress_chunk(2)


# --- changing ---------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_each_change_is_a_commit_and_returns_the_number_of_chunks(tmp_path, layout):
    held = made(tmp_path / "a.b2frame", layout=layout)
    states = {held.generation}
    assert held.append_data(np.frombuffer(data(4), "i4")) == 5
    states.add(held.generation)
    assert held.insert_data(0, data(5)) == 6
    states.add(held.generation)
    assert held.update_data(-1, data(6)) == 6
    states.add(held.generation)
    assert held.delete_chunk(1) == 5
    states.add(held.generation)
    held.reorder([4, 3, 2, 1, 0])
    states.add(held.generation)
    assert len(states) == 6
    expected = [data(n) for n in (6, 3, 2, 1, 5)]
    assert contents(held) == contents(b2array.open_schunk(tmp_path / "a.b2frame")) == expected


def test_chunks_can_be_copied_without_compressing_them_anew():
    held, other = made(), made(count=0)
    for n in range(4):
        other.append_chunk(held.get_chunk(n))
    assert [other.get_chunk(n) for n in range(4)] == [held.get_chunk(n) for n in range(4)]


@pytest.mark.parametrize("n", [1.0, "1", None, [1]])
def test_numbers_of_chunks_are_integers(n):
    held = made(count=2)
    before = held.generation
    for use in (
        held.decompress_chunk,
        held.get_chunk,
        held.lazy_chunk,
        held.delete_chunk,
        lambda n: held.update_data(n, bytes(100)),
        lambda n: held.insert_data(n, bytes(100)),
    ):
        with pytest.raises(TypeError, match="interpreted as an integer"):
            use(n)
    assert held.generation == before
    assert held.decompress_chunk(np.int64(1)) == held.decompress_chunk(-1)


@pytest.mark.parametrize("given", ["chunk", 40, None])
def test_chunks_are_bytes(given):
    with pytest.raises(TypeError, match="bytes-like"):
        made().append_chunk(given)


def test_chunks_without_data_are_refused():
    for empty in (b"", np.zeros(0, "i4")):
        with pytest.raises(ValueError, match="at least one byte"):
            made().append_data(empty)


def test_a_handle_for_reading_changes_nothing(tmp_path):
    made(tmp_path / "a.b2frame")
    held = b2array.open_schunk(tmp_path / "a.b2frame")
    for change in (
        lambda: held.append_data(b"1234"),
        lambda: held.delete_chunk(0),
        lambda: held.reorder([3, 2, 1, 0]),
        lambda: held.vlmeta.update(x=1),
        lambda: held.transaction().__enter__(),
        held.repack,
    ):
        with pytest.raises(ReadOnlyError, match=r"mode='r\+'"):
            change()


def test_modes_are_r_and_r_plus():
    with pytest.raises(ValueError, match="'w'"):
        Handle(made()._handle.revision, "w")


@LAYOUTS
def test_appending_goes_behind_whatever_others_appended(tmp_path, layout):
    made(tmp_path / "a.b2frame", layout=layout)
    first, second = (b2array.open_schunk(tmp_path / "a.b2frame", "r+") for _ in range(2))
    first.append_data(data(4))
    assert second.append_data(data(5)) == 6
    first.refresh()
    assert contents(first) == [data(n) for n in range(6)]


@LAYOUTS
@pytest.mark.parametrize("verb", ["insert_data", "update_data", "delete_chunk", "reorder"])
def test_a_number_that_may_mean_another_chunk_by_now_is_a_conflict(tmp_path, layout, verb):
    made(tmp_path / "a.b2frame", layout=layout)
    first, second = (b2array.open_schunk(tmp_path / "a.b2frame", "r+") for _ in range(2))
    first.delete_chunk(0)
    arguments = {"insert_data": (1, data(9)), "update_data": (1, data(9)), "delete_chunk": (1,)}
    with pytest.raises(ConflictError):
        getattr(second, verb)(*arguments.get(verb, ([3, 2, 1, 0],)))
    # It is shown what the other did, and may decide.
    assert contents(second) == [data(n) for n in (1, 2, 3)]


def test_an_update_is_done_again_where_the_chunks_stayed(tmp_path):
    made(tmp_path / "a.b2frame")
    first, second = (b2array.open_schunk(tmp_path / "a.b2frame", "r+") for _ in range(2))
    first.update_data(0, data(8))
    first.update_data(1, data(8))
    second.update_data(1, data(9))
    assert contents(second) == [data(n) for n in (8, 9, 2, 3)]


@pytest.mark.parametrize("anywhere", [False, True])
def test_a_conflict_that_no_other_writer_caused_is_not_tried_again(anywhere):
    count = 0
    with pytest.raises(ConflictError, match="never"):
        for attempt in made()._handle.attempts(anywhere=anywhere):
            with attempt:
                count += 1
                raise ConflictError("never")
    assert count == 1


def test_threads_append_through_one_handle_and_lose_nothing(tmp_path):
    held = made(tmp_path / "a.b2frame", count=0)
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda n: held.append_data(data(n)), range(24)))
    assert sorted(counts) == list(range(1, 25))
    assert sorted(contents(held)) == sorted(data(n) for n in range(24))


def test_after_some_attempts_the_others_have_to_wait(tmp_path):
    made(tmp_path / "a.b2frame")
    first, second = (b2array.open_schunk(tmp_path / "a.b2frame", "r+") for _ in range(2))
    count = 0
    with config.using(retries=3):
        for attempt in second._handle.attempts(anywhere=True):
            with attempt as draft:
                count += 1
                if count < 4:
                    first.vlmeta["x"] = count
                draft.set_attr("x", b"\x63")
    assert count == 4
    assert dict(second.vlmeta) == {"x": 99}


# --- transactions -----------------------------------------------------------------------------------------------------


@LAYOUTS
def test_a_transaction_is_seen_by_its_handle_and_by_others_when_it_is_over(tmp_path, layout):
    held = made(tmp_path / "a.b2frame", layout=layout)
    state = held.generation
    with held.transaction() as same:
        assert same is held
        held.delete_chunk(0)
        held.append_data(data(7))
        held.insert_data(0, data(0, 10))
        held.vlmeta["x"] = 1
        inside = [data(0, 10), *(data(n) for n in (1, 2, 3, 7))]
        assert contents(held) == inside
        assert held.lazy_chunk(0) == held.get_chunk(0)
        assert held.get_slice(0, 12) == data(0, 10) + data(1)[:8]
        assert (held.generation, held.in_transaction) == (state, True)
        assert contents(b2array.open_schunk(tmp_path / "a.b2frame")) == [data(n) for n in range(4)]
        assert contents(snapshot_of(held.to_bytes())) == inside
    assert held.generation != state
    assert contents(b2array.open_schunk(tmp_path / "a.b2frame")) == inside
    assert contents(blosc2.open(str(tmp_path / "a.b2frame"))) == inside


@LAYOUTS
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_transaction_that_raises_has_not_happened(tmp_path, layout, error):
    held = made(tmp_path / "a.b2frame", layout=layout)
    before = everything(tmp_path)
    with pytest.raises(error), held.transaction():
        held.reorder([3, 2, 1, 0])
        held.append_data(data(7))
        held.vlmeta["x"] = 1
        raise error
    assert contents(held) == [data(n) for n in range(4)]
    assert "x" not in held.vlmeta
    assert everything(tmp_path) == before


def test_a_change_that_fails_inside_a_transaction_is_undone_alone():
    held = made()
    with held.transaction():
        held.update_data(0, data(8))
        with pytest.raises(ValueError, match="order"):
            held.reorder([0, 0, 0, 0])
        with pytest.raises(IndexError):
            held.delete_chunk(9)
        with pytest.raises(FormatError):
            held.append_chunk(b"this is not a chunk, whatever its length")
    assert contents(held) == [data(n) for n in (8, 1, 2, 3)]


def test_transactions_are_not_nested_refreshed_or_pickled():
    held = made()
    with held.transaction():
        with pytest.raises(ValueError, match="under way"), held.transaction():
            pass
        with pytest.raises(ValueError, match="lose its changes"):
            held.refresh()
        with pytest.raises(ValueError, match="pickled"):
            pickle.dumps(held)
        held.delete_chunk(0)
    assert contents(held) == [data(n) for n in (1, 2, 3)]


def test_a_transaction_that_conflicts_leaves_a_handle_that_works(tmp_path):
    held = made(tmp_path / "a.b2frame")
    with pytest.raises(ConflictError, match=r"\[1\]"), held.transaction():
        held.update_data(1, held.decompress_chunk(1)[::-1])
        b2array.open_schunk(tmp_path / "a.b2frame", "r+").update_data(1, data(9))
    assert not held.in_transaction
    held.refresh()
    assert contents(held) == [data(n) for n in (0, 9, 2, 3)]
    held.update_data(1, data(1))
    assert contents(held) == [data(n) for n in range(4)]


def test_a_thread_that_is_late_for_a_transaction_writes_after_it():
    held = made()
    begun, over = threading.Event(), threading.Event()

    def late():
        begun.wait(10)
        over.wait(10)
        held.append_data(data(9))

    thread = threading.Thread(target=late)
    thread.start()
    with held.transaction():
        begun.set()
        held.delete_chunk(0)
    over.set()
    thread.join()
    assert contents(held) == [data(n) for n in (1, 2, 3, 9)]


# --- pickles ----------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_a_pickle_shows_its_state_while_others_go_on(tmp_path, layout):
    held = made(tmp_path / "a.b2frame", layout=layout)
    raw = pickle.dumps(held)
    held.update_data(0, data(8))
    held.append_data(data(9))
    again = pickle.loads(raw)
    assert contents(again) == [data(n) for n in range(4)]
    assert again.mode == "r+"
    # Its next change knows that it was overtaken.
    assert again.append_data(data(7)) == 6
    assert contents(again) == [data(n) for n in (8, 1, 2, 3, 9, 7)]
    noted = b2array.open_schunk(tmp_path / "a.b2frame")
    assert contents(noted) == contents(blosc2.open(str(tmp_path / "a.b2frame"))) == contents(again)


@LAYOUTS
def test_a_large_pickle_leaves_out_what_only_writers_need(tmp_path, layout, monkeypatch):
    monkeypatch.setattr("b2array.frame.revision._PICKLED_NBYTES", 10)
    held = made(tmp_path / "a.b2frame", layout=layout)
    again = pickle.loads(pickle.dumps(held))
    again.update_data(1, data(8))
    found = b2array.open_schunk(tmp_path / "a.b2frame")
    assert contents(found) == [data(n) for n in (0, 8, 2, 3)]
    assert found.frame.cbytes >= sum(len(found.get_chunk(n)) for n in range(4))
    if layout == "sparse":
        assert found.frame.cbytes == sum(len(found.get_chunk(n)) for n in range(4)) + 4 + 32


def test_a_frame_in_memory_is_copied_by_a_pickle():
    held = made()
    again = pickle.loads(pickle.dumps(held))
    again.delete_chunk(0)
    assert contents(held) == [data(n) for n in range(4)]


def test_a_closed_handle_works_again(tmp_path):
    with made(tmp_path / "a.b2frame") as held:
        pass
    assert held.append_data(data(4)) == 5
    held.close()
    assert contents(held) == [data(n) for n in range(5)]


def test_a_handle_says_what_it_is(tmp_path):
    held = made(tmp_path / "a.b2frame", meta={"m": [1, 2], "raw": b"\xc1"})
    assert (len(held), held.nchunks, held.nbytes, held.typesize, held.chunksize, held.blocksize) == (
        4,
        4,
        1600,
        4,
        400,
        80,
    )
    assert dict(held.meta) == {"m": [1, 2], "raw": b"\xc1"}
    assert held.cratio == held.nbytes / held.cbytes
    assert made(count=0).cratio == float("inf")
    assert repr(held) == f"<b2array.SChunk {tmp_path / 'a.b2frame'}: 4 chunks, 1600 bytes>"
    with pytest.raises(TypeError):
        held.meta["m"] = 3


def test_a_negative_number_of_items_is_refused():
    a = b2array.create_schunk(chunksize=100)
    with pytest.raises(ValueError, match="0 or more, not -1"):
        a.fill_special(-1)
    assert a.nbytes == 0


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@pytest.mark.parametrize(
    ("typesize", "sizes"),
    [(300, [2400, 3000]), (256, [25600, 5120]), (8, [700, 1001, 700]), (8, [800, 501]), (300, [800]), (1, [700, 1000])],
)
def test_python_blosc2_opens_chunks_of_zeros_of_any_size(tmp_path, layout, typesize, sizes):
    path = tmp_path / "a.b2frame"
    with b2array.create_schunk(path, chunksize=100 * typesize, typesize=typesize, layout=layout) as made:
        for size in sizes:
            made.append_data(bytes(size))
    assert contents(b2array.open_schunk(path)) == contents(blosc2.open(str(path))) == [bytes(size) for size in sizes]


def test_masked_items_are_not_compressed():
    with pytest.raises(TypeError, match="masked"):
        b2array.create_schunk(chunksize=16, typesize=8).append_data(np.ma.array([1, 2], mask=[0, 1]))
