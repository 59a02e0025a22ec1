"""Making arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from b2array.array import copying, dask, drafts
from b2array.array.array import NDArray, open_array
from b2array.array.copying import is_sliceable
from b2array.array.drafts import (
    OPTIONS,
    ArrayOptions,
    Casting,
    Extents,
    Kind,
    Shape,
    Url,
    array_options,
    check_keywords,
    known_dtype,
)
from b2array.codec.cparams import AnyCParams
from b2array.format import dtypes
from b2array.grid.assignment import check_unmasked
from b2array.grid.layout import extents

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem

__all__ = [
    "asarray", "copy", "create", "empty", "empty_like", "from_blocks", "from_dask", "full", "full_like",
    "load", "ones", "ones_like", "save", "zeros", "zeros_like",
]  # fmt: skip


def create(
    url: Url | None,
    shape: Shape,
    dtype: npt.DTypeLike = float,
    *,
    chunks: Extents = "auto",
    blocks: Extents = "auto",
    fill_value: Any = 0,
    cparams: AnyCParams = None,
    layout: Kind = "auto",
    dims: Sequence[str | None] | None = None,
    attrs: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    interop: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> NDArray:
    """Make an array of `fill_value`, and return a handle that can change it.

    Parameters
    ----------
    url : str, os.PathLike or None
        Where to; None: in memory.
    shape : int or sequence of int
        Extents in items, at most 16.
    dtype : dtype-like
        Any type of NumPy's but object. If its items are arrays, their dimensions are added to the shape, as in NumPy.
    chunks, blocks : int, str, sequence or mapping, default "auto"
        Extents in items of the chunks, which are stored at once, and of the blocks in them, which are read alone: one
        entry an axis, or one for all, or a mapping of axes to entries. An entry is a number of items, -1 or None for
        the whole axis, "auto", or the size of a chunk, such as "8MB".
    fill_value : scalar, default 0
        The value of items that were never written; a tuple for a type with fields.
    cparams : CParams, str or mapping, optional
        How to compress chunks; also the name of a codec, such as "lz4", or what python-blosc2 takes. By default zstd
        at level 2, after a byte shuffle.
    layout : {"auto", "contiguous", "sparse"}
        One file, or a directory with a file a chunk; "auto": one file on local paths, else a directory.
    dims : sequence of str or None, optional
        Names of the dimensions.
    attrs : mapping, optional
        First attributes.
    meta : mapping, optional
        Metalayers, which can never change: what msgpack takes, or bytes, which are stored as they are.
    overwrite : bool, default False
        Whether an array that is there may be replaced.
    interop : bool, default True
        Refuse parameters with which stock Blosc2 reads arrays wrongly, or not at all.
    storage_options : mapping, optional
        For fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Raises
    ------
    FileExistsError
        There is something already.
    TypeError, ValueError
        The shapes, the type, the fill value or an attribute cannot be stored.
    LimitError
        There would be too many chunks or metalayers, or too long names. After any of these errors, nothing was written.
    UnsupportedError
        Stock Blosc2 would read the array wrongly (see `interop`), or a codec or filter cannot write.
    """
    options = ArrayOptions(
        chunks, blocks, fill_value, cparams, layout, dims, attrs, meta, overwrite, interop, storage_options, fs
    )
    return NDArray._committed(drafts.filled(url, shape, dtype, options))


def empty(shape: Shape, dtype: npt.DTypeLike = float, *, url: Url | None = None, **options: Any) -> NDArray:
    """Make an array of zeros, as `zeros` does: unwritten items are never arbitrary."""
    return _filled("empty", url, shape, dtype, options)


def zeros(shape: Shape, dtype: npt.DTypeLike = float, *, url: Url | None = None, **options: Any) -> NDArray:
    """Make an array of zeros, which takes no room and no time.

    Parameters
    ----------
    shape, dtype
        As for `create`.
    url : str or os.PathLike, optional
        Where to; in memory if left out.
    **options
        What else `create` takes.

    Examples
    --------
    >>> zeros((3, 2), "i4")[...].tolist()
    [[0, 0], [0, 0], [0, 0]]
    """
    return _filled("zeros", url, shape, dtype, options)


def ones(shape: Shape, dtype: npt.DTypeLike = float, *, url: Url | None = None, **options: Any) -> NDArray:
    """Make an array of ones; parameters as for `zeros`."""
    return _filled("ones", url, shape, dtype, options, fill_value=_item(1, dtype)[()])


def full(
    shape: Shape, fill_value: Any, dtype: npt.DTypeLike | None = None, *, url: Url | None = None, **options: Any
) -> NDArray:
    """Make an array of one value, one small chunk at each position; parameters as for `zeros`.

    Parameters
    ----------
    shape : int or sequence of int
        Extents in items.
    fill_value : scalar
        The value of all items.
    dtype : dtype-like, optional
        By default the value's own.
    url, **options
        As for `zeros`.
    """
    item = _item(fill_value, dtype)
    chosen = dtype if dtype is not None and dtypes.has_size(known_dtype(dtype)) else item.dtype
    return _filled("full", url, shape, chosen, options, fill_value=item[()])


def _item(value: Any, dtype: npt.DTypeLike | None) -> npt.NDArray[Any]:
    check_unmasked(value)
    wanted = known_dtype(dtype)
    if wanted is None:
        return np.full((), value)
    if not dtypes.has_size(wanted):
        return np.asarray(value, wanted)
    return np.full((), value, np.empty(0, wanted).dtype)


def _filled(
    function: str, url: Url | None, shape: Shape, dtype: npt.DTypeLike, options: Mapping[str, Any], **fixed: Any
) -> NDArray:
    check_keywords(function, options, OPTIONS - fixed.keys())
    return NDArray._committed(drafts.filled(url, shape, dtype, ArrayOptions(**options, **fixed)))


def empty_like(x: Any, **options: Any) -> NDArray:
    """Make an array of zeros with shape and type of another; parameters as for `zeros`."""
    return create(**_like("empty_like", x, options))


def zeros_like(x: Any, **options: Any) -> NDArray:
    """Make an array of zeros with shape and type of another (and its chunks and blocks); parameters as for `zeros`."""
    return create(**_like("zeros_like", x, options))


def ones_like(x: Any, **options: Any) -> NDArray:
    """Make an array of ones with shape and type of another; parameters as for `zeros`."""
    return create(**_like("ones_like", x, options, fill_value=1))


def full_like(x: Any, fill_value: Any, **options: Any) -> NDArray:
    """Make an array of one value with shape and type of another; parameters as for `full`."""
    return create(**_like("full_like", x, options, fill_value=fill_value))


def _like(function: str, x: Any, options: Mapping[str, Any], **fixed: Any) -> dict[str, Any]:
    check_keywords(function, options, (OPTIONS | {"dtype", "shape", "url"}) - fixed.keys())
    model = x if isinstance(x, NDArray | np.ndarray) or is_sliceable(x) else np.asarray(x)
    given = {name: value for name, value in options.items() if value is not None}
    chosen: dict[str, Any] = {"url": None, "shape": model.shape, "dtype": model.dtype} | given
    if fixed:
        chosen["fill_value"] = _item(fixed["fill_value"], chosen["dtype"])[()]
    if not isinstance(x, NDArray):
        return chosen
    same = (
        extents(chosen["shape"]) == x.shape and np.dtype(known_dtype(chosen["dtype"])) == x.dtype and 0 not in x.chunks
    )
    if same and not given.keys() & {"chunks", "blocks"}:
        chosen |= {"chunks": x.chunks, "blocks": x.blocks}
    return {"cparams": x.cparams} | chosen


def asarray(x: Any, *, url: Url | None = None, dtype: npt.DTypeLike | None = None, **options: Any) -> NDArray:
    """Store an array.

    Parameters
    ----------
    x : array-like
        Anything that NumPy makes an array of. An `NDArray` is returned as it is if it is the only argument; otherwise
        it is copied with its attributes, dims, fill value, chunks and compression. An array of another library that
        takes slices (h5py, zarr, blosc2, a memory map) is read a part at a time, and may be larger than memory.
    url : str or os.PathLike, optional
        Where to; in memory if left out.
    dtype : dtype-like, optional
        Type to convert to.
    **options
        What else `create` takes.

    Examples
    --------
    >>> a = asarray(np.arange(12).reshape(3, 4))
    >>> a[1:, ::2].tolist()
    [[4, 6], [8, 10]]
    """
    if isinstance(x, NDArray) and url is None and not options and dtype in (None, x.dtype):
        return x
    return NDArray._committed(copying.holding(x, url, dtype, array_options("asarray", options)))


def copy(
    src: NDArray | Url,
    dst: Url | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    casting: Casting = "unsafe",
    chunks: Extents = None,
    blocks: Extents = None,
    cparams: AnyCParams = None,
    layout: Kind = "auto",
    overwrite: bool = False,
    interop: bool = True,
    progress: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> NDArray:
    """Copy an array, its attributes and metalayers, and return a handle that can change the copy.

    Chunks are copied as they are where chunks, blocks, compression and type stay the same; otherwise they are encoded
    again, a few at a time, in bounded memory.

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
    chunks, blocks : int, str, sequence or mapping, optional
        Other extents, in items, as `create` takes them; by default they stay.
    cparams : CParams, optional
        Other compression.
    layout : {"auto", "contiguous", "sparse"}
        One file, or a directory with a file a chunk; "auto": one file on local paths, else a directory.
    overwrite, interop, storage_options, fs
        As for `create`; the options and the file system are those of `dst`.
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
    with nullcontext(src) if isinstance(src, NDArray) else open_array(src) as source:
        return source.copy(
            dst, dtype=dtype, casting=casting, chunks=chunks, blocks=blocks, cparams=cparams, layout=layout,
            overwrite=overwrite, interop=interop, progress=progress, storage_options=storage_options,
            fs=fs,
        )  # fmt: skip


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

    No more than a row of chunks and one block are in memory at a time. The array appears in one commit after the last
    block. If the blocks end with an error, there is no array.

    Parameters
    ----------
    pieces : iterable of array-like
        The blocks, with the same extents except along `axis`. The first one decides on the type.
    url : str or os.PathLike, optional
        Where to; in memory if left out.
    axis : int, default 0
        The axis along which the blocks are joined.
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
    return NDArray._committed(copying.joined(pieces, url, axis, dtype, array_options("from_blocks", options)))


def from_dask(
    x: da.Array,
    url: Url | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    chunks: Extents = "auto",
    compute: bool = True,
    resume: bool = False,
    progress: bool = False,
    scheduler: Any = None,
    **options: Any,
) -> NDArray | Delayed:
    """Compute a dask array and store it, in parallel and as one commit.

    Each task encodes a piece of `x` and puts its chunks where no reader looks; when all are there, they are committed.
    Nothing is visible before that, and a task that fails or is repeated does no harm. In a contiguous frame in a local
    file, chunks wait beside it in a directory with the suffix ``.b2write``; if frame and workers do not share a file
    system, or the workers are many, ``layout="sparse"`` saves copying them.

    Parameters
    ----------
    x : dask.array.Array
        Chunks of any sizes that are known.
    url : str or os.PathLike, optional
        Where to; in memory if left out, which works for schedulers in this process only if ``compute=False``.
    dtype : dtype-like, optional
        Type to convert to.
    chunks : int, str, sequence or mapping, default "auto"
        Extents of the stored chunks, as `create` takes them. "auto": such that the chunks of `x` are multiples of them,
        if that is possible.
    compute : bool, default True
        Whether to compute now. Otherwise the result is a `dask.delayed.Delayed` that does everything, the commit too.
    resume : bool, default False
        Finish an interrupted write of the same values to the same place, and keep the chunks that are there.
    progress : bool, default False
        Show the progress on stderr.
    scheduler : str, callable or distributed.Client, optional
        For dask; its default otherwise.
    **options
        What else `create` takes.

    Returns
    -------
    NDArray or dask.delayed.Delayed

    Raises
    ------
    TypeError, ValueError
        `x` is no dask array, has chunks of unknown sizes or a type that cannot be stored, or the write that was
        interrupted was one of other values. Nothing has been computed then.
    FileExistsError
        There is something already.

    Warns
    -----
    dask.array.PerformanceWarning
        The chunks of `x` do not consist of whole stored chunks, so that data are moved between tasks.

    Examples
    --------
    >>> import dask.array as da
    >>> a = from_dask(da.arange(12, chunks=5).reshape(3, 4) ** 2)
    >>> a[1].tolist()
    [16, 25, 36, 49]
    """
    given = array_options("from_dask", {"chunks": chunks, **options})
    write = dask.from_dask(x, url, dtype, given, resume=resume)
    done: NDArray | Delayed = write.run(NDArray, compute, progress, scheduler)
    return done


def save(url: Url, x: Any, **options: Any) -> None:
    """Store an array as `asarray` does, and replace an existing one."""
    check_keywords("save", options, OPTIONS | {"dtype"})
    asarray(x, url=url, **{"overwrite": True, **options}).close()


def load(
    url: Url, *, storage_options: Mapping[str, Any] | None = None, fs: AbstractFileSystem | None = None
) -> npt.NDArray[Any]:
    """Read a whole array into memory."""
    with open_array(url, storage_options=storage_options, fs=fs) as stored:
        return np.asarray(stored)
