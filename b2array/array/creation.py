"""Functions that create arrays."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
import numpy.typing as npt

from b2array.array import array_copying, dask, drafts
from b2array.array.array import NDArray
from b2array.array.array_copying import is_sliceable
from b2array.array.drafts import (
    AnyPlace,
    ArrayOptions,
    Extents,
    FilledKeywords,
    Kind,
    NewKeywords,
    SavedKeywords,
    Shape,
    Url,
    require_dtype,
    takes,
)
from b2array.array.frame_making import member_at
from b2array.array.wide_text import warn_of_stored_waste
from b2array.codec.cparams import AnyCParams
from b2array.commit.draft import Draft
from b2array.format import dtypes
from b2array.grid.assignment import check_plain
from b2array.grid.chunking import Access
from b2array.grid.layout import extents
from b2array.keywords import spell_out
from b2array.store.file_systems import refuse_mapper
from b2array.store.secrets import redact_url

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem

__all__ = [
    "asarray",
    "create",
    "empty",
    "empty_like",
    "from_blocks",
    "from_dask",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "save",
    "zeros",
    "zeros_like",
]


def _shape_first(function: Callable[..., NDArray]) -> Callable[..., NDArray]:
    """Decorate a function of URL and shape, so that it also accepts the shape first and the URL by name."""

    @functools.wraps(function)
    def take_either(*args: Any, **options: Any) -> NDArray:
        if args:
            first = args[0]
            is_url = first is None or isinstance(first, str | os.PathLike)
            if not is_url:
                refuse_mapper(first)
                args = (options.pop("url", None), *args)
        return function(*args, **options)

    return take_either


@overload
def create(
    shape: Shape,
    dtype: npt.DTypeLike = float,
    *,
    url: Url | None = None,
    **options: Unpack[NewKeywords],
) -> NDArray: ...
@overload
def create(
    url: Url | None = None,
    shape: Shape | None = None,
    dtype: npt.DTypeLike = float,
    **options: Unpack[NewKeywords],
) -> NDArray: ...
@_shape_first
@spell_out()
def create(
    url: Url | None = None,
    shape: Shape | None = None,
    dtype: npt.DTypeLike = float,
    *,
    chunks: Extents = "auto",
    blocks: Extents = "auto",
    access: Access | None = None,
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

    The shape may also come first, as in `zeros`: ``create((3, 2), "i2", url="a.b2nd")``.

    Parameters
    ----------
    url : str or os.PathLike, optional
        The place of the new array; in memory by default. Below a group, the URL names a member, with or without the
        ending of its file.
    shape : int or sequence of int
        The extents in items, at most 16. This parameter is required.
    dtype : dtype-like
        Any NumPy type except object. If its items are arrays, their dimensions are added to the shape, as in NumPy.
        "T", NumPy's StringDType, is for text of any length.
    chunks, blocks : int, str, sequence or mapping, default "auto"
        The extents, in items, of the chunks, which are stored as a whole, and of their blocks, which can be read
        separately: one entry per axis, one for all axes, or a mapping of axes to entries. An entry is a number of
        items, -1 or None for the whole axis, "auto", or the size of a chunk, such as "8MB". Blocks of text of any
        length are runs of a chunk in C order, so only their number of items counts.
    access : {"balanced", "planes", "series", "boxes", "samples"}, optional
        The kind of access for which chunks and blocks are chosen automatically: any direction; one or a few indices of
        the first axis; the whole first axis at one point; small boxes; or a random index of the first axis. The default
        is "balanced", but "planes" if an axis has the extent 0, because a growing array is written step by step, and
        "samples" for sets of pictures of 8 bits.
    fill_value : scalar, default 0
        The value of items that were never written; a tuple for a type with fields.
    cparams : CParams, str or mapping, optional
        The compression of chunks: a `CParams`, the name of a codec, such as "lz4", or the parameters of python-blosc2.
        The default is zstd at level 2 after a byte shuffle.
    layout : {"auto", "contiguous", "sparse"}
        One file, or a directory with one file per chunk; "auto": one file on local paths, else a directory.
    dims : sequence of str or None, optional
        The names of the dimensions.
    attrs : mapping, optional
        The initial attributes.
    meta : mapping, optional
        The metalayers, which can never change: values that msgpack supports, or bytes, which are stored unchanged.
    overwrite : bool, default False
        Whether to replace an existing array.
    interop : bool, default True
        Whether to refuse parameters with which the C library reads arrays wrongly, or not at all.
    storage_options : mapping, optional
        Storage options for fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Raises
    ------
    FileExistsError
        Something already exists at the URL.
    TypeError, ValueError
        The shapes, the type, the fill value or an attribute cannot be stored.
    LimitError
        There would be too many chunks or metalayers, or names that are too long. If any of these errors is raised,
        nothing was written.
    UnsupportedError
        The C library would read the array wrongly (see `interop`), or a codec or filter only decodes.

    Examples
    --------
    >>> create(shape=(3, 2), dtype="i2", fill_value=7)[0]
    array([7, 7], dtype=int16)
    """
    if shape is None:
        raise TypeError("create() needs a shape; b2array.asarray stores values")
    options = ArrayOptions(
        chunks, blocks, access, fill_value, cparams, layout, dims, attrs, meta, overwrite, interop, storage_options, fs
    )
    return _fill_new(url, shape, dtype, options)


@takes(NewKeywords)
def empty(
    shape: Shape,
    dtype: npt.DTypeLike = float,
    *,
    url: Url | None = None,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Make an array of zeros, like `zeros`: unwritten items are never arbitrary."""
    return _fill_new(url, shape, dtype, ArrayOptions(**options))


@takes(NewKeywords)
def zeros(
    shape: Shape,
    dtype: npt.DTypeLike = float,
    *,
    url: Url | None = None,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Make an array of zeros, which needs almost no space and no time.

    Parameters
    ----------
    shape, dtype
        As for `create`.
    url : str or os.PathLike, optional
        The place of the new array; in memory by default.
    chunks, ..., fs
        As for `create`.

    Examples
    --------
    >>> zeros((3, 2), "i4")[...].tolist()
    [[0, 0], [0, 0], [0, 0]]
    """
    return _fill_new(url, shape, dtype, ArrayOptions(**options))


@takes(FilledKeywords)
def ones(
    shape: Shape,
    dtype: npt.DTypeLike = float,
    *,
    url: Url | None = None,
    **options: Unpack[FilledKeywords],
) -> NDArray:
    """Make an array of ones; parameters as for `zeros`."""
    one = _make_item(1, dtype)
    return _fill_new(url, shape, dtype, ArrayOptions(**options, fill_value=one[()]))


@takes(FilledKeywords)
def full(
    shape: Shape,
    fill_value: Any,
    dtype: npt.DTypeLike | None = None,
    *,
    url: Url | None = None,
    **options: Unpack[FilledKeywords],
) -> NDArray:
    """Make an array of one value, one small chunk at each position; parameters as for `zeros`.

    Parameters
    ----------
    shape : int or sequence of int
        Extents in items.
    fill_value : scalar
        The value of all items.
    dtype : dtype-like, optional
        The type of the items; by default the type of the value.
    url, chunks, ..., fs
        As for `zeros`.
    """
    item = _make_item(fill_value, dtype)
    # A text type without a width, such as "U", gets the width of the value.
    chosen = dtype if dtype is not None and dtypes.has_size(require_dtype(dtype)) else item.dtype
    return _fill_new(url, shape, chosen, ArrayOptions(**options, fill_value=item[()]))


def _make_item(value: Any, dtype: npt.DTypeLike | None) -> npt.NDArray[Any]:
    check_plain(value)
    wanted = require_dtype(dtype)
    if wanted is None:
        return np.full((), value)
    if not dtypes.has_size(wanted):
        return np.asarray(value, wanted)
    return np.full((), value, np.empty(0, wanted).dtype)


def _fill_new(url: Url | None, shape: Shape, dtype: npt.DTypeLike, options: ArrayOptions) -> NDArray:
    return NDArray._make(url, options, lambda place, final: drafts.draft_filled(place, shape, dtype, final))


@takes(NewKeywords)
def empty_like(
    x: Any,
    dtype: npt.DTypeLike | None = None,
    *,
    shape: Shape | None = None,
    url: Url | None = None,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Make an array of zeros, like `zeros_like`: unwritten items are never arbitrary."""
    return _like(x, dtype, shape, url, options)


@takes(NewKeywords)
def zeros_like(
    x: Any,
    dtype: npt.DTypeLike | None = None,
    *,
    shape: Shape | None = None,
    url: Url | None = None,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Make an array of zeros with the shape, type, chunks, blocks and compression of another array.

    Parameters
    ----------
    x : array-like
        The other array.
    dtype : dtype-like, optional
        The type, if it differs.
    shape : int or sequence of int, optional
        The shape, if it differs.
    url, chunks, ..., fs
        As for `zeros`.

    Examples
    --------
    >>> a = zeros((100, 200), chunks=(10, 200))
    >>> zeros_like(a).chunks, zeros_like(a, "i1").dtype
    ((10, 200), dtype('int8'))
    """
    return _like(x, dtype, shape, url, options)


@takes(FilledKeywords)
def ones_like(
    x: Any,
    dtype: npt.DTypeLike | None = None,
    *,
    shape: Shape | None = None,
    url: Url | None = None,
    **options: Unpack[FilledKeywords],
) -> NDArray:
    """Make an array of ones with the shape and type of another array; parameters as for `zeros_like`."""
    return _like(x, dtype, shape, url, options, fill_value=1)


@takes(FilledKeywords)
def full_like(
    x: Any,
    fill_value: Any,
    dtype: npt.DTypeLike | None = None,
    *,
    shape: Shape | None = None,
    url: Url | None = None,
    **options: Unpack[FilledKeywords],
) -> NDArray:
    """Make an array of one value with the shape and type of another array; other parameters as for `zeros_like`."""
    return _like(x, dtype, shape, url, options, fill_value=fill_value)


def _like(
    x: Any,
    dtype: npt.DTypeLike | None,
    shape: Shape | None,
    url: Url | None,
    options: Mapping[str, Any],
    **fixed: Any,
) -> NDArray:
    model = x if isinstance(x, NDArray | np.ndarray) or is_sliceable(x) else np.asarray(x)
    new_shape = model.shape if shape is None else shape
    new_dtype = model.dtype if dtype is None else dtype
    chosen = {name: value for name, value in options.items() if value is not None}
    if fixed:
        chosen["fill_value"] = _make_item(fixed["fill_value"], new_dtype)[()]
    if isinstance(x, NDArray):
        has_same_shape = extents(new_shape) == x.shape and 0 not in x.chunks
        has_same_dtype = np.dtype(require_dtype(new_dtype)) == x.dtype
        # The old chunks suit only the old shape and item size. If nobody chose them, they are chosen again.
        is_open = x._handle.source.state.annotations.auto is not None
        if has_same_shape and has_same_dtype and not is_open and not chosen.keys() & {"chunks", "blocks", "access"}:
            chosen |= {"chunks": x.chunks, "blocks": x.blocks}
        chosen = {"cparams": x.cparams} | chosen
    return _fill_new(url, new_shape, new_dtype, ArrayOptions(**chosen))


@takes(NewKeywords)
def asarray(
    x: Any,
    *,
    url: Url | None = None,
    dtype: npt.DTypeLike | None = None,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Store an array.

    Parameters
    ----------
    x : array-like
        An object that NumPy can convert to an array. An `NDArray` as the only argument is returned unchanged; otherwise
        it is copied with its attributes, dims, fill value, chunks and compression. An array of another library that
        supports slices (h5py, zarr, blosc2, a memory map) is read in parts, and may be larger than memory.
    url : str or os.PathLike, optional
        The place of the new array; in memory by default.
    dtype : dtype-like, optional
        Type to convert to.
    chunks, ..., fs
        As for `create`.

    Examples
    --------
    >>> a = asarray(np.arange(12).reshape(3, 4))
    >>> a[1:, ::2].tolist()
    [[4, 6], [8, 10]]
    """
    # Like `numpy.asarray`, return an existing array without a copy.
    if isinstance(x, NDArray) and url is None and not options and dtype in (None, x.dtype):
        return x

    def new(place: AnyPlace, final: ArrayOptions) -> Draft:
        return array_copying.holding(x, place, dtype, final)

    return NDArray._make(url, ArrayOptions(**options), new)


@takes(NewKeywords)
def from_blocks(
    pieces: Iterable[Any],
    /,
    url: Url | None = None,
    *,
    axis: int = 0,
    dtype: npt.DTypeLike | None = None,
    **options: Unpack[NewKeywords],
) -> NDArray:
    """Make an array from a sequence of blocks, and return a handle that can change it.

    At most a row of chunks and one block are in memory at a time. One commit after the last block creates the array. If
    the iterable raises an error, no array is created.

    Parameters
    ----------
    pieces : iterable of array-like
        The blocks, with the same extents except along `axis`.
    url : str or os.PathLike, optional
        The place of the new array; in memory by default.
    axis : int, default 0
        The axis along which the blocks are joined.
    dtype : dtype-like, optional
        Type of the items; by default the type of the first block.
    chunks, ..., fs
        As for `create`.

    Raises
    ------
    ValueError, TypeError, OverflowError
        There are no blocks, their extents do not match, or the type cannot hold an item of a block, as for
        `NDArray.append`.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.from_blocks(np.full((2, 3), n) for n in range(5))
    >>> a.shape, a[::3, 0].tolist()
    ((10, 3), [0, 1, 3, 4])
    """
    return NDArray._make(
        url,
        ArrayOptions(**options),
        lambda place, final: array_copying.join_blocks(pieces, place, axis, dtype, final),
    )


@takes(NewKeywords)
def from_dask(
    x: da.Array,
    url: Url | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    compute: bool = True,
    progress: bool = False,
    scheduler: Any = None,
    **options: Unpack[NewKeywords],
) -> NDArray | Delayed:
    """Compute a dask array and store it, in parallel and as one commit.

    Each task encodes a piece of `x` and stores the chunks in a place that readers ignore. When all chunks are stored,
    one commit publishes them. Readers see nothing before the commit, and a failed or repeated task does no harm. For a
    contiguous frame in a local file, the chunks are first stored in a directory next to it with the suffix
    ``.b2write``. If frame and workers do not share a file system, or there are many workers, ``layout="sparse"`` avoids
    copying the chunks.

    Parameters
    ----------
    x : dask.array.Array
        A dask array with chunks of any known sizes.
    url : str or os.PathLike, optional
        Where to store it; in memory by default, which works for schedulers in this process only if ``compute=False``.
    dtype : dtype-like, optional
        Type to convert to.
    compute : bool, default True
        Whether to compute now. Otherwise the result is a `dask.delayed.Delayed` that computes and commits. Members of
        groups must be computed now: to compute a member later, make it with `Group.create`, and use `NDArray.store`.
    progress : bool, default False
        Show the progress on stderr.
    scheduler : str, callable or distributed.Client, optional
        The scheduler of dask; by default, dask chooses.
    chunks, ..., fs
        As for `create`. By default, the chunks of `x` are multiples of the stored chunks if possible. Chunks of text of
        any length are chosen by the size of the first items, which are computed once more for this purpose; with
        ``compute=False``, by a usual size.

    Returns
    -------
    NDArray or dask.delayed.Delayed

    Raises
    ------
    TypeError, ValueError
        `x` is not a dask array, or has chunks of unknown sizes or a type that cannot be stored. In this case nothing
        was computed.
    FileExistsError
        Something already exists at the URL.

    Warns
    -----
    dask.array.PerformanceWarning
        The chunks of `x` do not consist of whole stored chunks, so that data moves between tasks.

    Examples
    --------
    >>> import dask.array as da
    >>> a = from_dask(da.arange(12, chunks=5).reshape(3, 4) ** 2)
    >>> a[1].tolist()
    [16, 25, 36, 49]
    """
    wanted = ArrayOptions(**options)
    member = member_at(url, wanted)
    if member is not None and not compute:
        raise ValueError(
            f"{redact_url(member.group)} is a group, which makes its members at once: make {member.name!r} with its"
            " create(), and then write to it with store(x, compute=False)"
        )
    if member is not None:
        # The group commits the member together with its list of members, so the values must be ready at that time.
        def new(place: AnyPlace, final: ArrayOptions) -> Draft:
            return dask.compute_draft(x, place, dtype, final, progress=progress, scheduler=scheduler)

        return NDArray._make(url, wanted, new)
    write = dask.from_dask(x, url, dtype, wanted, compute=compute, scheduler=scheduler)
    done: NDArray | Delayed = write.run(NDArray, compute, progress, scheduler)
    if isinstance(done, NDArray):
        done._handle.reading(warn_of_stored_waste)
    return done


@takes(SavedKeywords)
def save(
    url: Url,
    x: Any,
    *,
    dtype: npt.DTypeLike | None = None,
    overwrite: bool = True,
    **options: Unpack[SavedKeywords],
) -> None:
    """Store an array like `asarray`, and replace an existing array.

    Parameters
    ----------
    url : str or os.PathLike
        The place of the new array.
    x, dtype
        As for `asarray`.
    overwrite : bool, default True
        Whether to replace an existing array.
    chunks, ..., fs
        As for `create`.

    Examples
    --------
    >>> import b2array
    >>> save("memory://saved.b2nd", [1, 2, 3], chunks=2)
    >>> b2array.load("memory://saved.b2nd")
    array([1, 2, 3])
    """
    asarray(x, url=url, dtype=dtype, overwrite=overwrite, **options).close()
