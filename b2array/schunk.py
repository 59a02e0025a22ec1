"""Super-chunks: numbered chunks in a store, found by a frame, changed by commits.

Sources: "Blosc2 Contiguous Frame Format" and "Blosc2 Sparse Frame Format".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np

from b2array import chunk, encoder, extras, frame, lazy, snapshot
from b2array.chunk import Context, Stored
from b2array.draft import Draft, copied, extras_of
from b2array.errors import FormatError, ReadOnlyError, UnsupportedError
from b2array.frame import Frame, FrameType
from b2array.params import CParams
from b2array.snapshot import Place, Snapshot, Source, Want, fetch, located
from b2array.spans import Span
from b2array.spec import Buffer, ChunkHeader, Special
from b2array.storage import MemoryStore, Store, open_store

__all__ = ["Layers", "Mode", "SChunk", "create_schunk", "open_schunk"]

Mode = Literal["r", "r+"]


class SChunk:
    """Numbered chunks of bytes.

    Made by `open_schunk` and `create_schunk`. A handle shows one committed state; its own commits move it on, those of
    others are seen after `refresh`.
    """

    def __init__(self, held: Snapshot, mode: Mode) -> None:
        if mode not in ("r", "r+"):
            raise ValueError(f"mode must be 'r' or 'r+', not {mode!r}")
        self._snapshot = held
        self._mode: Mode = mode
        self._draft: Draft | None = None
        self._mutex = threading.RLock()

    # What is there.

    @property
    def source(self) -> Source:
        """What chunks are read from: the transaction under way, or the committed state."""
        return self._draft if self._draft is not None else self._snapshot

    @property
    def frame(self) -> Frame:
        """Header, index and trailer."""
        return self.source.frame

    @property
    def store(self) -> Store:
        """Where the chunks are."""
        return self._snapshot.store

    @property
    def url(self) -> str:
        """Where the chunks are, without secrets."""
        return self.store.url

    @property
    def mode(self) -> Mode:
        """Whether the handle is for reading, "r", or for changing too, "r+"."""
        return self._mode

    @property
    def in_transaction(self) -> bool:
        """Whether changes wait for the end of a transaction."""
        return self._draft is not None

    @property
    def generation(self) -> str:
        """Names the committed state that this handle shows; changes with every commit."""
        return self._snapshot.generation

    @property
    def nchunks(self) -> int:
        """Number of chunks."""
        return self.frame.nchunks

    @property
    def nbytes(self) -> int:
        """Uncompressed size in bytes."""
        return self.frame.nbytes

    @property
    def cbytes(self) -> int:
        """Compressed size in bytes, as the frame has it."""
        return self.frame.cbytes

    @property
    def cratio(self) -> float:
        """Uncompressed size over compressed size."""
        return self.nbytes / self.cbytes if self.cbytes else 0.0

    @property
    def typesize(self) -> int:
        """Size of an item in bytes."""
        return self.frame.typesize

    @property
    def chunksize(self) -> int:
        """Uncompressed size in bytes of every chunk but a shorter last one; 0 if each has its own."""
        return max(self.frame.chunksize, 0)

    @property
    def blocksize(self) -> int:
        """Uncompressed size in bytes of a block; 0 if chunks choose."""
        return self.frame.blocksize

    @property
    def cparams(self) -> CParams:
        """How new chunks are made."""
        return self.frame.cparams

    @property
    def meta(self) -> Mapping[str, Any]:
        """The metalayers, fixed when the frame is created: decoded if they are msgpack, else bytes."""
        return MappingProxyType({name: _decoded(raw) for name, raw in self.frame.metalayers})

    @property
    def vlmeta(self) -> Layers:
        """The variable-length metalayers, which can be changed."""
        return Layers(self)

    @property
    def context(self) -> Context:
        """What the frame adds to the headers of its chunks."""
        return Context(self.frame.codec, self.frame.codec_meta)

    def __len__(self) -> int:
        return self.nchunks

    def __repr__(self) -> str:
        return f"<b2array.SChunk {self.url}: {self.nchunks} chunks, {self.nbytes} bytes>"

    # Reading.

    def _number(self, n: int, upper: int | None = None) -> int:
        count = self.nchunks if upper is None else upper
        if not -count <= n < count:
            raise IndexError(f"chunk {n} is out of bounds for {self.nchunks} chunks")
        return n % count

    def _stored(self, n: int) -> Stored:
        (stored,) = fetch(self.source, [Want(self._number(n), None)])
        return stored

    def decompress_chunk(self, n: int) -> bytes:
        """Return the data of chunk `n`.

        Raises
        ------
        IndexError
            There is no chunk `n`.
        FormatError, UnsupportedError
            It cannot be decoded.
        """
        region = self._stored(n).region
        return located(self._where(n), lambda: chunk.decode(region, context=self.context)).tobytes()

    def _where(self, n: int) -> str:
        return f"chunk {self._number(n)} of {self.url}"

    def get_chunk(self, n: int) -> bytes:
        """Return chunk `n` as it is stored."""
        return bytes(self._stored(n).region)

    def lazy_chunk(self, n: int) -> bytes:
        """Return chunk `n` without its blocks: header, block starts, and where the blocks are.

        Special chunks are returned whole.
        """
        n = self._number(n)
        place = self.source.place(n)
        (stored,) = fetch(self.source, [Want(n, None)])
        if not isinstance(place, Place):
            return bytes(stored.region)
        sparse = self.frame.frame_type == FrameType.SPARSE
        offset = int(self.frame.offsets[n]) if sparse else place.start - getattr(self.source, "start", 0)
        return lazy.pack(stored.region, n, offset)

    def get_slice(self, start: int = 0, stop: int | None = None) -> bytes:
        """Return the items from `start` to `stop`, as slicing counts them."""
        items = self.nbytes // self.typesize
        start, stop, _ = slice(start, stop).indices(items)
        low, high = start * self.typesize, max(start, stop) * self.typesize
        sizes = [self._chunk_nbytes(n) for n in range(self.nchunks)] if not self.chunksize else None
        pieces = []
        for n, base, nbytes in self._overlapping(low, high, sizes):
            data = self.decompress_chunk(n)
            pieces.append(data[max(low - base, 0) : min(high - base, nbytes)])
        return b"".join(pieces)

    def _overlapping(self, low: int, high: int, sizes: list[int] | None) -> Iterator[tuple[int, int, int]]:
        if high <= low:
            return
        if sizes is None:
            for n in range(low // self.chunksize, -(-high // self.chunksize)):
                yield n, n * self.chunksize, self.chunksize
            return
        base = 0
        for n, nbytes in enumerate(sizes):
            if base < high and base + nbytes > low:
                yield n, base, nbytes
            base += nbytes

    def _chunk_nbytes(self, n: int) -> int:
        known = self.frame.chunk_nbytes(n)
        return known if known is not None else self._stored(n).head.header.nbytes

    def to_bytes(self) -> bytes:
        """Return everything as one contiguous frame; the chunks are copied, not compressed anew."""
        target = MemoryStore()
        copied(self.source, target, FrameType.CONTIGUOUS).commit()
        (view,) = target.read([Span("", 0, target.stamp("").size)])
        return bytes(view)

    # Changing.

    @contextmanager
    def changing(self) -> Iterator[Draft]:
        """Collect changes for one commit, or for the transaction under way."""
        if self._mode == "r":
            raise ReadOnlyError(f"{self.url} was opened for reading; open it with mode='r+' to change it")
        if self._draft is not None:
            yield self._draft
            return
        draft = Draft(self.store, self._snapshot)
        try:
            yield draft
        except BaseException:
            draft.abort()
            raise
        self._snapshot = draft.commit()

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Make everything that is changed through this handle inside the ``with`` block one commit.

        Threads that write through the handle join in, and readings through it show the changes. If the block raises, nothing
        has happened.

        Raises
        ------
        ValueError
            A transaction is under way already.
        ConflictError
            Another writer changed chunks that were read or written in the block. Nothing has happened then.
        """
        with self._mutex:
            if self._draft is not None:
                raise ValueError("a transaction is under way on this handle already")
            if self._mode == "r":
                raise ReadOnlyError(f"{self.url} was opened for reading; open it with mode='r+' to change it")
            draft = self._draft = Draft(self.store, self._snapshot)
        try:
            yield self
            self._snapshot = draft.commit()
        except BaseException:
            draft.abort()
            raise
        finally:
            self._draft = None

    def refresh(self) -> None:
        """Show what has been committed by others since this handle was opened or last changed something."""
        if self._draft is not None:
            raise ValueError("refresh() inside a transaction would lose its changes")
        self._snapshot = snapshot.load(self.store, start=self._snapshot.start)

    def close(self) -> None:
        """Let go of files. The handle can be used again."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._draft is not None:
            raise ValueError("a handle with a transaction under way cannot be pickled")
        return _restored, (self._snapshot, self._mode)

    def append_data(self, data: Buffer | np.ndarray[Any, Any]) -> int:
        """Compress data and append them as a chunk; returns the number of chunks."""
        return self.append_chunk(self._encoded(data))

    def insert_data(self, n: int, data: Buffer | np.ndarray[Any, Any]) -> int:
        """Compress data and insert them as chunk `n`; returns the number of chunks."""
        return self.insert_chunk(n, self._encoded(data))

    def update_data(self, n: int, data: Buffer | np.ndarray[Any, Any]) -> int:
        """Compress data and let them take the place of chunk `n`; returns the number of chunks."""
        return self.update_chunk(n, self._encoded(data))

    def _encoded(self, data: Buffer | np.ndarray[Any, Any]) -> bytes:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else data
        if not len(flat):
            raise ValueError("a chunk needs at least one byte of data")
        return encoder.encode(flat, typesize=self.typesize, blocksize=self.blocksize, cparams=self.cparams)

    def append_chunk(self, buf: Buffer) -> int:
        """Append a chunk; returns the number of chunks.

        A chunk that does not have the size of the others (or follows a short one) makes this a frame in which every chunk
        has its own size.

        Raises
        ------
        FormatError, UnsupportedError
            `buf` is not a chunk.
        ReadOnlyError
            The handle was opened for reading.
        """
        return self.insert_chunk(self.nchunks, buf)

    def insert_chunk(self, n: int, buf: Buffer) -> int:
        """Insert a chunk before chunk `n`; returns the number of chunks. Raises what `append_chunk` raises."""
        n = self._number(n, self.nchunks + 1)
        added = _checked_chunk(buf)
        with self.changing() as draft:
            now = draft.frame
            order = [*range(n), -1, *range(n, now.nchunks)]
            chunksize = now.chunksize if now.nchunks or now.chunksize > 0 else added.nbytes
            last_is_full = chunksize > 0 and now.nbytes % chunksize == 0
            fixed = added.nbytes == chunksize and (last_is_full or n < now.nchunks)
            fixed = fixed or (n == now.nchunks and last_is_full and added.nbytes < chunksize)
            self._reindex(draft, order, now.nbytes + added.nbytes, chunksize if fixed else 0)
            draft.put(n, bytes(buf))
        return self.nchunks

    def update_chunk(self, n: int, buf: Buffer) -> int:
        """Let a chunk take the place of chunk `n`; returns the number of chunks. Raises what `append_chunk` raises."""
        n = self._number(n)
        new = _checked_chunk(buf)
        with self.changing() as draft:
            now = draft.frame
            old_nbytes = self._chunk_nbytes(n)
            if new.nbytes != old_nbytes:
                fixed = n == now.nchunks - 1 and new.nbytes <= now.chunksize
                nbytes = now.nbytes - old_nbytes + new.nbytes
                self._reindex(draft, range(now.nchunks), nbytes, now.chunksize if fixed else 0)
            draft.put(n, bytes(buf))
        return self.nchunks

    def delete_chunk(self, n: int) -> int:
        """Remove chunk `n`; returns the number of chunks."""
        n = self._number(n)
        with self.changing() as draft:
            now = draft.frame
            order = [*range(n), *range(n + 1, now.nchunks)]
            draft.reindex(order, nbytes=now.nbytes - self._chunk_nbytes(n))
        return self.nchunks

    def reorder(self, order: Sequence[int]) -> None:
        """Give the chunks a new order: new chunk i is what chunk ``order[i]`` was.

        Raises
        ------
        ValueError
            `order` does not name every chunk once.
        """
        wanted = [int(n) for n in order]
        if sorted(wanted) != list(range(self.nchunks)):
            raise ValueError(f"the order must name each of {self.nchunks} chunks once: {wanted}")
        with self.changing() as draft:
            now = draft.frame
            short = now.chunksize > 0 and now.nbytes % now.chunksize
            moved = bool(wanted) and wanted[-1] != now.nchunks - 1
            self._reindex(draft, wanted, now.nbytes, 0 if short and moved else now.chunksize)

    def _reindex(self, draft: Draft, order: Sequence[int], nbytes: int, chunksize: int) -> None:
        """Change the order, first storing chunks of special values if their size will no longer be known."""
        if chunksize == 0 and not draft.frame.variable_chunks:
            for n in range(draft.frame.nchunks):
                place = draft.place(n)
                if isinstance(place, Special):
                    (stored,) = fetch(draft, [Want(n, None)])
                    draft.set_code(n, draft.store_stored(bytes(stored.region)), b"")
        draft.reindex(order, nbytes=nbytes, chunksize=chunksize)


def _checked_chunk(buf: Buffer) -> ChunkHeader:
    header = Stored.whole(buf).head.header
    if header.cbytes != len(buf):
        raise ValueError(f"the chunk has {header.cbytes} bytes, {len(buf)} were given")
    if not header.nbytes:
        raise ValueError("a chunk needs at least one byte of data")
    return header


def _restored(held: Snapshot, mode: Mode) -> SChunk:
    return SChunk(held, mode)


class Layers(MutableMapping[str, Any]):
    """The variable-length metalayers of a frame: names and values, each assignment a commit.

    Values are what msgpack takes, and complex numbers, sets, tuples and arrays as python-blosc2 writes them.
    """

    def __init__(self, held: SChunk) -> None:
        self._held = held

    def _noted(self) -> Mapping[str, bytes]:
        source = self._held.source
        return source.attrs if isinstance(source, Draft) else dict(extras_of(source.frame).attrs)

    def __getitem__(self, name: str) -> Any:
        raw = self._held.frame.vlmetalayer(name) if name != extras.LAYER else None
        if raw is not None:
            return located(
                f"attribute {name!r} of {self._held.url}", lambda: extras.decode_attr(frame.unpack_vlmeta(raw))
            )
        return extras.decode_attr(self._noted()[name])

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"attribute names are str, not {type(name).__name__}")
        content = extras.encode_attr(value)
        with self._held.changing() as draft:
            draft.set_attr(name, content)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        with self._held.changing() as draft:
            draft.remove_attr(name)

    def __iter__(self) -> Iterator[str]:
        names = [name for name, _ in self._held.frame.vlmetalayers if name != extras.LAYER]
        yield from names
        yield from (name for name in self._noted() if name not in names)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


def _decoded(raw: bytes) -> Any:
    try:
        return extras.decode_attr(raw)
    except FormatError:
        return raw


def open_schunk(
    url: str | os.PathLike[str],
    mode: Mode = "r",
    *,
    offset: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> SChunk:
    """Open a frame as numbered chunks.

    Parameters
    ----------
    url : str or os.PathLike
        A file, a directory with a sparse frame, or what fsspec understands.
    mode : {"r", "r+"}
        For reading, or for reading and changing.
    offset : int, default 0
        Where the frame begins in the file, in bytes.
    storage_options : mapping, optional
        For fsspec.

    Raises
    ------
    FileNotFoundError
        There is nothing.
    FormatError, UnsupportedError
        It is not a frame, or one that is not known here.
    """
    if offset and mode != "r":
        raise ReadOnlyError("a frame inside a larger file can only be read")
    return SChunk(snapshot.load(open_store(url, storage_options=storage_options), start=offset), mode)


def create_schunk(
    url: str | os.PathLike[str] | None = None,
    *,
    chunksize: int,
    typesize: int = 1,
    blocksize: int = 0,
    cparams: CParams | None = None,
    meta: Mapping[str, Any] | None = None,
    layout: Literal["auto", "contiguous", "sparse"] = "auto",
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> SChunk:
    """Create a frame without chunks, and return a handle that can change it.

    Parameters
    ----------
    url : str or os.PathLike, optional
        Where to; in memory if left out.
    chunksize : int
        Uncompressed size in bytes of the chunks, a multiple of `typesize`; 0 if every chunk has its own.
    typesize : int, default 1
        Size of an item in bytes.
    blocksize : int, default 0
        Uncompressed size in bytes of a block; 0 lets each chunk choose.
    cparams : CParams, optional
        How chunks are made.
    meta : mapping, optional
        Metalayers, which can never change: what msgpack takes, or bytes, which are stored as they are.
    layout : {"auto", "contiguous", "sparse"}
        One file, or a directory with a file a chunk; "auto": one file on local paths, else a directory.
    overwrite : bool, default False
        Whether a frame that is there may be replaced.
    storage_options : mapping, optional
        For fsspec.

    Raises
    ------
    FileExistsError
        There is something already.
    """
    if typesize < 1 or chunksize < 0 or chunksize % typesize:
        raise ValueError(f"chunksize must be a multiple of the typesize {typesize}, not {chunksize}")
    layers = [(name, raw if isinstance(raw, bytes) else extras.encode_attr(raw)) for name, raw in (meta or {}).items()]
    store, frame_type = place_new(url, layout, storage_options, overwrite=overwrite)
    new = frame.create(
        cparams or CParams(), frame_type=frame_type, typesize=typesize, chunksize=chunksize, blocksize=blocksize,
        metalayers=layers,
    )  # fmt: skip
    return SChunk(Draft(store, None, new, overwrite=overwrite).commit(), "r+")


def place_new(
    url: str | os.PathLike[str] | None,
    layout: str,
    storage_options: Mapping[str, Any] | None,
    *,
    overwrite: bool,
) -> tuple[Store, FrameType]:
    """Find the store for a new frame and decide its kind; nothing but a frame is ever overwritten.

    Raises
    ------
    FileExistsError
        There is something already, and it is not a frame or may not be overwritten.
    ValueError
        The layout has another name, or does not fit the URL.
    """
    if layout not in ("auto", "contiguous", "sparse"):
        raise ValueError(f"layout must be 'auto', 'contiguous' or 'sparse', not {layout!r}")
    if url is None:
        return MemoryStore(), FrameType.CONTIGUOUS if layout == "contiguous" else FrameType.SPARSE
    store = open_store(url, storage_options=storage_options)
    if layout == "auto":
        layout = "contiguous" if store.appendable and not store.is_prefix else "sparse"
    if layout == "contiguous" and store.is_prefix:
        raise ValueError(f"a contiguous frame is one file, but {store.url} ends with a slash")
    frame_type = FrameType.SPARSE if layout == "sparse" else FrameType.CONTIGUOUS
    _make_room(store, frame_type, overwrite=overwrite)
    return store, frame_type


def _make_room(store: Store, frame_type: FrameType, *, overwrite: bool) -> None:
    try:
        old = snapshot.load(store)
    except FileNotFoundError as error:
        if "is a directory" in str(error) and frame_type == FrameType.CONTIGUOUS:
            raise FileExistsError(f"{store.url} exists and is a directory without a frame") from None
        return
    except (FormatError, UnsupportedError):
        raise FileExistsError(f"{store.url} exists and is not a frame that can be replaced") from None
    if not overwrite:
        raise FileExistsError(f"{store.url} exists; overwrite=True replaces it")
    if old.frame.frame_type != frame_type:
        raise FileExistsError(
            f"{store.url} is a {old.frame.frame_type.name.lower()} frame, which a {frame_type.name.lower()} one cannot replace"
        )
