"""States of a frame that snapshots of local groups need, and the locks for destroying such states.

A snapshot of a local group names states of its members, and does not write to the members. So before a writer replaces
a file or deletes chunks, it reads the manifests of the groups around the frame: `pins_of`. Meanwhile, it holds the
locks of these manifests, like a writer that makes a snapshot. `manifests_lock` waits for the locks.
`try_manifests_lock` takes them only if they are free, because its caller already holds the lock of the member.
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
    """A state of a member that snapshots of a group need.

    Parameters
    ----------
    group : bytes
        The identity of the group.
    state : MemberState
        The state.
    entries : tuple of Kept
        The snapshots that name the state, the oldest first.
    """

    group: bytes
    state: MemberState
    entries: tuple[Kept, ...]

    @property
    def title(self) -> str:
        """The names of the snapshots, for messages."""
        return ", ".join(repr(entry.name) for entry in self.entries)


def pins_of(store: Store) -> list[Pin]:
    """Read which states of a frame the snapshots of the local groups around it need, and return them.

    FormatError or UnsupportedError: the list of members in a snapshot cannot be read.
    """
    pins = []
    for url, path in _groups(store):
        group = LocalStore(url)
        manifest, _ = read_manifest(group, versioned=False)
        pins += pins_in(group, manifest, path)
    return pins


def _groups(store: Store) -> list[tuple[str, str]]:
    """Look for the local groups around a frame; return them, innermost first, each with the frame's path in it.

    Outer groups count as well: a snapshot of an outer group may be older than the manifest of the inner one.
    """
    if not isinstance(store, LocalStore):
        return []
    # The path that the user gave may lead through links: the frame then also belongs to the groups at its real path.
    places = dict.fromkeys((store.url, os.path.realpath(store.url)))
    groups: dict[tuple[str, str], tuple[str, str]] = {}
    for place in places:
        for group, path in groups_above(place):
            key = os.path.realpath(group), path
            groups.setdefault(key, (group, path))
    return [*groups.values()]


def pins_in(
    group: Store,
    manifest: Manifest,
    path: str,
    names: Collection[str] | None = None,
) -> list[Pin]:
    """Read which states of a member the snapshots of one group need, or only the snapshots with some names.

    The result omits states in retired frames, because the frame of the member does not need them. Raises what `pins_of`
    raises.
    """
    if not manifest.kept:
        return []
    if manifest.rows is not None:
        raise UnsupportedError(
            f"{group.url} was copied from an object store with snapshots, and can only be read here: b2array.convert"
            " makes a local copy with them"
        )
    archived = {state for states in manifest.retired.values() for state in states}
    snapshots: dict[MemberState, list[Kept]] = {}
    for entry in group_ledger(group.url, manifest).entries:
        if names is not None and entry.name not in names:
            continue
        for state in load_members(group, group.url, entry).values():
            if state.path == path and (entry.name, state.generation) not in archived:
                snapshots.setdefault(state, []).append(entry)
    identity = manifest.identity.encode()
    return [Pin(identity, state, tuple(entries)) for state, entries in snapshots.items()]


def pinned_states(
    revision: Snapshot,
    pins: Sequence[Pin],
    *,
    is_same: bool = False,
) -> list[tuple[Kept, Snapshot]]:
    """Load the pinned states that the frame does not keep itself yet, and return them with entries for its ledger.

    States of another frame, which was in this place before, are omitted. With `is_same`, the caller knows that the
    frame is the one that the snapshots name. Raises what `find_state` raises.
    """
    existing = {(entry.name, entry.group) for entry in ledger_in(revision).entries}
    states: dict[tuple[str, bytes], tuple[Kept, Snapshot]] = {}
    for pin in pins:
        key = name_for_group(pin.state.generation), pin.group
        if key in existing:
            continue
        earlier = find_state(revision, pin.state, pin.group, pin.title, is_same=is_same)
        # If this is another frame in the same place, the state was lost when the old frame was replaced.
        if earlier is None or earlier.at is None:
            continue
        entry = replace(earlier.at, time=pin.entries[0].time, message=pin.title)
        states[key] = entry, earlier
    return [*states.values()]


def unneeded_names(
    revision: Snapshot,
    pins: Sequence[Pin],
    groups: Collection[bytes],
) -> tuple[str, ...]:
    """Return the names of states that the frame keeps for some groups although no snapshot of them needs the state."""
    needed = {(name_for_group(pin.state.generation), pin.group) for pin in pins}
    entries = [entry for entry in ledger_in(revision).entries if entry.group in groups]
    return tuple(entry.name for entry in entries if (entry.name, entry.group) not in needed)


def pinned_places(revision: Snapshot, pins: Sequence[Pin]) -> npt.NDArray[np.int64]:
    """Load the pinned states that the frame does not keep itself, and return all entries in their indexes."""
    places = [state.frame.offsets for _, state in pinned_states(revision, pins)]
    return np.concatenate(places) if places else index.NO_OFFSETS


def identities_of(store: Store) -> set[bytes]:
    """Read the identities of the local groups around a frame."""
    identities = set()
    for url, _ in _groups(store):
        manifest, _ = read_manifest(LocalStore(url), versioned=False)
        if manifest.identity:
            identities.add(manifest.identity.encode())
    return identities


# Locks.


@contextmanager
def try_manifests_lock(store: Store) -> Iterator[bool]:
    """Take the locks of the manifests around a frame if they are free; yield whether this thread holds all of them.

    This never waits, because the caller holds the lock of the frame, and the holder of a manifest's lock may be waiting
    for the frame.
    """
    with ExitStack() as locks:
        yield all(_try_lock(group, locks) for group, _ in _groups(store))


def _try_lock(url: str, locks: ExitStack) -> bool:
    """Take the lock of a manifest if it is free, and add it to `locks`; return whether states may be destroyed.

    If this thread holds the lock already, that is enough. Without permission to lock, the group must have no snapshots.
    """
    group = LocalStore(url)
    if group.holds_lock():
        return True
    try:
        lock = group.lock_if_free(inside=True)
    except PermissionError:
        # The user may write to the member but not to the group. A group without snapshots needs no lock: its first
        # snapshot takes the locks of all members.
        manifest, _ = read_manifest(group, versioned=False)
        return not manifest.kept
    if lock is None:
        return False
    locks.callback(lock.close)
    return True


@contextmanager
def manifests_lock(store: Store) -> Iterator[None]:
    """Wait for the locks of the manifests around a frame, and hold them.

    ConflictError: this thread holds a lock already, and another writer holds the lock of a manifest. Then this thread
    does not wait, because that writer may be waiting for it.
    """
    may_wait = not holds_locks()
    with ExitStack() as locks:
        # Every writer takes the locks from the outermost group inward, so that no two writers wait for each other.
        for url, _ in reversed(_groups(store)):
            group = LocalStore(url)
            if may_wait and not group.holds_lock():
                locks.enter_context(group.lock(MANIFEST))
            elif not _try_lock(url, locks):
                raise ConflictError(f"{group.url}: another writer is at work")
        yield
