"""What b2array notes beside the data survives, and gives way where there is no room or others wrote."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array.errors import LimitError
from b2array.format import annotations as notes
from b2array.format import b2nd, dtypes, frame, index, state
from b2array.format.annotations import Annotations
from b2array.format.frame_header import FrameType
from b2array.format.metalayers import MAX_LAYERS, MAX_OWN_LAYERS
from b2array.grid.layout import Layout


def plain(nchunks=3, chunksize=400, blocksize=100, **options):
    new = frame.create(
        b2array.CParams(), frame_type=FrameType.CONTIGUOUS, typesize=4, chunksize=chunksize, blocksize=blocksize
    )
    offsets = np.full(nchunks, index.special_offset(b2array.codec.chunk_header.Special.ZEROS))
    return replace(new, nbytes=nchunks * chunksize, offsets=offsets, **options)


def packed(described):
    """Give it the fingerprint that makes our notes count."""
    return frame.pack(described).frame


def noted(described, **values):
    layers = state.layers_with(described.vlmetalayers, Annotations(**values), "here")
    return replace(described, vlmetalayers=layers)


def annotations_of(described):
    return state.parse(described).annotations


def test_a_frame_without_notes_has_none():
    assert annotations_of(plain()) == Annotations()
    assert state.parse(plain()).attrs() == {}


def test_notes_are_found_again():
    found = annotations_of(replace(noted(plain(), next=7, lost=(1,)), fingerprint_type=frame.FINGERPRINT_128))
    assert (found.next, found.lost) == (7, (1,))


def test_after_other_software_wrote_nothing_is_known_to_be_lost():
    found = annotations_of(noted(plain(), next=7, lost=(1,)))
    assert (found.next, found.lost) == (7, ())


@pytest.mark.parametrize(
    "raw", [b"", b"not a chunk", frame.pack_vlmeta(b"not msgpack \xc1"), frame.pack_vlmeta(b"\x01")]
)
def test_notes_that_cannot_be_understood_are_none(raw):
    assert annotations_of(plain(vlmetalayers=(("b2array", raw),))) == Annotations()


@pytest.mark.parametrize(
    ("chunksize", "blocksize", "nchunks", "count"),
    [(400, 100, 3, 4), (400, 150, 3, 3), (400, 400, 3, 1), (400, 0, 3, 0), (0, 100, 0, 0), (4 * 2**20, 4, 5, 0)],
)
def test_blocks_are_counted_where_their_sizes_can_be_noted(chunksize, blocksize, nchunks, count):
    assert state.count_sized_blocks(plain(nchunks, chunksize, blocksize)) == count


def test_sizes_count_only_while_b2array_speaks_for_the_frame():
    sizes = np.arange(1, 16, dtype=np.uint32).reshape(3, 5)
    described = noted(plain(), sizes=notes.pack_fitting_sizes(sizes))
    assert state.parse(packed(described)).sizes.tolist() == sizes.tolist()
    assert not state.parse(described).sizes.any()


def test_sizes_of_whole_chunks_are_used_where_those_of_blocks_are_not_noted():
    sizes = np.array([[5], [6], [7]], np.uint32)
    described = packed(noted(plain(), sizes=notes.pack_sizes(sizes)))
    found = state.parse(described).sizes
    assert found[:, 0].tolist() == [5, 6, 7]
    assert not found[:, 1:].any()


def test_sizes_of_another_number_of_chunks_are_not_used():
    sizes = np.ones((2, 5), np.uint32)
    described = packed(noted(plain(), sizes=notes.pack_sizes(sizes)))
    assert not state.parse(described).sizes.any()


def test_no_sizes_take_no_room():
    assert notes.pack_fitting_sizes(np.zeros((9, 3), np.uint32)) is None


def test_of_sizes_that_take_too_much_room_those_of_chunks_are_kept():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 2**32, (2**14, 2**5), dtype=np.uint32)
    raw = notes.pack_fitting_sizes(sizes)
    assert notes.unpack_sizes(raw, len(sizes), 31) is None
    assert notes.unpack_sizes(raw, len(sizes), 0)[:, 0].tolist() == sizes[:, 0].tolist()


names = st.one_of(st.sampled_from("abc"), st.text(max_size=3), st.sampled_from(["b2array", "x" * 32, "ü" * 16, "a\0b"]))


@given(st.lists(st.tuples(names, st.one_of(st.none(), st.binary(max_size=9))), max_size=40))
@settings(deadline=None, max_examples=examples(60))
def test_attributes_are_a_mapping_wherever_they_are(changes):
    found, model = state.parse(plain()), {}
    for name, content in changes:
        found = found.with_attr(name, content)
        model.pop(name, None) if content is None else model.update({name: content})
        assert found.attrs() == model
        assert len(found.frame.vlmetalayers) < MAX_OWN_LAYERS
    layers = state.layers_with(found.frame.vlmetalayers, found.annotations, "here")
    again = state.parse(packed(replace(found.frame, vlmetalayers=layers)))
    assert again.attrs() == model
    assert sorted(again.attr_names) == sorted(model)


def test_attributes_overflow_when_twelve_have_metalayers():
    """With ours, they are 13 of 16: stock needs a few, and destroys a frame with more."""
    found = state.parse(plain())
    for n in range(20):
        found = found.with_attr(f"{n}", b"x")
    assert (len(found.frame.vlmetalayers), len(found.annotations.attrs)) == (12, 8)
    found = found.with_attr("3", None).with_attr("18", b"y")
    assert dict(found.annotations.attrs) == dict.fromkeys(("12", "13", "14", "15", "16", "17", "19"), b"x")
    assert found.attr("18") == b"y"


def full(count=MAX_LAYERS):
    return tuple((f"{n}", frame.pack_vlmeta(b"theirs")) for n in range(count))


def test_without_room_the_notes_stay_out_with_a_warning():
    with pytest.warns(UserWarning, match="16 variable-length metalayers: no room"):
        assert state.layers_with(full(), Annotations(next=3), "here") == full()


@pytest.mark.parametrize(
    ("stored", "found"),
    [("V2", "bfloat16"), ("<i2", "<i2"), ("<f2", "<f2"), ([("a", "u1"), ("b", "u1")], [("a", "u1"), ("b", "u1")])],
)
def test_the_type_that_the_notes_name_is_only_for_raw_items(stored, found):
    layout = Layout((6,), (2,), (2,), np.dtype(stored), dtypes.dtype_text(np.dtype(stored)))
    described = plain(chunksize=4, blocksize=4, metalayers=(("b2nd", b2nd.pack(layout)),))
    expected = np.dtype(ml_dtypes.bfloat16 if found == "bfloat16" else found)
    assert state.parse(noted(described, dtype="bfloat16")).require_layout().dtype == expected


def test_attributes_that_would_be_lost_are_an_error():
    with pytest.raises(LimitError, match="no room"):
        state.layers_with(full(), Annotations(attrs=(("a", b"x"),)), "here")


def test_notes_replace_those_that_were_there():
    once = state.layers_with(full(15), Annotations(next=3), "here")
    twice = state.layers_with(once, Annotations(next=4), "here")
    assert len(twice) == MAX_LAYERS
    assert annotations_of(plain(vlmetalayers=twice)).next == 4


def test_what_two_writers_noted_is_merged():
    base = Annotations(fill=b"0000", lost=(1, 2), next=5)
    merged = notes.merge(base, replace(base, lost=(2,)), replace(base, dims=("x",), next=9))
    assert merged == Annotations(fill=b"0000", lost=(2,), dims=("x",), next=9)
    assert notes.merge(base, replace(base, fill=b"1111"), replace(base, fill=b"2222")).fill == b"1111"


@pytest.mark.parametrize("limit", [0, 2**20])
def test_a_frame_without_its_index_gets_it_back(limit):
    sizes = np.arange(1, 16, dtype=np.uint32).reshape(3, 5)
    before = state.parse(packed(noted(plain(), next=3, sizes=notes.pack_fitting_sizes(sizes))))
    thin, index_chunk = before.without_index(limit)
    assert thin.nchunks == 0
    found = state.with_index(thin, index_chunk)
    assert found.frame.offsets.tolist() == before.frame.offsets.tolist()
    assert found.annotations.next == 3
    assert (found.annotations.sizes is None) == (limit == 0)
