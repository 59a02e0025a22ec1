"""Retired frames: they keep states of deleted members of a local group, which snapshots of the group need.

A snapshot of a local group stores the packed states of the members; the chunks remain in the members' frames. Before a
transaction deletes or replaces a member, it copies the states that snapshots need to a retired frame, which is not a
member. The manifest lists the retired frames, and the states in each.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from b2array.catalog.intact import find_state
from b2array.catalog.manifest import RETIRED, RetiredFrame, retired_path
from b2array.catalog.needs import Need
from b2array.commit.copied_states import KeptState
from b2array.commit.frame_commit import commit
from b2array.commit.leftovers import belongs
from b2array.commit.prepare import copy_frame
from b2array.errors import B2ArrayError, FormatError, SnapshotLostError, prefix_error
from b2array.format.frame_header import FrameType
from b2array.format.ledger import Kept
from b2array.frame.revision import Revision
from b2array.frame.source import FRAME_NAME
from b2array.store.base import Store

__all__ = ["copy_states", "remove_retired", "retire"]


def copy_states(group: Store, revision: Revision, needs: Sequence[Need]) -> RetiredFrame | None:
    """Copy the states of a member that snapshots need to a new retired frame; None if none of them is in its frame.

    `revision` is the present state of the member. FormatError or SnapshotLostError: a state cannot be read. The error
    names the snapshots that the user can drop to delete the member.
    """
    try:
        states = _find_needed_states(revision, needs)
        return retire(group, states) if states else None
    except (FormatError, SnapshotLostError) as error:
        names = ", ".join(need.title for need in needs)
        raise prefix_error(
            f"{revision.url} cannot go: snapshots of the group need it, and cannot be copied; drop them first: {names}",
            error,
        ) from error


def _find_needed_states(source: Revision, needs: Sequence[Need]) -> list[Revision]:
    """Read the states in a member's frame that snapshots of the group need, and return them, the oldest first.

    Each has the entry of its snapshot; a state that several snapshots need appears once for each. A state of another
    frame, which this one has replaced, is already lost. Raises the errors of `find_state`.
    """
    entries: list[tuple[Kept, Revision]] = []
    for need in needs:
        state = find_state(source, need.state, need.group, need.title)
        if state is not None and state.at is not None:
            at = state.at
            new = [_entry_of_snapshot(entry, at) for entry in need.entries]
            entries += [(entry, replace(state, at=entry)) for entry in new]
    entries.sort(key=lambda pair: pair[0].time)
    return [state for _, state in entries]


def _entry_of_snapshot(entry: Kept, at: Kept) -> Kept:
    """Return the ledger entry of a state in a retired frame: `at`, with name, time and message of the snapshot `entry`.

    `at` is the entry of the same state in the member's frame.
    """
    return replace(at, name=entry.name, time=entry.time, message=entry.message)


def retire(group: Store, states: Sequence[Revision]) -> RetiredFrame:
    """Copy kept states of one member to a new retired frame, commit it, and return its token and what it contains.

    The caller lists it in the next manifest. The frame reaches the disk before this returns. It is sparse, so that
    python-blosc2 does not take it for a member. FormatError or SnapshotLostError: a state is damaged.
    """
    token = os.urandom(8).hex()
    path = retired_path(token)
    entries = [state.at for state in states if state.at is not None]
    keeps = [KeptState(*each) for each in zip(entries, states, strict=True)]
    draft = copy_frame(states[-1], group.below(path), FrameType.SPARSE, kept=keeps)
    commit(draft)
    # The frame, and its name in the directories around it, must be on the disk before the member disappears.
    for each in (path, RETIRED):
        group.below(each).force()
    group.force()
    names = tuple((entry.name, entry.generation) for entry in entries)
    return RetiredFrame(token, names)


def remove_retired(group: Store, token: str) -> None:
    """Remove the retired frame with a token, and ignore errors of the store: `vacuum` removes what remains."""
    # No snapshot needs the frame any more, so a leftover file does no harm.
    with suppress(OSError, B2ArrayError):
        group.below(retired_path(token)).remove(FRAME_NAME, belongs)
