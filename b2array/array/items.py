"""`Indexed`: assignment to the items of an array, and reads that views do not support."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.array.described import Described
from b2array.commit import resize
from b2array.commit.handle import Handle
from b2array.commit.write import chunk_box, write
from b2array.compute.readable import Indexer, Select
from b2array.display.reading import Reading, explain
from b2array.errors import ConflictError, PerformanceWarning, warn
from b2array.frame.read import read
from b2array.frame.source import Source
from b2array.grid import assignment
from b2array.grid.layout import Layout, grid_shape
from b2array.grid.selection import Selection, check_entries, fields, select

__all__ = ["Indexed"]

_LARGE_NBYTES = 2**20
"""The minimum size of a chunk for a warning, in bytes: smaller chunks are written fast enough."""
_MANY_WRITES = 16
_SMALL_SHARE = 4
"""The minimum ratio of a chunk to a write that counts as small: a write of at most a quarter of the items."""


class Indexed(Described):
    """The part of `b2array.NDArray` that assigns items, and has the reads that views do not support."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._set(key, value, select)

    def _set(self, key: Any, value: Any, rule: Select) -> None:
        handle = self._handle
        handle.require_writable()
        layout = handle.source.state.require_layout()
        arranged = _arrange(key, value, rule, layout)
        # Do not make a commit if there are no items to write.
        if not arranged.values.size:
            return
        for attempt in handle.attempts(anywhere=True):
            with attempt as draft:
                now = draft.state.require_layout()
                if now != layout:
                    # Another writer has changed the shape of the array.
                    if (now.ndim, now.dtype) != (layout.ndim, layout.dtype):
                        raise ConflictError(
                            f"{handle.url} has become an array of shape {now.shape} and type {now.dtype}"
                        )
                    layout, arranged = now, _arrange(key, value, rule, now)
                selection, values, names = arranged
                if values.size:
                    write(draft, layout, selection.positions, selection.axes, values, names)
        if layout.chunk_nbytes >= _LARGE_NBYTES and not handle.in_transaction:
            _note_write(handle, layout, arranged.selection)

    @property
    def chunk_view(self) -> Indexer:
        """Read and write whole chunks by their position in the grid. Chunks at the edge end with the array.

        Keys are integers, slices without step, and Ellipsis. Integers do not remove a dimension.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.zeros((5, 4), dtype="i4", chunks=(2, 4), blocks=(2, 2))
        >>> a.chunk_view[2, 0] = 7
        >>> a.chunk_view[-1, 0], a.chunk_view[1:].shape
        (array([[7, 7, 7, 7]], dtype=int32), (3, 4))
        """
        return self._indexer("chunk_view", lambda key, shape: _of_chunks(key, shape, self.chunks))

    def explain(self, key: Any) -> Reading:
        """Report the chunks, blocks, requests and bytes that ``a[key]`` would read now, and how to reduce them.

        In a notebook, the report shows a drawing of the blocks. Cached blocks do not count. This reads no items, only
        the heads of chunks if the sizes of their blocks are neither stored in the frame nor known from an earlier read.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray(np.random.default_rng(0).normal(size=(400, 400)), chunks=(200, 200), blocks=(50, 100))
        >>> plan = a.explain(np.s_[0, :150])
        >>> plan.chunks, plan.blocks, plan.share < 0.1
        (1, 2, True)
        """
        source = self._handle.source
        layout = source.state.require_layout()
        rest, _ = fields(key, layout.dtype)
        return explain(source, layout, select(rest, layout.shape), self.dims)

    def read_direct(self, out: npt.NDArray[Any], key: Any = ...) -> npt.NDArray[Any]:
        """Read into an existing array, and return the array. This is useful in loops.

        Parameters
        ----------
        out : ndarray
            A C-contiguous array with the shape of ``a[key]`` and the array's type.
        key : optional
            The items to read; by default all items. Names of fields are not supported.

        Raises
        ------
        ValueError, TypeError
            The items do not fit `out`.

        Examples
        --------
        >>> import b2array
        >>> a, out = b2array.asarray(np.arange(12).reshape(3, 4)), np.empty(4, int)
        >>> for row in range(3):
        ...     print(a.read_direct(out, row).sum())
        6
        22
        38
        """

        def attempt(source: Source) -> npt.NDArray[Any]:
            layout = source.state.require_layout()
            wanted = select(key, layout.shape)
            if out.dtype != layout.dtype:
                raise TypeError(f"out must be of type {layout.dtype}, not {out.dtype}")
            if out.shape != wanted.shape:
                raise ValueError(f"out must be of shape {wanted.shape}, not {out.shape}")
            if not out.flags.c_contiguous:
                raise ValueError(
                    "out must be C-contiguous, as numpy.empty makes arrays; a transposed or strided one is not"
                )
            if not out.flags.writeable:
                raise ValueError("out must be writeable, and is read-only")
            read(source, layout, wanted.positions, wanted.axes, wanted.view(out))
            return out

        return self._handle.reading(attempt)

    def iter_chunks(self) -> Iterator[tuple[tuple[slice, ...], npt.NDArray[Any]]]:
        """Read the array chunk by chunk, in C order of the grid.

        The next chunks are read while the caller processes one. All chunks belong to the state that the handle shows
        now.

        Yields
        ------
        box : tuple of slice
            The part of the array that the chunk covers: ``a[box]``.
        values : ndarray
            The items there.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray(np.arange(5), chunks=(3,))
        >>> for box, values in a.iter_chunks():
        ...     print(box, values)
        (slice(0, 3, 1),) [0 1 2]
        (slice(3, 5, 1),) [3 4]
        """
        # Use one state for the whole loop, because other writers may commit during the loop.
        source = self._handle.source
        layout = source.state.require_layout()

        def chunk(number: int) -> tuple[tuple[slice, ...], npt.NDArray[Any]]:
            coords = np.unravel_index(number, layout.grid_shape)
            box = chunk_box(layout, [int(coord) for coord in coords])
            return box, resize.read_box(source, layout, box)

        return threads.spread(chunk, range(layout.nchunks))


def _of_chunks(key: Any, shape: Sequence[int], chunks: Sequence[int]) -> Selection:
    """Resolve a key for the grid of chunks."""
    for entry in key if isinstance(key, tuple) else (key,):
        is_plain_slice = isinstance(entry, slice) and entry.step in (None, 1)
        # Booleans are integers in Python, but masks in NumPy.
        is_number = isinstance(entry, int | np.integer) and not isinstance(entry, bool)
        if not (is_plain_slice or is_number or isinstance(entry, EllipsisType)):
            raise IndexError(f"only integers, slices without step and ellipsis (`...`) select chunks, found {entry!r}")
    cells = cast(tuple[slice, ...], select(key, grid_shape(shape, chunks)).positions)
    box = []
    for part, length in zip(cells, chunks, strict=True):
        box.append(slice(part.start * length, part.stop * length))
    return select(tuple(box), shape)


class _Arranged(NamedTuple):
    """Values in the layout of a selection; with `fields`, values of only these fields."""

    selection: Selection
    values: npt.NDArray[Any]
    fields: str | list[str] | None


def _arrange(key: Any, value: Any, rule: Select, layout: Layout) -> _Arranged:
    """Resolve a key, and arrange the value in the layout of the selection."""
    rest, names = fields(key, layout.dtype)
    try:
        selection = rule(rest, layout.shape)
    except IndexError:
        if rule is select:
            # NumPy converts the value first, and then compares the index arrays.
            check_entries(rest, layout.shape)
            np.asarray(value, layout.dtype if names is None else layout.dtype[names])
        raise
    values, field_names = assignment.arrange(value, selection, layout.dtype, names)
    return _Arranged(selection, values, field_names)


def _note_write(handle: Handle, layout: Layout, selection: Selection) -> None:
    """Count successive writes of small parts of the same chunks. When there are many, warn, once for each handle.

    Each write commits whole chunks. A transaction would commit them once; smaller chunks would also help.
    """
    coords = []
    part = []
    share = 1.0
    for positions, length, n in zip(selection.positions, layout.chunks, layout.shape, strict=False):
        if not isinstance(positions, slice):
            return
        extent = positions.stop - positions.start
        first = positions.start // length
        last = (positions.stop - 1) // length
        coords += [first, last]
        part.append(min(extent, length))
        # A chunk at the edge has only the items that the array has.
        share *= min(extent / min(length, n), 1)
    before, count = handle.small_writes
    if before is None or share * _SMALL_SHARE > 1:
        return
    count = count + 1 if before == coords else 1
    handle.small_writes = coords, count
    if count == _MANY_WRITES:
        handle.small_writes = None, 0
        warn(
            f"{handle.url}: {count} commits in a row have each written the same chunks of shape {layout.chunks} for "
            f"parts of shape {tuple(part)}; write the parts in one transaction ('with a.transaction():'), or create "
            f"the array with chunks={tuple(part)}",
            PerformanceWarning,
        )
