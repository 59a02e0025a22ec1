"""Codecs: one stream of a block <-> its compressed payload, and the registry of user-defined codecs.

Sources: "Blosc Chunk Format" (section Blocks) of the Blosc2 documentation, "LZ4 Block Format Description", RFC 1950
(zlib), RFC 8878 (Zstandard), and the files that the C library writes. LZ4 and LZ4HC share one format: a bare block
without a length in front. A zstd payload is one frame that knows its content size; others of several frames are read
too.

BloscLZ streams are not decoded here: they are handed to the C library inside a Blosc1 chunk.

Every function may be called from several threads at once.
"""

from __future__ import annotations

import importlib
import io
import operator
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numcodecs.lz4
import numpy as np
import numpy.typing as npt
import zstandard
from numcodecs.abc import Codec
from numcodecs.compat import ensure_bytes

from b2array.buffers import Buffer
from b2array.codec.header import MAX_DICT_NBYTES, CodecId
from b2array.errors import B2ArrayError, FormatError, UnsupportedError

__all__ = [
    "MAX_RATIO",
    "codec_id",
    "codec_name",
    "decode",
    "decode_zstd_frames",
    "encode",
    "register",
    "require",
    "train",
]

Int64Array = npt.NDArray[np.int64]
MakeCodec = Callable[[int, int, tuple[int, ...] | None], Codec]

MAX_RATIO = {
    CodecId.BLOSCLZ: 255,
    CodecId.LZ4: 255,
    CodecId.LZ4HC: 255,
    CodecId.ZLIB: 1032,
    CodecId.ZSTD: 32768,
}
"""Bytes that one byte of payload can stand for at most: what claims more is corrupt, and no memory is taken for it."""

_FIRST_USER_ID, _LAST_ID = 32, 255
# What every zstd decoder should support (RFC 8878, section Window Descriptor).
_MAX_WINDOW = 8 * 2**20
_MIN_DICT_NBYTES = 256
_SAMPLE_NBYTES = 4096
_ZSTD_MAX_LEVEL = 22


@lru_cache(maxsize=1)
def _lz4_block() -> ModuleType | None:
    # Late, because few need it.
    try:
        return importlib.import_module("lz4.block")
    except ImportError:
        return None


_registry: dict[int, MakeCodec] = {}


def codec_id(codec: str | int) -> int:
    """Return the compcode of a codec.

    Parameters
    ----------
    codec : str or int
        A built-in codec's name or id, or a registered id.

    Raises
    ------
    ValueError
        There is no such codec.
    TypeError
        `codec` is neither a name nor an integer.

    Examples
    --------
    >>> codec_id("zstd")
    <CodecId.ZSTD: 5>
    """
    if isinstance(codec, str):
        names = [member.name.lower() for member in CodecId]
        if codec not in names:
            raise ValueError(f"unknown codec {codec!r}; there are {', '.join(names)}, and registered ids")
        return CodecId[codec.upper()]
    if isinstance(codec, bool):
        raise TypeError("codec must be a name or an id, not bool")
    number = operator.index(codec)
    if number in _BUILT_IN:
        return CodecId(number)
    if number not in _registry:
        raise ValueError(f"unknown codec id {number}; register it first with b2array.codecs.register")
    return number


def codec_name(codec: int) -> str:
    """Return the name of a compcode.

    Examples
    --------
    >>> codec_name(2), codec_name(200)
    ('lz4hc', 'codec 200')
    """
    return CodecId(codec).name.lower() if codec in _BUILT_IN else f"codec {codec}"


def register(codec_id: int, make: MakeCodec) -> None:
    """Make a codec of your own known under an id; an earlier one of the same id is replaced.

    Parameters
    ----------
    codec_id : int
        32 to 255. Ids below 160 are given out by the Blosc project for its plugins.
    make : callable
        ``make(meta, typesize, blockshape)`` returns a `numcodecs.abc.Codec`, whose ``encode`` and ``decode`` then get
        one stream as `bytes`. `meta` is the codec's parameter byte, `typesize` is in bytes, `blockshape` is in items,
        or None outside of arrays. It is called for every stream, from several threads.

    Raises
    ------
    ValueError
        The id is out of range, as those of the built-in codecs are.
    TypeError
        The id is not an integer, or `make` cannot be called.

    Examples
    --------
    >>> import numcodecs
    >>> register(200, lambda meta, typesize, blockshape: numcodecs.BZ2(level=meta or 1))
    >>> payload = encode(200, bytes(1000), meta=9)
    >>> decode(200, payload, 1000, meta=9) == bytes(1000)
    True
    """
    number = operator.index(codec_id)
    if not _FIRST_USER_ID <= number <= _LAST_ID:
        raise ValueError(f"codec ids of your own are {_FIRST_USER_ID} to {_LAST_ID}, not {number}")
    if not callable(make):
        raise TypeError(f"make must be callable, not {type(make).__name__}")
    _registry[number] = make


def decode(
    codec: int,
    payload: Buffer,
    nbytes: int,
    *,
    meta: int = 0,
    typesize: int = 1,
    blockshape: tuple[int, ...] | None = None,
    dictionary: bytes | None = None,
) -> Buffer:
    """Decode the payload of one stream.

    Parameters
    ----------
    codec : int
        Compcode. BloscLZ is not decoded here.
    payload : bytes-like of uint8
        The stream without its length.
    nbytes : int
        Size of the decoded stream.
    meta, typesize, blockshape
        Passed on to a registered codec: its parameter byte, the size of an item in bytes and the shape of a block.
    dictionary : bytes, optional
        The chunk's dictionary. Only zstd and LZ4 know dictionaries, the other codecs ignore it.

    Returns
    -------
    bytes-like of uint8
        Exactly `nbytes` bytes.

    Raises
    ------
    FormatError
        The payload does not decode to `nbytes` bytes.
    UnsupportedError
        Nobody registered this codec.

    Examples
    --------
    >>> decode(4, zlib.compress(b"b2array" * 20), 140)[:14]
    b'b2arrayb2array'
    """
    built_in = _DECODERS.get(codec)
    if built_in is None:
        data = _decode_user(_maker(codec), codec, payload, nbytes, (meta, typesize, blockshape))
    elif nbytes > len(payload) * MAX_RATIO[CodecId(codec)]:
        raise _corrupt(codec, payload, nbytes, "too few to hold them")
    else:
        try:
            data = built_in(payload, nbytes, dictionary)
        except (RuntimeError, ValueError, zlib.error, zstandard.ZstdError) as error:
            raise _corrupt(codec, payload, nbytes, str(error)) from error
    if len(data) != nbytes:
        raise _corrupt(codec, payload, nbytes, f"{len(data)} bytes")
    return data


def encode(
    codec: int,
    data: Buffer,
    *,
    clevel: int = 5,
    meta: int = 0,
    typesize: int = 1,
    blockshape: tuple[int, ...] | None = None,
    dictionary: bytes | None = None,
) -> bytes | None:
    r"""Encode one stream.

    Parameters
    ----------
    codec : int
        Compcode. BloscLZ is not encoded here. LZ4HC needs the package lz4; without it the stream is made by LZ4, in
        the same format but larger.
    data : bytes-like of uint8
        The stream.
    clevel : int, default 5
        1 to 9; registered codecs do not get to see it.
    meta, typesize, blockshape
        Passed on to a registered codec, see `decode`.
    dictionary : bytes, optional
        The chunk's dictionary, from `train`.

    Returns
    -------
    bytes or None
        None if the payload would not be smaller than the data.

    Raises
    ------
    UnsupportedError
        Nobody registered this codec, or LZ4 cannot use a dictionary because the package lz4 is not installed.
    ValueError
        The codec has no use for a dictionary.

    Examples
    --------
    >>> encode(1, b"a" * 100), encode(1, b"abc")
    (b'\x1fa\x01\x00KPaaaaa', None)
    """
    if dictionary is not None and codec not in _DICTIONARY_CODECS:
        raise ValueError(f"{codec_name(codec)} cannot use a dictionary")
    if len(data) == 0:
        return None
    built_in = _ENCODERS.get(codec)
    if built_in is None:
        payload = ensure_bytes(_maker(codec)(meta, typesize, blockshape).encode(bytes(data)))
    else:
        payload = built_in(data, clevel, dictionary)
    return payload if len(payload) < len(data) else None


def train(codec: int, samples: npt.NDArray[np.uint8], clevel: int) -> bytes | None:
    """Make a dictionary for the streams of one chunk.

    Parameters
    ----------
    codec : int
        Compcode.
    samples : ndarray of uint8, shape (nblocks, blocksize)
        The filtered blocks.
    clevel : int
        The level the streams will be encoded with, 1 to 9.

    Returns
    -------
    bytes or None
        At most 32768 bytes and 5 % of the samples. None if that is too little to be of use, if the samples have too
        little in common, or if the codec has no use for a dictionary.

    Examples
    --------
    >>> train(1, np.zeros((2, 64), np.uint8), 5) is None
    True
    """
    size = min(MAX_DICT_NBYTES, samples.size // 20)
    if size < _MIN_DICT_NBYTES or codec not in _DICTIONARY_CODECS:
        return None
    # An LZ4 dictionary is history to copy from, so it is made of the data themselves. zstd distils: its authors
    # advise to show it about a hundred times what it shall keep.
    total = 100 * size if codec == CodecId.ZSTD else size
    pieces = _spread_pieces(samples, min(samples.shape[1], _SAMPLE_NBYTES if codec == CodecId.ZSTD else size), total)
    if codec != CodecId.ZSTD:
        return pieces.tobytes()[:size]
    try:
        made = zstandard.train_dictionary(size, [piece.tobytes() for piece in pieces], level=_zstd_level(clevel))
    except zstandard.ZstdError:
        return None
    return made.as_bytes()


def _spread_pieces(samples: npt.NDArray[np.uint8], nbytes: int, total: int) -> npt.NDArray[np.uint8]:
    """Cut blocks into pieces, and return at least `total` bytes of them from all over the blocks, or all there are.

    The filters put bytes of one kind together: the beginnings of the blocks alone are not like the rest of them.
    """
    flat = samples.reshape(-1)
    pieces = flat[: flat.size // nbytes * nbytes].reshape(-1, nbytes)
    count = min(len(pieces), -(-total // nbytes))
    return pieces[np.linspace(0, len(pieces) - 1, count).astype(np.intp)]


class _ZstdContexts(threading.local):
    """The zstd contexts of one thread: making one costs more than decoding a small stream."""

    def __init__(self) -> None:
        self.free: dict[tuple[bytes | None, int], zstandard.ZstdDecompressor] = {}
        self.compressor = lru_cache(maxsize=_MAX_CONTEXTS)(_zstd_compressor)


_MAX_CONTEXTS = 4


def _zstd_decompressor(dictionary: bytes | None, max_window: int) -> zstandard.ZstdDecompressor:
    if dictionary is None:
        return zstandard.ZstdDecompressor(max_window_size=max_window)
    return zstandard.ZstdDecompressor(zstandard.ZstdCompressionDict(dictionary), max_window_size=max_window)


def _zstd_compressor(level: int, dictionary: bytes | None) -> zstandard.ZstdCompressor:
    if dictionary is None:
        return zstandard.ZstdCompressor(level=level)
    return zstandard.ZstdCompressor(level=level, dict_data=zstandard.ZstdCompressionDict(dictionary))


_contexts = _ZstdContexts()


def _take_decompressor(dictionary: bytes | None, max_window: int) -> zstandard.ZstdDecompressor:
    """Borrow a context of this thread. A call that interrupts its user finds none, and makes one of its own."""
    return _contexts.free.pop((dictionary, max_window), None) or _zstd_decompressor(dictionary, max_window)


def _give_back(context: zstandard.ZstdDecompressor, dictionary: bytes | None, max_window: int) -> None:
    free = _contexts.free
    if len(free) >= _MAX_CONTEXTS:
        free.clear()
    free[dictionary, max_window] = context


def _zstd_level(clevel: int) -> int:
    return 2 * clevel - 1 if clevel < 9 else _ZSTD_MAX_LEVEL


def _decode_zstd(payload: Buffer, nbytes: int, dictionary: bytes | None) -> bytes:
    # The decompressor allocates what the frame claims, so the claim is checked first.
    max_window = max(_MAX_WINDOW, nbytes)
    decompressor = _take_decompressor(dictionary, max_window)
    if zstandard.frame_content_size(payload) == nbytes:
        data: bytes = decompressor.decompress(payload)
    else:
        data = _zstd_reader((payload,), decompressor).read(nbytes + 2)
        if len(data) != nbytes + 1:
            raise ValueError(f"{len(data)} bytes of frames in a row")
        data = data[:nbytes]
    _give_back(decompressor, dictionary, max_window)
    return data


def decode_zstd_frames(frames: Sequence[Buffer], nbytes: int, outs: Iterable[memoryview]) -> None:
    """Decode many zstd streams of one size, straight to where they belong.

    Parameters
    ----------
    frames : sequence of bytes-like
        In order. Each is one frame, or several in a row.
    nbytes : int
        Uncompressed bytes of every stream.
    outs : iterable of memoryview
        Filled one after the other; as long as the streams are together.

    Raises
    ------
    FormatError
        A stream does not decode to `nbytes` bytes.
    """
    # Frames that claim their size, and the sum of all, are proof enough.
    try:
        decompressor = _take_decompressor(None, _MAX_WINDOW)
        if all(zstandard.frame_content_size(frame) == nbytes for frame in frames):
            reader = _zstd_reader(frames, decompressor)
        else:
            reader = io.BytesIO(b"".join([*(decode(CodecId.ZSTD, frame, nbytes) for frame in frames), b"."]))
        exact = all(reader.readinto(out) == len(out) for out in outs) and reader.read(2) == b"."
    except zstandard.ZstdError as error:
        raise FormatError(f"expected zstd streams of {nbytes} bytes each, found others: {error}") from error
    if not exact:
        raise FormatError(f"expected zstd streams of {nbytes} bytes each, found others")
    _give_back(decompressor, None, _MAX_WINDOW)


def _zstd_reader(frames: Iterable[Buffer], decompressor: zstandard.ZstdDecompressor) -> Any:
    """Return a file of what frames decode to, with a dot at its end if none is cut short."""
    source: Any = _Frames((*frames, _DOT))
    return decompressor.stream_reader(source, read_across_frames=True)


_DOT = bytes.fromhex("28b52ffd 20 01 090000") + b"."
"""A frame of one byte (RFC 8878, section Zstandard Frames): what is cut short in front of it would swallow it."""


class _Frames:
    """A file whose every read gives the next frame, so that they need not be copied to be one behind the other."""

    __slots__ = ("read",)

    def __init__(self, frames: Iterable[Buffer]) -> None:
        rest = iter(frames)
        self.read: Callable[[int], Buffer] = lambda _: next(rest, b"")


def _encode_zstd(data: Buffer, clevel: int, dictionary: bytes | None) -> bytes:
    return _contexts.compressor(_zstd_level(clevel), dictionary).compress(data)


def _decode_zlib(payload: Buffer, nbytes: int, _dictionary: bytes | None) -> bytes:
    decompressor = zlib.decompressobj()
    # One byte more than wanted, so that the end of the stream and its checksum are reached.
    data = decompressor.decompress(payload, nbytes + 1)
    if not decompressor.eof:
        raise ValueError("no end of the stream")
    return data


def _encode_zlib(data: Buffer, clevel: int, _dictionary: bytes | None) -> bytes:
    return zlib.compress(data, zlib_level(clevel))


def zlib_level(clevel: int) -> int:
    """Return the level of zlib that compresses as well as zlib-ng, which C-Blosc2 is built with, at level `clevel`.

    Level 1 of zlib-ng is as good as level 3 here, levels 2 to 4 as level 6, and 5 to 8 nearly as good as level 9.

    Examples
    --------
    >>> [zlib_level(clevel) for clevel in range(1, 10)]
    [3, 6, 6, 6, 9, 9, 9, 9, 9]
    """
    return _ZLIB_LEVELS[clevel]


_ZLIB_LEVELS = (0, 3, 6, 6, 6, 9, 9, 9, 9, 9)


def _decode_lz4(payload: Buffer, nbytes: int, dictionary: bytes | None) -> bytes:
    if dictionary is None:
        decoded: bytes = numcodecs.lz4.decompress(b"".join((struct.pack("<i", nbytes), payload)))
    elif (lz4_block := _lz4_block()) is None:
        decoded = _decode_lz4_slowly(payload, nbytes, dictionary)
    else:
        try:
            decoded = lz4_block.decompress(payload, uncompressed_size=nbytes, dict=dictionary)
        except lz4_block.LZ4BlockError as error:
            raise ValueError(str(error)) from error
    return decoded


def _encode_lz4(data: Buffer, clevel: int, dictionary: bytes | None) -> bytes:
    acceleration = max(10 - clevel, 1)
    if dictionary is None:
        framed: bytes = numcodecs.lz4.compress(data, acceleration)
        return framed[4:]
    lz4_block = _need_lz4_block()
    payload: bytes = lz4_block.compress(data, mode="fast", acceleration=acceleration, store_size=False, dict=dictionary)
    return payload


def _encode_lz4hc(data: Buffer, clevel: int, dictionary: bytes | None) -> bytes:
    if dictionary is None and _lz4_block() is None:
        return _encode_lz4(data, clevel, None)
    lz4_block = _need_lz4_block()
    history = {} if dictionary is None else {"dict": dictionary}
    payload: bytes = lz4_block.compress(data, mode="high_compression", compression=clevel, store_size=False, **history)
    return payload


def _need_lz4_block() -> ModuleType:
    lz4_block = _lz4_block()
    if lz4_block is None:
        raise UnsupportedError("LZ4 dictionaries need the package lz4: pip install lz4")
    return lz4_block


def _decode_lz4_slowly(payload: Buffer, nbytes: int, dictionary: bytes) -> bytes:
    """Decode an LZ4 block that may copy from a dictionary.

    Source: "LZ4 Block Format Description", section Compressed block format.
    """
    source = bytes(payload)
    out = bytearray(dictionary)
    end = len(dictionary) + nbytes
    at = 0
    while True:
        if at >= len(source):
            raise ValueError("no last sequence")
        token = source[at]
        literals, at = _lz4_length(source, at + 1, token >> 4)
        if literals > min(len(source) - at, end - len(out)):
            raise ValueError(f"{literals} literals at byte {at}")
        out += source[at : at + literals]
        at += literals
        if at == len(source):
            return bytes(out[len(dictionary) :])
        offset = int.from_bytes(source[at : at + 2], "little")
        length, at = _lz4_length(source, at + 2, token & 0x0F)
        length += 4
        if not 0 < offset <= len(out) or length > end - len(out):
            raise ValueError(f"a match of {length} bytes from {offset} back, before byte {at}")
        # A match may run into what it writes: then its first `offset` bytes repeat.
        matched = out[len(out) - offset : len(out) - offset + length]
        out += (matched * -(-length // len(matched)))[:length]


def _lz4_length(source: bytes, at: int, nibble: int) -> tuple[int, int]:
    """Return a length that starts in half a token, and the position behind it."""
    length = nibble
    more = nibble == 15
    while more:
        if at >= len(source):
            raise ValueError("a length without an end")
        length += source[at]
        more = source[at] == 255
        at += 1
    return length, at


def require(codec: int) -> None:
    """Raise UnsupportedError, which names the codec, unless it was registered."""
    _maker(codec)


def _maker(codec: int) -> MakeCodec:
    if codec == CodecId.BLOSCLZ:
        raise ValueError("BloscLZ streams are coded inside a Blosc1 chunk, not one by one")
    make = _registry.get(codec)
    if make is None:
        raise UnsupportedError(f"{codec_name(codec)} is not built in; register it with b2array.codecs.register")
    return make


def _decode_user(
    make: MakeCodec, codec: int, payload: Buffer, nbytes: int, settings: tuple[int, int, tuple[int, ...] | None]
) -> bytes:
    try:
        data: bytes = ensure_bytes(make(*settings).decode(bytes(payload)))
    except (B2ArrayError, MemoryError):
        raise
    except Exception as error:
        # Nobody knows what a foreign codec raises on corrupt bytes.
        raise _corrupt(codec, payload, nbytes, str(error) or type(error).__name__) from error
    return data


def _corrupt(codec: int, payload: Buffer, nbytes: int, found: str) -> FormatError:
    source = f"the {len(payload)} bytes of a {codec_name(codec)} stream"
    return FormatError(f"expected {nbytes} bytes from {source}, found {found}")


_BUILT_IN = frozenset(CodecId)
_DICTIONARY_CODECS = frozenset((CodecId.LZ4, CodecId.LZ4HC, CodecId.ZSTD))
_DECODERS: dict[int, Callable[[Buffer, int, bytes | None], bytes]] = {
    CodecId.LZ4: _decode_lz4,
    CodecId.LZ4HC: _decode_lz4,
    CodecId.ZLIB: _decode_zlib,
    CodecId.ZSTD: _decode_zstd,
}
_ENCODERS: dict[int, Callable[[Buffer, int, bytes | None], bytes]] = {
    CodecId.LZ4: _encode_lz4,
    CodecId.LZ4HC: _encode_lz4hc,
    CodecId.ZLIB: _encode_zlib,
    CodecId.ZSTD: _encode_zstd,
}
