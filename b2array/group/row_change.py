"""`RowChange`: the changes of a transaction in an object store; checks whether they still fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from b2array.commit.changes import Keep
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle
from b2array.errors import ConflictError
from b2array.frame.manifest import Manifest, Row
from b2array.frame.snapshot import Snapshot
from b2array.group.listed import ListedGroup, name_of

__all__ = [
    "RowChange",
    "RowMember",
    "StateRead",
    "first_number",
    "note_moved",
    "require_same_members",
    "require_unchanged_reads",
]


@dataclass(frozen=True, slots=True)
class RowMember:
    """A member that a transaction makes or may change.

    Parameters
    ----------
    name : str
        Its name.
    handle : Handle
        The handle that the transaction gives to its user.
    draft : Draft
        The changes that wait for the commit.
    earlier : sequence of Keep
        For a copy from another group: the earlier states that snapshots of the group name.
    """

    name: str
    handle: Handle
    draft: Draft
    earlier: Sequence[Keep] = ()

    @property
    def is_new(self) -> bool:
        """Whether the transaction makes the member."""
        return self.draft.base is None

    def discard(self) -> None:
        """Give up the changes to the member, and end the transaction of its handle."""
        if self.is_new:
            self.handle.abandon()
        else:
            self.handle.leave(None)
        self.draft.abort()


@dataclass(frozen=True, slots=True)
class StateRead:
    """The state of a member when a transaction read or moved it.

    Parameters
    ----------
    revision : str
        Its revision; "" if no commit of the group has written the member yet.
    unadopted : Snapshot, optional
        In that case, the state itself.
    """

    revision: str
    unadopted: Snapshot | None = None


@dataclass(slots=True)
class RowChange:
    """The changes of a transaction of a group in an object store.

    Parameters
    ----------
    identity : str
        The identity of the group, for a manifest that has none yet.
    marked : bool
        Whether the user reads through the transaction: the commit is refused if a member that was read has changed.
    members : dict of str to RowMember
        Members to make, and members that may have changed, by path.
    removed : dict of str to Row
        The rows, from before the transaction, of members to delete, by name.
    read : dict of str to StateRead
        The states of members that were read or moved, by name.
    unlisted : dict of str to int
        For paths at which only snapshots have chunks, the first number that was never given to a chunk.
    """

    identity: str
    marked: bool
    members: dict[str, RowMember] = field(default_factory=dict)
    removed: dict[str, Row] = field(default_factory=dict)
    read: dict[str, StateRead] = field(default_factory=dict)
    unlisted: dict[str, int] = field(default_factory=dict)

    def written(self) -> dict[str, RowMember]:
        """Return the members that the commit writes, in the order of their paths: new ones, and changed ones."""
        members = sorted(self.members.items())
        return {path: member for path, member in members if member.draft.changed}

    def new_names(self) -> set[str]:
        """Return the names of new members that replace no deleted member."""
        names = {member.name for member in self.members.values() if member.is_new}
        return names - self.removed.keys()


def first_number(change: RowChange, view: ListedGroup, path: str) -> int:
    """Return the first number that was never given to a chunk's file at a path.

    Late requests of other writers may still write or delete objects with smaller numbers.
    """
    rows = [*change.removed.values(), view.rows.get(name_of(path))]
    used = [row.next for row in rows if row is not None and row.path == path]
    # If the member was deleted earlier, the manifest has noted the number.
    return max([view.manifest.gone.get(path, 0), *used])


def note_moved(change: RowChange, view: ListedGroup, path: str, generation: str) -> None:
    """Note that a member was copied in this state and will be deleted; ConflictError if its state has changed since.

    If the manifest lists no revision of the member, this reads the present state from the store.
    """
    name = name_of(path)
    revision = view.rows[name].revision
    # Without a revision, only the published index shows the state.
    unadopted = None if revision else view.current(path)
    latest = revision if unadopted is None else unadopted.generation
    if generation != latest:
        raise ConflictError(f"{view.url}/{path} was changed by another writer before it was moved; move it again")
    change.read[name] = StateRead(revision, unadopted)


def require_unchanged_reads(
    change: RowChange,
    view: ListedGroup,
    rows: Mapping[str, Row],
    written: Collection[str],
) -> None:
    """Raise ConflictError if another writer has changed or deleted a member that the transaction has only read.

    `written` are the names of the members that the commit writes.
    """
    for name, state in change.read.items():
        if name in written:  # the commit puts its changes on top of the latest state, or raises ConflictError
            continue
        row = rows.get(name)
        if row is None or row.revision != state.revision:
            path = view.members().get(name, name)
            raise ConflictError(f"{view.url}/{path} was changed by another writer after the transaction read it")


def require_same_members(view: ListedGroup, manifest: Manifest) -> None:
    """Raise ConflictError if the group does not have the members any more that the transaction shows."""
    # The snapshot will copy the latest rows, so it would have members that its user has never seen.
    begun = view.manifest.members or {}
    latest = manifest.members or {}
    names = sorted(begun.keys() | latest.keys())
    if differing := [name for name in names if begun.get(name) != latest.get(name)]:
        raise ConflictError(f"{view.url}: another writer has made or deleted {differing} since the snapshot began")
