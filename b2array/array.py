"""`NDArray`: an array in chunks that is read and written as NumPy arrays are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import EllipsisType
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from b2array import assignment, b2nd, display, indexing, transfer
from b2array.b2nd import Layout
from b2array.draft import Draft, extras_of
from b2array.errors import ConflictError, FormatError, ReadOnlyError, UnsupportedError
from b2array.frame import Frame
from b2array.indexing import Selection
from b2array.params import CParams
from b2array.schunk import Layers, Mode, SChunk
from b2array.snapshot import Source, located

__all__ = ["NOT_DATA", "Indexer", "NDArray"]

NOT_DATA = ("b2o", "LazyArray", "proxy-source")
"""Metalayers of python-blosc2 that say that the chunks do not hold the array's values."""

Select = Callable[[Any, Sequence[int]], Selection]

_ROWS_NBYTES = 32 * 2**20
"""Iteration reads at most about so many bytes ahead."""


class NDArray:
    """An n-dimensional array in compressed chunks.

    Made by `b2array.open`, `b2array.create` and their relatives. Indexing reads and writes as NumPy does; every
    assignment is one commit, unless it is part of a `transaction`. A handle shows one committed state: its own commits
    move it on, those of others are seen after `refresh`. Threads may share a handle.

    What is read is a copy: assign to the handle, not to what it returned. There are no operators: ``a == b`` of two
    handles asks whether they are the same one, and ``a[...] == b[...]`` compares items. NumPy's functions, and
    operators with a NumPy array on one side, read the whole array.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), dtype="i4")
    >>> a[1, ::2] = 7
    >>> a[1]
    array([7, 0, 7, 0, 7, 0], dtype=int32)
    """

    __slots__ = ("__weakref__", "_held", "_known")

    def __init__(self, held: SChunk) -> None:
        self._held = held
        self._known: tuple[object, Layout] | None = None
        self._layout_in(held.source)

    def _layout_in(self, source: Source) -> Layout:
        """Return what the metalayers of `source` say, which are looked at again only if they are others."""
        layers, known = source.frame.metalayers, self._known
        if known is None or known[0] is not layers:
            known = self._known = layers, located(source.url, lambda: _layout(source.frame))
        return known[1]

    @property
    def _layout(self) -> Layout:
        return self._layout_in(self._held.source)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in items."""
        return self._layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the items."""
        return self._layout.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._layout.ndim

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
        """Size of all items in bytes, without padding and compression."""
        return self.size * self.itemsize

    @property
    def cbytes(self) -> int:
        """Compressed size of the chunks in bytes, as the frame has it."""
        return self._held.cbytes

    @property
    def cratio(self) -> float:
        """`nbytes` over `cbytes`; 0.0 if nothing is stored."""
        return self.nbytes / self.cbytes if self.cbytes else 0.0

    @property
    def chunks(self) -> tuple[int, ...]:
        """Extents of a chunk in items."""
        return self._layout.chunks

    @property
    def blocks(self) -> tuple[int, ...]:
        """Extents of a block in items."""
        return self._layout.blocks

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of chunks along each dimension."""
        return self._layout.grid_shape

    @property
    def nchunks(self) -> int:
        """Number of chunks."""
        return self._layout.nchunks

    @property
    def fill_value(self) -> Any:
        """What items are that were never written, as a NumPy scalar."""
        fill = extras_of(self._held.frame).fill
        if fill is None or len(fill) != self.itemsize:
            return np.zeros((), self.dtype)[()]
        return np.frombuffer(fill, self.dtype)[0]

    @property
    def dims(self) -> tuple[str | None, ...] | None:
        """Names of the dimensions, if they have any."""
        dims = extras_of(self._held.frame).dims
        return dims if dims is not None and len(dims) == self.ndim else None

    @property
    def attrs(self) -> Layers:
        """The attributes: a mapping, each assignment to which is a commit."""
        return self._held.vlmeta

    @property
    def meta(self) -> Mapping[str, Any]:
        """The metalayers, which were fixed when the array was created."""
        return self._held.meta

    @property
    def url(self) -> str:
        """Where the array is, without secrets; "memory" if nowhere else."""
        return self._held.url

    @property
    def mode(self) -> Mode:
        """For reading ("r"), or for reading and changing ("r+")."""
        return self._held.mode

    @property
    def cparams(self) -> CParams:
        """How new chunks are made."""
        return self._held.cparams

    @property
    def generation(self) -> str:
        """Names the committed state that this handle shows; changes with every commit."""
        return self._held.generation

    @property
    def info(self) -> display.Info:
        """A description that prints as a table."""
        frame = self._held.frame
        return display.Info(
            {
                "url": self.url,
                "mode": self.mode,
                "layout": frame.frame_type.name.lower(),
                "commits": self._held.store.guarantee,
                "shape": self.shape,
                "dtype": str(self.dtype),
                "chunks": self.chunks,
                "blocks": self.blocks,
                "grid": self.grid_shape,
                "fill value": self.fill_value,
                "dims": self.dims,
                "codec": display.codec(self.cparams),
                "filters": display.filters(self.cparams),
                "nbytes": display.nbytes(self.nbytes),
                "cbytes": display.nbytes(self.cbytes),
                "ratio": f"{self.cratio:.2f}",
                "metalayers": ", ".join(name for name, _ in frame.metalayers),
                "fingerprint": frame.fingerprint.hex() if frame.fingerprint_type else "none",
                "generation": self.generation,
            }
        )

    # Reading.

    def __getitem__(self, key: Any) -> Any:
        source = self._held.source
        layout = self._layout_in(source)
        where = indexing.item(key, layout.shape)
        if where is None or layout.dtype.kind == "V":
            return self._get(key, indexing.select)
        return transfer.read_item(source, layout, where)

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
        chunks, grid = self.chunks, self.grid_shape
        return Indexer(self, lambda key, shape: indexing.select(_spanned(key, shape, chunks, grid), shape))

    def _get(self, key: Any, select: Select) -> Any:
        def read(source: Source) -> tuple[Any, str | list[str] | None]:
            layout = self._layout_in(source)
            rest, names = indexing.fields(key, layout.dtype)
            return _read(source, layout, select(rest, layout.shape)), names

        result, names = self._held.reading(read)
        # A copy, so that a field does not keep the memory of all others.
        return np.array(result[names]) if isinstance(names, str) else result if names is None else result[names]

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

    def get_chunk(self, n: int) -> bytes:
        """Return chunk `n`, in C order of the grid, as it is stored."""
        return self._held.get_chunk(n)

    def to_bytes(self) -> bytes:
        """Return the array as one contiguous frame; chunks are copied, not compressed anew."""
        return self._held.to_bytes()

    # Writing.

    def __setitem__(self, key: Any, value: Any) -> None:
        self._set(key, value, indexing.select)

    def _set(self, key: Any, value: Any, select: Select) -> None:
        if self.mode == "r":
            raise ReadOnlyError(f"{self.url} was opened for reading; open it with mode='r+' to change it")
        layout = self._layout
        rest, names = indexing.fields(key, layout.dtype)
        selection = select(rest, layout.shape)
        box, names = assignment.arrange(value, selection, layout.dtype, names)
        if not box.size:
            return

        def assign(draft: Draft) -> None:
            now = self._layout_in(draft)
            _check_same(self.url, layout, now)
            index, axes, cparams = selection.index, selection.axes, draft.frame.cparams
            transfer.write(draft, now, index, axes, box, cparams=cparams, fields=names)

        self._held.change(assign, anywhere=True)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Make everything that is changed through this handle inside the ``with`` block one commit.

        If the block raises, nothing has happened.

        Raises
        ------
        ValueError
            A transaction is under way already.
        ConflictError
            Another writer changed what was read or written in the block. Nothing has happened then.
        """
        with self._held.transaction():
            yield self

    def refresh(self) -> None:
        """Show what others have committed since this handle was opened or last changed something."""
        self._held.refresh()

    def close(self) -> None:
        """Let go of files. The handle can be used again."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return NDArray, (self._held,)


class Indexer:
    """Reads and writes a handle's array by another rule than its own brackets."""

    __slots__ = ("_array", "_select")

    def __init__(self, array: NDArray, select: Select) -> None:
        self._array = array
        self._select = select

    def __getitem__(self, key: Any) -> Any:
        return self._array._get(key, self._select)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._array._set(key, value, self._select)


def _read(source: Source, layout: Layout, selection: Selection) -> Any:
    result = np.empty(selection.shape, layout.dtype)
    transfer.read(source, layout, selection.index, selection.axes, selection.view(result))
    return result[()] if selection.is_scalar else result


def _spanned(key: Any, shape: Sequence[int], chunks: tuple[int, ...], grid: tuple[int, ...]) -> tuple[slice, ...]:
    """Turn a key to the grid of chunks into slices of the array."""
    for entry in key if isinstance(key, tuple) else (key,):
        plain = isinstance(entry, int | np.integer | EllipsisType) and not isinstance(entry, bool)
        if not plain and not (isinstance(entry, slice) and entry.step in (None, 1)):
            raise IndexError(f"only integers, slices without step and ellipsis (`...`) select chunks, found {entry!r}")
    found = cast(tuple[slice, ...], indexing.select(key, grid).index)
    return tuple(slice(i.start * c, min(i.stop * c, n)) for i, c, n in zip(found, chunks, shape, strict=True))


def _check_same(url: str, before: Layout, now: Layout) -> None:
    if now.shape != before.shape or now.dtype != before.dtype:
        raise ConflictError(f"{url} has become an array of shape {now.shape} and type {now.dtype}")


def _layout(frame: Frame) -> Layout:
    layout = _declared(frame)
    if layout.nchunks != frame.nchunks:
        raise FormatError(f"expected {layout.nchunks} chunks for the shape {layout.shape}, found {frame.nchunks}")
    if frame.nchunks and frame.chunksize != layout.chunk_nbytes:
        raise FormatError(f"expected chunks of {layout.chunk_nbytes} bytes, found {frame.chunksize}")
    if layout.dtype.subdtype is None:
        return layout
    # As NumPy does: items that are arrays are further dimensions.
    base, inner = layout.dtype.subdtype
    if layout.ndim + len(inner) > b2nd.MAX_NDIM:
        raise UnsupportedError(
            f"{layout.ndim} dimensions of items of shape {inner}: at most {b2nd.MAX_NDIM} are possible"
        )
    shape, chunks, blocks = (extents + inner for extents in (layout.shape, layout.chunks, layout.blocks))
    return replace(layout, shape=shape, chunks=chunks, blocks=blocks, dtype=base)


def _declared(frame: Frame) -> Layout:
    for name in NOT_DATA:
        if frame.metalayer(name) is not None:
            raise UnsupportedError(f"the metalayer {name!r} says that the stored values are not the array's data")
    raw = frame.metalayer("b2nd")
    if raw is not None:
        return b2nd.unpack(raw, chunksize=frame.chunksize)
    raw = frame.metalayer("caterva")
    if raw is None:
        raise FormatError(
            "expected a metalayer 'b2nd' or 'caterva' of an array, found a plain super-chunk (see b2array.open_schunk)"
        )
    return b2nd.unpack_caterva(raw, frame.typesize)
