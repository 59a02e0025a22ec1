"""One commit made by many: workers put chunks where nothing refers to yet, one process commits them.

A `Job` says where the chunks of a region go. It is pickled and sent to the workers; each calls `put` for its part of
the region and hands back small entries, and whoever has all of them calls `commit`. Nothing is visible before that. A
part that is put again, because a worker was lost or was thought to be, finds its chunks there or writes new ones.

Chunks wait for the commit in one of three places:

* in files of their own, under numbers that were reserved, if the target is a sparse frame that all processes can reach;
* in files in a directory beside it, if it is a contiguous frame in a local file, which the commit reads and removes;
* in the entries themselves, if nothing else is shared: arrays in memory, and contiguous frames on object stores.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec import chunk
from b2array.codec.header import ChunkHeader, Special
from b2array.engine.handle import Handle
from b2array.engine.pending import SUFFIX, Notes, beside, read_notes
from b2array.engine.snapshot import Snapshot, load
from b2array.engine.source import Known, Place, Target
from b2array.engine.staging import CHECKED_AFTER
from b2array.engine.transaction import Transaction
from b2array.engine.write import write
from b2array.errors import ChecksumError, ConflictError, FormatError
from b2array.format import b2nd, index
from b2array.format.annotations import Annotations, sizes_row
from b2array.format.checksums import pack_record
from b2array.format.frame import Frame, FrameType
from b2array.format.state import State, sized_blocks, with_index
from b2array.grid.layout import Layout
from b2array.store.base import Store
from b2array.store.local import LocalStore
from b2array.store.memory import MemoryStore
from b2array.store.remote import SharedMemoryStore
from b2array.store.spans import Span

__all__ = ["SUFFIX", "Entry", "Job", "commit", "join", "keep", "kept", "put"]

Region = tuple[slice, ...]

_JOB = "job"
_ATTEMPTS = 1000


class Entry(NamedTuple):
    """A chunk that was put: its number in the array, its index entry, and what the commit must know of it."""

    number: int
    code: int
    sizes: bytes = b""
    record: bytes = b""
    content: bytes | None = None


@dataclass(frozen=True)
class Job:
    """A write under way.

    Parameters
    ----------
    store : Store
        The target.
    layout : Layout
        How the array is cut.
    region : tuple of slice
        What is written: slices with start and stop, without step.
    base : Handle, optional
        What the commit builds on; None for a new array.
    new : State, optional
        The new array.
    overwrite : bool
        Whether a new array may take the place of one that is there.
    token : str
        Names the values that are written.
    first : int
        The first of the reserved numbers.
    id : bytes
        Tells this write from any other one.
    process : int
        Where it began.
    since : float
        When it began, in seconds since the epoch.
    sized : int, optional
        Of how many blocks a chunk the sizes are noted, if the frame does not tell.
    """

    store: Store
    layout: Layout
    region: Region
    base: Handle | None = None
    new: State | None = None
    overwrite: bool = False
    token: str = ""
    first: int = 0
    id: bytes = field(default_factory=lambda: os.urandom(16))
    process: int = field(default_factory=os.getpid)
    since: float = field(default_factory=time.time)
    sized: int | None = None

    @property
    def state(self) -> State:
        """What the chunks are for."""
        if self.base is not None:
            return self.base.snapshot.state
        if self.new is None:
            raise ValueError("a write needs a base or a new frame")
        return self.new

    @property
    def frame(self) -> Frame:
        """The frame that the chunks are for."""
        return self.state.frame

    @property
    def staging_store(self) -> Store | None:
        """Where workers put chunks; None if they hand them back."""
        if isinstance(self.store, MemoryStore | SharedMemoryStore):
            return None
        if self.frame.frame_type == FrameType.SPARSE:
            return self.store
        if not isinstance(self.store, LocalStore):
            return None
        return LocalStore(beside(self.store.url, self._digest()))

    @property
    def notes_name(self) -> str:
        """The name of the notes about this write."""
        return f"{self._digest()}{SUFFIX}"

    @property
    def grid(self) -> tuple[range, ...]:
        """Coordinates of the chunks that the region touches, along every dimension."""
        return tuple(
            range(part.start // size, -(-part.stop // size) if part.stop > part.start else part.start // size)
            for part, size in zip(self.region, self.layout.chunks, strict=True)
        )

    @property
    def nchunks(self) -> int:
        """How many chunks the region touches."""
        return prod(map(len, self.grid))

    def numbers(self, region: Region | None = None) -> Iterator[int]:
        """Yield the numbers of the chunks that the region, or a part of it, touches."""
        grid = self.grid if region is None else replace(self, region=region).grid
        strides = _strides(self.layout.grid_shape)
        for coords in itertools.product(*grid):
            yield sum(map(int.__mul__, coords, strides))

    def position(self, number: int) -> int:
        """Return which of the chunks of the region one is."""
        coords = np.unravel_index(number, self.layout.grid_shape) if self.layout.grid_shape else ()
        strides = _strides(tuple(map(len, self.grid)))
        return sum(
            (int(at) - along.start) * stride for at, along, stride in zip(coords, self.grid, strides, strict=True)
        )

    def covers(self, inside: Region) -> bool:
        """Say whether a part of the region consists of whole chunks, so that old ones are not needed."""
        edges = zip(self.part(inside), self.layout.chunks, self.layout.shape, strict=True)
        return all(
            part.start == part.stop or (part.start % size == 0 and (part.stop % size == 0 or part.stop == n))
            for part, size, n in edges
        )

    @property
    def without_base(self) -> Self:
        """The same without what only the commit and parts of chunks need, which may be large."""
        described = replace(self.frame, offsets=self.frame.offsets[:0], vlmetalayers=())
        new = State(described, Annotations(), self.state.layout)
        return replace(self, base=None, new=new, sized=sized_blocks(self.frame))

    def part(self, inside: Region) -> Region:
        """Turn slices of the region into slices of the array."""
        return tuple(
            slice(whole.start + part.start, whole.start + part.stop, 1)
            for whole, part in zip(self.region, inside, strict=True)
        )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self.new is not None:
            state["new"] = (*self.new.without_index(0), self.new.annotations)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["new"] is not None:
            state["new"] = with_index(*state["new"])
        self.__dict__.update(state)

    # Beginning.

    def begun(self, *, resume: bool) -> tuple[Self, frozenset[int]]:
        """Reserve numbers for the chunks and note what is to be written.

        Parameters
        ----------
        resume : bool
            Whether to go on with a write that was interrupted, if there is one.

        Returns
        -------
        job : Job
        numbers : frozenset of int
            The chunks that are there already.

        Raises
        ------
        ValueError
            The write that was interrupted was one of something else.
        """
        desk = self.staging_store
        if desk is None:
            return self, frozenset()
        old = read_notes(desk, self.notes_name)
        if resume and old is not None:
            found = self._resumed(old)
            desk.replace(self.notes_name, found._noted())  # as young as the write
            return found, kept(found, desk)
        first = self._reserved() if desk is self.store else 0
        if old is not None and (self.base is None or desk is not self.store):
            # What the other write has put there stays out of the way, for it may not be dead.
            first = max(first, old.first + old.count)
        job = replace(self, first=first)
        desk.replace(self.notes_name, job._noted())
        return job, frozenset()

    def _reserved(self) -> int:
        """Reserve numbers by a small commit, so that other writers take others."""
        if self.base is None:
            draft = Transaction(self.store, None, self.state, overwrite=self.overwrite)
            return draft.reserve(0)
        first = 0
        for attempt in self.base.changes(anywhere=True):
            with attempt as transaction:
                first = transaction.reserve(self.nchunks)
        return first

    def _digest(self) -> str:
        """Tell writes apart: one of the same values in the same form to the same region has the same digest."""
        described = self.frame
        form = (described.codec, described.codec_meta, described.clevel, described.use_dict, described.other_flags)
        region = [edge for part in self.region for edge in (part.start, part.stop)]
        numbers = [*form, *described.filters, *described.filters_meta, *region]
        said = (self.token, b2nd.pack(self.layout), [int(number) for number in numbers])
        return blake2b(repr(said).encode(), digest_size=8).hexdigest()

    def _noted(self) -> bytes:
        return Notes(self.first, self.nchunks, self.id, self._generation).pack()

    @property
    def _generation(self) -> str:
        return "" if self.base is None else self.base.generation

    def _resumed(self, old: Notes) -> Self:
        if old.generation != self._generation:
            raise ValueError(
                f"{self.store.url} has changed since the write that was interrupted; resume=False begins it anew"
            )
        return replace(self, first=old.first, id=old.id)


def kept(job: Job, desk: Store) -> frozenset[int]:
    """Return the numbers of the chunks that an earlier attempt has put."""
    there = desk.listing()
    numbers = ((number, job.first + position) for position, number in enumerate(job.numbers()))
    return frozenset(number for number, code in numbers if index.chunk_name(code) in there)


# What workers do.


def put(job: Job, values: npt.NDArray[Any], inside: Region, there: Collection[int] = ()) -> list[Entry]:
    """Encode a part of the region and put its chunks where the commit finds them.

    Parameters
    ----------
    job : Job
    values : ndarray
        The items.
    inside : tuple of slice
        Where they go, in the region. No two parts may touch the same chunk.
    there : collection of int
        Numbers of the part's chunks that an earlier attempt has put.
    """
    if not values.size:
        return []
    desk = WorkerTransaction(job)
    if not there:
        write(desk, job.layout, job.part(inside), None, values, cparams=job.frame.cparams)
        return desk.entries
    kept = [_kept(job, _required(job), number) for number in sorted(there)]
    for number, part in zip(job.numbers(job.part(inside)), _cells(job, inside), strict=True):
        if number not in there:
            own = tuple(slice(p.start - i.start, p.stop - i.start) for p, i in zip(part, inside, strict=True))
            write(desk, job.layout, job.part(part), None, values[own], cparams=job.frame.cparams)
    return [*kept, *desk.entries]


def _cells(job: Job, inside: Region) -> Iterator[Region]:
    """Yield what each chunk has of a part of the region, in the order of `Job.numbers`."""
    cuts = []
    for part, whole, size in zip(inside, job.region, job.layout.chunks, strict=True):
        start, stop = whole.start + part.start, whole.start + part.stop
        edges = [start, *range(start - start % size + size, stop, size), stop]
        cuts.append([slice(a - whole.start, b - whole.start) for a, b in itertools.pairwise(edges)])
    return itertools.product(*cuts)


def keep(job: Job, inside: Region) -> list[Entry]:
    """Return the entries of chunks that an earlier attempt has put, after a look at their checksums."""
    desk = _required(job)
    return [_kept(job, desk, number) for number in job.numbers(job.part(inside))]


def _required(job: Job) -> Store:
    desk = job.staging_store
    if desk is None:
        raise ValueError("chunks that are handed back are not kept")
    return desk


def _kept(job: Job, desk: Store, number: int) -> Entry:
    code = job.first + job.position(number)
    buf = _stored(desk, code)
    head = chunk.unpack_head(buf)
    return Entry(number, code, _row(job, head), pack_record(buf, head, number=code))


def _spooled(desk: Store, entry: Entry) -> bytes:
    """Read a chunk from its file, which must be the one that the entry is about."""
    name = index.chunk_name(entry.code)
    (view,) = desk.read([Span(name, 0, desk.stamp(name).size)])
    stop = len(view) - len(entry.record)
    if stop < 0 or view[stop:] != entry.record:
        raise ChecksumError(f"{desk.url}: expected the checksums that were noted for {name}, found others")
    return bytes(view[:stop])


def _stored(desk: Store, code: int) -> bytes:
    """Read a chunk from its file and compare it with the record of checksums behind it."""
    name = index.chunk_name(code)
    size = desk.stamp(name).size
    (view,) = desk.read([Span(name, 0, size)])
    header = ChunkHeader.unpack(view)
    buf = bytes(view[: header.cbytes])
    if pack_record(buf, number=code) != view[header.cbytes :]:
        raise ChecksumError(f"{desk.url}: expected the checksums of {name}, found others")
    return buf


def _row(job: Job, head: chunk.ChunkHead) -> bytes:
    nblocks = sized_blocks(job.frame) if job.sized is None else job.sized
    return sizes_row(head, nblocks).tobytes()


class WorkerTransaction(Target):
    """What a worker writes to: new chunks go where the commit finds them, old ones are read from the base."""

    sparse = False  # so that the numbers of the chunks are known when they are put
    is_local = False

    def __init__(self, job: Job) -> None:
        self.job = job
        self.state = job.state
        self.store = job.store
        self.entries: list[Entry] = []
        self._staging_store = job.staging_store
        self._chunks: list[bytes] = []

    @property
    def _base(self) -> Snapshot:
        if self.job.base is None:
            raise ValueError("a new array has no chunks that could be changed in part")
        return self.job.base.snapshot

    @property
    def heads(self) -> MutableMapping[int, Known]:
        """The heads of chunks, by number, that were read before."""
        return self._base.heads

    @property
    def is_stale(self) -> bool:
        """Whether the store holds another state than the base by now."""
        return self._base.is_stale

    def place(self, n: int) -> Place | Special:
        """Return where the old chunk `n` is."""
        return self._base.place(n)

    def place_of(self, where: int) -> Place:
        """Return the place that an index entry of an old chunk stands for."""
        return self._base.place_of(where)

    def read(self, spans: Sequence[Span], *, clip: bool = False) -> list[memoryview]:
        """Read bytes of the store's objects."""
        return self._base.read(spans, clip=clip)

    def store_chunk(self, buf: bytes) -> int:
        """Keep a chunk, and return a code for it."""
        self._chunks.append(buf)
        return len(self._chunks) - 1

    def set_code(self, n: int, code: int) -> None:
        """Put the chunk with this code, as chunk `n`, where the commit finds it."""
        buf = self._chunks[code]
        special = ChunkHeader.unpack(buf).special
        if special in index.SPECIAL_OFFSETS:
            self.entries.append(Entry(n, index.special_offset(special)))
        elif self._staging_store is None:
            self.entries.append(Entry(n, 0, content=buf))
        else:
            self.entries.append(self._file(self._staging_store, n, buf))

    def _file(self, store: Store, n: int, buf: bytes) -> Entry:
        job = self.job
        head = chunk.unpack_head(buf)
        first = job.first + job.position(n)
        # A file is never written twice: who comes second takes it if it is the same, else one of another number.
        for code in range(first, first + _ATTEMPTS * job.nchunks, job.nchunks):
            name = index.chunk_name(code)
            record = pack_record(buf, head, number=code)
            try:
                store.create(name, (buf, record))
            except FileExistsError:
                if not _holds(store, name, buf + record):
                    continue
            return Entry(n, code, _row(job, head), record)
        raise FileExistsError(f"{self.url}: the files for chunk {n} exist already, {_ATTEMPTS} times")


def _holds(store: Store, name: str, content: Buffer) -> bool:
    (head,) = store.head([name], len(content) + 1)
    return not isinstance(head, Exception) and head.data == content


# The end.


def commit(job: Job, entries: Iterable[Entry]) -> Snapshot:
    """Make all parts visible, at once.

    Returns
    -------
    Snapshot
        The new state. If this write was committed before, that is all.

    Raises
    ------
    ConflictError
        Another writer changed the same chunks, or the shape.
    FileExistsError
        Another writer made an array in the place of the new one.
    ValueError
        Parts are missing.
    """
    _check_reachable(job)
    if (done := _committed(job)) is not None:
        return done
    found = _complete(job, entries)
    try:
        snapshot = _commit(job, found)
    except (ConflictError, FileExistsError, FileNotFoundError):
        if (done := _committed(job)) is None:  # by another one that was asked to at the same time
            raise
        return done
    _tidy(job)
    return snapshot


def join(job: Job, entries: Iterable[Entry], draft: Transaction) -> None:
    """Make all parts changes of a draft that somebody else commits, instead of committing them."""
    _take(job, draft, _complete(job, entries))
    _tidy(job)


def _complete(job: Job, entries: Iterable[Entry]) -> list[Entry]:
    found = {entry.number: entry for entry in entries}
    if len(found) != job.nchunks:
        raise ValueError(f"{job.store.url}: expected {job.nchunks} chunks to commit, found {len(found)}")
    return [found[number] for number in sorted(found)]


def _commit(job: Job, entries: Sequence[Entry]) -> Snapshot:
    draft = _draft(job)
    try:
        _take(job, draft, entries)
        draft.annotate_entry(_JOB, job.id)
    except BaseException:
        draft.abort()
        raise
    return draft.commit()


def _check_reachable(job: Job) -> None:
    lost = isinstance(job.store, SharedMemoryStore) or (isinstance(job.store, MemoryStore) and job.base is not None)
    if lost and job.process != os.getpid():
        raise ValueError(f"{job.store.url}: an array in the memory of one process cannot be changed by another one")


def _committed(job: Job) -> Snapshot | None:
    """Return the state that this very write has left, if it was committed and the answer was lost."""
    try:
        current = load(job.store)
    except (FileNotFoundError, FormatError):
        return None
    return current if current.state.annotations.entry(_JOB) == job.id else None


def _draft(job: Job) -> Transaction:
    if job.base is not None:
        return job.base.new_transaction()
    return Transaction(job.store, None, job.new, overwrite=job.overwrite)


def _take(job: Job, draft: Transaction, entries: Sequence[Entry]) -> None:
    desk = job.staging_store
    if desk is not None and time.time() - job.since >= CHECKED_AFTER:
        _check_there(desk, [entry.code for entry in entries if entry.record])
    for entry in entries:
        if not entry.record and entry.content is None:
            draft.set_code(entry.number, entry.code)
        elif entry.content is not None:
            draft.put(entry.number, entry.content)
        elif desk is not None and desk is not job.store:
            draft.put(entry.number, _spooled(desk, entry))
        else:
            row = np.frombuffer(entry.sizes, np.uint32)
            draft.adopt(entry.number, entry.code, row, entry.record)


def _check_there(desk: Store, codes: Sequence[int]) -> None:
    """Raise ConflictError if chunks are gone: after so long a time somebody may have taken them for leftovers."""
    names = [index.chunk_name(code) for code in codes]
    heads = desk.head(names, 1) if names else []
    gone = [name for name, head in zip(names, heads, strict=True) if isinstance(head, FileNotFoundError)]
    if gone:
        raise ConflictError(f"{desk.url}: somebody removed {len(gone)} chunks, such as {gone[0]}, before their commit")


def _tidy(job: Job) -> None:
    desk = job.staging_store
    with suppress(OSError):  # what stays behind is in nobody's way
        if desk is None:
            return
        if desk is job.store:
            desk.delete([job.notes_name])
        else:
            desk.delete(list(desk.listing()))
            desk.delete([""])


def _strides(grid: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(grid[axis + 1 :]) for axis in range(len(grid)))
