"""`SnapshotChanges`: the snapshots that a transaction of a group makes, drops and copies, in any store."""

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

PutList = Callable[[str, bytes], object]
"""Writes the list of a snapshot's members to an object with a given name."""


@dataclass(slots=True)
class SnapshotChanges:
    """Changes to a group's list of snapshots that wait for the commit of a transaction.

    Parameters
    ----------
    group : AnyGroup
        The group as it was when the transaction began.
    new : dict of str to Kept
        Snapshots of the state that the commit makes, by name.
    gone : set of str
        The names of snapshots to remove from the list: dropped and replaced ones.
    copies : list of (Kept, mapping)
        Snapshots of another group, each with the states of its members by name.
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
        """The ledger that the group had when the transaction began; FormatError if it is damaged.

        It is unpacked on demand only, so that a damaged ledger stops no transaction without snapshots.
        """
        return group_ledger(self.group.url, self.group.manifest)

    def make(self, entry: Kept, *, replace: bool) -> None:
        """Add a snapshot of the state that the commit makes.

        With `replace`, it replaces a snapshot of this name. Raises FileExistsError if there is one that may not be
        replaced, or if the transaction makes one already; UnsupportedError if the group cannot have snapshots.
        """
        self.group.require_ledger()
        url, name = self.group.url, entry.name
        if name in self.new:
            raise FileExistsError(f"{url}: the transaction makes a snapshot {name!r} already")
        if name not in self.gone and self.ledger.find(name) is not None:
            if not replace:
                raise FileExistsError(f"{url} has a snapshot {name!r}; replace=True replaces it")
            self.gone.add(name)
        self.new[name] = entry

    def drop(self, names: Collection[str]) -> None:
        """Drop snapshots in the commit; raise KeyError, and drop nothing, if the group does not have all of them."""
        # A snapshot that the transaction has dropped before is missing.
        remaining = self.ledger.without(tuple(self.gone))
        entries = {entry.name: entry for entry in remaining.entries}
        for name in names:
            if name not in entries:
                raise unknown_name(self.group.url, name, [*entries])
        self.gone.update(names)
        self._dropped += [entries[name] for name in names]

    def add_copy(self, entry: Kept, states: Mapping[str, MemberState]) -> None:
        """Add a snapshot of another group, which replaces a snapshot of the same name."""
        self.copies.append((entry, states))
        if entry.name in self.ledger.names:
            self.gone.add(entry.name)

    def note_needed(self, entry: Kept) -> None:
        """Note a snapshot whose states the transaction restores.

        The commit is refused if another writer drops it first, because `vacuum` may then have removed its data.
        """
        self._needed.append(entry)

    def require_fit(self, manifest: Manifest) -> None:
        """Raise ConflictError if another writer has replaced a snapshot to drop, or has dropped or changed one in use.

        A snapshot is in use if `note_needed` has noted it. If a snapshot to drop is gone already, that is no conflict.
        """
        if not (self._dropped or self._needed):
            return
        url = self.group.url
        ledger = group_ledger(url, manifest)
        for entry in self._dropped:
            # A snapshot that another writer has dropped as well is no conflict.
            if ledger.find(entry.name) not in (None, entry):
                raise ConflictError(f"{url}: another writer has replaced the snapshot {entry.name!r}")
        for entry in self._needed:
            # The digest, because an equal snapshot of the same name keeps the same data.
            latest = ledger.find(entry.name)
            if latest is None or latest.digest != entry.digest:
                raise ConflictError(f"{url}: another writer has dropped the snapshot {entry.name!r} meanwhile")

    def write_lists(
        self,
        manifest: Manifest,
        states: Mapping[str, MemberState],
        put: PutList,
    ) -> bytes:
        """Write the lists of members that are too long for the manifest, and return the packed new ledger.

        Parameters
        ----------
        manifest : Manifest
            The manifest on top of which the commit happens.
        states : mapping of str to MemberState
            The members of new snapshots, by name.
        put : callable
            Writes a list.

        Raises
        ------
        ConflictError
            Another writer has made a snapshot of the same name.
        """
        ledger = group_ledger(self.group.url, manifest)
        entries = [*ledger.without(tuple(self.gone)).entries]
        new = [(entry, states) for entry in self.new.values()]
        added = [*self.copies, *new]
        names = {entry.name for entry, _ in added}
        if clash := [entry.name for entry in entries if entry.name in names]:
            raise ConflictError(f"{self.group.url}: another writer has made a snapshot {clash[0]!r} as well")
        for entry, members in added:
            entries.append(_store_list(entry, pack_members(members), entries, put))
        entries.sort(key=attrgetter("time"))
        return Ledger(tuple(entries)).pack() or b""


def _store_list(
    entry: Kept,
    packed: bytes,
    others: list[Kept],
    put: PutList,
) -> Kept:
    """Put the list of a snapshot's members into its entry if there is room, else into an object; return the entry."""
    digest = packed[-DIGEST_NBYTES:]
    new = replace(
        entry,
        generation=digest,
        place=0,
        nbytes=len(packed),
        digest=digest,
        packed=packed,
    )
    # Every reader of the group reads the manifest, so it must stay short.
    if has_room(others, packed):
        return new
    # A random name, because other writers may be preparing snapshots at the same time.
    place = int.from_bytes(os.urandom(8), "big") % 2**63
    put(object_name(place), packed)
    return replace(new, place=place, packed=b"")
