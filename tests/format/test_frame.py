"""Frames against stock Blosc2 in both directions, and against damage."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lengths import Sampled

import b2array
from b2array import config
from b2array.codec import decode, encode
from b2array.codec.chunk_header import ChunkHeader, Special
from b2array.codec.cparams import CParams
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.format import b2nd, fingerprint, frame, index
from b2array.format.frame import Frame
from b2array.format.frame_header import FrameType, header_nbytes, unpack_header
from b2array.grid.layout import Layout

REFUSED = (FormatError, UnsupportedError)
PLAIN = {"typesize": 4, "nthreads": 1}


def read(raw: bytes) -> Frame:
    header = unpack_header(raw)
    return frame.unpack(raw[: header.header_len], raw[header.tail_start : header.frame_len])


# --- what stock writes ---------------------------------------------------------------------------------------------


def schunk(*parts: np.ndarray, **kwargs: object) -> blosc2.SChunk:
    made = blosc2.SChunk(**({"chunksize": 400, "cparams": PLAIN} | kwargs))
    for part in parts:
        made.append_data(part)
    return made


def items(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, n, dtype="i4")


def with_vlmeta(count: int) -> blosc2.SChunk:
    made = schunk(items(100), items(30))
    for n in range(count):
        made.vlmeta[f"name {n}"] = list(range(n * n))
    return made


def with_specials() -> blosc2.SChunk:
    made = schunk(items(100))
    for special in (blosc2.SpecialValue.ZERO, blosc2.SpecialValue.NAN, blosc2.SpecialValue.UNINIT):
        one = blosc2.SChunk(chunksize=400, cparams=PLAIN)
        one.fill_special(100, special)
        made.append_chunk(one.get_chunk(0))
    made.append_data(items(100, 1))
    made.append_data(np.zeros(17, "i4"))
    return made


def with_vl_blocks(*batches: list[bytes]) -> blosc2.SChunk:
    made = blosc2.BatchArray()
    for batch in batches:
        made.append(batch)
    return made.schunk


def with_codec() -> blosc2.SChunk:
    cparams = {
        "typesize": 4,
        "codec": blosc2.Codec.LZ4HC,
        "clevel": 9,
        "use_dict": True,
        "nthreads": 3,
        "filters": [blosc2.Filter.BITSHUFFLE, blosc2.Filter.TRUNC_PREC],
        "filters_meta": [0, -3],
        "splitmode": blosc2.SplitMode.FORWARD_COMPAT_SPLIT,
        "blocksize": 80,
    }
    return schunk(items(100), cparams=cparams)


SCHUNKS: dict[str, Callable[[], blosc2.SChunk]] = {
    "empty": schunk,
    "one chunk": lambda: schunk(items(100)),
    "short last chunk": lambda: schunk(items(100), items(100, 1), items(7)),
    "many chunks": lambda: schunk(*(items(100, seed) for seed in range(300))),
    "specials": with_specials,
    "zeros only": lambda: schunk(*(np.zeros(100, "i4") for _ in range(5))),
    "variable size": lambda: schunk(items(100), items(10), items(200)),
    "VL blocks": lambda: with_vl_blocks([b"abc", b"d" * 1000], [b"q"]),
    "VL blocks, variable size": lambda: with_vl_blocks([b"q"], [b"abc", b"d" * 1000], [b"x"]),
    "metalayers": lambda: schunk(items(100), meta={"a": 1, "b" * 31: [1, "x"], "c": b"\0" * 70000}),
    "16 metalayers": lambda: schunk(items(3), meta={f"{n:031}": n for n in range(16)}),
    "one vlmetalayer": lambda: with_vlmeta(1),
    "16 vlmetalayers": lambda: with_vlmeta(16),
    "codec": with_codec,
    "typesize 255": lambda: schunk(np.zeros(3, "V255"), items(60), chunksize=765, cparams={"typesize": 255}),
}
ARRAYS: dict[str, Callable[[], blosc2.NDArray]] = {
    "0-d": lambda: blosc2.asarray(np.float64(3)),
    "no items": lambda: blosc2.zeros((0,), dtype="f8"),
    "no items, 2-d": lambda: blosc2.zeros((0, 5), dtype="f8"),
    "no items, resizable": lambda: blosc2.zeros((0, 5), dtype="f8", chunks=(3, 5), blocks=(2, 2)),
    "zeros": lambda: blosc2.zeros((100, 100), dtype="f4", chunks=(10, 10), blocks=(5, 5)),
    "full": lambda: blosc2.full((10, 10), 3.5, chunks=(5, 5), blocks=(5, 5)),
    "3-d": lambda: blosc2.asarray(items(1000).reshape(10, 10, 10), chunks=(4, 5, 6), blocks=(2, 5, 3)),
    "text": lambda: blosc2.asarray(np.array(["ab", "cde"])),
}
MADE = SCHUNKS | ARRAYS


@pytest.fixture(scope="module")
def stock() -> dict[str, tuple[blosc2.SChunk, bytes]]:
    made = {}
    for name, make in MADE.items():
        store = make()
        made[name] = (store, store.to_cframe())
    return made


def underlying(store: object) -> blosc2.SChunk:
    return store.schunk if isinstance(store, blosc2.NDArray) else store


@pytest.mark.parametrize("name", MADE)
def test_every_field_is_what_stock_reports(name: str, stock: dict) -> None:
    _, raw = stock[name]
    # Only a frame that was opened reports what its header says; the one that was made knows less.
    expected, found = blosc2.schunk_from_cframe(raw), read(raw)
    cparams = expected.cparams
    assert found.frame_type == FrameType.CONTIGUOUS
    assert found.frame_len == len(raw)
    assert found.nchunks == expected.nchunks
    assert (found.nbytes, found.typesize, found.blocksize) == (expected.nbytes, expected.typesize, expected.blocksize)
    assert max(found.chunksize, 0) == max(expected.chunksize, 0)
    assert (found.codec, found.clevel, found.codec_meta) == (cparams.codec.value, cparams.clevel, cparams.codec_meta)
    assert list(found.filters) == [f.value for f in cparams.filters]
    assert list(found.filters_meta) == [meta & 0xFF for meta in cparams.filters_meta]
    assert found.use_dict == cparams.use_dict
    assert found.other_flags == cparams.splitmode.value - 1
    assert found.variable_chunks == bool(raw[0x19] & 0x40)
    assert found.vl_blocks == bool(raw[0x19] & 0x80)
    assert found.format_version == raw[0x19] & 0x0F
    assert (found.trailer_version, found.fingerprint_type, found.fingerprint) == (1, 0, bytes(16))
    assert [n for n, _ in found.metalayers] == list(expected.meta)
    assert [n for n, _ in found.vlmetalayers] == list(expected.vlmeta.getall())
    for layer, content in found.metalayers:
        assert blosc2.msgpack_utils.msgpack_unpackb(content) == expected.meta[layer] or layer == "b2nd"


@pytest.mark.parametrize("name", MADE)
def test_every_chunk_is_found(name: str, stock: dict) -> None:
    store, raw = stock[name]
    expected, found = underlying(store), read(raw)
    for n in range(found.nchunks):
        place = found.entry(n)
        stored = expected.get_chunk(n)
        header = ChunkHeader.unpack(stored)
        assert found.chunk_nbytes(n) == (None if found.variable_chunks else header.nbytes)
        if isinstance(place, Special):
            assert place == header.special
        else:
            start = found.header_len + place
            assert raw[start : start + header.cbytes] == stored
            assert 0 <= place <= found.cbytes - header.cbytes
    with pytest.raises(IndexError):
        found.entry(found.nchunks)
    with pytest.raises(IndexError):
        found.chunk_nbytes(-1)


@pytest.mark.parametrize("name", ["one vlmetalayer", "16 vlmetalayers"])
def test_vlmetalayers_are_those_of_stock(name: str, stock: dict) -> None:
    store, raw = stock[name]
    found = read(raw)
    for layer, stored in found.vlmetalayers:
        value = frame.unpack_vlmeta(stored)
        assert blosc2.msgpack_utils.msgpack_unpackb(value) == store.vlmeta[layer]
        assert found.vlmetalayer(layer) == stored
    assert found.vlmetalayer("absent") is None


def test_the_metalayer_of_an_array_is_found(stock: dict) -> None:
    _, raw = stock["3-d"]
    found = read(raw)
    layout = b2nd.unpack(found.metalayer("b2nd"), chunksize=found.chunksize)
    assert (layout.shape, layout.chunks, layout.blocks, layout.dtype) == ((10, 10, 10), (4, 5, 6), (2, 5, 3), "<i4")
    assert found.metalayer("caterva") is None


def test_items_beyond_255_bytes_keep_their_size(tmp_path: Path) -> None:
    blosc2.asarray(np.array([b"x" * 300] * 3), urlpath=str(tmp_path / "a.b2nd"))
    assert read((tmp_path / "a.b2nd").read_bytes()).typesize == 300


def test_an_index_of_one_value_takes_no_memory(tmp_path: Path) -> None:
    path = str(tmp_path / "zeros.b2nd")
    blosc2.zeros((2**32,), dtype="f8", chunks=(2**16,), blocks=(2**12,), urlpath=path)
    found = read(Path(path).read_bytes())
    assert found.nchunks == 2**16
    assert found.offsets.strides == (0,)
    assert found.entry(2**16 - 1) is Special.ZEROS
    assert len(frame.pack(found).tail) < 100


def test_a_frame_with_dead_space_and_reordered_chunks_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.b2f"
    store = schunk(*(items(100, seed) for seed in range(9)), urlpath=str(path), contiguous=True)
    store.insert_data(3, items(100, 20), copy=True)
    store.delete_chunk(5)
    store.reorder_offsets(np.array([8, 0, 1, 2, 7, 3, 4, 6, 5]))
    raw = path.read_bytes()
    found = read(raw)
    assert found.nchunks == 9
    for n in range(9):
        start = found.header_len + found.entry(n)
        assert bytes(decode.decode(raw[start:])) == store.decompress_chunk(n)
    for _ in range(9):
        store.delete_chunk(0)
    assert read(path.read_bytes()).nchunks == 0


def test_a_sparse_frame_of_stock_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.b2f"
    store = schunk(items(100), np.zeros(100, "i4"), items(100, 2), urlpath=str(path), contiguous=False)
    store.insert_data(1, items(100, 3), copy=True)
    found = read((path / "chunks.b2frame").read_bytes())
    assert found.frame_type == FrameType.SPARSE
    assert found.frame_len == (path / "chunks.b2frame").stat().st_size
    assert found.nchunks == 4
    assert found.entry(2) is Special.ZEROS
    for n in (0, 1, 3):
        raw = (path / index.chunk_name(found.entry(n))).read_bytes()
        assert bytes(decode.decode(raw)) == store.decompress_chunk(n)


# --- what stock reads ----------------------------------------------------------------------------------------------

CHUNKS = [items(100, 1), items(100, 2), np.zeros(100, "i4"), items(100, 3)]


def encoded(data: np.ndarray) -> bytes:
    return blosc2.compress2(data, typesize=4, nthreads=1)


def contiguous(**changes: object) -> tuple[frame.Packed, bytes]:
    """A frame of CHUNKS with dead space in front of, between and behind the chunks, and its file."""
    data, offsets = b"dead" * 5, []
    for values in CHUNKS:
        if not values.any():
            offsets.append(index.special_offset(Special.ZEROS))
            continue
        offsets.append(len(data))
        data += encoded(values) + b"beef"
    made = frame.create(
        CParams("lz4", clevel=3),
        frame_type=FrameType.CONTIGUOUS,
        typesize=4,
        chunksize=400,
        metalayers=[("m", b"\x2a")],
    )
    made = replace(
        made,
        nbytes=1600,
        cbytes=len(data),
        offsets=np.array(offsets),
        vlmetalayers=(
            ("v", frame.pack_vlmeta(b"\x93\x01\x02\x03")),
            ("w", frame.pack_vlmeta(b"\xc5\x10\x00" + bytes(4096))),
        ),
    )
    packed = frame.pack(replace(made, **changes))
    return packed, packed.header + data + packed.tail


def test_stock_reads_a_contiguous_frame_of_ours(tmp_path: Path) -> None:
    packed, raw = contiguous()
    assert packed.frame.frame_len == len(raw)
    (tmp_path / "a.b2f").write_bytes(raw)
    for store in (blosc2.schunk_from_cframe(raw), blosc2.open(str(tmp_path / "a.b2f"), mode="r")):
        assert store.nchunks == 4
        assert b"".join(store.decompress_chunk(n) for n in range(4)) == np.concatenate(CHUNKS).tobytes()
        assert store[310:330] == np.concatenate(CHUNKS)[310:330].tobytes()
        assert store.meta["m"] == 42
        assert store.vlmeta["v"] == [1, 2, 3]
        assert store.vlmeta["w"] == bytes(4096)
        assert (store.cparams.codec, store.cparams.clevel) == (blosc2.Codec.LZ4, 3)
        assert (store.typesize, store.chunksize, store.nbytes) == (4, 400, 1600)


def test_stock_reads_a_sparse_frame_of_ours(tmp_path: Path) -> None:
    offsets = np.array([7, 0x1F, index.SPECIAL_OFFSETS[Special.ZEROS], 3])
    path = tmp_path / "a.b2f"
    path.mkdir()
    size = 0
    for values, number in zip(CHUNKS, offsets, strict=True):
        if number >= 0:
            size += (path / index.chunk_name(number)).write_bytes(encoded(values))
    made = frame.create(CParams(), frame_type=FrameType.SPARSE, typesize=4, chunksize=400)
    made = replace(made, nbytes=1600, cbytes=index.sparse_cbytes(size, offsets), offsets=offsets)
    packed = frame.pack(made)
    (path / "chunks.b2frame").write_bytes(packed.header + packed.tail)
    assert packed.frame.cbytes == size + 0x1F + 32
    assert packed.frame.frame_len == len(packed.header + packed.tail)
    store = blosc2.open(str(path), mode="a")
    assert b"".join(store.decompress_chunk(n) for n in range(4)) == np.concatenate(CHUNKS).tobytes()
    assert store.append_data(items(100, 9)) == 5
    found = read((path / "chunks.b2frame").read_bytes())
    assert [found.entry(n) for n in range(5)] == [7, 0x1F, Special.ZEROS, 3, 0x20]


def test_stock_reads_an_array_of_ours() -> None:
    values = items(40).reshape(8, 5)
    layout = Layout((8, 5), (4, 5), (4, 5), values.dtype, "<i4")
    data = [encoded(values[:4].copy()), encoded(values[4:].copy())]
    made = frame.create(
        CParams(),
        frame_type=FrameType.CONTIGUOUS,
        typesize=4,
        chunksize=layout.chunk_nbytes,
        blocksize=layout.block_nbytes,
        metalayers=[("other", b"\xc0"), ("b2nd", b2nd.pack(layout))],
    )
    offsets = np.array([0, len(data[0])])
    packed = frame.pack(replace(made, nbytes=layout.nbytes, cbytes=len(b"".join(data)), offsets=offsets))
    array = blosc2.ndarray_from_cframe(packed.header + b"".join(data) + packed.tail)
    np.testing.assert_array_equal(array[:], values)
    assert (array.chunks, array.blocks) == ((4, 5), (4, 5))
    assert [name for name, _ in packed.frame.metalayers] == ["b2nd", "other"]
    assert packed.header.index(b2nd.pack(layout)) + len(b2nd.pack(layout)) <= 512


@pytest.mark.parametrize("shape", [(0,), (0, 5)])
def test_stock_reads_an_array_without_items_of_ours(shape: tuple) -> None:
    layout = Layout(shape, shape, shape, np.dtype("f8"), "<f8")
    made = frame.create(
        CParams(), frame_type=FrameType.CONTIGUOUS, typesize=8, chunksize=0, metalayers=[("b2nd", b2nd.pack(layout))]
    )
    packed = frame.pack(made)
    assert packed.header[0x19] == 0x53
    array = blosc2.ndarray_from_cframe(packed.header + packed.tail)
    assert array.shape == shape
    assert array[:].shape == shape


def test_stock_keeps_our_fingerprint_until_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.b2f"
    packed, raw = contiguous()
    path.write_bytes(raw)
    store = blosc2.open(str(path), mode="a")
    store.decompress_chunk(0)
    assert path.read_bytes() == raw
    store.vlmeta["v"] = 5
    found = read(path.read_bytes())
    assert (found.fingerprint_type, found.nchunks) == (0, 4)
    assert packed.frame.fingerprint_type == 3


@pytest.mark.parametrize("name", [name for name in MADE if name not in ("specials", "zeros only")])
def test_packing_what_stock_wrote_gives_its_bytes(name: str, stock: dict) -> None:
    # Only our index is compressed a little differently, and our trailer has a fingerprint.
    _, raw = stock[name]
    found = read(raw)
    packed = frame.pack(found)
    header_len, zeroed = found.header_len, slice(0x10, 0x18)
    expected, header = bytearray(raw[:header_len]), bytearray(packed.header)
    expected[zeroed] = header[zeroed] = bytes(8)
    assert header == expected
    (trailer_len,) = struct.unpack(">I", raw[-22:-18])
    assert packed.tail[-trailer_len:-17] == raw[-trailer_len:-17]
    back = read(packed.header + raw[header_len : found.tail_start] + packed.tail)
    for field in fields(Frame):
        if field.name not in ("offsets", "frame_len", "fingerprint", "fingerprint_type", "is_ours"):
            assert getattr(back, field.name) == getattr(found, field.name), field.name
    np.testing.assert_array_equal(back.offsets, found.offsets)


def test_the_index_is_made_as_stock_makes_it() -> None:
    found = frame.pack(read(schunk(*[items(100)] * 2500).to_cframe()))
    header = ChunkHeader.unpack(found.tail)
    assert (header.typesize, header.blocksize, header.filters) == (8, 16384, (0, 0, 0, 0, 0, 1))
    assert header.codec_format == 0
    assert header.nstreams == 1
    assert blosc2.decompress2(found.tail[: header.cbytes]) == found.frame.offsets.tobytes()


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(FrameType))
    nchunks = draw(st.integers(0, 40))
    variable = draw(st.booleans())
    chunksize = 0 if variable else draw(st.integers(1, 2**31 - 33))
    short = draw(st.integers(0, chunksize - 1)) if chunksize else 0
    highest = 2**32 - 1 if kind == FrameType.SPARSE else 2**40
    places = st.integers(0, highest) | (
        st.nothing() if variable else st.sampled_from(list(index.SPECIAL_OFFSETS.values()))
    )
    offsets = np.array(draw(st.lists(places, min_size=nchunks, max_size=nchunks)), np.int64)
    names = st.lists(
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=7), max_size=16, unique=True
    )
    byte = st.integers(0, 255)
    slots = st.tuples(*[byte] * 6)
    return Frame(
        frame_type=kind,
        typesize=draw(st.integers(1, 2**31 - 1)),
        chunksize=chunksize,
        blocksize=draw(st.integers(0, 2**31 - 1)),
        nbytes=nchunks * (chunksize or 7) - (short if nchunks else 0),
        cbytes=(int(offsets.max()) if nchunks else 0) + 32 + draw(st.integers(0, 2**40)) if nchunks else 0,
        codec=draw(byte),
        clevel=draw(st.integers(0, 15)),
        codec_meta=draw(byte),
        filters=draw(slots),
        filters_meta=draw(slots),
        use_dict=draw(st.booleans()),
        other_flags=draw(byte),
        nthreads_compress=draw(st.integers(-(2**15), 2**15 - 1)),
        nthreads_decompress=draw(st.integers(-(2**15), 2**15 - 1)),
        vl_blocks=draw(st.booleans()),
        metalayers=tuple((name, draw(st.binary(max_size=30))) for name in draw(names)),
        offsets=offsets,
        vlmetalayers=tuple((name, draw(st.binary(max_size=30))) for name in draw(names)),
    )


@given(frames())
def test_a_frame_survives_packing(made: Frame) -> None:
    if (made.offsets < 0).all():
        made = replace(made, cbytes=abs(made.cbytes) if made.nchunks else 0)
    packed = frame.pack(made)
    header = unpack_header(packed.header + b"chunks")
    assert header.frame_len - header.tail_start == len(packed.tail)
    back = frame.unpack(packed.header, packed.tail + b"garbage")
    computed = {"offsets", "metalayers", "format_version", "header_len", "frame_len"}
    computed |= {"fingerprint", "fingerprint_type", "is_ours"}
    for field in fields(Frame):
        value = getattr(back, field.name)
        if field.name == "packed_index":
            continue
        if field.name == "offsets":
            np.testing.assert_array_equal(value, made.offsets)
            assert not value.flags.writeable
            continue
        assert value == getattr(packed.frame, field.name), field.name
        if field.name not in computed:
            assert value == getattr(made, field.name), field.name
    assert sorted(back.metalayers) == sorted(made.metalayers)
    assert frame.pack(back)[:2] == packed[:2]
    for n in range(made.nchunks):
        place = back.entry(n)
        assert (index.SPECIAL_OFFSETS[place] if isinstance(place, Special) else place) == made.offsets[n]


# --- the rules -----------------------------------------------------------------------------------------------------


def test_an_index_that_was_packed_before_is_taken_as_it_is_and_no_other() -> None:
    bare = frame.create(CParams("lz4"), frame_type=FrameType.SPARSE, typesize=4, chunksize=400)
    once = frame.pack(replace(bare, offsets=np.arange(3), nbytes=1200, cbytes=1000))
    again = frame.pack(once.frame)
    assert again.tail == once.tail
    assert again.frame.packed_index is not None
    assert again.frame.packed_index[1] is once.frame.packed_index[1]  # type: ignore[index]
    for offsets in (np.array([2, 1, 0]), once.frame.offsets.copy(), np.arange(2)):
        other = replace(once.frame, offsets=offsets, nbytes=400 * len(offsets))
        packed = frame.pack(other)
        assert packed[:2] == frame.pack(replace(other, packed_index=None))[:2]
        assert frame.unpack(packed.header, packed.tail).offsets.tolist() == offsets.tolist()


@pytest.mark.parametrize("nbytes", [2**20 - 1, 2**20, 3 * 2**20])
@pytest.mark.parametrize("kind", ["random", "zeros", "half"])
def test_long_metalayers_survive_and_are_compressed_where_that_helps(nbytes: int, kind: str) -> None:
    noise = np.random.default_rng(0).bytes(nbytes)
    value = {"random": noise, "zeros": bytes(nbytes), "half": bytes(nbytes // 4) + noise[nbytes // 4 :]}[kind]
    packed = frame.pack_vlmeta(value)
    assert frame.unpack_vlmeta(packed) == value
    assert (len(packed) < nbytes // 2) == (kind == "zeros")


def test_the_fingerprint_is_a_digest_of_all_but_the_chunks() -> None:
    packed, raw = contiguous()
    found = read(raw)
    zeroed = packed.header[:16] + bytes(8) + packed.header[24:]
    digest = blake2b(zeroed + packed.tail[:-16]).digest()[:16]
    assert (found.fingerprint_type, found.fingerprint) == (3, digest)
    assert packed.tail[-16:] == digest == packed.frame.fingerprint


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_other_fingerprints_are_kept_unverified(kind: int) -> None:
    _, raw = contiguous()
    found = read(raw[:-17] + bytes([kind]) + b"0123456789abcdef")
    assert (found.fingerprint_type, found.fingerprint) == (kind, b"0123456789abcdef")


def test_cparams_survive_the_header() -> None:
    cparams = CParams(
        "lz4", 7, filters=("delta", "shuffle"), filters_meta=(0, 4), splitmode="blosc2", use_dict=True, nthreads=5
    )
    made = frame.create(cparams, frame_type=FrameType.CONTIGUOUS, typesize=4, chunksize=400)
    packed = frame.pack(made)
    assert unpack_header(packed.header).cparams == cparams
    assert made.splitmode == "blosc2"
    with pytest.raises(UnsupportedError, match="compression parameters"):
        _ = replace(made, codec=3).cparams


def test_the_header_says_how_long_it_is() -> None:
    packed, _ = contiguous()
    assert header_nbytes(packed.header[:15]) == len(packed.header)
    with pytest.raises(FormatError, match=f"a frame header of {len(packed.header)} bytes, found 20 bytes"):
        unpack_header(packed.header[:20])


def test_fewer_than_six_filters_are_accepted() -> None:
    raw = bytearray(schunk(items(100)).to_cframe())
    raw[0x46] = 2
    raw[0x47:0x4D] = bytes([3, 4, 9, 9, 9, 9])
    raw[0x4F:0x55] = bytes([5, 0xFE, 9, 9, 9, 9])
    found = read(bytes(raw))
    assert found.filters == (3, 4, 0, 0, 0, 0)
    assert found.filters_meta == (5, 0xFE, 0, 0, 0, 0)
    raw[0x46] = 7
    with pytest.raises(FormatError):
        read(bytes(raw))


def test_a_codec_may_stand_in_its_own_byte() -> None:
    raw = bytearray(schunk(items(100)).to_cframe())
    raw[0x1B], raw[0x4D], raw[0x4E] = 0x56, 33, 200
    found = read(bytes(raw))
    assert (found.codec, found.clevel, found.codec_meta) == (33, 5, 200)
    assert frame.pack(found).header[0x1B] == 0x56


@pytest.mark.parametrize(
    ("at", "value", "error"),
    [
        (0x02, 0x00, FormatError),  # magic
        (0x0B, 0xFF, FormatError),  # negative header length
        (0x0E, 0x60, FormatError),  # header without room for metalayers
        (0x0D, 0x01, FormatError),  # header longer than its buffer
        (0x19, 0x14, UnsupportedError),  # format version 4
        (0x19, 0x02, UnsupportedError),  # 32-bit offsets
        (0x19, 0x32, UnsupportedError),  # 256-bit offsets
        (0x1A, 0x02, UnsupportedError),  # frame type
        (0x1A, 0x10, UnsupportedError),  # user-defined frame type
        (0x1E, 0x80, FormatError),  # negative uncompressed size
        (0x20, 0x01, FormatError),  # other number of chunks than in the index
        (0x27, 0x80, FormatError),  # negative compressed size
        (0x29, 0x01, FormatError),  # index beyond the end
        (0x33, 0x00, FormatError),  # typesize 0
        (0x35, 0xFF, FormatError),  # negative blocksize
        (0x3A, 0xFF, FormatError),  # negative chunksize
        (-23, 0x00, FormatError),  # marker before the trailer's length
        (-19, 0x10, FormatError),  # short trailer
        (-22, 0x10, FormatError),  # long trailer
    ],
)
def test_a_wrong_field_is_refused(at: int, value: int, error: type[Exception]) -> None:
    raw = bytearray(schunk(items(100)).to_cframe())
    raw[at] = value
    with pytest.raises(error):
        read(bytes(raw))


def with_index(
    index: bytes, *, kind: FrameType = FrameType.CONTIGUOUS, nchunks: int = 2, chunksize: int = 400
) -> bytes:
    """A stock-like frame (no fingerprint) whose index chunk is `index`."""
    made = frame.create(CParams(), frame_type=kind, typesize=4, chunksize=chunksize)
    made = replace(made, nbytes=nchunks * (chunksize or 400), cbytes=1000, offsets=np.arange(nchunks) % 9)
    header, tail, _ = frame.pack(made)
    trailer = tail[-35:-17] + bytes(17)
    frame_len = len(header) + (1000 if kind == FrameType.CONTIGUOUS else 0) + len(index) + len(trailer)
    header = header[:16] + struct.pack(">Q", frame_len) + header[24:]
    return header + bytes(1000 if kind == FrameType.CONTIGUOUS else 0) + index + trailer


@pytest.mark.parametrize(
    "make",
    [
        lambda data: blosc2.compress2(data, typesize=8, codec=blosc2.Codec.ZSTD, nthreads=1),
        lambda data: blosc2.compress2(data, typesize=1, codec=blosc2.Codec.LZ4, nthreads=1),
        lambda data: blosc2.compress2(data, typesize=8, clevel=0, nthreads=1),
        lambda data: blosc2.compress2(data, typesize=8, nthreads=1) + b"bytes before the trailer",
        lambda data: struct.pack("<4B3i", 2, 1, 0x02, 8, len(data), len(data), len(data) + 16) + data,
        lambda data: ChunkHeader(1, len(data), len(data), 32 + len(data), 5, blosc2_flags=0x30).pack() + data,
    ],
    ids=["zstd", "typesize 1", "raw", "gap", "Blosc1", "one value for all"],
)
def test_any_chunk_will_do_as_index(make: Callable[[bytes], bytes]) -> None:
    offsets = np.arange(2) * 700
    assert read(with_index(make(offsets.tobytes()))).offsets.tolist() == [0, 700]


def index_of(*offsets: int) -> bytes:
    return encode.encode(np.array(offsets, np.int64).tobytes(), typesize=8)


@pytest.mark.parametrize("top", [0x80, 0x83, 0x85, 0x88, 0x90, 0xA1, 0xC1, 0xFF])
def test_reserved_special_offsets_are_format_errors(top: int) -> None:
    with pytest.raises(FormatError, match="special values"):
        read(with_index(index_of(0, (top << 56) - 2**64)))
    with pytest.raises(FormatError, match="special values"):
        read(with_index(index_of(0, (0x81 << 56) - 2**64 + 1)))


def test_offsets_outside_the_data_are_format_errors() -> None:
    assert read(with_index(index_of(968, 0))).entry(0) == 968
    with pytest.raises(FormatError, match="up to 968 in the index, found 969"):
        read(with_index(index_of(0, 969)))
    sparse = with_index(index_of(2**32 - 1, 0), kind=FrameType.SPARSE)
    assert read(sparse).entry(0) == 2**32 - 1
    with pytest.raises(FormatError, match="file numbers"):
        read(with_index(index_of(0, 2**32), kind=FrameType.SPARSE))


@pytest.mark.parametrize(
    "index",
    [
        index_of(0),
        index_of(0, 1, 2),
        encode.special_chunk(Special.UNINIT, 16, typesize=8),
        encode.special_chunk(Special.NAN, 16, typesize=8),
        encode.special_chunk(Special.VALUE, 16, typesize=8)[:-8] + bytes(3),
        index_of(0, 1)[:-1],
        b"",
        b"\5" * 40,
    ],
)
def test_a_wrong_index_is_a_format_error(index: bytes) -> None:
    with pytest.raises(REFUSED):
        read(with_index(index))


def test_the_size_of_the_index_is_limited_before_it_is_decoded() -> None:
    raw = with_index(encode.special_chunk(Special.ZEROS, 8 * 2**20, typesize=8), nchunks=2**20, chunksize=4)
    assert read(raw).nchunks == 2**20
    with (
        config.using(limits=config.Limits(index_nbytes=8 * 2**20 - 1)),
        pytest.raises(FormatError, match="index_nbytes"),
    ):
        read(raw)


def test_the_size_of_chunks_is_limited() -> None:
    raw = schunk(items(100)).to_cframe()
    with config.using(limits=config.Limits(chunk_nbytes=399)), pytest.raises(FormatError, match="399"):
        read(raw)


@pytest.mark.parametrize("where", ["metalayers", "vlmetalayers"])
@pytest.mark.parametrize(
    ("layers", "error"),
    [
        ([(f"{n}", b"") for n in range(17)], LimitError),
        ([("x" * 32, b"")], LimitError),
        ([("\xe9" * 16, b"")], LimitError),
        ([("a\0b", b"")], ValueError),
        ([("a", b""), ("a", b"")], ValueError),
    ],
)
def test_metalayers_that_stock_could_not_keep_are_not_written(where: str, layers: list, error: type[Exception]) -> None:
    made = frame.create(CParams(), frame_type=FrameType.CONTIGUOUS, typesize=4, chunksize=400)
    with pytest.raises(error):
        frame.pack(replace(made, **{where: tuple(layers)}))


@pytest.mark.parametrize(
    "changes",
    [
        {"nbytes": 1601},
        {"nbytes": 0},
        {"nbytes": 1200},
        {"cbytes": 40},
        {"chunksize": 0},
        {"offsets": np.array([0, 100, 200, (0x83 << 56) - 2**64])},
    ],
)
def test_an_index_that_does_not_fit_is_not_written(changes: dict) -> None:
    with pytest.raises(ValueError, match=r"expected|chunks|compressed"):
        contiguous(**changes)


def test_metalayer_names_need_not_be_text() -> None:
    raw = schunk(items(100), meta={"abc": 1}).to_cframe().replace(b"\xa3abc", b"\xa3\xff\xfeb")
    found = read(raw)
    assert found.metalayers == (("\udcff\udcfeb", b"\1"),)
    assert b"\xa3\xff\xfeb" in frame.pack(found).header


def test_overlapping_metalayers_are_refused() -> None:
    made = frame.create(
        CParams(), frame_type=FrameType.CONTIGUOUS, typesize=4, chunksize=4, metalayers=[("a", b"x" * 200), ("b", b"y")]
    )
    header, tail, _ = frame.pack(made)
    at = header.index(b"\xa1a\xd2") + 3
    same = header.index(b"\xa1b\xd2") + 3
    header = header[:same] + header[at : at + 4] + header[same + 4 :]
    with pytest.raises(FormatError, match="overlap"):
        frame.unpack(header, tail)


def test_a_vlmetalayer_is_one_chunk() -> None:
    stored = frame.pack_vlmeta(b"value")
    assert frame.unpack_vlmeta(stored) == b"value"
    for wrong in (stored[:-1], stored + b"\0", b"", b"value" * 10):
        with pytest.raises(REFUSED):
            frame.unpack_vlmeta(wrong)
    huge = encode.special_chunk(Special.ZEROS, 2**30, typesize=1)
    with pytest.raises(FormatError, match="metadata_nbytes"):
        frame.unpack_vlmeta(huge)


def test_the_writer_and_the_reader_of_a_vlmetalayer_have_one_limit() -> None:
    with config.using(limits=config.Limits(metadata_nbytes=50_000)):
        longest = b"x" * 50_000
        assert frame.unpack_vlmeta(frame.pack_vlmeta(longest)) == longest
        with pytest.raises(
            LimitError, match=r"50001 bytes .* at most 50000 are allowed \(config.limits.metadata_nbytes"
        ):
            frame.pack_vlmeta(longest + b"x")


def test_an_attribute_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    a = b2array.asarray([1, 2], url=tmp_path / "a.b2nd")
    with config.using(limits=config.Limits(metadata_nbytes=2**20)):
        a.attrs["fits"] = b"x" * (2**20 - 16)
        with pytest.raises(LimitError, match=r"config\.limits\.metadata_nbytes"):
            a.attrs["big"] = b"x" * (2**20 + 5)
        assert {**b2array.open(tmp_path / "a.b2nd").attrs} == {"fits": b"x" * (2**20 - 16)}


def test_a_trailer_above_the_limit_is_valid_and_the_error_names_the_limit(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(2**20)
    stock = blosc2.asarray(np.arange(10), urlpath=str(tmp_path / "a.b2nd"))
    stock.schunk.vlmeta["noise"] = noise
    assert b2array.open(tmp_path / "a.b2nd").attrs["noise"] == noise
    with (
        config.using(limits=config.Limits(metadata_nbytes=2**19)),
        pytest.raises(FormatError, match=r"of at most 524288 bytes \(config.limits.metadata_nbytes\), found 1"),
    ):
        b2array.open(tmp_path / "a.b2nd")


@given(st.binary(max_size=3000))
def test_vlmetalayers_survive(value: bytes) -> None:
    stored = frame.pack_vlmeta(value)
    assert frame.unpack_vlmeta(stored) == value
    assert blosc2.decompress2(stored) == value or not value


def test_special_offsets_have_their_byte_on_top() -> None:
    assert {special: offset % 2**64 >> 56 for special, offset in index.SPECIAL_OFFSETS.items()} == {
        Special.ZEROS: 0x81,
        Special.NAN: 0x82,
        Special.UNINIT: 0x84,
    }
    for special in (Special.NONE, Special.VALUE):
        with pytest.raises(ValueError, match="no index entry"):
            index.special_offset(special)


def test_chunk_names_are_eight_capital_digits() -> None:
    assert [index.chunk_name(n) for n in (0, 15, 2**32 - 1)] == ["00000000.chunk", "0000000F.chunk", "FFFFFFFF.chunk"]
    for number in (-1, 2**32):
        with pytest.raises(ValueError, match="file numbers"):
            index.chunk_name(number)


def test_frames_pickle() -> None:
    packed, _ = contiguous()
    back = pickle.loads(pickle.dumps(packed.frame))
    assert frame.pack(back)[:2] == packed[:2]


# --- damage --------------------------------------------------------------------------------------------------------

DAMAGED = ["specials", "metalayers", "16 vlmetalayers", "3-d", "VL blocks, variable size", "no items", "zeros"]


@pytest.mark.parametrize("name", DAMAGED)
def test_every_truncation_is_a_format_error(name: str, stock: dict) -> None:
    _, raw = stock[name]
    found = read(raw)
    for size in positions(found.header_len):
        with pytest.raises(FormatError):
            unpack_header(raw[:size])
    tail = raw[found.tail_start :]
    for size in range(len(tail)):
        with pytest.raises(FormatError):
            frame.unpack(raw, tail[:size])
    frame_len = slice(0x10, 0x18)
    for size in positions(len(raw)):
        # The file may also claim to be as short as it is.
        cut = bytearray(raw[:size])
        cut[frame_len] = struct.pack(">Q", size)[: len(cut[frame_len])]
        with pytest.raises(REFUSED):
            read(bytes(cut))


def positions(stop: int) -> Iterator[int]:
    """All positions near the ends of a frame, and some between them."""
    return (n for n in range(stop) if n < 700 or n >= stop - 700 or n % 501 == 0)


@pytest.mark.parametrize("name", DAMAGED)
def test_every_changed_byte_parses_or_is_refused(name: str, stock: dict, sampled: Sampled) -> None:
    _, raw = stock[name]
    found = read(raw)
    interesting = [*positions(found.header_len), *range(found.tail_start, len(raw))]
    for at in sampled(interesting, 6):
        for value in (0x00, 0x7F, 0xFF, raw[at] ^ 0x01, raw[at] ^ 0x80):
            changed = bytearray(raw)
            changed[at] = value
            try:
                read(bytes(changed))
            except REFUSED:
                continue


def test_every_changed_byte_of_a_frame_of_ours_is_noticed() -> None:
    packed, raw = contiguous(nthreads_decompress=fingerprint.MARK)
    tail_start = packed.frame.tail_start
    # Without a metalayer of ours, the mark in the header tells whose fingerprint it is.
    unnoticed = {*range(len(raw))[fingerprint.MARK_AT], len(raw) - 17}
    for at in {*range(len(packed.header)), *range(tail_start, len(raw))} - unnoticed:
        for bit in range(8):
            changed = bytearray(raw)
            changed[at] ^= 1 << bit
            with pytest.raises(REFUSED):
                read(bytes(changed))


@given(st.data())
def test_randomly_damaged_frames_parse_or_are_refused(data: st.DataObject) -> None:
    _, raw = contiguous()
    # Without a fingerprint the damage gets as far as it can.
    changed = bytearray(raw[:-17] + bytes(17))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(raw) - 1))
        changed[at : at + data.draw(st.sampled_from([1, 1, 1, 4, 8]))] = data.draw(st.binary(min_size=1, max_size=8))
    try:
        read(bytes(changed))
    except REFUSED:
        return


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(REFUSED):
        read(raw)
    with pytest.raises(REFUSED):
        read(b"\x9e\xa8b2frame\0\xd2\0\0\0\x61\xcf" + raw)
