"""Annotations and sizes of blocks: their laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import blosc2
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2array import config
from b2array.codec import chunk, encode
from b2array.codec.chunk_header import Special
from b2array.codec.cparams import CParams
from b2array.errors import FormatError, UnsupportedError
from b2array.format import annotations as notes
from b2array.format import attributes, frame
from b2array.format.annotations import Annotations, GroupCommit
from b2array.format.frame_header import unpack_header

GEOMETRY = {"itemsize": 4, "ndim": 2, "nchunks": 10}

# --- the metalayer -------------------------------------------------------------------------------------------------

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
plain = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
known = {
    "v",
    "identity",
    "fill",
    "dims",
    "dtype",
    "next",
    "attrs",
    "lost",
    "sizes",
    "cparams",
    "records",
    "commit",
    "header",
    "recent",
    "group",
    "forks_of",
    "kept",
    "floor",
}

all_annotations = st.builds(
    Annotations,
    fill=st.none() | st.binary(min_size=4, max_size=4),
    dims=st.none() | st.tuples(st.none() | st.text(), st.none() | st.text()),
    dtype=st.none() | st.text(),
    next=st.none() | st.integers(0, 2**32),
    floor=st.none() | st.integers(0, 2**32),
    attrs=st.dictionaries(st.text(), st.binary()).map(lambda attrs: tuple(attrs.items())),
    lost=st.lists(st.integers(0, 9), unique=True).map(tuple),
    sizes=st.none() | st.binary(),
    records=st.none() | st.binary(),
    commit=st.none() | st.binary(),
    header=st.none() | st.binary(),
    recent=st.binary(),
    group_commit=st.none() | st.builds(GroupCommit, st.text(), st.integers(0, 2**32), st.text()),
    forks_of=st.binary(),
    identity=st.none() | st.binary(min_size=1),
    unknown=st.dictionaries(st.text().filter(lambda key: key not in known) | st.integers(0, 9), plain).map(
        lambda unknown: tuple(unknown.items())
    ),
)


@given(all_annotations)
def test_annotations_survive_packing(made: Annotations) -> None:
    assert Annotations.unpack(made.pack(), **GEOMETRY) == made


def test_arrays_without_dimensions_have_dims_of_none() -> None:
    made = Annotations(dims=())
    assert Annotations.unpack(made.pack(), itemsize=1, ndim=0, nchunks=1) == made


def test_empty_annotations_say_only_their_version() -> None:
    assert msgpack.unpackb(Annotations().pack()) == {"v": 1}


@pytest.mark.parametrize(
    "entry",
    [
        {"fill": b"123"},
        {"fill": "1234"},
        {"dims": ["x"]},
        {"dims": ["x", 1]},
        {"dims": "xy"},
        {"dtype": 5},
        {"next": -1},
        {"next": 1.5},
        {"next": True},
        {"attrs": [1]},
        {"attrs": {"a": "text", 5: b""}},
        {"lost": 3},
        {"lost": [10, -1, "x", True]},
        {"sizes": [1]},
        {"records": [1]},
        {"identity": "text"},
        {"identity": b""},
        {"commit": "text"},
        {"header": 1},
        {"recent": [b"commit 1"]},
        {"group": "ab"},
        {"group": ["identity", 1]},
        {"group": ["identity", "1", "path"]},
        {"group": ["identity", True, "path"]},
        {"group": ["identity", 1, 2]},
        {"forks_of": "text"},
    ],
)
def test_what_does_not_fit_is_ignored(entry: dict) -> None:
    assert Annotations.unpack(msgpack.packb({"v": 1} | entry), **GEOMETRY) == Annotations()


def test_of_two_writers_the_list_of_commits_is_that_of_the_later_state() -> None:
    base = Annotations(commit=b"commit 1", recent=b"commit 1")
    ours = replace(base, group_commit=GroupCommit("group", 2, "path"))
    theirs = replace(base, commit=b"commit 2").with_commit_listed()
    merged = notes.merge(base, ours, theirs)
    assert merged == replace(theirs, group_commit=GroupCommit("group", 2, "path"))
    assert merged.lists(theirs)
    assert merged.lists(base)


def test_lost_chunks_that_exist_are_kept() -> None:
    assert Annotations.unpack(msgpack.packb({"v": 1, "lost": [3, 10, 9]}), **GEOMETRY).lost == (3, 9)


@pytest.mark.parametrize("layer", [None, 5, [], {}, {"v": 0}, {"v": "1"}, {"v": True}, {"fill": b"1234"}])
def test_a_metalayer_that_is_not_ours_is_ignored(layer: object) -> None:
    assert Annotations.unpack(msgpack.packb(layer), **GEOMETRY) == Annotations()


def test_a_later_version_is_foreign_and_cannot_be_written() -> None:
    found = Annotations.unpack(msgpack.packb({"v": 2, "fill": b"1234"}), **GEOMETRY)
    assert found == Annotations(foreign=True)
    with pytest.raises(UnsupportedError, match="later version"):
        found.pack()


@given(st.binary(max_size=100))
def test_random_bytes_are_no_error(raw: bytes) -> None:
    for prefix in (b"", b"\x82\xa1v\x01\xa4fill", b"\x82\xa1v\x01\xa1x"):
        found = Annotations.unpack(prefix + raw, **GEOMETRY)
        assert found.foreign or Annotations.unpack(found.pack(), **GEOMETRY) == found or "nan" in repr(found.unknown)


@pytest.mark.parametrize(
    "raw", [b"\xdd\xff\xff\xff\xff" * 20000, b"\x91" * 100000, b"\xdf\xff\xff\xff\xff", b"\x81\x90\x01"]
)
def test_claims_of_enormous_contents_are_no_error(raw: bytes) -> None:
    assert Annotations.unpack(b"\x82\xa1v\x01\xa1x" + raw, **GEOMETRY) == Annotations()
    with pytest.raises(FormatError):
        attributes.decode_attr(raw)


def test_stock_reads_the_metalayer_as_a_map() -> None:
    made = Annotations(fill=b"\0\0\x80\x3f", dims=("x", None), attrs=(("a" * 40, attributes.encode_attr((1, 2))),))
    store = blosc2.SChunk(chunksize=400)
    store.vlmeta["b2array"] = msgpack.unpackb(made.pack())
    header = unpack_header(store.to_cframe())
    found = frame.unpack(store.to_cframe(), store.to_cframe()[header.tail_start :])
    assert Annotations.unpack(frame.unpack_vlmeta(found.vlmetalayer(notes.LAYER)), **GEOMETRY) == made
    packed = frame.pack(replace(found, vlmetalayers=((notes.LAYER, frame.pack_vlmeta(made.pack())),)))
    again = blosc2.schunk_from_cframe(packed.header + packed.tail)
    assert again.vlmeta["b2array"] == store.vlmeta["b2array"]


# --- block sizes ---------------------------------------------------------------------------------------------------


def numbers(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, n, dtype="i4")


def made_chunk(**kwargs: Any) -> bytes:
    return encode.encode(numbers(3000).tobytes(), typesize=4, blocksize=1600, cparams=CParams(**kwargs))


@pytest.mark.parametrize("kwargs", [{}, {"codec": "lz4", "splitmode": "always"}, {"use_dict": True}])
def test_block_bounds_are_where_the_blocks_are(kwargs: dict) -> None:
    raw = made_chunk(**kwargs)
    head = chunk.unpack_head(raw)
    row = notes.sizes_row(head, 9)
    bounds = notes.block_bounds(row)
    np.testing.assert_array_equal(bounds[:-1], head.starts)
    np.testing.assert_array_equal(bounds[1:], head.stops)
    assert bounds[0] == chunk.head_nbytes(raw)
    assert row[0] == len(raw)


@pytest.mark.parametrize(
    "raw",
    [
        encode.encode(numbers(3000).tobytes(), typesize=4, blocksize=1600, cparams=CParams(clevel=0)),
        encode.special_chunk(b"1234", 12000, typesize=4),
        encode.encode(b""),
        made_chunk()[:32] + made_chunk()[36:40] + made_chunk()[32:36] + made_chunk()[40:],
    ],
    ids=["raw", "special", "empty", "out of order"],
)
def test_other_chunks_have_no_block_bounds(raw: bytes) -> None:
    row = notes.sizes_row(chunk.unpack_head(raw), 9)
    assert row[0] == len(raw)
    assert not row[1:].any()
    assert notes.block_bounds(row) is None


def test_rows_that_cannot_be_sizes_have_no_bounds() -> None:
    for row in ([100], [100, 100], [65, 30], [10, 2**32 - 1], [0, 0]):
        assert notes.block_bounds(np.array(row, np.uint32)) is None


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 2**32))
def test_sizes_survive_packing(nchunks: int, nblocks: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 2**32, (nchunks, 1 + nblocks), np.uint32)
    packed = notes.pack_sizes(rows)
    np.testing.assert_array_equal(notes.unpack_sizes(packed, nchunks, nblocks), rows)
    assert notes.unpack_sizes(packed, nchunks + 1, nblocks) is None
    assert notes.unpack_sizes(packed[:-1], nchunks, nblocks) is None
    assert notes.unpack_sizes(packed + b"\0", nchunks, nblocks) is None


def test_sizes_that_get_large_are_left_out() -> None:
    rows = np.random.default_rng(0).integers(0, 2**32, (2**10, 2**8 + 1), np.uint32)
    assert notes.pack_sizes(rows) is None
    assert notes.pack_sizes(rows[:-20]) is not None
    assert notes.pack_sizes(np.zeros((2**15, 2**9), np.uint32)) is not None
    assert notes.pack_sizes(np.broadcast_to(np.uint32(0), (2**20, 2**10))) is None


def test_enormous_sizes_are_not_decoded() -> None:
    huge = encode.special_chunk(Special.ZEROS, 2**30, typesize=4)
    assert notes.unpack_sizes(huge, 2**18, 2**10 - 1) is None
    allowed = encode.special_chunk(Special.ZEROS, 2**20, typesize=4)
    with config.using(limits=config.Limits(metadata_nbytes=2**20 - 1)):
        assert notes.unpack_sizes(allowed, 2**8, 2**10 - 1) is None
    with config.using(limits=config.Limits(metadata_nbytes=2**20)):
        assert notes.unpack_sizes(allowed, 2**8, 2**10 - 1).shape == (2**8, 2**10)


@given(st.binary(max_size=100))
def test_random_bytes_are_no_sizes(raw: bytes) -> None:
    assert notes.unpack_sizes(raw, 3, 4) is None
