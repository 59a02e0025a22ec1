"""`Bucket`: how `commit_group` commits to a group in an object store.

Before the commit, the writer puts objects only where no reader looks: chunks under numbers that no chunk had before,
and the index of each changed member under the name of its revision. Then one conditional write replaces the manifest,
whose rows name these revisions. That write is the commit.

After the commit, the writer publishes each member's index under the usual name, for readers that do not know the group,
unless a later index is already there. A writer that is killed before the commit leaves objects that no row names, and
`b2array.vacuum` removes them. A writer that is killed after the commit leaves a published index that is one commit old.

If another writer was faster, this one reads the manifest again. If the rows of its members are still the same, the
prepared objects remain valid, and the writer only writes the manifest again. Otherwise, it puts its changes on top of
the new state, or raises ConflictError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from b2array import threads
from b2array.catalog.census import complete_manifest
from b2array.catalog.known_manifests import KnownManifest, another_group
from b2array.catalog.manifest import Manifest, Row, index_name, is_embedded, name_of
from b2array.catalog.names_of_members import Members
from b2array.catalog.owners import BucketMember, load_member
from b2array.commit import unwritten
from b2array.commit.draft import Draft, detect_replacement, move_above_floor
from b2array.commit.group_commit import (
    Attempt,
    Committed,
    GroupChange,
    Locks,
    MemberChange,
    Overtaken,
    PresentMembers,
    commit_group,
)
from b2array.commit.manifest_writes import replace_manifest
from b2array.commit.outcomes import create_unique, look_at_frame, write_once
from b2array.commit.plan import CommitStep, Plan, plan
from b2array.commit.prepare import (
    bytes_of_plan,
    copy_whole,
    make_objects,
    make_plan,
    read_behind_header,
    read_facts,
    require_files,
)
from b2array.commit.publication import publish_new, publish_revision, remove_published, store_of_revision
from b2array.commit.snapshot_changes import SnapshotChanges
from b2array.errors import B2ArrayError, ConflictError, FormatError, UnsupportedError
from b2array.format.annotations import GroupCommit
from b2array.format.state import State
from b2array.frame.revision import Owner, Revision
from b2array.store.base import MISSING, HiddenError, Store, Version, attempts, conflict, moved_away, too_many_conflicts

__all__ = ["Bucket", "commit_member", "first_free_number", "map_concurrently", "write_earlier_revision"]

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 16
"""How many members a commit prepares or publishes at the same time."""


def commit_member(draft: Draft) -> Revision:
    """Commit one member through its group: changes of the member, or a new frame in its place. Return its new state.

    Raises the errors of `commit_group`, and ValueError if the frame is not a member of a group.
    """
    base = draft.destination.old if draft.base is None else draft.base
    owner = None if base is None else base.owner
    if base is None or not isinstance(owner, BucketMember):
        raise ValueError(f"{draft.url}: expected a member of a group, found a frame by itself")
    manifests, url = owner.known, owner.known.url
    begun, version = manifests.last_seen()
    noted = base.state.annotations.group_commit
    row = (begun.rows or {}).get(owner.name)
    # The commit takes the path from the row, if there is one by then.
    path = row.path if row is not None else (owner.name if noted is None else noted.path)
    # A new frame replaces whatever is in the place of the member.
    removed = {owner.name: path} if draft.base is None else {}
    change = GroupChange(
        url,
        begun,
        version,
        Members(),
        begun.identity,
        explicit=False,
        snapshots=SnapshotChanges(url, begun),
        members={path: MemberChange(owner.name, draft)},
        removed=removed,
    )
    change.note_written()
    committed = commit_group(Bucket(manifests), change)
    return next(iter(committed.states.values()))


def map_concurrently(
    function: Callable[[T], R],
    items: Collection[T],
) -> list[R]:
    """Call a function for each item in threads, up to 16 at a time, and return the results in order."""
    width = min(len(items), _AT_ONCE)
    return list(threads.ahead(function, list(items), max(1, width)))


@dataclass(frozen=True, slots=True)
class _Revised:
    """A revision that waits until the manifest lists it.

    Parameters
    ----------
    draft : Draft
        The changes of the member.
    source : Draft
        The draft with the chunks that the revision contains: `draft`, or a draft of the whole contiguous frame.
    plan : Plan
        The packed state.
    row : Row
        The row for the manifest.
    identity : str
        The identity of the group.
    base : str
        The generation that this revision replaces; "" for a new member.
    stored : Version, optional
        The version of the object with the index.
    published : Version, optional
        For a new member, the version of its published index. The commit publishes a new member before it writes the
        manifest, so that no other frame can occupy the place.
    """

    draft: Draft
    source: Draft
    plan: Plan
    row: Row
    identity: str
    base: str
    stored: Version | None
    published: Version | None

    def still_fits(self, manifest: Manifest) -> bool:
        """Whether the revision that an earlier attempt has prepared can be listed in a manifest as it is."""
        row = (manifest.rows or {}).get(name_of(self.row.path))
        # After a long time, `vacuum` may have removed the prepared index.
        if self.identity != manifest.identity or self.draft.staging.is_old:
            return False
        if self.draft.base is None:
            return row is None or self.row.number > row.number
        return row is not None and row.generation == self.base


class Bucket:
    """The medium of a group in an object store.

    Parameters
    ----------
    manifests : KnownManifest
        The manifest of the group.
    """

    def __init__(self, manifests: KnownManifest) -> None:
        self.store = manifests.group
        self._known = manifests
        self._is_first = True
        # The revisions that this attempt or an earlier one has prepared, by the names of members.
        self._revised: dict[str, _Revised] = {}

    def complete(self, change: GroupChange) -> None:
        """Encode open chunks."""
        map_concurrently(lambda member: unwritten.stage_all_chunks(member.draft), change.written.values())

    def begin_attempt(self, change: GroupChange, locks: Locks) -> Attempt:  # noqa: ARG002
        """Return an attempt with the manifest before the commit, and with what the checks need.

        The first attempt takes the manifest that the transaction began with, unless the store has locks; the others
        read it. If it has no rows, this lists the files of the group. If it has no rows or no identity, this writes one
        with both. `locks` gets no locks. Overtaken: another writer has replaced the manifest first. ConflictError:
        another group is in the place now, or a member to change is missing.
        """
        # Under a lock, no writer can replace the manifest after it was read. Without one, the conditional write fails
        # if the manifest of the start is out of date: so most commits do not read it again.
        if self._is_first and not self.store.can.lock:
            before, version = change.begun, change.version
        else:
            before, version = self._known.read(hidden_is_missing=not change.begun.identity)
        self._is_first = False
        if change.begun.identity not in ("", before.identity):
            raise another_group(self.store.url)
        if before.rows is None or not before.identity:
            # A member's note of its group counts only if a manifest lists the member, so write the manifest first.
            try:
                before = complete_manifest(self.store, before)
            except ConflictError:
                raise Overtaken from None
            before = replace(before, identity=before.identity or change.identity or os.urandom(8).hex())
            _require_listed(change, before)
            try:
                replace_manifest(self._known, before, version)
            except ConflictError:
                raise Overtaken from None
            before, version = self._known.last_seen()
        return Attempt(before, version, _find_facts(change, before), [])

    # Staging.

    def stage(self, change: GroupChange, attempt: Attempt) -> None:
        """Adopt members that note no group yet, rebase the drafts, and write the new revisions; publish new members.

        This enters rows and states in `attempt.staged`. Revisions that an earlier attempt has prepared for the same
        rows stay. ConflictError: another writer has changed the same chunks, or files were removed. FileExistsError: a
        frame that is not a member occupies the place of a new member.
        """
        self._adopt_unwritten(change, attempt.before)
        members = {member.name: (path, member) for path, member in change.written.items()}
        self._revised = {name: revised for name, revised in self._revised.items() if name in members}
        ready = {name for name, revised in self._revised.items() if revised.still_fits(attempt.before)}
        for name in ready:
            require_files(self._revised[name].plan, members[name][1].draft)
        waiting = [name for name in members if name not in ready]
        revised = map_concurrently(lambda name: self._revise(attempt.before, *members[name]), waiting)
        self._revised.update(zip(waiting, revised, strict=True))
        for name, each in self._revised.items():
            attempt.staged.rows[name] = each.row
            attempt.staged.states[each.row.path] = each.plan.require_state(), each.plan.header

    def _adopt_unwritten(self, change: GroupChange, manifest: Manifest) -> None:
        """Adopt the members that the commit names but does not write, unless they note their group already.

        This puts the new states into `change.unadopted`. Deleted members are adopted as well. ConflictError: a member
        that was read or moved has changed since.
        """
        rows = manifest.rows or {}
        removed = {*change.removed.values()}
        for path, state in change.unadopted.items():
            row = rows.get(name_of(path))
            is_written = path in change.written and path not in removed
            if is_written or row is None or row.generation or _is_adopted(state, manifest, row):
                continue
            # A later attempt at the commit must know the state that this one has made.
            change.unadopted[path] = _write_adoption(state, GroupCommit(manifest.identity, 0, row.path))
        self._adopt_removed([path for path in removed if path not in change.unadopted], manifest)

    def _adopt_removed(self, paths: Collection[str], manifest: Manifest) -> None:
        """Adopt the members at `paths`, which the commit deletes or replaces, unless they note their group already.

        Another writer may have opened such a member by its URL. Without the note, its next commit would be acknowledged
        and then lost; and if this writer were killed after the commit, the member could still be opened by its URL.
        """
        rows = manifest.rows or {}

        def adopt(name: str) -> None:
            """Adopt the present state of a member, unless it is missing or damaged: then nobody else can change it."""
            member = BucketMember(self._known, name)
            try:
                _adopt_latest(member, load_member(member, manifest), manifest)
            except HiddenError:
                # Another writer may be able to read what this one cannot.
                raise
            except (*MISSING, FormatError, UnsupportedError):
                return

        names = [name_of(path) for path in paths if not is_embedded(path)]
        map_concurrently(adopt, [name for name in names if name in rows and not rows[name].generation])

    def _revise(self, manifest: Manifest, path: str, member: MemberChange) -> _Revised:
        """Rebase the draft of the member at a path, write its revision where no reader looks yet, and return it.

        The draft notes the commit. A contiguous member is written as a whole, after copying its chunks. A new member is
        also published. ConflictError: another writer has changed the same chunks, or files of new chunks were removed.
        FileExistsError: another frame occupies the place of a new member.
        """
        draft, group = member.draft, self.store
        row = (manifest.rows or {}).get(member.name)
        if draft.base is None:
            move_above_floor(draft, manifest.gone.get(path, 0))
        else:
            _rebase_and_adopt(BucketMember(self._known, member.name), draft, manifest)
            path = path if row is None else row.path
        base = "" if draft.base is None or row is None else row.generation
        number = manifest.number + 1
        draft.annotate(group_commit=GroupCommit(manifest.identity, number, path))
        source = draft
        next_plan = make_plan(draft, draft.base)
        # A contiguous member is one object, and an object store cannot append: write all chunks to a new object.
        if next_plan.step == CommitStep.COMPACT and draft.base is not None:
            source = copy_whole(draft, draft.base)
            next_plan = make_plan(source, None)
        require_files(next_plan, draft)
        make_objects(next_plan, draft)
        state = next_plan.require_state()
        new_row = Row(path, state.frame.fingerprint.hex(), draft.sparse, number, _next_number(draft, path, manifest))
        published = None
        if draft.base is None and row is None:
            content = b"".join(bytes_of_plan(next_plan, source))
            with detect_replacement(draft):
                published = publish_new(group, new_row, manifest.identity, state, content)
        name = index_name(new_row.generation) if new_row.sparse else ""
        with detect_replacement(draft):
            stored = create_unique(store_of_revision(group, new_row), name, bytes_of_plan(next_plan, source))
        return _Revised(draft, source, next_plan, new_row, manifest.identity, base, stored, published)

    def unstage(self, attempt: Attempt) -> None:
        """Remove nothing: requests may still be under way, and `vacuum` removes what no manifest names."""

    def forget(self, path: str, member: MemberChange) -> None:
        """Remove nothing: in an object store, new members wait in no place."""

    def discard(self, change: GroupChange) -> None:
        """Remove nothing: `complete` writes nothing for snapshots."""

    # The commit.

    def write(self, change: GroupChange, attempt: Attempt, after: Manifest, objects: Mapping[str, bytes]) -> None:
        """Write the lists that the manifest names, and then the manifest, and set `change.committed` to the stored one.

        If nobody knows whether the manifest was written, the drafts keep their files. Overtaken: another writer was
        faster.
        """
        for name, content in objects.items():
            create_unique(self.store, name, content)

        def keep() -> None:
            """Make the drafts keep their files when they end, because the manifest may name them."""
            change.note_unknown()
            for member in change.members.values():
                member.draft.staging.files.is_needed = True

        try:
            change.committed = replace_manifest(self._known, after, attempt.version, is_commit=True, keep=keep)
        except ConflictError:
            raise Overtaken from None

    # Publishing.

    def publish(self, change: GroupChange, attempt: Attempt) -> Committed:
        """Publish the new revisions that the manifest still lists, and return the result of the commit.

        Remove the published indexes of deleted members, and abort the drafts with copies of contiguous members.
        """
        newest, version = self._known.last_seen()
        names = {*change.removed, *self._revised}
        remove_published(self.store, attempt.before, newest, names)
        revised = list(self._revised.values())
        states = map_concurrently(partial(self._publish_one, newest), revised)
        for each in revised:
            if each.source is not each.draft:
                each.source.abort()
        by_path = {each.row.path: state for each, state in zip(revised, states, strict=True)}
        return Committed(newest, version, by_path)

    def _publish_one(self, newest: Manifest, revised: _Revised) -> Revision:
        """Publish a revision if the `newest` manifest still lists it, and return the new state of the member.

        Errors of the store are ignored. A new member was published before the commit.
        """
        row, name = revised.row, name_of(revised.row.path)
        version = revised.published
        row_now = (newest.rows or {}).get(name)
        state = revised.plan.require_state()
        if version is None and row_now is not None and row_now.generation == row.generation:
            base = None if revised.draft.base is None else revised.draft.base.owner
            expected = base.published if isinstance(base, BucketMember) else None
            content = b"".join(bytes_of_plan(revised.plan, revised.source))
            # Readers that know the group find the revision all the same.
            with suppress(OSError, B2ArrayError):
                version = publish_revision(self.store, row, revised.identity, state, content, expected)
        return Revision(
            store_of_revision(self.store, row),
            state,
            0,
            revised.stored,
            row.generation,
            BucketMember(self._known, name, version),
            header=revised.plan.header,
            name=index_name(row.generation) if row.sparse else "",
        )


def _find_facts(change: GroupChange, before: Manifest) -> PresentMembers:
    """Return what `GroupChange.require_fit` needs, from the rows of the manifest before the commit; read nothing.

    A member that notes no group yet has no generation in its row, so here it passes as unchanged: its adoption finds
    out later. All members except the deleted ones count as near the new names.
    """
    rows = before.rows or {}
    states = {}
    for path in change.must_be_unchanged():
        row = rows.get(name_of(path))
        if row is not None and row.path == path:
            states[path] = row.generation
            if path in change.unadopted and not row.generation:
                states[path] = change.moved.get(path) or change.read[path]
    near = Members()
    if change.new_names():
        near = Members({name: rows[name].path for name in rows.keys() - change.removed.keys()})
    members = before.members if change.snapshots.concern_all_members and change.explicit else None
    return PresentMembers(states, near, members)


def _require_listed(change: GroupChange, manifest: Manifest) -> None:
    """Raise ConflictError if a group that has lost its manifest has lost a member to change as well.

    Then the whole group was probably deleted, and a new manifest would make it again.
    """
    for member in change.written.values():
        if not member.is_new and member.name not in (manifest.rows or {}):
            raise moved_away(member.draft.url)


def _rebase_and_adopt(member: BucketMember, draft: Draft, manifest: Manifest) -> None:
    """Load the listed state of a member, and put the changes of a draft on top of it; adopt the member if necessary.

    ConflictError: another writer has changed the same chunks, or the member is gone.
    """
    if draft.base is None:
        raise ValueError(f"{draft.url}: expected a draft of an existing member, found one of a new member")
    try:
        current = load_member(member, manifest, last=draft.base)
    except HiddenError:
        raise
    except MISSING:
        raise moved_away(draft.url) from None
    draft.rebase(current)
    if not (manifest.rows or {})[member.name].generation:
        _adopt_latest(member, current, manifest, draft)


def _is_adopted(state: Revision, manifest: Manifest, row: Row) -> bool:
    """Whether a member notes the group of a manifest, at the path in its row."""
    return state.state.annotations.is_member(manifest.identity, row.path)


def _adopt_latest(
    member: BucketMember,
    current: Revision,
    manifest: Manifest,
    draft: Draft | None = None,
) -> None:
    """Adopt a member that has no revision yet, and put the changes of the draft, if any, on top of its new state.

    `current` is its state as the caller knows it; if another writer was faster, this loads the newer state. If the
    member notes its group already, this does nothing. ConflictError: another writer has changed the same chunks.
    """
    row = (manifest.rows or {})[member.name]
    for _ in attempts(current.store):
        if _is_adopted(current, manifest, row):
            return
        try:
            adopted = _write_adoption(current, GroupCommit(manifest.identity, 0, row.path))
        except ConflictError:
            # Another writer was faster: adopt the new state.
            current = load_member(member, manifest)
            if draft is not None:
                draft.rebase(current)
        else:
            if draft is not None:
                draft.rebase(adopted, is_equal=True)
            return
    raise too_many_conflicts(current.store)


def _write_adoption(current: Revision, note: GroupCommit) -> Revision:
    """Replace the published index of a frame by an equal one that has the note of its group; return the new state.

    A contiguous frame is written again as a whole, because an object store cannot change a part of an object. A writer
    that opened the frame earlier then fails to replace the index, and learns that the group exists. All chunks stay in
    their places, because the caller's draft may refer to them. ConflictError: another writer was faster.
    """
    draft = Draft(current.store, current)
    try:
        draft.annotate(group_commit=note)
        change = draft.freeze()
        # The plan of an append keeps the chunks in their places, although the object is then rewritten as a whole.
        facts = replace(read_facts(change, current, draft), appendable=True)
        next_plan = plan(change, current, facts)
        next_plan = next_plan.otherwise or next_plan
        chunks = () if current.sparse else read_behind_header(current)
        content = b"".join(bytes_of_plan(next_plan, draft, chunks))
    finally:
        draft.staging.close()
    state = next_plan.require_state()
    written = write_once(
        current.store,
        partial(current.store.replace, current.name, content, expected=current.version),
        partial(look_at_frame, current.store, state, current.version, sparse=current.sparse),
    )
    version = written.version
    if written.content is not None and written.content.generation != state.frame.fingerprint.hex():
        # The group has committed at once.
        raise conflict(current.url)
    return Revision(
        current.store,
        state,
        0,
        version,
        state.frame.fingerprint.hex(),
        _with_published(current.owner, version),
        header=next_plan.header,
    )


def _with_published(owner: Owner, version: Version | None) -> Owner:
    """Return the owner of a member with the version of the published index; return other owners unchanged."""
    return replace(owner, published=version) if isinstance(owner, BucketMember) else owner


def write_earlier_revision(
    group: Store,
    draft: Draft,
    path: str,
    state: State,
    note: GroupCommit,
) -> Row:
    """Write the revision of an earlier state, whose chunks the draft of a new frame has copied; return a row for it.

    The manifest does not list the row. A snapshot in the copy of a group names such revisions. `path` is the member's
    path in the copy, and `note` the note of that group.
    """
    change = draft.freeze()
    if change.new is None:
        raise ValueError(f"{draft.url}: expected the draft of a new frame")
    notes = replace(
        state.annotations,
        identity=draft.state.annotations.identity,
        group_commit=note,
        next=None,
        kept=None,
    )
    alone = replace(
        change,
        new=replace(change.new, state=state.with_annotations(notes)),
        numbers=change.numbers[:0],
        codes=change.codes[:0],
        sizes=change.sizes[:0],
        records=change.records[:0],
        order=None,
        geometry=None,
        attrs={},
        before=notes,
        after=notes,
        keeps=(),
        drops=(),
    )
    next_plan = plan(alone, None, read_facts(alone, None, draft))
    generation = next_plan.require_state().frame.fingerprint.hex()
    following = draft.staging.next if draft.sparse else 0
    row = Row(path, generation, draft.sparse, note.number, following)
    name = index_name(generation) if row.sparse else ""
    create_unique(store_of_revision(group, row), name, bytes_of_plan(next_plan, draft))
    return row


def _next_number(draft: Draft, path: str, manifest: Manifest) -> int:
    """Return the first number that no chunk file at a path has ever had, counting the new files of a draft."""
    first = first_free_number(manifest, path)
    return max(first, draft.staging.next) if draft.sparse else first


def first_free_number(manifest: Manifest, path: str) -> int:
    """Return the first number that no chunk file at a path has ever had, for the chunks of a new member.

    Late requests of other writers may still write or delete objects with smaller numbers.
    """
    # If the member was deleted earlier, the manifest has noted the number.
    first = manifest.gone.get(path, 0)
    row = (manifest.rows or {}).get(name_of(path))
    if row is None or row.path != path:
        return first
    return max(first, row.next)
