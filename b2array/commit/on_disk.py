"""`Disk`: how `commit_group` commits to a group on a local disk.

Before the commit, the writer writes only where no reader looks: new tails behind the frames of members, new indexes and
frames next to their places. One write of the manifest is the commit: the manifest lists a pending step for each member
that was changed, made or deleted. From then on, readers of the group see all changes. To publish them, the writer takes
the steps (`b2array.commit.publication`), and then removes them from the manifest.

A writer that is killed before the commit leaves tails, which the next writer cuts off, and files that no reader sees,
which `b2array.vacuum` removes. A writer that is killed later leaves the pending steps, and the next writer takes them
first. Locks make other writers wait: a commit locks first the manifest, and then the members that it changes or has
read.

A change of a single member needs no pending step if one call of the system publishes it: that call is the commit. Where
the system cannot exchange two names, replacing a frame by one of the other layout takes two calls, and needs the
manifest.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from b2array import config
from b2array.buffers import Buffer
from b2array.catalog.known_manifests import another_group, read_manifest
from b2array.catalog.ledgers import MemberState, group_ledger
from b2array.catalog.local_listing import find_paths, list_members, list_near
from b2array.catalog.manifest import Kind, Manifest, PendingStep, RetiredFrame, is_embedded, staged_path
from b2array.catalog.names_of_members import Members
from b2array.catalog.needs import needs_of_group
from b2array.catalog.owners import ALONE
from b2array.catalog.redo import inspect_place, load_local_member
from b2array.commit import unwritten
from b2array.commit.bare_chunks import lacks_checksums
from b2array.commit.draft import Draft
from b2array.commit.frame_commit import Prepared, commit, stage
from b2array.commit.group_commit import Attempt, Committed, GroupChange, Locks, MemberChange, Overtaken, PresentMembers
from b2array.commit.leftovers import discard
from b2array.commit.manifest_writes import write_manifest
from b2array.commit.outcomes import create_unique
from b2array.commit.publication import Published, SeveralCallsError, publish_pending, publish_step
from b2array.commit.retired import copy_states, remove_retired
from b2array.errors import B2ArrayError, ConflictError
from b2array.format.annotations import GroupCommit
from b2array.format.frame import pack_header
from b2array.format.frame_header import FrameType
from b2array.format.ledger import object_name, pack_state
from b2array.format.state import State
from b2array.frame.revision import Revision
from b2array.store.base import MISSING, Store, Version, moved_away
from b2array.store.forces import together
from b2array.store.locks import locks_below

__all__ = ["Disk"]


class Disk:
    """The medium of a group on a local disk.

    Parameters
    ----------
    store : Store
        The group.
    directory : int
        The number of the directory that the transaction began with; 0 if it is not known.
    """

    def __init__(self, store: Store, directory: int = 0) -> None:
        self.store = store
        self._directory = directory
        # The states of drafts that this attempt has staged, by path.
        self._prepared: dict[str, Prepared] = {}
        # Steps of earlier commits that cannot be taken now, by path.
        self._left: Mapping[str, PendingStep] = {}
        # The paths of members whose locks this attempt holds.
        self._locked: set[str] = set()
        # Frames with the states of members to delete, by path.
        self._retired: dict[str, RetiredFrame] = {}
        # Lists of members that this attempt has written.
        self._lists: list[str] = []
        # The version of the manifest that this commit has written; None if a single step was the commit.
        self._stored: Version | None = None
        self._published = Published()

    def complete(self, change: GroupChange) -> None:
        """Copy states that snapshots need, encode open chunks, and commit new members next to their paths.

        This precedes the locks because it takes long. Each new member gets its frame in `MemberChange.made`.
        ConflictError: a member to change is gone. RuntimeError: this thread holds the lock of a member.
        """
        if paths := locks_below(self.store.url):
            raise RuntimeError(
                f"{self.store.url}: expected a thread that holds no lock in the group, found one that holds {paths[0]};"
                " commits of the group and this lock would wait for each other, so change the group outside of lock()"
            )
        # Other writers may change the members meanwhile: under the locks, `stage` copies what is still missing, and
        # raises the same error again if it persists.
        if change.removed:
            with suppress(OSError, B2ArrayError):
                self._retire_removed(change, change.begun)
        with together():
            for path, member in change.written.items():
                try:
                    unwritten.stage_all_chunks(member.draft)
                    if member.token:
                        member.made = commit(member.draft)
                        self._force_new(path, member)
                except MISSING:
                    raise moved_away(member.draft.store.url) from None

    def _force_new(self, path: str, member: MemberChange) -> None:
        """Force the frame of a new member, which waits next to its path, and the name of that frame to the disk."""
        self.store.below(staged_path(path, member.token, sparse=False)).force()
        outer = path.rpartition("/")[0]
        (self.store.below(outer) if outer else self.store).force()

    # Under the lock of the manifest.

    def begin_attempt(self, change: GroupChange, locks: Locks) -> Attempt:
        """Read the manifest, take the steps that are pending, lock the members, and read what the checks need.

        The members are the ones that the commit changes, and the ones that must be unchanged. Their locks are appended
        to `locks`. ConflictError: a member, or the directory of the group, is gone.
        """
        before, version = read_manifest(self.store)
        self._require_same_directory()
        self._left = publish_pending(self.store, before).left if before.pending else {}
        self._prepared, self._locked = {}, set()
        old = change.written.keys() - change.new.keys()
        read = change.must_be_unchanged()
        # All writers take locks in one order, so that none of them waits for another in a circle.
        for path in sorted(old | read):
            member = change.members.get(path)
            # A new member waits next to the path of the member that it replaces, which the transaction has read.
            if member is None or path in change.new:
                store = self.store.below(path)
                self._lock_member(path, store, inspect_place(store).name or "", locks)
            else:
                self._lock_member(path, member.draft.store, member.draft.name, locks)
        return Attempt(before, version, self._find_facts(change, before, read), locks)

    def _require_same_directory(self) -> None:
        """Raise ConflictError if the directory of the group was deleted or renamed since the transaction began."""
        try:
            number = os.stat(self.store.url).st_ino
        except MISSING:
            raise ConflictError(f"{self.store.url} was deleted or renamed since it was opened") from None
        if self._directory not in (0, number):
            raise another_group(self.store.url)

    def _lock_member(self, path: str, store: Store, name: str, locks: Locks) -> None:
        """Take the lock of a member, unless this attempt holds it, and append it to `locks`.

        The header of the member is in the object `name`. ConflictError: the member is gone.
        """
        if path in self._locked:
            return
        try:
            lock = store.lock(name)
        except MISSING:
            raise moved_away(store.url) from None
        locks.append(lock)
        lock.__enter__()
        self._locked.add(path)

    def _find_facts(self, change: GroupChange, before: Manifest, read: Iterable[str]) -> PresentMembers:
        """Read what the checks of a change need, given the manifest before the commit.

        `read` has the paths of the members that must be unchanged.
        """
        states = {path: inspect_place(self.store.below(path)).state for path in read}
        near = Members()
        if names := (change.new_names() if change.new else ()):
            near = list_near(self.store, names, before)
            for name in change.removed:
                near.remove(name)
        members = list_members(self.store, before) if change.snapshots.concern_all_members else None
        return PresentMembers(states, near, members)

    # Staging.

    def stage(self, change: GroupChange, attempt: Attempt) -> None:
        """Write everything except the last step of each member, and enter that step as pending in `attempt.staged`.

        This also copies the states of deleted members that snapshots need, and packs the states for a new snapshot.
        ConflictError: another writer has changed the same chunks, or a member is gone.
        """
        staged = attempt.staged
        with together():
            for path, member in change.written.items():
                if member.made is None:
                    self._stage_draft(change, attempt, path, member)
                else:
                    self._stage_new(change, attempt, path, member, member.made)
        staged.retired = [*change.snapshots.retired]
        if change.removed:
            self._stage_deletions(change, attempt)
        if change.snapshots.new:
            staged.snapshot = self._pack_snapshot(change, attempt)
        staged.pending = {**self._left, **staged.pending}

    def _stage_draft(self, change: GroupChange, attempt: Attempt, path: str, member: MemberChange) -> None:
        """Rebase a draft, write everything except its last step, and force what was written to the disk.

        Enter the pending step and the new state in `attempt.staged`. ConflictError: another writer has changed the same
        chunks, or the member is gone.
        """
        draft, token = member.draft, os.urandom(8).hex()
        note = GroupCommit(change.identity, attempt.before.number + 1, path) if change.explicit else None

        def put(pieces: Iterable[Buffer]) -> None:
            """Write pieces to a new file next to the member, and force it to the disk."""
            aside = self.store.below(staged_path(path, token, sparse=draft.sparse))
            create_unique(aside, "", pieces)
            aside.force()

        try:
            prepared = stage(draft, put, note)
        except MISSING:
            raise moved_away(draft.store.url) from None
        before = "" if draft.base is None else draft.base.generation
        if draft.base is None or not draft.base.frame.is_ours:
            # The state of a frame by other software includes the time of its file, and staging has just appended to
            # the file.
            before = inspect_place(self.store.below(path)).state
        after = prepared.state.frame.fingerprint.hex()
        kind: Kind = "index" if draft.sparse else "frame"
        step = PendingStep(kind, before, after, token)
        if prepared.is_patch:
            step = PendingStep("patch", before, after, prepared.header)
        self._prepared[path] = prepared
        attempt.staged.pending[path] = step
        attempt.staged.states[path] = prepared.state, prepared.header

    def _stage_new(
        self, change: GroupChange, attempt: Attempt, path: str, member: MemberChange, revision: Revision
    ) -> None:
        """Note the commit in the frame of a new member, `revision`, which waits next to its path.

        Enter the pending step and the new state in `attempt.staged`. ConflictError: somebody has removed that frame.
        """
        note = GroupCommit(change.identity, attempt.before.number + 1, path) if change.explicit else None
        if note is not None and revision.state.annotations.group_commit != note:
            draft = Draft(revision.store, revision)
            draft.annotate(group_commit=note)
            revision = member.made = commit(draft)
            self._force_new(path, member)
        place = self.store.below(path)
        aside = self.store.below(staged_path(path, member.token, sparse=False))
        if inspect_place(aside).state != revision.generation:
            raise ConflictError(f"{place.url}: somebody removed its new frame before the commit that needs it")
        before = inspect_place(place).lasting
        attempt.staged.pending[path] = PendingStep("frame", before, revision.generation, member.token)
        attempt.staged.states[path] = revision.state, revision.header

    def _stage_deletions(self, change: GroupChange, attempt: Attempt) -> None:
        """Enter a pending step for each deleted member, unless a new member has the same path, and replaces its frame.

        Copy the states of deleted members that snapshots need, and enter the retired frames. Both are entered in
        `attempt.staged`.
        """
        staged = attempt.staged
        for path in find_paths(self.store, change.removed.keys(), attempt.before):
            if path not in staged.pending and not is_embedded(path):
                before = inspect_place(self.store.below(path)).lasting
                staged.pending[path] = PendingStep("delete", before, "", os.urandom(8).hex())
        staged.retired += self._retire_removed(change, attempt.before).values()

    def unstage(self, attempt: Attempt) -> None:
        """Remove the files of an attempt, as far as possible; another attempt stages them again.

        New members stay next to their paths, and new tails in the files of members: the next writer cuts them off.
        """
        # `vacuum` removes the rest.
        with suppress(OSError, B2ArrayError):
            for path in self._prepared:
                step = attempt.staged.pending.get(path)
                if step is not None and step.token:
                    discard(self.store.below(step.aside(path)))
            self._delete_lists()

    def forget(self, path: str, member: MemberChange) -> None:
        """Remove the frame of a new member, which waits next to its path, as far as possible."""
        if member.token:
            with suppress(OSError, B2ArrayError):  # `vacuum` removes the rest
                discard(self.store.below(staged_path(path, member.token, sparse=False)))

    def discard(self, change: GroupChange) -> None:
        """Remove the copies of states that were made for snapshots, as far as possible."""
        for frame in [*self._retired.values(), *change.snapshots.retired]:
            remove_retired(self.store, frame.token)
        self._retired.clear()

    # The commit.

    def write(self, change: GroupChange, attempt: Attempt, after: Manifest, objects: Mapping[str, bytes]) -> None:
        """Write the lists that the manifest names, and then the manifest; or take a single step, which is the commit.

        This sets `change.committed`. Overtaken: another writer has replaced the manifest, without its lock. Raises the
        errors of `write_manifest`.
        """
        own = attempt.staged.pending.keys() - self._left.keys()
        is_all = not change.snapshots and not attempt.staged.retired and not attempt.before.summaries
        if not change.explicit and len(own) == 1 and is_all and self._take_only_step(attempt, *own):
            change.committed = attempt.before
            return
        for name, content in objects.items():
            self._lists.append(name)
            create_unique(self.store, name, content)
            # The list must reach the disk before the manifest that names it.
            self.store.below(name).force()
        try:
            written = write_manifest(self.store, after, attempt.version, keep=change.note_unknown)
        except ConflictError:
            if change.is_unknown or read_manifest(self.store)[1] == attempt.version:
                raise
            raise Overtaken from None
        self._stored = written.version
        change.committed = after

    def _take_only_step(self, attempt: Attempt, path: str) -> bool:
        """Take the only step of a commit: this is the commit. Do nothing and return False if that takes two calls."""
        step = attempt.staged.pending[path]
        try:
            version = publish_step(self.store, path, step, locked=path in self._locked, listed=False)
        except SeveralCallsError:
            return False
        if version is not None:
            self._published.patched[path] = version
        return True

    # Publishing.

    def publish(self, change: GroupChange, attempt: Attempt) -> Committed:
        """Take the pending steps, remove them from the manifest, and return the result of the commit.

        Delete what only dropped snapshots needed. Steps that fail stay in the manifest for the next writer.
        """
        visible = change.committed or attempt.before
        version = self._stored
        # The commit has happened: the manifest shows it to readers.
        with suppress(OSError, B2ArrayError):
            if version is not None:
                states = {}
                for path, member in change.written.items():
                    if member.draft.base is not None:
                        states[path] = member.draft.base
                self._published = publish_pending(self.store, visible, locked=self._locked, states=states)
                visible = replace(visible, pending=self._published.left)
                version = write_manifest(self.store, visible, version).version
                change.committed = visible
        states_after = {path: self._load_committed(attempt, visible, path) for path in attempt.staged.states}
        self._remove_unneeded(attempt.before, visible)
        return Committed(visible, version, states_after)

    def _load_committed(self, attempt: Attempt, visible: Manifest, path: str) -> Revision:
        """Return the state that the commit has given the member at a path, according to the manifest `visible`.

        Load it if its file was not patched. If that fails, the result has no version, and its handle reads it again.
        """
        state, header = attempt.staged.states[path]
        version = self._published.patched.get(path)
        if version is None:
            with suppress(OSError, B2ArrayError):
                return load_local_member(self.store, visible, path)
            header = b""
        generation = state.frame.fingerprint.hex()
        return Revision(self.store.below(path), state, 0, version, generation, ALONE, header=header)

    def _remove_unneeded(self, before: Manifest, after: Manifest) -> None:
        """Remove lists and retired frames that only dropped snapshots needed, as far as possible.

        `before` and `after` are the manifests before and after the commit.
        """
        if before.kept == after.kept:
            return
        with suppress(OSError, B2ArrayError):  # the commit stands, and `vacuum` removes the rest
            remaining = {*group_ledger(self.store.url, after).entries}
            gone = {*group_ledger(self.store.url, before).entries} - remaining
            places = [entry.place for entry in gone if not entry.packed]
            self.store.delete([*map(object_name, places)])
            for token in before.retired.keys() - after.retired.keys():
                remove_retired(self.store, token)

    def _delete_lists(self) -> None:
        """Delete the lists that this attempt has written, and forget their names."""
        names, self._lists = self._lists, []
        self.store.delete(names)

    # The members of a new snapshot.

    def _pack_snapshot(self, change: GroupChange, attempt: Attempt) -> dict[str, MemberState]:
        """Read and pack the states of the members of a new snapshot, as they are after the commit; return them by name.

        This may lock members that the commit does not write; see `_read_unchanged`. ConflictError: a member is gone, a
        commit of it still waits to be published, or other software has changed it.
        """
        members = change.snapshots.members
        same = [path for path in members.values() if path not in attempt.staged.states]
        unchanged = self._read_unchanged(change, attempt, same)
        states = {}
        for name, path in members.items():
            state = unchanged[path].state if path in unchanged else attempt.staged.states[path][0]
            states[name] = _pack_member(path, state)
        return states

    def _read_unchanged(self, change: GroupChange, attempt: Attempt, paths: Collection[str]) -> dict[str, Revision]:
        """Read the members at `paths`, which the commit does not write; return their states, from one moment, by path.

        This reads the members repeatedly until no state has changed since the last round. The last round locks the
        members. The first snapshot of a group always does so, because a writer that has seen no snapshot may be about
        to rewrite a file. ConflictError: a step of one of the members is pending, another writer has deleted a member,
        or other software has changed it.
        """
        before, pending = attempt.before, attempt.staged.pending.keys() | self._left.keys()
        if waiting := sorted({*paths} & pending):
            raise ConflictError(f"{self.store.url}: a commit of {waiting[0]} waits to be published")
        bases = change.snapshots.bases
        states = {path: bases[path] for path in paths if path in bases}
        for _ in range(config.retries if before.kept else 0):
            changed = [path for path in paths if self._update_state(path, before, states)]
            if not changed:
                return states
        for path in paths:
            if path not in states:
                self._update_state(path, before, states)
        # Each lock keeps a file descriptor, and descriptors may run out, so open no other file between the locks.
        for path in sorted(paths):
            self._lock_member(path, self.store.below(path), states[path].name, attempt.locks)
        for path in paths:
            self._update_state(path, before, states)
        return states

    def _update_state(self, path: str, before: Manifest, states: dict[str, Revision]) -> bool:
        """Read a member, put its state into `states`, and return whether this has changed `states`.

        `before` is the manifest before the commit. ConflictError: the member does not exist any more, or other software
        has changed it, so that its chunks have no checksums.
        """
        last = states.get(path)
        try:
            latest = load_local_member(self.store, before, path) if last is None else last.owner.load(last)
        except MISSING:
            raise ConflictError(f"{self.store.url}: another writer has deleted or moved {path} meanwhile") from None
        if lacks_checksums(latest):
            raise ConflictError(f"{latest.url} was changed by other software while the snapshot was taken")
        states[path] = latest
        return last is None or last.generation != latest.generation

    # The states of deleted members.

    def _retire_removed(self, change: GroupChange, manifest: Manifest) -> dict[str, RetiredFrame]:
        """Copy the states of deleted members that snapshots need; return the retired frames by the members' paths.

        `manifest` lists the snapshots; the ones that the change drops need nothing. Copies of an earlier call are used
        again if they still suffice. Raises the errors of `copy_states`.
        """
        if not change.removed or not manifest.kept:
            return {}
        ledger = group_ledger(self.store.url, manifest)
        names = {*ledger.names} - change.snapshots.removed
        if not names:
            return {}
        retired = {}
        for path in find_paths(self.store, change.removed.keys(), manifest):
            if is_embedded(path):  # snapshots give embedded members frames before they name their states
                continue
            frame = self._retire_member(path, manifest, names)
            if frame is not None:
                retired[path] = frame
        return retired

    def _retire_member(
        self,
        path: str,
        manifest: Manifest,
        names: Collection[str],
    ) -> RetiredFrame | None:
        """Copy the states of a member that the snapshots `names` need, and return the copy.

        An earlier copy that has them is returned again; one that lacks some of them is removed. Return None if there is
        no such member, or nothing to copy.
        """
        revision = inspect_place(self.store.below(path)).frame
        if revision is None:
            return None
        needs = needs_of_group(self.store, manifest, path, names)
        if not needs:
            return None
        frame = self._retired.get(path)
        needed = {(entry.name, need.state.generation) for need in needs for entry in need.entries}
        if frame is not None and needed <= {*frame.states}:
            return frame
        if frame is not None:
            del self._retired[path]
            remove_retired(self.store, frame.token)
        frame = copy_states(self.store, revision, needs)
        if frame is not None:
            self._retired[path] = frame
        return frame


def _pack_member(path: str, state: State) -> MemberState:
    """Return the packed state of a member, as the list of a snapshot names it."""
    is_sparse = state.frame.frame_type == FrameType.SPARSE
    packed = pack_state(state, pack_header(state.frame))
    return MemberState(path, state.frame.fingerprint, is_sparse, packed)
