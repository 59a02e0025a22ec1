"""Arrays that grow: `append`, and `Appender`, which collects steps and writes them in whole chunks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from b2array.array import array_copying
from b2array.commit import resize
from b2array.commit.handle import Handle
from b2array.display.text_tables import count_text
from b2array.errors import warn
from b2array.grid.layout import Layout
from b2array.grid.lossless import lossless, require_same_kind
from b2array.printable import printable

__all__ = ["Appender", "append"]


_SMALL_CHUNK_NBYTES = 2**14
_MANY_CHUNKS = 10_000
"""An array that grows to this many small chunks is slow: each chunk has a header, an index entry and checksums."""


def append(handle: Handle, values: Any, axis: int, every: int | None = None) -> None:
    """Append values to an array; see `NDArray.append`. `every` is the number of steps in a regular commit."""
    handle.require_writable()
    state = handle.source.state
    before = state.require_layout()
    sample = None
    is_streamed = array_copying.is_sliceable(values)
    if is_streamed:
        # The items are read later, but their shape and type can be refused now.
        require_same_kind(values.dtype, before.dtype)
        axis = resize.check_extents(tuple(values.shape), before.shape, axis)
        count = values.shape[axis]
        if before.is_text and state.annotations.auto is not None:
            sample = array_copying.sample_text(values)
    else:
        array, axis = resize.make_joint(values, before.shape, before.dtype, axis)
        count = array.shape[axis]
        sample = array
    if not count:
        return
    for attempt in handle.attempts(anywhere=True):
        with attempt as draft:
            resize.require_still_fits(handle.url, before, draft.state.require_layout(), axis)
            resize.choose_chunks(draft, [axis], every, sample)
            now = draft.state.require_layout()
            pieces = array_copying.rows(values, now, axis) if is_streamed else [array]
            for piece in pieces:
                resize.append(draft, lossless(piece, now.dtype) if is_streamed else piece, axis)
    warn_of_small_chunks(handle, before)


def warn_of_small_chunks(handle: Handle, before: Layout) -> None:
    """Warn when a growing array gets very many small chunks; `before` is its layout before it grew."""
    now = handle.source.state.require_layout()
    # The number is passed only once, so the warning appears once in the life of the array.
    if before.nchunks < _MANY_CHUNKS <= now.nchunks and now.chunk_nbytes < _SMALL_CHUNK_NBYTES:
        warn(
            f"{handle.url} has grown to {now.nchunks} chunks of only {now.chunk_nbytes} bytes, {now.chunks} items,"
            " which makes it slow and large; b2array.copy(array, url, chunks='auto') makes a copy with larger chunks"
        )


class Appender:
    """Collects steps until they fill a row of chunks, and appends the row to an array; see `NDArray.appender`.

    The appender copies the steps, so the caller may reuse their memory. Other handles see a step after its commit:
    after every `every` steps, when `commit` is called, and at the end of the ``with`` block, even if the block raises
    an error. After a killed program, the array is in the state of the last commit. An appender that is deleted with
    uncommitted steps emits a warning.

    If nobody chose the chunks of an array without items, `every` chooses them: commits then end where chunks end.

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

    def __init__(self, handle: Handle, axis: int, every: int | None) -> None:
        # Set this first, because `__del__` also runs if the arguments are invalid.
        self._uncommitted = 0
        self._used = 0
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1 step, not {every}")
        self._handle = handle
        self._axis = np.lib.array_utils.normalize_axis_index(axis, len(self._layout.shape))
        self._every = every
        self._buffer: npt.NDArray[Any] | None = None
        self._transaction = ExitStack()

    def __del__(self) -> None:
        if self._uncommitted:
            warn(f"{self!r}: it was dropped with them; use it in a with statement, or call commit")

    def __repr__(self) -> str:
        steps = count_text(self._uncommitted, "step")
        return f"<b2array.Appender to {printable(self._handle.url)}: along axis {self._axis}, {steps} not committed>"

    @property
    def _layout(self) -> Layout:
        return self._handle.source.state.require_layout()

    @property
    def uncommitted(self) -> int:
        """The number of steps since the last commit."""
        return self._uncommitted

    def append(self, values: Any) -> None:
        """Add one step or several.

        Parameters
        ----------
        values : array-like
            One step, without the dimension that grows; or several, with that dimension.

        Raises
        ------
        ValueError, TypeError, OverflowError
            The values do not fit the array, as for `NDArray.append`. Earlier steps are not lost.
        """
        layout = self._layout
        axis = self._axis
        steps = lossless(values, layout.dtype)
        if steps.ndim == layout.ndim - 1:
            steps = np.expand_dims(steps, axis)
        resize.check_extents(steps.shape, layout.shape, axis)
        count = steps.shape[axis]
        done = 0
        while done < count:
            taken = min(count - done, self._room())
            self._collect(steps[self._along(done, done + taken)], taken)
            done += taken
            self._settle()

    def _along(self, start: int, stop: int) -> tuple[slice, ...]:
        """Return the index of a range of steps, along the axis that grows."""
        return (slice(None),) * self._axis + (slice(start, stop),)

    @property
    def _length(self) -> int:
        """The number of steps in a row of chunks, which an array without items gets only with its first steps."""
        state = self._handle.source.state
        layout = resize.growing_layout(state, [self._axis], self._every) or state.require_layout()
        return max(1, layout.chunks[self._axis])

    @property
    def _beyond(self) -> int:
        """The number of steps in the last row of chunks."""
        return (self._layout.shape[self._axis] + self._used) % self._length

    def _room(self) -> int:
        """Return the number of steps until a row of chunks or the buffer is full, or until a commit is due."""
        if self._used >= self._most or self._uncommitted == self._every:
            # The last commit failed.
            self.commit()
        room = min(self._length - self._beyond, self._most - self._used)
        if self._every is None:
            return room
        until_commit = self._every - self._uncommitted
        return min(room, until_commit)

    @property
    def _most(self) -> int:
        """The number of steps that the buffer holds: a row of chunks, as long as it was when the first step came."""
        if self._buffer is None or not self._used:
            return self._length
        room: int = self._buffer.shape[self._axis]
        return min(self._length, room)

    def _collect(self, steps: npt.NDArray[Any], count: int) -> None:
        shape = list(self._layout.shape)
        shape[self._axis] = self._most
        # The size of the first text chooses the chunks, and may change their length.
        if self._buffer is None or (not self._used and self._buffer.shape != tuple(shape)):
            self._buffer = np.zeros(shape, self._layout.dtype)
        self._buffer[self._along(self._used, self._used + count)] = steps
        self._used += count
        self._uncommitted += count

    def _settle(self) -> None:
        """Append and commit the steps that are due."""
        # If other code appends through the same handle, the buffer may be full in the middle of a chunk.
        is_full = not self._beyond or self._used >= self._most
        is_commit_due = is_full if self._every is None else self._uncommitted == self._every
        if is_commit_due:
            self.commit()
        elif is_full:
            if not self._handle.in_transaction:
                self._transaction.enter_context(self._handle.transaction())
            self._flush()

    def _flush(self) -> None:
        if self._buffer is not None and self._used:
            append(self._handle, self._buffer[self._along(0, self._used)], self._axis, self._every)
            self._used = 0

    def commit(self) -> None:
        """Commit all steps so far, so that other handles see them.

        Raises ConflictError if another writer changed the array during a transaction; its steps are lost.
        """
        # The end of the block commits the transaction, if one is under way.
        with self._transaction:
            self._flush()
        self._uncommitted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Commit after an error as well, because the steps appended before it are still useful.
        self.commit()
