"""The snapshots of a local group: their members' states stay in the members' frames, or move to retired frames.

`prepare_members`  prepares the members for a new snapshot
`restore`          restores a snapshot, in a transaction
`copy_snapshots`   copies the snapshots of another group, in a transaction

`b2array.group.snapshots_in_bucket` does the same in an object store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial

from b2array.array import array_snapshots
from b2array.array.drafts import Kind
from b2array.catalog.intact import find_intact_state, find_state
from b2array.catalog.ledgers import MemberState
from b2array.catalog.manifest import ARRAY, OTHER, is_embedded
from b2array.catalog.needs import needs_of_group
from b2array.catalog.owners import ALONE
from b2array.commit.bare_chunks import give_checksums, lacks_checksums
from b2array.commit.group_commit import GroupChange
from b2array.commit.handle import Handle
from b2array.commit.retired import retire
from b2array.errors import warn
from b2array.format.annotations import GroupCommit
from b2array.format.b2nd import is_typed_array
from b2array.frame.kept_states import ledger_in
from b2array.frame.revision import Revision
from b2array.group.group_forks import Changes
from b2array.group.group_snapshot import SnapshotHome, entry_for_state, find_snapshot
from b2array.group.homes import GroupHome
from b2array.group.new_members import copier_of

__all__ = ["copy_snapshots", "prepare_members", "restore"]


# Before a new snapshot.


def prepare_members(changes: Changes, change: GroupChange) -> None:
    """Note the members of a new snapshot in the change: their paths, and the states of unchanged ones.

    Embedded members get separate frames. Members without checksums, which other software wrote, are rewritten: without
    checksums, a reader cannot notice that other software has overwritten a chunk of the snapshot. Warns if separate
    groups inside this one have members, which the snapshot does not have.
    """
    _move_out_embedded(changes)
    snapshots = change.snapshots
    view = changes.view
    members = view.own_members(changes.members())
    for path in members.values():
        member, note = change.members.get(path), None
        if member is None:
            revision = view.load_current(path)
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
    """Rewrite a member's chunks without checksums, as a change in the transaction; add a note of the commit, if any."""
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


# Restoring.


def restore(changes: Changes, change: GroupChange, name: str) -> None:
    """Delete later members, restore members in their frames where possible, and make the others again.

    Raises KeyError if the group has no snapshot of this name. The commit is refused if another writer drops it first,
    or makes or deletes a member.
    """
    view = changes.view
    then = find_snapshot(view, name)
    change.snapshots.note_needed(then.entry)
    earlier = _open_earlier(changes, change, then)
    members = view.own_members(changes.members())
    changes.remove({each: path for each, path in members.items() if each not in earlier})
    for each, path in then.members().items():
        state = earlier.get(each)
        if state is None:
            _make_again(changes, then, each, path)
            continue
        handle = changes.open(path, "r+")
        is_changed = handle.draft is None or handle.draft.changed
        if is_changed or handle.generation != state.generation:
            array_snapshots.go_back(handle, state)


def _open_earlier(changes: Changes, change: GroupChange, then: SnapshotHome) -> dict[str, Revision]:
    """Open the members that can be restored in their frames; return the states to restore, by name.

    A member can be restored if its frame is still the same, and has all chunks of the state. Opening begins a draft of
    each, and counts as reading it. All other members must be made again.
    """
    earlier = {}
    group = change.identity.encode()
    for name, path in then.members().items():
        is_same = changes.members().get(name) == path
        if not is_same or is_embedded(path) or then.is_retired(path):
            continue
        latest = changes.open(path, "r+").revision
        state = find_intact_state(latest, then.states[name], group, repr(then.name), deep=True)
        if state is None:
            continue
        # A file without chunks has no room for the chunks of other snapshots. If only snapshots of the group need them,
        # the old file can be retired.
        becomes_empty = not state.sparse and not state.frame.nchunks
        if not (becomes_empty and _is_needed_by_group_alone(changes.view, path)):
            earlier[name] = state
    return earlier


def _is_needed_by_group_alone(view: GroupHome, path: str) -> bool:
    """Return whether snapshots of the group need chunks of a member, and no snapshot of the member alone needs any.

    This reads the member and the indexes of its states.
    """
    latest = view.load_current(path)
    own = [entry for entry in ledger_in(latest).entries if not (entry.packed or entry.group)]
    if own:
        return False
    needs = needs_of_group(view.store, view.load_manifest(), path)
    states = [find_state(latest, need.state, need.group) for need in needs]
    return any(state is not None and state.frame.nchunks for state in states)


def _make_again(
    changes: Changes,
    then: SnapshotHome,
    name: str,
    path: str,
) -> None:
    """Make a member again, as a copy of its state at a snapshot, in the layout that it had."""
    layout: Kind = "sparse" if then.states[name].sparse else "contiguous"
    source = then.open(path, "r")
    new = partial(copier_of(source, changes.storage_options), layout=layout)
    changes.create(name, path[len(name) :], new, overwrite=True)


# Copies.


def copy_snapshots(changes: Changes, change: GroupChange, snapshots: Sequence[SnapshotHome]) -> None:
    """Add these snapshots of another group, which replace snapshots of the same names.

    The transaction has copied the members of that group, each with its earlier states. States that no new member keeps,
    because their member was deleted or replaced, are written to retired frames.
    """
    copies = _states_of_new_members(change)
    missing = defaultdict[Hashable, list[Revision]](list)
    group = change.identity.encode()
    for then in snapshots:
        states = {}
        for name, state in then.states.items():
            key = name, state.generation
            if key not in copies:
                earlier = then.state_of(state.path)
                kept = replace(earlier, at=entry_for_state(then, state, group), owner=ALONE)
                # The states of one file share chunks, so put all of them into one retired frame.
                missing[earlier.url, earlier.version].append(kept)
            states[name] = copies.get(key) or MemberState(state.path, state.generation)
        change.snapshots.add_copy(then.entry, states)
    for of_one_file in missing.values():
        frame = retire(changes.store, of_one_file)
        change.snapshots.retired.append(frame)


def _states_of_new_members(
    change: GroupChange,
) -> dict[tuple[str, bytes], MemberState]:
    """Return the states that new members keep for snapshots of the group, by name and generation."""
    group = change.identity.encode()
    states = {}
    for path, member in change.members.items():
        draft = member.draft
        if not member.is_new:
            continue
        for keep in draft.delta.keeps:
            generation = keep.entry.generation
            if keep.entry.group == group:
                states[member.name, generation] = MemberState(path, generation, draft.sparse)
    return states
