"""`NDArray`: an array in chunks that is read and written as NumPy arrays are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Self, cast
from uuid import uuid4

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

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed

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
        chunks, grid = self.chunks, self.grid_shape
        return Indexer(self, lambda key, shape: indexing.select(_spanned(key, shape, chunks, grid), shape))

    def _get(self, key: Any, select: Select) -> Any:
        source = self._held.source
        layout = self._layout_in(source)
        rest, names = indexing.fields(key, layout.dtype)
        result = _read(source, layout, select(rest, layout.shape))
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
        from b2array.dask_io import to_dask

        return to_dask(self, chunks)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        if self._held.in_transaction:
            return "b2array", self.url, uuid4().hex
        return "b2array", self.url, self._held.committed.start, self.generation

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

        def put(draft: Draft) -> None:
            now = self._layout_in(draft)
            _check_same(self.url, layout, now)
            index, axes, cparams = selection.index, selection.axes, draft.frame.cparams
            transfer.write(draft, now, index, axes, box, cparams=cparams, fields=names)

        self._held.change(put, anywhere=True)

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
        from b2array.dask_io import store

        return store(
            self, x, region, compute=compute, return_stored=return_stored, resume=resume, progress=progress,
            scheduler=scheduler,
        )  # fmt: skip

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
