"""Reading and writing the chunks of HDF5 datasets that Blosc compresses, without HDF5's filters.

A chunk passes through the filters of its dataset in order when it is written, and in reverse when it is read. A mask
next to each chunk says which filters were skipped. Blosc2's filter stores a chunk as a contiguous frame: an array of
one chunk if it has several dimensions, else a super-chunk. The filter of Blosc 1 stores a chunk of that format.

Sources: "HDF5 File Format Specification", sections Filter Pipeline Message and Data Layout Message; the registered
filters 32001 and 32026, and the files that PyTables and hdf5plugin write.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import numcodecs
import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.array import creation
from b2array.array.array import NDArray
from b2array.array.schunk import SChunk, create_schunk
from b2array.bloscpack.writer import blosc1_options
from b2array.buffers import Buffer
from b2array.catalog import owners
from b2array.codec import cblosc, filters
from b2array.codec.chunk_header import NO_FILTERS, ChunkHeader, FilterId
from b2array.codec.cparams import CParams
from b2array.codec.decode import decode
from b2array.commit.handle import Handle
from b2array.errors import FormatError, UnsupportedError, prefix_errors
from b2array.exchange import formats
from b2array.exchange.formats import Box, Piece
from b2array.store.memory import MemoryStore

__all__ = [
    "COMPRESSIONS",
    "Stage",
    "check_compression",
    "compressing",
    "making_direct",
    "read_box",
    "stages_of",
    "unpack",
    "write",
]

_DEFLATE, _SHUFFLE, _FLETCHER32, _BLOSC, _BLOSC2 = 1, 2, 3, 32001, 32026
_ADDED = 2**16
"""A filter that compresses makes a chunk larger by at most a sixteenth and this many bytes."""
_FLETCHER32_NBYTES = 4
_MOST_TYPESIZE = 255
_DEFAULT = CParams(clevel=5, filters=("shuffle",))

COMPRESSIONS = ("gzip", "blosc", "blosc2")
"""The compressions of `convert` for the chunks of a new dataset."""


class Stage(NamedTuple):
    """A filter of a dataset: its registered number, and its parameters."""

    code: int
    values: tuple[int, ...]


def stages_of(h5py: ModuleType, node: Any, where: str) -> tuple[Stage, ...] | None:
    """Return the filters of a dataset whose chunks this module reads; None if HDF5 has to read them.

    UnsupportedError says that neither can read them.
    """
    plist = node.id.get_create_plist()
    if node.chunks is None:
        return None
    pipeline = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    stages = tuple(Stage(code, tuple(values)) for code, _, values, _ in pipeline)
    codes = {stage.code for stage in stages}
    if codes & {_BLOSC, _BLOSC2} and codes <= _BACKWARD.keys() and not node.dtype.hasobject:
        return stages
    missing = [f"{code} ({name.decode('utf-8', 'replace')})" for code, _, _, name in pipeline if not _has(h5py, code)]
    if missing and node.id.get_storage_size():
        raise UnsupportedError(
            f"{where}: its chunks need the HDF5 filter {', '.join(missing)}, which h5py does not have; "
            "the package hdf5plugin has many: import it first"
        )
    return None


def _has(h5py: ModuleType, code: int) -> bool:
    return bool(h5py.h5z.filter_avail(code))


# Reading.


class _Raw(NamedTuple):
    """A stored chunk: the position of its items in the dataset, its bytes, and a mask of the skipped filters."""

    at: tuple[int, ...]
    content: bytes
    mask: int


def read_box(
    h5py: ModuleType,
    node: Any,
    stages: tuple[Stage, ...],
    where: str,
    box: Box,
) -> npt.NDArray[Any]:
    """Read items of a dataset, chunk by chunk; threads decode the chunks."""
    starts = [part.indices(n)[:2] for part, n in zip(box, node.shape, strict=True)]
    out = np.empty([max(0, stop - start) for start, stop in starts], node.dtype)
    if not out.size:
        return out
    out[...] = np.asarray(node.fillvalue, node.dtype)
    nbytes = math.prod(node.chunks) * node.id.get_type().get_size()
    if nbytes > config.limits.chunk_nbytes:
        raise FormatError(
            f"{where}: expected chunks of at most {config.limits.chunk_nbytes} bytes (config.limits.chunk_nbytes), "
            f"found {nbytes}"
        )
    convert = _converter(h5py, node)

    def unpack_chunk(raw: _Raw) -> tuple[tuple[int, ...], Buffer]:
        return raw.at, prefix_errors(
            f"{where}: the chunk at {raw.at}", lambda: unpack(raw.content, raw.mask, stages, nbytes)
        )

    for at, content in threads.spread(unpack_chunk, _read_stored_chunks(node, starts, where)):
        items = convert(content)
        spans = [
            (max(start, first), min(stop, first + n), first, start)
            for (start, stop), first, n in zip(starts, at, node.chunks, strict=True)
        ]
        target = tuple(slice(low - start, high - start) for low, high, _, start in spans)
        out[target] = items[tuple(slice(low - first, high - first) for low, high, first, _ in spans)]
    return out


def _read_stored_chunks(node: Any, starts: list[tuple[int, int]], where: str) -> Iterator[_Raw]:
    """Yield the stored chunks that have items in a range; chunks that were never written are not stored."""
    size = node.file.id.get_filesize()
    firsts = [range(start - start % n, stop, n) for (start, stop), n in zip(starts, node.chunks, strict=True)]
    for at in product(*firsts):
        about = node.id.get_chunk_info_by_coord(at)
        if about.byte_offset is None:
            continue
        # Check the size first: HDF5 allocates as many bytes as the file claims.
        if about.size > size:
            raise FormatError(f"{where}: expected a chunk within {size} bytes, found one of {about.size} at {at}")
        mask, content = node.id.read_direct_chunk(at)
        yield _Raw(at, content, mask)


def unpack(content: Buffer, mask: int, stages: tuple[Stage, ...], nbytes: int) -> Buffer:
    """Undo the filters of a chunk that its mask does not skip; FormatError unless the result has `nbytes` bytes."""
    for number, stage in reversed([*enumerate(stages)]):
        if not mask >> number & 1:
            content = _BACKWARD[stage.code](content, stage.values, nbytes)
    if len(content) != nbytes:
        raise FormatError(f"expected {nbytes} bytes of items, found {len(content)}")
    return content


def _inflate(content: Buffer, _: tuple[int, ...], nbytes: int) -> bytes:
    # Limit the output: a small damaged chunk could inflate to any size.
    most = nbytes + nbytes // 16 + _ADDED
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(content, most)
    except zlib.error as error:
        raise FormatError(f"expected a deflated chunk, found a corrupt one: {error}") from None
    if not decompressor.eof:
        raise FormatError(f"expected a deflated chunk of at most {most} bytes, found a longer or incomplete one")
    return data


def _unshuffle(content: Buffer, values: tuple[int, ...], _: int) -> memoryview:
    width = values[0] if values else 1
    if not 1 <= width <= 2**16:
        raise FormatError(f"expected items of 1 to {2**16} bytes for HDF5's shuffle, found {width}")
    # Blosc2 stores the width of a filter in one byte. The typesize of the pipeline has no such limit here.
    pipeline = filters.Pipeline((*NO_FILTERS[1:], FilterId.SHUFFLE), NO_FILTERS, width)
    return filters.backward(pipeline, np.frombuffer(content, np.uint8).reshape(1, -1)).data.cast("B")


def _check_fletcher32(content: Buffer, _: tuple[int, ...], __: int) -> Buffer:
    if len(content) <= _FLETCHER32_NBYTES:
        raise FormatError(f"expected a chunk with its Fletcher32 checksum, found {len(content)} bytes")
    try:
        numcodecs.Fletcher32().decode(content)
    except (RuntimeError, ValueError) as error:
        raise FormatError(f"expected a chunk with its Fletcher32 checksum, found another one: {error}") from None
    return memoryview(content)[:-_FLETCHER32_NBYTES]


def _decode_blosc(content: Buffer, _: tuple[int, ...], nbytes: int) -> memoryview:
    return _decode_chunk(content, nbytes)


def _decode_chunk(content: Buffer, nbytes: int) -> memoryview:
    # Check this before memory is allocated: a damaged header may claim any size.
    _check_nbytes(ChunkHeader.unpack(content).nbytes, nbytes)
    return decode(content).data


def _check_nbytes(actual: int, nbytes: int) -> None:
    most = nbytes + nbytes // 16 + _ADDED
    if actual > most:
        raise FormatError(f"expected at most {most} bytes, found {actual}")


def _decode_blosc2(content: Buffer, _: tuple[int, ...], nbytes: int) -> memoryview:
    handle = Handle(owners.load(MemoryStore({"": bytes(content)})), "r")
    if formats.holds_array(handle.frame):
        a = NDArray(handle)
        _check_nbytes(a.nbytes, nbytes)
        return np.ascontiguousarray(a[...]).reshape(-1).view(np.uint8).data
    schunk = SChunk(handle)
    if schunk.nchunks != 1:
        raise FormatError(f"expected a frame of one chunk, found {schunk.nchunks}")
    _check_nbytes(schunk.nbytes, nbytes)
    return memoryview(schunk.decompress_chunk(0))


_BACKWARD: dict[int, Callable[[Buffer, tuple[int, ...], int], Buffer]] = {
    _DEFLATE: _inflate,
    _SHUFFLE: _unshuffle,
    _FLETCHER32: _check_fletcher32,
    _BLOSC: _decode_blosc,
    _BLOSC2: _decode_blosc2,
}


def _converter(h5py: ModuleType, node: Any) -> Callable[[Buffer], npt.NDArray[Any]]:
    """Return a function that turns the bytes of a chunk into items."""
    stored, dtype, shape = node.id.get_type(), node.dtype, node.chunks
    if stored == h5py.h5t.py_create(dtype, logical=True):
        return lambda content: np.frombuffer(content, dtype).reshape(shape)

    def convert(content: Buffer) -> npt.NDArray[Any]:
        # HDF5 has types that NumPy lacks: HDF5 converts the items of a file in memory.
        with h5py.File("chunk", "w", driver="core", backing_store=False) as file:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk(shape)
            space = h5py.h5s.create_simple(shape)
            data = h5py.h5d.create(file.id, b"chunk", stored.copy(), space, plist)
            data.write_direct_chunk((0,) * len(shape), content)
            return np.asarray(h5py.Dataset(data)[...])

    return convert


# Writing.


def compressing(
    compression: str,
    itemsize: int,
    chunks: tuple[int, ...],
    cparams: CParams | None,
) -> dict[str, Any]:
    """Return the arguments of `create_dataset` for a dataset whose chunks `write` compresses.

    The filters' parameters are the same as if the filters had set them, so that other programs can write more chunks.
    """
    params = cparams or _DEFAULT
    nbytes = math.prod(chunks) * itemsize
    used = [fid for fid in params.filter_slots if fid in _SHUFFLES]
    choices = (params.clevel, _SHUFFLES[used[-1]] if used else cblosc.NOSHUFFLE, int(params.codec_id))
    if compression == "blosc":
        typesize = itemsize if itemsize <= _MOST_TYPESIZE else 1
        values: tuple[int, ...] = (2, 2, typesize, nbytes, *choices)
        return {"compression": _BLOSC, "compression_opts": values, "allow_unknown_filter": True}
    shape = (len(chunks), *chunks) if len(chunks) > 1 else ()
    values = (1, 0, itemsize, nbytes, *choices, *shape)
    return {"compression": _BLOSC2, "compression_opts": values, "allow_unknown_filter": True}


@contextmanager
def without_plugins(h5py: ModuleType) -> Iterator[None]:
    """Keep HDF5 from loading filters while the block opens a file or makes a dataset.

    netCDF4 sets a directory of filters for every copy of HDF5 in the process. The filters work with netCDF4's copy, and
    fail with h5py's copy, which loads all of them to open a new file.
    """
    h5pl = h5py.h5pl
    paths = [h5pl.get(i) for i in range(h5pl.size())]
    for i in reversed(range(len(paths))):
        h5pl.remove(i)
    try:
        yield
    finally:
        for path in paths:
            h5pl.append(path)


@contextmanager
def making_direct(h5py: ModuleType, compression: str) -> Iterator[None]:
    """Keep HDF5 from loading filters while the block makes a dataset whose chunks `write` compresses.

    UnsupportedError says that HDF5 has already loaded a filter that does not work.
    """
    try:
        with without_plugins(h5py):
            yield
    except (OSError, RuntimeError, ValueError) as error:
        if "user callback" not in str(error):
            raise
        raise UnsupportedError(
            f"HDF5 has loaded a filter for {compression} in this process that does not work with h5py, and cannot "
            f"unload it; importing netCDF4 adds such filters: set HDF5_PLUGIN_PATH before the import ({error})"
        ) from error


def check_compression(compression: str, cparams: CParams | None) -> None:
    """Raise ValueError for an unknown compression, and UnsupportedError for parameters that its filter lacks."""
    if compression not in COMPRESSIONS:
        raise ValueError(f"compression must be one of {', '.join(COMPRESSIONS)}, not {compression!r}")
    if compression == "blosc":
        blosc1_options(cparams or _DEFAULT)


def write(
    data: Any,
    pieces: Iterable[Piece],
    fill: Any,
    compression: str,
    cparams: CParams | None,
    blocks: Sequence[int] | None = None,
) -> None:
    """Compress pieces of whole chunks in threads, and write them to a dataset that `compressing` describes."""
    params = cparams or _DEFAULT

    def pack(part: tuple[tuple[int, ...], npt.NDArray[Any]]) -> tuple[tuple[int, ...], bytes]:
        at, items = part
        return at, _blosc_chunk(items, params) if compression == "blosc" else _frame(items, params, blocks)

    for at, content in threads.spread(pack, _chunks_of(pieces, data.chunks, fill)):
        data.id.write_direct_chunk(at, content)


def _chunks_of(
    pieces: Iterable[Piece],
    chunks: tuple[int, ...],
    fill: Any,
) -> Iterator[tuple[tuple[int, ...], npt.NDArray[Any]]]:
    """Divide pieces into chunks, and pad the chunks at the upper edges with the fill value."""
    for box, values in pieces:
        starts = [range(0, n, step) for n, step in zip(values.shape, chunks, strict=True)]
        for start in product(*starts):
            part = values[tuple(slice(i, i + n) for i, n in zip(start, chunks, strict=True))]
            if part.shape != chunks:
                whole = np.full(chunks, fill, values.dtype)
                whole[tuple(map(slice, part.shape))] = part
                part = whole
            yield tuple(span.start + i for span, i in zip(box, start, strict=True)), np.ascontiguousarray(part)


def _blosc_chunk(items: npt.NDArray[Any], params: CParams) -> bytes:
    typesize = items.itemsize if items.itemsize <= _MOST_TYPESIZE else 1
    cname, clevel, shuffle = blosc1_options(params)
    return cblosc.compress(items.reshape(-1).view(np.uint8), cname, clevel, shuffle, 0, typesize)


def _frame(items: npt.NDArray[Any], params: CParams, blocks: Sequence[int] | None) -> bytes:
    """Compress a chunk like the filter of Blosc2: a frame with an array, or with bytes for very large items."""
    if items.ndim == 1 or items.itemsize > _MOST_TYPESIZE:
        typesize = items.itemsize if items.itemsize <= _MOST_TYPESIZE else 1
        schunk = create_schunk(chunksize=items.nbytes, typesize=typesize, cparams=params)
        schunk.append_data(items.reshape(-1).view(np.uint8))
        return schunk.to_bytes()
    inner = None if blocks is None else tuple(min(b, n) for b, n in zip(blocks, items.shape, strict=True))
    opaque = items.view(np.dtype((np.void, items.itemsize)))
    a = creation.asarray(opaque, chunks=items.shape, blocks=inner, cparams=params, interop=True)
    return a.to_bytes()


_SHUFFLES = {int(FilterId.SHUFFLE): cblosc.SHUFFLE, int(FilterId.BITSHUFFLE): cblosc.BITSHUFFLE}
"""Blosc's numbers for its shuffles, by the numbers of Blosc2's filters."""
