"""Kept states: every index comes back as it was, and small."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array import config
from b2array.catalog import owners
from b2array.errors import FormatError
from b2array.format import frame, index
from b2array.format.frame_header import FrameType
from b2array.format.ledger import DIGEST_NBYTES, Kept, pack_state, seal, unpack_state
from b2array.format.state import State
from b2array.store.memory import MemoryStore

LARGEST = 2**40


def state_of(entries: list[tuple[int, int, int]], frame_type: FrameType) -> State:
    """Return a state whose chunks have these places, sizes and checksums."""
    made = b2array.zeros((7 * len(entries),), "u1", chunks=(7,), blocks=(3,), attrs={"unit": "K"}, dims=("x",))
    held = owners.load(MemoryStore({"": made.to_bytes()})).state
    places, sizes, records = np.array(entries, np.int64).reshape(-1, 3).T
    all_sizes = held.sizes.copy()
    all_sizes[:, 0] = sizes
    moved = held.with_frame(offsets=places.copy(), frame_type=frame_type, cbytes=2 * LARGEST)
    return moved.with_tables(all_sizes, records.astype(np.uint32))


def unpacked(state: State) -> State:
    packed = pack_state(state, frame.pack_header(state.frame))
    return unpack_state(packed, Kept("x", 0.0, generation=bytes(16), digest=packed[-DIGEST_NBYTES:]))


places = st.one_of(st.sampled_from([*index.SPECIALS]), st.integers(0, 2**32 - 1))
chunks = st.tuples(places, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))


@settings(max_examples=examples(100))
@given(entries=st.lists(chunks, max_size=20), frame_type=st.sampled_from(FrameType))
def test_a_kept_state_comes_back_with_its_index_sizes_checksums_and_annotations(entries, frame_type):
    state = state_of(entries, frame_type)
    found = unpacked(state)
    assert found.frame.offsets.tolist() == state.frame.offsets.tolist() == [place for place, _, _ in entries]
    assert found.frame.frame_type == frame_type
    assert found.sizes[:, 0].tolist() == state.sizes[:, 0].tolist()
    assert found.records.tolist() == state.records.tolist()
    assert (found.layout, found.annotations.dims, found.attrs()) == (state.layout, ("x",), state.attrs())


def test_chunks_one_behind_the_other_take_hardly_any_room_in_a_kept_state():
    step = 500 + 16 + 4 * 3 + 4  # with the checksums of three blocks
    apart = [(n * step, 500, 0) for n in range(3000)]
    few = len(pack_state(state_of(apart[:30], FrameType.CONTIGUOUS), b""))
    assert len(pack_state(state_of(apart, FrameType.CONTIGUOUS), b"")) < few + 100


def test_an_index_that_does_not_fit_its_header_is_refused(monkeypatch):
    state = state_of([(0, 9, 1), (50, 9, 1)], FrameType.CONTIGUOUS)
    packed = pack_state(state, frame.pack_header(state.frame))
    content = msgpack.unpackb(packed[:-DIGEST_NBYTES])

    def read(**changes):
        changed = seal(msgpack.packb(content | changes))
        return unpack_state(changed, Kept("x", 0.0, generation=bytes(16), digest=changed[-DIGEST_NBYTES:]))

    assert read().frame.nchunks == 2
    counts = [{"nchunks": count} for count in (0, 1, 3, -1, True, 2**62)]
    for wrong in (*counts, {"index": b""}, {"index": b"x" * 9}):
        with pytest.raises(FormatError):
            read(**wrong)
    monkeypatch.setattr(config, "limits", replace(config.limits, index_nbytes=15))
    with pytest.raises(FormatError, match="index_nbytes"):
        read()
