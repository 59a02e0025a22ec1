"""What a handle shows of its frame: one state (`Pinned`), the newest one (`Following`), or a summary (`Promised`)."""

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
        """Return what to read: the same state."""
        return self

    def newest(self) -> Pinned:
        """Return a cursor to the state that is committed now."""
        return Pinned(reload(self.snapshot, even_new=True))


@dataclass(frozen=True, slots=True, eq=False)
class Following:
    """Shows what is committed at each use; `snapshot` is the state that was seen last."""

    snapshot: Snapshot

    def at(self, snapshot: Snapshot) -> Following:
        """Return the cursor that has seen another state."""
        return Following(snapshot)

    def look(self) -> Following:
        """Return what to read: the state that is committed now."""
        return self.newest()

    def newest(self) -> Following:
        """Return a cursor to the state that is committed now."""
        return Following(reload(self.snapshot, even_new=True))


@dataclass(frozen=True, slots=True, eq=False)
class Promised:
    """Shows the description of a member of a group, until somebody needs more: then `load` reads the member.

    ConflictError: the member is not as described.
    """

    store: Store
    description: Summary
    load: Callable[[], Snapshot]

    def at(self, snapshot: Snapshot) -> Pinned:
        """Return the cursor that shows a state."""
        return Pinned(snapshot)

    def look(self) -> Pinned:
        """Return what to read: the member that was described."""
        return Pinned(self.load())

    def newest(self) -> Pinned:
        """Return a cursor to the state that is committed now, as described or not."""
        try:
            return self.look().newest()
        except ConflictError:
            return Pinned(load(self.store))


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """Shows nothing any more: each use raises the error that says why. A `description` of the frame may stay."""

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
        raise type(self.error)(*self.error.args)  # one object would collect the traceback of each use

    def newest(self) -> NoReturn:
        """Raise the error."""
        self.look()


Cursor: TypeAlias = Pinned | Following | Promised | Ended
