"""dask: graphs that read arrays, and graphs that write them.

Functions import dask when they need it, so b2array works without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from b2array.array import dask_chunks
from b2array.array.array_copying import nbytes_in_memory
from b2array.array.drafts import AnyPlace, ArrayOptions, Url, aborting, new_draft
from b2array.array.frozen import Frozen, Shared, one_thread, register_sizeof
from b2array.array.items import Indexed
from b2array.array.wide_text import warn_of_stored_waste
from b2array.commit.changes import ChangeSet
from b2array.commit.draft import Draft
from b2array.commit.fork_point import ForkPoint
from b2array.commit.forks import abandon_write, commit_changes, make_fork_point, merge_changes, write_part
from b2array.commit.handle import Handle
from b2array.compute.readable import Readable
from b2array.errors import ReadOnlyError, make_ended_error, warn
from b2array.format.strings import is_text
from b2array.format.text_sizes import average_text
from b2array.grid import assignment
from b2array.grid.chunking import is_automatic
from b2array.grid.layout import Layout
from b2array.grid.lossless import lossless, require_same_kind, require_same_order
from b2array.grid.partition import first_box
from b2array.grid.text_chunks import SAMPLED, item_nbytes
from b2array.grid.text_items import as_text, refuse_missing
from b2array.progress import track

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed

__all__ = [
    "Frozen",
    "Region",
    "Write",
    "as_declared",
    "check_source",
    "compute_changes",
    "final",
    "from_dask",
    "gather_changes",
    "join",
    "measure_text",
    "register_sizeof",
    "store",
    "to_dask",
]

Region = tuple[slice, ...]

_TASKS = 32
"""The minimum number of pieces of an array, enough for many cores. The number does not depend on this machine, so that
an array has the same graph on all machines."""
_LEAST_TASK_NBYTES = 4 * 2**20
"""The size up to which pieces are always joined, in bytes: dask needs some tenths of a millisecond per task."""
_JOINING_NBYTES = 256 * 2**20
"""The maximum number of bytes in memory during a write in a transaction, unless a single piece is larger."""
_SMALL_CHUNK_NBYTES = 2**16
_MANY_CHUNKS = 256
"""This many small chunks, which the pieces of a dask array bring, are worth a warning."""


def _require_dask() -> None:
    try:
        import_module("dask.array")
    except ImportError:
        raise ModuleNotFoundError("dask arrays need the package dask: pip install 'b2array[dask]'") from None


def to_dask(a: Readable, chunks: Any = "auto") -> da.Array:
    """Return a dask array that reads the present committed state of `a`; see `NDArray.to_dask`."""
    _require_dask()
    import dask.array as da
    from dask.array.core import PerformanceWarning
    from dask.base import tokenize

    frozen = Frozen(a)
    is_chosen = not is_automatic(chunks)
    cut = _normalize(chunks, a) if is_chosen else group_for_tasks(a)
    if is_chosen and dask_chunks.align(cut, a.chunks, [0] * a.ndim) != cut:
        stored_cut = _normalize(a.chunks, a)
        nchunks = math.prod(map(len, stored_cut))
        parts = dask_chunks.pieces(cut, stored_cut)
        warn(
            f"chunks {_brief(cut)} do not align with the stored ones {a.chunks}: {nchunks} stored chunks are read in "
            f"{parts} parts, and blocks on the borders several times",
            PerformanceWarning,
        )
    # The name depends on the state of the array, so that dask computes equal graphs only once.
    name = f"b2array-{tokenize(frozen, cut)}"
    meta = np.empty((0,) * a.ndim, a.dtype)
    return cast("da.Array", da.from_array(frozen, chunks=cut, name=name, meta=meta))


def group_for_tasks(a: Readable) -> dask_chunks.Cut:
    """Divide an array into pieces for tasks: enough for many cores, and not larger than dask's setting permits."""
    import dask
    from dask.utils import parse_bytes

    # Use dask's setting for "auto", which users know and adapt to their memory.
    limit = parse_bytes(dask.config.get("array.chunk-size", "128MiB"))
    itemsize = nbytes_in_memory(a)
    share = math.prod(a.shape) * itemsize // _TASKS
    chunk_nbytes = math.prod(a.chunks) * itemsize
    wanted = min(max(share, _LEAST_TASK_NBYTES, chunk_nbytes), limit)
    return dask_chunks.group_chunks(a.shape, a.chunks, a.blocks, itemsize, wanted)


def _normalize(chunks: Any, a: Readable) -> dask_chunks.Cut:
    """Convert chunks in any form that dask accepts to lengths of pieces."""
    from dask.array.core import normalize_chunks

    lengths = normalize_chunks(chunks, a.shape, dtype=a.dtype, previous_chunks=a.chunks)
    return cast(dask_chunks.Cut, lengths)


def _brief(cut: dask_chunks.Cut) -> tuple[int, ...]:
    return tuple(max(lengths) for lengths in cut)


# Writing.


def from_dask(
    x: da.Array,
    url: Url | None,
    dtype: npt.DTypeLike | None,
    options: ArrayOptions,
    *,
    compute: bool,
    scheduler: Any,
) -> Write:
    """Return the graph that stores a dask array as a new array; see `b2array.from_dask`."""
    x, draft = _begin(x, url, dtype, options, compute=compute, scheduler=scheduler)
    with aborting(draft):
        return _write_all(x, draft, lasts=True)


def compute_draft(
    x: da.Array,
    place: AnyPlace,
    dtype: npt.DTypeLike | None,
    options: ArrayOptions,
    *,
    progress: bool,
    scheduler: Any,
) -> Draft:
    """Compute a dask array now, and return the draft of an array with its values."""
    x, draft = _begin(x, place, dtype, options, compute=True, scheduler=scheduler)
    with aborting(draft):
        (changes,) = compute_changes([_write_all(x, draft)], progress, scheduler)
        merge_changes(draft, changes)
        warn_of_stored_waste(draft)
    return draft


def _begin(
    x: da.Array,
    place: AnyPlace,
    dtype: npt.DTypeLike | None,
    options: ArrayOptions,
    *,
    compute: bool,
    scheduler: Any,
) -> tuple[da.Array, Draft]:
    """Return the dask array, cast to the type to store, and the draft of an array for it."""
    check_source(x)
    x = text_of(x, dtype)
    if dtype is not None and dtype != x.dtype:
        # Check before the cast, which would hide pieces of another type than the declared one.
        converted = as_declared(x).astype(dtype)
        require_same_order(x.dtype, converted.dtype)
        x = converted
    is_divided = options.blocks is None and is_automatic(options.chunks)
    is_open = is_automatic(options.chunks) or is_automatic(options.blocks)
    text_nbytes = measure_text(x, scheduler) if compute and is_open else 0
    if is_divided:
        # Choose chunks that divide the pieces of dask, so that no data moves between tasks.
        chunks = dask_chunks.dividing(x.chunks, item_nbytes(x.dtype, text_nbytes), options.access)
        options = replace(options, chunks=chunks)
    draft = new_draft(place, x.shape, x.dtype, options, text_nbytes)
    if is_divided:
        _warn_of_small_pieces(x, draft.state.require_layout())
    return x, draft


def _warn_of_small_pieces(x: da.Array, layout: Layout) -> None:
    """Warn if the pieces of a dask array cut it into very many chunks that are small."""
    from dask.array.core import PerformanceWarning

    if layout.nchunks >= _MANY_CHUNKS and layout.chunk_nbytes < _SMALL_CHUNK_NBYTES:
        warn(
            f"the pieces of the dask array, of {_brief(x.chunks)} items, cut it into {layout.nchunks} chunks of"
            f" {layout.chunk_nbytes / 1024:.0f} KiB, each of which costs a request: rechunk('64MiB') makes larger"
            " pieces",
            PerformanceWarning,
        )


def _write_all(x: da.Array, draft: Draft, *, lasts: bool = False) -> Write:
    layout = draft.state.require_layout()
    if layout.shape != x.shape:
        raise TypeError(f"items of type {x.dtype} are arrays, which dask arrays do not have")
    whole = tuple(slice(0, n) for n in x.shape)
    return Write(x, make_fork_point(draft, lasts=lasts), layout, whole)


def store(
    a: Indexed,
    x: da.Array,
    region: Region | None = None,
    *,
    compute: bool = True,
    return_stored: bool = False,
    progress: bool = False,
    scheduler: Any = None,
) -> da.Array | Delayed | None:
    """Write a dask array into a region of `a`; see `NDArray.store`."""
    check_source(x)
    if a.mode == "r":
        raise ReadOnlyError(f"{a.url} was opened for reading; open it with mode='r+' to change it")
    inside = _resolve_region(region, a.shape)
    lengths = tuple(part.stop - part.start for part in inside)
    if x.shape != lengths:
        raise ValueError(f"expected an array of shape {lengths} for the region, found {x.shape}")
    x = text_of(x, a.dtype)
    require_same_kind(x.dtype, a.dtype)
    if a._handle.in_transaction:
        # A delayed object would be computed only after the end of the transaction.
        if not compute or return_stored:
            raise ValueError("in a transaction only compute=True works: it commits at its end, and nothing before")
        join([(a, x, inside)], progress, scheduler)
        return None
    fork_point = make_fork_point(a._handle.new_draft(), lasts=True)
    write = Write(x, fork_point, a._layout, inside)
    if return_stored and not compute:
        return write.reading(type(a))
    done = write.run(type(a), compute, progress, scheduler)
    if not compute:
        return cast("Delayed", done)
    # Update the handle to the commit, as after an assignment.
    a._handle.show_committed(done._handle.revision)
    return to_dask(a)[inside] if return_stored else None


def join(parts: Sequence[tuple[Indexed, da.Array, Region]], progress: bool, scheduler: Any) -> None:
    """Write dask arrays into regions of stored arrays, as part of the transactions of the stored arrays."""
    writes = []
    for a, x, region in parts:
        fork_point = make_fork_point(_draft(a))
        writes.append(Write(x, fork_point, a._layout, region))
    changes_of_writes = compute_changes(writes, progress, scheduler)
    for (a, *_), changes in zip(parts, changes_of_writes, strict=True):
        # Other threads may write through the same handle.
        with a._handle.mutex.held:
            merge_changes(_draft(a), changes)


def _draft(a: Indexed) -> Draft:
    """Return the draft of the transaction of an array. ConflictError: its commit has begun, or it has ended."""
    a._handle.require_unsealed()
    draft = a._handle.draft
    if draft is None:
        raise make_ended_error(a.url)
    return draft


def check_source(x: Any) -> None:
    """Raise an error for anything but a dask array that can be stored."""
    _require_dask()
    import dask.array as da

    if not isinstance(x, da.Array):
        raise TypeError(f"expected a dask array, found {type(x).__name__}")
    # dask uses NaN for unknown sizes, as after a selection by a mask.
    if any(math.isnan(n) for lengths in x.chunks for n in lengths):
        raise ValueError(f"the chunks of {x.name} have unknown sizes: compute_chunk_sizes() finds them")
    if isinstance(x._meta, np.ma.MaskedArray):
        raise TypeError("masked items have no value that could be stored: choose one with filled()")


def text_of(x: da.Array, dtype: npt.DTypeLike | None) -> da.Array:
    """Return a dask array of objects as text of the given type, by default without missing items; others unchanged."""
    import dask.array as da

    text: np.dtype[Any] = np.dtypes.StringDType() if dtype is None else np.dtype(dtype)
    if x.dtype.kind != "O" or text.kind != "T":
        return x
    example = np.empty((0,) * x.ndim, text)
    options: dict[str, Any] = {"dtype": text, "meta": example}
    return cast("da.Array", da.map_blocks(_as_text, x, text, **options))


def _as_text(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return objects as text; TypeError if items are no text, or missing where the type has no missing items."""
    converted = as_text(values)
    refuse_missing(converted, dtype)
    return converted.astype(dtype)


def measure_text(x: da.Array, scheduler: Any = None) -> int:
    """Return the average size of text of any length in bytes, for which this computes the first items; otherwise 0."""
    first = first_box(x.shape, SAMPLED) if is_text(x.dtype) else None
    if first is None:
        return 0
    options = {} if scheduler is None else {"scheduler": scheduler}
    return average_text(np.asarray(x[first].compute(**options)))


def as_declared(x: da.Array, owner: str = "") -> da.Array:
    """Return the array with a check that raises an error for a piece of another type than the declared one.

    The cast before storing would convert such a piece silently. `owner` begins the message.
    """
    import dask.array as da

    options = {"declared": x.dtype, "owner": owner, "dtype": x.dtype, "meta": x._meta}
    return cast("da.Array", da.map_blocks(_as_declared, x, **options))


def _resolve_region(region: Any, shape: tuple[int, ...]) -> Region:
    """Return a region as one slice for each axis; IndexError if it is not inside the array."""
    parts: tuple[Any, ...] = ()
    if region is not None:
        parts = region if isinstance(region, tuple) else (region,)
    if len(parts) > len(shape):
        raise IndexError(f"a region of {len(parts)} dimensions in an array of {len(shape)}")
    slices = []
    for axis, n in enumerate(shape):
        part = parts[axis] if axis < len(parts) else slice(None)
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise ValueError(f"a region consists of slices without step, found {part!r}")
        start = 0 if part.start is None else part.start
        stop = n if part.stop is None else part.stop
        # Do not use slice.indices, which would shorten a slice that extends beyond the array.
        if start < 0:
            start += n
        if stop < 0:
            stop += n
        if not 0 <= start <= stop <= n:
            raise IndexError(f"the region {part!r} of axis {axis} is not inside its {n} items")
        slices.append(slice(int(start), int(stop)))
    return tuple(slices)


class Write:
    """The graph that writes the values `x` to a region, by forks of a transaction."""

    def __init__(self, x: da.Array, point: ForkPoint, layout: Layout, region: Region) -> None:
        self.x = _align(x, layout.chunks, region)
        self.point = point
        self.dtype = layout.dtype
        self.region = region
        self._id = uuid4().hex
        self.shared = Shared(f"write {self._id}", (point, region))
        self.nchunks = 1
        for part, extent in zip(region, layout.chunks, strict=True):
            length = max(1, extent)
            first = part.start // length
            end = -(-part.stop // length)
            self.nchunks *= max(0, end - first)

    def name(self, verb: str) -> str:
        """Return a name for tasks of this write."""
        return f"b2array-{verb}-{self._id}"

    def changes(self) -> da.Array:
        """Return an array with an item for each piece: the change of the fork that has written its chunks.

        The layer is a standard layer of dask, so that dask fuses it with the tasks that compute the values. With 10,000
        pieces, this halves the number of tasks and the size of the pickle, compared to a custom layer. One more task
        contains the transaction, whose index may be large.
        """
        import dask.array as da
        from dask.delayed import Delayed
        from dask.layers import ArraySliceDep

        x = self.x
        axes = tuple(range(x.ndim))
        key = self.name("point")
        return da.blockwise(
            _put,
            axes,
            x,
            axes,
            ArraySliceDep(x.chunks),
            axes,
            shared=Delayed(key, {key: self.shared}),
            declared=x.dtype,
            stored=self.dtype,
            name=self.name("put"),
            dtype=object,
            meta=np.empty((0,) * x.ndim, object),
            adjust_chunks=dict.fromkeys(axes, lambda _: 1),
            align_arrays=False,
        )

    def run(
        self,
        make: Callable[[Handle], Any],
        compute: bool,
        progress: bool,
        scheduler: Any,
    ) -> Any:
        """Compute and commit, and make the result from a handle; or return a delayed object for this."""
        if not compute:
            return self._committing(make, frozen=False)
        try:
            (changes,) = compute_changes([self], progress, scheduler)
        except BaseException:
            # Tasks that are still running in other threads remove their chunks.
            abandon_write(self.point)
            raise
        return make(Handle(commit_changes(self.point, changes), "r+"))

    def _committing(self, make: Callable[[Handle], Any], *, frozen: bool) -> Delayed:
        return final([self], self.name("commit"), _commit, self.shared, make, frozen)

    def reading(self, make: Callable[[Handle], Any]) -> da.Array:
        """Return an array that reads the stored values after the write."""
        import dask.array as da
        from dask.layers import ArraySliceDep

        x = self.x
        axes = tuple(range(x.ndim))
        return da.blockwise(
            _read,
            axes,
            ArraySliceDep(x.chunks),
            axes,
            frozen=self._committing(make, frozen=True),
            region=self.region,
            name=self.name("stored"),
            dtype=self.dtype,
            align_arrays=False,
            meta=np.empty((0,) * x.ndim, self.dtype),
        )


def compute_changes(
    writes: Sequence[Write],
    progress: bool,
    scheduler: Any,
) -> list[list[ChangeSet]]:
    """Compute the changes of several writes in one graph, so that shared tasks run once."""
    from dask.callbacks import Callback

    names = {write.name("put") for write in writes}
    options = {} if scheduler is None else {"scheduler": scheduler}
    nchunks = sum(write.nchunks for write in writes)
    with track(nchunks, "storing", progress, unit="chunks") as bar:
        client = _find_client(scheduler) if progress else None
        if client is not None:
            return _watch(writes, client, bar.advance)

        def advance(key: Any, put: Any, *_: Any) -> None:
            if isinstance(key, tuple) and key[0] in names:
                bar.advance(sum(change.numbers.size for change in put.flat))

        with Callback(posttask=advance) if progress else nullcontext():
            graph = final(writes, f"b2array-gather-{uuid4().hex}", gather_changes)
            return cast(list[list[ChangeSet]], graph.compute(**options))


def _watch(
    writes: Sequence[Write],
    client: Any,
    advance: Callable[[int], None],
) -> list[list[ChangeSet]]:
    """Compute the changes on a cluster, which calls no dask callbacks; report finished chunks to `advance`."""
    from distributed import as_completed, futures_of

    by_write: dict[str, list[ChangeSet]] = {write.name("put"): [] for write in writes}
    futures = futures_of(client.persist(_join_graphs(writes)))
    for future, put in as_completed(futures, with_results=True):
        (changes,) = gather_changes([[put]])
        by_write[future.key[0]] += changes
        advance(sum(change.numbers.size for change in changes))
    return [*by_write.values()]


def final(writes: Sequence[Write], name: str, function: Callable[..., Any], *args: Any) -> Delayed:
    """Return a delayed object that finally calls a function with the `Write.changes` of each write, and `args`.

    Writes that are computed together are optimised together, so that shared tasks run once.
    """
    from dask.core import flatten
    from dask.highlevelgraph import HighLevelGraph

    changes = [write.changes() for write in writes]
    keys = [list(flatten(each.__dask_keys__())) for each in changes]
    task: dict[Any, Any] = {name: (function, keys, *args)}
    graph = HighLevelGraph.from_collections(name, task, dependencies=cast(Any, changes))
    return cast("Delayed", _pending()(name, graph))


@cache
def _pending() -> Any:
    """Return a class of delayed objects that dask optimises like arrays."""
    import dask.array as da
    from dask.delayed import Delayed

    class Pending(Delayed):
        __slots__ = ()
        # dask does not fuse the tasks of plain delayed objects: each step of each piece would be a task.
        __dask_optimize__ = staticmethod(da.Array.__dask_optimize__)

        def __reduce__(self) -> tuple[Any, ...]:
            return _restore, (self.key, self.dask)

    return Pending


def _restore(key: str, graph: Any) -> Any:
    return _pending()(key, graph)


def _join_graphs(writes: Sequence[Write]) -> list[da.Array]:
    """Return the changes of several writes in one graph, so that shared tasks run once."""
    import dask.array as da
    from dask.core import flatten
    from dask.highlevelgraph import HighLevelGraph

    arrays = [write.changes() for write in writes]
    keys = [key for each in arrays for key in flatten(each.__dask_keys__())]
    merged = HighLevelGraph.merge(*(each.dask for each in arrays))
    graph = da.Array.__dask_optimize__(merged, keys)
    return [da.Array(graph, each.name, each.chunks, meta=each._meta) for each in arrays]


def _plain(inside: Region) -> Region:
    """Convert slices to plain integers, because dask uses NumPy's integers."""
    return tuple(slice(int(part.start), int(part.stop)) for part in inside)


def _align(x: da.Array, chunks: tuple[int, ...], region: Region) -> da.Array:
    """Rechunk a dask array so that no two of its pieces touch the same stored chunk."""
    from dask.array.core import PerformanceWarning

    starts = [part.start for part in region]
    cut = dask_chunks.align(x.chunks, chunks, starts)
    if cut == x.chunks:
        return x
    parts = dask_chunks.pieces(x.chunks, cut)
    warn(
        f"chunks {_brief(x.chunks)} of the dask array do not consist of whole chunks {chunks} of the stored one: its "
        f"{x.npartitions} pieces are cut into {parts} and put together again, and {x.nbytes / 1e6:.1f} MB move between "
        "tasks",
        PerformanceWarning,
    )
    return x.rechunk(cut)


def _find_client(scheduler: Any) -> Any:
    """Return the client of a cluster, if the tasks will run there."""
    import dask.array as da
    from dask.base import get_scheduler

    # The scheduler of a cluster is the method `get` of its client.
    run = get_scheduler(scheduler=scheduler, cls=da.Array)
    owner = getattr(run, "__self__", None)
    return owner if type(owner).__module__.startswith("distributed") else None


# Tasks.


def _put(
    values: Any,
    inside: Region,
    shared: Shared[tuple[ForkPoint, Region]],
    declared: np.dtype[Any],
    stored: np.dtype[Any],
) -> npt.NDArray[Any]:
    inside = _plain(inside)
    _check_piece(values, inside)
    _as_declared(values, declared)
    point, region = shared.value
    part = _move(inside, region)
    ndim = len(inside)
    item = np.empty((1,) * ndim, object)
    with one_thread():
        item[(0,) * ndim] = write_part(point, part, lossless(values, stored), region)
    return item


def _read(inside: Region, frozen: Frozen, region: Region) -> npt.NDArray[Any]:
    return np.asarray(frozen[_move(inside, region)])


def _move(inside: Region, region: Region) -> Region:
    """Return the position of a part of a region in the array."""
    moved = []
    for part, whole in zip(inside, region, strict=True):
        first = whole.start
        moved.append(slice(first + part.start, first + part.stop, 1))
    return tuple(moved)


def _check_piece(values: Any, inside: Region) -> None:
    """Raise an error if a piece that dask has computed has another shape than its place."""
    assignment.check_plain(values)
    lengths = tuple(part.stop - part.start for part in inside)
    if np.shape(values) != lengths:
        raise ValueError(f"expected a piece of shape {lengths} from dask, found {np.shape(values)}")


def _as_declared(values: Any, declared: np.dtype[Any], owner: str = "") -> Any:
    """Return a piece if its type is the declared type, or can be cast to it without loss; else raise an error."""
    computed_dtype = getattr(values, "dtype", None)
    if computed_dtype is None:
        computed_dtype = np.asarray(values).dtype
    require_same_order(computed_dtype, declared)
    if not np.can_cast(computed_dtype, declared, "safe"):
        raise TypeError(
            f"{owner}expected a piece of type {declared} from dask, as the array declares, found {computed_dtype}: "
            "give map_blocks() the right dtype, or convert with astype()"
        )
    return values


def gather_changes(put: Sequence[Sequence[npt.NDArray[Any]]]) -> list[list[ChangeSet]]:
    """Collect the changes to commit for each write, from the changes of its tasks."""
    changes_of_writes = []
    for items in put:
        changes = [change for item in items for change in item.flat]
        changes_of_writes.append(changes)
    return changes_of_writes


def _commit(
    put: Sequence[Any],
    shared: Shared[tuple[ForkPoint, Region]],
    make: Callable[[Handle], Any],
    frozen: bool,
) -> Any:
    (changes,) = gather_changes(put)
    point, _ = shared.value
    # A cluster may repeat this task.
    array = make(Handle(commit_changes(point, changes, again=True), "r+"))
    return Frozen(array) if frozen else array
