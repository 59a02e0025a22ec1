"""Arrays that are made piece by piece: copies in another layout, and arrays from a sequence of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from b2array import progress
from b2array.array import creation
from b2array.array.array import Casting, NDArray
from b2array.array.creation import Kind, Shape, Url
from b2array.array.opening import place_new
from b2array.codec.cparams import CParams
from b2array.engine import resize, transaction
from b2array.engine.handle import Handle
from b2array.engine.source import Source
from b2array.engine.transaction import Transaction
from b2array.engine.write import rewrite
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.format.b2nd import GEOMETRIES
from b2array.grid.layout import Layout, extents
from b2array.progress import Progress

__all__ = ["copy", "from_blocks"]


def copy(
    src: NDArray | Url,
    dst: Url | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    casting: Casting = "unsafe",
    chunks: Shape | Literal["auto"] | None = None,
    blocks: Shape | Literal["auto"] | None = None,
    cparams: CParams | None = None,
    layout: Kind = "auto",
    overwrite: bool = False,
    interop: bool = True,
    progress: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> NDArray:
    """Copy an array, its attributes and metalayers, and return a handle that can change the copy.

    Chunks are copied as they are where chunks, blocks, compression and type stay the same; otherwise they are made
    anew, a few at a time, in bounded memory.

    Parameters
    ----------
    src : NDArray, str or os.PathLike
        What to copy: the state that the handle shows.
    dst : str or os.PathLike, optional
        Where to; in memory if left out.
    dtype : dtype-like, optional
        Type to convert to.
    casting : {"no", "equiv", "safe", "same_kind", "unsafe"}
        Which conversions are allowed; see `numpy.can_cast`.
    chunks, blocks : sequence of int or "auto", optional
        Other extents, in items; by default they stay.
    cparams : CParams, optional
        Other compression.
    layout : {"auto", "contiguous", "sparse"}
        One file, or a directory with a file a chunk; "auto": one file on local paths, else a directory.
    overwrite, interop, storage_options
        As for `create`; the options are those of `dst`.
    progress : bool, default False
        Show on stderr how many chunks are done.

    Raises
    ------
    FileExistsError
        There is something already.
    TypeError
        The conversion is not allowed.
    ValueError, LimitError, UnsupportedError
        As for `create`.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.asarray(np.arange(12).reshape(3, 4), chunks=(3, 4))
    >>> b = b2array.copy(a, chunks=(2, 2), blocks=(1, 2))
    >>> b.chunks, bool((b[...] == a[...]).all())
    ((2, 2), True)
    """
    if not isinstance(src, NDArray):
        with creation.open(src) as opened:
            return copy(
                opened, dst, dtype=dtype, casting=casting, chunks=chunks, blocks=blocks, cparams=cparams, layout=layout,
                overwrite=overwrite, interop=interop, progress=progress, storage_options=storage_options,
            )  # fmt: skip
    wish = _Wish(dst, dtype, casting, chunks, blocks, cparams, layout, overwrite, interop, progress, storage_options)
    source = src._handle.source
    while True:
        try:
            return NDArray(Handle(_copied(source, wish).commit(), "r+"))
        except (FormatError, UnsupportedError, ConflictError) as error:
            source = src._handle.recover(source, error)


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is asked of a copy."""

    url: Url | None
    dtype: npt.DTypeLike | None
    casting: Casting
    chunks: Shape | Literal["auto"] | None
    blocks: Shape | Literal["auto"] | None
    cparams: CParams | None
    layout: Kind
    overwrite: bool
    interop: bool
    progress: bool
    storage_options: Mapping[str, Any] | None


def _copied(source: Source, wish: _Wish) -> Transaction:
    old = source.state.require_layout()
    dtype = old.dtype if wish.dtype is None else _converted(old.dtype, creation.known_dtype(wish.dtype), wish.casting)
    if dtype == old.dtype and _keeps_chunks(source, old, wish):
        store, frame_type = place_new(wish.url, wish.layout, wish.storage_options, overwrite=wish.overwrite)
        with _tracked(old.nchunks, wish) as shown:
            return transaction.copied(source, store, frame_type, overwrite=wish.overwrite, progress=shown)
    return _recoded(source, old, dtype, wish)


def _tracked(nchunks: int, wish: _Wish) -> AbstractContextManager[Progress]:
    return progress.track(nchunks, "chunks copied", wish.progress, unit="items")


def _converted(old: np.dtype[Any], dtype: npt.DTypeLike | None, casting: Casting) -> np.dtype[Any]:
    if np.dtype(dtype).subdtype is not None:
        raise TypeError(f"items cannot be converted to arrays: {np.dtype(dtype)}")
    # NumPy chooses the length of text without one.
    new: np.dtype[Any] = np.empty(0, old).astype(dtype).dtype
    if not np.can_cast(old, new, casting):
        raise TypeError(f"Cannot cast array data from {old!r} to {new!r} according to the rule {casting!r}")
    return new


def _keeps_chunks(source: Source, old: Layout, wish: _Wish) -> bool:
    for wanted, part in ((wish.chunks, old.chunks), (wish.blocks, old.blocks)):
        if wanted is not None and (isinstance(wanted, str) or extents(wanted) != part):
            return False
    return wish.cparams is None or wish.cparams == source.frame.cparams


def _recoded(source: Source, old: Layout, dtype: np.dtype[Any], wish: _Wish) -> Transaction:
    noted = source.state.annotations
    chunks, blocks = _parts(old, dtype, wish)
    new, plan = creation.new_draft(
        wish.url, old.shape, dtype, chunks=chunks, blocks=blocks, fill_value=_fill(noted.fill, old.dtype, dtype),
        cparams=source.frame.cparams if wish.cparams is None else wish.cparams, layout=wish.layout, dims=noted.dims,
        meta={name: raw for name, raw in source.frame.metalayers if name not in GEOMETRIES},
        overwrite=wish.overwrite, interop=wish.interop, storage_options=wish.storage_options,
    )  # fmt: skip
    try:
        for name, content in source.state.attrs().items():
            new.set_attr(name, content)
        steps = rewrite(
            new, plan, range(plan.nchunks), lambda box: resize.read_box(source, old, box), cparams=new.frame.cparams
        )
        with _tracked(plan.nchunks, wish) as shown:
            for _ in steps:
                shown.advance()
    except BaseException:
        new.abort()
        raise
    return new


def _parts(old: Layout, dtype: np.dtype[Any], wish: _Wish) -> tuple[Any, Any]:
    """Choose chunks and blocks: those that are wished, else the old ones where they still fit."""
    if wish.chunks is not None or wish.blocks is not None:
        kept = old.blocks if wish.chunks is None else "auto"
        return wish.chunks if wish.chunks is not None else old.chunks, wish.blocks if wish.blocks is not None else kept
    larger = dtype.itemsize > 2 * old.itemsize
    return ("auto", "auto") if larger or 0 in old.chunks or 0 in old.blocks else (old.chunks, old.blocks)


def _fill(fill: bytes | None, old: np.dtype[Any], new: np.dtype[Any]) -> Any:
    if fill is None or len(fill) != old.itemsize:
        return 0
    item = np.frombuffer(fill, old)
    with np.errstate(invalid="ignore"):
        return item.astype(new)[0]


def from_blocks(
    pieces: Iterable[Any],
    /,
    url: Url | None = None,
    *,
    axis: int = 0,
    dtype: npt.DTypeLike | None = None,
    **options: Any,
) -> NDArray:
    """Make an array of blocks that come one after the other, and return a handle that can change it.

    No more than a row of chunks and one block are in memory at a time. The array is there when the last block is
    written, in one commit; if the blocks end with an error, there is none.

    Parameters
    ----------
    pieces : iterable of array-like
        The blocks, with the same extents but along `axis`, along which they are joined. The first decides on the type.
    url : str or os.PathLike, optional
        Where to; in memory if left out.
    axis : int, default 0
        Where the blocks are joined.
    dtype : dtype-like, optional
        Type of the items.
    **options
        What else `create` takes.

    Raises
    ------
    ValueError
        There are no blocks, or they do not fit each other.
    TypeError
        A block's type cannot be cast ("same_kind").

    Examples
    --------
    >>> import b2array
    >>> a = b2array.from_blocks(np.full((2, 3), n) for n in range(5))
    >>> a.shape, a[::3, 0].tolist()
    ((10, 3), [0, 1, 3, 4])
    """
    remaining = iter(pieces)
    first = np.asarray(next(remaining, None), creation.known_dtype(dtype))
    if first.dtype == object or not first.ndim:
        raise ValueError("from_blocks needs at least one block, with the dimension along which blocks are joined")
    axis = np.lib.array_utils.normalize_axis_index(axis, first.ndim)
    shape = (*first.shape[:axis], 0, *first.shape[axis + 1 :])
    new, plan = creation.new_draft(url, shape, first.dtype, **options)
    try:
        for values in _rows(_chained(first, remaining), plan, axis):
            resize.append(new, values, axis)
    except BaseException:
        new.abort()
        raise
    return NDArray(Handle(new.commit(), "r+"))


def _chained(first: npt.NDArray[Any], others: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from others


def _rows(blocks: Iterable[Any], plan: Layout, axis: int) -> Iterator[npt.NDArray[Any]]:
    """Cut and join blocks to rows of whole chunks; the last one may be shorter."""
    length, before = plan.chunks[axis], (slice(None),) * axis
    pending: list[npt.NDArray[Any]] = []
    count = 0
    for block in blocks:
        values, _ = resize.joint(block, plan.shape, plan.dtype, axis)
        done = 0
        while done < values.shape[axis]:
            taken = min(length - count, values.shape[axis] - done)
            pending.append(values[(*before, slice(done, done + taken))])
            done, count = done + taken, count + taken
            if count == length:
                yield np.concatenate(pending, axis)
                pending, count = [], 0
        # Whoever makes the blocks may use the memory of this one again.
        pending[-1:] = [part.copy() for part in pending[-1:]]
    if pending:
        yield np.concatenate(pending, axis)
