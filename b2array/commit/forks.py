"""Forks: handles for workers, whose writes become part of one commit.

`fork` makes a handle that can be pickled, and reads and writes like the array. The fork shows the array as it was in
the transaction at that time, with the writes of the fork. `merge` adds these writes to the transaction. Until the
merge, no index refers to the chunks of a fork, but the process of the transaction can reach them:

* in a sparse frame, they are separate files. No fork writes to an existing file, even if its bytes are equal;
* for a contiguous local file, they are in a directory next to it, with one file for each pickle that a worker returns;
* for arrays in memory and for contiguous frames in object stores, the pickle itself contains them.

A journal next to the chunks tells `vacuum` that a writer still needs them. The process of the transaction rewrites the
journal from time to time, so that its timestamp stays recent. If the transaction fails, its process removes the files
that it created itself, and the files of merged forks; `vacuum` removes the rest.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.catalog.owners import ALONE, load
from b2array.codec.chunk_header import ChunkHeader, Special
from b2array.commit.changes import (
    DIGEST_NBYTES,
    LOWEST_CODE,
    NO_FILES,
    ChangeSet,
    OfFork,
    apply_change,
    fork_conflict,
    is_spooled,
    join_changes,
    rebase_change,
)
from b2array.commit.cursor import Ended
from b2array.commit.draft import Delta, Draft, detect_replacement, discard_unneeded
from b2array.commit.fork_point import UNDER_WAY, ForkPoint, Forks, make_portable
from b2array.commit.frame_commit import commit
from b2array.commit.handle import Handle
from b2array.commit.journals import Journal, directory_beside
from b2array.commit.staging import Staging, digest_of
from b2array.commit.write import write
from b2array.errors import B2ArrayError, ConflictError, FormatError
from b2array.format import annotations as notes
from b2array.format import index, recent
from b2array.format.index import chunk_number
from b2array.format.state import State
from b2array.frame.revision import Revision
from b2array.frame.source import FRAME_NAME, Staged
from b2array.grid.layout import Layout
from b2array.store.base import HiddenError, Store
from b2array.store.endings import TEMPORARY
from b2array.store.local_store import LocalStore
from b2array.store.spans import Span
from b2array.store.spool import Spool

__all__ = [
    "Fork",
    "abandon_write",
    "accept_forks",
    "begin_fork",
    "change_of",
    "check_related",
    "commit_changes",
    "fork",
    "make_fork_point",
    "merge",
    "merge_changes",
    "note_forks",
    "prepare_merge",
    "remove_journal",
    "take_over",
    "was_committed",
    "write_part",
]

_JOURNAL_SECONDS = 600.0
"""After how many seconds the process of a transaction rewrites the journal, so that its timestamp stays recent."""
_IN_MEMORY = 2**20
"""Up to how many bytes of new chunks a fork of a local file keeps in memory, before it writes them to its file."""

Part = tuple[slice, ...]


def _ensure_register(draft: Draft) -> Forks:
    """Return the register of a draft's forks; the first call creates it, with a new identity for the draft.

    That call also enters the draft's files in `UNDER_WAY`.
    """
    if draft.forks is None:
        transaction = os.urandom(16)
        point = draft.point
        if point is None:
            first, directory = _choose_first_and_directory(draft, transaction)
        else:
            first, directory = point.first, point.directory
        draft.forks = Forks(transaction, first, directory)
        # A fork point that is unpickled in this process finds the files of its transaction here.
        UNDER_WAY[transaction] = draft.staging.files
    return draft.forks


def _choose_first_and_directory(draft: Draft, transaction: bytes) -> tuple[int, str]:
    """Choose where forks put chunks: return the number of their first file, and the path of a directory for them.

    The path is "" if the chunks are not in a directory beside the file. `transaction` is the identity of the draft.
    """
    if draft.store.in_process:
        return 0, ""
    if draft.sparse:
        return draft.staging.next, ""
    if isinstance(draft.store, LocalStore):
        return 0, directory_beside(draft.store.url, transaction[:8].hex())
    return 0, ""


def make_fork_point(draft: Draft, *, lasts: bool = False) -> ForkPoint:
    """Prepare a transaction for forks, and return the point from which they start.

    This encodes open chunks, and keeps the point and the base in the draft's register. The first call writes the
    journal, and starts a thread that rewrites it. With `lasts`, there is no thread, and the chunks of forks remain when
    this draft ends, because `commit_changes` will commit them, perhaps in another process. FileExistsError: the draft
    replaces a frame of the other layout. ConflictError: the transaction has ended.
    """
    draft.staging.require_open()
    draft.flush()
    if draft.destination.aside:
        raise FileExistsError(f"{draft.url} has the other layout, which tasks cannot replace; remove it first")
    # The forks of a fork use the journal that its transaction has written.
    is_first = draft.point is None and draft.forks is None
    forks = _ensure_register(draft)
    if draft.base is not None:
        forks.bases[draft.base.generation] = draft.base
    point = ForkPoint(
        draft.store,
        draft.base,
        forks.transaction,
        0,
        draft.delta.epoch,
        _whole_change(draft),
        first=forks.first,
        directory=forks.directory,
        files=draft.staging.files,
        makes_directory=draft.destination.makes_directory,
    )
    if forks.last is not None:
        number = forks.last.number
        # Forks of the same state are siblings, and may be merged into each other.
        if not _has_same_chunks_and_metadata(forks.last.change, point.change):
            number += 1
        point = replace(point, number=number)
    forks.last = point
    if is_first:
        with detect_replacement(draft):
            _write_journal(point)
        if not lasts:
            forks.at_end.callback(remove_journal, point)
            forks.at_end.callback(_keep_journal_recent(point))
    return point


def _whole_change(draft: Draft) -> ChangeSet:
    """Return all changes since the base as a value. For a fork, they include the changes of its transaction."""
    change = draft.freeze()
    if draft.point is None:
        return change
    before, state = draft.point.change, draft.state
    numbers = np.union1d(before.numbers, change.numbers)
    segments, extents = draft.staging.all_segments()
    return replace(
        before,
        numbers=numbers,
        codes=state.frame.offsets[numbers],
        sizes=state.sizes[numbers],
        records=state.records[numbers],
        extents=extents,
        segments=tuple(segments),
        attrs={**before.attrs, **change.attrs},
        after=change.after,
    )


def _has_same_chunks_and_metadata(one: ChangeSet, other: ChangeSet) -> bool:
    """Whether a fork would show the same at two points. What the commit keeps, drops or compacts does not count."""
    # Different chunks have different codes, so comparing codes is enough. Each change of the order makes a new array.
    return (
        one.base == other.base
        and one.attrs == other.attrs
        and one.after == other.after
        and np.array_equal(one.numbers, other.numbers)
        and np.array_equal(one.codes, other.codes)
        and one.order is other.order
    )


def _write_journal(point: ForkPoint) -> None:
    """Write the journal of a write by forks, or replace it by an equal one; do nothing if the forks need none."""
    store = point.journal_store
    if store is not None:
        generation = "" if point.base is None else point.base.generation
        # Chunks that the transaction wrote to files before the fork belong to the write as well.
        codes = point.change.codes
        first = min([point.first, *codes[codes >= 0].tolist()])
        journal = Journal(first, point.transaction, generation)
        store.replace(point.journal_name, journal.pack())


def abandon_write(point: ForkPoint) -> None:
    """Give up a write by forks: end it, and remove its journal and the files that this process has created for it.

    Files stay if a commit refers to them, or if the store fails. Errors of the store are ignored.
    """
    # Tasks that still run in other threads then notice that the write has failed.
    point.files.end()
    discard_unneeded(point.store, point.files)
    remove_journal(point)


def remove_journal(point: ForkPoint) -> None:
    """Remove the journal, and the directory of chunks next to a contiguous file, as far as possible.

    If the write has made the directory of a new frame, and that directory is empty now, remove it as well. Errors of
    the store are ignored. While the interpreter ends, everything stays. The journal of a new array stays while chunks
    are there without an index.
    """
    store = point.journal_store
    if store is None or threads.is_ending():
        return
    # Even if the store fails here, the transaction has ended, and `vacuum` removes the journal later.
    with suppress(OSError, B2ArrayError):
        if point.directory:
            store.delete([*store.listing(), ""])
        elif not _needs_journal(point, store):
            store.delete([point.journal_name])
            if point.makes_directory:
                store.drop_directory()


def _needs_journal(point: ForkPoint, store: Store) -> bool:
    """List the store: whether chunks of a new array remain without an index, which `vacuum` finds by the journal."""
    if point.base is not None:
        return False
    names = store.listing()
    has_chunks = any(chunk_number(name) is not None for name in names)
    return has_chunks and FRAME_NAME not in names


def _keep_journal_recent(point: ForkPoint) -> Callable[[], object]:
    """Start a thread that rewrites the journal from time to time; return the function that ends it.

    Without a journal, this starts no thread.
    """
    ended = threading.Event()

    def keep() -> None:
        """Rewrite the journal from time to time, until the transaction ends."""
        while not ended.wait(_JOURNAL_SECONDS):
            # One failure does no harm: `vacuum` waits much longer, and the next round tries again.
            with suppress(OSError, B2ArrayError):
                _write_journal(point)

    thread = threading.Thread(target=keep, name="b2array-journal", daemon=True)
    if point.journal_store is not None:
        thread.start()

    def end() -> None:
        """End the thread, and wait until it has ended."""
        ended.set()
        if thread.ident is not None and not threads.is_ending():
            # Otherwise the thread might write the journal again after its removal.
            thread.join()

    return end


# The drafts of forks, and their changes.


def begin_fork(point: ForkPoint, name: bytes, region: Part | None = None) -> Draft:
    """Begin a fork, and return its draft, which shows the changes of the transaction up to the point.

    Parameters
    ----------
    point : ForkPoint
        The transaction that is forked.
    name : bytes
        Identifies the fork.
    region : tuple of slice, optional
        The box that all forks together will write. With a region, the forks need fewer file numbers.
    """
    change = point.change
    new = None if change.new is None else change.new.state
    staging = _staging_of(point, region)
    draft = Draft(point.store, point.base, new, is_same=True, staging=staging)
    draft.staging.inherit(change.segments, change.extents)
    draft.state = apply_change(change, draft.state)
    draft.delta = Delta.of(draft.state)
    draft.delta.epoch = point.epoch
    draft.point = replace(point, fork=name)
    return draft


def _staging_of(point: ForkPoint, region: Part | None) -> Staging:
    """Return an empty staging area for a fork; the transaction lists the files that it creates.

    `region` is as for `begin_fork`.
    """
    if point.uses_files:
        slots, nslots = None, 0
        if region is not None:
            state = apply_change(point.change, point.state)
            slots, nslots = _number_slots(state.require_layout(), region)
        return Staging(
            point.store,
            None,
            point.first,
            transaction=point.files,
            slots=slots,
            nslots=nslots,
        )
    path = None
    if point.directory:
        name = os.urandom(8).hex() + TEMPORARY
        path = str(Path(point.directory, name))
    # Without a file, the pickle of the fork contains all chunks, so they stay in memory.
    spool = Spool(path, limit=_IN_MEMORY if path else math.inf, root=point.store.root)
    return Staging(point.store, spool, 0, transaction=point.files)


def _number_slots(
    layout: Layout,
    region: Part,
) -> tuple[Callable[[int], int], int]:
    """Return a function that numbers the chunks in a region from 0 on, and how many chunks are in the region.

    The function takes the number of a chunk in the array.
    """
    starts = []
    lengths = []
    for part, size in zip(region, layout.chunks, strict=True):
        start = part.start // size
        stop = -(-part.stop // size)
        starts.append(start)
        lengths.append(max(0, stop - start))
    strides = layout.grid_strides
    counts = layout.grid_shape

    def slot(n: int) -> int:
        """Return the number of chunk `n` among the chunks in the region."""
        number = 0
        for stride, count, start, length in zip(strides, counts, starts, lengths, strict=True):
            position = n // stride % count - start
            number = number * length + position
        return number

    return slot, math.prod(lengths)


def change_of(draft: Draft) -> ChangeSet:
    """Return the change of a fork, with the values that a merge will compare with the transaction.

    The caller has encoded the open chunks. ValueError: this is not the draft of a fork.
    """
    point = draft.point
    if point is None:
        raise ValueError(f"{draft.url}: expected the draft of a fork")
    change = draft.freeze()
    numbers, codes = change.numbers, change.codes
    digests = np.zeros((len(numbers), DIGEST_NBYTES), np.uint8)
    for row, n in enumerate(numbers.tolist()):
        if digest := draft.delta.digests.get(n):
            digests[row] = np.frombuffer(digest, np.uint8)
    # The change includes the changes of siblings that were merged into this fork.
    merged = set() if draft.forks is None else draft.forks.roster.merged
    of_fork = OfFork(
        transaction=point.transaction,
        number=point.number,
        epoch=point.epoch,
        forks=frozenset({point.fork} | merged),
        seen=point.codes_of(numbers),
        digests=digests,
        attrs={name: point.attr(name) for name in change.attrs},
    )
    # The codes count the extents of the transaction as well, but the change has only the extents of the fork.
    codes = np.where(is_spooled(codes), codes + draft.staging.inherited_count, codes)
    return replace(
        change,
        codes=codes,
        files=draft.staging.files.rows(),
        of_fork=of_fork,
    )


def check_related(draft: Draft, changes: Iterable[ChangeSet]) -> None:
    """Raise ConflictError unless changes come from forks of a draft, or from its siblings.

    Siblings are forks of the same state of a transaction. Forks of different states cannot be compared, because the
    transaction has changed chunks between them.
    """
    transaction = None if draft.forks is None else draft.forks.transaction
    point = draft.point
    for change in changes:
        of_fork = change.of_fork
        if of_fork is not None and of_fork.transaction == transaction:
            continue
        if of_fork is None or point is None or of_fork.transaction != point.transaction:
            raise ConflictError(f"{draft.url}: these forks belong to another transaction, or to one that has ended")
        base = "" if point.base is None else point.base.generation
        if of_fork.number != point.number or change.base != base:
            raise ConflictError(
                f"{draft.url}: the transaction has changed between these forks; merge them into the transaction"
            )


def prepare_merge(draft: Draft, change: ChangeSet) -> tuple[ChangeSet, list[int]]:
    """Rebase the joined changes of forks on the draft's base; return them, and the rows of the chunks to take over.

    This first encodes the draft's open chunks, but adds nothing to the draft. The rows are rows of the change's
    `numbers`; they omit chunks that the draft already has because a task ran twice.

    ConflictError: since the fork, the draft has changed the order of the chunks, or has given the same chunks or
    attributes different values; or another writer has changed the chunks, or the transaction has ended.
    """
    draft.staging.require_open()
    draft.flush()
    ours = change.of_fork
    if ours is None or ours.epoch != draft.delta.epoch:
        raise ConflictError(f"{draft.url}: the order of the chunks has changed since the fork")
    if draft.base is not None:
        change = rebase_change(change, _base_of(draft, change), draft.base)
    now = draft.frame.offsets[change.numbers]
    changed = np.flatnonzero(now != ours.seen).tolist()
    differ = [row for row in changed if not _has_same_chunk(draft, change, row)]
    if differ:
        raise fork_conflict(draft.url, change.numbers[differ].tolist())
    names = []
    for name, value in change.attrs.items():
        if draft.state.attr(name) not in (value, ours.attrs.get(name)):
            names.append(name)
    if names:
        raise ConflictError(f"{draft.url}: attributes {names} were changed since the fork as well")
    contradictory = notes.contradictions(change.before, change.after, draft.state.annotations)
    if contradictory:
        raise ConflictError(f"{draft.url}: {contradictory} were changed since the fork as well")
    same = set(changed)
    return change, [row for row in range(change.numbers.size) if row not in same]


def _base_of(draft: Draft, change: ChangeSet) -> Revision:
    """Return the state that the forks with this `change` started from: the base of the draft, or an earlier base.

    ConflictError: they started from another state.
    """
    base = draft.base
    if base is not None and change.base != base.generation:
        bases = {} if draft.forks is None else draft.forks.bases
        base = bases.get(change.base)
    if base is None:
        raise ConflictError(f"{draft.url}: expected forks of this state of the array, found forks of another one")
    return base


def _has_same_chunk(draft: Draft, change: ChangeSet, row: int) -> bool:
    """Read a draft's chunk: whether it equals the chunk in a row of a fork's change, because a task ran twice."""
    n = int(change.numbers[row])
    code = int(change.codes[row])
    location = draft.locate(n)
    if isinstance(location, Special) or code < LOWEST_CODE:
        return location == index.SPECIALS.get(code)
    name, start, stop = location
    if stop < 0:
        stop = draft.store.stamp(name).size
    (stored,) = draft.read([Span(name, start, stop)])
    if change.of_fork is None:
        return False
    wanted: bytes = change.of_fork.digests[row].tobytes()
    # Compare only the chunk: the record of checksums after it contains the number of the file.
    chunk_bytes = stored[: ChunkHeader.unpack(stored).cbytes]
    return digest_of(chunk_bytes) == wanted


def take_over(draft: Draft, change: ChangeSet, rows: Iterable[int]) -> None:
    """Add the changes of forks to a draft, with only the chunks in these `rows` of the change.

    The draft takes over all files and spools of the forks, and notes that they were merged. A spooled chunk gets a file
    if the frame is sparse. The caller has checked the changes with `prepare_merge`.
    """
    staging = draft.staging
    staging.take_over_files(change.files)
    shift = staging.take_over_segments(change.segments, change.extents)
    for row in rows:
        n = int(change.numbers[row])
        code = int(change.codes[row])
        digest = b""
        if change.of_fork is not None:
            digest = change.of_fork.digests[row].tobytes()
        record = int(change.records[row])
        staged = Staged(code, change.sizes[row], record, None, digest)
        if code < LOWEST_CODE:
            staged = Staged(code)
        elif code >= 0:
            staging.expect_file(code)
        elif staging.has_spool:
            staged = staged._replace(code=code - shift)
        else:
            # The fork spooled its chunks into its pickle, but this frame needs each chunk in its own file.
            start, stop = staging.extent(code - shift) or (0, 0)
            staged = draft.stage_chunk(n, bytes(staging.read(start, stop)))
        draft.set_chunk(n, staged)
    for name, content in change.attrs.items():
        draft.set_attr(name, content)
    after = notes.merge(change.before, change.after, draft.state.annotations)
    draft.state = draft.state.with_annotations(after)
    delta = draft.delta
    # A chunk that the draft itself has written was not read from the base.
    read = change.reads[~delta.touched[change.reads]]
    delta.read[read] = True
    merged = frozenset() if change.of_fork is None else change.of_fork.forks
    # An unpickled fork takes over its own changes, which is not a merge.
    if draft.point is not None:
        merged -= {draft.point.fork}
    if merged:
        _ensure_register(draft).roster.merged |= merged


# Handles.


class Fork(Handle):
    """The handle of a fork. It is always in a transaction, which another process may commit."""

    __slots__ = ("_name", "_point")

    def __init__(self, point: ForkPoint, name: bytes, change: ChangeSet | None = None) -> None:
        draft = begin_fork(point, name)
        if change is not None:
            take_over(draft, change, range(change.numbers.size))
        self._point = point
        self._name = name
        # A new array has no committed state yet: its handle shows the first state of the transaction.
        revision = point.base or Revision(point.store, draft.state, 0, None, "", ALONE)
        super().__init__(revision, "r+", draft)

    @property
    def draft(self) -> Draft | None:
        """The draft with the changes of the fork; ValueError if the fork was merged."""
        # The cursor of a merged fork raises the error.
        _ = self.revision
        return super().draft

    def freeze(self) -> ChangeSet:
        """Encode open chunks, and return the changes of the fork as a value."""
        draft = self.draft
        if draft is None:
            raise ValueError("expected the draft of a fork")
        draft.flush()
        return change_of(draft)

    def seal(self) -> None:
        """Wait for a change by another thread, and take no more changes; ValueError if the fork is sealed or merged."""
        with self.mutex.held:
            if self.draft is not None:
                self.require_unsealed()
            self._is_sealed = True

    def unseal(self) -> None:
        """Take changes again."""
        self._is_sealed = False

    def require_unsealed(self) -> None:
        """Raise ValueError if another thread is merging the fork."""
        if self._is_sealed:
            raise ValueError("another thread is merging this fork; use the transaction that gets its changes")

    def end(self) -> None:
        """Drop the draft, and make every further use of this handle raise ValueError, because the fork was merged."""
        merged = ValueError("this fork was merged; use the transaction that has its changes now")
        self.cursor, self._draft = Ended(merged), None

    def __reduce__(self) -> tuple[Any, ...]:
        """Encode open chunks, and pickle the fork with its changes."""
        change = make_portable(self.freeze())
        is_untouched = change.is_empty and not change.reads.size
        return type(self), (self._point, self._name, None if is_untouched else change)


def fork(handle: Handle) -> Fork:
    """Fork the transaction that is under way on a handle, and return the fork; ValueError outside of a transaction.

    This encodes open chunks. The first fork of a transaction writes the journal.
    """
    draft = handle.draft
    if draft is None:
        raise ValueError("fork() needs a transaction: with a.transaction() as changes: fork = changes.fork()")
    with handle.mutex.held:
        handle.require_unsealed()
        point = make_fork_point(draft)
        name = os.urandom(16)
        _ensure_register(draft).roster.created.add(name)
    return Fork(point, name)


def merge(handle: Handle, forks: Sequence[Handle]) -> None:
    """Add the changes of forks to the transaction that is under way on a handle, and end the forks.

    This encodes the open chunks of the forks and of the transaction.

    ConflictError: forks have changed the same chunks or attributes, or belong to another transaction, or the
    transaction has ended. Nothing was merged then. TypeError: one of the handles is not a fork. ValueError: a fork
    cannot be merged into itself, or was merged before.
    """
    ours: list[Fork] = []
    for each in forks:
        if not isinstance(each, Fork):
            raise TypeError("merge() expects forks of this transaction")
        ours.append(each)
    if handle in ours:
        raise ValueError("a fork cannot be merged into itself: it has its changes already")
    if handle.draft is None:
        raise ConflictError(f"{handle.url}: the transaction of these forks has ended")
    if not ours:
        return
    with sealing(ours):
        changes = [each.freeze() for each in ours]
        with handle.mutex.held:
            handle.require_unsealed()
            draft = handle.draft
            if draft is None:
                raise ConflictError(f"{handle.url}: the transaction of these forks has ended")
            check_related(draft, changes)
            joined = join_changes(changes, handle.url)
            change, rows = prepare_merge(draft, joined)
            take_over(draft, change, rows)
            for each in ours:
                each.end()


class Sealable(Protocol):
    """A fork of an array or a group."""

    def seal(self) -> None:
        """Wait for a change by another thread, and take no more changes; ValueError if the fork is sealed or merged."""

    def unseal(self) -> None:
        """Take changes again."""


@contextmanager
def sealing(forks: Iterable[Sealable]) -> Iterator[None]:
    """Seal forks for the block, which merges and ends them; after an error, they take changes again.

    A change that another thread makes through a fork from now on would come too late for the merge. Raises the errors
    of `Sealable.seal`.
    """
    sealed = [*dict.fromkeys(forks)]
    seal_all(sealed)
    try:
        yield
    except BaseException:
        for each in sealed:
            each.unseal()
        raise


def seal_all(forks: Iterable[Sealable]) -> None:
    """Seal forks, or none of them. Raises the errors of `Sealable.seal`."""
    sealed = []
    try:
        for each in forks:
            each.seal()
            sealed.append(each)
    except BaseException:
        # Not the others: another thread may have sealed them.
        for each in sealed:
            each.unseal()
        raise


# Forks without handles: each task returns its change, and one commit adds all of them.


def write_part(
    point: ForkPoint,
    part: Part,
    values: npt.NDArray[Any],
    region: Part | None = None,
) -> ChangeSet:
    """Write values to the box `part` of the array in a new fork, and return the change, which can be pickled.

    The `region` is the box that all tasks together write, if the caller knows it. After an error, this removes the
    files of the fork. ConflictError: another task has failed, and the write was given up; this removes the journal as
    well.
    """
    draft = begin_fork(point, os.urandom(16), region)
    try:
        if values.size:
            write(draft, draft.state.require_layout(), part, None, values)
    except BaseException:
        draft.abort()
        raise
    # If another task has failed, the write was given up, and nobody will remove the files of this task.
    if point.files.is_ended:
        draft.abort()
        remove_journal(point)
        raise ConflictError(f"{draft.url}: expected a write under way, found that it has failed")
    return make_portable(change_of(draft))


def merge_changes(draft: Draft, changes: Sequence[ChangeSet], *, again: bool = False) -> None:
    """Add the changes of forks to the draft of their transaction, after encoding its open chunks.

    With `again`, a scheduler may run this task more than once. Then the transaction never removes the files of the
    forks, because another run of the task may have committed them. Otherwise, the draft takes over these files even if
    the merge fails. Raises the errors of `join_changes` and `prepare_merge`.
    """
    if not changes:
        return
    change = join_changes(changes, draft.url)
    if again:
        change = replace(change, files=NO_FILES)
    # Take over the files first: if a conflict ends the merge, the draft removes them.
    draft.staging.take_over_files(change.files)
    change, rows = prepare_merge(draft, change)
    take_over(draft, change, rows)


def accept_forks(point: ForkPoint, draft: Draft) -> None:
    """Make a new draft, which has put no chunks, accept the forks of another transaction, which began at `point`.

    This replaces the draft's register of forks and its epoch, and counts the age of its chunks from the fork.
    """
    draft.forks = Forks(point.transaction, point.first, point.directory)
    draft.delta.epoch = point.epoch
    draft.staging.backdate(time.time() - point.since)
    if point.base is not None:
        draft.forks.bases[point.base.generation] = point.base


def note_forks(point: ForkPoint, draft: Draft) -> None:
    """Write into the annotations of a draft that its commit contains these forks, so that `was_committed` finds it."""
    draft.annotate(forks_of=recent.with_commit(draft.state.annotations.forks_of, point.transaction))


def was_committed(state: State, point: ForkPoint) -> bool:
    """Return whether the forks of this point were committed: in this state, or in one of the last states before it."""
    return recent.has_commit(state.annotations.forks_of, point.transaction)


def _resume(point: ForkPoint) -> Draft:
    """Begin a draft that continues the forked transaction, and accepts its forks.

    If a step of the group's commit is pending for the frame, this takes the step first.
    """
    if point.base is not None:
        draft = Handle(point.base, "r+").new_draft()
    else:
        new = point.change.new
        draft = Draft(
            point.store,
            None,
            apply_change(point.change, point.state),
            overwrite=new is not None and new.overwrite,
            replaces=None if new is None else new.replaces,
        )
    accept_forks(point, draft)
    return draft


def commit_changes(point: ForkPoint, changes: Sequence[ChangeSet], *, again: bool = False) -> Revision:
    """Commit the changes of forks, unless an earlier call has committed them, and return the state with the changes.

    This then removes the journal. After an error, it removes the files of the forks as well, unless a commit may need
    them. With `again`, dask may run this task more than once, even concurrently. Then a failed task removes no files.

    Raises
    ------
    ValueError
        The array is in the memory of another process.
    ConflictError
        Another writer changed the same chunks, or the shape.
    FileExistsError
        Another writer has made an array in the place of the new one.
    """
    is_elsewhere = point.process != os.getpid()
    if is_elsewhere and point.store.in_process and point.base is not None:
        raise ValueError(f"{point.store.url}: an array in the memory of one process cannot be changed by another one")
    if (done := _find_commit(point)) is not None:
        return done
    draft = _resume(point)
    try:
        merge_changes(draft, changes, again=again)
        note_forks(point, draft)
        revision = commit(draft)
    except BaseException as error:
        draft.abort()
        is_refused = isinstance(error, ConflictError | FileExistsError | FileNotFoundError)
        # Another run of the same task may have been faster.
        if is_refused and (done := _find_commit(point)) is not None:
            return done
        if not again and not draft.staging.files.is_needed:
            abandon_write(point)
        raise
    remove_journal(point)
    return revision


def _find_commit(point: ForkPoint) -> Revision | None:
    """Load the present state, and return it if these forks were committed, maybe with later commits on top.

    Otherwise return None. The answer to an earlier commit may have been lost.
    """
    base = point.base
    try:
        # The store of a member may be the store of one revision, which shows no later commit: ask the owner.
        current = load(point.store) if base is None else base.owner.load(base, even_new=True)
    except (FileNotFoundError, FormatError) as error:
        # A user who may not list gets this answer for a new array that does not exist yet.
        if isinstance(error, HiddenError) and base is not None:
            raise
        # Without a readable frame, no commit has succeeded.
        return None
    return current if was_committed(current.state, point) else None
