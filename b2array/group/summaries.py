"""The summaries of members in a group's manifest, with which readers open members without reading them.

A summary may be out of date, because who writes a member by its own URL does not write the manifest. So it is compared
with the member before any item is read: on opening where that costs next to nothing, else with the first read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from b2array.engine.handle import Promise
from b2array.engine.snapshot import Snapshot, restore, unchanged
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.format import summary
from b2array.format.state import State
from b2array.format.summary import Summary
from b2array.store.base import Store

__all__ = ["promise"]

_outdated: set[tuple[str, bytes]] = set()
"""Stores and fingerprints of summaries that were found to be out of date, so that this is said only once."""


def promise(store: Store, record: Any, current: Callable[[], Snapshot]) -> Promise | None:
    """Return a promise of the member that a summary describes, or None if the member has to be read.

    Parameters
    ----------
    store : Store
        Where the member is.
    record : object
        What stands in the manifest.
    current : callable
        Reads the member.
    """
    try:
        said = summary.unpack(record)
    except (FormatError, UnsupportedError):
        return None
    described = said.state.frame
    if store.guarantee == "lock":
        # On this computer a look at the member costs little, and what it was then can be read later.
        head = unchanged(store, described, said.header)
        if head is None:
            return None
        data, version = head.data, head.stamp.version if head.stamp else None
        if len(data) < described.frame_len:
            data = memoryview(said.header)
        return Promise(store, said.state, lambda: restore(store, data, version, head.unique))
    if (store.url, described.fingerprint) in _outdated:
        return None
    return Promise(store, said.state, lambda: _kept(store, said, current))


def _kept(store: Store, said: Summary, current: Callable[[], Snapshot]) -> Snapshot:
    """Read the member; raise ConflictError if it is not as described. Other items are no difference."""
    held = current()
    if held.frame.fingerprint != said.fingerprint and _described(held.state) != _described(said.state):
        _outdated.add((store.url, said.fingerprint))
        raise ConflictError(
            f"{store.url} is not as the manifest of its group describes it, since it was changed by its own URL; open "
            "the group again, and let Group.consolidate() bring the manifest up to date"
        )
    return held


def _described(state: State) -> tuple[Any, ...]:
    said = state.annotations
    return state.layout, state.frame.cparams, said.fill, said.dims, state.attrs()
