"""Prepares a commit for its last step: the plan, the objects to which the new state refers, copies of chunks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.catalog.intact import require_intact
from b2array.codec.chunk_header import ChunkHeader, Special
from b2array.commit.changes import LOWEST_CODE, ChangeSet, Keep, copy_for_changes, is_spooled
from b2array.commit.columns import refuse_columns
from b2array.commit.copied_states import KeptState
from b2array.commit.draft import Draft, detect_replacement, make_removed_error, mark_lost
from b2array.commit.outcomes import create_unique
from b2array.commit.plan import Facts, Plan, files_without_size, plan
from b2array.config import HEADER_LEN
from b2array.errors import FormatError, SnapshotLostError, prefix_error, prefix_errors
from b2array.format import index
from b2array.format.annotations import LAYER, Annotations
from b2array.format.foreign_indexes import with_stale_indexes
from b2array.format.frame_header import FrameType
from b2array.format.ledger import Kept, ledger_of
from b2array.format.state import State
from b2array.frame.fetch import read_chunks
from b2array.frame.kept_states import load_kept_states
from b2array.frame.revision import Revision
from b2array.frame.source import Location, Source
from b2array.progress import Progress
from b2array.store.base import HiddenError, Store, Version
from b2array.store.spans import Span

__all__ = [
    "bytes_of_plan",
    "copy_frame",
    "copy_whole",
    "make_objects",
    "make_plan",
    "read_behind_header",
    "read_facts",
    "require_files",
]

_SALT_NBYTES = 16
_READ_NBYTES = 2**24
"""How many bytes of an old frame are read at a time."""


def make_plan(draft: Draft, current: Revision | None, *, keep_file: bool = False) -> Plan:
    """Return the plan for committing a draft on top of the `current` state, or as a new frame (None).

    This reads facts from the store, but writes nothing. The caller has encoded open chunks, and rebased the draft.
    `Facts` explains `keep_file`. ReadOnlyError: the draft changes the values of a column in a table of python-blosc2.
    LimitError: the file has no room for the chunks of kept states.
    """
    change = draft.freeze()
    if change.changes_values:
        refuse_columns(draft.destination.place)
    return plan(change, current, read_facts(change, current, draft, keep_file=keep_file))


def read_facts(change: ChangeSet, current: Revision | None, draft: Draft, *, keep_file: bool = False) -> Facts:
    """Read the facts that `plan` needs from the store and the staging area, and choose a random salt.

    `change` is the draft as a value. The store is read only for sizes that are not in an index, and for kept states.
    """
    store = draft.store
    return Facts(
        url=draft.url,
        appendable=store.can.append,
        locks=store.can.lock,
        aside=draft.destination.aside,
        header_room=draft.staging.header_room,
        file_sizes=_file_sizes(store, files_without_size(change, current)),
        kept=_load_remaining_states(change, current),
        salt=os.urandom(_SALT_NBYTES),
        keep_file=keep_file,
    )


def _load_remaining_states(change: ChangeSet, current: Revision | None) -> tuple[State, ...] | None:
    """Load the kept states that remain in a contiguous frame after a change that drops others; None if one is lost.

    For other frames and changes, load nothing: `plan` does not need them.
    """
    if current is None or current.sparse or not change.drops:
        return ()
    stay = ledger_of(current.state).without(change.drops).entries
    try:
        return tuple(each.state for each in load_kept_states(current.without_disk_cache(), stay))
    except (FormatError, SnapshotLostError):
        return None


def _file_sizes(store: Store, numbers: list[int]) -> dict[int, int]:
    """Read the sizes of chunks from the headers of their files, by number; omit missing files.

    FormatError: a header is damaged.
    """
    sizes: dict[int, int] = {}
    if not numbers:
        return sizes
    names = [index.chunk_name(number) for number in numbers]
    for number, name, head in zip(numbers, names, store.head(names, HEADER_LEN), strict=True):
        if not isinstance(head, Exception):
            sizes[number] = prefix_errors(f"{store.url}: {name}", partial(ChunkHeader.unpack, head.data)).cbytes
        elif isinstance(head, HiddenError) or not isinstance(head, FileNotFoundError):
            raise head
    return sizes


def require_files(intended: Plan, draft: Draft) -> None:
    """Raise ConflictError if `vacuum` has removed a new chunk file to which the new state refers.

    This reads the store only if the transaction has been under way for an hour or more.
    """
    if intended.state is None:
        return
    gone = draft.staging.find_missing(intended.state.frame.offsets)
    if gone:
        raise make_removed_error(draft.url, gone)


def make_objects(intended: Plan, draft: Draft) -> None:
    """Create the objects of a plan, to which the new state refers. If the commit fails, `vacuum` removes them.

    ConflictError: another writer has deleted the frame, or replaced its directory by a file.
    """
    for name, content in intended.objects.items():
        with detect_replacement(draft):
            create_unique(draft.store, name, content)


def bytes_of_plan(intended: Plan, draft: Draft, old: Iterable[Buffer] = ()) -> Iterator[Buffer]:
    """Return an iterator over the bytes of a new file or object: header, `old` bytes, new chunks, and tail."""
    return chain((intended.header,), old, draft.staging.pieces(intended.pieces), (intended.tail,))


def read_behind_header(current: Revision) -> Iterator[Buffer]:
    """Read the bytes of a contiguous frame after its header, in pieces: chunks, index and trailer.

    ConflictError: another writer has replaced the file or object.
    """
    start, stop = len(current.header), current.frame.frame_len
    for first in range(start, stop, _READ_NBYTES):
        span = Span("", first, min(first + _READ_NBYTES, stop))
        yield from current.store.read([span], expected=current.version)


# Copying chunks.


def copy_whole(
    draft: Draft, current: Revision, needed: Sequence[tuple[Kept, Revision]] = (), unneeded: tuple[str, ...] = ()
) -> Draft:
    """Begin a draft with copies of all chunks, for a new file of the same frame in the place of the old file.

    The new draft has the changes of `draft`, whose open chunks the caller has encoded; the caller commits or aborts the
    new one. The new file keeps the states of the old file, except the `unneeded` ones, by name, and the ones that the
    draft drops. It also keeps the `needed` states, each with its entry. FormatError or SnapshotLostError: a chunk or a
    kept state cannot be read.
    """
    stay = ledger_of(current.state).without((*draft.delta.drops, *unneeded)).entries
    states = load_kept_states(current.without_disk_cache(), stay)
    kept = [*zip(stay, states, strict=True), *needed]
    copy = copy_frame(
        draft.reader(),
        draft.store,
        FrameType.CONTIGUOUS,
        progress=draft.delta.compacts,
        replaces=current.version,
        is_same=True,
        kept=[KeptState(*each) for each in kept],
    )
    for keep in draft.delta.keeps:
        copy.delta.keep(keep)
    return copy


def copy_frame(
    source: Source,
    store: Store,
    frame_type: FrameType,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    lost: Collection[int] = (),
    locked: bool = False,
    replaces: Version | None = None,
    is_same: bool = False,
    kept: Sequence[KeptState] = (),
    first: int = 0,
) -> Draft:
    """Begin a draft of a new frame, and copy the stored chunks of `source` to it; `lost` chunks are marked as lost.

    If the source is a transaction, this encodes its open chunks first. After an error, it aborts the new draft. With
    `is_same`, it is the same frame in another file. The copy keeps the `kept` states. In a sparse frame, the numbers of
    chunk files begin with `first`. `progress` counts the chunks. The other parameters are as for `Draft`. FormatError
    or SnapshotLostError: a chunk or a kept state cannot be read.
    """
    old = source.state
    if isinstance(source, Draft):
        # Before that, the code of an open chunk stands for its earlier content.
        source.flush()
        # The source may still change its tables.
        old = copy_for_changes(source.state)
    state = _without_chunks(old, frame_type, is_same=is_same)
    if isinstance(source, Draft) and source.freeze().changes_values:
        state = with_stale_indexes(state)
    new = Draft(store, None, state, overwrite=overwrite, locked=locked, replaces=replaces, is_same=is_same, first=first)
    lost = {*lost, *state.annotations.lost}
    try:
        # A draft must note all reads, so locate all its chunks. For other sources, locate only the chunks in the index.
        present: Sequence[int] = range(old.frame.nchunks)
        if not source.buffer:
            present = np.flatnonzero(old.frame.offsets >= LOWEST_CODE).tolist()
        stored = [n for n in present if n not in lost and isinstance(source.locate(n), Location)]
        bar = progress or Progress(None)
        bar.advance(old.frame.nchunks - len(stored))
        for n, each in zip(stored, read_chunks(source, stored), strict=True):
            new.put(n, bytes(each.region))
            bar.advance()
        for n in lost:
            mark_lost(new, n)
        _copy_kept(new, old, kept)
    except BaseException:
        new.abort()
        raise
    return new


def _without_chunks(old: State, frame_type: FrameType, *, is_same: bool) -> State:
    """Return the initial state of a copy of a frame, without kept states, sizes and checksums of chunks.

    It still has the index of the old frame.
    """
    noted = old.annotations
    # A sparse frame numbers its chunk files again, above the numbers in use.
    goes_on = is_same and old.frame.frame_type == frame_type != FrameType.SPARSE
    annotations = Annotations()
    if not noted.foreign:
        used = noted.next if goes_on else None
        annotations = replace(noted, next=used, sizes=None, records=None, kept=None)
    layers = tuple(layer for layer in old.frame.vlmetalayers if layer[0] != LAYER)
    state = old.with_frame(frame_type=frame_type, vlmetalayers=layers)
    return state.with_annotations(annotations).with_tables(None, None)


def _copy_kept(new: Draft, old: State, kept: Sequence[KeptState]) -> None:
    """Copy kept states to the draft `new`, whose commit will keep them. Chunks in several states are copied once.

    The draft has copies of the chunks of the state `old` already. If other software may have overwritten chunks of a
    kept state, this compares them with the checksums in that state, and raises FormatError or SnapshotLostError if they
    differ.
    """
    stored = np.flatnonzero(_is_stored(old.frame.offsets)).tolist()
    # A place does not identify a chunk: other software may have written another chunk there.
    before = _keys_of(old.frame.offsets, old.records, stored)
    after = _keys_of(new.state.frame.offsets, new.state.records, stored)
    copies = {before[n]: after[n] for n in stored}
    for entry, source in kept:
        if source is None:
            new.delta.keep(Keep(entry))
            continue
        offsets, records = np.array(source.frame.offsets, np.int64), source.state.records.copy()
        lost = source.state.annotations.lost
        # Lost chunks are never read, so treat them as zeros.
        offsets[list(lost)] = index.special_offset(Special.ZEROS)
        wanted = np.flatnonzero(_is_stored(offsets)).tolist()
        if entry.suspect or not old.frame.is_ours:
            try:
                require_intact(source, deep=True)
            except (FormatError, SnapshotLostError) as error:
                where = f"{source.url}: the snapshot {entry.name!r} is damaged; drop it"
                raise prefix_error(where, error) from error
        keys = _keys_of(offsets, records, wanted)
        missing = [n for n in wanted if keys[n] not in copies]
        for n, each in zip(missing, read_chunks(source, missing), strict=True):
            staged = new.stage_chunk(n, bytes(each.region))
            copies[keys[n]] = staged.code, staged.record
        for n in wanted:
            offsets[n], records[n] = copies[keys[n]]
        state = source.state.with_frame(offsets=offsets, frame_type=new.state.frame.frame_type)
        state = state.with_tables(source.state.sizes, records)
        new.delta.keep(Keep(entry, state))


def _keys_of(
    offsets: npt.NDArray[np.int64],
    records: npt.NDArray[np.uint32],
    numbers: Sequence[int],
) -> dict[int, tuple[int, int]]:
    """Return for each chunk in `numbers` a key that tells chunks apart: its code, and the checksum of its record."""
    return {n: (int(offsets[n]), int(records[n])) for n in numbers}


def _is_stored(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return for each code whether the chunk has bytes, in a file or in a spool."""
    return (codes >= 0) | is_spooled(codes)
