"""Inserting, updating, deleting and reordering chunks is what it is for a list, and sizes follow."""

from __future__ import annotations

import blosc2
import numpy as np
import pytest
from chunks import vl_chunk
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array.codec import encode
from b2array.codec.chunk_header import NAN_BYTES, Special
from b2array.commit import edits
from b2array.errors import FormatError, UnsupportedError

FULL = 400


def ramp(n, length=100):
    return np.arange(n * 1000, n * 1000 + length, dtype="i4").tobytes()


def packed(data):
    return encode.encode(data, typesize=4, blocksize=80)


def made(*datas, **options):
    held = b2array.create_schunk(**{"chunksize": FULL, "typesize": 4} | options)
    for data in datas:
        held.append_data(data)
    return held


def contents(held):
    return [held.decompress_chunk(n) for n in range(held.nchunks)]


# --- what can be a chunk of a frame -----------------------------------------------------------------------------------


def test_the_header_of_a_valid_chunk_is_returned():
    assert edits.check_chunk(packed(ramp(0))).nbytes == FULL


@pytest.mark.parametrize(
    ("buf", "error", "match"),
    [
        (b"", FormatError, None),
        (b"\0" * 100, FormatError, None),
        (packed(ramp(0))[:50], FormatError, None),
        (packed(ramp(0)) + b"more", ValueError, "were given"),
        (packed(b""), ValueError, "at least one byte"),
        (blosc2.compress2(b"", typesize=1), ValueError, "at least one byte"),
        (b"\x02\x01\x02\x01" + b"\4\0\0\0" * 2 + b"\x14\0\0\0" + b"data", ValueError, "32 bytes or more"),
    ],
)
def test_chunks_that_a_frame_cannot_store_are_refused(buf, error, match):
    with pytest.raises(error, match=match):
        edits.check_chunk(buf)
    held = made(ramp(0))
    for change in (
        held.append_chunk,
        lambda chunk: held.insert_chunk(0, chunk),
        lambda chunk: held.update_chunk(0, chunk),
    ):
        with pytest.raises(error):
            change(buf)
    assert contents(held) == [ramp(0)]


def test_a_lazy_chunk_is_refused(tmp_path):
    held = made(ramp(0), url=tmp_path / "a.b2frame")
    with pytest.raises(ValueError, match="lazy"):
        held.append_chunk(held.lazy_chunk(0))


@given(st.data())
@settings(max_examples=examples(50), deadline=None)
def test_damaged_chunks_are_stored_or_raise_an_error_of_the_format(data):
    buf = bytearray(packed(ramp(0)))
    for _ in range(data.draw(st.integers(1, 4))):
        buf[data.draw(st.integers(0, min(60, len(buf) - 1)))] = data.draw(st.integers(0, 255))
    try:
        edits.check_chunk(bytes(buf))
    except (FormatError, UnsupportedError, ValueError):
        return


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "n", "length", "fixed"),
    [
        ([], 0, 100, True),
        ([], 0, 30, True),
        ([], 0, 101, False),
        ([100, 100], 2, 30, True),
        ([100, 100], 1, 30, False),
        ([100, 100], 0, 100, True),
        ([100, 30], 2, 100, False),
        ([100, 30], 2, 30, False),
        ([100, 30], 1, 100, True),
        ([100, 30], 1, 30, False),
    ],
)
def test_chunks_have_one_size_as_long_as_only_the_last_is_shorter(lengths, n, length, fixed):
    datas = [ramp(k, m) for k, m in enumerate(lengths)]
    held = made(*datas)
    held.insert_data(n, ramp(9, length))
    datas.insert(n, ramp(9, length))
    assert held.chunksize == (FULL if fixed else 0)
    assert contents(held) == datas
    assert held.nbytes == sum(map(len, datas))


@pytest.mark.parametrize(("n", "length", "fixed"), [(1, 30, True), (1, 100, True), (0, 30, False), (1, 101, False)])
def test_an_update_of_another_size_keeps_one_chunk_size_if_possible(n, length, fixed):
    held = made(ramp(0), ramp(1, 50))
    held.update_data(n, ramp(9, length))
    assert held.chunksize == (FULL if fixed else 0)
    expected = [ramp(0), ramp(1, 50)]
    expected[n] = ramp(9, length)
    assert contents(held) == expected
    assert held.nbytes == sum(map(len, expected))


@pytest.mark.parametrize(("order", "fixed"), [([1, 0, 2], True), ([2, 1, 0], False)])
def test_a_short_chunk_before_the_last_makes_chunk_sizes_variable(order, fixed):
    datas = [ramp(0), ramp(1), ramp(2, 5)]
    held = made(*datas)
    held.reorder(order)
    assert held.chunksize == (FULL if fixed else 0)
    assert contents(held) == [datas[n] for n in order]


def test_deleting_a_chunk_reduces_the_size_of_the_frame():
    held = made(ramp(0), ramp(1), ramp(2, 5))
    held.delete_chunk(2)
    assert (held.nbytes, held.chunksize) == (800, FULL)
    held.delete_chunk(0)
    held.delete_chunk(0)
    assert (held.nbytes, held.nchunks) == (0, 0)
    held.append_data(ramp(3))
    assert contents(held) == [ramp(3)]


def test_special_chunks_are_stored_if_chunk_sizes_vary(tmp_path):
    held = made(bytes(FULL), ramp(1), url=tmp_path / "a.b2frame")
    held.append_chunk(encode.special_chunk(Special.NAN, FULL, typesize=4))
    assert (held.frame.offsets < 0).sum() == 2
    held.insert_data(1, ramp(2, 3))
    assert held.chunksize == 0
    assert (held.frame.offsets >= 0).all()
    held.append_data(bytes(77 * 4))
    expected = [bytes(FULL), ramp(2, 3), ramp(1), NAN_BYTES[4] * 100, bytes(77 * 4)]
    assert contents(held) == contents(blosc2.open(str(tmp_path / "a.b2frame"))) == expected
    assert edits.chunk_sizes(held._handle.source, range(5)) == [400, 12, 400, 400, 308]


@pytest.mark.parametrize("order", [[], [0, 1], [0, 1, 1], [0, 1, 3], [-1, 0, 1], [0, 1, 2, 3]])
def test_an_order_names_every_chunk_once(order):
    held = made(ramp(0), ramp(1), ramp(2))
    with pytest.raises(ValueError, match="each of 3 chunks once"):
        held.reorder(order)


@pytest.mark.parametrize("order", [[1.0, 0.0], [True, False], [[1, 0]], "10", None])
def test_an_order_is_a_sequence_of_integers(order):
    held = made(ramp(0), ramp(1))
    with pytest.raises(TypeError, match="sequence of integers"):
        held.reorder(order)


def test_blocks_of_variable_length_and_others_are_not_mixed():
    vl = vl_chunk([b"one", b"three"])
    held = made(ramp(0))
    with pytest.raises(ValueError, match="blocks of one length, not blocks of variable length"):
        held.append_chunk(vl)
    with pytest.raises(ValueError, match="blocks of one length"):
        held.update_chunk(0, vl)
    other = made(typesize=1, chunksize=0)
    other.append_chunk(vl)
    assert other.frame.vl_blocks
    assert other.decompress_chunk(0) == b"onethree"
    with pytest.raises(ValueError, match="variable length, not blocks of one length"):
        other.append_data(b"plain")


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
@given(st.data())
@settings(max_examples=examples(10), deadline=None)
def test_edits_equal_edits_of_a_list(layout, data):
    held, model = made(layout=layout), []
    with held.transaction():
        for n in range(data.draw(st.integers(1, 10))):
            content = data.draw(st.sampled_from([ramp(n), ramp(n), ramp(n, 7), bytes(FULL), bytes(8)]))
            verb = data.draw(st.sampled_from(["insert", "update", "delete", "reorder"] if model else ["insert"]))
            at = data.draw(st.integers(0, len(model) - (verb != "insert")))
            if verb == "insert":
                model.insert(at, content)
                held.insert_data(at, content)
            elif verb == "update":
                model[at] = content
                held.update_data(at, content)
            elif verb == "delete":
                del model[at]
                held.delete_chunk(at)
            else:
                order = data.draw(st.permutations(range(len(model))))
                model = [model[k] for k in order]
                held.reorder(order)
            assert contents(held) == model
            assert held.nbytes == sum(map(len, model))
    held.refresh()
    assert contents(held) == model


@pytest.mark.parametrize("nbytes", [-1, 2**63])
def test_sizes_too_large_for_the_header_are_refused(nbytes):
    handle = b2array.create_schunk(chunksize=100)._handle
    attempt = next(handle.attempts())
    with pytest.raises(FormatError, match=f"bytes together, found {nbytes}"), attempt as draft:
        draft.reindex(np.arange(0), nbytes=nbytes)
