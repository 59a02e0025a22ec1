"""The states of a frame that snapshots of local groups need.

A snapshot of a local group names states of its members, and does not write to the members. So before a writer replaces
a file or deletes chunks, it reads the manifests of the groups around the frame: `pins_of`. Meanwhile, it holds the
locks of these manifests, like a writer that makes a snapshot: see `b2array.commit.frame_locks`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from b2array.catalog.intact import find_state
from b2array.catalog.known_manifests import read_manifest
from b2array.catalog.ledgers import MemberState, group_ledger, load_members
from b2array.catalog.manifest import MANIFEST, Manifest
from b2array.errors import UnsupportedError
from b2array.format import index
from b2array.format.ledger import Kept, name_for_group
from b2array.frame.kept_states import ledger_in
from b2array.frame.revision import Revision
from b2array.store.base import Store
from b2array.store.endings import TEMPORARY
from b2array.store.local_store import LocalStore

__all__ = [
    "Pin",
    "groups_above",
    "identities_of",
    "local_groups",
    "pinned_places",
    "pinned_states",
    "pins_in",
    "pins_of",
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
    for url, path in local_groups(store):
        group = LocalStore(url)
        manifest, _ = read_manifest(group, versioned=False)
        pins += pins_in(group, manifest, path)
    return pins


def groups_above(place: str, marks: Sequence[str] = (MANIFEST,)) -> Iterator[tuple[str, str]]:
    """Look for files, and yield the local groups that a path leads through, with the path of the frame in each.

    The innermost group comes first. `marks` are the names of files that mark a directory as a group.
    """
    if place.endswith(TEMPORARY):  # no step and no snapshot names the temporary places next to members
        return
    inner, group = place, os.path.dirname(place)
    while group != inner:
        for mark in marks:
            if os.path.exists(os.path.join(group, mark)):
                yield group, place.removeprefix(group).lstrip(os.sep).replace(os.sep, "/")
                break
        inner, group = group, os.path.dirname(group)


def local_groups(store: Store) -> list[tuple[str, str]]:
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
    revision: Revision,
    pins: Sequence[Pin],
    *,
    is_same: bool = False,
) -> list[tuple[Kept, Revision]]:
    """Load the pinned states that the frame does not keep itself yet, and return them with entries for its ledger.

    States of another frame, which was in this place before, are omitted. With `is_same`, the caller knows that the
    frame is the one that the snapshots name. Raises what `find_state` raises.
    """
    existing = {(entry.name, entry.group) for entry in ledger_in(revision).entries}
    states: dict[tuple[str, bytes], tuple[Kept, Revision]] = {}
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
    revision: Revision,
    pins: Sequence[Pin],
    groups: Collection[bytes],
) -> tuple[str, ...]:
    """Return the names of states that the frame keeps for some groups although no snapshot of them needs the state."""
    needed = {(name_for_group(pin.state.generation), pin.group) for pin in pins}
    entries = [entry for entry in ledger_in(revision).entries if entry.group in groups]
    return tuple(entry.name for entry in entries if (entry.name, entry.group) not in needed)


def pinned_places(revision: Revision, pins: Sequence[Pin]) -> npt.NDArray[np.int64]:
    """Load the pinned states that the frame does not keep itself, and return all entries in their indexes."""
    places = [state.frame.offsets for _, state in pinned_states(revision, pins)]
    return np.concatenate(places) if places else index.NO_OFFSETS


def identities_of(store: Store) -> set[bytes]:
    """Read the identities of the local groups around a frame."""
    identities = set()
    for url, _ in local_groups(store):
        manifest, _ = read_manifest(LocalStore(url), versioned=False)
        if manifest.identity:
            identities.add(manifest.identity.encode())
    return identities
