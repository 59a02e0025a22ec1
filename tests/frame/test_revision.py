"""A snapshot is what a frame was when it was read; its chunks come whole or in parts, and damage has a place."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import blosc2
import numpy as np
import pytest
from chunks import decoded_blocks
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array.catalog.owners import load
from b2array.codec import encode
from b2array.codec.chunk_header import ChunkHeader, Special
from b2array.config import HEADER_LEN
from b2array.errors import ChunkMissingError, ConflictError, FormatError, UnsupportedError
from b2array.format.frame_header import FrameType
from b2array.frame.fetch import fetch
from b2array.frame.kept_states import ledger_in, load_kept_states
from b2array.frame.source import ChunkRequest, Location
from b2array.store.local_store import LocalStore
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store
from b2array.store.spans import Span

LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])
NCHUNKS, NBLOCKS, FULL = 6, 10, 8000


def data(n):
    return np.random.default_rng(n).integers(0, 40, FULL // 4, dtype="i4").tobytes()


@pytest.fixture(params=["ours", "stock"], scope="module")
def frames(request, tmp_path_factory):
    """Frames of six chunks, one of them special, in both layouts."""
    directory = tmp_path_factory.mktemp("frames")
    for layout in ("contiguous", "sparse"):
        url = str(directory / layout)
        if request.param == "ours":
            held = b2array.create_schunk(url, chunksize=FULL, typesize=4, blocksize=FULL // NBLOCKS, layout=layout)
        else:
            params = {"typesize": 4, "blocksize": FULL // NBLOCKS, "nthreads": 2}
            held = blosc2.SChunk(chunksize=FULL, urlpath=url, contiguous=layout == "contiguous", cparams=params)
        for n in range(NCHUNKS):
            held.append_data(np.frombuffer(data(n) if n != 3 else bytes(FULL), "i4"))
    return directory


def opened(directory, layout, *, with_contents=False):
    return load(open_store(directory / layout), with_contents=with_contents)


# --- loading ----------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_loading_finds_the_layout_of_a_frame(frames, layout):
    held = opened(frames, layout)
    assert held.frame.frame_type == (FrameType.SPARSE if layout == "sparse" else FrameType.CONTIGUOUS)
    assert held.name == ("chunks.b2frame" if layout == "sparse" else "")
    assert (held.frame.nchunks, held.start) == (NCHUNKS, 0)
    assert held.staleness() is None


@LAYOUTS
def test_locations_lead_to_the_chunks(frames, layout):
    held = opened(frames, layout)
    assert held.locate(3) is Special.ZEROS
    for n in (0, 1, 2, 4, 5):
        place = held.locate(n)
        assert isinstance(place, Location)
        (view,) = held.read([Span(place.name, place.start, place.start + HEADER_LEN)])
        assert ChunkHeader.unpack(view).nbytes == FULL
    with pytest.raises(IndexError):
        held.locate(NCHUNKS)


@LAYOUTS
def test_a_generation_names_a_state_whoever_wrote_it(frames, layout, tmp_path):
    shutil.copytree(frames, tmp_path / "copy")
    held = opened(tmp_path / "copy", layout)
    assert held.generation == opened(tmp_path / "copy", layout).generation
    other = blosc2.open(str(tmp_path / "copy" / layout), mode="a")
    other.update_data(1, data(9), copy=True)
    del other
    now = opened(tmp_path / "copy", layout)
    assert now.generation != held.generation
    assert held.staleness()
    assert now.staleness() is None


def test_a_snapshot_of_a_deleted_file_is_stale(frames, tmp_path):
    shutil.copytree(frames, tmp_path / "copy")
    held = opened(tmp_path / "copy", "contiguous")
    (tmp_path / "copy" / "contiguous").unlink()
    assert "was deleted or moved since" in str(held.staleness())


@LAYOUTS
@pytest.mark.parametrize("change", ["delete", "replace", "damage"])
def test_a_kept_state_that_cannot_be_read_is_lost_only_if_the_frame_is_the_same(tmp_path, layout, change):
    url = tmp_path / "a.b2nd"
    a = b2array.asarray(np.zeros(8), url=url, layout=layout, attrs={"noise": np.random.default_rng(0).bytes(5000)})
    a.snapshot("then")
    held = opened(tmp_path, "a.b2nd")
    entries = ledger_in(held).entries
    assert not entries[0].packed  # it is an object, or a part of the file, by itself
    held.store.close()
    if change == "damage" and layout == "sparse":
        (lost,) = url.glob("*.b2kept")
        lost.unlink()
    elif change == "damage":
        os.truncate(url, held.frame.header_len + entries[0].place)
    else:
        shutil.rmtree(url) if layout == "sparse" else url.unlink()
        if change == "replace":
            b2array.zeros(3, url=url, layout=layout)
    with pytest.raises(FormatError if change == "damage" else ConflictError):
        load_kept_states(held, entries)


@pytest.mark.parametrize("error", [PermissionError(13, "403"), TimeoutError("too late"), OSError("broken")])
def test_other_errors_are_raised_and_not_taken_for_absence(error):
    store = MemoryStore()
    store.head = lambda names, nbytes, offset=0: [FileNotFoundError("nothing"), error][: len(names)]
    with pytest.raises(type(error), match=str(error.args[-1])):
        load(store)


def test_a_header_longer_than_the_first_request_is_read():
    held = b2array.create_schunk(chunksize=80, meta={f"m{n}": b"x" * 9000 for n in range(12)})
    held.append_data(bytes(range(80)))
    found = load(held._handle.store)
    assert found.frame.header_len > 2**16
    assert found.frame.metalayer("m11") == b"x" * 9000


def test_a_frame_of_the_wrong_kind_for_its_place_is_a_format_error(frames, tmp_path):
    (tmp_path / "d").mkdir()
    shutil.copy(frames / "contiguous", tmp_path / "d" / "chunks.b2frame")
    with pytest.raises(FormatError, match="expected a sparse frame, found a contiguous one"):
        load(open_store(tmp_path / "d"))
    shutil.copy(frames / "sparse" / "chunks.b2frame", tmp_path / "file")
    with pytest.raises(FormatError, match="expected a contiguous frame, found a sparse one"):
        load(open_store(tmp_path / "file"))


@pytest.mark.parametrize("with_contents", [False, True])
@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_damaged_frames_are_read_or_refused(frames, with_contents, data):
    raw = bytearray((frames / "contiguous").read_bytes())
    tail = load(MemoryStore({"": bytes(raw)})).frame.tail_start
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(st.integers(0, 100), st.integers(tail, len(raw) - 1)))
        raw[at] = data.draw(st.integers(0, 255))
    length = data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))
    message = "memory"
    try:
        held = load(MemoryStore({"": bytes(raw[:length])}), with_contents=with_contents)
        for n in range(min(held.frame.nchunks, 10)):
            fetch(held, [ChunkRequest(n, None)])
    except (FormatError, UnsupportedError) as error:
        message = str(error)
    assert message.count("memory") == 1


# --- fetching ---------------------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("with_contents", [False, True])
@given(st.data())
@settings(max_examples=examples(40), deadline=None)
def test_any_blocks_of_any_chunks_are_fetched(frames, layout, with_contents, data):
    held = opened(frames, layout, with_contents=with_contents)
    blocks = st.lists(st.integers(0, NBLOCKS - 1), min_size=1, unique=True).map(sorted)
    wants = data.draw(
        st.lists(st.builds(ChunkRequest, st.integers(0, NCHUNKS - 1), st.one_of(st.none(), blocks)), max_size=5)
    )
    for want, stored in zip(wants, fetch(held, wants), strict=True):
        whole = globals()["data"](want.chunk) if want.chunk != 3 else bytes(FULL)
        numbers = range(NBLOCKS) if want.blocks is None else want.blocks
        found = decoded_blocks(stored, list(numbers))
        step = FULL // NBLOCKS
        assert found == b"".join(whole[n * step : (n + 1) * step] for n in numbers)


def test_a_small_frame_is_read_with_its_index_if_its_group_opens_it(frames, tmp_path):
    shutil.copytree(frames, tmp_path / "copy")
    path = tmp_path / "copy" / "contiguous"
    kept, other = (opened(tmp_path / "copy", "contiguous", with_contents=kept) for kept in (True, False))
    wants = [ChunkRequest(n, blocks) for n in range(NCHUNKS) for blocks in (None, (2, 5))]
    before = [bytes(stored.region) for stored in fetch(other, wants)]
    path.write_bytes(bytes(path.stat().st_size))
    assert [bytes(stored.region) for stored in fetch(kept, wants)] == before
    with pytest.raises((FormatError, ConflictError)):
        fetch(other, wants)


def test_a_frame_in_memory_is_checked_before_memory_is_allocated(frames):
    kept = opened(frames, "contiguous", with_contents=True)
    with pytest.raises(FormatError, match="expected"):
        kept.gather([Span("", 0, 2**44)], [0], 2**44)


@LAYOUTS
def test_the_error_for_a_chunk_of_another_size_names_the_chunk(frames, layout, tmp_path):
    shutil.copytree(frames, tmp_path / "copy")
    held = opened(tmp_path / "copy", layout)
    wrong = encode.special_chunk(b"\1\2\3\4", FULL // 2, typesize=4, blocksize=FULL // NBLOCKS)
    place = held.locate(4)
    path = tmp_path / "copy" / layout / place.name if place.name else tmp_path / "copy" / layout
    raw = bytearray(path.read_bytes())
    raw[place.start : place.start + len(wrong)] = wrong
    path.write_bytes(raw)
    for blocks in (None, (2,)):
        with pytest.raises(FormatError, match="chunk 4 of"):
            fetch(opened(tmp_path / "copy", layout), [ChunkRequest(4, blocks)])
    fetch(opened(tmp_path / "copy", layout), [ChunkRequest(5, None)])


def test_a_missing_file_is_named_and_others_are_read(frames, tmp_path):
    shutil.copytree(frames, tmp_path / "copy")
    held = opened(tmp_path / "copy", "sparse")
    (tmp_path / "copy" / "sparse" / held.locate(4).name).unlink()
    for blocks in (None, (2,)):
        with pytest.raises(ChunkMissingError, match=rf"chunk 4 of .*{held.locate(4).name}"):
            fetch(held, [ChunkRequest(0, None), ChunkRequest(4, blocks)])
    assert len(fetch(held, [ChunkRequest(0, None), ChunkRequest(5, (1,))])) == 2


@pytest.mark.parametrize("length", [0, 10, 40, 100])
def test_a_file_that_is_too_short_is_a_format_error(frames, tmp_path, length):
    shutil.copytree(frames, tmp_path / "copy")
    held = opened(tmp_path / "copy", "sparse")
    path = tmp_path / "copy" / "sparse" / held.locate(4).name
    path.write_bytes(path.read_bytes()[:length])
    for blocks in (None, (2,)):
        with pytest.raises(FormatError, match=rf"chunk 4 of|{held.locate(4).name}"):
            fetch(held, [ChunkRequest(4, blocks)])


def test_a_file_that_was_replaced_is_a_conflict(frames, tmp_path):
    shutil.copytree(frames, tmp_path / "copy")
    held = opened(tmp_path / "copy", "contiguous")
    held.store.close()
    shutil.copy(frames / "contiguous", tmp_path / "new")
    (tmp_path / "new").replace(tmp_path / "copy" / "contiguous")
    with pytest.raises(ConflictError, match="refresh"):
        fetch(held, [ChunkRequest(0, None)])


def test_a_special_chunk_among_chunks_of_different_sizes_is_refused_by_number():
    described = SimpleNamespace(chunk_nbytes=lambda n: None, metalayer=lambda name: None)
    source = SimpleNamespace(
        frame=described,
        url="a.b2frame",
        locate=lambda n: Special.NAN,
        locate_unchecked=lambda n: Special.NAN,
        staleness=lambda: None,
        is_local=True,
    )
    with pytest.raises(FormatError, match=r"^chunk 3 of a\.b2frame: expected a stored chunk .* found nan$"):
        fetch(source, [ChunkRequest(3, None)])


def test_an_index_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    array = b2array.zeros(40, "i4", url=tmp_path / "a.b2nd", chunks=10, layout="sparse")
    array.attrs["large"] = np.random.default_rng(0).bytes(2**17)  # more than is read at first
    reader, read, calls = b2array.open(tmp_path / "a.b2nd"), LocalStore.read, []

    def overtaken(store, *args, **kwargs):
        if store is reader._handle.store and not calls:
            calls.append(store)
            array[0] = 1
        return read(store, *args, **kwargs)

    monkeypatch.setattr(LocalStore, "read", overtaken)
    reader.refresh()
    assert (len(calls), reader[0]) == (1, 1)


class Overtaken(LocalStore):
    """A store in which something happens between the first object that is read and the second."""

    def head(self, names, nbytes, *, offset=0):
        (first,) = super().head(names[:1], nbytes, offset=offset)
        happen, self.happen = self.happen, lambda: None
        happen()
        return [first, *super().head(names[1:], nbytes, offset=offset)]


def test_a_file_that_replaces_a_directory_during_open_is_noticed(frames, tmp_path):
    shutil.copytree(frames, tmp_path / "copy")
    store = Overtaken(tmp_path / "copy" / "sparse")
    store.happen = lambda: LocalStore(tmp_path / "copy" / "contiguous").exchange(store, at_once=True)
    assert load(store).frame.frame_type == FrameType.CONTIGUOUS


@pytest.mark.parametrize("blocks", [None, (2,)])
def test_chunks_of_a_directory_that_a_file_has_replaced_are_a_conflict(frames, tmp_path, blocks):
    shutil.copytree(frames, tmp_path / "copy")
    held = opened(tmp_path / "copy", "sparse")
    LocalStore(tmp_path / "copy" / "contiguous").exchange(held.store, at_once=True)
    with pytest.raises(ConflictError, match=r"refresh|made again"):
        fetch(held, [ChunkRequest(4, blocks)])
