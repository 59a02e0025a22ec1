"""`restore`: lets a transaction go back to a snapshot of its group."""

from __future__ import annotations

from functools import partial

from b2array.array import snapshots
from b2array.array.drafts import AnyPlace, FreePlace, Kind
from b2array.commit import edits
from b2array.commit.copied_states import states_to_copy
from b2array.commit.draft import Draft
from b2array.commit.many import map_concurrently
from b2array.commit.prepare import copied
from b2array.format.header import FrameType
from b2array.frame.kept import find_intact_state
from b2array.frame.listing import MemberState
from b2array.frame.manifest import Row, is_embedded
from b2array.frame.snapshot import Snapshot
from b2array.group.changing import AnyTransaction
from b2array.group.fork import draft_of
from b2array.group.kept import Moment, moment
from b2array.group.local import copier_of
from b2array.group.local_transaction import LocalTransaction
from b2array.group.rows import RowTransaction
from b2array.group.snapshots_on_disk import is_pinned

__all__ = ["restore"]


def restore(changes: AnyTransaction, name: str) -> None:
    """Give all members, in a transaction, the states that they had at a snapshot, and delete later ones.

    KeyError: the group has no snapshot of this name.
    """
    if isinstance(changes, RowTransaction):
        then = moment(changes.view, name, changes.view.manifest)
        changes.snapshots.need(then.entry)
        _restore_rows(changes, then)
    else:
        then = moment(changes.view, name)
        changes.snapshots.need(then.entry)
        _restore_local(changes, then)


def _restore_local(changes: LocalTransaction, then: Moment) -> None:
    earlier = dict[str, Snapshot]()
    for member, path in then.members().items():
        if changes.members().get(member) != path or is_embedded(path) or then.is_retired(path):
            continue
        latest = changes.open(path, "r+").snapshot
        group = changes.change.identity.encode()
        state = find_intact_state(latest, then.states[member], group, repr(then.name), deep=True)
        if state is None:
            continue
        # A file without chunks has no room for the chunks of other snapshots. If all are the group's, they are retired.
        becomes_empty = not state.sparse and not state.frame.nchunks
        if not (becomes_empty and is_pinned(changes.view, path)):
            earlier[member] = state
    members = changes.view.without_mounts(changes.members())
    changes.remove({member: path for member, path in members.items() if member not in earlier})
    for member, path in then.members().items():
        if member in earlier:
            handle = changes.open(path, "r+")
            is_changed = handle.draft is None or handle.draft.changed
            if is_changed or handle.generation != earlier[member].generation:
                snapshots.go_back(handle, earlier[member])
        else:
            layout: Kind = "sparse" if then.states[member].sparse else "contiguous"
            source = then.open(path, "r")
            new = partial(copier_of(source, changes.storage_options), layout=layout)
            changes.create(member, path[len(member) :], new, overwrite=True)


def _restore_rows(changes: RowTransaction, then: Moment) -> None:
    changes.remove({name: path for name, path in changes.members().items() if name not in then.states})
    members, rows = changes.members(), changes.view.rows
    differing = {
        name: state
        for name, state in then.states.items()
        if members.get(name) != state.path or not _lists(rows.get(name), state)
    }
    revisions = map_concurrently(lambda state: then.state_of(state.path), differing.values())
    for (name, state), revision in zip(differing.items(), revisions, strict=True):
        _restore_member(changes, name, state, revision)


def _lists(row: Row | None, state: MemberState) -> bool:
    """Whether a row lists the state that a snapshot names."""
    return row is not None and (row.path, row.revision) == (state.path, state.generation.hex())


def _restore_member(changes: RowTransaction, name: str, state: MemberState, revision: Snapshot) -> None:
    """Give a member in an object store an earlier revision, or make it again from that."""
    path, ledger = changes.members().get(name), revision
    if path == state.path and not is_embedded(path):
        latest = changes.open(path, "r+").snapshot
        draft = draft_of(changes, path)
        is_same = latest.state.annotations.identity == revision.state.annotations.identity
        if is_same and draft.sparse and revision.sparse:
            edits.go_back(draft, revision.state)
            return
        ledger = latest if is_same else revision  # the member's own snapshots stay
    if path is not None:
        changes.remove({name: path})

    def new(url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:  # noqa: ARG001
        if not isinstance(url, FreePlace):
            raise TypeError(f"expected a free place for a member that is made again, found {url!r}")
        # In memory, no object can be below the name of another one.
        if revision.sparse and url.sparse is None:
            # Its chunks are still there, under numbers that no later member of the name has got.
            return Draft(url.store, None, revision.state, is_same=True, first=url.first)
        keeps = states_to_copy(ledger)
        return copied(revision, url.store, FrameType.CONTIGUOUS, is_same=True, kept=keeps)

    changes.create(name, state.path[len(name) :], new, overwrite=True)
