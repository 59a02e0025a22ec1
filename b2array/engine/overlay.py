"""Changes that no reader sees yet, on top of a snapshot: new chunks, another index, other metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.codec import chunk
from b2array.codec.chunk import ChunkHead
from b2array.codec.header import Special
from b2array.engine.open_chunk import OpenChunk, WriteBuffer
from b2array.engine.snapshot import Snapshot, frame_in
from b2array.engine.source import SPOOL, Location, Target
from b2array.engine.staging import Noted, Staging
from b2array.errors import ConflictError, FormatError, ReadOnlyError, UnsupportedError
from b2array.format import frame, index
from b2array.format.annotations import Sizes
from b2array.format.header import FrameType
from b2array.format.state import State, sized_blocks
from b2array.store.base import Store, join_views_at
from b2array.store.spans import Span
from b2array.store.spool import Spool

__all__ = ["Overlay", "changeable"]

Int64Array = npt.NDArray[np.int64]
T = TypeVar("T")

_LEAST_IN_MEMORY = 8 * 2**20
_MOST_IN_MEMORY = 64 * 2**20


class Overlay(Target):
    """Changes on top of a snapshot `base`, or of nothing for a `new` frame.

    Threads may put chunks at the same time; everything else is for one thread at a time. It refuses a frame inside a
    larger file, and one that a later version wrote.
    """

    def __init__(self, store: Store, base: Snapshot | None, new: State | None = None, *, overwrite: bool) -> None:
        start = base.state if base is not None else new
        if start is None:
            raise ValueError("a transaction needs a base or a new frame")
        if base is not None and base.start:
            raise ReadOnlyError(f"{store.url}: a frame inside a larger file cannot be written")
        if start.annotations.foreign:
            raise UnsupportedError(
                f"{store.url} was written by a later version of b2array, which this one cannot follow"
            )
        if base is None:
            start = start.with_annotations(start.annotations.with_new_identity())
        self.base = base
        self.state = changeable(start)
        self.sparse = start.frame.frame_type == FrameType.SPARSE
        replaces = overwrite and base is None
        self._old = frame_in(store) if replaces else None
        self._final = store
        self.store = (store.beside(directory=self.sparse) if replaces else None) or store
        self.restructured = False
        self._touched: set[int] = set()
        self._read: set[int] = set()
        self._attrs: dict[str, bytes | None] = {}
        self._staging = self._new_staging()

    def _new_staging(self) -> Staging:
        if self.sparse:
            return Staging(self.store, None, self._first_number())
        path, reserved = self._final.temporary(""), 0
        if path is not None:
            reserved = len(frame.pack_header(self.frame) if self.base is None else self.base.header)
        limit: float = _MOST_IN_MEMORY
        if path is not None:
            # The file becomes the frame if that is new or all its chunks are, and is written twice otherwise.
            old_nbytes = 0 if self.base is None else self.base.frame.frame_len
            limit = min(max(old_nbytes // 2, _LEAST_IN_MEMORY), _MOST_IN_MEMORY)
        elif self.store.appendable:  # the frame will be in memory, too
            limit = np.inf
        return Staging(self.store, Spool(path, reserved=reserved, limit=limit), 0)

    def _first_number(self) -> int:
        state = self.state
        if self.base is None:
            if self._old is None or not self._old.sparse:
                return 0
            state = self._old.state
        return max(state.annotations.next or 0, int(state.frame.offsets.max(initial=-1)) + 1)

    @property
    def url(self) -> str:
        """The store, for messages."""
        return self._final.url

    @property
    def aside(self) -> bool:
        """Whether the new frame is made in another place first: a file cannot be made where a directory is."""
        return self.store is not self._final

    # Reading.

    def staleness(self) -> ConflictError | None:
        """Return the error for a reader if the store has another state than the one that the changes are made to."""
        return None if self.base is None else self.base.staleness()

    def locate(self, n: int) -> Location | Special:
        """Return where chunk `n` is, new or old. Note the read of an old one."""
        if self.buffer is not None and n in self.buffer.chunks:
            self.flush((n,))
        extent = self._staging.extent(int(self.state.frame.offsets[n])) if 0 <= n < self.state.frame.nchunks else None
        if extent is not None:
            return Location(SPOOL, *extent)
        try:
            entry = self.entry(n)
        except KeyError:  # meanwhile another thread has put a new chunk there
            return self.locate(n)
        if n not in self._touched:
            self._read.add(n)
        if isinstance(entry, Special):
            return entry
        return Location(index.chunk_name(entry), 0, -1) if self.base is None else self.base.location_of(entry)

    locate_unchecked = locate

    def read(self, spans: Sequence[Span], *, clip: bool = False) -> list[memoryview]:
        """Read bytes of the store's objects and of new chunks."""
        stored = [span for span in spans if span.name != SPOOL]
        source = self.base.read if self.base is not None else self.store.read
        views = iter(source(stored, clip=clip)) if stored else iter(())
        return [self._staging.read(span.start, span.stop) if span.name == SPOOL else next(views) for span in spans]

    def gather(self, spans: Sequence[Span], places: Sequence[int], nbytes: int) -> memoryview:
        """Read bytes to their places in one buffer."""
        if self.base is None or any(span.name == SPOOL for span in spans):
            return join_views_at(self.read(spans), places, nbytes)
        return self.base.gather(spans, places, nbytes)

    # Changes.

    def put(self, n: int, buf: bytes) -> None:
        """Make `buf` (a chunk) chunk number `n`; one of zeros or NaN takes no room."""
        self.set_code(n, self.store_chunk(buf))

    def store_chunk(self, buf: bytes) -> int:
        """Stage a chunk, and return the code that stands for it in this index; nothing is stored for zeros."""
        head = chunk.unpack_head(buf)
        special = head.header.special
        if special in index.SPECIAL_OFFSETS and not self.state.frame.variable_chunks:
            return index.special_offset(special)
        return self.store_stored(buf, head)

    def store_stored(self, buf: bytes, head: ChunkHead) -> int:
        """Stage a chunk, even one of zeros, and return its code."""
        return self._staging.put(buf, self.state.sizes.shape[1] - 1, head)

    def reserve(self, count: int) -> int:
        """Reserve numbers of files for other processes, and return the first. They are valid after the commit."""
        self.restructured = True  # another writer may have reserved the same ones
        return self._staging.reserve(count)

    def reserve_up_to(self, number: int) -> None:
        """Give no new file this number or a lower one."""
        self._staging.next = max(self._staging.next, number + 1)

    def adopt(self, n: int, code: int, sizes: Sizes, record: bytes) -> None:
        """Let chunk `n` be one that another process has put into file `code`; see `Staging.adopt`."""
        self._staging.adopt(code, sizes, record)
        self.set_code(n, code)

    # Open chunks.

    def keep_open(self) -> None:
        """From now on, keep changed chunks open until `flush`, or until they take too much memory."""
        self.buffer = WriteBuffer()

    def flush(self, numbers: Iterable[int] | None = None) -> None:
        """Encode and store open chunks: all of them by default."""
        if self.buffer is None or not self.buffer.chunks:
            return
        with self.buffer.mutex.held:
            chunks = self.buffer.chunks
            chosen = [(n, chunks[n]) for n in (list(chunks) if numbers is None else numbers) if n in chunks]

            def store(chunk: OpenChunk) -> bytes | int:
                buf = chunk.encoded()
                return self.store_chunk(buf) if self.sparse else buf

            with closing(threads.spread(store, (chunk for _, chunk in chosen))) as made:
                for (n, _), each in zip(chosen, made, strict=True):
                    self.set_code(n, self.store_chunk(each) if isinstance(each, bytes) else each)

    def set_code(self, n: int, code: int) -> None:
        """Set index entry `n` to a code that `store_chunk` has returned."""
        state = self.state
        if self.undo is not None:
            before = Noted(state.sizes[n].copy(), int(state.records[n]))
            self.undo.append(partial(_set, state, n, int(state.frame.offsets[n]), before))
        if self.buffer is not None:
            self.buffer.drop(n)
        _set(state, n, code, self._staging.noted.get(code))
        self._touched.add(n)
        if n in self.state.annotations.lost:
            self.annotate(lost=tuple(k for k in self.state.annotations.lost if k != n))

    def mark_lost(self, n: int) -> None:
        """Mark chunk `n` as lost: reading it is an error, until somebody writes all of it."""
        self.set_code(n, self._staging.tombstone())
        self.annotate(lost=tuple(sorted({*self.state.annotations.lost, n})))

    def annotate(self, **fields: Any) -> None:
        """Set fields of the annotations."""
        self.state = self.state.with_annotations(replace(self.state.annotations, **fields))

    def annotate_entry(self, key: str, value: object) -> None:
        """Set an entry that `Annotations` does not interpret."""
        self.state = self.state.with_annotations(self.state.annotations.with_entries(**{key: value}))

    def reindex(self, order: npt.ArrayLike, new: State | None = None, **fields: Any) -> None:
        """Give the chunks another order, count or size, and perhaps the state another shape.

        `order` has the old position for each new one, or -1 for a chunk of zeros. `fields` are new values of the
        frame's.
        """
        nbytes = fields.get("nbytes", 0)
        if not 0 <= nbytes < 2**63:  # a damaged header may have another sum than the chunks
            raise FormatError(f"{self.url}: expected chunks of 0 to {2**63 - 1} bytes together, found {nbytes}")
        old = np.asarray(order, np.int64).reshape(-1)
        state = self.state if new is None else new
        # Position -1 finds the entry that is added at the end: zeros.
        offsets = np.append(state.frame.offsets, index.special_offset(Special.ZEROS))[old]
        sizes = np.append(state.sizes, np.zeros((1, state.sizes.shape[1]), np.uint32), axis=0)[old]
        records = np.append(state.records, np.uint32(0))[old]
        lost = state.annotations.lost
        if lost:
            lost = tuple(np.flatnonzero(np.isin(old, lost)).tolist())
            state = state.with_annotations(replace(state.annotations, lost=lost))
        if self.buffer is not None and self.buffer.chunks:
            open_chunks = self.buffer.chunks
            moved = np.flatnonzero(np.isin(old, list(open_chunks))).tolist()
            self.buffer.replace({n: open_chunks[int(old[n])] for n in moved})
        state = state.with_frame(offsets=offsets, **fields)
        sizes = np.ascontiguousarray(sizes[:, : 1 + sized_blocks(state.frame)])
        self.state = state.with_tables(sizes, records)
        self.restructured = True

    def set_attr(self, name: str, content: bytes | None) -> None:
        """Set an attribute (or remove it): in a metalayer of its own if there is room, else in b2array's."""
        self._attrs[name] = content
        self.state = self.state.with_attr(name, content)

    def attempt(self, task: Callable[[Self], T]) -> T:
        """Call a task with this, and return its result; if it raises, undo what it changed."""
        self._staging.require_open()
        before = self.state, self.restructured, dict(self._attrs)
        open_chunks = {} if self.buffer is None else dict(self.buffer.chunks)
        outer, self.undo = self.undo, []
        log = self.undo
        try:
            result = task(self)
            if outer is not None:
                outer += log
        except BaseException:
            for undo in reversed(log):
                undo()
            self.state, self.restructured, self._attrs = before
            if self.buffer is not None:
                self.buffer.replace(open_chunks)
            raise
        finally:
            self.undo = outer
        return result


def _set(state: State, n: int, code: int, noted: Noted | None) -> None:
    sizes = state.sizes
    state.frame.offsets[n] = code
    if noted is None:
        sizes[n], state.records[n] = 0, 0
    else:
        sizes[n], state.records[n] = noted.sizes[: sizes.shape[1]], noted.record


def changeable(state: State) -> State:
    """Return a state whose index and tables can be changed in place."""
    copied = replace(state.frame, offsets=np.array(state.frame.offsets, np.int64))
    return replace(state, frame=copied).with_tables(state.sizes.copy(), state.records.copy())
