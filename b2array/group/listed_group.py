"""The members of a group in an object store. Each has a row in the manifest, which names its committed revision.

A revision never changes. So all members that one home opens belong to one commit, and readers never wait for writers.
A group without a manifest, such as a directory that was copied to the store, is listed once; its first commit writes
the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeAlias

from b2array.array.drafts import FreePlace
from b2array.array.schunk import SChunk
from b2array.catalog import intact
from b2array.catalog.census import complete_manifest, rows_among
from b2array.catalog.known_manifests import InnerManifests, KnownManifest, another_group
from b2array.catalog.ledgers import MemberState
from b2array.catalog.manifest import ARRAY, EMBEDDED, MANIFEST, OTHER, Manifest, Row, is_embedded, name_of
from b2array.catalog.names_of_members import Members
from b2array.catalog.owners import ALONE, BucketMember, load_member, load_published, load_revision
from b2array.commit.group_commit import Committed, GroupChange, MemberChange
from b2array.commit.handle import Handle, Mode
from b2array.commit.in_bucket import Bucket, first_free_number
from b2array.commit.manifest_writes import replace_manifest
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.frame.revision import Revision
from b2array.group import embedded, summaries
from b2array.group.homes import GroupHome
from b2array.group.local_group import LocalGroup
from b2array.group.new_members import NewFrame
from b2array.store.base import (
    MISSING,
    Head,
    HiddenError,
    Mutex,
    Store,
    Version,
    attempts,
    stale_reader,
    too_many_conflicts,
)
from b2array.store.open import join_url, open_store

__all__ = ["ListedGroup", "group_at"]

_Listing: TypeAlias = tuple[Manifest, Version | None, Members]
"""A manifest, its version in the store, and its members."""


class ListedGroup(GroupHome):
    """The members of a group in an object store, as listed at the first use.

    A caller that has read the manifest passes it as `listing`, with its version.

    Attributes
    ----------
    known : KnownManifest
        The manifest as this process last saw it, which all handles of the group's members share.
    """

    is_local = False

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any],
        listing: tuple[Manifest, Version | None] | None = None,
    ) -> None:
        self.storage_options = dict(storage_options)
        self.store = open_store(url, storage_options=self.storage_options)
        self.known = KnownManifest(self.store)
        self._address = url
        self._listing: _Listing | None = None
        self._inner = InnerManifests()
        self._mutex = Mutex()
        self._is_pinned = False
        # Whether the manifest that is shown lists the members; otherwise the files of the group do.
        self._lists_own = True
        self._records = b"", {}
        # The identity of the group that was shown first. Changes of another group that is in the same place by now are
        # refused.
        self._identity = ""
        # Another identity that members note: they were copied from that group without its manifest.
        self._foreign = ""
        if listing is not None:
            self.show(*listing)

    @classmethod
    def of(cls, shared: KnownManifest) -> Self:
        """Return the group of the manifest that a caller knows, and share it with the caller."""
        group = cls.__new__(cls)
        group.storage_options = {}
        group.store = shared.group
        group.known = shared
        group._address = shared.url
        group._listing = None
        group._inner = InnerManifests()
        group._mutex = Mutex()
        group._records = b"", {}
        group._identity = group._foreign = ""
        group._is_pinned = False
        group._lists_own = True
        return group

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the manifest that this home shows, if it was read, so that the copy shows the same members."""
        listing = None if self._listing is None else self._listing[:2]
        return _unpickle, (self._address, self.storage_options, listing, self._identity, self._inner)

    def copy(self, *, pinned: bool = False) -> Self:
        """Return a second home that shows the same members; a `pinned` one ignores later commits of its members.

        Both homes share `known`. This reads the manifest if this home has not read it yet. If the manifest has
        no rows, a pinned home does not list members of groups inside this one, because it serves a transaction.
        """
        copied = type(self)(self._address, self.storage_options)
        copied.known = self.known
        copied._listing, copied._inner = self._ensure_listing(), self._inner
        copied._is_pinned = pinned
        copied._identity = self._identity
        if pinned and not self._lists_own:
            _, version, complete = self._list_members(*self.known.last_seen())
            copied.show(complete, version)
        return copied

    def address(self, path: str) -> str:
        """Return the URL of a path in the group; ValueError if the URL would name another place."""
        self._require_plain()
        return join_url(self._address, path)

    def store_of(self, path: str) -> Store:
        """Return the store of a path in the group. Raises the errors of `address`."""
        self._require_plain()
        return self.store.below(path)

    def _require_plain(self) -> None:
        """Raise ValueError if the URL has a "?" that does not begin a query: no path can be appended to it."""
        # In URLs of these stores, "?" is a character of a name, but `join_url` puts a path before it, as before a
        # query.
        if "?" in self._address and (self.store.can.lock or self.store.can.compare):
            raise ValueError(f"{self.url}: expected the URL of a group, found a '?' behind it")

    # The list of members.

    @property
    def manifest(self) -> Manifest:
        """The manifest whose members this home shows."""
        return self._ensure_listing()[0]

    @property
    def rows(self) -> Mapping[str, Row]:
        """The rows of the manifest, by the names of the members."""
        return self.manifest.rows or {}

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""
        return self._ensure_listing()[2]

    def versioned_manifest(self) -> tuple[Manifest, Version | None]:
        """Return the manifest whose members this home shows, and its version."""
        return self._ensure_listing()[:2]

    def is_separate(self) -> bool:
        """Return whether this home has read a manifest of the group; this sends no request."""
        return self._listing is not None and self._listing[0] != Manifest()

    def look_for_manifest(self) -> bool:
        """Read the manifest, and show its members; return False without a manifest that can be read.

        An error of the store also gives False.
        """
        # `whole.exists` checks whether another file marks the group, and raises the errors that matter.
        with suppress(Exception):
            manifest, version = self.known.read(cached=True)
            if manifest == Manifest():
                return False
            self.show(manifest, version)
            return True
        return False

    def show_files(self, paths: Collection[str]) -> None:
        """Show the members with these files, for a group whose manifest cannot be read."""
        self.show(Manifest(rows_among(paths)), None)

    def show(self, manifest: Manifest, version: Version | None) -> None:
        """Show the members of a manifest until the next `refresh`, or until one of the members commits.

        If the manifest has no rows, this lists the files of the group.
        """
        self._show(manifest, version)

    def _show(self, manifest: Manifest, version: Version | None) -> _Listing:
        """Show the members of a manifest, as `show` does, and return what this home shows now."""
        return self._show_listed(*self._list_members(manifest, version, inner=self._inner))

    def _show_listed(self, stored: Manifest, version: Version | None, complete: Manifest) -> _Listing:
        """Show the members of a stored manifest, given with its version and with the rows that it may lack."""
        self._lists_own = stored.rows is not None
        listing = complete, version, Members(complete.members or {})
        self._listing = listing
        self._identity = self._identity or complete.identity
        return listing

    def _list_members(
        self,
        stored: Manifest,
        version: Version | None,
        *,
        inner: InnerManifests | None = None,
    ) -> tuple[Manifest, Version | None, Manifest]:
        """Return a stored manifest, its version, and a manifest with rows, for which `complete_manifest` lists files.

        If the group commits for the first time meanwhile, return the manifest of that commit, or a later one: the list
        may lack members that the commit has deleted, although other members are not published yet.
        """
        for _ in attempts(self.store):
            complete: Manifest | None = None
            # The list of the files has a manifest that was missing before.
            with suppress(ConflictError):
                complete = complete_manifest(self.store, stored, inner=inner)
            lists_files = stored.rows is None and stored != Manifest() and self.store.can.write
            if complete is not None and not lists_files:
                return stored, version, complete
            latest, version = self.known.read()
            if complete is not None and latest == stored:
                return stored, version, complete
            stored = latest
        raise too_many_conflicts(self.store)

    def require_same(self, manifest: Manifest | None = None) -> None:
        """Raise ConflictError if a manifest, by default the one that this home shows, is not of the same group.

        A group that was deleted and made again has another identity.
        """
        if manifest is None:
            manifest = self.manifest
        if self._identity not in ("", manifest.identity):
            raise another_group(self.url)

    def _confirm_manifest(self) -> None:
        """Read the manifest if this home shows none, or one from the cache on disk, which writers do not trust.

        If another writer has replaced the manifest, the home goes on to show the one before, as without the cache.
        """
        if self._listing is None:
            self.show(*self.known.read())
        elif self.known.is_copy:
            seen = self.known.read()
            if seen[1] == self._listing[1]:
                self.show(*seen)

    def show_near(self, names: Collection[str]) -> None:
        """Do nothing: the caller has just read the manifest, which lists all members."""

    def look_for(self, name: str) -> bool:
        """Return whether members with this name, or below it, were made since this home read the manifest.

        The home shows the present manifest from now on, unless it would show a part of what was committed together:
        a member that it shows was changed or deleted since, or one commit has made several members, of which the caller
        may have missed another one before.
        """
        before = self.manifest
        manifest, version, complete = self._list_members(*self.known.read(cached=True), inner=self._inner)
        rows = complete.rows or {}
        is_there = any(each == name or each.startswith(f"{name}/") for each in rows)
        is_same_group = before.identity in ("", manifest.identity)
        is_unchanged = is_same_group and all(rows.get(each) == row for each, row in self.rows.items())
        # Members without a number were made by their URLs, each in a commit without the group.
        commits = [row.number for each, row in rows.items() if row.number and each not in self.rows]
        if is_there and is_unchanged and len(commits) == len({*commits}):
            self._show_listed(manifest, version, complete)
        return is_there

    def refresh(self) -> None:
        """Forget the manifest of the group and of each inner group; the next use reads them again."""
        self._listing = None
        self._inner = self._inner.anew()

    def _ensure_listing(self) -> _Listing:
        """Return the listing that this home shows, and read it at the first use: manifest, version and members.

        After a commit of a member that this home has opened, show the manifest of that commit first; not if pinned.
        """
        written = self.known.written
        listing = self._listing
        if listing is None:
            # Threads share one manifest: members that two manifests list may belong to different commits.
            with self._mutex.held:
                listing = self._listing or self._show(*self.known.read(cached=True))
        elif written is not None and not self._is_pinned and written[0].number > listing[0].number:
            # A member that this home has opened has committed: show that, and the earlier commits of other writers.
            listing = self._show(*written)
        return listing

    def load_manifest(self, *, cached: bool = False) -> Manifest:
        """Read the present manifest from the store, without changing the members shown.

        With `cached`, it may come from the cache on disk: only a reader may pass it.
        """
        return self.known.read(cached=cached)[0]

    def update_manifest(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Write the manifest that `change` makes from the present one, and return it.

        Try again if another writer was faster. A manifest without rows first gets rows for the members among the files.
        The members shown stay the same.
        """
        for _ in attempts(self.store):
            with self.store.lock(MANIFEST):
                manifest, version = self.known.read()
                self.require_same(manifest)
                # Another writer has replaced the manifest meanwhile: change the new one.
                with suppress(ConflictError):
                    manifest = change(complete_manifest(self.store, manifest))
                    replace_manifest(self.known, manifest, version)
                    return manifest
        raise too_many_conflicts(self.store)

    def recover(self) -> None:
        """Do nothing: in an object store, no interrupted commit needs another writer to complete it."""

    def is_cached(self) -> bool:
        """Return whether the cache on disk has the manifest of the group, in any state."""
        return self.known.is_on_disk()

    def ensure_manifest(self) -> None:
        """Show the manifest that was seen last; without one, first write one without members, under a new identity."""
        if self.known.last_seen()[1] is None:
            replace_manifest(self.known, Manifest({}, os.urandom(8).hex()), None)
        self.show(*self.known.last_seen())

    def require_ledger(self) -> None:
        """Raise UnsupportedError if the manifest cannot list snapshots."""
        if self.known.last_seen()[0].rows is None and self.manifest.kept:
            raise UnsupportedError(
                f"{self.url} was copied from a local disk with snapshots, and can only be read: b2array.convert copies"
                " such a group with them"
            )

    # Transactions.

    def begin_view(self, *, explicit: bool) -> Self:  # noqa: ARG002
        """Return a home for a new transaction, which keeps showing the present members; show the same manifest here.

        This reads the manifest if it was not read yet. Raises ConflictError if another group is there by now.
        """
        # Pinned, because commits of single members must not change the states on which the transaction builds.
        self._confirm_manifest()
        self.require_same()
        view = self.copy(pinned=True)
        self.show(*view.versioned_manifest())
        return view

    def medium(self) -> Bucket:
        """Return a new medium for a commit."""
        return Bucket(self.known)

    def mount_of(self, path: str) -> None:  # noqa: ARG002
        """Return None: members of separate groups inside this one are opened like members of this group."""
        return

    def require_own(self, path: str) -> None:
        """Raise ValueError if the rows of this group do not list a member, because an inner group owns it."""
        row = self.rows.get(name_of(path))
        if row is None:
            raise ValueError(f"{self.url}/{path} belongs to a separate group inside this one: delete it there")

    def own_members(self, members: Mapping[str, str]) -> dict[str, str]:
        """Return the members, given by names and paths: a view of a transaction shows only members of this group."""
        return dict(members)

    def embedded_paths(self) -> Mapping[str, str]:
        """Return an empty mapping: a commit removes the rows of embedded members, and leaves their frame alone."""
        return {}

    def open_for_change(self, path: str) -> Handle:
        """Open a member for writing, in the state that the shown manifest lists. Raises the errors of `open`."""
        return self.open(path, "r+")

    def find_generation(self, path: str) -> tuple[str, str | None] | None:
        """Return the path of a member, and the generation that the manifest lists; None for other paths.

        The generation is None for a member without a revision, whose published index counts, and "" for an embedded
        member.
        """
        row = self.rows.get(name_of(path))
        if row is None or row.path != path:
            return None
        return path, row.generation if row.generation or is_embedded(path) else None

    def is_unadopted(self, path: str) -> bool:
        """Return whether the manifest lists a member without a revision, which does not note its group yet."""
        row = self.rows.get(name_of(path))
        return row is not None and row.path == path and not row.generation and not is_embedded(path)

    def begin_member(
        self,
        change: GroupChange,
        name: str,
        suffix: str,
        new: NewFrame,
        *,
        overwrite: bool,  # noqa: ARG002
    ) -> tuple[str, MemberChange]:
        """Begin a new member at a free place; return its path, and the change with the draft from `new`.

        In memory, an object excludes objects below its name. A sparse member that replaces a contiguous one therefore
        gets a path with the other suffix. The commit writes the states that snapshots of the group need as revisions,
        so they leave the member's own ledger.
        """
        path = name + suffix
        other = name + (OTHER if suffix == ARRAY else ARRAY)
        place = self._free_place(path)
        if self.store.in_process:
            (head,) = place.store.head([""], 1)
            if isinstance(head, Head):
                place = replace(place, sparse=self._free_place(other))
        draft = new(place, overwrite=False)
        is_there = draft.destination.place is place.store
        # Snapshots of a group in an object store name revisions. A member's ledger has only snapshots of the member.
        group, keeps = change.identity.encode(), draft.delta.keeps
        earlier = [keep for keep in keeps if keep.entry.group == group]
        draft.delta.keeps = tuple(keep for keep in keeps if keep.entry.group != group)
        return (path if is_there else other), MemberChange(name, draft, earlier=earlier)

    def _free_place(self, path: str) -> FreePlace:
        """Return the place for a new member at a path that no row has, with the first number for its chunks."""
        return FreePlace(self.store_of(path), first_free_number(self.manifest, path))

    def remember(self, path: str, committed: Revision) -> None:
        """Do nothing: the manifest says which state counts, so no state is read twice."""

    def show_commit(self, committed: Committed, change: GroupChange) -> None:  # noqa: ARG002
        """Show the manifest of the commit, which `known` has seen last."""
        self.show(*self.known.last_seen())

    # Members.

    def owner_of(self, path: str) -> BucketMember:
        """Return the owner of the frame at a path: the manifest of this group, which lists it under its name."""
        return BucketMember(self.known, name_of(path))

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:
        """Open a member by its path, in the state that the manifest of this home lists.

        With `lazy`, and always in memory, opening for reading sends no request if the manifest has a summary of the
        member. The first use then raises the errors. Embedded members are opened read-only. Raises ConflictError if the
        list is out of date, and FormatError if the member is missing.
        """
        if is_embedded(path):
            return embedded.open_member(self._open_embedding_frame(), path)
        if mode != "r":
            return Handle(self.load_current(path, for_writing=True), mode)
        promised = self._promise(path) if lazy or self.store.can.lock else None
        return promised or Handle(self.load_current(path), mode)

    def load_current(self, path: str, *, for_writing: bool = False) -> Revision:
        """Load the state of a member that the manifest of this home lists. Raises the errors of `open`."""
        return self._load_in(self.manifest, path, for_writing=for_writing)

    def _load_in(
        self,
        manifest: Manifest,
        path: str,
        *,
        for_writing: bool = False,
    ) -> Revision:
        """Load the state of a member that a manifest lists.

        If the member is missing, raise ConflictError if the list is out of date, and FormatError otherwise.
        """
        try:
            member = self.owner_of(path)
            revision = load_member(
                member,
                manifest,
                for_writing=for_writing,
                cached=not for_writing,
                inner=self._inner,
            )
        except HiddenError:
            raise
        except MISSING:
            # The member is not damaged if the caller has its path from an earlier list.
            is_listed = path in (manifest.members or {}).values()
            if not is_listed or complete_manifest(self.store, self.load_manifest(), inner=self._inner) != manifest:
                raise stale_reader(self.url) from None
            raise FormatError(f"{self.url}: expected the member {path}, found nothing there") from None
        # A writer compares what it has read when it commits.
        if not for_writing and self._is_later(manifest, path, revision):
            raise stale_reader(self.url)
        return revision

    def require_shown(self, path: str, revision: Revision) -> None:
        """Raise ConflictError if a state that a transaction reads is later than the manifest that this home shows."""
        if not self._is_later(self.manifest, path, revision):
            return
        # The manifest may be older than the members, because somebody has copied it before them, or put it back.
        if self.known.read()[1] != self._ensure_listing()[1]:
            raise ConflictError(f"{self.url}/{path} was changed by another writer since the transaction began")

    def _is_later(self, manifest: Manifest, path: str, revision: Revision) -> bool:
        """Return whether a state is of a commit of the group after a manifest.

        Only members that the manifest lists without a revision can show such a state: before the first commit to a
        member, readers take what is published. If the manifest has no identity, and the member notes a group, this
        reads the present manifest.
        """
        row = (manifest.rows or {}).get(name_of(path))
        noted = revision.state.annotations.group_commit
        if row is None or row.generation or noted is None or noted.path != path or noted.number <= manifest.number:
            return False
        if noted.identity == self._foreign:
            return False
        identity = manifest.identity or self.load_manifest().identity
        if identity != noted.identity:
            self._foreign = noted.identity
        return identity == noted.identity

    def state_of(self, path: str, manifest: Manifest) -> Revision:
        """Load the state of a member that a manifest lists. Raises the errors of `open`."""
        return self._load_in(manifest, path)

    @property
    def keeps_states_in_frames(self) -> bool:
        """Whether the group was copied from a local disk with its snapshots, and had no commit since."""
        return not self._lists_own

    def state_at(
        self,
        manifest: Manifest,
        title: str,
        state: MemberState,
        *,
        deep: bool = False,
        cached: bool = False,
    ) -> Revision | None:
        """Load the state of a member at a snapshot that a manifest lists; None if the state does not exist any more.

        With `cached`, the index may come from the cache on disk. Embedded members are read in their present state,
        because they have no other. `deep` is about frames that keep states: revisions never change.
        """
        path, generation, sparse, _ = state
        if is_embedded(path):
            return embedded.open_member(self._open_embedding_frame(), path).revision
        if manifest.rows is not None:
            row = Row(path, generation.hex(), sparse)
            # If somebody has dropped the snapshot, `vacuum` may have removed the revision.
            try:
                revision = load_revision(self.owner_of(path), row, cached=cached)
            except HiddenError:
                raise
            except MISSING:
                return None
            # Without the group as its owner, the revision stays the same when the group commits.
            return replace(revision, owner=ALONE)
        # Frames that were copied here from a local disk contain the states of snapshots.
        with suppress(*MISSING, ConflictError):
            source = load_published(self.store_of(path), cached=cached)
            identity = manifest.identity.encode()
            return intact.find_intact_state(source, state, identity, repr(title), deep=deep)
        return None

    def _open_embedding_frame(self) -> SChunk:
        """Read the embedding frame, and return it as a read-only super-chunk."""
        source = load_published(self.store_of(EMBEDDED), cached=True)
        return SChunk(Handle(source, "r"))

    def _promise(self, path: str) -> Handle | None:
        """Return a read-only handle that shows the summary of a member, and reads the member when it must.

        Return None if the manifest has no summary of the revision that it lists.
        """
        row = self.rows.get(name_of(path))
        record = self._find_summary(path)
        if row is None or record is None:
            return None
        read = partial(self._load_in, self.manifest, path)
        return summaries.promise_revision(self.store_of(path), record, row.generation, read)


def _unpickle(
    address: str,
    storage_options: Mapping[str, Any],
    listing: tuple[Manifest, Version | None] | None,
    identity: str,
    inner: InnerManifests,
) -> ListedGroup:
    """Make a home from its pickle. It refuses to change a group with another `identity`, unless that is empty."""
    group = ListedGroup(address, storage_options, listing)
    group._identity, group._inner = identity, inner
    return group


def group_at(url: str, storage_options: Mapping[str, Any]) -> GroupHome:
    """Return the home of a group at a URL, without reading anything."""
    store = open_store(url, storage_options=storage_options)
    kind = LocalGroup if store.can.local else ListedGroup
    return kind(url, storage_options)
