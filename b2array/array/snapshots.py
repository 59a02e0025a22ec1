"""Snapshots, as users see them: states of an array or super-chunk that keep their names."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from b2array.commit import edits
from b2array.commit.changes import Keep
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle
from b2array.display.tables import size
from b2array.errors import ConflictError, FormatError, SnapshotLostError, UnsupportedError
from b2array.format.attributes import decode_attr, encode_attr
from b2array.format.checksums import record_nbytes
from b2array.format.kept import Kept, ledger_of
from b2array.format.state import State
from b2array.frame import kept
from b2array.frame.fetch import read_chunks
from b2array.frame.snapshot import Snapshot, ledger_in, load_kept_states, unknown_name
from b2array.grid.layout import Layout

__all__ = [
    "Box",
    "SnapshotInfo",
    "check_snapshot_name",
    "differences",
    "differing",
    "drop",
    "give_checksums",
    "go_back",
    "keep",
    "lacks_checksums",
    "list_snapshots",
    "make_entry",
    "own_nbytes",
    "restore",
    "snapshot_info",
]

_OF_TRANSACTION = "make or drop snapshots, or go back to one: the transaction can"

_NAME_NBYTES = 255
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot of an array, as `NDArray.snapshots` lists it, or of a group.

    Parameters
    ----------
    name : str
    time : datetime.datetime
        When it was made, in UTC.
    message : str
    attrs : dict
        What the caller of `snapshot` has given.
    generation : str
        Names the state: ``b2array.open(url, at=name).generation``.
    shape : tuple of int, optional
        The shape of the array then; None for super-chunks and groups.
    nbytes : int
        Bytes that only this snapshot holds. They are free when it was dropped, and the frame was packed again or
        vacuumed.
    error : str
        Why it cannot be read; "" if its index is intact. `b2array.verify` also checks its chunks.
    """

    name: str
    time: datetime
    message: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    generation: str = ""
    shape: tuple[int, ...] | None = None
    nbytes: int = 0
    error: str = ""

    def __str__(self) -> str:
        shape = "" if self.shape is None else f", shape {self.shape}"
        remark = f": {self.message}" if self.message else ""
        when = self.time.isoformat(" ", "seconds")
        return f"{self.name} ({when}{shape}, {size(self.nbytes)} of its own){remark}"


def check_snapshot_name(name: str) -> str:
    """Check the name of a snapshot, and return it; ValueError or TypeError say why it is refused."""
    if not isinstance(name, str):
        raise TypeError(f"names of snapshots are str, not {type(name).__name__}")
    if not name or len(name.encode(errors="replace")) > _NAME_NBYTES or _FORBIDDEN.search(name):
        raise ValueError(f"{name!r} cannot name a snapshot: expected 1 to {_NAME_NBYTES} bytes of printable text")
    return name


def keep(handle: Handle, name: str, message: str, attrs: Mapping[str, Any] | None, *, replace: bool) -> None:
    """Keep the state that a handle shows, or that its transaction makes, under a name."""
    entry = make_entry(name, message, attrs)
    handle.require_writable()
    seen = handle.generation

    for attempt in handle.attempts():
        with attempt as draft:
            if draft.base is not None and not handle.in_transaction and draft.base.generation != seen:
                raise ConflictError(
                    f"{handle.url} was changed by another writer; call refresh() and repeat the snapshot"
                )
            draft.refuse_in_fork(_OF_TRANSACTION)
            _free_name(draft, name, replace=replace)
            give_checksums(draft)
            draft.delta.keep(Keep(entry))


def make_entry(
    name: str,
    message: str,
    attrs: Mapping[str, Any] | None,
    *,
    group: bytes = b"",
    when: float | None = None,
) -> Kept:
    """Return the entry of a new snapshot; ValueError or TypeError if its name or attributes are invalid."""
    check_snapshot_name(name)
    if not isinstance(message, str):
        raise TypeError(f"the message of a snapshot is str, not {type(message).__name__}")
    packed = encode_attr(dict(attrs), "attrs") if attrs else b""
    return Kept(name, time.time() if when is None else when, message, packed, group=group)


def _free_name(draft: Draft, name: str, *, replace: bool) -> None:
    entry = _entries(draft).get(name)
    if entry is not None:
        if not replace:
            raise FileExistsError(f"{draft.url} has a snapshot {name!r}; replace=True replaces it")
        draft.delta.drop(name)
    if name in (each.entry.name for each in draft.delta.keeps):
        raise FileExistsError(f"{draft.url}: the transaction makes a snapshot {name!r} already")


def _entries(draft: Draft) -> dict[str, Kept]:
    """Return the snapshots of the base alone by name, without the ones that the draft drops."""
    entries = ledger_of(draft.state).without(draft.delta.drops).entries
    return {entry.name: entry for entry in entries if not entry.group}


def lacks_checksums(held: Snapshot) -> bool:
    """Whether other software wrote the frame, or chunks of it have no checksums."""
    return not held.frame.is_ours or bool(((held.frame.offsets >= 0) & (held.state.records == 0)).any())


def give_checksums(draft: Draft) -> None:
    """Write chunks again that have no checksums: otherwise nobody sees if other software writes over them."""
    draft.flush()
    state = draft.state
    bare = np.flatnonzero((state.frame.offsets >= 0) & (state.records == 0)).tolist()
    source = draft.reader()
    for n, stored in zip(bare, read_chunks(source, bare), strict=True):
        draft.set_chunk(n, draft.stage_chunk(n, bytes(stored.region)))


def drop(handle: Handle, name: str) -> None:
    """Drop a snapshot."""
    for attempt in handle.attempts(anywhere=True):
        with attempt as draft:
            draft.refuse_in_fork(_OF_TRANSACTION)
            entry = _entries(draft).get(name)
            if entry is None:
                raise unknown_name(draft.url, name, _entries(draft))
            draft.delta.drop(name)


def restore(handle: Handle, name: str) -> None:
    """Go back to a snapshot, in one commit."""
    for attempt in handle.attempts(anywhere=True):
        with attempt as draft:
            draft.refuse_in_fork(_OF_TRANSACTION)
            if draft.base is None:
                raise unknown_name(draft.url, name, ())
            edits.restore_state(draft, kept.load_intact_state(draft.base, name, deep=True).state)


def go_back(handle: Handle, earlier: Snapshot) -> None:
    """Let a transaction go back to an earlier state of the frame that it began with."""
    for attempt in handle.attempts(anywhere=True):
        with attempt as draft:
            draft.refuse_in_fork(_OF_TRANSACTION)
            edits.restore_state(draft, earlier.state)


def list_snapshots(handle: Handle, *, alone: bool = False) -> tuple[SnapshotInfo, ...]:
    """List the snapshots, the oldest first. If they are `alone`, the present state of the frame counts for nothing."""

    def task(_: object) -> tuple[SnapshotInfo, ...]:
        revision = handle.snapshot
        entries = [entry for entry in ledger_in(revision).entries if alone or not entry.group]
        states, errors = _readable(revision, entries)
        own = own_nbytes([*states.values()] if alone else [*states.values(), revision.state])
        alone_nbytes = dict(zip(states, own, strict=False))
        return tuple(
            replace(snapshot_info(entry, alone_nbytes.get(entry, 0) + entry.nbytes), error=errors.get(entry, ""))
            for entry in entries
        )

    return handle.reading(task)


def _readable(revision: Snapshot, entries: Sequence[Kept]) -> tuple[dict[Kept, State], dict[Kept, str]]:
    """Return the kept states, and the errors of unreadable ones."""
    # All at once is faster; if one is damaged, they are read one by one below.
    with suppress(FormatError, SnapshotLostError, UnsupportedError):
        return {entry: each.state for entry, each in zip(entries, load_kept_states(revision, entries), strict=True)}, {}
    states, errors = {}, {}
    for entry in entries:
        try:
            (rebuilt,) = load_kept_states(revision, [entry])
        except (FormatError, SnapshotLostError, UnsupportedError) as error:
            errors[entry] = str(error)
        else:
            states[entry] = rebuilt.state
    return states, errors


def snapshot_info(entry: Kept, nbytes: int) -> SnapshotInfo:
    """Return what users see of an entry, with the bytes that it holds alone."""
    attrs = decode_attr(entry.attrs) if entry.attrs else {}
    when = datetime.fromtimestamp(entry.time, UTC)
    return SnapshotInfo(entry.name, when, entry.message, attrs, entry.generation.hex(), entry.shape, nbytes)


def own_nbytes(states: Sequence[State]) -> list[int]:
    """Return for each state how many bytes of its chunks no other one has."""
    if not states:
        return []
    places = [np.unique(state.frame.offsets[state.frame.offsets >= 0]) for state in states]
    distinct, counts = np.unique(np.concatenate(places), return_counts=True)
    alone = distinct[counts == 1]
    own = []
    for state in states:
        mine = np.isin(state.frame.offsets, alone)
        sizes = state.sizes[mine, 0].astype(np.int64) + record_nbytes(state.sizes.shape[1] - 1)
        own.append(int(sizes.sum()))
    return own


# Differences.

Box = tuple[slice, ...]


def differences(handle: Handle, at: str, then: str | None) -> list[Box]:
    """Return the boxes in which two states of an array may differ; see `differing`."""

    def task(_: object) -> list[Box]:
        revision = handle.snapshot
        # Other software puts other items where a chunk was: then the place of the chunk says nothing.
        now = revision if then is None else kept.load_intact_state(revision, then, deep=True)
        return differing(kept.load_intact_state(revision, at, deep=True).state, now.state)

    return handle.reading(task)


def differing(before: State, after: State) -> list[Box]:
    """Compare the indexes of two states of an array; return the boxes of items in which they may differ.

    The boxes are whole chunks, cut off where the larger of both shapes ends, and do not overlap.
    """
    old, new = before.require_layout(), after.require_layout()
    shape = tuple(map(max, old.shape, new.shape))
    if (old.chunks, old.dtype) != (new.chunks, new.dtype):
        return [tuple(slice(0, extent) for extent in shape)] if 0 not in shape else []
    grid = tuple(-(-extent // chunk) if chunk else 0 for extent, chunk in zip(shape, old.chunks, strict=True))
    changed = _cells(before, old, grid) != _cells(after, new, grid)
    # An edge that moves inside a chunk changes items, even if the chunk is the same.
    for axis, (was, now, chunk) in enumerate(zip(old.shape, new.shape, old.chunks, strict=True)):
        if was != now and chunk:
            first = min(was, now) // chunk
            changed[(slice(None),) * axis + (slice(first, None),)] = True
    return [
        tuple(
            slice(start * chunk, min(stop * chunk, extent))
            for (start, stop), chunk, extent in zip(cells, old.chunks, shape, strict=True)
        )
        for cells in _join_cells(changed)
    ]


def _cells(state: State, layout: Layout, grid: tuple[int, ...]) -> Any:
    """Return what tells the chunks of a state from others, in a grid that may be larger than the state's."""
    cells = np.full(grid, np.iinfo(np.int64).max)
    own = tuple(map(slice, layout.grid_shape))
    cells[own] = state.frame.offsets.reshape(layout.grid_shape)
    return cells


def _join_cells(changed: Any) -> list[tuple[tuple[int, int], ...]]:
    """Join cells of a grid to boxes: first along the last axis, then equal runs along the axis before it, and so on."""
    if not changed.ndim:
        return [()] if changed.any() else []
    boxes: list[tuple[tuple[int, int], ...]] = []
    for n, row in enumerate(changed):
        inner = [((n, n + 1), *rest) for rest in _join_cells(row)]
        boxes += inner
    return _join_boxes(boxes)


def _join_boxes(boxes: list[tuple[tuple[int, int], ...]]) -> list[tuple[tuple[int, int], ...]]:
    """Join boxes that follow each other along the first axis, and are equal along the others."""
    last: dict[tuple[tuple[int, int], ...], int] = {}
    merged: list[tuple[tuple[int, int], ...]] = []
    for (start, stop), *others in boxes:
        rest = tuple(others)
        at = last.get(rest)
        if at is not None and merged[at][0][1] == start:
            merged[at] = ((merged[at][0][0], stop), *rest)
        else:
            last[rest] = len(merged)
            merged.append(((start, stop), *rest))
    return merged
