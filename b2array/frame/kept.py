"""Earlier states of a frame: those that it keeps itself, and those that its group has packed.

`load_intact_state` and `find_intact_state` make sure that other software has not written over the chunks of one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from b2array.errors import FormatError, prefix_errors
from b2array.format.kept import DIGEST_NBYTES, Kept, name_for_group, unpack_state
from b2array.format.state import State
from b2array.frame.fetch import fetch, read_chunks
from b2array.frame.listing import MemberState
from b2array.frame.snapshot import Snapshot, ledger_in, load_kept_state, lost_snapshot
from b2array.frame.source import ChunkRequest, Source

__all__ = ["find_intact_state", "find_state", "is_suspect", "load_intact_state", "require_intact"]

_AT_ONCE = 256


def load_intact_state(held: Snapshot, name: str, *, deep: bool = False) -> Snapshot:
    """Return a state that the frame of a snapshot keeps under a name.

    If other software has changed the frame since, the beginning of each chunk is compared with its checksums, and all
    of a chunk whose beginning tells nothing. The rest is compared when it is read. With `deep` all of each chunk is
    compared now: for callers that trust the places of the chunks, and do not read them.

    Raises what `load_kept_state` raises; SnapshotLostError if other software has overwritten a chunk.
    """
    state = load_kept_state(held, name)
    if state.at is not None and state.at.suspect:
        require_intact(state, deep=deep)
    return state


def find_state(
    revision: Snapshot, state: MemberState, group: bytes, title: str = "", *, is_same: bool = False
) -> Snapshot | None:
    """Return a state that a snapshot of a local group names, given the member's frame; None if that is another frame.

    Only the index of the state is read. `is_same` says that the caller knows the frame to be the same one. Raises what
    `load_kept_state` raises.
    """
    name = name_for_group(state.generation)
    entry = ledger_in(revision).find(name)
    if entry is not None and entry.group == group:
        return load_kept_state(revision, name)
    if not state.packed or state.sparse != revision.sparse:
        return None
    packed = Kept(
        name,
        0.0,
        title,
        generation=state.generation,
        nbytes=len(state.packed),
        digest=state.packed[-DIGEST_NBYTES:],
        packed=state.packed,
        group=group,
    )
    unpacked = prefix_errors(revision.url, lambda: unpack_state(state.packed, packed))
    if not is_same and unpacked.annotations.identity != revision.state.annotations.identity:
        return None
    packed = replace(packed, suspect=is_suspect(revision, unpacked))
    return Snapshot(
        revision.store,
        unpacked,
        revision.start,
        revision.expected_version or revision.version,
        state.generation.hex(),
        revision.unique,
        at=packed,
        again=revision.again,
    )


def is_suspect(revision: Snapshot, earlier: State) -> bool:
    """Whether chunks of an earlier state may be others by now, as far as the present state of the frame tells."""
    now, then = revision.state.annotations, earlier.annotations
    # A frame without an identity may be any other one.
    return not revision.frame.is_ours or now.takeovers != then.takeovers or then.identity is None


def find_intact_state(
    revision: Snapshot, state: MemberState, group: bytes, title: str, *, deep: bool = False
) -> Snapshot | None:
    """Do the same as `find_state`, and make sure that the chunks are there if other software has changed the frame.

    With `deep`, all of each chunk is compared then; and if nobody else has changed the frame, the beginning of each
    chunk that the frame has not got in the same place now. Raises what `load_intact_state` raises.
    """
    earlier = find_state(revision, state, group, title)
    if earlier is None or earlier.at is None:
        return earlier
    try:
        if earlier.at.suspect:
            require_intact(earlier, deep=deep)
        elif deep and earlier.at.packed:
            require_intact(earlier, deep=False, besides=revision.state)
    except FormatError as error:
        raise lost_snapshot(revision.url, title) from error
    return earlier


def require_intact(held: Source, *, deep: bool, besides: State | None = None) -> None:
    """Compare the stored chunks with their checksums: all of each chunk if `deep`, or if its head does not tell.

    Chunks that are in the same places in another state are left out. Raises what `fetch` raises.
    """
    wanted = held.frame.offsets >= 0
    if besides is not None:
        wanted &= ~_is_shared(held.state, besides)
    stored = [n for n in np.flatnonzero(wanted).tolist() if n not in held.state.annotations.lost]
    if deep:
        deque(read_chunks(held, stored), 0)
        return
    for first in range(0, len(stored), _AT_ONCE):
        numbers = stored[first : first + _AT_ONCE]
        begun = fetch(held, [ChunkRequest(n, (0,)) for n in numbers])
        # The head of such a chunk is the same whatever its items are.
        plain = [n for n, each in zip(numbers, begun, strict=True) if each.head.header.memcpyed]
        fetch(held, [ChunkRequest(n, None) for n in plain])


def _is_shared(one: State, other: State) -> npt.NDArray[np.bool_]:
    """Return which stored chunks of a state are in the same places in another one, whatever their numbers are."""
    places, records = other.frame.offsets, other.records
    if not places.size:
        return np.zeros(one.frame.nchunks, np.bool_)
    order = np.argsort(places, kind="stable")
    rows = order[np.searchsorted(places[order], one.frame.offsets).clip(max=places.size - 1)]
    shared: npt.NDArray[np.bool_] = (places[rows] == one.frame.offsets) & (records[rows] == one.records)
    return shared
