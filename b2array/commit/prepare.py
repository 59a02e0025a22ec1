"""What a commit makes before its last step: the plan, the objects that it refers to, copies of chunks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec.header import ChunkHeader, Special
from b2array.commit.changes import LOWEST_CODE, ChangeSet, Keep, copy_for_changes, is_spooled
from b2array.commit.copied_states import KeptState
from b2array.commit.draft import Draft, make_removed_error
from b2array.commit.plan import Facts, Plan, find_unnoted, plan
from b2array.commit.tables import refuse_columns
from b2array.config import HEADER_LEN
from b2array.errors import FormatError, SnapshotLostError, prefix_error, prefix_errors
from b2array.format import index
from b2array.format.annotations import LAYER, Annotations
from b2array.format.foreign_indexes import with_stale_indexes
from b2array.format.header import FrameType
from b2array.format.kept import Kept, ledger_of
from b2array.format.state import State
from b2array.frame.fetch import read_chunks
from b2array.frame.kept import require_intact
from b2array.frame.snapshot import Snapshot, load_kept_states
from b2array.frame.source import Location, Source
from b2array.progress import Progress
from b2array.store.base import Store, Version, create_under_own_name

__all__ = ["copy_frame", "make_objects", "make_plan", "observe", "pieces", "require_files", "whole"]

_SALT_NBYTES = 16


def make_plan(draft: Draft, current: Snapshot | None, *, pinned: bool = False) -> Plan:
    """Return how a draft's changes become the next state, on top of the current one; see `Facts` for `pinned`."""
    change = draft.freeze()
    if change.changes_values:
        refuse_columns(draft.destination.place)
    return plan(change, current, observe(change, current, draft, pinned=pinned))


def observe(change: ChangeSet, current: Snapshot | None, draft: Draft, *, pinned: bool = False) -> Facts:
    """Find out what only the store and the staging area know."""
    store = draft.store
    return Facts(
        url=draft.url,
        appendable=store.can.append,
        locks=store.can.lock,
        aside=draft.destination.aside,
        header_room=draft.staging.header_room,
        unnoted=_file_sizes(store, find_unnoted(change, current)),
        kept=_staying(change, current),
        salt=os.urandom(_SALT_NBYTES),
        pinned=pinned,
    )


def _staying(change: ChangeSet, current: Snapshot | None) -> tuple[State, ...] | None:
    """Return the kept states of a contiguous frame that stay when a change lets others go; None if one is lost."""
    if current is None or current.sparse or not change.drops:
        return ()
    stay = ledger_of(current.state).without(change.drops).entries
    try:
        return tuple(each.state for each in load_kept_states(current, stay))
    except (FormatError, SnapshotLostError):
        return None


def _file_sizes(store: Store, numbers: list[int]) -> dict[int, int]:
    """Read the sizes of chunks in files, without the missing ones."""
    sizes: dict[int, int] = {}
    if not numbers:
        return sizes
    names = [index.chunk_name(number) for number in numbers]
    for number, name, head in zip(numbers, names, store.head(names, HEADER_LEN), strict=True):
        if not isinstance(head, Exception):
            sizes[number] = prefix_errors(f"{store.url}: {name}", partial(ChunkHeader.unpack, head.data)).cbytes
        elif not isinstance(head, FileNotFoundError):
            raise head
    return sizes


def require_files(made: Plan, draft: Draft) -> None:
    """Raise ConflictError if `vacuum` has removed files that the new state refers to."""
    gone = [] if made.state is None else draft.staging.find_missing(made.state.frame.offsets)
    if gone:
        raise make_removed_error(draft.url, gone)


def make_objects(made: Plan, draft: Draft) -> None:
    """Make the objects that the new state refers to. If the commit fails, `vacuum` removes them."""
    for name, content in made.objects.items():
        create_under_own_name(draft.store, name, content)


def pieces(made: Plan, draft: Draft, old: Iterable[Buffer] = ()) -> Iterator[Buffer]:
    """Return the bytes of a file; `old` ones between the header and the new chunks stay."""
    return chain((made.header,), old, draft.staging.pieces(made.pieces), (made.tail,))


# Copying chunks.


def whole(
    draft: Draft, current: Snapshot, pinned: Sequence[tuple[Kept, Snapshot]] = (), unpinned: tuple[str, ...] = ()
) -> Draft:
    """Copy all chunks for a new file in the place of the old one; it is the same frame.

    It keeps what the old one does, but for states that are `unpinned`, and the states that are `pinned`.
    """
    stay = ledger_of(current.state).without((*draft.delta.drops, *unpinned)).entries
    kept = [*zip(stay, load_kept_states(current, stay), strict=True), *pinned]
    whole = copy_frame(
        draft.reader(),
        draft.store,
        FrameType.CONTIGUOUS,
        progress=draft.delta.compacts,
        replaces=current.version,
        is_same=True,
        kept=[KeptState(*each) for each in kept],
    )
    for keep in draft.delta.keeps:
        whole.delta.keep(keep)
    return whole


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
    """Return a draft of a new frame with the chunks of `source`, as they are stored, without the `lost` ones.

    With `is_same`, it is the same frame in another file. It keeps the `kept` states of the old one. In a sparse frame,
    numbers of chunks' files begin with `first`.
    """
    old = source.state
    if isinstance(source, Draft):
        source.flush()  # an open chunk would keep the code of its earlier content until then
        old = copy_for_changes(source.state)  # the source goes on changing its own tables
    # A sparse frame begins anew, behind the names that are taken.
    used = old.annotations.next if is_same and old.frame.frame_type == frame_type != FrameType.SPARSE else None
    annotations = (
        Annotations()
        if old.annotations.foreign
        else replace(old.annotations, next=used, sizes=None, records=None, kept=None)
    )
    layers = tuple(layer for layer in old.frame.vlmetalayers if layer[0] != LAYER)
    state = (
        old.with_frame(frame_type=frame_type, vlmetalayers=layers).with_annotations(annotations).with_tables(None, None)
    )
    if isinstance(source, Draft) and source.freeze().changes_values:
        state = with_stale_indexes(state)
    new = Draft(store, None, state, overwrite=overwrite, locked=locked, replaces=replaces, is_same=is_same, first=first)
    lost = {*lost, *annotations.lost}
    try:
        # A draft notes all that is read; elsewhere only chunks that the index refers to are looked at.
        present = (
            range(old.frame.nchunks) if source.buffer else np.flatnonzero(old.frame.offsets >= LOWEST_CODE).tolist()
        )
        stored = [n for n in present if n not in lost and isinstance(source.locate(n), Location)]
        shown = progress or Progress(None)
        shown.advance(old.frame.nchunks - len(stored))
        for n, each in zip(stored, read_chunks(source, stored), strict=True):
            new.put(n, bytes(each.region))
            shown.advance()
        for n in lost:
            new.mark_lost(n)
        _copy_kept(new, old, kept)
    except BaseException:
        new.abort()
        raise
    return new


def _copy_kept(new: Draft, old: State, kept: Sequence[KeptState]) -> None:
    """Copy the states that a frame keeps. Chunks that are in several states are copied once.

    Where other software may have written over a chunk of a state, it is compared with the checksums that the state has.
    """
    old_index, index_now, records_now = old.frame.offsets, new.state.frame.offsets, new.state.records
    stored = np.flatnonzero(_is_stored(old_index)).tolist()
    # A place alone does not tell a chunk: other software may have written another one there.
    copies = {(int(old_index[n]), int(old.records[n])): (int(index_now[n]), int(records_now[n])) for n in stored}
    for entry, held in kept:
        if held is None:
            new.delta.keep(Keep(entry))
            continue
        offsets, records = np.array(held.frame.offsets, np.int64), held.state.records.copy()
        lost = held.state.annotations.lost
        offsets[list(lost)] = index.special_offset(Special.ZEROS)  # nobody reads them
        wanted = np.flatnonzero(_is_stored(offsets)).tolist()
        if entry.suspect or not old.frame.is_ours:
            try:
                require_intact(held, deep=True)
            except (FormatError, SnapshotLostError) as error:
                raise prefix_error(f"{held.url}: the snapshot {entry.name!r} is damaged; drop it", error) from error
        keys = {n: (int(offsets[n]), int(records[n])) for n in wanted}
        missing = [n for n in wanted if keys[n] not in copies]
        for n, each in zip(missing, read_chunks(held, missing), strict=True):
            staged = new.stage_chunk(n, bytes(each.region))
            copies[keys[n]] = staged.code, staged.record
        for n in wanted:
            offsets[n], records[n] = copies[keys[n]]
        state = held.state.with_frame(offsets=offsets, frame_type=new.state.frame.frame_type)
        new.delta.keep(Keep(entry, state.with_tables(held.state.sizes, records)))


def _is_stored(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return (codes >= 0) | is_spooled(codes)
