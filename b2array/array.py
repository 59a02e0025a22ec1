"""`NDArray`: an array in chunks that is read and written as NumPy arrays are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from b2array import b2nd, config, display, indexing, transfer
from b2array.b2nd import Layout
from b2array.draft import Draft, extras_of
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.indexing import Selection
from b2array.params import CParams
from b2array.schunk import Layers, Mode, SChunk
from b2array.snapshot import located

__all__ = ["NDArray"]

_NOT_DATA = ("b2o", "LazyArray", "proxy-source")
"""Metalayers of python-blosc2 that say that the chunks do not hold the array's values."""


class NDArray:
    """An n-dimensional array in compressed chunks.

    Made by `b2array.open`, `b2array.create` and their relatives. Indexing reads and writes as NumPy does; every assignment
    is one commit, unless it is part of a `transaction`. A handle shows one committed state: its own commits move it on, those
    of others are seen after `refresh`. Threads may share a handle.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), dtype="i4")
    >>> a[1, ::2] = 7
    >>> a[1]
    array([7, 0, 7, 0, 7, 0], dtype=int32)
    """

    __slots__ = ("__weakref__", "_held", "_layout", "_layout_of")

    # NumPy arrays let this class handle mixed operators no differently than other sequences.
    def __init__(self, held: SChunk) -> None:
        self._held = held
        self._layout_of: object = None
        self._layout = self.layout

    @property
    def layout(self) -> Layout:
        """Shapes of array, chunks and blocks, and the type of the items."""
        layers = self._held.frame.metalayers
        if self._layout_of is not layers:
            self._layout = located(self._held.url, lambda: _layout(self._held))
            self._layout_of = layers
        return self._layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in items."""
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the items."""
        return self.layout.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.layout.ndim

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
        return self.layout.chunks

    @property
    def blocks(self) -> tuple[int, ...]:
        """Extents of a block in items."""
        return self.layout.blocks

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of chunks along each dimension."""
        return self.layout.grid_shape

    @property
    def nchunks(self) -> int:
        """Number of chunks."""
        return self.layout.nchunks

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
        """ "r" or "r+"."""
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
        rest, names = indexing.fields(key, self.dtype)
        result = self._read(indexing.select(rest, self.shape))
        if names is None:
            return result
        # A copy, so that a field does not keep the memory of all others.
        return np.array(result[names]) if isinstance(names, str) else result[names]

    def _read(self, selection: Selection) -> Any:
        layout = self.layout
        result = np.empty(selection.shape, layout.dtype)
        transfer.read(self._held.source, layout, selection.index, selection.axes, selection.view(result))
        return result[()] if selection.is_scalar else result

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("an array in chunks cannot be seen as a NumPy array without a copy")
        result: npt.NDArray[Any] = self._read(indexing.select((...,), self.shape))
        return result if dtype is None else result.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        # One read of a row of chunks serves all rows in it.
        step = max(1, self.chunks[0])
        for start in range(0, self.shape[0], step):
            yield from self[start : start + step]

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __complex__(self) -> complex:
        return complex(np.asarray(self))

    def __index__(self) -> int:
        return np.asarray(self).__index__()

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
        rest, names = indexing.fields(key, self.dtype)
        selection = indexing.select(rest, self.shape)
        self._write(selection, value, names)

    def _write(self, selection: Selection, value: Any, names: str | list[str] | None = None) -> None:
        array = np.asarray(value)
        for attempt in range(config.retries + 1):
            try:
                with self._held.changing() as draft:
                    self._put(draft, selection, array, names)
                return
            except ConflictError:
                if self._held.in_transaction or attempt == config.retries:
                    raise
                shape = self.shape
                self._held.refresh()
                if self.shape != shape:
                    raise

    def _put(self, draft: Draft, selection: Selection, value: npt.NDArray[Any], names: str | list[str] | None) -> None:
        layout = self.layout
        if names is not None:
            value = self._with_fields(selection, value, names)
        box = selection.spread(_storable(value, layout.dtype))
        if box.size:
            transfer.write(draft, layout, selection.index, selection.axes, box, cparams=self._held.frame.cparams)

    def _with_fields(self, selection: Selection, value: npt.NDArray[Any], names: str | list[str]) -> npt.NDArray[Any]:
        old = self._read(selection)
        whole = np.asarray(old)
        whole[names] = value
        return whole

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Make everything that is changed through this handle inside the ``with`` block one commit, or nothing if it raises.

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


def _storable(value: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert where NumPy's assignment would convert before it copies; raises what it raises."""
    if value.dtype == dtype:
        return value
    if value.dtype == object or dtype.kind in "SUVMm" or value.dtype.kind in "SUVMm":
        target = np.empty(value.shape, dtype)
        target[...] = value
        return target
    if not np.can_cast(value.dtype, dtype, "unsafe"):
        raise TypeError(f"cannot cast from {value.dtype} to {dtype}")
    return value


def _layout(held: SChunk) -> Layout:
    frame = held.frame
    for name in _NOT_DATA:
        if frame.metalayer(name) is not None:
            raise UnsupportedError(f"the metalayer {name!r} says that the stored values are not the array's data")
    raw = frame.metalayer("b2nd")
    if raw is not None:
        layout = b2nd.unpack(raw, chunksize=frame.chunksize)
    else:
        raw = frame.metalayer("caterva")
        if raw is None:
            raise FormatError("expected a metalayer 'b2nd' or 'caterva' of an array, found a plain super-chunk")
        layout = b2nd.unpack_caterva(raw, frame.typesize)
    if layout.nchunks != frame.nchunks:
        raise FormatError(f"expected {layout.nchunks} chunks for the shape {layout.shape}, found {frame.nchunks}")
    if frame.nchunks and frame.chunksize != layout.chunk_nbytes:
        raise FormatError(f"expected chunks of {layout.chunk_nbytes} bytes, found {frame.chunksize}")
    return layout
