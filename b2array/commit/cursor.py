"""Cursors: a handle shows one state (`Pinned`), the newest state (`Following`) or a summary (`Promised`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Self, TypeAlias

from b2array.catalog.owners import load
from b2array.errors import ConflictError
from b2array.format.summary import Summary
from b2array.frame.revision import Revision
from b2array.frame.source import Source
from b2array.store.base import Store

__all__ = ["Cursor", "Ended", "Following", "Pinned", "Promised"]


@dataclass(frozen=True, slots=True, eq=False)
class Pinned:
    """Shows one committed state, until the handle commits or refreshes."""

    revision: Revision

    def at(self, revision: Revision) -> Pinned:
        """Return a cursor that shows another state."""
        return Pinned(revision)

    def look(self) -> Self:
        """Return the cursor to read from: this one, without reading the store."""
        return self

    def newest(self) -> Pinned:
        """Load the newest committed state, even of another frame in this place, and return a cursor to it."""
        return Pinned(self.revision.owner.load(self.revision, even_new=True))


@dataclass(frozen=True, slots=True, eq=False)
class Following:
    """Shows the newest committed state at each use; `revision` is the state that the last use has seen."""

    revision: Revision

    def at(self, revision: Revision) -> Following:
        """Return a cursor that has seen another state."""
        return Following(revision)

    def look(self) -> Following:
        """Load the newest committed state, and return a cursor to it."""
        return self.newest()

    def newest(self) -> Following:
        """Load the newest committed state, even of another frame in this place, and return a cursor to it."""
        return Following(self.revision.owner.load(self.revision, even_new=True))


@dataclass(frozen=True, slots=True, eq=False)
class Promised:
    """Shows the description of a group's member until a caller needs more: then `load` reads the member.

    ConflictError: the member differs from its description.
    """

    store: Store
    description: Summary
    load: Callable[[], Revision]

    def at(self, revision: Revision) -> Pinned:
        """Return a cursor that shows a state."""
        return Pinned(revision)

    def look(self) -> Pinned:
        """Read the described member, and return a cursor to its state. ConflictError: it differs from its summary."""
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
    def revision(self) -> NoReturn:
        """Raise the error."""
        self.look()

    def at(self, _: Revision) -> NoReturn:
        """Raise the error."""
        self.look()

    def look(self) -> NoReturn:
        """Raise the error."""
        raise type(self.error)(*self.error.args)  # a new object: one object would collect the traceback of each use

    def newest(self) -> NoReturn:
        """Raise the error."""
        self.look()


Cursor: TypeAlias = Pinned | Following | Promised | Ended
