"""The transaction of a local group: it collects changes of several members for one commit.

A new member is made in a place next to its path. At the end `b2array.commit.entries.commit_entries` commits all
changes, unless another writer has changed a member that the transaction has read. `b2array.group.snapshots_on_disk`
writes the data of the group's snapshots during the commit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from b2array.array.drafts import FreePlace
from b2array.array.snapshots import give_checksums, lacks_checksums
from b2array.commit.draft import Draft
from b2array.commit.entries import GroupChange, MemberChange, commit_entries
from b2array.commit.handle import Handle, Mode
from b2array.commit.leftovers import discard, is_abandoned
from b2array.errors import B2ArrayError, ConflictError, warn
from b2array.format.annotations import GroupCommit
from b2array.format.b2nd import is_typed_array
from b2array.format.header import FIRST_BYTES
from b2array.frame.log import inspect_place
from b2array.frame.manifest import ARRAY, OTHER, Manifest, is_embedded, staged_path
from b2array.frame.source import FRAME_NAME
from b2array.group.fork import NOTHING
from b2array.group.local import LocalGroup, NewFrame, copier_of
from b2array.group.members import Members
from b2array.group.snapshots_on_disk import SnapshotsOnDisk
from b2array.group.transaction import Transaction, next_note, open_new, require_names_free
from b2array.store.atomic import require_free
from b2array.store.base import MISSING, attempts

__all__ = ["LocalTransaction"]


class LocalTransaction(Transaction):
    """Changes to members of a local group that wait for `commit`.

    In a `marked` transaction, members note the number of the commit, so that no reader opens them together with earlier
    states of other members.
    """

    view: LocalGroup
    change: GroupChange
    _group: LocalGroup

    def __init__(self, group: LocalGroup, *, marked: bool = True) -> None:
        """Begin a transaction on the members that the group shows; this lists them if they were not listed yet."""
        view = group.copy()
        if not marked:  # a marked transaction has just listed the directory
            view.require_same()
        identity = view.manifest.identity or os.urandom(8).hex()
        super().__init__(group, view, GroupChange(identity, marked))
        self.on_disk = SnapshotsOnDisk(view, self.change, self._snapshots)

    def note_read(self, path: str) -> None:
        """Note that a member was read, so that the commit is refused if another writer changes it first.

        This opens the member for writing, unless it is embedded. New members are not noted, and an unmarked transaction
        notes nothing. ConflictError says that the transaction has ended.
        """
        self._require_open()
        if not self.change.marked:
            return
        if is_embedded(path):
            state = self.view.name_embedded_state(path)
        else:
            self.open_unnoted(path, "r+")
            member = self.change.members[path]
            if member.is_new:
                return
            state = member.opened
        with self._mutex.held:
            self.change.read.setdefault(path, state)

    def open_unnoted(self, path: str, mode: Mode) -> Handle:
        """Open a member without noting that it was read.

        Opening for writing first puts the frame of an earlier commit in its place; then the member joins the
        transaction with a new draft. Embedded members are opened read-only. Raises ValueError if an inner group owns a
        member to write, and ConflictError if the transaction has ended.
        """
        self._require_open()
        with self._mutex.held:
            member = self.change.members.get(path)
            if member is not None:
                return member.handle
            if mode == "r" or is_embedded(path):  # embedded members can only be read
                return self.view.open(path, mode)
            self.view.require_own(path)
            # The frame of an earlier commit may still wait in another place, where no writer may change it.
            self.view.apply_entry(path)
            current = self.view.current(path)
            handle = Handle(current, mode)
            draft = handle.begin()
            handle.enter(draft)
            self.change.members[path] = MemberChange(handle, draft, opened=current.generation)
            return handle

    def _stage_new(
        self,
        name: str,
        suffix: str,
        new: NewFrame,
        *,
        overwrite: bool,
    ) -> tuple[str, Handle]:
        """Begin a new member in a place next to its path; return the path, and a handle with its draft.

        In a marked transaction, the draft gets a note of the commit. Raises ValueError if an inner group owns the path,
        and the errors of `_require_place` if the path is not free.
        """
        change, path = self.change, name + suffix
        self.view.require_own(path)
        overwrite = overwrite or name in change.removed
        if not overwrite or path not in change.removed.values():
            _require_place(self.view, path, overwrite=overwrite, is_marked=change.marked)
        # A random token, because several writers may be making the same member.
        token = os.urandom(8).hex()
        # This place never makes the directory of the group, which may have been renamed.
        place = FreePlace(self.view.store_of(staged_path(path, token, sparse=False)))
        draft = new(place, overwrite=False)
        if change.marked:
            draft.annotate(group_commit=next_note(self, path))
        handle = open_new(draft)
        change.members[path] = MemberChange(handle, draft, token)
        change.names[path] = name
        return path, handle

    def remove(
        self,
        members: Mapping[str, str],
        states: Mapping[str, str] = NOTHING,
    ) -> None:
        """Delete members in the commit, given as paths by name; give up new ones at once.

        `states` are the generations of members that were copied, by path. The commit is refused if another writer
        changes one of them first. If an inner group owns one of the members, raise ValueError and change nothing.
        """
        self._require_open()
        change = self.change
        for path in members.values():
            self.view.require_own(path)
        change.moved.update(states)
        for name, path in members.items():
            member = change.members.pop(path, None)
            if member is not None:
                base = None if member.draft is None else member.draft.base
                if path in states and base is not None:
                    # The copy includes uncommitted changes; other writers can only have changed the committed state.
                    change.moved[path] = base.generation
                _discard_member(self.view, path, member)
            if change.names.pop(path, None) is None:
                change.removed[name] = path
            else:
                change.moved.pop(path, None)
        self._update_members(removed=members)

    # The end.

    def _discard(self) -> None:
        """Give up all changes, and remove staged files and data of snapshots.

        Does nothing once the manifest may refer to these files.
        """
        if self.change.outcome != "open":  # the manifest may refer to the staged files
            return
        for path, member in self.change.members.items():
            _discard_member(self.view, path, member)
        self.on_disk.discard()

    def _commit(self) -> list[Draft]:
        """Commit the changed members, deletions and snapshots; give up drafts without changes. Return all drafts.

        New snapshots first prepare all members. Without any change, nothing is written.
        """
        change = self.change
        # `commit_entries` removes the drafts of new members, so collect all drafts first.
        members = change.members.values()
        drafts = [member.draft for member in members if member.draft is not None]
        if self._snapshots.new:
            self.on_disk.members = _prepare_members(self)
        written = change.find_written()
        paths = self.on_disk.members.values()
        change.same = [path for path in paths if path not in written]
        if written or change.removed or self._snapshots:
            self._commit_entries(written)
        self._ended = True
        for path in change.members.keys() - written.keys():
            _discard_member(self.view, path, change.members[path])
        return drafts

    def _commit_entries(self, written: Mapping[str, MemberChange]) -> None:
        """Commit the written members, deletions and snapshots, and show the result in both handles of the group.

        After the commit, this removes files that only dropped snapshots needed.
        """
        change, view = self.change, self.view

        def require(before: Manifest) -> None:
            """Raise ConflictError if names or snapshots do not fit on top of the manifest `before` the commit."""
            names = {*change.names.values()} - change.removed.keys()
            if names:
                near = _members_near(view, names, before)
                for name in change.removed:
                    near.remove(name)
                require_names_free(self.url, names, near)
            self.on_disk.require_fit(before)

        def members_after() -> Members:
            """Return the list of members after the commit."""
            if change.marked:
                return self.members()
            # If the commit fails, the handle of the group must still show the old list.
            members = self.members().copy()
            _list_changes(change, members)
            return members

        def show(after: Manifest) -> None:
            """Show the committed members in the transaction's view and in the group's handle."""
            # The handle of the group may have committed other changes since the transaction began.
            members = self._group.members()
            if change.marked and (change.removed or change.names):
                members = members.copy()  # other threads may be iterating over the list
            _list_changes(change, members)
            view.show(after, members)
            self._group.show(after, members)

        self.on_disk.copy_early()
        before, after = commit_entries(
            view,
            change,
            written,
            require=require,
            edit=self.on_disk.edit,
            members=members_after,
            show=show,
        )
        if after is not None:
            self.on_disk.remove_unneeded(before, after)


def _discard_member(view: LocalGroup, path: str, member: MemberChange) -> None:
    """Give up the changes to a member, end the transaction of its handle, and remove its staged files if possible."""
    if member.draft is not None:
        if member.is_new:
            member.handle.abandon()
        else:
            member.handle.leave(None)
        member.draft.abort()
    if not member.token:
        return
    with suppress(OSError, B2ArrayError):  # `vacuum` removes the rest
        discard(view.store_of(staged_path(path, member.token, sparse=False)))


# Names.


def _require_place(
    view: LocalGroup,
    path: str,
    *,
    overwrite: bool,
    is_marked: bool,
) -> None:
    """Raise FileExistsError if a file or directory is in the place of a new member.

    With `overwrite`, a frame may be there. If another writer has made a member there since the transaction began, a
    marked transaction raises ConflictError. Tries again for a while, because another writer may be deleting the frame.
    """
    store = view.store_of(path)
    tries = attempts(store)
    while True:
        try:
            require_free(store, {"": FIRST_BYTES, FRAME_NAME: FIRST_BYTES}, "a frame", overwrite=overwrite)
        except (FileExistsError, *MISSING) as error:
            if is_abandoned(store):
                return
            # The view shows no member there, so this one is newer.
            if is_marked and inspect_place(store).frame is not None:
                raise ConflictError(f"another writer was faster: {error}") from None
            # Another writer may be deleting it right now.
            if next(tries, None) is None:
                raise
        else:
            return


def _members_near(view: LocalGroup, names: set[str], manifest: Manifest) -> Members:
    """Look in the store for the members that have these names, or exclude them, and return them.

    This looks only for these members, because it takes long to list all members of a large group.
    """
    near = view.members_near(names, manifest)
    for path, name in view.paths_of(names, manifest).items():
        near.add(name, path)
    return near


def _list_changes(change: GroupChange, members: Members) -> None:
    """Remove deleted members from a list of a group's members, and add new ones."""
    for name in change.removed:
        members.remove(name)
    for path, name in change.names.items():
        members.add(name, path)


# Snapshots.


def _prepare_members(changes: LocalTransaction) -> dict[str, str]:
    """Prepare all members for a new snapshot, and return their paths by name.

    Embedded members get separate frames. Members without checksums, which other software wrote, are rewritten: without
    checksums, a reader cannot notice that other software has overwritten a chunk of the snapshot. For all other
    unchanged members, this reads their states, and notes them in `on_disk.bases`. Warns if separate groups inside this
    one have members, which the snapshot does not have.
    """
    _move_out_embedded(changes)
    members = changes.view.without_mounts(changes.members())
    for path in members.values():
        member, note = changes.change.members.get(path), None
        if member is None:
            revision = changes.view.current(path)
            if not lacks_checksums(revision):
                # The commit only checks that the member still has this state.
                changes.on_disk.bases[path] = revision
                continue
            note = next_note(changes, path)
        elif member.draft is None:
            continue
        _give_checksums(changes.open_unnoted(path, "r+"), note)
    mounted = changes.members().keys() - members.keys()
    for name in changes.snapshots.new if mounted else ():
        warn(
            f"{changes.url}: the snapshot {name!r} does not have {min(mounted)!r} and other members of separate groups"
            " inside this one; make snapshots of those groups as well"
        )
    return members


def _give_checksums(handle: Handle, note: GroupCommit | None) -> None:
    """Rewrite the chunks without checksums as a change in the transaction, and add a note of the commit if passed."""
    for attempt in handle.attempts():
        with attempt as draft:
            if note is not None:
                draft.annotate(group_commit=note)
            give_checksums(draft)


def _move_out_embedded(changes: LocalTransaction) -> None:
    """Replace each embedded member by a new one with a separate frame, because the embedding frame keeps no states."""
    members = changes.members().items()
    embedded = {name: path for name, path in members if is_embedded(path)}
    for name, path in embedded.items():
        source = changes.view.open(path, "r")
        suffix = ARRAY if is_typed_array(source.frame.metalayers) else OTHER
        changes.remove({name: path})
        new = copier_of(source, changes.storage_options)
        changes.create(name, suffix, new, overwrite=True)
