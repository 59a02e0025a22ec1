"""Counts the bytes of a group's members that only one snapshot needs, so that dropping the snapshot frees them.

These functions read the indexes of all states that snapshots name. A damaged frame counts as empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from b2array import threads
from b2array.array import array_snapshots
from b2array.array.array_snapshots import own_nbytes
from b2array.catalog import owners
from b2array.catalog.intact import find_state
from b2array.catalog.ledgers import MemberState, names_same_state, state_in
from b2array.catalog.manifest import Manifest, is_embedded, name_of, retired_path
from b2array.commit.handle import Handle
from b2array.errors import B2ArrayError
from b2array.format.ledger import Kept
from b2array.format.state import State as FrameState
from b2array.frame.kept_states import ledger_in, load_kept_states
from b2array.frame.revision import Revision
from b2array.group.group_snapshot import SnapshotHome, load_snapshot
from b2array.group.homes import GroupHome

__all__ = ["count_own_nbytes"]

_AT_ONCE = 16
A = TypeVar("A")
R = TypeVar("R")


def count_own_nbytes(group: GroupHome, manifest: Manifest, entries: Sequence[Kept]) -> dict[str, int]:
    """Count the bytes of members that only one snapshot needs, by the names of the snapshots.

    `manifest` is the manifest that the group shows, and `entries` are the entries of all snapshots in its ledger.
    """
    count = _count_in_frames if group.keeps_states_in_frames else _count_in_revisions
    return count(group, manifest, entries)


def _count_in_frames(group: GroupHome, manifest: Manifest, entries: Sequence[Kept]) -> dict[str, int]:
    """Count as `count_own_nbytes`, where frames of members and retired frames keep the states that snapshots name."""
    members = {*group.members().values()}
    snapshots = [load_snapshot(group, entry, manifest) for entry in entries]
    own_paths = sorted({state.path for state in _states_at(snapshots)})

    def count_in_member(path: str) -> dict[str, int]:
        """Count the bytes of a member's frame that only one snapshot needs, by the name of the snapshot."""
        return _count_in_member(group, manifest, snapshots, path, is_member=path in members)

    def count_in_retired(token: str) -> dict[str, int]:
        """Count the bytes of a retired frame that only one snapshot needs, by the name of the snapshot."""
        # A damaged frame must not hide the snapshots: it counts as empty.
        with suppress(OSError, B2ArrayError):
            source = owners.load(group.store_of(retired_path(token)))
            infos = array_snapshots.list_snapshots(Handle(source, "r"), alone=True)
            return {each.name: each.nbytes for each in infos}
        return {}

    counts = [
        *_call_each(count_in_member, own_paths),
        *_call_each(count_in_retired, [*manifest.retired]),
    ]
    own = dict.fromkeys((entry.name for entry in entries), 0)
    for count in counts:
        for name, nbytes in count.items():
            # A retired frame may also keep states of snapshots that were dropped since.
            if name in own:
                own[name] += nbytes
    return own


def _count_in_member(
    group: GroupHome,
    manifest: Manifest,
    snapshots: Sequence[SnapshotHome],
    path: str,
    *,
    is_member: bool,
) -> dict[str, int]:
    """Count the bytes of a member's frame that only one snapshot needs, by the name of the snapshot.

    This reads the member and its kept states. A damaged member counts as empty. With `is_member`, the present state
    counts as well: bytes that it needs are not free without the snapshot.
    """
    identity = manifest.identity.encode()
    users: dict[bytes, list[str]] = {}
    states: list[FrameState] = []
    # A damaged member must not hide the snapshots: it counts as empty.
    with suppress(OSError, B2ArrayError):
        source = group.state_of(path, manifest)
        for then in snapshots:
            for state in then.states.values():
                if state.path != path or then.is_retired(path):
                    continue
                names = users.setdefault(state.generation, [])
                names.append(then.name)
                if len(names) == 1:
                    earlier = find_state(source, state, identity)
                    states.append(source.state if earlier is None else earlier.state)
        # Dropping the group's snapshots does not free chunks of the present state or of the array's own snapshots.
        rest = [source.state] if is_member else []
        kept = load_kept_states(source, ledger_in(source).entries)
        rest += [each.state for each in kept if not _is_for_group(each, identity)]
        own = own_nbytes([*states, *rest])
        pairs = zip(users.values(), own, strict=False)
        return {names[0]: nbytes for names, nbytes in pairs if len(names) == 1}
    return {}


def _is_for_group(source: Revision, group: bytes) -> bool:
    """Return whether a frame keeps a state for snapshots of the group with this identity, not for its own snapshot."""
    return source.at is not None and source.at.group == group


def _count_in_revisions(group: GroupHome, manifest: Manifest, entries: Sequence[Kept]) -> dict[str, int]:
    """Count as `count_own_nbytes`, where snapshots name revisions of the members."""
    rows = manifest.rows or {}
    snapshots = [load_snapshot(group, entry, manifest) for entry in entries]
    wanted = _states_at(snapshots)
    # Include the present revisions: dropping a snapshot does not free the chunks that they need.
    for row in rows.values():
        if row.generation:
            wanted.add(state_in(row))

    def load(state: MemberState) -> tuple[MemberState, Revision | None]:
        """Load the state of a member; return how snapshots name it, and the state, or None if it is lost or damaged."""
        # A damaged member must not hide the snapshots: it counts as empty.
        with suppress(OSError, B2ArrayError):
            return state, group.state_at(manifest, "", state)
        return state, None

    loaded = _call_each(load, sorted(wanted))
    sources = {state: source for state, source in loaded if source is not None}
    own = dict.fromkeys((entry.name for entry in entries), 0)
    for path in {state.path for state in sources}:
        here = [state for state in sources if state.path == path]
        counts = own_nbytes([sources[state].state for state in here])
        for state, nbytes in zip(here, counts, strict=True):
            users = [then.name for then in snapshots if state in then.states.values()]
            if len(users) == 1 and not names_same_state(rows.get(name_of(path)), state):
                own[users[0]] += nbytes
    return own


def _states_at(snapshots: Sequence[SnapshotHome]) -> set[MemberState]:
    """Return the states of all members at some snapshots, without embedded members, whose frame keeps no states."""
    states: set[MemberState] = set()
    for then in snapshots:
        states.update(then.states.values())
    return {state for state in states if not is_embedded(state.path)}


def _call_each(function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
    """Call a function with each argument, in several threads, and yield the results in order.

    Each call waits for requests, so threads save time.
    """
    workers = max(1, min(len(arguments), _AT_ONCE))
    return threads.ahead(function, arguments, workers)
