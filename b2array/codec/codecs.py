"""Codecs: one stream of a block <-> its compressed payload, and the registry of user-defined codecs.

Sources: "Blosc Chunk Format" (section Blocks) of the Blosc2 documentation, "LZ4 Block Format Description", RFC 1950
(zlib), RFC 8878 (Zstandard), and the files that the C library writes. LZ4 and LZ4HC share one format: a bare block
without a length in front. We write a zstd payload as one frame with its content size, and also read several frames in a
row. C-Blosc 1 decodes and encodes BloscLZ (see `b2array.codec.cblosc`).

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
from functools import lru_cache, partial
from itertools import chain, repeat
from types import ModuleType
from typing import Any, cast

import numcodecs.lz4
import numpy as np
import numpy.typing as npt
import zstandard
from numcodecs.compat import ensure_bytes

from b2array.buffers import Buffer
from b2array.codec.chunk_header import MAX_DICT_NBYTES, CodecId
from b2array.codec.plugins import PLUGINS, MakeCodec, plugin_id
from b2array.errors import B2ArrayError, FormatError, UnsupportedError

__all__ = [
    "MAX_RATIO",
    "codec_id",
    "codec_name",
    "decode",
    "decode_zstd_frames",
    "encode",
    "encode_items",
    "is_for_items",
    "is_named",
    "is_writable",
    "max_ratio",
    "register",
    "require",
    "train",
]

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

MAX_RATIO: dict[int, int] = {
    CodecId.BLOSCLZ: 255,
    CodecId.LZ4: 255,
    CodecId.LZ4HC: 255,
    CodecId.ZLIB: 1032,
    CodecId.ZSTD: 32768,
    **{number: plugin.max_ratio for number, plugin in PLUGINS.items() if plugin.max_ratio is not None},
}
"""The maximum number of bytes that one byte of payload can represent. A larger claim is corrupt."""

_FIRST_USER_ID = 32
_LAST_ID = 255
_MAX_WINDOW = 8 * 2**20
"""The window size that every zstd decoder should support (RFC 8878, section Window Descriptor)."""
_MAX_CONTEXTS = 4
_MIN_DICT_NBYTES = 256
_SAMPLE_NBYTES = 4096
_ZSTD_DEFAULT_LEVEL, _ZSTD_MAX_LEVEL = 3, 22
_ITEMSIZES = (4, 8)
"""The sizes of items for which the zstd encoder uses other parameters than the default level.

In streams of 128 to 256 KiB, the default level searches for matches of four bytes. If items repeat, as decimals do,
each item then becomes one match. Matches of five bytes, as in all other streams, are decoded in three quarters of the
time. With a larger table, they take less space for items of eight bytes, and a little more for items of four.
"""
_LEAST_OF_ITEMS = 2**17
_ITEMS_WINDOW_LOG = 18
_Decoder = Callable[[Buffer, int, bytes | None], bytes]
_Encoder = Callable[[Buffer, int, bytes | None], bytes]


@lru_cache(maxsize=1)
def _lz4_block() -> ModuleType | None:
    try:
        return importlib.import_module("lz4.block")  # imported late, because few programs need it
    except ImportError:
        return None


_registry: dict[int, MakeCodec] = {}


def codec_id(codec: str | int) -> int:
    """Return the compcode of a built-in codec, given by name or id, or of a registered id."""
    if isinstance(codec, str):
        names = [member.name.lower() for member in CodecId]
        plugin = plugin_id(codec)
        if codec not in names and plugin is None:
            plugins = [each.name for each in PLUGINS.values()]
            listed = ", ".join([*names, *plugins])
            raise ValueError(f"unknown codec {codec!r}; there are {listed}, and registered ids")
        return CodecId[codec.upper()] if plugin is None else plugin
    if isinstance(codec, bool):
        raise TypeError("codec must be a name or an id, not bool")
    number = operator.index(codec)
    if number in _BUILT_IN:
        return CodecId(number)
    if number not in _registry and number not in PLUGINS:
        raise ValueError(f"unknown codec id {number}; register it first with b2array.codecs.register")
    return number


def codec_name(codec: int) -> str:
    """Return the name of a compcode, such as "lz4hc" or "codec 200"."""
    if codec in _BUILT_IN:
        return CodecId(codec).name.lower()
    return PLUGINS[codec].name if is_named(codec) else f"codec {codec}"


def is_named(codec: int) -> bool:
    """Return whether a codec has a name as well as an id."""
    return codec in _BUILT_IN or (codec in PLUGINS and codec not in _registry)


def is_writable(codec: int) -> bool:
    """Return whether a codec can encode, provided that it is installed."""
    return codec in _registry or codec not in PLUGINS or PLUGINS[codec].writable


def register(codec_id: int, make: MakeCodec) -> None:
    """Register a user-defined codec under an id. It replaces an earlier one with the same id.

    Parameters
    ----------
    codec_id : int
        32 to 255. The Blosc project assigns the ids below 160 to its plugins.
    make : callable
        ``make(meta, typesize, blockshape)`` returns a `numcodecs.abc.Codec`, whose ``encode`` and ``decode`` get one
        stream as `bytes`. `meta` is the parameter byte of the codec, `typesize` is in bytes, `blockshape` is in items,
        or None outside of arrays. `make` is called for every stream, from several threads.

    Raises
    ------
    ValueError
        The id is out of range. Built-in codecs have ids below 32.
    TypeError
        The id is not an integer, or `make` is not callable.

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
    """Decode the payload of one stream (without its length) to exactly `nbytes` bytes. Not for BloscLZ.

    `meta`, `typesize` and `blockshape` are for registered codecs: see `register`. `dictionary` is the dictionary
    of the chunk; only zstd and LZ4 use it, LZ4 through the package lz4.
    """
    built_in = _DECODERS.get(codec)
    ratio = max_ratio(codec)
    if ratio is not None and nbytes > len(payload) * ratio:
        raise _corrupt(codec, payload, nbytes, "too few to hold them")
    if built_in is None:
        data = _decode_user(require(codec), codec, payload, nbytes, (meta, typesize, blockshape))
    else:
        try:
            data = built_in(payload, nbytes, dictionary)
        except UnsupportedError:
            raise
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
    r"""Encode one stream; None if the payload would not be smaller. Not for BloscLZ.

    `clevel` is 1 to 9; registered codecs do not receive it. The other parameters are the same as in `decode`. Without
    the package lz4, LZ4 replaces LZ4HC: the format is the same, but the payload is larger.

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
        payload = ensure_bytes(require(codec)(meta, typesize, blockshape).encode(bytes(data)))
    else:
        payload = built_in(data, clevel, dictionary)
    return payload if len(payload) < len(data) else None


def is_for_items(codec: int, nbytes: int, itemsize: int, clevel: int) -> bool:
    """Return whether `encode_items` compresses a stream of `nbytes` bytes better than `encode`."""
    is_default = codec == CodecId.ZSTD and _zstd_level(clevel) == _ZSTD_DEFAULT_LEVEL
    return is_default and itemsize in _ITEMSIZES and _LEAST_OF_ITEMS < nbytes <= 2**_ITEMS_WINDOW_LOG


def encode_items(data: Buffer) -> bytes | None:
    """Encode a zstd stream of whole items, which no filter has rearranged; None if the payload would not be smaller.

    `is_for_items` selects the streams for this function.
    """
    payload: bytes = _contexts.compressor_of_items().compress(data)
    return payload if len(payload) < len(data) else None


def train(codec: int, samples: Bytes, clevel: int) -> bytes | None:
    """Make a dictionary of at most 32768 bytes and 5 % of the samples for the streams of one chunk.

    `samples` are the filtered blocks, of shape (nblocks, blocksize). The result is None if there are too few samples,
    if they have too little in common, or if the codec cannot use a dictionary.

    Examples
    --------
    >>> train(1, np.zeros((2, 64), np.uint8), 5) is None
    True
    """
    size = min(MAX_DICT_NBYTES, samples.size // 20)
    if size < _MIN_DICT_NBYTES or codec not in _DICTIONARY_CODECS:
        return None
    if codec != CodecId.ZSTD:
        # LZ4 copies from its dictionary, so samples are a good dictionary.
        pieces = _sample_pieces(samples, min(samples.shape[1], size), size)
        return pieces.tobytes()[:size]
    # zstd selects frequent content; its authors advise samples of about a hundred times the size of the dictionary.
    nbytes = min(samples.shape[1], _SAMPLE_NBYTES)
    pieces = _sample_pieces(samples, nbytes, 100 * size)
    contents = [piece.tobytes() for piece in pieces]
    try:
        dictionary = zstandard.train_dictionary(size, contents, level=_zstd_level(clevel))
    except zstandard.ZstdError:  # the samples have too little in common
        return None
    return dictionary.as_bytes()


def _sample_pieces(samples: Bytes, nbytes: int, total: int) -> Bytes:
    """Return pieces from all parts of the blocks, with at least `total` bytes if possible.

    Shuffled blocks begin and end with different kinds of bytes, so their beginnings alone are not a fair sample.
    """
    flat = samples.reshape(-1)
    npieces = flat.size // nbytes
    pieces = flat[: npieces * nbytes].reshape(-1, nbytes)
    count = min(npieces, -(-total // nbytes))
    numbers = np.linspace(0, npieces - 1, count)
    return pieces[numbers.astype(np.intp)]


class _ZstdContexts(threading.local):
    """The zstd contexts of one thread. Creating a context costs more than decoding a small stream."""

    def __init__(self) -> None:
        self.free: dict[tuple[bytes | None, int], zstandard.ZstdDecompressor] = {}
        self.compressor = lru_cache(maxsize=_MAX_CONTEXTS)(_zstd_compressor)
        self.compressor_of_items = lru_cache(maxsize=1)(_zstd_compressor_of_items)


def _zstd_dict(dictionary: bytes | None) -> zstandard.ZstdCompressionDict | None:
    return None if dictionary is None else zstandard.ZstdCompressionDict(dictionary)


def _zstd_compressor(level: int, dictionary: bytes | None) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level, dict_data=_zstd_dict(dictionary))


def _zstd_compressor_of_items() -> zstandard.ZstdCompressor:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=_ITEMS_WINDOW_LOG,
        hash_log=17,
        chain_log=17,
        search_log=1,
        min_match=5,
        strategy=zstandard.STRATEGY_DFAST,
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


_contexts = _ZstdContexts()


def _take_decompressor(dictionary: bytes | None, max_window: int) -> zstandard.ZstdDecompressor:
    """Take a context of this thread for one call. A call that interrupts it creates another context."""
    context = _contexts.free.pop((dictionary, max_window), None)
    return context or zstandard.ZstdDecompressor(_zstd_dict(dictionary), max_window_size=max_window)


def _give_back(
    context: zstandard.ZstdDecompressor,
    dictionary: bytes | None,
    max_window: int,
) -> None:
    free = _contexts.free
    if len(free) >= _MAX_CONTEXTS:
        free.clear()
    free[dictionary, max_window] = context


def _zstd_level(clevel: int) -> int:
    """Return zstd's level for a level of C-Blosc2, with the same mapping as C-Blosc2."""
    return 2 * clevel - 1 if clevel < 9 else _ZSTD_MAX_LEVEL


def _decode_zstd(payload: Buffer, nbytes: int, dictionary: bytes | None) -> bytes:
    # The decompressor allocates the size that the frame claims, so check the claim first.
    max_window = max(_MAX_WINDOW, nbytes)
    decompressor = _take_decompressor(dictionary, max_window)
    if zstandard.frame_content_size(payload) == nbytes:
        data: bytes = decompressor.decompress(payload)
    else:
        # Read one byte more than expected: the dot after the frames, for which a longer stream would leave no room.
        reader = decompressor.stream_reader(cast(Any, _Frames((payload,))), read_across_frames=True)
        data = reader.read(nbytes + 2)
        if len(data) != nbytes + 1:
            raise ValueError(f"{len(data)} bytes of frames in a row")
        data = data[:nbytes]
    # After an error, drop the context, which may be in the middle of a frame.
    return data


def decode_zstd_frames(frames: Sequence[Buffer], nbytes: int, outs: Sequence[memoryview]) -> None:
    """Decode zstd streams of `nbytes` uncompressed bytes each into the buffers `outs`, in order.

    A stream is one frame, or several consecutive frames. The buffers together are as long as the decoded streams.
    FormatError is raised if a stream does not decode to `nbytes` bytes.
    """
    try:
        decompressor = _take_decompressor(None, _MAX_WINDOW)
        sizes = map(zstandard.frame_content_size, frames)
        # If every frame claims `nbytes` bytes and the total is right, every frame has this size.
        if all(map(nbytes.__eq__, sizes)):
            reader: Any = decompressor.stream_reader(cast(Any, _Frames(frames)), read_across_frames=True)
        else:
            streams = [decode(CodecId.ZSTD, frame, nbytes) for frame in frames]
            reader = io.BytesIO(b"".join([*streams, b"."]))
        counts = map(reader.readinto, outs)
        are_full = all(map(int.__eq__, counts, map(len, outs)))
        exact = are_full and reader.read(2) == b"."
    except zstandard.ZstdError as error:
        raise FormatError(f"expected zstd streams of {nbytes} bytes each, found others: {error}") from error
    if not exact:
        raise FormatError(f"expected zstd streams of {nbytes} bytes each, found others")
    _give_back(decompressor, None, _MAX_WINDOW)


_DOT = bytes.fromhex("28b52ffd 20 01 090000") + b"."
"""A frame of one byte (RFC 8878, section Zstandard Frames), which a truncated frame before it would consume."""


class _Frames:
    """A file in which each read returns the next frame, and then a dot, so that frames need not be joined."""

    __slots__ = ("read",)

    def __init__(self, frames: Iterable[Buffer]) -> None:
        # The requested number of bytes becomes the default of `next`, which an endless iterator never uses.
        endless = chain(frames, (_DOT,), repeat(b""))
        self.read: Callable[[int], Buffer] = partial(next, endless)


def _encode_zstd(data: Buffer, clevel: int, dictionary: bytes | None) -> bytes:
    return _contexts.compressor(_zstd_level(clevel), dictionary).compress(data)


def _decode_zlib(payload: Buffer, nbytes: int, _dictionary: bytes | None) -> bytes:
    decompressor = zlib.decompressobj()
    # Read one byte more than expected, to reach the end of the stream and its checksum.
    data = decompressor.decompress(payload, nbytes + 1)
    if not decompressor.eof:
        raise ValueError("no end of the stream")
    return data


def _encode_zlib(data: Buffer, clevel: int, _dictionary: bytes | None) -> bytes:
    return zlib.compress(data, ZLIB_LEVELS[clevel])


ZLIB_LEVELS = (0, 3, 6, 6, 6, 9, 9, 9, 9, 9)
"""For each level of zlib-ng, which is part of C-Blosc2, the level of zlib that compresses equally well."""


def _decode_lz4(payload: Buffer, nbytes: int, dictionary: bytes | None) -> bytes:
    if dictionary is None:
        # numcodecs expects the uncompressed size in front of the block.
        framed = b"".join((struct.pack("<i", nbytes), payload))
        plain: bytes = numcodecs.lz4.decompress(framed)
        return plain
    lz4_block = _need_lz4_block()
    try:
        decoded: bytes = lz4_block.decompress(payload, uncompressed_size=nbytes, dict=dictionary)
    except lz4_block.LZ4BlockError as error:
        raise ValueError(str(error)) from error
    return decoded


def _encode_lz4(data: Buffer, clevel: int, dictionary: bytes | None) -> bytes:
    acceleration = max(10 - clevel, 1)
    if dictionary is None:
        framed: bytes = numcodecs.lz4.compress(data, acceleration)
        return framed[4:]  # without the size that numcodecs writes
    lz4_block = _need_lz4_block()
    payload: bytes = lz4_block.compress(
        data,
        mode="fast",
        acceleration=acceleration,
        store_size=False,
        dict=dictionary,
    )
    return payload


def _encode_lz4hc(data: Buffer, clevel: int, dictionary: bytes | None) -> bytes:
    if dictionary is None and _lz4_block() is None:
        return _encode_lz4(data, clevel, None)
    lz4_block = _need_lz4_block()
    history = {} if dictionary is None else {"dict": dictionary}
    payload: bytes = lz4_block.compress(
        data,
        mode="high_compression",
        compression=clevel,
        store_size=False,
        **history,
    )
    return payload


def _need_lz4_block() -> ModuleType:
    lz4_block = _lz4_block()
    if lz4_block is None:
        raise UnsupportedError("LZ4 dictionaries need the package lz4: pip install 'b2array[lz4]'")
    return lz4_block


def max_ratio(codec: int) -> int | None:
    """Return the maximum number of bytes that one byte of payload can represent; None for a user's codec."""
    return None if codec in _registry else MAX_RATIO.get(codec)


def require(codec: int) -> MakeCodec:
    """Return the function that makes a registered codec, or raise UnsupportedError."""
    if codec == CodecId.BLOSCLZ:
        raise ValueError("BloscLZ streams are coded inside a Blosc1 chunk, not one by one")
    make = _registry.get(codec)
    if make is None and codec in PLUGINS:
        return PLUGINS[codec].make
    if make is None:
        raise UnsupportedError(
            f"{codec_name(codec)} is not built in; b2array.codecs.register({codec}, make) adds it, "
            "where make returns a numcodecs codec"
        )
    return make


def _decode_user(
    make: MakeCodec,
    codec: int,
    payload: Buffer,
    nbytes: int,
    settings: tuple[int, int, tuple[int, ...] | None],
) -> bytes:
    try:
        data: bytes = ensure_bytes(make(*settings).decode(bytes(payload)))
    except (B2ArrayError, MemoryError):
        raise
    except Exception as error:
        # A registered codec may raise anything on corrupt bytes.
        raise _corrupt(codec, payload, nbytes, str(error) or type(error).__name__) from error
    return data


def _corrupt(codec: int, payload: Buffer, nbytes: int, actual: str) -> FormatError:
    source = f"the {len(payload)} bytes of a {codec_name(codec)} stream"
    return FormatError(f"expected {nbytes} bytes from {source}, found {actual}")


_BUILT_IN = frozenset(CodecId)
_DICTIONARY_CODECS = frozenset((CodecId.LZ4, CodecId.LZ4HC, CodecId.ZSTD))
_DECODERS: dict[int, _Decoder] = {
    CodecId.LZ4: _decode_lz4,
    CodecId.LZ4HC: _decode_lz4,
    CodecId.ZLIB: _decode_zlib,
    CodecId.ZSTD: _decode_zstd,
}
_ENCODERS: dict[int, _Encoder] = {
    CodecId.LZ4: _encode_lz4,
    CodecId.LZ4HC: _encode_lz4hc,
    CodecId.ZLIB: _encode_zlib,
    CodecId.ZSTD: _encode_zstd,
}
