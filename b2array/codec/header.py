"""The chunk header and the numbers that the formats share.

Source: "Blosc Chunk Format" (sections Header and Blocks) of the Blosc2 documentation, and the files that the
C library writes. All integers are little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from b2array.buffers import Buffer
from b2array.config import HEADER_LEN, MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.errors import FormatError, UnsupportedError

__all__ = [
    "BLOSC1_HEADER_LEN",
    "CODEC_FORMATS",
    "MAX_DICT_NBYTES",
    "NAN_BYTES",
    "NFILTERS",
    "NO_FILTERS",
    "ChunkHeader",
    "CodecFormat",
    "CodecId",
    "FilterId",
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

    Ids from 32 belong to registered codecs, from 160 to the user's own.
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
    """Filters of the pipeline; ids from 160 belong to the user."""

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
    """What a chunk without stored blocks consists of."""

    NONE = 0
    ZEROS = 1
    NAN = 2
    VALUE = 3
    UNINIT = 4


NAN_BYTES = {4: bytes.fromhex("0000c07f"), 8: bytes.fromhex("000000000000f87f")}
"""The NaN that special chunks stand for, by the size of the item."""

CODEC_FORMATS: dict[int, CodecFormat] = {
    CodecId.BLOSCLZ: CodecFormat.BLOSCLZ,
    CodecId.LZ4: CodecFormat.LZ4,
    CodecId.LZ4HC: CodecFormat.LZ4,
    CodecId.ZLIB: CodecFormat.ZLIB,
    CodecId.ZSTD: CodecFormat.ZSTD,
}
_CODEC_OF_FORMAT = {
    CodecFormat.BLOSCLZ: CodecId.BLOSCLZ,
    CodecFormat.LZ4: CodecId.LZ4,
    CodecFormat.ZLIB: CodecId.ZLIB,
    CodecFormat.ZSTD: CodecId.ZSTD,
}

# Looking a member up is several times faster than making the enumeration find it.
_SPECIALS = tuple(Special)
_FORMATS = tuple(CodecFormat)

_BLOSC1 = struct.Struct("<4B3i")
_EXTENDED = struct.Struct("<4B3i6s2B6s2B")


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The first 16 (Blosc1) or 32 bytes of a chunk.

    Sizes are in bytes. `blocksize` is as stored: foreign chunks may name more than `nbytes`, and a chunk of
    variable-length blocks stores the number of blocks there; `block_nbytes` and `nblocks` have the meaning.
    `filters` are in pipeline order; for a Blosc1 header they are derived from its flags.
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

    @classmethod
    def unpack(cls, buf: Buffer) -> Self:
        """Read a header from the first bytes of `buf`.

        Parameters
        ----------
        buf : bytes-like
            At least the header; what follows is not looked at.

        Raises
        ------
        FormatError
            A field has a value that no reader accepts.
        UnsupportedError
            The header announces a later version of the format.
        """
        _need(len(buf) >= BLOSC1_HEADER_LEN, f"a chunk header of {BLOSC1_HEADER_LEN} bytes", f"{len(buf)} bytes")
        version, versionlz, flags, typesize, nbytes, blocksize, cbytes = _BLOSC1.unpack_from(buf)
        filters, filters_meta = NO_FILTERS, NO_FILTERS
        udcodec = codec_meta = flags2 = blosc2_flags = 0
        if flags & FLAG_EXTENDED == FLAG_EXTENDED:
            _need(len(buf) >= HEADER_LEN, f"a chunk header of {HEADER_LEN} bytes", f"{len(buf)} bytes")
            *_, ids, udcodec, codec_meta, metas, flags2, blosc2_flags = _EXTENDED.unpack_from(buf)
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
            typesize, nbytes, blocksize, cbytes, flags, version, versionlz,
            filters, filters_meta, udcodec, codec_meta, flags2, blosc2_flags,
        )  # fmt: skip
        self._check()
        return self

    def _check(self) -> None:
        _need(self.typesize > 0, "a typesize of 1 to 255", "0")
        _need(0 <= self.nbytes <= MAX_CHUNK_NBYTES, f"chunk nbytes of 0 to {MAX_CHUNK_NBYTES}", str(self.nbytes))
        _need(0 < self.blocksize <= MAX_BLOCKSIZE, f"a blocksize of 1 to {MAX_BLOCKSIZE}", str(self.blocksize))
        _need(self.cbytes >= self.header_len, f"chunk cbytes of at least {self.header_len}", str(self.cbytes))
        code = self.blosc2_flags >> 4 & 0x07
        _need(code <= Special.UNINIT, "a special value code of 0 to 4", str(code))
        if self.vl_blocks:
            _need(not (self.special or self.memcpyed), "stored blocks in a VL-block chunk", f"flags {self.flags:#04x}")
            return
        if self.special == Special.VALUE:
            size = self.cbytes - self.header_len
            fits = 0 < size <= self.nbytes and self.nbytes % size == 0
            _need(fits, f"a repeated value that divides the chunk's {self.nbytes} bytes", f"{size} bytes")
        elif self.special == Special.NAN:
            _need(self.typesize in (4, 8), "a typesize of 4 or 8 for NaN", str(self.typesize))
            _need(self.nbytes % self.typesize == 0, f"a multiple of {self.typesize} bytes of NaN", str(self.nbytes))
        elif self.memcpyed and not self.special:
            expected = self.nbytes + self.header_len
            _need(self.cbytes == expected, f"cbytes of {expected} in a chunk stored raw", str(self.cbytes))

    def pack(self) -> bytes:
        """Return the header's bytes: 32, or 16 for a Blosc1 header."""
        fields = (self.version, self.versionlz, self.flags, self.typesize, self.nbytes, self.blocksize, self.cbytes)
        if not self.extended:
            return _BLOSC1.pack(*fields)
        return _EXTENDED.pack(
            *fields, bytes(self.filters), self.udcodec, self.codec_meta,
            bytes(self.filters_meta), self.flags2, self.blosc2_flags,
        )  # fmt: skip

    @property
    def extended(self) -> bool:
        """Whether the header has 32 bytes."""
        return self.flags & FLAG_EXTENDED == FLAG_EXTENDED

    @property
    def header_len(self) -> int:
        """Length of the header in bytes."""
        return HEADER_LEN if self.extended else BLOSC1_HEADER_LEN

    @property
    def special(self) -> Special:
        """The special value that fills the chunk, before anything else in the header counts."""
        return _SPECIALS[self.blosc2_flags >> 4 & 0x07]

    @property
    def memcpyed(self) -> bool:
        """Whether the data follow the header as they are, unfiltered."""
        return bool(self.flags & FLAG_MEMCPYED)

    @property
    def lazy(self) -> bool:
        """Whether a trailer stands in for the blocks."""
        return bool(self.blosc2_flags & BLOSC2_FLAG_LAZY)

    @property
    def instrumented(self) -> bool:
        """Whether the streams hold measurements instead of data."""
        return bool(self.blosc2_flags & BLOSC2_FLAG_INSTRUMENTED)

    @property
    def vl_blocks(self) -> bool:
        """Whether the blocks have lengths of their own."""
        return bool(self.flags2 & FLAG2_VL_BLOCKS)

    @property
    def has_dict(self) -> bool:
        """Whether a dictionary follows the block starts.

        The C library leaves the bit set in chunks that turned out incompressible; there it means nothing.
        """
        return bool(self.blosc2_flags & BLOSC2_FLAG_DICT) and self.has_streams

    @property
    def has_streams(self) -> bool:
        """Whether block starts and compressed streams follow the header."""
        return not self.memcpyed and not self.special and self.nbytes > 0

    @property
    def block_nbytes(self) -> int:
        """Uncompressed size in bytes of every block but the last."""
        return min(self.blocksize, self.nbytes)

    @property
    def nblocks(self) -> int:
        """Number of blocks."""
        if self.vl_blocks:
            return self.blocksize
        return -(-self.nbytes // self.block_nbytes) if self.nbytes else 0

    @property
    def last_block_nbytes(self) -> int:
        """Uncompressed size in bytes of the last block."""
        return self.nbytes - (self.nblocks - 1) * self.block_nbytes if self.nbytes else 0

    @property
    def nstreams(self) -> int:
        """Number of streams in every block but a short last one, which has a single stream."""
        if self.flags & FLAG_UNSPLIT or self.vl_blocks:
            return 1
        if self.version == VERSION_BLOSC1 and not self.extended:
            # C-Blosc 1 splits by this rule whatever the flag says; before 1.14 the flag did not exist.
            return self.typesize if self.typesize <= 16 and self.block_nbytes // self.typesize >= 128 else 1
        return self.typesize

    @property
    def codec_format(self) -> CodecFormat:
        """The codec bits of the flags."""
        return _FORMATS[self.flags >> 5]

    def codec_id(self, frame_codec: int | None = None) -> int:
        """Return the compcode of the codec that made the streams (LZ4 stands for LZ4HC too).

        Parameters
        ----------
        frame_codec : int, optional
            The codec of the frame that holds the chunk, for chunks that defer to it.

        Raises
        ------
        UnsupportedError
            The chunk names no codec that exists, or defers to a frame when there is none.
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


def _need(ok: bool, expected: str, found: str) -> None:
    if not ok:
        raise FormatError(f"expected {expected}, found {found}")
