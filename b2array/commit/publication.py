"""Publication: gives members the states that a group has committed, in the places where others look for them.

Readers of the group do not need it, because the manifest tells them the states that count. Readers that do not know the
group, and python-blosc2, find a member in its usual place. The writer of a commit publishes it. If that writer was
killed, the next writer of a local group does so; in an object store, the next commit of the member, or `vacuum` if it
is not there at all.

On a local disk, the manifest lists the pending steps, and `b2array.catalog.redo.TABLE` determines what each still
requires. In an object store, nothing is stored about publication: `published_action` decides by the row of a member and
the frame in its place. Several writers may publish the same state at the same time, and again after one was killed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from types import MappingProxyType

from b2array.catalog.manifest import Manifest, PendingStep, Row, data_path, index_name, is_embedded, staged_path
from b2array.catalog.owners import load_published
from b2array.catalog.redo import Occupant, action_of, inspect_place
from b2array.commit.leftovers import discard
from b2array.commit.outcomes import look_at_frame, write_once
from b2array.errors import B2ArrayError, ConflictError, FormatError, UnsupportedError
from b2array.format.state import State
from b2array.frame.revision import Revision
from b2array.frame.source import FRAME_NAME
from b2array.store.base import MISSING, Store, Version, attempts, conflict, too_many_conflicts
from b2array.store.forces import then, together

__all__ = [
    "Published",
    "SeveralCallsError",
    "publish_missing",
    "publish_new",
    "publish_pending",
    "publish_revision",
    "publish_step",
    "published_action",
    "remove_published",
    "store_of_revision",
]


# On a local disk: pending steps.


class SeveralCallsError(Exception):
    """To publish a step that no manifest lists would take several calls of the system; nothing was changed.

    If the writer were killed between the calls, nobody would complete the step.
    """


@dataclass(frozen=True, slots=True)
class Published:
    """The result of publishing pending steps.

    Parameters
    ----------
    left : dict of str to PendingStep
        The steps that cannot be taken now, by path.
    patched : dict of str to Version
        The versions of the files whose headers were written, by path.
    """

    left: dict[str, PendingStep] = field(default_factory=dict)
    patched: dict[str, Version] = field(default_factory=dict)


def publish_pending(
    group: Store,
    manifest: Manifest,
    *,
    locked: Collection[str] = (),
    states: Mapping[str, Revision] = MappingProxyType({}),
) -> Published:
    """Take the pending steps of a manifest, deletions first; return the failed ones, and the versions of patched files.

    This does not change the manifest. The caller holds the manifest's lock, and the locks of the members `locked`; this
    takes the lock of each other member for its step. `states` has the old states that the caller knows, by path. A
    damaged member, or an error of the store, stops its own step only. A new name may differ from a deleted one only in
    case, so deletions come first. The other changes are forced to the disk together; if that fails, all of them stay
    pending.
    """
    published = Published()

    def take(path: str, step: PendingStep) -> None:
        """Take one step, and enter the result in `published`; never raise an error of the store."""
        try:
            version = publish_step(group, path, step, locked=path in locked, state=states.get(path))
            if version is not None:
                published.patched[path] = version
        except (OSError, B2ArrayError):
            published.left[path] = step

    deletions: dict[str, PendingStep] = {}
    others: dict[str, PendingStep] = {}
    for path, step in manifest.pending.items():
        (deletions if step.kind == "delete" else others)[path] = step
    for path, step in deletions.items():
        take(path, step)
    try:
        with together():
            for path, step in others.items():
                take(path, step)
    except OSError:
        published.left.update(others)
    return published


def publish_step(
    group: Store,
    path: str,
    step: PendingStep,
    *,
    locked: bool = False,
    state: Revision | None = None,
    listed: bool = True,
) -> Version | None:
    """Take a pending step if `b2array.catalog.redo.TABLE` requires it; remove the files left over.

    In a block of `together`, these files are removed at its end, when the new state is on the disk. This takes the lock
    of the member unless the caller holds it (`locked`), and reads the member again after a conflict. A "patch" and an
    "index" need no other lock; for the other kinds the caller holds the lock of the manifest. `state` is the old state,
    if the caller knows it. Return the version of the file if this call has written its header.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        The staged files are gone.
    SeveralCallsError
        The step is not `listed` in the manifest, and takes more than one call of the system.
    """
    store = group.below(path) if state is None else state.store
    version = None
    for _ in attempts(store):
        there, action = action_of(step, group.below, path, store=store, last=state)
        if not action.is_pending:
            break
        waits = not locked and there.name is not None
        with store.lock(there.name or "") if waits else nullcontext():
            if waits and inspect_place(store).state != there.state:
                continue
            try:
                version = _take_step(group, path, step, there, store, listed=listed)
            except (ConflictError, FileExistsError):  # another process was faster
                continue
            except MISSING:
                if inspect_place(store).state == there.state:  # the staged files are gone
                    raise
        break
    else:
        raise too_many_conflicts(store)
    # No other writer holds a lock in these places: one that has waited for the lock of a directory looks up the
    # directory again if it was moved meanwhile.
    if step.token:
        then(partial(discard, group.below(step.aside(path)), locked=True))
    if step.kind == "frame":
        then(partial(discard, _place_for_replaced(group, path, step), locked=True))
    return version


def _place_for_replaced(group: Store, path: str, step: PendingStep) -> Store:
    """Return the temporary place for a replaced frame, for systems that cannot exchange two names in one call."""
    return group.below(staged_path(path, step.token[::-1], sparse=False))


def _take_step(
    group: Store,
    path: str,
    step: PendingStep,
    there: Occupant,
    store: Store,
    *,
    listed: bool,
) -> Version | None:
    """Patch the header of a member, replace its index, or move its frame in or out; force what was written to the disk.

    `store` is the member's place, and `there` its occupant. This takes one call if the system supports it, and
    otherwise two if the step is `listed` in the manifest. Return the version of a patched file, otherwise None.
    SeveralCallsError: it would take two, and the step is not listed. ConflictError or FileExistsError: another process
    was faster.
    """
    if step.kind == "patch":
        stamp = store.patch("", 0, step.header)
        store.force()
        return stamp.version
    aside = group.below(step.aside(path))
    if step.kind == "index":
        store.move_in(aside.url, FRAME_NAME, exclusive=False)
        store.force()
    elif step.kind == "delete":
        _take_out(store, aside)
        if not there.name:  # the lock file of a directory was moved with it
            store.drop_lock()
    elif not _is_occupied(store):
        store.move_here(aside, may_wait=True)
    elif there.name == "" and inspect_place(aside).name == "":  # a file for a file
        store.move_in(aside.url, "", exclusive=False)
        store.force()
    elif not store.exchange(aside, at_once=True):
        if not listed:
            raise SeveralCallsError
        _take_out(store, _place_for_replaced(group, path, step))
        store.move_here(aside)
    return None


def _take_out(store: Store, aside: Store) -> None:
    """Move a deleted or replaced frame from its place `store` to the place `aside`, which only its step names.

    FileExistsError: that place was occupied. Its content is removed, so that the next attempt succeeds.
    """
    try:
        aside.move_here(store)
    except FileExistsError:
        # A writer was killed while the file had both names. Keep only the old name, so that the next attempt succeeds.
        discard(aside, locked=True)
        raise


def _is_occupied(store: Store) -> bool:
    """List a place: whether anything is there, even only chunks without an index that a killed writer has left."""
    try:
        store.listing()
    except MISSING:
        return False
    return True


# In an object store: published indexes.


class PublishedAction(Enum):
    """What the publication of a row still requires, by the frame in the member's place."""

    CREATE = auto()
    """Create the index: nothing is there."""
    REPLACE = auto()
    """Replace the index that was found: it is older, of another frame, or damaged."""
    DONE = auto()
    """Nothing: the revision is published."""
    LEAVE = auto()
    """Nothing: a later commit of the group is published."""


def published_action(row: Row, identity: str, occupant: Revision | None) -> PublishedAction:
    """Decide how to publish the revision that a row of the group with this identity lists.

    `occupant` is the frame in the member's place; None if nothing is there.
    """
    if occupant is None:
        return PublishedAction.CREATE
    if occupant.generation == row.generation:
        return PublishedAction.DONE
    noted = occupant.state.annotations.group_commit
    if noted is not None and noted.identity == identity and noted.number >= row.number:
        return PublishedAction.LEAVE
    return PublishedAction.REPLACE


def publish_revision(
    group: Store,
    row: Row,
    identity: str,
    state: State,
    content: bytes,
    expected: Version | None = None,
) -> Version | None:
    """Publish the revision of a row in its usual place, unless a later one is there; return its version.

    Parameters
    ----------
    group : Store
        The group.
    row : Row
        The row of the member.
    identity : str
        The identity of the group.
    state : State
        The state of the revision.
    content : bytes
        The index of the revision.
    expected : Version, optional
        The version of the older index, if the caller knows it; otherwise this looks.

    Raises
    ------
    ConflictError
        A later revision is published.
    """
    store = group.below(row.path)
    name = FRAME_NAME if row.sparse else ""
    # Other writers may publish their commits in this place.
    for _ in attempts(store):
        if expected is None:
            action, expected = _look_at_published(store, row, identity)
            if action is PublishedAction.LEAVE:
                raise conflict(store.url)
            if action is PublishedAction.DONE:
                return expected
        put = partial(store.replace, expected=expected) if expected else store.create
        look = partial(look_at_frame, store, state, expected, sparse=row.sparse)
        try:
            return write_once(store, partial(put, name, content), look).version
        except (ConflictError, FileExistsError):
            # Another writer has published a commit since: look whether that one is older.
            expected = None
    raise too_many_conflicts(store)


def _look_at_published(store: Store, row: Row, identity: str) -> tuple[PublishedAction, Version | None]:
    """Read the published index in a place; return what publication of a row requires, and the version of that index."""
    try:
        occupant = load_published(store, sparse=row.sparse)
    except MISSING:
        return PublishedAction.CREATE, None
    except FormatError:
        # A damaged index is of no use to any reader, so a writer may replace it.
        return PublishedAction.REPLACE, store.stamp(FRAME_NAME if row.sparse else "").version
    return published_action(row, identity, occupant), occupant.version


def publish_new(group: Store, row: Row, identity: str, state: State, content: bytes) -> Version | None:
    """Publish a new member before the commit, and return the version of its index; try again after a conflict.

    A new member is published first, so that no other frame can occupy the place. An existing frame there is replaced if
    it is a leftover of the group. The parameters are as for `publish_revision`. FileExistsError: it is another frame.
    """
    store = group.below(row.path)
    name = FRAME_NAME if row.sparse else ""

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
            # Killed writers may have left a frame of each layout here.
            occupant = load_published(store, sparse=row.sparse)
        except MISSING:
            # Another writer has just deleted it.
            continue
        except (FormatError, UnsupportedError):
            raise FileExistsError(f"{store.url} exists, and is not a frame of this group") from None
        noted = occupant.state.annotations.group_commit
        is_leftover = noted is not None and noted.identity == identity and noted.path == row.path
        if not is_leftover:
            raise FileExistsError(f"{store.url} exists, and is not a member of the group")
        # Another writer has just deleted the leftover, or makes the same member.
        with suppress(ConflictError):
            return write(occupant.version)
    raise too_many_conflicts(store)


def remove_published(group: Store, before: Manifest, newest: Manifest, names: Collection[str]) -> None:
    """Remove the published indexes of deleted or replaced members, unless another member is in the place now.

    `before` is the manifest before the commit, `newest` the latest one, and `names` the members that may be gone. Other
    files of the members stay. Errors of the store are ignored.
    """
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
            group.delete(stale)


def publish_missing(group: Store, row: Row) -> None:
    """Publish the revision that a row lists if nothing is published in its place; otherwise do nothing.

    A writer that has deleted a member may sleep before it removes the published index, and then remove the index of a
    member that another writer has made again meanwhile.
    """
    name = index_name(row.generation) if row.sparse else ""
    content = b"".join(store_of_revision(group, row).pieces(name))
    # Another writer may just have published its commit.
    with suppress(FileExistsError):
        group.below(row.path).create(FRAME_NAME if row.sparse else "", content)


def store_of_revision(group: Store, row: Row) -> Store:
    """Return the store of a revision: the prefix of a sparse member, or an object with a contiguous one."""
    if row.sparse:
        return group.below(row.path)
    return group.below(data_path(row.generation), shown_as=row.path)
