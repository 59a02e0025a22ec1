"""The states of a frame that snapshots of local groups need.

A snapshot of a local group names states of its members, and does not write to the members. So before a writer replaces
a file or deletes chunks, it reads the manifests of the groups around the frame: `needs_of_all_groups`. Meanwhile, it
holds the locks of these manifests, like a writer that makes a snapshot: see `b2array.commit.frame_locks`.
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
    "Need",
    "groups_above",
    "identities_of_groups",
    "local_groups",
    "needed_offsets",
    "needed_states",
    "needs_of_all_groups",
    "needs_of_group",
    "unneeded_names",
]


class Need(NamedTuple):
    """A state of a member that snapshots of a group need.

    Parameters
    ----------
    group : bytes
        The identity of the group.
    state : MemberState
        The state, as the snapshots name it.
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


def needs_of_all_groups(store: Store) -> list[Need]:
    """Read which states of a frame the snapshots of all local groups around it need, and return them.

    FormatError or UnsupportedError: a manifest, or the list of members in a snapshot, cannot be read. LimitError: a
    manifest is too large.
    """
    needs = []
    for url, path in local_groups(store):
        group = LocalStore(url)
        manifest, _ = read_manifest(group, versioned=False)
        needs += needs_of_group(group, manifest, path)
    return needs


def groups_above(place: str, marks: Sequence[str] = (MANIFEST,)) -> Iterator[tuple[str, str]]:
    """Look for files, and yield the local groups that the path `place` of a frame leads through, the innermost first.

    With each group comes the frame's path in it. `marks` are the names of files that mark a directory as a group. The
    temporary places next to members are in no group.
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

    Outer groups count as well: a snapshot of an outer group may be older than the manifest of the inner one. A frame
    that is not on a local disk has no such groups.
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


def needs_of_group(
    group: Store,
    manifest: Manifest,
    path: str,
    names: Collection[str] | None = None,
) -> list[Need]:
    """Read which states of the member with a path the snapshots of one group need; with `names`, only these snapshots.

    The result omits states in retired frames, because the member's frame need not keep them. FormatError or
    UnsupportedError: the list of members in a snapshot cannot be read, or the group was copied from an object store.
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
    return [Need(identity, state, tuple(entries)) for state, entries in snapshots.items()]


def needed_states(
    revision: Revision,
    needs: Sequence[Need],
    *,
    is_same: bool = False,
) -> list[tuple[Kept, Revision]]:
    """Load the needed states that the frame does not keep itself yet, and return them with entries for its ledger.

    `revision` is the present state of the frame. The result omits states of another frame, which was in this place
    before. With `is_same`, the caller knows that the frame is the one that the snapshots name. Raises what `find_state`
    raises.
    """
    existing = {(entry.name, entry.group) for entry in ledger_in(revision).entries}
    states: dict[tuple[str, bytes], tuple[Kept, Revision]] = {}
    for need in needs:
        key = name_for_group(need.state.generation), need.group
        if key in existing:
            continue
        earlier = find_state(revision, need.state, need.group, need.title, is_same=is_same)
        # If this is another frame in the same place, the state was lost when the old frame was replaced.
        if earlier is None or earlier.at is None:
            continue
        entry = replace(earlier.at, time=need.entries[0].time, message=need.title)
        states[key] = entry, earlier
    return [*states.values()]


def unneeded_names(
    revision: Revision,
    needs: Sequence[Need],
    groups: Collection[bytes],
) -> tuple[str, ...]:
    """Return the names of states that the frame keeps for `groups`, although no snapshot of these groups needs them.

    `groups` are identities, and `needs` what the snapshots of all groups around the frame need.
    """
    needed = {(name_for_group(need.state.generation), need.group) for need in needs}
    entries = [entry for entry in ledger_in(revision).entries if entry.group in groups]
    return tuple(entry.name for entry in entries if (entry.name, entry.group) not in needed)


def needed_offsets(revision: Revision, needs: Sequence[Need]) -> npt.NDArray[np.int64]:
    """Load the needed states that the frame does not keep itself, and return all entries in their indexes."""
    offsets = [state.frame.offsets for _, state in needed_states(revision, needs)]
    return np.concatenate(offsets) if offsets else index.NO_OFFSETS


def identities_of_groups(store: Store) -> set[bytes]:
    """Read and return the identities of the local groups around a frame; a group without a commit has none yet."""
    identities = set()
    for url, _ in local_groups(store):
        manifest, _ = read_manifest(LocalStore(url), versioned=False)
        if manifest.identity:
            identities.add(manifest.identity.encode())
    return identities
