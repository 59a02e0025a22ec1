"""`verify`: is a frame in order? It reads the metadata and looks at every chunk, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from b2array import config, threads
from b2array.codec import decode
from b2array.codec.chunk import ChunkHead, Context, Stored
from b2array.codec.header import Special
from b2array.display.tables import counted
from b2array.display.tables import nbytes as shown_nbytes
from b2array.engine.fetch import chunk_number, fetch
from b2array.engine.snapshot import Snapshot, load
from b2array.engine.source import FRAME_NAME, ChunkRequest
from b2array.errors import (
    B2ArrayError,
    ChecksumError,
    ChunkLostError,
    ChunkMissingError,
    ConflictError,
    FormatError,
    UnsupportedError,
    located_error,
)
from b2array.format import b2nd, checksums
from b2array.format.frame import Frame
from b2array.format.header import FrameType
from b2array.progress import track
from b2array.store.base import Listed, in_one_state
from b2array.store.endings import JOURNAL
from b2array.store.open import open_store
from b2array.store.spans import Span
from b2array.tools.anatomy import listed
from b2array.tools.results import Result, Shown, first_of
from b2array.workers import pending

__all__ = ["Findings", "Problem", "Report", "inspect", "verified", "verify_frame"]

_BATCH_NBYTES = 32 * 2**20
_BATCH_CHUNKS = 256
_KINDS: dict[type[B2ArrayError], str] = {
    ChunkLostError: "lost",
    ChunkMissingError: "missing",
    ChecksumError: "checksum",
    UnsupportedError: "unsupported",
}
"""The kind of a problem, by the first of these classes that its error is an instance of."""


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
    """The result of looking at every chunk.

    `heads` has the heads of the chunks that are in order. The chunks in `checked` match their checksum record. The
    chunks in `stale` are followed by the record of an earlier chunk.
    """

    problems: list[Problem] = field(default_factory=list)
    heads: dict[int, ChunkHead] = field(default_factory=dict)
    checked: set[int] = field(default_factory=set)
    stale: set[int] = field(default_factory=set)
    special: int = 0


@dataclass(frozen=True, slots=True)
class Report(Result):
    """The result of `verify` for an array. Sizes are in bytes.

    Parameters
    ----------
    url, layout, generation : str
        The frame, without secrets. `layout` and `generation` are "" if the frame cannot be read.
    deep : bool
        Whether all chunks were read and decoded.
    nchunks, special : int
        Number of chunks, and how many of them are not stored, because one value fills them.
    checked, unchecked, stale : int
        Number of stored chunks that match their checksums, that have none, and whose checksums are out of date because
        other software replaced the chunk and left the old checksums behind it.
    lost : tuple of int
        Chunks that an earlier repair could not save.
    orphans, leftovers : tuple of str
        Chunk files that the index does not name, and temporary files of writers that were killed.
    dead_nbytes : int
        Bytes that `repack` or `vacuum` would free, as far as known.
    problems : tuple of Problem
        Everything that is wrong; each with `kind`, `chunk`, `file` and `text`.
    """

    url: str
    deep: bool
    layout: str = ""
    generation: str = ""
    nchunks: int = 0
    special: int = 0
    checked: int = 0
    unchecked: int = 0
    stale: int = 0
    lost: tuple[int, ...] = ()
    orphans: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    dead_nbytes: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong. Orphans and dead space are not wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return all fields in types that JSON has, and whether all is in order."""
        return Result.to_dict(self) | {"problems": [problem._asdict() for problem in self.problems], "ok": self.ok}

    def shown(self) -> Shown:
        """Return layout, chunks, checksums and dead space, the problems, and the files that nothing needs."""
        rows: dict[str, Any] = {"layout": self.layout} if self.layout else {}
        if self.generation:
            rows["chunks"] = f"{self.nchunks}, {self.special} of them not stored" if self.special else self.nchunks
            rows["checksums"] = f"{self.checked} of {counted(self.nchunks - self.special, 'stored chunk')}"
            rows |= {"dead space": shown_nbytes(self.dead_nbytes)} if self.dead_nbytes else {}
        lines = [f"{counted(self.stale, 'chunk')} with the checksums of an earlier one"] if self.stale else []
        for names, what in ((self.orphans, "orphaned chunk file"), (self.leftovers, "leftover file")):
            if names:
                lines.append(f"{counted(len(names), what)}: {first_of(names)}")
        lines += [f"{problem.kind}: {problem.text}" for problem in self.problems]
        return Shown("in order" if self.ok else counted(len(self.problems), "problem"), rows, lines)


def verify_frame(
    url: str | os.PathLike[str], *, deep: bool = False, storage_options: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Report:  # fmt: skip
    """Check whether a frame is in order, or what is left of one whose index is missing."""
    store = open_store(url, storage_options=storage_options)
    try:
        return verified(store.url, lambda: load(store), deep=deep, progress=progress)
    except FileNotFoundError as error:
        if not any(chunk_number(name) is not None for name in listed(store) or ()):
            raise
        return Report(store.url, deep, problems=(Problem("frame", None, FRAME_NAME, str(error)),))


def verified(url: str, open_frame: Callable[[], Snapshot], *, deep: bool, progress: bool) -> Report:
    """Check the frame that a function opens; see `b2array.verify`."""
    return in_one_state(lambda: _verified(Report(url, deep), open_frame, progress=progress))


def _verified(report: Report, open_frame: Callable[[], Snapshot], *, progress: bool) -> Report:
    try:
        held = open_frame()
    except (FormatError, UnsupportedError) as error:
        return replace(report, problems=(Problem("frame", None, "", str(error)),))
    store = held.store
    described, files = held.frame, listed(store)
    found = inspect(held, deep=report.deep, files=files, progress=progress)
    sparse = described.frame_type == FrameType.SPARSE
    numbers = set(described.offsets[described.offsets >= 0].tolist()) if sparse else set()
    orphans = tuple(name for name in sorted(files or ()) if pending.is_orphan(name, numbers)) if sparse else ()
    unfinished = (name for name in files or () if name.endswith(JOURNAL))
    dead = sum((files or {})[name].size for name in orphans) if sparse else _dead_nbytes(held, found)
    return replace(
        report,
        layout=described.frame_type.name.lower(),
        generation=held.generation,
        nchunks=described.nchunks,
        special=found.special,
        checked=len(found.checked & found.heads.keys()),
        unchecked=len(found.heads.keys() - found.checked - found.stale),
        stale=len(found.stale),
        lost=held.state.annotations.lost,
        orphans=orphans,
        leftovers=tuple(sorted([*pending.leftovers(store, files or {}), *unfinished])),
        dead_nbytes=dead,
        problems=tuple(found.problems),
    )


def _dead_nbytes(held: Snapshot, found: Findings) -> int:
    """Count the bytes of a file outside of its chunks, records, header, index and trailer."""
    live = sum(head.header.cbytes for head in found.heads.values())
    live += sum(checksums.record_nbytes(len(found.heads[n].starts)) for n in found.checked & found.heads.keys())
    data = held.frame.cbytes if held.frame.nbytes else 0
    size = held.store.stamp("").size if not held.start else held.frame.frame_len
    return max(0, data - live) + max(0, size - held.frame.frame_len)


def inspect(
    held: Snapshot, *, deep: bool, files: Mapping[str, Listed] | None = None, progress: bool = False
) -> Findings:
    """Look at every chunk: at its head, its checksum record and one block, or with `deep` at everything.

    The snapshot must not have been read from before. `files` are the store's objects, if it can list them.
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
    def __init__(self, held: Snapshot, deep: bool, files: Mapping[str, Listed] | None) -> None:
        self.held = held
        self.deep = deep
        self.sizes = {name: each.size for name, each in (files or {}).items()}
        self.findings = Findings()
        self.context = Context(held.frame.codec, held.frame.codec_meta, _blockshape(held.frame))

    def report(self, kind: str, n: int, text: str) -> None:
        sparse = self.held.frame.frame_type == FrameType.SPARSE
        file = self.held.location_of(int(self.held.frame.offsets[n])).name if sparse else ""
        self.findings.problems.append(Problem(kind, n, file, text))

    def look(self, numbers: tuple[int, ...]) -> None:
        fetched = list(self._fetched(numbers))
        for (n, stored), error in zip(fetched, threads.spread(self._decoding_error, fetched), strict=True):
            if error is not None:
                self.report(_kind(error), n, str(error))
            else:
                self.findings.heads[n] = stored.head
                self._check_record(n, stored)

    def _fetched(self, numbers: tuple[int, ...]) -> Iterator[tuple[int, Stored]]:
        """Fetch chunks together; if that fails, one by one, to find those that cannot be read."""
        blocks = None if self.deep else (0,)
        try:
            yield from zip(numbers, fetch(self.held, [ChunkRequest(n, blocks) for n in numbers]), strict=True)
        except ConflictError:
            raise
        except B2ArrayError as error:
            if len(numbers) == 1:
                self.report(self._reading_kind(error, numbers[0]), numbers[0], str(error))
                return
            for n in numbers:
                yield from self._fetched((n,))

    def _reading_kind(self, error: B2ArrayError, n: int) -> str:
        """Classify the error of a chunk that cannot be read: an unsupported chunk must at least have the right size."""
        if not isinstance(error, UnsupportedError):
            return _kind(error)
        if self.held.has_checksums(n):
            return "checksum"  # b2array wrote the chunk, so it was supported
        place, expected = self.held.locate(n), self.held.frame.chunk_nbytes(n)
        if expected is None or isinstance(place, Special):
            return "unsupported"
        (sizes,) = self.held.read([Span(place.name, place.start + 4, place.start + 8)], clip=True)
        return "unsupported" if int.from_bytes(sizes, "little") == expected else "chunk"

    def _decoding_error(self, item: tuple[int, Stored]) -> B2ArrayError | None:
        n, stored = item
        try:
            if self.deep:
                decode.decode(stored.region, context=self.context)
        except (FormatError, UnsupportedError) as error:
            return located_error(f"chunk {n} of {self.held.url}", error)
        return None

    def _check_record(self, n: int, stored: Stored) -> None:
        """Find out whether a chunk has a checksum record, and whether the record matches it."""
        if self.held.has_checksums(n):
            self.findings.checked.add(n)
            return
        if not self.deep:
            return
        place, head = self.held.locate(n), stored.head
        if isinstance(place, Special):
            return
        start = place.start + head.header.cbytes
        stop = start + checksums.record_nbytes(len(head.starts))
        end = place.stop if place.stop >= 0 else self.sizes.get(place.name, 0)
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
        """Check that each chunk ends before the next one starts, or inside its file."""
        for n, head in self.findings.heads.items():
            place, cbytes = self.held.locate(n), head.header.cbytes
            if isinstance(place, Special):
                continue
            if place.stop >= 0 and place.start + cbytes > place.stop:
                room = place.stop - place.start
                text = f"expected at most {room} bytes, where the next chunk starts, found {cbytes} bytes"
                self.report("overlap", n, f"chunk {n} of {self.held.url}: {text}")
            size = self.sizes.get(place.name, cbytes)
            if place.stop < 0 and size < cbytes:
                text = f"expected a file of at least {cbytes} bytes, found {size}"
                self.report("truncated", n, f"chunk {n} of {self.held.url}, {place.name}: {text}")


def _blockshape(described: Frame) -> tuple[int, ...] | None:
    raw = described.metalayer("b2nd")
    try:
        return None if raw is None else b2nd.unpack(raw, chunksize=described.chunksize).blocks
    except B2ArrayError:
        return None


def _kind(error: B2ArrayError) -> str:
    return next((kind for each, kind in _KINDS.items() if isinstance(error, each)), "chunk")
