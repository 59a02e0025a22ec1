"""`SnapshotChanges`: the snapshots that a transaction of a group makes, drops and copies, wherever the group is."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from b2array.errors import ConflictError
from b2array.format.kept import DIGEST_NBYTES, Kept, Ledger, has_room, object_name
from b2array.frame.listing import MemberState, pack_members
from b2array.frame.snapshot import unknown_name

__all__ = ["SnapshotChanges"]

PutList = Callable[[str, bytes], None]
"""Writes the list of a snapshot's members to an object of this name."""


@dataclass(slots=True)
class SnapshotChanges:
    """Changes to the list of a group's snapshots that wait for the commit of a transaction.

    Parameters
    ----------
    url : str
        The group, for messages.
    new : dict
        Snapshots of the state that the commit makes, by name.
    gone : set of str
        The names of snapshots to forget.
    copies : list of (Kept, dict)
        Snapshots of another group, with the members of each.
    """

    url: str
    new: dict[str, Kept] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    copies: list[tuple[Kept, Mapping[str, MemberState]]] = field(default_factory=list)
    _dropped: list[Kept] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.gone or self.copies)

    def make(self, entry: Kept, ledger: Ledger, *, replace: bool) -> None:
        """Add a snapshot. `ledger` lists the snapshots that the group had when the transaction began.

        FileExistsError: there is one of the name already, and it is not to be replaced.
        """
        name = entry.name
        if name in self.new:
            raise FileExistsError(f"{self.url}: the transaction makes a snapshot {name!r} already")
        if name not in self.gone and ledger.find(name) is not None:
            if not replace:
                raise FileExistsError(f"{self.url} has a snapshot {name!r}; replace=True replaces it")
            self.gone.add(name)
        self.new[name] = entry

    def drop(self, names: Collection[str], ledger: Ledger) -> None:
        """Drop snapshots; KeyError if the ledger does not list one of them."""
        there = {entry.name: entry for entry in ledger.without(tuple(self.gone)).entries}
        for name in names:
            if name not in there:
                raise unknown_name(self.url, name, [*there])
        self.gone.update(names)
        self._dropped += [there[name] for name in names]

    def copy(self, entry: Kept, states: Mapping[str, MemberState], ledger: Ledger) -> None:
        """Add a snapshot of another group. It replaces one of the same name."""
        self.copies.append((entry, states))
        if entry.name in ledger.names:
            self.gone.add(entry.name)

    def require_known(self, ledger: Ledger) -> None:
        """Raise ConflictError if another writer has made a new snapshot under the name of one to drop."""
        newer = [entry.name for entry in self._dropped if ledger.find(entry.name) not in (None, entry)]
        if newer:
            raise ConflictError(f"{self.url}: another writer has replaced the snapshot {newer[0]!r}")

    def apply(self, ledger: Ledger, states: Callable[[Kept], Mapping[str, MemberState]], put: PutList) -> Ledger:
        """Return the ledger after the commit, given the one that it finds.

        `states` gives the members of a new snapshot. ConflictError: another writer has made one of the same name.
        """
        entries = [*ledger.without(tuple(self.gone)).entries]
        names = [*self.new, *(entry.name for entry, _ in self.copies)]
        if clash := [entry.name for entry in entries if entry.name in names]:
            raise ConflictError(f"{self.url}: another writer has made a snapshot {clash[0]!r} as well")
        made = [(entry, states(entry)) for entry in self.new.values()]
        for entry, members in [*self.copies, *made]:
            entries.append(_listed(entry, pack_members(members), entries, put))
        entries.sort(key=attrgetter("time"))
        return Ledger(tuple(entries))


def _listed(entry: Kept, packed: bytes, others: list[Kept], put: PutList) -> Kept:
    """Return the entry of a snapshot with the packed list of its members, or with the place of that list."""
    digest = packed[-DIGEST_NBYTES:]
    new = replace(entry, generation=digest, place=0, nbytes=len(packed), digest=digest, packed=packed)
    if has_room(others, packed):
        return new
    place = int.from_bytes(os.urandom(8), "big") % 2**63
    put(object_name(place), packed)
    return replace(new, place=place, packed=b"")
