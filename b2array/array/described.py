"""The metadata of arrays and super-chunks, without reading items: `Opened`, `Described`, and `Attributes`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from b2array import neighbours
from b2array.array import array_snapshots
from b2array.array.array_snapshots import SnapshotInfo
from b2array.array.constant import constant
from b2array.array.drafts import check_dims
from b2array.codec.cparams import CParams
from b2array.commit.changes import LOWEST_CODE
from b2array.commit.frame_commit import commit
from b2array.commit.frame_locks import writers_lock
from b2array.commit.handle import Handle, Mode
from b2array.commit.prepare import copy_frame
from b2array.compute.operators import free_nbytes
from b2array.compute.readable import Readable
from b2array.display import text_tables
from b2array.errors import B2ArrayError, FormatError, UnsupportedError, prefix_error
from b2array.format.attributes import decode_attr, encode_attr
from b2array.format.frame_header import FrameType
from b2array.format.strings import item_of
from b2array.frame.kept_states import ledger_in
from b2array.printable import printable
from b2array.store.memory import MemoryStore

__all__ = ["Attributes", "Described", "Opened"]

_CORNERS_NBYTES = 16 * 2**20
"""The maximum number of bytes to decode for the items that a page shows."""


class Opened:
    """The part of `b2array.NDArray` and `b2array.SChunk` that concerns neither items nor chunks."""

    __slots__ = ("__weakref__", "_handle")

    def __init__(self, handle: Handle) -> None:
        if not isinstance(handle, Handle):
            raise TypeError(f"b2array.{type(self).__name__} is made by {self._makers}")
        self._handle = handle

    _makers: str
    """The functions that users call instead of the class."""

    @property
    def url(self) -> str:
        """The URL, without secrets; "memory" for an object in memory."""
        return self._handle.url

    @property
    def mode(self) -> Mode:
        """The mode: "r" for reading, or "r+" for reading and changing."""
        return self._handle.mode

    @property
    def in_transaction(self) -> bool:
        """Whether changes wait for the end of a transaction."""
        return self._handle.in_transaction

    def _remark(self) -> str:
        """Return the end of the repr: that a transaction is under way, or which snapshot this is."""
        if self.in_transaction:
            return ", in a transaction"
        name = self._handle.revision.shown_at
        return f", at the snapshot {printable(repr(name))}" if name else ""

    @property
    def generation(self) -> str:
        """An identifier of the committed state that this handle shows, which changes with every commit."""
        return self._handle.generation

    @property
    def cbytes(self) -> int:
        """The compressed size of the chunks in bytes, according to the frame."""
        return self._handle.described.state.frame.cbytes

    @property
    def cparams(self) -> CParams:
        """The compression parameters for new chunks."""
        try:
            return self._handle.described.state.cparams
        except UnsupportedError as error:
            raise prefix_error(self.url, error) from error

    @property
    def meta(self) -> Mapping[str, Any]:
        """The metalayers, which never change: decoded if they are msgpack, else bytes."""
        metalayers = self._handle.described.state.frame.metalayers
        return MappingProxyType({name: _decode(raw) for name, raw in metalayers})

    def transaction(self) -> AbstractContextManager[Self]:
        """Combine all changes through this handle inside the ``with`` block into one commit.

        The transaction includes the writes of other threads through the handle, one at a time, and all reads through
        the handle see the changes. If the block raises an error, nothing is changed.

        Raises
        ------
        ValueError
            A transaction is already under way.
        ConflictError
            Another writer changed items that were read or written in the block. In this case nothing has changed.
        """
        return text_tables.Block(f"a transaction of {self.url}", self._changing())

    @contextmanager
    def _changing(self) -> Iterator[Self]:
        with self._handle.transaction():
            yield self

    @contextmanager
    def lock(self) -> Iterator[Self]:
        """Refresh the handle, and make all other writers wait until the ``with`` block ends.

        Each change in the block is a commit, unless a `transaction` joins them. Threads that share the handle also
        wait. This works only in stores with locks: local files and memory. Elsewhere a change raises ConflictError if
        another writer was faster.

        Raises
        ------
        UnsupportedError
            The store has no locks.
        ValueError
            The block is inside another `lock` block, or inside a transaction.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray([1, 2, 3])
        >>> with a.lock():
        ...     total = a[...].sum()
        ...     a.append([total])
        (4,)
        """
        handle = self._handle
        handle.require_writable()
        if not handle.store.can.lock:
            raise UnsupportedError(f"{self.url}: there are no locks in this place; changes are compared when committed")
        with handle.mutex.held:
            if handle.locked or handle.in_transaction:
                raise ValueError("the lock is held already, or a transaction is under way on this handle")
            with writers_lock(handle.store, handle.revision.name):
                handle.refresh()
                handle.locked = True
                try:
                    yield self
                finally:
                    handle.locked = False

    def refresh(self) -> None:
        """Show the latest committed state, with all commits of other writers."""
        self._handle.refresh()

    def snapshot(
        self,
        name: str,
        message: str = "",
        attrs: Mapping[str, Any] | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Keep the committed state under a name; in a transaction, the state after its commit.

        A snapshot stores an index, but no chunks, because later commits do not overwrite its chunks. Open it with
        ``b2array.open(url, at=name)``.

        Parameters
        ----------
        name : str
            The name, of at most 255 bytes.
        message : str, optional
            A remark.
        attrs : mapping, optional
            Attributes of the snapshot, with values as for attributes of arrays.
        replace : bool, default False
            Whether to replace a snapshot with this name.

        Raises
        ------
        FileExistsError
            A snapshot has this name already.
        ConflictError
            Another writer has committed since the state that this handle shows. In this case nothing has changed.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.zeros(3, "i4", url="memory://kept.b2nd")
        >>> a.snapshot("start", "before the first step")
        >>> a[:] = 7
        >>> b2array.open("memory://kept.b2nd", at="start")[...].tolist()
        [0, 0, 0]
        >>> a.restore("start")
        >>> a[...].tolist(), [each.name for each in a.snapshots]
        ([0, 0, 0], ['start'])
        """
        array_snapshots.keep(self._handle, name, message, attrs, replace=replace)

    @property
    def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """The snapshots, the oldest first. Their indexes are read to count the bytes that only one snapshot needs."""
        return array_snapshots.list_snapshots(self._handle)

    def restore(self, name: str) -> None:
        """Restore items, shape and attributes of a snapshot, in one commit. All snapshots are preserved.

        Raises
        ------
        KeyError
            No snapshot has this name.
        """
        array_snapshots.restore(self._handle, name)

    def drop_snapshot(self, name: str) -> None:
        """Remove a snapshot. Then `b2array.vacuum` or `b2array.repack` frees the space that only this snapshot needed.

        Raises
        ------
        KeyError
            No snapshot has this name.
        """
        array_snapshots.drop(self._handle, name)

    def close(self) -> None:
        """Close all files. The handle opens them again when necessary."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._handle,)

    def __copy__(self) -> Self:
        """Return another handle of the same array. Both share state, changes and transaction."""
        return type(self)(self._handle)

    def __deepcopy__(self, _: object) -> Self:
        """Return a copy in memory with the same compression. To store it elsewhere, use `copy`."""
        free = free_nbytes()
        if self.cbytes > free // 2:
            raise MemoryError(
                f"{self!r} takes {self.cbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: a deep copy is in "
                "memory; b2array.copy(a, url) makes one in a file"
            )
        new = self._handle.reading(lambda source: copy_frame(source, MemoryStore(), FrameType.CONTIGUOUS))
        return type(self)(Handle(commit(new), "r+"))


class Described(Opened, Readable):
    """The part of `b2array.NDArray` that neither reads nor writes items."""

    __slots__ = ()

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        try:
            handle.described.state.require_layout()
        except (FormatError, UnsupportedError) as error:
            raise prefix_error(handle.url, error) from error

    @property
    def cratio(self) -> float:
        """The compression ratio: `nbytes` divided by `cbytes`; infinite if nothing is stored.

        For text of any length, it is the size of the text with the lengths of the items, divided by `cbytes`.
        """
        nbytes = self._handle.frame.nbytes if self._layout.is_text else self.nbytes
        return nbytes / self.cbytes if self.cbytes else math.inf

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """The number of chunks along each dimension."""
        return self._layout.grid_shape

    @property
    def nchunks(self) -> int:
        """The number of chunks."""
        return self._layout.nchunks

    @property
    def nchunks_initialized(self) -> int:
        """The number of chunks that are stored. The others have only one value, which the index names.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.zeros(40, chunks=10)
        >>> a[15] = 1
        >>> a.nchunks, a.nchunks_initialized
        (4, 1)
        """
        return int(np.count_nonzero(self._handle.frame.offsets >= LOWEST_CODE))

    @property
    def fill_value(self) -> Any:
        """The value of items that were never written, as a NumPy scalar."""
        state = self._handle.described.state
        layout, fill = state.require_layout(), state.annotations.fill
        if fill is None or not (layout.is_text or len(fill) == layout.dtype.itemsize):
            return np.zeros((), layout.dtype)[()]
        return item_of(fill, layout.dtype)

    @property
    def dims(self) -> tuple[str | None, ...] | None:
        """The names of the dimensions, or None. An assignment is a commit; None removes the names."""
        state = self._handle.described.state
        layout, dims = state.require_layout(), state.annotations.dims
        return dims if dims is not None and len(dims) == len(layout.shape) else None

    @dims.setter
    def dims(self, names: Sequence[str | None] | None) -> None:
        checked = check_dims(names, len(self.shape))
        # A draft has no change if the names are those that the handle shows, which another writer may have replaced.
        if checked == self.dims and self._handle.draft is None:
            self._handle.refresh()
        for attempt in self._handle.attempts(anywhere=True):
            with attempt as draft:
                draft.annotate(dims=checked)

    @property
    def attrs(self) -> Attributes:
        """The attributes, as a mapping. Each assignment is a commit."""
        return Attributes(self._handle)

    @property
    def info(self) -> text_tables.Info:
        """A description of the array, which is printed as a table."""
        rows, attrs = self._rows()
        return text_tables.Info(rows, lambda: text_tables.array_page(rows, self._layout, attrs))

    def _page(self) -> str:
        """Describe the array in HTML, without its items."""
        return self.info._repr_html_()

    def _repr_html_(self) -> str:
        rows, attrs = self._rows()
        return text_tables.array_page(rows, self._layout, attrs, self._values())

    def _values(self) -> str:
        """Format a few items like NumPy; return nothing for remote items, or if too many bytes would be decoded."""
        layout = self._layout
        # For a large array, NumPy shows the items in the corners, which are in two blocks along each axis.
        long_axes = sum(n > block for n, block in zip(layout.shape, layout.blocks, strict=True))
        corners = 2**long_axes
        if not self._handle.source.is_local or corners * layout.block_nbytes > _CORNERS_NBYTES:
            return ""
        try:
            return text_tables.corners(self.shape, self.itemsize, lambda key: self.oindex[key])
        except (B2ArrayError, OSError) as error:
            return f"cannot be read: {error}"

    def _rows(self) -> tuple[dict[str, Any], dict[str, Any]]:
        frame, attrs = self._handle.frame, self._attr_rows()
        rows = {
            "url": self.url,
            "mode": self.mode,
            "layout": frame.frame_type.name.lower(),
            "commits": self._handle.store.can.guarantee,
            "shape": self.shape,
            "dtype": str(self.dtype),
            "chunks": self.chunks,
            "blocks": self.blocks,
            "grid": self.grid_shape,
            "fill value": text_tables.item(self.fill_value),
            "dims": self.dims,
            "codec": text_tables.codec(self.cparams),
            "filters": text_tables.filters(self.cparams),
            "errors": text_tables.errors(self.cparams),
            "nbytes": text_tables.nbytes(self.nbytes),
            "cbytes": text_tables.nbytes(self.cbytes),
            "ratio": f"{self.cratio:.2f}",
            "metalayers": ", ".join(name for name, _ in frame.metalayers),
            "fingerprint": frame.fingerprint.hex() if frame.fingerprint_type else "none",
            "generation": self.generation,
            **self._snapshot_rows(),
            **self._cache_rows(),
            "attrs": ", ".join(f"{name}={value!r}" for name, value in attrs.items()) or "none",
        }
        return rows, attrs

    def _snapshot_rows(self) -> dict[str, str]:
        name = self._handle.revision.shown_at
        if name:
            return {"snapshot": name}
        try:
            names = ledger_in(self._handle.revision).names
        except (FormatError, UnsupportedError) as error:
            return {"snapshots": f"cannot be read: {error}"}
        return {"snapshots": ", ".join(names)} if names else {}

    def _cache_rows(self) -> dict[str, str]:
        directory = self._handle.store.disk_cache
        return {} if directory is None else {"disk cache": directory}

    def _attr_rows(self) -> dict[str, Any]:
        # A page must appear even if a part of the array is damaged.
        try:
            return dict(self.attrs)
        except (FormatError, UnsupportedError) as error:
            return {"cannot be read": str(error)}


class Attributes(MutableMapping[str, Any]):
    """The variable-length metalayers of a frame: names and values, each assignment a commit.

    Values may be of any type that msgpack supports, dates and time spans, and complex numbers, sets, tuples and arrays,
    in the form that python-blosc2 writes. Dictionaries, lists and arrays in them cannot be changed, because such a
    change would be lost: assign a changed copy.
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        """Raise an AttributeError, with a hint if the name is from another library."""
        hint = neighbours.hint(name, neighbours.ATTRS)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    def __getitem__(self, name: str) -> Any:
        try:
            content = self._handle.described.state.attr(name)
            if content is not None:
                return constant(decode_attr(content))
        except (FormatError, UnsupportedError) as error:
            raise prefix_error(f"attribute {name!r} of {self._handle.url}", error) from error
        raise KeyError(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def update(self, other: Any = (), /, **named: Any) -> None:
        """Set several attributes like `dict.update`, in one commit."""
        contents = {name: encode_attr(value, name) for name, value in _pairs_of(other, named)}
        if not contents:
            return
        for attempt in self._handle.attempts(anywhere=True):
            with attempt as draft:
                for name, content in contents.items():
                    draft.set_attr(name, content)

    def __delitem__(self, name: str) -> None:
        for attempt in self._handle.attempts(anywhere=True):
            with attempt as draft:
                if name not in draft.state.attr_names:
                    raise KeyError(name)
                draft.set_attr(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._handle.described.state.attr_names

    def __iter__(self) -> Iterator[str]:
        return iter(self._handle.described.state.attr_names)

    def __len__(self) -> int:
        return len(self._handle.described.state.attr_names)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        return repr(dict(self))


def _pairs_of(other: Any, named: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the names and values in arguments of `dict.update`; TypeError for names that are not strings."""
    pairs = [*dict(other, **named).items()]
    for name, _ in pairs:
        if not isinstance(name, str):
            raise TypeError(f"attribute names are str, not {type(name).__name__}")
    return pairs


def _decode(raw: bytes) -> Any:
    try:
        return decode_attr(raw)
    except (FormatError, UnsupportedError):
        return raw
