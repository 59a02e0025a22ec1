"""`copy_snapshots`: copies the snapshots of a group into a transaction that copies the group's members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from b2array.catalog.ledgers import MemberState, state_in
from b2array.catalog.owners import ALONE
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle
from b2array.commit.in_bucket import write_earlier_revision
from b2array.commit.retired import retire
from b2array.format.state import State as FrameState
from b2array.frame.revision import Revision
from b2array.group.group_snapshot import Moment, entry_of
from b2array.group.listed_group import ListedGroup
from b2array.group.local_group import LocalGroup, copier_of
from b2array.group.transaction import Transaction

__all__ = ["copy_snapshots"]


def copy_snapshots(changes: Transaction, moments: Sequence[Moment]) -> None:
    """Add the snapshots of another group, which replace snapshots of the same names.

    The transaction has already copied the members of that group, each with its earlier states. This copies the states
    of deleted and replaced members, which belong to no member of the copy, and writes them to the store. Raises
    UnsupportedError if the group cannot have snapshots.
    """
    changes.view.require_ledger()
    view = changes.view
    if isinstance(view, ListedGroup):
        _copy_to_rows(changes, view, moments)
    else:
        _copy_to_disk(changes, view, moments)


# On a local disk.


def _copy_to_disk(changes: Transaction, view: LocalGroup, moments: Sequence[Moment]) -> None:
    """Add the snapshots to a local transaction; write the states that no new member keeps to retired frames."""
    copies = _states_of_new(changes)
    missing = defaultdict[Hashable, list[Revision]](list)
    group = changes.change.identity.encode()
    for then in moments:
        states = {}
        for name, state in then.states.items():
            key = name, state.generation
            if key not in copies:
                earlier = then.state_of(state.path)
                kept = replace(earlier, at=entry_of(then, state, group), owner=ALONE)
                # The states of one file share chunks, so put all of them into one retired frame.
                missing[earlier.url, earlier.version].append(kept)
            states[name] = copies.get(key) or MemberState(state.path, state.generation)
        changes.snapshots.add_copy(then.entry, states)
    for of_one_file in missing.values():
        frame = retire(view.store, of_one_file)
        changes.snapshots.retired.append(frame)


def _states_of_new(
    changes: Transaction,
) -> dict[tuple[str, bytes], MemberState]:
    """Return the states that new members keep for snapshots of the group, by name and generation."""
    group = changes.change.identity.encode()
    states = {}
    for path, member in changes.change.members.items():
        draft = member.draft
        if not member.is_new:
            continue
        for keep in draft.delta.keeps:
            generation = keep.entry.generation
            if keep.entry.group == group:
                states[member.name, generation] = MemberState(path, generation, draft.sparse)
    return states


# In an object store.


def _copy_to_rows(changes: Transaction, view: ListedGroup, moments: Sequence[Moment]) -> None:
    """Add the snapshots to a transaction in an object store; write a revision of each state that they name."""
    copies = _write_earlier(changes, view)
    members = changes.change.members
    paths = {member.name: path for path, member in members.items() if member.is_new}
    for then in moments:
        states = {}
        for name, state in then.states.items():
            path = paths.get(name, state.path)
            key = path, state.generation
            if key not in copies:
                copies[key] = _copy_unlisted(changes, view, path, then.state_of(state.path))
            states[name] = copies[key]
        changes.snapshots.add_copy(then.entry, states)


def _write_earlier(
    changes: Transaction,
    view: ListedGroup,
) -> dict[tuple[str, bytes], MemberState]:
    """Write revisions of the earlier states of new members; return them by path and generation in the other group."""
    copies = dict[tuple[str, bytes], MemberState]()
    for path, member in changes.change.members.items():
        for keep in member.earlier:
            key = path, keep.entry.generation
            if keep.state is not None and key not in copies:
                copies[key] = _write_state(changes, view, member.draft, path, keep.state)
    return copies


def _copy_unlisted(changes: Transaction, view: ListedGroup, path: str, source: Revision) -> MemberState:
    """Copy a state with its chunks, as a revision that no row of the manifest lists.

    This notes in the change which numbers of chunks are in use at the path.
    """
    new = copier_of(Handle(source, "r"), changes.storage_options, snapshots=False)
    draft = new(view.free_place(changes.change, path), overwrite=False)
    state = _write_state(changes, view, draft, path, draft.state)
    # A later member at this path must not use these numbers for its chunks.
    unlisted = changes.change.unlisted
    unlisted[path] = max(unlisted.get(path, 0), draft.staging.next)
    draft.staging.close()
    return state


def _write_state(
    changes: Transaction,
    view: ListedGroup,
    draft: Draft,
    path: str,
    state: FrameState,
) -> MemberState:
    """Write the revision of a state whose chunks are in the draft of a copy, and return how a snapshot names it."""
    note = changes.change.next_note(path)
    row = write_earlier_revision(view.store, draft, path, state, note)
    return state_in(row)
