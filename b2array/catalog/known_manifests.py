"""Reads the manifest of a group, and remembers the last manifest that this process has seen."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

from b2array import config
from b2array.catalog.manifest import MANIFEST, Manifest, Row, name_of
from b2array.errors import ConflictError, FormatError, LimitError, UnsupportedError, prefix_error
from b2array.store.base import MISSING, HiddenError, Store, Version, stale_reader

__all__ = ["InnerManifests", "KnownManifest", "another_group", "read_manifest", "remember_manifest"]

_SHORT = 2**16
"""This process remembers manifests of at most this many bytes by their content."""


Seen: TypeAlias = tuple[Manifest, Version | None]
"""A manifest, and its version in the store."""


def read_manifest(
    group: Store,
    *,
    versioned: bool = True,
    last: Seen | None = None,
    cached: bool = False,
    hidden_is_missing: bool = True,
) -> Seen:
    """Read the manifest of a group, and its version. Without a manifest, return an empty one and no version.

    Parameters
    ----------
    group : Store
        The group.
    versioned : bool
        Whether the caller needs the version, even if that takes another request.
    last : (Manifest, Version), optional
        The result of an earlier call, which is returned if the version is still the same.
    cached : bool
        Whether the content may come from the cache on disk, if the server says that it is still the same.
    hidden_is_missing : bool
        Whether to treat a manifest as missing if the server hides whether it exists. Otherwise this raises
        `HiddenError`: a writer that knows a manifest must not conclude that it is gone.

    Raises
    ------
    FormatError, UnsupportedError
        The manifest is damaged, or a later version of b2array has written it.
    LimitError
        The manifest is larger than `config.limits.metadata_nbytes`.
    OSError
        The store cannot be read.
    """
    limit = config.limits.metadata_nbytes
    (head,) = group.ends_through([MANIFEST], limit)[0] if cached else group.head([MANIFEST], limit)
    version = None if isinstance(head, Exception) else head.version
    unversioned = not isinstance(head, Exception) and version is None
    if unversioned and versioned and group.can.write:
        # Ask for the version before the content: then the content is at least as new, and no update is lost.
        version = group.stamp(MANIFEST).version
        (head,) = group.head([MANIFEST], limit)
    if isinstance(head, MISSING) and (hidden_is_missing or not isinstance(head, HiddenError)):
        return Manifest(), None
    if isinstance(head, Exception):
        raise head
    if last is not None and not unversioned and last[1] == version:
        return last
    where, data = f"{group.url}/{MANIFEST}", head.data
    if len(data) == limit:
        raise LimitError(f"{where} has {limit} bytes or more")
    try:
        manifest = _unpack_short(bytes(data)) if len(data) <= _SHORT else Manifest.unpack(data)
    except (FormatError, UnsupportedError) as error:
        raise prefix_error(where, error) from error
    return manifest, version


def _unpack_short(content: bytes) -> Manifest:
    """Parse a manifest, and remember it, unless this process has read or written the same bytes before."""
    manifest = _recent.get(content)
    if manifest is None:
        manifest = Manifest.unpack(content)
        remember_manifest(content, manifest)
    return manifest


def remember_manifest(content: bytes, manifest: Manifest) -> None:
    """Remember a manifest by its bytes in this process, so that the same bytes need not be parsed again.

    If there are too many, this forgets the one that was remembered first. Manifests of more than 64 KiB are not
    remembered. Local commits read the manifest often, because the version of a local file does not show every change.
    Usually it has not changed.
    """
    if len(content) <= _SHORT:
        _recent[content] = manifest
        if len(_recent) > _MOST:
            _recent.popitem(last=False)


_recent: OrderedDict[bytes, Manifest] = OrderedDict()
_MOST = 8
"""The largest number of remembered manifests."""


def another_group(url: str) -> ConflictError:
    """Return the error for a writer whose group was deleted, and perhaps another one made or moved in its place."""
    return ConflictError(f"{url} is not the group any more that was opened there; open it again")


class KnownManifest:
    """The manifest of a group in an object store, as this process last saw it.

    The handles of a group's members share this object. After a commit through one of them, the next commit does not
    need to read the manifest.

    Attributes
    ----------
    group : Store
        The group.
    written : (Manifest, Version) or None
        The manifest that the last commit through one of these handles has written, and its version.
    is_copy : bool
        Whether the manifest that was last read may be from the cache on disk.
    """

    def __init__(self, group: Store) -> None:
        self.group = group
        self.written: Seen | None = None
        self._seen: Seen | None = None
        self.is_copy = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.group,)

    @property
    def url(self) -> str:
        """The URL of the group, without secrets."""
        return self.group.url

    def is_on_disk(self) -> bool:
        """Return whether the cache on disk has a manifest of the group, even an old one."""
        return self.group.has_copy(MANIFEST, config.limits.metadata_nbytes)

    def read(self, *, cached: bool = False, hidden_is_missing: bool = True) -> Seen:
        """Read the stored manifest, remember it, and return it with its version.

        If the stored version is the one that was seen last, do not parse it. The parameters are as for `read_manifest`.
        A manifest that this process has seen is never taken for missing because the server hides it.
        """
        known = (each[0] for each in (self._seen, self.written) if each is not None)
        hidden_is_missing = hidden_is_missing and all(manifest == Manifest() for manifest in known)
        cached = cached and config.disk_cache is not None
        last = None if self.is_copy and not cached else self._seen
        self._seen = read_manifest(self.group, last=last, cached=cached, hidden_is_missing=hidden_is_missing)
        self.is_copy = cached
        return self._seen

    def last_seen(self) -> Seen:
        """Return the manifest that was last read or written, with its version; the first call reads it.

        Writers call this. They do not trust the cache on disk, so they read a manifest from there again.
        """
        return self.read() if self._seen is None or self.is_copy else self._seen

    def remember(self, seen: Seen | None, *, is_written: bool = False) -> None:
        """Remember a manifest and its version; None makes the next call of `last_seen` read the manifest.

        `is_written` says that a commit through a handle of this group has written it.
        """
        self._seen = seen
        self.is_copy = False
        if is_written:
            self.written = seen


class InnerManifests:
    """The manifests of the groups inside another one, as a home of the outer group shows them.

    In an object store, an outer group shows members of inner groups until its first commit. All members of an inner
    group that one home opens belong to the manifest that it has read first, or to a later commit of one of them.

    A member notes its inner group before its first commit there. A home shows a member without a note as published; if
    it finds later that an inner group has committed the member, what it has shown is out of date.
    """

    def __init__(self, groups: Iterable[Store] = ()) -> None:
        """Begin with the `groups` that are known to be inside the outer one."""
        self._groups = {group.url: group for group in groups}
        self._shown: dict[str, tuple[KnownManifest, Manifest]] = {}
        # The URLs of members that noted no group.
        self._published: set[str] = set()

    def anew(self) -> InnerManifests:
        """Return an object that reads the manifests again; it still knows where the inner groups are."""
        return InnerManifests(self._groups.values())

    def read(self, group: Store, *, cached: bool) -> tuple[KnownManifest, Manifest]:
        """Return the manifest of an inner group that the home shows; the first call reads it.

        Raises
        ------
        PermissionError
            The manifest exists, or the server hides whether it exists, and the user may not read it.
        ConflictError
            The home has shown a member of the group before it knew the group, in a state before the manifest.
        """
        shown = self._shown.get(group.url)
        if shown is None:
            new = KnownManifest(group)
            manifest, _ = new.read(cached=cached, hidden_is_missing=False)
            self._groups.setdefault(group.url, group)
            # Threads share the manifest that one of them has read first.
            shown = self._shown.setdefault(group.url, (new, manifest))
            if self._has_shown_before(group, manifest):
                # Each further call finds the same.
                self._shown.pop(group.url, None)
                raise stale_reader(group.url)
        known, manifest = shown
        written = known.written
        if written is not None and written[0].number > manifest.number:
            # A member that the home has opened has committed.
            shown = self._shown[group.url] = known, written[0]
        return shown

    def note_groups(self, outer: Store, files: Iterable[str]) -> None:
        """Get to know the groups with a manifest among the files of the outer one."""
        for path in files:
            place, _, name = path.rpartition("/")
            if name == MANIFEST and place:
                group = outer.below(place)
                self._groups.setdefault(group.url, group)

    def find_around(self, member: Store, *, cached: bool) -> tuple[KnownManifest, Row | None] | None:
        """Find a known inner group that has committed a member. Return its manifest, and the row, or None if deleted.

        The member notes no group: somebody may have put an older frame in its place. None: the home shows what is
        published, also if the user may not read the manifest. Raises the other errors of `read`.
        """
        found = self._look_around(member, cached=cached)
        if found is None:
            self._published.add(member.url)
            # Another thread may have shown a group just before this.
            found = self._look_around(member, cached=cached)
        return found

    def _look_around(self, member: Store, *, cached: bool) -> tuple[KnownManifest, Row | None] | None:
        """Do what `find_around` does, without noting that the member is shown as published."""
        for group, path in self._places_of(member.url):
            # A reader who may not read the manifest shows what is published.
            with suppress(PermissionError):
                known, manifest = self.read(group, cached=cached)
                row = _committed_row(manifest, path)
                if row is not None or path in manifest.gone:
                    return known, row
        return None

    def _places_of(self, url: str) -> Iterator[tuple[Store, str]]:
        """Yield each known inner group around a URL, and the path of the URL in it."""
        outer = url
        while "/" in outer:
            outer, _, _ = outer.rpartition("/")
            group = self._groups.get(outer)
            if group is not None:
                yield group, url.removeprefix(f"{outer}/")

    def _has_shown_before(self, group: Store, manifest: Manifest) -> bool:
        """Return whether the home has shown a member in a state before this manifest of its inner group."""
        for url in [*self._published]:
            path = url.removeprefix(f"{group.url}/")
            if path != url and (_committed_row(manifest, path) is not None or path in manifest.gone):
                return True
        return False

    def require_latest(self, group: Store) -> None:
        """Raise ConflictError if another writer has committed to an inner group since the home has shown it."""
        shown = self._shown.get(group.url)
        if shown is not None and read_manifest(group)[0] != shown[1]:
            raise stale_reader(group.url)


def _committed_row(manifest: Manifest, path: str) -> Row | None:
    """Return the row of the member at a path, if its group has committed the member since it listed its files."""
    row = (manifest.rows or {}).get(name_of(path))
    return row if row is not None and row.path == path and row.generation else None
