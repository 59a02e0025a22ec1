"""Data, parameters and foreign chunks that the tests of chunks share."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import NamedTuple

import blosc2
import numpy as np
from hypothesis import strategies as st

from b2array.codec import chunk, decode, encode, filters
from b2array.codec.chunk import Stored
from b2array.codec.chunk_header import (
    BLOSC2_FLAG_DICT,
    BLOSC2_FLAG_LAZY,
    FLAG2_VL_BLOCKS,
    FLAG_EXTENDED,
    VERSION_VL_BLOCKS,
    ChunkHeader,
)
from b2array.codec.cparams import CParams

CODECS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
PIPELINES = (
    (),
    ("shuffle",),
    ("bitshuffle",),
    ("delta", "shuffle"),
    ("shuffle", "delta"),
    ("delta", "bitshuffle"),
    ("shuffle", "bytedelta"),
    ("delta",),
)
SPLITMODES = ("auto", "always", "never", "blosc2")
STOCK_SPLITMODES = {
    "always": blosc2.SplitMode.ALWAYS_SPLIT,
    "never": blosc2.SplitMode.NEVER_SPLIT,
    "blosc2": blosc2.SplitMode.AUTO_SPLIT,
}


def sine(n):
    return np.sin(np.linspace(0, 30, n)) * np.cos(np.linspace(0, 700, n))


def walk(n):
    return np.random.default_rng(1).normal(size=n).cumsum()


def image(n):
    """Brightness of pixels: smooth shapes, an even sky and a little noise."""
    side = int(n**0.5) + 1
    y, x = np.mgrid[:side, :side] / side
    noise = np.random.default_rng(2).normal(scale=2, size=(side, side))
    return (np.where(y < 0.3, 200, 120 + 80 * np.sin(9 * x) * np.cos(7 * y) + noise)).astype("u1").ravel()[:n]


# What a few of the usual arrays are like, as functions of the number of items.
REALISTIC = {
    "sin*cos float64": sine,
    "sin*cos float32": lambda n: sine(n).astype("f4"),
    "random walk float64": walk,
    "random walk float32": lambda n: walk(n).astype("f4"),
    "arange int64": np.arange,
    "integers 0..99 int32": lambda n: np.random.default_rng(3).integers(0, 100, n).astype("i4"),
    "integers +-2000 int16": lambda n: (1000 * walk(n) / 100).astype("i2"),
    "times int64": lambda n: np.random.default_rng(4).integers(1, 90, n).cumsum() + 1_600_000_000_000_000_000,
    "image uint8": image,
    "labels uint8": lambda n: np.repeat(np.random.default_rng(5).integers(0, 9, n // 50 + 1), 50)[:n].astype("u1"),
    "sparse float64": lambda n: np.where(np.arange(n) % 97 == 0, walk(n), 0),
    "noise float64": lambda n: np.random.default_rng(6).random(n),
}

# A few kinds of bytes in a row: what codecs find, what they do not, and runs.
_pieces = st.one_of(
    st.tuples(st.binary(min_size=1, max_size=12), st.integers(1, 400)).map(lambda drawn: drawn[0] * drawn[1]),
    st.tuples(st.integers(0, 2**32), st.integers(1, 1500)).map(
        lambda drawn: np.random.default_rng(drawn[0]).bytes(drawn[1])
    ),
    st.tuples(st.integers(0, 255), st.integers(1, 3000)).map(lambda drawn: bytes([drawn[0]]) * drawn[1]),
    st.tuples(st.integers(-5, 5), st.integers(1, 400)).map(lambda drawn: (np.arange(drawn[1]) * drawn[0]).tobytes()),
)
datas = st.lists(_pieces, max_size=6).map(b"".join)
typesizes = st.one_of(st.sampled_from([1, 2, 3, 4, 8, 12, 16]), st.integers(1, 255))


@st.composite
def cparams(draw, codecs=CODECS, pipelines=PIPELINES):
    codec = draw(st.sampled_from(codecs))
    return CParams(
        codec,
        clevel=draw(st.integers(1, 9)),
        filters=draw(st.sampled_from(pipelines)),
        splitmode=draw(st.sampled_from(SPLITMODES)),
    )


@st.composite
def blocksizes(draw, typesize, nbytes):
    """Zero (automatic), or whole items of at most about a third of the data."""
    items = draw(st.integers(0, max(nbytes // typesize // 3, 1)))
    return max(items * typesize, 32 - 32 % typesize + typesize) if items else 0


def stock_chunk(data, *, typesize, blocksize=0, cparams, nthreads=1):
    """Compress with python-blosc2 and the same parameters."""
    metas = cparams.metas_for(typesize)
    slots = [(fid, meta) for fid, meta in zip(cparams.filter_slots, metas, strict=True) if fid]
    return blosc2.compress2(
        data,
        codec=blosc2.Codec(cparams.codec_id),
        codec_meta=cparams.codec_meta,
        clevel=cparams.clevel,
        typesize=typesize,
        blocksize=blocksize,
        filters=[blosc2.Filter(fid) for fid, _ in slots],
        filters_meta=[meta - 256 * (meta > 127) for _, meta in slots],  # python-blosc2 takes signed bytes
        splitmode=STOCK_SPLITMODES["blosc2" if cparams.splitmode == "auto" else cparams.splitmode],
        use_dict=cparams.use_dict,
        nthreads=nthreads,
    )


def block_pieces(buf):
    """Cut a chunk into its head and its blocks, in block order."""
    head = chunk.unpack_head(buf)
    assert head.header.has_streams
    blocks = [bytes(buf[start:stop]) for start, stop in zip(head.starts.tolist(), head.stops.tolist(), strict=True)]
    return head, blocks


def rebuilt(buf, order, gap=b""):
    """Store the blocks of a chunk in another order, with `gap` in front of each."""
    head, blocks = block_pieces(buf)
    border = int(head.starts.min())
    starts, body = [0] * len(blocks), b""
    for number in order:
        body += gap
        starts[number] = border + len(body)
        body += blocks[number]
    header = replace(head.header, cbytes=border + len(body))
    between = bytes(buf[header.header_len + 4 * len(blocks) : border])
    return header.pack() + struct.pack(f"<{len(starts)}i", *starts) + between + body


def fetched(buf, numbers):
    """Hold only the blocks `numbers` and what decoding them needs, scattered, as reading from a store does."""
    head = chunk.unpack_head(buf)
    wanted = sorted(chunk.blocks_to_decode(head, numbers)) if len(head.starts) else []
    starts, stops = np.full_like(head.starts, -1), np.full_like(head.stops, -1)
    region = bytearray(b"\xa5" * 7)
    for number in wanted:
        starts[number] = len(region)
        region += buf[head.starts[number] : head.stops[number]]
        stops[number] = len(region)
        region += b"\xa5" * 3
    return Stored(head, memoryview(region), starts, stops)


def block_slices(buf, data):
    """What each block of a chunk holds, taken from the whole."""
    header = chunk.unpack_head(buf).header
    step = header.block_nbytes
    return [data[i * step : (i + 1) * step] for i in range(header.nblocks)]


def decoded_blocks(stored, numbers, context=chunk.NO_CONTEXT):
    """Decode blocks in one call and return their bytes."""
    header = stored.head.header
    reference = decode.accept(stored, numbers, context=context)
    short = numbers[-1] == header.nblocks - 1
    out = np.empty((len(numbers) - short) * header.block_nbytes + short * header.last_block_nbytes, np.uint8)
    decode.decode_blocks(stored, numbers, out, context=context, reference=reference)
    return out.tobytes()


def make_chunk(streams, *, typesize, nbytes, blocksize, flags=FLAG_EXTENDED, **fields):
    """Assemble a chunk from the bytes of its blocks, size fields of the streams included."""
    header = ChunkHeader(typesize, nbytes, blocksize, 0, flags, **fields)
    starts = np.cumsum([header.header_len + 4 * len(streams), *map(len, streams)])
    header = replace(header, cbytes=int(starts[-1]))
    return header.pack() + starts[:-1].astype("<i4").tobytes() + b"".join(streams)


def vl_chunk(blocks, typesize=1, cparams=CParams("zstd")):  # noqa: B008
    """Encode a chunk of variable-length blocks, which b2array reads but does not write."""
    datas = [np.frombuffer(block, np.uint8) for block in blocks]
    width = typesize if typesize <= 255 else 1
    pipeline = filters.Pipeline(cparams.filter_slots, cparams.metas_for(width), width)
    records = []
    for data in datas:
        filtered = filters.forward(pipeline, data.reshape(1, -1), reference=data, first=True).reshape(-1)
        task = encode.Task(filtered, width, len(data), cparams, False, pipeline)
        payload = encode.encode_stream(filtered, task.cparams, task.typesize, task.pipeline.blockshape)
        if payload is None or len(payload) >= len(data):
            payload = filtered.tobytes()
        records.append(struct.pack("<i", len(data)) + bytes(payload))
    lengths = [32 + 4 * len(records), *map(len, records)]
    task = encode.Task(datas[0], width, len(records), cparams, False, pipeline)
    header = encode.header_of(task, sum(lengths))
    header = replace(header, nbytes=sum(map(len, datas)), version=VERSION_VL_BLOCKS, flags2=FLAG2_VL_BLOCKS)
    return b"".join((header.pack(), np.cumsum(lengths[:-1], dtype="<i4").tobytes(), *records))


class Lazy(NamedTuple):
    """What a lazy chunk says; in a sparse frame `nchunk` and `offset` are both the number of the chunk's file."""

    head: chunk.ChunkHead
    nchunk: int
    offset: int
    sizes: tuple[int, ...]


def unpack_lazy(buf):
    header = ChunkHeader.unpack(buf)
    assert header.lazy
    trailer = header.header_len + 4 * header.nblocks
    nchunk, offset = struct.unpack_from("<iq", buf, trailer)
    sizes = tuple(np.frombuffer(buf, "<i4", header.nblocks, trailer + 12).tolist())
    eager = replace(header, blosc2_flags=header.blosc2_flags & ~(BLOSC2_FLAG_LAZY | BLOSC2_FLAG_DICT))
    head = chunk.unpack_head(eager.pack() + bytes(memoryview(buf)[header.header_len : trailer]))
    return Lazy(replace(head, header=replace(head.header, blosc2_flags=header.blosc2_flags)), nchunk, offset, sizes)
