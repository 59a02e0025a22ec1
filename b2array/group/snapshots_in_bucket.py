"""The snapshots of a group in an object store: they name revisions of the members, which never move.

`prepare_members`  prepares the members for a new snapshot
`restore`          restores a snapshot, in a transaction
`copy_snapshots`   copies the snapshots of another group, in a transaction

`b2array.group.snapshots_on_disk` does the same on a local disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from b2array.array.drafts import AnyPlace, FreePlace, Kind
from b2array.catalog.ledgers import MemberState, names_same_state, state_in
from b2array.catalog.manifest import is_embedded
from b2array.commit import edits
from b2array.commit.copied_states import states_to_copy
from b2array.commit.draft import Draft
from b2array.commit.group_commit import GroupChange
from b2array.commit.handle import Handle
from b2array.commit.in_bucket import first_free_number, map_concurrently, write_earlier_revision
from b2array.commit.prepare import copy_frame
from b2array.format.frame_header import FrameType
from b2array.format.state import State as FrameState
from b2array.frame.revision import Revision
from b2array.group.group_forks import Changes, open_draft
from b2array.group.group_snapshot import SnapshotHome, find_snapshot
from b2array.group.new_members import copier_of

__all__ = ["copy_snapshots", "prepare_members", "restore"]


# Before a new snapshot.


def prepare_members(changes: Changes, change: GroupChange) -> None:
    """Change the members without a revision, so that the commit writes one, which the snapshot can name.

    This opens these members for writing, and writes a note of the commit into their drafts. They count as read.
    """
    for name, row in (changes.view.manifest.rows or {}).items():
        path = row.path
        if row.generation or name in change.removed or is_embedded(path):
            continue
        changes.open(path, "r+")
        draft = open_draft(changes, path)
        draft.annotate(group_commit=change.next_note(path))


# Restoring.


def restore(changes: Changes, change: GroupChange, name: str) -> None:
    """Delete later members, and give each member that differs from the snapshot its earlier revision.

    The other members count as read. The commit is refused if another writer changes one of them first, makes or deletes
    a member, or drops the snapshot. Raises KeyError if the group has no snapshot of this name.
    """
    # The transaction knows all snapshots, and no revision is removed while the manifest names it.
    manifest = changes.view.manifest
    then = find_snapshot(changes.view, name, manifest)
    change.snapshots.note_needed(then.entry)
    members = changes.members().items()
    changes.remove({each: path for each, path in members if each not in then.states})
    rows = manifest.rows or {}
    differing = {}
    for each, state in then.states.items():
        is_same = changes.members().get(each) == state.path and names_same_state(rows.get(each), state)
        # The row does not know what this transaction has changed.
        member = change.members.get(state.path)
        if is_same and (member is None or not member.draft.changed):
            changes.note_read(state.path)
        else:
            differing[each] = state
    revisions = map_concurrently(lambda state: then.state_of(state.path), differing.values())
    for (each, state), revision in zip(differing.items(), revisions, strict=True):
        _restore_member(changes, each, state, revision)


def _restore_member(
    changes: Changes,
    name: str,
    state: MemberState,
    revision: Revision,
) -> None:
    """Restore an earlier revision of a member, or replace the member by a new one with this revision.

    `state` is how the snapshot names the revision. An existing member at the same path is opened for writing, and
    counts as read.
    """
    path, ledger = changes.members().get(name), revision
    if path == state.path and not is_embedded(path):
        latest = changes.open(path, "r+").revision
        draft = open_draft(changes, path)
        is_same = latest.state.annotations.identity == revision.state.annotations.identity
        if is_same and draft.sparse and revision.sparse:
            edits.restore_state(draft, revision.state)
            return
        if is_same:
            ledger = latest  # the member's own snapshots stay
    if path is not None:
        changes.remove({name: path})
    new = partial(_draft_revision, revision, ledger)
    changes.create(name, state.path[len(name) :], new, overwrite=True)


def _draft_revision(
    revision: Revision,
    ledger: Revision,
    url: AnyPlace,
    *,
    overwrite: bool,  # noqa: ARG001 - the place is free
    layout: Kind = "auto",  # noqa: ARG001 - the revision has one
) -> Draft:
    """Return the draft of a new member that starts from an earlier revision, with the snapshots of `ledger`.

    A sparse member refers to the chunks that are still at its path; otherwise, the chunks are copied. Raises TypeError
    unless the place is a `FreePlace`.
    """
    if not isinstance(url, FreePlace):
        raise TypeError(f"expected a place that is known to be free, found {url!r}")
    # In memory, no object can be below the name of another one.
    if revision.sparse and url.sparse is None:
        # Its chunks are still there, because no later member at this path was given their numbers.
        return Draft(url.store, None, revision.state, is_same=True, first=url.first)
    keeps = states_to_copy(ledger)
    return copy_frame(revision, url.store, FrameType.CONTIGUOUS, is_same=True, kept=keeps)


# Copies.


def copy_snapshots(changes: Changes, change: GroupChange, snapshots: Sequence[SnapshotHome]) -> None:
    """Add these snapshots of another group, which replace snapshots of the same names.

    The transaction has copied the members of that group, each with its earlier states. This writes a revision of each
    state that a snapshot names.
    """
    copies = _write_earlier(changes, change)
    members = change.members
    paths = {member.name: path for path, member in members.items() if member.is_new}
    for then in snapshots:
        states = {}
        for name, state in then.states.items():
            path = paths.get(name, state.path)
            key = path, state.generation
            if key not in copies:
                copies[key] = _copy_unlisted(changes, change, path, then.state_of(state.path))
            states[name] = copies[key]
        change.snapshots.add_copy(then.entry, states)


def _write_earlier(
    changes: Changes,
    change: GroupChange,
) -> dict[tuple[str, bytes], MemberState]:
    """Write revisions of the earlier states of new members; return them by path and generation in the other group."""
    copies = dict[tuple[str, bytes], MemberState]()
    for path, member in change.members.items():
        for keep in member.earlier:
            key = path, keep.entry.generation
            if keep.state is not None and key not in copies:
                copies[key] = _write_state(changes, change, member.draft, path, keep.state)
    return copies


def _copy_unlisted(changes: Changes, change: GroupChange, path: str, source: Revision) -> MemberState:
    """Copy a state with its chunks, as a revision that no row of the manifest lists; return how a snapshot names it.

    This adds to `change.unlisted` the first number at the path that no chunk has.
    """
    new = copier_of(Handle(source, "r"), changes.storage_options, snapshots=False)
    view = changes.view
    place = FreePlace(view.store_of(path), first_free_number(view.manifest, path))
    draft = new(place, overwrite=False)
    state = _write_state(changes, change, draft, path, draft.state)
    # A later member at this path must not use these numbers for its chunks.
    unlisted = change.unlisted
    unlisted[path] = max(unlisted.get(path, 0), draft.staging.next)
    draft.staging.close()
    return state


def _write_state(
    changes: Changes,
    change: GroupChange,
    draft: Draft,
    path: str,
    state: FrameState,
) -> MemberState:
    """Write the revision of a state whose chunks a draft of a copy has written; return how a snapshot names it."""
    note = change.next_note(path)
    row = write_earlier_revision(changes.store, draft, path, state, note)
    return state_in(row)
