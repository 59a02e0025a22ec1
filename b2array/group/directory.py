"""The members of a group in a local directory, or in a prefix of an object store.

In a local directory the files are the list of members, as for python-blosc2. In an object store the manifest has the
list: it changes as a whole, while listing is slow and shows the writes of others one by one. Without a manifest, as in
a directory that was copied there, the store is listed.

A local directory has a manifest, too, once a transaction has changed it; see `b2array.group.transaction`. Members are
opened from the summaries in the manifest; if a server cannot list its files, these are the list of members, too. See
`b2array.group.summaries`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self

from b2array import config
from b2array.array.drafts import Kind, place_new
from b2array.array.schunk import SChunk
from b2array.engine import snapshot
from b2array.engine.handle import Handle, Mode
from b2array.engine.snapshot import Snapshot
from b2array.engine.source import FRAME_NAME
from b2array.engine.transaction import Transaction, copied, is_part
from b2array.errors import ConflictError, FormatError, LimitError, UnsupportedError, located
from b2array.format import summary
from b2array.format.header import FrameType
from b2array.format.summary import Record, Summary
from b2array.group import embedded, redo, summaries
from b2array.group.manifest import (
    EMBEDDED,
    MANIFEST,
    SUFFIXES,
    Manifest,
    check_new,
    is_embedded,
    members_among,
)
from b2array.group.redo import ABSENT, commit_of
from b2array.store.base import (
    COMPARE_AND_SWAP,
    Head,
    Stamp,
    Store,
    attempts,
    conflict,
    stale_reader,
    too_many_conflicts,
)
from b2array.store.endings import JOURNAL, TEMPORARY
from b2array.store.open import joined, open_store

__all__ = ["Directory", "NewFrame", "copy_of", "record_of"]


class NewFrame(Protocol):
    """A function that makes the frame of a new member, ready for the commit."""

    def __call__(self, url: str, *, overwrite: bool, layout: Kind = "auto") -> Transaction:
        """Return the frame for a URL, with this layout if the user asks for none."""
        ...


def copy_of(source: Handle, storage_options: Mapping[str, Any]) -> NewFrame:
    """Return what makes a new member as a copy of a frame, without compressing the chunks again."""

    def new(url: str, *, overwrite: bool, layout: Kind = "auto") -> Transaction:
        if layout == "auto" and source.store.appendable == open_store(url, storage_options=storage_options).appendable:
            layout = "sparse" if source.frame.frame_type == FrameType.SPARSE else "contiguous"
        store, kind = place_new(url, layout, storage_options, overwrite=overwrite)
        return copied(source.source, store, kind, overwrite=overwrite)

    return new


def record_of(held: Snapshot) -> Record | None:
    """Return the summary of a member for the manifest."""
    return summary.pack(held.state, held.header)


class Directory:
    """The members of a group as they were when somebody first asked for them, and the manifest.

    `known` are a manifest and the paths of the members by their names.
    """

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], known: tuple[Manifest, dict[str, str]] | None = None
    ) -> None:
        self.storage_options = dict(storage_options)
        self._known = known
        self._records: tuple[bytes, dict[str, Any]] = b"", {}
        self.store = open_store(url, storage_options=self.storage_options)
        # Members are opened when they are asked for. By then the working directory may be another one.
        self._address = self.store.url if self.is_local else url

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._address, self.storage_options, self._known)

    def copy(self) -> Self:
        """Return another handle that shows the same members."""
        return type(self)(self._address, self.storage_options, self._state())

    @property
    def url(self) -> str:
        """Where the group is, without secrets: what comes before a slash and a path."""
        url = self.store.url.rstrip("/")
        return f"{url}/" if url.endswith(":") else url

    @property
    def is_local(self) -> bool:
        """Whether the group is on this computer, where the files are the list of members."""
        return self.store.appendable

    def address(self, path: str) -> str:
        """Return the URL of a path in the group.

        ValueError if it would be that of another place, FormatError if a symbolic link would lead there.
        """
        if "?" in self._address and not self.is_local and self.store.guarantee in ("lock", COMPARE_AND_SWAP):
            # These stores have no queries: it is a letter of the group's name, but not where `joined` puts it.
            raise ValueError(f"{self.url}: expected the URL of a group, found a '?' behind it")
        self.store.refuse_links(path)
        return joined(self._address, path)

    def store_of(self, path: str) -> Store:
        """Return the store of a path in the group."""
        return open_store(self.address(path), storage_options=self.storage_options, within=self._address)

    def look(self) -> bool:
        """Whether there is a manifest that is not empty. Away from this computer, it says which members are shown."""
        with suppress(Exception):  # `exists` decides what else counts
            manifest, _ = self._stored(versioned=False)
            if not self.is_local and manifest != Manifest():
                self._known = manifest, manifest.visible(self.listed(manifest))
            return manifest != Manifest()
        return False

    # The manifest.

    @property
    def manifest(self) -> Manifest:
        """The manifest that belongs to the members shown."""
        return self._state()[0]

    def members(self) -> dict[str, str]:
        """Return the path of each member by its name, in the order of the names."""
        return self._state()[1]

    def show(self, manifest: Manifest, members: Mapping[str, str]) -> None:
        """Show these members until the next `refresh`."""
        self._known = manifest, dict(sorted(members.items()))

    def refresh(self) -> None:
        """Read the list of members again when it is next needed."""
        self._known = None

    def _state(self) -> tuple[Manifest, dict[str, str]]:
        known = self._known
        if known is None:
            if self.is_local:
                known = self._local_state()
            else:
                manifest, _ = self._stored(versioned=False)
                known = manifest, manifest.visible(self.listed(manifest))
            self._known = known
        return known

    def _local_state(self) -> tuple[Manifest, dict[str, str]]:
        """Read manifest and files, again if a commit came in between."""
        manifest, _ = self._stored()
        for _ in range(config.retries + 1):
            before = manifest
            files = self.store.walk()
            # The manifest after the files: it hides a new member before the member's files are there.
            manifest, _ = self._stored()
            if manifest == before:
                break
        return manifest, self._members_in(files, manifest)

    def listed(self, manifest: Manifest) -> Mapping[str, str]:
        """Return the members that the manifest lists; without a list, those of the store or the summaries."""
        if manifest.members is not None:
            return manifest.members
        files: Collection[str] = ()
        with suppress(UnsupportedError):
            files = self.store.walk()
        if not files and self.store.guarantee == "read only":  # a group that is there has files: nothing lists them
            if not manifest.summaries:
                raise UnsupportedError(
                    f"{self.url} cannot be listed, and no manifest names its members: Group.consolidate writes one"
                    " where the group is made"
                )
            files = [*summary.unpack_all(manifest.summaries)]
        return self._members_in(files, manifest)

    def _members_in(self, files: Collection[str], manifest: Manifest) -> dict[str, str]:
        """Find the members by their files, and those in the embedding frame."""
        inner = embedded.members(self._embedding("r")) if EMBEDDED in files else {}
        unseen = manifest.unseen
        # While a member is being replaced it has two files; one of them is hidden.
        outer = members_among(path for path in files if path.removesuffix(f"/{FRAME_NAME}") not in unseen)
        return manifest.visible({**inner, **outer})

    def older(self, members: Mapping[str, str]) -> set[str]:
        """Return the paths of other frames with the names of members, which would appear without these.

        In a local directory, somebody who writes to a URL of his own may have left them.
        """
        if not self.is_local:
            return set()
        paths = [f"{name}{suffix}" for name in members for suffix in SUFFIXES]
        files = [EMBEDDED, *paths, *(f"{path}/{FRAME_NAME}" for path in paths)]
        there = [file for file, head in zip(files, self.store.head(files, 1), strict=True) if isinstance(head, Head)]
        inner = embedded.members(self._embedding("r")) if EMBEDDED in there else {}
        found = {file.removesuffix(f"/{FRAME_NAME}") for file in there if file != EMBEDDED}
        found |= {inner[name] for name in members.keys() & inner.keys()}
        # The manifest after the files, as above.
        return found - {*members.values()} - self._stored()[0].unseen

    def _embedding(self, mode: Mode) -> SChunk:
        return SChunk(Handle(snapshot.load(self.store_of(EMBEDDED)), mode))

    def read(self) -> tuple[Manifest, Stamp | None]:
        """Read the manifest and its version. Where there is no manifest, there is no version either."""
        manifest, stamp = self._stored()
        if not self.is_local:
            manifest = replace(manifest, members=self.listed(manifest))
        return manifest, stamp

    def _stored(self, *, versioned: bool = True) -> tuple[Manifest, Stamp | None]:
        limit = config.limits.metadata_nbytes
        (head,) = self.store.head([MANIFEST], limit)
        stamp = None
        unversioned = not isinstance(head, Exception) and head.stamp is None
        if unversioned and versioned and self.store.guarantee != "read only":
            # Read the version first: then the content is at least as new, and no update is lost.
            stamp = self.store.stamp(MANIFEST)
            (head,) = self.store.head([MANIFEST], limit)
        if isinstance(head, ABSENT):
            return Manifest(), None
        if isinstance(head, Exception):
            raise head
        where, data = f"{self.url}/{MANIFEST}", head.data
        if len(data) == limit:
            raise LimitError(f"{where} has {limit} bytes or more")
        return located(where, lambda: Manifest.unpack(data)), head.stamp or stamp

    def write(self, manifest: Manifest, stamp: Stamp | None) -> None:
        """Replace the manifest of that version, or raise ConflictError. The caller holds its lock."""
        manifest = self._as_stored(manifest)
        content = manifest.pack()
        try:
            if stamp is None:
                self.store.create(MANIFEST, content)
            else:
                self.store.replace(MANIFEST, content, expected=stamp.version)
        except (ConflictError, FileExistsError) as error:
            # The answer to a request that succeeded may have been lost.
            if self._stored()[0] != manifest:
                raise conflict(self.url) from error
        self.store.force()

    def _as_stored(self, manifest: Manifest) -> Manifest:
        return replace(manifest, members=None) if self.is_local else manifest

    def holds(self, manifest: Manifest) -> bool:
        """Whether the stored manifest is this one."""
        return self._stored()[0] == self._as_stored(manifest)

    def update(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Replace the manifest by a changed one; try again if another writer came first."""
        for _ in attempts(self.store):
            with self.store.lock(MANIFEST), suppress(ConflictError):
                manifest, stamp = self.read()
                manifest = change(manifest)
                self.write(manifest, stamp)
                return manifest
        raise too_many_conflicts(self.store)

    def recover(self) -> None:
        """Complete a transaction that was interrupted after its commit, and show the result."""

        def complete(found: Manifest) -> Manifest:
            self.apply(found)
            return found.applied()

        manifest, _ = self._stored()
        if manifest.redo or manifest.removed:
            self.update(complete)
            self.refresh()

    def apply(self, manifest: Manifest, *, locked: Collection[str] = ()) -> None:
        """Make the files agree with the manifest. The caller holds its lock, and those of the members `locked`."""
        redo.apply(self.store_of, manifest, locked=locked)
        listed = {*(manifest.members or {}).values()}
        # A path that is listed or revealed belongs to a newer member.
        self.remove_frames(
            path for path in manifest.removed
            if is_embedded(path) or (path in manifest.hidden if self.is_local else path not in listed)
        )  # fmt: skip

    # Members.

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:
        """Open a member by its path; raise ConflictError if a later transaction has changed it.

        If it may be `lazy`, a reader sends no request for a member that the manifest describes. If the description is
        out of date, the first read of items raises `ConflictError`.
        """
        if is_embedded(path):
            return embedded.open_embedded(self._embedding("r"), path)
        if mode == "r":
            promised = self._promised(path) if lazy or self.store.guarantee == "lock" else None
            return promised or Handle(self.current(path), mode)
        self.recover()
        handle = Handle(self.current(path), mode)
        if self.store.guarantee != "lock" and self._record(path) is not None:
            # Away from this computer, readers learn only later that a summary is out of date.
            handle.before_commit = partial(self.update, lambda found: found.with_summaries({path: None}))
        return handle

    def _record(self, path: str) -> Any:
        """Return the summary of a member in the manifest, or None."""
        packed = self._state()[0].summaries
        if self._records[0] is not packed:
            self._records = packed, summary.unpack_all(packed)
        return self._records[1].get(path)

    def _promised(self, path: str) -> Handle | None:
        record = None if path in self._state()[0].redo else self._record(path)
        return None if record is None else summaries.promise(self.store_of(path), record, partial(self._keep, path))

    def _keep(self, path: str, said: Summary) -> Snapshot:
        """Read a member that a summary describes."""
        held = self.current(path)
        if held.frame.fingerprint != said.fingerprint:
            if self._stored(versioned=False)[0].commit != self.manifest.commit:
                raise stale_reader(self.url)
            summaries.check(held, said)
        return held

    def current(self, path: str) -> Snapshot:
        """Return the state of a member that belongs to the members that are shown. Raises what `open` raises."""
        manifest, _ = self._state()
        try:
            held = redo.read_member(self.store_of, manifest, path)
        except ABSENT:
            if self._stored()[0] != manifest:
                raise stale_reader(self.url) from None
            raise FormatError(f"{self.url}: expected the member {path}, found nothing there") from None
        identity, number = commit_of(held.state)
        if identity and (identity != manifest.identity or number > manifest.number):
            now, _ = self._stored()
            if now.identity == identity and now.commit != manifest.commit:
                raise stale_reader(self.url)
        return held

    def create(self, name: str, suffix: str, make: NewFrame, *, overwrite: bool) -> Handle:
        """Make a member, or replace one, and return it."""
        check_new(name, self.members(), self.url)
        path = name + suffix
        if path in self.read()[0].hidden and not overwrite:
            raise self.occupied(path)
        before = self.members().get(name)
        gone = set() if before is None else ({before} | self.older({name: before})) - {path}
        held = Handle(make(self.address(path), overwrite=overwrite).commit(), "r+")
        manifest, members = self._state()
        if self._is_list(manifest) or path in manifest.hidden:
            # A program that makes a member usually goes on to change it: a summary would soon be out of date.
            manifest = self.update(lambda found: found.with_member(name, path).with_summaries({path: None}, gone))
        self.show(manifest, {**(members if self.is_local else manifest.visible(manifest.members or {})), name: path})
        self.remove_frames(gone)
        return held

    def _is_list(self, manifest: Manifest) -> bool:
        """Whether changes outside of transactions must be in the manifest, too."""
        return not self.is_local or manifest.members is not None or bool(manifest.summaries)

    def occupied(self, path: str) -> FileExistsError:
        """Return the error for a path with an uncommitted member."""
        return FileExistsError(
            f"{self.url}: {path} belongs to a transaction that is under way or was interrupted; overwrite=True"
            " replaces it"
        )

    def remove(self, members: Mapping[str, str]) -> None:
        """Remove members, given by name and path."""
        manifest, shown = self._state()
        gone = {*members.values(), *self.older(members)}
        if self._is_list(manifest):
            manifest = self.update(lambda found: found.without(members).with_summaries({}, gone))
            shown = shown if self.is_local else manifest.visible(manifest.members or {})
        self.show(manifest, {name: path for name, path in shown.items() if name not in members})
        self.remove_frames(gone)

    def remove_frames(self, paths: Iterable[str]) -> None:
        """Remove the frames of members that are not listed any more."""
        inner = []
        for path in paths:
            if is_embedded(path):
                inner.append(path.removeprefix(f"{EMBEDDED}/"))
            else:
                self.remove_files(path)
        if inner:
            embedded.remove(self._embedding("r+"), inner)
            self.store_of(EMBEDDED).force()

    def remove_files(self, path: str) -> None:
        """Remove the frame at a path."""
        self.store_of(path).remove(FRAME_NAME, _belongs)


def _belongs(name: str) -> bool:
    """Whether a file in the directory of a frame is part of it, or waits there for a commit."""
    return is_part(name) or name.endswith((TEMPORARY, JOURNAL))
