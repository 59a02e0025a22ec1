"""`NDArray`: an array in chunks, to read and write like a NumPy array; and the functions that open one."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, Unpack

import numpy as np
import numpy.typing as npt

from b2array.array import appender, copying, dask
from b2array.array.appender import Appender
from b2array.array.drafts import ArrayOptions, Casting, CopyKeywords, Url, takes
from b2array.array.items import Indexed
from b2array.array.schunk import SChunk
from b2array.buffers import Buffer
from b2array.engine import resize, snapshot
from b2array.engine.handle import Handle, Mode
from b2array.engine.transaction import Transaction
from b2array.errors import ReadOnlyError
from b2array.grid.layout import extents
from b2array.printable import printable
from b2array.store.memory import MemoryStore
from b2array.store.open import open_store

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem

__all__ = ["NDArray", "array_at", "from_bytes"]


class NDArray(Indexed):
    """An n-dimensional array in compressed chunks.

    Made by `b2array.open`, `b2array.create` and their relatives. Indexing reads and writes as NumPy does; every
    assignment is one commit, unless it is part of a `transaction`. A handle shows one committed state. Commits of
    others are seen after `refresh`, and after a commit of its own, which goes on top of them. Threads may share a
    handle.

    Reading returns a copy: assign to the handle, not to what it returned. Operators act on all items, as on ``a[...]``,
    and return NumPy arrays. Reductions, which NumPy's functions such as `numpy.mean` call, go chunk by chunk, and views
    (`T`, `view`, `reshape`) read only what you ask them for. Other functions of NumPy read the whole array.

    Names of fields go between the brackets, with the rest of the key: ``a["x"]``, ``a["x", 1:3] = 0``,
    ``a[5, ["x", "y"]]``. Fields that are read by name are read-only: NumPy's ``a["x"][1:3] = 0`` raises here, as it
    cannot reach the array. So does ``a["x"] += 1``; write ``a["x"] = a["x"] + 1``.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), dtype="i4")
    >>> a[1, ::2] = 7
    >>> a[1]
    array([7, 0, 7, 0, 7, 0], dtype=int32)
    """

    __slots__ = ()

    _graph = staticmethod(dask.to_dask)
    _makers = "b2array.zeros(shape), b2array.asarray(values), b2array.create(url, shape) and b2array.open(url)"

    @classmethod
    def _committed(cls, transaction: Transaction) -> Self:
        return cls(Handle(transaction.commit(), "r+"))

    def __repr__(self) -> str:
        where, pending = printable(self.url), ", in a transaction" * self.in_transaction
        return f"<b2array.NDArray {where} shape={self.shape} dtype={self.dtype} chunks={self.chunks}{pending}>"

    def get_chunk(self, n: int) -> bytes:
        """Return chunk `n`, in C order of the grid, as it is stored."""
        return SChunk(self._handle).get_chunk(n)

    def to_bytes(self) -> bytes:
        """Return the array as one contiguous frame; chunks are copied, not compressed again."""
        return SChunk(self._handle).to_bytes()

    def store(
        self, x: da.Array, region: tuple[slice, ...] | None = None, *, compute: bool = True,
        return_stored: bool = False, resume: bool = False, progress: bool = False, scheduler: Any = None,
    ) -> da.Array | Delayed | None:  # fmt: skip
        """Write a dask array, in parallel and as one commit.

        Each task encodes a piece of `x` and puts its chunks where no reader looks; when all are there, they are
        committed. Nothing is visible before that, and a task that fails or is repeated does no harm. Inside a
        `transaction`, pieces are written in turn: if one fails, let the error leave the transaction, which would
        otherwise commit the pieces before it.

        ``dask.array.store(x, a)`` works as well, but makes every task a commit of its own; with threads, inside a
        `transaction`, it makes one.

        Parameters
        ----------
        x : dask.array.Array
            Of the region's shape, with chunks of any sizes that are known.
        region : tuple of slice, optional
            Where to; the whole array if left out.
        compute : bool, default True
            Whether to compute now. Otherwise the result is a `dask.delayed.Delayed` that does everything, the commit
            too; call `refresh` after it.
        return_stored : bool, default False
            Whether to return a dask array that reads what was stored.
        resume : bool, default False
            Finish an interrupted write of the same values to the same place, and keep the chunks that are there.
        progress : bool, default False
            Show the progress on stderr.
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
        return dask.store(
            self, x, region, compute=compute, return_stored=return_stored, resume=resume, progress=progress,
            scheduler=scheduler,
        )  # fmt: skip

    def resize(self, shape: SupportsIndex | Sequence[SupportsIndex]) -> None:
        """Give the array another shape, in one commit. New items are the fill value.

        Growing rewrites only chunks that hold both old and new items. Shrinking touches none.

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
        self._handle.change(lambda transaction: resize.resize(transaction, wanted))

    def append(self, values: Any, axis: int = 0) -> tuple[int, ...]:
        """Put values behind the last items along an axis, in one commit, and return the new shape.

        What other writers append at the same time stays. Values that are not in memory, such as a dataset of h5py, are
        read a part at a time.

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
        appender.append(self._handle, values, axis)
        return self.shape

    def insert(self, values: Any, index: SupportsIndex, axis: int = 0) -> tuple[int, ...]:
        """Put values before a position along an axis, in one commit, and return the new shape.

        Chunks before that position stay as they are. Those behind move as a whole if the values are whole chunks, and
        are encoded again otherwise.

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
        with self._handle.mutex.held:  # no other thread must change the shape meanwhile
            array, axis = resize.joint(values, self.shape, self.dtype, axis)
            where, length = operator.index(index), self.shape[axis]
            if not -length <= where <= length:
                raise IndexError(f"index {where} is out of bounds for axis {axis} with size {length}")
            start = where + length if where < 0 else where
            if array.shape[axis]:
                self._handle.change(lambda transaction: resize.insert(transaction, array, start, axis))
            return self.shape

    def delete(self, key: Any, axis: int = 0) -> tuple[int, ...]:
        """Remove positions along an axis, in one commit, and return the new shape.

        Chunks move as a whole where they can, and are encoded again otherwise.

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
        with self._handle.mutex.held:  # no other thread must change the shape meanwhile
            gone = resize.positions(key, self.shape, axis)
            if not isinstance(gone, slice) or gone.stop > gone.start:
                self._handle.change(lambda transaction: resize.delete(transaction, gone, axis))
            return self.shape

    def appender(self, axis: int = 0, every: int | None = None) -> Appender:
        """Return a context manager that takes steps (of a simulation, say) one by one, and writes whole chunks.

        Parameters
        ----------
        axis : int, default 0
            Where the array grows.
        every : int, optional
            Commit after this many steps; by default whenever a row of chunks is full, which costs least.

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
        return Appender(self._handle, axis, every)

    @takes(CopyKeywords)
    def copy(
        self,
        url: Url | None = None,
        *,
        dtype: npt.DTypeLike | None = None,
        casting: Casting = "unsafe",
        progress: bool = False,
        **options: Unpack[CopyKeywords],
    ) -> NDArray:
        """Copy the array, with another layout if one is given; parameters as for `b2array.copy`."""
        wanted = ArrayOptions(**options)
        return self._committed(copying.copied(self._handle, url, wanted, dtype, casting, progress=progress))

    @takes(CopyKeywords)
    def astype(
        self,
        dtype: npt.DTypeLike,
        url: Url | None = None,
        *,
        casting: Casting = "unsafe",
        progress: bool = False,
        **options: Unpack[CopyKeywords],
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
        progress, chunks, ..., fs
            As for `b2array.copy`.

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
        return self.copy(url, dtype=dtype, casting=casting, progress=progress, **options)


def array_at(
    url: Url, mode: Mode = "r", *, offset: int = 0, storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> NDArray:  # fmt: skip
    """Open the array whose frame is at a URL. Members of groups are found by the path of their file only.

    Raises what `b2array.open` raises, and FormatError for a frame without an array.
    """
    if offset and mode != "r":
        raise ReadOnlyError("a frame inside a larger file can only be read")
    held = Handle(snapshot.load(open_store(url, storage_options=storage_options, fs=fs), start=offset), mode)
    return NDArray(held)


def from_bytes(buf: Buffer) -> NDArray:
    """Open an array that is a contiguous frame in memory; `bytes` are not copied. It can be read only.

    Raises
    ------
    FormatError, UnsupportedError
        As for `open`.
    """
    content = buf if isinstance(buf, bytes) else memoryview(buf).tobytes()
    return NDArray(Handle(snapshot.load(MemoryStore({"": content})), "r"))
