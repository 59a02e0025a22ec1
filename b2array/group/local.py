"""The members of a group in a local directory.

The files in the directory are the list of members, as for python-blosc2. For a member that the log in the manifest
names, the log decides; see `b2array.frame.log`. Readers open members from summaries in the manifest; see
`b2array.group.summaries`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Protocol, Self

from b2array import config
from b2array.array.drafts import AnyPlace, FreePlace, Kind, place_new
from b2array.array.schunk import SChunk
from b2array.commit import apply
from b2array.commit.copied_states import KeptState, states_to_copy
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle, Mode
from b2array.commit.localize import localize
from b2array.commit.manifests import write_manifest
from b2array.commit.prepare import copy_frame
from b2array.commit.tables import describes_a_table, table_of
from b2array.errors import B2ArrayError, ConflictError, prefix_errors
from b2array.format import summary
from b2array.format.header import FrameType
from b2array.frame import snapshot
from b2array.frame.catalog import Catalog, another_group, read_manifest
from b2array.frame.log import Action, Remembered, action_of, inspect_place, read_member
from b2array.frame.manifest import (
    EMBEDDED,
    MANIFEST,
    SUFFIXES,
    Entry,
    Manifest,
    is_embedded,
    members_among,
    mounts_among,
    own_files,
    refuse_other_names,
)
from b2array.frame.snapshot import Member, Snapshot, load_member
from b2array.group import embedded, summaries
from b2array.group.members import Members
from b2array.printable import printable
from b2array.store.base import (
    MISSING,
    Store,
    Version,
    attempts,
    stale_reader,
    too_many_conflicts,
)
from b2array.store.open import join_url, open_store

__all__ = ["LocalGroup", "NewFrame", "copier_of"]

_MOST_STATES, _MOST_CHUNKS = 256, 2**12
"""How many states of members, and of how many chunks at most, a handle remembers: some megabytes in all."""


class NewFrame(Protocol):
    """A function that prepares the frame of a new member for a commit."""

    def __call__(self, url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:
        """Return a draft of the frame at a place, or in memory. `layout` applies if the user does not choose one."""
        ...


def copier_of(
    source: Handle,
    storage_options: Mapping[str, Any],
    *,
    keeps_layout: bool = False,
    snapshots: bool = True,
    earlier: Sequence[KeptState] = (),
) -> NewFrame:
    """Return a function that makes a new member as a copy of a frame, without compressing the chunks again.

    With `keeps_layout`, or in the same kind of store, the copy has the layout of the frame; otherwise the usual layout
    of its store. With `snapshots`, the copy has the frame's own snapshots, and the `earlier` states, which snapshots of
    its group name.
    """
    own: Kind = "sparse" if source.frame.frame_type == FrameType.SPARSE else "contiguous"

    def new(url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:
        """Return a draft of the copy at a place."""
        if layout == "auto" and (keeps_layout or _is_alike(source.store, url, storage_options)):
            layout = own
        place = place_new(url, layout, storage_options, overwrite=overwrite)
        origin = source.source
        states: list[KeptState] = []
        if snapshots:
            states = [*states_to_copy(origin), *earlier]
            states.sort(key=lambda each: each.entry.time)
        return copy_frame(
            origin,
            place.store,
            place.kind,
            overwrite=overwrite,
            kept=states,
            first=place.first,
        )

    return new


def _is_alike(store: Store, place: AnyPlace, storage_options: Mapping[str, Any]) -> bool:
    """Return whether a store and a place are both on a local disk, or both in an object store."""
    if place is None:
        return False
    if isinstance(place, FreePlace):
        return store.can.local == place.store.can.local
    other = open_store(place, storage_options=storage_options)
    return store.can.local == other.can.local


class LocalGroup:
    """The members of a local group and its manifest, as listed at the first use.

    A caller that has listed the group passes the manifest and the members as `listing`.
    """

    is_local = True

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any],
        listing: tuple[Manifest, Members] | None = None,
        *,
        store: Store | None = None,
        states: OrderedDict[str, Remembered] | None = None,
    ) -> None:
        self.storage_options = dict(storage_options)
        self._listing = listing
        self._records: tuple[bytes, dict[str, Any]] = b"", {}
        # The embedded members, with the version of their frame: another version is listed again.
        self._inner: tuple[Version | None, dict[str, str]] = None, {}
        # The groups inside this one, by name.
        self._mounts: dict[str, LocalGroup] = {}
        # The version of the manifest whose log this handle has applied: the log need not be applied again.
        self._applied: Version | None = None
        # States that transactions of this handle have committed, the latest last: the next transaction often needs
        # them.
        self._states = OrderedDict[str, Remembered]() if states is None else states
        # The manifest that `recover` has read, for the next list of members.
        self._recovered: Manifest | None = None
        # The number of the directory and the identity of the group that were shown first. Changes of another group that
        # is in the same place by now are refused.
        self._first: tuple[int, str] = 0, ""
        self.store = store or open_store(url, storage_options=self.storage_options)
        # An absolute path, because the working directory may change before a member is opened.
        self._address = self.store.url

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self._address, self.storage_options, self._listing, self._first)

    def copy(self) -> Self:
        """Return a second handle that shows the same members. This lists the members if they were not listed yet."""
        copied = type(self)(
            self._address,
            self.storage_options,
            self._state(),
            store=self.store,
            states=self._states,
        )
        copied._first = self._first
        return copied

    @property
    def url(self) -> str:
        """The path of the group, without a slash at the end."""
        url = self.store.url.rstrip("/")
        return f"{url}/" if url.endswith(":") else url

    def address(self, path: str) -> str:
        """Return the path of a member in the file system; FormatError if symbolic links are on the way."""
        self.store.refuse_links(path)
        return join_url(self._address, path)

    def store_of(self, path: str) -> Store:
        """Return the store of a path in the group. It refuses symbolic links below the group."""
        return self.store.below(path) if path else self.store

    # Groups inside this one.

    def mount_of(self, path: str) -> tuple[LocalGroup, str] | None:
        """Return the inner group that owns a member, and the member's path there; None if this group owns it.

        A group owns everything below its directory, down to the next group. This looks in the directories on the way,
        and remembers the inner groups until `refresh`.
        """
        parts = path.split("/")
        mounts = self._mounts  # another thread may call refresh()
        for n in range(1, len(parts)):
            name = "/".join(parts[:n])
            if name not in mounts and self._is_mount(name):
                mounts[name] = type(self)(self.address(name), self.storage_options)
            if name in mounts:
                return mounts[name], "/".join(parts[n:])
        return None

    def _is_mount(self, name: str) -> bool:
        """Return whether a directory has the mark of a group."""
        return any(os.path.exists(os.path.join(self._address, name, mark)) for mark in (MANIFEST, EMBEDDED))

    def without_mounts(self, members: Mapping[str, str]) -> dict[str, str]:
        """Return the members, given by names and paths, that belong to this group and to no group inside it."""
        return {name: path for name, path in members.items() if self.mount_of(path) is None}

    def require_own(self, path: str) -> None:
        """Raise ValueError if an inner group owns a member, because a commit writes one manifest."""
        mount = self.mount_of(path)
        if mount is not None:
            raise ValueError(
                f"{self.url}/{path} belongs to {mount[0].url}, which is a separate group; a transaction changes members"
                f" of one group, so begin it with b2array.open_group({printable(mount[0].url)!r}, 'r+')"
            )

    def show_manifest(self) -> bool:
        """Return whether there is a manifest that can be read; this shows no members. Ignores all errors."""
        # `whole.exists` checks whether another file marks the group, and raises the errors that matter.
        with suppress(Exception):
            return self.load_manifest() != Manifest()
        return False

    # The manifest.

    @property
    def manifest(self) -> Manifest:
        """The manifest of the members that this handle shows."""
        return self._state()[0]

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""
        return self._state()[1]

    def show_files(self, paths: Collection[str]) -> None:
        """Show the members with these files, for a group whose manifest cannot be read."""
        self.show(Manifest(), Members(members_among(paths)))

    def show(self, manifest: Manifest, members: Members) -> None:
        """Show these members until the next `refresh`."""
        self._listing = manifest, members

    def refresh(self) -> None:
        """Forget the list of members; the next use lists them again."""
        self._listing = self._recovered = None
        self._mounts = {}

    def close(self) -> None:
        """Close files."""
        self.store.close()

    def _state(self) -> tuple[Manifest, Members]:
        """Return the manifest and the members that this handle shows; list them at the first use."""
        if self._listing is None:
            self._listing = self._list()
        number, identity = self._first
        if not (number and identity):
            self._first = number or os.stat(self._address).st_ino, identity or self._listing[0].identity
        return self._listing

    def require_same(self, manifest: Manifest | None = None) -> None:
        """Raise ConflictError if the directory was deleted or renamed since this handle has first shown its members.

        If the caller has read the `manifest`, this compares its identity as well: another group may be there.
        """
        number, identity = self._first
        if not number:  # this handle has shown no members yet
            return
        try:
            is_same = os.stat(self._address).st_ino == number
        except MISSING:
            raise ConflictError(f"{self.url} was deleted or renamed since it was opened") from None
        if not is_same or (manifest is not None and identity not in ("", manifest.identity)):
            raise another_group(self.url)

    def _list(self) -> tuple[Manifest, Members]:
        """Read the manifest, and list the files.

        If a commit happens in between, start again; the last attempt locks out writers.
        """
        manifest, self._recovered = self._recovered, None
        if manifest is None:
            manifest, _ = self.read()
        if manifest.members is not None:
            return manifest, Members(manifest.members)
        for attempt in range(config.retries + 1):
            last = attempt == config.retries
            with self.store.lock(MANIFEST, shared=True) if last else nullcontext():
                before = manifest
                members = self.members_of(manifest)
                manifest, _ = self.read()
                if manifest == before:
                    return manifest, members
        return manifest, self.members_of(manifest)

    def members_of(self, manifest: Manifest) -> Members:
        """List the present members, as they are after the log of a manifest is applied."""
        return self._members_in(self.store.walk(), manifest)

    def _members_in(self, files: Collection[str], manifest: Manifest) -> Members:
        """Find the members among files, in the embedding frame, in the log, and in inner groups.

        This reads the members that the log names. UnsupportedError: a member has a name that it cannot have here.
        """
        prefix_errors(self.url, lambda: refuse_other_names(files))
        paths = members_among(own_files(files))
        for name in mounts_among(files):
            paths |= self._members_of_mount(name)
        for path, entry in manifest.log.items():
            if is_embedded(path):
                continue
            # The files do not decide: they depend on the progress of the writer of the log.
            name = path.rpartition(".")[0]
            here, action = action_of(entry, self.store_of, path)
            if action in (Action.WRITE, Action.PUT):
                paths[name] = path
            elif paths.get(name) == path and (action is Action.TAKE_OUT or here.name is None):
                del paths[name]
            elif here.name is not None and name not in paths:
                paths[name] = path
        inner = self._embedded_members(manifest) if EMBEDDED in files else {}
        return Members({**inner, **paths})

    def _members_of_mount(self, name: str) -> dict[str, str]:
        """List an inner group; return the paths of its members by their names, both relative to this group.

        The result does not include embedded members.
        """
        mount = self.mount_of(f"{name}/")
        if mount is None:
            return {}
        inner = mount[0].members()
        return {f"{name}/{each}": f"{name}/{path}" for each, path in inner.items() if not is_embedded(path)}

    def _embedded_members(self, manifest: Manifest) -> dict[str, str]:
        """Return the members in the embedding frame, except the members that the log deletes.

        The list is read again only if the embedding frame has changed.
        """
        version = self.store.stamp(EMBEDDED).version
        if version is None or version != self._inner[0]:
            self._inner = version, embedded.members(self._embedding("r"))
        _, inner = self._inner
        log = manifest.log
        return {
            name: path
            for name, path in inner.items()
            if path not in log or self.name_embedded_state(path) != log[path].before
        }

    def paths_of(self, names: Collection[str], manifest: Manifest) -> dict[str, str]:
        """Find all paths of members with these names, as they are after the log is applied; return names by paths.

        One name may have several paths: a writer that does not know the group may have made a second file. This reads
        the place of each possible path.
        """
        names_by_path = {}
        for name in names:
            for suffix in SUFFIXES:
                path = f"{name}{suffix}"
                if self._remains(path, manifest):
                    names_by_path[path] = name
        # A group that python-blosc2 did not make may lack the embedding frame.
        with suppress(FileNotFoundError):
            inner = self._embedded_members(manifest)
            names_by_path |= {inner[name]: name for name in inner.keys() & set(names)}
        return names_by_path

    def _remains(self, path: str, manifest: Manifest) -> bool:
        """Read the place of a path; return whether a frame is there, and the log of the manifest does not delete it."""
        entry = manifest.log.get(path)
        if entry is None:
            return inspect_place(self.store_of(path)).name is not None
        here, action = action_of(entry, self.store_of, path)
        return here.name is not None and action is not Action.TAKE_OUT

    def members_near(self, names: Collection[str], manifest: Manifest) -> Members:
        """List the members around and below some names: they decide whether new members may have the names."""
        outer = {each for name in names for each in accumulate(name.split("/")[:-1], "{}/{}".format)}
        paths = self.paths_of(outer, manifest)
        near = Members({name: path for path, name in paths.items()})
        for name in names:
            # Usually no directory has the name of a new member.
            with suppress(*MISSING):
                files = [f"{name}/{file}" for file in self.store_of(name).walk()]
                for other, path in self._members_in(files, Manifest()).items():
                    near.add(other, path)
        return near

    def name_embedded_state(self, path: str) -> str:
        """Read an embedded member, and return a digest that names its state; "" for a missing member."""
        return embedded.name_state(self._embedding("r"), path)

    def _embedding(self, mode: Mode) -> SChunk:
        """Read the embedding frame, and return it as a super-chunk."""
        source = snapshot.load(self.store_of(EMBEDDED))
        return SChunk(Handle(source, mode))

    def read(self) -> tuple[Manifest, Version | None]:
        """Read the manifest and its version. A missing manifest is an empty one without a version."""
        return read_manifest(self.store)

    def load_manifest(self) -> Manifest:
        """Read the present manifest, without its version."""
        manifest, _ = read_manifest(self.store, versioned=False)
        return manifest

    def require_ledger(self) -> None:
        """Do nothing: the manifest of a local group can always list snapshots."""

    def write(
        self,
        manifest: Manifest,
        version: Version | None,
        *,
        keep: Callable[[], object] = lambda: None,
    ) -> Version | None:
        """Replace the manifest of this version, or raise ConflictError; return the new version.

        This forces the manifest to the disk. The members shown stay the same. The caller holds the manifest's lock.
        `keep` is called before an error if the manifest may have been replaced.
        """
        return write_manifest(self.store, manifest, version, keep=keep).version

    def update(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Change the manifest in the store, and return it; try again if another writer was faster.

        This takes the manifest's lock. The members shown stay the same.
        """
        for _ in attempts(self.store):
            with self.store.lock(MANIFEST):
                manifest, version = self.read()
                self.require_same(manifest)
                # Another writer has replaced the manifest meanwhile: change the new one.
                with suppress(ConflictError):
                    manifest = change(manifest)
                    self.write(manifest, version)
                    return manifest
        raise too_many_conflicts(self.store)

    def recover(self) -> None:
        """Complete an interrupted commit; then the next use lists the members again.

        If the group was copied from an object store, make it a local group first. The manifest that this reads serves
        the next listing. Without an interrupted commit, nothing is locked or written.
        """
        manifest, version = self.read()
        if manifest.rows is not None:
            with self.store.lock(MANIFEST):
                localize(self.store, *self.read())
            self.refresh()
            return
        if manifest.log and version != self._applied:
            with self.store.lock(MANIFEST):
                manifest, version = self.read()
                self.apply_log(manifest)
                self._applied = version
            self.refresh()
        self._recovered = manifest

    def apply_log(
        self,
        manifest: Manifest,
        *,
        locked: Collection[str] = (),
        states: Mapping[str, Snapshot] = MappingProxyType({}),
    ) -> apply.Applied:
        """Apply the log of a manifest to members that have these states, as far as the caller knows.

        The caller holds the lock of the manifest, and the locks of the members `locked`. The manifest itself does not
        change.
        """
        applied = apply.apply_log(
            self.store_of,
            manifest.log,
            remove_embedded=self.remove_embedded,
            locked=locked,
            states=states,
        )
        moved = {path: entry for path, entry in manifest.log.items() if entry.kind in ("frame", "delete")}
        tables = {path: entry for path, entry in moved.items() if table_of(path)}
        if tables:
            try:
                self._note_tables(tables)
            except (OSError, B2ArrayError):
                # The next writer tries again.
                applied.left.update(tables)
        return applied

    def _note_tables(self, paths: Collection[str]) -> None:
        """List the tables that these descriptions made, and no others, where python-blosc2 looks for tables.

        The change reaches the disk before this returns. A group without an embedding frame has no such list.
        """
        try:
            schunk = self._embedding("r+")
        except FileNotFoundError:
            return
        if not embedded.lists_objects(schunk):
            # Without a list, python-blosc2 finds the tables itself. A list with one of them would hide the others.
            paths = [path for path in members_among(own_files(self.store.walk())).values() if table_of(path)]
        tables = {table_of(path): describes_a_table(self.store_of(path)) for path in paths}
        if embedded.note_tables(schunk, tables):
            self.store_of(EMBEDDED).force()

    def apply_entry(self, path: str) -> None:
        """Apply an entry that puts a new frame in a member's place, so that a writer finds the frame there.

        `recover` may have left such an entry, or another writer may have committed it since. This takes the manifest's
        lock; if the log in the shown manifest has no such entry, it does nothing.
        """
        entry = self.manifest.log.get(path)
        if entry is not None and entry.kind == "frame":
            with self.store.lock(MANIFEST):
                apply.apply_entry(self.store_of, path, entry)

    def remove_embedded(self, path: str, entry: Entry) -> None:
        """Remove a member from the embedding frame, unless an earlier attempt has removed it.

        The change reaches the disk before this returns.
        """
        schunk = self._embedding("r+")
        if embedded.name_state(schunk, path) == entry.before:
            embedded.remove(schunk, [path.removeprefix(f"{EMBEDDED}/")])
            self.store_of(EMBEDDED).force()

    # Members.

    def open(
        self,
        path: str,
        mode: Mode,
        *,
        lazy: bool = False,  # noqa: ARG002
    ) -> Handle:
        """Open a member by its path; raise ConflictError if a later transaction has changed it.

        Opening for writing first completes an interrupted commit. Embedded members are opened read-only.
        """
        if is_embedded(path):
            return embedded.open_member(self._embedding("r"), path)
        mount = self.mount_of(path)
        if mount is not None:
            owner, inner = mount
            return owner.open(inner, mode)
        if mode == "r":
            return self._promise(path) or Handle(self.current(path), mode)
        # A writer must find the frame of the last commit in its place.
        self.recover()
        self.apply_entry(path)
        return Handle(self.current(path), mode)

    def _promise(self, path: str) -> Handle | None:
        """Return a handle from the summary of a member; None if the member must be read at once.

        This reads the head of the member, to check the summary.
        """
        manifest, _ = self._state()
        # The summary of a member in the log describes the state before the log is applied.
        if path in manifest.log:
            return None
        packed = manifest.summaries
        if self._records[0] is not packed:
            self._records = packed, summary.unpack_all(packed)
        record = self._records[1].get(path)
        return None if record is None else summaries.promise(self.store_of(path), record)

    def state_of(self, path: str, manifest: Manifest | None = None) -> Snapshot:
        """Load the state of a member, as it is after the log of a manifest is applied; by default the present one."""
        mount = self.mount_of(path)
        if mount is not None:
            owner, inner = mount
            return owner.state_of(inner)
        return self._own_state(path, manifest or self.load_manifest())

    def _own_state(self, path: str, manifest: Manifest) -> Snapshot:
        """Load the state of a member that no inner group owns, as it is after the log of a manifest is applied.

        If the member no longer has the state that this handle has remembered, the handle forgets that state.
        """
        # A group that was copied from an object store still has rows.
        if manifest.rows is not None:
            member = Member(Catalog(self.store), path.rpartition(".")[0])
            source = load_member(member, manifest)
            return replace(source, member=None)
        again = partial(_reload_state, self._address, self.storage_options, path)
        last = self._states.get(path)
        source = read_member(self.store_of, manifest, path, again=again, last=last)
        # Other writers change this member as well, so comparing it with the last commit of this handle saves no more
        # time.
        if last is not None and source.state is not last[0]:
            self._states.pop(path, None)
        return source

    def remember(self, path: str, committed: Snapshot) -> None:
        """Remember the state that a transaction has given a member, and forget the oldest of too many states.

        States with many chunks, and states that other software wrote, are not remembered.
        """
        described = committed.frame
        if described.is_ours and committed.header and described.nchunks <= _MOST_CHUNKS:
            self._states[path] = committed.state, committed.header
            self._states.move_to_end(path)
            if len(self._states) > _MOST_STATES:
                self._states.popitem(last=False)

    def current(self, path: str) -> Snapshot:
        """Load the state of a member that belongs to the manifest shown.

        Raises ConflictError if the member is missing, or if a later transaction has changed it.
        """
        mount = self.mount_of(path)
        if mount is not None:
            owner, inner = mount
            return owner.current(inner)
        manifest, _ = self._state()
        try:
            source = self._own_state(path, manifest)
        except MISSING:
            # The caller may have the path from an earlier list: a commit through this handle shows its own manifest,
            # but not the changes that other writers made before it.
            raise stale_reader(self.url) from None
        identity, number, _ = source.state.annotations.group_commit or ("", 0, "")
        # The member has the state of a later commit of the group, unless its directory was copied from another group.
        if number and (identity != manifest.identity or number > manifest.number):
            now, _ = self.read()
            if now.identity == identity and now.commit != manifest.commit:
                raise stale_reader(self.url)
        return source


def _restore(
    kind: type[LocalGroup],
    address: str,
    storage_options: Mapping[str, Any],
    listing: tuple[Manifest, Members] | None,
    first: tuple[int, str],
) -> LocalGroup:
    """Restore a pickled handle."""
    group = kind(address, storage_options, listing)
    group._first = first
    return group


def _reload_state(
    address: str,
    options: Mapping[str, Any],
    path: str,
    *,
    carries_out: bool = False,
) -> Snapshot:
    """Load the committed state of a member again, for an array that was unpickled or repeats a read.

    With `carries_out`, first put a new frame that waits in the log in its place.
    """
    group = LocalGroup(address, options)
    # A writer must find a new frame in its place, and not in the log.
    if carries_out:
        group.apply_entry(path)
    return group.state_of(path)
