"""Prepares the members of a group for a new snapshot, in the transaction that makes it."""

from __future__ import annotations

from b2array.catalog.manifest import ARRAY, OTHER, is_embedded
from b2array.commit.bare_chunks import give_checksums, lacks_checksums
from b2array.commit.group_commit import GroupChange
from b2array.commit.handle import Handle
from b2array.errors import warn
from b2array.format.annotations import GroupCommit
from b2array.format.b2nd import is_typed_array
from b2array.group.group_forks import Changes, open_draft
from b2array.group.listed_group import ListedGroup
from b2array.group.local_group import LocalGroup, copier_of

__all__ = ["prepare_members"]


def prepare_members(changes: Changes, change: GroupChange) -> None:
    """Prepare all members of a group for the new snapshots of a transaction; do nothing without new snapshots."""
    if not change.snapshots.new:
        return
    if isinstance(changes.view, ListedGroup):
        _revise_members(changes, change, changes.view)
    else:
        _read_members(changes, change, changes.view)


# On a local disk.


def _read_members(changes: Changes, change: GroupChange, view: LocalGroup) -> None:
    """Note the members of a new snapshot in the change: their paths, and the states of unchanged ones.

    Embedded members get separate frames. Members without checksums, which other software wrote, are rewritten: without
    checksums, a reader cannot notice that other software has overwritten a chunk of the snapshot. Warns if separate
    groups inside this one have members, which the snapshot does not have.
    """
    _move_out_embedded(changes)
    snapshots = change.snapshots
    members = view.own_members(changes.members())
    for path in members.values():
        member, note = change.members.get(path), None
        if member is None:
            revision = view.current(path)
            if not lacks_checksums(revision):
                # The commit only checks that the member still has this state.
                snapshots.bases[path] = revision
                continue
            note = change.next_note(path)
        _give_checksums(changes.open_unnoted(path, "r+"), note)
    snapshots.members = members
    mounted = changes.members().keys() - members.keys()
    for name in snapshots.new if mounted else ():
        warn(
            f"{changes.url}: the snapshot {name!r} does not have {min(mounted)!r} and other members of separate groups"
            " inside this one; make snapshots of those groups as well"
        )


def _give_checksums(handle: Handle, note: GroupCommit | None) -> None:
    """Rewrite the chunks without checksums as a change in the transaction, and add a note of the commit if passed."""
    for attempt in handle.attempts():
        with attempt as draft:
            if note is not None:
                draft.annotate(group_commit=note)
            give_checksums(draft)


def _move_out_embedded(changes: Changes) -> None:
    """Replace each embedded member by a new one with a separate frame, because the embedding frame keeps no states."""
    members = changes.members().items()
    inside = {name: path for name, path in members if is_embedded(path)}
    for name, path in inside.items():
        source = changes.view.open(path, "r")
        suffix = ARRAY if is_typed_array(source.frame.metalayers) else OTHER
        changes.remove({name: path})
        new = copier_of(source, changes.storage_options)
        changes.create(name, suffix, new, overwrite=True)


# In an object store.


def _revise_members(changes: Changes, change: GroupChange, view: ListedGroup) -> None:
    """Change the members without a revision, so that the snapshot can name one.

    This opens these members for writing, counts them as read, and adds a note of the commit to their drafts.
    """
    for name, row in view.rows.items():
        path = row.path
        if row.generation or name in change.removed or is_embedded(path):
            continue
        changes.open(path, "r+")
        draft = open_draft(changes, path)
        draft.annotate(group_commit=change.next_note(path))
