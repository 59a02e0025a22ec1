"""`ChangeSet`: a change to a frame, as a value. This module computes with changes and does no I/O.

A change lists the chunks that it puts, the old chunks that it has read, and its changes of geometry and metadata.
`apply_change` makes the next state. `rebase_change` puts the change on top of later commits of other writers, or raises
ConflictError. `join_changes` combines the changes of several forks into one.

Until the commit, the code of a chunk tells its location. A code of 0 or more is the number of a file. A negative code
stands for a row of `ChangeSet.extents`: -1 for row 0, -2 for row 1, and so on. Codes below `LOWEST_CODE` are the
special values of an index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.codec.chunk_header import Special
from b2array.errors import ConflictError
from b2array.format import annotations as notes
from b2array.format import index
from b2array.format.annotations import Annotations, Records, Sizes
from b2array.format.frame import Frame
from b2array.format.ledger import Kept, ledger_of
from b2array.format.state import State, copy_table, find_changed_chunks, sizes_width, with_index
from b2array.frame.revision import Revision
from b2array.frame.source import FilterSlots
from b2array.store.base import Version
from b2array.store.spool import Segment, SpoolPart

__all__ = [
    "DIGEST_NBYTES",
    "LOWEST_CODE",
    "NO_FILES",
    "SEGMENT",
    "ChangeSet",
    "Keep",
    "New",
    "apply_change",
    "copy_for_changes",
    "rebase_change",
    "reindex_state",
]

Int64Array = npt.NDArray[np.int64]

LOWEST_CODE = -(2**32)
"""Smaller entries of an index stand for special values."""
SEGMENT = 2**48
"""Size of the address range of one segment of spooled chunks: segment k begins at address k times this."""
DIGEST_NBYTES = 16
"""Length of the digest of a chunk."""

NO_FILES = np.zeros((0, 2), np.int64)
_NO_NUMBERS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class New:
    """A new frame: its first state, and the frame that it may replace.

    Parameters
    ----------
    state : State
        The first state.
    overwrite : bool
        Whether the new frame may replace an existing one.
    replaces : Version, optional
        The version of the only frame that the new one may replace; without a version, it may replace any frame.
    is_same : bool
        Whether this is an existing frame that moves to another file.
    """

    state: State
    overwrite: bool = False
    replaces: Version | None = None
    is_same: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the new frame, with a packed index."""
        thin, packed_index = self.state.without_index(0)
        return _restore_new, (
            thin,
            packed_index,
            self.state.annotations,
            self.overwrite,
            self.replaces,
            self.is_same,
        )


def _restore_new(thin: Frame, packed_index: bytes, annotations: Annotations, *rest: Any) -> New:
    """Restore a pickled `New` from its parts; `rest` are the arguments after `state`."""
    state = with_index(thin, packed_index, annotations)
    return New(state, *rest)


@dataclass(frozen=True, slots=True, eq=False)
class Keep:
    """A state that a commit keeps under a name.

    Usually the commit itself makes this state. The commit of a copied frame also keeps earlier states.

    Parameters
    ----------
    entry : Kept
        The entry for the ledger, without the place of the state, which the plan adds.
    state : State, optional
        The earlier state. Its index has the codes of the copied chunks.
    """

    entry: Kept
    state: State | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OfFork:
    """The part of a fork's change that a merge compares with the transaction.

    Parameters
    ----------
    transaction : bytes
        The identity of the transaction that was forked.
    number : int
        The number of the forked state among all forked states of the transaction; siblings have the same number.
    epoch : int
        How often the transaction had changed the order of the chunks before the fork.
    forks : frozenset of bytes
        The identities of the forks that made these changes.
    seen : array of int64
        The codes that the chunks had in the transaction when it was forked.
    digests : array of uint8, shape (n, 16)
        Digests of the chunks; zeros for special values.
    attrs : mapping of str to (bytes or None)
        The values that the changed attributes had in the transaction when it was forked.
    """

    transaction: bytes
    number: int
    epoch: int
    forks: frozenset[bytes]
    seen: Int64Array
    digests: npt.NDArray[np.uint8]
    attrs: Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True, eq=False)
class ChangeSet:
    """A change to a frame: all that its commit needs, except the state to which it is applied.

    Parameters
    ----------
    base : str
        The generation of the state that the change starts from; "" for a new frame.
    new : New, optional
        The new frame, if the change makes one.
    numbers : array of int64
        The chunks that the change puts, in ascending order.
    codes, sizes, records : arrays
        The locations of these chunks, and their rows in the tables of the index.
    extents : array of int64, shape (n, 3)
        For each spooled chunk, its start, its stop, and the stop of the record that follows it: addresses in segments.
    segments : tuple of Segment
        The bytes of spooled chunks.
    reads : array of int64
        Chunks of the base that the writer has read.
    order : array of int64, optional
        For a change of the order or count of chunks: the old position for each new one, or -1 for a chunk of zeros.
    geometry : Frame, optional
        A frame with the new shape and sizes. Its index, variable-length metalayers and other fields are ignored.
    attrs : mapping of str to (bytes or None)
        New values of attributes; None removes an attribute.
    before, after : Annotations
        The annotations of the base, and the annotations after the change.
    next : int
        The first number that no writer has used for the file of a chunk (sparse frames).
    compacts : bool
        Whether the commit rewrites the whole frame without dead space.
    filters : (int, FilterSlots), optional
        The number of the first chunk with data, and its filters.
    keeps : tuple of Keep
        The states that the commit keeps under names.
    drops : tuple of str
        The names of kept states that the commit drops.
    files : array of int64, shape (n, 2)
        The files that a fork has created, including files of chunks that it has replaced since: the number and the
        digest of the stamp for each.
    of_fork : OfFork, optional
        The information that a merge needs about the change of a fork.
    """

    base: str
    new: New | None = None
    numbers: Int64Array = field(default_factory=lambda: _NO_NUMBERS)
    codes: Int64Array = field(default_factory=lambda: _NO_NUMBERS)
    sizes: Sizes = field(default_factory=lambda: np.zeros((0, 1), np.uint32))
    records: Records = field(default_factory=lambda: np.zeros(0, np.uint32))
    extents: Int64Array = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    segments: tuple[Segment, ...] = ()
    reads: Int64Array = field(default_factory=lambda: _NO_NUMBERS)
    order: Int64Array | None = None
    geometry: Frame | None = None
    attrs: Mapping[str, bytes | None] = field(default_factory=dict)
    before: Annotations = field(default_factory=Annotations)
    after: Annotations = field(default_factory=Annotations)
    next: int = 0
    compacts: bool = False
    filters: tuple[int, FilterSlots] | None = None
    keeps: tuple[Keep, ...] = ()
    drops: tuple[str, ...] = ()
    files: Int64Array = field(default_factory=lambda: NO_FILES)
    of_fork: OfFork | None = None

    @property
    def is_structural(self) -> bool:
        """Whether chunks change their numbers or sizes, so that the change fits only its base."""
        return self.order is not None or self.geometry is not None

    @property
    def changes_values(self) -> bool:
        """Whether the change may affect the values or the shape of the array, and not only its metadata."""
        if self.new is not None:
            return not self.new.is_same
        return bool(self.numbers.size) or self.is_structural

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return self._leaves_state and not self.keeps and not self.drops

    @property
    def _leaves_state(self) -> bool:
        """Whether the commit leaves the state as it is; only the list of kept states may change."""
        touched = self.numbers.size or self.attrs or self.is_structural or self.compacts
        return not touched and self.before == self.after


def copy_for_changes(state: State) -> State:
    """Return a copy of a state, with an index and tables that a caller may change in place."""
    offsets = np.array(state.frame.offsets, np.int64)
    sizes = copy_table(state.sizes)
    records = copy_table(state.records)
    frame = replace(state.frame, offsets=offsets)
    return replace(state, frame=frame).with_tables(sizes, records)


def reindex_state(state: State, order: Int64Array, geometry: Frame) -> State:
    """Return a state whose chunks have another order, count or size; `ChangeSet` describes the parameters.

    Chunks that are lost stay marked as lost under their new numbers.
    """
    # An order of -1 picks the last row, so append a row for a chunk of zeros to each table.
    zeros = index.special_offset(Special.ZEROS)
    offsets = np.append(state.frame.offsets, zeros)[order]
    width = state.sizes.shape[1]
    no_sizes = np.zeros((1, width), np.uint32)
    sizes = np.append(state.sizes, no_sizes, axis=0)[order]
    records = np.append(state.records, np.uint32(0))[order]
    annotations = state.annotations
    if annotations.lost:
        lost = np.flatnonzero(np.isin(order, annotations.lost))
        annotations = replace(annotations, lost=tuple(lost.tolist()))
    new = state.with_annotations(annotations).with_frame(
        offsets=offsets,
        metalayers=geometry.metalayers,
        nbytes=geometry.nbytes,
        chunksize=geometry.chunksize,
        blocksize=geometry.blocksize,
        vl_blocks=geometry.vl_blocks,
    )
    sizes = _with_width(sizes, sizes_width(new.frame))
    return new.with_tables(sizes, records)


def _with_width(sizes: Sizes, width: int) -> Sizes:
    """Return a table of sizes with `width` columns; zeros stand for unknown sizes of blocks."""
    missing = width - sizes.shape[1]
    if missing <= 0:
        return np.ascontiguousarray(sizes[:, :width])
    return np.pad(sizes, ((0, 0), (0, missing)))


def apply_change(change: ChangeSet, state: State) -> State:
    """Return the state that results from a change on top of `state`, which does not change.

    In its index, the chunks that the change puts have codes.
    """
    annotations = notes.merge(change.before, change.after, state.annotations)
    if change.order is not None and change.geometry is not None:
        state = reindex_state(state, change.order, change.geometry)
    state = state.with_annotations(annotations)
    if change.numbers.size:
        state = copy_for_changes(state)
        state.frame.offsets[change.numbers] = change.codes
        state.sizes[change.numbers] = change.sizes
        state.records[change.numbers] = change.records
    for name, content in change.attrs.items():
        state = state.with_attr(name, content)
    return state


def rebase_change(change: ChangeSet, base: Revision, current: Revision) -> ChangeSet:
    """Return a change of the `base` state as a change of the `current` one, which other writers committed later.

    No chunk changes its code. ConflictError: another writer has changed something that this change reads or changes.
    """
    if current.generation == change.base:
        return change
    # The codes of the change are numbers of files, or places in a spool, and only fit one layout.
    if current.sparse != base.sparse:
        raise ConflictError(f"{current.url}: another writer replaced the frame by one with the other layout")
    touches_chunks = change.numbers.size or change.reads.size
    if touches_chunks or change.is_structural or change.compacts:
        _check_chunks(change, base, current)
    before, now = base.state, current.state
    conflicts = [name for name in change.attrs if before.attr(name) != now.attr(name)]
    if conflicts:
        raise ConflictError(f"{current.url}: attributes {conflicts} were changed by another writer as well")
    _check_snapshots(change, base, current)
    # Both writers may have created files: the next number must be above all of them.
    return replace(
        change,
        base=current.generation,
        next=max(change.next, now.annotations.next or 0),
    )


def _check_snapshots(change: ChangeSet, base: Revision, current: Revision) -> None:
    """Raise ConflictError if another writer has changed a snapshot that the change makes or drops.

    A change that only makes a snapshot conflicts with every commit.
    """
    if change.keeps and change._leaves_state:
        # A commit that only makes a snapshot must keep the state that its caller saw.
        raise ConflictError(f"{current.url} was changed by another writer; call refresh() and repeat the snapshot")
    before = ledger_of(base.state)
    now = ledger_of(current.state)
    kept = [keep.entry.name for keep in change.keeps]
    names = sorted({*kept, *change.drops})
    conflicts = [name for name in names if _identify_kept(before.find(name)) != _identify_kept(now.find(name))]
    if conflicts:
        raise ConflictError(f"{current.url}: the snapshots {conflicts} were made or dropped by another writer as well")


def _identify_kept(entry: Kept | None) -> object:
    """Return a value that identifies a kept state, even after the state has moved within its file."""
    return None if entry is None else (entry.time, entry.generation)


def _check_chunks(change: ChangeSet, base: Revision, current: Revision) -> None:
    """Raise ConflictError if other writers have changed chunks that the change reads or puts.

    A change of the shape, or of the order of the chunks, conflicts with every commit, and so does a rewrite.
    """
    # Other software overwrites chunks in place, and a writer that replaces the whole file moves its chunks. The tag of
    # a version tells files apart.
    old_tag = base.version and base.version.tag
    new_tag = current.version and current.version.tag
    moved = not current.sparse and old_tag != new_tag
    theirs = None
    if current.has_same_chunks(base) and current.frame.is_ours:
        theirs = find_changed_chunks(base.state, current.state, moved=moved)
    # A change of all chunks conflicts with every concurrent commit, and so does any change if the states cannot be
    # compared.
    if change.is_structural or change.compacts or theirs is None:
        raise ConflictError(f"{current.url} was changed by another writer; call refresh() and repeat the change")
    ours = np.union1d(change.numbers, change.reads)
    conflicts = sorted(theirs.intersection(ours.tolist()))
    if conflicts:
        raise ConflictError(f"{current.url}: chunks {conflicts} were changed by another writer as well")


# Changes of forks.


def join_changes(changes: Sequence[ChangeSet], url: str = "") -> ChangeSet:
    """Join one or more changes of forks of the same state of a transaction, and return one change.

    `url` is the frame, for messages. ConflictError: the forks started from different states, two forks have put
    different bytes into one chunk, or they have given an attribute or an annotation different values.
    """
    joined = list(changes)
    # Join in pairs, and then pairs of pairs: this copies each row only a few times.
    while len(joined) > 1:
        firsts = joined[::2]
        seconds = joined[1::2]
        pairs = zip(firsts, seconds, strict=False)
        is_odd = len(firsts) > len(seconds)
        joined = [_join_two(a, b, url) for a, b in pairs]
        if is_odd:
            joined.append(firsts[-1])
    return joined[0]


def _join_two(a: ChangeSet, b: ChangeSet, url: str) -> ChangeSet:
    """Join the changes of two forks; of a chunk that both have put, keep one copy.

    Raises the errors of `join_changes`.
    """
    ours, theirs = a.of_fork, b.of_fork
    if ours is None or theirs is None or _forked_state(a, ours) != _forked_state(b, theirs):
        raise ConflictError(f"{url}: expected forks of one state of a transaction, found forks of different ones")
    _, of_a, of_b = np.intersect1d(a.numbers, b.numbers, assume_unique=True, return_indices=True)
    differ = ~_have_equal_chunks(a, of_a, b, of_b)
    if differ.any():
        numbers = a.numbers[of_a[differ]]
        raise fork_conflict(url, numbers.tolist())
    common = sorted(a.attrs.keys() & b.attrs.keys())
    names = [name for name in common if a.attrs[name] != b.attrs[name]]
    if names:
        raise ConflictError(f"{url}: two forks have set the attributes {names} to different values")
    # Compare each change with its own base, because the transaction may have changed between the two forks.
    rebased = notes.merge(b.before, b.after, a.before)
    contradictory = notes.contradictions(a.before, a.after, rebased)
    if contradictory:
        raise ConflictError(f"{url}: two forks have set {contradictory} to different values")
    segments, extents = _join_segments(a, b)
    # The codes of b count its own extents, which now follow the extents of a.
    rows = np.arange(b.numbers.size)
    more = np.setdiff1d(rows, of_b)
    codes = b.codes[more]
    codes = np.where(is_spooled(codes), codes - len(a.extents), codes)
    numbers = np.concatenate([a.numbers, b.numbers[more]])
    order = np.argsort(numbers, kind="stable")
    filters = [each for each in (a.filters, b.filters) if each is not None]

    def merge_rows(first: Any, second: Any) -> Any:
        """Join two columns, in the order of the chunks."""
        return np.concatenate([first, second])[order]

    return replace(
        a,
        numbers=numbers[order],
        codes=merge_rows(a.codes, codes),
        sizes=merge_rows(a.sizes, b.sizes[more]),
        records=merge_rows(a.records, b.records[more]),
        extents=extents,
        segments=segments,
        reads=np.union1d(a.reads, b.reads),
        attrs={**a.attrs, **b.attrs},
        after=notes.merge(b.before, b.after, a.after),
        next=max(a.next, b.next),
        filters=min(filters, default=None),
        files=np.concatenate([a.files, b.files]),
        of_fork=replace(
            ours,
            forks=ours.forks | theirs.forks,
            seen=merge_rows(ours.seen, theirs.seen[more]),
            digests=merge_rows(ours.digests, theirs.digests[more]),
            attrs={**theirs.attrs, **ours.attrs},
        ),
    )


def _join_segments(a: ChangeSet, b: ChangeSet) -> tuple[tuple[Segment, ...], Int64Array]:
    """Return the segments of two changes, each segment once, and the extents of both, with addresses in these segments.

    The extents of `a` come first.
    """
    segments = list(a.segments)
    places = {_segment_key(segment): k for k, segment in enumerate(segments)}
    moves = []
    for segment in b.segments:
        # One fork can serve many workers. Each of them then returns the segments that the fork had before.
        place = places.get(_segment_key(segment))
        if place is None:
            place = len(segments)
            segments.append(segment)
        moves.append(place)
    extents = b.extents
    if extents.size:
        old = extents[:, :1] // SEGMENT
        new = np.array(moves, np.int64)[old]
        extents = extents + (new - old) * SEGMENT
    return tuple(segments), np.concatenate([a.extents, extents])


def _segment_key(segment: Segment) -> object:
    """Return a key that identifies a segment: part of a spool by its value, any other segment by its identity."""
    return segment if isinstance(segment, SpoolPart) else id(segment)


def _forked_state(change: ChangeSet, of_fork: OfFork) -> tuple[object, ...]:
    """Return a value that identifies the state that a fork started from."""
    return of_fork.transaction, of_fork.epoch, change.base


def _have_equal_chunks(
    a: ChangeSet,
    of_a: Int64Array,
    b: ChangeSet,
    of_b: Int64Array,
) -> npt.NDArray[np.bool_]:
    """Return for each pair of rows, in `of_a` and `of_b`, whether two forks have put the same bytes into the chunk."""
    if a.of_fork is None or b.of_fork is None:
        return np.zeros(len(of_a), bool)
    digests_of_a = a.of_fork.digests[of_a]
    digests_of_b = b.of_fork.digests[of_b]
    same_digest = (digests_of_a == digests_of_b).all(axis=1)
    # A special value has no digest, so compare the codes.
    codes_of_a = a.codes[of_a]
    codes_of_b = b.codes[of_b]
    special = (codes_of_a < LOWEST_CODE) | (codes_of_b < LOWEST_CODE)
    equal: npt.NDArray[np.bool_] = np.where(special, codes_of_a == codes_of_b, same_digest)
    return equal


def is_spooled(codes: Int64Array) -> npt.NDArray[np.bool_]:
    """Return for each code whether it stands for a chunk in a spool."""
    return (codes < 0) & (codes >= LOWEST_CODE)


def fork_conflict(url: str, numbers: list[int]) -> ConflictError:
    """Return the error for chunks into which two forks have put different bytes."""
    return ConflictError(
        f"{url}: chunks {numbers} were written by two forks, or by a fork and, since then, by its transaction"
    )
