"""`Readable`: the methods that arrays and views share, which all read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from b2array.buffers import memory_nbytes
from b2array.commit.handle import RECOVERABLE, Handle
from b2array.compute.mapping import Mapping
from b2array.compute.operators import Operators
from b2array.compute.reductions import reduction
from b2array.errors import warn
from b2array.frame.read import read, read_item
from b2array.grid.layout import Layout
from b2array.grid.selection import Selection, fields, item, orthogonal, select, vectorised
from b2array.printable import printable

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["Indexer", "Readable", "Select", "select_fields"]

Select = Callable[[Any, Sequence[int]], Selection]

_ROWS_NBYTES = 32 * 2**20
"""Iteration reads at most this many bytes ahead."""


_INSTEAD_OF_CALLS = {
    "view": "; a.astype(dtype) converts the items, a[...].view(dtype) reads them and reinterprets their bytes"
}


def _refuse(*_: Any) -> None:
    """Refuse an assignment, as NumPy does."""
    raise ValueError("assignment destination is read-only")


class Indexer:
    """Calls one function for ``indexer[key]``, and another for ``indexer[key] = value``."""

    __slots__ = ("_get", "_name", "_set", "_url")

    def __init__(
        self,
        name: str,
        url: str,
        get: Callable[[Any], Any],
        set: Callable[[Any, Any], None] = _refuse,
    ) -> None:
        self._name = name
        self._url = url
        self._get = get
        self._set = set

    def __getitem__(self, key: Any) -> Any:
        return self._get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._set(key, value)

    if not TYPE_CHECKING:  # so that type checkers refuse calls

        def __call__(self, *_: object, **__: object) -> NoReturn:
            """Refuse the call with a hint, because `view` is a method in NumPy."""
            hint = _INSTEAD_OF_CALLS.get(self._name, "")
            raise TypeError(f"{self._name} takes a key in brackets, as in a.{self._name}[1:3]{hint}")

    def __repr__(self) -> str:
        return f"<b2array.Indexer of {printable(self._url)}: {self._name}[key]>"


class Readable(Operators):
    """Reads all items that a handle shows; a view overrides the methods that depend on its mapping."""

    __slots__ = ()

    _handle: Handle
    _graph: Any
    """Makes a dask array of this and of chunks."""

    @property
    def _layout(self) -> Layout:
        return self._handle.described.state.require_layout()

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in items."""
        return self._layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the items."""
        return self._layout.dtype

    @property
    def chunks(self) -> tuple[int, ...]:
        """Extents of a chunk in items."""
        return self._layout.chunks

    @property
    def blocks(self) -> tuple[int, ...]:
        """Extents of a block in items."""
        return self._layout.blocks

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of items."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Size of an item in bytes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Size of all items in bytes, without padding and compression.

        As in NumPy, an item of StringDType counts 16 bytes, however long its text is.
        """
        return self.size * self.itemsize

    def __getitem__(self, key: Any) -> Any:
        source = self._handle.source
        layout = source.state.layout or source.state.require_layout()
        where = item(key, layout.shape)
        if where is None or layout.dtype.kind == "V":
            return self._get(key, select)
        try:
            return read_item(source, layout, where)
        except RECOVERABLE:  # a commit through this handle may have removed the chunk
            return self._get(key, select)

    def _get(self, key: Any, rule: Select) -> Any:
        source = self._handle.source
        while True:
            try:
                layout = source.state.layout or source.state.require_layout()
                if layout.dtype.names is None:
                    rest, names = key, None
                else:
                    rest, names = fields(key, layout.dtype)
                selection = rule(rest, layout.shape)
                result: Any = np.empty(selection.shape, layout.dtype)
                read(source, layout, selection.positions, selection.axes, selection.view(result))
                break
            except RECOVERABLE as error:
                source = self._handle.recover(source, error)
        if selection.kind == "scalar":
            result = result[()]
        return result if names is None else select_fields(result, names)

    __setitem__: Any = staticmethod(_refuse)
    _set = __setitem__

    def _mapping(self, shape: tuple[int, ...]) -> Mapping:
        """Return the mapping to the array, which currently has this shape."""
        return Mapping.of(shape)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        handle = self._handle
        if handle.in_transaction:
            # The next change in the transaction would invalidate a result with this name.
            return "b2array", handle.url, uuid4().hex
        return "b2array", handle.url, handle.revision.start, handle.generation

    def _indexer(self, name: str, rule: Select) -> Indexer:
        def get_items(key: Any) -> Any:
            return self._get(key, rule)

        def set_items(key: Any, value: Any) -> None:
            self._set(key, value, rule)

        return Indexer(name, self._handle.url, get_items, set_items)

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing, to read and to assign: each one-dimensional index array or mask selects along one axis.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray(np.arange(12).reshape(3, 4))
        >>> a.oindex[[0, 2], [True, False, False, True]].tolist()
        [[0, 3], [8, 11]]
        """
        return self._indexer("oindex", orthogonal)

    @property
    def vindex(self) -> Indexer:
        """Indexing by points, to read and to assign: index arrays are broadcast, and their dimensions come first.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray(np.arange(24).reshape(2, 3, 4))
        >>> a.vindex[[0, 1], :, [3, 0]].shape, a.vindex[:, [0, 2, 1]].shape
        ((2, 3), (3, 2, 4))
        """
        return self._indexer("vindex", vectorised)

    def __format__(self, spec: str) -> str:
        """Format the item of an array without dimensions, as NumPy does; other arrays take no format."""
        if spec and not self.ndim:
            return format(self[()], spec)
        return super().__format__(spec)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("an array in chunks cannot be seen as a NumPy array without a copy")
        self._warn_if_too_large()
        result: npt.NDArray[Any] = self[...]
        return result if dtype is None else result.astype(dtype, copy=False)

    def _warn_if_too_large(self) -> None:
        """Warn before a NumPy function loads more items than fit into memory."""
        memory = memory_nbytes()
        if memory is None or self.nbytes <= memory:
            return
        needed = f"{self.nbytes / 2**30:.1f} GiB"
        there = f"{memory / 2**30:.1f} GiB"
        warn(
            f"this loads the whole array, {needed}, and the machine has {there} of memory; "
            "a.to_dask() and b2array.map work piece by piece, and a[key] loads a part"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        # Read as many rows at a time as a chunk has, unless they are too large together.
        length = len(self)
        row_nbytes = max(1, self.nbytes // max(1, length))
        step = max(1, min(self.chunks[0], _ROWS_NBYTES // row_nbytes))
        starts = range(0, length, step)
        return (row for start in starts for row in self[start : start + step])

    def to_dask(self, chunks: Any = "auto") -> da.Array:
        """Return a dask array of the current committed state. Items are only read when it is computed.

        Parameters
        ----------
        chunks : "auto", or what dask takes
            By default, each chunk consists of whole stored chunks and is a 32nd of the array, but at least 4 MiB, and
            at most the value of dask's setting ``array.chunk-size``. If a single stored chunk is larger, each chunk
            consists of whole blocks.

        Returns
        -------
        dask.array.Array
            The array, whose name depends only on URL, generation and chunks.

        Raises
        ------
        ValueError
            A transaction is in progress.

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
        return cast("da.Array", self._graph(self, chunks))

    def to_dask_array(self) -> da.Array:
        """Return `to_dask()`. Functions and operators of dask call this method, so that they compute piece by piece.

        Examples
        --------
        >>> import b2array, dask.array as da
        >>> a = b2array.zeros((4, 6), chunks=(2, 3))
        >>> (a - da.ones((4, 6))).mean().compute()
        np.float64(-1.0)
        """
        return self.to_dask()

    # Reductions, which NumPy's functions call as methods.

    sum, prod, mean, std, var = map(reduction, ("sum", "prod", "mean", "std", "var"))
    min, max, argmin, argmax = map(reduction, ("min", "max", "argmin", "argmax"))
    any, all, count_nonzero = map(reduction, ("any", "all", "count_nonzero"))


def select_fields(result: Any, names: str | list[str]) -> Any:
    """Return fields of items; a resulting array is read-only."""
    fields = result[names]
    if isinstance(fields, np.ndarray):
        if isinstance(names, str):
            # A view would keep the memory of all other fields.
            fields = np.array(fields)
        # In NumPy, a["x"][1:3] = 0 changes a. Here it would only change a copy.
        fields.flags.writeable = False
    return fields
