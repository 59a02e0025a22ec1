"""Recover header, index and trailer of a damaged frame.

They are restored if a fingerprint proves their contents. Otherwise the frame is rebuilt from its readable parts:
 the header, an index that fits the chunks, and the trailer. Other software changes frames in place. If it is
killed meanwhile, the header may be older than the chunks, chunks may have overwritten the index, and the trailer may be
missing. Each chunk stores its own length, so chunks can be found without an index.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.codec import chunk, decode
from b2array.codec.chunk_header import BLOSC1_HEADER_LEN, ChunkHeader, Special
from b2array.config import HEADER_LEN
from b2array.errors import FormatError, UnsupportedError
from b2array.format import b2nd, checksums, fingerprint, frame, index, metalayers
from b2array.format.frame import Frame
from b2array.format.frame_header import FrameType, header_nbytes, unpack_header
from b2array.format.index import chunk_number
from b2array.format.metalayers import Layers
from b2array.frame.source import FRAME_NAME
from b2array.store.base import Store
from b2array.store.spans import Span
from b2array.tools.anatomy import context_of

__all__ = ["Salvaged", "salvage"]

Int64Array = npt.NDArray[np.int64]

_NO_LIMIT = 2**62
# Source: "Blosc2 Contiguous Frame Format", section Trailer: marker and value of the trailer's length, then marker,
# size, type and value of the fingerprint.
_TRAILER_END = struct.Struct(">BI2B16s")
_TRAILER_NBYTES = 25
_WINDOW = 4 * 2**20
_SMALLEST_HEADER = 97
_TYPE_AT = -1 - fingerprint.FINGERPRINT_NBYTES
_WRONG_BYTES = 2
"""With at most this many wrong bytes, the stored fingerprint itself is damaged: the rest cannot match by accident."""


@dataclass(frozen=True, slots=True)
class Salvaged:
    """A frame rebuilt from the readable parts of a damaged frame.

    The frame is `certain` if the header is right and an index gives the order of the chunks. Otherwise the chunks keep
    the order in which they are stored. The frame is `proven` if it is exactly the committed frame, or a frame of other
    software, which writes no checksums. `notes` describe the steps and the parts that could not be recovered. The index
    has zeros for the `missing` chunks.
    """

    frame: Frame
    certain: bool = True
    proven: bool = True
    notes: tuple[str, ...] = ()
    missing: frozenset[int] = frozenset()


def salvage(store: Store, reason: FormatError | UnsupportedError) -> Salvaged:
    """Restore the committed frame, or rebuild the frame from its parts. Raise for an unsupported kind."""
    file = _DamagedFile(store)
    restored = _restore(file)
    if restored is not None:
        return restored
    if isinstance(reason, UnsupportedError):
        raise reason
    return _Wreck(file).salvage()


class _Trailer(NamedTuple):
    """The content of a trailer, and its length in bytes."""

    layers: Layers
    fingerprint_type: int
    nbytes: int


class _DamagedFile:
    """The file that holds the header, index and trailer."""

    def __init__(self, store: Store) -> None:
        self.store = store
        names = (FRAME_NAME,) if store.is_prefix else ("", FRAME_NAME)
        heads = store.head(names, 1)
        readable = [name for name, head in zip(names, heads, strict=True) if not isinstance(head, Exception)]
        if not readable:
            raise FileNotFoundError(f"{store.url} has no frame that could be repaired")
        self.name = readable[0]
        self.size = store.stamp(self.name).size

    def read(self, start: int, stop: int) -> bytes:
        """Read the bytes from `start` to `stop` or to the end of the file."""
        stop = min(stop, self.size)
        if start >= stop:
            return b""
        (view,) = self.store.read([Span(self.name, start, stop)])
        return bytes(view)

    def chunk(self, at: int) -> ChunkHeader | None:
        """Return the header of the chunk at `at`, or None if there is no chunk that ends within the file."""
        try:
            header = ChunkHeader.unpack(self.read(at, at + HEADER_LEN))
        except (FormatError, UnsupportedError):
            return None
        return header if BLOSC1_HEADER_LEN <= header.cbytes <= self.size - at else None

    def trailer(self, start: int, end: int) -> _Trailer | None:
        """Return the trailer between `start` and `end`, or None."""
        if not start + _TRAILER_NBYTES <= end <= self.size:
            return None
        raw = self.read(end - _TRAILER_END.size, end)
        marker, nbytes, ext, fingerprint_type, _ = _TRAILER_END.unpack(raw)
        longest = min(end - start, config.limits.metadata_nbytes)
        # The MessagePack markers of a 4-byte unsigned integer and of a 16-byte extension.
        has_markers = (marker, ext) == (0xCE, 0xD8)
        if not has_markers or not _TRAILER_NBYTES <= nbytes <= longest:
            return None
        try:
            layers = metalayers.unpack(self.read(end - nbytes, end), 2)
            return _Trailer(layers, fingerprint_type, nbytes)
        except FormatError:
            return None


def _restore(file: _DamagedFile) -> Salvaged | None:
    """Restore the committed frame; return None if it has no fingerprint, or if index or trailer are damaged.

    The result is not certain if other software has since written a header, because the shape may then be outdated.
    """
    mark = file.read(fingerprint.MARK_AT.start, fingerprint.MARK_AT.stop)
    for header, tail, text in _candidates(file):
        # The type is part of the fingerprint, and may be damaged as well.
        unsigned = tail[:_TYPE_AT] + bytes((frame.FINGERPRINT_128,))
        empty = bytes(fingerprint.FINGERPRINT_NBYTES)
        signed = unsigned + fingerprint.fingerprint(header, unsigned + empty)
        pairs = zip(signed[_TYPE_AT:], tail[_TYPE_AT:], strict=True)
        nwrong = sum(expected != stored for expected, stored in pairs)
        if nwrong <= _WRONG_BYTES:
            certain = header[fingerprint.MARK_AT] == mark or not any(mark)
            rest = "only the fingerprint itself is damaged" if nwrong else "nothing else is damaged"
            return Salvaged(frame.unpack(header, signed), certain, certain, (f"{text}{rest}",))
    return None


def _candidates(file: _DamagedFile) -> Iterator[tuple[bytes, bytes, str]]:
    """Yield possible headers, each with its index and trailer, and a note on their origin.

    A frame ends where its header says, or where the file ends. There are two headers: one at the start and a copy
    in the trailer.
    """
    first = file.read(0, _SMALLEST_HEADER)
    if len(first) < _SMALLEST_HEADER:
        return
    frame_len = fingerprint.frame_len(first)
    for end in dict.fromkeys((frame_len, file.size)):
        trailer = file.trailer(0, end)
        if trailer is None:
            continue  # without a trailer there is no fingerprint; do not read the rest of the file, which may be large
        headers = []
        (header_len,) = struct.unpack_from(">i", first, 0x0B)
        if _SMALLEST_HEADER <= header_len <= min(end, config.limits.metadata_nbytes):
            headers.append((file.read(0, header_len), ""))
        noted = frame.get_header_copy(trailer.layers)
        if noted is not None:
            headers.append((noted, "took the header that is noted in the trailer; "))
        for header, origin in headers:
            sparse = header[0x1A] == FrameType.SPARSE
            if sparse != bool(file.name):
                continue
            (nbytes,) = struct.unpack_from(">q", header, 0x1E)
            (cbytes,) = struct.unpack_from(">q", header, 0x27)
            start = len(header)
            if nbytes and not sparse:
                start += cbytes
            index_nbytes = 0
            if nbytes and len(header) <= start:
                offsets = file.chunk(start)
                index_nbytes = 0 if offsets is None else offsets.cbytes
            # The sizes in a damaged header may point far before the end of a large file.
            if start + index_nbytes == end - trailer.nbytes:
                text = origin if end == frame_len else f"the frame ends after {end} bytes; {origin}"
                yield fingerprint.with_frame_len(header, end), file.read(start, end), text


class _Wreck:
    """A damaged frame, and the facts recovered so far."""

    def __init__(self, file: _DamagedFile) -> None:
        self.file = file
        length = header_nbytes(file.read(0, HEADER_LEN))
        data = file.read(0, length)
        if len(data) < length:
            raise FormatError(f"expected a frame header of {length} bytes, found {len(data)}")
        # The frame's length in the header may be wrong, and is not needed here, so ignore it.
        self.frame_len = fingerprint.frame_len(data)
        header = unpack_header(fingerprint.with_frame_len(data, _NO_LIMIT))
        self.header = header
        self.sparse = header.frame_type == FrameType.SPARSE
        if self.sparse != bool(file.name):
            place = "a directory" if file.name else "a file"
            raise FormatError(f"expected the frame of {place}, found a {header.frame_type.name.lower()} one")
        self.expected = 0
        """Number of chunks according to the header; 0 if it has no chunk size."""
        if header.chunksize > 0:
            self.expected = -(-header.nbytes // header.chunksize)
        array = header.metalayer("b2nd")
        counted = self.expected if array is None else b2nd.unpack(array, chunksize=header.chunksize).nchunks
        if counted != self.expected:
            raise FormatError(
                f"expected a header that counts {counted} chunks, as its shape does, found {self.expected}"
            )
        most = min(config.limits.index_nbytes, 2**31 - 1) // 8
        if self.expected > most:
            raise FormatError(f"expected a header that counts at most {most} chunks, found {self.expected}")
        self.index_sizes: tuple[int, ...] = ()
        if self.expected:
            # An index is written before the header, so it may list one more chunk.
            self.index_sizes = (8 * self.expected, 8 * self.expected + 8)
        self.context = context_of(header)
        self.notes: list[str] = []
        self.gaps: list[int] = []

    def salvage(self) -> Salvaged:
        """Rebuild the frame."""
        header = self.header
        places: list[int] = []
        if self.sparse:
            numbers = map(chunk_number, self.file.store.listing())
            valid = {n for n in numbers if n is not None}
        else:
            valid, places = self._walk()
        offsets, end = self._index(valid, places)
        layers, fingerprint_type = self._trailer(end)
        certain = offsets is not None and fingerprint_type != frame.FINGERPRINT_128
        if offsets is None:
            offsets = self._in_order(sorted(valid))
        elif not certain:
            self.notes.append("header, index or trailer do not fit the fingerprint")
        if header.nbytes and not offsets.size:
            raise FormatError(f"expected chunks of {header.nbytes} bytes, found none")
        cbytes = header.cbytes if self.sparse else self.file.size - header.header_len
        header = replace(header, cbytes=cbytes, frame_len=self.file.size)
        missing = offsets == -1
        offsets = np.where(missing, index.special_offset(Special.ZEROS), offsets)
        whole = frame.with_tail(header, offsets=offsets, vlmetalayers=layers)
        absent = frozenset(np.flatnonzero(missing).tolist())
        # Only b2array writes fingerprints, so no fingerprint can contradict a frame of other software.
        proven = certain and fingerprint_type == 0
        return Salvaged(whole, certain, proven, tuple(self.notes), absent)

    # Chunks.

    def _walk(self) -> tuple[set[int], list[int]]:
        """Find chunks in a file; return their offsets from the end of the header, and possible index positions."""
        base = self.header.header_len
        at = base
        chunks: set[int] = set()
        indices: list[int] = []
        gaps: list[int] = []
        while at < self.file.size - HEADER_LEN // 2:
            header = self.file.chunk(at)
            nbytes = 0 if header is None else self._data_nbytes(at, header)
            if nbytes:
                chunks.add(at - base)
                at += nbytes
            elif header is not None and header.typesize == 8 and header.nbytes in self.index_sizes:
                indices.append(at)
                at += header.cbytes
            else:
                gaps.append(len(chunks))
                at = self._next_candidate(at + 1)
        self.gaps = [before for before in gaps if before < len(chunks)]
        return chunks, indices

    def _data_nbytes(self, at: int, header: ChunkHeader) -> int:
        """Return the size of a data chunk with its checksum record; 0 if it is no chunk, or cannot be decoded."""
        chunksize = self.header.chunksize
        blocksize = self.header.blocksize
        if chunksize > 0:
            last = self.header.nbytes % chunksize or chunksize
            if header.nbytes not in (chunksize, last):
                return 0
            if blocksize and header.blocksize > blocksize:
                return 0
        if header.nbytes > config.limits.chunk_nbytes or header.cbytes < HEADER_LEN:
            return 0
        end = at + header.cbytes
        try:
            stored = self.file.read(at, end)
            decode.decode(stored, context=self.context)
            nblocks = len(chunk.unpack_head(stored).starts)
        except (FormatError, UnsupportedError):
            return 0
        record = self.file.read(end, end + checksums.record_nbytes(nblocks))
        is_record = checksums.unpack_record(record) is not None
        return header.cbytes + len(record) if is_record else header.cbytes

    def _next_candidate(self, at: int) -> int:
        """Find the next place at or after `at` that looks like the header of a chunk or an index."""
        patterns = [struct.pack("<i", nbytes) for nbytes in self.index_sizes]
        if self.header.chunksize > 0:
            chunksize = struct.pack("<i", self.header.chunksize)
            blocksize = struct.pack("<i", self.header.blocksize) if self.header.blocksize else b""
            patterns.append(chunksize + blocksize)
        # Source: "Blosc Chunk Format", section Header: the size of the data is at offset 4, followed by the block size.
        while patterns and at < self.file.size:
            window = self.file.read(at, at + _WINDOW)
            hits = [window.find(pattern, 4) for pattern in patterns]
            places = [hit for hit in hits if hit >= 0]
            if places:
                return at + min(places) - 4
            if at + len(window) >= self.file.size:
                break
            # The longest pattern may cross the end of the window.
            at += len(window) - 12
        return self.file.size

    # The index.

    def _index(self, valid: set[int], places: list[int]) -> tuple[Int64Array | None, int]:
        """Find the index named by the header, or else the last index whose chunks all exist; also return its end."""
        expected = self.header.tail_start
        if not self.header.nbytes:
            return np.empty(0, np.int64), expected
        for at in (expected, *sorted(places, reverse=True)):
            index = self._index_at(at)
            if index is None:
                continue
            if at == expected:
                return index
            offsets, _ = index
            if valid.issuperset(offsets[offsets >= 0].tolist()):
                self.notes.append("took an index that was found behind the chunks")
                return index
        self.notes.append("found no index: took the chunks in the order in which they are stored")
        return None, self.header.header_len

    def _index_at(self, at: int) -> tuple[Int64Array, int] | None:
        header = self.file.chunk(at)
        if header is None or not header.nbytes:
            return None
        if self.expected and header.nbytes not in self.index_sizes:
            return None
        stop = at + header.cbytes
        try:
            raw = self.file.read(at, stop)
            offsets = index.unpack(raw, nbytes=header.nbytes, chunksize=0, context=self.context)
            index.check(offsets, None if self.sparse else self.file.size)
        except (FormatError, UnsupportedError):
            return None
        stored = offsets[offsets >= 0]
        if len(np.unique(stored)) < len(stored):
            return None  # no writer stores one chunk under two numbers
        if 0 < self.expected < len(offsets):
            # The header does not yet count the new chunk, which must be the last.
            is_last = offsets[-1] < 0 or offsets[-1] == offsets.max()
            return (offsets[:-1], stop) if is_last else None
        return offsets, stop

    def _in_order(self, positions: list[int]) -> Int64Array:
        expected = self.expected or len(positions)
        offsets = np.full(expected, -1, np.int64)
        before = positions[:expected]
        after = positions[:0]
        if self.gaps:
            # Chunks were being moved: at least one is lost, and others may also exist at their old positions.
            most = expected - 1
            before = positions[: self.gaps[0]][:most]
            room = most - len(before)
            after = positions[self.gaps[-1] :][-room:] if room > 0 else []
            self.notes.append("found bytes between chunks that are not a chunk")
        offsets[: len(before)] = before
        offsets[expected - len(after) :] = after
        if len(positions) > expected:
            self.notes.append(f"found {len(positions)} chunks where the header counts {expected}")
        elif len(positions) < expected:
            self.notes.append(f"found only {len(positions)} of {expected} chunks")
        return offsets

    # The trailer.

    def _trailer(self, start: int) -> tuple[Layers, int | None]:
        """Find the trailer, which ends at the end of the frame according to the header, or at the end of the file.

        Return its metalayers, and the type of its fingerprint.
        """
        for end in (self.frame_len, self.file.size):
            trailer = self.file.trailer(start, end)
            if trailer is not None:
                layers = tuple(self._readable(trailer.layers))
                return layers, trailer.fingerprint_type
        self.notes.append("found no trailer: attributes are lost")
        return (), None

    def _readable(self, layers: Layers) -> Iterator[tuple[str, bytes]]:
        for name, raw in layers:
            try:
                frame.unpack_vlmeta(raw)
            except (FormatError, UnsupportedError):
                self.notes.append(f"dropped the attribute {name!r}, which cannot be read")
            else:
                yield name, raw
