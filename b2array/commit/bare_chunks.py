"""Chunks without checksums: finds them, and writes them again with checksums."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from b2array.commit.draft import Draft
from b2array.commit.unwritten import stage_all_chunks
from b2array.format.state import State
from b2array.frame.fetch import read_chunks
from b2array.frame.revision import Revision

__all__ = ["give_checksums", "lacks_checksums"]


def lacks_checksums(revision: Revision) -> bool:
    """Return whether other software wrote the frame, or some of its chunks have no checksums."""
    return not revision.frame.is_ours or bool(_find_bare_chunks(revision.state).size)


def give_checksums(draft: Draft) -> None:
    """Stage stored chunks without checksums again, with checksums, after encoding the open chunks of a draft.

    Without checksums, nobody would notice that other software overwrites such chunks.
    """
    stage_all_chunks(draft)
    bare = _find_bare_chunks(draft.state).tolist()
    source = draft.reader()
    for n, stored in zip(bare, read_chunks(source, bare), strict=True):
        draft.set_chunk(n, draft.stage_chunk(n, bytes(stored.region)))


def _find_bare_chunks(state: State) -> npt.NDArray[np.intp]:
    """Return the numbers of stored chunks without checksums. Special chunks need no checksums."""
    is_stored = state.frame.offsets >= 0
    return np.flatnonzero(is_stored & (state.records == 0))
