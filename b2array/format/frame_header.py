"""The header of a frame: a table of the fields, and functions that read and write a header.

Source: "Blosc2 Contiguous Frame Format", section Header, of the Blosc2 documentation, and the files that the C library
writes. Integers are big-endian (msgpack).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from b2array import config
from b2array.buffers import Buffer
from b2array.codec.chunk_header import NFILTERS, NO_FILTERS, CodecId
from b2array.codec.cparams import CParams, SplitMode
from b2array.codec.filters import Pipeline, check_dropped_bits
from b2array.config import HEADER_LEN
from b2array.errors import FormatError, UnsupportedError
from b2array.format import foreign, metalayers
from b2array.format.metalayers import Layers

__all__ = [
    "FIRST_BYTES",
    "FIXED_LEN",
    "HEADER_FIELDS",
    "SPLITMODES",
    "FrameType",
    "Header",
    "header_nbytes",
    "pack_fields",
    "unpack_header",
]

_MAGIC = b"b2frame\0"
FIRST_BYTES = b"\x9e\xa8" + _MAGIC
"""The first bytes of every frame."""
FIXED_LEN = 87
HEADER_FIELDS = (
    ("magic", 2, "8s", "says that this is a frame"),
    ("header_size", 11, ">i", "bytes of the header"),
    ("frame_size", 16, ">Q", "bytes of the frame"),
    ("general_flags", 25, "B", "bits 0-3: format version; 4-5: width of the offsets; 6: chunks, 7: blocks of any size"),
    ("frame_type", 26, "B", "0: contiguous, 1: sparse"),
    ("codec_flags", 27, "B", "bits 0-3: codec; 4-7: level"),
    ("other_flags", 28, "B", "bits 0-1: how blocks are split"),
    ("uncompressed_size", 30, ">q", "bytes of all chunks"),
    ("compressed_size", 39, ">q", "bytes from the end of the header to the index; sparse: sum of the chunks and room"),
    ("type_size", 48, ">i", "bytes of an item"),
    ("block_size", 53, ">i", "bytes of a block, 0: chunks choose"),
    ("chunk_size", 58, ">i", "bytes of a chunk, 0: each its own"),
    ("nthreads_compress", 63, ">h", "for readers that obey it"),
    ("nthreads_decompress", 66, ">h", "for readers that obey it"),
    ("has_vlmetalayers", 68, "B", "0xc3: there are, 0xc2: there are none"),
    ("nfilters", 70, "B", "filters that may be in use"),
    ("filter_codes", 71, "6s", "ids of the filters in their order"),
    ("udcodec", 77, "B", "compcode of a codec of one's own"),
    ("codec_meta", 78, "B", "parameter of the codec"),
    ("filter_meta", 79, "6s", "parameters of the filters"),
    ("other_flags2", 85, "B", "bit 0: dictionaries"),
)
"""The fields of a header, each preceded by a msgpack marker: name, position, struct format, meaning."""

# Source: MessagePack specification, section Formats. The document shows 0xd2 at 0x45, but the C library writes a
# fixext16 whose type is the number of filters.
_MARKERS = {
    0x00: 0x9E, 0x01: 0xA8, 0x0A: 0xD2, 0x0F: 0xCF, 0x18: 0xA4, 0x1D: 0xD3, 0x26: 0xD3, 0x2F: 0xD2,
    0x34: 0xD2, 0x39: 0xD2, 0x3E: 0xD1, 0x41: 0xD1, 0x45: 0xD8,
}  # fmt: skip
_FIELD_NAMES = tuple(name for name, *_ in HEADER_FIELDS)


def _header_struct() -> struct.Struct:
    form, end = ">", 0
    for _, start, code, _ in HEADER_FIELDS:
        form += f"{start - end}x{code.strip('>')}"
        end = start + struct.calcsize(code)
    return struct.Struct(f"{form}{FIXED_LEN - end}x")


_FIXED = _header_struct()
# The C library opens no shorter frame.
_MIN_LAYERS_LEN = 10
_MIN_TRAILER_LEN = 25
_FALSE = 0xC2
_MAX_FORMAT_VERSION = 3
_UDCODEC = 6
_FLAG_OFFSETS_64 = 0x10
_FLAG_VARIABLE = 0x40
_FLAG_VL_BLOCKS = 0x80
SPLITMODES: tuple[SplitMode, ...] = ("always", "never", "auto", "blosc2")
"""The split modes, by the two lowest bits of `Header.other_flags`."""


class FrameType(IntEnum):
    """The place of the chunks: in the same file as the header, or in separate files next to it."""

    CONTIGUOUS = 0
    SPARSE = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Header:
    """The header of a frame. Sizes are in bytes.

    Parameters
    ----------
    frame_type : FrameType
    typesize : int
        The size of an item.
    chunksize : int
        The uncompressed size of a chunk; the last chunk may be shorter. The size is 0 if chunks have different sizes,
        or if an array has no items, and -1 as long as it is unknown.
    blocksize : int
        The size of a block; 0 if each chunk has a separate block size.
    nbytes : int
        The uncompressed size of all chunks.
    cbytes : int
        The field `compressed_size`. Contiguous: the distance from the end of the header to the index. Sparse: see
        `b2array.format.index.sparse_cbytes`.
    codec, clevel, codec_meta, filters, filters_meta, use_dict, other_flags
        The compression of new chunks: compcode, level, parameter of the codec, six filter ids and their parameters
        (unsigned bytes), and the byte with the split mode in its two lowest bits.
    nthreads_compress, nthreads_decompress : int
        The numbers of threads, for other readers that use them.
    vl_blocks : bool
        Whether chunks consist of blocks of variable length.
    format_version : int
    metalayers : tuple of (str, bytes)
        The names and the raw contents, in the order of the file.
    header_len, frame_len : int
        The sizes of the header and of the file with the header; 0 before the frame is packed.
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
        """Whether chunks have different sizes."""
        return self.chunksize == 0

    @property
    def tail_start(self) -> int:
        """The start of the tail (index and trailer), in bytes from the start of the frame."""
        # When the C library deletes the last chunk, it does not change the compressed size.
        if self.frame_type == FrameType.SPARSE or self.nbytes == 0:
            return self.header_len
        return self.header_len + self.cbytes

    @property
    def splitmode(self) -> SplitMode:
        """The split mode, by its name in `CParams`."""
        return SPLITMODES[self.other_flags & 3]

    @property
    def cparams(self) -> CParams:
        """The parameters for new chunks; raises UnsupportedError if a codec, a filter or a parameter does not fit."""
        try:
            return _cparams(
                self.codec,
                self.clevel,
                self.codec_meta,
                self.filters,
                self.filters_meta,
                self.splitmode,
                self.use_dict,
                self.nthreads_compress,
                self.typesize,
            )
        except ValueError as error:
            raise UnsupportedError(f"compression parameters of the frame: {error}") from None

    def metalayer(self, name: str) -> bytes | None:
        """Return the raw content of a metalayer, or None if there is no such metalayer."""
        return metalayers.find(self.metalayers, name)


@lru_cache(maxsize=64)
def _cparams(
    codec: int,
    clevel: int,
    codec_meta: int,
    filters: tuple[int, ...],
    metas: tuple[int, ...],
    splitmode: SplitMode,
    use_dict: bool,
    nthreads: int,
    typesize: int,
) -> CParams:
    # Empty slots may be anywhere: the C library puts its default filter into the last slot.
    active = [n for n, fid in enumerate(filters) if fid]
    cparams = CParams(
        codec,
        clevel,
        codec_meta,
        tuple([filters[n] for n in active]),
        tuple([metas[n] for n in active]),
        splitmode,
        use_dict,
        nthreads,
    )
    check_filters(cparams, typesize)
    return cparams


def check_filters(cparams: CParams, typesize: int) -> None:
    """Raise ValueError if a filter cannot be applied to items of `typesize` bytes."""
    # The header of a chunk has one byte for the size of an item; larger items are stored as single bytes.
    width = typesize if typesize <= 255 else 1
    check_dropped_bits(Pipeline(cparams.filter_slots, cparams.meta_slots, width))


def header_nbytes(buf: Buffer) -> int:
    """Return the length of the header that begins with `buf`; its first 15 bytes are enough."""
    if bytes(buf[2:10]) != _MAGIC:
        raise FormatError(f"expected a Blosc2 frame, found {foreign.describe(buf)}")
    if len(buf) < 15:
        raise FormatError(f"expected the first 15 bytes of a frame header, found {len(buf)} bytes")
    (header_len,) = struct.unpack_from(">i", buf, 11)
    smallest, limit = FIXED_LEN + _MIN_LAYERS_LEN, config.limits.metadata_nbytes
    if not smallest <= header_len <= limit:
        raise FormatError(
            f"expected a header of {smallest} to {limit} bytes (config.limits.metadata_nbytes), found {header_len}"
        )
    return int(header_len)


def unpack_header(buf: Buffer) -> Header:
    """Read the header of a frame. Any bytes after it are ignored.

    If `buf` ends before the header does, the FormatError shows the length of the header, which `header_nbytes` returns.
    """
    header_len = header_nbytes(buf)
    if len(buf) < header_len:
        raise FormatError(f"expected a frame header of {header_len} bytes, found {len(buf)} bytes")
    buf = bytes(buf[:header_len])
    fields = dict(zip(_FIELD_NAMES, _FIXED.unpack_from(buf), strict=True))
    flags = fields["general_flags"]
    # The low bits are the compcode, and not, as the document says, the codec format number of chunks.
    codec = fields["codec_flags"]
    nfilters = fields["nfilters"]
    if nfilters > NFILTERS:
        raise FormatError(f"expected at most {NFILTERS} filters, found {nfilters}")
    unused = bytes(NFILTERS - nfilters)
    header = Header(
        frame_type=_frame_type(flags, fields["frame_type"]),
        format_version=flags & 0x0F,
        vl_blocks=bool(flags & _FLAG_VL_BLOCKS),
        typesize=fields["type_size"],
        chunksize=fields["chunk_size"],
        blocksize=fields["block_size"],
        nbytes=fields["uncompressed_size"],
        cbytes=fields["compressed_size"],
        codec=fields["udcodec"] if codec & 0x0F == _UDCODEC else codec & 0x0F,
        clevel=codec >> 4,
        codec_meta=fields["codec_meta"],
        filters=tuple(fields["filter_codes"][:nfilters] + unused),
        filters_meta=tuple(fields["filter_meta"][:nfilters] + unused),
        use_dict=bool(fields["other_flags2"] & 1),
        other_flags=fields["other_flags"],
        nthreads_compress=fields["nthreads_compress"],
        nthreads_decompress=fields["nthreads_decompress"],
        metalayers=metalayers.unpack(buf, FIXED_LEN),
        header_len=header_len,
        frame_len=fields["frame_size"],
    )
    _check_sizes(header)
    return header


def _frame_type(flags: int, frame_type: int) -> FrameType:
    version = flags & 0x0F
    width = 32 << (flags >> 4 & 3)
    if version > _MAX_FORMAT_VERSION:
        raise UnsupportedError(f"frame format version {version}: versions up to {_MAX_FORMAT_VERSION} are known")
    if width != 64:
        raise UnsupportedError(f"chunk offsets of {width} bits: only those of 64 bits are known")
    if frame_type not in (FrameType.CONTIGUOUS, FrameType.SPARSE):
        raise UnsupportedError(f"frame type {frame_type:#04x}: 0 (contiguous) and 1 (sparse) are known")
    return FrameType(frame_type)


def _check_sizes(header: Header) -> None:
    if header.typesize <= 0:
        raise FormatError(f"expected a typesize of 1 or more, found {header.typesize}")
    if header.blocksize < 0:
        raise FormatError(f"expected a blocksize of 0 or more, found {header.blocksize}")
    if header.nbytes < 0:
        raise FormatError(f"expected an uncompressed size of 0 or more, found {header.nbytes}")
    if header.cbytes < 0:
        raise FormatError(f"expected a compressed size of 0 or more, found {header.cbytes}")
    # The C library writes -1 before the first append.
    least_chunksize = 0 if header.nbytes else -1
    if header.chunksize < least_chunksize:
        raise FormatError(f"expected a chunksize of 0 or more, found {header.chunksize}")
    limit = config.limits.chunk_nbytes
    if header.chunksize > limit:
        raise FormatError(f"expected a chunksize of at most {limit}, found {header.chunksize}")
    # The index may be a chunk of Blosc 1, whose header has half the length.
    index_len = HEADER_LEN // 2 if header.nbytes else 0
    smallest = header.tail_start + index_len + _MIN_TRAILER_LEN
    if header.frame_len < smallest:
        raise FormatError(f"expected a frame of {smallest} bytes or more, found {header.frame_len}")


def pack_fields(frame: Header, layers: bytes, *, has_vlmetalayers: bool) -> bytes:
    """Return the bytes of a header with unchanged sizes. `layers` is the packed map of metalayers."""
    flags = frame.format_version | _FLAG_OFFSETS_64
    flags |= _FLAG_VARIABLE * frame.variable_chunks | _FLAG_VL_BLOCKS * frame.vl_blocks
    codec = frame.codec if frame.codec < 16 else _UDCODEC
    fields = {
        "magic": _MAGIC,
        "header_size": frame.header_len,
        "frame_size": frame.frame_len,
        "general_flags": flags,
        "frame_type": frame.frame_type,
        "codec_flags": codec | frame.clevel << 4,
        "other_flags": frame.other_flags,
        "uncompressed_size": frame.nbytes,
        "compressed_size": frame.cbytes,
        "type_size": frame.typesize,
        "block_size": frame.blocksize,
        "chunk_size": frame.chunksize,
        "nthreads_compress": frame.nthreads_compress,
        "nthreads_decompress": frame.nthreads_decompress,
        "has_vlmetalayers": _FALSE + has_vlmetalayers,
        "nfilters": NFILTERS,
        "filter_codes": bytes(frame.filters),
        # Set this field for built-in codecs as well, as the C library does.
        "udcodec": frame.codec,
        "codec_meta": frame.codec_meta,
        "filter_meta": bytes(frame.filters_meta),
        "other_flags2": frame.use_dict,
    }
    header = bytearray(_FIXED.pack(*map(fields.__getitem__, _FIELD_NAMES)))
    for at, marker in _MARKERS.items():
        header[at] = marker
    return bytes(header) + layers
