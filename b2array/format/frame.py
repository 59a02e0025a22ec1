"""Frames: header, index and trailer around the chunks, in one file or with every chunk in a file of its own.

Sources: "Blosc2 Contiguous Frame Format" (sections Header, Chunks, Trailer) and "Blosc2 Sparse Frame Format" of the
Blosc2 documentation, and the files that the C library writes. Integers are big-endian (msgpack), those inside chunks
little-endian. The index and the trailer together, as they stand behind each other, are called the tail here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2array import config
from b2array.buffers import Buffer
from b2array.codec import chunk, decode, encode
from b2array.codec.cparams import CParams, SplitMode
from b2array.codec.header import NFILTERS, NO_FILTERS, ChunkHeader, CodecId, Special
from b2array.config import HEADER_LEN, MAX_CHUNK_NBYTES
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.format import fingerprint as seal
from b2array.format import metalayers
from b2array.format.metalayers import Layers

__all__ = [
    "FINGERPRINT_128", "SPECIAL_OFFSETS", "Frame", "FrameType", "Header", "Packed", "chunk_name", "create",
    "header_nbytes", "pack", "pack_header", "pack_vlmeta", "sparse_cbytes", "special_offset", "unpack",
    "unpack_header", "unpack_vlmeta",
]  # fmt: skip

SPECIAL_OFFSETS = {Special.ZEROS: -0x7F << 56, Special.NAN: -0x7E << 56, Special.UNINIT: -0x7C << 56}
"""What stands in the index for a chunk that is not stored: 0x81, 0x82 or 0x84 in the top byte, otherwise zeros."""

_SPECIALS = {offset: special for special, offset in SPECIAL_OFFSETS.items()}
_MAGIC = b"b2frame\0"
FIRST_BYTES = b"\x9e\xa8" + _MAGIC
"""How every frame begins."""

_FIXED = struct.Struct(">2x8sxixQx4BxqxqxixixixhxhBxB6s2B6sBx")
_MARKERS = {
    0x00: 0x9E, 0x01: 0xA8, 0x0A: 0xD2, 0x0F: 0xCF, 0x18: 0xA4, 0x1D: 0xD3, 0x26: 0xD3, 0x2F: 0xD2,
    0x34: 0xD2, 0x39: 0xD2, 0x3E: 0xD1, 0x41: 0xD1, 0x45: 0xD8,
}  # fmt: skip
_TRAILER_END = struct.Struct(">BI2B16s")
_TRAILER_MARKER, _TRAILER_VERSION, _UINT32, _FIXEXT16 = 0x94, 1, 0xCE, 0xD8
_MIN_LAYERS_LEN, _MIN_TRAILER_LEN = 10, 25
_BIN32, _FALSE = 0xC6, 0xC2
_MAX_FORMAT_VERSION, _UDCODEC = 3, 6
_FLAG_OFFSETS_64, _FLAG_VARIABLE, _FLAG_VL_BLOCKS = 0x10, 0x40, 0x80
_SPLITMODES: tuple[SplitMode, ...] = ("always", "never", "auto", "blosc2")
_NO_FINGERPRINT, FINGERPRINT_128, _FINGERPRINT_NBYTES = 0, 3, 16
_NO_OFFSETS = np.frombuffer(b"", np.int64)
_INDEX_BLOCKSIZE = 16384
_INDEX_CPARAMS = CParams("blosclz", splitmode="never")
_VLMETA_CPARAMS = CParams("zstd")


class FrameType(IntEnum):
    """Where the chunks are: in the frame's own file, or in files beside it."""

    CONTIGUOUS = 0
    SPARSE = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Header:
    """What the header of a frame says. Sizes are in bytes.

    Parameters
    ----------
    frame_type : FrameType
    typesize : int
        Size of an item.
    chunksize : int
        Uncompressed size of every chunk but a shorter last one; 0 if every chunk has its own size, and in arrays
        without items; -1 before it is known.
    blocksize : int
        Size of a block, 0 if the chunks choose.
    nbytes : int
        Uncompressed size of all chunks.
    cbytes : int
        The header's `compressed_size`. Contiguous: distance from the end of the header to the index. Sparse: see
        `sparse_cbytes`.
    codec, clevel, codec_meta, filters, filters_meta, use_dict, other_flags
        How new chunks are to be made: compcode, level, parameter of the codec, six filter ids and their parameters
        (unsigned bytes), and the byte whose two lowest bits are the split mode.
    nthreads_compress, nthreads_decompress : int
        Kept for readers that obey them.
    vl_blocks : bool
        Chunks consist of blocks of variable length.
    format_version : int
    metalayers : tuple of (str, bytes)
        Names and raw contents in the order of the file.
    header_len, frame_len : int
        Sizes of the header and of the file that holds it; 0 in a frame that was not packed yet.
    """

    frame_type: FrameType
    typesize: int
    chunksize: int
    blocksize: int = 0
    nbytes: int = 0
    cbytes: int = 0
    codec: int = CodecId.ZSTD
    clevel: int = 5
    codec_meta: int = 0
    filters: tuple[int, ...] = NO_FILTERS
    filters_meta: tuple[int, ...] = NO_FILTERS
    use_dict: bool = False
    other_flags: int = 2
    nthreads_compress: int = 1
    nthreads_decompress: int = 1
    vl_blocks: bool = False
    format_version: int = 2
    metalayers: Layers = ()
    header_len: int = 0
    frame_len: int = 0

    @property
    def variable_chunks(self) -> bool:
        """Whether every chunk has its own size."""
        return self.chunksize == 0

    @property
    def tail_start(self) -> int:
        """Where the tail (index and trailer) starts, in bytes from the start of the frame."""
        if self.frame_type == FrameType.SPARSE or self.nbytes == 0:
            return self.header_len
        return self.header_len + self.cbytes

    @property
    def tail_stop(self) -> int:
        """Where the tail ends: the end of the frame."""
        return self.frame_len

    @property
    def splitmode(self) -> SplitMode:
        """The split mode, by the name that `CParams` has for it."""
        return _SPLITMODES[self.other_flags & 3]

    @property
    def cparams(self) -> CParams:
        """How new chunks are to be made.

        Raises
        ------
        UnsupportedError
            The codec or a filter is not known, or the parameters contradict each other.
        """
        active = [(fid, meta) for fid, meta in zip(self.filters, self.filters_meta, strict=True) if fid]
        try:
            return CParams(
                self.codec, self.clevel, self.codec_meta, tuple(fid for fid, _ in active),
                tuple(meta for _, meta in active),
                self.splitmode, self.use_dict, self.nthreads_compress,
            )  # fmt: skip
        except ValueError as error:
            raise UnsupportedError(f"compression parameters of the frame: {error}") from None

    def metalayer(self, name: str) -> bytes | None:
        """Return the raw content of a metalayer, or None."""
        return metalayers.find(self.metalayers, name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame(Header):
    """Everything that a frame holds but its chunks: the header, the index and the trailer.

    Parameters
    ----------
    offsets : numpy.ndarray of int64, shape (nchunks,)
        The index; read-only. Where each chunk starts in bytes from the end of the header (contiguous), or the number
        of its file (sparse); one of `SPECIAL_OFFSETS` if it is not stored. May be a broadcast array.
    vlmetalayers : tuple of (str, bytes)
        Names and contents, each a Blosc2 chunk (see `unpack_vlmeta`).
    trailer_version, fingerprint_type : int
        The fingerprint's type is 0 if there is none; 1 and 2 are only kept for show; 3 is ours (see `seal`).
    fingerprint : bytes
        16 bytes.
    """

    offsets: NDArray[np.int64]
    vlmetalayers: Layers = ()
    trailer_version: int = _TRAILER_VERSION
    fingerprint_type: int = _NO_FINGERPRINT
    fingerprint: bytes = bytes(_FINGERPRINT_NBYTES)

    @property
    def nchunks(self) -> int:
        """Number of chunks, stored or not."""
        return len(self.offsets)

    def chunk_nbytes(self, n: int) -> int | None:
        """Return the uncompressed size of chunk `n` in bytes, or None if only the chunk itself knows."""
        self._check_number(n)
        if self.chunksize == 0:
            return None
        return min(self.chunksize, self.nbytes - n * self.chunksize)

    def locate(self, n: int) -> int | Special:
        """Return where chunk `n` is.

        Returns
        -------
        int or Special
            Bytes from the end of the header (contiguous) or the number of the file (sparse); ``Special.ZEROS``,
            ``NAN`` or ``UNINIT`` (test for this type first) if the chunk is not stored.

        Raises
        ------
        IndexError
            `n` is not within 0 to nchunks - 1.
        """
        self._check_number(n)
        offset = int(self.offsets[n])
        return offset if offset >= 0 else _SPECIALS[offset]

    def vlmetalayer(self, name: str) -> bytes | None:
        """Return the chunk that holds a variable-length metalayer, or None."""
        return metalayers.find(self.vlmetalayers, name)

    def _check_number(self, n: int) -> None:
        if not 0 <= n < self.nchunks:
            raise IndexError(f"chunk {n} is out of bounds for a frame with {self.nchunks} chunks")


class Packed(NamedTuple):
    """A frame as it goes into its file, and the record that reading it back gives."""

    header: bytes
    tail: bytes
    frame: Frame


def create(
    cparams: CParams, *, frame_type: FrameType, typesize: int, chunksize: int, blocksize: int = 0,
    metalayers: Iterable[tuple[str, bytes]] = (), vl_blocks: bool = False,
) -> Frame:  # fmt: skip
    """Return a frame without chunks whose new chunks are to be made as `cparams` says."""
    return Frame(
        frame_type=frame_type, typesize=typesize, chunksize=chunksize, blocksize=blocksize, vl_blocks=vl_blocks,
        codec=cparams.codec_id, clevel=cparams.clevel, codec_meta=cparams.codec_meta, use_dict=cparams.use_dict,
        filters=cparams.filter_slots, filters_meta=cparams.meta_slots,
        other_flags=_SPLITMODES.index(cparams.splitmode),
        nthreads_compress=cparams.nthreads, nthreads_decompress=cparams.nthreads,
        metalayers=tuple(metalayers), offsets=_NO_OFFSETS,
    )  # fmt: skip


def header_nbytes(buf: Buffer) -> int:
    """Return how long the header is whose first bytes are `buf`; 15 of them are enough.

    Raises
    ------
    FormatError
        This is no frame.
    """
    _need(len(buf) >= 15, "the first 15 bytes of a frame header", f"{len(buf)} bytes")
    magic = bytes(buf[2:10])
    _need(magic == _MAGIC, f"the magic {_MAGIC!r} of a frame", repr(magic))
    (header_len,) = struct.unpack_from(">i", buf, 11)
    smallest, limit = _FIXED.size + _MIN_LAYERS_LEN, config.limits.metadata_nbytes
    _need(smallest <= header_len <= limit, f"a header of {smallest} to {limit} bytes", str(header_len))
    return int(header_len)


def unpack_header(buf: Buffer) -> Header:
    """Read the header of a frame.

    Parameters
    ----------
    buf : bytes-like
        The frame from its first byte on. What follows the header is not looked at.

    Raises
    ------
    FormatError
        This is no frame, the header ends early (the message says how many bytes it has; so does `header_nbytes`), or
        its sizes contradict each other.
    UnsupportedError
        It announces a later version, another width of the offsets, or another type of frame.
    """
    header_len = header_nbytes(buf)
    _need(len(buf) >= header_len, f"a frame header of {header_len} bytes", f"{len(buf)} bytes")
    buf = bytes(buf[:header_len])
    (
        _, _, frame_len, flags, frame_type, codec, other_flags, nbytes, cbytes, typesize, blocksize, chunksize,
        nthreads_compress, nthreads_decompress, _, nfilters, filters, udcodec, codec_meta, metas, other_flags2,
    ) = _FIXED.unpack_from(buf)  # fmt: skip
    _need(nfilters <= NFILTERS, f"at most {NFILTERS} filters", str(nfilters))
    unused = bytes(NFILTERS - nfilters)
    header = Header(
        frame_type=_frame_type(flags, frame_type), format_version=flags & 0x0F, vl_blocks=bool(flags & _FLAG_VL_BLOCKS),
        typesize=typesize, chunksize=chunksize, blocksize=blocksize, nbytes=nbytes, cbytes=cbytes,
        codec=udcodec if codec & 0x0F == _UDCODEC else codec & 0x0F, clevel=codec >> 4, codec_meta=codec_meta,
        filters=tuple(filters[:nfilters] + unused), filters_meta=tuple(metas[:nfilters] + unused),
        use_dict=bool(other_flags2 & 1), other_flags=other_flags,
        nthreads_compress=nthreads_compress, nthreads_decompress=nthreads_decompress,
        metalayers=metalayers.unpack(buf, _FIXED.size), header_len=header_len, frame_len=frame_len,
    )  # fmt: skip
    _check_sizes(header)
    return header


def _frame_type(flags: int, frame_type: int) -> FrameType:
    version, width = flags & 0x0F, 32 << (flags >> 4 & 3)
    if version > _MAX_FORMAT_VERSION:
        raise UnsupportedError(f"frame format version {version}: versions up to {_MAX_FORMAT_VERSION} are known")
    if width != 64:
        raise UnsupportedError(f"chunk offsets of {width} bits: only those of 64 bits are known")
    if frame_type not in (FrameType.CONTIGUOUS, FrameType.SPARSE):
        raise UnsupportedError(f"frame type {frame_type:#04x}: 0 (contiguous) and 1 (sparse) are known")
    return FrameType(frame_type)


def _check_sizes(header: Header) -> None:
    _need(header.typesize > 0, "a typesize of 1 or more", str(header.typesize))
    _need(header.blocksize >= 0, "a blocksize of 0 or more", str(header.blocksize))
    _need(header.nbytes >= 0, "an uncompressed size of 0 or more", str(header.nbytes))
    _need(header.cbytes >= 0, "a compressed size of 0 or more", str(header.cbytes))
    _need(header.chunksize >= (0 if header.nbytes else -1), "a chunksize of 0 or more", str(header.chunksize))
    limit = config.limits.chunk_nbytes
    _need(header.chunksize <= limit, f"a chunksize of at most {limit}", str(header.chunksize))
    smallest = header.tail_start + _MIN_TRAILER_LEN + (HEADER_LEN // 2 if header.nbytes else 0)
    _need(header.frame_len >= smallest, f"a frame of {smallest} bytes or more", str(header.frame_len))


def unpack(header: Buffer, tail: Buffer) -> Frame:
    """Read a frame from its header and its tail, and verify our fingerprint if it has one.

    Parameters
    ----------
    header : bytes-like
        At least the header.
    tail : bytes-like
        The frame's bytes from `Header.tail_start` to `Header.tail_stop`, or beyond.

    Raises
    ------
    FormatError
        A part ends early, sizes contradict each other, the index points outside, or the fingerprint is wrong.
    UnsupportedError
        As for `unpack_header`, or the index needs a codec that is not known.
    """
    head = unpack_header(header)
    length = head.tail_stop - head.tail_start
    _need(len(tail) >= length, f"{length} bytes of index and trailer", str(len(tail)))
    tail = memoryview(tail)[:length]
    marker, trailer_len, ext, fingerprint_type, stored = _TRAILER_END.unpack_from(tail, length - _TRAILER_END.size)
    found = f"{marker:#04x} and {ext:#04x}"
    _need((marker, ext) == (_UINT32, _FIXEXT16), f"markers {_UINT32:#04x} and {_FIXEXT16:#04x} in the trailer", found)
    longest = min(length, config.limits.metadata_nbytes)
    _need(_MIN_TRAILER_LEN <= trailer_len <= longest, f"a trailer of 25 to {longest} bytes", str(trailer_len))
    trailer = bytes(tail[length - trailer_len :])
    layers = _unpack_trailer_layers(trailer)
    head, fingerprint_type = _verified(head, header, tail, layers, fingerprint_type, stored)
    return Frame(
        **{field.name: getattr(head, field.name) for field in fields(head)},
        offsets=_unpack_index(head, tail[: length - trailer_len]),
        vlmetalayers=layers,
        trailer_version=trailer[1],
        fingerprint_type=fingerprint_type,
        fingerprint=stored,
    )


def _verified(
    head: Header, header: Buffer, tail: Buffer, layers: Layers, fingerprint_type: int, stored: bytes
) -> tuple[Header, int]:
    """Compare a frame with its fingerprint; returns the header to go by, and the type of a fingerprint that fits."""
    if fingerprint_type == FINGERPRINT_128:
        now = bytes(header[: head.header_len])
        computed = seal.fingerprint(now, tail)
        if computed == stored:
            return head, FINGERPRINT_128
        before = _noted_header(layers)
        same = (
            before is not None and seal.is_changed_by_others(now, before) and seal.fingerprint(before, tail) == stored
        )
        if before is None or not same:
            raise FormatError(
                f"expected the fingerprint {stored.hex()} of header, index and trailer, found {computed.hex()}"
            )
        # Some of what the C library writes is what its user said on opening, and not what the chunks have.
        old = unpack_header(seal.with_frame_len(before, seal.frame_len(now)))
        return replace(head, typesize=old.typesize, blocksize=old.blocksize), _NO_FINGERPRINT
    if fingerprint_type or any(stored):
        # Other software takes our fingerprint away or keeps it, but has none of its own.
        _need(_noted_header(layers) is None, "a fingerprint of type 3, or none", f"one of type {fingerprint_type}")
    return head, fingerprint_type


def _noted_header(layers: Layers) -> bytes | None:
    raw = metalayers.find(layers, "b2array")
    try:
        return None if raw is None else seal.noted_header(unpack_vlmeta(raw))
    except (FormatError, UnsupportedError):
        return None


def _unpack_trailer_layers(trailer: bytes) -> Layers:
    if trailer[1] == 0 and trailer[2] == _BIN32:
        return ()  # before the first release one nameless chunk stood here
    return metalayers.unpack(trailer, 2)


def _unpack_index(header: Header, index: memoryview) -> NDArray[np.int64]:
    if header.nbytes == 0:
        return _NO_OFFSETS
    head = ChunkHeader.unpack(index)
    if header.chunksize:
        nchunks = -(-header.nbytes // header.chunksize)
        _need(head.nbytes == 8 * nchunks, f"an index of {nchunks} chunks", f"{head.nbytes} bytes")
    else:
        _need(head.nbytes % 8 == 0 < head.nbytes, "an index of 8 bytes a chunk", f"{head.nbytes} bytes")
    limit = config.limits.index_nbytes
    _need(head.nbytes <= limit, f"an index of at most {limit} bytes (config.limits.index_nbytes)", str(head.nbytes))
    _need(head.cbytes <= len(index), "an index chunk that ends before the trailer", f"one of {head.cbytes} bytes")
    value_len = head.cbytes - head.header_len
    if head.special == Special.ZEROS or (head.special == Special.VALUE and value_len == 8):
        # One value for all chunks, as in a new array of zeros: it takes no memory.
        value = 0 if head.special == Special.ZEROS else struct.unpack_from("<q", index, head.header_len)[0]
        offsets = np.broadcast_to(np.int64(value), (head.nbytes // 8,))
    else:
        _need(
            head.special in (Special.NONE, Special.VALUE), "offsets in the index", f"special value {head.special.name}"
        )
        context = chunk.Context(header.codec, header.codec_meta)
        offsets = np.frombuffer(decode.decode(index[: head.cbytes], context=context), "<i8").astype(
            np.int64, copy=False
        )
        _need(8 * len(offsets) == head.nbytes, f"{head.nbytes} bytes of offsets", f"{8 * len(offsets)}")
    _check_offsets(header, offsets)
    offsets.flags.writeable = False
    return offsets


def _check_offsets(header: Header, offsets: NDArray[np.int64]) -> None:
    distinct = offsets[:1] if offsets.strides == (0,) else offsets
    below = distinct[distinct < 0]
    wrong = below[~np.isin(below, list(_SPECIALS))]
    _need(not wrong.size, "places or special values in the index", f"{wrong[:1].view(np.uint64)}")
    if header.frame_type == FrameType.SPARSE:
        highest, what = 2**32 - 1, "file numbers"
    else:
        highest, what = header.cbytes - HEADER_LEN, "offsets"
    top = int(distinct.max(initial=-1))
    _need(top <= highest or top < 0, f"{what} up to {highest} in the index", str(top))


def pack(frame: Frame) -> Packed:
    """Return the bytes of a frame's header, index and trailer, with a fingerprint.

    A contiguous file is the header, `frame.cbytes` bytes with the chunks (dead space included), the index and the
    trailer; a sparse frame's file is header, index and trailer. A frame without chunks has no data either: its
    trailer follows the header, where the C library looks for it.

    Parameters
    ----------
    frame : Frame
        `header_len`, `frame_len`, `format_version`, `trailer_version` and the fingerprint are computed, not taken from
        it. The `b2nd` metalayer is put first, so that what changes with the shape stays near the start of the file.

    Raises
    ------
    LimitError
        More metalayers, longer names or a larger index than the format allows.
    ValueError
        The index does not fit `nbytes`, `chunksize` or `cbytes`.
    """
    frame = _settled(frame)
    _check_writable(frame)
    tail = _pack_index(frame.offsets) + _pack_trailer(frame.vlmetalayers)
    header_len = len(pack_header(frame))
    data_len = frame.cbytes if frame.frame_type == FrameType.CONTIGUOUS else 0
    frame = replace(frame, header_len=header_len, frame_len=header_len + data_len + len(tail))
    header = pack_header(frame)
    frame = replace(frame, fingerprint=seal.fingerprint(header, tail))
    return Packed(header, tail[:-_FINGERPRINT_NBYTES] + frame.fingerprint, frame)


def _settled(frame: Frame) -> Frame:
    """Return the frame with all that is computed and not taken from it, but for sizes and fingerprint."""
    return replace(
        frame,
        cbytes=frame.cbytes if frame.nbytes else 0,
        format_version=3 if frame.variable_chunks or frame.vl_blocks else 2,
        metalayers=tuple(sorted(frame.metalayers, key=lambda layer: layer[0] != "b2nd")),
        trailer_version=_TRAILER_VERSION,
        fingerprint_type=FINGERPRINT_128,
    )


def pack_header(frame: Frame) -> bytes:
    """Return the bytes of a frame's header, with its `frame_len` as it is: 0 if it was not packed yet."""
    frame = _settled(frame)
    layers = metalayers.pack(frame.metalayers, _FIXED.size, uncounted=0)
    return _pack_fixed(replace(frame, header_len=_FIXED.size + len(layers))) + layers


def _check_writable(frame: Frame) -> None:
    expected = -(-frame.nbytes // frame.chunksize) if frame.chunksize > 0 else frame.nchunks
    if expected != frame.nchunks or bool(frame.nbytes) != bool(frame.nchunks):
        raise ValueError(f"{frame.nchunks} chunks of {frame.chunksize} bytes do not hold {frame.nbytes} bytes")
    if 8 * frame.nchunks > MAX_CHUNK_NBYTES:
        raise LimitError(f"{frame.nchunks} chunks: the index holds at most {MAX_CHUNK_NBYTES // 8}")
    if frame.variable_chunks and (frame.offsets < 0).any():
        raise ValueError("a special offset has no size in a frame whose chunks have sizes of their own")
    top = int(frame.offsets.max(initial=-1))
    if top >= 0 and top > frame.cbytes - HEADER_LEN:
        raise ValueError(f"an index entry of {top} needs more than {frame.cbytes} compressed bytes")
    _check_offsets(frame, frame.offsets)
    metalayers.check(frame.metalayers)
    metalayers.check(frame.vlmetalayers)


def _pack_fixed(frame: Frame) -> bytes:
    flags = frame.format_version | _FLAG_OFFSETS_64
    flags |= _FLAG_VARIABLE * frame.variable_chunks | _FLAG_VL_BLOCKS * frame.vl_blocks
    codec = frame.codec if frame.codec < 16 else _UDCODEC
    header = bytearray(_FIXED.pack(
        _MAGIC, frame.header_len, frame.frame_len, flags, frame.frame_type, codec | frame.clevel << 4,
        frame.other_flags, frame.nbytes, frame.cbytes, frame.typesize, frame.blocksize, frame.chunksize,
        frame.nthreads_compress, frame.nthreads_decompress, _FALSE + bool(frame.vlmetalayers), NFILTERS,
        bytes(frame.filters), frame.codec, frame.codec_meta, bytes(frame.filters_meta), frame.use_dict,
    ))  # fmt: skip
    for at, marker in _MARKERS.items():
        header[at] = marker
    return bytes(header)


def _pack_index(offsets: NDArray[np.int64]) -> bytes:
    if not offsets.size:
        return b""
    data, nbytes = np.ascontiguousarray(offsets, "<i8"), 8 * offsets.size
    blocksize = min(nbytes, _INDEX_BLOCKSIZE)
    if data[0] < 0 and (data == data[0]).all():
        return encode.special_chunk(data[:1].tobytes(), nbytes, typesize=8, blocksize=blocksize)
    return encode.encode(data.tobytes(), typesize=8, blocksize=blocksize, cparams=_INDEX_CPARAMS)


def _pack_trailer(vlmetalayers: Layers) -> bytes:
    """Return the trailer, with a fingerprint of zeros."""
    layers = metalayers.pack(vlmetalayers, 2, uncounted=1)
    trailer_len = 2 + len(layers) + _TRAILER_END.size
    end = _TRAILER_END.pack(_UINT32, trailer_len, _FIXEXT16, FINGERPRINT_128, bytes(_FINGERPRINT_NBYTES))
    return bytes([_TRAILER_MARKER, _TRAILER_VERSION]) + layers + end


def special_offset(special: Special) -> int:
    """Return the index entry of a chunk of zeros, NaN or uninitialised values.

    Raises
    ------
    ValueError
        `special` has no such entry.
    """
    if special not in SPECIAL_OFFSETS:
        raise ValueError(f"no index entry stands for {special!r}")
    return SPECIAL_OFFSETS[special]


def sparse_cbytes(cbytes: int, offsets: NDArray[np.int64]) -> int:
    """Return the `cbytes` of a sparse frame: the size of its chunks, plus headroom for the highest file number.

    The C library refuses to open a frame with a file number above the field's value less 32, and subtracts from it what
    the chunks lose when it rewrites them smaller.

    Parameters
    ----------
    cbytes : int
        Sum of the compressed sizes of the chunks.
    offsets : numpy.ndarray of int64
    """
    highest = int(offsets.max(initial=-1))
    return cbytes + highest + HEADER_LEN if highest >= 0 else cbytes


def chunk_name(number: int) -> str:
    """Return the name of the file that holds chunk `number` of a sparse frame.

    Examples
    --------
    >>> chunk_name(10)
    '0000000A.chunk'
    """
    if not 0 <= number < 2**32:
        raise ValueError(f"file numbers are 0 to 2**32 - 1, not {number}")
    return f"{number:08X}.chunk"


def pack_vlmeta(value: Buffer) -> bytes:
    """Return the chunk that holds the content of a variable-length metalayer."""
    return encode.encode(value, typesize=1, cparams=_VLMETA_CPARAMS)


def unpack_vlmeta(buf: Buffer) -> bytes:
    """Return the content of a variable-length metalayer.

    Raises
    ------
    FormatError
        This is not one chunk, or larger than `b2array.config.limits.metadata_nbytes`.
    """
    header, limit = ChunkHeader.unpack(buf), config.limits.metadata_nbytes
    _need(header.cbytes == len(buf), f"a chunk of {len(buf)} bytes", f"one of {header.cbytes}")
    _need(header.nbytes <= limit, f"at most {limit} bytes (config.limits.metadata_nbytes)", str(header.nbytes))
    return bytes(decode.decode(buf))


def _need(ok: bool, expected: str, found: str) -> None:
    if not ok:
        raise FormatError(f"expected {expected}, found {found}")
