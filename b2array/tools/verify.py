"""`verify`: check whether a frame is intact. It reads the metadata and every chunk, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.array.array import NDArray
from b2array.array.array_copying import PIECE_NBYTES
from b2array.array.schunk import SChunk
from b2array.catalog.intact import find_state
from b2array.catalog.ledgers import MemberState, group_ledger, names_same_state
from b2array.catalog.manifest import Manifest, is_embedded, name_of, retired_path
from b2array.catalog.needs import needed_states, needs_of_all_groups
from b2array.catalog.owners import BucketMember, find_damage, load
from b2array.catalog.redo import read_member
from b2array.codec import decode
from b2array.codec.chunk import ChunkHead, Stored
from b2array.commit import journals
from b2array.display.text_tables import count_text
from b2array.display.text_tables import nbytes as nbytes_text
from b2array.errors import (
    B2ArrayError,
    ChecksumError,
    ChunkLostError,
    ChunkMissingError,
    ConflictError,
    FormatError,
    SnapshotLostError,
    UnsupportedError,
    prefix_error,
)
from b2array.exchange.formats import Format, Storage, holds_array
from b2array.exchange.places import find, require_frames
from b2array.format import checksums
from b2array.format.index import NO_OFFSETS, chunk_number
from b2array.format.ledger import KEPT, Kept, ledger_of, object_name
from b2array.frame import text_blocks
from b2array.frame.fetch import fetch
from b2array.frame.kept_states import load_kept_state, load_kept_states
from b2array.frame.revision import Revision
from b2array.frame.source import FRAME_NAME, ChunkRequest, Location
from b2array.grid.partition import boxes
from b2array.group import addressing
from b2array.group.archive import Archive
from b2array.group.group import Group
from b2array.group.group_snapshot import load_snapshot
from b2array.group.homes import GroupHome
from b2array.group.listed_group import ListedGroup
from b2array.progress import track
from b2array.store.base import MISSING, Listed, in_one_state
from b2array.store.endings import JOURNAL
from b2array.store.open import address_of, open_store
from b2array.store.secrets import redact_url
from b2array.store.spans import Span
from b2array.tools.anatomy import context_of, frame_nbytes, list_objects, total_nbytes
from b2array.tools.members import Listing, collect, each_frame
from b2array.tools.results import Result, Results, ResultSummary, first_of
from b2array.tools.unlisted import chunks_needed

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Findings", "Problem", "Report", "inspect", "verify", "verify_frame"]

_BATCH_NBYTES = 32 * 2**20
_BATCH_CHUNKS = 256
"""Fetch as much at a time: one request for many small chunks, and little memory for large ones."""
_KINDS: dict[type[B2ArrayError], str] = {
    ChunkLostError: "lost",
    ChunkMissingError: "missing",
    ChecksumError: "checksum",
    UnsupportedError: "unsupported",
}
"""The kind of a problem, by the class of its error; the first matching class counts."""


class Problem(NamedTuple):
    """A problem in a frame.

    `kind` is one of "frame", "metadata", "missing", "checksum", "chunk", "unsupported", "overlap", "truncated", "lost"
    and "snapshot". `chunk` is the number of the affected chunk, if any. `file` is the name of the file in a directory,
    otherwise "".
    """

    kind: str
    chunk: int | None
    file: str
    text: str


class Verdict(IntEnum):
    """The verdict on an intact chunk."""

    UNCHECKED = 1
    CHECKED = 2
    """The chunk matches its checksum record."""
    STALE = 3
    """The chunk is followed by the record of an earlier chunk."""


@dataclass(slots=True)
class Findings:
    """The result of inspecting every chunk.

    `verdicts` has the `Verdict` of every chunk in order, or 0 if the chunk is not stored or not intact. `records` has
    the CRC of each checksum record that matches its chunk. `live` is the size of the intact chunks and their checksum
    records, in bytes. `heads` has the heads of the chunks only on request, because they take the most memory.
    """

    verdicts: npt.NDArray[np.uint8]
    records: npt.NDArray[np.uint32]
    problems: list[Problem] = field(default_factory=list)
    live: int = 0
    heads: dict[int, ChunkHead] = field(default_factory=dict)

    def count(self, verdict: Verdict) -> int:
        """Return the number of chunks with this verdict."""
        return int(np.count_nonzero(self.verdicts == verdict))

    @property
    def checked(self) -> list[int]:
        """The numbers of the chunks that match their checksum records."""
        return np.flatnonzero(self.verdicts == Verdict.CHECKED).tolist()


@dataclass(frozen=True, slots=True)
class Report(Result):
    """The result of `verify` for an array. Sizes are in bytes.

    Parameters
    ----------
    url, layout, generation : str
        The frame, without secrets. `layout` and `generation` are "" if the frame cannot be read.
    deep : bool
        Whether all chunks were read and decoded.
    snapshot : str
        The snapshot that was checked; "" for the latest state.
    nchunks, special : int
        Number of all chunks, and of chunks that are not stored because one value fills them.
    checked, unchecked, stale : int
        Number of stored chunks that match their checksums, that have no checksums, and whose checksums are out of date
        because other software replaced the chunk but not the checksums after it.
    lost : tuple of int
        Chunks that an earlier repair could not recover.
    snapshots : int
        Number of snapshots; their chunks are checked as well.
    orphans, leftovers : tuple of str
        Chunk files that no index or snapshot refers to, and temporary files of killed writers.
    dead_nbytes : int
        Bytes that `repack` or `vacuum` would free, as far as known.
    problems : tuple of Problem
        All problems, each with `kind`, `chunk`, `file` and `text`.
    """

    url: str
    deep: bool
    snapshot: str = ""
    layout: str = ""
    generation: str = ""
    nchunks: int = 0
    special: int = 0
    checked: int = 0
    unchecked: int = 0
    stale: int = 0
    lost: tuple[int, ...] = ()
    snapshots: int = 0
    orphans: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    dead_nbytes: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are no problems. Orphans and dead space are not problems."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and `ok` as JSON-compatible types."""
        problems = [problem._asdict() for problem in self.problems]
        return Result.to_dict(self) | {"problems": problems, "ok": self.ok}

    def summarize(self) -> ResultSummary:
        """Summarize layout, chunks, checksums, dead space, problems and unneeded files."""
        rows: dict[str, Any] = {}
        if self.snapshot:
            rows["snapshot"] = self.snapshot
        if self.layout:
            rows["layout"] = self.layout
        if self.generation:
            nstored = self.nchunks - self.special
            rows["chunks"] = f"{self.nchunks}, {self.special} of them not stored" if self.special else self.nchunks
            rows["checksums"] = f"{self.checked} of {nstored}"
        if self.snapshots:
            rows["snapshots"] = self.snapshots
        if self.generation and self.dead_nbytes:
            rows["dead space"] = nbytes_text(self.dead_nbytes)
        lines = []
        if self.stale:
            lines.append(f"{count_text(self.stale, 'chunk')} with the checksums of an earlier one")
        for names, what in ((self.orphans, "orphaned chunk file"), (self.leftovers, "leftover file")):
            if names:
                lines.append(f"{count_text(len(names), what)}: {first_of(names)}")
        lines += [f"{problem.kind}: {problem.text}" for problem in self.problems]
        headline = "in order" if self.ok else count_text(len(self.problems), "problem")
        return ResultSummary(headline, rows, lines)


def verify(
    source: str | os.PathLike[str] | NDArray | SChunk | Group,
    *,
    deep: bool = False,
    at: str | None = None,
    storage_options: Storage = None,
    fs: AbstractFileSystem | None = None,
    progress: bool = False,
) -> Report | Results:
    """Check whether an array, or every array of a group, is intact, without changing anything.

    Header, index and trailer are compared with their fingerprint. Each chunk's head and its checksum record are
    checked. If the store can be listed, missing and orphaned files are found as well. The check covers the latest
    stored state, even if a handle shows an earlier one, and all snapshots; for a handle at a snapshot, it covers only
    that snapshot.

    The check covers what the server has: nothing is read from the cache on disk (`b2array.config.disk_cache`), and the
    cache is left as it is. If it has an intact copy of a chunk that is damaged on the server, reads go on to use it.

    Parameters
    ----------
    source : str, os.PathLike, NDArray, SChunk or Group
        The URL or a handle of an array, any other frame, or a group. Files of other formats are read as a whole.
    deep : bool, default False
        Whether to read all of each chunk, compare it with its checksums, and decode it.
    at : str, optional
        The name of the only snapshot to check, if `source` is a URL.
    storage_options : mapping, optional
        For fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.
    progress : bool, default False
        Whether to show a progress bar.

    Returns
    -------
    Report or Results
        For a group, the results for its members, and "." for data that only its snapshots use. A damaged member does
        not stop the check of the other members.

    Raises
    ------
    KeyError
        There is no such snapshot.
    FileNotFoundError
        There is no frame, no chunk and no group.
    ConflictError
        Other writers kept changing the frame meanwhile.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), chunks=(2, 6), url="memory://verified/")
    >>> a[0] = 1
    >>> report = b2array.verify(a, deep=True)
    >>> report.ok, report.checked, report.special
    (True, 1, 1)
    >>> group = b2array.open_group("memory://group", mode="w")
    >>> group["level"] = [1, 2, 3]
    >>> print(b2array.verify(group))
    memory://group: 1 member
      member  result    layout  chunks  checksums
      level   in order  sparse  1       1 of 1
    """
    if isinstance(source, NDArray | SChunk | Group):
        if at is not None:
            raise TypeError(f"at={at!r} goes with a URL: open the snapshot, and verify that")
        return _of_handle(source, deep=deep, progress=progress)
    source, storage_options = address_of(source, storage_options, fs)
    if at is not None:
        return _at_snapshot(os.fsdecode(source), at, storage_options, deep=deep, progress=progress)

    def whole(address: str) -> Report:
        store = open_store(address, storage_options=storage_options)
        try:
            return verify_frame(store.url, partial(load, store), deep=deep, progress=progress)
        except FileNotFoundError as error:
            # Chunks without an index mean damage; an empty store means a wrong URL.
            names = list_objects(store) or ()
            if not any(chunk_number(name) is not None for name in names):
                raise
            problem = Problem("frame", None, FRAME_NAME, str(error))
            return Report(store.url, deep, problems=(problem,))

    def group(members: Listing) -> Report | Results:
        return _of_group(members, whole, deep=deep, progress=progress)

    def other(kind: Format, address: str) -> Report | Results:
        return _read(kind, address, storage_options, progress=progress)

    return each_frame(source, storage_options, whole, group, other)


def _at_snapshot(
    url: str,
    at: str,
    storage_options: Storage,
    *,
    deep: bool,
    progress: bool,
) -> Report | Results:
    kind, _ = find(url, None, storage_options, exists=True)
    require_frames(kind, url)
    with addressing.open(url, at=at, storage_options=storage_options) as source:
        return _of_handle(source, deep=deep, progress=progress)


def _of_group(
    members: Listing,
    whole: Callable[[str], Report],
    *,
    deep: bool,
    progress: bool,
) -> Report | Results:
    home, paths, error, part = members

    def frame(path: str) -> Report:
        def open_member() -> Revision:
            return home.open(path, "r").revision

        def verify_member() -> Report:
            return verify_frame(f"{home.url}/{path}", open_member, deep=deep, progress=progress)

        if isinstance(home, Archive) or is_embedded(path):
            return verify_member()
        store = home.store_of(path)
        with suppress(FileNotFoundError):
            return verify_frame(store.url, partial(load, store), deep=deep, progress=progress)
        # A writer that was killed after its commit may not have published the member, but the group has it.
        with suppress(FileNotFoundError):
            return verify_member()
        return whole(home.address(path))

    def each(path: str) -> Report | None:
        if path or isinstance(home, Archive):
            return frame(path)
        return _of_snapshots(home, deep=deep, progress=progress)

    if list(paths) == [""]:
        return frame(paths[""])
    if error is None and not part and not isinstance(home, Archive):
        paths = {".": "", **paths}
    group = None if isinstance(home, Archive) else home
    return collect(home.url, home.url, paths, each, error, group=group)


def _of_snapshots(home: GroupHome, *, deep: bool, progress: bool) -> Report | None:
    """Check the lists of members and the retired frames that the snapshots of a group need."""
    manifest = home.load_manifest()
    entries = group_ledger(home.url, manifest).entries
    if not entries:
        return None
    problems: list[Problem] = []
    needed: dict[str, dict[MemberState, str]] = {}
    for entry in entries:
        try:
            then = load_snapshot(home, entry, manifest)
        except ConflictError:  # the snapshot was dropped meanwhile
            continue
        except (FormatError, UnsupportedError) as error:
            problems.append(Problem("snapshot", None, object_name(entry.place), str(error)))
            continue
        for state in then.states.values():
            if not then.is_retired(state.path):
                needed.setdefault(state.path, {}).setdefault(state, entry.name)
    if home.is_local:
        problems += _of_members(home, manifest, needed)
    else:
        problems += _of_revisions(home, manifest, needed, deep=deep, progress=progress)
    for token in manifest.retired:
        store = home.store_of(retired_path(token))
        report = verify_frame(store.url, partial(load, store), deep=deep, progress=progress)
        problems += [problem._replace(kind="snapshot") for problem in report.problems]
    return Report(home.url, deep, snapshots=len(entries), problems=tuple(problems))


def _of_members(
    home: GroupHome,
    manifest: Manifest,
    needed: Mapping[str, Mapping[MemberState, str]],
) -> Iterator[Problem]:
    """Check that local members still keep the states that snapshots refer to; `needed` has one snapshot for each."""
    for path, states in needed.items():
        # The member's own result reports its damage.
        with suppress(B2ArrayError):
            # A missing member keeps no states, so each state is reported below.
            revision = None
            with suppress(*MISSING):
                revision = read_member(home.store_of, manifest, path)
            for state, name in states.items():
                yield from _missing_state(home.url, manifest, revision, state, name)


def _missing_state(
    url: str,
    manifest: Manifest,
    member: Revision | None,
    state: MemberState,
    name: str,
) -> Iterator[Problem]:
    """Check that the member still keeps the state that a snapshot refers to."""
    kept = None
    # The member's own result reports a damaged list.
    with suppress(FormatError, UnsupportedError):
        if member is not None:
            kept = find_state(member, state, manifest.identity.encode(), repr(name))
    if kept is None:
        text = f"snapshot {name!r}: {url}/{state.path} does not keep its state any more"
        yield Problem("snapshot", None, state.path, text)


def _of_revisions(
    home: GroupHome,
    manifest: Manifest,
    needed: Mapping[str, Mapping[MemberState, str]],
    *,
    deep: bool,
    progress: bool,
) -> Iterator[Problem]:
    """Check the states in an object store that snapshots refer to; `needed` has one snapshot for each."""
    rows = manifest.rows or {}
    for state, name in chain.from_iterable(states.items() for states in needed.values()):
        is_current = names_same_state(rows.get(name_of(state.path)), state)
        # The member's own result covers these states.
        if is_current or is_embedded(state.path):
            continue
        revision = home.state_at(manifest, name, state)
        if revision is None:
            text = f"snapshot {name!r}: {home.url}/{state.path} does not have its state any more"
            yield Problem("snapshot", None, state.path, text)
            continue
        report = verify_frame(revision.url, partial(_itself, revision), deep=deep, progress=progress)
        for problem in report.problems:
            yield problem._replace(kind="snapshot")


def _itself(state: Revision) -> Revision:
    return state


def _of_handle(source: NDArray | SChunk | Group, *, deep: bool, progress: bool) -> Report | Results:
    if isinstance(source, Group):
        home, group = source._home, None
        if isinstance(home, GroupHome):
            # The handle goes on to show what it shows.
            home = group = home.copy()

        def member(path: str) -> Report:
            def open_member() -> Revision:
                return home.open(path, "r").revision

            return verify_frame(f"{home.url}/{path}", open_member, deep=deep, progress=progress)

        return collect(source.url, home.url, source._below(), member, group=group)
    revision = source._handle.revision
    return verify_frame(revision.url, lambda: _load_stored(revision), deep=deep, progress=progress)


def _load_stored(seen: Revision) -> Revision:
    """Load the current state of the frame, or the same snapshot again if `seen` is a snapshot."""
    revision = load(seen.store, start=seen.start)
    return revision if seen.at is None else load_kept_state(revision, seen.at.name, seen.at.generation)


def verify_frame(
    url: str,
    open_frame: Callable[[], Revision],
    *,
    deep: bool,
    progress: bool,
) -> Report:
    """Check the frame that `open_frame` returns; see `b2array.verify`."""
    return in_one_state(lambda: _verify_frame(Report(url, deep), open_frame, progress=progress))


def _verify_frame(report: Report, open_frame: Callable[[], Revision], *, progress: bool) -> Report:
    try:
        # What the server has is to be checked, and not what this computer has of it.
        revision = open_frame().without_disk_cache()
    except (FormatError, SnapshotLostError, UnsupportedError) as error:
        problem = Problem("frame", None, "", str(error))
        return replace(report, problems=(problem,))
    # Some stores cannot be listed, such as HTTP servers: their files are only read.
    listed = list_objects(revision.store)
    files = listed or {}
    findings = inspect(revision, deep=report.deep, files=listed, progress=progress)
    if revision.at is not None:
        of_snapshot = replace(report, snapshot=revision.at.name)
        return _about(of_snapshot, revision, findings, findings.problems)
    kept = _inspect_kept(revision, deep=report.deep, files=listed, progress=progress)
    orphans: list[str] = []
    if revision.sparse:
        places = np.array([*kept.places], np.int64)
        numbers = np.concatenate([revision.frame.offsets, places, _needed_by_group(revision)])
        orphans += journals.unneeded_chunks(files, numbers)
        orphans += [name for name in files if name.endswith(KEPT) and name not in kept.objects]
        dead = sum(files[name].size for name in orphans)
    else:
        total = total_nbytes(revision, None) or 0
        dead = total - frame_nbytes(revision.frame) - findings.live - kept.live
    unfinished = [name for name in files if name.endswith(JOURNAL)]
    leftovers = journals.find_leftovers(revision.store, files)
    problems = [*_unreadable(revision), *findings.problems, *kept.problems]
    damage = find_damage(revision)
    if damage is not None:
        problems.insert(0, Problem("frame", None, *damage))
    return replace(
        _about(report, revision, findings, problems),
        orphans=tuple(sorted(orphans)),
        leftovers=tuple(sorted([*leftovers, *unfinished])),
        # The difference is negative if the header counts bytes that the file does not have.
        dead_nbytes=max(0, dead),
        snapshots=kept.count,
    )


def _needed_by_group(revision: Revision) -> npt.NDArray[np.int64]:
    """Return the numbers of the chunks that snapshots of a group in an object store need."""
    owner = revision.owner
    if not isinstance(owner, BucketMember):
        return NO_OFFSETS
    group, name = ListedGroup.of(owner.known), owner.name
    # The result of the group reports damaged lists.
    with suppress(FormatError, UnsupportedError):
        return chunks_needed(group, name) if group.manifest.kept and name in group.rows else NO_OFFSETS
    return NO_OFFSETS


def _about(
    report: Report,
    revision: Revision,
    findings: Findings,
    problems: Iterable[Problem],
) -> Report:
    """Add the findings for a state and its chunks to a report."""
    described = revision.frame
    return replace(
        report,
        layout=described.frame_type.name.lower(),
        generation=revision.generation,
        nchunks=described.nchunks,
        special=described.nchunks - int(np.count_nonzero(described.offsets >= 0)),
        checked=findings.count(Verdict.CHECKED),
        unchecked=findings.count(Verdict.UNCHECKED),
        stale=findings.count(Verdict.STALE),
        lost=revision.state.annotations.lost,
        problems=tuple(problems),
    )


@dataclass(slots=True)
class _KeptFindings:
    """The result of inspecting kept states: the positions of their chunks, and the bytes that only kept states use."""

    count: int = 0
    places: set[int] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    live: int = 0
    problems: list[Problem] = field(default_factory=list)


def _inspect_kept(
    revision: Revision,
    *,
    deep: bool,
    files: Mapping[str, Listed] | None,
    progress: bool,
) -> _KeptFindings:
    """Inspect the kept states, and each chunk that is not in the frame's own index."""
    findings = _KeptFindings()
    try:
        entries = ledger_of(revision.state).entries
    except (FormatError, UnsupportedError) as error:
        problem = Problem("snapshot", None, revision.name, f"{revision.url}: {error}")
        findings.problems.append(problem)
        return findings
    states: list[tuple[Kept, Revision | None]] = [(entry, None) for entry in entries]
    # The result of the group reports damaged lists.
    with suppress(B2ArrayError):
        states += needed_states(revision, needs_of_all_groups(revision.store))
    findings.count = len(states)
    if not states:
        return findings
    # Most chunks of a snapshot are chunks of the latest state as well, and have been looked at.
    seen = set(revision.frame.offsets.tolist())
    for entry, needed in states:
        has_object = revision.sparse and not entry.packed
        name = object_name(entry.place) if has_object else revision.name
        findings.objects.add(name)
        if not revision.sparse and not entry.packed:
            findings.live += entry.nbytes
        try:
            state = load_kept_states(revision, [entry])[0] if needed is None else needed
        except (FormatError, SnapshotLostError, UnsupportedError) as error:
            findings.problems.append(Problem("snapshot", None, name, str(error)))
            continue
        offsets = state.frame.offsets
        lost = state.state.annotations.lost
        stored = [n for n in np.flatnonzero(offsets >= 0).tolist() if n not in lost]
        alone = [n for n in stored if int(offsets[n]) not in seen]
        looked = inspect(state, deep=deep, files=files, progress=progress, numbers=alone)
        findings.live += looked.live
        problems = looked.problems
        if state.at is not None and state.at.suspect:
            # The intact chunk of the latest state may be a different chunk at the same position.
            shared = [n for n in stored if int(offsets[n]) in seen]
            of_shared = inspect(state, deep=deep, files=files, progress=progress, numbers=shared)
            problems += of_shared.problems
        findings.places.update(offsets[offsets >= 0].tolist())
        seen |= findings.places
        for problem in problems:
            text = f"snapshot {entry.title}: {problem.text}"
            findings.problems.append(Problem("snapshot", problem.chunk, problem.file, text))
    return findings


def _unreadable(revision: Revision) -> Iterator[Problem]:
    """Find damage in the layout or attributes that only reading reveals, in frames without a fingerprint."""
    state = revision.state
    checks: dict[str, Callable[[], object]] = {
        f"attribute {name!r} of {revision.url}": partial(state.attr, name) for name in state.attr_names
    }
    if holds_array(revision.frame):
        checks[revision.url] = state.require_layout
    for where, check in checks.items():
        try:
            check()
        except FormatError as error:
            yield Problem("metadata", None, revision.name, f"{where}: {error}")


def inspect(
    revision: Revision,
    *,
    deep: bool,
    files: Mapping[str, Listed] | None = None,
    progress: bool = False,
    keep_heads: bool = False,
    numbers: Sequence[int] | None = None,
) -> Findings:
    """Inspect every chunk: its head, its checksum record and one block, or with `deep` all of its bytes.

    Nothing must have been read from the snapshot before. `files` are the store's objects, if it can list them.
    `numbers` are the chunks to check; the default is all chunks.
    """
    inspector = _Inspector(revision, deep, files, keep_heads)
    if numbers is None:
        numbers = np.flatnonzero(revision.frame.offsets >= 0).tolist()
    step = _BATCH_CHUNKS
    if deep:
        fitting = _BATCH_NBYTES // max(1, revision.frame.chunksize)
        step = min(max(1, fitting), _BATCH_CHUNKS)
    # Whatever the program has set: here checksums are the point.
    with config.using(verify="always"), track(len(numbers), "verifying", progress, unit="items") as bar:
        for first in range(0, len(numbers), step):
            batch = tuple(numbers[first : first + step])
            inspector.look(batch)
            # No chunk is inspected twice, and the heads of all chunks of a large array would fill the memory.
            inspector.revision.heads.clear()
            bar.advance(len(batch))
    return inspector.findings


class _Inspector:
    def __init__(
        self,
        revision: Revision,
        deep: bool,
        files: Mapping[str, Listed] | None,
        keep_heads: bool,
    ) -> None:
        # Repairs pass states that may use the cache on disk.
        self.revision = revision.without_disk_cache()
        self.deep = deep
        self.files = files or {}
        self.keep_heads = keep_heads
        verdicts = np.zeros(revision.frame.nchunks, np.uint8)
        records = np.zeros(revision.frame.nchunks, np.uint32)
        self.findings = Findings(verdicts, records)
        self.context = context_of(revision.frame)

    def place(self, n: int) -> Location:
        return self.revision.location_of(int(self.revision.frame.offsets[n]))

    def report(self, kind: str, n: int, text: str) -> None:
        self.findings.problems.append(Problem(kind, n, self.place(n).name, text))

    def look(self, numbers: tuple[int, ...]) -> None:
        fetched = list(self._fetch(numbers))
        errors = threads.spread(self._decoding_error, fetched)
        for (n, stored), error in zip(fetched, errors, strict=True):
            if error is not None:
                self.report(_kind(error), n, str(error))
                continue
            head = stored.head
            verdict = self._verdict(n, stored)
            self.findings.verdicts[n] = verdict
            self.findings.live += head.header.cbytes
            if verdict == Verdict.CHECKED:
                self.findings.live += checksums.record_nbytes(len(head.starts))
            if self.keep_heads:
                self.findings.heads[n] = head
            self._check_extent(n, head.header.cbytes)

    def _fetch(self, numbers: tuple[int, ...]) -> Iterator[tuple[int, Stored]]:
        """Fetch chunks together, or one by one if that fails, to find the unreadable chunks."""
        blocks = None if self.deep else (0,)
        requests = [ChunkRequest(n, blocks) for n in numbers]
        try:
            yield from zip(numbers, fetch(self.revision, requests), strict=True)
        except B2ArrayError as error:
            # Another writer has changed the frame meanwhile: the caller begins again.
            if isinstance(error, ConflictError) and not isinstance(error, SnapshotLostError):
                raise
            if len(numbers) == 1:
                (n,) = numbers
                cause = error.__cause__ if isinstance(error, SnapshotLostError) else None
                reason = cause if isinstance(cause, FormatError) else error
                kind = self._reading_kind(reason, n)
                self.report(kind, n, str(reason))
                return
            for n in numbers:
                yield from self._fetch((n,))

    def _reading_kind(self, error: B2ArrayError, n: int) -> str:
        """Classify the error of an unreadable chunk: an unsupported chunk must at least have the right size."""
        if not isinstance(error, UnsupportedError):
            return _kind(error)
        # b2array wrote the chunk, so it was supported.
        if self.revision.state.has_checksums(n):
            return "checksum"
        expected = self.revision.frame.chunk_nbytes(n)
        if expected is None:
            return "unsupported"
        # Source: "Blosc Chunk Format", section Header: bytes 4 to 7 are the size of the data.
        start = self.place(n).start + 4
        span = Span(self.place(n).name, start, start + 4)
        (size,) = self.revision.read([span], clip=True)
        return "unsupported" if int.from_bytes(size, "little") == expected else "chunk"

    def _decoding_error(self, item: tuple[int, Stored]) -> B2ArrayError | None:
        n, stored = item
        try:
            layout = self.revision.state.layout
            if self.deep and layout is not None and layout.is_text:
                every = range(len(stored.starts))
                text_blocks.decode_tile(stored, layout, n, every, context=self.context)
            elif self.deep:
                decode.decode(stored.region, context=self.context)
        except (FormatError, UnsupportedError) as error:
            return prefix_error(f"chunk {n} of {self.revision.url}", error)
        return None

    def _verdict(self, n: int, stored: Stored) -> Verdict:
        """Determine whether a chunk has a checksum record, and whether the record matches the chunk."""
        if self.revision.state.has_checksums(n):
            self.findings.records[n] = self.revision.state.records[n]
            return Verdict.CHECKED
        place = self.place(n)
        head = stored.head
        nblocks = len(head.starts)
        start = place.start + head.header.cbytes
        stop = start + checksums.record_nbytes(nblocks)
        room = place.stop if place.stop >= 0 else self._size(place.name, 0)
        # Without a note in the frame, anything may follow the chunk. Only reading all of the bytes shows what it is.
        if not self.deep or stop > room:
            return Verdict.UNCHECKED
        (behind,) = self.revision.read([Span(place.name, start, stop)])
        number = int(self.revision.frame.offsets[n]) if self.revision.sparse else -1
        try:
            sums = checksums.verify_sums(behind, head, stored.region, number=number)
            starts = stored.starts.tolist()
            stops = stored.stops.tolist()
            checksums.check_blocks(sums, range(nblocks), stored.region, starts, stops)
        except ChecksumError:
            of_another = checksums.unpack_record(behind, number=number) is not None
            return Verdict.STALE if of_another else Verdict.UNCHECKED
        self.findings.records[n] = checksums.record_crc(behind)
        return Verdict.CHECKED

    def _size(self, name: str, unknown: int) -> int:
        listed = self.files.get(name)
        return unknown if listed is None else listed.size

    def _check_extent(self, n: int, cbytes: int) -> None:
        """Check that a chunk ends before the next chunk starts, or within its file."""
        place = self.place(n)
        if place.stop >= 0 and place.start + cbytes > place.stop:
            room = place.stop - place.start
            text = f"expected at most {room} bytes, where the next chunk starts, found {cbytes} bytes"
            self.report("overlap", n, f"chunk {n} of {self.revision.url}: {text}")
        size = self._size(place.name, cbytes)
        if place.stop < 0 and size < cbytes:
            text = f"expected a file of at least {cbytes} bytes, found {size}"
            self.report("truncated", n, f"chunk {n} of {self.revision.url}, {place.name}: {text}")


def _kind(error: B2ArrayError) -> str:
    for error_class, kind in _KINDS.items():
        if isinstance(error, error_class):
            return kind
    return "chunk"


def _read(
    kind: Format,
    address: str,
    storage_options: Storage,
    *,
    progress: bool,
) -> Report | Results:
    """Read all arrays of a file in another format, so that the library of that format detects damage."""
    url = redact_url(address)
    with kind.tree(address, storage_options) as tree:

        def one(name: str) -> Report:
            report = Report(f"{url}/{name}".rstrip("/"), deep=True, layout=kind.name)
            try:
                source = tree.open(name)
                most = PIECE_NBYTES // max(1, source.dtype.itemsize)
                with track(source.nbytes, "verifying", progress) as bar:
                    for box in boxes(source.shape, most, source.chunks):
                        items = source.read(box)
                        bar.advance(items.nbytes)
            except (FormatError, UnsupportedError) as error:
                what = "chunk" if isinstance(error, FormatError) else "unsupported"
                problem = Problem(what, None, "", str(error))
                return replace(report, problems=(problem,))
            return report

        if tree.names == ("",):
            return one("")
        return collect(url, url, {name: name for name in tree.names}, one, tree.error or tree.check())
