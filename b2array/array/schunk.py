"""Super-chunks: numbered chunks in a frame, changed by commits.

Sources: "Blosc2 Contiguous Frame Format" and "Blosc2 Sparse Frame Format".
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import numpy as np
import numpy.typing as npt

from b2array.array.described import Attributes, Opened
from b2array.array.drafts import AnyPlace, ArrayOptions, encode_metalayers, place_new
from b2array.array.frame_making import make
from b2array.buffers import Buffer
from b2array.catalog import intact
from b2array.catalog.manifest import OTHER
from b2array.catalog.owners import load
from b2array.codec import decode, encode, lazy
from b2array.codec.chunk import Context, Stored
from b2array.codec.chunk_header import Special
from b2array.codec.cparams import AnyCParams, resolve_cparams
from b2array.codec.interop import require_readable
from b2array.codec.rounding import check_dtype
from b2array.commit import edits
from b2array.commit.draft import Draft
from b2array.commit.frame_commit import commit
from b2array.commit.handle import Handle, Mode
from b2array.commit.prepare import copy_frame
from b2array.config import MAX_BLOCKSIZE, MAX_CHUNK_NBYTES
from b2array.display.text_tables import count_text
from b2array.errors import FormatError, LimitError, UnsupportedError, prefix_error
from b2array.format import frame
from b2array.format.annotations import Annotations
from b2array.format.frame import Frame
from b2array.format.frame_header import FrameType
from b2array.format.state import cparams_to_note, parse
from b2array.frame.fetch import fetch, read_chunks
from b2array.frame.source import ChunkRequest, Source
from b2array.grid.assignment import check_plain
from b2array.keywords import spell_out
from b2array.printable import printable
from b2array.progress import track
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store
from b2array.store.spans import Span

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["SChunk", "create_schunk", "schunk_at"]

Data = Buffer | npt.NDArray[Any]


class SChunk(Opened):
    """Numbered chunks of bytes.

    `open_schunk` and `create_schunk` return super-chunks. A handle shows one committed state. A commit of the handle
    updates this state; commits of other handles appear after `refresh`.
    """

    __slots__ = ()

    _makers = "b2array.create_schunk(url, chunksize=...) and b2array.open_schunk(url)"

    # A summary that needs no chunks.

    @property
    def frame(self) -> Frame:
        """Header, index and trailer."""
        return self._handle.frame

    @property
    def nchunks(self) -> int:
        """The number of chunks."""
        return self.frame.nchunks

    @property
    def nbytes(self) -> int:
        """Uncompressed size in bytes."""
        return self.frame.nbytes

    @property
    def cratio(self) -> float:
        """Uncompressed size over compressed size; infinite if nothing is stored."""
        return self.nbytes / self.cbytes if self.cbytes else math.inf

    @property
    def typesize(self) -> int:
        """Size of an item in bytes."""
        return self.frame.typesize

    @property
    def chunksize(self) -> int:
        """The uncompressed size of each chunk except a shorter last one, in bytes; 0 if the sizes differ."""
        return max(self.frame.chunksize, 0)

    @property
    def blocksize(self) -> int:
        """The uncompressed size of a block in bytes; 0 if each chunk has a separate block size."""
        return self.frame.blocksize

    @property
    def vlmeta(self) -> Attributes:
        """The variable-length metalayers, which can be changed."""
        return Attributes(self._handle)

    def __len__(self) -> int:
        return self.nchunks

    def __repr__(self) -> str:
        chunks = count_text(self.nchunks, "chunk")
        return f"<b2array.SChunk {printable(self.url)}: {chunks}, {self.nbytes} bytes{self._remark()}>"

    # Reading.

    def decompress_chunk(self, n: int) -> bytes:
        """Return the data of chunk `n`.

        Raises
        ------
        IndexError
            There is no chunk `n`.
        FormatError, UnsupportedError
            The chunk cannot be decoded.
        """

        def decode_chunk(source: Source) -> bytes:
            number = _normalize_number(source, n)
            stored = _fetch_chunk(source, number)
            return _decode(source, number, stored).tobytes()

        return self._handle.reading(decode_chunk)

    def get_chunk(self, n: int) -> bytes:
        """Return chunk `n` in its stored form."""

        def copy(source: Source) -> bytes:
            stored = _fetch_chunk(source, _normalize_number(source, n))
            return bytes(stored.region)

        return self._handle.reading(copy)

    def lazy_chunk(self, n: int) -> bytes:
        """Return chunk `n` without its blocks: its header, the block starts, and the place of the blocks.

        Special and uncommitted chunks are returned whole.
        """
        buf = self.get_chunk(n)
        revision = self._handle.revision
        is_committed = self._handle.source is revision
        if not is_committed:
            # The chunk has no place in a file from which other readers could read blocks.
            return buf
        n = _normalize_number(revision, n)
        where = revision.frame.entry(n)
        if isinstance(where, Special):
            return buf
        if revision.frame.frame_type == FrameType.SPARSE:
            # Some readers find the chunk's file by one field, some by the other.
            return lazy.pack(buf, where, where)
        return lazy.pack(buf, n, where + revision.frame.header_len)

    def get_slice(self, start: int = 0, stop: int | None = None) -> bytes:
        """Return the items from `start` to `stop`, like a slice."""
        return self._handle.reading(lambda source: _items(source, slice(start, stop)))

    def __getitem__(self, key: int | slice) -> bytes:
        """Return the bytes of an item, or of a slice of items without step."""
        count = self.nbytes // self.typesize
        if isinstance(key, slice):
            if key.step not in (None, 1):
                raise ValueError(f"a slice of a super-chunk has no step, not {key.step}")
            start, stop, _ = key.indices(count)
            return self.get_slice(start, stop)
        n = operator.index(key)
        if not -count <= n < count:
            raise IndexError(f"index {n} is out of bounds for {count} items")
        number = n % count
        return self.get_slice(number, number + 1)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        # NumPy would convert the chunks to text, which loses zeros at their ends.
        raise TypeError(f"{self.url} is a super-chunk, whose bytes have no type: get_slice() returns them")

    def __iter__(self) -> Iterator[bytes]:
        """Yield the data of the chunks in order."""
        return map(self.decompress_chunk, range(self.nchunks))

    @classmethod
    def from_bytes(cls, buf: Buffer) -> Self:
        """Open a contiguous frame in memory, such as a result of `to_bytes`, read-only."""
        store = MemoryStore({"": bytes(buf)})
        return cls(Handle(load(store), "r"))

    def to_bytes(self) -> bytes:
        """Return the super-chunk as one contiguous frame, without compressing chunks again."""
        target = MemoryStore()
        commit(self._handle.reading(lambda source: copy_frame(source, target, FrameType.CONTIGUOUS)))
        whole = Span("", 0, target.stamp("").size)
        (view,) = target.read([whole])
        return bytes(view)

    def repack(self, *, progress: bool = False) -> None:
        """Rewrite a contiguous frame without dead space. Sparse frames have no dead space."""
        if self.frame.frame_type == FrameType.CONTIGUOUS:
            with track(self.nchunks, "chunks copied", progress, unit="items") as bar:
                for attempt in self._handle.attempts(anywhere=True):
                    with attempt as draft:
                        edits.compact(draft, bar)

    def append_data(self, data: Data) -> int:
        """Compress data and append it as a chunk; return the number of chunks."""
        return self.append_chunk(self._encode(data))

    def insert_data(self, n: int, data: Data) -> int:
        """Compress data and insert it as chunk `n`; return the number of chunks."""
        return self.insert_chunk(n, self._encode(data))

    def update_data(self, n: int, data: Data) -> int:
        """Compress data, and replace chunk `n` with the result; return the number of chunks."""
        return self.update_chunk(n, self._encode(data))

    def _encode(self, data: Data) -> bytes:
        check_plain(data)
        if isinstance(data, np.ndarray):
            flat = np.ascontiguousarray(data).reshape(-1)
        else:
            flat = np.frombuffer(data, np.uint8)
        if not flat.nbytes:
            raise ValueError("a chunk needs at least one byte of data")
        has_several_blocks = 0 < self.blocksize < flat.nbytes
        # In a chunk, items of more than 255 bytes count as single bytes, so any block consists of whole items.
        if self.typesize <= 255 and has_several_blocks and self.blocksize % self.typesize:
            where = f"{self.url}: blocks of {self.blocksize} bytes and items of {self.typesize}"
            raise UnsupportedError(f"{where} can be read but not written")
        return encode.encode(flat, typesize=self.typesize, blocksize=self.blocksize, cparams=self.cparams)

    def fill_special(self, nitems: int, value: Any = 0) -> int:
        """Append equal items, which need almost no space; return the number of chunks.

        Parameters
        ----------
        nitems : int
            The number of items. All chunks except the last are full.
        value : bytes, scalar, or 0
            The item: `bytes`, or a value that NumPy converts to the size of an item; NaN for floats.
        """
        if not self.chunksize:
            raise ValueError("the chunks of this super-chunk have no common size")
        item = value if isinstance(value, bytes) else np.asarray(value).tobytes()
        if not any(item):
            # Zeros of all types are equal, for example the Python integer 0 and a float.
            item = bytes(self.typesize)
        if len(item) != self.typesize:
            raise ValueError(f"an item has {self.typesize} bytes, not {len(item)}; give it as bytes or a NumPy scalar")
        count = operator.index(nitems)
        if count < 0:
            raise ValueError(f"nitems must be 0 or more, not {count}")
        whole_chunks, rest = divmod(count * self.typesize, self.chunksize)
        lengths = [self.chunksize] * whole_chunks
        if rest:
            lengths.append(rest)
        chunks = [encode.special_chunk(item, n, typesize=self.typesize, blocksize=self.blocksize) for n in lengths]

        def append(new: Draft) -> None:
            for chunk in chunks:
                edits.insert(new, new.frame.nchunks, chunk, edits.check_chunk(chunk))

        return self._edit(append, anywhere=True)

    def append_chunk(self, buf: Buffer) -> int:
        """Append a chunk; return the number of chunks.

        If the size of the chunk differs from the other chunks, or if the last chunk is short, this becomes a frame with
        chunks of different sizes.

        Raises
        ------
        FormatError, UnsupportedError
            `buf` is not a chunk.
        ValueError
            The chunk does not fit into any frame, or not into a frame with the present chunks.
        ReadOnlyError
            The handle was opened for reading.
        """
        # Check before the lock, and copy: the caller may change the buffer while the commit is tried again.
        header = edits.check_chunk(buf)
        content = bytes(buf)

        def append(new: Draft) -> None:
            edits.insert(new, new.frame.nchunks, content, header)

        return self._edit(append, anywhere=True)

    def insert_chunk(self, n: int, buf: Buffer) -> int:
        """Insert a chunk before chunk `n`; return the number of chunks. Raises the errors of `append_chunk`."""
        # Check before the lock, and copy: the caller may change the buffer while the commit is tried again.
        header = edits.check_chunk(buf)
        content = bytes(buf)
        return self._edit(lambda new: edits.insert(new, _normalize_number(new, n, end=True), content, header))

    def update_chunk(self, n: int, buf: Buffer) -> int:
        """Replace chunk `n`; return the number of chunks. Raises the errors of `append_chunk`."""
        # Check before the lock, and copy: the caller may change the buffer while the commit is tried again.
        header = edits.check_chunk(buf)
        content = bytes(buf)
        return self._edit(lambda new: edits.update(new, _normalize_number(new, n), content, header))

    def delete_chunk(self, n: int) -> int:
        """Remove chunk `n`; return the number of chunks."""
        return self._edit(lambda new: edits.delete(new, _normalize_number(new, n)))

    def reorder(self, order: Sequence[int]) -> None:
        """Reorder the chunks: the new chunk i is the old chunk ``order[i]``.

        Raises
        ------
        ValueError
            `order` does not contain the number of each chunk exactly once.
        """
        self._edit(lambda new: edits.reorder(new, order))

    def _edit(self, function: Callable[[Draft], None], *, anywhere: bool = False) -> int:
        # `n` must mean the same chunk for all threads that share the handle.
        with self._handle.mutex.held:
            for attempt in self._handle.attempts(anywhere=anywhere):
                with attempt as draft:
                    function(draft)
            return self.nchunks


def schunk_at(
    url: str | os.PathLike[str],
    mode: Mode = "r",
    *,
    offset: int = 0,
    at: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> SChunk:
    """Open the frame at a URL as a super-chunk. For a member of a group, the URL must be the path of the file.

    Raises the errors of `b2array.open_schunk`.
    """
    store = open_store(url, storage_options=storage_options, fs=fs)
    is_read = mode == "r"
    revision = load(store, start=offset, bare=at is not None, cached=is_read, needs_group=not is_read)
    return SChunk(Handle(revision if at is None else intact.load_intact_state(revision, at), mode))


@spell_out()
def create_schunk(
    url: str | os.PathLike[str] | None = None,
    *,
    chunksize: int,
    typesize: int = 1,
    blocksize: int = 0,
    cparams: AnyCParams = None,
    meta: Mapping[str, Any] | None = None,
    layout: Literal["auto", "contiguous", "sparse"] = "auto",
    overwrite: bool = False,
    interop: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> SChunk:
    """Create a frame without chunks, and return a handle that can change it.

    Parameters
    ----------
    url : str or os.PathLike, optional
        The place of the new array; in memory by default.
    chunksize : int
        The uncompressed size of the chunks in bytes, a multiple of `typesize`; 0 for chunks of different sizes.
    typesize : int, default 1
        Size of an item in bytes.
    blocksize : int, default 0
        The uncompressed size of a block in bytes; 0 chooses it for each chunk.
    cparams : CParams, optional
        The compression of chunks.
    meta : mapping, optional
        The metalayers, which can never change: values that msgpack supports, or bytes, which are stored unchanged.
    layout : {"auto", "contiguous", "sparse"}
        One file, or a directory with one file per chunk; "auto": one file on local paths, else a directory.
    overwrite : bool, default False
        Whether to replace an existing frame.
    interop : bool, default True
        Whether to refuse parameters with which the C library reads chunks or slices wrongly, or not at all.
    storage_options : mapping, optional
        Storage options for fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Raises
    ------
    FileExistsError
        Something already exists at the URL.
    ValueError
        A size is negative, or is not a whole number of items.
    LimitError
        A size is larger than the format allows.
    UnsupportedError
        The C library would read wrong bytes (see `interop`).
    """
    chunksize, typesize, blocksize = map(operator.index, (chunksize, typesize, blocksize))
    if typesize < 1:
        raise ValueError(f"typesize must be at least 1, not {typesize}")
    # The header of a chunk has one byte for the size of an item; larger items are stored as single bytes.
    width = typesize if typesize <= 255 else 1
    for name, size, unit, most in (
        ("chunksize", chunksize, typesize, MAX_CHUNK_NBYTES),
        ("blocksize", blocksize, width, MAX_BLOCKSIZE),
    ):
        if size < 0 or size % unit:
            raise ValueError(f"{name} must be a multiple of the typesize {typesize}, not {size}")
        if size > most:
            raise LimitError(f"{name} must be at most {most} bytes, not {size}")
    params = resolve_cparams(cparams)
    check_dtype(params, np.dtype(np.void))
    if interop:
        require_readable(params, typesize, delta=False)
    layers = encode_metalayers(meta)

    def new(where: AnyPlace, final: ArrayOptions) -> Draft:
        place = place_new(where, final.layout, final.storage_options, fs=final.fs, overwrite=final.overwrite)
        empty = frame.create(
            params,
            frame_type=place.kind,
            typesize=typesize,
            chunksize=chunksize,
            blocksize=blocksize,
            metalayers=layers,
        )
        state = parse(empty, Annotations(cparams=cparams_to_note(params)))
        return Draft(place.store, None, state, overwrite=final.overwrite, first=place.first)

    options = ArrayOptions(layout=layout, overwrite=overwrite, storage_options=storage_options, fs=fs)
    return SChunk(make(url, options, new, OTHER))


def _normalize_number(source: Source, n: int, *, end: bool = False) -> int:
    """Return the number of a chunk as counted from the first; with `end`, the position after the last is valid."""
    nchunks = source.frame.nchunks
    count = nchunks + 1 if end else nchunks
    number = operator.index(n)
    if not -count <= number < count:
        raise IndexError(f"chunk {n} is out of bounds for {nchunks} chunks")
    return number % count


def _fetch_chunk(source: Source, n: int) -> Stored:
    (stored,) = fetch(source, [ChunkRequest(n, None)])
    return stored


def _decode(source: Source, n: int, stored: Stored) -> npt.NDArray[np.uint8]:
    context = Context(source.frame.codec, source.frame.codec_meta)
    try:
        return decode.decode(stored.region, context=context)
    except (FormatError, UnsupportedError) as error:
        raise prefix_error(f"chunk {n} of {source.url}", error) from error


def _items(source: Source, items: slice) -> bytes:
    header = source.frame
    start, stop, _ = items.indices(header.nbytes // header.typesize)
    low = start * header.typesize
    high = stop * header.typesize
    if low >= high:
        return b""
    edges = _list_edges(source)
    first = int(np.searchsorted(edges, low, side="right")) - 1
    last = int(np.searchsorted(edges, high))
    numbers = range(first, last)
    pieces = []
    for n, stored in zip(numbers, read_chunks(source, numbers), strict=True):
        data = _decode(source, n, stored)
        edge = int(edges[n])
        pieces.append(data[max(low - edge, 0) : high - edge].tobytes())
    return b"".join(pieces)


def _list_edges(source: Source) -> npt.NDArray[Any]:
    """Return the offset of each chunk's data, and the end of the last chunk's data."""
    header = source.frame
    if not header.variable_chunks:
        full = np.arange(header.nchunks + 1) * header.chunksize
        return np.minimum(full, header.nbytes)
    edges = np.cumsum([0, *edits.chunk_sizes(source, range(header.nchunks))])
    if edges[-1] != header.nbytes:
        raise FormatError(f"{source.url}: expected chunks of {header.nbytes} bytes in all, found {edges[-1]}")
    return edges
