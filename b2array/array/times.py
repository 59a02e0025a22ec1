"""Snapshots by time: which name a moment stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

from b2array.array.snapshots import SnapshotInfo

__all__ = ["At", "name_of"]

At = str | date | None
"""A snapshot's name, or a moment: the latest snapshot until then."""


def name_of(
    at: At,
    open_now: Callable[[], Any],
    around: Callable[[], Sequence[SnapshotInfo]] = tuple,
) -> str | None:
    """Return the name of the snapshot that `at` stands for.

    `open_now` opens what has the snapshots; `around` gives the snapshots of the group around it.

    A moment without a time zone is in UTC, and a date alone is its end. A text is a name, if a snapshot has that name;
    else it is a moment, if it has the form of one in ISO 8601. KeyError: there was no snapshot yet.
    """
    if at is None or (isinstance(at, str) and _parse_moment(at) is None):
        return at
    try:
        # It is not closed, because it may be the caller's open file.
        present = open_now()
    except FileNotFoundError:
        if isinstance(at, str):
            # A snapshot may have what is missing now.
            return at
        raise
    snapshots = sorted([*present.snapshots, *around()], key=lambda each: each.time)
    if isinstance(at, str) and any(each.name == at for each in snapshots):
        return at
    return _find_latest(snapshots, _parse_moment(at), present.url)


def _find_latest(snapshots: Sequence[SnapshotInfo], moment: datetime | None, url: str) -> str:
    earlier = [each for each in snapshots if moment is not None and each.time <= moment]
    if not earlier:
        oldest = min(snapshots, key=lambda each: each.time, default=None)
        others = "it has none" if oldest is None else f"the oldest is {oldest.name!r} of {oldest.time.isoformat()}"
        raise KeyError(f"{url} has no snapshot from before {moment}; {others}")
    # If several share a moment, the last one: max() returns the first of equal items.
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
            # It is a name.
            return None
    if value is None:
        return None
    if not isinstance(value, date):
        raise TypeError(f"at must be the name of a snapshot, a datetime or a date, not {type(at).__name__}")
    if not isinstance(value, datetime):
        value = datetime.combine(value, time.max)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value
