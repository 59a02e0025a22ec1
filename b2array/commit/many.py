"""One commit of several members of a group in an object store, or of one of them.

Before its last step, the writer puts objects only where no reader looks: chunks under numbers that no chunk had before,
and the index of each changed member under the name of its revision. Then one conditional write replaces the manifest,
whose rows name these revisions. That write is the commit: `commit_rows`.

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
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from b2array import threads
from b2array.commit.census import complete_manifest
from b2array.commit.draft import Draft, rise_above
from b2array.commit.manifests import replace_manifest
from b2array.commit.outcomes import create_under_own_name, look_at_frame, write_once
from b2array.commit.plan import CommitStep, Plan, plan
from b2array.commit.prepare import make_objects, make_plan, observe, pieces, require_files, whole
from b2array.commit.unwritten import complete
from b2array.errors import B2ArrayError, ConflictError, FormatError, UnsupportedError
from b2array.format import summary
from b2array.format.annotations import GroupCommit
from b2array.format.state import State
from b2array.frame.catalog import Catalog, another_group
from b2array.frame.manifest import MANIFEST, Manifest, Row, data_path, index_name, is_embedded
from b2array.frame.snapshot import Member, Snapshot, load_member, load_published
from b2array.frame.source import FRAME_NAME
from b2array.store.base import (
    MISSING,
    Store,
    Version,
    attempts,
    conflict,
    too_many_conflicts,
)

__all__ = ["Committed", "commit_member", "commit_rows", "map_concurrently", "publish_again", "write_earlier_revision"]

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 16
"""How many members a commit prepares or publishes at the same time."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit: the manifest, and the new states of the members by their names."""

    manifest: Manifest
    snapshots: Mapping[str, Snapshot]


@dataclass(frozen=True, slots=True)
class _Prepared:
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
        The revision that this revision replaces; "" for a new member.
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

    @property
    def index(self) -> str:
        """The name of the object with the index, in the store of the revision."""
        return index_name(self.row.revision) if self.row.sparse else ""


def commit_member(draft: Draft) -> Snapshot:
    """Commit one member through its group: changes of the member, or a new frame in its place.

    Raises the errors of `commit_rows`, and ValueError if the frame is not a member of a group.
    """
    base = draft.destination.old if draft.base is None else draft.base
    if base is None or base.member is None:
        raise ValueError(f"{draft.url}: expected a member of a group, found a frame by itself")
    member = base.member
    noted = base.state.annotations.group_commit
    paths = {} if noted is None else {member.name: noted.path}
    committed = commit_rows(member.catalog, {member.name: draft}, paths=paths)
    return committed.snapshots[member.name]


def commit_rows(
    catalog: Catalog,
    drafts: Mapping[str, Draft],
    *,
    paths: Mapping[str, str] | None = None,
    removed: AbstractSet[str] = frozenset(),
    identity: str = "",
    unadopted: Mapping[str, Snapshot] = MappingProxyType({}),
    require: Callable[[Manifest], None] = lambda _: None,
    edit: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    start: tuple[Manifest, Version | None] | None = None,
) -> Committed:
    """Commit changes of members, new members and deletions: one write of the manifest.

    This first encodes open chunks. Each attempt takes the lock of the manifest, if there is one, rebases the drafts,
    adopts members that note no group yet, and writes the new revisions. A group without rows first gets a manifest with
    rows. After the commit, this publishes the new revisions. The caller ends the drafts.

    Parameters
    ----------
    catalog : Catalog
        The manifest.
    drafts : mapping of str to Draft
        The changes, by the names of members. A draft without a base makes a member.
    paths : mapping of str to str
        The paths of new members, by their names.
    removed : set of str
        Names of members to delete. A new member may have the same name.
    identity : str
        The identity for a group that has no commit yet.
    unadopted : mapping of str to Snapshot
        The states of members that the transaction has only read or moved and that do not note the group yet, by name.
        The commit adopts these members, and fails if one of them has changed since.
    require : callable
        Called with the manifest before each attempt; raises ConflictError if the changes do not fit any more.
    edit : callable
        Returns the manifest with further changes, for example of its snapshots.
    start : (Manifest, Version), optional
        The manifest that the transaction started from. ConflictError: the group was deleted since, or replaced by
        another one.

    Raises
    ------
    ConflictError
        Another writer has changed a member or a row that these changes start from.
    FileExistsError
        A frame that is not a member of the group occupies the place of a new member.
    """
    paths = paths or {}
    prepared: dict[str, _Prepared] = {}
    group = catalog.group
    before = Manifest()
    map_concurrently(complete, drafts.values())
    for attempt in attempts(group):
        with group.lock(MANIFEST):
            # Under a lock, no writer can replace the manifest after it was read. Without one, the conditional write
            # fails if the manifest of the start is out of date: so most commits do not read it again.
            if attempt or group.can.lock:
                seen = catalog.read()
            else:
                seen = start or catalog.last_seen()
            manifest, version = seen
            if start is not None and start[0].identity not in ("", manifest.identity):
                raise another_group(group.url)
            if manifest.rows is None or not manifest.identity:
                # A member's note of its group counts only if a manifest lists the member, so write the manifest first.
                manifest = _with_identity(complete_manifest(group, manifest), identity)
                _require_listed(drafts, manifest)
                try:
                    replace_manifest(catalog, manifest, version)
                except ConflictError:
                    # Another writer was faster: start again from the new manifest.
                    continue
                manifest, version = catalog.last_seen()
            require(manifest)
            unadopted = _adopt_members(unadopted, manifest)
            _adopt_removed(catalog, [*removed - unadopted.keys()], manifest)
            _prepare(catalog, drafts, paths, manifest, prepared)
            before = manifest
            after = edit(_next_manifest(manifest, prepared, removed))
            keep = partial(_keep_files, drafts.values())
            try:
                newest = replace_manifest(catalog, after, version, is_commit=True, keep=keep)
            except ConflictError:
                continue
            break
    else:
        raise too_many_conflicts(group)
    snapshots = _publish(catalog, prepared, before, newest, removed)
    return Committed(after, snapshots)


def map_concurrently(
    function: Callable[[T], R],
    items: Collection[T],
) -> list[R]:
    """Call a function for each item, and return the results in order; several calls run at a time.

    Most calls wait for requests.
    """
    width = min(len(items), _AT_ONCE)
    return list(threads.ahead(function, list(items), max(1, width)))


def _adopt_members(unadopted: Mapping[str, Snapshot], manifest: Manifest) -> dict[str, Snapshot]:
    """Commit a note of the group to members that a transaction has only read or moved, unless they note it already.

    Return their states after that. ConflictError: one of them has changed since.
    """
    rows = manifest.rows or {}
    adopted = dict(unadopted)
    for name, member in unadopted.items():
        row = rows.get(name)
        if row is not None and not row.revision and not _is_adopted(member, manifest, row):
            adopted[name] = _adopt(member, GroupCommit(manifest.identity, 0, row.path))
    return adopted


def _adopt_removed(catalog: Catalog, removed: Collection[str], manifest: Manifest) -> None:
    """Commit a note of the group to the members that the commit deletes or replaces, unless they note it already.

    Another writer may have opened such a member by its URL. Without the note, its next commit would be acknowledged and
    then lost; and if this writer were killed after the commit, the member could still be opened by its URL.
    """

    def adopt(name: str) -> None:
        """Adopt the present state of one member, unless it cannot be read: then nobody else can change it, either."""
        with suppress(*MISSING, FormatError, UnsupportedError):
            current = load_member(Member(catalog, name), manifest)
            _adopt_latest(current, manifest)

    rows = manifest.rows or {}
    named = [name for name in removed if name in rows]
    map_concurrently(adopt, [name for name in named if not (rows[name].revision or is_embedded(rows[name].path))])


def _require_listed(drafts: Mapping[str, Draft], manifest: Manifest) -> None:
    """Raise ConflictError if a group that has lost its manifest has lost a member to change as well.

    Then the whole group was probably deleted, and a new manifest would make it again.
    """
    for name, draft in drafts.items():
        if draft.base is not None and name not in (manifest.rows or {}):
            raise _missing_member(draft)


def _missing_member(draft: Draft) -> ConflictError:
    """Return the error for a commit that cannot find a member to change."""
    return ConflictError(f"{draft.url} was deleted or moved since it was opened")


def _is_adopted(member: Snapshot, manifest: Manifest, row: Row) -> bool:
    """Whether a member notes the group of a manifest, at the path in its row."""
    return member.state.annotations.is_member(manifest.identity, row.path)


def _with_identity(manifest: Manifest, identity: str) -> Manifest:
    """Return the manifest with an identity: the present one, or else `identity`, or else a random one."""
    if manifest.identity:
        return manifest
    return replace(manifest, identity=identity or os.urandom(8).hex())


def _next_manifest(
    manifest: Manifest,
    prepared: Mapping[str, _Prepared],
    removed: Collection[str],
) -> Manifest:
    """Return the manifest that the commit writes."""
    rows = dict(manifest.rows or {})
    gone = dict(manifest.gone)
    left = set()
    for name in removed:
        row = rows.pop(name, None)
        if row is None:
            continue
        left.add(row.path)
        # Another process may still be deleting chunks here, so a later member must not reuse their numbers.
        first = gone.get(row.path, 0)
        gone[row.path] = max(row.next, first)
    records = {}
    for name, new in prepared.items():
        path = new.row.path
        rows[name] = new.row
        gone.pop(path, None)
        state = new.plan.require_state()
        records[path] = summary.pack(state, new.plan.header)
    after = replace(
        manifest,
        rows=dict(sorted(rows.items())),
        gone=gone,
        number=manifest.number + 1,
    )
    described = after.with_summaries(records, left - records.keys(), members=after.members)
    return described.with_commit(os.urandom(8).hex())


def _keep_files(drafts: Collection[Draft]) -> None:
    """Make drafts keep their files when they end, because the manifest may name them."""
    for draft in drafts:
        draft.staging.files.is_needed = True


# Revisions.


def _prepare(
    catalog: Catalog,
    drafts: Mapping[str, Draft],
    paths: Mapping[str, str],
    manifest: Manifest,
    prepared: dict[str, _Prepared],
) -> None:
    """Rebase drafts, write their revisions, and add these to `prepared`.

    Revisions that an earlier attempt has prepared for the same rows stay. ConflictError: another writer has changed the
    same chunks, or files were removed.
    """
    rows = manifest.rows or {}

    def is_ready(name: str) -> bool:
        """Whether an earlier attempt has prepared the revision for the same row."""
        draft = drafts[name]
        ready = prepared.get(name)
        row = rows.get(name)
        # After a long time, `vacuum` may have removed the prepared index.
        if ready is None or ready.identity != manifest.identity or draft.staging.is_old:
            return False
        if draft.base is None:
            return row is None or ready.row.number > row.number
        return row is not None and row.revision == ready.base

    def prepare_one(name: str) -> _Prepared:
        """Rebase a draft, write its revision, and return it."""
        draft = drafts[name]
        row = rows.get(name)
        is_new = draft.base is None
        if not is_new:
            _rebase_and_adopt(Member(catalog, name), draft, manifest)
        path = paths[name] if row is None or is_new else row.path
        if is_new:
            rise_above(draft, manifest.gone.get(path, 0))
        return _prepare_revision(catalog, draft, path, manifest, publishes=is_new and row is None)

    waiting = [name for name in drafts if not is_ready(name)]
    for name in drafts.keys() - {*waiting}:
        require_files(prepared[name].plan, drafts[name])
    revisions = map_concurrently(prepare_one, waiting)
    prepared.update(zip(waiting, revisions, strict=True))


def _rebase_and_adopt(member: Member, draft: Draft, manifest: Manifest) -> None:
    """Put the changes of a draft on top of the listed state of its member; adopt the member if it notes no group.

    ConflictError: another writer has changed the same chunks, or the member is gone.
    """
    if draft.base is None:
        raise ValueError(f"{draft.url}: expected a draft of an existing member, found one of a new member")
    try:
        current = load_member(member, manifest, last=draft.base)
    except MISSING:
        raise _missing_member(draft) from None
    draft.rebase(current)
    if not (manifest.rows or {})[member.name].revision:
        _adopt_latest(current, manifest, draft)


def _adopt_latest(current: Snapshot, manifest: Manifest, draft: Draft | None = None) -> None:
    """Adopt the latest state of a member without a revision, and put the changes of the draft, if any, on top of it.

    ConflictError: another writer has changed the same chunks.
    """
    member = current.member
    if member is None:
        raise ValueError(f"{current.url}: expected a member of a group, found a frame by itself")
    row = (manifest.rows or {})[member.name]
    for _ in attempts(current.store):
        if _is_adopted(current, manifest, row):
            return
        try:
            adopted = _adopt(current, GroupCommit(manifest.identity, 0, row.path))
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


def _adopt(current: Snapshot, note: GroupCommit) -> Snapshot:
    """Replace the published index of a frame by an equal one that notes its group, and return the new state.

    A writer that opened the frame earlier then fails to replace the index, and learns that the group exists. All chunks
    stay in their places, because the caller's draft may refer to them. ConflictError: another writer was faster.
    """
    draft = Draft(current.store, current)
    try:
        draft.annotate(group_commit=note)
        change = draft.freeze()
        # The plan of an append keeps the chunks in their places, although the object is then rewritten as a whole.
        facts = replace(observe(change, current, draft), appendable=True)
        next_plan = plan(change, current, facts)
        next_plan = next_plan.otherwise or next_plan
        chunks = () if current.sparse else _chunks_of(current)
        content = b"".join(pieces(next_plan, draft, chunks))
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
    return Snapshot(
        current.store,
        state,
        0,
        version,
        state.frame.fingerprint.hex(),
        header=next_plan.header,
        member=current.member,
        published=version,
    )


def _chunks_of(revision: Snapshot) -> list[memoryview]:
    """Read the chunks of a contiguous frame."""
    content = b"".join(revision.store.pieces(revision.name))
    start = len(revision.header)
    return [memoryview(content)[start : revision.frame.frame_len]]


def _prepare_revision(
    catalog: Catalog,
    draft: Draft,
    path: str,
    manifest: Manifest,
    *,
    publishes: bool,
) -> _Prepared:
    """Write the index of the next revision of a member, where no reader looks yet.

    The draft notes the commit. A contiguous member is written as a whole, after copying its chunks. With `publishes`,
    also publish the revision under the usual name. ConflictError: files of new chunks were removed.
    """
    number = manifest.number + 1
    draft.annotate(group_commit=GroupCommit(manifest.identity, number, path))
    source = draft
    next_plan = make_plan(draft, draft.base)
    # A contiguous member is one object, and an object store cannot append: write all chunks to a new object.
    if next_plan.step == CommitStep.COMPACT and draft.base is not None:
        source = whole(draft, draft.base)
        next_plan = make_plan(source, None)
    require_files(next_plan, draft)
    make_objects(next_plan, draft)
    revision = next_plan.require_state().frame.fingerprint.hex()
    following = _next_number(draft, path, manifest)
    row = Row(path, revision, draft.sparse, number, following)
    published = None
    if publishes:
        published = _publish_new(catalog, path, row, next_plan, source, manifest)
    place = _store_of(catalog, row)
    name = index_name(revision) if row.sparse else ""
    stored = create_under_own_name(place, name, pieces(next_plan, source))
    base = ""
    if draft.base is not None:
        base = (manifest.rows or {})[_member_name(path)].revision
    return _Prepared(draft, source, next_plan, row, manifest.identity, base, stored, published)


def write_earlier_revision(
    catalog: Catalog,
    draft: Draft,
    path: str,
    state: State,
    note: GroupCommit,
) -> Row:
    """Write the index of an earlier state, whose chunks the draft of a new frame has copied; return a row for it.

    The manifest does not list the row. A snapshot in the copy of a group names such revisions.
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
    next_plan = plan(alone, None, observe(alone, None, draft))
    revision = next_plan.require_state().frame.fingerprint.hex()
    following = draft.staging.next if draft.sparse else 0
    row = Row(path, revision, draft.sparse, note.number, following)
    name = index_name(revision) if row.sparse else ""
    create_under_own_name(_store_of(catalog, row), name, pieces(next_plan, draft))
    return row


def _member_name(path: str) -> str:
    """Return the name of the member at a path: the path without its suffix."""
    return path.rpartition(".")[0]


def _next_number(draft: Draft, path: str, manifest: Manifest) -> int:
    """Return the first number that no chunk file at a path has ever had."""
    row = (manifest.rows or {}).get(_member_name(path))
    numbers = [manifest.gone.get(path, 0)]
    if row is not None and row.path == path:
        numbers.append(row.next)
    if draft.sparse:
        numbers.append(draft.staging.next)
    return max(numbers)


def _store_of(catalog: Catalog, row: Row) -> Store:
    """Return the store of a revision: the prefix of a sparse member, or an object with a contiguous one."""
    if row.sparse:
        return catalog.group.below(row.path)
    return catalog.group.below(data_path(row.revision), shown_as=row.path)


# Publishing.


def _publish_new(
    catalog: Catalog,
    path: str,
    row: Row,
    new_plan: Plan,
    source: Draft,
    manifest: Manifest,
) -> Version | None:
    """Publish a new member before the commit, and return the version of its index; try again after a conflict.

    An existing frame in its place is replaced if it is a leftover of the group. FileExistsError: it is another frame.
    """
    store = catalog.group.below(path)
    name = FRAME_NAME if row.sparse else ""
    content = b"".join(pieces(new_plan, source))
    state = new_plan.require_state()

    def write(expected: Version | None) -> Version | None:
        """Create the index, or replace one of this version, and return the version of the new one."""
        put = partial(store.replace, expected=expected) if expected else store.create
        look = partial(look_at_frame, store, state, expected, sparse=row.sparse)
        return write_once(store, partial(put, name, content), look).version

    # Other writers may delete or make the frame in this place.
    for _ in attempts(store):
        # An existing frame may be a leftover of the group, which the new one may replace.
        with suppress(FileExistsError):
            return write(None)
        try:
            published = load_published(store)
        except MISSING:
            # Another writer has just deleted it.
            continue
        except (FormatError, UnsupportedError):
            raise FileExistsError(f"{store.url} exists, and is not a frame of this group") from None
        noted = published.state.annotations.group_commit
        is_leftover = noted is not None and noted.identity == manifest.identity and noted.path == path
        if not is_leftover or published.name != name:
            raise FileExistsError(f"{store.url} exists, and is not a member of the group")
        # Another writer has just deleted the leftover, or makes the same member.
        with suppress(ConflictError):
            return write(published.version)
    raise too_many_conflicts(store)


def _publish(
    catalog: Catalog,
    prepared: Mapping[str, _Prepared],
    before: Manifest,
    newest: Manifest,
    removed: Collection[str],
) -> dict[str, Snapshot]:
    """Publish the new revisions that the `newest` manifest lists, and remove the published indexes of deleted members.

    Return the new states of the prepared members. The copies of contiguous drafts end.

    Errors of the store are ignored: the commit has succeeded, and the next one publishes its own revision.
    """
    rows_now = newest.rows or {}
    _remove_published(catalog, before, newest, {*removed, *prepared})

    def publish_one(name: str) -> Snapshot:
        """Publish a revision if the manifest still lists it, and return the new state of the member."""
        new = prepared[name]
        version = new.published
        row_now = rows_now.get(name)
        if version is None and row_now is not None and row_now.revision == new.row.revision:
            # Readers that know the group find the revision all the same.
            with suppress(OSError, B2ArrayError):
                version = _replace_published(catalog, new)
        return Snapshot(
            _store_of(catalog, new.row),
            new.plan.require_state(),
            0,
            new.stored,
            new.row.revision,
            header=new.plan.header,
            member=Member(catalog, name),
            index=new.index,
            published=version,
        )

    published = map_concurrently(publish_one, list(prepared))
    for new in prepared.values():
        if new.source is not new.draft:
            new.source.abort()
    return dict(zip(prepared, published, strict=True))


def _remove_published(catalog: Catalog, before: Manifest, newest: Manifest, names: Collection[str]) -> None:
    """Remove the published indexes of deleted or replaced members, unless another member is in the place now."""
    rows = before.rows or {}
    rows_now = newest.rows or {}
    places_now = {(row.path, row.sparse) for row in rows_now.values()}
    stale = []
    for name in names:
        row = rows.get(name)
        if row is None or is_embedded(row.path):
            continue
        if (row.path, row.sparse) not in places_now:
            stale.append(f"{row.path}/{FRAME_NAME}" if row.sparse else row.path)
    if stale:
        # If this fails, readers still see that the member is gone: the index notes its group, which does not list it.
        with suppress(OSError, B2ArrayError):
            catalog.group.delete(stale)


def publish_again(catalog: Catalog, row: Row) -> None:
    """Publish the revision that a row lists where nothing is published.

    A writer that has deleted a member may sleep before it removes the published index, and then remove the index of a
    member that another writer has made again meanwhile.
    """
    name = index_name(row.revision) if row.sparse else ""
    content = b"".join(_store_of(catalog, row).pieces(name))
    # Another writer may just have published its commit.
    with suppress(FileExistsError):
        catalog.group.below(row.path).create(FRAME_NAME if row.sparse else "", content)


def _replace_published(catalog: Catalog, new: _Prepared) -> Version | None:
    """Replace the published index of a member by the index of a new revision, and return its version.

    ConflictError: the published index is not older.
    """
    store = catalog.group.below(new.row.path)
    name = FRAME_NAME if new.row.sparse else ""
    content = b"".join(pieces(new.plan, new.source))
    base = new.draft.base
    state = new.plan.require_state()
    expected = None if base is None else base.published
    # Other writers may publish their commits in this place.
    for _ in attempts(store):
        if expected is None:
            expected = _version_of_older(store, new)
        put = partial(store.replace, expected=expected) if expected else store.create
        look = partial(look_at_frame, store, state, expected, sparse=new.row.sparse)
        try:
            return write_once(store, partial(put, name, content), look).version
        except (ConflictError, FileExistsError):
            # Another writer has published a commit since: look whether that one is older.
            expected = None
    raise too_many_conflicts(store)


def _version_of_older(store: Store, new: _Prepared) -> Version | None:
    """Read the published index, and return its version; None without one, ConflictError if it is not older."""
    try:
        published = load_published(store, sparse=new.row.sparse)
    except MISSING:
        return None
    except FormatError:
        # A damaged index is of no use to any reader, so a writer may replace it.
        return store.stamp(FRAME_NAME if new.row.sparse else "").version
    noted = published.state.annotations.group_commit
    is_of_group = noted is not None and noted.identity == new.identity
    if noted is not None and is_of_group and noted.number >= new.row.number:
        raise conflict(store.url)
    return published.version
