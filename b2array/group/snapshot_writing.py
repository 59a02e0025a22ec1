"""Makes, restores and copies snapshots of a group, as a part of a transaction.

On a local disk, the frames of members keep the states that snapshots name (`snapshots_on_disk`). In every other kind of
storage, snapshots name revisions, as the rows of the manifest do (`snapshots_in_bucket`).
"""

from __future__ import annotations

from collections.abc import Sequence

from b2array.commit.group_commit import GroupChange
from b2array.group import snapshots_in_bucket, snapshots_on_disk
from b2array.group.group_forks import Changes
from b2array.group.group_snapshot import SnapshotHome

__all__ = ["copy_snapshots", "prepare_members", "restore"]


def prepare_members(changes: Changes, change: GroupChange) -> None:
    """Prepare all members of the group for new snapshots, just before the commit; do nothing without new snapshots.

    Members without checksums, or without a revision that a snapshot could name, are changed.
    """
    if not change.snapshots.new:
        return
    if changes.view.is_local:
        snapshots_on_disk.prepare_members(changes, change)
    else:
        snapshots_in_bucket.prepare_members(changes, change)


def restore(changes: Changes, change: GroupChange, name: str) -> None:
    """Give all members the states that they had at a snapshot, and delete later members.

    Raises KeyError if the group has no snapshot of this name. The commit is refused if another writer drops the
    snapshot.
    """
    if changes.view.is_local:
        snapshots_on_disk.restore(changes, change, name)
    else:
        snapshots_in_bucket.restore(changes, change, name)


def copy_snapshots(changes: Changes, change: GroupChange, snapshots: Sequence[SnapshotHome]) -> None:
    """Add these snapshots of another group, which replace snapshots of the same names.

    The transaction has already copied the members of that group, each with its earlier states. This copies the states
    of deleted and replaced members, which belong to no member of the copy, and writes them to the store. Raises
    UnsupportedError if the group cannot have snapshots.
    """
    changes.view.require_ledger()
    if changes.view.is_local:
        snapshots_on_disk.copy_snapshots(changes, change, snapshots)
    else:
        snapshots_in_bucket.copy_snapshots(changes, change, snapshots)
