"""`Appender`: takes output step by step, and writes it in whole chunks."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from b2array.engine import resize

__all__ = ["Appender"]


class _Array(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def chunks(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def in_transaction(self) -> bool: ...

    def append(self, values: npt.NDArray[Any], axis: int = 0) -> tuple[int, ...]: ...

    def transaction(self) -> AbstractContextManager[object]: ...


class Appender:
    """Collects steps until they fill a row of chunks, and appends that to an array; made by `NDArray.appender`.

    It copies steps: use their memory again. Other handles see a step when it is committed: after `every` steps, when
    `commit` is called, and at the end of the ``with`` block, also if the block raises. A killed program leaves the last
    commit.

    If commits are more than a chunk apart, a transaction of the array is under way between them, and other changes
    through the same handle join it. If a commit ends inside a chunk, its last blocks are encoded twice: now, and again
    when the next steps come.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((0, 2), "i4", chunks=(64, 2))
    >>> with a.appender(every=10) as out:
    ...     out.append([1, 2])
    ...     out.append([[3, 4], [5, 6]])
    ...     out.uncommitted
    3
    >>> a[...].tolist()
    [[1, 2], [3, 4], [5, 6]]
    """

    def __init__(self, array: _Array, axis: int, every: int | None) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1 step, not {every}")
        self._array = array
        self._axis = axis
        self._every = every
        self._uncommitted = self._used = 0
        self._buffer: npt.NDArray[Any] | None = None
        self._transaction = ExitStack()

    @property
    def uncommitted(self) -> int:
        """Number of steps since the last commit."""
        return self._uncommitted

    def append(self, values: Any) -> None:
        """Take one step, or several.

        Parameters
        ----------
        values : array-like
            One step, without the dimension that grows; or several, with that dimension.

        Raises
        ------
        ValueError, TypeError
            They do not fit the array; the steps before them are not lost.
        """
        array, axis = self._array, self._axis
        if np.ndim(values) == len(array.shape) - 1:
            values = np.expand_dims(np.asarray(values), axis)
        steps, _ = resize.joint(values, array.shape, array.dtype, axis)
        done, count = 0, steps.shape[axis]
        while done < count:
            taken = min(count - done, self._room())
            self._keep(steps[self._along(done, done + taken)], taken)
            done += taken
            self._settle()

    def _along(self, start: int, stop: int) -> tuple[slice, ...]:
        return (slice(None),) * self._axis + (slice(start, stop),)

    @property
    def _length(self) -> int:
        return max(1, self._array.chunks[self._axis])

    @property
    def _beyond(self) -> int:
        """Number of steps in the last row of chunks."""
        return (self._array.shape[self._axis] + self._used) % self._length

    def _room(self) -> int:
        """Return how many steps fit until chunks or the buffer are full, or until a commit is due."""
        if self._used == self._length or self._uncommitted == self._every:  # the last commit failed
            self.commit()
        room = self._length - max(self._beyond, self._used)
        return room if self._every is None else min(room, self._every - self._uncommitted)

    def _keep(self, steps: npt.NDArray[Any], count: int) -> None:
        if self._buffer is None:
            shape, axis = self._array.shape, self._axis
            self._buffer = np.zeros((*shape[:axis], self._length, *shape[axis + 1 :]), self._array.dtype)
        self._buffer[self._along(self._used, self._used + count)] = steps
        self._used += count
        self._uncommitted += count

    def _settle(self) -> None:
        """Append and commit the steps that are due."""
        # The buffer is full in the middle of a chunk if others append through the same handle.
        full = not self._beyond or self._used == self._length
        if self._uncommitted == self._every or (self._every is None and full):
            self.commit()
        elif full:
            if not self._array.in_transaction:
                self._transaction.enter_context(self._array.transaction())
            self._flush()

    def _flush(self) -> None:
        if self._buffer is not None and self._used:
            self._array.append(self._buffer[self._along(0, self._used)], self._axis)
            self._used = 0

    def commit(self) -> None:
        """Let other handles see all steps so far.

        Raises ConflictError if another writer changed the array during a transaction; its steps are lost.
        """
        with self._transaction:
            self._flush()
        self._uncommitted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.commit()
