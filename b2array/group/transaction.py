"""`Transaction`: the common base of a group's transactions on a local disk and in an object store."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from b2array import threads
from b2array.commit.draft import Draft, warn_of_forgotten
from b2array.commit.entries import GroupChange
from b2array.commit.fork import make_fork_point
from b2array.commit.handle import Handle, Mode
from b2array.errors import ConflictError
from b2array.format.annotations import GroupCommit
from b2array.frame.snapshot import Snapshot
from b2array.group.fork import NOTHING, Changes
from b2array.group.listed import AnyGroup
from b2array.group.local import NewFrame
from b2array.group.members import Members, check_new
from b2array.group.row_change import RowChange
from b2array.group.snapshot_changes import SnapshotChanges

__all__ = ["Transaction", "next_note", "open_new", "require_names_free"]


class Transaction(Changes):
    """Changes to members of a group that wait for `commit`. It does not show later commits of other writers.

    Parameters
    ----------
    group : AnyGroup
        The handle that shows the changes after the commit.
    view : AnyGroup
        Another handle, which shows the members as they were when the transaction began.
    change : GroupChange or RowChange
        Collects the changes. In a `marked` transaction the user reads and writes through it. Other transactions serve a
        single call such as ``group["x"] = 1``, and nobody reads through them.
    """

    change: GroupChange | RowChange

    def __init__(self, group: AnyGroup, view: AnyGroup, change: GroupChange | RowChange) -> None:
        super().__init__(view)
        self.change = change
        self._group = group
        self._snapshots = SnapshotChanges(view)
        self._members: Members | None = None
        self._ended = False
        self._owner = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        """Raise ValueError: other processes cannot take part in a transaction, except through forks."""
        raise ValueError("a group with a transaction under way cannot be pickled")

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options for fsspec with which new members are made."""
        return self.view.storage_options

    @property
    def snapshots(self) -> SnapshotChanges:
        """The snapshots that the commit makes, drops and copies; ConflictError if the transaction has ended."""
        self._require_open()
        return self._snapshots

    def members(self) -> Members:
        """Return the path of each member by its name; in a marked transaction, with its changes."""
        return self.view.members() if self._members is None else self._members

    def _update_members(
        self,
        removed: Iterable[str] = (),
        added: Mapping[str, str] = NOTHING,
    ) -> None:
        """Show removed and added members, given as names and as paths by name, unless the transaction is unmarked."""
        if not self.change.marked:  # no user reads the members before the commit, and a copy of many takes time
            return
        if self._members is None:
            self._members = self.view.members().copy()
        for name in removed:
            self._members.remove(name)
        for name, path in added.items():
            self._members.add(name, path)

    def _require_open(self) -> None:
        """Raise ConflictError if the transaction has ended, or if this process is a fork of its process.

        RuntimeError: the interpreter is ending.
        """
        threads.require_running()
        if self._ended:
            raise ConflictError("expected a transaction under way, found that it has ended")
        if self._owner != os.getpid():
            raise ConflictError("expected a transaction of this process, found one of the process it was forked from")

    # Changes.

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member. Writes to it become part of the commit.

        A member that is opened for writing joins the transaction with a draft, and counts as read: the commit is
        refused if another writer changes it first. ConflictError says that the transaction has ended.
        """
        handle = self.open_unnoted(path, mode)
        if mode != "r":
            self.note_read(path)
        return handle

    def create(
        self,
        name: str,
        suffix: str,
        new: NewFrame,
        *,
        overwrite: bool,
    ) -> Handle:
        """Make a member, and return a handle to write to it. Readers see the member after the commit.

        The member begins where no reader looks. If the transaction has forks, a journal protects its files from
        `vacuum`. Raises ValueError if the group has a member of this name that was not deleted, what `check_new`
        raises, and ConflictError if the transaction has ended.
        """
        self._require_open()
        # Without a mark, the members do not show deletions; the caller has checked the name before it deleted one.
        if name not in self.change.removed or self.change.marked:
            if name in self.members():
                raise ValueError(
                    f"a transaction cannot replace the member {name!r}; delete it first, or change it instead"
                )
            check_new(name, self.members(), self.url)
        path, handle = self._stage_new(name, suffix, new, overwrite=overwrite)
        draft = handle.draft
        if self._fork_id and draft is not None and not draft.destination.aside:
            # With forks, the transaction may last long, and `vacuum` then spares only files that a journal names.
            make_fork_point(draft)
        self._update_members(added={name: path})
        return handle

    @abstractmethod
    def _stage_new(
        self,
        name: str,
        suffix: str,
        new: NewFrame,
        *,
        overwrite: bool,
    ) -> tuple[str, Handle]:
        """Begin a new member where no reader looks; return its path, and a handle with its draft."""

    def put_back(self, members: Mapping[str, str]) -> None:
        """Undo `remove` for members that the transaction had not changed before, given as paths by name."""
        for name in members:
            self.change.removed.pop(name, None)
        self._update_members(added=members)

    # The end.

    def abort(self) -> None:
        """Give up all changes, and end the transaction.

        In a forked process, and while the interpreter ends, the files of the changes remain.
        """
        self._ended = True
        if threads.is_ending():
            return
        if self._owner == os.getpid():
            self._discard()
            return
        # After os.fork(), the staged files belong to the parent.
        for member in self.change.members.values():
            member.handle.leave(None)

    @abstractmethod
    def _discard(self) -> None:
        """Give up all changes, and remove the files that were prepared for them."""

    def commit(self) -> None:
        """Make all changes visible at once, or none, and end the transaction. Warns of forks that were never merged.

        Raises ConflictError if another writer has changed a member or a snapshot on which they depend. After an error,
        the transaction is aborted, unless the commit has already happened, and the group lists its members again.
        """
        self._require_open()
        try:
            drafts = self._commit()
        except BaseException:
            if not self._ended:
                self.abort()
            # Show the present members, whether the commit has happened or not.
            self._group.refresh()
            raise
        self._ended = True
        for draft in drafts:
            warn_of_forgotten(draft)
        self._roster.warn_of_forgotten(self.url)

    @abstractmethod
    def _commit(self) -> Collection[Draft]:
        """Commit everything, and show it in the group. Return the drafts, to warn of forks that were never merged."""


def next_note(changes: Transaction, path: str) -> GroupCommit:
    """Return the note for a member at `path` of a commit on top of the manifest that the transaction began with."""
    return GroupCommit(changes.change.identity, changes.view.manifest.number + 1, path)


def open_new(draft: Draft) -> Handle:
    """Enter a transaction with the draft of a new frame, and return the handle for writing to it."""
    handle = Handle(Snapshot(draft.store, draft.state, 0, None, ""), "r+")
    handle.enter(draft)
    return handle


def require_names_free(url: str, names: Collection[str], members: Members) -> None:
    """Raise ConflictError if another writer has made a member with one of these names, or with a name that excludes it.

    `members` has the members of the group after the commit, except new ones: at least all members that may exclude the
    names.
    """
    if clash := sorted(name for name in names if name in members):
        raise ConflictError(f"{url}: another writer has made {clash} as well")
    for name in sorted(names):
        try:
            check_new(name, members, url)
        except (FileExistsError, ValueError) as error:
            raise ConflictError(f"another writer was faster: {error}") from None
