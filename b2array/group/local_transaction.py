"""The transaction of a local group: it collects changes of several members, which `commit_entries` commits at once.

A new member is made in a place next to its path. What a transaction has only read belongs to its commit as well: the
members have the same states then, or the commit is refused. What the commit does for snapshots of the group is in
`b2array.group.snapshots_on_disk`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

from b2array.array.snapshots import give_checksums, lacks_checksums
from b2array.commit.draft import Draft
from b2array.commit.entries import GroupChange, MemberChange, commit_entries
from b2array.commit.handle import Handle, Mode
from b2array.commit.leftovers import discard, is_abandoned
from b2array.errors import B2ArrayError, ConflictError, warn
from b2array.format.annotations import GroupCommit
from b2array.format.header import FIRST_BYTES
from b2array.frame.log import inspect_place
from b2array.frame.manifest import ARRAY, OTHER, Manifest, is_embedded, staged_path
from b2array.frame.source import FRAME_NAME
from b2array.group.local import LocalGroup, NewFrame, copier_of
from b2array.group.members import Members
from b2array.group.snapshots_on_disk import SnapshotsOnDisk
from b2array.group.transaction import Transaction, handle_new, next_note, require_names_free
from b2array.store.atomic import require_free
from b2array.store.base import MISSING, attempts

__all__ = ["LocalTransaction"]


class LocalTransaction(Transaction):
    """Changes to members of a local group that wait for `commit`.

    Members of a `marked` transaction note its number, so that readers do not open them together with members of an
    earlier state.
    """

    view: LocalGroup
    change: GroupChange
    _group: LocalGroup

    def __init__(self, group: LocalGroup, *, marked: bool = True) -> None:
        if marked:
            group.refresh()
        group.recover()
        view = group.copy()
        identity = view.manifest.identity or os.urandom(8).hex()
        super().__init__(group, view, GroupChange(identity, marked))
        self.on_disk = SnapshotsOnDisk(view, self.change, self._snapshots)

    def note_read(self, path: str) -> None:
        """Note that a member was read here: the commit is refused if it has another state by then."""
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
        """Open a member, which does not count as read."""
        self._require_open()
        with self._mutex.held:
            member = self.change.members.get(path)
            if member is not None:
                return member.handle
            if mode == "r" or is_embedded(path):
                return self.view.open(path, mode)
            self.view.require_own(path)
            self.view.apply_entry(path)
            handle = Handle(self.view.current(path), mode)
            opened = handle.snapshot.generation
            draft = handle.begin()
            handle.enter(draft)
            self.change.members[path] = MemberChange(handle, draft, opened=opened)
            return handle

    def _stage_new(self, name: str, suffix: str, new: NewFrame, *, overwrite: bool) -> tuple[str, Handle]:
        change, path = self.change, name + suffix
        self.view.require_own(path)
        overwrite = overwrite or name in change.removed
        if not overwrite or path not in change.removed.values():
            _require_place(self.view, path, overwrite=overwrite, is_marked=change.marked)
        token = os.urandom(8).hex()
        place = self.view.address(staged_path(path, token, sparse=False))
        draft = new(place, overwrite=False)
        if change.marked:
            draft.annotate(group_commit=next_note(self, path))
        handle = handle_new(draft)
        change.members[path] = MemberChange(handle, draft, token)
        change.names[path] = name
        return path, handle

    def remove(self, members: Mapping[str, str], states: Mapping[str, str] = MappingProxyType({})) -> None:
        """Let the commit delete members; forget new ones at once.

        `states` has the members that were copied, by path. If another writer changes such a member, the commit is
        refused.
        """
        self._require_open()
        change = self.change
        for path in members.values():
            self.view.require_own(path)
        change.moved.update(states)
        for name, path in members.items():
            member = change.members.pop(path, None)
            if member is not None:
                if path in states and member.draft is not None and member.draft.base is not None:
                    # The copy has the changes of this transaction; other writers know the state below them.
                    change.moved[path] = member.draft.base.generation
                _leave(self.view, path, member)
            if change.names.pop(path, None) is None:
                change.removed[name] = path
            else:
                change.moved.pop(path, None)
        self._update_members(removed=members)

    # The end.

    def _discard(self) -> None:
        if self.change.outcome != "open":  # the manifest may name what this would remove
            return
        for path, member in self.change.members.items():
            _leave(self.view, path, member)
        self.on_disk.discard()

    def _commit(self) -> list[Draft]:
        change = self.change
        drafts = [member.draft for member in change.members.values() if member.draft is not None]
        if self._snapshots.new:
            self.on_disk.members = _prepare_members(self)
        written = change.written()
        change.same = [path for path in self.on_disk.members.values() if path not in written]
        if written or change.removed or self._snapshots:
            self._commit_entries()
        self._ended = True
        for path in change.members.keys() - written.keys():
            _leave(self.view, path, change.members[path])
        return drafts

    def _commit_entries(self) -> None:
        change, view = self.change, self.view

        def require(before: Manifest) -> None:
            names = {*change.names.values()} - change.removed.keys()
            if names:
                near = _members_near(view, names, before)
                for name in change.removed:
                    near.remove(name)
                require_names_free(self.url, names, near)
            self.on_disk.require_fit(before)

        def show(after: Manifest) -> Members:
            members = self.members()
            if not change.marked:
                _list_changes(change, members)
            view.show(after, members)
            self._group.show(after, members)
            return members

        self.on_disk.copy_early()
        before, after = commit_entries(view, change, require=require, edit=self.on_disk.edit, show=show)
        if after is not None:
            self.on_disk.forget(before, after)


def _leave(view: LocalGroup, path: str, member: MemberChange) -> None:
    """Forget the changes to a member, and remove what was staged for it."""
    if member.draft is not None:
        if member.is_new:
            member.handle.abandon()
        else:
            member.handle.leave(None)
        member.draft.abort()
    if not member.token:
        return
    with suppress(OSError, B2ArrayError):  # `vacuum` removes what stays
        discard(view.store_of(staged_path(path, member.token, sparse=False)))


# Names.


def _require_place(view: LocalGroup, path: str, *, overwrite: bool, is_marked: bool) -> None:
    """Raise FileExistsError if something in a local directory excludes a new member at a path."""
    store = view.store_of(path)
    tries = attempts(store)
    while True:
        try:
            require_free(store, {"": FIRST_BYTES, FRAME_NAME: FIRST_BYTES}, "a frame", overwrite=overwrite)
        except (FileExistsError, *MISSING) as error:
            if is_abandoned(store):
                return
            # The view shows no member there, so that this one is later.
            if is_marked and inspect_place(store).frame is not None:
                raise ConflictError(f"another writer was faster: {error}") from None
            # Perhaps another writer has just deleted it.
            if next(tries, None) is None:
                raise
        else:
            return


def _members_near(view: LocalGroup, names: set[str], manifest: Manifest) -> Members:
    """Return the members that have these names, or decide whether new ones may have them.

    Only these are looked for: to list all members of a large group takes long.
    """
    near = view.members_near(names, manifest)
    for path, name in view.paths_of(names, manifest).items():
        near.add(name, path)
    return near


def _list_changes(change: GroupChange, members: Members) -> None:
    """Change the list of a group's members as a commit has changed the group."""
    for name in change.removed:
        members.remove(name)
    for path, name in change.names.items():
        members.add(name, path)


# Before a snapshot.


def _prepare_members(changes: LocalTransaction) -> dict[str, str]:
    """Prepare all members for a new snapshot, and return their paths by name.

    A snapshot writes to no member that b2array wrote. Other software writes no checksums, without which nobody sees if
    it writes over a chunk later: such members get them.
    """
    _move_out_embedded(changes)
    members = changes.view.without_mounts(changes.members())
    for path in members.values():
        member, note = changes.change.members.get(path), None
        if member is None:
            revision = changes.view.current(path)
            if not lacks_checksums(revision):
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
    """Let the commit of the group write chunks again that have no checksums; the member notes that, if need be."""
    for attempt in handle.attempts():
        with attempt as draft:
            if note is not None:
                draft.annotate(group_commit=note)
            give_checksums(draft)


def _move_out_embedded(changes: LocalTransaction) -> None:
    """Give embedded members separate frames, which can keep states."""
    inner = {name: path for name, path in changes.members().items() if is_embedded(path)}
    for name, path in inner.items():
        source = changes.view.open(path, "r")
        suffix = OTHER if source.frame.metalayer("b2nd") is None else ARRAY
        changes.remove({name: path})
        changes.create(name, suffix, copier_of(source, changes.storage_options), overwrite=True)
