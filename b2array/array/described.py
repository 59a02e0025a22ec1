"""`Described`: what is known of an array without reading items."""

from __future__ import annotations

from typing import Any

import numpy as np

from b2array.array import info as about
from b2array.array.opened import Opened
from b2array.compute.readable import Readable
from b2array.engine.attributes import Attributes
from b2array.engine.handle import Handle
from b2array.errors import FormatError, UnsupportedError, located_error

__all__ = ["Described"]


class Described(Opened, Readable):
    """The part of `b2array.NDArray` that neither reads nor writes items."""

    __slots__ = ()

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        try:
            handle.described.state.require_layout()
        except (FormatError, UnsupportedError) as error:
            raise located_error(handle.url, error) from error

    @property
    def cratio(self) -> float:
        """`nbytes` over `cbytes`; 0.0 if nothing is stored."""
        return self.nbytes / self.cbytes if self.cbytes else 0.0

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
        """The value of items that were never written, as a NumPy scalar."""
        state = self._handle.described.state
        layout, fill = state.layout or state.require_layout(), state.annotations.fill
        if fill is None or len(fill) != layout.dtype.itemsize:
            return np.zeros((), layout.dtype)[()]
        return np.frombuffer(fill, layout.dtype)[0]

    @property
    def dims(self) -> tuple[str | None, ...] | None:
        """Names of the dimensions, if they have any."""
        state = self._handle.described.state
        layout, dims = state.layout or state.require_layout(), state.annotations.dims
        return dims if dims is not None and len(dims) == len(layout.shape) else None

    @property
    def attrs(self) -> Attributes:
        """The attributes, a mapping. Each assignment is a commit."""
        return self._attrs

    @property
    def info(self) -> about.Info:
        """A description that prints as a table."""
        frame, attrs = self._handle.frame, self._shown_attrs()
        rows = {
            "url": self.url,
            "mode": self.mode,
            "layout": frame.frame_type.name.lower(),
            "commits": self._handle.store.guarantee,
            "shape": self.shape,
            "dtype": str(self.dtype),
            "chunks": self.chunks,
            "blocks": self.blocks,
            "grid": self.grid_shape,
            "fill value": self.fill_value,
            "dims": self.dims,
            "codec": about.codec(self.cparams),
            "filters": about.filters(self.cparams),
            "nbytes": about.nbytes(self.nbytes),
            "cbytes": about.nbytes(self.cbytes),
            "ratio": f"{self.cratio:.2f}",
            "metalayers": ", ".join(name for name, _ in frame.metalayers),
            "fingerprint": frame.fingerprint.hex() if frame.fingerprint_type else "none",
            "generation": self.generation,
            "attrs": ", ".join(f"{name}={value!r}" for name, value in attrs.items()) or "none",
        }
        return about.Info(rows, lambda: about.array_page(rows, self._layout, attrs))

    def _shown_attrs(self) -> dict[str, Any]:
        try:
            return dict(self.attrs)
        except (FormatError, UnsupportedError) as error:
            return {"cannot be read": str(error)}
