"""`Follower`: a handle that always shows the last commit."""

from __future__ import annotations

from b2array.engine.handle import Handle
from b2array.engine.source import Source

__all__ = ["Follower"]


class Follower(Handle):
    """A handle that looks at the store each time it is used, except inside a transaction."""

    __slots__ = ()

    @property
    def source(self) -> Source:
        """What chunks are read from: the transaction under way, or what is committed now."""
        if self._transaction is not None:
            return self._transaction
        self.refresh()
        return self._snapshot

    @source.setter
    def source(self, _: Source) -> None:
        """Ignore the new value: the next use finds the same state, or a newer one."""

    @property
    def described(self) -> Source:
        """The same."""
        return self.source

    @described.setter
    def described(self, _: Source) -> None:
        """Ignore it, too."""
