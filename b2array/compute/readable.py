"""`Readable`: what arrays and views have in common, everything that reads; and `View`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from b2array.compute import pieces
from b2array.compute.indexers import Indexer, Select, refuse
from b2array.compute.mapping import Mapping
from b2array.compute.operators import Operators
from b2array.compute.reductions import reduction
from b2array.engine.handle import Handle
from b2array.engine.source import Source
from b2array.grid.selection import fields, orthogonal, select, vectorised

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["Readable", "View"]

R = TypeVar("R")

_ROWS_NBYTES = 32 * 2**20
"""Iteration reads at most this many bytes ahead."""


class Readable(Operators):
    """Reads the items of an array, or of a view of it."""

    __slots__ = ()

    _handle: Handle

    @property
    @abstractmethod
    def chunks(self) -> tuple[int, ...]:
        """Extents in items of the best part to read at once."""

    @property
    @abstractmethod
    def blocks(self) -> tuple[int, ...]:
        """Extents in items of the smallest part to read."""

    @abstractmethod
    def _get(self, key: Any, rule: Select) -> Any: ...

    @abstractmethod
    def _set(self, key: Any, value: Any, rule: Select) -> None: ...

    def _view(self, mapping: Mapping) -> View:
        return View(self, mapping)

    @abstractmethod
    def _mapping(self, shape: tuple[int, ...]) -> Mapping:
        """Return what this shows of the array, which has this shape now."""

    @abstractmethod
    def _showing(self, handle: Handle) -> Self:
        """Return the same view of another state."""

    @abstractmethod
    def __dask_tokenize__(self) -> tuple[Any, ...]: ...

    def _indexer(self, rule: Select) -> Indexer:
        return Indexer(lambda key: self._get(key, rule), lambda key, value: self._set(key, value, rule))

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
        return self._indexer(orthogonal)

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
        return self._indexer(vectorised)

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
        # One read serves as many rows as a chunk has, unless they are too large together.
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

    # Views.

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
        return Indexer(lambda key: self._view(self._shown().sliced(key)))

    def _shown(self) -> Mapping:
        return self._mapping(self._handle.source.state.require_layout().shape)

    def transpose(self, *axes: Any) -> View:
        """Return a lazy view with another order of the axes, as `numpy.transpose`."""
        return self._view(self._shown().transposed(*axes))

    def squeeze(self, axis: Any = None) -> View:
        """Return a lazy view without axes of length 1, as `numpy.squeeze`."""
        shown = self._shown()
        return self._view(shown.reshaped(shown.model.squeeze(axis).shape))

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
        shown = self._shown()
        return self._view(shown.reshaped(shown.model.reshape(*shape).shape))

    # Reductions, which NumPy's functions call.

    sum, prod, mean, std, var = map(reduction, ("sum", "prod", "mean", "std", "var"))
    min, max, argmin, argmax = map(reduction, ("min", "max", "argmin", "argmax"))
    any, all, count_nonzero = map(reduction, ("any", "all", "count_nonzero"))


class View(Readable):
    """A lazy, read-only view of an array: a part of it, or another arrangement.

    It shows what the handle of its array shows, and reads only what you ask for. If the array gets another shape, its
    views become useless.
    """

    __slots__ = ("__weakref__", "_array", "_fixed")

    def __init__(self, array: Any, mapping: Mapping) -> None:
        self._array = array
        self._fixed = mapping

    @property
    def _handle(self) -> Handle:  # type: ignore[override]
        return cast(Handle, self._array._handle)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in items."""
        return self._fixed.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the items."""
        return cast(np.dtype[Any], self._array.dtype)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Extents in items of what about one chunk of the array holds."""
        return self._fixed.covering(self._array.chunks)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Extents in items of what about one block of the array holds."""
        return self._fixed.covering(self._array.blocks)

    def to_dask(self, chunks: Any = "auto") -> da.Array:
        """Return a dask array that reads what is committed now; parameters as for `NDArray.to_dask`."""
        return cast("da.Array", self._array._graph(self, chunks))

    def __getitem__(self, key: Any) -> Any:
        return self._get(key, select)

    __setitem__ = staticmethod(refuse)
    _set = cast(Any, __setitem__)

    def _get(self, key: Any, rule: Select) -> Any:
        rest, names = fields(key, self.dtype)
        selection = rule(rest, self.shape)
        result: Any = np.empty(selection.shape, self.dtype)

        def attempt(source: Source) -> None:
            layout = source.state.require_layout()
            pieces.fill(source, layout, self._mapping(layout.shape), selection, result)

        self._handle.reading(attempt)
        if selection.kind == "scalar":
            result = result[()]
        return result if names is None else result[names]

    def _mapping(self, shape: tuple[int, ...]) -> Mapping:
        if shape != self._fixed.shape:
            raise ValueError(f"this is a view of an array of shape {self._fixed.shape}, which has become {shape}")
        return self._fixed

    def _view(self, mapping: Mapping) -> View:
        return View(self._array, mapping)

    def _showing(self, handle: Handle) -> View:
        return View(self._array._showing(handle), self._fixed)

    def __repr__(self) -> str:
        return f"<b2array.View of {self._handle.url} shape={self.shape} dtype={self.dtype}>"

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return *self._array.__dask_tokenize__(), self._fixed
