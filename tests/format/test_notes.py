"""What b2array notes beside the data survives, and gives way where there is no room or others wrote."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import b2array
from b2array.errors import LimitError
from b2array.format import extras, frame, notes
from b2array.format.extras import Extras
from b2array.format.frame import FrameType
from b2array.format.metalayers import MAX_LAYERS


def plain(nchunks=3, chunksize=400, blocksize=100, **options):
    new = frame.create(
        b2array.CParams(), frame_type=FrameType.CONTIGUOUS, typesize=4, chunksize=chunksize, blocksize=blocksize
    )
    offsets = np.full(nchunks, frame.special_offset(b2array.codec.header.Special.ZEROS))
    return replace(new, nbytes=nchunks * chunksize, offsets=offsets, **options)


def packed(described):
    """Give it the fingerprint that makes our notes count."""
    return frame.pack(described).frame


def noted(described, **values):
    layers = notes.with_extras(described.vlmetalayers, Extras(**values), "here")
    return replace(described, vlmetalayers=layers)


def test_a_frame_without_notes_has_none():
    assert notes.extras_of(plain()) == Extras()
    assert notes.attrs(plain(), Extras()) == {}


def test_notes_are_found_again():
    found = notes.extras_of(replace(noted(plain(), next=7, lost=(1,)), fingerprint_type=frame.FINGERPRINT_128))
    assert (found.next, found.lost) == (7, (1,))


def test_after_other_software_wrote_nothing_is_known_to_be_lost():
    found = notes.extras_of(noted(plain(), next=7, lost=(1,)))
    assert (found.next, found.lost) == (7, ())


@pytest.mark.parametrize(
    "raw", [b"", b"not a chunk", frame.pack_vlmeta(b"not msgpack \xc1"), frame.pack_vlmeta(b"\x01")]
)
def test_notes_that_cannot_be_understood_are_none(raw):
    assert notes.extras_of(plain(vlmetalayers=(("b2array", raw),))) == Extras()


@pytest.mark.parametrize(
    ("chunksize", "blocksize", "nchunks", "count"),
    [(400, 100, 3, 4), (400, 150, 3, 3), (400, 400, 3, 1), (400, 0, 3, 0), (0, 100, 0, 0), (4 * 2**20, 4, 5, 0)],
)
def test_blocks_are_counted_where_their_sizes_can_be_noted(chunksize, blocksize, nchunks, count):
    assert notes.sized_blocks(plain(nchunks, chunksize, blocksize)) == count


def test_sizes_count_only_while_b2array_speaks_for_the_frame():
    sizes = np.arange(1, 16, dtype=np.uint32).reshape(3, 5)
    described = noted(plain(), sizes=notes.packed_sizes(sizes))
    extras_found = notes.extras_of(described)
    assert notes.sizes_of(packed(described), extras_found).tolist() == sizes.tolist()
    assert not notes.sizes_of(described, extras_found).any()


def test_sizes_of_whole_chunks_are_used_where_those_of_blocks_are_not_noted():
    sizes = np.array([[5], [6], [7]], np.uint32)
    described = packed(noted(plain(), sizes=extras.pack_sizes(sizes)))
    found = notes.sizes_of(described, notes.extras_of(described))
    assert found[:, 0].tolist() == [5, 6, 7]
    assert not found[:, 1:].any()


def test_sizes_of_another_number_of_chunks_are_not_used():
    sizes = np.ones((2, 5), np.uint32)
    described = packed(noted(plain(), sizes=extras.pack_sizes(sizes)))
    assert not notes.sizes_of(described, notes.extras_of(described)).any()


def test_no_sizes_take_no_room():
    assert notes.packed_sizes(np.zeros((9, 3), np.uint32)) is None


def test_of_sizes_that_take_too_much_room_those_of_chunks_are_kept():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 2**32, (2**14, 2**5), dtype=np.uint32)
    raw = notes.packed_sizes(sizes)
    assert extras.unpack_sizes(raw, len(sizes), 31) is None
    assert extras.unpack_sizes(raw, len(sizes), 0)[:, 0].tolist() == sizes[:, 0].tolist()


names = st.one_of(st.sampled_from("abc"), st.text(max_size=3), st.sampled_from(["b2array", "x" * 32, "ü" * 16, "a\0b"]))


@given(st.lists(st.tuples(names, st.one_of(st.none(), st.binary(max_size=9))), max_size=40))
@settings(deadline=None, max_examples=60)
def test_attributes_are_a_mapping_wherever_they_are(changes):
    described, found, model = plain(), Extras(), {}
    for name, content in changes:
        described, found = notes.with_attr(described, found, name, content)
        model.pop(name, None) if content is None else model.update({name: content})
        assert notes.attrs(described, found) == model
        assert len(described.vlmetalayers) < MAX_LAYERS
    again = packed(replace(described, vlmetalayers=notes.with_extras(described.vlmetalayers, found, "here")))
    assert notes.attrs(again, notes.extras_of(again)) == model


def test_attributes_overflow_when_fifteen_have_metalayers():
    described, found = plain(), Extras()
    for n in range(20):
        described, found = notes.with_attr(described, found, f"{n}", b"x")
    assert (len(described.vlmetalayers), len(found.attrs)) == (15, 5)
    described, found = notes.with_attr(described, found, "3", None)
    described, found = notes.with_attr(described, found, "18", b"y")
    assert dict(found.attrs) == dict.fromkeys(("15", "16", "17", "19"), b"x")
    assert notes.attrs(described, found)["18"] == b"y"


def full(count=MAX_LAYERS):
    return tuple((f"{n}", frame.pack_vlmeta(b"theirs")) for n in range(count))


def test_without_room_the_notes_stay_out_with_a_warning():
    with pytest.warns(UserWarning, match="16 variable-length metalayers: no room"):
        assert notes.with_extras(full(), Extras(next=3), "here") == full()


def test_attributes_that_would_be_lost_are_an_error():
    with pytest.raises(LimitError, match="no room"):
        notes.with_extras(full(), Extras(attrs=(("a", b"x"),)), "here")


def test_notes_replace_those_that_were_there():
    once = notes.with_extras(full(15), Extras(next=3), "here")
    twice = notes.with_extras(once, Extras(next=4), "here")
    assert len(twice) == MAX_LAYERS
    assert notes.extras_of(plain(vlmetalayers=twice)).next == 4


def test_what_two_writers_noted_is_merged():
    base = Extras(fill=b"0000", lost=(1, 2), next=5)
    merged = notes.merged(base, replace(base, lost=(2,)), replace(base, dims=("x",), next=9))
    assert merged == Extras(fill=b"0000", lost=(2,), dims=("x",), next=9)
    assert notes.merged(base, replace(base, fill=b"1111"), replace(base, fill=b"2222")).fill == b"1111"


@pytest.mark.parametrize("limit", [0, 2**20])
def test_a_thin_frame_is_restored(limit):
    sizes = np.arange(1, 16, dtype=np.uint32).reshape(3, 5)
    described = packed(noted(plain(), next=3, sizes=notes.packed_sizes(sizes)))
    thin, index = notes.thinned(described, limit)
    assert thin.nchunks == 0
    again = notes.restored(thin, index)
    assert again.offsets.tolist() == described.offsets.tolist()
    found = notes.extras_of(again)
    assert found.next == 3
    assert (found.sizes is None) == (limit == 0)
