"""Loads the states that a frame keeps under names, from the ledger in its annotations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from b2array.buffers import Buffer
from b2array.errors import (
    ConflictError,
    FormatError,
    UnsupportedError,
    prefix_error,
    prefix_errors,
)
from b2array.format.ledger import Kept, Ledger, ledger_of, object_name, unpack_state
from b2array.frame.revision import Revision, lost_snapshot, wrong_kind
from b2array.store.spans import Span

__all__ = ["ledger_in", "load_kept_state", "load_kept_states", "unknown_name"]


def ledger_in(revision: Revision) -> Ledger:
    """Return the ledger of a frame; FormatError or UnsupportedError, with the frame's URL, if it cannot be read."""
    return prefix_errors(revision.url, lambda: ledger_of(revision.state))


def load_kept_state(revision: Revision, name: str, generation: bytes | None = None) -> Revision:
    """Load the state that a frame keeps under a name.

    Raises
    ------
    KeyError
        The frame has no snapshot of this name.
    ConflictError
        The snapshot of this name is not the state of this `generation` any more.
    FormatError
        The index of the state is damaged.
    SnapshotLostError
        Other software has overwritten the index of the state.
    """
    ledger = ledger_in(revision)
    entry = ledger.find(name)
    if generation is not None and (entry is None or entry.generation != generation):
        raise ConflictError(f"{revision.url}: the snapshot {name!r} was dropped since it was opened")
    if entry is None:
        raise unknown_name(revision.url, name, ledger.names)
    return load_kept_states(revision, [entry])[0]


def unknown_name(url: str, name: str, names: Iterable[str]) -> KeyError:
    """Return the error for a missing snapshot, given the names of the existing ones."""
    existing = ", ".join(map(repr, names))
    return KeyError(f"{url} has no snapshot {name!r}; it has {existing or 'none'}")


def load_kept_states(revision: Revision, entries: Sequence[Kept]) -> list[Revision]:
    """Load the kept states of a frame that these `entries` of its ledger describe, with one wave of requests.

    If other software has changed the frame since, the entries of these states are marked as `suspect`.

    Raises
    ------
    FormatError
        The index of a state is damaged.
    ConflictError
        The frame has changed since it was read, and an index is not in its place any more.
    SnapshotLostError
        Other software has overwritten the index of a state.
    """
    if not revision.frame.is_ours:
        entries = [replace(entry, suspect=True) for entry in entries]
    spans: dict[Kept, Span] = {}
    packed: dict[Kept, Buffer] = {}
    for entry in entries:
        span = _span_of(revision, entry)
        view = entry.packed or _view_of(revision, span)
        if view is None:
            spans[entry] = span
        else:
            packed[entry] = view
    try:
        views = revision.read([*spans.values()]) if spans else ()
    except (FileNotFoundError, FormatError) as error:
        # Read the states one by one, so that the error names the lost one.
        if len(entries) > 1:
            return [load_kept_states(revision, [entry])[0] for entry in entries]
        (entry,) = entries
        # Since the frame was read, another writer may have deleted it, or dropped the state.
        stale = revision.staleness()
        if stale is not None:
            raise stale from None
        if entry.suspect:
            raise lost_snapshot(revision.url, entry.title) from error
        raise FormatError(
            f"{revision.url}: snapshot {entry.name!r}: expected its index of {entry.nbytes} bytes, found none"
        ) from error
    packed.update(zip(spans, views, strict=True))
    return [_unpack_kept(revision, entry, packed[entry]) for entry in entries]


def _span_of(revision: Revision, entry: Kept) -> Span:
    """Return where a kept state's packed index is: an object of a sparse frame, or a part of a contiguous one."""
    if revision.sparse:
        return Span(object_name(entry.place), 0, entry.nbytes)
    start = revision.start + revision.frame.header_len + entry.place
    return Span("", start, start + entry.nbytes)


def _view_of(revision: Revision, span: Span) -> memoryview | None:
    """Return bytes that were read together with the frame; None if they were not."""
    nbytes = span.stop - span.start
    for end in revision.ends:
        if end.start <= span.start:
            first = span.start - end.start
            view = end.data[first : first + nbytes]
            if len(view) == nbytes:
                return view
    return None


def _unpack_kept(revision: Revision, entry: Kept, packed: Buffer) -> Revision:
    """Return a kept state, given the bytes of its index."""
    try:
        state = unpack_state(packed, entry)
    except (FormatError, UnsupportedError) as error:
        if entry.suspect:
            raise lost_snapshot(revision.url, entry.title) from error
        raise prefix_error(f"{revision.url}: snapshot {entry.name!r}", error) from error
    if state.frame.frame_type != revision.frame.frame_type:
        raise prefix_error(f"{revision.url}: snapshot {entry.name!r}", wrong_kind(state.frame.frame_type))
    kept = Revision(
        revision.store,
        state,
        revision.start,
        revision.version,
        entry.generation.hex(),
        revision.owner,
        revision.unique,
        at=entry,
        contents=revision.contents,
        name=revision.name,
    )
    return kept if revision.trusts_disk else kept.without_disk_cache()
