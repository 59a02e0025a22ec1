"""The summaries in a group's manifest: readers open members with them, and read the members later.

A summary describes one state, which it names. On a local disk, where a write to a member by its own URL does not change
the manifest, that is compared with the member; in an object store, with the revision that the manifest lists.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from b2array.commit.cursor import Promised
from b2array.commit.handle import Handle
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.format import summary
from b2array.format.state import State
from b2array.format.summary import Summary
from b2array.frame.snapshot import Snapshot, head_if_unchanged, load_from_header
from b2array.store.base import Store

__all__ = ["promise", "promise_revision"]

_outdated: set[tuple[str, bytes]] = set()
"""Stores and fingerprints of summaries that were out of date: the warning comes only once."""


def promise(store: Store, record: Any) -> Handle | None:
    """Return a handle to the local member that a record describes, or None if the member must be read at once."""
    said = _readable(record)
    if said is None:
        return None
    # On this computer a look at the member costs little, and what it was then can be read later.
    described = said.state.frame
    head = head_if_unchanged(store, described, said.header)
    if head is None:
        return None
    data, version = head.data, head.version
    if len(data) < described.frame_len:
        data = memoryview(said.header)
    return Handle(Promised(store, said, lambda: load_from_header(store, data, version, head.unique)), "r")


def promise_revision(store: Store, record: Any, revision: str, read: Callable[[], Snapshot]) -> Handle | None:
    """Return a handle to the member that a record describes, if it describes this revision. `read` reads the member.

    Without a revision nothing tells whether the record is out of date. Then the member is compared with it when it is
    read; one that differs is not described again.
    """
    said = _readable(record)
    if said is None or (store.url, said.fingerprint) in _outdated:
        return None
    if not revision:
        return Handle(Promised(store, said, lambda: _as_described(read(), said)), "r")
    return Handle(Promised(store, said, read), "r") if said.fingerprint.hex() == revision else None


def _as_described(held: Snapshot, said: Summary) -> Snapshot:
    """Return a member that is as described; ConflictError if it is not. Only its items may differ."""
    if held.frame.fingerprint != said.fingerprint and _description(held.state) != _description(said.state):
        _outdated.add((held.url, said.fingerprint))
        raise ConflictError(
            f"{held.url} is not as the manifest of its group describes it, since it was changed by its own URL; open "
            "the group again, and let Group.consolidate() bring the manifest up to date"
        )
    return held


def _description(state: State) -> tuple[Any, ...]:
    said = state.annotations
    return state.layout, state.cparams, said.fill, said.dims, state.attrs()


def _readable(record: Any) -> Summary | None:
    with suppress(FormatError, UnsupportedError):  # of a later version, or damaged: then the member itself is read
        return summary.unpack(record)
    return None
