"""`Job`: the description of a write by many workers, which is sent to them."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import prod
from typing import Any, Self

from b2array.engine.handle import Handle
from b2array.engine.transaction import Transaction
from b2array.format import b2nd, index
from b2array.format.annotations import Annotations
from b2array.format.frame import Frame
from b2array.format.header import FrameType
from b2array.format.state import State, sized_blocks, with_index
from b2array.grid.layout import Layout
from b2array.store.base import Store
from b2array.store.endings import JOURNAL
from b2array.store.local import LocalStore
from b2array.workers.pending import Journal, beside, read_journal

__all__ = ["Job", "Region", "kept"]

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
        return LocalStore(beside(self.store.url, self._digest()))

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
        new = State(described, self.state.layout, Annotations())
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
            found = self._resumed(old)
            staging_store.replace(self.journal_name, found._journal())  # as young as the write
            return found, kept(found, staging_store)
        first = self._reserved() if staging_store is self.store else 0
        if old is not None and (self.base is None or staging_store is not self.store):
            # Leave alone what the other write has put there, for its writer may be alive.
            first = max(first, old.first + old.count)
        job = replace(self, first=first)
        staging_store.replace(self.journal_name, job._journal())
        return job, frozenset()

    def _reserved(self) -> int:
        """Reserve numbers by a small commit, so that other writers take other numbers."""
        if self.base is None:
            transaction = Transaction(self.store, None, self.state, overwrite=self.overwrite)
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

    def _journal(self) -> bytes:
        return Journal(self.first, self.nchunks, self.id, self._generation).pack()

    @property
    def _generation(self) -> str:
        return "" if self.base is None else self.base.generation

    def _resumed(self, old: Journal) -> Self:
        if old.generation != self._generation:
            raise ValueError(
                f"{self.store.url} has changed since the write that was interrupted; resume=False begins it again"
            )
        return replace(self, first=old.first, id=old.id)


def kept(job: Job, staging_store: Store) -> frozenset[int]:
    """Return the numbers of the chunks that an earlier attempt has put."""
    there = staging_store.listing()
    numbers = ((number, job.first + position) for position, number in enumerate(job.numbers()))
    return frozenset(number for number, code in numbers if index.chunk_name(code) in there)
