"""Cursors: a handle shows one state (`Pinned`), the newest state (`Following`) or a summary (`Promised`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Self, TypeAlias

from b2array.errors import ConflictError
from b2array.format.summary import Summary
from b2array.frame.snapshot import Snapshot, load, reload
from b2array.frame.source import Source
from b2array.store.base import Store

__all__ = ["Cursor", "Ended", "Following", "Pinned", "Promised"]


@dataclass(frozen=True, slots=True, eq=False)
class Pinned:
    """Shows one committed state, until the handle commits or refreshes."""

    snapshot: Snapshot

    def at(self, snapshot: Snapshot) -> Pinned:
        """Return the cursor that shows another state."""
        return Pinned(snapshot)

    def look(self) -> Self:
        """Return the cursor to read from: this one."""
        return self

    def newest(self) -> Pinned:
        """Load the newest committed state, and return a cursor to it."""
        return Pinned(reload(self.snapshot, even_new=True))


@dataclass(frozen=True, slots=True, eq=False)
class Following:
    """Shows the newest committed state at each use; `snapshot` is the state that the last use has seen."""

    snapshot: Snapshot

    def at(self, snapshot: Snapshot) -> Following:
        """Return the cursor that has seen another state."""
        return Following(snapshot)

    def look(self) -> Following:
        """Load the newest committed state, and return a cursor to it."""
        return self.newest()

    def newest(self) -> Following:
        """Load the newest committed state, and return a cursor to it."""
        return Following(reload(self.snapshot, even_new=True))


@dataclass(frozen=True, slots=True, eq=False)
class Promised:
    """Shows the description of a group's member until a caller needs more: then `load` reads the member.

    ConflictError: the member differs from its description.
    """

    store: Store
    description: Summary
    load: Callable[[], Snapshot]

    def at(self, snapshot: Snapshot) -> Pinned:
        """Return the cursor that shows a state."""
        return Pinned(snapshot)

    def look(self) -> Pinned:
        """Read the described member, and return a cursor to its state."""
        return Pinned(self.load())

    def newest(self) -> Pinned:
        """Load the newest committed state, whether the description fits or not, and return a cursor to it."""
        try:
            return self.look().newest()
        except ConflictError:
            return Pinned(load(self.store))


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """Shows nothing any more: each use raises `error`. A `description` of the frame may remain."""

    error: Exception
    description: Source | None = None

    @property
    def snapshot(self) -> NoReturn:
        """Raise the error."""
        self.look()

    def at(self, _: Snapshot) -> NoReturn:
        """Raise the error."""
        self.look()

    def look(self) -> NoReturn:
        """Raise the error."""
        raise type(self.error)(*self.error.args)  # a new object: one object would collect the traceback of each use

    def newest(self) -> NoReturn:
        """Raise the error."""
        self.look()


Cursor: TypeAlias = Pinned | Following | Promised | Ended
