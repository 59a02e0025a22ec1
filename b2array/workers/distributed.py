"""One commit by many workers: they put chunks where no index refers to them yet, and one process commits them.

A `Job` says where the chunks of a region go. It is pickled and sent to the workers. Each worker calls `put` for its
part of the region, and returns small entries. The process that has all entries calls `commit`; no reader sees the
chunks before. Tasks are idempotent: if a worker is (or seems) lost and its task runs again, it uses the chunks that are
written already.

Chunks wait for the commit in one of three places:

* in files of their own, under reserved numbers, if the target is a sparse frame that all processes can reach;
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
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from b2array.codec import chunk
from b2array.codec.header import ChunkHeader, Special
from b2array.engine.commit import commit as commit_draft
from b2array.engine.draft import Draft
from b2array.engine.handle import Handle
from b2array.engine.snapshot import Snapshot, load
from b2array.engine.source import CachedHead, Location, Staged, Target
from b2array.engine.staging import CHECKED_AFTER
from b2array.engine.write import write
from b2array.errors import ChecksumError, ConflictError, FormatError
from b2array.format import b2nd, index
from b2array.format.annotations import Annotations, sizes_row
from b2array.format.checksums import pack_record, record_crc
from b2array.format.frame import Frame
from b2array.format.header import FrameType
from b2array.format.state import State, sized_blocks, with_index
from b2array.grid.layout import Layout
from b2array.store.base import Store
from b2array.store.endings import JOURNAL
from b2array.store.local import LocalStore
from b2array.store.memory import MemoryStore
from b2array.store.spans import Span
from b2array.workers.pending import Journal, beside, read_journal

__all__ = ["Entry", "Job", "WorkerTarget", "commit", "join", "keep", "put", "tidy"]

_JOB = "job"
_ATTEMPTS = 1000

Region = tuple[slice, ...]


@dataclass(frozen=True)
class Job:
    """A write under way, to a `region` of an array: slices with start and stop, without step.

    The commit builds on `base`; for a new array there is a `new` state instead. `token` names the values. `first` is
    the first reserved number. `id` tells this write from others. It began in `process` at `since`, in seconds since the
    epoch. `sized` is the number of blocks of a chunk whose sizes are noted, if the frame does not tell.
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
        """The state that the chunks are for."""
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
        if self.store.in_process:
            return None
        if self.frame.frame_type == FrameType.SPARSE:
            return self.store
        if not isinstance(self.store, LocalStore):
            return None
        return LocalStore(beside(self.store.url, self._digest()), within=Path(self.store.url).parent)

    @property
    def journal_name(self) -> str:
        """The name of the journal of this write."""
        return f"{self._digest()}{JOURNAL}"

    @property
    def grid(self) -> tuple[range, ...]:
        """Coordinates of the chunks that the region touches, along every dimension."""
        return tuple(
            range(part.start // size, -(-part.stop // size) if part.stop > part.start else part.start // size)
            # Other software makes chunks of no extent for arrays without items.
            for part, size in zip(self.region, (max(1, c) for c in self.layout.chunks), strict=True)
        )

    @property
    def nchunks(self) -> int:
        """Number of chunks that the region touches."""
        return prod(map(len, self.grid))

    def numbers(self, region: Region | None = None) -> Iterator[int]:
        """Yield the numbers of the chunks that the region, or a part of it, touches."""
        grid = self.grid if region is None else replace(self, region=region).grid
        for coords in itertools.product(*grid):
            yield sum(map(int.__mul__, coords, self.layout.grid_strides))

    def position(self, number: int) -> int:
        """Return which of the chunks of the region one is."""
        position = 0
        for along, n, stride in zip(self.grid, self.layout.grid_shape, self.layout.grid_strides, strict=True):
            position = position * len(along) + number // stride % n - along.start
        return position

    def covers(self, inside: Region) -> bool:
        """Say whether a part of the region consists of whole chunks, so that old ones are not needed."""
        edges = zip(self.part(inside), self.layout.chunks, self.layout.shape, strict=True)
        return all(
            part.start == part.stop or (part.start % size == 0 and (part.stop % size == 0 or part.stop == n))
            for part, size, n in edges
        )

    @property
    def without_base(self) -> Self:
        """The same job without its base: only the commit and parts of chunks need that, and it may be large."""
        described = replace(self.frame, offsets=self.frame.offsets[:0], vlmetalayers=())
        said = self.state.annotations
        # How chunks are encoded depends on these two.
        new = State(described, self.state.layout, Annotations(fill=said.fill, cparams=said.cparams))
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
        """Reserve numbers for the chunks, and write the journal; also return the chunks that are there already.

        With `resume`, go on with an interrupted write. ValueError says that it wrote something else.
        """
        staging_store = self.staging_store
        if staging_store is None:
            return self, frozenset()
        old = read_journal(staging_store, self.journal_name)
        if resume and old is not None:
            self._require_own_range(staging_store, old)
            if old.generation != self._generation:
                raise ValueError(
                    f"{self.store.url} has changed since the write that was interrupted; resume=False begins it again"
                )
            job = replace(self, first=old.first, id=old.id)
            staging_store.replace(self.journal_name, old.pack())  # as young as the write
            there = staging_store.listing()
            numbers = enumerate(self.numbers(), old.first)
            return job, frozenset(number for code, number in numbers if index.chunk_name(code) in there)
        first = self._reserved() if staging_store is self.store else 0
        if old is not None and (self.base is None or staging_store is not self.store):
            # Leave alone what the other write has put there, for its writer may be alive.
            first = max(first, old.first + old.count)
        job = replace(self, first=first)
        staging_store.replace(self.journal_name, Journal(first, self.nchunks, self.id, self._generation).pack())
        return job, frozenset()

    def _require_own_range(self, store: Store, journal: Journal) -> None:
        """Raise ValueError if another interrupted write has put chunks among those of this one.

        Two writes of a new array that begin at the same moment reserve the same numbers.
        """
        for name in store.listing():
            if not name.endswith(JOURNAL) or name == self.journal_name:
                continue
            other = read_journal(store, name)
            if (
                other is not None
                and other.first < journal.first + journal.count
                and journal.first < other.first + other.count
            ):
                raise ValueError(
                    f"{self.store.url}: chunks of another interrupted write are among those of this one, and cannot be"
                    " told apart; resume=False begins it again"
                )

    @property
    def _generation(self) -> str:
        return "" if self.base is None else self.base.generation

    def _reserved(self) -> int:
        """Reserve numbers by a small commit, so that other writers take other numbers."""
        if self.base is None:
            transaction = Draft(self.store, None, self.state, overwrite=self.overwrite)
            return transaction.reserve(0)
        return self.base.change(lambda transaction: transaction.reserve(self.nchunks), anywhere=True)

    def _digest(self) -> str:
        """Return a digest of the write: equal for the same values in the same form to the same region."""
        described = self.frame
        form = (described.codec, described.codec_meta, described.clevel, described.use_dict, described.other_flags)
        region = [edge for part in self.region for edge in (part.start, part.stop)]
        numbers = [*form, *described.filters, *described.filters_meta, *region]
        said = (self.token, b2nd.pack(self.layout), [int(number) for number in numbers])
        return blake2b(repr(said).encode(), digest_size=8).hexdigest()


class Entry(NamedTuple):
    """A chunk that a worker has put: its number in the array, its index entry, and what else the commit needs."""

    number: int
    code: int
    sizes: bytes = b""
    record: bytes = b""
    content: bytes | None = None


# What workers do.


def put(job: Job, values: npt.NDArray[Any], inside: Region, there: Collection[int] = ()) -> list[Entry]:
    """Encode a part of the region, and put its chunks where the commit finds them.

    No two parts may touch the same chunk. An earlier attempt has put the chunks with the numbers `there`.
    """
    if not values.size:
        return []
    target = WorkerTarget(job)
    if not there:
        write(target, job.layout, job.part(inside), None, values)
        return target.entries
    earlier = keep(job, sorted(there))
    for number, part in zip(job.numbers(job.part(inside)), _cells(job, inside), strict=True):
        if number not in there:
            own = tuple(slice(p.start - i.start, p.stop - i.start) for p, i in zip(part, inside, strict=True))
            write(target, job.layout, job.part(part), None, values[own])
    return [*earlier, *target.entries]


def _cells(job: Job, inside: Region) -> Iterator[Region]:
    """Yield the part of each chunk that is in a part of the region, in the order of `Job.numbers`."""
    cuts = []
    for part, whole, size in zip(inside, job.region, job.layout.chunks, strict=True):
        start, stop = whole.start + part.start, whole.start + part.stop
        edges = [start, *range(start - start % size + size, stop, size), stop]
        cuts.append([slice(a - whole.start, b - whole.start) for a, b in itertools.pairwise(edges)])
    return itertools.product(*cuts)


def keep(job: Job, numbers: Iterable[int]) -> list[Entry]:
    """Return the entries of chunks that an earlier attempt has put, after comparing their checksums."""
    store = job.staging_store
    if store is None:
        raise ValueError("chunks that are handed back are not kept")
    entries = []
    for number in numbers:
        code = job.first + job.position(number)
        buf = _stored(store, code)
        head = chunk.unpack_head(buf)
        entries.append(Entry(number, code, _row(job, head), pack_record(buf, head, number=code)))
    return entries


def _stored(store: Store, code: int, record: bytes = b"") -> bytes:
    """Read a chunk from its file, and compare the record of checksums behind it: with this one, or with the chunk."""
    name = index.chunk_name(code)
    (view,) = store.read([Span(name, 0, store.stamp(name).size)])
    buf = bytes(view[: ChunkHeader.unpack(view).cbytes])
    if view[len(buf) :] != (record or pack_record(buf, number=code)):
        raise ChecksumError(f"{store.url}: expected the checksums of {name}, found others")
    return buf


def _row(job: Job, head: chunk.ChunkHead) -> bytes:
    nblocks = sized_blocks(job.frame) if job.sized is None else job.sized
    return sizes_row(head, nblocks).tobytes()


class WorkerTarget(Target):
    """The target of a worker's writes: puts new chunks where the commit finds them, reads old ones from the base."""

    sparse = False  # so that `set_chunk`, which knows the numbers, puts the chunks
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
    def heads(self) -> MutableMapping[int, CachedHead]:
        """The heads of chunks, by number, that were read before."""
        return self._base.heads

    def staleness(self) -> ConflictError | None:
        """Return the error for a reader if the store has another state than the base by now."""
        return self._base.staleness()

    def locate(self, n: int) -> Location | Special:
        """Return where the old chunk `n` is."""
        return self._base.locate(n)

    def read(self, spans: Sequence[Span], *, clip: bool = False) -> list[memoryview]:
        """Read bytes of the store's objects."""
        return self._base.read(spans, clip=clip)

    def gather(self, spans: Sequence[Span], places: Sequence[int], nbytes: int) -> memoryview:
        """Read bytes to their places in one buffer; the memory is used again when nothing refers to it."""
        return self._base.gather(spans, places, nbytes)

    def store_chunk(self, buf: bytes) -> Staged:
        """Keep a chunk until its number is known."""
        self._chunks.append(buf)
        return Staged(len(self._chunks) - 1)

    def set_chunk(self, n: int, staged: Staged) -> None:
        """Put a chunk where the commit finds it as chunk `n`."""
        buf = self._chunks[staged.code]
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
        # No file is written twice. A second worker uses it if it has the same chunk, or takes another number.
        for code in range(first, first + _ATTEMPTS * job.nchunks, job.nchunks):
            name = index.chunk_name(code)
            record = pack_record(buf, head, number=code)
            try:
                store.create(name, (buf, record))
            except FileExistsError:
                (found,) = store.head([name], len(buf) + len(record) + 1)
                if isinstance(found, Exception) or found.data != buf + record:
                    continue
            return Entry(n, code, _row(job, head), record)
        raise FileExistsError(f"{self.url}: the files for chunk {n} exist already, {_ATTEMPTS} times")


# The end.


def commit(job: Job, entries: Iterable[Entry]) -> Snapshot:
    """Make all parts visible at once, and return the new state. If this write was committed before, only return it.

    Raises
    ------
    ConflictError
        Another writer changed the same chunks, or the shape.
    FileExistsError
        Another writer made an array where the new one goes.
    ValueError
        Parts are missing.
    """
    is_sent = isinstance(job.store, MemoryStore) and job.base is None  # a new array: the store is pickled with the job
    if job.store.in_process and not is_sent and job.process != os.getpid():
        raise ValueError(f"{job.store.url}: an array in the memory of one process cannot be changed by another one")
    if (done := _committed(job)) is not None:
        return done
    found = _complete(job, entries)
    try:
        snapshot = _commit(job, found)
    except (ConflictError, FileExistsError, FileNotFoundError):
        if (done := _committed(job)) is None:  # another process was asked to commit at the same time
            raise
        return done
    tidy(job)
    return snapshot


def join(job: Job, entries: Iterable[Entry], transaction: Draft) -> None:
    """Add all parts to a transaction, which somebody else commits."""
    _take(job, transaction, _complete(job, entries))
    tidy(job)


def _complete(job: Job, entries: Iterable[Entry]) -> list[Entry]:
    found = {entry.number: entry for entry in entries}
    if len(found) != job.nchunks:
        raise ValueError(f"{job.store.url}: expected {job.nchunks} chunks to commit, found {len(found)}")
    return [found[number] for number in sorted(found)]


def _commit(job: Job, entries: Sequence[Entry]) -> Snapshot:
    if job.base is not None:
        transaction = job.base.new_draft()
    else:
        transaction = Draft(job.store, None, job.new, overwrite=job.overwrite)
    try:
        _take(job, transaction, entries)
        transaction.annotate_entry(_JOB, job.id)
    except BaseException:
        transaction.abort()
        raise
    return commit_draft(transaction)


def _committed(job: Job) -> Snapshot | None:
    """Return the state that this write has left if it was committed, although an answer was lost; else None."""
    try:
        current = load(job.store)
    except (FileNotFoundError, FormatError):
        return None
    return current if current.state.annotations.entry(_JOB) == job.id else None


def _take(job: Job, transaction: Draft, entries: Sequence[Entry]) -> None:
    store = job.staging_store
    if store is not None and time.time() - job.since >= CHECKED_AFTER:
        _check_there(store, [entry.code for entry in entries if entry.record])
    for entry in entries:
        if not entry.record and entry.content is None:
            transaction.set_chunk(entry.number, Staged(entry.code))
        elif entry.content is not None:
            transaction.put(entry.number, entry.content)
        elif store is not None and store is not job.store:
            transaction.put(entry.number, _stored(store, entry.code, entry.record))
        else:
            row = np.frombuffer(entry.sizes, np.uint32)
            transaction.set_chunk(entry.number, Staged(entry.code, row, record_crc(entry.record)))
            transaction.reserve_up_to(entry.code)


def _check_there(store: Store, codes: Sequence[int]) -> None:
    """Raise ConflictError if chunks are gone: after a long time, `vacuum` takes them for leftovers."""
    names = [index.chunk_name(code) for code in codes]
    heads = store.head(names, 1) if names else []
    gone = [name for name, head in zip(names, heads, strict=True) if isinstance(head, FileNotFoundError)]
    if gone:
        raise ConflictError(f"{store.url}: somebody removed {len(gone)} chunks, such as {gone[0]}, before their commit")


def tidy(job: Job) -> None:
    """Remove what a write needed only until its commit, as far as possible."""
    store = job.staging_store
    with suppress(OSError):  # files that stay behind are harmless
        if store is job.store:
            store.delete([job.journal_name])
        elif store is not None:
            store.delete(list(store.listing()))
            store.delete([""])
