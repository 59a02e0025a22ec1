"""Kept states of a frame: `opened` makes sure that other software has not written over the chunks of one."""

from __future__ import annotations

from collections import deque

import numpy as np

from b2array.frame.fetch import each_chunk, fetch
from b2array.frame.snapshot import Snapshot, kept_state
from b2array.frame.source import ChunkRequest, Source

__all__ = ["opened", "require_intact"]

_AT_ONCE = 256


def opened(held: Snapshot, name: str, *, deep: bool = False) -> Snapshot:
    """Return a state that the frame of a snapshot keeps under a name.

    If other software has changed the frame since, the beginning of each chunk is compared with its checksums, and all
    of a chunk whose beginning tells nothing. The rest is compared when it is read. With `deep` all of each chunk is
    compared now: for callers that trust the places of the chunks, and do not read them.

    Raises what `kept_state` raises; SnapshotLostError if other software has overwritten a chunk.
    """
    state = kept_state(held, name)
    if state.at is not None and state.at.suspect:
        require_intact(state, deep=deep)
    return state


def require_intact(held: Source, *, deep: bool) -> None:
    """Compare the stored chunks with their checksums: all of each chunk if `deep`, or if its head does not tell.

    Raises what `fetch` raises.
    """
    stored = [n for n in np.flatnonzero(held.frame.offsets >= 0).tolist() if n not in held.state.annotations.lost]
    if deep:
        deque(each_chunk(held, stored), 0)
        return
    for first in range(0, len(stored), _AT_ONCE):
        numbers = stored[first : first + _AT_ONCE]
        begun = fetch(held, [ChunkRequest(n, (0,)) for n in numbers])
        # The head of such a chunk is the same whatever its items are.
        plain = [n for n, each in zip(numbers, begun, strict=True) if each.head.header.memcpyed]
        fetch(held, [ChunkRequest(n, None) for n in plain])
