"""States of a frame that snapshots of local groups need, and the locks that a writer takes before it destroys any.

A snapshot of a local group names states of its members, and does not write to the members. So before a writer replaces
a file or deletes chunks, it reads the manifests of the groups around the frame: `pins_of`. Meanwhile it holds the locks
of these manifests, as a writer that makes a snapshot does. `manifests_lock` waits for the locks. `try_manifests_lock`
takes them only if they are free, because its caller already holds the lock of the member.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.commit.locks import groups_above
from b2array.errors import ConflictError, UnsupportedError
from b2array.format import index
from b2array.format.kept import Kept, name_for_group
from b2array.frame.catalog import read_manifest
from b2array.frame.kept import find_state
from b2array.frame.listing import MemberState, group_ledger, load_members
from b2array.frame.manifest import MANIFEST, Manifest
from b2array.frame.snapshot import Snapshot, ledger_in
from b2array.store.base import Store
from b2array.store.local import LocalStore
from b2array.store.locks import holds_locks

__all__ = [
    "Pin",
    "identities_of",
    "manifests_lock",
    "pinned_places",
    "pinned_states",
    "pins_in",
    "pins_of",
    "try_manifests_lock",
    "unneeded_names",
]


class Pin(NamedTuple):
    """A state of a member that snapshots of a group name, the oldest of these first."""

    group: bytes
    state: MemberState
    entries: tuple[Kept, ...]

    @property
    def title(self) -> str:
        """The names of the snapshots, for messages."""
        return ", ".join(repr(entry.name) for entry in self.entries)


def pins_of(store: Store) -> list[Pin]:
    """Return the states of a frame that snapshots of the local groups around it need.

    FormatError or UnsupportedError: the list of a snapshot cannot be read.
    """
    pins = []
    for group, path in _groups(store):
        around = LocalStore(group)
        manifest, _ = read_manifest(around, versioned=False)
        pins += pins_in(around, manifest, path)
    return pins


def _groups(store: Store) -> list[tuple[str, str]]:
    """Return the local groups around a frame, the innermost first, with the paths that it has in them.

    A snapshot of an outer group may be older than the manifest of an inner one. The path that the user gave may lead
    through links, so that the real one counts as well.
    """
    if not isinstance(store, LocalStore):
        return []
    places = {store.url: None, os.path.realpath(store.url): None}
    groups: dict[tuple[str, str], tuple[str, str]] = {}
    for place in places:
        for group, path in groups_above(place):
            groups.setdefault((os.path.realpath(group), path), (group, path))
    return [*groups.values()]


def pins_in(group: Store, manifest: Manifest, path: str, names: Collection[str] | None = None) -> list[Pin]:
    """Return the states of a member that snapshots of one group need; all of them, or snapshots of some names.

    States that archived frames keep are left out. Raises what `pins_of` raises.
    """
    if not manifest.kept:
        return []
    if manifest.rows is not None:
        raise UnsupportedError(
            f"{group.url} was copied from an object store with snapshots, and can only be read here: b2array.convert"
            " makes a local copy with them"
        )
    archived = {state for states in manifest.retired.values() for state in states}
    users: dict[MemberState, list[Kept]] = {}
    for entry in group_ledger(group.url, manifest).entries:
        if names is not None and entry.name not in names:
            continue
        for state in load_members(group, group.url, entry).values():
            if state.path == path and (entry.name, state.generation) not in archived:
                users.setdefault(state, []).append(entry)
    return [Pin(manifest.identity.encode(), state, tuple(entries)) for state, entries in users.items()]


def pinned_states(revision: Snapshot, pins: Sequence[Pin], *, is_same: bool = False) -> list[tuple[Kept, Snapshot]]:
    """Return the states that the frame does not keep itself yet, with entries for its ledger.

    A state of another frame, which somebody has replaced by this one, is lost already. A caller that knows that this is
    the same frame says so. Raises what `find_state` raises.
    """
    there = {(entry.name, entry.group) for entry in ledger_in(revision).entries}
    states: dict[tuple[str, bytes], tuple[Kept, Snapshot]] = {}
    for pin in pins:
        name = name_for_group(pin.state.generation), pin.group
        earlier = None if name in there else find_state(revision, pin.state, pin.group, pin.title, is_same=is_same)
        if earlier is not None and earlier.at is not None:
            states[name] = replace(earlier.at, time=pin.entries[0].time, message=pin.title), earlier
    return [*states.values()]


def unneeded_names(revision: Snapshot, pins: Sequence[Pin], groups: Collection[bytes]) -> tuple[str, ...]:
    """Return the names of states that the frame keeps for some groups, and that no snapshot of them needs any more."""
    needed = {(name_for_group(pin.state.generation), pin.group) for pin in pins}
    return tuple(
        entry.name
        for entry in ledger_in(revision).entries
        if entry.group in groups and (entry.name, entry.group) not in needed
    )


def pinned_places(revision: Snapshot, pins: Sequence[Pin]) -> npt.NDArray[np.int64]:
    """Return the places, or the numbers, of the chunks of states that the frame does not keep itself."""
    places = [state.frame.offsets for _, state in pinned_states(revision, pins)]
    return np.concatenate(places) if places else index.NO_OFFSETS


def identities_of(store: Store) -> set[bytes]:
    """Return the identities of the local groups around a frame."""
    groups = [read_manifest(LocalStore(group), versioned=False)[0] for group, _ in _groups(store)]
    return {manifest.identity.encode() for manifest in groups if manifest.identity}


# Locks.


@contextmanager
def try_manifests_lock(store: Store) -> Iterator[bool]:
    """Take the locks of the manifests around a frame if they are free; yield whether this thread has all of them.

    The caller has the lock of the frame. A writer that waits for that one may have the lock of a
    manifest, so this never waits.
    """
    with ExitStack() as locks:
        yield all(_try_lock(group, locks) for group, _ in _groups(store))


def _try_lock(group: str, locks: ExitStack) -> bool:
    around = LocalStore(group)
    if around.holds_lock():
        return True
    try:
        lock = around.lock_if_free(inside=True)
    except PermissionError:  # a directory in somebody else's group may be ours; the first snapshot locks all members
        return not read_manifest(around, versioned=False)[0].kept
    if lock is None:
        return False
    locks.callback(lock.close)
    return True


@contextmanager
def manifests_lock(store: Store) -> Iterator[None]:
    """Wait for the locks of the manifests around a frame, and hold them.

    A thread that holds a lock already does not wait: others may wait for that one, and hold these. ConflictError: they
    do.
    """
    may_wait = not holds_locks()
    with ExitStack() as locks:
        for group, _ in reversed(_groups(store)):
            around = LocalStore(group)
            if may_wait and not around.holds_lock():
                locks.enter_context(around.lock(MANIFEST))
            elif not _try_lock(group, locks):
                raise ConflictError(f"{around.url}: another writer is at work")
        yield
