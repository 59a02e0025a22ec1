"""The members of a group in an object store: the rows of its manifest list them, with the revision that counts.

A revision never changes. So everything that one handle of the group opens belongs together, and no reader waits for a
writer. Without a manifest, as in a directory that was copied there, the store is listed once, and the first commit of
the group writes the list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeAlias

from b2array.array.schunk import SChunk
from b2array.commit.census import complete_manifest, rows_among
from b2array.commit.handle import Handle, Mode
from b2array.commit.manifests import replace_manifest
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.format import summary
from b2array.frame import kept
from b2array.frame.catalog import Catalog
from b2array.frame.listing import MemberState
from b2array.frame.manifest import EMBEDDED, MANIFEST, Manifest, Row, is_embedded
from b2array.frame.snapshot import Member, Snapshot, load_member, load_published, load_revision
from b2array.group import embedded, summaries
from b2array.group.local import LocalGroup
from b2array.group.members import Members
from b2array.store.base import MISSING, Store, Version, attempts, stale_reader, too_many_conflicts
from b2array.store.open import join_url, open_store

__all__ = ["AnyGroup", "ListedGroup", "group_at", "name_of"]


def name_of(path: str) -> str:
    """Return the name of the member at a path."""
    return path.removeprefix(f"{EMBEDDED}/") if is_embedded(path) else path.rpartition(".")[0]


class ListedGroup:
    """The members of a group in an object store as they were when somebody first asked for them.

    `known` is the manifest that lists them, and its version.
    """

    is_local = False

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], known: tuple[Manifest, Version | None] | None = None
    ) -> None:
        self.storage_options = dict(storage_options)
        self.store = open_store(url, storage_options=self.storage_options)
        self.catalog = Catalog(self.store)
        self._address = url
        self._known: tuple[Manifest, Version | None, Members] | None = None
        self._is_pinned = False
        self._lists_own = True
        self._records: tuple[bytes, dict[str, Any]] = b"", {}
        if known is not None:
            self.show(*known)

    @classmethod
    def of(cls, catalog: Catalog) -> Self:
        """Return the group whose manifest a catalog reads."""
        group = cls.__new__(cls)
        group.storage_options, group.store, group.catalog = {}, catalog.group, catalog
        group._address = catalog.url
        group._known, group._records = None, (b"", {})
        group._is_pinned, group._lists_own = False, True
        return group

    def __reduce__(self) -> tuple[Any, ...]:
        known = None if self._known is None else self._known[:2]
        return type(self), (self._address, self.storage_options, known)

    def copy(self, *, pinned: bool = False) -> Self:
        """Return another handle that shows the same members; always these, if it is `pinned`."""
        copied = type(self)(self._address, self.storage_options)
        copied.catalog, copied._known = self.catalog, self._state()
        copied._is_pinned = pinned
        if pinned and not self._lists_own:
            manifest, version = self.catalog.last_seen()
            copied.show(complete_manifest(self.store, manifest), version)
        return copied

    @property
    def url(self) -> str:
        """Where the group is, without secrets: what comes before a slash and a path."""
        url = self.store.url.rstrip("/")
        return f"{url}/" if url.endswith(":") else url

    def address(self, path: str) -> str:
        """Return the URL of a path in the group; ValueError if it would be that of another place."""
        self._require_plain()
        return join_url(self._address, path)

    def store_of(self, path: str) -> Store:
        """Return the store of a path in the group. Raises what `address` raises."""
        self._require_plain()
        return self.store.below(path)

    def _require_plain(self) -> None:
        if "?" in self._address and (self.store.can.lock or self.store.can.compare):
            # These stores have no queries: it is a letter of the group's name, but not where `join_url` puts it.
            raise ValueError(f"{self.url}: expected the URL of a group, found a '?' behind it")

    # What is listed.

    @property
    def manifest(self) -> Manifest:
        """The manifest that lists the members shown."""
        return self._state()[0]

    @property
    def rows(self) -> Mapping[str, Row]:
        """The rows of the members shown, by their names."""
        return self.manifest.rows or {}

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""
        return self._state()[2]

    def seen(self) -> tuple[Manifest, Version | None]:
        """Return the manifest that lists the members shown, and its version."""
        return self._state()[:2]

    def is_listed(self) -> bool:
        """Whether a manifest lists the members that are shown; does not read one."""
        return self._known is not None and self._known[0] != Manifest()

    def has_manifest(self) -> bool:
        """Whether there is a manifest that lists members, as far as it can be read; then these are shown."""
        with suppress(Exception):  # `exists` decides what else counts
            manifest, version = self.catalog.read()
            if manifest == Manifest():
                return False
            self.show(manifest, version)
            return True
        return False

    def show_files(self, paths: Collection[str]) -> None:
        """Show the members whose files are these, whatever a manifest says that nobody can read."""
        self.show(Manifest(rows_among(paths)), None)

    def show(self, manifest: Manifest, version: Version | None) -> None:
        """Show the members of a manifest until the next `refresh`, or the next commit through one of them."""
        self._lists_own = manifest.rows is not None
        manifest = complete_manifest(self.store, manifest, shows_mounts=True)
        self._known = manifest, version, Members(manifest.members or {})

    def refresh(self) -> None:
        """Read the manifest again when it is next needed."""
        self._known = None

    def close(self) -> None:
        """Close files."""
        self.store.close()

    def _state(self) -> tuple[Manifest, Version | None, Members]:
        written = self.catalog.written
        if self._known is None:
            self.show(*self.catalog.read())
        elif written is not None and not self._is_pinned and written[0].number > self._known[0].number:
            self.show(*written)  # a handle shows the commits of its members, with what others have committed by then
        if self._known is None:
            raise ValueError("expected the manifest that was just read")
        return self._known

    def stored(self) -> Manifest:
        """Read the manifest as it is now."""
        return self.catalog.read()[0]

    def update(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Replace the manifest by a changed one; try again if another writer came first."""
        for _ in attempts(self.store):
            with self.store.lock(MANIFEST), suppress(ConflictError):
                manifest, version = self.catalog.read()
                manifest = change(complete_manifest(self.store, manifest))
                replace_manifest(self.catalog, manifest, version)
                return manifest
        raise too_many_conflicts(self.store)

    def recover(self) -> None:
        """Do nothing: a commit has no steps that another writer would have to take."""

    def require_ledger(self) -> None:
        """Raise UnsupportedError if the group has no place for snapshots."""
        if self.catalog.last_seen()[0].rows is None and self.manifest.kept:
            raise UnsupportedError(
                f"{self.url} was copied from a local disk with snapshots, and can only be read: b2array.convert copies"
                " such a group with them"
            )

    # Members.

    def member(self, path: str) -> Member:
        """Return the member at a path, as its snapshots refer to it."""
        return Member(self.catalog, name_of(path))

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:
        """Open a member by its path, in the state that the shown manifest lists.

        If it may be `lazy`, a reader sends no request for a member that the manifest describes.
        """
        if is_embedded(path):
            return embedded.open_embedded(self._embedding(), path)
        if mode == "r":
            promised = self._promised(path) if lazy or self.store.can.lock else None
            return promised or Handle(self.current(path), mode)
        return Handle(self.current(path, for_writing=True), mode)

    def current(self, path: str, *, for_writing: bool = False) -> Snapshot:
        """Return the state of a member that the shown manifest lists. Raises what `open` raises."""
        return self._listed_in(self.manifest, path, for_writing=for_writing)

    def _listed_in(self, manifest: Manifest, path: str, *, for_writing: bool = False) -> Snapshot:
        try:
            return load_member(self.member(path), manifest, for_writing=for_writing)
        except MISSING:
            # The caller may have taken the path from an earlier list.
            is_listed = path in (manifest.members or {}).values()
            if not is_listed or complete_manifest(self.store, self.stored(), shows_mounts=True) != manifest:
                raise stale_reader(self.url) from None
            raise FormatError(f"{self.url}: expected the member {path}, found nothing there") from None

    def state_at(self, manifest: Manifest, name: str, state: MemberState) -> Snapshot | None:
        """Return the state that a member had at a snapshot that a manifest lists; None if it is not there any more."""
        path, generation, sparse, _ = state
        if is_embedded(path):
            return embedded.open_embedded(self._embedding(), path).snapshot
        if manifest.rows is not None:
            with suppress(*MISSING):  # `vacuum` may have removed it, if the snapshot was dropped
                revision = load_revision(self.member(path), Row(path, generation.hex(), sparse))
                return replace(revision, member=None)  # it stays the same, whatever the group lists later
            return None
        with suppress(*MISSING, ConflictError):  # files of a local disk that were copied here keep it themselves
            held = load_published(self.store_of(path))
            return kept.find_intact_state(held, state, manifest.identity.encode(), repr(name))
        return None

    def _embedding(self) -> SChunk:
        return SChunk(Handle(load_published(self.store_of(EMBEDDED)), "r"))

    def _promised(self, path: str) -> Handle | None:
        packed = self.manifest.summaries
        if self._records[0] is not packed:
            self._records = packed, summary.unpack_all(packed)
        row, record = self.rows.get(name_of(path)), self._records[1].get(path)
        if row is None or record is None:
            return None
        read = partial(self._listed_in, self.manifest, path)
        return summaries.promise_revision(self.store_of(path), record, row.revision, read)


AnyGroup: TypeAlias = LocalGroup | ListedGroup
"""A group that can be changed, on a local disk or in an object store."""


def group_at(url: str, storage_options: Mapping[str, Any]) -> AnyGroup:
    """Return the group at a URL. Nothing is read."""
    is_local = open_store(url, storage_options=storage_options).can.local
    return LocalGroup(url, storage_options) if is_local else ListedGroup(url, storage_options)
