"""`restore`: restores a snapshot of a group, in a transaction."""

from __future__ import annotations

from functools import partial

from b2array.array import array_snapshots
from b2array.array.drafts import AnyPlace, FreePlace, Kind
from b2array.catalog.intact import find_intact_state, find_state
from b2array.catalog.ledgers import MemberState, lists
from b2array.catalog.manifest import is_embedded
from b2array.catalog.needs import pins_in
from b2array.commit import edits
from b2array.commit.copied_states import states_to_copy
from b2array.commit.draft import Draft
from b2array.commit.in_bucket import map_concurrently
from b2array.commit.prepare import copy_frame
from b2array.format.frame_header import FrameType
from b2array.frame.kept_states import ledger_in
from b2array.frame.revision import Revision
from b2array.group.group_forks import open_draft
from b2array.group.group_snapshot import Moment, moment
from b2array.group.listed_group import ListedGroup
from b2array.group.local_group import LocalGroup, copier_of
from b2array.group.transaction import Transaction

__all__ = ["restore"]


def restore(changes: Transaction, name: str) -> None:
    """Give all members the states that they had at a snapshot, and delete later members; the commit makes it visible.

    Raises KeyError if the group has no snapshot of this name. The commit is refused if another writer drops the
    snapshot.
    """
    view = changes.view
    if isinstance(view, ListedGroup):
        # The transaction knows all snapshots, and no revision is removed while the manifest names it.
        then = moment(view, name, view.manifest)
        changes.snapshots.note_needed(then.entry)
        _restore_rows(changes, view, then)
    else:
        then = moment(view, name)
        changes.snapshots.note_needed(then.entry)
        _restore_local(changes, view, then)


# On a local disk.


def _restore_local(changes: Transaction, view: LocalGroup, then: Moment) -> None:
    """Delete later members, restore members in their frames where possible, and make the others again."""
    earlier = _open_earlier(changes, view, then)
    members = view.own_members(changes.members())
    changes.remove({name: path for name, path in members.items() if name not in earlier})
    for name, path in then.members().items():
        state = earlier.get(name)
        if state is None:
            _make_again(changes, then, name, path)
            continue
        handle = changes.open(path, "r+")
        is_changed = handle.draft is None or handle.draft.changed
        if is_changed or handle.generation != state.generation:
            array_snapshots.go_back(handle, state)


def _open_earlier(changes: Transaction, view: LocalGroup, then: Moment) -> dict[str, Revision]:
    """Open the members that can be restored in their frames; return the states to restore, by name.

    Opening begins a draft of each, and counts as reading it. All other members must be made again.
    """
    earlier = {}
    group = changes.change.identity.encode()
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
        if not (becomes_empty and _is_pinned(view, path)):
            earlier[name] = state
    return earlier


def _is_pinned(view: LocalGroup, path: str) -> bool:
    """Return whether snapshots of the group need chunks of a member, and no snapshot of the member alone needs any.

    This reads the member and the indexes of its states.
    """
    latest = view.current(path)
    own = [entry for entry in ledger_in(latest).entries if not (entry.packed or entry.group)]
    if own:
        return False
    pins = pins_in(view.store, view.load_manifest(), path)
    states = [find_state(latest, pin.state, pin.group) for pin in pins]
    return any(state is not None and state.frame.nchunks for state in states)


def _make_again(
    changes: Transaction,
    then: Moment,
    name: str,
    path: str,
) -> None:
    """Make a member as a copy of its state at a snapshot, in its old layout."""
    layout: Kind = "sparse" if then.states[name].sparse else "contiguous"
    source = then.open(path, "r")
    new = partial(copier_of(source, changes.storage_options), layout=layout)
    changes.create(name, path[len(name) :], new, overwrite=True)


# In an object store.


def _restore_rows(changes: Transaction, view: ListedGroup, then: Moment) -> None:
    """Delete later members, and give each member that differs from the snapshot its earlier revision."""
    members = changes.members().items()
    changes.remove({name: path for name, path in members if name not in then.states})
    rows = view.rows
    differing = {}
    for name, state in then.states.items():
        is_same = changes.members().get(name) == state.path
        if not is_same or not lists(rows.get(name), state):
            differing[name] = state
    revisions = map_concurrently(lambda state: then.state_of(state.path), differing.values())
    for (name, state), revision in zip(differing.items(), revisions, strict=True):
        _restore_member(changes, name, state, revision)


def _restore_member(
    changes: Transaction,
    name: str,
    state: MemberState,
    revision: Revision,
) -> None:
    """Restore an earlier revision of a member, or replace the member by a new one with this revision.

    An existing member at the same path is opened for writing, and counts as read.
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
