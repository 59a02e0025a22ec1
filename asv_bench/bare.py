"""`Bare`: reads one selection with the least Python that can, as a lower bound for every reader in Python."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zstandard
from numcodecs import blosc

import b2array
from b2array.codec import cblosc
from b2array.codec.chunk_header import CodecFormat
from b2array.codec.codecs import _Frames
from b2array.format import checksums
from b2array.frame.fetch import fetch
from b2array.frame.source import ChunkRequest
from b2array.grid.selection import select
from b2array.grid.tiling import parts_of_chunks, tiling_of
from b2array.store.spans import plan_packed_read


class Piece(NamedTuple):
    """What is known of a chunk: ranges of bytes in the file, and what to copy from its blocks to the result.

    `streams` says of each block where its stream lies among the bytes that are read, and its checksum.
    """

    head: tuple[int, int]
    record: tuple[int, int]
    ranges: list[tuple[int, int]]
    streams: list[tuple[int, int, int]]
    within: tuple[slice, ...] | None
    copies: list[tuple[Any, tuple[int, ...], Any]]
    shape: tuple[int, ...]
    memory: np.ndarray


def touched(nbytes: int) -> np.ndarray:
    """Return memory that is not new: the first touch takes time."""
    return np.full(nbytes, 255, np.uint8)


class Bare:
    """A selection whose chunks, places of blocks, checksums and copies are all known before the clock starts.

    It does the same work in C as b2array: reads, compares checksums, decodes zstd, undoes the shuffle, and copies. Its
    memory is not new, and it finds kept blocks without looking for them. It knows only zstd with unsplit blocks, the
    default of b2array.
    """

    def __init__(self, url: Path, key: Any) -> None:
        source = b2array.open(url)._handle.source
        layout = source.state.require_layout()
        chosen = select(key, layout.shape)
        self.layout, self.file, self.pieces = layout, os.open(url, os.O_RDONLY), []
        self.box = tuple([len(range(i.start, i.stop, i.step)) for i in chosen.positions])
        self.decoder = zstandard.ZstdDecompressor()
        self.params = cblosc.Blosc1Params(
            CodecFormat.ZSTD, layout.itemsize, cblosc.SHUFFLE, split=False, block_nbytes=layout.block_nbytes
        )
        for number, part in parts_of_chunks(layout, chosen.positions, None):
            tiling = tiling_of(layout, part.inside, layout.nblocks)
            fetch(source, [ChunkRequest(number, (0,))])
            (head, sums), base = source.heads[number], source.locate(number).start
            starts, stops = head.starts[tiling.numbers].tolist(), head.stops[tiling.numbers].tolist()
            planned = plan_packed_read(starts, stops, gap=0)
            ranges = [(base + start, base + stop) for start, stop in planned.ranges]
            places = zip(planned.positions, starts, stops, sums[tiling.numbers].tolist(), strict=True)
            streams = [(at, at + stop - start, checksum) for at, start, stop, checksum in places]
            (step,), end = tiling.steps, base + head.header.cbytes
            copies = [((*part.outside, ...), (*each.target, ...), each.split, each.source) for each in step.copies]
            record = (end, end + checksums.record_nbytes(layout.nblocks))
            memory = touched(len(streams) * layout.block_nbytes)
            shape, head_range = step.counts + tiling.shape, (base, base + head.nbytes)
            self.pieces.append(Piece(head_range, record, ranges, streams, tiling.within, copies, shape, memory))
        most = max(len(piece.streams) for piece in self.pieces)
        self.raw = touched(cblosc.margin_in_front(most) + most * (4 + layout.block_nbytes)).data
        self.read_bytes = touched(max(stop for piece in self.pieces for _, stop, _ in piece.streams)).data

    def __del__(self) -> None:
        os.close(self.file)

    def read(self, *, opened: bool) -> np.ndarray:
        """Read from the file; with `opened` also the head of each chunk, and its checksums."""
        buf, raw, nbytes = self.read_bytes, self.raw, self.layout.block_nbytes
        size = struct.pack("<i", nbytes)
        for piece in self.pieces:
            if opened:
                for start, stop in (piece.head, piece.record):
                    np.frombuffer(os.pread(self.file, stop - start, start), "<i4").tolist()
            at = 0
            for start, stop in piece.ranges:
                at += os.preadv(self.file, (buf[at : at + stop - start],), start)
            frames = []
            for start, stop, checksum in piece.streams:
                if checksums.crc32(buf[start:stop]) != checksum:
                    raise ValueError("a checksum differs")
                frames.append(buf[start + 4 : stop])
            reader: Any = self.decoder.stream_reader(_Frames(frames), read_across_frames=True)
            if piece.within is not None:
                reader.readinto(piece.memory)
                continue
            front = cblosc.margin_in_front(len(frames))
            starts = range(front, front + len(frames) * (4 + nbytes), 4 + nbytes)
            raw[:front] = self.params.header(len(frames) * nbytes, starts.stop) + struct.pack(
                f"<{len(frames)}i", *starts
            )
            for start in starts:
                raw[start : start + 4] = size
                reader.readinto(raw[start + 4 : start + 4 + nbytes])
            blosc.decompress(raw[: starts.stop], piece.memory)
        return self.again()

    def again(self) -> np.ndarray:
        """Copy what was read before to a new result."""
        layout = self.layout
        result = np.empty(self.box, layout.dtype)
        ndim = len(self.box)
        order = (*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2))
        for piece in self.pieces:
            if piece.within is None:
                items = piece.memory.view(layout.dtype)
            else:
                planes = piece.memory.reshape(-1, layout.itemsize, *layout.blocks)
                picked = planes[(slice(None), slice(None), *piece.within)]
                items = picked.transpose(0, *range(2, ndim + 2), 1).copy().view(layout.dtype)
            grid = items.reshape(piece.shape)
            for part, target, split, blocks in piece.copies:
                result[part][target].reshape(split).transpose(order)[...] = grid[blocks]
        return result
