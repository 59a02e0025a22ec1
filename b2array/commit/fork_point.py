"""`ForkPoint`: the state of a transaction from which forks start. `Forks`: a draft's register of its forks."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from b2array.commit.changes import ChangeSet, apply_change
from b2array.commit.staging import CreatedFiles
from b2array.errors import warn
from b2array.format.frame_header import FrameType
from b2array.format.state import State
from b2array.frame.revision import Revision
from b2array.store.base import Store
from b2array.store.endings import JOURNAL
from b2array.store.local_store import LocalStore

__all__ = ["UNDER_WAY", "ForkPoint", "Forks", "Roster", "make_portable"]

UNDER_WAY: WeakValueDictionary[bytes, CreatedFiles] = WeakValueDictionary()
"""The files that transactions of this process have created, by the identities under which they were forked."""


@dataclass(frozen=True, slots=True, eq=False)
class ForkPoint:
    """The changes of a transaction from which forks start; it can be pickled.

    Parameters
    ----------
    store : Store
        Where the frame is.
    base : Revision or None
        The state that the transaction changes; None for a new frame.
    transaction : bytes
        The identity of the transaction.
    number : int
        The number of the point; points with the same changes have the same number.
    epoch : int
        How often the transaction has changed the order of the chunks.
    change : ChangeSet
        All changes of the transaction up to this point.
    fork : bytes
        The identity of the fork that this copy of the point belongs to; empty outside of forks.
    first, directory : int, str
        The number of the first file for chunks of forks, and the directory for them, if they are in one.
    process, since : int, float
        The identifier of the transaction's process, and the time of the fork.
    files : CreatedFiles
        In the process of the transaction, the files that the transaction and its forks have created.
    makes_directory : bool
        In the process of the transaction, whether to remove the directory of a new frame with the files.
    """

    store: Store
    base: Revision | None
    transaction: bytes
    number: int
    epoch: int
    change: ChangeSet
    fork: bytes = b""
    first: int = 0
    directory: str = ""
    process: int = field(default_factory=os.getpid)
    since: float = field(default_factory=time.time)
    files: CreatedFiles = field(default_factory=CreatedFiles)
    makes_directory: bool = False

    @property
    def state(self) -> State:
        """The state that the transaction changes, or the first state of a new frame; ValueError if there is neither."""
        if self.base is not None:
            return self.base.state
        if self.change.new is None:
            raise ValueError("expected a fork of an array or of a new frame, found neither")
        return self.change.new.state

    @property
    def uses_files(self) -> bool:
        """Whether each chunk of a fork gets a separate file."""
        return self.state.frame.frame_type == FrameType.SPARSE and not self.store.in_process

    def codes_of(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the codes (see `ChangeSet`) that chunks had in the transaction at this point.

        `numbers` has no repeated numbers.
        """
        change = self.change
        # After a change of the order, a position in the base stands for another chunk.
        if change.order is not None:
            return apply_change(change, self.state).frame.offsets[numbers]
        # Without a new order, a few look-ups replace the copy of a long index.
        codes = self.state.frame.offsets[numbers]
        _, rows, changed = np.intersect1d(numbers, change.numbers, assume_unique=True, return_indices=True)
        codes[rows] = change.codes[changed]
        return codes

    def attr(self, name: str) -> bytes | None:
        """Return the packed value that an attribute had in the transaction at this point; None if it had none."""
        attrs = self.change.attrs
        return attrs[name] if name in attrs else self.state.attr(name)

    @property
    def journal_store(self) -> Store | None:
        """The store with the journal; None without a journal, because the pickles of forks contain all chunks."""
        if self.uses_files:
            return self.store
        if not self.directory:
            return None
        store = LocalStore(self.directory, within=Path(self.store.url).parent)
        store.root = self.store.root
        return store

    @property
    def journal_name(self) -> str:
        """The name of the journal."""
        return f"{self.transaction[:8].hex()}{JOURNAL}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the point, with the bytes of chunks that are only in memory."""
        # Leave out `files` and `makes_directory`: only the process of the transaction removes files.
        return _restore_point, (
            self.store,
            self.base,
            self.transaction,
            self.number,
            self.epoch,
            make_portable(self.change),
            self.fork,
            self.first,
            self.directory,
            self.process,
            self.since,
        )


def _restore_point(store: Store, base: Revision | None, transaction: bytes, *rest: Any) -> ForkPoint:
    """Restore a pickled fork point; in the process of its transaction, with the list of the transaction's files.

    `rest` are the further arguments of `ForkPoint`.
    """
    # The store of the base may have open files, so share this store.
    point = ForkPoint(store if base is None else base.store, base, transaction, *rest)
    files = UNDER_WAY.get(transaction)
    return point if files is None else replace(point, files=files)


def make_portable(change: ChangeSet) -> ChangeSet:
    """Return a change that can be pickled: its segments contain their bytes, or name a file."""
    segments = tuple(segment.portable() for segment in change.segments)
    return replace(change, segments=segments)


@dataclass(slots=True)
class Roster:
    """The identities of the forks of a draft, and of all forks whose changes were merged into it."""

    created: set[bytes] = field(default_factory=set)
    merged: set[bytes] = field(default_factory=set)

    def warn_of_forgotten(self, url: str) -> None:
        """Warn the user of forks that were never merged; `url` is the frame."""
        forgotten = len(self.created - self.merged)
        if forgotten:
            count = len(self.created)
            warn(f"{url}: {forgotten} of {count} forks were never merged; the commit does not contain their changes")


@dataclass(slots=True)
class Forks:
    """A draft's register of its forks.

    Parameters
    ----------
    transaction : bytes
        The identity of the draft, as its forks know it.
    first, directory : int, str
        The place for the chunks of forks: the `first` and `directory` of each `ForkPoint`.
    last : ForkPoint, optional
        The latest point.
    bases : dict of str to Revision
        The states that forks started from, by generation.
    roster : Roster
        The names of the forks that were created, and of the forks that were merged.
    at_end : ExitStack
        Functions to call when the draft ends.
    """

    transaction: bytes
    first: int
    directory: str
    last: ForkPoint | None = None
    bases: dict[str, Revision] = field(default_factory=dict)
    roster: Roster = field(default_factory=Roster)
    at_end: ExitStack = field(default_factory=ExitStack)
