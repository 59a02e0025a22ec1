"""Forks: handles for workers, whose writes become part of one commit.

`fork` makes a handle that can be pickled, and reads and writes like the array. It shows the array as the transaction
had it by then, and its own writes. `merge` takes these into the transaction. Until then they are where no index refers
to them, and where the process of the transaction can reach them:

* in a sparse frame, in files of their own. Nobody writes to a file that is there, not even to one with equal bytes;
* beside a contiguous local file, in a directory with one file for each pickle that comes back;
* elsewhere in the pickle itself: for arrays in memory, and for contiguous frames in object stores.

A journal beside the chunks tells `vacuum` that somebody still needs them. The process of the transaction keeps it
young. Only what this process has made, or what came back to it, is removed if the transaction fails: `vacuum` removes
the rest.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy.typing as npt

from b2array.commit.changes import NO_FILES, ChangeSet, applied, merged
from b2array.commit.draft import Draft, ForkOf, withdraw
from b2array.commit.handle import Handle
from b2array.commit.one import commit
from b2array.commit.pending import Journal, beside
from b2array.commit.staging import Made, Staging
from b2array.commit.write import write
from b2array.errors import B2ArrayError, ConflictError, FormatError
from b2array.format.header import FrameType
from b2array.format.state import State
from b2array.frame.fetch import chunk_number
from b2array.frame.snapshot import Snapshot, load
from b2array.frame.source import FRAME_NAME, Source
from b2array.grid.layout import Layout
from b2array.store.base import Store
from b2array.store.endings import JOURNAL, TEMPORARY
from b2array.store.local import LocalStore
from b2array.store.spool import Spool

__all__ = ["Fork", "Origin", "finish", "fork", "merge", "merge_changes", "origin_of", "write_part"]

_YOUNG_SECONDS = 600.0
"""How often the process of a transaction makes the journal young again."""
_IN_MEMORY = 2**20

_under_way: WeakValueDictionary[bytes, Made] = WeakValueDictionary()
"""What the transactions of this process have made, by the identities under which they were forked."""

Part = tuple[slice, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """A transaction as its forks see it; it can be pickled.

    `change` is everything that the transaction had changed. Its forks put chunks into files from `first` on, or into
    the directory `place`. In the process of the transaction, `made` are its files, and `makes_directory` says whether
    the directory of a new frame goes with them.
    """

    store: Store
    base: Snapshot | None
    id: bytes
    epoch: int
    change: ChangeSet
    first: int = 0
    place: str = ""
    process: int = field(default_factory=os.getpid)
    since: float = field(default_factory=time.time)
    made: Made = field(default_factory=Made)
    makes_directory: bool = False

    @property
    def state(self) -> State:
        """The state that the transaction changes, or the first one of a new frame."""
        if self.base is not None:
            return self.base.state
        if self.change.new is None:
            raise ValueError("expected a fork of an array, found one of nothing")
        return self.change.new.state

    def draft(self, name: bytes, region: Part | None = None) -> Draft:
        """Return a draft of a fork with this name. Forks for parts of a `region` take few numbers of files."""
        fork_of = ForkOf(self.id, name, self.epoch, self.change)
        draft = Draft.of_fork(self.store, self.base, fork_of, self._staging(region))
        draft.shared = self.first, self.place
        return draft

    def _staging(self, region: Part | None) -> Staging:
        if self.uses_files:
            slots, nslots = (None, 0) if region is None else _slots(self._layout, region)
            return Staging(self.store, None, self.first, transaction=self.made, slots=slots, nslots=nslots)
        path = str(Path(self.place, os.urandom(8).hex() + TEMPORARY)) if self.place else None
        return Staging(self.store, Spool(path, limit=_IN_MEMORY if path else math.inf), 0, transaction=self.made)

    @property
    def _layout(self) -> Layout:
        return applied(self.change, self.state).require_layout()

    @property
    def uses_files(self) -> bool:
        """Whether each chunk of a fork gets a file of its own."""
        return self.state.frame.frame_type == FrameType.SPARSE and not self.store.in_process

    def transaction(self) -> Draft:
        """Return a draft that takes the place of the transaction, which had put no chunks of its own."""
        if self.base is not None:
            draft = Handle(self.base, "r+").new_draft()
        else:
            new = self.change.new
            overwrite, replaces = (False, None) if new is None else (new.overwrite, new.replaces)
            first = applied(self.change, self.state)
            draft = Draft(self.store, None, first, overwrite=overwrite, replaces=replaces)
        self.lead_to(draft)
        return draft

    def lead_to(self, draft: Draft) -> None:
        """Let a draft take the changes of these forks."""
        draft.fork_id, draft.epoch = self.id, self.epoch
        draft.shared = self.first, self.place
        draft.staging.began_before(time.time() - self.since)
        if self.base is not None:
            draft.bases[self.base.generation] = self.base

    @property
    def journal_store(self) -> Store | None:
        """Where the journal is; None if pickles take all chunks along."""
        if self.uses_files:
            return self.store
        return LocalStore(self.place, within=Path(self.store.url).parent) if self.place else None

    @property
    def journal_name(self) -> str:
        """The name of the journal."""
        return f"{self.id[:8].hex()}{JOURNAL}"

    def discard(self) -> None:
        """Remove what this process has made in forks and no commit refers to, as far as possible."""
        self.made.end()
        withdraw(self.store, self.made)
        self.tidy()

    def tidy(self) -> None:
        """Remove the journal, and the directory beside a file, as far as possible."""
        store = self.journal_store
        with suppress(OSError, B2ArrayError):
            if store is not None and self.place:
                store.delete([*store.listing(), ""])
            elif store is not None and not self._needs_journal(store):
                store.delete([self.journal_name])
                if self.makes_directory:
                    store.drop_directory()

    def _needs_journal(self, store: Store) -> bool:
        """Whether only the journal tells that chunks belong to a new array that was never committed."""
        if self.base is not None:
            return False
        names = store.listing()
        return FRAME_NAME not in names and any(chunk_number(name) is not None for name in names)

    def __reduce__(self) -> tuple[Any, ...]:
        base = None if self.base is None else Handle(self.base, "r")
        change = portable(self.change)
        return _origin, (
            self.store,
            base,
            self.id,
            self.epoch,
            change,
            self.first,
            self.place,
            self.process,
            self.since,
        )


def _origin(
    store: Store, base: Handle | None, id: bytes, epoch: int, change: ChangeSet, first: int, place: str, process: int,
    since: float,
) -> Origin:  # fmt: skip
    made = _under_way.get(id) or Made()
    if base is None:
        return Origin(store, None, id, epoch, change, first, place, process, since, made)
    return Origin(base.store, base.snapshot, id, epoch, change, first, place, process, since, made)


def _slots(layout: Layout, region: Part) -> tuple[Callable[[int], int], int]:
    """Return a function that numbers the chunks that a region touches from 0 on, and how many they are."""
    starts = [part.start // size for part, size in zip(region, layout.chunks, strict=True)]
    stops = [-(-part.stop // size) for part, size in zip(region, layout.chunks, strict=True)]
    lengths = [max(0, stop - start) for start, stop in zip(starts, stops, strict=True)]

    def slot(n: int) -> int:
        found = 0
        for stride, count, start, length in zip(layout.grid_strides, layout.grid_shape, starts, lengths, strict=True):
            found = found * length + n // stride % count - start
        return found

    return slot, math.prod(lengths)


def portable(change: ChangeSet) -> ChangeSet:
    """Return a change that can be pickled."""
    return replace(change, segments=tuple(segment.portable() for segment in change.segments))


def origin_of(draft: Draft, *, lasts: bool = False) -> Origin:
    """Return a transaction as its forks are to see it, and prepare it for them.

    With `lasts`, the chunks of forks stay when this draft ends, because `finish` will commit them, perhaps elsewhere.
    """
    draft.staging.require_open()
    draft.flush()
    if draft.aside:
        raise FileExistsError(f"{draft.url} has the other layout, which tasks cannot replace; remove it first")
    is_first = not draft.fork_id
    if is_first:
        draft.fork_id = os.urandom(16)
        if draft.fork is None:  # otherwise its transaction has done it
            draft.shared = _shared_place(draft)
        _under_way[draft.fork_id] = draft.staging.made
    if draft.base is not None:
        draft.bases[draft.base.generation] = draft.base
    first, place = draft.shared
    origin = Origin(
        draft.store,
        draft.base,
        draft.fork_id,
        draft.epoch,
        draft.freeze_whole(),
        first,
        place,
        made=draft.staging.made,
        makes_directory=draft.makes_directory,
    )
    if is_first and draft.fork is None:
        with draft.told_if_replaced():
            _write_journal(origin)
        if not lasts:
            draft.at_end.callback(origin.tidy)
            draft.at_end.callback(_kept_young(origin))
    return origin


def _shared_place(draft: Draft) -> tuple[int, str]:
    """Find a place for the chunks of forks: the number of the first file, or a directory."""
    if draft.store.in_process:
        return 0, ""
    if draft.sparse:
        return draft.staging.next, ""
    return 0, beside(draft.store.url, draft.fork_id[:8].hex()) if isinstance(draft.store, LocalStore) else ""


def _write_journal(origin: Origin) -> None:
    store = origin.journal_store
    if store is not None:
        generation = "" if origin.base is None else origin.base.generation
        # The chunks that the transaction put into files before it was forked belong to the write as well.
        codes = origin.change.codes
        first = min([origin.first, *codes[codes >= 0].tolist()])
        store.replace(origin.journal_name, Journal(first, origin.id, generation).pack())


def _kept_young(origin: Origin) -> Callable[[], object]:
    """Write the journal again and again, until the returned function is called."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(_YOUNG_SECONDS):
            with suppress(OSError, B2ArrayError):
                _write_journal(origin)

    thread = threading.Thread(target=keep, name="b2array-journal", daemon=True)
    if origin.journal_store is not None:
        thread.start()

    def end() -> None:
        ended.set()
        if thread.ident is not None:
            thread.join()  # otherwise it might write the journal again after its removal

    return end


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

    def attempts(self, *, anywhere: bool = False) -> Iterator[AbstractContextManager[Draft]]:
        """Yield attempts at a change of the draft; ValueError if the fork was merged."""
        _ = self.source
        return super().attempts(anywhere=anywhere)

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


# Without handles: the change of each task, and one commit of all of them.


def write_part(origin: Origin, part: Part, values: npt.NDArray[Any], region: Part | None = None) -> ChangeSet:
    """Write values to a box of the array in a fork, and return the change.

    All tasks together write to the `region`; None if that is not known.
    """
    draft = origin.draft(os.urandom(16), region)
    try:
        if values.size:
            write(draft, draft.state.require_layout(), part, None, values)
    except BaseException:
        draft.abort()
        raise
    if origin.made.ended:  # another task has failed, and this one ran on
        draft.abort()
        origin.tidy()
        raise ConflictError(f"{draft.url}: expected a write under way, found that it has failed")
    return portable(draft.freeze())


def merge_changes(draft: Draft, changes: Sequence[ChangeSet], *, again: bool = False) -> None:
    """Take the changes of forks into a transaction.

    If a scheduler may do so `again`, the transaction never removes their files: the other one may have committed them.
    """
    if not changes:
        return
    change = merged(changes, draft.url)
    if again:
        change = replace(change, made=NO_FILES)
    draft.staging.adopt(change.made)
    draft.merge(change, draft.bases.get(change.base))


def finish(origin: Origin, changes: Sequence[ChangeSet], *, again: bool = False) -> Snapshot:
    """Commit the changes of forks, and return the new state. If they were committed before, only return it.

    A task of dask may be run `again`, at the same time or after its commit. So it removes nothing if it fails.

    Raises
    ------
    ConflictError
        Another writer changed the same chunks, or the shape.
    FileExistsError
        Another writer made an array where the new one goes.
    """
    if origin.store.in_process and origin.base is not None and origin.process != os.getpid():
        raise ValueError(f"{origin.store.url}: an array in the memory of one process cannot be changed by another one")
    if (done := _finished(origin)) is not None:
        return done
    draft = origin.transaction()
    try:
        merge_changes(draft, changes, again=again)
        draft.annotate(forks_of=origin.id)
        snapshot = commit(draft)
    except BaseException as error:
        draft.abort()
        is_refused = isinstance(error, ConflictError | FileExistsError | FileNotFoundError)
        if is_refused and (done := _finished(origin)) is not None:  # another process was faster to commit the same
            return done
        if not again and not draft.is_unknown:
            origin.discard()
        raise
    origin.tidy()
    return snapshot


def _finished(origin: Origin) -> Snapshot | None:
    """Return the state that these forks have led to if it was committed, although an answer was lost; else None."""
    try:
        current = load(origin.store)
    except (FileNotFoundError, FormatError):
        return None
    return current if current.state.annotations.forks_of == origin.id else None
