"""`RowChange`: what a transaction of a group in an object store changes, and whether that still fits."""

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
    "require_reads_fit",
    "require_same_members",
]


@dataclass(frozen=True, slots=True)
class RowMember:
    """A member that a transaction makes, or may change.

    `earlier` are the states of a new member that snapshots of the group name.
    """

    name: str
    handle: Handle
    draft: Draft
    earlier: Sequence[Keep] = ()

    @property
    def is_new(self) -> bool:
        """Whether the transaction makes the member."""
        return self.draft.base is None

    def leave(self) -> None:
        """Forget the changes to the member."""
        if self.is_new:
            self.handle.abandon()
        else:
            self.handle.leave(None)
        self.draft.abort()


@dataclass(frozen=True, slots=True)
class StateRead:
    """The state in which a transaction has read or copied a member: its revision, or a snapshot if it has none yet."""

    revision: str
    unadopted: Snapshot | None = None


@dataclass(slots=True)
class RowChange:
    """What a transaction of a group in an object store changes.

    Parameters
    ----------
    identity : str
        Names the group, if its manifest does not yet.
    marked : bool
        Whether the user reads through the transaction, so that members that it has only read must not change.
    members : dict of str to RowMember
        What changes, and what is made, by path.
    removed : dict of str to Row
        The rows, from before the transaction, of members that go, by name.
    read : dict of str to StateRead
        The states of members that were read or moved, by name.
    unlisted : dict of str to int
        For paths of members that only snapshots have, the first number that no chunk there got.
    """

    identity: str
    marked: bool
    members: dict[str, RowMember] = field(default_factory=dict)
    removed: dict[str, Row] = field(default_factory=dict)
    read: dict[str, StateRead] = field(default_factory=dict)
    unlisted: dict[str, int] = field(default_factory=dict)

    def written(self) -> dict[str, RowMember]:
        """Return the members that the commit writes: those that are new, or really changed."""
        return {path: member for path, member in sorted(self.members.items()) if member.draft.changed}

    def new_names(self) -> set[str]:
        """Return the names of new members that replace no deleted one."""
        new = {member.name for member in self.members.values() if member.is_new}
        return new - self.removed.keys()


def first_number(change: RowChange, view: ListedGroup, path: str) -> int:
    """Return the first number that was never given to the file of a chunk at a path."""
    rows = [*change.removed.values(), view.rows.get(name_of(path))]
    used = [row.next for row in rows if row is not None and row.path == path]
    return max([view.manifest.gone.get(path, 0), *used])


def note_moved(change: RowChange, view: ListedGroup, path: str, generation: str) -> None:
    """Note that a member goes because it was copied in this state; ConflictError if it has another one by now."""
    name = name_of(path)
    revision = view.rows[name].revision
    unadopted = None if revision else view.current(path)
    latest = revision if unadopted is None else unadopted.generation
    if generation != latest:
        raise ConflictError(f"{view.url}/{path} was changed by another writer before it was moved; move it again")
    change.read[name] = StateRead(revision, unadopted)


def require_reads_fit(change: RowChange, view: ListedGroup, rows: Mapping[str, Row], written: Collection[str]) -> None:
    """Raise ConflictError if another writer has changed a member that the transaction has only read.

    Members `written` are left out: their changes go on top of the newest state, or fail there.
    """
    for name, state in change.read.items():
        row = rows.get(name)
        if name not in written and (row is None or row.revision != state.revision):
            path = view.members().get(name, name)
            raise ConflictError(f"{view.url}/{path} was changed by another writer after the transaction read it")


def require_same_members(view: ListedGroup, manifest: Manifest) -> None:
    """Raise ConflictError if a new snapshot would have other members than the transaction shows."""
    begun, latest = view.manifest.members or {}, manifest.members or {}
    names = sorted(begun.keys() | latest.keys())
    if differing := [name for name in names if begun.get(name) != latest.get(name)]:
        raise ConflictError(f"{view.url}: another writer has made or deleted {differing} since the snapshot began")
