"""dask: graphs that read arrays, and graphs that write them.

Functions import dask when they need it, so b2array works without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from itertools import accumulate, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from b2array.array import dask_chunks
from b2array.array.drafts import ArrayOptions, Url, new_draft
from b2array.array.frozen import Frozen, Shared, one_thread, register_sizeof
from b2array.array.items import Indexed
from b2array.compute.readable import Readable
from b2array.engine.draft import Draft
from b2array.engine.handle import Handle
from b2array.engine.source import Source
from b2array.errors import ReadOnlyError, warn
from b2array.grid import assignment
from b2array.progress import track
from b2array.workers import distributed
from b2array.workers.distributed import Entry, Job

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed

__all__ = [
    "Frozen", "Region", "Write", "check_source", "computed", "final", "from_dask", "gathered", "join",
    "register_sizeof", "store", "to_dask",
]  # fmt: skip

Region = tuple[slice, ...]

_JOINING_NBYTES = 256 * 2**20
"""The most bytes in memory during a write that is part of a transaction, unless a single piece has more."""


def _require_dask() -> None:
    try:
        import_module("dask.array")
    except ImportError:
        raise ModuleNotFoundError("dask arrays need the package dask: pip install 'b2array[dask]'") from None


def to_dask(a: Readable, chunks: Any = "auto") -> da.Array:
    """Return a dask array that reads `a` as it is committed now; see `NDArray.to_dask`."""
    _require_dask()
    import dask.array as da
    from dask.array.core import PerformanceWarning
    from dask.base import tokenize

    frozen = Frozen(a)
    automatic = chunks is None or (isinstance(chunks, str) and chunks == "auto")
    cut = grouped_auto(a) if automatic else _cut(chunks, a)
    if not automatic and dask_chunks.aligned(cut, a.chunks, [0] * a.ndim) != cut:
        parts = dask_chunks.pieces(cut, _cut(a.chunks, a))
        warn(
            f"chunks {_brief(cut)} do not align with the stored ones {a.chunks}: "
            f"{math.prod(map(len, _cut(a.chunks, a)))} stored chunks are read in "
            f"{parts} parts, and blocks on the borders several times",
            PerformanceWarning,
        )
    name = f"b2array-{tokenize(frozen, cut)}"
    meta = np.empty((0,) * a.ndim, a.dtype)
    return cast("da.Array", da.from_array(frozen, chunks=cut, name=name, meta=meta))


def grouped_auto(a: Readable) -> dask_chunks.Cut:
    """Cut an array into pieces as large as dask's setting ``array.chunk-size`` permits."""
    import dask
    from dask.utils import parse_bytes

    limit = parse_bytes(dask.config.get("array.chunk-size", "128MiB"))
    return dask_chunks.grouped(a.shape, a.chunks, a.blocks, a.itemsize, limit)


def _cut(chunks: Any, a: Readable) -> dask_chunks.Cut:
    from dask.array.core import normalize_chunks

    return cast(dask_chunks.Cut, normalize_chunks(chunks, a.shape, dtype=a.dtype, previous_chunks=a.chunks))


def _brief(cut: dask_chunks.Cut) -> tuple[int, ...]:
    return tuple(max(lengths) for lengths in cut)


# Writing.


def from_dask(
    x: da.Array, url: Url | None, dtype: npt.DTypeLike | None, options: ArrayOptions, *, resume: bool
) -> Write:  # fmt: skip
    """Return the graph that stores a dask array as a new one; see `b2array.from_dask`."""
    check_source(x)
    if dtype is not None:
        x = x.astype(dtype)
    if options.blocks is None and options.chunks in (None, "auto"):
        options = replace(options, chunks=dask_chunks.dividing(x.chunks, x.dtype.itemsize))
    draft = new_draft(url, x.shape, x.dtype, options)
    layout = draft.state.require_layout()
    draft.abort()
    if draft.aside:
        raise FileExistsError(f"{draft.url} has the other layout, which tasks cannot replace; remove it first")
    whole = tuple(slice(0, n) for n in x.shape)
    if layout.shape != x.shape:
        raise TypeError(f"items of type {x.dtype} are arrays, which dask arrays do not have")
    job = Job(draft.store, layout, whole, new=draft.state, overwrite=options.overwrite, token=x.name)
    return Write(x, job, resume=resume)


def store(
    a: Indexed, x: da.Array, region: Region | None = None, *, compute: bool = True, return_stored: bool = False,
    resume: bool = False, progress: bool = False, scheduler: Any = None,
) -> da.Array | Delayed | None:  # fmt: skip
    """Write a dask array into a region of `a`; see `NDArray.store`."""
    check_source(x)
    if a.mode == "r":
        raise ReadOnlyError(f"{a.url} was opened for reading; open it with mode='r+' to change it")
    inside = _region(region, a.shape)
    lengths = tuple(part.stop - part.start for part in inside)
    if x.shape != lengths:
        raise ValueError(f"expected an array of shape {lengths} for the region, found {x.shape}")
    if not np.can_cast(x.dtype, a.dtype, "same_kind"):
        raise TypeError(f"{x.dtype} cannot be cast to {a.dtype} without loss of kind; convert with astype()")
    if a._handle.in_transaction:
        if not compute or return_stored or resume:
            raise ValueError("in a transaction only compute=True works: it commits at its end, and nothing before")
        join([(a, x, inside)], progress, scheduler)
        return None
    a._handle.announce_commit()
    base = a._handle.at_snapshot("r+")
    job = Job(base.store, a._layout, inside, base=base, token=x.name)
    write = Write(x, job, resume=resume)
    if return_stored and not compute:
        return write.reading(type(a))
    done = write.run(type(a), compute, progress, scheduler)
    if not compute:
        return cast("Delayed", done)
    a._handle.replace_state(done._handle.snapshot)
    return to_dask(a)[inside] if return_stored else None


def join(parts: Sequence[tuple[Indexed, da.Array, Region]], progress: bool, scheduler: Any) -> None:
    """Write arrays into regions of others, as part of the transactions that these are in.

    Tasks encode the values for new arrays, wherever they run. Values for other arrays are computed piece by piece, and
    encoded in this process.
    """
    fresh, others = [], []
    for a, x, region in parts:
        draft: Source = a._handle.source
        job: Job | None = None
        if not isinstance(draft, Draft):  # no reader sees the array before the transaction of its group ends
            base = a._handle.at_snapshot("r+")
            job = Job(base.store, a._layout, region, base=base, token=x.name)
        elif draft.base is None and x.shape == a.shape:
            job = Job(draft.store, a._layout, region, new=draft.state, overwrite=True, token=x.name)
        if job is None:
            others.append((a, _aligned(x, a._layout.chunks, region), region))
        else:
            fresh.append((a, draft, Write(x, job)))
    if fresh:
        try:
            found = computed([write for *_, write in fresh], progress, scheduler)
        except BaseException:
            for *_, write in fresh:  # a write that is part of a transaction cannot be resumed
                distributed.tidy(write.job)
            raise
        for (a, draft, write), entries in zip(fresh, found, strict=True):
            if isinstance(draft, Draft):
                distributed.join(write.job, entries, draft)
            else:
                a._handle.replace_state(distributed.commit(write.job, entries))
    if others:
        _put_in_turn(others, progress, scheduler)


def _put_in_turn(
    parts: Sequence[tuple[Indexed, da.Array, Region]], progress: bool, scheduler: Any
) -> None:  # fmt: skip
    """Compute some pieces at a time, those that are equally far in their arrays together, and put them."""
    from dask.base import compute

    options = {} if scheduler is None else {"scheduler": scheduler}
    queue = []
    for (a, _, region), x in zip(parts, _in_one_graph([x for _, x, _ in parts]), strict=True):
        pieces = zip(x.to_delayed(optimize_graph=False).ravel().tolist(), _pieces(x), strict=True)
        for n, (task, inside) in enumerate(pieces):
            nbytes = math.prod(part.stop - part.start for part in inside) * x.dtype.itemsize
            queue.append((n / x.npartitions, nbytes, a, region, inside, task))
    queue.sort(key=itemgetter(0))
    with track(len(queue), "storing", progress, unit="items") as shown:
        while queue:
            fitting = takewhile(_JOINING_NBYTES.__ge__, accumulate(nbytes for _, nbytes, *_ in queue))
            count = max(1, len(list(fitting)))
            batch, queue = queue[:count], queue[count:]
            tasks = [task for *_, task in batch]
            for (*_, a, region, inside, _), values in zip(batch, compute(*tasks, **options), strict=True):
                _check_piece(values, inside)
                whole = zip(region, inside, strict=True)
                a[tuple(slice(r.start + i.start, r.start + i.stop) for r, i in whole)] = values
                shown.advance()


def check_source(x: Any) -> None:
    """Raise an error for anything but a dask array that can be stored."""
    _require_dask()
    import dask.array as da

    if not isinstance(x, da.Array):
        raise TypeError(f"expected a dask array, found {type(x).__name__}")
    if any(math.isnan(n) for lengths in x.chunks for n in lengths):
        raise ValueError(f"the chunks of {x.name} have unknown sizes: compute_chunk_sizes() finds them")
    if isinstance(x._meta, np.ma.MaskedArray):
        raise TypeError("masked items have no value that could be stored: choose one with filled()")


def _region(region: Any, shape: tuple[int, ...]) -> Region:
    parts = () if region is None else region if isinstance(region, tuple) else (region,)
    if len(parts) > len(shape):
        raise IndexError(f"a region of {len(parts)} dimensions in an array of {len(shape)}")
    found = []
    for axis, n in enumerate(shape):
        part = parts[axis] if axis < len(parts) else slice(None)
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise ValueError(f"a region consists of slices without step, found {part!r}")
        start, stop = (0 if part.start is None else part.start), (n if part.stop is None else part.stop)
        start, stop = (start + n if start < 0 else start), (stop + n if stop < 0 else stop)
        if not 0 <= start <= stop <= n:
            raise IndexError(f"the region {part!r} of axis {axis} is not inside its {n} items")
        found.append(slice(int(start), int(stop)))
    return tuple(found)


class Write:
    """The graph that writes the values `x` as `job` says."""

    def __init__(self, x: da.Array, job: Job, *, resume: bool = False) -> None:
        self.x = _aligned(x, job.layout.chunks, job.region)
        self.job, self.there = job.begun(resume=resume)
        self.shared = Shared(f"job {self.job.id.hex()}", self.job)
        self.light = Shared(f"light job {self.job.id.hex()}", self.job.without_base)

    def name(self, verb: str) -> str:
        """Return a name for tasks of this write."""
        return f"b2array-{verb}-{self.job.id.hex()}"

    def entries(self) -> da.Array | list[Delayed]:
        """Return an array with an item for each piece: the entries to commit, once its task has put the chunks.

        The layer is made of dask's own parts, so that dask makes one task of it and of what computes the values. With
        10,000 pieces that is half as many tasks as a layer of tasks of our own, and a pickle of half the size. A write
        that is resumed has such tasks all the same, because pieces that are there already must not be computed again.
        """
        import dask.array as da
        from dask.delayed import Delayed
        from dask.layers import ArraySliceDep

        x, axes, name = self.x, tuple(range(self.x.ndim)), self.name("put")
        job: Any = self.light
        if self.there or not all(map(self.job.covers, _pieces(x))):
            # This takes the index of the array, which is too large to be part of each task.
            key = self.name("job")
            job = Delayed(key, {key: self.shared})
        if self.there:
            pieces = zip(x.to_delayed().ravel().tolist(), _pieces(x), strict=True)
            return [self._resumed(piece, inside, job, (name, n)) for n, (piece, inside) in enumerate(pieces)]
        return da.blockwise(
            _put, axes, x, axes, ArraySliceDep(x.chunks), axes, shared=job, name=name, dtype=object,
            meta=np.empty((0,) * x.ndim, object), adjust_chunks=dict.fromkeys(axes, lambda _: 1), align_arrays=False,
        )  # fmt: skip

    def _resumed(self, piece: Delayed, inside: Region, job: Any, key: tuple[str, int]) -> Any:
        from dask.delayed import delayed

        numbers = frozenset(self.job.numbers(self.job.part(inside)))
        there = numbers & self.there
        if there == numbers:
            return delayed(_keep)(self.light, inside, dask_key_name=key)
        return delayed(_put)(piece, inside, shared=job, there=there, dask_key_name=key)

    def run(self, make: Callable[[Handle], Any], compute: bool, progress: bool, scheduler: Any) -> Any:
        """Compute and commit, and make the result of a handle; or return a delayed that does."""
        if not compute:
            return self._committing(make, frozen=False)
        (entries,) = computed([self], progress, scheduler)
        return make(Handle(distributed.commit(self.job, entries), "r+"))

    def _committing(self, make: Callable[[Handle], Any], *, frozen: bool) -> Delayed:
        return final([self], self.name("commit"), _commit, self.shared, make, frozen)

    def reading(self, make: Callable[[Handle], Any]) -> da.Array:
        """Return an array that reads the stored values, once they are there."""
        import dask.array as da
        from dask.layers import ArraySliceDep

        x, axes = self.x, tuple(range(self.x.ndim))
        return da.blockwise(
            _read, axes, ArraySliceDep(x.chunks), axes, frozen=self._committing(make, frozen=True),
            region=self.job.region, name=self.name("stored"), dtype=self.job.layout.dtype, align_arrays=False,
            meta=np.empty((0,) * x.ndim, self.job.layout.dtype),
        )  # fmt: skip


def computed(writes: Sequence[Write], progress: bool, scheduler: Any) -> list[list[Entry]]:
    """Compute the entries of several writes in one graph, which does what they share once."""
    from dask.callbacks import Callback

    names, options = {write.name("put") for write in writes}, {} if scheduler is None else {"scheduler": scheduler}
    with track(sum(write.job.nchunks for write in writes), "storing", progress, unit="chunks") as shown:
        if progress and (client := _client(scheduler)) is not None:
            return _watched(writes, client, shown.advance)

        def done(key: Any, put: Any, *_: Any) -> None:
            if isinstance(key, tuple) and key[0] in names:
                shown.advance(sum(map(len, put.flat)))

        with Callback(posttask=done) if progress else nullcontext():
            graph = final(writes, f"b2array-gather-{uuid4().hex}", gathered)
            return cast(list[list[Entry]], graph.compute(**options))


def _watched(writes: Sequence[Write], client: Any, advance: Callable[[int], None]) -> list[list[Entry]]:
    """Do the same on a cluster, which does not call the callbacks of dask; tell `advance` how many chunks are done."""
    from distributed import as_completed, futures_of

    found: dict[str, list[Entry]] = {write.name("put"): [] for write in writes}
    futures = futures_of(
        client.persist([each for put in _joined(writes) for each in (put if isinstance(put, list) else [put])])
    )
    for future, put in as_completed(futures, with_results=True):
        (entries,) = gathered([put])
        found[future.key[0]] += entries
        advance(len(entries))
    return [*found.values()]


def final(writes: Sequence[Write], name: str, function: Callable[..., Any], *args: Any) -> Delayed:
    """Return a delayed that at the end calls a function with the `Write.entries` of each write, and more arguments."""
    from dask.delayed import delayed

    return cast("Delayed", delayed(function, pure=False)(_joined(writes), *args, dask_key_name=name))


def _joined(writes: Sequence[Write]) -> list[da.Array | list[Delayed]]:
    """Return the entries of several writes in one graph, which does what they share once."""
    put = [write.entries() for write in writes]
    arrays = iter(_in_one_graph([each for each in put if not isinstance(each, list)]))
    return [each if isinstance(each, list) else next(arrays) for each in put]


def _in_one_graph(arrays: Sequence[da.Array]) -> list[da.Array]:
    import dask.array as da
    from dask.core import flatten
    from dask.highlevelgraph import HighLevelGraph

    keys = [key for each in arrays for key in flatten(each.__dask_keys__())]
    graph = da.Array.__dask_optimize__(HighLevelGraph.merge(*(each.dask for each in arrays)), keys)
    return [da.Array(graph, each.name, each.chunks, meta=each._meta) for each in arrays]


def _pieces(x: da.Array) -> Iterator[Region]:
    from dask.array.core import slices_from_chunks

    return map(_plain, slices_from_chunks(x.chunks))


def _plain(inside: Region) -> Region:
    return tuple(slice(int(part.start), int(part.stop)) for part in inside)


def _aligned(x: da.Array, chunks: tuple[int, ...], region: Region) -> da.Array:
    """Rechunk a dask array so that no two of its pieces touch the same stored chunk."""
    from dask.array.core import PerformanceWarning

    cut = dask_chunks.aligned(x.chunks, chunks, [part.start for part in region])
    if cut == x.chunks:
        return x
    warn(
        f"chunks {_brief(x.chunks)} of the dask array do not consist of whole chunks {chunks} of the stored one: its "
        f"{x.npartitions} pieces are cut into {dask_chunks.pieces(x.chunks, cut)} and put together again, and "
        f"{x.nbytes / 1e6:.1f} MB move between tasks",
        PerformanceWarning,
    )
    return x.rechunk(cut)


def _client(scheduler: Any) -> Any:
    """Return the client of a cluster, if that is where tasks will run."""
    import dask.array as da
    from dask.base import get_scheduler

    owner = getattr(get_scheduler(scheduler=scheduler, cls=da.Array), "__self__", None)
    return owner if type(owner).__module__.startswith("distributed") else None


# Tasks.


def _put(
    values: Any, inside: Region, shared: Shared[Job], there: frozenset[int] = frozenset()
) -> npt.NDArray[Any]:  # fmt: skip
    inside = _plain(inside)
    _check_piece(values, inside)
    with one_thread():
        return _as_item(distributed.put(shared.value, np.asarray(values), inside, there), len(inside))


def _keep(shared: Shared[Job], inside: Region) -> npt.NDArray[Any]:
    job = shared.value
    return _as_item(distributed.keep(job, job.numbers(job.part(inside))), len(inside))


def _as_item(entries: list[Entry], ndim: int) -> npt.NDArray[Any]:
    item = np.empty((1,) * ndim, object)
    item[(0,) * ndim] = entries
    return item


def _read(inside: Region, frozen: Frozen, region: Region) -> npt.NDArray[Any]:
    where = zip(region, inside, strict=True)
    return np.asarray(frozen[tuple(slice(whole.start + part.start, whole.start + part.stop) for whole, part in where)])


def _check_piece(values: Any, inside: Region) -> None:
    """Raise an error if a piece that dask has computed does not fill its place."""
    assignment.check_unmasked(values)
    lengths = tuple(part.stop - part.start for part in inside)
    if np.shape(values) != lengths:
        raise ValueError(f"expected a piece of shape {lengths} from dask, found {np.shape(values)}")


def gathered(put: Sequence[Any]) -> list[list[Entry]]:
    """Return the entries to commit of each write, given those of its tasks."""
    return [
        [entry for piece in (each if isinstance(each, list) else [each]) for entries in piece.flat for entry in entries]
        for each in put
    ]


def _commit(
    put: Sequence[Any], shared: Shared[Job], make: Callable[[Handle], Any], frozen: bool
) -> Any:  # fmt: skip
    (entries,) = gathered(put)
    array = make(Handle(distributed.commit(shared.value, entries), "r+"))
    return Frozen(array) if frozen else array
