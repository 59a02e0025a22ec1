"""Looking at every chunk of a frame: is it there, is it a chunk, is it what was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from b2array import config, threads
from b2array.codec import chunk, decode
from b2array.codec.chunk import Context, Stored
from b2array.codec.header import Special
from b2array.engine.fetch import chunk_number, fetch
from b2array.engine.snapshot import Snapshot
from b2array.engine.source import ChunkRequest
from b2array.errors import (
    B2ArrayError,
    ChecksumError,
    ChunkMissingError,
    ConflictError,
    FormatError,
    UnsupportedError,
)
from b2array.format import b2nd, checksums
from b2array.format.frame import Frame, FrameType
from b2array.progress import track
from b2array.store.spans import Span

__all__ = ["Findings", "Problem", "inspect"]

_BATCH_NBYTES = 32 * 2**20
_BATCH_CHUNKS = 256


class Problem(NamedTuple):
    """Something that is wrong.

    `kind` is one of "frame", "metadata", "missing", "checksum", "chunk", "unsupported", "overlap", "truncated" and
    "lost"; `chunk` the number of the chunk, if it is about one; `file` the file's name in a directory, else "".
    """

    kind: str
    chunk: int | None
    file: str
    text: str


@dataclass(slots=True)
class Findings:
    """What was found.

    `heads` are those of the chunks that are in order, and `checked` says which of them agree with a record of
    checksums; behind the chunks `stale` there are records of others.
    """

    problems: list[Problem] = field(default_factory=list)
    heads: dict[int, chunk.ChunkHead] = field(default_factory=dict)
    checked: set[int] = field(default_factory=set)
    stale: set[int] = field(default_factory=set)
    special: int = 0


def inspect(held: Snapshot, *, deep: bool, files: Mapping[str, int] | None = None, progress: bool = False) -> Findings:
    """Look at every chunk.

    Parameters
    ----------
    held : Snapshot
        The frame. Nothing must have been read through it before.
    deep : bool
        Whether to read and decode all of each chunk, or only its head, its record of checksums and one block.
    files : mapping of str to int, optional
        Sizes of the store's objects, where they can be listed.
    progress : bool, default False
        Whether to show how far it has come.

    Raises
    ------
    ConflictError
        Another writer has changed the frame meanwhile.
    """
    inspector = _Inspector(held, deep, files)
    described = held.frame
    stored = np.flatnonzero(described.offsets >= 0).tolist()
    inspector.findings.special = described.nchunks - len(stored)
    step = min(max(1, _BATCH_NBYTES // max(1, described.chunksize)), _BATCH_CHUNKS) if deep else _BATCH_CHUNKS
    with config.using(verify="always"), track(len(stored), "verifying", progress, unit="items") as shown:
        for first in range(0, len(stored), step):
            inspector.look(tuple(stored[first : first + step]))
            shown.advance(min(step, len(stored) - first))
    inspector.compare_extents()
    return inspector.findings


class _Inspector:
    def __init__(self, held: Snapshot, deep: bool, files: Mapping[str, int] | None) -> None:
        self.held = held
        self.deep = deep
        self.files = files
        self.findings = Findings()
        self.context = Context(held.frame.codec, held.frame.codec_meta, _blockshape(held.frame))

    def report(self, kind: str, n: int, text: str) -> None:
        self.findings.problems.append(Problem(kind, n, self._file(n), text))

    def _file(self, n: int) -> str:
        sparse = self.held.frame.frame_type == FrameType.SPARSE
        return self.held.place_of(int(self.held.frame.offsets[n])).name if sparse else ""

    def look(self, numbers: tuple[int, ...]) -> None:
        fetched = list(self._fetched(numbers))
        for (n, stored), error in zip(fetched, threads.spread(self._examined, fetched), strict=True):
            if error is not None:
                self.report(_kind(error), n, str(error))
            else:
                self.findings.heads[n] = stored.head
                self._look_behind(n, stored)

    def _fetched(self, numbers: tuple[int, ...]) -> Iterator[tuple[int, Stored]]:
        blocks = None if self.deep else (0,)
        try:
            yield from zip(numbers, fetch(self.held, [ChunkRequest(n, blocks) for n in numbers]), strict=True)
        except ConflictError:
            raise
        except B2ArrayError as error:
            if len(numbers) == 1:
                self.report(self._kind(error, numbers[0]), numbers[0], str(error))
                return
            for n in numbers:
                yield from self._fetched((n,))

    def _kind(self, error: B2ArrayError, n: int) -> str:
        """Say what is wrong with a chunk that cannot be read; what is only not known has the size that it must have."""
        if not isinstance(error, UnsupportedError):
            return _kind(error)
        if self.held.has_checksums(n):
            return "checksum"  # what b2array wrote is known here
        place, expected = self.held.place(n), self.held.frame.chunk_nbytes(n)
        if expected is None or isinstance(place, Special):
            return "unsupported"
        (sizes,) = self.held.read([Span(place.name, place.start + 4, place.start + 8)], clip=True)
        return "unsupported" if int.from_bytes(sizes, "little") == expected else "chunk"

    def _examined(self, item: tuple[int, Stored]) -> B2ArrayError | None:
        n, stored = item
        where = f"chunk {n} of {self.held.url}"
        try:
            if self.deep:
                decode.decode(stored.region, context=self.context)
        except (FormatError, UnsupportedError) as error:
            return error if str(error).startswith("chunk ") else type(error)(f"{where}: {error}")
        return None

    def _look_behind(self, n: int, stored: Stored) -> None:
        """Find out whether a record of checksums belongs to the chunk."""
        if self.held.has_checksums(n):
            self.findings.checked.add(n)
            return
        if not self.deep:
            return
        place, head = self.held.place(n), stored.head
        if isinstance(place, Special):
            return
        start = place.start + head.header.cbytes
        stop = start + checksums.record_nbytes(len(head.starts))
        end = place.stop if place.stop >= 0 else (self.files or {}).get(place.name, 0)
        if stop > end:
            return
        (behind,) = self.held.read([Span(place.name, start, stop)])
        number = chunk_number(place.name)
        try:
            sums = checksums.verified_sums(behind, head, stored.region, number=-1 if number is None else number)
            count = range(len(head.starts))
            checksums.check_blocks(sums, count, stored.region, stored.starts.tolist(), stored.stops.tolist())
        except ChecksumError:
            if checksums.unpack_record(behind, number=-1 if number is None else number) is not None:
                self.findings.stale.add(n)
        else:
            self.findings.checked.add(n)

    def compare_extents(self) -> None:
        """Make sure that chunks end before the next one, or inside their files."""
        for n, head in self.findings.heads.items():
            place, cbytes = self.held.place(n), head.header.cbytes
            if isinstance(place, Special):
                continue
            if place.stop >= 0 and place.start + cbytes > place.stop:
                room = place.stop - place.start
                text = f"expected a chunk that ends {room} bytes on, where the next one starts, found {cbytes} bytes"
                self.report("overlap", n, f"chunk {n} of {self.held.url}: {text}")
            size = (self.files or {}).get(place.name, cbytes)
            if place.stop < 0 and size < cbytes:
                text = f"expected a file of {cbytes} bytes or more, found {size}"
                self.report("truncated", n, f"chunk {n} of {self.held.url}, {place.name}: {text}")


def _blockshape(described: Frame) -> tuple[int, ...] | None:
    raw = described.metalayer("b2nd")
    try:
        return None if raw is None else b2nd.unpack(raw, chunksize=described.chunksize).blocks
    except B2ArrayError:
        return None


def _kind(error: B2ArrayError) -> str:
    if isinstance(error, ChunkMissingError):
        return "lost" if " is lost" in str(error) else "missing"
    if isinstance(error, ChecksumError):
        return "checksum"
    return "unsupported" if isinstance(error, UnsupportedError) else "chunk"
