"""Chooses the kept states to copy with a frame: `states_to_copy`."""

from __future__ import annotations

from typing import NamedTuple

from b2array.catalog.intact import load_intact_state
from b2array.commit.draft import Draft
from b2array.format.ledger import Kept
from b2array.frame.kept_states import ledger_in
from b2array.frame.revision import Revision
from b2array.frame.source import Source

__all__ = ["KeptState", "states_to_copy"]


class KeptState(NamedTuple):
    """A state that a copy of a frame keeps: the entry for its ledger, and the source of its chunks.

    Without a source, it is the state that the commit of the copy makes.
    """

    entry: Kept
    source: Source | None


def states_to_copy(source: Source) -> list[KeptState]:
    """Load the states that the frame of a source keeps, except the states that belong to snapshots of a group.

    A chunk that other software has overwritten raises SnapshotLostError; see `load_intact_state`. If the source is a
    transaction, these are the states that the frame will keep after the commit: without the states that it drops, and
    with the new ones.
    """
    if isinstance(source, Revision):
        return _load_states(source, ())
    if not isinstance(source, Draft):
        return []
    states = []
    if source.base is not None:
        states = _load_states(source.base, source.delta.drops)
    for keep in source.delta.keeps:
        # These states serve snapshots of the frame's group, which do not name the copy.
        if keep.entry.group:
            continue
        reader = None if keep.state is None else source.reader(keep.state)
        states.append(KeptState(keep.entry, reader))
    return states


def _load_states(revision: Revision, drops: tuple[str, ...]) -> list[KeptState]:
    """Load the kept states of a frame from the store, except `drops` and the states for snapshots of groups."""
    entries = ledger_in(revision).without(drops).entries
    return [KeptState(entry, load_intact_state(revision, entry.name)) for entry in entries if not entry.group]
