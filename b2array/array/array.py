"""`NDArray`: an array in chunks that is read and written as NumPy arrays are."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.array.appender import Appender
from b2array.array.described import Described
from b2array.array.indexers import Indexer, Select, chunk_key
from b2array.array.schunk import SChunk
from b2array.engine import resize as life
from b2array.engine.read import read, read_item
from b2array.engine.write import chunk_box, write
from b2array.errors import ChunkMissingError, ConflictError, FormatError, UnsupportedError
from b2array.grid import assignment
from b2array.grid import selection as indexing
from b2array.grid.layout import Layout, extents
from b2array.grid.selection import Selection

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed

__all__ = ["NDArray"]

Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
Url = str | os.PathLike[str]

_ROWS_NBYTES = 32 * 2**20
"""Iteration reads at most about so many bytes ahead."""


class NDArray(Described):
    """An n-dimensional array in compressed chunks.

    Made by `b2array.open`, `b2array.create` and their relatives. Indexing reads and writes as NumPy does; every
    assignment is one commit, unless it is part of a `transaction`. A handle shows one committed state: its own commits
    move it on, those of others are seen after `refresh`. Threads may share a handle.

    What is read is a copy: assign to the handle, not to what it returned. There are no operators: ``a == b`` of two
    handles asks whether they are the same one, and ``a[...] == b[...]`` compares items. NumPy's functions, and
    operators with a NumPy array on one side, read the whole array.

    Names of fields stand with the rest of the key between the brackets: ``a["x"]``, ``a["x", 1:3] = 0``,
    ``a[5, ["x", "y"]]``. What is read by name is read-only: NumPy's ``a["x"][1:3] = 0`` raises here, as it cannot reach
    the array. So does ``a["x"] += 1``; write ``a["x"] = a["x"] + 1``.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), dtype="i4")
    >>> a[1, ::2] = 7
    >>> a[1]
    array([7, 0, 7, 0, 7, 0], dtype=int32)
    """

    __slots__ = ()

    # Reading.

    def __getitem__(self, key: Any) -> Any:
        source = self._handle.source
        layout = source.state.layout or source.state.require_layout()
        where = indexing.item(key, layout.shape)
        if where is None or layout.dtype.kind == "V":
            return self._get(key, indexing.select)
        try:
            return read_item(source, layout, where)
        except (ChunkMissingError, ConflictError):  # perhaps a commit through this handle took the chunk away
            return self._get(key, indexing.select)

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing, get and set: index arrays and masks, of one dimension, each select along their own axis.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray(np.arange(12).reshape(3, 4))
        >>> a.oindex[[0, 2], [True, False, False, True]].tolist()
        [[0, 3], [8, 11]]
        """
        return Indexer(self, indexing.orthogonal)

    @property
    def vindex(self) -> Indexer:
        """Indexing by points, get and set: index arrays are broadcast, and their dimensions always come first.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray(np.arange(24).reshape(2, 3, 4))
        >>> a.vindex[[0, 1], :, [3, 0]].shape, a.vindex[:, [0, 2, 1]].shape
        ((2, 3), (3, 2, 4))
        """
        return Indexer(self, indexing.vectorised)

    @property
    def chunk_view(self) -> Indexer:
        """Whole chunks by their place in the grid, get and set; as far as they lie in the array.

        Takes integers, slices without step, and Ellipsis. Integers drop no dimension.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.zeros((5, 4), dtype="i4", chunks=(2, 4), blocks=(2, 2))
        >>> a.chunk_view[2, 0] = 7
        >>> a.chunk_view[-1, 0], a.chunk_view[1:].shape
        (array([[7, 7, 7, 7]], dtype=int32), (3, 4))
        """
        return Indexer(self, lambda key, shape: indexing.select(chunk_key(key, shape, self.chunks), shape))

    def _get(self, key: Any, select: Select) -> Any:
        source = self._handle.source
        while True:
            try:
                layout = source.state.layout or source.state.require_layout()
                rest, names = indexing.fields(key, layout.dtype)
                selection = select(rest, layout.shape)
                result: Any = np.empty(selection.shape, layout.dtype)
                read(source, layout, selection.index, selection.axes, selection.view(result))
                break
            except (FormatError, UnsupportedError, ConflictError) as error:
                source = self._handle.recover(source, error)
        if selection.kind == "scalar":
            result = result[()]
        if names is None:
            return result
        found = result[names]
        if isinstance(found, np.ndarray):
            # A copy, so that a field does not keep the memory of all others.
            found = np.array(found) if isinstance(names, str) else found
            # In NumPy, a["x"][1:3] = 0 changes a. Here it would be lost in a copy.
            found.flags.writeable = False
        return found

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("an array in chunks cannot be seen as a NumPy array without a copy")
        result: npt.NDArray[Any] = self[...]
        return result if dtype is None else result.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return self._rows()

    def _rows(self) -> Iterator[Any]:
        # One read serves as many rows as a chunk has, if they are not too large together.
        row_nbytes = max(1, self.nbytes // max(1, len(self)))
        step = max(1, min(self.chunks[0], _ROWS_NBYTES // row_nbytes))
        for start in range(0, len(self), step):
            yield from self[start : start + step]

    def _item(self) -> npt.NDArray[Any]:
        """Return an array that converts to a number, or fails to, as this one's items in memory do."""
        return self[...] if self.size == 1 else np.broadcast_to(np.zeros((), self.dtype), self.shape)

    def __bool__(self) -> bool:
        return bool(self._item())

    def __int__(self) -> int:
        return int(self._item())

    def __float__(self) -> float:
        return float(self._item())

    def __complex__(self) -> complex:
        return complex(self._item())

    def __index__(self) -> int:
        return self._item().__index__()

    def __repr__(self) -> str:
        return f"<b2array.NDArray {self.url} shape={self.shape} dtype={self.dtype} chunks={self.chunks}>"

    def _repr_html_(self) -> str:
        return self.info._repr_html_()

    def iter_chunks(self) -> Iterator[tuple[tuple[slice, ...], npt.NDArray[Any]]]:
        """Read the array chunk by chunk, in C order of the grid.

        The next chunks are read while the caller works on one. All come from the state that the handle shows now.

        Yields
        ------
        box : tuple of slice
            What the chunk covers of the array: ``a[box]``.
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
        source = self._handle.source
        layout = source.state.require_layout()

        def chunk(coords: tuple[int, ...]) -> tuple[tuple[slice, ...], npt.NDArray[Any]]:
            box = chunk_box(layout, coords)
            return box, life.read_box(source, layout, box)

        return threads.spread(chunk, np.ndindex(*layout.grid_shape))

    def get_chunk(self, n: int) -> bytes:
        """Return chunk `n`, in C order of the grid, as it is stored."""
        return SChunk(self._handle).get_chunk(n)

    def to_bytes(self) -> bytes:
        """Return the array as one contiguous frame; chunks are copied, not compressed anew."""
        return SChunk(self._handle).to_bytes()

    def to_dask(self, chunks: Any = "auto") -> da.Array:
        """Return a dask array that reads what is committed now. Nothing is read before it is computed.

        Parameters
        ----------
        chunks : "auto", or what dask takes
            The default is whole stored chunks, as many together as dask's setting ``array.chunk-size`` permits; or
            whole blocks, where one stored chunk is larger.

        Returns
        -------
        dask.array.Array
            With a name that depends on URL, generation and chunks only.

        Raises
        ------
        ValueError
            A transaction is under way.

        Warns
        -----
        dask.array.PerformanceWarning
            The given chunks do not consist of whole stored chunks.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.zeros((400, 600), dtype="f8", chunks=(100, 100), blocks=(50, 50))
        >>> a.to_dask().chunks, a.to_dask(chunks=(200, 300)).sum().compute()
        (((400,), (600,)), np.float64(0.0))
        """
        from b2array.array.dask import to_dask

        return to_dask(self, chunks)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        if self._handle.in_transaction:
            return "b2array", self.url, uuid4().hex
        return "b2array", self.url, self._handle.snapshot.start, self.generation

    # Writing.

    def __setitem__(self, key: Any, value: Any) -> None:
        self._set(key, value, indexing.select)

    def _set(self, key: Any, value: Any, select: Select) -> None:
        self._handle.require_writable()
        before = self._layout
        arranged = _arranged(key, value, select, before)
        if not arranged[1].size:
            return

        for attempt in self._handle.changes(anywhere=True):
            with attempt as transaction:
                now = transaction.state.require_layout()
                if (now.ndim, now.dtype) != (before.ndim, before.dtype):
                    raise ConflictError(f"{self.url} has become an array of shape {now.shape} and type {now.dtype}")
                selection, box, fields = arranged if now == before else _arranged(key, value, select, now)
                if box.size:
                    index, axes, cparams = selection.index, selection.axes, transaction.frame.cparams
                    write(transaction, now, index, axes, box, cparams=cparams, fields=fields)

    def store(
        self, x: da.Array, region: tuple[slice, ...] | None = None, *, compute: bool = True,
        return_stored: bool = False, resume: bool = False, progress: bool = False, scheduler: Any = None,
    ) -> da.Array | Delayed | None:  # fmt: skip
        """Write a dask array, in parallel and as one commit.

        Each task encodes a piece of `x` and puts its chunks where no reader looks; when all are there, they are
        committed. Nothing is visible before that, and a task that fails or is repeated does no harm.
        ``dask.array.store(x, a)`` works as well, but makes every task a commit of its own; with threads, inside a
        `transaction`, it makes one.

        Parameters
        ----------
        x : dask.array.Array
            Of the region's shape, with chunks of any sizes that are known.
        region : tuple of slice, optional
            Where to; the whole array if left out.
        compute : bool, default True
            Whether to compute now. Otherwise a `dask.delayed.Delayed` is returned that does all, the commit too. When
            it was computed, `refresh` shows what it did.
        return_stored : bool, default False
            Whether to return a dask array that reads what was stored.
        resume : bool, default False
            Finish a write of the same values to the same place that was interrupted, keeping the chunks that are
            there.
        progress : bool, default False
            Show on stderr how far it has come.
        scheduler : str, callable or distributed.Client, optional
            For dask; its default otherwise.

        Raises
        ------
        TypeError, ValueError
            `x` is no dask array, has chunks of unknown sizes, another shape than the region, or a type that does not
            cast to the array's with ``casting="same_kind"``. Nothing has been computed then.
        IndexError
            The region is not inside the array. Nothing has been computed then.
        ConflictError
            Another writer changed the same chunks meanwhile. Nothing has happened then.

        Warns
        -----
        dask.array.PerformanceWarning
            The chunks of `x` do not consist of whole stored chunks, so that data are moved between tasks.

        Examples
        --------
        >>> import b2array, dask.array as da
        >>> a = b2array.zeros((4, 6), dtype="i8", chunks=(2, 3), blocks=(2, 3))
        >>> a.store(da.arange(8, chunks=4).reshape(2, 4), region=(slice(1, 3), slice(0, 4)))
        >>> a[1:3].tolist()
        [[0, 1, 2, 3, 0, 0], [4, 5, 6, 7, 0, 0]]
        """
        from b2array.array.dask import store

        return store(
            self, x, region, compute=compute, return_stored=return_stored, resume=resume, progress=progress,
            scheduler=scheduler,
        )  # fmt: skip

    def resize(self, shape: SupportsIndex | Sequence[SupportsIndex]) -> None:
        """Give the array another shape, in one commit. Items that come to be are the fill value.

        Growing leaves all chunks as they are but those in which old items and new ones meet. Shrinking touches none.

        Parameters
        ----------
        shape : int or sequence of int
            Extents in items, as many as there are dimensions.

        Raises
        ------
        ValueError, LimitError
            The shape is not possible.
        ConflictError
            Another writer changed the shape meanwhile. Nothing has happened then.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.full((2, 3), 7)
        >>> a.resize((3, 2))
        >>> a[...].tolist()
        [[7, 7], [7, 7], [7, 7]]
        """
        wanted = extents(shape)
        for attempt in self._handle.changes():
            with attempt as transaction:
                life.resize(transaction, wanted)

    def append(self, values: Any, axis: int = 0) -> tuple[int, ...]:
        """Put values behind the last items along an axis, in one commit, and return the new shape.

        What other writers append at the same time stays.

        Parameters
        ----------
        values : array-like
            As many dimensions and, but along `axis`, the same extents as the array.
        axis : int, default 0
            Where the array grows.

        Raises
        ------
        ValueError, TypeError
            The values do not fit; their type cannot be cast ("same_kind") to the array's.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray([[1, 2], [3, 4]])
        >>> a.append([[5, 6]])
        (3, 2)
        """
        self._handle.require_writable()
        before = self._layout
        array, axis = life.joint(values, before.shape, before.dtype, axis)
        if not array.shape[axis]:
            return before.shape

        for attempt in self._handle.changes(anywhere=True):
            with attempt as transaction:
                life.check_joint(self.url, before, transaction.state.require_layout(), axis)
                life.append(transaction, array, axis)
        return self.shape

    def insert(self, values: Any, index: SupportsIndex, axis: int = 0) -> tuple[int, ...]:
        """Put values before a position along an axis, in one commit, and return the new shape.

        Chunks before that position stay as they are; those behind move as a whole where the values are whole chunks,
        and are made anew otherwise.

        Parameters
        ----------
        values, axis
            As for `append`.
        index : int
            Where the first of the values will be; negative counts from the end.

        Raises
        ------
        IndexError
            The index is out of bounds.
        ValueError, TypeError
            As for `append`.
        ConflictError
            Another writer changed the shape meanwhile. Nothing has happened then.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray([1, 2, 5])
        >>> a.insert([3, 4], 2)
        (5,)
        >>> a[...]
        array([1, 2, 3, 4, 5])
        """
        self._handle.require_writable()
        array, axis = life.joint(values, self.shape, self.dtype, axis)
        where, length = operator.index(index), self.shape[axis]
        if not -length <= where <= length:
            raise IndexError(f"index {where} is out of bounds for axis {axis} with size {length}")
        start = where + length if where < 0 else where
        if array.shape[axis]:
            for attempt in self._handle.changes():
                with attempt as transaction:
                    life.insert(transaction, array, start, axis)
        return self.shape

    def delete(self, key: Any, axis: int = 0) -> tuple[int, ...]:
        """Remove positions along an axis, in one commit, and return the new shape.

        Chunks move as a whole where they can, and are made anew otherwise.

        Parameters
        ----------
        key : int, slice, sequence of int or mask
            What to remove.
        axis : int, default 0
            Along which axis.

        Raises
        ------
        IndexError
            Where NumPy's indexing raises it.
        ConflictError
            Another writer changed the shape meanwhile. Nothing has happened then.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray(np.arange(8))
        >>> a.delete(slice(1, 6))
        (3,)
        >>> a[...]
        array([0, 6, 7])
        """
        self._handle.require_writable()
        axis = np.lib.array_utils.normalize_axis_index(axis, self.ndim)
        gone = life.positions(key, self.shape, axis)
        if not isinstance(gone, slice) or gone.stop > gone.start:
            for attempt in self._handle.changes():
                with attempt as transaction:
                    life.delete(transaction, gone, axis)
        return self.shape

    def appender(self, axis: int = 0, every: int | None = None) -> Appender:
        """Return a context manager that takes one step of a simulation (say) after the other and writes whole chunks.

        Parameters
        ----------
        axis : int, default 0
            Where the array grows.
        every : int, optional
            Commit after so many steps; by default whenever a row of chunks is full, which costs least.

        See Also
        --------
        b2array.Appender : What it does in detail.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.zeros((0, 3), chunks=(100, 3))
        >>> with a.appender() as out:
        ...     for step in range(4):
        ...         out.append(np.full(3, step))
        >>> a.shape
        (4, 3)
        """
        return Appender(self, np.lib.array_utils.normalize_axis_index(axis, self.ndim), every)

    def copy(self, url: Url | None = None, **options: Any) -> NDArray:
        """Copy the array, with another layout if one is given; parameters as for `b2array.copy`."""
        from b2array.array import copying

        return copying.copy(self, url, **options)

    def astype(
        self, dtype: npt.DTypeLike, url: Url | None = None, *, casting: Casting = "unsafe", **options: Any
    ) -> NDArray:
        """Copy the array with the items converted to another type.

        Parameters
        ----------
        dtype : dtype-like
            The other type.
        url : str or os.PathLike, optional
            Where to; in memory if left out.
        casting : {"no", "equiv", "safe", "same_kind", "unsafe"}
            Which conversions are allowed; see `numpy.can_cast`.
        **options
            What else `b2array.copy` takes.

        Raises
        ------
        TypeError
            The conversion is not allowed.

        Examples
        --------
        >>> import b2array
        >>> b2array.asarray([1.5, 2.5]).astype("i2")[...]
        array([1, 2], dtype=int16)
        """
        from b2array.array import copying

        return copying.copy(self, url, dtype=dtype, casting=casting, **options)


def _arranged(
    key: Any, value: Any, select: Select, layout: Layout
) -> tuple[Selection, npt.NDArray[Any], str | list[str] | None]:
    """Find what a key selects in an array, and lay out the value for it."""
    rest, names = indexing.fields(key, layout.dtype)
    selection = select(rest, layout.shape)
    return selection, *assignment.arrange(value, selection, layout.dtype, names)
