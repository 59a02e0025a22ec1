"""Earlier states of a frame: states that the frame keeps itself, and states that its group has packed.

`load_intact_state` and `find_intact_state` make sure that other software has not overwritten the chunks of a state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from b2array.catalog.ledgers import MemberState
from b2array.catalog.owners import ALONE
from b2array.errors import FormatError, prefix_errors
from b2array.format.ledger import DIGEST_NBYTES, Kept, name_for_group, unpack_state
from b2array.format.state import State
from b2array.frame.fetch import fetch, read_chunks
from b2array.frame.kept_states import ledger_in, load_kept_state
from b2array.frame.revision import Revision, lost_snapshot
from b2array.frame.source import ChunkRequest, Source

__all__ = ["find_intact_state", "find_state", "is_suspect", "load_intact_state", "require_intact"]

_AT_ONCE = 256
"""`require_intact` reads the heads of so many chunks together."""


def load_intact_state(revision: Revision, name: str, *, deep: bool = False) -> Revision:
    """Load a state that a frame keeps under a name, and check its chunks if other software has changed the frame.

    If other software has changed the frame since, this compares the head of each chunk with its checksum, and the whole
    chunk if its head does not depend on the items. Later reads compare the rest. With `deep`, this compares the whole
    of each chunk now, for callers that copy references to the chunks and do not read them.

    Raises the errors of `load_kept_state`; SnapshotLostError if other software has overwritten a chunk.
    """
    state = load_kept_state(revision, name)
    if state.at is not None and state.at.suspect:
        require_intact(state, deep=deep)
    return state


def find_state(
    revision: Revision,
    state: MemberState,
    group: bytes,
    title: str = "",
    *,
    is_same: bool = False,
) -> Revision | None:
    """Load a state that a snapshot of a local group names, given the member's frame; None if it is another frame.

    This reads only the index of the state. `revision` is the present state of the frame, `group` the identity of the
    group, and `title` the name of the snapshot, for messages. With `is_same`, the caller knows that the frame is the
    same one. Raises what `load_kept_state` raises; FormatError: the packed state is damaged.
    """
    name = name_for_group(state.generation)
    entry = ledger_in(revision).find(name)
    if entry is not None and entry.group == group:
        return load_kept_state(revision, name)
    # A state that the frame had to keep is not packed: without its entry, this is another frame.
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
    return Revision(
        revision.store,
        unpacked,
        revision.start,
        revision.expected_version or revision.version,
        state.generation.hex(),
        revision.owner if revision.owner.may_move else ALONE,
        revision.unique,
        at=packed,
    )


def is_suspect(revision: Revision, earlier: State) -> bool:
    """Whether other software may have overwritten chunks of an earlier state, given the frame's present state."""
    now = revision.state.annotations
    then = earlier.annotations
    was_taken_over = now.takeovers != then.takeovers
    # Without an identity, this frame cannot be told from another one.
    return not revision.frame.is_ours or was_taken_over or then.identity is None


def find_intact_state(
    revision: Revision,
    state: MemberState,
    group: bytes,
    title: str,
    *,
    deep: bool = False,
) -> Revision | None:
    """Load a state like `find_state`; if other software has changed the frame, check that the chunks are intact.

    The check compares the head of each chunk with its checksum, and with `deep` the whole chunk. With `deep`, it also
    checks a state that the group has packed even if no other software has changed the frame: then it compares the heads
    of the chunks that the frame's present state does not have. Raises the errors of `load_intact_state`.
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


def require_intact(source: Source, *, deep: bool, besides: State | None = None) -> None:
    """Compare the stored chunks of a source with their checksums; raise the errors of `fetch`.

    Parameters
    ----------
    source : Source
        The state whose chunks are compared.
    deep : bool
        Whether to compare the whole of each chunk. Otherwise, only its head is compared if the head depends on the
        items.
    besides : State, optional
        Skip chunks that are at the same places in this state.
    """
    wanted = source.frame.offsets >= 0
    if besides is not None:
        wanted &= ~_find_shared(source.state, besides)
    lost = source.state.annotations.lost
    stored = [n for n in np.flatnonzero(wanted).tolist() if n not in lost]
    if deep:
        deque(read_chunks(source, stored), 0)
        return
    for first in range(0, len(stored), _AT_ONCE):
        numbers = stored[first : first + _AT_ONCE]
        chunks = fetch(source, [ChunkRequest(n, (0,)) for n in numbers])
        # The head of a chunk that is stored raw is the same for all items: compare the whole chunk.
        raw = [n for n, each in zip(numbers, chunks, strict=True) if each.head.header.memcpyed]
        fetch(source, [ChunkRequest(n, None) for n in raw])


def _find_shared(one: State, other: State) -> npt.NDArray[np.bool_]:
    """Return for each chunk of a state whether another state has the same chunk at the same place, under any number."""
    offsets = one.frame.offsets
    places = other.frame.offsets
    if not places.size:
        return np.zeros(one.frame.nchunks, np.bool_)
    order = np.argsort(places, kind="stable")
    position = np.searchsorted(places[order], offsets)
    rows = order[position.clip(max=places.size - 1)]
    # A file name or place can be used again: only an equal record shows that it is the same chunk.
    same_record = other.records[rows] == one.records
    shared: npt.NDArray[np.bool_] = (places[rows] == offsets) & same_record
    return shared
