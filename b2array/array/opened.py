"""`Opened`: what arrays and super-chunks have in common. Both wrap a handle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Self

from b2array.codec.cparams import CParams
from b2array.engine.attributes import Attributes
from b2array.engine.handle import Handle, Mode
from b2array.errors import FormatError, UnsupportedError, located_error
from b2array.format.attributes import decode_attr

__all__ = ["Opened"]


class Opened:
    """The part of `b2array.NDArray` and `b2array.SChunk` that is about neither items nor chunks."""

    __slots__ = ("__weakref__", "_handle")

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @property
    def url(self) -> str:
        """Where it is, without secrets; "memory" if nowhere else."""
        return self._handle.url

    @property
    def mode(self) -> Mode:
        """For reading ("r"), or for reading and changing ("r+")."""
        return self._handle.mode

    @property
    def in_transaction(self) -> bool:
        """Whether changes wait for the end of a transaction."""
        return self._handle.in_transaction

    @property
    def generation(self) -> str:
        """Names the committed state that this handle shows; changes with every commit."""
        return self._handle.generation

    @property
    def cbytes(self) -> int:
        """Compressed size of the chunks in bytes, as the frame has it."""
        return self._handle.described.state.frame.cbytes

    @property
    def cparams(self) -> CParams:
        """How new chunks are compressed."""
        try:
            return self._handle.described.state.frame.cparams
        except UnsupportedError as error:
            raise located_error(self.url, error) from error

    @property
    def meta(self) -> Mapping[str, Any]:
        """The metalayers, fixed when the frame was created: decoded if they are msgpack, else bytes."""
        return MappingProxyType({name: _decoded(raw) for name, raw in self._handle.described.state.frame.metalayers})

    @property
    def _attrs(self) -> Attributes:
        return Attributes(self._handle)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Make everything that is changed through this handle inside the ``with`` block one commit.

        Threads that write through the handle join in, one at a time, and what they read through it shows the changes.
        If the block raises, nothing has happened.

        Raises
        ------
        ValueError
            A transaction is under way already.
        ConflictError
            Another writer changed what was read or written in the block. Nothing has happened then.
        """
        with self._handle.transaction():
            yield self

    @contextmanager
    def lock(self) -> Iterator[Self]:
        """Refresh, and make all other writers wait while the ``with`` block reads, computes and writes.

        Each change in the block is a commit, unless a `transaction` joins them. Threads that share the handle wait,
        too. It works where commits rely on a lock: on local files and in memory. Elsewhere a change raises
        ConflictError if another writer came first.

        Raises
        ------
        UnsupportedError
            There are no locks in this place.
        ValueError
            The block is inside another one, or inside a transaction.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray([1, 2, 3])
        >>> with a.lock():
        ...     total = a[...].sum()
        ...     a.append([total])
        (4,)
        """
        handle = self._handle
        handle.require_writable()
        if handle.store.guarantee != "lock":
            raise UnsupportedError(f"{self.url}: there are no locks in this place; changes are compared when committed")
        with handle.mutex:
            if handle.locked or handle.in_transaction:
                raise ValueError("the lock is held already, or a transaction is under way on this handle")
            with handle.store.lock(handle.snapshot.name):
                handle.refresh()
                handle.locked = True
                try:
                    yield self
                finally:
                    handle.locked = False

    def refresh(self) -> None:
        """Show what others have committed since this handle was opened or last changed something."""
        self._handle.refresh()

    def close(self) -> None:
        """Close files. The handle opens them again when it needs them."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._handle,)


def _decoded(raw: bytes) -> Any:
    try:
        return decode_attr(raw)
    except (FormatError, UnsupportedError):
        return raw
