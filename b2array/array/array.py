"""`NDArray`: an array in chunks, to read and write like a NumPy array; and the functions that open one."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, Unpack, overload

import numpy as np
import numpy.typing as npt

from b2array.accessors import dataset_of
from b2array.array import appender, copying, dask, snapshots
from b2array.array.appender import Appender
from b2array.array.drafts import AnyPlace, ArrayOptions, Casting, CopyKeywords, Url, require_dtype, takes
from b2array.array.items import Indexed
from b2array.array.making import NewDraft, make
from b2array.array.schunk import SChunk
from b2array.commit import fork as forks
from b2array.commit import resize
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle, Mode
from b2array.compute.mapping import Mapping as ViewMapping
from b2array.compute.readable import Indexer, Readable, Select, select_fields
from b2array.display.reading import Reading, explain
from b2array.errors import ReadOnlyError
from b2array.frame import snapshot
from b2array.grid.layout import extents
from b2array.grid.selection import Selection, fields, select, vectorised
from b2array.printable import printable
from b2array.store.open import open_store

if TYPE_CHECKING:
    from types import EllipsisType

    import dask.array as da
    import xarray as xr
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem

    # Every type checker brings this module; the one of Python 3.11 knows no defaults.
    from typing_extensions import TypeVar

    Item_co = TypeVar("Item_co", bound=np.generic, covariant=True, default=Any)
    Slices = EllipsisType | slice | tuple[EllipsisType | slice, ...]
else:
    from typing import TypeVar

    Item_co = TypeVar("Item_co", bound=np.generic, covariant=True)

__all__ = ["NDArray", "View", "array_at"]


class Viewable(Readable):
    """Reads, and makes lazy views."""

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
        """Lazy views of a part: ``a.view[10:20, ::2]`` reads nothing. Takes integers, slices, Ellipsis and None."""

        def cut(key: Any) -> View:
            return View(self, self._find_mapping().slice_by(key))

        return Indexer("view", self._handle.url, cut)

    def _find_mapping(self) -> ViewMapping:
        """Return the mapping of a view of the present shape: a part of this array or view."""
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

    It shows what the handle of its array shows, and reads only what you ask for. If the array gets another shape, its
    views become useless.
    """

    __slots__ = ("__weakref__", "_fixed", "_handle")

    def __init__(self, array: Any, mapping: ViewMapping) -> None:
        self._handle = array._handle
        self._fixed = mapping

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in items."""
        return self._fixed.lengths

    @property
    def chunks(self) -> tuple[int, ...]:
        """Extents in items of what about one chunk of the array holds."""
        return self._fixed.covering(self._layout.chunks)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Extents in items of what about one block of the array holds."""
        return self._fixed.covering(self._layout.blocks)

    @property
    def dims(self) -> tuple[str | None, ...] | None:
        """Names of the dimensions, if the array has any; None for one that is new, split or joined."""
        names = NDArray(self._handle).dims
        if names is None:
            return None
        return tuple(None if number is None else names[number] for number in self._fixed.numbers)

    def explain(self, key: Any = ...) -> Reading:
        """Say what ``view[key]`` would read now, as `NDArray.explain` does.

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
        """Store what the view shows as an array, with the attributes, dims, fill value and compression of its array.

        Parameters
        ----------
        url : str or os.PathLike, optional
            Where to store it; in memory by default.
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
            kind = copying.target_dtype(kind, require_dtype(dtype), casting)
        wanted = ArrayOptions(**options)
        if wanted.cparams is None:
            wanted = replace(wanted, cparams=array.cparams)
        fill = copying.convert_fill(array.fill_value, kind)
        # Chunks and blocks are chosen again: the view may have other axes than its array.
        wanted = replace(wanted, fill_value=fill, dims=self.dims, attrs=dict(array.attrs))
        return NDArray._make(url, wanted, lambda place, final: copying.holding(self, place, kind, final))

    def __getitem__(self, key: Any) -> Any:
        return self._get(key, select)

    def _get(self, key: Any, rule: Select) -> Any:
        rest, names = fields(key, self.dtype)
        selection = rule(rest, self.shape)
        place, arrange = self._fixed.locate(selection)

        def select_place(_: Any, shape: Sequence[int]) -> Selection:
            # The array may have got another shape since the view was made.
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
        return f"<b2array.View of {printable(self._handle.url)} shape={self.shape} dtype={self.dtype}>"

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return *super().__dask_tokenize__(), self._fixed


class NDArray(Viewable, Indexed, Generic[Item_co]):
    """An n-dimensional array in compressed chunks.

    Made by `b2array.open`, `b2array.create` and their relatives. Indexing reads and writes as NumPy does; every
    assignment is one commit, unless it is part of a `transaction`. A handle shows one committed state. It sees other
    handles' commits after `refresh`, and after its own next commit, which goes on top of them. Threads may share a
    handle.

    Reading returns a copy: assign to the handle, not to what it returned. Operators act on all items, as on ``a[...]``,
    and return NumPy arrays. Reductions, which NumPy's functions such as `numpy.mean` call, go chunk by chunk, and views
    (`T`, `view`, `reshape`) read only what you ask them for. Other functions of NumPy read the whole array.

    Names of fields go between the brackets, with the rest of the key: ``a["x"]``, ``a["x", 1:3] = 0``,
    ``a[5, ["x", "y"]]``. Fields that are read by name are read-only: NumPy's ``a["x"][1:3] = 0`` raises here, as it
    cannot reach the array. So does ``a["x"] += 1``; write ``a["x"] = a["x"] + 1``.

    In annotations, ``NDArray[np.float32]`` names the type of the items, as for `numpy.typing.NDArray`. Nothing checks
    it when the program runs.

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
            """Type of the items."""

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
        pending = ", in a transaction" if self.in_transaction else ""
        return f"<b2array.NDArray {where} shape={self.shape} dtype={self.dtype} chunks={self.chunks}{pending}>"

    def fork(self) -> Self:
        """Return a handle for a worker, whose writes can become part of the transaction under way.

        It can be pickled, and goes to threads, processes and other machines. It shows the array as the transaction has
        it now, and its own writes; no other fork sees them. Give it back to `merge` when the worker has finished. One
        fork may serve many workers: each unpickled copy collects its own writes. It can be forked itself.

        A fork writes items and attributes. It cannot change the shape.

        Raises
        ------
        ValueError
            There is no transaction under way.

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
        """Take what was written through forks into the transaction, or into a fork.

        A fork takes forks of itself, and its siblings: forks of the same transaction that were made when this one was.
        So workers can merge in a tree, and the transaction merges one fork.

        Equal bytes in one chunk are fine, as of a task that ran twice. A merged fork cannot be used any more.

        Parameters
        ----------
        *workers : NDArray
            Forks of this array, or copies of them that came back from other processes.

        Raises
        ------
        ConflictError
            Two forks have put different items into one chunk, or the transaction has changed it since, or has ended.
            The transaction has changed between siblings. Nothing was taken then.
        ValueError
            A fork is to be merged into itself, or was merged before.
        TypeError
            One of them is not a fork.

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
        """Return where items may differ from a snapshot. Only indexes are read.

        Parameters
        ----------
        at : str
            A snapshot.
        then : str, optional
            Another one to compare it with; by default what this handle shows.

        Returns
        -------
        list of tuple of slice
            Boxes that do not overlap, of whole chunks that were written in between. Where the shapes differ, the boxes
            lie in the larger one.

        Raises
        ------
        KeyError
            There is no such snapshot.
        ConflictError
            Other software has taken data of a snapshot. After it has changed the frame, this check also reads the
            beginnings of chunks.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.zeros((4, 6), chunks=(2, 3))
        >>> a.snapshot("start")
        >>> a[3, :2] = 1
        >>> a.diff("start")
        [(slice(2, 4, None), slice(0, 3, None))]
        """
        return snapshots.differences(self._handle, at, then)

    def get_chunk(self, n: int) -> bytes:
        """Return chunk `n`, in C order of the grid, as it is stored."""
        return SChunk(self._handle).get_chunk(n)

    def to_bytes(self) -> bytes:
        """Return the array as one contiguous frame; chunks are copied, not compressed again."""
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

        Each task encodes a piece of `x` and puts its chunks where no reader looks; when all are there, they are
        committed. Nothing is visible before that, and a task that fails or is repeated does no harm. Inside a
        `transaction` they become part of its commit.

        ``dask.array.store(x, a)`` works as well, but makes every task a separate commit; with threads, inside a
        `transaction`, it makes one commit.

        Parameters
        ----------
        x : dask.array.Array
            Of the region's shape, with chunks of any sizes that are known.
        region : tuple of slice, optional
            Where to write; by default the whole array.
        compute : bool, default True
            Whether to compute now. Otherwise the result is a `dask.delayed.Delayed` that does everything, the commit
            too; call `refresh` after it.
        return_stored : bool, default False
            Whether to return a dask array that reads what was stored.
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
            self, x, region, compute=compute, return_stored=return_stored, progress=progress, scheduler=scheduler
        )

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
        for attempt in self._handle.attempts():
            with attempt as draft:
                resize.resize(draft, wanted)

    def append(self, values: Any, axis: int = 0) -> tuple[int, ...]:
        """Put values after the last items along an axis, in one commit, and return the new shape.

        Items that other writers append at the same time stay. Values that are not in memory, such as a dataset of h5py,
        are read a part at a time.

        Parameters
        ----------
        values : array-like
            As many dimensions as the array has, and the same extents except along `axis`.
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

        Chunks before that position stay as they are. The chunks after them move as a whole if the values are whole
        chunks, and are encoded again otherwise.

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
            gone = resize.select_positions(key, self.shape, axis)
            if not isinstance(gone, slice) or gone.stop > gone.start:
                for attempt in self._handle.attempts():
                    with attempt as draft:
                        resize.delete(draft, gone, axis)
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

    def to_xarray(self, **options: Any) -> xr.DataArray:
        """Return an array of xarray, which is read when its values are needed.

        It has the name of the file, its dimensions are `dims`, and values are decoded by the CF conventions. The
        coordinates of a dataset are arrays next to this one: `Group.to_xarray` also returns them.

        Parameters
        ----------
        **options
            As for `xarray.open_dataset`: ``chunks={}`` for an array of dask, ``mask_and_scale=False``, and so on.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray([[1, 2], [3, 4]], dims=("time", "x"), attrs={"units": "m"})
        >>> a.to_xarray().sum("time").values
        array([4, 6])
        """
        dataset = dataset_of(self, options)
        # A variable that is called as its dimension is a coordinate.
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
        """Copy the array, with another layout if one is given; parameters as for `b2array.copy`."""

        def new(place: AnyPlace, final: ArrayOptions) -> Draft:
            return copying.copy_array(
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
            The other type.
        url : str or os.PathLike, optional
            Where to store it; in memory by default.
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
    """Open the array whose frame is at a URL. Members of groups are found by the path of their file only.

    Raises what `b2array.open` raises, and FormatError for a frame without an array.
    """
    if offset and mode != "r":
        raise ReadOnlyError("a frame inside a larger file can only be read")
    store = open_store(url, storage_options=storage_options, fs=fs)
    return NDArray(Handle(snapshot.load(store, start=offset), mode))
