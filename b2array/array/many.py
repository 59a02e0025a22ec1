"""`read_many`: selections of several arrays, read together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np

from b2array import threads
from b2array.array.array import View
from b2array.codec.chunk import Stored
from b2array.compute.readable import Readable, select_fields
from b2array.frame.fetch import fetch_from
from b2array.frame.read import ChunkRead, ChunkReader, fetch_ahead, make_reader, share
from b2array.frame.source import ChunkRequest
from b2array.grid.selection import Selection, fields, select
from b2array.grid.tiling import parts_of_chunks

__all__ = ["read_many"]

_SMALLEST_SHARED = 2**16
_LARGEST_SHARED = 2**23
"""The sizes of results, in bytes, between which a selection of a local array is read in one of several threads. For
smaller results, threads mostly wait for the interpreter; larger selections use several threads themselves."""
_SMALLEST_BLOCK = 2**16
"""The minimum size of blocks to read in several threads, in bytes: with smaller ones, threads mostly wait as well."""


class _Wanted(NamedTuple):
    """A selection to read together with others: its number, its reader, and its result."""

    number: int
    reader: ChunkReader
    selection: Selection
    result: Any
    names: Any


def read_many(selections: Iterable[tuple[Readable, Any]]) -> list[Any]:
    """Read several selections at once, of one array or of several, wherever they are.

    Over a network, the blocks of all selections are requested concurrently. If the sizes of blocks are not stored, the
    heads of all chunks are requested first, also concurrently. Several threads decode the chunks. Large selections are
    read in parts, a bounded number of bytes at a time. Selections of local arrays are read in several threads if the
    blocks are larger than 64 KiB, and one by one otherwise.

    Parameters
    ----------
    selections : iterable of (NDArray, key)
        The arrays and the keys to read, as in ``a[key]``. The arrays may be in different groups and places.

    Returns
    -------
    list
        The results of ``a[key]``, in order.

    Raises
    ------
    TypeError
        An item of `selections` is not a pair of an array and a key.
    Exception
        The error of ``a[key]`` for the first selection that fails.

    Examples
    --------
    >>> import b2array
    >>> a, b = b2array.arange(10), b2array.ones((3, 4))
    >>> [items.tolist() for items in b2array.read_many([(a, slice(2, 5)), (b, 0), (a, -1)])]
    [[2, 3, 4], [1.0, 1.0, 1.0, 1.0], 9]
    """
    asked: list[tuple[Readable, Any]] = []
    selection: Any  # whatever the caller passes
    for selection in selections:
        pair = selection if isinstance(selection, tuple | list) else (selection,)
        if len(pair) != 2 or not isinstance(pair[0], Readable):
            kinds = ", ".join(type(each).__name__ for each in pair)
            raise TypeError(
                "read_many() reads a list of pairs of an array and a key, such as [(a, 3), (b, np.s_[:8])], and found"
                f" ({kinds})"
            )
        asked.append((pair[0], pair[1]))
    results: list[Any] = [None] * len(asked)
    far: list[_Wanted] = []
    near: list[int] = []
    for number, (array, key) in enumerate(asked):
        # A view has to rearrange the items, so read it separately.
        wanted = None if isinstance(array, View) else _plan_remote_read(number, array, key)
        if wanted is None:
            near.append(number)
        else:
            far.append(wanted)
    failed = _read_far(far)
    for wanted in far:
        if wanted.number in failed:
            continue
        values = wanted.result
        if wanted.selection.kind == "scalar":
            values = values[()]
        if wanted.names is not None:
            values = select_fields(values, wanted.names)
        results[wanted.number] = values

    def read_alone(number: int) -> None:
        array, key = asked[number]
        results[number] = array[key]

    shared = []
    # Read a failed selection again by itself, from a newer state if there is one; it may raise its error.
    for number in sorted(near + list(failed)):
        if number not in failed and _is_worth_a_thread(*asked[number]):
            shared.append(number)
        else:
            read_alone(number)
    threads.each(read_alone, shared)
    return results


def _is_worth_a_thread(array: Readable, key: Any) -> bool:
    if array.dtype.names is not None or isinstance(array, View):
        return False
    if math.prod(array.blocks) * array.itemsize <= _SMALLEST_BLOCK:
        return False
    selection = select(key, array.shape)
    nbytes = math.prod(selection.shape) * array.itemsize
    return _SMALLEST_SHARED <= nbytes <= _LARGEST_SHARED


def _plan_remote_read(number: int, array: Readable, key: Any) -> _Wanted | None:
    """Prepare to read a selection together with others; None if the array is local, or in a transaction."""
    source = array._handle.source
    if source.is_local or source.buffer is not None:
        return None
    layout = source.state.require_layout()
    rest, names = key, None
    if layout.dtype.names is not None:
        rest, names = fields(key, layout.dtype)
    selection = select(rest, layout.shape)
    result: Any = np.empty(selection.shape, layout.dtype)
    reader = make_reader(source, layout, selection.positions, selection.axes, selection.view(result))
    return _Wanted(number, reader, selection, result, names)


def _read_far(all_wanted: list[_Wanted]) -> set[int]:
    """Read selections; return the numbers of the selections that failed."""
    numbers = {id(wanted.reader): wanted.number for wanted in all_wanted}
    failed: set[int] = set()

    def finish(answer: tuple[ChunkRead, Stored | Exception | None]) -> None:
        job, stored = answer
        if isinstance(stored, Exception):
            failed.add(numbers[id(job.reader)])
            return
        try:
            job.reader.finish(job, stored)
        except Exception:  # noqa: BLE001 - reading it alone raises the error, or finds a newer state
            failed.add(numbers[id(job.reader)])

    share(finish, fetch_ahead(_plan_chunks(all_wanted), _fetch_window))
    return failed


def _plan_chunks(all_wanted: list[_Wanted]) -> Iterator[ChunkRead]:
    for wanted in all_wanted:
        reader, selection = wanted.reader, wanted.selection
        if reader.box.size:
            chunks = parts_of_chunks(reader.layout, selection.positions, selection.axes)
            yield from starmap(reader.plan, chunks)


def _fetch_window(jobs: list[ChunkRead]) -> list[tuple[ChunkRead, Stored | Exception | None]]:
    """Fetch chunks of several reads. A chunk that fails gives its error, because the other reads go on."""
    # Special chunks need no bytes: the index has their items.
    with_bytes = [job for job in jobs if job.wanted]
    requests = [(job.reader.source, ChunkRequest(job.number, job.wanted)) for job in with_bytes]
    stored = iter(fetch_from(requests))
    return [(job, next(stored) if job.wanted else None) for job in jobs]
