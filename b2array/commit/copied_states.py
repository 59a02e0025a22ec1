"""Which kept states a copy of a frame gets: `states_to_copy`."""

from __future__ import annotations

from typing import NamedTuple

from b2array.commit.draft import Draft
from b2array.format.kept import Kept
from b2array.frame.kept import load_intact_state
from b2array.frame.snapshot import Snapshot, ledger_in
from b2array.frame.source import Source

__all__ = ["KeptState", "states_to_copy"]


class KeptState(NamedTuple):
    """A state that a copy of a frame keeps: what its ledger will say, and where the chunks are.

    Without a source, it is the state that the commit of the copy makes.
    """

    entry: Kept
    source: Source | None


def states_to_copy(source: Source) -> list[KeptState]:
    """Return the states that a copy of a frame keeps: those that the frame keeps for itself.

    A source that is a transaction has them as it leaves them. States of a group's snapshots belong to the group.
    """
    if not isinstance(source, Draft):
        return _load_states(source, ()) if isinstance(source, Snapshot) else []
    stored = [] if source.base is None else _load_states(source.base, source.delta.drops)
    waiting = [keep for keep in source.delta.keeps if not keep.entry.group]
    return stored + [
        KeptState(keep.entry, None if keep.state is None else source.reader(keep.state)) for keep in waiting
    ]


def _load_states(held: Snapshot, drops: tuple[str, ...]) -> list[KeptState]:
    entries = ledger_in(held).without(drops).entries
    return [KeptState(entry, load_intact_state(held, entry.name)) for entry in entries if not entry.group]
