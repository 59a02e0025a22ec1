"""Open a kept state of a frame: `opened` makes sure that other software has not written over its chunks."""

from __future__ import annotations

import numpy as np

from b2array.engine.fetch import fetch
from b2array.engine.snapshot import Snapshot, kept_state, ledger_in
from b2array.engine.source import ChunkRequest
from b2array.errors import ConflictError, FormatError

__all__ = ["opened", "own"]

_AT_ONCE = 256


def opened(held: Snapshot, name: str) -> Snapshot:
    """Return a state that the frame of a snapshot keeps under a name.

    If other software has changed the frame since, the beginning of each chunk is compared with its checksums, and all
    of a chunk whose beginning tells nothing.

    Raises what `kept_state` raises; ConflictError if a chunk is not there any more.
    """
    entry = ledger_in(held).find(name)
    if entry is None or (held.frame.is_ours and not entry.suspect):
        return kept_state(held, name)
    try:
        found = kept_state(held, name)
        _require_intact(found)
    except FormatError as error:
        raise ConflictError(
            f"{held.url}: other software has changed the frame since the snapshot {name!r} was made, and took data of "
            f"it: {error}"
        ) from error
    return found


def own(held: Snapshot) -> list[Snapshot]:
    """Return the states that a frame keeps for itself, and not for a snapshot of its group."""
    return [opened(held, entry.name) for entry in ledger_in(held).entries if not entry.group]


def _require_intact(held: Snapshot) -> None:
    """Compare the stored chunks with their checksums, as far as their heads do not tell."""
    stored = [n for n in np.flatnonzero(held.frame.offsets >= 0).tolist() if n not in held.state.annotations.lost]
    for first in range(0, len(stored), _AT_ONCE):
        numbers = stored[first : first + _AT_ONCE]
        begun = fetch(held, [ChunkRequest(n, (0,)) for n in numbers])
        # The head of such a chunk is the same whatever its items are.
        plain = [n for n, each in zip(numbers, begun, strict=True) if each.head.header.memcpyed]
        fetch(held, [ChunkRequest(n, None) for n in plain])
