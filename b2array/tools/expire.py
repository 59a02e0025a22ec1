"""`expire` drops old snapshots."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from b2array.catalog.ledgers import group_ledger
from b2array.exchange.formats import Storage
from b2array.format.ledger import Kept
from b2array.frame.kept_states import ledger_in
from b2array.group import addressing
from b2array.group.group import Group
from b2array.group.homes import GroupHome
from b2array.group.transaction import Transaction
from b2array.store.open import address_of
from b2array.tools.vacuum import in_seconds

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["expire"]


def expire(
    url: str | os.PathLike[str],
    *,
    older_than: str | float | timedelta | datetime | None = None,
    keep_last: int | None = None,
    dry_run: bool = False,
    storage_options: Storage = None,
    fs: AbstractFileSystem | None = None,
) -> tuple[str, ...]:
    """Drop old snapshots of an array, a super-chunk or a group, in one commit. `vacuum` or `repack` free the space.

    A snapshot of a group is dropped for all members. To drop a member's own snapshots, pass the member's URL.

    Parameters
    ----------
    url : str or os.PathLike
        An array, a super-chunk or a group.
    older_than : str, float, datetime.timedelta or datetime.datetime, optional
        Drop snapshots of at least this age, in seconds or as text with a unit ("s", "min", "h", "d"), or snapshots
        from before a date and time, which is local if it has no time zone. The clock of the computer that took a
        snapshot counts.
    keep_last : int, optional
        Number of the newest snapshots to keep, regardless of age.
    dry_run : bool, default False
        Only say which snapshots would be dropped.
    storage_options : mapping, optional
        For fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Returns
    -------
    tuple of str
        The names of the dropped snapshots, the oldest first.

    Raises
    ------
    TypeError
        Neither `older_than` nor `keep_last` is given.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros(3, url="memory://expired.b2nd")
    >>> for night in range(4):
    ...     a[0] = night
    ...     a.snapshot(f"night {night}")
    >>> b2array.expire("memory://expired.b2nd", keep_last=2)
    ('night 0', 'night 1')
    >>> [each.name for each in b2array.open("memory://expired.b2nd").snapshots]
    ['night 2', 'night 3']
    """
    if older_than is None and keep_last is None:
        raise TypeError("expire() needs older_than=, keep_last= or both: otherwise no snapshot is old")
    if keep_last is not None and (type(keep_last) is not int or keep_last < 0):
        raise ValueError(f"keep_last must be an integer of at least 0, not {keep_last!r}")
    url, storage_options = address_of(url, storage_options, fs)
    opened = addressing.open(url, "r" if dry_run else "r+", storage_options=storage_options)
    limit = _limit(older_than)
    keep = keep_last or 0
    names = _names_of_old(opened, limit, keep)
    if names and not dry_run:
        with opened.transaction() as changes:
            # Another writer may have replaced a snapshot in the meantime.
            names = _names_of_old(changes, limit, keep)
            for name in names:
                changes.drop_snapshot(name)
    return names


def _names_of_old(opened: Any, limit: float, keep_last: int) -> tuple[str, ...]:
    entries = _entries(opened)
    return tuple(entry.name for entry in _old(entries, limit, keep_last))


def _entries(opened: Any) -> Sequence[Kept]:
    """Return the snapshots of a group, or a frame's own snapshots, oldest first."""
    if not isinstance(opened, Group):
        entries = ledger_in(opened._handle.revision).entries
        return [entry for entry in entries if not entry.group]
    home = opened._home
    if isinstance(home, Transaction):
        return home.snapshots.ledger.entries
    if not isinstance(home, GroupHome):  # .b2z and .b2e files have no snapshots
        return ()
    return group_ledger(opened.url, home.load_manifest()).entries


def _limit(older_than: str | float | timedelta | datetime | None) -> float:
    """Return the time, in seconds since 1970, after which snapshots are kept."""
    if older_than is None:
        return inf
    if isinstance(older_than, datetime):
        return older_than.timestamp()
    if isinstance(older_than, timedelta):
        older_than = older_than.total_seconds()
    return time.time() - in_seconds(older_than)


def _old(entries: Sequence[Kept], limit: float, keep_last: int) -> Sequence[Kept]:
    nold = max(0, len(entries) - keep_last)
    return [entry for entry in entries[:nold] if entry.time <= limit]
