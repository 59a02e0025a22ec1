"""Frames: header, index and trailer around the chunks, in one file or with one file for each chunk.

Sources: "Blosc2 Contiguous Frame Format" (sections Header, Chunks, Trailer) and "Blosc2 Sparse Frame Format" of the
Blosc2 documentation, and the files that the C library writes. Integers are big-endian (msgpack), but little-endian
inside chunks. The trailer follows the index; both together are the tail.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2array import config
from b2array.buffers import Buffer
from b2array.codec import chunk, decode, encode
from b2array.codec.chunk_header import ChunkHeader, Special
from b2array.codec.cparams import METADATA, CParams
from b2array.config import HEADER_LEN, MAX_CHUNK_NBYTES
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.format import fingerprint, index, metalayers
from b2array.format.frame_header import (
    FIXED_LEN,
    SPLITMODES,
    FrameType,
    Header,
    check_filters,
    pack_fields,
    unpack_header,
)
from b2array.format.metalayers import Layers

__all__ = [
    "FINGERPRINT_128",
    "FINGERPRINT_NBYTES",
    "TRAILER_VERSION",
    "Frame",
    "Packed",
    "create",
    "get_header_copy",
    "pack",
    "pack_header",
    "pack_vlmeta",
    "unpack",
    "unpack_vlmeta",
    "with_tail",
]

_TRAILER_END = struct.Struct(">BI2B16s")
TRAILER_VERSION = 1
"""The version of trailers that b2array writes."""
# Source: MessagePack specification, section Formats.
_TRAILER_MARKER = 0x94
_UINT32 = 0xCE
_FIXEXT16 = 0xD8
_MIN_TRAILER_LEN = 25
_BIN32 = 0xC6
# The C library neither computes nor checks fingerprints; the document only reserves types for them.
_NO_FINGERPRINT = 0
FINGERPRINT_128 = 3
FINGERPRINT_NBYTES = 16
_VLMETA_CPARAMS = METADATA
_RAW = CParams("zstd", clevel=0, filters=())
_SHORT = 1024
"""The maximum size of a metalayer that is stored uncompressed, in bytes: a disk always reads at least this many."""
_SAMPLE = 2**16
_SAMPLED = 2**20
"""The minimum size of a metalayer that is compressed only if a sample of it becomes smaller, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame(Header):
    """Everything in a frame except its chunks: the header, the index and the trailer.

    Parameters
    ----------
    offsets : numpy.ndarray of int64, shape (nchunks,)
        The index, read-only: for each chunk its offset in bytes from the end of the header (contiguous), or the number
        of its file (sparse); for a chunk that is not stored, a value of `index.SPECIAL_OFFSETS`. The array may be
        broadcast.
    vlmetalayers : tuple of (str, bytes)
        The names and the contents, which are Blosc2 chunks (see `unpack_vlmeta`).
    trailer_version, fingerprint_type : int
        The type is 0 without a fingerprint, and 3 for b2array's fingerprint. Types 1 and 2 are preserved but not
        checked.
    fingerprint : bytes
        16 bytes.
    packed_index : (numpy.ndarray, bytes), optional
        An index, and the chunk with its packed form. A commit with the same index reuses the chunk.
    """

    offsets: NDArray[np.int64]
    vlmetalayers: Layers = ()
    trailer_version: int = TRAILER_VERSION
    fingerprint_type: int = _NO_FINGERPRINT
    fingerprint: bytes = bytes(FINGERPRINT_NBYTES)
    packed_index: tuple[NDArray[np.int64], bytes] | None = field(default=None, repr=False)

    is_ours: bool = field(init=False, repr=False)
    """Whether b2array wrote this state. Otherwise the annotations may not match the chunks."""
    nchunks: int = field(init=False, repr=False)
    """The number of chunks, stored or not."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_ours", self.fingerprint_type == FINGERPRINT_128)
        object.__setattr__(self, "nchunks", len(self.offsets))

    def chunk_nbytes(self, n: int) -> int | None:
        """Return the uncompressed size of chunk `n` in bytes, or None if only the header of the chunk contains it."""
        if not 0 <= n < len(self.offsets):
            raise self._out_of_bounds(n)
        if self.chunksize == 0:
            return None
        return min(self.chunksize, self.nbytes - n * self.chunksize)

    def entry(self, n: int) -> int | Special:
        """Return the index's entry for chunk `n`.

        The entry is a position in bytes from the end of the header (contiguous), or the number of a file (sparse). For
        a chunk that is not stored, the entry is ``Special.ZEROS``, ``NAN`` or ``UNINIT``; test for this type first.
        """
        if not 0 <= n < len(self.offsets):
            raise self._out_of_bounds(n)
        offset = int(self.offsets[n])
        return offset if offset >= 0 else index.SPECIALS[offset]

    def vlmetalayer(self, name: str) -> bytes | None:
        """Return the chunk with the content of a variable-length metalayer, or None if there is no such metalayer."""
        return metalayers.find(self.vlmetalayers, name)

    def _out_of_bounds(self, n: int) -> IndexError:
        return IndexError(f"chunk {n} is out of bounds for a frame with {self.nchunks} chunks")


_NAMES = tuple(field.name for field in fields(Header))
_values = attrgetter(*_NAMES)


class Packed(NamedTuple):
    """The bytes of a frame, and the `Frame` that `unpack` returns for them."""

    header: bytes
    tail: bytes
    frame: Frame


def create(
    cparams: CParams,
    *,
    frame_type: FrameType,
    typesize: int,
    chunksize: int,
    blocksize: int = 0,
    metalayers: Iterable[tuple[str, bytes]] = (),
    vl_blocks: bool = False,
) -> Frame:
    """Return a frame without chunks. New chunks of the frame will be compressed with `cparams`."""
    check_filters(cparams, typesize)
    return Frame(
        frame_type=frame_type,
        typesize=typesize,
        chunksize=chunksize,
        blocksize=blocksize,
        vl_blocks=vl_blocks,
        codec=cparams.codec_id,
        clevel=cparams.clevel,
        codec_meta=cparams.codec_meta,
        use_dict=cparams.use_dict,
        filters=cparams.filter_slots,
        filters_meta=cparams.meta_slots,
        other_flags=SPLITMODES.index(cparams.splitmode),
        nthreads_compress=cparams.nthreads,
        nthreads_decompress=cparams.nthreads,
        metalayers=tuple(metalayers),
        offsets=index.NO_OFFSETS,
    )


def unpack(
    header: Buffer,
    tail: Buffer,
    parsed: Header | None = None,
    *,
    bare: bool = False,
) -> Frame:
    """Read a frame from its header and its tail, and verify b2array's fingerprint if the frame has one.

    `tail` contains the frame's bytes from `Header.tail_start` on. `parsed` is the result of `unpack_header` for this
    header. With `bare`, the result has no index.
    """
    head = unpack_header(header) if parsed is None else parsed
    length = head.frame_len - head.tail_start
    # Accept more bytes, as the C library does: a frame may be inside a larger file.
    if len(tail) < length:
        raise FormatError(f"expected {length} bytes of index and trailer, found {len(tail)}")
    tail = memoryview(tail)[:length]
    marker, trailer_len, ext, fingerprint_type, stored = _TRAILER_END.unpack_from(tail, length - _TRAILER_END.size)
    if (marker, ext) != (_UINT32, _FIXEXT16):
        raise FormatError(
            f"expected markers {_UINT32:#04x} and {_FIXEXT16:#04x} in the trailer, found {marker:#04x} and {ext:#04x}"
        )
    if not _MIN_TRAILER_LEN <= trailer_len <= length:
        raise FormatError(f"expected a trailer of {_MIN_TRAILER_LEN} to {length} bytes, found {trailer_len}")
    limit = config.limits.metadata_nbytes
    if trailer_len > limit:
        raise FormatError(
            f"expected a trailer of at most {limit} bytes (config.limits.metadata_nbytes), found {trailer_len}"
        )
    # Find the trailer from its end, because there may be bytes between the index and the trailer.
    trailer = bytes(tail[length - trailer_len :])
    layers = _unpack_trailer_layers(trailer)
    head, fingerprint_type = _verify(head, header, tail, layers, fingerprint_type, stored)
    offsets = index.NO_OFFSETS if bare else _unpack_index(tail[: length - trailer_len], head)
    return Frame(
        **dict(zip(_NAMES, _values(head), strict=True)),
        offsets=offsets,
        vlmetalayers=layers,
        trailer_version=trailer[1],
        fingerprint_type=fingerprint_type,
        fingerprint=stored,
    )


def _unpack_index(buf: Buffer, head: Header) -> NDArray[np.int64]:
    context = chunk.Context(head.codec, head.codec_meta)
    offsets = index.unpack(buf, nbytes=head.nbytes, chunksize=head.chunksize, context=context)
    index.check(offsets, None if head.frame_type == FrameType.SPARSE else head.cbytes)
    return offsets


def with_tail(header: Header, **tail: Any) -> Frame:
    """Return a frame with the fields of a header and the fields in `tail`, which take precedence."""
    return Frame(**{**dict(zip(_NAMES, _values(header), strict=True)), **tail})


def _verify(
    head: Header,
    header: Buffer,
    tail: Buffer,
    layers: Layers,
    fingerprint_type: int,
    stored: bytes,
) -> tuple[Header, int]:
    """Compare a frame with its fingerprint. Return the valid header, and the type of the fingerprint."""
    if fingerprint_type == FINGERPRINT_128:
        now = bytes(header[: head.header_len])
        computed = fingerprint.fingerprint(now, tail)
        if computed == stored:
            return head, FINGERPRINT_128
        # A later C library may use this type for its fingerprints. That is more likely than damage in two places.
        if metalayers.find(layers, "b2array") is None and head.nthreads_decompress != fingerprint.MARK:
            return head, _NO_FINGERPRINT
        before = get_header_copy(layers)
        if (
            before is None
            or not fingerprint.is_changed_by_others(now, before)
            or fingerprint.fingerprint(before, tail) != stored
        ):
            raise FormatError(
                f"expected the fingerprint {stored.hex()} of header, index and trailer, found {computed.hex()}"
            )
        # The C library fills some fields with its user's parameters, which may not match the chunks.
        old = unpack_header(fingerprint.with_frame_len(before, fingerprint.frame_len(now)))
        return replace(head, typesize=old.typesize, blocksize=old.blocksize), _NO_FINGERPRINT
    # Other software removes b2array's fingerprint or preserves it, but does not write another type.
    if (fingerprint_type or any(stored)) and get_header_copy(layers) is not None:
        raise FormatError(f"expected a fingerprint of type 3, or none, found one of type {fingerprint_type}")
    return head, fingerprint_type


def get_header_copy(layers: Layers) -> bytes | None:
    """Return the copy of the header in b2array's metalayer in the trailer, or None if there is no copy."""
    raw = metalayers.find(layers, "b2array")
    try:
        return None if raw is None else fingerprint.header_copy(unpack_vlmeta(raw))
    except (FormatError, UnsupportedError):
        return None


def _unpack_trailer_layers(trailer: bytes) -> Layers:
    # Files that predate the first release have one chunk without a name here.
    if trailer[1] == 0 and trailer[2] == _BIN32:
        return ()
    return metalayers.unpack(trailer, 2)


def pack(frame: Frame, header: bytes | None = None) -> Packed:
    """Return the bytes of a frame's header, index and trailer, with a fingerprint.

    A contiguous file consists of the header, `frame.cbytes` bytes with the chunks and dead space, the index and the
    trailer; a sparse frame's file of header, index and trailer. In a frame without chunks, the trailer directly follows
    the header, because the C library expects it there.

    `header_len`, `frame_len`, `format_version`, `trailer_version` and the fingerprint are computed, not taken from
    `frame`. The `b2nd` metalayer is written first, so that the shape stays near the start of the file.

    Raises
    ------
    LimitError
        There are more metalayers, longer names or a larger index than the format allows.
    ValueError
        The index does not fit `nbytes`, `chunksize` or `cbytes`.
    """
    _check_writable(frame)
    header = pack_header(frame) if header is None else header
    fields = _compute_fields(frame, len(header))
    cbytes = fields["cbytes"]
    # To pack the index of a large frame takes longer than the rest of a small commit.
    packed_offsets, packed_index = frame.packed_index or (None, b"")
    if packed_offsets is not frame.offsets:
        packed_index = index.pack(frame.offsets)
    tail = packed_index + _pack_trailer(frame.vlmetalayers)
    data_len = cbytes if frame.frame_type == FrameType.CONTIGUOUS else 0
    frame_len = len(header) + data_len + len(tail)
    header = fingerprint.with_frame_len(header, frame_len)
    digest = fingerprint.fingerprint(header, tail)
    tail = tail[:-FINGERPRINT_NBYTES] + digest
    fields |= {
        "frame_len": frame_len,
        "fingerprint": digest,
        "packed_index": (frame.offsets, packed_index),
    }
    return Packed(header, tail, replace(frame, **fields))


def pack_header(frame: Frame) -> bytes:
    """Return the bytes of a frame's header, with an unchanged `frame_len`, which is 0 before `pack`.

    The header does not list variable-length metalayers; it states only whether there are any.
    """
    packed = metalayers.pack(_b2nd_first(frame.metalayers), FIXED_LEN, uncounted=0)
    frame = replace(frame, **_compute_fields(frame, FIXED_LEN + len(packed)))
    return pack_fields(frame, packed, has_vlmetalayers=bool(frame.vlmetalayers))


def _compute_fields(frame: Frame, header_len: int) -> dict[str, Any]:
    """Return the computed fields, except `frame_len` and the fingerprint."""
    return {
        "cbytes": frame.cbytes if frame.nbytes else 0,
        # Older readers do not support chunks and blocks of different sizes; they refuse an unknown version.
        "format_version": 3 if frame.variable_chunks or frame.vl_blocks else 2,
        "metalayers": _b2nd_first(frame.metalayers),
        "header_len": header_len,
        "trailer_version": TRAILER_VERSION,
        "fingerprint_type": FINGERPRINT_128,
    }


def _b2nd_first(layers: Layers) -> Layers:
    if not layers or layers[0][0] == "b2nd":
        return layers
    return tuple(sorted(layers, key=lambda layer: layer[0] != "b2nd"))


def _check_writable(frame: Frame) -> None:
    expected = frame.nchunks
    if frame.chunksize > 0:
        expected = -(-frame.nbytes // frame.chunksize)
    if expected != frame.nchunks or bool(frame.nbytes) != bool(frame.nchunks):
        raise ValueError(f"{frame.nchunks} chunks of {frame.chunksize} bytes do not hold {frame.nbytes} bytes")
    # The index is one chunk with 8 bytes per entry.
    if 8 * frame.nchunks > MAX_CHUNK_NBYTES:
        raise LimitError(f"{frame.nchunks} chunks: the index holds at most {MAX_CHUNK_NBYTES // 8}")
    if frame.variable_chunks and (frame.offsets < 0).any():
        raise FormatError("expected no special offsets, which have no size where chunks have sizes of their own")
    top = int(frame.offsets.max(initial=-1))
    # Check sparse frames as well: the C library compares the numbers of their files with this field.
    if top >= 0 and top > frame.cbytes - HEADER_LEN:
        raise ValueError(f"an index entry of {top} needs more than {frame.cbytes} compressed bytes")
    index.check(frame.offsets, None if frame.frame_type == FrameType.SPARSE else frame.cbytes)
    metalayers.check(frame.metalayers)
    metalayers.check(frame.vlmetalayers)


def _pack_trailer(vlmetalayers: Layers) -> bytes:
    """Return the trailer, with a fingerprint of zeros."""
    layers = metalayers.pack(vlmetalayers, 2, uncounted=1)
    trailer_len = 2 + len(layers) + _TRAILER_END.size
    end = _TRAILER_END.pack(_UINT32, trailer_len, _FIXEXT16, FINGERPRINT_128, bytes(FINGERPRINT_NBYTES))
    return bytes([_TRAILER_MARKER, TRAILER_VERSION]) + layers + end


def pack_vlmeta(value: Buffer) -> bytes:
    """Pack the content of a variable-length metalayer as a chunk.

    LimitError: `unpack_vlmeta` would refuse a content of this size, even if the chunk is much smaller.
    """
    content = memoryview(value).cast("B")
    limit = config.limits.metadata_nbytes
    if content.nbytes > limit:
        raise LimitError(
            f"{content.nbytes} bytes of metadata in one value: at most {limit} are allowed"
            " (config.limits.metadata_nbytes)"
        )
    if content.nbytes <= _SHORT:
        return encode.encode(content, cparams=_RAW)
    middle = content.nbytes // 2
    if content.nbytes < _SAMPLED or _compress(content[middle : middle + _SAMPLE]) is not None:
        packed = _compress(content)
        if packed is not None:
            return packed
    return encode.encode(content, cparams=_RAW)


def _compress(content: memoryview) -> bytes | None:
    """Compress the content to a chunk; return None if the chunk is not smaller by at least a quarter.

    Otherwise the decoding, each time a frame is opened, would take longer than reading the additional bytes.
    """
    packed = encode.encode(content, typesize=1, cparams=_VLMETA_CPARAMS)
    return packed if 4 * len(packed) <= 3 * content.nbytes else None


def unpack_vlmeta(buf: Buffer) -> bytes:
    """Return the content of a variable-length metalayer, of at most `config.limits.metadata_nbytes` bytes."""
    header = ChunkHeader.unpack(buf)
    limit = config.limits.metadata_nbytes
    if header.cbytes != len(buf):
        raise FormatError(f"expected a chunk of {len(buf)} bytes, found one of {header.cbytes}")
    if header.nbytes > limit:
        raise FormatError(f"expected at most {limit} bytes (config.limits.metadata_nbytes), found {header.nbytes}")
    # Most attributes are too short to be compressed.
    if header.memcpyed and not header.special and not header.lazy:
        return bytes(buf[header.header_len :])
    return bytes(decode.decode(buf))
