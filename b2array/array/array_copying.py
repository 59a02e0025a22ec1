"""Transactions of new arrays with the items of others: of an array, an array-like, or a sequence of blocks.

Array-likes that are not in memory are read in parts, so they may be larger than memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.array.array_snapshots import differing
from b2array.array.described import Described
from b2array.array.drafts import (
    UNSET,
    AnyPlace,
    ArrayOptions,
    Casting,
    Shape,
    aborting,
    choose_layout,
    new_draft,
    place_new,
    put,
    require_dtype,
)
from b2array.array.unstorable import explain_ragged, refuse_objects
from b2array.array.wide_text import is_wide, warn_of_stored_waste, warn_of_waste
from b2array.codec import codecs
from b2array.codec.cparams import CParams, resolve_cparams
from b2array.codec.filters import CELL_FILTERS
from b2array.codec.interop import readable
from b2array.codec.rounding import check_dtype
from b2array.commit import prepare, resize
from b2array.commit.changes import Keep, copy_for_changes
from b2array.commit.copied_states import KeptState, states_to_copy
from b2array.commit.draft import Draft
from b2array.commit.frame_commit import commit
from b2array.commit.handle import Handle
from b2array.commit.write import rewrite
from b2array.compute.readable import Readable
from b2array.format import dtypes
from b2array.format.b2nd import CACHE, GEOMETRIES
from b2array.format.dtypes import require_size
from b2array.format.state import State, known_text
from b2array.format.strings import BATCHES, is_text, item_of
from b2array.format.text_sizes import average_text
from b2array.frame.source import Source
from b2array.grid import assignment, windows
from b2array.grid.assignment import Sliceable
from b2array.grid.chunking import check_access
from b2array.grid.layout import Layout, extents
from b2array.grid.lossless import lossless, require_same_order
from b2array.grid.partition import boxes, first_box
from b2array.grid.text_chunks import SAMPLED
from b2array.grid.text_items import as_text
from b2array.progress import Progress, track

__all__ = [
    "PIECE_NBYTES",
    "as_items",
    "convert_fill",
    "copy_array",
    "cparams_for",
    "from_computed",
    "holding",
    "is_sliceable",
    "join_blocks",
    "nbytes_in_memory",
    "piece",
    "rows",
    "sample_text",
    "target_dtype",
]


_FAST = CParams("lz4", clevel=1)


def copy_array(
    handle: Handle,
    url: AnyPlace,
    new: ArrayOptions,
    dtype: npt.DTypeLike | None = None,
    casting: Casting = "unsafe",
    *,
    progress: bool = False,
    snapshots: bool = False,
    earlier: Sequence[KeptState] = (),
) -> Draft:
    """Return the transaction of a copy of the array that a handle shows, with attributes and metalayers.

    Chunks are copied without decoding if possible; otherwise they are encoded again, a few at a time. With `snapshots`,
    the copy includes the snapshots of the array, and the `earlier` states in snapshots of its group.
    """

    def attempt(source: Source) -> Draft:
        old = source.state.require_layout()
        kind = old.dtype if dtype is None else target_dtype(old.dtype, require_dtype(dtype), casting)
        states: list[KeptState] = []
        if snapshots:
            # A snapshot of a group belongs to the group, and not to a copy of one of its members.
            states = [*states_to_copy(source), *earlier]
            states.sort(key=lambda each: each.entry.time)
        if kind != old.dtype or not _keeps_chunks(source, old, new):
            return _recode(source, states, kind, url, new, progress=progress)
        place = place_new(url, new.layout, new.storage_options, fs=new.fs, overwrite=new.overwrite)
        with track(old.nchunks, "chunks copied", progress, unit="items") as bar:
            return prepare.copy_frame(
                source,
                place.store,
                place.kind,
                overwrite=new.overwrite,
                progress=bar,
                kept=states,
                first=place.first,
            )

    return handle.reading(attempt)


def target_dtype(
    old: np.dtype[Any],
    dtype: npt.DTypeLike | None,
    casting: Casting,
) -> np.dtype[Any]:
    """Return the type of the copied items; TypeError if the conversion is not allowed."""
    if np.dtype(dtype).subdtype is not None:
        raise TypeError(f"items cannot be converted to arrays: {np.dtype(dtype)}")
    if is_text(old):
        require_size(dtype)
    # NumPy chooses the length of text without one.
    new: np.dtype[Any] = np.empty(0, old).astype(dtype).dtype
    if not np.can_cast(old, new, casting):
        raise TypeError(f"Cannot cast array data from {old!r} to {new!r} according to the rule {casting!r}")
    require_same_order(old, new)
    return new


def _keeps_chunks(source: Source, old: Layout, new: ArrayOptions) -> bool:
    """Return whether a copy with these options has the chunks, the metalayers and the attributes of its source."""
    # The metalayer marks a cache of a remote array, which has only some of the chunks.
    if source.frame.metalayer(CACHE) is not None:
        return False
    changes_notes = any(option is not None for option in (new.dims, new.attrs, new.meta))
    if changes_notes or new.fill_value is not UNSET:
        return False
    if any(option is not None for option in (new.chunks, new.blocks, new.access)):
        chunks, blocks = _parts(old, old.dtype, new, 0)
        options = replace(new, chunks=chunks, blocks=blocks)
        wanted = choose_layout(old.shape, old.dtype, options, _copied_text(source, old, old.dtype))
        if (wanted.chunks, wanted.blocks) != (old.chunks, old.blocks):
            return False
    return new.cparams is None or new.cparams == source.state.cparams


def _recode(
    source: Source,
    states: Sequence[KeptState],
    dtype: np.dtype[Any],
    url: AnyPlace,
    new: ArrayOptions,
    *,
    progress: bool,
) -> Draft:
    """Return the transaction of a copy whose chunks are encoded again."""
    old = source.state.require_layout()
    _warn_of_wide_copy(source, old, dtype)
    text_nbytes = _copied_text(source, old, dtype)
    options = _complete(new, source.state, dtype, text_nbytes)
    own_layers = (*GEOMETRIES, CACHE, BATCHES) if old.is_text else (*GEOMETRIES, CACHE)
    metalayers = {name: raw for name, raw in source.frame.metalayers if name not in own_layers}
    options = replace(options, meta=metalayers | dict(new.meta or {}))
    if isinstance(source, Draft):
        # Otherwise the change of an open chunk would not be noticed.
        source.flush()
    earlier = [(entry, revision) for entry, revision in states if revision is not None]
    first = old
    if earlier:
        _, oldest = earlier[0]
        first = oldest.state.require_layout()
    elif source.state.annotations.auto is not None and new.chunks is None and new.blocks is None:
        # Nobody chose the chunks of the source, so the copy may get others as well when it grows.
        access = new.access or check_access(source.state.annotations.auto or None)
        options = replace(options, chunks=None, blocks=None, access=access)
    draft = new_draft(url, first.shape, dtype, options, text_nbytes)
    own_names = {*(new.attrs or {})}
    # Do not round values again that may be rounded already. Values from other software may be exact.
    exact = new.cparams is None
    # The number of chunks that change between the states is not known yet.
    total = None if earlier else draft.state.require_layout().nchunks
    with aborting(draft), track(total, "chunks copied", progress, unit="items") as bar:
        # Build the states of the source one after another, in one commit.
        before: State | None = None
        for entry, revision in earlier:
            _follow(draft, before, revision, own_names, bar, exact=exact)
            draft.delta.keep(Keep(entry, copy_for_changes(draft.state)))
            before = revision.state
        _follow(draft, before, source, own_names, bar, exact=exact)
        for entry, rebuilt in states:
            if rebuilt is None:
                draft.delta.keep(Keep(entry))
    return draft


def _warn_of_wide_copy(source: Source, old: Layout, dtype: np.dtype[Any]) -> None:
    """Warn if the copy will be text whose items all have the size of the longest one, and waste most of it."""
    if dtype == old.dtype or not is_wide(old.shape, dtype):
        return
    warn_of_waste(_first_items(source, old), old.shape, dtype)


def _first_items(source: Source, layout: Layout) -> npt.NDArray[Any]:
    box = first_box(layout.shape, SAMPLED)
    return np.empty(0, layout.dtype) if box is None else resize.read_box(source, layout, box)


def _copied_text(source: Source, old: Layout, dtype: np.dtype[Any]) -> int:
    """Return the average size of text of any length in a copy, in bytes; 0 for other types, or if it is unknown."""
    if not is_text(dtype):
        return 0
    if old.is_text:
        return average_text(known=known_text(source.state))
    return average_text(_first_items(source, old))


def _complete(new: ArrayOptions, state: State, dtype: np.dtype[Any], text_nbytes: int) -> ArrayOptions:
    """Complete the options of a copy from the state of its source; `text_nbytes` as in `new_draft`."""
    old = state.require_layout()
    annotations = state.annotations
    wanted_chunks, wanted_blocks = _parts(old, dtype, new, text_nbytes)
    layout = choose_layout(old.shape, dtype, replace(new, chunks=wanted_chunks, blocks=wanted_blocks), text_nbytes)
    new = replace(new, chunks=layout.chunks, blocks=layout.blocks)
    if new.fill_value is UNSET:
        new = replace(new, fill_value=_convert_noted_fill(annotations.fill, old.dtype, dtype))
    if new.cparams is None:
        new = replace(new, cparams=cparams_for(state.cparams, dtype, interop=new.interop))
    if new.dims is None:
        new = replace(new, dims=annotations.dims)
    return new


def _follow(
    draft: Draft,
    before: State | None,
    source: Source,
    own_names: Collection[str],
    bar: Progress,
    *,
    exact: bool,
) -> None:
    """Change a copy from the state `before` (None for a new copy) to the items and attributes of the next state."""
    old = source.state.require_layout()
    attrs = source.state.attrs()
    for name in {*draft.state.attr_names} - attrs.keys() - {*own_names}:
        draft.set_attr(name, None)
    for name, content in attrs.items():
        if name not in own_names:
            draft.set_attr(name, content)
    if before is not None:
        resize.resize(draft, old.shape)
        draft.annotate(dims=source.state.annotations.dims)
    if before is None:
        _copy_items(draft, source, bar, exact=exact)
        return
    layout = draft.state.require_layout()
    changed: set[int] = set()
    for box in differing(before, source.state):
        changed.update(_chunks_in(layout, box))
    rewrite(draft, layout, sorted(changed), lambda box: resize.read_box(source, old, box), bar.advance, exact=exact)


_FEW_READS = 1.2
"""The number of times that a copy may read a block, on average, before it makes another copy in between."""
_LEAST_TEXT_NBYTES = 2**16
"""With fewer bytes of text in a chunk, a copy chooses other chunks."""
_LEAST_NBYTES = 2**14
"""The minimum size of a chunk of that other copy, in bytes."""


def _copy_items(draft: Draft, source: Source, bar: Progress, *, exact: bool) -> None:
    """Copy all items, and read each block of the source about once."""
    old = source.state.require_layout()
    new = draft.state.require_layout()
    text_nbytes = _copied_text(source, old, old.dtype if old.is_text else new.dtype)
    itemsize = old.itemsize + text_nbytes
    most = max(1, PIECE_NBYTES // itemsize)
    if not new.nchunks or windows.reads(old, new.chunks, new.chunks) <= _FEW_READS:
        # Threads read and encode chunks at the same time.
        numbers = range(new.nchunks)
        rewrite(draft, new, numbers, lambda box: resize.read_box(source, old, box), bar.advance, exact=exact)
        return
    extents = windows.window(old, new.chunks, most)
    shared = windows.shared_chunks(old, new.chunks, most)
    needs_another = windows.reads(old, new.chunks, extents) > _FEW_READS
    if not needs_another or math.prod(shared) * itemsize < _LEAST_NBYTES:
        _copy_windows(draft, source, extents, bar, exact=exact)
        return
    with TemporaryDirectory(prefix="b2array-") as directory:
        # Chunks of this copy are parts of the windows of both sides.
        options = ArrayOptions(chunks=shared, cparams=_FAST)
        between = new_draft(f"{directory}/between.b2nd", old.shape, old.dtype, options, text_nbytes)
        with aborting(between):
            _copy_windows(between, source, windows.window(old, shared, most), Progress(None), exact=True)
        with closing(Handle(commit(between), "r")) as handle:
            layout = handle.source.state.require_layout()
            _copy_windows(draft, handle.source, windows.window(layout, new.chunks, most), bar, exact=exact)


def _copy_windows(
    draft: Draft,
    source: Source,
    extents: tuple[int, ...],
    bar: Progress,
    *,
    exact: bool,
) -> None:
    """Copy all items, a window of this shape at a time, which consists of whole new chunks."""
    old = source.state.require_layout()
    new = draft.state.require_layout()
    for window in boxes(new.shape, math.prod(extents), extents):
        box = tuple(slice(part.start, part.stop, 1) for part in window)
        values = resize.read_box(source, old, box)

        def cut(part: tuple[slice, ...], box: Any = box, values: npt.NDArray[Any] = values) -> npt.NDArray[Any]:
            sides = zip(part, box, strict=True)
            inside: list[Any] = [slice(own.start - outer.start, own.stop - outer.start) for own, outer in sides]
            items: npt.NDArray[Any] = values[(*inside, ...)]
            return items

        rewrite(draft, new, _chunks_in(new, box), cut, bar.advance, exact=exact)


def _chunks_in(layout: Layout, box: tuple[slice, ...]) -> list[int]:
    """Return the numbers of the chunks that a box touches."""
    grid = np.arange(layout.nchunks).reshape(layout.grid_shape)
    cells = []
    for part, length in zip(box, layout.chunks, strict=True):
        first = part.start // length
        end = -(-part.stop // length)
        cells.append(slice(first, end))
    numbers: list[int] = grid[tuple(cells)].reshape(-1).tolist()
    return numbers


def cparams_for(old: CParams, dtype: np.dtype[Any], *, interop: bool) -> CParams:
    """Return the parameters of the copied array, without permission for rounding if the copy cannot be rounded.

    ZFP and means of cells would change the values again, cells may not fit other blocks, and some codecs only decode.
    """
    has_cells = not CELL_FILTERS.isdisjoint(old.filter_slots)
    if old.is_zfp or has_cells or not codecs.is_writable(old.codec_id):
        return resolve_cparams(None)
    if is_text(dtype):
        return replace(old.without_bounds(), filters=(), filters_meta=(), splitmode="auto", use_dict=False)
    old = readable(old) if interop else old
    try:
        check_dtype(old, dtype)
    except (TypeError, ValueError):
        return old.without_bounds()
    return old


def _parts(old: Layout, dtype: np.dtype[Any], new: ArrayOptions, text_nbytes: int) -> tuple[Any, Any]:
    """Choose chunks and blocks: from the options, or else the old chunks and blocks if they still fit.

    `text_nbytes` is the average size of an item of text of any length in the copy.
    """
    if new.access is not None:
        return new.chunks, new.blocks
    if new.chunks is not None:
        # The old blocks divide the old chunks.
        return new.chunks, "auto" if new.blocks is None else new.blocks
    if new.blocks is not None:
        return old.chunks, new.blocks
    if is_text(dtype) and not old.is_text:
        # Blocks of text are runs. Text of one width may take far more bytes than its items are long.
        becomes_small = math.prod(old.chunks) * text_nbytes < _LEAST_TEXT_NBYTES <= old.chunk_nbytes
        return "auto" if becomes_small or 0 in old.chunks else old.chunks, "auto"
    # With items of more than twice the size, the chunks would become too large.
    is_much_larger = dtype.itemsize > 2 * old.itemsize
    if is_much_larger or 0 in old.chunks or 0 in old.blocks:
        return "auto", "auto"
    return old.chunks, old.blocks


def _convert_noted_fill(fill: bytes | None, old: np.dtype[Any], new: np.dtype[Any]) -> Any:
    if fill is None or not (is_text(old) or len(fill) == old.itemsize):
        return 0
    return convert_fill(item_of(fill, old), new)


def convert_fill(item: Any, dtype: np.dtype[Any]) -> Any:
    """Convert a fill value to another type; return 0 if the type has no such value."""
    with np.errstate(invalid="ignore"):
        try:
            return np.asarray(item)[None].astype(dtype)[0]
        except ValueError:
            return 0  # text that is not a number


def holding(x: Any, url: AnyPlace, dtype: npt.DTypeLike | None, options: ArrayOptions) -> Draft:
    """Return the transaction of an array with the items of an array-like.

    Arrays of b2array are copied with their metadata. Arrays that are not in memory are read in parts.
    """
    if isinstance(x, Described):
        return copy_array(x._handle, url, options, dtype)
    assignment.check_plain(x)
    dtype = require_dtype(dtype)
    if is_sliceable(x) and np.dtype(dtype or x.dtype).subdtype is None:
        kind = np.empty(0, x.dtype).astype(dtype or x.dtype).dtype
        require_same_order(x.dtype, kind)
        return from_computed(x.shape, kind, lambda box: piece(x, box, kind), url, options)
    try:
        values = as_items(x, dtype)
    except ValueError as error:
        explain_ragged(x, error)
        raise
    warn_of_waste(values, values.shape, values.dtype)
    draft = new_draft(url, values.shape, values.dtype, options, average_text(values))
    with aborting(draft):
        if values.size:
            put(draft, (...,), values)
    return draft


def as_items(x: Any, dtype: npt.DTypeLike | None) -> npt.NDArray[Any]:
    """Return an array-like as an array of a type that can be stored, if its items have one."""
    if dtype is None and _is_unsized_text(x):
        # NumPy would convert missing items to the text "None".
        dtype = object
    values = np.asarray(x, dtype=require_dtype(dtype))
    if isinstance(x, np.ndarray | np.generic):
        require_same_order(x.dtype, values.dtype)
    if values.dtype.kind != "O":
        return values
    is_empty_text = _is_empty_text(x)
    if not is_empty_text:
        refuse_objects(x, values)
    return as_text(values) if is_empty_text or _has_text(values) else values


def _is_unsized_text(x: Any) -> bool:
    """Return whether an array of another library, such as Polars or Awkward Array, would become text of one width.

    Such libraries have text of any length only.
    """
    is_foreign = hasattr(x, "__array__") and not isinstance(getattr(x, "dtype", None), np.dtype)
    if not is_foreign or isinstance(x, Mapping) or not hasattr(x, "__getitem__") or not getattr(x, "ndim", 1):
        return False
    # One item tells the kind. All items may take far more memory as text of one width.
    kind: str = np.asarray(x[:1]).dtype.kind
    return kind == "U"


def _is_empty_text(x: Any) -> bool:
    """Return whether an array of pandas, Polars or Arrow has no items, and a type for text."""
    named = getattr(x, "type", None) if getattr(x, "dtype", None) is None else x.dtype
    return not isinstance(named, np.dtype) and "str" in str(named).lower() and not len(x)


def _has_text(values: npt.NDArray[Any]) -> bool:
    return any(isinstance(item, str | bytes) for item in values.flat)


def from_computed(
    shape: Shape,
    dtype: npt.DTypeLike,
    compute: Callable[[tuple[slice, ...]], Any],
    url: AnyPlace,
    options: ArrayOptions,
) -> Draft:
    """Return the transaction of an array whose items a function computes box by box; None stands for the fill value."""
    kind = np.empty(0, dtype).dtype
    sample = _sample_computed(shape, kind, compute)
    warn_of_waste(sample, extents(shape), kind)
    text_nbytes = average_text(sample) if is_text(kind) else 0
    draft = new_draft(url, shape, dtype, options, text_nbytes)
    with aborting(draft):
        layout = draft.state.require_layout()
        nbytes = layout.itemsize + text_nbytes
        for box in boxes(layout.shape, PIECE_NBYTES // nbytes, layout.chunks):
            values = compute(box)
            if values is not None:
                put(draft, box, values)
    return draft


def _sample_computed(
    shape: Shape,
    dtype: np.dtype[Any],
    compute: Callable[[tuple[slice, ...]], Any],
) -> npt.NDArray[Any]:
    """Return the first items that a function computes, if their text is worth measuring; else no items."""
    nothing = np.empty(0, dtype)
    if not is_text(dtype) and not is_wide(extents(shape), dtype):
        return nothing
    box = first_box(extents(shape), SAMPLED)
    values = None if box is None else compute(box)
    return nothing if values is None else np.asarray(values, dtype)


def sample_text(x: Any) -> npt.NDArray[Any]:
    """Return the items of an array by which its text is measured: the first ones if it is not in memory, else all."""
    if not is_sliceable(x):
        return np.asarray(x)
    box = first_box(x.shape, SAMPLED)
    return np.empty(0, x.dtype) if box is None else piece(x, box)


_NO_BLOCK = object()
_ADVICE = 'choose a type for all blocks, such as dtype="{wider}"'
"""What to do about blocks that do not fit the type."""


def join_blocks(
    blocks: Iterable[Any],
    url: AnyPlace,
    axis: int,
    dtype: npt.DTypeLike | None,
    options: ArrayOptions,
) -> Draft:
    """Return the transaction of an array that joins a sequence of blocks; see `b2array.from_blocks`."""
    # The first block determines the shape, and the type unless the caller does.
    remaining = iter(blocks)
    piece = next(remaining, _NO_BLOCK)
    if piece is _NO_BLOCK:
        raise ValueError("from_blocks needs at least one block, which may be empty")
    assignment.check_plain(piece)
    required = require_dtype(dtype)
    if required is None or not dtypes.has_size(required):
        # Text without a width gets the width of the first block.
        first = as_items(piece, required)
        kind = first.dtype
    else:
        kind = np.empty(0, required).dtype
        first = lossless(piece, kind, _ADVICE)
    if not first.ndim:
        raise ValueError("from_blocks needs blocks with the dimension along which they are joined, found a single item")
    axis = np.lib.array_utils.normalize_axis_index(axis, first.ndim)
    shape = (*first.shape[:axis], 0, *first.shape[axis + 1 :])
    draft = new_draft(url, shape, kind, options, average_text(first))
    with aborting(draft):
        # The first block alone says how large the text is, so that all blocks are cut into rows of the final chunks.
        resize.choose_chunks(draft, [axis], sample=first)
        for values in _cut_into_rows(chain([piece], remaining), draft.state.require_layout(), axis):
            resize.append(draft, values, axis)
        warn_of_stored_waste(draft)
    return draft


def _cut_into_rows(blocks: Iterable[Any], layout: Layout, axis: int) -> Iterator[npt.NDArray[Any]]:
    """Divide and join blocks into rows of whole chunks; the last row may be shorter."""
    length = layout.chunks[axis]
    before = (slice(None),) * axis
    pending: list[npt.NDArray[Any]] = []
    count = 0
    for block in blocks:
        values = lossless(block, layout.dtype, _ADVICE)
        resize.check_extents(values.shape, layout.shape, axis)
        done = 0
        while done < values.shape[axis]:
            taken = min(length - count, values.shape[axis] - done)
            pending.append(values[(*before, slice(done, done + taken))])
            done += taken
            count += taken
            if count == length:
                yield np.concatenate(pending, axis)
                pending = []
                count = 0
        # Copy, because the caller may reuse the memory of this block.
        pending[-1:] = [part.copy() for part in pending[-1:]]
    if pending:
        yield np.concatenate(pending, axis)


# Arrays that are read in parts, so that they may be larger than memory.


_TEXT_FACTOR = 8
"""Items of StringDType and their text have about 8 times the bytes of the items alone."""
PIECE_NBYTES = 32 * 2**20
"""The number of bytes to read at a time, unless a chunk (or a row of chunks to append) is larger."""

# dask would compute its graph again for each slice, and pandas interprets slices as labels.
_READ_WHOLE = frozenset({"dask", "pandas"})


def is_sliceable(x: Any) -> bool:
    """Return whether to read an array-like in parts: it is not in memory, and supports NumPy's slices.

    Examples
    --------
    >>> is_sliceable(np.zeros(3)), is_sliceable([0, 0]), is_sliceable(np.float64(0))
    (False, False, False)
    """
    if isinstance(x, np.ndarray | np.generic) or not isinstance(x, Sliceable):
        return isinstance(x, np.memmap)
    # The type that NumPy chooses for Python objects depends on all of them.
    # NumPy counts text of any length as objects.
    has_plain_items = isinstance(x.dtype, np.dtype) and (is_text(x.dtype) or not x.dtype.hasobject)
    library, _, _ = type(x).__module__.partition(".")
    return has_plain_items and library not in _READ_WHOLE


def piece(
    x: Sliceable,
    box: tuple[slice, ...],
    dtype: npt.DTypeLike | None = None,
) -> npt.NDArray[Any]:
    """Read a box of an array; TypeError for masked items, ValueError for a wrong number of items."""
    items = x[box]
    assignment.check_plain(items)
    values = np.asarray(items, dtype)
    expected = tuple(part.stop - part.start for part in box)
    if values.shape != expected:
        raise ValueError(f"expected items of shape {expected} at {box} of {type(x).__name__}, found {values.shape}")
    return values


def nbytes_in_memory(x: Any) -> int:
    """Return the average size of an item of an array in memory, in bytes, with its text."""
    itemsize: int = x.dtype.itemsize
    if not is_text(x.dtype):
        return itemsize
    if isinstance(x, Readable):
        return itemsize + average_text(known=known_text(x._handle.source.state))
    return itemsize * _TEXT_FACTOR


def rows(values: Sliceable, layout: Layout, axis: int) -> Iterator[npt.NDArray[Any]]:
    """Divide values to append into pieces that end at the end of a row of chunks."""
    shape = values.shape
    count = shape[axis]
    length = max(1, layout.chunks[axis])
    items_in_step = math.prod(shape) // max(1, count)
    itemsize = max(layout.itemsize, nbytes_in_memory(values))
    step_nbytes = max(1, items_in_step * itemsize)
    chunk_rows = max(1, PIECE_NBYTES // (step_nbytes * length))
    box = [slice(0, extent) for extent in shape]
    start = 0
    while start < count:
        # If the array ends inside a chunk, the first piece fills the chunk.
        inside_chunk = (layout.shape[axis] + start) % length
        stop = min(start + chunk_rows * length - inside_chunk, count)
        box[axis] = slice(start, stop)
        yield piece(values, tuple(box))
        start = stop
