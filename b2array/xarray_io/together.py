"""The dask arrays of a dataset, or of a tree, computed in one graph and written in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from b2array.array import dask, dask_chunks
from b2array.array.array import NDArray
from b2array.array.dask import Region, Write
from b2array.array.frozen import Shared
from b2array.engine.transaction import Transaction
from b2array.errors import ConflictError, warn
from b2array.group import group
from b2array.workers import distributed
from b2array.workers.distributed import Job

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed

__all__ = ["Part", "later", "now"]

_WORTH_A_WARNING = 2**20


class Part(NamedTuple):
    """Values for a region of an array, with its handle and its path in the outermost group."""

    path: str
    array: NDArray
    region: Region
    values: da.Array


def now(parts: Iterable[Part], progress: bool, scheduler: Any) -> None:
    """Compute and write everything as part of the transaction that the arrays are in."""
    dask.join([(part.array, part.values, part.region) for part in _aligned(parts)], progress, scheduler)


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
            draft = array._handle.source
            if not isinstance(draft, Transaction):
                raise ConflictError(f"{array.url}: expected a transaction under way, found that it has ended")
            distributed.join(job, entries, draft)


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
