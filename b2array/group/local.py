"""The members of a group in a local directory.

The files are the list of members, as for python-blosc2. The log in the manifest has the last word about the
members that it names; see `b2array.frame.log`. Members are opened from the summaries in the manifest; see
`b2array.group.summaries`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
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
from b2array.commit.prepare import copied
from b2array.errors import ConflictError
from b2array.format import summary
from b2array.format.header import FrameType
from b2array.frame import snapshot
from b2array.frame.catalog import Catalog, read_manifest
from b2array.frame.log import Action, action_of, inspect_place, read_member
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

__all__ = ["LocalGroup", "NewFrame", "copy_of"]


class NewFrame(Protocol):
    """A function that makes the frame of a new member, ready for the commit."""

    def __call__(self, url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:
        """Return the frame for a place, or in memory, with this layout if the user asks for none."""
        ...


def copy_of(
    source: Handle,
    storage_options: Mapping[str, Any],
    *,
    keeps_layout: bool = False,
    snapshots: bool = True,
    earlier: Sequence[KeptState] = (),
) -> NewFrame:
    """Return what makes a new member as a copy of a frame, without compressing the chunks again.

    Unless it is to keep the layout, a copy from another kind of store gets the layout that is usual there. With
    `snapshots`, it has those that the frame has for itself, and `earlier` states that snapshots of its group name.
    """
    own: Kind = "sparse" if source.frame.frame_type == FrameType.SPARSE else "contiguous"

    def new(url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:
        if layout == "auto" and (keeps_layout or _is_alike(source.store, url, storage_options)):
            layout = own
        place = place_new(url, layout, storage_options, overwrite=overwrite)
        origin = source.source
        states = sorted([*states_to_copy(origin), *earlier], key=lambda each: each.entry.time) if snapshots else []
        return copied(origin, place.store, place.kind, overwrite=overwrite, kept=states, first=place.first)

    return new


def _is_alike(store: Store, place: AnyPlace, storage_options: Mapping[str, Any]) -> bool:
    """Whether a place is in the same kind of store: both files, or both objects."""
    if place is None:
        return False
    other = place.store if isinstance(place, FreePlace) else open_store(place, storage_options=storage_options)
    return store.can.local == other.can.local


class LocalGroup:
    """The members of a local group as they were when somebody first asked for them, and the manifest.

    `known` are a manifest and the paths of the members by their names.
    """

    is_local = True

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], known: tuple[Manifest, Members] | None = None
    ) -> None:
        self.storage_options = dict(storage_options)
        self._known = known
        self._records: tuple[bytes, dict[str, Any]] = b"", {}
        # The embedded members, with the version of their frame.
        self._inner: tuple[Version | None, dict[str, str]] = None, {}
        # Groups inside this one, by their names.
        self._mounts: dict[str, LocalGroup] = {}
        # The version of the manifest whose log this handle has seen carried out.
        self._settled: Version | None = None
        self.store = open_store(url, storage_options=self.storage_options)
        # Members are opened when they are asked for. By then the working directory may be another one.
        self._address = self.store.url

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

    def address(self, path: str) -> str:
        """Return the path of a member in the file system; FormatError if a symbolic link would lead there."""
        self.store.refuse_links(path)
        return join_url(self._address, path)

    def store_of(self, path: str) -> Store:
        """Return the store of a path in the group. It refuses symbolic links in between."""
        return self.store.below(path) if path else self.store

    # Groups inside of this one.

    def mount_of(self, path: str) -> tuple[LocalGroup, str] | None:
        """Return the group inside this one that a member belongs to, and its path there; None for this group's.

        A group owns everything below it, up to the next one.
        """
        parts = path.split("/")
        for n in range(1, len(parts)):
            name = "/".join(parts[:n])
            if name not in self._mounts and self._is_mount(name):
                self._mounts[name] = type(self)(self.address(name), self.storage_options)
            if name in self._mounts:
                return self._mounts[name], "/".join(parts[n:])
        return None

    def _is_mount(self, name: str) -> bool:
        return any(os.path.exists(os.path.join(self._address, name, mark)) for mark in (MANIFEST, EMBEDDED))

    def without_mounts(self, members: Mapping[str, str]) -> dict[str, str]:
        """Return the members, given by names and paths, that belong to this group and to no group inside it."""
        return {name: path for name, path in members.items() if self.mount_of(path) is None}

    def require_own(self, path: str) -> None:
        """Raise ValueError if a member belongs to a group inside this one: a commit has one manifest."""
        mount = self.mount_of(path)
        if mount is not None:
            raise ValueError(
                f"{self.url}/{path} belongs to {mount[0].url}, which is a separate group; a transaction changes members"
                f" of one group, so begin it with b2array.open_group({printable(mount[0].url)!r}, 'r+')"
            )

    def has_manifest(self) -> bool:
        """Whether there is a manifest that is not empty, as far as it can be read."""
        with suppress(Exception):  # `exists` decides what else counts
            return self._stored(versioned=False)[0] != Manifest()
        return False

    # The manifest.

    @property
    def manifest(self) -> Manifest:
        """The manifest that belongs to the members shown."""
        return self._state()[0]

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""
        return self._state()[1]

    def show_files(self, paths: Collection[str]) -> None:
        """Show the members whose files are these, whatever a manifest says that nobody can read."""
        self.show(Manifest(), Members(members_among(paths)))

    def show(self, manifest: Manifest, members: Members) -> None:
        """Show these members until the next `refresh`."""
        self._known = manifest, members

    def refresh(self) -> None:
        """Read the list of members again when it is next needed."""
        self._known = None
        self._mounts = {}

    def close(self) -> None:
        """Close files."""
        self.store.close()

    def _state(self) -> tuple[Manifest, Members]:
        if self._known is None:
            self._known = self._local_state()
        return self._known

    def _local_state(self) -> tuple[Manifest, Members]:
        """Read manifest and files, again if a commit came in between; at last while no writer can come."""
        manifest, _ = self._stored()
        if manifest.members is not None:
            return manifest, Members(manifest.members)
        for attempt in range(config.retries + 1):
            last = attempt == config.retries
            with self.store.lock(MANIFEST, shared=True) if last else nullcontext():
                before = manifest
                members = self._members_in(self.store.walk(), manifest)
                manifest, _ = self._stored()
                if manifest == before:
                    return manifest, members
        return manifest, self._members_in(self.store.walk(), manifest)

    def members_of(self, manifest: Manifest) -> Members:
        """Return the members that there are now, as a manifest leaves them."""
        return self._members_in(self.store.walk(), manifest)

    def _members_in(self, files: Collection[str], manifest: Manifest) -> Members:
        """Find the members by their files, in the embedding frame, in the log, and in groups inside of this one."""
        outer = members_among(own_files(files))
        for name in mounts_among(files):
            mount = self.mount_of(f"{name}/")
            inner = {} if mount is None else mount[0].members()
            outer |= {f"{name}/{each}": f"{name}/{path}" for each, path in inner.items() if not is_embedded(path)}
        for path, entry in manifest.log.items():
            if is_embedded(path):
                continue
            # What has a name for a while, or has none yet, depends on how far a writer has come.
            name = path.rpartition(".")[0]
            found, action = action_of(entry, self.store_of, path)
            if action in (Action.WRITE, Action.PUT):
                outer[name] = path
            elif outer.get(name) == path and (action is Action.TAKE_OUT or found.name is None):
                del outer[name]
            elif found.name is not None and name not in outer:
                outer[name] = path
        return Members({**(self._embedded(manifest) if EMBEDDED in files else {}), **outer})

    def _embedded(self, manifest: Manifest) -> dict[str, str]:
        """Return the members in the embedding frame, but for those that the log deletes."""
        version = self.store.stamp(EMBEDDED).version
        if version is None or version != self._inner[0]:
            self._inner = version, embedded.members(self._embedding("r"))
        return {
            name: path
            for name, path in self._inner[1].items()
            if path not in manifest.log or self.state_of_embedded(path) != manifest.log[path].before
        }

    def paths_of(self, names: Collection[str], manifest: Manifest) -> dict[str, str]:
        """Return the names of members by all paths that there are for these names, as the manifest leaves them.

        In a local directory there may be several: somebody who writes to a URL of his own may have made a second one.
        """
        found = {}
        for name in names:
            for path in (f"{name}{suffix}" for suffix in SUFFIXES):
                entry = manifest.log.get(path)
                if entry is None:
                    there, is_going = inspect_place(self.store_of(path)), False
                else:
                    there, action = action_of(entry, self.store_of, path)
                    is_going = action is Action.TAKE_OUT
                if there.name is not None and not is_going:
                    found[path] = name
        with suppress(FileNotFoundError):
            inner = self._embedded(manifest)
            found |= {inner[name]: name for name in inner.keys() & set(names)}
        return found

    def around(self, names: Collection[str], manifest: Manifest) -> Members:
        """Return the members that decide whether new ones may have these names, as the manifest leaves them."""
        outer = {each for name in names for each in accumulate(name.split("/")[:-1], "{}/{}".format)}
        near = Members({name: path for path, name in self.paths_of(outer, manifest).items()})
        for name in names:
            with suppress(*MISSING):
                files = [f"{name}/{file}" for file in self.store_of(name).walk()]
                for other, path in self._members_in(files, Manifest()).items():
                    near.add(other, path)
        return near

    def state_of_embedded(self, path: str) -> str:
        """Name the state of a member in the embedding frame."""
        return embedded.state(self._embedding("r"), path)

    def _embedding(self, mode: Mode) -> SChunk:
        return SChunk(Handle(snapshot.load(self.store_of(EMBEDDED)), mode))

    def read(self) -> tuple[Manifest, Version | None]:
        """Read the manifest and its version. Where there is no manifest, there is no version either."""
        return self._stored()

    def stored(self) -> Manifest:
        """Read the manifest as it is now."""
        return self._stored(versioned=False)[0]

    def require_ledger(self) -> None:
        """Raise UnsupportedError if the group has no place for snapshots."""

    def _stored(self, *, versioned: bool = True) -> tuple[Manifest, Version | None]:
        return read_manifest(self.store, versioned=versioned)

    def write(self, manifest: Manifest, version: Version | None) -> None:
        """Replace the manifest of that version, or raise ConflictError. The caller holds its lock."""
        write_manifest(self.store, manifest, version)

    def holds(self, manifest: Manifest) -> bool:
        """Whether the stored manifest is this one."""
        return self._stored()[0] == manifest

    def update(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Replace the manifest by a changed one; try again if another writer came first."""
        for _ in attempts(self.store):
            with self.store.lock(MANIFEST), suppress(ConflictError):
                manifest, version = self.read()
                manifest = change(manifest)
                self.write(manifest, version)
                return manifest
        raise too_many_conflicts(self.store)

    def recover(self) -> None:
        """Complete a commit that was interrupted, and show the result.

        A group that was copied from an object store becomes a local one.
        """
        manifest, version = self._stored()
        if manifest.rows is not None:
            with self.store.lock(MANIFEST):
                localize(self.store, *self._stored())
            self.refresh()
            return
        if manifest.log and version != self._settled:
            with self.store.lock(MANIFEST):
                manifest, version = self._stored()
                self.apply_log(manifest)
                self._settled = version
            self.refresh()

    def apply_log(self, manifest: Manifest, *, locked: Collection[str] = ()) -> dict[str, Entry]:
        """Apply the log, and return what cannot be applied now.

        The caller holds the manifest's lock, and those of the members `locked`.
        """
        return apply.apply_log(
            self.store_of,
            manifest.log,
            remove_embedded=self.remove_embedded,
            locked=locked,
        )

    def apply_entry(self, path: str) -> None:
        """Give a member the frame that waits for it in another place: nobody else may write there.

        It may wait there even after `recover`, because of a later commit.
        """
        entry = self.manifest.log.get(path)
        if entry is not None and entry.kind == "frame":
            with self.store.lock(MANIFEST):
                apply.apply_entry(self.store_of, path, entry)

    def remove_embedded(self, path: str, entry: Entry) -> None:
        """Remove a member from the embedding frame, unless that is done."""
        held = self._embedding("r+")
        if embedded.state(held, path) == entry.before:
            embedded.remove(held, [path.removeprefix(f"{EMBEDDED}/")])
            self.store_of(EMBEDDED).force()

    # Members.

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member by its path; raise ConflictError if a later transaction has changed it."""
        if is_embedded(path):
            return embedded.open_embedded(self._embedding("r"), path)
        if (mount := self.mount_of(path)) is not None:
            return mount[0].open(mount[1], mode)
        if mode == "r":
            return self._promised(path) or Handle(self.current(path), mode)
        self.recover()
        self.apply_entry(path)
        return Handle(self.current(path), mode)

    def _record(self, path: str) -> Any:
        """Return the summary of a member in the manifest, or None."""
        packed = self._state()[0].summaries
        if self._records[0] is not packed:
            self._records = packed, summary.unpack_all(packed)
        return self._records[1].get(path)

    def _promised(self, path: str) -> Handle | None:
        record = None if path in self._state()[0].log else self._record(path)
        return None if record is None else summaries.promise(self.store_of(path), record)

    def state_of(self, path: str, manifest: Manifest | None = None) -> Snapshot:
        """Return the state of a member by a manifest, or by the manifest of now."""
        if (mount := self.mount_of(path)) is not None:
            return mount[0].state_of(mount[1])
        manifest = manifest or self.stored()
        if manifest.rows is not None:
            held = load_member(Member(Catalog(self.store), path.rpartition(".")[0]), manifest)
            return replace(held, member=None)
        again = partial(_read_again, self._address, self.storage_options, path)
        return read_member(self.store_of, manifest, path, again=again)

    def current(self, path: str) -> Snapshot:
        """Return the state of a member that belongs to the members that are shown. Raises what `open` raises."""
        if (mount := self.mount_of(path)) is not None:
            return mount[0].current(mount[1])
        manifest, _ = self._state()
        try:
            held = self.state_of(path, manifest)
        except MISSING:
            # The caller may have taken the path from an earlier list: a commit through this handle shows its own
            # manifest, but none of the changes that others have made before.
            raise stale_reader(self.url) from None
        identity, number, _ = held.state.annotations.group_commit or ("", 0, "")
        if number and (identity != manifest.identity or number > manifest.number):
            now, _ = self._stored()
            if now.identity == identity and now.commit != manifest.commit:
                raise stale_reader(self.url)
        return held


def _read_again(address: str, options: Mapping[str, Any], path: str, *, carries_out: bool = False) -> Snapshot:
    """Return the state of a member that is committed now; pickles of arrays may take this call along."""
    group = LocalGroup(address, options)
    if carries_out:  # nobody may write to a frame that still waits in another place
        group.apply_entry(path)
    return group.state_of(path)
