"""`SnapshotChanges`: the snapshots that a transaction of a group makes, drops and copies, wherever the group is."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from b2array.errors import ConflictError
from b2array.format.kept import DIGEST_NBYTES, Kept, Ledger, has_room, object_name
from b2array.frame.listing import MemberState, group_ledger, pack_members
from b2array.frame.manifest import Manifest
from b2array.frame.snapshot import unknown_name
from b2array.group.listed import AnyGroup

__all__ = ["SnapshotChanges"]

PutList = Callable[[str, bytes], None]
"""Writes the list of a snapshot's members to an object of this name."""


@dataclass(slots=True)
class SnapshotChanges:
    """Changes to the list of a group's snapshots that wait for the commit of a transaction.

    Parameters
    ----------
    group : AnyGroup
        The group as it was when the transaction began.
    new : dict of str to Kept
        Snapshots of the state that the commit makes, by name.
    gone : set of str
        The names of snapshots to forget.
    copies : list of (Kept, dict)
        Snapshots of another group, with the members of each.
    """

    group: AnyGroup
    new: dict[str, Kept] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    copies: list[tuple[Kept, Mapping[str, MemberState]]] = field(default_factory=list)
    _dropped: list[Kept] = field(default_factory=list)
    _needed: list[Kept] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.gone or self.copies)

    @property
    def ledger(self) -> Ledger:
        """The ledger that the group had when the transaction began.

        It is unpacked only on demand, so that a damaged one does not stop transactions without snapshots.
        """
        return group_ledger(self.group.url, self.group.manifest)

    def make(self, entry: Kept, *, replace: bool) -> None:
        """Add a snapshot of the state that the commit makes.

        Raises FileExistsError if the group has a snapshot of this name and `replace` is false.
        """
        self.group.require_ledger()
        name = entry.name
        if name in self.new:
            raise FileExistsError(f"{self.group.url}: the transaction makes a snapshot {name!r} already")
        if name not in self.gone and self.ledger.find(name) is not None:
            if not replace:
                raise FileExistsError(f"{self.group.url} has a snapshot {name!r}; replace=True replaces it")
            self.gone.add(name)
        self.new[name] = entry

    def drop(self, names: Collection[str]) -> None:
        """Drop snapshots; raise KeyError if the group has no snapshot of one of these names."""
        remaining = self.ledger.without(tuple(self.gone)).entries
        entries = {entry.name: entry for entry in remaining}
        for name in names:
            if name not in entries:
                raise unknown_name(self.group.url, name, [*entries])
        self.gone.update(names)
        self._dropped += [entries[name] for name in names]

    def copy(self, entry: Kept, states: Mapping[str, MemberState]) -> None:
        """Add a snapshot of another group, which replaces one of the same name."""
        self.copies.append((entry, states))
        if entry.name in self.ledger.names:
            self.gone.add(entry.name)

    def need(self, entry: Kept) -> None:
        """Note a snapshot to which members go back: without it, `vacuum` may remove what they need."""
        self._needed.append(entry)

    def require_fit(self, manifest: Manifest) -> None:
        """Raise ConflictError if another writer has replaced a snapshot to drop, or dropped one that is needed."""
        if not (self._dropped or self._needed):
            return
        ledger = group_ledger(self.group.url, manifest)
        for entry in self._dropped:
            if ledger.find(entry.name) not in (None, entry):
                raise ConflictError(f"{self.group.url}: another writer has replaced the snapshot {entry.name!r}")
        for entry in self._needed:
            latest = ledger.find(entry.name)
            if latest is None or latest.digest != entry.digest:
                raise ConflictError(
                    f"{self.group.url}: another writer has dropped the snapshot {entry.name!r} meanwhile"
                )

    def apply(self, manifest: Manifest, states: Mapping[str, MemberState], put: PutList) -> bytes:
        """Write the lists of members that are long, and return the packed ledger for the manifest after the commit.

        `states` are the members of new snapshots. Raises ConflictError if another writer has made a snapshot of the
        same name.
        """
        ledger = group_ledger(self.group.url, manifest)
        entries = [*ledger.without(tuple(self.gone)).entries]
        added = [*self.copies, *((entry, states) for entry in self.new.values())]
        names = {entry.name for entry, _ in added}
        if clash := [entry.name for entry in entries if entry.name in names]:
            raise ConflictError(f"{self.group.url}: another writer has made a snapshot {clash[0]!r} as well")
        for entry, members in added:
            entries.append(_store_list(entry, pack_members(members), entries, put))
        entries.sort(key=attrgetter("time"))
        return Ledger(tuple(entries)).pack() or b""


def _store_list(entry: Kept, packed: bytes, others: list[Kept], put: PutList) -> Kept:
    """Return the entry of a snapshot with the list of its members in it, or with the place where this has put it."""
    digest = packed[-DIGEST_NBYTES:]
    new = replace(
        entry,
        generation=digest,
        place=0,
        nbytes=len(packed),
        digest=digest,
        packed=packed,
    )
    # Every reader of the group reads the manifest, so it has no long lists.
    if has_room(others, packed):
        return new
    # A random place: writers who prepare snapshots at the same time must not meet.
    place = int.from_bytes(os.urandom(8), "big") % 2**63
    put(object_name(place), packed)
    return replace(new, place=place, packed=b"")
