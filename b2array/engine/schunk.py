"""Super-chunks: numbered chunks in a store, found by a frame, changed by commits.

Sources: "Blosc2 Contiguous Frame Format" and "Blosc2 Sparse Frame Format".
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.buffers import Buffer
from b2array.codec import decode, encode, lazy
from b2array.codec.chunk import Context, Stored
from b2array.codec.cparams import CParams
from b2array.codec.header import Special
from b2array.engine import edits, snapshot
from b2array.engine.attributes import Layers
from b2array.engine.snapshot import Snapshot, Source, Want, fetch, whole_chunks
from b2array.engine.transaction import Draft, copied
from b2array.errors import ConflictError, FormatError, ReadOnlyError, UnsupportedError, located, located_error
from b2array.format import extras, notes
from b2array.format.frame import Frame, FrameType
from b2array.progress import track
from b2array.store.base import COMPARE_AND_SWAP, Mutex, Store, attempts, stale_reader
from b2array.store.memory import MemoryStore
from b2array.store.spans import Span

__all__ = ["Layers", "Mode", "SChunk"]

T = TypeVar("T")
Data = Buffer | npt.NDArray[Any]
_PICKLED_NBYTES = 2**16
"""What takes more than this and is of use for writers only stays out of pickles."""

Mode = Literal["r", "r+"]


class SChunk:
    """Numbered chunks of bytes.

    Made by `open_schunk` and `create_schunk`. A handle shows one committed state; its own commits move it on, those of
    others are seen after `refresh`.
    """

    def __init__(self, held: Snapshot, mode: Mode) -> None:
        if mode not in ("r", "r+"):
            raise ValueError(f"mode must be 'r' or 'r+', not {mode!r}")
        if mode == "r+" and held.start:
            raise ReadOnlyError("a frame inside a larger file can only be read")
        if mode == "r+" and held.store.guarantee == "read only":
            raise ReadOnlyError(f"{held.url} can only be read; open it with mode='r'")
        self._snapshot = held
        self._mode: Mode = mode
        self._draft: Draft | None = None
        self._mutex = Mutex()
        self._thin = False

    # What is there.

    @property
    def source(self) -> Source:
        """What chunks are read from: the transaction under way, or the committed state."""
        return self._draft if self._draft is not None else self._snapshot

    @property
    def committed(self) -> Snapshot:
        """The committed state that this handle shows."""
        return self._snapshot

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
        """For reading ("r"), or for reading and changing ("r+")."""
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
        return located(self.url, lambda: self.frame.cparams)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The metalayers, fixed when the frame is created: decoded if they are msgpack, else bytes."""
        return MappingProxyType({name: _decoded(raw) for name, raw in self.frame.metalayers})

    @property
    def vlmeta(self) -> Layers:
        """The variable-length metalayers, which can be changed."""
        return Layers(self)

    def __len__(self) -> int:
        return self.nchunks

    def __repr__(self) -> str:
        return f"<b2array.SChunk {self.url}: {self.nchunks} chunks, {self.nbytes} bytes>"

    # Reading.

    def reading(self, verb: Callable[[Source], T]) -> T:
        """Call `verb` with what is read from; again if a commit through this handle took that away meanwhile.

        Raises
        ------
        ConflictError
            Another writer took it away.
        """
        while True:
            source = self.source
            try:
                with _explained(source):
                    return verb(source)
            except (FormatError, ConflictError):
                with self._mutex:  # once a commit under way is over
                    if source is self.source and (source is not self._draft or not self._draft.catch_up()):
                        raise

    def decompress_chunk(self, n: int) -> bytes:
        """Return the data of chunk `n`.

        Raises
        ------
        IndexError
            There is no chunk `n`.
        FormatError, UnsupportedError
            It cannot be decoded.
        """

        def decoded(source: Source) -> bytes:
            number = _number(source, n)
            return _data(source, number, _stored(source, number)).tobytes()

        return self.reading(decoded)

    def get_chunk(self, n: int) -> bytes:
        """Return chunk `n` as it is stored."""
        return self.reading(lambda source: bytes(_stored(source, _number(source, n)).region))

    def lazy_chunk(self, n: int) -> bytes:
        """Return chunk `n` without its blocks: header, block starts, and where the blocks are.

        Special chunks are returned whole, and so are those that are not committed yet.
        """
        buf = self.get_chunk(n)
        held = self._snapshot
        n = _number(held, n) if self.source is held else -1
        where = held.frame.locate(n) if n >= 0 else Special.NONE
        if isinstance(where, Special):
            return buf
        if held.frame.frame_type == FrameType.SPARSE:
            # Stock readers look for the chunk's file by either field.
            return lazy.pack(buf, where, where)
        return lazy.pack(buf, n, where + held.frame.header_len)

    def get_slice(self, start: int = 0, stop: int | None = None) -> bytes:
        """Return the items from `start` to `stop`, as slicing counts them."""
        return self.reading(lambda source: _items(source, slice(start, stop)))

    def to_bytes(self) -> bytes:
        """Return everything as one contiguous frame; the chunks are copied, not compressed anew."""
        target = MemoryStore()
        self.reading(lambda source: copied(source, target, FrameType.CONTIGUOUS)).commit()
        (view,) = target.read([Span("", 0, target.stamp("").size)])
        return bytes(view)

    # Changing.

    @contextmanager
    def changing(self, *, locked: bool = False) -> Iterator[Draft]:
        """Collect changes for one commit, or for the transaction under way; one that raises changes nothing.

        Parameters
        ----------
        locked : bool, default False
            Whether the caller holds the store's lock already.

        Raises
        ------
        ConflictError
            Another writer, or another thread with this handle, changed the same; see `change`.
        """
        self.require_writable()
        with self._mutex:
            if self._draft is not None:
                with self._draft.attempt(), _explained(self._draft):
                    yield self._draft
                return
            draft = self.new_draft(locked=locked)
        try:
            with _explained(draft):
                yield draft
        except BaseException:
            draft.abort()
            raise
        with self._mutex:
            self._commit(draft)

    def _commit(self, draft: Draft) -> None:
        committed = draft.commit()
        # Without changes there was no commit, and another thread's may have moved the handle on meanwhile.
        if committed is not draft.base:
            self._snapshot = committed

    def change(self, verb: Callable[[Draft], T], *, anywhere: bool = False) -> T:
        """Call `verb` with a draft and commit; if another writer came first, again on what that one has left.

        After some attempts other writers have to wait, where the store has locks.

        Parameters
        ----------
        verb : callable
            Changes a draft.
        anywhere : bool, default False
            Whether it makes sense if the other writer changed metalayers, number or order of the chunks.

        Raises
        ------
        ConflictError
            It does not make sense any more, or there is a transaction under way.
        """
        for tried in attempts(self.store):
            if tried == config.retries and self.store.guarantee != COMPARE_AND_SWAP:
                break
            known = self._snapshot
            try:
                with self.changing() as draft:
                    return verb(draft)
            except ConflictError:
                if not self._caught_up(known, anywhere=anywhere):
                    raise
        with self._mutex:
            if self._draft is None:
                return self._change_alone(verb, anywhere=anywhere)
            with self.changing() as draft:
                return verb(draft)

    def _caught_up(self, known: Snapshot, *, anywhere: bool) -> bool:
        """Look what other writers have left; say whether that is new and makes sense of another attempt."""
        with self._mutex:
            if self._draft is not None:
                return self._draft.catch_up()
            self.refresh()
            return self._snapshot.generation != known.generation and (anywhere or self._snapshot.alike(known))

    def _change_alone(self, verb: Callable[[Draft], T], *, anywhere: bool) -> T:
        with self.store.lock(self._snapshot.name):
            known = self._snapshot
            self.refresh()
            if not anywhere and not self._snapshot.alike(known):
                raise ConflictError(f"{self.url} was changed by another writer; repeat the change")
            with self.changing(locked=True) as draft:
                return verb(draft)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Make everything that is changed through this handle inside the ``with`` block one commit.

        Threads that write through the handle join in, one at a time, and readings through it show the changes. If the
        block raises, nothing has happened.

        Raises
        ------
        ValueError
            A transaction is under way already.
        ConflictError
            Another writer changed chunks that were read or written in the block. Nothing has happened then.
        """
        draft = self.begin()
        try:
            yield self
        except BaseException:
            self.end(None)
            draft.abort()
            raise
        with self._mutex:
            try:
                self._commit(draft)
            finally:
                self._draft = None

    def begin(self, draft: Draft | None = None) -> Draft:
        """Enter a transaction that somebody else commits; `end` leaves it. Raises what `transaction` raises.

        Parameters
        ----------
        draft : Draft, optional
            Of a new frame that takes the place of this one; else the changes are made to this one.
        """
        self.require_writable()
        with self._mutex:
            if self._draft is not None:
                raise ValueError("a transaction is under way on this handle already")
            self._draft = draft or self.new_draft()
            return self._draft

    def end(self, held: Snapshot | None) -> None:
        """Leave the transaction, once other threads have done what they were about to, with a new state or the old."""
        with self._mutex:
            self._snapshot = held or self._snapshot
            self._draft = None

    def require_writable(self) -> None:
        """Raise ReadOnlyError if the handle was opened for reading."""
        if self._mode == "r":
            raise ReadOnlyError(f"{self.url} was opened for reading; open it with mode='r+' to change it")

    def new_draft(self, *, locked: bool = False) -> Draft:
        """Begin a commit on top of the committed state, apart from any transaction."""
        if self._thin:
            current = snapshot.load(self.store)
            if current.generation == self._snapshot.generation:
                self._snapshot = current
            self._thin = False
        return Draft(self.store, self._snapshot, locked=locked)

    def frozen(self, mode: Mode = "r") -> SChunk:
        """Return another handle that shows the committed state, and goes on doing so whatever this one commits.

        Raises
        ------
        ValueError
            A transaction is under way.
        """
        if self._draft is not None:
            raise ValueError("a transaction is under way on this handle; what it changes is not committed yet")
        held = SChunk(self._snapshot, mode)
        held._thin = self._thin
        return held

    def show(self, held: Snapshot) -> None:
        """Show a state that was committed by other means than this handle."""
        with self._mutex:
            if self._draft is None:
                self._snapshot = held
                self._thin = False

    def refresh(self) -> None:
        """Show what has been committed by others since this handle was opened or last changed something."""
        with self._mutex:
            if self._draft is not None:
                raise ValueError("refresh() inside a transaction would lose its changes")
            self._snapshot = snapshot.load(self.store, start=self._snapshot.start)

    def repack(self, *, progress: bool = False) -> None:
        """Write a contiguous frame anew, without dead space. There is none in sparse frames."""
        if self.frame.frame_type == FrameType.CONTIGUOUS:
            with track(self.nchunks, "chunks copied", progress, unit="items") as shown:
                self.change(lambda draft: draft.compact(shown), anywhere=True)

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
        held = self._snapshot
        thin, index = notes.thinned(held.frame, _PICKLED_NBYTES)
        return _restored, (held.store, thin, index, held.start, held.version, held.generation, self._mode)

    def append_data(self, data: Data) -> int:
        """Compress data and append them as a chunk; returns the number of chunks."""
        return self.append_chunk(self._encoded(data))

    def insert_data(self, n: int, data: Data) -> int:
        """Compress data and insert them as chunk `n`; returns the number of chunks."""
        return self.insert_chunk(n, self._encoded(data))

    def update_data(self, n: int, data: Data) -> int:
        """Compress data and let them take the place of chunk `n`; returns the number of chunks."""
        return self.update_chunk(n, self._encoded(data))

    def _encoded(self, data: Data) -> bytes:
        flat = np.ascontiguousarray(data).reshape(-1) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        if not flat.nbytes:
            raise ValueError("a chunk needs at least one byte of data")
        return encode.encode(flat, typesize=self.typesize, blocksize=self.blocksize, cparams=self.cparams)

    def append_chunk(self, buf: Buffer) -> int:
        """Append a chunk; returns the number of chunks.

        A chunk that does not have the size of the others (or follows a short one) makes this a frame in which every
        chunk has its own size.

        Raises
        ------
        FormatError, UnsupportedError
            `buf` is not a chunk.
        ValueError
            It cannot be in a frame, or not together with the chunks of this one.
        ReadOnlyError
            The handle was opened for reading.
        """
        header, content = edits.check_chunk(buf), bytes(buf)
        return self._edit(lambda draft: edits.insert(draft, draft.frame.nchunks, content, header), anywhere=True)

    def insert_chunk(self, n: int, buf: Buffer) -> int:
        """Insert a chunk before chunk `n`; returns the number of chunks. Raises what `append_chunk` raises."""
        header, content = edits.check_chunk(buf), bytes(buf)
        return self._edit(lambda draft: edits.insert(draft, _number(draft, n, end=True), content, header))

    def update_chunk(self, n: int, buf: Buffer) -> int:
        """Let a chunk take the place of chunk `n`; returns the number of chunks. Raises what `append_chunk` raises."""
        header, content = edits.check_chunk(buf), bytes(buf)
        return self._edit(lambda draft: edits.update(draft, _number(draft, n), content, header))

    def delete_chunk(self, n: int) -> int:
        """Remove chunk `n`; returns the number of chunks."""
        return self._edit(lambda draft: edits.delete(draft, _number(draft, n)))

    def reorder(self, order: Sequence[int]) -> None:
        """Give the chunks a new order: new chunk i is what chunk ``order[i]`` was.

        Raises
        ------
        ValueError
            `order` does not name every chunk once.
        """
        self._edit(lambda draft: edits.reorder(draft, order))

    def _edit(self, verb: Callable[[Draft], None], *, anywhere: bool = False) -> int:
        with self._mutex:  # threads that share the handle have the same idea of what chunk `n` is
            self.change(verb, anywhere=anywhere)
            return self.nchunks


@contextmanager
def _explained(source: Source) -> Iterator[None]:
    """Let bad bytes be a conflict if another writer was here: other software moves chunks about in their file.

    Errors that do not say which file they are about, do so now.
    """
    try:
        yield
    except (FormatError, UnsupportedError) as error:
        held = source.base if isinstance(source, Draft) else source
        if isinstance(error, FormatError) and isinstance(held, Snapshot) and held.superseded:
            raise stale_reader(held.url) from error
        if source.url not in str(error):
            raise located_error(source.url, error) from error
        raise


def _number(source: Source, n: int, *, end: bool = False) -> int:
    count, number = source.frame.nchunks + end, operator.index(n)
    if not -count <= number < count:
        raise IndexError(f"chunk {n} is out of bounds for {source.frame.nchunks} chunks")
    return number % count


def _stored(source: Source, n: int) -> Stored:
    (stored,) = fetch(source, [Want(n, None)])
    return stored


def _data(source: Source, n: int, stored: Stored) -> npt.NDArray[np.uint8]:
    context = Context(source.frame.codec, source.frame.codec_meta)
    return located(f"chunk {n} of {source.url}", lambda: decode.decode(stored.region, context=context))


def _items(source: Source, items: slice) -> bytes:
    described = source.frame
    start, stop, _ = items.indices(described.nbytes // described.typesize)
    low, high = start * described.typesize, stop * described.typesize
    if low >= high:
        return b""
    if described.variable_chunks:
        edges = np.cumsum([0, *edits.chunk_sizes(source, range(described.nchunks))])
        if edges[-1] != described.nbytes:
            raise FormatError(f"{source.url}: expected chunks of {described.nbytes} bytes in all, found {edges[-1]}")
    else:
        edges = np.minimum(np.arange(described.nchunks + 1) * described.chunksize, described.nbytes)
    first, last = int(np.searchsorted(edges, low, side="right")) - 1, int(np.searchsorted(edges, high))
    pieces = []
    for n, stored in zip(range(first, last), whole_chunks(source, range(first, last)), strict=True):
        data = _data(source, n, stored)
        pieces.append(data[max(low - int(edges[n]), 0) : high - int(edges[n])].tobytes())
    return b"".join(pieces)


def _restored(
    store: Store, thin: Frame, index: bytes, start: int, version: str | None, generation: str, mode: Mode
) -> SChunk:
    held = SChunk(Snapshot(store, notes.restored(thin, index), start, version, generation), mode)
    held._thin = mode == "r+"
    return held


def _decoded(raw: bytes) -> Any:
    try:
        return extras.decode_attr(raw)
    except (FormatError, UnsupportedError):
        return raw
