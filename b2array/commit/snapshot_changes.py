"""`SnapshotChanges`: the snapshots that a transaction of a group makes, drops and copies, in any kind of storage."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from b2array.catalog.ledgers import MemberState, group_ledger, pack_members
from b2array.catalog.manifest import Manifest, Retired, RetiredFrame
from b2array.errors import ConflictError
from b2array.format.ledger import DIGEST_NBYTES, Kept, Ledger, has_room, object_name
from b2array.frame.kept_states import unknown_name
from b2array.frame.revision import Revision

__all__ = ["SnapshotChanges", "pack_ledger_after", "retired_after_commit"]


@dataclass(slots=True)
class SnapshotChanges:
    """Changes to a group's list of snapshots that wait for the commit of a transaction.

    Parameters
    ----------
    url : str
        The URL of the group, for messages.
    begun : Manifest
        The manifest on which the transaction builds.
    new : dict of str to Kept
        Snapshots of the state that the commit makes, by name.
    removed : set of str
        The names of snapshots to remove from the list: dropped and replaced ones.
    copies : list of (Kept, mapping)
        Snapshots of another group, each with the states of its members by name.
    members : mapping of str to str
        On a local disk, the paths of the members in a new snapshot, by name.
    bases : dict of str to Revision
        On a local disk, the states of members in a new snapshot that were read before the commit, by path.
    retired : list of RetiredFrame
        On a local disk, frames with the states that copied snapshots need.
    """

    url: str
    begun: Manifest
    new: dict[str, Kept] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    copies: list[tuple[Kept, Mapping[str, MemberState]]] = field(default_factory=list)
    members: Mapping[str, str] = field(default_factory=dict)
    bases: dict[str, Revision] = field(default_factory=dict)
    retired: list[RetiredFrame] = field(default_factory=list)
    _dropped: list[Kept] = field(default_factory=list)
    _needed: list[Kept] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.removed or self.copies)

    @property
    def concern_all_members(self) -> bool:
        """Whether they depend on which members the group has: a new snapshot has all, and restoring deletes others."""
        return bool(self.new or self._needed)

    @property
    def ledger(self) -> Ledger:
        """The ledger that the group had when the transaction began; FormatError if it is damaged.

        It is unpacked on demand only, so that a damaged ledger stops no transaction without snapshots.
        """
        return group_ledger(self.url, self.begun)

    def make(self, entry: Kept, *, replace: bool) -> None:
        """Make the commit add a snapshot of the state that it makes.

        With `replace`, it replaces a snapshot of this name. FileExistsError: there is one that may not be replaced, or
        the transaction makes one already.
        """
        url, name = self.url, entry.name
        if name in self.new:
            raise FileExistsError(f"{url}: the transaction makes a snapshot {name!r} already")
        if name not in self.removed and self.ledger.find(name) is not None:
            if not replace:
                raise FileExistsError(f"{url} has a snapshot {name!r}; replace=True replaces it")
            self.removed.add(name)
        self.new[name] = entry

    def drop(self, names: Collection[str]) -> None:
        """Make the commit drop snapshots. KeyError: the group does not have all of them; then this changes nothing."""
        # A snapshot that the transaction has dropped before is missing.
        remaining = self.ledger.without(tuple(self.removed))
        entries = {entry.name: entry for entry in remaining.entries}
        for name in names:
            if name not in entries:
                raise unknown_name(self.url, name, [*entries])
        self.removed.update(names)
        self._dropped += [entries[name] for name in names]

    def add_copy(self, entry: Kept, states: Mapping[str, MemberState]) -> None:
        """Make the commit add a snapshot of another group, which replaces a snapshot of the same name.

        `states` has the states of its members by name, as they are in this group.
        """
        self.copies.append((entry, states))
        if entry.name in self.ledger.names:
            self.removed.add(entry.name)

    def note_needed(self, entry: Kept) -> None:
        """Note a snapshot whose states the transaction restores: `require_fit` fails if another writer drops it first.

        `vacuum` may then have removed its data.
        """
        self._needed.append(entry)

    def require_fit(self, manifest: Manifest) -> None:
        """Raise ConflictError if another writer has replaced a snapshot to drop, or has dropped or changed one in use.

        `manifest` is the manifest before the commit. A snapshot is in use if `note_needed` has noted it. If a snapshot
        to drop is gone already, that is no conflict.
        """
        if not (self._dropped or self._needed):
            return
        url = self.url
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


def pack_ledger_after(
    changes: SnapshotChanges,
    before: Manifest,
    states: Mapping[str, MemberState],
) -> tuple[bytes, dict[str, bytes]]:
    """Return the packed ledger after a commit, and the packed lists of members that are too long for it.

    These lists are for objects, and have the objects' names. `before` is the manifest before the commit, and `states`
    has the states of the members in new snapshots, by name. ConflictError: another writer has made a snapshot of the
    same name.
    """
    ledger = group_ledger(changes.url, before)
    entries = [*ledger.without(tuple(changes.removed)).entries]
    new = [(entry, states) for entry in changes.new.values()]
    added = [*changes.copies, *new]
    names = {entry.name for entry, _ in added}
    if clash := [entry.name for entry in entries if entry.name in names]:
        raise ConflictError(f"{changes.url}: another writer has made a snapshot {clash[0]!r} as well")
    lists: dict[str, bytes] = {}
    for entry, members in added:
        entries.append(_put_list(entry, pack_members(members), entries, lists))
    entries.sort(key=attrgetter("time"))
    return Ledger(tuple(entries)).pack() or b"", lists


def _put_list(
    entry: Kept,
    packed: bytes,
    others: list[Kept],
    lists: dict[str, bytes],
) -> Kept:
    """Complete the entry of a snapshot, whose list of members is `packed`, and return it.

    The list goes into the entry if the ledger, with the entries `others`, has room. Otherwise it goes into `lists`,
    under a random name. Generation, digest and size in the entry describe the list.
    """
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
    lists[object_name(place)] = packed
    return replace(new, place=place, packed=b"")


def retired_after_commit(
    before: Retired,
    removed: Collection[str],
    new: Iterable[RetiredFrame],
) -> Retired:
    """Return the states in retired frames after a commit, given the states `before` it.

    `removed` has the names of dropped and replaced snapshots, and `new` the frames that the commit adds. The
    result omits frames whose states nobody needs.
    """
    after = {}
    for token, states in before.items():
        remaining = tuple((name, generation) for name, generation in states if name not in removed)
        if remaining:
            after[token] = remaining
    for frame in new:
        after[frame.token] = frame.states
    return after
