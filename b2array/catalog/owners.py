"""The owners of frames, and `load`: which state of a frame counts.

A frame outside of groups is `Alone`: it has one index, which every commit replaces. A member of a group in an object
store has a revision for each commit of the group, and the group's manifest lists the revision that counts: its owner is
a `BucketMember`. The index under the usual name is a published copy, for readers that do not know the group. A note in
this copy tells `load` that there is a group.

On a local disk, the files are the members. A member is its own owner (`Alone`), except while a step of the group's
commit is pending: then the group owns it (`LocalMember`; see `b2array.catalog.redo`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from b2array.catalog.known_manifests import InnerManifests, KnownManifest
from b2array.catalog.manifest import Manifest, Row, data_path, index_name, is_index_name, name_of
from b2array.errors import B2ArrayError, ConflictError, FormatError, UnsupportedError
from b2array.frame.kept_states import load_kept_state
from b2array.frame.revision import Revision, head_if_unchanged, read_frame, read_named
from b2array.store.base import HiddenError, Store, Version, where

__all__ = [
    "ALONE",
    "Alone",
    "BucketMember",
    "find_damage",
    "find_frame",
    "load",
    "load_member",
    "load_published",
    "load_revision",
    "matching_state",
]


@dataclass(frozen=True, slots=True)
class Alone:
    """The owner of a frame that belongs to no group, or to one that has not adopted it yet, and may do so later."""

    may_move: ClassVar[bool] = False
    lists_revisions: ClassVar[bool] = False

    def load(self, last: Revision, *, even_new: bool = False) -> Revision:
        """Load the present state of the frame; see `b2array.frame.revision.Owner`.

        If header and fingerprint in the store are still the ones of `last`, return `last` without parsing: they
        identify every state that b2array has written. If a group has adopted the frame since, the result has the group
        as its owner. Raises the errors of `load` and of `matching_state`.
        """
        if last.at is not None and last.at.group and last.at.packed:
            # A snapshot of a group has packed this state: no ledger of the frame lists it.
            return last
        if last.header and last.frame.is_ours:
            head = head_if_unchanged(last.store, last.frame, last.header, last.start, last.name)
            if head is not None:
                return replace(last, version=head.version, unique=head.unique)
        # A state that noted a group when it was opened was found to be outside of it.
        was_outside = last.state.annotations.group_commit is not None
        current = load(
            last.store,
            start=last.start,
            bare=last.at is not None,
            needs_group=not was_outside,
        )
        return matching_state(last, current, even_new=even_new)


ALONE = Alone()


@dataclass(frozen=True, slots=True, eq=False)
class BucketMember:
    """The owner of a frame in a group in an object store: the group.

    Parameters
    ----------
    known : KnownManifest
        The manifest of the group, as this process last saw it.
    name : str
        The name of the member.
    published : Version, optional
        The version of the published index, if the state is published and the version is known: the commit that
        publishes the next state replaces this version, without a request to read it.
    """

    known: KnownManifest
    name: str
    published: Version | None = None

    @property
    def group(self) -> Store:
        """The store of the group."""
        return self.known.group

    may_move: ClassVar[bool] = False
    lists_revisions: ClassVar[bool] = True

    def as_owner_of(self, published: Revision) -> Revision:
        """Return a published state with this owner, to which it adds the version of the published index."""
        return replace(published, owner=replace(self, published=published.version))

    def load(self, last: Revision, *, even_new: bool = False) -> Revision:
        """Load the state that the manifest lists; see `b2array.frame.revision.Owner`.

        Until the group's first commit has written a manifest with rows, load the published state. Raises the errors of
        `load_member` and of `matching_state`.
        """
        manifest, _ = self.known.read(hidden_is_missing=False)
        if manifest.rows is None:
            # No commit of the group has written its manifest yet.
            current = self.as_owner_of(load_published(last.store))
            return matching_state(last, current, even_new=even_new)
        row = manifest.rows.get(self.name)
        if last.at is None and row is not None and row.generation == last.generation:
            return last
        current = load_member(self, manifest)
        return matching_state(last, current, even_new=even_new)


def matching_state(last: Revision, current: Revision, *, even_new: bool) -> Revision:
    """Return the state that a handle of `last` shows next, given the `current` state in its place.

    If `last` is a kept state, load that state of the frame again; otherwise return `current`. ConflictError: another
    frame is in the place, and not `even_new`; or the frame does not keep the state any more.
    """
    if last.at is not None:
        return load_kept_state(current, last.at.name, last.at.generation)
    is_same = current.state.annotations.identity == last.state.annotations.identity
    if not is_same and not even_new:
        raise ConflictError(
            f"{last.url} was deleted and made again since it was opened; open it again, or call refresh()"
        )
    return current


def load(
    store: Store,
    *,
    start: int = 0,
    bare: bool = False,
    with_contents: bool = False,
    cached: bool = False,
    accepts: Callable[[Version], bool] | None = None,
    needs_group: bool = False,
) -> Revision:
    """Read the current frame of a store; for a member of a group in an object store, the state that the group lists.

    More requests than for `read_frame` follow if the frame notes that it is in a group. The parameters are as for
    `read_frame`, and so are the other errors. With `needs_group`, raise PermissionError if the user may not read the
    manifest of the group; otherwise return the published state. Writers need it: their commits past a group would be
    lost.

    Raises
    ------
    FileNotFoundError
        There is no frame, or the group does not list it any more.
    """
    published = load_published(
        store,
        start=start,
        bare=bare,
        with_contents=with_contents,
        cached=cached,
        accepts=accepts,
    )
    return _follow_group(published, bare=bare, cached=cached, needs_group=needs_group)


def load_published(
    store: Store,
    *,
    start: int = 0,
    bare: bool = False,
    with_contents: bool = False,
    sparse: bool | None = None,
    cached: bool = False,
    accepts: Callable[[Version], bool] | None = None,
) -> Revision:
    """Read the frame that a store holds, even if its group lists another state; see `read_frame`."""
    return read_frame(
        store,
        ALONE,
        start=start,
        bare=bare,
        with_contents=with_contents,
        sparse=sparse,
        cached=cached,
        accepts=accepts,
    )


def find_frame(store: Store) -> Revision | None:
    """Load the frame that a new one would replace, as its group lists it or as it is published; None if unreadable.

    PermissionError: the user may not read the manifest of the group that the frame notes.
    """
    try:
        published = load_published(store)
    except (FileNotFoundError, FormatError, UnsupportedError):
        # A frame that cannot be read may be replaced like any other file.
        return None
    try:
        return _follow_group(published, bare=False, needs_group=True)
    except HiddenError:
        raise
    except (FileNotFoundError, FormatError, UnsupportedError):
        # The group has deleted the frame, or has lost the state that it lists.
        return published


# Members of groups in object stores.


def _follow_group(
    published: Revision,
    *,
    bare: bool,
    cached: bool = False,
    inner: InnerManifests | None = None,
    needs_group: bool = False,
) -> Revision:
    """Load the state that the group of a published frame lists; return a frame outside of groups unchanged.

    With `inner`, this is the manifest of the group that a home of an outer group shows, otherwise the present one. A
    frame with a note of a group counts as outside if it was copied elsewhere, or if the manifest is missing or of
    another group. The same holds if the user may not read the manifest, but with `needs_group` this raises
    PermissionError. FileNotFoundError: the group does not list the member. FormatError: the listed revision is missing.
    """
    noted = published.state.annotations.group_commit
    if noted is None or published.start or published.store.can.local:
        return published
    store_of = published.store.around(noted.path)
    if store_of is None:
        # The frame was copied to another path.
        return published
    try:
        known, manifest = (inner or InnerManifests()).read(store_of(""), cached=cached)
    except PermissionError:
        if needs_group:
            raise
        # The user may read this object alone, as with a signed URL, or the server hides that there is no group.
        return published
    if manifest.identity != noted.identity or manifest.rows is None:
        return published
    member = BucketMember(known, noted.path.rpartition(".")[0])
    row = manifest.rows.get(member.name)
    if row is None or row.path != noted.path:
        raise FileNotFoundError(f"{published.url} was deleted")
    if row.generation in ("", published.generation):
        if inner is not None and not row.generation and noted.number > manifest.number:
            inner.require_latest(known.group)  # the published state is later than the manifest that the home shows
        return member.as_owner_of(published)
    try:
        return load_revision(member, row, bare=bare, cached=cached)
    except HiddenError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(
            f"{published.url}: expected revision {row.generation}, which the group lists, found none"
        ) from None


def load_member(
    member: BucketMember,
    manifest: Manifest,
    *,
    last: Revision | None = None,
    for_writing: bool = False,
    cached: bool = False,
    inner: InnerManifests | None = None,
) -> Revision:
    """Load the state of a member that a manifest lists.

    If the revision is missing or damaged, return its published copy if there is one. If an inner group owns the member,
    return the state that the inner group lists.

    Parameters
    ----------
    member : BucketMember
        The member.
    manifest : Manifest
        The manifest of its group.
    last : Revision, optional
        A state of the member that was read before, which is returned if the manifest still lists it.
    for_writing : bool
        Whether to read the published index if that is the listed state, so that the next commit knows its version.
    cached : bool
        As for `read_frame`.
    inner : InnerManifests, optional
        The manifests of inner groups that the caller's home shows, for a group that has not committed yet.

    Raises
    ------
    FileNotFoundError
        The manifest does not list the member, or `vacuum` has removed the revision after a later commit.
    FormatError
        The revision is damaged, and so is the published copy, or it is another state.
    ConflictError
        The member belongs to an inner group, and the manifest of `inner` is out of date.
    """
    row = (manifest.rows or {}).get(member.name)
    if row is None:
        raise FileNotFoundError(f"{where(member.known.url, member.name)} was deleted")
    if last is not None and row.generation and row.generation == last.generation:
        return last
    store = member.group.below(row.path)
    if row.generation and not (for_writing and row.sparse):
        try:
            return load_revision(member, row, cached=cached)
        except (FileNotFoundError, FormatError):
            copy = _published_copy(member, row)
            if copy is None:
                raise
            return copy
    try:
        # A row that was made from a list of files may have the wrong kind of frame.
        sparse = row.sparse if row.generation else None
        published = load_published(store, with_contents=True, sparse=sparse, cached=cached)
    except (FileNotFoundError, NotADirectoryError):
        if not row.generation:
            raise
        return load_revision(member, row, cached=cached)
    if row.generation not in ("", published.generation):
        return load_revision(member, row, cached=cached)
    listed = None if row.generation else _follow_mount(published, row, inner or InnerManifests(), cached=cached)
    return listed or member.as_owner_of(published)


def _follow_mount(
    published: Revision,
    row: Row,
    inner: InnerManifests,
    *,
    cached: bool,
) -> Revision | None:
    """Load the state that an inner group lists, if the published member of a row belongs to one; otherwise None."""
    noted = published.state.annotations.group_commit
    if noted is None:
        return _find_listed(published, inner, cached=cached)
    store_of = published.store.around(noted.path)
    if noted.path == row.path or store_of is None:
        return None
    try:
        listed = _follow_group(published, bare=False, cached=cached, inner=inner, needs_group=True)
    except (FileNotFoundError, FormatError):
        inner.require_latest(store_of(""))
        raise
    return listed if listed.owner.lists_revisions else None


def _find_listed(published: Revision, inner: InnerManifests, *, cached: bool) -> Revision | None:
    """Load the state that a known inner group lists of a member that notes no group; None if it lists none.

    FileNotFoundError: the revision is missing, or the inner group has just deleted the member. ConflictError: the
    revision is missing, and the inner group has committed meanwhile.
    """
    found = inner.find_around(published.store, cached=cached)
    if found is None:
        return None
    known, row = found
    if row is None:
        load_published(published.store)  # perhaps other software has written a new frame there
        return None
    try:
        return load_revision(BucketMember(known, name_of(row.path)), row, cached=cached)
    except HiddenError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        inner.require_latest(known.group)
        raise


def _published_copy(member: BucketMember, row: Row) -> Revision | None:
    """Read the published copy of the revision in a row; None if another state is published, or none can be read."""
    try:
        published = load_published(member.group.below(row.path), with_contents=True, sparse=row.sparse)
    except (OSError, B2ArrayError):
        # The caller raises the error of the revision.
        return None
    if published.generation != row.generation:
        return None
    return member.as_owner_of(published)


def find_damage(published: Revision) -> tuple[str, str] | None:
    """If a state was read from the published copy, read the index that the group lists as well, and check it.

    Return the name and the problem of a missing or damaged index. None if it is intact, or if `published` is not such a
    copy.
    """
    member = published.owner
    if not isinstance(member, BucketMember) or is_index_name(published.name) or not published.generation:
        return None
    manifest, _ = member.known.read(hidden_is_missing=False)
    row = (manifest.rows or {}).get(member.name)
    if row is None or row.generation != published.generation:
        return None
    name = index_name(row.generation) if row.sparse else data_path(row.generation)
    place = where(published.url if row.sparse else member.group.url, name)
    try:
        load_revision(member, row)
    except HiddenError:
        raise
    except FileNotFoundError:
        return name, f"{place}: expected the index that the group lists, found none"
    except (FormatError, UnsupportedError) as error:
        return name, f"{place}: the index that the group lists cannot be read: {error}"
    return None


def load_revision(
    member: BucketMember,
    row: Row,
    *,
    bare: bool = False,
    cached: bool = False,
) -> Revision:
    """Load the revision of a member that a row lists; `bare` and `cached` are as for `read_frame`.

    FileNotFoundError: it is missing. FormatError: it is damaged, or another one.
    """
    if row.sparse:
        store = member.group.below(row.path)
        name = index_name(row.generation)
    else:
        store = member.group.below(data_path(row.generation), shown_as=row.path)
        name = ""
    # The version of the published index, which `member` may know, is of another state.
    owner = replace(member, published=None)
    revision = read_named(store, owner, name, bare=bare, with_contents=True, cached=cached)
    if revision.generation != row.generation:
        raise FormatError(f"{where(store.url, name)}: expected revision {row.generation}, found {revision.generation}")
    return revision
