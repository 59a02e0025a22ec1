"""Summaries of members in a group's manifest. Readers open a member from its summary, and read the member on demand.

A summary describes one state of a member, and has its fingerprint. A reader checks that the member is still in this
state: on a local disk against the member, because a write by the member's own URL does not change the manifest; in an
object store against the revision that the manifest lists.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from b2array.catalog.owners import ALONE
from b2array.commit.cursor import Promised
from b2array.commit.handle import Handle
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.format import summary
from b2array.format.state import State
from b2array.format.summary import Summary
from b2array.frame.revision import Revision, head_if_unchanged, load_from_header
from b2array.store.base import Store

__all__ = ["promise", "promise_revision"]

_outdated: set[tuple[str, bytes]] = set()
"""The URL and fingerprint of each summary that proved to be out of date; it is not used again."""


def promise(store: Store, record: Any) -> Handle | None:
    """Return a handle to a local member from the `record` of its summary; None if the member must be read at once.

    This reads the head of the member, to check that the summary is up to date. The handle reads the rest on demand.
    """
    described = _try_unpack(record)
    if described is None:
        return None
    # On a local disk, checking the member costs little, and an open file keeps this state readable.
    frame = described.state.frame
    head = head_if_unchanged(store, frame, described.header)
    if head is None:
        return None
    data = head.data
    if len(data) < frame.frame_len:
        data = memoryview(described.header)

    def read() -> Revision:
        """Load the member from the header that was checked."""
        return load_from_header(store, ALONE, data, head.version, head.unique)

    return Handle(Promised(store, described, read), "r")


def promise_revision(
    store: Store,
    record: Any,
    revision: str,
    read: Callable[[], Revision],
) -> Handle | None:
    """Return a handle to a member from the `record` of its summary, if that describes this revision; otherwise None.

    `revision` is the generation that the member's row names, and may be empty. The handle calls `read` to read the
    member. A row without a revision does not tell whether the summary is out of date: then the handle compares the
    member with the summary when it reads the member.
    """
    described = _try_unpack(record)
    if described is None or (store.url, described.fingerprint) in _outdated:
        return None

    def read_and_compare() -> Revision:
        """Read the member; raise ConflictError if it differs from its summary."""
        source = read()
        _require_described(source, described)
        return source

    if not revision:
        return Handle(Promised(store, described, read_and_compare), "r")
    if described.fingerprint.hex() != revision:
        return None
    return Handle(Promised(store, described, read), "r")


def _require_described(source: Revision, described: Summary) -> None:
    """Raise ConflictError if a member differs from its summary in anything but items.

    Such a summary is not used again in this process.
    """
    if source.frame.fingerprint == described.fingerprint:
        return
    if _description(source.state) != _description(described.state):
        _outdated.add((source.url, described.fingerprint))
        raise ConflictError(
            f"{source.url} was changed by its own URL, and differs from its summary in the manifest of its group; open "
            "the group again, and call Group.consolidate() to update the manifest"
        )


def _description(state: State) -> tuple[Any, ...]:
    """Return the properties that a handle may have shown from a summary: all of them but the items."""
    annotations = state.annotations
    return (
        state.layout,
        state.cparams,
        annotations.fill,
        annotations.dims,
        state.attrs(),
    )


def _try_unpack(record: Any) -> Summary | None:
    """Return the summary in a record of the manifest; None if this version cannot read it."""
    # If a later version wrote the summary, or it is damaged, readers read the member itself.
    with suppress(FormatError, UnsupportedError):
        return summary.unpack(record)
    return None
