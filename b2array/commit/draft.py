"""`Draft`: collects the changes of a writer on top of a committed state: new chunks, a new index, new metadata.

No reader sees them before the commit; see `b2array.commit.frame_commit`. `Draft.freeze` makes them a value,
a `ChangeSet`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.catalog.needs import needed_offsets, needs_of_all_groups
from b2array.catalog.owners import find_frame, load
from b2array.codec import chunk
from b2array.codec.chunk import ChunkHead
from b2array.codec.chunk_header import ChunkHeader, Special
from b2array.commit.changes import ChangeSet, Keep, New, apply_change, copy_for_changes, rebase_change, reindex_state
from b2array.commit.fork_point import ForkPoint, Forks
from b2array.commit.frame_locks import try_manifests_lock
from b2array.commit.leftovers import belongs
from b2array.commit.open_chunk import AnyChunk, Undo, WriteBuffer
from b2array.commit.staging import CreatedFiles, Staging
from b2array.errors import B2ArrayError, ConflictError, FormatError, ReadOnlyError, UnsupportedError
from b2array.format import frame, index
from b2array.format.annotations import Annotations
from b2array.format.frame import Frame
from b2array.format.frame_header import FrameType
from b2array.format.state import State, future_part
from b2array.frame.kept_states import ledger_in, load_kept_states
from b2array.frame.revision import Revision
from b2array.frame.source import SPOOL, FilterSlots, Location, Source, Staged
from b2array.progress import Progress
from b2array.store.base import MISSING, Store, Version, join_views_at
from b2array.store.spans import Span
from b2array.store.spool import Spool

__all__ = [
    "Delta",
    "Destination",
    "Draft",
    "detect_replacement",
    "discard_quietly",
    "discard_unneeded",
    "make_abandoned_error",
    "make_removed_error",
    "mark_lost",
    "move_above_floor",
    "warn_of_forgotten",
]

Mask = npt.NDArray[np.bool_]

_LEAST_IN_MEMORY = 8 * 2**20
_MOST_IN_MEMORY = 64 * 2**20


class Destination(NamedTuple):
    """The place of a frame, where a new frame may replace an `old` one.

    No file can have the name of an existing directory. So if the old frame has the other layout, the new one is first
    written to a temporary place: `aside`. `makes_directory` says whether the first file of the new frame creates the
    directory of the frame.
    """

    place: Store
    old: Revision | None = None
    aside: bool = False
    makes_directory: bool = False


@dataclass(slots=True)
class Delta:
    """The changes of a draft that its state does not show.

    Parameters
    ----------
    before : Annotations
        The annotations of the base.
    touched, read : array of bool
        Which chunks were changed, and which chunks of the base were read.
    order : array of int64, optional
        The old position of each chunk, once the order or the count has changed; -1 for a chunk of zeros.
    epoch : int
        The number of changes to the order of the chunks.
    attrs : dict of str to (bytes or None)
        Attributes that were set or, with None, removed.
    filters : (int, FilterSlots), optional
        The first changed chunk with data, and its filters.
    digests : dict of int to bytes
        Digests of the chunks that a fork has put.
    compacts : Progress, optional
        Counts the chunks while the commit rewrites the whole frame without dead space; None if the commit does not.
    keeps : tuple of Keep
        The states that the commit keeps under names.
    drops : tuple of str
        The names of the kept states that the commit drops.
    floor : int
        The floor of the first base: until a commit raises the floor, no file of a new chunk can have been deleted.
    owns_tables : bool
        Whether index and tables of the state may be changed in place.
    """

    before: Annotations
    touched: Mask
    read: Mask
    order: npt.NDArray[np.int64] | None = None
    epoch: int = 0
    attrs: dict[str, bytes | None] = field(default_factory=dict)
    filters: tuple[int, FilterSlots] | None = None
    digests: dict[int, bytes] = field(default_factory=dict)
    compacts: Progress | None = None
    keeps: tuple[Keep, ...] = ()
    drops: tuple[str, ...] = ()
    floor: int = 0
    owns_tables: bool = False

    @classmethod
    def of(cls, state: State) -> Self:
        """Return a delta without changes to a state."""
        nchunks, before = state.frame.nchunks, state.annotations
        return cls(before, np.zeros(nchunks, bool), np.zeros(nchunks, bool), floor=before.floor or 0)

    def copy(self) -> Self:
        """Return a copy to go back to; it shares the arrays, so later changes of single chunks must be undone first."""
        return replace(self, attrs=dict(self.attrs))

    def keep(self, keep: Keep) -> None:
        """Make the commit keep a state under a name that the frame does not use yet."""
        self.keeps = (*self.keeps, keep)

    def drop(self, name: str) -> None:
        """Make the commit drop a kept state of the base."""
        self.drops = (*self.drops, name)

    def reorder(self, order: npt.NDArray[np.int64]) -> None:
        """Record another order or count of the chunks; what the delta says about each chunk moves with the chunk.

        `order` has the old position for each new one, or -1 for a chunk of zeros.
        """
        self.epoch += 1
        self.touched, self.read = (np.append(mask, False)[order] for mask in (self.touched, self.read))
        self.order = order if self.order is None else np.append(self.order, -1)[order]
        self.owns_tables = True

    def changes_anything(self, annotations: Annotations) -> bool:
        """Whether there is anything to commit, given the present annotations of the draft. Open chunks do not count."""
        return bool(
            self.touched.any()
            or self.attrs
            or self.order is not None
            or self.compacts is not None
            or self.keeps
            or self.drops
            or self.before != annotations
        )


class Draft(Source):
    """Changes on top of a committed state `base`, or of nothing for a `new` frame.

    Threads may put chunks at the same time; other methods allow only one thread at a time. With `overwrite`, a new
    draft looks for the old frame in the store. ReadOnlyError: the frame is inside a larger file. UnsupportedError: a
    later version of b2array has written the frame.

    Parameters
    ----------
    store : Store
        Where the frame is.
    base : Revision or None
        The state to change; None for a new frame.
    new : State, optional
        The state of a new frame.
    overwrite : bool, default False
        Whether the new frame may replace another one.
    locked : bool, default False
        Whether the caller holds the store's lock.
    replaces : Version, optional
        The version of the only frame that the new one may replace.
    is_same : bool, default False
        Whether the new frame is an existing one in another file, and keeps its identity.
    first : int, default 0
        The first number for the file of a chunk in a new sparse frame.
    staging : Staging, optional
        The staging area of new chunks; a new one by default.
    """

    buffer: WriteBuffer | None = None
    """The chunks that a transaction keeps open."""
    undo: Undo | None = None
    """Functions that undo the changes of an `attempt` to chunks; None outside of attempts."""
    point: ForkPoint | None = None
    """The point from which this draft was forked; None if it is not a fork."""
    forks: Forks | None = None
    """The register of the forks of this draft; None without forks."""

    def __init__(
        self,
        store: Store,
        base: Revision | None,
        new: State | None = None,
        *,
        overwrite: bool = False,
        locked: bool = False,
        replaces: Version | None = None,
        is_same: bool = False,
        first: int = 0,
        staging: Staging | None = None,
    ) -> None:
        if threads.is_ending():
            raise threads.make_ending_error()
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
        self.destination, self.store = Destination(store), store
        if base is None and not (is_same and not overwrite):
            is_sparse = start.frame.frame_type == FrameType.SPARSE
            self.destination, self.store = _find_destination(store, is_sparse=is_sparse, overwrite=overwrite)
            start = _with_used_numbers(start, self.destination.old)
        self.base, self.state = base, start
        self.new = New(start, overwrite or is_same, replaces, is_same) if base is None else None
        self.locked = locked
        if base is not None:
            # The directory may be renamed meanwhile. A write that is refused must not make it again.
            store.require_place(directory=base.sparse)
        self.delta = Delta.of(start)
        self.staging = staging or _new_staging(self, first)

    @property
    def url(self) -> str:
        """The URL of the frame, for messages."""
        return self.destination.place.url

    # Reading.

    def staleness(self) -> ConflictError | None:
        """Read the state in the store: return the error for a reader if it is not the base, or None if it is.

        A new frame has no base: return the error if its transaction has ended.
        """
        if self.base is None:
            return make_abandoned_error(self.url) if self.staging.is_closed else None
        return self.base.staleness()

    def locate(self, n: int) -> Location | Special:
        """Return the location of chunk `n`; encode it first if it is open. An old chunk counts as read from now on.

        ChunkLostError: the chunk is lost. IndexError: there is no such chunk.
        """
        if self.buffer is not None and n in self.buffer.chunks:
            self.flush((n,))
        extent = self.staging.extent(int(self.state.frame.offsets[n])) if 0 <= n < self.state.frame.nchunks else None
        if extent is not None:
            return Location(SPOOL, *extent)
        try:
            entry = self.entry(n)
        except KeyError:  # another thread has put a new chunk there meanwhile
            return self.locate(n)
        if not self.delta.touched[n]:
            self.delta.read[n] = True
        if isinstance(entry, Special):
            return entry
        return Location(index.chunk_name(entry), 0, -1) if self.base is None else self.base.location_of(entry)

    locate_unchecked = locate

    def read(self, spans: Sequence[Span], *, clip: bool = False) -> list[memoryview]:
        """Read spans of the store's objects and, under the name `SPOOL`, of spooled chunks; return a view for each.

        Writers do not trust the cache on disk.
        """
        stored = [span for span in spans if span.name != SPOOL]
        source = self.base.read_afresh if self.base is not None else self.store.read
        views = iter(source(stored, clip=clip)) if stored else iter(())
        return [self.staging.read(span.start, span.stop) if span.name == SPOOL else next(views) for span in spans]

    def gather(self, spans: Sequence[Span], places: Sequence[int], nbytes: int) -> memoryview:
        """Read spans of bytes into one new buffer of `nbytes` bytes, each at its place, and return the buffer."""
        if self.base is None or SPOOL in [span.name for span in spans]:
            return join_views_at(self.read(spans), places, nbytes)
        return self.base.gather(spans, places, nbytes)

    def reader(self, state: State | None = None) -> Self:
        """Return a copy whose reads do not count, with the present state or a `state` that the commit will keep.

        The copy shares the staged chunks and, with the present state, the open chunks.
        """
        source = copy.copy(self)
        if state is None:
            source.delta = replace(self.delta, read=self.delta.read.copy())
        else:
            source.state, source.buffer = state, None
            source.delta = Delta.of(state)
        return source

    # Chunks.

    def put(self, n: int, buf: bytes) -> None:
        """Stage the chunk `buf`, and replace chunk `n` by it; a chunk of zeros or NaN is not stored if possible."""
        self.set_chunk(n, self.store_chunk(n, buf))

    def store_chunk(self, n: int, buf: bytes) -> Staged:
        """Stage the chunk `buf`, which will be chunk `n`; a chunk of zeros or NaN is not stored if possible.

        The draft's index does not change: pass the result to `set_chunk`. Raises the errors of `stage_chunk`.
        """
        head = chunk.unpack_head(buf)
        special = head.header.special
        if special in index.SPECIAL_OFFSETS and not self.state.frame.variable_chunks:
            return Staged(index.special_offset(special))
        return self.stage_chunk(n, buf, head)

    def stage_chunk(self, n: int, buf: bytes, head: ChunkHead | None = None) -> Staged:
        """Stage the chunk `buf`, which will be chunk `n`, and store its bytes even if it is all zeros.

        The draft's index does not change: pass the result to `set_chunk`. `head` is the parsed beginning of the chunk,
        if the caller knows it. ConflictError: the transaction has ended, or the directory of the frame was deleted,
        moved or replaced by a file.
        """
        try:
            return self.staging.put(n, buf, self.state.sizes.shape[1], head)
        except MISSING as error:
            if not _is_replaced(self, error):
                raise
            raise _make_place_error(self.url, error) from None

    def set_chunk(self, n: int, staged: Staged) -> None:
        """Make the index refer to a staged chunk as chunk `n`, which counts as changed from now on.

        This drops an open chunk with the same number, and the mark of a lost chunk. Inside an `attempt`, the change can
        be undone.
        """
        state, delta = self.changeable_state(), self.delta
        if self.undo is not None:
            code, record = int(state.frame.offsets[n]), int(state.records[n])
            was = Staged(code, state.sizes[n].copy(), record, None, delta.digests.get(n, b""))
            self.undo.append(
                partial(_restore_chunk, state, delta.touched, delta.digests, n, was, bool(delta.touched[n]))
            )
        if self.buffer is not None:
            self.buffer.drop(n)
        _enter_chunk(state, n, staged)
        delta.touched[n] = True
        if staged.digest:
            delta.digests[n] = staged.digest
        if staged.filters is not None and (delta.filters is None or n <= delta.filters[0]):
            delta.filters = n, staged.filters
        lost = state.annotations.lost
        if n in lost:
            self.annotate(lost=tuple(sorted({*lost} - {n})))

    def changeable_state(self) -> State:
        """Return the state after copying index and tables once, so that the caller may change them in place."""
        if not self.delta.owns_tables:
            self.state, self.delta.owns_tables = copy_for_changes(self.state), True
        return self.state

    # Open chunks.

    def keep_open(self) -> None:
        """Keep chunks that are written in part open from now on, until `flush`; chunks that are open remain so."""
        # A draft with open chunks may become a member of a group, whose transaction keeps its chunks open as well.
        if self.buffer is None:
            self.buffer = WriteBuffer()

    def flush(self, numbers: Iterable[int] | None = None) -> None:
        """Encode and stage the open chunks with these numbers, by default all, and make the index refer to them."""
        if self.buffer is None or not self.buffer.chunks:
            return
        with self.buffer.mutex.held:
            chunks = self.buffer.chunks
            wanted = list(chunks) if numbers is None else numbers
            chosen = [(n, chunks[n]) for n in wanted if n in chunks]

            def store(numbered: tuple[int, AnyChunk]) -> bytes | Staged:
                """Encode a chunk; in a sparse frame, stage it as well."""
                n, chunk = numbered
                buf = chunk.encode()
                return self.store_chunk(n, buf) if self.sparse else buf

            # In a contiguous frame, threads only encode the chunks, which are then appended in order.
            with closing(threads.spread(store, chosen)) as encoded:
                for (n, _), each in zip(chosen, encoded, strict=True):
                    staged = self.store_chunk(n, each) if isinstance(each, bytes) else each
                    self.set_chunk(n, staged)

    # Geometry and metadata.

    def annotate(self, **fields: Any) -> None:
        """Set fields of the annotations in the draft's state."""
        self.state = self.state.with_annotations(replace(self.state.annotations, **fields))

    def set_attr(self, name: str, content: bytes | None) -> None:
        """Set an attribute to its packed value, or remove it (None).

        It is in a separate metalayer if it fits, else in b2array's metalayer.
        """
        self.delta.attrs[name] = content
        self.state = self.state.with_attr(name, content)

    def reindex(self, order: npt.ArrayLike, new: State | None = None, **fields: Any) -> None:
        """Change the order, count or size of the chunks, and perhaps the shape of the state.

        `order` has the old position for each new one, or -1 for a chunk of zeros. `fields` are new values for fields of
        the frame, or of the frame of the `new` state. Open chunks move as well. ValueError: this is a fork.
        FormatError: the size of the frame is out of range, because its header is damaged.
        """
        nbytes = fields.get("nbytes", 0)
        if not 0 <= nbytes < 2**63:  # a damaged header may not agree with the chunks
            raise FormatError(f"{self.url}: expected chunks of 0 to {2**63 - 1} bytes together, found {nbytes}")
        geometry = replace(self.frame if new is None else new.frame, **fields)
        self.restructure(np.asarray(order, np.int64).reshape(-1), geometry)

    def restructure(self, order: npt.NDArray[np.int64], geometry: Frame) -> None:
        """Do the same as `reindex`, given a frame `geometry` with all new fields. ValueError: this is a fork."""
        self.refuse_in_fork("change the shape, or the order of the chunks: resize before you fork")
        if self.buffer is not None and self.buffer.chunks:
            open_chunks = self.buffer.chunks
            moved = np.flatnonzero(np.isin(order, list(open_chunks))).tolist()
            self.buffer.replace({n: open_chunks[int(order[n])] for n in moved})
        self.state = reindex_state(self.state, order, geometry)
        self.delta.reorder(order)

    def refuse_in_fork(self, action: str) -> None:
        """Raise ValueError if this is a fork, because forks are merged in no fixed order.

        `action` completes the message, which begins with "a fork cannot".
        """
        if self.point is not None:
            raise ValueError(f"a fork cannot {action}")

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo the changes that the block makes to this draft if it raises. ConflictError: the transaction has ended.

        Such blocks can be nested.
        """
        self.staging.require_open()
        # The log undoes changes of single chunks. For all other changes, the draft goes back to this state and delta.
        state, delta = self.state, self.delta.copy()
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
            self.state, self.delta = state, delta
            if self.buffer is not None:
                self.buffer.replace(open_chunks)
            raise
        finally:
            self.undo = outer

    # As a value.

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit: a new frame, an open chunk, or any other change."""
        is_written = self.buffer is not None and bool(self.buffer.chunks)
        return self.base is None or is_written or self.delta.changes_anything(self.state.annotations)

    def freeze(self) -> ChangeSet:
        """Return the changes since the base as a value; in a fork, only the changes of the fork.

        This does not encode open chunks. They count as read, because their changes are not staged yet.
        """
        state, delta = self.state, self.delta
        numbers = np.flatnonzero(delta.touched)
        reads = delta.read
        if self.buffer is not None and self.buffer.chunks:
            reads = reads.copy()
            reads[list(self.buffer.chunks)] = True
        geometry = None if delta.order is None else replace(state.frame, offsets=index.NO_OFFSETS, vlmetalayers=())
        segments, extents = self.staging.own_segments()
        return ChangeSet(
            base="" if self.base is None else self.base.generation,
            new=None if self.point else self.new,
            numbers=numbers,
            codes=state.frame.offsets[numbers],
            sizes=state.sizes[numbers],
            records=state.records[numbers],
            extents=extents,
            segments=tuple(segments),
            reads=np.flatnonzero(reads),
            order=delta.order,
            geometry=geometry,
            attrs=dict(delta.attrs),
            before=delta.before,
            after=state.annotations,
            next=self.staging.next,
            compacts=delta.compacts is not None,
            filters=delta.filters,
            keeps=delta.keeps,
            drops=delta.drops,
        )

    # Rebasing on the commits of other writers.

    def rebase(self, current: Revision, *, is_equal: bool = False) -> None:
        """Put the changes on top of the `current` state, which another writer has committed: it becomes the base.

        New chunks whose files may have been deleted are copied to other files. With `is_equal`, the caller knows that
        the state equals the base and has the chunks in the same places. ConflictError: the other writer has changed a
        chunk or a value on which these changes depend.
        """
        _renumber(self)
        if self.base is None or current.generation == self.base.generation:
            return
        change = self.freeze()
        change = replace(change, base=current.generation) if is_equal else rebase_change(change, self.base, current)
        self.base, self.state = current, apply_change(change, current.state)
        delta, nchunks = self.delta, self.state.frame.nchunks
        delta.owns_tables, delta.before = bool(change.numbers.size), current.state.annotations
        if delta.touched.size != nchunks:  # a change of only metadata fits any number of chunks
            delta.touched, delta.read = np.zeros(nchunks, bool), np.zeros(nchunks, bool)
        self.staging.next = change.next
        _renumber(self)

    # The end.

    def finish(self, committed: Frame) -> None:
        """Clean up after a commit: end the transaction and its forks, and remove new files that no index names.

        `committed` is the frame after the commit. Errors of the store are ignored when files are removed.
        """
        self.staging.close()
        if self.forks is not None:
            self.forks.at_end.close()
        # No reader sees leftover files.
        with suppress(OSError, B2ArrayError):
            kept = [keep.state.frame.offsets for keep in self.delta.keeps if keep.state is not None]
            offsets = np.concatenate([committed.offsets, *kept]) if kept else committed.offsets
            if unused := self.staging.files.find_unused(offsets):
                self.store.withdraw(unused)

    def abort(self) -> None:
        """Give up the changes: end the transaction and its forks, and remove their files unless an index names them.

        This removes the directory that a new frame has made as well. In a process that was forked from the process of
        the transaction, and while the interpreter ends, this removes nothing.
        """
        self.staging.close()
        if not self.staging.is_ours or threads.is_ending():
            return
        files = self.staging.files
        try:
            if self.destination.aside:
                discard_quietly(self.store)
            else:
                discard_unneeded(self.store, files)
                if self.destination.makes_directory and not files.is_needed:
                    self.store.drop_directory()
        finally:
            if self.forks is not None:
                self.forks.at_end.close()


def _find_destination(place: Store, *, is_sparse: bool, overwrite: bool) -> tuple[Destination, Store]:
    """Look for an old frame; return the destination of a new one, and the store to write to.

    With `overwrite`, that store is beside the place if a frame of the other layout is there.
    """
    old = find_frame(place) if overwrite else None
    # If a group lists revisions, frames of both layouts can be in one place at the same time.
    needs_room = overwrite and (old is None or not old.owner.lists_revisions)
    beside = place.beside(directory=is_sparse) if needs_room else None
    store = beside or place
    return Destination(place, old, beside is not None, is_sparse and _is_vacant(store)), store


def _new_staging(draft: Draft, first: int) -> Staging:
    """Return an empty staging area: chunks of a sparse frame get files, other chunks a spool in memory or in a file.

    In a new sparse frame, numbers of files are not below `first`.
    """
    if draft.sparse:
        return Staging(draft.store, None, _first_number(draft, first))
    base, place = draft.base, draft.destination.place
    path, reserved = place.temporary(""), 0
    limit: float = _MOST_IN_MEMORY
    if path is not None:
        reserved = len(frame.pack_header(draft.state.frame) if base is None else base.header)
        # The file becomes the frame if the frame, or each of its chunks, is new. Otherwise its bytes are copied again.
        old_nbytes = 0 if base is None else base.frame.frame_len
        limit = min(max(old_nbytes // 2, _LEAST_IN_MEMORY), _MOST_IN_MEMORY)
    elif draft.store.can.append:  # the frame will be in memory anyway
        limit = np.inf
    spool = Spool(path, reserved=reserved, limit=limit, root=draft.store.root)
    return Staging(draft.store, spool, 0)


def _first_number(draft: Draft, first: int) -> int:
    """Return the first number for the file of a chunk that no state in the frame's place has used.

    For a new frame, it is at least `first`.
    """
    old = draft.destination.old
    if draft.base is not None:
        return _first_free(draft.state)
    return first if old is None else max(first, _first_free(old.state))


def _first_free(state: State) -> int:
    """Return the first number that was never given to the file of a chunk in the place of a frame."""
    next_number = state.annotations.next or 0
    if state.frame.frame_type != FrameType.SPARSE:
        return next_number  # the number that earlier sparse frames in this place have left
    return max(next_number, int(state.frame.offsets.max(initial=-1)) + 1)


def _with_used_numbers(new: State, old: Revision | None) -> State:
    """Return the state of a new frame; if it is contiguous, it records the numbers that chunks had in its place.

    A delayed request to delete an old chunk must not delete a chunk of a later frame.
    """
    if old is None or old.owner.lists_revisions or old.store.can.lock or new.frame.frame_type == FrameType.SPARSE:
        return new
    return new.with_annotations(replace(new.annotations, next=_first_free(old.state) or None))


def _renumber(draft: Draft) -> None:
    """Copy new chunks to files above the floor if a commit has raised the floor since the draft began.

    A request to delete a file below the floor may be delayed or repeated. ConflictError: such a file is gone already.
    """
    floor = draft.state.annotations.floor or 0
    if draft.base is not None and floor > draft.delta.floor:
        move_above_floor(draft, floor)


def mark_lost(draft: Draft, n: int) -> None:
    """Replace chunk `n` by the mark of a lost chunk, and list it as lost in the annotations.

    Reading the chunk then raises ChunkLostError, until somebody writes all of it.
    """
    draft.set_chunk(n, Staged(draft.staging.tombstone()))
    draft.annotate(lost=tuple(sorted({*draft.state.annotations.lost, n})))


def move_above_floor(draft: Draft, floor: int) -> bool:
    """Move new chunks with file numbers below a floor to files above it; return whether there were any.

    This copies the files, and makes the index refer to the copies. ConflictError: the file of such a chunk is gone.
    """
    if not draft.sparse:
        return False
    codes = draft.state.frame.offsets
    below = np.flatnonzero(draft.delta.touched & (codes >= 0) & (codes < floor)).tolist()
    if below:
        draft.staging.reserve_up_to(floor - 1)
    for n in below:
        name = index.chunk_name(int(codes[n]))
        try:
            stored = b"".join(draft.store.pieces(name))
        except FileNotFoundError:
            raise make_removed_error(draft.url, [name]) from None
        draft.set_chunk(n, draft.stage_chunk(n, stored[: ChunkHeader.unpack(stored).cbytes]))
    return bool(below)


@contextmanager
def detect_replacement(draft: Draft) -> Iterator[None]:
    """Turn the error of a block into ConflictError if the directory of a draft's frame was deleted, moved or replaced.

    A draft of a new frame has no such directory: then the error stays the same, unless another writer has made a file
    in the place.
    """
    try:
        yield
    except MISSING as error:
        if not _is_replaced(draft, error):
            raise
        raise _make_place_error(draft.url, error) from None


def _is_replaced(draft: Draft, error: OSError) -> bool:
    """Whether an error of writing to the directory of a draft's frame means that another writer has been there."""
    if draft.base is not None:
        return True
    return isinstance(error, NotADirectoryError) and find_frame(draft.store) is not None


def _make_place_error(url: str, error: OSError) -> ConflictError:
    """Return the error for a writer whose directory is missing, or is a file now."""
    happened = "replaced by a file" if isinstance(error, NotADirectoryError) else "deleted or moved"
    return ConflictError(f"{url} was {happened} since it was opened")


def _is_vacant(store: Store) -> bool:
    """List the place of a new local frame: whether it does not exist, so that the frame will create its directory."""
    if store.in_process or not store.can.local:
        return False
    try:
        store.listing()
    except MISSING:
        return True
    except (OSError, B2ArrayError):  # the attempt to make the frame raises a better error
        return False
    return False


def discard_unneeded(store: Store, files: CreatedFiles) -> None:
    """Remove the created files that no state in the store needs, as far as possible; without locks, do nothing.

    This reads the present state, the kept states, and the states that snapshots of groups need, under the locks of the
    groups around the frame. If another writer holds such a lock, or a commit may have succeeded, it does nothing.
    """
    if files.is_needed or not store.can.lock or not files.rows().size:
        return
    # No reader sees leftover files.
    with suppress(OSError, B2ArrayError), try_manifests_lock(store) as is_alone:
        if not is_alone:
            return
        try:
            current = load(store)
        except FileNotFoundError:
            needed = index.NO_OFFSETS
        else:
            # An interrupted commit may have succeeded, and other writers may have committed on top of it.
            states = load_kept_states(current, ledger_in(current).entries)
            in_snapshots = needed_offsets(current, needs_of_all_groups(store))
            indexes = [state.frame.offsets for state in (current, *states)]
            needed = np.concatenate([in_snapshots, *indexes])
        store.withdraw(files.find_unused(needed))


def _enter_chunk(state: State, n: int, staged: Staged) -> None:
    """Enter a staged chunk in the index and the tables of a state, in place."""
    sizes = state.sizes
    state.frame.offsets[n] = staged.code
    sizes[n] = 0 if staged.sizes is None else staged.sizes[: sizes.shape[1]]
    state.records[n] = staged.record


def _restore_chunk(state: State, mask: Mask, digests: dict[int, bytes], n: int, was: Staged, touched: bool) -> None:
    """Enter the old chunk `was` again as chunk `n` in a state, in place, with its old mark in `mask` and its digest."""
    _enter_chunk(state, n, was)
    mask[n] = touched
    digests[n] = was.digest


def warn_of_forgotten(draft: Draft) -> None:
    """Warn the user of forks of a committed draft that were never merged."""
    if draft.forks is not None:
        draft.forks.roster.warn_of_forgotten(draft.url)


def discard_quietly(store: Store) -> None:
    """Remove a frame from a temporary place, as far as possible: errors of the store are ignored, other files stay."""
    # `vacuum` removes the rest.
    with suppress(OSError, B2ArrayError):
        store.delete([*filter(belongs, store.listing()), ""])


def make_removed_error(url: str, names: Sequence[str]) -> ConflictError:
    """Return the error for a writer whose files, with these `names`, `vacuum` has removed."""
    return ConflictError(f"{url}: somebody removed {', '.join(names)} before the commit that needs them")


def make_abandoned_error(url: str) -> ConflictError:
    """Return the error for a new frame that was never committed."""
    return ConflictError(f"{url} was not made: its transaction was given up, or has deleted or moved it")
