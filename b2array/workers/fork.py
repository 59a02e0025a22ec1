"""Forks: handles for workers, whose writes become part of one commit.

`fork` makes a handle that can be pickled, and reads and writes like the array. It shows the array as the transaction
had it by then, and its own writes. `merge` takes these into the transaction. Until then they are where no index refers
to them, and where the process of the transaction can reach them:

* in a sparse frame, in files of their own. Chunk n gets the number ``first + n``, or that and some strides. A small
  commit has reserved the numbers, so no other writer uses them;
* beside a contiguous local file, in a directory with one file for each pickle that comes back;
* elsewhere in the pickle itself: for arrays in memory, and for contiguous frames in object stores.

A journal beside the chunks tells `vacuum` that somebody still needs them. The process of the transaction keeps it
young.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from b2array.engine.changes import ChangeSet, merged
from b2array.engine.commit import commit
from b2array.engine.draft import Draft, ForkOf
from b2array.engine.handle import Handle
from b2array.engine.snapshot import Snapshot, reload
from b2array.engine.source import Source
from b2array.engine.staging import Staging
from b2array.errors import B2ArrayError, ConflictError
from b2array.format.header import FrameType
from b2array.store.base import Store, attempts, too_many_conflicts
from b2array.store.endings import JOURNAL, TEMPORARY
from b2array.store.local import LocalStore
from b2array.store.spool import Spool
from b2array.workers.pending import Journal, beside

__all__ = ["Fork", "Origin", "fork", "merge", "origin_of"]

T = TypeVar("T")

_YOUNG_SECONDS = 600.0
"""How often the process of a transaction makes the journal young again."""
_IN_MEMORY = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """A transaction as its forks see it; it can be pickled.

    `change` is everything that the transaction had changed. Its forks put chunks into files from `first` on, or into
    the directory `place`.
    """

    store: Store
    base: Snapshot | None
    id: bytes
    epoch: int
    change: ChangeSet
    first: int = 0
    place: str = ""

    def draft(self, name: bytes) -> Draft:
        """Return a draft of a fork with this name."""
        change = self.change
        if self.base is not None:
            state = self.base.state
        elif change.new is not None:
            state = change.new.state
        else:
            raise ValueError("expected a fork of an array, found one of nothing")
        count = state.frame.nchunks if change.order is None else change.order.size
        is_sparse = state.frame.frame_type == FrameType.SPARSE
        draft = Draft.of_fork(
            self.store, self.base, ForkOf(self.id, name, self.epoch, change), self._staging(is_sparse, max(1, count))
        )
        draft.shared = self.first, self.place
        return draft

    def _staging(self, is_sparse: bool, stride: int) -> Staging:
        if is_sparse and not self.store.in_process:
            return Staging(self.store, None, self.first, stride=stride)
        path = str(Path(self.place, os.urandom(8).hex() + TEMPORARY)) if self.place else None
        return Staging(self.store, Spool(path, limit=_IN_MEMORY if path else math.inf), 0, stride=stride)

    def __reduce__(self) -> tuple[Any, ...]:
        base = None if self.base is None else Handle(self.base, "r")
        return _origin, (self.store, base, self.id, self.epoch, portable(self.change), self.first, self.place)


def _origin(
    store: Store, base: Handle | None, id: bytes, epoch: int, change: ChangeSet, first: int, place: str
) -> Origin:  # fmt: skip
    if base is None:
        return Origin(store, None, id, epoch, change, first, place)
    return Origin(base.store, base.snapshot, id, epoch, change, first, place)


def portable(change: ChangeSet) -> ChangeSet:
    """Return a change that can be pickled."""
    return replace(change, segments=tuple(segment.portable() for segment in change.segments))


def origin_of(draft: Draft) -> Origin:
    """Return a transaction as its forks are to see it, and prepare it for them."""
    draft.staging.require_open()
    draft.flush()
    if draft.aside:
        raise FileExistsError(f"{draft.url} has the other layout, which tasks cannot replace; remove it first")
    if not draft.fork_id:
        draft.fork_id = os.urandom(16)
        if draft.fork is None:  # otherwise its transaction has done it
            _prepare(draft)
    if draft.base is not None:
        draft.bases[draft.base.generation] = draft.base
    first, place = draft.shared
    return Origin(draft.store, draft.base, draft.fork_id, draft.epoch, draft.freeze_whole(), first, place)


def _prepare(draft: Draft) -> None:
    """Find places for the chunks of forks, and write a journal there."""
    store = draft.store
    if store.in_process:
        return
    count = max(1, draft.frame.nchunks)
    name = draft.fork_id[:8].hex()
    if draft.sparse:
        draft.shared, draft.reserved = (_reserved(draft, count), ""), count
        place: Store = store
    elif isinstance(store, LocalStore):
        draft.shared = 0, beside(store.url, name)
        place = LocalStore(draft.shared[1], within=Path(store.url).parent)
    else:
        return
    generation = "" if draft.base is None else draft.base.generation
    # The chunks that the transaction put into files before it was forked belong to the write as well.
    codes = draft.freeze().codes
    first = min([draft.shared[0], *codes[codes >= 0].tolist()])
    journal = Journal(first, count, draft.fork_id, generation)
    draft.at_end.callback(_tidied, place, f"{name}{JOURNAL}", is_own=place is not store)
    draft.at_end.callback(_kept_young(place, f"{name}{JOURNAL}", journal.pack()))


def _reserved(draft: Draft, count: int) -> int:
    """Reserve numbers of files by a small commit, so that other writers take other numbers."""
    if draft.base is None:
        return draft.staging.reserve(count)
    for _ in attempts(draft.store):
        small = Draft(draft.store, draft.base, locked=draft.locked)
        first = small.reserve(count)
        try:
            # Only the number changes: what the transaction has changed is as true of the new state.
            draft.base = commit(small)
        except ConflictError:
            draft.rebase(reload(draft.base))
            continue
        draft.reserve_up_to(first + count - 1)
        return first
    raise too_many_conflicts(draft.store)


def _kept_young(place: Store, name: str, content: bytes) -> Callable[[], object]:
    """Write a journal again and again, until the returned function is called."""
    place.replace(name, content)
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(_YOUNG_SECONDS):
            with suppress(OSError, B2ArrayError):
                place.replace(name, content)

    thread = threading.Thread(target=keep, name="b2array-journal", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()  # otherwise it might write the journal again after its removal

    return end


def _tidied(place: Store, name: str, *, is_own: bool) -> None:
    """Remove the journal; and the directory, if it is there for the forks alone."""
    with suppress(OSError, B2ArrayError):
        if is_own:
            place.delete([*place.listing(), ""])
        else:
            place.delete([name])


class Fork(Handle):
    """The handle of a fork: always in a transaction, which another process may commit."""

    __slots__ = ("_is_merged", "_name", "_origin")

    def __init__(self, origin: Origin, name: bytes, change: ChangeSet | None = None) -> None:
        draft = origin.draft(name)
        if change is not None:
            draft.take(change, range(change.numbers.size))
        self._origin, self._name, self._is_merged = origin, name, False
        super().__init__(origin.base or Snapshot(origin.store, draft.state, 0, None, ""), "r+")
        self.enter(draft)

    @property
    def draft(self) -> Draft | None:
        """What was written through the fork; ValueError if the fork was merged."""
        if self._is_merged:
            raise ValueError("this fork was merged; use the transaction that has its changes now")
        return super().draft

    @property
    def generation(self) -> str:
        """Names the committed state that the fork builds on; ValueError if the fork was merged."""
        _ = self.draft
        return super().generation

    @property
    def source(self) -> Source:
        """What chunks are read from: the draft."""
        return self.draft or self.snapshot

    @source.setter
    def source(self, _: Source) -> None:
        """Ignore the new value: it is the draft."""

    @property
    def described(self) -> Source:
        """The same as `source`."""
        return self.source

    @described.setter
    def described(self, _: Source) -> None:
        """Ignore it, too."""

    def change(self, task: Callable[[Draft], T], *, anywhere: bool = False) -> T:
        """Call a task with the draft; ValueError if the fork was merged."""
        _ = self.draft
        return super().change(task, anywhere=anywhere)

    def frozen(self) -> ChangeSet:
        """Return what was written through the fork."""
        draft = self.source
        if not isinstance(draft, Draft):
            raise TypeError("expected the draft of a fork")
        draft.flush()
        return draft.freeze()

    def end(self) -> None:
        """Refuse any further use."""
        self._is_merged = True

    def __reduce__(self) -> tuple[Any, ...]:
        change = portable(self.frozen())
        return type(self), (self._origin, self._name, None if change.is_empty and not change.reads.size else change)


def fork(handle: Handle) -> Fork:
    """Make a fork of the transaction that is under way on a handle."""
    draft = handle.draft
    if draft is None:
        raise ValueError("fork() needs a transaction: with a.transaction() as changes: fork = changes.fork()")
    with handle.mutex.held:
        origin, name = origin_of(draft), os.urandom(16)
        draft.forks[name] = False
    return Fork(origin, name)


def merge(handle: Handle, forks: Sequence[Handle]) -> None:
    """Take what was written through forks into the transaction that is under way on a handle."""
    ours: list[Fork] = []
    for each in forks:
        if not isinstance(each, Fork):
            raise TypeError("merge() takes forks of this transaction")
        ours.append(each)
    draft = handle.draft
    if draft is None:
        raise ConflictError(f"{handle.url}: the transaction of these forks has ended")
    if not ours:
        return
    changes = [each.frozen() for each in ours]
    if any(change.of_fork is None or change.of_fork.origin != draft.fork_id for change in changes):
        raise ConflictError(f"{handle.url}: these forks are those of another transaction, or of one that has ended")
    with handle.mutex.held:
        change = merged(changes, handle.url)
        draft.merge(change, draft.bases.get(change.base))
        for each in ours:
            draft.forks[each._name] = True
            each.end()
