"""`ForkPoint`: a transaction as its forks see it. `Forks`: what a draft knows of the forks that were made of it."""

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
from b2array.format.header import FrameType
from b2array.format.state import State
from b2array.frame.snapshot import Snapshot
from b2array.store.base import Store
from b2array.store.endings import JOURNAL
from b2array.store.local import LocalStore

__all__ = ["UNDER_WAY", "ForkPoint", "Forks", "Roster", "make_portable"]

UNDER_WAY: WeakValueDictionary[bytes, CreatedFiles] = WeakValueDictionary()
"""What the transactions of this process have made, by the identities under which they were forked."""


@dataclass(frozen=True, slots=True, eq=False)
class ForkPoint:
    """A transaction as its forks see it; it can be pickled.

    Parameters
    ----------
    store : Store
        Where the frame is.
    base : Snapshot or None
        The state that the transaction changes; None for a new frame.
    transaction : bytes
        The identity of the transaction.
    number : int
        Tells this point from earlier and later ones of the transaction.
    epoch : int
        How often the transaction had changed the order of the chunks.
    change : ChangeSet
        Everything that the transaction had changed.
    fork : bytes
        Names the fork, in the point that a fork has; "" otherwise.
    first, place : int, str
        Forks put chunks into files from this number on, or into this directory.
    process, since : int, float
        The process of the transaction, and the time.
    files : Made
        In the process of the transaction, what the transaction and its forks have made.
    makes_directory : bool
        In the process of the transaction: whether the directory of a new frame goes with the files.
    """

    store: Store
    base: Snapshot | None
    transaction: bytes
    number: int
    epoch: int
    change: ChangeSet
    fork: bytes = b""
    first: int = 0
    place: str = ""
    process: int = field(default_factory=os.getpid)
    since: float = field(default_factory=time.time)
    files: CreatedFiles = field(default_factory=CreatedFiles)
    makes_directory: bool = False

    @property
    def state(self) -> State:
        """The state that the transaction changes, or the first one of a new frame."""
        if self.base is not None:
            return self.base.state
        if self.change.new is None:
            raise ValueError("expected a fork of an array, found one of nothing")
        return self.change.new.state

    @property
    def uses_files(self) -> bool:
        """Whether each chunk of a fork gets a file of its own."""
        return self.state.frame.frame_type == FrameType.SPARSE and not self.store.in_process

    def codes(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the codes that chunks had in the transaction."""
        change = self.change
        if change.order is not None:
            return apply_change(change, self.state).frame.offsets[numbers]
        codes = self.state.frame.offsets[numbers]
        _, rows, changed = np.intersect1d(numbers, change.numbers, assume_unique=True, return_indices=True)
        codes[rows] = change.codes[changed]
        return codes

    def attr(self, name: str) -> bytes | None:
        """Return the value that an attribute had in the transaction; None if it had none."""
        attrs = self.change.attrs
        return attrs[name] if name in attrs else self.state.attr(name)

    @property
    def journal_store(self) -> Store | None:
        """Where the journal is; None if pickles take all chunks along."""
        if self.uses_files:
            return self.store
        return LocalStore(self.place, within=Path(self.store.url).parent) if self.place else None

    @property
    def journal_name(self) -> str:
        """The name of the journal."""
        return f"{self.transaction[:8].hex()}{JOURNAL}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _point, (
            self.store,
            self.base,
            self.transaction,
            self.number,
            self.epoch,
            make_portable(self.change),
            self.fork,
            self.first,
            self.place,
            self.process,
            self.since,
        )


def _point(store: Store, base: Snapshot | None, transaction: bytes, *rest: Any) -> ForkPoint:
    # Base and forks share one store, and its open files.
    point = ForkPoint(store if base is None else base.store, base, transaction, *rest)
    return replace(point, files=UNDER_WAY.get(transaction) or point.files)


def make_portable(change: ChangeSet) -> ChangeSet:
    """Return a change that can be pickled."""
    return replace(change, segments=tuple(segment.portable() for segment in change.segments))


@dataclass(slots=True)
class Roster:
    """The names of the forks that were made here, and of those whose changes are here."""

    created: set[bytes] = field(default_factory=set)
    merged: set[bytes] = field(default_factory=set)

    def warn_of_forgotten(self, url: str) -> None:
        """Warn of forks that were never merged."""
        forgotten = len(self.created - self.merged)
        if forgotten:
            warn(f"{url}: {forgotten} of {len(self.created)} forks were never merged; the commit has no change of them")


@dataclass(slots=True)
class Forks:
    """What was forked from a draft, and what came back.

    Parameters
    ----------
    transaction : bytes
        The identity that forks know the draft by.
    first, place : int, str
        Where forks put chunks, as `ForkPoint` has it.
    last : ForkPoint, optional
        The latest point.
    bases : dict of str to Snapshot
        The states that forks were made on, by generation.
    roster : Roster
        Which forks were made and taken. A fork takes its siblings.
    at_end : ExitStack
        Calls for the end of the draft.
    """

    transaction: bytes
    first: int
    place: str
    last: ForkPoint | None = None
    bases: dict[str, Snapshot] = field(default_factory=dict)
    roster: Roster = field(default_factory=Roster)
    at_end: ExitStack = field(default_factory=ExitStack)
