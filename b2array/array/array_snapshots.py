"""Snapshots, as users see them: named states of an array or super-chunk."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from b2array.catalog import intact
from b2array.commit import edits
from b2array.commit.bare_chunks import give_checksums
from b2array.commit.changes import Keep
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle
from b2array.display.text_tables import html_rows, narrow_size, size, text_table
from b2array.errors import ConflictError, FormatError, SnapshotLostError, UnsupportedError
from b2array.format.attributes import decode_attr, encode_attr
from b2array.format.checksums import record_nbytes
from b2array.format.ledger import Kept, ledger_of
from b2array.format.state import State
from b2array.frame.kept_states import ledger_in, load_kept_states, unknown_name
from b2array.frame.revision import Revision
from b2array.grid.layout import Layout

__all__ = [
    "Box",
    "Boxes",
    "SnapshotInfo",
    "SnapshotTable",
    "box_text",
    "check_snapshot_name",
    "differences",
    "differing",
    "drop",
    "go_back",
    "keep",
    "list_snapshots",
    "make_entry",
    "own_nbytes",
    "restore",
    "snapshot_info",
]

_OF_TRANSACTION = "make or drop snapshots, or go back to one: the transaction can"

_UNREADABLE = (FormatError, SnapshotLostError, UnsupportedError)
_NAME_NBYTES = 255
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot of an array, as `NDArray.snapshots` lists it, or of a group.

    Parameters
    ----------
    name : str
    time : datetime.datetime
        The time of its creation, in UTC.
    message : str
    attrs : dict
        The attributes that were passed to `snapshot`.
    generation : str
        The identifier of the state: ``b2array.open(url, at=name).generation``.
    shape : tuple of int, optional
        The shape of the array at that time; None for super-chunks and groups.
    nbytes : int
        The number of bytes that only this snapshot needs. After the snapshot is dropped, `repack` or `vacuum` frees
        them.
    error : str
        The reason why the snapshot cannot be read; "" if its index is intact. `b2array.verify` also checks its chunks.
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


class SnapshotTable(tuple[SnapshotInfo, ...]):
    """A tuple of snapshots, which prints as a table."""

    __slots__ = ()

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """Yield time, name, shape, number of bytes that no other state needs, and message of each snapshot."""
        for each in self:
            shape = "" if each.shape is None else str(each.shape)
            when = each.time.isoformat(" ", "seconds").replace("+00:00", " UTC")
            yield when, each.name, shape, narrow_size(each.nbytes), each.message

    def __repr__(self) -> str:
        if not self:
            return "()"
        return "\n".join(text_table([_HEADS, *self._rows()], "<<<><"))

    def _repr_html_(self) -> str:
        return html_rows(_HEADS, self._rows()) if self else "()"


_HEADS = ("when", "name", "shape", "own bytes", "message")


def check_snapshot_name(name: str) -> str:
    """Check the name of a snapshot, and return it; raise ValueError or TypeError for an invalid name."""
    if not isinstance(name, str):
        raise TypeError(f"names of snapshots are str, not {type(name).__name__}")
    if not name or len(name.encode(errors="replace")) > _NAME_NBYTES or _FORBIDDEN.search(name):
        raise ValueError(f"{name!r} cannot name a snapshot: expected 1 to {_NAME_NBYTES} bytes of printable text")
    return name


def keep(
    handle: Handle,
    name: str,
    message: str,
    attrs: Mapping[str, Any] | None,
    *,
    replace: bool,
) -> None:
    """Keep the state that a handle shows, or the result of its transaction, under a name."""
    entry = make_entry(name, message, attrs)
    handle.require_writable()
    seen = handle.generation
    for attempt in handle.attempts():
        with attempt as draft:
            # The draft may begin with a later state than the caller has seen, and the name must not refer to that
            # state.
            is_other = draft.base is not None and draft.base.generation != seen
            if is_other and not handle.in_transaction:
                raise ConflictError(
                    f"{handle.url} was changed by another writer; call refresh() and repeat the snapshot"
                )
            draft.refuse_in_fork(_OF_TRANSACTION)
            _free_name(draft, name, replace=replace)
            # The snapshot may be old when it is read, so later damage must be detectable.
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
    """Drop an earlier snapshot with this name; FileExistsError if it must not be replaced."""
    entry = _entries(draft).get(name)
    if entry is not None:
        if not replace:
            raise FileExistsError(f"{draft.url} has a snapshot {name!r}; replace=True replaces it")
        draft.delta.drop(name)
    if name in (each.entry.name for each in draft.delta.keeps):
        raise FileExistsError(f"{draft.url}: the transaction makes a snapshot {name!r} already")


def _entries(draft: Draft) -> dict[str, Kept]:
    """Return the array's own snapshots by name, except the snapshots that the draft drops."""
    entries = ledger_of(draft.state).without(draft.delta.drops).entries
    return {entry.name: entry for entry in entries if not entry.group}


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
    """Restore a snapshot, in one commit."""
    for attempt in handle.attempts(anywhere=True):
        with attempt as draft:
            draft.refuse_in_fork(_OF_TRANSACTION)
            # A new array in a transaction has no snapshots yet.
            if draft.base is None:
                raise unknown_name(draft.url, name, ())
            # Check the chunks as well: otherwise a damaged snapshot could become the current state.
            edits.restore_state(draft, intact.load_intact_state(draft.base.without_disk_cache(), name, deep=True).state)


def go_back(handle: Handle, earlier: Revision) -> None:
    """Change a transaction to restore an earlier state of the frame."""
    for attempt in handle.attempts(anywhere=True):
        with attempt as draft:
            draft.refuse_in_fork(_OF_TRANSACTION)
            edits.restore_state(draft, earlier.state)


def list_snapshots(handle: Handle, *, alone: bool = False) -> SnapshotTable:
    """List the snapshots, the oldest first. With `alone`, bytes that the present state needs count as well."""

    def task(_: object) -> SnapshotTable:
        revision = handle.revision
        entries = [entry for entry in ledger_in(revision).entries if alone or not entry.group]
        states, errors = _load_states(revision, entries)
        compared = [*states.values()]
        if not alone:
            # Bytes that the present state also needs do not belong to a snapshot alone. This state is last, and is not
            # listed.
            compared.append(revision.state)
        own = dict(zip(states, own_nbytes(compared), strict=False))
        infos = []
        for entry in entries:
            info = snapshot_info(entry, own.get(entry, 0) + entry.nbytes)
            infos.append(replace(info, error=errors.get(entry, "")))
        return SnapshotTable(infos)

    return handle.reading(task)


def _load_states(
    revision: Revision,
    entries: Sequence[Kept],
) -> tuple[dict[Kept, State], dict[Kept, str]]:
    """Return the kept states, and the errors of unreadable ones."""
    states: dict[Kept, State] = {}
    errors: dict[Kept, str] = {}
    try:
        rebuilt_states = load_kept_states(revision, entries)
    except _UNREADABLE:
        pass  # a state is damaged, but the error does not say which one: read them one by one
    else:
        states = {entry: each.state for entry, each in zip(entries, rebuilt_states, strict=True)}
        return states, errors
    for entry in entries:
        try:
            (rebuilt,) = load_kept_states(revision, [entry])
        except _UNREADABLE as error:
            errors[entry] = str(error)
        else:
            states[entry] = rebuilt.state
    return states, errors


def snapshot_info(entry: Kept, nbytes: int) -> SnapshotInfo:
    """Return the user's view of an entry, with the number of bytes that only this entry needs."""
    attrs = decode_attr(entry.attrs) if entry.attrs else {}
    when = datetime.fromtimestamp(entry.time, UTC)
    return SnapshotInfo(entry.name, when, entry.message, attrs, entry.generation.hex(), entry.shape, nbytes)


def own_nbytes(states: Sequence[State]) -> list[int]:
    """Return for each state the number of bytes in chunks that no other state has."""
    if not states:
        return []
    # No chunk is overwritten while a state needs it, so equal places mean equal chunks.
    places = []
    for state in states:
        offsets = state.frame.offsets
        places.append(np.unique(offsets[offsets >= 0]))
    distinct, counts = np.unique(np.concatenate(places), return_counts=True)
    alone = distinct[counts == 1]
    own = []
    for state in states:
        is_own = np.isin(state.frame.offsets, alone)
        chunk_sizes = state.sizes[is_own, 0].astype(np.int64)
        own.append(int((chunk_sizes + record_nbytes(state.nblocks)).sum()))
    return own


# Differences.

Box = tuple[slice, ...]
_Cells = tuple[tuple[int, int], ...]
"""A box in a grid of chunks: its start and end along each axis."""


class Boxes(list[Box]):
    """A list of boxes of an array, which prints as a list of keys."""

    def __repr__(self) -> str:
        return "\n".join(map(box_text, self)) or "no difference"

    def _repr_html_(self) -> str:
        return html_rows(("may differ",), ((box_text(box),) for box in self)) if self else "no difference"


def box_text(box: Box) -> str:
    """Return a box as the key that selects it.

    Examples
    --------
    >>> box_text((slice(0, 2), slice(10, 20))), box_text(())
    ('[0:2, 10:20]', '[()]')
    """
    sides = [f"{part.start}:{part.stop}" for part in box]
    return f"[{', '.join(sides) or '()'}]"


def differences(handle: Handle, at: str, then: str | None) -> Boxes:
    """Return the boxes in which two states of an array may differ; see `differing`."""

    def task(_: object) -> Boxes:
        revision = handle.revision
        # Other software may overwrite a chunk in place: then equal places do not mean equal chunks.
        now = revision if then is None else intact.load_intact_state(revision, then, deep=True)
        before = intact.load_intact_state(revision, at, deep=True)
        return Boxes(differing(before.state, now.state))

    return handle.reading(task)


def differing(before: State, after: State) -> list[Box]:
    """Compare the indexes of two states of an array; return the boxes of items in which they may differ.

    The boxes consist of whole chunks within the larger of the two shapes, and do not overlap.
    """
    old, new = before.require_layout(), after.require_layout()
    shape = tuple(map(max, old.shape, new.shape))
    if (old.chunks, old.dtype) != (new.chunks, new.dtype):
        whole = tuple(slice(0, extent) for extent in shape)
        return [whole] if 0 not in shape else []
    grid = []
    for extent, chunk in zip(shape, old.chunks, strict=True):
        grid.append(-(-extent // chunk) if chunk else 0)
    changed = _cells(before, old, grid) != _cells(after, new, grid)
    # If an edge moves inside a chunk, items change even if the chunk is the same.
    for axis, chunk in enumerate(old.chunks):
        was, now = old.shape[axis], new.shape[axis]
        if was != now and chunk:
            first = min(was, now) // chunk
            before_axis = (slice(None),) * axis
            changed[(*before_axis, slice(first, None))] = True
    boxes = []
    for cells in _join_cells(changed):
        box = []
        for (start, stop), chunk, extent in zip(cells, old.chunks, shape, strict=True):
            box.append(slice(start * chunk, min(stop * chunk, extent)))
        boxes.append(tuple(box))
    return boxes


def _cells(state: State, layout: Layout, grid: Sequence[int]) -> Any:
    """Return values that identify the chunks of a state, in a grid that may be larger than the state's grid."""
    # No chunk has this place, so cells outside the array differ from all chunks.
    cells = np.full(grid, np.iinfo(np.int64).max)
    own = tuple(map(slice, layout.grid_shape))
    cells[own] = state.frame.offsets.reshape(layout.grid_shape)
    return cells


def _join_cells(changed: Any) -> list[_Cells]:
    """Join cells of a grid into boxes: along the last axis, then equal runs along the axis before it, and so on."""
    if not changed.ndim:
        return [()] if changed.any() else []
    boxes: list[_Cells] = []
    for n, row in enumerate(changed):
        inner = [((n, n + 1), *rest) for rest in _join_cells(row)]
        boxes += inner
    return _join_boxes(boxes)


def _join_boxes(boxes: list[_Cells]) -> list[_Cells]:
    """Join boxes that are adjacent along the first axis, and equal along the other axes."""
    last: dict[_Cells, int] = {}
    merged: list[_Cells] = []
    for (start, stop), *others in boxes:
        rest = tuple(others)
        number = last.get(rest)
        if number is not None:
            (first, end), *_ = merged[number]
            if end == start:
                merged[number] = ((first, stop), *rest)
                continue
        last[rest] = len(merged)
        merged.append(((start, stop), *rest))
    return merged
