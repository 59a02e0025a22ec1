"""`Draft`: where the changes of a writer collect, on top of a snapshot: new chunks, another index, other metadata.

No reader sees them before the commit; see `b2array.commit.one`. `Draft.freeze` makes them a value, a `ChangeSet`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.codec import chunk
from b2array.codec.chunk import ChunkHead
from b2array.codec.header import ChunkHeader, Special
from b2array.commit.changes import (
    DIGEST_NBYTES,
    LOWEST_CODE,
    NO_FILES,
    ChangeSet,
    Keep,
    New,
    OfFork,
    applied,
    changeable,
    clash,
    is_spooled,
    rebased,
    reindexed,
)
from b2array.commit.open_chunk import OpenChunk, Undo, WriteBuffer
from b2array.commit.single import writers_lock
from b2array.commit.staging import Made, Staging, digest_of
from b2array.errors import B2ArrayError, ConflictError, FormatError, ReadOnlyError, UnsupportedError, warn
from b2array.format import annotations as notes
from b2array.format import frame, index
from b2array.format.frame import Frame
from b2array.format.header import FrameType
from b2array.format.kept import KEPT
from b2array.format.state import State, future_part
from b2array.frame.fetch import chunk_number
from b2array.frame.snapshot import Snapshot, frame_in, kept_states, ledger_in, load, reload
from b2array.frame.source import FRAME_NAME, SPOOL, FilterSlots, Location, Source, Staged
from b2array.progress import Progress
from b2array.store.base import MISSING, Store, Version, join_views_at
from b2array.store.spans import Span
from b2array.store.spool import Spool

__all__ = ["Draft", "ForkOf", "abandoned", "discard", "is_part", "removed", "warn_of_forgotten", "withdraw"]

Mask = npt.NDArray[np.bool_]

_LEAST_IN_MEMORY = 8 * 2**20
_MOST_IN_MEMORY = 64 * 2**20


class ForkOf(NamedTuple):
    """The transaction that a draft is a fork of.

    `origin` is the identity of the transaction, `id` that of the fork. `change` is everything that the transaction had
    changed by then, and `epoch` how often the order of the chunks.
    """

    origin: bytes
    id: bytes
    epoch: int
    change: ChangeSet


class Draft(Source):
    """Changes on top of a snapshot `base`, or of nothing for a `new` frame.

    Threads may put chunks at the same time; everything else is for one thread at a time. It refuses a frame inside a
    larger file, and one that a later version wrote.

    Parameters
    ----------
    store : Store
        Where the frame is.
    base : Snapshot or None
        The state to change; None for a new frame.
    new : State, optional
        The state of a new frame.
    overwrite : bool, default False
        Whether the new frame may replace another one.
    locked : bool, default False
        Whether the caller holds the store's lock.
    replaces : Version, optional
        The version of the frame that the new one replaces: no other one is overwritten.
    is_same : bool, default False
        Whether the new frame is the same as an old one, in another file: it keeps the identity.
    first : int, default 0
        The first number for the file of a chunk in a new sparse frame.
    """

    buffer: WriteBuffer | None = None
    """The chunks that a transaction keeps open."""
    undo: Undo | None = None
    """Takes calls that undo changes to open chunks; None if nothing will have to be undone."""
    keeps: tuple[Keep, ...] = ()
    """The states that the commit keeps under names."""
    drops: tuple[str, ...] = ()
    """The names of the kept states that the commit lets go."""

    def __init__(
        self, store: Store, base: Snapshot | None, new: State | None = None, *,
        overwrite: bool = False, locked: bool = False, replaces: Version | None = None, is_same: bool = False,
        first: int = 0,
    ) -> None:  # fmt: skip
        start = base.state if base is not None else new
        if start is None:
            raise ValueError("a transaction needs a base or a new frame")
        if base is not None and base.start:
            raise ReadOnlyError(f"{store.url}: a frame inside a larger file cannot be written")
        if start.annotations.foreign:
            raise UnsupportedError(
                f"{store.url} was written by a later version of b2array, which this one cannot follow"
            )
        if part := future_part(start.frame):
            raise UnsupportedError(f"{store.url} has {part}, so it can be read, but not written")
        if base is None and not is_same:
            start = start.with_annotations(start.annotations.with_new_identity())
        self.base, self._first = base, first
        self.new = New(start, overwrite or is_same, replaces, is_same) if base is None else None
        self.state = self._seen = start
        self.sparse = start.frame.frame_type == FrameType.SPARSE
        self.locked = locked
        self.place = store
        # A new frame that replaces one of the other layout is made in another place first.
        self.old = frame_in(store) if overwrite and base is None else None
        self.store = (self._place_beside() if overwrite and base is None else None) or store
        self.makes_directory = base is None and not is_same and self.sparse and _is_vacant(self.store)
        """Whether the first file makes the directory that a new frame is in."""
        self.is_unknown = False
        """Whether a commit may have happened although it failed."""
        self.progress: Progress | None = None
        self._before = start.annotations
        self._floor = start.annotations.floor or 0
        self._compacts = False
        self._own_tables = False
        self._touched: Mask = np.zeros(start.frame.nchunks, bool)
        self._read: Mask = np.zeros(start.frame.nchunks, bool)
        self._order: npt.NDArray[np.int64] | None = None
        self._attrs: dict[str, bytes | None] = {}
        self._filters: tuple[int, FilterSlots] | None = None
        self.epoch = 0
        """How often the order of the chunks has changed."""
        self.fork: ForkOf | None = None
        """The transaction that this is a fork of."""
        self.fork_id = b""
        """Names this transaction to its forks, if it has any."""
        self.shared: tuple[int, str] = 0, ""
        """Where forks put chunks: from which number of files on, or in which directory."""
        self.bases: dict[str, Snapshot] = {}
        """The states that forks were made on, by generation."""
        self.forks: dict[bytes, bool] = {}
        """The forks by name, and whether they were merged."""
        self.at_end = ExitStack()
        """Calls for the end of this draft."""
        self._digests: dict[int, bytes] = {}
        self.staging = self._new_staging()

    def _place_beside(self) -> Store | None:
        """Return a new place for a frame that replaces one of the other layout; None if the group lists revisions."""
        if self.old is not None and self.old.member is not None:
            return None
        return self.place.beside(directory=self.sparse)

    @classmethod
    def of_fork(cls, store: Store, base: Snapshot | None, fork: ForkOf, staging: Staging) -> Self:
        """Return the draft of a fork, which begins with the changes of the transaction so far."""
        change = fork.change
        draft = cls(store, base, None if change.new is None else change.new.state, is_same=True)
        draft.staging, draft.fork = staging, fork
        draft.staging.inherit(change.segments, change.extents)
        draft.state = draft._seen = applied(change, draft.state)
        draft._before = draft.state.annotations
        draft._forget_chunks()
        return draft

    def _forget_chunks(self) -> None:
        """Note that no chunk of the state was changed or read here."""
        self._touched = np.zeros(self.state.frame.nchunks, bool)
        self._read = self._touched.copy()

    def _new_staging(self) -> Staging:
        if self.sparse:
            return Staging(self.store, None, self._first_number())
        path, reserved = self.place.temporary(""), 0
        if path is not None:
            reserved = len(frame.pack_header(self.frame) if self.base is None else self.base.header)
        limit: float = _MOST_IN_MEMORY
        if path is not None:
            # The file becomes the frame if that is new or all its chunks are, and is written twice otherwise.
            old_nbytes = 0 if self.base is None else self.base.frame.frame_len
            limit = min(max(old_nbytes // 2, _LEAST_IN_MEMORY), _MOST_IN_MEMORY)
        elif self.store.can.append:  # the frame will be in memory, too
            limit = np.inf
        return Staging(self.store, Spool(path, reserved=reserved, limit=limit), 0)

    def _first_number(self) -> int:
        state = self.state
        if self.base is None:
            if self.old is None or not self.old.sparse:
                return self._first
            state = self.old.state
        return max(state.annotations.next or 0, int(state.frame.offsets.max(initial=-1)) + 1)

    @property
    def url(self) -> str:
        """The store, for messages."""
        return self.place.url

    @property
    def aside(self) -> bool:
        """Whether the new frame is made in another place first: a file cannot be made where a directory is."""
        return self.store is not self.place

    # Reading.

    def staleness(self) -> ConflictError | None:
        """Return the error for a reader if the store has another state than the one that the changes are made to."""
        if self.base is None:
            return abandoned(self.url) if self.staging.is_closed else None
        return self.base.staleness()

    def locate(self, n: int) -> Location | Special:
        """Return where chunk `n` is, new or old. Note the read of an old one."""
        if self.buffer is not None and n in self.buffer.chunks:
            self.flush((n,))
        extent = self.staging.extent(int(self.state.frame.offsets[n])) if 0 <= n < self.state.frame.nchunks else None
        if extent is not None:
            return Location(SPOOL, *extent)
        try:
            entry = self.entry(n)
        except KeyError:  # meanwhile another thread has put a new chunk there
            return self.locate(n)
        if not self._touched[n]:
            self._read[n] = True
        if isinstance(entry, Special):
            return entry
        return Location(index.chunk_name(entry), 0, -1) if self.base is None else self.base.location_of(entry)

    locate_unchecked = locate

    def read(self, spans: Sequence[Span], *, clip: bool = False) -> list[memoryview]:
        """Read bytes of the store's objects and of new chunks."""
        stored = [span for span in spans if span.name != SPOOL]
        source = self.base.read if self.base is not None else self.store.read
        views = iter(source(stored, clip=clip)) if stored else iter(())
        return [self.staging.read(span.start, span.stop) if span.name == SPOOL else next(views) for span in spans]

    def gather(self, spans: Sequence[Span], places: Sequence[int], nbytes: int) -> memoryview:
        """Read bytes to their places in one buffer."""
        if self.base is None or any(span.name == SPOOL for span in spans):
            return join_views_at(self.read(spans), places, nbytes)
        return self.base.gather(spans, places, nbytes)

    def as_source(self) -> Self:
        """Return the same to read from, without noting the reads."""
        source = copy.copy(self)
        source._read = self._read.copy()
        return source

    def earlier(self, state: State) -> Self:
        """Return an earlier state that the commit will keep, to read from."""
        source = copy.copy(self)
        source.state, source.buffer = state, None
        source._touched = np.ones(state.frame.nchunks, bool)  # so that no read is noted
        return source

    # Chunks.

    def put(self, n: int, buf: bytes) -> None:
        """Make `buf` (a chunk) chunk number `n`; one of zeros or NaN takes no room."""
        self.set_chunk(n, self.store_chunk(n, buf))

    def store_chunk(self, n: int, buf: bytes) -> Staged:
        """Stage a chunk that will be chunk `n`; nothing is stored for zeros."""
        head = chunk.unpack_head(buf)
        special = head.header.special
        if special in index.SPECIAL_OFFSETS and not self.state.frame.variable_chunks:
            return Staged(index.special_offset(special))
        return self.store_stored(n, buf, head)

    def store_stored(self, n: int, buf: bytes, head: ChunkHead | None = None) -> Staged:
        """Stage a chunk that will be chunk `n`, even one of zeros."""
        with self.told_if_replaced():
            return self.staging.put(n, buf, self.state.sizes.shape[1] - 1, head)
        raise AssertionError  # for the type checker

    @contextmanager
    def told_if_replaced(self) -> Iterator[None]:
        """Raise ConflictError if a file is now where the directory of the frame was."""
        try:
            yield
        except NotADirectoryError:
            if self.base is None:
                raise
            raise ConflictError(f"{self.url} was replaced by a file since it was opened") from None

    def set_chunk(self, n: int, staged: Staged) -> None:
        """Let chunk `n` be one that was staged."""
        if not self._own_tables:
            self.state, self._own_tables = changeable(self.state), True
        state = self.state
        if self.undo is not None:
            code, record = int(state.frame.offsets[n]), int(state.records[n])
            was = Staged(code, state.sizes[n].copy(), record, None, self._digests.get(n, b""))
            self.undo.append(partial(self._undo_set, state, self._touched, n, was, touched=bool(self._touched[n])))
        if self.buffer is not None:
            self.buffer.drop(n)
        _set(state, n, staged)
        self._touched[n] = True
        if staged.digest:
            self._digests[n] = staged.digest
        if staged.filters is not None and (self._filters is None or n <= self._filters[0]):
            self._filters = n, staged.filters
        if n in state.annotations.lost:
            self._set_lost(set(state.annotations.lost) - {n})

    def _undo_set(self, state: State, mask: Mask, n: int, was: Staged, *, touched: bool) -> None:
        _set(state, n, was)
        mask[n] = touched
        self._digests[n] = was.digest

    def set_special(self, numbers: npt.NDArray[np.int64], special: Special) -> None:
        """Let chunks consist of zeros or NaN."""
        if not self._own_tables:
            self.state, self._own_tables = changeable(self.state), True
        self.state.frame.offsets[numbers] = index.special_offset(special)
        self._touched[numbers] = True

    def mark_lost(self, n: int) -> None:
        """Mark chunk `n` as lost: reading it is an error, until somebody writes all of it."""
        self.set_chunk(n, Staged(self.staging.tombstone()))
        self._set_lost({*self.state.annotations.lost, n})

    def _set_lost(self, numbers: Iterable[int]) -> None:
        self.annotate(lost=tuple(sorted(numbers)))

    def reserve_up_to(self, number: int) -> None:
        """Let the commit say that no new file may have this number or a lower one, not even of a draft under way."""
        self._restructure(np.arange(self.frame.nchunks), self.frame)
        self.staging.reserve_up_to(number)
        self.annotate(floor=self.staging.next)

    def _renumber(self) -> None:
        """Put new chunks into other files if their numbers belong to files that were deleted meanwhile.

        A request to delete such a file may still be carried out, or be repeated.
        """
        floor = self.state.annotations.floor or 0
        if self.base is not None and floor > self._floor:
            self.rise_above(floor)

    def rise_above(self, floor: int) -> bool:
        """Put new chunks into other files if they have numbers below a floor; say whether any had.

        ConflictError: such a file is gone.
        """
        if not self.sparse:
            return False
        codes = self.state.frame.offsets
        below = np.flatnonzero(self._touched & (codes >= 0) & (codes < floor)).tolist()
        if below:
            self.staging.reserve_up_to(floor - 1)
        for n in below:
            name = index.chunk_name(int(codes[n]))
            try:
                stored = b"".join(self.store.pieces(name))
            except FileNotFoundError:
                raise removed(self.url, [name]) from None
            self.set_chunk(n, self.store_stored(n, stored[: ChunkHeader.unpack(stored).cbytes]))
        return bool(below)

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

            def store(numbered: tuple[int, OpenChunk]) -> bytes | Staged:
                n, chunk = numbered
                buf = chunk.encoded()
                return self.store_chunk(n, buf) if self.sparse else buf

            with closing(threads.spread(store, chosen)) as made:
                for (n, _), each in zip(chosen, made, strict=True):
                    self.set_chunk(n, self.store_chunk(n, each) if isinstance(each, bytes) else each)

    # Geometry and metadata.

    def annotate(self, **fields: Any) -> None:
        """Set fields of the annotations."""
        self.state = self.state.with_annotations(replace(self.state.annotations, **fields))

    def set_attr(self, name: str, content: bytes | None) -> None:
        """Set an attribute (or remove it): in a metalayer of its own if there is room, else in b2array's."""
        self._attrs[name] = content
        self.state = self.state.with_attr(name, content)

    def reindex(self, order: npt.ArrayLike, new: State | None = None, **fields: Any) -> None:
        """Give the chunks another order, count or size, and perhaps the state another shape.

        `order` has the old position for each new one, or -1 for a chunk of zeros. `fields` are new values of the
        frame's.
        """
        nbytes = fields.get("nbytes", 0)
        if not 0 <= nbytes < 2**63:  # a damaged header may have another sum than the chunks
            raise FormatError(f"{self.url}: expected chunks of 0 to {2**63 - 1} bytes together, found {nbytes}")
        geometry = replace(self.frame if new is None else new.frame, **fields)
        self._restructure(np.asarray(order, np.int64).reshape(-1), geometry)

    def _restructure(self, order: npt.NDArray[np.int64], geometry: Frame) -> None:
        self._refuse_in_fork()
        self.epoch += 1
        if self.buffer is not None and self.buffer.chunks:
            open_chunks = self.buffer.chunks
            moved = np.flatnonzero(np.isin(order, list(open_chunks))).tolist()
            self.buffer.replace({n: open_chunks[int(order[n])] for n in moved})
        self.state, self._own_tables = reindexed(self.state, order, geometry), True
        self._touched, self._read = (np.append(mask, False)[order] for mask in (self._touched, self._read))
        self._order = order if self._order is None else np.append(self._order, -1)[order]

    def compact(self, progress: Progress | None = None) -> None:
        """Let the commit write the whole frame again, without dead space; `progress` counts the chunks."""
        self._refuse_in_fork()
        self._compacts, self.progress = True, progress

    def _refuse_in_fork(self) -> None:
        if self.fork is not None:
            raise ValueError("a fork cannot change the shape, or the order of the chunks: resize before you fork")

    # Kept states.

    def refuse_names_in_fork(self) -> None:
        """Raise ValueError in a fork, whose changes have no order among those of others."""
        if self.fork is not None:
            raise ValueError("a fork cannot make or drop snapshots, or go back to one: the transaction can")

    def keep(self, keep: Keep) -> None:
        """Let the commit keep a state under a name, which is free."""
        self.keeps = (*self.keeps, keep)

    def drop(self, name: str) -> None:
        """Let the commit forget a kept state of the base."""
        self.drops = (*self.drops, name)

    def go_back(self, state: State) -> None:
        """Become what a kept state of the base says, but for the names under which states are kept.

        A state may have other blocks: a frame gets chunks and blocks with its first items if other software made it.
        """
        if self.buffer is not None:
            self.buffer.replace({})
        now = self.state
        self._restructure(np.full(state.frame.nchunks, -1), state.frame)
        new = self.state
        new.frame.offsets[:] = state.frame.offsets
        new.sizes[:] = state.sizes
        new.records[:] = state.records
        _take_sizes(new, now)
        self._touched[:] = True
        for name in {*self.state.attr_names} | {*state.attr_names}:
            self.set_attr(name, state.attr(name))
        then = state.annotations
        self.annotate(fill=then.fill, dims=then.dims, dtype=then.dtype, lost=then.lost)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo what the block changed if it raises."""
        self.staging.require_open()
        # Changes of single chunks are undone by the log, those of the whole by going back to these.
        before = self.state, self._own_tables, self._touched, self._read, self._order, dict(self._attrs)
        names = self.keeps, self.drops
        open_chunks = {} if self.buffer is None else dict(self.buffer.chunks)
        outer, self.undo = self.undo, []
        log = self.undo
        try:
            yield
            if outer is not None:
                outer += log
        except BaseException:
            for undo in reversed(log):
                undo()
            self.state, self._own_tables, self._touched, self._read, self._order, self._attrs = before
            self.keeps, self.drops = names
            if self.buffer is not None:
                self.buffer.replace(open_chunks)
            raise
        finally:
            self.undo = outer

    # As a value.

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return self.base is None or self.buffer_is_used or not self.freeze().is_empty

    @property
    def buffer_is_used(self) -> bool:
        """Whether chunks are open."""
        return self.buffer is not None and bool(self.buffer.chunks)

    def freeze(self) -> ChangeSet:
        """Return all changes as a value. Chunks that are still open count as read, because nothing shows them yet."""
        numbers, state = np.flatnonzero(self._touched), self.state
        codes = state.frame.offsets[numbers]
        of_fork = None
        if self.fork is not None:
            # The rows of its own begin behind those of the transaction.
            codes = np.where(is_spooled(codes), codes + self.staging.inherited, codes)
            of_fork = self._of_fork(self.fork, numbers)
        reads = self._read.copy()
        if self.buffer is not None:
            reads[list(self.buffer.chunks)] = True
        segments, extents = self.staging.own()
        return ChangeSet(
            base="" if self.base is None else self.base.generation, new=None if self.fork else self.new,
            numbers=numbers, codes=codes, sizes=state.sizes[numbers], records=state.records[numbers],
            extents=extents, segments=tuple(segments), reads=np.flatnonzero(reads), of_fork=of_fork,
            order=self._order, geometry=self._geometry(),
            attrs=dict(self._attrs), before=self._before, after=state.annotations,
            next=self.staging.next, compacts=self._compacts, filters=self._filters,
            keeps=self.keeps, drops=self.drops,
            made=NO_FILES if self.fork is None else self.staging.made.rows(),
        )  # fmt: skip

    def _geometry(self) -> Frame | None:
        return None if self._order is None else replace(self.frame, offsets=index.NO_OFFSETS, vlmetalayers=())

    def freeze_whole(self) -> ChangeSet:
        """Return all changes since the base. Those of a fork include the changes of its transaction."""
        change = self.freeze()
        if self.fork is None:
            return change
        before, state = self.fork.change, self.state
        numbers = np.union1d(before.numbers, change.numbers)
        segments, extents = self.staging.all()
        return replace(
            before, numbers=numbers, codes=state.frame.offsets[numbers], sizes=state.sizes[numbers],
            records=state.records[numbers], extents=extents, segments=tuple(segments),
            attrs={**before.attrs, **change.attrs}, after=change.after,
        )  # fmt: skip

    def _of_fork(self, fork: ForkOf, numbers: npt.NDArray[np.int64]) -> OfFork:
        seen, digests = self._seen, np.zeros((len(numbers), DIGEST_NBYTES), np.uint8)
        for row, n in enumerate(numbers.tolist()):
            if digest := self._digests.get(n):
                digests[row] = np.frombuffer(digest, np.uint8)
        return OfFork(
            origin=fork.origin, epoch=fork.epoch, forks=frozenset((fork.id,)), seen=seen.frame.offsets[numbers],
            digests=digests, attrs={name: seen.attr(name) for name in self._attrs},
        )  # fmt: skip

    # Changes of forks.

    def merge(self, change: ChangeSet, base: Snapshot | None) -> None:
        """Take over the merged changes of forks, which were made of this transaction when `base` was its base."""
        self.take(*self.mergeable(change, base))

    def mergeable(self, change: ChangeSet, base: Snapshot | None) -> tuple[ChangeSet, list[int]]:
        """Return the merged changes of forks on top of the base of now, and the rows of the chunks to take over.

        ConflictError: this transaction has since changed the same chunks or attributes in another way, or their order.
        """
        self.staging.require_open()
        self.flush()
        ours = change.of_fork
        if ours is None or ours.epoch != self.epoch:
            raise ConflictError(f"{self.url}: the order of the chunks has changed since the fork")
        if base is not None and self.base is not None:
            change = rebased(change, base, self.base)
        now = self.frame.offsets[change.numbers]
        others = np.flatnonzero(now != ours.seen)
        differ = [row for row in others.tolist() if not self._has(change, row)]
        if differ:
            raise clash(self.url, change.numbers[differ].tolist())
        names = [
            name for name, value in change.attrs.items()
            if self.state.attr(name) not in (value, ours.attrs.get(name))
        ]  # fmt: skip
        if names:
            raise ConflictError(f"{self.url}: attributes {names} were changed since the fork, too")
        contradictory = notes.contradictions(change.before, change.after, self.state.annotations)
        if contradictory:
            raise ConflictError(f"{self.url}: {contradictory} were changed since the fork, too")
        same = set(others.tolist())
        return change, [row for row in range(change.numbers.size) if row not in same]

    def _has(self, change: ChangeSet, row: int) -> bool:
        """Whether a chunk of a fork is here already, because a task ran twice."""
        n, code = int(change.numbers[row]), int(change.codes[row])
        location = self.locate(n)
        if isinstance(location, Special) or code < LOWEST_CODE:
            return location == index.SPECIALS.get(code)
        name, start, stop = location
        stop = self.store.stamp(name).size if stop < 0 else stop
        (stored,) = self.read([Span(name, start, stop)])
        if change.of_fork is None:
            return False
        wanted: bytes = change.of_fork.digests[row].tobytes()
        return digest_of(stored[: ChunkHeader.unpack(stored).cbytes]) == wanted

    def take(self, change: ChangeSet, rows: Iterable[int]) -> None:
        """Take over the changes of a fork, with these rows of its chunks."""
        self.staging.adopt(change.made)
        behind = self.staging.attach(change.segments, change.extents)
        for row in rows:
            n, code = int(change.numbers[row]), int(change.codes[row])
            digest = b"" if change.of_fork is None else change.of_fork.digests[row].tobytes()
            staged = Staged(code, change.sizes[row], int(change.records[row]), None, digest)
            if code < LOWEST_CODE:
                staged = Staged(code)
            elif code >= 0:
                self.staging.expect(code)
            elif self.staging.spools:
                staged = staged._replace(code=code - behind)
            else:
                start, stop = self.staging.extent(code - behind) or (0, 0)
                staged = self.store_stored(n, bytes(self.staging.read(start, stop)))
            self.set_chunk(n, staged)
        for name, content in change.attrs.items():
            self.set_attr(name, content)
        self.state = self.state.with_annotations(notes.merge(change.before, change.after, self.state.annotations))
        self._read[change.reads[~self._touched[change.reads]]] = True

    # On top of what other writers committed.

    def lock(self) -> AbstractContextManager[object]:
        """Take the lock of the frame, unless the caller of this draft has it.

        ConflictError: its directory was deleted, or replaced by a file.
        """
        if self.locked:
            return nullcontext()
        try:
            return writers_lock(self.store, self.name)
        except MISSING as error:
            if (stale := self.staleness()) is not None:
                raise stale from error
            raise

    def rebase(self, current: Snapshot, *, is_equal: bool = False) -> ChangeSet:
        """Put the changes on top of what another writer committed, and return them; ConflictError if they collide.

        They do not collide with a state that `is_equal` to the base, and has the chunks in the same places.
        """
        self._renumber()
        change = self.freeze()
        if self.base is None or current.generation == self.base.generation:
            return change
        change = replace(change, base=current.generation) if is_equal else rebased(change, self.base, current)
        self.base, self.state, self._own_tables = current, applied(change, current.state), bool(change.numbers.size)
        self._before = current.state.annotations
        if self._touched.size != self.state.frame.nchunks:  # a change of metadata alone goes onto any number of chunks
            self._forget_chunks()
        self.staging.next = change.next
        self._renumber()
        return self.freeze()

    def catch_up(self) -> bool:
        """Go on from the state of another writer whose commit removed the bytes of the base; say whether one did."""
        if self.base is None or self.sparse or self.store.can.append or self.undo is not None or self.fork:
            return False
        try:
            current = reload(self.base)
        except FileNotFoundError:  # that commit has deleted the frame
            return False
        if current.generation == self.base.generation:
            return False
        self.rebase(current)
        return True

    # The end.

    def settle(self, committed: Frame) -> None:
        """Clean up after a commit."""
        self.staging.close()
        self.at_end.close()
        with suppress(OSError, B2ArrayError):  # what stays behind disturbs no reader
            kept = [keep.state.frame.offsets for keep in self.keeps if keep.state is not None]
            offsets = np.concatenate([committed.offsets, *kept]) if kept else committed.offsets
            self.store.withdraw(self.staging.made.unused(offsets))

    def warn_of_forgotten(self) -> None:
        """After the commit, warn of forks that were never merged."""
        warn_of_forgotten(self.url, self.forks)

    def abort(self) -> None:
        """Forget the changes, and remove the files that were made for them, as long as no index refers to them."""
        self.staging.close()
        if not self.staging.ours:
            return
        try:
            if self.aside:
                discard(self.store)
            elif not self.is_unknown:
                withdraw(self.store, self.staging.made)
                if self.makes_directory:
                    self.store.drop_directory()
        finally:
            self.at_end.close()


def _is_vacant(store: Store) -> bool:
    """Whether a new frame makes the directory that it is in."""
    if store.in_process or not store.can.local:
        return False
    try:
        store.listing()
    except MISSING:
        return True
    except (OSError, B2ArrayError):  # making the frame says what is wrong
        return False
    return False


def withdraw(store: Store, made: Made) -> None:
    """Remove the files that a transaction has made and that no commit needs, as far as possible."""
    if not store.can.lock or not made.rows().size:
        return
    with suppress(OSError, B2ArrayError):  # what stays behind disturbs no reader
        try:
            current = load(store)
        except FileNotFoundError:
            needed = index.NO_OFFSETS
        else:
            # An interrupted commit may have happened all the same, and others may have gone on from it.
            states = kept_states(current, ledger_in(current).entries)
            needed = np.concatenate([state.frame.offsets for state in (current, *states)])
        store.withdraw(made.unused(needed))


def _take_sizes(state: State, other: State) -> None:
    """Note the sizes of blocks, which a kept state does not have, for the chunks that another state has, too."""
    offsets, others = state.frame.offsets, other.frame.offsets
    if state.sizes.shape[1:] != other.sizes.shape[1:] or not others.size:
        return
    order = np.argsort(others, kind="stable")
    rows = order[np.searchsorted(others[order], offsets).clip(max=others.size - 1)]
    same = (offsets >= 0) & (others[rows] == offsets) & (other.records[rows] == state.records)
    state.sizes[same] = other.sizes[rows[same]]


def _set(state: State, n: int, staged: Staged) -> None:
    sizes = state.sizes
    state.frame.offsets[n] = staged.code
    sizes[n] = 0 if staged.sizes is None else staged.sizes[: sizes.shape[1]]
    state.records[n] = staged.record


def warn_of_forgotten(url: str, forks: Mapping[bytes, bool]) -> None:
    """Warn of forks that were never merged, given all of a transaction by name, and whether they were."""
    forgotten = sum(not is_merged for is_merged in forks.values())
    if forgotten:
        warn(f"{url}: {forgotten} of {len(forks)} forks were never merged; the commit has no change of them")


def discard(store: Store) -> None:
    """Remove a frame that is in a place of its own, as far as possible."""
    with suppress(OSError, B2ArrayError):
        store.delete([*filter(is_part, store.listing()), ""])


def removed(url: str, names: Sequence[str]) -> ConflictError:
    """Return the error of a writer whose files `vacuum` has removed."""
    return ConflictError(f"{url}: somebody removed {', '.join(names)} before the commit that needs them")


def abandoned(url: str) -> ConflictError:
    """Return the error of a new frame that no commit has made."""
    return ConflictError(f"{url} was not made: its transaction was given up, or has deleted or moved it")


def is_part(name: str) -> bool:
    """Whether a file in the directory of a sparse frame belongs to it."""
    return name in (FRAME_NAME, ".b2lock") or name.endswith(KEPT) or chunk_number(name) is not None
