"""Snapshots by time: finds the snapshot for a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from typing import Any, TypeVar

from b2array.array.array_snapshots import SnapshotInfo

__all__ = ["At", "name_of", "open_found"]

T = TypeVar("T")

_TRIES = 10
"""The number of times that a snapshot is looked for again."""

At = str | date | None
"""The name of a snapshot, or a moment, which means the latest snapshot until then."""


def name_of(
    at: At,
    open_now: Callable[[], Any],
    around: Callable[[], Sequence[SnapshotInfo]] = tuple,
) -> str | None:
    """Return the name of the snapshot that `at` refers to.

    `open_now` opens the object with the snapshots; `around` returns the snapshots of the group around it.

    A moment without a time zone is in UTC, and a date alone means the end of the day. A text is a name if a snapshot
    has this name; otherwise it is a moment if it is in ISO 8601 format. KeyError says that there was no snapshot at
    that time.
    """
    if at is None or (isinstance(at, str) and _parse_moment(at) is None):
        return at
    try:
        # Do not close the object, because it may be the caller's open file.
        present = open_now()
    except FileNotFoundError:
        if isinstance(at, str):
            # A snapshot may contain objects that are missing now.
            return at
        raise
    snapshots = sorted([*present.snapshots, *around()], key=lambda each: each.time)
    if isinstance(at, str) and any(each.name == at for each in snapshots):
        return at
    return _find_latest(snapshots, _parse_moment(at), present.url)


def open_found(name: str, find: Callable[[], str | None], open_named: Callable[[str], T]) -> T:
    """Open the snapshot of this name, which `find` has found by its time, and return what `open_named` opens.

    The caller never gave the name. So if another writer has dropped the snapshot meanwhile, and perhaps made another
    one with the same name, look again for the latest one at that time.
    """
    for _ in range(_TRIES):
        try:
            return open_named(name)
        except KeyError:
            found = find()
            if found is None:
                raise
            name = found
    # The snapshot is there each time, so something else is missing, or writers are very busy.
    return open_named(name)


def _find_latest(snapshots: Sequence[SnapshotInfo], moment: datetime | None, url: str) -> str:
    earlier = [each for each in snapshots if moment is not None and each.time <= moment]
    if not earlier:
        oldest = min(snapshots, key=lambda each: each.time, default=None)
        others = "it has none" if oldest is None else f"the oldest is {oldest.name!r} of {oldest.time.isoformat()}"
        raise KeyError(f"{url} has no snapshot from before {moment}; {others}")
    # Of several snapshots at the same moment, choose the last: max() returns the first of equal items.
    latest = max(reversed(earlier), key=lambda each: each.time)
    return latest.name


def _parse_moment(at: Any) -> datetime | None:
    """Return a moment in UTC; None for text that is not a date."""
    value = at
    if isinstance(at, str):
        is_date = len(at) <= len("2026-11-26")
        try:
            value = date.fromisoformat(at) if is_date else datetime.fromisoformat(at)
        except ValueError:
            # The text is a name.
            return None
    if value is None:
        return None
    if not isinstance(value, date):
        raise TypeError(f"at must be the name of a snapshot, a datetime or a date, not {type(at).__name__}")
    if not isinstance(value, datetime):
        value = datetime.combine(value, time.max)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value
