"""One commit of several members of a group in an object store, or of one of them.

Everything but the last step goes to places that no reader looks at: chunks get numbers that no chunk had before, and
each changed member gets an index under the name of its revision. Then one conditional write replaces the manifest,
whose rows name these revisions. That write is the commit: `commit_rows`.

Later steps are not part of the commit. Each member's index is also published under the usual name, for readers that
know nothing of the group, unless a later one is there already. A writer that is killed before the commit leaves objects
that no row names, which `b2array.vacuum` removes; one that is killed later leaves a published index that is one commit
old.

A writer that comes second reads the manifest again. If the rows of its members are the same, what it has prepared is
still right, and it only writes the manifest again. If not, it puts its changes on top of the new state, or raises
ConflictError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from b2array import threads
from b2array.commit.census import complete_manifest
from b2array.commit.draft import Draft, rise_above
from b2array.commit.manifests import replace_manifest
from b2array.commit.plan import CommitStep, Plan, plan
from b2array.commit.prepare import make_objects, observe, pieces, planned, require_files, whole
from b2array.errors import B2ArrayError, ConflictError, FormatError, UnsupportedError
from b2array.format import summary
from b2array.format.annotations import GroupCommit
from b2array.format.state import State
from b2array.frame.catalog import Catalog
from b2array.frame.manifest import MANIFEST, Manifest, Row, data_path, index_name, is_embedded
from b2array.frame.snapshot import Member, Snapshot, load_member, load_published
from b2array.frame.source import FRAME_NAME
from b2array.store.base import (
    MISSING,
    Store,
    Version,
    attempts,
    conflict,
    create_under_own_name,
    may_still_happen,
    too_many_conflicts,
)

__all__ = ["Committed", "commit_member", "commit_rows", "map_concurrently", "write_revision"]

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 16
"""How many members are prepared or published at the same time."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit has made: the manifest, and the new states of the members by their names."""

    manifest: Manifest
    snapshots: Mapping[str, Snapshot]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A revision that waits until the manifest lists it.

    `base` is the revision that it was made from, or "". `source` has the chunks of a contiguous member. A new member is
    published before the commit, because that excludes other frames in its place; then `published` is the version.
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
    """Commit the changes of one member through its group, or the frame that replaces it.

    Raises what `commit_rows` raises.
    """
    base = draft.destination.old if draft.base is None else draft.base
    if base is None or base.member is None:
        raise ValueError(f"{draft.url}: expected a member of a group, found a frame by itself")
    member, noted = base.member, base.state.annotations.group_commit
    paths = {} if noted is None else {member.name: noted.path}
    return commit_rows(member.catalog, {member.name: draft}, paths=paths).snapshots[member.name]


def commit_rows(
    catalog: Catalog,
    drafts: Mapping[str, Draft],
    *,
    paths: Mapping[str, str] | None = None,
    removed: Collection[str] = (),
    identity: str = "",
    unadopted: Mapping[str, Snapshot] = MappingProxyType({}),
    require: Callable[[Manifest], None] = lambda _: None,
    edit: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    start: tuple[Manifest, Version | None] | None = None,
) -> Committed:
    """Commit changes of members, new members and deletions: one write of the manifest.

    Parameters
    ----------
    catalog : Catalog
        The manifest.
    drafts : mapping of str to Draft
        What changes, by the names of members. A draft without a base makes a member.
    paths : mapping of str to str
        The paths of new members, by their names.
    removed : collection of str
        Names of members that go. A new member may have the same name.
    identity : str
        The identity that a group gets with its first commit.
    unadopted : mapping of str to Snapshot
        States that were read of members which note no group yet, by the names of members. They must be the states of
        now, and the members are adopted.
    require : callable
        Called with the manifest before each attempt; raises ConflictError if the changes do not fit any more.
    edit : callable
        Changes what else the new manifest says, for example about snapshots.
    start : (Manifest, Version), optional
        The manifest that the changes were made on top of.

    Raises
    ------
    ConflictError
        Another writer has changed what these changes build on.
    FileExistsError
        A frame that is not a member of the group occupies the place of a new member.
    """
    paths, prepared = paths or {}, dict[str, _Prepared]()
    group, after = catalog.group, None
    map_concurrently(lambda draft: draft.flush(), drafts.values())
    for attempt in attempts(group):
        with group.lock(MANIFEST):
            seen = catalog.read() if attempt or group.can.lock else start or catalog.last_seen()
            manifest, version = seen
            if manifest.rows is None or not manifest.identity:
                # A member's note of the group means nothing before there is a manifest that lists the member.
                manifest = _with_identity(complete_manifest(group, manifest), identity)
                try:
                    replace_manifest(catalog, manifest, version)
                except ConflictError:
                    continue
                manifest, version = catalog.last_seen()
            if after is not None and manifest.follows(after):
                newest = manifest  # the answer was lost, and another writer has committed on top of this
                break
            require(manifest)
            _adopt_members(unadopted, manifest)
            _prepare(catalog, drafts, paths, manifest, prepared)
            after = newest = edit(_next_manifest(manifest, prepared, removed))
            try:
                replace_manifest(catalog, after, version)
            except ConflictError:
                continue
            except BaseException as error:
                if not _happened(catalog, after, version, error, drafts.values()):
                    raise
                if not isinstance(error, Exception):
                    raise
            break
    else:
        raise too_many_conflicts(group)
    return Committed(after, _publish(catalog, prepared, seen[0], newest, removed))


def map_concurrently(function: Callable[[T], R], items: Collection[T]) -> list[R]:
    """Call a function for each item, for several at a time: most of the time they wait for requests."""
    return list(threads.ahead(function, list(items), max(1, min(len(items), _AT_ONCE))))


def _adopt_members(unadopted: Mapping[str, Snapshot], manifest: Manifest) -> None:
    """Let members note the group that a transaction has only read or moved; ConflictError if one has changed since."""
    for name, held in unadopted.items():
        row = (manifest.rows or {}).get(name)
        if row is not None and not row.revision and not _is_adopted(held, manifest, row):
            _adopt(held, GroupCommit(manifest.identity, 0, row.path))


def _is_adopted(held: Snapshot, manifest: Manifest, row: Row) -> bool:
    return held.state.annotations.is_member(manifest.identity, row.path)


def _with_identity(manifest: Manifest, identity: str) -> Manifest:
    """Return the manifest of a group that has an identity and a list of members."""
    return replace(manifest, identity=manifest.identity or identity or os.urandom(8).hex())


def _next_manifest(manifest: Manifest, prepared: Mapping[str, _Prepared], removed: Collection[str]) -> Manifest:
    """Return the manifest that the commit writes."""
    rows = dict(manifest.rows or {})
    gone = dict(manifest.gone)
    left = []
    for name in removed:
        row = rows.pop(name, None)
        if row is not None:
            left.append(row.path)
            # A chunk of a later member here must not get the number of one that somebody may still be removing.
            gone[row.path] = max(row.next, gone.get(row.path, 0))
    for name, new in prepared.items():
        rows[name] = new.row
        gone.pop(new.row.path, None)
    records = {new.row.path: summary.pack(new.plan.require_state(), new.plan.header) for new in prepared.values()}
    after = replace(
        manifest,
        rows=dict(sorted(rows.items())),
        gone=gone,
        number=manifest.number + 1,
    )
    described = after.with_summaries(records, set(left) - records.keys(), members=after.members)
    return described.with_commit(os.urandom(8).hex())


def _happened(
    catalog: Catalog, after: Manifest, version: Version | None, error: BaseException, drafts: Collection[Draft]
) -> bool:
    """Say whether the manifest was replaced despite an error, as when a server's answer is lost.

    If nobody can tell, the drafts note that: what they have put may be needed.
    """
    with suppress(OSError, B2ArrayError):  # the store may be out of reach: then the outcome is unknown
        manifest, now = catalog.read()
        if manifest == after or manifest.follows(after):
            return True
        if now == version and not may_still_happen(catalog.group, error):
            return False
    for draft in drafts:
        draft.staging.files.is_needed = True
    return False


# Revisions.


def _prepare(
    catalog: Catalog,
    drafts: Mapping[str, Draft],
    paths: Mapping[str, str],
    manifest: Manifest,
    prepared: dict[str, _Prepared],
) -> None:
    """Prepare the revisions that the manifest is to list, unless an earlier attempt did so on the same rows."""
    rows = manifest.rows or {}

    def is_ready(name: str) -> bool:
        draft, ready, row = drafts[name], prepared.get(name), rows.get(name)
        if ready is None or ready.identity != manifest.identity or draft.staging.is_old:
            return False
        if draft.base is None:
            return ready.row.number > (0 if row is None else row.number)
        return row is not None and row.revision == ready.base

    def one(name: str) -> _Prepared:
        draft, row = drafts[name], rows.get(name)
        is_new = draft.base is None
        if not is_new:
            _rebase(Member(catalog, name), draft, manifest)
        path = paths[name] if row is None or is_new else row.path
        if is_new:
            rise_above(draft, manifest.gone.get(path, 0))
        return _prepare_revision(catalog, draft, path, manifest, publishes=is_new and row is None)

    waiting = [name for name in drafts if not is_ready(name)]
    for name in drafts.keys() - {*waiting}:
        require_files(prepared[name].plan, drafts[name])
    prepared.update(zip(waiting, map_concurrently(one, waiting), strict=True))


def _rebase(member: Member, draft: Draft, manifest: Manifest) -> None:
    """Put the changes of a draft on top of the listed state of its member, which notes the group from now on."""
    if draft.base is None:
        raise ValueError(f"{draft.url}: a new member has no state to go on from")
    try:
        current = load_member(member, manifest, known=draft.base)
    except MISSING:
        raise ConflictError(f"{draft.url} was deleted or moved since it was opened") from None
    draft.rebase(current)
    row = (manifest.rows or {})[member.name]
    if row.revision:
        return
    note = GroupCommit(manifest.identity, 0, row.path)
    for _ in attempts(current.store):
        if current.state.annotations.is_member(note.identity, note.path):
            return
        try:
            draft.rebase(_adopt(current, note), is_equal=True)
        except ConflictError:  # another writer was faster
            current = load_member(member, manifest)
            draft.rebase(current)
        else:
            return
    raise too_many_conflicts(current.store)


def _adopt(current: Snapshot, note: GroupCommit) -> Snapshot:
    """Replace the published index of a frame by an equal one that notes its group.

    A writer that opened the frame before it was a member then fails to replace the index, and learns of the group. All
    chunks stay in their places, because the caller's draft may know these. ConflictError: another writer was faster.
    """
    draft = Draft(current.store, current)
    try:
        draft.annotate(group_commit=note)
        change = draft.freeze()
        next_plan = plan(change, current, replace(observe(change, current, draft), appendable=True))
        next_plan = next_plan.otherwise or next_plan
        content = b"".join(pieces(next_plan, draft, () if current.sparse else _chunks_of(current)))
        version = current.store.replace(current.name, content, expected=current.version).version
    finally:
        draft.staging.close()
    return Snapshot(
        current.store,
        next_plan.require_state(),
        0,
        version,
        next_plan.require_state().frame.fingerprint.hex(),
        header=next_plan.header,
        member=current.member,
        published=version,
    )


def _chunks_of(held: Snapshot) -> list[memoryview]:
    """Return what lies between header and index of a contiguous frame."""
    content = b"".join(held.store.pieces(held.name))
    return [memoryview(content)[len(held.header) : held.frame.frame_len]]


def _prepare_revision(catalog: Catalog, draft: Draft, path: str, manifest: Manifest, *, publishes: bool) -> _Prepared:
    """Write the index of the next revision of a member, where no reader looks yet."""
    number = manifest.number + 1
    draft.annotate(group_commit=GroupCommit(manifest.identity, number, path))
    source, next_plan = draft, planned(draft, draft.base)
    if next_plan.step == CommitStep.COMPACT and draft.base is not None:
        source = whole(draft, draft.base)
        next_plan = planned(source, None)
    state = next_plan.require_state()
    require_files(next_plan, draft)
    make_objects(next_plan, draft)
    revision = state.frame.fingerprint.hex()
    row = Row(path, revision, draft.sparse, number, _next_number(draft, path, manifest))
    published = None
    if publishes:
        published = _publish_new(catalog, path, row, next_plan, source, manifest)
    place = _store_of(catalog, row)
    stored = None
    with suppress(FileExistsError):  # nobody else has this name: the answer to our request was lost
        stored = place.create(index_name(revision) if row.sparse else "", pieces(next_plan, source)).version
    base = "" if draft.base is None else (manifest.rows or {})[_member_name(path)].revision
    return _Prepared(draft, source, next_plan, row, manifest.identity, base, stored, published)


def write_revision(catalog: Catalog, draft: Draft, path: str, state: State, note: GroupCommit) -> Row:
    """Write the index of a state whose chunks a draft of a new frame has put; return a row for it, which is not listed.

    A snapshot of a group that is copied names such revisions.
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
    row = Row(path, revision, draft.sparse, note.number, draft.staging.next if draft.sparse else 0)
    create_under_own_name(_store_of(catalog, row), index_name(revision) if row.sparse else "", pieces(next_plan, draft))
    return row


def _member_name(path: str) -> str:
    return path.rpartition(".")[0]


def _next_number(draft: Draft, path: str, manifest: Manifest) -> int:
    """Return the first number that was never given to the file of a chunk at a path."""
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
    catalog: Catalog, path: str, row: Row, made: Plan, source: Draft, manifest: Manifest
) -> Version | None:
    """Publish a new member before the commit: FileExistsError if a frame is there that is no leftover of the group."""
    store, name = catalog.group.below(path), FRAME_NAME if row.sparse else ""
    content = b"".join(pieces(made, source))
    for _ in attempts(store):
        with suppress(FileExistsError):
            return store.create(name, content).version
        try:
            published = load_published(store)
        except MISSING:  # somebody has deleted it meanwhile
            continue
        except (FormatError, UnsupportedError):
            raise FileExistsError(f"{store.url} exists, and is no frame of this group") from None
        noted = published.state.annotations.group_commit
        if published.generation == row.revision:  # the answer to our request was lost
            return published.version
        if noted is None or (noted.identity, noted.path) != (manifest.identity, path) or published.name != name:
            raise FileExistsError(f"{store.url} exists, and is not a member of the group")
        with suppress(ConflictError):  # it has gone meanwhile, or another writer makes the member as well
            return store.replace(name, content, expected=published.version).version
    raise too_many_conflicts(store)


def _publish(
    catalog: Catalog,
    prepared: Mapping[str, _Prepared],
    before: Manifest,
    newest: Manifest,
    removed: Collection[str],
) -> dict[str, Snapshot]:
    """Publish what the `newest` manifest lists, and return the new states. What fails is left to the next commit."""
    rows, rows_now = before.rows or {}, newest.rows or {}
    places_now = {(row.path, row.sparse) for row in rows_now.values()}
    replaced = {*removed, *prepared}
    doomed = [row for name in replaced if (row := rows.get(name)) is not None and not is_embedded(row.path)]
    stale = [
        f"{row.path}/{FRAME_NAME}" if row.sparse else row.path
        for row in doomed
        if (row.path, row.sparse) not in places_now
    ]
    if stale:
        with suppress(OSError, B2ArrayError):  # an unlisted index that notes the group is no member
            catalog.group.delete(stale)

    def one(name: str) -> Snapshot:
        new = prepared[name]
        version = new.published
        row_now = rows_now.get(name)
        if version is None and row_now is not None and row_now.revision == new.row.revision:
            with suppress(OSError, B2ArrayError):  # readers by the group find the revision all the same
                version = _replace_published(catalog, new)
        state = new.plan.require_state()
        place = _store_of(catalog, new.row)
        return Snapshot(
            place,
            state,
            0,
            new.stored,
            new.row.revision,
            header=new.plan.header,
            member=Member(catalog, name),
            index=new.index,
            published=version,
        )

    snapshots = dict(zip(prepared, map_concurrently(one, list(prepared)), strict=True))
    for new in prepared.values():
        if new.source is not new.draft:
            new.source.abort()
    return snapshots


def _replace_published(catalog: Catalog, new: _Prepared) -> Version | None:
    """Replace the published index of a member by the index of a new revision, unless it is as new."""
    store, name = catalog.group.below(new.row.path), FRAME_NAME if new.row.sparse else ""
    content = b"".join(pieces(new.plan, new.source))
    base = new.draft.base
    expected = None if base is None else base.published
    for _ in attempts(store):
        if expected is None:
            expected = _version_of_older(store, new)
        try:
            if expected is None:
                return store.create(name, content).version
            return store.replace(name, content, expected=expected).version
        except (ConflictError, FileExistsError):  # another commit has been published since
            expected = None
    raise too_many_conflicts(store)


def _version_of_older(store: Store, new: _Prepared) -> Version | None:
    """Return the version of what is published, None if nothing is; ConflictError if that is as new."""
    try:
        published = load_published(store, sparse=new.row.sparse)
    except MISSING:
        return None
    except FormatError:  # a damaged copy tells nobody anything
        return store.stamp(FRAME_NAME if new.row.sparse else "").version
    noted = published.state.annotations.group_commit
    if noted is not None and noted.identity == new.identity and noted.number >= new.row.number:
        raise conflict(store.url)
    return published.version
