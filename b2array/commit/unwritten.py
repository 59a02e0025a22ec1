"""Chunks of text that nobody has written: a commit stores them with the fill value.

The index cannot say that a chunk of text was never written: other software finds the text in the chunk.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np

from b2array import threads
from b2array.commit.draft import Draft
from b2array.commit.text_chunk import encode_blank
from b2array.format.strings import chunk_extents, unpack_item
from b2array.frame.source import Location, Staged

__all__ = ["stage_all_chunks", "store_unwritten"]


def stage_all_chunks(draft: Draft) -> None:
    """Encode and stage the chunks that the commit needs but nobody has staged: open chunks, and unwritten text.

    The draft's index then refers to them.
    """
    draft.flush()
    if draft.state.layout is not None and draft.state.layout.is_text:
        store_unwritten(draft)


def store_unwritten(draft: Draft) -> None:
    """Stage chunks of the fill value for the chunks of text that nobody has written, and make the index refer to them.

    Forks leave this to the transaction.
    """
    layout = draft.state.require_layout()
    if draft.point is not None:
        return
    negative = np.flatnonzero(draft.frame.offsets < 0).tolist()
    # New chunks have negative codes as well, but they have a location.
    numbers = [n for n in negative if not isinstance(draft.locate(n), Location)]
    fill = unpack_item(draft.state.annotations.fill or b"", layout.dtype)
    encoded: dict[tuple[int, ...], bytes] = {}

    def store(n: int) -> tuple[int, Staged]:
        """Stage an unwritten chunk, and return it with its number; chunks of the same extents are the same."""
        extents = chunk_extents(layout, n)
        if extents not in encoded:
            encoded[extents] = encode_blank(layout, draft.state.cparams, n, fill)
        return n, draft.stage_chunk(n, encoded[extents])

    with closing(threads.spread(store, numbers)) as stored:
        for n, staged in stored:
            draft.set_chunk(n, staged)
