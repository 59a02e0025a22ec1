"""The dask arrays of a dataset, or of a tree, computed in one graph and written in one commit."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import numpy as np

from b2array.array import dask, dask_chunks
from b2array.array.array import NDArray
from b2array.array.dask import Region, Write
from b2array.array.frozen import Shared
from b2array.engine.transaction import Transaction
from b2array.errors import ConflictError, warn
from b2array.group import group
from b2array.progress import track
from b2array.workers import distributed
from b2array.workers.distributed import Job

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed

__all__ = ["Part", "later", "now"]

_HELD_NBYTES = 256 * 2**20
"""The most bytes of values for existing arrays that are in memory at a time."""

_WORTH_A_WARNING = 2**20


class Part(NamedTuple):
    """Values for a region of an array, with its handle and its path in the outermost group."""

    path: str
    array: NDArray
    region: Region
    values: da.Array


def now(parts: Iterable[Part], progress: bool, scheduler: Any) -> None:
    """Compute and write everything as part of the transaction that the arrays are in.

    Tasks encode the values for new arrays, wherever they run. Values for other arrays are computed piece by piece, and
    encoded in this process.
    """
    fresh, others = [], []
    for part in _aligned(parts):
        job = _job(part)
        if job is None:
            others.append(part)
        else:
            fresh.append((part.array, Write(part.values, job, make=NDArray)))
    if fresh:
        found = dask.computed([write for _, write in fresh], progress, scheduler)
        for (array, write), entries in zip(fresh, found, strict=True):
            if array.in_transaction:
                distributed.join(write.job, entries, _draft(array))
            else:
                array._handle.replace_state(distributed.commit(write.job, entries))
    if others:
        _put_in_turn(others, progress, scheduler)


def later(parts: Iterable[Part], url: str, options: Mapping[str, Any]) -> Delayed:
    """Return a delayed that computes everything, and commits it at once to arrays that exist already."""
    home = group.open_group(url, "r+", storage_options=options)
    writes, names = [], []
    for part in _aligned(parts):
        base = home[part.path]._handle.at_snapshot("r+")
        layout = NDArray(base)._layout
        writes.append(
            Write(part.values, Job(base.store, layout, part.region, base=base, token=part.values.name), make=NDArray)
        )
        names.append(part.path)
    name = f"b2array-commit-{uuid4().hex}"
    shared = Shared(name, (url, dict(options), names, [write.job for write in writes]))
    return dask.final(writes, name, _commit, shared)


def _commit(put: Sequence[Any], shared: Shared[tuple[str, dict[str, Any], list[str], list[Job]]]) -> None:
    url, options, names, jobs = shared.value
    home = group.open_group(url, "r+", storage_options=options)
    with home.transaction() as changes:
        for name, job, entries in zip(names, jobs, dask.gathered(put), strict=True):
            array = changes[name]
            whole = tuple(slice(0, part.stop - part.start) for part in job.region)
            moved = job.base is None or array.generation != job.base.generation
            if array._layout != job.layout or (moved and not job.covers(whole)):
                raise ConflictError(f"{array.url} has changed since this write to a part of it began")
            distributed.join(job, entries, _draft(array))


def _draft(array: NDArray) -> Transaction:
    draft = array._handle.source
    if not isinstance(draft, Transaction):
        raise ConflictError(f"{array.url}: expected a transaction under way, found that it has ended")
    return draft


def _job(part: Part) -> Job | None:
    """Return the job that writes a whole new array. No reader sees the array before the transaction ends."""
    array, token = part.array, part.values.name
    if not array.in_transaction:
        base = array._handle.at_snapshot("r+")
        return Job(base.store, array._layout, part.region, base=base, token=token)
    draft = _draft(array)
    if draft.base is not None or part.values.shape != array.shape:
        return None
    return Job(draft.store, array._layout, part.region, new=draft.state, overwrite=True, token=token)


def _aligned(parts: Iterable[Part]) -> list[Part]:
    """Rechunk arrays that do not consist of whole stored chunks, and warn once about all of them."""
    from dask.array.core import PerformanceWarning

    found, moved, nbytes = [], [], 0.0
    for part in parts:
        dask.check_source(part.values)
        starts = [along.start for along in part.region]
        cut = dask_chunks.aligned(part.values.chunks, part.array.chunks, starts)
        if cut != part.values.chunks:
            moved.append(part.path)
            nbytes += part.values.nbytes
            part = part._replace(values=part.values.rechunk(cut))  # noqa: PLW2901
        found.append(part)
    if nbytes >= _WORTH_A_WARNING:
        warn(
            f"the dask chunks of {moved} do not consist of whole stored chunks: {nbytes / 1e6:.1f} MB move between "
            "tasks",
            PerformanceWarning,
        )
    return found


def _put_in_turn(parts: Sequence[Part], progress: bool, scheduler: Any) -> None:
    """Compute pieces of all arrays and put them, some at a time, and pieces with the same place in line together."""
    import dask.array as da
    from dask.base import compute
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph

    options = {} if scheduler is None else {"scheduler": scheduler}
    graph = HighLevelGraph.merge(*(part.values.dask for part in parts))
    keys = [key for part in parts for key in _keys(part.values)]
    name = f"b2array-values-{uuid4().hex}"
    optimized = HighLevelGraph.from_collections(name, dict(da.Array.__dask_optimize__(graph, keys)))
    pieces = heapq.merge(*(_pieces(n, part) for n, part in enumerate(parts)))
    with track(len(keys), "storing", progress, unit="items") as shown:
        for batch in _batches(pieces, [part.values.dtype.itemsize for part in parts]):
            found = compute(*(Delayed(piece.key, optimized, layer=name) for piece in batch), **options)
            for piece, values in zip(batch, found, strict=True):
                dask.check_piece(values, piece.inside)
                parts[piece.number].array[piece.region] = values
                shown.advance()


def _keys(values: da.Array) -> Iterator[tuple[Any, ...]]:
    for at in np.ndindex(*values.numblocks):
        yield (values.name, *at)


class _Piece(NamedTuple):
    """A piece, where it goes, and its place in line: how far it is in its array."""

    turn: float
    number: int
    key: tuple[Any, ...]
    inside: Region
    region: Region


def _pieces(number: int, part: Part) -> Iterator[_Piece]:
    from dask.array.core import slices_from_chunks

    places = zip(_keys(part.values), slices_from_chunks(part.values.chunks), strict=True)
    for serial, (key, inside) in enumerate(places):
        region = tuple(
            slice(along.start + i.start, along.start + i.stop) for along, i in zip(part.region, inside, strict=True)
        )
        yield _Piece(serial / part.values.npartitions, number, key, inside, region)


def _batches(pieces: Iterator[_Piece], itemsizes: Sequence[int]) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    nbytes = 0
    for piece in pieces:
        batch.append(piece)
        nbytes += itemsizes[piece.number] * math.prod(i.stop - i.start for i in piece.inside)
        if nbytes >= _HELD_NBYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
