"""The chunk header and the numbers that the formats share.

Source: "Blosc Chunk Format" (sections Header and Blocks) of the Blosc2 documentation, and the files that the
C library writes. All integers are little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Self

from b2array.buffers import Buffer
from b2array.config import HEADER_LEN, MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.errors import FormatError, UnsupportedError

__all__ = [
    "BLOSC1_HEADER_LEN",
    "CODEC_FORMATS",
    "FIELDS",
    "MAX_DICT_NBYTES",
    "NAN_BYTES",
    "NFILTERS",
    "NO_FILTERS",
    "ChunkHeader",
    "CodecFormat",
    "CodecId",
    "FilterId",
    "HeaderField",
    "Special",
]

BLOSC1_HEADER_LEN = 16
NFILTERS = 6
MAX_DICT_NBYTES = 32768

VERSION_BLOSC1 = 2
VERSION_ALPHA = 3
VERSION_STABLE = 5
VERSION_VL_BLOCKS = 6

FLAG_SHUFFLE = 0x01
FLAG_MEMCPYED = 0x02
FLAG_BITSHUFFLE = 0x04
FLAG_DELTA = 0x08
FLAG_UNSPLIT = 0x10
FLAG_EXTENDED = FLAG_SHUFFLE | FLAG_BITSHUFFLE

FLAG2_VL_BLOCKS = 0x01

BLOSC2_FLAG_DICT = 0x01
BLOSC2_FLAG_LAZY = 0x08
BLOSC2_FLAG_INSTRUMENTED = 0x80

NO_FILTERS = (0,) * NFILTERS


class CodecId(IntEnum):
    """The compcode: the numbering of frame headers, of `CParams` and of the `udcodec` byte.

    Ids from 32 belong to registered codecs, and ids from 160 to the user's own codecs.
    """

    BLOSCLZ = 0
    LZ4 = 1
    LZ4HC = 2
    ZLIB = 4
    ZSTD = 5


class CodecFormat(IntEnum):
    """The codec numbering of the chunk's flags byte (bits 5 to 7): the format of the payload."""

    BLOSCLZ = 0
    LZ4 = 1
    SNAPPY = 2
    ZLIB = 3
    ZSTD = 4
    RESERVED = 5
    USER = 6
    FRAME = 7


class FilterId(IntEnum):
    """Filters of the pipeline. Users own the ids from 160."""

    NOFILTER = 0
    SHUFFLE = 1
    BITSHUFFLE = 2
    DELTA = 3
    TRUNC_PREC = 4
    NDCELL = 32
    NDMEAN = 33
    BYTEDELTA_BUGGY = 34
    BYTEDELTA = 35
    INT_TRUNC = 36


class Special(IntEnum):
    """The contents of a chunk without stored blocks."""

    NONE = 0
    ZEROS = 1
    NAN = 2
    VALUE = 3
    UNINIT = 4


NAN_BYTES = {4: bytes.fromhex("0000c07f"), 8: bytes.fromhex("000000000000f87f")}
"""The NaN in special chunks, by the size of the item."""

CODEC_FORMATS: dict[int, CodecFormat] = {
    CodecId.BLOSCLZ: CodecFormat.BLOSCLZ,
    CodecId.LZ4: CodecFormat.LZ4,
    CodecId.LZ4HC: CodecFormat.LZ4,
    CodecId.ZLIB: CodecFormat.ZLIB,
    CodecId.ZSTD: CodecFormat.ZSTD,
}
# In reverse order, so that LZ4 also stands for LZ4HC.
_CODEC_OF_FORMAT = {fmt: CodecId(codec) for codec, fmt in reversed(CODEC_FORMATS.items())}

# Indexing a tuple is several times faster than looking a member up in its enumeration.
_SPECIALS = tuple(Special)
_FORMATS = tuple(CodecFormat)


class HeaderField(NamedTuple):
    """A field of the chunk header: its name, its little-endian struct format, and its meaning."""

    name: str
    format: str
    meaning: str


FIELDS = (
    HeaderField("version", "B", "version of the chunk format"),
    HeaderField("versionlz", "B", "version of the codec's format"),
    HeaderField("flags", "B", "filters, codec, raw, split"),
    HeaderField("typesize", "B", "bytes of an item"),
    HeaderField("nbytes", "i", "uncompressed bytes"),
    HeaderField("blocksize", "i", "bytes of a block"),
    HeaderField("cbytes", "i", "compressed bytes"),
    HeaderField("filter_codes", "6s", "ids of the filters"),
    HeaderField("udcodec", "B", "compcode"),
    HeaderField("codec_meta", "B", "parameter of the codec"),
    HeaderField("filter_meta", "6s", "parameters of the filters"),
    HeaderField("flags2", "B", "bit 0: blocks of any size"),
    HeaderField("blosc2_flags", "B", "bit 0: dictionary; 4-6: special value"),
)
"""The fields of a chunk header in order, without gaps. A Blosc1 header ends after `cbytes`."""

_NBLOSC1 = 7
_BLOSC1 = struct.Struct("<" + "".join(field.format for field in FIELDS[:_NBLOSC1]))
_EXTENDED = struct.Struct("<" + "".join(field.format for field in FIELDS))


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The first 16 (Blosc1) or 32 bytes of a chunk, and values derived from them.

    All sizes are in bytes. The fields of `FIELDS` come first, with their stored values: `blocksize` may exceed `nbytes`
    in chunks of other writers, and is the number of blocks in a chunk of variable-length blocks; use `block_nbytes` and
    `nblocks` instead. `filters` are in pipeline order; a Blosc1 header derives them from its flags.

    The other fields are derived once, when the header is made.
    """

    typesize: int
    nbytes: int
    blocksize: int
    cbytes: int
    flags: int
    version: int = VERSION_STABLE
    versionlz: int = 1
    filters: tuple[int, ...] = NO_FILTERS
    filters_meta: tuple[int, ...] = NO_FILTERS
    udcodec: int = 0
    codec_meta: int = 0
    flags2: int = 0
    blosc2_flags: int = 0

    extended: bool = field(init=False, repr=False, compare=False)  # the header has 32 bytes
    header_len: int = field(init=False, repr=False, compare=False)
    special: Special = field(init=False, repr=False, compare=False)  # unless NONE, it overrules `memcpyed` and codec
    memcpyed: bool = field(init=False, repr=False, compare=False)  # the unfiltered data follow the header
    lazy: bool = field(init=False, repr=False, compare=False)  # a trailer replaces the blocks
    instrumented: bool = field(init=False, repr=False, compare=False)  # the streams hold measurements instead of data
    vl_blocks: bool = field(init=False, repr=False, compare=False)  # blocks have different lengths
    has_streams: bool = field(init=False, repr=False, compare=False)  # block starts and streams follow the header
    has_dict: bool = field(init=False, repr=False, compare=False)  # the C library also sets the flag without streams
    block_nbytes: int = field(init=False, repr=False, compare=False)  # uncompressed, of every block but the last
    nblocks: int = field(init=False, repr=False, compare=False)
    last_block_nbytes: int = field(init=False, repr=False, compare=False)
    nstreams: int = field(init=False, repr=False, compare=False)  # of a block; a short last block always has one
    codec_format: CodecFormat = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        flags, blosc2_flags, nbytes = self.flags, self.blosc2_flags, self.nbytes
        extended = flags & FLAG_EXTENDED == FLAG_EXTENDED
        memcpyed, vl_blocks = bool(flags & FLAG_MEMCPYED), bool(self.flags2 & FLAG2_VL_BLOCKS)
        code = blosc2_flags >> 4 & 0x07
        special = _SPECIALS[code] if code <= Special.UNINIT else Special.NONE
        block_nbytes = min(self.blocksize, nbytes)
        nblocks = self.blocksize if vl_blocks else -(-nbytes // block_nbytes) if block_nbytes > 0 else 0
        has_streams = not memcpyed and not special and nbytes > 0
        nstreams = self.typesize
        if flags & FLAG_UNSPLIT or vl_blocks:
            nstreams = 1
        elif self.version == VERSION_BLOSC1 and not extended:
            # C-Blosc 1 splits by this rule and ignores the flag, which did not exist before version 1.14.
            nstreams = nstreams if 0 < nstreams <= 16 and block_nbytes // nstreams >= 128 else 1
        derive = object.__setattr__
        derive(self, "extended", extended)
        derive(self, "header_len", HEADER_LEN if extended else BLOSC1_HEADER_LEN)
        derive(self, "special", special)
        derive(self, "memcpyed", memcpyed)
        derive(self, "lazy", bool(blosc2_flags & BLOSC2_FLAG_LAZY))
        derive(self, "instrumented", bool(blosc2_flags & BLOSC2_FLAG_INSTRUMENTED))
        derive(self, "vl_blocks", vl_blocks)
        derive(self, "has_streams", has_streams)
        derive(self, "has_dict", has_streams and bool(blosc2_flags & BLOSC2_FLAG_DICT))
        derive(self, "block_nbytes", block_nbytes)
        derive(self, "nblocks", nblocks)
        derive(self, "last_block_nbytes", nbytes - (nblocks - 1) * block_nbytes if nbytes else 0)
        derive(self, "nstreams", nstreams)
        derive(self, "codec_format", _FORMATS[flags >> 5])

    def require_known_version(self) -> None:
        """Raise UnsupportedError for a chunk of a later format, which may be read, but not changed or written."""
        if self.version > VERSION_VL_BLOCKS:
            raise UnsupportedError(
                f"a chunk of version {self.version} (known are up to {VERSION_VL_BLOCKS}) can be read, but not written"
            )

    @classmethod
    def unpack(cls, buf: Buffer) -> Self:
        """Read a header from the first bytes of `buf`."""
        if len(buf) < BLOSC1_HEADER_LEN:
            raise FormatError(f"expected a chunk header of {BLOSC1_HEADER_LEN} bytes, found {len(buf)} bytes")
        version, versionlz, flags, typesize, nbytes, blocksize, cbytes = _BLOSC1.unpack_from(buf)
        filters, filters_meta = NO_FILTERS, NO_FILTERS
        udcodec = codec_meta = flags2 = blosc2_flags = 0
        if flags & FLAG_EXTENDED == FLAG_EXTENDED:
            if len(buf) < HEADER_LEN:
                raise FormatError(f"expected a chunk header of {HEADER_LEN} bytes, found {len(buf)} bytes")
            ids, udcodec, codec_meta, metas, flags2, blosc2_flags = _EXTENDED.unpack_from(buf)[_NBLOSC1:]
            filters, filters_meta = tuple(ids), tuple(metas)
            if version == VERSION_ALPHA:
                filters, filters_meta = (*filters[:5], 0), (*filters_meta[:5], 0)
        else:
            filters = _blosc1_filters(flags, typesize)
        if flags2 & ~FLAG2_VL_BLOCKS and version > VERSION_VL_BLOCKS:
            raise UnsupportedError(
                f"chunk format version {version} with flags2 {flags2:#04x}; known: up to {VERSION_VL_BLOCKS}"
            )
        self = cls(
            typesize,
            nbytes,
            blocksize,
            cbytes,
            flags,
            version,
            versionlz,
            filters,
            filters_meta,
            udcodec,
            codec_meta,
            flags2,
            blosc2_flags,
        )
        self._check()
        return self

    def _check(self) -> None:
        nbytes, code = self.nbytes, self.blosc2_flags >> 4 & 0x07
        if not self.typesize:
            raise FormatError("expected a typesize of 1 to 255, found 0")
        if not 0 <= nbytes <= MAX_CHUNK_NBYTES:
            raise FormatError(f"expected chunk nbytes of 0 to {MAX_CHUNK_NBYTES}, found {nbytes}")
        if not 0 < self.blocksize <= MAX_BLOCKSIZE:
            raise FormatError(f"expected a blocksize of 1 to {MAX_BLOCKSIZE}, found {self.blocksize}")
        if self.cbytes < self.header_len:
            raise FormatError(f"expected chunk cbytes of at least {self.header_len}, found {self.cbytes}")
        if code > Special.UNINIT:
            raise FormatError(f"expected a special value code of 0 to 4, found {code}")
        if self.vl_blocks and (code or self.memcpyed):
            raise FormatError(f"expected stored blocks in a VL-block chunk, found flags {self.flags:#04x}")
        if code:
            self._check_special()
        elif self.memcpyed and self.cbytes != nbytes + self.header_len:
            raise FormatError(
                f"expected cbytes of {nbytes + self.header_len} in a chunk stored raw, found {self.cbytes}"
            )

    def _check_special(self) -> None:
        nbytes, size = self.nbytes, self.cbytes - self.header_len
        if self.special == Special.VALUE and (not 0 < size <= nbytes or nbytes % size):
            raise FormatError(f"expected a repeated value that divides the chunk's {nbytes} bytes, found {size} bytes")
        if self.special == Special.NAN:
            if self.typesize not in (4, 8):
                raise FormatError(f"expected a typesize of 4 or 8 for NaN, found {self.typesize}")
            if nbytes % self.typesize:
                raise FormatError(f"expected a multiple of {self.typesize} bytes of NaN, found {nbytes}")

    def pack(self) -> bytes:
        """Return the header's bytes: 32, or 16 for a Blosc1 header."""
        fields = (self.version, self.versionlz, self.flags, self.typesize, self.nbytes, self.blocksize, self.cbytes)
        if not self.extended:
            return _BLOSC1.pack(*fields)
        return _EXTENDED.pack(
            *fields,
            bytes(self.filters),
            self.udcodec,
            self.codec_meta,
            bytes(self.filters_meta),
            self.flags2,
            self.blosc2_flags,
        )

    def codec_id(self, frame_codec: int | None = None) -> int:
        """Return the compcode of the codec of the streams; LZ4 also stands for LZ4HC.

        Some chunks defer to the codec of their frame, `frame_codec`. UnsupportedError is raised if no codec is named.
        """
        fmt = self.codec_format
        if fmt in _CODEC_OF_FORMAT:
            return _CODEC_OF_FORMAT[fmt]
        if fmt == CodecFormat.USER:
            return self.udcodec
        if fmt == CodecFormat.FRAME and frame_codec is not None:
            return frame_codec
        raise UnsupportedError(f"chunk codec format {int(fmt)} ({fmt.name.lower()}) cannot be decoded here")


def _blosc1_filters(flags: int, typesize: int) -> tuple[int, ...]:
    delta = FilterId.DELTA if flags & FLAG_DELTA else 0
    shuffle = 0
    if flags & FLAG_SHUFFLE and typesize > 1:
        shuffle = FilterId.SHUFFLE
    elif flags & FLAG_BITSHUFFLE:
        shuffle = FilterId.BITSHUFFLE
    return (0, 0, 0, 0, int(delta), int(shuffle))
