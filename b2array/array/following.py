"""`Follower`: a handle that always shows the last commit."""

from __future__ import annotations

from b2array.engine.handle import Handle
from b2array.engine.source import Source

__all__ = ["Follower"]


class Follower(Handle):
    """A handle that looks at the store whenever it is asked for something, but not inside a transaction."""

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
        """Ignore what the handle was about to show: the next question finds the same, or something newer."""

    @property
    def described(self) -> Source:
        """The same."""
        return self.source

    @described.setter
    def described(self, _: Source) -> None:
        """Ignore it, too."""
