"""`ChangeSet`: a change to a frame, as a value. This module computes with changes, and does no I/O.

A change lists the chunks that it puts, the old chunks that it has read, and its changes of geometry and metadata.
`apply_change` makes the next state. `rebase_change` puts the change on top of later commits of other writers, or names
the conflict. `join_changes` makes one change of the changes of several forks.

The code of a chunk says where the chunk is until the commit. From 0 on it is the number of a file. A negative code
stands for a row of `ChangeSet.extents`: row 0 for -1, and so on. Codes below `LOWEST_CODE` are the special values of an
index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.codec.header import Special
from b2array.errors import ConflictError
from b2array.format import annotations as notes
from b2array.format import index
from b2array.format.annotations import Annotations, Records, Sizes
from b2array.format.frame import Frame
from b2array.format.kept import Kept, ledger_of
from b2array.format.state import State, copy_table, count_sized_blocks, find_changed_chunks, with_index
from b2array.frame.snapshot import Snapshot
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
"""The addresses of segment k of the spooled chunks begin at k times this."""
DIGEST_NBYTES = 16
"""How long digests of chunks are."""

NO_FILES = np.zeros((0, 2), np.int64)
_NO_NUMBERS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class New:
    """A new frame: its first state, whether it may replace another frame, and the version of that one.

    Without a version, it may replace any. With `is_same`, it is the same frame in another file.
    """

    state: State
    overwrite: bool = False
    replaces: Version | None = None
    is_same: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        rest = self.state.annotations, self.overwrite, self.replaces, self.is_same
        return _new, (*self.state.without_index(0), *rest)


def _new(thin: Frame, index: bytes, annotations: Annotations, *rest: Any) -> New:
    return New(with_index(thin, index, annotations), *rest)


@dataclass(frozen=True, slots=True, eq=False)
class Keep:
    """A state that a commit keeps under a name: the one that it makes; in a copy of a frame also an earlier `state`.

    The index of an earlier state has codes for the chunks that were copied. `entry` is what the ledger will say; the
    plan adds where the state is.
    """

    entry: Kept
    state: State | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OfFork:
    """What the change of a fork is compared with when it is merged.

    Parameters
    ----------
    transaction : bytes
        The identity of the transaction that was forked.
    number : int
        Tells the point at which it was forked from its other ones.
    epoch : int
        How often the transaction had changed the order of the chunks by then.
    forks : frozenset of bytes
        The identities of the forks whose changes these are.
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
    """A change to a frame.

    Parameters
    ----------
    base : str
        The generation of the state that it changes; "" for a new frame.
    new : New, optional
        What is to be made, if it is a new frame.
    numbers : array of int64
        The chunks that it puts, in ascending order.
    codes, sizes, records : arrays
        Where these chunks are, and their rows in the tables of the index.
    extents : array of int64, shape (n, 3)
        For each spooled chunk, where it starts and stops, and where the record behind it stops: addresses in segments.
    segments : tuple of Segment
        Where the bytes of spooled chunks are.
    reads : array of int64
        Chunks of the base that it has read.
    order : array of int64, optional
        If the chunks get another order or count: for each new position the old one, or -1 for a chunk of zeros.
    geometry : Frame, optional
        A frame with the new shape and sizes; the index, the variable-length metalayers and all else are not looked at.
    attrs : mapping of str to (bytes or None)
        Attributes that it sets, or removes.
    before, after : Annotations
        The annotations of the base, and those after the change.
    next : int
        The first number of a chunk's file that nobody has used (sparse frames).
    compacts : bool
        Whether the frame is to be written again without dead space.
    filters : (int, FilterSlots), optional
        The first chunk with data, and its filters.
    keeps : tuple of Keep
        The states that it keeps under names.
    drops : tuple of str
        The names of the kept states that it lets go.
    files : array of int64, shape (n, 2)
        The files that a fork has made, also for chunks that it has replaced since: numbers, and digests of stamps.
    of_fork : OfFork, optional
        What else is known of the change of a fork.
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
        """Whether chunks change their numbers or sizes, so that it can be made to no other state."""
        return self.order is not None or self.geometry is not None

    @property
    def changes_values(self) -> bool:
        """Whether it may change the values or the shape of the array, and not its metadata alone."""
        if self.new is not None:
            return not self.new.is_same
        return bool(self.numbers.size) or self.is_structural

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return self._leaves_state and not self.keeps and not self.drops

    @property
    def _leaves_state(self) -> bool:
        """Whether the state stays as it is, apart from the names under which states are kept."""
        touched = self.numbers.size or self.attrs or self.is_structural or self.compacts
        return not touched and self.before == self.after


def copy_for_changes(state: State) -> State:
    """Return a state whose index and tables can be changed in place."""
    described = replace(state.frame, offsets=np.array(state.frame.offsets, np.int64))
    return replace(state, frame=described).with_tables(copy_table(state.sizes), copy_table(state.records))


def reindex_state(state: State, order: Int64Array, geometry: Frame) -> State:
    """Return a state whose chunks have another order, count or size; `ChangeSet` describes the parameters."""
    # Position -1 finds the entry that is added at the end: zeros.
    offsets = np.append(state.frame.offsets, index.special_offset(Special.ZEROS))[order]
    sizes = np.append(state.sizes, np.zeros((1, state.sizes.shape[1]), np.uint32), axis=0)[order]
    records = np.append(state.records, np.uint32(0))[order]
    annotations = state.annotations
    if annotations.lost:
        annotations = replace(annotations, lost=tuple(np.flatnonzero(np.isin(order, annotations.lost)).tolist()))
    new = state.with_annotations(annotations).with_frame(
        offsets=offsets,
        metalayers=geometry.metalayers,
        nbytes=geometry.nbytes,
        chunksize=geometry.chunksize,
        blocksize=geometry.blocksize,
        vl_blocks=geometry.vl_blocks,
    )
    return new.with_tables(_with_width(sizes, 1 + count_sized_blocks(new.frame)), records)


def _with_width(sizes: Sizes, width: int) -> Sizes:
    """Return a table of sizes with this many columns; blocks of unknown size have zeros."""
    missing = max(0, width - sizes.shape[1])
    return np.pad(sizes, ((0, 0), (0, missing))) if missing else np.ascontiguousarray(sizes[:, :width])


def apply_change(change: ChangeSet, state: State) -> State:
    """Return the state that a change makes of another one; its index has codes for the chunks that the change puts."""
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


def rebase_change(change: ChangeSet, base: Snapshot, current: Snapshot) -> ChangeSet:
    """Put a change of one state on top of a later one, which other writers have made.

    ConflictError: they have changed what the change has read, or changes too.
    """
    if current.generation == change.base:
        return change
    if current.sparse != base.sparse:
        raise ConflictError(f"{current.url}: another writer replaced the frame by one of the other layout")
    if change.numbers.size or change.reads.size or change.is_structural or change.compacts:
        _check_chunks(change, base, current)
    conflicts = [name for name in change.attrs if base.state.attr(name) != current.state.attr(name)]
    if conflicts:
        raise ConflictError(f"{current.url}: attributes {conflicts} were changed by another writer as well")
    _check_snapshots(change, base, current)
    return replace(change, base=current.generation, next=max(change.next, current.state.annotations.next or 0))


def _check_snapshots(change: ChangeSet, base: Snapshot, current: Snapshot) -> None:
    if change.keeps and change._leaves_state:
        # Who keeps a state without changing it means the state that he has seen.
        raise ConflictError(f"{current.url} was changed by another writer; call refresh() and repeat the snapshot")
    before, now = ledger_of(base.state), ledger_of(current.state)
    names = {keep.entry.name for keep in change.keeps}.union(change.drops)
    conflicts = sorted(name for name in names if _identify(before.find(name)) != _identify(now.find(name)))
    if conflicts:
        raise ConflictError(f"{current.url}: the snapshots {conflicts} were made or dropped by another writer as well")


def _identify(entry: Kept | None) -> object:
    """Tell a kept state from others, wherever it is by now."""
    return None if entry is None else (entry.time, entry.generation)


def _check_chunks(change: ChangeSet, base: Snapshot, current: Snapshot) -> None:
    # Other software rewrites chunks in their places, and a file that is written again moves its chunks.
    was, now = base.version, current.version
    moved = not current.sparse and (was and was.tag) != (now and now.tag)
    comparable = current.has_same_chunks(base) and current.frame.is_ours
    theirs = find_changed_chunks(base.state, current.state, moved=moved) if comparable else None
    if change.is_structural or change.compacts or theirs is None:
        raise ConflictError(f"{current.url} was changed by another writer; call refresh() and repeat the change")
    ours = np.union1d(change.numbers, change.reads)
    conflicts = sorted(theirs.intersection(ours.tolist()))
    if conflicts:
        raise ConflictError(f"{current.url}: chunks {conflicts} were changed by another writer as well")


# Changes of forks.


def join_changes(changes: Sequence[ChangeSet], url: str = "") -> ChangeSet:
    """Join the changes of forks of one transaction.

    ConflictError: two of them have put different bytes into one chunk, or different values into one attribute.
    """
    joined = list(changes)
    while len(joined) > 1:  # in pairs, so that each row is copied a few times only
        pairs = [_join_two(a, b, url) for a, b in zip(joined[::2], joined[1::2], strict=False)]
        joined = pairs + joined[len(joined) & ~1 :]
    return joined[0]


def _join_two(a: ChangeSet, b: ChangeSet, url: str) -> ChangeSet:
    ours, theirs = a.of_fork, b.of_fork
    if ours is None or theirs is None or _forked_state(a, ours) != _forked_state(b, theirs):
        raise ConflictError(f"{url}: expected forks of one state of a transaction, found forks of different ones")
    _, of_a, of_b = np.intersect1d(a.numbers, b.numbers, assume_unique=True, return_indices=True)
    differ = ~_are_equal(a, of_a, b, of_b)
    if differ.any():
        raise fork_conflict(url, a.numbers[of_a[differ]].tolist())
    names = [name for name in a.attrs.keys() & b.attrs.keys() if a.attrs[name] != b.attrs[name]]
    if names:
        raise ConflictError(f"{url}: two forks have set the attributes {sorted(names)} to different values")
    # Each is compared with the state that its fork began with: the transaction may have changed in between.
    contradictory = notes.contradictions(a.before, a.after, notes.merge(b.before, b.after, a.before))
    if contradictory:
        raise ConflictError(f"{url}: two forks have set {contradictory} to different values")
    more = np.setdiff1d(np.arange(b.numbers.size), of_b)
    # Where a fork serves many workers, each of their copies brings the segments that it had before.
    places = {id(segment): k for k, segment in enumerate(a.segments)} | {
        segment: k for k, segment in enumerate(a.segments) if isinstance(segment, SpoolPart)
    }
    segments, moves = list(a.segments), []
    for segment in b.segments:
        found = places.get(segment) if isinstance(segment, SpoolPart) else places.get(id(segment))
        if found is None:
            found = len(segments)
            segments.append(segment)
        moves.append(found)
    moved = np.array(moves, np.int64)
    rows = b.extents
    if rows.size:
        old = rows[:, :1] // SEGMENT
        rows = rows + (moved[old] - old) * SEGMENT
    codes = b.codes[more]
    codes = np.where(is_spooled(codes), codes - len(a.extents), codes)
    order = np.argsort(np.concatenate([a.numbers, b.numbers[more]]), kind="stable")

    def both(first: Any, second: Any) -> Any:
        return np.concatenate([first, second])[order]

    return replace(
        a,
        numbers=both(a.numbers, b.numbers[more]),
        codes=both(a.codes, codes),
        sizes=both(a.sizes, b.sizes[more]),
        records=both(a.records, b.records[more]),
        extents=np.concatenate([a.extents, rows]),
        segments=tuple(segments),
        reads=np.union1d(a.reads, b.reads),
        attrs={**a.attrs, **b.attrs},
        after=notes.merge(b.before, b.after, a.after),
        next=max(a.next, b.next),
        filters=min(filter(None, (a.filters, b.filters)), default=None),
        files=np.concatenate([a.files, b.files]),
        of_fork=replace(
            ours,
            forks=ours.forks | theirs.forks,
            seen=both(ours.seen, theirs.seen[more]),
            digests=both(ours.digests, theirs.digests[more]),
            attrs={**theirs.attrs, **ours.attrs},
        ),
    )


def _forked_state(change: ChangeSet, of_fork: OfFork) -> tuple[object, ...]:
    return of_fork.transaction, of_fork.epoch, change.base


def _are_equal(a: ChangeSet, of_a: Int64Array, b: ChangeSet, of_b: Int64Array) -> npt.NDArray[np.bool_]:
    """Whether two forks have put the same bytes into chunks, given by their rows."""
    if a.of_fork is None or b.of_fork is None:
        return np.zeros(len(of_a), bool)
    same = (a.of_fork.digests[of_a] == b.of_fork.digests[of_b]).all(axis=1)
    special = (a.codes[of_a] < LOWEST_CODE) | (b.codes[of_b] < LOWEST_CODE)
    found: npt.NDArray[np.bool_] = np.where(special, a.codes[of_a] == b.codes[of_b], same)
    return found


def is_spooled(codes: Int64Array) -> npt.NDArray[np.bool_]:
    """Which codes stand for chunks in a spool."""
    return (codes < 0) & (codes >= LOWEST_CODE)


def fork_conflict(url: str, numbers: list[int]) -> ConflictError:
    """Make the error for chunks into which two forks have put different bytes."""
    return ConflictError(f"{url}: chunks {numbers} were written by two forks, or by a fork and after it was made")
