"""Is a frame in order, and if not, what can be done about it: `verify`, `repair`, `vacuum`, `repack`.

All of them take the URL of an array or of any other frame, and work on every store that can do what they need.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from b2array.array.info import nbytes as shown_nbytes
from b2array.array.opening import open_schunk
from b2array.codec.header import Special
from b2array.engine import pending
from b2array.engine.fetch import chunk_number
from b2array.engine.snapshot import Snapshot, load
from b2array.engine.source import FRAME_NAME
from b2array.engine.transaction import Transaction, copied
from b2array.errors import FormatError, ReadOnlyError, UnsupportedError, located
from b2array.format import checksums, index
from b2array.format.annotations import sizes_row
from b2array.format.frame import FrameType
from b2array.format.state import parse, sized_blocks
from b2array.store.base import Listed, Store, in_one_state
from b2array.store.local import LocalStore
from b2array.store.open import open_store
from b2array.store.spans import Span
from b2array.tools.anatomy import listed
from b2array.tools.inspection import Findings, Problem, inspect
from b2array.tools.salvage import salvage

__all__ = ["Cleanup", "Problem", "Repair", "Report", "repack", "repair", "vacuum", "verify"]

BACKUP_SUFFIX = ".b2bak"
"""End of the name of what `repair` keeps."""

_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"\s*([0-9]+(?:[.][0-9]+)?)\s*(s|min|h|d)\s*")

URL = str | os.PathLike[str]
Options = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found. Sizes are in bytes.

    Parameters
    ----------
    url, layout, generation : str
        What was looked at; without secrets. `layout` and `generation` are "" if the frame cannot be read.
    deep : bool
        Whether all chunks were read and decoded.
    nchunks, special : int
        Number of chunks, and how many of them are not stored, because one value fills them.
    checked, unchecked, stale : int
        Number of stored chunks that agree with their checksums, that have none, and that other software wrote in front
        of the checksums of their predecessors, which mean nothing any more.
    lost : tuple of int
        Chunks that an earlier repair could not save.
    orphans, leftovers : tuple of str
        Chunks' files that no index names, and files of writers that did not end well.
    dead_nbytes : int
        What `repack` or `vacuum` would free, as far as it is known.
    problems : tuple of Problem
        What is wrong; each with `kind`, `chunk`, `file` and `text`.
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
        """Return everything in types that JSON has."""
        problems = [problem._asdict() for problem in self.problems]
        return {**_plain(asdict(self)), "problems": problems, "ok": self.ok}

    def __str__(self) -> str:
        counts = f"{self.nchunks} chunks, of which {self.special} are not stored"
        sums = f"{self.checked} stored chunks with checksums, {self.unchecked} without"
        lines = [f"{self.url}: {'in order' if self.ok else f'{len(self.problems)} problems'}"]
        if self.layout:
            lines += [
                f"  {self.layout} frame, {counts}",
                f"  {sums}{f', {self.stale} with stale ones' * bool(self.stale)}",
            ]
        for what, names in (("orphaned chunk files", self.orphans), ("leftover files", self.leftovers)):
            if names:
                lines.append(f"  {len(names)} {what}: {_some(names)}")
        if self.dead_nbytes:
            lines.append(f"  dead space: {shown_nbytes(self.dead_nbytes)}")
        lines += [f"  {problem.kind}: {problem.text}" for problem in self.problems]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Repair:
    """What `repair` did, or would do.

    Parameters
    ----------
    url : str
    dry_run : bool
        Whether nothing was done.
    changed : bool
        Whether there is anything to do.
    nchunks : int
        Number of chunks of the repaired frame.
    lost : tuple of int
        Those of them that cannot be read any more.
    certain : bool
        Whether an index says which chunk is which. If not, they were taken in the order in which they are stored, which
        is that of their numbers where they were written one after the other.
    actions : tuple of str
        What was done, in words.
    backup : str or None
        Where the old frame is kept.
    """

    url: str
    dry_run: bool
    changed: bool
    nchunks: int
    lost: tuple[int, ...] = ()
    certain: bool = True
    actions: tuple[str, ...] = ()
    backup: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything in types that JSON has."""
        return _plain(asdict(self))

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.url}: nothing to repair"
        lines = [f"{self.url}: {'to be repaired' if self.dry_run else 'repaired'}, {self.nchunks} chunks"]
        lines += [f"  {action}" for action in self.actions]
        if self.lost:
            lines.append(f"  lost chunks: {_some(map(str, self.lost))}")
        if self.backup is not None:
            lines.append(f"  the old frame is kept as {self.backup}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What `vacuum` or `repack` did, or would do: the files removed, and how many bytes less are taken."""

    url: str
    dry_run: bool
    removed: tuple[str, ...] = ()
    nbytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return everything in types that JSON has."""
        return _plain(asdict(self))

    def __str__(self) -> str:
        verb = "would free" if self.dry_run else "freed"
        files = f", {len(self.removed)} files: {_some(self.removed)}" if self.removed else ""
        return f"{self.url}: {verb} {shown_nbytes(self.nbytes)} bytes{files}"


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _some(names: Any, most: int = 8) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")


def verify(url: URL, *, deep: bool = False, storage_options: Options = None, progress: bool = False) -> Report:
    """Look whether a frame is in order, without changing anything.

    Header, index and trailer are compared with their checksum, each chunk's head is looked at, and so are the checksums
    that follow it; files that are missing or belong to nobody are found where the store can be listed.

    Parameters
    ----------
    url : str or os.PathLike
        An array, or any other frame.
    deep : bool, default False
        Whether to read all of each chunk, compare it with its checksums, and decode it.
    storage_options : mapping, optional
        For fsspec.
    progress : bool, default False
        Whether to show how far it has come.

    Raises
    ------
    FileNotFoundError
        There is nothing at all.
    ConflictError
        Other writers changed the frame again and again meanwhile.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), chunks=(2, 6), url="memory://verified/")
    >>> a[0] = 1
    >>> report = b2array.verify("memory://verified/", deep=True)
    >>> report.ok, report.checked, report.special
    (True, 1, 1)
    """
    store = open_store(url, storage_options=storage_options)
    return in_one_state(lambda: _verified(store, deep=deep, progress=progress))


def _verified(store: Store, *, deep: bool, progress: bool) -> Report:
    report = Report(store.url, deep)
    try:
        held = load(store)
    except FileNotFoundError as error:
        if not any(chunk_number(name) is not None for name in listed(store) or ()):
            raise
        return replace(report, problems=(Problem("frame", None, FRAME_NAME, str(error)),))
    except (FormatError, UnsupportedError) as error:
        return replace(report, problems=(Problem("frame", None, "", str(error)),))
    described, files = held.frame, listed(store)
    sizes = {name: each.size for name, each in files.items()} if files is not None else None
    found = inspect(held, deep=deep, files=sizes, progress=progress)
    sparse = described.frame_type == FrameType.SPARSE
    numbers = set(described.offsets[described.offsets >= 0].tolist()) if sparse else set()
    orphans = tuple(name for name in sorted(files or ()) if pending.is_orphan(name, numbers)) if sparse else ()
    leftovers = tuple(sorted(_waiting(store, files or {})))
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
        leftovers=leftovers,
        dead_nbytes=dead,
        problems=tuple(found.problems),
    )


def _waiting(store: Store, files: Mapping[str, Listed]) -> list[str]:
    return [*pending.leftovers(store, files), *(name for name in files if name.endswith(pending.SUFFIX))]


def _dead_nbytes(held: Snapshot, found: Findings) -> int:
    """Return how many bytes of a file no chunk, record, header, index or trailer takes."""
    live = sum(head.header.cbytes for head in found.heads.values())
    live += sum(checksums.record_nbytes(len(found.heads[n].starts)) for n in found.checked & found.heads.keys())
    data = held.frame.cbytes if held.frame.nbytes else 0
    size = held.store.stamp("").size if not held.start else held.frame.frame_len
    return max(0, data - live) + max(0, size - held.frame.frame_len)


def repair(
    url: URL, *, dry_run: bool = False, backup: bool = True, trust_order: bool = False, storage_options: Options = None,
    progress: bool = False,
) -> Repair:  # fmt: skip
    """Make a frame readable again, as far as its chunks are intact.

    Where the header, the index or the trailer that b2array wrote is damaged, they are restored as they were as long as
    their fingerprint proves it: any damage of the header, and a wrong byte of the others. Otherwise, as after other
    software was killed while it changed them, the frame is put together from the parts that can be read and the chunks
    that are found. Chunks that are missing or damaged become *lost*: reading them is `ChunkMissingError` here and an
    error in other software, never zeros, until they are written again. The repaired frame takes the place of the old
    one in one step, and the old one is kept beside it. Nobody else may write meanwhile.

    Parameters
    ----------
    url : str or os.PathLike
        An array, or any other frame.
    dry_run : bool, default False
        Only say what would be done.
    backup : bool, default True
        Whether to keep the old frame, under its name with ``.b2bak`` at the end (in a directory: the file
        ``chunks.b2frame``, for chunks' files are not changed).
    trust_order : bool, default False
        If nothing proves that what can still be read is what was written, as where several parts of what b2array wrote
        are damaged, or which chunk is which, as where the index is gone and not all chunks are found: whether to
        believe it, and without an index, that the chunks found are the first ones in the order in which they are
        stored. That is so for arrays that were written from the beginning to the end.
    storage_options : mapping, optional
        For fsspec.
    progress : bool, default False
        Whether to show how far it has come.

    Raises
    ------
    FormatError
        The header cannot be read, or nothing says which of the chunks were found.
    UnsupportedError
        The frame is of a kind that is not known.
    ReadOnlyError
        The store cannot be written to.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), chunks=(2, 6), url="memory://repaired/")
    >>> print(b2array.repair("memory://repaired/"))
    memory://repaired/: nothing to repair
    """
    store = open_store(url, storage_options=storage_options)
    if store.guarantee == "read only" and not dry_run:
        raise ReadOnlyError(f"{store.url} can only be read")
    name = FRAME_NAME if store.is_prefix or _is_directory(store) else ""
    with store.lock(name, shared=dry_run):
        return _Repairer(store, url, storage_options, progress=progress).run(
            dry_run=dry_run, backup=backup, trust_order=trust_order
        )


def _is_directory(store: Store) -> bool:
    (head,) = store.head((FRAME_NAME,), 1)
    return not isinstance(head, Exception)


class _Repairer:
    def __init__(self, store: Store, url: URL, options: Options, *, progress: bool) -> None:
        self.store = store
        self.url = url
        self.options = options
        self.progress = progress

    def run(self, *, dry_run: bool, backup: bool, trust_order: bool) -> Repair:
        held, certain, proven, actions = self._read()
        files = listed(self.store)
        sizes = {name: each.size for name, each in files.items()} if files is not None else None
        found, lost = self._inspected(held, sizes)
        # b2array is never in the middle of a change: where there are checksums of its own, something was damaged.
        doubtful = (found.checked and not proven) or (not certain and (held.frame.offsets == -1).any())
        if doubtful and not trust_order:
            raise FormatError(
                f"{self.store.url}: {'; '.join(actions)}: nothing proves that this is what was written, or which chunk "
                "is which. trust_order=True takes what can be read, and without an index the order of the chunks"
            )
        known = set(held.state.annotations.lost)
        if lost - known:
            actions = (*actions, *(problem.text for problem in found.problems if problem.chunk not in known))
        changed = bool(actions)
        result = Repair(
            self.store.url, dry_run, changed, held.frame.nchunks, tuple(sorted(lost)), certain, actions,
        )  # fmt: skip
        if dry_run or not changed:
            return result
        kept = self._back_up(held) if backup else None
        self._write(held, found, lost, files or {})
        return replace(result, backup=kept)

    def _read(self) -> tuple[Snapshot, bool, bool, tuple[str, ...]]:
        """Return the frame as it is, or as it can be put together, how sure that is, and why it was necessary."""
        try:
            return load(self.store), True, True, ()
        except (FormatError, UnsupportedError) as error:
            saved = located(self.store.url, partial(salvage, self.store, error))
            stamp = self.store.stamp(FRAME_NAME if saved.frame.frame_type == FrameType.SPARSE else "")
            held = Snapshot(self.store, parse(saved.frame), 0, stamp.version, "")
            reason = str(error)
            return (
                held,
                saved.certain,
                saved.proven,
                (f"put the frame together again, because of: {reason}", *saved.notes),
            )

    def _inspected(self, held: Snapshot, sizes: Mapping[str, int] | None) -> tuple[Findings, set[int]]:
        absent = np.flatnonzero(held.frame.offsets == -1)
        present = np.where(held.frame.offsets == -1, index.special_offset(Special.ZEROS), held.frame.offsets)
        whole = replace(held, state=held.state.with_frame(offsets=present))
        found = inspect(whole, deep=True, files=sizes, progress=self.progress)
        broken = {problem.chunk for problem in found.problems if problem.chunk is not None}
        unsupported = [problem for problem in found.problems if problem.kind == "unsupported"]
        if unsupported:
            raise UnsupportedError(unsupported[0].text)
        return found, {*broken, *absent.tolist()}

    def _back_up(self, held: Snapshot) -> str:
        if held.frame.frame_type == FrameType.SPARSE:
            (content,) = self.store.read([Span(FRAME_NAME, 0, self.store.stamp(FRAME_NAME).size)])
            name = _unused(lambda name: self.store.create(name, bytes(content)), FRAME_NAME)
            return f"{self.store.url.rstrip('/')}/{name}"
        if isinstance(self.store, LocalStore):
            path = os.path.realpath(self.store.url)
            # The file itself keeps its content, because the repaired one only takes over its name.
            with suppress(OSError):
                return _unused(lambda name: os.link(path, name), path)
        return _unused(self._copy_to, os.fspath(self.url))

    def _copy_to(self, url: str) -> None:
        open_store(url, storage_options=self.options).create("", self.store.pieces())

    def _write(self, held: Snapshot, found: Findings, lost: set[int], files: Mapping[str, Listed]) -> None:
        described = held.frame
        zeros = np.where(described.offsets == -1, index.special_offset(Special.ZEROS), described.offsets)
        whole = held.state.with_frame(offsets=zeros)
        if described.frame_type == FrameType.CONTIGUOUS:
            source = replace(held, state=whole)
            copied(
                source, self.store, FrameType.CONTIGUOUS, overwrite=True, lost=lost, locked=True, replaces=held.version
            ).commit()
            return
        draft = Transaction(self.store, None, whole, overwrite=True, locked=True, replaces=held.version)
        numbers = [number for name in files if (number := chunk_number(name)) is not None]
        draft.reserve_up_to(max([-1, *numbers, *described.offsets.tolist()]))
        draft.annotate(next=None, sizes=None)
        for n in found.checked & found.heads.keys():
            draft.state.sizes[n] = sizes_row(found.heads[n], sized_blocks(whole.frame))
        for n in lost:
            draft.mark_lost(n)
        draft.commit()


def _unused(make: Any, name: str) -> str:
    """Call `make` with a name that nothing has yet, and return it."""
    for attempt in range(1000):
        backup = f"{name}{BACKUP_SUFFIX}{attempt or ''}"
        try:
            make(backup)
        except FileExistsError:
            continue
        return backup
    raise FileExistsError(f"{name}{BACKUP_SUFFIX} and 999 like it exist")


def vacuum(url: URL, *, grace: str | float = "24h", dry_run: bool = False, storage_options: Options = None) -> Cleanup:
    """Remove files that no commit refers to and that are old enough: of writers that were killed, or of older states.

    What a write by many workers has put is removed together, when the youngest of it is old enough; also where a new
    array was to be, and there is none. Until then `from_dask` and `NDArray.store` can finish it with ``resume=True``.

    Parameters
    ----------
    url : str or os.PathLike
        An array, or any other frame.
    grace : str or float, default "24h"
        How old a file must be, in seconds or as text with a unit ("s", "min", "h", "d"), so that no writer under way
        needs it. From an hour on this is safe, because a commit that takes longer makes sure that its files are still
        there; with less, while nobody writes. Handles that still show an older state find that it is gone
        (`ConflictError`), and can be refreshed.
    dry_run : bool, default False
        Only say what would be removed.
    storage_options : mapping, optional
        For fsspec.

    Raises
    ------
    UnsupportedError
        The store cannot be listed, or does not tell how old its files are.
    ReadOnlyError
        The store cannot be written to.
    FormatError
        The frame is damaged: see `repair`.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), url="memory://vacuumed/")
    >>> a[...] = 1
    >>> a[...] = 2
    >>> b2array.vacuum("memory://vacuumed/", grace=0).removed
    ('00000000.chunk',)
    """
    seconds = in_seconds(grace)
    store = open_store(url, storage_options=storage_options)
    if store.guarantee == "read only" and not dry_run:
        raise ReadOnlyError(f"{store.url} can only be read")
    try:
        lock = store.lock(load(store).name, shared=dry_run)
    except FileNotFoundError:
        lock = nullcontext()  # nobody takes one for a new array
    with lock:
        found = _removable(store)
        unknown = [name for name, each in found.items() if each.modified is None]
        if unknown and seconds > 0:
            raise UnsupportedError(f"{store.url} does not tell how old its files are: only grace=0 is possible")
        now = time.time()
        old = {name: each for name, each in found.items() if now - (each.modified or 0) >= seconds}
        if not dry_run:
            pending.remove(store, old)
    return Cleanup(store.url, dry_run, tuple(sorted(old)), sum(each.size for each in old.values()))


def _removable(store: Store) -> dict[str, Listed]:
    try:
        files = store.listing()
    except FileNotFoundError:
        files = {}
    try:
        held = load(store)  # after the listing: what has been committed by now must stay
    except FileNotFoundError:
        found = {**pending.orphans(store, files, None), **pending.leftovers(store, files)}
        if not any(name.rstrip("/").endswith(pending.SUFFIX) for name in found):
            raise
        return found
    offsets = held.frame.offsets
    numbers = set(offsets[offsets >= 0].tolist())
    return {**(pending.orphans(store, files, numbers) if held.name else {}), **pending.leftovers(store, files)}


def in_seconds(grace: str | float) -> float:
    """Return a duration that was given in seconds or as text; ValueError if it is none."""
    if isinstance(grace, str):
        found = _DURATION.fullmatch(grace)
        if found is None:
            raise ValueError(f"grace must be a number of seconds or a text like '24h', not {grace!r}")
        return float(found[1]) * _UNITS[found[2]]
    if grace < 0:
        raise ValueError(f"grace must not be negative, not {grace}")
    return float(grace)


def repack(url: URL, *, dry_run: bool = False, storage_options: Options = None, progress: bool = False) -> Cleanup:
    """Write a contiguous frame anew, without dead space. In sparse frames there is none: see `vacuum`.

    Parameters
    ----------
    url : str or os.PathLike
        An array, or any other frame.
    dry_run : bool, default False
        Only say how many bytes it would free.
    storage_options : mapping, optional
        For fsspec.
    progress : bool, default False
        Whether to show how far it has come.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), url="memory://repacked/")
    >>> b2array.repack("memory://repacked/").nbytes
    0
    """
    held = open_schunk(url, "r" if dry_run else "r+", storage_options=storage_options)
    if held.frame.frame_type == FrameType.SPARSE:
        return Cleanup(held.url, dry_run)
    if dry_run:
        return Cleanup(held.url, dry_run, (), verify(url, storage_options=storage_options).dead_nbytes)
    before = held._handle.store.stamp("").size
    held.repack(progress=progress)
    return Cleanup(held.url, dry_run, (), max(0, before - held._handle.store.stamp("").size))
