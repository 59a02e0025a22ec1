"""`NDArray`: a chunked array that is read and written like a NumPy array; and functions that open arrays."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, Unpack, overload

import numpy as np
import numpy.typing as npt

from b2array.accessors import dataset_of
from b2array.array import appender, array_copying, array_snapshots, dask
from b2array.array.appender import Appender
from b2array.array.drafts import AnyPlace, ArrayOptions, Casting, CopyKeywords, Url, require_dtype, takes
from b2array.array.frame_making import NewDraft, make
from b2array.array.items import Indexed
from b2array.array.schunk import SChunk
from b2array.catalog import owners
from b2array.commit import forks, resize
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle, Mode
from b2array.compute.mapping import Mapping as ViewMapping
from b2array.compute.readable import Indexer, Readable, Select, select_fields
from b2array.display.reading import Reading, explain
from b2array.errors import ConflictError, ReadOnlyError
from b2array.grid.layout import extents
from b2array.grid.selection import Selection, fields, select, vectorised
from b2array.keywords import spell_out
from b2array.printable import printable
from b2array.store.open import open_store

if TYPE_CHECKING:
    from types import EllipsisType

    import dask.array as da
    import xarray as xr
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem

    # Every type checker includes this module. TypeVar in Python 3.11 has no defaults.
    from typing_extensions import TypeVar

    Item_co = TypeVar("Item_co", bound=np.generic, covariant=True, default=Any)
    Slices = EllipsisType | slice | tuple[EllipsisType | slice, ...]
else:
    from typing import TypeVar

    Item_co = TypeVar("Item_co", bound=np.generic, covariant=True)

__all__ = ["NDArray", "View", "array_at"]


class Viewable(Readable):
    """Reading, and making lazy views."""

    __slots__ = ()

    _graph = staticmethod(dask.to_dask)

    @property
    def T(self) -> View:  # noqa: N802 - as in NumPy
        """A lazy view with the axes in reverse order.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray(np.arange(6).reshape(2, 3))
        >>> a.T[1], a.T.shape
        (array([1, 4]), (3, 2))
        """
        return self.transpose()

    @property
    def view(self) -> Indexer:
        """Lazy views of parts: ``a.view[10:20, ::2]`` reads nothing. Keys are integers, slices, Ellipsis and None."""

        def cut(key: Any) -> View:
            return View(self, self._find_mapping().slice_by(key))

        return Indexer("view", self._handle.url, cut)

    def _find_mapping(self) -> ViewMapping:
        """Return the mapping of this array or view, for the present shape."""
        layout = self._handle.source.state.require_layout()
        return self._mapping(layout.shape)

    def transpose(self, *axes: Any) -> View:
        """Return a lazy view with another order of the axes, as `numpy.transpose`."""
        return View(self, self._find_mapping().transpose(*axes))

    def squeeze(self, axis: Any = None) -> View:
        """Return a lazy view without axes of length 1, as `numpy.squeeze`."""
        return View(self, self._find_mapping().squeeze(axis))

    def reshape(self, *shape: Any, order: str = "C") -> View:
        """Return a lazy view that splits and joins whole axes, as `numpy.reshape`.

        Raises
        ------
        ValueError
            The sizes differ, or the items would have to be rearranged.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray(np.arange(24).reshape(4, 6))
        >>> a.reshape(2, 2, -1).shape, a.reshape(-1)[7:10]
        ((2, 2, 6), array([7, 8, 9]))
        """
        if order != "C":
            raise ValueError(f"a view is reshaped in C order only, not {order!r}; a[...].reshape() reads the items")
        mapping = self._find_mapping()
        return View(self, mapping.reshape(mapping.model.reshape(*shape).shape))


class View(Viewable):
    """A lazy, read-only view of an array: a part of it, or another arrangement.

    A view shows the same state as the handle of its array, and reads only the requested items. If the shape of the
    array changes, its views become invalid.
    """

    __slots__ = ("__weakref__", "_fixed", "_handle")

    def __init__(self, array: Any, mapping: ViewMapping) -> None:
        self._handle = array._handle
        self._fixed = mapping

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape: extents in items."""
        return self._fixed.lengths

    @property
    def chunks(self) -> tuple[int, ...]:
        """The extents, in items, of the part of the view that one chunk of the array covers, approximately."""
        return self._fixed.covering(self._layout.chunks)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The extents, in items, of the part of the view that one block of the array covers, approximately."""
        return self._fixed.covering(self._layout.blocks)

    @property
    def dims(self) -> tuple[str | None, ...] | None:
        """The names of the dimensions, if the array has names; None for a new, split or joined dimension."""
        names = NDArray(self._handle).dims
        if names is None:
            return None
        return tuple(None if number is None else names[number] for number in self._fixed.numbers)

    def explain(self, key: Any = ...) -> Reading:
        """Report the chunks and blocks that ``view[key]`` would read now, as `NDArray.explain` does.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray(np.arange(400).reshape(20, 20), chunks=(10, 10))
        >>> a.view[:5].T.explain().chunks
        2
        """
        source = self._handle.source
        layout = source.state.require_layout()
        rest, _ = fields(key, layout.dtype)
        place, _ = self._fixed.locate(select(rest, self.shape))
        selection = vectorised(place, layout.shape)
        return explain(source, layout, selection, NDArray(self._handle).dims)

    @takes(CopyKeywords)
    def copy(
        self,
        url: Url | None = None,
        *,
        dtype: npt.DTypeLike | None = None,
        casting: Casting = "unsafe",
        **options: Unpack[CopyKeywords],
    ) -> NDArray:
        """Store the items of the view as an array, with the attributes, dims, fill value and compression of its array.

        Parameters
        ----------
        url : str or os.PathLike, optional
            The place of the new array; in memory by default.
        dtype, casting
            As for `b2array.copy`.
        chunks, ..., fs
            As for `b2array.create`.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray([[1, 2], [3, 4]], dims=("x", "y"))
        >>> b = a.T.copy()
        >>> b.dims, b[0]
        (('y', 'x'), array([1, 3]))
        """
        array = NDArray(self._handle)
        kind = self.dtype
        if dtype is not None:
            kind = array_copying.target_dtype(kind, require_dtype(dtype), casting)
        wanted = ArrayOptions(**options)
        if wanted.cparams is None:
            wanted = replace(wanted, cparams=array.cparams)
        fill = array_copying.convert_fill(array.fill_value, kind)
        # Choose new chunks and blocks, because the view may have other axes than its array.
        wanted = replace(wanted, fill_value=fill, dims=self.dims, attrs=dict(array.attrs))
        return NDArray._make(url, wanted, lambda place, final: array_copying.holding(self, place, kind, final))

    def __getitem__(self, key: Any) -> Any:
        return self._get(key, select)

    def _get(self, key: Any, rule: Select) -> Any:
        rest, names = fields(key, self.dtype)
        selection = rule(rest, self.shape)
        place, arrange = self._fixed.locate(selection)

        def select_place(_: Any, shape: Sequence[int]) -> Selection:
            # The shape of the array may have changed since the view was made.
            self._mapping(tuple(shape))
            return vectorised(place, shape)

        result = arrange(super()._get(..., select_place))
        result = result[()] if selection.kind == "scalar" else result[...]
        return result if names is None else select_fields(result, names)

    def _mapping(self, shape: tuple[int, ...]) -> ViewMapping:
        if shape != self._fixed.shape:
            raise ValueError(f"this is a view of an array of shape {self._fixed.shape}, which has become {shape}")
        return self._fixed

    def __repr__(self) -> str:
        remark = NDArray(self._handle)._remark()
        return f"<b2array.View of {printable(self._handle.url)} shape={self.shape} dtype={self.dtype}{remark}>"

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return *super().__dask_tokenize__(), self._fixed


class NDArray(Viewable, Indexed, Generic[Item_co]):
    """An n-dimensional array in compressed chunks.

    Functions such as `b2array.open` and `b2array.create` return arrays. Indexing reads and writes as NumPy does; every
    assignment is one commit, unless it is part of a `transaction`. A handle shows one committed state. Commits of other
    handles appear after `refresh`, and after the next commit of this handle, which is made on top of them. Threads may
    share a handle.

    Reading returns a copy: to change the array, assign to the handle, not to the copy. Operators act on all items, as
    on ``a[...]``, and return NumPy arrays. Reductions, which NumPy's functions such as `numpy.mean` call, read chunk by
    chunk, and views (`T`, `view`, `reshape`) read only the requested items. Other functions of NumPy read the whole
    array.

    To select fields, write their names between the brackets, with the rest of the key: ``a["x"]``, ``a["x", 1:3] = 0``,
    ``a[5, ["x", "y"]]``. Fields that are read by name are read-only: NumPy's ``a["x"][1:3] = 0`` raises an error here,
    because it would not change the array. ``a["x"] += 1`` raises an error as well; write ``a["x"] = a["x"] + 1``.

    In annotations, ``NDArray[np.float32]`` names the type of the items, as with `numpy.typing.NDArray`. The type is not
    checked at run time.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), dtype="i4")
    >>> a[1, ::2] = 7
    >>> a[1]
    array([7, 0, 7, 0, 7, 0], dtype=int32)
    """

    __slots__ = ()

    _makers = "b2array.zeros(shape), b2array.asarray(values), b2array.create(url, shape) and b2array.open(url)"

    if TYPE_CHECKING:

        @property
        def dtype(self) -> np.dtype[Item_co]:
            """The type of the items."""

        @overload
        def __getitem__(self, key: Slices) -> npt.NDArray[Item_co]: ...

        @overload
        def __getitem__(self, key: Any) -> Any: ...

        def __getitem__(self, key: Any) -> Any: ...

    @classmethod
    def _make(cls, url: Url | None, options: ArrayOptions, new: NewDraft) -> Self:
        return cls(make(url, options, new))

    def __repr__(self) -> str:
        where = printable(self.url)
        return f"<b2array.NDArray {where} shape={self.shape} dtype={self.dtype} chunks={self.chunks}{self._remark()}>"

    def fork(self) -> Self:
        """Return a handle for a worker, whose writes can become part of the transaction under way.

        A fork can be pickled, and sent to threads, processes and other machines. It shows the present state of the
        transaction together with the writes through the fork, which no other fork sees. Pass the fork to `merge` when
        the worker has finished. Many workers may use the same fork, because each unpickled copy collects its writes
        separately. A fork can be forked itself.

        A fork writes items and attributes. It cannot change the shape.

        Raises
        ------
        ValueError
            No transaction is under way.

        Examples
        --------
        >>> import pickle
        >>> import b2array
        >>> a = b2array.zeros((4, 6), dtype="i4", chunks=(1, 6))
        >>> with a.transaction() as changes:
        ...     fork = changes.fork()
        ...     worker = pickle.loads(pickle.dumps(fork))
        ...     worker[2] = 7
        ...     changes.merge(worker)
        >>> a[:, 0]
        array([0, 0, 7, 0], dtype=int32)
        """
        return type(self)(forks.fork(self._handle))

    def merge(self, *workers: Self) -> None:
        """Merge the writes of forks into the transaction, or into a fork.

        A fork can merge its own forks, and its siblings: forks of the same transaction in the same state. So workers
        can merge in a tree, and the transaction merges a single fork.

        Two forks may write equal bytes to the same chunk, as when a task runs twice. A merged fork cannot be used
        again.

        Parameters
        ----------
        *workers : NDArray
            Forks of this array, or copies of forks that other processes have returned.

        Raises
        ------
        ConflictError
            Two forks have written different items to the same chunk; or the transaction has changed the chunk since the
            fork, or has ended; or siblings were made in different states. In this case nothing was merged.
        ValueError
            A fork cannot be merged into itself, or was already merged.
        TypeError
            An argument is not a fork.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.zeros((4, 6), dtype="i4", chunks=(1, 6))
        >>> with a.transaction() as changes:
        ...     workers = [changes.fork() for _ in range(4)]
        ...     for row, worker in enumerate(workers):
        ...         worker[row] = row
        ...     workers[0].merge(workers[1], workers[2])
        ...     changes.merge(workers[0], workers[3])
        >>> a[:, 0]
        array([0, 1, 2, 3], dtype=int32)
        """
        forks.merge(self._handle, [worker._handle for worker in workers])

    def diff(self, at: str, then: str | None = None) -> list[tuple[slice, ...]]:
        """Return the boxes in which items may differ from a snapshot. Only indexes are read.

        Parameters
        ----------
        at : str
            A snapshot.
        then : str, optional
            Another snapshot to compare with the first; by default the state that this handle shows.

        Returns
        -------
        list of tuple of slice
            Boxes of whole chunks that were written between the two states. They do not overlap, and print as keys. If
            the shapes differ, the boxes also cover the added or removed part.

        Raises
        ------
        KeyError
            No such snapshot exists.
        ConflictError
            Other software has overwritten data of a snapshot. If other software has changed the frame, this check also
            reads the beginnings of chunks.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.zeros((4, 6), chunks=(2, 3))
        >>> a.snapshot("start")
        >>> a[3, :2] = 1
        >>> a.diff("start")
        [2:4, 0:3]
        """
        return array_snapshots.differences(self._handle, at, then)

    def get_chunk(self, n: int) -> bytes:
        """Return chunk `n`, in C order of the grid, in its stored form."""
        return SChunk(self._handle).get_chunk(n)

    def to_bytes(self) -> bytes:
        """Return the array as one contiguous frame, without compressing chunks again."""
        return SChunk(self._handle).to_bytes()

    def store(
        self,
        x: da.Array,
        region: tuple[slice, ...] | None = None,
        *,
        compute: bool = True,
        return_stored: bool = False,
        progress: bool = False,
        scheduler: Any = None,
    ) -> da.Array | Delayed | None:
        """Write a dask array, in parallel and as one commit.

        Each task encodes a piece of `x` and stores the chunks in a place that readers ignore. When all chunks are
        stored, one commit publishes them. Readers see nothing before the commit, and a failed or repeated task does no
        harm. Inside a `transaction` the chunks become part of its commit.

        ``dask.array.store(x, a)`` works as well, but makes every task a separate commit; with threads, inside a
        `transaction`, it makes one commit.

        Parameters
        ----------
        x : dask.array.Array
            An array of the region's shape, with chunks of any known sizes.
        region : tuple of slice, optional
            The part to write; by default the whole array.
        compute : bool, default True
            Whether to compute now. Otherwise the result is a `dask.delayed.Delayed` that computes and commits; call
            `refresh` afterwards.
        return_stored : bool, default False
            Whether to return a dask array that reads the stored items.
        progress : bool, default False
            Show the progress on stderr.
        scheduler : str, callable or distributed.Client, optional
            The scheduler of dask; by default, dask chooses.

        Raises
        ------
        TypeError, ValueError
            `x` is not a dask array, has chunks of unknown sizes, has another shape than the region, or has a type that
            cannot be cast to the array's (``casting="same_kind"``). In this case nothing was computed.
        ValueError, TypeError, OverflowError
            The type of the array cannot hold a computed value, as for `append`. In this case nothing has changed.
        IndexError
            The region is not inside the array. In this case nothing was computed.
        ConflictError
            Another writer changed the same chunks meanwhile. In this case nothing has changed.

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
            self, x, region, compute=compute, return_stored=return_stored, progress=progress, scheduler=scheduler
        )

    @spell_out()
    def resize(self, shape: SupportsIndex | Sequence[SupportsIndex], *more: SupportsIndex) -> None:
        """Change the shape of the array, in one commit. New items have the fill value.

        Growing rewrites only chunks with both old and new items. Shrinking rewrites no chunks.

        Parameters
        ----------
        shape : int or sequence of int
            The new extents in items, one for each dimension.
        *more : int
            The other extents, if `shape` is the first one, as in NumPy: ``a.resize(3, 2)``.

        Raises
        ------
        ValueError, LimitError
            The shape is not possible.
        ConflictError
            Another writer changed the shape meanwhile. In this case nothing has changed.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.full((2, 3), 7)
        >>> a.resize((3, 2))
        >>> a[...].tolist()
        [[7, 7], [7, 7], [7, 7]]
        """
        wanted = extents((operator.index(shape), *more) if more else shape)  # type: ignore[arg-type]
        is_shown = wanted == self.shape
        for attempt in self._handle.attempts():
            with attempt as draft:
                resize.resize(draft, wanted)
        # The handle may not show what other writers have done: then the array does not have this shape.
        if is_shown and self._handle.draft is None:
            self._handle.refresh()
            if self.shape != wanted:
                raise ConflictError(
                    f"{self.url}: another writer has changed the shape to {self.shape}; repeat the call"
                )

    def append(self, values: Any, axis: int = 0) -> tuple[int, ...]:
        """Append values along an axis, in one commit, and return the new shape.

        Items that other writers append at the same time are preserved. Values that are not in memory, such as a dataset
        of h5py, are read in parts.

        Parameters
        ----------
        values : array-like
            Values with the same number of dimensions as the array, and the same extents except along `axis`.
        axis : int, default 0
            The axis along which the array grows.

        Raises
        ------
        ValueError, TypeError, OverflowError
            The shape does not fit; the type cannot be cast ("same_kind") to the array's; or a value would not be kept:
            an integer out of range, a text that is too long, a time that is no multiple of the unit. Floats are
            rounded. Fields of records go by name.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray([[1, 2], [3, 4]])
        >>> a.append([[5, 6]])
        (3, 2)
        >>> b2array.asarray(["yes"]).append(["maybe"])
        Traceback (most recent call last):
        ValueError: 'maybe' does not fit items of type <U3; a.astype("<U5") holds it
        """
        appender.append(self._handle, values, axis)
        return self.shape

    def insert(self, values: Any, index: SupportsIndex, axis: int = 0) -> tuple[int, ...]:
        """Insert values before a position along an axis, in one commit, and return the new shape.

        Chunks before the position do not change. The later chunks are moved as a whole if the values fill whole chunks;
        otherwise they are encoded again.

        Parameters
        ----------
        values, axis
            As for `append`.
        index : int
            The position of the first value in the result; a negative number counts from the end.

        Raises
        ------
        IndexError
            The index is out of bounds.
        ValueError, TypeError, OverflowError
            As for `append`.
        ConflictError
            Another writer changed the shape meanwhile. In this case nothing has changed.

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
        # No other thread must change the shape meanwhile.
        with self._handle.mutex.held:
            array, axis = resize.make_joint(values, self.shape, self.dtype, axis)
            where = operator.index(index)
            length = self.shape[axis]
            if not -length <= where <= length:
                raise IndexError(f"index {where} is out of bounds for axis {axis} with size {length}")
            start = where + length if where < 0 else where
            if array.shape[axis]:
                for attempt in self._handle.attempts():
                    with attempt as draft:
                        resize.insert(draft, array, start, axis)
            return self.shape

    def delete(self, key: Any, axis: int = 0) -> tuple[int, ...]:
        """Remove positions along an axis, in one commit, and return the new shape.

        Chunks are moved as a whole if possible; otherwise they are encoded again.

        Parameters
        ----------
        key : int, slice, sequence of int or mask
            The positions to remove.
        axis : int, default 0
            The axis of the positions.

        Raises
        ------
        IndexError
            The key is invalid for NumPy's indexing.
        ConflictError
            Another writer changed the shape meanwhile. In this case nothing has changed.

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
            gone = resize.select_positions(key, self.shape, axis)
            if not isinstance(gone, slice) or gone.stop > gone.start:
                for attempt in self._handle.attempts():
                    with attempt as draft:
                        resize.delete(draft, gone, axis)
            return self.shape

    def appender(self, axis: int = 0, every: int | None = None) -> Appender:
        """Return a context manager that collects steps, for example of a simulation, and writes whole chunks.

        Parameters
        ----------
        axis : int, default 0
            The axis along which the array grows.
        every : int, optional
            The number of steps per commit; by default a row of chunks, which is the fastest.

        See Also
        --------
        b2array.Appender : The context manager.

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

    def to_xarray(self, **options: Any) -> xr.DataArray:
        """Return the array as an `xarray.DataArray`, which reads its values when they are needed.

        The result has the name of the file and the dimensions `dims`, and its values are decoded by the CF conventions.
        The coordinates of a dataset are separate arrays in the same group: `Group.to_xarray` also returns them.

        Parameters
        ----------
        **options
            Options of `xarray.open_dataset`, such as ``chunks={}`` for a dask array, or ``mask_and_scale=False``.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray([[1, 2], [3, 4]], dims=("time", "x"), attrs={"units": "m"})
        >>> a.to_xarray().sum("time").values
        array([4, 6])
        """
        dataset = dataset_of(self, options)
        # A variable with the name of its dimension is a coordinate.
        variables = dataset.data_vars or dataset.coords
        (data_array,) = variables.values()
        return data_array

    @takes(CopyKeywords)
    def copy(
        self,
        url: Url | None = None,
        *,
        dtype: npt.DTypeLike | None = None,
        casting: Casting = "unsafe",
        progress: bool = False,
        snapshots: bool = True,
        **options: Unpack[CopyKeywords],
    ) -> NDArray:
        """Copy the array, optionally with another layout; parameters as for `b2array.copy`."""

        def new(place: AnyPlace, final: ArrayOptions) -> Draft:
            return array_copying.copy_array(
                self._handle, place, final, dtype, casting, progress=progress, snapshots=snapshots
            )

        return self._make(url, ArrayOptions(**options), new)

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
            The new type.
        url : str or os.PathLike, optional
            The place of the new array; in memory by default.
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
        return self.copy(url, dtype=dtype, casting=casting, progress=progress, snapshots=False, **options)


def array_at(
    url: Url,
    mode: Mode = "r",
    *,
    offset: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> NDArray:
    """Open the array at a URL. For a member of a group, the URL must be the path of the file.

    Raises the errors of `b2array.open`, and FormatError for a frame without an array.
    """
    if offset and mode != "r":
        raise ReadOnlyError("a frame inside a larger file can only be read")
    store = open_store(url, storage_options=storage_options, fs=fs)
    is_read = mode == "r"
    revision = owners.load(store, start=offset, cached=is_read, needs_group=not is_read)
    return NDArray(Handle(revision, mode))
