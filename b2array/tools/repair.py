"""`repair`: make a damaged frame readable again.

`salvage` recovers header, index and trailer. All chunks are checked, and damaged chunks are marked as lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from b2array.catalog.group_places import group_of
from b2array.catalog.manifest import Row
from b2array.catalog.needs import needed_states, needs_of_all_groups
from b2array.catalog.owners import ALONE, BucketMember, find_damage, load, load_revision
from b2array.commit import edits
from b2array.commit.changes import copy_for_changes
from b2array.commit.copied_states import KeptState
from b2array.commit.draft import Draft, mark_lost
from b2array.commit.frame_commit import commit
from b2array.commit.frame_locks import manifests_lock, writers_lock
from b2array.commit.prepare import copy_frame
from b2array.errors import FormatError, ReadOnlyError, SnapshotLostError, UnsupportedError, prefix_errors
from b2array.exchange.formats import Storage
from b2array.format.annotations import sizes_row
from b2array.format.frame_header import FrameType
from b2array.format.index import chunk_number
from b2array.format.ledger import Kept, ledger_of
from b2array.format.state import parse, sizes_width
from b2array.frame.kept_states import load_kept_states
from b2array.frame.revision import Revision
from b2array.frame.source import FRAME_NAME
from b2array.group.listed_group import ListedGroup
from b2array.store.base import Store
from b2array.store.local_store import LocalStore
from b2array.store.open import address_of, open_store
from b2array.store.secrets import redact_url
from b2array.tools.anatomy import list_objects
from b2array.tools.members import change_each
from b2array.tools.results import Result, Results, ResultSummary, first_of
from b2array.tools.salvage import Salvaged, salvage
from b2array.tools.verify import Findings, inspect

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Repair", "repair"]

BACKUP_SUFFIX = ".b2bak"
"""The suffix of a backup's name."""


@dataclass(frozen=True, slots=True)
class Repair(Result):
    """The result of `repair`.

    Parameters
    ----------
    url : str
    dry_run : bool
        Whether the frame was left unchanged.
    changed : bool
        Whether there was anything to repair.
    nchunks : int
        Number of chunks of the repaired frame.
    lost : tuple of int
        Chunks that can no longer be read.
    certain : bool
        Whether an index gives the order of the chunks. If not, they keep their order in the file, which is right if
        they were written one after the other.
    actions : tuple of str
        Descriptions of the steps.
    backup : str or None
        The location of the old frame.
    """

    url: str
    dry_run: bool
    changed: bool
    nchunks: int
    lost: tuple[int, ...] = ()
    certain: bool = True
    actions: tuple[str, ...] = ()
    backup: str | None = None

    def summarize(self) -> ResultSummary:
        """Summarize the number of chunks, the lost chunks, the location of the backup, and the steps."""
        if not self.changed:
            return ResultSummary("nothing to repair", lines=self.actions)
        lost = first_of(map(str, self.lost)) or "none"
        rows: dict[str, Any] = {"chunks": self.nchunks, "lost": lost}
        if self.backup:
            rows["old frame"] = self.backup
        return ResultSummary("to be repaired" if self.dry_run else "repaired", rows, self.actions)


def repair(
    url: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    backup: bool = True,
    trust_order: bool = False,
    storage_options: Storage = None,
    fs: AbstractFileSystem | None = None,
    progress: bool = False,
) -> Repair | Results:
    """Make a frame readable again, as far as its chunks are intact.

    The trailer that b2array writes holds a copy of the header and a fingerprint of header, index and trailer. So a
    damaged header is restored, and so is a fingerprint with one or two wrong bytes. If the fingerprint does not prove
    the result, or if it is missing because other software was killed while it changed the frame, the frame is rebuilt
    from its readable parts and chunks. Missing and damaged chunks become *lost*: until a lost chunk is written again,
    reading it raises `ChunkLostError` here and an error in other software, and never returns zeros. The repaired frame
    replaces the old one atomically, and the old frame is kept next to it. There must be no other writer meanwhile.

    Parameters
    ----------
    url : str or os.PathLike
        An array, any other frame, or a group: all of its members are repaired, and the result is a `Results`.
    dry_run : bool, default False
        Only report the necessary steps.
    backup : bool, default True
        Whether to keep the old frame, with ``.b2bak`` appended to its name. In a directory, only the file
        ``chunks.b2frame`` is kept, because chunk files do not change.
    trust_order : bool, default False
        Accept data whose correctness cannot be proven: when index or trailer are damaged, or when the index is lost
        and some chunks are missing. Without an index, chunks are numbered in the order in which they are stored, which
        is right for arrays that were written from start to end.
    storage_options : mapping, optional
        For fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.
    progress : bool, default False
        Whether to show a progress bar.

    Raises
    ------
    FormatError
        The header cannot be read, or `trust_order` is needed.
    UnsupportedError
        The frame is of an unknown kind, or the file has another format.
    ReadOnlyError
        The store cannot be written to.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), chunks=(2, 6), url="memory://repaired/")
    >>> print(b2array.repair("memory://repaired/"))
    memory://repaired/: nothing to repair
    """
    url, storage_options = address_of(url, storage_options, fs)

    def one(address: str) -> Repair:
        return _repair(address, dry_run, backup, trust_order, storage_options, progress)

    return change_each(url, storage_options, one, dry_run=dry_run)


def _repair(
    url: str,
    dry_run: bool,
    backup: bool,
    trust_order: bool,
    storage_options: Storage,
    progress: bool,
) -> Repair:
    store = open_store(url, storage_options=storage_options)
    if not store.can.write and not dry_run:
        raise ReadOnlyError(f"{store.url} can only be read")
    file, inside = store.head(("", FRAME_NAME), 16)
    is_directory = store.is_prefix or not isinstance(inside, Exception)
    head = inside if is_directory else file
    if isinstance(head, Exception) or bytes(head.data[2:9]) != b"b2frame":
        _read(store, None)  # raises an error if there is no frame, before the lock creates a file
    name = FRAME_NAME if is_directory else ""
    groups = nullcontext() if dry_run else manifests_lock(store)
    with groups, store.lock(name, shared=True) if dry_run else writers_lock(store, name):
        revision, saved = _read(store, _find_row(store, url, storage_options))
        actions = saved.notes
        files = list_objects(store)
        findings = inspect(revision, deep=True, files=files, progress=progress, keep_heads=True)
        problems = findings.problems
        for problem in problems:
            if problem.kind == "unsupported":
                raise UnsupportedError(problem.text)
        # b2array never leaves a partial change, so a frame with checksums must have been damaged afterwards.
        has_unproven_bytes = findings.checked and not saved.proven
        has_unproven_order = saved.missing and not saved.certain
        if (has_unproven_bytes or has_unproven_order) and not trust_order:
            raise FormatError(
                f"{store.url}: {'; '.join(actions)}: nothing proves that these are the data that were written, or the "
                "order of the chunks. trust_order=True accepts the readable data, and without an index the order in "
                "which the chunks are stored"
            )
        lost = {problem.chunk for problem in problems if problem.chunk is not None} | saved.missing
        damage = find_damage(revision)
        if damage is not None:
            _, text = damage
            actions = (*actions, text)
        lost_before = set(revision.state.annotations.lost)
        if lost - lost_before:
            new = [problem.text for problem in problems if problem.chunk not in lost_before]
            actions = (*actions, *new)
        changed = bool(actions)
        result = Repair(
            url=store.url,
            dry_run=dry_run,
            changed=changed,
            nchunks=revision.frame.nchunks,
            lost=tuple(sorted(lost)),
            certain=saved.certain,
            actions=actions,
        )
        if dry_run or not changed:
            return result
        kept = _back_up(revision, url, storage_options) if backup else None
        _write(store, revision, findings, lost, files or ())
        return replace(result, backup=kept)


def _read(store: Store, listed: tuple[BucketMember, Row] | None) -> tuple[Revision, Salvaged]:
    """Return the frame with notes on its recovery. If it is damaged, use the state `listed` in its group, if any."""
    try:
        revision = load(store, needs_group=True)
    except (FormatError, UnsupportedError) as error:
        reason = error
    else:
        return revision, Salvaged(revision.frame)
    if listed is not None:
        # If the listed state is damaged as well, salvage the chunks below.
        with suppress(FormatError, UnsupportedError, FileNotFoundError):
            revision = load_revision(*listed)
            note = f"wrote the published index again, because of: {reason}"
            return revision, Salvaged(revision.frame, notes=(note,))
    saved = prefix_errors(store.url, lambda: salvage(store, reason))
    name = FRAME_NAME if saved.frame.frame_type == FrameType.SPARSE else ""
    version = store.stamp(name).version
    revision = Revision(store, parse(saved.frame), 0, version, "", ALONE if listed is None else listed[0])
    note = f"put the frame together again, because of: {reason}"
    return revision, replace(saved, notes=(note, *saved.notes))


def _find_row(store: Store, url: str, storage_options: Storage) -> tuple[BucketMember, Row] | None:
    """Return a group member in an object store, with its row, if the group lists the member at this URL."""
    place = None if store.can.local else group_of(url, storage_options)
    if place is None:
        return None
    group = ListedGroup(place.group, storage_options or {})
    row = group.rows.get(place.name)
    if row is None or not row.generation:
        return None
    # The group may list a member of this name at another location.
    listed_url = group.store_of(row.path).url
    if listed_url.rstrip("/") != store.url.rstrip("/"):
        return None
    return group.owner_of(row.path), row


def _back_up(revision: Revision, url: str, storage_options: Storage) -> str:
    store = revision.store
    if revision.sparse:

        def copy_index(name: str) -> object:
            return store.create(name, store.pieces(FRAME_NAME))

        name = _free_name(copy_index, FRAME_NAME)
        return f"{store.url.rstrip('/')}/{name}"
    if isinstance(store, LocalStore):
        path = os.path.realpath(store.url)
        # A hard link is enough, because the repaired frame is a new file with the old name. If the file system does not
        # support links, the file is copied below.
        with suppress(OSError):
            return _free_name(lambda name: os.link(path, name), path)

    def copy(address: str) -> object:
        return open_store(address, storage_options=storage_options).create("", store.pieces())

    return redact_url(_free_name(copy, url))


def _free_name(make: Callable[[str], Any], name: str) -> str:
    """Call `make` with the first backup name that is free, and return the name."""
    for attempt in range(1000):
        backup = f"{name}{BACKUP_SUFFIX}{attempt or ''}"
        try:
            make(backup)
        except FileExistsError:
            continue
        return backup
    raise FileExistsError(f"{redact_url(name)}{BACKUP_SUFFIX} and 999 more backups exist")


def _readable(revision: Revision, entry: Kept) -> Iterator[Revision]:
    """Yield a kept state if it is intact."""
    # A damaged snapshot is dropped, because it cannot be recovered.
    with suppress(FormatError, SnapshotLostError, UnsupportedError):
        (state,) = load_kept_states(revision, [entry])
        if _is_intact(state):
            yield load_kept_states(revision, [entry])[0]


def _is_intact(state: Revision) -> bool:
    return not inspect(state, deep=True).problems


def _write(
    store: Store,
    revision: Revision,
    findings: Findings,
    lost: Collection[int],
    files: Iterable[str],
) -> None:
    version = revision.version
    # States that snapshots of a group need may be intact even if the frame has lost its identity.
    needed = needed_states(revision, needs_of_all_groups(store), is_same=True)
    if not revision.sparse:
        entries = ledger_of(revision.state).entries
        states = [KeptState(entry, state) for entry in entries for state in _readable(revision, entry)]
        states += [KeptState(entry, state) for entry, state in needed if _is_intact(state)]
        whole = copy_frame(
            revision,
            store,
            FrameType.CONTIGUOUS,
            overwrite=True,
            lost=lost,
            locked=True,
            replaces=version,
            kept=states,
        )
        commit(_through_group(whole, revision))
        return
    kept = revision.state.annotations.kept
    if not revision.frame.is_ours:
        kept = ledger_of(revision.state).suspect_all().pack()
    # The tables of sizes and checksums are rebuilt from the findings, and `next` from the files.
    annotations = replace(revision.state.annotations, next=None, sizes=None, records=None, kept=kept)
    if needed:
        # The identity links the snapshots to the frame; the additional takeover makes readers check their chunks.
        noted = [state.state.annotations for _, state in needed]
        takeovers = 1 + max(each.takeovers for each in (annotations, *noted))
        annotations = replace(annotations, identity=noted[0].identity, takeovers=takeovers)
    state = copy_for_changes(revision.state).with_annotations(annotations)
    width = sizes_width(revision.frame)
    for n in findings.checked:
        state.sizes[n] = sizes_row(findings.heads[n], width)
        state.records[n] = findings.records[n]
    draft = Draft(store, None, state, overwrite=True, locked=True, replaces=version, is_same=bool(needed))
    # No new chunk may reuse the name of an existing file, even if no index refers to the file.
    numbers = [number for name in files if (number := chunk_number(name)) is not None]
    highest = max([-1, *numbers, *revision.frame.offsets.tolist()])
    edits.reserve_up_to(draft, highest)
    for n in lost:
        mark_lost(draft, n)
    commit(_through_group(draft, revision))


def _through_group(draft: Draft, revision: Revision) -> Draft:
    """Route the commit through the member's group, even if the draft could not read the old state."""
    if revision.owner.lists_revisions:
        draft.destination = draft.destination._replace(old=revision)
    return draft
