"""`copy_snapshots`: copies the snapshots of another group into a transaction that copies its members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from b2array.commit.draft import Draft
from b2array.commit.handle import Handle
from b2array.commit.many import write_revision
from b2array.format.state import State as FrameState
from b2array.frame.listing import MemberState
from b2array.frame.snapshot import Snapshot
from b2array.group.changing import AnyTransaction
from b2array.group.kept import Moment, entry_of, retire
from b2array.group.local import copier_of
from b2array.group.local_transaction import LocalTransaction
from b2array.group.rows import RowTransaction, free_place
from b2array.group.transaction import next_note

__all__ = ["copy_snapshots"]


def copy_snapshots(changes: AnyTransaction, moments: Sequence[Moment]) -> None:
    """Let the commit keep snapshots of another group. They replace snapshots of the same names.

    The members of that group are copied already, with their earlier states. States of members that it has deleted or
    replaced since are copied now, without being listed.
    """
    changes.view.require_ledger()
    if isinstance(changes, RowTransaction):
        _copy_revisions(changes, moments)
    else:
        _copy_states(changes, moments)


def _copy_states(changes: LocalTransaction, moments: Sequence[Moment]) -> None:
    copies = _states_of_new(changes)
    missing = defaultdict[Hashable, list[Snapshot]](list)
    group = changes.change.identity.encode()
    for then in moments:
        states = {}
        for member, state in then.states.items():
            key = member, state.generation
            if key not in copies:
                earlier = then.state_of(state.path)
                # One retired frame gets all states from the same file, so that they share chunks.
                missing[earlier.url, earlier.version].append(
                    replace(earlier, at=entry_of(then, state, group), member=None)
                )
            states[member] = copies.get(key) or MemberState(state.path, state.generation)
        changes.snapshots.copy(then.entry, states)
    for of_one_file in missing.values():
        changes.on_disk.copied.append(retire(changes.view, of_one_file))


def _states_of_new(changes: LocalTransaction) -> dict[tuple[str, bytes], MemberState]:
    """Return the states that new members keep for the group, by member and generation."""
    group, states = changes.change.identity.encode(), {}
    for path, name in changes.change.names.items():
        draft = changes.change.members[path].draft
        if draft is None:
            continue
        for keep in draft.delta.keeps:
            if keep.entry.group == group:
                generation = keep.entry.generation
                states[name, generation] = MemberState(path, generation, draft.sparse)
    return states


def _copy_revisions(changes: RowTransaction, moments: Sequence[Moment]) -> None:
    copies = dict[tuple[str, bytes], MemberState]()
    new = {member.name: path for path, member in changes.change.members.items() if member.is_new}
    for path, member in changes.change.members.items():
        for keep in member.earlier:
            key = path, keep.entry.generation
            if keep.state is not None and key not in copies:
                copies[key] = _write_state(changes, member.draft, path, keep.state)
    for then in moments:
        states = {}
        for name, state in then.states.items():
            path = new.get(name, state.path)
            key = path, state.generation
            if key not in copies:
                copies[key] = _copy_unlisted(changes, path, then.state_of(state.path))
            states[name] = copies[key]
        changes.snapshots.copy(then.entry, states)


def _copy_unlisted(changes: RowTransaction, path: str, source: Snapshot) -> MemberState:
    """Copy a state of a member that the group does not list."""
    new = copier_of(Handle(source, "r"), changes.storage_options, snapshots=False)
    draft = new(free_place(changes, path), overwrite=False)
    state = _write_state(changes, draft, path, draft.state)
    # A later member at this path must not give its chunks these numbers.
    unlisted = changes.change.unlisted
    unlisted[path] = max(unlisted.get(path, 0), draft.staging.next)
    draft.staging.close()
    return state


def _write_state(changes: RowTransaction, draft: Draft, path: str, state: FrameState) -> MemberState:
    """Write the revision of a state whose chunks a draft has copied."""
    row = write_revision(changes.view.catalog, draft, path, state, next_note(changes, path))
    return MemberState(path, bytes.fromhex(row.revision), row.sparse)
