"""`Handle`: what is known of an array without its items, and the states that it goes through."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from b2array.array import info as display
from b2array.codec.cparams import CParams
from b2array.engine.schunk import Layers, Mode, SChunk
from b2array.engine.snapshot import Source
from b2array.engine.transaction import extras_of
from b2array.errors import located
from b2array.format import geometry
from b2array.grid.layout import Layout

__all__ = ["Handle"]


class Handle:
    """The part of `b2array.NDArray` that neither reads nor writes items."""

    __slots__ = ("__weakref__", "_held", "_known")

    def __init__(self, held: SChunk) -> None:
        self._held = held
        self._known: tuple[object, Layout] | None = None
        self._layout_in(held.source)

    def _layout_in(self, source: Source) -> Layout:
        """Return what the metalayers of `source` say, which are looked at again only if they are others."""
        layers, known = source.frame.metalayers, self._known
        if known is None or known[0] is not layers:
            known = self._known = layers, located(source.url, lambda: geometry.layout_of(source.frame))
        return known[1]

    @property
    def _layout(self) -> Layout:
        return self._layout_in(self._held.source)

    @property
    def in_transaction(self) -> bool:
        """Whether changes wait for the end of a transaction."""
        return self._held.in_transaction

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
        return type(self), (self._held,)
